"""Maps of a traced function: chunks in, chunks out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import is_ready, setting
from ..errors import JaxparError
from . import strategies
from .checkpoint import Finished, identify, keep, kept_note, worth_keeping
from .collect import Collector, assemble, not_finite_rows
from .inputs import Batch, Leaf, check_range, check_widths
from .memory import Trimmer, memory_bound
from .monitor import Monitor
from .options import MapOptions
from .parts import Followed, Started
from .prepare import Prepared, Timer, in_way, prepare
from .result import LEAST_DRAWN, MOST_DRAWN, ItemReport, MapReport, MapResult
from .sinks import FileResult
from .sources import LazyArray
from .strategies.base import Executable, Layout
from .strategies.serial import item_note
from .tracing import trace_item
from .tuner import SHARE_OF_LONG, remember, way_text

# A map with fewer chunks than this is too short to try other ways in.
MIN_CHUNKS = 6
# A chunk that is tried another way may be filled up to so many times its items.
MAX_FILLED = 1.1
# Devices are followed one by one where chunks take at least so long. Two threads that wait cost some 0.1 ms.
FOLLOWED_SECONDS = 0.05


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
    report = traced_report(prepared, timer, [*notes, *prepared.item.notes])
    begin = time.perf_counter()
    run = ChunkedRun(function, batch, prepared, options, monitor, timer)
    try:
        value = run.run()
    finally:
        prepared.let_go(len(shared))
    report.run_seconds = time.perf_counter() - begin - run.compile_seconds
    report.resumed = run.resumed
    _learn(prepared, run, report, timer)
    run.tell_times(report)
    report.failed = [item_report(batch, i, error) for i, error in run.failures]
    if options.check == "finite":
        report.not_finite = [ItemReport(i, batch.describe_item(i), what) for i, what in run.collector.not_finite()]
    return MapResult(value, report)


def _learn(prepared: Prepared, run: ChunkedRun, report: MapReport, timer: Timer) -> None:
    """Tell `auto`'s tuning how long it took, and the report what was tried."""
    tuning = prepared.tuning
    new = learn(prepared, run, report.run_seconds)
    if tuning is None or new is None:
        return
    report.tried = run.trials
    if prepared.way != run.prepared.way:
        report.batch_size = run.prepared.plan.width
        report.strategy, report.parts = run.prepared.plan.strategy, run.prepared.plan.parts
        report.unit = unit_of(report.strategy)
    report.compile_seconds = timer.compile
    if new and not run.trials:
        report.tried = [(way_text(way), each * tuning.length) for way, each in tuning.finite().items()]


def learn(prepared: Prepared, run: ChunkedRun, seconds: float) -> bool | None:
    """Tell `auto`'s tuning how long a run took. Whether another way was measured; None where nothing can be told."""
    tuning = prepared.tuning
    if tuning is None or run.resumed or run.failures:
        return None
    assert prepared.way is not None
    new = bool(run.trials) or (bool(tuning.measured) and prepared.way not in tuning.measured)
    if not run.trials:
        tuning.record(prepared.way, prepared.plan.length, seconds)
    if new:
        remember(tuning)
    return new


