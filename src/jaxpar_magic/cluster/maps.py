"""`strategy="cluster"`: a map whose chunks run on the engines of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from .._jax import registered_pytree
from ..errors import DeviceError, WorkerError
from ..mapping.captured import captured, fingerprint
from ..mapping.checkpoint import new_folder
from ..mapping.collect import Collector
from ..mapping.facts import ItemFacts
from ..mapping.inputs import Batch, Leaf, check_range, check_widths
from ..mapping.monitor import Monitor
from ..mapping.options import MapOptions
from ..mapping.plain import as_if_local
from ..mapping.planner import (
    LONG_SECONDS,
    TINY_SECONDS,
    MapPlan,
    Resources,
    Way,
    first_way,
    python_chunk,
    without_remainder,
)
from ..mapping.prepare import Prepared, Timer, traced, weak
from ..mapping.result import ItemReport, MapReport, MapResult
from ..mapping.sinks import FileResult
from ..mapping.sources import LazyArray
from ..mapping.strategies.serial import item_note
from ..mapping.traced import ChunkedRun, item_report, traced_report
from ..mapping.tracing import ItemProgram
from ..mapping.tuner import way_text
from ..mapping.worker_pickle import Outbound
from ..mapping.workers import ItemFailure, as_failure, read_entries, rebuilt_error, without_unpicklable
from .crew import Crew, Member, Piece
from .engine_map import Arrays
from .engines import Cluster
from .transport import LEAST_SHARED, Block, FileArray, Packed, pack, unpack

# Chunks for each engine: few enough to cost little, and enough that uneven engines and items balance.
CHUNKS, LEAST_CHUNKS = 32, 4
# A chunk is of at least so many bytes where its size does not matter otherwise, and of at most so many.
LEAST_BYTES, MOST_BYTES = 1 << 20, 32 << 20
# Items that a device takes together at least, where all it has would fit into one batch.
LEAST_WIDTH = 64
# Items of plain Python that travel together at most.
MOST_ITEMS = 4096


class ClusterMaps:
    """Runs maps on the cluster of this process; see `mapping.elsewhere.Runner`."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster

    def parts(self) -> int:
        return len(self.cluster.expected)

    def run_traced(self, function: Callable, batch: Batch, options: MapOptions, monitor: Monitor) -> MapResult:
        __tracebackhide__ = True
        timer, begin = Timer(), time.perf_counter()
        mapped, shared = batch.leaves()
        notes = check_widths(mapped, shared)
        found = captured(function)
        item, _, identity, finished = traced(function, batch, options, found, fingerprint(found), monitor)
        timer.compile = time.perf_counter() - begin
        with _held(self.cluster, monitor):
            crew = Crew(self.cluster, monitor, options.memory)
            as_before = options if finished is None else replace(options, chunk_size=finished.chunk_size)
            plan = self.plan(item, batch.length, as_before)
            if identity is not None and finished is None:
                assert options.checkpoint is not None
                finished = new_folder(options.checkpoint, identity, plan.chunk_size)
            # engines have executables of their own
            prepared = Prepared(weak(function), cast(Any, None), item, plan, cast(Any, None), (), finished=finished)
            run = _ArraysRun(function, batch, prepared, options, monitor, timer, crew)
            begin = time.perf_counter()
            value = run.run()
        left_out = batch.length - plan.length
        if left_out:
            notes.append(f"the last {left_out} of {batch.length} items are left out (remainder='drop')")
        report = traced_report(prepared, timer, [*crew.notes, *notes, *item.notes])
        run.tell(report, self.cluster)
        report.run_seconds = time.perf_counter() - begin
        report.failed = [item_report(batch, i, error) for i, error in sorted(run.failures, key=lambda f: f[0])]
        if options.check == "finite":
            report.not_finite = [ItemReport(i, batch.describe_item(i), what) for i, what in run.collector.not_finite()]
        return MapResult(value, report)

    def run_spmd(
        self,
        function: Callable,
        inputs: Sequence[Any],
        named: dict[str, Any],
        options: MapOptions,
        monitor: Monitor,
    ) -> MapResult:
        """One program over all engines."""
        from .spmd import run_spmd

        return run_spmd(self.cluster, function, inputs, named, options, monitor)

    def run_items(
        self,
        function: Callable,
        batch: Batch,
        todo: Sequence[int],
        results: dict[int, Any],
        options: MapOptions,
        monitor: Monitor,
        on_done: Callable[[int], None],
    ) -> tuple[list[ItemFailure], list[str]]:
        __tracebackhide__ = True
        shared, batch = batch.split_shared()
        job = _Items(function, shared, batch, results, options, on_done)
        size = options.chunk_size or min(MOST_ITEMS, python_chunk(len(todo), 8 * self.parts(), None))
        with _held(self.cluster, monitor):
            crew = Crew(self.cluster, monitor)
            crew.run(_neighbours(todo, size), job)
        return sorted(job.failures, key=lambda failure: failure.index), crew.notes

    def plan(self, item: ItemProgram, length: int, options: MapOptions) -> MapPlan:
        engines = self.cluster.expected
        least = min(e.devices for e in engines)
        if options.devices is not None and options.devices > least:
            raise DeviceError(
                f"devices={options.devices}: an engine of the cluster has {least}.",
                argument="devices",
                next_step=f"%jaxcluster stop, then %jaxcluster start --devices-per-engine {options.devices}",
            )
        devices = options.devices or max(e.devices for e in engines)
        return cut(item.facts, length, len(engines), devices, options)


