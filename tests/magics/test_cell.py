"""The body of a cell magic runs as the cell itself would."""

from __future__ import annotations

import ast
import re

import IPython
import pytest
from conftest import cell_errors, cell_text, run_notebook

from jaxpar_magic.magics.cell import CellBody, CellSyntaxError, parse_cell, run_body


def body(source: str) -> CellBody:
    return CellBody(source, ast.parse(source), "<cell>")


@pytest.fixture
def run(shell):
    """Run a cell; `%%body` stands for a magic of ours, `%%keep` for one that maps a last expression."""
    shell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"

    def magic(line, cell):
        __tracebackhide__ = True
        return run_body(shell, parse_cell(shell, cell))

    def keep(line, cell):
        parsed = parse_cell(shell, cell)
        run_body(shell, parsed, keep_last=True)
        return ast.unparse(parsed.last_expression())

    shell.register_magic_function(magic, "cell", "body")
    shell.register_magic_function(keep, "cell", "keep")
    return lambda cell: shell.run_cell(cell, store_history=True)


def shown(capsys) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


# --- which function does the cell define? -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(x): return x", "f"),
        ("def f(x): return x\ndef g(x): return f(x)", "g"),
        ("def f(x):\n    def inner(y): return y\n    return inner(x)", "f"),
        ("import jax\n@jax.jit\ndef f(x): return x", "f"),
        ("@partial(jax.jit, static_argnums=1)\n@other\ndef f(x, n): return x", "f"),
        ("async def f(x): return x", "f"),  # found, so that it can be refused by name and not passed over
        ("def g(x): return x\nf = lambda x: g(x) + 1", "f"),
        ("f: Callable = lambda x: x", "f"),
        ("def f(x): return x\nscale = 3", "f"),
        ("def f(x): return x\nprint('defined')", "f"),
        ("def f(x): return x\nclass Params: pass", "f"),
        ("def f(x): return x\nimport numpy as np", "f"),
        ("class Params: pass", None),
        ("scale = 3", None),
        ("x ** 2", None),
        ("a, b = (lambda x: x), 2", None),
        ("a.f = lambda x: x", None),
        ("f: Callable", None),
        ("", None),
    ],
)
def test_last_function(source, name):
    assert body(source).last_function() == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def g(x, n): return x\nf = functools.partial(g, n=2)", "f"),
        ("def g(x): return x\nf = g\nscale = 3", "f"),
        (
            "def g(x): return x\nPoint = collections.namedtuple('Point', 'x y')",
            "g",
        ),  # a class, not a function
        ("f: Callable = abs", "f"),
        ("def f(x): return x\nf2 = 3", "f"),
    ],
)
def test_last_function_among_the_names_that_the_cell_left(source, name):
    import collections
    import functools
    from collections.abc import Callable

    namespace = {"functools": functools, "collections": collections, "Callable": Callable}
    exec(source, namespace)
    assert body(source).last_function(namespace) == name


# --- await ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "awaits"),
    [
        ("await g()", True),
        ("x = [await g()]", True),
        ("async for x in y: pass", True),
        ("if True:\n    async with a: pass", True),
        ("x = [y async for y in z]", True),
        ("x = (y for y in await z)", True),
        ("async def f():\n    await g()", False),
        ("def f():\n    return lambda: (yield)", False),
        ("x = (y async for y in z)", False),  # an asynchronous generator, not yet run
        ("x = 'await g()'", False),
    ],
)
def test_has_top_level_await(source, awaits):
    assert body(source).has_top_level_await() is awaits


# --- running ----------------------------------------------------------------------------------------------


def test_statements_and_the_last_value(run, shell):
    assert run("%%body\na = 1\nb = a + 1\nb * 10").result == 20
    assert (shell.user_ns["a"], shell.user_ns["b"]) == (1, 2)
    assert run("%%body\na = 5").result is None
    assert run("%%body\n5;").result == 5
    assert run("%%body\n# nothing but a comment").result is None


def test_with_keep_last_the_expression_is_left_to_the_caller(run, shell):
    assert run("%%keep\nscale = 2\nundefined_x * scale").result == "undefined_x * scale"
    assert shell.user_ns["scale"] == 2


def test_magics_and_commands_inside(run, shell, capfd):
    result = run("%%body\n!echo there\nwhere = %pwd\n%time z = 3\nz")
    assert result.result == 3
    if run("plain = !echo hi").success:  # IPython 7 on Python 3.12 cannot, not even in a plain cell
        assert run("%%body\nout = !echo hi").success
        assert shell.user_ns["out"] == ["hi"]
    assert isinstance(shell.user_ns["where"], str)
    assert "there" in capfd.readouterr().out


def test_a_magic_around_ours_and_inside_it(run, shell):
    assert run("%%time\n%%body\na = 1\na").success
    assert run("%%body\n%%body\na = 2\na").result == 2


