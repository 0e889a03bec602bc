"""`%jaxexplain` and the cards under tracebacks, in a real kernel and in a bare shell."""

from __future__ import annotations

import io
import warnings
from types import SimpleNamespace

import pytest
from conftest import cell_errors, cell_text, run_notebook, run_python

from jaxpar_magic.magics import jaxexplain

LOAD = "%load_ext jaxpar_magic\nimport jax, jax.numpy as jnp\nx = jnp.arange(8.0)"
FAIL = "y = jax.pmap(lambda v: v ** 2)(x)"


@pytest.fixture(scope="module")
def session():
    """One kernel, many cells; {source: cell}."""
    cells = [
        LOAD,
        "f = jax.pmap(lambda v: v ** 2)",
        FAIL,
        "%jaxexplain 2",
        "f(x)  # defined in another cell",
        "%jaxexplain",
        "%jaxexplain --full",
        "%jaxexplain 9",
        "1 / 0",
        ["%jaxexplain  ", " nothing known"][0].strip() + " ",
        "raise KeyboardInterrupt",
        "import os\npid = os.fork()\nif pid == 0:\n    os._exit(0)\n_ = os.waitpid(pid, 0)",
        "pid = os.fork()\nif pid == 0:\n    os._exit(0)\n_ = os.waitpid(pid, 0)",
        "%jaxexplain --off",
        FAIL + "  # off",
        "%jaxexplain --on",
        "%%capture\n" + FAIL,
        "%%time\n" + FAIL,
        "%config JaxparMagics.explanations = 'full'",
        FAIL + "  # full",
        "%jaxexplain JPX0104",
        "%jaxexplain pmap-needs-devices",
        "%jaxexplain JPX0105x1234",
        "%jaxexplain --lits",
        "%jaxexplain --list",
        "%jaxexplain compiling computation that requires 10 logical devices, but only 1 XLA devices are available",
        '%%jaxexplain\nTraceback (most recent call last):\n  File "a.py", line 3, in <module>\n'
        "    y = jax.pmap(g)(zs)\n"
        "ValueError: compiling computation that requires 12 logical devices, but only 4 XLA devices are available",
        "%jaxdevices 8\n" + FAIL + "\ny.shape  # after the fix",
    ]
    notebook = run_notebook(cells)
    return dict(zip(cells, notebook.cells))


def find(session, beginning):
    found = [cell for source, cell in session.items() if source.startswith(beginning)]
    assert found, beginning
    return found[0]


def test_card_stands_under_the_traceback(session):
    cell = session[FAIL]
    assert cell_errors(cell) == ["ValueError"]
    assert [o.output_type for o in cell.outputs] == ["error", "display_data"]
    card = cell.outputs[1].data["text/plain"]
    assert card.startswith("JPX0104 pmap-needs-devices\n")
    assert "8 items" in card and "1 device " in card and "%jaxdevices 8" in card and "line 1" in card
    assert "<section" in cell.outputs[1].data["text/html"]


def test_a_fix_is_printed_and_put_into_a_new_cell(session):
    assert cell_text(find(session, "%jaxexplain 2")).strip() == "%jaxdevices 8"


def test_fix_works_in_the_state_that_the_failure_left(session):
    cell = find(session, "%jaxdevices 8")
    assert not cell_errors(cell) and "(8,)" in cell_text(cell)


def test_definition_in_another_cell(session):
    card = find(session, "f(x)").outputs[1].data["text/plain"]
    assert "f = jax.vmap(lambda v: v ** 2)" in card


def test_last_error(session):
    assert cell_text(session["%jaxexplain"]).startswith("JPX0104")
    assert "At that line" in cell_text(session["%jaxexplain --full"])
    wrong = session["%jaxexplain 9"]
    assert "fix 9" in cell_text(wrong) and "fixes 1 to 3" in cell_text(wrong)


def test_silence(session):
    assert [o.output_type for o in find(session, "1 / 0").outputs] == ["error"]
    assert "Nothing known about ZeroDivisionError: division by zero" in cell_text(session["%jaxexplain "])
    assert [o.output_type for o in find(session, "raise Keyb").outputs] == ["error"]


