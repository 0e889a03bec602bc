"""`pmap`: one program per device, the way code from before shard_map does it."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from ..programs import compile_program
from ..tracing import ItemProgram
from .base import AXIS, Executable, Layout, local_map, shapes


@dataclass(frozen=True)
class Pmap:
    name: str = "pmap"

    def prepare(self, item: ItemProgram, layout: Layout) -> Executable:
        __tracebackhide__ = True
        devices = list(layout.devices)
        mapped, shared = shapes(item, layout.size)
        split = [jax.ShapeDtypeStruct(_cut(a.shape, layout.parts), a.dtype) for a in mapped]
        function = local_map(item, layout.part_size, layout.width)
        # Spelt out per leaf: pmap since 0.8 takes in_axes=(0, None) for per-leaf axes where two arguments happen to
        # have two leaves in all (the shortcut in _get_in_axes_flat of jax/_src/pmap.py).
        in_axes = ([0] * len(mapped), [None] * len(shared))
        compiled = compile_program(
            function,
            split,
            shared,
            devices=devices,
            # named: the default name holds an address, and no program would be found by its text again
            jit=lambda f: jax.pmap(f, axis_name=AXIS, in_axes=in_axes, devices=devices),
        )

        def place_mapped(arrays: list) -> list:
            # pmap's own placement: it takes host arrays with a leading axis of devices
            return [np.asarray(a).reshape(_cut(a.shape, layout.parts)) for a in arrays]

        def run(mapped_chunk: list, shared_arrays: list) -> list:
            return [x.reshape((layout.size, *x.shape[2:])) for x in compiled.call(mapped_chunk, shared_arrays)]

        return Executable(compiled, place_mapped, list, run)


def _cut(shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
    return (parts, shape[0] // parts, *shape[1:])


PMAP = Pmap()
