"""Question sets with their own documents, as hits ranked by an encoder and by word overlap."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import string
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foveate.pipeline import terms
from foveate.pipeline.types import Hit, Locator, Passage, Source


@dataclass(frozen=True)
class Case:
    """One question with its answers and its documents: (title, text, is_gold)."""

    id: str
    question: str
    answers: tuple[str, ...]
    docs: tuple[tuple[str, str, bool], ...]

    @property
    def yes_no(self):
        return self.answers[0].casefold() in ("yes", "no")

    @property
    def fold(self):
        """0 or 1: what is fitted on one is looked at on the other."""
        return hashlib.sha1(self.id.encode()).digest()[0] % 2


def data_folder(given=None):
    """Return the folder of the evaluation sets, or None."""
    near = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(given or os.environ.get("FOVEATE_EVAL_DATA") or near)
    return folder if folder.is_dir() else None


def load(folder, name, n=None, skip=0):
    """Read a set in the order of a hash of the id: n questions after the first `skip`."""
    cases = []
    with open(Path(folder) / name / "qa.jsonl", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            docs = tuple((d["title"], d["text"], bool(d["is_gold"])) for d in row["docs"])
            cases.append(Case(row["id"], row["question"], tuple(row["answers"]), docs))
    cases.sort(key=lambda c: hashlib.sha1(f"sample:{c.id}".encode()).hexdigest())
    return cases[skip : None if n is None else skip + n]


def bm25(question, texts, k1=1.5, b=0.75):
    """Score texts against a question by BM25 over the texts themselves. Returns (n,) float."""
    bags = [Counter(terms.terms(text)) for text in texts]
    lengths = [sum(bag.values()) for bag in bags]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    scores = np.zeros(len(texts))
    for term in set(terms.terms(question)):
        df = sum(term in bag for bag in bags)
        idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        for i, bag in enumerate(bags):
            tf = bag[term]
            scores[i] += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * lengths[i] / mean))
    return scores


def hits_of(case, encoder, *, gold=True, k=10):
    """Rank a case's documents by reciprocal rank fusion of cosine and BM25.

    Returns (hits, texts by source id, ids of the gold sources).
    """
    docs = [d for d in case.docs if (gold or not d[2]) and d[1].strip()]
    if not docs:
        return [], {}, set()
    joined = [f"{title}\n{text}" for title, text, _ in docs]
    cosines = encoder.encode(joined) @ encoder.encode_queries([case.question])[0]
    fused = np.zeros(len(docs))
    for scores in (cosines, bm25(case.question, joined)):
        ranks = np.empty(len(docs))
        ranks[np.argsort(-scores, kind="stable")] = np.arange(len(docs))
        fused += 1 / (60 + 1 + ranks)
    hits, texts, golds = [], {}, set()
    for number, i in enumerate(np.argsort(-fused, kind="stable")[:k]):
        title, text, is_gold = docs[i]
        digest = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:32]
        source = Source(
            digest, (f"/data/{title}.txt",), "text/plain", "text", len(text), 0.0, title=title
        )
        passage = Passage(
            number + 1, 0, source, "text", text, Locator(span=(0, len(text))), context=title
        )
        texts[digest] = text
        if is_gold:
            golds.add(digest)
        score = float(fused[i] * 61 / 2)
        hits.append(Hit(passage, score, {"dense": float(cosines[i])}))
    return hits, texts, golds


def normal(text):
    """Fold case, drop punctuation and articles, as question answering sets are compared."""
    text = "".join(" " if c in string.punctuation + "\u2013\u2019" else c for c in text.casefold())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def contains(text, answers):
    """Whether any answer stands in the text as whole words."""
    held = f" {normal(text)} "
    return any(normal(a) and f" {normal(a)} " in held for a in answers)
