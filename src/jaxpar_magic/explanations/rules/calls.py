"""Calls of JAX's functions with arguments of another kind than they take, of all families."""

from __future__ import annotations

import re
import textwrap

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted
from ._lines import ARRAY, called_with, jax_at_line, operands, rewritten

_JAX_CALL = r"(?:jnp|jax|lax|np|numpy|jr|jrandom|random|nn|jso|io_callback|pure_callback)\b"


def _line(failure: Failure) -> str:
    user = failure.user
    return (user.segment or user.statement or user.source or "") if user is not None else ""


# -- devices ---------------------------------------------------------------------------------------


@rule("JPX0129", "no-such-device", types=("IndexError",), clues=("list index out of range",), anywhere=True)
def no_such_device(failure: Failure) -> Finding | None:
    match = re.search(r"\bjax\.(local_devices|devices)\(([^()]*)\)\[(\w+)\]", _line(failure))
    if match is None or (failure.user is not None and failure.user.raises) or failure.inner_frames:
        return None
    have = failure.environment.devices
    index = match.group(3)
    source = match.group()
    held = failure.variable(index)
    number = held.value if held is not None else index
    there = f"there {'is' if have == 1 else 'are'} {counted(have, 'device')}" if have else "there are fewer devices"
    last = f" (0 to {have - 1})" if have and have > 1 else " (number 0)" if have == 1 else ""
    fixes = [Fix("Use one that there is", rewritten(failure, source, f"jax.{match.group(1)}({match.group(2)})[0]"))]
    if failure.environment.platform in ("cpu", None) and str(number).isdigit():
        need = int(str(number)) + 1
        fixes.append(
            Fix(
                f"Give JAX {need} CPU devices, at the start of the program",
                f"import jax\njax.config.update('jax_num_cpu_devices', {need})  # before anything computes",
                kind="start",
            )
        )
    return Finding(
        what=f"`{source}` asks for the device with the number {number}, and {there}{last}.",
        why="jax.devices() lists the devices that JAX uses. On a CPU JAX starts with one device, however many cores "
        "there are.",
        fixes=fixes,
        facts={"index": number, "devices": have},
    )


@rule("JPX0130", "transfer-not-allowed", clues=("Disallowed ",))
def transfer_not_allowed(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Disallowed ((?:host|device)-to-(?:host|device)) transfer:?(?:\s*aval=ShapedArray\((\S+?)\))?"
    )
    if match is None:
        return None
    way, array = match.groups()
    of = f" of {array}" if array else ""
    explicit = {
        "host-to-device": Fix("Bring the data to the device by name", "x = jax.device_put(x)"),
        "device-to-host": Fix("Fetch the data by name", "x = jax.device_get(x)"),
        "device-to-device": Fix("Move the data by name", "x = jax.device_put(x, device)"),
    }[way]
    statement = failure.user.statement if failure.user is not None else None
    pair = operands(failure)
    if way == "host-to-device" and pair is not None:
        held = [failure.variable(source) for source in (pair[0], pair[2])]
        hosts = [
            source
            for source, v in zip((pair[0], pair[2]), held)
            if re.match(r"np\.|numpy\.|-?\d", source) or (v is not None and v.type in ("ndarray", "int", "float"))
        ]
        if len(hosts) == 1 and statement is not None:
            explicit = Fix(explicit.title, rewritten(failure, hosts[0], f"jax.device_put({hosts[0]})"))
    again = textwrap.indent(statement, "    ") if statement is not None else "    y = f(x)"
    return Finding(
        what=f"A silent copy{of} from {way.replace('-to-', ' to ')} was stopped: jax.transfer_guard does not allow it.",
        why="Numbers, lists and numpy arrays are copied to the device without a word when JAX computes with them. "
        "The setting jax_transfer_guard 'disallow' makes each such copy an error; copies that are asked for by name "
        "are allowed.",
        fixes=[explicit, Fix("Or allow silent copies here", f"with jax.transfer_guard('allow'):\n{again}")],
        facts={"direction": way, "array": array},
    )


@rule("JPX0229", "not-a-place-for-device-put", types=("AttributeError",), clues=("'str' object has no attribute",))
def jit_on_a_named_device(failure: Failure) -> Finding | None:
    call = failure.call("jit")
    device = call.keywords.get("device") if call is not None else None
    if call is None or not failure.search(r"^'str' object has no attribute '(client|platform|device_kind)'$"):
        return None
    if device is None or not re.match(r"[\"']", device):
        return None
    kind = device.strip("\"'").split(":")[0]
    return Finding(
        what=f"jit was told to run on {device}, which is text, no device.",
        why="A device is an object of the list jax.devices(). jit computes where its inputs lie.",
        fixes=[
            Fix(
                "Give the device itself",
                rewritten(failure, call.source, call.changed(device=f'jax.devices("{kind}")[0]')),
            ),
            Fix(
                "Or put the inputs on the device, and leave device away",
                f'x = jax.device_put(x, jax.devices("{kind}")[0])',
            ),
        ],
        facts={"device": device},
    )


# -- loops -----------------------------------------------------------------------------------------


@rule("JPX0725", "associative-scan-function", types=("IndexError", "TypeError", "ValueError"))
def associative_scan_function(failure: Failure) -> Finding | None:
    call = called_with(failure, "associative_scan")
    if call is None or not call.args or failure.from_jax is False:
        return None
    if not failure.search(
        r"^tuple index out of range$|must have the same number of dimensions|Cannot concatenate arrays|"
        r"incompatible shapes|pad|slice"
    ):
        return None
    if failure.user is not None and failure.user.source and "associative_scan" not in failure.user.source:
        return None
    return Finding(
        what=f"The function given to associative_scan, `{call.args[0]}`, does not return what it gets: one value of "
        "the same shape for each pair.",
        why="associative_scan gives the function many pairs at once, stacked along the axis, and puts its results back "
        "in the same places. So the function must work element by element along that axis, and keep shape and "
        "structure.",
        fixes=[
            Fix("Combine the two arguments element by element", rewritten(failure, call.args[0], "lambda a, b: a + b")),
            Fix(
                "For a function of single items: map it over the pairs",
                f"jax.lax.associative_scan(jax.vmap(function), {call.args[1] if len(call.args) > 1 else 'xs'})",
            ),
        ],
        facts={"function": call.args[0]},
        guess=True,
    )


# -- shapes and axes -------------------------------------------------------------------------------


