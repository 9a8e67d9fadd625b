"""A CLIP-class model with gradients: what `foveate train` fits on pictures and their captions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from foveate.encoders.devices import choose_device, choose_dtype
from foveate.encoders.train import cards
from foveate.encoders.train.data import open_picture
from foveate.encoders.wordpieces import clean_surrogates
from foveate.pipeline.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.clip import OpenCLIP
    from foveate.encoders.train.trainable import Role

FITS = ("full", "layers", "lora", "head")
SIDES = ("both", "query", "passage")
_FIRST = re.compile(
    r"token_embedding|positional_embedding|class_embedding|^visual\.conv1|patch_embed|pos_embed"
    r"|cls_token|\.embeddings\."
)
_HEAD = re.compile(
    r"visual\.(proj$|head\.|attnpool\.c_proj\.)|(text\.)?text_projection|text\.proj\."
)
_OTHER = ("logit_", "text_decoder.")


class ClipTower:
    """An open_clip model, opened for training: captions ask, pictures are stored.

    encoder: is trained in place; its prompts, device and dtype hold. fit: 'full' every tensor;
    'layers' all but the embeddings of tokens, places and patches; 'lora' a product of two thin
    matrices beside every linear layer (arXiv:2106.09685), merged when saved; 'head' the last
    projections alone. sides: 'both' towers, 'query' the text tower alone (pictures are then
    encoded once; LiT, arXiv:2111.07991), 'passage' the picture tower alone. rank: of 'lora'.
    augment: cut training pictures at random, to 0.9 to 1 of their area. Captions are cut at the
    window. Batch norm keeps its statistics, and the model's own temperature stays as it is.
    """

    use = "open-clip"

    def __init__(
        self,
        encoder: OpenCLIP,
        *,
        fit: str = "layers",
        sides: str = "both",
        rank: int = 16,
        augment: bool = True,
        seed: int = 0,
    ) -> None:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        for name, value, known in (("fit", fit, FITS), ("sides", sides, SIDES)):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r} (known: {', '.join(known)})")
        self._encoder, self._fit, self._sides, self._augment = encoder, fit, sides, augment
        self._model, self._transform, self._tokenizer = encoder._loaded
        settings = PreprocessCfg(**self._model.visual.preprocess_cfg)
        self._cut = image_transform_v2(settings, is_train=True)
        self._training = False
        self._start = f"{encoder.tower} fit={fit} sides={sides} rank={rank} augment={augment}"
        self._device = choose_device(encoder._device)
        self._bf16 = choose_dtype(encoder._dtype, self._device) == torch.bfloat16
        self._model.requires_grad_(False)
        self._fitted = self._choose(rank, torch.Generator().manual_seed(seed))
        if not self._fitted:
            raise ConfigError(f"fit {fit!r} finds nothing to fit in {encoder._name!r}: take 'lora'")
        self._named = _Named(self._model)
        with torch.no_grad():
            self._dim = int(self._run([""], "query").shape[1])

    @property
    def space(self) -> str:
        return f"{self._encoder._name}/{self.dim}"

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def temperature(self) -> float:
        """What the model itself divides cosines by."""
        return float(self._model.logit_scale.detach().exp().reciprocal())

    @property
    def bias(self) -> float | None:
        """What a model of SigLIP's kind adds to them."""
        found = getattr(self._model, "logit_bias", None)
        return None if found is None else float(found.detach())

    @property
    def frozen_roles(self) -> frozenset[Role]:
        """Roles whose vectors training cannot change."""
        frozen: dict[str, frozenset[Role]] = {
            "query": frozenset({"passage"}),
            "passage": frozenset({"query"}),
        }
        return frozen.get(self._sides, frozenset())

    def _choose(self, rank: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the tensors that are fitted, by name, each a leaf that requires a gradient."""
        ours = {
            name: tensor
            for name, tensor in self._model.named_parameters()
            if not name.startswith(_OTHER) and self._sides in ("both", side_of(name))
        }
        if self._fit == "lora":
            found: dict[str, Tensor] = {}
            for name in matrices(self._model):
                if name in ours:
                    n_out, n_in = ours[name].shape
                    noise = 0.02 * torch.randn(rank, n_in, generator=generator)
                    found[f"{name}.down"] = noise.to(self._device)
                    found[f"{name}.up"] = torch.zeros(n_out, rank, device=self._device)
        elif self._fit == "head":
            found = {name: tensor for name, tensor in ours.items() if _HEAD.match(name)}
        else:
            every = self._fit == "full"
            found = {name: t for name, t in ours.items() if every or not _FIRST.search(name)}
        return {name: tensor.requires_grad_() for name, tensor in found.items()}

    def parameters(self) -> Mapping[str, Tensor]:
        return self._fitted

    def train(self, mode: bool = True) -> None:
        self._training = mode

    def fingerprint(self) -> str:
        return self._start

    def embed(self, inputs: Sequence[Any], role: Role) -> Tensor:
        """Return (n, d) float32, L2-normalised, in the inputs' order, with gradients.

        inputs: all texts, or all pictures (PIL, or paths as `Path`).
        """
        if not len(inputs):
            return torch.zeros(0, self.dim, device=self._device)
        return F.normalize(self._run(inputs, role).float(), dim=1)

    def _run(self, inputs: Sequence[Any], role: Role) -> Tensor:
        n_texts = sum(isinstance(item, str) for item in inputs)
        if n_texts not in (0, len(inputs)):
            raise ShapeError("expected either texts or pictures, got both at once")
        if n_texts:
            prompt = self._encoder._prompts[role == "passage"]
            kind, batch = (
                "encode_text",
                self._tokenizer([clean_surrogates(prompt + text) for text in inputs]),
            )
        else:
            moving = self._training and self._augment and role not in self.frozen_roles
            see = self._cut if moving else self._transform
            shown = (open_picture(item) if isinstance(item, Path) else item for item in inputs)
            kind, batch = "encode_image", torch.stack([see(picture) for picture in shown])
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16):
            vectors: Tensor = torch.func.functional_call(
                self._named, self._merged("model."), (kind, batch.to(self._device))
            )
        return vectors

    def _merged(self, prefix: str = "") -> dict[str, Tensor]:
        """Return the matrices that LoRA changes, by their names behind a prefix."""
        if self._fit != "lora":
            return {}
        found = {}
        for name in matrices(self._model):
            if f"{name}.up" in self._fitted:
                change = self._fitted[f"{name}.up"] @ self._fitted[f"{name}.down"]
                found[prefix + name] = self._model.get_parameter(name) + change
        return found

    def save(self, folder: Path, card: Mapping[str, Any]) -> None:
        """Write a folder that `OpenCLIP` loads as its model, what was fitted merged in."""
        with torch.no_grad():
            state = {**self._model.state_dict(), **self._merged()}
        self._encoder.write(folder, state)
        cards.write_card(folder, card)


class _Named(torch.nn.Module):
    """Runs one of a model's methods as a module's forward, so that weights can be exchanged."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, kind: str, batch: Tensor) -> Any:
        return getattr(self.model, kind)(batch)


def side_of(name: str) -> str:
    """Return whose tensor this is: 'passage' of the picture tower, 'query' of the text tower."""
    return "passage" if name.startswith("visual.") else "query"


def matrices(model: torch.nn.Module) -> list[str]:
    """Return the names of the weights of linear layers and of attention's own inputs."""
    linear = [
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    own = [name for name, _ in model.named_parameters() if name.endswith("in_proj_weight")]
    return linear + own
