"""What the user's line says about an error: its operands, their shapes, the argument that could be static."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure, as_typed, parse_fragment
from ..explanation import Fix
from ..wording import listed, sizes

Shape = tuple[int, ...]

# Names of JAX's own tracers: a class of the user's may end in "Tracer" too.
TRACER = r"(?:DynamicJaxpr|Jit|Batch|Vmap|JVP|Grad|Linearize|Jaxpr|ShardMap|Remat|Jet|Map)Tracer"
# A JAX array or tracer, as messages name its type.
ARRAY = rf"(?:[\w.]*\b(?:ArrayImpl|_?DeviceArray)|(?:\w+\.)*{TRACER})"

# How Python writes its operators.
SIGNS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def nodes(failure: Failure) -> list[ast.AST]:
    """All syntax nodes of the expression that failed (of the whole statement where Python does not tell)."""
    user = failure.user
    if user is None:
        return []
    for text in (user.segment, user.statement, user.source):
        tree, _ = parse_fragment(text) if text else (None, "")
        if tree is not None:
            return list(ast.walk(tree))
    return []


def operands(failure: Failure, *signs: str) -> tuple[str, str, str] | None:
    """(left, sign, right) of the failing expression `left + right`, or of `left += right`; with `signs`, only
    of these. None if the expression is something else, or if several fit and Python does not tell which."""
    segment = failure.user.segment if failure.user is not None else None
    found = []
    for node in nodes(failure):
        triple = None
        if isinstance(node, ast.BinOp):
            triple = (node.left, SIGNS.get(type(node.op)), node.right)
        elif isinstance(node, ast.AugAssign):
            triple = (node.target, SIGNS.get(type(node.op)), node.value)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            triple = (node.left, SIGNS.get(type(node.ops[0])), node.comparators[0])
        if triple is not None and triple[1] is not None and (not signs or triple[1] in signs):
            found.append((ast.unparse(triple[0]), triple[1], ast.unparse(triple[2])))
        elif segment and not isinstance(node, ast.Module | ast.Expr | ast.FunctionDef | ast.arguments | ast.Return):
            break  # Python named the failing expression, and it is no operation
        if found and segment:
            break
    return found[0] if len(found) == 1 or (found and segment) else None


def called_with(failure: Failure, *names: str) -> Call | None:
    """The call of one of these functions on the user's innermost line."""
    calls = failure.user.calls if failure.user is not None else ()
    return next((call for call in calls if call.name in names), None)


def array_of(call: Call) -> str:
    """Source of the array that a call works on: `x` of jnp.sum(x, 0), and of x.sum(0)."""
    holder = call.function.rpartition(".")[0]
    if holder and not re.fullmatch(r"(?:jnp|jax|lax|np|numpy)(?:\.\w+)*", holder):
        return holder
    return call.args[0] if call.args else "x"


def written_shape(source: str) -> Shape | None:
    """Shape of an array made on the spot: jnp.ones((3, 2)), jnp.ones(3), jnp.eye(3)."""
    match = re.fullmatch(r"(?:jnp|np|jax\.numpy|numpy)\.(?:ones|zeros|empty|full)\(\(([\d, ]+)\).*\)", source)
    if match is not None:
        return sizes(match.group(1))
    match = re.fullmatch(r"(?:jnp|np|jax\.numpy|numpy)\.(ones|zeros|eye|identity|arange)\((\d+)(?:\.0)?\)", source)
    if match is None:
        return None
    return (int(match.group(2)),) * (2 if match.group(1) in ("eye", "identity") else 1)


def rewritten(failure: Failure, old: str, new: str) -> str:
    """The user's statement with `old` replaced by `new`; or `new` alone, where no line of the user's holds `old`."""
    return failure.rewrite(old, new) or new


def with_argument(failure: Failure, call: Call | None, old: str, new: str) -> str:
    """The user's statement with the argument `old` of the call replaced; `new` alone if the call has no such."""
    if call is None or (old not in call.args and old not in call.keywords.values()):
        return new
    arguments = [new if source == old else source for source in call.args]
    arguments += [f"{name}={new if source == old else source}" for name, source in call.keywords.items()]
    return rewritten(failure, call.source, f"{call.function}({', '.join(arguments)})")


def shape_of(failure: Failure, source: str) -> tuple[int, ...] | None:
    """Shape of a name at the user's line, also of `name.T`; None if not known."""
    name, dot, attribute = source.partition(".")
    variable = failure.variable(name)
    if variable is None or variable.shape is None or None in variable.shape:
        return None
    shape = tuple(n for n in variable.shape if n is not None)
    if dot:
        return shape[::-1] if attribute in ("T", "transpose()") else None
    return shape


def printed_shapes(text: str) -> list[Shape]:
    """Every printed shape: "(3, 4), (3,), ()" gives [(3, 4), (3,), ()]."""
    return [sizes(m) for m in re.findall(r"\([\d, ]*\)", text)]


def broadcast_together(a: Shape, b: Shape) -> bool:
    """Whether arrays of these shapes can be combined item by item."""
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b)))


def named(failure: Failure, shape: tuple[int, ...]) -> str | None:
    """The one name in the failing expression that has this shape."""
    text = failure.user.segment or failure.user.statement or "" if failure.user is not None else ""
    names = [
        v.name
        for v in failure.variables.values()
        if v.shape == shape and v.name.isidentifier() and re.search(rf"(?<![\w.]){re.escape(v.name)}\b", text)
    ]
    return names[0] if len(names) == 1 else None


