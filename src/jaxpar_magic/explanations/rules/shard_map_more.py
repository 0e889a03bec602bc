"""shard_map: its arguments, local blocks, values that vary in different ways, what is not allowed inside."""

from __future__ import annotations

import ast
import itertools
import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import listed, product, sizes
from ._lines import rewritten

_VARYING = (
    "Inside shard_map each value has a type that says along which mesh axes it differs between devices: what came "
    "in split "
    "by in_specs varies along those axes, constants and what came in with P() vary along none."
)


def _without_check(failure: Failure) -> Fix:
    call = failure.call("shard_map")
    option = "check_vma" if (failure.jax_version or (1,)) >= (0, 6) else "check_rep"
    code = None
    if call is not None and call.source.endswith(")") and option not in call.keywords:
        code = failure.rewrite(call.source, f"{call.source[:-1]}, {option}=False)")
    return Fix(
        "Turn the check off, where every device computes its own part only",
        code or f"jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, {option}=False)",
    )


def _as_varying(value: str, axes: list[str], version: tuple[int, ...] | None) -> str:
    names = "(" + ", ".join(repr(a) for a in axes) + ",)"
    if (version or (1,)) < (0, 8):
        return f"jax.lax.pvary({value}, {names})"
    return f"jax.lax.pcast({value}, {names}, to='varying')"


# -- how it is called ------------------------------------------------------------------------------


@rule("JPX0310", "check-rep-renamed", types=("TypeError",), priority=30, clues=("unexpected keyword argument 'check_",))
def check_rep_renamed(failure: Failure) -> Finding | None:
    match = failure.search(r"shard_map\(\) got an unexpected keyword argument '(check_rep|check_vma)'")
    if match is None:
        return None
    old = match.group(1)
    new = "check_vma" if old == "check_rep" else "check_rep"
    call = failure.call("shard_map", "partial")
    code = None
    if call is not None and old in call.source:
        code = failure.rewrite(call.source, call.source.replace(old, new))
    why = (
        "jax.shard_map (JAX 0.6.1 and newer) calls it check_vma; the older jax.experimental.shard_map.shard_map called "
        "it check_rep."
    )
    return Finding(
        what=f"This shard_map has no argument {old}: it is called {new} here.",
        why=why,
        fixes=[
            Fix(
                f"Write {new}",
                code or f"jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, {new}=False)",
            )
        ],
        facts={"argument": old, "new": new},
    )


@rule(
    "JPX0311",
    "shard-map-needs-keywords",
    types=("TypeError",),
    priority=30,
    clues=("shard_map() takes", "shard_map() missing"),
)
def shard_map_needs_keywords(failure: Failure) -> Finding | None:
    match = failure.search(
        r"shard_map\(\) takes from 0 to 1 positional arguments but (\d+) (?:positional arguments .*)?were given"
    )
    missing = failure.search(r"shard_map\(\) missing \d+ required (?:keyword-only|positional) arguments?: (.*)")
    call = failure.call("shard_map", "partial")
    names = ["mesh", "in_specs", "out_specs"]
    if match is not None:
        code = None
        if call is not None and call.name == "shard_map":
            named = [f"{name}={value}" for name, value in zip(names, call.args[1:])]
            named += [f"{name}={value}" for name, value in call.keywords.items()]
            code = failure.rewrite(call.source, f"{call.function}({', '.join([*call.args[:1], *named])})")
        return Finding(
            what=f"jax.shard_map got {match.group(1)} arguments by position, and takes only the function so.",
            why="jax.shard_map takes mesh, in_specs and out_specs by name. The older "
            "jax.experimental.shard_map.shard_map "
            "also took them by position.",
            fixes=[
                Fix(
                    "Name the arguments",
                    code or "jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)",
                )
            ],
            facts={"given": int(match.group(1))},
        )
    if missing is None:
        return None
    lacking = re.findall(r"'(\w+)'", missing.group(1))
    return Finding(
        what=f"shard_map was called without {listed(lacking)}.",
        why="shard_map needs the mesh, and for each argument and result a PartitionSpec that says how it is split "
        "over it.",
        fixes=[
            Fix("Give them by name", "jax.shard_map(function, mesh=mesh, in_specs=P('i'), out_specs=P('i'))"),
        ],
        facts={"missing": tuple(lacking)},
    )


