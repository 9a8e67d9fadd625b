"""Every example of the README and of the documentation runs.

Each page has a folder of its own: its fenced `python` and `console` blocks are one script, in their
order. After the language a block may say `slow`, or `no-run: REASON`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
RUN = {"python", "console"}


@dataclass(frozen=True)
class Block:
    language: str
    note: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, _, note = match["info"].strip().partition(" ")
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(language, note.strip(), match["body"], line))
    return found


def script(page: Path, *, slow: bool) -> str:
    """Return the page's examples as one program."""
    parts = ["import subprocess as _run"]
    for block in blocks(page):
        if block.language not in RUN or block.note.startswith("no-run"):
            continue
        if block.note == "slow" and not slow:
            continue
        parts.append(f"# {page.name}, line {block.line}")
        if block.language == "python":
            parts.append(block.body)
            continue
        for line in block.body.splitlines():
            if line.startswith("$ "):
                parts.append(f"_run.run(['bash', '-c', {line[2:]!r}], check=True)")
    return "\n".join(parts) + "\n"


def run(page: Path, folder: Path, *, slow: bool) -> None:
    sample = ROOT / "pipeline/sample"
    for place in ("sample", "home/Documents", "home/Photos"):
        shutil.copytree(sample, folder / place, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(sample / "pictures/june.jpg", folder / "part.jpg")
    (folder / "page.py").write_text(script(page, slow=slow), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    home = {"HOME": str(folder / "home"), "PATH": path, "PYTHONSAFEPATH": "1"}
    kept = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    env = {k: v for k, v in os.environ.items() if not k.startswith("FOVEATE_")} | kept | home
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "page.py"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=900 if not slow else 3000,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def runs(page: Path, *, slow: bool) -> bool:
    return any(
        b.language in RUN and not b.note.startswith("no-run") and (b.note == "slow") == slow
        for b in blocks(page)
    )


@pytest.mark.models
@pytest.mark.timeout(1000)  # on a busy machine each `foveate` takes its time to start
@pytest.mark.parametrize("page", [p for p in PAGES if runs(p, slow=False)], ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page, tmp_path):
    run(page, tmp_path, slow=False)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [p for p in PAGES if runs(p, slow=True)], ids=lambda p: p.name)
def test_the_slow_examples_of_a_page_run(page, tmp_path):
    run(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_is_not_run_says_why(page):
    for block in blocks(page):
        if block.language in RUN and block.note not in ("", "slow"):
            assert re.fullmatch(r"no-run: \S.{8,}", block.note), f"line {block.line}: {block.note}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), target
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{target}#{anchor}"


@pytest.mark.models
@pytest.mark.timeout(1000)
def test_the_example_application_answers_from_a_folder(tmp_path):
    text = (ROOT / "examples/rag.py").read_text(encoding="utf-8")
    code = [line for line in text.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 20
    question = "At what temperature does water boil on a mountain 3000 metres high?"
    folder = str(ROOT / "pipeline/sample/kitchen")
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "examples/rag.py"), folder, question],
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "90 °C" in done.stdout
    assert "boiling.md" in done.stdout
    assert "See also:" in done.stdout
