"""A conversation: each question is made to stand alone before anything is searched for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from foveate.pipeline import terms
from foveate.pipeline.completion import complete
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.prompt import neutralise

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine
    from foveate.pipeline.protocols import Generator
    from foveate.pipeline.types import Answer

By: TypeAlias = Literal["as asked", "rules", "reader"]

MOST_TURNS = 20  # that are remembered
SUBJECT = re.compile(r"\b(it|he|she|they|him|them|this|that|these|those)\b(?!['\u2019]\w)", re.I)
PEOPLE = frozenset({"he", "she", "him", "they", "them", "his", "her", "their"})
OWNER = re.compile(r"\b(its|his|their|her)\b(?=\s+[^\W\d_])", re.IGNORECASE)
# "that" and "this" before a noun point at something only together with it
POINTER = re.compile(r"\b(?:this|that|these|those)\s+(?=[^\W\d_])", re.IGNORECASE)
INSTEAD = re.compile(
    r"^\s*(?:(?:and|but|or)\s+)?(?:(?:what|how)\s+about|and(?:\s+for)?|what\s+of)\s+(?P<new>.+?)[\s?!.]*$",
    re.IGNORECASE,
)
LEAD = re.compile(r"^\s*(?:and|but|so|then|also|ok(?:ay)?)\b[,\s]*", re.IGNORECASE)
ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
NAMED = re.compile(
    r"(?:\b[Tt]he\s+)?[A-Z\u00c0-\u00de][\w'\u2019.-]*"
    r"(?:\s+(?:(?:of|the|de|van|von|and|in)\s+)*[A-Z\u00c0-\u00de0-9][\w'\u2019.-]*)*"
    r"(?:\s+[a-z][\w-]+(?=\s*(?:$|[?.,!]|\b(?:was|is|were|are|did|does|has|had|be|built|open"
    r"|opened|made)\b)))?"
)
PHRASE = re.compile(
    r"\b(?:the|a|an)\s+(?:[a-z][\w-]*\s+){0,3}?[a-z][\w-]*(?=\s*[?.!]*$|\s+(?:of|in)\b)"
)
# "do lemons keep in", "does the main valve open": the subject, and the verb as its last word
ACTING = re.compile(
    r"\b(?:do|does|did|can|could|will|would|should)\s+(?:(?P<article>the|a|an|my|our)\s+)?"
    r"(?P<rest>[a-z][\w' -]*?)"
    r"(?=\s+(?:in|on|at|for|of|to|from|with|by|when|if|than|into|as)\b|\s*[?.!]|$)"
)
ASKING_WORDS = (
    "Who What When Where Why Which How Whose Whom Is Are Was Were Do Does Did Has Have Had Can "
    "Could Will Would Should Name List Tell Give Show Explain Describe In On At And But The A An"
)
DATED = re.compile(rf"(?:mon|tues|wednes|thurs|fri|satur|sun)days?|{terms.MONTH}", re.IGNORECASE)
ASKING = frozenset(ASKING_WORDS.split())
INSTRUCTIONS = (
    "You rewrite the last question of a conversation so that it can be understood alone. Replace "
    "words such as it, they or there by what they mean. Do not answer. Write only the question."
)


@dataclass(frozen=True, slots=True)
class Standalone:
    """A question that needs no other one. topic: what it took from before, '' for nothing."""

    text: str
    topic: str = ""
    by: By = "as asked"


@dataclass(frozen=True, slots=True)
class Turn:
    """One question as it was put, as it was searched for, and what was answered."""

    asked: str
    standalone: Standalone
    answer: Answer


class Chat:
    """A conversation with one index. One thread at a time.

    Args:
        rewrite: 'rules', or 'reader' to let the language model rewrite follow-up questions; where
            what it writes cannot be used, the rules do.
        options: of `Engine.ask`, for every question.
    """

    def __init__(self, engine: Engine, *, rewrite: str = "rules", **options: Any) -> None:
        if rewrite not in ("rules", "reader"):
            raise ConfigError(f"expected rewrite 'rules' or 'reader', got {rewrite!r}")
        self.turns: list[Turn] = []
        self._engine, self._rewrite, self._options = engine, rewrite, options

    def ask(self, text: str) -> Answer:
        """Answer a question, which may lean on those before it.

        Raises:
            QueryError: for an empty question.
        """
        generator = self._engine.generator() if self._rewrite == "reader" and self.turns else None
        alone = stand_alone(text, self.turns, generator)
        found = self._engine.ask(alone.text, **self._options)
        told = {"asked": text, "standalone": alone.text, "topic": alone.topic, "by": alone.by}
        found = dataclasses.replace(found, trace={**found.trace, "chat": told})
        self.turns = [*self.turns, Turn(text, alone, found)][-MOST_TURNS:]
        return found

    def forget(self) -> None:
        """Begin anew."""
        self.turns = []


def stand_alone(text: str, turns: Sequence[Turn], generator: Generator | None = None) -> Standalone:
    """Rewrite a follow-up question; one that stands alone, or is the first, stays as it is."""
    if not turns or not terms.words(text):
        return Standalone(text)
    ruled = by_rules(text, turns)
    if ruled.by == "as asked" or generator is None:
        return ruled
    written = by_reader(text, turns, generator, ruled.topic)
    return Standalone(written, ruled.topic, "reader") if written else ruled


def by_rules(text: str, turns: Sequence[Turn]) -> Standalone:
    """Put what was spoken of in the place of the words that point at it."""
    before = turns[-1].standalone.text
    instead = INSTEAD.match(text)
    if instead and terms.terms(instead["new"]) and not asks(instead["new"]):
        return replace_topic(before, instead["new"])
    bare = LEAD.sub("", text)
    words = [w for w in terms.words(bare) if w not in ("this", "that", "these", "those")]
    pronoun = SUBJECT.search(POINTER.sub("", bare)) or OWNER.search(bare)
    if pronoun:
        topic = topic_of(turns, person=pronoun.group(1).lower() in PEOPLE)
        if not topic:
            return Standalone(text)
        return Standalone(put(bare, topic), topic, "rules")
    content = [w for w in words if w not in terms.STOP]
    leans = bare != text or POINTER.search(bare) or re.search(r"\bthere\b", bare, re.I)
    if (leans or len(content) <= 1) and not names_in(bare):
        topic = topic_of(turns, person=False)
        if topic:
            return Standalone(f"{bare.rstrip(' ?!.')} ({topic})?", topic, "rules")
    return Standalone(text)


def asks(text: str) -> bool:
    """Whether a text is a question of its own, as in `and who built it`."""
    return bool(
        re.match(r"(?:who|what|when|where|why|which|how|whose|is|are|was|did|does)\b", text, re.I)
    )


def put(text: str, topic: str) -> str:
    """Replace the first pronoun by the topic, and every other one that can mean it."""
    owner = f"{topic}'" if topic.endswith("s") else f"{topic}'s"
    text = OWNER.sub(lambda m: owner, text)

    def subject(match: re.Match[str]) -> str:
        # "that" and "this" in front of a noun, and "is it that", say nothing alone
        pointed = match.group(1).lower() in ("this", "that", "these", "those")
        return match.group() if pointed and POINTER.match(text, match.start()) else topic

    return SUBJECT.sub(subject, text)


def replace_topic(before: str, new: str) -> Standalone:
    """Ask the question before of something else."""
    old = topic_in(before)
    if not old:
        return Standalone(f"{before.rstrip(' ?!.')} {new}?", new, "rules")
    if ARTICLE.match(old) and not ARTICLE.match(new) and new[:1].islower():
        new = f"the {new}"
    return Standalone(before.replace(old, new, 1), new, "rules")


def topic_of(turns: Sequence[Turn], *, person: bool) -> str:
    """Return what was last spoken of: a person for `he` or `she`, where one was named."""
    for turn in reversed(turns):
        if person and turn.answer.answered and terms.wanted(turn.standalone.text) == "person":
            known = set(terms.words(turn.standalone.text))
            people = [m.group() for m in terms.PEOPLE.finditer(turn.answer.text)]
            new = [p for p in people if not set(terms.words(p)) <= known]
            if new:
                return new[0]
        topic = topic_in(turn.standalone.text)
        if topic:
            return topic
        titles = [c.passage.source.title for c in turn.answer.citations if c.passage.source.title]
        if titles:
            return str(titles[0])
    return ""


def topic_in(question: str) -> str:
    """Return the longest name of a question, else its subject or last noun phrase, else ''."""
    named = names_in(question)
    if named:
        return max(named, key=len)
    acting = ACTING.search(question)
    words = acting["rest"].split() if acting else []
    if acting and len(words) > 1 and (acting["article"] or words[0] not in terms.STOP):
        # without an article there is no telling where the subject ends
        return " ".join([acting["article"], *words[:-1]] if acting["article"] else words[:1])
    phrases = PHRASE.findall(question)
    return phrases[-1].strip() if phrases else ""


def names_in(question: str) -> list[str]:
    """Return the names in a question, without the words that every question begins with."""
    found = []
    for match in NAMED.finditer(question):
        name = match.group()
        words = name.split()
        while words and words[0] in ASKING and not (words[0] == "The" and len(words) > 1):
            words = words[1:]
        name = " ".join(words)
        if any(w[:1].isupper() and w not in ASKING and not DATED.fullmatch(w) for w in words):
            found.append(name)
    return found


def by_reader(text: str, turns: Sequence[Turn], generator: Generator, topic: str) -> str:
    """Let the language model rewrite a question; '' where what it writes cannot be used.

    It must name the topic that the rules found, ask what was asked, and bring in no new name.
    """
    lines = [f"Question: {neutralise(turn.standalone.text)}" for turn in turns[-3:]]
    content = "\n".join([*lines, f"Last question: {neutralise(text)}", "Rewritten question:"])
    messages = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": content},
    ]
    written = complete(generator, messages, max_tokens=48, stop=("\n",), timeout_s=20.0)
    made = " ".join(written.text.split()).strip("\"' ")
    made = re.sub(r"^(?:rewritten |last )?question:\s*", "", made, flags=re.IGNORECASE)
    spoken = " ".join([text, *(t.standalone.text for t in turns), *(t.answer.text for t in turns)])
    own = set(terms.terms(f"{LEAD.sub('', text)} {topic}"))
    usable = (
        written.stopped == "end"
        and made.endswith("?")
        and len(made) <= len(text) + 120
        and own <= set(terms.terms(made))
        and terms.names(made) <= set(terms.words(spoken))
        and not SUBJECT.search(POINTER.sub("", made))
    )
    return made if usable else ""
