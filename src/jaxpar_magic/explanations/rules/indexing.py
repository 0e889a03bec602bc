"""Indices that a JAX array does not take."""

from __future__ import annotations

import ast
import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, sizes
from ._lines import enclosed, jax_at_line, nodes, rewritten, shape_of


def _subscript(failure: Failure) -> tuple[str, str, ast.Subscript] | None:
    """(array, index, node) of the failing `x[index]`; "x" also for x.at[index]."""
    for node in nodes(failure):
        if isinstance(node, ast.Subscript):
            holder = node.value
            if isinstance(holder, ast.Attribute) and holder.attr == "at":
                holder = holder.value
            index = ast.unparse(node.slice)
            if isinstance(node.slice, ast.Tuple) and index.startswith("("):
                index = index[1:-1]
            return ast.unparse(holder), index, node
    return None


def _rewritten(failure: Failure, node: ast.Subscript, index: str) -> str:
    new = f"{ast.unparse(node.value)}[{index}]"
    return rewritten(failure, ast.unparse(node), new)


@rule(
    "JPX0851",
    "list-as-index",
    types=("TypeError",),
    clues=("non-tuple sequence for multidimensional indexing",),
)
def list_as_index(failure: Failure) -> Finding | None:
    if not failure.search(
        r"Using a non-tuple sequence for multidimensional indexing is not allowed; use `arr\[array\(seq\)\]`"
    ):
        return None
    place = _subscript(failure)
    fits = True
    if place is not None:
        variable, items = failure.variable(place[0]), place[1].count(",") + 1
        fits = variable is None or variable.shape is None or items <= len(variable.shape)
    if place is None:
        what, code, code2 = "A Python list was used as an index.", "x[jnp.array(indices)]", "x[tuple(indices)]"
    else:
        x, index, node = place
        what = f"`{x}` is indexed with the Python list `{index}`, which JAX does not take."
        code, code2 = _rewritten(failure, node, f"jnp.array({index})"), _rewritten(failure, node, f"tuple({index})")
    return Finding(
        what=what,
        why="numpy turns a list into an array without a word. Under jit that would be slow, since each element of "
        "the list "
        "becomes an input of its own; so JAX wants it said.",
        fixes=[
            Fix("Make an array of it: one item for each number in the list", code),
            *([Fix("Or, if the list holds one index for each axis, a tuple", code2)] if fits else []),
        ],
        facts={"index": place[1] if place is not None else None},
    )


@rule("JPX0852", "too-many-indices", types=("IndexError",), clues=("oo many indices", "oo many boolean indices"))
def too_many_indices(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Too many indices: array is (\d+)-dimensional, but (\d+) were indexed"
        r"|Too many indices: (\d+)-dimensional array indexed with (\d+) regular ind"
        r"|Too many indices for array: (\d+) non-None/Ellipsis indices for dim (\d+)"
    )
    mask = failure.search(
        r"too many boolean indices at index (\d+): got mask of shape (\([\d, ]*\)), but only (\d+) dimensions remain"
    )
    place = _subscript(failure)
    if match is not None:
        numbers = [int(g) for g in match.groups() if g is not None]
        rank, count = numbers if match.group(5) is None else numbers[::-1]
    elif mask is not None:
        rank, count = int(mask.group(3)), len(sizes(mask.group(2)))
    else:
        return None
    x, index, node = place if place is not None else ("x", "i, j", None)
    shape = shape_of(failure, x)
    name = f"`{x}`" if place is not None else "the array"
    has = f" {shape} has" if shape is not None else " has"
    axes = counted(rank, "axis").replace("axiss", "axes") if rank else "no axes (it is a single number)"
    mapped = failure.call("vmap", "pmap", "shard_map")
    fixes = []
    if node is not None:
        parts = [ast.unparse(e) for e in node.slice.elts] if isinstance(node.slice, ast.Tuple) else [index]
        if rank and len(parts) > rank:
            first = _rewritten(failure, node, ", ".join(parts[-rank:]))
            if mapped is not None:
                fixes.append(Fix(f"Leave out the index of the axis that {mapped.name} took away", first))
            else:
                fixes.append(
                    Fix(
                        f"Give {counted(rank, 'index').replace('indexs', 'indices')}",
                        _rewritten(failure, node, ", ".join(parts[:rank])),
                    )
                )
        elif not rank:
            fixes.append(Fix("Use the number itself", rewritten(failure, ast.unparse(node), x)))
    fixes.append(Fix("Look at the shape before this line", f"print(jnp.shape({x}))"))
    why = "An array takes at most one index for each of its axes."
    if mapped is not None:
        why += f" Inside {mapped.name} the function sees one item at a time: the mapped axis is gone."
    else:
        why += " Inside vmap an array has one axis fewer than outside."
    return Finding(
        what=f"{name}{has} {axes} here, and `{index}` gives {counted(count, 'index').replace('indexs', 'indices')}."
        if place is not None
        else f"The array has {axes} here, and got {counted(count, 'index').replace('indexs', 'indices')}.",
        why=why,
        fixes=fixes,
        facts={"dimensions": rank, "indices": count, "shape": shape},
    )


