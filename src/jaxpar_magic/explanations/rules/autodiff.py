"""Derivatives: what grad, jvp, vjp and their relatives can take, and what custom rules must give back."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, product, sizes
from ._lines import rewritten

_REVERSE = ("grad", "value_and_grad", "jacrev", "jacobian")
_DERIVATIVES = (*_REVERSE, "jacfwd", "hessian", "vjp", "jvp", "linearize")


def derivative_calls(failure: Failure, *names: str) -> tuple[Call | None, Call | None]:
    """(outer, inner) of the user's `grad(f)(x)`; either is None where it cannot be seen."""
    for name in names or _DERIVATIVES:
        calls = failure.applied(name)
        if calls is not None:
            return calls
    return None, failure.call(*(names or _DERIVATIVES))


def _applied(function: str) -> str:
    """Source of a call of `function` (a name, an attribute or a lambda) with any arguments."""
    return f"{function}(*args)" if re.fullmatch(r"[\w.]+", function) else f"({function})(*args)"


def _rewritten(failure: Failure, inner: Call | None, new: str) -> str | None:
    return failure.rewrite(inner.source, new) if inner is not None else None


def _options(inner: Call) -> str:
    """Positional and keyword arguments after the function, as source that begins with a comma, or ""."""
    rest = [*inner.args[1:], *(f"{name}={value}" for name, value in inner.keywords.items())]
    return "".join(f", {text}" for text in rest)


def _function(inner: Call | None) -> str | None:
    return inner.args[0] if inner is not None and inner.args else None


