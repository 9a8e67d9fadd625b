"""What a diagnosis says: a value against a stated threshold, green, amber, red or grey."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["green", "amber", "red", "grey"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding. value: None when it was not measured, and the state is grey.

    threshold: the rule in words. series: {line: [(place, value), ...]} to draw.
    """

    name: str
    state: State
    value: float | None
    says: str
    threshold: str
    series: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def at_least(value: float, green: float, amber: float) -> State:
    """Grade a value that should be high."""
    return "green" if value >= green else "amber" if value >= amber else "red"


def at_most(value: float, green: float, amber: float) -> State:
    """Grade a value that should be low."""
    return "green" if value <= green else "amber" if value <= amber else "red"


def unmeasured(name: str, reason: str, threshold: str) -> Diagnosis:
    return Diagnosis(name, "grey", None, reason, threshold)
