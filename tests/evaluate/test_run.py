from __future__ import annotations

import json
import re

import pytest

from foveate.pipeline.errors import ConfigError, FoveateError
from foveate.pipeline.evaluate import configurations, datasets, markdown, page, report, run
from foveate.pipeline.evaluate.searching import Plan
from foveate.pipeline.testing import HashedWords


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path / "cache", n_answers=2, encoders={"text": HashedWords(dim=512)})


def test_a_set_runs_through_the_engine(beir, plan):
    chosen = configurations.gather(sets=["mode=words", "mode=dense"])
    results = run.evaluate(datasets.load(beir), chosen, plan)
    assert [r["configuration"] for r in results] == ["offline", "mode=words", "mode=dense"]
    for result in results:
        assert result["measures"]["R@1"] == 1.0
        assert result["run"]["q0"][0] == "d0"
        assert result["n_queries"] == 2
    times = results[0]["times"]
    assert times["index"]["n_passages"] == 6
    assert {"words", "encode", "vectors", "passages", "total"} <= set(times["search"])
    assert times["memory_peak"] > 0
    assert times["index"]["bytes_on_disk"] > 0


def test_a_second_run_takes_what_is_kept(beir, plan):
    sets, chosen = datasets.load(beir), configurations.gather()
    first = run.evaluate(sets, chosen, plan)
    lines = []
    kept = Plan(plan.cache, encoders=plan.encoders, announce=lines.append)
    assert run.evaluate(sets, chosen, kept) == json.loads(json.dumps(first))
    assert lines == ["[1/1] toy, offline: kept from before"]
    fresh = Plan(plan.cache, encoders=plan.encoders, fresh=True)
    assert run.evaluate(sets, chosen, fresh)[0]["times"]["resumed"] is True


def test_other_queries_use_the_same_index_and_another_result(beir, plan):
    run.evaluate(datasets.load(beir), configurations.gather(), plan)
    (other,) = run.evaluate(datasets.load(f"{beir}:train"), configurations.gather(), plan)
    assert other["dataset"] == "toy:train"
    assert len(list((plan.cache / "results").iterdir())) == 2


def test_questions_are_asked_of_their_own_documents(question_set, plan):
    (result,) = run.evaluate(datasets.load(question_set), configurations.gather(), plan)
    measures = result["measures"]
    assert measures["gold R@1"] == 1.0
    assert measures["contains"] == 1.0
    assert measures["citation precision"] == 1.0
    assert 0.0 <= measures["refused without evidence"] <= 1.0
    assert set(result["per_query"]["contains"]) == {"a"}
    assert set(result["per_query"]["yes/no right"]) == {"b"}
    assert all(doc.startswith("q0-") for doc in result["run"]["a"])


def test_a_baseline_needs_no_engine(beir, question_set, picture_set, tmp_path):
    pytest.importorskip("bm25s", reason="needs foveate[peers]")
    (alone,) = [c for c in configurations.gather(baselines=["bm25"]) if c.baseline]
    sets = [d for folder in (beir, question_set, picture_set) for d in datasets.load(folder)]
    results = run.evaluate(sets, [alone], Plan(tmp_path))
    assert [r["task"] for r in results] == ["retrieval", "questions"]
    assert results[0]["measures"]["R@1"] == 1.0


@pytest.mark.models
def test_pictures_run_both_ways(picture_set, tmp_path):
    chosen = configurations.gather(sets=["mode=words", "mode=dense"])
    results = run.evaluate(datasets.load(picture_set), chosen, Plan(tmp_path))
    assert [r["dataset"] for r in results] == ["photos text to image", "photos image to text"]
    assert [r["n_queries"] for r in results] == [6, 3]
    assert results[0]["measures"]["R@5"] == 1.0
    assert results[1]["measures"]["R@10"] == 1.0


def test_two_changes_in_one_run_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = configurations.gather(sets=["search.depth=50;mode=dense"])[1]
    assert (both.settings, both.mode) == ({"search.depth": 50}, "dense")
    (tmp_path / "a.toml").write_text("[search]\ndepth = 30\n")
    (tmp_path / "b.toml").write_text("[search]\ndepth = 40\n")
    found = configurations.gather(files=["a.toml", "b.toml"])
    assert [c.in_force()["search.depth"] for c in found] == [30, 40]


def test_settings_that_cannot_be_used_are_named():
    with pytest.raises(ConfigError, match="mode must be one of"):
        configurations.gather(sets=["mode=fast"])
    with pytest.raises(ConfigError, match="unknown baseline"):
        configurations.gather(baselines=["tfidf"])
    with pytest.raises(ConfigError, match="same name"):
        configurations.gather(sets=["search.depth=9", "search.depth=9"])
    with pytest.raises(ConfigError):
        configurations.gather(sets=["serch.depth=9"])


