"""Arguments that are compile-time constants, arguments that jit cannot take, and hashing."""

from __future__ import annotations

import ast
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed, sizes
from ._lines import rewritten, static_fix
from .tracers import tracing

_WHY = (
    "jit keeps one compiled program for each value of a static argument, and finds it again by the value's hash. So a "
    "static argument must be hashable: a number, a string, a tuple, a frozen dataclass."
)


def _unhashable(failure: Failure) -> tuple[str, str] | None:
    """(qualified type name, printed value) of the static argument that has no hash."""
    match = failure.search(
        r"Non-hashable static arguments are (?:not supported|used).*?(?:trying to hash an object of type |of type )"
        r"<class '([^']+)'>, (.*?)\. The error was:",
        re.S,
    )
    if match is None:  # JAX before 0.4 names the type only
        old = failure.search(
            r"Non-hashable static arguments are (?:used in a jit|not supported).*?<class '([^']+)'>", re.S
        )
        return (old.group(1), "not shown") if old is not None else None
    return match.group(1), match.group(2)


@rule("JPX1101", "static-argument-without-a-hash", types=("ValueError",), clues=("Non-hashable static arguments",))
def static_argument_without_a_hash(failure: Failure) -> Finding | None:
    found = _unhashable(failure)
    if found is None:
        return None
    kind, value = found
    name = kind.rpartition(".")[2]
    if "Tracer" in name or name in ("ArrayImpl", "ndarray", "PRNGKeyArray", "DeviceArray"):
        return None
    short = "" if value == "not shown" else f"{value if len(value) <= 60 else value[:57] + '...'}, "
    fixes = []
    if name == "list":
        fixes.append(Fix("Pass a tuple", _passed(failure, value, "tuple({})", "f(x, tuple(sizes))")))
    elif name == "dict":
        fixes.append(
            Fix(
                "Pass a tuple of pairs, and make a dict of it inside",
                _passed(failure, value, "tuple(sorted({}.items()))", "f(x, tuple(sorted(options.items())))")
                + "\n# inside the function: options = dict(options)",
            )
        )
        fixes.append(Fix("Or, if it holds arrays or numbers only, do not mark it static", "f = jax.jit(function)"))
    elif name in ("set", "bytearray"):
        new = "frozenset({})" if name == "set" else "bytes({})"
        fixes.append(
            Fix(f"Pass a {new.partition('(')[0]}", _passed(failure, value, new, f"f(x, {new.format('values')})"))
        )
    elif name == "slice":
        fixes.append(
            Fix(
                "Pass its two ends as static numbers, and make the slice inside",
                "f = jax.jit(lambda x, start, stop: x[start:stop], static_argnums=(1, 2))",
            )
        )
    elif re.search(r"\bArray\(|\barray\(", value):  # frozen or not: what it holds has no hash
        fixes.append(
            Fix(
                f"Let JAX see the arrays in {name}: register it, and do not mark it static",
                f"jax.tree_util.register_dataclass({name})  # once, after the class\nf = jax.jit(function)",
            )
        )
        fixes.append(
            Fix("Or keep settings only in it, and pass the arrays as arguments of their own", "f(settings, w, x)")
        )
    else:
        frozen = (
            f"from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass {name}:\n    ...  # fields as "
            "before; "
            "lists become tuples"
        )
        fixes.append(Fix(f"Freeze the dataclass {name}, which gives it a hash", frozen))
        fixes.append(
            Fix(
                "Or give the class a hash of the values that matter",
                f"{name}.__hash__ = lambda self: hash(repr(vars(self)))\n"
                f"{name}.__eq__ = lambda self, other: repr(vars(self)) == repr(vars(other))",
            )
        )
    return Finding(
        what=f"A static argument of the jitted function is {short}a {name}, which has no hash.",
        why=_WHY,
        fixes=fixes,
        facts={"type": kind, "value": short},
    )


