"""Inputs and results that need not fit into memory: what is read, what is held, what is written, and what is left."""

from __future__ import annotations

import itertools
import re
import shutil
import threading

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpar_magic import last_report, parmap
from jaxpar_magic.errors import CheckpointError, InputError, MapTimeout, OptionError, OutputError
from jaxpar_magic.mapping import api, collect, monitor, sinks, sources, stream
from jaxpar_magic.mapping.facts import ItemFacts
from jaxpar_magic.mapping.memory import Fitting, memory_bound, parse_memory
from jaxpar_magic.mapping.options import MapOptions
from jaxpar_magic.mapping.source import Texts

ROWS = np.random.default_rng(0).normal(size=(103, 5)).astype(np.float32)


def summed(row):
    return (2 * row).sum()


def several(row):
    return {"sum": row.sum(), "row": (row, row[0] > 0)}


class Slices:
    """An array that can only be sliced, and remembers what was read of it."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.read: list[tuple[int, int]] = []

    def __getitem__(self, index):
        rows = index[0]
        self.read.append((rows.start, rows.stop))
        return self._array[index]


def make_source(kind, array, folder):
    """(what is given to the map, as inputs or as options)."""
    if kind == "memmap":
        np.save(folder / "in.npy", array)
        return [np.load(folder / "in.npy", mmap_mode="r")], {}
    if kind == "npy":
        np.save(folder / "in.npy", array)
        return [], {"input_file": folder / "in.npy"}
    if kind == "npz":
        np.savez(folder / "in.npz", a=array, b=array + 1)
        return [], {"input_file": f"{folder}/in.npz::a"}
    if kind in ("hdf5", "hdf5 file"):
        if not (folder / "in.h5").exists():  # the map before may hold it open
            with h5py.File(folder / "in.h5", "w") as file:
                file.create_dataset("group/rows", data=array, chunks=(min(7, len(array)), *array.shape[1:]))
                file["other"] = np.zeros(3)
        if kind == "hdf5":
            return [h5py.File(folder / "in.h5", "r")["group/rows"]], {}
        return [], {"input_file": f"{folder}/in.h5::group/rows"}
    if kind in ("zarr 2", "zarr 3", "zarr file"):
        version = {"zarr_format": int(kind[-1])} if kind[-1].isdigit() else {}
        made = zarr.open_array(
            store=str(folder / "in.zarr"), mode="w", shape=array.shape, chunks=(7, *array.shape[1:]),
            dtype=array.dtype, **version,
        )  # fmt: skip
        made[:] = array
        if kind == "zarr file":
            return [], {"input_file": folder / "in.zarr"}
        return [zarr.open(str(folder / "in.zarr"), mode="r")], {}
    if kind == "slices":
        return [Slices(array)], {}
    assert kind == "generator"
    return [(row for row in array)], {}


SOURCES = ("memmap", "npy", "npz", "hdf5", "hdf5 file", "zarr 2", "zarr 3", "zarr file", "slices", "generator")


def plain(value):
    return jax.tree.map(lambda a: np.asarray(a[...]), value)


def assert_equal(actual, expected):
    assert jax.tree.structure(plain(actual)) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(plain(actual)), jax.tree.leaves(expected)):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ every source, every place for the result


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_into_every_place(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "MAX_ITEMS", 20)
    expected = plain(parmap(summed, ROWS, strategy="vmap"))
    for options in (
        {"strategy": "vmap"},
        {"strategy": "vmap", "chunk_size": 10, "out_file": tmp_path / "out.npy"},
        {"strategy": "shard_map", "chunk_size": 10, "out_file": tmp_path / "out.zarr"},
        {"out_file": tmp_path / "out.npy"},  # replaced
        {"strategy": "thread", "chunk_size": 7, "check": "finite"},
        {"strategy": "pmap", "chunk_size": 7},
    ):
        inputs, more = make_source(kind, ROWS, tmp_path)
        assert_equal(parmap(summed, *inputs, **options, **more), expected)
    assert {p.name.partition(".")[0] for p in tmp_path.iterdir()} <= {"in", "out"}


@pytest.mark.parametrize("kind", ["memmap", "hdf5", "zarr 3", "slices", "generator"])
def test_plain_python_reads_and_writes_by_parts_too(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(sinks.ItemWriter, "EVERY", 10)
    monkeypatch.setattr(sources, "ITEM_BLOCK_BYTES", 100)
    expected = plain(parmap(several, ROWS, strategy="serial"))
    for options in ({}, {"out_file": tmp_path / "out.zarr"}):
        inputs, _ = make_source(kind, ROWS, tmp_path)
        assert_equal(parmap(several, *inputs, strategy="serial", **options), expected)
        if kind == "slices":
            assert max(end - begin for begin, end in inputs[0].read) <= 5
    if kind not in ("memmap", "generator"):  # workers see nothing of the others: items are read here
        return
    inputs, _ = make_source(kind, ROWS, tmp_path)
    out = parmap(summed, *inputs, strategy="process", out_file=tmp_path / "out.npy", devices=2)
    assert isinstance(out, np.memmap)
    np.testing.assert_allclose(out, 2 * ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["vmap", "shard_map", "serial"])
def test_a_pytree_goes_into_a_group(strategy, tmp_path):
    out = parmap(several, ROWS, strategy=strategy, chunk_size=10, out_file=tmp_path / "out.zarr")
    assert_equal(out, plain(parmap(several, ROWS, strategy=strategy)))
    assert isinstance(out["sum"], zarr.Array)
    opened = zarr.open(str(tmp_path / "out.zarr"), mode="r")
    np.testing.assert_array_equal(opened["row/0"][:], ROWS)
    assert sinks.leaf_names(jax.tree.structure((0, {"a b": 0}))) == ["0", "1/a_b"]
    assert sinks.leaf_names(jax.tree.structure({"a b": 0, "a_b": 0})) == ["0", "1"]


def test_sources_in_a_pytree_along_other_axes_and_in_other_byte_orders(tmp_path):
    np.save(tmp_path / "wide.npy", np.ascontiguousarray(ROWS.T.astype(">f4")))
    wide = np.load(tmp_path / "wide.npy", mmap_mode="r")
    records = np.zeros(103, [("a", "<f4"), ("b", ">f4", (2,))])
    records["a"], records["b"] = ROWS[:, 0], ROWS[:, 1:3]
    np.save(tmp_path / "records.npy", records)
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    expected = 2 * ROWS.sum(axis=1)
    for axis in (1, -1):
        out = parmap(summed, wide, in_axes=axis, chunk_size=10)
        np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-4, atol=1e-5)
    out = parmap(lambda r, rows: r["a"] + r["b"].sum() + rows.sum(), mapped, Slices(ROWS), chunk_size=30)
    np.testing.assert_allclose(np.asarray(out), ROWS[:, :3].sum(axis=1) + ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)
    shared = parmap(lambda r, t: r.sum() + t[3, 0], Slices(ROWS), Slices(ROWS), in_axes=(0, None))
    np.testing.assert_allclose(np.asarray(shared), ROWS.sum(axis=1) + ROWS[3, 0], rtol=1e-4, atol=1e-5)


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=15, **QUIET)
@given(
    length=st.integers(0, 40),
    chunk=st.sampled_from((None, 1, 3, 8, 50)),
    first=st.sampled_from((1, 4, 100)),
    kind=st.sampled_from(("memmap", "slices", "generator")),
    strategy=st.sampled_from(("vmap", "map", "shard_map", "thread")),
    place=st.sampled_from((None, "out.npy", "out.zarr")),
    callback=st.booleans(),
)
@pytest.mark.filterwarnings("ignore")
def test_random_lengths_and_chunks(tmp_path_factory, length, chunk, first, kind, strategy, place, callback):
    folder = tmp_path_factory.mktemp("data")
    rows = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
    seen = []

    def job(row):
        if callback:
            jax.debug.callback(lambda v: seen.append(int(v)), row[0])
        return row * 2

    inputs, _ = make_source(kind, rows, folder)
    options = {"chunk_size": chunk, "strategy": strategy}
    if place is not None:
        options["out_file"] = folder / place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "MAX_ITEMS", first)
        if length == 0 and kind == "generator":
            return  # of no items nobody knows a type
        out = parmap(job, *inputs, **options)
    np.testing.assert_array_equal(np.asarray(out[...]), 2 * rows)
    if callback:
        jax.effects_barrier()
        assert sorted(seen) == list(range(0, 2 * length, 2))


def test_keys_checks_and_items_have_the_same_numbers_everywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(stream, "MAX_ITEMS", 8)

    def draw(x, key):
        return jnp.where(x == 13, jnp.nan, x) + jax.random.normal(key)

    xs = np.arange(30, dtype=np.float32)
    expected = np.asarray(parmap(draw, xs, key=5))
    np.testing.assert_array_equal(np.asarray(parmap(draw, iter(xs.tolist()), key=5, check="finite")), expected)
    assert [i.index for i in last_report().not_finite] == [13]
    assert "x=13.0" in last_report().not_finite[0].inputs
    out = parmap(draw, Slices(xs), key=5, check="finite", chunk_size=4, out_file=tmp_path / "y.npy")
    np.testing.assert_array_equal(np.asarray(out), expected)
    assert [i.index for i in last_report().not_finite] == [13]


# ------------------------------------------------------------------ what is read, and when


def test_an_input_is_never_read_whole(monkeypatch):
    monkeypatch.setattr(sources, "ITEM_BLOCK_BYTES", 1)
    rows = Slices(np.ones((1000, 4), np.float32))
    parmap(summed, rows, chunk_size=50)
    assert max(end - begin for begin, end in rows.read) <= 60  # rounded up to whole batches on three devices
    assert sum(end - begin for begin, end in rows.read) <= 1000 + 10  # the first item is looked at beforehand
    rows.read.clear()
    parmap(summed, rows, memory=6_000)
    assert max(end - begin for begin, end in rows.read) < 200
    rows.read.clear()
    parmap(summed, rows, show="plan")
    assert sum(end - begin for begin, end in rows.read) <= 10


@pytest.mark.parametrize("strategy", ["vmap", "thread"])
def test_the_next_chunk_is_read_while_the_devices_compute(strategy, monkeypatch):
    """Each chunk's computation waits until the next chunk is being read: it would never end otherwise."""
    monkeypatch.setattr(sources, "ITEM_BLOCK_BYTES", 1)
    reading = [threading.Event() for _ in range(4)]

    class Signalling(Slices):
        def __getitem__(self, index):
            rows = index[0]
            if rows.stop - rows.start > 1:
                reading[rows.start // 4].set()
            return super().__getitem__(index)

    def wait_for_the_next(x):
        if x < 12:
            assert reading[int(x) // 4 + 1].wait(60)
        return np.float32(x)

    def job(x):
        return jax.pure_callback(wait_for_the_next, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")

    xs = np.arange(16, dtype=np.float32)
    out = parmap(job, Signalling(xs), strategy=strategy, chunk_size=4, devices=2 if strategy == "thread" else None)
    np.testing.assert_array_equal(np.asarray(out), xs)


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_what_was_assigned_to_a_mapped_file_is_seen_and_stays(mode, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3000, 4), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    mapped[:] = 1
    out = parmap(summed, mapped[1000:], chunk_size=500, strategy="vmap")  # pages that were read are let go
    np.testing.assert_array_equal(np.asarray(out), np.full(2000, 8))
    assert (mapped == 1).all()
    assert (np.load(tmp_path / "x.npy") == (1 if mode == "r+" else 0)).all()


def test_whole_numbers_are_looked_at_as_they_are_read():
    small, large = Slices(np.arange(9)), Slices(np.array([1, 2, 2**40]))
    assert np.asarray(parmap(lambda x: x + 1, small, chunk_size=4)).tolist() == list(range(1, 10))
    assert "int64 computed as int32" in last_report().notes[0]
    with pytest.raises(InputError, match="values up to 1099511627776 do not fit into int32"):
        parmap(lambda x: x + 1, large, chunk_size=1, strategy="vmap")


def test_what_a_source_does_wrong_is_said(monkeypatch):
    monkeypatch.setattr(sources, "ITEM_BLOCK_BYTES", 1)

    class Short(Slices):
        def __getitem__(self, index):
            return super().__getitem__(index)[:1]

    class Broken(Slices):
        def __getitem__(self, index):
            if index[0].start >= 50:
                raise OSError("unreadable")
            return super().__getitem__(index)

    with pytest.raises(InputError, match=r"row: its items 0 to 9 came as float32\[1, 5\], but it says .*\[10, 5\]"):
        parmap(summed, Short(ROWS), chunk_size=10, strategy="vmap")
    with pytest.raises(OSError, match="unreadable") as caught:
        parmap(summed, Broken(ROWS), chunk_size=10, strategy="vmap")
    assert caught.value.__notes__[0] == "parmap: while items 50 to 59 of row were read"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.npy", "there is no such file"),
        ("in.np", "is not a file of a known kind"),
        ("in.npz", "holds 2 arrays; it has a, b"),
        ("in.npz::c", "holds no array 'c'; it has a, b"),
        ("in.h5::rows", "holds no array 'rows'; it has group/rows, other"),
        ("bad.npy", "cannot be opened"),
        ("in.npy::x", "holds one array without a name"),
    ],
)
def test_an_input_file_that_is_not_there(name, message, tmp_path):
    for kind in ("npy", "npz", "hdf5 file"):
        make_source(kind, ROWS, tmp_path)
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match=message):
        parmap(summed, input_file=f"{tmp_path}/{name}")


