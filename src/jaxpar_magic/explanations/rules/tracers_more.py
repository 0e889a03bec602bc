"""Further ways in which Python asks a traced value for its number."""

from __future__ import annotations

import ast
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ._lines import TRACER, called_with, enclosed, nodes, rewritten, static_fix
from .tracers import tracing

_WHY = (
    "While JAX traces a function{transform}, its arguments are stand-ins (tracers) that have a shape and a dtype but "
    "no "
    "value yet. {who} needs the value at once."
)


def _traced_call(failure: Failure) -> str:
    """The user's call of the function that was traced: `f(1.0)`."""
    frames = failure.user_frames
    calls = frames[1].calls if len(frames) > 1 else ()
    return calls[0].source if calls and "\n" not in calls[0].source else "f(x)"


def _why(failure: Failure, who: str) -> str:
    _, transform, _ = tracing(failure)
    return _WHY.format(transform=f" for {transform}" if transform else "", who=who)


def _inside(failure: Failure) -> str:
    function, _, argument = tracing(failure)
    inside = f" in {function}" if function and function.isidentifier() else ""
    return inside + (f" (it depends on the argument {argument})" if argument else "")


def _facts(failure: Failure, **more: str | None) -> dict[str, str | None]:
    function, transform, argument = tracing(failure)
    return {"function": function, "transformation": transform, "argument": argument, **more}


def _with_static(failure: Failure, fixes: list[Fix]) -> list[Fix]:
    fix = static_fix(failure)
    return [*fixes, *([fix] if fix is not None else [])][:3]


@rule("JPX0520", "range-over-a-traced-count", types=("TracerIntegerConversionError",), priority=10)
def range_over_a_traced_count(failure: Failure) -> Finding | None:
    call = called_with(failure, "range")
    if call is None or call.function != "range" or not call.args:
        return None
    count = call.args[0] if len(call.args) == 1 else call.args[1]
    start = "0" if len(call.args) == 1 else call.args[0]
    source = failure.user.source or "" if failure.user is not None else ""
    loop = re.search(r"for\s+(\w+)\s+in\s+range\(", source)
    i = loop.group(1) if loop else "i"
    i = "i" if i == "_" else i
    code = f"def body({i}, carry):\n    ...  # one step, with what it changes in carry\n    return carry\n\n"
    summed = re.search(rf"\bsum\((.*?)\s+for\s+{re.escape(loop.group(1)) if loop else 'i'}\s+in\s+range\(", source)
    if summed:
        code = ""
        body, init = f"lambda {i}, total: total + {summed.group(1).strip()}", "0.0"
    else:
        body, init = "body", "carry"
    fixes = [
        Fix(
            "Loop with fori_loop, which takes a traced count",
            f"{code}{'total' if summed else 'carry'} = jax.lax.fori_loop({start}, {count}, {body}, {init})",
        )
    ]
    return Finding(
        what=f"range({', '.join(call.args)}) needs a Python number, and `{count}` has no value yet{_inside(failure)}.",
        why=_why(failure, "range"),
        fixes=_with_static(failure, fixes),
        facts=_facts(failure, count=count),
    )


