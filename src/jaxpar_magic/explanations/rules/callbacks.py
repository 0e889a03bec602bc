"""Python functions that JAX calls back: pure_callback, io_callback, debug.callback, debug.print."""

from __future__ import annotations

import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, sizes
from ._lines import rewritten

_CALLBACKS = ("pure_callback", "io_callback", "callback")


def _callback(failure: Failure) -> tuple[Call | None, str, str]:
    """(the user's call, its name, the host function) as far as they can be seen."""
    call = failure.call(*_CALLBACKS)
    name = call.name if call is not None else "a callback"
    host = call.args[0] if call is not None and call.args else "the Python function"
    return call, {"callback": "debug.callback"}.get(name, name), host


def _in_callback(failure: Failure) -> bool:
    """Whether the failure is what a callback raised: by its message, or by the frames of a text."""
    if failure.search(r"CpuCallback error"):
        return True
    called = [f for f in failure.frames if re.search(r"jax/_src/(callback|debugging)\.py$", f.file.replace("\\", "/"))]
    runs = any(re.search(r"_wrapped_callback|callback_impl|^__call__$", f.function) for f in called)
    return runs and failure.frames[-1].package != "jax"


@rule(
    "JPX1701",
    "callback-raised",
    clues=(),
    types=("JaxRuntimeError", "Exception"),
    priority=5,
)
def callback_raised(failure: Failure) -> Finding | None:
    if not _in_callback(failure):
        return None
    inner = None
    if failure.is_a("JaxRuntimeError"):
        if not failure.search(r"CpuCallback error"):
            return None
        lines = re.findall(r"^((?:\w+\.)*\w+(?:Error|Exception|Interrupt|Exit|Stop\w*)): ?(.*)$", failure.text, re.M)
        if not lines:
            return None
        inner = lines[-1]
        lines_of = re.findall(r'^\s+File "([^"]+)", line (\d+), in (\S+)', failure.text, re.M)
        last = lines_of[-1] if lines_of else None
    elif failure.kind == "text" and failure.type_name is not None:
        # the callback's own traceback stands in the text, and its error is what was parsed
        inner = (failure.type_name, failure.message.split("\n")[0])
        frame = failure.frames[-1] if failure.frames else None
        last = (frame.file, str(frame.line), frame.function) if frame is not None else None
    if inner is None or re.match(r"(Incorrect output|Mismatched number of outputs)", inner[1]):
        return None
    if re.search(r"jax/_src/", last[0].replace("\\", "/") if last else ""):
        last = None
    _, name, host = _callback(failure)
    shown = f"`{host}`" if host != "the Python function" and len(host) < 60 else "A Python function"
    place = f" ({last[0].rsplit('/', 1)[-1]}, line {last[1]}, in {last[2]})" if last else ""
    error = f"{inner[0].rsplit('.', 1)[-1]}: {inner[1]}".rstrip(": ")
    return Finding(
        what=f"{shown}, which JAX calls through {name}, raised {error}{place}.",
        why="The error is in that Python function, not in the JAX code around it; JAX can only pass its text on. The "
        "function gets arrays as arguments, whatever it was written for.",
        fixes=[
            Fix(
                "Try the function by itself, with arrays as it gets them",
                f"{host if host.isidentifier() else 'host_function'}(jax.numpy.ones(3))",
                kind="sketch",
            ),
            Fix(
                "Or catch the error inside, and return a value that marks it",
                "def host_function(x):\n    try:\n        return compute(x)\n    except Exception:\n"
                "        return numpy.full(x.shape, numpy.nan, x.dtype)",
            ),
        ],
        facts={"error": inner[0], "message": inner[1], "callback": name},
    )


