"""Contracts that every implementation's test subclasses, and light stand-ins. Needs pytest."""

from __future__ import annotations

import hashlib
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from foveate.pipeline.protocols import Compressor, Encoder, Resources
from foveate.pipeline.types import Context, Hit, Locator, Passage, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats, Modality

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
        pytest.fail("a subclass of this contract gives the fixture 'encoder'")

    @pytest.fixture
    def other(self) -> Encoder:
        pytest.fail("a subclass of this contract gives the fixture 'other'")

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


def hit_of(
    text: str,
    *,
    id: int = 1,
    title: str = "",
    score: float = 0.9,
    modality: Modality = "text",
    source_text: str | None = None,
    start: int = 0,
) -> Hit:
    """Return a hit of a passage that begins at `start` of its source; its own text by default."""
    held = text if source_text is None else source_text
    digest = hashlib.sha256(f"{title}\x00{held}".encode("utf-8", "surrogatepass")).hexdigest()
    source = Source(digest[:32], ("/d/notes.txt",), "text/plain", "text", len(held), 0.0)
    place = Locator((start, start + len(text))) if text else Locator()
    return Hit(Passage(id, id - 1, source, modality, text, place, title), score, {"dense": score})


def lend(hits: Sequence[Hit] = (), **parts: Any) -> Resources:
    """Return what the engine lends to a stage, over these hits and light stand-ins."""
    from foveate.pipeline.ingest.sentences import sentences

    texts = {hit.passage.source.id: hit.passage.text for hit in hits}

    def missing(*_: Any) -> Any:
        raise LookupError("this stand-in lends no such thing")

    lent: Mapping[str, Any] = {
        "encoders": {"text": HashedWords()},
        "index": None,
        "folder": Path(),
        "text": texts.__getitem__,
        "image": missing,
        "sentences": sentences,
        "reader": missing,
        "generator": missing,
    }
    return Resources(**{**lent, **parts})


def count_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def check_context(
    context: Context, hits: Sequence[Hit], budget_tokens: int, count: Callable[[str], int]
) -> None:
    """Assert that every kept span is verbatim, in its passage, kept once, and within the budget."""
    n_tokens = 0
    places: set[tuple[str, int]] = set()
    for kept in context.kept:
        assert kept.hit in hits
        passage = kept.hit.passage
        base = passage.locator.span[0] if passage.locator.span else 0
        for start, end in kept.spans:
            assert base <= start < end <= base + len(passage.text)
            n_tokens += count(passage.text[start - base : end - base])
            held = {(passage.source.id, at) for at in range(start, end)}
            assert not held & places
            places |= held
    assert context.n_tokens == n_tokens <= budget_tokens


class CompressorContract:
    """What every compressor must do. Subclass as `TestX` and give the fixture."""

    passages: Sequence[str] = TEXTS
    query = "What limits the wing's aspect ratio?"

    @pytest.fixture
    def compressor(self) -> Compressor:
        pytest.fail("a subclass of this contract gives the fixture 'compressor'")

    @pytest.fixture
    def hits(self) -> list[Hit]:
        return [hit_of(text, id=i) for i, text in enumerate(self.passages, start=1)]

    def test_no_hits_give_an_empty_context(self, compressor: Compressor) -> None:
        context = compressor.compress(self.query, [], 100, count_tokens=count_words)
        assert (context.kept, context.n_tokens) == ((), 0)

    def test_what_fits_is_kept_whole(self, compressor: Compressor, hits: list[Hit]) -> None:
        context = compressor.compress(self.query, hits, 10_000, count_tokens=count_words)
        check_context(context, hits, 10_000, count_words)
        kept = {k.hit.passage.id for k in context.kept if k.spans}
        assert kept == {h.passage.id for h in hits if h.passage.text.strip()} - self.repeats(hits)

    def repeats(self, hits: Sequence[Hit]) -> set[int]:
        """Return the hits whose place in their source another hit holds already."""
        seen: set[tuple[str, Any]] = set()
        found = set()
        for hit in hits:
            place = (hit.passage.source.id, hit.passage.locator.span)
            if place in seen:
                found.add(hit.passage.id)
            seen.add(place)
        return found

    @pytest.mark.parametrize("budget", [1, 2, 7, 20, 60, 200])
    def test_never_over_the_budget_and_never_nothing(
        self, compressor: Compressor, hits: list[Hit], budget: int
    ) -> None:
        context = compressor.compress(self.query, hits, budget, count_tokens=count_words)
        check_context(context, hits, budget, count_words)
        assert context.n_tokens > 0

    def test_one_and_identical_candidates_pass_through(self, compressor: Compressor) -> None:
        text = "The wing's aspect ratio is limited by its weight. Birds know it."
        for hits in ([hit_of(text)], [hit_of(text, id=i, title=str(i)) for i in (1, 2, 3)]):
            context = compressor.compress(self.query, hits, 500, count_tokens=count_words)
            assert [k.hit for k in context.kept] == hits
            small = compressor.compress(self.query, hits, 12, count_tokens=count_words)
            check_context(small, hits, 12, count_words)
            assert small.n_tokens > 0

    def test_no_budget_keeps_nothing(self, compressor: Compressor, hits: list[Hit]) -> None:
        context = compressor.compress(self.query, hits, 0, count_tokens=count_words)
        assert context.n_tokens == 0
        assert not any(kept.spans for kept in context.kept)

    def test_it_is_deterministic(self, compressor: Compressor, hits: list[Hit]) -> None:
        one, two = (
            compressor.compress(self.query, hits, 40, count_tokens=count_words) for _ in range(2)
        )
        assert one == two
