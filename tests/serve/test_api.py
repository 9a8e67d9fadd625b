"""What the API returns for what it is asked."""

from __future__ import annotations

import base64
import io
import json
import time

import httpx
import pytest
from PIL import Image

from foveate.pipeline.errors import ModelError
from foveate.pipeline.testing import HashedWords


def data_url(path):
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def labels(client, text, **options):
    answer = client.post("/api/search", json={"text": text, **options})
    assert answer.status_code == 200, answer.text
    return [hit["label"] for hit in answer.json()["hits"]]


def events_of(response):
    """Return [(name, data)] of server-sent events."""
    found = []
    for block in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if lines:
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


def test_search_equals_the_engines_own(client, shared):
    hits = shared.server.service.engine.search("aspect ratio of the wing", k=5)
    assert labels(client, "aspect ratio of the wing", k=5) == [h.passage.label for h in hits]


def test_a_hit_says_where_it_stands_and_what_to_light(client):
    hit = client.post("/api/search", json={"text": "lemons refrigerator"}).json()["hits"][0]
    assert hit["name"] == "lemons.md"
    start, end = hit["excerpt"]
    assert "refrigerator" in hit["text"][start:end]
    assert "refrigerator" in [hit["text"][a:b] for a, b in hit["lit"]]
    assert all(start <= a < b <= end for a, b in hit["lit"])


def test_search_by_a_picture_finds_it_and_one_by_words_too(client, corpus):
    found = client.post("/api/search", json={"image": data_url(corpus / "red.png"), "k": 3})
    assert found.json()["hits"][0]["name"] == "red.png"
    blue = client.post("/api/search", json={"text": "blue", "modality": ["image"]}).json()["hits"]
    assert blue[0]["name"] == "blue.png"


