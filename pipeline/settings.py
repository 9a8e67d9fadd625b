"""Every setting there is, its value in force and where that came from."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.pipeline.config import Config


def in_force(config: Config, at: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return {dotted key: {value, origin}}: what is set, the defaults of the rest, the index.

    at: an index whose place is shown; one that is not there is shown as the place it would have.
    """
    from foveate.pipeline.answer import AnswerOptions
    from foveate.pipeline.ingest.options import IngestOptions
    from foveate.pipeline.opening import locate
    from foveate.pipeline.search import SearchOptions

    found: dict[str, Any] = {}
    tables = (("ingest", IngestOptions), ("search", SearchOptions), ("generate", AnswerOptions))
    for table, kind in tables:
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                found[f"{table}.{field.name}"] = {"value": field.default, "origin": "default"}
    for setting in config:
        found[setting.key] = {"value": setting.value, "origin": setting.origin}
    if "ingest.pdf_passwords" in found and found["ingest.pdf_passwords"]["value"]:
        found["ingest.pdf_passwords"]["value"] = "(set)"  # a password is never printed
    origin = "option" if at else "FOVEATE_INDEX" if os.environ.get("FOVEATE_INDEX") else "folder"
    place = {"value": str(locate(at, create=True)), "origin": origin}
    return {"index": place, **dict(sorted(found.items()))}
