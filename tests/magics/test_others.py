"""Beside other magics, extensions and ways to run cells: nothing of theirs breaks, and nothing of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import IPython
import pytest
from conftest import cell_errors, cell_text, run_notebook

SETUP = """
%load_ext jaxpar_magic
import asyncio, os, pathlib, sys, numpy as np, jax, jax.numpy as jnp
xs = np.arange(6, dtype=np.float32)
def f(x):
    return 2 * x
""".strip()
FAIL = "jax.pmap(lambda x: x)(xs)"
CARD = "JPX0104 pmap-needs-devices"
DEFINE = "def g(x):\n    return x + 1"


def run(cells: dict[str, str], **options):
    """Execute named cells in one kernel after SETUP; {name: cell}."""
    executed = run_notebook([SETUP, *cells.values()], timeout=240, **options).cells
    assert not cell_errors(executed[0]), cell_text(executed[0])
    return dict(zip(cells, executed[1:]))


@pytest.fixture(scope="module")
def magics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    (folder / "script.ipy").write_text("%parmap f xs -q -o from_script\n")
    return run(
        {
            "time line": "%time %parmap f xs -q",
            "time assigned": "%time y = %parmap f xs -q\nprint(y.shape)",
            "time cell": "%%time\n%parmap f xs -o y\nprint(y.shape)",
            "time cell magic": f"%%time\n%%parmap xs -o y\n{DEFINE}",
            "timeit": "%timeit -n1 -r1 %parmap f xs -q --noresult",
            "capture": "%%capture caught\n%parmap f xs",
            "captured": "print(caught.stdout, len(caught.outputs), end='')",
            "capture cell magic": f"%%capture caught\n%%parmap xs\n{DEFINE}",
            "captured cell magic": "print(caught.stdout, len(caught.outputs), end='')",
            "capture failure": f"%%capture caught\n{FAIL}",
            "after capture": "'alive'",
            "prun": "%prun -l 1 %parmap f xs -q --noresult",
            "prun cell": "%%prun -l 1\ny = %parmap f xs -q\nassert y.shape == (6,)",
            "await before": "await asyncio.sleep(0)\ny = %parmap f xs -q\nprint(y.shape)",
            "await after": "%parmap f xs -q -o y\nawait asyncio.sleep(0)\nprint(y.shape)",
            "await and devices": "await asyncio.sleep(0)\n%jaxdevices\nprint('on')",
            "await and fail": f"await asyncio.sleep(0)\n{FAIL}",
            "value": f"%%parmap xs -q\n{DEFINE}",
            "value after": "print(_.shape, g(1))",
            "value of an expression": "%%parmap x=xs k=3 -q\nx ** k",
            "semicolon": f"%%parmap xs -q\n{DEFINE};",
            "semicolon of an expression": "%%parmap x=xs k=3 -q\nx ** k;  # a comment",
            "semicolon of the line": f"%%parmap xs -q;\n{DEFINE}",
            "semicolon in a comment": "%%parmap x=xs k=3 -q\nx ** k  # none;",
            "semicolon after an assignment": "y = None\ny = %parmap f xs -q;\nprint(y.shape)",
            "loop": "for k in (1, 2):\n    y = %parmap (lambda x, k: k * x) xs k -q\nprint(y[1])",
            "in a function": "def through():\n    y = %parmap f xs -q\n    return y\nprint(through().shape)",
            "script": f"%run {folder / 'script.ipy'}\nprint(from_script.shape)",
            "parameters": "# Parameters\ncount = 4\nwidth = 2",
            "with parameters": "%parmap f xs[:count] -b width -d 1 -s map -q -o y\nprint(y.shape)",
            "reset": "%reset -f",
            "after reset": "import numpy as np\n%parmap np.sin [1.0, 2.0] -s serial -q",
            "who": "%who",
        }
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("time line", ["Wall time", "Array(["]),
        ("time assigned", ["Wall time", "(6,)"]),
        ("time cell", ["parmap f: ", "(6,)", "Wall time"]),
        ("time cell magic", ["parmap g: ", "Wall time"]),
        ("timeit", ["per loop"]),
        ("captured", ["parmap f: ", " 1"]),
        ("captured cell magic", ["parmap g: ", " 1"]),
        ("after capture", ["alive"]),
        ("await before", ["(6,)"]),
        ("await after", ["(6,)"]),
        ("await and devices", ["CPU device", "on"]),
        ("value", ["Array([1., 2."]),
        ("value after", ["(6,) 2"]),
        ("value of an expression", ["125."]),
        ("semicolon in a comment", ["125."]),
        ("semicolon after an assignment", ["(6,)"]),
        ("loop", ["2.0"]),
        ("in a function", ["(6,)"]),
        ("script", ["(6,)"]),
        ("with parameters", ["(4,)"]),
        ("after reset", ["0.84147"]),
    ],
)
def test_other_magics(magics, name, words):
    text = cell_text(magics[name])
    assert not cell_errors(magics[name]), text
    assert "UsageError" not in text
    assert all(word in text for word in words), text


def test_nothing_is_shown_twice_or_too_much(magics):
    for name in (
        "capture",
        "capture cell magic",
        "semicolon",
        "semicolon of an expression",
        "semicolon of the line",
        "prun",
        "prun cell",
    ):
        assert not cell_errors(magics[name]), cell_text(magics[name])
        assert "Array(" not in cell_text(magics[name]), name
    assert cell_text(magics["await and devices"]).count("JAX runs on") == 1
    assert cell_text(magics["time line"]).count("Array(") == 1
    assert cell_text(magics["time cell magic"]).count("Wall time") == 1
    assert cell_text(magics["who"]).split() == ["np"]  # no name of ours


def test_cards_in_async_cells_and_under_capture(magics):
    assert cell_errors(magics["await and fail"]) == ["ValueError"]
    assert cell_text(magics["await and fail"]).count(CARD) == 1
    assert cell_text(magics["capture failure"]).count(CARD) == 1


# --- other extensions, and ways to show errors ------------------------------------------------------------

MODES = ["Plain", "Context", "Verbose", "Minimal"] + (["Docs"] if IPython.version_info >= (9,) else [])


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    module = folder / "model_of_mine.py"
    cells = {}
    for mode in MODES:
        cells[f"xmode {mode}"] = f"%xmode {mode}"
        cells[f"card {mode}"] = FAIL
        cells[f"own {mode}"] = "%%parmap xs\ndef bad(x):\n    return x.nothing_like_it"
        cells[f"usage {mode}"] = "%parmap f xs --nonsense"
        cells[f"option {mode}"] = "%parmap (lambda a, b: a) xs xs[:3]"
    cells |= {
        "xmode back": "%xmode Context",
        "module": f"pathlib.Path({str(module)!r}).write_text('def scale(x):\\n    return 2 * x\\n')\n"
        f"sys.path.insert(0, {str(folder)!r})\nsys.dont_write_bytecode = True\n"
        "%load_ext autoreload\n%autoreload 2\nimport model_of_mine",
        "first": "%parmap model_of_mine.scale xs -q -o y\nprint(y[1])",
        "edit": f"path = pathlib.Path({str(module)!r})\npath.write_text('def scale(x):\\n    return 30 * x\\n')\n"
        "os.utime(path, (2_000_000_000, 2_000_000_000))",
        "second": "%parmap model_of_mine.scale xs -q -o y\nprint(y[1])",
        "off": "%autoreload 0",
        "handler": "seen = []\ndef handler(shell, kind, error, tb, tb_offset=None):\n    seen.append(kind.__name__)\n"
        "    shell.showtraceback((kind, error, tb), tb_offset=tb_offset)\n"
        "get_ipython().set_custom_exc((Exception,), handler)",
        "handled": FAIL + "  # handled",
        "handler saw": "print(seen)\nget_ipython().set_custom_exc((), None)",
        "their callback": "def theirs(result):\n    print('another callback')\n"
        "get_ipython().events.register('post_run_cell', theirs)",
        "with their callback": FAIL + "  # with theirs",
        "callback away": "get_ipython().events.unregister('post_run_cell', theirs)",
        "rich": "from rich import pretty, traceback\npretty.install()\nold = traceback.install()",
        "rich value": "%parmap f xs -q",
        "rich report": "%jaxdevices",
        "rich failure": FAIL + "  # rich",
        "rich own failure": "%%parmap xs -s serial\ndef bad(x):\n    return 1 // 0",
        "rich usage": "%parmap f xs --nonsense",
        "unload": "%unload_ext jaxpar_magic",
        "after unload": FAIL + "  # unloaded",
    }
    return run(cells)


@pytest.mark.parametrize("mode", MODES)
def test_every_xmode(tools, mode):
    assert cell_errors(tools[f"card {mode}"]) == ["ValueError"]
    assert cell_text(tools[f"card {mode}"]).count(CARD) == 1
    assert cell_errors(tools[f"own {mode}"]) == ["AttributeError"]
    assert "nothing_like_it" in cell_text(tools[f"own {mode}"])
    assert "unknown option '--nonsense'" in cell_text(tools[f"usage {mode}"])
    own = cell_text(tools[f"option {mode}"])
    assert "InputError" in own and "Traceback" not in own


@pytest.mark.skipif(not find_spec("imp") and IPython.version_info < (8,), reason="autoreload needs imp there")
def test_a_module_that_is_edited(tools):
    assert cell_text(tools["first"]).strip() == "2.0"
    assert cell_text(tools["second"]).strip() == "30.0"


def test_another_handler_of_errors(tools):
    assert cell_text(tools["handled"]).count(CARD) == 1
    assert cell_text(tools["handler saw"]).strip() == "['ValueError']"
    text = cell_text(tools["with their callback"])
    assert text.count(CARD) == 1 and text.count("another callback\n") == 1


def test_rich(tools):
    assert "Array([" in cell_text(tools["rich value"])
    assert "JAX runs on" in cell_text(tools["rich report"])
    assert cell_text(tools["rich failure"]).count(CARD) == 1
    assert "ZeroDivisionError" in str(tools["rich own failure"].outputs)
    assert "unknown option" in cell_text(tools["rich usage"])
    assert CARD not in cell_text(tools["after unload"])


# --- engines of ipyparallel, parameters of papermill -------------------------------------------------------


@pytest.mark.slow
def test_px_and_autopx(tmp_path):
    cells = {
        "engine": "import ipyparallel\nengines = ipyparallel.Cluster(n=1, log_level=40)\n"
        "client = engines.start_and_connect_sync(activate=True)",
        "load": "%px %load_ext jaxpar_magic",
        "there": "%%px\nimport numpy as np, jax\nxs = np.arange(4.0)\ndef f(x):\n    return -x",
        "cell magic": "%%px\n%%parmap xs -s serial -o y\ndef f(x):\n    return -x",
        "its result": "%px print('there', y.shape)",
        "both": "%%px --local\n%%parmap xs -s serial -q -o z\ndef g(x):\n    return -x",
        "both results": "print('here', z.shape)\n%px print('there', z.shape)",
        "failure": f"%%px\n{FAIL}",
        "here": "%parmap f xs -q",
        "autopx": "%autopx",
        "in autopx": "%parmap f xs -q -s serial -o w",
        "shape in autopx": "print('there', w.shape)",
        "autopx off": "%autopx",
        "still here": "print('w' in globals())",
        "failure here": FAIL,
        "end": "engines.stop_cluster_sync()",
    }
    done = run(cells, env={"IPYTHONDIR": os.fspath(tmp_path)})
    text = {name: cell_text(cell) for name, cell in done.items()}
    failed = {name for name, cell in done.items() if cell_errors(cell)}
    assert failed == {"failure", "failure here"}, {name: text[name] for name in failed}
    assert "parmap f: serial, 4 items" in text["cell magic"] and "there (4,)" in text["its result"]
    assert "here (6,)" in text["both results"] and "there (4,)" in text["both results"]
    assert "Array([" in text["here"]
    assert "there (4,)" in text["shape in autopx"] and text["still here"].strip() == "False"
    assert "ValueError" in text["failure"] and text["failure"].count(CARD) == 1
    assert text["failure here"].count(CARD) == 1


def test_parameters_of_papermill(tmp_path):
    import nbformat
    import papermill

    cells = [
        "%load_ext jaxpar_magic\nimport numpy as np",
        nbformat.v4.new_code_cell("count = 3\nwidth = 1\nstrategy = 'auto'", metadata={"tags": ["parameters"]}),
        "%%parmap x=np.arange(count) -b width -s {strategy} -o ys\nx * 2.0",
        "print(ys.shape)",
    ]
    made = [nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=kernel), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb",
        tmp_path / "out.ipynb",
        parameters={"count": 7, "strategy": "map"},
        progress_bar=False,
        cwd=tmp_path,
    )
    assert "map on 1 device, 7 items" in cell_text(done.cells[3])
    assert cell_text(done.cells[4]).strip() == "(7,)"


# --- the terminal, its debugger ----------------------------------------------------------------------------


def terminal(*lines: str) -> str:
    """What `ipython` prints for these lines."""
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--no-confirm-exit"],
        input="\n".join([*lines, "exit", ""]),
        env={**os.environ, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout + done.stderr


def test_the_debugger_in_a_terminal():
    shown = terminal(
        "%load_ext jaxpar_magic",
        "inverse = lambda x: 1 / (x - 21)",
        "%parmap inverse [20, 21] -s serial",
        "%debug",
        "print('the item is', x + 1000)",
        "q",
        "%pdb on",
        "%parmap inverse [20, 21] -s serial -q",
        "print('again it is', x + 2000)",
        "q",
        "%pdb off",
        "def stop(x): breakpoint(); return x",
        "",
        "%parmap stop [22] -s serial -q",
        "print('stopped at', x + 3000)",
        "c",
        "import numpy, jax",
        "jax.pmap(lambda x: x)(numpy.arange(6.0))",
        "print('alive:', 6 * 7)",
    )
    assert "the item is 1021" in shown
    assert "again it is 2021" in shown
    assert "stopped at 3022" in shown
    assert shown.count(CARD) == 1
    assert "alive: 42" in shown


def test_another_extension_that_takes_over_running_cells(shell, capsys):
    """As ipyparallel's %autopx does: it stands before and after, and both work meanwhile."""
    before = shell.run_cell
    seen = []

    def theirs(raw, *args, **kwargs):
        seen.append(raw)
        return before(raw, *args, **kwargs)

    shell.run_cell = theirs
    try:
        shell.run_line_magic("load_ext", "jaxpar_magic")
        assert shell.run_cell("%parmap abs [-1, -2] -s serial -q").result.tolist() == [1, 2]
        shell.run_line_magic("unload_ext", "jaxpar_magic")
        assert shell.run_cell is theirs and len(seen) == 1
    finally:
        del shell.run_cell


def test_magics_of_another_that_run_cells(shell, capsys):
    """As %%px --local does."""

    def px(line, cell):
        shell.run_cell(cell).raise_error()

    shell.register_magic_function(px, "cell", "px")
    shell.run_line_magic("load_ext", "jaxpar_magic")
    try:
        cell = textwrap.dedent("""\
            %%px
            %%parmap [1, 2] -s serial -q
            def f(x):
                return -x
            """)
        assert shell.run_cell(cell).success
        assert "array([-1, -2])" in capsys.readouterr().out
    finally:
        shell.run_line_magic("unload_ext", "jaxpar_magic")
