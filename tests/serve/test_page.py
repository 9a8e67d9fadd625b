"""The page in a real Chromium; no request may leave the machine and nothing be complained of."""

from __future__ import annotations

import contextlib
import os
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
    assert page.evaluate("document.querySelector('.tile img').complete")
    page.click(".tile >> nth=0")
    page.wait_for_selector("#viewer[open] .sheet img")
    assert page.evaluate("document.querySelector('.sheet img').naturalWidth") == 320
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
    assert "Is the answer in there?" in page.inner_text("#trace")
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
