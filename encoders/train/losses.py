"""Every training loss, one function each; imported from here.

Vectors are (b, d), L2-normalised where a docstring speaks of cosines; a loss is a () tensor of
their type, float64 included, and lower is better. Temperatures divide.
"""

from foveate.encoders.train.loss.captions import (
    flair_conditioned,
    flair_global,
    multimodal,
    sigmoid,
    word_region,
)
from foveate.encoders.train.loss.contrast import (
    composition,
    debiased,
    focal_infonce,
    hard_hinge,
    infonce,
    poly_view,
    simcse_supervised,
    simcse_unsupervised,
    supcon,
)
from foveate.encoders.train.loss.distil import attention_transfer, pixelwise
from foveate.encoders.train.loss.judged import graded, query_side
from foveate.encoders.train.loss.local import (
    best_pair,
    local_matching,
    mask_tokens,
    matching_distribution,
    token_scores,
)
from foveate.encoders.train.loss.replaced import diffcse, replaced_tokens
from foveate.encoders.train.loss.spread import alignment, anchored, uniformity

__all__ = [
    "alignment",
    "anchored",
    "attention_transfer",
    "best_pair",
    "composition",
    "debiased",
    "diffcse",
    "flair_conditioned",
    "flair_global",
    "focal_infonce",
    "graded",
    "hard_hinge",
    "infonce",
    "local_matching",
    "mask_tokens",
    "matching_distribution",
    "multimodal",
    "pixelwise",
    "poly_view",
    "query_side",
    "replaced_tokens",
    "sigmoid",
    "simcse_supervised",
    "simcse_unsupervised",
    "supcon",
    "token_scores",
    "uniformity",
    "word_region",
]
