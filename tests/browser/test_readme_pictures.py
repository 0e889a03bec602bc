"""README's pictures, taken anew: build/screenshots/readme-….png. Good ones, from a quiet machine, go to docs/images."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^```ipython\n(.*?)\n```$", README, re.M | re.S)
LOAD, INPUTS, FIRST = CELLS[:3]
AREA = next(cell for cell in CELLS if cell.startswith("def area"))
FAILS = "jax.pmap(distance)(angles[:10])"
COMPARES = "%parmap area angles --key 42 --compare vmap,map,jit,shard_map,pmap,thread"


@pytest.fixture
def sharpness():
    return 2


def test_pictures(notebook, page, screenshots):
    fails = nbformat.v4.new_code_cell(FAILS, metadata={"tags": ["raises-exception"]})
    short = "%xmode Minimal"  # the card, not JAX's frames
    notebook.open("readme.ipynb", [f"{LOAD} -q\n{short}\n{INPUTS}\n{AREA} -q", FIRST, fails, COMPARES])
    page.set_viewport_size({"width": 940, "height": 1600})
    notebook.run_all()
    expect(notebook.cell(1).locator(".jp-OutputArea")).to_contain_text("parmap distance: ")
    expect(notebook.cell(2).get_by_role("heading", name="JPX0104 pmap-needs-devices")).to_be_visible()
    expect(notebook.cell(3).get_by_role("rowheader", name="ideal")).to_be_visible()
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0 }")
    for name, first, last in (("readme-at-work", 1, 2), ("readme-compare", 3, 3)):
        notebook.cell(last).scroll_into_view_if_needed()
        notebook.cell(first).scroll_into_view_if_needed()
        top, bottom = notebook.cell(first).bounding_box(), notebook.cell(last).bounding_box()
        height = bottom["y"] + bottom["height"] - top["y"]
        clip = {"x": top["x"] + 8, "y": top["y"], "width": top["width"] - 8, "height": height}
        assert top["y"] >= 0 and top["y"] + height <= 1600, "all of it is in the window"
        page.screenshot(path=screenshots / f"{name}.png", clip=clip)
