"""Facts → a plan: how many parts, how wide, how many chunks, and why. Pure; runs and prints nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import InputError, OptionError, did_you_mean
from .facts import ItemFacts
from .memory import choose_chunk
from .strategies import MULTI_DEVICE, NAMES, ONE_LINERS

# One batch's intermediate results should stay in a core's own cache (L2: 0.5 to 2 MB on current processors).
CACHE_BYTES = 512 << 10
# In a loop each operation should work on about this many numbers: enough to fill the vector units and to pay for
# starting the operation, and few enough to stay in the first cache.
LOOP_ELEMENTS = 2048
# Wider batches gain nothing more. Measured on twelve workloads: 256 to 768 are within 10 % of the best for all whose
# items are small; 16 and below are up to six times slower.
MAX_WIDTH = 512
# Where all items of a device together give each operation no more numbers than this, cutting them into batches gains
# nothing: 2,048 optimisers of 10 dimensions take 62 ms in one batch, 64 ms in four.
WHOLE_ELEMENTS = 24 << 10
# Items this small count as single numbers: their loops gain from more than they fill of the cache.
SMALL_ELEMENTS = 32
# The same for loops of unknown length, which run as long as the slowest item of their batch.
WHILE_WIDTH = 256
# Batches may not hold more than this in intermediate results, whatever their width gains.
MAX_BATCH_BYTES = 64 << 20
# Up to this much work in all, starting threads or devices costs more than it brings.
TINY_SECONDS = 0.5e-3
# Work that is expected to take longer than the first is cut into chunks of about the second, so that an interrupt is
# quick, progress is seen, and other ways can be tried on the way.
LONG_SECONDS, CHUNK_SECONDS = 0.5, 0.25
# For a loop of unknown length the time is unknown, too: chunks of at least so many batches per device, so many at most.
MIN_BATCHES, MAX_CHUNKS = 4, 16
# A map of another length takes the program of a longer one, if it need not be filled up to more than this.
MAX_PADDING = 1.25


# Linear algebra of less work than this is not cut into tasks for the pool (between 0.5 and 1 ms on JAX 0.10).
POOLED_SECONDS = 0.1e-3
# Where it makes up this share of an item's cost, it runs best on one device, with all threads of the pool.
POOLED_SHARE = 0.2


@dataclass(frozen=True)
class Way:
    """One way to run a map, as `auto` chooses among them.

    Attributes
    ----------
    strategy: a traced strategy's name.
    width: items vectorised together on one device; None is all.
    interleaved: each device takes every n-th item instead of neighbours, so that slow items that stand together
        are shared.
    chunk_size: items per dispatch; None is all that fit into memory.
    """

    strategy: str
    width: int | None = None
    interleaved: bool = False
    chunk_size: int | None = None


@dataclass(frozen=True)
class Resources:
    """What a map may use.

    Attributes
    ----------
    devices, platform: the devices.
    cores: that this process may use, or threads that the user wants.
    memory: bytes that the map may hold.
    wanted: how many devices the user asked for, or None.
    pool: threads of XLA's CPU client; 0 if unknown or of no matter.
    """

    devices: int
    platform: str
    cores: int
    memory: int
    wanted: int | None = None
    pool: int = 0


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
    interleaved: each part takes every n-th item of a chunk instead of neighbours.
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
    interleaved: bool = False

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

    def bounds(self, size: int | None = None) -> list[tuple[int, int]]:
        """(begin, end) of each chunk, or of chunks of `size` items."""
        size = size or self.chunk_size
        return [(begin, min(begin + size, self.length)) for begin in range(0, self.length, size)]


def check_strategy(name: str) -> str:
    """`name` if it is a strategy or "auto"; OptionError with the nearest otherwise."""
    known = ("auto", *NAMES)
    if name not in known:
        raise OptionError(
            f"strategy={name!r}: not one of {', '.join(known)}.{did_you_mean(str(name), known)}",
            argument="strategy",
        )
    return name


def may_hang(facts: ItemFacts, parts: int, width: int, resources: Resources) -> bool:
    """Whether batches of linear algebra on several parts at once can wait for each other for ever.

    Each waits for tasks in the thread pool that all run on. With two programs under way on each part, that takes
    more threads than two per part (`backend.plan` asks for them).
    """
    return (
        parts > 1
        and resources.platform == "cpu"
        and 0 < resources.pool <= 2 * parts
        and facts.pooled_nanoseconds * width > POOLED_SECONDS * 1e9
    )


def choose_strategy(facts: ItemFacts, length: int, resources: Resources) -> tuple[str, str]:
    """(strategy, reason) for `auto`, by rules; for a function that could be traced."""
    if length <= 1:
        return "vmap", "a single item"
    if facts.ordered:
        if (resources.wanted or 1) > 1:
            return "thread", "ordered callbacks run on one device only: in threads, in order within each part"
        return "map", "its ordered callbacks run on one device only, in the order of items"
    if may_hang(facts, max(resources.devices, resources.cores), MAX_WIDTH, resources):
        return "vmap", "its linear algebra uses all cores by itself, and may hang on several devices at once"
    if resources.devices > 1 and (resources.wanted or 1) > 1:
        return "shard_map", f"{resources.devices} devices, as asked"
    if not facts.has_while and length * facts.nanoseconds <= TINY_SECONDS * 1e9:
        return "vmap", "little work: one program on one device"
    if facts.fuses and resources.platform == "cpu":
        return "vmap", "plain arithmetic, which XLA spreads over the cores itself"
    if facts.pooled_nanoseconds > POOLED_SHARE * facts.nanoseconds and resources.platform == "cpu":
        return "vmap", "its linear algebra uses all cores by itself"
    if resources.devices > 1:
        return "shard_map", f"{resources.devices} devices, each with its own part"
    if resources.platform == "cpu" and resources.cores > 1:
        return "thread", f"one device but {resources.cores} cores"
    return ("map", "one device; a loop per item") if facts.has_while else ("vmap", "one device")


def first_way(facts: ItemFacts, length: int, resources: Resources) -> tuple[Way, tuple[str, ...]]:
    """(way, reasons): what `auto` begins with when nothing has been measured yet."""
    strategy, reason = choose_strategy(facts, length, resources)
    reasons = [reason]
    parts = parts_of(strategy, length, resources)
    as_if = "shard_map" if facts.pooled_nanoseconds else strategy  # moderate batches for linear algebra anywhere
    width, why = default_width(as_if, facts, math.ceil(length / parts))
    if why:
        reasons.append(why)
    interleaved = facts.has_while and not facts.callbacks and may_interleave(strategy, parts, resources)
    if interleaved:
        reasons.append("every device takes items from all over, so that slow neighbours are shared")
    return Way(strategy, width, interleaved, _quick_chunk(facts, length, parts, width)), tuple(reasons)


def may_interleave(strategy: str, parts: int, resources: Resources) -> bool:
    """Whether items can be dealt out to the parts: on the CPU, where it is no transfer."""
    return parts > 1 and resources.platform == "cpu" and strategy in ("shard_map", "thread")


def _quick_chunk(facts: ItemFacts, length: int, parts: int, width: int | None) -> int | None:
    """Items per dispatch for work that is expected to be long; None if all at once is short enough."""
    if facts.callbacks or not length:
        return None
    batch = parts * (width or math.ceil(length / parts))
    if facts.has_while:
        chunks = min(MAX_CHUNKS, length // (MIN_BATCHES * batch))
    else:
        seconds = length * facts.nanoseconds * 1e-9 / parts
        chunks = int(seconds / CHUNK_SECONDS) if seconds > LONG_SECONDS else 1
    chunks = min(chunks, length // batch)
    return math.ceil(length / chunks) if chunks > 1 else None


def plan_map(
    strategy: str,
    length: int,
    facts: ItemFacts,
    resources: Resources,
    *,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    remainder: str = "pad",
    way: Way | None = None,
    reasons: Sequence[str] = (),
    to_file: bool = False,
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
    to_file: results are written to a file, and not held.
    way: for "auto": what has been chosen, with its `reasons`; by default what the rules say.

    Raises
    ------
    InputError: remainder="error" and the items do not fill the parts evenly.
    """
    if strategy == "auto":
        if way is None:
            way, reasons = first_way(facts, length, resources)
        reasons = list(reasons)
    else:
        way, reasons = Way(strategy), [ONE_LINERS[strategy]]
    parts = parts_of(way.strategy, length, resources)
    length = without_remainder(length, parts, remainder)

    everything = max(1, math.ceil(length / parts))
    if strategy == "auto" and batch_size is None:
        width = min(way.width or everything, everything)
    else:
        width, reason = _width(way.strategy, batch_size, facts, everything)
        if reason:
            reasons.append(reason)
    if strategy != "auto" and may_hang(facts, parts, width, resources):
        unit = "threads" if strategy == "thread" else "devices"
        raise OptionError(
            f"strategy={strategy!r}: linear algebra in batches of {width:,} on {parts} {unit} at once can hang JAX, "
            f"whose CPU client has {resources.pool} threads for all.",
            argument="strategy",
            next_step=f"strategy='vmap', where linear algebra uses all cores by itself; or room for {parts} at once: "
            + (f"%jaxdevices 1, then %jaxdevices {parts}" if resources.devices == parts else f"%jaxdevices {parts}"),
        )
    chunk, reason = _chunk(way, width, batch_size, chunk_size, facts, length, parts, resources.memory, to_file)
    if reason:
        reasons.append(reason)
    part = chunk // parts
    width = max(1, min(width, part))
    if width < part:
        batches = math.ceil(part / width)
        width = math.ceil(part / batches)
        if not facts.callbacks:
            chunk = batches * width * parts  # equal batches: lax.map compiles a remainder as a second program
    return MapPlan(
        way.strategy,
        length,
        parts,
        chunk,
        width,
        tuple(reasons),
        pads=not facts.callbacks,
        interleaved=way.interleaved and parts > 1,
    )


