"""What a function reads from outside: globals, closure cells, defaults, and those of the functions it calls.

Serves three ends: noticing that a global has changed since a program was traced, naming a captured array that
is large or cannot be pickled, and finding containers or generators that change while a function is traced.
"""

from __future__ import annotations

import dis
import enum
import functools
import sys
import sysconfig
import types
import weakref
import zlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

# Arrays up to this size are compared by content at each call (0.1 ms); larger ones make the caller trace anew.
_COMPARED_BYTES = 1 << 18
_COMPARED_ELEMENTS = 1000


@dataclass
class Captured:
    """What was found by following a function.

    Attributes
    ----------
    values: name → value, for all that is not a function, module or library object.
    assigned: names that the function declares `global` and assigns.
    functions: the plain functions reached, the given one first.
    jitted: jitted functions reached (their traces are cached by JAX under the function's identity).
    namespaces: name → the globals dict it was read from.
    """

    values: dict[str, Any] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    functions: list[types.FunctionType] = field(default_factory=list)
    jitted: list[Any] = field(default_factory=list)
    namespaces: dict[str, dict] = field(default_factory=dict)
    fixed: list[Any] = field(default_factory=list)


@functools.lru_cache(maxsize=512)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Global names that a code object, or one nested in it, loads and stores."""
    loads, stores = [], []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loads.append(instruction.argval)
        elif instruction.opname == "STORE_GLOBAL":
            stores.append(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_loads, inner_stores = _names(constant)
            loads.extend(inner_loads)
            stores.extend(inner_stores)
    return tuple(dict.fromkeys(loads)), tuple(dict.fromkeys(stores))


_LIBRARY_FOLDERS = tuple(
    dict.fromkeys(
        folder for key in ("stdlib", "platstdlib", "purelib", "platlib") if (folder := sysconfig.get_paths().get(key))
    )
)


@functools.lru_cache(maxsize=2048)
def is_library(module_name: str | None) -> bool:
    """Whether a module is installed (or part of Python), so that nobody edits it between two cells."""
    if module_name is None or module_name == "__main__":
        return False
    top = module_name.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "jaxpar_magic":
        return True
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if file is None:
        # A namespace package or extension module: judged by its top-level package.
        return module is not None and top != module_name and is_library(top)
    return file.startswith(_LIBRARY_FOLDERS) or "site-packages" in file or "dist-packages" in file


def _home(function: Any) -> str | None:
    """The module whose code a function is. `__module__` will not do: functools.wraps copies it."""
    function = unwrap(function)
    space = getattr(function, "__globals__", None)
    return space.get("__name__") if space is not None else getattr(function, "__module__", None)


def _cells(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Name and value of each filled closure cell."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or ())
    found = []
    for name, cell in pairs:
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # the cell is not filled yet
            continue
    return found


def is_jitted(value: Any) -> bool:
    """Whether `value` is what `jax.jit` returns."""
    return callable(value) and hasattr(value, "__wrapped__") and hasattr(value, "clear_cache")


def unwrap(function: Callable) -> Callable:
    """The Python function behind `jax.jit` and `functools.partial`."""
    while is_jitted(function) or isinstance(function, functools.partial):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__  # type: ignore[attr-defined]
    return function


def captured(function: Callable) -> Captured:
    """Follow `function` and the user's functions that it reaches. Library code is not entered."""
    found = Captured()
    seen: set[int] = set()
    queue: list[tuple[str, Any, dict | None]] = [(getattr(function, "__name__", "function"), function, None)]
    while queue:
        name, value, namespace = queue.pop()
        if id(value) in seen:
            continue
        if is_jitted(value):
            seen.add(id(value))
            if is_library(_home(value.__wrapped__)):  # jnp.where and its like
                found.fixed.append(value)
                continue
            found.jitted.append(value)
            queue.append((name, value.__wrapped__, None))
        elif isinstance(value, functools.partial):
            seen.add(id(value))
            queue.append((name, value.func, None))
            for i, argument in enumerate(value.args):
                queue.append((f"argument {i} of partial {name}", argument, None))
            for key, argument in value.keywords.items():
                queue.append((key, argument, None))
        elif isinstance(value, types.MethodType):
            queue.append((name, value.__func__, None))
            queue.append((f"self of {name}", value.__self__, None))
        elif isinstance(value, types.FunctionType):
            seen.add(id(value))
            if is_library(_home(value)):
                found.fixed.append(value)
                # jax.vmap(f), jax.grad(f): the user's function is in the closure, among JAX's own things
                queue.extend((n, v, None) for n, v in _cells(value) if callable(v) and not isinstance(v, type))
                continue
            found.functions.append(value)
            loads, stores = _names(value.__code__)
            found.assigned.update(stores)
            space = value.__globals__
            for loaded in loads:
                if loaded in space:
                    queue.append((loaded, space[loaded], space))
            for stored in stores:
                found.namespaces[stored] = space
            queue.extend((n, v, None) for n, v in _cells(value))
            defaults = value.__defaults__ or ()
            if defaults:
                parameters = value.__code__.co_varnames[: value.__code__.co_argcount]
                queue.extend((p, d, None) for p, d in zip(parameters[-len(defaults) :], defaults))
            queue.extend((k, d, None) for k, d in (value.__kwdefaults__ or {}).items())
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType | type):
            seen.add(id(value))
            found.fixed.append(value)
        elif callable(value) and type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
            seen.add(id(value))
            found.fixed.append(value)
            for attribute in ("__wrapped__", "jvp", "fwd", "bwd"):  # custom_jvp, custom_vjp
                if (inner := getattr(value, attribute, None)) is not None:
                    queue.append((name, inner, None))
        else:
            # A value may be reached under two names; both are kept, so nothing is marked as seen.
            if name in found.values and found.values[name] is not value:
                name = f"{name} ({id(value):x})"
            found.values[name] = value
            if namespace is not None:
                found.namespaces[name] = namespace
    return found


