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


DONE = b"data: [DONE]\n\n"


def test_a_stream_that_breaks_off_is_an_error_and_not_an_end(endpoint):
    endpoint.behave = lambda h, b: h.stream([event("The answer is for")])
    got = complete(OpenAICompatible(base_url=endpoint.url), MESSAGES, timeout_s=5)
    assert (got.text, got.stopped) == ("The answer is for", "error")
    assert "broke off" in got.detail


def test_a_finish_reason_is_an_end_even_without_the_closing_line(endpoint):
    last = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    endpoint.behave = lambda h, b: h.stream([event("All."), last])
    got = complete(OpenAICompatible(base_url=endpoint.url), MESSAGES, timeout_s=5)
    assert (got.text, got.stopped) == ("All.", "end")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_endpoint_that_recovers_gives_its_answer(endpoint, code):
    def behave(handler, body):
        if len(endpoint.seen) == 1:
            handler.send_response(code)
            handler.send_header("Retry-After", "0.4")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        else:
            handler.stream([event("Here."), DONE])

    endpoint.behave = behave
    began = time.monotonic()
    assert list(OpenAICompatible(base_url=endpoint.url).generate(MESSAGES)) == ["Here."]
    assert len(endpoint.seen) == 2
    # as long as the endpoint asked for, not the shorter pause of our own
    assert time.monotonic() - began >= 0.4


def test_an_endpoint_cannot_make_us_wait_past_the_time_that_is_left(endpoint):
    def behave(handler, body):
        handler.send_response(429)
        handler.send_header("Retry-After", "3600")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    endpoint.behave = behave
    began = time.monotonic()
    got = complete(OpenAICompatible(base_url=endpoint.url), MESSAGES, timeout_s=0.5)
    assert got.stopped == "error"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": ["x", {"delta": "y"}, {"delta": {"content": 7}}]}\n\n',
        b'data: {"choices": null, "usage": {"prompt_tokens": "many"}}\n\n',
        b"data: " + b"[" * 5000 + b"\n\n",
        b"data: \xff\xfe\n\n",
        b"x" * 5000 + b"\n",
        b"event: ping\nid: 3\nretry: 1\n\n",
    ],
)
def test_odd_json_is_told_or_passed_over_and_never_becomes_text(endpoint, line):
    endpoint.behave = lambda h, b: h.stream([line, event("fine"), DONE])
    got = complete(OpenAICompatible(base_url=endpoint.url), MESSAGES, timeout_s=5)
    assert (got.text, got.stopped) in [("fine", "end"), ("", "error")]
    assert "TypeError" not in got.detail
    assert "AttributeError" not in got.detail


def test_slow_tokens_come_as_they_are_made_and_end_at_the_limit(endpoint):
    def behave(handler, body):
        handler.stream(slow(handler))

    def slow(handler):
        for n in range(100):
            yield event(f"w{n} ")
            time.sleep(0.05)

    endpoint.behave = behave
    arrived = []
    generator = OpenAICompatible(base_url=endpoint.url)
    began = time.monotonic()
    for piece in generator.generate(MESSAGES, timeout_s=0.6):
        arrived.append((piece, time.monotonic() - began))
    assert 3 <= len(arrived) <= 14
    assert arrived[0][1] < 0.4 < time.monotonic() - began < 1.5
    assert "".join(p for p, _ in arrived) == "".join(f"w{n} " for n in range(len(arrived)))


def test_a_person_who_has_had_enough_ends_an_answer_within_moments(endpoint):
    enough = threading.Event()

    def behave(handler, body):
        handler.stream([event("begun ")])
        enough.set()
        time.sleep(1.0)

    endpoint.behave = behave
    began = time.monotonic()
    got = complete(OpenAICompatible(base_url=endpoint.url), MESSAGES, cancelled=enough)
    assert got.stopped == "cancelled"
    assert time.monotonic() - began < 0.9


def test_what_an_answer_took_is_told(endpoint):
    counted = b'data: {"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 4}}\n\n'
    endpoint.behave = lambda h, b: h.stream([event("Yes."), counted, DONE])
    got = complete(OpenAICompatible(base_url=endpoint.url), MESSAGES, timeout_s=5)
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (31, 4)
    assert endpoint.seen[0][2]["stream_options"] == {"include_usage": True}


def test_a_key_that_an_endpoint_repeats_is_not_printed(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    told = b'data: {"error": "invalid key sk-very-secret"}\n\n'
    endpoint.behave = lambda h, b: h.stream([told])
    generator = OpenAICompatible(base_url=endpoint.url)
    got = complete(generator, MESSAGES, timeout_s=5)
    assert got.stopped == "error"
    assert "sk-very-secret" not in got.detail
    assert "invalid key" in got.detail
    assert "sk-very-secret" not in repr(generator)


@pytest.mark.parametrize("url", ["http://me:pw@localhost/v1", "http://localhost/v1?key=abcd"])
def test_a_key_in_the_address_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as told:
        OpenAICompatible(base_url=url)
    assert "pw" not in str(told.value)
    assert "abcd" not in str(told.value)


@pytest.mark.parametrize("pictures", [True, False])
def test_pictures_go_only_to_a_model_that_takes_them(endpoint, pictures):
    import base64
    import io

    from PIL import Image

    endpoint.behave = lambda h, b: h.stream([event("Red."), DONE])
    generator = OpenAICompatible(base_url=endpoint.url, pictures=pictures)
    image = Image.new("RGB", (4000, 20), (200, 10, 10))
    list(generator.generate([{"role": "user", "content": "Colour?", "images": [image]}]))
    (message,) = endpoint.seen[0][2]["messages"]
    if not pictures:
        assert message == {"role": "user", "content": "Colour?"}
        return
    text, picture = message["content"]
    assert text == {"type": "text", "text": "Colour?"}
    head, _, data = picture["image_url"]["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    sent = Image.open(io.BytesIO(base64.b64decode(data)))
    assert max(sent.size) <= 1536
    assert sent.getpixel((5, 2))[0] > 150


def test_llamacpp_that_is_not_installed_names_what_to_do():
    import importlib.util

    from foveate.pipeline.errors import MissingExtra
    from foveate.pipeline.generators.llamacpp import LlamaCpp

    if importlib.util.find_spec("llama_cpp") is not None:
        pytest.skip("llama-cpp-python is installed")
    generator = LlamaCpp()
    with pytest.raises(MissingExtra, match="llama-cpp-python"):
        list(generator.generate(MESSAGES))
    assert complete(generator, MESSAGES).stopped == "error"


def test_llamacpp_streams_what_its_library_yields(monkeypatch, tmp_path):
    import sys
    import types

    from foveate.pipeline.generators.llamacpp import LlamaCpp

    asked = {}

    class Llama:
        def __init__(self, **options):
            asked["made"] = options

        def tokenize(self, data, *, add_bos, special):
            # text that spells a special token must not become one
            assert not special
            return list(data)

        def create_chat_completion(self, **options):
            asked["chat"] = options
            for text in (None, "Dogs bark ", "at night. STOP", "more"):
                yield {"choices": [{"delta": {"content": text} if text else {"role": "x"}}]}

    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Llama))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    got = complete(LlamaCpp(path=file, window_tokens=512), MESSAGES, max_tokens=9, stop=["STOP"])
    assert (got.text, got.stopped) == ("Dogs bark at night. ", "end")
    assert (asked["made"]["n_ctx"], asked["chat"]["max_tokens"]) == (512, 9)
    assert asked["chat"]["messages"] == MESSAGES
