"""Shapes that do not fit: broadcasting, matmul, einsum, joining, reshaping, axes, linear algebra."""

from __future__ import annotations

import ast
import itertools
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, counted, listed, product, sizes
from ._lines import called_with, enclosed, jax_at_line, named, nodes, operands, shape_of
from .tracers import array_condition

Shape = tuple[int, ...]

_BROADCAST_WHY = (
    "Shapes are compared from the right, axis by axis: two sizes fit if they are equal or one of them is 1. "
    "A missing axis on the left counts as 1."
)


def _shapes(text: str) -> list[Shape]:
    """Every printed shape: "(3, 4), (3,), ()" gives [(3, 4), (3,), ()]."""
    return [sizes(m) for m in re.findall(r"\([\d, ]*\)", text)]


def _fits(a: Shape, b: Shape) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b)))


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
    if len(a) == len(b) == 2 and _fits(a, b[::-1]):
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
    shapes = _shapes(match.group(2))
    if len(shapes) < 2:
        return None
    pair = next(((a, b) for i, a in enumerate(shapes) for b in shapes[i + 1 :] if not _fits(a, b)), None)
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
            Fix("Take every row with every column", failure.rewrite(segment, grid) or grid),
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
        if len(got) < len(want) and _fits(got, want)
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
    "JPX0802",
    "matmul-with-a-scalar",
    types=("ValueError", "TypeError"),
    clues=("must have ndim at least 1",),
)
def matmul_with_a_scalar(failure: Failure) -> Finding | None:
    match = failure.search(r"matmul input operand (\d) must have ndim at least 1, but it has ndim 0")
    if match is None:
        return None
    position = int(match.group(1))
    line = operands(failure, "@")
    call = called_with(failure, "matmul")
    pair = (line[0], line[2]) if line is not None else call.args[:2] if call is not None else ()
    left, right = pair if len(pair) == 2 else ("a", "b")
    which = f"`{(left, right)[position]}`" if len(pair) == 2 and position < 2 else f"operand {position}"
    return Finding(
        what=f"@ (matmul) got a single number: {which} has no axes.",
        why="A matrix product sums over an axis of both operands; a single number has none. * multiplies by a number.",
        fixes=[Fix("Multiply by the number", f"{enclosed(left)} * {enclosed(right)}")],
        facts={"operand": position},
    )


_PRODUCTS = ("dot", "matmul", "inner", "vdot", "tensordot")


@rule(
    "JPX0803",
    "product-sizes-differ",
    types=("TypeError", "ValueError"),
    clues=("dot_general requires", "for dot:", "for matmul arguments", "jax.lax.dot: dimension_numbers"),
)
def product_sizes_differ(failure: Failure) -> Finding | None:
    contracted = failure.search(
        r"dot_general requires (contracting|batch) dimensions to have the same shape, got [\[(]([\d, ]*)[\])] and "
        r"[\[(]([\d, ]*)[\])]"
    )
    shapes = failure.search(
        r"Incompatible shapes for dot: got (\([\d, ]*\)) and (\([\d, ]*\))"
        r"|got lhs_shape=(\([\d, ]*\)) rhs_shape=(\([\d, ]*\))"
        r"|Incompatible (?:shapes|types) for matmul arguments: (\S+?|\([\d, ]*\)) and (\S+|\([\d, ]*\))$"
    )
    a: Shape | None = None
    b: Shape | None = None
    if shapes is not None:
        texts = [group for group in shapes.groups() if group is not None]
        found = [(array_type(text) or ("", sizes(text)))[1] for text in texts]
        a, b = found[0], found[1]
    elif contracted is None:
        return None
    line = operands(failure, "@")
    call = called_with(failure, *_PRODUCTS)
    left = right = None
    if line is not None:
        left, right = line[0], line[2]
    elif call is not None and len(call.args) >= 2:
        left, right = call.args[:2]
    if left is not None and right is not None:
        a, b = a or shape_of(failure, left), b or shape_of(failure, right)
    names = (f"`{left}`" if left else "the first", f"`{right}`" if right else "the second")
    if contracted is not None:
        m, n = contracted.group(2).rstrip(", "), contracted.group(3).rstrip(", ")
    else:
        m, n = str(a[-1] if a else "?"), str((b[-2] if len(b) > 1 else b[0]) if b else "?")
    with_shapes = [f"{name} {shape}" if shape is not None else name for name, shape in zip(names, (a, b))]
    batch = (contracted is not None and contracted.group(1) == "batch") or (
        contracted is None and a is not None and b is not None and len(a) > 2 and len(b) > 2 and a[-1] == b[-2]
    )
    if batch:
        what = f"The matrix product of {with_shapes[0]} and {with_shapes[1]} has different numbers of matrices in them."
        why = "All axes but the last two count matrices; they must be equal or 1 in both operands."
    else:
        what = (
            f"The matrix product of {with_shapes[0]} and {with_shapes[1]} sums over an axis that has "
            f"{m} in the first and {n} in the second."
        )
        why = "a @ b sums over the last axis of a and the last axis but one of b (the only one of a vector)."
    fixes = _product_fixes(a, b, left or "a", right or "b")
    if batch and a is not None and b is not None and len(a) == len(b) == 3:
        n = min(a[0], b[0])
        fixes = [
            Fix(
                f"Multiply the first {n} matrices of both",
                f"{enclosed(left or 'a')}[:{n}] @ {enclosed(right or 'b')}[:{n}]",
            )
        ]
    fixes.append(
        Fix("Look at both shapes before the product", f"print(jnp.shape({left or 'a'}), jnp.shape({right or 'b'}))")
    )
    return Finding(what, why, fixes[:3], {"sizes": (m, n), "shapes": (a, b)})


def _product_fixes(a: Shape | None, b: Shape | None, left: str, right: str) -> list[Fix]:
    if not a or not b or len(a) > 2 or len(b) > 2:
        return []
    first, second = enclosed(left), enclosed(right)
    fixes = []
    if len(b) == 2 and a[-1] == b[1]:
        fixes.append(Fix("Transpose the second", f"{first} @ {second}.T"))
    if len(a) == 2 and a[0] == (b[-2] if len(b) > 1 else b[0]):
        fixes.append(Fix("Transpose the first", f"{first}.T @ {second}"))
    if b[-1] == (a[-2] if len(a) > 1 else a[0]):
        fixes.append(Fix("Change the order of the two", f"{second} @ {first}"))
    if _fits(a, b):
        fixes.append(Fix("Multiply element by element instead", f"{first} * {second}"))
    if len(a) == len(b) == 1:
        n = min(a[0], b[0])
        fixes.append(Fix(f"Use the first {n} items of both", f"jnp.dot({first}[:{n}], {second}[:{n}])"))
        fixes.append(Fix("For every pair of items, take the outer product", f"jnp.outer({left}, {right})"))
    return fixes


