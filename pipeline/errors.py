"""Every error that foveate raises on purpose. The command line prints them as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FoveateError(Exception):
    """Say what failed, what was got, what was wanted and the next step, in one line."""


class MissingExtra(FoveateError):
    """A package or model that an optional component needs is not installed."""

    def __init__(self, component: str, needs: str, install: str) -> None:
        super().__init__(f"{component} needs {needs}: {install}")


class UnknownComponent(FoveateError):
    """A name that no registry knows."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")


class ConfigError(FoveateError):
    """A configuration value that cannot be used."""


class QueryError(FoveateError):
    """A query, filter or option of a search that cannot be used."""


class ShapeError(FoveateError):
    """An array that is not of the stated shape, type or norm."""


class SpaceMismatch(FoveateError):
    """Vectors of two different embedding spaces or towers met."""


class IndexNotFound(FoveateError):
    """There is no index at the place that was named."""


class IndexLocked(FoveateError):
    """Another process is writing to the index."""


class IndexVersionError(FoveateError):
    """The index was written by a newer foveate."""


class CorruptIndex(FoveateError):
    """The index on disk contradicts itself."""


class IndexWriteError(FoveateError):
    """The index could not be written; it stands as it was at the last commit."""


class LoadError(FoveateError):
    """A file could not be read; the message is the reason that the report shows."""


class LimitExceeded(LoadError):
    """A file asks for more than a stated limit."""


class ModelError(FoveateError):
    """A model could not be loaded or run."""


class CitationError(FoveateError):
    """A citation that does not resolve in the text it names."""
