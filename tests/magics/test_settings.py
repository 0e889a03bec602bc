"""`%config JaxparMagics`, ipython_config.py and environment variables: what is set, and what a bad value does."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from conftest import cell_errors, cell_text, run_notebook
from traitlets.config import Config

from jaxpar_magic.errors import OptionError
from jaxpar_magic.magics.settings import JaxparMagics


@pytest.fixture
def loaded(shell):
    """Load the extension with a config; its settings."""

    def load(**config):
        shell.config.merge(Config(JaxparMagics=config))
        shell.run_line_magic("load_ext", "jaxpar_magic")
        return next(c for c in shell.configurables if isinstance(c, JaxparMagics))

    yield load
    shell.run_line_magic("unload_ext", "jaxpar_magic")


GOOD = [
    ("strategy", "shard_map", "shard_map"),
    ("devices", 2, 2),
    ("devices", "3", 3),
    ("devices", "all", None),
    ("memory", "1.5GiB", "1.5GiB"),
    ("memory", "50%", "50%"),
    ("memory", 4096, 4096),
    ("memory", "None", None),
    ("explanations", "off", "off"),
    ("progress_delay", 0, 0.0),
    ("progress_delay", "0.5", 0.5),
    ("progress_delay", "inf", math.inf),
    ("progress_delay", 1e300, math.inf),
]
DEFAULTS = {"strategy": "auto", "devices": None, "memory": None, "explanations": "auto", "progress_delay": 2.0}
BAD = [
    ("strategy", "vmpa", "not one of auto, vmap, .*Did you mean 'vmap'"),
    ("strategy", ["vmap"], "not one of"),
    ("devices", "0", "whole number from 1 on"),
    ("devices", 1.5, "whole number"),
    ("devices", True, "whole number"),
    ("memory", "2 apples", "needs bytes, such as 2GB"),
    ("memory", "0", "needs bytes"),
    ("memory", True, "needs bytes"),
    ("explanations", "ful", "not one of auto, brief, full, off. Did you mean 'full'"),
    ("progress_delay", "-1", "seconds, a number from 0 on"),
    ("progress_delay", "soon", "seconds"),
    ("progress_delay", math.nan, "seconds"),
    ("progress_delay", None, "seconds"),
    ("progress_delay", True, "seconds"),
]


@pytest.mark.parametrize(("name", "value", "kept"), GOOD)
def test_values_that_can_be_used(loaded, name, value, kept):
    settings = loaded(**{name: value})  # as in ipython_config.py
    assert getattr(settings, name) == kept
    setattr(settings, name, value)
    assert getattr(settings, name) == kept


@pytest.mark.parametrize(("name", "value", "why"), BAD)
def test_values_that_cannot_be_used(loaded, capsys, name, value, why):
    settings = loaded(**{name: value})
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"jaxpar_magic: c.JaxparMagics.{name} = {value!r} is ignored: ")
    default = getattr(settings, name)
    assert default == DEFAULTS[name]
    with pytest.raises(OptionError, match=f"JaxparMagics.{name} = .*{why}") as caught:
        setattr(settings, name, value)
    assert "\n" not in str(caught.value)
    assert getattr(settings, name) == default


@pytest.mark.parametrize(("name", "value", "kept"), [case for case in GOOD if isinstance(case[1], str)])
def test_environment_variables(loaded, monkeypatch, name, value, kept):
    monkeypatch.setenv(f"JAXPAR_{name.upper()}", value)
    other = {"strategy": "serial", "devices": 1, "memory": "1GB", "explanations": "full", "progress_delay": 9}[name]
    assert getattr(loaded(**{name: other}), name) == kept  # goes before the file


@pytest.mark.parametrize(("name", "value", "why"), [case for case in BAD if isinstance(case[1], str)])
def test_bad_environment_variables(loaded, monkeypatch, capsys, name, value, why):
    monkeypatch.setenv(f"JAXPAR_{name.upper()}", value)
    settings = loaded()
    said = capsys.readouterr().err
    assert said.startswith(f"jaxpar_magic: JAXPAR_{name.upper()}={value} is ignored: ") and said.count("\n") == 1
    assert getattr(settings, name) == DEFAULTS[name]


def test_blank_variables_are_none(loaded, monkeypatch, capsys):
    monkeypatch.setenv("JAXPAR_STRATEGY", " ")
    assert loaded().strategy == "auto"
    assert capsys.readouterr().err == ""


def test_config_lists_them_with_help(loaded, shell, capsys):
    loaded()
    shell.run_cell("%config")
    assert "JaxparMagics" in capsys.readouterr().out
    shell.run_cell("%config JaxparMagics")
    listed = " ".join(capsys.readouterr().out.split())
    for name, trait in JaxparMagics.class_traits(config=True).items():
        assert f"JaxparMagics.{name}=<Setting> {trait.help} Current: " in listed
    shell.run_cell("%config JaxparMagics.strategy = 'vmpa'")
    assert shell.run_cell("%config JaxparMagics.strategy").result == "auto"


def test_the_readme_tells_all_of_them():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| `(JAXPAR_\w+)` \|", readme, re.M)
    assert sorted(told) == [(name, f"JAXPAR_{name.upper()}") for name in sorted(JaxparMagics.class_traits(config=True))]


def test_gone_after_unloading_and_fresh_after_loading(loaded, shell):
    loaded().strategy = "serial"
    shell.run_line_magic("unload_ext", "jaxpar_magic")
    assert not [c for c in shell.configurables if isinstance(c, JaxparMagics)]
    assert loaded().strategy == "auto"


def test_what_they_do_in_a_kernel():
    setup = "%load_ext jaxpar_magic\nimport numpy as np, jax\nxs = np.arange(6, dtype=np.float32)"
    fail = "jax.pmap(lambda x: x)(xs)"
    cells = [
        setup,
        "%parmap (lambda x: x) xs -o ys",
        "%parmap (lambda x: x) xs -o ys -s thread -d 1",
        "%config JaxparMagics.strategy = 'shard_map'",
        "%parmap (lambda x: x) xs -o ys",
        "%config JaxparMagics.memory = '10B'",
        "%parmap (lambda x: x) xs -q",
        "%parmap (lambda x: x) xs -q --noresult --memory 1GB",
        "%parmap (lambda x: x) xs -q --noresult -s serial",
        "%parmap (lambda x: x) xs --memory 1GB --compare vmap,serial",
        fail,
        fail + "  # again",
        "%config JaxparMagics.explanations = 'brief'",
        fail + "  # brief",
        "%config JaxparMagics.explanations = 'ful'",
        "%jaxexplain --off",
        fail + "  # off",
    ]
    env = {"JAXPAR_STRATEGY": "map", "JAXPAR_DEVICES": "1", "JAXPAR_PROGRESS_DELAY": "x"}
    shown = run_notebook(cells, env=env).cells
    assert cell_text(shown[0]).startswith("jaxpar_magic: JAXPAR_PROGRESS_DELAY=x is ignored: needs seconds")
    assert not cell_errors(shown[0])
    starts = [cell_text(shown[i]).split(",")[0] for i in (1, 2, 4)]
    assert starts == ["parmap: map on 1 device", "parmap: thread on 1 thread", "parmap: shard_map on 1 device"]
    assert "memory" in cell_text(shown[6]) and cell_errors(shown[6])
    assert shown[7].outputs == shown[8].outputs == []
    assert "serial" in cell_text(shown[9]) and "could not run" not in cell_text(shown[9])
    full = ["At that line" in cell_text(shown[i]) for i in (10, 11, 13)]
    assert full == [False, True, False]
    assert "JPX0104" in cell_text(shown[10])
    mistake = cell_text(shown[14]).strip()
    assert "Did you mean 'full'?" in mistake and "\n" not in mistake and "Traceback" not in mistake
    assert [o.output_type for o in shown[16].outputs] == ["error"]
