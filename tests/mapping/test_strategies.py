"""Every strategy equals a Python loop of the function: the promise behind all others."""

from __future__ import annotations

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpar_magic import last_report, parmap
from jaxpar_magic.mapping import strategies
from jaxpar_magic.mapping.strategies import TRACED

LOCAL = [name for name in ("auto", *strategies.LOCAL) if name != "process"]  # processes have tests of their own


def loop(function, *columns, **shared):
    """The reference: call by call, stacked."""
    results = [function(*item, **shared) for item in zip(*columns)]
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *results)


def assert_same(actual, expected, rtol=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected)):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=1e-6)


# ------------------------------------------------------------------ random lengths, shapes, types, options

DTYPES = (np.float32, np.int32, np.uint8, np.bool_, np.complex64, jnp.bfloat16, np.float16)


def poly(x):
    return x * x + x


def summary(x):
    return {"total": jnp.sum(x), "pair": (x[..., None] if x.ndim else x, jnp.max(jnp.abs(x)))}


def counting_loop(x):
    steps = jnp.int32(jnp.sum(jnp.abs(x)) % 7)
    return jax.lax.while_loop(lambda s: s[0] < steps, lambda s: (s[0] + 1, s[1] + 2), (jnp.int32(0), jnp.int32(0)))


def scanned(x):
    return jax.lax.scan(lambda c, _: (c * 0.5 + jnp.sum(x), c), jnp.float32(1), None, length=3)


FUNCTIONS = (poly, summary, counting_loop, scanned)


@st.composite
def maps(draw):
    function = draw(st.sampled_from(FUNCTIONS))
    dtype = np.dtype(draw(st.sampled_from(DTYPES if function is poly else (np.float32, np.int32))))
    if function is poly and dtype == np.bool_:
        dtype = np.dtype(np.int32)
    length = draw(st.sampled_from((0, 1, 2, 3, 4, 5, 7, 12, 13)))
    item = draw(st.sampled_from(((), (1,), (3,), (2, 3))))
    axis = draw(st.integers(-len(item) - 1, len(item)))
    rows = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, (length, *item))
    array = np.abs(rows).astype(dtype) if dtype.kind in "ub" else rows.astype(dtype)
    options = {
        "strategy": draw(st.sampled_from(LOCAL)),
        "devices": draw(st.sampled_from((None, 1, 2, 3))),
        "batch_size": draw(st.sampled_from((None, 1, 2, 5, 100))),
        "chunk_size": draw(st.sampled_from((None, 1, 4, 100))),
        "in_axes": axis,
        "out_axes": draw(st.sampled_from((0, 0, -1))),
    }
    return function, array, item, options, draw(st.booleans())


def check_one(case):
    function, rows, item, options, as_jax = case
    given_rows = np.moveaxis(rows, 0, options["in_axes"])
    actual = parmap(function, jnp.asarray(given_rows) if as_jax else given_rows, **options)
    if len(rows) == 0:
        one = jax.eval_shape(function, jax.ShapeDtypeStruct(item, jnp.asarray(rows).dtype))
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(one)):
            stacked = np.moveaxis(np.zeros((0, *b.shape), b.dtype), 0, options["out_axes"])
            assert (a.shape, a.dtype) == (stacked.shape, stacked.dtype)
        return
    expected = loop(function, [jnp.asarray(r) for r in rows])
    expected = jax.tree.map(lambda a: np.moveaxis(a, 0, options["out_axes"]), expected)
    assert_same(actual, expected, rtol=2e-2 if rows.dtype in (jnp.bfloat16, np.float16) else 1e-5)


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=80, **QUIET)
@given(maps())
@pytest.mark.filterwarnings("ignore")
def test_a_random_map_equals_the_loop(case):
    check_one(case)


@pytest.mark.slow
@settings(max_examples=300, **QUIET)
@given(maps())
@pytest.mark.filterwarnings("ignore")
def test_many_random_maps_equal_the_loop(case):
    check_one(case)


# ------------------------------------------------------------------ kinds of functions