@rule("JPX1601", "grad-needs-a-scalar", types=("TypeError",), clues=("Gradient only defined for scalar-output",))
def grad_needs_a_scalar(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Gradient only defined for scalar-output functions\. Output had (?:shape: |abstract value \w+\[)"
        r"\(?([\d, ]*)[)\]]"
    )
    if match is None:
        return None
    shape = sizes(match.group(1))
    if not shape:
        return None
    outer, inner = derivative_calls(failure, "grad", "value_and_grad")
    function = _function(inner)
    each = "jax.vmap(jax.grad(f))(xs)"
    if inner is not None and function:
        mapped = f"jax.vmap({inner.source})"
        each = rewritten(failure, inner.source, mapped)
        reduced = ".reshape(())" if product(shape) == 1 else ".sum()"
        new = f"{inner.function}(lambda *args: {_applied(function)}{reduced}{_options(inner)})"
        jacobian = f"jax.jacrev({function}{_options(inner)})"
        codes = [(_rewritten(failure, inner, new) or new), (_rewritten(failure, inner, jacobian) or jacobian)]
    else:
        reduced = "reshape(())" if product(shape) == 1 else "sum()"
        codes = [f"jax.grad(lambda *args: f(*args).{reduced})", "jax.jacrev(f)"]
    title = "Take the one number out of the array" if product(shape) == 1 else "Add the outputs up (or take the mean)"
    named = f"`{function}`" if function else "The function"
    fixes = [Fix(title, codes[0]), Fix("Or get the derivative of every output: the Jacobian", codes[1])]
    if product(shape) > 1 and (outer is None or len(outer.args) == 1):
        fixes.append(Fix("Or, where each output depends on one input only: one slope for each item", each))
    return Finding(
        what=f"{named} returns an array of shape {shape}, and grad needs one number (shape ()).",
        why="A gradient says how one number changes with the inputs. An output of "
        f"{counted(product(shape), 'number')} in an array has a Jacobian: shape of the output times shape of the "
        "input.",
        fixes=fixes,
        facts={"shape": shape, "function": function},
    )


@rule("JPX1602", "grad-aux-not-declared", types=("TypeError",), clues=("Gradient only defined for scalar-output",))
def grad_aux_not_declared(failure: Failure) -> Finding | None:
    match = failure.search(r"Gradient only defined for scalar-output functions\. Output was \((?!\))", re.S)
    if match is None:
        return None
    _, inner = derivative_calls(failure, "grad", "value_and_grad")
    function = _function(inner)
    named = f"`{function}`" if function else "The function"
    new = f"{inner.function}({function}{_options(inner)}, has_aux=True)" if inner is not None and function else None
    code = (_rewritten(failure, inner, new) or new) if new else None
    first = f"{_applied(function)}[0]" if function else "f(*args)[0]"
    return Finding(
        what=f"{named} returns a tuple, and grad takes the output as a whole for the number to differentiate.",
        why="A function that returns (loss, something else) must be announced with has_aux=True. Then the first "
        "value is differentiated, and the gradient comes back together with the rest.",
        fixes=[
            Fix(
                "Say that the second value is only passed along; the call then returns (gradient, aux)",
                code or "jax.grad(f, has_aux=True)",
            ),
            Fix("Or differentiate the first value alone", f"jax.grad(lambda *args: {first})"),
        ],
        facts={"function": function},
    )


@rule("JPX1603", "grad-of-nothing", types=("TypeError",), clues=("Gradient only defined for scalar-output",))
def grad_of_nothing(failure: Failure) -> Finding | None:
    match = failure.search(r"Gradient only defined for scalar-output functions\. Output was (None\b|[\[{]|\(\)|\w+)")
    if match is None:
        return None
    got = match.group(1)
    _, inner = derivative_calls(failure, "grad", "value_and_grad")
    function = _function(inner)
    named = f"`{function}`" if function else "The function"
    if got == "None":
        what = f"{named} returns None, so there is no number to differentiate. Is its `return` missing?"
        fixes = [Fix("Return the number to be differentiated", "def loss(params):\n    return (params ** 2).sum()")]
    else:
        kind = {"[": "a list", "{": "a dict", "()": "an empty tuple"}.get(got, f"something else ({got})")
        what = f"{named} returns {kind}, and grad needs one number."
        part = "['loss']" if got == "{" else "[0]"
        fixes = [
            Fix(
                "Differentiate one entry of it",
                f"jax.grad(lambda *args: {_applied(function) if function else 'f(*args)'}{part})",
            ),
        ]
    return Finding(
        what=what,
        why="A gradient says how one number changes with the inputs, so the function must return one number.",
        fixes=fixes,
        facts={"function": function, "output": got},
    )


@rule("JPX1604", "has-aux-needs-a-pair", types=("TypeError",), clues=("expected function with aux output",))
def has_aux_needs_a_pair(failure: Failure) -> Finding | None:
    match = failure.search(
        r"expected function with aux output to return a two-element tuple, but got type <class '([\w.]+)'>"
    )
    if match is None:
        return None
    kind = match.group(1).rsplit(".", 1)[-1]
    got = "one array" if "Tracer" in kind or kind == "ArrayImpl" else f"a value of type {kind}"
    _, inner = derivative_calls(failure)
    function = _function(inner)
    fixes = []
    if inner is not None and "has_aux" in inner.keywords:
        without = re.sub(r",\s*has_aux\s*=\s*[\w.]+", "", inner.source)
        fixes.append(Fix("Drop has_aux=True", _rewritten(failure, inner, without) or without))
    else:
        fixes.append(Fix("Drop has_aux=True", "jax.grad(f)(x)"))
    fixes.append(
        Fix(
            "Or return a pair (loss, aux) from the function",
            "def loss(params):\n    value = (params ** 2).sum()\n    return value, {'value': value}",
        )
    )
    named = f"`{function}`" if function else "the function"
    return Finding(
        what=f"has_aux=True says that {named} returns a pair (value, aux), but it returns {got}.",
        why="With has_aux=True JAX differentiates the first of two returned values and passes the second along, "
        "so the function must return exactly two.",
        fixes=fixes,
        facts={"function": function, "returned": kind},
    )


_INPUT_DTYPE = (
    r"\b(\w+) requires (?:real- or complex-valued|real-valued|numerical-valued) inputs \(input dtype that is a "
    r"sub-dtype of [^)]*\), but got ([\w<>]+)"
)


@rule("JPX1605", "grad-of-integer-input", types=("TypeError",), clues=("-valued inputs (input dtype",))
def grad_of_integer_input(failure: Failure) -> Finding | None:
    match = failure.search(_INPUT_DTYPE)
    if match is None or not re.match(r"u?int\d|bool|key<|float0", match.group(2)):
        return None
    name, dtype = match.groups()
    outer, _ = derivative_calls(failure)
    argument = _argument_of_dtype(failure, outer, dtype)
    fixes = []
    if argument is not None:
        number = re.fullmatch(r"-?\d+", argument)
        variable = failure.variable(argument)
        if number:
            new = f"{argument}.0"
        elif variable is not None and variable.type in ("int", "bool"):
            new = f"float({argument})"
        else:
            new = f"{argument}.astype(float)"
        changed = outer.source.replace(f"({argument}", f"({new}", 1) if outer is not None else ""
        code = failure.rewrite(outer.source, changed) if outer is not None else None
        if code is None or f"({new}" not in code:
            code = f"{argument} = {new}" if not number else new
        fixes.append(Fix("Pass floating-point numbers", code))
    elif not dtype.startswith("key<"):
        call = outer or failure.outer_call
        given = call.args[0] if call is not None and len(call.args) == 1 else "x"
        code = f"jax.tree.map(lambda leaf: leaf * 1.0, {given})"
        if call is not None and given != "x":
            code = failure.rewrite(call.source, f"{call.function}({code})") or code
        fixes.append(Fix("Pass floating-point numbers", code))
    fixes.append(
        Fix(
            "If this argument is no parameter (labels, a step number), differentiate with respect to another one",
            f"jax.{name if name in _DERIVATIVES else 'grad'}(f, argnums=1)  # counted from 0",
        )
    )
    what = f"{name} differentiates with respect to {_quoted(argument)} of type {dtype}"
    kind = "random keys" if dtype.startswith("key<") else "bool" if dtype == "bool" else "whole numbers"
    return Finding(
        what=f"{what}, which has no derivative.",
        why=f"A derivative is a small step of the input, and {kind} cannot take one. JAX does not turn integers "
        "into floats by itself, as that would change what the function computes.",
        fixes=fixes,
        facts={"transformation": name, "dtype": dtype, "argument": argument},
    )


def _quoted(argument: str | None) -> str:
    return f"`{argument}`" if argument else "an argument"


def _argument_of_dtype(failure: Failure, outer: Call | None, dtype: str) -> str | None:
    """Source of the one argument of the call that has this dtype."""
    if outer is None:
        return None
    found = []
    for argument in outer.args:
        variable = failure.variable(argument)
        written = re.fullmatch(r"-?\d+", argument) and dtype.startswith(("int", "uint"))
        known = (variable.dtype, variable.type) if variable is not None else (None, None)
        same = dtype in known or (dtype.startswith("int") and known in (("int64", "ndarray"), (None, "int")))
        if written or same:
            found.append(argument)
    return found[0] if len(found) == 1 and found[0] == outer.args[0] else None


@rule("JPX1606", "grad-of-integer-output", types=("TypeError",), clues=("requires real-valued outputs",))
def grad_of_integer_output(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\b(\w+) requires real-valued outputs \(output dtype that is a sub-dtype of [^)]*\), but got (u?int\d+|bool)"
    )
    if match is None:
        return None
    name, dtype = match.groups()
    _, inner = derivative_calls(failure)
    function = _function(inner)
    return Finding(
        what=f"{name} differentiates {f'`{function}`' if function else 'a function'}, whose result is of type "
        f"{dtype}: it has no derivative.",
        why="Comparisons, argmax, rounding to integers and counting give results that stay the same under a small "
        "step of the input and then jump. Casting the result to float would only make the gradient zero.",
        fixes=[
            Fix(
                "Replace the count by a smooth one",
                "jax.grad(lambda x: jax.nn.sigmoid((x - 0.5) / 0.1).sum())  # instead of jnp.sum(x > 0.5)",
            ),
            Fix(
                "Return the floating-point value, and what is counted beside it",
                "def loss(x):\n    value = (x ** 2).sum()\n    return value, (x > 0.5).sum()\n\n"
                "jax.grad(loss, has_aux=True)",
            ),
        ],
        facts={"transformation": name, "dtype": dtype, "function": function},
    )


@rule("JPX1607", "grad-of-complex-function", types=("TypeError",), clues=("holomorphic=True",))
def grad_of_complex_function(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\b(\w+) requires real-valued (inputs|outputs) \((?:input|output) dtype that is a sub-dtype of [^)]*\), "
        r"but got (complex\d+)"
    )
    if match is not None:
        name, side, dtype = match.groups()
        what = f"{name} without holomorphic=True needs real {side}, and got {dtype}."
    else:
        match = failure.search(
            r"\b(\w+) with holomorphic=True requires (inputs|outputs) with complex dtype, but got (\w+)"
        )
        if match is None:
            return None
        name, side, dtype = match.groups()
        what = f"{name} with holomorphic=True needs complex {side}, and got {dtype}."
    _, inner = derivative_calls(failure)
    function = _function(inner)
    called = _applied(function) if function else "f(*args)"
    if side == "inputs" and not dtype.startswith("complex"):
        fixes = [
            Fix("Pass complex numbers", "x = x * (1 + 0j)  # x: the argument"),
            Fix("Or drop holomorphic=True, for real numbers", f"jax.grad({function or 'f'})"),
        ]
    else:
        fixes = [
            Fix(
                "For a loss: make it real, say the squared absolute value",
                f"jax.grad(lambda *args: (abs({called}) ** 2).sum())",
            ),
            Fix(
                "For a complex differentiable function of complex input",
                f"jax.{name if name in _DERIVATIVES else 'grad'}({function or 'f'}, holomorphic=True)",
            ),
        ]
    return Finding(
        what=what,
        why="A complex result is two real numbers, so there is no one gradient; only for a holomorphic function of "
        "complex inputs there is one complex derivative, and you must say that it is one.",
        fixes=fixes,
        facts={"transformation": name, "side": side, "dtype": dtype, "function": function},
    )


