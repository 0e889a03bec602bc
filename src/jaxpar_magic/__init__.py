"""Parallel maps with JAX in notebooks: `%load_ext jaxpar_magic`, or the same as Python functions.

>>> from jaxpar_magic import devices, parmap, explain      # doctest: +SKIP

Importing this package, and loading the extension, imports neither jax nor numpy nor rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import cluster
    from .backend import devices
    from .explanations import explain
    from .mapping import Comparison, MapReport, last_report, parmap

__version__ = "0.1.0"

# public name -> the module that defines it, imported at first use
_HOMES = {
    "devices": ".backend",
    "parmap": ".mapping",
    "last_report": ".mapping",
    "MapReport": ".mapping",
    "Comparison": ".mapping",
    "explain": ".explanations",
}

__all__ = ["Comparison", "MapReport", "__version__", "cluster", "devices", "explain", "last_report", "parmap"]


def __getattr__(name: str) -> Any:
    if name == "cluster":
        return import_module(".cluster", __name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "cluster"})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext jaxpar_magic`."""
    from .magics.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext jaxpar_magic`: the shell is as it was before loading."""
    from .magics.extension import unload

    unload(shell)
