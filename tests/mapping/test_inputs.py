"""Inputs as people have them, and what is said when they cannot be mapped."""

from __future__ import annotations

import collections
import dataclasses
import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxpar_magic import last_report, parmap
from jaxpar_magic.errors import InputError, OptionError, UnsupportedError
from jaxpar_magic.mapping.inputs import make_batch


def square(x):
    return x * x


@pytest.mark.parametrize(
    "inputs",
    [
        [0.0, 1.0, 2.0, 3.0],
        (0.0, 1.0, 2.0, 3.0),
        range(4),
        (v for v in range(4)),
        {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0}.values(),
        collections.deque([0.0, 1.0, 2.0, 3.0]),
        pd.Series([0.0, 1.0, 2.0, 3.0]),
        pd.Index([0, 1, 2, 3]),
        np.arange(4.0),
        np.arange(4),
        np.array([0.0, 1.0, 2.0, 3.0], dtype=object),
        jnp.arange(4.0),
        [np.float32(0), np.float32(1), np.float32(2), np.float32(3)],
        [jnp.float32(0), jnp.float32(1), jnp.float32(2), jnp.float32(3)],
    ],
    ids=lambda v: type(v).__name__,
)
def test_one_dimensional_inputs(inputs):
    np.testing.assert_array_equal(np.asarray(parmap(square, inputs)), [0, 1, 4, 9])


def test_a_list_of_arrays_is_a_list_of_items():
    rows = [np.full(3, float(i), np.float32) for i in range(5)]
    np.testing.assert_array_equal(np.asarray(parmap(jnp.sum, rows)), 3 * np.arange(5.0))


def test_a_list_of_lists_gives_arrays_to_traced_code_and_lists_to_plain_python():
    rows = [[1, 2], [3, 4], [5, 6]]
    np.testing.assert_array_equal(np.asarray(parmap(lambda p: p.sum(), rows, strategy="vmap")), [3, 7, 11])
    extended = parmap(lambda p: np.array(p + [0]), rows, strategy="serial")
    np.testing.assert_array_equal(extended, [[1, 2, 0], [3, 4, 0], [5, 6, 0]])


def test_tuples_are_spread_over_parameters_like_starmap():
    pairs = [(0.5, 1), (1.0, 2), (2.0, 3)]
    expected = [0.5, 4.0, 18.0]
    assert np.asarray(parmap(lambda scale, power: scale * power**2, pairs)).tolist() == expected
    assert np.asarray(parmap(lambda scale, power: scale * power**2, np.array(pairs))).tolist() == expected
    assert np.asarray(parmap(lambda pair: pair[0] * pair[1] ** 2, pairs)).tolist() == expected
    # the int stays an int, so that it may index or count
    assert parmap(lambda a, n: jnp.arange(3)[n - 1] * a, pairs).tolist() == [0.0, 1.0, 4.0]
    with pytest.raises(InputError, match=r"item 1 cannot be spread over the parameters of <lambda>"):
        parmap(lambda a, b: a * b, [(1.0, 2.0), (3.0,)])


def test_records_by_name():
    records = [{"rate": 0.1, "start": 1.0}, {"rate": 0.2, "start": 2.0}]
    expected = [1.1, 2.4]
    np.testing.assert_allclose(np.asarray(parmap(lambda rate, start: start * (1 + rate), records)), expected, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(parmap(lambda r: r["start"] * (1 + r["rate"]), records)), expected, rtol=1e-6)
    frame = pd.DataFrame(records)
    np.testing.assert_allclose(np.asarray(parmap(lambda rate, start: start * (1 + rate), frame)), expected, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(parmap(lambda r: r["start"] * (1 + r["rate"]), frame)), expected, rtol=1e-6)
    structured = np.array([(0.1, 1.0), (0.2, 2.0)], dtype=[("rate", "f4"), ("start", "f4")])
    np.testing.assert_allclose(
        np.asarray(parmap(lambda r: r["start"] * (1 + r["rate"]), structured)), expected, rtol=1e-6
    )


def test_a_frame_with_text_is_mapped_row_by_row_as_plain_python():
    frame = pd.DataFrame({"name": ["a", "bb"], "n": [1, 2]})
    assert parmap(lambda r: r["name"] * r["n"], frame) == ["a", "bbbb"]
    assert last_report().strategy == "serial"
    assert "holds a str" in last_report().notes[0]


