from __future__ import annotations

import csv
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from foveate import kernels
from foveate.pipeline.errors import ConfigError, FoveateError, UnknownComponent
from foveate.pipeline.evaluate import bench, benches, commands, peers, sizes
from foveate.pipeline.evaluate.datasets import DatasetError
from foveate.pipeline.evaluate.timing import Timing

ROOT = Path(__file__).resolve().parents[2]


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


IGNORED = [
    (["--per-query"], "--per-query goes with --json: add that, or leave it out"),
    (["--index", "x.fov"], "--index goes with --make-queries N: add that, or leave it out"),
    (["--out", "made"], "--out goes with --make-queries N: add that, or leave it out"),
    (["--into", "a.md"], "--into goes with --readme JSON: add that, or leave it out"),
    (["--make-queries", "3", "--json"], "--json is of no use with --make-queries: leave one of"),
    (["--make-queries", "3", "toy"], "a data set is of no use with --make-queries: leave one of"),
    (["--readme", "a", "--index", "x"], "--index is of no use with --readme: leave one of"),
    (["--readme", "a", "-k", "100"], "--k is of no use with --readme: leave one of"),
]


@pytest.mark.parametrize(("args", "message"), IGNORED, ids=[m for _, m in IGNORED])
def test_an_option_without_an_effect_is_refused(app, args, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        call(app, "eval", *args)


def test_a_cache_that_is_a_file_is_named(app, beir, monkeypatch):
    file = beir / "corpus.jsonl"
    for place in (file, file / "inner"):
        with pytest.raises(ConfigError, match=f"in '{place}': '{file}' is a file; name a folder"):
            call(app, "eval", str(beir), "--cache", str(place))
    monkeypatch.setenv("FOVEATE_EVAL_CACHE", str(file))
    with pytest.raises(ConfigError, match="by --cache or FOVEATE_EVAL_CACHE"):
        call(app, "eval", str(beir))


def test_a_split_without_judgments_is_refused(app, beir, question_set):
    with pytest.raises(DatasetError, match=r"--split is of sets with qrels/\*.tsv: .* has none"):
        call(app, "eval", str(question_set), "--split", "train")
    found = commands.load_all([str(question_set), str(beir)], "train", None)
    assert [d.name for d in found] == ["qa_toy", "toy:train"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read '{}' \\(no such file or directory\\)"),
        ("# A title", "'{}' is not JSON"),
        ("[1, 2]", "'{}' holds no list 'results'"),
        ('{"results": {}}', "'{}' holds no list 'results'"),
        ('{"results": ["a"]}', "'{}' result 1 has no usable 'task'"),
        (
            '{"results": [{"task": "questions", "dataset": "a", "configuration": "b", '
            '"n_queries": 1, "measures": [1], "intervals": {}}]}',
            "'{}' result 1 has no usable 'measures'",
        ),
    ],
)
def test_a_file_that_is_no_report_is_named(app, tmp_path, text, message):
    file = tmp_path / "nope.json"
    if text is not None:
        file.write_text(text)
    wanted = r": expected what `foveate eval SET --json > report.json` writes$"
    with pytest.raises(FoveateError, match="^" + message.format(file) + ".*" + wanted):
        call(app, "eval", "--readme", str(file))


def test_everything_below_the_variable_is_the_default(monkeypatch, beir, question_set):
    monkeypatch.setenv("FOVEATE_EVAL_DATA", str(beir.parent))
    assert [d.name for d in commands.load_all([], None, 1)] == ["qa_toy", "toy"]


def test_bench_measures_sizes_and_appends(app, tmp_path):
    file, page = tmp_path / "b.csv", tmp_path / "b.html"
    args = ["bench", "size", "--rounds", "2", "--sizes", "60,120", "--csv", str(file)]
    assert call(app, *args, "--html", str(page)).exit_code == 0
    done = call(app, *args, "--json")
    rows = json.loads(done.stdout)
    kinds = {
        "size, dense": "faiss flat",
        "size, hybrid": "faiss flat + tantivy",
        "size, words": "tantivy",
    }
    assert [(r["operation"], r["contender"], r["n"]) for r in rows] == [
        (kind, name, n)
        for n in (60, 120)
        for kind, peer in kinds.items()
        for name in ("foveate", peer)
    ]
    assert rows[0]["build_s"] > 0
    assert all(row["ratio"] > 0 for row in rows[1::2])
    # each says how it was itself checked
    assert rows[0]["check"] == "flat; first hit as FAISS's: 100%; 20 queries a call"
    words = "own text among 10: foveate 100%, tantivy 100%; 20 queries a call"
    assert [row["check"] for row in rows[4:6]] == [words, words]
    with file.open(newline="") as handle:
        kept = list(csv.DictReader(handle))
    assert len(kept) == 24
    assert kept[0]["processor"]
    assert kept[0]["numpy"]
    text = page.read_text()
    assert "Cost against size" in text
    titles = ("Dense search", "Both lists fused", "Search by words", "Building", "On disk")
    assert all(f"<figcaption>{title}" in text for title in titles)
    assert "http" not in text