@rule("JPX0827", "sizes-need-brackets", types=("TypeError",), clues=("Did you accidentally write",))
def sizes_need_brackets(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Did you accidentally write `jax\.numpy\.(\w+)\((.*?)\)` when you meant `jax\.numpy\.\w+\((.*?)\)`"
    )
    if match is None:
        return None
    function, wrote, meant = match.groups()
    call = called_with(failure, function)
    if call is not None and len(call.args) > 1:
        first = call.args[0] if not call.args[0].startswith("(") else call.args[0][1:-1]
        new = f"{call.function}(({', '.join([first, *call.args[1:]])}))"
        code = rewritten(failure, call.source, new)
    else:
        code = f"jnp.{function}({meant})"
    return Finding(
        what=f"{function}({wrote}) takes {wrote.split(',')[-1].strip()} for the dtype: the sizes of a shape belong "
        "into one pair of brackets.",
        why=f"The second argument of jnp.{function} is the dtype. A shape is one argument, a tuple.",
        fixes=[Fix("Put the sizes into brackets", code)],
        facts={"function": function, "wrote": wrote},
    )


@rule(
    "JPX0827",
    "sizes-need-brackets",
    types=("TypeError",),
    clues=("cannot reshape array of shape", "as a data type", "Shapes must be 1D", "Cannot interpret"),
    priority=12,
)
def sizes_of_a_call_need_brackets(failure: Failure) -> Finding | None:
    call = called_with(failure, "reshape", "normal", "uniform", "broadcast_to", "randint", "truncated_normal")
    if call is None or not re.match(_JAX_CALL, call.function) or re.match(r"np\.|numpy\.", call.function):
        return None
    if failure.from_jax is False:
        return None
    given = list(call.args[1:])
    if len(given) < 2 or not all(re.fullmatch(r"-?\d+|[\w.]+\.shape\[-?\d+\]|len\(\w+\)|\w+", a) for a in given):
        return None
    if not failure.search(
        r"cannot reshape array of shape .* into shape (?:\(?-?\d+,?\)?) |Cannot interpret '-?\d+' as a data type"
    ):
        return None
    if call.name == "randint" or (call.name != "reshape" and "Cannot interpret" not in failure.message):
        return None
    new = call.source.replace(", ".join(given), f"({', '.join(given)})", 1)
    return Finding(
        what=f"`{call.source}` gives the sizes of the shape one by one; they belong into one pair of brackets.",
        why=f"{call.function} takes the shape as one argument, a tuple; the next argument is something else.",
        fixes=[Fix("Put the sizes into brackets", rewritten(failure, call.source, new))],
        facts={"function": call.function, "sizes": tuple(given)},
    )


@rule("JPX0805", "joined-shapes-differ", types=("TypeError", "ValueError"), priority=12,
      clues=("integer scalar arrays can be converted", "requires ndarray", "expected a sequence", "not iterable",
             "int() argument must be", "Zero-dimensional", "but got"))  # fmt: skip
def arrays_to_join_one_by_one(failure: Failure) -> Finding | None:
    call = called_with(failure, "stack", "hstack", "vstack", "dstack", "concatenate", "concat", "column_stack", "block")
    if call is None or not re.match(r"(?:jnp|jax\.numpy)\.", call.function) or len(call.args) < 2:
        return None
    second = failure.variable(call.args[1])
    if failure.from_jax is False or not (
        (second is not None and second.array) or re.match(r"(?:jnp|jax|np)\.", call.args[1])
    ):
        return None
    keywords = "".join(f", {k}={v}" for k, v in call.keywords.items())
    new = f"{call.function}([{', '.join(call.args)}]{keywords})"
    return Finding(
        what=f"{call.name} got {len(call.args)} separate arrays, and takes one list of them.",
        why="The arrays to be joined come as one list or tuple; the next argument is the axis.",
        fixes=[Fix("Put the arrays into a list", rewritten(failure, call.source, new))],
        facts={"arguments": call.args},
    )


@rule("JPX0828", "axis-named-twice", types=("ValueError",), clues=("duplicate value in 'axis'", "repeated axis"))
def axis_named_twice(failure: Failure) -> Finding | None:
    match = failure.search(r"duplicate value in 'axis': \(([-\d, ]+)\)|^repeated axis(?: in \w+)?$")
    if match is None or (failure.live and not jax_at_line(failure)):
        return None
    axes = [int(n) for n in re.findall(r"-?\d+", match.group(1) or "")]
    different = tuple(dict.fromkeys(axes))
    shown = f"({', '.join(map(str, axes))})" if axes else "the axes"
    new = f"({', '.join(map(str, different))}{',' if len(different) == 1 else ''})"
    call = next((c for c in (failure.user.calls if failure.user else ()) if "axis" in c.keywords), None)
    code = f"x.sum(axis={new})"
    if call is not None and axes:
        code = rewritten(failure, call.source, call.changed(axis=new))
    return Finding(
        what=f"The same axis is named more than once: {shown}.",
        why="Each axis can be summed, moved or dropped once. Negative numbers count from the end, so -1 may be the "
        "same axis as another number.",
        fixes=[Fix("Name each axis once", code)],
        facts={"axes": tuple(axes)},
    )


@rule(
    "JPX0812",
    "no-such-axis",
    types=("IndexError", "TypeError"),
    clues=("is out of bounds for axis", "dimension numbers"),
)
def no_such_axis_of_call(failure: Failure) -> Finding | None:
    dot = failure.search(
        r"dot_general requires (\w+) dimension numbers to be nonnegative and less than the number of axes of the \w+ "
        r"value, got \w+ of \([\d, ]*\) and \w+ of \(([\d, ]*)\) for \w+ of rank (\d+)"
    )
    if dot is not None:
        side, axes, rank = dot.group(1), re.findall(r"\d+", dot.group(2)), int(dot.group(3))
        bad = next((axis for axis in axes if int(axis) >= rank), axes[0] if axes else "?")
        which = "first" if side == "lhs" else "second"
        return Finding(
            what=f"dot_general is to sum over axis {bad} of its {which} array, which has {counted(rank, 'axis')} (0 to "
            f"{rank - 1}).",
            why="dimension_numbers is ((axes of the first to sum over, axes of the second), (batch axes of the first, "
            "of the second)), each counted from 0.",
            fixes=[
                Fix("For a matrix product: the last axis of the first, the first of the second", "jnp.matmul(a, b)"),
                Fix("Or name the axes by letters", "jnp.einsum('ij,jk->ik', a, b)"),
            ],
            facts={"axis": bad, "rank": rank},
        )
    match = failure.search(r"^index (-?\d+) is out of bounds for axis 0 with size (\d+)$")
    if match is None or not jax_at_line(failure):
        return None
    call = called_with(failure, "swapaxes", "moveaxis", "transpose", "rollaxis") or next(
        (c for c in (failure.user.calls if failure.user else ()) if c.keywords.get("axis") == match.group(1)), None
    )
    if call is None:
        return None
    axis, rank = int(match.group(1)), int(match.group(2))
    if call.keywords.get("axis") == match.group(1):
        return Finding(
            what=f"`{call.source}` names axis {axis}, but the array has {counted(rank, 'axis')} (0 to {rank - 1}).",
            why="Axes are counted from 0, or from the end with -1.",
            fixes=[
                Fix("Name the last axis", rewritten(failure, call.source, call.changed(axis="-1"))),
            ],
            facts={"axis": axis, "rank": rank},
        )
    given = [str(rank - 1) if source == str(axis) else source for source in call.args]
    keywords = [f"{k}={v}" for k, v in call.keywords.items()]
    new = f"{call.function}({', '.join([*given, *keywords])})"
    last = f"{call.function}({', '.join(['-1' if source == str(axis) else source for source in call.args] + keywords)})"
    return Finding(
        what=f"`{call.source}` names axis {axis}, but the array has {counted(rank, 'axis')} (0 to {rank - 1}).",
        why="Axes are counted from 0.",
        fixes=[
            Fix("Name an axis that exists", rewritten(failure, call.source, new)),
            Fix("Or count from the end: -1 is always the last axis", rewritten(failure, call.source, last)),
        ],
        facts={"axis": axis, "rank": rank},
    )


