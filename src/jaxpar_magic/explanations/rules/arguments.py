"""Arguments of another kind, value, order or number than a function of JAX takes."""

from __future__ import annotations

import difflib
import re
import sys

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed
from ._lines import called_with, enclosed, jax_at_line, rewritten

_TRANSFORMS = (
    "jit",
    "grad",
    "value_and_grad",
    "vmap",
    "pmap",
    "jacfwd",
    "jacrev",
    "hessian",
    "checkpoint",
    "linearize",
)


def _called(failure: Failure) -> Call | None:
    """The outermost call at the user's line, if it is one of a function of JAX by its dotted name."""
    calls = failure.user.calls if failure.user is not None else ()
    return next((call for call in calls if _in_jax(failure, call)), None)


def _in_jax(failure: Failure, call: Call) -> bool:
    """Whether the dotted name of the function begins with jax, or with a module of JAX's: jnp, `random` of jax."""
    root = call.function.partition(".")[0]
    module = failure.variable(root)
    if module is not None and module.type == "module":
        return (module.value or "").partition(".")[0] == "jax"
    return root in ("jax", "jnp", "lax", "jr", "jrandom") and "." in call.function


def _of_jax(failure: Failure, call: Call) -> bool:
    """Whether the function that is called is JAX's own: others have functions named grad, jit or map too."""
    if call.function.startswith("jax."):
        return True
    variable = failure.variable(call.function)
    return variable is not None and (variable.module or "").partition(".")[0] == "jax"


# -- functions of functions ------------------------------------------------------------------------


@rule(
    "JPX1626",
    "transform-and-call-in-one",
    types=("TypeError", "ValueError"),
    clues=(
        "positional arguments but",
        "object is not iterable",
        "in_axes must be",
        "object is not callable",
        "leaf specifications are expected",
    ),
    priority=20,
)
def transform_and_call_in_one(failure: Failure) -> Finding | None:
    call = called_with(failure, *_TRANSFORMS)
    if call is None or len(call.args) < 2 or failure.from_jax is False or not _of_jax(failure, call):
        return None
    match = failure.search(
        r"^(?:jax\.)?(\w+)\(\) takes (?:from \d+ to )?\d+ positional arguments? but \d+ were given"
        r"|^'(?:float|jaxlib\.\S+|ArrayImpl)' object is not iterable$"
        r"|^in_shardings leaf specifications are expected to be PartitionSpec instances or None, but got [\[\d]"
        r"|^(?:vmap|pmap) in_axes must be an int, None, or .*, but got (?:<class 'jaxlib|\[|Traced|[-\d.]+\.)"
    )
    if match is None or (match.group(1) is not None and match.group(1) != call.name):
        return None
    function, *inputs = call.args
    second = failure.variable(inputs[0])
    number = re.fullmatch(r"-?\d+\.\d*", inputs[0])
    made = re.match(r"(?:jnp|np|jax)\.", inputs[0])
    if match.group(1) is None and not (number or made or (second is not None and (second.array or second.value))):
        return None
    keywords = "".join(f", {k}={v}" for k, v in call.keywords.items())
    new = f"{call.function}({function}{keywords})({', '.join(inputs)})"
    return Finding(
        what=f"`{call.source}` gives {call.name} the function and its inputs in one call.",
        why=f"{call.function} takes a function and gives back a new function. That one is then called with the inputs.",
        fixes=[Fix("Call the new function with the inputs", rewritten(failure, call.source, new))],
        facts={"transformation": call.name, "inputs": tuple(inputs)},
    )


@rule("JPX1627", "grad-returns-only-the-gradient", types=("TypeError", "ValueError"), priority=15,
      clues=("iteration over a 0-d array", "to unpack"))  # fmt: skip
def grad_returns_only_the_gradient(failure: Failure) -> Finding | None:
    statement = failure.user.statement or "" if failure.user is not None else ""
    unpacked = re.match(r"\(?([A-Za-z_]\w*)\s*,\s*([A-Za-z_]\w*)\)?\s*=(?!=)", statement)
    call = failure.call("grad")
    if unpacked is None or call is None or "has_aux" in call.source or failure.from_jax is False:
        return None
    if not _of_jax(failure, call):
        return None
    if failure.search(r"to unpack \(expected (?!2\b)") or "argnums" in call.source:
        return None
    function = call.function.removesuffix("grad") + "value_and_grad"
    return Finding(
        what=f"The line unpacks {unpacked.group(1)} and {unpacked.group(2)}, and jax.grad gives the gradient alone.",
        why="grad gives a function that returns the gradient. value_and_grad gives one that returns the value too.",
        fixes=[
            Fix("Ask for value and gradient", rewritten(failure, call.source, call.changed(function))),
        ],
        facts={"names": unpacked.groups()},
    )


