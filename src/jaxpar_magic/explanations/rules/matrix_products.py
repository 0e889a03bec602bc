"""Matrix products and einsum: the sizes that are summed over."""

from __future__ import annotations

import itertools
import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, counted, listed, sizes
from ._lines import Shape, broadcast_together, called_with, enclosed, operands, rewritten, shape_of


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
    if broadcast_together(a, b):
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
            lacking = [max(len(t) - len(s), 0) if s is not None else 0 for t, s in zip(terms, shapes)]
            changed = [f"{enclosed(a)}[{', '.join(['None'] * n)}]" if n else a for a, n in zip(arrays, lacking)]
            new = f"{call.function}({call.args[0]}, {', '.join(changed)})"
            title = f"Give the array{'s' * (sum(map(bool, lacking)) > 1)} the missing leading axes"
            return [Fix(title, rewritten(failure, call.source, new))]
        written = [("..." + t if i == position else t) for i, t in enumerate(terms)]
        head = result.replace("->", "->...") if result else ""
        new = f"{call.function}('{','.join(written)}{head}', {', '.join(arrays)})"
        return [Fix("Let ... stand for the further leading axes", rewritten(failure, call.source, new))]
    if len(known) == len(terms) and all(len(t) == len(s) <= 4 for t, s in zip(terms, known)):
        for number, term in enumerate(terms):
            for order in itertools.permutations(term):
                tried = [*terms[:number], "".join(order), *terms[number + 1 :]]
                pairs = [(letter, n) for t, s in zip(tried, known) for letter, n in zip(t, s)]
                if len(set(pairs)) == len({letter for letter, _ in pairs}):
                    new = f"{call.function}('{','.join(tried)}{result}', {', '.join(arrays)})"
                    title = f"Name the axes of `{arrays[number]}` in the order that fits its shape"
                    return [Fix(title, rewritten(failure, call.source, new))]
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
    return [Fix("If only the first items belong together, cut the longer array", rewritten(failure, call.source, new))]
