"""Arrays that do not fit item by item: broadcasting, values written to a place, functions of lax."""

from __future__ import annotations

import ast
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, listed, product, sizes
from ._lines import Shape, broadcast_together, called_with, enclosed, named, nodes, operands, printed_shapes, rewritten

_BROADCAST_WHY = (
    "Shapes are compared from the right, axis by axis: two sizes fit if they are equal or one of them is 1. "
    "A missing axis on the left counts as 1."
)


def _conflict(a: Shape, b: Shape) -> tuple[int, int, int] | None:
    """(axis from the right, size in a, size in b) of the first pair that does not fit."""
    for place, (m, n) in enumerate(zip(reversed(a), reversed(b)), 1):
        if m != n and 1 not in (m, n):
            return place, m, n
    return None


def _axis_fixes(a: Shape, b: Shape, left: str, right: str, sign: str) -> list[Fix]:
    """Ways to make the two fit by adding an axis or by transposing, as `left + right[:, None]`."""
    fixes = []
    first, second = enclosed(left), enclosed(right)
    if len(b) == 1 and len(a) > 1:
        for axis in range(len(a) - 1):
            if a[axis] == b[0]:
                index = ", ".join([":", *["None"] * (len(a) - 1 - axis)])
                fixes.append(
                    Fix(
                        f"Let the {b[0]} of the second run along axis {axis} of the first",
                        f"{left} {sign} {second}[{index}]",
                    )
                )
    if len(a) == 1 and len(b) > 1:
        for axis in range(len(b) - 1):
            if b[axis] == a[0]:
                index = ", ".join([":", *["None"] * (len(b) - 1 - axis)])
                fixes.append(
                    Fix(
                        f"Let the {a[0]} of the first run along axis {axis} of the second",
                        f"{first}[{index}] {sign} {right}",
                    )
                )
    if len(a) == len(b) == 2 and broadcast_together(a, b[::-1]):
        fixes.append(Fix("Transpose the second", f"{left} {sign} {second}.T"))
    if len(a) == len(b) == 1:
        if b[0] > a[0]:
            fixes.append(
                Fix(
                    f"Make the second as long as the first ({a[0]}): cut it here, or make it so",
                    f"{left} {sign} {second}[: {_length(first, a[0])}]",
                )
            )
        else:
            fixes.append(
                Fix(
                    f"Make the first as long as the second ({b[0]}): cut it here, or make it so",
                    f"{first}[: {_length(second, b[0])}] {sign} {right}",
                )
            )
        if left.isidentifier() and right.isidentifier():
            title = f"Or combine every item with every other ({a[0]} × {b[0]} results)"
            fixes.append(Fix(title, f"{first}[:, None] {sign} {second}[None, :]"))
    return fixes


def _length(source: str, length: int) -> str:
    """A number where the array has a name; what is computed may have another length in the next step of a loop."""
    return str(length) if source.isidentifier() else f"{source}.shape[0]"


@rule(
    "JPX0801",
    "shapes-do-not-broadcast",
    types=("ValueError", "TypeError"),
    clues=("ncompatible shapes for broadcasting", "ncompatible types for broadcasting"),
)
def shapes_do_not_broadcast(failure: Failure) -> Finding | None:
    match = failure.search(r"^(?:(\w+) got i|I)ncompatible shapes for broadcasting: (?:shapes=)?([\[\]()\d, ]+)")
    requested = failure.search(
        r"Incompatible shapes for broadcasting: (\([\d, ]*\)) and requested shape (\([\d, ]*\))"
        r"|Incompatible types for broadcasting: input type=(\S+) and requested type=(\S+)"
    )
    if requested is not None:
        return _does_not_fill(failure, requested)
    if match is None:
        return None
    shapes = printed_shapes(match.group(2))
    if len(shapes) < 2:
        return None
    pair = next(((a, b) for i, a in enumerate(shapes) for b in shapes[i + 1 :] if not broadcast_together(a, b)), None)
    if pair is None:
        return None
    a, b = pair
    place, m, n = _conflict(a, b) or (0, 0, 0)
    indexed = _index_arrays(failure, a, b)
    if indexed is not None:
        return indexed
    line = operands(failure) if len(shapes) == 2 else None
    left, sign, right = line if line is not None else (named(failure, a) or "a", "+", named(failure, b) or "b")
    known = line is not None or {left, right}.isdisjoint("ab")
    code_known = line is not None
    fixes = (
        _axis_fixes(a, b, left, right, sign) if code_known or not failure.live else _axis_fixes(a, b, left, right, "+")
    )
    fixes.append(
        Fix("Look at both shapes, and make each axis equal or 1", f"print(jnp.shape({left}), jnp.shape({right}))")
    )
    names = f"`{left}` {a} and `{right}` {b}" if known else listed([str(s) for s in shapes])
    return Finding(
        what=f"Arrays of shapes {names} cannot be combined element by element: counted from the right, "
        f"axis {place} has {m} in one and {n} in the other.",
        why=_BROADCAST_WHY,
        fixes=fixes[:3],
        facts={"shapes": tuple(shapes), "axis_from_the_right": place, "sizes": (m, n)},
    )