# ------------------------------------------------------------------ iterators


def test_an_iterator_is_consumed_while_the_map_runs(monkeypatch):
    monkeypatch.setattr(stream, "MAX_ITEMS", 8)
    events = []

    def items():
        for i in range(40):
            events.append(("read", i))
            yield float(i)

    def job(x):
        jax.debug.callback(lambda v: events.append(("computed", int(v))), x)
        return x + 1

    np.testing.assert_array_equal(np.asarray(parmap(job, items(), strategy="vmap")), np.arange(1.0, 41.0))
    jax.effects_barrier()
    assert events.index(("computed", 0)) < events.index(("read", 39))
    assert last_report().length == 40
    assert last_report().chunks == 5


def test_an_iterator_that_fails_names_the_item(monkeypatch, tmp_path):
    monkeypatch.setattr(stream, "MAX_ITEMS", 8)

    def items(bad):
        for i in range(40):
            if i == bad:
                raise ZeroDivisionError("no such row")
            yield float(i)

    for bad in (0, 3, 21):
        with pytest.raises(ZeroDivisionError) as caught:
            parmap(lambda x: x + 1, items(bad), strategy="vmap", out_file=tmp_path / "out.npy")
        assert caught.value.__notes__[0] == f"parmap: x, an iterator, raised this in place of item {bad}"
    assert list(tmp_path.iterdir()) == []