@rule(
    "JPX1811", "module-is-no-function", types=("TypeError",), clues=("'module' object is not callable",), anywhere=True
)
def module_is_no_function(failure: Failure) -> Finding | None:
    if not failure.search(r"^'module' object is not callable"):
        return None
    for call in failure.user.calls if failure.user is not None else ():
        first, _, rest = call.function.partition(".")
        variable = failure.variable(first)
        if variable is None or variable.type != "module" or (variable.value or "").partition(".")[0] != "jax":
            continue
        path = f"{variable.value}.{rest}" if rest else str(variable.value)
        if path not in sys.modules:
            continue
        inner = path.rpartition(".")[2]
        if path == "jax.experimental.shard_map":
            new, statement = "jax.shard_map", "from jax import shard_map"
        elif callable(getattr(sys.modules[path], inner, None)):
            new, statement = f"{path}.{inner}", f"from {path} import {inner}"
        else:
            names = [n for n in dir(sys.modules[path]) if not n.startswith("_")]
            return Finding(
                what=f"`{call.function}` is a module (a collection of functions), and is called like a function.",
                why="A module holds functions; one of them has to be named.",
                fixes=[Fix("See what it holds", f"print(dir({call.function}))")],
                facts={"module": path, "names": tuple(names[:20])},
            )
        name = call.function if call.function.isidentifier() else inner
        again = failure.rewrite(call.source, call.changed(name)) or call.changed(name)
        imported = statement if name == inner else f"{statement} as {name}"
        return Finding(
            what=f"`{call.function}` is the module {path}, and the function is {new}.",
            why="A module and the function in it have the same name; the import statement brought the module.",
            fixes=[Fix("Import the function", f"{imported}\n{again}")],
            facts={"module": path, "function": new},
        )
    return None


# -- numbers ---------------------------------------------------------------------------------------


@rule("JPX0831", "whole-number-needed", types=("ValueError",), clues=("order must be non-negative but got",))
def order_below_zero(failure: Failure) -> Finding | None:
    match = failure.search(r"^order must be non-negative but got (-\d+)")
    call = called_with(failure, "diff")
    if match is None or call is None or not call.args or not failure.from_jax:
        return None
    x, n = call.args[0], match.group(1)
    return Finding(
        what=f"diff takes differences n times, and n={n} is less than 0.",
        why="n=1 gives x[i + 1] - x[i], n=2 the differences of these. n is no distance, as it is in pandas.",
        fixes=[
            Fix("The differences between neighbours", rewritten(failure, call.source, f"jnp.diff({x})")),
            Fix("Or with the next one taken away: x[i] - x[i + 1]", rewritten(failure, call.source, f"-jnp.diff({x})")),
        ],
        facts={"n": int(n), "argument": x},
    )


@rule(
    "JPX0831",
    "whole-number-needed",
    types=("TypeError",),
    clues=("cannot be interpreted as an integer", "exponent must be an integer"),
    priority=-5,
)
def whole_number_needed(failure: Failure) -> Finding | None:
    exponent = failure.search(r"^exponent must be an integer, got (\S+)")
    if not exponent and not failure.search(r"^'float' object cannot be interpreted as an integer$"):
        return None
    call = _called(failure)
    if call is None or failure.from_jax is False or call.name in _TRANSFORMS:
        return None
    given = [*call.args, *call.keywords.values()]
    floats = [
        source
        for source in given
        if re.fullmatch(r"-?\d+\.\d*(?:e-?\d+)?", source)
        or re.search(r"(?<!/)/(?!/)", source)
        or ((v := failure.variable(source)) is not None and v.type == "float")
    ]
    if len(floats) != 1:
        return None
    (source,) = floats
    if exponent is not None:
        fixes = [Fix("Give a whole number", _replaced(failure, call, source, "2"))]
        if call.name == "matrix_power" and call.args:
            fixes.append(
                Fix(
                    "A fractional power of a symmetric matrix: through its eigenvalues",
                    f"values, vectors = jnp.linalg.eigh({call.args[0]})\n"
                    f"power = (vectors * values ** {enclosed(source)}) @ vectors.T",
                )
            )
    else:
        fixes = [
            Fix(
                "Make it a whole number (a // b divides to one)",
                _replaced(failure, call, source, f"int({source})"),
            )
        ]
    return Finding(
        what=f"`{source}` in `{call.source}` is a float, and {call.name} needs a whole number there.",
        why="Counts, sizes and positions are Python ints. a / b gives a float even where it comes out even.",
        fixes=fixes,
        facts={"function": call.function, "argument": source},
    )