@rule("JPX1702", "callback-wrong-output", clues=("Incorrect output", "Mismatched number of outputs from callback"))
def callback_wrong_output(failure: Failure) -> Finding | None:
    dtype = failure.search(r"Incorrect output dtype for return value #(\d+): Expected: (\w+), Actual: (\w+)")
    shape = failure.search(
        r"Incorrect output shape for return value #(\d+): Expected: \(([\d, ]*)\), Actual: \(([\d, ]*)\)"
    )
    count = failure.search(r"Mismatched number of outputs from callback\. Expected: (\d+), Actual: (\d+)")
    _, name, host = _callback(failure)
    applied = f"{host}(x)" if re.fullmatch(r"[\w.]+", host) else f"({host})(x)"
    if host == "the Python function":
        applied = "host_function(x)"
    name = "pure_callback" if name == "a callback" else name
    if dtype is not None:
        number, expected, actual = dtype.groups()
        what = f"returned {actual} where {expected} was promised"
        fixes = [
            Fix("Cast inside the callback", f"lambda x: numpy.asarray({applied}, {expected!r})"),
            Fix("Or promise what it returns", f"jax.ShapeDtypeStruct(x.shape, {actual!r})", kind="sketch"),
        ]
        facts: dict[str, object] = {"expected": expected, "actual": actual, "output": int(number)}
        if actual.endswith("64"):
            fixes.pop()  # not available without 64-bit types
    elif shape is not None:
        number, promised, got = shape.group(1), sizes(shape.group(2)), sizes(shape.group(3))
        what = f"returned an array of shape {got} where {promised} was promised"
        fixes = [
            Fix(
                "Promise the shape that it returns", f"jax.ShapeDtypeStruct({got}, jnp.float32)  # the dtype as before"
            ),
            Fix("Or give the result that shape", f"lambda x: numpy.reshape({applied}, {promised})"),
        ]
        facts = {"expected": promised, "actual": got, "output": int(number)}
    elif count is not None:
        need, got_count = int(count.group(1)), int(count.group(2))
        what = f"returned {counted(got_count, 'value')} where {need} {'was' if need == 1 else 'were'} promised"
        fixes = [Fix("Promise as many results as it returns", "(result_type,) * " + str(got_count))]
        facts = {"expected": need, "actual": got_count}
    else:
        return None
    shown = f"`{host}`" if host != "the Python function" and len(host) < 60 else "The Python function"
    return Finding(
        what=f"{shown}, called through {name}, {what}.",
        why=f"{name} is told beforehand what shape and dtype the function will return, since the program around it is "
        "compiled for that. numpy makes float64 and int64 unless told otherwise.",
        fixes=fixes,
        facts=facts,
    )


@rule(
    "JPX1703",
    "callback-under-vmap",
    types=("NotImplementedError", "ValueError"),
    clues=("vmap_method", "Cannot `vmap` ordered IO callback"),
)
def callback_under_vmap(failure: Failure) -> Finding | None:
    match = failure.search(
        r"vmap is only supported for the (\w+) primitive when vmap_method is .*?Got vmap_method=(\S+?)\.?(?:\s|$)", re.S
    )
    wrong = failure.search(r"vmap_method must be on(?:e)? of the allowed methods .*?but got: (\S+)", re.S)
    ordered = failure.search(r"Cannot `vmap` ordered IO callback")
    call, _, host = _callback(failure)
    if match is not None:
        what = f"vmap met {match.group(1)}{f' of `{host}`' if call is not None else ''}, and was not told how the "
        what += "Python function handles a batch."
    elif wrong is not None:
        what = f"{wrong.group(1)} is no vmap_method."
    elif ordered is not None:
        what = "vmap met an io_callback with ordered=True; the items of a batch have no order."
    else:
        return None
    fixes = []
    if ordered is not None:
        new = re.sub(r",\s*ordered\s*=\s*True", "", call.source) if call is not None else None
        fixes.append(
            Fix(
                "Leave ordered=True away",
                (failure.rewrite(call.source, new) if call is not None and new else None)
                or "jax.experimental.io_callback(function, result_type, x)",
            )
        )
    else:
        for method, title in (
            ("sequential", "Call it once for each item"),
            ("broadcast_all", "Or once with all items, if it works on whole arrays as numpy's functions do"),
        ):
            new = f"jax.pure_callback(function, result_type, x, vmap_method={method!r})"
            if call is not None:
                given = re.sub(r",\s*vmap_method\s*=\s*[^,)]+", "", call.source)
                new = failure.rewrite(call.source, f"{given[:-1]}, vmap_method={method!r})") or new
            fixes.append(Fix(title, new))
    return Finding(
        what=what,
        why="JAX cannot look into a Python function, so it cannot make it work on a batch. It can call it item by item "
        "or hand it all items at once.",
        fixes=fixes,
        facts={"function": host if call is not None else None},
    )


