"""SPMD maps: one program over all engines. Two engines with a device each; more of both in test_spmd_more.py."""

from __future__ import annotations

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from jaxpar_magic import cluster as clusters
from jaxpar_magic import last_report, parmap
from jaxpar_magic.cluster import engine_spmd, mesh
from jaxpar_magic.cluster.arrays import ClusterArray
from jaxpar_magic.errors import ClusterError, InputError, JaxparError, MapTimeout, OptionError, UnsupportedError

XS = np.linspace(-1.0, 2.0, 7, dtype=np.float32)


def spmd(function, *inputs, **options):
    return parmap(function, *inputs, strategy="cluster", spmd=True, **options)


def local(function, *inputs, in_axes=0):
    return jax.jit(jax.vmap(function, in_axes=in_axes, axis_name="items"))(*inputs)


def same(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6), one, other)
    shapes = [jax.tree.map(lambda a: (a.shape, a.dtype), tree) for tree in (one, other)]
    assert shapes[0] == shapes[1]


def endless(x):
    """Every engine waits for the others in every step, and there is no last one."""
    return jax.lax.while_loop(lambda c: c > -1, lambda c: jax.lax.pmax(c, "items") * 0.5, jnp.abs(x))


def endless_alone(x):
    return jax.lax.while_loop(lambda c: c > -1, lambda c: c * 0.5, jnp.abs(x))


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def right_again(cluster):
    """The next program has right numbers, on as many engines as before."""
    same(spmd(lambda x: jax.lax.psum(x, "items") - x, XS), local(lambda x: jax.lax.psum(x, "items") - x, XS))
    assert len(cluster.engines) == 2


# -------------------------------------------------------------------- numbers


def several(x, k):
    n = jax.lax.psum(1, "items")
    return {
        "centred": x - jax.lax.pmean(x, "items"),
        "extremes": (jax.lax.pmax(x, "items"), jax.lax.pmin(x, "items")),
        "index": jax.lax.axis_index("items"),
        "all": jax.lax.all_gather(x.sum(), "items"),
        "next": jax.lax.ppermute(x, "items", [(i, (i + 1) % n) for i in range(n)]),
        "shared": x @ k,
        "root": jnp.linalg.cholesky(jnp.outer(x, x) + 3 * jnp.eye(3)),
        "loop": jax.lax.while_loop(lambda c: jnp.abs(c).max() < 9, lambda c: 1.5 * c + 0.1, x),
        "steps": jax.lax.fori_loop(0, 3, lambda _, a: 0.5 * a + jax.lax.pmean(a, "items"), x),
        "constant": 1.5,
        "flag": x > 0,
    }


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_collectives_see_all_items_and_nothing_else(cluster, length):
    xs = np.random.default_rng(length).normal(size=(length, 3)).astype(np.float32)
    k = np.arange(6, dtype=np.float32).reshape(3, 2)
    same(spmd(several, xs, k, in_axes=(0, None)), local(several, xs, k, in_axes=(0, None)))
    assert last_report().line().startswith(f"parmap several: cluster spmd on 2 engines × 1 device, {length} item")


def test_large_arrays_and_other_types(cluster):
    big = np.random.default_rng(0).normal(size=(1001, 300)).astype(np.float32)  # through shared memory

    def f(x, i):
        return x - jax.lax.pmean(x, "items"), (i * 2).astype(jnp.bfloat16), (i > 3) & (x[0] > 0)

    ints = np.arange(1001, dtype=np.int16)
    same(spmd(f, big, ints), local(f, big, ints))


def test_a_program_is_compiled_once(cluster):
    def again():
        return spmd(lambda x: jax.lax.psum(2 * x, "items"), XS)

    again(), again()
    assert last_report().reused
    same(again(), local(lambda x: jax.lax.psum(2 * x, "items"), XS))


