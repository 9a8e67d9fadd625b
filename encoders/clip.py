"""CLIP-class models of open_clip: texts and pictures in one space.

Radford et al. 2021, arXiv:2103.00020; Cherti et al. 2023, arXiv:2212.07143 (open_clip).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.bytepairs import byte_pair_spans
from foveate.encoders.packages import find_file, fingerprint_state
from foveate.encoders.windows import merge_windows, split_text
from foveate.encoders.wordpieces import WordPieces, clean_surrogates
from foveate.pipeline.errors import ConfigError, ModelError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


class OpenCLIP:
    """Encode texts and pictures with an open_clip model.

    model: an architecture's name, the path of its JSON configuration, or a folder with both
    (open_clip_config.json and weights, as `foveate train` and the hub have them). weights: where
    model is no folder, a path (.safetensors, or a checkpoint that torch.load(weights_only=True)
    reads), 'hub' (the last weights that open_clip lists) or 'hub:TAG'. A text longer than the
    window (77 tokens for most) is the mean of windows of equal size, weighted by tokens.
    quick_gelu: for OpenAI's weights from a path. batch_size: pictures or text windows at once.
    """

    reads: frozenset[str] = frozenset({"text", "image"})

    def __init__(
        self,
        model: str = "ViT-B-32",
        *,
        weights: str | os.PathLike[str] | None = None,
        name: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        quick_gelu: bool = False,
        query_prompt: str = "",
        passage_prompt: str = "",
        batch_size: int = 32,
        threads: int | None = None,
    ) -> None:
        place = Path(model).expanduser()
        self._folder = place if place.is_dir() else None
        if (weights is None) == (self._folder is None):
            raise ConfigError(
                f"the folder {model!r} holds its own weights: drop the option weights"
                if self._folder
                else "encoder 'open-clip' needs weights = a path, 'hub' or 'hub:TAG', or model = a "
                "folder that holds them"
            )
        self._architecture, self._weights = model, os.path.expanduser(os.fspath(weights or model))
        stem = place.resolve().name if self._folder else place.name.removesuffix(".json")
        self._name = name or stem
        self._device, self._dtype, self._quick_gelu = device, dtype, quick_gelu
        self._prompts = (query_prompt, passage_prompt)
        self._batch_size, self._threads = batch_size, threads
        self._lock = threading.RLock()
        self._parts: tuple[Any, Any, Any] | None = None

    @property
    def _loaded(self) -> tuple[Any, Any, Any]:
        """The model, its picture transform and its tokenizer."""
        with self._lock:
            if self._parts is None:
                self._parts = self._load()
            return self._parts

    def _load(self) -> tuple[Any, Any, Any]:
        import open_clip
        from open_clip.transform import PreprocessCfg, image_transform_v2

        from foveate.encoders.devices import choose_device
        from foveate.encoders.threads import set_threads

        set_threads(self._threads)
        architecture, pretrained = self._find()
        try:
            model = open_clip.create_model(
                architecture,
                pretrained=pretrained,
                device=choose_device(self._device),
                force_quick_gelu=self._quick_gelu,
                weights_only=True,
                require_pretrained=True,
            )
            tokenizer = open_clip.get_tokenizer(architecture)
        except Exception as error:  # network, hub, file and format errors of four libraries
            first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise ModelError(
                f"cannot load {self._architecture!r} with weights {self._weights!r}: "
                f"{first[:200]}; give the path of a weights file, or fetch it once where the hub "
                "can be reached (HF_HUB_OFFLINE unset)"
            ) from error
        settings = PreprocessCfg(**model.visual.preprocess_cfg)
        return model.eval(), image_transform_v2(settings, is_train=False), tokenizer

    def _find(self) -> tuple[str, str | None]:
        """Return what open_clip calls the architecture, and its weights, None for a folder's."""
        import open_clip

        if self._folder is not None:
            find_file(self._folder, CONFIG)
            return f"local-dir:{self._folder}", None
        if self._architecture.endswith(".json"):
            if not os.path.isfile(self._architecture):
                raise ModelError(f"no model configuration at {self._architecture!r}")
            open_clip.add_model_config(self._architecture)
        architecture = Path(self._architecture).name.removesuffix(".json")
        if open_clip.get_model_config(architecture) is None:
            raise ModelError(
                f"open_clip knows no architecture {architecture!r}: see open_clip.list_models()"
            )
        tag = _hub_tag(self._weights, architecture)
        if tag is None and not os.path.isfile(self._weights):
            raise ModelError(f"no weights at {self._weights!r}: give a file, 'hub' or 'hub:TAG'")
        return architecture, tag or self._weights

    def write(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write a folder that `model` loads, in open_clip's layout, with these weights.

        state: tensors by the names of the model's own state.
        """
        import open_clip
        from safetensors.torch import save_file

        model, _, tokenizer = self._loaded
        settings = dict(open_clip.get_model_config(self._find()[0]))
        settings |= {"quick_gelu": True} if self._quick_gelu else {}
        made = {"model_cfg": settings, "preprocess_cfg": model.visual.preprocess_cfg}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(made, indent=1) + "\n", "utf-8")
        # cloned: tensors that share memory are refused by the format
        plain = {name: part.detach().cpu().contiguous().clone() for name, part in state.items()}
        save_file(plain, str(folder / WEIGHTS))
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(str(folder))

    @cached_property
    def dim(self) -> int:
        return int(self._encode_windows([""]).shape[1])

    @property
    def space(self) -> str:
        return f"{self._name}/{self.dim}"

    @property
    def window_tokens(self) -> int:
        """Tokens of one window, its two special tokens included."""
        return int(self._loaded[2].context_length or 77)

    @cached_property
    def tower(self) -> str:
        """Architecture, sampled weights, preprocessing, window and prompts."""
        model, _, _ = self._loaded
        settings = model.visual.preprocess_cfg
        pixels = " ".join(f"{key}={settings[key]}" for key in sorted(settings))
        query, passage = self._prompts
        return (
            f"{self._name}@{fingerprint_state(model.state_dict())} norm=l2 "
            f"window={self.window_tokens} {pixels} prompts={query!r}/{passage!r}"
        )

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode texts and pictures, mixed as they come.

        Args:
            inputs: n texts or PIL pictures.
            progress: is called with the number of inputs done so far.

        Returns:
            (n, d) float32, L2-normalised.
        """
        return self._encode(inputs, self._prompts[1], progress)

    def encode_queries(self, queries: Sequence[Input]) -> Floats:
        """Encode queries, texts or pictures. Returns (q, d) float32, L2-normalised."""
        return self._encode(queries, self._prompts[0], None)

    def _encode(
        self, inputs: Sequence[Input], prompt: str, progress: Callable[[int], None] | None
    ) -> Floats:
        vectors = np.zeros((len(inputs), self.dim), dtype=np.float32)
        texts = [row for row, item in enumerate(inputs) if isinstance(item, str)]
        pictures = [row for row, item in enumerate(inputs) if not isinstance(item, str)]
        done = 0
        for rows, run in ((texts, self._encode_texts), (pictures, self._encode_pictures)):
            for first in range(0, len(rows), self._batch_size):
                some = rows[first : first + self._batch_size]
                vectors[some] = run([inputs[row] for row in some], prompt)
                done += len(some)
                if progress:
                    progress(done)
        return vectors

    def _encode_texts(self, texts: Sequence[Any], prompt: str) -> Floats:
        windows: list[tuple[str, int]] = []
        owners: list[int] = []
        room = max(self.window_tokens - 2 - len(self.token_spans(prompt)), 8)
        for owner, text in enumerate(texts):
            readable = clean_surrogates(text)
            cut = split_text(readable, self.token_spans(readable), room)
            windows += cut
            owners += [owner] * len(cut)
        parts = [
            self._encode_windows([prompt + text for text, _ in windows[a : a + self._batch_size]])
            for a in range(0, len(windows), self._batch_size)
        ]
        return merge_windows(
            np.concatenate(parts), owners, [weight for _, weight in windows], len(texts)
        )

    def _encode_windows(self, texts: list[str]) -> Floats:
        model, _, tokenizer = self._loaded
        with self._lock:
            ids = tokenizer(texts)
        return self._compute(model.encode_text, ids)

    def _encode_pictures(self, pictures: Sequence[Any], prompt: str) -> Floats:
        import torch
        from PIL.Image import Image

        model, transform, _ = self._loaded
        for picture in pictures:
            if not isinstance(picture, Image):
                raise ShapeError(f"expected texts or pictures, got {type(picture).__name__}")
        return self._compute(
            model.encode_image, torch.stack([transform(picture) for picture in pictures])
        )

    def encode_regions(self, image: Image) -> tuple[Floats, Floats]:
        """Encode the patches of a picture, so that a hit can say where.

        Each patch goes through the model's own pooling and projection as if it were the whole.

        Returns:
            vectors (c, d) float32, L2-normalised; boxes (c, 4) float32: x0 y0 x1 y1 of each patch,
            0..1 of the picture, origin top left. What the transform cuts off has no patch.

        Raises:
            ModelError: if the model's image tower has no patches.
        """
        model, transform, _ = self._loaded
        tower = model.visual
        patched = getattr(tower, "trunk", tower)
        if not hasattr(patched, "patch_embed") and not hasattr(patched, "patch_size"):
            raise ModelError(f"the image tower of {self._name!r} has no patches to look at")
        grid: list[int] = []

        def run(pixels: Tensor) -> Tensor:
            seen = tower.forward_intermediates(
                pixels,
                indices=1,
                intermediates_only=True,
                normalize_intermediates=patched is not tower,
            )["image_intermediates"][-1]
            grid.extend(seen.shape[2:])
            # enough copies that none is lost where the pooling leaves out class tokens
            n_copies = 1 + int(getattr(patched, "num_prefix_tokens", 1))
            alone = seen[0].flatten(1).T[:, None].expand(-1, n_copies, -1)
            if patched is not tower:
                pooled: Tensor = tower.head(patched.forward_head(alone))
                return pooled
            pooled = tower._pool(alone)[0]
            return pooled if tower.proj is None else pooled @ tower.proj

        vectors = self._compute(run, transform(image)[None])
        boxes = _boxes(image, grid[0], grid[1], model.visual.preprocess_cfg["resize_mode"])
        inside = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
        return vectors[inside], boxes[inside]

    def _compute(self, run: Callable[..., Tensor], batch: Tensor) -> Floats:
        import torch

        from foveate.encoders.devices import choose_device, choose_dtype

        device = choose_device(self._device)
        half = choose_dtype(self._dtype, device) == torch.bfloat16
        with (
            torch.inference_mode(),
            torch.autocast(device.type, dtype=torch.bfloat16, enabled=half),
        ):
            vectors = run(batch.to(device)).float()
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        array: Floats = vectors.cpu().numpy()
        return array

    @cached_property
    def _pieces(self) -> WordPieces | None:
        inner = getattr(self._loaded[2], "tokenizer", None)
        backend = getattr(inner, "backend_tokenizer", None)
        return WordPieces(backend) if backend is not None else None

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32: [start, end) in code points of each token, no special tokens."""
        if self._pieces is not None:
            return self._pieces.spans(text)
        return byte_pair_spans(self._loaded[2], text)


def _boxes(image: Image, n_rows: int, n_columns: int, resize_mode: str) -> Floats:
    """Return (n_rows * n_columns, 4) float32: the patches' boxes, as parts of the picture.

    'shortest' shows the middle square, 'longest' pads to a square, 'squash' shows all.
    """
    width, height = image.size
    shown = {"shortest": min(width, height), "longest": max(width, height)}.get(resize_mode)
    edges = []
    for n_cells, length in ((n_columns, width), (n_rows, height)):
        part = 1.0 if shown is None else shown / length
        edges.append(((1 - part) / 2 + part * np.linspace(0, 1, n_cells + 1)).clip(0, 1))
    x, y = edges
    down, across = np.divmod(np.arange(n_rows * n_columns), n_columns)
    boxes = np.stack([x[across], y[down], x[across + 1], y[down + 1]], axis=1)
    return boxes.astype(np.float32)


def _hub_tag(weights: str, architecture: str) -> str | None:
    """Return the tag of weights on the hub; None when `weights` is a path."""
    import open_clip

    if weights.startswith("hub:"):
        return weights.removeprefix("hub:")
    if weights != "hub":
        return None
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if not tags:
        raise ModelError(f"open_clip lists no weights for {architecture!r}: give a path")
    return str(tags[-1])
