"""vmap, and what pmap shares with it: which axes are mapped, and their sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..context import Call, Failure, Variable
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed, parmap_fix, sizes
from ._lines import rewritten, with_argument, written_shape

_LENGTHS_WHY = (
    "{name} maps axis 0 of every argument unless in_axes says otherwise; the mapped axes must be equally long. "
    "An argument that is the same for all items gets None in in_axes."
)


@dataclass(frozen=True)
class _Axis:
    size: int
    axis: int
    argument: str  # "w", "p['a']", "args[0]"
    type: str


def in_pmap(failure: Failure) -> bool:
    """Whether pmap raised it: since JAX 0.8 its messages are those of jit and shard_map."""
    if any(sign in failure.text for sign in ("_internal_pmap_axis_name", "path flat_args[", "<axis 0x")):
        return True
    # a pmap inside a jitted function: JAX removes the frame
    return failure.raised_in("jax/_src/pmap.py") or (failure.frames_removed and failure.call("pmap") is not None)


def _sizes_of_old(failure: Failure, name: str) -> Finding | None:
    """From the words of JAX before 0.2.25: "arg 0 has shape (8, 3) and axis 0 is to be mapped"."""
    lines = failure.findall(r"arg (\d+) has shape \(([\d, ]*)\) and axis (\d+) is to be mapped")
    axes = []
    for m in lines:
        shape, axis = sizes(m.group(2)), int(m.group(3))
        if axis < len(shape):
            axes.append(_Axis(shape[axis], axis, f"argument {m.group(1)}", str(shape)))
    if len({a.size for a in axes}) < 2:
        return None
    parts = [f"axis {a.axis} of {a.argument}, of shape {a.type}, has {a.size}" for a in axes]
    in_axes = ", ".join("0" if a.size == axes[0].size else "None" for a in axes)
    return Finding(
        what=f"{name} maps its arguments together, one item of each at a time, but their lengths differ: "
        f"{listed(parts)}.",
        why=_LENGTHS_WHY.format(name=name),
        fixes=[
            Fix(
                f"Share {axes[-1].argument} among all items instead of mapping it",
                f"jax.{name}(function, in_axes=({in_axes}))(inputs, shared)",
            )
        ],
        facts={"sizes": tuple(a.size for a in axes)},
    )


@rule("JPX0401", "mapped-sizes-differ", types=("ValueError",), clues=("inconsistent sizes for array axes",))
def mapped_sizes_differ(failure: Failure) -> Finding | None:
    head = failure.search(r"\b(vmap|pmap) got inconsistent sizes for array axes to be mapped")
    lines = failure.findall(
        r"(?:had|axes of) size (\d+)(?:, e\.g\.|:) axis (-?\d+) of (?:argument )?(\S+) of type ([^;\s]+)"
    )
    if head is not None and not lines:
        return _sizes_of_old(failure, head.group(1))
    if head is None or len(lines) < 2:
        return None
    name = head.group(1)
    axes = [_Axis(int(m.group(1)), int(m.group(2)), m.group(3), m.group(4)) for m in lines]
    parts = [f"axis {a.axis} of {a.argument} ({a.type}) has {a.size}" for a in axes]
    odd = axes[-1]
    keys = next(
        (a for a in axes if a.type == "uint32[2]" and re.search(r"(?i)^k$|key|rng", _source(failure, name, a))), None
    )
    if keys is not None:
        return _one_key(failure, name, _source(failure, name, keys), next(a.size for a in axes if a is not keys))
    fixes = [
        Fix(
            f"Share {odd.argument} among all items instead of mapping it",
            _shared(failure, name, odd, axes) or f"jax.{name}(function, in_axes=(0, None))(inputs, shared)",
        ),
        Fix(
            "Map every argument along axes of the same length",
            f"# make these equal: {', '.join(f'{a.argument} has {a.size}' for a in axes)}",
        ),
    ]
    return Finding(
        what=f"{name} maps its arguments together, one item of each at a time, but their lengths differ: "
        f"{listed(parts)}.",
        why=_LENGTHS_WHY.format(name=name),
        fixes=fixes,
        facts={"sizes": tuple(a.size for a in axes), "arguments": tuple(a.argument for a in axes)},
    )


@rule(
    "JPX0401",
    "mapped-sizes-differ",
    types=("ValueError",),
    clues=("is partitioned", "maps array axis"),
    priority=6,  # before JPX0104, which fits the words of one argument too
)
def pmapped_sizes_differ(failure: Failure) -> Finding | None:
    # since JAX 0.8 pmap does not compare its arguments: the odd one does not divide by the devices
    match = failure.search(r"array axis (\d+) is partitioned (\d+) times, but the dimension size is (\d+) ")
    other = failure.search(r"maps array axis (\d+) \(of size (\d+)\) to mesh axis '[^']+' \(of size (\d+)\)")
    found_in = match or other
    if found_in is None or not in_pmap(failure):
        return None
    axis, devices, size = map(int, match.groups() if match is not None else found_in.group(1, 3, 2))
    position = failure.search(r"flat_args\[(\d+)\]")
    calls = failure.applied("pmap")
    call = calls[0] if calls is not None else failure.outer_call
    found = []
    for index, source in enumerate(call.args if call is not None else ()):
        variable = failure.variable(source) or failure.variable(f"args[{index}]")
        if variable is not None and variable.shape and axis < len(variable.shape):
            found.append(_Axis(variable.shape[axis] or 0, axis, source, str(variable)))
    shared = _first_is_shared(failure, found, devices, size, axis)
    if shared is not None:
        return shared
    if len({a.size for a in found}) < 2:
        if found or position is None or position.group(1) == "0":
            return None
        found = [_Axis(devices, axis, "the first argument", "?"), _Axis(size, axis, "another", "?")]
    odd = next((a for a in found if a.size == size), found[-1])
    code = _shared(failure, "pmap", odd) or "jax.pmap(function, in_axes=(0, None))(inputs, shared)"
    parts = [f"axis {a.axis} of {a.argument} has {a.size}" for a in found]
    return Finding(
        what=f"pmap maps its arguments together, one item of each at a time, but their lengths differ: "
        f"{listed(parts)}.",
        why=_LENGTHS_WHY.format(name="pmap"),
        fixes=[Fix(f"Share {odd.argument} among all items instead of mapping it", code)],
        facts={"sizes": tuple(a.size for a in found), "arguments": tuple(a.argument for a in found)},
        guess=not any(a.type != "?" for a in found),
    )


def _first_is_shared(failure: Failure, found: Sequence[_Axis], devices: int, size: int, axis: int) -> Finding | None:
    """pmap takes the number of items from its first argument: a dict of parameters was meant to be the same for all."""
    calls = failure.applied("pmap")
    if calls is None or failure.devices in (None, devices) or "devices" in calls[1].keywords:
        return None
    outer, inner = calls
    first = outer.args[0] if outer.args else ""
    variable = failure.variable(first)
    container = variable is not None and variable.type in ("dict", "list", "tuple")
    if len(outer.args) < 2 or not container or inner.keywords.get("in_axes") or {a.size for a in found} - {size}:
        return None
    names = {a.argument for a in found} or set(outer.args[1:])
    in_axes = f"({', '.join('0' if a in names else 'None' for a in outer.args)})"
    return Finding(
        what=f"pmap maps its arguments together, one item of each at a time, but their lengths differ: axis {axis} of "
        f"{listed(sorted(names))} has {size}, and axis {axis} of the first array in {first} has {devices}.",
        why=_LENGTHS_WHY.format(name="pmap"),
        fixes=[
            Fix(
                f"Share {first} among all items instead of mapping it",
                failure.rewrite(inner.source, inner.changed(in_axes=in_axes)) or inner.changed(in_axes=in_axes),
            )
        ],
        facts={"sizes": (devices, size), "arguments": (first, *names)},
    )


def _source(failure: Failure, name: str, axis: _Axis) -> str:
    """What the user passed for the argument that JAX names by its parameter or position."""
    calls = failure.applied(name)
    if calls is None:
        return axis.argument
    outer, inner = calls
    position = re.fullmatch(r"args\[(\d+)\]", axis.argument)
    parameters = re.match(r"lambda ([\w, ]*):", inner.args[0]) if inner.args else None
    names = parameters.group(1).split(", ") if parameters is not None else []
    index = int(position.group(1)) if position else names.index(axis.argument) if axis.argument in names else None
    return outer.args[index] if index is not None and index < len(outer.args) else axis.argument


def _one_key(failure: Failure, name: str, key: str, count: int) -> Finding:
    """One random key where each item needs one of its own."""
    new = f"jax.random.split({key}, {count})"
    code = with_argument(failure, failure.outer_call, key, new)
    return Finding(
        what=f"{name} is to give each of {counted(count, 'item')} a random key of its own, and `{key}` is one key.",
        why=f"{name} maps axis 0 of every argument. One key has no such axis (an old one has two numbers in it, which "
        "are no two keys); split makes an array of keys.",
        fixes=[Fix(f"Make {count} keys of it", code if code != new else f"keys = {new}")],
        facts={"argument": key, "sizes": (count,)},
    )


def _shared(failure: Failure, name: str, odd: _Axis, told: Sequence[_Axis] = ()) -> str | None:
    """The user's line with in_axes=None for the argument that has the odd length."""
    calls = failure.applied(name)
    if calls is None:
        return None
    outer, inner = calls
    keyword = re.fullmatch(r"kwargs\['(\w+)'\]", odd.argument)
    if keyword is not None and inner.args and keyword.group(1) in outer.keywords:
        # keyword arguments are always mapped along axis 0: what is shared has to be bound before
        bound = f"functools.partial({inner.args[0]}, {keyword.group(1)}={outer.keywords[keyword.group(1)]})"
        mapped = inner.source.replace(inner.args[0], bound, 1)
        return failure.rewrite(outer.source, outer.changed(mapped, **{keyword.group(1): None}))
    given = inner.keywords.get("in_axes")
    entries = [re.fullmatch(r"(\w+)\['(\w+)'\]", a.argument) for a in told]
    if (
        given is None
        and len(outer.args) == 1
        and told
        and all(entries)
        and len({e.group(1) for e in entries if e}) == 1
    ):
        each = ", ".join(f"{e.group(2)!r}: {None if a is odd else a.axis}" for e, a in zip(entries, told) if e)
        return failure.rewrite(inner.source, inner.changed(in_axes=f"({{{each}}},)"))
    if not inner.args or (given is not None and not re.fullmatch(r"\(?[\d, ]*\)?", given)):
        return None
    positions = []
    for position, argument in enumerate(outer.args):
        variable = failure.variable(argument) or failure.variable(f"args[{position}]")
        shape = variable.shape if variable is not None else None
        if shape is not None and odd.axis < len(shape) and shape[odd.axis] == odd.size:
            positions.append(position)
    if not positions:  # a pasted traceback: the parameter may have the name of what was passed for it
        positions = [n for n, argument in enumerate(outer.args) if argument == odd.argument]
    if not positions and len(told) == len(outer.args) and not any("[" in a.argument for a in told):
        positions = [told.index(odd)]  # each argument is named in the message, in order
    if len(positions) != 1 or len(outer.args) < 2:
        return None
    axes = re.findall(r"\d+", given or "") or ["0"]
    axes = axes * len(outer.args) if len(axes) == 1 else axes
    if len(axes) != len(outer.args):
        return None
    axes[positions[0]] = "None"
    return failure.rewrite(inner.source, inner.changed(in_axes=f"({', '.join(axes)})"))


