"""Values that a function does not have while JAX traces it: Python's if, while, range, indexing."""

from __future__ import annotations

import ast
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule

_WHY = (
    "While JAX traces a function for {transform}, its arguments are stand-ins (tracers) that have a shape "
    "and a dtype but no value yet. Python's {statement} needs the value at once."
)


def tracing(failure: Failure) -> tuple[str | None, str | None, str | None]:
    """(function, transformation, argument) that JAX names in its message; None where it does not.

    ("relu", "jit", "x") from "… while tracing the function relu at case.py:3 for jit. … argument x."
    """
    match = failure.search(r"while tracing the function (\S+) at .*? for (\w+)\.")
    argument = failure.search(r"depends on the values? of the arguments? ([^\n]+?)\.(?:\n|$)")
    if match is not None:
        return match.group(1), match.group(2), argument.group(1) if argument else None
    if failure.search(r"This (?:Batch|Vmap)Tracer"):
        return failure.user.function if failure.user is not None else None, "vmap", None
    if failure.search(r"This (?:JVP|Linearize)Tracer"):
        return failure.user.function if failure.user is not None else None, "grad", None
    return None, None, None


def _statement(failure: Failure) -> ast.stmt | None:
    text = failure.user.statement or failure.user.source if failure.user is not None else None
    tree, _ = parse_fragment(text) if text else (None, "")
    body = getattr(tree, "body", None)
    node = body[0] if body else None
    return node.body[0] if isinstance(node, ast.FunctionDef) and node.name == "_" else node


@rule("JPX0501", "if-on-a-traced-value", types=("TracerBoolConversionError",))
def if_on_a_traced_value(failure: Failure) -> Finding | None:
    function, transform, argument = tracing(failure)
    statement = _statement(failure)
    segment = failure.user.segment if failure.user is not None else None
    condition = segment or "condition"
    word = "if" if isinstance(statement, ast.If) else "conditional expression (a if c else b)"
    source = (failure.user.source or "") if failure.user is not None else ""
    if not (isinstance(statement, ast.If) or re.search(r"\bif\b", source)):
        return None
    value = f"`{condition}`" if segment else "a condition"
    depends = f", which depends on the argument {argument}" if argument else ""
    inside = f" in {function}" if function else ""
    fixes = [
        Fix(
            "Compute both values and choose, element by element",
            f"jnp.where({condition}, value_if_true, value_if_false)",
        ),
        Fix(
            "Run one of two functions",
            f"jax.lax.cond({condition}, lambda: value_if_true, lambda: value_if_false)",
        ),
    ]
    if argument and transform == "jit" and re.fullmatch(r"\w+", argument):
        fixes.append(
            Fix(
                f"Make {argument} a compile-time constant (compiles anew for each value)",
                f"{function} = jax.jit({function}, static_argnames={argument!r})",
            )
        )
    return Finding(
        what=f"Python's {word} asks whether {value} is true{inside}{depends}, but it has no value yet.",
        why=_WHY.format(transform=transform or "a transformation", statement=word.split(" (")[0]),
        fixes=fixes,
        facts={"function": function, "transformation": transform, "argument": argument, "condition": segment},
        guess=failure.user is None,
    )
