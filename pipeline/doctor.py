"""What this machine can do, and what an index holds that a person should look at."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from foveate.pipeline import changes, models

if TYPE_CHECKING:
    from foveate.pipeline.types import FileRecord

PACKAGES = (
    "torch", "torchvision", "transformers", "sentence-transformers", "open_clip_torch", "timm",
    "tokenizers", "safetensors", "gguf", "tantivy", "pypdfium2", "rapidocr", "onnxruntime",
    "pillow", "pillow-heif", "langchain-core", "numpy",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """Return what this Python, its packages and its hardware offer; every value is JSON-able."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "torch": torch(),
        "faiss": faiss(),
        "kernels": kernels(),
        "ocr": ocr(),
        "heif": _version("pillow-heif"),
        "packages": {name: _version(name) for name in PACKAGES},
        "hub": "off" if os.environ.get("HF_HUB_OFFLINE") not in (None, "", "0") else "allowed",
    }


def kernels() -> dict[str, str]:
    """Return the path that each operation takes here, and why."""
    from foveate.kernels import dispatch

    return {path.op: f"{path.name}: {path.reason}" for path in dispatch.paths()}


def torch() -> dict[str, Any]:
    """Return torch's version, threads, processor features and GPUs, or why it does not load."""
    try:
        import torch as library
    except ImportError as error:
        return {"error": str(error)}
    native = _flag("amx") or _flag("avx512_bf16") or _flag("bf16")
    gpus = [library.cuda.get_device_name(i) for i in range(library.cuda.device_count())]
    mps = library.backends.mps.is_available()
    return {
        "version": library.__version__,
        "threads": library.get_num_threads(),
        "cpu": library.backends.cpu.get_cpu_capability(),
        "bf16": native,
        "bf16_reason": "the processor has bf16 instructions"
        if native
        else "no bf16 instructions: the encoders compute in fp32",
        "gpus": [*gpus, "Apple GPU (mps)"] if mps else gpus,
    }


def _flag(name: str) -> bool:
    """Whether the processor lists a feature whose name starts so, or is known to have it."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64" and name == "bf16"
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            words = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return False
    return any(word.startswith(name) for word in words.split())


def faiss() -> dict[str, Any]:
    """Return which build of FAISS is installed; both at once overwrite each other."""
    builds = {name: v for name in ("faiss-cpu", "faiss-gpu") if (v := _version(name))}
    found: dict[str, Any] = {"builds": builds}
    if len(builds) == 2:
        found["error"] = "faiss-cpu and faiss-gpu are both installed: uninstall both, keep one"
    elif importlib.util.find_spec("faiss") is None:
        found["error"] = "not installed: pip install 'foveate[cpu]' (or [gpu])"
    return found


def ocr() -> dict[str, Any]:
    """Return whether pictures of text can be read, and why not."""
    missing = [n for n in ("rapidocr", "onnxruntime") if importlib.util.find_spec(n) is None]
    if missing:
        return {"available": False, "reason": f"not installed: {', '.join(missing)}"}
    return {"available": True, "reason": f"rapidocr {_version('rapidocr')}"}


def model_records() -> list[dict[str, Any]]:
    """Return every model package with its version and place, None where it is not installed."""
    return [
        {
            "name": m.name,
            "package": m.package,
            "role": m.role,
            "licence": m.licence,
            "default": m.default,
            "version": m.version,
            "path": None if m.folder is None else str(m.folder),
            "size": m.size,
        }
        for m in models.MODELS
    ]


def noteworthy(files: Iterable[FileRecord]) -> Iterator[FileRecord]:
    """Return the files that were not indexed whole and as they said they were."""
    return filter(changes.is_noteworthy, files)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