def _passed(failure: Failure, value: str, new: str, default: str) -> str:
    """The user's call with the argument of this value wrapped: `f(x, tuple(sizes))`."""
    call = failure.outer_call
    if call is None:
        return default
    for source in (*call.args, *call.keywords.values()):
        variable = failure.variable(source)
        same = source.replace(" ", "").replace('"', "'") == value.replace(" ", "")
        wanted = "dict" if "items" in new else new.partition("(")[0].removeprefix("frozen")
        wanted = {"tuple": "list"}.get(wanted, wanted)
        if same or (variable is not None and variable.type == wanted):
            again = call.source.replace(source, new.format(source)) if call.source.count(source) == 1 else None
            if again is None:
                head, _, tail = call.source.rpartition(source)
                again = head + new.format(source) + tail
            return rewritten(failure, call.source, again)
    return default


@rule("JPX1102", "static-argument-is-an-array", types=("ValueError",), clues=("Non-hashable static arguments",))
def static_argument_is_an_array(failure: Failure) -> Finding | None:
    found = _unhashable(failure)
    if found is None:
        return None
    kind, value = found
    name = kind.rpartition(".")[2]
    if name not in ("ArrayImpl", "ndarray", "DeviceArray", "PRNGKeyArray"):
        return None
    number = re.fullmatch(r"-?[\d.e+-]+|True|False", value.strip())
    whose = "numpy" if name == "ndarray" else "JAX"
    call = failure.outer_call
    source = None
    for argument in (*(call.args if call is not None else ()), *(call.keywords.values() if call is not None else ())):
        variable = failure.variable(argument)
        array = variable is not None and variable.type in ("ArrayImpl", "ndarray", "PRNGKeyArray")
        if variable is not None and array and (variable.shape == ()) == bool(number):
            source = argument
    fixes = []
    if number:
        cast = (
            "int"
            if re.fullmatch(r"-?\d+", value.strip())
            else "bool"
            if value.strip() in ("True", "False")
            else "float"
        )
        new = (
            failure.rewrite(call.source, _replace_last(call.source, source, f"{cast}({source})"))
            if call and source
            else None
        )
        if new is None and call is not None and not source:
            literal = [
                a for a in call.args if re.match(r"(?:jnp|np|jax\.numpy)\.(?:asarray|array|\w*int\d+|float\d+)\(", a)
            ]
            if len(literal) == 1:
                new = failure.rewrite(call.source, _replace_last(call.source, literal[0], f"{cast}({literal[0]})"))
        fixes.append(Fix(f"Pass a Python number: {value.strip()}, which has a hash", new or f"f({cast}(n))"))
    else:
        fixes.append(
            Fix(
                "Do not mark it static: arrays are what jit traces", "f = jax.jit(function)  # no static_argnums for it"
            )
        )
        fixes.append(
            Fix("If the function needs its values to compile, pass a tuple of them", "f(x, tuple(values.tolist()))")
        )
    short = " ".join(value.split())[:40]
    shown = "" if value == "not shown" else f", {short}"
    of = f" (`{source}`)" if source else ""
    return Finding(
        what=f"A static argument of the jitted function{of} is a {whose} array{shown}: arrays have no hash, even "
        "those that "
        "hold one number.",
        why=_WHY,
        fixes=fixes,
        facts={"type": kind, "value": short, "argument": source},
    )


def _replace_last(text: str, old: str, new: str) -> str:
    head, found, tail = text.rpartition(old)
    return head + new + tail if found else text


