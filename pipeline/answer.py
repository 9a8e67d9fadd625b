"""Answer a question from hits: evidence, prompt, generate, cite, hold back. Top to bottom."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline import prompt as prompts
from foveate.pipeline.answerable import THRESHOLD, Answerable, judge
from foveate.pipeline.cite import Boxes, Cited, cite, display, quote
from foveate.pipeline.completion import Completion, complete
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.evidence import Evidence, gather, select
from foveate.pipeline.types import Answer, Citation

if TYPE_CHECKING:
    from foveate.pipeline.protocols import Encoder, Generator
    from foveate.pipeline.types import Hit

NOT_FOUND = "Not found in these documents."
REFUSES = re.compile(
    r"^\W*no answer\b|\bnot (?:found|provided|mentioned|stated|specified|given)\b"
    r"|\bdo(?:es)? not (?:hold|contain|mention|say|state|provide|specify)\b",
    re.IGNORECASE,
)
PICTURE = re.compile(
    r"\b(?:picture|photo|photograph|image|diagram|figure|drawing|chart|screenshot|illustration|"
    r"scan|sketch|plot|logo)s?\b",
    re.IGNORECASE,
)
LONGEST_QUESTION = 4000  # code points that are compared; a longer one is cut, and that is traced


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The `[generate]` table, without the generator's own options.

    candidates: hits that are looked at. extractive: quote sentences even if there is a generator.
    n_sentences: quoted at most. n_passages, budget_tokens: shown to the reader at most.
    max_tokens, timeout_s: of the generated answer.
    least_support: of a generated sentence, 0..1. keep_unsupported: mark such a sentence instead of
    dropping it. threshold: answerability, 0..1, under which nothing is answered.
    """

    candidates: int = 10
    extractive: bool = False
    n_sentences: int = 2
    n_passages: int = 4
    budget_tokens: int = 1200
    max_tokens: int = 64
    timeout_s: float = 60.0
    least_support: float = 0.45
    keep_unsupported: bool = False
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        least = {
            "candidates": 1,
            "n_sentences": 1,
            "n_passages": 1,
            "budget_tokens": 16,
            "max_tokens": 1,
        }
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ConfigError(
                    f"expected [generate] {name} >= {value}, got {getattr(self, name)!r}"
                )
        if not 0 <= self.threshold <= 1 or not 0 <= self.least_support <= 1:
            raise ConfigError("expected [generate] threshold and least_support within 0..1")
        if not self.timeout_s > 0:
            raise ConfigError(f"expected [generate] timeout_s > 0, got {self.timeout_s!r}")


def answer(
    question: str,
    hits: Sequence[Hit],
    *,
    texts: Callable[[str], str],
    encoder: Encoder | None = None,
    generator: Generator | None = None,
    options: AnswerOptions | None = None,
    boxes: Boxes | None = None,
) -> Answer:
    """Answer a question from the hits alone; every sentence carries the span it comes from.

    texts: canonical text of a source by its id. boxes: (page, box) pairs of a span of a source.
    Whatever the generator does, the hits come back, and what it failed at stands in the trace.
    """
    options = options or AnswerOptions()
    trace: dict[str, Any] = {}
    asked = question[:LONGEST_QUESTION]
    if len(question) > len(asked):
        trace["question_cut_to"] = LONGEST_QUESTION

    evidence = gather(asked, hits, texts=texts, encoder=encoder)
    chosen = select(evidence, options.n_sentences)
    trace["evidence"] = trace_evidence(evidence, chosen)

    cited = generate_cited(evidence, encoder, generator, options, boxes, trace)
    if cited is None:
        trace["mode"] = "extractive"
        cited = quote(chosen, evidence, boxes)

    verdict = judge(evidence, chosen)
    trace["answerable"] = {
        "score": round(verdict.score, 4),
        "threshold": options.threshold,
        **{name: round(value, 4) for name, value in verdict.features.items()},
    }
    if verdict.score < options.threshold or not cited.citations:
        trace["held_back"] = {"text": cited.text, "by": "answerable", "reason": verdict.reason}
        cited = Cited("", ())
    cited = add_picture(asked, hits, cited, boxes)

    trace["hits"] = trace_hits(hits, evidence)
    text = cited.text or refusal(evidence, hits, verdict, trace)
    return Answer(question, text, cited.citations, bool(cited.citations), tuple(hits), trace)


