"""Shardings that need a mesh, that disagree, or that JAX cannot work out; arrays made of shards."""

from __future__ import annotations

import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed, sizes
from ._lines import called_with, rewritten

_SPEC = r"(?:PartitionSpec|P)\((?:[^()]|\([^()]*\))*\)"
_EXPLICIT = (
    "On a mesh with Explicit axes (the default of jax.make_mesh since JAX 0.9, and what jax.set_mesh then uses) the "
    "sharding is part of an array's type, and JAX does not guess how a result is to lie. On Auto axes the compiler "
    "chooses."
)


def _short(spec: str) -> str:
    """A spec as people write it: P('x', None)."""
    return re.sub(r"\bPartitionSpec\b", "P", spec).replace(",)", ")")


def _mesh_name(failure: Failure) -> str:
    return next(iter(failure.meshes), "mesh")


def _auto_mesh(failure: Failure) -> Fix:
    """A fix that makes the mesh in sight anew with Auto axes."""
    name, axes = next(iter(failure.meshes.items()), ("mesh", {"x": failure.devices or 1}))
    shape, names = tuple(axes.values()), tuple(axes)
    return Fix(
        "Or make the mesh with Auto axes, where the compiler chooses",
        f"{name} = jax.make_mesh({shape}, {names}, axis_types=(jax.sharding.AxisType.Auto,) * {len(shape)})",
    )


def _outer_statement(failure: Failure) -> str | None:
    """The statement of the user's file from which the failing line was reached."""
    inner = failure.user
    same = [frame for frame in failure.user_frames if inner is not None and frame.file == inner.file]
    return same[-1].statement if same else None