@rule(
    "JPX1107",
    "static-argument-is-traced",
    types=("ValueError", "TypeError"),
    clues=("Non-hashable static arguments", "was not hashable"),
)
def static_argument_is_traced(failure: Failure) -> Finding | None:
    found = _unhashable(failure)
    parameter = failure.search(
        r"parameters to jaxpr equations must have __hash__ and __eq__ methods\. In a call to primitive (\w+), the "
        r"value of "
        r"parameter (\w+) was not hashable: .*(?:Tracer|Traced)"
    )
    if parameter is None and (found is None or "Tracer" not in found[0].rpartition(".")[2]):
        return None
    function, _, argument = tracing(failure)
    call = failure.outer_call
    given = (*call.args, *call.keywords.values()) if call is not None else ()
    variables = [(source, failure.variable(source)) for source in given]
    names = [source for source, v in variables if v is not None and v.tracer and v.shape == ()]
    source = argument or (names[-1] if names else None)
    user = failure.user.function if failure.user is not None else None
    inside = user if user is not None and user.isidentifier() else None
    called = f"`{call.source}`" if call is not None and len(call.source) < 80 else "the function called here"
    fixes = []
    if source is not None:
        fix = static_fix(failure, source, function or inside or "function")
        if fix is not None:
            fixes.append(fix)
        fixes.append(Fix("Or write the number there, if it is always the same", _constant(failure, source)))
    else:
        fixes.append(
            Fix(
                "Make it a compile-time constant of the outer function too",
                "f = jax.jit(function, static_argnames='n')",
            )
        )
    what = (
        f"{called} needs {f'`{source}`' if source else 'one of its arguments'} as a compile-time constant, and it "
        "is traced here"
    )
    return Finding(
        what=what + (f" (an argument of {inside})." if inside else "."),
        why="Inside a function that JAX traces, arguments are stand-ins without a value. A static argument of an inner "
        "function needs the value, so it must be static in the outer one too.",
        fixes=fixes,
        facts={"argument": source, "function": function or inside},
    )


def _constant(failure: Failure, source: str) -> str:
    call = failure.outer_call
    if call is None:
        return "f(x, 2)"
    new = re.sub(rf"((?:^|[(,=])\s*){re.escape(source)}(\s*[,)])", r"\g<1>1\2", call.source)
    return (rewritten(failure, call.source, new)) + "  # 1: the number"


@rule(
    "JPX1103",
    "static-position-out-of-range",
    types=("ValueError",),
    clues=("static_argnums=", "donate_argnums="),
)
def static_position_out_of_range(failure: Failure) -> Finding | None:
    match = failure.search(
        r"[Jj]itted function has (static_argnums|donate_argnums)=(\([\d, -]*\)|-?\d+).*?,? but (?:only accepts|was "
        r"called with "
        r"only) (\d+) positional argument"
    )
    if match is None:
        return None
    word, count = match.group(1), int(match.group(3))
    numbers = sizes(match.group(2))
    wrong = [n for n in numbers if not -count <= n < count]
    called = "was called with" in match.group(0)
    call = failure.call("jit", "pmap", "partial")
    fixes = []
    right = [n - 1 if n == count and n - 1 >= 0 else n for n in numbers]
    if call is not None and count and all(-count <= n < count for n in right) and not called:
        value = str(right[0]) if len(right) == 1 else str(tuple(right))
        new = re.sub(rf"{word}\s*=\s*(\([^)]*\)|-?\w+)", f"{word}={value}", call.source)
        title = f"Count from 0: the last of {count} is {count - 1}"
        fixes.append(Fix(title, rewritten(failure, call.source, new)))
    names = word.replace("argnums", "argnames")
    known = re.match(r"lambda ([\w, ]+):", call.args[0]) if call is not None and call.args else None
    written = failure.sources.get(call.args[0], "") if call is not None and call.args else ""
    known = known or re.search(r"def \w+\(([\w, ]+)\)", written)
    last = known.group(1).split(", ")[-1] if known is not None else "n"
    by_name = call.changed(**{word: None, names: repr(last)}) if call is not None and known is not None else None
    fixes.append(
        Fix(
            f"{'Or g' if fixes else 'G'}ive the argument's name, which does not depend on counting",
            rewritten(failure, call.source, by_name)
            if call is not None and by_name is not None
            else f"f = jax.jit(function, {names}='n')",
        )
    )
    return Finding(
        what=f"{word}={match.group(2)} names position {listed([str(n) for n in wrong or numbers])}, and the function "
        f"{'was called with' if called else 'takes'} {counted(count, 'positional argument')} (0 to "
        f"{max(count - 1, 0)}).",
        why="Positions are counted from 0. Arguments given by name have no position.",
        fixes=fixes,
        facts={"positions": numbers, "arguments": count},
    )


