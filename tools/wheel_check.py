"""Install the wheel, then the sdist, of a folder into an empty environment and use each from an empty folder.

Usage: python3 tools/wheel_check.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Runs in the empty environment: nothing of the source tree is within its reach.
SMOKE = """
import contextlib
import importlib.metadata
import io
import pathlib
import sys

from IPython.core.interactiveshell import InteractiveShell

import jaxpar_magic

home = pathlib.Path(jaxpar_magic.__file__).parent
assert pathlib.Path(sys.prefix) in home.parents, f"not the installed package: {home}"
assert importlib.metadata.version("jaxpar-magic") == jaxpar_magic.__version__
assert (home / "py.typed").exists()
description = importlib.metadata.metadata("jaxpar-magic").get_payload()
assert "# jaxpar-magic" in description and "](docs/" not in description, "links that an index of packages cannot follow"
pages = list(home.glob("explanations/index/*.md"))
assert pages, "no pages of the error index in the wheel"

shell = InteractiveShell.instance()


def run(cell):
    shell.run_cell(cell).raise_error()


run("%load_ext jaxpar_magic")
assert "jax" not in sys.modules, "loading imported jax"
run("%jaxdevices 2 -q")
run("import numpy as np; xs = np.arange(5.0)")
run("%%parmap xs -s shard_map -o out -q\\ndef square(x):\\n    return x**2\\n")
assert shell.user_ns["out"].tolist() == [0, 1, 4, 9, 16], shell.user_ns["out"]
run("process = %parmap square xs -s process --quiet")
assert list(map(float, shell.user_ns["process"])) == [0, 1, 4, 9, 16], shell.user_ns["process"]
with contextlib.redirect_stdout(io.StringIO()) as listed:
    run("%jaxexplain --list")
assert "JPX0104" in listed.getvalue(), "no list of the error index"
run("%unload_ext jaxpar_magic")
print(f"the installed package works: {len(pages)} pages in the index")
"""


def main(dist: str) -> None:
    (wheel,) = (ROOT / dist).glob("*.whl")
    (sdist,) = (ROOT / dist).glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        environment, empty = Path(folder, "environment"), Path(folder, "empty")
        empty.mkdir()
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        python = environment / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for package, how in ((wheel, []), (sdist, ["--force-reinstall", "--no-deps"])):
            print(f"installing {package.name} into an environment of its own", flush=True)
            subprocess.run([*pip, *how, package], check=True)
            # Not a file: worker processes would import it again as their main module.
            if subprocess.run([python, "-I", "-c", SMOKE], cwd=empty).returncode != 0:
                sys.exit(f"{package.name} is installed but does not work")


if __name__ == "__main__":
    main(*sys.argv[1:])
