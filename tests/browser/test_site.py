"""The site that `make docs` has made, in a browser: accessible in both themes, no wider than a narrow window."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SITE = Path(__file__).resolve().parents[2] / "build" / "docs"
PAGES = ["index", "parmap", "strategies", "jaxdevices", "jaxexplain", "cluster", "moving", "inside", "contributing"]


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="`make docs` comes first")
@pytest.mark.parametrize("name", [*PAGES, "errors/JPX0104", "errors/index"])
def test_a_page(page, accessibility_problems, screenshots, name):
    page.set_viewport_size({"width": 1000, "height": 1200})
    page.goto((SITE / f"{name}.html").as_uri())
    # rows of the index are all alike, and axe takes long over hundreds
    page.evaluate("() => document.querySelectorAll('.index tbody tr:nth-child(n+20)').forEach(row => row.remove())")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert accessibility_problems(page, "html") == []
        page.screenshot(path=screenshots / f"site-{name.replace('/', '-')}-{theme}.png")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    assert accessibility_problems(page, "html") == []


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="`make docs` comes first")
def test_the_search_of_the_error_index(page):
    page.goto((SITE / "errors" / "index.html").as_uri())
    box = page.get_by_role("searchbox")
    box.fill("pmap logical devices")
    shown = page.locator("tbody tr:visible")
    assert "JPX0104" in shown.all_inner_texts()[0]
    assert page.get_by_role("status").inner_text().startswith(f"{shown.count()} of ")
    box.fill("no such word at all")
    assert shown.count() == 0
