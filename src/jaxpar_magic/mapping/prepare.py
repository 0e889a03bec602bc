"""A map made ready: traced, planned, compiled; or found all that done for an earlier call."""

from __future__ import annotations

import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import jax

from .._jax import setting
from ..errors import DeviceError
from ..machine import free_memory, usable_cores
from . import strategies
from .captured import CannotCompare, Captured, Fingerprint, captured, changed_names, fingerprint, token
from .checkpoint import Finished, MapIdentity, identify, open_folder, take
from .collect import check_unmapped
from .inputs import Batch
from .monitor import Monitor
from .options import MapOptions
from .planner import MEMORY_SHARE, MapPlan, Resources, plan_map
from .programs import forget_programs_of_other
from .strategies.base import Executable, Layout
from .tracing import ItemProgram, trace_item

# Maps whose traced program is remembered, so that calling the same function again does not trace it.
MAX_PREPARED = 32
# A map that captures more than this is not remembered: the user's arrays would stay in memory after `del`.
MAX_HELD_BYTES = 32 << 20


@dataclass
class Prepared:
    """A map that is ready to run on inputs of one shape."""

    function: weakref.ref
    captured: Fingerprint
    item: ItemProgram
    plan: MapPlan
    executable: Executable
    devices: tuple[Any, ...]
    tail: Executable | None = None  # for what full chunks leave over, where they are not padded
    shared: list[Any] | None = None  # placed constants, kept while the function captures the same
    finished: Finished | None = None  # chunks of an earlier run, and where to keep those of this one


@dataclass
class Timer:
    """Seconds spent on tracing and compiling."""

    compile: float = 0.0
    reused: bool = True


_prepared: OrderedDict[Hashable, Prepared] = OrderedDict()
# function's code → fingerprint at its last trace: JAX caches traces of inner jitted functions by identity
_last_seen: OrderedDict[Any, Fingerprint] = OrderedDict()


def prepare(function: Callable, batch: Batch, options: MapOptions, timer: Timer, monitor: Monitor) -> Prepared:
    """Trace, plan and compile, or find all that done."""
    __tracebackhide__ = True
    begin = time.perf_counter()
    devices = chosen_devices(options)
    found = captured(function)
    print_ = fingerprint(found)
    keeps = options.checkpoint is not None or options.resume
    key = _call_key(function, batch, options, devices) if print_ is not None and not keeps else None
    if key is not None:
        prepared = _prepared.get(key)
        if (
            prepared is not None
            and prepared.function() is function
            and prepared.captured == print_
            and prepared.captured.still_valid()
        ):
            _prepared.move_to_end(key)
            return prepared
    _forget_other_devices()
    notes = _renew_inner_traces(function, found, print_)
    monitor.phase("tracing")
    item = trace_item(function, batch, found)
    item.notes[:0] = notes
    check_unmapped(options.out_axes, item.out_tree, item.depends)
    finished = None
    if keeps:
        finished = _finished_before(identify(batch, options, item, function), batch.length, options)
        options = replace(options, chunk_size=finished.chunk_size)
    monitor.phase("compiling")
    prepared = _compile(function, item, batch.length, options, devices, print_, timer)
    prepared.finished = finished
    timer.compile = time.perf_counter() - begin
    if key is not None and sum(c.nbytes for c in item.constants) <= MAX_HELD_BYTES:
        # the note of a change is for the run that noticed it
        kept = replace(prepared, item=replace(item, notes=item.notes[len(notes) :]))
        _prepared[key] = kept
        while len(_prepared) > MAX_PREPARED:
            _prepared.popitem(last=False)
    return prepared


def _compile(function, item, length, options, devices, print_, timer) -> Prepared:
    __tracebackhide__ = True
    threads = options.devices if options.strategy in ("thread", "auto") else None
    resources = Resources(len(devices), devices[0].platform, threads or usable_cores(), free_memory(), options.devices)
    chunk_size = options.chunk_size
    while True:
        plan = plan_map(
            options.strategy,
            length,
            item.facts,
            resources,
            batch_size=options.batch_size,
            chunk_size=chunk_size,
            remainder=options.remainder,
        )
        used = tuple(devices[: plan.parts]) if plan.strategy in strategies.MULTI_DEVICE else (default_device(),)
        layout = Layout(plan.chunk_size, used, plan.parts, plan.width)
        executable = strategies.get(plan.strategy).prepare(item, layout)
        timer.reused &= executable.compiled.reused
        # The estimate was from single results; the compiled program knows. Halve the chunk until it fits.
        limit = resources.free_memory * (1 - (1 - MEMORY_SHARE) / 2)
        if options.chunk_size or plan.chunk_size <= plan.parts or executable.compiled.temp_bytes <= limit:
            break
        chunk_size = plan.chunk_size // 2
    if options.strategy == "auto" and item.facts.ordered and plan.length > 1:
        item.notes.append(f"{plan.reasons[0]}{'; -s thread uses all cores' if plan.strategy == 'map' else ''}")
    tail = None
    if plan.tail:
        alone = Layout(plan.tail, used[:1], 1, plan.width)
        tail = strategies.get("map").prepare(item, alone)
    return Prepared(_weak(function), print_, item, plan, executable, used, tail)


