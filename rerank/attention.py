"""The attention scan: how a language model's question tokens attend to candidate passages.

One look serves reranking, compression, order and evidence; none of them runs the model again.

    a_t = sum_h mean_r A[h, r, t]        r over the question's rows, h over the chosen heads
    c_t = a_t - a_t of the question "N/A"         (ICR, arXiv 2410.02642)

A passage's score is the sum of its c_t, those far below its own mean left out. All heads together
are ICR, chosen ones QRHead (arXiv 2506.09944). Passages are blind to each other; by default the
question does not read them either (mode 'blind'), so that their keys serve any question, in any
company, and can be kept.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Passage
from foveate.rerank import probe
from foveate.rerank.heads import find_heads
from foveate.rerank.layout import NOTHING, Asked, Block, Mode, Parts, Prompt, Rows, arrange
from foveate.rerank.probe import Reader
from foveate.rerank.scan_keys import KeyCache, Keys

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from foveate.pipeline.protocols import Resources
    from foveate.pipeline.types import Floats, Ints

READ_TOKENS = 4096  # in one forward; more are read in turns
N_LOOKS = 8  # of the last questions, kept for the stages that follow
_RESERVE = 64  # positions for what a chat template puts behind the question


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What the question looked at, passage by passage, in their order.

    passage_scores: (n,) float32. token_scores: n times (t_i,) float32, of the passage's text.
    token_spans: n times (t_i, 2) int32, [start, end) code points in `passage.text`. token_ids: n
    times (t_i,) int64, the reader's. head_scores: (n, h) float32, each chosen head's own score.
    token_heads: n times (t_i, h) float32, each head's token scores, where they were asked for.
    n_windows: (n,) int64, above 1 where a passage was longer than the reader's window.
    question_ids: (r,) int64, the tokens that asked.
    """

    passage_scores: Floats
    token_scores: tuple[Floats, ...]
    token_spans: tuple[NDArray[np.int32], ...]
    token_ids: tuple[Ints, ...]
    head_scores: Floats
    token_heads: tuple[Floats, ...] | None
    n_windows: Ints
    question_ids: Ints


