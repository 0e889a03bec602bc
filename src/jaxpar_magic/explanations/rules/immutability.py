"""JAX arrays do not change: item assignment, in-place methods, `out=`, read-only views."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ._lines import ARRAY, SIGNS, TRACER, rewritten

_WHY = (
    "A JAX array never changes after it is made: that is what lets JAX compile, differentiate and share it. "
    "Each update makes a new array, and a name must be bound to it."
)
_UPDATES = {ast.Add: "add", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}


def _statement(failure: Failure) -> ast.AST | None:
    text = failure.user.statement or failure.user.source if failure.user is not None else None
    tree, _ = parse_fragment(text) if text else (None, "")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            return node
    return None


def _index(node: ast.expr) -> str:
    """Source of an index: a tuple stands in brackets of the subscript, so it loses its parentheses."""
    if isinstance(node, ast.Tuple) and node.elts:
        return ", ".join(map(ast.unparse, node.elts)) + ("," if len(node.elts) == 1 else "")
    return ast.unparse(node)


def _updated(failure: Failure, target: ast.Subscript, update: str) -> str:
    """`x = x.at[0].set(v)` for the target x[0]; an array of the user's that holds the target is updated too."""
    holder = target.value
    new = f"{ast.unparse(holder)}.at[{_index(target.slice)}].{update}"
    while isinstance(holder, ast.Subscript) and _is_array(failure, holder.value):
        new = f"{ast.unparse(holder.value)}.at[{_index(holder.slice)}].set({new})"
        holder = holder.value
    return f"{ast.unparse(holder)} = {new}"


def _is_array(failure: Failure, node: ast.expr) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    variable = failure.variable(node.id) if isinstance(node, ast.Name) else None
    return variable is not None and variable.type in ("tracer", "ArrayImpl")


def _in_brackets(node: ast.expr) -> str:
    source = ast.unparse(node)
    return (
        source
        if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript)
        else f"({source})"
    )