@rule(
    "JPX0815", "convolution-shapes-do-not-fit", types=("TypeError",), clues=("convolution requires lhs and rhs ndim",)
)
def convolution_of_other_rank(failure: Failure) -> Finding | None:
    match = failure.search(r"convolution requires lhs and rhs ndim to be equal, got (\d+) and (\d+)")
    if match is None:
        return None
    images, kernel = map(int, match.groups())
    call = failure.call("conv_general_dilated", "conv", "conv_with_general_padding")
    x = call.args[0] if call is not None and call.args else "images"
    fixes = [Fix("Look at both shapes", f"print(jnp.shape({x}))")]
    if images == kernel - 1:
        new = f"({x})[None]" if not re.fullmatch(r"[\w.]+", x) else f"{x}[None]"
        code = f"y = convolve({new}, kernel)[0]"
        if call is not None:
            code = rewritten(failure, call.source, call.source.replace(x, new, 1))
        fixes.insert(0, Fix("Give a batch of one image: a leading axis of size 1", code))
    return Finding(
        what=f"The images have {counted(images, 'axis')} and the kernel has {kernel}; a convolution needs as many.",
        why="The images are a batch: (batch, channels, height, width) or, with NHWC, (batch, height, width, channels). "
        "One image alone needs a batch axis of size 1.",
        fixes=fixes,
        facts={"images": images, "kernel": kernel},
    )


@rule(
    "JPX0854",
    "index-is-no-whole-number",
    types=("TypeError",),
    clues=("cannot be interpreted as an integer",),
    anywhere=True,
)
def slice_of_fractions(failure: Failure) -> Finding | None:
    if not failure.search(r"^'float' object cannot be interpreted as an integer$") or not jax_at_line(failure):
        return None
    match = re.search(r"([\w.]+(?:\([^()]*\))?)\[([^\[\]]*:[^\[\]]*)\]", _line(failure))
    if match is None:
        return None
    holder, inside = match.groups()
    if (v := failure.variable(holder.split("(")[0])) is not None and v.type in ("ndarray", "list", "tuple", "str"):
        return None
    new = ":".join(f"int({p.strip()})" if re.search(r"\d\.\d|/|[A-Za-z]", p) else p for p in inside.split(":"))
    return Finding(
        what=f"The bounds of `{holder}[{inside}]` are no whole numbers.",
        why="Positions are whole numbers. a / b gives floats even where it comes out even; a // b gives whole numbers.",
        fixes=[
            Fix(
                "Make whole numbers of the bounds (cuts the fraction off)",
                rewritten(failure, match.group(), f"{holder}[{new}]"),
            )
        ],
        facts={"index": inside},
    )


@rule(
    "JPX0826",
    "function-needs-other-shapes",
    types=("ValueError",),
    clues=("Can't compute input and output sizes of a",),
)
def initializer_needs_two_axes(failure: Failure) -> Finding | None:
    match = failure.search(r"Can't compute input and output sizes of a (\d+)-dimensional weights tensor")
    if match is None:
        return None
    return Finding(
        what=f"The initializer needs a shape of at least two axes (inputs, outputs), and got one of {match.group(1)}.",
        why="Glorot, He and LeCun initializers choose the spread by the numbers of inputs and outputs. A bias has "
        "none.",
        fixes=[
            Fix("For a bias", "bias = jax.nn.initializers.zeros(key, (5,))"),
            Fix("Or for any shape", "values = jax.nn.initializers.normal(0.01)(key, (5,))"),
        ],
        facts={"axes": int(match.group(1))},
    )


# -- dtypes and kinds of inputs ----------------------------------------------------------------------


@rule(
    "JPX0909",
    "dtype-name-unknown",
    types=("TypeError",),
    clues=("not understood", "JAX only supports number, bool, and string dtypes", "is not a valid JAX array type"),
    anywhere=True,
)
def dtype_name_unknown(failure: Failure) -> Finding | None:
    match = failure.search(r"^data type ['\"]([\w<>=|.]+)['\"] not understood$")
    other = failure.search(
        r"^JAX only supports number, bool, and string dtypes, got dtype (\w+)"
        r"|with dtype (float128|longdouble|complex256) is not a valid JAX array type"
    )
    if match is not None and ((failure.live and not jax_at_line(failure)) or not failure.frames):
        return None
    if match is None and other is None:
        return None
    name = match.group(1) if match is not None else next(g for g in (other.groups() if other else ()) if g)
    import difflib

    known = (
        "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
    )
    close = difflib.get_close_matches(name.rpartition(".")[2], known.split(), 1, 0.6)
    best = "float64" if name in ("float128", "longdouble") else "complex128" if name == "complex256" else None
    best = best or (close[0] if close else "float32")
    line = _line(failure)
    whole = failure.user.statement or failure.user.source or line if failure.user is not None else ""
    code = whole.replace(name, best, 1) if name in whole else f"x = x.astype({best!r})"
    return Finding(
        what=f"JAX has no dtype {name}.",
        why="XLA computes with bool, integers of 4 to 64 bits, floats of 4 to 64 bits (bfloat16 too) and complex64 and "
        "complex128; 64-bit types need jax_enable_x64.",
        fixes=[Fix(f"Use {best}", code)],
        facts={"dtype": name, "use": best},
    )