@rule(
    "JPX0804",
    "einsum-subscripts-do-not-fit",
    types=("ValueError",),
    clues=("Size of label", "Einstein sum subscript", "einsum subscripts", "Output character"),
    anywhere=True,  # raised by opt_einsum, which JAX calls
)
def einsum_subscripts_do_not_fit(failure: Failure) -> Finding | None:
    label = failure.search(r"Size of label '(.)' for operand (\d+) \((\d+)\) does not match previous terms \((\d+)\)")
    count = failure.search(
        r"Einstein sum subscript '?(\S+?)'? does not contain the correct number of indices for operand (\d+)"
    )
    number = failure.search(
        r"Number of einsum subscripts, (?:must be equal to the number of operands|(\d+), must be equal to the number "
        r"of operands, (\d+))"
    )
    output = failure.search(
        r"Output character '?(.)'? (?:did not appear in the input|appeared more than once in the output)"
    )
    if not (label or count or number or output):
        return None
    call = called_with(failure, "einsum") if failure.user is not None else None
    if failure.frames:
        through_jax = failure.frames_removed or any(f.package == "jax" for f in failure.inner_frames)
        if call is None or not (through_jax or re.match(r"jnp\.|jax\.", call.function)):
            return None
    subscripts = call.args[0].strip("'\"") if call is not None and call.args else None
    operands_ = list(call.args[1:]) if call is not None else []
    terms = subscripts.replace(" ", "").split("->")[0].split(",") if subscripts else []
    shapes = [shape_of(failure, source) for source in operands_]
    facts: dict[str, object] = {"subscripts": subscripts}
    if label is not None:
        letter, m, n = label.group(1), int(label.group(3)), int(label.group(4))
        places = [
            f"`{source}` has {shape[term.index(letter)]}"
            for term, source, shape in zip(terms, operands_, shapes)
            if shape is not None and letter in term and term.index(letter) < len(shape)
        ]
        what = (
            f"In einsum({subscripts!r}, …) the letter {letter} stands"
            if subscripts
            else f"The letter {letter} of einsum stands"
        )
        what += f" for two sizes, {m} and {n}" + (f": {listed(places)}." if len(places) > 1 else ".")
        why = "One letter is one size: everywhere it stands, the axis must have the same length."
        facts |= {"letter": letter, "sizes": (m, n)}
    elif count is not None:
        term, position = count.group(1), int(count.group(2))
        shape = shapes[position] if position < len(shapes) else None
        has = f" has shape {shape}" if shape is not None else " has another number of axes"
        what = (
            f"The subscript '{term}' names {counted(len(term), 'axis').replace('axiss', 'axes')}, and operand "
            f"{position}{has}."
        )
        why = "einsum wants one letter for each axis of an operand; '...' stands for any further leading axes."
        facts |= {"term": term, "operand": position}
    elif number is not None:
        have = len(operands_) or number.group(2)
        what = f"einsum got {number.group(1) or len(terms)} subscripts and {have} arrays."
        why = "The part before -> has one group of letters for each array, with commas between them."
    else:
        assert output is not None
        what = f"The letter {output.group(1)} of einsum's result stands in none of its inputs."
        why = "Each letter after -> must be an axis of an input, and stand there once."
        facts |= {"letter": output.group(1)}
    arrays = operands_ or ["a", "b"]
    odd = int(count.group(2)) if count is not None else None
    fixes = _einsum_fixes(failure, subscripts, terms, operands_, shapes, odd)
    return Finding(
        what=what,
        why=why,
        fixes=[
            *fixes,
            Fix(
                "Look at the shapes, and write one letter for each axis",
                f"print({', '.join(f'jnp.shape({a})' for a in arrays)})",
            ),
        ][:3],
        facts=facts,
        guess=not failure.frames and not failure.from_jax,
    )


def _einsum_fixes(
    failure: Failure,
    subscripts: str | None,
    terms: list[str],
    arrays: list[str],
    shapes: list[Shape | None],
    position: int | None,
) -> list[Fix]:
    """Another order of letters that fits the shapes; or a leading axis where one is missing."""
    call = called_with(failure, "einsum")
    if call is None or not subscripts or len(terms) != len(arrays):
        return []
    result = "->" + subscripts.split("->")[1] if "->" in subscripts else ""
    known = [s for s in shapes if s is not None]
    if position is not None:
        shape = shapes[position] if position < len(shapes) else None
        if shape is None:
            return []
        missing = len(terms[position]) - len(shape)
        if missing > 0:
            changed = [
                f"{enclosed(a)}[{', '.join(['None'] * missing)}]" if i == position else a for i, a in enumerate(arrays)
            ]
            new = f"{call.function}({call.args[0]}, {', '.join(changed)})"
            return [Fix("Give the array the missing leading axes", failure.rewrite(call.source, new) or new)]
        written = [("..." + t if i == position else t) for i, t in enumerate(terms)]
        head = result.replace("->", "->...") if result else ""
        new = f"{call.function}('{','.join(written)}{head}', {', '.join(arrays)})"
        return [Fix("Let ... stand for the further leading axes", failure.rewrite(call.source, new) or new)]
    if len(known) == len(terms) and all(len(t) == len(s) <= 4 for t, s in zip(terms, known)):
        for number, term in enumerate(terms):
            for order in itertools.permutations(term):
                tried = [*terms[:number], "".join(order), *terms[number + 1 :]]
                pairs = [(letter, n) for t, s in zip(tried, known) for letter, n in zip(t, s)]
                if len(set(pairs)) == len({letter for letter, _ in pairs}):
                    new = f"{call.function}('{','.join(tried)}{result}', {', '.join(arrays)})"
                    title = f"Name the axes of `{arrays[number]}` in the order that fits its shape"
                    return [Fix(title, failure.rewrite(call.source, new) or new)]
        return _einsum_cut(failure, terms, arrays, known)
    return []


