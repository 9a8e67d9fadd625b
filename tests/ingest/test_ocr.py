"""Text that was drawn is read, where it was drawn; photos are not read at all."""

import random
import threading

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from foveate.pipeline.ingest import ocr

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(ocr.available() is not None, reason=str(ocr.available())),
]


def draw(lines, size=(800, 400), letters=28, ink="black", paper="white"):
    image = Image.new("RGB", size, paper)
    pen = ImageDraw.Draw(image)
    for (x, y), text in lines:
        pen.text((x, y), text, fill=ink, font=ImageFont.load_default(letters))
    return image


def test_lines_have_text_corners_and_confidence():
    lines = ocr.read_image(draw([((50, 60), "Invoice 4711"), ((50, 200), "Total: 98.50 EUR")]))
    assert [line.text for line in lines] == ["Invoice 4711", "Total: 98.50 EUR"]
    for line, y in zip(lines, (60, 200), strict=True):
        assert 0.8 < line.score <= 1
        (ax, ay), (bx, by), (_, cy), (_, dy) = line.quad
        assert ax < bx
        assert max(ay, by) < min(cy, dy)
        assert abs(ax - 50) < 12
        assert y - 12 < ay < y + 20
        assert " ".join(word for word, _ in line.words) == line.text


@pytest.mark.parametrize("size", [(800, 400), (3000, 1500)])
def test_word_boxes_lie_on_their_ink(size):
    scale = size[0] / 800
    text = "Quick wizards jump"
    image = draw([((60 * scale, 100 * scale), text)], size, int(32 * scale))
    font = ImageFont.load_default(int(32 * scale))
    for word in ocr.read_words(image):
        x0 = 60 * scale + font.getlength(text[: text.index(word.text)])
        x1 = x0 + font.getlength(word.text)
        assert abs(word.x0 - x0) < 14 * scale
        assert abs(word.x1 - x1) < 14 * scale
        assert 90 * scale < word.y0 < word.y1 < 150 * scale


def test_a_long_strip_keeps_its_letters_and_no_line_twice():
    places = [300, 1795, 1895, 2900, 4800]
    image = draw([((30, y), f"Paragraph {n} here") for n, y in enumerate(places)], (420, 5000), 20)
    assert ocr.looks_textual(image)
    lines = ocr.read_image(image)
    assert sorted(line.text for line in lines) == [f"Paragraph {n} here" for n in range(5)]
    for line in lines:
        y = places[int(line.text.split()[1])]
        assert y - 10 < line.quad[0][1] < y + 20


def test_specks_are_no_text():
    image = Image.new("RGB", (300, 200), "white")
    pen = ImageDraw.Draw(image)
    for i in range(6):
        pen.rectangle((20 + 40 * i, 80, 40 + 40 * i, 100), fill="black")
    assert all(any(map(str.isalnum, line.text)) for line in ocr.read_image(image))
    assert ocr.read_image(Image.new("RGB", (4, 4))) == []


def scene(seed):
    """Return a smooth, colourful picture without letters."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (6, 8, 3), np.uint8))
    return small.resize((500, 375), Image.Resampling.BICUBIC)


def test_gate_lets_text_through_and_pictures_not():
    rng = random.Random(4)
    paper = draw(
        [
            ((40, 30 + 22 * i), "The committee met again on Tuesday to hear the case")
            for i in range(50)
        ],
        (900, 1200),
        14,
    )
    large = draw([((150, 200), "EXIT")], (2400, 1800), 90)
    assert ocr.looks_textual(paper)
    assert ocr.looks_textual(large)
    signs, plain = [], []
    for seed in range(12):
        picture = scene(seed)
        plain.append(ocr.looks_textual(picture))
        pen = ImageDraw.Draw(picture)
        place = (rng.randint(10, 250), rng.randint(10, 300))
        font = ImageFont.load_default(rng.choice([16, 20, 28]))
        pen.text(place, "No parking", fill="white", stroke_fill="black", stroke_width=2, font=font)
        signs.append(ocr.looks_textual(picture))
    assert sum(plain) <= 2
    assert sum(signs) >= 10


def test_threads_share_one_engine():
    pictures = [draw([((60, 100), f"Gate number {n}")], (500, 220)) for n in (12, 34, 56)]
    found = {}

    def work(number):
        found[number] = [line.text for line in ocr.read_image(pictures[number])]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: ["Gate number 12"], 1: ["Gate number 34"], 2: ["Gate number 56"]}


def test_nothing_is_printed(capfd):
    ocr.read_image(Image.new("RGB", (200, 100), "white"))
    ocr.read_image(draw([((60, 100), "Quiet please")]))
    assert capfd.readouterr() == ("", "")
