"""scan, while_loop, fori_loop: the carry must come out as it went in."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, listed
from .shard_map import without_check

_CARRY = (
    r"[Tt]he input carry(?: component)?(?: at path)? ?(\S*) has type (\S+) but the corresponding output carry "
    r"component has type (\S+?)(?:, so ([^\n]*?))?[.;]?(?:\n|$)"
)


_CARRY_WHY = (
    "JAX compiles the loop's body once for all steps, so each value that is carried from step to step must keep its "
    "dtype and shape."
)


def _loop(failure: Failure) -> str:
    """What the user called: fori_loop and friends are scans and while_loops inside."""
    call = failure.call("scan", "fori_loop", "while_loop", "associative_scan", "map")
    if call is not None:
        return call.name
    match = failure.search(r"(\w+) (?:body function|body_fun) carry input")
    return match.group(1) if match is not None else "the loop"


def _initial(failure: Failure) -> str | None:
    """The user's source of the initial carry."""
    call = failure.call("scan", "fori_loop", "while_loop")
    if call is None:
        return None
    position, keyword = {"scan": (1, "init"), "fori_loop": (3, "init_val"), "while_loop": (2, "init_val")}[call.name]
    return call.args[position] if len(call.args) > position else call.keywords.get(keyword)


@rule(
    "JPX0701",
    "carry-varies-between-devices",
    types=("TypeError",),
    clues=("manual axes do not match", "manual axis types do not match"),
    priority=10,
)
def carry_varies_between_devices(failure: Failure) -> Finding | None:
    if not failure.search(r"carry input and carry output must have equal types"):
        return None
    found = [m for m in failure.findall(_CARRY) if "manual ax" in (m.group(4) or "")]
    if not found:
        return None
    parts = [f"{m.group(1) or 'the carry'} starts as {m.group(2)} and comes back as {m.group(3)}" for m in found]
    axes: list[str] = []
    for m in found:
        for text in re.findall(r"\{V:\(?([^)}]+)\)?\}", m.group(3)):
            axes += [axis for axis in re.split(r",\s*", text) if axis not in axes]
    names = f"({', '.join(map(repr, axes))}{',' if len(axes) == 1 else ''})"
    initial = _initial(failure)
    start = initial if initial is not None and len(initial) < 60 else "init"
    old = (failure.jax_version or (1,)) < (0, 7)
    marked = f"jax.lax.pvary({start}, {names})" if old else f"jax.lax.pcast({start}, {names}, to='varying')"
    call = failure.call("scan", "fori_loop", "while_loop")
    code = None
    if call is not None and initial is not None and failure.live and len(found) == 1:
        code = failure.rewrite(call.source, call.source.replace(initial, marked, 1))
    fixes = [
        Fix("Leave out the check in shard_map (a plain map needs none)", without_check(failure)),
        Fix("Or mark the start of the carry as different on each device", code or f"init = {marked}"),
    ]
    loop = _loop(failure)
    return Finding(
        what=f"Inside shard_map the carry of {loop} starts the same on all devices, and after one step it "
        f"differs along mesh axis {listed([repr(a) for a in axes])}: {listed(parts)}.",
        why="shard_map keeps track of which values differ between devices ({V:…} in a type), and a loop's carry "
        "must have the same type before and after each step. A constant start is the same everywhere.",
        fixes=fixes,
        facts={"loop": loop, "axes": tuple(axes), "carries": tuple(m.group(1) for m in found)},
    )


def _carry_of_old(failure: Failure) -> Finding | None:
    """From the words of JAX before 0.4.9: "DIFFERENT ShapedArray(output) vs. ShapedArray(input)"."""
    match = failure.search(
        r"(?:(\w+) carry|(\w*)body_fun) output and input must have identical types, got\s.*?"
        r"DIFFERENT ShapedArray\((\w+\[[\d,]*\])[^)]*\) vs\. ShapedArray\((\w+\[[\d,]*\])",
        re.S,
    )
    after, before = (array_type(match.group(3)), array_type(match.group(4))) if match is not None else (None, None)
    if match is None or before is None or after is None:
        return None
    loop = match.group(1) or "while_loop"
    return Finding(
        what=f"The carry of {loop} changes its type in one step: a part of it goes in as {match.group(4)} and comes "
        f"out as {match.group(3)}.",
        why=_CARRY_WHY,
        fixes=_type_fixes(failure, "", before, after)
        or [Fix(f"Start with a strong {before[0]}", f"init = jnp.asarray(init, jnp.{before[0]})")],
        facts={"loop": loop, "before": match.group(4), "after": match.group(3)},
    )


