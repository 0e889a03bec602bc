"""Meshes, shardings and the specs that split arrays over them."""

from __future__ import annotations

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, device_count_fix, product, sizes

_MESH_WHY = "Each place in a mesh is one device, so a mesh needs as many devices as the product of its sizes."


def _mesh_finding(failure: Failure, shape: tuple[int, ...], have: int) -> Finding:
    need = product(shape)
    smaller = (have,) + (1,) * (len(shape) - 1)
    call = failure.call("make_mesh", "Mesh")
    names = call.args[1] if call is not None and len(call.args) > 1 else None
    names = names or (call.keywords.get("axis_names") if call is not None else None) or "axis_names"
    fixes = [
        device_count_fix(failure, need),
        Fix(
            f"Make a mesh of the {counted(have, 'device')} there are",
            f"mesh = jax.make_mesh({smaller}, {names})",
        ),
    ]
    return Finding(
        what=f"A mesh of shape {shape} needs {counted(need, 'device')}, and JAX has {have}.",
        why=_MESH_WHY,
        fixes=[fix for fix in fixes if fix is not None],
        facts={"shape": shape, "needed": need, "available": have},
    )


@rule("JPX0203", "mesh-needs-devices", types=("ValueError",), clues=("mesh_shape",))
def mesh_needs_devices(failure: Failure) -> Finding | None:
    match = failure.search(r"Number of devices (\d+) must be >= the product of mesh_shape \(([\d, ]+)\)")
    if match is None:
        return None
    return _mesh_finding(failure, sizes(match.group(2)), int(match.group(1)))