class AttentionScan:
    """Look at passages with a question. Threads may share it.

    Memory beside the weights: the activations of `read_tokens` tokens, the chosen key heads of
    the list's tokens (SmolLM2's 16 heads: 3 KB a token at most), one row of weights a head, and
    the keys kept for the next questions (`keep_mb`).

    Args:
        reader: the language model.
        heads: (layer, head) pairs, a file that `foveate heads` wrote, 'all', or None for the list
            that is known for this reader, else all.
        mode: 'blind' or 'blocks' (the question reads the passages, which are blind to each
            other), or 'causal'.
        rows: which tokens score: the 'question', the whole 'suffix' behind the passages, 'last'.
        calibrate: take off what the question "N/A" looks at.
        mask_deviations: a passage's tokens this many deviations below its mean count for
            nothing; None counts all.
        share: 'prompt' spreads a row's attention over the whole prompt, 'passages' over passage
            tokens only (BlockRank).
        folder: where keys are kept between processes; None keeps them in memory only.
        keep_mb: of keys in memory.
        read_tokens: of passages in one forward.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        heads: str | Path | Iterable[Sequence[int]] | None = None,
        mode: Mode = "blind",
        rows: Rows = "question",
        calibrate: bool = True,
        mask_deviations: float | None = 2.0,
        share: str = "prompt",
        folder: Path | None = None,
        keep_mb: int = 256,
        read_tokens: int = READ_TOKENS,
    ) -> None:
        for name, value, known in (
            ("mode", mode, get_args(Mode)),
            ("rows", rows, get_args(Rows)),
            ("share", share, ("passages", "prompt")),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r} (known: {', '.join(known)})")
        if folder is not None and mode != "blind":
            raise ConfigError(f"keys can be kept in mode 'blind' only, got {mode!r}")
        self.reader = reader
        self.mode, self.rows, self.calibrate, self.share = mode, rows, calibrate, share
        self.mask_deviations, self.read_tokens = mask_deviations, read_tokens
        self._wanted = heads
        self._cache = KeyCache(folder, keep_mb << 20)
        self._lock = threading.RLock()
        self._ready: tuple[Any, Prompt, probe.Heads] | None = None
        self._looks: OrderedDict[Any, Look] = OrderedDict()

    @property
    def heads(self) -> probe.Heads:
        return self._parts()[2]

    def look(
        self, query: str, passages: Sequence[Passage | str], *, per_head: bool = False
    ) -> Look:
        """Look at passages with a question.

        passages: with their `context` read before their text. per_head: give `token_heads`.
        """
        key = (query, per_head, tuple(_text(p) for p in passages))
        with self._lock:
            if key in self._looks:
                self._looks.move_to_end(key)
                return self._looks[key]
        found = self._look(query, passages, per_head)
        with self._lock:
            self._looks[key] = found
            while len(self._looks) > N_LOOKS:
                self._looks.popitem(last=False)
        return found

    def _look(self, query: str, passages: Sequence[Passage | str], per_head: bool) -> Look:
        _, prompt, heads = self._parts()
        asked = [prompt.asked(query, self.rows)]
        if self.calibrate:
            asked.append(prompt.asked(NOTHING, self.rows))
        longest = max(len(a.ids) for a in asked)
        room = self.reader.window_tokens - len(prompt.prefix) - longest - _RESERVE
        limit = max(16, min(room, self.read_tokens))
        blocks = list(prompt.blocks(passages, limit))
        weights = np.zeros((len(heads.pairs), 0), dtype=np.float32)
        if blocks:
            reading = self._blind if self.mode == "blind" else self._reading
            weights = reading(blocks, asked, max(1, room))
        return self._sum_up(blocks, weights, asked[0], len(passages), per_head)

    def _blind(self, blocks: list[Block], asked: list[Asked], room: int) -> Floats:
        """Return (h, u) float32: each head's calibrated weight on each passage token."""
        network, prompt, heads = self._parts()
        kept = self._keys(blocks)
        longest = max(len(b.ids) for b in blocks)
        parts = arrange(prompt.prefix, [], asked, self.mode, longest=longest)
        seen = probe.look(network, parts.pack, heads)
        content = torch.cat([k.tensor(seen.queries.device) for k in kept], 1)
        at = torch.cat([torch.arange(len(b.ids)) for b in blocks]) + len(prompt.prefix)
        return self._weigh(seen, parts, asked, content, at)

    def _keys(self, blocks: list[Block]) -> list[Keys]:
        """Return each block's keys, read where none are kept."""
        network, prompt, heads = self._parts()
        names = [self._cache.name(self._mark, block.ids) for block in blocks]
        found = self._cache.get(names)
        missing = [i for i, name in enumerate(names) if name not in found]
        for group in groups([len(blocks[i].ids) for i in missing], self.read_tokens):
            chosen = [missing[i] for i in group]
            parts = arrange(prompt.prefix, [blocks[i] for i in chosen], [], self.mode)
            seen = probe.look(network, parts.pack, heads)
            made = {
                names[i]: self._cache.make(seen.keys[:, a:b])
                for i, (a, b) in zip(chosen, parts.blocks, strict=True)
            }
            self._cache.put(made)
            found.update(made)
        return [found[name] for name in names]

    def _reading(self, blocks: list[Block], asked: list[Asked], room: int) -> Floats:
        """Return (h, u) as `_blind` does; what does not fit one forward is read in windows.

        Each window spreads its attention over its own passages.
        """
        network, prompt, heads = self._parts()
        most = min(room, self.read_tokens) if self.mode == "causal" else self.read_tokens
        found = []
        for group in groups([len(b.ids) for b in blocks], most):
            parts = arrange(prompt.prefix, [blocks[i] for i in group], asked, self.mode)
            seen = probe.look(network, parts.pack, heads)
            first, last = parts.blocks[0][0], parts.blocks[-1][1]
            content, at = seen.keys[:, first:last], parts.pack.positions[first:last]
            found.append(self._weigh(seen, parts, asked, content, at))
        return np.concatenate(found, 1)

    @torch.inference_mode()
    def _weigh(
        self, seen: probe.Seen, parts: Parts, asked: Sequence[Asked], content: Tensor, at: Tensor
    ) -> Floats:
        """Return (h, u) float32 weights on the content's tokens, which stand at `at` (u,)."""
        owners = self.heads.owners
        found = np.empty((len(owners), content.shape[1]), dtype=np.float32)
        for head, owner in enumerate(owners):
            total: Tensor | None = None
            row = 0
            for place, question in zip(parts.asked, asked, strict=True):
                rows = seen.queries[head, row : row + len(question.rows)].float()
                row += len(question.rows)
                here = parts.pack.positions[place[0] + torch.from_numpy(question.rows)]
                logits = _logits(seen, head, rows, here, content[owner], at)
                sums = logits.logsumexp(1)
                if self.share == "prompt":
                    # behind a passage: the prefix, and the question's own tokens so far
                    for start, end in (parts.prefix, place):
                        keys, there = seen.keys[owner, start:end], parts.pack.positions[start:end]
                        rest = _logits(seen, head, rows, here, keys, there)
                        sums = torch.logaddexp(sums, rest.logsumexp(1))
                weight = (logits - sums[:, None]).exp().nan_to_num(0.0).mean(0)
                total = weight if total is None else total - weight
            if total is not None:
                found[head] = total.cpu().numpy()
        return found

    def _sum_up(
        self, blocks: list[Block], weights: Floats, asked: Asked, n: int, per_head: bool
    ) -> Look:
        owners = np.repeat([b.passage for b in blocks], [len(b.ids) for b in blocks])
        ids = np.concatenate([b.ids for b in blocks]) if blocks else np.empty(0, np.int64)
        spans = np.concatenate([b.spans for b in blocks]) if blocks else np.empty((0, 2), np.int32)
        summed = weights.sum(0)
        edges = np.searchsorted(owners, np.arange(n + 1)) if n else np.zeros(1, np.int64)
        bounds = list(pairwise(edges.tolist()))
        texts = [np.arange(a, b)[spans[a:b, 0] >= 0] for a, b in bounds]
        mask = self.mask_deviations
        heads = [[masked_sum(row[a:b], mask) for row in weights] for a, b in bounds]
        return Look(
            np.array([masked_sum(summed[a:b], mask) for a, b in bounds], dtype=np.float32),
            tuple(summed[rows] for rows in texts),
            tuple(spans[rows] for rows in texts),
            tuple(ids[rows] for rows in texts),
            np.array(heads, dtype=np.float32).reshape(n, len(weights)),
            tuple(weights[:, rows].T for rows in texts) if per_head else None,
            np.bincount([b.passage for b in blocks], minlength=n).astype(np.int64),
            asked.ids[asked.rows],
        )

    def _parts(self) -> tuple[Any, Prompt, probe.Heads]:
        with self._lock:
            if self._ready is None:
                model = self.reader.model
                heads = probe.choose(model, find_heads(self._wanted, self.reader))
                prompt = Prompt(self.reader)
                self._ready = probe.view(model), prompt, heads
                self._mark = (
                    f"{self.reader.name} {model.dtype} {heads.keys} {prompt.prefix.tolist()}"
                )
            return self._ready


