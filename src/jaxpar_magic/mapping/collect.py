"""Results of chunks, or of single items, → one value, stacked as `jax.vmap` stacks it."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import OptionError
from .inputs import is_key
from .sources import is_numeric_dtype
from .tracing import Output


class Collector:
    """Takes the outputs of chunks as they come and puts them together in order.

    With a single, unpadded chunk the device's own arrays are kept; otherwise the pieces are copied into host arrays
    of the full length, so that not more than the result and one chunk are in memory.
    """

    def __init__(self, outputs: Sequence[Output], length: int):
        self.outputs = outputs
        self.length = length
        self._whole: list[Any] | None = None
        self._host: list[np.ndarray] | None = None
        self._begins: set[int] = set()

    def add(self, begin: int, end: int, arrays: Sequence[Any]) -> None:
        """Outputs of items `begin` to `end`; longer than that where the chunk was padded."""
        count = end - begin
        self._begins.add(begin)
        if count == self.length and all(a.shape[0] == count for a in arrays):
            self._whole = [a if _plain(a) else _gathered(a) for a in arrays]
            return
        if self._host is None:
            self._host = [_empty((self.length, *a.shape[1:]), a.dtype) for a in arrays]
        for target, array in zip(self._host, arrays):
            target[begin:end] = np.asarray(array)[:count]

    def has(self, begin: int) -> bool:
        """Whether the chunk that begins there has been added."""
        return begin in self._begins

    def rows(self, begin: int, end: int) -> list[np.ndarray]:
        """Host arrays of items `begin` to `end`, which have been added."""
        arrays = self._whole if self._whole is not None else self._host or []
        return [np.asarray(a)[begin:end] for a in arrays]

    def leaves(self, kept: Sequence[int] | None = None) -> list[Any]:
        """The stacked output arrays on the default device; only the items `kept` if given."""
        arrays = self._whole if self._whole is not None else self._host
        if arrays is None:
            arrays = [np.zeros((self.length, *o.shape), o.dtype) for o in self.outputs]
        if kept is not None:
            arrays = [np.asarray(a)[np.asarray(kept, dtype=np.int64)] for a in arrays]
        if all(isinstance(a, jax.Array) for a in arrays):
            return list(arrays)
        return jax.device_put(list(arrays))  # in one call

    def discard(self) -> None:
        """Nothing to remove: what a stopped map keeps is the runner's to say."""

    def not_finite(self) -> list[tuple[int, str]]:
        """(index, "NaN" or "inf") of the items with a value that is not finite."""
        arrays = self._whole if self._whole is not None else self._host or []
        return not_finite_rows([np.asarray(a) for a in arrays], self.length)


def _gathered(array: Any) -> np.ndarray:
    """An array of several devices as one host array that JAX can take without another copy."""
    if not isinstance(array, jax.Array) or not array.is_fully_addressable:
        return np.asarray(array)
    whole = _empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


def _empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that begins at a multiple of 64 bytes: JAX takes such an array on the CPU without a copy."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    room = np.empty(size + 64, np.uint8)
    begin = -room.ctypes.data % 64
    return room[begin : begin + size].view(dtype).reshape(shape)


class GrowingCollector(Collector):
    """Takes the outputs of chunks of a map whose length is not known, in order."""

    def __init__(self, outputs: Sequence[Output]):
        super().__init__(outputs, 0)
        self._pieces: dict[int, list[np.ndarray]] = {}

    def add(self, begin: int, end: int, arrays: Sequence[Any]) -> None:
        """Outputs of items `begin` to `end`; longer than that where the chunk was padded."""
        self._begins.add(begin)
        # a copy, so that a view does not keep the padded whole
        self._pieces[begin] = [np.array(np.asarray(a)[: end - begin]) for a in arrays]

    def rows(self, begin: int, end: int) -> list[np.ndarray]:
        """Host arrays of the chunk from `begin` to `end`, which has been added."""
        return self._pieces[begin]

    def leaves(self, kept: Sequence[int] | None = None) -> list[Any]:
        """The stacked output arrays on the default device, of all items that were added."""
        pieces = [self._pieces.pop(begin) for begin in sorted(self._pieces)]
        columns = [[piece[k] for piece in pieces] for k in range(len(self.outputs))]
        del pieces
        made = []
        while columns:  # each column is let go when its array is made
            column = columns.pop(0)
            whole = _empty((sum(map(len, column)), *column[0].shape[1:]), column[0].dtype)
            made.append(jax.device_put(np.concatenate(column, out=whole)))
        return made

    def discard(self) -> None:
        """Let go of what was added."""
        self._pieces.clear()


def _plain(array: Any) -> bool:
    """Whether an array can be given to the user as it is: on one device and not bound to it."""
    return isinstance(array, jax.Array) and not array.committed and len(array.devices()) == 1


