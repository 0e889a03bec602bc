"""Run the quick tests over the range of Python, JAX and IPython that the package supports.

So do the examples of the error index, on each JAX: what fails, and how its message reads, differs.

    python3 tools/versions.py [oldest] [middle] [newest] [pytest arguments]

Each row of ENVIRONMENTS gets a virtual environment in .venvs/, kept as long as its row and the
dependencies in pyproject.toml stay as they are. A row whose Python this machine lacks is named and left
out. (The default environment, .venv, is the newest of all that Python 3.11 admits; `make test` runs in it.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Environment:
    name: str
    python: str
    packages: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: Python {self.python}, {', '.join(self.packages)}"

    @property
    def folder(self) -> Path:
        return ROOT / ".venvs" / self.name

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"


ENVIRONMENTS = (
    # IPython 7 imports setuptools, which Python 3.12 no longer brings; ipykernel 7 needs IPython 8.
    Environment("oldest", "3.12", ("jax==0.6.2", "jaxlib==0.6.2", "ipython==7.34.0", "ipykernel<7", "setuptools")),
    Environment("middle", "3.12", ("jax==0.8.3", "jaxlib==0.8.3", "ipython==8.37.0")),
    Environment("newest", "3.13", ("jax", "jaxlib", "ipython")),
)


def find_python(version: str) -> str | None:
    """The path of this Python: `python3.12` if that answers, else one that pyenv keeps."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)
    for command in (f"python{version}", *kept):
        ask = [command, "-c", "import sys; print(sys.executable)"]
        try:
            return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):  # absent, or a shim for a version not chosen
            continue
    return None


def install(environment: Environment, python: str) -> None:
    """Make the environment, unless it is there with the same row and the same dependencies."""
    stamp = environment.folder / "installed.txt"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = f"{environment}\n{project['dependencies']}\n{project['optional-dependencies']}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"making .venvs/{environment}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", environment.folder], check=True)
    pip = [environment.interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--editable", f"{ROOT}[test]", *environment.packages], check=True)
    stamp.write_text(wanted)


def run_tests(environment: Environment, arguments: list[str]) -> bool:
    print(f"\n--- {environment}", flush=True)
    started = time.monotonic()
    pytest = [environment.interpreter, "-m", "pytest", "-q", *arguments]
    quick = ["-n", "2", "--dist", "worksteal", "-m", "not slow"]
    index = ["-m", "slow", "--shared-processes", "tests/explanations/test_index.py"]  # two processes by itself
    codes = [subprocess.run([*pytest, *quick], cwd=ROOT).returncode]
    if not arguments:  # they choose among the quick tests
        codes.append(subprocess.run([*pytest, *index], cwd=ROOT).returncode)
    print(f"--- {environment.name}: {time.monotonic() - started:.0f} s", flush=True)
    return not any(codes)


def main(arguments: list[str]) -> str | None:
    names = [e.name for e in ENVIRONMENTS if e.name in arguments] or [e.name for e in ENVIRONMENTS]
    pytest_arguments = [a for a in arguments if a not in names]
    present = {}
    for environment in ENVIRONMENTS:
        python = find_python(environment.python)
        if environment.name in names and python is None:
            print(f"left out, as there is no Python {environment.python} here: {environment}")
        elif environment.name in names:
            present[environment] = python
    with ThreadPoolExecutor(2) as pool:  # while one downloads, another unpacks
        list(pool.map(install, present, present.values()))
    failed = [e.name for e in present if not run_tests(e, pytest_arguments)]
    return f"failed: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