def _operands(failure: Failure) -> list[str]:
    """Names of the arrays in the failing expression."""
    text = (failure.user.segment or failure.user.source or "") if failure.user is not None else ""
    names = dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*(?!\s*[\w(=.])", text))
    return [name for name in names if (variable := failure.variable(name)) is not None and variable.array]


# -- a mesh is needed ------------------------------------------------------------------------------


@rule(
    "JPX0210",
    "spec-without-mesh",
    types=("RuntimeError", "ValueError"),
    clues=(
        "non-empty mesh",
        "when you are not under a mesh context",
        "only supports `Sharding`s being passed",
        "Please set a mesh via",
        "`explicit_axes` API",
        "only supports `XLACompatibleSharding`s",
    ),
)
def spec_without_mesh(failure: Failure) -> Finding | None:
    match = (
        failure.search(
            r"(with_sharding_constraint|jit|pjit|[\w.]+) requires a non-empty mesh(?: in context)? if you are passing"
        )
        or failure.search(r"(jax\.jit) only supports `\w*Sharding`s being passed to (in_shardings|out_shardings)")
        or failure.search(r"Using PartitionSpec when you are not under a mesh context is not\s+allowed()")
        or failure.search(
            r"Please set a mesh via `jax\.(?:set_mesh|sharding\.use_mesh)`\s+if a PartitionSpec is passed to (\w+)"
        )
        or failure.search(r"Context mesh cannot be empty\. Please use `jax\.(?:set_mesh|sharding\.use_mesh)`()")
    )
    if match is None:
        return None
    call = failure.call("with_sharding_constraint", "reshard", "jit", "pjit", "device_put", "zeros", "ones", "partial")
    used = match.group(1) or (call.name if call is not None else "") or "The call"
    text = " ".join([call.source if call is not None else "", failure.message])
    spec = re.search(rf"(?:\b\w+\.)*{_SPEC}", text)
    shown = _short(spec.group().removeprefix("jax.sharding.").removeprefix("jax.")) if spec else "P(...)"
    mesh = _mesh_name(failure)
    name_of_axis = re.search(r"'(\w+)'|\"(\w+)\"", shown)
    axis = next((group for group in name_of_axis.groups() if group), "x") if name_of_axis else "x"
    explicit = "reshard" in (call.name if call is not None else "")
    # since JAX 0.9 axes are Explicit unless said, and a constraint then only checks
    auto = ", axis_types=(jax.sharding.AxisType.Auto,)" * (not explicit and (failure.jax_version or (0,)) >= (0, 9))
    make = "" if failure.meshes else f"{mesh} = jax.make_mesh(({failure.devices or 1},), ({axis!r},){auto})\n"
    code = None
    if call is not None and spec is not None and spec.group() in call.source:
        new = call.source.replace(spec.group(), f"jax.sharding.NamedSharding({mesh}, {spec.group()})")
        code = failure.rewrite(call.source, new)
    enter = "jax.set_mesh" if (failure.jax_version or (1,)) >= (0, 7) else ""
    statement = _outer_statement(failure)
    body = statement if statement and "\n" not in statement else "result = function(x)"
    with_mesh = f"with {enter}({mesh}):" if enter else f"with {mesh}:"
    if "reshard" in (call.name if call is not None else "") and make:
        make = make.rstrip("\n") + "  # Explicit axes, as reshard needs them\n" if enter else make
    return Finding(
        what=f"{used.removeprefix('jax.')} got the bare spec {shown}, but no mesh is set that it could refer to.",
        why="A PartitionSpec only names mesh axes. Which devices these are is told by a mesh: together with the "
        "spec in a "
        "NamedSharding, or set around the call.",
        fixes=[
            Fix(
                "Give the mesh together with the spec",
                make + (code or f"sharding = jax.sharding.NamedSharding({mesh}, {shown})"),
            ),
            Fix("Or set the mesh around the call", f"{make}{with_mesh}\n    {body}"),
        ],
        facts={"function": used, "spec": shown, "axis": axis},
    )


@rule("JPX0216", "mesh-inside-jit", types=("ValueError",), clues=("can only be used outside of `jax.jit`",))
def mesh_inside_jit(failure: Failure) -> Finding | None:
    match = failure.search(r"`(set_mesh|get_mesh|use_mesh)` can only be used outside of `jax\.jit`")
    if match is None:
        return None
    name = match.group(1)
    function = failure.user.function if failure.user is not None else "function"
    function = "function" if function.startswith("<") else function
    mesh = _mesh_name(failure)
    if name == "get_mesh":
        fixes = [
            Fix("Ask for the abstract mesh, which is known inside", "mesh = jax.sharding.get_abstract_mesh()"),
            Fix("Or ask outside, and let the function see the variable", "mesh = jax.sharding.get_mesh()"),
        ]
    else:
        outer = _outer_statement(failure) if len(failure.user_frames) > 1 else None
        body = outer if outer and "\n" not in outer else f"result = {function}(x)"
        title = f"Set the mesh outside, around the call, and no more inside {function}"
        fixes = [Fix(title, f"with jax.set_mesh({mesh}):\n    {body}", kind="sketch")]
    return Finding(
        what=f"jax.{'sharding.' if name == 'get_mesh' else ''}{name} is called inside a jitted function ({function}).",
        why="The devices of a compiled function are chosen when it is called, before its body is traced.",
        fixes=fixes,
        facts={"function": function, "called": name},
    )


# -- shardings that do not fit ---------------------------------------------------------------------


@rule(
    "JPX0211",
    "shardings-of-another-structure",
    types=("ValueError",),
    clues=(
        "_shardings specification must be a tree prefix",
        "_axis_resources specification must be a tree prefix",
        "device specification must be a tree prefix",
        "pytree structure error",
    ),
)
def shardings_of_another_structure(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:pjit|jit|device_put) (in_shardings|out_shardings|device|in_axis_resources|out_axis_resources) "
        r"specification must be a tree prefix"
    ) or failure.search(r"pytree structure error: .* at key path\s+(?:pjit|jit) (in_shardings|out_shardings)")
    if match is None:
        return None
    which = match.group(1).replace("axis_resources", "shardings")  # up to JAX 0.4
    count = failure.search(
        r"is the wrong length: got a tuple or list of length (\d+) for an args tuple of\s+length (\d+)"
    )
    thing = {"in_shardings": "the arguments", "out_shardings": "the result", "device": "the value"}[which]
    calls = [c for f in failure.user_frames for c in f.calls]
    calls += [c for name in failure.definitions for c in failure.defining_calls(name)]
    call = next((c for c in calls if which in c.keywords), None)
    facts: dict[str, object] = {"argument": which}
    if count is not None:
        have, need = int(count.group(1)), int(count.group(2))
        what = f"{which} has {counted(have, 'sharding')} for {counted(need, 'argument')}."
        facts.update(given=have, needed=need)
        given = call.keywords[which] if call is not None else None
        parts = [p.strip() for p in re.findall(r"[^,()]+(?:\((?:[^()]|\([^()]*\))*\))?", given or "") if p.strip()]
        new = None
        if given is not None and len(parts) == have and have < need:
            new = f"({', '.join([*parts, *['None'] * (need - have)])})"
        code = failure.rewrite(f"{which}={given}", f"{which}={new}") if new is not None else None
        example = f"({', '.join(['sharding'] * max(need, 1))})"
        fixes = [
            Fix("Give one for each argument; None leaves it to JAX", code or f"jax.jit(function, {which}={example})"),
            Fix("Or one sharding for all arguments", f"jax.jit(function, {which}=sharding)"),
        ]
    elif which == "device":
        what = "device_put got a list or dict of devices that is not built as the value."
        fixes = [
            Fix(
                "To spread one array over devices, give a sharding",
                f"mesh = jax.make_mesh(({failure.devices or 1},), ('x',))\n"
                "y = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('x')))",
            ),
            Fix("To put it on one device, name that", "y = jax.device_put(x, jax.devices()[0])"),
        ]
    else:
        what = f"{which} is not built as {thing}: the tuples, lists or dicts in it differ."
        lengths = failure.search(r"of type \w+ of length (\d+), but the full pytree .*? of length (\d+)", re.S)
        if lengths is not None:
            have, need = int(lengths.group(1)), int(lengths.group(2))
            what = f"{which} has {counted(have, 'sharding')} where {thing} has {counted(need, 'part')}."
            facts.update(given=have, needed=need)
        fixes = [
            Fix("Give one sharding for all of it", f"jax.jit(function, {which}=sharding)"),
            Fix("Or one for each array, in the same structure", f"{which} = jax.tree.map(lambda _: sharding, value)"),
        ]
    return Finding(
        what=what,
        why=f"{which} is one sharding for everything, or has the structure of {thing}: a tuple of the same length, "
        "a dict with "
        "the same keys.",
        fixes=fixes,
        facts=facts,
    )


