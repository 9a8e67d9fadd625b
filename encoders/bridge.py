"""Queries weighted by the words they contain: LexSemBridge, its query-only form.

q' = normalise(softmax(M w) * q), w the vector of the vocabulary with 1 for each token that stands
in the query, M (d, vocabulary) learned; special tokens never count. Passages stay plain, so that
an index stays valid. arXiv:2508.17858 (statistical lexical representation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

NAME, KEY = "bridge.safetensors", "bridge.weight"


def modulate(vectors: Tensor, words: Sequence[Sequence[int]], table: Tensor) -> Tensor:
    """Return (q, d), L2-normalised.

    vectors: (q, d). words: token ids of each query, without special tokens; one that is repeated
    counts once. table: (vocabulary, d), M transposed; zeros leave every direction as it is.
    """
    rows = [torch.tensor(sorted(set(ids)), dtype=torch.long, device=table.device) for ids in words]
    sums = [table[some].sum(0) for some in rows]
    return F.normalize(torch.stack(sums).softmax(1) * vectors, dim=1)
