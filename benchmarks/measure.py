"""Measures one workload in a process of its own, so that memory and caches of others play no part. Run by run.py.

    python benchmarks/measure.py '{"workload": "tiny", "variants": ["auto", "jit(vmap)"], …}'

Each line on standard output is a JSON object: what has begun, what was found. A process that dies thereby tells which
variant it died of.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from variants import NUMPY, Context, Variant, build
from workloads import WORKLOADS

# Calls of each variant before the rounds: `auto` tries other ways in its first calls.
WARM_CALLS = 5
# What does not learn needs no more of them than this.
WARM_SECONDS = 1.5
# Slower variants get fewer rounds.
SLOW_SECONDS, SLOW_ROUNDS = 3.0, 3
# A round repeats short calls so many times, or for so long.
SHORT_CALLS, SHORT_SECONDS = 9, 0.02


@dataclass
class Job:
    """What run.py asks for.

    Attributes
    ----------
    size, numpy_size: items; None for the workload's own.
    rounds: timed calls of each variant; 0 checks the results only.
    fresh: first call and peak memory only.
    near: only variants within this factor of the fastest take part in the rounds; None for all.
    """

    workload: str
    variants: list[str]
    rounds: int = 7
    size: int | None = None
    numpy_size: int | None = None
    fresh: bool = False
    near: float | None = None
    seed: int = 0


@dataclass
class Timed:
    """A variant under way: first call, warm-up calls, timed calls; all in seconds."""

    variant: Variant
    first: float
    warm: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def prepare(job: Job) -> Context:
    """The inputs."""
    import jax

    workload = WORKLOADS[job.workload]
    length, numpy_size = job.size or workload.size, job.numpy_size or workload.numpy_size
    inputs = workload.make(length)
    length = len(jax.tree_util.tree_leaves(inputs)[0])  # a grid is rounded
    devices = len(jax.devices())
    if workload.takes_arrays:
        pieces = 4 * devices
        numpy_inputs = inputs[: length // pieces * pieces].reshape(pieces, -1)
    else:
        numpy_inputs = jax.tree_util.tree_map(lambda a: a[sample(length, numpy_size)], inputs)
    count = len(jax.tree_util.tree_leaves(numpy_inputs)[0])
    items = [jax.tree_util.tree_map(lambda a, i=i: a[i], numpy_inputs) for i in range(count)]
    return Context(workload, inputs, numpy_inputs, items, length, devices)


def sample(length: int, count: int) -> np.ndarray:
    """Indices spread over the whole range: slow items may stand together."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).astype(int))


# -------------------------------------------------------------------- are the results right?


class Checker:
    """Holds each variant's results against JAX on one device in batches, and those against the numpy version."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.numpy_result = stacked([context.workload.numpy_function(item) for item in context.items])
        self.reference = self.numpy_result
        if context.workload.function is not None:
            self.reference = host(build("one device, width 16", context).call())
            self._check_reference()

    def _check_reference(self) -> None:
        workload, context = self.context.workload, self.context
        ours, theirs = self.reference, self.numpy_result
        if workload.takes_arrays:
            theirs = theirs.reshape(-1)
            ours = ours[: len(theirs)]
        else:
            index = sample(context.length, len(context.items))
            ours = {k: v[index] for k, v in ours.items()} if isinstance(ours, dict) else ours[index]
        if workload.leaf:
            ours, theirs = ours[workload.leaf], theirs[workload.leaf]
        if workload.numpy_mean_only:
            ours, theirs = ours.mean(0, keepdims=True), theirs.mean(0, keepdims=True)
        share = beyond(ours, theirs, workload.numpy_tolerance)
        if share > workload.chaotic_share:
            raise AssertionError(f"JAX and numpy differ for {share:.1%} of the items")

    def check(self, name: str, result: Any) -> None:
        """AssertionError if the results are not the reference's."""
        workload = self.context.workload
        if name in NUMPY or workload.function is None:
            share = beyond(stacked(result) if isinstance(result, list) else host(result), self.numpy_result, 1e-6)
            limit = 0.0
        else:
            share, limit = beyond(host(result), self.reference, workload.tolerance), workload.chaotic_share
        if share > limit:
            raise AssertionError(f"{share:.1%} of the results are wrong")


def host(tree: Any) -> Any:
    import jax

    return jax.tree_util.tree_map(np.asarray, tree)


def stacked(results: list[Any]) -> Any:
    import jax

    return jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *results)


def beyond(result: Any, expected: Any, tolerance: float) -> float:
    """Share of the items that differ by more than the tolerance, relative to their own and the usual size."""
    import jax

    ours, theirs = jax.tree_util.tree_leaves(result), jax.tree_util.tree_leaves(expected)
    assert len(ours) == len(theirs), f"{len(ours)} results instead of {len(theirs)}"
    wrong = np.zeros(len(theirs[0]), bool)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape, f"shape {a.shape} instead of {b.shape}"
        a, b = np.asarray(a, float).reshape(len(b), -1), np.asarray(b, float).reshape(len(b), -1)
        allowed = tolerance * (np.abs(b) + np.median(np.abs(b)))
        wrong |= ~(np.abs(a - b) <= allowed).all(1)  # NaN is wrong, too
    return float(wrong.mean())


