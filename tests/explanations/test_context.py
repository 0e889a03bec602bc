"""`Failure`: what is read from exceptions, warnings and text; nothing is kept alive, no user code runs."""

from __future__ import annotations

import doctest
import gc
import textwrap
import weakref

import pytest
from conftest import run_python

from jaxpar_magic.explanations import context, explain, text, wording
from jaxpar_magic.explanations.context import Failure, package_of

MESSAGE = (
    "vmap got inconsistent sizes for array axes to be mapped:\n"
    "  * one axis had size 10: axis 0 of argument x of type float32[10,4];\n"
    "  * one axis had size 4: axis 0 of argument w of type float32[4]"
)
PYTHON = f"""Traceback (most recent call last):
  File "/home/ada/sweep.py", line 12, in <module>
    main()
  File "/home/ada/sweep.py", line 9, in main
    return jax.vmap(model)(xs, w)
           ^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/lib/python3.12/site-packages/jax/_src/api.py", line 1341, in _mapped_axis_size
    raise ValueError(''.join(msg)[:-2])
ValueError: {MESSAGE}
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception.
"""
IPYTHON = f"""---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
Cell In[7], line 3
      1 def run():
      2     return jax.vmap(model)(xs, w)
----> 3 run()

Cell In[7], line 2, in run()
      1 def run():
----> 2     return jax.vmap(model)(xs, w)

    [... skipping hidden 2 frame]

File ~/lib/python3.12/site-packages/jax/_src/api.py:1331, in _mapped_axis_size(fn, tree, vals)
   1330     msg.append(f"")
-> 1331 raise ValueError(''.join(msg)[:-2])

ValueError: {MESSAGE}"""
IPYTHON_7 = f"""ValueError                                Traceback (most recent call last)
<ipython-input-7-0a1b2c3d4e5f> in <module>
----> 1 run()

<ipython-input-6-0a1b2c3d4e5f> in run()
      1 def run():
----> 2     return jax.vmap(model)(xs, w)

~/lib/python3.8/site-packages/jax/_src/api.py in _mapped_axis_size(tree, vals)
-> 1247   raise ValueError(''.join(msg)[:-2])

ValueError: {MESSAGE}"""


def indented(prefix: str, source: str) -> str:
    return "".join(prefix + line + "\n" for line in source.split("\n"))


@pytest.mark.parametrize(
    "source",
    [
        PYTHON,
        IPYTHON,
        IPYTHON_7,
        PYTHON.replace("\n", "\r\n"),
        "\x1b[0;31mValueError\x1b[0m" + IPYTHON.replace("ValueError:", "\x1b[0;31mValueError\x1b[0m:"),
        indented("2026-03-01 12:00:01,123 ERROR ", PYTHON),
        indented("[2026-03-01 12:00:01,123: ERROR/MainProcess] ", PYTHON),
        indented("[rank0]: ", PYTHON),
        indented("> ", PYTHON),
        indented("E   ", PYTHON),
        "Job 17 failed:\n" + PYTHON + "\nsrun: error: node7: task 0: Exited with exit code 1",
    ],
)
def test_traceback_in_text(source):
    failure = Failure.from_text(source)
    assert failure.type_name == "ValueError"
    assert failure.message.startswith(MESSAGE)
    assert failure.user is not None
    assert failure.user.source == "return jax.vmap(model)(xs, w)"
    assert failure.from_jax is True
    outer, inner = failure.applied("vmap")
    assert outer.args == ("xs", "w") and inner.args == ("model",)
    explanation = explain(source)
    assert explanation is not None and explanation.code == "JPX0401"
    assert explanation.facts["sizes"] == (10, 4)
    assert "in_axes=(0, None)" in explanation.fixes[0].code
    assert explanation.where is not None and explanation.where.line in (2, 9)


@pytest.mark.parametrize(
    "source", [MESSAGE, "ValueError: " + MESSAGE, "2026-03-01 12:00:01 ERROR run: ValueError: " + MESSAGE]
)
def test_bare_message(source):
    explanation = explain(source)
    assert explanation is not None and explanation.code == "JPX0401"
    assert explanation.facts["arguments"] == ("x", "w")
    assert explanation.where is None