@rule("JPX0521", "list-indexed-by-a-traced-number", types=("TracerIntegerConversionError",), priority=8)
def list_indexed_by_a_traced_number(failure: Failure) -> Finding | None:
    for node in nodes(failure):
        if not isinstance(node, ast.Subscript):
            continue
        holder, index = ast.unparse(node.value), ast.unparse(node.slice)
        variable = failure.variable(holder)
        literal = isinstance(node.value, ast.List | ast.Tuple)
        if not literal and variable is not None and variable.type not in ("list", "tuple", "str", "range"):
            continue
        if not literal and variable is None and not re.fullmatch(r"[\w.]+", holder):
            continue
        kind = variable.type if variable is not None else "list"
        functions = variable is not None and variable.element in (
            "function",
            "PjitFunction",
            "builtin_function_or_method",
        )
        applied = (
            next((c for c in failure.user.calls if c.function == ast.unparse(node)), None)
            if failure.user is not None
            else None
        )
        if isinstance(node.slice, ast.Slice):
            new = (
                f"jax.lax.dynamic_slice_in_dim(jnp.array({holder}), "
                f"{ast.unparse(node.slice.lower) if node.slice.lower else '0'}, 2)"
            )
            fixes = [Fix("Take a slice of fixed length (2) of an array", rewritten(failure, ast.unparse(node), new))]
        elif functions or applied is not None:
            arguments = ", ".join(applied.args) if applied is not None else "x"
            new = f"jax.lax.switch({index}, {holder}, {arguments})"
            old = applied.source if applied is not None else ast.unparse(node)
            fixes = [Fix("Let lax.switch choose one of the functions", rewritten(failure, old, new))]
        else:
            new = f"jnp.array({holder})[{index}]"
            changed = rewritten(failure, ast.unparse(node), new)
            fixes = [Fix("Make an array of the list: arrays take traced indices", changed)]
            fixes.append(
                Fix("If its items are functions, let lax.switch choose", f"jax.lax.switch({index}, {holder}, x)")
            )
        return Finding(
            what=f"The Python {kind} `{holder}` is indexed with `{index}`, which has no value yet{_inside(failure)}.",
            why=_why(failure, f"A Python {kind}"),
            fixes=_with_static(failure, fixes),
            facts=_facts(failure, index=index, list=holder),
        )
    return None


@rule("JPX0522", "traced-value-as-dict-key", types=("TypeError",), clues=("unhashable type:",), anywhere=True)
def traced_value_as_dict_key(failure: Failure) -> Finding | None:
    match = failure.search(rf"^unhashable type: '(?:[\w.]*\.)?({TRACER})'")
    if match is None or (failure.user is not None and failure.user.raises):
        return None
    tracers = [v.name for v in failure.variables.values() if v.tracer and v.name.isidentifier()]
    fixes: list[Fix] = []
    what = (
        "A traced value is used as a dict key, in a set, or as the argument of a cached function: it has no value yet."
    )
    key = holder = None
    for node in nodes(failure):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id in tracers:
            holder, key = ast.unparse(node.value), node.slice.id
        elif (
            (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("get", "pop", "setdefault")
            )
            and node.args
            and isinstance(node.args[0], ast.Name)
        ):
            holder, key = ast.unparse(node.func.value), node.args[0].id
    if key is None and len(tracers) == 1:
        key = tracers[0]
    if holder is not None and key is not None:
        what = f"`{key}` is a traced value, and is used as a key of `{holder}`: it has no value yet."
        fixes.append(
            Fix(
                "If the keys are 0, 1, 2, …: make an array of the values, and index that",
                f"jnp.array([{holder}[k] for k in sorted({holder})])[{key}]",
            )
        )
    elif key is not None:
        what = (
            f"`{key}` is a traced value, and is used as a dict key, in a set, or as the argument of a cached function."
        )
    function = failure.user.function if failure.user is not None else None
    named = function if function is not None and function.isidentifier() else None
    if key is not None and named is not None and match.group(1) == "DynamicJaxprTracer":
        fix = static_fix(failure, key, named)
        if fix is not None:
            fixes.append(fix)
    if not fixes:
        fixes.append(
            Fix("Choose by number: let lax.switch run one of several functions", "jax.lax.switch(i, [f, g], x)")
        )
    return Finding(
        what=what,
        why="A dict finds an entry by the value of its key, and a traced value has none. Under jit the function runs "
        "once, for all "
        "values.",
        fixes=fixes,
        facts={"key": key, "dict": holder},
    )


