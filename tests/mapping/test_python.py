"""Plain Python: the loop, worker processes, what `auto` does with functions that JAX cannot trace, failing items."""

from __future__ import annotations

import math
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from jaxpar_magic import last_report, parmap
from jaxpar_magic.errors import InputError, JaxparWarning, WorkerError

XS = np.arange(6, dtype=np.float32)


def kepler(M):
    from scipy.optimize import brentq

    return brentq(lambda E: E - 0.6 * np.sin(E) - M, 0.0, 10.0)


def tax(income):
    if income < 10_000.0:
        return 0.0
    elif income < 40_000.0:
        return 0.2 * (income - 10_000.0)
    return 6_000.0 + 0.4 * (income - 40_000.0)


@pytest.mark.parametrize("strategy", ["auto", "process", "serial"])
def test_functions_that_cannot_be_traced(strategy):
    Ms = np.linspace(0.1, 3.0, 24)
    roots = parmap(kepler, Ms, strategy=strategy)
    assert roots.dtype == np.float64  # plain Python keeps the width
    np.testing.assert_allclose(roots.sum(), 46.7097793, rtol=1e-9)
    incomes = jnp.array([5_000.0, 20_000.0, 90_000.0])
    np.testing.assert_allclose(np.asarray(parmap(tax, incomes, strategy=strategy)), [0.0, 2000.0, 26000.0])


def test_auto_says_why_it_ran_plain_python():
    with pytest.warns(JaxparWarning, match="tax cannot be traced by JAX .TracerBoolConversionError"):
        parmap(tax, np.float32([5_000.0, 20_000.0]))
    assert last_report().strategy == "serial"


def with_numpy(x):
    return np.exp(-x) + np.linalg.norm(x)


def with_math(x):
    return math.sin(x)


def with_another_library(k):
    return scipy.integrate.quad(lambda x: np.exp(-k * x), 0, 1)[0]


def with_range(n):
    return sum(range(n))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (with_numpy, "with jax.numpy in place of numpy JAX could run it"),
        (with_math, "with jax.numpy in place of math and float() JAX could run it"),
        (tax, "with jnp.where or jax.lax.cond in place of if, jax.lax.while_loop in place of while JAX could run it"),
        (with_another_library, None),
        (with_range, None),
        (np.linalg.norm, None),
    ],
)
def test_auto_says_what_to_write_in_place(function, words):
    with warnings.catch_warnings(record=True):
        parmap(function, np.arange(3) if function is with_range else np.float32([0.5, 1.0, 2.0]))
    report = last_report()
    assert report.strategy == "serial" and "cannot be traced by JAX" in report.notes[0], report
    assert report.notes[1:] == ([words] if words else [])


def test_auto_uses_processes_for_slow_functions():
    def slow(x):
        import time

        time.sleep(0.02)  # stands for work; what counts is the time that the first item takes
        return float(x) * 2

    np.testing.assert_array_equal(parmap(slow, np.arange(60.0)), 2 * np.arange(60.0))
    assert last_report().strategy == "process"


def test_a_traced_strategy_shows_jax_s_own_error():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        parmap(tax, np.float32([5_000.0, 20_000.0]), strategy="vmap")


def test_a_mistake_in_a_traceable_function_is_raised_as_it_is():
    def mistaken(x):
        return jnp.zeros(3) + jnp.zeros(4) + x

    with pytest.raises(TypeError, match="incompatible shapes"):
        parmap(mistaken, XS)
    with pytest.raises(NameError):
        parmap(lambda x: undefined_name + x, XS)  # noqa: F821


def test_jax_inside_worker_processes(x64):
    def energy(v):
        return jnp.sum(jnp.sort(v) ** 2)

    vs = [np.full(3, float(i)) for i in range(6)]
    out = parmap(energy, vs, strategy="process")
    assert isinstance(out, jax.Array)
    assert out.dtype == np.float64
    np.testing.assert_array_equal(np.asarray(out), [0.0, 3.0, 12.0, 27.0, 48.0, 75.0])

    def draw(x, key):
        return x + jax.random.normal(key)

    np.testing.assert_array_equal(
        np.asarray(parmap(draw, XS, key=5, strategy="process")), np.asarray(parmap(draw, XS, key=5, strategy="serial"))
    )


