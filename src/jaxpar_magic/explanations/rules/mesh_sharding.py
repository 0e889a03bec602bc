"""Meshes, shardings and the specs that split arrays over them."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, device_count_fix, listed, product, sizes
from .vmap import in_pmap

_SPEC = r"((?:PartitionSpec|P)\([^()]*(?:\([^()]*\)[^()]*)*\))"


def readable_spec(text: str) -> str:
    """A spec as users write it: "PartitionSpec('i',)" and "('i',)" give "P('i')"."""
    inner = re.sub(r"^(?:PartitionSpec|P)?\(", "", text.strip())
    inner = re.sub(r",?\)$", "", inner) if inner != text.strip() else inner
    return f"P({inner})"


# -- more places than devices ----------------------------------------------------------------------


def _mesh_finding(failure: Failure, shape: tuple[int, ...], have: int) -> Finding:
    need = product(shape)
    call = failure.call("make_mesh", "Mesh")
    names = None
    if call is not None:
        names = call.args[1] if len(call.args) > 1 else call.keywords.get("axis_names")
    smaller = (have, *(1,) * (len(shape) - 1))
    names = names or str(tuple(f"axis{n}" for n in range(len(shape))))
    code = f"mesh = jax.make_mesh({smaller}, {names})"
    if call is not None and call.name == "make_mesh" and call.args:
        code = failure.rewrite(call.args[0], str(smaller)) or code
    fixes = [device_count_fix(failure, need) if need > have else None]
    fixes.append(Fix(f"Make a mesh of the {counted(have, 'device')} there are", code))
    return Finding(
        what=f"A mesh of shape {shape} has {counted(need, 'place')}, and there {_are(have)} {counted(have, 'device')}.",
        why="Each place in a mesh is one device, so a mesh needs as many devices as the product of its sizes. "
        "On a CPU JAX starts with one device, however many cores there are.",
        fixes=[fix for fix in fixes if fix is not None],
        facts={"shape": shape, "needed": need, "available": have},
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


@rule("JPX0203", "mesh-needs-devices", types=("ValueError",), clues=("mesh_shape",))
def mesh_needs_devices(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Number of devices (\d+) must (?:be >=|equal) the product of mesh_shape [(\[]([\d, ]+)[)\]]"
    )
    if match is None:
        return None
    return _mesh_finding(failure, sizes(match.group(2)), int(match.group(1)))


@rule("JPX0203", "mesh-needs-devices", types=("ValueError",), clues=("cannot reshape array of size",), anywhere=True)
def devices_do_not_fill_the_mesh(failure: Failure) -> Finding | None:
    match = failure.search(r"cannot reshape array of size (\d+) into shape \(([\w, ]+)\)")
    frame = failure.user
    if match is None or frame is None:
        return None
    text = f"{frame.segment or ''} {frame.source or ''}"
    arrays = (failure.variable(name) for name in re.findall(r"[A-Za-z_]\w*", text))
    of_devices = any(v is not None and (v.element or "").endswith("Device") for v in arrays)
    if not (of_devices or re.search(r"\b(?:local_)?devices\(", text)):
        return None
    have = int(match.group(1))
    entries = [entry.strip() for entry in match.group(2).split(",") if entry.strip()]
    given = [int(entry) for entry in entries if entry.isdigit()]
    if len(given) == len(entries):
        return _mesh_finding(failure, tuple(given), have)
    fix = device_count_fix(failure, product(given) * (have // product(given) + 1))
    return Finding(
        what=f"{counted(have, 'device')} cannot be arranged in a mesh whose other sizes are {listed(given)}: "
        f"{have} is not a multiple of {product(given)}.",
        why="Each place in a mesh is one device, so the number of devices must be the product of the sizes.",
        fixes=[
            *([fix] if fix is not None else []),
            Fix("Take sizes whose product is the number of devices", f"mesh = jax.make_mesh(({have},), ('i',))"),
        ],
        facts={"available": have, "sizes": tuple(given)},
    )


# -- sizes that do not divide ----------------------------------------------------------------------


@rule(
    "JPX0204",
    "size-not-divisible",
    types=("ValueError",),
    clues=("does not evenly divide the dimension size", "should be divisible by", "should evenly divide the shape"),
)
def size_not_divisible(failure: Failure) -> Finding | None:
    found = None
    for pattern in (
        r"array axis (\d+) is partitioned (\d+) times, but does not evenly divide the dimension size (\d+)",
        r"array axis (\d+) is partitioned (\d+) times, but the dimension size is (\d+)",
        r"global size of its dimension (\d+) should be divisible by (\d+), but it is equal to (\d+)",
    ):
        found = found or failure.search(pattern)
    if found is None or in_pmap(failure):
        return None
    axis, parts, size = map(int, found.groups())
    shape_text = failure.search(r"(?:full shape|Got shape): \(([\d, ]*)\)")
    shape = sizes(shape_text.group(1)) if shape_text is not None else ()
    path = failure.search(r"(arguments?|outputs?) with pytree key path (\S+) was given")
    spec = failure.search("spec=" + _SPEC)
    name = _split_array(failure, path.group(2) if path is not None and path.group(1).startswith("arg") else None)
    thing = name or ("the result" if path is not None and path.group(1).startswith("out") else "the array")
    spec_text = readable_spec(spec.group(1)) if spec is not None else "the sharding"
    return Finding(
        what=f"Axis {axis} of {thing} has size {size}, and {spec_text} splits it into {parts} equal parts: "
        f"{size} is not a multiple of {parts}.",
        why="A sharded array is cut into equal blocks, one for each device along the mesh axis, so the size "
        "must be a multiple of the number of devices.",
        fixes=uneven_fixes(name or "x", shape, axis, size, parts, failure),
        facts={"array": name, "axis": axis, "size": size, "parts": parts, "shape": shape},
    )


def _split_array(failure: Failure, path: str | None) -> str | None:
    """The user's name for the array: of the argument of device_put, or of the parameter that JAX names."""
    call = failure.call("device_put", "with_sharding_constraint", "reshard")
    if call is not None and call.args:
        return call.args[0]
    outer = failure.outer_call
    if path is not None and outer is not None and len(outer.args) == 1 and "[" not in path:
        return outer.args[0] if outer.args[0].isidentifier() else path
    return path


