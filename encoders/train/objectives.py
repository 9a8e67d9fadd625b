"""What a training step minimises: a named loss over the vectors of a batch, and what is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from foveate.encoders.train import losses
from foveate.encoders.train.loss.judged import weights_of
from foveate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from foveate.encoders.train.batches import Batch
    from foveate.encoders.train.options import TrainOptions

    Vectors = Mapping[str, Tensor]
    Objective = Callable[[Vectors, Batch, TrainOptions], Tensor]


def infonce(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    targets = torch.tensor(batch.targets, device=vectors["query"].device)
    return losses.infonce(
        vectors["query"], vectors["document"], targets, temperature=options.temperature
    )


def symmetric(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    """InfoNCE both ways, as CLIP has it: Radford et al. 2021, arXiv:2103.00020."""
    own, _ = _split(vectors, batch)
    back = losses.infonce(own, vectors["query"], temperature=options.temperature)
    return (infonce(vectors, batch, options) + back) / 2


def hinge(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    own, rest = _split(vectors, batch)
    extra = losses.hard_hinge(vectors["query"], own, rest, margin=options.margin)
    return infonce(vectors, batch, options) + options.hinge_weight * extra


def graded(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    own, rest = _split(vectors, batch)
    grades = torch.tensor(batch.grades, dtype=own.dtype, device=own.device)
    return losses.graded(
        vectors["query"],
        own,
        weights_of(grades, options.grade_weights),
        rest,
        temperature=options.temperature,
    )


def sigmoid(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    own, _ = _split(vectors, batch)
    scale = 1 / options.temperature
    bias = -scale / 2 if options.bias is None else options.bias
    return losses.sigmoid(vectors["query"], own, scale=scale, bias=bias)


def simcse(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    return losses.simcse_unsupervised(
        vectors["query"], vectors["again"], temperature=options.temperature
    )


def focal(vectors: Vectors, batch: Batch, options: TrainOptions) -> Tensor:
    other = vectors.get("again")
    other = _split(vectors, batch)[0] if other is None else other
    return losses.focal_infonce(
        vectors["query"], other, margin=options.margin, temperature=options.temperature
    )


PAIRED: dict[str, Objective] = {
    "infonce": infonce,
    "symmetric": symmetric,
    "hinge": hinge,
    "graded": graded,
    "sigmoid": sigmoid,
    "focal": focal,
}
UNLABELLED: dict[str, Objective] = {"simcse": simcse, "focal": focal}


def choose(name: str, *, unlabelled: bool) -> Objective:
    """Return the objective of a name; 'auto' is InfoNCE, and SimCSE for unlabelled texts.

    Raises:
        ConfigError: for a name that does not fit the data.
    """
    known = UNLABELLED if unlabelled else PAIRED
    if name == "auto":
        name = "simcse" if unlabelled else "infonce"
    if name not in known:
        kind = "unlabelled texts" if unlabelled else "pairs"
        raise ConfigError(f"unknown loss {name!r} for {kind} (known: {', '.join(known)})")
    return known[name]


def total(
    objective: Objective,
    vectors: Vectors,
    batch: Batch,
    options: TrainOptions,
    before: Vectors | None = None,
) -> Tensor:
    """Return the step's loss.

    before: the columns' vectors by the untrained encoder, where options.anchor asks for them.
    """
    loss = objective(vectors, batch, options)
    if options.query_side and "edited" in vectors:
        loss = loss + options.query_side * losses.query_side(
            vectors["query"],
            vectors["paraphrase"],
            vectors["edited"],
            kind=options.query_side_loss,
            margin=options.margin,
            temperature=options.temperature,
        )
    if options.uniformity:
        loss = loss + options.uniformity * losses.uniformity(vectors["query"])
    if before is not None:
        moved = [losses.anchored(vectors[name], fixed) for name, fixed in before.items()]
        loss = loss + options.anchor * torch.stack(moved).mean()
    return loss


def _split(vectors: Vectors, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return each query's own document (b, d), and the documents that are nobody's (m, d)."""
    documents = vectors["document"]
    n_own = len(batch.targets)
    rest = documents[n_own:]
    return documents[:n_own], rest if len(rest) else None