@rule("JPX1108", "static-name-unknown", types=("ValueError",), clues=("invalid argnames",))
def static_name_unknown(failure: Failure) -> Finding | None:
    match = failure.search(r"[Jj]itted function has invalid argnames \{([^}]*)\} in (static_argnames|donate_argnames)")
    if match is None:
        return None
    names = re.findall(r"'([^']+)'", match.group(1))
    call = failure.call("jit", "partial")
    parameters: list[str] = []
    if call is not None and call.args:
        signature = re.match(r"lambda ([^:]*):", call.args[0])
        parameters = re.findall(r"[A-Za-z_]\w*", signature.group(1)) if signature else []
    fixes = []
    if call is not None and len(parameters) and len(names) == 1:
        import difflib

        near = difflib.get_close_matches(names[0], parameters, 1, 0.5)
        if near:
            new = call.source.replace(repr(names[0]), repr(near[0])).replace(f'"{names[0]}"', f'"{near[0]}"')
            fixes.append(Fix("Name a parameter of the function", rewritten(failure, call.source, new)))
    fixes.append(Fix("See what the parameters are called", "import inspect\nprint(inspect.signature(function))"))
    has = f": its parameters are {listed(parameters)}" if parameters else ""
    return Finding(
        what=f"{match.group(2)} names {listed([repr(n) for n in names])}, and the function has no such parameter{has}.",
        why="The names are those of the function's own parameters, as its def or lambda says.",
        fixes=fixes,
        facts={"names": tuple(names), "parameters": tuple(parameters)},
    )


@rule(
    "JPX1104",
    "array-as-dict-key",
    types=("TypeError",),
    clues=("unhashable type:",),
    anywhere=True,
)
def array_as_dict_key(failure: Failure) -> Finding | None:
    match = failure.search(r"^unhashable type: '(?:[\w.]*\.)?(ArrayImpl|DeviceArray|_DeviceArray|PRNGKeyArray)'")
    if match is None or (failure.user is not None and failure.user.raises):
        return None
    user = failure.user
    text = (user.segment or user.statement or "") if user is not None else ""
    arrays = [
        v.name
        for v in failure.variables.values()
        if v.type in ("ArrayImpl", "PRNGKeyArray")
        and v.name.isidentifier()
        and re.search(rf"(?<![\w.]){v.name}\b", text)
    ]
    name = arrays[0] if len(arrays) == 1 else None
    variable = failure.variable(name)
    single = variable is None or variable.shape in ((), None)
    key = name or "x"
    new = f"{key}.item()" if single else f"tuple({key}.ravel().tolist())"
    loop = re.match(rf"for\s+{re.escape(key)}\s+in\s+([\w.]+)\s*:", user.source or "") if user is not None else None
    fixes = []
    if loop is not None:
        values = loop.group(1)
        fixes.append(
            Fix("Loop over Python numbers", loop.string.replace(f"in {values}", f"in {values}.tolist()", 1)),
        )
    elif name is not None and text:
        whole = user.statement or "" if user is not None else ""
        text = whole if "\n" not in whole and not whole.rstrip().endswith(":") and whole else text
        fixes.append(
            Fix(
                "Use a Python number as key" if single else "Use a tuple of Python numbers as key",
                re.sub(rf"(?<![\w.]){re.escape(name)}\b", new, text),
            )
        )
    fixes.append(Fix("Make a Python value of the array before", f"{key} = {new}"))
    shown = f"`{name}` ({variable})" if name is not None and variable is not None else "A JAX array"
    return Finding(
        what=f"{shown} is used as a dict key, in a set, or as the argument of a cached function; JAX arrays have no "
        "hash.",
        why="Two arrays are compared element by element, so an array cannot be looked up, even one that holds one "
        "number. "
        "Python numbers and tuples can.",
        fixes=fixes,
        facts={"array": name},
    )


def _jitted_class(name: str) -> Finding:
    return Finding(
        what=f"jit was put on the class {name}. It then stands for the call {name}(…), which returns an object, and a "
        "compiled function can return only arrays.",
        why="jit compiles a function. Of a class it is the methods that compute.",
        fixes=[
            Fix(
                "Take jit off the class, and put it on the function that uses the object (or on a method)",
                f"{name} = {name}.__wrapped__\nobject = {name}()\nrun = jax.jit(lambda x: object(x))",
            )
        ],
        facts={"class": name},
    )


