"""The standard suites of langchain-tests, run on every class that stands for one of its own."""

from __future__ import annotations

import asyncio

import pytest

import foveate
from foveate.pipeline.errors import QueryError
from foveate.pipeline.testing import HashedWords

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from foveate.langchain import (
    FoveateCompressor,
    FoveateEmbeddings,
    FoveateRetriever,
    FoveateVectorStore,
)

pytestmark = pytest.mark.anyio  # runs the suites' coroutines; others it leaves alone

TEXTS = [
    "The cooling loop carries water past the reactor. It was painted grey. Nobody knows why.",
    "A wing of high aspect ratio bends under load. Its colour does not matter.",
    "Copper conducts heat better than steel does. Steel is cheaper.",
    "Lemons keep four weeks in the refrigerator.",
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    base = tmp_path_factory.mktemp("suites")
    for n, text in enumerate(TEXTS):
        (base / f"{n}.txt").write_text(text)
    with foveate.open(base / "ix", create=True, encoders={"text": HashedWords()}) as engine:
        engine.add(*base.glob("*.txt"))
        yield engine


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _lent(self, engine):
        self._engine = engine

    @property
    def retriever_constructor(self):
        return FoveateRetriever

    @property
    def retriever_constructor_params(self):
        return {"engine": self._engine}

    @property
    def retriever_query_example(self):
        return "wing aspect ratio"


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return FoveateEmbeddings

    @property
    def embedding_model_params(self):
        return {"encoder": HashedWords()}


class TestEmbeddingsUnits(EmbeddingsUnitTests):
    @property
    def embeddings_class(self):
        return FoveateEmbeddings

    @property
    def embedding_model_params(self):
        return {"encoder": HashedWords()}


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path) -> VectorStore:
        store = FoveateVectorStore(self.get_embeddings(), path=tmp_path / "ix.fov", mode="dense")
        yield store
        store.engine.close()


class TestHybridStore(VectorStoreIntegrationTests):
    """The same with the words list in force, and an encoder of ours."""

    @pytest.fixture
    def vectorstore(self, tmp_path) -> VectorStore:
        engine = foveate.open(tmp_path / "ix.fov", create=True, encoders={"text": HashedWords()})
        yield FoveateVectorStore(engine=engine)
        engine.close()


@pytest.fixture
def store(tmp_path):
    engine = foveate.open(tmp_path / "ix.fov", create=True, encoders={"text": HashedWords()})
    facts = [{"year": 2000 + n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(len(TEXTS))]
    ids = [f"doc {n}" for n in range(len(TEXTS))]
    yield FoveateVectorStore.from_texts(TEXTS, metadatas=facts, ids=ids, engine=engine)
    engine.close()


def test_the_short_name_is_the_same_module():
    import foveate.langchain
    import foveate.pipeline.langchain

    assert foveate.langchain is foveate.pipeline.langchain
    assert foveate.langchain.__spec__.name == "foveate.pipeline.langchain"


def test_filters_hold_in_both_forms(store):
    even = store.similarity_search("water wing heat lemons", k=9, filter={"kind": "even"})
    assert {d.metadata["kind"] for d in even} == {"even"}
    assert len(even) == 2
    late = store.similarity_search("water wing heat", k=9, filter="meta.year >= 2002")
    assert {d.metadata["year"] for d in late} == {2002, 2003}
    both = store.similarity_search("x", k=9, filter={"kind": "odd", "year": 2003})
    assert [d.id for d in both] == ["doc 3"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (5, "filter must be {field: value}, or a text in the filter language such as 'meta.year >"),
        (["year"], "filter must be {field: value}, or a text"),
        ({5: 1}, "a filter's field must be a name such as 'year', got 5"),
        ({"a b": 1}, "a filter's field must be a name such as 'year', got 'a b'"),
        ({"year": None}, "a filter cannot hold the value None"),
        ({"year": {"$gt": 1}}, "a filter cannot hold the value {'$gt': 1}"),
    ],
)
def test_what_is_no_filter_is_told_what_one_is(store, given, sentence):
    with pytest.raises(QueryError) as caught:
        store.similarity_search("wing", filter=given)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("value", ["o'clock", 'the "best"', "both ' and \"", "C:\\new\\x", "end\\"])
def test_any_text_can_be_filtered_by(store, value):
    store.add_texts(
        ["A marked text.", "Another text."], [{"mark": value}, {"mark": "x"}], ids=["m", "n"]
    )
    (found,) = store.similarity_search("text", k=9, filter={"mark": value})
    assert found.metadata == {"mark": value}


TWO = ["Herons nest in trees.", "Kingfishers nest in banks."]


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (
            {"texts": TWO, "metadatas": [{}]},
            ValueError,
            "got 2 texts and 1 metadatas: give one for each text, or leave metadatas out",
        ),
        (
            {"texts": TWO, "ids": ["a", "b", "c"]},
            ValueError,
            "got 2 texts and 3 ids: give one for each text, or leave ids out",
        ),
        ({"texts": "Herons"}, TypeError, "texts must be a list, got 'Herons': put it in one"),
        ({"texts": TWO, "ids": "ab"}, TypeError, "ids must be a list, got 'ab': put it in one"),
        ({"texts": ["a", 5]}, TypeError, "each of texts must be a text, got 5"),
        (
            {"texts": TWO, "metadatas": [{}, None]},
            TypeError,
            "each of metadatas must be a mapping, got None",
        ),
        (
            {"texts": TWO, "metadata": [{}, {}]},
            TypeError,
            "add_texts takes no 'metadata'; did you mean 'metadatas'? (known: texts, metadatas, "
            "ids)",
        ),
    ],
)
def test_what_cannot_be_added_is_told_and_nothing_is(store, arguments, error, sentence):
    held = store.engine.index.count()
    with pytest.raises(error) as caught:
        store.add_texts(**arguments)
    assert str(caught.value) == sentence
    assert store.engine.index.count() == held


