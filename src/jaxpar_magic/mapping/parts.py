"""How long each device or thread took for its part of a chunk: work that is shared unevenly is seen."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any


class Followed:
    """The parts of an array on several devices, and when each of them was ready.

    A thread for each waits for its part, so that the map itself waits as it would without, and can be interrupted.
    Daemons: a computation that never ends does not keep the process.
    """

    def __init__(self, array: Any):
        shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        self._ready: list[float | None] = [None] * len(shards)
        self._threads = [
            threading.Thread(target=self._wait, args=(k, shard.data), name="parmap-part", daemon=True)
            for k, shard in enumerate(shards)
        ]
        for thread in self._threads:
            thread.start()

    def _wait(self, k: int, part: Any) -> None:
        try:
            part.block_until_ready()
        except Exception:  # the map meets it, too
            return
        self._ready[k] = time.perf_counter()

    def ready(self) -> list[float]:
        """When each part was ready, in their order, once the whole is; empty if that cannot be told."""
        for thread in self._threads:
            thread.join()
        return [moment for moment in self._ready if moment is not None] if None not in self._ready else []


@dataclass
class Started:
    """A chunk under way.

    Attributes
    ----------
    arrays: its outputs, perhaps not ready yet.
    begin: when it was started.
    parts: seconds that each part took, or parts that are followed; None where nothing is known of them.
    end: when the outputs were ready, if they are.
    """

    arrays: list
    begin: float
    parts: list[float] | Followed | None = None
    end: float | None = None

    def part_seconds(self, free: float) -> tuple[list[float], float]:
        """(seconds of each part, when the last was ready), once the outputs are ready.

        The devices are `free` for it when the chunk before is done: on the CPU all of them begin a program together.
        """
        now = time.perf_counter() if self.end is None else self.end
        if not isinstance(self.parts, Followed):
            return self.parts or [], now
        ready = self.parts.ready()
        if not ready:
            return [], now
        begin = max(self.begin, free)
        return [max(0.0, moment - begin) for moment in ready], max(ready)
