"""Training pairs that the reader writes: SynCSE, Zhang et al. 2023, arXiv:2305.15077.

Of each text a paraphrase and a sentence that contradicts it. A pair is kept when the paraphrase is
no copy and lies nearer to the text, by the untrained encoder, than the contradiction does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from foveate.pipeline.ingest.sentences import sentences

if TYPE_CHECKING:
    from foveate.encoders.train.data import Example
    from foveate.pipeline.config import Config
    from foveate.pipeline.protocols import Encoder, Generator

    Tell = Callable[[str, int, int | None], None]

SAME = (
    "Rewrite the sentence in other words, with the same meaning. Write only the new sentence.",
    "Say the same as the sentence does, but change its structure. Write only the new sentence.",
)
OTHER = (
    "Change the sentence so that it says the opposite. Write only the new sentence.",
    "Change one fact in the sentence so that it becomes false. Write only the new sentence.",
)


def write_pairs(
    texts: Sequence[str],
    n: int,
    settings: Config,
    tell: Tell,
    *,
    generator: Generator | None = None,
    encoder: Encoder | None = None,
) -> list[Example]:
    """Return up to n examples, marked as synthetic, from sentences spread over the texts.

    generator: who writes; None is the configured reader. encoder: who gates; None is the
    configured text encoder.
    """
    from foveate.pipeline import registry
    from foveate.pipeline.opening import make_encoders

    if generator is None:
        generator = registry.find("generator", "transformers")()
    gate = encoder or make_encoders(settings)["text"]
    found: list[Example] = []
    chosen = pick(texts, 2 * n)
    for number, sentence in enumerate(chosen):
        same = written(generator, SAME[number % len(SAME)], sentence)
        other = written(generator, OTHER[number // len(SAME) % len(OTHER)], sentence)
        example = accept(sentence, same, other, gate)
        if example is not None:
            found.append(example)
        tell("write", len(found), n)
        if len(found) == n:
            break
    return found


def accept(sentence: str, same: str, other: str, gate: Encoder) -> Example | None:
    """Return a pair that may be trained on, or None.

    The paraphrase must be no copy of the sentence, the contradiction no copy of either, and the
    paraphrase must lie nearer to the sentence than the contradiction.
    """
    from foveate.encoders.train.data import Example

    if len({plain(sentence), plain(same), plain(other), ""}) < 4:
        return None
    vectors = gate.encode([sentence, same, other])
    if float(vectors[0] @ vectors[1]) <= float(vectors[0] @ vectors[2]):
        return None
    return Example(sentence, same, (other,), synthetic=True)


def pick(texts: Sequence[str], n: int) -> list[str]:
    """Return up to n sentences of 6 to 40 words, evenly spread over the texts."""
    found: list[str] = []
    for text in texts:
        spans = sentences(text)
        fit = [text[a:b].strip() for a, b in spans if 6 <= len(text[a:b].split()) <= 40]
        found += fit[:3]
    unique = list(dict.fromkeys(found))
    step = max(1.0, len(unique) / max(n, 1))
    return [unique[int(i * step)] for i in range(min(n, len(unique)))]


def written(generator: Generator, instruction: str, sentence: str) -> str:
    """Return the first line that the generator writes; the sentence cannot speak for the user."""
    mark = hashlib.sha256(sentence.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    content = f"{instruction}\n\n<sentence {mark}>\n{sentence}\n</sentence {mark}>"
    messages = [{"role": "user", "content": content}]
    text = "".join(generator.generate(messages, max_tokens=80, timeout_s=60.0)).strip()
    line = text.split("\n")[0].strip().strip('"')
    return re.sub(r"</?sentence[^>]*>", "", line).strip()


def plain(text: str) -> str:
    """Return a text's words alone, to tell copies by."""
    return " ".join(re.findall(r"\w+", text.casefold()))
