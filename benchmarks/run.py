"""The benchmark suite: `parmap` against JAX by hand, parajax, joblib, `multiprocessing.Pool` and a Python loop.

    python benchmarks/run.py                              all workloads, later calls (about 10 minutes on 2 cores)
    python benchmarks/run.py escape_time tiny --rounds 7  some of them
    python benchmarks/run.py --memory                     first calls and peak memory, too, each in a fresh process
    python benchmarks/run.py --grid                       auto against places × widths, by hand
    python benchmarks/run.py --first-calls                first calls on a second of work and more
    python benchmarks/run.py --long-runs                  chunks, progress, checkpoints, memory bound, a cell run again
    python benchmarks/run.py --explanations               an error's card, first and later; cells that do not fail
    python benchmarks/run.py --report                     table and chart into README.md from what has been measured
    python benchmarks/run.py --quick                      do all variants give right results? no times

Results are JSON files in build/bench. Every workload has a process of its own, with as many JAX devices as cores that
it may use. Results are checked before anything is timed; a variant that fails is named, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report
from measure import Job
from variants import ALL, BY_HAND, grid, names_for
from workloads import WORKLOADS

from jaxpar_magic.machine import usable_cores
from jaxpar_magic.mapping.result import duration

HERE = Path(__file__).resolve().parent
# A variant that gives no sign for so long counts as failed.
PATIENCE = 60.0
QUICK_SIZE, QUICK_NUMPY_SIZE = 20, 2
FRESH = ("auto", "jit(vmap)", "shard_map(vmap)", "shard_map(lax.map)", "parajax")
# Times the usual size: a second of work and more for the best way.
LARGER = {"ode_rk4": 32, "escape_time": 100, "adaptive_vdp": 50, "mc_barrier": 40, "image_conv": 20}
FULL_ROUNDS = 7
# Scripts of their own: the parts of each.
FIGURES = {"long_runs": ("cell", "chunks", "memory"), "explanations": ("first", "later", "cells")}
# Grid points slower than this, times the fastest, cannot be the best.
NEAR = 1.6


class Lost(Exception):
    """The child process died, or gave no sign for too long."""


def measured(job: Job, patience: float = PATIENCE) -> Iterator[dict[str, Any]]:
    """What measure.py tells of a job."""
    # XLA takes the size of its thread pool from NPROC
    pool = {"NPROC": str(2 * usable_cores() + 1)} if WORKLOADS[job.workload].waits_in_pool else {}
    return child("measure.py", json.dumps(asdict(job)), patience=patience, env=pool)


def child(script: str, *arguments: str, patience: float, env: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """What a script tells on its standard output, as it tells it. Raises Lost."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as errors:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "JAXPAR_"))}
        # A cache folder of its own: what was learnt or compiled in earlier runs is not known.
        settings = {"JAX_NUM_CPU_DEVICES": str(usable_cores()), "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": scratch}
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            env=kept | settings | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # so that its workers end with it
        )
        assert process.stdout is not None
        silent = False

        def give_up() -> None:
            nonlocal silent
            silent = True
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(patience, give_up)
        timer.start()
        done = False
        try:
            for line in process.stdout:
                timer.cancel()
                if line.startswith("{"):
                    message = json.loads(line)
                    done = done or message["event"] == "done"
                    yield message
                timer = threading.Timer(patience, give_up)
                timer.start()
        finally:
            timer.cancel()
            try:
                os.killpg(process.pid, signal.SIGKILL)  # workers that are left
            except ProcessLookupError:
                pass
            process.wait()
        if not done:
            errors.seek(0)
            last = [line for line in errors.read().splitlines() if line.strip()][-1:]
            raise Lost(f"no sign for {patience:.0f} s" if silent else f"the process died: {''.join(last)[:200]}")


def measure_workload(job: Job, patience: float = PATIENCE) -> dict[str, Any]:
    """Times of all variants of a workload. A process that dies is started again without what it died of."""
    left = list(job.variants)
    found: dict[str, Any] = {"variants": {}, "failed": {}}
    while left:
        begun = ""
        found["variants"] = {}
        try:
            for message in measured(replace(job, variants=left), patience):
                begun = message["variant"] if message["event"] == "begin" else begun
                take(found, message)
            return found
        except Lost as why:
            print(f"  {begun or 'starting':28} FAILED: {why}", flush=True)
            found["failed"][begun or "starting"] = str(why)
            if begun not in left:
                return found
            left.remove(begun)
    return found


def take(found: dict[str, Any], message: dict[str, Any]) -> None:
    event, name = message.pop("event"), message.get("variant")
    if event == "inputs":
        found.update(message)
    elif event == "chose":
        found["chose"] = message["text"]  # the last one counts: it learns in its first calls
    elif event == "warm":
        print(f"  {name:28} first {duration(message['first']):>8}, then {duration(message['last']):>8}", flush=True)
    elif event == "failed":
        print(f"  {name:28} {'left out' if message['why'] == 'not installed' else 'FAILED'}: {message['why']}")
        found["failed"][name] = message["why"]
    elif event == "result":
        found["variants"][name] = {key: message[key] for key in ("first", "warm", "times")}


# -------------------------------------------------------------------- the parts


