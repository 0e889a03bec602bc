"""Messages quoted in another language: only their numbers, shapes and names are left.

The names of JAX's operations and the shapes stay when the sentence around them is translated. Where these alone
tell which message it was, the message is written anew and explained; always as a guess.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..context import Failure
from ..registry import Finding, explain_failure, rule

_SHAPE = r"\((?:\d+(?:, ?\d+)*,?)?\)|\[\d+(?:, ?\d+)*\]"
# names that numpy, torch and tensorflow use as well count only beside a word of JAX's
_OTHERS = r"(?i)\btorch\b|tensorflow|Tensor\b|\bmat1\b|(?<!jax\.)\bnumpy\.|\bnp\.|cupy|keras"


def _shapes(failure: Failure) -> list[str]:
    return [m.group() for m in failure.findall(_SHAPE)]


def _readable(failure: Failure) -> bool:
    """Whether it is pasted text, not of another library."""
    return not failure.live and failure.kind == "text" and not failure.search(_OTHERS)


def _foreign(failure: Failure) -> bool:
    """Whether the sentence is not English: letters beyond ASCII, or none of the words that English needs."""
    return re.search(r"[^\W\d_a-zA-Z]", failure.text) is not None or not failure.search(
        r"(?i)\b(?:the|to|got|must|have|cannot|requires|with|for|of|and|is|are)\b"
    )


def _of_jax(failure: Failure) -> bool:
    return failure.search(r"(?i)\bjax|\bjnp\.|\bXLA|\bfloat32\[|\bint32\[") is not None or failure.from_jax is True


def _restated(failure: Failure, code: str, message: str) -> Finding | None:
    """What the rules find in the message as JAX wrote it, if that is the code expected."""
    types = failure.types if failure.type_name else ()
    found = explain_failure(replace(failure, message=message, notes=(), types=types))
    if found is None or found.code != code:
        return None
    return Finding(what=found.what, why=found.why, fixes=found.fixes, facts=found.facts, guess=True)


@rule("JPX0803", "product-sizes-differ", clues=("dot_general",), priority=-20)
def translated_product(failure: Failure) -> Finding | None:
    shapes = _shapes(failure)
    if not (_readable(failure) and _foreign(failure)) or len(shapes) != 2:
        return None
    return _restated(
        failure,
        "JPX0803",
        f"dot_general requires contracting dimensions to have the same shape, got {shapes[0]} and {shapes[1]}.",
    )


@rule(
    "JPX0801",
    "shapes-do-not-broadcast",
    clues=tuple(f"{name} " for name in ("add", "sub", "mul", "div", "max", "min", "pow", "select_n", "eq", "lt", "gt")),
    priority=-20,
)
def translated_broadcasting(failure: Failure) -> Finding | None:
    shapes = _shapes(failure)
    named = failure.search(r"(?<![\w.])(add|sub|mul|div|max|min|pow|select_n|eq|lt|gt) ")
    # the operations' names are short words: the type of the error and the two shapes must fit too
    if not (_readable(failure) and _foreign(failure)) or named is None or len(shapes) != 2:
        return None
    if not (failure.is_a("TypeError", "ValueError") or failure.search(r"TypeError|ValueError")):
        return None
    return _restated(
        failure, "JPX0801", f"{named.group(1)} got incompatible shapes for broadcasting: {shapes[0]}, {shapes[1]}."
    )


@rule("JPX0805", "joined-shapes-differ", clues=("concatenat", "concatenate"), priority=-20)
def translated_joining(failure: Failure) -> Finding | None:
    shapes = _shapes(failure)
    rest = re.sub(_SHAPE, "", failure.text)
    axis = re.search(r"(?<![\w.,])\d+(?![\w.])", rest)
    if not (_readable(failure) and _of_jax(failure)) or len(shapes) < 2 or axis is None:
        return None
    if "Cannot concatenate arrays with shapes" in failure.text:
        return None
    return _restated(
        failure,
        "JPX0805",
        "Cannot concatenate arrays with shapes that differ in dimensions other than the one being concatenated: "
        f"concatenating along dimension {axis.group()} for shapes {', '.join(shapes)}.",
    )


@rule("JPX0811", "reshape-changes-the-size", clues=("reshape",), priority=-20)
def translated_reshape(failure: Failure) -> Finding | None:
    shapes = _shapes(failure)
    if not (_readable(failure) and _foreign(failure)) or len(shapes) < 2:
        return None
    first, second = shapes[0], shapes[-1]
    products = []
    for shape in (first, second):
        size = 1
        for number in re.findall(r"\d+", shape):
            size *= int(number)
        products.append(size)
    if products[0] == products[1] or not failure.is_a("TypeError"):
        return None  # numpy raises ValueError
    return _restated(
        failure,
        "JPX0811",
        f"cannot reshape array of shape {first} (size {products[0]}) into shape {second} (size {products[1]})",
    )


@rule("JPX0401", "mapped-sizes-differ", clues=("vmap", "pmap"), priority=-20)
def translated_mapping(failure: Failure) -> Finding | None:
    name = failure.search(r"\b([vp]map)\b")
    # in every language: "axis 0 of argument x of type float32[8,3]", in whatever order
    arrays = failure.findall(r"\b\w*\d+\[([\d,]+)\]")
    if not (_readable(failure) and _foreign(failure)) or name is None or len(arrays) != 2:
        return None
    lines = []
    for array in arrays:
        sizes = [int(number) for number in array.group(1).split(",") if number]
        lines.append((sizes[0], array.group()))
    if lines[0][0] == lines[1][0]:
        return None
    listed = ";\n  * ".join(
        f"one axis had size {size}: axis 0 of argument {'first' if i == 0 else 'second'} of type {kind}"
        for i, (size, kind) in enumerate(lines)
    )
    return _restated(
        failure, "JPX0401", f"{name.group(1)} got inconsistent sizes for array axes to be mapped:\n  * {listed}"
    )


@rule("JPX1203", "out-of-device-memory", clues=("RESOURCE_EXHAUSTED",), priority=-20)
def translated_memory(failure: Failure) -> Finding | None:
    numbers = [int(m.group()) for m in failure.findall(r"(?<![\w.])\d{6,}(?![\w.])")]
    if not (_readable(failure) and _foreign(failure)) or len(numbers) != 1:
        return None
    return _restated(
        failure, "JPX1203", f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {numbers[0]} bytes."
    )
