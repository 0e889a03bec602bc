"""What single functions ask of the shapes of their arguments."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ._lines import called_with, enclosed, jax_at_line, shape_of


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
        r"^reduce_window got the wrong number of window_dimensions for operand: got operand shape (\([\d, ]*\)) with "
        r"window_dimensions (\([\d, ]*\))",
        "reduce_window got an array of shape {0} and a window of shape {1}; they need the same number of axes.",
        "Give the window a size for each axis of the array",
        "jax.lax.reduce_window({x}, 0.0, jax.lax.add, (2,) * {x}.ndim, (1,) * {x}.ndim, 'VALID')",
    ),
    (
        r"^dirichlet requires alpha\.ndim >= 1, got alpha\.ndim == (\d+)",
        "dirichlet needs one alpha for each category, and got a single number.",
        "Give one number for each category (here 3 equal ones)",
        "jax.random.dirichlet({x}, {y} * jnp.ones(3))",
    ),
    (
        r"^When changing to a larger dtype, its size must be a divisor of the total size in bytes()",
        "view reads the same bytes as larger numbers, and the last axis has no whole number of them.",
        "To convert the numbers themselves, use astype",
        "x = x.astype(jnp.float32)",
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
        "number of window_dimensions",
        "requires alpha.ndim",
        "When changing to a larger dtype",
        "with remapped shapes",
    ),
)
def function_needs_otherprinted_shapes(failure: Failure) -> Finding | None:
    for pattern, what, title, code in _NEEDS:
        match = failure.search(pattern)
        if match is None:
            continue
        # numpy prints some of the same words
        if not re.search(
            r"rank at least 2|tensordot|jnp\.pad|broadcast_in_dim|reduce_window", pattern
        ) and not jax_at_line(failure):
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