def _replaced(failure: Failure, call: Call, old: str, new: str) -> str:
    head, _, tail = call.source.rpartition(old)
    return rewritten(failure, call.source, head + new + tail)


@rule("JPX0830", "more-items-than-there-are", types=("ValueError",), priority=10,
      clues=("must be no larger than", "is out of bounds for array of dimension", "kth"))  # fmt: skip
def more_items_than_there_are(failure: Failure) -> Finding | None:
    match = failure.search(
        r"k argument to (top_k|approx_max_k) must be no larger than (?:size along axis|minor dimension); "
        r"(?:got k=)?(\d+) (?:with shape=|vs )[\[(]([\d, ]+)[\])](?: and axis=(-?\d+))?"
    )
    call = called_with(failure, "top_k", "approx_max_k", "partition", "argpartition")
    if match is not None:
        name, k = match.group(1), int(match.group(2))
        shape = [int(n) for n in re.findall(r"\d+", match.group(3))]
        size = shape[int(match.group(4) or -1)]
        what = f"{name} was asked for the {k} largest of {counted(size, 'item')} (the array has shape {tuple(shape)})."
        new = str(size)
    else:
        bounds = failure.search(r"^axis (\d+) is out of bounds for array of dimension (\d+)")
        if bounds is None or call is None or call.name not in ("partition", "argpartition") or len(call.args) < 2:
            return None
        if call.args[1] != bounds.group(1) or not jax_at_line(failure):
            return None
        name, k, size = call.name, int(bounds.group(1)), int(bounds.group(2))
        what = f"{name} was asked for place {k} of {counted(size, 'item')} (0 to {size - 1}). The message speaks of an "
        what += "axis, but kth is meant."
        new = str(size - 1)
    code = None
    if call is not None and len(call.args) > 1:
        code = rewritten(failure, call.source, f"{call.function}({', '.join([call.args[0], new, *call.args[2:]])})")
    elif call is not None and "k" in call.keywords:
        code = rewritten(failure, call.source, call.changed(k=new))
    return Finding(
        what=what,
        why="The number of results is fixed when the program is compiled, so there must be at least as many items.",
        fixes=[Fix(f"Ask for at most {new}", code or f"jax.lax.{name}(x, {new})")],
        facts={"function": name, "asked": k, "size": size},
    )


@rule("JPX0970", "text-where-a-number-is-needed", types=("TypeError", "ValueError"), priority=10,
      clues=("data type ''", "Cannot determine dtype", "concatenate str", "str'", "integer type, got", "matching types",
             "could not convert string"))  # fmt: skip
def text_where_a_number_is_needed(failure: Failure) -> Finding | None:
    call = called_with(failure, "arange", "linspace", "zeros", "ones", "full", "empty", "eye", "identity", "logspace",
                       "tile", "repeat", "normal", "uniform", "truncated_normal", "split", "one_hot")  # fmt: skip
    if call is None or failure.from_jax is False or not failure.search(
        r"data type '' not understood|^Cannot determine dtype of |can only concatenate str|"
        r"'str' object cannot be interpreted as an integer|"
        r"requires ndarray or scalar arguments, got <class 'str'>|integer type, got \(?'|integer type, got \d|"
        r"unsupported operand type\(s\) for [-+*/]: '(?:int|float|str)' and '(?:str|int|float)'"
        r"|did not contain a loop with signature matching types|could not convert string"
    ):  # fmt: skip
        return None
    if not _in_jax(failure, call):
        return None
    for source in (*call.args, *call.keywords.values()):
        variable = failure.variable(source)
        text = re.fullmatch(r"(['\"])(-?[\d.]*)\1", source) or (
            variable is not None and variable.type == "str" and source.isidentifier()
        )
        if text:
            number = "float" if isinstance(text, re.Match) and "." in text.group(2) else "int"
            return Finding(
                what=f"`{source}` is text, and {call.function} needs a number there.",
                why="What comes from input(), the command line, a file or the environment is text: it has to be made "
                "a number.",
                fixes=[Fix("Make a number of it", _replaced(failure, call, source, f"{number}({source})"))],
                facts={"function": call.function, "argument": source},
            )
    return None


