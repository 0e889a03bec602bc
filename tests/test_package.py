"""What the package offers: its names, its version, its examples."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from importlib.metadata import version

import pytest

import jaxpar_magic

MODULES = ["jaxpar_magic", *(m.name for m in pkgutil.walk_packages(jaxpar_magic.__path__, "jaxpar_magic."))]


def test_public_names_resolve_and_are_documented():
    for name in jaxpar_magic.__all__:
        value = getattr(jaxpar_magic, name)
        assert name in dir(jaxpar_magic)
        assert name == "__version__" or value.__doc__
    assert len(set(jaxpar_magic.__all__)) == len(jaxpar_magic.__all__)


def test_another_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'jaxpar_magic' has no attribute 'pramap'"):
        jaxpar_magic.pramap  # noqa: B018
    assert not hasattr(jaxpar_magic, "__wrapped__")


def test_version_is_the_installed_one():
    assert version("jaxpar-magic") == jaxpar_magic.__version__


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_examples_in_docstrings_are_true(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