@rule(
    "JPX1608",
    "while-loop-in-reverse",
    types=("ValueError", "NotImplementedError"),
    clues=("Reverse-mode differentiation does not work for lax.while_loop",),
)
def while_loop_in_reverse(failure: Failure) -> Finding | None:
    _, inner = derivative_calls(failure, *_REVERSE)
    function = _function(inner)
    fixes = [
        Fix(
            "Fix the number of steps: with Python numbers as bounds JAX can go back through the loop",
            "x = jax.lax.fori_loop(0, 100, lambda i, x: step(x), x0)  # 100: at most so many steps",
        ),
        Fix(
            "Or scan over a fixed number of steps that stop changing anything once the condition fails",
            "x, _ = jax.lax.scan(lambda x, _: (jnp.where(condition(x), step(x), x), None), x0, length=100)",
        ),
    ]
    if inner is not None and function:
        new = f"jax.jacfwd({function}{_options(inner)})"
        code = _rewritten(failure, inner, new) if inner.name != "value_and_grad" else None
        fixes.insert(0, Fix("Differentiate forwards: that works through any loop (best for few inputs)", code or new))
    else:
        fixes.insert(
            0, Fix("Differentiate forwards: that works through any loop (best for few inputs)", "jax.jacfwd(f)(x)")
        )
    return Finding(
        what=f"{inner.name if inner is not None else 'Reverse-mode differentiation (grad, jacrev)'} goes through a "
        "loop whose number of steps is not known beforehand: lax.while_loop, or lax.fori_loop with bounds that are "
        "traced values.",
        why="Going backwards needs every intermediate state to be stored, and the room for them must be known when "
        "the function is compiled. A while loop does not say how many there will be.",
        fixes=fixes,
        facts={"transformation": inner.name if inner is not None else None, "function": function},
    )


@rule(
    "JPX1609",
    "tangents-do-not-fit",
    types=("TypeError", "ValueError"),
    clues=("primal and tangent", "linearized function called on tangent values"),
)
def tangents_do_not_fit(failure: Failure) -> Finding | None:
    facts: dict[str, object]
    shapes = failure.search(
        r"jvp called with different primal and tangent shapes;\s*Got primal shape \(([\d, ]*)\) and tangent shape as "
        r"\(([\d, ]*)\)"
    )
    dtypes = failure.search(r"Got primal dtype (\w+) and so expected tangent dtype (\S+), but got tangent dtype (\w+)")
    kinds = failure.search(r"primal and tangent arguments to jax\.jvp must be tuples or lists; found (\w+) and (\w+)\.")
    trees = failure.search(
        r"primal and tangent arguments to jax\.jvp must have the same tree structure; primals have tree structure "
        r"(.+?) whereas tangents have tree structure (.+?)\.(?:\s|$)",
        re.S,
    )
    linear = failure.search(
        r"linearized function called on tangent values inconsistent with the original primal values:?\s*"
        r"Got tangent aval (\S.*?) for primal aval (\S.*?)(?: but expected |\.|$)"
    )
    if shapes:
        primal, tangent = sizes(shapes.group(1)), sizes(shapes.group(2))
        what = f"jvp got a value of shape {primal} and a tangent of shape {tangent} for it."
        facts = {"primal": primal, "tangent": tangent}
    elif dtypes:
        primal_type, expected, got = dtypes.groups()
        what = f"jvp got a value of type {primal_type} and a tangent of type {got}; it must be {expected}."
        facts = {"primal": primal_type, "expected": expected, "tangent": got}
    elif kinds:
        what = f"jvp takes a tuple of values and a tuple of tangents, and got {kinds.group(1)} and {kinds.group(2)}."
        facts = {"primal": kinds.group(1), "tangent": kinds.group(2)}
    elif trees:
        what = f"jvp got values with the structure {trees.group(1)} and tangents with {trees.group(2)}."
        facts = {"primal": trees.group(1), "tangent": trees.group(2)}
    elif linear:
        what = f"A linearized function got a tangent of type {linear.group(1)} for a value of {linear.group(2)}."
        facts = {"primal": linear.group(2), "tangent": linear.group(1)}
    else:
        return None
    call = failure.call("jvp")
    given = call.args[1] if call is not None and len(call.args) > 2 else None
    code = "tangents = jax.tree.map(jax.numpy.ones_like, primals)\njax.jvp(f, primals, tangents)"
    if given:
        assert call is not None
        if kinds and not given.startswith("("):
            new = f"{call.function}({call.args[0]}, ({given},), ({call.args[2]},))"
        else:
            new = f"{call.function}({call.args[0]}, {given}, jax.tree.map(jax.numpy.ones_like, {given}))"
        code = rewritten(failure, call.source, new)
    title = "Put value and tangent into tuples" if kinds else "Make the tangents from the values (here: ones)"
    return Finding(
        what=what,
        why="A tangent is a direction in which the value moves: one number for each number of the value, so shape "
        "and dtype are the same. Values and tangents come in tuples, one entry for each argument.",
        fixes=[Fix(title, code)],
        facts=facts,
    )


@rule(
    "JPX1610",
    "cotangents-do-not-fit",
    types=("TypeError", "ValueError"),
    clues=("VJP function", "vjp function", "returned by `jax.vjp` applied to"),
)
def cotangents_do_not_fit(failure: Failure) -> Finding | None:
    types = failure.search(
        r"unexpected JAX type \(e\.g\. shape/dtype\) for argument to (?:VJP|vjp) function: got (\S+), but expected "
        r"(?:to match )?(\S+) because"
    )
    count = failure.search(
        r"returned by `jax\.vjp` applied to (\S+) was called with (\d+) arguments,\s+but functions returned by "
        r"`jax\.vjp` must be called with a single argument"
    )
    tree = failure.search(
        r"unexpected tree structure of argument to vjp function: got (.+?), but expected to match (.+)"
    ) or failure.search(r"was a (.+?) in the original output, but a (.+?) here, so")
    new_tree = failure.search(r"unexpected tree structure\.\s+The argument to a VJP function returned by `jax\.vjp`")
    facts: dict[str, object]
    if types:
        what = f"The function from jax.vjp got {types.group(1)}, and the output has the type {types.group(2)}."
        facts = {"got": types.group(1), "expected": types.group(2)}
    elif count:
        what = (
            f"The function from jax.vjp of {count.group(1)} got {count.group(2)} arguments, and it takes one: with the "
            "structure of the output."
        )
        facts = {"function": count.group(1), "arguments": int(count.group(2))}
    elif new_tree or (tree and "vjp function" in failure.text):
        what = "The function from jax.vjp got an argument with another structure than the output of the function."
        if tree:
            first, second = tree.groups()
            got, expected = (second, first) if new_tree else (first, second)
            what = what[:-1] + f": {got.strip()} instead of {expected.strip()}."
        facts = {}
    else:
        return None
    vjp = failure.call("vjp")
    made = vjp.source if vjp is not None else "jax.vjp(f, x)"
    return Finding(
        what=what,
        why="jax.vjp(f, x) returns the output and a function that takes one cotangent of the same structure, shapes "
        "and dtypes as the output: a weight for each number of it.",
        fixes=[
            Fix(
                "Make the cotangent from the output (here: ones)",
                f"y, vjp_function = {made}\ngradients = vjp_function(jax.tree.map(jax.numpy.ones_like, y))",
            )
        ],
        facts=facts,
    )