def _without(failure: Failure, function: str, key: str, applied: str) -> str | None:
    """The function without an entry of the dict that it returns, and the entry put in at the call."""
    tree, _ = parse_fragment(failure.sources.get(function, ""))
    if tree is None:
        return None
    for node in ast.walk(tree):
        given = node.value if isinstance(node, ast.Return) else None
        if not isinstance(given, ast.Dict):
            continue
        pairs = [(k.value if isinstance(k, ast.Constant) else None, v) for k, v in zip(given.keys, given.values)]
        value = dict(pairs).get(key)
        if not isinstance(value, ast.Constant):
            return None
        kept = [(k, v) for k, v in zip(given.keys, given.values) if v is not value]
        given.keys, given.values = [k for k, _ in kept], [v for _, v in kept]
        definition = ast.unparse(tree)
        return f"{definition}\n\nout = dict({applied}, {key}={ast.unparse(value)})"
    return None


@rule(
    "JPX1106",
    "result-is-no-array",
    types=("TypeError",),
    clues=("returned a value of type", "Output from batched function"),
)
def result_is_no_array(failure: Failure) -> Finding | None:
    match = failure.search(
        r"function (\S+)(?: at .*?)? traced for (\w+) returned a value of type <class '([^']+)'>(?: at output "
        r"component (\S+?))?,? "
        r"which is not a valid JAX type"
    )
    mapped = failure.search(
        r"Output from batched function (.*?) with type <class '([^']+)'> is not a valid JAX type", re.S
    )
    if match is not None:
        function, transform, kind, place = match.groups()
        function = function.rpartition(".")[2]
    elif mapped is not None:
        function, transform, kind, place = None, "vmap", mapped.group(2), None
    else:
        return None
    name = kind.rpartition(".")[2]
    if name == "NoneType":
        return None
    jitted = re.search(
        rf"@(?:jax\.)?(?:jit|partial\((?:jax\.)?jit\b.*\))\nclass {name}\b", failure.sources.get(name, "")
    )
    if jitted is not None:
        return _jitted_class(name)
    # JAX 0.8 prints the name of the transformation where the place should stand
    place = None if place in (transform, "") else place
    at = f" at {place} of its result" if place else ""
    shown = function if function and function.isidentifier() else "The function"
    call = failure.outer_call
    applied = call.source if call is not None and len(call.source) < 60 else f"{shown if function else 'f'}(x)"
    key = re.fullmatch(r"\['(\w+)'\]", place or "")
    if key:
        code = f"out = dict({applied}, {key.group(1)}=value)  # without {key.group(1)!r} inside the function"
    else:
        code = f"out = ({applied}, value)  # return the arrays only, and put the {name} beside them here"
    without = _without(failure, function, key.group(1), applied) if key and function else None
    each = None
    mapped_call = failure.applied("vmap")
    if mapped is not None and mapped_call is not None and len(mapped_call[0].args) == 1 and mapped_call[1].args:
        f = mapped_call[1].args[0]
        each = f"out = [{f if f.isidentifier() else f'({f})'}(x) for x in {mapped_call[0].args[0]}]"
    fixes = [Fix(f"Return only arrays, and add the {name} outside", without or code)]
    if each is not None:
        fixes.insert(0, Fix("Call it for each item in plain Python, where it may return anything", each))
    if name not in (
        "str",
        "function",
        "set",
        "dict_values",
        "generator",
        "type",
        "bytes",
        "range",
        "builtin_function_or_method",
    ):
        fixes.append(
            Fix(
                f"If {name} holds arrays, tell JAX how to take it apart",
                f"jax.tree_util.register_dataclass({name})  # for a dataclass",
            )
        )
    elif name in ("set", "generator", "dict_values", "range"):
        fixes = [Fix("Return a list, a tuple or a dict of arrays", "return list(values)")]
    return Finding(
        what=f"{shown} returned a {name}{at}; under {transform} it can return only arrays.",
        why="What comes out of a compiled or mapped function is made by the device: arrays and numbers, alone or in "
        "tuples, lists and dicts.",
        fixes=fixes,
        facts={"function": function, "type": kind, "place": place, "transformation": transform},
    )