def parts_of(strategy: str, length: int, resources: Resources) -> int:
    """Devices or threads that share a map of `length` items."""
    if strategy in MULTI_DEVICE:
        return resources.devices
    if strategy == "thread":
        return max(1, min(resources.cores, length))
    return 1


def without_remainder(length: int, parts: int, remainder: str) -> int:
    """Items that a map of `length` items computes. InputError where it should divide evenly and does not."""
    left = length % parts
    if left and remainder == "error":
        raise InputError(
            f"remainder='error': {length} items do not divide evenly over {parts} devices ({left} left over).",
            argument="remainder",
            next_step=f"remainder='pad', or give {length - left} or {length - left + parts} items",
        )
    return length - left if remainder == "drop" else length


def default_width(strategy: str, facts: ItemFacts, everything: int) -> tuple[int | None, str]:
    """(items to vectorise together on one device, reason); None for all of the `everything` that one device has."""
    if facts.input_bytes == 0:
        return None, ""  # items without a single number: lax.map divides by their size
    if strategy in ("vmap", "jit"):
        return None, ""
    if strategy == "map":
        return 1, ""
    if facts.ordered:
        return 1, "one item at a time: ordered callbacks"
    if facts.has_loop:
        few = everything * max(1, facts.loop_elements) <= WHOLE_ELEMENTS
        if few and not facts.has_while and everything * facts.item_bytes <= MAX_BATCH_BYTES:
            return None, ""
        most = WHILE_WIDTH if facts.has_while else MAX_WIDTH
        elements = 1 if facts.loop_elements <= SMALL_ELEMENTS else facts.loop_elements
        width = max(1, min(most, LOOP_ELEMENTS // elements, MAX_BATCH_BYTES // facts.item_bytes))
        reason = (
            "batches of moderate size: a loop runs as long as its slowest item"
            if facts.has_while
            else "batches whose loops work in a core's first cache"
        )
    elif facts.fuses:
        return None, ""
    else:
        width = max(1, min(MAX_WIDTH, CACHE_BYTES // facts.item_bytes))
        reason = "batches whose intermediate results fit a core's cache"
    return (None, "") if width >= everything else (width, reason)


def _width(strategy: str, batch_size: int | None, facts: ItemFacts, everything: int) -> tuple[int, str]:
    if batch_size is not None and facts.input_bytes:
        return min(batch_size, everything), ""
    width, reason = default_width(strategy, facts, everything)
    return min(width or everything, everything), reason


def _chunk(way, width, batch_size, chunk_size, facts, length, parts, memory, to_file) -> tuple[int, str]:
    def rounded(items: int) -> int:
        rows = items // parts if facts.callbacks else math.ceil(items / parts)
        return max(1, rows) * parts

    if way.strategy == "jit" and batch_size is not None:
        chunk_size = min(chunk_size or length, batch_size * parts)
    whole = rounded(length)
    if chunk_size is not None:
        return min(rounded(chunk_size), whole), ""
    chunk, reason = choose_chunk(length, parts, width, facts, memory, to_file=to_file, whole=whole)
    if way.chunk_size is not None and way.chunk_size < chunk:
        return min(rounded(way.chunk_size), whole), ""
    return chunk, reason


def padded_to_known(plan: MapPlan, known: Sequence[tuple[int, int]]) -> MapPlan:
    """The same plan in chunks of a size that is compiled already, where that costs little padding.

    `known` are (items in a chunk, batch width) of the same program, strategy and devices.
    """
    if not plan.pads or not plan.length or plan.chunks > 1 or (plan.chunk_size, plan.width) in known:
        return plan
    fitting = [(size, width) for size, width in known if plan.length <= size <= MAX_PADDING * plan.length]
    if not fitting:
        return plan
    size, width = min(fitting)
    reason = f"filled up to {size:,} items, for which it is compiled"
    return replace(plan, chunk_size=size, width=width, reasons=(*plan.reasons, reason))


def python_parts(strategy: str, length: int, cores: int, wanted: int | None) -> int:
    """Worker processes for a Python strategy."""
    return 1 if strategy == "serial" else max(1, min(wanted or cores, length))


def python_chunk(length: int, workers: int, chunk_size: int | None) -> int:
    """Items per task of a worker: about four tasks per worker, as `Pool.map` has it, so that uneven items balance."""
    return chunk_size or max(1, math.ceil(length / (4 * max(1, workers))))


def describe_devices(devices: Sequence[object]) -> str:
    """``2 devices`` or ``1 device``."""
    return f"{len(devices)} device{'s' if len(devices) != 1 else ''}"
