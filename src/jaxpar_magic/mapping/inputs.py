"""Inputs as people have them → a `Batch`: what is mapped, what is shared, how an item is put together."""

from __future__ import annotations

import collections
import collections.abc
import inspect
import numbers
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import setting
from ..errors import InputError, OptionError, UnsupportedError, did_you_mean
from .sources import LazyArray, is_lazy, is_numeric_dtype

# More shapes than this in one list would compile as many programs: refused with the shapes named.
MAX_SHAPES = 16


class NotStackable(Exception):
    """Items that no array can hold (strings, objects): only plain Python strategies can map them."""


class Ragged(Exception):
    """Items whose shapes differ."""

    def __init__(self, groups: dict[Any, list[int]]):
        self.groups = groups
        super().__init__(f"{len(groups)} shapes")


class Beginning(list):
    """The first items of an iterator, while it is not known how many there are."""


class Companions(Exception):
    """Beside an iterator there is an input that tells the number of items."""

    def __init__(self, length: int):
        self.length = length
        super().__init__(length)


@dataclass(frozen=True)
class Leaf:
    """One array of the inputs.

    Attributes
    ----------
    name: how to call it in a message, e.g. ``batch['x']``.
    array: numpy or jax array, or a LazyArray; mapped along axis 0, shape (length, …), if `mapped`.
    key_impl: name of the PRNG implementation if `array` is the data of typed keys.
    from_python: built by us from Python numbers (whose width nobody chose).
    axis: the axis of the user's array that is mapped; `array` has it moved to 0.
    """

    name: str
    array: Any
    mapped: bool
    key_impl: str | None = None
    from_python: bool = False
    axis: int = 0


@dataclass
class Argument:
    """One argument of the function.

    Attributes
    ----------
    name: parameter name, or "input 0".
    keyword: whether it is passed by keyword.
    kind: "sequence" (a list of items), "tree" (a pytree of arrays), "constant" (the same object for all items).
    value: the list of items; the flattened leaves; or the constant.
    treedef: structure of a "tree", or of an item of a stacked "sequence".
    origin: name of the type that the user gave, for printed code.
    """

    name: str
    keyword: bool
    kind: str
    value: Any
    treedef: Any = None
    origin: str = ""

    def length(self) -> int | None:
        if self.kind == "sequence":
            return len(self.value)
        if self.kind == "tree":
            return next((leaf.array.shape[0] for leaf in self.value if leaf.mapped), None)
        return None


