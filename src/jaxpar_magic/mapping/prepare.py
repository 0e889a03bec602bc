"""A map made ready: traced, planned, compiled; or found all that done for an earlier call."""

from __future__ import annotations

import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from .._jax import cpu_pool_threads, setting
from ..errors import CheckpointError, DeviceError, InputError
from ..machine import size_text, usable_cores
from . import strategies
from .captured import CannotCompare, Captured, Fingerprint, captured, changed_names, fingerprint, token
from .checkpoint import Finished, MapIdentity, find_in_folder, identify, new_folder, take
from .collect import check_unmapped
from .inputs import Batch
from .memory import Fitting, memory_bound
from .monitor import Monitor
from .options import MapOptions
from .planner import MapPlan, Resources, Way, first_way, padded_to_known, plan_map
from .programs import forget_programs_of_other
from .same_program import same_program
from .strategies.base import Executable, Layout, dealt_out
from .tracing import ItemProgram, trace_item
from .tuner import Tuning, tuning_of

# Maps whose traced program is remembered, so that calling the same function again does not trace it.
MAX_PREPARED = 32
MAX_SIZES = 512
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
    tuning: Tuning | None = None  # where `auto` may choose among ways
    way: Way | None = None  # the one that is chosen here
    ways: dict[Way, Prepared] = field(default_factory=dict)  # all that are compiled, shared by all of them
    compile_way: Callable[[Way, Timer], Prepared] | None = field(default=None, repr=False)
    kept: bool = False  # for the next call

    def let_go(self, inputs: int) -> None:
        """After a call: the first `inputs` shared arrays are the user's and do not stay; nor does anything that is
        not kept for the next call."""
        for one in (self, *self.ways.values()):
            kept = self.ways.get(one.way, one) if one.way is not None else one
            if not self.kept or one is not kept:
                one.shared = None
            elif one.shared is not None:
                one.shared[:inputs] = [None] * inputs
        if not self.kept:
            for one in (self, *self.ways.values()):
                one.compile_way = None
            self.ways.clear()


@dataclass
class Timer:
    """Seconds spent on tracing and compiling."""

    compile: float = 0.0
    reused: bool = True


TRIED = "chosen by measuring"

_prepared: OrderedDict[tuple, Prepared] = OrderedDict()
# (program, strategy, devices, parts, widths wanted) → (items in a chunk, batch width) of what was compiled
_sizes: OrderedDict[tuple, list[tuple[int, int]]] = OrderedDict()
# function's code → fingerprint at its last trace: JAX caches traces of inner jitted functions by identity
_last_seen: OrderedDict[Any, Fingerprint] = OrderedDict()


def prepare(
    function: Callable, batch: Batch, options: MapOptions, timer: Timer, monitor: Monitor, *, to_run: bool = True
) -> Prepared:
    """Trace, plan and compile, or find all that done. With `to_run` it may be the turn of another way to try."""
    __tracebackhide__ = True
    begin = time.perf_counter()
    devices = chosen_devices(options)
    found = captured(function)
    print_ = fingerprint(found)
    keeps = options.checkpoint is not None or options.resume
    key = _call_key(function, batch, options, devices) if print_ is not None else None
    if key is not None and not keeps:
        prepared = _prepared.get(key)
        if (
            prepared is not None
            and prepared.function() is function
            and prepared.captured == print_
            and prepared.captured.still_valid()
        ):
            _prepared.move_to_end(key)
            return _in_turn(prepared, timer, to_run)
    _forget_other_devices()
    item, notes, identity, finished = traced(function, batch, options, found, print_, monitor)
    most = None
    if finished is not None:
        options, key = replace(options, chunk_size=finished.chunk_size), None
    elif keeps and options.chunk_size is None:
        most, key = max(1, math.ceil(batch.length / KEPT_CHUNKS)), None
    same = None if key is None else _same_map(key, item)
    if key is not None and print_ is not None and same is not None:
        prepared = replace(same, function=weak(function), captured=print_)
        _keep(key, prepared)
        prepared = replace(_in_turn(prepared, timer, to_run), item=item)  # with the notes of this run
    else:
        monitor.phase("compiling")
        prepared = _compile(weak(function), item, batch.length, options, devices, print_, timer, to_run, most)
        if key is not None and sum(c.nbytes for c in item.constants) <= MAX_HELD_BYTES:
            # the note of a change is for the run that noticed it
            prepared.kept = True
            kept = replace(prepared, item=replace(item, notes=item.notes[len(notes) :]))
            if kept.way is not None:
                kept.ways[kept.way] = kept
            _keep(key, kept)
    if identity is not None and finished is None:
        assert options.checkpoint is not None
        finished = new_folder(options.checkpoint, identity, prepared.plan.chunk_size)
    if finished is not None:
        _check_cuts(finished, prepared.plan)
    prepared.finished = finished
    timer.compile = time.perf_counter() - begin
    return prepared


