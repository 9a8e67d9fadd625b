"""Does a small edit that changes the meaning change what is found: negation, number, entity?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from foveate.pipeline.evaluate.diagnosis import Diagnosis, at_least, unmeasured
from foveate.pipeline.terms import STOP

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder

RULE = "share of pairs in which both queries prefer their own text: green from 0.80, red below 0.60"
LEAST_PAIRS = 10
VERBS = re.compile(
    r"\b(is|are|was|were|can|could|will|would|should|may|might|must|has|have|had|does|did)\b"
)
NUMBER = re.compile(r"\b\d{1,4}\b")
ENTITY = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*\b")


def contrast_consistency(encoder: Encoder, sentences: Sequence[str], *, n: int = 40) -> Diagnosis:
    """Make twins of sentences that differ in one word, and ask for each of them in short.

    A pair is consistent when each query is closer to its own text than to the twin, as in
    minimally edited question pairs (arXiv 2305.14441). Chance is 0.25.
    """
    name = "contrast consistency"
    shares: dict[str, float] = {}
    for kind, edit in edits(sentences).items():
        pairs = []
        for sentence in sentences:
            twin = edit(sentence)
            if twin is not None and twin != sentence:
                pairs.append((sentence, twin))
            if len(pairs) == n:
                break
        if len(pairs) >= LEAST_PAIRS:
            shares[kind] = consistent(encoder, pairs)
    if not shares:
        return unmeasured(name, f"fewer than {LEAST_PAIRS} sentences could be edited", RULE)
    worst = min(shares, key=lambda kind: shares[kind])
    says = ", ".join(f"{kind} {share:.2f}" for kind, share in shares.items())
    state = at_least(shares[worst], 0.80, 0.60)
    return Diagnosis(name, state, shares[worst], says, RULE, {"consistent": list(shares.items())})


def consistent(encoder: Encoder, pairs: Sequence[tuple[str, str]]) -> float:
    """Return the share of pairs in which each shortened text prefers its own full text."""
    texts = [text for pair in pairs for text in pair]
    stored = encoder.encode(texts)
    asked = encoder.encode_queries([shorten(text) for text in texts])
    n_right = 0
    for i in range(0, len(texts), 2):
        block = asked[i : i + 2] @ stored[i : i + 2].T
        n_right += bool(block[0, 0] > block[0, 1] and block[1, 1] > block[1, 0])
    return n_right / len(pairs)


def edits(sentences: Sequence[str]) -> dict[str, Callable[[str], str | None]]:
    """Return {kind: edit}; an edit returns None for a sentence that it can't change."""
    names = list(dict.fromkeys(m.group() for s in sentences for m in ENTITY.finditer(s)))
    return {"negation": negate, "number": renumber, "entity": lambda s: rename(s, names)}


def negate(sentence: str) -> str | None:
    """Put 'not' behind the first auxiliary, or take it away."""
    if " not " in sentence:
        return sentence.replace(" not ", " ", 1)
    match = VERBS.search(sentence)
    return f"{sentence[: match.end()]} not{sentence[match.end() :]}" if match else None


def renumber(sentence: str) -> str | None:
    """Change the first number into another of the same length."""
    match = NUMBER.search(sentence)
    if match is None:
        return None
    digits = match.group()
    other = "".join(str((int(d) + 3) % 10 or 4) for d in digits)
    return sentence[: match.start()] + other + sentence[match.end() :]


def rename(sentence: str, names: Sequence[str]) -> str | None:
    """Put another name of the corpus in the place of the first one."""
    match = ENTITY.search(sentence)
    if match is None or len(names) < 2:
        return None
    other = names[(names.index(match.group()) + len(names) // 2) % len(names)]
    return sentence[: match.start()] + other + sentence[match.end() :]


def shorten(sentence: str) -> str:
    """Drop stop words, but never a negation: a query that says what the sentence says."""
    kept = [w for w in sentence.split() if w.lower().strip(".,;:") not in STOP or w == "not"]
    return " ".join(kept) or sentence