def later_calls(names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for number, name in enumerate(names, 1):
        workload, begin = WORKLOADS[name], time.monotonic()
        print(f"{name} ({number} of {len(names)}): {workload.why}", flush=True)
        variants = [v for v in names_for(workload) if not options.variants or v in options.variants]
        sizes = (QUICK_SIZE, QUICK_NUMPY_SIZE) if options.quick else (None, None)
        job = Job(name, variants, 0 if options.quick else options.rounds, *sizes)
        # quick runs are tests, which share the machine with others
        found[name] = measure_workload(job, 5 * PATIENCE if options.quick else PATIENCE)
        if options.memory and workload.function is not None:
            found[name]["fresh"] = fresh(name, [v for v in FRESH if v in variants])
        if options.quick:
            print(f"  right: {', '.join(found[name]['variants']) or 'none'}")
        else:
            print(report.summary(found[name]))
        print(f"  {time.monotonic() - begin:.0f} s", flush=True)
    return found


def fresh(name: str, variants: list[str], size: int | None = None, patience: float = PATIENCE) -> dict[str, Any]:
    """First call and peak memory of each variant in a process of its own."""
    found = {}
    for variant in variants:
        try:
            for message in measured(Job(name, [variant], size=size, numpy_size=1, fresh=True), patience):
                if message["event"] == "fresh":
                    found[variant] = {key: message[key] for key in ("first", "peak")}
        except Lost as why:
            print(f"  {variant:28} FAILED: {why}", flush=True)
            continue
        first, peak = found[variant]["first"], found[variant]["peak"]
        print(f"  {variant:28} first {duration(first):>8} in a fresh process, {peak / 1e6:,.0f} MB", flush=True)
    return found


def whole_grid(names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name in names:
        workload, begin = WORKLOADS[name], time.monotonic()
        if workload.function is None:
            continue
        print(name, flush=True)
        found[name] = measure_workload(
            Job(name, ["auto", *grid(workload.size, usable_cores())], options.rounds, numpy_size=16, near=NEAR)
        )
        print(f"{report.grid_summary(found[name])}\n  {time.monotonic() - begin:.0f} s", flush=True)
    return found


def first_calls(names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Each variant once; then `auto` and the best by hand in turn."""
    found = {}
    for name in names:
        if name not in LARGER:
            continue
        size = WORKLOADS[name].size * LARGER[name]
        print(f"{name}, {size:,} items", flush=True)
        once = fresh(name, ["auto", *BY_HAND], size, patience=20.0)
        by_hand = [v for v in BY_HAND if v in once]
        if "auto" not in once or not by_hand:
            continue
        best = min(by_hand, key=lambda v: once[v]["first"])
        times: dict[str, list[float]] = {"auto": [], best: []}
        for _ in range(options.rounds):
            for variant, result in fresh(name, ["auto", best], size).items():
                times[variant].append(result["first"])
        found[name] = {"size": size, "best": best, "times": times}
        a, b = statistics.median(times["auto"]), statistics.median(times[best])
        print(f"  auto {duration(a)}, {best} {duration(b)}: {a / b:.2f} ×", flush=True)
    return found


def figures(script: str, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"figures": [], "failed": {}}
    for part in FIGURES[script]:
        print(part, flush=True)
        try:
            for message in child(f"{script}.py", part, str(options.rounds), patience=3 * PATIENCE):
                event = message.pop("event")
                if event == "figure":
                    found["figures"].append(message)
                    print(f"  {message['what']}: {message['value']:.3g}{message['unit']} (at most {message['aim']:g})")
                elif event == "done":
                    print(f"  {message['seconds']:.0f} s", flush=True)
        except Lost as why:
            print(f"  FAILED: {why}", flush=True)
            found["failed"][part] = str(why)
    return found


def facts() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cores": usable_cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "numpy", "jaxpar-magic")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; default all")
    parser.add_argument(
        "--rounds", type=int, default=FULL_ROUNDS, help="timed calls of each variant (default %(default)s)"
    )
    parser.add_argument("--variants", help="only these, separated by commas; see variants.py")
    parser.add_argument("--memory", action="store_true", help="first calls and peak memory in fresh processes, too")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, results checked, no times")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--grid", action="store_true", help="auto against every place and width")
    parts.add_argument("--first-calls", action="store_true", help="first calls on larger inputs")
    parts.add_argument("--long-runs", action="store_true", help="chunks, progress, checkpoints, memory, a cell again")
    parts.add_argument("--explanations", action="store_true", help="cards of errors; cells that do not fail")
    parts.add_argument("--report", action="store_true", help="measure nothing, write README.md")
    parser.add_argument("--readme", action="store_true", help="write README.md afterwards; needs all workloads")
    options = parser.parse_args()
    unknown = [w for w in options.workloads if w not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    options.variants = options.variants.split(",") if options.variants else []
    if set(options.variants) - set(ALL):
        parser.error(f"variants: {', '.join(ALL)}")
    partial = bool(options.workloads or options.variants or options.quick) or options.rounds < FULL_ROUNDS
    if options.readme and partial:
        parser.error(f"--readme needs all workloads and variants, and {FULL_ROUNDS} rounds")
    if options.report:
        report.write_readme()
        return 0

    names = options.workloads or list(WORKLOADS)
    begin = time.monotonic()
    if options.grid:
        found, part = whole_grid(names, options), "grid"
    elif options.first_calls:
        found, part = first_calls(names, options), "first_calls"
    elif options.long_runs or options.explanations:
        part = "long_runs" if options.long_runs else "explanations"
        found = figures(part, options)
    else:
        found, part = later_calls(names, options), "later_calls"
    if not options.quick:
        report.save(part, facts(), found, partial)
        if part == "later_calls":
            print("\n" + report.markdown(report.load(part, partial)))
        print(f"numbers in {report.path(part, partial)}")
    if options.readme:
        report.write_readme()
    print(f"{time.monotonic() - begin:.0f} s in all")
    measured_ones = {part: found} if part in FIGURES else found
    failed = [
        f"{w}: {v}"
        for w, one in measured_ones.items()
        for v, why in one.get("failed", {}).items()
        if why != "not installed"
    ]
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