@rule(
    "JPX0523",
    "axis-is-traced",
    types=("ConcretizationTypeError", "TracerIntegerConversionError"),
    clues=("must be known statically", "expected a static index", "__index__"),
    priority=6,
)
def axis_is_traced(failure: Failure) -> Finding | None:
    axis = failure.search(
        r"The (\w+) argument must be known statically|(expected a static index or sequence of indices)"
    )
    call = None
    for candidate in failure.user.calls if failure.user is not None else ():
        sources = [*candidate.args, *candidate.keywords.values()]
        variables = [failure.variable(s) for s in sources]
        if any(v is not None and v.tracer and v.shape == () for v in variables):
            call = candidate
            break
    if axis is None and (call is None or not re.match(r"(jnp|jax|lax)\b", call.function)):
        return None
    word = axis.group(1) if axis is not None and axis.group(1) else "axis"
    source = None
    if call is not None:
        source = call.keywords.get(word)
        if source is None:
            given = [*call.args, *call.keywords.values()]
            source = next(
                (s for s in given if (v := failure.variable(s)) is not None and v.tracer and v.shape == ()), None
            )
    called = f"`{call.source}`" if call is not None and len(call.source) < 80 else "The function"
    which = f"`{source}`" if source else f"its {word}"
    fixes = []
    fix = static_fix(failure)
    if fix is not None:
        fixes.append(fix)
    if call is not None and source is not None:
        new = re.sub(rf"((?:[(,=])\s*){re.escape(source)}(\s*[,)])", r"\g<1>0\2", call.source)
        fixes.append(
            Fix("Or write the number there, if it is always the same (0 here)", rewritten(failure, call.source, new))
        )
    else:
        fixes.append(Fix("Make it a compile-time constant", f"f = jax.jit(function, static_argnames={word!r})"))
    return Finding(
        what=f"{called} needs {which} as a Python number, and it has no value yet{_inside(failure)}.",
        why="Which axis is meant decides the shape of the result, and JAX compiles for fixed shapes. So it must be a "
        "compile-time "
        "constant.",
        fixes=fixes,
        facts=_facts(failure, axis=source),
    )


_BUILTINS = {
    "max": ("jnp.maximum", "jnp.max"),
    "min": ("jnp.minimum", "jnp.min"),
    "sorted": ("jnp.sort", "jnp.sort"),
    "any": ("jnp.any", "jnp.any"),
    "all": ("jnp.all", "jnp.all"),
    "bool": ("jnp.bool_", "jnp.bool_"),
    "filter": ("jnp.where", "jnp.where"),
}


@rule("JPX0524", "builtin-on-traced-values", types=("TracerBoolConversionError",), priority=10)
def builtin_on_traced_values(failure: Failure) -> Finding | None:
    if failure.user is None:
        return None
    text = failure.user.segment or failure.user.statement or ""
    call = next((c for c in failure.user.calls if c.function in _BUILTINS and c.source in text), None)
    if call is None or (failure.user.segment and not _is_call(failure.user.segment, call.function)):
        return None
    pair, single = _BUILTINS[call.function]
    many = len(call.args) > 1 and call.function in ("max", "min")
    if many:
        new = _nested(pair, list(call.args))
    elif call.args and re.match(r"[\[(]", call.args[0]) and call.function in ("max", "min", "any", "all", "sorted"):
        listing = call.args[0]
        listing = f"[{listing[1:-1]}]" if " for " in listing and listing.startswith("(") else listing
        new = f"{single}(jnp.array({listing}))"
    elif call.function == "bool":
        new = f"{enclosed(call.args[0])}.astype(bool)" if call.args else "x.astype(bool)"
    elif call.function == "filter":
        return None
    else:
        new = f"{single}({', '.join(call.args[:1])})"
    new = re.sub(r"(?<![\w.])(max|min)\(", lambda m: _BUILTINS[m.group(1)][0] + "(", new) if many else new
    # where the same function stands outside of this call too, all of them fail one after the other
    statement = failure.user.statement or failure.user.source or ""
    outer = next(
        (c for c in failure.user.calls if c.function in ("max", "min") and call.source in c.source and c is not call),
        None,
    )
    if outer is not None and len(outer.args) > 1:
        old, code = (
            outer.source,
            _nested(_BUILTINS[outer.function][0], [a.replace(call.source, new) for a in outer.args]),
        )
    else:
        old, code = call.source, new
    changed = failure.rewrite(old, code) if old in statement else None
    return Finding(
        what=f"Python's {call.function} in `{call.source}` asks whether traced values are true, and they have no "
        f"value yet{_inside(failure)}.",
        why=_why(failure, f"Python's {call.function}"),
        fixes=[Fix(f"Use JAX's function: {code.partition('(')[0]}", changed or code)],
        facts=_facts(failure, builtin=call.function),
    )


def _is_call(segment: str, function: str) -> bool:
    return re.match(rf"{function}\(", segment) is not None


