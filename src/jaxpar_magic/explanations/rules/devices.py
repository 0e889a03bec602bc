"""Devices: how many there are, pmap over more items than that, settings that come too late."""

from __future__ import annotations

import ast
import contextlib
import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, device_count_fix, listed, parmap_fix, sizes
from .vmap import in_pmap

_PMAP_WHY = (
    "pmap runs each item of the leading axis on a device of its own, so it takes at most as many items as "
    "there are devices. On a CPU JAX starts with one device, however many cores there are."
)
# What pmap takes and vmap does not.
_PMAP_ONLY = (
    "devices",
    "backend",
    "axis_size",
    "donate_argnums",
    "global_arg_shapes",
    "static_broadcasted_argnums",
)


def _vmap_source(failure: Failure) -> str | None:
    """The user's line, or the definition of what it calls, with vmap in place of pmap."""
    inner = failure.call("pmap")
    if inner is not None:
        without = dict.fromkeys(_PMAP_ONLY)
        return failure.rewrite(inner.source, inner.changed(re.sub(r"pmap$", "vmap", inner.function), **without))
    for definition in failure.definitions.values():
        decorator = re.match(r"@([\w.]*)pmap\n", definition)
        if decorator is not None:
            return failure.rewrite(decorator.group(), f"@{decorator.group(1)}vmap\n")
    return None


def _pmap_fixes(failure: Failure, items: int | None, listed_too_few: bool) -> list[Fix]:
    fixes = []
    calls = failure.applied("pmap")
    if listed_too_few:
        code = None
        if calls is not None and "devices" in calls[1].keywords:
            code = failure.rewrite(calls[1].source, calls[1].changed(devices=None))
        fixes.append(Fix("Let pmap use all devices (no devices=)", code or "result = jax.pmap(function)(inputs)"))
    if calls is not None and calls[1].args and len(calls[0].args) == 1 and "axis_name" not in calls[1].keywords:
        in_axes = calls[1].keywords.get("in_axes")
        fixes.append(parmap_fix(failure, calls[1].args[0], calls[0].args[0], in_axes=in_axes))
    if items is not None and not listed_too_few:
        count = device_count_fix(failure, items)
        if count is not None:
            fixes.append(count)
    code = _vmap_source(failure) or "result = jax.vmap(function)(inputs)"
    fixes.append(Fix("Vectorise on one device instead (any number of items)", code))
    return fixes


def _pmap_finding(failure: Failure, items: int | None, devices: int | None, *, guess: bool = False) -> Finding:
    have = "fewer devices than that" if devices is None else counted(devices, "device")
    number = "more items than it has devices for" if items is None else f"{items} items to map"
    what = f"pmap got {number}, and has {have} to run them on."
    running = failure.devices
    listed_too_few = False
    if running is not None and devices is not None and items is not None:
        listed_too_few = devices < running and items <= running
    if listed_too_few and running is not None:
        what += f" JAX has {counted(running, 'device')}: devices= leaves some of them out."
    asked = _asked_too_late(failure, devices)
    if asked is not None:
        what += (
            f" XLA_FLAGS asks for {counted(asked, 'device')}, but it was set after JAX had started, when it "
            "is no longer read."
        )
    facts = {"items": items, "devices": devices, "asked_too_late": asked}
    return Finding(what, _PMAP_WHY, _pmap_fixes(failure, items, listed_too_few), facts, guess)


def _asked_too_late(failure: Failure, devices: int | None) -> int | None:
    """The device count that XLA_FLAGS asks for, if the running backend has another."""
    match = re.search(r"--xla_force_host_platform_device_count=(\d+)", failure.environment.xla_flags or "")
    running = failure.devices
    if match is None or running is None or running != devices or int(match.group(1)) == running:
        return None
    return int(match.group(1))


