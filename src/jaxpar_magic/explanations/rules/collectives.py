"""Collective operations (psum, all_gather, ppermute, …): axis names that no map defines, shapes, groups, pcast."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import listed
from ._lines import rewritten

_COLLECTIVES = (
    "psum",
    "pmean",
    "pmax",
    "pmin",
    "ppermute",
    "pshuffle",
    "pswapaxes",
    "all_gather",
    "all_to_all",
    "psum_scatter",
    "axis_index",
    "axis_size",
    "pvary",
    "pcast",
    "pbroadcast",
    "ragged_all_to_all",
)
_SINGLE = {"psum": "sum", "pmean": "mean", "pmax": "max", "pmin": "min"}
_WHY = (
    "A collective (psum, pmean, all_gather, axis_index, …) works across the copies of a function that a map runs, and "
    "finds the map by the name of its axis. The name must be exactly one that a surrounding shard_map, pmap or vmap "
    "gives."
)


def _collective(failure: Failure) -> Call | None:
    """The user's innermost call of a collective."""
    return failure.call(*_COLLECTIVES)


def _axis_source(call: Call | None) -> str | None:
    if call is None:
        return None
    position = 0 if call.name in ("axis_index", "axis_size") else 1
    return call.keywords.get("axis_name") or (call.args[position] if len(call.args) > position else None)


def _axis_names(failure: Failure, call: Call | None) -> tuple[str, ...]:
    """The axis names that the call of a collective names; empty if its source does not tell."""
    source = _axis_source(call)
    if source is None:
        return ()
    variable = failure.variable(source)
    text = variable.value if variable is not None and variable.value is not None else source
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ()
    names = value if isinstance(value, tuple | list) else (value,)
    return tuple(name for name in names if isinstance(name, str))


def _map_axes(failure: Failure) -> tuple[str | None, tuple[str, ...], Call | None]:
    """The surrounding map, its axis names and its call: ("shard_map", ("data",), …); (None, (), None) if unknown."""
    for kind in ("shard_map", "smap", "pmap", "vmap", "xmap"):
        call = failure.call(kind, "partial") if kind == "shard_map" else failure.call(kind)
        if call is None or (call.name == "partial" and not (call.args and call.args[0].endswith("shard_map"))):
            continue
        if kind == "shard_map":
            mesh = call.keywords.get("mesh") or (
                call.args[1] if len(call.args) > 1 and call.name != "partial" else None
            )
            axes = failure.meshes.get(mesh or "")
            if axes is None and len(failure.meshes) == 1:
                axes = next(iter(failure.meshes.values()))
            return kind, tuple(axes or ()), call
        given = call.keywords.get("axis_name")
        try:
            name = ast.literal_eval(given) if given is not None else None
        except (ValueError, SyntaxError):
            return kind, (), call
        return kind, (str(name),) if name is not None else (), call
    if len(failure.meshes) == 1:
        return None, tuple(next(iter(failure.meshes.values()))), None
    return None, (), None


def _unbound(failure: Failure, name: str, *, guess: bool = False) -> Finding:
    call = _collective(failure)
    used = call.name if call is not None else "A collective"
    kind, axes, outer = _map_axes(failure)
    facts = {"axis": name, "known_axes": axes, "map": kind, "collective": call.name if call is not None else None}
    if kind in ("pmap", "vmap") and outer is not None and "axis_name" not in outer.keywords:
        new = f"{outer.source[:-1]}, axis_name={name!r})" if outer.source.endswith(")") else outer.source
        named = failure.rewrite(outer.source, new) or f"jax.{kind}(function, axis_name={name!r})"
        return Finding(
            what=f"{used} names the axis {name!r}, but {kind} was called without axis_name, so its axis has no name.",
            why=_WHY,
            fixes=[Fix(f"Give the axis of {kind} that name", named)],
            facts=facts,
            guess=guess,
        )
    if axes and name not in axes:
        near = axes[0] if len(axes) == 1 else _nearest(name, axes)
        source = _axis_source(call)
        code: str | None = None
        if call is not None and source is not None:
            new = source.replace(name, near) if name in source else repr(near)
            code = failure.rewrite(call.source, call.source.replace(source, new, 1))
        owner = "The mesh has" if kind in (None, "shard_map") else f"{kind} has"
        fixes = [
            Fix(f"Name an axis that there is: {listed([repr(a) for a in axes], 'or')}", code or f"axis_name = {near!r}")
        ]
        if kind in ("pmap", "vmap") and outer is not None:
            new = outer.source.replace(outer.keywords["axis_name"], repr(name))
            fixes.append(Fix(f"Or name the axis of {kind} so", rewritten(failure, outer.source, new)))
        return Finding(
            what=f"{used} names the axis {name!r}, and no map around it has an axis of that name. {owner} "
            f"{listed([repr(a) for a in axes])}.",
            why=_WHY,
            fixes=fixes,
            facts=facts,
            guess=guess,
        )
    single = _SINGLE.get(call.name) if call is not None else None
    fixes = [
        Fix(
            "Call the function inside a map that names the axis",
            f"mesh = jax.make_mesh((jax.device_count(),), ({name!r},))\n"
            "P = jax.sharding.PartitionSpec\n"
            f"mapped = jax.shard_map(function, mesh=mesh, in_specs=P({name!r}), out_specs=P())",
        ),
        Fix("Or give the vmap or pmap around it that name", f"jax.vmap(function, axis_name={name!r})(inputs)"),
    ]
    if single is not None and call is not None and call.args and kind is None:
        plain = failure.rewrite(call.source, f"jnp.{single}({call.args[0]}, axis=0)")
        fixes.append(Fix("To reduce one array along its own axis, use jnp", plain or f"jnp.{single}(x, axis=0)"))
    return Finding(
        what=f"{used} names the axis {name!r}, but no map around it (shard_map, pmap, vmap) has an axis of that name: "
        "it is called outside of one, or the map was given no axis_name or another one.",
        why=_WHY,
        fixes=fixes,
        facts=facts,
        guess=guess,
    )