@rule(
    "JPX0702",
    "carry-type-changes",
    types=("TypeError",),
    clues=(
        "carry input and carry output must have equal types",
        "output and input must have identical types",
    ),
)
def carry_type_changes(failure: Failure) -> Finding | None:
    found = [m for m in failure.findall(_CARRY) if array_type(m.group(2)) and array_type(m.group(3))]
    if not found:
        return _carry_of_old(failure)
    loop = _loop(failure)
    fixes: list[Fix] = []
    parts = []
    for m in found:
        before, after = array_type(m.group(2)), array_type(m.group(3))
        assert before is not None and after is not None
        parts.append(f"{m.group(1) or 'the carry'} goes in as {m.group(2)} and comes out as {m.group(3)}")
        if before == after:
            continue
        fixes = fixes or _type_fixes(failure, m.group(1), before, after)
    if not fixes:
        return None
    return Finding(
        what=f"The carry of {loop} changes its type in one step: {listed(parts)}.",
        why=_CARRY_WHY,
        fixes=fixes,
        facts={
            "loop": loop,
            "carries": tuple(m.group(1) for m in found),
            "before": tuple(m.group(2) for m in found),
            "after": tuple(m.group(3) for m in found),
        },
    )


def _type_fixes(
    failure: Failure, name: str, before: tuple[str, tuple[int, ...]], after: tuple[str, tuple[int, ...]]
) -> list[Fix]:
    value = name if re.fullmatch(r"[A-Za-z_]\w*", name or "") else "new_carry"
    initial = _initial(failure)
    call = failure.call("scan", "fori_loop", "while_loop")
    fixes = []
    if before[1] == after[1]:
        start = f"jnp.asarray({initial or 'init'}, {_dtype(after[0])})"
        code = None
        if (
            call is not None
            and initial is not None
            and not re.search(r"[\[(,]$", name or "")
            and "[" not in (name or "")
        ):
            code = failure.rewrite(call.source, call.source.replace(initial, start, 1))
        fixes.append(Fix(f"Start with the type that the body makes, {after[0]}", code or f"init = {start}"))
        fixes.append(
            Fix(
                f"Or turn the new value back into {before[0]} in the body",
                f"{value} = {value}.astype({_dtype(before[0])})        # before the body returns it",
            )
        )
        return fixes
    fixes.append(
        Fix(
            f"Start with the shape that the body makes, {after[1]}",
            f"init = jnp.zeros({after[1]}, {_dtype(after[0])})",
        )
    )
    fixes.append(
        Fix(
            f"Or make the body return the shape that it gets, {before[1]}",
            f"assert {value}.shape == {before[1]}        # before the body returns it",
        )
    )
    return fixes


def _dtype(name: str) -> str:
    return f"jnp.{name}" if re.fullmatch(r"(?:b?float|u?int|complex)\d+", name) else f"'{name}'"


