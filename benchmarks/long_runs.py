"""What long runs, bounds on memory and cells that are run again cost. A part in a process of its own; run by run.py.

    python benchmarks/long_runs.py cell 7

Each figure is a line of JSON: what, value, unit, and the aim that it ought not to exceed.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from measure import peak, resident_now, tell, timed
from variants import Context, build
from workloads import LV_STEPS, WORKLOADS, Workload, make_ode_rk4

CELL = """%%parmap sweep -o results {options}
def orbit(p):
    def change(y):
        return jnp.stack([p[0] * y[0] - p[1] * y[0] * y[1], -p[2] * y[1] + p[3] * y[0] * y[1]])

    def step(y, _):
        middle = y + 0.01 * change(y)
        return y + 0.02 * change(middle), None

    return jax.lax.scan(step, jnp.ones(2), None, length={steps})[0]
"""
CHUNK_SECONDS, CHUNKS = 0.5, 6
BOUND = 10**9
BOUND_ITEMS = 100_000
WIDTHS_BY_HAND = (1, 16, 64)


def figure(what: str, value: float, unit: str, aim: float) -> None:
    tell("figure", what=what, value=value, unit=unit, aim=aim)


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """In random order in each round, after one call of each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            tell("begin", variant=name)
            times[name].append(timed(calls[name])[0])
    return {name: statistics.median(t) for name, t in times.items()}


# -------------------------------------------------------------------- an unchanged cell, run again


def cell(rounds: int) -> None:
    """Compilations of a cell that is run again, and what the cell takes beyond its program."""
    import jax
    from IPython.core.interactiveshell import InteractiveShell

    compiled: list[str] = []

    def count(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "jaxpar_magic")
    sweep = make_ode_rk4(65_536)
    shell.push({"jax": jax, "jnp": jax.numpy, "sweep": sweep})

    def run(text: str) -> None:
        shell.run_cell(text).raise_error()
        jax.block_until_ready(shell.user_ns["results"])

    automatic = CELL.format(options="--quiet", steps=LV_STEPS)
    run(automatic)
    assert compiled, "the first run of a cell must count as compiling, or the counter is blind"
    for _ in range(5):  # it learns
        run(automatic)
    compiled.clear()
    for _ in range(rounds):
        run(automatic)
    figure("an unchanged cell, run again: compilations", float(len(compiled)), "", 0)

    fixed = CELL.format(options="--quiet -s shard_map -b 256", steps=LV_STEPS)
    run(fixed)
    workload = replace(WORKLOADS["ode_rk4"], function=shell.user_ns["orbit"])
    context = Context(workload, sweep, None, [], len(sweep), len(jax.devices()))
    by_hand = build("devices, width 256", context)
    took = medians({"cell": lambda: run(fixed), "by hand": by_hand.call}, rounds)
    figure("… what it takes beyond the same program by hand", (took["cell"] - took["by hand"]) * 1e3, " ms", 30)


# -------------------------------------------------------------------- chunks, progress, checkpoint


def chunks(rounds: int) -> None:
    """The same map at once, in chunks of half a second, with progress, with a checkpoint."""
    from jaxpar_magic.magics.progress import TerminalDisplay
    from jaxpar_magic.mapping.api import run
    from jaxpar_magic.mapping.options import MapOptions

    function = WORKLOADS["ode_rk4"].function
    assert function is not None
    seconds = min(timed(lambda: _map(function, make_ode_rk4(65_536)))[0] for _ in range(3))
    size = max(512, int(65_536 * CHUNK_SECONDS / seconds) // 512 * 512)
    inputs = make_ode_rk4(CHUNKS * size)

    def map_with(**options: Any) -> Any:
        display = options.pop("display", None)
        chosen = MapOptions(strategy="shard_map", batch_size=256, **options)
        return run(function, [inputs], {}, chosen, display=display)

    def with_checkpoint() -> None:
        with tempfile.TemporaryDirectory() as folder:
            map_with(chunk_size=size, checkpoint=os.path.join(folder, "saved"))

    took = medians(
        {
            "at once": lambda: map_with(chunk_size=len(inputs)),
            "chunks": lambda: map_with(chunk_size=size),
            "progress": lambda: map_with(chunk_size=size, display=TerminalDisplay),
            "checkpoint": with_checkpoint,
        },
        rounds,
    )
    for name, what in (
        ("chunks", "chunks of half a second: added"),
        ("progress", "… with progress"),
        ("checkpoint", "… with a checkpoint"),
    ):
        figure(what, (took[name] / took["at once"] - 1) * 100, " %", 3)


def _map(function: Callable, inputs: np.ndarray) -> Any:
    import jax

    from jaxpar_magic import parmap

    return jax.block_until_ready(parmap(function, inputs, strategy="shard_map", batch_size=256))


# -------------------------------------------------------------------- a bound on memory


def features(pitch):
    """The strongest of eight features of a sound of 65,536 samples, which stand in memory: 262 kB."""
    import jax.numpy as jnp

    # no FFT: on JAX's CPU backend one that runs beside another may wait for it for ever
    wave = (pitch * jnp.arange(65_536, dtype=jnp.float32)) % 1.0
    patterns = jnp.sin(jnp.arange(256 * 8, dtype=jnp.float32)).reshape(256, 8)
    return jnp.abs(wave.reshape(256, 256) @ patterns).sum(0).max()


def memory(rounds: int) -> None:
    """A map whose `vmap` needs over 20 GB, under a bound of 1 GB."""
    import jax

    from jaxpar_magic import parmap

    inputs = np.linspace(0.1, 1.0, BOUND_ITEMS, dtype=np.float32)
    whole = jax.jit(jax.vmap(features)).lower(inputs).compile().memory_analysis().temp_size_in_bytes
    assert whole > 20e9, f"vmap needs {whole / 1e9:.1f} GB only"

    def bounded() -> Any:
        return jax.block_until_ready(parmap(features, inputs, memory=BOUND))

    before = resident_now()
    bounded()
    figure(
        f"peak memory under a bound of 1 GB, where vmap needs {whole / 1e9:.0f} GB", (peak() - before) / 1e9, " GB", 1
    )
    for _ in range(4):  # it learns
        tell("begin", variant="bounded")
        bounded()
    workload = Workload("", features, features, lambda n: inputs, BOUND_ITEMS, 1)
    context = Context(workload, inputs, None, [], BOUND_ITEMS, len(jax.devices()))
    by_hand = {f"width {w}": build(f"devices, width {w}", context).call for w in WIDTHS_BY_HAND}
    took = medians({"bounded": bounded, **by_hand}, rounds)
    figure("… time / best width by hand", took["bounded"] / min(took[name] for name in by_hand), " ×", 1.05)


PARTS = {"cell": cell, "chunks": chunks, "memory": memory}

if __name__ == "__main__":
    begin = time.monotonic()
    PARTS[sys.argv[1]](int(sys.argv[2]))
    tell("done", seconds=time.monotonic() - begin)
    sys.stdout.flush()
    os._exit(0)