@rule(
    "JPX0212",
    "argument-lies-otherwise",
    types=("ValueError",),
    clues=("does not match the sharding on the respective arg",),
)
def argument_lies_otherwise(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Sharding passed to (?:p?jit) does not match the sharding on the respective arg\. Got p?jit sharding: "
        r"(.*?),\s*\n?"
        r"arg sharding: (.*?) for arg (?:type|shape): (\S+)",
        re.S,
    )
    if match is None:
        return None
    wanted, lies = (re.search(rf"spec=({_SPEC})", text) for text in match.groups()[:2])
    want = _short(wanted.group(1)) if wanted else "another sharding"
    lie = _short(lies.group(1)) if lies else "another sharding"
    kind = re.sub(r"@[^,\]]+", "", match.group(3))
    call = failure.outer_call
    shape = sizes(re.sub(r"^\w+", "", kind))
    name = None
    for source in call.args if call is not None else ():
        variable = failure.variable(source)
        if variable is not None and variable.shape == shape:
            name = source
            break
    x = name or "x"
    mesh = _mesh_name(failure)
    calls = [c for f in failure.user_frames for c in f.calls]
    calls += [c for n in failure.definitions for c in failure.defining_calls(n)]
    jit = next((c for c in calls if "in_shardings" in c.keywords), None)
    dropped = None
    if jit is not None:
        new = re.sub(r",\s*in_shardings\s*=\s*" + re.escape(jit.keywords["in_shardings"]), "", jit.source)
        dropped = failure.rewrite(jit.source, new) if new != jit.source else None
    return Finding(
        what=f"in_shardings asks for {want}, but {name or 'the argument'} ({kind}) already lies as {lie}.",
        why="An array that was placed on purpose (by device_put, or as a result) stays where it lies: jit does not "
        "move it "
        "silently to what in_shardings says.",
        fixes=[
            Fix("Move it first", f"{x} = jax.device_put({x}, jax.sharding.NamedSharding({mesh}, {want}))"),
            Fix(
                "Or leave in_shardings out: jit then takes each argument as it lies", dropped or "f = jax.jit(function)"
            ),
        ],
        facts={"wanted": want, "lies": lie, "argument": name, "type": kind},
    )


@rule(
    "JPX0222",
    "mesh-axis-used-twice",
    types=("DuplicateSpecError", "ValueError", "Exception"),
    clues=("has duplicate entries for",),
)
def mesh_axis_used_twice(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"specification can map every mesh axis to at most one positional dimension, but ({_SPEC}) has duplicate "
        r"entries for (.+)"
    )
    if match is None:
        return None
    spec, axes = _short(match.group(1)), re.findall(r"\w+", match.group(2))
    first = axes[0] if axes else "x"
    entries = spec[2:-1].split(",")
    seen = False
    kept = []
    for entry in entries:
        twice = seen and repr(first) in entry
        seen = seen or repr(first) in entry
        kept.append("None" if twice and "(" not in entry and ")" not in entry else entry.strip())
    good = f"P({', '.join(kept)})"
    return Finding(
        what=f"{spec} uses the mesh axis {listed([repr(a) for a in axes])} for more than one axis of the array.",
        why="The devices along a mesh axis can split one axis of an array; for a second one another mesh axis is "
        "needed.",
        fixes=[
            Fix("Split one axis only", good),
            Fix(
                "Or make a mesh of two axes, one for each",
                f"mesh = jax.make_mesh((2, {max((failure.devices or 2) // 2, 1)}), ({first!r}, 'other'))\nspec = "
                f"P({first!r}, 'other')",
            ),
        ],
        facts={"spec": spec, "axes": tuple(axes)},
    )


@rule(
    "JPX0223",
    "mesh-shape-and-names-differ",
    types=("ValueError",),
    clues=("Mesh requires the ndim of its first argument",),
)
def mesh_shape_and_names_differ(failure: Failure) -> Finding | None:
    match = failure.search(r"got devices\.ndim == (\d+) and\s+len\(axis_names\) == (\d+)")
    if match is None:
        return None
    dims, names = int(match.group(1)), int(match.group(2))
    call = failure.call("make_mesh", "Mesh")
    devices = failure.devices
    fixes = []
    if call is not None and len(call.args) > 1:
        spelled = re.findall(r"[\"'](\w+)[\"']", call.args[1])
        if call.name == "Mesh" and dims == 1 and names == 2 and devices is not None and devices % 2 == 0:
            new = f"np.asarray({call.args[0]}).reshape(2, {devices // 2})"
            if call.args[0].startswith(("np.array(", "np.asarray(", "numpy.array(")):
                new = f"{call.args[0]}.reshape(2, {devices // 2})"
            code = failure.rewrite(call.args[0], new)
            fixes.append(Fix("Give the devices as many axes as there are names", code or f"devices = {new}"))
        if names > dims and spelled:
            one = failure.rewrite(call.args[1], f"({', '.join(map(repr, spelled[:dims]))},)")
            fixes.append(
                Fix(
                    f"Or name {counted(dims, 'axis').replace('axiss', 'axes')} only",
                    one or f"axis_names={tuple(spelled[:dims])}",
                )
            )
        if names < dims:
            more = [*spelled, *[f"axis{i}" for i in range(len(spelled), dims)]]
            code = failure.rewrite(call.args[1], f"({', '.join(map(repr, more))})")
            fixes.append(Fix("Name every axis", code or f"axis_names={tuple(more)}"))
    fixes = fixes or [Fix("One name for each axis", "mesh = jax.make_mesh((2, 2), ('x', 'y'))")]
    return Finding(
        what=f"The mesh has {dims} {'axis' if dims == 1 else 'axes'} of devices and {counted(names, 'axis name')}.",
        why="A mesh is a grid of devices, and each axis of the grid has a name: shape (2, 4) goes with two names. A "
        "single name "
        "in brackets needs a comma: ('x',).",
        fixes=fixes,
        facts={"axes": dims, "names": names},
    )


