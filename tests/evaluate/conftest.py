from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


@pytest.fixture
def shared_data():
    """The folder of evaluation sets, by FOVEATE_EVAL_DATA or beside the repository."""
    named = os.environ.get("FOVEATE_EVAL_DATA")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no evaluation data: set FOVEATE_EVAL_DATA")
    return folder


@pytest.fixture
def beir(tmp_path):
    """A folder in BEIR form: six documents, three queries, two splits."""
    folder = tmp_path / "toy"
    texts = ["red apples", "green pears", "blue plums", "wild cherries", "sour lemons", "dry dates"]
    write_rows(
        folder / "corpus.jsonl",
        [{"_id": f"d{i}", "title": f"Title {i}", "text": t} for i, t in enumerate(texts)],
    )
    write_rows(
        folder / "queries.jsonl",
        [
            {"_id": "q0", "text": "apples"},
            {"_id": "q1", "text": "pears"},
            {"_id": "q2", "text": "unjudged"},
        ],
    )
    write_rows(folder / "train_queries.jsonl", [{"_id": "t0", "text": "plums"}])
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\td0\t2\nq0\td1\t0\nq1\td1\t1\n"
    )
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nt0\td2\t1\n")
    return folder


@pytest.fixture
def question_set(tmp_path):
    folder = tmp_path / "qa_toy"
    docs = [
        {"title": "Wing", "text": "The wing of the glider spans 18 metres.", "is_gold": True},
        {"title": "Bread", "text": "The bread rises for two hours.", "is_gold": False},
        {"title": "Tea", "text": "Green tea is brewed at 80 degrees.", "is_gold": False},
    ]
    rows = [
        {"id": "a", "question": "How wide is the glider's wing?", "answers": ["18 metres"]},
        {"id": "b", "question": "Is the wing of the glider wide?", "answers": ["yes"]},
    ]
    write_rows(folder / "qa.jsonl", [{**r, "docs": docs} for r in rows])
    return folder


@pytest.fixture
def picture_set(tmp_path):
    from PIL import Image

    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    rows = []
    for name, colour in (("red", (220, 20, 20)), ("green", (20, 200, 20)), ("blue", (20, 20, 220))):
        Image.new("RGB", (48, 32), colour).save(folder / "images" / f"{name}.png")
        rows.append({"image": f"{name}.png", "captions": [f"a {name} wall", f"all {name}"]})
    write_rows(folder / "captions.jsonl", [*rows, {"image": "gone.png", "captions": ["nothing"]}])
    return folder
