"""Values that are no arrays: strings, None, objects, lists, generators, tensors of other libraries."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import listed
from ._lines import ARRAY, called_with, enclosed, jax_at_line, nodes, operands, rewritten, static_fix, with_argument
from .immutability import attribute_call, missing_attribute

_ITERABLES = (
    "generator",
    "set",
    "frozenset",
    "range",
    "dict_values",
    "dict_keys",
    "dict_items",
    "map",
    "zip",
    "filter",
)
_FUNCTIONS = ("function", "builtin_function_or_method", "PjitFunction", "method", "type", "partial", "CompiledFunction",
              "_ScalarMeta", "ufunc", "custom_jvp", "custom_vjp")  # fmt: skip
_NO_CLASS = ("str", "bytes", "NoneType", "list", "tuple", "dict", "ndarray", *_ITERABLES, *_FUNCTIONS)
_OTHERS = {"torch": "torch", "tensorflow": "tensorflow", "pandas": "pandas", "polars": "polars", "xarray": "xarray"}


@dataclass(frozen=True)
class _Problem:
    kind: str  # qualified type name: "str", "numpy.ndarray", "__main__.State"
    name: str  # its last part
    function: str | None  # the function that got it
    path: str | None  # where: "how", "t['mass']"
    position: int | None
    dtype: str | None
    value: str | None
    jit: bool  # whether a jitted function got it, so that it may be static


def _problem(failure: Failure) -> _Problem | None:
    """The value that JAX cannot take, in the words of all versions."""
    match = failure.search(
        r"Error interpreting argument to (.*?) as an abstract array\. The problematic value is of type <(?:class|enum) "
        r"'([^']+)'> "
        r"and was passed to the function at path (\S+?)\.(?:\s|$)",
        re.S,
    )
    if match is not None:
        function = re.search(r"<function (\S+) at|(?:^|\.)(\w+)$", match.group(1))
        name = next((g for g in function.groups() if g), None) if function is not None else None
        return _made(match.group(2), name.rpartition(".")[2] if name else None, match.group(3), jit=True)
    match = failure.search(
        r"Error interpreting argument to (\S+) as a JAX value\. The problematic value is of type <class '([^']+)'>"
        r" and was passed to \S+ at position (\d+)"
    )
    if match is not None:
        return _made(match.group(2), None, None)
    match = failure.search(r"Argument '(.*?)' of type '?<class '([^']+)'>'? is not a valid JAX type", re.S)
    if match is not None:
        return _made(match.group(2), None, None, value=match.group(1))
    match = failure.search(r"Cannot interpret value of type <class '([^']+)'> as an abstract array")
    if match is not None:
        return _made(match.group(1), None, None)
    match = failure.search(r"Value '(.*?)' with dtype (\S+) is not a valid JAX array type", re.S)
    if match is not None:
        return _made(_kind_of(match.group(1), match.group(2)), None, None, dtype=match.group(2), value=match.group(1))
    match = failure.search(r"Dtype (\w+)(?:\[\w+\])? is not a valid JAX array type")
    if match is not None:
        return _made("numpy.ndarray", None, None, dtype=match.group(1))
    match = failure.search(r"\b(\w+) requires ndarray or scalar arguments, got <class '([^']+)'> at position (\d+)")
    if match is not None:
        return _made(match.group(2), match.group(1), None, position=int(match.group(3)))
    match = failure.search(
        rf"unsupported operand type\(s\) for \S+: '{ARRAY}' and '([\w.]+)'"
        rf"|unsupported operand type\(s\) for \S+: '([\w.]+)' and '{ARRAY}'"
        rf"|not supported between instances of '{ARRAY}' and '([\w.]+)'"
        rf"|not supported between instances of '([\w.]+)' and '{ARRAY}'"
    )
    if match is not None:
        return _made(next(g for g in match.groups() if g), None, None)
    if failure.search(r"^None is not a valid value for jnp\.array"):
        return _made("NoneType", "array", None)
    return None


def _made(
    kind: str,
    function: str | None,
    path: str | None,
    *,
    position: int | None = None,
    dtype: str | None = None,
    value: str | None = None,
    jit: bool = False,
) -> _Problem:
    return _Problem(kind, kind.rpartition(".")[2], function, path, position, dtype, value, jit)


def _kind_of(value: str, dtype: str) -> str:
    if re.match(r"[<>|=]?[US]\d*$", dtype):
        return "str"
    if value.startswith("<generator"):
        return "generator"
    if re.match(r"dict_(values|keys|items)\(", value):
        return value.partition("(")[0]
    if re.match(r"<(?:function|built-in)", value):
        return "function"
    if re.match(r"\{.*:", value, re.S):
        return "dict"
    if value.startswith("{"):
        return "set"
    match = re.match(r"<([\w.]+) object at", value)
    if match:
        return {"map": "map", "zip": "zip", "filter": "filter"}.get(match.group(1), match.group(1))
    return "numpy.ndarray"


def _calls_at_line(failure: Failure) -> tuple[Call, ...]:
    return failure.user.calls if failure.user is not None else ()


def _argument(failure: Failure, problem: _Problem) -> str | None:
    """Source of the value at the user's line."""
    for call in failure.user.calls if failure.user is not None else ():
        if problem.position is not None and call.name == problem.function and problem.position < len(call.args):
            return call.args[problem.position]
    line = operands(failure)
    candidates = [*(line[::2] if line is not None else ())]
    for call in failure.user.calls[:2] if failure.user is not None else ():
        candidates += [*call.args, *call.keywords.values()]
    for source in candidates:
        variable = failure.variable(source)
        if variable is not None and variable.type == problem.name:
            return source
        if source == "None" and problem.name == "NoneType":
            return source
    return None


def _received(problem: _Problem) -> str:
    if problem.function and problem.path:
        return f"{problem.function} got it as its argument {problem.path}"
    return f"{problem.function} got it" if problem.function else "JAX got it"


_TYPES = ("TypeError", "ValueError")
_CLUES = (
    "The problematic value is of type",
    "is not a valid JAX type",
    "Cannot interpret value of type",
    "is not a valid JAX array type",
    "requires ndarray or scalar arguments",
    "unsupported operand type",
    "not supported between instances",
    "None is not a valid value for jnp.array",
)


