"""Generators: whatever one streams, what is read of it is bounded and whole."""

import http.server
import inspect
import json
import threading
import time
from pathlib import Path

import pytest

from foveate.pipeline import registry
from foveate.pipeline.completion import complete, until
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.generators.extractive import Extractive
from foveate.pipeline.generators.openai import OpenAICompatible
from foveate.pipeline.generators.transformers import repeats
from foveate.pipeline.protocols import Generator

MESSAGES = [{"role": "user", "content": "Cats sleep. Dogs bark at night.\nWhen do dogs bark?"}]


class Stream:
    """A generator that streams what a function yields."""

    name = "stream"
    window_tokens = 1000

    def __init__(self, make):
        self.make = make

    def count_tokens(self, text):
        return len(text.split())

    def generate(self, messages, *, max_tokens=256, stop=(), timeout_s=120.0):
        return self.make()


def test_the_registry_names_each_file_and_each_makes_a_generator():
    folder = Path(inspect.getfile(registry)).parent / "generators"
    files = {p.stem for p in folder.glob("*.py")} - {"__init__"}
    assert files == set(registry.names("generator"))
    assert isinstance(registry.find("generator", "extractive")(), Generator)


def test_a_normal_stream_is_joined():
    got = complete(Stream(lambda: iter(["Hel", "lo", "."])), MESSAGES)
    assert (got.text, got.stopped) == ("Hello.", "end")


def test_nothing_is_an_empty_text():
    assert complete(Stream(lambda: iter(())), MESSAGES).text == ""


def test_an_endless_repeat_is_cut_to_one():
    def forever():
        yield "It is so. "
        while True:
            yield "And so it is. "

    began = time.monotonic()
    got = complete(Stream(forever), MESSAGES, timeout_s=20)
    assert got.stopped == "repeat"
    assert got.text.count("And so it is") == 1
    assert time.monotonic() - began < 10


def test_an_endless_stream_without_repeats_is_bounded():
    def forever():
        n = 0
        while True:
            n += 1
            yield f"{n * n} "

    got = complete(Stream(forever), MESSAGES, max_tokens=50, timeout_s=20)
    assert got.stopped == "length"
    assert len(got.text) <= 50 * 12


def test_a_generator_that_hangs_times_out_with_what_it_wrote(monkeypatch):
    monkeypatch.setattr("foveate.pipeline.completion.GRACE_S", 0.1)
    release = threading.Event()

    def hang():
        yield "So far. "
        release.wait(20)

    began = time.monotonic()
    got = complete(Stream(hang), MESSAGES, timeout_s=0.3)
    release.set()
    assert (got.text, got.stopped) == ("So far. ", "timeout")
    assert time.monotonic() - began < 5


def test_an_error_is_told_and_what_came_before_is_kept():
    def fail():
        yield "Half"
        raise OSError("gone")

    got = complete(Stream(fail), MESSAGES)
    assert (got.text, got.stopped, got.detail) == ("Half", "error", "OSError: gone")


def test_half_characters_and_control_codes_do_not_get_through():
    got = complete(Stream(lambda: iter(["a\ufffd", "\x1b[2Jb", "\ud83d", "\u009bc\n"])), MESSAGES)
    assert got.text == "a[2Jbc\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_a_stop_string_is_seen_across_pieces(size):
    text = "One two STOP three"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert "".join(until(pieces, ["STOP", "never"])) == "One two "
    assert "".join(until(pieces, ["absent"])) == text


def test_stopping_early_closes_the_stream():
    closed = []

    def pieces():
        try:
            yield "a STOP"
            yield "b"
        finally:
            closed.append(True)

    assert list(until(pieces(), ["STOP"])) == ["a "]
    assert closed == [True]


def test_token_repeats_are_seen_and_honest_ones_are_not():
    assert repeats([5] * 20)
    assert repeats([9, *[1, 2, 3, 4, 5] * 3])
    assert not repeats([1, 2, 3, 1, 2, 3, 4])
    assert not repeats(list(range(60)))