def uneven_fixes(
    name: str, shape: tuple[int, ...], axis: int, size: int, parts: int, failure: Failure | None = None
) -> list[Fix]:
    """Pad, trim, or let parmap do it: what helps when `size` is not a multiple of `parts`."""
    target = -(-size // parts) * parts
    variable = name if re.fullmatch(r"[A-Za-z_][\w.]*(?:\[[^\]]*\])*", name) else "x"
    rank = max(len(shape), axis + 1)
    widths = ", ".join(f"(0, {target - size})" if n == axis else "(0, 0)" for n in range(rank))
    fixes = [
        Fix(
            f"Pad axis {axis} to {target} (and cut the result back to {size})",
            f"{variable} = jnp.pad({variable}, [{widths}])",
        )
    ]
    kept = size // parts * parts
    if kept:
        cut = ", ".join([":"] * axis + [f":{kept}"])
        fixes.append(Fix(f"Leave out the last {size - kept}", f"{variable} = {variable}[{cut}]"))
    applied = failure.applied("shard_map") if failure is not None else None
    if axis == 0 and (applied is None or len(applied[0].args) < 2):
        fixes.append(
            Fix(
                "For a function of one item: map it, any length on any number of devices",
                f"from jaxpar_magic import parmap\nresult = parmap(function, {variable})",
            )
        )
    return fixes


# -- specs that do not fit -------------------------------------------------------------------------


@rule(
    "JPX0205",
    "spec-longer-than-rank",
    types=("ValueError", "AssertionError"),
    clues=("aval's ndim", "valid for values of rank", "P("),
)
def spec_longer_than_rank(failure: Failure) -> Finding | None:
    if in_pmap(failure):
        return None
    match = failure.search(r"Length of sharding\.spec \((\d+)\) must be equal to aval's ndim \((\d+)\)")
    match = match or failure.search(
        r"valid for values of rank at least (\d+), but was applied to a value of rank (\d+)"
    )
    spec_text = failure.search(r"(?:spec=|sharding\.spec )" + _SPEC)
    if match is not None:
        length, rank = int(match.group(1)), int(match.group(2))
    else:
        bare = re.fullmatch(r"\((\d+), (P\(.*\))\)", failure.message)
        if bare is None or not failure.is_a("AssertionError"):
            return None
        spec_text, rank = bare, int(bare.group(1))
        length = len(re.findall(r"\([^()]*\)|[^,()]+", bare.group(2)[2:-1].strip(", ")))
    spec = readable_spec(spec_text.group(2 if spec_text.re.groups == 2 else 1)) if spec_text else "The spec"
    name = _split_array(failure, None)
    shown = name or "the array"
    shorter = "P()" if rank == 0 else _first_entries(spec, rank)
    fixes = [Fix("Give one entry for each axis of the array, or fewer", f"spec = {shorter}")]
    old = _spec_in_source(failure, spec)
    if old is not None:
        rewritten = failure.rewrite(old, shorter)
        fixes = [Fix("Give one entry for each axis of the array, or fewer", rewritten or f"spec = {shorter}")]
    return Finding(
        what=f"{spec} has {counted(length, 'entry')}, and {shown} has {counted(rank, 'axis')}.",
        why="Each entry of a PartitionSpec says how one axis of the array is split, in order, so there can be no "
        "more entries than axes. Axes without an entry are not split; P() splits nothing.",
        fixes=fixes,
        facts={"spec": spec, "length": length, "rank": rank, "array": name},
    )


def _first_entries(spec: str, count: int) -> str:
    """The spec with `count` entries: the first ones, or those that name an axis if the first ones do not."""
    entries = re.findall(r"\([^()]*\)|[^,()\s]+", spec[2:-1])
    kept = entries[:count]
    if all(entry == "None" for entry in kept):
        kept = [entry for entry in entries if entry != "None"][:count] or kept
    return f"P({', '.join(kept)})"


def _spec_in_source(failure: Failure, spec: str) -> str | None:
    def plain(text: str) -> str:
        return re.sub(r"\s", "", readable_spec(text)).replace('"', "'")

    for frame in failure.user_frames[:1]:
        for found in re.findall(_SPEC, frame.statement or ""):
            if plain(found) == plain(spec):
                return str(found)
    return None


@rule(
    "JPX0206",
    "spec-names-unknown-axis",
    types=("ValueError",),
    clues=("is not found in mesh", "marked as manual"),
)
def spec_names_unknown_axis(failure: Failure) -> Finding | None:
    match = failure.search(r"Resource axis: (\S+) of (.+?) is not found in mesh: \(([^)]*)\)")
    if match is not None:
        axis, spec = match.group(1), readable_spec(match.group(2))
        axes = re.findall(r"'([^']+)'", match.group(3))
    else:
        head = failure.search(r"shard_map (in|out)_specs argument must refer to an axis marked as manual \((.*)\)")
        used = failure.search(r"(in|out)_specs\S* refers to '([^']+)'")
        if head is None or used is None:
            return None
        axis, spec = used.group(2), f"{used.group(1)}_specs"
        axes = re.findall(r"'([^']+)'", head.group(2))
    fixes = []
    for known in axes[:2]:
        code = None
        for quote in "'\"":
            code = code or failure.rewrite(f"P({quote}{axis}{quote}", f"P({quote}{known}{quote}")
        fixes.append(Fix(f"Use the mesh's axis {known!r}", code or f"spec = P({known!r})"))
    return Finding(
        what=f"{spec} names the mesh axis {axis!r}, and the mesh has {listed([repr(a) for a in axes]) or 'none'}.",
        why="A spec says along which axes of the mesh an array is split, by the names that the mesh was made with.",
        fixes=fixes or [Fix("Give the mesh that axis", f"mesh = jax.make_mesh((jax.device_count(),), ({axis!r},))")],
        facts={"axis": axis, "axes": tuple(axes)},
    )
