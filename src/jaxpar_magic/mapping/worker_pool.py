"""Worker processes: starting them, keeping them for the next call, ending them."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._jax import POOL_VARIABLE
from ..machine import usable_cores
from . import worker_main
from .worker_main import send
from .worker_pickle import Outbound

# Libraries start a thread per core of their own; in every worker at once that is cores × workers threads.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


def worker_environment(workers: int, x64: bool, environment: Mapping[str, str]) -> dict[str, str]:
    threads = str(max(1, usable_cores() // workers))
    return {
        **dict.fromkeys(THREAD_VARIABLES, threads),
        **os.environ,
        POOL_VARIABLE: threads,  # `%jaxdevices` may have asked for more in this process
        "JAX_ENABLE_X64": "1" if x64 else "0",
        **environment,
    }


def _search_path() -> list[str]:
    return [str(entry) for entry in sys.path]  # users put Path objects there


@dataclass(eq=False)
class Chunk:
    """Items that travel together. A loop would run chunks in the order of their numbers."""

    number: tuple[int, ...]
    items: list[tuple[int, tuple, dict]]
    parts: list[Any]
    outputs: list[tuple[str, str]] = field(default_factory=list)
    finished: bool = False

    def __str__(self) -> str:
        first, last = self.items[0][0], self.items[-1][0]
        return f"item {first}" if first == last else f"items {first} to {last}"


class Worker:
    """A worker process: its connection, what it has, what it does."""

    def __init__(self, environment: dict[str, str]):
        self.state = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `forget`)
        self.state.write(bytes(worker_main.STATE_BYTES))
        self.state.flush()  # and the crash report will follow behind
        self.connection, their_connection = socket.socketpair()
        self.lifeline, their_lifeline = socket.socketpair()  # carries nothing: it breaks when one end dies
        descriptors = their_connection.fileno(), their_lifeline.fileno(), self.state.fileno()
        arguments = (*descriptors, os.getpid())
        # From the file, not the package: a worker has no use for what the package imports.
        program = (
            f"import sys; sys.path[:] = {_search_path()!r}; import runpy; "
            f"runpy.run_path({worker_main.__file__!r})['main']{arguments!r}"
        )
        with their_connection, their_lifeline:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                # A group of its own: interrupts of the terminal or of Jupyter do not reach it, and it can be
                # killed together with what it started.
                process_group=0,
            )
        self.up = False  # it said "hello"
        self.digest: bytes | None = None  # of the function that it has
        self.call = 0  # number of the call that it was made ready for last
        self.classes_sent = 0
        self.ready = False
        self.kept = False  # from an earlier call, and not heard of in this one
        self.chunk: Chunk | None = None
        self.last_used = time.monotonic()

    def begin(self, call: int, outbound: Outbound, stop_at_failure: bool) -> None:
        """Make it ready for a call. It answers "ready"."""
        try:
            directory = os.getcwd()
        except OSError:  # it was deleted
            directory = None
        parts = [] if self.digest == outbound.digest else outbound.function_parts
        header = (
            "begin",
            call,
            outbound.digest,
            directory,
            _search_path(),
            outbound.sources,
            stop_at_failure,
        )
        self.call = call
        self.digest = outbound.digest
        self.classes_sent = 0
        self._send(header, *parts)

    def start(self, chunk: Chunk, class_parts: list[tuple[dict, list]]) -> None:
        state = worker_main.CURRENT_ITEM.pack(worker_main.NO_ITEM) + b"\0"  # not to stop
        os.pwrite(self.state.fileno(), state, 0)
        self.chunk = chunk
        for sources, parts in class_parts[self.classes_sent :]:
            self._send(("classes", sources), *parts)
        self.classes_sent = len(class_parts)
        self._send(("chunk",), *chunk.parts)
        chunk.parts = []

    def _send(self, header: tuple, *parts: Any) -> None:
        try:
            send(self.connection, header, *parts)
        except ConnectionError:  # it is gone: whoever waits for its answer reads the end of file
            pass

    def current_item(self) -> int | None:
        size = worker_main.CURRENT_ITEM.size
        (index,) = worker_main.CURRENT_ITEM.unpack(os.pread(self.state.fileno(), size, 0))
        return None if index == worker_main.NO_ITEM else index

    def stop_after_item(self) -> None:
        os.pwrite(self.state.fileno(), b"\1", worker_main.STOP)

    def crash_report(self) -> str:
        return os.pread(self.state.fileno(), 1 << 16, worker_main.STATE_BYTES).decode("utf-8", "replace")

    def kill(self) -> None:
        """End it and what it started, at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # all ended (macOS: ended, but not waited for)
            pass

    def forget(self) -> None:
        self.process.wait()
        self.connection.close()
        self.lifeline.close()
        self.state.close()


