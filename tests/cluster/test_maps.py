"""Maps on a real cluster of two engines: every kind of input gives what a plain loop gives."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpar_magic import last_report, parmap
from jaxpar_magic.errors import CheckpointError, ClusterError, DeviceError, InputError, OptionError, WorkerError
from jaxpar_magic.mapping import elsewhere

pytestmark = pytest.mark.usefixtures("cluster")

XS = np.linspace(-1, 1, 101, dtype=np.float32)


@jax.tree_util.register_pytree_node_class
class Oscillator:
    """A class of the user's; the engines do not know this module, so it travels by value."""

    def __init__(self, mass, spring):
        self.mass, self.spring = mass, spring

    def tree_flatten(self):
        return (self.mass, self.spring), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Body:
    place: jax.Array
    speed: jax.Array
    name: str = dataclasses.field(default="", metadata={"static": True})


Point = collections.namedtuple("Point", "x y")
WEIGHTS = np.linspace(0, 1, 50_000, dtype=np.float32)  # large enough for shared memory


def swing(o):
    return Oscillator(o.mass * 2, jnp.sqrt(o.spring / o.mass))


def move(b, dt):
    return Body(b.place + dt * b.speed, b.speed, b.name)


def noisy(x, key):
    return x + jax.random.normal(key)


def steps(x):
    """A loop of unknown length."""
    return jax.lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] * 1.5 + 0.01, s[1] + 1), (jnp.abs(x), 0))[1]


# JAX's own arrays are made when they are used: other tests want to set the number of devices before JAX starts.
MAPS = {
    "array": (jnp.sin, [XS], {}),
    "jax array": (jnp.sin, lambda: [jnp.asarray(XS)], {}),
    "matrix": (lambda v: v / jnp.sum(v), [np.arange(60, dtype=np.float32).reshape(20, 3) + 1], {}),
    "dict of arrays": (lambda p: {"s": p["a"] + p["b"]}, [{"a": XS, "b": 2 * XS}], {}),
    "named tuples": (lambda p: Point(p.y, p.x), [[Point(1.0, 2.0), Point(3.0, 4.0)]], {}),
    "registered class": (swing, [Oscillator(XS + 3, XS + 2)], {}),
    "registered dataclass": (move, [Body(XS, 2 * XS, "m")], {"dt": 0.5}),
    "list": (lambda x: x * x, [[1.0, 2.0, 3.0]], {}),
    "whole numbers": (lambda x: x // 2, [list(range(9))], {}),
    "range": (lambda x: x + 1, [range(7)], {}),
    "series": (lambda x: x + 1, [pd.Series([1.0, 2.0, 3.0])], {}),
    "data frame": (lambda row: row["a"] * row["b"], [pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})], {}),
    "dict items": (lambda a, b: a - b, [[{"a": 1.0, "b": 2.0}, {"a": 5.0, "b": 2.0}]], {}),
    "pairs": (lambda a, b: a - b, [[(1.0, 2.0), (5.0, 2.0)]], {}),
    "ragged": (jnp.sum, [[np.ones(2), np.ones(3), np.ones(2)]], {}),
    "generator": (lambda x: x * 2, [(float(i) for i in range(11))], {}),
    "in_axes": (jnp.sum, [np.arange(12.0, dtype=np.float32).reshape(3, 4)], {"in_axes": 1}),
    "shared": (lambda x, w: x * w.sum(), [XS], {"w": WEIGHTS, "in_axes": {"w": None}}),
    "static": (lambda x, n: x**n, [XS], {"n": 3, "static": "n"}),
    "out_axes": (lambda x: jnp.stack([x, -x]), [XS], {"out_axes": 1}),
    "closure": (lambda x: x * WEIGHTS.mean(), [XS], {}),
    "key": (noisy, [XS], {"key": 7}),
    "keys": (jax.random.normal, lambda: [jax.random.split(jax.random.key(3), 5)], {}),
    "gives keys": (lambda k: jax.random.split(k)[0], lambda: [jax.random.split(jax.random.key(3), 5)], {}),
    "bfloat16": (lambda x: x * 2, lambda: [jnp.asarray(XS, jnp.bfloat16)], {}),
    "bool": (jnp.logical_not, [np.array([True, False, True])], {}),
    "complex": (jnp.conj, [(XS + 1j * XS).astype(np.complex64)], {}),
    "nothing from items": (lambda x: 1.0, [XS], {}),
    "empty items": (lambda x: x.sum(), [np.ones((5, 0), np.float32)], {}),
    "no item": (jnp.sin, [XS[:0]], {}),
    "one item": (jnp.sin, [XS[:1]], {}),
    "loop": (steps, [XS], {}),
    "two outputs": (lambda x: (x, {"sq": x * x}), [XS], {}),
    "jitted": (jax.jit(lambda x: x + 1), [XS], {}),
}


