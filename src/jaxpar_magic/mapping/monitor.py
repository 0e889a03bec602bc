"""What a long map is doing: phase, items done, rate, time left. Told to a display, at most ten times a second.

A thread of its own looks at the state, because the main thread is inside XLA. It also says which phase lasts long, so
that a function that never ends under vmap is not just a hung kernel, and notices when the time limit has passed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import MapTimeout
from .result import duration

# Nothing is shown for a map that ends within this time.
DELAY_SECONDS = 2.0
_TICK_SECONDS = 0.1
# The phase is told when it has lasted this long without anything finishing, and again each time it has doubled.
STALLED_SECONDS = 10.0


@dataclass(frozen=True)
class Progress:
    """The state of a map at one moment.

    Attributes
    ----------
    phase: "tracing", "compiling" or "running".
    done, total: items; total is 0 where an iterator does not tell.
    chunk, chunks: the chunk under way (from 1) and how many there are.
    parts: devices, threads or workers, with their unit, e.g. "2 devices".
    seconds: since the map began.
    rate: items per second since the first chunk began, or None.
    """

    phase: str
    done: int
    total: int
    chunk: int
    chunks: int
    parts: str
    seconds: float
    rate: float | None

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end; None while it cannot be told."""
        return (self.total - self.done) / self.rate if self.rate and self.total else None

    def line(self) -> str:
        """One line: ``40% of 1,000 items, 210/s, 2.9 s left, chunk 5 of 10, 2 devices``."""
        if not self.done:
            what = self.phase if self.chunks <= 1 or self.phase != "running" else f"running chunk 1 of {self.chunks}"
            return f"{what}, {duration(self.seconds)}"
        share = f"{self.done / self.total:.0%} of {self.total:,} items" if self.total else f"{self.done:,} items"
        parts = [share]
        if self.rate:
            parts.append(f"{self.rate:,.3g}/s")
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        if self.chunks > 1:
            parts.append(f"chunk {min(self.chunk, self.chunks)} of {self.chunks}")
        return ", ".join([*parts, self.parts])


class Display(Protocol):
    """Shows progress in place. The magics have one for notebooks and one for terminals."""

    def update(self, progress: Progress) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


class Monitor:
    """Follows one map; a context manager around it.

    Parameters
    ----------
    display: shows progress, or None to show nothing.
    timeout: seconds after which `check` raises MapTimeout, or None.
    delay: seconds during which nothing is shown; None is DELAY_SECONDS.
    """

    def __init__(
        self, display: Callable[[], Display] | None = None, timeout: float | None = None, delay: float | None = None
    ):
        self._make_display = display
        self._delay = DELAY_SECONDS if delay is None else delay
        self._display: Display | None = None
        self._timeout = timeout
        self._begin = self._phase_begin = self._last_advance = time.monotonic()
        self._run_begin: float | None = None
        self._phase = "tracing"
        self._done = self._total = self._chunk = 0
        self._chunks = 1
        self._parts = ""
        self._skipped = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_stall = STALLED_SECONDS

    # ---------------------------------------------------------------- told by the runner

    def phase(self, name: str) -> None:
        """Now tracing, compiling or running."""
        self._phase = name
        self._phase_begin = self._last_advance = time.monotonic()
        if name == "running" and self._run_begin is None:
            self._run_begin = self._phase_begin

    def plan(self, total: int, chunks: int, parts: str, done: int = 0) -> None:
        """How much there is to do; `done` items were finished in an earlier run."""
        self._total, self._chunks, self._parts = total, chunks, parts
        self._done = self._skipped = done

    def advance(self, items: int, chunk: int) -> None:
        """`items` more are done; `chunk` (from 1) is the one that has been finished."""
        self._done += items
        self._chunk = chunk
        self._last_advance = time.monotonic()
        self._next_stall = STALLED_SECONDS

    def say(self, line: str) -> None:
        """Tell the user at once, where progress is shown."""
        if self._display is not None:
            self._display.say(line)
        elif self._make_display is not None:
            print(line)

    def check(self) -> None:
        """Raise MapTimeout if the time is over."""
        if self._timeout is not None and time.monotonic() - self._begin > self._timeout:
            progress = self.progress()
            chunk = (
                f" chunk {progress.chunk} of {self._chunks}" if self._phase == "running" and self._chunks > 1 else ""
            )
            raise MapTimeout(
                f"timeout={self._timeout:g}: stopped while {self._phase}{chunk}, "
                f"with {progress.done:,}{f' of {progress.total:,}' if progress.total else ''} items done.",
                argument="timeout",
                next_step="resume goes on from the finished chunks"
                if self._done and self._total
                else "a larger timeout, or itertools.islice(items, n) if the items have no end"
                if self._done
                else "a larger timeout, or map "
                "(one item at a time), if the function ends for each item but not under vmap",
            )

    @property
    def done_now(self) -> int:
        """Items that this run has finished."""
        return self._done - self._skipped

    @property
    def has_deadline(self) -> bool:
        return self._timeout is not None

    def progress(self) -> Progress:
        now = time.monotonic()
        fresh = self._done - self._skipped
        spent = now - self._run_begin if self._run_begin is not None else 0.0
        rate = fresh / spent if fresh and spent > 0 else None
        return Progress(
            self._phase, self._done, self._total, self._chunk + 1, self._chunks, self._parts, now - self._begin, rate
        )

    # ---------------------------------------------------------------- the thread

    def __enter__(self) -> Monitor:
        if self._make_display is not None:
            self._thread = threading.Thread(target=self._watch, name="parmap-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._display is not None:
            self._display.close()

    def _watch(self) -> None:
        if self._stop.wait(self._delay):
            return
        try:
            assert self._make_display is not None
            self._display = self._make_display()
            while not self._stop.wait(_TICK_SECONDS):
                progress = self.progress()
                self._display.update(progress)
                quiet = time.monotonic() - self._last_advance
                if quiet > self._next_stall:
                    self._next_stall = 2 * quiet
                    where = (
                        f"running chunk {progress.chunk} of {progress.chunks}"
                        if progress.phase == "running"
                        else (progress.phase)
                    )
                    self._display.say(f"parmap: still {where}, {duration(quiet)} with nothing finished")
        except Exception:  # a display that fails must not end the user's map, and a thread has nobody to tell
            self._display = None
