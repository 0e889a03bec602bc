"""Maps of plain Python: the loop, worker processes, engines of a cluster; and `auto` for what JAX cannot trace."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import RemoteTraceback, WorkerError
from ..machine import usable_cores
from .captured import captured, is_library
from .checkpoint import Finished, identify, keep, kept_note, open_folder, take, worth_keeping
from .collect import not_finite_rows, stack_results
from .elsewhere import runner
from .inputs import Batch, function_name
from .monitor import Monitor
from .options import MapOptions
from .planner import python_chunk, python_parts
from .result import ItemReport, MapReport, MapResult
from .sinks import ItemWriter
from .strategies.serial import item_note, run_serial
from .traced import item_report, run_traced
from .tracing import NotTraceable
from .workers import ItemFailure

# A loop over items that takes less than this, earlier calls included, is not worth starting worker processes (1 to
# 3 s); with workers at hand, a loop that takes less than the second is not worth asking them.
SERIAL_SECONDS, WARM_SECONDS = 1.0, 0.1
_ON_ENGINES = "the engines ran it as plain Python"
# function's code → seconds that plain loops of it took so far
_spent: dict[Any, float] = {}


def run_python(
    function: Callable,
    batch: Batch,
    options: MapOptions,
    strategy: str,
    monitor: Monitor,
    *,
    done: dict[int, Any] | None = None,
    notes: Sequence[str] = (),
    reasons: Sequence[str] = (),
) -> MapResult:
    """Map with `serial`, `process` or `cluster`. `done` holds results of items that were computed before."""
    __tracebackhide__ = True
    results = _Results(function, batch, options, done or {})
    todo = [i for i in range(batch.length) if i not in results.values]
    if strategy == "cluster":
        workers = runner().parts()
    else:
        workers = python_parts(strategy, len(todo), usable_cores(), options.devices)
    chunk = python_chunk(len(todo), workers, options.chunk_size)
    unit = {"serial": "loop", "process": "worker"}.get(strategy, "engine")
    if strategy != "serial":
        notes = [*notes, *_copies(function, unit)]
    begin = time.perf_counter()
    monitor.plan(batch.length, 1, "1 loop" if strategy == "serial" else f"{workers} {unit}s", len(results.values))
    monitor.phase("running")

    def on_done(count: int) -> None:
        monitor.advance(count - monitor.done_now, 1)
        results.keep()

    try:
        if not todo:
            failures = []
        elif strategy == "serial":
            failures = run_serial(function, batch, todo, results.values, options.on_error == "raise", monitor, on_done)
        elif strategy == "process":
            failures = _run_workers(function, batch, todo, results.values, options, workers, chunk, monitor, on_done)
        else:
            failed, more = runner().run_items(function, batch, todo, results.values, options, monitor, on_done)
            failures, notes = [(f.index, f.error) for f in failed], [*notes, *more]
    except BaseException as error:
        results.keep_after(error)
        raise
    if batch.length == 0:
        value = _empty_value(function, batch, options, monitor)
    else:
        value = results.value()
    jax.block_until_ready([x for x in jax.tree_util.tree_leaves(value) if isinstance(x, jax.Array)])
    report = MapReport(
        strategy,
        batch.length,
        workers,
        unit,
        chunk_size=chunk,
        run_seconds=time.perf_counter() - begin,
        resumed=results.resumed,
        reasons=reasons,
        notes=list(notes),
        failed=[item_report(batch, i, e) for i, e in failures],
    )
    if results.writer is not None:
        report.not_finite = [ItemReport(i, batch.describe_item(i), what) for i, what in results.writer.not_finite()]
    elif options.check == "finite" and not isinstance(value, list):
        kept = sorted(results.values)
        rows = not_finite_rows([np.asarray(x) for x in jax.tree_util.tree_leaves(value)], len(kept))
        report.not_finite = [ItemReport(kept[i], batch.describe_item(kept[i]), what) for i, what in rows]
    return MapResult(value, report)


def _copies(function: Callable, unit: str) -> list[str]:
    """What workers and engines have copies of, where a user may expect the one thing."""
    found = captured(function)
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    notes = [
        f"{name} is copied into every {unit}, and the copies draw the same numbers: use --key SEED, or seed by item"
        for name, value in found.values.items()
        if isinstance(value, generators)
    ]
    if found.assigned:
        notes.append(f"{', '.join(sorted(found.assigned))} is assigned in the {unit}s' copies only, not here")
    modules = [v.__name__ for v in found.fixed if isinstance(v, types.ModuleType) and not is_library(v.__name__)]
    if modules:
        notes.append(f"{', '.join(modules)}: imported anew by the {unit}s; what was set on it here is not there")
    return notes


def _run_workers(function, batch, todo, values, options, workers, chunk, monitor, on_done):
    __tracebackhide__ = True
    from .strategies.process import run_processes

    stop = options.on_error == "raise"
    failed = run_processes(
        function,
        batch,
        todo,
        values,
        workers=workers,
        chunk_size=chunk,
        stop_at_failure=stop,
        on_output=_print_output,
        on_done=on_done,
        timeout=options.timeout,
    )
    if failed and stop:
        raise as_if_local(failed[0], item_note(batch, failed[0].index))
    return [(f.index, f.error) for f in failed]


def as_if_local(failure: ItemFailure, note: str) -> BaseException:
    """An exception from elsewhere as the user would have seen it here: its traceback there, the item named below."""
    error = failure.error
    if isinstance(error, BaseExceptionGroup):  # IPython shows no error output at all for one
        error = WorkerError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    if failure.traceback_text:
        error.__cause__ = RemoteTraceback(failure.traceback_text)
        # IPython prints these lines in place of our frames, which tell nothing
        with contextlib.suppress(AttributeError):  # an exception with slots
            error._render_traceback_ = lambda: [*failure.traceback_text.splitlines(), note]  # type: ignore[attr-defined]
    return error


class _Results:
    """Results of single items as they come, kept where the user asked for that."""

    def __init__(self, function: Callable, batch: Batch, options: MapOptions, done: dict[int, Any]):
        self.function, self.batch, self.options = function, batch, options
        self.values: dict[int, Any] = {}
        self.writer: ItemWriter | None = None
        self._written: set[int] = set()
        if options.out_file is not None and batch.length:
            self.writer = ItemWriter(Path(options.out_file), batch.length, options.check == "finite")
        self._finished: Finished | None = None
        if options.checkpoint is not None or options.resume:
            identity = identify(batch, options, None, function)
            if options.checkpoint is not None:
                self._finished = open_folder(options.checkpoint, identity, 1, options.resume)
            else:
                self._finished = take(identity)
            for begin, (end, _) in self._finished.chunks.items():
                self.values.update(zip(range(begin, end), self._finished.values(begin)))
                self._write()
        self.resumed = len(self.values)
        self._kept = set(self.values)
        self.values.update(done)

    def keep(self) -> None:
        """Write what is new to the folder, and to the file of the result."""
        if self._finished is not None and self._finished.folder is not None:
            for indices in _runs(set(self.values) - self._kept):
                self._finished.add(indices[0], indices[-1] + 1, [self.values[i] for i in indices])
                self._kept.update(indices)
        self._write()

    def _write(self, *, all_of_them: bool = False) -> None:
        """Write results to the file where there are enough new ones; they leave the memory."""
        new = len(self.values) - len(self._written)
        if self.writer is None or (new < ItemWriter.EVERY and not all_of_them):
            return
        try:
            for indices in _runs(set(self.values) - self._written):
                self.writer.add(indices[0], [self.values[i] for i in indices])
                self.values.update(dict.fromkeys(indices))
                self._written.update(indices)
        except BaseException:
            self.writer.discard()
            raise

    def value(self) -> Any:
        """All results, stacked where they agree; or the file of them."""
        if self.writer is None:
            return stack_results([self.values[i] for i in sorted(self.values)], self.options.out_axes)
        self._write(all_of_them=True)
        return self.writer.finish()

    def keep_after(self, error: BaseException) -> None:
        """What is done stays, in memory if there is no folder, and the error says so."""
        if self.writer is not None:
            self.writer.discard()
        if not self.values or self.options.on_error == "skip":
            return
        if self._finished is not None and self._finished.folder is not None:
            self.writer = None
            self.keep()
        elif self.options.out_file is None and worth_keeping(error):
            identity = identify(self.batch, self.options, None, self.function)
            kept = Finished(identity, 1)
            for i, value in self.values.items():
                kept.add(i, i + 1, [value])
            keep(kept)
        else:
            return
        error.add_note(kept_note(len(self.values), self.batch.length))


def _runs(indices: set[int]) -> list[list[int]]:
    """Indices as lists of neighbours."""
    groups = itertools.groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0])
    return [[i for _, i in group] for _, group in groups]


def _empty_value(function: Callable, batch: Batch, options: MapOptions, monitor: Monitor) -> Any:
    """The value of a map over no items: empty arrays if the function can be traced, else an empty list."""
    try:
        plain = replace(options, strategy="vmap", checkpoint=None, resume=False)
        return run_traced(function, batch.stacked(), plain, monitor).value
    except Exception:  # whatever keeps it from being traced: there is nothing to compute
        return []


def _print_output(stream: str, text: str) -> None:
    print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)


def run_untraced(
    function: Callable,
    batch: Batch,
    options: MapOptions,
    monitor: Monitor,
    why: str | None,
    error: Exception | None = None,
) -> MapResult:
    """`auto` and `cluster` for a function that JAX cannot trace: the first item tells whether plain Python can."""
    __tracebackhide__ = True
    if options.strategy != "auto" and error is None:  # nothing else could be raised, and a choice there is none
        return run_python(function, batch, options, options.strategy, monitor, notes=[f"{why}: {_ON_ENGINES}"])
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
            plain.add_note(item_note(batch, 0))
            raise plain from None
    seconds = time.perf_counter() - begin
    if error is not None:
        why = f"{function_name(function)} cannot be traced by JAX ({_first_words(error)})"
    notes = [f"with {words} JAX could run it"] if error is not None and (words := _in_place(function, error)) else []
    if options.strategy == "auto":
        strategy = _loop_or_workers(function, seconds * batch.length)
        how = "a plain loop was quick enough" if strategy == "serial" else "worker processes ran it as plain Python"
    else:
        strategy, how = options.strategy, _ON_ENGINES
    return run_python(
        function, batch, options, strategy, monitor, done=done, notes=[f"{why}: {how}", *notes], reasons=[str(why), how]
    )


def _loop_or_workers(function: Callable, seconds: float) -> str:
    """`serial` or `process` for a map that takes so long as a plain loop."""
    from .worker_pool import workers_at_hand

    code = getattr(function, "__code__", function)
    try:
        spent = _spent[code] = _spent.get(code, 0.0) + seconds
    except TypeError:  # not hashable
        spent = seconds
    limit = WARM_SECONDS if workers_at_hand() else SERIAL_SECONDS
    return "serial" if seconds < WARM_SECONDS or (seconds < limit and spent < SERIAL_SECONDS) else "process"


def _about_tracing(error: Exception) -> bool:
    kinds = tuple(
        kind
        for name in ("JAXTypeError", "JAXIndexError", "ConcretizationTypeError", "UnexpectedTracerError")
        if isinstance(kind := getattr(jax.errors, name, None), type)
    )
    return isinstance(error, kinds) or "racer" in str(error)


# For people at home in numpy: what in the function itself JAX asks for, by the error and a word of its text.
_IN_PLACE = (
    ("TracerArrayConversionError", "", "jax.numpy in place of numpy"),
    ("ConcretizationTypeError", "`float` function", "jax.numpy in place of math and float()"),
    ("TracerBoolConversionError", "", "jnp.where or jax.lax.cond in place of if, jax.lax.while_loop in place of while"),
)


def _in_place(function: Callable, error: Exception) -> str | None:
    """What to write in place of what JAX cannot follow; None unless it stands in the user's own code."""
    home = getattr(function, "__globals__", {}).get("__name__")
    if home is None or is_library(home):
        return None
    modules = {
        frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)
    }
    if modules - {home.partition(".")[0], "jaxpar_magic", "jax", "jaxlib", "numpy"}:  # such as scipy's
        return None
    return next((words for kind, word, words in _IN_PLACE if type(error).__name__ == kind and word in str(error)), None)


def _first_words(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, NotTraceable):
        return line
    return f"{type(error).__name__}: {line[:70]}{'…' if len(line) > 70 else ''}"
