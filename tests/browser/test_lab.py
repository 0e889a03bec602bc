"""What a person sees in JupyterLab: outputs, cards, progress, the stop button, restarts, new cells, both themes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from jaxpar_magic.explanations.pages import codes
from jaxpar_magic.mapping import strategies

pytestmark = [pytest.mark.slow, pytest.mark.browser]

DEMO = nbformat.read(Path(__file__).resolve().parents[2] / "demo.ipynb", as_version=4)
# The demo's cells that show something of ours, and those that they need.
DEMO_CELLS = ["c01", "c04", "c07", "c10", "c27", "c29", "c33", "c42", "c45", "c50", "c51", "c58", "c60"]
OURS = ".jp-RenderedHTML section"


def may_fail(source: str) -> nbformat.NotebookNode:
    """A cell after whose error "Run All" goes on."""
    return nbformat.v4.new_code_cell(source, metadata={"tags": ["raises-exception"]})


def kinds(cell: dict) -> list[str]:
    return [output["output_type"] for output in cell["outputs"]]


def test_the_demo_in_both_themes(notebook, page, accessibility_problems):
    cells = [next(c for c in DEMO.cells if c["id"] == name) for name in DEMO_CELLS]
    notebook.open("demo.ipynb", cells)
    notebook.run_all()
    number = {name: i for i, name in enumerate(DEMO_CELLS)}
    model = notebook.model()
    failed = [DEMO_CELLS[i] for i, cell in enumerate(model) if "error" in kinds(cell)]
    assert failed == ["c27"], [cell["outputs"] for cell in model if "error" in kinds(cell)]
    assert kinds(model[number["c27"]]) == ["error", "display_data"], "the card stands under the traceback"

    looks = notebook.cell(number["c01"])
    expect(looks.get_by_role("heading", name="JAX is not imported yet")).to_be_visible()
    expect(looks.get_by_role("rowheader", name="versions")).to_be_visible()
    expect(looks.get_by_role("table", name="devices and cores")).to_be_visible()
    card = notebook.cell(number["c27"])
    expect(card.get_by_role("heading", name="JPX0104 pmap-needs-devices")).to_be_visible()
    expect(card.get_by_role("link", name="docs.jax.dev")).to_have_attribute("href", re.compile("^https://docs.jax.dev"))
    assert "10 items" in card.locator(OURS).inner_text()
    comparison = notebook.cell(number["c45"])
    expect(comparison.get_by_role("columnheader", name="speed-up")).to_be_visible()
    bars = comparison.get_by_role("table", name="run time, shorter is better")
    expect(bars.get_by_role("rowheader", name="ideal")).to_be_visible()
    expect(notebook.cell(number["c07"]).locator(".jp-OutputArea")).to_contain_text("parmap ")

    expect(page.locator(".jp-Dialog, .Toastify__toast")).to_have_count(0)
    for theme in ("Light", "Dark"):
        notebook.theme(theme)
        assert accessibility_problems(page, OURS) == []
        notebook.screenshot(f"devices-{theme.lower()}", number["c01"])
        notebook.screenshot(f"card-{theme.lower()}", number["c27"])
        notebook.screenshot(f"compare-{theme.lower()}", number["c45"])
    notebook.screenshot("dry-run-dark", number["c58"])

    notebook.theme("Light")
    page.set_viewport_size({"width": 400, "height": 1600})
    assert (
        page.locator(OURS).evaluate_all(
            "elements => elements.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText.slice(0, 80))"
        )
        == []
    ), "in a narrow window only tables and code scroll, each in itself"
    assert accessibility_problems(page, OURS) == []
    notebook.screenshot("card-narrow", number["c27"])
    notebook.screenshot("compare-narrow", number["c45"])


ARRAYS = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
grid = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
weights = jax.device_put(np.ones((8, 4), "float32"), NamedSharding(grid, P("a", "b")))
inputs = jax.device_put(np.ones(12, "float32"), NamedSharding(grid, P(("a", "b"))))
"""
PROGRAM = """
import numpy as np
from jaxpar_magic import last_report
_ = %parmap (lambda x: x * 2) np.arange(48.0, dtype=np.float32) -s thread -d 2 --chunk-size 4
last_report()
"""
HOSTILE = """
items = ["fine", "<script>window.harmed=1</script>", "<img src=x onerror=window.harmed=2>"]
_ = %parmap (lambda text: {"fine": 1}[text]) items -s serial --on-error skip
last_report()
"""


