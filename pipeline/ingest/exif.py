"""Read what a camera wrote into a picture: how to turn it, when, by what and where."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from foveate.pipeline.ingest.clean import clean

if TYPE_CHECKING:
    from PIL.Image import Image

EXIF_IFD, GPS_IFD = 0x8769, 0x8825
MAKE, MODEL, DATE_TIME, DESCRIPTION = 271, 272, 306, 270
ORIENTATION = 0x0112
DATE_ORIGINAL, DATE_DIGITIZED = 36867, 36868
EXIF_DATE = re.compile(r"(\d{4})[:-](\d{2})[:-](\d{2})(?:[ T](\d{2}):(\d{2})(?::(\d{2}))?)?")
# Pillow warns of odd metadata; filters of warnings are one for the whole process
_WARNINGS = threading.RLock()


def read_orientation(image: Image) -> int:
    """Return the EXIF orientation, 1 to 8, that is to be applied once it is decoded; 1: none.

    Pillow turns TIFFs itself. HEIF has its own way to turn a picture, which the decoder follows;
    only where it is not used does EXIF count.
    """
    if image.format == "TIFF":
        return 1
    try:
        with quiet():
            found = image.getexif().get(ORIENTATION, 1)
            if image.format == "HEIF" and not _is_turned(image):
                found = image.info.get("original_orientation") or 1
            return int(found) if 1 <= int(found) <= 8 else 1
    # a damaged EXIF block fails in any way, and is no reason to lose the picture
    except Exception:
        return 1


def _is_turned(image: Any) -> bool:
    """Tell whether a HEIF file itself says how to turn the picture."""
    coded = image._heif_file[image.tell()]._c_image
    return any(step[0] in {"irot", "imir"} for step in coded.transformations)


def read_metadata(image: Image, *, gps: bool) -> dict[str, Any]:
    """Return size, date, camera and, if asked, position of an opened picture.

    width, height: in pixels, upright. date: ISO 8601, of the exposure. latitude, longitude: in
    degrees, north and east positive.
    """
    width, height = image.size
    if read_orientation(image) >= 5:
        width, height = height, width
    metadata: dict[str, Any] = {"width": width, "height": height}
    try:
        with quiet():
            exif = image.getexif()
            details = exif.get_ifd(EXIF_IFD)
            position = exif.get_ifd(GPS_IFD) if gps else {}
    # as above: metadata is a gift, not a condition
    except Exception:
        return metadata
    for tag in (details.get(DATE_ORIGINAL), details.get(DATE_DIGITIZED), exif.get(DATE_TIME)):
        if date := iso_date(tag):
            metadata["date"] = date
            break
    for name, tag in (("camera_make", MAKE), ("camera_model", MODEL), ("description", DESCRIPTION)):
        value = exif.get(tag)
        if isinstance(value, str) and (text := " ".join(clean(value)[0].split())):
            metadata[name] = text[:500]
    for name, tag, negative in (("latitude", 2, "S"), ("longitude", 4, "W")):
        degrees = _degrees(position.get(tag), position.get(tag - 1) == negative)
        if degrees is not None:
            metadata[name] = degrees
    return metadata


def iso_date(value: Any) -> str | None:
    """Return an EXIF date, YYYY:MM:DD HH:MM:SS, as ISO 8601."""
    match = EXIF_DATE.match(value.strip("\0 ")) if isinstance(value, str) else None
    if match is None:
        return None
    year, month, day, hour, minute, second = match.groups()
    if year == "0000" or not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    time = f"T{hour}:{minute}:{second or '00'}" if hour else ""
    return f"{year}-{month}-{day}{time}"


def _degrees(value: Any, is_negative: bool) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    angle = degrees + minutes / 60 + seconds / 3600
    if not 0 <= angle <= 180:
        return None
    return round(-angle if is_negative else angle, 7)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Pillow's warnings to itself, and its own limit on pixels out of the way of ours."""
    from PIL import Image as images

    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, images.MAX_IMAGE_PIXELS = images.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            images.MAX_IMAGE_PIXELS = limit
