"""Find the files below some paths, and say of each that is not opened why."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foveate.pipeline.errors import LoadError
from foveate.pipeline.types import Note

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# links between folders can make more paths than there are atoms
_MAX_WAYS = 16
_IGNORE_FILES = (".gitignore", ".foveateignore")
# never worth a look and often huge
_SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__", ".foveate", "$RECYCLE.BIN"}
)
_JUNK = re.compile(
    r"\._.*|\.DS_Store|Thumbs\.db(?::encryptable)?|desktop\.ini|ehthumbs\.db|~\$.*|\.~lock\..*#"
    r"|\.localized|Icon\r|.*\.sw[po]|\.#.*|.*~|.*\.(?:part|crdownload|tmp)",
    re.IGNORECASE | re.DOTALL,
)
_LOCKS = re.compile(r"~\$.*|\.~lock\..*#|\.#.*|.*\.sw[po]", re.IGNORECASE | re.DOTALL)
_SPECIAL = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A file. path: absolute, may hold surrogates. note: set if it is not to be opened, and why."""

    path: str
    size: int
    mtime_ns: int
    note: Note | None = None


def walk(
    paths: str | os.PathLike[str] | bytes | Iterable[str | os.PathLike[str] | bytes],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    ignore_files: bool = True,
) -> Iterator[Found]:
    """Yield every file at or below the paths once, sorted within each folder.

    include, exclude: globs as in .gitignore, relative to the path that was named; with `include`
    only what matches it is yielded. They and ignore files do not apply to a file that is named
    itself. Symlinks are followed; one that leads back to a folder above it is a loop. Folders
    that hold an index, version control, packages or caches are left out.

    Raises:
        LoadError: if a path that was named does not exist.
    """
    walker = _Walker(include, exclude, ignore_files)
    named = [paths] if isinstance(paths, str | bytes | os.PathLike) else list(paths)
    for name in named:
        path = os.path.abspath(os.path.expanduser(os.fsdecode(name)))
        if not os.path.lexists(path):
            raise LoadError(f"no such file or folder: {path!r}")
        yield from walker.below(path)


class _Walker:
    def __init__(self, include: Sequence[str], exclude: Sequence[str], ignore_files: bool) -> None:
        self.include = _spec(include) if include else None
        self.exclude = _spec(exclude) if exclude else None
        self.ignore_files = ignore_files
        self.seen: set[str] = set()
        self.visits: Counter[tuple[int, int]] = Counter()

    def below(self, root: str) -> Iterator[Found]:
        if os.path.isdir(root):
            yield from self._folder(root)
        else:
            yield from self._file(root)

    def _folder(self, root: str) -> Iterator[Found]:
        # (folder, its real identity and those above it, ignore rules in force)
        stack: list[tuple[str, tuple[tuple[int, int], ...], list[tuple[str, GitIgnoreSpec]]]]
        stack = [(root, (), self._rules_above(root))]
        while stack:
            folder, above, rules = stack.pop()
            try:
                status = os.stat(folder)
                entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
            except OSError as error:
                yield _skipped(folder, f"the folder cannot be read: {error.strerror}")
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                yield _skipped(folder, "a symlink loop: it leads to a folder above it")
                continue
            self.visits[identity] += 1
            if self.visits[identity] > _MAX_WAYS and folder != root:
                yield _skipped(folder, f"a folder that {_MAX_WAYS} other paths lead to, read there")
                continue
            if folder != root and _is_index({entry.name for entry in entries}, folder):
                continue
            if self.ignore_files:
                rules = [*rules, *_rules(folder)]
            folders: list[str] = []
            for entry in entries:
                is_folder = _is_folder(entry)
                if is_folder and entry.name in _SKIPPED_FOLDERS:
                    continue
                if self._left_out(root, entry.path, is_folder, rules):
                    continue
                if is_folder:
                    folders.append(entry.path)
                else:
                    yield from self._file(entry.path)
            stack += [(path, (*above, identity), rules) for path in reversed(folders)]

    def _file(self, path: str) -> Iterator[Found]:
        if path in self.seen:
            return
        self.seen.add(path)
        name = os.path.basename(path)
        if name in _IGNORE_FILES:
            return
        try:
            status = os.stat(path)
        except OSError as error:
            is_link = os.path.islink(path)
            what = "a broken symlink or a loop of symlinks" if is_link else "cannot be read"
            yield _skipped(path, f"{what}: {error.strerror}")
            return
        reason = None
        if _JUNK.fullmatch(name):
            kind = "a lock or swap file" if _LOCKS.fullmatch(name) else "a file of the system"
            reason = f"{kind}, no content"
        elif not stat.S_ISREG(status.st_mode):
            what = next((what for test, what in _SPECIAL if test(status.st_mode)), "not a file")
            reason = f"{what}, not a regular file"
        elif not os.access(path, os.R_OK):
            reason = "no permission to read it"
        note = Note("skipped", reason) if reason else None
        yield Found(path, status.st_size, status.st_mtime_ns, note)

    def _left_out(
        self, root: str, path: str, is_folder: bool, rules: list[tuple[str, GitIgnoreSpec]]
    ) -> bool:
        relative = _relative(path, root, is_folder)
        if self.exclude is not None and self.exclude.match_file(relative):
            return True
        if self.include is not None and not is_folder and not self.include.match_file(relative):
            return True
        left_out = False
        for folder, spec in rules:
            # a nearer file overrules one above it
            result = spec.check_file(_relative(path, folder, is_folder)).include
            left_out = left_out if result is None else result
        return left_out

    def _rules_above(self, root: str) -> list[tuple[str, GitIgnoreSpec]]:
        """Rules of the folders between the top of a repository and the root."""
        if not self.ignore_files:
            return []
        folders: list[str] = []
        folder = root
        while not os.path.lexists(os.path.join(folder, ".git")):
            parent = os.path.dirname(folder)
            if parent == folder:
                # in no repository: rules above do not concern it
                return []
            folder = parent
            folders.append(folder)
        return [rule for folder in reversed(folders) for rule in _rules(folder)]


def _skipped(path: str, reason: str) -> Found:
    try:
        status = os.lstat(path)
    except OSError:
        return Found(path, 0, 0, Note("skipped", reason))
    return Found(path, status.st_size, status.st_mtime_ns, Note("skipped", reason))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_index(names: set[str], folder: str) -> bool:
    return folder.endswith(".fov") or ("catalog.sqlite" in names and "words" in names)


def _relative(path: str, folder: str, is_folder: bool) -> str:
    relative = os.path.relpath(path, folder).replace(os.sep, "/")
    # pathspec matches text: a newline would end its pattern, surrogates are no text
    relative = relative.replace("\n", "?").encode("utf-8", "replace").decode("utf-8")
    return f"{relative}/" if is_folder else relative


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _rules(folder: str) -> Iterator[tuple[str, GitIgnoreSpec]]:
    for name in _IGNORE_FILES:
        path = os.path.join(folder, name)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                continue
            with open(path, encoding="utf-8", errors="replace") as handle:
                yield folder, _spec(handle.read(1 << 20).splitlines())
        except (OSError, ValueError):
            # no such file, or a pattern that is none: the files are read
            continue
