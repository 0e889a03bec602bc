"""`process`: worker processes that call the function as plain Python.

JAX arrays and PRNG keys pickle by themselves and are the same on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._jax import setting
from ..inputs import Batch
from ..workers import ItemFailure, run_in_processes


def run_processes(
    function: Callable,
    batch: Batch,
    indices: Sequence[int],
    *,
    workers: int,
    chunk_size: int,
    stop_at_failure: bool,
    on_output: Callable[[str, str], None],
) -> tuple[dict[int, Any], list[ItemFailure]]:
    """Call `function` in worker processes for each of `indices`; (results by index, failures)."""
    return run_in_processes(
        function,
        ((i, *batch.item(i)) for i in indices),
        workers=workers,
        chunk_size=chunk_size,
        on_output=on_output,
        stop_at_failure=stop_at_failure,
        x64=bool(setting("jax_enable_x64")),
        # plain Python needs no accelerator, and several processes cannot share one
        environment={"JAX_PLATFORMS": "cpu"},
    )