def _nearest(name: str, axes: tuple[str, ...]) -> str:
    import difflib

    return (difflib.get_close_matches(name, axes, 1, 0.0) or list(axes))[0]


@rule("JPX0350", "axis-name-unbound", types=("NameError",), clues=("nbound axis name",))
def axis_name_unbound(failure: Failure) -> Finding | None:
    match = failure.search(r"^(?:Found an )?unbound axis name: ([^\s.]+?)(?:\. To fix this, please call|\.? *$)", re.M)
    if match is None or "in config" in failure.message:
        return None
    return _unbound(failure, match.group(1).strip("'\""))


@rule("JPX0350", "axis-name-unbound", types=("KeyError", "AssertionError"))
def axis_name_unbound_in_shard_map(failure: Failure) -> Finding | None:
    # inside shard_map some versions only assert, or look the name up in a dict
    call = _collective(failure)
    outer = failure.outer_call
    if call is None or failure.from_jax is not True or (failure.user is not None and failure.user.raises):
        return None
    if outer is None or (outer.name not in _COLLECTIVES and call not in failure.user_frames[0].calls):
        return None
    named = _axis_names(failure, call)
    axes = _map_axes(failure)[1]
    if failure.is_a("KeyError"):
        match = failure.search(r"^'([^']+)'$")
        if match is None or match.group(1) in axes or (named and match.group(1) not in named):
            return None
        return _unbound(failure, match.group(1))
    if failure.message.strip() not in ("", "set(new_axes) == set(axes)"):
        return None
    unknown = [name for name in named if name not in axes]
    if axes and named and not unknown:
        return None
    sure = bool(axes and unknown)
    if not unknown and not failure.raised_in("core.py:pvary"):
        return None
    return _unbound(failure, unknown[0] if unknown else _axis_source(call) or "axis_name", guess=not sure)


@rule("JPX0350", "axis-name-unbound", types=("ValueError",), clues=("can only accept axis_name which corresponds",))
def axis_name_unbound_among_several(failure: Failure) -> Finding | None:
    match = failure.search(
        r"jax\.lax\.(\w+) can only accept axis_name which corresponds to one of varying.*?"
        r"Got input type: (\S+?(?:\{[^}]*\})?), axes: \(([^)]*)\)",
        re.S,
    )
    if match is None:
        return None
    names = re.findall(r"'([^']+)'", match.group(3))
    varying = re.search(r"\{V:\(?([^)}]*)\)?", match.group(2))
    over = [name.strip() for name in varying.group(1).split(",")] if varying else []
    axes = _map_axes(failure)[1]
    unknown = [name for name in names if name not in over and name not in axes]
    if not unknown:
        return None
    finding = _unbound(failure, unknown[0], guess=not axes)
    if axes:
        return finding
    return Finding(
        what=f"{match.group(1)} names the axes {listed([repr(n) for n in names])}, and the value differs between "
        "devices "
        f"along {listed([repr(n) for n in over]) or 'none of the axes'}: {unknown[0]!r} is misspelt, or an axis "
        "along which "
        "the value is the same everywhere.",
        why=finding.why,
        fixes=[
            Fix(
                f"Name only axes along which it differs: {listed([repr(n) for n in over], 'or')}",
                f"jax.lax.{match.group(1)}(x, {tuple(over)!r})",
            )
        ],
        facts={"axis": unknown[0], "axes": tuple(names), "varying": tuple(over)},
        guess=True,
    )