def test_shared_values():
    rates, starts = np.linspace(0, 0.1, 100), np.ones(100)

    def growth(rate, start, *, years):
        return start * jnp.exp(rate * years)

    total = parmap(growth, rates, starts, years=5.0).sum()
    np.testing.assert_allclose(float(total), 129.7714453, rtol=1e-5)
    # a shared Python number is a constant: it may be a length or decide a branch
    out = parmap(lambda x, n, flag: sum(x for _ in range(n)) if flag else x, np.arange(3.0), n=3, flag=True)
    assert np.asarray(out).tolist() == [0.0, 3.0, 6.0]
    # a shared array is not mapped with in_axes=None, whatever its length
    table = np.arange(3.0, dtype=np.float32)
    out = parmap(lambda x, t: x + t.sum(), np.zeros(3, np.float32), table, in_axes=(0, None))
    assert np.asarray(out).tolist() == [3.0] * 3
    out = parmap(lambda x, t: x + t.sum(), np.zeros(2, np.float32), t=table, in_axes={"t": None})
    assert np.asarray(out).tolist() == [3.0] * 2


def test_an_in_axes_dict_may_name_the_entries_of_the_only_input():
    batch = {"x": jnp.arange(12.0).reshape(4, 3), "scale": jnp.array([1.0, 2.0, 3.0])}
    for in_axes in ({"x": 0, "scale": None}, ({"x": 0, "scale": None},), {"scale": None}):
        out = parmap(lambda b: (b["x"] * b["scale"]).sum(), batch, in_axes=in_axes)
        assert np.asarray(out).tolist() == [8, 26, 44, 62]


def test_static_arguments():
    def stretched(x, shape):
        return jnp.broadcast_to(x, shape).sum()

    out = parmap(stretched, np.arange(3.0), shape=(2, 2), static="shape")
    assert np.asarray(out).tolist() == [0.0, 4.0, 8.0]
    out = parmap(lambda x, n: x * jnp.ones(int(n)).sum(), np.arange(3.0), n=np.int64(4), static=["n"])
    assert np.asarray(out).tolist() == [0.0, 4.0, 8.0]


def test_items_of_several_shapes_are_grouped():
    rows = [np.arange(n, dtype=np.float32) for n in (3, 1, 3, 2, 1)]
    np.testing.assert_array_equal(np.asarray(parmap(jnp.sum, rows)), [r.sum() for r in rows])
    assert "3 shapes of items" in last_report().notes[0]
    assert last_report().length == 5
    doubled = parmap(lambda r: 2 * r, rows)
    assert [np.asarray(d).tolist() for d in doubled] == [(2 * r).tolist() for r in rows]
    many = [np.zeros(n, np.float32) for n in range(20)]
    with pytest.raises(InputError, match="20 different shapes"):
        parmap(jnp.sum, many, strategy="vmap")


@pytest.mark.parametrize("items", [[], (), range(0), np.zeros(0), iter(())])
def test_no_items(items):
    assert len(parmap(lambda x: x + 1, items)) == 0


def test_objects_are_plain_python():
    assert parmap(str.upper, ["a", "b"], strategy="serial") == ["A", "B"]
    assert parmap(lambda v: v + 1, [fractions.Fraction(1, 2)], strategy="serial") == [fractions.Fraction(3, 2)]
    with pytest.raises(InputError, match=r"strategy='vmap': needs numbers or arrays, but item 0 of s holds a str"):
        parmap(lambda s: s, ["a"], strategy="vmap")


# ------------------------------------------------------------------ what is said


