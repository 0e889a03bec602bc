"""A cell that is run again is known by its jaxpr, and only where nothing has changed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar_magic import last_report, parmap
from jaxpar_magic.mapping.captured import captured
from jaxpar_magic.mapping.inputs import make_batch
from jaxpar_magic.mapping.same_program import same_program
from jaxpar_magic.mapping.tracing import trace_item

XS = np.arange(1, 5, dtype=np.float32)
HEAD = "import functools\nimport jax\nimport jax.numpy as jnp\nimport numpy as np\n"


def define(source):
    """The function `f` of a cell, a new object each time."""
    space = {}
    exec(HEAD + source, space)
    return space["f"]


def trace(source):
    function = define(source)
    return trace_item(function, make_batch(function, (XS,), {}), captured(function))


SOURCES = {
    "arithmetic": "def f(x):\n    return x * 2.0 + 1",
    "a literal": "def f(x):\n    return x * 3.0 + 1",
    "a negative zero": "def f(x):\n    return x + (-0.0)",
    "a zero": "def f(x):\n    return x + 0.0",
    "NaN": "def f(x):\n    return jnp.where(x > 2, jnp.nan, x)",
    "a small constant": "c = np.array([1.0, 2.0], np.float32)\ndef f(x):\n    return (x * c).sum()",
    "another small constant": "c = np.array([1.0, 3.0], np.float32)\ndef f(x):\n    return (x * c).sum()",
    "a large constant": "c = np.ones(5000, np.float32)\ndef f(x):\n    return (x * c).sum()",
    "another large constant": "c = np.full(5000, 2, np.float32)\ndef f(x):\n    return (x * c).sum()",
    "the order of operands": "def f(x):\n    return 1 - x",
    "operands the other way": "def f(x):\n    return x - 1",
    "a scan": "def f(x):\n    return jax.lax.scan(lambda c, _: (c * 1.5, c), x, None, length=3)",
    "a longer scan": "def f(x):\n    return jax.lax.scan(lambda c, _: (c * 1.5, c), x, None, length=4)",
    "another body": "def f(x):\n    return jax.lax.scan(lambda c, _: (c * 1.25, c), x, None, length=3)",
    "a loop": "def f(x):\n    return jax.lax.while_loop(lambda v: v < 9, lambda v: v * 2, x)",
    "another condition": "def f(x):\n    return jax.lax.while_loop(lambda v: v < 7, lambda v: v * 2, x)",
    "branches": "def f(x):\n    return jax.lax.cond(x > 2, jnp.sin, jnp.cos, x)",
    "branches exchanged": "def f(x):\n    return jax.lax.cond(x > 2, jnp.cos, jnp.sin, x)",
    "a dtype": "def f(x):\n    return x.astype(jnp.int32)",
    "another dtype": "def f(x):\n    return x.astype(jnp.float16)",
    "a structure": "def f(x):\n    return {'a': x, 'b': x + 1}",
    "another structure": "def f(x):\n    return {'a': x, 'c': x + 1}",
    "results exchanged": "def f(x):\n    return {'a': x + 1, 'b': x}",
    "a key": "def f(x):\n    return jax.random.normal(jax.random.key(1), (3,)) * x",
    "another key": "def f(x):\n    return jax.random.normal(jax.random.key(2), (3,)) * x",
    "a jitted part": "@jax.jit\ndef g(x):\n    return x * 2\ndef f(x):\n    return g(x) + 1",
    "a gradient": "def f(x):\n    return jax.grad(lambda v: jnp.sin(v) ** 2)(x)",
    "a function with its own derivative": "def f(x):\n    return jax.nn.relu(x) + jax.scipy.special.logsumexp(x)",
    "linear algebra": "def f(x):\n    return jnp.linalg.solve(x * jnp.eye(3) + 1, jnp.ones(3))",
    "sorting": "def f(x):\n    return jnp.sort(jnp.array([3.0, 1.0]) * x)[0]",
    "indexing": "def f(x):\n    return jnp.arange(9.0)[x.astype(int)]",
    "a convolution": "def f(x):\n    return jnp.convolve(x * jnp.ones(5), jnp.arange(3.0))",
}


@pytest.fixture(scope="module")
def programs():
    return {name: trace(source) for name, source in SOURCES.items()}


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_text_is_the_same_program(programs, name):
    again = trace(SOURCES[name])
    assert same_program(programs[name], again)
    assert [other for other in SOURCES if same_program(programs[other], again)] == [name]


CALLS_BACK = (
    "def f(x):\n    return jax.pure_callback(lambda v: np.asarray(v) * {factor}, jax.ShapeDtypeStruct((), 'float32'),"
    " x, vmap_method='sequential')"
)
BATCHED_ITS_OWN_WAY = (
    "@jax.custom_batching.custom_vmap\ndef g(x):\n    return x\n"
    "@g.def_vmap\ndef rule(size, batched, xs):\n    return xs * {factor}, True\n"
    "def f(x):\n    return g(x)"
)


@pytest.mark.parametrize("text", [CALLS_BACK, BATCHED_ITS_OWN_WAY])
def test_what_a_jaxpr_does_not_tell_is_never_taken_for_the_same(text):
    for factor in (2, 3):
        result = parmap(define(text.format(factor=factor)), XS, strategy="vmap")
        np.testing.assert_array_equal(np.asarray(result), XS * factor)


def test_a_cell_run_again_is_traced_and_not_lowered():
    lowered = []

    def note(event, duration, **_):
        if "jaxpr_to_mlir" in event:
            lowered.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    text = "def f(x):\n    for k in range(6):\n        x = jnp.sin(x + 0.07 * k)\n    return x"
    first = parmap(define(text), XS, strategy="vmap")
    jax.block_until_ready(first)
    assert lowered, "the counter is blind"
    del lowered[:]
    again = parmap(define(text), XS, strategy="vmap")
    assert lowered == []
    assert last_report().reused
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again))


def test_a_captured_array_of_another_value_is_used():
    for value in (1.0, 5.0):
        text = f"c = np.full(5000, {value}, np.float32)\ndef f(x):\n    return (x * c).mean()"
        np.testing.assert_allclose(np.asarray(parmap(define(text), XS, strategy="vmap")), XS * value)


def test_arguments_of_another_shape_are_another_program():
    def twice(x):
        return 2 * x

    programs = [
        trace_item(twice, make_batch(twice, (xs,), {}), captured(twice))
        for xs in (jnp.ones((3, 2)), jnp.ones((3, 4)), np.ones((3, 2), np.int32))
    ]
    assert not any(same_program(a, b) for a in programs for b in programs if a is not b)
