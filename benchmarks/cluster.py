"""What a cluster costs against one process, how fast bytes go through the notebook, and how many engines it can feed.

    python benchmarks/cluster.py [--rounds 7] [--engines 2] [--part chunks|large|bytes|feed]

Run it on a machine that does nothing else. Every result is checked. `feed` measures what a piece of work and a byte
cost the notebook, checks a simulation with these figures against light engines, and then asks the simulation about up
to 1,000 engines, which no single machine could show.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar_magic import cluster, parmap
from jaxpar_magic.cluster import maps

CHUNK_SECONDS, CHUNKS = 0.5, 6  # for each engine
LARGE = (1_000_000, 16)  # float32: 64 MB in, 64 MB out
ENGINES = (1, 2, 8, 32, 100, 300, 1000)
PIECES = (0.1, 1.0, 10.0)  # seconds that an engine takes for a piece
ITEM_BYTES = (8, 1_000, 100_000, 10_000_000)
LIGHT_ENGINES, LIGHT_SECONDS, LIGHT_PIECES = 8, 0.04, 400

STEPS = 1000


def orbit(y0):
    """Work without memory: as many steps as are asked for by `STEPS`."""

    def step(y, _):
        return y + 1e-3 * jnp.stack([y[1], -jnp.sin(y[0])]), None

    return jax.lax.scan(step, y0, None, length=STEPS)[0]


def plus_one(row):
    return row + 1


def figure(what: str, value: float, unit: str, aim: float | None = None) -> None:
    """A line for people, and the same for programs."""
    verdict = "" if aim is None else f"   (aim: at most {aim:g}{unit})"
    print(f"{what:<76} {value:8.3g}{unit}{verdict}", flush=True)
    results.append({"what": what, "value": value, "unit": unit, "aim": aim})


results: list[dict[str, Any]] = []


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


# -------------------------------------------------------------------- one process beside it


class OneProcess:
    """The same maps in a process with as many devices as the cluster has engines."""

    def __init__(self, devices: int):
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(2 * devices + 1)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **request: Any) -> float:
        """Seconds of one map."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        print(run_map(strategy="auto", **request), flush=True)


def run_map(kind: str, strategy: str, items: int = 0, chunk: int | None = None, steps: int = 0) -> float:
    """Seconds of one map, whose result is right."""
    global STEPS
    if kind == "large":
        xs = large()
        begin = time.perf_counter()
        result = jax.block_until_ready(parmap(plus_one, xs, strategy=strategy))
        took = time.perf_counter() - begin
        assert np.array_equal(result, xs + 1)
        return took
    STEPS = steps
    # in no order: some orbits take twice as long as others, and the chunks are to be equal
    xs = np.random.default_rng(0).permutation(np.linspace(0, 1, 2 * items, dtype=np.float32)).reshape(items, 2)
    begin = time.perf_counter()
    result = jax.block_until_ready(parmap(orbit, xs, strategy=strategy, chunk_size=chunk))
    took = time.perf_counter() - begin
    few = np.linspace(0, items - 1, 5).astype(int)
    np.testing.assert_allclose(np.asarray(result)[few], jax.vmap(orbit)(xs[few]), rtol=1e-4, atol=1e-5)
    return took


_large: list[np.ndarray] = []


def large() -> np.ndarray:
    if not _large:
        _large.append(np.arange(LARGE[0] * LARGE[1], dtype=np.float32).reshape(LARGE))
    return _large[0]


# -------------------------------------------------------------------- overhead


