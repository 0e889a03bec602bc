"""Axes and sizes of one array: reshape, squeeze, transpose, slices, axes that are not there."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed, product, sizes
from ._lines import array_of, called_with, enclosed, jax_at_line, rewritten, shape_of, written_shape


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
        x = array_of(call)
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
        x = array_of(call)
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
        x = call.args[2] if call.name == "apply_along_axis" and len(call.args) > 2 else array_of(call)
    shape = shape_of(failure, x)
    added = call is not None and call.name in ("expand_dims", "stack")
    result = "the result has" if added else f"`{x}` {shape} has" if shape is not None else "the array has"
    fixes = []
    if call is not None and rank:
        new = re.sub(rf"\baxis\s*=\s*{re.escape(str(axis))}\b", f"axis={rank - 1}", call.source)
        if new == call.source and len(call.args) > 1 and call.args[1] == str(axis):
            new = call.source.replace(f", {axis}", f", {rank - 1}", 1)
        if new != call.source:
            fixes.append(Fix("Name an axis that exists (counted from 0)", rewritten(failure, call.source, new)))
            last = new.replace(f"axis={rank - 1}", "axis=-1")
            if last != new and rank > 1:
                fixes.append(
                    Fix("Or count from the end: -1 is always the last axis", rewritten(failure, call.source, last))
                )
    fixes.append(Fix("Look at the shape before this line", f"print(jnp.shape({x}))"))
    return Finding(
        what=f"The code asks for axis {axis}, but {result} {_axes(rank)}.",
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
    call = called_with(
        failure,
        *("mean", "average", "var", "std", "nanmean", "nanvar", "nanstd", "logsumexp", "softmax", "argmax", "argmin"),
    )
    if call is None or not failure.search(r"^tuple index out of range$"):
        return None
    x = array_of(call)
    of_array = not call.args or x != call.args[0]
    given = call.keywords.get("axis") or (
        call.args[0 if of_array else 1] if len(call.args) > (0 if of_array else 1) else ""
    )
    shape = shape_of(failure, x) or written_shape(x)
    if shape is None or not re.fullmatch(r"-?\d+", given) or -len(shape) <= int(given) < len(shape):
        return None
    rank = len(shape)
    fixes = []
    if rank:
        new = re.sub(rf"\b{re.escape(given)}\)$", f"{rank - 1})", call.source)
        fixes.append(Fix("Name an axis that exists (counted from 0)", rewritten(failure, call.source, new)))
    fixes.append(Fix("Look at the shape before this line", f"print(jnp.shape({x}))"))
    return Finding(
        what=f"The code asks for axis {given}, but `{x}` {shape} has {_axes(rank)}.",
        why="Axes are counted from 0, or from the end with -1. Inside vmap the mapped axis is gone, so an array has "
        "one "
        "axis fewer there.",
        fixes=fixes,
        facts={"axis": int(given), "dimensions": rank},
    )


_OF_TWO = {"max": "maximum", "min": "minimum", "amax": "maximum", "amin": "minimum", "sum": "add", "prod": "multiply"}


@rule("JPX0812", "no-such-axis", types=("TypeError",), clues=("object is not iterable",))
def number_in_place_of_an_axis(failure: Failure) -> Finding | None:
    call = called_with(failure, *_OF_TWO, "mean", "any", "all")
    if (
        call is None
        or len(call.args) != 2
        or not failure.from_jax
        or not re.match(r"(?:jnp|jax\.numpy)\.", call.function)
    ):
        return None
    axis = call.args[1]
    variable = failure.variable(axis)
    number = re.fullmatch(r"-?\d*\.\d*(?:e-?\d+)?", axis) or (variable is not None and variable.type == "float")
    if not failure.search(r"^'float' object is not iterable$") or not number:
        return None
    root = call.function.rpartition(".")[0]
    two = _OF_TWO.get(call.name)
    fixes = [Fix("Reduce all items of an array of the two", f"{call.function}(jnp.array([{call.args[0]}, {axis}]))")]
    if two is not None:
        code = rewritten(failure, call.source, f"{root}.{two}({call.args[0]}, {axis})")
        fixes.insert(0, Fix("Use the function of two values", code))
    return Finding(
        what=f"The second argument of {call.function} is the axis, and `{axis}` is a float.",
        why=f"{call.function} reduces one array along an axis. It does not take several values, as Python's "
        f"{call.name} does.",
        fixes=fixes,
        facts={"axis": axis, "function": call.function},
    )


def _axes(rank: int) -> str:
    return f"axes 0 to {rank - 1}" if rank > 1 else "axis 0 only" if rank else "no axes at all (it is a single number)"


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
    call = called_with(failure, "transpose")
    x = array_of(call) if call is not None else "x"
    swapped = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    ways = [("Name every axis once", reverse)]
    if axes == (1, 0) and len(shape) > 2:
        ways.insert(0, ("Swap the last two axes, of each matrix", swapped))
    fixes = []
    for title, order in ways:
        code = f"jnp.transpose({x}, {order})"
        fixes.append(Fix(title, rewritten(failure, call.source, code) if call is not None else code))
    return Finding(
        what=f"transpose got the axes {axes} for an array of shape {shape}; it needs each of 0 to {len(shape) - 1} "
        "once.",
        why="The axes say where each old axis goes, so every one must be named exactly once.",
        fixes=[*fixes, Fix("To move single axes, and keep the order of the others", f"jnp.moveaxis({x}, 0, -1)")],
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
        whole = f"jax.lax.dynamic_slice(x, ({zeros}), (length, *x.shape[1:]))"
        call = called_with(failure, "dynamic_slice")
        given = call.args if call is not None and len(call.args) == 3 else ()
        if call is not None and given and given[1].startswith("(") and count < len(shape):
            start = ", ".join(
                [*filter(None, map(str.strip, given[1].strip("()").split(","))), *["0"] * (len(shape) - count)]
            )
            whole = rewritten(failure, call.source, f"{call.function}({given[0]}, ({start}), {given[2]})")
        return Finding(
            what=f"The slice has {counted(count, 'start index').replace('indexs', 'indices')}, and the array "
                 f"{len(shape)} axes (shape {shape}).",
            why="dynamic_slice and dynamic_update_slice want one start and one size for each axis.",
            fixes=[Fix("Give a start and a size for each axis", whole),
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
        code = f"x = jax.lax.dynamic_update_slice(x, {new}, start)"
        call = called_with(failure, "dynamic_update_slice")
        if call is not None and len(call.args) > 1:
            update = f"jax.numpy.reshape({call.args[1]}, {(1,) * missing + part})"
            code = rewritten(failure, call.source, call.source.replace(call.args[1], update, 1))
        fixes = [Fix("Give the update leading axes of size 1", code)]
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