@rule(
    "JPX0227",
    "different-meshes-meet",
    types=("ValueError", "ShardingTypeError"),
    clues=(
        "Mesh for all inputs should be equal",
        "Mesh of both lhs and rhs",
        "Conflicting meshes received",
        "must match the mesh passed to shardings",
        "should match the mesh of sharding",
        "mesh should be the same across the entire",
        "All argument meshes must be the same",
    ),
)
def different_meshes_meet(failure: Failure) -> Finding | None:
    meshes = []
    for match in failure.findall(r"Mesh\(((?:'[^']+': \d+(?:, )?)+)"):
        text = match.group(1).rstrip(", ")
        if text not in meshes:
            meshes.append(text)
    names = _operands(failure)
    moved = names[1] if len(names) > 1 else names[0] if names else "y"
    target = names[0] if len(names) > 1 else "x"
    context = failure.search(r"[Cc]ontext mesh")
    where = "the mesh that is set around the call" if context else "the arrays of one operation"
    shown = f": {listed([f'({mesh})' for mesh in meshes])}" if len(meshes) > 1 else ""
    return Finding(
        what=f"Different meshes meet in {'one call' if context else 'one operation'}{shown}.",
        why=f"All shardings of one computation ({where}) must belong to one mesh.",
        fixes=[
            Fix("Move one array to the mesh of the other", f"{moved} = jax.device_put({moved}, {target}.sharding)"),
            Fix("Or make the mesh once, and use it everywhere", "mesh = jax.make_mesh((jax.device_count(),), ('x',))"),
        ],
        facts={"meshes": tuple(meshes)},
    )


# -- Explicit axes ---------------------------------------------------------------------------------


def _out_sharding(failure: Failure, call: Call | None, spec: str) -> str | None:
    if call is None or not call.source.endswith(")") or "out_sharding" in call.keywords:
        return None
    return failure.rewrite(call.source, f"{call.source[:-1]}, out_sharding={spec})")


@rule(
    "JPX0213",
    "operands-lie-differently",
    types=("ShardingTypeError",),
    clues=(
        "incompatible shardings for broadcasting",
        "All operands should have the same sharding",
        "operand sharding must be equal",
        "shardings must match",
    ),
)
def operands_lie_differently(failure: Failure) -> Finding | None:
    match = failure.search(r"(\w+) got incompatible shardings for broadcasting: (.*?)\.?$", re.M)
    if match is not None:
        operation = match.group(1)
        specs = [f"P{text}".replace(",)", ")") for text in re.findall(r"\((?:[^()]|\([^()]*\))*\)", match.group(2))]
    else:
        update = failure.search(r"dynamic_update_slice operand sharding must be equal to update")
        operation = "dynamic_update_slice" if update else "the operation"
        specs = [_short(m.group(1)) for m in failure.findall(rf"spec=({_SPEC})")]
    names = _operands(failure)
    moved = names[1] if len(names) > 1 else "other"
    target = "jax." + (specs[0] if specs else "P('x')")
    return Finding(
        what=f"{operation} got arrays that lie differently: "
        f"{listed(list(dict.fromkeys(specs))) or 'see their shardings'}.",
        why=_EXPLICIT,
        fixes=[
            Fix("Bring both to the same sharding", f"{moved} = jax.sharding.reshard({moved}, {target})"),
            _auto_mesh(failure),
        ],
        facts={"operation": operation, "specs": tuple(specs)},
    )


@rule(
    "JPX0214",
    "product-over-split-axis",
    types=("ShardingTypeError", "ValueError"),
    clues=(
        "ontracting dimensions are sharded",
        "contracting dimensions to have consistent sharding",
        "contracting dims should be sharded identically",
    ),
)
def product_over_split_axis(failure: Failure) -> Finding | None:
    match = failure.search(r"lhs_contracting_spec=\((.*?)\) and rhs_contracting_spec=\((.*?)\)") or failure.search(
        r"consistent sharding, got \((.*?)\) and \((.*?)\)"
    )
    if not failure.search(r"[Cc]ontracting dim(?:ension)?s"):
        return None
    axes = list(dict.fromkeys(re.findall(r"'(\w+)'", " ".join(match.groups())))) if match is not None else []
    names = _operands(failure)
    a, b = (names + ["a", "b"])[:2] if len(names) < 2 else names[:2]
    differ = match is not None and match.group(1) != match.group(2)
    call = failure.call("matmul", "dot", "einsum", "tensordot", "dot_general", "vdot", "inner")
    operator = failure.user is not None and re.search(r"(\w+) @ (\w+)", failure.user.segment or "")
    code = _out_sharding(failure, call, "jax.P()")
    if code is None and operator:
        code = failure.rewrite(
            operator.group(), f"jnp.matmul({operator.group(1)}, {operator.group(2)}, out_sharding=jax.P())"
        )
    along = f" ({listed([repr(x) for x in axes])})" if axes else ""
    fixes = [
        Fix(
            "Say how the result is to lie: jax.P() for whole on every device",
            code or f"jnp.matmul({a}, {b}, out_sharding=jax.P())",
        ),
        Fix(
            "Or lay the inputs so that the axis summed over is not split",
            f"{a} = jax.sharding.reshard({a}, jax.P())\n{b} = jax.sharding.reshard({b}, jax.P())",
        ),
        _auto_mesh(failure),
    ]
    return Finding(
        what=f"A product sums over an axis that is split over devices{along}"
        + (", and differently in the two arrays." if differ else ", so it is open how the result is to lie."),
        why=_EXPLICIT,
        fixes=fixes[1:] + fixes[:1] if differ else fixes,
        facts={"axes": tuple(axes)},
    )


