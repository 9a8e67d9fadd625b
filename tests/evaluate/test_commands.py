from __future__ import annotations

import csv
import json
import shutil

import pytest
import typer
from typer.testing import CliRunner

from foveate import kernels
from foveate.pipeline.errors import FoveateError, UnknownComponent
from foveate.pipeline.evaluate import bench, commands, sizes
from foveate.pipeline.evaluate.datasets import DatasetError
from foveate.pipeline.evaluate.timing import Timing


@pytest.fixture
def app():
    made = typer.Typer()
    made.command("eval")(commands.evaluate)
    made.command("bench")(commands.bench)
    return made


def call(app, *args):
    return CliRunner().invoke(app, list(args), catch_exceptions=False)


@pytest.mark.models
def test_eval_prints_json_and_writes_a_page_and_tables(app, beir, question_set, tmp_path):
    pytest.importorskip("bm25s", reason="needs foveate[peers]")
    (tmp_path / "a.toml").write_text('[encoders.image]\nuse = "none"\n[search]\ndepth = 30\n')
    page = tmp_path / "report.html"
    done = call(
        app, "eval", str(beir), "--compare", str(tmp_path / "a.toml"), "--set", "mode=words",
        "--set", "search.depth=40;mode=words", "--baseline", "bm25", "--cache",
        str(tmp_path / "cache"), "--html", str(page), "--json",
    )  # fmt: skip
    assert done.exit_code == 0
    record = json.loads(done.stdout)
    assert [r["configuration"] for r in record["results"]][1:] == [
        "mode=words",
        "search.depth=40;mode=words",
        "bm25",
    ]
    assert "per_query" not in record["results"][0]
    assert page.read_text().startswith("<!doctype html>")
    (tmp_path / "report.json").write_text(done.stdout)
    table = call(app, "eval", "--readme", str(tmp_path / "report.json"))
    assert table.stdout.startswith("| data set | run |")
    assert table.stdout.count("| toy |") == 4
    readme = tmp_path / "README.md"
    readme.write_text("<!-- eval:start --><!-- eval:end -->")
    written = call(app, "eval", "--readme", str(tmp_path / "report.json"), "--into", str(readme))
    assert written.stdout == ""
    assert table.stdout in readme.read_text()


def test_no_data_set_says_what_to_do(app, monkeypatch, tmp_path):
    monkeypatch.delenv("FOVEATE_EVAL_DATA", raising=False)
    with pytest.raises(DatasetError, match="set FOVEATE_EVAL_DATA"):
        call(app, "eval", "--cache", str(tmp_path))


def test_sets_of_one_name_are_told_apart_or_refused(beir, tmp_path):
    (one,) = commands.load_all([str(beir), f"{beir}/../{beir.name}"], None, None)
    assert one.name == beir.name
    shutil.copytree(beir, tmp_path / "elsewhere" / beir.name)
    with pytest.raises(DatasetError, match=f"two sets are called '{beir.name}': rename a folder"):
        commands.load_all([str(beir), str(tmp_path / "elsewhere" / beir.name)], None, None)


def test_a_report_that_cannot_be_written_is_refused_first(app, beir, tmp_path):
    for place in (tmp_path, tmp_path / "none" / "report.html"):
        with pytest.raises(FoveateError, match="cannot write the report to"):
            call(app, "eval", str(beir), "--html", str(place))


def test_everything_below_the_variable_is_the_default(monkeypatch, beir, question_set):
    monkeypatch.setenv("FOVEATE_EVAL_DATA", str(beir.parent))
    assert [d.name for d in commands.load_all([], None, 1)] == ["qa_toy", "toy"]


def test_bench_measures_sizes_and_appends(app, tmp_path):
    file, page = tmp_path / "b.csv", tmp_path / "b.html"
    args = ["bench", "size", "--rounds", "2", "--sizes", "60,120", "--csv", str(file)]
    assert call(app, *args, "--html", str(page)).exit_code == 0
    done = call(app, *args, "--json")
    rows = json.loads(done.stdout)
    assert [(r["contender"], r["n"]) for r in rows] == [
        (name, n) for n in (60, 120) for name in ("foveate", "faiss flat")
    ]
    assert rows[0]["build_s"] > 0
    assert rows[1]["ratio"] > 0
    with file.open(newline="") as handle:
        kept = list(csv.DictReader(handle))
    assert len(kept) == 8
    assert kept[0]["processor"]
    assert kept[0]["numpy"]
    text = page.read_text()
    assert "Cost against size" in text
    assert "http" not in text


def test_an_unknown_operation_is_named():
    with pytest.raises(UnknownComponent, match="unknown operation 'serch'; did you mean 'search'"):
        bench.run(["serch"], bench.Options())


def test_a_contender_that_answers_wrongly_is_not_timed(monkeypatch, tmp_path):
    write = sizes.write
    monkeypatch.setattr(sizes, "write", lambda index, v, t: write(index, v[::-1].copy(), t))
    with pytest.raises(bench.BenchError, match="the first hit is the exact one for only"):
        sizes.one_size(60, tmp_path, 1)


def test_rows_say_how_much_longer_others_take():
    timings = {"foveate": Timing("a", (1.0, 2.0)), "peer": Timing("b", (3.0, 6.0))}
    ours, theirs = bench.rows_of("x", timings, n=10, items=10, check="equal")
    assert "ratio" not in ours
    assert theirs["ratio"] == 3.0
    assert ours["per_s"] == pytest.approx(10 / 1.5)


@pytest.mark.bench
@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", bench.OPERATIONS)
def test_every_operation_runs(monkeypatch, name):
    monkeypatch.delenv("FOVEATE_EVAL_DATA", raising=False)
    rows = bench.run([name], bench.Options(rounds=2, n=60, sizes=(100,)))
    operations = {r["operation"].split(",")[0] for r in rows}
    if name == "kernels":
        assert operations == {f"kernel {kernel}" for kernel in kernels.REGISTRY}
    else:
        assert operations == {name}