def test_items_of_an_iterator_must_stay_alike(monkeypatch):
    monkeypatch.setattr(stream, "MAX_ITEMS", 8)

    def rows(odd, at):
        return (odd if i == at else np.ones(3, np.float32) for i in range(30))

    with pytest.raises(InputError, match=r"r: item 17 has shape \(4,\), the items before shape \(3,\)"):
        parmap(lambda r: r.sum(), rows(np.ones(4, np.float32), 17), strategy="vmap")
    with pytest.raises(InputError, match="r: item 17 holds a str"):
        parmap(lambda r: r.sum(), rows("text", 17), strategy="vmap")
    with pytest.raises(InputError, match="x: items from 8 on are float64, the items before were int64"):
        parmap(lambda x: x + 1, (i if i < 8 else i + 0.5 for i in range(30)), strategy="vmap")
    assert float(parmap(lambda x: x + 1, (i + 0.5 if i < 8 else i for i in range(30)))[29]) == 30.0
    # within the first items, shapes may differ as in a list
    assert np.asarray(parmap(lambda r: r.sum(), rows(np.ones(4, np.float32), 5)))[5] == 4
    with pytest.raises(InputError, match="the iterators differ in length: a has 20 or more, b has 13"):
        parmap(lambda a, b: a + b, iter([1.0] * 20), iter([1.0] * 13), chunk_size=10, strategy="vmap")
    with pytest.raises(InputError, match="the mapped inputs differ in length"):
        parmap(lambda a, b: a + b, itertools.count(), np.ones(9, np.float32), strategy="vmap")