def generate_cited(
    evidence: Evidence,
    encoder: Encoder | None,
    generator: Generator | None,
    options: AnswerOptions,
    boxes: Boxes | None,
    trace: dict[str, Any],
) -> Cited | None:
    """Let the reader write the answer and cite it; None where its answer cannot be used."""
    if options.extractive or generator is None or generator.name == "extractive":
        return None
    if not evidence.sentences:
        return None
    # a generator is foreign code: whatever it raises, the hits and a quote are still returned
    try:
        made = prompts.build(
            evidence,
            count_tokens=generator.count_tokens,
            window_tokens=generator.window_tokens,
            max_tokens=options.max_tokens,
            budget_tokens=options.budget_tokens,
            n_passages=options.n_passages,
        )
    except Exception as error:
        trace["generation"] = {"stopped": "error", "detail": f"{type(error).__name__}: {error}"}
        return None
    trace["prompt"] = dict(made.trace)
    written = complete(
        generator,
        made.messages,
        max_tokens=options.max_tokens,
        stop=("<passage", "</passage", "\nQuestion:"),
        timeout_s=options.timeout_s,
    )
    trace["generation"] = trace_generation(generator.name, written)
    if not written.text.strip() or written.stopped == "error" or REFUSES.search(written.text):
        return None
    allowed = [
        i for i, s in enumerate(evidence.sentences) if any(shown.holds(s) for shown in made.shown)
    ]
    cited = cite(
        written.text,
        evidence,
        allowed,
        encoder=encoder,
        least_support=options.least_support,
        keep_unsupported=options.keep_unsupported,
        boxes=boxes,
    )
    trace["cite"] = {
        "markers_removed": cited.removed,
        "dropped": [
            {"sentence": d.sentence, "by": d.by, "reason": d.reason} for d in cited.dropped
        ],
        "supports": [round(s, 4) for s in cited.supports],
    }
    if not cited.citations:
        return None
    trace["mode"] = "generated"
    return cited


def add_picture(question: str, hits: Sequence[Hit], cited: Cited, boxes: Boxes | None) -> Cited:
    """Cite the first picture among the hits when the question asks for one."""
    if not PICTURE.search(question):
        return cited
    found = next((h.passage for h in hits if h.passage.modality in ("image", "page")), None)
    if found is None or any(c.passage.id == found.id for c in cited.citations):
        return cited
    marker = max((c.marker for c in cited.citations), default=0) + 1
    where = f", page {found.locator.page}" if found.locator.page else ""
    sentence = f"The nearest picture is {display(found.source.name)}{where}."
    start = len(cited.text) + 1 if cited.text else 0
    places = tuple(found.locator.boxes)
    if not places and boxes is not None and found.locator.span and found.text:
        places = tuple(box for _, box in boxes(found.source.id, found.locator.span))
    picture = Citation(
        marker=marker,
        quote=found.text,
        passage=found,
        span=found.locator.span if found.text else None,
        sentence=(start, start + len(sentence)),
        page=found.locator.page,
        boxes=places,
    )
    text = f"{cited.text} {sentence}" if cited.text else sentence
    return Cited(
        f"{text} [{marker}]",
        (*cited.citations, picture),
        cited.dropped,
        cited.removed,
        cited.supports,
    )


def refusal(
    evidence: Evidence, hits: Sequence[Hit], verdict: Answerable, trace: dict[str, Any]
) -> str:
    """Say that nothing was found, and what was nearest, without citing it."""
    trace["mode"] = "refused"
    trace["refused_because"] = verdict.reason if hits else "no passage was found"
    ranked = evidence.ranked()
    if not ranked:
        return NOT_FOUND
    nearest = evidence.sentences[ranked[0]]
    trace["nearest"] = {
        "label": nearest.passage.label,
        "name": nearest.passage.source.name,
        "page": nearest.passage.locator.page,
        "quote": nearest.text,
    }
    short = display(nearest.text)
    short = short if len(short) <= 160 else f"{short[:157]}..."
    return f"{NOT_FOUND} Nearest, in {display(nearest.passage.source.name)}: \u201c{short}\u201d"


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
    return {
        "generator": name,
        "stopped": written.stopped,
        "seconds": round(written.seconds, 3),
        "text": written.text,
        "detail": written.detail,
    }
