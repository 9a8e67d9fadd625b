"""From a query to hits: candidates of every kind, fused by rank, collapsed and cut to k."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from foveate.pipeline.errors import QueryError, SpaceMismatch
from foveate.pipeline.types import Hit, Passage

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder
    from foveate.pipeline.query import Query
    from foveate.pipeline.types import Floats, Ints, MultiVectors

TEXTS = frozenset({"text", "table"})
PICTURES = frozenset({"image", "page"})
MOST_COMPARED = 1000  # of the best hits each is compared with all others; further down words decide


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The `[search]` table.

    depth: candidates taken from each list. fusion: 'rrf' adds 1 / (rank_constant + rank)
    (Cormack, Clarke and Buettcher, SIGIR 2009); 'score' adds each list's scores after they are
    scaled to a mean of 0 and a deviation of 1 over its candidates. dense_weight: the share of the
    dense list against the words list. picture_weight: the share of pictures against texts; just
    below a half puts the text first where the two stand at the same rank. picture_query_weight:
    the same when a picture is asked. picture_text_weight: of the words, when a picture and words
    are asked together.
    same_text, same_picture: cosine from which two hits are near-duplicates.
    """

    depth: int = 200
    fusion: Literal["rrf", "score"] = "score"
    rank_constant: int = 60
    dense_weight: float = 0.5
    picture_weight: float = 0.497
    picture_query_weight: float = 0.67
    picture_text_weight: float = 0.5
    same_text: float = 0.98
    same_picture: float = 0.995


@dataclass(slots=True)
class Candidates:
    """Ranked lists by stage, and what was fused from them.

    lists: {stage: {passage id: that stage's score}}, each in descending order.
    """

    lists: dict[str, dict[int, float]] = field(default_factory=dict)

    def put(self, stage: str, scores: Any, ids: Any) -> None:
        self.lists[stage] = {
            int(i): float(s) for s, i in zip(scores, ids, strict=True) if int(i) >= 0
        }

    def put_pictures(self, index: Any, asked: Floats, ids: Ints) -> None:
        """Compare what a picture or the words found with both: asked (2, d), ids (2, k)."""
        import numpy as np

        every = np.unique(ids[ids >= 0])
        cosines = asked @ np.nan_to_num(index.vectors(every, "image")).T
        for stage, scores in zip(("picture", "picture_text"), cosines, strict=True):
            order = np.lexsort((every, -scores))
            self.put(stage, scores[order], every[order])


def search(
    index: Any, encoders: Mapping[str, Encoder], query: Query, options: SearchOptions
) -> list[Hit]:
    """Return at most k hits, best first; fewer when fewer match.

    Raises:
        QueryError: for a filter that cannot be read, or a picture where none can be compared.
        SpaceMismatch: if an encoder is not the one that the index was built with.
    """
    for role, encoder in encoders.items():
        check_tower(index, role, encoder)
    if query.image is not None and "image" not in encoders:
        raise QueryError("this index has no encoder for pictures: ask it with words only")
    vectors: dict[str, Any] = {}
    if query.mode != "words":
        vectors = query_vectors(encoders, query, options)
    if query.mode == "late":
        vectors["tokens"] = query_tokens(encoders, query)
    depth = max(options.depth, 4 * query.k)
    while True:
        found = retrieve(index, query, vectors, depth)
        fused = fuse(found.lists, options, by_picture=query.image is not None)
        hits = select(index, query, fused, found, options)
        exhausted = all(len(some) < depth for some in found.lists.values())
        if len(hits) >= query.k or exhausted:
            return hits[: query.k]
        depth *= 4


def retrieve(index: Any, query: Query, vectors: Mapping[str, Any], depth: int) -> Candidates:
    """Ask every list that the query and the wanted modalities allow for its best candidates."""
    found = Candidates()
    texts, pictures = query.modalities & TEXTS, query.modalities & PICTURES
    chosen: dict[str, Any] = {"where": query.where, "modalities": query.modalities}
    if query.mode == "late":
        near = {"text": vectors["text"]} if texts and "text" in vectors else {}
        found.put(
            "late",
            *index.search_tokens(vectors["tokens"], depth, text=query.text, vectors=near, **chosen),
        )
        return found
    if query.text and query.mode != "dense":
        found.put("words", *index.search_words(query.text, depth, **chosen))
    for stage, role, wanted in (("dense", "text", texts), ("picture", "image", pictures)):
        if role in vectors and wanted:
            scores, ids = index.search_vectors(
                role, vectors[role], depth, where=query.where, modalities=wanted
            )
            if len(ids) == 1:
                found.put(stage, scores[0], ids[0])
            else:
                found.put_pictures(index, vectors[role], ids)
    return found


