import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from foveate import cli

pytestmark = pytest.mark.models

LEMONS = """# Lemons in pots

Lemons keep for about one week on the table and for four weeks in the refrigerator.

## Winter

Below 5 degrees Celsius the tree stops growing.
"""
BICYCLE = "A worn chain eats the teeth of the sprockets. Replace it after 3000 kilometres.\n"
FOVEATE = [sys.executable, "-P", "-m", "foveate.cli"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two texts, a picture, and three files that are not indexed whole, each for its reason."""
    folder = tmp_path_factory.mktemp("papers")
    (folder / "lemons.md").write_text(LEMONS)
    (folder / "bicycle.txt").write_text(BICYCLE)
    (folder / "empty.txt").write_text("")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00 cut off")
    (folder / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    picture = Image.linear_gradient("L").resize((120, 90)).convert("RGB")
    picture.paste((220, 30, 30), (30, 20, 90, 70))
    picture.save(folder / "square.png")
    return folder


@pytest.fixture(scope="module")
def place(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("index") / "a b é.fov"
    assert cli.run(["index", str(folder), "--index", str(place)]) == 0
    return str(place)


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command in this process; return (exit code, standard output, standard error)."""
    monkeypatch.delenv("FOVEATE_INDEX", raising=False)

    def call(*args):
        capsys.readouterr()
        code = cli.run([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def ask_json(call):
    def ask_json(*args):
        code, out, _ = call(*args, "--json")
        assert code == 0
        return json.loads(out)

    return ask_json


# -- each command, as text and as JSON -----------------------------------------------------------


def test_index_says_what_it_did_and_why_not(call, folder, tmp_path):
    code, out, err = call("index", folder, "--index", tmp_path / "x.fov")
    assert code == 0
    assert err == ""
    lines = out.splitlines()
    assert any(re.match(r"failed: .*broken\.jpg: \S", line) for line in lines)
    assert any(re.match(r"empty: .*empty\.txt: \S", line) for line in lines)
    assert any("3 added" in line and "1 failed" in line and "1 empty" in line for line in lines)


def test_index_warns_of_texts_that_the_encoder_was_not_trained_on(call, tmp_path):
    german = "Die Brücke über den Fluss wurde aus Stein und Eisen gebaut und hält noch heute. "
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "de.txt").write_text(german * 4)
    code, out, _ = call("index", tmp_path / "docs", "--index", tmp_path / "x.fov")
    assert code == 0
    assert "warning: 1 source is in a language that the text encoder was not trained on" in out


def test_index_again_encodes_nothing(ask_json, folder, place):
    report = ask_json("index", folder, "--index", place)
    assert (report["n_unchanged"], report["n_added"], report["n_encoded"]) == (4, 0, 0)


def test_dry_run_writes_nothing(ask_json, folder, tmp_path):
    report = ask_json("index", folder, "--dry-run", "--index", tmp_path / "none.fov")
    assert report["dry_run"]
    assert report["n_added"] >= 3
    assert not (tmp_path / "none.fov").exists()


def test_include_and_exclude_are_globs(ask_json, folder, tmp_path):
    report = ask_json("index", folder, "--include", "*.md", "--index", tmp_path / "a.fov")
    assert report["n_added"] == 1
    report = ask_json("index", folder, "--exclude", "*.md", "--index", tmp_path / "b.fov")
    assert report["n_added"] == 2


def test_prune_forgets_what_is_gone(ask_json, folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    ask_json("index", copy, "--index", tmp_path / "x.fov")
    (copy / "lemons.md").unlink()
    report = ask_json("index", copy, "--prune", "--index", tmp_path / "x.fov")
    assert report["n_removed"] == 1


def test_search_prints_title_path_and_the_sentence(call, place):
    code, out, _ = call("search", "how", "long", "do", "lemons", "keep", "--index", place)
    assert code == 0
    first, second = out.splitlines()[:2]
    assert "Lemons in pots" in first
    assert "lemons.md" in first
    assert "four weeks in the refrigerator" in second


def test_search_json_has_the_documented_keys(ask_json, place):
    found = ask_json("search", "worn chain", "--index", place, "-k", "2", "--explain")
    assert set(found) == {"index", "query", "image", "hits"}
    hit = found["hits"][0]
    assert set(hit) == {
        *("rank", "score", "scores", "ranks", "duplicates", "sentence", "id", "label"),
        *("modality", "title", "path", "uris", "type", "page", "row", "span", "boxes", "text"),
        *("context", "source_id", "size", "modified", "language", "metadata"),
    }
    assert hit["path"].endswith("bicycle.txt")
    assert hit["sentence"].startswith("A worn chain")
    assert 0 <= hit["score"] <= 1


def test_search_takes_a_picture_and_words(ask_json, folder, place):
    at = ("--modality", "image", "--index", place)
    found = ask_json("search", "--image", folder / "square.png", *at)
    assert found["hits"][0]["path"].endswith("square.png")
    ask_json("search", "but in red", "--image", folder / "square.png", "--index", place)


def test_search_narrows_by_filter_type_and_modality(call, ask_json, place):
    options = (["--where", "name = 'bicycle.txt'"], ["--type", "markdown"], ["--modality", "image"])
    ends = ("bicycle.txt", "lemons.md", "square.png")
    for option, end in zip(options, ends, strict=True):
        hits = ask_json("search", "lemons", *option, "--index", place)["hits"]
        assert {Path(hit["path"]).name for hit in hits} == {end}
    code, out, err = call("search", "x", "--where", "name = 'none'", "--index", place)
    assert (code, out) == (1, "")
    assert err == "foveate: nothing found\n"


def test_a_filter_by_a_field_that_no_source_has_says_so(call, tmp_path):
    (tmp_path / "a.md").write_text("---\nauthor: Ada\nrank: 3\n---\nA worn chain is replaced.\n")
    at = ("--index", tmp_path / "x.fov")
    assert call("index", tmp_path / "a.md", *at)[0] == 0
    for where in ("author = 'Ada'", "rank > 2 and year > 0", "not author = 'Bo'"):
        code, _, err = call("search", "worn chain", "--where", where, *at)
        assert (code, err) == (0, "")
    told = (
        "foveate: --where: no source has a field 'auhtor'; did you mean 'author'? (there are: "
        "modality, type, path, name, page, size, modified, language, title, year, author, rank)\n"
    )
    code, out, err = call("search", "worn chain", "--where", "auhtor = 'Ada'", *at)
    assert (code, out, err) == (1, "", told + "foveate: nothing found\n")
    # it may still find something, and be as wrong
    code, out, err = call("search", "chain", "--where", "not auhtor = 'Ada'", "--json", *at)
    assert (code, err) == (0, told)
    assert json.loads(out)["hits"]
    _, _, err = call("ask", "What is replaced?", "--where", "auhtor = 'A' or zzz = 1", *at)
    assert err.startswith("foveate: --where: no source has a field 'auhtor' or 'zzz';")


def test_explain_shows_every_stage(call, place):
    _, out, _ = call("search", "worn chain", "--explain", "--index", place)
    assert re.search(r"words -?\d+\.\d+ \(#1\)", out)
    assert "fused" in out


def test_ask_cites_spans_that_resolve(ask_json, place, folder):
    found = ask_json("ask", "How long do lemons keep in the refrigerator?", "--index", place)
    assert found["answered"]
    assert "four weeks" in found["answer"]
    assert "[1]" in found["answer"]
    for citation in found["citations"]:
        text = (folder / Path(citation["path"]).name).read_text()
        start, end = citation["span"]
        assert citation["quote"] in text
        shown = ask_json("show", citation["label"], "--span", f"{start}-{end}", "--index", place)
        assert shown["quote"] == citation["quote"]


def test_ask_prints_numbered_sources(call, place):
    code, out, _ = call("ask", "How long do lemons keep in the refrigerator?", "--index", place)
    assert code == 0
    assert re.search(r"^\[1\] .*lemons\.md, characters \d+-\d+", out, re.M)


def test_ask_says_when_it_cannot(call, place):
    question = "Who won the chess tournament in Reykjavik in 1972?"
    code, out, _ = call("ask", question, "--json", "--trace", "--index", place)
    found = json.loads(out)
    assert code == 1
    assert not found["answered"]
    assert found["citations"] == []
    assert found["trace"]


def test_show_prints_the_span_in_its_surroundings(call, ask_json, place):
    hit = ask_json("search", "worn chain", "--index", place)["hits"][0]
    code, out, _ = call("show", hit["label"], "--index", place)
    assert code == 0
    assert BICYCLE.strip() in out
    code, _, err = call("show", "ffffffffffff:9", "--index", place)
    assert code == 2
    assert err.startswith("foveate: ")


def test_show_writes_the_picture(ask_json, place, tmp_path):
    hit = ask_json("search", "red", "--modality", "image", "--index", place)["hits"][0]
    shown = ask_json("show", hit["label"], "--save", tmp_path / "p.png", "--index", place)
    assert shown["picture"] == str(tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size == (120, 90)


def test_status_lists_every_file_with_its_state(call, ask_json, place, folder):
    found = ask_json("status", "--files", "--index", place)
    states = {Path(f["path"]).name: f["state"] for f in found["files"]}
    assert states["lemons.md"] == states["square.png"] == "indexed"
    assert states["empty.txt"] == "empty"
    assert states["broken.jpg"] == "failed"
    assert states[".DS_Store"] == "skipped"
    assert len(states) == len(list(folder.iterdir()))
    assert call("status", "--index", place)[0] == 0


def test_doctor_names_every_file_to_look_at(call, ask_json, place):
    found = ask_json("doctor", "--index", place)
    assert {Path(f["path"]).name for f in found["files"]} >= {"empty.txt", "broken.jpg"}
    assert all(f["notes"] for f in found["files"])
    assert {"python", "torch", "faiss", "ocr", "packages"} <= set(found["machine"])
    assert [m["name"] for m in found["models"] if m["version"]]
    code, out, _ = call("doctor", "--index", place)
    assert code == 0
    assert "broken.jpg" in out


def test_remove_and_compact(ask_json, folder, tmp_path, call):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    at = ("--index", tmp_path / "x.fov")
    ask_json("index", copy, *at)
    assert ask_json("remove", copy / "lemons.md", *at)["removed"] == 1
    assert ask_json("compact", *at)["bytes_after"] > 0
    hits = ask_json("search", "lemons", *at)["hits"]
    assert not [h for h in hits if h["path"].endswith("lemons.md")]
    code, _, err = call("remove", "no/such/file", *at)
    assert code == 2
    assert err.startswith("foveate: ")


def test_config_says_where_each_value_came_from(call, ask_json, monkeypatch):
    monkeypatch.setenv("FOVEATE_SEARCH__DEPTH", "77")
    found = ask_json("config", "--set", "ingest.max_pages=5")["settings"]
    assert found["search.depth"] == {"value": 77, "origin": "environment"}
    assert found["ingest.max_pages"] == {"value": 5, "origin": "option"}
    assert found["encoders.text.use"]["origin"] == "preset offline"
    assert found["ingest.ocr"]["origin"] == "default"
    code, out, _ = call("config")
    assert code == 0
    assert "search.depth = 77  (environment)" in out


def test_models_are_listed(ask_json):
    found = ask_json("models")["models"]
    assert {m["name"] for m in found} == {"minilm", "lite0", "lite1", "lite2", "smollm2"}


# -- the index is found as git finds a repository ------------------------------------------------


def test_index_is_found_in_a_parent_or_by_the_environment(call, tmp_path, monkeypatch, place):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "x.txt").write_text(BICYCLE)
    monkeypatch.chdir(tmp_path)
    assert call("index", "x.txt")[0] == 0
    assert (tmp_path / ".foveate").is_dir()
    monkeypatch.chdir(deep)
    code, out, _ = call("search", "worn chain")
    assert (code, out.count("x.txt")) == (0, 1)
    monkeypatch.setenv("FOVEATE_INDEX", place)
    assert cli.run(["search", "lemons"]) == 0


def test_no_index_is_one_line_and_exit_2(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["search", "x"], ["ask", "x"], ["status"], ["show", "1"], ["remove", "x"]):
        code, out, err = call(*command)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert "foveate index" in err


# -- rows of bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["no file", "only empty", "only broken"])
def test_nothing_to_extract_is_exit_1_and_a_sentence(call, tmp_path, make):
    folder = tmp_path / "in"
    folder.mkdir()
    if make == "only empty":
        (folder / "a.txt").write_text("  \n")
    if make == "only broken":
        (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    code, _, err = call("index", folder, "--index", tmp_path / "x.fov")
    assert code == 1
    assert re.fullmatch(r"foveate: nothing could be indexed: .*\n", err)


ODD_NAMES = [
    b"line\nbreak.txt",
    b"caf\xe9 latin1.txt",
    "\U0001f34b lemon.txt".encode(),
    b"n" * 251 + b".txt",
    b"-rf.txt",
    b"tab\tand \x1b[31mred.txt",
    "gpj\u202etxt.txt".encode(),
    b"quote'\".txt",
]


def test_odd_names_are_indexed_and_printed_safely(call, ask_json, tmp_path):
    folder = os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    for n, name in enumerate(ODD_NAMES):
        with open(os.path.join(folder, name), "w") as file:
            file.write(f"Chapter {n} is about sprockets and nothing else, number {n}.\n")
    at = ("--index", tmp_path / "x.fov")
    assert call("index", os.fsdecode(folder), *at)[0] == 0
    hits = ask_json("search", "sprockets", "-k", "20", "--no-collapse", *at)["hits"]
    assert {os.path.basename(os.fsencode(h["path"])) for h in hits} == set(ODD_NAMES)
    for command in (["search", "sprockets", "-k", "20"], ["status", "--files"]):
        out = call(*command, *at)[1]
        out.encode("utf-8")
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", out)
        assert "line\\nbreak.txt" in out
        assert "caf\\xe9 latin1.txt" in out


def test_a_name_with_a_leading_dash_follows_two_dashes(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-rf.txt").write_text(BICYCLE)
    code, out, _ = call("index", "--index", "x.fov", "--", "-rf.txt")
    assert code == 0
    assert "1 added" in out


def test_any_k_is_answered_or_refused(call, ask_json, place):
    n = len(ask_json("search", "the", "-k", "1000", "--no-collapse", "--index", place)["hits"])
    assert 3 <= n < 1000
    for k in ("0", "-1"):
        code, out, err = call("search", "the", "-k", k, "--index", place)
        assert (code, out) == (2, "")
        assert err.startswith("foveate: k must be")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["search", ""],
        ["search", "x", "--where", "name = "],
        ["search", "x", "--mode", "telepathy"],
        ["search", "x", "--modality", "smell"],
        ["search", "x", "--type", "pdf' or 1=1"],
        ["search", "--image", "no-such.png"],
        ["search", "x", "--set", "search.depht=3"],
        ["show", "1", "--span", "9-3"],
        ["index", "no/such/folder"],
        ["models", "install", "gpt9"],
        ["models", "uninstall"],
        ["search", "x", "--depth"],
        ["search", "x", "-k", "many"],
        ["status", "--state", "gone"],
        ["ask", "x", "--rewrite", "reader"],
        ["show", "1", "--crop"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(call, place, args):
    at = [] if args[0] == "models" else ["--index", place]
    code, out, err = call(*args, *at)
    assert (code, out) == (2, "")
    assert err.startswith("foveate: ")
    assert len(err.splitlines()) == 1


def test_a_mistyped_path_leaves_no_index_behind(call, tmp_path):
    code, _, err = call("index", tmp_path / "no-such", "--index", tmp_path / "x.fov")
    assert (code, len(err.splitlines())) == (2, 1)
    assert not (tmp_path / "x.fov").exists()


def test_a_type_goes_by_its_ending_too(ask_json, place):
    found = ask_json("search", "lemons", "--type", "md", "--index", place)
    assert {hit["type"] for hit in found["hits"]} == {"markdown"}


def test_debug_shows_the_traceback(capsys, place):
    assert cli.run(["search", "x", "-k", "0", "--debug", "--index", place]) == 2
    assert "Traceback" in capsys.readouterr().err


# -- no network ----------------------------------------------------------------------------------


def test_no_command_opens_a_connection(call, folder, tmp_path, monkeypatch):
    tried = []

    def refuse(self, address):
        tried.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    at = ("--index", tmp_path / "x.fov")
    assert call("index", folder, *at)[0] == 0
    assert call("search", "lemons", *at)[0] == 0
    assert call("ask", "How long do lemons keep in the refrigerator?", *at)[0] == 0
    assert call("doctor", *at)[0] == 0
    assert tried == []


@pytest.mark.parametrize(
    "env",
    [
        {"HF_HUB_OFFLINE": "1"},
        # the hub's own client tries each file again for a while before it gives up
        pytest.param({"HTTPS_PROXY": "http://127.0.0.1:9"}, marks=pytest.mark.slow),
    ],
    ids=["off", "proxy"],
)
def test_a_forbidden_hub_is_one_line(folder, tmp_path, env):
    base = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    args = ["index", str(folder), "--preset", "standard", "--index", str(tmp_path / "x.fov")]
    done = subprocess.run(
        [*FOVEATE, *args],
        capture_output=True,
        text=True,
        env=base | {"HF_HOME": str(tmp_path / "hub")} | env,
        timeout=290,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("foveate: ")
    assert len(done.stderr.splitlines()) == 1


# -- pipes and terminals -------------------------------------------------------------------------


def test_head_closes_the_pipe_and_nothing_is_said(place):
    command = [*FOVEATE, "search", "the", "-k", "50", "--json", "--index", place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as search:
        head = subprocess.run(["head", "-1"], stdin=search.stdout, capture_output=True)
        search.stdout.close()
        err = search.stderr.read()
        code = search.wait(60)
    assert head.stdout == b"{\n"
    assert err == b""
    assert code in (0, -signal.SIGPIPE)


def test_a_closed_pipe_is_no_error(place):
    read, write = os.pipe()
    os.close(read)
    command = [*FOVEATE, "status", "--files", "--json", "--index", place]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 0


STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def default_signals():
    """Undo what a shell's background job ignores, and so would its children."""
    for number, _ in STOPS:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(("stop", "code"), STOPS)
def test_a_stopped_index_is_one_line_and_goes_on(tmp_path, stop, code):
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(3000):
        (folder / f"{n}.txt").write_text(f"Note {n}. " + BICYCLE * 40)
    place = tmp_path / "x.fov"
    command = [*FOVEATE, "index", str(folder), "--index", str(place)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=default_signals,
    ) as job:
        for _ in range(600):
            if place.exists():
                break
            time.sleep(0.05)
        time.sleep(1.0)
        job.send_signal(stop)
        _, err = job.communicate(timeout=60)
    assert job.returncode == code
    assert err.decode().strip() == "foveate: interrupted; what was committed is kept"
    done = subprocess.run(
        [*FOVEATE, "status", "--json", "--index", str(place)], capture_output=True
    )
    assert done.returncode == 0


@pytest.mark.parametrize(("stop", "code"), STOPS)
def test_a_stopped_evaluation_is_one_line(tmp_path, stop, code):
    docs = tmp_path / "many"
    (docs / "qrels").mkdir(parents=True)
    rows = ({"_id": f"d{n}", "text": f"Note {n}. {BICYCLE * 20}"} for n in range(3000))
    (docs / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (docs / "queries.jsonl").write_text('{"_id": "q", "text": "a worn chain"}\n')
    (docs / "qrels" / "test.tsv").write_text("q\td1\t1\n")
    command = [*FOVEATE, "eval", str(docs), "--cache", str(tmp_path / "cache")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=default_signals
    ) as job:
        begun = job.stderr.readline()
        time.sleep(1.0)
        job.send_signal(stop)
        out, err = job.communicate(timeout=60)
    assert begun == b"[1/1] many, offline\n"
    assert (job.returncode, out) == (code, b"")
    assert err.decode() == "foveate: interrupted; what was committed is kept\n"


def test_a_signal_that_is_ignored_from_outside_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with cli.ended_as_interrupted(["index"]) as stops:
            os.kill(os.getpid(), signal.SIGTERM)
        assert stops == []
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with cli.ended_as_interrupted(["--debug", "serve"]):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt), cli.ended_as_interrupted(["index"]) as stops:
            os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def on_a_terminal(args, **env):
    """Run a command on a pseudo-terminal; return what it wrote there."""
    main, child = pty.openpty()
    base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "TMUX")}
    with subprocess.Popen(
        [*FOVEATE, *args], stdout=child, stderr=child, env=base | {"TERM": "xterm-256color"} | env
    ) as job:
        os.close(child)
        out = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # Linux's word for the end of a pseudo-terminal
                break
            if not part:
                break
            out += part
        job.wait(60)
    os.close(main)
    return out.decode().replace("\r\n", "\n")


def test_colour_on_a_terminal_and_none_without(place):
    args = ["search", "worn chain", "--index", place]
    lit = on_a_terminal(args, COLUMNS="80")
    assert re.search(r"\x1b\[[\d;]*33m(worn|chain)", lit)
    plain = on_a_terminal(args, COLUMNS="80", NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\d", plain)
    piped = subprocess.run([*FOVEATE, *args], capture_output=True, text=True)
    assert "\x1b" not in piped.stdout + piped.stderr


def test_forty_columns_are_kept(place):
    args = ["search", "worn chain", "--explain", "--modality", "text", "--index", place]
    out = on_a_terminal(args, COLUMNS="40", NO_COLOR="1")
    lines = re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()
    assert max(map(len, lines)) <= 40


def test_pictures_are_shown_inline_where_the_terminal_can(place):
    args = ["search", "red", "--modality", "image", "--index", place]
    assert "\x1b_Ga=T" in on_a_terminal(args, TERM="xterm-kitty")
    assert "\x1bPq" in on_a_terminal(args, FOVEATE_IMAGES="sixel")
    assert "\x1b_G" not in on_a_terminal(args)


def test_an_ascii_locale_does_not_stop_a_result(place):
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [*FOVEATE, "status", "--index", place]
    done = subprocess.run(command, capture_output=True, env=env)
    assert done.returncode == 0
    assert b"a b \\xc3\\xa9.fov" in done.stdout


def test_run_as_a_script_it_finds_the_real_packages(tmp_path):
    script = Path(cli.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.startswith("foveate ")
    assert done.returncode == 0


# -- the demo ------------------------------------------------------------------------------------

PICTURES = {
    "a hot air balloon": "in-the-sky.jpg",
    "a red umbrella": "after-the-storm.jpg",
    "candle light": "power-cut.jpg",
    "traffic lights": "way-to-work.jpg",
    "a teapot": "afternoon.webp",
    "a clock on the wall": "kitchen-wall.png",
    "green apples": "for-the-pie.jpg",
    "strawberries": "june.jpg",
    "a lemon": "windowsill.jpg",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's folder and what it printed."""
    place = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [*FOVEATE, "demo", "--folder", str(place)], capture_output=True, text=True, cwd=place
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return place, done.stdout


def test_demo_ends_with_a_cited_answer_and_a_picture(demo):
    index, passage, picture, answer = re.split(r"^\$ foveate .*\n", demo[1], flags=re.M)[1:]
    assert not re.search(r"^(failed|skipped|empty): ", index, re.M)
    assert "lemons.md" in passage.splitlines()[0]
    assert "in-the-sky.jpg" in picture.splitlines()[0]
    assert "90" in answer
    assert re.search(r"^\[1\] .*boiling\.md", answer, re.M)


def test_pictures_of_the_sample_are_found_by_what_they_show(ask_json, demo):
    at = ("--modality", "image", "-k", "3", "--index", demo[0] / "demo.fov")
    best = {}
    for query in PICTURES:
        hits = ask_json("search", query, *at)["hits"]
        best[query] = Path(hits[0]["path"]).name
    wrong = {q: name for q, name in best.items() if name != PICTURES[q]}
    assert len(wrong) <= 1, wrong


def test_a_scan_is_found_by_its_ocr_text(ask_json, demo):
    hits = ask_json("search", "melt snow with warm water", "--index", demo[0] / "demo.fov")["hits"]
    assert hits[0]["path"].endswith("rain-gauge-scan.pdf")
    assert hits[0]["page"] == 1
