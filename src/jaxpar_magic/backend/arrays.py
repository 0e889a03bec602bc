"""The arrays that are alive: their names, shapes and bytes, and which device holds which rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _jax
from ..document import Grid
from .state import current_devices, device_name
from .walk import walk

# Pictures with more boxes along an axis show nothing that the table does not.
MOST_BOXES = 16


@dataclass(frozen=True)
class Shard:
    """The part of an array that one device holds.

    Attributes
    ----------
    device: e.g. "cpu:0".
    index: (first, past the last) for each axis of the array.
    nbytes: its size in bytes.
    """

    device: str
    index: tuple[tuple[int, int], ...]
    nbytes: int


@dataclass(frozen=True)
class ArrayInfo:
    """A live array.

    Attributes
    ----------
    name: how the user would write it; "" where no variable was found.
    shape, dtype: as the array tells.
    nbytes: size of the array in bytes, however many devices hold a copy.
    sharding: in words, e.g. "P('d')", "one device", "a copy on each".
    shards: the parts that this process can reach.
    current: False for an array that is bound to devices from before a reset.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    sharding: str
    shards: tuple[Shard, ...]
    current: bool = True


def live(namespace: Mapping[str, Any]) -> tuple[ArrayInfo, ...]:
    """All live arrays, largest first. Needs a running backend.

    Arrays of a backend from before a reset are known only if `namespace` names them.
    """
    import jax

    names: dict[int, str] = {}
    arrays: dict[int, Any] = {id(array): array for array in jax.live_arrays()}
    for _, path, value in walk(namespace, (jax.Array,)):
        if isinstance(value, jax.core.Tracer) or value.is_deleted():
            continue
        base = _jax.base_array(value)
        arrays.pop(id(base), None)  # the key array stands for the numbers under it
        names.setdefault(id(value), path)
        arrays[id(value)] = value
    views = {id(view) for array in arrays.values() for view in _jax.shard_views(array)}
    current = set(current_devices())
    infos = [
        _info(names.get(key, ""), array, current)
        for key, array in arrays.items()
        if not array.is_deleted() and (key in names or key not in views)
    ]
    return tuple(sorted(infos, key=lambda info: (-info.nbytes, info.name)))


def bytes_by_device(arrays: tuple[ArrayInfo, ...]) -> dict[str, int]:
    """How many bytes of live arrays each device holds."""
    total: dict[str, int] = {}
    for array in arrays:
        for shard in array.shards:
            total[shard.device] = total.get(shard.device, 0) + shard.nbytes
    return dict(sorted(total.items()))


def picture(array: ArrayInfo) -> Grid | None:
    """Which device holds what part, drawn: for arrays that are cut along one axis or two."""
    axes = [axis for axis in range(len(array.shape)) if len({shard.index[axis] for shard in array.shards}) > 1]
    if len(axes) not in (1, 2):
        return None
    holders: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for shard in array.shards:
        holders.setdefault(tuple(shard.index[axis] for axis in axes), []).append(shard.device)
    parts = [sorted({place[k] for place in holders}) for k in range(len(axes))]
    if max(map(len, parts)) > MOST_BOXES:
        return None
    labels = [[f"{first}:{last}" for first, last in parts_of_axis] for parts_of_axis in parts]
    name = f"{array.name} {array.dtype}{list(array.shape)}"
    if len(axes) == 2:
        cells = [[", ".join(holders.get((row, column), ["–"])) for column in parts[1]] for row in parts[0]]
        return Grid(labels[0], labels[1], cells, f"{name}: axis {axes[0]} downwards, axis {axes[1]} to the right")
    boxes = [", ".join(holders[(part,)]) for part in parts[0]]
    caption = f"{name}: parts of axis {axes[0]}"
    if axes == [0] and len(array.shape) > 1:  # rows, as numpy prints them
        return Grid(labels[0], [""], [[box] for box in boxes], caption)
    return Grid([""], labels[0], [boxes], caption)


def _info(name: str, array: Any, current: set[Any]) -> ArrayInfo:
    base = _jax.base_array(array)
    # Not from `addressable_shards`: that would make, and keep, an array for each shard.
    shards = []
    for device, parts in base.sharding.addressable_devices_indices_map(base.shape).items():
        index = tuple(part.indices(size)[:2] for part, size in zip(parts, base.shape))
        nbytes = base.dtype.itemsize * math.prod(last - first for first, last in index)
        shards.append(Shard(device_name(device), index, nbytes))
    return ArrayInfo(
        name=name,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        nbytes=base.nbytes,
        sharding=_sharding(array),
        shards=tuple(shards),
        current=not array.committed or array.devices() <= current,
    )


def _sharding(array: Any) -> str:
    sharding = array.sharding
    if len(sharding.device_set) == 1:
        return "one device"
    if sharding.is_fully_replicated:
        return "a copy on each"
    spec = getattr(sharding, "spec", None)
    return type(sharding).__name__ if spec is None else f"P({', '.join(map(repr, spec))})"
