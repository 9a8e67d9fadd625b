"""Do the judgments fit the texts? Shuffled or shifted labels show here before they cost a week."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from foveate.pipeline import terms
from foveate.pipeline.evaluate.diagnosis import Diagnosis, at_least, unmeasured
from foveate.pipeline.evaluate.view import View, best_by_document

if TYPE_CHECKING:
    from foveate.pipeline.evaluate.sets import Retrieval

N_OTHERS = 50
RULE = "chance that a judged document beats a random one: green from 0.85, red below 0.70"


def judgments_fit(view: View) -> Diagnosis:
    """Ask how often a query is closer to a document judged relevant than to a random one.

    Closeness is taken by shared words and by vectors, and the better of the two counts: a data set
    across languages shares no words, and a weak encoder is no fault of the labels.
    """
    by_words = auc_by_words(view.dataset, view.query_ids)
    best, names = best_by_document(view, view.asked)
    places = {name: i for i, name in enumerate(names)}
    rng = np.random.default_rng(0)
    shares = []
    for row, query in enumerate(view.query_ids):
        judged = [places[d] for d, s in view.dataset.qrels[query].items() if s > 0 and d in places]
        others = np.setdiff1d(rng.integers(0, len(names), N_OTHERS), judged)
        if judged and len(others):
            shares.append(beats(best[row, judged], best[row, others]))
    by_vectors = float(np.mean(shares)) if shares else 0.0
    if not shares and by_words is None:
        return unmeasured("judgments", "no judged document is in the index", RULE)
    value = max(by_vectors, by_words or 0.0)
    says = f"{by_words or 0.0:.2f} by shared words, {by_vectors:.2f} by vectors (0.5 is chance)"
    return Diagnosis("judgments", at_least(value, 0.85, 0.70), value, says, RULE)


def auc_by_words(dataset: Retrieval, query_ids: list[str]) -> float | None:
    """Return how often a judged document shares rarer words with its query than a random one."""
    words = {r.id: set(stems(r.joined)) for r in dataset.corpus}
    held = Counter(w for some in words.values() for w in some)
    ids = list(words)
    rng = np.random.default_rng(0)
    shares = []
    for query in query_ids:
        asked = set(stems(dataset.queries[query]))

        def overlap(doc: str, asked: set[str] = asked) -> float:
            return float(sum(np.log(1 + len(ids) / held[w]) for w in asked & words[doc]))

        judged = [d for d, s in dataset.qrels[query].items() if s > 0 and d in words]
        others = [ids[i] for i in rng.integers(0, len(ids), N_OTHERS) if ids[i] not in judged]
        if judged and others and asked:
            shares.append(
                beats(
                    np.array([overlap(d) for d in judged]), np.array([overlap(d) for d in others])
                )
            )
    return float(np.mean(shares)) if shares else None


def beats(judged: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the ROC curve: ties count half."""
    higher = (judged[:, None] > others[None, :]).mean()
    equal = (judged[:, None] == others[None, :]).mean()
    return float(higher + equal / 2)


def stems(text: str) -> list[str]:
    return [terms.stem(w) for w in terms.words(text) if w not in terms.STOP]
