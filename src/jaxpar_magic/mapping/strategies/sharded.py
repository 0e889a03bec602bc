"""`shard_map`: each device runs the same program on its own shard of the items."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from ..tracing import ItemProgram
from .base import AXIS, Executable, Layout, device_mesh, local_map, sharded_executable

_P = jax.sharding.PartitionSpec


@dataclass(frozen=True)
class ShardMap:
    name: str = "shard_map"

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        # check_vma=False: a scan with a constant initial carry fails the check ("carry input and carry output must
        # have equal types … {V:devices}"), and in a plain map nothing varies across shards by mistake.
        function = jax.shard_map(
            local_map(item, layout.part_size, layout.width),
            mesh=device_mesh(layout),
            in_specs=(_P(AXIS), _P()),
            out_specs=_P(AXIS),
            check_vma=False,
        )
        return replace(sharded_executable(function, item, layout), apart=layout.parts > 1)


SHARD_MAP = ShardMap()