def _assignment_fix(failure: Failure, node: ast.AST | None) -> tuple[str | None, str | None]:
    """(the same update with .at, source of the array that was assigned to)."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        name = ast.unparse(node.target.value)
        value = ast.unparse(node.value)
        kind = type(node.op)
        if kind in _UPDATES:
            update = f"{_UPDATES[kind]}({value})"
        elif kind is ast.Sub:
            update = f"add(-{_in_brackets(node.value)})"
        else:
            update = f"set({ast.unparse(node.target)} {SIGNS[kind]} {_in_brackets(node.value)})"
        return _updated(failure, node.target, update), name
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return _updated(failure, target, f"set({ast.unparse(node.value)})"), ast.unparse(target.value)
        if isinstance(target, ast.Tuple):
            return _pair_fix(target.elts, node.value)
    return None, None


def _pair_fix(targets: Sequence[ast.expr], value: ast.expr) -> tuple[str | None, str | None]:
    """`x[i], x[j] = a, b` becomes one update, since the second must not see the first."""
    if not isinstance(value, ast.Tuple) or len(value.elts) != len(targets):
        return None, None
    names = {ast.unparse(t.value) for t in targets if isinstance(t, ast.Subscript)}
    if len(names) != 1 or not all(isinstance(t, ast.Subscript) for t in targets):
        return None, None
    name = names.pop()
    values = ", ".join(ast.unparse(v) for v in value.elts)
    news = [f"new_{number}" for number in range(len(targets))]
    lines = [f"{', '.join(news)} = {values}"]
    for target, new in zip(targets, news):
        if isinstance(target, ast.Subscript):
            lines.append(f"{name} = {name}.at[{_index(target.slice)}].set({new})")
    return "\n".join(lines), name


@rule(
    "JPX2001",
    "item-assignment",
    types=("TypeError",),
    clues=("JAX arrays are immutable", "does not support item assignment", "item assignment"),
    anywhere=True,
)
def item_assignment(failure: Failure) -> Finding | None:
    if not failure.search(
        r"JAX arrays are immutable and do not support in-place item assignment"
        rf"|'(?:<class ')?{ARRAY}(?:'>)?'? object does not support item assignment"
        r"|(?=.*\.at\[)(?=.*\.set\()(?=.*(?:JAX|jax))"
    ):
        return None
    if failure.from_jax is False and (failure.user is None or failure.user.raises):
        return None
    shuffled = _shuffled(failure)
    if shuffled is not None:
        return shuffled
    if failure.from_jax is False and not failure.search("JAX arrays are immutable"):
        return None
    node = _statement(failure)
    update, name = _assignment_fix(failure, node)
    fixes = [Fix("Make an updated array and keep it under the same name", update or "x = x.at[index].set(value)")]
    variable = failure.variable(name)
    whole = ast.unparse(node) if node is not None and name and name.isidentifier() else None
    if whole is not None and variable is not None and not variable.tracer:
        fixes.append(
            Fix(
                "Or fill a numpy array, and turn it into a JAX array at the end (faster for many single items)",
                f"import numpy as np\n{name} = np.array({name})\n{whole}\n{name} = jnp.asarray({name})",
            )
        )
    if name is None and failure.user is not None and failure.frames and failure.frames[-1] is not failure.user:
        call = failure.outer_call
        if call is not None and call.args:
            argument = call.args[0]
            fixes = [
                Fix(
                    "Give the function a numpy array, which it can change",
                    f"import numpy as np\nfilled = np.array({argument})\n"
                    + (failure.rewrite(argument, "filled") or f"{call.function}(filled)"),
                )
            ]
    is_what = f" ({variable})" if variable is not None and variable.array else ""
    target = _target(node)
    return Finding(
        what=f"`{target}` = … tries to change the JAX array {name}{is_what} in place."
        if target and name
        else "The code tries to change an item of a JAX array in place (x[index] = value).",
        why=_WHY + " x.at[index].set(value) returns the updated array; under jit it costs no copy.",
        fixes=fixes,
        facts={"array": name, "target": target},
    )


def _target(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def _shuffled(failure: Failure) -> Finding | None:
    call = failure.call("shuffle")
    if call is None or not call.args:
        return None
    argument = call.args[0]
    return Finding(
        what=f"{call.function} shuffles its argument in place, and {argument} is a JAX array, which cannot change.",
        why=_WHY + " jax.random.permutation returns a shuffled copy.",
        fixes=[
            Fix("Take a shuffled copy", f"{argument} = jax.random.permutation(jax.random.key(0), {argument})"),
            Fix(
                "Or shuffle a numpy copy",
                f"import numpy as np\nshuffled = np.array({argument})\n{call.function}(shuffled)",
            ),
        ],
        facts={"array": argument},
    )


@rule(
    "JPX2005",
    "at-needs-a-method",
    types=("TypeError",),
    clues=("_IndexUpdateHelper", "_IndexUpdateRef"),
)
def at_needs_a_method(failure: Failure) -> Finding | None:
    if not failure.search(
        r"'_IndexUpdateHelper' object does not support item (?:assignment|deletion)"
        r"|unsupported operand type\(s\) for \S+: .*'_IndexUpdate(?:Ref|Helper)'"
        r"|'_IndexUpdate(?:Ref|Helper)' object is not"
    ):
        return None
    node = _statement(failure)
    code = name = None
    if isinstance(node, ast.Assign | ast.AugAssign):
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute) and target.value.attr == "at":
            name = ast.unparse(target.value.value)
            target.value = target.value.value
            code, _ = _assignment_fix(failure, node)
    round_ = next((c for c in (failure.user.calls if failure.user else ()) if c.function.endswith(".at")), None)
    if code is None and round_ is not None:
        new = f"{round_.function}[{', '.join(round_.args)}]"
        code = rewritten(failure, round_.source, new)
    return Finding(
        what=f"{name}.at[…] alone changes nothing and cannot be assigned to: it needs a method such as .set(value)."
        if name
        else "x.at[index] alone is no array: it needs a method such as .set(value), .add(value) or .get().",
        why=_WHY
        + " x.at[index] names the place; .set, .add, .multiply, .min, .max … say what the new array has there.",
        fixes=[Fix("Say what to do at that place, and keep the new array", code or "x = x.at[index].set(value)")],
        facts={"array": name},
    )


# What numpy's in-place methods become. {x} is the array, {args} what stood in the brackets.
_METHODS = {
    "fill": "{x} = jnp.full_like({x}, {args})",
    "resize": "{x} = jnp.resize({x}, {args})",
    "itemset": "{x} = {x}.at[{index}].set({value})",
    "put": "{x} = {x}.at[{index}].set({value})",
    "partition": "{x} = jnp.partition({x}, {args})",
    "setflags": "{x} = np.array({x})  # a numpy copy, which can be written to",
    "append": "{x} = jnp.append({x}, {args})",
    "extend": "{x} = jnp.concatenate([{x}, jnp.asarray({args})])",
    "insert": "{x} = jnp.insert({x}, {args})",
    "remove": "{x} = {x}[{x} != {args}]",
    "pop": "{x} = {x}[:-1]",
    "byteswap": "{x} = jnp.asarray(np.asarray({x}).byteswap())",
    "add_": "{x} = {x} + {args}",
    "sub_": "{x} = {x} - {args}",
    "mul_": "{x} = {x} * {args}",
    "div_": "{x} = {x} / {args}",
    "zero_": "{x} = jnp.zeros_like({x})",
    "fill_": "{x} = jnp.full_like({x}, {args})",
    "copy_": "{x} = jnp.asarray({args})",
    "clamp_": "{x} = jnp.clip({x}, {args})",
    "assign": "{x} = jnp.asarray({args})",
    "assign_add": "{x} = {x} + {args}",
    "assign_sub": "{x} = {x} - {args}",
}


def missing_attribute(failure: Failure) -> str | None:
    """The attribute that a JAX array or tracer does not have, in every version's words."""
    match = failure.search(
        rf"(?:'{ARRAY}' object|\b{TRACER}) "
        r"has no attribute '?(\w+)'?"
    )
    return match.group(1) if match else None


