"""What all tests share: fresh interpreters, real kernels, a real shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap

import pytest

# What decides devices, and what importing jax in this process leaves for its children.
_OF_JAX = ("JAX_", "XLA_", "JAXPAR_", "TF_CPP_", "TPU_")

_CACHE = "JAXPAR_CACHE_DIR"

# What the person who runs the tests has set must not decide their outcome, in this process or a child.
for _name in [name for name in os.environ if name.startswith(_OF_JAX)]:
    del os.environ[_name]


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--update-snapshots", action="store_true", help="write tests/render/snapshots anew from what is rendered now"
    )
    parser.addoption(
        "--shared-processes",
        action="store_true",
        help="let the examples of the error index share processes: less thorough, a third of the time",
    )


def pytest_report_header() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("jax", "ipython", "ipykernel", "numpy"))


@pytest.fixture(scope="session", autouse=True)
def _own_ipython_folder(tmp_path_factory):
    """Kernels and shells of the tests see no profile of the user's, and leave no history in it."""
    os.environ["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory):
    """What `auto` learnt elsewhere must not decide a test, nor a test what `auto` does elsewhere."""
    os.environ[_CACHE] = str(tmp_path_factory.mktemp("cache"))


def run_python(code: str, *, env: dict[str, str] | None = None, timeout: float = 120, check: bool = True):
    """Run `code` in a fresh interpreter (device count and flags are fixed per process).

    Variables that would decide devices are removed from the environment first.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=_environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def _environment(env: dict[str, str] | None) -> dict[str, str]:
    # Again, since a test may have set such a variable in this process.
    return {k: v for k, v in os.environ.items() if k == _CACHE or not k.startswith(_OF_JAX)} | (env or {})


def run_notebook(
    cells: list[str], *, allow_errors: bool = True, timeout: float = 120, env: dict[str, str] | None = None
):
    """Execute cells in a real kernel through nbclient; return the executed notebook."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder of their own: kernels that start at once could contend for ports.
        manager = KernelManager(transport="ipc", connection_file=f"{folder}/kernel.json")
        # The kernel is this very interpreter, whatever kernel specs the machine has.
        manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        client = NotebookClient(notebook, km=manager, allow_errors=allow_errors, timeout=timeout)
        client.execute(env=_environment(env), cleanup_kc=True)  # else a kernel that it did not make stays alive
    return notebook


def cell_text(cell) -> str:
    """All that a cell printed or displayed, as text (ANSI codes removed)."""
    parts = []
    stream = None
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == stream:
            parts[-1] += output.text  # a line that reached the front end in two pieces is one line
        elif output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append("\n".join(output.traceback))
        else:
            parts.append(output.data.get("text/plain", ""))
        stream = output.get("name")
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


def cell_errors(cell) -> list[str]:
    """Names of the exceptions in a cell's error outputs."""
    return [o.ename for o in cell.outputs if o.output_type == "error"]


@pytest.fixture
def fresh_python():
    return run_python


@pytest.fixture
def notebook():
    return run_notebook


@pytest.fixture
def shell():
    """A real IPython shell in this process, the one that `get_ipython()` returns; gone after the test."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False  # else each shell keeps a thread and a database open
    hooks = sys.excepthook, sys.displayhook
    shell = InteractiveShell.instance(config=config)
    try:
        yield shell
    finally:
        InteractiveShell.clear_instance()
        sys.excepthook, sys.displayhook = hooks