@rule("JPX0853", "string-as-index", types=("TypeError",), clues=("JAX does not support string indexing",))
def string_as_index(failure: Failure) -> Finding | None:
    match = failure.search(r"JAX does not support string indexing; got idx=(.*)")
    if match is None:
        return None
    key = re.search(r"'([^']*)'", match.group(1))
    column = key.group(1) if key else "name"
    place = _subscript(failure)
    x = place[0] if place is not None else "data"
    name = x if x.isidentifier() else "data"
    return Finding(
        what=f"`{x}` is a JAX array, and was indexed with the string {column!r}.",
        why="JAX arrays have no named columns: they hold numbers of one dtype. Named columns are a dict of arrays.",
        fixes=[
            Fix(
                "Keep the columns in a dict (jit, vmap and grad take dicts)",
                f'names = ["{column}", "other"]  # one name for each column\n'
                f"{name} = {{name: {x}[:, i] for i, name in enumerate(names)}}\n{name}[{column!r}]",
            ),
            Fix("Or use the number of the column", f"{x}[:, 0]"),
        ],
        facts={"key": column, "array": x},
    )


@rule(
    "JPX0854",
    "index-is-no-whole-number",
    types=("TypeError", "ValueError", "IndexError"),
    clues=("Indexer must have integer", "cannot be interpreted as an integer", "indices must have an integer type"),
)
def index_is_no_whole_number(failure: Failure) -> Finding | None:
    match = failure.search(r"Indexer must have integer or boolean type, got indexer with type (\w+)")
    take = failure.search(r"^indices must have an integer type")
    in_slice = failure.search(r"^'float' object cannot be interpreted as an integer")
    place = _subscript(failure)
    if in_slice is not None:
        # Python's own words: only where a JAX array is sliced
        if place is None or not isinstance(place[2].slice, ast.Slice | ast.Tuple) or not jax_at_line(failure):
            return None
        variable = failure.variable(place[0])
        if variable is None or variable.type not in ("ArrayImpl", "tracer"):
            return None
    elif match is None and take is None:
        return None
    x, index, node = place if place is not None else ("x", "index", None)
    kind = match.group(1) if match is not None else "float"
    call = failure.call("take")
    if take is not None and call is not None and len(call.args) > 1:
        x, index = call.args[:2]
        new = f"{call.function}({x}, jnp.asarray({index}).astype(int))"
        code = rewritten(failure, call.source, new)
    elif node is not None and isinstance(node.slice, ast.Slice):
        bounds = [node.slice.lower, node.slice.upper, node.slice.step]
        parts = [
            ""
            if b is None
            else ast.unparse(b)
            if isinstance(b, ast.Constant) and isinstance(b.value, int)
            else f"int({ast.unparse(b)})"
            for b in bounds
        ]
        code = _rewritten(failure, node, ":".join(parts[: 3 if node.slice.step is not None else 2]))
    elif node is not None:
        variable = failure.variable(index)
        single = variable is not None and variable.type in ("float", "int")
        single = single or re.fullmatch(r"[\d.e+-]+", index) is not None
        code = _rewritten(failure, node, f"int({index})" if single else f"{enclosed(index)}.astype(int)")
    else:
        code = "x[index.astype(int)]"
    return Finding(
        what=f"`{x}` is indexed with `{index}`, which is of type {kind}, not of whole numbers."
        if place is not None or take is not None
        else f"An array is indexed with numbers of type {kind}, not with whole numbers.",
        why="Positions are whole numbers. a / b gives floats even where it comes out even; a // b gives whole numbers.",
        fixes=[Fix("Make whole numbers of the index (cuts the fraction off)", code)],
        facts={"dtype": kind, "index": index},
    )


