"""`process`: worker processes that call the function as plain Python.

JAX arrays and PRNG keys pickle by themselves and are the same on the other side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..._jax import setting
from ..inputs import Batch
from ..workers import ItemFailure, run_in_processes


def run_processes(
    function: Callable,
    batch: Batch,
    indices: Sequence[int],
    results: dict[int, Any],
    *,
    workers: int,
    chunk_size: int,
    stop_at_failure: bool,
    on_output: Callable[[str, str], None],
    on_done: Callable[[int], None],
    timeout: float | None,
) -> list[ItemFailure]:
    """Call `function` in worker processes for each of `indices`; `results` is filled by index."""
    shared, batch = batch.split_shared()
    _, failures = run_in_processes(
        # in the function, what is the same for all items travels once per worker
        functools.partial(function, **shared) if shared else function,
        ((i, *batch.item(i)) for i in indices),
        workers=workers,
        chunk_size=chunk_size,
        on_output=on_output,
        stop_at_failure=stop_at_failure,
        timeout=timeout,
        on_done=on_done,
        results=results,
        x64=bool(setting("jax_enable_x64")),
        # plain Python needs no accelerator, and several processes cannot share one
        environment={"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
    )
    return failures
