"""Multimodal retrieval and grounded answers over your own documents and images, offline."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.engine import Engine as Engine
    from foveate.pipeline.engine import open as open
    from foveate.pipeline.errors import FoveateError as FoveateError
    from foveate.pipeline.types import Answer as Answer
    from foveate.pipeline.types import Citation as Citation
    from foveate.pipeline.types import Hit as Hit
    from foveate.pipeline.types import Locator as Locator
    from foveate.pipeline.types import Passage as Passage
    from foveate.pipeline.types import Source as Source

__version__ = "0.1.0"

_HOMES = {
    "Engine": "foveate.pipeline.engine",
    "open": "foveate.pipeline.engine",
    "FoveateError": "foveate.pipeline.errors",
    "Answer": "foveate.pipeline.types",
    "Citation": "foveate.pipeline.types",
    "Hit": "foveate.pipeline.types",
    "Locator": "foveate.pipeline.types",
    "Passage": "foveate.pipeline.types",
    "Source": "foveate.pipeline.types",
}

# `foveate.langchain` is a short name of a module whose file stands among its like
_ALIASES = {"foveate.langchain": "foveate.pipeline.langchain"}

__all__ = [*sorted(_HOMES), "__version__"]


class _Alias:
    """Finds a module under its short name: it is the same module, imported once."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Alias()) if name in _ALIASES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        import importlib

        module = importlib.import_module(_ALIASES[spec.name])
        self._own = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._own


sys.meta_path.append(_Alias)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foveate' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
