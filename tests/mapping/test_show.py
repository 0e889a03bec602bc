"""`--show`: the code it prints runs without this package and gives the same result."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar_magic import last_report, parmap
from jaxpar_magic.mapping import api
from jaxpar_magic.mapping.options import MapOptions
from jaxpar_magic.mapping.source import Texts
from jaxpar_magic.mapping.strategies import LOCAL, TRACED

PRELUDE = """
import jax, jax.numpy as jnp, numpy as np
import pandas as pd
xs = np.arange(7, dtype=np.float32)
many = np.arange(100, dtype=np.float32)
grid = np.arange(12, dtype=np.float32).reshape(3, 4)
pairs = [(0.5, 1), (1.0, 2), (2.0, 3)]
batch = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "scale": np.float32([1, 2, 3])}
records = [{"a": 1.0, "b": np.float32([1, 2])}, {"a": 2.0, "b": np.float32([3, 4])}]
frame = pd.DataFrame({"a": np.float32([1, 2, 3]), "b": np.float32([4, 5, 6])})
table = np.linspace(0, 1, 5, dtype=np.float32)
def square(x): return x * x
def draw(x, key): return x + jax.random.normal(key)
def scaled(x, k): return {"y": x * k, "k": k}
def kernel(scale, power): return jnp.exp(-scale) * power ** 2
def summed(b): return (b["x"] * b["scale"]).sum()
def total(r): return r["a"] + r["b"].sum()
def looked_up(x, t): return t[1] * x
def both(a, b): return a * b
def rows(v): return (v, v.sum())
def steps(n): return jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] // 2, s[1] + 1), (n, 0))[1]
whole = np.arange(41, dtype=np.int32)
def called(x): return jax.pure_callback(lambda v: np.float32(v) + 1, jax.ShapeDtypeStruct((), jnp.float32), x,
                                        vmap_method="sequential")
"""
SPACE: dict = {}
exec(PRELUDE, SPACE)

# (function, positional inputs, named inputs, options), inputs as their expressions
CALLS = [
    ("square", ["xs"], {}, {}),
    ("square", ["many"], {}, {"chunk_size": 30, "batch_size": 8}),
    ("square", ["[1.0, 2.0, 3.0]"], {}, {}),
    ("square", ["range(5)"], {}, {}),
    ("draw", ["xs"], {}, {"key": 3}),
    ("scaled", ["xs"], {"k": "3"}, {}),
    ("scaled", [], {"x": "xs", "k": "2.5"}, {}),
    ("kernel", ["pairs"], {}, {}),
    ("summed", ["batch"], {}, {"in_axes": {"scale": None}}),
    ("total", ["records"], {}, {}),
    ("both", ["frame"], {}, {}),
    ("looked_up", ["xs", "table"], {}, {"in_axes": (0, None)}),
    ("rows", ["grid"], {}, {"in_axes": 1, "out_axes": (1, 0)}),
    ("rows", ["grid"], {}, {"out_axes": -1}),
    ("called", ["xs"], {}, {"batch_size": 2}),
    ("steps", ["whole"], {}, {}),
    ("(lambda v: v + 1)", ["xs"], {}, {}),
]


def evaluate(expression):
    return eval(expression, SPACE)


def code_and_value(function, inputs, named, options):
    texts = Texts(function, "", inputs, named)
    values = [evaluate(i) for i in inputs], {n: evaluate(v) for n, v in named.items()}
    shown = api.run(evaluate(function), *values, MapOptions(**options), show="code", texts=texts)
    values = [evaluate(i) for i in inputs], {n: evaluate(v) for n, v in named.items()}
    result = api.run(evaluate(function), *values, MapOptions(**options))
    return str(shown.text), result.value


RUN = """
import json, sys
sys.modules["jaxpar_magic"] = None  # as if it were not installed
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 3)
prelude, codes = json.load(sys.stdin)
for code in codes:
    space = {}
    exec(prelude, space)
    exec(code, space)
    leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(space["out"])]
    print(json.dumps(leaves))