def test_a_warning_is_told_once(session):
    first, again = find(session, "import os"), find(session, "pid = os.fork")
    assert cell_text(first).count("JPX1502 fork-after-jax") == 1
    assert "RuntimeWarning" in cell_text(first) and "JPX1502" not in cell_text(again)


def test_off_and_on(session):
    assert [o.output_type for o in session[FAIL + "  # off"].outputs] == ["error"]
    full = session[FAIL + "  # full"].outputs
    assert "At that line" in full[1].data["text/plain"]


@pytest.mark.parametrize("magic", ["%%time", "%%capture"])
def test_one_card_under_other_magics(session, magic):
    text = cell_text(find(session, magic))
    assert text.count("JPX0104 pmap-needs-devices") <= 1
    if magic == "%%capture":
        assert "JPX0104" in text


def test_pages_and_list(session):
    for name in ("JPX0104", "pmap-needs-devices"):
        assert "This fails:" in cell_text(session[f"%jaxexplain {name}"])
    assert "Did you mean '--list'?" in cell_text(session["%jaxexplain --lits"])
    listed = cell_text(session["%jaxexplain --list"])
    assert "JPX0104" in listed and "fork-after-jax" in listed


def test_pasted_text(session):
    assert "pmap got 10 items" in cell_text(find(session, "%jaxexplain compiling"))
    card = cell_text(find(session, "%%jaxexplain"))
    assert "pmap got 12 items" in card and "a.py, line 3" in card and "jax.vmap(g)(zs)" in card


def test_environment_variable():
    cells = [LOAD, FAIL, "%jaxexplain"]
    notebook = run_notebook(cells, env={"JAXPAR_EXPLANATIONS": "off"})
    assert [o.output_type for o in notebook.cells[1].outputs] == ["error"]
    assert "JPX0104" in cell_text(notebook.cells[2])


def test_run_stops_at_the_error():
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError, match="ValueError"):
        run_notebook([LOAD, FAIL, "print('never')"], allow_errors=False)


SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "jaxpar_magic")
def loaded():
    return sorted(m for m in sys.modules if m.startswith("jaxpar_magic.explanations"))
"""


def test_without_an_error_the_text_explained_last_is_meant():
    run_python(
        SHELL
        + """
text = "ValueError: compiling computation that requires 12 logical devices, but only 4 XLA devices are available"
first = shell.run_line_magic("jaxexplain", text)
assert shell.run_line_magic("jaxexplain", "") is first and first.code == "JPX0104"
assert "Why" in str(shell.run_line_magic("jaxexplain", "--full"))
"""
    )


def test_nothing_is_imported_for_other_errors():
    run_python(
        SHELL
        + """
