"""The facts of a warning: the user's line, whatever line the warning itself names."""

from __future__ import annotations

import warnings

from jaxpar_magic.explanations import explain
from jaxpar_magic.explanations.context import Failure


def shown(run):
    """What `Failure.from_warning` makes of the first warning of `run`, called as a hook would call it."""
    found = []

    def showwarning(message, category, filename, lineno, file=None, line=None):
        found.append(Failure.from_warning(str(message), category, filename, lineno, line))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = showwarning
        run()
    return found[0]


def test_warning_that_names_a_line_of_jax():
    import jax.numpy as jnp

    def write():
        counts = jnp.arange(3)
        return counts.at[0].set(0.5)

    failure = shown(write)
    assert failure.from_jax and failure.frames[-1].package == "jax"
    assert failure.user.statement == "return counts.at[0].set(0.5)" and failure.user.function == "write"
    assert failure.variable("counts").dtype == "int32"
    explanation = explain(failure)
    assert explanation.code == "JPX0903" and "`counts`" in explanation.what
    assert explanation.where.source == "return counts.at[0].set(0.5)"


def test_warning_that_names_the_user_line():
    import jax.numpy as jnp

    failure = shown(lambda: jnp.zeros(3, dtype="float64"))
    assert [frame.package for frame in failure.frames] == ["user"]
    assert failure.user.segment == 'jnp.zeros(3, dtype="float64")'
    assert explain(failure).code == "JPX0901"


def test_warning_that_is_shown_later():
    failure = Failure.from_warning("something", UserWarning, "/opt/lib/site-packages/jax/x.py", 3)
    assert [frame.package for frame in failure.frames] == ["jax"] and failure.user is None
