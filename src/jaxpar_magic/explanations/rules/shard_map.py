"""shard_map: specs against the arrays and results that they describe."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, counted, listed
from .mesh_sharding import readable_spec, uneven_fixes
from .vmap import in_pmap

_TYPE = r"(\w+\[[^\]]*\](?:\{[^}]*\})?)"


def _function(failure: Failure) -> str:
    match = failure.search(r"shard_map applied to the function '([^']+)'")
    name = match.group(1) if match is not None else ""
    return "the function" if name in ("", "<lambda>", "_rem_singleton", "call_wrapped") else name


def _argument(failure: Failure, path: str, parameter: str | None) -> str:
    """How to call the argument at "[0]['w']": by the user's own expression, or by its parameter."""
    indices = re.match(r"\[(\d+)\](.*)", path)
    call = failure.outer_call
    if indices is not None and call is not None and int(indices.group(1)) < len(call.args):
        source = call.args[int(indices.group(1))]
        if source.isidentifier():
            return source + indices.group(2)
    if parameter is not None and indices is not None:
        return parameter + indices.group(2)
    return f"args{path}"


@rule(
    "JPX0301",
    "shard-map-size-not-divisible",
    types=("ValueError",),
    clues=("not evenly divisible by the corresponding mesh axis sizes",),
)
def shard_map_size_not_divisible(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"args(\S*) of shape {_TYPE},? (?:where args\S+ is (?:bound to .*?'s parameter '([^']+)'"
        r"|the index .*?),? )?corresponds to in_specs(\S*) of value (.+?), which maps array axis (\d+) "
        r"\(of size (\d+)\) to mesh ax[ie]s '?(.+?)'? \(of (?:total )?size (\d+)\)",
        re.S,
    )
    if match is None or in_pmap(failure):
        return None
    path, type_text, parameter, _, spec, axis_text, size_text, mesh_axis, parts_text = match.groups()
    axis, size, parts = int(axis_text), int(size_text), int(parts_text)
    name = _argument(failure, path, parameter)
    kind = array_type(type_text)
    shape = kind[1] if kind is not None else ()
    return Finding(
        what=f"Axis {axis} of {name} ({type_text}) has size {size}, and {readable_spec(spec)} splits it over mesh "
        f"axis {mesh_axis.strip(chr(39))} of size {parts}: {size} is not a multiple of {parts}.",
        why="shard_map gives each device a block of the same size, so the size must be a multiple of the "
        "number of devices along the mesh axis.",
        fixes=uneven_fixes(name, shape, axis, size, parts, failure),
        facts={"array": name, "axis": axis, "size": size, "parts": parts, "shape": shape, "mesh_axis": mesh_axis},
    )


@rule(
    "JPX0302",
    "in-spec-longer-than-rank",
    types=("ValueError",),
    clues=("was given an in_specs entry which is too long",),
)
def in_spec_longer_than_rank(failure: Failure) -> Finding | None:
    match = failure.search(
        r"in_specs(\S*) is (.+?) which has length (\d+), but (?:the passed )?args(\[\S*?)"
        r"(?:, where args\S+ is (?:bound to .*?'s parameter '([^']+)'|the index .*?),)? has shape "
        rf"{_TYPE}, which has rank (\d+)",
        re.S,
    )
    if match is None:
        return None
    where, spec, length, path, parameter, type_text, rank_text = match.groups()
    rank = int(rank_text)
    name = _argument(failure, path, parameter)
    right = "P()" if rank == 0 else readable_spec(", ".join(_entries(spec)[:rank]))
    meaning = " P() hands the same value to every device." if rank == 0 else ""
    return Finding(
        what=f"in_specs{where} is {readable_spec(spec)}, with {counted(int(length), 'entry')}, for {name} "
        f"({type_text}), which has {counted(rank, 'axis')}.",
        why="Each entry of a spec says how one axis of the argument is split, so there can be no more entries "
        "than axes." + meaning,
        fixes=[Fix(f"Give {name} the spec {right}", _with_spec(failure, "in_specs", path, right))],
        facts={"argument": name, "spec": readable_spec(spec), "length": int(length), "rank": rank},
    )


def _entries(spec: str) -> list[str]:
    return re.findall(r"\([^()]*\)|[^,()\s]+", readable_spec(spec)[2:-1])


def _with_result(failure: Failure, change: str, out_specs: str | None = None) -> str | None:
    """The user's statement, where shard_map is given a lambda and one spec for the result, with the result
    changed: `change` is "f({})"."""
    call = failure.call("shard_map")
    body = re.match(r"lambda [^:]*: ?(.*)", call.args[0], re.S) if call is not None and call.args else None
    given = call.keywords.get("out_specs") if call is not None else None
    if call is None or body is None or given is None or not re.match(r"P\(|PartitionSpec\(", given):
        return None
    new = call.source.replace(body.group(1), change.format(body.group(1)), 1)
    if out_specs is not None:
        new = new.replace(f"out_specs={given}", f"out_specs={out_specs}", 1)
    return failure.rewrite(call.source, new)


