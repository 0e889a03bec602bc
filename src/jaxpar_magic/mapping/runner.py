"""A map from request to result: trace, plan, compile, run chunks, collect."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import setting
from ..errors import DeviceError, InputError, JaxparError
from ..machine import free_memory, usable_cores
from . import strategies
from .captured import CannotCompare, Captured, Fingerprint, captured, changed_names, fingerprint, token
from .collect import Collector, assemble, check_unmapped, not_finite_rows, stack_results
from .inputs import (
    MAX_SHAPES,
    Batch,
    Leaf,
    NotStackable,
    Ragged,
    check_widths,
    function_name,
    make_batch,
    ragged_error,
)
from .options import MapOptions
from .planner import MEMORY_SHARE, MapPlan, Resources, plan_map, python_chunk, python_parts
from .programs import forget_programs_of_other
from .result import ItemReport, MapReport, MapResult
from .strategies.base import Executable, Layout
from .tracing import ItemProgram, trace_item

# A loop over items that takes less than this in all is not worth starting worker processes (1 to 3 s).
SERIAL_SECONDS = 1.0
# Maps whose traced program is remembered, so that calling the same function again does not trace it.
MAX_PREPARED = 32


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


@dataclass
class Timer:
    """Seconds spent on tracing and compiling."""

    compile: float = 0.0
    reused: bool = True


_prepared: OrderedDict[Hashable, Prepared] = OrderedDict()
# function's code → fingerprint at its last trace: JAX caches traces of inner jitted functions by identity
_last_seen: OrderedDict[Any, Fingerprint] = OrderedDict()


def run_map(function: Callable, inputs: Sequence[Any], named: dict[str, Any], options: MapOptions) -> MapResult:
    """Map `function` over the inputs; see `parmap` for the meaning of everything."""
    __tracebackhide__ = True
    batch = make_batch(function, inputs, named, in_axes=options.in_axes, static=options.static, key=options.key)
    return run_batch(function, batch, options)


def run_batch(function: Callable, batch: Batch, options: MapOptions) -> MapResult:
    """Map `function` over a batch."""
    __tracebackhide__ = True
    if options.strategy in strategies.PYTHON:
        return run_python(function, batch, options, options.strategy)
    try:
        stacked = batch.stacked()
    except Ragged as ragged:
        return _run_groups(function, batch, ragged.groups, options)
    except NotStackable as why:
        if options.strategy != "auto":
            raise InputError(
                f"strategy={options.strategy!r}: needs numbers or arrays, but {why}.",
                argument="strategy",
                next_step="strategy='process' runs plain Python",
            ) from None
        if batch.length == 0:
            return run_python(function, batch, options, "serial")
        return _run_untraced(function, batch, options, str(why))
    try:
        return run_traced(function, stacked, options)
    except JaxparError:
        raise
    except Exception as error:
        if options.strategy != "auto" or batch.length == 0 or not _while_tracing(error):
            raise
        return _run_untraced(function, batch, options, None, error)


# -------------------------------------------------------------------- traced strategies


def run_traced(function: Callable, batch: Batch, options: MapOptions) -> MapResult:
    """Map with a traced strategy. `batch` is stacked."""
    __tracebackhide__ = True
    timer = Timer()
    mapped, shared = batch.leaves()
    notes = check_widths(mapped, shared)
    prepared = prepare(function, batch, options, timer)
    item, plan, executable = prepared.item, prepared.plan, prepared.executable
    report = _traced_report(prepared, timer, [*notes, *item.notes])
    begin = time.perf_counter()
    if prepared.shared is None:
        prepared.shared = executable.place_shared([*(x.array for x in shared), *item.constants])
    elif shared:
        prepared.shared[: len(shared)] = executable.place_shared([x.array for x in shared])
    collector = Collector(item.outputs, plan.length)
    failures: list[tuple[int, BaseException]] = []
    # Two chunks under way: the next one is cut and copied while the devices compute.
    waiting: list[tuple[int, int, list]] = []
    for chunk in plan.bounds():
        with _item_named(function, batch, prepared, chunk, options, collector, failures):
            if prepared.tail is not None and chunk[1] - chunk[0] < plan.chunk_size:
                placed = prepared.tail.place_shared([*(x.array for x in shared), *item.constants])
                arrays = prepared.tail.run(_cut(mapped, chunk, plan.tail, prepared.tail), placed)
            else:
                arrays = executable.run(_cut(mapped, chunk, plan.chunk_size, executable), prepared.shared)
            waiting.append((*chunk, arrays))
        if len(waiting) > 1:
            _finish(waiting.pop(0), function, batch, prepared, options, collector, failures)
    for pending in waiting:
        _finish(pending, function, batch, prepared, options, collector, failures)
    kept = None
    if failures:
        lost = {i for i, _ in failures}
        kept = [i for i in range(plan.length) if i not in lost]
    leaves = collector.leaves(kept)
    jax.block_until_ready(leaves)
    report.run_seconds = time.perf_counter() - begin
    report.failed = [_item_report(batch, i, error) for i, error in failures]
    if options.check == "finite":
        report.not_finite = [ItemReport(i, batch.describe_item(i), what) for i, what in collector.not_finite()]
    return MapResult(assemble(leaves, item.out_tree, item.outputs, options.out_axes), report)


def _traced_report(prepared: Prepared, timer: Timer, notes: list[str]) -> MapReport:
    plan = prepared.plan
    return MapReport(
        plan.strategy,
        plan.length,
        plan.parts,
        "thread" if plan.strategy == "thread" else "device",
        plan.width,
        plan.chunk_size,
        plan.chunks,
        compile_seconds=timer.compile,
        reused=timer.reused,
        reasons=plan.reasons,
        notes=notes,
    )


def _cut(mapped: Sequence[Leaf], chunk: tuple[int, int], size: int, executable: Executable) -> list:
    begin, end = chunk
    arrays = []
    for leaf in mapped:
        array = leaf.array
        if isinstance(array, jax.Array) and not _whole(array, begin, end, size):
            array = np.asarray(array) if _on_cpu(array) else array
        part = array if _whole(array, begin, end, size) else array[begin:end]
        if end - begin < size:
            xp = jnp if isinstance(part, jax.Array) else np
            # repeats of a real item: whatever the function does with it is harmless
            last = xp.broadcast_to(part[-1:], (size - (end - begin), *part.shape[1:]))
            part = xp.concatenate([part, last])
        arrays.append(part)
    return executable.place_mapped(arrays)


def _whole(array: Any, begin: int, end: int, size: int) -> bool:
    return begin == 0 and end == array.shape[0] == size


def _on_cpu(array: jax.Array) -> bool:
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())


def _finish(pending, function, batch, prepared, options, collector, failures) -> None:
    __tracebackhide__ = True
    begin, end, arrays = pending
    with _item_named(function, batch, prepared, (begin, end), options, collector, failures):
        jax.block_until_ready(arrays)
        collector.add(begin, end, arrays)


@contextlib.contextmanager
def _item_named(function, batch, prepared, chunk, options, collector, failures) -> Iterator[None]:
    """A failing chunk is run again item by item, to name the item or to keep the others."""
    __tracebackhide__ = True
    try:
        yield
    except Exception as error:
        if not prepared.item.facts.callbacks:
            raise
        found = _run_one_by_one(batch, prepared, chunk, collector, options.on_error == "skip")
        if not found:  # it does not fail alone: the error is not one item's
            raise
        if options.on_error == "raise":
            from .strategies.serial import item_note

            error.add_note(item_note(batch, found[0][0]))
            raise
        failures.extend(found)


def _run_one_by_one(batch, prepared, chunk, collector, keep_on) -> list[tuple[int, BaseException]]:
    layout = Layout(1, prepared.devices[:1], 1, 1)
    single = strategies.get("vmap").prepare(prepared.item, layout)
    mapped, shared = batch.leaves()
    placed = single.place_shared([*(x.array for x in shared), *prepared.item.constants])
    failed: list[tuple[int, BaseException]] = []
    for i in range(*chunk):
        try:
            arrays = single.run(_cut(mapped, (i, i + 1), 1, single), placed)
            jax.block_until_ready(arrays)
        except Exception as error:
            failed.append((i, error))
            if not keep_on:
                break
        else:
            if keep_on and collector.length > 1:
                collector.add(i, i + 1, arrays)
    return failed


# -------------------------------------------------------------------- preparing


def prepare(function: Callable, batch: Batch, options: MapOptions, timer: Timer) -> Prepared:
    """Trace, plan and compile, or find all that done."""
    __tracebackhide__ = True
    begin = time.perf_counter()
    devices = chosen_devices(options)
    found = captured(function)
    print_ = fingerprint(found)
    key = _call_key(function, batch, options, devices) if print_ is not None else None
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
    item = trace_item(function, batch, found)
    item.notes[:0] = notes
    check_unmapped(options.out_axes, item.out_tree, item.depends)
    prepared = _compile(function, item, batch.length, options, devices, print_, timer)
    timer.compile = time.perf_counter() - begin
    if key is not None:
        # the note of a change is for the run that noticed it
        kept = replace(prepared, item=replace(item, notes=item.notes[len(notes) :]))
        _prepared[key] = kept
        while len(_prepared) > MAX_PREPARED:
            _prepared.popitem(last=False)
    return prepared


def _compile(function, item, length, options, devices, print_, timer) -> Prepared:
    __tracebackhide__ = True
    resources = Resources(len(devices), devices[0].platform, usable_cores(), free_memory())
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
    tail = None
    if plan.tail:
        alone = Layout(plan.tail, used[:1], 1, plan.width)
        tail = strategies.get("map").prepare(item, alone)
    return Prepared(_weak(function), print_, item, plan, executable, used, tail)


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


# -------------------------------------------------------------------- plain Python


def run_python(
    function: Callable,
    batch: Batch,
    options: MapOptions,
    strategy: str,
    *,
    done: dict[int, Any] | None = None,
    notes: Sequence[str] = (),
    reasons: Sequence[str] = (),
) -> MapResult:
    """Map with `serial` or `process`. `done` holds results of items that were computed before."""
    __tracebackhide__ = True
    done = dict(done or {})
    todo = [i for i in range(batch.length) if i not in done]
    workers = python_parts(strategy, len(todo), usable_cores(), options.devices)
    chunk = python_chunk(len(todo), workers, options.chunk_size)
    stop = options.on_error == "raise"
    begin = time.perf_counter()
    failures: list[tuple[int, BaseException]] = []
    if strategy == "serial":
        from .strategies.serial import run_serial

        results, failures = run_serial(function, batch, todo, stop_at_failure=stop)
    elif todo:
        from .strategies.process import run_processes

        results, failed = run_processes(
            function,
            batch,
            todo,
            workers=workers,
            chunk_size=chunk,
            stop_at_failure=stop,
            on_output=_print_output,
        )
        if failed and stop:
            _raise_item_failure(batch, failed[0])
        failures = [(f.index, f.error) for f in failed]
    else:
        results = {}
    results |= done
    kept = sorted(results)
    values = [results[i] for i in kept]
    if not values and batch.length == 0:
        value = _empty_value(function, batch, options)
    else:
        value = stack_results(values, options.out_axes)
    jax.block_until_ready([x for x in jax.tree_util.tree_leaves(value) if isinstance(x, jax.Array)])
    report = MapReport(
        strategy,
        batch.length,
        workers,
        "worker" if strategy == "process" else "loop",
        chunk_size=chunk,
        run_seconds=time.perf_counter() - begin,
        reasons=reasons,
        notes=list(notes),
        failed=[_item_report(batch, i, e) for i, e in failures],
    )
    if options.check == "finite" and not isinstance(value, list):
        rows = not_finite_rows([np.asarray(x) for x in jax.tree_util.tree_leaves(value)], len(kept))
        report.not_finite = [ItemReport(kept[i], batch.describe_item(kept[i]), what) for i, what in rows]
    return MapResult(value, report)


def _empty_value(function: Callable, batch: Batch, options: MapOptions) -> Any:
    """The value of a map over no items: empty arrays if the function can be traced, else an empty list."""
    try:
        return run_traced(function, batch.stacked(), replace(options, strategy="vmap")).value
    except Exception:  # whatever keeps it from being traced: there is nothing to compute
        return []


def _print_output(stream: str, text: str) -> None:
    print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)


def _raise_item_failure(batch: Batch, failure: Any) -> None:
    __tracebackhide__ = True
    from .strategies.serial import item_note

    failure.error.add_note(item_note(batch, failure.index))
    raise failure.error


def _item_report(batch: Batch, i: int, error: BaseException) -> ItemReport:
    lines = str(error).strip().splitlines()
    # a callback's exception arrives as the last line of the text of JAX's own
    text = lines[-1] if type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and lines else (lines or [""])[0]
    name = type(error).__name__
    problem = text if name in ("XlaRuntimeError", "JaxRuntimeError") else f"{name}: {text}"
    return ItemReport(i, batch.describe_item(i), problem)


def _while_tracing(error: BaseException) -> bool:
    """Whether `error` came out of tracing the function, not out of running it."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is trace_item.__code__:
            return True
        frame = frame.tb_next
    return False


