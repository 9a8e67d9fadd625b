"""The trace of an answer: every stage with its time and scores, as one JSON object."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.cite import Cited
    from foveate.pipeline.completion import Completion
    from foveate.pipeline.evidence import Evidence
    from foveate.pipeline.types import Context, Hit


class Stages:
    """Rows of {stage, seconds, ...}, in the order in which the stages ended."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def timed(self, stage: str, **told: Any) -> Iterator[dict[str, Any]]:
        """Time a block; what it puts into the yielded row is kept with the time."""
        row: dict[str, Any] = {"stage": stage, **told}
        began = time.perf_counter()
        try:
            yield row
        finally:
            row["seconds"] = round(time.perf_counter() - began, 4)
            self.rows.append(row)


def trace_evidence(evidence: Evidence, chosen: Sequence[int]) -> dict[str, Any]:
    return {
        "asks_for": evidence.question.kind,
        "sentences": len(evidence.sentences),
        "notes": list(evidence.notes),
        "chosen": [
            {
                "label": evidence.sentences[i].passage.label,
                "span": list(evidence.sentences[i].span),
                "score": round(evidence.sentences[i].score, 4),
                **{k: round(v, 4) for k, v in evidence.sentences[i].parts.items()},
            }
            for i in chosen
        ],
    }


def trace_hits(hits: Sequence[Hit], evidence: Evidence) -> list[dict[str, Any]]:
    """Show every hit with its score at every stage and its best sentence's."""
    best: dict[int, float] = {}
    for sentence in evidence.sentences:
        best[sentence.hit] = max(best.get(sentence.hit, 0.0), sentence.score)
    return [
        {
            "label": hit.passage.label,
            "score": hit.score,
            "scores": dict(hit.scores),
            "evidence": round(best[i], 4) if i in best else None,
        }
        for i, hit in enumerate(hits)
    ]


def trace_generation(name: str, written: Completion) -> dict[str, Any]:
    usage = written.usage
    return {
        "generator": name,
        "stopped": written.stopped,
        "seconds": round(written.seconds, 3),
        "text": written.text,
        "detail": written.detail,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
    }


def trace_context(context: Context) -> dict[str, Any]:
    """Show what a compressor kept of each hit, and what it says of itself."""
    return {
        "tokens": context.n_tokens,
        "kept": [
            {
                "label": kept.hit.passage.label,
                "spans": [list(span) for span in kept.spans],
                "score": round(kept.score, 4),
            }
            for kept in context.kept
        ],
        **{str(key): value for key, value in context.trace.items()},
    }


def trace_cited(cited: Cited, evidence: Evidence) -> dict[str, Any]:
    """Show each sentence's alignment, and who took out which sentence and why."""
    return {
        "markers_removed": cited.removed,
        "dropped": [
            {"sentence": d.sentence, "by": d.by, "reason": d.reason} for d in cited.dropped
        ],
        "supports": [round(s, 4) for s in cited.supports],
        "alignments": [
            {
                "sentence": claim.text,
                "support": round(claim.support, 4),
                "parts": {name: round(value, 4) for name, value in claim.parts.items()},
                "missing": sorted(claim.missing),
                "evidence": [
                    {
                        "label": evidence.sentences[i].passage.label,
                        "span": list(evidence.sentences[i].span),
                        "quote": evidence.sentences[i].text,
                    }
                    for i in claim.evidence
                ],
            }
            for claim in cited.claims
        ],
    }