def test_the_input_of_another_length_is_named():
    with pytest.raises(InputError) as caught:
        parmap(lambda a, b, c: a, np.zeros(100), np.zeros(100), c=np.zeros(99))
    assert str(caught.value).startswith("c: the mapped inputs differ in length: a has 100, b has 100, c has 99.")
    assert caught.value.argument == "c"
    with pytest.raises(InputError, match=r"b\['scale'\] has 3"):
        parmap(lambda b: b["x"], {"x": np.zeros((4, 3)), "scale": np.zeros(3)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parmap(square, 3.0), "no input to map over"),
        (lambda: parmap(square, {3.0, 4.0}), "a set has no order"),
        (lambda: parmap(square, np.zeros(3), in_axes=1), r"x: in_axes=1 needs an axis 1, but its shape is \(3,\)"),
        (lambda: parmap(square, np.zeros(3), in_axes=(0, 0)), "has 2 entries for 1 positional input"),
        (lambda: parmap(square, np.zeros(3), in_axes="0"), "needs an int, None, or a tuple or dict"),
        (lambda: parmap(square, np.zeros(3), in_axes={"y": 0}), "names 'y', which is not an input"),
        (lambda: parmap(square, np.zeros(3), yy=1), "square has no parameter of that name"),
        (lambda: parmap(square, np.zeros(3), static="n"), "static=n: not among the inputs"),
        (lambda: parmap(square, np.zeros(3), key="a"), "needs a seed"),
        (lambda: parmap(square, np.zeros(3), key=1), "has no parameter left to take the key"),
        (lambda: parmap(lambda a, b: a, np.zeros(3)), "also needs b; got a"),
        (lambda: parmap(square, np.zeros(3), strategy="vmapp"), "Did you mean 'vmap'?"),
        (lambda: parmap(square, np.zeros(3), devices=0), "devices=0: needs a whole number from 1 on"),
        (lambda: parmap(square, np.zeros(3), batch_size=2.5), "batch_size=2.5: needs a whole number"),
        (lambda: parmap(square, np.zeros(3), chunk_size=True), "chunk_size=True: needs a whole number"),
        (lambda: parmap(square, np.zeros(3), remainder="pads"), "Did you mean 'pad'?"),
        (lambda: parmap(square, np.zeros(3), on_error="ignore"), "not one of raise, skip"),
        (lambda: parmap(square, np.zeros(3), check="nan"), "not one of finite"),
        (lambda: parmap(square, np.zeros(3), show="plans"), "Did you mean 'plan'?"),
        (lambda: parmap(square, np.zeros(3), compare="vmap,pnap"), "Did you mean 'pmap'?"),
        (lambda: parmap(square, np.zeros(3), devices=9, strategy="vmap"), "devices=9: JAX has 3 cpu devices"),
        (lambda: parmap(3, np.zeros(3)), "needs a function of one item, got a int"),
        (lambda: parmap(square, np.zeros((3, 2)), out_axes=5), "out_axes=5: the stacked result has shape"),
    ],
)
def test_bad_input_is_named_in_a_line(call, message):
    with pytest.raises((InputError, OptionError, RuntimeError), match=message) as caught:
        call()
    assert len(str(caught.value).splitlines()) <= 2


def test_whole_numbers_that_32_bits_cannot_hold_are_refused():
    with pytest.raises(InputError, match="values up to 1099511627776 do not fit into int32"):
        parmap(square, np.array([1, 2**40]), strategy="vmap")
    with pytest.raises(InputError, match="do not fit into int32"):
        parmap(square, [1, 2**40], strategy="vmap")
    assert parmap(square, [1, 2**40], strategy="serial") == [1, 2**80]


def test_narrowing_is_said():
    parmap(square, np.linspace(0, 1, 3))
    assert last_report().notes == ["x: float64 computed as float32, about 7 digits; %jaxdevices --x64 keeps float64"]
    parmap(square, [0.5, 1.5])  # Python's floats have no width that anyone chose
    assert last_report().notes == []


def test_items_in_messages():
    batch = make_batch(lambda a, b: a, [np.float32([1.5, 2.5])], {"b": [np.zeros((2, 3)), np.zeros((2, 3))]})
    assert batch.describe_item(1) == "a=2.5, b=float64[2, 3]"
    keys = make_batch(lambda k: k, [jax.random.split(jax.random.key(0), 2)], {})
    assert keys.describe_item(0).startswith("k=")


@dataclasses.dataclass
class Particle:
    position: object
    mass: object


jax.tree_util.register_dataclass(Particle, data_fields=["position", "mass"], meta_fields=[])


@pytest.mark.parametrize("strategy", ["auto", "vmap", "map", "shard_map", "pmap", "thread", "serial"])
def test_registered_nodes_as_inputs(strategy):
    def moved(p):
        return Particle(p.position + p.mass, p.mass)

    stacked = Particle(np.arange(6, dtype=np.float32).reshape(3, 2), np.float32([1, 2, 3]))
    separate = [Particle(np.float32([2 * i, 2 * i + 1]), np.float32(i + 1)) for i in range(3)]
    expected = stacked.position + stacked.mass[:, None]
    for inputs in (stacked, separate):
        out = parmap(moved, inputs, strategy=strategy)
        assert isinstance(out, Particle)
        np.testing.assert_array_equal(np.asarray(out.position), expected)