def test_report_holds_every_run_and_needs_no_network(beir, plan):
    chosen = configurations.gather(sets=["mode=words"])
    results = run.evaluate(datasets.load(beir), chosen, plan)
    finding = {
        "dataset": "toy",
        "name": "<hubs>",
        "state": "red",
        "value": 9.0,
        "says": "too many & more",
        "threshold": "at most 3",
        "series": {"a": [("1", 0.5), ("2", 0.25)]},
    }
    also = {**finding, "dataset": "other", "name": "own", "says": "another"}
    text = page.page(results, [finding, also, {**finding, "dataset": "other"}])
    assert "mode=words" in text
    # what is said of one set stands under its name, what is said of all stands once
    assert text.count("too many") == text.count("another") == 1
    assert text.index("<h3>other</h3>") < text.index("another") < text.index("too many")
    assert "&lt;hubs&gt;" in text
    for forbidden in ("http://", "https://", "<script", "<link", "@import", "src="):
        assert forbidden not in text
    assert text.count("<svg") == text.count("</svg>") >= 3
    record = json.loads(json.dumps(report.summary(results, [finding])))
    (made,) = record["comparisons"]
    assert (made["base"], made["other"], made["p"]) == ("offline", "mode=words", 1.0)


def test_the_time_beside_a_bar_is_that_of_the_table(beir, plan):
    (result,) = run.evaluate(datasets.load(beir), configurations.gather(), plan)
    search = result["times"]["search"]
    for total in (0.126, 12.34, 1234.6):
        search["total"] = {"median_ms": total, "p95_ms": total}
        headings, ((*_, cell),) = report.table_rows([result], "retrieval")
        assert headings[-1] == "ms/query"
        text = page.page([result], [])
        figure = text[text.index("(ms/query in the table)") :].split("</figure>")[0]
        (value,) = re.findall(r'class="value"[^>]*>([^<]*)<', figure)
        assert value == f"{cell} ms"
        parts = re.findall(r"<title>[^:]*: (.*?) ms</title>", figure)
        assert sum(map(float, parts)) == pytest.approx(total, rel=0.01)
    assert cell == "1,235"


def test_a_table_that_scrolls_shows_it(beir, plan):
    text = page.page(run.evaluate(datasets.load(beir), configurations.gather(), plan), [])
    assert '<div class=wide tabindex=0 role=region aria-label="retrieval"><table' in text
    (style,) = re.findall(r"\.wide \{(.*?)\}", text, re.DOTALL)
    # covers that move with the table over shadows that stay at the edges
    assert (style.count("local"), style.count("scroll,") + style.count("scroll;")) == (2, 2)


def test_a_run_that_does_not_apply_is_told(picture_set, tmp_path):
    lines = []
    plan = Plan(tmp_path / "cache", announce=lines.append)
    chosen = configurations.gather(baselines=["bm25"])[1:]
    for told in ("", ": kept from before"):
        assert run.evaluate(datasets.load(picture_set), chosen, plan) == []
        assert lines == [
            f"[1/1] photos, bm25{told}",
            "  left out: it does not apply to photos (pictures)",
        ]
        lines.clear()


def test_readme_table_comes_from_the_json(beir, question_set, plan):
    sets = [*datasets.load(beir), *datasets.load(question_set)]
    results = run.evaluate(sets, configurations.gather(), plan)
    text = markdown.readme_table(json.loads(json.dumps(report.summary(results, []))))
    lines = text.splitlines()
    assert lines[0].startswith("| data set | run | queries | nDCG@10")
    assert lines[2].startswith("| toy | offline | 2 | 1.000")
    assert "qa_toy" in text
    widths = {line.count("|") for line in lines[:3]}
    assert len(widths) == 1


def test_the_table_replaces_what_stands_between_the_marks(tmp_path):
    file = tmp_path / "README.md"
    file.write_text(f"before\n\n{markdown.START}\nold\n{markdown.END}\n\nafter\n")
    for _ in range(2):
        markdown.write_between(file, "| a |\n")
        want = f"before\n\n{markdown.START}\n\n| a |\n\n{markdown.END}\n\nafter\n"
        assert file.read_text() == want
    for wrong in ("none", markdown.START, f"{markdown.END} {markdown.START}"):
        file.write_text(wrong)
        with pytest.raises(FoveateError, match="once each and in this order"):
            markdown.write_between(file, "| a |\n")
        assert file.read_text() == wrong


def test_time_of_both_directions_of_pictures_counts_once():
    both = {"times": {"total_s": 90.0, "cpu_s": 60.0}}
    old = {"times": {"total_s": 30.0}}
    assert report.spent([both, both, old]) == (
        "3 results took 2.0 min when made, 1.0 min of processor time"
    )
    assert report.spent([old]).startswith("1 result took")