@rule(
    "JPX0215",
    "result-sharding-unclear",
    types=("ShardingTypeError",),
    clues=(
        "out_sharding",
        "not implemented",
        "should be unsharded",
        "should be fully replicated",
        "illegally",
    ),
)
def result_sharding_unclear(failure: Failure) -> Finding | None:
    gather = failure.search(r"Use `\.at\[\.\.\.\]\.get\(out_sharding=\)`")
    scatter = failure.search(r"Use `\.at\[\.\.\.\]\.set/add")
    typed = failure.search(r"(?:operand=ShapedArray\(|operand type: |input\s+type=|input type: )(\w+\[[^\]]*\])")
    kind = typed.group(1) if typed is not None else None
    names = _operands(failure)
    x = names[0] if names else "x"
    whole = Fix("Or bring the array together on every device first", f"{x} = jax.sharding.reshard({x}, jax.P())")
    fixes: list[Fix]
    if gather is not None:
        segment = failure.user.segment if failure.user is not None else None
        index = re.fullmatch(r"(\w+)\[(.*)\]", segment or "", re.S)
        what = "Taking items of an array that is split over devices"
        code = f"{x}.at[index].get(out_sharding=jax.P())"
        if index is not None:
            new = f"{index.group(1)}.at[{index.group(2)}].get(out_sharding=jax.P())"
            code = rewritten(failure, index.group(), new)
        fixes = [Fix("Say how the result is to lie: jax.P() for whole on every device", code), whole]
    elif scatter is not None:
        what = "Changing items of an array that is split over devices"
        call = failure.call("set", "add", "multiply", "min", "max", "mul")
        fixes = [
            Fix(
                "Say how the result is to lie",
                _out_sharding(failure, call, f"jax.typeof({x}).sharding.spec")
                or f"{x} = {x}.at[index].set(value, out_sharding=jax.P('x'))",
            ),
            whole,
        ]
    else:
        operation = failure.search(
            r"sharding rule for (\w+) is not implemented|This (reshape)|(\w+) on sharded dims|specified to (\w+)"
        )
        name = next((group for group in operation.groups() if group), None) if operation is not None else None
        what = (
            (f"The operation {name} on an array that is split over devices")
            if name
            else "An operation on an array that is split"
        )
        fixes = [Fix("Bring the array together on every device first", whole.code)]
        if failure.search(r"out_sharding"):
            fixes.insert(
                0,
                Fix(
                    "Say how the result is to lie",
                    "jax.lax.reshape(x, new_shape, out_sharding=jax.P())"
                    if name == "reshape"
                    else "function(x, out_sharding=jax.P())",
                ),
            )
    return Finding(
        what=f"{what}{f' ({kind})' if kind else ''} leaves open how the result is to lie.",
        why=_EXPLICIT,
        fixes=[*fixes[:2], _auto_mesh(failure)],
        facts={"type": kind, "array": names[0] if names else None},
    )


@rule("JPX0215", "result-sharding-unclear", types=("ShardingTypeError",), priority=-10)
def result_sharding_unclear_somehow(failure: Failure) -> Finding | None:
    names = _operands(failure)
    x = names[0] if names else "x"
    return Finding(
        what="An operation cannot work with arrays that are split over devices as these are.",
        why=_EXPLICIT,
        fixes=[
            Fix("Bring the arrays together on every device first", f"{x} = jax.sharding.reshard({x}, jax.P())"),
            _auto_mesh(failure),
        ],
        guess=True,
    )


@rule("JPX0224", "scan-over-split-axis", types=("ValueError",), clues=("0th dimension of all xs should be replicated",))
def scan_over_split_axis(failure: Failure) -> Finding | None:
    match = failure.search(rf"0th dimension of all xs should be replicated\. Got ({_SPEC}|.*)")
    call = failure.call("scan", "map")
    xs = call.args[2] if call is not None and call.name == "scan" and len(call.args) > 2 else "xs"
    spec = _short(match.group(1)) if match is not None else "P('x')"
    rest = re.sub(r"^P\((?:[^,()]+|\([^()]*\))", "P(None", spec)
    return Finding(
        what=f"scan goes through {xs} one item after the other along axis 0, but that axis is split over devices "
        f"({spec}).",
        why="Every device must see each item in turn, so the axis that scan goes along cannot be split.",
        fixes=[
            Fix("Bring that axis together first", f"{xs} = jax.sharding.reshard({xs}, jax.{rest})"),
            _auto_mesh(failure),
        ],
        facts={"spec": spec},
    )


@rule(
    "JPX0225",
    "constraint-on-explicit-axis",
    types=("AssertionError", "ValueError"),
    clues=(
        "acts as an assert when all axes",
        "only refer to Auto axes of the mesh",
    ),
)
def constraint_on_explicit_axis(failure: Failure) -> Finding | None:
    match = failure.search(rf"The array sharding:\s+({_SPEC}) did\s+not match the sharding provided: ({_SPEC})")
    other = failure.search(rf"Got spec=({_SPEC})")
    call = failure.call("with_sharding_constraint")
    code = failure.rewrite(call.function, "jax.sharding.reshard") if call is not None else None
    has, want = (_short(group) for group in match.groups()) if match is not None else (None, None)
    want = want or (_short(other.group(1)) if other is not None else "P('x')")
    lies = f", and the array lies as {has}" if has else ""
    return Finding(
        what=f"with_sharding_constraint asks for {want} on a mesh with Explicit axes{lies}: there it only checks, "
        "it moves nothing.",
        why="with_sharding_constraint is a hint to the compiler, for Auto axes. On Explicit axes reshard moves an "
        "array.",
        fixes=[
            Fix("Use reshard", code or f"x = jax.sharding.reshard(x, jax.{want})"),
            _auto_mesh(failure),
        ],
        facts={"wanted": want, "lies": has},
    )


