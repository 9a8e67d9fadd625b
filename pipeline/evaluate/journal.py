"""What a long run has done so far, a line a query, so that a stop loses one query only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """Values by key in a file of JSON lines; a half-written last line is left out.

    path: None keeps nothing on disk.
    """

    def __init__(self, path: Path | None, *, fresh: bool = False) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        if path is None:
            return
        if fresh:
            path.unlink(missing_ok=True)
        elif path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    key, value = json.loads(line)
                except ValueError:
                    continue
                self.values[key] = value

    def put(self, key: str, value: Any) -> None:
        self.values[key] = value
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as handle:
            # a torn line before this one must not swallow it
            handle.write("\n" + json.dumps([key, value]) + "\n")

    def end(self) -> None:
        """Take the file away: what it held stands elsewhere now."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