def query_vectors(
    encoders: Mapping[str, Encoder], query: Query, options: SearchOptions
) -> dict[str, Floats]:
    """Return {role: (1, d) float32}: what is asked, in each space that can be compared with it.

    Encoders of one space share the query's vector. A picture asked with words gives (2, d) for
    pictures, itself and the words, since cosines of the two kinds do not add up; for texts, which
    it reaches only where the two share a space, their weighted sum.
    """
    import numpy as np

    text, image = encoders["text"], encoders.get("image")
    joint = image is not None and image.space == text.space
    vectors = {}
    if query.text and (query.image is None or joint):
        vectors["text"] = text.encode_queries([query.text])
    if image is None:
        return vectors
    if query.text:
        vectors["image"] = vectors["text"] if joint else image.encode_queries([query.text])
    if query.image is not None:
        picture = image.encode_queries([query.image])
        mixed = picture
        if query.text:
            w = options.picture_text_weight
            mixed = (1 - w) * picture + w * vectors["image"]
            mixed = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
            picture = np.concatenate([picture, vectors["image"]])
        vectors["image"] = np.ascontiguousarray(picture, dtype=np.float32)
        if joint:
            vectors["text"] = mixed.astype(np.float32)
    return vectors


def query_tokens(encoders: Mapping[str, Any], query: Query) -> MultiVectors:
    """Return one vector a token of what is asked.

    Raises:
        SpaceMismatch: if the index keeps none.
    """
    if "tokens" not in encoders:
        raise SpaceMismatch(
            "the index has no token vectors for mode 'late': build a new one with "
            '[encoders.tokens] use = "late-minilm"'
        )
    found: MultiVectors = encoders["tokens"].encode_queries([query.text])
    return found


def fuse(
    lists: Mapping[str, Mapping[int, float]], options: SearchOptions, *, by_picture: bool = False
) -> dict[int, float]:
    """Return {passage id: fused score in 0..1}, best first, ties by id.

    Texts are fused from their dense and their words list. Pictures that are asked by a picture
    and words are fused from their likeness to either. The two kinds are then merged by rank, since
    their cosines do not compare.
    """
    texts = {k: v for k, v in lists.items() if k in ("dense", "words", "late") and v}
    pictures = lists.get("picture", {})
    if "picture_text" in lists:
        asked = {"picture": pictures, "picture_text": lists["picture_text"]}
        w = options.picture_text_weight
        pictures = scores_mixed(asked, {"picture": 1 - w, "picture_text": w})
    weights = {"dense": options.dense_weight, "words": 1 - options.dense_weight, "late": 1.0}
    if options.fusion == "score":
        fused = scores_mixed(texts, weights)
    else:
        fused = ranks_mixed(texts, weights, options.rank_constant)
    if not pictures:
        return fused
    if not texts:
        return ranked(ranks_mixed({"picture": pictures}, {"picture": 1.0}, options.rank_constant))
    w = options.picture_query_weight if by_picture else options.picture_weight
    # a page with words stands in both lists, and counts where it does better: by the sum any such
    # page would stand above what the words find
    best: dict[int, float] = {}
    for scores, weight in ((fused, 1 - w), (pictures, w)):
        for rank, passage_id in enumerate(scores, start=1):
            share = weight * (options.rank_constant + 1) / (options.rank_constant + rank)
            best[passage_id] = max(best.get(passage_id, 0.0), share)
    return ranked(best)


def ranked(scores: Mapping[int, float]) -> dict[int, float]:
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


def ranks_mixed(
    lists: Mapping[str, Mapping[int, float]], weights: Mapping[str, float], constant: int
) -> dict[int, float]:
    """Reciprocal rank fusion, divided by its largest possible value: first in every list is 1."""
    total = sum(weights[name] for name in lists) / (constant + 1)
    fused: dict[int, float] = {}
    for name, scores in lists.items():
        for rank, passage_id in enumerate(scores, start=1):
            fused[passage_id] = fused.get(passage_id, 0.0) + weights[name] / (constant + rank)
    return ranked({i: s / total for i, s in fused.items()}) if total > 0 else ranked(fused)


