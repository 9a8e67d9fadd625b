"""How the stored vectors lie: all there, spread out, aligned with the queries, without hubs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.pipeline.evaluate.diagnosis import Diagnosis, at_least, at_most, unmeasured
from foveate.pipeline.evaluate.view import View, best_by_document
from foveate.pipeline.terminal import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foveate.pipeline.types import Floats

SAME_TEXT = 0.98
NEIGHBOURS = 10
REACH = 100
N_SAMPLE = 2000


def missing_vectors(view: View) -> Diagnosis:
    """Count passages that a dense search can't find, because the index holds no vector of them."""
    rule = "green: none is missing; red: more than 1 in 1,000"
    if not view.passages:
        return unmeasured("vectors present", "the index holds no text", rule)
    share = float(1 - view.present.mean())
    n = int((~view.present).sum())
    of = f"{number(len(view.passages), 'passage')} ({share:.1%})"
    says = f"{n} of {of} {'has' if n == 1 else 'have'} no vector"
    return Diagnosis("vectors present", at_most(share, 0.0, 0.001), share, says, rule)


def recall_of_index(view: View) -> Diagnosis:
    """Compare the vector search with an exact one, as the index itself measures it."""
    rule = "green from 0.95, red below 0.90 recall@10; red if the index contradicts itself"
    found = view.engine.check()
    if not found["ok"]:
        return Diagnosis("ANN recall", "red", 0.0, "; ".join(found["problems"][:3]), rule)
    recalls = {role: r for role, r in found["recall_at_10"].items() if r is not None}
    if not recalls:
        return unmeasured("ANN recall", "the index holds no vectors", rule)
    worst = min(recalls.values())
    says = "recall@10 against an exact search: " + ", ".join(
        f"{role} {value:.3f}" for role, value in recalls.items()
    )
    return Diagnosis("ANN recall", at_least(worst, 0.95, 0.90), worst, says, rule)


def uniformity_of_passages(view: View) -> Diagnosis:
    """Say whether vectors use the sphere or have fallen together."""
    rule = "log mean exp(-2 |z - z'|^2): green up to -2.0, red above -1.0"
    vectors = spread_sample(view.vectors[view.present], N_SAMPLE)
    if len(vectors) < 20:
        return unmeasured("uniformity", f"only {number(len(vectors), 'vector')}", rule)
    value = uniformity(vectors)
    says = f"uniformity {value:.2f} over {number(len(vectors), 'passage')} (0 is collapsed)"
    return Diagnosis("uniformity", at_most(value, -2.0, -1.0), value, says, rule)


def alignment_of_judged(view: View) -> Diagnosis:
    """Say how much nearer a query is to its relevant passage than to any other."""
    rule = "distance to the relevant over distance to others, squared: green to 0.75, red above 0.9"
    best, names = best_by_document(view, view.asked)
    places = {name: i for i, name in enumerate(names)}
    near, far = [], []
    for row, query in enumerate(view.query_ids):
        judged = [places[d] for d, s in view.dataset.qrels[query].items() if s > 0 and d in places]
        if judged:
            near.append(2 - 2 * float(best[row, judged].mean()))
            far.append(2 - 2 * float(np.delete(best[row], judged).mean()))
    if len(near) < 10:
        return unmeasured("alignment", "fewer than 10 queries have a judged passage", rule)
    value = float(np.mean(near) / np.mean(far))
    says = f"squared distance {np.mean(near):.2f} to the relevant, {np.mean(far):.2f} to the others"
    return Diagnosis("alignment", at_most(value, 0.75, 0.9), value, says, rule)


def hubness_of_passages(view: View) -> Diagnosis:
    """Say whether few passages are everyone's neighbours (Radovanovic et al., JMLR 2010)."""
    rule = f"skewness of {NEIGHBOURS}-occurrence: green up to 3, red above 6"
    vectors = spread_sample(view.vectors[view.present], 5000)
    if len(vectors) < 10 * NEIGHBOURS:
        return unmeasured("hubness", f"only {number(len(vectors), 'vector')}", rule)
    counts = occurrences(vectors, NEIGHBOURS)
    value = skewness(counts)
    says = (
        f"skewness {value:.2f}; the largest hub is near {int(counts.max())} of "
        f"{number(len(counts), 'passage')}, {float((counts == 0).mean()):.1%} are near none"
    )
    return Diagnosis("hubness", at_most(value, 3.0, 6.0), value, says, rule)