def test_message_with_its_lines_broken_anew():
    message = (
        "ValueError: compiling computation that requires 10\nlogical devices, but only 1 XLA devices\nare available"
    )
    assert explain(message).facts["items"] == 10
    assert explain("> " + message.replace("\n", "\n> ")).code == "JPX0104"


def test_chain_in_text():
    source = (
        PYTHON
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + 'Traceback (most recent call last):\n  File "run.py", line 3, in <module>\n'
        + '    raise RuntimeError("sweep failed")\n'
        + "RuntimeError: sweep failed\n"
    )
    failure = Failure.from_text(source)
    assert failure.type_name == "RuntimeError" and failure.from_jax is False
    assert failure.cause is not None and failure.cause.type_name == "ValueError"
    assert explain(source).code == "JPX0401"


@pytest.mark.parametrize(
    "source", ["", "\n", "hello", "Error", "x" * 100_000, "ValueError:", "\x00\ud800", "Traceback:\n" * 50]
)
def test_text_that_is_no_error(source):
    assert explain(source) is None


def test_text_of_a_user_who_raises_jax_words():
    source = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise ValueError(message)\nValueError: '
        + MESSAGE
    )
    assert explain(source) is None


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/opt/lib/python3.12/site-packages/jax/_src/api.py", "jax"),
        ("C:\\Python\\Lib\\site-packages\\jaxlib\\xla_client.py", "jax"),
        ("/home/ada/src/jax/jax/_src/lax/lax.py", "jax"),
        ("/usr/lib/python3/dist-packages/numpy/core/fromnumeric.py", "numpy"),
        ("~/lib/python3.9/site-packages/scipy/optimize/_minimize.py", "scipy"),
        ("/usr/lib/python3.10/multiprocessing/pool.py", "stdlib"),
        ("<frozen importlib._bootstrap>", "stdlib"),
        (textwrap.__file__, "stdlib"),
        (context.__file__, "own"),
        ("<ipython-input-3-abcdef>", "user"),
        ("/tmp/ipykernel_123/4567.py", "user"),
        ("<stdin>", "user"),
        ("/home/ada/my_jax_project/train.py", "user"),
        ("train.py", "user"),
    ],
)
def test_package_of(path, package):
    assert package_of(path) == package


