"""A real headless Chromium on the page of a real server. No test waits for time to pass: each waits for what the page
must show, with a limit. Screenshots lie in build/browser afterwards."""
import re

import pytest
from conftest import SHOTS, SMOLLM2, until
from playwright.sync_api import expect

LIMIT_MS = 60_000
expect.set_options(timeout=LIMIT_MS)
DONE = re.compile("stop|length")
HOSTILE = """<img src=x onerror="window.broken=1"> <script>window.broken=1</script>
[a link](javascript:window.broken=1) ![a picture](https://outside.example/p.png) [fine](https://example.com/)
**bold <b>not bold</b>**
```html
<script>window.broken=1</script>
```
| a | b |
| - | - |
| <i>x</i> | y |
"""


class Visit:
    """A page with what it complained of and what it asked for."""

    def __init__(self, browser, url, **options):
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(LIMIT_MS)
        self.complaints, self.asked = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def shot(self, name):
        self.page.screenshot(path=SHOTS / f"{name}.png")

    def ask(self, text):
        expect(self.page.locator("#send")).to_be_enabled()
        self.page.fill("#draft", text)
        self.page.press("#draft", "Enter")


@pytest.fixture
def visit(chromium):
    visits = []

    def make(url, **options):
        visits.append(Visit(chromium, url, **options))
        return visits[-1]

    yield make
    for v in visits:
        v.page.close()


def last_answer(page):
    return page.locator(".assistant").last


def test_loads_quietly_and_asks_nobody_else(smollm2, visit):
    v = visit(smollm2.url)
    expect(v.page).to_have_title(re.compile("SmolLM2"))
    v.page.click("#to-live")
    expect(v.page.locator("#verdict")).to_contain_text("Nothing to do")
    assert v.complaints == []
    assert [url for url in v.asked if not url.startswith(smollm2.url + "/")] == []
    assert v.page.context.cookies() == []


def test_an_answer_streams_and_says_how_fast(smollm2, visit):
    v = visit(smollm2.url)
    v.page.fill("#max_tokens", "24")
    v.page.fill("#seed", "7")
    v.page.fill("#system", "Answer briefly.")
    v.ask("Name three rivers.")
    expect(last_answer(v.page)).to_have_attribute("data-state", DONE)
    expect(last_answer(v.page).locator(".figures")).to_contain_text(re.compile(r"first token .*tok/s · \d+ tokens · prompt \d+"))
    tokens = int(re.search(r"(\d+) tokens", last_answer(v.page).locator(".figures").inner_text())[1])
    assert 1 < tokens <= 24
    assert 0 < last_answer(v.page).locator(".cells i").count() < tokens  # the first token's time is the prompt's
    expect(v.page.locator("#count")).to_contain_text(re.compile(r"^[1-9]\d* / "))
    first_text = last_answer(v.page).locator(".prose").inner_text()

    v.page.get_by_role("button", name="Regenerate").click()
    expect(v.page.locator(".assistant")).to_have_count(1)
    expect(last_answer(v.page)).to_have_attribute("data-state", DONE)
    assert last_answer(v.page).locator(".prose").inner_text() == first_text  # the seed and the conversation are the same
    assert v.complaints == []


def test_stop_ends_the_answer_and_the_work(smollm2, visit):
    v = visit(smollm2.url)
    v.page.fill("#max_tokens", "4000")
    v.page.fill("#temperature", "1.5")
    v.ask("Write a very long story about the sea. Do not stop.")
    expect(last_answer(v.page).locator(".cells i").nth(3)).to_be_attached()
    v.page.get_by_role("button", name="Stop").click()
    expect(last_answer(v.page)).to_have_attribute("data-state", "stopped")
    assert last_answer(v.page).locator(".prose").inner_text().strip()
    expect(v.page.locator("#send")).to_be_visible()
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)


def test_text_of_a_model_is_never_markup(smollm2, visit):
    v = visit(smollm2.url)
    expect(v.page).to_have_title(re.compile("SmolLM2"))
    shown = v.page.evaluate("""async (source) => {
        const {renderMarkdown} = await import("./page/markdown.js");
        const box = document.createElement("div");
        document.body.append(box);
        renderMarkdown(box, source);
        return {tags: [...box.querySelectorAll("*")].map((e) => e.localName), text: box.textContent,
                links: [...box.querySelectorAll("a")].map((a) => [a.href, a.rel]), cells: box.querySelectorAll("td").length};
    }""", HOSTILE)
    assert not {"img", "script", "b", "i"} & set(shown["tags"])
    assert shown["links"] == [["https://outside.example/p.png", "noopener noreferrer"], ["https://example.com/", "noopener noreferrer"]]
    assert '<img src=x onerror="window.broken=1">' in shown["text"] and shown["cells"] == 2
    assert {"strong", "pre", "table"} <= set(shown["tags"])
    assert v.page.evaluate("window.broken") is None


