"""SPMD maps on more engines and devices than the other tests have. Slow."""

from __future__ import annotations

import jax
import pytest
from conftest import run_python

pytestmark = pytest.mark.slow

PRELUDE = """
import os, signal, threading, warnings
import jax, jax.numpy as jnp, numpy as np
from jaxpar_magic import cluster as clusters, last_report, parmap
from jaxpar_magic.cluster import engine_spmd, mesh
from jaxpar_magic.errors import ClusterError

def spmd(f, *xs, **options):
    return parmap(f, *xs, strategy="cluster", spmd=True, **options)

def several(x, k):
    n = jax.lax.psum(1, "items")
    return {
        "centred": x - jax.lax.pmean(x, "items"),
        "index": jax.lax.axis_index("items"),
        "all": jax.lax.all_gather(x.sum(), "items"),
        "next": jax.lax.ppermute(x, "items", [(i, (i + 1) % n) for i in range(n)]),
        "root": jnp.linalg.cholesky(jnp.outer(x, x) + 3 * jnp.eye(3)),
        "steps": jax.lax.fori_loop(0, 3, lambda _, a: 0.5 * a + jax.lax.pmean(a, "items"), x @ k),
    }

def check(lengths):
    for length in lengths:
        xs = np.random.default_rng(length).normal(size=(length, 3)).astype(np.float32)
        k = np.arange(9, dtype=np.float32).reshape(3, 3) / 9
        ours = spmd(several, xs, k, in_axes=(0, None))
        theirs = jax.jit(jax.vmap(several, in_axes=(0, None), axis_name="items"))(xs, k)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), ours, theirs)
        maximum = spmd(lambda x: jax.lax.pmax(x, "items"), spmd(lambda x: 2 * x, xs, keep_sharded=True))
        np.testing.assert_array_equal(maximum, np.broadcast_to(2 * xs.max(axis=0), xs.shape))

def endless(x):
    return jax.lax.while_loop(lambda c: c > -1, lambda c: jax.lax.pmax(c, "items") * 0.5, jnp.abs(x))

def while_running(act):
    original = mesh.ask_all
    def ask_all(cluster, engines, called, arguments, check, seconds=None):
        looks = iter(range(10**9))
        def checked():
            check()
            if called is engine_spmd.run and next(looks) == 10:
                mesh.ask_all = original
                act()
        return original(cluster, engines, called, arguments, checked, seconds)
    mesh.ask_all = ask_all

def signalled(rank, number):
    engine = clusters.current().engines[rank]
    while_running(lambda: os.kill(engine.pid, number))
    try:
        spmd(endless, np.ones(9, np.float32))
    except ClusterError as error:
        return str(error)
"""


def run(code: str, timeout: float = 300) -> str:
    return run_python(PRELUDE + code, timeout=timeout).stdout


def test_four_engines_of_two_devices():
    done = run(
        """
clusters.start(4, devices_per_engine=2)
check([1, 3, 8, 13, 1000])
print(last_report().line())
for rank in (0, 3):
    print(signalled(rank, signal.SIGKILL))
    check([13])
print(parmap(lambda x: 2 * x, np.arange(5), strategy="cluster").tolist())
check([13])
clusters.stop()
"""
    )
    assert "cluster spmd on 4 engines × 2 devices" in done
    assert done.count("ended during an SPMD program: killed") == 2
    assert "[0, 2, 4, 6, 8]" in done


def test_one_engine():
    run("clusters.start(1, devices_per_engine=3)\ncheck([1, 4, 6])\nclusters.stop()")


@pytest.mark.skipif(
    jax.__version_info__ < (0, 7), reason="JAX 0.6 takes 100 s to miss a process, and no setting for it"
)
def test_an_engine_that_is_stopped_ends_the_program():
    done = run(
        """
clusters.start(2)
check([5])
print(signalled(1, signal.SIGSTOP))
check([5])
clusters.stop()
"""
    )
    assert "is stopped (SIGSTOP, a debugger), and JAX ends all when one gives no sign of life" in done
