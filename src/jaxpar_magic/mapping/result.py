"""What a map gives back: the value, and a report of how it was got."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..document import Bars, Described, Document, Items, Paragraph

# A report draws the times of its chunks from so many on, and in at most so many bars.
LEAST_DRAWN = 4
MOST_DRAWN = 20


def duration(seconds: float) -> str:
    """A time in the unit that suits it, two or three digits.

    >>> duration(0.0031), duration(75.0), duration(9631.0)
    ('3.1 ms', '75 s', '2.7 h')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        milliseconds = seconds * 1e3
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


@dataclass(frozen=True)
class ItemReport:
    """An item that failed or is not finite: index, its inputs in a few words, what is wrong."""

    index: int
    inputs: str
    problem: str


@dataclass
class MapReport(Described):
    """How a map ran.

    Attributes
    ----------
    function: name of the function; "" if it has none.
    strategy: the strategy that ran.
    length: number of items computed.
    parts: devices, threads or workers used.
    unit: "device", "thread", "worker" or "engine".
    each: what every engine of a cluster has, e.g. "2 devices".
    batch_size: items vectorised together; None for plain Python.
    chunk_size, chunks: items per dispatch, and how many dispatches.
    compile_seconds: tracing and compiling, 0.0 if the program was there already.
    run_seconds: from the first dispatch until the results were ready.
    reused: nothing was compiled.
    resumed: items that an earlier run had finished.
    reasons: why this strategy, width and chunk.
    notes: what the user should know.
    failed: items whose call raised (only under on_error="skip"; they are left out of the result).
    not_finite: items with NaN or inf (only under check="finite").
    chunk_seconds: how long each chunk took, in their order; those of an earlier run are left out.
    part_seconds: for each of them, how long each device or thread took for its part; empty where that is not known.
    """

    strategy: str
    length: int
    parts: int = 1
    unit: str = "device"
    batch_size: int | None = None
    chunk_size: int = 0
    chunks: int = 1
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    reused: bool = False
    resumed: int = 0
    reasons: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    failed: list[ItemReport] = field(default_factory=list)
    not_finite: list[ItemReport] = field(default_factory=list)
    function: str = ""
    chunk_seconds: list[float] = field(default_factory=list)
    part_seconds: list[list[float]] = field(default_factory=list)
    tried: list[tuple[str, float]] = field(default_factory=list)
    each: str = ""

    @property
    def skipped(self) -> list[int]:
        """Indices of the items that are left out of the result."""
        return [item.index for item in self.failed]

    def line(self) -> str:
        """The report in one line."""
        parts = [f"parmap {self.function}: {self.strategy}" if self.function else f"parmap: {self.strategy}"]
        if self.strategy != "serial":
            parts[0] += f" on {self.parts} {self.unit}{'s' if self.parts != 1 else ''}"
            parts[0] += f" × {self.each}" if self.each else ""
        parts.append(f"{self.length:,} item{'s' if self.length != 1 else ''}")
        if self.batch_size is not None and self.batch_size * self.parts < self.length:
            parts.append(f"batches of {self.batch_size}" if self.batch_size > 1 else "one at a time")
        if self.chunks > 1:
            parts.append(f"{self.chunks} chunks")
        if self.resumed:
            parts.append(f"{self.resumed:,} from an earlier run")
        if self.batch_size is not None or self.each:
            parts.append("compiled before" if self.reused else f"compile {duration(self.compile_seconds)}")
        parts.append(f"run {duration(self.run_seconds)}")
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """The line, then one for each note and each kind of trouble with items."""
        lines = [self.line(), *(f"  note: {note}" for note in self.notes)]
        if self.tried:
            lines.append(f"  tried: {self._trials()}")
        if self.failed:
            lines.append(f"  {_counted(self.failed, 'failed and left out')}")
        if self.not_finite:
            lines.append(f"  {_counted(self.not_finite, 'not finite')}")
        return lines

    def _trials(self) -> str:
        fastest = min(seconds for _, seconds in self.tried)
        return "; ".join(
            f"{way} {duration(seconds)}{' (the fastest)' if seconds == fastest else ''}" for way, seconds in self.tried
        )

    def describe(self) -> Document:
        blocks: list[Any] = [Paragraph(self.line())]
        points = [line.strip() for line in self.lines()[1:]]
        if points:
            blocks.append(Items(points))
        if len(self.chunk_seconds) >= LEAST_DRAWN:
            # chunks of an earlier run come first, and were not timed
            before = self.chunks - len(self.chunk_seconds)
            blocks.append(_chunk_bars(self.chunk_seconds, before))
            parts = {before + k: seconds for k, seconds in enumerate(self.part_seconds, 1) if seconds}
            if parts and 1 < self.parts <= MOST_DRAWN:
                blocks.append(_part_bars(parts, self.unit))
        return Document(blocks)

    def __repr__(self) -> str:
        return f"<MapReport {self.line()}>"


def _counted(items: list[ItemReport], what: str, most: int = 5) -> str:
    shown = "; ".join(f"item {i.index} ({i.inputs}): {i.problem}" for i in items[:most])
    more = f"; and {len(items) - most} more (last_report())" if len(items) > most else ""
    return f"{len(items)} item{'s' if len(items) != 1 else ''} {what}: {shown}{more}"


def _chunk_bars(seconds: list[float], before: int) -> Bars:
    """A bar for each chunk, or for neighbours together where there are many."""
    together = -(-len(seconds) // MOST_DRAWN)
    rows = []
    for first in range(0, len(seconds), together):
        group = seconds[first : first + together]
        last = before + first + len(group)
        name = _chunks_named(last - len(group) + 1, last)
        mean = statistics.fmean(group)
        span = f" ({duration(min(group))} to {duration(max(group))})" if len(group) > 1 else ""
        rows.append((name, mean, duration(mean) + span))
    slowest, usual = max(seconds), statistics.median(seconds)
    times = f", {slowest / usual:.1f} times the usual {duration(usual)}" if usual else ""
    return Bars(rows, f"time of each chunk; the slowest is chunk {before + seconds.index(slowest) + 1}{times}")


def _part_bars(chunks: dict[int, list[float]], unit: str) -> Bars:
    """A bar for each device or thread in each chunk, by its number, or in neighbours together where there are many."""
    numbers, parts = list(chunks), len(next(iter(chunks.values())))
    together = -(-len(numbers) // max(1, MOST_DRAWN // parts))
    rows = []
    for first in range(0, len(numbers), together):
        group = numbers[first : first + together]
        for k in range(parts):
            mean = statistics.fmean(chunks[number][k] for number in group)
            rows.append((f"{_chunks_named(group[0], group[-1])}, {unit} {k}", mean, duration(mean)))
    sums = [sum(seconds[k] for seconds in chunks.values()) for k in range(parts)]
    most, least = (
        f"{unit} {sums.index(s)} the {word}, {duration(s)}"
        for s, word in ((max(sums), "longest"), (min(sums), "shortest"))
    )
    return Bars(rows, f"time of each {unit} in a chunk; in all, {most}, {least}")


def _chunks_named(first: int, last: int) -> str:
    return f"chunk {last}" if first == last else f"chunks {first}-{last}"


@dataclass
class MapResult:
    """A map's value and its report."""

    value: Any
    report: MapReport