def attribute_call(failure: Failure, attribute: str) -> tuple[str, tuple[str, ...]] | None:
    """`x.fill(3)` at the user's line gives ("x", ("3",)); `x.grad` gives ("x", ())."""
    for frame in failure.user_frames[:1]:
        for call in frame.calls:
            holder, dot, name = call.function.rpartition(".")
            if dot and name == attribute:
                return holder, (*call.args, *(f"{k}={v}" for k, v in call.keywords.items()))
        for text in (frame.segment, frame.statement, frame.source):
            match = re.search(rf"([\w.]+(?:\[[^\]]*\])?)\.{attribute}\b", text or "")
            if match:
                return match.group(1), ()
    return None


@rule("JPX2003", "no-in-place-methods", types=("AttributeError",), clues=("has no attribute",))
def no_in_place_methods(failure: Failure) -> Finding | None:
    attribute = missing_attribute(failure)
    if attribute not in _METHODS:
        return None
    used = attribute_call(failure, attribute)
    holder, arguments = used if used is not None else ("x", ())
    code = _METHODS[attribute]
    if used is None or (not arguments and "{" in code.replace("{x}", "")):
        arguments = arguments or ("index", "value") if "{index}" in code else arguments or ("value",)
    index = ", ".join(arguments[:-1]) or "index"
    value = arguments[-1] if arguments else "value"
    new = code.format(x=holder, args=", ".join(arguments), index=index, value=value)
    if new.startswith(f"{holder} = ") and not re.fullmatch(r"[A-Za-z_][\w.]*(?:\[[^\[\]]*\])?", holder):
        new = "x" + new.removeprefix(holder)  # what is no name cannot be assigned to
    variable = failure.variable(holder)
    of = f" {holder} ({variable})" if variable is not None and variable.array else f" {holder}" if used else ""
    return Finding(
        what=f".{attribute}() would change the array{of} in place; JAX arrays have no such method.",
        why=_WHY,
        fixes=[Fix("Make a new array and keep it under the same name", new)],
        facts={"method": attribute, "array": holder if used else None},
    )