def test_functions_keep_their_source(run, shell):
    import inspect

    run("%%body\ndef f(x):\n    return x + 1")
    assert inspect.getsource(shell.user_ns["f"]) == "def f(x):\n    return x + 1\n"


def test_future_flags_of_the_cell_hold(run, shell):
    run("%%body\nfrom __future__ import annotations\ndef f(x: undefined_name): return x")
    assert shell.user_ns["f"].__annotations__ == {"x": "undefined_name"}


# --- errors -----------------------------------------------------------------------------------------------


def test_an_error_has_the_line_numbers_of_the_cell(run, capsys):
    result = run("%%body\n\na = 1\n# two\nb = a / 0\nc = 3")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert result.error_in_exec.__traceback__ is not None
    text = shown(capsys)
    assert "----> 5 b = a / 0" in text
    assert "cell.py" not in text  # our own frames are hidden


@pytest.mark.parametrize("before", ["", "\n\n", "%%time\n", "\n%%time\n%%time\n"])
def test_line_numbers_hold_whatever_comes_before(run, shell, capsys, before):
    before += "%%body\n\n  \n"
    run(before + "def where():\n    import sys\n    return sys._getframe().f_lineno\nline = where()")
    assert shell.user_ns["line"] == before.count("\n") + 3


def test_a_body_that_was_not_typed(run, shell):
    run("get_ipython().run_cell_magic('body', '', 'import sys\\nline = sys._getframe().f_lineno')")
    assert shell.user_ns["line"] == 3


def test_an_error_in_a_function_and_in_one_of_an_earlier_cell(run, capsys):
    run("%%body\ndef f(x):\n    return 1 / x")
    run("%%body\ndef g(x):\n    return f(x)\n\ng(0)")
    text = shown(capsys)
    assert "----> 3     return 1 / x" in text
    assert "----> 3     return f(x)" in text
    assert "----> 5 g(0)" in text


SYNTAX_ERRORS = [
    "a = 1\nb = = 2",
    "def f(:\n    pass",
    "x = (1,\n",
    "    a = 1\n  b = 2",
    "return 3",
    "a = 1\nbreak",
    "x = '",
    "nonlocal x",
]


@pytest.mark.parametrize("source", SYNTAX_ERRORS)
def test_a_syntax_error_shows_as_in_a_plain_cell(run, shell, capsys, source):
    plain = run(source)
    # one line further down, as the magic's own line comes first
    expected = re.sub(r"(?<=line )\d+", lambda n: str(int(n[0]) + 1), shown(capsys))
    assert isinstance(plain.error_before_exec, SyntaxError)
    result = run("%%body\n" + source)
    got = shown(capsys)
    assert isinstance(result.error_in_exec, CellSyntaxError)
    if IPython.version_info[0] < 8:  # it names a cell by a hash of its text, not by its number
        expected, got = (re.sub(r"ipython-input-\d+-\w+", "", t) for t in (expected, got))
    assert got == expected.replace("In[1]", "In[2]")


def test_tabs_and_blanks_mixed(run, capsys):
    result = run("%%body\ndef f():\n\tpass\n        return 1")
    assert isinstance(result.error_in_exec, CellSyntaxError)
    text = shown(capsys)
    assert "line 4" in text
    assert "TabError: inconsistent use of tabs and spaces" in text


def test_nothing_runs_when_a_part_does_not_compile(run, shell):
    run("%%body\nran = True\nreturn 3")
    assert "ran" not in shell.user_ns
    run("%%body\nran = True\n(yield)")
    assert "ran" not in shell.user_ns


def test_in_a_kernel_an_error_is_published_once_and_stops_the_run():
    define = (
        "from jaxpar_magic.magics.cell import parse_cell, run_body\n"
        "from IPython.core.magic import register_cell_magic\n"
        "@register_cell_magic\n"
        "def body(line, cell):\n"
        "    shell = get_ipython()\n"
        "    return run_body(shell, parse_cell(shell, cell))\n"
    )
    cells = [define, "%%body\na = 1\n1 / 0", "%%body\na = = 1", "%%time\n%%body\nmissing", "%%body\na + 1"]
    notebook = run_notebook(cells)
    assert [cell_errors(c) for c in notebook.cells] == [
        [],
        ["ZeroDivisionError"],
        ["CellSyntaxError"],
        # `%%time` of IPython 8 and 7 shows the error itself and swallows it
        ["NameError"],
        [],
    ]
    assert "----> 3 1 / 0" in cell_text(notebook.cells[1])
    assert cell_text(notebook.cells[2]).strip().endswith("SyntaxError: invalid syntax")
    assert "run_cell_magic" not in cell_text(notebook.cells[2])
    assert cell_text(notebook.cells[4]) == "2"
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError):
        run_notebook([define, "%%body\na = = 1"], allow_errors=False)