@dataclasses.dataclass
class Orbit:
    position: jax.Array
    speed: jax.Array


jax.tree_util.register_dataclass(Orbit, data_fields=["position", "speed"], meta_fields=[])

Pair = collections.namedtuple("Pair", "low high")

TABLE = np.linspace(0.0, 1.0, 5, dtype=np.float32)
BIG_TABLE = np.arange(5000, dtype=np.float32)


def with_grad(x):
    return jax.grad(lambda v: v**3)(x)


def with_random(x):
    return jax.random.normal(jax.random.key(jnp.int32(x))) + x


def with_cond(x):
    return jax.lax.cond(x > 2, lambda v: v * 2, lambda v: -v, x)


def with_captured(x):
    return x * jnp.asarray(TABLE).sum() + jnp.asarray(BIG_TABLE)[3]


def with_callback(x):
    return jax.pure_callback(
        lambda v: np.float32(v) + 1, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential"
    )


def constant(x):
    return 3.0


def with_constant_carry(x):
    # fails under shard_map with check_vma: the carry starts the same on every device and then varies
    return jax.lax.fori_loop(0, 4, lambda i, c: c + x, jnp.float32(0))


def orbit(x):
    return Orbit(x, Pair(x - 1, [x * 2]))


def nothing_in_it(x):
    return {"x": x, "none": None, "empty": ()}


already_jitted = jax.jit(lambda x: jnp.cos(x) + 1)

KINDS = (
    with_grad, with_random, with_cond, with_captured, with_callback, constant, with_constant_carry, orbit,
    nothing_in_it, already_jitted,
)  # fmt: skip


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize("function", KINDS, ids=lambda f: getattr(f, "__name__", "jitted"))
def test_kinds_of_functions(function, strategy):
    xs = np.arange(7, dtype=np.float32)
    expected = loop(function, [jnp.asarray(x) for x in xs])
    actual = parmap(function, xs, strategy=strategy, batch_size=2)
    if function is constant:
        np.testing.assert_array_equal(np.asarray(actual), np.full(7, 3.0))
    else:
        assert_same(actual, expected)


@pytest.mark.parametrize("strategy", LOCAL)
def test_kinds_of_inputs_agree(strategy):
    """A pytree of arrays, a list of pytrees, and several arguments say the same thing."""
    rows = [{"a": float(i), "b": np.array([i, 2.0 * i], np.float32)} for i in range(5)]
    columns = {"a": np.arange(5, dtype=np.float32), "b": np.stack([r["b"] for r in rows])}

    def f(r):
        return r["a"] + r["b"].sum()

    expected = np.array([f(r) for r in rows], np.float32)
    for inputs in (rows, columns, iter(rows), collections.deque(rows)):
        np.testing.assert_allclose(np.asarray(parmap(f, inputs, strategy=strategy)), expected)
    by_name = parmap(lambda a, b: a + b.sum(), strategy=strategy, **columns)
    np.testing.assert_allclose(np.asarray(by_name), expected)


@pytest.mark.parametrize("strategy", TRACED)
def test_keys_in_and_out(strategy):
    keys = jax.random.split(jax.random.key(3), 5)
    draws = parmap(lambda k: (jax.random.normal(k, (2,)), jax.random.split(k)), keys, strategy=strategy)
    expected = jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)
    np.testing.assert_array_equal(np.asarray(draws[0]), np.asarray(expected))
    assert jnp.issubdtype(draws[1].dtype, jax.dtypes.prng_key)
    assert draws[1].shape == (5, 2)
    old_style = jax.random.split(jax.random.PRNGKey(3), 5)
    again = parmap(lambda k: jax.random.normal(k, (2,)), old_style, strategy=strategy)
    np.testing.assert_array_equal(
        np.asarray(again), np.asarray(jax.vmap(lambda k: jax.random.normal(k, (2,)))(old_style))
    )


