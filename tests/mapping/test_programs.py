"""Programs are compiled once per text, never stale; what happens once while tracing is said."""

from __future__ import annotations

import functools
import random
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar_magic import last_report, parmap
from jaxpar_magic.mapping import prepare
from jaxpar_magic.mapping.captured import captured, fingerprint
from jaxpar_magic.mapping.strategies import TRACED

XS = np.arange(4, dtype=np.float32)


@pytest.fixture
def compilations():
    """Names of the programs that XLA compiled since the test began."""
    names = []

    def note(event, duration, **kwargs):
        if "backend_compile" in event:
            names.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    return names  # there is no public way to remove one listener; the list dies with the test


def define(source, name, **namespace):
    """A new function object, as re-running a cell makes it."""
    space = {"jnp": jnp, "jax": jax, "np": np, **namespace}
    exec(source, space)
    return space[name], space


@pytest.mark.parametrize("strategy", ["auto", "vmap", "map", "jit", "shard_map", "pmap", "thread"])
def test_an_unchanged_cell_compiles_nothing(strategy, compilations):
    source = "def model(x):\n    for k in range(5):\n        x = jnp.sin(x + 0.05 * k)\n    return x\n"
    model, _ = define(source, "model")
    first = parmap(model, XS, strategy=strategy)
    parmap(model, XS, strategy=strategy)
    del compilations[:]
    again, _ = define(source, "model")
    second = parmap(again, XS, strategy=strategy)
    assert compilations == []
    assert last_report().reused
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


@pytest.mark.parametrize("strategy", ["auto", *TRACED])
def test_a_somewhat_shorter_map_takes_the_compiled_program(strategy, compilations):
    turns = 7 + ("auto", *TRACED).index(strategy)  # another program for each

    def model(x):
        return jax.lax.scan(lambda c, _: (jnp.cos(c) + x, None), x, None, length=turns)[0]

    xs = np.linspace(0, 1, 1200, dtype=np.float32)
    first = parmap(model, xs, strategy=strategy)
    del compilations[:]
    for length in (1199, 1000):
        again = parmap(model, xs[:length], strategy=strategy)
        np.testing.assert_array_equal(np.asarray(first)[:length], np.asarray(again))
    assert compilations == []
    parmap(model, xs[:400], strategy=strategy)
    assert compilations, "three times too much would be computed"


def test_a_batch_size_is_kept_whatever_is_compiled():
    xs = np.linspace(0, 1, 100, dtype=np.float32)
    parmap(lambda x: x * 3, xs, strategy="vmap")
    parmap(lambda x: x * 3, xs[:90], strategy="vmap", batch_size=5)
    assert last_report().batch_size == 5