@rule(
    "JPX1704",
    "callback-result-needs-x64",
    types=("ValueError",),
    clues=("result_shape_dtypes cannot specify 64-bit types",),
)
def callback_result_needs_x64(failure: Failure) -> Finding | None:
    if not failure.search(r"^result_shape_dtypes cannot specify 64-bit types when `jax_enable_x64` is disabled"):
        return None
    frame = failure.user
    source = frame.statement or frame.source or "" if frame is not None else ""
    wide = re.search(r"(float|int|uint|complex)(64|128)", source)
    fixes = []
    if wide:
        narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
        to = narrow.get(wide.group(0), "float32")
        fixes.append(Fix(f"Promise {to}, and return it", source.replace(wide.group(0), to)))
    else:
        fixes.append(
            Fix("Promise a 32-bit type, and return it", "jax.ShapeDtypeStruct(numpy.shape(x), jax.numpy.float32)")
        )
    x64 = "%jaxdevices --x64" if failure.environment.interactive else "jax.config.update('jax_enable_x64', True)"
    fixes.append(Fix("Or switch 64-bit types on, at the start", x64))
    return Finding(
        what=f"A callback promises a 64-bit result{f' ({wide.group(0)})' if wide else ''}, but these types are "
        "switched off.",
        why="JAX works with 32-bit numbers unless told otherwise; numpy's default is 64 bits.",
        fixes=fixes,
        facts={"dtype": wide.group(0) if wide else None},
    )


def _ordered_on_devices(failure: Failure) -> Finding:
    return Finding(
        what="The function runs on several devices, and holds a callback or a print with ordered=True.",
        why="The devices run at the same time, so their callbacks have no common order: ordered=True works on one "
        "device only.",
        fixes=[
            Fix("Leave ordered=True away", "jax.debug.print('x = {}', x)"),
            Fix("Return the value, and report it outside", "y, reported = f(x)\nprint(reported)", kind="sketch"),
        ],
        facts={"place": "several devices"},
    )


@rule(
    "JPX1705",
    "side-effect-not-supported-here",
    types=("NotImplementedError", "Exception", "ValueError"),
    clues=("ffects not supported", "IO effect", "with these side effects", "ordered effects are not supported"),
)
def side_effect_not_supported_here(failure: Failure) -> Finding | None:
    if failure.search(r"ordered effects are not supported for\s+more than 1 device"):
        return _ordered_on_devices(failure)
    match = failure.search(
        r"(?:^|\b)(?:Effects|(?:Ordered |Unordered )?(?:IO )?effects|IO effect|State effect) not supported in "
        r"(?:partial-eval of )?`?([\w./`-]+?)`?(?:\s(with batched predicate))?(?:[:.]|\s|$)"
    ) or failure.search(
        r"remat optimization for (custom_vjp) does not support forward functions with these side effects"
    )
    if match is None:
        return None
    place = match.group(1).replace("`", "")
    place = {"vmap-of-cond": "a cond that vmap maps", "while_loop": "a while_loop that vmap maps"}.get(place, place)
    ordered = "Ordered" in match.group(0) or "ordered" in failure.text.lower()
    fixes = []
    if ordered:
        fixes.append(Fix("Leave ordered=True away", "jax.debug.print('x = {}', x)"))
    fixes.append(Fix("Return the value, and report it outside", "y, reported = f(x)\nprint(reported)", kind="sketch"))
    if len(fixes) < 2:
        fixes.append(
            Fix(
                "Or use jax.debug.print or jax.debug.callback, which may run in any order",
                "jax.debug.callback(report, x)",
            )
        )
    return Finding(
        what=f"A callback with a side effect (io_callback, or one with ordered=True) stands inside {place}, where JAX "
        "cannot keep its promise to run it exactly once and in order.",
        why="vmap, checkpoint, custom rules and loops may run a function another number of times, or in another order, "
        "than it is written.",
        fixes=fixes,
        facts={"place": place},
    )


