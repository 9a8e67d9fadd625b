import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
FOLDERS = ("encoders", "index", "kernels", "pipeline", "rerank")
# names of keys that must never have a value in the repository
SECRET = re.compile(
    r"(?i)\b(?:api[_-]?key|secret|token|passwd)\b\s*[=:]\s*['\"][A-Za-z0-9+/_-]{20,}['\"]"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b"
)


def python_files():
    yield ROOT / "__init__.py"
    yield ROOT / "cli.py"
    for folder in (*FOLDERS, "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_every_package_folder_is_listed():
    found = {"foveate"}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add("foveate." + ".".join(init.parent.relative_to(ROOT).parts))
    assert sorted(PACKAGES) == sorted(found)


def test_only_the_command_line_and_the_init_are_in_the_root():
    assert sorted(p.name for p in ROOT.glob("*.py")) == ["__init__.py", "cli.py"]


def test_mypy_reads_every_package():
    read = PROJECT["tool"]["mypy"]["packages"]
    assert sorted(read) == sorted(f"foveate.{folder}" for folder in FOLDERS)


def test_never_both_builds_of_faiss():
    extras = PROJECT["project"]["optional-dependencies"]
    for name, needs in {**extras, "": PROJECT["project"]["dependencies"]}.items():
        builds = {need.split(">")[0] for need in needs if need.startswith("faiss")}
        assert len(builds) <= 1, name
    assert any("faiss-cpu" in need for need in extras["cpu"])
    assert any("faiss-gpu" in need for need in extras["gpu"])


def test_models_are_pinned_by_hash():
    from foveate.pipeline import models

    pins = models.pins()
    assert set(pins) == {m.package for m in models.MODELS}
    for line in (ROOT / "pipeline/models.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or models.PIN.match(line)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy: a build in the checkout leaves folders behind."""
    tmp = tmp_path_factory.mktemp("wheel")
    copy = tmp / "source"
    copy.mkdir()
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "__init__.py",
        "cli.py",
        "py.typed",
        "langchain.pyi",
    ):
        shutil.copy(ROOT / name, copy / name)
    for folder in (*FOLDERS, "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp)]
    done = subprocess.run([*command, str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with zipfile.ZipFile(next(tmp.glob("*.whl"))) as archive:
        yield {info.filename: info.file_size for info in archive.infolist()}


def test_wheel_holds_only_foveate(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert tops == {"foveate", "foveate-0.1.0.dist-info"}
    assert not [n for n in wheel if "/tests/" in n or n.endswith((".pyc", ".pt", ".pkl"))]


def test_wheel_holds_what_runs_and_what_is_shown(wheel):
    for name in (
        "cli.py",
        "py.typed",
        "langchain.pyi",
        "pipeline/models.txt",
        "pipeline/presets/offline.toml",
    ):
        assert f"foveate/{name}" in wheel
    packaged = {n.removeprefix("foveate/") for n in wheel if n.startswith("foveate/")}
    for path in (ROOT / "pipeline/sample").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in packaged
    for package in PACKAGES:
        assert "/".join((*package.split("."), "__init__.py")) in wheel
    # data files that code opens (weights, presets) must be in package-data
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".safetensors", ".toml", ".npz", ".html", ".js", ".css", ".svg"}:
                assert path.relative_to(ROOT).as_posix() in packaged, path


def test_sample_is_small():
    files = [p for p in (ROOT / "pipeline/sample").rglob("*") if p.is_file()]
    assert len(files) >= 18
    assert sum(p.stat().st_size for p in files) < 1_500_000


def names_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", list(python_files()), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_unsafe_in_the_code(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    banned = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
    assert not banned & {name.split(".")[0] for name in names_in(tree)}
    unsafe = {
        ("shell", True),
        ("allow_pickle", True),
        ("trust_remote_code", True),
        ("weights_only", False),
        ("verify", False),
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                assert (keyword.arg, value) not in unsafe, f"line {node.lineno}"
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "os.system", "os.popen", "yaml.load"}
            if called == "torch.load":
                assert any(k.arg == "weights_only" for k in node.keywords)
    assert not SECRET.search(text)


def test_no_print_outside_the_command_line():
    for path in python_files():
        speaks = {ROOT / "tests", ROOT / "pipeline/commands", ROOT / "examples"}
        if path.name == "cli.py" or speaks & set(path.parents):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), path