@rule(
    "JPX0104",
    "pmap-needs-devices",
    types=("ValueError",),
    clues=("logical devices", "num_replicas=", "num_local_devices=", "replicas, but only"),
)
def pmap_needs_devices(failure: Failure) -> Finding | None:
    # JAX up to 0.7. The names in brackets stay when the sentence around them is translated.
    for pattern in (
        r"requires (\d+) logical devices, but only (\d+) XLA devices are available",
        r"requires (\d+) replicas, but only (\d+) XLA devices are available",
        r"axis_size=(\d+), num_local_devices=(\d+)",
    ):
        match = failure.search(pattern)
        if match is not None:
            items, devices = int(match.group(1)), int(match.group(2))
            return _pmap_finding(failure, items, devices)
    replicas = failure.search(r"num_replicas=(\d+)")
    others = [int(m.group()) for m in failure.findall(r"(?<![\w=])\d+(?!\w)")]
    if failure.live or replicas is None or int(replicas.group(1)) not in others:
        return None
    items = int(replicas.group(1))
    have = [n for n in others if n != items]
    return _pmap_finding(failure, items, have[0] if have else None)


@rule("JPX0104", "pmap-needs-devices", types=("ValueError",), clues=("squeeze out",))
def pmap_squeezes(failure: Failure) -> Finding | None:
    # JAX 0.8 on: each device gets several rows, and pmap squeezes an axis of size 1 out of what it got
    match = failure.search(r"an axis to squeeze out .* got shape=\(([\d, ]+)\) and dimensions=\((\d+),?\)")
    if match is None:
        return None
    shape, axis = sizes(match.group(1)), int(match.group(2))
    if axis >= len(shape):
        return None
    rows = shape[axis]
    if in_pmap(failure):
        items, devices = _items_and_devices(failure, rows, axis)
        return _pmap_finding(failure, items, devices)
    if failure.frames or failure.from_jax is False:
        return None
    return _pmap_finding(failure, rows, None, guess=True)


@rule(
    "JPX0104",
    "pmap-needs-devices",
    types=("ValueError",),
    clues=("is partitioned", "maps array axis"),
    priority=5,
)
def pmap_splits_unevenly(failure: Failure) -> Finding | None:
    # JAX 0.8 on, where the items do not even divide by the devices
    match = failure.search(
        r"array axis (\d+) is partitioned (\d+) times, but the dimension size is (\d+) "
    ) or failure.search(r"maps array axis (\d+) \(of size (\d+)\) to mesh axis '[^']+' \(of size (\d+)\)")
    if match is None or not in_pmap(failure):
        return None
    axis, one, other = map(int, match.groups())
    items, devices = max(one, other), min(one, other)
    lengths = _argument_lengths(failure, axis)
    if len(lengths) > 1:
        return None  # the arguments' lengths differ: another cause
    argument = failure.search(r"flat_args\[(\d+)\]")
    if not lengths and argument is not None and argument.group(1) != "0":
        return None  # the first argument divides and this one does not
    return _pmap_finding(failure, items, devices, guess=not lengths and argument is None)


def _argument_lengths(failure: Failure, axis: int) -> set[int]:
    """Sizes along `axis` of what pmap got."""
    names = [name for name in failure.variables if name.startswith("args[")]
    calls = failure.applied("pmap")
    if not names and calls is not None:
        names = list(calls[0].args)
    shapes = [v.shape for v in map(failure.variable, names) if v is not None and v.shape]
    return {size for shape in shapes if axis < len(shape) and (size := shape[axis]) is not None}


def _items_and_devices(failure: Failure, rows: int, axis: int) -> tuple[int, int | None]:
    """Items and devices from the rows that each device got, and the arguments at the user's line."""
    items = next((n for n in _argument_lengths(failure, axis) if n % rows == 0), None)
    if items is not None:
        return items, items // rows
    devices = failure.devices
    return (rows, 1) if devices in (None, 1) else (rows * devices, devices)


