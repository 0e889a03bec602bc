"""Facts → a plan: how many parts, how wide, how many chunks, and why. Pure; runs and prints nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError, OptionError, did_you_mean
from .facts import ItemFacts
from .strategies import MULTI_DEVICE, NAMES, ONE_LINERS

# One batch's intermediate results should stay in a core's own cache (L2: 0.5 to 2 MB on current processors).
CACHE_BYTES = 512 << 10
# Items of single numbers are left to XLA's own fusion, which needs no batches to stay in the cache.
LARGE_ITEM_BYTES = 4 << 10
# Beyond this width vectorising gains nothing more: 16 … 256 matched or beat both ends on 5 of 7 workloads.
MAX_WIDTH = 256
# A data-dependent loop runs as long as the slowest item of its batch; a vector unit's width costs next to nothing.
LOOP_WIDTH = 16
# Up to this much work in all, starting threads or devices costs more than it brings.
TINY_BYTES = 1 << 20
# Share of the free memory that a chunk may take.
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Resources:
    """What a map may use.

    Attributes
    ----------
    devices, platform: the devices.
    cores: that this process may use, or threads that the user wants.
    free_memory: bytes.
    wanted: how many devices the user asked for, or None.
    """

    devices: int
    platform: str
    cores: int
    free_memory: int
    wanted: int | None = None


@dataclass(frozen=True)
class MapPlan:
    """How a map will run. Plain data: print it, or run it.

    Attributes
    ----------
    strategy: name of the strategy.
    length: items that will be computed (fewer than given only under remainder="drop").
    parts: devices, threads or worker processes that share a chunk.
    chunk_size: items per dispatch, padding included.
    width: items vectorised together on one device.
    reasons: why, one short clause each.
    pads: whether the last chunk is filled up with repeats. A function with callbacks is not padded, since its
        author would see the extra calls: what is left over runs on one device.
    """

    strategy: str
    length: int
    parts: int
    chunk_size: int
    width: int
    reasons: tuple[str, ...] = ()
    pads: bool = True

    @property
    def chunks(self) -> int:
        return math.ceil(self.length / self.chunk_size) if self.length else 0

    @property
    def padding(self) -> int:
        """Items computed and thrown away to fill the last chunk."""
        return self.chunks * self.chunk_size - self.length if self.pads else 0

    @property
    def tail(self) -> int:
        """Items left over by full chunks, where they are not padded."""
        return 0 if self.pads else self.length % self.chunk_size

    def bounds(self) -> list[tuple[int, int]]:
        """(begin, end) of each chunk."""
        return [(begin, min(begin + self.chunk_size, self.length)) for begin in range(0, self.length, self.chunk_size)]


def check_strategy(name: str) -> str:
    """`name` if it is a strategy or "auto"; OptionError with the nearest otherwise."""
    known = ("auto", *NAMES)
    if name not in known:
        raise OptionError(
            f"strategy={name!r}: not one of {', '.join(known)}.{did_you_mean(str(name), known)}",
            argument="strategy",
        )
    return name


def choose_strategy(facts: ItemFacts, length: int, resources: Resources) -> tuple[str, str]:
    """(strategy, reason) for `auto`, by rules; for a function that could be traced."""
    if length <= 1:
        return "vmap", "a single item"
    if facts.ordered:
        if (resources.wanted or 1) > 1:
            return "thread", "ordered callbacks run on one device only: in threads, in order within each part"
        return "map", "its ordered callbacks run on one device only, in the order of items"
    item = max(facts.work_bytes, facts.input_bytes + facts.output_bytes)
    if resources.devices > 1 and (resources.wanted or 1) > 1:
        return "shard_map", f"{resources.devices} devices, as asked"
    if not facts.has_loop and length * item <= TINY_BYTES:
        return "vmap", "little work: one program on one device"
    if resources.devices > 1:
        return "shard_map", f"{resources.devices} devices, each with its own part"
    if resources.platform == "cpu" and resources.cores > 1:
        if not facts.has_loop and item <= 1024:
            return "vmap", "plain arithmetic, which XLA spreads over the cores itself"
        return "thread", f"one device but {resources.cores} cores"
    return ("map", "one device; a loop per item") if facts.has_while else ("vmap", "one device")


def plan_map(
    strategy: str,
    length: int,
    facts: ItemFacts,
    resources: Resources,
    *,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    remainder: str = "pad",
) -> MapPlan:
    """Plan a map of a traced function.

    Parameters
    ----------
    strategy: a traced strategy's name, or "auto".
    length: number of items.
    facts: of the traced function.
    resources: devices to use (already reduced to what the user asked for), cores, memory.
    batch_size, chunk_size: the user's wishes, in items.
    remainder: "pad", "drop" or "error": what happens to items that do not fill all parts.

    Raises
    ------
    InputError: remainder="error" and the items do not fill the parts evenly.
    """
    reasons = []
    automatic = strategy == "auto"
    if automatic:
        strategy, reason = choose_strategy(facts, length, resources)
        reasons.append(reason)
    else:
        reasons.append(ONE_LINERS[strategy])
    parts = _parts(strategy, length, resources)
    length = _without_remainder(length, parts, remainder)

    width, reason = _width(strategy, automatic, batch_size, facts, length, parts)
    if reason:
        reasons.append(reason)
    chunk, reason = _chunk(strategy, width, batch_size, chunk_size, facts, length, parts, resources)
    if reason:
        reasons.append(reason)
    part = chunk // parts
    width = max(1, min(width, part))
    if width < part:
        batches = math.ceil(part / width)
        width = math.ceil(part / batches)
        if not facts.callbacks:
            chunk = batches * width * parts  # equal batches: lax.map compiles a remainder as a second program
    return MapPlan(strategy, length, parts, chunk, width, tuple(reasons), pads=not facts.callbacks)


def _parts(strategy: str, length: int, resources: Resources) -> int:
    if strategy in MULTI_DEVICE:
        return resources.devices
    if strategy == "thread":
        return max(1, min(resources.cores, length))
    return 1


def _without_remainder(length: int, parts: int, remainder: str) -> int:
    left = length % parts
    if left and remainder == "error":
        raise InputError(
            f"remainder='error': {length} items do not divide evenly over {parts} devices ({left} left over).",
            argument="remainder",
            next_step=f"remainder='pad', or give {length - left} or {length - left + parts} items",
        )
    return length - left if remainder == "drop" else length


def cache_width(facts: ItemFacts) -> int:
    """The width at which a batch's intermediate results fill a core's cache."""
    item = max(1, facts.work_bytes, facts.input_bytes + facts.output_bytes)
    return max(1, min(MAX_WIDTH, CACHE_BYTES // item))


def _width(strategy, automatic, batch_size, facts, length, parts) -> tuple[int, str]:
    everything = max(1, math.ceil(length / parts))
    if facts.input_bytes == 0:
        return everything, ""  # items without a single number: lax.map divides by their size
    if batch_size is not None:
        return min(batch_size, everything), ""
    if strategy in ("vmap", "jit"):
        return everything, ""
    if strategy == "map":
        return 1, ""
    if facts.ordered:
        return 1, "one item at a time: ordered callbacks"
    if facts.has_while:
        width = min(LOOP_WIDTH, cache_width(facts))
        return width, "small batches: a loop runs as long as its slowest item"
    width = cache_width(facts)
    large = facts.work_bytes >= LARGE_ITEM_BYTES and everything * facts.work_bytes > 4 * CACHE_BYTES
    if width < everything and (automatic or large):
        return width, "batches whose intermediate results fit a core's cache"
    return everything, ""


def _chunk(strategy, width, batch_size, chunk_size, facts, length, parts, resources) -> tuple[int, str]:
    def rounded(items: int) -> int:
        rows = items // parts if facts.callbacks else math.ceil(items / parts)
        return max(1, rows) * parts

    if strategy == "jit" and batch_size is not None:
        chunk_size = min(chunk_size or length, batch_size * parts)
    whole = rounded(length)
    if chunk_size is not None:
        return min(rounded(chunk_size), whole), ""
    budget = resources.free_memory * MEMORY_SHARE
    item = facts.input_bytes + facts.output_bytes
    full_width = width * parts >= whole
    needed = whole * (item + facts.work_bytes) if full_width else whole * item + width * parts * facts.work_bytes
    if needed <= budget or length <= parts:
        return whole, ""
    per_item = item + facts.work_bytes if full_width else item
    fixed = 0 if full_width else width * parts * facts.work_bytes
    fitting = max(parts, int((budget - fixed) // max(1, per_item)))
    chunks = math.ceil(length / fitting)
    return rounded(math.ceil(length / chunks)), (
        f"{chunks} chunks: all at once would need about {needed / 1e9:.1f} GB of {resources.free_memory / 1e9:.1f} free"
    )


def python_parts(strategy: str, length: int, cores: int, wanted: int | None) -> int:
    """Worker processes for a Python strategy."""
    return 1 if strategy == "serial" else max(1, min(wanted or cores, length))


def python_chunk(length: int, workers: int, chunk_size: int | None) -> int:
    """Items per task of a worker: about four tasks per worker, as `Pool.map` has it, so that uneven items balance."""
    return chunk_size or max(1, math.ceil(length / (4 * max(1, workers))))


def describe_devices(devices: Sequence[object]) -> str:
    """``2 devices`` or ``1 device``."""
    return f"{len(devices)} device{'s' if len(devices) != 1 else ''}"
