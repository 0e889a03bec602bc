"""`auto`: the rules it begins with, what it measures, what it remembers."""

import gc
import itertools
import json
import math
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar_magic import last_report, parmap
from jaxpar_magic.errors import CheckpointError, InputError, OptionError
from jaxpar_magic.mapping import traced, tuner
from jaxpar_magic.mapping.facts import ItemFacts, item_facts
from jaxpar_magic.mapping.planner import (
    LOOP_ELEMENTS,
    MAX_WIDTH,
    WHILE_WIDTH,
    Resources,
    Way,
    first_way,
    plan_map,
)
from jaxpar_magic.mapping.prepare import forget
from jaxpar_magic.mapping.tuner import Tuning

TWO = Resources(2, "cpu", 2, 8 << 30)
ONE = Resources(1, "cpu", 2, 8 << 30)


def facts_of(function, *item):
    structs = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in item]
    return item_facts(jax.make_jaxpr(function)(*structs), structs)


def collatz(n):
    """A loop whose length depends on the item."""
    return jax.lax.while_loop(
        lambda s: s[0] > 1, lambda s: (jnp.where(s[0] % 2, 3 * s[0] + 1, s[0] // 2), s[1] + 1), (n, 0)
    )[1]


def walk(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c) + x, None), x, None, length=50)[0]


# -------------------------------------------------------------------- facts


def test_facts_of_loops():
    assert facts_of(collatz, np.int32(7)).has_while
    scan = facts_of(walk, np.ones(16, np.float32))
    assert scan.has_loop and not scan.has_while and scan.loop_elements == 16
    nested = facts_of(
        lambda x: jax.lax.scan(lambda c, _: (walk(c), None), x, None, length=3)[0], np.ones(4, np.float32)
    )
    assert nested.loop_elements == 4
    assert nested.nanoseconds == pytest.approx(3 * 4 / 16 * scan.nanoseconds, rel=0.2)


def test_facts_of_what_fuses():
    assert facts_of(lambda x: jnp.sum(jnp.exp(-x) * x), np.ones(8, np.float32)).fuses
    assert facts_of(jax.jit(lambda x: jax.nn.relu(x) + jnp.where(x > 0, x, 0.0)), np.float32(1)).fuses
    assert not facts_of(lambda x: x @ x, np.ones((8, 8), np.float32)).fuses
    assert not facts_of(jnp.sort, np.ones(8, np.float32)).fuses
    assert not facts_of(walk, np.float32(1)).fuses


def test_the_guess_of_cost_grows_with_the_work():
    small, large = (facts_of(lambda x: x @ x, np.ones((n, n), np.float32)).nanoseconds for n in (8, 80))
    assert large == pytest.approx(1000 * small, rel=0.01)
    assert facts_of(lambda x: x, np.float32(1)).nanoseconds == 0


# -------------------------------------------------------------------- the rules


