"""Maps over an iterator: its items are read chunk by chunk while the map runs, and their number is known at the end."""

from __future__ import annotations

import collections.abc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import InputError, OptionError
from . import strategies
from .collect import Collector, GrowingCollector, assemble, not_finite_rows
from .inputs import (
    Batch,
    Beginning,
    Companions,
    Leaf,
    NotStackable,
    Ragged,
    check_widths,
    input_names,
    item_structure,
    make_batch,
)
from .memory import DEFAULT_SHARE, memory_bound
from .monitor import Monitor
from .options import MapOptions
from .prepare import Prepared, Timer, prepare
from .result import ItemReport, MapResult
from .sinks import FileResult
from .sources import LazyArray
from .strategies.base import Layout
from .traced import ChunkedRun, item_report, traced_report, unit_of, while_tracing
from .tracing import NotTraceable

# Items read before the map begins, and per chunk later: so many, or as many as take so much memory. An iterator that
# ends within the first ones is a list.
MAX_ITEMS = 8192
MAX_BYTES = 64 << 20
# The first items, too, keep to this share of what the map may hold.
SHARE_OF_BOUND = 1 / 16


def run_stream(
    function: Callable, inputs: Sequence[Any], named: dict[str, Any], options: MapOptions, monitor: Monitor
) -> MapResult | tuple[list[Any], dict[str, Any]]:
    """Map over inputs of which some are iterators; or the inputs with lists in their place, if it takes lists.

    It does where the iterators end soon, where other inputs say how many items there are, and for plain Python.
    """
    __tracebackhide__ = True
    if not any(isinstance(value, collections.abc.Iterator) for value in (*inputs, *named.values())):
        return list(inputs), named
    every: dict[Any, Any] = {**dict(enumerate(inputs)), **named}
    names = input_names(function, len(inputs))
    readers = {
        k: Reader(k if isinstance(k, str) else names[k], value)
        for k, value in every.items()
        if isinstance(value, collections.abc.Iterator) and (k if isinstance(k, str) else names[k]) not in options.static
    }

    def given(items: dict[Any, list]) -> tuple[list[Any], dict[str, Any]]:
        values = {k: items.get(k, value) for k, value in every.items()}
        return [values[i] for i in range(len(inputs))], {n: values[n] for n in named}

    if not readers:
        return list(inputs), named
    read = {k: reader.take(1) for k, reader in readers.items()}
    size = options.chunk_size or _first_size(read.values(), options)
    read = {k: items + readers[k].take(size - 1) for k, items in read.items()}
    keeps = options.checkpoint is not None or options.resume  # must know the items before it runs
    whole = options.strategy in (*strategies.PYTHON, *strategies.ELSEWHERE)
    if keeps or whole or any(len(items) < size for items in read.values()):
        return given({k: items + readers[k].rest() for k, items in read.items()})

    def batch_of(items: dict[Any, list], first: int) -> Batch:
        own, by_name = given(items)
        keywords = {"in_axes": options.in_axes, "static": options.static, "key": options.key, "first": first}
        return make_batch(function, own, by_name, **keywords)

    try:
        batch = batch_of({k: Beginning(items) for k, items in read.items()}, 0)
        stacked = batch.stacked()
    except Companions as others:
        return given({k: items + readers[k].take(others.length + 1 - size) for k, items in read.items()})
    except (Ragged, NotStackable):
        return given({k: items + readers[k].rest() for k, items in read.items()})
    if options.remainder != "pad":
        raise OptionError(
            f"remainder={options.remainder!r}: needs the number of items, which an iterator does not tell.",
            argument="remainder",
            next_step="remainder='pad', or a list of the items",
        )
    try:
        return _run(function, Stream(stacked, readers, read, batch_of), options, monitor)
    except NotTraceable:
        if options.strategy != "auto":
            raise
    except Exception as error:
        if options.strategy != "auto" or not while_tracing(error):
            raise
    return given({k: items + readers[k].rest() for k, items in read.items()})