def _with_spec(failure: Failure, keyword: str, path: str, spec: str) -> str:
    """The user's shard_map call with another spec at `path`, if the specs stand there as a flat tuple."""
    call = failure.call("shard_map")
    given = call.keywords.get(keyword) if call is not None else None
    position = re.fullmatch(r"\[(\d+)\]", path)
    if call is not None and given is not None:
        entries = _split_tuple(given)
        if entries is not None and position is not None and int(position.group(1)) < len(entries):
            entries[int(position.group(1))] = spec
            new = f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"
        elif entries is None and path in ("", "[0]") and given[0] not in "{[":
            new = spec
        else:
            return f"{keyword} = {spec}"
        rewritten = failure.rewrite(f"{keyword}={given}", f"{keyword}={new}")
        if rewritten is not None:
            return rewritten
    return f"{keyword} = {spec}"


def _split_tuple(source: str) -> list[str] | None:
    """The parts of a tuple written out, or None if it is something else."""
    import ast

    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Tuple):
        return None
    return [ast.get_source_segment(source, element) or ast.unparse(element) for element in node.elts]


@rule(
    "JPX0303",
    "out-spec-longer-than-rank",
    types=("ValueError",),
    clues=("was given an out_specs entry which is too long",),
)
def out_spec_longer_than_rank(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"out_specs(\S*) is (.+?) which has length (\d+), but .*? has shape {_TYPE}, which has rank (\d+)", re.S
    )
    if match is None:
        return None
    path, spec, length, type_text, rank_text = match.groups()
    rank = int(rank_text)
    axis = next(iter(_entries(spec)), "'i'")
    result = "a scalar" if rank == 0 else f"an array with {counted(rank, 'axis')}"
    if rank == 0:
        fixes = [
            Fix(
                "Return an array with one element for each device",
                _with_result(failure, "({})[None]") or "return result[None]        # in the function",
            ),
            Fix(
                "Combine the devices' results into one, the same on all",
                _with_result(failure, f"jax.lax.psum({{}}, {axis})", "P()")
                or f"return jax.lax.psum(result, {axis})        # in the function, with out_specs=P()",
            ),
        ]
    else:
        right = readable_spec(", ".join(_entries(spec)[:rank]))
        fixes = [Fix(f"Give the result the spec {right}", _with_spec(failure, "out_specs", path, right))]
    return Finding(
        what=f"out_specs{path} is {readable_spec(spec)}, with {counted(int(length), 'entry')}, but "
        f"{_function(failure)} returns {result} ({type_text}).",
        why="out_specs says along which axis of the result the devices' blocks are put together, so the result "
        "must have that axis.",
        fixes=fixes,
        facts={"spec": readable_spec(spec), "length": int(length), "rank": rank, "type": type_text},
    )


@rule(
    "JPX0304",
    "result-differs-between-devices",
    types=("ValueError",),
    clues=("require replication which can't be statically inferred",),
)
def result_differs_between_devices(failure: Failure) -> Finding | None:
    match = failure.search(
        r"out_specs(\S*) is (.+?) which implies that the corresponding output value is (.*?)\n\n", re.S
    ) or failure.search(r"out_specs(\S*) is (.+?) which implies that the corresponding output value is (.*)", re.S)
    if match is None:
        return None
    path, spec, told = match.groups()
    axes = _missing_axes(told)
    quoted = [repr(axis) for axis in axes]
    names = quoted[0] if len(quoted) == 1 else f"({', '.join(quoted)})"
    right = f"P({names})" if axes else "P('i')"
    return Finding(
        what=f"out_specs{path}={readable_spec(spec)} says that the result of {_function(failure)} is the same on "
        f"all devices along mesh axis {listed(quoted)}, but each device may have another.",
        why="Each device computes from its own block. Unless the blocks' results are combined (psum, pmean), "
        "they differ, and shard_map cannot keep just one of them.",
        fixes=[
            Fix(
                "Combine them: sum (psum) or average (pmean) over the mesh axis",
                _with_result(failure, f"jax.lax.psum({{}}, {names or repr('i')})")
                or f"return jax.lax.psum(result, {names or repr('i')})        # in the function",
            ),
            Fix(
                "Or keep each device's result, put together along axis 0",
                _with_result(failure, "jnp.atleast_1d({})", right) or _with_spec(failure, "out_specs", path, right),
            ),
            Fix(
                "If they are equal for sure: leave out the check",
                without_check(failure),
            ),
        ],
        facts={"spec": readable_spec(spec), "axes": tuple(axes)},
    )


