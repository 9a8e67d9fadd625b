"""The page in a real Chromium; no request may leave the machine and nothing be complained of."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from importlib import resources

import pytest

pytestmark = pytest.mark.slow  # a browser is started

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
QUESTION = "How long do lemons keep in the refrigerator?"
TOKEN = "-".join(["correct", "horse", "battery", "staple"])
ODD = "<img src=x onerror=alert(1)>.txt"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with library.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open pages; at the end look at what they asked for and what they complained of."""
    with contextlib.ExitStack() as stack:
        bad: list[str] = []
        asked: list[str] = []
        origins: list[str] = []

        def begin(url, path="/", **options):
            context = stack.enter_context(
                browser.new_context(viewport={"width": 1280, "height": 860}, **options)
            )
            page = context.new_page()
            page.set_default_timeout(30_000)
            page.on("console", lambda m: m.type in ("error", "warning") and bad.append(m.text))
            page.on("pageerror", lambda error: bad.append(str(error)))
            page.on("dialog", lambda dialog: bad.append(f"a dialog: {dialog.message}"))
            page.on("request", lambda request: asked.append(request.url))
            origins.append(url)
            page.goto(url + path)
            return page

        yield begin
        assert bad == []
        local = (*origins, "data:", "blob:")
        assert [url for url in asked if not url.startswith(local)] == []


def search(page, words):
    page.fill("#words", words)
    page.press("#words", "Enter")
    page.wait_for_selector("main[aria-busy=false] .count, main[aria-busy=false] .notice")


def until(page, expression, timeout_s=30):
    """Wait for a fact; the page's policy forbids the evaluation that Playwright waits by."""
    end = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(30)


def test_words_find_passages_and_a_hit_opens_with_its_sentence_lit(shared, visit):
    page = visit(shared.url)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "words"
    search(page, "pumps of the loop")
    assert "loop.txt" in page.inner_text(".hit >> nth=0")
    assert (
        "pumps" in page.inner_text(".hit mark >> nth=-1").lower()
        or page.locator(".hit mark").count()
    )
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#viewer[open] .focus")
    assert page.inner_text("#viewer .focus") == "Two pumps drive the loop."
    assert "The cooling loop carries" in page.inner_text("#viewer .passage")
    page.keyboard.press("Escape")
    page.wait_for_selector("#viewer", state="hidden")
    assert "pumps" in page.url  # the address still says what was searched
    page.reload()
    page.wait_for_selector(".hit")


def test_a_picture_finds_others_by_choice_and_by_paste(shared, visit, corpus):
    page = visit(shared.url)
    page.set_input_files("#picker", str(corpus / "blue.png"))
    page.wait_for_selector(".tile")
    assert "blue.png" in page.inner_text(".tile >> nth=0")
    until(page, "document.querySelector('.tile img').complete")
    page.click(".tile >> nth=0")
    page.wait_for_selector("#viewer[open] .sheet img")
    until(page, "document.querySelector('.sheet img').naturalWidth === 320")
    page.click("#viewer .close")
    page.click("#chip-drop")
    paste = """async (data) => {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      const file = new File([bytes], "p.png", { type: "image/png" });
      const transfer = new DataTransfer();
      transfer.items.add(file);
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
    }"""
    import base64

    page.evaluate(paste, base64.b64encode((corpus / "red.png").read_bytes()).decode())
    until(page, "document.querySelector('.tile')?.innerText.includes('red.png')")


def test_filters_narrow_what_is_found(shared, visit):
    page = visit(shared.url)
    search(page, "snow hail lemons red")
    assert page.locator(".tile").count() == 3
    page.check("[name=kind][value=text]", force=True)
    until(page, "!document.querySelector('.tile') && document.querySelector('.hit')")
    page.select_option("#type", "csv")
    until(page, "[...document.querySelectorAll('.hit')].every((h) => h.innerText.includes('csv'))")
    page.click("#more summary")
    page.fill("#where", "meta.year >= 2021")
    page.press("#where", "Tab")
    until(page, "document.querySelectorAll('.hit').length === 1")
    assert "Hail" in page.inner_text(".hit")