@pytest.mark.parametrize("strategy", LOCAL)
def test_a_seed_gives_the_same_numbers_everywhere(strategy):
    def draw(x, key):
        return x + jax.random.normal(key)

    xs = np.zeros(7, np.float32)
    root = jax.random.key(11)
    expected = [draw(x, jax.random.fold_in(root, i)) for i, x in enumerate(xs)]
    for options in ({}, {"chunk_size": 3}, {"devices": 2, "batch_size": 2}):
        actual = parmap(draw, xs, key=11, strategy=strategy, **options)
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))
    # the key of an item does not depend on how many items there are
    np.testing.assert_array_equal(np.asarray(parmap(draw, xs[:3], key=11, strategy=strategy)), np.asarray(expected[:3]))


@pytest.mark.parametrize("strategy", TRACED)
def test_double_precision_is_kept_with_x64(strategy, x64):
    xs = np.linspace(0, 1, 7)
    actual = parmap(lambda x: jnp.exp(x), xs, strategy=strategy)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(np.asarray(actual), np.exp(xs), rtol=1e-14)


@pytest.mark.parametrize("strategy", TRACED)
def test_results_are_ordinary_arrays(strategy):
    """Not bound to devices: they survive a reset of the devices and mix with arrays anywhere."""
    y = parmap(lambda x: x + 1, np.arange(7, dtype=np.float32), strategy=strategy)
    assert isinstance(y, jax.Array)
    assert not y.committed
    assert y.devices() == {jax.local_devices()[0]}


def test_committed_and_sharded_inputs_are_taken():
    devices = jax.devices()
    elsewhere = jax.device_put(jnp.arange(6.0), devices[2])
    mesh = jax.sharding.Mesh(np.asarray(devices), ("i",))
    spread = jax.device_put(jnp.arange(6.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i")))
    for strategy in LOCAL:
        for xs in (elsewhere, spread):
            actual = parmap(lambda x: 2 * x, xs, strategy=strategy)
            np.testing.assert_array_equal(np.asarray(actual), 2 * np.arange(6.0))


@pytest.mark.parametrize("strategy", TRACED)
def test_callbacks_are_called_once_per_item(strategy):
    """Padding would show here: the function's author sees every call."""
    seen = []

    def job(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x**2

    for length in (1, 2, 7, 8):
        seen.clear()
        actual = parmap(job, np.arange(length, dtype=np.float32), strategy=strategy, batch_size=2)
        jax.effects_barrier()
        assert sorted(seen) == list(range(length))
        np.testing.assert_array_equal(np.asarray(actual), np.arange(length, dtype=np.float32) ** 2)


def test_auto_runs_ordered_callbacks_in_order():
    seen = []

    def job(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x, ordered=True)
        return x**2

    actual = parmap(job, np.arange(8, dtype=np.float32))
    jax.effects_barrier()
    assert seen == list(range(8))
    np.testing.assert_array_equal(np.asarray(actual), np.arange(8.0) ** 2)
    assert last_report().strategy == "map"
    assert "ordered callbacks run on one device only" in last_report().notes[0]
    seen.clear()
    parmap(job, np.arange(8, dtype=np.float32), devices=2)
    jax.effects_barrier()
    assert last_report().strategy == "thread"
    assert last_report().parts == 2
    assert sorted(seen) == list(range(8))


def test_remainder():
    xs = np.arange(7, dtype=np.float32)
    assert parmap(lambda x: x, xs, strategy="shard_map", remainder="drop").shape == (6,)
    assert parmap(lambda x: x, xs, strategy="shard_map").shape == (7,)
    with pytest.raises(ValueError, match="7 items do not divide evenly over 3 devices"):
        parmap(lambda x: x, xs, strategy="shard_map", remainder="error")
    assert parmap(lambda x: x, xs[:6], strategy="shard_map", remainder="error").shape == (6,)


def test_out_axes_none_needs_an_output_that_is_shared():
    xs = np.arange(4, dtype=np.float32)
    both = parmap(lambda x, s: (x + s, s * 2), xs, np.float32(3), out_axes=(0, None))
    assert both[0].shape == (4,)
    assert both[1].shape == ()
    with pytest.raises(ValueError, match="output 0 differs from item to item"):
        parmap(lambda x: x, xs, out_axes=None)
