"""Conversations: follow-up questions are rewritten so that they can be searched for alone."""

import json

import pytest

import foveate
from foveate.pipeline import chat
from foveate.pipeline.chat import Chat, Standalone, Turn, stand_alone
from foveate.pipeline.config import load
from foveate.pipeline.errors import ConfigError, QueryError
from foveate.pipeline.testing import HashedWords
from foveate.pipeline.types import Answer


def turn(question, answer="", answered=True):
    return Turn(question, Standalone(question), Answer(question, answer, (), answered))


BRIDGE = turn("When was the Norwood bridge built?", "It was built in 1887.")
KEEPER = turn("Who keeps the Norwood lighthouse?", "The keeper is Mary Ellen Carter. [1]")
LEMONS = turn("How long do lemons keep in the refrigerator?", "Four weeks.")
SHOP = turn("When does the old shop open on Sundays?", "At nine.")
VALVE = turn("What opens the main valve?", "A lever.")


@pytest.mark.parametrize(
    ("turns", "asked", "expected"),
    [
        ([BRIDGE], "How long is it?", "How long is the Norwood bridge?"),
        ([BRIDGE], "And who built it?", "who built the Norwood bridge?"),
        ([BRIDGE], "What is its length?", "What is the Norwood bridge's length?"),
        ([BRIDGE], "What about the Dalby mill?", "When was the Dalby mill built?"),
        ([BRIDGE], "and the Dalby mill?", "When was the Dalby mill built?"),
        ([BRIDGE, KEEPER], "When was she born?", "When was Mary Ellen Carter born?"),
        ([VALVE], "How hot is it?", "How hot is the main valve?"),
        ([VALVE], "What about the second pump?", "What opens the second pump?"),
        ([LEMONS], "And limes?", "How long do limes keep in the refrigerator?"),
        ([LEMONS], "How big are they?", "How big are lemons?"),
        ([SHOP], "Who owns it?", "Who owns the old shop?"),
        ([BRIDGE], "Why?", "Why (the Norwood bridge)?"),
    ],
)
def test_a_follow_up_question_takes_what_it_points_at(turns, asked, expected):
    got = stand_alone(asked, turns)
    assert got.text == expected
    assert got.by == "rules"
    assert got.topic


@pytest.mark.parametrize(
    "asked",
    [
        "When was the Dalby mill built?",
        "Which river runs past the Hollin school?",
        "What does a submarine weigh in Peru?",
        "",
        "   ",
        "?",
    ],
)
def test_a_question_that_stands_alone_stays_as_it_is(asked):
    assert stand_alone(asked, [BRIDGE, KEEPER]).text == asked
    assert stand_alone("How long is it?", []) == Standalone("How long is it?")


def test_the_topic_lasts_over_several_follow_ups():
    turns = [BRIDGE]
    for asked in ("How long is it?", "Who owns it?", "And is it safe?"):
        got = stand_alone(asked, turns)
        assert "Norwood bridge" in got.text
        turns.append(Turn(asked, got, Answer(got.text, "", (), False)))


class Says:
    name, window_tokens = "says", 4000

    def __init__(self, text):
        self.text, self.messages = text, None

    def count_tokens(self, text):
        return len(text.split())

    def generate(self, messages, *, max_tokens=256, stop=(), timeout_s=120.0):
        self.messages = messages
        yield self.text


def test_the_reader_rewrites_where_what_it_writes_can_be_used():
    says = Says("What length is the Norwood bridge long?")
    got = stand_alone("How long is it?", [BRIDGE], says)
    assert got == Standalone(
        "What length is the Norwood bridge long?", "the Norwood bridge", "reader"
    )
    assert "How long is it?" in says.messages[-1]["content"]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "It was built in 1887.",
        "How long is it?",
        "How long is the bridge of Atlantis?",
        "Who are you?",
        "How long " + "very " * 200 + "is the Norwood bridge?",
    ],
)
def test_what_a_reader_writes_that_cannot_be_used_falls_back_to_the_rules(written):
    got = stand_alone("How long is it?", [BRIDGE], Says(written))
    assert (got.text, got.by) == ("How long is the Norwood bridge?", "rules")