@contextlib.contextmanager
def _held(cluster: Cluster, monitor: Monitor) -> Iterator[None]:
    """The cluster for this map alone; one of another thread is waited for."""
    while not cluster.lock.acquire(timeout=0.1):
        monitor.check()
    try:
        yield
    finally:
        cluster.lock.release()


# -------------------------------------------------------------------- how a map is cut


def cut(facts: ItemFacts, length: int, engines: int, devices: int, options: MapOptions) -> MapPlan:
    """Into how many chunks a map is cut for `engines` of `devices` each. Pure.

    Every chunk is of one size, the last filled up, so that each engine compiles once.

    Examples
    --------
    >>> cut(ItemFacts(...), 100_000, 2, 1, MapOptions()).chunks           # doctest: +SKIP
    64
    """
    length = without_remainder(length, engines * devices, options.remainder)
    if options.chunk_size is not None:
        size, reason = options.chunk_size, "chunks as asked"
    else:
        size, reason = _chunk(facts, length, engines, devices, options.batch_size)
    size = min(max(1, length), max(devices, math.ceil(size / devices) * devices))
    return MapPlan("cluster", length, engines, size, size // devices or 1, (reason,), pads=not facts.callbacks)


def _chunk(facts: ItemFacts, length: int, engines: int, devices: int, batch_size: int | None) -> tuple[int, str]:
    share = max(1, math.ceil(length / engines))
    seconds = share * facts.nanoseconds * 1e-9 / devices
    most = max(1, MOST_BYTES // max(1, facts.input_bytes + facts.output_bytes))
    if not facts.has_while and seconds < TINY_SECONDS:
        return min(share, most), "little work: as few chunks as possible"
    way, _ = first_way(facts, share, Resources(devices, "cpu", devices, 1 << 62, devices))
    width = batch_size or way.width
    size = math.ceil(share / CHUNKS)
    if not facts.has_while and seconds > CHUNKS * LONG_SECONDS:
        size = math.ceil(share * LONG_SECONDS / seconds)
    if width is not None:
        least = devices * width
    elif facts.fuses:
        least = LEAST_BYTES // max(1, facts.input_bytes + facts.output_bytes)
    else:
        least = devices * LEAST_WIDTH
    size = max(size, min(least, math.ceil(share / LEAST_CHUNKS)))
    return min(size, most), "chunks go to engines as they come free, neighbours together where they are quick"


def _neighbours(todo: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of runs of neighbours, of at most `size` items."""
    for _, group in itertools.groupby(enumerate(todo), lambda pair: pair[1] - pair[0]):
        indices = [i for _, i in group]
        for begin in range(indices[0], indices[-1] + 1, size):
            yield begin, min(begin + size, indices[-1] + 1)


# -------------------------------------------------------------------- arrays


class _SharedCollector(Collector):
    """A result in shared memory, into which engines on this machine write their rows themselves."""

    def __init__(self, outputs: Sequence[Any], length: int):
        super().__init__(outputs, length)
        self._blocks: list[Block] = []
        self._host = []
        for output in outputs:
            dtype = np.dtype(output.dtype)
            size = length * int(np.prod(output.shape, dtype=np.int64)) * dtype.itemsize
            block = Block(size)
            self._blocks.append(block)
            memory = np.frombuffer(block.map(size), np.uint8) if size else np.empty(0, np.uint8)
            self._host.append(memory.view(dtype).reshape(length, *output.shape))

    def targets(self, begin: int) -> list[tuple[Any, int]]:
        """Where engines write the rows from `begin` on: (address, offset) for each output."""
        assert self._host is not None
        rows = (a.nbytes // max(1, len(a)) for a in self._host)
        return [(block.address, begin * row) for block, row in zip(self._blocks, rows)]

    def written(self, begin: int) -> None:
        """The chunk that begins there is in its place."""
        self._begins.add(begin)

    def close(self) -> None:
        for block in self._blocks:
            block.close()


class _ArraysRun(ChunkedRun):
    """A run over the chunks of a plan, on engines. Also the crew's job."""

    def __init__(self, function, batch, prepared, options, monitor, timer, crew: Crew):
        self.crew = crew
        super().__init__(function, batch, prepared, options, monitor, timer)
        self.outbound = _outbound(function, batch, options)
        facts = prepared.item.facts
        each = max(1, (facts.input_bytes + facts.output_bytes) * prepared.plan.chunk_size)
        self.most_chunks = max(1, MOST_BYTES // each)
        self.done_chunks = 0
        self.engine_facts: dict[int, dict[str, Any]] = {}
        self._files: dict[str, FileArray | None] = {leaf.name: FileArray.of(leaf.array) for leaf in self.mapped}
        self._unseen: set[tuple[int, str]] = set()  # (engine, input) of files that it cannot open

    def _make_collector(self) -> Collector | FileResult:
        item, plan = self.prepared.item, self.plan
        size = plan.length * item.facts.output_bytes
        if self.options.out_file is None and size >= LEAST_SHARED and any(m.shares for m in self.crew.members):
            return _SharedCollector(item.outputs, plan.length)
        return super()._make_collector()

    def _place_shared(self) -> None:
        """It travels with the function."""

    def _try_ways(self, todo: list[tuple[int, int]]) -> None:
        """Each engine does that for itself."""

    def _work(self, todo: Iterable[tuple[int, int]]) -> None:
        __tracebackhide__ = True
        try:
            self.crew.run(todo, self)
        finally:
            if isinstance(self.collector, _SharedCollector):
                self.collector.close()

    def tell(self, report: MapReport, cluster: Cluster) -> None:
        """What the engines said of themselves."""
        devices = sorted({self.options.devices or e.devices for e in cluster.engines} or {1})
        many = devices[-1] != 1
        report.each = (
            f"{'-'.join(str(n) for n in dict.fromkeys((devices[0], devices[-1])))} device{'s' if many else ''}"
        )
        report.resumed = self.resumed
        report.chunk_seconds = self.chunk_seconds
        report.batch_size = None
        told = list(self.engine_facts.values())
        if told:
            report.compile_seconds += max(facts["compile"] for facts in told)
            report.reused = all(facts["reused"] for facts in told)
            ways = dict.fromkeys(facts["way"] for facts in told)
            ways_told = ", ".join(way_text(Way(name, width)) for name, width in ways)
            report.reasons = (*report.reasons, f"on the engines: {ways_told}")

    # ---------------------------------------------------------------- what the crew asks

    def request(self, piece: Piece, member: Member, block: Block | None) -> tuple[dict[str, Any], Sequence[Any]]:
        begin, end = piece.begin, piece.end
        inputs: list[FileArray | Packed | None] = []
        arrays = []
        for leaf in self.mapped:
            file = self._files[leaf.name]
            if file is None or (member.engine.id, leaf.name) in self._unseen:
                inputs.append(None)
                arrays.append(_rows(leaf, begin, end))
            else:
                inputs.append(file)
        if sum(a.nbytes for a in arrays) < LEAST_SHARED:
            block = None
        where, buffers = pack(arrays, block)
        packed = iter(where)
        shared = isinstance(self.collector, _SharedCollector) and member.shares
        return {
            "first": begin,
            "total": self.batch.length,
            "chunk": self.plan.chunk_size,
            "counts": [e - b for b, e in piece.chunks],
            "inputs": [next(packed) if x is None else x for x in inputs],
            "block": None if block is None else block.address,
            "targets": self.collector.targets(begin) if shared else [],  # type: ignore[union-attr]
            "memory": member.memory,
        }, buffers

    def take(self, piece: Piece, member: Member, details: Sequence[Any], buffers: list) -> BaseException | None:
        facts, failures, where = details
        self.failures += [
            (i, self._as_local(i, member, kind, message, trace, parts).error)
            for i, kind, message, trace, parts in failures
        ]
        lost = {i for i, *_ in failures}
        arrays = unpack(where, buffers)
        for begin, end in piece.chunks:
            if arrays:
                rows = slice(begin - piece.begin, end - piece.begin)
                self.collector.add(begin, end, [a[rows] for a in arrays])
            elif isinstance(self.collector, _SharedCollector):
                self.collector.written(begin)
            if self.finished is not None and not any(begin <= i < end for i in lost):
                self.finished.add(begin, end, self.collector.rows(begin, end))
            self.done_chunks += 1
            self.chunk_seconds.append(facts["seconds"] / len(piece.chunks))
            self.monitor.advance(end - begin, self.done_chunks)
        known = self.engine_facts.setdefault(member.engine.id, {"compile": 0.0, "reused": True})
        known["compile"] += facts["compile"]
        known["reused"] &= facts["reused"]
        known["way"] = facts["way"]
        return None

    def failed(self, piece: Piece, member: Member, details: Sequence[Any], buffers: list) -> BaseException:
        index, kind, message, trace = details
        failure = self._as_local(piece.begin if index is None else index, member, kind, message, trace, buffers)
        at = f", on {member}"
        note = f"parmap: {piece} of {self.batch.length}{at}" if index is None else item_note(self.batch, index) + at
        return as_if_local(failure, note)

    def _as_local(self, index, member: Member, kind: str, message: str, trace: str, parts: list) -> ItemFailure:
        return as_failure(index, rebuilt_error([bytes(p) for p in parts], self.outbound), kind, message, trace)

    def unreachable(self, piece: Piece, member: Member, what: str) -> str:
        path = what.partition(":")[0]
        names = [name for name, file in self._files.items() if file is not None and file.path == path]
        self._unseen |= {(member.engine.id, name) for name in names}
        return f"{member} does not see {what}: its items of {', '.join(names)} are sent"

    def give_up(self, piece: Piece, error: WorkerError) -> None:
        if self.options.on_error != "skip":
            raise error
        self.failures += [(i, error) for i in range(piece.begin, piece.end)]
        self.monitor.advance(piece.end - piece.begin, self.done_chunks)


def _rows(leaf: Leaf, begin: int, end: int) -> np.ndarray:
    """Items of an input on their way, as JAX will have them."""
    part = np.asarray(leaf.array)[begin:end] if not isinstance(leaf.array, LazyArray) else leaf.array[begin:end]
    if isinstance(leaf.array, LazyArray):
        check_range(leaf.name, part)
    return part


def _outbound(function: Callable, batch: Batch, options: MapOptions) -> Outbound:
    """The function, the inputs without what is mapped, and what JAX must know of the notebook's classes."""

    def bare(leaf: Leaf) -> Leaf:
        return replace(leaf, array=None if leaf.mapped else np.asarray(leaf.array))

    arguments = [
        # a structure cannot be pickled where it has classes of the user's, an example of it can
        replace(a, value=[bare(x) for x in a.value], treedef=a.treedef.unflatten(range(len(a.value))))
        if a.kind == "tree"
        else a
        for a in batch.arguments
    ]
    own = MapOptions(devices=options.devices, batch_size=options.batch_size, on_error=options.on_error, out_axes=0)
    along = Arrays(replace(batch, arguments=arguments, notes=[]), [], own)
    while True:
        outbound = Outbound.of(function, along, "the engines of the cluster")
        registered = [(kind, *how) for kind in outbound.classes.values() if (how := registered_pytree(kind))]
        if len(registered) == len(along.registered):
            return outbound
        along.registered = registered


# -------------------------------------------------------------------- items of plain Python


class _Items:
    """The crew's job where items are Python objects."""

    most_chunks = 1 << 30

    def __init__(self, function, shared: dict[str, Any], batch: Batch, results, options: MapOptions, on_done):
        self.outbound = Outbound.of(function, shared, "the engines of the cluster")
        self.batch = batch
        self.results = results
        self.options = options
        self.on_done = on_done
        self.failures: list[ItemFailure] = []
        self._class_parts: list[tuple[dict, list]] = []
        self._done = 0

    def request(self, piece: Piece, member: Member, block: Block | None) -> tuple[dict[str, Any], Sequence[Any]]:
        items = [(i, *self.batch.item(i)) for i in range(piece.begin, piece.end)]
        try:
            parts, classes = self.outbound.pack_items(items)
        except Exception:
            stop = self.options.on_error == "raise"
            items, failures = without_unpicklable(items, stop, "an engine")
            if failures and stop:
                raise failures[0].error from None
            self.failures += failures
            parts, classes = self.outbound.pack_items(items)
        if classes is not None:
            self._class_parts.append((dict(self.outbound.sources), [bytes(part) for part in classes]))
        known, member.class_parts = member.class_parts, len(self._class_parts)
        new = self._class_parts[known:]
        return {"known": known, "classes": new, "stop_at_failure": self.options.on_error == "raise"}, [
            memoryview(p) for p in parts
        ]

    def take(self, piece: Piece, member: Member, details: Sequence[Any], buffers: list) -> BaseException | None:
        __tracebackhide__ = True
        _, entries, sizes = details
        ends = list(itertools.accumulate(sizes))
        parts = [bytearray(buffers[0][end - size : end]) for end, size in zip(ends, sizes)]
        failures = read_entries(entries, parts, self.outbound, self.results, str(member))
        if failures and self.options.on_error == "raise":
            note = f"{item_note(self.batch, failures[0].index)}, on {member}"
            return as_if_local(failures[0], note)
        self.failures += failures
        self._finish(piece)
        return None

    def _finish(self, piece: Piece) -> None:
        self._done += piece.end - piece.begin
        self.on_done(self._done)

    def failed(self, piece: Piece, member: Member, details: Sequence[Any], buffers: list) -> BaseException:
        _, kind, message, trace = details
        return as_if_local(as_failure(piece.begin, None, kind, message, trace), f"parmap: {piece}, on {member}")

    def unreachable(self, piece: Piece, member: Member, what: str) -> str:
        return f"{member}: {what}"

    def give_up(self, piece: Piece, error: WorkerError) -> None:
        if self.options.on_error != "skip":
            raise error
        self.failures += [ItemFailure(i, error, "") for i in range(piece.begin, piece.end)]
        self._finish(piece)
