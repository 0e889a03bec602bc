"""What happens once while a function is traced, though its author thinks it happens once per item.

Drawing from `np.random` or `random`, printing, appending to a list, assigning a global: JAX runs the Python code
once, for all items together. This module notices such things and says so.
"""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

import jax
import numpy as np

from .captured import Captured, is_library

# Captured arrays up to this size are compared by content before and after.
_WATCHED_BYTES = 1 << 20


class _CountingStream:
    """Stands in for `sys.stdout` while tracing: passes everything on and counts what is written."""

    def __init__(self, stream: Any):
        self._stream = stream
        self.written = 0

    def write(self, text: str) -> int:
        self.written += len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TraceWatch:
    """Context manager around the tracing of a function; `notes()` afterwards.

    Examples
    --------
    >>> from jaxpar_magic.mapping.captured import captured
    >>> def noisy(x):
    ...     return x + np.random.normal()
    >>> with TraceWatch(captured(noisy)) as watch:
    ...     _ = noisy(1.0)
    >>> watch.notes()[0][:33]
    'np.random was drawn from once, wh'
    """

    def __init__(self, found: Captured):
        self._found = found
        self._containers = {n: v for n, v in found.values.items() if isinstance(v, list | dict | set)}
        self._arrays = {
            n: v
            for n, v in found.values.items()
            if isinstance(v, np.ndarray) and 0 < v.nbytes <= _WATCHED_BYTES and v.dtype != object and v.flags.writeable
        }
        self._objects = {
            n.removeprefix("self of "): v
            for n, v in found.values.items()
            if hasattr(v, "__dict__") and not isinstance(v, jax.Array)
        }
        self._objects |= {v.__name__: v for v in found.fixed if isinstance(v, type) and not is_library(v.__module__)}
        kinds = (np.random.Generator, np.random.RandomState, random.Random)
        self._generators = {n: v for n, v in found.values.items() if isinstance(v, kinds)}

    def __enter__(self) -> TraceWatch:
        self._numpy_state = _legacy_state(np.random.get_state(legacy=False))
        self._python_state = hash(random.getstate())
        self._generator_states = {n: _generator_state(g) for n, g in self._generators.items()}
        self._sizes = {n: len(c) for n, c in self._containers.items()}
        self._arrays_before = {n: _content(a) for n, a in self._arrays.items()}
        self._attributes_before = {n: _attributes(o) for n, o in self._objects.items()}
        self._made: list[str] = []
        self._default_rng = np.random.default_rng

        def default_rng(*args: Any, **kwargs: Any) -> Any:
            self._made.append("np.random.default_rng")
            return self._default_rng(*args, **kwargs)

        np.random.default_rng = default_rng
        self._assigned = {n: id(self._found.namespaces.get(n, {}).get(n)) for n in self._found.assigned}
        self._stdout = sys.stdout
        self._counter = _CountingStream(sys.stdout)
        sys.stdout = self._counter  # type: ignore[assignment]
        return self

    def __exit__(self, *exception: object) -> None:
        np.random.default_rng = self._default_rng
        if sys.stdout is self._counter:  # the function may have put its own in place
            sys.stdout = self._stdout
        self._drawn = []
        if _legacy_state(np.random.get_state(legacy=False)) != self._numpy_state:
            self._drawn.append("np.random")
        if hash(random.getstate()) != self._python_state:
            self._drawn.append("random")
        self._drawn += [n for n, g in self._generators.items() if _generator_state(g) != self._generator_states[n]]
        self._drawn += dict.fromkeys(self._made)
        changed = [n for n, a in self._arrays.items() if _content(a) != self._arrays_before[n]]
        for n, o in self._objects.items():
            after = _attributes(o)
            changed += [f"{n}.{a}" for a, v in after.items() if self._attributes_before[n].get(a) != v]
        self._grown = changed + [n for n, c in self._containers.items() if len(c) != self._sizes[n]]
        self._rebound = [n for n, old in self._assigned.items() if id(self._found.namespaces.get(n, {}).get(n)) != old]

    def notes(self) -> list[str]:
        """One line per thing that happened once."""
        lines = [
            f"{name} was drawn from once, while tracing: every item got the same numbers; "
            "use --key SEED with jax.random, or -s process"
            for name in self._drawn
        ]
        lines += [
            f"{name} was changed once, while tracing, not once per item: return the value instead, or use -s serial"
            for name in [*self._grown, *self._rebound]
        ]
        if self._counter.written:
            lines.append("print ran once, while tracing, not once per item: use jax.debug.print, or -s serial")
        return lines


def _content(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def _attributes(value: Any) -> dict[str, int]:
    return {name: id(v) for name, v in vars(value).items() if not name.startswith("__")}


def _legacy_state(state: Any) -> tuple:
    inner = state["state"]
    return (inner["pos"], inner["key"].tobytes(), state.get("has_gauss"), state.get("gauss"))


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _legacy_state(generator.get_state(legacy=False))
    return hash(generator.getstate())