@rule("JPX1611", "custom-vjp-bwd-output", types=("TypeError", "ValueError"), clues=("Custom VJP bwd rule",))
def custom_vjp_bwd_output(failure: Failure) -> Finding | None:
    facts: dict[str, object]
    types = failure.search(
        r"Custom VJP bwd rule(?: attached to (\S+) at .*?)? must produce an output with the same (?:type|shape/dtypes) "
        r"as the args tuple of the primal function, but at output(\S*) the bwd rule produced an output of "
        r"(?:type|shape/dtype) (\w+\[[^\]]*\])\S* corresponding to an input of (?:type|shape/dtype) (\w+\[[^\]]*\])"
    )
    structure = failure.search(
        r"must produce a tuple of length equal to the number of arguments to the primal function, but got bwd output "
        r"structure (.+?) for primal input structure (.+?)\.(?:\s|$)",
        re.S,
    )
    symbolic = failure.search(
        r"Custom VJP bwd rule produced a SymbolicZero .*?at output(\S*) the SymbolicZero had shape/dtype (\S+) while "
        r"the corresponding input had shape/dtype (\S+?)\.",
        re.S,
    )
    if types:
        function, path, got, need = types.groups()
        place = re.match(r"\[(\d+)\]", path)
        of = f"argument {place.group(1)}" if place else "the argument"
        what = (
            f"The backward rule{f' of {function}' if function else ''} gives {got} as the gradient of {of}, which has "
            f"the type {need}."
        )
        facts = {"function": function, "argument": int(place.group(1)) if place else None, "got": got, "needed": need}
        if got.split("[")[0] == need.split("[")[0]:
            code = (
                f"gradient.sum().reshape({_shape_text(need)})"
                if _shape_text(need) == "()"
                else (f"gradient.sum(axis=0).reshape({_shape_text(need)})  # sum over the axes that were broadcast")
            )
            title = "Sum over the axes along which the argument was broadcast"
        else:
            code, title = f"gradient.astype('{need.split('[')[0]}')", "Cast the gradient to the argument's dtype"
        fixes = [Fix(title, code)]
        fitted = _fitted_gradient(failure, facts["argument"], got, need)
        if fitted is not None:
            fixes = [Fix(title, fitted), *fixes]
    elif structure:
        got, need = structure.groups()
        what = f"The backward rule returns {got.strip()}, and the function takes the arguments {need.strip()}."
        facts = {"got": got.strip(), "needed": need.strip()}
        have, wanted = _leaves(got.strip()), _leaves(need.strip())
        if have is not None and wanted is not None:
            returns = "one array, not in a tuple" if got.strip() == "PyTreeDef(*)" else counted(have, "gradient")
            what = f"The backward rule returns {returns}, and the function takes {counted(wanted, 'argument')}."
        as_many = _as_many_gradients(failure, got.strip(), need.strip())
        fixes = [as_many] if as_many is not None else []
        fixes = fixes or [
            Fix(
                "Return a tuple with one gradient for each argument (mind the comma for a single one)",
                "def backward(residuals, g):\n    x, = residuals\n    return (g * x,)",
            )
        ]
    elif symbolic:
        path, got, need = symbolic.groups()
        what = f"The backward rule returns a symbolic zero of {got} for an argument of {need}."
        facts = {"got": got, "needed": need}
        fixes = [Fix("Return None for an argument without gradient", "return (g, None)")]
    else:
        return None
    return Finding(
        what=what,
        why="The backward rule of a custom_vjp returns a tuple with one entry for each argument of the function; each "
        "entry has the argument's structure, shapes and dtypes (or is None for no gradient).",
        fixes=fixes,
        facts=facts,
    )


def _vjp_rules(failure: Failure) -> tuple[str, str, str] | None:
    """(function, forward rule, backward rule) of the one custom_vjp function in sight whose rules are given by
    defvjp."""
    statements = [text for name, text in failure.sources.items() if name.endswith(".defvjp")]
    tree, source = parse_fragment(statements[0]) if len(statements) == 1 else (None, "")
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call)), None) if tree is not None else None
    if call is None or len(call.args) != 2 or call.keywords or not isinstance(call.func, ast.Attribute):
        return None
    forward, backward = (ast.get_source_segment(source, argument) or "" for argument in call.args)
    return ast.unparse(call.func.value), forward, backward


def _leaves(structure: str) -> int | None:
    """How many arrays there are in a flat tuple or list, printed as PyTreeDef((*, *)); 1 for a single array."""
    flat = re.fullmatch(r"PyTreeDef\((?:[(\[])?(\*(?:, \*)*),?(?:[)\]])?\)", structure)
    return flat.group(1).count("*") if flat is not None else None


def _as_many_gradients(failure: Failure, got: str, need: str) -> Fix | None:
    """The backward rule's result as a tuple with one entry for each argument, where it has too few or too many."""
    rules = _vjp_rules(failure)
    count, have = _leaves(need), _leaves(got)
    if rules is None or count is None or have is None:
        return None
    function, forward, backward = rules
    backward = backward if backward.isidentifier() else f"({backward})"
    nothing = ", None" * max(count - have, 0)
    result = f"{backward}(*args){nothing}" if got == "PyTreeDef(*)" else f"*{backward}(*args){nothing}"
    tail = "," if count == 1 or nothing == "" else ""
    code = f"{function}.defvjp({forward}, lambda *args: ({result}{tail}){f'[:{count}]' if have > count else ''})"
    title = "Return a tuple with one gradient for each argument"
    return Fix(title + (", None for those that have none" if nothing else ""), code)


