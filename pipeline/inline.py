"""Pictures on a terminal: the kitty, iTerm2 and sixel protocols, known by environment only.

Protocols: sw.kovidgoyal.net/kitty/graphics-protocol, iterm2.com/documentation-images.html and
the VT340 programmer reference (sixel).
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

Protocol = Literal["kitty", "iterm2", "sixel"]
PROTOCOLS: tuple[Protocol, ...] = ("kitty", "iterm2", "sixel")
CHUNK = 4096  # base64 characters in one kitty escape
SIXEL_TERMS = ("foot", "mlterm", "yaft", "contour")


def protocol(environ: Mapping[str, str] | None = None) -> Protocol | None:
    """Return how this terminal shows pictures, None when it is not known to.

    FOVEATE_IMAGES=kitty, iterm2, sixel or none overrules. Inside tmux and screen pictures do not
    get through.
    """
    env = os.environ if environ is None else environ
    asked = env.get("FOVEATE_IMAGES", "").lower()
    for name in PROTOCOLS:
        if asked == name:
            return name
    if asked or env.get("TMUX") or env.get("TERM", "").startswith(("screen", "tmux", "dumb")):
        return None
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "")
    if env.get("KITTY_WINDOW_ID") or term in ("xterm-kitty", "xterm-ghostty"):
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty") or env.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return "sixel" if "sixel" in term or term.startswith(SIXEL_TERMS) else None


def draw(image: Image, how: Protocol, *, size_px: int = 320) -> str:
    """Return the escape sequence that shows a picture, at most size_px wide and high."""
    small = image.convert("RGB")
    small.thumbnail((size_px, size_px))
    if how == "sixel":
        return sixel(small)
    file = io.BytesIO()
    small.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    if how == "iterm2":
        return f"\x1b]1337;File=inline=1;size={len(file.getvalue())}:{data}\x07\n"
    parts = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
    escapes = []
    for i, part in enumerate(parts):
        more = int(i + 1 < len(parts))
        keys = f"a=T,f=100,q=2,m={more}" if i == 0 else f"m={more}"
        escapes.append(f"\x1b_G{keys};{part}\x1b\\")
    return "".join(escapes) + "\n"


def sixel(image: Image, n_colours: int = 64) -> str:
    """Encode a picture as sixels: bands of six rows, one run-length coded pass a colour."""
    import numpy as np

    indexed = image.quantize(n_colours)
    palette = np.asarray(indexed.getpalette()).reshape(-1, 3) * 100 // 255
    pixels = np.asarray(indexed)
    height, width = pixels.shape
    out = [f'\x1bPq"1;1;{width};{height}']
    out += [f"#{i};2;{r};{g};{b}" for i, (r, g, b) in enumerate(palette)]
    weights = 1 << np.arange(6)[:, None]
    for top in range(0, height, 6):
        band = pixels[top : top + 6]
        for colour in np.unique(band):
            bits = ((band == colour) * weights[: len(band)]).sum(axis=0)
            out.append(f"#{colour}{_runs(bits.tolist())}$")
        out.append("-")
    return "".join(out) + "\x1b\\\n"


def _runs(values: list[int]) -> str:
    out: list[str] = []
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            n, c = i - start, chr(63 + values[start])
            out.append(f"!{n}{c}" if n > 3 else c * n)
            start = i
    return "".join(out)