def _einsum_cut(failure: Failure, terms: list[str], arrays: list[str], shapes: list[Shape]) -> list[Fix]:
    call = called_with(failure, "einsum")
    least: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        for letter, n in zip(term, shape):
            least[letter] = min(n, least.get(letter, n))
    changed = []
    for term, shape, array in zip(terms, shapes, arrays):
        cuts = [f":{least[letter]}" if n > least[letter] else ":" for letter, n in zip(term, shape)]
        changed.append(f"{enclosed(array)}[{', '.join(cuts)}]" if set(cuts) != {":"} else array)
    if call is None:
        return []
    new = f"{call.function}({call.args[0]}, {', '.join(changed)})"
    return [
        Fix("If only the first items belong together, cut the longer array", failure.rewrite(call.source, new) or new)
    ]


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
        axis, shapes = int(match.group(1)), _shapes(match.group(2))
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
        shapes = _shapes(ranks.group(1))
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
        return failure.rewrite(call.source, new) or new
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
        shapes = [s[1:] for s in _shapes(joined.group(1))] if joined is not None else []
    elif match.group(1):
        shapes = _shapes(match.group(1))
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


@rule("JPX0807", "squeeze-of-a-longer-axis", types=("ValueError",), clues=("squeeze out",))
def squeeze_of_a_longer_axis(failure: Failure) -> Finding | None:
    match = failure.search(
        r"cannot select an axis to squeeze out .* got shape=\(([\d, ]+)\) and dimensions=\(([\d, ]+)\)"
    )
    if match is None or failure.raised_in("jax/_src/pmap.py"):
        return None
    call = called_with(failure, "squeeze")
    if call is None and failure.frames:
        return None
    shape, axes = sizes(match.group(1)), sizes(match.group(2))
    long = [n for n in axes if n < len(shape) and shape[n] != 1]
    if not long:
        return None
    x = "x"
    if call is not None:
        x = (
            call.args[0]
            if call.args and call.function.startswith(("jnp.", "jax.", "lax."))
            else call.function.rpartition(".")[0] or "x"
        )
    return Finding(
        what=f"squeeze was told to drop axis {listed([str(n) for n in long])} of an array of shape {shape}, "
        f"and that axis has {listed([str(shape[n]) for n in long])} items.",
        why="squeeze drops axes of size 1 only; a longer one holds numbers that would be lost.",
        fixes=[
            Fix("Drop all axes of size 1, whichever they are", f"{enclosed(x)}.squeeze()"),
            Fix(f"Or take one item along axis {long[0]}", f"jnp.take({x}, 0, axis={long[0]})"),
        ],
        facts={"shape": shape, "axes": axes},
        guess=call is None,
    )


_SQUARE = ("solve", "inv", "cholesky", "eigh", "eigvalsh", "det", "slogdet", "eig", "eigvals", "expm", "logm", "sqrtm")


@rule(
    "JPX0808",
    "matrix-is-not-square",
    types=("ValueError", "TypeError"),
    clues=("[..., n, n]", "square", "inconsistent size for core dimension", "got incompatible shapes", "..., m, m]"),
    priority=10,
)
def matrix_is_not_square(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:Argument|The input) to (\S+?)(?:\(\))? must have shape \[\.\.\., n, n\], got (?:shape )?(\([\d, ]*\))"
        r"|(?:input to (\w+)|first input to triangular_solve) must be a square matrix\. Got shape (\([\d, ]*\))"
        r"|Expected A to be a \(batched\) square matrix, got A\.shape=(\([\d, ]*\))"
        r"|Last 2 dimensions of (?:the )?array must be square"
    )
    if failure.is_a("LinAlgError") or (match is not None and match.group().startswith("Last 2") and not failure.types):
        return None  # numpy's own
    core = failure.search(
        r"inconsistent size for core dimension '(\w)': (\d+) vs (\d+) on vectorized function .*signature='\(\1,\1\)"
    )
    swapped = failure.search(r"^\w+ got incompatible shapes for broadcasting: (\([\d, ]*\)), (\([\d, ]*\))")
    call = called_with(failure, *_SQUARE)
    argument = call.args[0] if call is not None and call.args else None
    shape = shape_of(failure, argument) if argument else None
    guess = False
    if match is not None:
        shape = next((sizes(g) for g in match.groups() if g is not None and g.startswith("(")), shape)
    elif core is not None:
        if shape is None and argument is not None:
            shape = _written_shape(argument)
        m, n = int(core.group(3)), int(core.group(2))
        if shape is not None and len(shape) > 1 and shape[-1] == shape[-2]:
            return None
        guess = shape is None
        shape = shape or (m, n)
    elif swapped is not None and call is not None and call.name in ("cholesky", "eigh", "eigvalsh"):
        a, b = sizes(swapped.group(1)), sizes(swapped.group(2))
        if len(a) < 2 or a[:-2] + (a[-1], a[-2]) != b:
            return None
        shape = a
    else:
        return None
    if shape is not None and len(shape) > 1 and shape[-1] == shape[-2]:
        return None
    function = call.name if call is not None else (match.group(1) or match.group(3) if match is not None else None)
    function = (function or "The function").removeprefix("linalg.").strip("_()")
    name = f"`{argument}`" if argument else "its matrix"
    has = f" has shape {shape}" if shape is not None else " is not square"
    fixes = []
    if function == "solve" and call is not None and len(call.args) > 1:
        fixes.append(
            Fix("Solve it in the least-squares sense", f"x = jnp.linalg.lstsq({call.args[0]}, {call.args[1]})[0]")
        )
    elif function == "inv" and shape is not None and len(shape) > 1:
        fixes.append(Fix("Take the pseudo-inverse, which any matrix has", f"jnp.linalg.pinv({argument or 'A'})"))
    elif function in ("cholesky", "eigh", "eigvalsh") and shape is not None and len(shape) > 1:
        matrix = enclosed(argument or "A")
        square = f"jnp.linalg.{function}({matrix} @ {matrix}.T)"
        fixes.append(Fix("Take it of the square matrix that belongs to it", square))
    elif shape is not None and len(shape) > 1:
        fixes.append(
            Fix("Singular values exist for any matrix", f"jnp.linalg.svd({argument or 'A'}, compute_uv=False)")
        )
    fixes.append(
        Fix("Look at the matrix: it should have as many rows as columns", f"print(jnp.shape({argument or 'A'}))")
    )
    if core is not None and guess:
        what = (
            f"{function} met the sizes {core.group(3)} and {core.group(2)} where one size is needed: its matrix is not "
        )
        what += "square, or the right-hand side has another length."
    else:
        what = f"{function} needs a square matrix, and {name}{has}."
    return Finding(
        what=what,
        why="Only a matrix with as many rows as columns has an inverse, a determinant, eigenvalues or a Cholesky "
        "factor.",
        fixes=fixes[:3],
        facts={"shape": shape, "function": function},
        guess=guess,
    )


