"""How much memory a map may hold at its peak, and chunks that keep within it.

What is counted: a chunk's program on all devices (its inputs, results and temporary space, by the compiled program's
own analysis), twice where there are several chunks, since the next one is under way while one is collected; the
chunk's copies on the host; and the results, unless they go to a file. The user's own arrays are not.
"""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InputError, OptionError
from ..machine import free_memory, resident_memory, size_text, trim_memory

if TYPE_CHECKING:
    from .tracing import ItemFacts

# Share of the free memory that a map may take where the user names no bound.
DEFAULT_SHARE = 0.8
# Programs compiled until a chunk fits: from an estimate, from the first program's figures, and from two programs'.
MAX_COMPILES = 3
# A chunk computed from figures aims this far below the bound, since temporary space does not grow evenly.
MARGIN = 0.9

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_memory(value: Any) -> int | float:
    """Bytes (int), or a share of the free memory (float up to 1).

    >>> parse_memory("1.5GiB"), parse_memory("500MB"), parse_memory(4096), parse_memory("50%")
    (1610612736, 500000000, 4096, 0.5)

    Raises
    ------
    OptionError: neither a positive number of bytes nor a share above 0 % and up to 100 %.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) > 0:
        return int(value)
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?|\.\d+)\s*(%|([kmgt]?)(i?)b?)\s*", value, re.IGNORECASE)
        if match:
            number, unit, prefix, binary = match.groups()
            amount = float(number.replace("_", ""))
            if unit == "%":
                if 0 < amount <= 100:
                    return amount / 100
            elif not binary or prefix:
                scale = (_BINARY if binary else _UNITS)[prefix.lower()]
                if amount * scale >= 1:
                    return int(amount * scale)
    raise OptionError(
        f"memory={value!r}: needs bytes, such as 2GB, 1.5GiB or 500000000, or a share of the free memory, such as 50%.",
        argument="memory",
    )


def memory_bound(memory: int | float | str | None) -> int:
    """Bytes that a map may hold: as wanted, or 80 % of what is free to this process."""
    wanted = DEFAULT_SHARE if memory is None else parse_memory(memory) if isinstance(memory, str) else memory
    return int(free_memory() * wanted) if isinstance(wanted, float) else wanted


@dataclass(frozen=True)
class Peak:
    """What a map holds at its peak, in bytes.

    Attributes
    ----------
    results: all results, if they stay in memory.
    program: one chunk's program on all devices: inputs, results and temporary space.
    host: the chunk's inputs and results on their way.
    under_way: programs at a time.
    """

    results: int
    program: int
    host: int
    under_way: int

    @property
    def total(self) -> int:
        return self.results + self.under_way * self.program + self.host


def peak_of(length: int, chunk: int, facts: ItemFacts, program: int, *, to_file: bool) -> Peak:
    """The peak of a map of `length` items in chunks of `chunk`, whose program holds `program` bytes on all devices."""
    host = chunk * (facts.input_bytes + facts.output_bytes)
    if chunk >= length and not to_file:
        return Peak(0, program, host, 1)  # a single chunk's results are the result
    return Peak(0 if to_file else length * facts.output_bytes, program, host, 1 if chunk >= length else 2)


def program_estimate(chunk: int, width: int, parts: int, facts: ItemFacts) -> int:
    """Bytes that the program of a chunk holds, before it is compiled: from the sizes of single values."""
    together = min(chunk, width * parts)
    return chunk * (facts.input_bytes + facts.output_bytes) + together * facts.work_bytes


def choose_chunk(
    length: int, parts: int, width: int, facts: ItemFacts, bound: int, *, to_file: bool, whole: int
) -> tuple[int, str]:
    """(items per dispatch, reason) from estimates: all at once if that fits, else as many as fit.

    Parameters
    ----------
    length: items of the map.
    parts: devices or threads that share a chunk.
    width: items vectorised together on one of them.
    whole: the chunk that holds all items, a multiple of `parts`.
    """
    needed = peak_of(length, whole, facts, program_estimate(whole, width, parts, facts), to_file=to_file).total
    if needed <= bound or length <= parts:
        return whole, ""
    room = bound - (0 if to_file else length * facts.output_bytes)
    each = 3 * (facts.input_bytes + facts.output_bytes)  # two programs, and once on the host
    fixed = 2 * width * parts * facts.work_bytes
    fitting = (room - fixed) // max(1, each)
    if fitting < width * parts:  # not even one batch: fewer items together
        fitting = room // max(1, each + 2 * facts.work_bytes)
    fitting = max(parts, fitting // parts * parts)
    chunks = math.ceil(length / fitting)
    even = math.ceil(math.ceil(length / chunks) / parts) * parts
    return min(even, fitting), (
        f"{chunks} chunks: all at once would need about {size_text(needed)} of the {size_text(bound)} it may hold"
    )


class Trimmer:
    """Gives memory back to the system where what has been freed, and is kept for later, would exceed the bound.

    The C library keeps freed blocks of up to 32 MB; with many chunks these alone can be several times the bound.
    """

    def __init__(self, bound: int):
        self._limit = resident_memory() + int(MARGIN * bound)

    def after_chunk(self) -> None:
        """To be called when a chunk has been collected."""
        if resident_memory() > self._limit:
            trim_memory()


class Fitting:
    """Finds the largest chunk whose compiled program keeps within the bound, in few compilations.

    Parameters
    ----------
    bound: bytes.
    length, facts, parts: of the map.
    to_file: whether the results go to a file.
    """

    def __init__(self, bound: int, length: int, facts: ItemFacts, *, to_file: bool):
        self.bound = bound
        self.length = length
        self.facts = facts
        self.to_file = to_file
        self.tried: list[tuple[int, int]] = []  # (chunk, bytes of its program)

    def peak(self, chunk: int, program: int) -> Peak:
        """The peak with a compiled program that holds `program` bytes on all devices."""
        return peak_of(self.length, chunk, self.facts, program, to_file=self.to_file)

    def next_chunk(self, chunk: int, program: int, parts: int) -> int | None:
        """A smaller chunk to compile, or None: `chunk` fits. InputError if no chunk can fit."""
        peak = self.peak(chunk, program)
        if peak.total <= self.bound or not program:
            return None
        self.tried.append((chunk, program))
        if chunk <= parts:
            raise self._does_not_fit(peak, parts)
        if len(self.tried) >= MAX_COMPILES:
            return parts
        return max(parts, min(chunk - 1, self._fitting()) // parts * parts)

    def too_large(self, chunk: int, program: int, smaller: int) -> OptionError:
        """The error for a chunk size of the user's that does not fit the user's bound."""
        return OptionError(
            f"chunk_size: {chunk} items at a time hold {size_text(self.peak(chunk, program).total)}, "
            f"but memory= allows {size_text(self.bound)}.",
            argument="chunk_size",
            next_step=f"chunk_size={smaller}, or leave it away",
        )

    def _fitting(self) -> int:
        """The chunk for which a straight line through what is known meets the bound."""
        chunk, program = self.tried[-1]
        slope, fixed = program / chunk, 0.0
        if len(self.tried) > 1:
            other_chunk, other = self.tried[-2]
            steep = (other - program) / (other_chunk - chunk)
            if 0 < steep < slope:
                slope, fixed = steep, program - steep * chunk
        room = MARGIN * self.bound - (0 if self.to_file else self.length * self.facts.output_bytes) - 2 * fixed
        if len(self.tried) == MAX_COMPILES - 1:
            room /= 2  # the last try has to fit
        return int(room / (2 * slope + self.facts.input_bytes + self.facts.output_bytes))

    def _does_not_fit(self, peak: Peak, parts: int) -> InputError:
        what = "a single item" if parts == 1 else f"{parts} items at a time, one on each device,"
        if peak.results and peak.total - peak.results <= self.bound:
            return InputError(
                f"memory: the result takes {size_text(peak.results)} and {what} {size_text(peak.total - peak.results)} "
                f"more, but the map may hold {size_text(self.bound)}.",
                argument="memory",
                next_step="out_file='result.npy' writes the result to disk as it comes, or a larger memory=",
            )
        return InputError(
            f"memory: {what} would need {size_text(peak.total)}, but the map may hold {size_text(self.bound)}.",
            argument="memory",
            next_step="a larger memory="
            + ("" if parts == 1 else ", or devices=1, which computes one item at a time")
            + ", or a function that needs less at a time (jax.lax.map or scan inside)",
        )
