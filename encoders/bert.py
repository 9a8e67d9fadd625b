"""The forward pass of a BERT-type encoder over packed sequences, without padding.

All tokens of a batch lie in one (t, d) matrix for every linear layer; attention runs by groups of
sequences of one length. Identities used to save passes over memory, exact but for rounding:

- softmax(q (k + c)^T) = softmax(q k^T), so the key bias is dropped;
- the scale of q k^T is kept inside q's weights;
- rows of a softmax sum to 1, so the value bias b_v moves behind the output layer as b_v W_o;
- each residual addition's bias is kept inside the preceding LayerNorm's bias, and taken back in
  the bias of the layer that reads it, so `x += f W` is one matrix product.

Devlin et al. 2019, arXiv:1810.04805; Wang et al. 2020, arXiv:2002.10957 (MiniLM).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from foveate.pipeline.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from foveate.encoders.calibration import Calibration
    from foveate.encoders.products import Product
    from foveate.pipeline.types import Floats


_BLOCK_SCORES = 1_500_000  # of attention at a time: what a core's cache holds, measured


@dataclass(frozen=True, slots=True)
class Shape:
    """What config.json says of a BERT-type model."""

    dim: int
    n_heads: int
    n_layers: int
    n_positions: int
    epsilon: float
    activation: str

    @classmethod
    def read(cls, path: Path) -> Shape:
        """Read a config.json.

        Raises:
            ModelError: if it is not a BERT encoder with absolute positions and GELU.
        """
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if config.get("model_type", "bert") != "bert":
                raise ModelError(
                    f"expected model_type 'bert' in {str(path)!r}, got {config['model_type']!r}: "
                    "use the encoder 'sentence-transformers'"
                )
            shape = cls(
                dim=config["hidden_size"],
                n_heads=config["num_attention_heads"],
                n_layers=config["num_hidden_layers"],
                n_positions=config["max_position_embeddings"],
                epsilon=config.get("layer_norm_eps", 1e-12),
                activation=config.get("hidden_act", "gelu"),
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"cannot read the model's {str(path)!r}: {error!r}") from error
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise ModelError(f"expected absolute positions in {str(path)!r}")
        if shape.activation not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
            raise ModelError(f"expected hidden_act 'gelu', got {shape.activation!r}")
        return shape


@dataclass(slots=True, eq=False)
class Layer:
    """What one layer computes with, biases folded as the module says."""

    qkv: Product
    out: Product
    norm: tuple[Tensor, Tensor]
    up: Product
    down: Product
    last_norm: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Additions:
    """What may stand around the network's own weights.

    calibration: of the last layers' attention. head: a file with `linear.weight` (d', d), a map
    of the normalised vector. prompts: a file with `prefix.N.key` and `prefix.N.value` (p, d),
    learned positions that every token of layer N attends to.
    """

    calibration: Calibration | None = None
    head: Path | None = None
    prompts: Path | None = None


class Bert:
    """Weights and forward pass. Thread-safe: nothing is written after the constructor."""

    def __init__(
        self,
        weights: Path,
        shape: Shape,
        *,
        device: torch.device,
        dtype: torch.dtype,
        additions: Additions | None = None,
    ) -> None:
        import torch

        self.shape, self.device, self.dtype = shape, device, dtype
        self._approximate = "none" if shape.activation == "gelu" else "tanh"
        added = additions or Additions()
        self._calibration = added.calibration
        self._head: Tensor | None = None
        self._prefixes: list[tuple[Tensor, Tensor]] = []
        tensors = _read(weights)
        try:
            with torch.inference_mode():
                self._fold(tensors)
                if added.head is not None:
                    self._head = _read(added.head)["linear.weight"].to(device, torch.float32)
                if added.prompts is not None:
                    self._prefixes = self._fold_prompts(tensors, _read(added.prompts))
        except KeyError as error:
            raise ModelError(f"no tensor {error} in {str(weights)!r}") from error

    def _fold(self, tensors: dict[str, Tensor]) -> None:
        import torch

        from foveate.encoders.products import product

        def place(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
            return tensor.to(self.device, dtype).contiguous()

        def times(name: str) -> Product:
            bias = folded.get(name + "_bias")
            return product(
                place(folded[name], self.dtype), None if bias is None else place(bias, self.dtype)
            )

        table = "embeddings."
        self._words = place(tensors[table + "word_embeddings.weight"])
        kind = tensors[table + "token_type_embeddings.weight"][0]
        self._positions = place(tensors[table + "position_embeddings.weight"] + kind)
        norms = [_pair(tensors, table + "LayerNorm")]
        products = []
        for number in range(self.shape.n_layers):
            scale = (self.shape.dim // self.shape.n_heads) ** -0.5
            folded, first, last = _fold_layer(tensors, f"encoder.layer.{number}.", scale)
            # the bias that this layer's first residual addition needs rides on the norm before it
            norms[-1] = (norms[-1][0], norms[-1][1] + folded["ride"])
            norms += [(first[0], first[1] + folded["own_ride"]), last]
            products.append([times(name) for name in ("qkv", "out", "up", "down")])
        self._norm = (place(norms[0][0]), place(norms[0][1]))
        placed = [(place(norm, self.dtype), place(bias, self.dtype)) for norm, bias in norms[1:]]
        self._layers = [
            Layer(qkv, out, placed[2 * i], up, down, placed[2 * i + 1])
            for i, (qkv, out, up, down) in enumerate(products)
        ]

    def _fold_prompts(
        self, tensors: dict[str, Tensor], learned: dict[str, Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's (h, p, d / h) keys and values, less the biases folded elsewhere."""
        found = []
        for number in range(self.shape.n_layers):
            pair = []
            for kind in ("key", "value"):
                name = f"encoder.layer.{number}.attention.self.{kind}.bias"
                rows = learned[f"prefix.{number}.{kind}"].float() - tensors[name].float()
                split = rows.view(len(rows), self.shape.n_heads, -1).transpose(0, 1)
                pair.append(split.to(self.device, self.dtype).contiguous())
            found.append((pair[0], pair[1]))
        return found

    def pooled(self, sequences: Sequence[Sequence[int]], pooling: str) -> Floats:
        """Return (n, d) float32, L2-normalised: one vector for each sequence.

        sequences: as in `hidden`, in any order. pooling: one of `pooling.PLAIN`.
        """
        import torch
        from torch.nn import functional as F

        from foveate.encoders.pooling import pool

        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        ordered = [sequences[i] for i in order]
        x = self.hidden(ordered, pooling)
        with torch.inference_mode():
            rows: list[Tensor] = []
            start = 0
            for n, length in _group([len(sequence) for sequence in ordered]):
                states = x[start : start + n * length].view(n, length, -1)
                rows.append(pool(states, pooling))
                start += n * length
            found = F.normalize(torch.cat(rows), dim=1)
            if self._head is not None:
                found = F.normalize(found @ self._head.T, dim=1)
            vectors = found.cpu()
            out = torch.empty_like(vectors)
            out[order] = vectors
            return cast("Floats", out.numpy())

    def hidden(self, sequences: Sequence[Sequence[int]], pooling: str = "mean") -> Tensor:
        """Return (t, d) float32: the last layer's state of every token, sequences end to end.

        sequences: token ids with their special tokens, sorted by length (equal lengths adjacent),
        each of 1..n_positions tokens. pooling: what calibration levels the attention for.
        """
        import torch
        from torch.nn import functional as F

        groups = _group([len(sequence) for sequence in sequences])
        flat = [number for sequence in sequences for number in sequence]
        places = [place for sequence in sequences for place in range(len(sequence))]
        with torch.inference_mode():
            x = F.embedding(torch.tensor(flat, device=self.device), self._words)
            x += F.embedding(torch.tensor(places, device=self.device), self._positions)
            x = F.layer_norm(x, (self.shape.dim,), *self._norm, self.shape.epsilon)
            x = x.to(self.dtype)
            for number in range(len(self._layers)):
                x = self._run(number, x, groups, pooling)
            return x.float()

    def _run(self, number: int, x: Tensor, groups: list[tuple[int, int]], pooling: str) -> Tensor:
        from torch.nn import functional as F

        layer, dim, epsilon = self._layers[number], (self.shape.dim,), self.shape.epsilon
        attended = self._attend(layer.qkv(x), groups, number, pooling)
        x = F.layer_norm(layer.out.onto(x, attended), dim, *layer.norm, epsilon)
        wide = layer.up.gelu(x, self._approximate)
        return F.layer_norm(layer.down.onto(x, wide), dim, *layer.last_norm, epsilon)

    def _attend(
        self, qkv: Tensor, groups: list[tuple[int, int]], number: int, pooling: str
    ) -> Tensor:
        """Return (t, d): attention within each sequence. qkv: (t, 3 d); groups: (n, length)."""
        import torch

        heads, dim = self.shape.n_heads, self.shape.dim
        chosen = self._calibration
        if chosen is not None and number < chosen.first_layer(self.shape.n_layers):
            chosen = None
        out = torch.empty((len(qkv), dim), dtype=qkv.dtype, device=qkv.device)
        start = 0
        for n, length in groups:
            rows = qkv[start : start + n * length].view(n, length, 3, heads, dim // heads)
            q, k, v = rows.permute(2, 0, 3, 1, 4)  # (n, heads, length, d / heads) each
            if self._prefixes:
                key, value = self._prefixes[number]
                k = torch.cat([key.expand(n, -1, -1, -1), k], dim=2)
                v = torch.cat([value.expand(n, -1, -1, -1), v], dim=2)
            y = _attention(q, k, v)
            if chosen is not None:
                y = _level(y, q, k, v, chosen, pooling)
            end = start + n * length
            out[start:end].view(n, length, heads, -1).copy_(y.transpose(1, 2))
            start = end
        return out


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T) v, (n, heads, t, d / heads); q is scaled.

    On the processor bfloat16 goes by plain products over a few sequences at a time, whose scores
    stay in the cache: 1.4 to 1.5 times as fast as torch's fused attention with heads of 32.
    """
    import torch
    from torch.nn import functional as F

    if q.dtype != torch.bfloat16 or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)
    shape = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (n heads, t, d / heads)
    out = torch.empty_like(q)
    step = max(1, _BLOCK_SCORES // (q.shape[1] * v.shape[1]))
    for start in range(0, len(q), step):
        rows = slice(start, start + step)
        scores = torch.bmm(q[rows], k[rows].transpose(1, 2))
        torch.bmm(scores.softmax(-1), v[rows], out=out[rows])
    return out.view(shape)


def _level(
    y: Tensor, q: Tensor, k: Tensor, v: Tensor, calibration: Calibration, pooling: str
) -> Tensor:
    """Put levelled attention in the place of the rows that are pooled; (n, heads, t, d)."""
    from foveate.encoders.calibration import calibrate

    places = {"mean": slice(None), "cls": slice(0, 1), "last": slice(-1, None)}[pooling]
    logits = q[:, :, places] @ k.transpose(2, 3)
    # learned positions keep their share, and so does the first token where it is pooled
    n_first = k.shape[2] - q.shape[2] + int(pooling == "cls")
    share = calibrate(
        logits.float().softmax(-1), calibration, n_first=n_first, last=pooling == "last"
    )
    y = y.clone()
    y[:, :, places] = share.to(v.dtype) @ v
    return y


def _group(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return runs of equal lengths as (how many, length)."""
    groups: list[tuple[int, int]] = []
    for length in lengths:
        if groups and groups[-1][1] == length:
            groups[-1] = (groups[-1][0] + 1, length)
        else:
            groups.append((1, length))
    return groups


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by their names without a leading 'bert.'."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            return {name.removeprefix("bert."): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {str(path)!r}: {error}") from error


