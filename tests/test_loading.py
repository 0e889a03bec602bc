"""`%load_ext jaxpar_magic` costs next to nothing, and `%unload_ext` leaves the shell as it was.

What loading adds to IPython's start, in milliseconds, and what the time goes into:

    .venv/bin/python tests/test_loading.py
"""

from __future__ import annotations

import builtins
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings

import IPython
import pytest
from conftest import cell_errors, cell_text, run_notebook, run_python
from IPython.core.error import UsageError

from jaxpar_magic.magics import extension, parmap

# --- what loading imports and prints ----------------------------------------------------------------------

LOAD = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("None")  # what a first cell imports is not ours
sys.path.insert(0, {folder!r})
before = set(sys.modules)
started = time.perf_counter()
result = shell.run_cell("%load_ext {name}")
elapsed = time.perf_counter() - started
result.raise_error()
print(json.dumps([sorted(set(sys.modules) - before), elapsed]), file=sys.__stderr__)
"""

HEAVY = {"jax", "jaxlib", "numpy", "rich", "pandas", "scipy", "matplotlib", "cloudpickle", "loky"}
# Of the standard library: each of these brings tens of modules, or starts something.
HEAVY |= {"asyncio", "concurrent", "multiprocessing", "email", "http", "unittest", "xml", "ssl", "sqlite3"}
# Brought by IPython, lazily in some versions.
FREE = {"jaxpar_magic", "IPython", "traitlets"}


def load_in_a_fresh_process(name: str = "jaxpar_magic", folder: str = "") -> tuple[list[str], str]:
    """(modules that `%load_ext` imported, what it printed)"""
    done = run_python(LOAD.format(name=name, folder=folder))
    printed, _, last = done.stderr.rstrip().rpartition("\n")
    return json.loads(last)[0], done.stdout + printed


def not_allowed(modules: list[str]) -> list[str]:
    tops = {name.partition(".")[0] for name in modules}
    return sorted(top for top in tops - FREE if top in HEAVY or top not in sys.stdlib_module_names)


def test_loading_is_light_and_silent():
    modules, printed = load_in_a_fresh_process()
    assert "jaxpar_magic.magics.extension" in modules
    assert not_allowed(modules) == []
    others = [name for name in modules if name.partition(".")[0] not in FREE]
    assert len(others) <= 20, others
    assert printed == ""


def test_importing_the_package_and_naming_what_it_offers_is_light():
    code = "import sys, jaxpar_magic; dir(jaxpar_magic); print('\\n'.join(sys.modules))"
    done = run_python(code)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & HEAVY
    assert done.stderr == ""


@pytest.mark.parametrize("import_", ["numpy", "xml.sax", "rich.text", "pytest"])
def test_an_extension_that_imports_more_is_found(tmp_path, import_):
    (tmp_path / "bad_extension.py").write_text(
        f"import {import_}\ndef load_ipython_extension(shell):\n    print('loaded')\n"
    )
    modules, printed = load_in_a_fresh_process("bad_extension", str(tmp_path))
    assert import_.partition(".")[0] in not_allowed(modules)
    assert printed == "loaded\n"


# --- the shell before and after ---------------------------------------------------------------------------


def snapshot(shell) -> dict[str, object]:
    """All of a shell and its process that an extension could have changed."""
    completer = getattr(shell, "Completer", None)
    formatters = shell.display_formatter.formatters.values()
    changes_by_itself = {
        "execution_count",
        "_last_input_line",
        "last_execution_result",
        "last_execution_succeeded",
    }
    return {
        "events": {name: list(callbacks) for name, callbacks in shell.events.callbacks.items()},
        "magics": {kind: dict(table) for kind, table in shell.magics_manager.magics.items()},
        "magic classes": dict(shell.magics_manager.registry),
        "lazy magics": dict(shell.magics_manager.lazy_magics) if hasattr(shell.magics_manager, "lazy_magics") else {},
        "configurables": [id(c) for c in shell.configurables],
        "completers": [list(getattr(completer, "custom_matchers", [])), len(completer.matchers)],
        "hooks": {name: list(getattr(hook, "chain", [])) for name, hook in shell.hooks.items()},
        "completion hooks": repr(vars(shell.strdispatchers["complete_command"]) if shell.strdispatchers else None),
        "transformers": [
            list(shell.input_transformers_cleanup),
            list(shell.input_transformers_post),
            list(shell.ast_transformers),
        ],
        "formatters": [(dict(f.type_printers), dict(f.deferred_printers)) for f in formatters],
        "custom exceptions": (shell.custom_exceptions, getattr(shell, "CustomTB", None)),
        "attributes": {name: id(v) for name, v in vars(shell).items() if name not in changes_by_itself},
        "shell's class": dict(vars(type(shell))),
        "names of the user": {
            k: id(v) for k, v in shell.user_ns.items() if not k.startswith("_") and k not in ("In", "Out")
        },
        "hidden names": set(shell.user_ns_hidden),
        "builtins": dict(vars(builtins)),
        "warning filters": list(warnings.filters),
        "showing of warnings": warnings.showwarning,
        "sys": [
            (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
            (sys.stdout, sys.stderr, list(sys.path), list(sys.meta_path)),
        ],
        "logging": (list(logging.root.handlers), logging.root.level),
        "environment": dict(os.environ),
        "signals": signal.getsignal(signal.SIGINT),
        "threads": threading.enumerate(),
    }


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    new = [thread for thread in after["threads"] if thread not in before["threads"]]  # others may end meanwhile
    found = [name for name in before if name != "threads" and before[name] != after[name]]
    return found + ["threads"] * bool(new)


@pytest.fixture
def ready(shell):
    """A shell in which what comes with the first cells has come."""
    for cell in ("1", "1 / 0", "%lsmagic", "%unload_ext nothing", "%config"):
        shell.run_cell(cell)
    import jaxpar_magic.magics.jaxdevices
    import jaxpar_magic.magics.jaxexplain  # noqa: F401  importing is not undone

    return shell


def run(shell, *cells: str) -> None:
    for cell in cells:
        shell.run_cell(cell).raise_error()


def test_unloading_leaves_the_shell_as_it_was(ready):
    before = snapshot(ready)
    run(ready, "%load_ext jaxpar_magic")
    assert differences(before, snapshot(ready)) == [
        "events",
        "magics",
        "magic classes",
        "configurables",
        *(["completers"] if hasattr(ready.Completer, "custom_matchers") else []),
        "attributes",
        "showing of warnings",  # the filters stay as they are
    ]
    assert set(snapshot(ready)["attributes"]) - set(before["attributes"]) == {"_jaxpar_magic_loaded"}
    assert [type(c).__name__ for c in ready.configurables if type(c).__name__ == "JaxparMagics"] == ["JaxparMagics"]
    run(ready, "%unload_ext jaxpar_magic")
    assert differences(before, snapshot(ready)) == []


def test_unloading_after_use_leaves_the_shell_as_it_was(ready):
    import jax  # noqa: F401  what importing them does to the process is theirs
    import rich  # noqa: F401

    before = snapshot(ready)
    run(ready, "%load_ext jaxpar_magic")
    for cell in (
        "%jaxexplain --list",
        "%jaxdevices",
        "1 / 0",
        "%jaxexplain",
        "%%parmap nothing\nx",
        "%parmap -h",
        "%config JaxparMagics.explanations = 'full'",
    ):
        ready.run_cell(cell)
    ready.Completer.complete(line_buffer="%parmap --st", cursor_pos=12)
    run(ready, "%unload_ext jaxpar_magic")
    assert differences(before, snapshot(ready)) == []


def test_loading_twice_and_again(ready):
    before = snapshot(ready)
    run(ready, "%load_ext jaxpar_magic")
    loaded = snapshot(ready)
    run(ready, "%load_ext jaxpar_magic")
    extension.load(ready)  # past IPython's own check
    assert differences(loaded, snapshot(ready)) == []
    run(ready, "%unload_ext jaxpar_magic", "%load_ext jaxpar_magic")
    assert [len(v) for v in snapshot(ready)["events"].values()] == [len(v) for v in loaded["events"].values()]
    run(ready, "%reload_ext jaxpar_magic")
    assert len(snapshot(ready)["configurables"]) == len(loaded["configurables"])
    assert [len(v) for v in snapshot(ready)["completers"][:1]] == [len(v) for v in loaded["completers"][:1]]
    run(ready, "%unload_ext jaxpar_magic")
    assert differences(before, snapshot(ready)) == []


def test_unloading_what_is_not_loaded(ready):
    before = snapshot(ready)
    run(ready, "%unload_ext jaxpar_magic")
    extension.unload(ready)
    assert differences(before, snapshot(ready)) == []


def test_magics_of_the_same_name_come_back(ready):
    def theirs(line, cell=None):
        return "theirs"

    ready.register_magic_function(theirs, "line_cell", "parmap")
    before = snapshot(ready)
    run(ready, "%load_ext jaxpar_magic")
    assert ready.find_line_magic("parmap") is not theirs
    run(ready, "%unload_ext jaxpar_magic")
    assert ready.run_cell("%parmap").result == "theirs"
    assert differences(before, snapshot(ready)) == []


def test_a_magic_that_took_the_place_of_ours_stays(ready):
    def theirs(line, cell=None):
        return "theirs"

    run(ready, "%load_ext jaxpar_magic")
    ready.register_magic_function(theirs, "line_cell", "parmap")
    run(ready, "%unload_ext jaxpar_magic")
    assert ready.run_cell("%parmap").result == "theirs"
    assert ready.find_line_magic("jaxdevices") is None


@pytest.mark.skipif(IPython.version_info < (7, 32), reason="IPython has no lazy magics yet")
def test_magics_that_the_user_declared_to_load_us(ready):
    ready.magics_manager.register_lazy("jaxdevices", "jaxpar_magic")
    try:
        ready.run_cell("%jaxdevices -h")
        assert ready.find_line_magic("jaxdevices").__self__ is not None
        run(ready, "%unload_ext jaxpar_magic")
    finally:
        ready.magics_manager.lazy_magics.pop("jaxdevices")


def test_events_and_matchers_that_somebody_reset_meanwhile(ready):
    run(ready, "%load_ext jaxpar_magic")
    ready.events.callbacks["post_run_cell"].clear()
    run(ready, "%unload_ext jaxpar_magic")
    assert ready.events.callbacks["post_run_cell"] == []


def test_unloading_in_a_cell_that_sets_flags_takes_the_guard_of_that_cell_back(ready, monkeypatch):
    import jax  # noqa: F401

    taken_back = []
    monkeypatch.setattr("jaxpar_magic._jax.live_platforms", list)
    monkeypatch.setattr("jaxpar_magic._jax.before_first_backend", lambda _: lambda: taken_back.append(True))
    run(ready, "%load_ext jaxpar_magic", "'XLA_FLAGS'\n%unload_ext jaxpar_magic")
    assert taken_back == [True]


def test_a_load_that_fails_half_way_leaves_nothing(ready, monkeypatch):
    def broken(self, **kwargs):
        super(parmap.ParmapMagics, self).__init__(**kwargs)
        raise RuntimeError("broken")

    before = snapshot(ready)
    monkeypatch.setattr(parmap.ParmapMagics, "__init__", broken)
    with pytest.raises(RuntimeError, match="broken"):
        extension.load(ready)
    assert differences(before, snapshot(ready)) == []
    monkeypatch.undo()
    run(ready, "%load_ext jaxpar_magic", "%unload_ext jaxpar_magic")


def test_a_matcher_is_added_and_removed(ready):
    before = snapshot(ready)
    loaded = extension.Loaded(ready)

    def matcher(context):
        return {"completions": []}

    loaded.add_matcher(matcher)
    assert differences(before, snapshot(ready)) == ["completers"]
    loaded.remove()
    assert differences(before, snapshot(ready)) == []


INTRUSIONS = {
    "events": lambda shell: shell.events.register("pre_run_cell", lambda info: None),
    "magics": lambda shell: shell.register_magic_function(lambda line: None, "line", "intruder"),
    "configurables": lambda shell: shell.configurables.append(shell),
    "transformers": lambda shell: shell.ast_transformers.append(object()),
    "formatters": lambda shell: shell.display_formatter.formatters["text/html"].for_type(int, str),
    "custom exceptions": lambda shell: shell.set_custom_exc((KeyError,), lambda *a, **k: None),
    "attributes": lambda shell: setattr(shell, "_intruder", 1),
    "names of the user": lambda shell: shell.push({"intruder": 1}),
    "warning filters": lambda shell: warnings.simplefilter("ignore"),
    "showing of warnings": lambda shell: setattr(warnings, "showwarning", print),
    "sys": lambda shell: setattr(sys, "excepthook", print),
    "environment": lambda shell: os.environ.update(INTRUDER="1"),
    "completion hooks": lambda shell: shell.set_hook("complete_command", print, str_key="%parmap"),
}


@pytest.mark.parametrize("what", INTRUSIONS)
def test_the_comparison_sees_an_intrusion(ready, what, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("INTRUDER", "0")
    with warnings.catch_warnings():
        before = snapshot(ready)
        INTRUSIONS[what](ready)
        assert what in differences(before, snapshot(ready))


# --- in a kernel ------------------------------------------------------------------------------------------


def test_in_a_kernel():
    cells = [
        "%load_ext jaxpar_magic",
        "import sys; {'jax', 'numpy', 'rich'} & set(sys.modules)",
        "%lsmagic",
        "%unload_ext jaxpar_magic",
        "%jaxdevices",
        "%load_ext jaxpar_magic",
        "1 / 0",
    ]
    notebook = run_notebook(cells)
    texts = [cell_text(c) for c in notebook.cells]
    assert notebook.cells[0].outputs == []
    assert texts[1] == "set()"
    assert all(f"%{name}" in texts[2] for name in ("jaxdevices", "parmap", "jaxexplain", "%parmap"))
    assert texts[3] == ""
    assert f"{UsageError.__name__}: Line magic function `%jaxdevices` not found" in texts[4]
    assert notebook.cells[5].outputs == []
    # an error that is not JAX's stands alone
    assert len(notebook.cells[6].outputs) == 1
    assert cell_errors(notebook.cells[6]) == ["ZeroDivisionError"]


# --- how long it takes ------------------------------------------------------------------------------------


def main() -> None:
    """Print the time of `%load_ext` in fresh processes, and Python's own account of the imports."""
    command = [sys.executable, "-c", LOAD.format(name="jaxpar_magic", folder="")]
    times = []
    for _ in range(9):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(json.loads(done.stderr.splitlines()[-1])[1] * 1000)
        time.sleep(0.1)
    done = subprocess.run([command[0], "-X", "importtime", *command[1:]], capture_output=True, text=True, check=True)
    print("\n".join(line for line in done.stderr.splitlines() if "jaxpar_magic" in line or "cumulative" in line))
    median, fastest, slowest = statistics.median(times), min(times), max(times)
    print(f"%load_ext jaxpar_magic: median {median:.1f} ms, {fastest:.1f} to {slowest:.1f}")


if __name__ == "__main__":
    main()