def chunks(rounds: int, engines: int) -> None:
    """Chunks of half a second, inputs of a few MB."""
    per_chunk = 40_000
    items = per_chunk * CHUNKS * engines  # 8 bytes each
    one = OneProcess(engines)
    steps = 200
    one.ask(kind="chunks", items=items, chunk=per_chunk * engines, steps=steps)
    each = one.ask(kind="chunks", items=items, chunk=per_chunk * engines, steps=steps) / CHUNKS
    steps = max(1, int(steps * CHUNK_SECONDS / each))
    for _ in range(2):
        one.ask(kind="chunks", items=items, chunk=per_chunk * engines, steps=steps)
        run_map("chunks", "cluster", items, per_chunk, steps)
    pairs = []
    for _ in range(rounds):
        there = run_map("chunks", "cluster", items, per_chunk, steps)
        here = one.ask(kind="chunks", items=items, chunk=per_chunk * engines, steps=steps)
        pairs.append((there, here))
    one.close()
    took = statistics.median(here for _, here in pairs) / CHUNKS
    what = f"{items * 8 / 1e6:.1f} MB in {CHUNKS * engines} chunks of {took:.2f} s"
    figure(f"{what}: cluster / one process", statistics.median(t / h for t, h in pairs), " ×", 1.15)


def large_map(rounds: int, engines: int) -> None:
    """64 MB in and out, next to nothing computed: through shared memory, and as messages."""
    one = OneProcess(engines)
    current = cluster.current()
    took: dict[str, list[float]] = {"one process": [], "shared memory": [], "messages": []}
    for k in range(rounds + 3):
        round_ = {
            "one process": one.ask(kind="large"),
            "shared memory": run_map("large", "cluster"),
        }
        current.here = lambda engine: False  # type: ignore[method-assign]
        round_["messages"] = run_map("large", "cluster")
        del current.here
        if k >= 3:
            for name, value in round_.items():
                took[name].append(value)
    one.close()
    for name, values in took.items():
        figure(f"64 MB in and out, {name}", statistics.median(values), " s")
    ratios = [a / b for a, b in zip(took["shared memory"], took["one process"])]
    figure("64 MB in and out, shared memory / one process", statistics.median(ratios), " ×", 3.0)
    ratios = [a / b for a, b in zip(took["messages"], took["one process"])]
    figure("64 MB in and out, messages / one process", statistics.median(ratios), " ×")
    figure(
        "bytes through the notebook, in messages",
        2 * large().nbytes / statistics.median(took["messages"]) / 1e6,
        " MB/s",
    )


def plain_socket(rounds: int, engines: int) -> None:
    """The same bytes there and back through a loopback socket, without anything else."""
    data = large().tobytes()
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = server.accept()
        held = bytearray(len(data))
        for _ in range(rounds + 1):
            receive(connection, held)
            connection.sendall(held)

    def receive(connection: socket.socket, into: bytearray) -> None:
        rest = memoryview(into)
        while rest:
            rest = rest[connection.recv_into(rest) :]

    threading.Thread(target=echo, daemon=True).start()
    back = bytearray(len(data))
    with socket.create_connection(server.getsockname()) as connection:

        def there_and_back() -> None:
            connection.sendall(data)
            receive(connection, back)

        there_and_back()
        took = statistics.median(seconds(there_and_back) for _ in range(rounds))
    assert back == data
    figure("bytes through a plain loopback socket, there and back", 2 * len(data) / took / 1e6, " MB/s")


# -------------------------------------------------------------------- how many engines


@dataclass(frozen=True)
class Costs:
    """What the notebook spends: seconds for a piece, and for a byte of it in a message; `latency` of a message."""

    piece: float
    byte: float
    latency: float


def simulate(engines: int, pieces: int, work: float, notebook: float, latency: float) -> float:
    """Seconds of a map: engines take `work` for a piece, the notebook `notebook`. Each engine has two at most."""
    clock = 0.0  # of the notebook, which does one thing at a time
    left, answers = pieces, [(0.0, e) for e in range(engines)] * 2
    free = [0.0] * engines
    heapq.heapify(answers)
    end = 0.0
    while answers:
        at, engine = heapq.heappop(answers)
        clock = max(clock, at)
        if not left:
            end = max(end, clock)
            continue
        left -= 1
        clock += notebook
        begin = max(free[engine], clock + latency)
        free[engine] = begin + work
        heapq.heappush(answers, (free[engine] + latency, engine))
    return end


