"""The part of the OpenAI protocol that an index can speak: models, embeddings, chat."""

from __future__ import annotations

import base64
import itertools
import time
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from foveate.pipeline.errors import FoveateError, QueryError
from foveate.pipeline.serve.bodies import (
    MAX_CHARS,
    AskBody,
    ChatBody,
    ChatMessage,
    EmbeddingBody,
)
from foveate.pipeline.serve.pictures import decode
from foveate.pipeline.serve.service import Service
from foveate.pipeline.serve.stream import HEADERS, event, stages

if TYPE_CHECKING:
    from foveate.pipeline.types import Floats

# name of a chat model: whether it only quotes
CHAT = {"foveate": None, "foveate-extractive": True, "foveate-generated": False}
SHOWN = ("question", "answered", "citations")  # of an answer, beside what the protocol has
MOST_TURNS = 8  # questions before the last that it may lean on
EMBEDDING = {"foveate-text": "text", "foveate-image": "image"}


class UnknownModel(FoveateError):
    """A model that this server does not have."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no model {name!r} here: take {', '.join(known)}")


def routes(service: Service) -> APIRouter:
    """Return the routes under /v1."""
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """List the models: chat models answer from the index, embedding models are its encoders."""
        roles = [n for n, role in EMBEDDING.items() if role in service.engine.encoders]
        return {"object": "list", "data": [card(n) for n in (*CHAT, *roles)]}

    @router.get("/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        """Describe one model."""
        if name not in (*CHAT, *EMBEDDING):
            raise UnknownModel(name, [*CHAT, *EMBEDDING])
        return card(name)

    @router.post("/embeddings")
    async def embeddings(body: EmbeddingBody) -> dict[str, Any]:
        """Encode texts, or pictures given as data URLs, with the index's own encoders."""
        return await service.searching.run(lambda: embed(service, body))

    @router.post("/chat/completions", response_model=None)
    async def chat(request: Request, body: ChatBody) -> Response | dict[str, Any]:
        """Answer the last user message from the index; citations stand in `annotations`.

        A question that leans on those before ("and how long do they keep?") is made whole first.

        With stream the checked sentences are sent, not what a generator drafts: a sentence that
        is dropped for want of support cannot be taken back.
        """
        asked = question(body)
        base = str(request.base_url).rstrip("/")
        ask = AskBody(text=asked, extractive=CHAT[body.model], stream=body.stream, trace=False)
        if body.stream:
            await service.showing.run(lambda: service.check_question(ask))
            parts = chunks(service, body, ask, base)
            return StreamingResponse(parts, 200, HEADERS, "text/event-stream")
        answer = await service.asking.run(lambda: service.answer(ask))
        return completion(service, body, answer, base)

    return router


def card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "foveate"}


def embed(service: Service, body: EmbeddingBody) -> dict[str, Any]:
    """Return the vectors of a request as the protocol wants them.

    Raises:
        UnknownModel: for another model. QueryError: for inputs that cannot be encoded.
    """
    role = EMBEDDING.get(body.model)
    encoder = service.engine.encoders.get(role or "")
    if role is None or encoder is None:
        held = [n for n, r in EMBEDDING.items() if r in service.engine.encoders]
        raise UnknownModel(body.model, held)
    if body.dimensions not in (None, encoder.dim):
        raise QueryError(f"dimensions is {encoder.dim} for {body.model}, got {body.dimensions}")
    texts = inputs_of(body, service.options.max_inputs)
    inputs: list[Any] = list(texts)
    if role == "image":
        inputs = [decode(text, service.options.max_picture_bytes) for text in texts]
    encode = encoder.encode_queries if body.input_type == "query" else encoder.encode
    vectors = encode(inputs)
    n = 0 if role == "image" else sum(len(encoder.token_spans(text)) for text in texts)
    data = [
        {"object": "embedding", "index": i, "embedding": packed(row, body.encoding_format)}
        for i, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n, "total_tokens": n}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


def inputs_of(body: EmbeddingBody, most: int) -> list[str]:
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts or len(texts) > most:
        raise QueryError(f"input takes 1 to {most} texts, got {len(texts)}")
    longest = MAX_CHARS if body.model == "foveate-text" else None
    for text in texts:
        if not isinstance(text, str):
            raise QueryError(f"input takes texts, not tokens: got {text!r:.60}")
        if not text or (longest and len(text) > longest):
            raise QueryError(f"a text of input has 1 to {MAX_CHARS} characters, got {len(text)}")
    return texts