@rule("JPX0226", "auto-axis-in-reshard", types=("ValueError",), clues=("that are of type Auto or Manual",))
def auto_axis_in_reshard(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"PartitionSpec passed to (\w+) cannot contain axis\s+names that are of type Auto or Manual\. Got "
        rf"PartitionSpec:\s+({_SPEC}) "
        r"with axis name: (\w+) of type:\s+(?:AxisType\.)?(\w+)"
    )
    if match is None:
        return None
    used, spec, axis, kind = match.groups()
    call = failure.call(used)
    name = _mesh_name(failure)
    swapped = (
        failure.rewrite(call.function, "jax.lax.with_sharding_constraint")
        if call is not None and used == "reshard"
        else None
    )
    axes = failure.meshes.get(name, {axis: failure.devices or 1})
    return Finding(
        what=f"{used} got {_short(spec)}, but the axis {axis!r} of the mesh is of type {kind}.",
        why=f"{used} works on Explicit axes, where the sharding is part of an array's type. Auto axes are left to "
        "the compiler; "
        "Manual ones are handled by hand inside shard_map.",
        fixes=[
            Fix(
                "On Auto axes, use with_sharding_constraint",
                swapped or f"x = jax.lax.with_sharding_constraint(x, jax.{_short(spec)})",
            ),
            Fix(
                "Or make the mesh with Explicit axes",
                f"{name} = jax.make_mesh({tuple(axes.values())}, {tuple(axes)}, "
                f"axis_types=(jax.sharding.AxisType.Explicit,) * {len(axes)})",
            ),
        ],
        facts={"function": used, "axis": axis, "type": kind},
    )


# -- arrays made of shards, and looking at them ----------------------------------------------------


@rule(
    "JPX0217",
    "shards-do-not-make-the-array",
    types=("ValueError", "TypeError"),
    clues=(
        "doesn't match the single device array shape",
        "per-device arrays",
        "single-device arrays",
        "Input buffers to `Array`",
        "make_array_from_single_device_arrays",
    ),
)
def shards_do_not_make_the_array(failure: Failure) -> Finding | None:
    shape = failure.search(
        r"Expected shard shape \(([\d, ]*)\) doesn't match the single\s+device array shape \(([\d, ]*)\)\. Shape of "
        r"Array is (\S+)"
    )
    count = failure.search(r"Expected (\d+) per-device arrays .*?but\s+got (\d+)", re.S)
    kinds = failure.search(r"Input buffers to `Array` must have matching dtypes\. Got (\w+), expected (\w+)")
    other = failure.search(
        r"Addressable devices and per-device arrays devices do not match|must be from distinct devices"
        r"|input arrays must\s+have one shard each|`arrays`\s+argument must be a list or tuple|requires a list of "
        r"concrete"
    )
    call = failure.call("make_array_from_single_device_arrays")
    sharding = call.args[1] if call is not None and len(call.args) > 1 else "sharding"
    whole = call.args[0] if call is not None and call.args else "shape"
    facts: dict[str, object] = {}
    if shape is not None:
        need, have = sizes(shape.group(1)), sizes(shape.group(2))
        kind = re.sub(r"@[^,\]]+", "", shape.group(3))
        what = f"Each shard of the array {kind} must have shape {need} under this sharding, and one has {have}."
        facts = {"needed": need, "given": have, "array": kind}
    elif count is not None:
        need_n, have_n = int(count.group(1)), int(count.group(2))
        what = (
            f"The sharding puts one shard on each of {counted(need_n, 'device')}, and {counted(have_n, 'array')} "
            "were given."
        )
        facts = {"needed": need_n, "given": have_n}
    elif kinds is not None:
        what = f"The shards have different dtypes: {kinds.group(1)} where {kinds.group(2)} is expected."
        facts = {"given": kinds.group(1), "needed": kinds.group(2)}
    elif other is not None:
        what = "The arrays given are not one shard on each device of the sharding."
    else:
        return None
    return Finding(
        what=what,
        why="make_array_from_single_device_arrays glues arrays together: one on each device of the sharding (of "
        "this process), "
        "each with the shape that sharding.shard_shape(global_shape) tells.",
        fixes=[
            Fix("See which shape each shard must have", f"print({sharding}.shard_shape({whole}))"),
            Fix("Or let JAX cut a whole array", f"x = jax.device_put(whole_array, {sharding})"),
        ],
        facts=facts,
    )


@rule("JPX0218", "too-many-axes-to-draw", types=("ValueError",), clues=("`visualize_sharding`",))
def too_many_axes_to_draw(failure: Failure) -> Finding | None:
    rich = failure.search(r"`visualize_sharding` requires `rich` to be installed")
    if not rich and not failure.search(r"`visualize_sharding` only works for shapes with 1 and 2 dimensions"):
        return None
    call = failure.call("visualize_array_sharding", "visualize_sharding")
    x = call.args[0] if call is not None and call.args else "x"
    variable = failure.variable(x)
    dims = f" ({x} has {len(variable.shape)})" if variable is not None and variable.shape is not None else ""
    if rich:
        what = "Drawing a sharding needs the package rich, which is not installed."
        fixes = [Fix("Install it", "!pip install rich")]
    else:
        what = f"JAX can draw the sharding of arrays with one or two axes only{dims}."
        fixes = [
            Fix(
                "Draw it with its last axes joined",
                f"jax.debug.visualize_array_sharding({x}.reshape({x}.shape[0], -1))",
            )
        ]
    fixes.append(
        Fix("Print where each part lies", f"for shard in {x}.addressable_shards:\n    print(shard.device, shard.index)")
    )
    return Finding(
        what=what,
        why="The picture is a table of rows and columns.",
        fixes=fixes,
        facts={"axes": len(variable.shape) if variable is not None and variable.shape is not None else None},
    )


