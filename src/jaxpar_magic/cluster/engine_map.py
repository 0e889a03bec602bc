"""What an engine does of a map: it keeps programs, runs chunks with our own `mapping` on its devices, and answers.

Called through ipyparallel as `load` and `run`. User's exceptions are answers, so that an exception of ipyparallel's
always means that the engine itself is in trouble.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import pickle
import signal
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from .._jax import setting
from ..mapping.inputs import Batch, check_range
from ..mapping.monitor import Monitor
from ..mapping.options import MapOptions
from ..mapping.prepare import Prepared, Timer, in_way_or_best, prepare
from ..mapping.traced import ChunkedRun, learn
from ..mapping.worker_main import ItemRunner, ResultPickler, Unpickler, packed_error, told
from .transport import Address, FileArray, Packed, Unreachable, opened, unpack, write
from .transport import pack as pack_arrays

# Functions that an engine keeps, with the arrays that they capture or share.
MAX_LOADED = 8
MAX_LOADED_BYTES = 2 << 30

_loaded: OrderedDict[bytes, _Program] = OrderedDict()
_signalled = False  # SIGINT came while a call ran


@dataclass
class Arrays:
    """What travels with a function that can be traced.

    Attributes
    ----------
    batch: the inputs without what is mapped; in place of each structure, an example of it.
    registered: (class, flatten, unflatten) of classes of the notebook that are registered with JAX there.
    options: of the user, as far as they matter to an engine.
    """

    batch: Batch
    registered: list[tuple]
    options: MapOptions


# -------------------------------------------------------------------- called by the notebook


def load(message: bytes, *buffers: Any) -> tuple:
    """Keep a function: message is pickled (digest, sources, sizes of the parts, address of the block they are in)."""
    digest, sources, sizes, address = pickle.loads(message)
    try:
        with interruptible():
            parts = _parts(sizes, buffers, address)
            _loaded.pop(digest, None)
            _loaded[digest] = _Program(parts, sources)
            while len(_loaded) > 1 and (
                len(_loaded) > MAX_LOADED or sum(p.nbytes for p in _loaded.values()) > MAX_LOADED_BYTES
            ):
                _loaded.popitem(last=False)
    except Unreachable as error:
        return _answer("unreachable", str(error))
    except BaseException as error:  # rebuilding what arrived can run and fail in any user code
        if _by_signal(error):
            return _answer("interrupted")
        return _answer("unloadable", *told(error))
    return _answer("loaded")


def run(message: bytes, *buffers: Any) -> tuple:
    """Run a piece of a map: message is a pickled dict; see `crew.Crew`."""
    request = pickle.loads(message)
    program = _loaded.get(request["digest"])
    if program is None:
        return _answer("missing")
    _loaded.move_to_end(request["digest"])
    try:
        with interruptible():
            take_over(request["settings"])
            return program.run(request, buffers)
    except Unreachable as error:
        return _answer("unreachable", str(error))
    except KeyboardInterrupt:
        return _answer("interrupted")


def forget() -> None:
    """Let go of all functions, whose programs belong to devices that go. The notebook sends them again."""
    _loaded.clear()


def _answer(kind: str, *details: Any, buffers: Sequence[Any] = ()) -> tuple:
    return (pickle.dumps((kind, *details), protocol=5), *(memoryview(b) for b in buffers))


def _by_signal(error: BaseException) -> bool:
    """Whether this is an interrupt, and no KeyboardInterrupt that the function raised by itself, as it would again."""
    return _signalled and isinstance(error, KeyboardInterrupt)


def _interrupt(number: int, frame: Any) -> None:
    global _signalled
    _signalled = True
    raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    global _signalled
    _signalled = False
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            # One that comes too late must not hit the answer on its way; the kernel puts its own handler back.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parts(sizes: Sequence[int], buffers: Sequence[Any], address: Address | None) -> list[Any]:
    """What a program consists of, in memory that the user's function may write to."""
    if address is None:
        return [bytearray(b) for b in buffers]
    with opened(address) as file:
        memory = memoryview(mmap.mmap(file, sum(sizes), access=mmap.ACCESS_COPY))
    begins = np.cumsum([0, *sizes]).tolist()
    return [memory[begin : begin + size] for begin, size in zip(begins, sizes)]


def take_over(settings: dict[str, Any]) -> None:
    """Options of JAX as they are in the notebook now."""
    for name, value in settings.items():
        if setting(name, value) != value:
            jax.config.update(name, value)