def _written_shape(source: str) -> Shape | None:
    """Shape of an array made on the spot: jnp.ones((3, 2)), jnp.eye(3)."""
    match = re.fullmatch(r"(?:jnp|np|jax\.numpy|numpy)\.(?:ones|zeros|empty|full)\(\(([\d, ]+)\).*\)", source)
    if match is not None:
        return sizes(match.group(1))
    match = re.fullmatch(r"(?:jnp|np|jax\.numpy|numpy)\.(?:eye|identity)\((\d+)\)", source)
    return (int(match.group(1)),) * 2 if match is not None else None


@rule(
    "JPX0825",
    "core-sizes-differ",
    types=("ValueError", "TypeError"),
    clues=("inconsistent size for core dimension", "The arguments to solve must have shapes"),
)
def core_sizes_differ(failure: Failure) -> Finding | None:
    match = failure.search(
        r"inconsistent size for core dimension '(\w+)': (\d+) vs (\d+) on vectorized function .*signature='([^']+)'"
    )
    solve = failure.search(r"The arguments to solve must have shapes .* got a=(\([\d, ]*\)) and b=(\([\d, ]*\))")
    call = called_with(failure, "solve", "cho_solve", "lu_solve", "solve_triangular", "lstsq")
    if match is None and solve is None:
        return None
    if solve is not None:
        a, b = sizes(solve.group(1)), sizes(solve.group(2))
        if len(a) > 1 and a[-1] != a[-2]:
            return None
        return Finding(
            what=f"The matrix has shape {a} and the right-hand side {b}: their numbers of rows differ.",
            why="A system of n equations needs a matrix of n rows and columns and n right-hand values.",
            fixes=[Fix("Look at both shapes", "print(jnp.shape(A), jnp.shape(b))")],
            facts={"shapes": (a, b)},
        )
    assert match is not None
    letter, n, m, signature = match.groups()
    guess = False
    if signature.startswith(f"({letter},{letter})"):
        shape = None
        if call is not None and call.args:
            shape = shape_of(failure, call.args[0]) or _written_shape(call.args[0])
        if shape is None or len(shape) < 2 or shape[-1] != shape[-2]:
            return None
    arguments = call.args if call is not None else ()
    code = "print(" + ", ".join(f"jnp.shape({a})" for a in (arguments or ("a", "b"))) + ")"
    if call is None and failure.outer_call is not None and failure.outer_call.args:
        code = f"print({', '.join(f'jnp.shape({a})' for a in failure.outer_call.args)})"
    fixes = [Fix("Look at the shapes of the arguments", code)]
    if call is not None and len(arguments) > 1 and int(n) > int(m):
        cut = f"{call.function}({arguments[0]}, {enclosed(arguments[1])}[:{m}])"
        fixes.insert(
            0,
            Fix(f"Use {m} right-hand values, as many as the matrix has rows", failure.rewrite(call.source, cut) or cut),
        )
    which = f" ({', '.join(arguments)})" if arguments else ""
    return Finding(
        what=f"The arguments{which} have {m} and {n} where the function needs one size, called {letter} in its "
        f"signature {signature}.",
        why=f"Each letter of the signature is one size: everywhere {letter} stands, the axis must have the same "
        "length.",
        fixes=fixes,
        facts={"dimension": letter, "sizes": (int(m), int(n)), "signature": signature},
        guess=guess,
    )


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
    name, shapes = match.group(1) or match.group(3), _shapes(match.group(2) or match.group(4))
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
        shapes = _shapes(select.group())
        return Finding(
            what=f"lax.select needs equal shapes, and got {listed([str(s) for s in shapes])}.",
            why="The functions of jax.lax are the bare operations: they do not broadcast. Those of jax.numpy do.",
            fixes=[Fix("Use jnp.where, which broadcasts", f"jnp.where({arguments})")],
            facts={"shapes": tuple(shapes)},
        )
    if match is None:
        return None
    name = match.group(1) or match.group(3)
    counts = sizes(match.group(2)) if match.group(2) else tuple(len(s) for s in _shapes(match.group(4)))
    call = called_with(failure, name)
    code = f"jnp.{_LAX.get(name, name)}(a, b)"
    if call is not None and len(call.args) > 1:
        new = f"jnp.{_LAX.get(name, name)}({', '.join(call.args)})"
        code = failure.rewrite(call.source, new) or new
    return Finding(
        what=f"lax.{name} got arrays with {listed([str(n) for n in sorted(set(counts))])} axes; it needs equal shapes.",
        why="The functions of jax.lax are the bare operations: they do not broadcast. Those of jax.numpy do.",
        fixes=[
            Fix("Use the function of jax.numpy, which broadcasts", code),
            Fix("Or give the smaller array the missing axes first", "b = jnp.broadcast_to(b, a.shape)"),
        ],
        facts={"operation": name, "numbers_of_axes": counts},
    )


