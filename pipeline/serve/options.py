"""What a server may do and how much of it."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from foveate.pipeline.errors import ConfigError

SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The `[serve]` table.

    host, port: where it listens; a host that is not this machine alone needs a token. allow_hosts:
    further names by which it may be called. roots: folders whose files may be indexed by path.
    read_only: nothing can be added or removed. uploads: the folder that keeps uploaded files; ''
    is `uploads` in the index. max_upload_bytes: of one file. max_body_bytes: of any other request.
    max_picture_bytes: of a picture to search with. timeout_s: of a search or a picture.
    ask_timeout_s: of an answer. patience_s: how long a client may take over a request's head, its
    body, or to take in a part of the response. n_searching, n_asking: at the same time.
    n_waiting: of either kind, waiting for their turn; one more is told to come back.
    n_connections: open at once. max_k: hits of one search. max_inputs: texts of one embedding
    request.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    allow_hosts: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    read_only: bool = False
    uploads: str = ""
    max_upload_bytes: int = 200_000_000
    max_body_bytes: int = 1_000_000
    max_picture_bytes: int = 20_000_000
    timeout_s: float = 30.0
    ask_timeout_s: float = 180.0
    patience_s: float = 20.0
    n_searching: int = 4
    n_asking: int = 2
    n_waiting: int = 128
    n_connections: int = 512
    max_k: int = 200
    max_inputs: int = 256

    def __post_init__(self) -> None:
        for name in ("allow_hosts", "roots"):  # TOML gives lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"expected a port within 0..65535, got {self.port!r}")
        counts = ("max_upload_bytes", "max_body_bytes", "max_picture_bytes", "n_searching")
        for name in (*counts, "n_asking", "n_connections", "max_k", "max_inputs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"expected [serve] {name} >= 1, got {getattr(self, name)!r}")
        for name in ("timeout_s", "ask_timeout_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"expected [serve] {name} > 0, got {getattr(self, name)!r}")
        for root in self.roots:
            if not Path(root).expanduser().is_dir():
                raise ConfigError(f"--root takes a folder, got {root!r}")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Tell whether a name or address means this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def names(options: ServeOptions) -> frozenset[str]:
    """Return the host names by which the server may be called, in lower case.

    A page of another site that makes its own name lead here (DNS rebinding) calls by that name.
    """
    found = {"localhost", "127.0.0.1", "[::1]", *options.allow_hosts}
    if not options.is_local:
        found |= {options.host, socket.gethostname()}
    return frozenset(name.lower() for name in found if name)


def read_token(file: str | None) -> str | None:
    """Return the token of a file, else of FOVEATE_TOKEN, else None.

    Raises:
        ConfigError: if the file cannot be read, others may read it, or the token is too short.
    """
    if file is None:
        token, where = os.environ.get("FOVEATE_TOKEN", ""), "FOVEATE_TOKEN"
        if not token:
            return None
    else:
        path, where = Path(file).expanduser(), repr(file)
        try:
            token = path.read_text(encoding="utf-8").strip()
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token file {where}: {error}") from error
        if os.name == "posix" and mode & 0o077:
            raise ConfigError(f"others may read the token file {where}: chmod 600 it")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"the token in {where} needs {SHORTEST_TOKEN} printable ASCII characters or more: "
            'make one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )
    return token


def check(options: ServeOptions, token: str | None) -> None:
    """Refuse to listen to other machines without a token.

    Raises:
        ConfigError: naming how to give one.
    """
    if token is None and not options.is_local:
        raise ConfigError(
            f"binding to {options.host!r} lets other machines in: give a token by FOVEATE_TOKEN "
            "or --token-file, or bind to 127.0.0.1"
        )
