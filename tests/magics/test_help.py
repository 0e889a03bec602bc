"""Help is one text: `%parmap?`, `%%parmap?`, `%parmap -h`. Its examples run; contradictions and slips are told."""

from __future__ import annotations

import re

import pytest
from conftest import cell_errors, cell_text, run_notebook

from jaxpar_magic.magics import jaxcluster, jaxdevices, jaxexplain, parmap

SETUP = """
%load_ext jaxpar_magic
import numpy as np, jax, jax.numpy as jnp
xs = np.arange(5, dtype=np.float32)
pairs = [(1.0, 2.0), (3.0, 4.0)]
def f(x):
    return jnp.sin(x) + 1
def g(a, b):
    return a * b
def h(x, years, key):
    return x * years + jax.random.uniform(key)
""".strip()
FAIL = "jax.pmap(f)(xs)"


def examples(text: str) -> list[str]:
    """The lines and cells of a help text that a user could type."""
    found = []
    lines = iter(text.splitlines())
    for line in lines:
        code = re.split(r"\s{2,}", line)[0]
        if re.match(r"%%\w", line):
            body = []
            for below in lines:
                if not below.strip():
                    break
                body.append(below)
            found.append("\n".join([code, *body]))
        elif re.match(r"(\w+ = )?%(parmap|jaxdevices|jaxexplain|jaxcluster)\b", line):
            found.append(code)
    return found


def parsers():
    return {
        "parmap": parmap.make_parser(),
        "jaxdevices": jaxdevices.make_parser(),
        "jaxexplain": jaxexplain.make_parser(),
        "jaxcluster": jaxcluster.make_parser(),
    }


@pytest.fixture(scope="module")
def executed():
    """One kernel for the examples, and for what is said about other lines; {source: cell}."""
    told = [
        "%jaxdevices -o kept",
        "%jaxdevices 2 -o kept -q\nprint(kept.count)",
        "again = %jaxdevices -o kept\nprint(again is kept)",
        "%jaxdevices 2;",
        "r = %parmap f xs -o q\nprint(r is q, r.shape)",
        "%parmap f xs -o q",
        "%time %parmap f xs -q -o q",
        "%parmap f xs -o q\n%parmap g pairs -o q\n%parmap (lambda x: x) xs -o q",
        "%%parmap xs -o q\ndef halve(x):\n    return x / 2",
        "%%parmap x=xs -o q\nx / 2",
        "r = %parmap f xs -o q --noresult\nprint(r)",
        "%parmap f xs --remainder padd",
        "%parmap f xs --on-error ignore",
        "%parmap f xs --check nan",
        "%parmap f xs --show cod",
        "%parmap f xs --compare vmpa",
        "%parmap f xs -d all -q --noresult",
        "%jaxdevices --x64 --no-x64",
        "%jaxexplain --on --off",
        "def drift(x):\n    return jax.lax.fori_loop(0, 200, lambda i, c: 3.9 * c * (1 - c), x / 7)\n"
        "%parmap drift xs --compare map,serial",
    ]
    cells = [FAIL, *(example for parser in parsers().values() for example in examples(parser.description))]
    notebook = run_notebook([SETUP, *cells, *told], timeout=240)
    assert not cell_errors(notebook.cells[0])
    return {cell.source: cell for cell in notebook.cells}


@pytest.mark.parametrize("name", ["parmap", "jaxdevices", "jaxexplain", "jaxcluster"])
def test_examples_run(executed, name):
    found = examples(parsers()[name].description)
    assert len(found) >= 6
    for example in found:
        cell = executed[example]
        assert not cell_errors(cell), (example, cell_text(cell))
        assert "UsageError" not in cell_text(cell), (example, cell_text(cell))


def test_a_line_that_fails_is_no_example():
    assert examples("%parmap f xs    maps\n\n%%parmap xs  a cell\ndef f(x): ...\n\ntext %parmap") == [
        "%parmap f xs",
        "%%parmap xs\ndef f(x): ...",
    ]