@rule(
    "JPX0906",
    "operation-does-not-take-dtype",
    types=("NotImplementedError", "TypeError"),
    clues=("Unsupported dtype", "must be boolean or integer type"),
)
def operation_lacks_dtype(failure: Failure) -> Finding | None:
    which = failure.search(r"^select `which` must be boolean or integer type, got (\w+)")
    if which is not None:
        call = called_with(failure, "select", "select_n")
        test = call.args[0] if call is not None and call.args else "which"
        new = call.source.replace(test, f"({test}) != 0", 1) if call is not None else "jax.lax.select(which != 0, x, y)"
        return Finding(
            what=f"lax.select chooses by `{test}`, which is of type {which.group(1)}, not bool.",
            why="lax.select takes True or False for each element. jax.lax neither casts nor broadcasts.",
            fixes=[
                Fix("Make bools of it", rewritten(failure, call.source, new) if call is not None else new),
                Fix("Or use jnp.where, which does that by itself", "jnp.where(which, x, y)"),
            ],
            facts={"dtype": which.group(1), "operation": "select"},
        )
    match = failure.search(r"'Unsupported dtype (\w+)\.'|^Unsupported dtype (\w+)")
    if match is None:
        return None
    dtype = match.group(1) or match.group(2)
    call = failure.outer_call
    named = f"`{call.source}`" if call is not None and len(call.source) < 60 else "A function of linear algebra"
    code = f"y = function(x.astype('float32')).astype({dtype!r})"
    if call is not None and call.args:
        x = call.args[0]
        held = x if re.fullmatch(r"[\w.]+(?:\(.*\))?", x) else f"({x})"
        code = rewritten(failure, call.source, call.source.replace(x, f"{held}.astype('float32')", 1))
    return Finding(
        what=f"{named} does not take {dtype}.",
        why="Matrix factorisations (Cholesky, LU, QR, eigenvalues, solve) come from LAPACK and cuSOLVER, which have "
        "32- and 64-bit floats only.",
        fixes=[Fix("Compute this step in float32", code)],
        facts={"dtype": dtype},
    )


@rule(
    "JPX0966", "compiled-function-cannot-be-transformed", types=("TypeError",), clues=("function lowered and compiled",)
)
def compiled_function_cannot_be_transformed(failure: Failure) -> Finding | None:
    if not failure.search(r"Cannot apply JAX transformations to a function lowered and compiled for a particular sig"):
        return None
    transform = next(
        (
            c
            for c in (failure.user.calls if failure.user else ())
            if c.name in ("grad", "vmap", "jit", "value_and_grad", "jacfwd", "jacrev")
        ),
        None,
    )
    name = transform.args[0] if transform is not None and transform.args else "compiled"
    what = transform.name if transform is not None else "A transformation (grad, vmap, jit)"
    return Finding(
        what=f"{what} was applied to `{name}`, which is compiled ahead of time.",
        why="What .lower(…).compile() gives is one machine program. JAX can no longer look into it, as grad, vmap and "
        "jit must.",
        fixes=[
            _of_jitted(failure, transform, name),
            Fix(
                "Or transform the function first, and compile the result",
                f"compiled = jax.jit(jax.{transform.name if transform else 'grad'}(function)).lower(x).compile()",
            ),
        ],
        facts={"transformation": transform.name if transform is not None else None},
    )


def _of_jitted(failure: Failure, transform: Call | None, name: str) -> Fix:
    title = "Transform the jitted function in place of the compiled one"
    jit = next((call for call in failure.defining_calls(name) if call.name == "jit"), None)
    if jit is None or transform is None:
        return Fix(title, f"jax.{transform.name if transform is not None else 'grad'}(jax.jit(function))(x)")
    new = transform.source.replace(name, jit.source, 1)
    return Fix(title, rewritten(failure, transform.source, new))


@rule("JPX0967", "sparse-array-in-dense-function", types=("TypeError",), clues=("experimental.sparse",), priority=10)
def sparse_array_in_dense_function(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:(\w+) requires ndarray or scalar arguments, )?got <class 'jax\.experimental\.sparse\.\w+\.(\w+)'>"
    )
    if match is None:
        return None
    function, kind = match.groups()
    call = called_with(failure, function) if function else failure.outer_call
    code = "y = jnp.sin(x.todense())"
    if call is not None and call.args:
        code = rewritten(failure, call.source, call.source.replace(call.args[0], f"({call.args[0]}).todense()", 1))
    return Finding(
        what=f"{f'jnp.{function}' if function else 'A function'} got a sparse matrix ({kind}), and takes ordinary "
        "arrays.",
        why="jax.numpy knows nothing of sparse matrices. sparse.sparsify makes a function of jax.numpy one for them, "
        "where it has a rule.",
        fixes=[
            Fix("Make an ordinary array of it (takes the memory of all its zeros)", code),
            Fix(
                "Or let JAX turn the function",
                "from jax.experimental import sparse\n"
                f"sparse.sparsify({call.function if call is not None else 'jnp.sin'})"
                f"({call.args[0] if call is not None and call.args else 'x'})",
            ),
        ],
        facts={"function": function, "type": kind},
    )


