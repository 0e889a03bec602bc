"""Maps of a traced function: chunks in, chunks out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import is_ready
from ..errors import JaxparError
from . import strategies
from .checkpoint import Finished, identify, keep, kept_note, worth_keeping
from .collect import Collector, assemble
from .inputs import Batch, Leaf, check_widths
from .monitor import Monitor
from .options import MapOptions
from .prepare import Prepared, Timer, prepare
from .result import ItemReport, MapReport, MapResult
from .strategies.base import Executable, Layout
from .strategies.serial import item_note
from .tracing import trace_item


def run_traced(function: Callable, batch: Batch, options: MapOptions, monitor: Monitor) -> MapResult:
    """Map with a traced strategy. `batch` is stacked."""
    __tracebackhide__ = True
    timer = Timer()
    mapped, shared = batch.leaves()
    notes = check_widths(mapped, shared)
    prepared = prepare(function, batch, options, timer, monitor)
    left_out = batch.length - prepared.plan.length
    if left_out:
        notes.append(f"the last {left_out} of {batch.length} items are left out (remainder='drop')")
    report = _traced_report(prepared, timer, [*notes, *prepared.item.notes])
    begin = time.perf_counter()
    run = _ChunkedRun(function, batch, prepared, options, monitor)
    leaves = run.run()
    report.run_seconds = time.perf_counter() - begin
    report.chunk_seconds = run.chunk_seconds
    report.resumed = run.resumed
    report.failed = [item_report(batch, i, error) for i, error in run.failures]
    if options.check == "finite":
        report.not_finite = [ItemReport(i, batch.describe_item(i), what) for i, what in run.collector.not_finite()]
    item = prepared.item
    return MapResult(assemble(leaves, item.out_tree, item.outputs, options.out_axes), report)


class _ChunkedRun:
    """One run over the chunks of a plan: dispatch, wait, collect, keep."""

    def __init__(
        self, function: Callable, batch: Batch, prepared: Prepared, options: MapOptions, monitor: Monitor
    ) -> None:
        self.function = function
        self.batch = batch
        self.prepared = prepared
        self.options = options
        self.monitor = monitor
        self.mapped, self.shared = batch.leaves()
        self.collector = Collector(prepared.item.outputs, prepared.plan.length)
        self.failures: list[tuple[int, BaseException]] = []
        self.finished = prepared.finished
        self.resumed = 0
        self.chunk_seconds: list[float] = []
        self._last_collected = time.perf_counter()

    def run(self) -> list:
        """All chunks; the stacked leaves of the items that did not fail."""
        __tracebackhide__ = True
        plan = self.prepared.plan
        done = self._take_finished()
        todo = [bounds for bounds in plan.bounds() if bounds[0] not in done]
        unit = "threads" if plan.strategy == "thread" else "devices"
        self.monitor.plan(plan.length, plan.chunks, f"{plan.parts} {unit}", self.resumed)
        self.monitor.phase("running")
        self._place_shared()
        # Two chunks under way: the next one is cut and copied while the devices compute.
        waiting: list[tuple[int, int, list]] = []
        self._last_collected = time.perf_counter()
        try:
            for begin, end in todo:
                self.monitor.check()
                with self._naming_items(begin, end):
                    waiting.append((begin, end, self._dispatch(begin, end)))
                if len(waiting) > 1:
                    self._collect(*waiting.pop(0))
            while waiting:
                self._collect(*waiting.pop(0))
        except BaseException as error:
            self._keep_finished(error)
            raise
        kept = None
        if self.failures:
            lost = {i for i, _ in self.failures}
            kept = [i for i in range(plan.length) if i not in lost]
        leaves = self.collector.leaves(kept)
        jax.block_until_ready(leaves)
        return leaves

    def _place_shared(self) -> None:
        prepared, arrays = self.prepared, [x.array for x in self.shared]
        if prepared.shared is None:
            prepared.shared = prepared.executable.place_shared([*arrays, *prepared.item.constants])
        elif arrays:
            prepared.shared[: len(arrays)] = prepared.executable.place_shared(arrays)

    def _dispatch(self, begin: int, end: int) -> list:
        prepared, plan = self.prepared, self.prepared.plan
        if prepared.tail is not None and end - begin < plan.chunk_size:
            placed = prepared.tail.place_shared([*(x.array for x in self.shared), *prepared.item.constants])
            return self._call(prepared.tail, _cut(self.mapped, begin, end, plan.tail, prepared.tail), placed)
        arrays = _cut(self.mapped, begin, end, plan.chunk_size, prepared.executable)
        assert prepared.shared is not None
        return self._call(prepared.executable, arrays, prepared.shared)

    def _call(self, executable: Executable, arrays: list, shared: list) -> list:
        """Start a program. XLA may run it inside the call, and a loop there may never end."""
        __tracebackhide__ = True
        if not (self.monitor.has_deadline or self.prepared.item.facts.has_while):
            return executable.run(arrays, shared)
        # In a thread, so that an interrupt and the time limit take effect. A daemon: one that hangs is left behind.
        outcome: list[Any] = []

        def call() -> None:
            try:
                outcome.append(executable.run(arrays, shared))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=call, name="parmap-dispatch", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            self.monitor.check()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _collect(self, begin: int, end: int, arrays: list) -> None:
        __tracebackhide__ = True
        with self._naming_items(begin, end):
            self._wait(arrays)
            self.collector.add(begin, end, arrays)
        if self.finished is not None and not any(begin <= i < end for i, _ in self.failures):
            self.finished.add(begin, end, self.collector.rows(begin, end))
        now = time.perf_counter()
        self.chunk_seconds.append(now - self._last_collected)
        self._last_collected = now
        self.monitor.advance(end - begin, begin // self.prepared.plan.chunk_size + 1)

    def _wait(self, arrays: list) -> None:
        if self.monitor.has_deadline:
            # polled: block_until_ready cannot be given a time limit
            pause = 1e-4
            while not all(is_ready(a) for a in arrays if isinstance(a, jax.Array)):
                self.monitor.check()
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        jax.block_until_ready(arrays)

    # ---------------------------------------------------------------- chunks that are done

    def _take_finished(self) -> set[int]:
        if self.finished is None:
            return set()
        for begin, (end, arrays) in self.finished.chunks.items():
            self.collector.add(begin, end, arrays)
        self.resumed = self.finished.items
        return set(self.finished.chunks)

    def _keep_finished(self, error: BaseException) -> None:
        """What is done stays, in memory if there is no folder, and the error says so."""
        plan = self.prepared.plan
        done = self.monitor.progress().done
        if plan.chunks < 2 or not done or self.options.on_error == "skip":
            return
        if self.finished is None or self.finished.folder is None:
            if not worth_keeping(error):
                return
            kept = Finished(identify(self.batch, self.options, self.prepared.item, self.function), plan.chunk_size)
            for begin, end in plan.bounds():
                if self.collector.has(begin):
                    kept.add(begin, end, self.collector.rows(begin, end))
            keep(kept)
            done = kept.items
        error.add_note(kept_note(done, plan.length))

    # ---------------------------------------------------------------- failing items

    @contextlib.contextmanager
    def _naming_items(self, begin: int, end: int) -> Iterator[None]:
        """A failing chunk is run again item by item, to name the item or to keep the others."""
        __tracebackhide__ = True
        try:
            yield
        except JaxparError:
            raise
        except Exception as error:
            debugging = type(error).__name__ == "InternalFloatingPointError"  # jax_debug_nans, at ahead-of-time calls
            if not self.prepared.item.facts.callbacks and not debugging:
                raise
            found = self._run_one_by_one(begin, end)
            if found and debugging and self.options.on_error == "raise":
                index = found[0][0]
                raise FloatingPointError(
                    f"NaN or inf in the result of item {index} of {self.batch.length} "
                    f"({self.batch.describe_item(index)}); jax_debug_nans is on"
                ) from None
            if not found:  # it does not fail alone: the error is not one item's
                raise
            if self.options.on_error == "raise":
                error.add_note(item_note(self.batch, found[0][0]))
                raise
            self.failures.extend(found)

    def _run_one_by_one(self, begin: int, end: int) -> list[tuple[int, BaseException]]:
        skip = self.options.on_error == "skip"
        single = strategies.get("vmap").prepare(self.prepared.item, Layout(1, self.prepared.devices[:1], 1, 1))
        placed = single.place_shared([*(x.array for x in self.shared), *self.prepared.item.constants])
        failed: list[tuple[int, BaseException]] = []
        for i in range(begin, end):
            try:
                arrays = single.run(_cut(self.mapped, i, i + 1, 1, single), placed)
                jax.block_until_ready(arrays)
            except Exception as error:
                failed.append((i, error))
                if not skip:
                    break
            else:
                if skip and self.collector.length > 1:
                    self.collector.add(i, i + 1, arrays)
        return failed


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


def _cut(mapped: Sequence[Leaf], begin: int, end: int, size: int, executable: Executable) -> list:
    """Items `begin` to `end` of each leaf, filled up to `size`, on the devices."""
    arrays = []
    for leaf in mapped:
        array = leaf.array
        whole = begin == 0 and end == array.shape[0] == size
        if not whole and isinstance(array, jax.Array) and _on_cpu(array):
            array = np.asarray(array)  # a view; cutting it is then no JAX operation
        part = array if whole else array[begin:end]
        if end - begin < size:
            xp = jnp if isinstance(part, jax.Array) else np
            # repeats of a real item: whatever the function does with it is harmless
            last = xp.broadcast_to(part[-1:], (size - (end - begin), *part.shape[1:]))
            part = xp.concatenate([part, last])
        arrays.append(part)
    return executable.place_mapped(arrays)


def _on_cpu(array: jax.Array) -> bool:
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())


def item_report(batch: Batch, i: int, error: BaseException) -> ItemReport:
    lines = str(error).strip().splitlines()
    # a callback's exception arrives as the last line of the text of JAX's own
    text = lines[-1] if type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and lines else (lines or [""])[0]
    name = type(error).__name__
    problem = text if name in ("XlaRuntimeError", "JaxRuntimeError") else f"{name}: {text}"
    return ItemReport(i, batch.describe_item(i), problem)


def while_tracing(error: BaseException) -> bool:
    """Whether `error` came out of tracing the function, not out of running it."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is trace_item.__code__:
            return True
        frame = frame.tb_next
    return False
