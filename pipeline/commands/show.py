"""The command `foveate show`, and how a picture gets onto the terminal or into a file."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.pipeline.commands.common import IndexOption, JsonOption, complain, emit, opened

if TYPE_CHECKING:
    from PIL.Image import Image

    from foveate.pipeline.engine import Engine
    from foveate.pipeline.types import Floats, Passage


def show(
    hit: Annotated[
        str, typer.Argument(metavar="LABEL", help="Such as 3f2a90c1d4e5:7, or a passage id.")
    ],
    at: IndexOption = None,
    span: Annotated[
        str | None,
        typer.Option(help="Characters of its source, as `ask` prints them.", metavar="START-END"),
    ] = None,
    save: Annotated[
        str | None, typer.Option(help="Write the picture or page to a file.", metavar="FILE")
    ] = None,
    heat: Annotated[
        str | None,
        typer.Option(
            help="Light the regions of the picture that these words are about.", metavar="WORDS"
        ),
    ] = None,
    crop: Annotated[
        bool, typer.Option("--crop", help="With --save: only the boxes of the span.")
    ] = False,
    open_file: Annotated[bool, typer.Option("--open", help="Open the file itself.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a hit or a cited span in its surroundings; show, save or open what it stands in."""
    from foveate.pipeline import records, terminal
    from foveate.pipeline.errors import FoveateError

    if crop and not save:
        raise FoveateError("--crop goes with --save FILE: add that, or leave it out")
    with opened(at) as engine:
        passage = cited(engine, engine.show(hit), span)
        whole = engine.text(passage.source.id)
        parts = terminal.surroundings(whole, passage.locator.span or (0, 0))
        heated = engine.heat_map(passage, heat) if heat is not None else None
        written = write_picture(engine, passage, save, crop=crop, heat=heated) if save else None
        if as_json:
            before, quote, after = parts
            extra = {"before": before, "quote": quote, "after": after, "picture": written}
            if heated is not None:
                extra["heat"] = heated.round(4).tolist()
            emit({**records.passage(passage), **extra})
        else:
            console = terminal.open_console()
            terminal.print_passage(console, passage, parts)
            if passage.modality in ("image", "page") and not save:
                show_picture(engine, passage, heated)
            if written:
                console.print(terminal.printable(f"written: {written}"))
        if open_file:
            open_outside(passage.source.uri)


def show_picture(engine: Engine, passage: Passage, heat: Floats | None = None) -> None:
    """Show a picture where the terminal can; a picture that is gone is only said to be."""
    from foveate.pipeline import inline
    from foveate.pipeline.errors import FoveateError

    how = inline.protocol()
    if how is None or not sys.stdout.isatty():
        return
    try:
        image = engine.image(passage)
        if heat is not None:
            image = lit(image, heat)
    except FoveateError as error:
        complain(str(error))
        return
    print(inline.draw(image, how), end="", flush=True)


def cited(engine: Engine, passage: Passage, span: str | None) -> Passage:
    """Return the passage narrowed to a span of its source, with that span's boxes."""
    import dataclasses
    import re

    from foveate.pipeline.errors import QueryError

    if span is None:
        return passage
    numbers = re.fullmatch(r"(\d+)[-:](\d+)", span)
    whole = engine.text(passage.source.id)
    if numbers is None or not int(numbers[1]) < int(numbers[2]) <= len(whole):
        raise QueryError(f"--span takes START-END within 0-{len(whole)}, got {span!r}")
    start, end = int(numbers[1]), int(numbers[2])
    boxes = engine.boxes(passage.source.id, (start, end))
    page = boxes[0][0] if boxes else passage.locator.page
    locator = dataclasses.replace(
        passage.locator,
        span=(start, end),
        page=page,
        boxes=tuple(b for n, b in boxes if n == page),
    )
    return dataclasses.replace(passage, text=whole[start:end], locator=locator)


def lit(image: Image, heat: Floats) -> Image:
    """Return the picture, dark where the heat (rows, columns), 0..1, is low."""
    import numpy as np
    from PIL import Image as Pictures

    tones = Pictures.fromarray((255 * (0.25 + 0.75 * heat)).astype(np.uint8))
    mask = tones.resize(image.size, Pictures.Resampling.BICUBIC)
    return Pictures.composite(image, Pictures.new(image.mode, image.size), mask)


def write_picture(
    engine: Engine, passage: Passage, path: str, *, crop: bool, heat: Floats | None = None
) -> str:
    """Write the picture or page of a passage, whole or cut to its boxes; return the path."""
    from foveate.pipeline.errors import QueryError

    image = engine.image(passage)
    if heat is not None:
        image = lit(image, heat)
    if crop and passage.locator.boxes:
        boxes, (w, h) = passage.locator.boxes, image.size
        corners = (
            int(min(b.x0 for b in boxes) * w),
            int(min(b.y0 for b in boxes) * h),
            int(max(b.x1 for b in boxes) * w) + 1,
            int(max(b.y1 for b in boxes) * h) + 1,
        )
        image = image.crop(corners)
    try:
        image.save(path)
    except ValueError as error:
        raise QueryError(f"cannot write {path!r}: name it .png or .jpg ({error})") from error
    return os.path.abspath(path)


def open_outside(uri: str) -> None:
    """Open a file with the platform's own opener.

    Raises:
        FoveateError: if there is no opener, it fails or the file is gone.
    """
    import shutil
    import subprocess

    from foveate.pipeline.errors import FoveateError

    path = uri.split("#row=")[0]
    if not os.path.exists(path):
        raise FoveateError(f"the file is gone: {path!r}")
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        raise FoveateError(f"there is no xdg-open here to open {path!r} with")
    if subprocess.run([opener, path], stderr=subprocess.DEVNULL).returncode:
        raise FoveateError(f"{os.path.basename(opener)} found nothing to open {path!r} with")