_SCALAR_CLUES = (
    "was requested to map its argument",
    "but axis to be mapped",
    "requires at least one argument with a mapped axis",
    "only valid for values of rank at least",
)


def _scalar_mapped(failure: Failure) -> tuple[str, int, int] | None:
    """("vmap", axis, rank of the argument) if an argument has no such axis to map."""
    match = failure.search(
        r"\b(vmap|pmap) was requested to map its argument along axis (-?\d+), which implies that its rank should "
        r"be at least \d+, but is only (\d+)"
    )
    if match is not None:
        return match.group(1), int(match.group(2)), int(match.group(3))
    old = failure.search(r"\b(vmap|pmap) got arg \d+ of rank (\d+) but axis to be mapped (-?\d+)")
    if old is not None:
        return old.group(1), int(old.group(3)), int(old.group(2))
    if failure.search(r"\bpmap requires at least one argument with a mapped axis"):
        return "pmap", 0, 0
    if in_pmap(failure):
        match = failure.search(r"valid for values of rank at least (\d+), but was applied to a value of rank (\d+)")
        if match is not None:
            return "pmap", int(match.group(1)) - 1, int(match.group(2))
    return None


@rule("JPX0402", "map-over-a-list-of-numbers", types=("ValueError",), clues=_SCALAR_CLUES, priority=10)
def map_over_a_list_of_numbers(failure: Failure) -> Finding | None:
    mapped = _scalar_mapped(failure)
    call = failure.outer_call
    if mapped is None or mapped[2] != 0 or call is None:
        return None
    name = mapped[0]
    for position, argument in enumerate(call.args):
        variable = failure.variable(argument)
        length, element = (variable.length, variable.element) if variable is not None else _literal(argument)
        if length is None or element not in ("int", "float", "complex", "bool"):
            continue
        new = f"jnp.array({argument})"
        inputs = ", ".join(new if n == position else a for n, a in enumerate(call.args))
        code = failure.rewrite(call.source, f"{call.function}({inputs})") or f"inputs = {new}"
        fixes = [Fix("Make an array of the list", code)]
        calls = failure.applied(name)
        if calls is not None and calls[1].args and len(call.args) == 1:
            fixes.append(parmap_fix(failure, calls[1].args[0], argument, "Map the list as Pool.map does"))
        return Finding(
            what=f"{name} got a list of {counted(length, 'number')} ({argument}), and takes each number for an "
            "argument of its own that has no axis to map.",
            why=f"For JAX a list is a container of separate arrays (a pytree), not one array: {name} looks for "
            "axis 0 inside each element. An array has an axis to map.",
            fixes=fixes,
            facts={"argument": argument, "position": position, "length": length},
        )
    return None