def _fitted_gradient(failure: Failure, argument: object, got: str, need: str) -> str | None:
    """The rules given anew, with that gradient brought to the argument's type."""
    rules = _vjp_rules(failure)
    one, two = (re.fullmatch(r"(\w+)\[([\d,]*)\]", text) for text in (got, need))
    if rules is None or one is None or two is None or not isinstance(argument, int):
        return None
    function, forward, backward = rules
    gradient = f"gradients[{argument}]"
    change = _summed(gradient, sizes(one.group(2)), sizes(two.group(2)))
    if change is None:
        return None
    cast = f".astype({two.group(1)!r})" if one.group(1) != two.group(1) else ""
    called = backward if backward.isidentifier() else f"({backward})"
    return (
        f"def fitted(*args):\n    gradients = list({called}(*args))\n    {gradient} = {change}{cast}\n"
        f"    return tuple(gradients)\n\n{function}.defvjp({forward}, fitted)"
    )


def _summed(source: str, got: tuple[int, ...], need: tuple[int, ...]) -> str | None:
    """`source`, of shape `got`, summed over the axes along which `need` was broadcast to it; None if it was not."""
    if got == need:
        return source
    lead = len(got) - len(need)
    if lead < 0 or any(m not in (1, n) for m, n in zip(need, got[lead:])):
        return None
    axes = (*range(lead), *(lead + i for i, (m, n) in enumerate(zip(need, got[lead:])) if m != n))
    total = f"{source}.sum()" if len(axes) == len(got) else f"{source}.sum(axis={axes if len(axes) > 1 else axes[0]})"
    return total if not any(m == 1 for m in need) else f"{total}.reshape({need})"


def _shape_text(aval: str) -> str:
    inside = aval[aval.index("[") + 1 : -1]
    shape = sizes(inside)
    return str(shape)


@rule("JPX1612", "custom-vjp-fwd-output", types=("TypeError",), clues=("Custom VJP fwd rule",))
def custom_vjp_fwd_output(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Custom VJP fwd rule (\S+) for function (\S+) must produce a pair \(list or tuple of length two\)"
    )
    if match is None:
        return None
    forward, function = match.groups()
    differs = failure.search(
        r"had (?:container/pytree structure|shapes/dtypes of):?\s+(.+?)\s+while the custom_vjp-decorated function \S+ "
        r"had output (?:container/pytree structure|shapes/dtypes of):\s+(.+?)\.?\s*$",
        re.S,
    )
    if differs:
        got, need = differs.group(1), differs.group(2)
        what = f"The first value that {forward} returns is {got}, but {function} returns {need}: they must agree."
        facts = {"forward": forward, "function": function, "got": got, "needed": need}
    elif failure.search(r"instead of a pair the fwd rule"):
        what = f"{forward}, the forward rule of {function}, does not return a pair."
        facts = {"forward": forward, "function": function}
    else:
        return None
    return Finding(
        what=what,
        why="The forward rule of a custom_vjp returns (output, residuals): the same output as the function, and "
        "whatever the backward rule will need.",
        fixes=[
            Fix(
                "Return the function's own output and what backward needs",
                f"def {forward if forward.isidentifier() else 'forward'}(x):\n"
                f"    return {function if function.isidentifier() else 'f'}(x), (x,)",
            )
        ],
        facts=facts,
    )


@rule("JPX1613", "custom-jvp-output", types=("TypeError",), clues=("Custom JVP rule",))
def custom_jvp_output(failure: Failure) -> Finding | None:
    head = failure.search(r"Custom JVP rule (?:(\S+) for function (\S+) )?must\s+produce ")
    if head is None:
        return None
    jvp, function = head.groups()
    single = failure.search(r"Expected (\S+) \(tangent type of (\S+)\) but got (\S+?)\.(?:\s|$)")
    several = failure.search(r"primal (\S+) with tangent (\S+), expecting tangent (\S+)")
    structure = failure.search(r"structures, but got (.+?) and (.+?) respectively", re.S)
    differs = failure.search(
        r"had (?:container/pytree structure|shapes/dtypes of):?\s+(.+?)\s+while the custom_jvp-decorated function \S+ "
        r"had output (?:container/pytree structure|shapes/dtypes of):\s+(.+?)\.?\s*$",
        re.S,
    )
    rule_name = f"{jvp}, the derivative rule of {function}," if jvp else "The derivative rule of a custom_jvp"
    if single:
        what = f"{rule_name} gives a tangent of {single.group(3)} for an output of {single.group(2)}."
    elif several:
        what = f"{rule_name} gives a tangent of {several.group(2)} for an output of {several.group(1)}."
    elif differs:
        what = f"{rule_name} gives the output {differs.group(1)}, but the function itself gives {differs.group(2)}."
    elif structure:
        what = f"{rule_name} gives an output {structure.group(1)} and a tangent {structure.group(2)}."
    elif failure.search(r"representing primal and tangent outputs, but got"):
        what = f"{rule_name} does not return a pair."
    else:
        return None
    fitted = None
    written = [(n.removesuffix(".defjvp"), s) for n, s in failure.sources.items() if n.endswith(".defjvp")]
    if not jvp and len(written) == 1:
        named = re.search(r"def (\w+)\(", written[0][1])
        function, jvp = written[0][0], named.group(1) if named is not None else None
    if single and jvp and jvp.isidentifier() and function and function.isidentifier():
        need, got = (re.fullmatch(r"(\w+)\[([\d,]*)\]", single.group(n)) for n in (2, 3))
        if need is not None and got is not None:
            change = _summed("tangent", sizes(got.group(2)), sizes(need.group(2)))
            cast = f".astype({need.group(1)!r})" if need.group(1) != got.group(1) else ""
            if change is not None:
                fitted = Fix(
                    f"Bring the tangent of {jvp} to the output's type"
                    + (", summing over the axes that the output has not" if change != "tangent" else ""),
                    f"@{function}.defjvp\ndef {function}_jvp_fitted(primals, tangents):\n"
                    f"    output, tangent = {jvp}(primals, tangents)\n    return output, {change}{cast}",
                )
    return Finding(
        what=what,
        why="A custom_jvp rule returns (output, tangent): the output equals that of the function, and the tangent has "
        "the same structure, shapes and dtypes.",
        fixes=[
            *([fitted] if fitted is not None else []),
            Fix(
                "Return output and tangent alike",
                f"def {jvp if jvp and jvp.isidentifier() else 'rule'}(primals, tangents):\n"
                "    (x,), (dx,) = primals, tangents\n"
                f"    y = {function if function and function.isidentifier() else 'f'}(x)\n"
                "    return y, (derivative(x) * dx).astype(y.dtype)",
            ),
        ],
        facts={"rule": jvp, "function": function},
    )