@dataclass
class Batch:
    """The inputs of a map.

    Attributes
    ----------
    length: number of items.
    arguments: in call order, positional ones first.
    spread: "" or, as for `Pool.starmap`, "tuple" or "dict": the first argument's items are spread over parameters.
    """

    length: int
    arguments: list[Argument]
    spread: str = ""
    notes: list[str] = field(default_factory=list)

    # ---------------------------------------------------------------- items as plain Python

    def item(self, i: int) -> tuple[tuple, dict]:
        """(args, kwargs) of item `i`, as a plain loop over the inputs would pass them."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in self.arguments:
            if argument.kind == "sequence":
                value = argument.value[i]
            elif argument.kind == "constant":
                value = argument.value
            else:
                leaves = [wrap_key(x.array[i], x.key_impl) if x.mapped else _shared_value(x) for x in argument.value]
                value = jax.tree_util.tree_unflatten(argument.treedef, leaves)
            self._place(argument, value, args, kwargs)
        return tuple(args), kwargs

    def _place(self, argument: Argument, value: Any, args: list, kwargs: dict) -> None:
        if argument.keyword:
            kwargs[argument.name] = value
        elif self.spread == "tuple" and not args:
            args.extend(value)
        elif self.spread == "dict" and not args:
            kwargs.update(value)
        else:
            args.append(value)

    def split_shared(self) -> tuple[dict[str, Any], Batch]:
        """(keyword arguments that are the same for all items, the batch without them)."""
        shared = [a for a in self.arguments if a.keyword and a.length() is None]
        if not shared or self.length == 0:
            return {}, self
        _, kwargs = replace(self, arguments=shared, spread="").item(0)
        return kwargs, replace(self, arguments=[a for a in self.arguments if a not in shared])

    # ---------------------------------------------------------------- items as arrays

    def stacked(self) -> Batch:
        """The same batch with every sequence turned into arrays. Raises NotStackable or Ragged."""
        if all(a.kind != "sequence" for a in self.arguments):
            return self
        return replace(self, arguments=[_stack(a) if a.kind == "sequence" else a for a in self.arguments])

    def leaves(self) -> tuple[list[Leaf], list[Leaf]]:
        """(mapped, shared) leaves of a stacked batch, in the order that `bind` takes them."""
        every = [leaf for a in self.arguments if a.kind == "tree" for leaf in a.value]
        return [x for x in every if x.mapped], [x for x in every if not x.mapped]

    def bind(self, mapped: Sequence[Any], shared: Sequence[Any]) -> tuple[tuple, dict]:
        """(args, kwargs) of one item from its leaves (tracers, while a program is traced)."""
        mapped_values, shared_values = iter(mapped), iter(shared)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in self.arguments:
            value = argument.value
            if argument.kind == "tree":
                leaves = [
                    wrap_key(next(mapped_values if leaf.mapped else shared_values), leaf.key_impl) for leaf in value
                ]
                value = jax.tree_util.tree_unflatten(argument.treedef, leaves)
            self._place(argument, value, args, kwargs)
        return tuple(args), kwargs

    def subset(self, indices: Sequence[int]) -> Batch:
        """The batch of some of the items, in the given order."""
        chosen = np.asarray(indices, dtype=np.int64)
        arguments = []
        for a in self.arguments:
            if a.kind == "sequence":
                arguments.append(replace(a, value=[a.value[i] for i in indices]))
            elif a.kind == "tree":
                leaves = [replace(x, array=_rows(x.array, chosen)) if x.mapped else x for x in a.value]
                arguments.append(replace(a, value=leaves))
            else:
                arguments.append(a)
        return replace(self, length=len(indices), arguments=arguments)

    def describe_item(self, i: int, width: int = 60) -> str:
        """Item `i` in a few words for a message: ``a=3.2532907, b=-1.0``."""
        parts = []
        for argument in self.arguments:
            if argument.kind == "sequence":
                shown = _short(argument.value[i])
            elif argument.kind == "tree" and any(x.mapped for x in argument.value):
                leaves = [_short(x.array[i]) for x in argument.value if x.mapped]
                names = [x.name.removeprefix(argument.name) for x in argument.value if x.mapped]
                shown = (
                    leaves[0] if names == [""] else "{" + ", ".join(f"{n}: {v}" for n, v in zip(names, leaves)) + "}"
                )
            else:
                continue
            parts.append(f"{argument.name}={shown}")
        text = ", ".join(parts)
        return text if len(text) <= width else text[: width - 1] + "…"


def _rows(array: Any, chosen: np.ndarray) -> Any:
    if isinstance(array, LazyArray):
        return array.taken(chosen)
    # through numpy: an eager gather would be compiled anew for each number of rows
    return jax.device_put(np.asarray(array)[chosen]) if isinstance(array, jax.Array) else array[chosen]


def _short(value: Any) -> str:
    if isinstance(value, np.generic):
        # not item(): the digits of a float32 are those of the float32
        return str(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if value.shape == () and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return str(np.asarray(value)[()])
        if np.prod(value.shape) <= 4 and value.dtype.kind in "biufc":
            return str(np.asarray(value).tolist())
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)


def wrap_key(value: Any, impl: str | None) -> Any:
    return value if impl is None else jax.random.wrap_key_data(value, impl=impl)


def _shared_value(leaf: Leaf) -> Any:
    return wrap_key(leaf.array, leaf.key_impl)


# -------------------------------------------------------------------- kinds of leaves


def is_key(value: Any) -> bool:
    """Whether `value` is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _is_array(value: Any) -> bool:
    return (
        isinstance(value, jax.Array)
        or (isinstance(value, np.ndarray | np.generic) and is_numeric_dtype(value.dtype))
        or is_lazy(value)
    )