@rule(
    "JPX0316", "specs-are-not-specs", types=("TypeError",), priority=30, clues=("_specs argument must be a pytree of",)
)
def specs_are_not_specs(failure: Failure) -> Finding | None:
    match = failure.search(
        r"shard_map (in|out)_specs argument must be a pytree of `jax\.sharding\.PartitionSpec` instances"
    )
    if match is None:
        return None
    which = f"{match.group(1)}_specs"
    got = failure.findall(rf"{which}(\S*) is (.+?) of type ([\w.]+)")
    none = bool(failure.search(r"but it was None"))
    places = [f"{which}{m.group(1)} is {m.group(2)} ({m.group(3).rsplit('.', 1)[-1]})" for m in got]
    text = got[0].group(2) if got and got[0].group(3) == "str" else None
    call = failure.call("shard_map", "partial")
    given = call.keywords.get(which) if call is not None else None
    code = None
    if call is not None and given is not None and text is not None:
        code = failure.rewrite(
            call.source, call.source.replace(given, re.sub(r"([\"'][^\"']*[\"'])", r"P(\1)", given), 1)
        )
    elif call is not None and given is not None and none:
        code = failure.rewrite(f"{which}={given}", f"{which}=P()")
    import_line = "from jax.sharding import PartitionSpec as P\n"
    return Finding(
        what=f"{which} must be made of PartitionSpecs, but "
        f"{'it is None' if none else listed(places) or 'holds something else'}.",
        why="P('i') splits an array's first axis over mesh axis i, P() gives every device the whole array. An axis "
        "name by "
        "itself, None or a sharding is no spec.",
        fixes=[
            Fix(
                "Write a PartitionSpec: P() for what is not split, P('axis') for what is",
                import_line + (code or f"{which}=P({text!r})" if text else code or f"{which}=P()"),
            )
        ],
        facts={"argument": which, "given": tuple(m.group(2) for m in got)},
    )


@rule(
    "JPX0320",
    "shard-map-needs-a-mesh",
    types=("TypeError", "ValueError"),
    priority=30,
    clues=(
        "shard_map requires a",
        "context mesh cannot be empty",
    ),
)
def shard_map_needs_a_mesh(failure: Failure) -> Finding | None:
    wrong = failure.search(
        r"shard_map requires a `jax\.sharding\.Mesh` .*?but got (.*) of type (?:<class ')?([\w.]+)", re.S
    )
    empty = failure.search(r"[Tt]he context mesh cannot be empty|shard_map requires a non-empty mesh")
    call = failure.call("shard_map", "partial")
    if wrong is None and (empty is None or (failure.live and call is None)):
        return None
    count = failure.devices or 1
    axis = re.search(r"P(?:artitionSpec)?\([\"'](\w+)[\"']", call.source if call is not None else "")
    make = f"mesh = jax.make_mesh(({count},), ({axis.group(1) if axis else 'i'!r},))"
    if (failure.jax_version or (0,)) >= (0, 9):  # make_mesh gives Explicit axes, which in_specs then must match
        make = f"mesh = jax.sharding.Mesh(jax.devices(), ({axis.group(1) if axis else 'i'!r},))"
    fixes = [
        Fix("Make a mesh and pass it", f"{make}\njax.shard_map(function, mesh=mesh, in_specs=P('i'), out_specs=P('i'))")
    ]
    if call is not None and call.source.endswith(")"):
        given = call.keywords.get("mesh")
        new = call.source.replace(f"mesh={given}", "mesh=mesh") if given else f"{call.source[:-1]}, mesh=mesh)"
        code = failure.rewrite(call.source, new)
        if code is not None:
            fixes = [Fix("Make a mesh and pass it", f"{make}\n{code}")]
    if wrong is None:
        fixes.append(
            Fix(
                "Or set the mesh around the call (JAX 0.7 or newer)",
                f"{make}\nwith jax.set_mesh(mesh):\n    result = mapped(inputs)",
            )
        )
        what = "shard_map was given no mesh, and none is set around the call."
    else:
        what = f"shard_map's mesh is a {wrong.group(2).rsplit('.', 1)[-1]}, not a Mesh."
    return Finding(
        what=what,
        why="A mesh arranges the devices and names its axes; in_specs and out_specs refer to these names.",
        fixes=fixes,
        facts={"given": wrong.group(2) if wrong is not None else None},
    )


