"""Run a plain Python function over items in worker processes: the engine behind `strategy="process"`.

Workers are fresh interpreters, never forks: JAX is multithreaded, and a forked copy of it hangs. The function
travels by value (cloudpickle), so functions, lambdas and classes of a notebook work, and a script needs no
`if __name__ == "__main__":` guard, since workers do not run it. They stay warm between calls.

This pool is our own because those at hand fail in a notebook, as experiments showed. multiprocessing.Pool
waits for ever when a worker is killed. loky 3.7 does not know which task a killed worker had (it failed 16
tasks for one), restarts workers that hold more than 300 MB (psutil comes with ipykernel), which forgets what
they cached, lets an interrupt that comes while workers start kill them with tracebacks, and leaves them
running when the kernel is killed. Here each worker has a connection of its own, which tells all of that.

Works on POSIX systems (Linux, macOS).
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from ..errors import InputError, WorkerError
from .worker_main import Unpickler, find_unpicklable, message_of, receive, type_name
from .worker_pickle import Outbound, advice, explain_unpicklable
from .worker_pool import Chunk, Pool, Worker, keep_pool, stop_workers, take_pool, worker_environment

__all__ = ["ItemFailure", "run_in_processes", "stop_workers"]

_TICK = 0.2  # seconds between looks at workers that died without closing their connection
_GRACE = 0.5  # seconds for other workers to end their current item after a failure


@dataclass(frozen=True)
class ItemFailure:
    """One item whose call raised, or that could not travel.

    Attributes
    ----------
    index:
        The item's index in the whole map.
    error:
        The exception itself, rebuilt here. A `WorkerError` that says its type and message stands for one
        that cannot be rebuilt, or that would end this process instead of failing (SystemExit).
    traceback_text:
        The worker's traceback, the user's frames only, with lines of cells quoted. Empty if nothing ran.
    """

    index: int
    error: BaseException
    traceback_text: str


def run_in_processes(
    function: Callable[..., Any],
    items: Iterable[tuple[int, tuple, dict[str, Any]]],
    *,
    workers: int,
    chunk_size: int,
    on_output: Callable[[str, str], None],
    stop_at_failure: bool,
    timeout: float | None = None,
    on_done: Callable[[int], None] | None = None,
    results: dict[int, Any] | None = None,
    x64: bool = False,
    environment: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[dict[int, Any], list[ItemFailure]]:
    """Call `function(*args, **kwargs)` for every item in worker processes.

    Parameters
    ----------
    function:
        Any callable that cloudpickle can pickle. It travels once per worker, with all that it captures, and
        is kept there for the next call. (Give arguments that all items share through `functools.partial`:
        then they travel once per worker too.)
    items:
        `(index, args, kwargs)` each; read as workers become free, at most one chunk per worker ahead.
    workers:
        How many processes at most. Fewer are started when there are fewer chunks.
    chunk_size:
        Items per task.
    on_output:
        Called here with ("stdout" or "stderr", text) for what the function prints through sys.stdout and
        sys.stderr, in the order of items, while later items may still run. What C code writes to the
        process's own streams goes where this process's does, in no order.
    stop_at_failure:
        True: hand out nothing more once an item has failed. The failure with the lowest index is then the
        one that a plain loop would have met.
    timeout:
        Seconds for the whole call.
    on_done:
        Called here with the number of items finished, after each task.
    results:
        Filled by index as tasks end, so that what is done is there after an exception too.
    x64:
        Whether jax in the workers uses 64-bit types.
    environment:
        Further environment variables, set before anything is imported in the workers. Threads of BLAS,
        OpenMP and XLA are limited to cores // workers, unless os.environ says otherwise.

    Returns
    -------
    Results by index, and failures sorted by index.

    Raises
    ------
    WorkerError
        `function` cannot be pickled (nothing was started then) or rebuilt; a worker was killed; `timeout`.
        All workers are gone then; the next call starts new ones.

    Examples
    --------
    >>> items = [(0, (-1,), {}), (1, (2,), {})]
    >>> run_in_processes(abs, items, workers=1, chunk_size=2, on_output=print, stop_at_failure=True)
    ({0: 1, 1: 2}, [])
    """
    outbound = Outbound.of(function)
    pool = take_pool(worker_environment(workers, x64, environment))
    try:
        run = _Run(pool, outbound, iter(items), workers, chunk_size, on_output, stop_at_failure, timeout, on_done)
        if results is not None:
            run.results = results
        run.run()
    except BaseException:
        pool.kill()
        raise
    keep_pool(pool)
    return dict(sorted(run.results.items())), sorted(run.failures, key=lambda failure: failure.index)


_calls = itertools.count(1)


class _Run:
    """The state of one call of `run_in_processes`."""

    def __init__(
        self,
        pool: Pool,
        outbound: Outbound,
        items: Iterator[tuple[int, tuple, dict]],
        workers: int,
        chunk_size: int,
        on_output: Callable[[str, str], None],
        stop_at_failure: bool,
        timeout: float | None,
        on_done: Callable[[int], None] | None,
    ):
        self.call = next(_calls)
        self.pool = pool
        self.outbound = outbound
        self.items = items
        self.workers = workers
        self.chunk_size = chunk_size
        self.on_output = on_output
        self.stop_at_failure = stop_at_failure
        self.timeout = timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.on_done = on_done
        self.results: dict[int, Any] = {}
        self.failures: list[ItemFailure] = []
        self.exhausted = False
        self.chunks_made = 0
        self.class_parts: list[tuple[dict, list]] = []
        self.waiting: deque[Chunk] = deque()  # packed, and not handed out yet
        self.unfinished: list[Chunk] = []  # all that is waiting or in a worker, in order of items
        self.failed: tuple[int, ...] | None = None  # number of the first chunk that failed, if that stops us
        self.stop_workers_at: float | None = None

    def run(self) -> None:
        try:
            while True:
                if self._wants_chunk():
                    self._make_chunk()
                self._hand_out()
                if not self.unfinished and (self.exhausted or self.failed is not None):
                    return
                self._receive(0 if self._wants_chunk() else _TICK)
                self._check_deadline()
                if self.failed is not None:
                    self._wind_up()
        except Exception:
            for chunk in self.unfinished:  # what was printed before it went wrong helps to see why
                self._show(chunk)
            raise

    # chunks

    def _wants_chunk(self) -> bool:
        busy = sum(worker.chunk is not None for worker in self.pool.engaged)
        return not self.exhausted and self.failed is None and len(self.waiting) < max(1, self.workers - busy)

    def _make_chunk(self) -> None:
        items = list(itertools.islice(self.items, self.chunk_size))
        self.exhausted = len(items) < self.chunk_size
        try:
            parts, classes = self.outbound.pack_items(items)
        except Exception:
            items = self._without_unpicklable(items)
            parts, classes = self.outbound.pack_items(items)
        if not items:
            return
        if classes is not None:
            self.class_parts.append((self.outbound.sources, classes))
        chunk = Chunk((self.chunks_made,), items, parts)
        self.chunks_made += 1
        self.waiting.append(chunk)
        self.unfinished.append(chunk)

    def _without_unpicklable(self, items: list[tuple[int, tuple, dict]]) -> list[tuple[int, tuple, dict]]:
        """The items that can travel. The others have failed."""
        good, failures = without_unpicklable(items, self.stop_at_failure)
        self.failures += failures
        if failures and self.stop_at_failure:
            self.exhausted = True
        return good

    def _split(self, chunk: Chunk) -> None:
        """Put the items of a chunk that cannot be rebuilt in a worker into chunks of their own."""
        chunks = []
        for position, item in enumerate(chunk.items):
            parts, _ = self.outbound.pack_items([item])
            chunks.append(Chunk((*chunk.number, position), [item], parts))
        place = self.unfinished.index(chunk)
        self.unfinished[place : place + 1] = chunks
        self.waiting.extendleft(reversed(chunks))

    def _hand_out(self) -> None:
        free = [worker for worker in self.pool.engaged if worker.chunk is None]
        for worker in free:
            if worker.ready and self.waiting:
                worker.start(self.waiting.popleft(), self.class_parts)
        starting = sum(not worker.ready for worker in free)
        while starting < len(self.waiting) and len(self.pool.engaged) < self.workers:
            worker = self.pool.engage()
            starting += 1
            if worker.up:
                worker.begin(self.call, self.outbound, self.stop_at_failure)

    # answers

    def _receive(self, timeout: float) -> None:
        if self.deadline is not None:
            timeout = max(0, min(timeout, self.deadline - time.monotonic()))
        workers = {worker.connection: worker for worker in self.pool.engaged}
        answering: list[Any] = wait(workers, timeout)
        for connection in answering:
            worker = workers[connection]
            try:
                (kind, call, *arguments), parts = receive(connection)
            except (EOFError, ConnectionError):
                self._lost(worker)
                continue
            # A worker that was not needed any more may have answered an earlier call too late.
            if call == worker.call:
                getattr(self, f"_on_{kind}")(worker, *arguments, parts)
        if not answering:
            for worker in list(self.pool.engaged):
                if worker.process.poll() is not None and not wait([worker.connection], 0):
                    self._lost(worker)

    def _on_hello(self, worker: Worker, parts: list) -> None:
        worker.up = True
        worker.begin(self.call, self.outbound, self.stop_at_failure)

    def _on_ready(self, worker: Worker, parts: list) -> None:
        worker.ready = True
        worker.kept = False

    def _on_stale(self, worker: Worker, parts: list) -> None:
        self.pool.drop([worker])

    def _on_output(self, worker: Worker, stream: str, text: str, parts: list) -> None:
        chunk = worker.chunk
        if chunk is None or chunk is self.unfinished[0]:
            self.on_output(stream, text)
        else:
            chunk.outputs.append((stream, text))

    def _on_done(self, worker: Worker, entries: list[tuple], parts: list) -> None:
        chunk, worker.chunk = worker.chunk, None
        assert chunk is not None
        failures = read_entries(entries, parts, self.outbound, self.results)
        self.failures += failures
        self._finish(chunk, failed=bool(failures))

    def _on_unloadable(self, worker: Worker, what: str, kind: str, message: str, trace: str, parts: list) -> None:
        problem = f"cannot be rebuilt in a worker process: {kind}: {message}."
        next_step = "make what it needs importable there too: a module in a directory on sys.path, installed."
        chunk, worker.chunk = worker.chunk, None
        if what != "chunk" or chunk is None:
            subject = "The function" if what == "begin" else "A class that the items use"
            raise WorkerError(f"{subject} {problem}", next_step=next_step, argument="function")
        if len(chunk.items) > 1:
            self._split(chunk)
            return
        index = chunk.items[0][0]
        failure = InputError(f"Item {index} {problem}", next_step=next_step)
        self.failures.append(ItemFailure(index, failure, trace))
        self._finish(chunk, failed=True)

    def _finish(self, chunk: Chunk, *, failed: bool) -> None:
        chunk.finished = True
        while self.unfinished and self.unfinished[0].finished:
            self._show(self.unfinished.pop(0))
        if self.unfinished:
            self._show(self.unfinished[0])
        if failed and self.stop_at_failure:
            self.failed = chunk.number if self.failed is None else min(self.failed, chunk.number)
        if self.on_done is not None:
            self.on_done(len(self.results) + len(self.failures))

    def _show(self, chunk: Chunk) -> None:
        outputs, chunk.outputs = chunk.outputs, []
        for stream, text in outputs:
            self.on_output(stream, text)

    # ends

    def _wind_up(self) -> None:
        """After a failure: what a loop would have run before it goes on, the rest ends."""
        assert self.failed is not None
        for chunk in [c for c in self.waiting if c.number > self.failed]:
            self.waiting.remove(chunk)
            self.unfinished.remove(chunk)
        later = [w for w in self.pool.engaged if w.chunk is not None and w.chunk.number > self.failed]
        for worker in later:
            worker.stop_after_item()
        if any(chunk.number < self.failed for chunk in self.unfinished):
            return
        if self.stop_workers_at is None:
            self.stop_workers_at = time.monotonic() + _GRACE
        elif time.monotonic() > self.stop_workers_at:
            self.pool.drop(later)
            for worker in later:
                assert worker.chunk is not None
                self._finish(worker.chunk, failed=False)

    def _check_deadline(self) -> None:
        if self.deadline is None or time.monotonic() < self.deadline or not self.unfinished:
            return
        raise WorkerError(
            f"timeout={self.timeout:g}: the map was stopped after {self.timeout:g} seconds with "
            f"{len(self.results) + len(self.failures)} items finished{self._in_flight()}.",
            next_step="a larger timeout, fewer items or more workers.",
            argument="timeout",
        )

    def _in_flight(self, besides: Worker | None = None) -> str:
        chunks = [w.chunk for w in self.pool.engaged if w.chunk is not None and w is not besides]
        chunks.sort(key=lambda chunk: chunk.number)
        return f"; in flight: {', '.join(map(str, chunks))}" if chunks else ""

    def _lost(self, worker: Worker) -> None:
        """A worker is gone. That is an error unless it had nothing to do."""
        try:
            code = worker.process.wait(1)
        except subprocess.TimeoutExpired:  # it lives, and the user's function closed its connection
            code = None
        item = worker.current_item()
        report = worker.crash_report()
        chunk = worker.chunk
        others = self._in_flight(besides=worker)
        # One that was killed between two calls has harmed nothing; a fresh one takes its place.
        unneeded = worker.ready or worker.kept
        self.pool.drop([worker])
        if chunk is None and unneeded:
            return
        if not worker.up:
            activity = "while it started"
        elif chunk is None:
            activity = "while it received the function"
        else:
            if report:
                chunk.outputs.append(("stderr", report))
            activity = f"while it received {chunk}" if item is None else f"at item {item} (it had {chunk})"
        raise WorkerError(f"A worker process {_ending(code)} {activity}{others}.", next_step=_after(code))


def without_unpicklable(
    items: list[tuple[int, tuple, dict]], stop_at_failure: bool, where: str = "a worker process"
) -> tuple[list[tuple[int, tuple, dict]], list[ItemFailure]]:
    """(the items that can travel, failures of the others); up to the first failure if that stops the map."""
    good, failures = [], []
    for item in items:
        index, args, kwargs = item
        try:
            cloudpickle.dumps(item, protocol=5)
        except Exception as error:
            if len(args) == 1 and not kwargs:
                obj, name = args[0], "the item"
            else:
                obj, name = {**dict(enumerate(args)), **kwargs}, "arguments"
            failure = InputError(
                f"Item {index} cannot be sent to {where}: {explain_unpicklable(obj, name, error)}.",
                next_step=advice(find_unpicklable(obj, name)[1]),
            )
            failures.append(ItemFailure(index, failure, ""))
            if stop_at_failure:
                break
        else:
            good.append(item)
    return good, failures


def read_entries(
    entries: list[tuple], parts: list, outbound: Outbound, results: dict[int, Any], source: str = "its worker process"
) -> list[ItemFailure]:
    """What `ItemRunner.run_items` gave in another process: `results` is filled by index, failures are returned."""
    failures = []
    start = 0
    for kind, index, *details, count in entries:
        own = parts[start : start + count]
        start += count
        if kind == "error":
            failures.append(as_failure(index, rebuilt_error(own, outbound), *details))
        elif kind == "unsendable":
            part_name, part_type, message = details
            failures.append(_unsendable(index, part_name, part_type, message, source))
        else:
            try:
                results[index] = Unpickler(own, outbound.classes).load()
            except (Exception, SystemExit) as error:
                failure = WorkerError(
                    f"The result of item {index} came back from {source} but cannot be rebuilt here: "
                    f"{type_name(type(error))}: {message_of(error)}.",
                    next_step="return plain data (numbers, arrays, dicts), or make its class picklable.",
                )
                failures.append(ItemFailure(index, failure, ""))
    return failures


def rebuilt_error(parts: list, outbound: Outbound) -> Any:
    """The exception that arrived as these parts; None if it did not, or cannot be rebuilt here."""
    try:
        return Unpickler(parts, outbound.classes).load() if parts else None
    except (Exception, SystemExit):  # typically its __init__ wants other arguments than it kept
        return None


def _ending(code: int | None) -> str:
    if code is None:
        return "lost its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def _after(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "most likely memory ran out: use fewer workers, smaller items or a smaller chunk size."
    if code is None or code >= 0:
        return "map that item alone; something ends the process (os._exit, a library) or closes its files."
    return "map that item alone; C code that the function calls has crashed (the stack is printed above)."


def _unsendable(index: int, part_name: str, part_type: str, message: str, source: str) -> ItemFailure:
    reason = message if part_name == "the result" else f"{part_name}, of type {part_type}, cannot be pickled"
    failure = WorkerError(
        f"The result of item {index} cannot be sent back from {source}: {reason}.",
        next_step="return plain data: numbers, arrays, strings, lists (also in place of a generator), dicts.",
    )
    return ItemFailure(index, failure, "")


def as_failure(index: int, error: BaseException | None, kind: str, message: str, trace: str) -> ItemFailure:
    """An item's failure. An exception that could not be rebuilt is told by a WorkerError."""
    # SystemExit and its like would end this process, or pass for the user's own interrupt.
    if not isinstance(error, Exception):
        error = WorkerError(f"Item {index} raised {kind}: {message}")
    return ItemFailure(index, error, trace)