def _logits(
    seen: probe.Seen, head: int, rows: Tensor, here: Tensor, keys: Tensor, there: Tensor
) -> Tensor:
    """Return (r, c) float32: a head's logits, -inf where a key stands later or too far back."""
    found = seen.scores[head].logits(rows @ keys.float().T, rows.shape[1], slice(None))
    back = here[:, None] - there
    window = seen.windows[head]
    hidden = back < 0 if window is None else (back < 0) | (back >= window)
    return found.masked_fill(hidden.to(found.device), -torch.inf)


def masked_sum(scores: Floats, deviations: float | None) -> float:
    """Sum a passage's token scores, those far below their mean left out."""
    if deviations is None or not len(scores):
        return float(scores.sum())
    return float(scores[scores > scores.mean() - deviations * scores.std()].sum())


def groups(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Cut a list of blocks, in order, into groups of at most `limit` tokens, or of one block."""
    found: list[list[int]] = []
    room = 0
    for number, length in enumerate(lengths):
        if not found or length > room:
            found.append([])
            room = limit
        found[-1].append(number)
        room -= length
    return found


_scans: weakref.WeakKeyDictionary[Reader, dict[str, AttentionScan]] = weakref.WeakKeyDictionary()
_scans_lock = threading.Lock()


def shared_scan(resources: Resources, *, store: bool = False, **options: Any) -> AttentionScan:
    """Return the scan of these options that all stages of an engine share.

    store: keep the passages' keys in the index's folder, under `scan/`.
    """
    reader = resources.reader()
    folder = resources.folder / "scan" if store else None
    key = repr((str(folder), sorted(options.items())))
    with _scans_lock:
        scans = _scans.setdefault(reader, {})
        if key not in scans:
            try:
                scans[key] = AttentionScan(reader, folder=folder, **options)
            except TypeError as error:
                raise ConfigError(f"attention scan: {error}") from error
        return scans[key]


def _text(passage: Passage | str) -> tuple[str, str]:
    return ("", passage) if isinstance(passage, str) else (passage.context, passage.text)