def _nested(function: str, arguments: list[str]) -> str:
    result = arguments[-1]
    for argument in reversed(arguments[:-1]):
        result = f"{function}({argument}, {result})"
    return result


# functions of math that jax.numpy calls otherwise
_MATH = {
    "pow": "power",
    "fabs": "abs",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}


@rule(
    "JPX0527",
    "number-of-a-traced-value",
    types=("ConcretizationTypeError",),
    clues=("The problem arose with the",),
)
def number_of_a_traced_value(failure: Failure) -> Finding | None:
    match = failure.search(r"The problem arose with the `(\w+)` function")
    if match is None:
        return None
    name = match.group(1)
    call = called_with(failure, name)
    if name == "bool" and call is None:
        return None  # an if, a while, an and: the rules of these know better
    cast = {"float": "jnp.float32", "int": "jnp.int32", "complex": "jnp.complex64", "bool": "bool"}.get(
        name, "jnp.float32"
    )
    fixes: list[Fix] = []
    if call is not None and call.function == name and call.args:
        x = call.args[0]
        new = f"jnp.asarray({x}).astype({cast})" if name != "float" else x
        title = (
            f"Leave {name}() away: the array serves as the number"
            if name == "float"
            else "Change the dtype instead, which stays traced"
        )
        whole, _ = parse_fragment(failure.user.statement or "") if failure.user is not None else (None, "")
        parts = ast.walk(whole) if whole is not None else ()
        subscript = next(
            (n for n in parts if isinstance(n, ast.Subscript) and ast.unparse(n.slice) == call.source), None
        )
        if subscript is not None and isinstance(subscript.value, ast.List | ast.Tuple):
            holder = ast.unparse(subscript.value)
            old, new = ast.unparse(subscript), f"jnp.array({holder})[{x}]"
            fixes.append(Fix("Make an array of the list: arrays take traced indices", rewritten(failure, old, new)))
        else:
            fixes.append(Fix(title, rewritten(failure, call.source, new)))
        what = f"{name}({x}) makes a Python number, and `{x}` has no value yet{_inside(failure)}."
    else:
        function = next(
            (
                c
                for c in (failure.user.calls if failure.user is not None else ())
                if re.match(r"(math|cmath)\.", c.function)
            ),
            None,
        )
        if function is not None:
            short = _MATH.get(function.name, function.name)
            new = f"jnp.{short}({', '.join(function.args)})"
            fixes.append(
                Fix(
                    "Use the function of jax.numpy, which takes traced values",
                    rewritten(failure, function.source, new),
                )
            )
            what = f"{function.function} works on Python numbers, and its argument has no value yet{_inside(failure)}."
        else:
            what = f"Something at this line makes a Python {name}, and the traced value has none yet{_inside(failure)}."
            fixes.append(Fix(f"Keep the array, and change its dtype where {name} was meant", f"x.astype({cast})"))
    called = fixes[-1].code if fixes and fixes[-1].code.startswith("jax.jit(") else None
    title = "Or convert outside, after the traced function has returned"
    fixes.append(Fix(title, f"result = {name}({called or _traced_call(failure)})", kind="here" if called else "sketch"))
    return Finding(
        what=what,
        why=_why(failure, f"Python's {name}"),
        fixes=_number_fixes(failure, name, fixes),
        facts=_facts(failure, conversion=name),
    )


def _number_fixes(failure: Failure, name: str, fixes: list[Fix]) -> list[Fix]:
    if name not in ("int", "bool"):
        return fixes
    # whole numbers of Python mostly are sizes, bounds, counts of steps: these have to be constants
    static = static_fix(failure) if name == "int" else None
    return _with_static(failure, fixes) if static is None else [static, *fixes][:3]


