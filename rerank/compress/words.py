"""Words as a compressor compares them: folded, stemmed, without the commonest."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W_]+")
WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f]")
COMMON_WORDS = (
    "a about after all also an and any are as at be been before being between both but by can "
    "could did do does for from had has have he her his how if in into is it its many more most "
    "much no not of on one or other our out over she should so some such than that the their them "
    "then there these they this those through to under until up very was we were what when where "
    "which while who whom whose why will with would you your s"
)
COMMON = frozenset(COMMON_WORDS.split())
ENDINGS = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("ly", ""), ("s", ""))


def plain(text: str) -> str:
    """Return the text case-folded and without accents."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in folded if not unicodedata.combining(c))


@functools.lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Cut the commonest English endings."""
    if len(word) < 4 or word[0].isdigit():
        return word
    for ending, instead in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            break
    return word[:-1] if len(word) > 4 and word.endswith("e") else word


def stems(text: str) -> list[str]:
    """Return the stems of the content words; scripts without blanks give pairs of characters."""
    found = []
    for word in WORD.findall(plain(text)):
        if WIDE.search(word):
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        elif word not in COMMON:
            found.append(stem(word))
    return found


def rarity(texts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the inverse document frequency of every stem among these texts (BM25's, above 0)."""
    held = Counter(word for words in texts for word in set(words))
    n = len(texts)
    return {word: math.log(1 + (n - df + 0.5) / (df + 0.5)) for word, df in held.items()}


def bm25(
    query: Sequence[str], texts: Sequence[Sequence[str]], *, k1: float = 0.9, b: float = 0.4
) -> NDArray[np.float32]:
    """Return (n,) float32, BM25 of each text with the query, frequencies taken among the texts."""
    import numpy as np

    weights = rarity(texts)
    mean = max(1.0, sum(map(len, texts)) / max(1, len(texts)))
    scores = np.zeros(len(texts), dtype=np.float32)
    for i, words in enumerate(texts):
        counts = Counter(words)
        length = k1 * (1 - b + b * len(words) / mean)
        scores[i] = sum(
            weights[w] * counts[w] * (k1 + 1) / (counts[w] + length)
            for w in set(query)
            if counts[w]
        )
    return scores


def cover(weights: Mapping[str, float], held: frozenset[str]) -> float:
    """Return which part of the weight of some words is held, 0..1."""
    total = sum(weights.values())
    return sum(weight for word, weight in weights.items() if word in held) / total if total else 0.0