def _missing_axes(told: str) -> list[str]:
    for pattern in (
        r"missing the required axes ([\w,]+)",
        r"and not \{([^}]*)\}",
        r"replicated across mesh axis '([^']+)'",
        r"replicated across mesh axes \{([^}]*)\}",
    ):
        match = re.search(pattern, told)
        if match is not None:
            return [axis.strip() for axis in match.group(1).split(",") if axis.strip()]
    return []


def without_check(failure: Failure) -> str:
    """The user's shard_map call without the check of what differs between devices."""
    option = "check_rep" if failure.search(r"check_rep=False") else "check_vma"  # its name up to JAX 0.5
    call = failure.call("shard_map")
    if call is not None:
        code = failure.rewrite(call.source, call.changed(**{option: "False"}))
        if code is not None:
            return code
    return f"jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, {option}=False)"


@rule(
    "JPX0305",
    "specs-structure-differs",
    types=("ValueError",),
    clues=("shard_map in_specs", "shard_map out_specs"),
)
def specs_structure_differs(failure: Failure) -> Finding | None:
    if not failure.search(r"pytree structure error: "):
        return None
    which = failure.search(r"prefix pytree shard_map (in|out)_specs(\S*) has a subtree of type")
    if which is None:
        return None
    lengths = failure.search(
        r"of type\s+(\S+|<class '[^']+'>) (?:of|with) (?:length )?(\d+)(?: child keys?)?.*?"
        r"same type but (?:of length|with) (\d+)",
        re.S,
    )
    side = which.group(1)
    values = "the arguments" if side == "in" else f"the result of {_function(failure)}"
    what = f"{side}_specs{which.group(2)} does not have the structure of {values}"
    facts: dict[str, object] = {"side": side}
    if lengths is not None:
        specs, given = int(lengths.group(2)), int(lengths.group(3))
        what += f": it has {specs} {'entry' if specs == 1 else 'entries'} for {given}"
        facts |= {"specs": specs, "values": given}
    one = "argument" if side == "in" else "result"
    return Finding(
        what=what + ".",
        why=f"{side}_specs is one spec for all {one}s, or a tuple with one for each {one}; inside a dict or list it "
        "has the same keys or length. One spec may stand for a whole part.",
        fixes=[
            Fix(
                f"Give one spec for each {one}",
                f"{side}_specs = (P('i'), P())        # one for each {one}",
            ),
            Fix(f"Or one spec for all {one}s", f"{side}_specs = P('i')"),
        ],
        facts=facts,
    )


@rule("JPX0306", "in-specs-of-an-explicit-mesh", types=("ValueError",), clues=("in_specs passed to shard_map",))
def in_specs_of_an_explicit_mesh(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"in_specs passed to shard_map: (.+?) does not match the specs of the input: (.+?) for arg: {_TYPE}"
    )
    if match is None:
        return None
    wanted, has, type_text = readable_spec(match.group(1)), readable_spec(match.group(2)), match.group(3)
    mapped_with = failure.call("shard_map")
    mesh = mapped_with.keywords.get("mesh", "mesh") if mapped_with is not None else "mesh"
    code = (
        f"{mesh} = jax.sharding.Mesh({mesh}.devices, {mesh}.axis_names, "
        f"axis_types=(jax.sharding.AxisType.Auto,) * {mesh}.devices.ndim)"
    )
    for call in failure.defining_calls(mesh):
        if call.name == "make_mesh" and len(call.args) == 2:
            types = f"axis_types=(jax.sharding.AxisType.Auto,) * len({call.args[1]})"
            code = f"{mesh} = {call.source[:-1]}, {types})"
    mapped = failure.applied("shard_map")
    moved = "x"
    if mapped is not None and len(mapped[0].args) == 1:
        moved = mapped[0].args[0]
    target = moved if moved.isidentifier() else "x"
    return Finding(
        what=f"in_specs is {wanted} for an argument ({type_text}) that lies as {has}, on a mesh with Explicit axes.",
        why="Since JAX 0.9 jax.make_mesh makes Explicit axes: there shard_map takes each argument only as it lies, "
        "and does not split it by itself. With Auto axes it does.",
        fixes=[
            Fix("Make the mesh with Auto axes", code),
            Fix(
                "Or split the argument first",
                f"{target} = jax.device_put({moved}, jax.sharding.NamedSharding({mesh}, {wanted}))",
            ),
        ],
        facts={"in_specs": wanted, "lies_as": has, "type": type_text},
    )