def test_an_iterator_where_a_list_is_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(stream, "MAX_ITEMS", 8)
    xs = [float(i) for i in range(20)]
    beside = parmap(lambda a, b: a + b, iter(xs), np.float32(xs))
    np.testing.assert_array_equal(np.asarray(beside), 2 * np.float32(xs))
    out = parmap(lambda x: f"{x:.0f}", iter(xs))
    assert out == [f"{x:.0f}" for x in xs]
    assert parmap(lambda pair: pair[0], iter([("a", 1)] * 20)) == ["a"] * 20
    np.testing.assert_array_equal(np.asarray(parmap(lambda a, b: a * b, iter([(2.0, 3.0)] * 20))), [6.0] * 20)
    np.testing.assert_array_equal(
        np.asarray(parmap(lambda x: x + 1, iter(xs), checkpoint=tmp_path / "run")), np.float32(xs) + 1
    )
    with pytest.raises(OptionError, match="needs the number of items"):
        parmap(lambda x: x, iter(xs), remainder="drop")


def test_an_iterator_without_an_end_can_be_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(stream, "MAX_ITEMS", 64)
    with pytest.raises(MapTimeout, match=r"items done") as caught:
        parmap(lambda x: x * 2.0, itertools.count(), strategy="vmap", timeout=0.5, out_file=tmp_path / "out.npy")
    assert " of " not in caught.value.problem.partition("with ")[2]
    assert list(tmp_path.iterdir()) == []


def test_progress_without_a_total():
    m = monitor.Monitor()
    m.plan(0, 0, "2 devices")
    m.phase("running")
    m.advance(25, 1)
    assert m.progress().line().startswith("25 items, ")
    assert m.progress().left is None


def test_failing_items_of_an_iterator_are_named(monkeypatch):
    monkeypatch.setattr(stream, "MAX_ITEMS", 8)

    def check(v):
        if v in (3, 18):
            raise ValueError("bad value")
        return v

    def job(x):
        return jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")

    xs = [float(i) for i in range(30)]
    out = parmap(job, iter(xs), strategy="vmap", on_error="skip")
    assert np.asarray(out).tolist() == [x for x in xs if x not in (3, 18)]
    assert [(f.index, f.inputs) for f in last_report().failed] == [(3, "x=3.0"), (18, "x=18.0")]
    with pytest.raises(Exception, match="bad value") as caught:
        parmap(job, iter(xs[4:]), strategy="vmap")
    assert any("item 14 " in note for note in caught.value.__notes__)


# ------------------------------------------------------------------ the memory bound


