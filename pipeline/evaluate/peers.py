"""Named peers that `foveate bench` is compared with, each behind two or three lines."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODULES = {
    "sentence-transformers": "sentence_transformers",
    "bm25s": "bm25s",
    "faiss": "faiss",
    "tantivy": "tantivy",
    "txtai": "txtai",
    "langchain + faiss": "langchain_community",
    "maxsim-cpu": "maxsim_cpu",
    "pylate": "pylate",
}

EXTRA = "foveate[peers]"
# not in the extra: what they pin may not go with the rest
ALONE = {"pylate": "pylate"}

Search = Callable[[str, int], list[int]]
"""search(query, k) -> numbers of the texts, best first"""


def installed(name: str) -> bool:
    """Say whether a peer can be imported here."""
    return importlib.util.find_spec(MODULES[name]) is not None


def install_line(names: Sequence[str]) -> str:
    """Return what installs peers, as pip takes it."""
    wanted = dict.fromkeys(ALONE.get(name, EXTRA) for name in names)
    return "pip install " + " ".join(f"'{w}'" if "[" in w else w for w in wanted)


def model_folder() -> Path:
    """Return the folder of the offline text model, which every peer loads."""
    from foveate.encoders.minilm import PACKAGE
    from foveate.encoders.packages import find_package

    return Path(find_package(PACKAGE, "minilm")) / "model"


def sentence_transformer() -> Any:
    """Return the library's own model object over the same weights."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model_folder()), device="cpu", local_files_only=True)


def maxsim_cpu() -> Callable[[Any, Sequence[Any]], Any]:
    """Return that package's MaxSim of a (s, d) query with documents of any lengths."""
    import maxsim_cpu

    score: Callable[[Any, Sequence[Any]], Any] = maxsim_cpu.maxsim_scores_variable
    return score


def pylate_scores() -> Callable[[Any, Any], Any]:
    """Return that package's MaxSim of (q, s, d) queries with (n, t, d) padded documents."""
    from pylate.scores import colbert_scores

    score: Callable[[Any, Any], Any] = colbert_scores
    return score


def build_txtai(texts: Sequence[str]) -> Search:
    """Index texts with txtai, contents kept."""
    from txtai import Embeddings

    embeddings = Embeddings(path=str(model_folder()), content=True)
    embeddings.index(list(texts))

    def search(query: str, k: int) -> list[int]:
        return [int(row["id"]) for row in embeddings.search(query, k)]

    return search


def build_langchain(texts: Sequence[str]) -> Search:
    """Index texts with LangChain's FAISS store and the library's own encoder."""
    import warnings

    from langchain_core.embeddings import Embeddings

    with warnings.catch_warnings():
        # the package announces its own retirement when imported
        warnings.simplefilter("ignore")
        from langchain_community.vectorstores import FAISS

    model = sentence_transformer()

    class Encoder(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            made: list[list[float]] = model.encode(texts, show_progress_bar=False).tolist()
            return made

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    store = FAISS.from_texts(list(texts), Encoder(), [{"n": i} for i in range(len(texts))])

    def search(query: str, k: int) -> list[int]:
        return [int(doc.metadata["n"]) for doc in store.similarity_search(query, k=k)]

    return search


def build_tantivy(texts: Sequence[str], folder: Path) -> Search:
    """Index texts with bare tantivy: stemmed English, frequencies only."""
    import tantivy

    folder.mkdir(parents=True, exist_ok=True)
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("id", fast=True)
    builder.add_text_field("body", tokenizer_name="en_stem", index_option="freq")
    bare = tantivy.Index(builder.build(), path=str(folder))
    writer = bare.writer(heap_size=64_000_000, num_threads=1)
    for i, text in enumerate(texts):
        document = tantivy.Document()
        document.add_unsigned("id", i)
        document.add_text("body", text)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    bare.reload()
    searcher = bare.searcher()

    def search(query: str, k: int) -> list[int]:
        words = "".join(c if c.isalnum() else " " for c in query)
        hits = searcher.search(bare.parse_query(words, ["body"]), k, count=False).hits
        found: list[Any] = searcher.fast_field_values("id", [h[1] for h in hits])
        return [int(i) for i in found]

    return search