def _index_arrays(failure: Failure, a: tuple[int, ...], b: tuple[int, ...]) -> Finding | None:
    """x[rows, columns] with index arrays of different lengths."""
    segment = failure.user.segment or failure.user.statement or "" if failure.user is not None else ""
    tree, source = parse_fragment(segment) if segment else (None, "")
    expression = tree.body[0].value if isinstance(tree, ast.Module) and isinstance(tree.body[0], ast.Expr) else None
    if not isinstance(expression, ast.Subscript) or not isinstance(expression.slice, ast.Tuple):
        return None
    holder = ast.get_source_segment(source, expression.value) or ast.unparse(expression.value)
    indices = [ast.unparse(e) for e in expression.slice.elts]
    if len(indices) != 2:
        return None
    grid = f"{enclosed(holder)}[jnp.ix_({', '.join(indices)})]"
    short = min(a[0] if a else 1, b[0] if b else 1)
    pairs = ", ".join(f"{enclosed(i)}[:{short}]" for i in indices)
    return Finding(
        what=f"`{segment}` indexes with two arrays of shapes {a} and {b}: they are taken in pairs, one row and one "
        "column for each item, so they must fit together.",
        why="x[rows, columns] gives x[rows[0], columns[0]], x[rows[1], columns[1]], … as in numpy. For every row with "
        "every column, jnp.ix_ makes the indices.",
        fixes=[
            Fix("Take every row with every column", rewritten(failure, segment, grid)),
            Fix(f"Or take {short} pairs", f"{enclosed(holder)}[{pairs}]"),
        ],
        facts={"shapes": (a, b)},
    )


def _does_not_fill(failure: Failure, match: re.Match[str]) -> Finding | None:
    if match.group(1) is not None:
        got, want = sizes(match.group(1)), sizes(match.group(2))
    else:
        types = array_type(match.group(3)), array_type(match.group(4))
        if types[0] is None or types[1] is None:
            return None
        got, want = types[0][1], types[1][1]
    facts = {"shape": got, "requested": want}
    user = failure.user
    text = (user.segment or user.statement or "") if user is not None else ""
    place = _at_place(failure)
    if place is not None or ".at[" in text:
        return Finding(
            what=f"The place that .at[…] names has shape {want}, and the value for it has shape {got}.",
            why="x.at[index].set(value) broadcasts value to the shape of x[index]. " + _BROADCAST_WHY,
            fixes=_place_fixes(place or ("x", "index", "set", "value"), got, want),
            facts=facts,
        )
    call = called_with(failure, "broadcast_to")
    if call is not None and len(call.args) == 2:
        x, shape = call.args
        fixes = []
        if len(got) == 1 and len(want) > 1 and got[0] in want[:-1]:
            axis = want.index(got[0])
            index = ", ".join([":", *["None"] * (len(want) - 1 - axis)])
            fixes.append(
                Fix(
                    f"Let its {got[0]} items run along axis {axis}",
                    f"{call.function}({enclosed(x)}[{index}], {shape})",
                )
            )
        fixes.append(Fix("Repeat it along a new leading axis", f"{call.function}({x}, (2, *jnp.shape({x})))"))
        what = f"broadcast_to cannot stretch `{x}` of shape {got} to shape {want}."
        return Finding(what, _BROADCAST_WHY, fixes, facts)
    return Finding(
        what=f"An array of shape {got} stands where shape {want} is needed, and cannot be stretched to it.",
        why=_BROADCAST_WHY,
        fixes=[Fix("Give it the missing axes, of size 1 or of the size wanted", f"x = jnp.broadcast_to(x, {want})")]
        if len(got) < len(want) and broadcast_together(got, want)
        else [Fix("Look at the shape, and change it before this line", "print(jnp.shape(x))")],
        facts=facts,
    )


def _at_place(failure: Failure) -> tuple[str, str, str, str] | None:
    """("x", "0", "set", "v") of the user's x.at[0].set(v)."""
    for node in nodes(failure):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            place = node.func.value
            if isinstance(place, ast.Subscript) and isinstance(place.value, ast.Attribute) and place.value.attr == "at":
                index = ast.unparse(place.slice)
                index = index[1:-1] if isinstance(place.slice, ast.Tuple) else index
                return ast.unparse(place.value.value), index, node.func.attr, ast.unparse(node.args[0])
    return None