@rule("JPX0403", "mapped-argument-without-that-axis", types=("ValueError",), clues=_SCALAR_CLUES, priority=5)
def one_key_for_all_items(failure: Failure) -> Finding | None:
    mapped = _scalar_mapped(failure)
    call = failure.outer_call
    if mapped is None or mapped[2] != 0 or call is None:
        return None
    held = {argument: failure.variable(argument) for argument in call.args}
    keys = [
        a
        for a, v in held.items()
        if (v is not None and (v.dtype or "").startswith("key<") and v.shape == ())
        or re.fullmatch(r"(?:[\w.]*\.)?key\([^()]*\)", a)
    ]
    counts = [v.shape[0] for v in held.values() if v is not None and v.shape]
    counts += [s[0] for a in call.args if (s := written_shape(a))]
    if len(keys) != 1 or not counts or counts[0] is None:
        return None
    return _one_key(failure, mapped[0], keys[0], counts[0])


@rule("JPX0403", "mapped-argument-without-that-axis", types=("ValueError",), clues=_SCALAR_CLUES)
def mapped_argument_without_that_axis(failure: Failure) -> Finding | None:
    mapped = _scalar_mapped(failure)
    if mapped is None:
        return None
    name, axis, rank = mapped
    calls = failure.applied(name)
    call = calls[0] if calls is not None else failure.outer_call
    argument = position = None
    for index, source in enumerate(call.args if call is not None else ()):
        variable = failure.variable(source) or failure.variable(f"args[{index}]")
        if re.match(r"[rbf]?['\"]", source) or (variable is not None and variable.type == "str"):
            return None  # a string is no input at all
        number = re.fullmatch(r"[-+]?[\d.]+(?:e[-+]?\d+)?|True|False|\w+\.(?:float|int)\d*\([^,()]*\)", source)
        if number or (variable is not None and _rank(variable) == rank):
            argument, position = source, index
            break
    code = None
    if calls is not None and position is not None and calls[1].args and len(calls[0].args) > 1:
        axes = re.findall(r"None|-?\d+", calls[1].keywords.get("in_axes", "0"))
        axes = axes * len(calls[0].args) if len(axes) == 1 else axes
        if len(axes) == len(calls[0].args):
            axes[position] = "None"
            code = failure.rewrite(calls[1].source, calls[1].changed(in_axes=f"({', '.join(axes)})"))
    named = next(
        (
            (k, s)
            for k, s in (call.keywords if call is not None else {}).items()
            if re.fullmatch(r"-?[\d.]+|True|False", s) or ((v := failure.variable(s)) is not None and _rank(v) == rank)
        ),
        None,
    )
    if argument is None and named is not None and calls is not None and calls[1].args and call is not None:
        return _mapped_by_name(failure, name, calls[1].args[0], call, named)
    if calls is not None and call is not None and len(call.args) == 1 and rank > 0:
        x = call.args[0]
        return Finding(
            what=f"{name} is to map `{x}` along axis {axis}, and that has {counted(rank, 'axis')} (0 to {rank - 1}).",
            why=f"in_axes={calls[1].keywords.get('in_axes', '0')} says which axis holds the items.",
            fixes=[
                Fix(
                    f"Map along axis {rank - 1}",
                    failure.rewrite(calls[1].source, calls[1].changed(in_axes=str(rank - 1))) or f"in_axes={rank - 1}",
                ),
                Fix("Look at the shape before this line", f"print(jnp.shape({x}))"),
            ],
            facts={"argument": x, "axis": axis, "rank": rank},
        )
    others = [v for s in (call.args if call is not None else ()) if s != argument and (v := failure.variable(s))]
    items = next((v.shape[0] for v in others if v.shape), None)
    own = f"jnp.full({'number_of_items' if items is None else items}, {argument or 'value'})"
    if argument is not None and calls is not None and items is not None:
        own = failure.rewrite(calls[0].source, calls[0].source.replace(f"{argument})", f"{own})")) or own
    is_what = "is a single number" if rank == 0 else f"has {counted(rank, 'axis')}"
    shown = argument if argument is not None else "one of its arguments"
    return Finding(
        what=f"{name} is to map {shown} along axis {axis}, but that {is_what}.",
        why=f"{name} maps axis 0 of every argument unless in_axes says otherwise. An argument that is the same for all "
        "items gets None in in_axes.",
        fixes=[
            Fix(
                f"Share {argument or 'it'} among all items instead of mapping it",
                code or f"jax.{name}(function, in_axes=(0, None))(inputs, shared)",
            ),
            Fix("Or give each item a value of its own", own),
        ],
        facts={"argument": argument, "axis": axis, "rank": rank},
    )


