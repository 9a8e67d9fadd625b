"""An answer through the whole engine, with a compressor and an order configured."""

import json

import pytest

import foveate
from foveate.pipeline.config import load
from foveate.pipeline.testing import HashedWords

pytestmark = pytest.mark.models


@pytest.fixture
def engine(tmp_path):
    filler = "Nothing else is told here of any tower. " * 6
    docs = [
        {
            "title": "Norwood lighthouse",
            "text": f"{filler}The lighthouse was built in 1887. {filler}",
        },
        {"title": "Dalby mill", "text": f"{filler}The mill was built in 1932. {filler}"},
    ]
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(map(json.dumps, docs)))
    settings = {
        "generate.threshold": 0.0,
        "generate.budget_tokens": 40,
        "compress.use": "extractive",
        "order.use": "reversed",
    }
    config = load("offline", overrides=settings)
    with foveate.open(
        tmp_path / "ix", create=True, config=config, encoders={"text": HashedWords()}
    ) as ix:
        ix.add(file)
        yield ix


def test_an_answer_reads_what_was_kept_and_its_trace_says_so(engine):
    answer = engine.ask("When was the Norwood lighthouse built?", extractive=True)
    stages = [row["stage"] for row in answer.trace["stages"]]
    assert stages[:3] == ["search", "compress", "evidence"]
    kept = answer.trace["context"]
    assert 0 < kept["tokens"] <= 40
    spans = {one["label"]: one["spans"] for one in kept["kept"]}
    for c in answer.citations:
        assert engine.text(c.passage.source.id)[slice(*c.span)] == c.quote
        assert any(a <= c.span[0] and c.span[1] <= b for a, b in spans[c.passage.label])
    assert "1887" in answer.text
