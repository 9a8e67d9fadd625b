"""What fills one slot of an index: which encoder made the vectors, and of what size they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tower:
    """The vectors that one role of an index holds.

    role: "text", "image", ... tower: fingerprint of the encoder. space: the joint target; a query
    may be compared with any tower of the same space. dim: floats in a vector. code: "" for one
    vector a passage; "onebit" or "int8" for one a token, and how they are kept.
    """

    role: str
    tower: str
    space: str
    dim: int
    code: str = ""

    @property
    def folder(self) -> str:
        """The folder's name: a hash, as fingerprints hold characters that paths may not."""
        return hashlib.sha256(f"{self.role}\0{self.tower}\0{self.dim}".encode()).hexdigest()[:16]
