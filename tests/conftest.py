"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest


def run_python(code: str, *, env: dict[str, str] | None = None, timeout: float = 120, check: bool = True):
    """Run `code` in a fresh interpreter (device count and flags are fixed per process).

    Variables that would decide devices are removed from the environment first.
    """
    full = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "JAXPAR_"))}
    full.update(env or {})
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=full, capture_output=True, text=True, timeout=timeout
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def run_notebook(cells: list[str], *, allow_errors: bool = True, timeout: float = 120, env: dict[str, str] | None = None):
    """Execute cells in a real kernel through nbclient; return the executed notebook."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    full = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "JAXPAR_"))}
    full.update(env or {})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    # The kernel is this very interpreter, whatever kernel specs the machine has.
    manager = KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client = NotebookClient(notebook, km=manager, allow_errors=allow_errors, timeout=timeout)
    client.execute(env=full)
    return notebook


def cell_text(cell) -> str:
    """All that a cell printed or displayed, as text (ANSI codes removed)."""
    import re

    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append("\n".join(output.traceback))
        else:
            parts.append(output.data.get("text/plain", ""))
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
