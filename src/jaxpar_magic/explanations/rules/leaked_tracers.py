"""Tracers that outlive the function that JAX traced."""

from __future__ import annotations

import ast
import linecache
import re
import textwrap

from ..context import Failure, package_of, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule

_WHY = (
    "JAX runs the Python function once, with stand-ins (tracers) for the values, and then only the compiled program. "
    "A tracer that is stored outside (in a list, a global, an attribute, a cache) means nothing after that."
)


@rule("JPX0601", "leaked-tracer", types=("UnexpectedTracerError",))
def leaked_tracer(failure: Failure) -> Finding | None:
    kind = failure.search(r"intermediate value with (?:type|shape) (\S+)")
    traced = failure.search(r"The function being traced when the value leaked was (\S+)(?: at \S+)? traced for (\w+)")
    made = failure.search(r"created on line (\S+?):(\d+)(?::\d+)?(?: \(([^)]+)\))?")
    function = traced.group(1).rpartition(".")[2] if traced is not None else None
    transform = traced.group(2) if traced is not None else None
    if transform is None:  # the message names the kind of tracer only
        kinds = {"Linearize": "grad", "JVP": "grad", "Batch": "vmap", "Vmap": "vmap"}
        tracer = failure.search(r"wrapped in an? (\w+?)Tracer")
        transform = kinds.get(tracer.group(1)) if tracer is not None else None
    line = None
    if made is not None and failure.live:
        line = linecache.getline(made.group(1), int(made.group(2))).strip() or None
    use = _used(failure)
    if kind is None and traced is None and not failure.search(r"nexpected tracer|leaked|escape"):
        return None
    value = f"A value ({kind.group(1)})" if kind is not None else "A value"
    while_ = f" while {transform} traced {function}" if function else f" while {transform or 'JAX'} traced a function"
    at = f", in the line `{line}`," if line and len(line) < 100 else f" (line {made.group(2)})," if made else ","
    what = f"{value} that was made{while_}{at} was stored outside of that function and is used after it ended"
    what += f": `{use}` still holds it." if use else "."
    return Finding(
        what=what,
        why=_WHY,
        fixes=_fixes(failure, function, transform, line, use),
        facts={
            "type": kind.group(1) if kind is not None else None,
            "function": function,
            "transformation": transform,
            "line": int(made.group(2)) if made is not None else None,
            "used": use,
        },
    )


@rule(
    "JPX0601",
    "leaked-tracer",
    types=("TracerArrayConversionError", "TracerBoolConversionError", "ConcretizationTypeError"),
    priority=40,
)
def tracer_outside_its_function(failure: Failure) -> Finding | None:
    frame = failure.user
    if frame is None or not failure.live:
        return None
    line = frame.segment or frame.statement or frame.source or ""
    at_top = frame.function == "<module>" and not re.search(r"\blambda\b", line)
    held = next(
        (
            v.name
            for v in failure.variables.values()
            if v.name.isidentifier()
            and re.search(rf"(?<![\w.]){re.escape(v.name)}\b", line)
            and (v.tracer or (v.element or "").endswith("Tracer"))
        ),
        None,
    )
    traced = failure.search(r"while tracing the function (\S+) at (\S+):\d+ for (\w+)")
    over = traced is not None and _has_ended(failure, traced.group(1), traced.group(2))
    if not over and not (at_top and held):
        return None
    held = held or _used(failure)
    function = traced.group(1).rpartition(".")[2] if traced is not None and over else None
    made = failure.search(r"was created on line:\s*(\S[^\n]*)")
    where = f", in the line `{made.group(1).strip()[:80]}`" if made is not None else ""
    while_ = f"while JAX traced {function}" if function and function != "<lambda>" else "while JAX traced a function"
    return Finding(
        what=f"{f'`{held}`' if held else 'The value used here'} holds a value that was made {while_}{where}, and was "
        "stored outside of that function. It has no numbers, now that the function has ended.",
        why=_WHY,
        fixes=_fixes(failure, function, traced.group(3) if traced is not None else "vmap", None, held),
        facts={"name": held, "function": function},
    )