shell.run_cell("x = 1")
shell.run_cell("1 / 0")
shell.run_cell("import warnings; warnings.warn('mind the gap')")
assert loaded() == [], loaded()
assert not [m for m in sys.modules if m in ("jax", "numpy", "rich")]
shell.run_cell("raise ValueError('jax.pmap: something')")
assert loaded()
"""
    )


def test_unload_stops_listening():
    run_python(
        """
        import warnings
        before = warnings.showwarning
        """
        + SHELL.replace("\n", "\n        ")
        + """
        assert warnings.showwarning is not before
        shell.run_line_magic("unload_ext", "jaxpar_magic")
        assert warnings.showwarning is before
        shell.run_line_magic("load_ext", "jaxpar_magic")
        def somebody(*arguments, inner=warnings.showwarning):
            inner(*arguments)
        warnings.showwarning = somebody
        shell.run_line_magic("unload_ext", "jaxpar_magic")
        assert warnings.showwarning is somebody
        warnings.warn("still shown")
        """
    )


class Shell:
    execution_count = 3

    class compile:
        pass


class Magics:
    settings = SimpleNamespace(explanations="auto")
    last = None


class Result:
    error_before_exec = None

    def __init__(self, error=None):
        self.error_in_exec = error


@pytest.fixture
def hook(monkeypatch):
    shown = []
    monkeypatch.setattr(jaxexplain, "display", shown.append)
    made = jaxexplain.ErrorHook(Shell(), Magics())
    made.shown = shown
    yield made
    made.close()


def jax_error():
    message = "compiling computation that requires 10 logical devices, but only 1 XLA devices are available"
    try:
        exec("import jax\njax.pmap", {})
        raise LookupError
    except LookupError:
        return ValueError(message)


def test_the_same_error_has_one_card_in_a_cell(hook):
    error = jax_error()
    hook.post_run_cell(Result(error))
    hook.post_run_cell(Result(error))
    assert len(hook.shown) == 1
    Shell.execution_count += 1
    hook.post_run_cell(Result(error))
    assert len(hook.shown) == 2


@pytest.mark.parametrize("result", [None, Result(), Result(KeyboardInterrupt()), Result(SystemExit(0))])
def test_nothing_to_say(hook, result):
    hook.post_run_cell(result)
    assert not hook.shown


def test_a_failure_of_ours_never_reaches_the_user(hook, monkeypatch):
    import jaxpar_magic.explanations

    def broken(*arguments, **options):
        raise RuntimeError("bug")

    monkeypatch.setattr(jaxpar_magic.explanations, "explain", broken)
    hook.post_run_cell(Result(jax_error()))
    assert not hook.shown


def test_warnings_pass_through_with_filters_as_they_are(hook):
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("os.fork() was called", RuntimeWarning, stacklevel=1)
    assert len(seen) == 1 and filters == list(warnings.filters)
    passed_on = []
    hook._show_before = lambda *arguments: passed_on.append(arguments[0])
    for _ in range(100):
        warnings.showwarning("noise", UserWarning, __file__, 1, io.StringIO())
    hook.post_run_cell(Result())
    assert len(passed_on) == 100 and not hook.shown and not hook._warned


def test_a_warning_in_other_words_is_told_with_the_users_names():
    cells = [LOAD, "z = jnp.ones(3) * 1j\nw = jax.lax.convert_element_type(z, jnp.float32)"]
    cell = run_notebook(cells).cells[1]
    text = cell_text(cell)
    assert "imaginary" in text and "JPX" in text


@pytest.fixture(scope="module")
def maps():
    """Maps that fail, and arrays that a new device count left behind."""
    cells = [
        LOAD + "\nimport threading\nlock = threading.Lock()",
        "def h(x):\n    if x > 0:\n        return x\n    return -x",
        "%parmap h [1.0, -2.0] -s vmap",
        "%parmap (lambda x: lock and x) [1, 2] -s process",
        "def g(x):\n    return jnp.ones((2, 3)) @ jnp.ones((x, 3))",
        "%parmap g [2, 3] -s process",
        "%jaxdevices 2",
        "old = jax.device_put(jnp.ones(2), jax.devices()[1])",
        "%jaxdevices 4",
        "old + jax.device_put(jnp.ones(2), jax.devices()[1])",
    ]
    return dict(zip(cells, run_notebook(cells).cells))


def test_a_map_that_cannot_be_traced_can_run_as_plain_python(maps):
    card = find(maps, "%parmap h").outputs[-1].data["text/plain"]
    assert card.startswith("JPX0501") and "line 2, in h" in card
    assert "%parmap h [1.0, -2.0] -s process" in card and "__wrapped__" not in card


def test_what_cannot_be_sent_to_workers(maps):
    card = find(maps, "%parmap (lambda").outputs[-1].data["text/plain"]
    assert card.startswith("JPX1501") and "lock (_thread.lock)" in card
    assert "%parmap (lambda x: lock and x)" in card


def test_error_of_a_worker_is_explained_as_if_local(maps):
    card = find(maps, "%parmap g").outputs[-1].data["text/plain"]
    assert "item 0" in card and "line 2, in g" in card and "jnp.ones((x, 3))" in card


def test_arrays_of_devices_that_are_gone(maps):
    card = find(maps, "old +").outputs[-1].data["text/plain"]
    assert card.startswith("JPX0106") and "old = jax.device_put(jax.device_get(old))" in card
