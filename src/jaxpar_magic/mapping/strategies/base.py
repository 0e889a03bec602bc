"""What the traced strategies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import numpy as np

from ..programs import Compiled, compile_program
from ..tracing import ItemProgram

# The name of the mesh axis in programs and in printed code.
AXIS = "devices"


@dataclass(frozen=True)
class Layout:
    """How one chunk lies on the devices.

    Attributes
    ----------
    size: items in the chunk, padding included; a multiple of `parts`.
    devices: the devices used, in order.
    parts: pieces that the chunk is cut into: one per device, or one per thread.
    width: items vectorised together within a piece (the inner vmap width).
    """

    size: int
    devices: tuple[Any, ...]
    parts: int
    width: int

    @property
    def part_size(self) -> int:
        return self.size // self.parts


@dataclass(frozen=True)
class Executable:
    """A chunk's program, ready to run.

    Attributes
    ----------
    compiled: the program, with its compile time and text.
    place_mapped: numpy or jax arrays of shape (layout.size, …) → arrays on the devices.
    place_shared: shared arrays → arrays on the devices.
    run: (placed mapped, placed shared) → output arrays of shape (layout.size, …), perhaps not ready yet.
    in_order: an output array, ready → the same with its rows in the order of the items; None if they are.
    run_timed: as `run`, and the seconds that each part took; None where they cannot be told that way.
    apart: each device works by itself and waits for no other, so its part of the outputs is ready when it is done.
    """

    compiled: Compiled
    place_mapped: Callable[[list], list]
    place_shared: Callable[[list], list]
    run: Callable[[list, list], list]
    in_order: Callable[[Any], np.ndarray] | None = None
    run_timed: Callable[[list, list], tuple[list, list[float]]] | None = None
    apart: bool = False


def dealt_out(executable: Executable, parts: int) -> Executable:
    """The same program with every part taking each `parts`-th item instead of neighbours."""

    def deal(array: Any) -> np.ndarray:
        array = np.asarray(array)
        return array.reshape(-1, parts, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    def in_order(array: Any) -> np.ndarray:
        array = np.asarray(array)
        return array.reshape(parts, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    def place(arrays: list) -> list:
        return executable.place_mapped([deal(a) for a in arrays])

    return replace(executable, place_mapped=place, in_order=in_order)


class Strategy(Protocol):
    """A way to run a traced function over a chunk."""

    name: str

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable: ...


def local_map(item: ItemProgram, part_size: int, width: int) -> Callable[[list, list], list]:
    """The map that one device does: `vmap` for the full width, `lax.map` for 1, batches in between."""

    def mapped_together(mapped: list, shared: list) -> list:
        return jax.vmap(item.call, in_axes=(0, None))(mapped, shared)

    def mapped_in_batches(mapped: list, shared: list) -> list:
        batch_size = width if width > 1 else None
        return jax.lax.map(lambda one: item.call(one, shared), mapped, batch_size=batch_size)

    return mapped_together if width >= part_size else mapped_in_batches


def shapes(item: ItemProgram, size: int) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct]]:
    """Shapes of the arguments of a program for `size` items."""
    mapped = [jax.ShapeDtypeStruct((size, *a.shape), a.dtype) for a in item.mapped]
    return mapped, item.shared


def place_on_one(arrays: Sequence[Any], device: Any) -> list:
    """Arrays on one device, uncommitted where JAX's default already puts them there.

    Committed arrays would stay on this backend's devices after a reset, and refuse to mix with others.
    """
    placed = []
    for array in arrays:
        if isinstance(array, jax.Array):
            if array.devices() == {device} and not array.committed:
                placed.append(array)
                continue
            if device.platform == "cpu" and array.is_fully_addressable:
                array = np.asarray(array)
        placed.append(jax.device_put(array))
    return placed


def device_mesh(layout: Layout) -> jax.sharding.Mesh:
    """A one-dimensional mesh of the layout's devices. Its axis is Auto, in every version."""
    return jax.sharding.Mesh(np.asarray(layout.devices, dtype=object), (AXIS,))


def sharded_executable(function: Callable[[list, list], list], item: ItemProgram, layout: Layout) -> Executable:
    """Compile a function of a whole chunk whose mapped arrays are split over the devices, the shared ones copied."""
    __tracebackhide__ = True
    mesh = device_mesh(layout)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    compiled = compile_program(
        function, *shapes(item, layout.size), devices=layout.devices, in_shardings=(split, replicated)
    )

    def placing(sharding: Any) -> Callable[[list], list]:
        return lambda arrays: jax.device_put(list(arrays), sharding) if arrays else []

    return Executable(compiled, placing(split), placing(replicated), compiled.call)
