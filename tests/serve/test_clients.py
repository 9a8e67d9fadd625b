"""The clients that people have, OpenAI's and an assistant's, talk to the server."""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
import numpy as np
import pytest

from foveate.pipeline.testing import HashedWords

QUESTION = "How long do lemons keep in the refrigerator?"
TOKEN = "-".join(["correct", "horse", "battery", "staple"])


@pytest.fixture
def openai(shared):
    library = pytest.importorskip("openai", reason="the OpenAI client library is not installed")
    with library.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed(openai):
    names = [model.id for model in openai.models.list()]
    assert names[:1] == ["foveate"]
    assert {"foveate-text", "foveate-image"} <= set(names)
    assert openai.models.retrieve("foveate").id == "foveate"


@pytest.mark.parametrize("how", [{}, {"encoding_format": "float"}])
def test_embeddings_are_the_index_encoders_own(openai, how):
    texts = ["a lemon tree", "the cooling loop"]
    made = openai.embeddings.create(model="foveate-text", input=texts, **how)
    vectors = np.array([row.embedding for row in made.data], dtype=np.float32)
    np.testing.assert_allclose(vectors, HashedWords().encode(texts), atol=1e-6)
    assert [row.index for row in made.data] == [0, 1]
    assert made.usage.prompt_tokens == 6
    (one,) = openai.embeddings.create(model="foveate-text", input="a lemon tree", **how).data
    np.testing.assert_allclose(one.embedding, vectors[0], atol=1e-6)


def test_pictures_are_embedded_from_data_urls(openai, corpus):
    import base64

    urls = [
        "data:image/png;base64," + base64.b64encode((corpus / name).read_bytes()).decode()
        for name in ("red.png", "blue.png")
    ]
    made = openai.embeddings.create(model="foveate-image", input=urls)
    red, blue = (np.array(row.embedding) for row in made.data)
    assert red @ blue < 0.99


def test_what_cannot_be_embedded_is_refused(openai):
    import openai as library

    wrong = [
        {"model": "text-embedding-3-small", "input": "x"},
        {"model": "foveate-text", "input": [[1, 2, 3]]},
        {"model": "foveate-text", "input": []},
        {"model": "foveate-text", "input": ""},
        {"model": "foveate-text", "input": "x", "dimensions": 3},
        {"model": "foveate-text", "input": ["x"] * 1000},
        {"model": "foveate-image", "input": "no picture"},
    ]
    for arguments in wrong:
        with pytest.raises(library.APIStatusError) as caught:
            openai.embeddings.create(**arguments)
        assert caught.value.status_code in (400, 404, 422)
        assert caught.value.body["message"]


def test_chat_answers_from_the_index_with_citations(openai, shared):
    asked = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ]
    made = openai.chat.completions.create(model="foveate", messages=asked)
    message = made.choices[0].message
    assert "four weeks in the refrigerator" in message.content
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    cited = message.annotations[0].url_citation
    assert "four weeks" in message.content[cited.start_index : cited.end_index]
    assert cited.url.startswith(f"{shared.url}/#open=")
    (citation, *_) = made.foveate["citations"]
    start, end = citation["span"]
    text = shared.server.service.engine.text(citation["source_id"])
    assert text[start:end] == citation["quote"]


def test_a_question_that_leans_on_the_one_before_is_made_whole(openai):
    asked = [
        {"role": "user", "content": "What does a lemon tree want?"},
        {"role": "assistant", "content": "A tree wants sun."},
        {"role": "user", "content": "How high does it grow?"},
    ]
    made = openai.chat.completions.create(model="foveate-extractive", messages=asked)
    assert "lemon tree" in made.foveate["question"]


