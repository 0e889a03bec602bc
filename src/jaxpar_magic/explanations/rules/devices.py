"""Devices: how many there are, pmap over more items than that, settings that come too late."""

from __future__ import annotations

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, device_count_fix, parmap_fix, sizes

_PMAP_WHY = (
    "pmap runs each item of the leading axis on a device of its own, so it takes at most as many items as "
    "there are devices. On a CPU JAX starts with one device, however many cores there are."
)


def _mapped_call(failure: Failure) -> tuple[Call, Call] | None:
    """The user's `pmap(f)(x)`: the outer call with the inputs and the inner one with the function."""
    inner = failure.call("pmap")
    if inner is None:
        return None
    for frame in failure.user_frames:
        for outer in frame.calls:
            if outer.function == inner.source:
                return outer, inner
    return None


def _pmap_fixes(failure: Failure, items: int | None) -> list[Fix]:
    fixes = []
    calls = _mapped_call(failure)
    if calls is not None and calls[1].args and len(calls[0].args) == 1:
        fixes.append(parmap_fix(failure, calls[1].args[0], calls[0].args[0]))
    if items is not None:
        count = device_count_fix(failure, items)
        if count is not None:
            fixes.append(count)
    inner = failure.call("pmap")
    rewritten = failure.rewrite(inner.function, inner.function.replace("pmap", "vmap")) if inner else None
    fixes.append(
        Fix(
            "Vectorise on one device instead (works for any number of items)",
            rewritten or "result = jax.vmap(function)(inputs)",
        )
    )
    return fixes[:3]


def _pmap_finding(failure: Failure, items: int | None, devices: int | None, *, guess: bool = False) -> Finding:
    have = "fewer devices" if devices is None else counted(devices, "device")
    number = "these" if items is None else str(items)
    late = failure.environment.xla_flags or ""
    what = f"pmap got {number} items to map, and it has {have} to run them on."
    if devices is not None and "xla_force_host_platform_device_count" in late and failure.live:
        asked = sizes(late.split("xla_force_host_platform_device_count", 1)[1])
        if asked and asked[0] != devices and failure.devices == devices:
            what += (
                f" XLA_FLAGS asks for {counted(asked[0], 'device')}, but it was set after JAX had started, "
                "when it is no longer read."
            )
    facts = {"items": items, "devices": devices}
    return Finding(what, _PMAP_WHY, _pmap_fixes(failure, items), facts, guess)


@rule(
    "JPX0104",
    "pmap-needs-devices",
    types=("ValueError",),
    clues=("logical devices", "num_replicas=", "num_local_devices="),
    anywhere=True,
)
def pmap_needs_devices(failure: Failure) -> Finding | None:
    # JAX up to 0.7. The names in brackets stay when the sentence around them is translated.
    match = failure.search(r"requires (\d+) logical devices, but only (\d+) XLA devices are available")
    if match is None and failure.from_jax is not False:
        match = failure.search(r"axis_size=(\d+), num_local_devices=(\d+)")
    if match is not None:
        return _pmap_finding(failure, int(match.group(1)), int(match.group(2)))
    if failure.live:
        return None
    replicas = failure.search(r"num_replicas=(\d+)")
    others = [int(m.group()) for m in failure.findall(r"(?<![\w=])\d+(?!\w)")]
    if replicas is None or int(replicas.group(1)) not in others:
        return None
    items = int(replicas.group(1))
    have = [n for n in others if n != items]
    return _pmap_finding(failure, items, have[0] if have else None)


@rule("JPX0104", "pmap-needs-devices", types=("ValueError",), clues=("squeeze out",))
def pmap_shard_map_needs_devices(failure: Failure) -> Finding | None:
    # JAX 0.8 on: each device gets several rows, and pmap tries to squeeze an axis of size 1 out of them
    match = failure.search(
        r"cannot select an axis to squeeze out .* got shape=\(([\d, ]+)\) and dimensions=\((\d+),?\)"
    )
    if match is None:
        return None
    shape, axis = sizes(match.group(1)), int(match.group(2))
    if axis >= len(shape):
        return None
    rows = shape[axis]
    if failure.raised_in("jax/_src/pmap.py"):
        items, devices = _items_and_devices(failure, rows, axis)
        return _pmap_finding(failure, items, devices)
    if failure.frames or failure.call("squeeze"):
        return None
    return _pmap_finding(failure, rows, None, guess=True)


def _items_and_devices(failure: Failure, rows: int, axis: int) -> tuple[int, int | None]:
    """Items and devices from the rows that each device got, and the arguments at the user's line."""
    arguments = [v for name, v in failure.variables.items() if name.startswith("args[") and v.shape]
    mapped = {v.shape[axis] for v in arguments if v.shape is not None and axis < len(v.shape)}
    items = next((n for n in mapped if n is not None and n % rows == 0), None)
    if items is None:
        devices = failure.devices
        return (rows, 1) if devices in (None, 1) else (rows * devices, devices)
    return items, items // rows
