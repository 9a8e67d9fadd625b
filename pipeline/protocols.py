"""One protocol for each arrow of the data flow. Implementations are named in the registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from foveate.pipeline.types import Floats, Hit

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


class Reranker(Protocol):
    """Put hits into a better order."""

    def rerank(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]: ...


Progress = Callable[[str, int, int | None], None]
"""progress(stage, done, total): stage is 'scan', 'read', 'encode' or 'write'."""

Options = Mapping[str, Any]