@rule(
    "JPX0962",
    "python-number-where-an-array-is-needed",
    types=("AttributeError",),
    clues=("object has no attribute 'shape'", "object has no attribute 'dtype'", "object has no attribute 'ndim'"),
)
def python_number_where_an_array_is_needed(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^'(float|int|list|tuple|bool|complex)' object has no attribute '(shape|dtype|ndim|size|astype)'$"
    )
    call = failure.outer_call
    if match is None or call is None or not (failure.from_jax or failure.frames_removed):
        return None
    kind, attribute = match.groups()
    line = _line(failure)
    if re.search(rf"\.{attribute}\b", line) or (failure.frames and failure.frames[-1].package not in ("jax", "user")):
        return None  # the user's own line asks
    if call.name in ("io_callback", "pure_callback") and attribute in ("shape", "dtype"):
        promised = f"jax.ShapeDtypeStruct({call.args[1] if len(call.args) > 1 else '(3,)'}, jnp.float32)"
        return Finding(
            what=f"{call.name} was told that the result is `{call.args[1] if len(call.args) > 1 else '?'}`; it needs "
            "its shape and its dtype.",
            why="JAX cannot look into the Python function, so it must be told what the function returns: one "
            "jax.ShapeDtypeStruct for each array.",
            fixes=[
                Fix(
                    "Give shape and dtype",
                    rewritten(
                        failure,
                        call.source,
                        f"{call.function}({', '.join([call.args[0], promised, *call.args[2:]])})",
                    )
                    if len(call.args) > 1
                    else "jax.ShapeDtypeStruct((3,), jnp.float32)",
                )
            ],
            facts={"function": call.name},
        )
    wanted = next(
        (
            a
            for a in call.args
            if re.fullmatch(r"-?\d+(?:\.\d*)?|\[.*\]|\(.*,.*\)", a) or ((v := failure.variable(a)) and v.type == kind)
        ),
        None,
    )
    if wanted is None:
        return None
    array = re.sub(rf"(?<![\w.]){re.escape(wanted)}(?![\w.])", f"jnp.asarray({wanted})", call.source, count=1)
    if call.name == "minimize" and kind in ("int", "float") and len(call.args) > 1:  # takes a vector only
        rest = call.source.partition(f"{call.args[0]}, {wanted}")[2]
        array = f"{call.function}(lambda v: ({call.args[0]})(v[0]), jnp.asarray([{wanted}]){rest}"
    return Finding(
        what=f"{call.function} got `{wanted}`, a Python {kind}, and needs an array.",
        why="Most functions of JAX make arrays of numbers by themselves; this one asks the argument for its "
        f"{attribute} first.",
        fixes=[
            Fix(
                "Make an array of it",
                rewritten(failure, call.source, array),
            )
        ],
        facts={"argument": wanted, "type": kind},
    )


# -- keys and initializers ---------------------------------------------------------------------------


@rule("JPX1001", "random-needs-a-key", types=("TypeError",), clues=("missing 1 required positional argument",))
def initializer_needs_a_key(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:variance_scaling|uniform|normal|orthogonal|truncated_normal|delta_orthogonal)\.<locals>\.init\(\) "
        r"missing 1 required positional argument: '(\w+)'"
    )
    if match is None:
        return None
    call = failure.outer_call
    code = "weights = init(jax.random.key(0), (3, 4))"
    if call is not None and call.args:
        code = "key = jax.random.key(0)\n" + rewritten(
            failure, call.source, f"{call.function}({', '.join(['key', *call.args])})"
        )
    return Finding(
        what=f"{f'`{call.source}`' if call is not None else 'An initializer'} lacks the random key: an initializer "
        "takes a key and a shape.",
        why="JAX has no hidden random state. Whatever is random takes a key as its first argument.",
        fixes=[Fix("Give a key first", code)],
        facts={"missing": match.group(1)},
    )


# -- static arguments ----------------------------------------------------------------------------------


@rule(
    "JPX1110",
    "static-argnums-is-a-name",
    types=("TypeError",),
    clues=("'str' object cannot be interpreted as an integer",),
)
def static_argnums_is_a_name(failure: Failure) -> Finding | None:
    call = failure.call("jit", "pmap", "checkpoint", "remat", "grad", "value_and_grad")
    if call is None or failure.from_jax is False:
        return None
    given = next(
        (
            k
            for k in ("static_argnums", "donate_argnums", "static_broadcasted_argnums", "argnums")
            if k in call.keywords
        ),
        None,
    )
    if given is None or not re.search(r"[\"']", call.keywords[given]):
        return None
    value = call.keywords[given]
    name = given.replace("argnums", "argnames")
    by_name = given in ("static_argnums", "donate_argnums") and call.name == "jit"
    new = call.changed(**{given: None, name: value}) if by_name else call.changed(**{given: "0"})
    return Finding(
        what=f"{given}={value} gives a name, and {given} takes positions (0, 1, …).",
        why=f"{given} counts the positional arguments from 0." + (f" {name} takes names." if by_name else ""),
        fixes=[Fix(f"Use {name}" if by_name else "Give the position", rewritten(failure, call.source, new))],
        facts={"keyword": given, "value": value},
    )


# -- functions of other libraries' kind ------------------------------------------------------------------


@rule("JPX1809", "optimizer-method-not-in-jax", types=("ValueError",), clues=("not recognized",))
def optimizer_method_not_in_jax(failure: Failure) -> Finding | None:
    match = failure.search(r"^Method ([\w-]+) not recognized$")
    call = failure.call("minimize")
    if match is None or (failure.live and (call is None or failure.from_jax is False)):
        return None
    if not failure.live and not failure.search(r"\bjax\b") and not any(f.package == "jax" for f in failure.frames):
        return None
    method = match.group(1)
    old = call.keywords.get("method") if call is not None else None
    code = "result = jax.scipy.optimize.minimize(f, x0, method='BFGS')"
    if call is not None and old is not None:
        code = rewritten(failure, call.source, call.changed(method='"BFGS"'))
    return Finding(
        what=f"jax.scipy.optimize.minimize has no method {method}; it has BFGS.",
        why="JAX has a small part of scipy.optimize. SciPy's own takes functions of JAX, and gradients from jax.grad.",
        fixes=[
            Fix("Use BFGS", code),
            Fix(
                f"Or SciPy's {method}, with the gradient from JAX",
                "import scipy.optimize\n"
                f"scipy.optimize.minimize(jax.jit(f), x0, jac=jax.jit(jax.grad(f)), method={method!r})",
            ),
        ],
        facts={"method": method},
    )


_ELSEWHERE = {
    r"softmax_cross_entropy\w*|sigmoid_binary_cross_entropy|huber_loss|l2_loss|cosine_similarity|ctc_loss|sgd": (
        "optax",
        "import optax\noptax.{name}",
    ),
    r"Dense|Linear|Conv\w*|Dropout|LayerNorm|BatchNorm|Module|Embed\w*|MultiHead\w*|LSTM\w*|GRU\w*": (
        "flax",
        "from flax import nnx\nnnx.{name}",
    ),
}


# names that numpy had for Python's own types: Python's, and the one with a size
_PYTHONS = {
    "float": ("float", "float32"),
    "int": ("int", "int32"),
    "bool": ("bool", "bool_"),
    "complex": ("complex", "complex64"),
    "long": ("int", "int32"),
}


@rule("JPX1802", "not-in-jax", types=("AttributeError",), clues=("module 'jaxlib' has no attribute",), anywhere=True)
def name_not_in_jaxlib(failure: Failure) -> Finding | None:
    if not failure.search(r"^module 'jaxlib' has no attribute 'xla_extension'$"):
        return None
    return Finding(
        what="jaxlib.xla_extension is gone (since JAX 0.8); it was an inner part of JAX.",
        why="jaxlib is for jax alone. What others need of it has names in jax.",
        fixes=[
            Fix("For arrays and devices", "jax.Array, jax.Device"),
            Fix("For the error that XLA raises", "jax.errors.JaxRuntimeError"),
        ],
        facts={"name": "jaxlib.xla_extension"},
    )


