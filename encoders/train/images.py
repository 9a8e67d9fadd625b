"""Train a head for pictures on captions: `foveate train` where the positives are pictures.

The network stays as it is. What it sees of each picture is mapped to the mean of its captions'
vectors by a ridge, in a text space that is centred and partly whitened by the captions' own
covariance, and mixed with the label-free vector. The ridge's penalty and the mix are chosen by
folds of the training pictures. To see what that gives on pictures that took no part:
`python -m foveate.encoders.train.images FOLDER --folds`.

On 493 pictures a closed form beats gradients: contrastive steps from this solution lower R@1 from
the first ten on (docs/images.md).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.encoders.image_head import ImageHead
from foveate.encoders.train import cards
from foveate.encoders.train.data import open_picture
from foveate.pipeline.errors import LoadError

if TYPE_CHECKING:
    from foveate.encoders.efficientnet import EfficientNetLite
    from foveate.encoders.train.data import TrainingSet
    from foveate.pipeline.types import Floats

    Tell = Callable[[str, int, int | None], None]

PENALTIES = (0.3, 1.0, 3.0, 10.0)
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
FEWEST = 20
N_FOLDS = 5
WHITENING, FLOOR = 0.25, 0.5
RANKS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Seen:
    """Pictures as arrays. features (n, f), free (n, d); captions: (c_i, d) of each picture.

    blocks: lengths of the parts of `features` that are scaled alike.
    """

    names: tuple[str, ...]
    features: Floats
    free: Floats
    captions: tuple[Floats, ...]
    blocks: tuple[int, ...]

    def part(self, rows: Iterable[int]) -> Seen:
        chosen = [int(row) for row in rows]
        return Seen(
            tuple(self.names[row] for row in chosen),
            self.features[chosen],
            self.free[chosen],
            tuple(self.captions[row] for row in chosen),
            self.blocks,
        )

    def folds(self, n: int = N_FOLDS) -> list[tuple[Seen, Seen]]:
        """Return (the others, the fold) n times; folds are of equal size, by SHA-1 of the names."""
        keys = [hashlib.sha1(name.encode()).hexdigest() for name in self.names]
        fold = np.empty(len(keys), dtype=int)
        fold[np.argsort(keys)] = np.arange(len(keys)) % n
        return [
            (self.part(np.flatnonzero(fold != k)), self.part(np.flatnonzero(fold == k)))
            for k in range(n)
        ]


@dataclass(frozen=True, slots=True)
class Choice:
    """penalty: of the ridge, in units of the mean square of a picture. share: of its vector."""

    penalty: float
    share: float


def look(encoder: EfficientNetLite, data: TrainingSet, tell: Tell | None = None) -> Seen:
    """Encode every picture and caption of a training set once.

    Raises:
        LoadError: if it holds no pictures, fewer than 20, or one that cannot be read.
    """
    of_picture: dict[str, list[str]] = {}
    for example in data.examples:
        if not isinstance(example.query, str) or not isinstance(example.positive, str | Path):
            raise LoadError("expected captions as queries and paths of pictures as positives")
        of_picture.setdefault(str(example.positive), []).append(example.query)
    if len(of_picture) < FEWEST:
        raise LoadError(f"expected at least {FEWEST} pictures with captions, got {len(of_picture)}")
    places = sorted(of_picture)
    features, free = [], []
    step = 8 * encoder.batch
    for first in range(0, len(places), step):
        some = [open_picture(place) for place in places[first : first + step]]
        seen = encoder.features(some)
        features.append(seen[0])
        free.append(seen[1])
        if tell is not None:
            tell("encode", first + len(some), len(places))
    texts = [text for place in places for text in of_picture[place]]
    ends = np.cumsum([len(of_picture[place]) for place in places])
    captions = np.split(encoder.encode_queries(texts), ends[:-1])
    names = tuple(Path(place).name for place in places)
    return Seen(names, np.concatenate(features), np.concatenate(free), tuple(captions),
                encoder.feature_blocks)  # fmt: skip


def train_image_head(
    encoder: EfficientNetLite, data: TrainingSet, folder: Path, tell: Tell | None = None
) -> dict[str, Any]:
    """Fit a head and write it as a folder; return its card.

    encoder: one without a head. The folder is loaded by `[encoders.image] head`, has its own
    fingerprint, and holds head.safetensors, README.md and training.json.

    Raises:
        LoadError: if the data are not pictures with captions.
    """
    seen = look(encoder, data, tell)
    choice, scores = choose(seen)
    base = {"size": encoder.size, "shape": encoder.shape, "tower": encoder.base}
    head = fit(seen, choice, space=encoder.space, base=base)
    card = {
        "base": f"efficientnet-lite {encoder.size}, shape {encoder.shape}",
        "use": "efficientnet-lite",
        "role": "image",
        "option": "head",
        "trained_on": f"{data.origin}: {len(seen.names)} pictures, {len(data.examples)} captions",
        "data": data.digest,
        "held_out": f"{N_FOLDS} folds in turn: R@1 {scores['R@1']:.3f}, R@10 {scores['R@10']:.3f}",
        "penalty": choice.penalty,
        "share": choice.share,
        "by_folds_of_the_training_pictures": scores,
        "label_free_on_the_same_folds": mean_scores(
            [recalls(fold.free, fold.captions) for _, fold in seen.folds()]
        ),
    }
    cards.write_card(folder, card)
    head.write(folder)
    return card


def choose(seen: Seen) -> tuple[Choice, dict[str, float]]:
    """Return the best penalty and share by folds, and the recalls that they gave there."""
    found: dict[Choice, list[dict[str, float]]] = {}
    for others, fold in seen.folds():
        for penalty, head in zip(PENALTIES, fit_path(others, PENALTIES), strict=True):
            for share in SHARES:
                tried = ImageHead(*head, share=share, space="", base={})
                scores = recalls(tried.vectors(fold.features, fold.free), fold.captions)
                found.setdefault(Choice(penalty, share), []).append(scores)
    means = {choice: mean_scores(scores) for choice, scores in found.items()}
    best = max(means, key=lambda choice: means[choice]["R@1"] + means[choice]["R@10"])
    return best, means[best]


def fit(seen: Seen, choice: Choice, *, space: str, base: Mapping[str, str]) -> ImageHead:
    """Fit one head."""
    (tensors,) = fit_path(seen, (choice.penalty,))
    return ImageHead(*tensors, share=choice.share, space=space, base=base).rounded()


def fit_path(seen: Seen, penalties: Sequence[float]) -> list[tuple[Floats, Floats, Floats, Floats]]:
    """Return (map, offset, centre, mix) for each penalty, from one decomposition."""
    mix, middle = whitening(np.concatenate(seen.captions))
    targets = (np.stack([some.mean(axis=0) for some in seen.captions]) - middle) @ mix
    offset = targets.mean(axis=0)
    mean = seen.features.mean(axis=0, dtype=np.float64)
    centred = seen.features - mean
    scale = np.empty(centred.shape[1])
    ends = np.cumsum(seen.blocks)
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        spread = np.sqrt(np.square(centred[:, start:end]).sum() / len(centred))
        scale[start:end] = max(float(spread), 1e-12)
    centred /= scale
    rest = targets - offset
    wide = centred.shape[1] > len(centred)
    gram = centred @ centred.T if wide else centred.T @ centred
    values, directions = np.linalg.eigh(gram)
    right = directions.T @ (rest if wide else centred.T @ rest)
    found = []
    for penalty in penalties:
        # the trace over n is the mean square of a picture
        ridge = penalty * np.trace(gram) / len(centred)
        solved = directions @ (right / (np.maximum(values, 0) + ridge)[:, None])
        matrix = (centred.T @ solved if wide else solved) / scale[:, None]
        arrays = (matrix, offset - mean @ matrix, seen.free.mean(axis=0), mix)
        found.append(tuple(np.asarray(a, dtype=np.float32) for a in arrays))
    return found  # type: ignore[return-value]


def whitening(captions: Floats) -> tuple[Floats, Floats]:
    """Return M (d, d) and the mean m (d,) of captions (c, d), for (t - m) M.

    M = (C + floor I) ** -WHITENING without the direction of m, scaled so that captions have unit
    mean square. C is their covariance, the floor is in units of its mean eigenvalue.
    """
    mean = captions.astype(np.float64).mean(axis=0)
    values, directions = np.linalg.eigh(np.cov(captions, rowvar=False, bias=True))
    values = np.maximum(values, 0)
    gains = (values + FLOOR * values.mean()) ** -WHITENING
    common = mean / np.linalg.norm(mean)
    mix = (directions * gains) @ directions.T
    mix -= np.outer(mix @ common, common)
    spread = np.sqrt(np.square((captions - mean) @ mix).sum(axis=1).mean())
    return mix / spread, mean


def recalls(pictures: Floats, captions: Sequence[Floats]) -> dict[str, float]:
    """Return R@k of each caption's picture, and of the best of each picture's captions.

    The gallery is what is given; ties count against.
    """
    n_each = [len(some) for some in captions]
    owners = np.repeat(np.arange(len(captions)), n_each)
    scores = np.concatenate(captions) @ pictures.T
    own = scores[np.arange(len(owners)), owners]
    ranks = (scores >= own[:, None]).sum(axis=1)
    best = np.array([own[owners == i].max() for i in range(len(captions))])
    others = owners[:, None] != np.arange(len(captions))
    back = 1 + ((scores >= best) & others).sum(axis=0)
    found = {f"R@{k}": float((ranks <= k).mean()) for k in RANKS}
    return found | {f"image to text R@{k}": float((back <= k).mean()) for k in RANKS}


def mean_scores(some: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([scores[name] for scores in some])) for name in some[0]}


def cross_validate(seen: Seen) -> dict[str, dict[str, float]]:
    """Return recalls of held-out folds: label-free, and by heads that never saw the fold.

    Penalty and share are chosen inside each fold's training pictures. Each fold is its own gallery.
    """
    free, trained = [], []
    for others, fold in seen.folds():
        choice, _ = choose(others)
        head = fit(others, choice, space="", base={})
        free.append(recalls(fold.free, fold.captions))
        trained.append(recalls(head.vectors(fold.features, fold.free), fold.captions))
    return {"label-free": mean_scores(free), "trained": mean_scores(trained)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train a head, or with --folds measure by folds what training gives."""
    from foveate.encoders.efficientnet import EfficientNetLite
    from foveate.encoders.train import data

    parser = argparse.ArgumentParser(description="train a head for pictures on their captions")
    parser.add_argument("folder", type=Path, help="pictures and captions, see `foveate train`")
    parser.add_argument("--size", default="lite0")
    parser.add_argument("--shape", default="own")
    parser.add_argument("--folds", action="store_true", help="measure by folds, write nothing")
    parser.add_argument("--out", type=Path, default=Path("image-head"))
    chosen = parser.parse_args(arguments)
    encoder = EfficientNetLite(chosen.size, shape=chosen.shape)
    examples = data.read(chosen.folder)
    if chosen.folds:
        found: Any = cross_validate(look(encoder, examples))
    else:
        found = train_image_head(encoder, examples, chosen.out)
    sys.stdout.write(f"{json.dumps(found, indent=1)}\n")


if __name__ == "__main__":
    main()