@rule(
    "JPX0351",
    "collective-over-constant-axis",
    types=("ValueError",),
    clues=(
        "can only accept axis_name which corresponds",
        "must be applied to a device-varying",
        "variant->invariant collective",
    ),
)
def collective_over_constant_axis(failure: Failure) -> Finding | None:
    match = failure.search(
        r"jax\.lax\.(\w+) can only accept axis_name which corresponds to one of varying.*?"
        r"Got input type: (\S+?(?:\{[^}]*\})?), axes: \(([^)]*)\)",
        re.S,
    )
    if match is not None:
        used, type_text = match.group(1), match.group(2)
        names = re.findall(r"'([^']+)'", match.group(3))
        varying = re.search(r"\{V:\(?([^)}]*)\)?", type_text)
        over = [name.strip() for name in varying.group(1).split(",")] if varying else []
        if not set(names) <= set(_map_axes(failure)[1]):
            return None
    else:
        match = failure.search(
            r"Collective (\w+) must be applied to a device-varying\s+type, but got (.*?) for collective acting\s+over "
            r"axis name \(?([^).]*)\)?\."
        )
        if match is None:
            return None
        used, names = match.group(1), re.findall(r"[\w-]+", match.group(3))
        over = re.findall(r"'([^']+)'", match.group(2))
    constant = [name for name in names if name not in over]
    call = _collective(failure)
    value = call.args[0] if call is not None and call.args else "x"
    which = ", ".join(map(repr, constant))
    fixes = []
    if over and call is not None:
        source = _axis_source(call)
        rest = [name for name in names if name in over]
        code = failure.rewrite(call.source, call.source.replace(source, repr(tuple(rest)), 1)) if source else None
        if rest:
            fixes.append(
                Fix("Name only axes along which it differs", code or f"jax.lax.{used}({value}, {tuple(rest)!r})")
            )
    fixes.append(
        Fix(
            "Say first that it counts as different on each device (JAX 0.8 or newer)",
            f"{value} = jax.lax.pcast({value}, ({which},), to='varying')",
        )
    )
    return Finding(
        what=f"{used} works along the mesh {'axis' if len(constant) == 1 else 'axes'} "
        f"{listed([repr(n) for n in constant])}, "
        "but there the value is the same on every device.",
        why="shard_map keeps track of the mesh axes along which a value differs between devices (its varying axes). A "
        "collective along an axis without differences is mostly a mistake: a sum of equal values counts each twice "
        "or more.",
        fixes=fixes,
        facts={"collective": used, "axes": tuple(names), "varying": tuple(over)},
    )


@rule(
    "JPX0353", "permutation-not-one-to-one", types=("ValueError",), clues=("must be unique", "represent a permutation")
)
def permutation_not_one_to_one(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(ppermute|pshuffle|pcollective_permute) sources and destinations must be unique, got (\(.*\))"
    )
    shuffle = failure.search(r"`perm` does not represent a permutation: (\[.*\])") if match is None else None
    if match is None and shuffle is None:
        return None
    pairs = re.findall(r"\((\d+), ?(\d+)\)", match.group(2)) if match is not None else []
    what = f"The permutation {shuffle.group(1)} does not name each device exactly once." if shuffle is not None else ""
    twice_from = sorted({int(a) for a, _ in pairs if [x for x, _ in pairs].count(a) > 1})
    twice_to = sorted({int(b) for _, b in pairs if [y for _, y in pairs].count(b) > 1})
    parts = []
    if twice_from:
        parts.append(f"{listed([str(n) for n in twice_from])} sends more than once")
    if twice_to:
        parts.append(f"{listed([str(n) for n in twice_to])} receives more than once")
    if match is not None:
        what = f"In the permutation of ppermute {' and '.join(parts) or 'a device stands twice'}."
    call = failure.call("ppermute", "pshuffle")
    value = call.args[0] if call is not None and call.args else "x"
    axis = _axis_source(call) or "axis_name"
    ring = f"jax.lax.ppermute({value}, {axis}, [(i, (i + 1) % n) for i in range(n)])"
    fixes = [
        Fix(
            "Send each block to the next device, in a ring",
            f"n = jax.lax.axis_size({axis})\n{ring}"
            if (failure.jax_version or (1,)) >= (0, 7)
            else f"n = jax.lax.psum(1, {axis})\n{ring}",
        )
    ]
    if twice_from:
        fixes.insert(
            0,
            Fix(
                f"To give every device the block of device {twice_from[0]}, gather and pick it",
                f"jax.lax.all_gather({value}, {axis})[{twice_from[0]}]",
            ),
        )
    return Finding(
        what=what,
        why="ppermute moves blocks between devices one to one: each device sends at most one block and receives at "
        "most "
        "one. It cannot copy one block to several devices, nor add several up.",
        fixes=fixes,
        facts={"sends_twice": tuple(twice_from), "receives_twice": tuple(twice_to)},
    )