# A map that keeps its chunks is cut into this many where the user names no size: each costs a file.
KEPT_CHUNKS = 20


def _finished_before(identity: MapIdentity, length: int, options: MapOptions) -> Finished:
    chunk_size = options.chunk_size or max(1, math.ceil(length / KEPT_CHUNKS))
    if options.checkpoint is not None:
        return open_folder(options.checkpoint, identity, chunk_size, options.resume)
    return take(identity)


def _weak(function: Callable) -> Any:
    try:
        return weakref.ref(function)
    except TypeError:  # e.g. builtins; held for as long as the entry lives
        return lambda: function


def _renew_inner_traces(function: Callable, found: Captured, now: Fingerprint | None) -> list[str]:
    """Make jitted functions that the function calls see the current values of what they captured.

    JAX keeps their traces under their identity, with the globals of that time baked in
    (https://github.com/jax-ml/jax/issues/1426).
    """
    code = getattr(found.functions[0], "__code__", None) if found.functions else None
    before = _last_seen.get(code)
    changed = changed_names(before, now) if before is not None and now is not None else []
    # Only globals are said: another value in a closure is another function, as made by a factory in a loop.
    changed = [name for name in changed if name in found.namespaces]
    if found.jitted and found.values and (before is None or before != now or now is None):
        for jitted in found.jitted:
            jitted.clear_cache()
    if code is not None and now is not None:
        _last_seen[code] = now
        _last_seen.move_to_end(code)
        while len(_last_seen) > MAX_PREPARED:
            _last_seen.popitem(last=False)
    return [f"{', '.join(changed)} changed since the last run: the new value is used"] if changed else []


_SETTINGS = (
    "jax_enable_x64",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_rank_promotion",
    "jax_numpy_dtype_promotion",
    "jax_default_device",
)


def _call_key(function, batch: Batch, options: MapOptions, devices) -> Hashable | None:
    """What must be equal for a prepared map to serve again; None if that cannot be told."""
    parts: list[Hashable] = []
    alive: list[weakref.ref] = []
    try:
        for a in batch.arguments:
            if a.kind == "tree":
                leaves = tuple((x.array.shape, str(x.array.dtype), x.mapped, x.key_impl) for x in a.value)
                parts.append((a.name, a.keyword, a.treedef, leaves))
            else:
                parts.append((a.name, a.keyword, "constant", token(a.value, alive)))
        settings = tuple(str(setting(name)) for name in _SETTINGS)
        chosen = (
            options.strategy,
            options.devices,
            options.batch_size,
            options.chunk_size,
            options.remainder,
            token(options.out_axes, alive),
        )
    except CannotCompare:
        return None
    if alive:  # a JAX array as a constant: compared by identity, which a key alone cannot keep valid
        return None
    return (id(function), batch.length, batch.spread, tuple(parts), chosen, devices, settings)


def _forget_other_devices() -> None:
    """Let go of what belongs to a backend that has been reset: it would keep the old devices alive."""
    current = set(jax.local_devices())
    forget_programs_of_other(current)
    for key in [k for k, prepared in _prepared.items() if not set(prepared.devices) <= current]:
        del _prepared[key]


def forget() -> None:
    """Drop everything prepared (tests; a reset of the backend)."""
    _prepared.clear()
    _last_seen.clear()


# -------------------------------------------------------------------- devices


def default_device() -> Any:
    """The device that JAX puts new arrays on."""
    wanted = setting("jax_default_device")
    if wanted is not None and not isinstance(wanted, str):
        return wanted
    return jax.local_devices(backend=wanted)[0] if wanted else jax.local_devices()[0]


def chosen_devices(options: MapOptions) -> tuple[Any, ...]:
    """The devices that the map may use: all local ones, or the first `options.devices`."""
    available = jax.local_devices()
    wanted = options.devices
    if wanted is None or options.strategy == "thread":
        return tuple(available)
    if wanted > len(available):
        first = available[0]
        fix = f"%jaxdevices {wanted}  (in Python: devices({wanted}))" if first.platform == "cpu" else None
        raise DeviceError(
            f"devices={wanted}: JAX has {len(available)} {first.platform} device{'s' if len(available) != 1 else ''}.",
            argument="devices",
            next_step=fix or f"devices={len(available)}",
        )
    return tuple(available[:wanted])