class CannotCompare(Exception):
    """A captured value that may change unnoticed: an object with state, a large numpy array."""


@dataclass(frozen=True)
class Fingerprint:
    """A cheap comparison of all that a function captured; equal fingerprints mean an equal trace."""

    token: Hashable
    alive: tuple[weakref.ref, ...] = field(compare=False, default=())

    def still_valid(self) -> bool:
        # jax arrays are immutable, so identity decides, as long as the id was not given to another object
        return all(reference() is not None for reference in self.alive)


def fingerprint(found: Captured) -> Fingerprint | None:
    """The fingerprint of what `captured` found, or None if some value could change unnoticed."""
    alive: list[weakref.ref] = []
    try:
        tokens = tuple((name, token(value, alive, 0)) for name, value in sorted(found.values.items(), key=_first))
        fixed = tuple(_fixed_token(value) for value in found.fixed)
    except CannotCompare:
        return None
    if any(_reads_elsewhere(f) for f in found.functions):
        return None
    codes = tuple(f.__code__ for f in found.functions)
    return Fingerprint((codes, tokens, fixed), tuple(alive))


# Names through which a function reads what following its globals does not show.
_ELSEWHERE = frozenset(
    ("environ", "getenv", "open", "globals", "locals", "vars", "eval", "exec", "__import__", "import_module")
)


@functools.lru_cache(maxsize=512)
def _code_reads_elsewhere(code: types.CodeType) -> bool:
    codes = [code]
    while codes:
        code = codes.pop()
        codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
        if not _ELSEWHERE.isdisjoint(code.co_names):
            return True
        imports = (i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME")
        if not all(is_library(name) for name in imports):
            return True
    return False


def _reads_elsewhere(function: types.FunctionType) -> bool:
    """Whether it reads files, the environment, its own attributes, or modules that it imports itself."""
    return _code_reads_elsewhere(function.__code__) or any(name != "__wrapped__" for name in vars(function))


def _first(pair):
    return pair[0]


def _fixed_token(value: Any) -> Hashable:
    if isinstance(value, types.ModuleType) and not is_library(value.__name__):
        raise CannotCompare(value.__name__)  # the user's own module may be edited and reloaded
    if isinstance(value, type) and not is_library(value.__module__):
        raise CannotCompare(value.__name__)
    return id(value)


_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), enum.Enum, range, slice)


def token(value: Any, alive: list[weakref.ref], depth: int = 0) -> Hashable:
    """A hashable that changes whenever `value` does. Raises CannotCompare where that cannot be promised."""
    numpy = sys.modules.get("numpy")
    jax = sys.modules.get("jax")
    if isinstance(value, _PLAIN):
        # repr tells 0.0 from -0.0 and NaN is equal to itself
        return (type(value), repr(value) if isinstance(value, float | complex | slice) else value)
    if jax is not None and isinstance(value, jax.Array):
        alive.append(weakref.ref(value))
        return ("jax", id(value))
    if numpy is not None:
        if isinstance(value, numpy.generic | numpy.dtype):
            return (type(value), repr(value))
        if isinstance(value, numpy.ndarray) and value.dtype != object and value.nbytes <= _COMPARED_BYTES:
            data = numpy.ascontiguousarray(value).view(numpy.uint8) if value.size else b""
            return ("numpy", value.shape, str(value.dtype), zlib.crc32(data), zlib.adler32(data))
    if depth < 4 and isinstance(value, tuple | list) and len(value) <= _COMPARED_ELEMENTS:
        return (type(value), tuple(token(v, alive, depth + 1) for v in value))
    if depth < 4 and isinstance(value, dict) and len(value) <= _COMPARED_ELEMENTS:
        return (
            type(value),
            tuple((token(k, alive, depth + 1), token(v, alive, depth + 1)) for k, v in value.items()),
        )
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type | functools.partial):
        # inside a container: followed one level only, by what it captured
        inner = fingerprint(captured(value))
        if inner is None:
            raise CannotCompare(repr(value))
        alive.extend(inner.alive)
        return ("function", inner.token)
    raise CannotCompare(type(value).__name__)


def changed_names(before: Fingerprint, after: Fingerprint) -> list[str]:
    """Names whose captured value differs between two fingerprints of one function."""
    old, new = dict(before.token[1]), dict(after.token[1])  # type: ignore[index]
    return [name for name, token in new.items() if name in old and old[name] != token]