def test_every_row_of_size_is_printed(app):
    done = call(app, "bench", "size", "--rounds", "1", "--sizes", "60")
    shown = [line[:14].strip() for line in done.stdout.splitlines()[1:]]
    assert shown == [f"size, {kind}" for kind in ("dense", "hybrid", "words") for _ in range(2)]


UNUSED = [
    (["size", "--of", "nope"], ConfigError, "--of is of rerank, compress, kernels: size would"),
    (["rerank", "--of", "nope"], UnknownComponent, "unknown reranker 'nope' (known: attention, "),
    (["--of", "nope"], UnknownComponent, "unknown reranker or compressor or kernel 'nope' (known:"),
    (["kernels", "rerank", "--of", "late"], ConfigError, "kernels knows no late: leave it out (kn"),
    (["size", "-n", "500"], ConfigError, "--n is of encode, index, search, rerank, compress: size"),
    (["kernels", "--sizes", "100"], ConfigError, "--sizes is of size: kernels would not look"),
]


@pytest.mark.parametrize(("args", "error", "message"), UNUSED, ids=[m for *_, m in UNUSED])
def test_a_name_or_number_that_nothing_takes_is_refused(app, args, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call(app, "bench", *args)


def test_names_choose_the_operations_that_know_them():
    assert bench.choose([]) == list(bench.OPERATIONS)
    assert bench.choose([], ["late", "maxsim"]) == ["rerank", "kernels"]
    assert bench.choose(["kernels"], ["maxsim"]) == ["kernels"]


def test_a_place_that_cannot_be_written_is_refused_before_timing(app, tmp_path):
    for option in ("--csv", "--html"):
        with pytest.raises(FoveateError, match="cannot write the report to"):
            call(app, "bench", "size", option, str(tmp_path))


def test_peers_that_are_not_installed_are_named(app, monkeypatch):
    absent = ("maxsim-cpu", "pylate")
    monkeypatch.setattr(peers, "installed", lambda name: name not in absent)
    done = call(app, "bench", "kernels", "--of", "maxsim", "--rounds", "1")
    assert done.stderr.splitlines()[-1] == (
        "peers left out, not installed: maxsim-cpu, pylate: pip install 'foveate[peers]' pylate"
    )
    assert "maxsim-cpu" not in done.stdout
    done = call(app, "bench", "kernels", "--of", "maxsim", "--rounds", "1", "--no-peers")
    assert "left out" not in done.stderr
    done = call(app, "bench", "kernels", "--of", "window_attention", "--rounds", "1")
    assert "left out" not in done.stderr


def test_what_installs_a_peer_is_what_the_project_declares():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = " ".join(declared["dependencies"] + declared["optional-dependencies"]["cpu"])
    extra = " ".join(declared["optional-dependencies"]["peers"])
    for name, module in peers.MODULES.items():
        package = module.replace("_", "-")
        alone = name in peers.ALONE
        assert alone != (package in core or package in extra), name


def test_an_unknown_operation_is_named():
    with pytest.raises(UnknownComponent, match="unknown operation 'serch'; did you mean 'search'"):
        bench.run(["serch"], bench.Options())


def test_a_contender_that_answers_wrongly_is_not_timed(monkeypatch, tmp_path):
    write = sizes.write
    monkeypatch.setattr(sizes, "write", lambda index, v, t: write(index, v[::-1].copy(), t))
    with pytest.raises(
        bench.BenchError, match="size, dense: the first hit is the exact one for only"
    ):
        sizes.one_size(60, tmp_path, 1)


def test_a_search_that_does_not_find_its_own_text_is_not_timed():
    finders = {"ours": lambda q: [1, 0], "peer": lambda q: [2]}
    told = benches.find_their_own("x", {"ours": finders["ours"]}, {"a b": 7}, [7, 8, 9])
    assert told == "own text among 10: ours 100%"
    with pytest.raises(bench.BenchError, match="x: peer finds a query's own text for only 0%"):
        benches.find_their_own("x", finders, {"a b": 7}, [7, 8, 9])
    with pytest.raises(bench.BenchError, match="x: the first hit is the exact one for only 0%"):
        benches.as_exact("x", finders, ["a b"])


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
