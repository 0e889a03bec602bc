"""Threads inside transformed functions."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule

_THREADS = r"concurrent/futures/thread\.py$|/threading\.py$|multiprocessing/pool\.py$|joblib/"


@rule(
    "JPX1510",
    "threads-in-a-traced-function",
    types=("UnexpectedTracerError",),
    priority=20,
)
def threads_in_a_traced_function(failure: Failure) -> Finding | None:
    in_thread = any(re.search(_THREADS, frame.file.replace("\\", "/")) for frame in failure.frames)
    sources = " ".join(filter(None, (frame.statement for frame in failure.user_frames)))
    if not in_thread and not re.search(r"ThreadPool|threading\.Thread|Parallel\(", sources):
        return None
    function = failure.search(r"The function being traced when the value leaked was (\S+)")
    name = function.group(1) if function is not None else "The function"
    value = failure.search(r"an intermediate value with type (\S+)")
    of = f" (type {value.group(1)})" if value is not None else ""
    return Finding(
        what=f"{name} is traced by JAX and starts threads, and a thread used a value{of} of the trace.",
        why="JAX traces a function in the thread that called it. In another thread the value is a stand-in from "
        "somebody else's trace. The compiled program is parallel by itself, so threads inside have no use.",
        fixes=[
            Fix("Do the work of the threads with vmap", "parts = jax.vmap(lambda i: jnp.sin(x) * i)(jnp.arange(2))"),
            Fix(
                "Or start the threads outside, each calling the compiled function",
                "with ThreadPoolExecutor(2) as pool:\n    results = list(pool.map(jax.jit(f), inputs))",
            ),
        ],
        facts={"function": name},
    )
