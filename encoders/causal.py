"""A causal language model without its output layer, whose attended values can be contrasted."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from foveate.encoders.packages import fingerprint_state
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.pipeline.types import Floats

_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")


class _Enough(Exception):
    """The model has nothing more to say."""


@dataclass(slots=True, eq=False)
class _Pass:
    """One run of the network.

    last: (n,) int64, the place of each sequence's last token. against: (n, h), values that are
    taken out. probing: stop at the values and keep them. seen: (n, h) values, or (n, t, d) states.
    """

    last: Tensor
    against: Tensor | None = None
    probing: bool = False
    seen: Tensor | None = None


class Network:
    """A model without its output layer, whose last token's values can be contrasted.

    It shares every weight with the model, which stays as it is for its other users. Thread-safe.
    layer, contrast_layer, alpha: as of `Prompted`.

    Raises:
        ConfigError: for layers that the model does not have.
        ModelError: if its attention cannot be found.
    """

    def __init__(
        self, model: Any, layer: int | None, contrast_layer: int | None, alpha: float
    ) -> None:
        shared = [*model.parameters(), *model.buffers()]
        self._net = copy.deepcopy(model, {id(tensor): tensor for tensor in shared}).base_model
        self.device = model.device
        layers = find_layers(self._net)
        self.n_layers = len(layers) if layer is None else layer
        self.contrast_layer = contrast_layer or max(round(len(layers) / 6), 1)
        if not 1 <= self.contrast_layer <= self.n_layers <= len(layers):
            raise ConfigError(
                f"expected 1 <= contrast_layer <= layer <= {len(layers)}, got "
                f"{self.contrast_layer} and {self.n_layers}"
            )
        self._alpha, self._local = alpha, threading.local()
        if alpha:
            output = find_output(layers[self.contrast_layer - 1])
            output.register_forward_pre_hook(self._at_values)
        if layer is not None:
            layers[layer - 1].register_forward_hook(self._at_states)

    @cached_property
    def digest(self) -> str:
        """12 hex digits of the weights, the same in whichever type they are loaded."""
        sampled = {}
        for name, tensor in self._net.state_dict().items():
            flat = tensor.reshape(-1)
            sampled[name] = flat[:: max(1, flat.numel() // 64)][:64].bfloat16()
        return fingerprint_state(sampled)

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        spans: Sequence[tuple[int, int]] | None = None,
        against: Sequence[Sequence[int]] | None = None,
    ) -> Floats:
        """Return (n, d) float32, L2-normalised.

        sequences: token ids. spans: [start, end) whose mean is taken, in the place of the last
        token. against: the auxiliary prompt around each text.
        """
        with torch.inference_mode():
            values = None
            if against is not None and self._alpha:
                values = self._pass(against, probing=True)
            states = self._pass(sequences, against=values)
            ends = [(len(ids) - 1, len(ids)) for ids in sequences]
            chosen = ends if spans is None else spans
            # an empty text has no token of its own: the prompt's last one speaks
            picked = [(a, b) if a < b else end for (a, b), end in zip(chosen, ends, strict=True)]
            rows = [
                state[a:b].float().mean(0) for state, (a, b) in zip(states, picked, strict=True)
            ]
            found: Floats = F.normalize(torch.stack(rows), dim=1).cpu().numpy()
        return found

    def _pass(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        against: Tensor | None = None,
        probing: bool = False,
    ) -> Tensor:
        longest = max(map(len, sequences))
        # padding stands behind, where no token of a causal model sees it
        padded = [[*ids, *[0] * (longest - len(ids))] for ids in sequences]
        last = torch.tensor([len(ids) - 1 for ids in sequences], device=self.device)
        job = _Pass(last, against, probing)
        self._local.job = job
        try:
            ids = torch.tensor(padded, device=self.device)
            job.seen = self._net(input_ids=ids, use_cache=False).last_hidden_state
        except _Enough:
            pass
        finally:
            self._local.job = None
        if job.seen is None:
            raise ModelError("the model never reached the layer that was asked for")
        return job.seen

    def _at_values(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        job: _Pass = self._local.job
        rows = torch.arange(len(job.last), device=job.last.device)
        values = inputs[0][rows, job.last]
        if job.probing:
            job.seen = values
            raise _Enough
        if job.against is None:
            return None
        changed = inputs[0].clone()
        changed[rows, job.last] = contrast(values, job.against, self._alpha)
        return (changed, *inputs[1:])

    def _at_states(self, module: Any, inputs: Any, output: Any) -> None:
        job: _Pass = self._local.job
        job.seen = output[0] if isinstance(output, tuple) else output
        raise _Enough


def contrast(values: Tensor, against: Tensor, alpha: float) -> Tensor:
    """Return (n, h): (v - alpha v') |v| / |v - alpha v'| of each row."""
    own, other = values.float(), against.float()
    moved = own - alpha * other
    scale = own.norm(dim=-1, keepdim=True) / moved.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    steered: Tensor = (moved * scale).to(values.dtype)
    return steered


def find_layers(net: Any) -> Any:
    """Return the list of a network's layers."""
    n_layers = net.config.get_text_config().num_hidden_layers
    for module in net.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == n_layers:
            return module
    raise ModelError(f"no list of {n_layers} layers in {type(net).__name__}")


def find_output(layer: Any) -> Any:
    """Return the matrix behind a layer's attention, which reads the attended values."""
    for name, child in layer.named_children():
        if "attn" in name or "attention" in name:
            for wanted in _OUTPUTS:
                if hasattr(child, wanted):
                    return getattr(child, wanted)
    raise ModelError(f"no output of attention in {type(layer).__name__}: set alpha to 0")