@rule(
    "JPX0528",
    "contents-of-a-traced-array",
    types=("ConcretizationTypeError", "AttributeError", "TypeError"),
    clues=(
        "method was called on traced",
        "item() method",
        "is not available on traced",
        "__reduce__",
        "has no attribute",
        "JSON serializable",
    ),
)
def contents_of_a_traced_array(failure: Failure) -> Finding | None:
    match = failure.search(
        r"The (\w+)\(\) method was called on (?:a )?(?:traced|Tracer|abstract)|occurred in the (\w+)\(\) method of "
        r"jax\.Array"
        r"|The '(\w+)' (?:attribute|method) is not available on traced|(?:error )?occurred in the (__reduce__) method"
        rf"|\b{TRACER} has no attribute "
        r"(block_until_ready|copy_to_host_async|device|devices|addressable_shards|sharding|device_buffer)\b"
        rf"|Object of type ({TRACER}) is not JSON serializable"
    )
    if match is None:
        return None
    name = next(g for g in match.groups() if g)
    if name.startswith("__") and name != "__reduce__":
        return None
    user = failure.user
    text = (user.segment or user.statement or "") if user is not None else ""
    holder = re.search(rf"([\w.]+(?:\[[^\]]*\]|\([^()]*\))?)\.{name}\b", text)
    x = holder.group(1) if holder else "x"
    if name in ("block_until_ready", "copy_to_host_async"):
        fixes = [
            Fix(
                "Leave it away inside the function, and wait for the result outside",
                "result = f(x).block_until_ready()",
            )
        ]
        what = f"{x}.{name}() waits for a value, and inside a traced function there is nothing to wait for."
    elif name == "__reduce__" or name.endswith("Tracer"):
        fixes = [
            Fix(
                "Save what the function returns, outside of it",
                "result = f(x)\nnp.save('result.npy', np.asarray(result))",
            )
        ]
        what = (
            "A traced value was to be saved or sent (pickle, JSON, a copy to another process), and it has no value yet."
        )
    elif name in (
        "devices",
        "device",
        "addressable_shards",
        "sharding",
        "addressable_data",
        "global_shards",
        "is_fully_addressable",
    ):
        fixes = [
            Fix(
                "Ask outside of the traced function",
                f"result = {_traced_call(failure)}\nprint(result.devices())",
                kind="sketch",
            )
        ]
        what = f"`{x}.{name}` asks where the array lies, and a traced value lies nowhere yet."
    else:
        fixes = [
            Fix(
                f"Return the array, and call .{name}() outside",
                f"result = {_traced_call(failure)}\nresult.{name}()",
                kind="sketch",
            ),
            Fix("Inside, compute with the array itself; to look at it, print it", f'jax.debug.print("{{}}", {x})'),
        ]
        if name == "item" and holder is not None and f"{x}.item()" in text:
            fixes.insert(
                0, Fix("Leave .item() away: the array serves as the number", rewritten(failure, f"{x}.item()", x))
            )
        if name == "tolist":
            summed = re.search(
                rf"\b(sum|max|min|len)\({re.escape(x)}\.tolist\(\)\)", user.statement or "" if user is not None else ""
            )
            if summed:
                new = f"jnp.{summed.group(1)}({x})" if summed.group(1) != "len" else f"len({x})"
                fixes.insert(0, Fix("Use the function on the array", rewritten(failure, summed.group(), new)))
        what = f"{x}.{name}() makes Python numbers of the array, and it has no values yet{_inside(failure)}."
    return Finding(
        what=what,
        why=_why(failure, "This"),
        fixes=fixes[:3],
        facts=_facts(failure, method=name),
    )


@rule(
    "JPX0529",
    "text-of-a-traced-value",
    types=("TypeError", "ConcretizationTypeError"),
    clues=(
        "unsupported format string passed to",
        "format: a real number is required",
        "The problem arose with the `float`",
    ),
    priority=10,
    anywhere=True,
)
def text_of_a_traced_value(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"unsupported format string passed to {TRACER}\.__format__"
        rf"|%\w format: a (?:real )?number is required, not {TRACER}"
    )
    source = failure.user.source or "" if failure.user is not None else ""
    if match is None:
        percent = re.search(r"['\"][^'\"]*%[\d.]*[feg][^'\"]*['\"]\s*%", source)
        if percent is None or failure.user is None or failure.user.raises:
            return None
    field = (
        re.search(r"\{(\w[\w.\[\]]*)(:[^}]*)\}", source)
        or re.search(r"['\"]\s*%\s*\(?\s*(?:float\()?([A-Za-z_][\w.]*)(?!\w*\()", source)
        or re.search(r"%\s*\(?(\w{2,})", source)
    )
    x = field.group(1) if field else "x"
    label = x if x.isidentifier() else "value"
    return Finding(
        what=f"The text of a number was asked for (`{x}`), and the traced value has none yet{_inside(failure)}.",
        why=_why(failure, "A format such as :.2f") + " A print runs once, while JAX traces, not at each call.",
        fixes=[
            Fix("Print while the compiled function runs", f'jax.debug.print("{label} = {{v:.2f}}", v={x})'),
            Fix(
                "Or return the value, and make the text outside",
                f'result = {_traced_call(failure)}\nprint(f"{{result:.2f}}")',
                kind="sketch",
            ),
        ],
        facts=_facts(failure, value=x),
    )


