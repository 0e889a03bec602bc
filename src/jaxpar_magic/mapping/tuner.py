"""`auto`'s measured choice: what has been timed, what to try next, and what is remembered.

Trying costs a compilation, so it has to be earned. A long map is cut into chunks, and some of the first ones are given
to other ways of running it, as long as that costs a small share of the whole. A short map runs as the rules of the
planner say; when the same map has run often enough to have taken as long as a compilation would, the next run tries
another way. In both cases the results of a trial are results of the map: nothing is computed twice. Starting from what
is best so far, one thing is changed at a time (a climb), and what helps is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .facts import ItemFacts
from .planner import CHUNK_SECONDS, LONG_SECONDS, MAX_WIDTH, Resources, Way, may_hang, may_interleave, parts_of
from .result import duration

if TYPE_CHECKING:
    from .tracing import ItemProgram

# Another way must be faster by this much to be chosen: less is noise.
GAIN = 0.93
# A way that takes so many times the best at its first run has no second one.
HOPELESS = 1.5
# A map that takes less than this is never used to try something.
WORTH_SECONDS = 5e-3
# A map that takes longer is not run whole in another way: it has chunks, or gets them, and tries on some of these.
TRIED_WHOLE_SECONDS = 2.0
# Ways tried for one map, the first included.
MAX_TRIED = 6
# Of the time that a long map will take, trying may take this share.
SHARE_OF_LONG = 0.1
# A trial is earned when the map has run, since the last trial, so many times as long as a compilation takes. Where much
# is to be gained, it needs less: for loops of unknown length, whose width decides whether many items wait for a slow
# one, and by leaving out chunks that a short map does not need.
EARNED, EARNED_BY_LOOPS, SURELY_EARNED = 4.0, 2.0, 0.25
# Runs by which the ways of a short map are judged: the quickest of them counts. So the first re-runs of a cell compile
# nothing.
MIN_RUNS = 3
# Maps of which the choice is kept, in memory and in the file.
MAX_KEPT = 1000
_FORMAT = 1


@dataclass
class Tuning:
    """What is known of one map on these devices.

    Attributes
    ----------
    key: of the choice in the file.
    facts, length, resources: of the map, as the planner takes them.
    best: the way to run it.
    measured: seconds per item of each way, the least of all runs.
    chunk_size: items per dispatch, where the user has chosen it.
    compile_seconds: what compiling this map takes.
    """

    key: str
    facts: ItemFacts
    length: int
    resources: Resources
    best: Way
    measured: dict[Way, float] = field(default_factory=dict)
    chunk_size: int | None = None
    compile_seconds: float = 0.2
    runs: dict[Way, int] = field(default_factory=dict)
    again: Way | None = None  # to be run once more
    unspent: float = 0.0  # seconds that the map has run since the last trial

    def record(self, way: Way, items: int, seconds: float) -> None:
        """`items` were computed in `seconds` this way: a whole map, or a chunk compared with its neighbours."""
        each = seconds / items
        self.measured[way] = min(each, self.measured.get(way, each))
        self.runs[way] = self.runs.get(way, 0) + 1
        self.unspent += seconds
        whole = items == self.length
        if way == self.best or (whole and self.runs[way] < MIN_RUNS and each < HOPELESS * self._best_each):
            # a single run may be slow, or quick, for other reasons
            self.again = None if way == self.best else way
            return
        self.again = None
        # Chunks are for interrupts and progress: a long map has them at no more than the noise.
        needed = 1 / GAIN if way.chunk_size and not self.best.chunk_size and self._seconds > LONG_SECONDS else GAIN
        if self.measured[way] < needed * self._best_each:
            self.best = way

    def story(self) -> list[str]:
        """What was measured and what may be tried, in a sentence each."""
        lines = []
        if self.measured:
            ways = ", ".join(f"{way_text(w)} {duration(each * self.length)}" for w, each in self.finite().items())
            lines.append(f"measured: {ways}; the fastest runs")
        long = self.best.chunk_size is not None or self._seconds > TRIED_WHOLE_SECONDS
        way = self.untried(self.best.chunk_size if long else None)
        if way is not None and long:
            lines.append(f"a long run gives some of its first chunks to other ways, such as {way_text(way)}")
        elif way is not None and self._seconds >= WORTH_SECONDS:
            lines.append(f"a later call will try {way_text(way)}, when that has been earned")
        return lines

    def next_call(self) -> Way:
        """The way for a call as a whole: the best, or one to try if that has been earned."""
        if self.again is not None:
            again, self.again = self.again, None  # asked for once more by `record`, if need be
            return again
        if not WORTH_SECONDS <= self._seconds <= TRIED_WHOLE_SECONDS or self.runs.get(self.best, 0) < MIN_RUNS:
            return self.best
        way = self.untried()
        if way is None:
            return self.best
        earned = EARNED_BY_LOOPS if self.facts.has_while else EARNED
        if self.best.chunk_size is not None and way.chunk_size is None:
            earned = SURELY_EARNED
        if self.unspent < earned * self.compile_seconds:
            return self.best
        self.unspent = 0.0
        return way

    def untried(self, chunk: int | None = None) -> Way | None:
        """A way one step from the best that has not been measured.

        In the middle of a run the chunks are given, of `chunk` items: no other chunk size can be tried there.
        """
        if len(self.measured) >= MAX_TRIED:
            return None
        ways = self._neighbours()
        if chunk is not None:
            size = None if self.best.chunk_size is None else chunk
            ways = (replace(w, chunk_size=size) for w in ways if w.chunk_size == self.best.chunk_size)
        return next((w for w in ways if w not in self.measured and not self._may_hang(w)), None)

    def refuse(self, way: Way) -> None:
        """This way does not work here: never again."""
        self.measured[way] = math.inf
        self.again = None

    def finite(self) -> dict[Way, float]:
        """Seconds per item of the ways that work."""
        return {way: each for way, each in self.measured.items() if each < math.inf}

    @property
    def _best_each(self) -> float:
        return self.measured.get(self.best, math.inf)

    @property
    def _seconds(self) -> float:
        return self.length * self.measured.get(self.best, 0.0)

    def _neighbours(self) -> Iterator[Way]:
        best, facts = self.best, self.facts
        if self.chunk_size is not None:
            pass
        elif best.chunk_size is not None and self._seconds < LONG_SECONDS:
            yield replace(best, chunk_size=None)
        elif best.chunk_size is None and self._seconds > 2 * LONG_SECONDS:
            yield replace(best, chunk_size=math.ceil(self.length * CHUNK_SECONDS / self._seconds))
        if facts.input_bytes and not facts.ordered and not facts.fuses:
            chunk = min(self.length, self.chunk_size or best.chunk_size or self.length)
            everything = math.ceil(chunk / self._parts(best.strategy))
            if facts.has_while:
                yield replace(best, width=1)  # a few very slow items among many: none should wait for them
            width = best.width if best.width is not None and best.width < everything else None
            if width is not None:
                yield replace(best, width=4 * width if 4 * width < everything else None)
            narrower = min(everything // 4, MAX_WIDTH) if width is None else width // 4
            if narrower:
                yield replace(best, width=narrower)
        if may_interleave(best.strategy, self._parts(best.strategy), self.resources) and facts.has_while:
            yield replace(best, interleaved=not best.interleaved)
        if facts.pooled_nanoseconds and best.strategy in ("shard_map", "thread"):
            yield replace(best, strategy="vmap", interleaved=False)
        elif best.strategy == "vmap" and self._others():
            yield replace(best, strategy=self._others())

    def _may_hang(self, way: Way) -> bool:
        parts = self._parts(way.strategy)
        return may_hang(self.facts, parts, way.width or math.ceil(self.length / parts), self.resources)

    def _others(self) -> str:
        """The strategy that uses all there is; "" where there is one device and one core."""
        if self.resources.devices > 1:
            return "shard_map"
        return "thread" if self.resources.cores > 1 and self.resources.platform == "cpu" else ""

    def _parts(self, strategy: str) -> int:
        return parts_of(strategy, self.length, self.resources)


# -------------------------------------------------------------------- remembered, in memory and in a file

_tunings: OrderedDict[Hashable, Tuning] = OrderedDict()


def tuning_of(
    item: ItemProgram,
    length: int,
    devices: Sequence[Any],
    resources: Resources,
    first: Way,
    chunk_size: int | None,
    *wishes: Any,
) -> Tuning:
    """The tuning of a map: from this process, or begun with what the file says, or with `first`.

    It is told by the program, the sizes, the devices and the versions. `chunk_size` is the user's, as are the
    other `wishes` that decide how it can run.
    """
    import jax

    identity = [
        item.digest,
        str(length.bit_length()),  # lengths within a factor of two share their choice
        str((chunk_size, *wishes)),
        f"{len(devices)} {devices[0].platform} {devices[0].device_kind}, {resources.cores} cores, {resources.wanted}",
        f"pool {resources.pool}",
        f"jax {jax.__version__}",
    ]
    key = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    tuning = _tunings.get((key, length))
    if tuning is None:
        tuning = Tuning(key, item.facts, length, resources, first, {}, chunk_size)
        # the same way may hang with more items
        measured = {w: each for w, each in _measured(_read().get(key)).items() if not tuning._may_hang(w)}
        tuning.measured = measured
        tuning.best = min(measured, key=lambda way: measured[way], default=first)
        _tunings[key, length] = tuning
        while len(_tunings) > MAX_KEPT:
            _tunings.popitem(last=False)
    _tunings.move_to_end((key, length))
    return tuning


def remember(tuning: Tuning) -> None:
    """Write what was measured to the file, for other kernels; silently not, where it cannot be written."""
    entry = {
        "ways": [{**asdict(way), "seconds_per_item": each} for way, each in tuning.finite().items()],
        "length": tuning.length,
        "saved": int(time.time()),
    }
    with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError):
        choices = _read()
        choices.pop(tuning.key, None)
        choices[tuning.key] = entry
        newest = dict(sorted(choices.items(), key=lambda c: c[1].get("saved") or 0)[-MAX_KEPT:])
        path = choices_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        # beside its place and renamed: another kernel reads the old file or the new one
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"format": _FORMAT, "choices": newest}, file, indent=1)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def forget_tunings() -> None:
    """Drop what this process knows (the file stays)."""
    _tunings.clear()


def choices_file() -> Path:
    """Where learnt choices are kept: safe to delete. The folder is $JAXPAR_CACHE_DIR, or the user's cache folder."""
    folder = os.environ.get("JAXPAR_CACHE_DIR")
    if folder:
        return Path(folder) / "choices.json"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "jaxpar_magic" / "choices.json"