@pytest.fixture
def engine(tmp_path):
    docs = [
        {"title": "Norwood bridge", "text": "The Norwood bridge was built in 1887. It is blue."},
        {"title": "Norwood bridge", "text": "The Norwood bridge is 503 metres long."},
        {"title": "Dalby mill", "text": "The Dalby mill was built in 1932."},
    ]
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(map(json.dumps, docs)))
    config = load("offline", overrides={"generate.threshold": 0.0})
    encoders = {"text": HashedWords()}
    with foveate.open(tmp_path / "ix", create=True, config=config, encoders=encoders) as ix:
        ix.add(file)
        yield ix


def test_a_conversation_searches_for_what_is_meant(engine):
    talk = engine.chat()
    first = talk.ask("When was the Norwood bridge built?")
    assert "1887" in first.text
    second = talk.ask("How long is it?")
    assert second.question == "How long is the Norwood bridge?"
    assert "503" in (second.text + json.dumps(second.trace["hits"]) + str(second.hits))
    third = talk.ask("What about the Dalby mill?")
    assert third.trace["chat"] == {
        "asked": "What about the Dalby mill?",
        "standalone": "How long is the Dalby mill?",
        "topic": "the Dalby mill",
        "by": "rules",
    }
    assert talk.turns[0].asked == "When was the Norwood bridge built?"
    talk.forget()
    assert talk.ask("How long is it?").question == "How long is it?"


def test_a_conversation_refuses_what_ask_refuses(engine):
    with pytest.raises(ConfigError, match="rules"):
        Chat(engine, rewrite="magic")
    talk = engine.chat()
    with pytest.raises(QueryError):
        talk.ask(" ")
    assert talk.turns == []


def test_only_so_many_turns_are_remembered(engine, monkeypatch):
    monkeypatch.setattr(chat, "MOST_TURNS", 2)
    talk = engine.chat()
    for n in range(4):
        talk.ask(f"What is gate {n} of Dalby?")
    assert [t.asked for t in talk.turns] == ["What is gate 2 of Dalby?", "What is gate 3 of Dalby?"]


def run(engine, monkeypatch, *arguments, said=""):
    from contextlib import nullcontext

    from typer.testing import CliRunner

    from foveate import cli

    monkeypatch.setattr(
        "foveate.pipeline.commands.ask.opened", lambda at, **options: nullcontext(engine)
    )
    return CliRunner().invoke(cli.app, ["ask", *arguments], input=said)


def test_a_conversation_on_the_command_line_ends_with_an_empty_line(engine, monkeypatch):
    got = run(
        engine,
        monkeypatch,
        "When was the Norwood bridge built?",
        "--chat",
        "--json",
        said="How long is it?\n\nWhat about the Dalby mill?\n",
    )
    assert got.exit_code == 0
    records = [json.loads(line) for line in got.stdout.splitlines()]
    assert [r["chat"]["standalone"] for r in records] == [
        "When was the Norwood bridge built?",
        "How long is the Norwood bridge?",
    ]
    plain = run(
        engine,
        monkeypatch,
        "--chat",
        said="When was the Norwood bridge built?\nAnd who built it?\n",
    )
    assert "(who built the Norwood bridge?)" in plain.stdout
    assert "1887" in plain.stdout


def test_the_trace_on_the_command_line_is_one_json_object(engine, monkeypatch):
    got = run(engine, monkeypatch, "When was the Norwood bridge built?", "--trace", "--json")
    trace = json.loads(got.stdout)["trace"]
    assert [row["stage"] for row in trace["stages"]] == [
        "search",
        "evidence",
        "judge",
        "contradiction",
    ]
    assert trace["hits"][0]["scores"]
    assert trace["cite"]["alignments"][0]["evidence"][0]["quote"]
    shown = run(engine, monkeypatch, "When was the Norwood bridge built?", "--trace")
    assert json.loads(shown.stdout[shown.stdout.index("\n{") :])["answer"]


def test_a_question_or_a_conversation_is_needed(engine, monkeypatch):
    assert run(engine, monkeypatch).exit_code == 2
    assert run(engine, monkeypatch, "--chat").exit_code == 1
