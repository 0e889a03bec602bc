"""`thread`: Python threads that each run the one-device program on their part of the items.

XLA releases the GIL while it computes, so threads use the cores although there is one device; it needs no device
count and works whatever state the backend is in.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import numpy as np

from ..programs import compile_program
from ..tracing import ItemProgram
from .base import Executable, Layout, local_map, place_on_one, shapes


@dataclass(frozen=True)
class Thread:
    name: str = "thread"

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        device = layout.devices[0]
        function = local_map(item, layout.part_size, layout.width)
        compiled = compile_program(function, *shapes(item, layout.part_size), devices=layout.devices)

        def run_timed(mapped: list, shared: list) -> tuple[list, list[float]]:
            def run_part(k: int) -> tuple[list, float]:
                started = time.perf_counter()
                begin = k * layout.part_size
                part = [a[begin : begin + layout.part_size] for a in mapped]
                outputs = [np.asarray(x) for x in compiled.call(place_on_one(part, device), shared)]
                return outputs, time.perf_counter() - started

            with ThreadPoolExecutor(layout.parts, thread_name_prefix="parmap") as pool:
                parts, seconds = zip(*pool.map(run_part, range(layout.parts)))
            return [np.concatenate(column) for column in zip(*parts)], list(seconds)

        def run(mapped: list, shared: list) -> list:
            return run_timed(mapped, shared)[0]

        def place_mapped(arrays: list) -> list:
            # host arrays, so that cutting them into parts is a view and not a JAX operation
            return [np.asarray(a) if isinstance(a, jax.Array) else a for a in arrays]

        return Executable(compiled, place_mapped, lambda arrays: place_on_one(arrays, device), run, run_timed=run_timed)


THREAD = Thread()
