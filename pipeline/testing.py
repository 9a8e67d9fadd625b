"""Contracts that every implementation's test subclasses, and light stand-ins. Needs pytest."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from foveate.pipeline.protocols import Encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats

TEXTS: tuple[str, ...] = (
    "The wing's aspect ratio is limited by its weight.",
    "a dog on a beach",
    "",
    "   \n\t ",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "日本語の文章です。これは試験です。",
    "emoji \U0001f9d1\u200d\U0001f680 and e\u0301 combining \u0628\u0650\u0633\u0652\u0645",
    "x",
    "a long sentence about nothing in particular, said again and again; " * 40,
    "a dog on a beach",
    "supercalifragilistic" * 30,
)


def cosines(a: Floats, b: Floats) -> Floats:
    """Return (n,) float32: the cosine of each row of a (n, d) with the same row of b."""
    left = a / np.linalg.norm(a, axis=1, keepdims=True)
    right = b / np.linalg.norm(b, axis=1, keepdims=True)
    return np.asarray((left * right).sum(axis=1), dtype=np.float32)


def check_vectors(vectors: Floats, n: int, dim: int) -> None:
    """Assert (n, dim) float32, C-contiguous, finite, rows of norm 1 +- 1e-3."""
    assert isinstance(vectors, np.ndarray)
    assert vectors.shape == (n, dim)
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)


class EncoderContract:
    """What every encoder must do. Subclass as `TestX` and give the fixtures.

    encoder: the encoder under test, weights loaded on first use. other: one that differs from it
    in something that changes the vectors (another prompt, pooling, weights). inputs: about a
    dozen inputs that `encode` takes, of different sizes. queries: inputs that `encode_queries`
    takes; the texts above unless overridden. same: the least cosine of two encodings of one
    input in different batches; 0.9999 also for bf16.
    """

    same: float = 0.9999

    @pytest.fixture
    def encoder(self) -> Encoder:
        raise NotImplementedError

    @pytest.fixture
    def other(self) -> Encoder:
        raise NotImplementedError

    @pytest.fixture
    def inputs(self) -> Sequence[Any]:
        return TEXTS

    @pytest.fixture
    def queries(self) -> Sequence[Any]:
        return TEXTS

    def test_it_is_an_encoder(self, encoder: Encoder) -> None:
        assert isinstance(encoder, Encoder)
        assert encoder.reads <= {"text", "image"}
        assert encoder.reads
        assert encoder.dim > 0
        assert encoder.space.endswith(f"/{encoder.dim}")
        assert encoder.window_tokens is None or encoder.window_tokens > 0

    def test_encode_gives_unit_rows_for_every_input(
        self, encoder: Encoder, inputs: Sequence[Any]
    ) -> None:
        check_vectors(encoder.encode(inputs), len(inputs), encoder.dim)

    def test_queries_give_unit_rows(self, encoder: Encoder, queries: Sequence[Any]) -> None:
        check_vectors(encoder.encode_queries(queries), len(queries), encoder.dim)

    def test_nothing_in_gives_no_rows(self, encoder: Encoder) -> None:
        assert encoder.encode([]).shape == (0, encoder.dim)
        assert encoder.encode([]).dtype == np.float32
        assert encoder.encode_queries([]).shape == (0, encoder.dim)

    def test_one_input_is_one_row(self, encoder: Encoder, inputs: Sequence[Any]) -> None:
        for item in inputs[:4]:
            check_vectors(encoder.encode([item]), 1, encoder.dim)

    def test_order_is_kept_and_batches_do_not_matter(
        self, encoder: Encoder, inputs: Sequence[Any]
    ) -> None:
        together = encoder.encode(inputs)
        alone = np.concatenate([encoder.encode([item]) for item in inputs])
        assert cosines(together, alone).min() >= self.same
        backwards = encoder.encode(list(reversed(inputs)))[::-1]
        assert cosines(together, backwards).min() >= self.same

    def test_it_is_deterministic(self, encoder: Encoder, inputs: Sequence[Any]) -> None:
        np.testing.assert_allclose(encoder.encode(inputs), encoder.encode(inputs), atol=1e-6)

    def test_progress_rises_to_the_number_of_inputs(
        self, encoder: Encoder, inputs: Sequence[Any]
    ) -> None:
        done: list[int] = []
        encoder.encode(inputs, progress=done.append)
        assert done == sorted(done)
        assert done[-1] == len(inputs)

    def test_the_fingerprint_tells_encoders_apart(self, encoder: Encoder, other: Encoder) -> None:
        assert encoder.tower
        assert encoder.tower == encoder.tower
        assert encoder.tower != other.tower

    def test_eight_threads_equal_one(self, encoder: Encoder, inputs: Sequence[Any]) -> None:
        want = encoder.encode(inputs)
        got: list[Floats | BaseException | None] = [None] * 8
        start = threading.Barrier(8)

        def work(slot: int) -> None:
            try:
                start.wait(timeout=60)
                got[slot] = encoder.encode(inputs)
            except BaseException as error:
                got[slot] = error

        threads = [threading.Thread(target=work, args=(slot,)) for slot in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
        for vectors in got:
            assert isinstance(vectors, np.ndarray), vectors
            assert cosines(vectors, want).min() >= self.same

    def test_token_spans_slice_the_text(self, encoder: Encoder) -> None:
        if "text" not in encoder.reads:
            pytest.skip("this encoder reads no text")
        for text in TEXTS:
            spans = encoder.token_spans(text)
            assert spans.dtype == np.int32
            assert spans.shape == (len(spans), 2)
            assert (spans[:, 0] <= spans[:, 1]).all()
            assert (np.diff(spans[:, 0]) >= 0).all()
            assert ((spans >= 0) & (spans <= len(text))).all()
            if text.strip():
                assert len(spans)
                covered = "".join(text[a:b] for a, b in spans.tolist())
                assert set("".join(text.split())) & set(covered)


class HashedWords:
    """A text encoder without weights: signed feature hashing of words (Weinberger et al., 2009).

    Deterministic, light to start, and near where words are shared: what a test of everything
    around an encoder needs. n_encoded counts the texts that were encoded for storage.
    """

    reads = frozenset({"text"})
    window_tokens = 256

    def __init__(self, dim: int = 64, name: str = "hashed-words") -> None:
        self.dim = dim
        self.space = f"{name}/{dim}"
        self.tower = f"{name}/{dim}|crc32"
        self.n_encoded = 0

    def encode(
        self, inputs: Sequence[Any], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        self.n_encoded += len(inputs)
        if progress is not None:
            progress(len(inputs))
        return self.encode_queries(inputs)

    def encode_queries(self, queries: Sequence[Any]) -> Floats:
        vectors = np.zeros((len(queries), self.dim), dtype=np.float32)
        for row, text in enumerate(queries):
            for word in ["", *re.findall(r"\w+", text.casefold())]:
                code = zlib.crc32(word.encode("utf-8", "surrogatepass"))
                vectors[row, code % self.dim] += 1 if code & 1 << 20 else -1
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors[norms[:, 0] == 0, 0] = 1
        vectors /= np.maximum(norms, 1e-6) * (norms > 0) + (norms == 0)
        return vectors

    def token_spans(self, text: str) -> NDArray[np.int32]:
        spans = [m.span() for m in re.finditer(r"\w+|[^\w\s]", text)]
        return np.asarray(spans, dtype=np.int32).reshape(-1, 2)