def failing(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("did not fail")


def test_live_exception():
    import jax
    import jax.numpy as jnp

    table = jnp.ones((10, 4))
    weights = [1.0, 2.0]
    scale = 3

    def model(x, w):
        return x @ w * scale

    def run(w):
        return jax.vmap(model)(table, w)

    error = failing(run, jnp.ones(4))
    failure = Failure.from_exception(error)
    assert failure.live and failure.kind == "error" and failure.from_jax is True
    assert failure.user.function == "run"
    assert failure.user.segment == failure.outer_call.source == "jax.vmap(model)(table, w)"
    assert failure.user.statement == "return jax.vmap(model)(table, w)"
    assert str(failure.variable("w")) == "float32[4]" and failure.variable("w").shape == (4,)
    assert failure.variable("model").value == "model" and failure.variable("model").type == "function"
    assert failure.devices == jax.device_count() and failure.environment.platform == "cpu"
    assert failure.rewrite("vmap", "pmap") == "return jax.pmap(model)(table, w)"
    assert weights and explain(error).variables["w"] == "float32[4]"


def test_definition_of_what_is_called():
    import jax
    import jax.numpy as jnp

    def run():
        batched = jax.vmap(jnp.dot, in_axes=(0, 0))
        return batched(jnp.ones((2, 3)), jnp.ones((4, 3)))

    failure = Failure.from_exception(failing(run))
    outer, inner = failure.applied("vmap")
    assert outer.function == "batched" and inner.keywords == {"in_axes": "(0, 0)"}
    assert failure.rewrite("in_axes=(0, 0)", "in_axes=(0, None)").startswith(
        "batched = jax.vmap(jnp.dot, in_axes=(0, None))\n"
    )


def test_nothing_is_kept_alive():
    import jax
    import jax.numpy as jnp

    class Mark:
        pass

    kept = []

    def run():
        mark = Mark()
        kept.append(weakref.ref(mark))
        return jax.vmap(lambda x, w: x + w)(jnp.ones(3), jnp.ones(4))

    error = failing(run)
    failure, explanation = Failure.from_exception(error), explain(error)
    assert failure is not None and explanation is not None
    del error
    gc.collect()
    assert kept[0]() is None


def test_no_code_of_the_user_runs():
    calls = []

    class Nosy:
        def __getattribute__(self, name):
            calls.append(name)
            return object.__getattribute__(self, name)

        def __repr__(self):
            calls.append("repr")
            return "Nosy"

        def __len__(self):
            calls.append("len")
            return 0

        @property
        def shape(self):
            calls.append("shape")
            return ()

    nosy = Nosy()

    def run(thing):
        raise ValueError("boom")

    error = failing(run, nosy)
    calls.clear()
    failure = Failure.from_exception(error)
    assert failure.variables["thing"].type == "Nosy"
    assert not calls


def test_an_exception_that_resists():
    class Strange(Exception):
        __notes__ = 3

        def __str__(self):
            raise RuntimeError("no")

    error = failing(lambda: (_ for _ in ()).throw(Strange()))
    assert explain(error) is None
    assert Failure.from_exception(error).types[0] == "Strange"


def test_explicit_cause_is_explained():
    import jax
    import jax.numpy as jnp

    def run():
        try:
            jax.vmap(lambda x, w: x + w)(jnp.ones(3), jnp.ones(4))
        except ValueError as error:
            raise RuntimeError("the sweep failed") from error

    assert explain(failing(run)).code == "JPX0401"

    def silenced():
        try:
            jax.vmap(lambda x, w: x + w)(jnp.ones(3), jnp.ones(4))
        except ValueError:
            raise RuntimeError("the sweep failed") from None

    assert explain(failing(silenced)) is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_silence(kind):
    assert explain(kind("compiling computation that requires 10 logical devices, but only 1")) is None


def test_error_of_a_worker_process():
    from multiprocessing.pool import ExceptionWithTraceback

    error = failing(lambda: (_ for _ in ()).throw(ValueError(MESSAGE)))
    rebuilt = ExceptionWithTraceback(error, error.__traceback__).__reduce__()
    copy = rebuilt[0](*rebuilt[1])
    copy.__cause__.tb = PYTHON
    copy.add_note("parmap: item 3 of 8 (x=1.0)")
    explanation = explain(copy)
    assert explanation.code == "JPX0401" and explanation.item == 3
    assert explanation.where.line == 9 and "item 3" in str(explanation)


def test_facts_are_read_without_starting_jax():
    run_python(
        """
        import sys
        from jaxpar_magic.explanations.context import Failure
        failure = Failure.from_exception(ValueError("x"))
        assert failure.environment.jax is None and "jax" not in sys.modules
        assert not [m for m in sys.modules if m.split(".")[0] in ("numpy", "rich", "IPython")]
        import jax
        failure = Failure.from_exception(ValueError("x"))
        assert failure.environment.jax and failure.environment.devices is None
        from jaxpar_magic import _jax
        assert _jax.live_platforms() == ()
        """
    )


@pytest.mark.parametrize("module", [context, text, wording])
def test_examples_in_docstrings(module):
    assert not doctest.testmod(module).failed


def test_read_only_views_of_jax_arrays_are_known():
    import jax
    import jax.numpy as jnp
    import numpy as np

    x = jnp.arange(6.0).reshape(2, 3)
    for view in (np.asarray(x), jax.device_get(x), np.asarray(x)[0], np.asarray(x).T):
        assert context.describe("a", view).uses_jax
    locked = np.ones(3)
    locked.flags.writeable = False
    for other in (np.array(x), locked, np.broadcast_to(np.ones(1), (3,)), np.frombuffer(b"abcd", "u1"), np.ones(3)):
        assert not context.describe("a", other).uses_jax
