"""Any endpoint that speaks the OpenAI chat protocol, named by the user."""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import json
import math
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.pipeline.completion import Stream, Usage, until
from foveate.pipeline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from PIL.Image import Image

RETRY = frozenset({408, 409, 429, 500, 502, 503, 504})
LONGEST_LINE = 1 << 20  # bytes of one event
LONGEST_SIDE_PX = 1536  # of a picture that is sent; models scale larger ones down themselves
LONGEST_WAIT_S = 20.0  # that an endpoint may ask for between two tries
HIDDEN = "[key]"


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class OpenAICompatible:
    """Stream from `{base_url}/chat/completions`: llama.cpp's server, vLLM, Ollama, hosted ones.

    Args:
        base_url: as `http://localhost:8080/v1`. There is no default: text leaves this machine
            only for a place that the user named.
        model: the model's name there.
        key_env: environment variable that holds the key; the key itself is never an option.
        window_tokens: the model's window.
        retries: tries after the first, for a busy or unreachable endpoint.
        pictures: whether the model there takes pictures; they are sent only then.

    Raises:
        ConfigError: if base_url is missing or holds a password, or a key would be sent over http
            to another machine.
    """

    def __init__(
        self,
        *,
        base_url: str = "",
        model: str = "default",
        key_env: str = "OPENAI_API_KEY",
        window_tokens: int = 8192,
        retries: int = 2,
        temperature: float = 0.0,
        pictures: bool = False,
    ) -> None:
        parts = urllib.parse.urlsplit(base_url)
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                "generator 'openai' takes a base_url without a password or parameters: put the key "
                f"into the environment variable {key_env}"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "generator 'openai' needs base_url, as in http://localhost:8080/v1, "
                f"got {base_url!r}"
            )
        self._key = os.environ.get(key_env, "")
        if self._key and parts.scheme == "http" and not is_local(parts.hostname):
            raise ConfigError(
                f"the key in {key_env} would be sent unencrypted to {parts.hostname!r}: use https"
            )
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.name = f"openai:{model}"
        self.window_tokens = window_tokens
        self.reads = frozenset({"text", "image"}) if pictures else frozenset({"text"})
        self._model, self._retries, self._temperature = model, retries, temperature

    def __repr__(self) -> str:
        return f"OpenAICompatible(base_url={self.url!r}, model={self._model!r})"

    def count_tokens(self, text: str) -> int:
        """Estimate from above: a tokenizer makes at most one token of three bytes, on average."""
        return math.ceil(len(text.encode("utf-8", "replace")) / 3)

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Stream:
        """Yield the answer's pieces as they arrive; a message's `images` go with its text.

        Raises:
            ModelError: if the endpoint cannot be reached, refuses, breaks off before its end, or
                answers with no protocol.
        """
        deadline = time.monotonic() + timeout_s
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [self._message(m) for m in messages],
            "max_tokens": max_tokens,
            "temperature": self._temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if stop:
            body["stop"] = list(stop)[:4]  # the protocol's limit; `until` holds to all of them
        stream = Stream(())
        return stream.follow(until(self._pieces(body, deadline, stream), stop))

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        images = message.get("images") or ()
        text = message["content"]
        if not images or "image" not in self.reads:
            return {"role": message["role"], "content": text}
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": data_url(image)}} for image in images
        ]
        return {"role": message["role"], "content": [{"type": "text", "text": text}, *parts]}

    def _pieces(self, body: Mapping[str, Any], deadline: float, stream: Stream) -> Iterator[str]:
        with self._connect(json.dumps(body).encode(), deadline) as response:
            try:
                yield from events(response, deadline, stream)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() < deadline:
                    raise ModelError(f"{self.name} broke off: {self._hide(error)}") from error
            except ModelError as error:
                raise ModelError(self._hide(error)) from error

    def _hide(self, told: object) -> str:
        """Take the key out of what an endpoint says: some repeat it in an error."""
        return str(told).replace(self._key, HIDDEN) if self._key else str(told)

    def _connect(self, body: bytes, deadline: float) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        opener = urllib.request.build_opener(NoRedirect)
        reason = "no time left"
        for attempt in range(self._retries + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            wait_s = 0.25 * 2**attempt
            request = urllib.request.Request(self.url, body, headers)
            try:
                return opener.open(request, timeout=left)  # type: ignore[no-any-return]
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code} {error.reason}"
                wait_s = max(wait_s, asked_wait(error.headers.get("Retry-After")))
                error.close()
                if error.code not in RETRY:
                    break
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            if attempt < self._retries:
                time.sleep(max(0.0, min(wait_s, deadline - time.monotonic())))
        raise ModelError(f"{self.name} at {self.url} did not answer: {self._hide(reason)}")


def asked_wait(header: str | None) -> float:
    """Return the seconds of a Retry-After header, 0 where it has none or names a date."""
    try:
        return min(LONGEST_WAIT_S, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0


def events(
    response: http.client.HTTPResponse, deadline: float, stream: Stream | None = None
) -> Iterator[str]:
    """Yield the text of a stream of server-sent events, or of one plain JSON answer.

    Raises:
        ModelError: if the stream ends before the endpoint said that it is done.
    """
    if "event-stream" not in response.headers.get("Content-Type", ""):
        message = parse(response.read(LONGEST_LINE))
        take_usage(message, stream)
        yield from text_of(message)
        return
    done = False
    while time.monotonic() < deadline:
        line = response.readline(LONGEST_LINE)
        if not line:
            if done:
                return
            raise ModelError("the endpoint broke off before the answer's end")
        field, _, value = line.strip().partition(b":")
        if field != b"data":
            continue
        if value.strip() == b"[DONE]":
            return
        message = parse(value)
        done = done or any(c.get("finish_reason") for c in choices(message))
        take_usage(message, stream)
        yield from text_of(message)


def parse(data: bytes) -> dict[str, Any]:
    """Read one message.

    Raises:
        ModelError: if it is no JSON object, or reports an error.
    """
    try:
        message = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"expected JSON from the endpoint, got {data[:80]!r}") from error
    if not isinstance(message, dict):
        raise ModelError(f"expected a JSON object from the endpoint, got {data[:80]!r}")
    if message.get("error"):
        raise ModelError(f"the endpoint reports {str(message['error'])[:200]}")
    return message


def choices(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = message.get("choices")
    return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []


def text_of(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text that a message carries, if any."""
    for choice in choices(message):
        part = choice.get("delta") or choice.get("message") or {}
        content = part.get("content") if isinstance(part, dict) else None
        if isinstance(content, str) and content:
            yield content


def data_url(image: Image) -> str:
    """Return a picture as the protocol wants it: a JPEG in base64, no metadata of the file."""
    picture = image.convert("RGB")
    picture.thumbnail((LONGEST_SIDE_PX, LONGEST_SIDE_PX))
    packed = io.BytesIO()
    picture.save(packed, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(packed.getvalue()).decode()}"


def take_usage(message: Mapping[str, Any], stream: Stream | None) -> None:
    counted = message.get("usage")
    if stream is None or not isinstance(counted, dict):
        return
    values = [counted.get(name) for name in ("prompt_tokens", "completion_tokens")]
    if all(isinstance(value, int) for value in values):
        stream.usage = Usage(*values)  # type: ignore[arg-type]


def is_local(host: str) -> bool:
    """Whether a host name is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