@pytest.mark.parametrize(
    ("text", "value"),
    [("2GB", 2 * 10**9), ("1.5GiB", 3 << 29), ("500 mb", 5 * 10**8), ("4096", 4096), (4096, 4096), ("50%", 0.5),
     ("2k", 2000), ("1_000B", 1000), ("100%", 1.0), (np.int64(7), 7)],
)  # fmt: skip
def test_memory_as_people_write_it(text, value):
    assert parse_memory(text) == value


@pytest.mark.parametrize("wrong", ["", "GB", "0", 0, -1, True, "150%", "0%", "2XB", 0.5, "1e9", "5iB", None, "-1GB"])
def test_memory_that_is_none(wrong):
    with pytest.raises(OptionError, match=r"memory=.*: needs bytes, such as 2GB"):
        parse_memory(wrong)


def test_the_default_bound_is_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr("jaxpar_magic.mapping.memory.free_memory", lambda: 1000)
    assert (memory_bound(None), memory_bound("50%"), memory_bound("5kB"), memory_bound(0.25)) == (800, 500, 5000, 250)


@settings(max_examples=200, **QUIET)
@given(
    slope=st.integers(1, 10**6),
    fixed=st.integers(0, 10**7),
    power=st.floats(0.5, 1.2),
    bound=st.integers(10**4, 10**9),
    length=st.integers(1, 10**6),
    parts=st.sampled_from((1, 2, 3)),
    to_file=st.booleans(),
)
def test_a_fitting_chunk_is_found_in_few_compilations(slope, fixed, power, bound, length, parts, to_file):
    facts = ItemFacts(input_bytes=8, output_bytes=4)

    def program(chunk):
        return int(fixed + slope * chunk**power)

    fitting = Fitting(bound, length, facts, to_file=to_file)
    chunk, compiled = -(-length // parts) * parts, 0
    try:
        while True:
            compiled += 1
            smaller = fitting.next_chunk(chunk, program(chunk), parts)
            if smaller is None:
                break
            assert smaller < chunk
            assert smaller % parts == 0
            chunk = smaller
    except InputError as error:
        assert error.argument == "memory"  # noqa: PT017 the search may end either way
        assert fitting.peak(parts, program(parts)).total > bound
    else:
        assert fitting.peak(chunk, program(chunk)).total <= bound
    assert compiled <= 4


def test_results_in_many_chunks_are_not_copied_at_the_end(monkeypatch):
    made = []
    empty = collect._empty
    monkeypatch.setattr(collect, "_empty", lambda *of: made.append(empty(*of)) or made[-1])
    for inputs in (ROWS, iter(ROWS)):
        out = parmap(several, inputs, strategy="vmap", chunk_size=10)
        pointers = {a.unsafe_buffer_pointer() for a in jax.tree.leaves(out)}
        assert pointers == {a.ctypes.data for a in made}
        made.clear()


def wide(x):
    return jnp.sort(x * jnp.arange(1000.0))[10]


def test_chunks_keep_within_the_bound():
    xs = np.arange(3000, dtype=np.float32)
    expected = np.asarray(parmap(wide, xs, strategy="map"))
    for strategy in ("vmap", "shard_map", "thread", "pmap", "jit"):
        np.testing.assert_allclose(np.asarray(parmap(wide, xs, strategy=strategy, memory="2MB")), expected)
        assert last_report().chunks > 3 or strategy not in ("vmap", "jit")  # the others batch what is large
        assert any(re.search(r"holds up to .*, as compiled, of the 2 MB", reason) for reason in last_report().reasons)
    shown = parmap(wide, xs, strategy="vmap", memory="2MB", show="plan").text
    assert "of the 2 MB it may hold" in shown


def test_what_cannot_fit_is_refused_before_anything_runs(tmp_path):
    ran = []

    def job(x):
        jax.debug.callback(lambda v: ran.append(v), x)
        return wide(x)

    xs = np.arange(3000, dtype=np.float32)
    with pytest.raises(InputError, match=r"a single item would need [\d.]+ kB, but the map may hold 5 kB") as caught:
        parmap(job, xs[:10], strategy="vmap", memory="5kB")
    assert "a larger memory=" in caught.value.next_step
    with pytest.raises(InputError, match=r"3 items at a time, one on each device, would need") as caught:
        parmap(job, xs[:10], strategy="shard_map", memory="15kB")
    assert "devices=1" in caught.value.next_step
    with pytest.raises(InputError, match=r"the result takes 12 MB and .*, but the map may hold 1 MB") as caught:
        parmap(lambda x: x * jnp.ones(1000, jnp.float32), xs, strategy="vmap", memory="1MB")
    assert "out_file" in caught.value.next_step
    out = parmap(
        lambda x: x * jnp.ones(1000, jnp.float32), xs, strategy="vmap", memory="1MB", out_file=tmp_path / "y.npy"
    )
    np.testing.assert_array_equal(out, np.repeat(xs[:, None], 1000, axis=1))
    with pytest.raises(
        OptionError, match=r"chunk_size: 3000 items at a time hold .* but memory= allows 1 MB"
    ) as caught:
        parmap(wide, xs, strategy="vmap", memory="1MB", chunk_size=3000)
    assert "chunk_size=" in caught.value.next_step
    with pytest.raises(OptionError, match="memory: bounds what JAX holds"):
        parmap(wide, xs, strategy="serial", memory="1GB")
    assert ran == []
    parmap(wide, xs[:10], memory="60kB")  # three at a time are too much; auto takes one
    assert last_report().parts == 1


@pytest.mark.slow
def test_a_map_of_22_gigabytes_keeps_within_one(fresh_python):
    done = fresh_python(
        """
        import re, jax, numpy as np, jax.numpy as jnp
        from jaxpar_magic import last_report, parmap
        grid = np.linspace(0, 1, 50_000, dtype=np.float32)
        weights = np.ones((50_000, 1), np.float32) / 50_000
        def distance(x):  # vectorised, the operand of the product is one array of (items, 50_000)
            return (jnp.abs(x - grid) @ weights)[0]
        def status(field):
            return int(re.search(field + r":\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024
        xs = np.linspace(0, 1, 110_000, dtype=np.float32)
        parmap(distance, xs[:100], strategy="vmap")
        whole = jax.jit(jax.vmap(distance)).lower(jax.ShapeDtypeStruct(xs.shape, xs.dtype)).compile()
        before = status("VmRSS")
        ys = parmap(distance, xs, strategy="vmap", memory="1GB")
        chunks = last_report().chunks
        again = parmap(distance, xs, memory="1GB")  # auto takes few at a time
        held = status("VmHWM") - before
        expected = (xs**2 + (1 - xs)**2) / 2
        print(held, chunks, float(np.abs(np.stack([ys, again]) - expected).max()))
        print(whole.memory_analysis().temp_size_in_bytes)
        """,
        timeout=600,
    )
    held, chunks, error, whole = done.stdout.split()
    assert int(whole) > 20_000_000_000
    assert int(held) < 1_000_000_000, done.stdout
    assert int(chunks) > 20
    assert float(error) < 1e-3


@pytest.mark.slow
def test_a_large_file_into_a_file_keeps_within_the_bound(fresh_python, tmp_path):
    done = fresh_python(
        f"""
        import re, numpy as np, jax.numpy as jnp
        from jaxpar_magic import last_report, parmap
        def status(field):
            return int(re.search(field + r":\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024
        rows = np.lib.format.open_memmap("{tmp_path}/x.npy", "w+", np.float32, (4000, 50_000))  # 800 MB
        for i in range(0, 4000, 100):
            rows[i : i + 100] = np.arange(i, i + 100, dtype=np.float32)[:, None]
        del rows
        parmap(lambda r: r + 1, np.ones((4, 10), np.float32))
        open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
        before = status("VmRSS")
        out = parmap(lambda r: r + 1, input_file="{tmp_path}/x.npy", out_file="{tmp_path}/y.npy", memory="100MB")
        print(status("VmHWM") - before, last_report().chunks)
        print(out.shape, all((out[i] == i + 1).all() for i in range(0, 4000, 777)))
        """,
        timeout=300,
    )
    held, chunks = done.stdout.split()[:2]
    assert int(held) < 150_000_000, done.stdout  # the bound, and what the allocator keeps
    assert int(chunks) > 8
    assert "(4000, 50000) True" in done.stdout


# ------------------------------------------------------------------ files of results


def contents(path):
    return np.load(path) if path.suffix == ".npy" else zarr.open(str(path), mode="r")[:]


@pytest.mark.parametrize("strategy", ["vmap", "serial"])
@pytest.mark.parametrize("name", ["out.npy", "out.zarr"])
def test_an_interrupt_leaves_the_old_file_and_resume_goes_on(name, strategy, tmp_path, stop_after, monkeypatch):
    monkeypatch.setattr(sinks.ItemWriter, "EVERY", 4)
    out = tmp_path / name
    parmap(lambda r: r[0], ROWS, out_file=out)
    stop_after(3)
    with pytest.raises(KeyboardInterrupt) as caught:
        parmap(summed, ROWS, strategy=strategy, chunk_size=10, out_file=out)
    if strategy == "vmap":
        assert "--checkpoint DIR would keep them" in caught.value.__notes__[-1]
    np.testing.assert_array_equal(contents(out), ROWS[:, 0])
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with pytest.raises(CheckpointError, match="no interrupted map is in memory"):
        parmap(summed, ROWS, strategy=strategy, out_file=out, resume=True)
    folder = tmp_path / "run"
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        parmap(summed, ROWS, strategy=strategy, chunk_size=10, out_file=out, checkpoint=folder)
    np.testing.assert_array_equal(contents(out), ROWS[:, 0])
    parmap(summed, ROWS, strategy=strategy, out_file=out, checkpoint=folder, resume=True)
    assert last_report().resumed == (30 if strategy == "vmap" else 3)
    np.testing.assert_allclose(contents(out), 2 * ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)
    assert {p.name for p in tmp_path.iterdir()} == {name, "run"}


def test_a_checkpoint_knows_its_file_by_what_is_in_it(tmp_path, stop_after):
    np.save(tmp_path / "x.npy", ROWS)
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        parmap(summed, input_file=tmp_path / "x.npy", chunk_size=10, strategy="vmap", checkpoint=tmp_path / "run")
    np.save(tmp_path / "x.npy", ROWS + 1)
    with pytest.raises(CheckpointError, match="different: input row"):
        parmap(summed, input_file=tmp_path / "x.npy", strategy="vmap", checkpoint=tmp_path / "run", resume=True)
    out = parmap(summed, ROWS, strategy="vmap", checkpoint=tmp_path / "run", resume=True)  # the same, in memory
    assert last_report().resumed == 30
    np.testing.assert_allclose(np.asarray(out), 2 * ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_keeps_within_the_bound(tmp_path):
    xs = np.arange(3000, dtype=np.float32)
    parmap(wide, xs, strategy="vmap", memory="400kB", checkpoint=tmp_path / "run")  # a twentieth would be too much
    assert last_report().chunks > 20
    assert len(list((tmp_path / "run").glob("items-*"))) == last_report().chunks
    parmap(wide, xs, strategy="vmap", checkpoint=tmp_path / "plenty")
    assert 10 <= last_report().chunks <= 20


def test_an_interrupted_map_over_a_small_file_can_go_on_in_memory(tmp_path, stop_after):
    np.save(tmp_path / "x.npy", ROWS)
    stop_after(4)
    with pytest.raises(KeyboardInterrupt):
        parmap(summed, input_file=tmp_path / "x.npy", chunk_size=10, strategy="vmap")
    parmap(summed, input_file=tmp_path / "x.npy", strategy="vmap", resume=True)
    assert last_report().resumed == 40


@pytest.mark.parametrize("name", ["out.npy", "out.zarr"])
@pytest.mark.parametrize("strategy", ["vmap", "serial"])
def test_a_full_disk_is_said_and_nothing_is_damaged(name, strategy, tmp_path, fresh_python):
    done = fresh_python(
        f"""
        import os, resource, signal
        import numpy as np
        from pathlib import Path
        from jaxpar_magic import parmap
        from jaxpar_magic.mapping import sinks
        sinks.ItemWriter.EVERY = 10
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        xs = np.arange(60, dtype=np.float32)
        out = Path({str(tmp_path)!r}, {name!r})
        parmap(lambda x: x * np.ones(1000, np.float32), xs[:2], strategy={strategy!r}, out_file=out)
        random = np.random.default_rng(0).normal(size=(60, 5000)).astype(np.float32)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))  # write() then fails for real
        try:
            parmap(lambda x: x + 1, random, strategy={strategy!r}, chunk_size=10, out_file=out)
        except Exception as error:
            print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(sorted(os.listdir({str(tmp_path)!r})))
        """,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"OutputError out_file='{tmp_path}/{name}': cannot write ("), done.stdout + done.stderr
    assert "what was there before is unchanged" in lines[0]
    assert lines[-1] == f"[{name!r}]"
    np.testing.assert_array_equal(contents(tmp_path / name), np.repeat([[0], [1]], 1000, axis=1))


def test_a_disk_that_is_too_small_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 900, 100))
    with pytest.raises(OutputError, match=r"the result takes 412 B, and the disk has 100 B free"):
        parmap(summed, ROWS, out_file=tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "options", "message", "next_step"),
    [
        (several, {"out_file": "y.npy"}, "returns 3 arrays, and a .npy file holds one", "'y.zarr'"),
        (summed, {"out_file": "y.txt"}, "needs a name that ends in .npy", "y.npy"),
        (summed, {"out_file": "no/y.npy"}, "there is no folder", None),
        (summed, {"out_file": "folder.npy"}, "is a folder", None),
        (summed, {"out_file": "other.zarr"}, "exists and is not a zarr folder", "another name"),
        (lambda r: r.astype(jnp.bfloat16), {"out_file": "y.npy"}, "cannot hold bfloat16", "astype"),
        (summed, {"out_file": "y.npy", "out_axes": 1}, "writes items along axis 0", "moveaxis"),
        (summed, {"out_file": "y.npy", "on_error": "skip"}, "do not go together", None),
        (summed, {"out_file": "y.npy", "compare": True}, "do not go together", None),
        (lambda r: {}, {"out_file": "y.npy"}, "returns 0 arrays", None),
    ],
)
def test_results_that_a_file_cannot_hold(function, options, message, next_step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "other.zarr").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OptionError, match=message) as caught:
        parmap(function, ROWS, **options)
    assert next_step is None or next_step in caught.value.next_step
    assert sorted(tmp_path.rglob("*")) == before