def measured_costs(engines: int, rounds: int) -> Costs:
    """From maps of Python items that do nothing, one in a piece, and of arrays in messages (bytes)."""
    names = [str(i) for i in range(400)]
    busy: list[float] = []
    for _ in range(rounds):
        cpu = time.process_time()
        parmap(str.upper, names, strategy="cluster", chunk_size=len(names))
        single = time.process_time() - cpu
        cpu = time.process_time()
        parmap(str.upper, names, strategy="cluster", chunk_size=1)
        busy.append((time.process_time() - cpu - single) / len(names))
    piece = statistics.median(busy)
    current = cluster.current()
    view = current.client[current.engines[0].id]
    latency = statistics.median(seconds(lambda: view.apply_sync(abs, 1)) for _ in range(50)) / 2
    current.here = lambda engine: False  # type: ignore[method-assign]
    spent = []
    for k in range(rounds + 1):
        cpu = time.process_time()
        run_map("large", "cluster")
        if k:
            spent.append(time.process_time() - cpu)
    # its own check of the result is not the map's
    check = time.process_time()
    assert np.array_equal(large() + 1, large() + 1)
    check = time.process_time() - check
    del current.here
    return Costs(piece, max(0.0, statistics.median(spent) - check) / (2 * large().nbytes), latency)


def sleeping(text):
    time.sleep(LIGHT_SECONDS)
    return text


def feed(rounds: int, engines: int) -> None:
    maps._Items.most_chunks = 1  # else quick ones go together
    costs = measured_costs(engines, rounds)
    figure("the notebook spends on a piece", costs.piece * 1e3, " ms")
    figure("the notebook spends on a byte in a message", costs.byte * 1e9, " ns")
    cluster.stop()
    cluster.start(LIGHT_ENGINES)
    names = [str(i) for i in range(LIGHT_PIECES)]
    took = min(seconds(lambda: parmap(sleeping, names, strategy="cluster", chunk_size=1)) for _ in range(3))
    light = simulate(LIGHT_ENGINES, LIGHT_PIECES, LIGHT_SECONDS, costs.piece, costs.latency)
    figure(f"{LIGHT_ENGINES} light engines, {LIGHT_PIECES} pieces of {LIGHT_SECONDS} s: measured", took, " s")
    figure("… simulated / measured", light / took, " ×")
    print("\nItems per second that the notebook can feed, however many engines (pieces of 1 MB, at least 1 item):")
    print(f"{'item':>12} {'in messages':>16} {'as references':>16}")
    for size in ITEM_BYTES:
        items = max(1, 1_000_000 // size)
        inline = items / (costs.piece + 2 * items * size * costs.byte)
        reference = items / (costs.piece + items * size * costs.byte)  # only the results come back
        none = items / costs.piece  # results, too, are written by the engines
        print(f"{size:>10} B {inline:>14,.0f}/s {reference:>14,.0f}/s   nothing but references: {none:,.0f}/s")
    print("\nShare of the ideal (simulated; pieces of 1 MB in messages, or references only):")
    print(f"{'engines':>8}" + "".join(f"{f'{s:g} s a piece':>24}" for s in PIECES))
    for count in ENGINES:
        row = f"{count:>8}"
        for work in PIECES:
            shares = []
            for notebook in (costs.piece + 2e6 * costs.byte, costs.piece):
                pieces = 40 * count
                shares.append(pieces * work / count / simulate(count, pieces, work, notebook, costs.latency))
            row += f"{f'{shares[0]:.0%} / {shares[1]:.0%}':>24}"
        print(row)
    for work in PIECES:
        inline, reference = (work / n for n in (costs.piece + 2e6 * costs.byte, costs.piece))
        figure(f"engines fed with pieces of {work:g} s and 1 MB in messages", inline, "")
        figure(f"engines fed with pieces of {work:g} s by reference", reference, "")


PARTS = {"chunks": chunks, "large": large_map, "bytes": plain_socket, "feed": feed}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--engines", type=int, default=2)
    options.add_argument("--part", choices=PARTS)
    options.add_argument("--out", help="a file for the figures as JSON")
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("JAXPAR_CACHE_DIR", folder)
        cluster.start(given.engines)
        try:
            for name, part in PARTS.items():
                if given.part in (None, name):
                    part(given.rounds, given.engines)
        finally:
            cluster.stop()
    if given.out:
        Path(given.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