def test_live_numbers_move_under_load(smollm2, visit):
    v = visit(smollm2.url + "/#live")
    tile = lambda name: v.page.locator(".tile", has_text=name).locator("dd").first
    expect(v.page.locator("#live")).to_have_attribute("data-samples", re.compile(r"^\d+$"))
    expect(tile("Running")).to_have_text("0")
    streams = [smollm2.stream("/v1/completions", {"prompt": f"Story {i}: once upon a time", "max_tokens": 4000, "ignore_eos": True, "seed": i})
               for i in range(4)]
    try:
        expect(tile("Running")).to_have_text("4")
        expect(tile("Tokens out")).not_to_have_text("0/s")
        expect(tile("KV cache")).not_to_have_text("0.0 %")
        expect(tile("Between tokens")).to_contain_text("ms")
        expect(v.page.locator("#verdict")).not_to_contain_text("Nothing to do")
        expect(v.page.locator("#step .stack i").first).to_be_attached()
        expect(v.page.locator(".chart canvas")).to_have_count(4)
        smollm2.post("/v1/completions", {"prompt": "One, two,", "max_tokens": 2})
        expect(v.page.locator(".slow li .stack i").first).to_be_attached()
        expect(v.page.locator("#burst .stack")).to_have_count(2)
        expect(v.page.locator("#burst .stack").first).to_have_attribute("aria-label", re.compile(r"decode \d"))
        expect(v.page.locator("#burst tbody tr")).to_have_count(7)
        v.shot("live-under-load")
    finally:
        for stream in streams:
            stream.close()
    expect(tile("Running")).to_have_text("0")
    expect(v.page.locator("#verdict")).to_contain_text("Nothing to do")
    assert v.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_fits_every_screen(smollm2, visit, width, scheme):
    v = visit(smollm2.url, viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce")
    page = v.page
    expect(page).to_have_title(re.compile("SmolLM2"))
    if width == 390:
        page.get_by_role("button", name="Settings").click()
        expect(page.locator("#system")).to_be_focused()
        page.fill("#max_tokens", "16")
        page.keyboard.press("Escape")
        expect(page.locator("#settings")).to_be_hidden()
    else:
        page.fill("#max_tokens", "16")
    v.ask("Name a colour.")
    expect(last_answer(page)).to_have_attribute("data-state", DONE)
    v.shot(f"chat-{scheme}-{width}")
    page.click("#to-live")
    expect(page.locator("#live")).to_have_attribute("data-samples", re.compile(r"^\d+$"))
    v.shot(f"live-{scheme}-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('#live').scrollWidth - document.querySelector('#live').clientWidth") <= 0
    assert v.complaints == []


def test_is_usable_by_keyboard(smollm2, visit):
    v = visit(smollm2.url)
    expect(v.page.locator("#draft")).to_be_focused()
    v.page.fill("#max_tokens", "8")
    v.page.focus("#draft")
    v.page.keyboard.type("Say hello.")
    v.page.keyboard.press("Enter")
    expect(last_answer(v.page)).to_have_attribute("data-state", DONE)
    v.page.locator(".heat").focus()
    v.page.keyboard.press("ArrowRight")
    expect(v.page.locator(".readout")).to_contain_text("ms")
    unnamed = v.page.evaluate("""[...document.querySelectorAll("button, input, textarea, a, section")].filter((e) =>
        !(e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || (e.labels && e.labels.length))).map((e) => e.outerHTML)""")
    assert unnamed == []


def test_a_model_without_a_template_continues_text(gemma, visit):
    v = visit(gemma.url)
    expect(v.page.locator("#empty")).to_contain_text("no chat template")
    v.page.fill("#max_tokens", "8")
    v.ask("The capital of France is")
    expect(last_answer(v.page)).to_have_attribute("data-state", DONE)
    assert v.complaints == []


def test_asks_for_a_key_and_tells_what_failed(start, visit):
    server = start(SMOLLM2, "--api-key", "right-key", "--ctx", "256")
    v = visit(server.url)
    page = v.page
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", "wrong-key")
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#key-why")).to_contain_text("refused")
    page.fill("#key", "right-key")
    page.keyboard.press("Enter")
    expect(page).to_have_title(re.compile("SmolLM2"))
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 1, ""]
    v.ask("word " * 400)
    expect(page.locator(".error")).to_contain_text("Start a new chat")
    expect(last_answer(page)).to_have_attribute("data-state", "error")
    server.process.kill()
    v.ask("Still there?")
    expect(page.locator(".error").last).to_contain_text("does not answer")
