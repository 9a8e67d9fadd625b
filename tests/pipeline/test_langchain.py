"""LangChain's ways of calling the retriever agree, and only its file needs langchain-core."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import foveate
from foveate.pipeline.testing import HashedWords

TEXTS = {
    "loop.txt": "The cooling loop carries water past the reactor.",
    "wing.txt": "A wing of high aspect ratio bends under load.",
    "heat.txt": "Copper conducts heat better than steel does.",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> foveate.Engine:
    base = tmp_path_factory.mktemp("langchain")
    for name, text in TEXTS.items():
        (base / name).write_text(text)
    engine = foveate.open(base / "ix", create=True, encoders={"text": HashedWords()})
    engine.add(*(base / name for name in TEXTS))
    return engine


def test_every_way_of_calling_finds_the_same(engine: foveate.Engine) -> None:
    from foveate.pipeline.langchain import FoveateRetriever

    retriever = FoveateRetriever(engine=engine, k=2)
    query = "wing aspect ratio"
    found = retriever.invoke(query)
    assert found[0].page_content == TEXTS["wing.txt"]
    assert len(found) == 2
    assert asyncio.run(retriever.ainvoke(query)) == found
    assert retriever.batch([query, query]) == [found, found]
    assert list(retriever.stream(query)) == [found]
    assert len(retriever.invoke(query, k=1)) == 1


def test_a_document_says_where_it_stands(engine: foveate.Engine) -> None:
    from foveate.pipeline.langchain import FoveateRetriever

    retriever = FoveateRetriever(engine=engine, k=3, where="name = 'heat.txt'")
    (document,) = retriever.invoke("water")
    place = document.metadata["foveate"]
    assert document.id == place["label"]
    assert Path(place["uri"]).name == "heat.txt"
    start, end = place["span"]
    assert document.page_content == TEXTS["heat.txt"][start:end]
    assert 0 <= place["score"] <= 1


@pytest.mark.parametrize("name", ["FoveateRetriever", "FoveateCompressor"])
def test_an_unknown_option_is_named_before_an_index_is_opened(
    engine: foveate.Engine, tmp_path: Path, name: str
) -> None:
    import foveate.pipeline.langchain as adapters

    kind = getattr(adapters, name)
    known = {
        "FoveateRetriever": "k, where, modality, mode, group, rerank",
        "FoveateCompressor": "use, budget_tokens, options",
    }[name]
    close = {
        "FoveateRetriever": ("wher", "where"),
        "FoveateCompressor": ("budget", "budget_tokens"),
    }
    given, meant = close[name]
    with pytest.raises(TypeError) as caught:
        kind.open(tmp_path / "nothing", **{given: 1})
    told = str(caught.value)
    assert told.startswith(f"{name}.open takes no '{given}'; did you mean '{meant}'? (known: ")
    assert known in told
    assert "engine" not in told
    with pytest.raises(TypeError, match=f"{name} takes no '{given}'; did you mean '{meant}'"):
        kind(engine=engine, **{given: 1})
    assert kind(engine=engine, **{meant: {"where": None, "budget_tokens": 9}[meant]})


def test_an_unknown_option_of_a_call_is_named(engine: foveate.Engine) -> None:
    from foveate.pipeline.langchain import FoveateRetriever

    with pytest.raises(TypeError, match="'kk'"):
        FoveateRetriever(engine=engine).invoke("wing", kk=3)


def test_without_langchain_only_the_adapter_fails() -> None:
    script = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "import foveate, foveate.cli, foveate.pipeline.engine, foveate.pipeline.search\n"
        "from foveate.pipeline.errors import MissingExtra\n"
        "try:\n    import foveate.pipeline.langchain\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "needs langchain-core" in done.stdout
    assert "pip install" in done.stdout


def test_a_picture_without_words_is_named() -> None:
    import dataclasses

    from foveate.pipeline.places import content_of
    from foveate.pipeline.types import Locator, Passage, Source

    source = Source("0" * 32, ("/photos/in-the-sky.jpg",), "image/jpeg", "jpeg", 1, 0.0)
    picture = Passage(1, 0, source, "image", "", Locator())
    assert content_of(picture) == "in-the-sky.jpg"
    assert content_of(dataclasses.replace(picture, text="BALLOON")) == "BALLOON"
