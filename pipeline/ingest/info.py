"""Read a PDF's title, author and dates."""

from __future__ import annotations

import re
from typing import Any

from foveate.pipeline.ingest.clean import clean

DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?(\d{2})?(\d{2})?(\d{2})?")
WRITTEN_BY = re.compile(r"(?i)^microsoft \w+ - ")
JUNK_TITLE = re.compile(
    r"(?i)untitled\b.*|(pii|doi|arxiv):.*|.*\.(docx?|xlsx?|pptx?|indd|qxd|exe|tex|dvi|pdf|ps|eps|rtf"
    r"|odt|wpd|pub|p65|fm|pmd)"
)


def read_info(document: Any) -> tuple[dict[str, Any], str | None]:
    """Return a document's metadata, and its title unless it is a file's name.

    The caller holds the lock of pdfium. date, date_modified: ISO 8601.
    """
    found = {}
    for name, value in document.get_metadata_dict(skip_empty=True).items():
        if text := " ".join(clean(value)[0].split()):
            found[name] = text[:1000]
    title = WRITTEN_BY.sub("", found.get("Title", "")).strip()
    if JUNK_TITLE.fullmatch(title):
        title = ""
    names = ("Author", "Subject", "Keywords", "Creator", "Producer")
    metadata: dict[str, Any] = {n.lower(): found[n] for n in names if n in found}
    for name, key in (("CreationDate", "date"), ("ModDate", "date_modified")):
        if date := iso_date(found.get(name, "")):
            metadata[key] = date
    return metadata, title or None


def iso_date(value: str) -> str | None:
    """Return a PDF date, D:YYYYMMDDHHmmSS, as ISO 8601 without its zone."""
    match = DATE.match(value)
    if not match:
        return None
    year, month, day, hour, minute, second = match.groups()
    if not (1 <= int(month or 1) <= 12 and 1 <= int(day or 1) <= 31):
        return None
    date = "-".join(part for part in (year, month, day) if part)
    if day and hour and int(hour) < 24 and int(minute or 0) < 60 and int(second or 0) < 60:
        date += f"T{hour}:{minute or '00'}:{second or '00'}"
    return date
