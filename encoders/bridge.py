"""Queries weighted by the words they contain: LexSemBridge, in its query-only form.

q' = normalise(softmax(M w) * q), w (vocabulary,) the query's words, M (d, vocabulary) learned.
Passages stay plain, so that an index stays valid. w by kind (arXiv:2508.17858):

- slr, statistical: 1 for each word that stands in the query;
- llr, learned: the largest max(u . h_t + b, 0) over a word's positions t, h_t its states, divided
  by d so that one learning rate suits u and M. u starts at 0 and b at 1: training begins at slr;
- clr, contextual: log(1 + max(logits, 0)) of the pooled state (the first token's where the model
  pools that), from the model's masked-language head, and where it has none from its table of word
  embeddings alone, which such heads are tied to. The whole vocabulary speaks; w is scaled so that
  all words together weigh as much as those of a query of 16.

Special tokens, padding and the unknown word never count; a repeated word counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.nn import functional as F

from foveate.encoders.pooling import pool
from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.bert import Bert, Shape
    from foveate.pipeline.types import Floats

    Logits = Callable[[Tensor], Tensor]

KINDS = ("slr", "llr", "clr")
NAME = "bridge.safetensors"
KEY, DIRECTION, BIAS = "bridge.weight", "bridge.direction", "bridge.bias"
HEAD = "cls.predictions."
_WORDS = 16
_SPECIAL = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK|unused\d+)\]|</?s>|<(pad|unk|mask)>")


def start(kind: str, n_words: int, dim: int) -> dict[str, Tensor]:
    """Return what a kind learns, by name, as it is before training: no query changes."""
    found = {KEY: torch.zeros(n_words, dim)}
    if kind == "llr":
        found |= {DIRECTION: torch.zeros(dim), BIAS: torch.ones(1)}
    return found


def countable(vocabulary: Sequence[str], n_words: int) -> Tensor:
    """Return (n_words,) bool: which ids are words, neither special nor beyond the vocabulary."""
    known = [bool(word) and not _SPECIAL.fullmatch(word) for word in vocabulary[:n_words]]
    return torch.tensor(known + [False] * (n_words - len(known)))


@dataclass(frozen=True, slots=True, eq=False)
class Bridge:
    """A trained bridge.

    kind: one of KINDS. learned: tensors by name as `start` gives them; M is kept transposed.
    counted: (vocabulary,) bool, the ids that count. logits: of 'clr', (q, d) -> (q, vocabulary).
    """

    kind: str
    learned: Mapping[str, Tensor]
    counted: Tensor
    logits: Logits | None = None

    def modulate(
        self,
        vectors: Tensor,
        words: Sequence[Sequence[int]],
        states: Sequence[Tensor] = (),
        pooled: Tensor | None = None,
    ) -> Tensor:
        """Return (q, d), L2-normalised.

        vectors: (q, d) of the queries. words: ids of each query's tokens, without special ones.
        states: of 'llr', (t, d) for each query, one row a token. pooled: of 'clr', (q, d), not
        normalised.
        """
        table = self.learned[KEY]
        if self.kind == "clr":
            weights = self.expand(pooled if pooled is not None else vectors)
            return fuse(vectors, weights.to(table.dtype) @ table)
        rows = []
        for number, ids in enumerate(words):
            kept, weights = self.weigh(ids, states[number] if self.kind == "llr" else None)
            rows.append(weights.to(table.dtype) @ table[kept])
        return fuse(vectors, torch.stack(rows))

    def encode(self, bert: Bert, sequences: Sequence[Sequence[int]], pooling: str) -> Floats:
        """Return (q, d) float32, L2-normalised: queries as `Bert.pooled` has them, then modulated.

        sequences: token ids, a special one at either end, in any order.
        """
        order = sorted(range(len(sequences)), key=lambda row: len(sequences[row]))
        ordered = [sequences[row] for row in order]
        with torch.inference_mode():
            states = torch.split(bert.hidden(ordered, pooling), [len(ids) for ids in ordered])
            pooled = torch.cat([pool(state[None], pooling) for state in states])
            words = [ids[1:-1] for ids in ordered]
            inner = [state[1:-1] for state in states]
            found = self.modulate(F.normalize(pooled, dim=1), words, inner, pooled).cpu()
            vectors = torch.empty_like(found)
            vectors[order] = found
            return cast("Floats", vectors.numpy())

    def weigh(self, ids: Sequence[int], states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return a query's words (n,) int64, each once, and their weights (n,)."""
        table = self.learned[KEY]
        numbers = torch.tensor(ids, dtype=torch.long, device=table.device)
        counts = self.counted[numbers]
        kept, owners = torch.unique(numbers[counts], return_inverse=True)
        if states is None:
            return kept, torch.ones(len(kept), dtype=table.dtype, device=table.device)
        lifted = states[counts] @ self.learned[DIRECTION] / states.shape[1]
        each = (lifted + self.learned[BIAS]).relu()
        return kept, each.new_zeros(len(kept)).scatter_reduce(0, owners, each, "amax")

    def expand(self, pooled: Tensor) -> Tensor:
        """Return (q, vocabulary): each word's weight, 0 for what does not count."""
        if self.logits is None:
            raise ModelError("a bridge of kind 'clr' needs its model's table of words")
        weights = self.logits(pooled).relu().log1p() * self.counted
        return weights * (_WORDS / len(self.counted))