def test_rules_for_the_width():
    way, _ = first_way(ItemFacts(has_loop=True, loop_elements=1, input_bytes=4, nanoseconds=1e4), 100_000, TWO)
    assert (way.strategy, way.width, way.interleaved) == ("shard_map", MAX_WIDTH, False)
    way, _ = first_way(ItemFacts(has_loop=True, has_while=True, loop_elements=1, input_bytes=4), 100_000, TWO)
    assert (way.strategy, way.width, way.interleaved) == ("shard_map", WHILE_WIDTH, True)
    way, _ = first_way(ItemFacts(has_loop=True, loop_elements=512, input_bytes=4, nanoseconds=1e6), 400, ONE)
    assert (way.strategy, way.width) == ("thread", LOOP_ELEMENTS // 512)
    way, _ = first_way(
        ItemFacts(has_loop=True, loop_elements=1, work_bytes=1 << 30, input_bytes=4, nanoseconds=1e6), 9, TWO
    )
    assert way.width == 1, "a batch of two would hold two gigabytes"
    way, _ = first_way(ItemFacts(fuses=True, input_bytes=4, nanoseconds=100.0), 1_000_000, ONE)
    assert (way.strategy, way.width) == ("vmap", None)
    way, _ = first_way(ItemFacts(fuses=True, input_bytes=4, nanoseconds=1.0), 1000, TWO)
    assert way == Way("vmap"), "little work"


def test_long_work_is_cut_into_chunks():
    long = ItemFacts(has_loop=True, loop_elements=1, input_bytes=4, nanoseconds=1e6)
    plan = plan_map("auto", 100_000, long, TWO)
    assert plan.chunks > 20
    assert plan_map("auto", 100_000, long, TWO, chunk_size=50_000).chunks == 2, "the user's wish"
    short = ItemFacts(has_loop=True, loop_elements=1, input_bytes=4, nanoseconds=1e3)
    assert plan_map("auto", 100_000, short, TWO).chunks == 1
    callbacks = ItemFacts(has_loop=True, callbacks=True, input_bytes=4, nanoseconds=1e6)
    assert plan_map("auto", 100_000, callbacks, TWO).chunks == 1


# -------------------------------------------------------------------- linear algebra and the thread pool

CROWDED = Resources(2, "cpu", 2, 8 << 30, pool=2)
ROOMY = Resources(2, "cpu", 2, 8 << 30, pool=5)
CHOLESKY = ItemFacts(input_bytes=256, output_bytes=256, nanoseconds=250.0, pooled_nanoseconds=225.0)


def test_linear_algebra_that_could_hang_stays_on_one_device():
    assert facts_of(jnp.linalg.cholesky, np.eye(8, dtype=np.float32)).pooled_nanoseconds > 0
    assert facts_of(walk, np.float32(1)).pooled_nanoseconds == 0
    assert first_way(CHOLESKY, 100_000, CROWDED)[0] == Way("vmap", MAX_WIDTH)
    assert first_way(CHOLESKY, 100_000, ROOMY)[0].strategy == "vmap", "it is all of the work"
    little = replace(CHOLESKY, nanoseconds=5000.0)
    assert first_way(little, 100_000, CROWDED)[0] == Way("vmap", MAX_WIDTH)
    assert first_way(little, 100_000, ROOMY)[0].strategy == "shard_map"
    found = Tuning("key", CHOLESKY, 100_000, CROWDED, Way("vmap", 512))
    ways = follow(found, lambda way: 0.05)
    assert {way.strategy for way in ways} == {"vmap"}


@pytest.mark.parametrize("strategy", ["shard_map", "jit", "pmap", "thread"])
def test_a_strategy_that_could_hang_is_refused(strategy):
    with pytest.raises(OptionError, match="can hang JAX") as refusal:
        plan_map(strategy, 100_000, CHOLESKY, CROWDED)
    assert "%jaxdevices 2" in str(refusal.value)
    plan_map(strategy, 100_000, CHOLESKY, ROOMY)
    plan_map(strategy, 100, CHOLESKY, CROWDED)


def test_linear_algebra_on_all_devices_ends(fresh_python):
    """Without room in the pool, on two cores, the first of these calls waits for ever (JAX 0.10.2)."""
    fresh_python(
        """
        from jaxpar_magic import devices, parmap
        devices(2)
        import jax, jax.numpy as jnp, numpy as np
        a = np.random.default_rng(0).normal(size=(20_000, 8, 8)).astype(np.float32)
        k = a @ a.transpose(0, 2, 1) + 8 * np.eye(8, dtype=np.float32)
        for strategy in ("shard_map", "jit", "thread"):
            for _ in range(5):
                out = parmap(jnp.linalg.cholesky, k, strategy=strategy)
            np.testing.assert_allclose(np.asarray(out)[:9], np.linalg.cholesky(k[:9]), rtol=1e-3, atol=1e-4)
        """
    )


# -------------------------------------------------------------------- items dealt out


@settings(deadline=None, max_examples=15)
@given(
    length=st.integers(1, 25),
    chunk=st.integers(1, 9),
    width=st.integers(1, 4),
    strategy=st.sampled_from(["shard_map", "thread"]),
)
def test_dealing_items_out_keeps_their_order(length, chunk, width, strategy):
    way = Way(strategy, width, True, chunk)
    xs = np.arange(length, dtype=np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxpar_magic.mapping.prepare.first_way", lambda *_: (way, ("test",)))
        tuner.forget_tunings()
        assert parmap(lambda n: {"n": n * 2, "row": n + jnp.arange(3)}, xs)["n"].tolist() == (2 * xs).tolist()
    tuner.forget_tunings()


# -------------------------------------------------------------------- what is measured


_FIRST = Way("shard_map", 512)


def tuning(best=_FIRST, length=1000, **facts):
    values = {"has_loop": True, "loop_elements": 1, "input_bytes": 4} | facts
    return Tuning("key", ItemFacts(**values), length, TWO, best)


def follow(tuning, seconds, calls=40):
    """Let calls take what `seconds(way)` says; the ways in their order."""
    ways = []
    for _ in range(calls):
        way = tuning.next_call()
        tuning.record(way, tuning.length, seconds(way))
        ways.append(way)
    return ways


def test_the_fastest_width_is_found():
    def seconds(way):
        width = way.width or 1000
        return 0.05 * (1 + abs(math.log2(width / 32)))

    found = tuning(length=2000)  # a thousand on each of two devices
    ways = follow(found, seconds)
    assert ways[0] == ways[1] == ways[2] == Way("shard_map", 512), "the first re-runs try nothing"
    assert found.best == Way("shard_map", 32)
    assert ways[-1] == found.best
    assert len(set(ways)) <= tuner.MAX_TRIED


def test_noise_is_no_reason_to_change():
    found = tuning()
    follow(found, lambda way: 0.05 if way.width == 512 else 0.0485)
    assert found.best == Way("shard_map", 512)
    # some runs of the best were slowed down by something else
    times = iter([0.09, 0.05, 0.09, 0.07, 0.06, 0.05])
    found = tuning()
    found.compile_seconds = 0.1
    follow(found, lambda way: next(times), calls=6)
    assert found.best == Way("shard_map", 512)


def test_trying_has_to_be_earned():
    found = tuning()
    found.compile_seconds = 0.99 / tuner.EARNED
    ways = follow(found, lambda way: 0.05, calls=90)
    trials = [i for i, way in enumerate(ways) if way != ways[0]]
    assert trials[:3] == [20, 21, 22], "and what is no slower is run again before it is judged"
    new = [i for i in trials if ways[i] not in ways[:i]]
    assert all(b - a >= 20 for a, b in itertools.pairwise(new))


@pytest.mark.parametrize("seconds", [1e-3, 10.0])
def test_too_short_and_too_long_maps_are_not_run_whole_in_other_ways(seconds):
    found = tuning(best=Way("shard_map", 512, chunk_size=10))
    assert set(follow(found, lambda way: seconds)) <= {found.best}


def test_chunks_go_when_the_map_proves_short_and_come_when_it_proves_long():
    short = tuning(best=Way("shard_map", 512, True, chunk_size=100), has_while=True)
    follow(short, lambda way: 0.011 if way.chunk_size else 0.007)
    assert short.best.chunk_size is None
    long = tuning(length=100_000)
    ways = follow(long, lambda way: 1.5 if way.chunk_size is None else 1.52, calls=5)
    assert ways[-1].chunk_size is not None and 4 <= long.length / ways[-1].chunk_size <= 8


def test_the_story_of_the_choice():
    assert tuning().story() == [], "nothing is known, and nothing says that it is long"
    found = tuning(best=Way("shard_map", 512, chunk_size=500))
    (line,) = found.story()
    assert line.startswith("a long run gives some of its first chunks to other ways, such as ")
    assert line.endswith("shard_map in batches of 62, chunks of 500"), "512 are more than a device gets of a chunk"
    found = tuning()
    follow(found, lambda way: 0.05 if way.width == 512 else 0.08)
    measured = found.story()[0]
    assert "shard_map in batches of 512 50 ms" in measured and "80 ms" in measured


def test_the_plan_tells_what_was_measured():
    xs = np.linspace(0, 1, 50, dtype=np.float32)
    parmap(walk, xs)
    shown = parmap(walk, xs, show="plan")
    assert "measured: vmap" in shown.text


# -------------------------------------------------------------------- a long run


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Each chunk takes as long as `cost` says of its width, by a clock of the test's own."""

    class Clock:
        now = 0.0
        cost = staticmethod(lambda width: 1.0)

        def perf_counter(self):
            return self.now

        def __getattr__(self, name):
            import time

            return getattr(time, name)

    clock = Clock()
    dispatch = traced.ChunkedRun._dispatch

    def slow_dispatch(self, begin, end):
        clock.now += clock.cost(self.prepared.plan.width)
        return dispatch(self, begin, end)

    monkeypatch.setattr(traced, "time", clock)
    monkeypatch.setenv("JAXPAR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(traced.ChunkedRun, "_dispatch", slow_dispatch)
    tuner.forget_tunings()
    yield clock
    tuner.forget_tunings()


def test_a_long_run_tries_other_ways_on_its_first_chunks_and_goes_on_with_the_best(clock):
    clock.cost = lambda width: 1 + abs(math.log2(width) - 3)
    xs = np.linspace(0, 1, 6000, dtype=np.float32)
    out = parmap(walk, xs, chunk_size=200)
    report = last_report()
    assert len(report.tried) > 2
    assert report.tried[-1][0].startswith(("shard_map", "thread", "vmap"))
    assert report.batch_size <= 16, report.tried
    assert any("(the fastest)" in line and line.strip().startswith("tried:") for line in report.lines())
    np.testing.assert_allclose(out, jax.vmap(walk)(xs), rtol=1e-5)
    again = parmap(walk, xs, chunk_size=200)
    assert last_report().batch_size == report.batch_size, "what was learnt serves the next call"
    np.testing.assert_array_equal(again, out)


def test_chunks_of_rising_cost_do_not_mislead(clock):
    clock.rise = 0.0

    def cost(width):
        clock.rise += 0.2
        return 1 + clock.rise

    clock.cost = cost
    parmap(walk, np.linspace(0, 1, 6001, dtype=np.float32), chunk_size=200)
    tuning = next(iter(tuner._tunings.values()))
    assert len(tuning.measured) > 2
    first = next(iter(tuning.measured))
    assert tuning.best == first, last_report().tried


# -------------------------------------------------------------------- what is remembered


def test_what_was_learnt_is_in_the_file_and_serves_a_new_kernel(clock):
    clock.cost = lambda width: 1 + abs(math.log2(width) - 3)
    xs = np.linspace(0, 1, 6002, dtype=np.float32)
    parmap(walk, xs, chunk_size=200)
    width = last_report().batch_size
    forget()
    choices = json.loads(tuner.choices_file().read_text())["choices"]
    assert any(len(entry["ways"]) > 2 for entry in choices.values())
    tuner.forget_tunings()
    parmap(walk, xs, chunk_size=200)
    assert last_report().batch_size == width
    assert any("measured" in reason for reason in last_report().reasons)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "choices": {"KEY": 3}}',
        '{"format": 99, "choices": {}}',
        '{"format": 1, "choices": {"KEY": {"ways": [{"strategy": "rm"}, 3, {"strategy": "vmap", "width": -1}]}}}',
    ],
)
def test_a_damaged_file_is_as_good_as_none(content, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPAR_CACHE_DIR", str(tmp_path))
    found = tuning()
    (tmp_path / "choices.json").write_text(content.replace("KEY", found.key))
    assert tuner._measured(tuner._read().get(found.key)) == {}
    found.record(found.best, 10, 1.0)
    tuner.remember(found)
    assert tuner._measured(tuner._read()[found.key]) == found.measured


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("JAXPAR_CACHE_DIR", str(tmp_path / "file"))
    found = tuning()
    found.record(found.best, 10, 1.0)
    tuner.remember(found)


# -------------------------------------------------------------------- what trying must not break


def test_a_way_that_fails_in_a_trial_is_left_out(clock, monkeypatch):
    clock.cost = lambda width: 1 + abs(math.log2(width) - 3)
    dispatch = traced.ChunkedRun._dispatch
    widths = []

    def fails_when_narrow(self, begin, end):
        widths.append(self.prepared.plan.width)
        if widths[-1] != widths[0]:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return dispatch(self, begin, end)

    monkeypatch.setattr(traced.ChunkedRun, "_dispatch", fails_when_narrow)
    xs = np.linspace(0, 1, 6003, dtype=np.float32)
    out = parmap(walk, xs, chunk_size=200)
    assert len(set(widths)) > 2, "more than one other way was tried"
    np.testing.assert_allclose(out, jax.vmap(walk)(xs), rtol=1e-5)
    assert last_report().batch_size == widths[0]


@pytest.mark.parametrize("interrupted_at", range(2, 12))
def test_an_interrupt_while_ways_are_tried_keeps_right_chunks(clock, monkeypatch, interrupted_at):
    clock.cost = lambda width: 1 + abs(math.log2(width) - 3)
    dispatch = traced.ChunkedRun._dispatch
    calls = []

    def interrupted(self, begin, end):
        calls.append(begin)
        if len(calls) == interrupted_at:
            raise KeyboardInterrupt
        return dispatch(self, begin, end)

    xs = np.arange(20_011, dtype=np.int32)
    want = parmap(collatz_steps, xs, strategy="vmap")
    with monkeypatch.context() as patch:
        patch.setattr(traced.ChunkedRun, "_dispatch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            parmap(collatz_steps, xs, chunk_size=1000)
    np.testing.assert_array_equal(parmap(collatz_steps, xs, chunk_size=1000, resume=True), want)
    assert last_report().resumed > 0


def collatz_steps(n):
    return collatz(n % 97 + 1)


@pytest.mark.parametrize("before", [{"batch_size": 250}, {"devices": 3}, {"strategy": "vmap"}])
@pytest.mark.parametrize("after", [{"batch_size": 120}, {"devices": 2}, {"strategy": "shard_map"}, {}])
def test_a_checkpoint_goes_on_with_other_widths_and_devices(tmp_path, monkeypatch, before, after):
    xs = np.linspace(0, 1, 4001, dtype=np.float32)
    dispatch = traced.ChunkedRun._dispatch

    def killed(self, begin, end):
        if begin > 2000:
            raise KeyboardInterrupt
        return dispatch(self, begin, end)

    with monkeypatch.context() as patch:
        patch.setattr(traced.ChunkedRun, "_dispatch", killed)
        with pytest.raises(KeyboardInterrupt):
            parmap(walk, xs, chunk_size=1000, checkpoint=tmp_path / "kept", **before)
    want = jax.vmap(walk)(xs)
    try:
        out = parmap(walk, xs, checkpoint=tmp_path / "kept", resume=True, **after)
    except CheckpointError:  # in so many words: these devices take other chunks
        assert after.get("devices") or before.get("devices") or after.get("strategy")
    else:
        np.testing.assert_allclose(out, want, rtol=1e-5)
        assert last_report().resumed > 0


def test_other_remainders_do_not_depend_on_what_was_measured():
    xs = np.arange(3, dtype=np.float32)
    assert parmap(lambda x: x + 1, xs, devices=3, remainder="drop").tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="remainder='error'"):
        parmap(walk, np.linspace(0, 1, 7, dtype=np.float32), devices=3, remainder="error")
    assert parmap(walk, xs[:2], devices=3, remainder="drop").shape == (0,)


def test_nothing_of_the_users_stays_after_a_call():
    table = jnp.ones(1000)
    held = weakref.ref(table)
    xs = np.arange(5, dtype=np.float32)
    parmap(lambda x, t: x + t.sum(), xs, table, in_axes=(0, None))
    del table
    gc.collect()
    assert held() is None
