"""Whether two traced functions are one program, so that what is compiled for one serves the other.

A cell that is run again makes a new function of the same text. Tracing it is quick; lowering the map of it to
StableHLO, whose text would tell the same, takes several times as long. So the jaxprs are compared, part by part.
What cannot be compared counts as different: the text then decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._jax import equation_context

if TYPE_CHECKING:
    from .tracing import ItemProgram

# Rules for derivatives, which a map has no more use for once it is traced. They are new objects at each trace.
_DERIVATIVES = frozenset({"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"})


def same_program(one: ItemProgram, other: ItemProgram) -> bool:
    """Whether both compute the same from the same inputs, constants included."""
    return (
        one.out_tree == other.out_tree
        and one.outputs == other.outputs
        and _same_closed(one.closed, other.closed)
        and all(_same(getattr(one, name), getattr(other, name)) for name in ("mapped", "shared"))
    )


def _same_closed(one: Any, other: Any) -> bool:
    return _same(list(one.consts), list(other.consts)) and _same_jaxpr(one.jaxpr, other.jaxpr)


def _same_jaxpr(one: Any, other: Any) -> bool:
    partner: dict[Any, Any] = {}  # a variable of `one` → the same of `other`

    def bound(variables: Any, others: Any) -> bool:
        partner.update(zip(variables, others))
        return len(variables) == len(others) and all(v.aval == w.aval for v, w in zip(variables, others))

    def used(atom: Any, its_like: Any) -> bool:
        if hasattr(atom, "val"):  # a literal
            return hasattr(its_like, "val") and atom.aval == its_like.aval and _same(atom.val, its_like.val)
        return partner.get(atom) is its_like

    def equal(equation: Any, its_like: Any) -> bool:
        return (
            equation.primitive is its_like.primitive
            and len(equation.invars) == len(its_like.invars)
            and all(map(used, equation.invars, its_like.invars))
            and equation.effects == its_like.effects
            and equation_context(equation) == equation_context(its_like)
            and _same(equation.params, its_like.params)
            and bound(equation.outvars, its_like.outvars)
        )

    return (
        bound(one.constvars, other.constvars)
        and bound(one.invars, other.invars)
        and len(one.eqns) == len(other.eqns)
        and all(map(equal, one.eqns, other.eqns))
        and len(one.outvars) == len(other.outvars)
        and all(map(used, one.outvars, other.outvars))
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal for certain."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(k in _DERIVATIVES or _same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "jaxpr") and hasattr(one, "consts"):
        return _same_closed(one, other)
    if hasattr(one, "eqns"):
        return _same_jaxpr(one, other)
    if hasattr(one, "__array__") and hasattr(one, "dtype"):  # JAX has several kinds of them
        return _same_array(one, other)
    if isinstance(one, float | complex):  # 0.0 == -0.0, and NaN is not NaN
        return repr(one) == repr(other)
    try:
        return bool(one == other)
    except Exception:
        return False


def _same_array(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