@rule(
    "JPX0811",
    "reshape-changes-the-size",
    types=("TypeError", "ValueError"),
    clues=("cannot reshape array of shape", "reshape total size", "unknown axis size with a `-1`", "reshape"),
)
def reshape_changes_the_size(failure: Failure) -> Finding | None:
    match = failure.search(
        r"cannot reshape array of shape (\([\d, ]*\)) \(size (\d+)\) into shape (\([\d, -]*\)) \(size (\d+)\)"
    )
    divide = failure.search(
        r"cannot reshape array of shape (\([\d, ]*\)) \(size (\d+)\) into shape (\([\d, -]*\)) because the product of "
        r"specified axis sizes \((\d+)\) does not evenly divide"
    )
    total = failure.search(
        r"reshape total size must be unchanged, got new_sizes (\([\d, ]*\)) \(of total size (\d+)\) for shape "
        r"(\([\d, ]*\)) \(of total size (\d+)\)"
    )
    lowered = failure.search(r"number of output elements \((\d+)\) doesn't match expected number of elements \((\d+)\)")
    twice = failure.search(r"can only specify one unknown axis size with a `-1` value, got (\([\d, -]*\))")
    call = called_with(failure, "reshape", "ravel", "view")
    x = "x"
    if call is not None:
        holder = call.function.rpartition(".")[0]
        x = call.args[0] if holder in ("jnp", "jax.numpy", "lax", "jax.lax", "np") and call.args else holder or "x"
    why = "reshape only arranges the same numbers anew: the sizes of the new shape must multiply to the old number."
    if twice is not None:
        return Finding(
            what=f"The new shape {twice.group(1)} has -1 more than once.",
            why="-1 stands for the one size that follows from the others, so only one is possible.",
            fixes=[Fix("Give all sizes but one", f"{enclosed(x)}.reshape(-1, {enclosed(x)}.shape[-1])")],
            facts={"new": sizes(twice.group(1))},
        )
    if match is not None:
        old, new = sizes(match.group(1)), sizes(match.group(3))
        have, want = int(match.group(2)), int(match.group(4))
    elif divide is not None:
        old, new = sizes(divide.group(1)), sizes(divide.group(3))
        have, want = int(divide.group(2)), int(divide.group(4))
    elif total is not None:
        old, new = sizes(total.group(3)), sizes(total.group(1))
        have, want = int(total.group(4)), int(total.group(2))
    elif lowered is not None and call is not None:
        old, new = shape_of(failure, x) or (), ()
        have, want = int(lowered.group(2)), int(lowered.group(1))
    else:
        return None
    if divide is not None:
        what = f"An array of shape {old} has {counted(have, 'item')}, which cannot be arranged as {new}: "
        what += f"{have} is not a multiple of {want}."
    else:
        shape, into = (f" of shape {old}" if old else ""), (f"shape {new} needs" if new else "the new shape needs")
        what = f"An array{shape} has {counted(have, 'item')}, and {into} {want}."
    fixes = []
    for axis in reversed(range(len(new))):
        rest = product([n for i, n in enumerate(new) if i != axis and n > 0])
        if -1 not in new and rest and have % rest == 0 and have:
            fitting = tuple(-1 if i == axis else n for i, n in enumerate(new))
            title = f"Let axis {axis} follow from the others (it becomes {have // rest})"
            fixes.append(
                Fix(title, f"{enclosed(x)}.reshape{fitting}" if len(fitting) > 1 else f"{enclosed(x)}.reshape(-1)")
            )
    step = want if divide is not None else None
    if step and have > step:
        fixes.append(
            Fix(
                f"Cut the array to {have - have % step} items, a multiple of {step}",
                f"{enclosed(x)}.ravel()[:{have - have % step}].reshape({', '.join(map(str, new))})",
            )
        )
    elif not step and have > want > 0 and new:
        fixes.append(
            Fix(
                f"Or take only the first {want} items",
                f"{enclosed(x)}.ravel()[:{want}].reshape({', '.join(map(str, new))})",
            )
        )
    if not step and want > have and new and -1 not in new:
        fixes.append(
            Fix(
                f"Fill it up with {counted(want - have, 'zero')}",
                f"jnp.pad({enclosed(x)}.ravel(), (0, {want - have})).reshape({', '.join(map(str, new))})",
            )
        )
    if step and have < step:
        fixes.append(Fix("Let all sizes but the last follow", f"{enclosed(x)}.reshape(1, -1)"))
    fixes.append(Fix("Look at the shape before this line", f"print(jnp.shape({x}))"))
    return Finding(what, why, fixes[:3], {"shape": old, "items": have, "new": new, "needed": want})


@rule("JPX0812", "no-such-axis", types=("ValueError",), clues=("is out of bounds for array of dimension",))
def no_such_axis(failure: Failure) -> Finding | None:
    # numpy raises an AxisError in these words, JAX a ValueError
    match = failure.search(r"^axis (-?\d+) is out of bounds for array of dimension (\d+)")
    if match is None or failure.is_a("AxisError") or not failure.types:
        return None
    if failure.frames and not jax_at_line(failure) and not failure.raised_in("jax/_src/util.py"):
        return None
    if failure.call("vmap", "pmap") and failure.search(r"vmap|pmap"):
        return None
    axis, rank = int(match.group(1)), int(match.group(2))
    if failure.frames and _from_out_axes(failure, axis):
        return None
    call = failure.outer_call
    x = "x"
    if call is not None:
        holder = call.function.rpartition(".")[0]
        x = call.args[0] if call.args and re.match(r"(jnp|jax|lax|np)\b", holder) else holder or "x"
    shape = shape_of(failure, x)
    added = call is not None and call.name in ("expand_dims", "stack")
    have = f"axes 0 to {rank - 1}" if rank > 1 else "axis 0 only" if rank else "no axes at all (it is a single number)"
    result = "the result has" if added else f"`{x}` {shape} has" if shape is not None else "the array has"
    fixes = []
    if call is not None and rank:
        new = re.sub(rf"\baxis\s*=\s*{re.escape(str(axis))}\b", f"axis={rank - 1}", call.source)
        if new == call.source and len(call.args) > 1 and call.args[1] == str(axis):
            new = call.source.replace(f", {axis}", f", {rank - 1}", 1)
        if new != call.source:
            fixes.append(Fix("Name an axis that exists (counted from 0)", failure.rewrite(call.source, new) or new))
            last = new.replace(f"axis={rank - 1}", "axis=-1")
            if last != new and rank > 1:
                fixes.append(
                    Fix("Or count from the end: -1 is always the last axis", failure.rewrite(call.source, last) or last)
                )
    fixes.append(Fix("Look at the shape before this line", f"print(jnp.shape({x}))"))
    return Finding(
        what=f"The code asks for axis {axis}, but {result} {have}.",
        why="Axes are counted from 0, or from the end with -1. Inside vmap the mapped axis is gone, so an array has "
        "one "
        "axis fewer there.",
        fixes=fixes[:3],
        facts={"axis": axis, "dimensions": rank},
        guess=not failure.frames,
    )


@rule("JPX0812", "no-such-axis", types=("IndexError",), clues=("tuple index out of range",))
def no_such_axis_of_a_mean(failure: Failure) -> Finding | None:
    # mean, var and std look the size up before they check the axis
    call = called_with(failure, "mean", "average", "var", "std", "nanmean", "nanvar", "nanstd", "logsumexp", "softmax")
    if call is None or not failure.search(r"^tuple index out of range$"):
        return None
    holder = call.function.rpartition(".")[0]
    of_array = failure.variable(holder) is not None and failure.variables[holder].array
    x = holder if of_array else call.args[0] if call.args else ""
    given = call.keywords.get("axis") or (
        call.args[0 if of_array else 1] if len(call.args) > (0 if of_array else 1) else ""
    )
    shape = shape_of(failure, x)
    if shape is None or not re.fullmatch(r"-?\d+", given) or -len(shape) <= int(given) < len(shape):
        return None
    rank = len(shape)
    fixes = []
    if rank:
        new = re.sub(rf"\b{re.escape(given)}\)$", f"{rank - 1})", call.source)
        fixes.append(Fix("Name an axis that exists (counted from 0)", failure.rewrite(call.source, new) or new))
    fixes.append(Fix("Look at the shape before this line", f"print(jnp.shape({x}))"))
    have = f"axes 0 to {rank - 1}" if rank > 1 else "axis 0 only" if rank else "no axes at all (it is a single number)"
    return Finding(
        what=f"The code asks for axis {given}, but `{x}` {shape} has {have}.",
        why="Axes are counted from 0, or from the end with -1. Inside vmap the mapped axis is gone, so an array has "
        "one "
        "axis fewer there.",
        fixes=fixes,
        facts={"axis": int(given), "dimensions": rank},
    )