def _first_size(firsts: Any, options: MapOptions) -> int:
    leaves = [leaf for items in firsts for leaf in jax.tree_util.tree_leaves(items)]
    item = sum(getattr(leaf, "nbytes", 8) for leaf in leaves) or 1
    most = min(MAX_BYTES, int(memory_bound(options.memory) * SHARE_OF_BOUND))
    return max(1, min(MAX_ITEMS, most // item))


class Reader:
    """An iterator among the inputs, and how many items it has given."""

    def __init__(self, name: str, iterator: Iterator[Any]):
        self.name = name
        self._iterator = iterator
        self.count = 0

    def take(self, count: int | None) -> list[Any]:
        """The next `count` items, or all that are left; fewer where it ends."""
        items: list[Any] = []
        try:
            for item in itertools.islice(self._iterator, count):
                items.append(item)
        except Exception as error:
            error.add_note(f"parmap: {self.name}, an iterator, raised this in place of item {self.count + len(items)}")
            raise
        self.count += len(items)
        return items

    def rest(self) -> list[Any]:
        return self.take(None)


class StreamArray(LazyArray):
    """The items of one leaf that have been read and are still needed, under their numbers in the whole map."""

    def __init__(self, name: str, first: np.ndarray):
        super().__init__(name, first)
        self._pieces = [(0, first)]

    def append(self, piece: np.ndarray, keep_from: int) -> None:
        """Add the next items; those before `keep_from` are not needed any more."""
        begin = self.shape[0]
        self._pieces = [(b, a) for b, a in self._pieces if b + len(a) > keep_from]
        self._pieces.append((begin, piece))
        self.shape = (begin + len(piece), *self.shape[1:])

    def _read(self, begin: int, end: int) -> np.ndarray:
        parts = [a[max(0, begin - b) : end - b] for b, a in self._pieces if b < end and b + len(a) > begin]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Stream:
    """The inputs of a map over iterators: `batch` grows as they are read.

    Parameters
    ----------
    first: the stacked batch of the first items.
    readers: by their place among the inputs.
    read: what has been read from each.
    batch_of: (items of each reader, number of the first) → batch.
    """

    def __init__(
        self,
        first: Batch,
        readers: dict[Any, Reader],
        read: dict[Any, list],
        batch_of: Callable[[dict[Any, list], int], Batch],
    ):
        self.first = first
        self._readers = readers
        self._batch_of = batch_of
        self._like = {k: item_structure(items[0]) for k, items in read.items()}
        arguments = [
            replace(a, value=[_growing(leaf) for leaf in a.value]) if a.kind == "tree" else a for a in first.arguments
        ]
        self.batch = replace(first, arguments=arguments)

    def bounds(self, chunk: int) -> Iterator[tuple[int, int]]:
        """(begin, end) of chunk after chunk, whose items have been read when it is given."""
        begin = 0
        while True:
            if self.batch.length < begin + chunk:
                self._read(begin + chunk - self.batch.length, keep_from=begin - chunk)
            end = min(begin + chunk, self.batch.length)
            if end == begin:
                return
            yield begin, end
            begin = end

    def _read(self, count: int, keep_from: int) -> None:
        first = self.batch.length
        items = {k: reader.take(count) for k, reader in self._readers.items()}
        lengths = {self._readers[k].name: first + len(v) for k, v in items.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(
                f"{name} has {n}{' or more' if n == first + count else ''}" for name, n in lengths.items()
            )
            raise InputError(
                f"the iterators differ in length: {listed}.", argument=min(lengths, key=lengths.__getitem__)
            )
        for k, own in items.items():
            for i, item in enumerate(own, first):
                self._check(k, i, item)
        if not any(items.values()):
            return
        new = self._batch_of(items, first).stacked()
        for old, leaf in zip(self.batch.leaves()[0], new.leaves()[0]):
            old.array.append(_as_before(leaf, old, first), keep_from)
        self.batch.length = first + new.length

    def _check(self, k: Any, i: int, item: Any) -> None:
        like = self._like[k]
        try:
            structure = item_structure(item)
        except NotStackable as why:
            raise self._unlike(k, i, str(why)) from None
        if structure != like:
            raise self._unlike(k, i, f"has {_told(structure)}, the items before {_told(like)}")

    def _unlike(self, k: Any, i: int, what: str) -> InputError:
        name = self._readers[k].name
        return InputError(
            f"{name}: item {i} {what}; the items of a long iterator must be alike.",
            argument=name,
            next_step=f"list({name}), which groups a few shapes, or strategy='process'",
        )


def _growing(leaf: Leaf) -> Leaf:
    return replace(leaf, array=StreamArray(leaf.name, np.asarray(leaf.array))) if leaf.mapped else leaf


def _as_before(new: Leaf, old: Leaf, first: int) -> np.ndarray:
    """The next items of a leaf, of the type that the first ones had."""
    array = np.asarray(new.array)
    if not np.can_cast(array.dtype, old.array.dtype, "same_kind"):
        raise InputError(
            f"{old.name}: items from {first} on are {array.dtype}, the items before were {old.array.dtype}.",
            argument=old.name,
            next_step="give numbers of one type, e.g. float(x)",
        )
    return array.astype(old.array.dtype, copy=False)


def _told(structure: tuple) -> str:
    _, shapes = structure
    return f"shape {shapes[0]}" if len(shapes) == 1 else f"the shapes {', '.join(map(str, shapes)) or 'of nothing'}"


def _run(function: Callable, stream: Stream, options: MapOptions, monitor: Monitor) -> MapResult:
    __tracebackhide__ = True
    timer = Timer()
    notes = check_widths(*stream.first.leaves())
    share = DEFAULT_SHARE if options.memory is None else options.memory
    assert not isinstance(share, str)
    # Half, as the first items may be a single chunk here, and two chunks will be under way.
    bound = share / 2 if isinstance(share, float) else share // 2
    prepared = prepare(function, stream.first, replace(options, memory=bound), timer, monitor)
    run = StreamRun(function, stream, prepared, options, monitor, timer)
    report = traced_report(prepared, timer, [*notes, *prepared.item.notes])
    begin = time.perf_counter()
    try:
        value = run.run()
    finally:
        prepared.let_go(len(run.shared))
    report.run_seconds = time.perf_counter() - begin
    report.length = stream.batch.length
    report.chunks = -(-report.length // prepared.plan.chunk_size)
    report.failed, report.not_finite = run.failed, run.not_finite
    run.tell_times(report)
    return MapResult(value, report)


class StreamRun(ChunkedRun):
    """A run over the chunks of a stream."""

    def __init__(
        self,
        function: Callable,
        stream: Stream,
        prepared: Prepared,
        options: MapOptions,
        monitor: Monitor,
        timer: Timer,
    ) -> None:
        super().__init__(function, stream.batch, prepared, options, monitor, timer)
        self.stream = stream
        # Told when it happens: the items are gone later.
        self.failed: list[ItemReport] = []
        self.not_finite: list[ItemReport] = []

    def _make_collector(self) -> Collector | FileResult:
        item, path = self.prepared.item, self.options.out_file
        if path is None:
            return GrowingCollector(item.outputs)
        return FileResult(Path(path), item.out_tree, item.outputs, None, chunk_size=self.plan.chunk_size)

    def _run(self) -> Any:
        __tracebackhide__ = True
        plan, item = self.plan, self.prepared.item
        self.monitor.plan(0, 0, f"{plan.parts} {unit_of(plan.strategy)}s")
        self.monitor.phase("running")
        self._place_shared()
        try:
            self._work(self.stream.bounds(plan.chunk_size))
        except BaseException as error:
            done = self.monitor.progress().done
            if done:
                error.add_note(f"parmap: {done:,} items were done; an iterator cannot be read again: nothing is kept")
            raise
        if isinstance(self.collector, FileResult):
            return self.collector.finish()
        leaves = jax.block_until_ready(self.collector.leaves())
        return assemble(leaves, item.out_tree, item.outputs, self.options.out_axes)

    def _dispatch(self, begin: int, end: int) -> Any:
        __tracebackhide__ = True
        if not self.plan.pads and end - begin < self.plan.chunk_size:
            layout = Layout(end - begin, self.prepared.devices[:1], 1, self.plan.width)
            tail = strategies.get("map").prepare(self.prepared.item, layout)
            self.prepared = replace(self.prepared, tail=tail, plan=replace(self.plan, length=end))
        return super()._dispatch(begin, end)

    def _collect(self, begin: int, end: int, arrays: Any) -> None:
        __tracebackhide__ = True
        failed = len(self.failures)
        super()._collect(begin, end, arrays)
        self.failed += [item_report(self.batch, i, error) for i, error in self.failures[failed:]]
        if self.options.check == "finite" and len(self.failures) == failed:
            rows = not_finite_rows(self.collector.rows(begin, end), end - begin)
            self.not_finite += [ItemReport(begin + i, self.batch.describe_item(begin + i), what) for i, what in rows]
