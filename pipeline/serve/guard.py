"""What stands before every request: whose it is, how large, how slow, and what it may do.

Plain ASGI, so that a refused request costs nothing and a body is counted while it comes in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any

from foveate.pipeline.serve.options import ServeOptions, names

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

COOKIE = "foveate_session"
UPLOAD = "/api/files"
WITH_PICTURE = ("/api/search", "/v1/embeddings")
OPEN_PATHS = frozenset({"/", "/health", "/api/session"})  # without a token; they tell nothing
SAFE = frozenset({"GET", "HEAD"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Refused(Exception):
    """A request that goes no further: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Checks the host, the origin, the token, the size and the speed of every request."""

    def __init__(self, app: App, options: ServeOptions, token: str | None) -> None:
        self.app = app
        self.options = options
        self._token = token
        self._names = names(options)
        # a cookie that ends with the process, and does not give the token away
        self._session = hmac.new(
            secrets.token_bytes(32), (token or "").encode(), hashlib.sha256
        ).hexdigest()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets here
        bounded = Bounded(receive, self.limit(scope), self.options.patience_s)
        started = replaced = False

        async def answer(message: Message) -> None:
            nonlocal started, replaced
            if replaced:
                return
            if message["type"] == "http.response.start":
                started = True
                if bounded.refusal is not None:  # the application took it for a broken body
                    refusal, bounded.refusal = bounded.refusal, None
                    await refuse(answer, refusal)
                    replaced = True
                    return
                message = {**message, "headers": dressed(message.get("headers", ()))}
            try:
                async with asyncio.timeout(self.options.patience_s):
                    await send(message)
            except TimeoutError as error:
                raise Refused(408, "the client does not take the response in") from error

        try:
            self.check(scope)
            bounded.check(headers_of(scope).get("content-length"))
            await self.app(scope, bounded, answer)
        except Refused as refusal:
            if started:
                raise  # too late for a status: the connection is cut
            bounded.refusal = None
            await refuse(answer, refusal)

    def check(self, scope: MutableMapping[str, Any]) -> None:
        """Say no to a wrong host, another site's page or a wrong token. Raises Refused."""
        headers = headers_of(scope)
        host = headers.get("host", "")
        if not self.is_known(host):
            raise Refused(421, f"this server is not {host[:100]!r}: name it with --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope.get('scheme', 'http')}://{host}":
            raise Refused(403, "another site's page may not use this server")
        landing = scope["path"] == "/" and scope["method"] in SAFE
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not landing:
            raise Refused(403, "another site's page may not use this server")
        path = scope["path"]
        if self._token is None or path in OPEN_PATHS or path.startswith("/page/"):
            return
        if not self.knows(headers):
            raise Refused(401, "a token is needed: send `Authorization: Bearer TOKEN`")

    def is_known(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.lower()
        if name in self._names:
            return True
        if self._token is None:
            return False
        # with a token nothing is gained by rebinding a name, and an address is no name
        try:
            return bool(ip_address(name.strip("[]")))
        except ValueError:
            return False

    def knows(self, headers: MutableMapping[str, str]) -> bool:
        """Tell whether a request carries the token, or the cookie that stands for it."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if given:
            return kind.lower() == "bearer" and self.accepts(given.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and same(cookie.value, self._session)

    def accepts(self, token: str) -> bool:
        return self._token is not None and same(token, self._token)

    @property
    def session(self) -> str:
        """What the cookie of a page holds that gave the token."""
        return self._session

    @property
    def locked(self) -> bool:
        return self._token is not None

    def limit(self, scope: MutableMapping[str, Any]) -> int:
        """Return how many bytes a request's body may have."""
        path = scope["path"]
        if path == UPLOAD:
            return self.options.max_upload_bytes
        if path in WITH_PICTURE:  # base64 makes four bytes of three
            return self.options.max_body_bytes + self.options.max_picture_bytes * 4 // 3
        return self.options.max_body_bytes


class Bounded:
    """A request's body, counted while it is received; a slow one ends."""

    def __init__(self, receive: Receive, most: int, patience_s: float) -> None:
        self._receive = receive
        self._most = most
        self._patience_s = patience_s
        self._got = 0
        self._complete = False
        self.refusal: Refused | None = None

    def check(self, length: str | None) -> None:
        """Refuse by what the request says of itself. Raises Refused."""
        if length is None:
            return
        if not (length.isascii() and length.isdigit()):
            raise Refused(400, "the content-length is no number")
        if int(length) > self._most:
            raise Refused(413, f"the body has {length} bytes, at most {self._most} are read")

    async def __call__(self) -> Message:
        if self._complete:  # what comes now is the client's leaving, whenever that is
            return await self._receive()
        try:
            async with asyncio.timeout(self._patience_s):
                message = await self._receive()
        except TimeoutError:
            raise self._refuse(408, "the request's body did not come in time") from None
        if message["type"] == "http.request":
            self._got += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._got > self._most:
                raise self._refuse(413, f"the body has more than {self._most} bytes")
        return message

    def _refuse(self, status: int, sentence: str) -> Refused:
        self.refusal = Refused(status, sentence)
        return self.refusal


def same(given: str, known: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def headers_of(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """Return {name: value}, names in lower case; a repeated one holds the last value."""
    return {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}


def dressed(headers: Any) -> list[tuple[bytes, bytes]]:
    """Add the headers that keep a browser from doing what it should not."""
    given = list(headers)
    held = {name.lower() for name, _ in given}
    kept = [*given, *(pair for pair in HEADERS if pair[0] not in held)]
    if b"cache-control" not in held:
        kept.append((b"cache-control", b"no-store"))
    return kept


async def refuse(send: Send, refusal: Refused) -> None:
    """Answer with the status and the sentence of a refusal, and end the connection."""
    body = json.dumps({"error": {"message": str(refusal), "type": "refused"}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