def test_the_extractive_one_quotes_the_line_that_shares_words():
    assert "".join(Extractive().generate(MESSAGES)).strip() == "Dogs bark at night."
    assert list(Extractive().generate([])) == []


class Endpoint(http.server.BaseHTTPRequestHandler):
    """A chat endpoint whose behaviour the server object says."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        self.server.behave(self, body)

    def log_message(self, *args):
        pass

    def stream(self, lines):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        for line in lines:
            self.wfile.write(line)
            self.wfile.flush()


def event(text):
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.seen, server.behave = [], None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_remote_answer_streams_with_the_key_of_the_environment(endpoint, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "s3cret")
    endpoint.behave = lambda h, b: h.stream(
        [b": hello\n\n", event("Gr"), event("\u00fc\u00dfe"), b"data: [DONE]\n\n", event("no")]
    )
    generator = OpenAICompatible(base_url=endpoint.url, model="m", key_env="SOME_KEY")
    assert "".join(generator.generate(MESSAGES, max_tokens=7, stop=["x"])) == "Gr\u00fc\u00dfe"
    path, headers, body = endpoint.seen[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer s3cret"
    assert (body["model"], body["max_tokens"], body["messages"]) == ("m", 7, MESSAGES)
    assert "s3cret" not in repr(vars(generator).keys())


def test_a_plain_json_answer_is_read_too(endpoint):
    def behave(handler, body):
        data = json.dumps({"choices": [{"message": {"content": "Yes."}}]}).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    endpoint.behave = behave
    assert list(OpenAICompatible(base_url=endpoint.url).generate(MESSAGES)) == ["Yes."]


def refuse(code):
    def behave(handler, body):
        handler.send_response(code)
        if code == 302:
            handler.send_header("Location", "http://127.0.0.1:1/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return behave


@pytest.mark.parametrize(("code", "tries"), [(503, 3), (429, 3), (401, 1), (302, 1)])
def test_only_a_busy_endpoint_is_asked_again(endpoint, code, tries):
    endpoint.behave = refuse(code)
    with pytest.raises(ModelError, match=f"did not answer: HTTP {code}"):
        list(OpenAICompatible(base_url=endpoint.url).generate(MESSAGES))
    assert len(endpoint.seen) == tries


def test_a_slow_endpoint_times_out(endpoint):
    def behave(handler, body):
        handler.stream([event("begin ")])
        time.sleep(1.5)

    endpoint.behave = behave
    began = time.monotonic()
    generator = OpenAICompatible(base_url=endpoint.url, retries=0)
    assert "".join(generator.generate(MESSAGES, timeout_s=0.4)) == "begin "
    assert time.monotonic() - began < 1.4


@pytest.mark.parametrize(
    "line", [b"data: {nope\n\n", b"data: [1]\n\n", b'data: {"error": "x"}\n\n']
)
def test_an_endpoint_that_breaks_the_protocol_is_told(endpoint, line):
    endpoint.behave = lambda h, b: h.stream([line])
    with pytest.raises(ModelError, match="endpoint"):
        list(OpenAICompatible(base_url=endpoint.url).generate(MESSAGES))


def test_an_endpoint_must_be_named_and_a_key_is_not_sent_in_the_clear(monkeypatch):
    with pytest.raises(ConfigError, match="base_url"):
        OpenAICompatible()
    with pytest.raises(ConfigError, match="base_url"):
        OpenAICompatible(base_url="file:///etc/passwd")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ConfigError, match="unencrypted"):
        OpenAICompatible(base_url="http://example.org/v1")
    OpenAICompatible(base_url="http://localhost:1/v1")


def test_nobody_listening_is_one_line():
    generator = OpenAICompatible(base_url="http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(ModelError, match="did not answer"):
        list(generator.generate(MESSAGES, timeout_s=2))
