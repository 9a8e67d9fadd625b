"""No model at all: the lines of the prompt that share most words with its question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from foveate.pipeline import terms
from foveate.pipeline.ingest.sentences import sentences


class Extractive:
    """Yield verbatim sentences of the last message, chosen by the words of its last line.

    `answer` does not call this: it sees the name and quotes its own scored evidence, where the
    place of every sentence is known. It serves callers that have only messages.
    """

    name = "extractive"
    window_tokens = 1 << 20

    def __init__(self, *, n_sentences: int = 2) -> None:
        self.n_sentences = n_sentences

    def count_tokens(self, text: str) -> int:
        return len(terms.words(text))

    def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Iterator[str]:
        if not messages:
            return
        body, _, question = messages[-1]["content"].strip().rpartition("\n")
        asked = set(terms.terms(question))
        spans = sentences(body)
        shared = [len(asked & set(terms.terms(body[start:end]))) for start, end in spans]
        best = sorted(range(len(spans)), key=lambda i: (-shared[i], i))[: self.n_sentences]
        left = max_tokens
        for i in sorted(i for i in best if shared[i]):
            text = body[spans[i][0] : spans[i][1]].strip()
            left -= self.count_tokens(text)
            cut = min((at for s in stop if s and (at := text.find(s)) >= 0), default=None)
            if cut is not None or left < 0:
                if cut:
                    yield text[:cut]
                return
            yield text + " "