def test_filters_and_groups_are_the_engines(client):
    only = client.post(
        "/api/search", json={"text": "snow hail", "where": "meta.year >= 2020"}
    ).json()
    assert {hit["metadata"].get("year") for hit in only["hits"]} == {2021}
    bad = client.post("/api/search", json={"text": "x", "where": "year >= "})
    assert bad.status_code == 400
    assert bad.json()["error"]["type"] == "QueryError"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"text": "x", "k": 0}, 422),
        ({"text": "x", "k": 100_000}, 400),
        ({"text": "x", "unknown": 1}, 422),
        ({"text": "x" * 30_000}, 422),
        ({"text": "x", "modality": ["smell"]}, 422),
        ({"image": "not base64!"}, 422),
        ({"image": base64.b64encode(b"no picture").decode()}, 422),
        ({"text": "x", "rerank": ["no-such-stage"]}, 400),
        ({"text": "x", "mode": "late"}, 400),
        ([1, 2], 422),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(client, body, status):
    answer = client.post("/api/search", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_ask_streams_its_stages_and_agrees_with_the_whole_answer(client, shared):
    question = "How long do lemons keep in the refrigerator?"
    with client.stream("POST", "/api/ask", json={"text": question}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        response.read()
    told = events_of(response)
    assert [name for name, _ in told] == ["hits", "answer"]
    streamed = told[-1][1]
    whole = client.post("/api/ask", json={"text": question, "stream": False}).json()
    assert (streamed["answer"], streamed["citations"]) == (whole["answer"], whole["citations"])
    direct = shared.server.service.engine.ask(question)
    assert whole["answer"] == direct.text
    assert [h["label"] for h in told[0][1]] == [h["label"] for h in streamed["hits"]]
    (cited, *_) = whole["citations"]
    place = client.get(
        f"/api/passages/{cited['label']}", params={"span": "{}-{}".format(*cited["span"])}
    ).json()
    assert place["quote"] == cited["quote"]
    assert cited["open"] == "/#open={}&span={}-{}".format(cited["label"], *cited["span"])


class Reader:
    """A generator that writes a sentence word by word."""

    name = "stub"
    window_tokens = 2048

    def count_tokens(self, text):
        return len(text.split())

    def generate(self, messages, **options):
        yield from ("Lemons ", "keep four weeks ", "in the refrigerator.")


def test_a_written_answer_shows_its_draft_and_ends_checked(start):
    listener = start()
    listener.server.service.engine._generator = Reader()
    question = {"text": "How long do lemons keep in the refrigerator?", "extractive": False}
    told = events_of(httpx.post(f"{listener.url}/api/ask", json=question, timeout=60))
    drafts = [data for name, data in told if name == "draft"]
    assert "".join(drafts) == "Lemons keep four weeks in the refrigerator."
    name, answer = told[-1]
    assert (name, answer["trace"]["mode"]) == ("answer", "generated")
    assert answer["citations"][0]["quote"] == "Lemons keep four weeks in the refrigerator."


class Broken(HashedWords):
    """An encoder that fails at what is asked."""

    def encode_queries(self, queries):
        raise ModelError("the weights are gone")


def test_an_error_in_a_stream_is_an_event(start):
    listener = start()
    listener.server.service.engine.encoders["text"] = Broken()
    answer = httpx.post(f"{listener.url}/api/ask", json={"text": "lemons?"}, timeout=30)
    told = {"message": "the weights are gone", "type": "ModelError"}
    assert (answer.status_code, events_of(answer)) == (200, [("error", told)])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"text": ""}, "text is empty: ask a question"),
        ({"text": " \n "}, "text is empty: ask a question"),
        ({"text": "\0"}, "the query is empty"),
        ({"text": "lemons?", "k": 100_000}, "k is at most 200 here, got 100000"),
        ({"text": "lemons?", "where": "year >= "}, "cannot read the filter"),
        ({"text": "lemons?", "rerank": "no-such"}, "unknown reranker 'no-such'"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_events(client, body, sentence, stream):
    answer = client.post("/api/ask", json={**body, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(sentence)


def test_numbers_have_the_digits_that_mean_something(client, shared):
    question = "How long do lemons keep in the refrigerator?"
    found = client.post("/api/search", json={"text": question}).json()
    hits = shared.server.service.engine.search(question)
    assert [hit["score"] for hit in found["hits"]] == [round(h.score, 6) for h in hits]
    assert any(round(h.score, 6) != h.score for h in hits)
    answer = client.post("/api/ask", json={"text": question, "stream": False}).json()
    sent = [*found["hits"], answer["trace"], *answer["citations"], *answer["hits"]]
    assert [x for x in numbers(sent) if x != round(x, 6) and x < 1e9] == []


def numbers(value):
    if isinstance(value, float):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from numbers(one)


def test_a_field_that_no_source_has_is_told(client):
    body = {"text": "lemons", "where": "meta.yaer >= 2020"}
    found = client.post("/api/search", json=body).json()
    assert found["hits"] == []
    (note,) = found["notes"]
    assert note.startswith("where: no source has a field 'yaer'; did you mean 'year'? (there are: ")
    answer = client.post("/api/ask", json={**body, "stream": False}).json()
    assert answer["notes"] == [note]
    assert events_of(client.post("/api/ask", json=body))[-1][1]["notes"] == [note]
    held = {"text": "hail", "where": "meta.year >= 2020"}
    assert client.post("/api/search", json=held).json()["notes"] == []


def test_show_gives_the_surroundings_and_the_focus(client, shared):
    label = labels(client, "pumps drive the loop")[0]
    place = client.get(f"/api/passages/{label}", params={"q": "pumps"}).json()
    whole = shared.server.service.engine.text(place["source_id"])
    assert place["before"] + place["quote"] + place["after"] == whole
    start, end = place["focus"]
    assert place["quote"][start:end] == "Two pumps drive the loop."


def test_a_picture_is_scaled_and_kept_by_its_tag(client):
    label = labels(client, "green", modality=["image"])[0]
    first = client.get(f"/api/passages/{label}/picture", params={"width": 100})
    assert first.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(first.content)).size == (100, 75)
    again = client.get(
        f"/api/passages/{label}/picture",
        params={"width": 100},
        headers={"If-None-Match": first.headers["etag"]},
    )
    assert (again.status_code, again.content) == (304, b"")


def test_an_encoder_without_regions_has_no_heat(client):
    label = labels(client, "green", modality=["image"])[0]
    assert client.get("/api/status").json()["can_light_pictures"] is False
    answer = client.get(f"/api/passages/{label}/heat", params={"q": "green"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "ConfigError"


def test_what_is_not_there_is_a_404(client):
    for path in (
        "/api/passages/000000000000:0",
        "/api/passages/000000000000:0/picture",
        "/api/jobs/0123456789abcdef",
        "/api/nothing",
        "/page/nothing.js",
    ):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["message"]


def test_status_health_and_metrics(client):
    assert client.get("/health").json()["status"] == "ok"
    status = client.get("/api/status", params={"files": True}).json()
    assert status["passages"] >= 8
    assert {f["state"] for f in status["files"]} == {"indexed"}
    text = client.get("/metrics").text
    assert 'foveate_requests_total{method="GET"' in text
    assert f"foveate_index_passages {float(status['passages'])}" in text
    assert "process_resident_memory_bytes" in text


def test_the_schema_names_every_route_and_needs_no_network(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/api/search", "/api/ask", "/api/files", "/v1/chat/completions"} <= set(paths)
    assert client.get("/docs").status_code == 404


def finished(client, job, timeout_s=30):
    end = time.monotonic() + timeout_s
    while job["state"] in ("waiting", "running"):
        assert time.monotonic() < end, job
        time.sleep(0.05)
        job = client.get(f"/api/jobs/{job['id']}").json()
    return job


def test_a_file_is_uploaded_found_removed_and_gone(start):
    listener = start(files=False)
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        sent = client.post(
            "/api/files", params={"name": "quay.txt"}, content=b"A heron on the quay."
        )
        assert sent.status_code == 202
        job = finished(client, sent.json()["job"])
        assert (job["state"], job["report"]["n_added"]) == ("done", 1)
        (label,) = labels(client, "heron quay")
        uploads = listener.server.service.uploads
        (kept,) = uploads.glob("*/quay.txt")
        assert sent.json()["job"]["path"] == job["path"] == str(kept)
        assert (job["label"], job["open"]) == (label, f"/#open={label}")
        assert client.get(f"/api/passages/{job['label']}").json()["path"] == job["path"]
        assert kept.stat().st_mode & 0o077 == 0
        gone = client.post(
            "/api/remove", params={"wait_s": 20}, json={"targets": [label], "erase": True}
        )
        assert (gone.status_code, gone.json()["job"]["report"]) == (200, {"removed": 1})
        assert labels(client, "heron quay") == []
        assert client.get(f"/api/passages/{label}").status_code == 404
        assert not list(uploads.glob("*/*"))


def test_a_file_that_holds_nothing_is_not_kept(start):
    listener = start(files=False)
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        sent = client.post(
            "/api/files", params={"name": "blank.txt", "wait_s": 20}, content=b" \n "
        )
        assert sent.json()["job"]["state"] == "done"
        assert sent.json()["job"]["report"]["n_empty"] == 1
        assert [sent.json()["job"][name] for name in ("path", "label", "open")] == [None] * 3
        assert not list(listener.server.service.uploads.glob("*/*"))
        empty = client.post("/api/files", params={"name": "none.txt"}, content=b"")
        assert empty.status_code == 400


def test_an_upload_of_many_records_or_of_what_is_there_opens_at_its_first_passage(start):
    with httpx.Client(base_url=start(files=False).url, timeout=30) as client:
        rows = b"place,note\nRidge,Deep snow lay\nValley,Hail broke glass\n"
        jobs = [
            client.post("/api/files", params={"name": name, "wait_s": 20}, content=rows).json()
            for name in ("one.csv", "two.csv")
        ]
        first, twin = (answer["job"] for answer in jobs)
        place = client.get(f"/api/passages/{first['label']}").json()
        assert (place["row"], place["path"]) == (1, f"{first['path']}#row=1")
        assert twin["label"] == first["label"]
        assert twin["path"] != first["path"]
        gone = client.post("/api/remove", params={"wait_s": 20}, json={"targets": twin["path"]})
        assert gone.json()["job"]["report"] == {"removed": 1}
        assert client.get(f"/api/passages/{first['label']}").status_code == 200


def test_removing_what_is_not_there_fails_with_a_reason(start):
    listener = start()
    answer = httpx.post(
        f"{listener.url}/api/remove", params={"wait_s": 20}, json={"targets": ["/no/such/file"]}
    )
    assert answer.status_code == 422
    assert "not in the index" in answer.json()["error"]["message"]


def test_folders_below_a_root_are_indexed_and_pruned(start, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "owl.txt").write_text("An owl by night.")
    listener = start(files=False, roots=(str(root),))
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        client.post(
            "/api/add", params={"wait_s": 20}, json={"paths": [str(root)]}
        ).raise_for_status()
        assert len(labels(client, "owl")) == 1
        (root / "owl.txt").unlink()
        body = {"paths": [str(root)], "prune": True}
        client.post("/api/add", params={"wait_s": 20}, json=body).raise_for_status()
        assert labels(client, "owl") == []