@rule("JPX1802", "not-in-jax", types=("AttributeError", "ImportError"), clues=("jax",), priority=-30)
def name_not_in_jax(failure: Failure) -> Finding | None:
    match = failure.search(r"^module '(jax(?:\.\w+)+)' has no attribute '([A-Za-z]\w*)'$") or failure.search(
        r"^cannot import name '(?P<name>[A-Za-z]\w*)' from '(?P<module>jax(?:\.\w+)+)'"
    )
    if match is None or "partially initialized" in failure.text:
        return None
    groups = match.groupdict()
    module, name = (groups["module"], groups["name"]) if groups else match.groups()
    if module == "jax.numpy" and name in _PYTHONS:
        own, sized = _PYTHONS[name]
        line = _line(failure)
        written = re.search(rf"[\w.]+\.{name}\b", line)
        old = written.group() if written is not None else f"jnp.{name}"
        return Finding(
            what=f"jax.numpy has no {name}; Python's own {own} is meant, or a type with its size, jnp.{sized}.",
            why=f"numpy once had np.{name} as another name of Python's {own}; it is gone there too.",
            fixes=[
                Fix(f"Use Python's {own}", rewritten(failure, old, own)),
                Fix(f"Or jnp.{sized}", rewritten(failure, old, f"jnp.{sized}")),
            ],
            facts={"name": f"{module}.{name}"},
        )
    key = name == "PRNGKeyArray"
    elsewhere = next(
        (entry for pattern, entry in _ELSEWHERE.items() if module == "jax.nn" and re.fullmatch(pattern, name)), None
    )
    fixes = []
    if key:
        fixes.append(Fix("A key is an array: in annotations write", "jax.Array"))
    if elsewhere is not None:
        library, code = elsewhere
        fixes.append(Fix(f"It is in the package {library}", code.format(name=name)))
    fixes.append(Fix(f"See what {module} has", f"import {module}\nprint(dir({module}))"))
    has = f"; {elsewhere[0]} has" if elsewhere is not None else ""
    return Finding(
        what=f"The installed JAX has no {module}.{name}{has}.",
        why="Names come and go with versions of JAX, and some that look like JAX's belong to libraries built on it.",
        fixes=fixes,
        facts={"name": f"{module}.{name}"},
        guess=elsewhere is None and not key,
    )


# -- more things that are no arrays, no shardings, no functions --------------------------------------------


@rule("JPX0826", "function-needs-other-shapes", types=("ValueError",), clues=("jax.numpy.meshgrid must be 1D",))
def meshgrid_of_rows(failure: Failure) -> Finding | None:
    match = failure.search(r"Arguments to jax\.numpy\.meshgrid must be 1D, got shapes (\[.*?\])$")
    if match is None:
        return None
    call = called_with(failure, "meshgrid")
    new = "jnp.meshgrid(x.ravel(), y.ravel())"
    if call is not None:
        flat = [f"jnp.ravel({a})" for a in call.args]
        new = rewritten(failure, call.source, f"{call.function}({', '.join(flat)})")
    return Finding(
        what=f"meshgrid takes arrays of one axis each, and got shapes {match.group(1)}.",
        why="Each argument holds the positions along one direction of the grid.",
        fixes=[Fix("Make rows of them", new)],
        facts={"shapes": match.group(1)},
    )


@rule("JPX1625", "float0-has-no-arithmetic", types=("TypeError",), clues=("with a float0 array",))
def float0_has_no_arithmetic(failure: Failure) -> Finding | None:
    match = failure.search(r"Called (\w+) with a float0 array")
    if match is None:
        return None
    held = [v.name for v in failure.variables.values() if "float0" in (v.dtype or "") and v.name.isidentifier()]
    g = held[0] if len(held) == 1 else "gradient"
    return Finding(
        what=f"The operation {match.group(1)} got the gradient of an integer input, which is empty (dtype float0).",
        why="Whole numbers have no derivative. With allow_int=True JAX still returns something of the same shape: an "
        "array of float0, which holds no numbers.",
        fixes=[
            Fix(
                "Make zeros of it first",
                f"{g} = jnp.zeros({g}.shape) if {g}.dtype == jax.dtypes.float0 else {g}",
            ),
            Fix("Or give floating-point numbers, which have a gradient", "jax.grad(f)(float(n))"),
        ],
        facts={"operation": match.group(1)},
    )


@rule(
    "JPX0968", "text-plus-array", types=("TypeError",), clues=("can only concatenate str", "and 'str'"), anywhere=True
)
def text_plus_array(failure: Failure) -> Finding | None:
    match = failure.search(
        rf'^can only concatenate str \(not "({ARRAY})"\) to str$'
        rf"|^unsupported operand type\(s\) for \S+: '({ARRAY})' and 'str'$"
    )
    if match is None:
        return None
    if match.group(2) is not None:
        return _number_from_text(failure, match.group(2))
    line = operands(failure, "+")
    traced = "Tracer" in match.group(1)
    code = 'text = f"loss: {x}"'
    if line is not None and re.match(r"([\"'])", line[0]):
        inner = line[0][1:-1]
        written = f'f"{inner}{{{line[2]}}}"'
        code = rewritten(failure, f"{line[0]} + {line[2]}", written) if not traced else written
    fixes = [Fix("Put the array into the text", code)]
    if traced:
        fixes = [Fix("Print while the compiled function runs", 'jax.debug.print("loss: {}", x)')]
    return Finding(
        what=f"Text and a JAX array ({match.group(1).rsplit('.', 1)[-1]}) cannot be added.",
        why="Python joins text with text only; an f-string makes text of anything.",
        fixes=fixes,
        facts={"type": match.group(1)},
    )


def _number_from_text(failure: Failure, kind: str) -> Finding:
    line = operands(failure)
    text = line[2] if line is not None else "text"
    number = f"float({text})"
    code = rewritten(failure, text, number) if line is not None else f"x + {number}"
    return Finding(
        what=f"A JAX array ({kind.rsplit('.', 1)[-1]}) and the text `{text}` cannot be combined.",
        why="What comes from input(), the command line or a file is text, also if it looks like a number.",
        fixes=[Fix("Make a number of the text", code)],
        facts={"type": kind},
    )