def fuse(vectors: Tensor, sums: Tensor) -> Tensor:
    """Return softmax(sums) * vectors, L2-normalised. vectors, sums: (q, d)."""
    return F.normalize(sums.softmax(1) * vectors, dim=1)


def masked_logits(words: Tensor, head: Mapping[str, Tensor], shape: Shape) -> Logits:
    """Return how a BERT's masked-language head reads states (q, d) as words (q, vocabulary).

    words: (vocabulary, d), the table that the head is tied to. head: the model's tensors whose
    names begin with HEAD; without them the table stands alone.
    """
    return partial(_logits, words, head, shape)


def _logits(words: Tensor, head: Mapping[str, Tensor], shape: Shape, states: Tensor) -> Tensor:
    dense, norm = f"{HEAD}transform.dense.", f"{HEAD}transform.LayerNorm."
    if f"{dense}weight" in head:
        approximate = "none" if shape.activation == "gelu" else "tanh"
        states = F.linear(states, head[f"{dense}weight"], head[f"{dense}bias"])
        states = F.gelu(states, approximate=approximate)
        scale, bias = head[f"{norm}weight"], head[f"{norm}bias"]
        states = F.layer_norm(states, (shape.dim,), scale, bias, shape.epsilon)
    return F.linear(states, words, head.get(f"{HEAD}bias"))


def load(path: Path, weights: Path, bert: Bert, vocabulary: Sequence[str]) -> Bridge:
    """Return the bridge of a file that `write` made, for the model that `weights` is the file of.

    Raises:
        ModelError: if it cannot be read or its kind is not known.
    """
    kind, learned = read(path)
    counted = countable(vocabulary, len(learned[KEY]))
    head: dict[str, Tensor] = {}
    if kind == "clr":
        with safe_open(str(weights), framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(HEAD)]  # noqa: SIM118
            head = {name: file.get_tensor(name).to(bert.device, torch.float32) for name in names}
    learned = {name: tensor.to(bert.device) for name, tensor in learned.items()}
    logits = masked_logits(bert._words, head, bert.shape)
    return Bridge(kind, learned, counted.to(bert.device), logits)


def write(path: Path, kind: str, learned: Mapping[str, Tensor]) -> None:
    """Write what was learned, and of which kind it is, as safetensors."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in learned.items()}
    save_file(plain, str(path), metadata={"kind": kind})


def read(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the kind and tensors of a file that `write` made; one without a kind is 'slr'.

    Raises:
        ModelError: if it cannot be read or its kind is not known.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            kind = (file.metadata() or {}).get("kind", "slr")
            learned = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the bridge {str(path)!r}: {error}") from error
    if kind not in KINDS or KEY not in learned:
        raise ModelError(f"{str(path)!r} is no bridge of a kind that is known: {kind!r}")
    return kind, learned