@rule("JPX0317", "axis-names-not-of-the-mesh", types=("ValueError",), clues=("to be a subset of",))
def axis_names_not_of_the_mesh(failure: Failure) -> Finding | None:
    match = failure.search(
        r"shard_map requires axis_names=(?:frozenset\()?\{(.*?)\}\)? to be a subset of\s+mesh\.axis_names="
        r"(?:frozenset\(\{|\()(.*?)[})]"
    )
    if match is None:
        return None
    given, have = (re.findall(r"'([^']+)'", group) for group in match.groups())
    wrong = [name for name in given if name not in have]
    good = "{" + ", ".join(repr(name) for name in have) + "}"
    call = failure.call("shard_map", "partial")
    old = call.keywords.get("axis_names") if call is not None else None
    return Finding(
        what=f"axis_names of shard_map names {listed([repr(n) for n in wrong])}, and the mesh has "
        f"{listed([repr(n) for n in sorted(have)])}.",
        why="axis_names lists the mesh axes that the function handles by itself; left out, it is all of them.",
        fixes=[Fix("Name axes of the mesh", (failure.rewrite(old, good) if old else None) or f"axis_names={good}")],
        facts={"unknown": tuple(wrong), "axes": tuple(have)},
    )


@rule("JPX0321", "shard-map-inside-another-mesh", types=("ValueError",), clues=("should match the mesh passed to",))
def shard_map_inside_another_mesh(failure: Failure) -> Finding | None:
    match = failure.search(
        r"context mesh \w+\((.*?)\) should match the mesh passed to\s+shard_map \w+\((.*?)\)(?:\.|$|\n)", re.S
    )
    if match is None or "_internal_pmap" in failure.text:
        return None
    outer, inner = (dict(re.findall(r"'([^']+)': (\d+)", group)) for group in match.groups())
    manual = "Manual" in match.group(1)
    show = [", ".join(f"{name!r}: {size}" for name, size in axes.items()) for axes in (outer, inner)]
    if manual and outer == inner:
        what = f"A shard_map over the mesh ({show[0]}) is called inside another shard_map that already splits along it."
        why = "Inside shard_map the function has one device's block and is not to be split again along the same axes."
        fixes = [
            _without_the_inner(failure),
            Fix(
                "Or let the outer one take some axes of the mesh and the inner one the rest",
                "jax.shard_map(outer, in_specs=P('x'), out_specs=P('x'), mesh=mesh, axis_names={'x'})",
            ),
        ]
    else:
        what = f"shard_map was given the mesh ({show[1]}), but is called where another mesh is set ({show[0]})."
        why = (
            "jax.set_mesh, or an outer shard_map, sets the mesh for all that is called inside; a shard_map there "
            "must use it."
        )
        fixes = [
            Fix("Set the same mesh that shard_map gets", "with jax.set_mesh(mesh):\n    result = mapped(inputs)"),
            Fix(
                "Or leave mesh out, so that shard_map takes the one that is set",
                "jax.shard_map(function, in_specs=in_specs, out_specs=out_specs)",
            ),
        ]
    facts = {"set": tuple(outer.items()), "given": tuple(inner.items())}
    return Finding(what=what, why=why, fixes=fixes, facts=facts)


def _without_the_inner(failure: Failure) -> Fix:
    title = "Call the inner function itself, without shard_map"
    called = failure.outer_call
    made = failure.defining_calls(called.function) if called is not None else ()
    inner = next((call for call in made if call.name == "shard_map" and call.args), None)
    if inner is None:
        return Fix(title, "result = function(block)")
    return Fix(title, rewritten(failure, inner.source, inner.args[0]))


# -- inside ----------------------------------------------------------------------------------------