def test_plain_results_that_are_unlike_the_first_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks.ItemWriter, "EVERY", 5)
    monkeypatch.chdir(tmp_path)
    xs = list(range(20))
    with pytest.raises(OutputError, match=r"item 12 gave float64\[\], the items before int64\[\]"):
        parmap(lambda i: i + 0.5 if i == 12 else i, xs, strategy="serial", out_file="y.npy")
    with pytest.raises(OutputError, match=r"item 12 gave float64\[2\], the items before float64\[1\]"):
        parmap(lambda i: np.ones(2 if i == 12 else 1), xs, strategy="serial", out_file="y.npy")
    with pytest.raises(OutputError, match="holds numbers, but item 0 gave <U1"):
        parmap(str, xs, strategy="serial", out_file="y.npy")
    with pytest.raises(InputError, match="the items have 2 shapes, and a file holds arrays of one shape"):
        parmap(lambda r: r.sum(), [np.ones(2), np.ones(3)], out_file="y.npy")
    assert list(tmp_path.iterdir()) == []


def test_no_items_make_an_empty_file(tmp_path):
    out = parmap(summed, ROWS[:0], out_file=tmp_path / "y.npy")
    assert out.shape == np.load(tmp_path / "y.npy").shape == (0,)


# ------------------------------------------------------------------ printed code, and the magic