@rule(
    "JPX0532",
    "traced-value-into-a-numpy-array",
    types=("ValueError", "TypeError"),
    clues=(
        "setting an array element with a sequence",
        "only length-1 arrays",
        "only size-1 arrays",
        "only 0-dimensional arrays",
    ),
    anywhere=True,
)
def traced_value_into_a_numpy_array(failure: Failure) -> Finding | None:
    return _into_numpy(failure)


@rule(
    "JPX0532",
    "traced-value-into-a-numpy-array",
    types=("TracerArrayConversionError", "ConcretizationTypeError"),
    priority=10,
)
def traced_array_into_a_numpy_array(failure: Failure) -> Finding | None:
    return _into_numpy(failure)


def _into_numpy(failure: Failure) -> Finding | None:
    if failure.user is None or failure.user.raises:
        return None
    tree, _ = parse_fragment(failure.user.statement or failure.user.source or "")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AugAssign):
            target, value = node.target, node.value
        else:
            continue
        if not isinstance(target, ast.Subscript):
            continue
        name = ast.unparse(target.value)
        variable = failure.variable(name)
        if variable is None or variable.type != "ndarray":
            continue
        index = ast.unparse(target.slice)
        index = index[1:-1] if isinstance(target.slice, ast.Tuple) else index
        names = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
        names += [n.id for n in ast.walk(target.slice) if isinstance(n, ast.Name)]
        if not any((v := failure.variable(n)) is not None and v.tracer for n in names):
            continue
        method = "add" if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) else "set"
        written = ast.unparse(value)
        if isinstance(node, ast.AugAssign) and method == "set":
            continue
        return Finding(
            what=f"`{ast.unparse(target)}` = … writes a traced value into the numpy array {name} ({variable}), and "
            "it has no "
            f"value yet{_inside(failure)}.",
            why=_why(failure, "A numpy array") + " It must be a JAX array, and those are updated with .at.",
            fixes=[
                Fix(
                    "Use a JAX array, and make an updated one",
                    f"{name} = jnp.asarray({name})  # once, before the loop\n{name} = "
                    f"{name}.at[{index}].{method}({written})",
                ),
                Fix("Or collect the values in a list, and stack them at the end", f"{name} = jnp.stack(values)"),
            ],
            facts=_facts(failure, array=name),
        )
    return None


@rule(
    "JPX0533",
    "traced-value-as-a-python-integer",
    types=("TracerIntegerConversionError",),
    clues=("__index__() method was called on",),
    priority=-10,
)
def traced_value_as_a_python_integer(failure: Failure) -> Finding | None:
    """What holds for every such error, where the line is unknown or asks in another way."""
    match = failure.search(r"traced array with shape (\w+\[[^\]]*\])")
    shape = f" ({match.group(1)})" if match is not None else ""
    segment = failure.user.segment if failure.user is not None else None
    where = f" in `{segment}`" if segment and len(segment) < 80 else ""
    fixes = []
    fix = static_fix(failure)
    if fix is not None:
        fixes.append(fix)
    fixes.append(Fix("Index an array, not a list", "jnp.array(values)[i]"))
    fixes.append(Fix("Count with fori_loop, not with range", "jax.lax.fori_loop(0, n, body, carry)"))
    return Finding(
        what=f"Python needs a whole number{where}, and the traced value{shape} has none yet{_inside(failure)}.",
        why=_why(failure, "range, an index into a list, a repetition or a size")
        + " The value must be a compile-time constant, or the operation one of JAX's.",
        fixes=fixes[:3],
        facts=_facts(failure),
    )