def _from_out_axes(failure: Failure, axis: int) -> bool:
    applied = failure.call("vmap", "pmap")
    if applied is None:
        return False
    return bool(re.search(rf"(?<![\d-]){re.escape(str(axis))}(?!\d)", applied.keywords.get("out_axes", "")))


@rule(
    "JPX0813",
    "transpose-names-wrong-axes",
    types=("TypeError", "ValueError"),
    clues=("isn't a permutation of operand dimensions",),
)
def transpose_names_wrong_axes(failure: Failure) -> Finding | None:
    match = failure.search(
        r"transpose permutation isn't a permutation of operand dimensions, got permutation (\([\d, -]*\)) for operand "
        r"shape (\([\d, ]*\))"
    )
    if match is None:
        return None
    axes, shape = sizes(match.group(1)), sizes(match.group(2))
    reverse = tuple(reversed(range(len(shape))))
    return Finding(
        what=f"transpose got the axes {axes} for an array of shape {shape}; it needs each of 0 to {len(shape) - 1} "
        "once.",
        why="The axes say where each old axis goes, so every one must be named exactly once.",
        fixes=[
            Fix("Name every axis once", f"jnp.transpose(x, {reverse})"),
            Fix("To move single axes, and keep the order of the others", "jnp.moveaxis(x, 0, -1)"),
        ],
        facts={"axes": axes, "shape": shape},
    )


@rule(
    "JPX0814",
    "slice-larger-than-the-array",
    types=("TypeError", "ValueError"),
    clues=("slice_sizes must be less", "dynamic_update_slice update", "Length of slice indices", "slice sizes must be"),
)
def slice_larger_than_the_array(failure: Failure) -> Finding | None:
    taken = failure.search(
        r"slice(?:_sizes| sizes) must be less than or equal to operand shape, got slice_sizes (\([\d, ]*\)) for "
        r"operand "
        r"shape (\([\d, ]*\))"
    )
    written = failure.search(
        r"dynamic_update_slice update (?:shape must be smaller than operand shape|must have the same rank as operand), "
        r"got update shape (\([\d, ]*\)) for operand shape (\([\d, ]*\))"
    )
    starts = failure.search(r"Length of slice indices must match number of operand dimensions \((\d+) vs \(?([\d, ]+)")
    if starts is not None:
        count, shape = int(starts.group(1)), sizes(starts.group(2))
        zeros = ", ".join(["start", *["0"] * (len(shape) - 1)])
        return Finding(
            what=f"The slice has {counted(count, 'start index').replace('indexs', 'indices')}, and the array "
                 f"{len(shape)} axes (shape {shape}).",
            why="dynamic_slice and dynamic_update_slice want one start and one size for each axis.",
            fixes=[Fix("Give a start and a size for each axis", f"jax.lax.dynamic_slice(x, ({zeros}), (length, "
                                                                "*x.shape[1:]))"),
                   Fix("Or slice along one axis only", "jax.lax.dynamic_slice_in_dim(x, start, length, axis=0)")],
            facts={"starts": count, "shape": shape},
        )  # fmt: skip
    match = taken or written
    if match is None:
        return None
    part, shape = sizes(match.group(1)), sizes(match.group(2))
    if len(part) != len(shape):
        missing = len(shape) - len(part)
        what = f"The update has shape {part}, with {missing} axes fewer than the array of shape {shape}."
        new = "update.reshape((1,) * (x.ndim - update.ndim) + update.shape)"
        fixes = [Fix("Give the update leading axes of size 1", f"x = jax.lax.dynamic_update_slice(x, {new}, start)")]
    else:
        axis = next((i for i, (p, s) in enumerate(zip(part, shape)) if p > s), 0)
        word = "The slice" if taken is not None else "The update"
        what = f"{word} has {part[axis]} items along axis {axis}, and the array only {shape[axis]} (shape {shape})."
        fit = tuple(min(p, s) for p, s in zip(part, shape))
        if taken is not None:
            call = called_with(failure, "dynamic_slice")
            x, start = call.args[:2] if call is not None and len(call.args) > 2 else ("x", "start")
            fixes = [Fix("Take no more than the array has", f"jax.lax.dynamic_slice({x}, {start}, {fit})")]
        else:
            index = ", ".join(f":{n}" for n in fit)
            fixes = [Fix("Write no more than fits", f"x = jax.lax.dynamic_update_slice(x, update[{index}], start)")]
    return Finding(
        what=what,
        why="A slice must lie inside the array, whatever its start: JAX moves the start so that it does.",
        fixes=fixes,
        facts={"slice": part, "shape": shape},
    )


