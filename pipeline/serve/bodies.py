"""What requests say, checked: one class for each kind of body."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from foveate.pipeline.serve.faults import wanted

MAX_CHARS = 20_000

Words = Annotated[str, Field(max_length=MAX_CHARS)]
Name = Annotated[str, Field(max_length=4096)]
Where = Annotated[str, Field(max_length=4000)]
Kind = Literal["text", "table", "image", "page"]


def listed(value: Any) -> Any:
    """Take one text for a list of it."""
    return [value] if isinstance(value, str) else value


Kinds = Annotated[list[Kind], BeforeValidator(listed, json_schema_input_type=Kind | list[Kind])]
Names = Annotated[list[Name], BeforeValidator(listed, json_schema_input_type=Name | list[Name])]
Rerank = Annotated[
    Name | list[Name] | Literal[False] | None,
    wanted("the name of a reranker, a list of names, false or null"),
]
LABEL = wanted(
    "12 digits 0-9a-f, a colon and a number, such as '3f2a90c1d4e5:7'",
    "take the label of a hit or a citation",
)
SPAN = wanted("START-END in characters, such as '120-180'", "take the span of a citation")


class Strict(BaseModel):
    """A body in which an unknown key is a mistake, not something to pass over."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _knows(cls, given: Any) -> Any:
        unknown = [k for k in given if k not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            close = difflib.get_close_matches(unknown[0], cls.model_fields, n=1)
            told = {
                "name": repr(unknown[0][:60]),
                "hint": f"; did you mean {close[0]!r}?" if close else "",
                "known": ", ".join(cls.model_fields),
            }
            sentence = "unknown key {name}{hint} (known: {known})"
            raise PydanticCustomError("unknown_key", sentence, told)
        return given


class SearchBody(Strict):
    """Words, a picture (a data URL or base64), or both."""

    text: Words = ""
    image: str | None = None
    k: int = Field(default=10, ge=1)
    where: Where | None = None
    modality: Kinds | None = None
    mode: Literal["hybrid", "dense", "words", "late"] = "hybrid"
    group: Literal["source"] | None = None
    collapse: bool = True
    rerank: Rerank = None


class AskBody(Strict):
    """A question. stream: answer in server-sent events."""

    text: Words
    k: int | None = Field(default=None, ge=1)
    where: Where | None = None
    extractive: bool | None = None
    rerank: Rerank = None
    stream: bool = True
    trace: bool = True


class AddBody(Strict):
    """Files and folders below the server's roots."""

    paths: Names = Field(min_length=1, max_length=100)
    prune: bool = False
    refresh: bool = False


class RemoveBody(Strict):
    """Files, folders or labels to take out. erase: rewrite the index without them at once."""

    targets: Names = Field(min_length=1, max_length=1000)
    erase: bool = False


class SessionBody(Strict):
    token: str = Field(max_length=1000)


class Loose(BaseModel):
    """A body of the OpenAI protocol: keys that say nothing here are passed over."""

    model_config = ConfigDict(extra="ignore")


class EmbeddingBody(Loose):
    input: Annotated[str | list[Any], wanted("a text or a list of texts")]
    model: Name = "foveate-text"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    input_type: Literal["document", "query"] = "document"


class ChatMessage(Loose):
    role: Name
    content: Annotated[str | list[dict[str, Any]] | None, wanted("a text or a list of parts")] = (
        None
    )


class ChatBody(Loose):
    messages: list[ChatMessage] = Field(min_length=1, max_length=500)
    model: Name = "foveate"
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int = 1
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None