def _read() -> dict[str, Any]:
    try:
        found = json.loads(choices_file().read_text())
        if found["format"] != _FORMAT:
            return {}
        return {k: v for k, v in found["choices"].items() if isinstance(v, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        # absent, unreadable or damaged, or there is no home: begin anew
        return {}


def _measured(entry: Any) -> dict[Way, float]:
    """The ways of an entry with their seconds per item; what is not as it should be is left out."""
    found: dict[Way, float] = {}
    ways = entry.get("ways") if isinstance(entry, dict) else None
    for saved in ways if isinstance(ways, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            values = dict(saved)
            seconds = float(values.pop("seconds_per_item"))
            way = Way(**values)
            whole = all(n is None or (isinstance(n, int) and n > 0) for n in (way.width, way.chunk_size))
            if whole and seconds > 0 and way.strategy in ("vmap", "map", "shard_map", "thread"):
                found[way] = seconds
    return found


def way_text(way: Way) -> str:
    """``shard_map in batches of 512, items dealt out``."""
    text = way.strategy
    if way.width is not None:
        text += f" in batches of {way.width:,}" if way.width > 1 else " one at a time"
    elif way.strategy != "vmap":
        text += " all together"
    if way.interleaved:
        text += ", items dealt out"
    if way.chunk_size is not None:
        text += f", chunks of {way.chunk_size:,}"
    return text
