"""`--compare`: run several strategies on the same inputs, check that they agree, and show times and speed-ups."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..document import Bars, Described, Document, Items, Table
from ..errors import JaxparError
from ..machine import usable_cores
from . import strategies
from .inputs import Batch, make_batch
from .monitor import Monitor
from .options import MapOptions
from .planner import check_strategy
from .result import duration
from .runner import run_batch

# A plain loop is timed on as many items as fit into this many seconds, and the rest is worked out.
SAMPLE_SECONDS = 1.0
# Later calls are repeated up to this often, as long as they take less than REPEAT_SECONDS together.
REPEATS = 5
# Strategies slower than this many times the fastest have no bar.
DRAWN_RATIO = 50
REPEAT_SECONDS = 2.0


@dataclass
class Row:
    """One strategy's measurement.

    Attributes
    ----------
    strategy: its name.
    parts: devices, threads or workers.
    compile_seconds: tracing and compiling at the first call; None if nothing was compiled.
    run_seconds: median of later calls, until results are ready; None if it failed.
    measured: number of items that were timed; fewer than all where the time is worked out from a sample.
    difference: largest difference from the reference relative to its largest value; None if not comparable.
    problem: why it could not run.
    """

    strategy: str
    parts: int = 1
    compile_seconds: float | None = None
    run_seconds: float | None = None
    measured: int = 0
    difference: float | None = None
    problem: str | None = None


@dataclass
class Comparison(Described):
    """A table of strategies: time, speed-up over the plain loop, agreement.

    Attributes
    ----------
    rows: one `Row` per strategy, in the order that they were run.
    length: number of items.
    value: the result of the fastest one that ran whole.
    notes: what the user should know.
    reference: the strategy with whose result the others are compared.
    """

    rows: list[Row]
    length: int
    value: Any
    notes: list[str] = field(default_factory=list)
    reference: str | None = None

    @property
    def fastest(self) -> str | None:
        """Name of the strategy with the shortest run time."""
        timed = [r for r in self.rows if r.run_seconds is not None]
        return min(timed, key=lambda r: r.run_seconds or 0.0).strategy if timed else None

    @property
    def ideal(self) -> tuple[float, str, int] | None:
        """The time if work divided evenly over all parts at no cost: (seconds, strategy on one part, parts)."""
        alone = [r for r in self.rows if r.run_seconds is not None and r.parts == 1]
        parts = max((r.parts for r in self.rows if r.run_seconds is not None), default=1)
        if not alone or parts == 1:
            return None
        best = min(alone, key=lambda r: r.run_seconds or 0.0)
        return (best.run_seconds or 0.0) / parts, best.strategy, parts

    def describe(self) -> Document:
        timed = [r for r in self.rows if r.run_seconds is not None]
        base = next((r for r in timed if r.strategy == "serial"), timed[0] if timed else None)
        fastest = self.fastest
        rows = []
        for r in self.rows:
            if r.run_seconds is None:
                rows.append((r.strategy, "–", "–", "–", "–", f"could not run: {r.problem}"))
                continue
            about = "about " if r.measured < self.length else ""
            speed = (base.run_seconds or 0) / r.run_seconds if base and r.run_seconds else 0.0
            words = ["fastest"] if r.strategy == fastest else []
            words += [f"from {r.measured:,} items"] if about else []
            compiling = "–" if r.strategy in strategies.PYTHON else "before"
            rows.append(
                (
                    r.strategy,
                    str(r.parts),
                    duration(r.compile_seconds) if r.compile_seconds is not None else compiling,
                    about + duration(r.run_seconds),
                    f"{speed:,.0f} ×" if speed >= 100 else f"{speed:.3g} ×",
                    ", ".join(["reference" if r.strategy == self.reference else _difference(r.difference), *words]),
                )
            )
        over = "a plain loop" if base and base.strategy == "serial" else (base.strategy if base else "")
        against = ""
        if self.reference is not None and any(r.difference for r in self.rows):
            against = (
                f"; a result differs from that of {self.reference} by so much, as a share of the largest value there"
            )
        table = Table(
            ("strategy", "parts", "compile", "run", "speed-up", "result"),
            rows,
            f"{self.length:,} items; speed-up over {over}; run time without compiling{against}",
            frozenset({1, 2, 3, 4}),
        )
        # Next to an estimate of hours all others would be invisible.
        quickest = min((r.run_seconds or 0.0 for r in timed), default=0.0)
        drawn = [r for r in timed if (r.run_seconds or 0.0) <= DRAWN_RATIO * quickest]
        left_out = f" (up to {DRAWN_RATIO} times the fastest)" if len(drawn) < len(timed) else ""
        bars = [(r.strategy, r.run_seconds or 0.0, duration(r.run_seconds or 0.0)) for r in drawn]
        hollow, caption = frozenset[int](), f"run time, shorter is better{left_out}"
        ideal = self.ideal
        if ideal is not None:
            seconds, best, parts = ideal
            hollow = frozenset({len(bars)})
            bars.append(("ideal", seconds, duration(seconds)))
            caption += f"; ideal: the time of {best}, divided by {parts}"
        picture = Bars(bars, caption, hollow)
        return Document([table, picture, *([Items(self.notes)] if self.notes else [])])

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} strategies over {self.length:,} items, fastest: {self.fastest}>"


def _difference(value: float | None) -> str:
    if value is None:
        return "not compared"
    if value == 0:
        return "equal"
    return f"differs by {value:.1e}" if value < 1e-3 else f"differs by {value:.2%}"


def compare_strategies(
    function: Callable, inputs: Sequence[Any], named: dict[str, Any], options: MapOptions, which: Any = True
) -> Comparison:
    """Run the strategies `which` (True: all; names in a sequence or separated by commas) and compare them.

    A strategy that cannot run is a row that says why. The plain loop, and worker processes, are timed on a part of the
    items where all would take long; the table says so.
    """
    __tracebackhide__ = True
    names = _names(which)
    batch = make_batch(function, inputs, named, in_axes=options.in_axes, static=options.static, key=options.key)
    rows: list[Row] = []
    values: dict[str, tuple[Any, int]] = {}
    notes: dict[str, None] = {}
    first_error: Exception | None = None
    for name in names:
        row = Row(name)
        rows.append(row)
        try:
            memory = None if name in strategies.PYTHON else options.memory  # bounds what JAX holds
            value = _measure(function, batch, replace(options, strategy=name, memory=memory), row, notes)
            values[name] = (value, row.measured)
        except Exception as error:
            first_error = first_error or error
            row.problem = _reason(error)
    if not values and first_error is not None:
        raise first_error
    reference = next(iter([n for n in values if n in strategies.TRACED] or values))
    for row in rows:
        if row.strategy in values:
            row.difference = _largest_difference(values[row.strategy], values[reference])
    whole_numbers = any(
        getattr(x, "dtype", np.dtype(float)).kind in "iu" for x in jax.tree_util.tree_leaves(values[reference][0])
    )
    if whole_numbers and any(r.difference for r in rows):
        notes["whole numbers differ: 32 bits wrap around where Python's do not; %jaxdevices --x64 gives 64"] = None
    elif any(r.difference is not None and r.difference > 1e-3 for r in rows):
        notes[
            "results differ by more than rounding: code that is vectorised rounds in another order, which chaotic or "
            "adaptive loops amplify; %jaxdevices --x64 narrows it"
        ] = None
    whole = [r for r in rows if r.run_seconds is not None and r.measured == batch.length]
    best = min(whole, key=lambda r: r.run_seconds or 0.0).strategy if whole else reference
    compared = reference if len(values) > 1 else None
    return Comparison(rows, batch.length, values[best][0], list(notes), compared)


def _names(which: Any) -> list[str]:
    if which is True:
        return list(strategies.LOCAL)
    given = which.split(",") if isinstance(which, str) else list(which)
    return [check_strategy(str(name).strip()) for name in given]


def _reason(error: Exception) -> str:
    text = error.problem if isinstance(error, JaxparError) else str(error)
    line = (text.strip().splitlines() or [""])[0]
    line = line if len(line) <= 80 else line[:79] + "…"
    return line if isinstance(error, JaxparError) else f"{type(error).__name__}: {line}"


def _measure(function: Callable, batch: Batch, options: MapOptions, row: Row, notes: dict[str, None]) -> Any:
    if options.strategy in strategies.PYTHON:
        return _measure_python(function, batch, options, row, notes)
    first = run_batch(function, batch, options, Monitor())
    row.parts, row.measured = first.report.parts, batch.length
    row.compile_seconds = None if first.report.reused else first.report.compile_seconds
    notes.update(dict.fromkeys(first.report.notes))
    times: list[float] = []
    while len(times) < REPEATS and (not times or sum(times) + times[-1] < REPEAT_SECONDS):
        begin = time.perf_counter()
        jax.block_until_ready(run_batch(function, batch, options, Monitor()).value)
        times.append(time.perf_counter() - begin)
    row.run_seconds = statistics.median(times)
    return first.value


def _measure_python(function, batch: Batch, options: MapOptions, row: Row, notes: dict[str, None]) -> Any:
    # A first round is not timed: it starts the workers, and each may compile operations.
    first = replace(options, chunk_size=1)
    run_batch(function, batch.subset(range(min(batch.length, 2 * usable_cores()))), first, Monitor())
    sample = batch
    if batch.length > 3:
        begin = time.perf_counter()
        run_batch(function, batch.subset(range(3)), replace(options, strategy="serial"), Monitor())
        each = (time.perf_counter() - begin) / 3
        fitting = max(3, int(SAMPLE_SECONDS / max(each, 1e-9)))
        if fitting < batch.length:
            sample = batch.subset(np.linspace(0, batch.length - 1, fitting).astype(int).tolist())
    begin = time.perf_counter()
    result = run_batch(function, sample, options, Monitor())
    seconds = time.perf_counter() - begin
    row.parts, row.measured = result.report.parts, sample.length
    row.run_seconds = seconds * batch.length / max(1, sample.length)
    notes.update(dict.fromkeys(result.report.notes))
    return result.value


def _largest_difference(one: tuple[Any, int], other: tuple[Any, int]) -> float | None:
    (a, a_count), (b, b_count) = one, other
    if isinstance(a, list) or isinstance(b, list):
        return None
    if a_count != b_count:
        if a_count < 2 or b_count < a_count:
            return None
        chosen = np.linspace(0, b_count - 1, a_count).astype(int)
        b = jax.tree_util.tree_map(lambda x: x[chosen], b)
    left, right = jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b)
    if len(left) != len(right):
        return None
    largest = 0.0
    for x, y in zip(left, right):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x), np.asarray(y)
        if x.shape != y.shape:
            return None
        kind = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
        x, y = x.astype(kind), y.astype(kind)
        finite = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return float("inf")
        if finite.any():
            scale = max(float(np.abs(y[finite]).max()), np.finfo(np.float64).tiny)
            largest = max(largest, float(np.abs(x[finite] - y[finite]).max()) / scale)
    return largest