def test_prints_of_workers_come_in_order(capsys):
    def chatty(i):
        print("item", i)
        return i

    parmap(chatty, list(range(12)), strategy="process", devices=2, chunk_size=2)
    assert capsys.readouterr().out.splitlines() == [f"item {i}" for i in range(12)]


# ------------------------------------------------------------------ failing items


def reciprocal(x):
    return 1 / x


@pytest.mark.parametrize("strategy", ["serial", "process"])
def test_the_failing_item_is_named(strategy):
    with pytest.raises(ZeroDivisionError) as caught:
        parmap(reciprocal, [1, 2, 0, 4], strategy=strategy)
    assert caught.value.__notes__[-1] == "parmap: item 2 of 4 (x=0)"


@pytest.mark.parametrize("strategy", ["serial", "process", "auto"])
def test_failing_items_can_be_skipped(strategy):
    def f(x):
        return 1 / int(x)  # int(): JAX cannot trace it

    out = parmap(f, [1, 2, 0, 4, 0], strategy=strategy, on_error="skip")
    np.testing.assert_array_equal(out, [1.0, 0.5, 0.25])
    report = last_report()
    assert report.skipped == [2, 4]
    assert "2 items failed and left out: item 2 (x=0): ZeroDivisionError" in report.lines()[-1]


@pytest.mark.parametrize("strategy", ["auto", "vmap", "map", "shard_map", "thread", "pmap"])
@pytest.mark.filterwarnings("ignore")
def test_a_failing_callback_names_its_item(strategy, caplog):
    def check(v):
        if v == 4:
            raise ValueError("four is not allowed")
        return v

    def f(x):
        return jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")

    with pytest.raises(Exception, match="four is not allowed") as caught:
        parmap(f, XS, strategy=strategy)
    assert caught.value.__notes__[-1] == "parmap: item 4 of 6 (x=4.0)"
    out = parmap(f, XS, strategy=strategy, on_error="skip", chunk_size=3)
    np.testing.assert_array_equal(np.asarray(out), [0, 1, 2, 3, 5])
    assert last_report().skipped == [4]
    assert "four is not allowed" in last_report().failed[0].problem


@pytest.mark.parametrize("strategy", ["auto", "vmap", "map", "jit", "shard_map", "thread", "pmap", "serial", "process"])
@pytest.mark.filterwarnings("ignore")
def test_items_that_are_not_finite_are_named(strategy):
    a = np.linspace(0.1, 5.0, 50).astype(np.float32)
    b = np.full(50, 2.0, np.float32)
    b[32], b[40] = -1.0, 0.0

    def loglik(a, b):
        return {"l": jnp.log(b) - a * b, "ok": jnp.bool_(True)}

    out = parmap(loglik, a, b, strategy=strategy, check="finite")
    assert np.isnan(np.asarray(out["l"])[32])
    found = last_report().not_finite
    assert [(i.index, i.problem) for i in found] == [(32, "NaN"), (40, "inf")]
    assert "b=-1.0" in found[0].inputs


def test_a_killed_worker_is_an_error_with_a_name():
    def die(x):
        import os

        if x == 3:
            os._exit(7)
        return x

    with pytest.raises(WorkerError, match="7"):
        parmap(die, list(range(5)), strategy="process")
    assert parmap(abs, [-1, -2], strategy="process").tolist() == [1, 2]


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    with pytest.raises((WorkerError, InputError), match="lock"):
        parmap(locked, [1, 2], strategy="process")


def test_results_that_do_not_stack_are_a_list():
    assert parmap(lambda n: list(range(n)), [1, 2], strategy="serial") == [[0], [0, 1]]
    assert parmap(lambda n: None, [1, 2], strategy="serial") == [None, None]
    assert parmap(lambda n: str(n), [1, 2], strategy="serial") == ["1", "2"]
    assert parmap(lambda n: np.zeros(n), [1, 2], strategy="serial")[1].shape == (2,)
