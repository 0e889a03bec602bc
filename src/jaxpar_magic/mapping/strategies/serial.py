"""`serial`: a plain Python loop, the meaning of every other strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..inputs import Batch
from ..monitor import Monitor


def run_serial(
    function: Callable,
    batch: Batch,
    indices: Sequence[int],
    results: dict[int, Any],
    stop_at_failure: bool,
    monitor: Monitor,
    on_done: Callable[[int], None],
) -> list[tuple[int, BaseException]]:
    """Call `function` for each of `indices`; `results` is filled by index, failures are returned in order.

    With `stop_at_failure` the exception passes through, with a note that names the item. `on_done` is told the number
    of items done after each.
    """
    __tracebackhide__ = True
    failures: list[tuple[int, BaseException]] = []
    for count, i in enumerate(indices, 1):
        monitor.check()
        args, kwargs = batch.item(i)
        try:
            results[i] = function(*args, **kwargs)
        except Exception as error:
            if stop_at_failure:
                error.add_note(item_note(batch, i))
                raise
            failures.append((i, error))
        on_done(count)
    return failures


def item_note(batch: Batch, i: int) -> str:
    """The line under a traceback that names the item."""
    return f"parmap: item {i} of {batch.length} ({batch.describe_item(i)})"
