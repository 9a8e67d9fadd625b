"""One protocol for each arrow of the data flow. Implementations are named in the registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from foveate.pipeline.reader import Reader
    from foveate.pipeline.types import Context, Floats, Hit, MultiVectors, Passage

    Input = str | Image


@runtime_checkable
class Encoder(Protocol):
    """Turn texts or pictures into vectors.

    space: the joint target, `name/dim`; vectors of one space may be compared.
    tower: fingerprint of what makes the vectors (model, revision, pooling, prompt, preprocessing,
    dimension); it stands in the index and a query from another space is refused.
    """

    # read only, so that what needs the weights may be found out on first use
    @property
    def space(self) -> str: ...
    @property
    def tower(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def reads(self) -> frozenset[str]: ...  # "text", "image": what `encode` takes
    @property
    def window_tokens(self) -> int | None: ...

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode what is stored. Returns (n, d) float32, L2-normalised, in the inputs' order."""
        ...

    def encode_queries(self, queries: Sequence[Input]) -> Floats:
        """Encode what is asked, texts or pictures. Returns (q, d) float32, L2-normalised."""
        ...

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of each token, no special tokens."""
        ...


@runtime_checkable
class TokenEncoder(Protocol):
    """Turn texts or pictures into one vector a token or patch; `Encoder` says the rest."""

    @property
    def space(self) -> str: ...
    @property
    def tower(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def reads(self) -> frozenset[str]: ...
    @property
    def window_tokens(self) -> int | None: ...

    @property
    def code(self) -> str: ...  # "onebit" or "int8": how an index keeps a vector

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> MultiVectors:
        """Encode what is stored; every vector has length 1. An item may have no vector."""
        ...

    def encode_queries(self, queries: Sequence[Input]) -> MultiVectors:
        """Encode what is asked; the length of a vector is its weight in the score."""
        ...

    def spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of what each stored vector is of."""
        ...

    def query_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32, the same of what is asked."""
        ...


@runtime_checkable
class Generator(Protocol):
    """Stream the text of a completion."""

    name: str
    window_tokens: int

    def count_tokens(self, text: str) -> int: ...

    def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the engine lends to the stages that refine hits. What is a call is made on first use.

    index: stored passages and vectors: `vectors(ids, role)`, `passages(ids)`, `source_text(id)`.
    folder: the index's own, for what a stage keeps beside it. text: a source's canonical text by
    its id. image: the picture behind a passage. sentences: text -> [start, end) of each. reader:
    the one loaded language model.
    """

    encoders: Mapping[str, Encoder]
    index: Any
    folder: Path
    text: Callable[[str], str]
    image: Callable[[Passage], Image]
    sentences: Callable[[str], list[tuple[int, int]]]
    reader: Callable[[], Reader]
    generator: Callable[[], Generator]


class Reranker(Protocol):
    """Put hits into a better order. Made as `Kind(resources, **options)`; weights load on use.

    reads: the modalities it can score; hits of others never reach it. A stage that keeps state
    between calls must allow threads.
    """

    @property
    def reads(self) -> frozenset[str]: ...

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Return the k best, best first, ties by passage id.

        `hit.score` becomes this stage's, mapped to 0..1 by a rising map that the class states;
        `hit.scores` gains its own score under the stage's name. No hits give none.
        """
        ...


class Compressor(Protocol):
    """Keep the verbatim spans that matter within a budget. Made as `Kind(resources, **options)`."""

    def compress(
        self,
        query: str,
        hits: Sequence[Hit],
        budget_tokens: int,
        *,
        count_tokens: Callable[[str], int],
    ) -> Context:
        """Return spans of the hits of at most budget_tokens in all; never none where one fits."""
        ...


class Orderer(Protocol):
    """Put kept spans into reading order. Made as `Kind(resources, **options)`."""

    def order(self, query: str, context: Context) -> Context: ...


Progress = Callable[[str, int, int | None], None]
"""progress(stage, done, total): stage is 'scan', 'read', 'encode' or 'write'."""

Options = Mapping[str, Any]
