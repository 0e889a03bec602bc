"""Arrays that cannot be joined, stacked or split."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed
from ._lines import Shape, called_with, named, printed_shapes, rewritten, shape_of


@rule(
    "JPX0805",
    "joined-shapes-differ",
    types=("TypeError", "ValueError"),
    clues=("Cannot concatenate arrays", "Zero-dimensional arrays cannot be concatenated"),
)
def joined_shapes_differ(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Cannot concatenate arrays with shapes that differ in dimensions other than the one being concatenated: "
        r"(?:concatenating along )?dimension (\d+) for shapes ([^.\n]*)"
    )
    ranks = failure.search(r"Cannot concatenate arrays with different numbers of dimensions: got ([^.\n]*)")
    scalars = failure.search(r"Zero-dimensional arrays cannot be concatenated")
    call = called_with(failure, "concatenate", "concat", "hstack", "vstack", "dstack", "column_stack", "append", "cov")
    if match is not None and called_with(failure, "array", "asarray"):
        return None
    if match is not None:
        axis, shapes = int(match.group(1)), printed_shapes(match.group(2))
        others = {n for n in range(len(shapes[0])) if len({s[n] for s in shapes if n < len(s)}) > 1} - {axis}
        what = f"Arrays of shapes {listed([str(s) for s in shapes[:6]])} cannot be joined along axis {axis}: "
        what += f"their axis {listed([str(n) for n in sorted(others)])} differs too."
        fixes = []
        differ = {n for n in range(len(shapes[0])) if len({s[n] for s in shapes}) > 1}
        if len(differ) == 1:
            (other,) = differ
            fixes.append(Fix(f"Join along axis {other}, the one that differs", _with_axis(failure, call, other)))
        first = shapes[0]
        smallest = [min(s[n] for s in shapes) for n in range(len(first))]
        index = ", ".join(":" if n == axis or n not in others else f":{smallest[n]}" for n in range(len(first)))
        fixes.append(Fix("Or cut them to the same size first", _cut(call, index, axis)))
        why = "Joined arrays must have equal sizes along every axis but the one they are joined along."
        return Finding(what, why, fixes, {"axis": axis, "shapes": tuple(shapes)})
    if ranks is not None:
        shapes = printed_shapes(ranks.group(1))
        most = max(map(len, shapes), default=0)
        low = next((s for s in shapes if len(s) < most), ())
        name = named(failure, low) or "b"
        big = next((s for s in shapes if len(s) == most), ())
        fixes = []
        if most == len(low) + 1:
            fixes.append(
                Fix("Give the smaller one a leading axis of size 1", f"{name} = {name}[None]  # shape {(1, *low)}")
            )
            if low and big and big[: len(low)] == low:
                fixes.insert(
                    0,
                    Fix(
                        "Give the smaller one a last axis of size 1, and join along it",
                        f"{name} = {name}[..., None]  # shape {(*low, 1)}, for axis=-1",
                    ),
                )
        return Finding(
            what="Arrays with different numbers of axes cannot be joined: they have shapes "
            f"{listed([str(s) for s in shapes[:6]])}.",
            why="Joining adds lengths along one axis; all arrays need the same number of axes.",
            fixes=fixes or [Fix("Look at the shapes", "print([jnp.shape(a) for a in arrays])")],
            facts={"shapes": tuple(shapes)},
        )
    if scalars is None:
        return None
    separate = call is not None and call.name in ("concatenate", "hstack", "vstack") and len(call.args) >= 2
    if call is not None and separate:
        code = failure.rewrite(call.source, f"{call.function}([{', '.join(call.args)}])")
        return Finding(
            what=f"{call.name} got {len(call.args)} separate arguments, and took the second for the axis and the items "
            f"of `{call.args[0]}` for the arrays to join.",
            why="The arrays to be joined come as one list.",
            fixes=[Fix("Put the arrays into a list", code or f"{call.function}([{', '.join(call.args)}])")],
            facts={"arguments": call.args},
        )
    listing = call.args[0] if call is not None and call.args else "numbers"
    return Finding(
        what="The things to be joined are single numbers (they have no axes).",
        why="concatenate joins along an existing axis, and single numbers have none. stack makes a new axis.",
        fixes=[Fix("Stack them along a new axis", f"jnp.stack({listing})")],
        facts={},
    )


def _with_axis(failure: Failure, call: object, axis: int) -> str:
    from ..context import Call

    if isinstance(call, Call) and call.args and call.name in ("concatenate", "concat", "append"):
        arrays = call.args[: 2 if call.name == "append" else 1]
        new = f"{call.function}({', '.join(arrays)}, axis={axis})"
        return rewritten(failure, call.source, new)
    arrays_source = call.args[0] if isinstance(call, Call) and call.args else "arrays"
    return f"jnp.concatenate({arrays_source}, axis={axis})"


def _cut(call: object, index: str, axis: int) -> str:
    from ..context import Call

    arrays = call.args[0] if isinstance(call, Call) and call.args else "arrays"
    return f"jnp.concatenate([a[{index}] for a in {arrays}], axis={axis})"


@rule(
    "JPX0806",
    "stacked-shapes-differ",
    types=("ValueError", "TypeError"),
    clues=("All input arrays must have the same shape", "Cannot concatenate arrays with shapes that differ"),
)
def stacked_shapes_differ(failure: Failure) -> Finding | None:
    match = failure.search(r"^All input arrays must have the same shape\.?(?: Got (.*))?")
    ragged = called_with(failure, "array", "asarray")
    if match is None and ragged is None:
        return None
    call = called_with(failure, "stack", "array", "asarray")
    arrays = call.args[0] if call is not None and call.args else "arrays"
    shapes: list[Shape] = []
    if match is None:
        joined = failure.search(r"dimension \d+ for shapes ([^.\n]*)")
        shapes = [s[1:] for s in printed_shapes(joined.group(1))] if joined is not None else []
    elif match.group(1):
        shapes = printed_shapes(match.group(1))
    have = f" They have shapes {listed([str(s) for s in shapes[:6]])}." if shapes else ""
    fixes = []
    if shapes and all(len(s) == 1 for s in shapes):
        longest = max(s[0] for s in shapes)
        fixes.append(
            Fix(
                f"Fill the shorter ones with zeros to length {longest}",
                f"jnp.stack([jnp.pad(a, (0, {longest} - len(a))) for a in {arrays}])",
            )
        )
    fixes.append(Fix("Join them one after the other instead", f"jnp.concatenate({arrays})"))
    name = call.name if call is not None else "stack"
    return Finding(
        what=f"{name} makes one array of several, and they do not have the same shape.{have}",
        why="The new array is a box: every item along its new axis has the same shape. JAX has no ragged arrays.",
        fixes=fixes,
        facts={"shapes": tuple(shapes)},
    )


@rule(
    "JPX0818",
    "split-leaves-a-rest",
    types=("ValueError",),
    clues=("does not result in an equal division: rest is",),
)
def split_leaves_a_rest(failure: Failure) -> Finding | None:
    match = failure.search(r"array split does not result in an equal division: rest is (\d+)")
    if match is None:
        return None
    rest = int(match.group(1))
    call = called_with(failure, "split", "hsplit", "vsplit", "dsplit")
    x, parts = call.args[:2] if call is not None and len(call.args) > 1 else ("x", "n")
    shape = shape_of(failure, x)
    of = f" of shape {shape}" if shape is not None else ""
    return Finding(
        what=f"`{x}`{of} cannot be split into {parts} equal parts: {counted(rest, 'item')} would be left over.",
        why="split wants parts of the same length; array_split makes the first ones longer by one.",
        fixes=[Fix("Allow parts of different lengths", f"jnp.array_split({x}, {parts})")],
        facts={"rest": rest, "parts": parts},
    )


@rule(
    "JPX0816",
    "nothing-to-join",
    types=("ValueError",),
    clues=("Need at least one array to",),
)
def nothing_to_join(failure: Failure) -> Finding | None:
    match = failure.search(r"^Need at least one array to (concatenate|stack)")
    if match is None:
        return None
    call = called_with(failure, "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "concat")
    arrays = call.args[0] if call is not None and call.args else None
    if arrays is not None and re.search(r"\bfor\b", arrays) and not arrays.startswith("["):
        return None
    name = call.name if call is not None else match.group(1)
    known = failure.variable(arrays)
    return Finding(
        what=f"{name} got an empty list{f' (`{arrays}`)' if arrays else ''}: there is nothing to join.",
        why="The shape and dtype of the result come from the arrays, so at least one is needed. A generator counts as "
        "empty too.",
        fixes=[
            Fix("Say what the result is if there is nothing", f"joined = jnp.{name}({arrays}) if {arrays} else "
                                                              "jnp.zeros((0,))")
            if arrays and arrays.isidentifier()
            else Fix("Say what the result is if there is nothing", f"joined = jnp.{name}(arrays) if arrays else "
                                                                   "jnp.zeros((0,))"),
            *(
                [Fix("If it is a generator, make a list of it", f"jnp.{name}(list({arrays or 'arrays'}))")]
                if not known or known.type == "generator"
                else []
            ),
        ],
        facts={"arrays": arrays},
    )  # fmt: skip
