"""A BERT-type network with gradients, over sequences that lie end to end without padding.

The network of `encoders.bert` with its weights unfolded and under the names of their file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.bert import Shape

QKV = ("attention.self.query", "attention.self.key", "attention.self.value")
LINEAR = (*QKV, "attention.output.dense", "intermediate.dense", "output.dense")


@dataclass(frozen=True, slots=True)
class Network:
    """Weights and what is added to them.

    weights: tensors by their names without a leading 'bert.'. extra: `NAME.down` (r, inputs) and
    `NAME.up` (outputs, r) of a linear layer's weight NAME (LoRA); `prefix.N.key` and
    `prefix.N.value` (p, d), learned positions that every token of layer N attends to.
    dropout: of the embeddings and of each sublayer's output. bf16: compute products in it.
    """

    weights: Mapping[str, Tensor]
    extra: Mapping[str, Tensor]
    shape: Shape
    dropout: float = 0.0
    bf16: bool = False

    def hidden(self, sequences: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """Return each sequence's (t, d) float32 states of the last layer.

        sequences: token ids with their special tokens, sorted by length.
        """
        lengths = [len(sequence) for sequence in sequences]
        table = "embeddings."
        words = self.weights[table + "word_embeddings.weight"]
        flat = torch.tensor([i for s in sequences for i in s], device=words.device)
        places = torch.cat([torch.arange(n) for n in lengths]).to(words.device)
        with torch.autocast(words.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            x = F.embedding(flat, words)
            x = x + F.embedding(places, self.weights[table + "position_embeddings.weight"])
            x = x + self.weights[table + "token_type_embeddings.weight"][0]
            x = self._drop(self._norm(x, table + "LayerNorm"))
            for number in range(self.shape.n_layers):
                x = self._layer(x, number, lengths)
        return torch.split(x.float(), lengths)

    def _layer(self, x: Tensor, number: int, lengths: list[int]) -> Tensor:
        name = f"encoder.layer.{number}."
        out = self._linear(self._attend(x, number, lengths), name + "attention.output.dense")
        x = self._norm(x + self._drop(out), name + "attention.output.LayerNorm")
        approximate = "none" if self.shape.activation == "gelu" else "tanh"
        wide = F.gelu(self._linear(x, name + "intermediate.dense"), approximate=approximate)
        out = self._linear(wide, name + "output.dense")
        return self._norm(x + self._drop(out), name + "output.LayerNorm")

    def _attend(self, x: Tensor, number: int, lengths: list[int]) -> Tensor:
        """Return (t, d): attention within each sequence, over the learned prefix too."""
        heads = self.shape.n_heads
        q, k, v = (self._linear(x, f"encoder.layer.{number}.{kind}") for kind in QKV)
        parts: list[Tensor] = []
        for start, n, length in groups_of(lengths):
            rows = slice(start, start + n * length)
            split = [_heads(part[rows], n, heads) for part in (q, k, v)]
            if f"prefix.{number}.key" in self.extra:
                for slot, kind in ((1, "key"), (2, "value")):
                    learned = _heads(self.extra[f"prefix.{number}.{kind}"], 1, heads)
                    own = learned.expand(n, -1, -1, -1).to(split[slot].dtype)
                    split[slot] = torch.cat([own, split[slot]], dim=2)
            y = F.scaled_dot_product_attention(split[0], split[1], split[2])
            parts.append(y.transpose(1, 2).reshape(n * length, -1))
        return torch.cat(parts)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])
        down = self.extra.get(name + ".weight.down")
        if down is None:
            return y
        return y + F.linear(F.linear(x, down), self.extra[name + ".weight.up"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return F.layer_norm(x.float(), (self.shape.dim,), weight, bias, self.shape.epsilon)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, training=self.dropout > 0)

    def merged(self) -> dict[str, Tensor]:
        """Return the weights with every LoRA product added to its own."""
        found = {}
        for name, tensor in self.weights.items():
            down = self.extra.get(name + ".down")
            found[name] = tensor if down is None else tensor + self.extra[name + ".up"] @ down
        return found


def groups_of(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first token, n sequences, length) of each run of equal lengths."""
    start = row = 0
    while row < len(lengths):
        n = 1
        while row + n < len(lengths) and lengths[row + n] == lengths[row]:
            n += 1
        yield start, n, lengths[row]
        start += n * lengths[row]
        row += n


def _heads(x: Tensor, n: int, heads: int) -> Tensor:
    """Turn (n * length, d) into (n, heads, length, d / heads)."""
    return x.view(n, len(x) // n, heads, x.shape[1] // heads).transpose(1, 2)
