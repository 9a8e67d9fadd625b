"""Small real indexes to test with; vectors are drawn from the text, so any test can redo them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from foveate.index.disk import DiskIndex, Tower
from foveate.pipeline.types import Document, Draft, Locator

DIM = 16


class Maker:
    """Makes documents, drafts and vectors; the same text always gives the same ones."""

    dim = DIM
    towers: ClassVar = {
        "text": Tower("text", "fake-text@1", f"fake/{DIM}", DIM),
        "image": Tower("image", "fake-image@1", f"fake/{DIM}", DIM),
    }

    def vector(self, text: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        x = np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
        return x / np.linalg.norm(x)

    def document(self, text: str, **fields: Any) -> Document:
        raw = text.encode()
        row = fields.get("row")
        digest = hashlib.sha256(raw).hexdigest()
        base: dict[str, Any] = {"media_type": "text/plain", "type": "text", "size": len(raw)}
        base |= fields
        assert row is None or row > 0
        return Document(digest=digest, text=text, **base)

    def drafts(self, text: str, context: str = "") -> list[Draft]:
        """One passage a line."""
        found, start = [], 0
        for line in text.split("\n"):
            if line:
                found.append(Draft("text", line, Locator((start, start + len(line))), context))
            start += len(line) + 1
        return found

    def vectors(self, drafts: list[Draft]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        array = np.array([self.vector(d.text) for d in drafts], np.float32).reshape(-1, DIM)
        return {"text": (np.arange(len(drafts)), array)}

    def keys(self, drafts: list[Draft]) -> list[str]:
        return [hashlib.sha256(d.encoded.encode()).hexdigest() for d in drafts]

    def put(self, writer: Any, path: str, text: str, mtime_ns: int = 10**18, **fields: Any) -> None:
        """Index one file that holds one text."""
        document = self.document(text, **fields)
        drafts = self.drafts(text, fields.get("title") or "")
        writer.begin(path, len(text.encode()), mtime_ns, document.digest)
        writer.add(path, document, drafts, self.vectors(drafts), self.keys(drafts))
        writer.finish(path, "indexed", ())


@pytest.fixture(scope="session")
def maker() -> Maker:
    return Maker()


@pytest.fixture
def new_index(tmp_path: Path, maker: Maker) -> Iterator[Callable[..., DiskIndex]]:
    made: list[DiskIndex] = []

    def make(name: str = "notes.fov", **options: Any) -> DiskIndex:
        made.append(DiskIndex.create(tmp_path / name, towers=maker.towers, settings={}, **options))
        return made[-1]

    yield make
    for index in made:
        index.close()