# -- values out of a list --------------------------------------------------------------------------

# (pattern, the argument, values that are taken); {0} of the pattern is what was given.
_CHOICES = (
    (r"^Unrecognized padding type: expected .*, got (\w+)\.", "padding", ("VALID", "SAME", "SAME_LOWER")),
    (r"^Invalid order '?([^']*?)'? for (?:matrix|vector) norm", "ord", ("fro", "nuc")),
    (r"^method can only be .*'linear', 'lower'()", "method", ("linear", "lower", "higher", "midpoint", "nearest")),
    (r"^Valid values for indexing are 'xy' and 'ij', got (\w+)", "indexing", ("xy", "ij")),
    (r"^(?:jnp\.)?convolve\(\) only supports mode .*|^mode must be one of \['full', 'same', 'valid'\]()", "mode",
     ("full", "same", "valid")),
    (r"^Unimplemented padding mode '(\w+)'", "mode",
     ("constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean", "median", "minimum")),
)  # fmt: skip


@rule(
    "JPX1812",
    "value-not-among-the-choices",
    types=("ValueError", "RuntimeError", "NotImplementedError"),
    clues=("padding type", "Invalid order", "method can only be", "Valid values for", "mode must be", "padding mode"),
)
def value_not_among_the_choices(failure: Failure) -> Finding | None:
    for pattern, keyword, choices in _CHOICES:
        match = failure.search(pattern)
        if match is None or (failure.frames and not jax_at_line(failure) and failure.from_jax is not True):
            continue
        call = _called(failure)
        given = next((g for g in match.groups() if g), None)
        if call is not None and keyword in call.keywords:
            given = given or call.keywords[keyword].strip("'\"")
        close = difflib.get_close_matches(
            (given or "").upper() if choices[0].isupper() else given or "", choices, 1, 0.3
        )
        best = close[0] if close else choices[0]
        code = f"{keyword}={best!r}"
        if call is not None and keyword in call.keywords:
            code = rewritten(failure, call.source, call.changed(**{keyword: repr(best)}))
        elif call is not None and given:
            quoted = next((a for a in call.args if a.strip("'\"") == given), None)
            code = _replaced(failure, call, quoted, repr(best)) if quoted else code
        got = f" got {given!r}, which it does not know" if given else " got a value that it does not know"
        return Finding(
            what=f"{call.function if call is not None else 'The function'}{got}, for {keyword}.",
            why=f"{keyword} is one of {listed([repr(c) for c in choices], 'or')}.",
            fixes=[Fix(f"Write {best!r}", code)],
            facts={"argument": keyword, "value": given, "choices": choices},
        )
    return None


# -- static and donated arguments ------------------------------------------------------------------


@rule(
    "JPX1111",
    "static-argnames-is-no-name",
    types=("TypeError",),
    clues=("object is not iterable", "argument is not a string"),
    priority=5,
)
def static_argnames_is_no_name(failure: Failure) -> Finding | None:
    call = failure.call("jit")
    if call is None or failure.from_jax is False:
        return None
    if not failure.search(r"^'(?:int|float)' object is not iterable$|^argument is not a string: "):
        return None
    for keyword in ("static_argnames", "donate_argnames", "static_argnums", "donate_argnums"):
        value = call.keywords.get(keyword, "")
        numbers = re.findall(r"-?\d+(?:\.\d+)?", value)
        if not numbers or re.search(r"['\"A-Za-z]", value):
            continue
        wanted = keyword.replace("argnames", "argnums")
        whole = re.sub(r"(\d+)\.\d*", r"\1", value)
        if keyword == wanted and whole == value:
            continue
        names = keyword != wanted
        return Finding(
            what=f"{keyword}={value} gives "
            + (f"a position, and {keyword} takes names." if names else f"a float, and {keyword} takes whole numbers."),
            why="static_argnums and donate_argnums count the positional arguments from 0 (0, 1, …); static_argnames "
            "and donate_argnames take the names of parameters.",
            fixes=[
                Fix(
                    f"Use {wanted}" if names else "Give a whole number",
                    rewritten(failure, call.source, call.changed(**{keyword: None, wanted: whole})),
                )
            ],
            facts={"keyword": keyword, "value": value},
        )
    return None