@rule("JPX0219", "unknown-memory-kind", types=("ValueError",), clues=("Could not find memory addressable by device",))
def unknown_memory_kind(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Could not find memory addressable by device (\S+)\. Device \S+ can address the following memory kinds: "
        r"(.*?)\. "
        r"Got memory kind: (\S+)"
    )
    if match is None:
        return None
    device, text, given = match.groups()
    kinds = [kind.strip() for kind in text.split(",")]
    code = failure.rewrite(f"memory_kind={given!r}", f"memory_kind={kinds[0]!r}")
    code = code or failure.rewrite(f'memory_kind="{given}"', f'memory_kind="{kinds[0]}"')
    return Finding(
        what=f"{device} has no memory of the kind {given!r}; it has {listed([repr(kind) for kind in kinds])}.",
        why="Which kinds of memory there are depends on the platform and the version: 'device' is where arrays "
        "normally lie, "
        "'pinned_host' and 'unpinned_host' are the computer's own memory.",
        fixes=[
            Fix("Take a kind that there is, or leave memory_kind out", code or f"memory_kind={kinds[0]!r}"),
            Fix("See which there are", "print(jax.devices()[0].addressable_memories())"),
        ],
        facts={"given": given, "kinds": tuple(kinds), "device": device},
    )


@rule(
    "JPX0220",
    "axis-types-default-changes",
    types=("DeprecationWarning",),
    clues=("The default axis_types will change in JAX",),
)
def axis_types_default_changes(failure: Failure) -> Finding | None:
    match = failure.search(
        r"The default axis_types will change in JAX v?([\d.]+\d) to (?:jax\.sharding\.)?AxisType\.(\w+)"
    )
    if match is None:
        return None
    version, kind = match.groups()
    call = failure.call("make_mesh")
    names = call.args[1] if call is not None and len(call.args) > 1 else call and call.keywords.get("axis_names")
    count = len(re.findall(r"'[^']*'|\"[^\"]*\"", names)) if names and names.startswith(("(", "[")) else None
    number = str(count) if count else f"len({names})" if names else "1"

    def with_types(which: str) -> str:
        types = f"axis_types=(jax.sharding.AxisType.{which},) * {number}"
        if call is None:
            return f"mesh = jax.make_mesh((4,), ('x',), {types})"
        new = f"{call.source[:-1]}, {types})"
        return rewritten(failure, call.source, new)

    return Finding(
        what=f"make_mesh makes Auto axes now; from JAX {version} on it makes {kind} ones unless told.",
        why="With Auto axes the compiler chooses how intermediate results are spread over the devices; with Explicit "
        "axes it is part of each array's type, and some operations ask for it.",
        fixes=[
            Fix("Keep what you have now", with_types("Auto")),
            Fix("Or try what is coming", with_types(kind)),
        ],
        facts={"version": version, "kind": kind},
    )


@rule(
    "JPX0228", "keywords-with-in-shardings", types=("ValueError",), clues=("does not support kwargs when in_shardings",)
)
def keywords_with_in_shardings(failure: Failure) -> Finding | None:
    call = failure.outer_call
    code = None
    if call is not None and call.keywords:
        code = failure.rewrite(call.source, f"{call.function}({', '.join([*call.args, *call.keywords.values()])})")
    named = listed(list(call.keywords)) if call is not None else "arguments"
    return Finding(
        what=f"A function jitted with in_shardings was called with arguments by name ({named}).",
        why="in_shardings counts positional arguments, so all arguments must be given by position.",
        fixes=[Fix("Pass them by position", code or "f(x, y)")],
        facts={"keywords": tuple(call.keywords) if call is not None else ()},
    )


@rule("JPX0229", "not-a-place-for-device-put", types=("ValueError",), clues=("jax.default_device must be passed",))
def not_a_default_device(failure: Failure) -> Finding | None:
    match = failure.search(r"jax\.default_device must be passed either a Device object .* got: (.+?)\.?$")
    if match is None:
        return None
    given = match.group(1).strip("'\"")
    platform, _, number = given.partition(":")
    known = platform in ("cpu", "gpu", "cuda", "tpu", "rocm")
    index = number if number.isdigit() else "0"
    new = f'jax.devices("{platform}")[{index}]' if known else "jax.devices()[0]"
    call = failure.call("default_device")
    code = failure.rewrite(call.source, f"{call.function}({new})") if call is not None else None
    return Finding(
        what=f"jax.default_device got {given!r}, which is no device and no platform's name.",
        why="A device is an object of the list jax.devices(); a name is one of a platform alone, such as 'cpu'.",
        fixes=[Fix("Name a device", code or f"with jax.default_device({new}):\n    ...")],
        facts={"given": given},
    )


@rule("JPX0233", "mesh-shape-is-a-number", types=("TypeError", "ValueError"), priority=15,
      clues=("object is not iterable", "should be a sequence of ints", "devices.ndim == 0"))  # fmt: skip