@rule(
    "JPX0312",
    "branches-vary-differently",
    types=("TypeError",),
    priority=20,
    clues=(
        "manual axis types do not match",
        "varying manual axes do not match",
    ),
)
def branches_vary_differently(failure: Failure) -> Finding | None:
    if not failure.search(r"branches must have equal output types"):
        return None
    match = failure.search(
        r"The output of (.+?) has type (\w+\[[\d,]*\](?:\{[^}]*\})?) but the corresponding output of (.+?) has type "
        r"(\w+\[[\d,]*\](?:\{[^}]*\})?), so the (?:varying )?manual ax"
    )
    if match is None:
        return None
    first, first_type, second, second_type = match.groups()
    first, second = (re.sub(r"(?<=branch)(?=\d)", " ", name.split("'s")[0]) for name in (first, second))
    over = [set(re.findall(r"[\w-]+", t.split("{V:")[1])) if "{V:" in t else set() for t in (first_type, second_type)]
    lacking = [(first, sorted(over[1] - over[0])), (second, sorted(over[0] - over[1]))]
    fixes = [
        Fix(
            f"Mark the result of {name} as varying",
            f"value = {_as_varying('value', axes, failure.jax_version)}  # at the end of {name}",
        )
        for name, axes in lacking
        if axes
    ]
    if len(fixes) == 2:
        fixes = [Fix("Mark both results as varying along both", "\n".join(fix.code for fix in fixes))]
    says = [
        f"{name} varies along {listed([repr(a) for a in sorted(axes)]) or 'no axis'}"
        for name, axes in ((first, over[0]), (second, over[1]))
    ]
    return Finding(
        what=f"The branches return values that differ between devices in different ways: {says[0]}, {says[1]}.",
        why=f"{_VARYING} All branches must return the same type.",
        fixes=[*fixes, _without_check(failure)],
        facts={"branches": (first, second), "varying": (tuple(sorted(over[0])), tuple(sorted(over[1])))},
    )


@rule(
    "JPX0313",
    "values-vary-differently",
    types=("ValueError", "NotImplementedError", "TypeError", "Exception"),
    clues=(
        "requires varying manual axes to match",
        "requires manual_axis_type to match",
        "No replication rule for",
        "requires replication types to match",
        "requires argument representative types",
    ),
)
def values_vary_differently(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Primitive ([\w-]+) requires (?:varying manual axes|manual_axis_type|replication types)\s+to match, "
        r"but got\s+(\[.*?\])(?:\.|$| P)",
        re.S,
    )
    old = failure.search(r"No replication rule for ([\w-]+)\.?") if match is None else None
    if match is None and old is None:
        return None
    if old is not None:
        name = old.group(1)
        return Finding(
            what="The check of shard_map that results are the same on all devices does not know the operation "
            f"{name} in this "
            "version of JAX.",
            why="With check_rep=True shard_map follows for each value whether it is the same on all devices. Older "
            "versions "
            "cannot do that for every operation; the computation itself is fine.",
            fixes=[_without_check(failure), Fix("Or install a newer JAX", "!pip install -U jax jaxlib")],
            facts={"operation": name},
        )
    assert match is not None
    name = match.group(1)
    groups = re.findall(r"frozenset\((?:\{(.*?)\})?\)", match.group(2)) or re.findall(
        r"\{(.*?)\}|set\(\)", match.group(2)
    )
    over = [sorted(re.findall(r"'([^']+)'", group)) for group in groups]
    union = sorted(set(itertools.chain.from_iterable(over)))
    shown = [listed([repr(a) for a in axes]) or "no axis" for axes in over]
    return Finding(
        what=f"The operation {name} inside shard_map mixes values that differ between devices in different ways: "
        "they vary "
        f"along {listed(list(dict.fromkeys(shown)))}.",
        why=f"{_VARYING} Most operations bring their inputs to one type by themselves; this one does not.",
        fixes=[
            Fix(
                "Mark the constant as varying before it is used",
                f"constant = {_as_varying('constant', union or ['i'], failure.jax_version)}",
            ),
            _without_check(failure),
        ],
        facts={"operation": name, "varying": tuple(tuple(axes) for axes in over)},
    )


def _blocks(failure: Failure) -> tuple[Call | None, dict[str, int]]:
    """The shard_map around the failing line, and the axes of its mesh."""
    call = failure.call("shard_map", "smap")
    if call is None:
        partial = failure.call("partial")
        call = partial if partial is not None and partial.args and partial.args[0].endswith("shard_map") else None
    mesh = call.keywords.get("mesh") if call is not None else None
    axes = failure.meshes.get(mesh or "")
    if axes is None and len(failure.meshes) == 1:
        axes = next(iter(failure.meshes.values()))
    return call, dict(axes or {})