def test_calling_again_does_not_even_trace():
    traced = []

    def f(x):
        traced.append(1)
        return x * 2

    parmap(lambda x: f(x), XS)
    count = len(traced)
    g = define("def g(x):\n    return x * k\n", "g", k=3)[0]
    for _ in range(3):
        parmap(g, XS)
    assert last_report().compile_seconds == 0.0
    # `traced` is a list that grows, so f cannot be taken as unchanged: it is traced anew each time
    parmap(f, XS)
    assert len(traced) == count + 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (9.81, 1.62),
        (np.float32(2), np.float32(3)),
        (np.arange(4.0, dtype=np.float32), np.arange(4.0, dtype=np.float32) * 2),
        (np.arange(5000, dtype=np.float32), np.arange(5000, dtype=np.float32) * 2),
        (jnp.arange(4.0), jnp.arange(4.0) * 2),
        ([1.0, 2.0], [1.0, 3.0]),
        ({"a": 1.0}, {"a": 2.0}),
        (0.0, -0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("jitted", [False, True])
def test_a_changed_global_is_noticed(before, after, jitted):
    source = (
        "def fall(t):\n    v = g['a'] if isinstance(g, dict) else g\n"
        "    return 1 / (jnp.sum(jnp.asarray(v)) + 0.0 * t)\n"
    )
    fall, space = define(source, "fall", g=before)
    function = jax.jit(fall) if jitted else fall
    call = (lambda t: function(t)) if jitted else function

    def expected(value):
        total = np.asarray(value["a"] if isinstance(value, dict) else value).sum()
        with np.errstate(divide="ignore"):
            return np.full(4, 1 / np.float32(total), np.float32)

    np.testing.assert_allclose(np.asarray(parmap(call, XS)), expected(before))
    space["g"] = after
    np.testing.assert_allclose(np.asarray(parmap(call, XS)), expected(after))
    space["g"] = before
    np.testing.assert_allclose(np.asarray(parmap(call, XS)), expected(before))


def test_an_array_that_is_changed_in_place_is_noticed():
    for size in (4, 1 << 20):
        table = np.zeros(size, np.float32)
        f = define("def f(x):\n    return x + table[3]\n", "f", table=table)[0]
        assert float(parmap(f, XS)[0]) == 0.0
        table[3] = 5.0
        assert float(parmap(f, XS)[0]) == 5.0


def test_a_changed_global_is_said_once():
    fall, space = define("def fall(t):\n    return g * t\n", "fall", g=9.81)
    parmap(fall, XS)
    space["g"] = 1.62
    parmap(fall, XS)
    assert last_report().notes == ["g changed since the last run: the new value is used"]
    parmap(fall, XS)
    assert last_report().notes == []


def test_inputs_that_are_not_used_are_part_of_a_program():
    """XLA drops them from the text, and checks them at each call."""
    import pandas as pd

    def price(r):
        return r["a"] * 2

    frame = pd.DataFrame({"a": np.float32([1, 2])})
    for strategy in ("vmap", "shard_map", "pmap", "thread"):
        assert np.asarray(parmap(price, frame, strategy=strategy)).tolist() == [2, 4]
        assert np.asarray(parmap(price, frame.assign(b=[3, 4]), strategy=strategy)).tolist() == [2, 4]
        assert np.asarray(parmap(lambda x: 7, np.arange(3), strategy=strategy)).tolist() == [7, 7, 7]
        assert np.asarray(parmap(lambda x: 7, np.arange(3.0), strategy=strategy)).tolist() == [7, 7, 7]
        assert np.asarray(parmap(lambda x, y: x, XS, XS, strategy=strategy)).tolist() == XS.tolist()
        assert np.asarray(parmap(lambda x, y: x, XS, np.arange(4), strategy=strategy)).tolist() == XS.tolist()


def test_what_a_function_reads_elsewhere_is_read_anew(tmp_path, monkeypatch):
    module = tmp_path / "my_settings.py"
    module.write_text("k = 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_settings

    def by_import(x):
        import my_settings

        return x * my_settings.k

    def by_module(x):
        return x * my_settings.k

    def by_environment(x):
        import os

        return x * float(os.environ["MY_SCALE"])

    def by_attribute(x):
        return x * by_attribute.scale

    for value in (2.0, 5.0):
        my_settings.k = value
        by_attribute.scale = value
        monkeypatch.setenv("MY_SCALE", str(value))
        for f in (by_import, by_module, by_environment, by_attribute):
            np.testing.assert_array_equal(np.asarray(parmap(f, XS)), value * XS, err_msg=f.__name__)


def test_another_closure_is_another_function():
    def scaled(k):
        return lambda x: k * x

    for k in (2.0, 3.0):
        np.testing.assert_array_equal(np.asarray(parmap(scaled(k), XS)), k * XS)
        assert last_report().notes == []


def test_settings_are_part_of_a_program(x64):
    def f(x):
        return x + jnp.zeros(())

    wide = np.arange(4.0)
    assert parmap(f, wide).dtype == np.float64
    jax.config.update("jax_enable_x64", False)
    assert parmap(f, wide).dtype == np.float32
    jax.config.update("jax_enable_x64", True)
    assert parmap(f, wide).dtype == np.float64


def test_memory_of_captured_arrays_is_not_kept():
    import gc
    import weakref

    big = jnp.zeros(1 << 20)
    alive = weakref.ref(big)
    f = define("def f(x):\n    return x + big[0]\n", "f", big=big)[0]
    parmap(f, XS)
    del f, big
    prepare.forget()
    gc.collect()
    assert alive() is None


def test_what_a_function_captures():
    inner = jax.jit(lambda x: x * SCALE)
    bound = functools.partial(lambda a, x, *, b=2: inner(x) + a + b, 7)
    found = captured(bound)
    assert found.values["SCALE"] == SCALE
    assert found.values["argument 0 of partial function"] == 7
    assert found.values["b"] == 2
    assert len(found.jitted) == 1
    assert captured(jax.vmap(lambda x: x * SCALE)).values["SCALE"] == SCALE
    assert captured(lambda x: jnp.where(x > 0, x, 0)).jitted == []  # JAX's own functions stay as they are
    assert fingerprint(captured(lambda x: len)) is not None
    assert fingerprint(captured(lambda x: open)) is None  # what it reads may change
    assert fingerprint(captured(lambda x: STATEFUL.rate * x)) is None


SCALE = 3.5


class Stateful:
    rate = 1.0


STATEFUL = Stateful()


# ------------------------------------------------------------------ what happens once


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(x):\n    return x + np.random.normal()\n", "np.random was drawn from once"),
        ("def f(x):\n    return x + random.random()\n", "random was drawn from once"),
        ("def f(x):\n    return x + rng.normal()\n", "rng was drawn from once"),
        ("def f(x):\n    seen.append(1)\n    return x\n", "seen was changed once"),
        ("def f(x):\n    counts['n'] = 1\n    return x\n", "counts was changed once"),
        ("def f(x):\n    global total\n    total = total + 1\n    return x\n", "total was changed once"),
        ("def f(x):\n    print('item')\n    return x\n", "print ran once"),
        ("def f(x):\n    return x + np.random.default_rng().normal()\n", "np.random.default_rng was drawn from once"),
        ("def f(x):\n    sums[0] += 1\n    return x\n", "sums was changed once"),
        ("def f(x):\n    box.n += 1\n    return x\n", "box.n was changed once"),
    ],
)
def test_side_effects_are_said(source, words, capsys):
    space = {"random": random, "rng": np.random.default_rng(0), "seen": [], "counts": {}, "total": 0}
    space |= {"sums": np.zeros(2), "box": types.SimpleNamespace(n=0)}
    f, space = define(source, "f", **space)
    parmap(f, XS, strategy="vmap")
    assert [n for n in last_report().notes if words in n], last_report().notes
    assert len(last_report().notes) == 1


def test_a_pure_function_has_no_notes():
    f, _ = define("def f(x):\n    return jax.random.normal(jax.random.key(0)) + x\n", "f")
    parmap(f, XS, strategy="vmap")
    assert last_report().notes == []


def test_a_large_captured_array_is_said():
    data = np.zeros((1 << 22) + 1, np.float32)
    f, _ = define("def f(x):\n    return x + data[0]\n", "f", data=data)
    parmap(f, XS, strategy="vmap")
    assert last_report().notes == ["data (17 MB) is captured by the function: every device holds a copy"]
