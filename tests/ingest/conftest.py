"""Shared by the tests of ingest: files made of bytes, and a tokenizer that needs no model."""

import os
import pathlib
import re

import numpy as np
import pytest

from foveate.pipeline.ingest.options import IngestOptions
from foveate.pipeline.ingest.read import read

_TOKEN = re.compile(r"[^\W_]{1,6}|[^\w\s]|_")


@pytest.fixture(scope="session")
def word_spans():
    """text -> (t, 2) int32: words in pieces of six letters, marks one by one."""

    def spans(text):
        found = [match.span() for match in _TOKEN.finditer(text)]
        return np.array(found, dtype=np.int32).reshape(-1, 2)

    return spans


@pytest.fixture
def read_bytes(tmp_path):
    """Write bytes under a name and read them: (name, data, **options) -> list of Documents."""

    def read_all(name, data, **options):
        path = tmp_path / name
        path.write_bytes(data)
        return list(read(str(path), IngestOptions(**options)))

    return read_all


@pytest.fixture(scope="session")
def eval_data():
    """The folder of evaluation data, or skip."""
    beside = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = pathlib.Path(os.environ.get("FOVEATE_EVAL_DATA", beside))
    if not folder.is_dir():
        pytest.skip("no evaluation data: set FOVEATE_EVAL_DATA")
    return folder