def _cuts(axes: dict[str, int]) -> set[int]:
    counts = [size for size in axes.values() if size > 1]
    return {product(part) for n in range(1, len(counts) + 1) for part in itertools.combinations(counts, n)}


@rule(
    "JPX0314",
    "block-meets-whole-array",
    types=("TypeError", "ValueError"),
    priority=30,
    clues=(
        "incompatible shapes for broadcasting",
        "contracting dimensions to have the same shape",
        "cannot reshape array of shape",
        "Incompatible shapes for broadcasting",
        "must have equal shapes",
        "Cannot concatenate arrays",
    ),
)
def block_meets_whole_array(failure: Failure) -> Finding | None:
    call, axes = _blocks(failure)
    if call is None or not axes or len(failure.user_frames) < 2:
        return None
    pair = failure.search(r"(?:broadcasting|same shape|shapes)[^()]*?\(([\d, ]*)\)(?:, | and |; got )\(([\d, ]*)\)")
    total = failure.search(
        r"cannot reshape array of shape \(([\d, ]*)\) \(size (\d+)\) into shape [(\[]([-\d, ]*)[)\]] \(size (\d+)\)"
    )
    if total is not None:
        block, whole = int(total.group(2)), int(total.group(4))
        shown = f"an array of shape ({total.group(1)}) is to get the shape ({total.group(3)})"
    elif pair is not None:
        first, second = sizes(pair.group(1)), sizes(pair.group(2))
        differing = [(a, b) for a, b in zip(reversed(first), reversed(second)) if a != b and 1 not in (a, b)]
        if len(differing) != 1:
            return None
        block, whole = sorted(differing[0])
        shown = f"shapes {first} and {second} meet"
    else:
        return None
    if block == 0 or whole % block or whole // block not in _cuts(axes):
        return None
    parts = whole // block
    names = [name for name, size in axes.items() if size == parts] or list(axes)
    mesh_axis = names[0]
    outside = _whole_array(failure, whole)
    fixes = []
    if outside is not None and pair is not None:
        fixes.append(
            Fix(
                f"Pass {outside} as an argument and split it too, so that blocks meet blocks",
                _with_argument(failure, call, outside, mesh_axis)
                or f"jax.shard_map(function, mesh=mesh, in_specs=(P({mesh_axis!r}), P({mesh_axis!r})), "
                f"out_specs=P({mesh_axis!r}))",
            )
        )
    fixes.append(
        Fix(
            "Take sizes from the block itself, not from the whole array",
            "def function(x):\n    n = x.shape[0]  # of the block",
        )
    )
    if pair is not None:
        fixes.append(
            Fix(
                "Or gather the whole array on every device",
                f"x = jax.lax.all_gather(x, {mesh_axis!r}, tiled=True)",
            )
        )
    return Finding(
        what=f"Inside shard_map {shown}: {block} is the size of one device's block, {whole} that of the whole array "
        "(mesh axis "
        f"{mesh_axis!r} cuts it into {parts}).",
        why="The function sees one device's block of each argument that in_specs splits. An array from outside that "
        "is not an "
        "argument is whole.",
        fixes=fixes,
        facts={"block": block, "whole": whole, "parts": parts, "mesh_axis": mesh_axis, "array": outside},
    )


def _whole_array(failure: Failure, size: int) -> str | None:
    names = re.findall(
        r"(?<![\w.])[A-Za-z_]\w*", (failure.user.segment or failure.user.source or "") if failure.user else ""
    )
    for name in names:
        variable = failure.variable(name)
        if variable is not None and variable.shape and size in variable.shape and not variable.tracer:
            return name
    return None


def _with_argument(failure: Failure, call: Call, name: str, mesh_axis: str) -> str | None:
    """The user's `shard_map(lambda x: …, in_specs=s)` with `name` as one more argument that is split."""
    function = call.args[0] if call.args else ""
    specs = call.keywords.get("in_specs")
    match = re.match(r"lambda ([\w, ]+):", function)
    if match is None or specs is None:
        return None
    try:
        several = isinstance(ast.parse(specs, mode="eval").body, ast.Tuple)
    except SyntaxError:
        return None
    inner = specs.strip()[1:-1].rstrip(", ") if several else specs
    new = call.source.replace(match.group(), f"lambda {match.group(1)}, {name}:", 1)
    new = new.replace(f"in_specs={specs}", f"in_specs=({inner}, P({mesh_axis!r}))", 1)
    applied = failure.applied("shard_map")
    if applied is None or applied[1].source != call.source:
        return new
    outer = applied[0]
    arguments = ", ".join([*outer.args, name])
    if outer.function == call.source:
        return f"{new}({arguments})"
    return f"{outer.function} = {new}\n{outer.function}({arguments})"


