"""Start and end: the command, its refusals, and what a shutdown leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from foveate.pipeline.serve.work import Clerk, Stopping


def command(*args, env=None, **options):
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "foveate.cli", "serve", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(env or {})}, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "env", "told"),
    [
        (["--host", "0.0.0.0"], {}, "FOVEATE_TOKEN"),
        (["--host", "0.0.0.0"], {"FOVEATE_TOKEN": "short"}, "16"),
        (["--token-file", "/no/such/file"], {}, "token file"),
        (["--port", "99999"], {}, "port"),
        (["--root", "/no/such/folder"], {}, "--root"),
        (["--set", "serve.n_serching=3"], {}, "n_searching"),
        ([], {}, "no index"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(tmp_path, args, env, told):
    place = ["--index", str(tmp_path / "none.fov")]
    done = command(*args, *place, env=env)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 2
    assert out == ""
    assert told in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.models
def test_the_command_serves_and_ends_cleanly(tmp_path):
    import foveate

    (tmp_path / "lemons.md").write_text("Lemons keep four weeks in the refrigerator.")
    with foveate.open(tmp_path / "ix.fov", create=True) as engine:
        engine.add(tmp_path / "lemons.md")
    server = command("--index", str(tmp_path / "ix.fov"), "--port", "0")
    try:
        line = server.stderr.readline()
        url = line.split("listening on ")[1].split()[0]
        found = httpx.post(f"{url}/api/search", json={"text": "lemons"}, timeout=60).json()
        assert found["hits"][0]["name"] == "lemons.md"
        assert "foveate" in httpx.get(url).text
    finally:
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
    assert server.returncode in (0, -signal.SIGTERM)
    assert out == ""
    assert "Traceback" not in err
    with foveate.open(tmp_path / "ix.fov") as engine:
        assert engine.check()["ok"]


def test_a_stop_ends_what_is_being_written_at_its_next_step():
    clerk = Clerk()
    steps = []

    def work(job):
        report = clerk.progress(job)
        for n in range(1000):
            report("read", n, 1000)
            steps.append(n)
            time.sleep(0.01)
        return {}

    running = clerk.submit("add", "a", work)
    waiting = clerk.submit("add", "b", lambda job: {})
    while not steps:
        time.sleep(0.005)
    clerk.close()
    assert running.state == waiting.state == "failed"
    assert "what was committed is kept" in running.error
    assert len(steps) < 1000
    with pytest.raises(Stopping):
        clerk.submit("add", "c", lambda job: {})


def test_one_change_that_fails_does_not_stop_the_next():
    clerk = Clerk()

    def broken(job):
        raise ZeroDivisionError("oh")

    first, second = clerk.submit("add", "a", broken), clerk.submit("add", "b", lambda job: {"n": 1})
    assert second.finished.wait(10)
    clerk.close()
    assert (first.state, second.state, second.report) == ("failed", "done", {"n": 1})
    assert first.error == "ZeroDivisionError: oh"


def test_searches_go_on_while_a_change_is_written(start, tmp_path):
    listener = start()
    many = tmp_path / "many"
    many.mkdir()
    for n in range(150):
        (many / f"{n}.txt").write_text(f"Heron number {n} stands on the quay.")
    service = listener.server.service
    job = service.clerk.submit("add", "many", lambda job: service._add([str(many)], job))
    n_found = []
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        while not job.finished.is_set():
            answer = client.post("/api/search", json={"text": "heron quay lemons"})
            assert answer.status_code == 200
            n_found.append(len(answer.json()["hits"]))
        last = client.post("/api/search", json={"text": "heron quay", "k": 50, "collapse": False})
    assert job.state == "done"
    assert n_found
    assert len(last.json()["hits"]) == 50
