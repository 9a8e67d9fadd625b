"""Pictures of every kind: upright, in their true colours, within limits, or a true reason."""

import io
import json
import os
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageCms, ImageDraw, ImageFont, TiffImagePlugin

from foveate.pipeline.errors import LimitExceeded, LoadError
from foveate.pipeline.ingest import ocr
from foveate.pipeline.ingest.image import load, open_picture
from foveate.pipeline.ingest.options import IngestOptions, OpenedFile

NEVER = IngestOptions(ocr="never")
pillow_heif.register_heif_opener()


def read(data, options=NEVER):
    file = OpenedFile("/x", media_type="image/x", type="x", data=data)
    (document,) = load(file, options)
    for picture in document.pictures:
        assert picture.image.mode == "RGB"
    return document


def save(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def quarters(size=(80, 60)):
    """Return a picture with four colours: no turn or flip leaves it as it was."""
    image = Image.new("RGB", size, (200, 30, 30))
    width, height = size
    image.paste((30, 160, 30), (width // 2, 0, width, height // 2))
    image.paste((30, 30, 200), (0, height // 2, width // 2, height))
    image.paste((230, 210, 40), (width // 2, height // 2, width, height))
    return image


def corners(image):
    width, height = image.size
    places = [(0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8)]
    return np.array([image.getpixel((int(x * width), int(y * height))) for x, y in places])


TRUE = corners(quarters())
TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "WEBP", "TIFF", "TIFF deflated", "AVIF", "HEIF", "HEIF EXIF only"]
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_made_upright(kind, orientation):
    image = quarters()
    if TURNS[orientation] is not None:
        image = image.transpose(TURNS[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "exif": exif}
    if kind == "TIFF deflated":
        options = {"compression": "tiff_adobe_deflate", "exif": exif}
    if kind == "HEIF":
        options["exif"] = exif.tobytes()
    document = read(save(image, kind.split()[0], **options))
    (picture,) = document.pictures
    assert picture.image.size == (80, 60)
    assert (document.metadata["width"], document.metadata["height"]) == (80, 60)
    assert np.abs(corners(picture.image) - TRUE).max() < 25


# colours


def opaque(mode):
    return quarters().convert(mode)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *[("PNG", mode) for mode in ("RGB", "RGBA", "P", "L", "LA", "1", "I;16")],
        *[("TIFF", mode) for mode in ("RGB", "RGBA", "CMYK", "LAB", "YCbCr", "P", "L", "F", "1")],
        *[("JPEG", mode) for mode in ("RGB", "L", "CMYK")],
        *[("WEBP", "RGB"), ("WEBP", "RGBA"), ("AVIF", "RGB"), ("HEIF", "RGB"), ("HEIF", "RGBA")],
        *[("GIF", "P"), ("BMP", "RGB"), ("BMP", "P"), ("BMP", "1"), ("ICO", "RGBA")],
        *[("JPEG2000", "RGB"), ("JPEG2000", "RGBA"), ("PPM", "RGB"), ("PPM", "L")],
    ],
)
def test_every_mode_gives_the_colours_that_were_saved(kind, mode):
    image = quarters((64, 64))
    expected = corners(image)
    if mode == "LAB":
        to_lab = ImageCms.buildTransform(
            ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
        )
        image = ImageCms.applyTransform(image, to_lab)
    elif mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif mode == "P":
        image = image.quantize(16, dither=Image.Dither.NONE)
    elif mode == "1":
        image = image.convert("L").point(lambda value: 255 * (value > 100)).convert("1")
    else:
        image = image.convert(mode)
    if mode in {"L", "LA", "F", "I;16", "1"}:
        grey = quarters((64, 64)).convert("L")
        grey = grey.point(lambda value: 255 * (value > 100)) if mode == "1" else grey
        expected = corners(grey.convert("RGB"))
    options = {"quality": 95} if kind in {"JPEG", "WEBP", "AVIF", "HEIF"} else {}
    document = read(save(image, kind, **options))
    assert np.abs(corners(document.pictures[0].image) - expected).max() < 25


@pytest.mark.parametrize("bits", [12, 14, 16])
@pytest.mark.parametrize("kind", ["TIFF", "TIFF big-endian", "TIFF white is zero"])
def test_deep_grey_keeps_its_scale(bits, kind):
    top = (1 << bits) - 1
    ramp = np.linspace(0, top, 64).round().astype(np.uint16)[None].repeat(8, axis=0)
    if kind == "TIFF white is zero":
        data = save(Image.fromarray(ramp), "TIFF", tiffinfo={262: 0})
        if struct.unpack("<H", data[:2])[0] and b"\x06\x01\x03\x00\x01\x00\x00\x00\x00" not in data:
            pytest.skip("Pillow writes no such file")
        ramp = top - ramp
    elif kind == "TIFF big-endian":
        data = save(Image.fromarray(ramp.astype(">u2")), "TIFF")
    else:
        data = save(Image.fromarray(ramp), "TIFF")
    pixels = np.asarray(read(data).pictures[0].image)[..., 0].astype(int)
    assert np.abs(pixels - ramp * (255 / top)).max() <= 1


def test_sixteen_bit_png_is_no_white_patch():
    ramp = np.linspace(0, 65535, 64).astype(np.uint16)[None].repeat(8, axis=0)
    pixels = np.asarray(read(save(Image.fromarray(ramp), "PNG")).pictures[0].image)[..., 0]
    assert np.abs(pixels.astype(int) - ramp / 257).max() <= 1
    faint = read(save(Image.fromarray(ramp // 200 + 300), "PNG"))
    assert np.ptp(np.asarray(faint.pictures[0].image)) == 255
    assert "stretched" in faint.notes[0].message


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P", "key", "PA"])
def test_transparency_lies_over_white(kind):
    if kind == "key":
        data = save(quarters(), "PNG", transparency=(200, 30, 30))
    elif kind == "P":
        image = quarters().quantize(8)
        data = save(image, "PNG", transparency=image.getpixel((10, 10)))
    else:
        image = quarters().convert("LA" if kind == "LA" else "RGBA")
        image.putalpha(
            Image.linear_gradient("L").resize(image.size).point(lambda v: 255 * (v > 127))
        )
        if kind == "PA":
            alpha = image.getchannel("A").point(lambda v: 255 - v)
            image = quarters().quantize(8, dither=0)
            image.info["transparency"] = 0
            del alpha
            data = save(image, "GIF", transparency=image.getpixel((10, 10)))
        else:
            data = save(image, "PNG")
    picture = read(data).pictures[0].image
    assert picture.getpixel((10, 10)) == (255, 255, 255)
    assert picture.getpixel((70, 50)) != (255, 255, 255)
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert read(save(half, "PNG")).pictures[0].image.getpixel((4, 4)) == (127, 127, 127)


def test_adobe_cmyk_is_not_inverted():
    image = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    red, green, blue = read(save(image, "JPEG", quality=95)).pictures[0].image.getpixel((9, 9))
    assert red > 200
    assert max(green, blue) < 60


def test_colour_profiles_are_applied():
    # a profile that swaps nothing but has another gamma than sRGB
    linear = ImageCms.createProfile("XYZ")
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert linear is not None
    image = quarters()
    document = read(save(image, "PNG", icc_profile=srgb))
    assert np.abs(corners(document.pictures[0].image) - TRUE).max() <= 2
    assert not document.notes
    swapped = bytearray(srgb)
    # the tags of the red and the blue colorant change places: red is shown as blue
    red, blue = swapped.index(b"rXYZ"), swapped.index(b"bXYZ")
    swapped[red : red + 4], swapped[blue : blue + 4] = b"bXYZ", b"rXYZ"
    shown = corners(read(save(image, "PNG", icc_profile=bytes(swapped))).pictures[0].image)
    assert np.abs(shown - TRUE[:, ::-1]).max() < 40


def test_bad_colour_profile_is_ignored_and_told():
    document = read(save(quarters(), "PNG", icc_profile=b"nonsense" * 40))
    assert np.abs(corners(document.pictures[0].image) - TRUE).max() == 0
    assert "profile" in document.notes[0].message


# damage


def encodings():
    noise = Image.effect_noise((96, 96), 80).convert("RGB")
    noise.paste(quarters((48, 48)), (0, 0))
    yield "JPEG", save(noise, "JPEG")
    yield "progressive JPEG", save(noise, "JPEG", progressive=True)
    yield "PNG", save(noise, "PNG")
    yield "WEBP", save(noise, "WEBP")
    yield "lossless WEBP", save(noise, "WEBP", lossless=True)
    yield "GIF", save(noise.quantize(64), "GIF")
    yield "TIFF", save(noise, "TIFF")
    yield "deflated TIFF", save(noise, "TIFF", compression="tiff_adobe_deflate")
    yield "G4 TIFF", save(noise.convert("1"), "TIFF", compression="group4")
    yield "BMP", save(noise, "BMP")
    yield "AVIF", save(noise, "AVIF")
    yield "HEIF", save(noise, "HEIF")
    yield "ICO", save(noise, "ICO")
    yield "JPEG2000", save(noise, "JPEG2000")


@pytest.mark.parametrize(("kind", "data"), list(encodings()), ids=[k for k, _ in encodings()])
def test_truncated_anywhere_is_refused_with_the_reason(kind, data, capfd):
    whole = read(data)
    assert whole.pictures
    n_refused = 0
    for share in np.linspace(0.02, 0.98, 25):
        begin = time.perf_counter()
        document, reason = with_reason(data[: int(len(data) * share)])
        n_refused += document is None
        assert "truncated" in reason or document
        # what a decoder takes for whole must have every pixel of its size
        assert document is None or document.metadata["width"] == whole.metadata["width"]
        assert time.perf_counter() - begin < 20
    assert n_refused >= 22
    # libtiff writes past Pillow
    assert capfd.readouterr().err == "" or "TIFF" in kind


def test_random_damage_never_raises_anything_else():
    rng = np.random.default_rng(3)
    for _, data in encodings():
        for _ in range(12):
            damaged = np.frombuffer(data, np.uint8).copy()
            damaged[rng.integers(0, len(damaged), 12)] = rng.integers(0, 256, 12)
            with_reason(damaged.tobytes())


def with_reason(data):
    """Return the document and "", or None and why it is refused; any other error is a failure."""
    try:
        return read(data), ""
    except LoadError as error:
        return None, str(error)


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"no picture at all" * 9, b"\xff\xd8\xff", b"\0" * 99]
)
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(LoadError):
        read(data)


# limits


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, extra=b""):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


def bombs():
    side = 50_000
    yield "PNG", png(side, side)
    yield (
        "GIF",
        b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\0\0,\0\0\0\0"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\x02\x02\x44\x01\0;",
    )
    yield (
        "BMP",
        (
            b"BM"
            + struct.pack("<IHHI", 200, 0, 0, 54)
            + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
            + b"\0" * 99
        ),
    )
    yield (
        "WEBP",
        (
            b"RIFF"
            + struct.pack("<I", 200)
            + b"WEBPVP8X"
            + struct.pack("<I", 10)
            + b"\0" * 4
            + (16_000).to_bytes(3, "little") * 2
            + b"\0" * 170
        ),
    )
    image = Image.new("1", (64, 64))
    tiff = bytearray(save(image, "TIFF"))
    for tag in (256, 257):
        at = tiff.index(struct.pack("<HHI", tag, 4, 1)) + 8
        tiff[at : at + 4] = struct.pack("<I", side)
    yield "TIFF", bytes(tiff)
    jpeg = bytearray(save(image.convert("L"), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", side, side)
    yield "JPEG", bytes(jpeg)
    text = chunk(b"zTXt", b"note\0\0" + zlib.compress(b"a" * 200_000_000, 9))
    yield "PNG text", png(8, 8, text)
    icon = png(side, side)
    head = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(icon), 22)
    yield "ICO", head + icon


@pytest.mark.parametrize(("kind", "data"), list(bombs()), ids=[kind for kind, _ in bombs()])
def test_bombs_are_refused_by_a_stated_limit(kind, data):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    with pytest.raises(LimitExceeded, match=r"max_pixels = 100000000|inflates beyond"):
        read(data)
    assert time.perf_counter() - begin < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_the_limit_on_pixels_can_be_set():
    data = save(quarters(), "PNG")
    with pytest.raises(LimitExceeded, match=r"80 x 60 pixels, more than ingest\.max_pixels = 4799"):
        read(data, IngestOptions(ocr="never", max_pixels=4799))
    assert read(data, IngestOptions(ocr="never", max_pixels=4800)).pictures


@pytest.mark.parametrize("size", [(1, 1), (300, 1), (1, 300), (2, 2), (3000, 2)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_tiny_and_thin_pictures(kind, size):
    image = Image.new("RGB", size, (200, 30, 30))
    document = read(save(image, kind), IngestOptions())
    (picture,) = document.pictures
    assert min(picture.image.size) >= 1
    assert document.metadata["width"] == size[0]
    assert np.abs(np.array(picture.image.getpixel((0, 0))) - (200, 30, 30)).max() < 12


# frames and pages


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF"])
def test_first_frame_of_an_animation_and_their_number(kind):
    frames = [Image.new("RGB", (40, 40), c) for c in ((200, 30, 30), (30, 160, 30), (30, 30, 200))]
    data = save(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    document = read(data)
    assert np.abs(np.array(document.pictures[0].image.getpixel((9, 9))) - (200, 30, 30)).max() < 25
    assert [note.message for note in document.notes] == ["3 frames: the first one is indexed"]


def test_pages_of_a_tiff_are_pages():
    pages = [quarters((60 + 10 * i, 50)) for i in range(4)]
    data = save(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    document = read(data)
    assert [(p.modality, p.page, p.image.size) for p in document.pictures] == [
        ("page", i + 1, (60 + 10 * i, 50)) for i in range(4)
    ]
    assert open_picture(data, page=3).size == (80, 50)
    with pytest.raises(LoadError, match="no page 5: its last is 4"):
        open_picture(data, page=5)
    document = read(data, IngestOptions(ocr="never", max_pages=2))
    assert len(document.pictures) == 2
    assert "truncated" in {note.kind for note in document.notes}
    assert any("ocr" in note.message for note in document.notes if note.kind == "skipped")


def test_previews_in_a_tiff_are_no_pages():
    small = TiffImagePlugin.ImageFileDirectory_v2()
    small[254] = 1
    pages = [quarters((90, 60)), quarters((30, 20)), quarters((90, 61))]
    out = io.BytesIO()
    with TiffImagePlugin.AppendingTiffWriter(out) as writer:
        for number, page in enumerate(pages):
            page.save(writer, "TIFF", tiffinfo=small if number == 1 else {})
            writer.newFrame()
    sizes = [picture.image.size for picture in read(out.getvalue()).pictures]
    assert sizes == [(90, 60), (90, 61)]


def test_large_pictures_are_reduced_and_their_true_size_kept():
    document = read(save(quarters((3000, 2000)), "JPEG"))
    assert (document.metadata["width"], document.metadata["height"]) == (3000, 2000)
    assert document.pictures[0].image.size == (1024, 683)
    assert open_picture(save(quarters((3000, 2000)), "JPEG")).size == (3000, 2000)


# metadata


def test_date_camera_and_position():
    exif = Image.Exif()
    exif[271], exif[272], exif[306] = "Maker\0", "Model 3", "2021:02:03 04:05:06"
    exif.get_ifd(0x8769)[36867] = "2019:07:08 09:10:11"
    exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 51.0, 36.0), 3: "E", 4: (151.0, 12.0, 0.0)})
    for kind in ("JPEG", "PNG", "WEBP", "AVIF", "HEIF"):
        data = save(quarters(), kind, exif=exif.tobytes())
        metadata = read(data).metadata
        assert metadata["date"] == "2019-07-08T09:10:11"
        assert (metadata["camera_make"], metadata["camera_model"]) == ("Maker", "Model 3")
        assert "latitude" not in metadata
        metadata = read(data, IngestOptions(ocr="never", gps=True)).metadata
        assert (metadata["latitude"], metadata["longitude"]) == (-33.86, 151.2)


@pytest.mark.parametrize("date", ["0000:00:00 00:00:00", "    ", "2020:13:01 00:00:00", "soon"])
def test_senseless_dates_are_left_out(date):
    exif = Image.Exif()
    exif[306] = date
    assert "date" not in read(save(quarters(), "JPEG", exif=exif)).metadata


def test_damaged_exif_loses_no_picture():
    data = save(quarters(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xee" * 50)
    assert read(data).pictures


# text


@pytest.mark.models
def test_text_in_a_picture_is_the_canonical_text():
    image = Image.new("RGB", (900, 300), "white")
    pen = ImageDraw.Draw(image)
    pen.text((40, 60), "Wanted: brown terrier", fill="black", font=ImageFont.load_default(40))
    pen.text((40, 160), "Reward 250 euros", fill="black", font=ImageFont.load_default(40))
    document = read(save(image, "PNG"), IngestOptions())
    assert document.text == "Wanted: brown terrier\nReward 250 euros"
    assert document.pictures[0].span == (0, len(document.text))
    assert "ocr" in {note.kind for note in document.notes}
    dark = np.asarray(image.convert("L")) < 128
    for (start, end), box in zip(document.words.spans, document.words.boxes, strict=True):
        x0, y0, x1, y1 = (box * [900, 300, 900, 300]).astype(int)
        assert dark[y0:y1, x0:x1].any(), document.text[start:end]


def test_photo_without_text_has_none(monkeypatch):
    if ocr.available():
        pytest.skip("OCR is not installed")
    monkeypatch.setattr(ocr, "read_words", lambda image: pytest.fail("read without need"))
    photo = Image.radial_gradient("L").resize((500, 375)).convert("RGB")
    document = read(save(photo, "JPEG"), IngestOptions())
    assert (document.text, document.words) == ("", None)


# real files


def find_data():
    for place in (
        os.environ.get("FOVEATE_EVAL_DATA"),
        Path(__file__).parents[2] / "../shared/data",
    ):
        if place and Path(place).is_dir():
            return Path(place)
    return None


def real_pictures():
    root = find_data()
    manifest = root / "messy_docs/manifest.jsonl" if root else None
    if manifest is None or not manifest.exists():
        return [pytest.param(None, marks=pytest.mark.skip("messy_docs is not here"))]
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    return [pytest.param(row, id=row["file"]) for row in rows if row["kind"] == "image"]


@pytest.mark.parametrize("row", real_pictures())
def test_real_picture_gives_what_its_manifest_says(row):
    data = (find_data() / "messy_docs/files" / row["file"]).read_bytes()
    if row.get("expect"):
        with pytest.raises(LimitExceeded):
            read(data)
        return
    if row.get("pillow_load_error"):
        with pytest.raises(LoadError, match="truncated"):
            read(data)
        return
    document = read(data)
    if "size" in row:
        size = [document.metadata["width"], document.metadata["height"]]
        assert sorted(size) == sorted(row["size"])
    if row.get("frames", 1) > 1:
        assert any(str(row["frames"]) in note.message for note in document.notes)
    assert np.ptp(np.asarray(document.pictures[0].image)) > 100