def same(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        assert a.dtype == b.dtype and a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a, np.complex128), np.asarray(b, np.complex128), rtol=2e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore::jaxpar_magic.errors.JaxparWarning")
@pytest.mark.parametrize("kind", MAPS)
def test_every_kind_of_input_gives_what_one_device_gives(kind):
    function, inputs, options = MAPS[kind]
    inputs = inputs() if callable(inputs) else inputs
    inputs = [list(x) if hasattr(x, "__next__") else x for x in inputs]
    given_ = [iter(x) for x in inputs] if kind == "generator" else inputs
    got = parmap(function, *given_, strategy="cluster", **options)
    assert last_report().strategy == "cluster" and last_report().parts == 2
    same(got, parmap(function, *inputs, strategy="vmap", **options))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.floats(-100, 100, width=32), max_size=40),
    chunk=st.one_of(st.none(), st.integers(1, 50)),
    shared=st.floats(-2, 2, width=32),
)
def test_any_values_in_any_chunks_give_what_a_loop_gives(values, chunk, shared):
    xs = np.array(values, np.float32)

    def function(x, a):
        return {"sum": x + a, "pair": jnp.stack([x, -x])}

    got = parmap(function, xs, a=np.float32(shared), strategy="cluster", chunk_size=chunk)
    assert got["sum"].shape == xs.shape and got["pair"].shape == (len(xs), 2)
    np.testing.assert_allclose(got["sum"], xs + np.float32(shared), rtol=1e-6)
    np.testing.assert_array_equal(got["pair"], np.stack([xs, -xs], -1))


# -------------------------------------------------------------------- large inputs, files


def test_large_arrays_go_through_shared_memory_and_come_back_in_place(cluster):
    xs = np.arange(1_200_000, dtype=np.float32).reshape(1200, 1000)
    got = parmap(lambda x: x + 1, xs, strategy="cluster", chunk_size=90)
    np.testing.assert_array_equal(got, xs + 1)
    assert list(cluster.shared.iterdir()) == [cluster.shared / "token"]  # its memory has no name anywhere


def test_without_shared_memory_arrays_are_sent(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "here", lambda engine: False)
    xs = np.arange(1_200_000, dtype=np.float32).reshape(1200, 1000)
    np.testing.assert_array_equal(parmap(lambda x: x + WEIGHTS[0] + 1, xs, strategy="cluster", chunk_size=90), xs + 1)


def test_an_engine_that_cannot_open_shared_memory_is_sent_its_items(cluster, monkeypatch):
    from jaxpar_magic.cluster import crew

    class Elsewhere(crew.Block):
        def __init__(self, size=0):
            super().__init__(size)
            self.address = (self.address[0], self.address[1], 0, 0)  # as on another machine

    monkeypatch.setattr(crew, "Block", Elsewhere)
    memory = crew._memories.pop(cluster, None)
    xs = np.arange(600_000, dtype=np.float32).reshape(600, 1000)
    with pytest.warns(UserWarning, match="cannot open shared memory: its items are sent"):
        got = parmap(lambda x: x + 1, xs, strategy="cluster", chunk_size=90)
    np.testing.assert_array_equal(got, xs + 1)
    crew._memories.pop(cluster)
    if memory is not None:
        crew._memories[cluster] = memory


@pytest.mark.parametrize("suffix", [".npy", ".h5", ".zarr"])
def test_engines_open_files_themselves(cluster, tmp_path, suffix, monkeypatch):
    from jaxpar_magic.mapping.sources import LazyArray

    xs = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, xs)
    elif suffix == ".h5":
        import h5py

        with h5py.File(path, "w") as file:
            file["group/x"] = xs
    else:
        import zarr

        zarr.save_array(str(path), xs)
    monkeypatch.setattr(LazyArray, "_read", lambda *_: pytest.fail("the notebook reads nothing of it"))
    got = parmap(lambda x: x.sum(), input_file=path, strategy="cluster", chunk_size=150)
    np.testing.assert_array_equal(got, xs.sum(1))


