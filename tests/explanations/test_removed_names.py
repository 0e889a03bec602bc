"""removed_names.toml against the installed JAX: what it calls removed is absent, and successors are there."""

from __future__ import annotations

import importlib
import re
import warnings

import pytest

from jaxpar_magic import _jax
from jaxpar_magic.explanations import explain
from jaxpar_magic.explanations.rules.removed_api import _is_name, _table


def version(text):
    return tuple(map(int, text.split(".")))


def has(name):
    """Whether the dotted name is there, as a module or as an attribute."""
    parts = name.split(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:length]))
            except ImportError:
                continue
            try:
                for part in parts[length:]:
                    found = getattr(found, part)
            except AttributeError:
                return False
            return True
    return False


REMOVED = [
    (module, name, *entry)
    for module, names in _table()["removed"].items()
    for name, entry in names.items()
    if module != "jax.Array"
]


def test_removed_names_are_absent_exactly_since_their_version():
    mine = _jax.jax_version()
    wrong = [
        (f"{module}.{name}", since)
        for module, name, since, *_ in REMOVED
        if has(f"{module}.{name}") == (mine >= version(since))
    ]
    assert not wrong


def test_removed_array_attributes_are_absent():
    import jax.numpy as jnp

    x = jnp.ones(2)
    assert not [name for name in _table()["removed"]["jax.Array"] if hasattr(x, name)]


def test_successors_exist():
    """Of names that are gone in this JAX; a successor may be younger than an older JAX that still has the old."""
    mine = _jax.jax_version()
    missing = [
        use
        for _, _, since, use, *_ in REMOVED
        if mine >= version(since) and _is_name(use) and use.startswith("jax.") and not has(use)
    ]
    assert not missing


def test_added_names_are_there_exactly_since_their_version():
    mine = _jax.jax_version()
    wrong = []
    for module, names in _table()["added"].items():
        for name, since in names.items():
            gone = _table()["removed"].get(module, {}).get(name)
            expected = mine >= version(since) and (gone is None or mine < version(gone[0]))
            if has(f"{module}.{name}") != expected:
                wrong.append((f"{module}.{name}", since))
    assert not wrong


@pytest.mark.parametrize(("module", "name", "since"), [entry[:3] for entry in REMOVED[::5]])
def test_every_wording_is_explained(module, name, since):
    for text in (
        f"AttributeError: module '{module}' has no attribute '{name}'",
        f"ImportError: cannot import name '{name}' from '{module}' (/venv/lib/python3.12/site-packages/jax/x.py)",
        f"ModuleNotFoundError: No module named '{module}.{name}'",
        f"AttributeError: {module}.{name} was removed in JAX v{since}.",
    ):
        explanation = explain(text)
        assert explanation is not None and explanation.code == "JPX1801"
        assert since in explanation.what and f"{module}.{name}" in explanation.what


def test_the_library_that_asks_is_named():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 1, in <module>\n    import somelib\n'
        '  File "/venv/lib/python3.12/site-packages/somelib/__init__.py", line 3, in <module>\n'
        "    from jax import linear_util as lu\n"
        "ImportError: cannot import name 'linear_util' from 'jax' (/venv/lib/python3.12/site-packages/jax/__init__.py)"
    )
    explanation = explain(text)
    assert explanation.code == "JPX1801" and explanation.facts["library"] == "somelib"
    assert explanation.fixes[0].code == "!pip install --upgrade somelib"


def test_other_packages_are_not_jax():
    assert explain("AttributeError: module 'jaxtyping' has no attribute 'tree_map'") is None
    assert (
        explain("ImportError: cannot import name 'tree_map' from 'mylib.jax' (/home/me/mylib/jax/__init__.py)") is None
    )
    assert explain("ModuleNotFoundError: No module named 'jaxopt'") is None


def test_arguments_have_a_successor_that_is_an_argument():
    for function, arguments in _table()["arguments"].items():
        for old, (since, new, *_) in arguments.items():
            assert re.fullmatch(r"\d+\.\d+\.\d+", since) and new != old, function
