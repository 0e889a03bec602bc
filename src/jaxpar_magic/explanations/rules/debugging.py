"""NaN debugging and checkify."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import sizes
from ._lines import rewritten

# What makes a NaN or an infinity out of good numbers, and what to write instead.
_REASONS = {
    "log": ("the logarithm of 0 or of a negative number", "jnp.log(jnp.where(x > 0, x, 1.0))"),
    "log1p": ("log1p of a number below -1", "jnp.log1p(jnp.where(x > -1, x, 0.0))"),
    "sqrt": ("the square root of a negative number", "jnp.sqrt(jnp.where(x > 0, x, 1.0))"),
    "rsqrt": ("1 / sqrt(x) of 0 or of a negative number", "jax.lax.rsqrt(jnp.where(x > 0, x, 1.0))"),
    "div": ("a division 0 / 0, or inf / inf", "x / jnp.where(y == 0, 1.0, y)"),
    "sub": ("a difference inf - inf", "jnp.where(jnp.isfinite(x), x - y, 0.0)"),
    "add": ("a sum inf + (-inf)", "jnp.where(jnp.isfinite(x), x + y, 0.0)"),
    "mul": (
        "a product 0 * inf; in a gradient often the derivative of sqrt, log or a norm at 0",
        "jnp.where(x > 0, f(jnp.where(x > 0, x, 1.0)), 0.0)",
    ),
    "pow": (
        "a negative number to a fractional power, or 0 to a negative one",
        "jnp.power(jnp.where(x > 0, x, 1.0), p)",
    ),
    "exp": ("the exponential of a large number", "jnp.exp(jnp.clip(x, max=80.0))"),
    "acos": ("arccos of a number outside -1 to 1", "jnp.arccos(jnp.clip(x, -1.0, 1.0))"),
    "asin": ("arcsin of a number outside -1 to 1", "jnp.arcsin(jnp.clip(x, -1.0, 1.0))"),
}


@rule(
    "JPX1711",
    "nan-found",
    types=("FloatingPointError",),
    clues=("nvalid value (nan)", "nvalid value (inf)", "jax_config.debug_nans.value", "jax_debug_infs"),
)
def nan_found(failure: Failure) -> Finding | None:
    match = failure.search(
        r"[Ii]nvalid value \((nan|inf)\) encountered in ([\w() <>-]+(?:\.[\w() <>-]+)*?)(?:\. |\.?$|\n)", re.M
    )
    optimized = failure.search(r"^\('?(.+?)'?, '(nan|inf)'\)\. Because\s+jax_config\.debug_nans")
    if match is not None:
        kind, operation = match.group(1), match.group(2).strip().rstrip(".")
    elif optimized is not None:
        operation, kind = optimized.groups()
    else:
        return None
    value = "NaN (not a number)" if kind == "nan" else "an infinite number"
    reason, guard = _REASONS.get(operation, (None, None))
    gradient = failure.search(r"When differentiating the code") is not None or (
        failure.call("grad", "value_and_grad", "jacrev", "jacfwd", "hessian") is not None
    )
    because = f": usually {reason}" if reason and kind == "nan" else ""
    fixes = [
        Fix(
            "Guard the input, before the operation (a where after it does not help gradients)",
            guard or "jnp.where(good, f(jnp.where(good, x, 1.0)), 0.0)  # good: where f can be computed",
        ),
        Fix(
            "Look at the values on the way",
            "jax.debug.print('x = {}', x)",
        ),
        Fix(f"Or allow {kind} again: switch the check off", f"jax.config.update('jax_debug_{kind}s', False)"),
    ]
    if failure.environment.interactive and kind == "nan":
        fixes[2] = Fix("Or allow NaN again: switch the check off", "%jaxdevices --no-debug-nans")
    where = " The NaN may come from the derivative, not from the function itself." if gradient and kind == "nan" else ""
    return Finding(
        what=f"The operation {operation} made {value}{because}.{where}",
        why=f"jax_debug_{kind}s is on: JAX looks at every result and stops at the first {kind}.",
        fixes=fixes,
        facts={"kind": kind, "operation": operation, "gradient": gradient},
    )


@rule(
    "JPX1712",
    "checkify-not-functionalized",
    types=("ValueError",),
    clues=("Cannot abstractly evaluate a checkify.check which was not",),
)
def checkify_not_functionalized(failure: Failure) -> Finding | None:
    call = failure.call("check", "debug_check")
    outer = next((f for f in failure.user_frames if f.function == "<module>"), None) or failure.user
    applied = outer.calls[0] if outer is not None and outer.calls else None
    name = applied.function if applied is not None and applied.function.isidentifier() else None
    check = f" `{call.source}`" if call is not None and len(call.source) < 80 else ""
    if name and applied is not None:
        code = f"error, result = checkify.checkify({name})({', '.join(applied.args)})\nerror.throw()"
    else:
        code = "error, result = jax.jit(checkify.checkify(f))(x)\nerror.throw()"
    return Finding(
        what=f"A function with a checkify.check{check} in it is compiled, but was not wrapped in checkify.checkify.",
        why="A compiled program cannot raise. checkify.checkify makes the function return the error beside its result, "
        "and error.throw() raises it afterwards.",
        fixes=[
            Fix("Wrap the function, and throw the error afterwards", code),
            Fix(
                "Or use debug_check, which does nothing where it is not wrapped",
                "checkify.debug_check(x > 0, 'positive')",
            ),
        ],
        facts={"function": name},
    )


def _checked(failure: Failure) -> tuple[str, str] | None:
    """(statement, function) that made the error: `error, y = checkify.checkify(f, …)(x)`."""
    for name, text in failure.definitions.items():
        call = next((c for c in failure.defining_calls(name) if c.name == "checkify" and c.args), None)
        if call is not None:
            return text, call.args[0]
    return None


def _again(failure: Failure, statement: str, old: str, new: str) -> str:
    last = failure.user.statement if failure.user is not None else None
    return statement.replace(old, new, 1) + (f"\n{last}" if last and last not in statement else "")


def _clipped(failure: Failure, last: int) -> str | None:
    """The statement again, with the one index in its lambda kept within the array."""
    found = _checked(failure)
    index = re.findall(r"\b\w+\[([A-Za-z_]\w*)\]", found[1]) if found is not None else []
    if found is None or len(index) != 1 or not found[1].startswith("lambda"):
        return None
    new = re.sub(r"\[[A-Za-z_]\w*\]", f"[jnp.clip({index[0]}, 0, {last})]", found[1])
    return _again(failure, found[0], found[1], new)


def _guarded_call(failure: Failure, operation: str, guard: str | None) -> str | None:
    """The statement again, where the function is the operation itself: jnp.log."""
    found = _checked(failure)
    if found is None or guard is None or found[1] != f"jnp.{operation}":
        return None
    return _again(failure, found[0], found[1], f"lambda x: {guard}")


@rule(
    "JPX1713",
    "checkify-found",
    types=("JaxRuntimeError",),
    clues=("nan generated by primitive", "out-of-bounds indexing for array of shape", "division by zero"),
)
def checkify_found(failure: Failure) -> Finding | None:
    index = failure.search(r"^(?:at mapped index ([\d, ]+): )?nan generated by primitive: (\w+)")
    nan = index
    bounds = failure.search(
        r"^(?:at mapped index ([\d, ]+): )?out-of-bounds indexing for array of shape \(([\d, ]*)\): index (-?\d+) is "
        r"out of bounds for axis (\d+) with size (\d+)"
    )
    zero = failure.search(r"^(?:at mapped index ([\d, ]+): )?division by zero\b")
    if bounds is not None:
        where, shape, position, axis, size = bounds.groups()
        what = f"Index {position} was used on axis {axis} of an array of shape {sizes(shape)}, whose last index is "
        what += f"{int(size) - 1}."
        fixes = [
            Fix(
                "Keep the index within the array",
                _clipped(failure, int(size) - 1) or f"x[jnp.clip(i, 0, {int(size) - 1})]",
            ),
            Fix("Or say what to give outside", "x.at[i].get(mode='fill', fill_value=0)"),
        ]
        facts: dict[str, object] = {"index": int(position), "axis": int(axis), "size": int(size)}
    elif nan is not None:
        where, operation = nan.groups()
        reason, guard = _REASONS.get(operation, (None, None))
        what = f"The operation {operation} made NaN (not a number){f': usually {reason}' if reason else ''}."
        fixes = [
            Fix(
                "Guard the input",
                _guarded_call(failure, operation, guard) or guard or "jnp.where(good, f(jnp.where(good, x, 1.0)), 0.0)",
            )
        ]
        facts = {"operation": operation}
    elif zero is not None:
        where = zero.group(1)
        what = "A division by zero happened."
        fixes = [Fix("Guard the divisor", "x / jnp.where(y == 0, 1.0, y)")]
        facts = {}
    else:
        return None
    item = f" This is item {where} of the mapped ones." if where else ""
    return Finding(
        what=what + item,
        why="checkify watched the function while it ran and kept the first thing that went wrong; error.throw() raised "
        "it. Without checkify JAX goes on with NaN, or with the nearest valid index.",
        fixes=fixes,
        facts=facts,
    )


@rule(
    "JPX1714",
    "check-arguments",
    types=("TypeError",),
    clues=("takes a scalar pred as argument", "Formatting arguments to checkify.check", "check_error takes an Error"),
)
def check_arguments(failure: Failure) -> Finding | None:
    scalar = failure.search(r"^(\w+) takes a scalar pred as argument, got (.+)", re.S)
    formatting = failure.search(
        r"^Formatting arguments to checkify\.check need to be PyTrees of arrays, but got (.+?) of type"
    )
    error = failure.search(r"^check_error takes an Error as argument, got type <class '([\w.]+)'>")
    call = failure.call("check", "debug_check", "check_error")
    if scalar is not None:
        what = f"{scalar.group(1)} takes one bool, and got several: {scalar.group(2).strip()[:60]}."
        first = call.args[0] if call is not None and call.args else None
        new = call.source.replace(first, f"jnp.all({first})", 1) if call is not None and first else None
        code = (failure.rewrite(call.source, new) if call is not None and new else None) or new
        fixes = [Fix("Check that it holds everywhere", code or "checkify.check(jnp.all(x > 0), 'positive')")]
    elif formatting is not None:
        value = formatting.group(1)
        what = f"checkify.check fills its message with arrays only, and got {value[:60]}."
        fixes = [
            Fix(
                "Write text and Python numbers into the message",
                "checkify.check(x > 0, f'{name} must be positive, is {{x}}', x=x)",
            ),
            Fix("Or make an array of a number", "checkify.check(x > 0, 'x is {}', jnp.asarray(x))"),
        ]
    elif error is not None:
        what = f"check_error takes the error that a checkified function returns, and got {error.group(1)}."
        fixes = [Fix("Take the error first", "error, result = checkify.checkify(f)(x)\ncheckify.check_error(error)")]
    else:
        return None
    return Finding(
        what=what,
        why="A check becomes part of the compiled program: its condition is one bool, and the values in its message "
        "are arrays that are known when it runs.",
        fixes=fixes,
        facts={},
    )


@rule("JPX1715", "checkify-of-a-batched-loop", types=("ValueError",), clues=("batched while-loops",))
def checkify_of_a_batched_loop(failure: Failure) -> Finding | None:
    if not failure.search(r"Checkify does not support batched while-loops"):
        return None
    call = failure.call("checkify")
    mapped = re.fullmatch(r"((?:jax\.)?vmap)\((.+?)((?:, \w+=.+)?)\)", call.args[0]) if call and call.args else None
    code = "checked = jax.vmap(checkify.checkify(function))\nerrors, results = checked(inputs)\nerrors.throw()"
    one_by_one = "checked = checkify.checkify(lambda xs: jax.lax.map(function, xs))"
    if call is not None and mapped is not None:
        vmap, function, rest = mapped.groups()
        keywords = "".join(f", {k}={v}" for k, v in call.keywords.items())
        new = f"{vmap}({call.function}({function}{keywords}){rest})"
        code = rewritten(failure, call.source, new)
        mapped_in_turn = f"{call.function}(lambda xs: jax.lax.map({function}, xs){keywords})"
        one_by_one = rewritten(failure, call.source, mapped_in_turn)
    fixes = [
        Fix("Put vmap outside: map the checked function", code),
        Fix("Or let lax.map take one item after the other, in place of vmap", one_by_one),
    ]
    if (0, 7) <= (failure.jax_version or (0, 10)) < (0, 11):
        fixes = [  # JAX 0.8 to 0.10 cannot map a checked loop
            Fix("Let lax.map take one item after the other, in place of vmap", one_by_one),
            Fix("Or put vmap outside (not on JAX 0.8 to 0.10): map the checked function", code, kind="sketch"),
        ]
    return Finding(
        what="checkify got a function that vmap has mapped, and in it is a while loop whose condition differs between "
        "the items.",
        why="A mapped while loop runs until the last item is done, and checkify cannot tell which checks count then. "
        "It can check each item's loop, and vmap can map that.",
        fixes=fixes,
        facts={},
    )