def test_a_filter_that_cannot_be_read_is_explained(shared, browser):
    # the refused request itself stands in the console: that is the browser's doing
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{shared.url}/#q=snow&where=year+%3E%3D")
    page.wait_for_selector("[role=alert]")
    assert "year" in page.inner_text("[role=alert]")
    context.close()


def test_a_question_is_answered_and_its_citation_opens(shared, visit):
    page = visit(shared.url)
    page.click("[data-view=ask]")
    page.fill("#words", QUESTION)
    page.press("#words", "Enter")
    page.wait_for_selector("#said .cite")
    assert "four weeks in the refrigerator" in page.inner_text("#said")
    page.click("#trace summary")
    assert page.locator("#trace tbody tr").count() >= 3
    stages = page.evaluate(
        "[...document.querySelectorAll('#trace .stage h3')].map((e) => e.firstChild.data)"
    )
    assert stages == ["Search", "Evidence", "Is the answer in there?", "Quote",
                      "Look for what speaks against it", "Result"]  # fmt: skip
    flows = page.locator("#trace .flow").all_inner_texts()
    assert flows[0].startswith("the question → ")
    assert flows[0].endswith(" hits")
    assert flows[3] == "1 chosen sentence → 1 citation"
    timed = page.locator("#trace .stage h3 small").all_inner_texts()
    assert len(timed) == 4
    assert all(re.fullmatch(r"[\d.]+ m?s", one) for one in timed)
    assert "Lemons keep four weeks" in page.inner_text("#trace .stage >> nth=1")
    whole = page.locator("#trace > .raw pre")
    assert not whole.is_visible()
    page.click("#trace > .raw summary")
    assert json.loads(whole.inner_text())["mode"] == "extractive"
    page.click("#said .cite >> nth=0")
    page.wait_for_selector("#viewer[open] .focus")
    assert page.inner_text("#viewer .focus") == "Lemons keep four weeks in the refrigerator."
    page.keyboard.press("Escape")
    page.select_option("#how", "quote")
    page.wait_for_selector("#said .cite")
    assert "how=quote" in page.url
    page.fill("#words", "Who won the chess olympiad of 1972?")
    page.press("#words", "Enter")
    page.wait_for_selector("#said.refused")


def test_a_pdf_page_is_shown_with_the_place_lit(start, visit, tmp_path):
    sample = resources.files("foveate.pipeline") / "sample/weather/clouds.pdf"
    (tmp_path / "clouds.pdf").write_bytes(sample.read_bytes())
    listener = start(files=False)
    listener.server.service.engine.add(tmp_path / "clouds.pdf")
    page = visit(
        listener.url, "/#q=cumulus+grows+until+its+top+freezes+and+spreads+to+an+anvil&kind=text"
    )
    page.click(".hit >> nth=0")
    page.wait_for_selector("#viewer[open] .lit-region .frame")
    until(page, "document.querySelector('.sheet img').naturalWidth > 600")
    holes = page.get_attribute("#viewer .shade", "d").count("M") - 1
    assert holes == 2  # the sentence stands on two lines
    top = float(page.get_attribute("#viewer .frame", "y"))
    assert 0.1 < top < 0.6
    assert "page 1 of 2" in page.inner_text("#viewer .where")


class Reader:
    """A generator that writes two sentences, of which the documents hold one."""

    name = "stub"
    window_tokens = 2048

    def count_tokens(self, text):
        return len(text.split())

    def generate(self, messages, **options):
        yield "Lemons keep four weeks in the refrigerator. Ten million people ate them in Rome."


def test_the_stages_of_a_written_answer_say_what_was_dropped_and_why(start, visit):
    listener = start()
    listener.server.service.engine._generator = Reader()
    page = visit(listener.url, f"/#view=ask&how=write&q={QUESTION.replace(' ', '+')}")
    page.wait_for_selector("#said .cite")
    page.click("#trace > summary")
    titles = page.evaluate(
        "[...document.querySelectorAll('#trace .stage h3')].map((e) => e.firstChild.data)"
    )
    assert titles[3:6] == ["Shown to the reader", "Write", "Check against the sources"]
    written, checked = (page.inner_text(f"#trace .stage >> nth={n}") for n in (4, 5))
    assert "by stub" in written
    assert "Ten million people ate them in Rome." in written
    assert "2 sentences → 1 citation, 1 sentence dropped" in checked
    assert "Dropped: “Ten million people ate them in Rome.”" in checked