def _make_leaf(name: str, value: Any, mapped: bool, *, axis: int = 0, from_python: bool = False) -> Leaf:
    impl = None
    if is_lazy(value):
        if mapped:
            return Leaf(name, LazyArray(name, value, axis % len(value.shape)), True, None, False, axis)
        value = np.asarray(value[(slice(None),) * len(value.shape)])
    if is_key(value):
        impl = str(jax.random.key_impl(value))
        value = jax.random.key_data(value)
        if axis < 0:
            axis -= 1  # the data has one axis more, at the end
    if isinstance(value, np.ndarray) and not value.dtype.isnative:  # as in FITS files
        value = value.astype(value.dtype.newbyteorder("="))
    if mapped and axis != 0:
        value = (jnp if isinstance(value, jax.Array) else np).moveaxis(value, axis, 0)
    return Leaf(name, value, mapped, impl, from_python, axis)


# -------------------------------------------------------------------- from inputs to a batch


def make_batch(
    function: Callable,
    inputs: Sequence[Any],
    named: dict[str, Any],
    *,
    in_axes: Any = 0,
    static: Sequence[str] = (),
    key: Any = None,
    first: int = 0,
) -> Batch:
    """Normalise the inputs of a map.

    Parameters
    ----------
    function: read for its signature only.
    inputs, named: positional and keyword inputs.
    in_axes: as in `jax.vmap`; also a dict from parameter names, or from the keys of a single dict input.
    static: names of arguments that are compile-time constants.
    key: None, an int seed or a typed key: adds one key per item.
    first: the number that the first item has in the whole map, where the batch is a part of it.

    Raises
    ------
    InputError: nothing is mapped, lengths differ, an axis is out of range. The argument is named.
    OptionError: `in_axes`, `static` or `key` do not fit the function.
    """
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree_util.tree_leaves([*inputs, *named.values()])):
        raise UnsupportedError(
            "parmap: was called inside jit, grad, vmap or another transformation of JAX; it is the outermost call.",
            next_step="jax.vmap(f)(xs) or jax.lax.map(f, xs) there",
        )
    if inspect.iscoroutinefunction(function):
        raise OptionError(
            f"function: {function_name(function)} is an async function, which a map cannot await.", argument="function"
        )
    parameters = _parameters(function)  # once: it takes as long as the rest of this
    names = [_parameter_name(parameters, i) for i in range(len(inputs))]
    _check_names(parameters, names, named, static, function)
    axes = _axes_by_argument(in_axes, names, list(named), inputs)
    arguments = [
        _argument(name, value, keyword, axis, name in static)
        for name, value, keyword, axis in [
            *((n, v, False, axes[n]) for n, v in zip(names, inputs)),
            *((n, v, True, axes[n]) for n, v in named.items()),
        ]
    ]
    length = _common_length(arguments, function)
    if key is not None:
        arguments.append(_key_argument(key, range(first, first + length), parameters, names, named, function))
    batch = Batch(length, arguments)
    return _spread_if_needed(function, parameters, batch)


def _parameters(function: Callable) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # builtins and some ufuncs have none
        return None


def input_names(function: Callable, count: int) -> list[str]:
    """How to call the first `count` positional inputs: by the function's parameters where they are known."""
    signature = _parameters(function)
    return [_parameter_name(signature, i) for i in range(count)]