@rule(
    "JPX1614",
    "forward-mode-of-custom-vjp",
    types=("TypeError",),
    clues=("can't apply forward-mode autodiff (jvp) to a custom_vjp function",),
)
def forward_mode_of_custom_vjp(failure: Failure) -> Finding | None:
    _, inner = derivative_calls(failure, "jacfwd", "hessian", "jvp", "linearize")
    function = _function(inner)
    name = inner.name if inner is not None else None
    fixes = []
    if inner is not None and function and name in ("jacfwd", "hessian"):
        new = f"jax.jacrev({function}{_options(inner)})"
        if name == "hessian":
            new = f"jax.jacrev(jax.jacrev({function}{_options(inner)}){_options(inner)})"
        fixes.append(Fix("Differentiate backwards", _rewritten(failure, inner, new) or new))
    else:
        fixes.append(Fix("Differentiate backwards", f"jax.jacrev({function or 'f'})  # or jax.grad, jax.vjp"))
    fixes.append(
        Fix(
            "Or write the rule as a custom_jvp, which serves both directions",
            "@jax.custom_jvp\ndef f(x):\n    return jnp.sin(x)\n\n@f.defjvp\ndef f_jvp(primals, tangents):\n"
            "    (x,), (dx,) = primals, tangents\n    return f(x), jnp.cos(x) * dx",
        )
    )
    return Finding(
        what=f"{name or 'Forward-mode differentiation (jvp, jacfwd, hessian)'} met a function whose derivative is "
        "defined by jax.custom_vjp, that is, for going backwards only.",
        why="jacfwd, jvp, linearize and the outer half of hessian go forwards; a custom_vjp rule tells only how to go "
        "backwards. Libraries define some functions so.",
        fixes=fixes,
        facts={"transformation": name, "function": function},
    )


@rule(
    "JPX1615",
    "grad-of-no-number",
    types=("TypeError",),
    clues=("is not a valid JAX type",),
    priority=10,
)
def grad_of_no_number(failure: Failure) -> Finding | None:
    match = failure.search(r"Argument '(.*?)' of type <class '([\w.<>]+)'> is not a valid JAX type", re.S)
    outer, inner = derivative_calls(failure, "grad", "value_and_grad", "jacrev", "jacfwd", "hessian", "jacobian")
    if match is None or outer is None or inner is None:
        return None
    value, kind = match.group(1)[:60], match.group(2).rsplit(".", 1)[-1]
    if "." in match.group(2) and kind not in ("ndarray", "Tensor") and re.match(rf"(?:\w+\.)*{kind}\(|<", value):
        return Finding(
            what=f"{inner.name} differentiates with respect to {_quoted(outer.args[0] if outer.args else None)}, an "
            f"object of the class {kind}, and JAX does not know what arrays it holds.",
            why="Arguments may be arrays, numbers, and tuples, lists, dicts, NamedTuples of them. Any other class must "
            "be registered, so that JAX can take it apart and put it together again.",
            fixes=[
                Fix(
                    "If it is a dataclass of arrays, register it",
                    f"jax.tree_util.register_dataclass({kind})  # once, after the class",
                ),
                Fix(
                    "Or pass a dict of its arrays",
                    f"{outer.function}(vars({outer.args[0] if outer.args else 'params'}))",
                ),
            ],
            facts={"value": value, "type": kind, "transformation": inner.name},
        )
    loss = inner.args[0] if inner.args else "loss"
    given = outer.args[0] if outer.args and outer.args[0].isidentifier() else "config"
    return Finding(
        what=f"{inner.name} differentiates with respect to {_quoted(outer.args[0] if outer.args else None)}, which "
        f"holds {value!r}, a {kind}: it is no number.",
        why="Every leaf of an argument to be differentiated must be an array or a number. Names, settings, functions "
        "and None belong into other arguments or into the function's surroundings.",
        fixes=[
            Fix(
                "Split the numbers from the rest",
                f"params = {{name: value for name, value in {given}.items() if not isinstance(value, str)}}\n"
                f"jax.grad(lambda p: ({loss})({{**{given}, **p}}))(params)",
            ),
            Fix(
                "Or put settings into an argument of their own (grad looks at the first one only)",
                f"jax.{inner.name}(lambda params, settings: ({loss})({{**settings, **params}}), argnums=0)",
            ),
        ],
        facts={"value": value, "type": kind, "transformation": inner.name},
    )


@rule(
    "JPX1616",
    "callback-has-no-derivative",
    types=("ValueError",),
    clues=("callbacks do not support JVP", "callbacks do not support transpose"),
)
def callback_has_no_derivative(failure: Failure) -> Finding | None:
    match = failure.search(r"\b(Pure|IO) callbacks do not support (JVP|transpose)\b")
    if match is None:
        return None
    kind = {"Pure": "pure_callback", "IO": "io_callback"}[match.group(1)]
    call = failure.call(kind)
    host = call.args[0] if call is not None and call.args else None
    fixes = [
        Fix(
            "Give the derivative yourself",
            "@jax.custom_jvp\ndef f(x):\n"
            f"    return jax.pure_callback({host or 'host_function'}, jax.ShapeDtypeStruct(x.shape, x.dtype), x)\n\n"
            "@f.defjvp\ndef f_jvp(primals, tangents):\n    (x,), (dx,) = primals, tangents\n"
            "    return f(x), derivative(x) * dx",
        ),
        Fix(
            "Or write the function with jax.numpy, so that JAX can differentiate it", "return jnp.sin(x)", kind="sketch"
        ),
    ]
    if kind == "io_callback":
        fixes = [Fix("Keep the callback out of the derivative", "io_callback(report, None, jax.lax.stop_gradient(x))")]
    return Finding(
        what=f"A derivative was asked of a {kind}{f' of `{host}`' if host else ''}: ordinary Python code that JAX "
        "cannot look into.",
        why="JAX differentiates the operations it traces. A callback is one operation for it, and nobody has said "
        "what its derivative is.",
        fixes=fixes,
        facts={"callback": kind, "function": host},
    )


