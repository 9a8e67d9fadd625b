from __future__ import annotations

import json

import pytest

import foveate
from foveate.pipeline.errors import FoveateError
from foveate.pipeline.evaluate import datasets, synthetic
from foveate.pipeline.testing import HashedWords

TOPICS = ("glider", "kettle", "harbour", "orchard", "furnace", "violin")


class Asker:
    """A generator that asks about the third word of the text, as a reader would, or rambles."""

    name = "asker"
    window_tokens = 2048

    def __init__(self, rambling=()):
        self.rambling = rambling
        self.prompts = []

    def count_tokens(self, text):
        return len(text.split())

    def generate(self, messages, *, max_tokens=256, stop=(), timeout_s=120.0):
        content = messages[-1]["content"]
        self.prompts.append(content)
        topic = next(t for t in TOPICS if f"The {t} " in content)
        if topic in self.rambling:
            yield "This is a text about things."
        else:
            yield f"Question: How old is the {topic}"
            yield " of the northern town?\nAnswer: old"


@pytest.fixture
def engine(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for topic in TOPICS:
        words = f"The {topic} of the northern town is {len(topic) * 20} years old. "
        (folder / f"{topic}.txt").write_text(words + f"People say that the {topic} is fine. " * 4)
    with foveate.open(
        tmp_path / "x.fov", create=True, encoders={"text": HashedWords(dim=256)}
    ) as made:
        made.add(folder)
        yield made


def test_questions_become_a_data_set_that_is_marked(engine, tmp_path):
    out = tmp_path / "made"
    asker = Asker(rambling=("kettle",))
    tally = synthetic.make_queries(engine, 5, out, generator=asker)
    assert (tally.kept, tally.unusable, tally.not_found_again) == (5, 1, 0)
    (dataset,) = datasets.load(out)
    assert dataset.n_queries == 5
    assert len(dataset.corpus) == engine.index.count()
    assert all(q.startswith("How old is the") for q in dataset.queries.values())
    rows = [json.loads(line) for line in (out / "queries.jsonl").read_text().splitlines()]
    assert all(row["synthetic"] and row["written_by"] == "asker" for row in rows)
    told = (out / "README.md").read_text()
    assert "synthetic" in told.lower()
    assert "5 questions written by asker from sampled passages; 1 draft was unusable, " in told
    assert "0 were not found again: its passage" in told
    texts = {r.id: r.text for r in dataset.corpus}
    for query, judged in dataset.qrels.items():
        topic = dataset.queries[query].split()[4]
        assert topic in texts[next(iter(judged))]


def test_a_text_cannot_close_its_fence(engine, tmp_path):
    asker = Asker()
    synthetic.make_queries(engine, 2, tmp_path / "made", generator=asker)
    opened = {p.split("<text ")[1][:12] for p in asker.prompts}
    assert len(opened) == len(asker.prompts)
    for prompt in asker.prompts:
        assert prompt.rstrip().endswith(f"</text {prompt.split('<text ')[1][:12]}>")


def test_drafts_are_counted_in_words():
    told = synthetic.Tally(kept=1, unusable=2, not_found_again=1).told()
    assert told == "2 drafts were unusable, 1 was not found again"


def test_where_no_question_is_kept_no_folder_is_left(engine, tmp_path):
    tally = synthetic.make_queries(engine, 5, tmp_path / "made", generator=Asker(rambling=TOPICS))
    assert (tally.kept, tally.unusable) == (0, 6)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_there_is_left_alone(engine, tmp_path):
    (tmp_path / "made").mkdir()
    with pytest.raises(FoveateError, match="is there already"):
        synthetic.make_queries(engine, 2, tmp_path / "made", generator=Asker())


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("What limits the aspect ratio of the wing?", True),
        ("1. What limits the ratio of the wing?", True),
        ("What is the text about wings and ratio?", False),
        ("Why?", False),
        ("The wing is limited by its ratio.", False),
        ("What is the capital of France today?", False),
        ("", False),
    ],
)
def test_only_questions_that_stand_alone_are_usable(written, kept):
    found = synthetic.usable(written, "The aspect ratio of a wing is limited by its weight.")
    assert (found is not None) is kept