def near_duplicates(view: View) -> Diagnosis:
    """Count passages that another document says too."""
    rule = f"share with a cosine of {SAME_TEXT} to another document: green to 0.05, red above 0.20"
    kept = np.flatnonzero(view.present)
    if len(kept) < 2:
        return unmeasured("near-duplicates", "fewer than two vectors", rule)
    codes = {name: i for i, name in enumerate(dict.fromkeys(view.documents))}
    owner = np.array([codes[view.documents[i]] for i in kept])
    vectors = view.vectors[kept]
    twin = np.zeros(len(kept), dtype=bool)
    for start in range(0, len(kept), 512):
        rows = slice(start, start + 512)
        cosines = vectors[rows] @ vectors.T
        cosines[owner[rows, None] == owner[None, :]] = -1.0
        twin[rows] = cosines.max(axis=1) >= SAME_TEXT
    value = float(twin.mean())
    n = int(twin.sum())
    of = f"{number(len(kept), 'passage')} ({value:.1%})"
    says = f"{n} of {of} {'has' if n == 1 else 'have'} a twin elsewhere"
    return Diagnosis("near-duplicates", at_most(value, 0.05, 0.20), value, says, rule)


def unreached(view: View) -> Diagnosis:
    """Count documents that no query brings among its first hundred."""
    rule = f"share in nobody's first {REACH}, over chance: green up to 0.25, red above 0.60"
    best, names = best_by_document(view, view.asked)
    n, q = len(names), len(view.query_ids)
    k = min(REACH, n)
    by_chance = (1 - k / n) ** q if n else 1.0
    if by_chance > 0.2:
        asked = "1 query is" if q == 1 else f"{q} queries are"
        reason = f"{asked} too few for {number(n, 'document')}: chance misses {by_chance:.0%}"
        return unmeasured("unreached documents", reason, rule)
    reached = np.unique(np.argpartition(-best, k - 1, axis=1)[:, :k])
    share = 1 - len(reached) / n
    value = max(0.0, share - by_chance)
    n_missed = n - len(reached)
    says = (
        f"{n_missed} of {number(n, 'document')} ({share:.1%}) {'is' if n_missed == 1 else 'are'} "
        f"reached by none of {q} {'query' if q == 1 else 'queries'}"
    )
    return Diagnosis("unreached documents", at_most(value, 0.25, 0.60), value, says, rule)


def uniformity(vectors: Floats, t: float = 2.0) -> float:
    """Return log mean exp(-t |z - z'|^2) over distinct pairs (Wang and Isola, ICML 2020).

    vectors: (n, d) float32, L2-normalised.
    """
    cosines = np.asarray(vectors, dtype=np.float64) @ np.asarray(vectors, dtype=np.float64).T
    pairs = cosines[np.triu_indices(len(vectors), 1)]
    return float(np.log(np.exp(-t * (2 - 2 * pairs)).mean()))


def alignment(queries: Floats, positives: Floats, alpha: float = 2.0) -> float:
    """Return the mean of |z - z+|^alpha. Both: (n, d) float32, L2-normalised."""
    return float((np.linalg.norm(queries - positives, axis=1) ** alpha).mean())


def occurrences(vectors: Floats, k: int) -> NDArray[np.int64]:
    """Return (n,) int64: in how many others' k nearest each vector is."""
    counts = np.zeros(len(vectors), dtype=np.int64)
    for start in range(0, len(vectors), 512):
        cosines = vectors[start : start + 512] @ vectors.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -2.0
        near = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        counts += np.bincount(near.ravel(), minlength=len(vectors))
    return counts


def skewness(values: NDArray[Any]) -> float:
    """Return the third standardised moment; 0 when all are equal."""
    centred = np.asarray(values, dtype=np.float64) - np.mean(values)
    spread = centred.std()
    return float((centred**3).mean() / spread**3) if spread > 0 else 0.0


def spread_sample(vectors: Floats, n: int) -> Floats:
    """Take n rows, evenly spread."""
    if len(vectors) <= n:
        return vectors
    rows = np.linspace(0, len(vectors) - 1, n).astype(np.int64)
    return np.ascontiguousarray(vectors[rows])
