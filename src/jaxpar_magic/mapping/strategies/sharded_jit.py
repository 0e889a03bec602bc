"""`jit`: the vmapped program with sharded inputs; XLA's partitioner splits it over the devices."""

from __future__ import annotations

from dataclasses import dataclass

from ..tracing import ItemProgram
from .base import Executable, Layout, local_map, sharded_executable


@dataclass(frozen=True)
class ShardedJit:
    name: str = "jit"

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        # Always the full width: a loop over batches would be a loop over the sharded axis. `--batch-size` bounds
        # the chunk instead (see planner).
        return sharded_executable(local_map(item, layout.size, layout.size), item, layout)


JIT = ShardedJit()
