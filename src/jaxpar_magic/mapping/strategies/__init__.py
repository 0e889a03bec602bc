"""Strategies: how a chunk of items becomes a program. One file each.

To add one, write a file with a `Strategy` whose `prepare(item, layout)` returns an `Executable` (see base.py), and
enter it in `_HOMES` below with a line for the table that users see. The property tests in
tests/mapping/test_strategies.py take their list from here, so a new strategy is tested by being listed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# name -> (module, attribute, in a few words what it does)
_HOMES = {
    "vmap": ("one_device", "VMAP", "vectorised on one device: all items in one program"),
    "map": ("one_device", "MAP", "one item after the other on one device (lax.map)"),
    "jit": ("sharded_jit", "JIT", "inputs sharded over devices, XLA partitions the vmapped program"),
    "shard_map": ("sharded", "SHARD_MAP", "each device maps its own shard of the items"),
    "pmap": ("pmapped", "PMAP", "as shard_map, through jax.pmap"),
    "thread": ("threaded", "THREAD", "Python threads, each mapping its part; needs no device count"),
    "process": ("process", None, "worker processes run the function as plain Python"),
    "serial": ("serial", None, "a plain Python loop"),
    "cluster": ("", None, "engines of a cluster (%jaxcluster), each mapping chunks on its own devices"),
}

NAMES = tuple(_HOMES)
PYTHON = ("process", "serial")  # run the function as it is, untraced
ELSEWHERE = ("cluster",)  # run on other machines, by who has registered for it (see ../elsewhere.py)
LOCAL = tuple(name for name in NAMES if name not in ELSEWHERE)
TRACED = tuple(name for name in LOCAL if name not in PYTHON)
FALLING_BACK = ("auto", *ELSEWHERE)  # run plain Python where a function cannot be traced
MULTI_DEVICE = ("jit", "shard_map", "pmap")
ONE_LINERS = {name: text for name, (_, _, text) in _HOMES.items()}


def get(name: str) -> Any:
    """The traced strategy of that name."""
    module, attribute, _ = _HOMES[name]
    return getattr(import_module(f".{module}", __name__), str(attribute))
