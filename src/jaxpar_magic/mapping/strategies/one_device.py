"""`vmap` and `map`: the two ends of the inner width, on one device."""

from __future__ import annotations

from dataclasses import dataclass

from ..programs import compile_program
from ..tracing import ItemProgram
from .base import Executable, Layout, local_map, place_on_one, shapes


@dataclass(frozen=True)
class OneDevice:
    name: str

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        device = layout.devices[0]
        function = local_map(item, layout.size, layout.width)
        compiled = compile_program(function, *shapes(item, layout.size), devices=layout.devices)

        def place(arrays):
            return place_on_one(arrays, device)

        return Executable(compiled, place, place, compiled.call)


VMAP = OneDevice("vmap")
MAP = OneDevice("map")