class Pool:
    """Worker processes with one environment: `engaged` in the call that runs, or `idle`."""

    def __init__(self, environment: dict[str, str]):
        self.environment = environment
        self.idle: list[Worker] = []
        self.engaged: list[Worker] = []

    def engage(self) -> Worker:
        """A worker for the call that runs: an idle one if there is one."""
        worker = self.idle.pop() if self.idle else Worker(self.environment)
        self.engaged.append(worker)
        return worker

    def release(self) -> None:
        """The call is over: its workers stay for the next one."""
        for worker in self.engaged:
            worker.ready = False
            worker.kept = True
            worker.last_used = time.monotonic()
        self.idle += self.engaged
        self.engaged = []

    def drop_dead(self) -> None:
        """Let go of idle workers that have ended, or are about to because they were idle for long."""
        oldest = time.monotonic() - worker_main.IDLE_SECONDS + 30
        self.drop([w for w in self.idle if w.last_used < oldest or w.process.poll() is not None])

    def drop(self, workers: list[Worker]) -> None:
        """Kill these workers."""
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.forget()
        self.idle = [w for w in self.idle if w not in workers]
        self.engaged = [w for w in self.engaged if w not in workers]

    def kill(self) -> None:
        self.drop(self.idle + self.engaged)

    def close(self) -> None:
        """Let idle workers end by themselves (their atexit functions run); kill those that do not."""
        for worker in self.idle:
            worker.connection.close()
        deadline = time.monotonic() + 2
        for worker in self.idle:
            try:
                worker.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        self.kill()


# The workers of the last call, for the next one. A call takes them out while it runs, so that calls in
# several threads, or one inside another's callback, each have workers of their own.
_warm: Pool | None = None
_warm_lock = threading.Lock()


def _swap_warm(pool: Pool | None) -> Pool | None:
    global _warm
    with _warm_lock:
        previous, _warm = _warm, pool
    return previous


def take_pool(environment: dict[str, str]) -> Pool:
    pool = _swap_warm(None)
    if pool is not None and pool.environment != environment:
        pool.close()
        pool = None
    if pool is None:
        return Pool(environment)
    pool.drop_dead()
    return pool


def keep_pool(pool: Pool) -> None:
    pool.release()
    other = _swap_warm(pool)
    if other is not None:
        other.close()


def workers_at_hand() -> bool:
    """Whether workers of an earlier call wait for the next one."""
    with _warm_lock:
        return _warm is not None and bool(_warm.idle)


def stop_workers() -> None:
    """End the workers that are kept for the next call. They would also end with this process."""
    pool = _swap_warm(None)
    if pool is not None:
        pool.close()


def _leave_to_parent() -> None:
    # In a forked child: the workers are not its own, and must see it when their parent ends.
    global _warm, _warm_lock
    _warm_lock = threading.Lock()
    if _warm is not None:
        for worker in _warm.idle:
            worker.connection.close()
            worker.lifeline.close()
            worker.process.returncode = 0  # nothing to wait for here
    _warm = None


atexit.register(stop_workers)
os.register_at_fork(after_in_child=_leave_to_parent)