@rule(
    "JPX1617",
    "operation-has-no-derivative",
    types=("NotImplementedError",),
    clues=(
        "Differentiation rule for '",
        "Transpose rule (for reverse-mode differentiation) for '",
        "Derivatives of non-symmetric eigenvectors",
        "derivatives of eigenvectors are not implemented",
    ),
)
def operation_has_no_derivative(failure: Failure) -> Finding | None:
    if failure.search(r"(?i)derivatives of (?:non-symmetric )?eigenvectors"):
        return Finding(
            what="A derivative of the eigenvectors of a general (not symmetric) matrix was asked for, and JAX has none "
            "that is always right.",
            why="Eigenvectors have any length and sign, so a derivative means something only where the result does not "
            "depend on these. Eigenvalues have a derivative, and so have the eigenvectors of symmetric matrices.",
            fixes=[
                Fix("If the matrix is symmetric, use eigh", "values, vectors = jnp.linalg.eigh(a)"),
                Fix("If eigenvalues are enough, use them alone", "values = jnp.linalg.eigvals(a)"),
            ],
            facts={"operation": "eig"},
        )
    match = failure.search(
        r"(Differentiation rule|Transpose rule \(for reverse-mode differentiation\)) for '(\w+)' not implemented"
    )
    if match is None:
        return None
    forward = match.group(1) == "Differentiation rule"
    operation = match.group(2)
    if not forward and (operation in _CURVED or failure.call("linear_transpose") is not None):
        return None  # it has a derivative: JPX1624
    fixes = [
        Fix(
            "Leave the operation out of the derivative (its contribution counts as constant)",
            "y = operation(jax.lax.stop_gradient(x))",
        ),
        Fix(
            "Or define the derivative yourself",
            "@jax.custom_jvp\ndef f(x):\n    return operation(x)\n\n@f.defjvp\ndef f_jvp(primals, tangents):\n"
            "    (x,), (dx,) = primals, tangents\n    return f(x), derivative(x) * dx",
        ),
    ]
    segment = failure.user.segment if failure.user is not None else None
    call = failure.outer_call
    if forward and call is not None and call.source == segment and call.args and call.name == operation:
        constant = f"{call.function}({', '.join([f'jax.lax.stop_gradient({call.args[0]})', *call.args[1:]])})"
        if not call.keywords:
            fixes[0] = Fix(fixes[0].title, rewritten(failure, call.source, constant))
    if not forward:
        fixes.insert(0, Fix("Differentiate forwards, which this operation allows", "jax.jacfwd(f)(x)"))
    return Finding(
        what=f"JAX knows no {'derivative' if forward else 'reverse-mode derivative'} of the operation {operation}.",
        why="Each basic operation needs a rule for its derivative. Some have none, because there is no meaningful one "
        "or nobody wrote it"
        + ("." if forward else "; going forwards needs one rule, going backwards another, and only that is missing."),
        fixes=fixes,
        facts={"operation": operation},
    )


# Operations that have a derivative, and no transpose, since they are not linear.
_CURVED = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "sinh",
        "cosh",
        "sqrt",
        "rsqrt",
        "cbrt",
        "abs",
        "sign",
        "logistic",
        "erf",
        "erfc",
        "erf_inv",
        "pow",
        "integer_pow",
        "atan2",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "max",
        "min",
        "square",
        "lgamma",
        "digamma",
        "floor",
        "ceil",
        "round",
    ]
)


@rule(
    "JPX1624",
    "function-is-not-linear",
    types=("NotImplementedError",),
    clues=("Transpose rule (for reverse-mode differentiation) for '",),
)
def function_is_not_linear(failure: Failure) -> Finding | None:
    match = failure.search(r"Transpose rule \(for reverse-mode differentiation\) for '(\w+)' not implemented")
    call = failure.call("linear_transpose")
    if match is None or (match.group(1) not in _CURVED and call is None):
        return None
    operation = match.group(1)
    function = call.args[0] if call is not None and call.args else None
    fixes = [
        Fix(
            "Take the linear function that belongs to it at a point: its derivative",
            (failure.rewrite(call.source, f"jax.vjp({', '.join(call.args)})[1]") if call is not None else None)
            or f"y, transposed = jax.vjp({function or 'f'}, x)\nresult = transposed(g)",
        )
    ]
    if call is None:
        fixes.append(
            Fix(
                "In a custom_jvp rule, use the tangents in a linear way only (sums, products with arrays)",
                "return f(x), derivative(x) * dx  # not sin(dx)",
            )
        )
    return Finding(
        what=f"{function or 'A function'} was to be transposed, and it is not linear: it applies {operation} to its "
        "argument.",
        why="Only a linear function (f(a x + b y) = a f(x) + b f(y)) has a transpose. JAX transposes what "
        "jax.linear_transpose is given, the matvec of its linear solvers, and the tangents of derivative rules.",
        fixes=fixes,
        facts={"operation": operation, "function": function},
    )


@rule("JPX1622", "custom-vjp-closes-over-tracer", types=("UnexpectedTracerError",), priority=20)
def custom_vjp_holds_a_tracer(failure: Failure) -> Finding | None:
    # older and newer JAX find out in different ways; here the function is called with the tracer inside
    called = [call.function for call in (failure.user.calls if failure.user is not None else ())]
    called.append(failure.user.function if failure.user is not None else "")
    definitions = [failure.definitions.get(name, "") for name in called]
    source = next((d for d in definitions if "custom_vjp" in d), None)
    lines = [frame.source or "" for frame in failure.user_frames]
    if source is None and not any(re.search(r"custom_vjp|\bdefvjp\(", line) for line in lines):
        return None
    return custom_vjp_closes_over_tracer(failure)


@rule(
    "JPX1618",
    "argnums-beyond-arguments",
    types=("TypeError",),
    clues=("differentiating with respect to argnums=",),
)
def argnums_beyond_arguments(failure: Failure) -> Finding | None:
    match = failure.search(
        r"differentiating with respect to argnums=(\(?[\d, -]+\)?) requires at least (\d+) positional arguments to be "
        r"passed by the caller, but got only (\d+) positional arguments"
    )
    if match is None:
        return None
    argnums, need, got = match.group(1), int(match.group(2)), int(match.group(3))
    outer, inner = derivative_calls(failure)
    fixes = []
    if outer is not None and outer.keywords and inner is not None:
        positional = ", ".join([*outer.args, *outer.keywords.values()])
        new = f"{outer.function}({positional})"
        fixes.append(
            Fix(
                "Pass by position what is differentiated (in the order of the function's parameters)",
                rewritten(failure, outer.source, new),
            )
        )
    else:
        fixes.append(Fix("Pass by position what is differentiated, not by name", "jax.grad(loss)(params, data)"))
    if need > 1:
        fixes.append(Fix("Or differentiate with respect to another argument", "jax.grad(loss, argnums=0)"))
    return Finding(
        what=f"argnums={argnums} asks for the derivative with respect to argument {need - 1} (counted from 0), but "
        f"the call passed {counted(got, 'argument')} by position.",
        why="argnums counts the arguments passed by position. Those passed by name are not differentiated and do not "
        "count.",
        fixes=fixes,
        facts={"argnums": argnums, "needed": need, "got": got},
    )


@rule(
    "JPX1619",
    "custom-rule-not-defined",
    types=("AttributeError",),
    clues=(
        "No VJP defined for custom_vjp",
        "No JVP defined for custom_jvp",
        "No batching rule defined for custom_vmap",
    ),
)
def custom_rule_not_defined(failure: Failure) -> Finding | None:
    match = failure.search(
        r"No (VJP|JVP|batching rule) defined for (custom_\w+) function (\S+) using (defvjp|defjvp|def_vmap)"
    )
    if match is None:
        return None
    _, decorator, function, method = match.groups()
    name = function if function.isidentifier() else "f"
    code = {
        "defvjp": f"{name}.defvjp(forward, backward)",
        "defjvp": f"@{name}.defjvp\ndef {name}_jvp(primals, tangents):\n    (x,), (dx,) = primals, tangents\n"
        f"    return {name}(x), derivative(x) * dx",
        "def_vmap": f"@{name}.def_vmap\ndef {name}_vmap(axis_size, in_batched, xs):\n"
        f"    return jax.lax.map({name}, xs), in_batched[0]",
    }[method]
    return Finding(
        what=f"{function} is decorated with {decorator}, but its rule was never given with {method}.",
        why=f"{decorator} promises a rule of your own; without it the function cannot even be called.",
        fixes=[
            Fix("Define the rule before the first call", code),
            Fix(f"Or do without {decorator}: take the function itself", _undecorated(failure, name)),
        ],
        facts={"function": function, "decorator": decorator},
    )


