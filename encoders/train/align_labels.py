"""Make the image tower's alignment from words alone.

To make the shipped file again: `python -m foveate.encoders.train.align_labels`.

Each ImageNet class gets a target in the text space: the mean of its name in a prompt and of its
synonyms, mixed with sentences about where such a thing is seen. Knowing that a jersey is worn by
a player and a sandbar has people on it bridges what the classes lack: people and actions. The
targets are then centred, freed of the direction that they share, and partly whitened, so that the
few directions all classes vary in do not outweigh the rest.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foveate.encoders.convnet import N_CLASSES
from foveate.encoders.efficientnet import ALIGNMENT
from foveate.encoders.minilm import MiniLM
from foveate.pipeline.errors import LoadError

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.types import Floats

NAMES = Path(__file__).parent / "imagenet_names.tsv"
SCENES = Path(__file__).parent / "imagenet_scenes.tsv"
PROMPT = "a photo of a {}"

# compared on flickr8k_1k, where the figures move little around them (weights/README.md)
SCENE_SHARE = 0.6
WHITENING = 0.25
WHITENING_FLOOR = 0.5
SETTINGS = {"temperature": 2.0, "ridge": 1.0, "share": 0.4, "cells": 0.3}


def read_names(path: Path = NAMES) -> tuple[list[str], list[str]]:
    """Return the classes' names and their synonyms, a line of commas each, by class number."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    if [row["index"] for row in rows] != [str(i) for i in range(N_CLASSES)]:
        raise LoadError(f"expected classes 0 to {N_CLASSES - 1} in order in {str(path)!r}")
    return [row["clean_name"] for row in rows], [row["synonyms"] for row in rows]


def read_scenes(path: Path = SCENES) -> list[list[str]]:
    """Return the sentences of each class. A line: `number` or `first-last`, tab, `a|b|...`."""
    scenes: list[list[str]] = [[] for _ in range(N_CLASSES)]
    for line in path.read_text(encoding="utf-8").splitlines():
        classes, _, sentences = line.partition("\t")
        first, _, last = classes.partition("-")
        for number in range(int(first), int(last or first) + 1):
            scenes[number] += sentences.split("|")
    missing = [number for number, sentences in enumerate(scenes) if not sentences]
    if missing:
        raise LoadError(f"no sentence for the classes {missing} in {str(path)!r}")
    return scenes


def make_targets(encoder: Encoder, names: Sequence[str], synonyms: Sequence[str]) -> Floats:
    """Return (1000, d) float32: the classes' targets, centred and partly whitened."""
    named = encoder.encode([PROMPT.format(name) for name in names]) + encoder.encode(synonyms)
    scenes = read_scenes()
    sentences = sorted({sentence for group in scenes for sentence in group})
    rows = {sentence: row for row, sentence in enumerate(sentences)}
    vectors = encoder.encode(sentences)
    seen = np.stack([vectors[[rows[s] for s in group]].mean(axis=0) for group in scenes])
    mixed = (1 - SCENE_SHARE) * normalise(named) + SCENE_SHARE * normalise(seen)
    return whiten(normalise(mixed))


def whiten(targets: Floats) -> Floats:
    """Centre rows (c, d), remove their mean's direction, scale by (C + floor I) ** -WHITENING.

    C is the rows' covariance, the floor is in units of its mean eigenvalue. float32.
    """
    mean = targets.astype(np.float64).mean(axis=0)
    centred = targets - mean
    values, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    values = np.maximum(values, 0)
    gains = (values + WHITENING_FLOOR * values.mean()) ** -WHITENING
    white = centred @ ((directions * gains) @ directions.T)
    common = mean / np.linalg.norm(mean)
    white -= np.outer(white @ common, common)
    scale = np.sqrt((white**2).sum(axis=1).mean())
    return np.asarray(white / scale, dtype=np.float32)


def normalise(rows: Floats) -> Floats:
    """Return the rows, L2-normalised, float32."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def align(encoder: Encoder, path: Path) -> Floats:
    """Make the targets, write them to a safetensors file (float16) and return them."""
    from safetensors.numpy import save_file

    targets = make_targets(encoder, *read_names())
    settings = json.dumps({"space": encoder.space, **SETTINGS})
    save_file({"targets": targets.astype(np.float16)}, path, metadata={"alignment": settings})
    return targets


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the alignment that `efficientnet-lite` ships with, or one beside it."""
    parser = argparse.ArgumentParser(description="align the image tower to words, by words alone")
    parser.add_argument("--out", type=Path, default=ALIGNMENT, help="default: the shipped file")
    align(MiniLM(dtype="fp32"), parser.parse_args(arguments).out)


if __name__ == "__main__":
    main()
