"""What a person sees in Jupyter Notebook 7, the other front end of today."""

from __future__ import annotations

import re

import nbformat
import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]

FAILS = "import jax, jax.numpy as jnp\njax.pmap(lambda x: 2 * x)(jnp.ones(10))"
OURS = ".jp-RenderedHTML section"


def test_outputs_cards_tab_and_a_fix_in_the_next_cell(notebook, page, accessibility_problems):
    cells = [
        "%load_ext jaxpar_magic\n%jaxdevices 2",
        nbformat.v4.new_code_cell(FAILS, metadata={"tags": ["raises-exception"]}),
        "%parmap jnp.sin jnp.ones(6) --compare vmap,map",
        "%jaxexplain 2",
        "%parmap f xs --ch",
    ]
    notebook.open("seven.ipynb", cells, "notebooks")
    assert page.evaluate("() => window.jupyterapp.name") == "Jupyter Notebook"
    for i in range(4):
        page.evaluate(f"() => {{ window.jupyterapp.shell.currentWidget.content.activeCellIndex = {i} }}")
        notebook.command("notebook:run-cell")
        notebook.wait_until_idle()
    expect(notebook.cell(0).get_by_role("table", name="devices and cores")).to_be_visible()
    expect(notebook.cell(1).get_by_role("heading", name=re.compile("^JPX0104 pmap-needs-devices"))).to_be_visible()
    model = notebook.model()
    assert [output["output_type"] for output in model[1]["outputs"]] == ["error", "display_data"]
    expect(notebook.cell(2).get_by_role("rowheader", name="vmap").last).to_be_visible()
    assert len(model) == 6 and model[4]["source"].strip() == "".join(model[3]["outputs"][0]["text"]).strip()

    notebook.cell(5).locator(".cm-content").click()
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
