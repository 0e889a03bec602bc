"""What `parmap` adds to the hand-written program: second calls, in one process, in random order.

    JAX_NUM_CPU_DEVICES=2 python benchmarks/overhead.py

Compares `parmap(f, xs, strategy="shard_map")` with `jax.jit(jax.shard_map(jax.vmap(f)))` called on the same numpy
array, once on work of 50 ms and more and once on a tiny function. Both are timed from the call until the result is
ready; compiling is not in. Results are checked to be equal before anything is timed.
"""

from __future__ import annotations

import random
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar_magic import parmap

ROUNDS = 41


def ode(p):
    """Lotka-Volterra by RK4, 1,000 steps: a small sequential item."""

    def rhs(y):
        return jnp.stack([p[0] * y[0] - p[1] * y[0] * y[1], -p[2] * y[1] + p[3] * y[0] * y[1]])

    def step(y, _):
        h = 0.02
        k1 = rhs(y)
        k2 = rhs(y + h / 2 * k1)
        k3 = rhs(y + h / 2 * k2)
        k4 = rhs(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(step, jnp.array([1.0, 1.0]), None, length=1000)[0]


def tiny(x):
    return x * x + 1.0


def by_hand(function):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("devices",))
    spec = jax.sharding.PartitionSpec("devices")
    mapped = jax.shard_map(jax.vmap(function), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped)


def compare(name, function, inputs):
    hand = by_hand(function)

    def ours():
        return jax.block_until_ready(parmap(function, inputs, strategy="shard_map"))

    def theirs():
        return jax.block_until_ready(hand(inputs))

    np.testing.assert_allclose(np.asarray(ours()), np.asarray(theirs()), rtol=1e-6)
    times = {ours: [], theirs: []}
    for _ in range(ROUNDS):
        # in random order: what runs second finds warm caches, or threads of the first that still spin
        for call in random.sample(list(times), 2):
            begin = time.perf_counter()
            call()
            times[call].append(time.perf_counter() - begin)
    a, b = statistics.median(times[ours]), statistics.median(times[theirs])
    print(
        f"{name:28} by hand {b * 1e3:8.3f} ms   parmap {a * 1e3:8.3f} ms   "
        f"ratio {a / b:5.3f}   added {(a - b) * 1e3:7.3f} ms"
    )


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    print(f"{len(jax.devices())} devices, JAX {jax.__version__}, median of {ROUNDS}")
    sweep = rng.uniform([0.8, 0.5, 0.8, 0.4], [1.4, 1.1, 1.6, 0.9], (65_536, 4)).astype(np.float32)
    compare("ODE sweep, 65,536 items", ode, sweep)
    compare("tiny function, 1,000 items", tiny, np.arange(1000, dtype=np.float32))
