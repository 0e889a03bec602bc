"""The ways to run a workload that are compared: parmap, JAX by hand, and other tools.

`build(name, context)` makes one. Inputs are numpy arrays for all of them, and a call ends when the results are ready.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from workloads import Workload

# What people write by hand; `auto` is held against the best of them.
BY_HAND = ("jit(vmap)", "lax.map", "shard_map(vmap)", "shard_map(lax.map)", "pmap(vmap)", "sharded jit(vmap)")
# What somebody chooses who knows about batch_size and does not try several.
BATCHED = "lax.map(batch_size=64)"
TRACED = tuple(f"parmap {s}" for s in ("vmap", "map", "jit", "shard_map", "pmap", "thread"))
PLAIN = ("parmap process", "parmap serial")
OTHER_TOOLS = ("parajax", "joblib", "Pool", "loop")
# The way that `auto` chose, on one device: what the other devices add.
ONE_DEVICE = "auto's width on one device"
ALL = ("auto", ONE_DEVICE, *BY_HAND, BATCHED, *TRACED, *PLAIN, *OTHER_TOOLS)
# These run the numpy version, on `numpy_size` items.
NUMPY = (*PLAIN, "joblib", "Pool", "loop")

WIDTHS = (1, 4, 16, 64, 256, 1024, None)  # None: all items of a device together
PLACES = ("one device", "devices", "interleaved", "threads")
# Above this many items, one at a time takes seconds for arithmetic and is never the best.
MANY = 200_000


@dataclass
class Context:
    """A workload with its inputs.

    Attributes
    ----------
    inputs: stacked, for JAX.
    numpy_inputs, items: what the numpy version runs over, stacked and as a list.
    length: items in `inputs`.
    devices: devices, worker processes, threads.
    width: the batch size of `auto`, once it has run; before, 0.
    """

    workload: Workload
    inputs: Any
    numpy_inputs: Any
    items: list[Any]
    length: int
    devices: int
    width: int = 0


@dataclass
class Variant:
    """`call()` returns results that are ready; `close()` ends its workers."""

    call: Callable[[], Any]
    close: Callable[[], None] = field(default=lambda: None)


def names_for(workload: Workload) -> list[str]:
    """All variants that can run the workload."""
    return [name for name in ALL if workload.function is not None or name in ("auto", *NUMPY)]


def grid(length: int, devices: int) -> list[str]:
    """Names of all points of the grid: places × widths."""
    names = []
    for place in PLACES:
        part = length if place == "one device" else math.ceil(length / devices)
        for width in WIDTHS:
            if width is None or (width < part and not (width == 1 and length > MANY)):
                names.append(f"{place}, {'all together' if width is None else f'width {width}'}")
    return names


def build(name: str, context: Context) -> Variant:
    """The variant of that name. ImportError if its library is not installed."""
    if name.startswith(("auto", "parmap ")) and name != ONE_DEVICE:
        return _parmap(name.removeprefix("parmap "), context)
    if name in OTHER_TOOLS:
        return {"parajax": _parajax, "joblib": _joblib, "Pool": _pool, "loop": _loop}[name](context)
    if name == ONE_DEVICE and not context.width:
        raise LookupError("auto did not run")
    place, width = _by_hand(name, context)
    return _point(place, width, context)


def _by_hand(name: str, context: Context) -> tuple[str, int | None]:
    fixed: dict[str, tuple[str, int | None]] = {
        "jit(vmap)": ("one device", None),
        "lax.map": ("one device", 1),
        BATCHED: ("one device", 64),
        "shard_map(vmap)": ("devices", None),
        "shard_map(lax.map)": ("devices", 1),
        "pmap(vmap)": ("pmap", None),
        "sharded jit(vmap)": ("sharded", None),
        ONE_DEVICE: ("one device", context.width),
    }
    if name in fixed:
        return fixed[name]
    place, _, width = name.partition(", ")
    return place, None if width == "all together" else int(width.removeprefix("width "))


# -------------------------------------------------------------------- ours


def _parmap(strategy: str, context: Context) -> Variant:
    import jax

    from jaxpar_magic import parmap

    workload = context.workload
    function, inputs = workload.function, context.inputs
    if function is None or strategy in ("process", "serial"):
        function, inputs = workload.numpy_function, context.numpy_inputs

    return Variant(lambda: jax.block_until_ready(parmap(function, inputs, strategy=strategy)))


# -------------------------------------------------------------------- JAX by hand


def _point(place: str, width: int | None, context: Context) -> Variant:
    """One device, all devices (contiguous or interleaved parts), threads, pmap, or sharded inputs."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    ready, tree_map = jax.block_until_ready, jax.tree_util.tree_map
    function, inputs, parts, length = context.workload.function, context.inputs, context.devices, context.length

    def mapped(one_part):
        if width is None or width >= jax.tree_util.tree_leaves(one_part)[0].shape[0]:
            return jax.vmap(function)(one_part)
        return jax.lax.map(function, one_part, batch_size=width if width > 1 else None)

    if place == "one device":
        program = jax.jit(mapped)
        return Variant(lambda: ready(program(inputs)))

    part = math.ceil(length / parts)
    fills = part * parts - length

    def filled(a):
        return np.concatenate([a, np.repeat(a[-1:], fills, 0)]) if fills else a

    def trimmed(a):
        return a[:length] if fills else a

    if place == "threads":
        from concurrent.futures import ThreadPoolExecutor

        program = jax.jit(mapped)
        pool = ThreadPoolExecutor(parts)

        def run_part(k):
            return ready(program(tree_map(lambda a: filled(a)[k * part : (k + 1) * part], inputs)))

        def threaded():
            results = list(pool.map(run_part, range(parts)))
            return tree_map(lambda *columns: trimmed(np.concatenate(columns)), *results)

        return Variant(threaded, pool.shutdown)

    if place == "pmap":
        pmapped = jax.pmap(mapped)

        def per_device():
            result = pmapped(tree_map(lambda a: filled(a).reshape(parts, part, *a.shape[1:]), inputs))
            return ready(tree_map(lambda a: trimmed(a.reshape(parts * part, *a.shape[2:])), result))

        return Variant(per_device)

    spec = PartitionSpec("devices")
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    if place == "sharded":
        program = jax.jit(jax.vmap(function))
        sharding = NamedSharding(mesh, spec)

        def partitioned():
            placed = jax.device_put(tree_map(filled, inputs), sharding)
            return ready(tree_map(trimmed, program(placed)))

        return Variant(partitioned)

    program = jax.jit(jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    if place == "devices":
        return Variant(lambda: ready(tree_map(trimmed, program(tree_map(filled, inputs)))))

    def dealt(a):
        a = filled(a)
        return np.concatenate([a[k::parts] for k in range(parts)])

    def gathered(a):
        a = np.asarray(a)
        return trimmed(a.reshape(parts, part, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape))

    return Variant(lambda: tree_map(gathered, ready(program(tree_map(dealt, inputs)))))


# -------------------------------------------------------------------- other tools


def _parajax(context: Context) -> Variant:
    import jax
    from parajax import parallelize

    run = parallelize(jax.vmap(context.workload.function))
    return Variant(lambda: jax.block_until_ready(run(context.inputs)))


def _joblib(context: Context) -> Variant:
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    function, items = context.workload.numpy_function, context.items

    def call():
        return Parallel(n_jobs=context.devices)(delayed(function)(item) for item in items)

    return Variant(call, lambda: get_reusable_executor().shutdown(wait=True))


def _pool(context: Context) -> Variant:
    import multiprocessing

    # fork after JAX has started may hang
    pool = multiprocessing.get_context("spawn").Pool(context.devices)
    return Variant(lambda: pool.map(context.workload.numpy_function, context.items), pool.terminate)


def _loop(context: Context) -> Variant:
    function, items = context.workload.numpy_function, context.items
    return Variant(lambda: [function(item) for item in items])
