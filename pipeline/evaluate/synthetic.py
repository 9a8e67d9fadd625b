"""Make a test set from an index of one's own: the reader writes questions from sampled passages.

A question is kept when the index finds its passage again (a round trip). Such a set compares
settings on one's own texts. It flatters whatever made it, so it is marked synthetic everywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline import terms
from foveate.pipeline.errors import FoveateError
from foveate.pipeline.evaluate.corpora import write_rows
from foveate.pipeline.evaluate.view import TEXTS, all_passages
from foveate.pipeline.terminal import number

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.protocols import Generator
    from foveate.pipeline.reader import Reader
    from foveate.pipeline.types import Passage

INSTRUCTION = (
    "Write one short question that the text answers. Name what it is about, so that the question "
    "can be understood without the text. Write only the question."
)
# a small reader continues examples where it does not follow an order
EXAMPLES = (
    "Text: Mount Etna is a volcano on the island of Sicily. It is 3357 metres high.\n"
    "Question: How high is Mount Etna?\n\n"
    "Text: The library of Ely was founded in 1887 by a baker who left it 400 books.\n"
    "Question: Who founded the library of Ely?\n\n"
)
LEAST_WORDS = 25
ROUND_TRIP = 5
ABOUT_THE_TEXT = re.compile(
    r"\b(text|passage|article|document|author|paragraph)s?\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Made:
    """A question and the passage it was written from."""

    question: str
    passage: Passage


@dataclass(slots=True)
class Tally:
    """How many drafts were kept, and why others were not."""

    kept: int = 0
    unusable: int = 0
    not_found_again: int = 0

    def told(self) -> str:
        """Say what became of the drafts that were not kept."""
        first, second = ("was" if n == 1 else "were" for n in (self.unusable, self.not_found_again))
        return (
            f"{number(self.unusable, 'draft')} {first} unusable, "
            f"{self.not_found_again} {second} not found again"
        )


def make_queries(
    engine: Engine,
    n: int,
    folder: Path,
    *,
    generator: Generator | None = None,
    tell: Callable[[str, int, int | None], None] | None = None,
) -> Tally:
    """Write up to n questions in BEIR form into a new folder; without any, no folder.

    generator: who writes; None takes the configured one, or the offline reader.

    Raises:
        FoveateError: if the folder is there, or the index holds no passage that is long enough.
    """
    if folder.exists():
        raise FoveateError(f"{str(folder)!r} is there already: name a new folder")
    passages = [p for p in all_passages(engine) if p.modality in TEXTS]
    long_enough = [p for p in passages if len(p.text.split()) >= LEAST_WORDS]
    if not long_enough:
        raise FoveateError(f"the index holds no passage of {LEAST_WORDS} words to ask about")
    writer = generator if generator is not None else configured_generator(engine)
    made: list[Made] = []
    tally = Tally()
    chosen = spread(long_enough, 2 * n)
    for done, passage in enumerate(chosen, start=1):
        question = draft(writer, passage)
        if question is None:
            tally.unusable += 1
        elif not found_again(engine, question, passage):
            tally.not_found_again += 1
        else:
            made.append(Made(question, passage))
            tally.kept += 1
        if tell is not None:
            tell("write", min(len(made), n), n)
        if len(made) == n or done == len(chosen):
            break
    if made:
        save(folder, made, passages, writer.name, tally)
    return tally


class Completer:
    """The offline reader as a writer of questions: it continues a list of examples."""

    def __init__(self, reader: Reader) -> None:
        self.name = reader.name
        self._reader = reader

    def write(self, text: str, *, n_chars: int = 400, max_tokens: int = 24) -> str:
        """Return the line that follows the text."""
        import torch

        shown = " ".join(text.split())[:n_chars]
        prompt = self._reader.encode(f"{EXAMPLES}Text: {shown}\nQuestion:")
        model: Any = self._reader.model
        ids = torch.tensor([prompt], device=model.device)
        with torch.no_grad():
            made = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
            )
        return self._reader.decode(made[0, len(prompt) :].tolist()).strip().partition("\n")[0]


def configured_generator(engine: Engine) -> Generator | Completer:
    """Return the generator that the engine answers with; the offline reader if it only quotes."""
    resources = engine.refinery.resources
    if engine.config.table("generate").get("use", "extractive") == "extractive":
        return Completer(resources.reader())
    return resources.generator()


def draft(writer: Generator | Completer, passage: Passage) -> str | None:
    """Have a question written; None if what comes is no question that stands alone."""
    title = passage.source.title or passage.context
    text = f"{title}\n{passage.text}".strip()[:2000]
    if isinstance(writer, Completer):
        return usable(writer.write(passage.text), text)
    # a mark that the text can't hold, so that the text can't end itself and speak as the user
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    fenced = f"<text {mark}>\n{text}\n</text {mark}>"
    messages = [{"role": "user", "content": f"{INSTRUCTION}\n\n{fenced}"}]
    written = "".join(writer.generate(messages, max_tokens=48, timeout_s=60.0))
    return usable(written, text)


def usable(written: str, text: str) -> str | None:
    """Return the first question in what was written, if it stands alone and is about the text."""
    match = re.search(r"[^\n?]{8,200}\?", written.strip())
    if match is None:
        return None
    question = re.sub(r"^\W*(question:?)?\s*", "", match.group().strip(), flags=re.IGNORECASE)
    own = {terms.stem(w) for w in terms.words(question) if w not in terms.STOP}
    known = {terms.stem(w) for w in terms.words(text)}
    n_words = len(question.split())
    if not 4 <= n_words <= 30 or ABOUT_THE_TEXT.search(question) or len(own & known) < 2:
        return None
    return question


def found_again(engine: Engine, question: str, passage: Passage) -> bool:
    hits = engine.search(question, k=ROUND_TRIP, modality=sorted(TEXTS), collapse=False)
    return any(hit.passage.id == passage.id for hit in hits)


def spread(passages: Sequence[Passage], n: int) -> list[Passage]:
    """Take n passages evenly over the index, from as many places as there are."""
    step = max(1.0, len(passages) / n)
    return [passages[int(i * step)] for i in range(min(n, len(passages)))]


def save(
    folder: Path, made: Sequence[Made], passages: Sequence[Passage], writer: str, tally: Tally
) -> None:
    """Write corpus.jsonl (every text passage), queries.jsonl, qrels/test.tsv and a README."""
    (folder / "qrels").mkdir(parents=True)
    write_rows(
        folder / "corpus.jsonl",
        ({"_id": p.label, "title": p.source.title or p.context, "text": p.text} for p in passages),
    )
    queries: list[dict[str, Any]] = [
        {"_id": f"synthetic-{i}", "text": one.question, "synthetic": True, "written_by": writer}
        for i, one in enumerate(made)
    ]
    write_rows(folder / "queries.jsonl", queries)
    lines = [f"synthetic-{i}\t{one.passage.label}\t1" for i, one in enumerate(made)]
    head = "query-id\tcorpus-id\tscore"
    (folder / "qrels" / "test.tsv").write_text("\n".join([head, *lines]) + "\n")
    (folder / "README.md").write_text(
        "# Synthetic questions\n\n"
        f"{number(tally.kept, 'question')} written by {writer} from sampled passages; "
        f"{tally.told()}: its passage was not among the first {ROUND_TRIP} that the index found. "
        "The other passages were not judged.\n\n"
        "Use it to compare settings on this corpus, not as a measure of how good they are: it "
        "favours the index that filtered it.\n",
        encoding="utf-8",
    )
    (folder / "made.json").write_text(json.dumps({"synthetic": True, "written_by": writer}))
