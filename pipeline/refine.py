"""From hits to better hits: the chain of rerankers that is configured or asked for."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foveate.pipeline import config as configuration
from foveate.pipeline import registry
from foveate.pipeline.errors import ConfigError
from foveate.pipeline.types import Hit

if TYPE_CHECKING:
    from foveate.pipeline.config import Config
    from foveate.pipeline.protocols import Compressor, Orderer, Reranker, Resources

DEPTH = 50
DEFAULT = "fusion"  # of `rerank=True` where none is configured
USES = ("search", "ask", "both")


@dataclass(frozen=True, slots=True)
class Step:
    """One reranker of a chain.

    depth: of the hits that reach it, the first so many are scored; the rest follow them in
    their old order. on: 'search', 'ask' or 'both', the calls it serves when nobody asks for it by
    name.
    """

    name: str
    depth: int
    on: str
    options: Mapping[str, Any]


def steps(chosen: Any, origin: str) -> list[Step]:
    """Read a chain: a name, or a list of names and tables.

    Raises:
        ConfigError: for a chain that cannot be read.
    """
    found = []
    for name, options in configuration.chain(chosen, origin):
        depth, on = options.pop("depth", DEPTH), options.pop("on", "both")
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ConfigError(f"{origin} {name!r}: depth must be an integer >= 1, got {depth!r}")
        if on not in USES:
            raise ConfigError(f"{origin} {name!r}: on must be one of {', '.join(USES)}, got {on!r}")
        found.append(Step(name, depth, on, options))
    return found


def check(config: Config) -> None:
    """See that every stage that is configured has a name and options that are known.

    Raises:
        UnknownComponent: if nothing has the name.
        ConfigError: for options that it does not take.
    """
    for step in steps(config.get("rerank", ()), "[[rerank]]"):
        _factory("reranker", step.name, step.options)
    for kind, table in (("compressor", "compress"), ("order", "order")):
        if config.get(f"{table}.use") not in (None, "none"):
            _factory(kind, *config.component(table))


def _factory(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    factory = registry.find(kind, name)
    configuration.check_options(factory, options, name)
    return factory


def make(kind: str, name: str, resources: Resources, options: Mapping[str, Any]) -> Any:
    """Build a stage by its registered name.

    Raises:
        UnknownComponent: if nothing has the name.
        ConfigError: for options that it does not take.
    """
    factory = _factory(kind, name, options)
    try:
        return factory(resources, **options)
    except TypeError as error:
        raise ConfigError(f"{kind} {name!r}: {error}") from error


def rerank(
    query: str, hits: Sequence[Hit], chain: Sequence[tuple[Step, Reranker]], k: int
) -> list[Hit]:
    """Pass hits down a chain of rerankers and return the k best.

    Each reranker sees the modalities that it reads, and puts those hits anew into the places that
    they held; hits of other modalities keep theirs. Where both kinds stand in one list a hit takes
    the score of its new place, since scores of two kinds do not compare.
    """
    found = list(hits)
    for step, reranker in chain:
        better = apply(query, found[: step.depth], step.name, reranker)
        found = [*better, *below(better, found[step.depth :])]
    return found[:k]


def below(better: Sequence[Hit], rest: Sequence[Hit]) -> list[Hit]:
    """Scale the scores of the rest so that none stands above what was reranked."""
    if not better or not rest or rest[0].score <= better[-1].score:
        return list(rest)
    scale = better[-1].score / rest[0].score
    return [dataclasses.replace(hit, score=hit.score * scale) for hit in rest]


def apply(query: str, hits: Sequence[Hit], name: str, reranker: Reranker) -> list[Hit]:
    """Return the same hits, those that the reranker reads in its order."""
    places = [i for i, hit in enumerate(hits) if hit.passage.modality in reranker.reads]
    if not places:
        return list(hits)
    better = reranker.rerank(query, [hits[i] for i in places], len(places))
    mixed = len(places) < len(hits)
    found = list(hits)
    for rank, (place, hit) in enumerate(zip(places, better, strict=True), start=1):
        score = hits[place].score if mixed else hit.score
        found[place] = dataclasses.replace(hit, score=score, ranks={**hit.ranks, name: rank})
    return found


class Refinery:
    """The stages that refine hits, each made once and shared between threads."""

    def __init__(self, resources: Resources, config: Config) -> None:
        self.resources = resources
        self._config = config
        self._made: dict[tuple[str, str, str], Any] = {}
        self._lock = threading.Lock()

    def chain(self, chosen: Any, use: str) -> list[tuple[Step, Reranker]]:
        """Return the rerankers of one call.

        chosen: a name or a list; False for none; None for those configured for this use.
        """
        if chosen is False:
            return []
        if chosen is None or chosen is True:
            wanted = [
                s
                for s in steps(self._config.get("rerank", ()), "[[rerank]]")
                if s.on in (use, "both")
            ]
            if chosen is True and not wanted:
                wanted = steps(DEFAULT, "rerank")
        else:
            wanted = steps(chosen, "rerank")
        return [(step, self._stage("reranker", step.name, step.options)) for step in wanted]

    def compressor(self) -> Compressor | None:
        """Return the compressor that is configured, None for none."""
        found: Compressor | None = self._configured("compressor", "compress")
        return found

    def orderer(self) -> Orderer | None:
        """Return the order that is configured, None for that of the ranks."""
        found: Orderer | None = self._configured("order", "order")
        return found

    def _configured(self, kind: str, table: str) -> Any:
        if self._config.get(f"{table}.use") in (None, "none"):
            return None
        return self._stage(kind, *self._config.component(table))

    def _stage(self, kind: str, name: str, options: Mapping[str, Any]) -> Any:
        key = (kind, name, json.dumps(dict(options), sort_keys=True, default=str))
        with self._lock:
            if key not in self._made:
                self._made[key] = make(kind, name, self.resources, options)
            return self._made[key]