# -------------------------------------------------------------------- a program


class _Program(ItemRunner):
    """A function that the notebook sent, ready for chunks of arrays or of Python objects."""

    def __init__(self, parts: list, sources: dict):
        super().__init__()
        self.nbytes = sum(memoryview(part).nbytes for part in parts)
        self._show_sources(sources)
        (self.function, self.along), self.own_classes = Unpickler(parts, self.classes).load()
        self.classes = dict(self.own_classes)
        self.ready: dict[tuple, Prepared] = {}
        if isinstance(self.along, Arrays):
            self._register(self.along.registered)
            trees = [
                replace(a, treedef=jax.tree_util.tree_structure(a.treedef)) if a.kind == "tree" else a
                for a in self.along.batch.arguments
            ]
            self.batch = replace(self.along.batch, arguments=trees)
        elif self.along:
            self.function = functools.partial(self.function, **self.along)

    def _register(self, registered: list[tuple]) -> None:
        for kind, flatten, unflatten in registered:
            with contextlib.suppress(ValueError):  # it is: by an earlier map, or by its own making
                jax.tree_util.register_pytree_node(kind, flatten, unflatten)

    def run(self, request: dict[str, Any], buffers: Sequence[Any]) -> tuple:
        """The answer to a request."""
        if isinstance(self.along, Arrays):
            return self._run_arrays(request, buffers)
        if not request["known"]:  # the first of a map
            self.classes = dict(self.own_classes)
        for sources, classes in request["classes"]:
            self.add_classes(sources, classes)
        self.stop_at_failure = request["stop_at_failure"]
        begin = time.perf_counter()
        entries, payload = self.run_items([bytearray(b) for b in buffers])
        facts = {"seconds": time.perf_counter() - begin}
        sizes = [memoryview(part).nbytes for part in payload]
        return _answer("done", facts, entries, sizes, buffers=[b"".join(payload)])

    def ends_chunk(self, error: BaseException) -> bool:
        return _by_signal(error)

    # ---------------------------------------------------------------- chunks of arrays

    def _run_arrays(self, request: dict[str, Any], buffers: Sequence[Any]) -> tuple:
        with contextlib.ExitStack() as stack:
            memory = None
            if request["block"] is not None:
                file = stack.enter_context(opened(request["block"]))
                memory = mmap.mmap(file, 0)
            arrays = self._inputs(request, buffers, memory)
            outputs = _Outputs(request, stack)
            facts = {"seconds": 0.0, "compile": 0.0, "reused": True}
            failures: list[tuple] = []
            base = 0
            for count in request["counts"]:
                outputs.base = base
                chunk = [a[base : base + count] for a in arrays]
                try:
                    run = self._run_chunk(chunk, count, request, base, outputs, facts)
                except BaseException as error:  # SystemExit, too, is the function's
                    if _by_signal(error):
                        raise
                    index = getattr(error, "jaxpar_item", None)
                    return _answer("error", index, *told(error), buffers=self._packed(error))
                failures += [(request["first"] + base + i, *told(e), self._packed(e)) for i, e in run.failures]
                base += count
            return outputs.answer(facts, failures)

    def _packed(self, error: BaseException) -> list[bytes]:
        numbers = {id(kind): number for number, kind in self.classes.items()}
        return [bytes(part) for part in packed_error(error, functools.partial(ResultPickler, numbers))]

    def _inputs(self, request: dict[str, Any], buffers: Sequence[Any], memory: Any) -> list[np.ndarray]:
        packed = iter(unpack([x for x in request["inputs"] if isinstance(x, Packed)], buffers, memory))
        arrays = []
        for leaf, source in zip(self.batch.leaves()[0], request["inputs"]):
            if isinstance(source, FileArray):
                array = source.read(request["first"], request["first"] + sum(request["counts"]))
                check_range(leaf.name, array)
            else:
                array = next(packed)
            arrays.append(array)
        return arrays

    def _run_chunk(self, arrays, count, request, base, outputs, facts) -> _EngineRun:
        batch = self._batch_of(arrays, count)
        timer = Timer()
        prepared = self._prepared(batch, request, timer)
        begin = time.perf_counter()
        run = _EngineRun(self.function, batch, prepared, self._options(request), timer, outputs, request, base)
        run.run()
        seconds = time.perf_counter() - begin - run.compile_seconds
        if count == prepared.plan.length:
            learn(prepared, run, seconds)
        facts["seconds"] += seconds
        facts["compile"] += timer.compile
        facts["reused"] &= timer.reused
        facts["way"] = (run.prepared.plan.strategy, run.prepared.plan.width)
        return run

    def _batch_of(self, arrays: Sequence[Any], length: int) -> Batch:
        values = iter(arrays)
        arguments = []
        for a in self.batch.arguments:
            if a.kind == "tree":
                a = replace(a, value=[replace(x, array=next(values)) if x.mapped else x for x in a.value])
            arguments.append(a)
        return replace(self.batch, length=length, arguments=arguments)

    def _options(self, request: dict[str, Any]) -> MapOptions:
        options = replace(self.along.options, memory=request["memory"])
        if options.devices is None and jax.local_device_count() == 1:
            # one device stands for this engine's share of the machine: no threads beside it
            options = replace(options, devices=1)
        return options

    def _prepared(self, batch: Batch, request: dict[str, Any], timer: Timer) -> Prepared:
        """The program for full chunks, which shorter ones are filled up to; one of its own where that may not be."""
        size = request["chunk"]
        prepared = self._prepared_for(size, batch, request, timer)
        if batch.length != size and not prepared.plan.pads:
            return self._prepared_for(batch.length, batch, request, timer)
        return prepared

    def _prepared_for(self, size: int, batch: Batch, request: dict[str, Any], timer: Timer) -> Prepared:
        key = (size, tuple(request["settings"].items()))
        prepared = self.ready.get(key)
        if prepared is None:
            whole = replace(batch, length=size)
            prepared = self.ready[key] = prepare(self.function, whole, self._options(request), timer, Monitor())
        elif prepared.tuning is not None:
            prepared = in_way_or_best(prepared, prepared.tuning.next_call(), timer)
        return prepared