def _in_turn(prepared: Prepared, timer: Timer, to_run: bool) -> Prepared:
    """What is ready, in the way whose turn it is."""
    if prepared.tuning is None:
        return prepared
    return in_way_or_best(prepared, prepared.tuning.next_call() if to_run else prepared.tuning.best, timer)


def _keep(key: tuple, prepared: Prepared) -> None:
    _prepared[key] = prepared
    _prepared.move_to_end(key)
    while len(_prepared) > MAX_PREPARED:
        _prepared.popitem(last=False)


def _same_map(key: tuple, item: ItemProgram) -> Prepared | None:
    """What was made ready for another function that is the same program: mostly the same cell, run before."""
    for known, prepared in reversed(_prepared.items()):
        if known[1:] == key[1:] and same_program(prepared.item, item):
            return prepared
    return None


def traced(
    function: Callable, batch: Batch, options: MapOptions, found: Captured, now: Fingerprint | None, monitor: Monitor
) -> tuple[ItemProgram, list[str], MapIdentity | None, Finished | None]:
    """(program of an item, notes of this run that it begins with, which map it is, what an earlier run of it left).

    The latter two only where the map keeps its chunks.
    """
    __tracebackhide__ = True
    notes = _renew_inner_traces(function, found, now)
    monitor.phase("tracing")
    item = trace_item(function, batch, found, spmd=options.spmd)
    item.notes[:0] = notes
    check_unmapped(options.out_axes, item.out_tree, item.depends)
    if options.checkpoint is None and not options.resume:
        return item, notes, None, None
    identity = identify(batch, options, item, function)
    return item, notes, identity, _finished_before(identity, options)


def in_way(prepared: Prepared, way: Way, timer: Timer) -> Prepared:
    """A prepared map run another way, compiled if it is not yet."""
    found = prepared.ways.get(way)
    if found is None:
        assert prepared.compile_way is not None
        begin = time.perf_counter()
        found = prepared.ways[way] = prepared.compile_way(way, timer)
        found.item, found.kept = prepared.item, prepared.kept
        timer.compile += time.perf_counter() - begin
    return found


def in_way_or_best(prepared: Prepared, way: Way, timer: Timer) -> Prepared:
    """The same, and the best way where this one cannot be had."""
    assert prepared.tuning is not None
    try:
        return in_way(prepared, way, timer)
    except Exception:
        if way == prepared.tuning.best:
            raise
        prepared.tuning.refuse(way)
        return in_way(prepared, prepared.tuning.best, timer)


def _check_cuts(finished: Finished, plan: MapPlan) -> None:
    """The chunks of an earlier run must fit into those of this plan, which may be filled up."""
    whole = min(finished.chunk_size, plan.length)
    if plan.chunk_size < whole or any(end > plan.length for end, _ in finished.chunks.values()):
        raise CheckpointError(
            f"resume: what is kept is cut into chunks of {finished.chunk_size:,} items, and {plan.parts} devices take "
            f"{plan.chunk_size:,} of {plan.length:,} at a time.",
            argument="resume",
            next_step="the number of devices of the earlier run",
        )


