"""The committed reports of `sluice tune` in a real browser, wide and narrow. Screenshots lie in build/browser afterwards."""
import pytest
from conftest import ROOT, SHOTS

REPORTS = sorted((ROOT / "docs" / "tuning").glob("*/index.html"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_fits_its_window_and_asks_for_nothing(chromium, report, width):
    page = chromium.new_page(viewport={"width": width, "height": 900})
    complaints, asked = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    page.screenshot(path=SHOTS / f"tune_{report.parent.name}_{width}.png", full_page=True)
    assert complaints == [] and asked == [report.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # No word of a figure lies outside of the window.
    assert page.evaluate("Array.from(document.querySelectorAll('svg text')).filter(t => t.getBoundingClientRect().right > innerWidth + 1"
                         " || t.getBoundingClientRect().left < -1).map(t => t.textContent)") == []
    page.close()