def _place_fixes(place: tuple[str, str, str, str], got: Shape, want: Shape) -> list[Fix]:
    x, index, method, value = place
    short = enclosed(value)
    new = x if re.fullmatch(r"[\w.]+", x) else "updated"
    fixes = []
    if len(got) == 1 and len(want) > 1 and got[0] == want[0]:
        axes = ", ".join([":", *["None"] * (len(want) - 1)])
        fixes.append(
            Fix(
                "Let the value run along the first axis of the place",
                f"{new} = {x}.at[{index}].{method}({short}[{axes}])",
            )
        )
    if len(got) == len(want) and all(m >= n for m, n in zip(got, want)):
        cut = ", ".join(f":{n}" for n in want)
        fixes.append(Fix("Cut the value to the size of the place", f"{new} = {x}.at[{index}].{method}({short}[{cut}])"))
    if product(got) == product(want):
        fixes.append(
            Fix("Give the value the shape of the place", f"{new} = {x}.at[{index}].{method}({short}.reshape({want}))")
        )
    if not fixes and len(got) == len(want) and re.fullmatch(r"-?\w+(, ?-?\w+)*", index):
        part = ", ".join(f":{n}" for n in got)
        fixes.append(
            Fix("Write to a place as large as the value", f"{new} = {x}.at[{index}, {part}].{method}({value})")
        )
    fixes.append(Fix("Look at both shapes", f"print({x}[{index}].shape, jnp.shape({value}))"))
    return fixes[:3]


@rule(
    "JPX0809",
    "rank-promotion-not-allowed",
    types=("ValueError", "UserWarning"),
    clues=("jax_numpy_rank_promotion",),
    anywhere=True,
)
def rank_promotion_not_allowed(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Operands could not be broadcast together for (\w+) on shapes ((?:\([\d, ]*\) ?)+)"
        r"|Following NumPy automatic rank promotion for (\w+) on shapes ((?:\([\d, ]*\) ?)+)"
    )
    if match is None:
        return None
    name, shapes = match.group(1) or match.group(3), printed_shapes(match.group(2) or match.group(4))
    most = max(map(len, shapes))
    line = operands(failure)
    fixes = []
    if line is not None and len(shapes) == 2:
        low = 0 if len(shapes[0]) < len(shapes[1]) else 1
        source = line[2 * low]
        index = ", ".join(["None"] * (most - len(shapes[low])) + ["..."])
        pair = [line[0], line[2]]
        pair[low] = f"{enclosed(source)}[{index}]"
        fixes.append(Fix("Write the missing axes out", f"{pair[0]} {line[1]} {pair[1]}"))
    fixes.append(Fix("Or allow it, as numpy does", 'jax.config.update("jax_numpy_rank_promotion", "allow")'))
    return Finding(
        what=f"{name} got shapes {listed([str(s) for s in shapes])}, with different numbers of axes, and the setting "
        "jax_numpy_rank_promotion asks to be told about that.",
        why="numpy adds missing axes on the left by itself. This setting turns that off, since it hides mistakes.",
        fixes=fixes,
        facts={"operation": name, "shapes": tuple(shapes)},
    )


_LAX = {"sub": "subtract", "mul": "multiply", "div": "divide", "rem": "remainder", "pow": "power", "max": "maximum",
        "min": "minimum", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
        "ge": "greater_equal", "and": "logical_and", "or": "logical_or"}  # fmt: skip


@rule(
    "JPX0810",
    "lax-does-not-broadcast",
    types=("TypeError", "ValueError"),
    clues=("same number of dimensions, got", "got arrays of different rank", "select cases must", "select `which`"),
)
def lax_does_not_broadcast(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(\w+): arrays must have the same number of dimensions, got [\[{(]([\d, ]+)[\]})]"
        r"|(\w+) got arrays of different rank: (.*)"
    )
    select = failure.search(
        r"select cases must have the same shapes, got ([^\n]*)"
        r"|select `which` must be scalar or have the same shape as cases, got `which` shape (\([\d, ]*\)) but case "
        r"shape (\([\d, ]*\))"
    )
    if select is not None:
        call = called_with(failure, "select")
        arguments = ", ".join(call.args) if call is not None and call.args else "condition, a, b"
        shapes = printed_shapes(select.group())
        return Finding(
            what=f"lax.select needs equal shapes, and got {listed([str(s) for s in shapes])}.",
            why="The functions of jax.lax are the bare operations: they do not broadcast. Those of jax.numpy do.",
            fixes=[Fix("Use jnp.where, which broadcasts", f"jnp.where({arguments})")],
            facts={"shapes": tuple(shapes)},
        )
    if match is None:
        return None
    name = match.group(1) or match.group(3)
    counts = sizes(match.group(2)) if match.group(2) else tuple(len(s) for s in printed_shapes(match.group(4)))
    call = called_with(failure, name)
    code = f"jnp.{_LAX.get(name, name)}(a, b)"
    if call is not None and len(call.args) > 1:
        new = f"jnp.{_LAX.get(name, name)}({', '.join(call.args)})"
        code = rewritten(failure, call.source, new)
    return Finding(
        what=f"lax.{name} got arrays with {listed([str(n) for n in sorted(set(counts))])} axes; it needs equal shapes.",
        why="The functions of jax.lax are the bare operations: they do not broadcast. Those of jax.numpy do.",
        fixes=[
            Fix("Use the function of jax.numpy, which broadcasts", code),
            Fix("Or give the smaller array the missing axes first", "b = jnp.broadcast_to(b, a.shape)"),
        ],
        facts={"operation": name, "numbers_of_axes": counts},
    )
