"""Arrays where one value is needed: truth, numbers, reductions of nothing."""

from __future__ import annotations

import ast
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted
from ._lines import called_with, enclosed, jax_at_line, nodes, operands, rewritten, shape_of
from .tracers import array_condition


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
    compared = _compared(failure)
    if compared is not None:
        return compared
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
                array_condition(_whole_condition(failure, condition))
                if joined_here or _whole_condition(failure, condition) != condition
                else "jnp.logical_and(a, b)  # or: (a) & (b)",
            )
        )
    whole = _whole_condition(failure, condition)
    fixes += [
        Fix("Choose element by element", f"jnp.where({tested}, 1.0, 0.0)  # in place of 1.0 and 0.0: your two values"),
        Fix(
            "Or ask one question about the whole array (jnp.any: one is enough); outside jit only",
            failure.rewrite(whole, f"jnp.all({array_condition(whole)})") or f"jnp.all({tested})",
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


def _whole_condition(failure: Failure, part: str) -> str:
    """The `and`s and `or`s around the part that failed."""
    tree, source = parse_fragment(failure.user.statement or "") if failure.user is not None else (None, "")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.BoolOp) and part in (text := ast.get_source_segment(source, node) or ""):
            return text
    return part


def _compared(failure: Failure) -> Finding | None:
    """Arrays that sorted, max, min, list.index or `in` compare: sorted(arrays), arrays.index(x)."""
    call = failure.outer_call
    test = next((n for n in nodes(failure)[:3] if isinstance(n, ast.Compare)), None)
    within = test if test is not None and isinstance(test.ops[0], ast.In | ast.NotIn) and len(test.ops) == 1 else None
    container_ = failure.variable(ast.unparse(within.comparators[0])) if within is not None else None
    fixes: list[Fix]
    if call is not None and call.source == (failure.user.segment if failure.user is not None else None) and call.args:
        if call.function in ("sorted", "max", "min"):
            shown = f"{call.function} compares arrays with each other"
            new = call.changed(key="lambda a: float(jnp.sum(a))")
            fixes = [
                Fix("Say by which number they are compared, here their sums", rewritten(failure, call.source, new))
            ]
            if call.function in ("max", "min") and len(call.args) > 1:
                name = {"max": "maximum", "min": "minimum"}[call.function]
                code = f"jnp.{name}({', '.join(call.args[:2])})"
                fixes.insert(
                    0,
                    Fix(
                        "Take the larger one element by element"
                        if name == "maximum"
                        else "Take the smaller one element by element",
                        rewritten(failure, call.source, code),
                    ),
                )
        elif call.name in ("index", "remove", "count") and "." in call.function:
            holder = call.function.rpartition(".")[0]
            shown = f"{holder}.{call.name} compares the array with each item of {holder}"
            code = f"next(i for i, a in enumerate({holder}) if jnp.array_equal(a, {call.args[0]}))"
            fixes = [Fix("Ask for each item whether it is equal as a whole", code)]
        else:
            return None
    elif within is not None and container_ is not None and container_.type in ("list", "tuple"):
        item, container = ast.unparse(within.left), ast.unparse(within.comparators[0])
        shown = f"`{item} in {container}` compares arrays"
        code = f"any(jnp.array_equal({item}, a) for a in {container})"
        fixes = [Fix("Ask for each item whether it is equal as a whole", code)]
    else:
        return None
    return Finding(
        what=f"{shown}, and a comparison of arrays has one answer for each element.",
        why="Python needs a single True or False to order or to find things.",
        fixes=fixes,
        facts={"shape": None},
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