def test_markdown_is_styled_and_stays_verbatim(start, visit, tmp_path):
    text = (
        "# Herons of the river and of the sea, told anew\nA 🦢 is **no heron** and *never* was. "
        "See `ardea` <b>here</b>.\n\n```\n# no heading\n```\n\n"
        "Snake_case_names stay, 2 * 3 * 4 too.\n"
    )
    (tmp_path / "herons.md").write_text(text, encoding="utf-8")
    (tmp_path / "plain.txt").write_text("# A bittern is **no heron** either.\n")
    listener = start(files=False)
    listener.server.service.engine.add(tmp_path / "herons.md", tmp_path / "plain.txt")
    page = visit(listener.url, "/#q=swan+is+no+heron+river")
    page.click(".hit:has-text('herons.md')")
    page.wait_for_selector("#viewer[open] .quote")
    shown = page.evaluate("document.querySelector('#viewer .passage').textContent")
    engine = listener.server.service.engine
    (source,) = (one for one in engine.index.sources() if one.type == "markdown")
    assert shown.strip() == engine.text(source.id).strip()
    styled = {}
    for name in ("head", "strong", "em", "code"):
        parts = page.evaluate(
            f"[...document.querySelectorAll('#viewer .md-{name}')].map((e) => e.textContent)"
        )
        styled[name] = "".join(parts)  # the matched words are parts of their own
    assert styled == {
        "head": "# Herons of the river and of the sea, told anew",
        "strong": "**no heron**",
        "em": "*never*",
        "code": "`ardea`" + "```# no heading```",
    }
    assert page.locator("#viewer .passage b").count() == 0
    page.click("#viewer .close")
    page.click(".hit:has-text('plain.txt')")
    page.wait_for_selector("#viewer[open] .quote")
    until(page, "document.querySelector('#viewer .quote').textContent.includes('bittern')")
    assert page.locator("#viewer [class^=md-]").count() == 0


def test_a_field_that_no_source_has_is_told(shared, visit):
    page = visit(shared.url, "/#q=snow&where=meta.yaer+%3E+2")
    page.wait_for_selector("main .notes")
    assert "no source has a field 'yaer'; did you mean 'year'?" in page.inner_text("main .notes")
    assert "Nothing found" in page.inner_text("main")


@pytest.mark.models
def test_what_the_words_look_at_in_a_picture_is_lit(start, visit, tmp_path):
    """With the offline encoders, which give regions."""
    import foveate
    from foveate.pipeline import config

    sample = resources.files("foveate.pipeline") / "sample/pictures/in-the-sky.jpg"
    (tmp_path / "in-the-sky.jpg").write_bytes(sample.read_bytes())
    settings = config.load(overrides={"ingest.ocr": "never"})
    with foveate.open(tmp_path / "ix.fov", create=True, config=settings) as engine:
        engine.add(tmp_path / "in-the-sky.jpg")
        listener = start(engine=engine, timeout_s=200)
        page = visit(listener.url, "/#q=a+hot+air+balloon")
        page.click(".tile")
        page.wait_for_selector("#viewer .heat:not([hidden])", timeout=120_000)
        # light where the balloon is, shade in the corners
        shade = page.evaluate("""(() => { const c = document.querySelector('.heat');
          const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          return [all[4 * (c.width * (c.height >> 1) + (c.width >> 1)) + 3], all[3]]; })()""")
        assert shade[0] < shade[1]
        page.click("#viewer .toggle")
        page.wait_for_selector("#viewer .heat", state="hidden")


