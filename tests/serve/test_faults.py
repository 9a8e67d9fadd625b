"""What a request that is wrong is told: one line with the field, what it takes and what it got."""

from __future__ import annotations

import pytest

JSON = "send it with the header 'Content-Type: application/json'"
KEYS = "text, image, k, where, modality, mode, group, collapse, rerank"


@pytest.mark.parametrize(
    ("content", "headers", "status", "sentence"),
    [
        (b'{"text": "x"}', {}, 415, f"the body must be JSON: {JSON}, got no such header"),
        (
            b"text=x",
            {"content-type": "application/x-www-form-urlencoded"},
            415,
            f"the body must be JSON: {JSON}, got 'application/x-www-form-urlencoded'",
        ),
        (
            b'{"text":',
            {"content-type": "application/json"},
            400,
            "the body is no JSON at character 9 (Expecting value): send a JSON object",
        ),
        (
            b"",
            {"content-type": "application/json"},
            422,
            "the body is empty: send a JSON object",
        ),
        (
            b'"x"',
            {"content-type": "application/json"},
            422,
            "the body must be a JSON object, got 'x'",
        ),
    ],
)
def test_a_body_that_is_no_json_object_is_told_what_to_send(
    client, content, headers, status, sentence
):
    answer = client.post("/api/search", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, sentence)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"k": "many"}, "k must be a whole number, got 'many'"),
        ({"k": 1.5}, "k must be a whole number, got 1.5"),
        ({"colapse": True}, f"unknown key 'colapse'; did you mean 'collapse'? (known: {KEYS})"),
        ({"zzz": 1}, f"unknown key 'zzz' (known: {KEYS})"),
        ({"text": "x" * 20_001}, "text must have at most 20000 characters, got 20001"),
        ({"text": ["x"]}, 'text must be a text, got ["x"]'),
        (
            {"modality": "smell"},
            "each of modality must be 'text', 'table', 'image' or 'page', got 'smell'",
        ),
        ({"modality": 5}, "modality must be a list, got 5"),
        ({"mode": "z"}, "mode must be 'hybrid', 'dense', 'words' or 'late', got 'z'"),
        ({"collapse": "perhaps"}, "collapse must be true or false, got 'perhaps'"),
        (
            {"rerank": 5},
            "rerank must be the name of a reranker, a list of names, false or null, got 5",
        ),
        ({"where": {"y": "z" * 99}}, 'where must be a text, got {"y": "' + "z" * 50 + "..."),
    ],
)
def test_a_wrong_field_is_named_with_what_it_takes(client, body, sentence):
    answer = client.post("/api/search", json={"text": "x", **body})
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, sentence)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        (
            "GET",
            "/api/passages/xyz",
            None,
            422,
            "label must be 12 digits 0-9a-f, a colon and a number, such as '3f2a90c1d4e5:7', got "
            "'xyz': take the label of a hit or a citation",
        ),
        (
            "GET",
            "/api/passages/000000000000:0?span=9",
            None,
            422,
            "span must be START-END in characters, such as '120-180', got '9': take the span of a "
            "citation",
        ),
        (
            "GET",
            "/api/jobs/7",
            None,
            422,
            "job_id must be 16 digits 0-9a-f, got '7': adding and removing return a job with an id",
        ),
        ("GET", "/api/passages/1/heat", None, 422, "q is missing: add ?q=... to the address"),
        (
            "GET",
            "/api/passages/1/heat?q=",
            None,
            422,
            "q must have 1 or more characters, got 0",
        ),
        ("GET", "/api/passages/1/picture?width=1", None, 422, "width must be at least 16, got '1'"),
        ("POST", "/api/files", None, 422, "name is missing: add ?name=... to the address"),
        (
            "POST",
            "/api/files?name=a.txt&wait_s=1000",
            None,
            422,
            "wait_s must be at most 120, got '1000'",
        ),
        (
            "POST",
            "/api/files?name=../a.txt",
            None,
            400,
            "name must be a plain file name such as report.pdf, got '../a.txt'",
        ),
        ("POST", "/api/ask", {}, 422, 'text is missing: give "text" in the JSON object'),
        ("POST", "/api/remove", {"targets": []}, 422, "targets must have 1 or more entries, got 0"),
        ("POST", "/api/remove", {"targets": [5]}, 422, "each of targets must be a text, got 5"),
        (
            "POST",
            "/v1/embeddings",
            {"input": 5},
            422,
            "input must be a text or a list of texts, got 5",
        ),
        (
            "POST",
            "/v1/chat/completions",
            {"messages": [{"content": "x"}]},
            422,
            "messages[0].role is missing: give it",
        ),
        (
            "POST",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "\0"}], "stream": True},
            400,
            "the query is empty: give some words, a picture, or both",
        ),
        ("GET", "/api/search", None, 405, "'/api/search' does not take GET: use POST"),
        (
            "GET",
            "/api/nothing",
            None,
            404,
            "there is nothing at '/api/nothing': /openapi.json lists what there is",
        ),
    ],
)
def test_a_wrong_address_or_body_is_told_in_one_line(client, method, path, body, status, sentence):
    answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, sentence)
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)


def found(client, **options):
    answer = client.post("/api/search", json={"text": "red lemons", **options})
    return [hit["label"] for hit in answer.json()["hits"]]


def test_one_text_stands_for_a_list_of_it(client):
    whole = found(client, modality=["image"])
    assert found(client, modality="image") == whole
    schema = client.get("/openapi.json").json()["components"]["schemas"]["SearchBody"]
    kinds = [one["type"] for one in schema["properties"]["modality"]["anyOf"]]
    assert kinds == ["string", "array", "null"]