def test_parts_of_a_mapped_file_and_one_that_may_be_written(tmp_path):
    path = tmp_path / "x.bin"
    xs = np.memmap(path, np.int32, "w+", shape=(400, 3))
    xs[:] = np.arange(1200).reshape(400, 3)
    for part in (xs, xs[100:], xs[::2], xs.T):
        got = parmap(lambda x: x + 1, part, strategy="cluster", chunk_size=50)
        np.testing.assert_array_equal(got, np.asarray(part) + 1)


def test_a_file_that_is_another_one_there_is_sent(tmp_path, monkeypatch):
    from jaxpar_magic.cluster.transport import FileArray

    path = tmp_path / "x.npy"
    np.save(path, XS)
    of = FileArray.of
    monkeypatch.setattr(FileArray, "of", lambda a: dataclasses.replace(of(a), stamp=(1, 1)))
    with pytest.warns(UserWarning, match="has another size or time of change there: its items of x are sent"):
        got = parmap(jnp.sin, input_file=path, strategy="cluster")
    np.testing.assert_allclose(got, np.sin(XS), rtol=1e-6)


def test_results_go_to_a_file(tmp_path):
    got = parmap(lambda x: x * 2, XS, strategy="cluster", chunk_size=10, out_file=tmp_path / "y.npy")
    assert isinstance(got, np.memmap)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), XS * 2)


# -------------------------------------------------------------------- plain Python


class Word(str):
    """Comes back as this class, not as a copy."""

    def shout(self):
        return Word(self.upper())


@pytest.mark.filterwarnings("ignore::jaxpar_magic.errors.JaxparWarning")
def test_plain_python_runs_on_the_engines():
    def pid_and_shout(word, times):
        import os

        return os.getpid(), word.shout() * times

    got = parmap(pid_and_shout, [Word(c) for c in "abcdefgh"], times=2, strategy="cluster", chunk_size=1)
    assert [text for _, text in got] == [c * 2 for c in "ABCDEFGH"]
    assert {pid for pid, _ in got} <= {e.pid for e in jaxpar_engines()}
    back = parmap(lambda w: w.shout(), [Word("a"), Word("b")], strategy="cluster")
    assert [type(w) for w in back] == [Word, Word]


def jaxpar_engines():
    from jaxpar_magic import cluster

    return cluster.current().engines


@pytest.mark.filterwarnings("ignore::jaxpar_magic.errors.JaxparWarning")
def test_items_of_plain_python_fail_as_in_a_loop():
    def reciprocal(text):
        return 1 / int(text)

    with pytest.raises(ZeroDivisionError) as caught:
        parmap(reciprocal, ["1", "2", "0", "4", "0"], strategy="cluster", chunk_size=1)
    assert any("item 2 of 5 (text='0'), on engine" in note for note in caught.value.__notes__)
    assert "return 1 / int(text)" in str(caught.value.__cause__)
    got = parmap(reciprocal, ["1", "2", "0", "4"], strategy="cluster", on_error="skip")
    assert got.tolist() == [1.0, 0.5, 0.25] and last_report().skipped == [2]
    with pytest.raises(InputError, match=r"Item 1 cannot be sent to an engine"):
        parmap(str, ["a", (c for c in "b"), "c"], strategy="cluster")
    with pytest.raises(WorkerError, match="The result of item 0 cannot be sent back from engine"):
        parmap(lambda text: (c for c in text), ["a"], strategy="cluster")


# -------------------------------------------------------------------- errors


def test_an_error_while_tracing_is_the_users_own():
    with pytest.raises(TypeError, match="incompatible shapes"):
        parmap(lambda v: v + jnp.ones(5), np.ones((4, 3), np.float32), strategy="cluster")


def checked(x):
    def look(value):
        if value == 4:
            raise ValueError("four is not allowed")
        return value

    return jax.pure_callback(look, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="sequential")


@pytest.mark.filterwarnings("ignore::jaxpar_magic.errors.JaxparWarning")
def test_an_item_that_fails_on_an_engine_is_named():
    xs = np.arange(10, dtype=np.float32)
    with pytest.raises(Exception, match="four is not allowed") as caught:
        parmap(checked, xs, strategy="cluster", chunk_size=3)
    assert any("item 4 of 10 (x=4.0), on engine" in note for note in caught.value.__notes__)
    got = parmap(checked, xs, strategy="cluster", chunk_size=3, on_error="skip")
    assert got.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9] and last_report().skipped == [4]
    assert "four is not allowed" in last_report().failed[0].problem


