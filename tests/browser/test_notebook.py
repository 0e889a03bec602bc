"""What a person sees in Jupyter Notebook 7, the other front end of today."""

from __future__ import annotations

import re

import nbformat
import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
halves = jax.device_put(np.ones(4, "float32"), NamedSharding(Mesh(np.array(jax.devices()), ("a",)), P("a")))
%jaxdevices --arrays
"""
CHUNKS = """
from jaxpar_magic import last_report
_ = %parmap (lambda x: x * 2) np.arange(16.0, dtype=np.float32) -s thread -d 2 --chunk-size 2
last_report()
"""
FAILS = "import jax, jax.numpy as jnp\njax.pmap(lambda x: 2 * x)(jnp.ones(10))"
OURS = ".jp-RenderedHTML section"


def test_outputs_cards_tab_and_a_fix_in_the_next_cell(notebook, page, accessibility_problems):
    cells = [
        "%load_ext jaxpar_magic\n%jaxdevices 2",
        nbformat.v4.new_code_cell(FAILS, metadata={"tags": ["raises-exception"]}),
        "%parmap jnp.sin jnp.ones(6) --compare vmap,map",
        SHARDED,
        CHUNKS,
        "%jaxexplain 2",
        "%parmap f xs --ch",
    ]
    notebook.open("seven.ipynb", cells, "notebooks")
    assert page.evaluate("() => window.jupyterapp.name") == "Jupyter Notebook"
    for i in range(6):
        page.evaluate(f"() => {{ window.jupyterapp.shell.currentWidget.content.activeCellIndex = {i} }}")
        notebook.command("notebook:run-cell")
        notebook.wait_until_idle()
    expect(notebook.cell(0).get_by_role("table", name="devices and cores")).to_be_visible()
    expect(notebook.cell(1).get_by_role("heading", name=re.compile("^JPX0104 pmap-needs-devices"))).to_be_visible()
    model = notebook.model()
    assert [output["output_type"] for output in model[1]["outputs"]] == ["error", "display_data"]
    expect(notebook.cell(2).get_by_role("rowheader", name="vmap").last).to_be_visible()
    halves = notebook.cell(3).get_by_role("table", name="halves float32[4]")
    expect(halves.get_by_role("cell", name="cpu:1")).to_be_visible()
    expect(notebook.cell(4).get_by_role("rowheader", name="chunk 8, thread 1")).to_be_visible()
    assert len(model) == 8 and model[6]["source"].strip() == "".join(model[5]["outputs"][0]["text"]).strip()

    notebook.cell(7).locator(".cm-content").click()
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    expect(page.locator(".jp-Completer .jp-Completer-item").first).to_be_visible()
    offered = page.locator(".jp-Completer .jp-Completer-item .jp-Completer-match").all_inner_texts()
    assert sorted(offered) == ["--check", "--checkpoint", "--chunk-size"]
    page.keyboard.press("Escape")
    for theme in ("Dark", "Light"):
        notebook.theme(theme)
        problems = accessibility_problems(page, OURS)
        # This front end has a title of level 1; the headings between it and ours are the author's to write.
        assert [problem for problem in problems if not problem.startswith("heading-order")] == []
    notebook.cell(1).scroll_into_view_if_needed()
    notebook.screenshot("notebook-7", 1)

    page.set_viewport_size({"width": 400, "height": 1600})
    wide = "elements => elements.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText.slice(0, 80))"
    assert page.locator(OURS).evaluate_all(wide) == [], "only tables and code scroll, each in itself"
