import base64
import io
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foveate.pipeline import inline, terminal
from foveate.pipeline.types import FileRecord, Hit, Locator, Note, Passage, Source


@given(st.text(st.characters(exclude_categories=())))
def test_printable_never_lets_a_control_character_through(text):
    shown = terminal.printable(text)
    for c in shown:
        assert unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp")
        assert c not in terminal.INVISIBLE
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb.txt", "a\\nb.txt"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        (b"caf\xe9.txt".decode("utf-8", "surrogateescape"), "caf\\xe9.txt"),
        ("gpj.\u202etxt", "gpj.\\u202etxt"),
        ("\U0001f34b lemon", "\U0001f34b lemon"),
        ("-rf", "-rf"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_printable_keeps_names_readable(name, shown):
    assert terminal.printable(name) == shown


@pytest.mark.parametrize(
    ("text", "query", "lit"),
    [
        ("Lemons keep for weeks", "how long do lemons keep?", ["Lemons", "keep"]),
        ("the limits of it", "limit", ["limits"]),
        ("Der Café öffnet", "cafe", ["Café"]),
        ("東京都の天気", "東京", ["東京"]),
        ("Погода в городе", "погода", ["Погода"]),
        ("it is to be", "to be", ["to", "be"]),
        ("nothing here", "zebra", []),
        ("3.5-inch disk", "3.5", ["3.5"]),
    ],
)
def test_matches_light_the_words_of_the_query(text, query, lit):
    assert [text[a:b] for a, b in terminal.matches(text, query)] == lit


def test_excerpt_is_the_sentence_with_the_words():
    text = "Water is wet. Lemons keep for four weeks in the cold. Salt is dry."
    start, end = terminal.excerpt(text, "how long do lemons keep")
    assert text[start:end].strip() == "Lemons keep for four weeks in the cold."


def test_excerpt_without_a_match_is_the_beginning():
    text = "## Route\n\nFrom the pier to the island. Then home."
    start, end = terminal.excerpt(text, "kayak")
    assert (start, text[start:end]) == (0, text)


@given(st.text(max_size=600), st.text(max_size=20))
def test_excerpt_is_a_short_span_of_any_text(text, query):
    start, end = terminal.excerpt(text, query, 80)
    assert 0 <= start <= end <= len(text)
    assert end - start <= 80


def test_excerpt_of_a_long_line_is_around_the_match():
    text = "x" * 3000 + " needle " + "y" * 3000
    start, end = terminal.excerpt(text, "needle", 100)
    assert "needle" in text[start:end]


@given(st.text(max_size=200), st.data())
def test_surroundings_join_to_the_source(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    before, quote, after = terminal.surroundings(text, (start, end), 20)
    assert quote == text[start:end]
    assert before + quote + after in text
    assert text[:start].endswith(before)
    assert text[end:].startswith(after)


def passage(text="", modality="text", **fields):
    source = Source("0" * 32, ("/a/b.pdf",), "application/pdf", "pdf", 1200, 0.0, **fields)
    return Passage(5, 2, source, modality, text, Locator(page=3))


def test_hits_print_one_item_a_line_in_a_pipe(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    console = terminal.open_console()
    long = "A sentence about lemons that goes on and on, far beyond forty columns of any terminal."
    hits = [Hit(passage(long, title="[bold]Title[/bold] :lemon:"), 0.5, {"words": 1.0})]
    assert list(terminal.print_hits(console, hits, "lemons")) == []
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" 1. [bold]Title[/bold] :lemon:  /a/b.pdf, page 3  0.500")
    assert lines[0].endswith("000000000000:2")
    assert lines[1].strip() == long


def test_pictures_come_back_to_be_shown(capsys):
    picture = passage(modality="image", metadata={"width": 40, "height": 30})
    shown = list(terminal.print_hits(terminal.open_console(), [Hit(picture, 1.0)], "x"))
    assert [hit.passage for hit in shown] == [picture]
    assert "40 x 30" in capsys.readouterr().out


def test_note_line_names_file_reason_and_page():
    record = FileRecord("/x/a\nb.pdf", 1, 1, None, "failed", (Note("failed", "no\x1b key", 4),))
    line = terminal.note_line(record.path, record.notes, record.state)
    assert line == "failed: /x/a\\nb.pdf: no\\x1b key (page 4)"


@pytest.mark.parametrize(
    ("env", "protocol"),
    [
        ({}, None),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"KITTY_WINDOW_ID": "1", "TERM": "xterm-256color"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-sixel"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, None),
        ({"TERM": "xterm-kitty", "FOVEATE_IMAGES": "none"}, None),
        ({"FOVEATE_IMAGES": "sixel"}, "sixel"),
    ],
)
def test_terminals_are_known_by_their_environment(env, protocol):
    assert inline.protocol(env) == protocol


def noisy(width, height):
    image = Image.effect_noise((width, height), 90).convert("RGB")
    image.putpixel((0, 0), (255, 0, 0))
    return image


def test_kitty_chunks_join_to_the_picture():
    drawn = inline.draw(noisy(300, 200), "kitty")
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", drawn)
    assert len(parts) > 1
    assert [int(re.search(r"m=(\d)", keys)[1]) for keys, _ in parts] == [1] * (len(parts) - 1) + [0]
    assert all(len(data) <= inline.CHUNK for _, data in parts)
    data = base64.b64decode("".join(data for _, data in parts))
    assert Image.open(io.BytesIO(data)).size == (300, 200)


def test_iterm2_states_the_size():
    drawn = inline.draw(noisy(640, 64), "iterm2")
    size, data = re.fullmatch(r"\x1b\]1337;File=inline=1;size=(\d+):(.*)\x07\n", drawn).groups()
    assert len(base64.b64decode(data)) == int(size)
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (320, 32)


def unsixel(text):
    """Read sixels back, by the VT340 manual: an oracle of its own, ten lines."""
    body = re.fullmatch(r'\x1bPq"1;1;(\d+);(\d+)(.*)\x1b\\\n', text, re.S)
    width, height = int(body[1]), int(body[2])
    palette, pixels, x, y, colour = {}, {}, 0, 0, 0
    for token in re.findall(r"#\d+(?:;2;\d+;\d+;\d+)?|!\d+[?-~]|[?-~$-]", body[3]):
        if token[0] == "#" and ";" in token:
            n, _, r, g, b = map(int, token[1:].split(";"))
            palette[n] = (r, g, b)
        elif token[0] == "#":
            colour = int(token[1:])
        elif token in "$-":
            x, y = 0, y + 6 * (token == "-")
        else:
            n = int(token[1:-1]) if token[0] == "!" else 1
            for bit in range(6):
                if ord(token[-1]) - 63 >> bit & 1:
                    pixels |= {(x + i, y + bit): palette[colour] for i in range(n)}
            x += n
    return width, height, pixels


def test_sixels_draw_every_pixel_in_its_colour():
    image = Image.new("RGB", (23, 17), (0, 0, 255))
    image.paste((255, 0, 0), (5, 3, 20, 9))
    width, height, pixels = unsixel(inline.sixel(image))
    assert (width, height) == image.size
    assert set(pixels) == {(x, y) for x in range(23) for y in range(17)}
    assert pixels[5, 3] == (100, 0, 0)
    assert pixels[4, 3] == (0, 0, 100)