class ChunkedRun:
    """One run over the chunks of a plan: dispatch, wait, collect, keep."""

    def __init__(
        self,
        function: Callable,
        batch: Batch,
        prepared: Prepared,
        options: MapOptions,
        monitor: Monitor,
        timer: Timer,
    ) -> None:
        self.function = function
        self.batch = batch
        self.plan = prepared.plan  # whichever way runs its chunks
        finished = prepared.finished
        self.bounds = prepared.plan.bounds(None if finished is None else finished.chunk_size)
        self.prepared = prepared
        self.timer = timer
        self.options = options
        self.monitor = monitor
        self.mapped, self.shared = batch.leaves()
        self.reads = any(isinstance(leaf.array, LazyArray) for leaf in self.mapped)
        self.running: Running | None = None
        self.collector = self._make_collector()
        self.trimmer = Trimmer(memory_bound(options.memory)) if prepared.plan.chunks > 1 or self.reads else None
        self.failures: list[tuple[int, BaseException]] = []
        self.finished = prepared.finished
        self.resumed = 0
        self.chunk_seconds: list[float] = []
        self.part_seconds: list[tuple[str, list[float]]] = []  # strategy of each chunk, and its parts
        self._last_ready = time.perf_counter()
        self.trials: list[tuple[str, float]] = []  # ways tried in this run, and seconds that the map would take
        self.compile_seconds = 0.0  # for them

    def tell_times(self, report: MapReport) -> None:
        """Fill in the seconds of chunks, and of their parts where the strategy is the report's."""
        report.chunk_seconds = self.chunk_seconds
        report.part_seconds = [seconds if name == report.strategy else [] for name, seconds in self.part_seconds]

    def _make_collector(self) -> Collector | FileResult:
        item, plan, path = self.prepared.item, self.plan, self.options.out_file
        if path is None:
            return Collector(item.outputs, plan.length)
        finite = self.options.check == "finite"
        return FileResult(
            Path(path), item.out_tree, item.outputs, plan.length, chunk_size=plan.chunk_size, check_finite=finite
        )

    def run(self) -> Any:
        """All chunks; the value of the map, without the items that failed."""
        __tracebackhide__ = True
        try:
            return self._run()
        except BaseException:
            self.collector.discard()
            raise

    def _run(self) -> Any:
        __tracebackhide__ = True
        plan = self.plan
        done = self._take_finished()
        todo = [bounds for bounds in self.bounds if bounds[0] not in done]
        self.monitor.plan(plan.length, len(self.bounds), f"{plan.parts} {unit_of(plan.strategy)}s", self.resumed)
        self.monitor.phase("running")
        self._place_shared()
        self._last_ready = time.perf_counter()
        try:
            self._try_ways(todo)
            self._work(todo)
        except BaseException as error:
            self._keep_finished(error)
            raise
        return self._result()

    def _result(self) -> Any:
        """What the map gives, when all chunks are collected."""
        item, plan = self.prepared.item, self.plan
        if isinstance(self.collector, FileResult):
            return self.collector.finish()
        kept = None
        if self.failures:
            lost = {i for i, _ in self.failures}
            kept = [i for i in range(plan.length) if i not in lost]
        leaves = self.collector.leaves(kept)
        jax.block_until_ready(leaves)
        return assemble(leaves, item.out_tree, item.outputs, self.options.out_axes)

    def _work(self, todo: Iterable[tuple[int, int]]) -> None:
        """Two chunks under way: the next one is read, cut and copied while the devices compute."""
        __tracebackhide__ = True
        waiting: list[tuple[int, int, Started | Running]] = []
        for begin, end in todo:
            self.monitor.check()
            with self._naming_items(begin, end):
                waiting.append((begin, end, self._dispatch(begin, end)))
            if len(waiting) > 1:
                self._collect(*waiting.pop(0))
        while waiting:
            self._collect(*waiting.pop(0))

    def _try_ways(self, todo: list[tuple[int, int]]) -> None:
        """Give some of the first chunks of a long map to other ways of running it; takes them from `todo`.

        Chunks may differ in cost, so what runs another way is compared with its two neighbours.
        """
        __tracebackhide__ = True
        tuning = self.prepared.tuning
        if tuning is None or len(todo) < MIN_CHUNKS:
            return
        left = self._timed_chunk(todo)
        items = self.bounds[0][1]
        while len(todo) > 2 and (way := tuning.untried(self.plan.chunk_size)) is not None:
            if self.compile_seconds + tuning.compile_seconds > SHARE_OF_LONG * left * len(todo):
                return
            begin = time.perf_counter()
            self.monitor.phase("compiling")
            try:
                other = in_way(self.prepared, way, self.timer)
                fits = items <= other.plan.chunk_size <= MAX_FILLED * items  # memory may want other chunks
            except Exception:
                fits = False
            self.monitor.phase("running")
            self.compile_seconds += time.perf_counter() - begin
            if not fits:
                tuning.refuse(way)
                continue
            before = self.prepared
            assert before.way is not None
            bounds = todo[0]
            try:
                then = self._timed_chunk(todo, other)
            except JaxparError:
                raise
            except Exception:  # of this way, such as too little memory; what is the function's comes again
                todo[:0] = [bounds]
                tuning.refuse(way)
                self.prepared = before
                self._place_shared()
                continue
            right = self._timed_chunk(todo, before)
            now = (left + right) / 2
            usual = tuning.measured.get(before.way, now / items)
            tuning.record(before.way, items, usual * items)
            tuning.record(way, items, usual * items * then / now)
            if not self.trials:
                self.trials.append((way_text(before.way), usual * tuning.length))
            self.trials.append((way_text(way), usual * tuning.length * then / now))
            left = right
            if tuning.best == way:
                self.prepared, left = other, then
                self._place_shared()

    def _timed_chunk(self, todo: list[tuple[int, int]], prepared: Prepared | None = None) -> float:
        """Run the next chunk by itself, in another way if one is given; its seconds."""
        __tracebackhide__ = True
        self.monitor.check()
        if prepared is not None and prepared is not self.prepared:
            self.prepared = prepared
            self._place_shared()
        begin = time.perf_counter()
        first, last = todo.pop(0)
        with self._naming_items(first, last):
            arrays = self._dispatch(first, last)
        self._collect(first, last, arrays)
        return time.perf_counter() - begin

    def _place_shared(self) -> None:
        prepared, arrays = self.prepared, [x.array for x in self.shared]
        if prepared.shared is None:
            prepared.shared = prepared.executable.place_shared([*arrays, *prepared.item.constants])
        elif arrays:
            prepared.shared[: len(arrays)] = prepared.executable.place_shared(arrays)

    def _dispatch(self, begin: int, end: int) -> Started | Running:
        prepared, plan = self.prepared, self.prepared.plan
        if prepared.tail is not None and end - begin < plan.chunk_size:
            placed = prepared.tail.place_shared([*(x.array for x in self.shared), *prepared.item.constants])
            return self._call(prepared.tail, _cut(self.mapped, begin, end, plan.tail, prepared.tail), placed)
        arrays = _cut(self.mapped, begin, end, plan.chunk_size, prepared.executable)
        assert prepared.shared is not None
        return self._call(prepared.executable, arrays, prepared.shared)

    def _call(self, executable: Executable, arrays: list, shared: list) -> Started | Running:
        """Start a program. XLA may run it inside the call, and a loop there may never end."""
        __tracebackhide__ = True
        follow = self._worth_following(executable)

        def start() -> Started:
            begin = time.perf_counter()
            if executable.run_timed is not None:
                outputs, seconds = executable.run_timed(arrays, shared)
                return Started(outputs, begin, seconds, time.perf_counter())
            outputs = executable.run(arrays, shared)
            return Started(outputs, begin, Followed(outputs[0]) if follow and outputs else None)

        if self.reads:
            # In a thread, while the next chunk is read here: a reader may belong to the thread that made it. One
            # after the other, so that two chunks at most are in memory.
            if self.running is not None:
                self.running.wait(self.monitor.check)
            self.running = Running(start)
            return self.running
        if not (self.monitor.has_deadline or self.prepared.item.facts.has_while):
            return start()
        # In a thread, so that an interrupt and the time limit take effect.
        return Running(start, until_ready=False).result(self.monitor.check)

    def _worth_following(self, executable: Executable) -> bool:
        """Whether to see how long each device takes: where the report draws chunks, and a chunk takes its time."""
        return (
            executable.apart
            and self.plan.parts <= MOST_DRAWN
            and max(len(self.bounds), len(self.chunk_seconds)) >= LEAST_DRAWN  # an iterator tells no number
            and bool(self.chunk_seconds)
            and self.chunk_seconds[-1] >= FOLLOWED_SECONDS
            and self.prepared.devices[0].platform == "cpu"  # others begin a chunk each when it is free
        )

    def _collect(self, begin: int, end: int, chunk: Started | Running) -> None:
        __tracebackhide__ = True
        parts: list[float] = []
        ready: float | None = None
        with self._naming_items(begin, end):
            if isinstance(chunk, Running):
                chunk = chunk.result(self.monitor.check)
            arrays = chunk.arrays
            self._wait(arrays)
            _refuse_nan(arrays)
            parts, ready = chunk.part_seconds(self._last_ready)
            in_order = self.prepared.executable.in_order
            self.collector.add(begin, end, arrays if in_order is None else [in_order(a) for a in arrays])
        if self.finished is not None and not any(begin <= i < end for i, _ in self.failures):
            self.finished.add(begin, end, self.collector.rows(begin, end))
        if ready is None:  # items of it failed
            ready = time.perf_counter()
        self.chunk_seconds.append(ready - self._last_ready)
        self.part_seconds.append((self.prepared.plan.strategy, parts))
        self._last_ready = ready
        if self.trimmer is not None:
            self.trimmer.after_chunk()
        self.monitor.advance(end - begin, begin // self.bounds[0][1] + 1)

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
        for begin, (end, _) in self.finished.chunks.items():
            self.collector.add(begin, end, self.finished.values(begin))
        self.resumed = self.finished.items
        return set(self.finished.chunks)

    def _keep_finished(self, error: BaseException) -> None:
        """What is done stays, in memory if there is no folder, and the error says so."""
        plan = self.plan
        done = self.monitor.progress().done
        if len(self.bounds) < 2 or not done or self.options.on_error == "skip":
            return
        if self.finished is None or self.finished.folder is None:
            if not worth_keeping(error):
                return
            if self.options.out_file is not None or sum(_unread_bytes(x) for x in self.mapped) > HASHED_BYTES:
                error.add_note(f"parmap: {done:,} of {plan.length:,} items were done; --checkpoint DIR would keep them")
                return
            identity = identify(self.batch, self.options, self.prepared.item, self.function)
            kept = Finished(identity, self.bounds[0][1])
            for begin, end in self.bounds:
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
            # jax_debug_nans: JAX's, at the first call of a compiled program, and ours
            debugging = type(error).__name__ in ("InternalFloatingPointError", "FloatingPointError")
            if not self.prepared.item.facts.callbacks and not debugging:
                raise
            found = self._run_one_by_one(begin, end)
            if found and debugging and self.options.on_error == "raise":
                index = found[0][0]
                raise self._not_finite(index) from None
            if not found:  # it does not fail alone: the error is not one item's
                raise
            if self.options.on_error == "raise":
                self._blame(error, found[0][0])
                raise
            self.failures.extend(found)

    def _not_finite(self, index: int) -> FloatingPointError:
        return FloatingPointError(
            f"NaN or inf in the result of item {index} of {self.batch.length} "
            f"({self.batch.describe_item(index)}); jax_debug_nans is on"
        )

    def _blame(self, error: BaseException, index: int) -> None:
        """Say which item it was that failed."""
        error.add_note(item_note(self.batch, index))

    def _run_one_by_one(self, begin: int, end: int) -> list[tuple[int, BaseException]]:
        skip = self.options.on_error == "skip"
        single = strategies.get("vmap").prepare(self.prepared.item, Layout(1, self.prepared.devices[:1], 1, 1))
        placed = single.place_shared([*(x.array for x in self.shared), *self.prepared.item.constants])
        failed: list[tuple[int, BaseException]] = []
        for i in range(begin, end):
            try:
                arrays = single.run(_cut(self.mapped, i, i + 1, 1, single), placed)
                jax.block_until_ready(arrays)
                _refuse_nan(arrays)
            except Exception as error:
                failed.append((i, error))
                if not skip:
                    break
            else:
                if skip and self.plan.length > 1:
                    self.collector.add(i, i + 1, arrays)
        return failed


def _refuse_nan(arrays: Sequence[Any]) -> None:
    """FloatingPointError where jax_debug_nans or jax_debug_infs wants one.

    JAX itself looks at the results of the first call of a compiled program only.
    """
    wanted = [what for what in ("NaN", "inf") if setting(f"jax_debug_{what.lower()}s")]
    if (
        wanted
        and arrays
        and any(w in wanted for _, w in not_finite_rows([np.asarray(a) for a in arrays], len(arrays[0])))
    ):
        raise FloatingPointError("NaN or inf in a result")


def unit_of(strategy: str) -> str:
    """What shares the work of a chunk: devices, or threads on one device; or engines that take chunk after chunk."""
    return {"thread": "thread", "cluster": "engine"}.get(strategy, "device")


# After an interrupt, inputs up to this size are read once more, so that they are known when the map goes on.
HASHED_BYTES = 256 << 20


def _unread_bytes(leaf: Leaf) -> int:
    return leaf.array.nbytes if isinstance(leaf.array, LazyArray) else 0


class Running:
    """A program that runs in a thread of its own. A daemon: one that hangs is left behind.

    Parameters
    ----------
    start: starts the program.
    until_ready: the thread ends when the results are ready; otherwise when they are under way.
    """

    def __init__(self, start: Callable[[], Started], *, until_ready: bool = True):
        self._outcome: list[Any] = []

        def call() -> None:
            try:
                chunk = start()
                if until_ready:
                    jax.block_until_ready(chunk.arrays)
                self._outcome.append(chunk)
            except BaseException as error:
                self._outcome.append(error)

        self._thread = threading.Thread(target=call, name="parmap-dispatch", daemon=True)
        self._thread.start()

    def wait(self, check: Callable[[], None]) -> None:
        """Wait for the end; `check` is called now and then and may raise."""
        while self._thread.is_alive():
            self._thread.join(0.05)
            check()

    def result(self, check: Callable[[], None]) -> Started:
        """Wait for the end and give what the program gave, or raise what it raised."""
        __tracebackhide__ = True
        self.wait(check)
        if isinstance(self._outcome[0], BaseException):
            raise self._outcome[0]
        return self._outcome[0]


def traced_report(prepared: Prepared, timer: Timer, notes: list[str]) -> MapReport:
    plan = prepared.plan
    return MapReport(
        plan.strategy,
        plan.length,
        plan.parts,
        unit_of(plan.strategy),
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
        lazy = isinstance(array, LazyArray)
        whole = begin == 0 and end == array.shape[0] == size and not lazy
        if not whole and isinstance(array, jax.Array) and _on_cpu(array):
            array = np.asarray(array)  # a view; cutting it is then no JAX operation
        part = array if whole else array[begin:end]
        if lazy:
            check_range(leaf.name, part)
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
