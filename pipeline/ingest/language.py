"""Name the language of a text."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

# below this a guess is worth little
_MIN_LETTERS = 40
_SAMPLE_CHARS = 320
_MIN_PROBABILITY = 0.9


def language(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's language; None if it is short or unsure."""
    sample = text[:_SAMPLE_CHARS] if len(text) <= 4 * _SAMPLE_CHARS else _middle(text)
    if sum(c.isalpha() for c in sample) < _MIN_LETTERS:
        return None
    code, probability = _identifier().classify(sample)
    return str(code) if probability >= _MIN_PROBABILITY else None


def probabilities(text: str) -> Mapping[str, float]:
    """Return how likely each language is for a text: {ISO 639-1 code: 0..1}."""
    return {str(code): float(p) for code, p in _identifier().rank(text)}


def _middle(text: str) -> str:
    # a long text's head is often a licence, a menu or names
    start = min(len(text) // 4, 20_000)
    return text[start : start + _SAMPLE_CHARS]


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
