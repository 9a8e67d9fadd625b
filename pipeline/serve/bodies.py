"""What requests say, checked: one class for each kind of body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_CHARS = 20_000

Words = Annotated[str, Field(max_length=MAX_CHARS)]
Name = Annotated[str, Field(max_length=4096)]
Where = Annotated[str, Field(max_length=4000)]
Kind = Literal["text", "table", "image", "page"]


def first_fault(errors: Sequence[Mapping[str, Any]]) -> str:
    """Name the first mistake of a body or of arguments, without repeating the whole of it."""
    first = errors[0] if errors else {}
    place = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
    said = str(first.get("msg", "invalid"))
    return f"{place}: {said}" if place else said


class Strict(BaseModel):
    """A body in which an unknown key is a mistake, not something to pass over."""

    model_config = ConfigDict(extra="forbid")


class SearchBody(Strict):
    """Words, a picture (a data URL or base64), or both."""

    text: Words = ""
    image: str | None = None
    k: int = Field(default=10, ge=1)
    where: Where | None = None
    modality: list[Kind] | None = None
    mode: Literal["hybrid", "dense", "words", "late"] = "hybrid"
    group: Literal["source"] | None = None
    collapse: bool = True
    rerank: Name | list[Name] | Literal[False] | None = None


class AskBody(Strict):
    """A question. stream: answer in server-sent events."""

    text: Words
    k: int | None = Field(default=None, ge=1)
    where: Where | None = None
    extractive: bool | None = None
    rerank: Name | list[Name] | Literal[False] | None = None
    stream: bool = True
    trace: bool = True


class AddBody(Strict):
    """Files and folders below the server's roots."""

    paths: list[Name] = Field(min_length=1, max_length=100)
    prune: bool = False
    refresh: bool = False


class RemoveBody(Strict):
    """Files, folders or labels to take out. erase: rewrite the index without them at once."""

    targets: list[Name] = Field(min_length=1, max_length=1000)
    erase: bool = False


class SessionBody(Strict):
    token: str = Field(max_length=1000)


class Loose(BaseModel):
    """A body of the OpenAI protocol: keys that say nothing here are passed over."""

    model_config = ConfigDict(extra="ignore")


class EmbeddingBody(Loose):
    input: str | list[Any]
    model: Name = "foveate-text"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    input_type: Literal["document", "query"] = "document"


class ChatMessage(Loose):
    role: Name
    content: str | list[dict[str, Any]] | None = None


class ChatBody(Loose):
    messages: list[ChatMessage] = Field(min_length=1, max_length=500)
    model: Name = "foveate"
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int = 1
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None
