"""A function traced once, for one item: its program, what it needs, and what its author should know."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import with_constants_as_arguments
from .captured import Captured, unwrap
from .facts import ItemFacts, item_facts
from .inputs import Batch, is_key
from .watch import TraceWatch

# The axis of all items, by which collectives in a function name it where one program maps them all.
SPMD_AXIS = "items"
# Captured constants from this size on are passed to the program as arguments instead of standing in its text.
CONSTANT_BYTES = 4096
# A captured array from this size on is worth a line: every device holds a copy.
LARGE_BYTES = 16 << 20


class NotTraceable(TypeError):
    """The function returned something that no array can hold."""


@dataclass(frozen=True)
class Output:
    """One array of the function's result for one item: shape, dtype, and the PRNG implementation of a key."""

    shape: tuple[int, ...]
    dtype: Any
    key_impl: str | None = None


@dataclass
class ItemProgram:
    """A function of one item as a JAX program; `depends` tells which outputs differ from item to item.

    `call(mapped, shared)` takes lists of arrays (an item's leaves without the mapped axis; the shared leaves, then
    `constants`) and returns the list of output arrays.
    """

    call: Callable[[list, list], list]
    closed: Any
    constants: list[Any]
    out_tree: Any
    outputs: list[Output]
    mapped: list[jax.ShapeDtypeStruct]
    shared: list[jax.ShapeDtypeStruct]
    depends: list[bool]
    facts: ItemFacts
    notes: list[str] = field(default_factory=list)

    @functools.cached_property
    def digest(self) -> str:
        """Tells programs apart, sizes of an item included: for what need not be exact, as the values of constants."""
        text = re.sub(r"0x[0-9a-f]+", "", str(self.closed))  # addresses of Python objects
        shapes = [(a.shape, str(a.dtype)) for a in (*self.mapped, *self.shared)]
        return hashlib.sha256(f"{text}{shapes}".encode()).hexdigest()[:32]


def canonical(dtype: Any) -> Any:
    """The dtype that JAX gives to an array of `dtype` under the x64 setting in force."""
    return jax.dtypes.canonicalize_dtype(dtype)


def trace_item(function: Callable, batch: Batch, found: Captured, *, spmd: bool = False) -> ItemProgram:
    """Trace `function` for one item of a stacked batch; with `spmd` it may use collectives over all of its items.

    The user's code runs exactly once here; every strategy builds on the jaxpr that results. Exceptions of the
    function, and JAX's about it, pass through unchanged.
    """
    __tracebackhide__ = True
    mapped_leaves, shared_leaves = batch.leaves()
    mapped = [jax.ShapeDtypeStruct(x.array.shape[1:], canonical(x.array.dtype)) for x in mapped_leaves]
    shared = [jax.ShapeDtypeStruct(x.array.shape, canonical(x.array.dtype)) for x in shared_leaves]
    structure: list[Any] = []
    # Arguments go by the names and structure that the user knows, so that JAX's messages name them.
    trees = [a for a in batch.arguments if a.kind == "tree"]
    flags = [leaf.mapped for a in trees for leaf in a.value]
    structs = _interleave(flags, mapped, shared)
    named, position = {}, 0
    for a in trees:
        named[_identifier(a.name)] = a.treedef.unflatten(range(position, position + len(a.value)))
        position += len(a.value)
    order = jax.tree_util.tree_leaves(named)  # of the jaxpr's inputs: JAX sorts keyword arguments

    def item(**values):
        __tracebackhide__ = True
        ordered = dict(zip(order, jax.tree_util.tree_leaves(values)))
        leaves = [ordered[i] for i in range(len(flags))]
        args, kwargs = batch.bind(
            [v for v, is_mapped in zip(leaves, flags) if is_mapped],
            [v for v, is_mapped in zip(leaves, flags) if not is_mapped],
        )
        results, tree = jax.tree_util.tree_flatten(function(*args, **kwargs))
        structure[:] = [tree, [str(jax.random.key_impl(x)) if is_key(x) else None for x in results]]
        return [_as_array(x) for x in results]

    with contextlib.suppress(AttributeError, TypeError):  # JAX names the function and its line in messages
        functools.update_wrapper(item, unwrap(function))
    arguments = jax.tree_util.tree_map(lambda i: structs[i], named)
    # A function object of its own each time: JAX caches traces by identity, and globals may have changed.
    with TraceWatch(found) as watch:
        closed = jax.make_jaxpr(item, axis_env=[(SPMD_AXIS, batch.length)] if spmd else None)(**arguments)
    tree, impls = structure
    call, constants = with_constants_as_arguments(closed, CONSTANT_BYTES)

    def call_item(mapped_values: list, shared_values: list) -> list:
        own, constant_values = shared_values[: len(shared)], shared_values[len(shared) :]
        values = _interleave(flags, mapped_values, own)
        return call(*constant_values, *(values[i] for i in order))

    outputs = [Output(a.shape, a.dtype, impl) for a, impl in zip(closed.out_avals, impls)]
    return ItemProgram(
        call_item,
        closed,
        constants,
        tree,
        outputs,
        mapped,
        [*shared, *(jax.ShapeDtypeStruct(np.shape(c), c.dtype) for c in constants)],
        _depends(closed.jaxpr, [flags[i] for i in order]),
        item_facts(closed, mapped),
        [*watch.notes(), *_large_notes(found)],
    )


def _as_array(value: Any) -> Any:
    if is_key(value):
        return jax.random.key_data(value)
    try:
        return jnp.asarray(value)
    except TypeError:
        raise NotTraceable(f"the function returned a {type(value).__name__}, which no array can hold") from None


def _large_notes(found: Captured) -> list[str]:
    return [
        f"{name} ({value.nbytes / 1e6:,.0f} MB) is captured by the function: every device holds a copy"
        for name, value in found.values.items()
        if isinstance(value, np.ndarray | jax.Array) and value.nbytes >= LARGE_BYTES
    ]


def _interleave(flags: list[bool], mapped: Sequence[Any], shared: Sequence[Any]) -> list[Any]:
    """Leaves in the order of the arguments, from the mapped and the shared ones."""
    mapped_values, shared_values = iter(mapped), iter(shared)
    return [next(mapped_values if is_mapped else shared_values) for is_mapped in flags]


def _identifier(name: str) -> str:
    return "".join(c if c.isidentifier() or c.isdigit() else "_" for c in name)


def _depends(jaxpr: Any, mapped: list[bool]) -> list[bool]:
    """For each output, whether it depends on an input that is mapped."""
    varying = {v for v, is_mapped in zip(jaxpr.invars, mapped) if is_mapped}

    def varies(atom: Any) -> bool:
        return not hasattr(atom, "val") and atom in varying  # literals have a value

    for equation in jaxpr.eqns:
        if any(varies(v) for v in equation.invars):
            varying.update(equation.outvars)
    return [varies(v) for v in jaxpr.outvars]