@rule(
    "JPX0107",
    "nested-pmap",
    types=("ValueError",),
    clues=("should match the mesh passed to shard_map",),
    priority=10,
)
def nested_pmap(failure: Failure) -> Finding | None:
    match = failure.search(
        r"context mesh AbstractMesh\('(?:_internal_pmap_axis_name|<axis \w+>)': (\d+), .*"
        r"mesh passed to shard_map Mesh\('(?:_internal_pmap_axis_name|<axis \w+>)': (\d+),"
    )
    if match is None:
        return None
    outer, inner = int(match.group(1)), int(match.group(2))
    calls = failure.applied("pmap")
    nested = re.search(r"^[\w.]*pmap\((.*)\)$", calls[1].args[0]) if calls and calls[1].args else None
    fixes = []
    if calls is not None and nested is not None:
        function = nested.group(1).split(",")[0]
        code = failure.rewrite(calls[1].source, f"jax.pmap(jax.vmap({function}))")
        fixes.append(Fix("Vectorise the inner items on each device", code or "jax.pmap(jax.vmap(function))"))
        fixes.append(
            Fix(
                "Make one axis of the two, and map that over the devices",
                "from jaxpar_magic import parmap\n"
                f"flat = {calls[0].args[0]}.reshape(-1, *{calls[0].args[0]}.shape[2:])\n"
                f"result = parmap({function}, flat)",
            )
            if calls[0].args
            else Fix("Map all items over the devices", f"from jaxpar_magic import parmap\nparmap({function}, inputs)")
        )
    else:
        fixes.append(Fix("Vectorise the inner items on each device", "jax.pmap(jax.vmap(function))(inputs)"))
    return Finding(
        what=f"A pmap is called inside another pmap (the outer one over {outer}, the inner one over "
        f"{counted(inner, 'device')}).",
        why="Since JAX 0.8 pmap is built on shard_map, and a mapped function already runs on one device: "
        "there is nothing left for an inner pmap to spread over. Use vmap for the inner level.",
        fixes=fixes,
        facts={"outer": outer, "inner": inner},
    )


@rule(
    "JPX0105",
    "device-count-set-too-late",
    types=("RuntimeError",),
    clues=("should be updated before backends are initialized",),
)
def device_count_set_too_late(failure: Failure) -> Finding | None:
    match = failure.search(r"(\w+) config should be updated before backends are initialized")
    if match is None:
        return None
    option = match.group(1)
    call = failure.call("update")
    value = call.args[1] if call is not None and len(call.args) > 1 else None
    variable = failure.variable(value)
    if variable is not None and variable.type == "int":
        value = variable.value
    count = int(value) if value is not None and value.isdigit() else None
    fixes = []
    if option == "jax_num_cpu_devices" and count is not None:
        fix = device_count_fix(failure, count)
        if fix is not None:
            fixes.append(fix)
    fixes.append(
        Fix(
            "Set it first in the program (in a notebook: restart the kernel and run this first)",
            f"import jax\njax.config.update({option!r}, {value or 8})",
            kind="start",
        )
    )
    have = f" It runs with {counted(failure.devices, 'device')}." if failure.devices is not None else ""
    return Finding(
        what=f"{option} was set{'' if value is None else f' to {value}'} after JAX had started its back end." + have,
        why="The first JAX operation starts the back end: any array, random key, jax.devices() or "
        "device_count(). The number of CPU devices is fixed at that moment.",
        fixes=fixes,
        facts={"option": option, "value": value, "devices": failure.devices},
    )