@rule(
    "JPX1706",
    "callback-needs-cpu",
    types=("RuntimeError",),
    clues=("failed to find a local CPU device to place the",),
)
def callback_needs_cpu(failure: Failure) -> Finding | None:
    match = failure.search(r"jax\.([\w.]+) failed to find a local CPU device to place the\s+inputs on")
    if match is None:
        return None
    return Finding(
        what=f"{match.group(1)} needs a CPU device to hand its arguments to Python, but the CPU back end is off.",
        why="JAX_PLATFORMS (or jax_platforms) names which back ends JAX starts; a callback runs on the CPU.",
        fixes=[
            Fix(
                "Add cpu to the platforms, before the first use of JAX",
                "import os\nos.environ['JAX_PLATFORMS'] = 'cuda,cpu'",
            )
        ],
        facts={"callback": match.group(1)},
    )


@rule(
    "JPX1707",
    "debug-print-format",
    types=("ValueError", "IndexError", "KeyError", "TypeError"),
    clues=(),
)
def debug_print_format(failure: Failure) -> Finding | None:
    call = failure.call("print")
    shown = call is not None and re.search(r"debug\.print$", call.function) is not None
    unused = failure.search(r"^Unused (positional|keyword) arguments to `jax\.debug\.print`: (.+?)(?:\. You may|$)")
    missing = shown and failure.is_a("IndexError", "KeyError") and call == failure.outer_call
    index = (
        failure.search(r"^(Replacement index \d+ out of range|tuple index out of range|'\w+'$)") if missing else None
    )
    not_callable = failure.search(
        r"^first argument to jax\.debug\.callback must be callable, but got an object of type (.+)"
    )
    if not_callable is not None:
        return Finding(
            what=f"jax.debug.callback takes a function first, and got {not_callable.group(1)}.",
            why="It calls the function with the values, when they are there.",
            fixes=[Fix("Give a function, then its arguments", "jax.debug.callback(print, x)")],
            facts={"got": not_callable.group(1)},
        )
    if unused is None and index is None:
        return None
    f_string = call is not None and bool(call.args) and re.match(r"[fF]['\"]", call.args[0]) is not None
    fixes = []
    if f_string and call is not None:
        fmt = re.sub(r"\{(\w+)(![rsa])?(:[^{}]*)?\}", r"{\1\3}", call.args[0][1:])
        names = dict.fromkeys(re.findall(r"\{(\w+)(?:[!:][^{}]*)?\}", call.args[0]))
        new = f"{call.function}({fmt}, {', '.join(f'{n}={n}' for n in names)})"
        fixes.append(Fix("No f before the string; pass the values by name", rewritten(failure, call.source, new)))
    else:
        fixes.append(
            Fix("One {} for each value, and no f before the string", "jax.debug.print('x = {}, y = {}', x, y)")
        )
    what = (
        f"jax.debug.print got {unused.group(1)} arguments that its text has no place for: {unused.group(2)}."
        if unused is not None
        else "jax.debug.print has a place in its text for which there is no value."
    )
    return Finding(
        what=what,
        why="jax.debug.print fills its text in later, when the values are there: the text has {} or {name} for each of "
        "them. An f-string would be filled in while tracing.",
        fixes=fixes,
        facts={"f_string": f_string},
    )