@rule(
    "JPX0354",
    "groups-miss-devices",
    types=("JaxRuntimeError", "ValueError"),
    clues=(
        "replica groups should contain",
        "axis_index_groups",
        "Replica groups must be equally sized",
        "Invalid replica id",
    ),
)
def groups_miss_devices(failure: Failure) -> Finding | None:
    count = failure.search(
        r"replica groups should contain (\d+) (?:flattened IDs|replicas|partitions|\w+), but found (\d+)"
    )
    other = failure.search(
        r"axis_index_groups must cover all indices exactly once|Replica groups must be equally sized"
        r"|axis_index_groups must all be the same size"
    )
    invalid = failure.search(r"Invalid replica id -?\d+")
    calls = [call for frame in failure.user_frames for call in frame.calls]
    calls += [call for name in failure.definitions for call in failure.defining_calls(name)]
    call = next((call for call in calls if "axis_index_groups" in call.keywords), None)
    if count is None and other is None and (invalid is None or call is None):
        return None
    shown = failure.search(r"replica_groups=(\{(?:\{[\d,]*\},?)*\})")
    groups = call.keywords["axis_index_groups"] if call is not None else None
    if groups is None and shown is not None:
        groups = shown.group(1).replace("{", "[").replace("}", "]").replace(",", ", ")
    need = int(count.group(1)) if count is not None else None
    got = int(count.group(2)) if count is not None else None
    named = f" {groups}" if groups else ""
    what = f"axis_index_groups{named} does not name every device of the axis exactly once, in groups of one size."
    if need is not None:
        what = f"axis_index_groups{named} names {got} devices, and the axis has {need}: each must stand in one group."
    if need is not None and need % 2 == 0:
        good = (
            str([[i, i + 1] for i in range(0, need, 2)])
            if need <= 8
            else (f"[[i, i + 1] for i in range(0, {need}, 2)]")
        )
    else:
        good = str([list(range(need))]) if need is not None else "[[0, 1], [2, 3]]"
    code = failure.rewrite(groups, good) if groups and call is not None else None
    return Finding(
        what=what,
        why="axis_index_groups cuts the axis into groups that work apart from each other. Together they must hold each "
        "index from 0 once; most collectives want groups of equal size.",
        fixes=[Fix("Put every index into one group, in groups of one size", code or f"axis_index_groups={good}")],
        facts={"groups": groups, "needed": need, "found": got},
    )


def _unknown_to(failure: Failure, function: str | None, allowed: list[str]) -> Finding:
    call = failure.call(function or "pcast", "pvary", "pcast")
    given = call.keywords.get("to") if call is not None else None
    word = (given or "").strip("'\"")
    best = next((name for name in sorted(allowed) if word and name.startswith(word[:4])), None)
    best = best or ("varying" if "varying" in allowed else sorted(allowed)[0])
    code = failure.rewrite(call.source, call.changed(to=repr(best))) if call is not None and given else None
    return Finding(
        what=f"{function or 'pcast'} {f'got to={given}' if given else 'does not know this `to`'}; it knows "
        f"{listed([repr(name) for name in sorted(allowed)], 'and')}.",
        why="to= says what the value is to be: varying means that it may differ between the devices of the axes named.",
        fixes=[Fix(f"Write to={best!r}", code or f"jax.lax.{function or 'pcast'}(x, axis_name, to={best!r})")],
        facts={"to": word, "allowed": tuple(sorted(allowed))},
    )