@rule(
    "JPX0815",
    "convolution-shapes-do-not-fit",
    types=("ValueError", "TypeError"),
    clues=("conv_general_dilated", "convolve() only"),
)
def convolution_shapes_do_not_fit(failure: Failure) -> Finding | None:
    features = failure.search(
        r"conv_general_dilated lhs feature dimension size divided by feature_group_count must equal the rhs input "
        r"feature dimension size, but (\d+) // (\d+) != (\d+)"
    )
    rank = failure.search(
        r"conv_general_dilated lhs and rhs must have the same (?:rank|number of dimensions)[,:]? (?:but )?got (\S+) "
        r"and (\S+)"
    )
    if failure.search(r"^convolve\(\) only support 1-dimensional inputs"):
        return Finding(
            what="jnp.convolve takes arrays of one axis only.",
            why="Like numpy's, it convolves two sequences; images and volumes need a function for several axes.",
            fixes=[
                Fix("Convolve along all axes", "jax.scipy.signal.convolve(x, kernel, mode='same')"),
                Fix("Or convolve each row", "jax.vmap(lambda row: jnp.convolve(row, kernel))(x)"),
            ],
            facts={},
        )
    if features is not None:
        have, groups, want = map(int, features.groups())
        call = called_with(failure, "conv", "conv_general_dilated", "conv_with_general_padding")
        images, kernel = call.args[:2] if call is not None and len(call.args) > 1 else ("images", "kernel")
        known, made = shape_of(failure, images), shape_of(failure, kernel)
        last = None
        if known is None or made is None or (len(known) == len(made) == 4 and known[-1] == made[-2] * groups):
            last = Fix(
                "If the channels come last, say so",
                f"jax.lax.conv_general_dilated({images}, {kernel}, (1, 1), 'SAME', "
                "dimension_numbers=('NHWC', 'HWIO', 'NHWC'))",
            )
        return Finding(
            what=f"The images have {have} channels (in {groups} groups), and the kernel is made for {want}.",
            why="By default images are (batch, channels, height, width) and kernels (out channels, in channels, "
                "height, "
            "width): the kernel's axis 1 must equal the images' axis 1.",
            fixes=[
                *([last] if last is not None else []),
                Fix("Look at both shapes", f"print({images}.shape, {kernel}.shape)"),
            ],
            facts={"channels": have, "groups": groups, "kernel_channels": want},
        )  # fmt: skip
    if rank is None:
        return None
    return Finding(
        what=f"The images have {rank.group(1)} axes and the kernel {rank.group(2)}; both need the same number.",
        why="Images are (batch, channels, height, width) and kernels (out channels, in channels, height, width).",
        fixes=[Fix("Give the missing axes size 1", "kernel = kernel[None, None]")],
        facts={},
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
    "JPX0819",
    "truth-of-a-whole-array",
    types=("ValueError",),
    clues=("The truth value of an a", "The truth value of an empty array"),
)
def truth_of_a_whole_array(failure: Failure) -> Finding | None:
    # numpy's words too: the array must be JAX's
    match = failure.search(r"^The truth value of an (array with more than one element|empty array) is ambiguous")
    if match is None or not failure.frames or not jax_at_line(failure):
        return None
    if any(isinstance(node, ast.Subscript | ast.Slice) for node in nodes(failure)[:3]):
        return None  # an array as a bound of a slice: another mistake in the same words
    segment = (failure.user.segment or failure.user.source or "") if failure.user is not None else ""
    condition = segment if len(segment) < 80 and "\n" not in segment else "condition"
    shape = shape_of(failure, condition)
    if shape is None:
        arrays = [n.id for n in nodes(failure) if isinstance(n, ast.Name) and shape_of(failure, n.id)]
        shape = shape_of(failure, arrays[0]) if arrays else None
    of = f", an array of shape {shape}," if shape else ""
    joined = any(isinstance(n, ast.BoolOp) for n in nodes(failure))
    fixes = []
    tested = array_condition(condition)
    joined_here = tested != condition
    if re.search(r"\b(and|or|not)\b", failure.user.statement or "" if failure.user is not None else "") or joined:
        fixes.append(
            Fix(
                "Combine conditions element by element with & | ~, in parentheses",
                array_condition(condition) if joined_here else "jnp.logical_and(a, b)  # or: (a) & (b)",
            )
        )
    fixes += [
        Fix("Choose element by element", f"jnp.where({tested}, 1.0, 0.0)  # in place of 1.0 and 0.0: your two values"),
        Fix(
            "Or ask one question about the whole array (jnp.any: one is enough); outside jit only",
            failure.rewrite(condition, f"jnp.all({tested})") or f"jnp.all({tested})",
        ),
    ]
    what = f"Python asks whether `{condition}`{of} is true, and it has one answer for each element."
    if match.group(1) == "empty array":
        what = f"Python asks whether `{condition}` is true, and it is an empty array."
        fixes = [Fix("Ask for its size", f"jnp.size({condition}) > 0")]
    return Finding(
        what=what,
        why="Python's if, while, and, or, not need a single True or False.",
        fixes=fixes[:3],
        facts={"condition": condition, "shape": shape},
    )


@rule(
    "JPX0820",
    "array-is-no-single-number",
    types=("TypeError", "ValueError"),
    clues=("scalar arrays can be converted", "an array of size 1 to a Python scalar", "length-1 arrays"),
)
def array_is_no_single_number(failure: Failure) -> Finding | None:
    ours = failure.search(r"^Only scalar arrays can be converted to Python scalars(?:; got arr\.ndim=(\d+))?")
    index = failure.search(r"^Only integer scalar arrays can be converted to a scalar index")
    size = failure.search(r"^can only convert an array of size 1 to a Python scalar")
    if size is not None and not (failure.frames and jax_at_line(failure)):
        return None
    if not (ours or index or size):
        return None
    call = called_with(failure, "float", "int", "complex", "item", "range")
    if index is not None:
        texts = [v for v in failure.variables.values() if v.type == "str" and v.name.isidentifier()]
        line = operands(failure, "*")
        if line is not None and (texts or any(s[:1] in "'\"" for s in (line[0], line[2]))):
            return None
    x = "x"
    if call is not None:
        x = call.args[0] if call.args and call.name != "item" else call.function.rpartition(".")[0] or "x"
    variable = failure.variable(x)
    is_what = (
        f"`{x}` ({variable})"
        if variable is not None and variable.array
        else f"`{x}`"
        if call is not None
        else "the array"
    )
    if index is not None:
        what = f"A whole number is needed, and {is_what} is not one: it has several items, or is no integer."
        fixes = [
            Fix("Take one item, as a Python number", f"n = int({x}[0])"),
            Fix("Or round a single float", f"n = int({x})"),
        ]
        subscript = next((n for n in nodes(failure) if isinstance(n, ast.Subscript)), None)
        if call is None and subscript is not None:
            holder, by = ast.unparse(subscript.value), ast.unparse(subscript.slice)
            what = f"`{holder}` is a Python list or tuple, and `{by}` is no single whole number to index it with."
            held = failure.variable(by)
            whole = f"jnp.asarray({by}).astype(int)"
            by = by if held is not None and (held.dtype or "").startswith(("int", "uint")) else whole
            fixes = [Fix("Make an array of the list, which takes arrays as index", f"jnp.array({holder})[{by}]")]
        elif call is not None and call.name == "range":
            single = (variable is not None and variable.shape == ()) or re.match(r"(?:jnp|np)\.(?:float|int)\d*\(", x)
            fixes = [
                Fix("Count up to a Python number", f"range(int({x}))" if single else f"range(len({x}))"),
                Fix("Or loop over its items", f"for item in {x}:\n    print(item)"),
            ]
    else:
        rank = (
            f" (it has {counted(int(ours.group(1)), 'axis').replace('axiss', 'axes')})"
            if ours is not None and ours.group(1)
            else ""
        )
        convert = call.name if call is not None and call.name != "item" else "float"
        what = f"A single Python number is wanted, and {is_what} is no single number{rank}."
        fixes = [
            Fix("Take one item first", f"{convert}({enclosed(x)}.ravel()[0])"),
            Fix("Or make a list of Python numbers of them all", f"{enclosed(x)}.tolist()"),
            Fix("To change the kind of all numbers, use astype", f"{enclosed(x)}.astype(float)"),
        ]
    return Finding(
        what=what,
        why="Only an array without axes (shape ()) is a single number; shape (1,) is an array that holds one.",
        fixes=fixes,
        facts={"array": x},
    )