@rule("JPX0969", "array-is-no-function", types=("TypeError",), clues=("object is not callable",))
def array_is_no_function(failure: Failure) -> Finding | None:
    array = failure.search(rf"^'({ARRAY})' object is not callable$")
    shape = re.search(r"([\w.]+(?:\([^()]*\))?)\.(shape|ndim|size|dtype|T)\(\)", _line(failure))
    attribute = (
        failure.search(r"^'(?:tuple|int|dtype\[?\w*\]?|numpy\.dtypes\.\w+)' object is not callable$")
        and shape is not None
    )
    if array is None and not (attribute and jax_at_line(failure)):
        return None
    if array is None and shape is not None:
        return Finding(
            what=f"{shape.group(2)} of an array is no method: it needs no brackets.",
            why="An array knows its shape, dtype and number of axes as plain attributes. (torch has methods such as "
            "size() for some.)",
            fixes=[Fix("Leave the brackets away", rewritten(failure, shape.group(), shape.group().removesuffix("()")))],
            facts={"attribute": shape.group(2)},
        )
    call = failure.outer_call
    name = call.function if call is not None else "x"
    arguments = ", ".join(call.args) if call is not None else "i"
    fixes = [Fix("To take an item of the array, use square brackets", f"{name}[{arguments or '0'}]")]
    if name.isidentifier():
        fixes.append(Fix("If a function of that name is meant: the name was given to an array since", f"del {name}"))
    fixes.append(Fix("To multiply, write the sign", f"{name} * ({arguments or 'y'})"))
    return Finding(
        what=f"`{name}` is a JAX array, and is called like a function.",
        why="Round brackets after a name call a function. A result may have taken the name of the function that made "
        "it, a sign * may be missing, or round brackets stand for square ones.",
        fixes=fixes,
        facts={"name": name},
    )


_TORCH_WORDS = {"dim": "axis", "keepdim": "keepdims", "dims": "axes", "inputs": "xs", "carry": "init", "sequence": "xs"}


@rule("JPX1810", "unknown-argument", types=("TypeError",), clues=("got an unexpected keyword argument",), priority=-10)
def unknown_argument(failure: Failure) -> Finding | None:
    match = failure.search(r"^(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'")
    if match is None or failure.from_jax is False:
        return None
    name, keyword = match.groups()
    call = next(
        (c for c in (failure.user.calls if failure.user else ()) if keyword in c.keywords and c.name == name), None
    )
    if call is None:
        return None
    from .removed_api import _function

    function = _function(call.function)
    if function is None:
        return None
    import inspect

    try:
        parameters = [p for p in inspect.signature(function).parameters if not p.startswith("_")]
    except (TypeError, ValueError):
        return None
    meant = _TORCH_WORDS.get(keyword)
    if name in ("vmap", "pmap") and keyword in ("axis", "axes", "dim", "dims"):
        meant = "in_axes"
    if keyword in parameters:
        return None
    meant = meant if meant in parameters else None
    fixes = [Fix("See what the function takes", f"help({call.function})")]
    if meant is not None:
        new = re.sub(rf"\b{keyword}(\s*=(?!=))", rf"{meant}\1", call.source)
        fixes.insert(0, Fix(f"The argument is called {meant}", rewritten(failure, call.source, new)))
    else:
        new = call.changed(**{keyword: None})
        fixes.insert(0, Fix("Leave it away", rewritten(failure, call.source, new)))
    return Finding(
        what=f"{call.function} has no argument {keyword}; it takes {', '.join(parameters[:8])}"
        f"{', …' if len(parameters) > 8 else ''}.",
        why="The names of jax.numpy follow numpy, not torch or tensorflow.",
        fixes=fixes,
        facts={"function": call.function, "argument": keyword, "use": meant},
    )


@rule(
    "JPX1507",
    "compiled-program-cannot-be-pickled",
    types=("TypeError", "PicklingError"),
    clues=("LoadedExecutable",),
    anywhere=True,
)
def compiled_program_cannot_be_pickled(failure: Failure) -> Finding | None:
    if not failure.search(r"cannot pickle '(?:[\w.]*\.)?LoadedExecutable' object"):
        return None
    return Finding(
        what="A compiled program (what .lower(…).compile() gives) cannot be pickled.",
        why="It is machine code that belongs to the devices of this process.",
        fixes=[
            Fix(
                "Pickle the jitted function by value, and let it compile where it is loaded",
                "import cloudpickle\ndata = cloudpickle.dumps(jax.jit(function))",
            ),
            Fix(
                "Or keep compiled programs on disk, so that the next process need not compile",
                "jax.config.update('jax_compilation_cache_dir', '/tmp/jax_cache')",
            ),
        ],
    )


@rule("JPX0231", "not-a-sharding", types=("TypeError", "ValueError"), clues=("leaf specifications are expected",))
def not_a_sharding(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(\w+) leaf specifications are expected to be PartitionSpec instances or None, but got (.+)"
    )
    if match is None:
        return None
    keyword, got = match.groups()
    got = got.strip().rstrip(".")[:60]
    call = failure.call("jit", "pjit")
    sharding = "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())"
    code = f"jax.jit(function, {keyword}={sharding})"
    if call is not None and keyword in call.keywords:
        code = rewritten(failure, call.source, call.changed(**{keyword: sharding}))
    return Finding(
        what=f"{keyword} is {got!r}, which is no sharding.",
        why="A sharding says over which devices, and along which axes, an array is split. An empty PartitionSpec() "
        "keeps a whole copy on every device of the mesh.",
        fixes=[
            Fix("Give a sharding (here: a copy on every device)", code),
            Fix("Or leave it away: JAX then chooses", "jax.jit(function)"),
        ],
        facts={"keyword": keyword, "got": got},
    )


@rule("JPX0232", "mesh-and-spec-swapped", types=("AttributeError", "TypeError"))
def mesh_and_spec_swapped(failure: Failure) -> Finding | None:
    call = called_with(failure, "NamedSharding")
    if call is None or len(call.args) != 2 or failure.from_jax is False:
        return None
    first, second = call.args
    held = failure.variable(first)
    spec = re.match(r"(?:[\w.]*\.)?(?:P|PS|PartitionSpec)\(", first) or (
        held is not None and held.type in ("PartitionSpec", "P")
    )
    if not spec:
        return None
    return Finding(
        what=f"NamedSharding got the spec `{first}` first and `{second}` second; the mesh comes first.",
        why="NamedSharding(mesh, spec) says on which mesh the names of the spec are.",
        fixes=[Fix("Swap them", rewritten(failure, call.source, f"{call.function}({second}, {first})"))],
        facts={"first": first, "second": second},
    )


