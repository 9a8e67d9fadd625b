"""LlamaIndex's and Haystack's own machinery runs our retrievers, and finds what the engine does."""

from __future__ import annotations

import asyncio

import pytest

import foveate
from foveate.pipeline.testing import HashedWords

TEXTS = {
    "loop.txt": "The cooling loop carries water past the reactor.",
    "wing.txt": "A wing of high aspect ratio bends under load.",
    "heat.txt": "Copper conducts heat better than steel does.",
}
QUERY = "wing aspect ratio"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    base = tmp_path_factory.mktemp("others")
    for name, text in TEXTS.items():
        (base / name).write_text(text)
    with foveate.open(base / "ix", create=True, encoders={"text": HashedWords()}) as engine:
        engine.add(*(base / name for name in TEXTS))
        yield engine


def test_llamaindex_retrieves(engine):
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
    from foveate.pipeline.llamaindex import FoveateRetriever

    retriever = FoveateRetriever(engine, k=2)
    found = retriever.retrieve(QUERY)
    hits = engine.search(QUERY, k=2)
    assert [(n.node.node_id, n.score) for n in found] == [(h.passage.label, h.score) for h in hits]
    assert found[0].node.get_content() == TEXTS["wing.txt"]
    assert found[0].node.metadata["foveate"]["span"] == (0, len(TEXTS["wing.txt"]))
    assert [n.node.node_id for n in asyncio.run(retriever.aretrieve(QUERY))] == [
        n.node.node_id for n in found
    ]
    only = FoveateRetriever(engine, where="name = 'heat.txt'").retrieve(QUERY)
    assert [n.node.text for n in only] == [TEXTS["heat.txt"]]


def test_haystack_retrieves_in_a_pipeline(engine):
    haystack = pytest.importorskip("haystack", reason="haystack-ai is not installed")
    from foveate.pipeline.haystack import FoveateRetriever

    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", FoveateRetriever(engine=engine, k=2))
    found = pipeline.run({"retriever": {"query": QUERY}})["retriever"]["documents"]
    hits = engine.search(QUERY, k=2)
    assert [(d.id, d.score) for d in found] == [(h.passage.label, h.score) for h in hits]
    assert found[0].content == TEXTS["wing.txt"]
    where = {"query": QUERY, "where": "name = 'heat.txt'"}
    (only,) = pipeline.run({"retriever": where})["retriever"]["documents"]
    assert only.meta["foveate"]["uri"].endswith("heat.txt")
    made = FoveateRetriever.from_dict(FoveateRetriever("notes.fov", k=3).to_dict())
    assert (made.path, made.options) == ("notes.fov", {"k": 3})
