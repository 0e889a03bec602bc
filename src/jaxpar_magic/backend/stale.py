"""What still belongs, or will belong, to the devices of a backend that was started anew.

Ordinary arrays move with the user; what was placed or sharded on purpose does not, and JAX is silent about
it until old and new meet ("Received incompatible devices", with device numbers that may look the same).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from .. import _jax
from .walk import walk

_REMEDIES = {
    "mesh": "run the cell that builds it again",
    "sharding": "run the cell that builds it again",
    "device": "take it from jax.devices() again",
    "compiled function": "lower and compile it again",
    "current mesh": "call jax.set_mesh with a new mesh",
}


@dataclass(frozen=True)
class Stale:
    """Something that belongs to old devices.

    Attributes
    ----------
    name: how the user would write it, e.g. "params['w']"; of several, the variable that holds them.
    kind: "array", "mesh", "sharding", "device", "compiled function" or "current mesh".
    count: how many of this kind the variable holds.
    """

    name: str
    kind: str
    count: int = 1

    @property
    def remedy(self) -> str:
        """What makes it usable on the new devices."""
        if self.kind != "array":
            return _REMEDIES[self.kind]
        if self.count > 1:
            return "x = jax.device_put(jax.device_get(x)) for each"
        if " (" in self.name:  # captured by a function: there is no name to assign to
            return _REMEDIES["mesh"]
        return f"{self.name} = jax.device_put(jax.device_get({self.name}))"


def find(namespace: Mapping[str, Any], current: Set[Any]) -> tuple[Stale, ...]:
    """What in `namespace` belongs to devices outside `current`; an empty set asks about all devices.

    Only while jax is imported; no backend is started.
    """
    import jax

    wanted = (jax.Array, jax.sharding.Mesh, jax.sharding.Sharding, jax.Device, jax.stages.Compiled)
    found: dict[tuple[str, str], list[str]] = {}
    for variable, path, value in walk(namespace, wanted):
        kind, devices = _devices(value)
        if devices and not devices <= current:
            found.setdefault((variable, kind), []).append(path)
    stale = [
        Stale(paths[0] if len(paths) == 1 else variable, kind, len(paths)) for (variable, kind), paths in found.items()
    ]
    mesh = _jax.active_mesh()
    if mesh is not None and not set(mesh.devices.flat) <= current:
        stale.append(Stale("jax.set_mesh", "current mesh"))
    return tuple(stale)


def _devices(value: Any) -> tuple[str, set[Any]]:
    """What it is, and the devices that it cannot leave; none for an ordinary array."""
    import jax

    try:
        if isinstance(value, jax.Array):
            bound = not isinstance(value, jax.core.Tracer) and value.committed and not value.is_deleted()
            return "array", value.devices() if bound else set()
        if isinstance(value, jax.sharding.Mesh):
            return "mesh", set(value.devices.flat)
        if isinstance(value, jax.sharding.Sharding):
            return "sharding", set(value.device_set)
        if isinstance(value, jax.stages.Compiled):
            executable: Any = value.runtime_executable()
            return "compiled function", set(executable.local_devices())
        return "device", {value}
    except Exception:  # an abstract mesh, an executable that tells nothing: then we say nothing
        return "", set()