@rule("JPX1105", "string-argument-is-not-static", types=_TYPES, clues=_CLUES[:3])
def string_argument_is_not_static(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name not in ("str", "bytes") or problem.dtype is not None:
        return None
    call = failure.outer_call
    base = re.match(r"\w+", problem.path or "")
    name = base.group() if base else None
    nested = problem.path is not None and name != problem.path
    own = call is not None and call.name == problem.function and re.match(r"(jnp|jax)\.", call.function)
    quoted = f" {problem.value!r}" if problem.value else ""
    fixes = []
    if own and call is not None and call.args:
        what = f"{call.function} takes numbers, and got a string (`{call.args[0]}`)."
        fixes.append(Fix("Make a number of the text first", f"{call.function}(float({call.args[0]}))"))
        return Finding(what, "JAX computes with numbers only.", fixes, {"function": problem.function})
    if problem.jit and not nested:
        fix = static_fix(failure, name, problem.function or "function")
        if fix is not None:
            fixes.append(fix)
    elif nested:
        fixes.append(
            Fix(
                f"Keep only arrays in {name}, and pass the text as an argument of its own, marked static",
                f"f = jax.jit(function, static_argnames='mode')\nf({name}, mode='text')",
            )
        )
    transform = failure.call(
        "vmap", "pmap", "scan", "cond", "while_loop", "fori_loop", "device_put", "map", "switch", "jit"
    )
    if not problem.jit:
        fixes.append(
            Fix(
                "Keep the text outside: let the function see it from its surroundings",
                "jax.vmap(lambda x: f(x, 'text'))(xs)",
            )
        )
    where = (
        f" ({_received(problem)})"
        if problem.function
        else f" ({transform.name} got it)"
        if transform is not None
        else ""
    )
    return Finding(
        what=f"A string{quoted} was passed where JAX needs arrays{where}.",
        why="jit, vmap and the loops of JAX replace their arguments by traced arrays, and a string cannot be one. A "
        "setting "
        "that chooses what to compute is a compile-time constant: a static argument.",
        fixes=fixes,
        facts={"function": problem.function, "argument": problem.path, "value": problem.value},
        guess=not problem.jit and not failure.frames,
    )


@rule(
    "JPX1105",
    "string-argument-is-not-static",
    types=("ValueError",),
    clues=("was requested to map its argument",),
    priority=20,
)
def string_mapped(failure: Failure) -> Finding | None:
    # JAX up to 0.7 takes a string for an array without axes
    match = failure.search(r"\b(vmap|pmap) was requested to map its argument along axis")
    call = failure.outer_call
    if match is None or call is None:
        return None
    for source in call.args:
        variable = failure.variable(source)
        if re.match(r"['\"]", source) or (variable is not None and variable.type == "str"):
            return Finding(
                what=f"{match.group(1)} got the string {source}, and maps every argument along an axis.",
                why="A string is no array. A setting belongs outside: into the surroundings of the function.",
                fixes=[
                    Fix(
                        "Keep the text outside: let the function see it from its surroundings",
                        f"jax.{match.group(1)}(lambda x: f(x, {source}))(xs)",
                    )
                ],
                facts={"argument": source},
            )
    return None


@rule("JPX1109", "function-argument-is-not-static", types=_TYPES, clues=_CLUES[:3])
def function_argument_is_not_static(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name not in _FUNCTIONS:
        return None
    base = re.match(r"\w+", problem.path or "")
    name = base.group() if base else None
    nested = problem.path is not None and name != problem.path
    fixes = []
    applied, code = failure.applied("jit"), None
    if applied is not None and applied[1].args and len(applied[0].args) > 1:
        given, *rest = applied[0].args
        code = f"jax.jit(lambda *rest: ({applied[1].args[0]})({given}, *rest))({', '.join(rest)})"
    if problem.jit and name and not nested:
        fix = static_fix(failure, name, problem.function or "function")
        if fix is not None:
            fixes.append(fix)
    fixes.append(
        Fix(
            "Or let the function be known from its surroundings"
            if fixes
            else "Let the function be known from its surroundings",
            code or f"jax.jit(lambda x: function({name or 'g'}, x))(x)",
        )
    )
    where = f" as its argument {problem.path}" if problem.path else ""
    return Finding(
        what=f"{problem.function or 'A transformed function'} got a function{where}; JAX can trace only arrays.",
        why="jit replaces arguments by traced arrays. A function is no array: it chooses what is computed, so it is a "
        "compile-time constant (a static argument), or stands in the surroundings.",
        fixes=fixes,
        facts={"function": problem.function, "argument": problem.path, "type": problem.kind},
    )


@rule("JPX0952", "array-of-objects", types=_TYPES, clues=_CLUES[:4])
def array_of_objects(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name != "ndarray":
        return None
    arrays = [v for v in failure.variables.values() if v.type == "ndarray" and v.dtype is not None]
    odd = [v for v in arrays if re.match(r"object|[<>|=]?[USOM]\d*|datetime|timedelta", v.dtype or "")]
    variable = odd[0] if len({v.name for v in odd}) >= 1 else None
    dtype = problem.dtype or (variable.dtype if variable is not None else None)
    if dtype is not None and re.match(r"[<>|=]?[US]\d", dtype):
        return _strings(failure, problem, variable.name if variable is not None else None)
    if dtype is not None and re.match(r"datetime|timedelta|[<>|=]?[Mm]8", dtype):
        return None
    name = variable.name if variable is not None and variable.name.isidentifier() else None
    element = variable.element if variable is not None else None
    shown = name or problem.path or "data"
    holds = f", and holds Python objects (the first is a {element})" if element else ", and holds Python objects"
    what = f"`{shown}` has dtype object{holds}." if dtype == "object" else (
        f"`{problem.path}` is a numpy array of a dtype that JAX does not have: object (mixed or ragged data), text "
        "or dates."
        if problem.path
        else "A numpy array has a dtype that JAX does not have: object (mixed or ragged data), text or dates."
    )  # fmt: skip
    fixes = [
        Fix(
            "Make it an array of numbers (None becomes nan, text is read as numbers)",
            f"{_assignable(shown)} = np.asarray({shown}, dtype=np.float32)",
        ),
    ]
    if element in ("list", "ndarray", "tuple", "ArrayImpl"):
        fixes = [
            Fix(
                "Fill the rows up with zeros to one length",
                f"longest = max(len(row) for row in {shown})\n"
                f"{_assignable(shown)} = jnp.array([np.pad(row, (0, longest - len(row))) for row in {shown}])",
            )
        ]
    fixes.append(
        Fix("See which items are no numbers", f"print([v for v in {shown} if not isinstance(v, (int, float))])")
    )
    return Finding(
        what=what,
        why="JAX arrays hold numbers of one dtype. numpy makes an array of objects of mixed types, of None, and of "
        "rows with "
        "different lengths; pandas of columns with text or missing values.",
        fixes=fixes,
        facts={"array": shown, "dtype": dtype, "element": element},
    )


def _assignable(source: str) -> str:
    return source if re.fullmatch(r"[\w.]+(\[[^\]]+\])?", source) else "data"


@rule("JPX0953", "strings-in-an-array", types=_TYPES, clues=("is not a valid JAX array type",))
def strings_in_an_array(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name not in ("str", "bytes") or problem.dtype is None:
        return None
    return _strings(failure, problem, None)


def _strings(failure: Failure, problem: _Problem, name: str | None) -> Finding:
    call = failure.outer_call
    source = name or (call.args[0] if call is not None and call.args else "labels")
    number = re.fullmatch(r"\s*-?[\d.]+(e-?\d+)?\s*", problem.value or "")
    encode = Fix(
        "Number the different strings, and keep the names in Python",
        f"import numpy as np\nnames, codes = np.unique({source}, return_inverse=True)\ncodes = jnp.array(codes)",
    )
    convert = Fix("Read the text as numbers", f"import numpy as np\njnp.array(np.asarray({source}, dtype=float))")
    shown = f" ({problem.value!r})" if problem.value else ""
    return Finding(
        what=f"`{source}` holds text{shown}, which cannot be put into a JAX array.",
        why="JAX arrays hold numbers only; XLA has no type for text.",
        fixes=[convert, encode] if number else [encode],
        facts={"value": problem.value, "dtype": problem.dtype},
    )


@rule("JPX0954", "none-in-array-code", types=_TYPES, clues=_CLUES, anywhere=True)
def none_in_array_code(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name != "NoneType":
        return None
    if failure.user is not None and failure.user.raises:
        return None
    source = _argument(failure, problem)
    shown = f"`{source}` is None" if source and source != "None" else "None was given"
    line = operands(failure)
    call = next(
        (c for c in (failure.user.calls if failure.user is not None else ()) if c.name == problem.function), None
    )
    operation = (
        f"`{line[0]} {line[1]} {line[2]}`"
        if line is not None
        else call.function
        if call is not None
        else problem.function
    )
    if call is not None and call.name == "where" and len(call.args) + len(call.keywords) == 2:
        return _where_of_two(failure, call)
    name = source if source and source.isidentifier() and source != "None" else "w"
    statement = failure.user.statement if failure.user is not None else None
    fixes = [
        Fix("Give a value that changes nothing where there is none", f"{name} = 1.0 if {name} is None else {name}")
    ]
    if statement and "\n" not in statement and re.match(r"(\w+ = |return )", statement) and name in statement:
        head, value = re.match(r"(\w+ = |return )(.*)", statement, re.S).groups()  # type: ignore[union-attr]
        without = "x"
        others = [
            v.name
            for v in failure.variables.values()
            if v.array and v.name.isidentifier() and re.search(rf"\b{v.name}\b", value)
        ]
        without = others[0] if others else without
        fixes.insert(
            0, Fix("Ask for None in Python, before the array code", f"{head}{without} if {name} is None else {value}")
        )
    return Finding(
        what=f"{shown}, and {operation or 'an array operation'} needs an array or a number.",
        why="An argument that was not given, or a function without return, is None. Asking `is None` is fine under "
        "jit too: "
        "None is known while JAX traces.",
        fixes=fixes,
        facts={"argument": source, "operation": problem.function},
    )


def _slice_argument(failure: Failure, problem: _Problem) -> Finding:
    source = _argument(failure, problem)
    calls = failure.applied("jit")
    code = "jax.jit(lambda x: x[start:stop])(x)"
    if calls is not None and calls[1].args and source is not None and source in calls[0].args:
        outer, inner = calls
        names = [f"v{n}" for n in range(len(outer.args))]
        inside = ", ".join(source if a == source else n for a, n in zip(outer.args, names))
        outside = ", ".join(n for a, n in zip(outer.args, names) if a != source)
        rest = ", ".join(a for a in outer.args if a != source)
        code = f"jax.jit(lambda {outside}: ({inner.args[0]})({inside}))({rest})"
    return Finding(
        what=f"{problem.function or 'The function'} got a slice as its argument {problem.path or ''}".rstrip()
        + ", which is no array.",
        why="The bounds of a slice say how long the result is, so they must be known when JAX compiles the function.",
        fixes=[Fix("Let the function see the slice from its surroundings", code)],
        facts={"type": "slice", "argument": source},
    )


def _number_of_another_kind(failure: Failure, problem: _Problem) -> Finding:
    source = _argument(failure, problem) or _passed_for(failure, problem) or problem.path or "x"
    code = with_argument(failure, failure.outer_call, source, f"float({source})")
    return Finding(
        what=f"`{source}` is a {problem.name}, and JAX computes with floats and integers of fixed size only.",
        why=f"A {problem.name} is exact, with as many digits as it needs; XLA has no such numbers.",
        fixes=[Fix("Make a float of it", code)],
        facts={"type": problem.kind, "argument": source},
    )


def _passed_for(failure: Failure, problem: _Problem) -> str | None:
    """What the user's call passed for the parameter that JAX names."""
    for transform in ("jit", "vmap", "grad"):
        calls = failure.applied(transform)
        parameters = re.match(r"lambda ([\w, ]*):", calls[1].args[0]) if calls is not None and calls[1].args else None
        names = parameters.group(1).split(", ") if parameters is not None else []
        position = names.index(problem.path) if problem.path and problem.path in names else None
        if calls is not None and position is not None and position < len(calls[0].args):
            return calls[0].args[position]
    return None


def _where_of_two(failure: Failure, call: Call) -> Finding:
    new = f"{call.source[:-1]}, 0)"
    return Finding(
        what=f"`{call.source}` says what stands where the condition is true, and not what stands elsewhere.",
        why="where takes one argument (and gives the positions of what is true) or three: the condition, the value if "
        "it is true, and the value if not.",
        fixes=[Fix("Give the other value too, here 0", rewritten(failure, call.source, new))],
        facts={"argument": None, "operation": "where"},
    )


@rule("JPX0955", "class-that-jax-does-not-know", types=_TYPES, clues=_CLUES[:4])
def class_that_jax_does_not_know(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name in _NO_CLASS:
        return None
    if problem.kind.partition(".")[0] in _OTHERS or problem.kind.startswith(("numpy.", "jax.", "jaxlib.", "datetime.")):
        return None
    if problem.kind == "slice":
        return _slice_argument(failure, problem)
    if problem.kind in ("int", "float", "complex", "bool", "object", "ellipsis"):
        return None
    if problem.name in ("Fraction", "Decimal", "mpf", "mpfr"):
        return _number_of_another_kind(failure, problem)
    if problem.path == "self":
        return _method(failure, problem)
    name = problem.name
    if problem.kind == "module" or (failure.search(r"value is of type <enum '") and problem.jit):
        fix = (
            static_fix(failure, problem.path, problem.function or "function") if problem.jit and problem.path else None
        )
        return Finding(
            what=f"{problem.function or 'A function of JAX'} got "
            f"{'a module' if problem.kind == 'module' else f'a member of the enum {name}'}"
            f"{f' as its argument {problem.path}' if problem.path else ''}; JAX takes arrays.",
            why="jit, grad and vmap replace their arguments by traced arrays. A module or an enum chooses what is "
            "computed: it is a compile-time constant.",
            fixes=[fix or Fix("Use it from the surroundings", "f = jax.jit(lambda x: function(x))")],
            facts={"class": problem.kind, "function": problem.function, "argument": problem.path},
        )
    head = failure.sources.get(name, "").partition("class ")
    fixes = [
        Fix(
            "If it is a dataclass of arrays, register it",
            f"jax.tree_util.register_dataclass({name})  # once, after the class",
        )
        for _ in range("dataclass" in head[0] or not head[1])
    ]
    fixes += [
        Fix(
            "Any other class that holds arrays: say how to take it apart and how to put it together",
            f"def rebuild(names, values):\n    new = object.__new__({name})\n    new.__dict__.update(zip(names, "
            "values))\n"
            f"    return new\n\njax.tree_util.register_pytree_node(\n    {name}, lambda s: (tuple(vars(s).values()), "
            "tuple(vars(s))), "
            "rebuild\n)",
        ),
    ]
    fields = failure.definitions.get(name, "")
    holds_arrays = re.search(r": *[\w.]*\bArray\b", fields) is not None
    if problem.jit and problem.path and problem.path.isidentifier() and not holds_arrays:
        fix = static_fix(
            failure,
            problem.path,
            problem.function or "function",
            f"If it holds settings only, and no arrays: make {problem.path} a compile-time constant",
        )
        if fix is not None:
            fixes.append(fix)
    where = f" as its argument {problem.path}" if problem.path else ""
    return Finding(
        what=f"{problem.function or 'A function of JAX'} got an object of the class {name}{where}, and JAX does not "
        "know what "
        "arrays it holds.",
        why="Arguments and results may be arrays, numbers, and tuples, lists, dicts, NamedTuples of them. Any other "
        "class must "
        "be registered, so that JAX can take it apart and put it together again.",
        fixes=fixes,
        facts={"class": problem.kind, "function": problem.function, "argument": problem.path},
    )


def _method(failure: Failure, problem: _Problem) -> Finding:
    name = problem.function or "step"
    call = failure.outer_call
    code = f"{name} = jax.jit(object_.{name})\n{name}(x)  # object_: your {problem.name}; without @jax.jit in the class"
    if call is not None and (call.name == name or name == "__call__") and problem.name.isidentifier():
        holder = call.function.rpartition(".")[0] if call.name == name else call.function
        compiled = name.strip("_")
        arguments = ", ".join([*call.args, *(f"{k}={v}" for k, v in call.keywords.items())])
        code = f"{compiled} = jax.jit(functools.partial({problem.name}.{name}.__wrapped__, {holder}))\n"
        code += rewritten(failure, call.source, f"{compiled}({arguments})")
    return Finding(
        what=f"The method {name} is jitted, so its self, an object of the class {problem.name}, is an argument; JAX "
        "does not "
        "know what arrays it holds.",
        why="A method is a function of self and the rest. self must be a compile-time constant, or a class that JAX "
        "can take "
        "apart.",
        fixes=[
            Fix(
                "Jit the method of one object: self is then part of the function (what it holds is fixed at the "
                "first call)",
                code,
            ),
            Fix(
                "Or make self a compile-time constant: good while the object never changes",
                f"from functools import partial\n\n@partial(jax.jit, static_argnums=0)\ndef {name}(self, x):\n    "
                "...  # as before",
            ),
        ],
        facts={"class": problem.kind, "function": problem.function, "argument": "self"},
    )


@rule(
    "JPX0956",
    "iterable-is-no-array",
    types=_TYPES,
    clues=(*_CLUES, "has no len()", "Need at least one array to"),
    priority=10,
    anywhere=True,
)
def iterable_is_no_array(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    kind = problem.name if problem is not None else None
    source = _argument(failure, problem) if problem is not None else None
    length = failure.search(r"^object of type '(\w+)' has no len\(\)")
    call = failure.outer_call
    if length is not None or failure.search(r"^Need at least one array to (?:concatenate|stack)"):
        # Python's own words: only for what a function of jax.numpy was given
        call = next(
            (
                c
                for c in (failure.user.calls if failure.user is not None else ())
                if c.name
                in ("stack", "concatenate", "vstack", "hstack", "dstack", "column_stack", "concat", "array", "asarray")
            ),
            None,
        )
        if call is None or not call.args:
            return None
        root = call.function.partition(".")[0]
        if failure.from_jax is not True and root != "jnp":
            return None
        source = call.args[0]
        variable = failure.variable(source)
        if variable is not None:
            kind = variable.type
        elif re.search(r"\bfor\b", source) and not source.startswith(("[", "{")):
            kind = "generator"
        elif length is not None:
            kind = length.group(1)
    if kind not in _ITERABLES:
        return None
    if failure.user is not None and failure.user.raises:
        return None
    summed = problem is not None and (problem.function or "").startswith("_reduce_")
    if summed and call is not None and call.args and source is None:
        source = call.args[0]
    if source is None and call is not None and problem is not None and not problem.jit and call.args:
        source = call.args[0]
    base = re.match(r"\w+", problem.path or "") if problem is not None else None
    shown = source or (problem.path if problem is not None else None) or "values"
    made = f"sorted({shown})" if kind in ("set", "frozenset") else f"list({shown})"
    code = None
    if call is not None and source is not None:
        inner = source[1:-1] if source.startswith("(") and source.endswith(")") else source
        listing = f"[{inner}]" if kind == "generator" and " for " in inner else made
        if problem is not None and (problem.jit or summed):
            listing = f"jnp.array({listing})"
        if call.source == f"{call.function}{source}":  # a generator alone shares the brackets of the call
            new = f"{call.function}({listing})"
            code = rewritten(failure, call.source, new)
        code = code or failure.rewrite(source, listing)
    function = (problem.function if problem is not None else None) or (call.name if call is not None else "JAX")
    if function.startswith("_reduce_") and call is not None:
        function = call.function
    word = {"generator": "a generator", "map": "a map object", "zip": "a zip object", "filter": "a filter object"}.get(
        kind, f"a {kind}"
    )
    at = f" as its argument {problem.path}" if base is not None and problem is not None else ""
    return Finding(
        what=f"{function} got {word}{at}{f' (`{source}`)' if source and len(source) < 60 else ''}, which is no array "
        "and no list of arrays.",
        why="JAX needs to know how many items there are, and of which shape, before it computes. A generator or a "
        "view gives its "
        "items one by one, and a set has no order.",
        fixes=[Fix("Make an array of it" if summed else "Make a list of it", code or f"jnp.array({made})")],
        facts={"type": kind, "function": function, "argument": source},
    )


@rule(
    "JPX0959",
    "list-where-an-array-is-needed",
    types=_TYPES,
    clues=("requires ndarray or scalar arguments", "unsupported operand type", "is not a valid JAX array type"),
)
def list_where_an_array_is_needed(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None or problem.name not in ("list", "tuple", "dict"):
        return None
    source = _argument(failure, problem)
    line = operands(failure)
    if source is None and line is not None:
        literal = [s for s in (line[0], line[2]) if s[:1] in "[({"]
        source = literal[0] if len(literal) == 1 else None
    shown = source or "values"
    word = {"list": "a Python list", "tuple": "a Python tuple", "dict": "a dict"}[problem.name]
    operation = (
        f"jnp.{problem.function}" if problem.function else f"`{line[1]}`" if line is not None else "The operation"
    )
    drawn = next((c for c in _calls_at_line(failure) if re.search(r"random\.(choice|permutation)$", c.function)), None)
    if drawn is not None and drawn.name == problem.function and len(drawn.args) > 1:
        return _drawn_from_a_list(failure, drawn, problem.name)
    making = called_with(failure, "array", "asarray") if problem.name == "dict" else None
    if making is not None and making.args:
        return _array_of_dicts(failure, making)
    if problem.name == "dict":
        key = "name"
        fixes = [
            Fix("Take one of its arrays", f"{shown}[{key!r}]"),
            Fix(
                "Or do it to each of its arrays",
                f"jax.tree.map({operation if problem.function else 'function'}, {shown})",
            ),
        ]
    else:
        code = None
        if source is not None and not source.isidentifier():
            code = failure.rewrite(source, f"jnp.array({source})")
        fixes = [Fix("Make an array of it", code or f"jnp.array({shown})")]
    return Finding(
        what=f"{operation} got {word}{f' (`{source}`)' if source else ''}, and takes arrays and numbers.",
        why="numpy turns lists into arrays without a word. JAX does not: under jit each element of a list would "
        "become an input "
        "of its own, which is slow.",
        fixes=fixes,
        facts={"type": problem.name, "function": problem.function, "argument": source},
    )


@rule(
    "JPX0959",
    "list-where-an-array-is-needed",
    types=("TypeError",),
    clues=("argument must be a string", "argument must be a real number"),
    anywhere=True,
)
def dict_as_an_array(failure: Failure) -> Finding | None:
    """JAX before 0.7 lets numpy turn a dict into an array, which asks for its number."""
    call = called_with(failure, "array", "asarray")
    if not failure.search(r"^(?:int|float)\(\) argument must be .*, not 'dict'") or call is None or not call.args:
        return None
    return _array_of_dicts(failure, call) if re.match(r"(?:jnp|jax\.numpy)\.", call.function) else None


def _array_of_dicts(failure: Failure, call: Call) -> Finding:
    given = call.args[0]
    listing = given.startswith("[") or ((v := failure.variable(given)) is not None and v.type in ("list", "tuple"))
    stacked = f"jax.tree.map(lambda *values: jnp.stack(values), *{given})"
    one = f"jax.tree.map(jnp.asarray, {given})"
    return Finding(
        what=f"`{call.source if len(call.source) < 60 else call.function}` is to make an array of "
        f"{'dicts' if listing else 'a dict'}, and an array holds numbers.",
        why="JAX has no arrays of objects. A dict of arrays is fine as it is: jit, grad and vmap take it as an "
        "argument, and jax.tree.map does something to each of its arrays.",
        fixes=[
            Fix(
                "Make one dict, with an array of all the values under each key",
                rewritten(failure, call.source, stacked),
            )
            if listing
            else Fix("Make an array of each of its values", rewritten(failure, call.source, one))
        ],
        facts={"argument": given[:80]},
    )


def _drawn_from_a_list(failure: Failure, call: Call, kind: str) -> Finding:
    """jax.random.choice or permutation of a Python list, which may hold text."""
    listing = call.args[1]
    variable = failure.variable(listing)
    text = variable.element == "str" if variable is not None else bool(re.match(r"[\[(]\s*['\"]", listing))
    array = f"jnp.array({listing})"
    if text:
        index = call.source.replace(listing, f"len({listing})", 1)
        head = f"chosen = {enclosed(listing)}[int({index})]"
        fix = Fix("Draw a position: text cannot be in an array", head)
        if call.name == "permutation" or "shape" in call.keywords or len(call.args) > 2:
            fix = Fix("Draw positions: text cannot be in an array", f"chosen = [{listing}[i] for i in {index}]")
    else:
        fix = Fix("Make an array of it", failure.rewrite(call.source, call.source.replace(listing, array, 1)) or array)
    return Finding(
        what=f"{call.function} got a Python {kind} (`{listing}`), and draws from an array.",
        why="numpy turns lists into arrays without a word; JAX does not. A JAX array holds numbers only.",
        fixes=[fix],
        facts={"type": kind, "function": call.name, "argument": listing},
    )


@rule("JPX0956", "iterable-is-no-array", types=("ValueError",), clues=("Need at least one array to",), priority=10)
def iterator_to_join(failure: Failure) -> Finding | None:
    call = next((c for c in _calls_at_line(failure) if c.name in ("concatenate", "stack", "hstack", "vstack")), None)
    held = failure.variable(call.args[0]) if call is not None and call.args else None
    if call is None or not call.args or failure.from_jax is False:
        return None
    made = re.match(r"(map|zip|filter|reversed)\(", call.args[0])
    if made is None and (held is None or held.type not in _ITERABLES):
        return None
    new = call.source.replace(call.args[0], f"list({call.args[0]})", 1)
    return Finding(
        what=f"{call.name} got a {made.group(1) if made else held.type if held else 'generator'} object "
        f"(`{call.args[0]}`), which is no array and no list of arrays.",
        why="A generator, map or zip gives its items once, when it is asked; JAX needs a list of them.",
        fixes=[Fix("Make a list of it", rewritten(failure, call.source, new))],
        facts={"function": call.name, "argument": call.args[0]},
    )


@rule("JPX0971", "array-in-json", types=("TypeError",), clues=("is not JSON serializable",), anywhere=True)
def array_in_json(failure: Failure) -> Finding | None:
    match = failure.search(rf"^Object of type ({ARRAY}|Array|ArrayImpl|DeviceArray) is not JSON serializable")
    if match is None or "Tracer" in match.group(1):
        return None
    call = next((c for c in _calls_at_line(failure) if c.name in ("dumps", "dump")), None)
    convert = "lambda a: a.tolist()"
    code = f"json.dumps(data, default={convert})"
    if call is not None and "default" not in call.keywords:
        new = call.changed(default=convert)
        code = rewritten(failure, call.source, new)
    return Finding(
        what="A JAX array is to be written as JSON, which knows numbers, text, lists and dicts only.",
        why="tolist() makes Python numbers of an array, or lists of them.",
        fixes=[
            Fix("Write arrays as lists of numbers", code),
            Fix("Or make Python numbers of single values before", "loss = float(loss)"),
        ],
        facts={"type": match.group(1)},
    )


@rule("JPX0972", "format-of-a-whole-array", types=("TypeError",), clues=("unsupported format string passed to",))
def format_of_a_whole_array(failure: Failure) -> Finding | None:
    match = failure.search(
        r"unsupported format string passed to (numpy\.ndarray|ArrayImpl|[\w.]*\.ArrayImpl)\.__format__"
    )
    if match is None or not jax_at_line(failure):
        return None
    text = (failure.user.source or "") if failure.user is not None else ""
    field_ = re.search(r"\{([^{}:]+):([^{}]*)\}", text)
    x, spec = field_.groups() if field_ is not None else ("x", ".2f")
    held = failure.variable(x)
    one = f"{enclosed(x)}.item()"
    fixes = []
    if held is None or held.shape is None or set(held.shape) <= {1}:
        fixes.append(Fix("If it has one item: format that", f'f"{{{one}:{spec}}}"'))
    fixes.append(Fix("Format each item", f'[f"{{v:{spec}}}" for v in {enclosed(x)}.ravel().tolist()]'))
    digits = re.search(r"\.(\d+)", spec)
    fixes.append(
        Fix("Or round the array, and print it whole", f"print(jnp.round({x}, {digits.group(1) if digits else 2}))")
    )
    return Finding(
        what=f"`{x}` is an array with axes, and the format {spec!r} is for one number.",
        why="A format such as .2f is for a single number; an array of shape () counts as one.",
        fixes=fixes,
        facts={"array": x, "format": spec},
    )


@rule("JPX0960", "array-of-another-library", types=_TYPES, clues=_CLUES)
def array_of_another_library(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    library = _OTHERS.get(problem.kind.partition(".")[0]) if problem is not None else None
    if problem is None or library is None:
        return None
    source = _argument(failure, problem) or problem.path or "data"
    convert = {
        "torch": f"jnp.asarray({source}.detach().cpu().numpy())",
        "tensorflow": f"jnp.asarray({source}.numpy())",
        "pandas": f"jnp.asarray({source}.to_numpy(dtype='float32'))",
        "polars": f"jnp.asarray({source}.to_numpy())",
        "xarray": f"jnp.asarray({source}.values)",
    }[library]
    fixes = [Fix("Make a JAX array of it first", f"{_assignable(source)} = {convert}")]
    if problem.name == "DataFrame":
        fixes.append(
            Fix(
                "Or a dict of its columns, which JAX takes too",
                f"{{name: jnp.asarray({source}[name].to_numpy()) for name in {source}}}",
            )
        )
    return Finding(
        what=f"`{source}` is a {problem.name} of {library}, which JAX does not take ({_received(problem)}).",
        why="JAX takes its own arrays, numpy arrays and numbers.",
        fixes=fixes,
        facts={"library": library, "type": problem.kind, "argument": source},
    )


@rule("JPX0963", "dates-in-an-array", types=_TYPES, clues=_CLUES[:4])
def dates_in_an_array(failure: Failure) -> Finding | None:
    problem = _problem(failure)
    if problem is None:
        return None
    odd = [
        v for v in failure.variables.values() if v.type == "ndarray" and re.match(r"datetime|timedelta", v.dtype or "")
    ]
    dates = problem.name in ("datetime64", "timedelta64", "datetime", "date", "timedelta", "Timestamp")
    dates = (
        dates
        or bool(re.match(r"datetime64|timedelta64", problem.dtype or ""))
        or (problem.name == "ndarray" and bool(odd))
    )
    if not dates:
        return None
    source = odd[0].name if odd else _argument(failure, problem) or _passed_for(failure, problem) or "dates"
    if problem.name in ("datetime", "date", "timedelta", "Timestamp"):
        number = {"timedelta": "total_seconds()", "date": "toordinal()"}.get(problem.name, "timestamp()")
        code = with_argument(failure, failure.outer_call, source, f"{enclosed(source)}.{number}")
        return Finding(
            what=f"`{source}` is a {problem.name}, and JAX has no type for dates and times.",
            why="JAX arrays hold numbers only.",
            fixes=[Fix("Pass a number", code)],
            facts={"argument": source},
        )
    return Finding(
        what=f"`{source}` holds dates or times, and JAX has no type for them.",
        why="JAX arrays hold numbers only.",
        fixes=[
            Fix(
                "Count the seconds (or days) since the first one",
                f"import numpy as np\n{source} = np.asarray({source})\n"
                f"seconds = jnp.asarray(({source} - {source}.min()) / np.timedelta64(1, 's'))",
            )
        ],
        facts={"argument": source},
    )


@rule(
    "JPX0961",
    "rows-of-different-lengths",
    types=("ValueError", "TypeError"),
    clues=("setting an array element with a sequence",),
    anywhere=True,
)
def rows_of_different_lengths(failure: Failure) -> Finding | None:
    match = failure.search(
        r"setting an array element with a sequence\. The requested array has an inhomogeneous shape after (\d+) "
        r"dim\S*\. "
        r"The detected shape was (\([\d, ]*\))"
    )
    if match is None:
        return None
    call = next(
        (c for c in (failure.user.calls if failure.user is not None else ()) if c.name in ("array", "asarray")), None
    )
    through = failure.frames_removed or any(f.package == "jax" for f in failure.inner_frames)
    if call is None or not call.args or not through or not re.match(r"(jnp|jax)\b", call.function):
        return None
    rows = call.args[0]
    named = "" if rows == "rows" else f"rows = {rows}\n"
    return Finding(
        what=f"The rows of `{rows if len(rows) < 60 else 'the list'}` have different lengths, so they make no array "
        f"(of {match.group(2)} so far).",
        why="An array is a box: all rows have the same length. JAX has no ragged arrays.",
        fixes=[
            Fix(
                "Fill the rows up with zeros to one length",
                f"import numpy as np\n{named}longest = max(map(len, rows))\n"
                "padded = jnp.array([np.pad(row, (0, longest - len(row))) for row in rows])",
            ),
            Fix("Or keep a list of arrays, which jit takes as well", f"rows = [jnp.array(row) for row in {rows}]"),
        ],
        facts={"rows": rows[:80]},
    )


@rule(
    "JPX0957",
    "array-without-axes-is-no-sequence",
    types=("TypeError",),
    clues=("len() of unsized object", "iteration over a 0-d array"),
)
def array_without_axes_is_no_sequence(failure: Failure) -> Finding | None:
    # numpy's words as well: the array must be JAX's
    match = failure.search(r"^(len\(\) of unsized object|iteration over a 0-d array)")
    if match is None or not failure.frames:
        return None
    drawn = next(
        (
            c
            for c in (failure.user.calls if failure.user is not None else ())
            if re.search(r"\brandom\.", c.function) and len(c.args) > 1
        ),
        None,
    )
    if drawn is not None:
        size = failure.variable(drawn.args[1])
        if size is not None and size.shape == ():
            new = drawn.source.replace(f", {drawn.args[1]}", f", ({drawn.args[1]},)", 1)
            fixes = [Fix("Give the shape as a tuple", rewritten(failure, drawn.source, new))]
            if size.tracer:
                fix = static_fix(failure, drawn.args[1], failure.user.function if failure.user is not None else None)
                fixes = [*([fix] if fix is not None else []), *fixes]
            return Finding(
                what=f"{drawn.function} takes a shape as its second argument, and `{drawn.args[1]}` is a single "
                "number.",
                why="A shape is a tuple of Python ints, known while JAX traces: (3,) for three numbers.",
                fixes=fixes,
                facts={"argument": drawn.args[1]},
            )
    statement = failure.user.statement or "" if failure.user is not None else ""
    if not jax_at_line(failure) and not re.search(r"= *(?:jnp|jax)\.", statement):
        return None
    scalars = [
        v.name
        for v in failure.variables.values()
        if v.type in ("ArrayImpl", "tracer") and v.shape == () and v.name.isidentifier()
    ]
    text = failure.user.segment or failure.user.statement or "" if failure.user is not None else ""
    used = [n for n in scalars if re.search(rf"(?<![\w.]){n}\b", text)]
    if not used and re.fullmatch(r"\w+(?:, ?\w+)+", text):  # Python names what it unpacks into
        text = statement
    call = next(
        (c for c in (failure.user.calls if failure.user is not None else ()) if c.name == "len" and c.args), None
    )
    x = used[0] if len(used) == 1 else call.args[0] if call is not None else "x"
    loop = re.match(r"for \w[\w, ]* in (.+):$", text.split("\n")[0]) or re.match(r"\w+(?:, ?\w+)+ = (.+)$", text)
    if x == "x" and not used and loop is not None:
        x = loop.group(1)
    if match.group(1).startswith("len"):
        return Finding(
            what=f"len() was asked of `{x}`, a JAX array without axes (a single number), which has no length.",
            why="len is the size of axis 0, and an array of shape () has no axis. x.size counts all items.",
            fixes=[
                Fix("Count its items", f"{enclosed(x)}.size"),
                Fix("Or make it an array of one item", f"len(jnp.atleast_1d({x}))"),
            ],
            facts={"array": x},
        )
    unpacked = any(isinstance(n, ast.Tuple) and isinstance(n.ctx, ast.Store) for n in nodes(failure))
    unpacked = unpacked or bool(
        re.match(r"\w+(?:, ?\w+)+ ?= ?", (failure.user.source or "") if failure.user is not None else "")
    )
    mapped = failure.call("vmap", "scan", "map")
    why = "Python goes through axis 0 of an array, and an array of shape () has none."
    if mapped is not None:
        why += f" Inside {mapped.name} the function gets one item at a time, which has one axis fewer."
    return Finding(
        what=f"`{x}` is a JAX array without axes (a single number), and Python tries to "
        f"{'unpack' if unpacked else 'go through'} its items.",
        why=why,
        fixes=[
            Fix("Make it an array of at least one item", f"{x if x.isidentifier() else 'x'} = jnp.atleast_1d({x})"),
            Fix("Look at the shape before this line", f"print(jnp.shape({x}))"),
        ],
        facts={"array": x},
    )


# Attributes of torch, tensorflow and pandas: what they are with JAX. {x} is the array, {a} the arguments.
_FOREIGN = {
    "detach": "jax.lax.stop_gradient({x})",
    "numpy": "np.asarray({x})",
    "to_numpy": "np.asarray({x})",
    "cpu": "jax.device_put({x}, jax.devices('cpu')[0])",
    "cuda": "jax.device_put({x}, jax.devices('gpu')[0])",
    "to": "jax.device_put({x}, jax.devices()[0])  # or another dtype: {x}.astype(jnp.float32)",
    "unsqueeze": "jnp.expand_dims({x}, {a})",
    "permute": "jnp.transpose({x}, ({a},))",
    "numel": "{x}.size",
    "dim": "{x}.ndim",
    "rank": "{x}.ndim",
    "get_shape": "{x}.shape",
    "contiguous": "{x}",
    "long": "{x}.astype(int)",
    "int": "{x}.astype(int)",
    "float": "{x}.astype(float)",
    "double": "{x}.astype(jnp.float64)  # needs jax_enable_x64",
    "half": "{x}.astype(jnp.float16)",
    "bool": "{x}.astype(bool)",
    "type": "{x}.astype({a})",
    "cast": "{x}.astype({a})",
    "expand": "jnp.broadcast_to({x}, ({a},))",
    "broadcast_to": "jnp.broadcast_to({x}, {a})",
    "masked_fill": "jnp.where({a0}, {a1}, {x})",
    "index_select": "jnp.take({x}, {a1}, axis={a0})",
    "gather": "jnp.take_along_axis({x}, {a1}, axis={a0})",
    "mm": "{x} @ {a}",
    "matmul": "{x} @ {a}",
    "bmm": "{x} @ {a}",
    "t": "{x}.T",
    "sub": "{x} - {a}",
    "add": "{x} + {a}",
    "mul": "{x} * {a}",
    "div": "{x} / {a}",
    "requires_grad": "jax.grad(loss)({x})  # differentiates a function; arrays carry no gradients",
    "requires_grad_": "jax.grad(loss)({x})  # differentiates a function; arrays carry no gradients",
    "backward": "jax.grad(loss)(params)  # differentiates a function; arrays carry no gradients",
    "grad": "jax.grad(loss)({x})  # differentiates a function; arrays carry no gradients",
    "eval": "{x}",
    "values": "np.asarray({x})",
    "iloc": "{x}",
    "loc": "{x}",
    "apply": "jax.vmap({a})({x})",
    "map": "jax.vmap({a})({x})",
    "is_cuda": "{x}.devices()",
    "device_type": "{x}.devices()",
}
_FROM = {
    "values": "pandas", "iloc": "pandas", "loc": "pandas", "apply": "pandas", "map": "pandas", "to_numpy": "pandas",
    "get_shape": "tensorflow", "eval": "tensorflow",
}  # fmt: skip


@rule("JPX0958", "method-of-another-library", types=("AttributeError",), clues=("has no attribute",))
def method_of_another_library(failure: Failure) -> Finding | None:
    attribute = missing_attribute(failure)
    if attribute not in _FOREIGN:
        return None
    used = attribute_call(failure, attribute)
    x, arguments = used if used is not None else ("x", ())
    code = _FOREIGN[attribute]
    if ("{a0}" in code or "{a1}" in code) and len(arguments) < 2:
        arguments = ("a", "b")
    if "{a}" in code and not arguments:
        arguments = ("0",)
    values = {"x": x, "a": ", ".join(arguments), "a0": (*arguments, "")[0], "a1": (*arguments, "", "")[1]}
    code = code.format(**values)
    statement = failure.user.statement or "" if failure.user is not None else ""
    if attribute in ("detach", "cpu") and ".numpy()" in statement:
        code = f"np.asarray({x})"
    source = _FROM.get(attribute, "torch")
    variable = failure.variable(x)
    fix = Fix("The same with JAX", code)
    if code.startswith("np.asarray(") and (
        failure.search(r"Tracer (?:object )?has no") or (variable and variable.tracer)
    ):
        # inside a traced function there are no numbers to convert
        function = failure.user.function if failure.user is not None else "f"
        function = function if function.isidentifier() else "f"
        fix = Fix(
            "Leave it away inside the traced function, and convert its result outside",
            f"result = np.asarray({function}(x))  # return {x} itself from {function}",
            kind="sketch",
        )
    shown = f" `{x}` ({variable})" if variable is not None and variable.array else f" `{x}`" if used is not None else ""
    return Finding(
        what=f".{attribute} belongs to the arrays of {source};{shown or ' this'} is a JAX array and has no such "
        "attribute.",
        why="A JAX array has the methods of numpy's arrays that make new arrays; the rest are functions of jax and "
        "jax.numpy.",
        fixes=[fix],
        facts={"attribute": attribute, "array": x if used is not None else None, "library": source},
    )


@rule(
    "JPX0958",
    "method-of-another-library",
    types=("NotImplementedError", "TypeError"),
    clues=("argument of array.view()", "as a data type", "object is not callable"),
)
def view_or_size_of_another_library(failure: Failure) -> Finding | None:
    view = failure.search(
        r"`type` argument of array\.view\(\) is not supported|^Cannot interpret '-?\d+' as a data type"
    )
    size = failure.search(r"^'(?:int|tuple)' object is not callable")
    for call in failure.user.calls if failure.user is not None else ():
        holder, _, name = call.function.rpartition(".")
        variable = failure.variable(holder)
        if variable is None or variable.type not in ("ArrayImpl", "tracer"):
            continue
        if view is not None and name == "view":
            new = f"{holder}.reshape({', '.join(call.args)})"
        elif size is not None and name in ("size", "shape", "ndim"):
            new = (
                f"{holder}.shape[{call.args[0]}]"
                if call.args and name != "ndim"
                else f"{holder}.{'shape' if name == 'size' else name}"
            )
        else:
            continue
        return Finding(
            what=f"`{call.source}` is written for torch; `{holder}` ({variable}) is a JAX array"
            + (
                ", whose view changes the dtype, not the shape."
                if name == "view"
                else f", whose {name} is no function."
            ),
            why="JAX arrays follow numpy: shape, size and ndim are attributes, and reshape changes the shape.",
            fixes=[Fix("The same with JAX", rewritten(failure, call.source, new))],
            facts={"attribute": name, "array": holder, "library": "torch"},
        )
    return None


@rule("JPX0965", "function-of-jnp-not-a-method", types=("AttributeError",), clues=("has no attribute",))
def function_of_jnp_not_a_method(failure: Failure) -> Finding | None:
    attribute = missing_attribute(failure)
    jnp = sys.modules.get("jax.numpy")
    if attribute is None or attribute in _FOREIGN or jnp is None:
        return None
    places = {"": jnp, "linalg.": getattr(jnp, "linalg", None)}
    place = next((prefix for prefix, module in places.items() if callable(vars(module or jnp).get(attribute))), None)
    from .immutability import _METHODS

    if place is None or attribute.startswith("_") or attribute in _METHODS:
        return None
    used = attribute_call(failure, attribute)
    x, arguments = used if used is not None else ("x", ())
    new = f"jnp.{place}{attribute}({', '.join([x, *arguments])})"
    return Finding(
        what=f"JAX arrays have no method {attribute}; it is a function: jnp.{place}{attribute}.",
        why="A JAX array has the methods of numpy's arrays. All else are functions of jax.numpy.",
        fixes=[Fix("Call the function", new)],
        facts={"attribute": attribute, "array": x if used is not None else None},
    )


@rule(
    "JPX0951",
    "compiled-for-other-types",
    types=("TypeError", "ValueError"),
    clues=(
        "for which this computation was compiled",
        "Function compiled with input pytree",
        "Computation was compiled for",
    ),
)
def compiled_for_other_types(failure: Failure) -> Finding | None:
    pairs = failure.findall(r"Argument '?([^'\n]*?)'? compiled with (\S+) and called with (\S+)")
    old = failure.search(
        r"[Cc]omputation was compiled for(?: different)? input types:? (?:\(?\[?)(.*?)\]?\)? and called with:? (.*)"
    )
    tree = failure.search(
        r"Function compiled with input pytree does not match the input pytree it was called with(.*)", re.S
    )
    if (
        not pairs
        and tree is None
        and old is None
        and not failure.search("Argument types differ from the types for which this computation")
    ):
        return None
    call = failure.outer_call
    name = call.function if call is not None and call.function.isidentifier() else "f"
    if pairs:
        told = [f"{m.group(1)} as {m.group(2)}, and got {m.group(3).rstrip('.')}" for m in pairs[:3]]
        what = f"`{name}` is compiled ahead of time for {listed(told)}."
    elif tree is not None:
        detail = re.search(r"\* (.*)", tree.group(1))
        what = (
            f"`{name}` is compiled ahead of time for other arguments than it "
            f"got{': ' + detail.group(1)[:150] if detail else ''}."
        )
    else:
        what = f"`{name}` is compiled ahead of time for other types than it got."
    fixes = []
    source = failure.definitions.get(name)
    lowered = next((c for c in failure.defining_calls(name) if c.function.endswith((".lower", ".trace"))), None)
    if lowered is not None and call is not None and len(lowered.args) != len(call.args):
        code = failure.rewrite(call.source, f"{name}({', '.join(lowered.args)})") or "f(x)"
        fixes.append(Fix("Call it with as many arguments as it was compiled for", code))
    elif source is not None and ".compile()" in source:
        jitted = re.sub(
            r"\.(?:trace|lower)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?:\.lower\(\))?\.compile\(\)", "", source
        )
        if jitted != source and failure.user is not None:
            again = failure.user.statement or ""
            fixes.append(
                Fix("Call the jitted function, which compiles anew for new types", f"{jitted}\n{again}".strip())
            )
    if not fixes:
        fixes.append(
            Fix(
                "Call the jitted function, which compiles anew for new types",
                f"{name} = jax.jit(function)  # without .lower(…).compile()",
            )
        )
    if pairs and call is not None and len(pairs) == 1 and len(call.args) == 1:
        want, got = pairs[0].group(2), pairs[0].group(3).rstrip(".")
        if want.partition("[")[2] == got.partition("[")[2]:
            dtype = want.partition("[")[0].lstrip("~")
            fixes.append(
                Fix("Or give it the dtype that it was compiled for", f"{name}(jnp.asarray({call.args[0]}, {dtype!r}))")
            )
    if not fixes or "as many arguments" not in fixes[0].title:
        fixes.append(
            Fix(
                "Or compile it for these arguments too",
                f"g = jax.jit(function).lower({', '.join(call.args) if call is not None else 'x'}).compile()",
            )
        )
    return Finding(
        what=what,
        why="What .lower(…).compile() gives is one machine program, for exactly the shapes, dtypes and structure it "
        "was lowered for.",
        fixes=fixes[:3],
        facts={"mismatches": tuple((m.group(1), m.group(2), m.group(3).rstrip(".")) for m in pairs)},
    )
