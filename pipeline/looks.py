"""Which sentences of the prompt a local model looked at while it wrote each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foveate.pipeline.prompt import Prompt, place_of

if TYPE_CHECKING:
    from foveate.pipeline.completion import Completion
    from foveate.pipeline.evidence import Evidence
    from foveate.pipeline.types import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """Attention of the tokens that were written on those that were read.

    mass: (g, t) float32, mean over the heads that were watched. spans: (t, 2) int64, [start, end)
    of each read token in the user's message, -1 for tokens outside it. ends: (g,) int64, how many
    code points of the answer stand after each written token.
    """

    mass: Floats
    spans: Ints
    ends: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Looks:
    """Attention on the evidence sentences, by the place in the answer.

    said: the answer. on: {index of an evidence sentence: (g,) float32 mass on its tokens}.
    """

    said: str
    ends: Ints
    on: dict[int, Floats]

    @classmethod
    def of(cls, written: Completion, said: str, prompt: Prompt, evidence: Evidence) -> Looks | None:
        """Read the attention of a completion, None where its generator kept none."""
        attended = written.attention
        if not isinstance(attended, Attended) or not len(attended.ends):
            return None
        content = str(prompt.messages[-1]["content"])
        places = prompt.messages[-1]["passages"]
        on = {}
        for i, sentence in enumerate(evidence.sentences):
            place = place_of(sentence, prompt.shown, places, content)
            if place is not None:
                inside = (attended.spans[:, 0] < place[1]) & (attended.spans[:, 1] > place[0])
                on[i] = attended.mass[:, inside].sum(axis=1)
        return cls(said, attended.ends, on)

    def shares(self, claim: str, allowed: Sequence[int]) -> dict[int, float]:
        """Return each sentence's share of the attention of one claim, the greatest being 1."""
        import numpy as np

        start = self.said.find(claim)
        if start < 0:
            return {}
        begins = np.concatenate([[0], self.ends[:-1]])
        rows = (self.ends > start) & (begins < start + len(claim))
        mass = {i: float(self.on[i][rows].mean()) for i in allowed if i in self.on and rows.any()}
        most = max(mass.values(), default=0.0)
        return {i: value / most for i, value in mass.items()} if most > 0 else {}
