"""`jit`: the vmapped program with sharded inputs; XLA's partitioner splits it over the devices."""

from __future__ import annotations

from dataclasses import dataclass

from ..programs import compile_program
from ..tracing import ItemProgram
from .base import Executable, Layout, local_map, mesh_shardings, place_sharded, shapes


@dataclass(frozen=True)
class ShardedJit:
    name: str = "jit"

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        _, split, replicated = mesh_shardings(layout.devices)
        # Always the full width: a loop over batches would be a loop over the sharded axis. `--batch-size` bounds
        # the chunk instead (see planner).
        function = local_map(item, layout.size, layout.size)
        compiled = compile_program(
            function, *shapes(item, layout.size), devices=layout.devices, in_shardings=(split, replicated)
        )
        return Executable(
            compiled,
            lambda arrays: place_sharded(arrays, split),
            lambda arrays: place_sharded(arrays, replicated),
            compiled.call,
        )


JIT = ShardedJit()
