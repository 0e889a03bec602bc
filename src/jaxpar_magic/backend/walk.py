"""Names for what a user's namespace holds: variables, and what lies in their containers and attributes."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

_DEPTH = 4  # levels below a variable: `model.layers[0].params["w"]`
_MOST_ITEMS = 1_000  # of one container; a longer one is named by its first items
_MOST_VISITS = 50_000  # in all, so that an inspection stays quick
_NEVER = (ModuleType, type, str, bytes, int, float, complex, range, type(None))
_COLLECTIONS = (list, set, frozenset)
# IPython's own names for inputs and outputs; what they hold has a name of its own, or is forgotten.
_HISTORY = {"In", "Out", "exit", "quit", "get_ipython"}


def walk(namespace: Mapping[str, Any], wanted: tuple[type, ...]) -> Iterator[tuple[str, str, Any]]:
    """Yield (variable, path, object) for each object of a wanted type; path is how the user would write it.

    Looks into lists, tuples, sets, dicts, object arrays, attributes (`vars`), what functions capture and
    what partials hold. Runs no code of the user's: no property is read, no `__getattr__` called.
    """
    seen: set[int] = set()
    visits = 0
    for variable, value in list(namespace.items()):
        if variable.startswith("_") or variable in _HISTORY:
            continue
        pending = deque([(variable, value, 0)])
        while pending and visits < _MOST_VISITS:
            path, found, depth = pending.popleft()
            visits += 1
            kind = type(found)  # `isinstance` would ask a proxy for its `__class__`, which may load something
            if issubclass(kind, _NEVER):
                continue
            if issubclass(kind, wanted):
                yield variable, path, found
            elif depth < _DEPTH and id(found) not in seen:
                seen.add(id(found))  # a container in itself, or one that two variables share
                pending += [(path + step, inner, depth + 1) for step, inner in _inside(found)]


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What lies directly in a value. Reads it through the built-in types' own methods, never the user's."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, inner in _first(dict.items(value)):
            yield f"[{key!r}]" if type(key) in (str, int, float, bool) else "[…]", inner
    elif issubclass(kind, tuple):
        fields = getattr(kind, "_fields", ())  # of a named tuple
        for i, inner in enumerate(_first(tuple.__iter__(value))):
            yield (f".{fields[i]}" if i < len(fields) else f"[{i}]"), inner
    elif issubclass(kind, _COLLECTIONS):
        collection = next(base for base in _COLLECTIONS if issubclass(kind, base))
        for i, inner in enumerate(_first(collection.__iter__(value))):
            yield f"[{i}]", inner
    elif issubclass(kind, functools.partial):
        yield " (partial)", (value.func, *value.args, *value.keywords.values())
    elif issubclass(kind, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                yield f" (captures {name})", cell.cell_contents
            except ValueError:  # a variable that has no value yet
                continue
    elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        if value.dtype.hasobject:
            for i, inner in enumerate(_first(value.flat)):
                yield f".flat[{i}]", inner
    else:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        for name, inner in _first(attributes.items()):
            # a jitted function keeps the user's function here
            yield ("" if name == "__wrapped__" else f".{name}"), inner


def _first(items: Iterable[Any]) -> list[Any]:
    return list(islice(items, _MOST_ITEMS))  # at once: another thread may change the container
