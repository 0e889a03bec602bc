"""Errors explained: `explain(error)` gives what went wrong in the user's own numbers, why, and fixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import Failure
    from .explanation import Explanation

__all__ = ["explain"]


def explain(
    error: BaseException | str | Failure | None = None,
    *,
    name_file: Callable[[str], str | None] | None = None,
) -> Explanation | None:
    """Explain an error of JAX, or of a parallel map.

    Parameters
    ----------
    error:
        An exception; or text: a message, a traceback, a piece of a log, also from another machine or
        version. Default: the last error of this session that was not caught (`sys.last_value`).
    name_file:
        Turns the file name of a traceback into what to show ("cell In[3]"), or None to show it as it is.

    Returns
    -------
    Explanation or None
        Data that shows itself as a card; `str()` of it is the same as text. None if the error is not
        JAX's, or if there is nothing to say about it that is known to be true.

    Examples
    --------
    >>> message = "vmap got inconsistent sizes for array axes to be mapped: axis 0 has 10, axis 0 has 4"
    >>> explain("ValueError: no such file") is None
    True
    """
    import sys
    from dataclasses import replace

    from .context import Failure
    from .registry import explain_failure

    if error is None:
        error = getattr(sys, "last_value", None)
        if error is None:
            return None
    if isinstance(error, Failure):
        failure = error
    elif isinstance(error, str):
        failure = Failure.from_text(error)
    elif isinstance(error, BaseException):
        failure = Failure.from_exception(error, name_file)
    else:
        raise TypeError(f"error={type(error).__name__}: explain() needs an exception or text.")
    explanation = explain_failure(failure)
    if explanation is None and isinstance(error, str):
        # mail and terminals break long lines anew
        joined = " ".join(failure.message.split())
        if joined != failure.message:
            explanation = explain_failure(replace(failure, message=joined))
    return explanation