def _compile(
    function: weakref.ref,
    item: ItemProgram,
    length: int,
    options: MapOptions,
    devices,
    print_,
    timer: Timer,
    to_run: bool,
    most: int | None = None,
) -> Prepared:
    """Plan and compile; `most` bounds the chunk where the user names no size."""
    __tracebackhide__ = True
    threads = options.devices if options.strategy in ("thread", "auto") else None
    bound, to_file = memory_bound(options.memory), options.out_file is not None
    cores = usable_cores()
    pool = cpu_pool_threads(cores, len(jax.local_devices())) if devices[0].platform == "cpu" else 0
    resources = Resources(len(devices), devices[0].platform, threads or cores, bound, options.devices, pool)
    tuning, way = None, None
    reasons: Sequence[str] = ()
    if options.strategy == "auto":
        way, reasons = first_way(item.facts, length, resources)
        # with another remainder than "pad" the number of results would depend on the way
        if options.batch_size is None and not item.facts.callbacks and length > 1 and options.remainder == "pad":
            tuning = tuning_of(item, length, devices, resources, way, options.chunk_size, options.memory, to_file, most)
            if tuning.measured:
                reasons = (f"the fastest of {len(tuning.finite())} ways that were measured",)
            way = tuning.best

    def compile_way(way: Way | None, timer: Timer, chunk_size: int | None, reasons: Sequence[str]) -> Prepared:
        __tracebackhide__ = True
        wanted = chunk_size or most
        fitting = Fitting(bound, length, item.facts, to_file=to_file)
        while True:
            plan = plan_map(
                options.strategy,
                length,
                item.facts,
                resources,
                batch_size=options.batch_size,
                chunk_size=wanted,
                remainder=options.remainder,
                way=way,
                reasons=reasons,
                to_file=to_file,
            )
            used = tuple(devices[: plan.parts]) if plan.strategy in strategies.MULTI_DEVICE else (default_device(),)
            widths = options.batch_size, way.width if way else None
            known = _sizes.setdefault((item.digest, plan.strategy, used, plan.parts, widths), [])
            if wanted is None:
                plan = padded_to_known(plan, known)
            if plan.chunks > 1 and not (chunk_size or most or (way and way.chunk_size)):
                # cut by the memory that is free, which is never quite the same
                near = [k for k in known if 0.7 * plan.chunk_size <= k[0] <= plan.chunk_size]
                if near:
                    plan = replace(plan, chunk_size=max(near)[0], width=max(near)[1])
            layout = Layout(plan.chunk_size, used, plan.parts, plan.width)
            executable = strategies.get(plan.strategy).prepare(item, layout)
            timer.reused &= executable.compiled.reused
            if options.chunk_size and options.memory is None:
                break  # as the user has it
            # The estimate was from single results; the compiled program knows.
            held = executable.compiled.held_bytes * plan.parts
            smaller = fitting.next_chunk(plan.chunk_size, held, plan.parts)
            if smaller is None:
                if plan.chunks > 1 or options.memory is not None:
                    peak = size_text(fitting.peak(plan.chunk_size, held).total)
                    needs = f"holds up to {peak}, as compiled, of the {size_text(bound)} it may hold"
                    plan = replace(plan, reasons=(*plan.reasons, needs))
                break
            if options.chunk_size:
                raise fitting.too_large(plan.chunk_size, held, smaller)
            wanted = smaller
        if plan.pads and (plan.chunk_size, plan.width) not in known:
            known.append((plan.chunk_size, plan.width))
        while len(_sizes) > MAX_SIZES:
            _sizes.popitem(last=False)
        if plan.interleaved:
            executable = dealt_out(executable, plan.parts)
        tail = None
        if plan.tail:
            alone = Layout(plan.tail, used[:1], 1, plan.width)
            tail = strategies.get("map").prepare(item, alone)
        return Prepared(function, print_, item, plan, executable, used, tail, tuning=tuning, way=way, ways=ways)

    ways: dict[Way, Prepared] = {}
    try:
        prepared = compile_way(way, timer, options.chunk_size, reasons)
    except InputError as error:
        if options.strategy != "auto" or error.argument == "remainder" or (len(devices) == 1 and resources.cores == 1):
            raise
        # one item on each device at a time is too much: one item in all
        return _compile(function, item, length, replace(options, strategy="map"), devices, print_, timer, to_run, most)
    if options.strategy == "auto" and item.facts.ordered and length > 1:
        item.notes.append(f"{reasons[0]}{'; -s thread uses all cores' if prepared.plan.strategy == 'map' else ''}")
    if tuning is not None and way is not None:
        # The other ways take the same chunks, so that they can take over in the middle of a run.
        chunk_size = prepared.plan.chunk_size if options.chunk_size or most else None
        prepared.compile_way = lambda way, timer: replace(
            compile_way(way, timer, chunk_size, [TRIED]), compile_way=prepared.compile_way
        )
        if not prepared.executable.compiled.reused:
            tuning.compile_seconds = prepared.executable.compiled.seconds
        ways[way] = prepared
        if to_run:
            return in_way_or_best(prepared, tuning.next_call(), timer)
    return prepared


# A map that keeps its chunks is cut into this many where the user names no size: each costs a file.
KEPT_CHUNKS = 20


def _finished_before(identity: MapIdentity, options: MapOptions) -> Finished | None:
    """What an earlier run has left; None for a new checkpoint."""
    if options.checkpoint is not None:
        return find_in_folder(options.checkpoint, identity, options.resume)
    return take(identity)


def weak(function: Callable) -> Any:
    """A reference that does not keep a function alive."""
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


def _call_key(function, batch: Batch, options: MapOptions, devices) -> tuple | None:
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
            options.memory,
            options.out_file is not None,
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
    for sizes in [k for k in _sizes if not set(k[2]) <= current]:
        del _sizes[sizes]
    for key in [k for k, prepared in _prepared.items() if not set(prepared.devices) <= current]:
        del _prepared[key]


def forget() -> None:
    """Drop everything prepared (tests; a reset of the backend)."""
    _prepared.clear()
    _last_seen.clear()
    _sizes.clear()


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