def test_debug_nans_names_the_item():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"item 7 of 20 \(x=7\.0\)"):
        parmap(lambda x: jnp.log(7 - x - 1e-9 * (x < 0)) * 0, np.arange(20, dtype=np.float32), strategy="cluster")


def test_results_that_are_not_finite_are_named():
    parmap(lambda x: 1 / x, np.array([1, 0, 2, 0], np.float32), strategy="cluster", check="finite")
    assert [(i.index, i.problem) for i in last_report().not_finite] == [(1, "inf"), (3, "inf")]


def test_options_that_an_engine_cannot_follow():
    with pytest.raises(DeviceError, match=r"devices=64: an engine of the cluster has 1"):
        parmap(jnp.sin, XS, strategy="cluster", devices=64)
    with pytest.raises(InputError, match="remainder='error'"):
        parmap(jnp.sin, XS, strategy="cluster", remainder="error")
    assert len(parmap(jnp.sin, XS, strategy="cluster", remainder="drop")) == 100


def test_without_a_cluster_it_says_how_to_start_one(monkeypatch):
    monkeypatch.setattr(elsewhere, "_find", None)
    with pytest.raises(ClusterError, match=r"no cluster is running\.\nNext: %jaxcluster start"):
        parmap(jnp.sin, XS, strategy="cluster")


# -------------------------------------------------------------------- what surrounds a map


def test_settings_are_the_notebooks():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        assert parmap(lambda x: x / 3, np.array([1.0]), strategy="cluster").dtype == np.float64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert parmap(lambda x: x / 3, np.array([1.0]), strategy="cluster").dtype == np.float32


def test_a_function_is_sent_once_and_compiled_once():
    weights = np.ones(200_000, np.float32)

    def heavy(x):
        return x + weights.sum()

    parmap(heavy, XS, strategy="cluster", chunk_size=30)
    assert not last_report().reused
    parmap(heavy, XS, strategy="cluster", chunk_size=30)
    assert last_report().reused


def test_prints_are_labelled(capsys):
    def say(x):
        jax.debug.print("x is {}", x)
        return x

    parmap(say, np.arange(3, dtype=np.float32), strategy="cluster")
    lines = [line for line in capsys.readouterr().out.splitlines() if "x is" in line]
    assert sorted(line.partition("] ")[2] for line in lines) == ["x is 0.0", "x is 1.0", "x is 2.0"]
    assert all(line.startswith("[engine ") for line in lines)


def test_the_report_says_what_ran():
    parmap(jnp.sin, XS, strategy="cluster", chunk_size=20)
    report = last_report()
    assert report.line().startswith("parmap sin: cluster on 2 engines × 1 device, 101 items, 6 chunks, ")
    assert len(report.chunk_seconds) == 6
    assert any(reason.startswith("on the engines: ") for reason in report.reasons)


def test_show_plan_and_what_it_cannot_show():
    shown = parmap(jnp.sin, XS, strategy="cluster", chunk_size=20, show="plan")
    assert "strategy: cluster\nengines: 2\n" in shown.text and "chunks: 6 of 20 items" in shown.text
    with pytest.raises(OptionError, match="engines of a cluster choose and compile for themselves"):
        parmap(jnp.sin, XS, strategy="cluster", show="hlo")


def test_a_checkpoint_goes_on_anywhere(tmp_path):
    parmap(noisy, XS, key=1, strategy="cluster", chunk_size=10, checkpoint=tmp_path / "c")
    files = sorted((tmp_path / "c").glob("items-*"))
    assert len(files) == 11
    files[3].unlink()
    with pytest.raises(CheckpointError, match="add resume"):
        parmap(noisy, XS, key=1, strategy="cluster", checkpoint=tmp_path / "c")
    got = parmap(noisy, XS, key=1, strategy="cluster", checkpoint=tmp_path / "c", resume=True)
    assert last_report().resumed == 91
    files[5].unlink()
    again = parmap(noisy, XS, key=1, strategy="vmap", checkpoint=tmp_path / "c", resume=True)
    assert last_report().resumed == 91
    np.testing.assert_allclose(got, again, rtol=1e-6)
