"""README.md cannot rot: its cells run, in order, in one kernel; what it points to exists."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from conftest import cell_errors, cell_text, run_notebook

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^```(?:i?python)\n(.*?)^```$", README, re.M | re.S)
CHECKS = """
import math
assert distances.shape == far.shape == faster.shape == areas.shape == angles.shape
assert np.allclose(distances, far, rtol=1e-3)
exact = (1 - math.cos(1.5)) / 1.5  # the area under sin(1.5 x) from 0 to 1
assert abs(float(areas[-100:].mean()) - exact) < 0.05
assert (faster > distances).mean() > 0.99
"""


@pytest.fixture(scope="module")
def executed():
    return run_notebook([*CELLS, CHECKS]).cells


def cell(executed, start: str):
    return next(c for c in executed if c.source.startswith(start))


@pytest.mark.slow
def test_all_cells_run(executed):
    # UsageError makes no error output
    failed = {c.source: cell_text(c) for c in executed if cell_errors(c) or "UsageError" in cell_text(c)}
    assert not failed


@pytest.mark.slow
def test_they_show_what_the_text_says(executed):
    report = cell_text(cell(executed, "%%parmap angles"))
    assert re.search(r"parmap distance: \w+ on \d+ \w+, 10,000 items, .*compile .*run ", report)
    compared = cell_text(cell(executed, "%parmap distance angles --compare"))
    assert all(re.search(rf"^{name} +\d", compared, re.M) for name in ("vmap", "map", "shard_map", "thread"))
    code = cell_text(cell(executed, "%parmap distance angles --show code"))
    assert "import jax.numpy as jnp" in code and "jaxpar_magic" not in code
    assert "export JAX_NUM_CPU_DEVICES=4" in cell_text(cell(executed, "%jaxdevices  "))


@pytest.mark.slow
def test_pasted_errors_are_explained(executed):
    assert re.search(r"JPX\d{4} .*10.*4", cell_text(cell(executed, "%%jaxexplain")), re.S)
    assert "JPX0104" in cell_text(cell(executed, "message = "))


def test_what_it_points_to_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 5
    missing = [t for t in targets if not t.startswith("https://") and not (ROOT / t).exists()]
    assert not missing


def test_an_index_of_packages_shows_it_without_the_files_beside_it():
    spec = importlib.util.spec_from_file_location("description", ROOT / "tools" / "description.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    hook, metadata = module.Description(str(ROOT), {}), {"urls": project.get("urls", {})}
    hook.update(metadata)
    text = metadata["readme"]["text"]
    assert re.findall(r"\]\((?!https://|#)", text) == []
    assert re.findall(r"^```.*?^```$", text, re.M | re.S) == re.findall(r"^```.*?^```$", README, re.M | re.S)

    source = "![a](docs/a.png) [b](demo.ipynb) [c](https://c.org) [d](#d)\n```sh\n[e](e)\n```\n"
    assert module.description(source, None) == "*Picture: a* b [c](https://c.org) [d](#d)\n```sh\n[e](e)\n```\n"
    linked = module.description(source, "https://host/me/it/")
    assert linked.startswith(
        "![a](https://host/me/it/raw/HEAD/docs/a.png) [b](https://host/me/it/blob/HEAD/demo.ipynb)"
    )


def test_its_pictures_are_small_enough_to_load_at_once():
    images = list((ROOT / "docs" / "images").glob("*"))
    assert images and all(image.stat().st_size < 150_000 for image in images)


def test_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^make (\w+)", README, re.M)
    assert commands and all(re.search(rf"^{name}:", makefile, re.M) for name in commands)


def test_strategies_and_their_names_in_the_code_agree():
    from jaxpar_magic.mapping import strategies

    table = README.split("## Strategies")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    assert named == {"auto", *strategies.NAMES}


def test_versions_are_those_of_the_package():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, text in (("jax", r"JAX ([\d.]+) to"), ("ipython", r"IPython ([\d.]+) to")):
        lowest = re.search(text, README)
        assert lowest and f'"{name}>={lowest[1]}"' in project
    lowest = re.search(r"Python ([\d.]+) to", README)
    assert lowest and f'requires-python = ">={lowest[1]}"' in project