def test_pictures_of_arrays_and_chunks(notebook, page, accessibility_problems):
    cells = ["%load_ext jaxpar_magic\n%jaxdevices 4 -q", ARRAYS, "%jaxdevices --arrays", PROGRAM, HOSTILE]
    notebook.open("pictures.ipynb", cells)
    notebook.run_all()
    assert not [cell["outputs"] for cell in notebook.model() if "error" in kinds(cell)]
    arrays = notebook.cell(2)
    weights = arrays.get_by_role("table", name="weights float32[8, 4]")
    expect(weights.get_by_role("rowheader")).to_have_text(["0:4", "4:8"])
    expect(weights.get_by_role("columnheader")).to_have_text(["0:2", "2:4"])
    expect(weights.get_by_role("cell", name="cpu:3")).to_be_visible()
    expect(arrays.get_by_role("table", name="inputs float32[12]")).to_be_visible()
    expect(notebook.cell(3).get_by_role("rowheader", name="chunk 12")).to_be_visible()
    expect(notebook.cell(3).get_by_role("rowheader", name="chunks 11-12, thread 1")).to_be_visible()
    assert "<script>window.harmed=1</script>" in notebook.cell(4).locator(OURS).inner_text()
    assert page.evaluate("() => window.harmed") is None
    for theme in ("Light", "Dark"):
        notebook.theme(theme)
        assert accessibility_problems(page, OURS) == []
        notebook.screenshot(f"arrays-{theme.lower()}", 2)
        notebook.screenshot(f"chunks-{theme.lower()}", 3)


def test_progress_the_stop_button_and_going_on(notebook, page, accessibility_problems, tmp_path):
    gate = tmp_path / "gate"
    setup = f"""
%load_ext jaxpar_magic
import os, time
def wait(x):
    while x >= 3 and not os.path.exists({os.fspath(gate)!r}):
        time.sleep(0.02)
    return x
"""
    run = "%parmap wait range(6) -s serial"
    notebook.open("progress.ipynb", [setup, may_fail(run), f"{run} --resume"])
    notebook.command("notebook:run-cell-and-select-next")
    notebook.wait_until_idle()
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell-and-select-next') }")
    bar = notebook.cell(1).get_by_role("progressbar", name="parmap: 50% of 6 items")
    expect(bar).to_have_attribute("value", "3")
    expect(notebook.cell(1).get_by_role("progressbar")).to_have_count(1)  # in place, however often it is updated
    for theme in ("Dark", "Light"):
        notebook.theme(theme)
        assert accessibility_problems(page, OURS) == []
    notebook.screenshot("progress", 1)

    page.get_by_role("button", name="Interrupt the kernel").first.click()
    output = notebook.cell(1).locator(".jp-OutputArea")
    expect(output).to_contain_text("KeyboardInterrupt")
    expect(output).to_contain_text("parmap: 3 of 6 items are done and kept; --resume goes on from there")
    expect(notebook.cell(1).get_by_role("progressbar")).to_have_count(0)
    notebook.wait_until_idle()
    notebook.screenshot("stopped", 1)

    gate.touch()
    notebook.command("notebook:run-cell")
    notebook.wait_until_idle()
    output = notebook.cell(2).locator(".jp-OutputArea")
    expect(output).to_contain_text("3 from an earlier run")
    expect(output).to_contain_text("array([0, 1, 2, 3, 4, 5])")


def test_the_stop_button_ends_worker_processes(notebook, page, tmp_path):
    started = tmp_path / "started"
    setup = f"""
%load_ext jaxpar_magic
import os, time
def wait(x):
    if x:
        open({os.fspath(started)!r}, "a").close()
    while x:
        time.sleep(0.02)
"""
    notebook.open("workers.ipynb", [setup, "%parmap wait [0, 1, 1, 1] -s process -d 2 --chunk-size 1", "'next'"])
    notebook.command("notebook:run-cell-and-select-next")
    notebook.wait_until_idle()
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell-and-select-next') }")
    expect(notebook.cell(1).get_by_role("progressbar", name="of 4 items")).to_have_attribute("value", "1")
    end = time.monotonic() + 120
    while not started.exists():
        assert time.monotonic() < end
        page.wait_for_timeout(50)  # lets the page go on
    page.get_by_role("button", name="Interrupt the kernel").first.click()
    expect(notebook.cell(1).locator(".jp-OutputArea")).to_contain_text("1 of 4 items are done and kept")
    notebook.wait_until_idle()
    notebook.command("notebook:run-cell")
    notebook.wait_until_idle()
    expect(notebook.cell(2).locator(".jp-OutputArea")).to_contain_text("next")


FAILS = "import jax, jax.numpy as jnp\njax.vmap(lambda x, y: x * y)(jnp.ones(3), jnp.ones(4))"


