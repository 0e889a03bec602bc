"""demo.ipynb: kept without outputs, runs from top to bottom, and shows what its sentences say."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from conftest import cell_errors, cell_text, run_notebook

PATH = Path(__file__).resolve().parent.parent / "demo.ipynb"
DEMO = nbformat.read(PATH, as_version=4)
CODE = [cell for cell in DEMO.cells if cell.cell_type == "code"]
FAILING = [cell.source for cell in CODE if "raises-exception" in cell.metadata.get("tags", [])]


def test_it_is_kept_without_outputs():
    nbformat.validate(DEMO)
    assert not any(cell.outputs or cell.execution_count for cell in CODE)


def test_each_question_is_a_heading_and_is_answered_by_running_something():
    kinds = [
        re.match(r"## (\d)\.", cell.source)[1] if re.match(r"## \d\.", cell.source) else cell.cell_type
        for cell in DEMO.cells
    ]
    questions = [kind for kind in kinds if kind.isdigit()]
    assert questions == ["1", "2", "3", "4", "5", "6"]
    for question in questions:
        assert "code" in kinds[kinds.index(question) :][:3]


@pytest.fixture(scope="module")
def executed():
    # all errors are let pass here, so that the tests below can say which cell has one
    return run_notebook([cell.source for cell in CODE], timeout=300).cells


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(executed):
    assert [cell.source for cell in executed if cell_errors(cell)] == FAILING
    assert not [cell.source for cell in executed if "UsageError" in cell_text(cell)]


@pytest.mark.slow
def test_results_agree_wherever_it_says_so(executed):
    lines = [line for cell in executed for line in cell_text(cell).splitlines() if line.startswith("same ")]
    assert len(lines) >= 6 and all(line.endswith(": True") for line in lines)


@pytest.mark.slow
def test_the_error_and_both_pasted_wordings_get_the_same_card(executed):
    failing = next(cell for cell in executed if cell.source in FAILING)
    old, new = (cell for cell in executed if cell.source.startswith("%%jaxexplain"))
    assert [output.output_type for output in failing.outputs] == ["error", "display_data"]
    for cell in (failing, old, new):
        assert "JPX0104 pmap-needs-devices" in cell_text(cell)
        assert "10 items" in cell_text(cell)


@pytest.mark.slow
def test_what_it_shows_is_there(executed):
    def shown(start: str) -> str:
        return cell_text(next(cell for cell in executed if start in cell.source))

    assert "JAX is not imported yet" in shown("%load_ext")
    assert re.findall(r"(\w+): (\d) items", shown("show_parts(")) == [
        ("vmap", "6"),
        ("pmap", "3"),
        ("pmap", "3"),
    ]
    assert len(set(re.findall(r"in process (\d+)", shown("def double(item)")))) == 2
    assert "f32[3]" in shown("--show jaxpr") and "f32[8,3]" in shown("--show jaxpr")
    assert re.findall(r"(\S+): programs started from Python: (\d)", shown("timeit")) == [
        ("vmap", "3"),
        ("jit(vmap)", "1"),
    ]
    assert "jax.shard_map" in shown("--show code")
    pictures = [o for cell in executed for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 1