# -------------------------------------------------------------------- times


def timed(call: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def measure(job: Job) -> None:
    """First calls and warm-up calls, one variant after the other; then rounds with all of them in random order."""
    context = prepare(job)
    warm_up_jax()
    tell("begin", variant="the check against numpy")
    checker = Checker(context)
    scale = 1.0 if context.workload.takes_arrays else context.length / len(context.items)
    tell("inputs", length=context.length, scale=scale, devices=context.devices)
    running: dict[str, Timed] = {}
    for name in job.variants:
        tell("begin", variant=name)
        try:
            running[name] = start(name, job, context, checker)
        except Exception as error:  # one that fails is named and counted; the others go on
            tell("failed", variant=name, why=describe(error))
    if job.rounds:
        run_rounds(running, job)
    for name, one in running.items():
        if one.times or not job.rounds:
            tell("result", variant=name, first=one.first, warm=one.warm, times=one.times)
        one.variant.close()
    tell("done")


def start(name: str, job: Job, context: Context, checker: Checker) -> Timed:
    """Build a variant, check its results, warm it up."""
    if name.startswith("parmap "):
        forget_programs()
    seconds, (variant, result) = timed(lambda: build_and_call(name, context))
    one = Timed(variant, seconds)
    checker.check(name, result)
    if name == "auto":
        tell("chose", text=note_choice(context))
    if not job.rounds:
        return one
    for _ in range(WARM_CALLS):
        if name != "auto" and sum(one.warm) > WARM_SECONDS:
            break
        seconds, result = timed(variant.call)
        one.warm.append(seconds)
    checker.check(name, result)
    if name == "auto":
        tell("chose", text=note_choice(context))
    tell("warm", variant=name, first=one.first, last=one.warm[-1])
    return one


def build_and_call(name: str, context: Context) -> tuple[Variant, Any]:
    variant = build(name, context)
    return variant, variant.call()


def run_rounds(running: dict[str, Timed], job: Job) -> None:
    order, fastest = random.Random(job.seed), min(one.warm[-1] for one in running.values())
    near = [n for n, one in running.items() if job.near is None or min(one.warm) <= job.near * fastest or n == "auto"]
    for round_ in range(job.rounds):
        # in random order: what runs second finds warm caches, or threads of the first that still spin
        for name in order.sample(near, len(near)):
            one = running[name]
            if round_ < SLOW_ROUNDS or statistics.median(one.times) < SLOW_SECONDS:
                tell("begin", variant=name)
                one.times.append(repeated(one))
        gc.collect()


def repeated(one: Timed) -> float:
    """Seconds of a call; of a short one the median of several, as the first finds the caches full of others' data."""
    count = max(1, min(SHORT_CALLS, int(SHORT_SECONDS / one.warm[-1])))
    return statistics.median(timed(one.variant.call)[0] for _ in range(count))


def note_choice(context: Context) -> str:
    """How `auto` ran the last map, in the words of its report."""
    from jaxpar_magic import last_report

    report = last_report()
    assert report is not None
    context.width = report.batch_size or 1
    parts = report.line().partition(": ")[2].split(", ")
    left_out = (" item", " items", "compile", "run ")
    return ", ".join(p for p in parts if not (p.endswith(left_out[:2]) or p.startswith(left_out[2:])))


def warm_up_jax() -> None:
    """What the first compilation of a process costs belongs to no variant."""
    import jax
    import jax.numpy as jnp

    jax.block_until_ready(jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y), x))(np.ones(3)))


def forget_programs() -> None:
    """What `auto` compiled must not make the first call of a fixed strategy cheap."""
    from jaxpar_magic.mapping.programs import forget_programs_of_other

    forget_programs_of_other(set())


# -------------------------------------------------------------------- first call and memory


def measure_fresh(job: Job) -> None:
    """The first call of one variant in this process, and how far it drove memory up."""
    context = prepare(job)
    if context.workload.function is not None:
        warm_up_jax()
    name = job.variants[0]
    tell("begin", variant=name)
    before = resident_now()
    seconds, (variant, _) = timed(lambda: build_and_call(name, context))
    tell("fresh", variant=name, first=seconds, peak=max(0, peak() - before))
    variant.close()
    tell("done")


def resident_now() -> int:
    """Bytes in memory now; from here on the peak counts."""
    from jaxpar_magic.machine import resident_memory

    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or not allowed: the peak is that of the whole process
        pass
    return resident_memory()


def peak() -> int:
    """The most bytes that this process has had in memory."""
    import resource

    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def describe(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name in ("parajax", "joblib"):
        return "not installed"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


if __name__ == "__main__":
    from jaxpar_magic.errors import JaxparWarning

    warnings.simplefilter("ignore", JaxparWarning)
    job = Job(**json.loads(sys.argv[1]))
    (measure_fresh if job.fresh else measure)(job)
    sys.stdout.flush()
    os._exit(0)  # workers and threads of other tools may keep a process from ending