def test_a_fix_goes_into_a_new_cell_and_all_runs_again_after_a_restart(notebook, page, accessibility_problems):
    cells = ["%load_ext jaxpar_magic\nimport os\nos.getpid()", may_fail(FAILS), "%jaxexplain 2"]
    notebook.open("fix.ipynb", cells)
    notebook.run_all()
    expect(page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(4)  # the fix is in a cell of its own
    model = notebook.model()
    assert kinds(model[1]) == ["error", "display_data"]
    assert model[3]["source"].strip() == "".join(model[2]["outputs"][0]["text"]).strip()
    expect(notebook.cell(3)).to_be_visible()
    notebook.screenshot("fix-in-new-cell")

    expect(notebook.cell(0).locator(".jp-OutputArea")).to_contain_text(re.compile(r"\d"))
    process = notebook.text(0)
    page.get_by_role("button", name="Restart the kernel and run all cells").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    expect(notebook.cell(0).locator(".jp-OutputArea")).to_contain_text(re.compile(r"\d+"))
    page.wait_for_function(
        """before => {
          const cells = window.jupyterapp.shell.currentWidget.content.model.toJSON().cells;
          const first = document.querySelector(".jp-Notebook .jp-CodeCell .jp-OutputArea").innerText;
          return /\\d/.test(first) && first !== before
            && cells.slice(0, 3).every((c, i) => c.execution_count === i + 1);
        }""",
        arg=process,
    )
    notebook.wait_until_idle()
    model = notebook.model()
    assert kinds(model[1]) == ["error", "display_data"]
    expect(notebook.cell(1).get_by_role("heading", name=re.compile("^JPX"))).to_have_count(1)
    notebook.theme("Dark")
    assert accessibility_problems(page, OURS) == []
    notebook.screenshot("fix-dark")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%parmap f xs --ch", ["--check", "--checkpoint", "--chunk-size"]),
        ("%parmap f xs -s ", ["auto", *strategies.NAMES]),
        ("%parmap f xs -s s", ["serial", "shard_map"]),
        ("%parmap f xs --compare vmap,s", ["serial", "shard_map"]),
        ("%jaxexplain JPX010", [code for code in codes() if code.startswith("JPX010")]),
    ],
)
def test_tab_offers_what_fits_and_nothing_else(notebook, page, typed, offered):
    notebook.open("completion.ipynb", ["%load_ext jaxpar_magic", ""])
    notebook.command("notebook:run-cell-and-select-next")
    notebook.wait_until_idle()
    notebook.cell(1).locator(".cm-content").click()
    page.keyboard.type(typed)
    page.keyboard.press("Tab")
    expect(page.locator(".jp-Completer .jp-Completer-item").first).to_be_visible()
    items = page.locator(".jp-Completer .jp-Completer-item .jp-Completer-match").all_inner_texts()
    assert sorted(items[: len(offered)]) == sorted(offered)
    # After ours JupyterLab adds words of the cell itself, of its own accord (see tests/README.md).
    assert set(items[len(offered) :]) <= set(re.findall(r"\w+|\S", typed) if typed.endswith(" ") else [])
    notebook.screenshot(f"completion-{re.sub('[^a-z]+', '-', typed.lower()).strip('-')}")
    page.keyboard.press("Enter")
    expect(page.locator(".jp-Completer")).to_be_hidden()
    assert notebook.model()[1]["source"] == typed[: re.search(r"[^ ,]*$", typed).start()] + items[0]


def test_a_saved_notebook_reopened_shows_the_same(notebook, page, accessibility_problems):
    """No kernel has run it here, so JupyterLab does not trust it and takes out all that might do harm."""
    cells = ["%load_ext jaxpar_magic\n%jaxdevices 2", may_fail(FAILS), "%parmap jnp.sin jnp.ones(6) --compare vmap,map"]
    notebook.open("saved.ipynb", cells)
    notebook.run_all()
    live = [notebook.cell(i).locator(OURS).inner_text() for i in range(3)]
    nodes = [nbformat.from_dict(cell) for cell in notebook.model()]
    notebook.shut_down()

    notebook.open("reopened.ipynb", nodes)
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.cells.get(0).trusted") is False
    for i, text in enumerate(live):
        expect(notebook.cell(i).locator(OURS)).to_be_visible()
        assert notebook.cell(i).locator(OURS).inner_text() == text
    expect(notebook.cell(2).get_by_role("rowheader", name="vmap").last).to_be_visible()
    bars = notebook.cell(2).locator("td > div")
    assert all(box["width"] > 1 for box in (bar.bounding_box() for bar in bars.all())), "the bars are drawn"
    assert accessibility_problems(page, OURS) == []
    notebook.screenshot("reopened-untrusted")