class _Outputs:
    """Takes the results of chunks, and puts them where the notebook wants them."""

    def __init__(self, request: dict[str, Any], stack: contextlib.ExitStack):
        self.length = sum(request["counts"])
        self.base = 0
        self._targets = [(stack.enter_context(opened(address)), begin) for address, begin in request["targets"]]
        self._arrays: list[np.ndarray] | None = None

    def add(self, begin: int, end: int, arrays: Sequence[Any]) -> None:
        """Results of items `begin` to `end` of the chunk under way; longer where it was filled up."""
        rows = [np.asarray(a)[: end - begin] for a in arrays]
        begin += self.base
        if self._targets:
            for (file, offset), array in zip(self._targets, rows):
                write(file, offset + begin * (array.nbytes // max(1, len(array))), array)
            return
        if end - begin == self.length:
            self._arrays = rows
            return
        if self._arrays is None:
            self._arrays = [np.empty((self.length, *a.shape[1:]), a.dtype) for a in rows]
        for target, array in zip(self._arrays, rows):
            target[begin : begin + len(array)] = array

    def answer(self, facts: dict[str, Any], failures: list[tuple]) -> tuple:
        where, buffers = pack_arrays(self._arrays or [])
        return _answer("done", facts, failures, where, buffers=buffers)

    def discard(self) -> None:
        """What was written is not looked at."""


class _EngineRun(ChunkedRun):
    """A run over one chunk of the notebook's."""

    def __init__(
        self, function, batch, prepared, options, timer, outputs: _Outputs, request: dict[str, Any], base: int
    ):
        self._outputs = outputs
        self._first, self._total = request["first"] + base, request["total"]
        super().__init__(function, batch, prepared, options, Monitor(), timer)
        self.plan = replace(prepared.plan, length=batch.length)
        self.bounds = self.plan.bounds()
        # Programs run in a thread, so that an interrupt takes effect at once.
        self.reads = True

    def _make_collector(self) -> Any:
        return self._outputs

    def _result(self) -> None:
        return None

    def _place_shared(self) -> None:
        if self.prepared.shared is None:  # it stays for the next chunk
            super()._place_shared()

    def _keep_finished(self, error: BaseException) -> None:
        """The notebook keeps what is done."""

    def _blame(self, error: BaseException, index: int) -> None:
        with contextlib.suppress(AttributeError):  # an exception with slots
            error.jaxpar_item = self._first + index  # type: ignore[attr-defined]

    def _not_finite(self, index: int) -> FloatingPointError:
        error = FloatingPointError(
            f"NaN or inf in the result of item {self._first + index} of {self._total} "
            f"({self.batch.describe_item(index)}); jax_debug_nans is on"
        )
        self._blame(error, index)
        return error