def _has_ended(failure: Failure, function: str, file: str) -> bool:
    """Whether the user's function that a tracer belongs to is not running: then the tracer was stored.

    JAX takes only its own frames out of a traceback. But a decorator's wrapper runs under another name than JAX
    prints, so each function on the way must be one that the line above it calls by name.
    """
    names = {frame.function for frame in failure.frames}
    if function.rpartition(".")[2] in names or package_of(file) != "user":
        return False
    above = None
    frames = failure.user_frames
    start = next((n for n, frame in enumerate(frames) if frame.function == "<module>"), len(frames) - 1)
    for frame in reversed(frames[: start + 1]):
        if above is not None and frame.function not in {call.name for call in above.calls}:
            return False
        above = frame
    return above is not None and "lambda" not in (above.segment or "")


def _moved_out(failure: Failure) -> str | None:
    """The user's own function, with the statement that stores a value moved behind its call; None if that is not
    as plain as one statement, one `return` at the end, and one call to be seen in the same file."""
    place = failure.search(r"(?:leaked was|while tracing the function) (\w+) at (\S+?):(\d+)(?:,? traced)? for jit")
    if place is None or not failure.live or package_of(place.group(2)) != "user":
        return None
    name, file, number = place.group(1), place.group(2), int(place.group(3))
    source = "".join(linecache.getlines(file))
    tree, _ = parse_fragment(source) if source and len(source) < 200_000 else (None, "")
    nodes = list(ast.walk(tree)) if tree is not None else []
    function = next((n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == name), None)
    call = next(
        (n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name), None
    )
    if function is None or call is None or abs(function.lineno - number) > 2:
        return None
    if [ast.unparse(d) for d in function.decorator_list] not in (["jax.jit"], ["jit"]):
        return None
    *body, last = function.body
    stores = [n for n in body if _stored(n) is not None]
    if len(stores) != 1 or not isinstance(last, ast.Return) or last.value is None:
        return None
    value = _stored(stores[0])
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    if value is None or len(returns) != 1 or any(isinstance(n, ast.Nonlocal) for n in body):
        return None
    kept = value.id if isinstance(value, ast.Name) else "stored"
    lines = [ast.unparse(n) for n in body if n is not stores[0] and not isinstance(n, ast.Global)]
    lines += [] if isinstance(value, ast.Name) else [f"stored = {ast.unparse(value)}"]
    head = f"def {name}({ast.unparse(function.args)}):"
    inside = "\n".join([*lines, f"return {ast.unparse(last.value)}, {kept}"])
    again = ast.unparse(stores[0]).replace(ast.unparse(value), kept) if kept == "stored" else ast.unparse(stores[0])
    holder = stores[0].value.func.value if isinstance(stores[0], ast.Expr) else None  # type: ignore[attr-defined]
    clear = [f"{ast.unparse(holder)}.clear()"] if holder is not None else []
    arguments = ", ".join([*map(ast.unparse, call.args), *(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords)])
    return "\n".join(
        [head, textwrap.indent(inside, "    "), "", f"result, {kept} = jax.jit({name})({arguments})", *clear, again]
    )


def _stored(statement: ast.stmt) -> ast.expr | None:
    """What `log.append(y)`, `cache["y"] = y` or `model.last = y` stores; None for other statements."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1:
            return call.args[0]
    one = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    if one and isinstance(statement.targets[0], ast.Subscript | ast.Attribute):  # type: ignore[attr-defined]
        return statement.value  # type: ignore[attr-defined,no-any-return]
    return None


def _used(failure: Failure) -> str | None:
    """What holds the tracer at the user's line: "log", "s.residual", "key"."""
    user = failure.user
    if user is None:
        return None
    text = user.segment or user.statement or ""
    for variable in failure.variables.values():
        if variable.tracer and variable.name.isidentifier() and re.search(rf"(?<![\w.]){variable.name}\b", text):
            return variable.name
    for variable in failure.variables.values():
        if (variable.element or "").endswith("Tracer") and re.search(rf"(?<![\w.]){re.escape(variable.name)}\b", text):
            return variable.name
    match = re.search(r"(?<![\w.])(?!jnp\b|jax\b|np\b|print\b)([A-Za-z_]\w*(?:\.\w+|\[[^\[\]]*\]))(?!\s*\()", text)
    return match.group(1) if match else None


