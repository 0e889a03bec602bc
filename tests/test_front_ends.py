"""The table of front ends and features in tests/README.md names tests that exist, and leaves no cell open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
README = (HERE / "README.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in README.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]


FRONT_ENDS = ["JupyterLab", "Notebook 7", "nbconvert's HTML", "terminal IPython", "`jupyter console`", "IPython 7.34"]


def test_it_is_the_whole_table():
    assert ROWS[0][1:] == FRONT_ENDS
    assert len(ROWS) > 10 and {len(row) for row in ROWS} == {1 + len(FRONT_ENDS)}


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0])
def test_each_cell_names_a_test(row):
    for front_end, cell in zip(FRONT_ENDS, row[1:]):
        if cell == "–" or (front_end, cell) == ("Notebook 7", "as JupyterLab"):
            continue
        assert re.fullmatch(r"\[test_\w+\]\(\S+\.py\)", cell), f"{front_end}: {cell}"


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"\[(test_\w+)\]\((\S+\.py)\)", README))
    assert len(named) > 40
    missing = [pair for pair in named if f"\ndef {pair[0]}(" not in (HERE / pair[1]).read_text(encoding="utf-8")]
    assert not missing