def test_whole_numbers_that_may_wrap_are_said():
    assert np.asarray(parmap(square, range(3))).tolist() == [0, 1, 4]
    assert last_report().notes == [
        "x: int64 computed as int32, which wraps past 2,147,483,647; %jaxdevices --x64 keeps int64"
    ]
    comparison = parmap(square, range(99990, 99993), compare="vmap,serial")
    assert any("32 bits wrap around" in note for note in comparison.notes)


def test_what_pandas_and_numpy_leave_out_stays_out():
    nullable = pd.Series([1, None, 3], dtype="Int64")
    assert parmap(lambda v: 0 if v is pd.NA else v, nullable).tolist() == [1, 0, 3]
    with pytest.raises(InputError, match="is a masked array"):
        parmap(square, np.ma.array([1.0, 2.0], mask=[0, 1]), strategy="serial")
    big_endian = np.arange(3, dtype=">f4")
    assert np.asarray(parmap(square, big_endian, strategy="vmap")).tolist() == [0, 1, 4]
    numbered = pd.DataFrame({0: [1.0, 2.0], 1: [3.0, 4.0]})
    assert np.asarray(parmap(lambda r: r[0] + r[1], numbered)).tolist() == [4.0, 6.0]


@pytest.mark.parametrize("strategy", ["vmap", "map", "pmap", "shard_map", "thread", "serial"])
def test_items_without_numbers_in_them(strategy):
    out = parmap(lambda x: x + 1, np.zeros((7, 0), np.float32), strategy=strategy, batch_size=2, check="finite")
    assert out.shape == (7, 0)
    assert len(parmap(square, np.zeros(0), strategy=strategy, check="finite")) == 0


def test_results_that_no_array_can_hold():
    with pytest.raises(InputError, match="strategy='vmap': the function returned a str"):
        parmap(lambda x: "a", np.zeros(2), strategy="vmap")
    assert parmap(lambda x: "a", np.zeros(2)) == ["a", "a"]


def test_parmap_is_the_outermost_call():
    with pytest.raises(UnsupportedError, match="it is the outermost call"):
        jax.jit(lambda v: parmap(square, v))(jnp.arange(3.0))

    async def later(x):
        return x

    with pytest.raises(OptionError, match="later is an async function"):
        parmap(later, [1])
    with pytest.raises(InputError, match=r"takes \(x\); got 3 positional inputs"):
        parmap(square, np.zeros(3), 1, 2)
    with pytest.raises(InputError, match="Did you mean 'strategy'"):
        parmap(square, np.zeros(3), strateg="vmap")


def test_a_mesh_of_the_user_s_does_not_get_in_the_way():
    if not hasattr(jax, "set_mesh"):
        pytest.skip("jax.set_mesh came with JAX 0.7")
    mesh = jax.make_mesh((3,), ("mine",))
    with jax.set_mesh(mesh):
        for strategy in ("auto", "vmap", "shard_map", "jit", "pmap", "thread"):
            assert np.asarray(parmap(square, np.arange(5.0), strategy=strategy)).tolist() == [0, 1, 4, 9, 16]
        assert not jax.sharding.get_abstract_mesh().empty


def test_debugging_settings():
    xs = np.float32([1.0, -1.0, 2.0])
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"item 1 of 3 \(x=-1.0\)"):
        parmap(lambda x: jnp.log(x), xs)
    with jax.disable_jit():
        np.testing.assert_allclose(np.asarray(parmap(lambda x: x * 2, xs)), 2 * xs)
    assert "jit is disabled" in last_report().notes[0]


def test_devices_that_were_asked_for_are_used():
    parmap(square, np.arange(6, dtype=np.float32), devices=2)
    assert (last_report().strategy, last_report().parts) == ("shard_map", 2)
    parmap(square, np.arange(7, dtype=np.float32), strategy="shard_map", remainder="drop")
    assert last_report().notes == ["the last 1 of 7 items are left out (remainder='drop')"]


def test_several_shapes_have_no_one_program_to_show():
    rows = [np.ones(2, np.float32), np.ones(3, np.float32)]
    with pytest.raises(InputError, match="the items have 2 shapes") as caught:
        parmap(jnp.sum, rows, show="code", strategy="vmap")
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    with pytest.raises(ZeroDivisionError) as caught:
        parmap(lambda r: 1 / 0, rows)
    assert "Ragged" not in repr(caught.value.__context__)