def _fixes(
    failure: Failure, function: str | None, transform: str | None, line: str | None, use: str | None
) -> list[Fix]:
    name = function if function is not None and function.isidentifier() else "f"
    stored = re.sub(r"\[.*", "", use) if use else "value"
    short = stored.rpartition(".")[2] or "value"
    short = short if short.isidentifier() else "value"
    made = re.match(r"(?:self\.)?([A-Za-z_]\w*)\s*(?:=|\+=)(?!=)", line or "")
    inner = made.group(1) if made is not None else short
    short = inner if use and "[" in use else short  # a list that holds it keeps its name
    if use and use.isidentifier() and re.search(r"split|fold_in|key", line or ""):
        return [
            Fix(
                f"Pass {use} in, and give the new one back",
                f"def {name}({use}):\n    {use}, sub = jax.random.split({use})\n    ...  # as before\n    return "
                f"result, {use}\n\n"
                f"result, {use} = jax.jit({name})({use})",
            ),
            Fix(f"Before that, make {use} anew: what it holds now cannot be used", f"{use} = jax.random.key(0)"),
        ]
    fixes = []
    moved = _moved_out(failure) if transform in ("jit", None) else None
    if moved is not None:
        fixes.append(Fix("Return the value from the function, and store it outside", moved))
    elif transform in ("scan", "fori_loop", "while_loop", "map", "cond"):
        fixes.append(
            Fix(
                "Let the loop collect the value: scan stacks what its body returns second",
                f"def {name}(carry, x):\n    ...  # as before\n    return carry, {inner}\n\ncarry, {short}s = "
                f"jax.lax.scan({name}, init, xs)",
            )
        )
    elif transform in ("grad", "value_and_grad", "jvp", "vjp"):
        fixes.append(
            Fix(
                "Return the value as well, as auxiliary output",
                f"def {name}(x):\n    ...  # as before\n    return loss, {inner}\n\n"
                f"(loss, {short}), gradient = jax.value_and_grad({name}, has_aux=True)(x)",
            )
        )
    else:
        fixes.append(
            Fix(
                "Return the value from the function, and store it outside",
                f"def {name}(x):\n    ...  # as before, without storing {inner}\n    return result, {inner}\n\n"
                f"result, {short} = jax.{transform if transform == 'vmap' else 'jit'}({name})(x)",
            )
        )
    if "cache" in (line or ""):
        fixes.append(Fix("Do not cache functions of traced values", f"{name} = {name}.__wrapped__"))
    fixes.append(
        Fix(
            "To look at values while the compiled function runs",
            f'jax.debug.print("{inner} = {{}}", {inner})  # inside {name}',
        )
    )
    return fixes


@rule("JPX0602", "leak-checker-found-a-tracer", clues=("Leaked trace", "Leaked level", "Leaked sublevel"))
def leak_checker_found_a_tracer(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(?:Exception: )?Leaked (?:trace|level|sublevel) .*?Leaked tracer\(s\):\s*(?:\w+\(|Traced<)?([^\n]*)", re.S
    )
    if match is None:
        return None
    kind = re.search(r"~?([a-z]+\d*\[[\d,]*\])", match.group(1))
    function = failure.search(r"while tracing the function (\S+) at (\S+?):(\d+) for (\w+)")
    holders = [m.group(1) for m in failure.findall(r"is referred to by (?:__main__\.)?([A-Za-z_][\w.]*)(?=\s|$)")]
    holders = [h for h in holders if h not in ("the", "a", "an")]
    local = failure.search(r"is referred to by the (?:local|global) variable '(\w+)'")
    holder = holders[0] if holders else local.group(1) if local is not None else None
    closure = failure.search(r"is referred to by (?:the )?closed-over variable '?(\w+)'?")
    holder = holder or (closure.group(1) if closure is not None else None)
    name = function.group(1) if function is not None else None
    value = f"a value of type {kind.group(1)}" if kind is not None else "a value"
    inside = f" inside {name}" if name else ""
    kept = f", and `{holder}` still holds it" if holder else ", and something outside still holds it"
    shown = name if name and name.isidentifier() else "f"
    return Finding(
        what=f"The leak checker found {value} that was made{inside} while JAX traced it{kept} after the function "
        "ended.",
        why=_WHY + " jax.checking_leaks and jax_check_tracer_leaks look for that.",
        fixes=[
            Fix(
                "Return the value from the function instead of storing it",
                f"def {shown}(x):\n    ...  # as before\n    return result, value\n\n"
                f"result, {holder if holder and holder.isidentifier() else 'value'} = jax.jit({shown})(x)",
            ),
            Fix(
                "If the value is only kept by a debugger or a stored traceback, switch the check off",
                'jax.config.update("jax_check_tracer_leaks", False)',
            ),
        ],
        facts={"type": kind.group(1) if kind is not None else None, "function": name, "holder": holder},
    )