def _run_untraced(
    function: Callable, batch: Batch, options: MapOptions, why: str | None, error: Exception | None = None
) -> MapResult:
    """`auto` for a function that JAX cannot trace: the first item tells whether plain Python can."""
    __tracebackhide__ = True
    begin = time.perf_counter()
    done: dict[int, Any] = {}
    try:
        args, kwargs = batch.item(0)
        done[0] = function(*args, **kwargs)
    except Exception as plain:
        if options.on_error == "skip":
            done = {}
        elif error is not None and not _about_tracing(error):
            raise error from None
        else:
            from .strategies.serial import item_note

            plain.add_note(item_note(batch, 0))
            raise plain from None
    seconds = time.perf_counter() - begin
    if error is not None:
        why = f"{function_name(function)} cannot be traced by JAX ({_first_words(error)})"
    strategy = "serial" if seconds * batch.length < SERIAL_SECONDS else "process"
    how = "a plain loop was quick enough" if strategy == "serial" else "worker processes ran it as plain Python"
    return run_python(function, batch, options, strategy, done=done, notes=[f"{why}: {how}"], reasons=[str(why), how])


def _about_tracing(error: Exception) -> bool:
    kinds = tuple(
        kind
        for name in ("JAXTypeError", "JAXIndexError", "ConcretizationTypeError", "UnexpectedTracerError")
        if isinstance(kind := getattr(jax.errors, name, None), type)
    )
    return isinstance(error, kinds) or "racer" in str(error)