"""


@pytest.mark.parametrize("strategy", [s for s in LOCAL if s != "process"])
def test_the_code_gives_the_same_result_without_this_package(strategy):
    pairs = [code_and_value(f, i, n, {**o, "strategy": strategy}) for f, i, n, o in CALLS]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([PRELUDE, [code for code, _ in pairs]]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(CALLS)
    for (code, value), leaves, call in zip(pairs, results, CALLS):
        assert "jaxpar" not in code
        expected = jax.tree.leaves(value)
        assert len(expected) == len(leaves), (call, code)
        for a, b in zip(expected, leaves):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, err_msg=f"{call}\n{code}")


def test_the_code_for_processes_runs_without_this_package():
    """A script: loky's workers import no module of ours either."""
    code, value = code_and_value("kernel", ["pairs"], {}, {"strategy": "process"})
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([PRELUDE, [code]]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout)[0], np.asarray(value), rtol=1e-6)


def test_a_cell_s_definition_is_part_of_the_code():
    texts = Texts("g", "def g(x):\n    return x + 1\n", ["xs"], {})
    shown = api.run(lambda x: x + 1, [evaluate("xs")], {}, MapOptions(), show="code", texts=texts)
    assert "def g(x):\n    return x + 1" in shown.text
    compile(shown.text, "code", "exec")


@pytest.mark.parametrize("strategy", TRACED)
def test_the_other_kinds(strategy):
    xs = np.arange(8, dtype=np.float32)
    plan = parmap(jnp.sin, xs, strategy=strategy, show="plan")
    assert f"strategy: {strategy}" in plan.text
    assert "items: 8" in plan.text
    jaxpr = parmap(jnp.sin, xs, strategy=strategy, show="jaxpr")
    assert "sin" in jaxpr.text
    assert "lambda" in jaxpr.text
    hlo = parmap(jnp.sin, xs, strategy=strategy, show="hlo")
    assert "stablehlo.sine" in hlo.text
    sharding = parmap(jnp.sin, xs, strategy=strategy, show="sharding")
    assert "0 to" in sharding.text
    for shown in (plan, jaxpr, hlo, sharding):
        assert str(shown).strip()
        assert "<table" in shown._repr_mimebundle_()["text/html"] or "<pre" in shown._repr_mimebundle_()["text/html"]


def test_a_plan_runs_nothing():
    seen = []

    def f(x):
        jax.debug.callback(lambda v: seen.append(v), x)
        return x

    parmap(f, np.arange(3.0, dtype=np.float32), show="plan")
    parmap(seen.append, ["a", "b"], show="plan", strategy="process")
    jax.effects_barrier()
    assert seen == []


def test_plain_python_has_no_program_to_show():
    with pytest.raises(ValueError, match="there is no JAX program to show"):
        parmap(str.upper, ["a"], strategy="serial", show="hlo")
    assert "serial" in parmap(str.upper, ["a"], strategy="serial", show="plan").text
    assert "def one" in parmap(str.upper, ["a"], strategy="serial", show="code").text


# ------------------------------------------------------------------ --compare


def test_compare_runs_checks_and_times():
    xs = np.arange(200, dtype=np.float32)
    comparison = parmap(lambda x: jnp.sin(x) * 2, xs, compare=["vmap", "map", "shard_map", "serial"])
    assert [r.strategy for r in comparison.rows] == ["vmap", "map", "shard_map", "serial"]
    assert all(r.run_seconds > 0 for r in comparison.rows)
    assert all(r.difference < 1e-6 for r in comparison.rows)
    assert comparison.fastest in ("vmap", "map", "shard_map", "serial")
    np.testing.assert_allclose(np.asarray(comparison.value), np.sin(xs) * 2, rtol=1e-5)
    text = str(comparison)
    assert "200 items" in text
    assert "fastest" in text


def test_compare_names_what_cannot_run_and_what_differs():
    def fine(x):
        return np.float64(x) * 2  # numpy on a tracer: only plain Python can

    comparison = parmap(fine, np.arange(3.0), compare="vmap,serial")
    assert comparison.rows[0].problem.startswith("TracerArrayConversionError")
    assert comparison.rows[1].run_seconds is not None
    assert "could not run" in str(comparison)

    def noisy(x):
        return x + RNG.normal()

    comparison = parmap(noisy, np.zeros(5, np.float32), compare="vmap,serial")
    assert comparison.rows[1].difference > 1e-3
    assert any("differ by more than rounding" in note for note in comparison.notes)


RNG = np.random.default_rng(0)


def test_compare_does_not_change_the_last_report():
    parmap(jnp.sin, np.arange(3, dtype=np.float32), strategy="map")
    parmap(jnp.sin, np.arange(3, dtype=np.float32), compare="vmap")
    assert last_report().strategy == "map"