@rule(
    "JPX0315",
    "constraint-inside-shard-map",
    types=("ValueError", "TypeError"),
    clues=(
        "field of ShapedArray should be of type `Manual`",
        "contains a manual axes",
        "is also found in manual_axes",
    ),
)
def constraint_inside_shard_map(failure: Failure) -> Finding | None:
    match = (
        failure.search(r"should be of type\s+`Manual`\. Got .*?axis: (\S+) of type AxisType\.(?:Auto|Explicit)", re.S)
        or failure.search(r"pspec .*? contains a manual axes \('([^']+)'.*?\) of mesh which is not allowed", re.S)
        or failure.search(r"Axis: (\S+) of PartitionSpec\(.*?\) is also found in manual_axes")
    )
    call = failure.call("with_sharding_constraint", "reshard", "device_put")
    if match is None:
        return None
    if call is None and failure.live and failure.search("should be of type"):
        return None
    name = match.group(1).strip("'")
    used = call.name if call is not None else "with_sharding_constraint"
    value = call.args[0] if call is not None and call.args else "x"
    code = failure.rewrite(call.source, value) if call is not None else None
    return Finding(
        what=f"{used} is called inside shard_map and names the mesh axis {name!r}, along which shard_map has "
        "already split the "
        "array by hand.",
        why="Inside shard_map the function has one device's block, an ordinary array. Constraints say how to spread "
        "an array "
        "over devices, and can only name mesh axes that shard_map leaves alone (those not in its axis_names).",
        fixes=[
            Fix("Leave the constraint out", code or value),
            Fix("Or put it outside, around the call", "result = jax.lax.with_sharding_constraint(mapped(x), sharding)"),
        ],
        facts={"axis": name, "function": used},
        guess=call is None and bool(failure.search("should be of type")),
    )


@rule(
    "JPX0319",
    "device-put-inside-shard-map",
    types=("ValueError",),
    clues=("device_put with explicit device not allowed",),
)
def device_put_inside_shard_map(failure: Failure) -> Finding | None:
    match = failure.search(
        r"device_put with explicit device not allowed within\s+shard_map-decorated functions, but got device (.*)"
    )
    if match is None:
        return None
    call = failure.call("device_put")
    value = call.args[0] if call is not None and call.args else "x"
    code = failure.rewrite(call.source, value) if call is not None else None
    return Finding(
        what=f"device_put to {match.group(1).strip()} is called inside a function that shard_map runs.",
        why="shard_map runs the function on all devices of its mesh at once, each with its own block; a block "
        "cannot be moved "
        "to a device from inside.",
        fixes=[
            Fix("Leave device_put out", code or value),
            Fix("Or move the result afterwards", "result = jax.device_put(mapped(x), jax.devices()[0])"),
        ],
        facts={"device": match.group(1).strip()},
    )


@rule(
    "JPX0322",
    "shard-map-takes-no-keywords",
    types=("TypeError",),
    clues=("got an unexpected keyword argument", "shard_map"),
    priority=30,
)
def shard_map_takes_no_keywords(failure: Failure) -> Finding | None:
    match = failure.search(r"shard_map\.<locals>\.\w+\(\) got an unexpected keyword argument '(\w+)'")
    call = failure.outer_call
    if match is None or call is None or match.group(1) not in call.keywords:
        return None
    arguments = ", ".join([*call.args, *call.keywords.values()])
    new = f"{call.function}({arguments})"
    return Finding(
        what=f"A function made by shard_map was called with {match.group(1)} by name; it takes arguments by position.",
        why="in_specs has one spec for each positional argument.",
        fixes=[Fix("Pass the arguments by position", rewritten(failure, call.source, new))],
        facts={"keyword": match.group(1)},
    )
