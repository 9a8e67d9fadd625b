import ast
import importlib.util
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from foveate.pipeline import registry

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("encoders", "index", "rerank", "kernels", "pipeline/ingest")
FOLDERS = ("encoders", "index", "rerank", "kernels", "pipeline")
SHARED = {"foveate.pipeline.types", "foveate.pipeline.errors", "foveate.pipeline.protocols"}
HEAVY = [
    "torch",
    "numpy",
    "faiss",
    "transformers",
    "sentence_transformers",
    "open_clip",
    "langchain_core",
    "PIL",
    "timm",
    "tantivy",
    "onnxruntime",
    "rapidocr",
    "pypdfium2",
    "rich",
]
LIGHT_FILES = ["__init__.py", "cli.py"] + [
    f"pipeline/{name}.py"
    for name in ("types", "errors", "protocols", "registry", "config", "evaluate/commands")
]
COMMANDS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "pipeline/commands").glob("[!_]*.py"))
LIGHT_FILES += COMMANDS


def sources():
    yield ROOT / "__init__.py"
    yield ROOT / "cli.py"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "sample" not in path.parts:
                yield path


def imports(tree, *, top_level=False):
    """Yield (module, level) of every import; top_level leaves out functions and TYPE_CHECKING."""

    def walk(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, 0) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                yield base, child.level
                yield from ((f"{base}.{alias.name}", child.level) for alias in child.names)
            elif top_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            elif (
                top_level and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            ):
                yield from walk(ast.Module(child.orelse, []))
            else:
                yield from walk(child)

    yield from walk(tree)


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", list(sources()), ids=name_of)
def test_imports_are_absolute_and_nothing_imports_the_command_line(path):
    for module, level in imports(parsed(path)):
        assert level == 0, f"relative import of {module!r}"
        assert module.split(".")[0] not in FOLDERS, f"bare import of {module!r}"
        assert module != "foveate.cli"
        assert not module.startswith("foveate.cli.")


def stage_of(module):
    for stage in STAGES:
        name = "foveate." + stage.replace("/", ".")
        if module == name or module.startswith(name + "."):
            return stage
    return None


@pytest.mark.parametrize("stage", STAGES)
def test_stages_do_not_import_each_other(stage):
    wrong = []
    for path in sorted((ROOT / stage).rglob("*.py")):
        for module, _ in imports(parsed(path)):
            if not module.startswith("foveate.") or stage_of(module) == stage:
                continue
            if module in SHARED or any(module.startswith(s + ".") for s in SHARED):
                continue
            if stage == "pipeline/ingest" and module.startswith("foveate.pipeline.registry"):
                continue  # a reader finds its loader by name
            if module == "foveate.pipeline" or (
                stage_of(module) == "kernels" and stage in ("encoders", "index", "rerank")
            ):
                continue
            wrong.append(f"{name_of(path)} imports {module}")
    assert not wrong


def test_pipeline_modules_reach_stages_only_through_the_registry_or_inside_functions():
    wrong = []
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        if (ROOT / "pipeline/ingest") in path.parents:
            continue
        for module, _ in imports(parsed(path), top_level=True):
            if stage_of(module) not in (None, "pipeline/ingest"):
                wrong.append(f"{name_of(path)} imports {module}")
    assert not wrong


@pytest.mark.parametrize("name", LIGHT_FILES)
def test_light_modules_import_only_the_standard_library(name):
    speaks = name in ("cli.py", "pipeline/evaluate/commands.py", *COMMANDS)
    allowed = {"typer"} if speaks else set()
    for module, _ in imports(parsed(ROOT / name), top_level=True):
        top = module.split(".")[0]
        if top == "foveate":
            light = {"foveate." + n[:-3].replace("/", ".") for n in LIGHT_FILES}
            assert module == "foveate.pipeline" or any(module.startswith(m) for m in light)
        else:
            assert top in sys.stdlib_module_names | allowed, f"{name} imports {module}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_inits_run_no_imports(folder):
    for path in (ROOT / folder).rglob("__init__.py"):
        modules = {module for module, _ in imports(parsed(path), top_level=True)}
        assert modules <= {"__future__", "__future__.annotations"}, name_of(path)


@pytest.mark.parametrize("kind", sorted(registry.FOLDERS))
def test_registered_names_exist(kind):
    entries = registry.names(kind)
    assert entries
    for name, target in entries.items():
        module, _, attribute = target.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None, f"{kind} {name!r}: no module {module}"
        top = {getattr(node, "name", "") for node in parsed(Path(spec.origin)).body}
        assert attribute in top, f"{kind} {name!r}: no {attribute} in {module}"


NO_ARGS = ast.parse("lambda: 0", mode="eval").body.args
VERBS = {"encoder": {"encode", "encode_queries"}, "generator": {"generate"}, "loader": {"load"}}


def components(tree, kind):
    """Yield the names of the public top-level objects that have the verbs of a kind."""
    for node in tree.body:
        if kind == "loader":
            takes = [ast.unparse(a.annotation or a) for a in getattr(node, "args", NO_ARGS).args]
            if takes == ["OpenedFile", "IngestOptions"] and not node.name.startswith("_"):
                yield node.name
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            if methods >= VERBS[kind]:
                yield node.name


@pytest.mark.parametrize("kind", sorted(VERBS))
def test_every_component_of_a_folder_is_registered(kind):
    package = registry.FOLDERS[kind]
    registered = set(registry.names(kind).values())
    for path in sorted((ROOT / package.removeprefix("foveate.").replace(".", "/")).glob("*.py")):
        for name in components(parsed(path), kind):
            assert f"{package}.{path.stem}:{name}" in registered


def in_new_python(code):
    """Run code where no pytest has imported anything, away from the repository's folder."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd="/", check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "module", ["foveate", "foveate.cli", "foveate.pipeline.config", "foveate.pipeline.types"]
)
def test_nothing_heavy_is_imported(module):
    code = f"import {module}, sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    assert in_new_python(code) == []


def test_help_is_quick():
    best = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-P", "-m", "foveate.cli", "--help"], capture_output=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        best = min(best, used)
    # processor time, so that a busy machine does not count; 0.3 s is the budget on an idle one
    assert best < 0.6


def test_public_names_resolve():
    import foveate

    for name in foveate.__all__:
        assert getattr(foveate, name) is not None