def test_question_mark_and_h_show_the_same(shell, capsys):
    shell.run_line_magic("load_ext", "jaxpar_magic")
    try:
        for name, parser in parsers().items():
            asked = [f"%{name}?", f"?%{name}"] + ([f"%%{name}?"] if name in ("parmap", "jaxexplain") else [])
            shown = []
            for line in [*asked, f"%{name} -h", f"%{name} --help"]:
                assert shell.run_cell(line).success
                shown.append(re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out))
            first_example = examples(parser.description)[0]
            assert all(first_example in text and "options:" in text and "--help" in text for text in shown), shown
            assert shown[-1] == shown[-2] == parser.format_help() + "\n"
    finally:
        shell.run_line_magic("unload_ext", "jaxpar_magic")


def test_help_fits_a_terminal_and_explains_the_report():
    for parser in parsers().values():
        assert max(map(len, parser.description.splitlines())) <= 115
    assert "batches of 64" in parmap.make_parser().format_help()


def test_o_puts_the_report_of_devices_into_a_variable(executed):
    assert re.fullmatch(r"jaxdevices: JAX runs on \d CPU devices?(; .*)?\n", cell_text(executed["%jaxdevices -o kept"]))
    assert cell_text(executed["%jaxdevices 2 -o kept -q\nprint(kept.count)"]).strip() == "2"
    assert cell_text(executed["again = %jaxdevices -o kept\nprint(again is kept)"]).splitlines()[1:] == ["True"]
    assert executed["%jaxdevices 2;"].outputs == []


def test_o_gives_the_line_a_value_only_where_it_is_assigned(executed):
    assert "True (5,)" in cell_text(executed["r = %parmap f xs -o q\nprint(r is q, r.shape)"])
    assert [o.output_type for o in executed["%parmap f xs -o q"].outputs] == ["stream"]
    assert "Array" not in cell_text(executed["%time %parmap f xs -q -o q"])
    assert "None" in cell_text(executed["r = %parmap f xs -o q --noresult\nprint(r)"])


def test_reports_name_the_function(executed):
    lines = cell_text(executed["%parmap f xs -o q\n%parmap g pairs -o q\n%parmap (lambda x: x) xs -o q"]).splitlines()
    starts = [re.match(r"parmap[^:]*: ", line) for line in lines]
    assert [start and start[0] for start in starts] == ["parmap f: ", "parmap g: ", "parmap: "]
    assert cell_text(executed["%%parmap xs -o q\ndef halve(x):\n    return x / 2"]).startswith("parmap halve: ")
    assert cell_text(executed["%%parmap x=xs -o q\nx / 2"]).startswith("parmap: ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%parmap f xs --remainder padd", "--remainder=padd: not one of pad, drop, error. Did you mean 'pad'?"),
        ("%parmap f xs --on-error ignore", "--on-error=ignore: not one of raise, skip."),
        ("%parmap f xs --check nan", "--check=nan: not one of finite."),
        ("%parmap f xs --show cod", "Did you mean 'code'?"),
        ("%parmap f xs --compare vmpa", "name 'vmpa' is not defined. Did you mean 'vmap'?"),
        ("%jaxdevices --x64 --no-x64", "--no-x64: not allowed with argument --x64"),
        ("%jaxexplain --on --off", "--off: not allowed with argument --on"),
    ],
)
def test_slips_and_contradictions(executed, line, words):
    text = cell_text(executed[line])
    assert words in text and text.startswith("UsageError: ") and len(text.strip().splitlines()) == 1


def test_all_devices_can_be_asked_for(executed):
    assert executed["%parmap f xs -d all -q --noresult"].outputs == []


def test_a_comparison_says_what_differs_from_what(executed):
    text = " ".join(cell_text(next(c for s, c in executed.items() if s.startswith("def drift"))).split())
    assert "reference" in text
    if "differs by" in text:  # chaos: it does
        assert "differs from that of map by so much, as a share of the largest value there" in text


def test_a_cache_that_cannot_be_made_changes_nothing(tmp_path):
    from jaxpar_magic import devices
    from jaxpar_magic.errors import OptionError

    before = devices()
    (tmp_path / "file").touch()
    impossible = [tmp_path / "file", tmp_path / "file" / "in", "/proc/none/such", tmp_path / ("n" * 300), "a\0b"]
    for folder in [*impossible, "~nobody-of-this-name/cache"]:
        with pytest.raises(OptionError, match="cache="):
            devices(x64=True, cache=folder)
    assert devices().settings == before.settings
    assert not list(tmp_path.glob("n*"))
    planned = devices(cache=tmp_path / "later", dry_run=True)
    assert planned.plan is not None and not (tmp_path / "later").exists()