def _mapped_by_name(failure: Failure, name: str, function: str, call: Call, named: tuple[str, str]) -> Finding:
    """An argument that is given by name is mapped along axis 0, whatever in_axes says."""
    keyword, value = named
    rest = [*call.args, *(f"{k}={v}" for k, v in call.keywords.items() if k != keyword)]
    called = f"({function})" if function.startswith("lambda") else function
    new = f"jax.{name}(lambda *args: {called}(*args, {keyword}={value}))({', '.join(rest)})"
    return Finding(
        what=f"{name} is to map {keyword}={value} along axis 0, but that is a single number. Arguments given by name "
        "are always mapped along axis 0.",
        why="in_axes speaks of the positional arguments only. What is the same for all items is given by position, "
        "with None in in_axes, or from outside.",
        fixes=[Fix(f"Give {keyword} from outside the mapped function", rewritten(failure, call.source, new))],
        facts={"argument": keyword, "axis": 0, "rank": 0},
    )


def _rank(variable: Variable) -> int | None:
    if variable.shape is not None:
        return len(variable.shape)
    return 0 if variable.type in ("int", "float", "complex", "bool") else None


def _literal(source: str) -> tuple[int | None, str | None]:
    """Length and element type of a list written out in the call."""
    import ast

    try:
        value = ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return None, None
    if not isinstance(value, list | tuple) or not value:
        return None, None
    return len(value), type(value[0]).__name__