@rule("JPX1602", "grad-aux-not-declared", types=("TypeError",), clues=("iteration over a 0-d array",), priority=10)
def unpacked_without_aux(failure: Failure) -> Finding | None:
    frame = failure.user
    line = frame.statement or frame.source or "" if frame is not None else ""
    call = failure.call("value_and_grad", "grad")
    unpacked = re.match(r"\(([^()=]+)\)\s*,\s*([^=]+?)\s*=(?!=)", line)
    if call is None or unpacked is None or "has_aux" in line or not call.args:
        return None
    return Finding(
        what=f"The line unpacks ({unpacked.group(1)}) from the value, which is one number: `{call.source}` has no "
        "has_aux=True.",
        why="With has_aux=True the function returns (number, anything else), and value_and_grad returns "
        "((number, anything else), gradient). Without it, the value is the number alone.",
        fixes=[
            Fix(
                "If the function returns a pair: say that the second is only passed along",
                rewritten(failure, call.source, call.changed(has_aux="True")),
            ),
            Fix(
                "If it returns one number: unpack one",
                line.replace(f"({unpacked.group(1)})", unpacked.group(1).split(",")[0].strip(), 1),
            ),
        ],
        facts={"names": unpacked.group(1)},
    )


@rule("JPX1620", "custom-rule-arguments", types=("TypeError",), clues=("positional argument",))
def rule_with_other_arguments(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(\S+)\(\) (?:takes (\d+) positional arguments? but (\d+) (?:was|were) given|missing \d+ required positional)"
    )
    definition = next(
        ((name, d) for name, d in failure.definitions.items() if re.search(r"custom_[jv][vj]p\b", d)), None
    )
    if match is None or definition is None or failure.from_jax is False or failure.user is None:
        return None
    name, source = definition
    called = match.group(1).rpartition(".")[2]
    if called == name or failure.user.function == name or called in {call.name for call in failure.user.calls}:
        return None  # the user's own call has other arguments
    jvp, nondiff = "custom_jvp" in source, "nondiff_arg" in source
    head = re.search(rf"def {name}\(([\w, ]*)\)", source)
    parameters = head.group(1) if head is not None and head.group(1) else "x"
    count = parameters.count(",") + 1
    given = int(match.group(3)) if match.group(3) else None
    if not nondiff and given is not None and given not in ((2, count + 2) if jvp else (count, 2)):
        return None
    if nondiff:
        rules = (
            f"@{name}.defjvp\ndef {name}_jvp(nondiff, primals, tangents):\n    ..."
            if jvp
            else f"def forward(nondiff, x):\n    return {name}(nondiff, x), (x,)\n\n"
            f"def backward(nondiff, residuals, g):\n    (x,) = residuals\n    return (g * x,)\n\n"
            f"{name}.defvjp(forward, backward)"
        )
        why = (
            f"{name} has nondiff_argnums. Then {'the rule gets' if jvp else 'the backward rule gets'} these arguments "
        )
        why += "first, before the usual ones, and returns nothing for them"
        why += "." if jvp else "; the forward rule gets all arguments, as the function does."
    elif jvp:
        rules = f"@{name}.defjvp\ndef {name}_jvp(primals, tangents):\n    ({parameters},) = primals\n    "
        rules += f"return {name}({parameters}), tangents[0]  # times the derivative"
        why = (
            "The rule of a custom_jvp gets two tuples: the arguments, and how they change. (defjvps takes one function "
        )
        why += "for each argument: of its change, the result, and all arguments.)"
    else:
        gradients = ", ".join(f"g * {p}" for p in parameters.split(", "))
        rules = f"def forward({parameters}):\n    return {name}({parameters}), ({parameters},)\n\n"
        rules += f"def backward(residuals, g):\n    ({parameters},) = residuals\n    return ({gradients},)  # the "
        rules += f"derivatives\n\n{name}.defvjp(forward, backward)"
        why = (
            "The forward rule gets the function's arguments. The backward rule gets two things: what the forward rule "
        )
        why += "kept, and the gradient of the result."
    fixes = [Fix("Write the rule with these arguments", rules, kind="sketch")]
    defvjp = failure.sources.get(f"{name}.defvjp", "")
    passed = re.fullmatch(rf"{name}\.defvjp\((\w+), {called}\)", defvjp)
    positions = re.search(r"nondiff_argnums\s*=\s*\(?([\d, ]+)\)?", source)
    if passed is not None and positions is not None and match.group(2) == "2":
        n = len(re.findall(r"\d+", positions.group(1)))
        if given == n + 2:
            code = f"{name}.defvjp({passed.group(1)}, lambda *args: {called}(*args[{n}:]))"
            fixes.insert(0, Fix(f"Let {called} take only what JAX gives behind these arguments", code))
    took = f" It takes {match.group(2)} and was given {given}." if match.group(2) else ""
    return Finding(
        what=f"A derivative rule of {name}, {called}, takes other arguments than JAX gives it.{took}",
        why=why,
        fixes=fixes,
        facts={"function": name, "rule": called},
        guess=True,
    )


@rule("JPX0905", "lax-needs-equal-dtypes", types=("ValueError", "TypeError"), clues=("Invalid dtype for `",))
def ref_of_another_dtype(failure: Failure) -> Finding | None:
    match = failure.search(r"Invalid dtype for `(\w+)`\. Ref dtype: (\w+)\. Value dtype: (\w+)")
    if match is None:
        return None
    _, held, given = match.groups()
    return Finding(
        what=f"A ref that holds {held} was given a value of {given}.",
        why="A ref (an argument of a Pallas kernel, or what jax.new_ref makes) has a fixed dtype, and writing to it "
        "does not cast.",
        fixes=[
            Fix(f"Cast the value to {held}", f"ref[...] = value.astype('{held}')"),
            Fix(f"Or make the ref of {given}", f"out = jax.ShapeDtypeStruct(shape, '{given}')"),
        ],
        facts={"ref": held, "value": given},
    )


@rule("JPX0801", "shapes-do-not-broadcast", types=("ValueError", "TypeError"), clues=("Invalid shape for `",))
def ref_of_another_shape(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Invalid shape for `\w+`\. Ref shape: (\([\d, ]*\))\. (?:Expected shape: (\([\d, ]*\))\. )?"
        r"Value shape: (\([\d, ]*\))"
    )
    if match is None:
        return None
    held, wanted, given = match.groups()
    return Finding(
        what=f"The place in a ref of shape {held} takes shape {wanted or held}, and the value for it has shape "
        f"{given}.",
        why="Writing to a ref (in a Pallas kernel, or of jax.new_ref) does not broadcast: value and place must have "
        "the same shape.",
        fixes=[Fix("Bring the value to that shape", f"ref[...] = jnp.broadcast_to(value, {wanted or held})")],
        facts={"ref": held, "value": given},
    )