def test_what_a_function_captures_is_of_now(cluster):
    table = np.full(3000, 2.0, np.float32)  # large enough to be an argument of the program

    def f(x):
        return scale * x + table[0]

    for scale in (2.0, 3.0):
        table[:] = scale
        same(spmd(f, XS), jnp.asarray(scale * XS + scale))


def test_lists_pytrees_keys_and_files(cluster, tmp_path):
    items = [{"a": i, "b": (float(i), [1.0, 2.0])} for i in range(5)]
    total = spmd(lambda d: jax.lax.psum(d["a"] * d["b"][1].sum(), "items"), items)
    assert total.tolist() == [30.0] * 5
    noise = spmd(lambda x, key: x + jax.random.normal(key), XS, key=3)
    same(noise, parmap(lambda x, key: x + jax.random.normal(key), XS, key=3))
    np.save(tmp_path / "x.npy", XS.astype(np.float64))  # which JAX has as float32
    same(spmd(lambda x: jax.lax.pmax(x, "items"), input_file=tmp_path / "x.npy"), np.full(7, XS.max()))


def test_notes_and_checks_are_those_of_a_local_map(cluster):
    with pytest.warns(UserWarning, match="float64 computed as float32"):
        spmd(lambda x: jnp.log(x), XS.astype(np.float64), check="finite")
    assert [item.index for item in last_report().not_finite] == [0, 1, 2]


# -------------------------------------------------------------------- results that stay


def test_kept_arrays_feed_the_next_program(cluster):
    squares, index = spmd(lambda x: (x * x, jax.lax.axis_index("items")), XS, keep_sharded=True)
    assert isinstance(squares, ClusterArray) and squares.shape == (7,) and squares.dtype == np.float32
    assert repr(squares) == "ClusterArray(float32[7] on 2 engines × 1 device)"
    total = spmd(lambda s, i: jax.lax.psum(s, "items") + i, squares, index)
    assert squares._host is None, "it has travelled"
    same(total, (XS * XS).sum() + np.arange(7, dtype=np.float32))
    same(squares.gather(), jnp.asarray(XS * XS))
    assert np.asarray(index).tolist() == index[:].tolist() == list(range(7))


def test_kept_arrays_outlive_a_map_but_not_their_mesh(cluster, while_running):
    kept = spmd(lambda x: x + 1, XS, keep_sharded=True)
    same(parmap(lambda x: 2 * x, XS, strategy="cluster"), jnp.asarray(2 * XS))
    other = spmd(lambda x: x + 1, XS, keep_sharded=True)
    same(kept.gather(), jnp.asarray(XS + 1))
    while_running(interrupt)
    with pytest.raises(KeyboardInterrupt):
        spmd(endless, XS)
    right_again(cluster)
    with pytest.raises(ClusterError, match=r"float32\[7\].* is gone: the mesh that held it has ended"):
        other.gather()
    with pytest.raises(ClusterError, match="is gone"):
        spmd(lambda x: x, other)
    same(kept.gather(), jnp.asarray(XS + 1))  # gathered before
    right_again(cluster)


def test_engines_forget_what_nobody_keeps(cluster):
    kept = spmd(lambda x: x + 1, XS, keep_sharded=True)
    other = spmd(lambda x: x + 2, XS, keep_sharded=True)
    name = kept.name
    del kept
    right_again(cluster)
    left = cluster.client[cluster.engines[0].id].apply_sync(_kept_names)
    assert other.name in left and name not in left


def _kept_names():
    from jaxpar_magic.cluster import engine_spmd

    return list(engine_spmd._mesh.kept)


# -------------------------------------------------------------------- maps on the same engines


def test_maps_and_spmd_programs_take_turns(cluster):
    for _ in range(2):
        same(parmap(lambda x: 2 * x, XS, strategy="cluster"), jnp.asarray(2 * XS))
        right_again(cluster)


@pytest.mark.slow
def test_a_map_after_a_program_survives_a_death(cluster):
    right_again(cluster)
    os.kill(cluster.engines[0].pid, signal.SIGKILL)
    same(parmap(lambda x: 2 * x, XS, strategy="cluster"), jnp.asarray(2 * XS))
    right_again(cluster)