@rule(
    "JPX2004",
    "needs-inplace-false",
    types=("NotImplementedError", "ValueError"),
    clues=("inplace=False", "arr.flat property"),
)
def needs_inplace_false(failure: Failure) -> Finding | None:
    match = failure.search(
        r"JAX arrays are immutable, must use inplace=False"
        r"|jax\.numpy\.(\w+) cannot modify arrays in-place, because JAX arrays ?are immutable"
        r"|jnp\.ufunc\.at\(\) cannot operate inplace"
        r"|JAX Arrays do not implement the arr\.flat property"
    )
    if match is None:
        return None
    name = match.group(1) or ("at" if "ufunc" in match.group() else "fill_diagonal")
    call = failure.call(name)
    if "arr.flat" in match.group() and call is None:
        return None
    code = "A = jnp.fill_diagonal(A, value, inplace=False)"
    function = f"jnp.{name}" if name != "at" else "jnp.add.at"
    if call is not None and call.args:
        function = call.function
        arguments = [*call.args, *(f"{k}={v}" for k, v in call.keywords.items() if k != "inplace")]
        jnp_function = re.sub(r"^(np|numpy|onp)\.", "jnp.", call.function)
        code = f"{call.args[0]} = {jnp_function}({', '.join(arguments)}, inplace=False)"
    elif name != "fill_diagonal":
        code = f"x = {function}(x, index, value, inplace=False)"
    array = call.args[0] if call is not None and call.args else "its argument"
    return Finding(
        what=f"numpy's version of {function} changes {array} in place, which JAX arrays do not allow.",
        why=_WHY + " With inplace=False the function returns the new array instead.",
        fixes=[Fix("Take the new array that it returns", code)],
        facts={"function": function},
    )


@rule(
    "JPX2006",
    "no-output-argument",
    types=("NotImplementedError", "TypeError"),
    clues=(
        "'out' argument",
        "out argument of",
        "return arrays must be of ArrayType",
        "must be a numpy.ndarray, not jax",
        "numpy.ndarray, not <class 'jax",
        "numpy.ndarray, not jax",
        "first operand must be array",
        "argument must be None",
    ),
    anywhere=True,
)
def no_output_argument(failure: Failure) -> Finding | None:
    jax_words = failure.search(
        r"The '?out'? argument (?:to|of|for) (?:jnp|jax)\S* |out argument of <jnp\.ufunc"
        r"|must be (?:a )?numpy\.ndarray, not (?:<class ')?jax(?:lib)?\."
    )
    outer = failure.outer_call
    if jax_words is None:
        target = outer.keywords.get("out") if outer is not None else None
        variable = failure.variable(target)
        if failure.search("^first operand must be array$") and outer is not None and outer.name == "at" and outer.args:
            variable = failure.variable(outer.args[0])
        elif not failure.search("return arrays must be of ArrayType"):
            return None
        if variable is None:
            return None
        if variable.type not in ("ArrayImpl", "tracer"):
            return None
    elif failure.from_jax is False and (failure.user is None or failure.user.raises):
        return None
    call = outer if outer is not None and outer.name else None
    code = "x = jnp.function(x)"
    if call is not None:
        out = call.keywords.get("out") or (call.args[0] if call.args else "x")
        rest = [*call.args, *(f"{k}={v}" for k, v in call.keywords.items() if k != "out")]
        if "out" in call.keywords:
            function = re.sub(r"^(np|numpy|onp)\.", "jnp.", call.function)
            kept = out if re.fullmatch(r"[A-Za-z_][\w.]*(?:\[[^\[\]]*\])?", out) else "result"
            code = f"{kept} = {function}({', '.join(rest)})"
        elif call.name == "at" and len(call.args) > 1:
            function = re.sub(r"^(np|numpy|onp)\.", "jnp.", call.function)
            code = f"{out} = {function}({', '.join(call.args)}, inplace=False)"
        elif call.name == "copyto" and len(call.args) > 1:
            code = f"{out} = jnp.broadcast_to({call.args[1]}, {out}.shape)"
        elif call.name == "put" and len(call.args) > 2:
            code = f"{out} = {out}.at[{call.args[1]}].set({call.args[2]})"
        elif call.name in ("place", "putmask") and len(call.args) > 2:
            code = f"{out} = jnp.where({call.args[1]}, {call.args[2]}, {out})"
        else:
            code = f"filled = np.array({out})  # a numpy copy, which can be written to\n" + (
                failure.rewrite(f"({out}", "(filled") or f"{call.function}(filled)"
            )
    name = call.function if call is not None else "The function"
    return Finding(
        what=f"{name} was told to write its result into an existing array, and JAX arrays cannot be written to.",
        why=_WHY,
        fixes=[Fix("Keep the array that the function returns", code)],
        facts={"function": call.function if call is not None else None},
    )


