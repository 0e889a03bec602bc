"""`shard_map`: each device runs the same program on its own shard of the items."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from ..programs import compile_program
from ..tracing import ItemProgram
from .base import AXIS, Executable, Layout, local_map, mesh_shardings, place_sharded, shapes

_P = jax.sharding.PartitionSpec


@dataclass(frozen=True)
class ShardMap:
    name: str = "shard_map"

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        mesh, split, replicated = mesh_shardings(layout.devices)
        # check_vma=False: a scan with a constant initial carry fails the check ("carry input and carry output must
        # have equal types … {V:devices}"), and in a plain map nothing varies across shards by mistake.
        function = jax.shard_map(
            local_map(item, layout.part_size, layout.width),
            mesh=mesh,
            in_specs=(_P(AXIS), _P()),
            out_specs=_P(AXIS),
            check_vma=False,
        )
        compiled = compile_program(
            function, *shapes(item, layout.size), devices=layout.devices, in_shardings=(split, replicated)
        )
        return Executable(
            compiled,
            lambda arrays: place_sharded(arrays, split),
            lambda arrays: place_sharded(arrays, replicated),
            compiled.call,
        )


SHARD_MAP = ShardMap()