def test_another_notebook_is_refused(cluster, monkeypatch):
    mesh.give_up(cluster)
    theirs = {"name": "other", "host": "elsewhere", "pid": 7}
    monkeypatch.setattr(engine_spmd, "notebooks", lambda: [{"name": "other", "host": "elsewhere", "pid": 7}])
    with pytest.raises(ClusterError, match=rf"another notebook \(process 7 on {theirs['host']}\)"):
        spmd(lambda x: x, XS)


# -------------------------------------------------------------------- trouble


@pytest.mark.parametrize("program", [endless, pytest.param(endless_alone, marks=pytest.mark.slow)])
def test_an_interrupt_ends_the_program(cluster, while_running, program):
    while_running(interrupt)
    with pytest.raises(KeyboardInterrupt):
        spmd(program, XS)
    right_again(cluster)


@pytest.mark.slow
def test_a_time_limit_ends_the_program(cluster):
    with pytest.raises(MapTimeout, match="timeout=1: stopped while") as caught:
        spmd(endless, XS, timeout=1)
    assert caught.value.next_step == "a larger timeout; nothing of the result is kept"
    right_again(cluster)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_engine_ends_the_program(cluster, while_running, rank):
    right_again(cluster)
    engine = cluster.engines[rank]
    while_running(lambda: os.kill(engine.pid, signal.SIGKILL))
    with pytest.raises(ClusterError) as caught:
        spmd(endless, XS)
    message = str(caught.value)
    assert "ended during an SPMD program" in message and "engines are started anew" in message
    right_again(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_engine_ends_a_gather(cluster, while_running, rank):
    kept = spmd(lambda x: x + 1, XS, keep_sharded=True)
    engine = cluster.engines[rank]
    os.kill(engine.pid, signal.SIGSTOP)  # so that it has not answered yet
    while_running(lambda: os.kill(engine.pid, signal.SIGKILL), engine_spmd.rows)
    with pytest.raises(ClusterError, match=f"engine {engine.id} .*ended during an SPMD program"):
        kept.gather()
    right_again(cluster)


def test_an_engine_killed_between_programs_is_replaced(cluster):
    right_again(cluster)
    cluster.kill([cluster.engines[1].id])
    right_again(cluster)


@pytest.mark.slow
def test_an_engine_killed_while_the_mesh_is_made(cluster, while_running):
    mesh.give_up(cluster)
    engine = cluster.engines[1]
    os.kill(engine.pid, signal.SIGSTOP)
    while_running(lambda: os.kill(engine.pid, signal.SIGKILL), engine_spmd.notebooks)
    with pytest.raises(ClusterError, match="ended during"):
        spmd(lambda x: x, XS)
    right_again(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("looks", [0, 3, 10])
def test_an_interrupt_while_the_mesh_is_made(cluster, while_running, looks):
    right_again(cluster)
    mesh.give_up(cluster)
    while_running(interrupt, engine_spmd.join, looks)
    try:
        spmd(lambda x: x, XS)
    except KeyboardInterrupt:
        pass  # unless it was made before
    right_again(cluster)


def test_engines_listen_on_loopback_only(cluster):
    right_again(cluster)
    for engine in cluster.engines:
        listening = [c.laddr.ip for c in psutil.Process(engine.pid).net_connections("tcp") if c.status == "LISTEN"]
        assert listening and {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_an_exception_on_an_engine_is_raised_here(cluster):
    right_again(cluster)
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(FloatingPointError, match="NaN or inf in a result") as caught:
            spmd(lambda x: jnp.log(x) + jax.lax.psum(x, "items"), XS)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert any("on engine" in note and "in an SPMD program" in note for note in caught.value.__notes__)
    right_again(cluster)


def test_settings_are_those_of_now(cluster):
    jax.config.update("jax_enable_x64", True)
    try:
        xs = np.linspace(0, 1, 5)
        done = spmd(lambda x: x - jax.lax.pmean(x, "items"), xs)
        assert done.dtype == np.float64
        np.testing.assert_allclose(done, xs - xs.mean(), atol=1e-15)
    finally:
        jax.config.update("jax_enable_x64", False)
    right_again(cluster)


def test_errors_of_the_function_are_raised_here_before_anything_runs(cluster):
    with pytest.raises(TypeError) as caught:
        spmd(lambda x: jnp.zeros(3) + jnp.zeros(4) + x, XS)
    assert any(frame.name == "<lambda>" for frame in caught.traceback)
    with pytest.raises(NameError, match="rows"):
        spmd(lambda x: jax.lax.psum(x, "rows"), XS)
    with pytest.raises(UnsupportedError, match="calls back to Python"):
        spmd(lambda x: jax.debug.print("{}", x), XS)
    with pytest.raises(InputError, match="returned a str"):
        spmd(lambda x: "text", XS)
    with pytest.raises(InputError, match="items have 2 shapes"):
        spmd(lambda x: x, [np.zeros(2), np.zeros(3)])
    with pytest.raises(InputError, match="no items"):
        spmd(lambda x: x, XS[:0])
    with pytest.raises(UnsupportedError, match="PRNG keys"):
        spmd(lambda x, key: key, XS, key=0, keep_sharded=True)


# -------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [
        {"devices": 1},
        {"batch_size": 2},
        {"chunk_size": 2},
        {"out_axes": None},
        {"remainder": "drop"},
        {"on_error": "skip"},
        {"checkpoint": "folder"},
        {"resume": True},
        {"memory": "1GB"},
        {"out_file": "y.npy"},
        {"compare": True},
        {"show": "code"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(OptionError) as caught:
        spmd(lambda x: x, XS, **options)
    (name,) = options
    assert caught.value.argument == name and str(caught.value).startswith(f"{name} and spmd do not go together: ")
    assert "\n" not in str(caught.value)


def test_spmd_needs_the_cluster():
    with pytest.raises(OptionError, match="spmd: one program over all engines"):
        parmap(lambda x: x, XS, spmd=True)
    with pytest.raises(OptionError, match="keep_sharded: only"):
        parmap(lambda x: x, XS, strategy="cluster", keep_sharded=True)
    with pytest.raises(OptionError, match="check and keep_sharded"):
        spmd(lambda x: x, XS, keep_sharded=True, check="finite")


def test_the_magic(cluster, shell):
    from jaxpar_magic.magics import extension

    extension.load(shell)
    shell.user_ns.update(xs=XS, jax=jax)
    cell = "def centred(x):\n    return x - jax.lax.pmean(x, 'items')"
    shell.run_cell("%config JaxparMagics.devices = 1")  # a default, not a wish
    shell.run_cell(f"%%parmap xs -s cluster --spmd --keep-sharded -q -o ys\n{cell}").raise_error()
    assert isinstance(shell.user_ns["ys"], ClusterArray)
    shell.run_cell("zs = %parmap centred ys -s cluster --spmd").raise_error()
    same(shell.user_ns["zs"], local(lambda x: x - jax.lax.pmean(x, "items"), XS - XS.mean()))


def test_rows_are_shared_out_as_jax_does():
    one = mesh.Mesh.__new__(mesh.Mesh)
    for devices in ([1, 1], [2, 2], [3, 1, 2]):
        one.devices = devices
        for length in range(1, 20):
            rows = one.rows(length)
            assert [begin for begin, _ in rows] == [0, *(end for _, end in rows[:-1])]
            assert rows[-1][1] == length
            each = -(-length // sum(devices))
            assert all(end - begin <= each * n for (begin, end), n in zip(rows, devices))


def test_without_a_cluster(monkeypatch):
    monkeypatch.setattr(clusters, "_active", None)
    with pytest.raises(JaxparError, match="no cluster is running"):
        spmd(lambda x: x, XS)
