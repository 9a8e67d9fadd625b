"""Which languages an index holds that its text encoder was not trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder


def language_warnings(index: Any, encoder: Encoder) -> list[str]:
    """Say which languages are indexed that the text encoder was not trained on."""
    known = getattr(encoder, "languages", None)
    if known is None:
        return []
    counts = index.languages()
    foreign = {name: n for name, n in counts.items() if name not in known}
    if not foreign:
        return []
    told = ", ".join(f"{n} {name}" for name, n in sorted(foreign.items(), key=lambda i: -i[1])[:6])
    n = sum(foreign.values())
    which = "1 source is in a language" if n == 1 else f"{n} sources are in languages"
    return [
        f"{which} that the text encoder was not trained "
        f"on ({told}): search by meaning is weak there, search by words is not; see "
        '`use = "sentence-transformers"` in the README for a multilingual encoder'
    ]