def test_a_file_is_added_found_deleted_and_gone(start, visit, tmp_path):
    listener = start(files=False)
    page = visit(listener.url, "/#view=files")
    note = tmp_path / "heron.txt"
    note.write_text("A heron stood on the quay at dawn.")
    page.wait_for_selector("#add-picker", state="attached")
    page.set_input_files("#add-picker", str(note))
    until(page, "document.querySelector('.files')?.innerText.includes('heron.txt')")
    page.click("[data-view=search]")
    search(page, "heron quay")
    page.click(".hit >> nth=0")
    page.click("#viewer-remove")
    page.wait_for_selector("#confirm[open]")
    page.click("#confirm-yes")
    page.wait_for_selector("main .notice")
    assert "Nothing found" in page.inner_text("main")
    page.click("[data-view=files]")
    until(page, "document.querySelector('.count')?.innerText.startsWith('0 files')")
    assert listener.server.service.engine.status()["passages"] == 0


def test_markup_in_names_and_documents_stays_text(start, visit, tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    text = "zebra <script>window.broken = 1</script> <b onmouseover=alert(2)>crossing</b>"
    (folder / ODD).write_text(text)
    listener = start(files=False)
    listener.server.service.engine.add(folder)
    page = visit(listener.url, "/#q=zebra+crossing")
    page.wait_for_selector(".hit")
    assert ODD in page.inner_text(".hit")
    assert "<script>" in page.inner_text(".hit .words")
    page.click(".hit")
    page.wait_for_selector("#viewer[open] .quote")
    assert "onmouseover" in page.inner_text("#viewer .quote")
    page.goto(f"{listener.url}/#view=ask&q=Which+zebra%3F%3Cimg+src%3Dx+onerror%3Dalert(3)%3E")
    page.wait_for_selector("#said")
    assert page.evaluate("window.broken") is None
    assert (
        page.evaluate(
            "document.querySelectorAll('main img, main script, main b[onmouseover]').length"
        )
        == 0
    )


def test_a_locked_server_asks_for_its_token_once(start, browser):
    listener = start(token=TOKEN)
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{listener.url}/#q=red&kind=pictures")
    page.wait_for_selector("#lock[open]")
    page.fill("#token", "wrong-wrong-wrong-wrong")
    page.press("#token", "Enter")
    until(page, "document.getElementById('lock-wrong').innerText !== ''")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    page.wait_for_selector(".tile")
    until(page, "document.querySelector('.tile img').naturalWidth > 0")
    page.reload()
    page.wait_for_selector(".tile")
    assert TOKEN not in page.evaluate(
        "JSON.stringify([localStorage, sessionStorage, document.cookie])"
    )
    context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_edge_and_all_can_be_read(shared, visit, width, scheme):
    page = visit(shared.url, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    views = {
        "#q=lemons+red": ".hit .words",
        f"#view=ask&q={QUESTION.replace(' ', '+').rstrip('?')}": "#said",
        "#view=files": ".files",
    }
    for place, there in views.items():
        page.goto(f"{shared.url}/{place}")
        page.wait_for_selector(there)
        wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, place
        assert contrast(page, there) >= 4.5, place
    page.goto(f"{shared.url}/#q=lemons+red")
    page.click(".hit >> nth=0")
    page.wait_for_selector("#viewer[open] .row")
    page.evaluate("Promise.all(viewer.getAnimations().map((a) => a.finished)).then(() => null)")
    sides = page.evaluate("(({ left, right }) => [left, right])(viewer.getBoundingClientRect())")
    assert 0 <= sides[0] < sides[1] <= width
    landmarks = {"header.bar", "nav[aria-label]", "[role=search]", "main", "a.skip"}
    assert all(page.locator(one).count() == 1 for one in landmarks)
    unnamed = """[...document.querySelectorAll('button, input:not([type=file]), select, a')].filter(
      (e) => !(e.innerText || e.ariaLabel || e.labels?.length || e.title)).length"""
    assert page.evaluate(unnamed) == 0


def contrast(page, selector):
    """Return the contrast of an element's text against the page, as WCAG counts it."""
    colours = page.evaluate(
        """(s) => [getComputedStyle(document.querySelector(s)).color,
                   getComputedStyle(document.body).backgroundColor]""",
        selector,
    )

    def luminance(text):
        values = [int(float(v)) / 255 for v in text[text.index("(") + 1 : -1].split(",")[:3]]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(luminance(colour) for colour in colours)
    return (high + 0.05) / (low + 0.05)