@rule("JPX0106", "arrays-on-different-devices", types=("ValueError",), clues=("incompatible devices", "colocated on"))
def arrays_on_different_devices(failure: Failure) -> Finding | None:
    old = failure.search(r"arguments must be colocated on the same device, got ([\w()]+), ([\w()]+)")
    if old is not None:
        return Finding(
            what=f"Arrays of one computation lie on different devices: {old.group(1)} and {old.group(2)}.",
            why="JAX computes where its inputs lie, and does not move an array that was put somewhere on purpose.",
            fixes=[
                Fix("Move one of them to where the other is", "y = jax.device_put(y, list(x.devices())[0])"),
                Fix("Or bring it to the default device", "x = jax.device_put(jax.device_get(x))"),
            ],
            facts={"devices": old.groups()},
        )
    if not failure.search(r"Received incompatible devices for (?:\w+ed )?computation"):
        return None
    places = failure.findall(
        r"(?:argument (\S*) of .*? with shape (\S+) and |(shard_map|[\w.]+) inside \w+ )?"
        r"(?:with )?device ids (\[[\d, ]*\]) on platform (\w+)"
    )
    if len(places) < 2:
        return None
    names = _operands(failure, [m.group(1) for m in places[:2]])
    described = []
    for name, m in zip(names, places):
        thing = f"{name} ({m.group(2)})" if m.group(1) is not None else (m.group(3) or "the computation")
        described.append(f"{thing} on {m.group(5).lower() if m.group(5) != 'CPU' else 'CPU'} devices {m.group(4)}")
    stale = [v.name for v in failure.variables.values() if v.stale and not v.name.startswith("args[")]
    same_ids = places[0].group(4, 5) == places[1].group(4, 5)
    what = f"Arrays of one computation lie on different devices: {listed(described)}."
    if stale or same_ids:
        what += (
            f" {listed(stale) or 'One of them'} still {'belong' if len(stale) > 1 else 'belongs'} to the "
            "devices from before the device count was changed."
        )
    return Finding(
        what=what,
        why="JAX computes where its inputs lie, and does not move an array that was put somewhere on "
        "purpose (device_put, a sharding, the result of a pmap). All inputs must lie on the same devices.",
        fixes=_bring_together(failure, names, places, stale),
        facts={
            "names": tuple(names),
            "device_ids": tuple(sizes(m.group(4)) for m in places[:2]),
            "stale": tuple(stale),
        },
    )


def _operands(failure: Failure, parameters: list[str | None]) -> list[str]:
    """The user's expressions for two parameters, where they can be told; else the parameters' names."""
    names = [name or "an input" for name in parameters]
    call = failure.outer_call
    segment = failure.user.segment if failure.user is not None else None
    if segment is None:
        return names
    with contextlib.suppress(SyntaxError):
        node = ast.parse(segment, mode="eval").body
        if isinstance(node, ast.BinOp):
            return [ast.get_source_segment(segment, side) or "" for side in (node.left, node.right)]
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return [ast.get_source_segment(segment, side) or "" for side in (node.left, node.comparators[0])]
    if call is not None and call.source == segment:
        simple = [a for a in call.args if re.fullmatch(r"[A-Za-z_][\w.]*", a)]
        if len(simple) == len(call.args) == 2:
            return simple
        if len(call.args) == 1 and parameters[1] is None:
            return [call.args[0], names[1]]
        listed_in = (
            re.fullmatch(r"[\[(]\s*([A-Za-z_]\w*)\s*,\s*([A-Za-z_]\w*)\s*,?\s*[\])]", call.args[0])
            if call.args
            else None
        )
        if listed_in is not None:
            return [listed_in.group(1), listed_in.group(2)]
    return names


def _bring_together(failure: Failure, names: list[str], places: list[re.Match[str]], stale: list[str]) -> list[Fix]:
    if stale:
        code = "\n".join(f"{name} = jax.device_put(jax.device_get({name}))" for name in stale)
        return [Fix(f"Move {listed(stale)} to the devices of now", code)]
    first, second = names
    mapped = failure.call("shard_map")
    if places[1].group(1) is None and mapped is not None and "mesh" in mapped.keywords:
        specs = mapped.keywords.get("in_specs", "P()")
        one = specs.strip("()").rstrip(",") if specs.startswith("(") and specs.count("P(") == 1 else specs
        one = one if one.endswith(")") or "(" not in one else one + ")"
        sharding = f"jax.sharding.NamedSharding({mapped.keywords['mesh']}, {one})"
        return [Fix(f"Move {first} onto the mesh first", f"{first} = jax.device_put({first}, {sharding})")]
    fixes = []
    if first.isidentifier() and second.isidentifier() and places[1].group(1) is not None:
        fixes.append(
            Fix(f"Move {second} to where {first} is", f"{second} = jax.device_put({second}, {first}.sharding)")
        )
        fixes.append(
            Fix(
                "Bring both to the default device",
                f"{first}, {second} = jax.device_put(jax.device_get(({first}, {second})))",
            )
        )
    else:
        fixes.append(Fix("Bring the inputs to the default device", "x = jax.device_put(jax.device_get(x))"))
    return fixes