def test_chat_streams_the_same_answer(openai):
    asked = [{"role": "user", "content": QUESTION}]
    whole = openai.chat.completions.create(model="foveate", messages=asked)
    options = {"include_usage": True}
    chunks = list(
        openai.chat.completions.create(
            model="foveate", messages=asked, stream=True, stream_options=options
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    ends = [c for c in chunks if c.choices and c.choices[0].finish_reason]
    assert [c.choices[0].finish_reason for c in ends] == ["stop"]
    assert ends[0].foveate["citations"] == whole.foveate["citations"]
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_chat_says_what_it_cannot_do(openai):
    import openai as library

    asked = [{"role": "user", "content": QUESTION}]
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    wrong = [
        {"model": "gpt-5", "messages": asked},
        {"model": "foveate", "messages": [{"role": "system", "content": "x"}]},
        {"model": "foveate", "messages": [{"role": "user", "content": picture}]},
        {"model": "foveate", "messages": asked, "n": 2},
        {"model": "foveate", "messages": asked, "response_format": {"type": "json_object"}},
    ]
    for arguments in wrong:
        with pytest.raises(library.APIStatusError) as caught:
            openai.chat.completions.create(**arguments)
        assert caught.value.status_code in (400, 404), arguments


def test_the_key_is_the_token(start):
    library = pytest.importorskip("openai", reason="the OpenAI client library is not installed")
    listener = start(token=TOKEN)
    for key, error in (("wrong", library.AuthenticationError), (TOKEN, None)):
        with library.OpenAI(base_url=f"{listener.url}/v1", api_key=key, max_retries=0) as client:
            if error is None:
                assert client.models.list().data
            else:
                with pytest.raises(error):
                    client.models.list()


async def use(client):
    """Search, ask and show as an assistant does; return what came back."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    found = await client.call_tool("search", {"query": "cooling loop pumps", "k": 2})
    label = found.structured_content["hits"][0]["label"]
    asked = await client.call_tool("ask", {"question": QUESTION})
    shown = await client.call_tool("show", {"label": label})
    red = await client.call_tool("search", {"query": "red", "modality": "image"})
    picture = await client.call_tool("show", {"label": red.structured_content["hits"][0]["label"]})
    wrong = [
        await client.call_tool("search", {"query": "x", "where": "year >="}),
        await client.call_tool("show", {"label": "000000000000:0"}),
        await client.call_tool("show", {"label": "../../etc/passwd"}),
        await client.call_tool("search", {"query": "x", "k": 10_000}),
        await client.call_tool("search", {}),
    ]
    return listed, found, asked, shown, picture, wrong


def check_tools(results):
    listed, found, asked, shown, picture, wrong = results
    assert set(listed) == {"search", "ask", "show"}
    assert all(tool.annotations.read_only_hint for tool in listed.values())
    hit = found.structured_content["hits"][0]
    assert hit["path"].endswith("loop.txt")
    answer = asked.structured_content
    assert answer["answered"]
    assert "four weeks" in answer["citations"][0]["quote"]
    place = json.loads(shown.content[0].text)
    assert "Two pumps" in place["quote"]
    assert [part.type for part in picture.content] == ["text", "image"]
    assert picture.content[1].mime_type == "image/jpeg"
    assert all(result.is_error for result in wrong)
    told = [result.content[0].text for result in wrong]
    assert all("\n" not in line and "pydantic" not in line for line in told)
    assert told[-3:] == [
        "show: label must be 12 digits 0-9a-f, a colon and a number, such as '3f2a90c1d4e5:7', got "
        "'../../etc/passwd': take the label of a hit or a citation",
        "search: k must be at most 50, got 10000",
        "search: query is missing: give it",
    ]


def test_tools_over_http(shared):
    mcp = pytest.importorskip("mcp", reason="the MCP library is not installed")

    async def run():
        async with mcp.Client(f"{shared.url}/mcp") as client:
            return await use(client)

    check_tools(asyncio.run(run()))


def test_tools_over_http_need_the_token(start):
    mcp = pytest.importorskip("mcp", reason="the MCP library is not installed")
    from mcp.client.streamable_http import streamable_http_client

    listener = start(token=TOKEN)

    async def run(headers):
        async with httpx.AsyncClient(headers=headers) as http:
            line = streamable_http_client(f"{listener.url}/mcp", http_client=http)
            async with mcp.Client(line) as client:
                return await client.list_tools()

    assert len(asyncio.run(run({"Authorization": f"Bearer {TOKEN}"})).tools) == 3
    with pytest.raises(BaseException):  # noqa: B017, PT011  # a group of the client's own errors
        asyncio.run(run({}))


@pytest.mark.models
def test_tools_over_stdio(tmp_path):
    """The command itself, as an assistant starts it; nothing but the protocol is on stdout."""
    mcp = pytest.importorskip("mcp", reason="the MCP library is not installed")
    import foveate

    (tmp_path / "lemons.md").write_text("Lemons keep four weeks in the refrigerator.")
    with foveate.open(tmp_path / "ix.fov", create=True) as engine:
        engine.add(tmp_path / "lemons.md")
    arguments = ["-m", "foveate.cli", "serve", "--mcp", "--index", str(tmp_path / "ix.fov")]

    async def run():
        server = mcp.StdioServerParameters(command=sys.executable, args=["-P", *arguments])
        async with mcp.Client(server) as client:
            return await client.call_tool("ask", {"question": QUESTION})

    answer = asyncio.run(run()).structured_content
    assert answer["answered"]
    assert answer["citations"][0]["path"].endswith("lemons.md")