def packed(row: Floats, how: str) -> str | list[float]:
    if how == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(x) for x in row]


def question(body: ChatBody) -> str:
    """Return what is asked: the last message of the user, made to stand without those before.

    Raises:
        QueryError: if there is none, or something is wanted that an index cannot do.
    """
    from foveate.pipeline.chat import Turn, stand_alone
    from foveate.pipeline.types import Answer

    if body.model not in CHAT:
        raise UnknownModel(body.model, list(CHAT))
    if body.n != 1:
        raise QueryError(f"n is 1 here: one question has one answer, got {body.n}")
    if body.tools:
        raise QueryError("tools are not supported: the answer comes from the index")
    if body.response_format and body.response_format.get("type") != "text":
        raise QueryError("response_format is text here")
    asked = [i for i, message in enumerate(body.messages) if message.role == "user"]
    said = words_of(body.messages[asked[-1]]) if asked else ""
    if not said.strip():
        raise QueryError("the messages hold no text of the user to answer")
    turns: list[Turn] = []
    for place in asked[-MOST_TURNS - 1 : -1]:
        before = words_of(body.messages[place])
        alone = stand_alone(before, turns)
        after = body.messages[place + 1] if place + 1 < len(body.messages) else None
        told = words_of(after) if after is not None and after.role == "assistant" else ""
        turns.append(Turn(before, alone, Answer(alone.text, told, (), bool(told))))
    return stand_alone(said[:MAX_CHARS], turns).text


def words_of(message: ChatMessage) -> str:
    """Return the text of a message. Raises QueryError for parts that are no text."""
    said = message.content
    if isinstance(said, list):
        kinds = {part.get("type") for part in said}
        if kinds - {"text"}:
            raise QueryError(f"a message takes text parts only, got {sorted(map(str, kinds))}")
        said = "\n".join(str(part.get("text", "")) for part in said)
    return (said or "")[:MAX_CHARS]


def url_citations(answer: dict[str, Any], base: str) -> list[dict[str, Any]]:
    """Return each citation as the protocol's url_citation; the address opens the cited place."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": c["sentence"][0],
                "end_index": c["sentence"][1],
                "title": c["title"] or c["name"],
                "url": base + c["open"],
            },
        }
        for c in answer["citations"]
    ]


def usage(service: Service, answer: dict[str, Any]) -> dict[str, int]:
    """Count tokens as the text encoder does: there may be no reader at all."""
    spans = service.engine.encoders["text"].token_spans
    n_in, n_out = len(spans(answer["question"])), len(spans(answer["answer"]))
    return {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}


def envelope(body: ChatBody, kind: str) -> dict[str, Any]:
    """Return what every object of one completion shares."""
    name = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": body.model}


def completion(
    service: Service, body: ChatBody, answer: dict[str, Any], base: str
) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": answer["answer"],
        "annotations": url_citations(answer, base),
        "refusal": None,
    }
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {
        **envelope(body, "chat.completion"),
        "choices": [choice],
        "usage": usage(service, answer),
        "foveate": {name: answer[name] for name in SHOWN},
    }


async def chunks(service: Service, body: ChatBody, ask: AskBody, base: str) -> AsyncIterator[bytes]:
    """Yield the chunks of a streamed completion."""
    shared = envelope(body, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], end: str | None = None, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": end}]
        return data_of({**shared, "choices": choices, **more})

    yield chunk({"role": "assistant", "content": ""})
    async for name, found in stages(service.asking, lambda watch: service.answer(ask, watch)):
        if name == "wait":
            yield b": working\n\n"
        elif name == "error":
            yield data_of({"error": {**found, "code": None, "param": None}})
        elif name == "result":
            for piece in pieces(found):
                yield chunk({"content": piece})
            cited = {name: found[name] for name in SHOWN}
            last = {"annotations": url_citations(found, base)}
            yield chunk(last, "stop", foveate=cited)
            if (body.stream_options or {}).get("include_usage"):
                counts = usage(service, found)
                yield data_of({**shared, "choices": [], "usage": counts})
    yield b"data: [DONE]\n\n"


def data_of(record: dict[str, Any]) -> bytes:
    return event("", record).split(b"\n", 1)[1]


def pieces(answer: dict[str, Any]) -> list[str]:
    """Cut an answer behind each of its cited sentences."""
    text = answer["answer"]
    cuts = sorted({0, len(text), *(min(c["sentence"][0], len(text)) for c in answer["citations"])})
    return [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]