def _first_words(error: Exception) -> str:
    from .tracing import NotTraceable

    line = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, NotTraceable):
        return line
    return f"{type(error).__name__}: {line[:70]}{'…' if len(line) > 70 else ''}"


# -------------------------------------------------------------------- items of several shapes


def _run_groups(function: Callable, batch: Batch, groups: dict[Any, list[int]], options: MapOptions) -> MapResult:
    """Items of a few different shapes: one program per shape, results in the order of the items."""
    __tracebackhide__ = True
    if len(groups) > MAX_SHAPES:
        if options.strategy == "auto":
            return _run_untraced(function, batch, options, f"the items have {len(groups)} different shapes")
        raise ragged_error(groups)
    results: dict[int, Any] = {}
    total: MapReport | None = None
    for indices in groups.values():
        part = run_batch(function, batch.subset(indices), options)
        lost = set(part.report.skipped)
        kept = [i for position, i in enumerate(indices) if position not in lost]
        for position, i in enumerate(kept):
            results[i] = _row(part.value, position)
        report = part.report
        report.failed = [replace(f, index=indices[f.index]) for f in report.failed]
        report.not_finite = [replace(f, index=indices[f.index]) for f in report.not_finite]
        total = report if total is None else _add_reports(total, report)
    assert total is not None
    total.notes.insert(0, f"{len(groups)} shapes of items, each a program of its own")
    return MapResult(stack_results([results[i] for i in sorted(results)], options.out_axes), total)


def _row(value: Any, position: int) -> Any:
    if isinstance(value, list):
        return value[position]
    return jax.tree_util.tree_map(lambda a: a[position], value)


def _add_reports(one: MapReport, other: MapReport) -> MapReport:
    one.length += other.length
    one.chunks += other.chunks
    one.compile_seconds += other.compile_seconds
    one.run_seconds += other.run_seconds
    one.reused &= other.reused
    one.notes = list(dict.fromkeys([*one.notes, *other.notes]))
    one.failed = sorted([*one.failed, *other.failed], key=lambda f: f.index)
    one.not_finite = sorted([*one.not_finite, *other.not_finite], key=lambda f: f.index)
    return one