@rule(
    "JPX2007",
    "array-attributes-are-fixed",
    types=("AttributeError", "TypeError"),
    clues=("has no setter", "can't set attribute", "__delitem__", "object doesn't support item deletion"),
)
def array_attributes_are_fixed(failure: Failure) -> Finding | None:
    node = _statement(failure)
    if isinstance(node, ast.Delete) and isinstance(node.targets[0], ast.Subscript):
        if not failure.search(rf"^__delitem__$|{ARRAY}'? object doesn't support item deletion"):
            return None
        target = node.targets[0]
        name = ast.unparse(target.value)
        if not _is_array(failure, target.value):
            return None
        code = f"{name} = jnp.delete({name}, {_index(target.slice)}, axis=0)"
        return Finding(
            what=f"`{ast.unparse(node)}` would shorten the JAX array {name} in place.",
            why=_WHY + " jnp.delete returns an array without those items.",
            fixes=[Fix("Make an array without these items", code)],
            facts={"array": name},
        )
    if not failure.search(rf"property (?:'\w+' )?of '{ARRAY}' object has no setter|can't set attribute"):
        return None
    place = node.targets[0] if isinstance(node, ast.Assign) else None
    if not isinstance(node, ast.Assign) or not isinstance(place, ast.Attribute):
        return None
    name, attribute, value = ast.unparse(place.value), place.attr, ast.unparse(node.value)
    if not _is_array(failure, place.value):
        return None
    changed = {
        "shape": f"{name} = {name}.reshape({value})",
        "dtype": f"{name} = {name}.view({value})  # the same bits; {name}.astype({value}) converts the numbers",
        "T": f"{name} = jnp.transpose({value})",
        "real": f"{name} = {value} + 1j * {name}.imag",
        "imag": f"{name} = {name}.real + 1j * {value}",
        "flat": f"{name} = jnp.full_like({name}, {value})",
    }.get(attribute)
    if changed is None:
        return None
    return Finding(
        what=f"`{ast.unparse(node)}` would change the JAX array {name} in place: its {attribute} is fixed.",
        why=_WHY,
        fixes=[Fix("Make a new array and keep it under the same name", changed)],
        facts={"array": name, "attribute": attribute},
    )


@rule(
    "JPX2002",
    "read-only-view-of-a-jax-array",
    types=("ValueError",),
    clues=("read-only", "WRITEABLE flag", "does not own its data"),
    anywhere=True,
)
def read_only_view(failure: Failure) -> Finding | None:
    # numpy raises it for any read-only array: the array itself must come from JAX
    if not failure.search(
        r"(?:assignment destination|output array|sort array|buffer source array|\barray) is read-only"
        r"|cannot set WRITEABLE flag to True of this array|cannot resize this array: it does not own its data"
    ):
        return None
    if failure.user is None or failure.user.raises:
        return None
    views = [v for v in failure.variables.values() if v.type == "ndarray" and v.uses_jax]
    text = failure.user.statement or failure.user.source or ""
    used = [v for v in views if re.search(rf"\b{re.escape(v.name)}\b", text)]
    direct = re.search(r"\b(?:np|numpy|onp)\.asarray\((\w+)\)|\bdevice_get\((\w+)\)", text)
    if not used and direct is not None:
        name = direct.group(1) or direct.group(2)
        variable = failure.variable(name)
        if variable is None or variable.type != "ArrayImpl":
            return None
        return Finding(
            what=f"`{direct.group()}` is a read-only view of the JAX array {name} ({variable}), and this line writes "
            "to it.",
            why="np.asarray(x) and jax.device_get(x) do not copy: they show the memory of the JAX array, which must "
            "not "
            "change. np.array(x) makes a copy of its own.",
            fixes=[
                Fix(
                    "Make a copy first, and keep it",
                    f"copy = np.array({name})\n{text.replace(direct.group(), 'copy', 1)}",
                )
            ],
            facts={"array": name},
        )
    if len({v.name for v in used}) != 1:
        return None
    name = used[0].name
    return Finding(
        what=f"{name} ({used[0]}) is a read-only view of a JAX array, and `{text.splitlines()[0]}` writes to it.",
        why="np.asarray(x) and jax.device_get(x) do not copy: they show the memory of the JAX array, which must not "
        "change. np.array(x) makes a copy of its own.",
        fixes=[
            Fix("Make a copy first", f"{name} = np.array({name})\n{text}"),
        ],
        facts={"array": name},
    )
