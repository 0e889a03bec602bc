"""What planning needs to know of a traced function, read from its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .._jax import ordered_effects

_CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TRANSCENDENTAL = _names(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1 lgamma log log1p "
    "logistic pow sin sinh tan tanh"
)
# What XLA fuses into one pass over the data: the rest of the primitives write their result to memory first.
_FUSED = _TRANSCENDENTAL | _names(
    "abs add and bitcast_convert_type broadcast_in_dim ceil clamp complex conj convert_element_type copy div eq "
    "expand_dims floor ge gt imag integer_pow iota is_finite le lt max min mul ne neg nextafter not or "
    "population_count real reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum rem reshape rev round "
    "rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign slice sqrt square squeeze "
    "stop_gradient sub transpose xor"
)
# What cuts its batch into tasks for the thread pool of XLA's CPU client, on which it runs itself, and waits for them.
_POOLED = _names("cholesky eig eigh fft geqrf hessenberg householder_product lu qr schur svd tridiagonal")
# Primitives that only call another jaxpr.
_CALLS = _names("pjit jit closed_call core_call remat2 checkpoint custom_jvp_call custom_vjp_call")

# Nanoseconds of one core per element of the result, to within a factor of five: read off vectorised code on one
# x86-64 core. They tell short work from long, nothing finer.
_PLAIN_NS = 0.05
_TRANSCENDENTAL_NS = 1.0
_RANDOM = _names("random_bits threefry2x32 random_split random_fold_in")
_RANDOM_NS = 3.0
_FLOP_NS = 0.05


@dataclass(frozen=True)
class ItemFacts:
    """What planning needs to know of a traced function.

    Attributes
    ----------
    has_while: contains a loop whose length depends on data: vectorised, all items wait for the slowest.
    has_loop: contains a loop of any kind (XLA runs a loop of small operations on one core).
    callbacks: calls back into Python while it runs.
    ordered: those callbacks are ordered, which JAX allows on one device only.
    work_bytes: size of the largest intermediate result of one item.
    input_bytes, output_bytes: of one item.
    fuses: XLA computes it in one pass over the data, without keeping intermediate results.
    loop_elements: numbers in the widest operation of the body of its busiest loop; 0 without a loop.
    nanoseconds: a rough guess at what one item costs on one core in vectorised code; a loop of unknown length
        counts as one turn.
    pooled_nanoseconds: the same for its dearest operation that itself uses the threads of XLA's CPU client: linear
        algebra and FFTs. Once, whatever loops it stands in.
    """

    has_while: bool = False
    has_loop: bool = False
    callbacks: bool = False
    ordered: bool = False
    work_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    fuses: bool = False
    loop_elements: int = 0
    nanoseconds: float = 0.0
    pooled_nanoseconds: float = 0.0

    @property
    def item_bytes(self) -> int:
        """Memory that one item takes while it is computed; at least 1."""
        return max(1, self.work_bytes, self.input_bytes + self.output_bytes)


def item_facts(closed: Any, mapped: Sequence[jax.ShapeDtypeStruct]) -> ItemFacts:
    """The facts of a function of one item, traced as `closed`; `mapped` are its mapped arguments."""
    seen = _Walk()
    cost = seen.jaxpr(closed.jaxpr, times=1)
    busiest = max(seen.loops, default=(0.0, 0))
    return ItemFacts(
        seen.has_while,
        bool(seen.loops),
        seen.callbacks,
        ordered_effects(closed),
        seen.work_bytes,
        sum(_bytes(a) for a in mapped),
        sum(_bytes(a) for a in closed.out_avals),
        seen.fuses,
        busiest[1],
        cost,
        seen.pooled,
    )


class _Walk:
    """One pass over a jaxpr and those inside it."""

    def __init__(self) -> None:
        self.has_while = False
        self.callbacks = False
        self.fuses = True
        self.work_bytes = 0
        self.pooled = 0.0
        self.loops: list[tuple[float, int]] = []  # (nanoseconds in all, widest operation) of each loop's own body

    def jaxpr(self, jaxpr: Any, times: int) -> float:
        """Nanoseconds of all its runs; it is run so many times."""
        return sum(self.equation(equation, times) for equation in jaxpr.eqns)

    def equation(self, equation: Any, times: int) -> float:
        name = equation.primitive.name
        self.callbacks |= name in _CALLBACKS
        self.work_bytes = max(self.work_bytes, sum(_bytes(v.aval) for v in equation.outvars))
        inner = list(_inner(equation))
        if name not in _FUSED and not (name in _CALLS and inner):
            self.fuses = False
        if name in ("while", "scan"):
            self.has_while |= name == "while"
            times *= equation.params.get("length", 1)
            inside = len(self.loops)
            cost = sum(self.jaxpr(body, times) for body in inner)
            own = cost - sum(nested for nested, _ in self.loops[inside:])
            self.loops.append((own, max((_widest(body) for body in inner), default=1)))
            return cost
        if inner:
            return max(self.jaxpr(body, times) for body in inner)  # of branches the dearest
        once = _nanoseconds(name, equation)
        if name in _POOLED:
            self.pooled = max(self.pooled, once)
        return times * once


def _inner(equation: Any) -> Iterator[Any]:
    for parameter in equation.params.values():
        for value in parameter if isinstance(parameter, tuple | list) else (parameter,):
            value = getattr(value, "jaxpr", value)
            if hasattr(value, "eqns"):
                yield value


def _widest(jaxpr: Any) -> int:
    """Elements of the widest result in a loop's body; loops inside it count for themselves."""
    widest = 1
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("while", "scan"):
            continue
        widest = max([widest, *(_elements(v.aval) for v in equation.outvars), *map(_widest, _inner(equation))])
    return widest


def _nanoseconds(name: str, equation: Any) -> float:
    elements = sum(_elements(v.aval) for v in equation.outvars)
    shapes: list[tuple[int, ...]] = [getattr(v.aval, "shape", ()) for v in equation.invars]
    if name in _TRANSCENDENTAL:
        return _TRANSCENDENTAL_NS * elements
    if name in _RANDOM:
        return _RANDOM_NS * elements
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return _FLOP_NS * elements * math.prod(shapes[0][i] for i in contracted)
    if name == "conv_general_dilated":
        return _FLOP_NS * elements * max(1, math.prod(shapes[1][1:]))
    if name in ("sort", "top_k"):
        return 2.0 * elements * math.log2(max(2, elements))
    if name not in _FUSED and shapes and len(shapes[0]) >= 2:  # factorisations and solves: cubic, and a call each
        return 200.0 + _FLOP_NS * elements * shapes[0][-1]
    if name.startswith("reduce_"):
        return _PLAIN_NS * sum(math.prod(s) for s in shapes)
    return _PLAIN_NS * elements


def _elements(aval: Any) -> int:
    return int(np.prod(getattr(aval, "shape", ()), dtype=np.int64))


def _bytes(aval: Any) -> int:
    return _elements(aval) * getattr(getattr(aval, "dtype", None), "itemsize", 0)