@rule(
    "JPX0821",
    "nothing-to-reduce",
    types=("ValueError",),
    clues=("zero-size array to reduction operation", "of an empty sequence"),
)
def nothing_to_reduce(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^zero-size array to reduction operation (\w+) which has no identity|^attempt to get (\w+) of an empty "
        r"sequence"
    )
    if match is None or not failure.frames or not jax_at_line(failure):
        return None
    name = match.group(1) or match.group(2)
    call = called_with(failure, name, "amax", "amin")
    x = "x"
    if call is not None:
        holder = call.function.rpartition(".")[0]
        x = call.args[0] if call.args and re.match(r"(jnp|jax|lax)\b", holder) else holder or "x"
    shape = shape_of(failure, x)
    of = f" of shape {shape}" if shape is not None else ""
    asked = call.source if call is not None else f"jnp.{name}({x})"
    fixes = [Fix("Ask first whether there is anything", f"result = {asked} if {enclosed(x)}.size else None")]
    if name in ("max", "min"):
        start = "-jnp.inf" if name == "max" else "jnp.inf"
        fixes.insert(0, Fix("Say what the result is if there is nothing", f"jnp.{name}({x}, initial={start})"))
    return Finding(
        what=f"{name} got an array{of} without items, and has nothing to answer.",
        why="The largest, the smallest and their positions exist only if there is at least one item.",
        fixes=fixes,
        facts={"operation": name, "shape": shape},
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


# What single functions say about the shapes of their arguments: (pattern, what is wrong, title, code).
# {0}, {1} are the groups of the pattern, {x} and {y} the first two arguments at the user's line.
_NEEDS = (
    (
        r"Input 0 to (\w+) must have rank at least 2, but got shape=(\([\d, ]*\))",
        "{0} needs a matrix, and `{x}` has shape {1}.",
        "Make a matrix of one column of it",
        "{x} = {x}[:, None]",
    ),
    (
        r"^Leading dimensions of input arrays must match",
        "lstsq needs as many right-hand values as the matrix has rows: `{x}` and `{y}` have different lengths.",
        "Use as many rows of both",
        "n = min(len({x}), len({y}))\nx = jnp.linalg.lstsq({x}[:n], {y}[:n])[0]",
    ),
    (
        r"^Dimension must be (?:either 2 or )?3 for cross product",
        "A cross product is of vectors with 3 components, and `{x}` has another number along its last axis.",
        "Take the first three components",
        "jnp.cross({x}[..., :3], {y}[..., :3])",
    ),
    (
        r"^Number of tensordot axes \(axes (\d+)\) exceeds input ranks \((\([\d, ]*\))",
        "tensordot is to sum over {0} axes, and an argument has shape {1}.",
        "Sum over one axis",
        "jnp.tensordot({x}, {y}, axes=1)",
    ),
    (
        r"^xp and fp must be one-dimensional arrays of equal size",
        "interp needs one value for each of its points: the second and third argument have different lengths.",
        "Use as many of both",
        "n = min(len(xp), len(fp))\njnp.interp({x}, xp[:n], fp[:n])",
    ),
    (
        r"^expected x and y to have same length",
        "polyfit needs one y for each x: `{x}` and `{y}` have different lengths.",
        "Use as many of both",
        "n = min(len({x}), len({y}))\njnp.polyfit({x}[:n], {y}[:n], 1)",
    ),
    (
        r"^indices and arr must have the same number of dimensions; (\d+) vs\. (\d+)",
        "take_along_axis needs indices with as many axes as the array: they have {0} and {1}.",
        "Give the indices the missing last axis",
        "jnp.take_along_axis({x}, {y}[..., None], axis=-1)",
    ),
    (
        r"^jnp\.pad: pad_width with nd=(\d+) has unsupported shape (\([\d, ]*\))",
        "pad needs one pair (before, after) for each of the {0} axes; pad_width has shape {1}.",
        "Give one pair for each axis",
        "jnp.pad({x}, [(1, 1)] * {x}.ndim)",
    ),
    (
        r"^broadcast_in_dim operand dimension sizes must either be 1, or be equal .* got operand of shape (\([\d, "
        r"]*\)), "
        r"target broadcast shape (\([\d, ]*\))",
        "broadcast_in_dim cannot stretch an array of shape {0} to shape {1} along the axes named.",
        "Name, for each axis of the array, the axis of the result that has its size",
        "jnp.broadcast_to({x}, shape)  # aligns the last axes",
    ),
    (
        r"^Axis must be specified when shapes of a and weights differ",
        "average got weights of another shape than the array, and no axis for them.",
        "Say along which axis the weights run",
        "jnp.average({x}, axis=0, weights=weights)",
    ),
    (
        r"^operands could not be broadcast together with remapped shapes \[original->remapped\]: (\([\d, ]*\)) +and "
        r"requested "
        r"shape (\([\d, ]*\))",
        "repeat needs one count for each item: the counts have shape {0}, the items {1}.",
        "Give one count for all items, or one for each",
        "jnp.repeat({x}, 2)",
    ),
)


@rule(
    "JPX0826",
    "function-needs-other-shapes",
    types=("ValueError", "TypeError"),
    clues=(
        "must have rank at least 2",
        "Leading dimensions of input arrays",
        "for cross product",
        "tensordot axes",
        "one-dimensional arrays of equal size",
        "expected x and y to have same length",
        "indices and arr must have",
        "jnp.pad: pad_width",
        "broadcast_in_dim operand dimension",
        "Axis must be specified when",
        "with remapped shapes",
    ),
)
def function_needs_other_shapes(failure: Failure) -> Finding | None:
    for pattern, what, title, code in _NEEDS:
        match = failure.search(pattern)
        if match is None:
            continue
        # numpy prints some of the same words
        if not re.search(r"rank at least 2|tensordot|jnp\.pad|broadcast_in_dim", pattern) and not jax_at_line(failure):
            return None
        call = failure.outer_call
        given = call.args if call is not None else ()
        count = max(1, len(given))
        names = {"x": enclosed(given[0]) if given else "x", "y": enclosed(given[1]) if len(given) > 1 else "y"}
        if code.startswith("{x} =") and not names["x"].isidentifier():
            names["x"] = "x"
        return Finding(
            what=what.format(*match.groups(), **names),
            why="The function goes through its arguments in step, or along axes that must exist.",
            fixes=[
                Fix(title, code.format(*match.groups(), **names)),
                Fix(
                    "Look at the shapes",
                    f"print({', '.join(f'jnp.shape({n})' for n in list(names.values())[:count])})",
                ),
            ],
            facts={"function": call.name if call is not None else None, "shapes": match.groups()},
        )
    return None