def mesh_shape_is_a_number(failure: Failure) -> Finding | None:
    call = called_with(failure, "make_mesh", "create_device_mesh", "Mesh", "AbstractMesh")
    old = failure.search(
        r"^'int' object is not iterable$|devices\.ndim == 0|should be a sequence of ints\.? Got (\d+)$"
    )
    if old is None or failure.from_jax is False:
        return None
    if call is None:
        if old.group(1) is None:
            return None
        number, keyword = old.group(1), False
    else:
        keyword = "axis_shapes" in call.keywords or "mesh_shape" in call.keywords
        number = call.keywords.get("axis_shapes") or call.keywords.get("mesh_shape") or (call.args or ("",))[0]
        variable = failure.variable(number)
        if not number.isdigit() and (variable is None or variable.type != "int") and not re.search(r"count\(", number):
            return None
    function = call.name if call is not None else "make_mesh"
    rest = list(call.args[0 if keyword else 1 :]) if call is not None else ["('x',)"]
    if function == "Mesh":
        axes = rest[0] if rest else "('x',)"
        new = f"jax.make_mesh(({number},), {axes if axes[0] in '([' else f'({axes},)'})"
    elif keyword and call is not None:
        name = "axis_shapes" if "axis_shapes" in call.keywords else "mesh_shape"
        new = call.changed(**{name: f"({number},)"})
    else:
        if function == "make_mesh" and rest and re.fullmatch(r"['\"]\w+['\"]", rest[0]):
            rest[0] = f"({rest[0]},)"
        keywords = [f"{k}={v}" for k, v in call.keywords.items()] if call is not None else []
        new = (
            f"{call.function if call is not None else 'jax.make_mesh'}({', '.join([f'({number},)', *rest, *keywords])})"
        )
    code = failure.rewrite(call.source, new) if call is not None else None
    return Finding(
        what=f"{function} got the number {number}; it takes a shape: a tuple with one number for each axis of the mesh."
        if function != "Mesh"
        else f"Mesh got the number {number}; it takes the devices themselves, as an array with the mesh's axes.",
        why="A mesh is a grid of devices, also if it has one axis only. A tuple of one number needs a comma: (4,).",
        fixes=[Fix("Give the shape as a tuple", code or new)],
        facts={"function": function, "number": number},
    )


@rule("JPX0234", "spec-is-no-partitionspec", types=("AttributeError", "TypeError"),
      clues=("has no attribute 'partitions'", "incompatible function arguments", "has no attribute '_partitions'",
             "Unexpected type for spec", "object has no attribute"))  # fmt: skip
def spec_is_no_partitionspec(failure: Failure) -> Finding | None:
    call = called_with(failure, "NamedSharding")
    spec = (call.keywords.get("spec") or (call.args[1] if len(call.args) > 1 else None)) if call is not None else None
    if call is None or spec is None or failure.from_jax is False:
        return None
    if not failure.search(
        r"^'(?:tuple|str|list|NoneType|int)' object has no attribute '_?\w+'$|incompatible function arguments"
        r"|Unexpected type"
    ):
        return None
    variable = failure.variable(spec)
    held = variable.type if variable is not None else None
    if spec == "None":
        names = ""
    elif re.fullmatch(r"['\"]\w+['\"]", spec) or held == "str":
        names = spec
    elif re.fullmatch(r"[(\[].*[)\]]", spec):
        names = spec[1:-1].strip().rstrip(",")
    elif held in ("tuple", "list"):
        names = f"*{spec}"
    else:
        return None
    new = call.source.replace(spec, f"jax.sharding.PartitionSpec({names})", 1)
    return Finding(
        what=f"NamedSharding got `{spec}` for its spec, and that is no PartitionSpec.",
        why="PartitionSpec('x', None) names, for each axis of the array, the mesh axis that it is split along; None "
        "and missing ones are not split. PartitionSpec() keeps a whole copy on each device.",
        fixes=[Fix("Make a PartitionSpec of it", rewritten(failure, call.source, new))],
        facts={"spec": spec},
    )


@rule("JPX0229", "not-a-place-for-device-put", types=("ValueError",), clues=("`jax.device_put` only accepts",))
def not_a_place_for_device_put(failure: Failure) -> Finding | None:
    match = failure.search(r"Received invalid value: (.*)")
    if match is None:
        return None
    given = match.group(1).strip()
    call = failure.call("device_put")
    place = call.args[1] if call is not None and len(call.args) > 1 else None
    platform = given.split(":")[0]
    known = platform in ("cpu", "gpu", "cuda", "tpu", "rocm")
    number = int(given.split(":")[1]) if known and re.fullmatch(r"\w+:\d+", given) else 0
    new = f'jax.devices("{platform}")[{number}]' if known else "jax.devices()[0]"
    title = "Name a device"
    mesh = re.match(r"Mesh\('(\w+)'", given)
    if mesh is not None:
        title = f"Say how the array is split over the mesh: along {mesh.group(1)}"
        spec = f"jax.sharding.PartitionSpec({mesh.group(1)!r})"
        new = f"jax.sharding.NamedSharding({place or 'mesh'}, {spec})"
    code = failure.rewrite(f", {place})", f", {new})") if place is not None else None
    return Finding(
        what=f"device_put was told to put the array on {given!r}, which is no device and no sharding.",
        why="JAX takes device objects, from jax.devices(), or a sharding, and no names such as 'cpu' or 'cuda:0'.",
        fixes=[Fix(title, code or f"y = jax.device_put(x, {new})")],
        facts={"given": given},
    )


@rule("JPX0230", "device-and-shardings-together", types=("ValueError",), clues=("device is specified on jit",))
def device_and_shardings_together(failure: Failure) -> Finding | None:
    match = failure.search(
        r"If backend or device is specified on jit, then (in_shardings|out_shardings) should not be specified"
    )
    if match is None:
        return None
    call = failure.call("jit")
    code = None
    if call is not None:
        code = failure.rewrite(
            call.source,
            re.sub(r",\s*(?:backend|device)\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^,)]+(?:\([^)]*\)\S*)?)", "", call.source),
        )
    return Finding(
        what=f"jit got both {match.group(1)} and a device or backend.",
        why="Shardings say on which devices a function runs; device and backend (on their way out of JAX) say it "
        "again.",
        fixes=[Fix("Leave device and backend out", code or f"jax.jit(function, {match.group(1)}=sharding)")],
        facts={"argument": match.group(1)},
    )