@pytest.mark.parametrize("strategy", ["vmap", "map", "shard_map", "thread", "pmap", "jit", "serial"])
def test_printed_code_reads_and_writes_by_chunks(strategy, tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    options = MapOptions(strategy=strategy, chunk_size=10, input_file=tmp_path / "x.npy", out_file=tmp_path / "y.npy")
    texts = Texts("summed", "def summed(row):\n    return (2 * row).sum()\n", [], {})
    code = api.run(summed, [], {}, options, show="code", texts=texts).text
    assert "mmap_mode='r'" in code
    space: dict = {}
    exec(compile(code, "<shown>", "exec"), space)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), 2 * ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)
    in_memory = api.run(
        summed, [], {}, MapOptions(strategy=strategy, chunk_size=10, input_file=tmp_path / "x.npy"), show="code",
        texts=texts,
    ).text  # fmt: skip
    exec(compile(in_memory, "<shown>", "exec"), space)
    np.testing.assert_allclose(np.asarray(space["out"]), 2 * ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)


def test_code_that_is_not_printed(tmp_path):
    with pytest.raises(OptionError, match="no code is printed for out_file="):
        parmap(summed, ROWS, strategy="vmap", out_file=tmp_path / "y.zarr", show="code")
    with pytest.raises(OptionError, match="no code is printed for row, which is read from a file along axis 1"):
        parmap(summed, Slices(ROWS.T.copy()), strategy="vmap", in_axes=1, show="code")


