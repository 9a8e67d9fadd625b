"""Does it matter where the evidence stands: in a passage (the encoder), in a document (all)?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foveate.pipeline.evaluate.diagnosis import Diagnosis, at_most, unmeasured

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder

PLACES = 4
RULE = "position sensitivity (1 - worst / best nDCG@10): green up to 0.10, red above 0.30"
LEAST_IN_BUCKET = 30


def psi(by_place: Mapping[str, float]) -> float:
    """Return the position sensitivity index, 1 - min / max (PosIR, arXiv 2601.08363)."""
    best = max(by_place.values(), default=0.0)
    return 1 - min(by_place.values()) / best if best > 0 else 0.0


def position_in_document(by_place: Mapping[str, Sequence[float]]) -> Diagnosis:
    """Grade nDCG@10 by where in the document the evidence stands.

    by_place: {place: nDCG@10 of its queries}.
    """
    name = "position in a document"
    enough = {p: v for p, v in by_place.items() if len(v) >= LEAST_IN_BUCKET}
    if len(enough) < 2:
        reason = f"fewer than two places have {LEAST_IN_BUCKET} queries"
        return unmeasured(name, reason, RULE)
    return grade(name, {place: float(np.mean(v)) for place, v in enough.items()})


def position_in_passage(
    encoder: Encoder, texts: Sequence[str], *, n: int = 100, n_tokens: int = 200
) -> Diagnosis:
    """Hide a sentence at each place of a passage and ask for it.

    texts: passages; sentences are taken from them, both those that are hidden and the filler
    around them. n: how many are hidden. n_tokens: of a passage, at most the encoder's window.
    """
    name = "position in a passage"
    window = encoder.window_tokens or n_tokens
    hidden, filler = material(texts, n)
    if len(hidden) < 20 or len(filler) < 20:
        return unmeasured(name, "fewer than 40 sentences to build passages from", RULE)
    tokens = [len(encoder.token_spans(s)) for s in filler]
    asked = encoder.encode_queries(hidden)
    by_place = {}
    for place in range(PLACES):
        built = [
            passage(i, sentence, filler, tokens, place, min(n_tokens, window - 8))
            for i, sentence in enumerate(hidden)
        ]
        cosines = asked @ encoder.encode(built).T
        own = np.diag(cosines)[:, None]
        # a tie is lost, so that vectors that are all alike find nothing
        ranks = (cosines >= own).sum(axis=1)
        gains = np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0.0)
        by_place[f"{place + 1}/{PLACES}"] = float(gains.mean())
    return grade(name, by_place)


def grade(name: str, by_place: Mapping[str, float]) -> Diagnosis:
    value = psi(by_place)
    mean = float(np.mean(list(by_place.values())))
    worst = min(by_place, key=lambda p: by_place[p])
    says = f"PSI {value:.2f}; nDCG@10 {mean:.3f} on average, {by_place[worst]:.3f} at {worst}"
    series = {"nDCG@10": list(by_place.items())}
    return Diagnosis(name, at_most(value, 0.10, 0.30), value, says, RULE, series)


def material(texts: Sequence[str], n: int) -> tuple[list[str], list[str]]:
    """Return sentences to hide, one a text, and sentences of other texts to fill with."""
    hidden: list[str] = []
    filler: list[str] = []
    for text in texts:
        fit = pieces(text)
        if not fit:
            continue
        if len(hidden) < n and 4 * len(hidden) <= len(filler):
            hidden.append(max(fit, key=len))
        else:
            filler.extend(fit[:6])
        if len(hidden) >= n and len(filler) >= 8 * n:
            break
    known = set(hidden)
    return list(dict.fromkeys(hidden)), [s for s in filler if s not in known]


def pieces(text: str, n_words: int = 20) -> list[str]:
    """Return a text's sentences of 6 to 30 words; a longer one is cut into pieces."""
    from foveate.pipeline.ingest.sentences import sentences

    found = []
    for start, end in sentences(text):
        words = text[start:end].split()
        if len(words) <= 30:
            found.append(words)
        else:
            found.extend(words[i : i + n_words] for i in range(0, len(words), n_words))
    return [" ".join(words) for words in found if len(words) >= 6]


def passage(
    number: int,
    sentence: str,
    filler: Sequence[str],
    tokens: Sequence[int],
    place: int,
    n_tokens: int,
) -> str:
    """Put a sentence at a place of a passage; the filler is the same for every place."""
    chosen: list[str] = []
    length, at = 0, number * 7
    while length < n_tokens - 30 and len(chosen) < 40:
        chosen.append(filler[at % len(filler)])
        length += tokens[at % len(filler)]
        at += 1
    cut = round(len(chosen) * place / (PLACES - 1))
    return " ".join([*chosen[:cut], sentence, *chosen[cut:]])
