"""Any endpoint that speaks the OpenAI chat protocol, named by the user."""

from __future__ import annotations

import http.client
import ipaddress
import json
import math
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foveate.pipeline.completion import until
from foveate.pipeline.errors import ConfigError, ModelError

RETRY = frozenset({408, 409, 429, 500, 502, 503, 504})
LONGEST_LINE = 1 << 20  # bytes of one event


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class OpenAICompatible:
    """Stream from `{base_url}/chat/completions`.

    Args:
        base_url: as `http://localhost:8080/v1`. There is no default: text leaves this machine
            only for a place that the user named.
        model: the model's name there.
        key_env: environment variable that holds the key; the key itself is never an option.
        window_tokens: the model's window.
        retries: tries after the first, for a busy or unreachable endpoint.

    Raises:
        ConfigError: if base_url is missing, or a key would be sent over http to another machine.
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
    ) -> None:
        parts = urllib.parse.urlsplit(base_url)
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
        self._model, self._retries, self._temperature = model, retries, temperature

    def count_tokens(self, text: str) -> int:
        """Estimate from above: a tokenizer makes at most one token of three bytes, on average."""
        return math.ceil(len(text.encode("utf-8", "replace")) / 3)

    def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Iterator[str]:
        """Yield the answer's pieces as they arrive.

        Raises:
            ModelError: if the endpoint cannot be reached, refuses, or answers with no protocol.
        """
        deadline = time.monotonic() + timeout_s
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [dict(m) for m in messages],
            "max_tokens": max_tokens,
            "temperature": self._temperature,
            "stream": True,
        }
        if stop:
            body["stop"] = list(stop)[:4]  # the protocol's limit; `until` holds to all of them
        yield from until(self._pieces(json.dumps(body).encode(), deadline), stop)

    def _pieces(self, body: bytes, deadline: float) -> Iterator[str]:
        with self._connect(body, deadline) as response:
            try:
                yield from events(response, deadline)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() < deadline:
                    raise ModelError(f"{self.name} broke off: {error}") from error

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
            request = urllib.request.Request(self.url, body, headers)
            try:
                return opener.open(request, timeout=left)  # type: ignore[no-any-return]
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code} {error.reason}"
                error.close()
                if error.code not in RETRY:
                    break
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            if attempt < self._retries:
                time.sleep(max(0.0, min(0.25 * 2**attempt, deadline - time.monotonic())))
        raise ModelError(f"{self.name} at {self.url} did not answer: {reason}")


def events(response: http.client.HTTPResponse, deadline: float) -> Iterator[str]:
    """Yield the text of a stream of server-sent events, or of one plain JSON answer."""
    if "event-stream" not in response.headers.get("Content-Type", ""):
        yield from text_of(response.read(LONGEST_LINE))
        return
    while time.monotonic() < deadline:
        line = response.readline(LONGEST_LINE)
        if not line:
            return
        field, _, value = line.strip().partition(b":")
        if field != b"data":
            continue
        if value.strip() == b"[DONE]":
            return
        yield from text_of(value)


def text_of(data: bytes) -> Iterator[str]:
    """Yield the text that one JSON message carries, if any.

    Raises:
        ModelError: if it is no JSON object, or reports an error.
    """
    try:
        message = json.loads(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise ModelError(f"expected JSON from the endpoint, got {data[:80]!r}") from error
    if not isinstance(message, dict):
        raise ModelError(f"expected a JSON object from the endpoint, got {data[:80]!r}")
    if message.get("error"):
        raise ModelError(f"the endpoint reports {str(message['error'])[:200]}")
    for choice in message.get("choices") or ():
        part = choice.get("delta") or choice.get("message") or {}
        content = part.get("content")
        if isinstance(content, str) and content:
            yield content


def is_local(host: str) -> bool:
    """Whether a host name is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