def _pair(tensors: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return tensors[name + ".weight"].float(), tensors[name + ".bias"].float()


def _fold_layer(
    tensors: dict[str, Tensor], name: str, scale: float
) -> tuple[dict[str, Any], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return a layer's folded weights and its two norms. scale: of q k^T.

    `ride` and `own_ride` are what the norm before the layer and its own first norm must carry.
    """
    import torch

    attention = name + "attention."
    query, query_bias = _pair(tensors, attention + "self.query")
    key, _ = _pair(tensors, attention + "self.key")
    value, value_bias = _pair(tensors, attention + "self.value")
    out, out_bias = _pair(tensors, attention + "output.dense")
    up, up_bias = _pair(tensors, name + "intermediate.dense")
    down, down_bias = _pair(tensors, name + "output.dense")
    query, query_bias = query * scale, query_bias * scale
    qkv = torch.cat([query, key, value])
    ride = out_bias + out @ value_bias
    qkv_bias = torch.cat([query_bias, torch.zeros_like(query_bias), torch.zeros_like(value_bias)])
    folded = {
        "qkv": qkv.t(),
        "qkv_bias": qkv_bias - qkv @ ride,
        "out": out.t(),
        "up": up.t(),
        "up_bias": up_bias - up @ down_bias,
        "down": down.t(),
        "ride": ride,
        "own_ride": down_bias,
    }
    first = _pair(tensors, attention + "output.LayerNorm")
    return folded, first, _pair(tensors, name + "output.LayerNorm")