def not_finite_rows(arrays: Sequence[np.ndarray], length: int) -> list[tuple[int, str]]:
    """Rows in which any array has NaN or inf."""
    if not length:
        return []
    nan, inf = np.zeros(length, bool), np.zeros(length, bool)
    for array in arrays:
        if array.dtype.kind not in "fc" and array.dtype.type.__module__.partition(".")[0] != "ml_dtypes":
            continue
        if array.dtype.kind not in "fc":
            array = array.astype(np.float32)  # bfloat16 and its like; int4 is finite either way
        rows = array.reshape(length, -1)
        nan |= np.isnan(rows).any(axis=1)
        inf |= np.isinf(rows).any(axis=1)
    return [(int(i), "NaN" if nan[i] else "inf") for i in np.flatnonzero(nan | inf)]


def assemble(leaves: Sequence[Any], tree: Any, outputs: Sequence[Output], out_axes: Any) -> Any:
    """Stacked leaves → the user's pytree, keys typed again and the item axis where `out_axes` wants it."""
    axes = _axes_per_output(out_axes, tree)
    done = []
    for array, output, axis in zip(leaves, outputs, axes):
        if output.key_impl is not None:
            array = jax.random.wrap_key_data(array, impl=output.key_impl)
        if axis is None:
            array = array[0]
        elif axis != 0:
            if not -array.ndim <= axis < array.ndim:
                raise OptionError(
                    f"out_axes={axis}: the stacked result has shape {array.shape}, so axes {-array.ndim} to "
                    f"{array.ndim - 1} exist.",
                    argument="out_axes",
                )
            array = jnp.moveaxis(array, 0, axis)
        done.append(array)
    return jax.tree_util.tree_unflatten(tree, done)


def _axes_per_output(out_axes: Any, tree: Any) -> list[int | None]:
    if out_axes is None or isinstance(out_axes, int):
        return [out_axes] * tree.num_leaves
    none = object()  # None would count as an empty subtree
    try:
        spec = jax.tree_util.tree_map(lambda a: none if a is None else a, out_axes, is_leaf=lambda a: a is None)
        full = jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
        spread = jax.tree_util.tree_map(lambda a, part: jax.tree_util.tree_map(lambda _: a, part), spec, full)
    except (ValueError, TypeError):
        raise OptionError(
            f"out_axes={out_axes!r} does not have the structure of the result ({tree}).",
            argument="out_axes",
            next_step="an int or None, or one per part of the result",
        ) from None
    return [None if a is none else a for a in jax.tree_util.tree_leaves(spread)]


def check_unmapped(out_axes: Any, tree: Any, depends: Sequence[bool]) -> None:
    """Refuse out_axes=None for an output that differs from item to item."""
    for position, (axis, differs) in enumerate(zip(_axes_per_output(out_axes, tree), depends)):
        if axis is None and differs:
            raise OptionError(
                f"out_axes=None: output {position} differs from item to item, so it needs an axis.",
                argument="out_axes",
                next_step="out_axes=0",
            )


def stack_results(results: Sequence[Any], out_axes: Any = 0) -> Any:
    """Results of single calls → arrays stacked along axis 0 where they agree, else a list.

    Python floats and numpy values stay numpy in full width; results that came from JAX become JAX arrays.
    """
    if not results:
        return []
    try:
        flat = [jax.tree_util.tree_flatten(r) for r in results]
    except (ValueError, TypeError):  # e.g. a dict whose keys cannot be sorted
        return list(results)
    tree: Any = flat[0][1]
    if tree.num_leaves == 0 or any(t != tree for _, t in flat):
        return list(results)
    columns = list(zip(*(leaves for leaves, _ in flat)))
    stacked = [_stack_column(column) for column in columns]
    if any(s is None for s in stacked):
        return list(results)
    outputs = [Output(np.shape(s)[1:], s.dtype) for s in stacked if s is not None]
    if out_axes == 0:
        return jax.tree_util.tree_unflatten(tree, stacked)
    return assemble(stacked, tree, outputs, out_axes)


def _stack_column(column: Sequence[Any]) -> Any | None:
    if all(is_key(v) for v in column):
        return jnp.stack(column) if len({v.shape for v in column}) == 1 else None
    if not all(isinstance(v, numbers.Number | np.generic | np.ndarray | jax.Array) for v in column):
        return None
    if any(is_key(v) for v in column) or len({np.shape(v) for v in column}) > 1:
        return None
    array = np.asarray([np.asarray(v) for v in column])
    if not is_numeric_dtype(array.dtype):
        return None
    return jnp.asarray(array) if any(isinstance(v, jax.Array) for v in column) else array
