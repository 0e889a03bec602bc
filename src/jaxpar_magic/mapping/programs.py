"""Programs: lowered and compiled once per program text, reused by every cell that means the same."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

# Compiled programs kept. A notebook has a few dozen at most; each holds its code and no user data.
MAX_PROGRAMS = 128


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes
    ----------
    call: (mapped, shared) lists of placed arrays → list of output arrays with a leading axis of items.
    seconds: what lowering and compiling took now; 0-ish when reused.
    reused: the program was compiled before.
    held_bytes: memory of its inputs, outputs and temporary space on each device; 0 if unknown.
    text: its StableHLO.
    """

    call: Callable[[list, list], list]
    seconds: float
    reused: bool
    held_bytes: int
    text: str


_programs: OrderedDict[Any, Any] = OrderedDict()


def compile_program(
    function: Callable[[list, list], list],
    mapped: Sequence[jax.ShapeDtypeStruct],
    shared: Sequence[jax.ShapeDtypeStruct],
    *,
    devices: Sequence[Any],
    in_shardings: Any = None,
    jit: Callable | None = None,
) -> Compiled:
    """Lower `function` and compile it, or take the compiled program of the same text.

    The StableHLO text of an unchanged function is the same although the function object is new, and differs as soon
    as anything that matters has changed, so a program found by its text is never stale. (Python callbacks are the
    exception, and are never found.)

    Parameters
    ----------
    function: takes two lists of arrays.
    mapped, shared: shapes and dtypes of these arrays.
    devices: devices that the program runs on, part of its identity.
    in_shardings: (for mapped, for shared) or None for the default device.
    jit: `jax.jit` by default; `jax.pmap` with its options for the pmap strategy.
    """
    __tracebackhide__ = True
    begin = time.perf_counter()
    if jit is not None:
        staged = jit(function)
    elif in_shardings is None:
        staged = jax.jit(function)
    else:
        staged = jax.jit(function, in_shardings=in_shardings)
    lowered = staged.lower(list(mapped), list(shared))
    text = lowered.as_text()
    # The arguments are part of the key: unused ones are not in the text, but are checked at each call.
    shapes = tuple((a.shape, a.dtype) for a in (*mapped, *shared))
    key = (hashlib.sha256(text.encode()).digest(), len(mapped), shapes, tuple(devices), str(in_shardings))
    # The text refers to Python callbacks by number only: programs that call back are never shared.
    shareable = "callback" not in text
    compiled = _programs.get(key) if shareable else None
    reused = compiled is not None
    if compiled is None:
        compiled = lowered.compile()
    if shareable:
        _programs[key] = compiled
        _programs.move_to_end(key)
        while len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    return Compiled(compiled, time.perf_counter() - begin, reused, _held_bytes(compiled), text)


def forget_programs_of_other(devices: set[Any]) -> None:
    """Drop the programs of devices that are not among `devices`."""
    for key in [k for k in _programs if not set(k[3]) <= devices]:
        del _programs[key]


def _held_bytes(compiled: Any) -> int:
    try:
        analysis = compiled.memory_analysis()
    except Exception:  # the analysis is optional for a backend, and each fails in its own way
        return 0
    kinds = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
    return sum(int(getattr(analysis, kind, 0) or 0) for kind in kinds)
