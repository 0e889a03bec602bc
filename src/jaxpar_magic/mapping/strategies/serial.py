"""`serial`: a plain Python loop, the meaning of every other strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..inputs import Batch


def run_serial(
    function: Callable, batch: Batch, indices: Sequence[int], *, stop_at_failure: bool
) -> tuple[dict[int, Any], list[tuple[int, BaseException]]]:
    """Call `function` for each of `indices`; (results by index, failures in order).

    With `stop_at_failure` the exception passes through, with a note that names the item.
    """
    __tracebackhide__ = True
    results: dict[int, Any] = {}
    failures: list[tuple[int, BaseException]] = []
    for i in indices:
        args, kwargs = batch.item(i)
        try:
            results[i] = function(*args, **kwargs)
        except Exception as error:
            if stop_at_failure:
                error.add_note(item_note(batch, i))
                raise
            failures.append((i, error))
    return results, failures


def item_note(batch: Batch, i: int) -> str:
    """The line under a traceback that names the item."""
    return f"parmap: item {i} of {batch.length} ({batch.describe_item(i)})"