def _undecorated(failure: Failure, name: str) -> str:
    again = failure.user.statement if failure.user is not None and failure.user.function == "<module>" else None
    return "\n".join([f"{name} = {name}.__wrapped__", *([again] if again else [])])


@rule(
    "JPX1620",
    "custom-rule-arguments",
    types=("TypeError",),
    clues=("could not be resolved to positional-only arguments",),
)
def custom_rule_arguments(failure: Failure) -> Finding | None:
    match = failure.search(
        r"The input arguments to the (custom_\w+)-decorated function (.+?) could not be resolved to positional-only "
        r"arguments\. Binding failed with the error:\s*(.+)",
        re.S,
    )
    if match is None:
        return None
    decorator, function, reason = match.group(1), match.group(2), match.group(3).strip().split("\n")[0]
    return Finding(
        what=f"The call of {function} does not fit its signature: {reason}.",
        why=f"JAX turns all arguments of a {decorator} function into positional ones, as its rules are written by "
        "position. Keyword-only parameters and missing arguments cannot be turned.",
        fixes=[
            Fix(
                "Give all arguments, and take no keyword-only parameters",
                f"@jax.{decorator}\ndef {function if function.isidentifier() else 'f'}(x, scale):  # no * in here\n"
                "    return x * scale",
            )
        ],
        facts={"function": function, "decorator": decorator, "reason": reason},
    )


@rule(
    "JPX1621",
    "array-in-nondiff-argnums",
    types=("UnexpectedTracerError",),
    clues=("passed as an argument to a custom_vjp function in a position indicated by nondiff_argnums",),
    priority=10,
)
def array_in_nondiff_argnums(failure: Failure) -> Finding | None:
    call = failure.outer_call
    return Finding(
        what=f"{f'`{call.source}` passes' if call is not None and len(call.source) < 60 else 'A call passed'} an array "
        "that JAX traces to a custom_vjp function, in a position named in nondiff_argnums.",
        why="nondiff_argnums is for arguments that are no arrays: functions, names, Python numbers. An array that has "
        "no gradient stays an ordinary argument, and the backward rule returns None for it.",
        fixes=[
            Fix(
                "Drop nondiff_argnums, and return None as that argument's gradient",
                "@jax.custom_vjp\ndef f(n, x):\n    return n * x\n\n"
                "f.defvjp(lambda n, x: (n * x, (n,)), lambda saved, g: (None, g * saved[0]))",
            )
        ],
        facts={"call": call.source if call is not None else None},
    )


@rule(
    "JPX1622",
    "custom-vjp-closes-over-tracer",
    types=("CustomVJPException",),
    clues=("Detected differentiation of a custom_vjp function with respect to a closed-over value",),
)
def custom_vjp_closes_over_tracer(failure: Failure) -> Finding | None:
    return Finding(
        what="A custom_vjp function uses a value from outside its arguments, and the derivative with respect to that "
        "value is asked for.",
        why="The rule of a custom_vjp gives gradients for the function's arguments only; nothing says how the result "
        "changes with a value that comes in from the surroundings.",
        fixes=[
            Fix(
                "Pass the value as an argument, and return a gradient for it",
                "@jax.custom_vjp\ndef f(x, scale):\n    return scale * x\n\n"
                "f.defvjp(lambda x, scale: (scale * x, (x, scale)), lambda saved, g: (g * saved[1], g * saved[0]))",
            ),
            Fix("Or keep the value constant", "scale = jax.lax.stop_gradient(scale)"),
        ],
    )


def _jit_without_function(failure: Failure) -> Finding | None:
    call = failure.call("jit")
    if call is None or call.args or not re.match(r"(?:jax\.)?jit$", call.function):
        return None
    options = ", ".join(f"{k}={v}" for k, v in call.keywords.items())
    whole = failure.user.statement if failure.user is not None else None
    new = f"functools.partial({call.function}{', ' + options if options else ''})"
    code = (whole or f"@{call.source}\ndef f(x):\n    return x").replace(call.source, new, 1)
    return Finding(
        what=f"`{call.source}` calls jit without a function.",
        why="This version of JAX wants the function in the same call as the options; newer ones also give a decorator "
        "if jit is called with options alone. functools.partial makes the decorator on all versions.",
        fixes=[
            Fix(
                "Make the decorator with functools.partial",
                f"import functools\n\n{code}",
                kind="sketch" if code.startswith("@") else "here",
            )
        ],
        facts={"options": options},
    )


@rule(
    "JPX1623",
    "transform-needs-a-function",
    types=("TypeError",),
    clues=("Expected a callable value, got", "Expected a function, got a generator function", "jit() missing 1"),
)
def transform_needs_a_function(failure: Failure) -> Finding | None:
    if failure.search(r"^(?:\w+\.)?jit\(\) missing 1 required positional argument: 'fun'"):
        return _jit_without_function(failure)
    match = failure.search(r"^(?:Expected a callable value, got |Expected a function, got a generator function: )(.*)")
    if match is None:
        return None
    generator = "generator function" in match.group(0)
    got = match.group(1).strip()[:60]
    call = failure.call("jit", "vmap", "pmap", "checkpoint", "remat", *_DERIVATIVES)
    name = call.name if call is not None else "The transformation"
    argument = call.args[0] if call is not None and call.args else None
    fixes = []
    if generator:
        what = f"{name} got a generator function ({got}): one with `yield` in it."
        fixes.append(
            Fix("Return the values together", "def f(x):\n    return jax.numpy.stack([g(x, i) for i in range(3)])")
        )
    else:
        what = f"{name} takes a function, and got {got or 'something else'}"
        what += f" from `{argument}`." if argument else "."
        inside = re.fullmatch(r"([\w.]+)\((.*)\)", argument or "", re.S)
        if inside and call is not None:
            new = f"{call.function}({inside.group(1)}{_options(call)})({inside.group(2)})"
            fixes.append(
                Fix("Give the function first, and the arguments afterwards", rewritten(failure, call.source, new))
            )
        else:
            fixes.append(Fix("Give the function first, and the arguments afterwards", "jax.grad(f)(x)"))
    return Finding(
        what=what,
        why="jit, grad, vmap and their like take a function and return a new function; that one is called with the "
        "arguments: jax.grad(f)(x), not jax.grad(f(x)).",
        fixes=fixes,
        facts={"transformation": name, "got": got, "argument": argument},
    )
