"""A BERT-type text tower with gradients: what `foveate train` fits and `minilm` then loads."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from foveate.encoders import bridge as bridges
from foveate.encoders.bert import Shape
from foveate.encoders.devices import choose_device, choose_dtype
from foveate.encoders.minilm import HEAD, NAME, PACKAGE, TRAINED, read_pooling
from foveate.encoders.packages import find_file, find_package, fingerprint
from foveate.encoders.pooling import pool
from foveate.encoders.train import cards
from foveate.encoders.train.network import LINEAR, Network
from foveate.encoders.windows import as_texts
from foveate.encoders.wordpieces import WordPieces
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.train.trainable import Role
    from foveate.pipeline.types import Floats

FITS = ("full", "layers", "lora", "head", "prompts", "bridge")
SIDES = ("both", "query")
WEIGHTS, PROMPTS = "model.safetensors", "prompts.safetensors"
WORDS = "embeddings.word_embeddings.weight"
_FROZEN_TEXTS = 16
_COPIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "config_sentence_transformers.json",
)


class TextTower:
    """A folder's BERT, opened for training.

    path: a model folder; None is all-MiniLM-L6-v2 from its package. fit: 'full' every tensor;
    'layers' all but the embedding tables; 'lora' a product of two thin matrices beside every
    linear layer (Hu et al. 2021, arXiv:2106.09685), merged when saved; 'head' what is added to
    the identity in one linear map behind the frozen tower, whose vectors are computed once;
    'prompts' a learned prefix of keys and values in every layer, the tower frozen (PromCSE,
    arXiv:2203.06875); 'bridge' a table by which a query's words weight its directions
    (`encoders.bridge`), the tower frozen. sides: 'query' leaves passages as they are, so that an
    index built with the untrained tower stays valid. rank: of 'lora'. n_prompts: positions of
    'prompts'. bridge: the kind of a 'bridge', 'slr', 'llr' or 'clr'. dropout: while training, of
    embeddings and of each sublayer's output; of the tower's vector before a 'head'.
    window_tokens: texts are cut there.
    """

    use = "minilm"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        fit: str = "layers",
        sides: str = "both",
        rank: int = 16,
        n_prompts: int = 10,
        bridge: str = "slr",
        dropout: float = 0.1,
        window_tokens: int | None = None,
        query_prompt: str = "",
        passage_prompt: str = "",
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
    ) -> None:
        asked = (("fit", fit, FITS), ("sides", sides, SIDES), ("bridge", bridge, bridges.KINDS))
        for name, value, known in asked:
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r} (known: {', '.join(known)})")
        folder = Path(path).expanduser() if path is not None else None
        if folder is not None and (folder / "query").is_dir():
            raise ModelError(f"{str(folder)!r} holds two towers: name its folder query/ to go on")
        self._name = folder.resolve().name if folder is not None else NAME
        self._folder = folder or find_package(PACKAGE, "minilm") / "model"
        self._shape = Shape.read(find_file(self._folder, "config.json"))
        self._pooling = read_pooling(self._folder)
        self._pieces = WordPieces.read(find_file(self._folder, "tokenizer.json"))
        self._device = choose_device(device)
        bf16 = choose_dtype(dtype, self._device) == torch.bfloat16
        self._window = min(window_tokens or self._stored_window(), self._shape.n_positions)
        self._prompts = {"query": query_prompt, "passage": passage_prompt}
        self._fit, self._sides, self._rank, self._n_prompts = fit, sides, rank, n_prompts
        self._kind, self._dropout, self._training = bridge, dropout, False
        self._prefix = ""
        self._known: dict[str, Tensor] = {}
        weights = self._read()
        self._plain = Network(dict(weights), {}, self._shape, bf16=bf16)
        self._fitted = self._choose(weights, torch.Generator().manual_seed(seed))
        extra = {n: t for n, t in self._fitted.items() if n not in weights}
        changed = {n: self._fitted.get(n, t) for n, t in weights.items()}
        self._net = Network(changed, extra, self._shape, bf16=bf16)
        self._bridge = self._build_bridge() if fit == "bridge" else None

    @property
    def space(self) -> str:
        return f"{self._name}/{self.dim}"

    @property
    def dim(self) -> int:
        return self._shape.dim

    @property
    def frozen_roles(self) -> frozenset[Role]:
        """Roles whose vectors training cannot change."""
        only_queries = self._sides == "query" or self._fit == "bridge"
        return frozenset({"passage"}) if only_queries else frozenset()

    def _stored_window(self) -> int:
        place = self._folder / "sentence_bert_config.json"
        settings = json.loads(place.read_text("utf-8")) if place.is_file() else {}
        return int(settings.get("max_seq_length") or self._shape.n_positions)

    def _read(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        tensors = load_file(str(find_file(self._folder, WEIGHTS)))
        self._prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
        found = {
            name.removeprefix("bert."): t.to(self._device, torch.float32)
            for name, t in tensors.items()
            if t.is_floating_point()
        }
        if WORDS not in found:
            raise ModelError(f"no word embeddings in {str(self._folder / WEIGHTS)!r}")
        return found

    def _choose(
        self, weights: Mapping[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the tensors that are fitted, by name, each a leaf that requires a gradient."""

        def noise(*shape: int) -> Tensor:
            return 0.02 * torch.randn(*shape, generator=generator)

        found: dict[str, Tensor] = {}
        layers = range(self._shape.n_layers)
        if self._fit == "head":
            # from zero, so that weight decay draws towards what the tower was
            found["head.change"] = torch.zeros(self.dim, self.dim)
        elif self._fit == "bridge":
            found = bridges.start(self._kind, len(weights[WORDS]), self.dim)
        elif self._fit == "prompts":
            for name in (f"prefix.{i}.{kind}" for i in layers for kind in ("key", "value")):
                found[name] = noise(self._n_prompts, self.dim)
        elif self._fit == "lora":
            for name in (f"encoder.layer.{i}.{kind}.weight" for i in layers for kind in LINEAR):
                n_out, n_in = weights[name].shape
                found[f"{name}.down"] = noise(self._rank, n_in)
                found[f"{name}.up"] = torch.zeros(n_out, self._rank)
        else:
            start = ("encoder.",) if self._fit == "layers" else ("encoder.", "embeddings.")
            found = {n: t.clone() for n, t in weights.items() if n.startswith(start)}
        return {n: t.to(self._device).requires_grad_() for n, t in found.items()}

    def _build_bridge(self) -> bridges.Bridge:
        weights = self._plain.weights
        counted = bridges.countable(self._pieces.vocabulary, len(weights[WORDS]))
        logits = bridges.masked_logits(weights[WORDS], weights, self._shape)
        return bridges.Bridge(self._kind, self._fitted, counted.to(self._device), logits)

    def parameters(self) -> Mapping[str, Tensor]:
        return self._fitted

    def train(self, mode: bool = True) -> None:
        self._training = mode

    def fingerprint(self) -> str:
        digest = fingerprint(find_file(self._folder, WEIGHTS))
        extent = {"lora": f" rank={self._rank}", "prompts": f" n={self._n_prompts}"}
        extent["bridge"] = f" kind={self._kind}"
        return (
            f"bert@{digest} fit={self._fit}{extent.get(self._fit, '')} sides={self._sides} "
            f"window={self._window} dropout={self._dropout:g} prompts={self._prompts}"
        )

    def embed(self, inputs: Sequence[Any], role: Role) -> Tensor:
        """Return (n, d) float32, L2-normalised, in the inputs' order, with gradients."""
        if not len(inputs):
            return torch.zeros(0, self.dim, device=self._device)
        texts = as_texts(self._prompts[role], inputs)
        if self._fit == "head":
            return self._behind_head(texts, role)
        net = self._plain if role in self.frozen_roles else self._net
        if self._training and net is self._net:
            net = dataclasses.replace(net, dropout=self._dropout)
        if role == "query" and self._bridge is not None:
            words = self._pieces.ids(texts, self._window - 2)
            states, pooled = self._read_states(net, words)
            inner = [state[1:-1] for state in states]
            return self._bridge.modulate(F.normalize(pooled, dim=1), words, inner, pooled)
        return self._run(net, texts)

    def remember(self, inputs: Sequence[str], vectors: Floats, role: Role) -> None:
        """Take vectors (n, d) of the untrained tower that are known, for a head to stand behind."""
        texts = as_texts(self._prompts[role], inputs)
        rows = torch.from_numpy(vectors).to(self._device, torch.float32)
        self._known.update(zip(texts, rows, strict=True))

    def _behind_head(self, texts: list[str], role: Role) -> Tensor:
        """Return the frozen tower's vectors, each computed once, through the head."""
        fresh = list(dict.fromkeys(text for text in texts if text not in self._known))
        with torch.no_grad():
            for first in range(0, len(fresh), _FROZEN_TEXTS):
                some = fresh[first : first + _FROZEN_TEXTS]
                self._known.update(zip(some, self._run(self._plain, some), strict=True))
        vectors = torch.stack([self._known[text] for text in texts])
        if role in self.frozen_roles:
            return vectors
        if self._training:
            vectors = F.dropout(vectors, self._dropout)
        return F.normalize(vectors + vectors @ self._fitted["head.change"].T, dim=1)

    def _run(self, net: Network, texts: list[str]) -> Tensor:
        """Return the pooled states (n, d) of texts, L2-normalised."""
        _, pooled = self._read_states(net, self._pieces.ids(texts, self._window - 2))
        return F.normalize(pooled, dim=1)

    def _read_states(self, net: Network, ids: list[list[int]]) -> tuple[list[Tensor], Tensor]:
        """Return each text's states (t, d) float32, special tokens too, and their pools (n, d)."""
        sequences = [[self._pieces.start, *some, self._pieces.end] for some in ids]
        order = sorted(range(len(sequences)), key=lambda row: len(sequences[row]))
        states = net.hidden([sequences[row] for row in order])
        back = sorted(range(len(order)), key=order.__getitem__)
        found = [states[row] for row in back]
        return found, torch.cat([pool(state[None], self._pooling) for state in found]).float()

    def save(self, folder: Path, card: Mapping[str, Any]) -> None:
        """Write a folder in sentence-transformers' layout, what was fitted merged in.

        With sides 'query' the folder itself holds the untrained tower, for passages, and its
        folder query/ the trained one; both are of the untrained one's space.
        """
        # a bridge changes queries alone by itself
        if self._sides == "query" and self._bridge is None:
            self._save_net(folder, self._plain)
            shutil.copyfile(find_file(self._folder, WEIGHTS), folder / WEIGHTS)
            self._save_net(folder / "query", self._net)
            _write(folder / TRAINED, {"name": self._name, "query": "query"})
        else:
            self._save_net(folder, self._net)
        if self._bridge is not None:
            # passages are what they were, to the byte
            shutil.copyfile(find_file(self._folder, WEIGHTS), folder / WEIGHTS)
            _write(folder / TRAINED, {"name": self._name})
        cards.write_card(folder, card)

    def _save_net(self, folder: Path, net: Network) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for name in _COPIED:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)
        with torch.no_grad():
            merged = {self._prefix + n: _plain(t) for n, t in net.merged().items()}
        # metadata 'pt' is what the libraries that read such files look for
        save_file(merged, str(folder / WEIGHTS), metadata={"format": "pt"})
        window = {"max_seq_length": self._stored_window(), "do_lower_case": False}
        _write(folder / "sentence_bert_config.json", window)
        modes = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
        pooling = {f"pooling_mode_{mode}": kind == self._pooling for kind, mode in modes.items()}
        (folder / "1_Pooling").mkdir(exist_ok=True)
        pooling_place = folder / "1_Pooling" / "config.json"
        _write(pooling_place, {"word_embedding_dimension": self.dim, **pooling})
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
        change = net.extra.get("head.change")
        if change is not None:
            kinds += [("2_Normalize", "Normalize"), (HEAD, "Dense")]
            _save_head(folder / HEAD, torch.eye(self.dim) + _plain(change))
        kinds.append((f"{len(kinds)}_Normalize", "Normalize"))
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(kinds)
        ]
        _write(folder / "modules.json", modules)
        prefix = {n: _plain(t) for n, t in net.extra.items() if n.startswith("prefix.")}
        if prefix:
            save_file(prefix, str(folder / PROMPTS))
        if self._bridge is not None and net is self._net:
            bridges.write(folder / bridges.NAME, self._kind, self._fitted)


def _save_head(folder: Path, weight: Tensor) -> None:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file({"linear.weight": _plain(weight)}, str(folder / WEIGHTS))
    settings = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    _write(folder / "config.json", settings)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