def _parameter_name(signature: inspect.Signature | None, i: int) -> str:
    if signature is not None:
        positional = [
            p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if i < len(positional):
            return positional[i]
    return f"input {i}"


def _accepts(signature: inspect.Signature | None, name: str) -> bool:
    if signature is None:
        return True
    p = signature.parameters.get(name)
    if p is not None and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
        return True
    return any(p.kind == p.VAR_KEYWORD for p in signature.parameters.values())


# Options of parmap, to recognise a misspelt one among the named inputs.
_OPTIONS = (
    "strategy", "devices", "batch_size", "chunk_size", "in_axes", "out_axes", "static", "key", "remainder",
    "on_error", "check", "checkpoint", "resume", "timeout", "memory", "input_file", "out_file", "spmd",
    "keep_sharded", "compare", "show", "quiet",
)  # fmt: skip


def _check_names(signature, names, named, static, function) -> None:
    known = [] if signature is None else list(signature.parameters)
    title = function_name(function)
    for name in named:
        if name in names:
            raise InputError(f"{name}: given twice, by position and by name.", argument=name)
        if not _accepts(signature, name):
            raise InputError(
                f"{name}=…: {title} has no parameter of that name, it takes ({', '.join(known)})."
                f"{did_you_mean(name, [*known, *_OPTIONS])}",
                argument=name,
            )
    for name in static:
        if name not in names and name not in named:
            given = [*names, *named]
            raise OptionError(
                f"static={name}: not among the inputs ({', '.join(given) or 'none'}).{did_you_mean(name, given)}",
                argument="static",
                next_step=f"{name}=value as a named input, with static={name!r}",
            )


def function_name(function: Callable) -> str:
    """How to call a function in a message."""
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _axes_by_argument(in_axes: Any, names: list[str], named: list[str], inputs: Sequence[Any]) -> dict[str, Any]:
    every = [*names, *named]
    if isinstance(in_axes, bool | float | str):
        raise OptionError(
            f"in_axes={in_axes!r}: needs an int, None, or a tuple or dict of them, as in jax.vmap.",
            argument="in_axes",
        )
    if isinstance(in_axes, dict):
        if set(in_axes) <= set(every):
            return {name: in_axes.get(name, 0) for name in every}
        if len(names) == 1 and isinstance(inputs[0], dict) and set(in_axes) <= set(inputs[0]):
            # vmap wants ({'x': 0},) here; the dict alone is what people write
            full = {k: in_axes.get(k, 0) for k in inputs[0]}
            return {names[0]: full, **dict.fromkeys(named, 0)}
        wrong = next(k for k in in_axes if k not in every)
        known = [*every, *(inputs[0] if len(names) == 1 and isinstance(inputs[0], dict) else [])]
        raise OptionError(
            f"in_axes names {wrong!r}, which is not an input ({', '.join(map(str, known))})."
            f"{did_you_mean(str(wrong), map(str, known))}",
            argument="in_axes",
        )
    if isinstance(in_axes, tuple | list):
        if len(in_axes) != len(names):
            raise OptionError(
                f"in_axes={in_axes!r}: has {len(in_axes)} entries for {len(names)} positional "
                f"input{'s' if len(names) != 1 else ''} ({', '.join(names)}).",
                argument="in_axes",
                next_step="one entry (an int or None) per positional input, or a dict of names",
            )
        return {**dict(zip(names, in_axes)), **dict.fromkeys(named, 0)}
    return dict.fromkeys(every, in_axes)


def _argument(name: str, value: Any, keyword: bool, axes: Any, static: bool) -> Argument:
    if static or (
        isinstance(value, str | bytes | numbers.Number | types.NoneType) and not isinstance(value, np.generic)
    ):
        # A shared Python number is a constant, so that range(k), x ** k and `if k` work as in Python.
        return Argument(name, keyword, "constant", value)
    if axes is None:
        return _shared_argument(name, value, keyword)
    origin = type(value).__name__
    value = _as_sequence_or_tree(name, value)
    if isinstance(value, list):
        if axes != 0:
            raise OptionError(
                f"in_axes: {name} is a list of items, which has no axis {axes}; it is mapped item by item.",
                argument="in_axes",
                next_step=f"np.asarray({name}), if it is meant as one array",
            )
        return Argument(name, keyword, "sequence", value, None, origin)
    leaves, treedef = jax.tree_util.tree_flatten_with_path(value)
    if not leaves or not all(_is_array(leaf) or isinstance(leaf, numbers.Number) for _, leaf in leaves):
        return Argument(name, keyword, "constant", value)
    per_leaf = _axes_per_leaf(name, axes, value)
    made = []
    for (path, leaf), axis in zip(leaves, per_leaf):
        full = name + jax.tree_util.keystr(path)
        if not _is_array(leaf):
            leaf = np.asarray(leaf)
        shape = leaf.shape
        if axis is None or (shape == () and axes == 0):
            made.append(_make_leaf(full, leaf, False))
            continue
        if not -len(shape) <= axis < len(shape):
            raise InputError(
                f"{full}: in_axes={axis} needs an axis {axis}, but its shape is {shape}.",
                argument=name,
                next_step=f"in_axes=None for {full} shares it with all items",
            )
        made.append(_make_leaf(full, leaf, True, axis=axis))
    if len(made) > 1 and not any(leaf.mapped for leaf in made) and isinstance(value, tuple):
        return Argument(
            name, keyword, "sequence", list(value), None, origin
        )  # (1.0, 2.0, 3.0): items, as Pool.map takes it
    return Argument(name, keyword, "tree", made, treedef, origin)


def _shared_argument(name: str, value: Any, keyword: bool) -> Argument:
    leaves, treedef = jax.tree_util.tree_flatten_with_path(value)
    if leaves and all(_is_array(leaf) for _, leaf in leaves):
        made = [_make_leaf(name + jax.tree_util.keystr(p), leaf, False) for p, leaf in leaves]
        return Argument(name, keyword, "tree", made, treedef)
    return Argument(name, keyword, "constant", value)


def _axes_per_leaf(name: str, axes: Any, value: Any) -> list[int | None]:
    if axes is None or isinstance(axes, int):
        return [axes] * len(jax.tree_util.tree_leaves(value))
    none = object()  # None would count as an empty subtree
    try:
        spec = jax.tree_util.tree_map(lambda a: none if a is None else a, axes, is_leaf=lambda a: a is None)
        spread = jax.tree_util.tree_map(lambda a, part: jax.tree_util.tree_map(lambda _: a, part), spec, value)
    except ValueError:
        raise OptionError(
            f"in_axes={axes!r} does not have the structure of {name} ({jax.tree_util.tree_structure(value)}).",
            argument="in_axes",
            next_step="an int or None per leaf, or one for the whole input",
        ) from None
    return [None if a is none else a for a in jax.tree_util.tree_leaves(spread)]


def _as_sequence_or_tree(name: str, value: Any) -> Any:
    """A list of items, or something that is a pytree of arrays (or a constant)."""
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        if isinstance(value, pandas.DataFrame):
            if any(not isinstance(t, np.dtype) for t in value.dtypes) and value.isna().any(axis=None):
                return value.to_dict("records")  # pd.NA stays pd.NA
            columns = {c: value[c].to_numpy() for c in value.columns}
            if all(is_numeric_dtype(c.dtype) for c in columns.values()):
                return columns
            return value.to_dict("records")
        if isinstance(value, pandas.Series | pandas.Index):
            if not isinstance(value.dtype, np.dtype) and value.hasnans:
                return list(value)  # pd.NA stays pd.NA
            array = value.to_numpy()
            return array if is_numeric_dtype(array.dtype) else list(value)
    if is_lazy(value) and jax.tree_util.all_leaves([value]):
        return value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(
            f"{name}: is a masked array, and what is masked would be mapped like the rest.",
            argument=name,
            next_step=f"{name}.filled(np.nan), or {name}.compressed() for the valid items alone",
        )
    if isinstance(value, np.ndarray):
        if is_numeric_dtype(value.dtype):
            return value
        if value.dtype.names:
            if all(is_numeric_dtype(value.dtype[n].base) for n in value.dtype.names):
                return {n: value[n] for n in value.dtype.names}
            return list(value)
        return list(value) if value.ndim else value
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, list):
        return value
    if isinstance(value, range):
        return np.arange(value.start, value.stop, value.step)
    if isinstance(value, set | frozenset):
        raise InputError(
            f"{name}: a set has no order, so results could not be matched to items.",
            argument=name,
            next_step=f"sorted({name})",
        )
    if isinstance(value, collections.abc.Iterator | collections.deque | collections.abc.MappingView):
        return list(value)  # type: ignore[arg-type]
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        array = np.asarray(value)
        if is_numeric_dtype(array.dtype):
            return array
    if isinstance(value, collections.abc.Sequence) and not isinstance(value, tuple | str | bytes):
        return list(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        # ((0.5, 1), (1.0, 2)) are items, as Pool.starmap takes them; (xs, ys) is a pytree of arrays
        leaves = jax.tree_util.tree_leaves(value)
        if not value or (
            not any(_is_array(x) for x in leaves) and not all(isinstance(x, numbers.Number) for x in value)
        ):
            return list(value)
    return value


def _common_length(arguments: list[Argument], function: Callable) -> int:
    lengths: dict[str, int] = {}
    if any(isinstance(a.value, Beginning) for a in arguments):
        known = [a.length() for a in arguments if not isinstance(a.value, Beginning)]
        for length in known:
            if length is not None:
                raise Companions(length)
    for a in arguments:
        if a.kind == "sequence":
            lengths[a.name] = len(a.value)
        elif a.kind == "tree":
            lengths.update({leaf.name: leaf.array.shape[0] for leaf in a.value if leaf.mapped})
    if not lengths:
        given = ", ".join(a.name for a in arguments) or "nothing"
        raise InputError(
            f"{function_name(function)}: no input to map over; got {given}, none of which is an array with an axis "
            "or a list of items.",
            next_step="give an array (mapped along its first axis), a list, a range, a Series or a DataFrame",
        )
    counts = collections.Counter(lengths.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        odd = [n for n, size in lengths.items() if size != usual]
        listed = ", ".join(f"{n} has {size}" for n, size in lengths.items())
        raise InputError(
            f"{' and '.join(odd)}: the mapped inputs differ in length: {listed}.",
            argument=odd[0],
            next_step=f"make them equally long, or share {odd[0]} with all items by in_axes=None for it",
        )
    return next(iter(counts))


def _key_argument(
    key: Any, numbers_of_items: range, signature: Any, names: list[str], named: dict[str, Any], function: Callable
) -> Argument:
    if is_key(key):
        if key.shape != ():
            raise OptionError(
                f"key: needs a seed (an int) or one key, got an array of keys of shape {key.shape}.",
                argument="key",
                next_step="pass the keys as an input of the map",
            )
    elif isinstance(key, int) and not isinstance(key, bool):
        key = jax.random.key(key)
    else:
        raise OptionError(f"key={key!r}: needs a seed, a whole number such as 0.", argument="key")
    taken = [*names, *named]
    if signature is None or (_accepts(signature, "key") and "key" not in taken):
        name, keyword = "key", True
    else:
        free = [
            p.name
            for p in signature.parameters.values()
            if p.name not in taken and p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        if not free:
            raise OptionError(
                f"key={'seed'}: {function_name(function)} has no parameter left to take the key "
                f"(it takes {', '.join(signature.parameters) or 'none'}).",
                argument="key",
                next_step="add a parameter named key",
            )
        name, keyword = free[0], True
    # fold_in, not split: item i's key does not depend on how many items there are
    counts = jnp.arange(numbers_of_items.start, numbers_of_items.stop, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, counts)
    return Argument(name, keyword, "tree", [_make_leaf(name, keys, True)], jax.tree_util.tree_structure(0))


def _spread_if_needed(function: Callable, signature: inspect.Signature | None, batch: Batch) -> Batch:
    """`Pool.starmap` without asking: only where the call would otherwise be a TypeError."""
    positional = [a for a in batch.arguments if not a.keyword]
    if signature is None or not positional or batch.length == 0:
        return batch
    # which item it is does not matter, and reading one may take long
    if _binds(signature, (None,) * len(positional), {a.name: None for a in batch.arguments if a.keyword}):
        return batch
    first = positional[0]
    args, kwargs = batch.item(0)
    if len(positional) > 1 or first.kind == "constant":
        return _refuse_call(signature, positional, kwargs, function, batch)
    item = args[0]
    if isinstance(item, dict) and all(isinstance(k, str) for k in item) and _binds(signature, (), {**item, **kwargs}):
        return replace(batch, spread="dict")
    has_parts = isinstance(item, tuple | list) or (hasattr(item, "shape") and len(item.shape) >= 1)
    if has_parts and len(item) and _binds(signature, tuple(item), kwargs):
        if first.kind == "sequence":
            first = replace(first, value=_equally_long(first, len(item), function))
        return replace(batch, spread="tuple", arguments=[first, *batch.arguments[1:]])
    return _refuse_call(signature, positional, kwargs, function, batch)


def _refuse_call(
    signature: inspect.Signature, positional: list[Argument], kwargs: dict, function: Callable, batch: Batch
) -> Batch:
    """Say which inputs are missing or too many. Returns the batch where only the call itself can tell."""
    given = [a.name for a in positional]
    if len(given) > 1 and any(n.startswith("input ") for n in given):
        raise InputError(
            f"{function_name(function)} takes ({', '.join(signature.parameters)}); got {len(given)} positional inputs.",
            next_step="one input per parameter",
        )
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    given = [*given, *kwargs]
    missing = [n for n in needed if n not in given]
    if missing:
        raise InputError(
            f"{function_name(function)} also needs {', '.join(missing)}; got {', '.join(given)}.",
            argument=missing[0],
            next_step=f"name the input: {missing[0]}=value",
        )
    return batch


def _equally_long(argument: Argument, length: int, function: Callable) -> list[tuple]:
    for i, item in enumerate(argument.value):
        if not hasattr(item, "__len__") or len(item) != length:
            raise InputError(
                f"{argument.name}: item {i} cannot be spread over the parameters of {function_name(function)} as "
                f"item 0 is ({length} values): {_short(item)}.",
                argument=argument.name,
            )
    return [tuple(item) for item in argument.value]


def _binds(signature: inspect.Signature, args: tuple, kwargs: dict) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


# -------------------------------------------------------------------- a list of items → arrays


def _stack(argument: Argument) -> Argument:
    items = argument.value
    if not items:
        raise NotStackable("no items")
    name = argument.name
    if all(isinstance(x, numbers.Number) for x in items):
        array = _stack_leaf(items)
        return replace(argument, kind="tree", value=[Leaf(name, array, True, None, True)], treedef=_SCALAR)
    structures: dict[Any, list[int]] = {}
    columns: list[list[Any]] = []
    for i, item in enumerate(items):
        try:
            leaves, shape = _flat_item(item)
        except NotStackable as why:
            raise NotStackable(f"item {i} of {name} {why}") from None
        structures.setdefault(shape, []).append(i)
        columns.append(leaves)
    if len(structures) > 1:
        raise Ragged(structures)
    treedef, _ = next(iter(structures))
    if treedef.num_leaves == 0:
        raise NotStackable(f"the items of {name} hold no numbers")
    paths = [
        jax.tree_util.keystr(p)
        for p, _ in jax.tree_util.tree_flatten_with_path(items[0], is_leaf=_is_list_of_numbers)[0]
    ]
    made = []
    for j, path in enumerate(paths):
        column = [leaves[j] for leaves in columns]
        if is_key(column[0]):
            made.append(_make_leaf(name + path, jnp.stack(column), True))
        else:
            python = not hasattr(column[0], "dtype")
            made.append(Leaf(name + path, _stack_leaf(column), True, None, python))
    return replace(argument, kind="tree", value=made, treedef=treedef)


def _flat_item(item: Any) -> tuple[list[Any], tuple]:
    leaves, treedef = jax.tree_util.tree_flatten(item, is_leaf=_is_list_of_numbers)
    leaves = [np.asarray(x) if isinstance(x, list) else x for x in leaves]
    for leaf in leaves:
        if not isinstance(leaf, numbers.Number) and not _is_array(leaf):
            raise NotStackable(f"holds a {type(leaf).__name__}")
    return leaves, (treedef, tuple(getattr(x, "shape", ()) for x in leaves))


def item_structure(item: Any) -> tuple:
    """(structure, shapes of its arrays) of an item of a list. NotStackable if it holds something else."""
    return (_SCALAR, ((),)) if isinstance(item, numbers.Number) else _flat_item(item)[1]


_SCALAR = jax.tree_util.tree_structure(0)


def _is_list_of_numbers(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    if any(isinstance(v, str | dict | tuple) or v is None for v in value):
        return False
    try:
        return is_numeric_dtype(np.asarray(value).dtype)
    except (ValueError, TypeError):  # ragged
        return False


def _stack_leaf(column: list[Any]) -> np.ndarray:
    array = np.asarray([np.asarray(x) for x in column]) if hasattr(column[0], "shape") else np.asarray(column)
    if not is_numeric_dtype(array.dtype):
        # whole numbers past 64 bits, Decimal, Fraction
        raise NotStackable(f"numbers such as {_short(column[0])} of type {type(column[0]).__name__}")
    return array


def ragged_error(argument_groups: dict[Any, list[int]]) -> InputError:
    shapes = [str(shape[1][0] if len(shape[1]) == 1 else shape[1]) for shape in argument_groups]
    return InputError(
        f"the items have {len(shapes)} different shapes ({', '.join(shapes[:4])}, …), and each would be a program "
        f"of its own; at most {MAX_SHAPES} are.",
        next_step="pad the items to a few shapes, or use strategy='process'",
    )


def check_widths(mapped: Iterable[Leaf], shared: Iterable[Leaf]) -> list[str]:
    """What narrowing to 32 bits will do to these inputs, as notes. Raises InputError where values would wrap."""
    if setting("jax_enable_x64"):
        return []
    narrowed, whole = [], []
    for leaf in [*mapped, *shared]:
        array = leaf.array
        if not isinstance(array, np.ndarray | np.generic | LazyArray):
            continue
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and np.prod(array.shape):
            if not isinstance(array, LazyArray):  # looked at as it is read
                check_range(leaf.name, array)
            whole.append((leaf.name, array.dtype))
        elif array.dtype in (np.float64, np.complex128) and not leaf.from_python:
            narrowed.append((leaf.name, array.dtype))
    notes = []
    if narrowed:
        old = narrowed[0][1]
        new = "float32" if old == np.float64 else "complex64"
        notes.append(f"{_names(narrowed)}: {old} computed as {new}, about 7 digits; %jaxdevices --x64 keeps {old}")
    if whole:
        old = whole[0][1]
        new, most = ("int32", "2,147,483,647") if old.kind == "i" else ("uint32", "4,294,967,295")
        notes.append(
            f"{_names(whole)}: {old} computed as {new}, which wraps past {most}; %jaxdevices --x64 keeps {old}"
        )
    return notes


def check_range(name: str, array: Any) -> None:
    """Raise InputError if whole numbers of 64 bits would wrap where JAX makes them narrower."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size or setting("jax_enable_x64"):
        return
    target = np.int32 if array.dtype.kind == "i" else np.uint32
    low, high = array.min(), array.max()
    if low < np.iinfo(target).min or high > np.iinfo(target).max:
        raise InputError(
            f"{name}: values up to {max(abs(int(low)), abs(int(high)))} do not fit into "
            f"{np.dtype(target).name}, which JAX uses for {array.dtype} while x64 is off.",
            argument=name,
            next_step="%jaxdevices --x64  (in Python: devices(x64=True))",
        )


def _names(pairs: list[tuple[str, Any]]) -> str:
    return ", ".join(name for name, _ in pairs[:3]) + (", …" if len(pairs) > 3 else "")