@rule(
    "JPX0855",
    "mask-of-another-shape",
    types=("IndexError",),
    clues=("boolean index did not match shape of indexed array",),
)
def mask_of_another_shape(failure: Failure) -> Finding | None:
    match = failure.search(
        r"boolean index did not match shape of indexed array in index (\d+): got (\([\d, ]*\)), expected [\[(]([\d, "
        r"]*)[\])]"
    )
    if match is None:
        return None
    got, want = sizes(match.group(2)), sizes(match.group(3))
    place = _subscript(failure)
    x, index, node = place if place is not None else ("x", "mask", None)
    fixes = []
    if len(got) == 1 and node is not None and len(got) == len(want):
        if got[0] > want[0]:
            fixes.append(
                Fix(
                    f"Use the first {want[0]} values of the mask",
                    _rewritten(failure, node, f"{enclosed(index)}[:{want[0]}]"),
                )
            )
        else:
            new = f"{x}[:{got[0]}][{index}]"
            if isinstance(node.value, ast.Attribute) and node.value.attr == "at":
                new = f"{x}.at[jnp.nonzero({index})[0]]"
            title = f"Let the mask speak of the first {got[0]} items of the array"
            fixes.append(Fix(title, rewritten(failure, ast.unparse(node), new)))
    shape = shape_of(failure, x)
    if shape is not None and node is not None and len(got) == 1 and got[0] in shape[1:]:
        axis = shape.index(got[0], 1)
        new = ", ".join([":"] * axis + [index])
        fixes.insert(
            0, Fix(f"Apply the mask along axis {axis}, which has {got[0]} items", _rewritten(failure, node, new))
        )
    fixes.append(Fix("Look at both shapes", f"print(jnp.shape({x}), jnp.shape({index}))"))
    return Finding(
        what=f"The mask `{index}` has shape {got}, and the axes of `{x}` that it stands for have {want}."
        if place is not None
        else f"A mask has shape {got}, and the axes that it stands for have {want}.",
        why="A mask has one True or False for each item, so it must be as long as the axis that it selects from.",
        fixes=fixes[:3],
        facts={"mask": got, "axes": want},
    )


@rule(
    "JPX0856",
    "not-an-index",
    types=("IndexError", "TypeError"),
    clues=("are valid indices. Got", "Indexing mode not yet supported", "single ellipsis", "Multiple ellipses"),
)
def not_an_index(failure: Failure) -> Finding | None:
    ellipsis = failure.search(r"an index can only have a single ellipsis|Multiple ellipses \(\.\.\.\) not supported")
    match = failure.search(
        r"integer or boolean arrays are valid indices\. Got (.*)"
        r"|Indexing mode not yet supported\. Got unsupported indexer at position \d+: (.*)"
    )
    place = _subscript(failure)
    if ellipsis is not None and (not failure.frames or jax_at_line(failure)):
        index = ", ".join(place[1].replace("...", ":", 1).rsplit(", ")) if place is not None else "..., 0"
        return Finding(
            what="The index has ... more than once.",
            why="... stands for all axes that are not named; with two of them it is not clear which are meant.",
            fixes=[Fix("Write : for single whole axes", f"{place[0]}[{index}]" if place is not None else "x[..., 0]")],
            facts={},
        )
    if match is None:
        return None
    got = (match.group(1) or match.group(2)).strip()
    x, index, node = place if place is not None else ("x", "index", None)
    if re.match(r"\{|(?:dict_|<generator|range\()", got):
        new = f"jnp.array(list({index}))" if not got.startswith("{") else f"jnp.array(sorted({index}))"
        code = _rewritten(failure, node, new) if node is not None else f"x[{new}]"
        fixes = [Fix("Make an array of the numbers in it", code)]
    else:
        fixes = [Fix("Give a whole number, a slice, or an array of whole numbers", f"{x}[0]")]
    return Finding(
        what=f"`{x}` cannot be indexed with {got[:80]}.",
        why="An index is a whole number, a slice, ..., None, or an array of whole numbers or of True and False.",
        fixes=fixes,
        facts={"index": got[:80]},
    )
