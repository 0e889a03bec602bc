"""The table of front ends and features in tests/README.md names tests that exist, and leaves no cell open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]


def test_it_is_the_whole_table():
    assert ROWS[0][1:] == ["JupyterLab", "nbconvert's HTML", "terminal IPython", "`jupyter console`", "IPython 7.34"]
    assert len(ROWS) > 10 and {len(row) for row in ROWS} == {6}


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0])
def test_each_cell_names_a_test(row):
    for front_end, cell in zip(ROWS[0][1:], row[1:]):
        if cell == "–":
            continue
        match = re.fullmatch(r"\[(test_\w+)\]\((\S+\.py)\)", cell)
        assert match, f"{front_end}: {cell}"
        source = (HERE / match[2]).read_text(encoding="utf-8")
        assert f"\ndef {match[1]}(" in source, f"{front_end}: {match[2]} has no {match[1]}"