def scores_mixed(
    lists: Mapping[str, Mapping[int, float]], weights: Mapping[str, float]
) -> dict[int, float]:
    """Add standardised scores; a passage that a list lacks gets that list's lowest score.

    The sum is mapped to 0..1 by the logistic function.
    """
    totals = dict.fromkeys((i for scores in lists.values() for i in scores), 0.0)
    for name, scores in lists.items():
        if not scores:
            continue
        mean = sum(scores.values()) / len(scores)
        spread = math.sqrt(sum((s - mean) ** 2 for s in scores.values()) / len(scores)) or 1.0
        low, scale = min(scores.values()), weights[name] / spread
        for passage_id in totals:
            totals[passage_id] += scale * (scores.get(passage_id, low) - mean)
    # a list of equal scores has a spread of rounding errors only
    return ranked({i: 1 / (1 + math.exp(-max(-50.0, min(50.0, t)))) for i, t in totals.items()})


def select(
    index: Any,
    query: Query,
    fused: Mapping[int, float],
    found: Candidates,
    options: SearchOptions,
) -> list[Hit]:
    """Walk down the fused list, folding duplicates and grouping, until k hits stand."""
    ranks = {
        stage: {i: r for r, i in enumerate(scores, start=1)}
        for stage, scores in found.lists.items()
    }
    hits: list[Hit] = []
    sources: set[str] = set()
    order = list(fused)
    step = max(2 * query.k, 20)
    for start in range(0, len(order), step):
        ids = order[start : start + step]
        passages = index.passages(ids)
        for passage in passages:
            if query.group and passage.source.id in sources:
                continue
            sources.add(passage.source.id)
            hits.append(
                Hit(
                    passage,
                    fused[passage.id],
                    {
                        s: scores[passage.id]
                        for s, scores in found.lists.items()
                        if passage.id in scores
                    },
                    {s: r[passage.id] for s, r in ranks.items() if passage.id in r},
                )
            )
        if query.collapse and (len(hits) >= query.k or start + step >= len(order)):
            hits = collapse(index, hits, options)
        if len(hits) >= query.k:
            break
    return hits


def collapse(index: Any, hits: Sequence[Hit], options: SearchOptions) -> list[Hit]:
    """Fold each hit into a better one that says the same; `duplicates` names the folded ids.

    Vectors are compared among the first `MOST_COMPARED` hits, words among all.
    """
    twins: dict[int, int] = {}
    for role, modalities, limit in (
        ("text", TEXTS, options.same_text),
        ("image", PICTURES, options.same_picture),
    ):
        some = [h.passage for h in hits if h.passage.modality in modalities]
        if len(some) > 1 and role in index.towers:
            near = [p.id for p in some[:MOST_COMPARED]]
            twins |= _twins(some, index.vectors(near, role), limit)
    folded: dict[int, list[int]] = {}
    for hit in hits:
        if hit.passage.id in twins:
            folded.setdefault(twins[hit.passage.id], []).extend([hit.passage.id, *hit.duplicates])
    return [
        dataclasses.replace(h, duplicates=(*h.duplicates, *folded.get(h.passage.id, ())))
        for h in hits
        if h.passage.id not in twins
    ]


def _twins(passages: Sequence[Passage], vectors: Floats, limit: float) -> dict[int, int]:
    """Return {id of a passage: id of the first one that it repeats}.

    vectors: (n, d) float32, of the first n passages; a row of NaN repeats none.
    """
    import numpy as np

    clean = np.nan_to_num(vectors)
    alike = clean @ clean.T >= limit
    words = [_same_words(passage) for passage in passages]
    twins: dict[int, int] = {}
    first: dict[str, int] = {}
    for j, passage in enumerate(passages):
        same = first.get(words[j]) if passage.modality in TEXTS else None
        row = alike[j, :j] if j < len(alike) else ()
        near = [i for i in np.flatnonzero(row).tolist() if passages[i].id not in twins]
        if same is not None:
            near.append(same)
        if near:
            twins[passage.id] = passages[min(near)].id
        else:
            first.setdefault(words[j], j)
    return twins


def _same_words(passage: Passage) -> str:
    return " ".join(passage.text.casefold().split())


def check_tower(index: Any, role: str, encoder: Encoder) -> None:
    """Compare the tower an index was built with and the one at hand.

    Raises:
        SpaceMismatch: naming both.
    """
    stored = index.towers.get(role)
    if stored is None:
        raise SpaceMismatch(
            f"the index was built without a tower for {role!r}, but {encoder.tower!r} is "
            "configured: leave it out, or build a new index with it"
        )
    if stored.tower != encoder.tower:
        raise SpaceMismatch(
            f"the index was built with {role} tower {stored.tower!r}, but {encoder.tower!r} is "
            "configured: use the former, or build a new index with the latter"
        )
