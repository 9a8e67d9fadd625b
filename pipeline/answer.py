"""Answer a question from hits: evidence, prompt, generate, cite, hold back. Top to bottom."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline import contradiction, contrast
from foveate.pipeline import prompt as prompts
from foveate.pipeline.answerable import THRESHOLD, Answerable, judge, unspoken
from foveate.pipeline.cite import Boxes, Cited, cite, display, point, quote
from foveate.pipeline.completion import complete
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.evidence import Evidence, gather, select
from foveate.pipeline.looks import Looks
from foveate.pipeline.trace import (
    Stages,
    trace_cited,
    trace_context,
    trace_evidence,
    trace_generation,
    trace_hits,
)
from foveate.pipeline.types import Answer, Citation

if TYPE_CHECKING:
    from PIL.Image import Image

    from foveate.pipeline.protocols import Encoder, Generator
    from foveate.pipeline.types import Box, Context, Hit, Passage

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
    dropping it. threshold: answerability, 0..1, under which nothing is answered. n_pictures: shown
    to a reader that takes pictures. contrast: let the reader say what is relevant and why before
    it answers.
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
    n_pictures: int = 2
    contrast: bool = False

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What an answer is made from. Every call may be missing, and is then done without.

    texts: canonical text of a source by its id. boxes: (page, box) pairs of a span of a source.
    context: what a compressor kept of the hits. arrange: puts what the reader is shown into order.
    image: the picture behind a passage.
    """

    hits: Sequence[Hit]
    texts: Callable[[str], str]
    encoder: Encoder | None = None
    generator: Generator | None = None
    boxes: Boxes | None = None
    context: Context | None = None
    arrange: Callable[[Context], Context] | None = None
    image: Callable[[Passage], Image] | None = None


def answer(
    question: str,
    material: Material,
    *,
    options: AnswerOptions | None = None,
    stages: Stages | None = None,
) -> Answer:
    """Answer a question from the hits alone; every sentence carries the span it comes from.

    stages: of what was done before, so that one trace holds all. Whatever the generator does, the
    hits come back, and what it failed at stands in the trace.
    """
    options, stages = options or AnswerOptions(), stages or Stages()
    hits, context = material.hits, material.context
    trace: dict[str, Any] = {"question": question}
    asked = question[:LONGEST_QUESTION]
    if len(question) > len(asked):
        trace["question_cut_to"] = LONGEST_QUESTION
    kept = None
    if context is not None:
        kept = {k.hit.passage.id: k.spans for k in context.kept}
        trace["context"] = trace_context(context)

    with stages.timed("evidence") as row:
        evidence = gather(
            asked,
            hits,
            texts=material.texts,
            encoder=material.encoder,
            kept=kept,
            whole=not writes(material, options),
        )
        chosen = select(evidence, options.n_sentences)
        row["sentences"] = len(evidence.sentences)
    trace["evidence"] = trace_evidence(evidence, chosen)

    with stages.timed("judge"):
        verdict = judge(evidence, chosen, hits)
    holds = verdict.score >= options.threshold
    # what would be held back is not written
    cited = generate_cited(evidence, material, options, trace, stages) if holds else None
    if cited is None:
        trace["mode"] = "extractive"
        cited = quote(chosen, evidence, material.boxes)
    trace["cite"] = {**trace_cited(cited, evidence), **trace.pop("refused_draft", {})}

    trace["answerable"] = {
        "score": round(verdict.score, 4),
        "threshold": options.threshold,
        "by": verdict.by,
        **{name: round(value, 4) for name, value in verdict.features.items()},
    }
    if not holds or not cited.citations:
        trace["held_back"] = {"text": cited.text, "by": "answerable", "reason": verdict.reason}
        cited = Cited("", ())
    with stages.timed("contradiction"):
        conflicts = contradicted(evidence, cited, material.boxes, trace)
    missed = None
    if cited.citations:
        missed = unspoken(asked, (c.passage for c in cited.citations), hits)
        trace["answerable"]["unspoken"] = missed
    cited = add_picture(asked, hits, cited, material.boxes)

    trace["hits"] = trace_hits(hits, evidence)
    text = cited.text or refusal(evidence, hits, verdict, trace)
    trace["answer"] = text
    trace["stages"] = stages.rows
    return Answer(
        question,
        text,
        cited.citations,
        bool(cited.citations),
        tuple(hits),
        trace,
        conflicts,
        missed,
    )


