"""A map from request to result: which of the ways to run it applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from .._jax import setting
from ..errors import InputError, JaxparError
from . import strategies
from .collect import stack_results
from .elsewhere import runner
from .inputs import MAX_SHAPES, Batch, NotStackable, Ragged, make_batch, ragged_error
from .monitor import Monitor
from .options import MapOptions
from .plain import run_python, run_untraced
from .result import MapReport, MapResult
from .stream import run_stream
from .traced import run_traced, while_tracing
from .tracing import NotTraceable


def run_map(
    function: Callable, inputs: Sequence[Any], named: dict[str, Any], options: MapOptions, monitor: Monitor
) -> MapResult:
    """Map `function` over the inputs; see `parmap` for the meaning of everything."""
    __tracebackhide__ = True
    if options.spmd:
        return runner().run_spmd(function, inputs, named, options, monitor)
    streamed = run_stream(function, inputs, named, options, monitor)
    if isinstance(streamed, MapResult):
        return streamed
    inputs, named = streamed
    batch = make_batch(function, inputs, named, in_axes=options.in_axes, static=options.static, key=options.key)
    return run_batch(function, batch, options, monitor)


def run_batch(function: Callable, batch: Batch, options: MapOptions, monitor: Monitor) -> MapResult:
    """Map `function` over a batch."""
    __tracebackhide__ = True
    if options.strategy in strategies.PYTHON:
        return run_python(function, batch, options, options.strategy, monitor)
    if setting("jax_disable_jit"):
        note = "jit is disabled (jax_disable_jit): a plain loop, for the debugger"
        return run_python(function, batch, options, "serial", monitor, notes=[note])
    groups, cannot_trace = None, None
    falls_back = options.strategy in strategies.FALLING_BACK
    run = runner().run_traced if options.strategy in strategies.ELSEWHERE else run_traced
    try:
        stacked = batch.stacked()
    except Ragged as ragged:
        groups = ragged.groups
    except NotStackable as why:
        if not falls_back:
            raise InputError(
                f"strategy={options.strategy!r}: needs numbers or arrays, but {why}.",
                argument="strategy",
                next_step="strategy='process' runs plain Python",
            ) from None
        if batch.length == 0:
            return run_python(function, batch, options, "serial", monitor)
        cannot_trace = str(why)
    # Outside of the handlers, so that a user's own error does not carry ours as its context.
    if groups is not None:
        return _run_groups(function, batch, groups, options, monitor)
    if cannot_trace is not None:
        return run_untraced(function, batch, options, monitor, cannot_trace)
    try:
        return run(function, stacked, options, monitor)
    except JaxparError:
        raise
    except NotTraceable as error:
        if not falls_back:
            raise InputError(
                f"strategy={options.strategy!r}: {error}.",
                argument="strategy",
                next_step="strategy='process' or 'serial', which return what the function returns",
            ) from None
        untraceable: Exception = error
    except Exception as error:
        if not falls_back or batch.length == 0 or not while_tracing(error):
            raise
        untraceable = error
    return run_untraced(function, batch, options, monitor, None, untraceable)


# -------------------------------------------------------------------- items of several shapes


def _run_groups(
    function: Callable, batch: Batch, groups: dict[Any, list[int]], options: MapOptions, monitor: Monitor
) -> MapResult:
    """Items of a few different shapes: one program per shape, results in the order of the items."""
    __tracebackhide__ = True
    if len(groups) > MAX_SHAPES:
        if options.strategy in strategies.FALLING_BACK:
            return run_untraced(function, batch, options, monitor, f"the items have {len(groups)} different shapes")
        raise ragged_error(groups)
    results: dict[int, Any] = {}
    if options.out_file is not None:
        raise InputError(
            f"out_file: the items have {len(groups)} shapes, and a file holds arrays of one shape.",
            argument="out_file",
            next_step="pad the items to one shape, or leave out_file away",
        )
    total: MapReport | None = None
    for indices in groups.values():
        part = run_batch(function, batch.subset(indices), options, monitor)
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
