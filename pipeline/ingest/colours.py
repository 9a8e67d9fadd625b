"""Turn a decoded picture of any mode into the RGB picture that a person would see."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

MIN_IS_WHITE = 0
PHOTOMETRIC, MAX_SAMPLE = 262, 281
DEPTHS = (12, 14, 16)
# a picture that shows fewer levels than these would be one dark or pale patch
FEW_LEVELS = 32


def to_rgb(image: Image) -> tuple[Image, str | None]:
    """Return a loaded picture as RGB, and what had to be guessed or ignored on the way.

    Transparency is laid over white. An embedded colour profile is applied; one that cannot be
    read is ignored, with a message. Grey of more than 8 bits keeps its linear scale.
    """
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey(image)
    message = None
    profile = image.info.get("icc_profile")
    image, alpha = _without_alpha(image)
    if image.mode == "LAB":
        image, message = _from_lab(image)
    elif profile and image.mode in {"RGB", "L", "CMYK"}:
        image, message = _apply_profile(image, profile)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if alpha is not None:
        from PIL import Image as images

        white = images.new("RGB", image.size, (255, 255, 255))
        white.paste(image, (0, 0), alpha)
        image = white
    return image, message


def _without_alpha(image: Image) -> tuple[Image, Image | None]:
    """Part a picture from its transparency, whatever form that has."""
    if image.mode in {"RGBa", "La"}:
        image = image.convert(image.mode[:-1] + "A" if image.mode == "La" else "RGBA")
    if image.mode == "PA" or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
    elif image.mode == "P":
        image = image.convert("RGB")
    elif image.mode in {"RGB", "L", "1"} and "transparency" in image.info:
        # a single colour that stands for transparent
        image = image.convert("RGBA" if image.mode == "RGB" else "LA")
    if image.mode == "RGBA":
        alpha = image.getchannel("A")
        return image.convert("RGB"), alpha
    if image.mode == "LA":
        return image.getchannel("L"), image.getchannel("A")
    return image.convert("L") if image.mode == "1" else image, None


def _apply_profile(image: Image, profile: bytes) -> tuple[Image, str | None]:
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}.get(space) != image.mode:
            return image, f"a colour profile for {space!r} was ignored: the picture is {image.mode}"
        changed = ImageCms.profileToProfile(
            image, source, ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        return image, f"its colour profile cannot be read and was ignored: {reason}"
    return (changed or image), None


def _from_lab(image: Image) -> tuple[Image, str | None]:
    from PIL import ImageCms

    changed = ImageCms.profileToProfile(
        image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    if changed is None:
        return image.convert("L"), "its Lab colours could not be converted: shown in grey"
    return changed, None


def _deep_grey(image: Image) -> tuple[Image, str | None]:
    """Bring grey of 10 to 32 bits, whole or real, to 8 bits."""
    import numpy as np
    from PIL import Image as images

    values = np.asarray(image)
    message = None
    if values.dtype.kind == "f":
        grey, message = _scale_reals(values)
    else:
        grey, message = _scale_integers(image, values)
    tags = getattr(image, "tag_v2", None)
    if tags is not None and tags.get(PHOTOMETRIC) == MIN_IS_WHITE:
        grey = 255 - grey
    return images.fromarray(grey, "L").convert("RGB"), message


def _scale_integers(image: Image, values: NDArray[Any]) -> tuple[NDArray[np.uint8], str | None]:
    import numpy as np

    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 0xFFFF:
        span = max(high - low, 1)
        spread = (values.astype(np.float64) - low) * (255 / span)
        return spread.round().astype(np.uint8), f"values {low} to {high} were scaled to 8 bits"
    bits = 16
    tags = getattr(image, "tag_v2", None)
    if tags is not None:
        # a TIFF may say how much of its 16 bits it fills; scanners and microscopes often don't
        declared = tags.get(MAX_SAMPLE)
        declared = declared[0] if isinstance(declared, tuple) else declared
        top = int(declared) if declared and high <= int(declared) < 0xFFFF else high
        bits = next(depth for depth in DEPTHS if top < 1 << depth)
    message = f"taken for {bits}-bit values" if bits != 16 else None
    top = (1 << bits) - 1
    if 0 < (high - low) * 255 < FEW_LEVELS * top:
        message = f"its contrast was stretched: values {low} to {high} of {top}"
    else:
        low, high = 0, top
    scaled = (values.astype(np.float32) - low) * np.float32(255 / max(high - low, 1))
    return scaled.round().clip(0, 255).astype(np.uint8), message


def _scale_reals(values: NDArray[Any]) -> tuple[NDArray[np.uint8], str | None]:
    import numpy as np

    finite = np.isfinite(values)
    clean: NDArray[np.float64] = np.where(finite, values, 0.0).astype(np.float64)
    low, high = float(clean.min()), float(clean.max())
    if low >= 0 and high <= 1:
        return (clean * 255).round().astype(np.uint8), None
    if low >= 0 and high <= 255:
        return clean.round().astype(np.uint8), None
    scaled = (clean - low) * (255 / max(high - low, 1e-12))
    return scaled.round().astype(np.uint8), f"values {low:g} to {high:g} were scaled to 8 bits"