def contradicted(
    evidence: Evidence, cited: Cited, boxes: Boxes | None, trace: dict[str, Any]
) -> tuple[Citation, ...]:
    """Find the sentences elsewhere that speak against a cited one."""
    places = {sentence.key: i for i, sentence in enumerate(evidence.sentences)}
    said = {places[c.passage.source.id, c.span]: c for c in cited.citations if c.span is not None}
    conflicts = contradiction.find(evidence, list(said))
    trace["contradicted"] = [
        {
            "cited": evidence.sentences[one.cited].passage.label,
            "by": evidence.sentences[one.other].passage.label,
            "quote": evidence.sentences[one.other].text,
            "says": list(one.says),
            "denies": list(one.denies),
        }
        for one in conflicts
    ]
    return tuple(
        point(0, evidence.sentences[one.other], said[one.cited].sentence, 0.0, boxes)
        for one in conflicts
    )


def writes(material: Material, options: AnswerOptions) -> bool:
    """Whether a language model is to write the answer."""
    generator = material.generator
    return not options.extractive and generator is not None and generator.name != "extractive"


def generate_cited(
    evidence: Evidence,
    material: Material,
    options: AnswerOptions,
    trace: dict[str, Any],
    stages: Stages,
) -> Cited | None:
    """Let the reader write the answer and cite it; None where its answer cannot be used."""
    generator = material.generator
    if generator is None or not writes(material, options) or not evidence.sentences:
        return None
    # a generator is foreign code: whatever it raises, the hits and a quote are still returned
    try:
        with stages.timed("prompt"):
            made = prompts.build(
                evidence,
                material.hits,
                count_tokens=generator.count_tokens,
                window_tokens=generator.window_tokens,
                max_tokens=options.max_tokens,
                budget_tokens=options.budget_tokens,
                n_passages=options.n_passages,
                context=material.context,
                arrange=material.arrange,
                instructions=contrast.INSTRUCTIONS if options.contrast else prompts.INSTRUCTIONS,
                images=pictures(material, options.n_pictures, generator),
            )
    except Exception as error:
        trace["generation"] = {"stopped": "error", "detail": f"{type(error).__name__}: {error}"}
        return None
    trace["prompt"] = dict(made.trace)
    with stages.timed("generate", generator=generator.name):
        written = complete(
            generator,
            made.messages,
            max_tokens=options.max_tokens,
            stop=("<passage", "</passage", "\nQuestion:"),
            timeout_s=options.timeout_s,
        )
    trace["generation"] = trace_generation(generator.name, written)
    said = written.text
    if options.contrast:
        explained = contrast.parse(said, [s.number for s in made.shown])
        trace["contrast"], said = explained.as_trace(), explained.answer
    if not said.strip() or written.stopped == "error" or REFUSES.search(said):
        return None
    allowed = [
        i for i, s in enumerate(evidence.sentences) if any(shown.holds(s) for shown in made.shown)
    ]
    with stages.timed("cite"):
        cited = cite(
            said,
            evidence,
            allowed,
            encoder=material.encoder,
            attention=Looks.of(written, said, made, evidence) if not options.contrast else None,
            least_support=options.least_support,
            keep_unsupported=options.keep_unsupported,
            boxes=material.boxes,
        )
    if not cited.citations:
        refused = trace_cited(cited, evidence)
        trace["refused_draft"] = {k: refused[k] for k in ("markers_removed", "dropped")}
        return None
    trace["mode"] = "generated"
    return cited


def pictures(material: Material, n: int, generator: Generator) -> list[Image]:
    """Return the first pictures and pages among the hits, for a generator that takes them."""
    if material.image is None or "image" not in getattr(generator, "reads", ()):
        return []
    found: list[Image] = []
    for hit in material.hits:
        if len(found) == n:
            break
        if hit.passage.modality in ("image", "page"):
            found.append(crop(material.image(hit.passage), hit.passage.locator.boxes))
    return found


def crop(image: Image, boxes: Sequence[Box]) -> Image:
    """Return the part of a page that holds all the boxes, the whole where there are none."""
    if not boxes:
        return image
    edges = (
        min(b.x0 for b in boxes) * image.width,
        min(b.y0 for b in boxes) * image.height,
        max(b.x1 for b in boxes) * image.width,
        max(b.y1 for b in boxes) * image.height,
    )
    return image.crop((int(edges[0]), int(edges[1]), math.ceil(edges[2]), math.ceil(edges[3])))


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
        cited.claims,
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
