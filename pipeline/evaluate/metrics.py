"""The measures: rankings by ir-measures, answers and citations here, one value a query."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from foveate.pipeline.errors import MissingExtra

RANKING = ("nDCG@10", "R@1", "R@5", "R@10", "R@100", "AP", "RR@10")
GOLD_CUTS = (1, 2, 5, 10)
ARTICLES = frozenset({"a", "an", "the"})

Run = Mapping[str, Sequence[str]]
"""{query id: document ids, best first}"""
Qrels = Mapping[str, Mapping[str, int]]
PerQuery = dict[str, dict[str, float]]
"""{measure: {query id: value}}"""


def ranking(qrels: Qrels, run: Run, measures: Sequence[str] = RANKING) -> PerQuery:
    """Measure a run by ir-measures; a judged query that the run lacks counts as 0.

    Raises:
        MissingExtra: if ir-measures is not installed.
    """
    measure = _ir_measures()
    wanted = {measure.parse_measure(name): name for name in measures}
    found: PerQuery = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    # the rank decides: a score that falls with it leaves no ties to be broken by name
    scored = {q: {d: float(-i) for i, d in enumerate(docs)} for q, docs in run.items() if docs}
    judged = {q: dict(docs) for q, docs in qrels.items()}
    for value in measure.iter_calc(list(wanted), judged, scored):
        found[wanted[value.measure]][value.query_id] = float(value.value)
    return found


def means(per_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average each measure over its queries; NaN for none."""
    return {
        name: sum(values.values()) / len(values) if values else float("nan")
        for name, values in per_query.items()
    }


def gold_recall(ranked: Sequence[Any], gold: Set[Any], k: int) -> float:
    """Return the share of gold documents among the first k, out of at most k."""
    if not gold:
        return 0.0
    return len(gold & set(ranked[:k])) / min(k, len(gold))


def normalise(text: str) -> list[str]:
    """Return the words of a text: lower case, no punctuation, no articles, no accents.

    An ideograph is a word of its own, since Chinese and Japanese put no spaces between words.
    """
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    words = re.findall(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u9fff]+", plain)
    return [w for w in words if w not in ARTICLES]


def contains(text: str, answer: str) -> bool:
    """Say whether the answer's words stand in the text, whole and in a row."""
    words, wanted = normalise(text), normalise(answer)
    n = len(wanted)
    return bool(n) and any(words[i : i + n] == wanted for i in range(len(words) - n + 1))


def containment(text: str, answers: Sequence[str], required: Sequence[Sequence[str]] = ()) -> float:
    """Return 1 if any answer is contained; with groups, the share of groups that are."""
    if required:
        return sum(any(contains(text, a) for a in group) for group in required) / len(required)
    return float(any(contains(text, a) for a in answers))


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Return the best F1 over words (SQuAD, Rajpurkar et al. 2016) against any answer."""
    return max((_f1(normalise(text), normalise(a)) for a in answers), default=0.0)


def says(text: str) -> str | None:
    """Return 'yes' or 'no' if the answer's first word is one, else None."""
    words = normalise(text)
    return words[0] if words and words[0] in ("yes", "no") else None


def strip_markers(text: str) -> str:
    """Remove citation markers such as [2]."""
    return re.sub(r"\s*\[\d+\]", "", text)


def citations(cited: Iterable[Any], gold: Set[Any]) -> tuple[float, float]:
    """Return (precision, recall) of the cited documents against the gold ones.

    precision: share of cited documents that are gold, 0 when nothing is cited. recall: share of
    gold documents that are cited.
    """
    found = set(cited)
    right = len(found & gold)
    return (right / len(found) if found else 0.0, right / len(gold) if gold else 0.0)


def _f1(words: Sequence[str], wanted: Sequence[str]) -> float:
    shared = sum((Counter(words) & Counter(wanted)).values())
    if not shared:
        return float(list(words) == list(wanted))
    precision, recall = shared / len(words), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtra("foveate eval", "ir-measures", "pip install 'foveate[eval]'") from error
    return ir_measures
