"""The card of a trained encoder: what it is, what it was trained on, how it did, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CARD = "README.md"
RECORD = "training.json"


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write README.md for people and training.json, the same facts, for programs.

    card: {heading or fact: text, number, list or mapping}; `use` and `base` are expected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", "utf-8")
    name = folder.resolve().name
    lines = [
        f"# {name}",
        "",
        f"Trained by `foveate train` from {card.get('base', 'an untrained head')}.",
        "",
        *(_fact(key, value) for key, value in card.items() if key != "base"),
        "",
        "To use it, in foveate.toml:",
        "",
        "```toml",
        f"[encoders.{card.get('role', 'text')}]",
        f'use = "{card.get("use", "minilm")}"',
        f'{card.get("option", "path")} = "PATH OF THIS FOLDER"',
        "```",
    ]
    (folder / CARD).write_text("\n".join(lines) + "\n", "utf-8")


def read_card(folder: Path) -> dict[str, Any]:
    """Return the facts of a trained encoder's folder, {} where there are none."""
    path = folder / RECORD
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def _fact(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        shown = ", ".join(f"{name} {_number(number)}" for name, number in value.items())
    elif isinstance(value, list | tuple):
        shown = ", ".join(map(_number, value))
    else:
        shown = _number(value)
    return f"- {key.replace('_', ' ')}: {shown}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