def test_the_magic_takes_files(shell, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    shell.run_line_magic("load_ext", "jaxpar_magic")
    shell.run_cell("def total(row): return row.sum()")
    shell.run_cell("%parmap total --input-file x.npy --out-file y.npy --memory 50% -o y")
    assert "103 items" in capsys.readouterr().out
    np.testing.assert_allclose(np.load("y.npy"), ROWS.sum(axis=1), rtol=1e-4, atol=1e-5)
    assert isinstance(shell.user_ns["y"], np.memmap)
    shell.run_cell("code = %parmap total --input-file x.npy --show code")
    assert "data = np.load('x.npy', mmap_mode='r')" in str(shell.user_ns["code"])


def test_the_extra_packages_are_imported_only_where_they_are_met(fresh_python):
    done = fresh_python(
        """
        import sys, numpy as np
        from jaxpar_magic import parmap
        parmap(lambda x: x + 1, np.arange(3.0))
        print([name for name in ("h5py", "zarr", "dask") if name in sys.modules])
        """
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["h5py", "zarr"])
def test_a_package_that_is_not_installed_is_named(package, tmp_path, monkeypatch):
    make_source("hdf5 file", ROWS, tmp_path)
    make_source("zarr file", ROWS, tmp_path)
    monkeypatch.setitem(__import__("sys").modules, package, None)
    name = "in.h5::other" if package == "h5py" else "in.zarr"
    with pytest.raises(InputError, match=f"needs the package {package}") as caught:
        parmap(summed, input_file=f"{tmp_path}/{name}")
    assert caught.value.next_step == 'pip install "jaxpar-magic[files]"'
    if package == "zarr":
        with pytest.raises(OptionError, match="needs the package zarr"):
            parmap(summed, ROWS, out_file=tmp_path / "y.zarr")