@rule(
    "JPX0355",
    "pcast-not-possible",
    types=("ValueError",),
    clues=("Unsupported pcast", "pvary is a invariant->variant", "Got unexpected `to` value"),
)
def pcast_not_possible(failure: Failure) -> Finding | None:
    unknown = failure.search(
        r"Got unexpected `to` value(?: for `jax\.lax\.(\w+)`)?\.\s+Allowed `to`\s+values are: \{(.*?)\}"
    )
    if unknown is not None:
        return _unknown_to(failure, unknown.group(1), re.findall(r"'(\w+)'", unknown.group(2)))
    match = failure.search(r"Unsupported pcast from=(\w+), to='(\w+)'")
    old = (
        failure.search(r"pvary is a invariant->variant collective.*?Got axes=\(?([^)]*)\)?", re.S)
        if match is None
        else None
    )
    if match is None and old is None:
        return None
    have, to = (match.group(1), match.group(2)) if match is not None else ("varying", "varying")
    call = failure.call("pcast", "pvary")
    value = call.args[0] if call is not None and call.args else "x"
    axes = (
        (call.keywords.get("axis_name") or (call.args[1] if len(call.args) > 1 else None)) if call is not None else None
    )
    along = f" along {axes}" if axes else ""
    if have == to == "varying":
        what = (
            f"{value} already differs between devices{along}; pcast(…, to='varying') is for values that are the "
            "same on all."
        )
        # the axes along which a value differs: .vma up to JAX 0.8, .mat.varying since
        varies = "vma" if (failure.jax_version or (1,)) < (0, 9) else "mat.varying"
        fixes = [
            Fix("Leave the cast out", (failure.rewrite(call.source, value) if call is not None else None) or value),
            Fix(
                "Or cast only where it is needed (JAX 0.8 or newer)",
                f"axes = tuple(set({axes or '(axis_name,)'}) - set(jax.typeof({value}).{varies}))\n"
                f"{value} = jax.lax.pcast({value}, axes, to='varying') if axes else {value}",
            ),
        ]
    else:
        what = f"pcast cannot turn {value} from {have} into {to}{along}."
        reduce = f"jax.lax.psum({value}, {axes or 'axis_name'})"
        fixes = [Fix("To make a varying value the same on all devices, combine it", reduce)]
    return Finding(
        what=what,
        why="Inside shard_map a value that came in split by in_specs differs between devices (it is varying); "
        "constants and "
        "what came in with P() are the same everywhere. pcast only declares the latter to be the former.",
        fixes=fixes,
        facts={"value": value, "from": have, "to": to, "axes": axes},
    )


@rule(
    "JPX0356",
    "axis-does-not-match-devices",
    types=("ValueError",),
    clues=(
        "all_to_all",
        "reduce_scatter",
        "psum_scatter",
    ),
)
def axis_does_not_match_devices(failure: Failure) -> Finding | None:
    split = failure.search(
        r"The size of all_to_all split_axis \((\d+)\)\s+has to be divisible by the size of the named axis (\S+) "
        r"\((\d+)\)"
    )
    equal = failure.search(
        r"all_to_all requires the size of the mapped axis axis_name to equal x\.shape\[split_axis\], but they are (\d+)"
        r" and (\d+)"
    )
    scatter = failure.search(
        r"(tiled )?(?:reduce_scatter|psum_scatter) operand scatter dimension size (\d+) must (?:be divisible by|match) "
        r"shard[_ ]count (\d+)"
    )
    if split is not None:
        name, size, count, tiled = "all_to_all", int(split.group(1)), int(split.group(3)), True
    elif equal is not None:
        name, size, count, tiled = "all_to_all", int(equal.group(2)), int(equal.group(1)), False
    elif scatter is not None:
        name, size, count, tiled = "psum_scatter", int(scatter.group(2)), int(scatter.group(3)), bool(scatter.group(1))
    else:
        return None
    relation = f"a multiple of {count}" if tiled else f"{count} exactly"
    call = failure.call(name)
    value = call.args[0] if call is not None and call.args else "x"
    fixes = []
    if not tiled and size % count == 0 and call is not None:
        new = f"{call.source[:-1]}, tiled=True)"
        fixes.append(Fix("Let each device have several rows", rewritten(failure, call.source, new)))
    padded = -(-size // count) * count
    if padded != size:
        fixes.append(
            Fix(
                f"Pad the axis to {padded}",
                f"{value} = jnp.pad({value}, [(0, {padded - size})] + [(0, 0)] * ({value}.ndim - 1))",
            )
        )
    fixes.append(Fix("See the shape that one device has", f"print({value}.shape)"))
    return Finding(
        what=f"{name} deals the axis out to {count} devices, so its size on each device must be {relation}; it is "
        f"{size}.",
        why="Inside shard_map the sizes are those of one device's block: the size of the whole divided by the size "
        "of the "
        "mesh axis in "
        "in_specs." + ("" if tiled else " Without tiled=True every device gets one row, and the axis vanishes."),
        fixes=fixes,
        facts={"collective": name, "size": size, "devices": count, "tiled": tiled},
    )