def jax_at_line(failure: Failure) -> bool:
    """Whether the failing expression holds a JAX array or tracer, or a call of jax's: numpy prints some of
    the same messages, also inside a function that JAX traces."""
    user = failure.user
    if user is None:
        return False
    text = user.segment or user.statement or user.source or ""
    for variable in failure.variables.values():
        name = variable.name
        here = not name.isidentifier() or re.search(rf"(?<![\w.]){re.escape(name)}\b", text)
        if variable.type in ("ArrayImpl", "tracer") and here:
            return True
    return bool(re.search(r"\b(?:jnp|jax|lax)\.", text))


def enclosed(source: str) -> str:
    """The source of an operand, in parentheses where it needs them."""
    return source if re.fullmatch(r"[\w.]+(?:\[[^\[\]]*\]|\([^()]*\))?", source) else f"({source})"


def tracing(failure: Failure) -> tuple[str | None, str | None, str | None]:
    """(function, transformation, argument) that JAX names in its message; None where it does not.

    ("relu", "jit", "x") from "… while tracing the function relu at case.py:3 for jit. … argument x."
    """
    match = failure.search(r"while tracing the function (\S+) at .*? for (\w+)(?: / \w+)?\.")
    argument = failure.search(r"depends on the values? of the arguments? ([^\n]+?)\.(?:\n|$)")
    if match is not None:
        return match.group(1), match.group(2), argument.group(1) if argument else None
    function = failure.user.function if failure.user is not None else None
    if failure.search(r"This (?:Batch|Vmap)Tracer"):
        return function, "vmap", None
    if failure.search(r"This (?:JVP|Linearize)Tracer"):
        return function, "grad", None
    return None, None, None


def _is_array(failure: Failure, function: str | None, argument: str) -> bool:
    """Whether the traced argument is an array: it has axes, or was made by a function of arrays at the call.
    An array has no hash, so it cannot be a compile-time constant."""
    variable = failure.variable(argument)
    if variable is not None and variable.tracer and variable.shape:
        return True
    call = next((c for f in failure.user_frames[1:] for c in f.calls if c.function == function), None)
    head = re.search(rf"def {function}\(([^)]*)\)", failure.sources.get(function or "", ""))
    if call is None or head is None:
        return False
    names = [name.partition(":")[0].partition("=")[0].strip() for name in head.group(1).split(",")]
    given = dict(zip(names, call.args)) | dict(call.keywords)
    return re.match(r"(?:jnp|np|numpy|jax)\.(?!pi\b|inf\b)\w+", given.get(argument, "")) is not None


def traced_by_parmap(failure: Failure) -> bool:
    """Whether it is parmap that traces the user's function: then no jit of the user's is there to change."""
    return any(frame.package == "own" for frame in failure.frames) and failure.call("jit") is None


def plain_python_fix(failure: Failure) -> Fix | None:
    """For a function that parmap traces: the same map in worker processes, which run it as plain Python."""
    if not traced_by_parmap(failure):
        return None
    title = "Or run the function as plain Python, in worker processes"
    call = failure.call("parmap")
    if call is not None:
        return Fix(title, call.changed(strategy="'process'"))
    for frame in failure.user_frames:
        line = as_typed(frame.source) or ""
        magic = re.search(r"%%?parmap .*", line)
        if magic is not None:
            return Fix(title, re.sub(r" (-s|--strategy)[ =]?\w+", "", magic.group()) + " -s process")
    return None


def static_fix(
    failure: Failure, argument: str | None = None, function: str | None = None, title: str | None = None
) -> Fix | None:
    """A fix that makes the traced argument of a jitted function a compile-time constant.

    JAX names argument and function in its message, else they are given. None if neither says that the value
    is an argument of a function under jit: values computed inside, and arguments of functions under vmap,
    grad or scan, cannot be constants.
    """
    traced, transform, named_argument = tracing(failure)
    argument = argument or named_argument
    if transform == "checkpoint" and argument:
        base = re.match(r"\w+", argument)
        name = traced if traced and traced.isidentifier() else "f"
        return Fix(
            f"Name the position of {base.group() if base else argument} in static_argnums of jax.checkpoint (1 here)",
            f"# without @jax.checkpoint where {name} is defined\n{name} = jax.checkpoint({name}, static_argnums=(1,))",
        )
    if function is None and (transform != "jit" or traced_by_parmap(failure)):
        return None
    function = function or traced
    if not argument or not re.match(r"[A-Za-z_]\w*", argument):
        return None
    base = re.match(r"\w+", argument)
    name = base.group() if base is not None else argument
    several = re.findall(r"\w+", argument) if re.fullmatch(r"\w+(?:, \w+)* and \w+", argument) else [name]
    several = [n for n in several if n != "and"]
    if any(_is_array(failure, function, n) for n in several):
        return None
    static = repr(name) if len(several) == 1 else repr(tuple(several))
    constants = "a compile-time constant" if len(several) == 1 else "compile-time constants"
    title = title or f"Make {listed(several)} {constants} (compiles anew for each of its values)"
    jit = failure.call("jit")
    plain = jit is not None and jit.args and "static_argn" not in jit.source
    if jit is not None and plain and (jit.args[0].startswith("lambda") or jit.args[0] == function):
        rest = "".join(f", {k}={v}" for k, v in jit.keywords.items())
        new = f"{jit.function}({jit.args[0]}, static_argnames={static}{rest})"
        return Fix(title, failure.rewrite(jit.source, new) or new)
    if function is None or not function.isidentifier():
        return Fix(title, f"function = jax.jit(function, static_argnames={static})")
    return Fix(
        title,
        f"# where {function} is defined: @partial(jax.jit, static_argnames={static}) instead of @jax.jit; or here:\n"
        f"{function} = jax.jit({function}.__wrapped__, static_argnames={static})",
    )