@rule(
    "JPX0703",
    "carry-structure-changes",
    types=("TypeError",),
    clues=("carry output must have the same pytree structure",),
)
def carry_structure_changes(failure: Failure) -> Finding | None:
    if not failure.search(r"carry input and carry output must have the same pytree structure"):
        return None
    found = failure.findall(
        r"[Tt]he input carry(?: component)?(?: at path)? ?(\S*) is an? (.+?) but the corresponding component of the "
        r"carry output is an? (.+?), so ([^\n]*?)[.;]?(?:\n|$)"
    )
    loop = _loop(failure)
    parts = [
        f"{m.group(1) or 'it'} is {_kind(m.group(2))} before and {_kind(m.group(3))} after the step" for m in found
    ]
    how = f": {listed(parts)}" if parts else ""
    nothing = failure.search(r"the output tree structure is:\s*PyTreeDef\(None\)") or any(
        "NoneType" in m.group(3) or m.group(3).startswith("None") for m in found if not m.group(1).count("[")
    )
    if nothing:
        how += ": it returns nothing (None), as a function without `return` does" if not parts else ""
    keys = failure.search(r"symmetric difference of key sets: \{(.+?)\}")
    if keys is not None and parts:
        first = re.search(r"with (\d+) child", found[0].group(2))
        then = re.search(r"with (\d+) child", found[0].group(3))
        added = first is not None and then is not None and int(then.group(1)) > int(first.group(1))
        names = keys.group(1)
        fix = Fix(
            f"Start with {names} in the carry too (an array of the shape that the body makes)"
            if added
            else f"Return {names} as well",
            f"init = {{**init, {', '.join(f'{k.strip()}: jnp.zeros(())' for k in names.split(','))}}}"
            if added
            else "return {**carry, 'name': new_value}, output        # all the keys that the carry came with",
        )
        return Finding(
            what=f"The body of {loop} returns a carry with other keys than the one it gets: {names} "
            f"{'comes in only after' if added else 'is missing after'} the step ({listed(parts)}).",
            why="JAX compiles the loop's body once for all steps, so the carry must keep its structure: the same "
            "containers, the same number of parts, the same keys.",
            fixes=[fix],
            facts={"loop": loop, "carries": tuple(m.group(1) for m in found), "keys": names},
        )
    return Finding(
        what=f"The body of {loop} returns a carry that is built in another way than the one it gets{how}.",
        why="JAX compiles the loop's body once for all steps, so the carry must keep its structure: the same "
        "containers, the same number of parts, the same keys.",
        fixes=_structure_fixes(failure, loop, *(found[0].group(2, 3) if found else ("", ""))),
        facts={"loop": loop, "carries": tuple(m.group(1) for m in found)},
    )


def _structure_fixes(failure: Failure, loop: str, before: str, after: str) -> list[Fix]:
    fixes = []
    if "NoneType" in before:
        fixes.append(
            Fix("Start with a value of the kind that the body returns", "init = jnp.zeros(())  # instead of None")
        )
    return [
        *fixes,
        Fix("Return the carry built like the initial one", _converted(failure, before, after) or _alike(loop, before)),
    ]


def _converted(failure: Failure, before: str, after: str) -> str | None:
    """The loop with a body that makes a tuple of its list, or a list of its tuple."""
    kind = next((k for k in ("tuple", "list") if re.search(rf"\b{k}\b", before)), None)
    other = {"tuple": "list", "list": "tuple"}.get(kind or "")
    call = failure.call("scan", "fori_loop", "while_loop")
    if other is None or not re.search(rf"\b{other}\b", after) or call is None:
        return None
    position = {"scan": 0, "while_loop": 1, "fori_loop": 2}[call.name]
    body = call.args[position] if len(call.args) > position else None
    if body is None:
        return None
    applied = f"({body})" if body.startswith("lambda") else body
    wrapper = {
        "scan": f"lambda carry, x: (lambda new, output: ({kind}(new), output))(*{applied}(carry, x))",
        "fori_loop": f"lambda i, carry: {kind}({applied}(i, carry))",
        "while_loop": f"lambda carry: {kind}({applied}(carry))",
    }[call.name]
    arguments = [wrapper if n == position else a for n, a in enumerate(call.args)]
    new = f"{call.function}({', '.join([*arguments, *(f'{k}={v}' for k, v in call.keywords.items())])})"
    return failure.rewrite(call.source, new)


def _alike(loop: str, before: str) -> str:
    new = {"dict": "{**carry, 'name': new_value}", "list": "[first, second]", "tuple": "(first, second)"}
    kind = next((k for k in new if k in before), None)
    carry = new[kind] if kind is not None else "new_carry"
    note = {"dict": "all the keys that the carry came with", "list": "a list, as the carry came"}.get(
        kind or "", "a tuple, as the carry came" if kind else "of the same class, with the same parts"
    )
    output = "" if loop in ("fori_loop", "while_loop") else ", output"
    return f"return {carry}{output}        # {note}"


def _kind(text: str) -> str:
    match = re.search(r"<class '(?:[\w.]+\.)?(\w+)'>(.*)", text)
    if match is None:
        return f"a {text}"
    name = {"ShapedArray": "an array", "NoneType": "None"}.get(match.group(1), f"a {match.group(1)}")
    return f"{name}{match.group(2)}"