def test_one_id_in_the_place_of_a_list_deletes_nothing(store):
    for wrong in (lambda: store.delete("doc 1"), lambda: store.get_by_ids("doc 1")):
        with pytest.raises(TypeError, match="ids must be a list, got 'doc 1'"):
            wrong()
    with pytest.raises(TypeError, match="delete takes no 'id'; did you mean 'ids'"):
        store.delete(id=["doc 1"])
    assert len(store.get_by_ids(["doc 1"])) == 1


def test_langchains_own_indexing_adds_and_cleans_up(store):
    from langchain_core.indexing import InMemoryRecordManager, index

    manager = InMemoryRecordManager("birds")
    manager.create_schema()
    documents = [Document(page_content=text, metadata={"of": "birds"}) for text in TWO]
    chosen = {"cleanup": "full", "source_id_key": "of", "key_encoder": "sha256"}
    assert index(documents, manager, store, **chosen)["num_added"] == 2
    assert index(documents[:1], manager, store, **chosen)["num_deleted"] == 1
    found = store.similarity_search("nest", k=9, filter={"of": "birds"})
    assert [d.page_content for d in found] == TWO[:1]


def test_scores_fall_and_lie_within_0_and_1(store):
    found = store.similarity_search_with_relevance_scores("lemons in the refrigerator", k=4)
    scores = [score for _, score in found]
    assert found[0][0].id == "doc 3"
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_variety_costs_likeness(store):
    store.add_texts(["Lemons keep four weeks in a refrigerator."], ids=["twin"])
    query = "lemons keep four weeks in the refrigerator"
    near = store.max_marginal_relevance_search(query, k=2, lambda_mult=1.0)
    varied = store.max_marginal_relevance_search(query, k=2, lambda_mult=0.0)
    assert {d.id for d in near} == {"doc 3", "twin"}
    assert {d.id for d in varied} != {"doc 3", "twin"}


def test_sync_async_batch_and_stream_agree(store):
    retriever = store.as_retriever(search_kwargs={"k": 2})
    found = retriever.invoke("wing load")
    assert asyncio.run(retriever.ainvoke("wing load")) == found
    assert retriever.batch(["wing load"]) == [found]
    assert list(retriever.stream("wing load")) == [found]
    assert asyncio.run(store.asimilarity_search("wing load", k=2)) == found


def test_documents_stand_beside_files_and_survive(store, tmp_path):
    (tmp_path / "note.txt").write_text("A note on herons.")
    store.engine.add(tmp_path / "note.txt")
    (from_file, *_) = store.similarity_search("herons note", k=1)
    assert from_file.metadata["foveate"]["uri"].endswith("note.txt")
    store.engine.close()
    with foveate.open(tmp_path / "ix.fov", encoders={"text": HashedWords()}) as again:
        opened = FoveateVectorStore(engine=again)
        assert opened.get_by_ids(["doc 1"])[0].page_content == TEXTS[1]
        assert opened.delete() is True
        assert opened.get_by_ids(["doc 1"]) == []
        assert again.check()["ok"]
        assert len(opened.similarity_search("note", k=9)) == 1


def test_a_compressor_keeps_verbatim_sentences_within_the_budget(engine):
    documents = [Document(page_content=text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    compressor = FoveateCompressor(engine=engine, budget_tokens=24)
    query = "What carries water past the reactor?"
    kept = compressor.compress_documents(documents, query)
    assert any("cooling loop" in document.page_content for document in kept)
    n_tokens = sum(len(HashedWords().token_spans(d.page_content)) for d in kept)
    assert 0 < n_tokens <= 24
    for document in kept:
        original = TEXTS[document.metadata["n"]]
        parts = [original[a:b].strip() for a, b in document.metadata["kept"]]
        assert document.page_content == " ".join(parts)
    assert [d.metadata["n"] for d in kept] == sorted(d.metadata["n"] for d in kept)
    assert asyncio.run(compressor.acompress_documents(documents, query)) == kept
    assert compressor.compress_documents([], query) == []


def test_pictures_are_embedded_beside_words(tmp_path):
    from PIL import Image

    class Greys:
        reads = frozenset({"image", "text"})
        window_tokens, dim, space, tower = None, 2, "greys/2", "greys/2|mean"

        def encode(self, inputs, *, progress=None):
            return self.encode_queries(inputs)

        def encode_queries(self, queries):
            import numpy as np

            rows = [
                [1.0, 0.0] if q == "dark" or (not isinstance(q, str) and q.getpixel((0, 0))[0] < 99)
                else [0.0, 1.0]
                for q in queries
            ]  # fmt: skip
            return np.asarray(rows, dtype=np.float32)

    Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / "night.png")
    made = FoveateEmbeddings(HashedWords(), images=Greys())
    assert made.embed_images([tmp_path / "night.png"]) == [made.embed_image_query("dark")]
