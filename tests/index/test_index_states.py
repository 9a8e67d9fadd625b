"""Random sequences of adding, replacing, removing, killing and reopening against a plain dict."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foveate.index.disk import DiskIndex

_spec = importlib.util.spec_from_file_location("maker", Path(__file__).with_name("conftest.py"))
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
MAKER = _module.Maker()

PATHS = st.sampled_from(["/a/1.txt", "/a/2.txt", "/b/3.txt", "/b/ü 4.txt", "/c/\udcff5.txt"])
WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]
LINE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
TEXTS = st.lists(LINE, min_size=1, max_size=4).map("\n".join)


class Machine(RuleBasedStateMachine):
    """committed and current: path -> text, or None for a file that holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.index = DiskIndex.create(
            self.folder / "x.fov", towers=MAKER.towers, settings={}, flat_max=8, exact_max=2,
            tail_max=4, kind="hnsw",
        )  # fmt: skip
        self.committed: dict[str, str | None] = {}
        self.ids: dict[int, str] = {}
        self.held: object | None = None
        self.context = None

    def _write(self):
        if self.context is None:
            self.context = self.index.writer()
            self.held = self.context.__enter__()
            self.current = dict(self.committed)
        return self.held

    @rule(path=PATHS, text=TEXTS)
    def put(self, path, text):
        MAKER.put(self._write(), path, text)
        self.current[path] = text

    @rule(path=PATHS)
    def remove(self, path):
        there = self._write().remove(path)
        assert there == (path in self.current)
        self.current.pop(path, None)

    @rule(path=PATHS)
    def skip(self, path):
        self._write().skip(path, 3, 4, (), "skipped")
        self.current[path] = None

    @rule(path=PATHS, other=PATHS)
    def copy(self, path, other):
        writer = self._write()
        if self.current.get(other) is not None:
            writer.copy_file(path, 1, 2, other)
            self.current[path] = self.current[other]

    @precondition(lambda self: self.context is not None)
    @rule()
    def commit(self):
        self.held.commit()
        self.committed = dict(self.current)

    @precondition(lambda self: self.context is not None)
    @rule()
    def leave(self):
        context, self.context = self.context, None
        context.__exit__(None, None, None)
        self.committed = dict(self.current)

    @precondition(lambda self: self.context is not None)
    @rule()
    def fail(self):
        context, self.context = self.context, None
        error = RuntimeError("in the middle")
        # False: the error goes on to whoever raised it
        assert context.__exit__(RuntimeError, error, None) is False

    @precondition(lambda self: self.context is None)
    @rule()
    def reopen(self):
        self.index.close()
        self.index = DiskIndex.open(self.folder / "x.fov")

    @precondition(lambda self: self.context is None)
    @rule()
    def compact(self):
        self.index.compact()

    @invariant()
    def holds_what_was_committed(self):
        expected = sorted(
            (line, text) for text in set(self.committed.values()) if text
            for line in text.split("\n")
        )  # fmt: skip
        sources = {s.id: s for s in self.index.sources()}
        assert {u for s in sources.values() for u in s.uris} == {
            p for p, t in self.committed.items() if t
        }
        n = self.index.count()
        assert n == len(expected)
        query = MAKER.vector("alpha bravo")[None]
        scores, ids = self.index.search_vectors("text", query, max(1, n + 3))
        real = ids[0][ids[0] >= 0].tolist()
        assert len(real) == n
        passages = self.index.passages(real)
        assert [p.id for p in passages] == real
        found = sorted((p.text, self.index.source_text(p.source.id)) for p in passages)
        assert found == expected
        for score, passage in zip(scores[0], passages, strict=False):
            assert abs(float(MAKER.vector(passage.text) @ query[0]) - score) < 1e-5
            # an id is never given to another passage
            assert self.ids.setdefault(passage.id, passage.text) == passage.text
        assert (np.diff(scores[0][: len(real)]) <= 1e-6).all()

    @invariant()
    def words_agree(self):
        for word in ("alpha", "hotel"):
            _, ids = self.index.search_words(word, 100)
            lines = [
                line for text in set(self.committed.values()) if text
                for line in text.split("\n") if word in line.split()
            ]  # fmt: skip
            assert sorted(p.text for p in self.index.passages(ids)) == sorted(lines)

    def teardown(self):
        if self.context is not None:
            self.leave()
            self.holds_what_was_committed()
        report = self.index.check()
        assert report["ok"], report
        self.index.close()
        shutil.rmtree(self.folder)


TestStates = Machine.TestCase
TestStates.settings = settings(
    max_examples=8, stateful_step_count=16, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
