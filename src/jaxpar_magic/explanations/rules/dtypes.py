"""Dtypes: 64-bit types that are off, numbers that do not fit, types that do not mix."""

from __future__ import annotations

import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import listed
from ._lines import enclosed, operands, rewritten

_X64_WHY = (
    "JAX works with 32-bit numbers unless 64-bit types are switched on, since accelerators are much faster with them."
)


def _x64_fix(failure: Failure) -> Fix:
    if failure.environment.interactive:
        return Fix("Switch 64-bit types on, then make the arrays again", "%jaxdevices --x64")
    return Fix(
        "Switch 64-bit types on, at the start of the program", "import jax\njax.config.update('jax_enable_x64', True)"
    )


def _dtype_text(dtype: str) -> str:
    return re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", dtype.strip())


@rule(
    "JPX0901",
    "dtype-needs-x64",
    types=("UserWarning", "ValueError"),
    clues=("Explicitly requested dtype",),
)
def dtype_needs_x64(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Explicitly requested dtype (<class '[\w.]+'>|[\w.]+)(?:\s+requested in ([\w.]+))? is not available"
        r"(?:,? and will be truncated to dtype (\w+))?"
    )
    if match is None:
        return None
    wanted, function, got = _dtype_text(match.group(1)), match.group(2), match.group(3)
    frame = failure.user
    source = frame.statement or frame.source or "" if frame is not None else ""
    fixes = [_x64_fix(failure)]
    if got and source:
        explicit = source.replace(wanted, got)
        if explicit != source:
            fixes.append(Fix(f"Or ask for {got}, which is what you get now", explicit))
    elif got:
        fixes.append(Fix(f"Or ask for {got}, which is what you get now", f"x = jax.numpy.asarray(x, {got!r})"))
    made = re.search(r"\b(?:jnp|jax\.numpy)\.(?=\w+\()", source)
    in_numpy = (
        re.sub(r"\b(?:jnp|jax\.numpy)\.(?=\w)", "numpy.", source) if made else f"x = numpy.asarray(x, {wanted!r})"
    )
    fixes.append(Fix("Or keep this in numpy, which has 64 bits", in_numpy))
    where = f" in {function}" if function else ""
    lost = {"float": "7 instead of 16 digits", "complex": "7 instead of 16 digits"}.get(
        re.sub(r"\d+", "", wanted), "numbers up to about 2·10⁹ instead of 9·10¹⁸"
    )
    result = f" The array is {got} instead: {lost}." if got else ""
    return Finding(
        what=f"{wanted} was asked for{where}, but 64-bit types are switched off.{result}",
        why=_X64_WHY,
        fixes=fixes,
        facts={"wanted": wanted, "got": got, "function": function},
    )


@rule(
    "JPX0902",
    "integer-does-not-fit",
    types=("OverflowError",),
    clues=("Python int", "An overflow was encountered while parsing an argument to a jitted computation"),
)
def integer_does_not_fit(failure: Failure) -> Finding | None:
    bounds = failure.search(r"^Python int(?:eger)? (-?\d+) (?:out of bounds for|too large to convert to) (\w+)")
    jitted = failure.search(
        r"^An overflow was encountered while parsing an argument to a jitted computation, whose argument path is "
        r"(\S+?)\.(?:\s|$)"
    )
    if jitted is not None:
        value = failure.search(r"with value (-?\d+)")
        number, dtype, path = value.group(1) if value else None, "int32", jitted.group(1)
    elif bounds is not None and bounds.group(2) != "C" and _by_jax(failure):
        number, dtype, path = bounds.group(1), bounds.group(2), None
    else:
        return None
    if number is None and failure.user is not None:
        number = _large_literal(failure.user.segment or failure.user.statement or "")
    shown = f"The integer {number}" if number else f"An integer (argument {path})"
    unsigned = dtype.startswith("u")
    negative = number is not None and number.startswith("-")
    wide = dtype in ("int32", "uint32") and not (unsigned and negative)
    fixes = [_x64_fix(failure)] if wide and (number is None or abs(int(number)) < 2**63) else []
    if wide:
        literal = _source_of_number(failure, number)
        code = failure.rewrite(literal, f"float({literal})") if literal else None
        fixes.append(Fix("Or calculate with a floating-point number (7 digits)", code or f"x = float({number or 'n'})"))
    elif unsigned and negative:
        fixes.append(
            Fix(
                "Use a signed type",
                failure.rewrite(dtype, dtype[1:]) or f"x = jax.numpy.array({number}, '{dtype[1:]}')",
            )
        )
        fixes.append(
            Fix(
                "Or wrap around as C does, if that is meant",
                f"x = jax.numpy.array({number}).astype('{dtype}')",
            )
        )
    else:
        fixes.append(Fix("Use a larger type", failure.rewrite(dtype, "int32") or "x = jax.numpy.array(n, 'int32')"))
    return Finding(
        what=f"{shown} does not fit into {dtype}, which holds {_range(dtype)}.",
        why=_X64_WHY
        if wide
        else "An unsigned type has no negative numbers, and small types hold few numbers; JAX does "
        "not wrap a number around by itself.",
        fixes=fixes,
        facts={"number": int(number) if number else None, "dtype": dtype, "argument": path},
    )


def _by_jax(failure: Failure) -> bool:
    """numpy raises the same error with the same words."""
    if failure.from_jax or failure.frames_removed or any(f.package == "jax" for f in failure.frames):
        return True
    frame = failure.user
    return frame is not None and any(re.match(r"(jnp|jax)\.", call.function) for call in frame.calls)


def _large_literal(source: str) -> str | None:
    match = re.search(r"(?<![\w.])(\d+)\s*\*\*\s*(\d+)(?![\w.])", source)
    if match and int(match.group(2)) < 200:
        return str(int(match.group(1)) ** int(match.group(2)))
    numbers = [n for n in re.findall(r"(?<![\w.])-?\d+(?![\w.])", source) if abs(int(n)) >= 2**31]
    return numbers[0] if numbers else None


def _source_of_number(failure: Failure, number: str | None) -> str | None:
    """How the user wrote the number: "2 ** 40"."""
    frame = failure.user
    source = frame.statement or frame.source or "" if frame is not None else ""
    for match in re.finditer(r"(?<![\w.])\d+\s*\*\*\s*\d+|(?<![\w.])-?\d+(?![\w.])", source):
        if number is not None and _large_literal(match.group()) == number:
            return match.group()
    return None


def _range(dtype: str) -> str:
    bits = re.search(r"\d+", dtype)
    if bits is None or not dtype.startswith(("int", "uint")):
        return "a limited range"
    n = int(bits.group())
    return f"0 to {2**n - 1}" if dtype.startswith("u") else f"{-(2 ** (n - 1))} to {2 ** (n - 1) - 1}"


@rule(
    "JPX0903",
    "value-cast-on-write",
    types=("FutureWarning", "TypeError", "ValueError"),
    clues=("scatter inputs have incompatible types",),
)
def value_cast_on_write(failure: Failure) -> Finding | None:
    match = failure.search(
        r"scatter inputs have incompatible types: cannot safely cast value from dtype=(\w+) to dtype=(\w+)"
    )
    if match is None:
        return None
    value, array = match.groups()
    frame = failure.user
    source = frame.statement or frame.source or "" if frame is not None else ""
    target = re.search(r"([A-Za-z_][\w.]*)\.at\[", source)
    name = target.group(1) if target else "x"
    fixes = [
        Fix(
            f"Make {name} {value} first",
            (source.replace(f"{name}.at[", f"{name}.astype('{value}').at[", 1) if target else None)
            or f"x = x.astype('{value}').at[0].set(value)",
        )
    ]
    written = re.search(r"\.(set|add|multiply|mul|divide|power|min|max)\((.+)\)\s*$", source)
    cast = None
    if written:
        head = source[: written.start(2)]
        cast = f"{head}jax.numpy.asarray({written.group(2)}).astype({name}.dtype))"
    fixes.append(
        Fix(f"Or turn the value into {array} yourself (and lose what does not fit)", cast or f"value.astype('{array}')")
    )
    lost = (
        "imaginary part"
        if value.startswith("complex")
        else "fraction"
        if "float" in value and "int" in array
        else "size or precision"
    )
    return Finding(
        what=f"A value of type {value} is written into {f'`{name}`' if target else 'an array'} of type {array}, which "
        f"cannot hold its {lost}.",
        why="An array keeps its dtype, so the value is cast to it. JAX warns where that loses something, and will "
        "refuse it in future.",
        fixes=fixes,
        facts={"value": value, "array": array, "name": name},
    )


def _cast(failure: Failure, target: str) -> str:
    left, sign, right = operands(failure) or ("x", "+", "y")
    return f"{enclosed(left)}.astype({target!r}) {sign} {enclosed(right)}.astype({target!r})"


@rule("JPX0904", "no-promotion", types=("TypePromotionError", "ValueError"), clues=("implicit dtype promotion path",))
def no_promotion(failure: Failure) -> Finding | None:
    match = failure.search(r"Input dtypes \(([^)]*)\) have no available implicit dtype\s+promotion path", re.S)
    if match is None:
        return None
    dtypes = re.findall(r"'([^']+)'|dtype\('([^']+)'\)", match.group(1))
    names = [a or b for a, b in dtypes] or [match.group(1)]
    strict = failure.search(r"jax_numpy_dtype_promotion\s*=\s*'?strict") is not None
    plain = [name.rstrip("*") for name in names]
    target = max(plain, key=_rank)
    small = any(re.match(r"float[468]_|u?int[124]$", name) for name in plain)
    target = "float32" if small and not strict else target
    fixes = [Fix(f"Cast to one type, here {target}", _cast(failure, target))]
    if strict:
        fixes.append(
            Fix("Or allow JAX to choose the type", "jax.config.update('jax_numpy_dtype_promotion', 'standard')")
        )
    return Finding(
        what=f"{listed(names)} are used together, and JAX does not choose a common type for them.",
        why="jax_numpy_dtype_promotion is 'strict': then nothing is cast unless you say so."
        if strict
        else "Very small types (of 8 bits or fewer) lose so much that JAX leaves the choice to you.",
        fixes=fixes,
        facts={"dtypes": tuple(names), "strict": strict},
    )


def _rank(dtype: str) -> tuple[int, int]:
    kinds = ("bool", "uint", "int", "bfloat", "float", "complex")
    letters = re.sub(r"\d.*", "", dtype)
    bits = re.search(r"\d+", dtype)
    return (kinds.index(letters) if letters in kinds else -1, int(bits.group()) if bits else 0)


@rule(
    "JPX0905",
    "lax-needs-equal-dtypes",
    types=("TypeError",),
    clues=("requires arguments to have the same dtypes",),
)
def lax_needs_equal_dtypes(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(?:lax\.)?(\w+) requires arguments to have the same dtypes, got ([\w<>, ]+)\.(?: \(Tip: (jnp\.\w+))?"
    )
    if match is None:
        return None
    name, dtypes, tip = match.group(1), match.group(2).split(", "), match.group(3)
    call = failure.call(name)
    target = max(dtypes, key=_rank)
    fixes = []
    if tip and call is not None:
        function = f"jax.numpy.{tip.split('.')[1]}"
        new = call.source.replace(call.function, function, 1)
        fixes.append(Fix("Use the function of jax.numpy, which casts", rewritten(failure, call.source, new)))
    elif tip:
        fixes.append(Fix("Use the function of jax.numpy, which casts", f"{tip}(x, y)"))
    if call is not None and len(call.args) == len(dtypes):
        args = [
            a if d == target else f"jax.numpy.asarray({a}, {target!r})" for a, d in zip(call.args, dtypes, strict=True)
        ]
        rest = [f"{k}={v}" for k, v in call.keywords.items()]
        new = f"{call.function}({', '.join([*args, *rest])})"
        fixes.append(Fix(f"Cast to {target}", rewritten(failure, call.source, new)))
    elif call is not None and name in ("select", "dynamic_update_slice", "clamp"):
        # the first of select is the condition, the third of dynamic_update_slice the place
        casted = {"select": call.args[1:3], "dynamic_update_slice": call.args[:2]}.get(name, call.args)
        args = [f"jax.numpy.asarray({a}, {target!r})" if a in casted else a for a in call.args]
        new = f"{call.function}({', '.join([*args, *(f'{k}={v}' for k, v in call.keywords.items())])})"
        fixes.append(Fix(f"Cast to {target}", rewritten(failure, call.source, new)))
    else:
        fixes.append(Fix(f"Cast to {target}", f"jax.lax.{name}(x.astype({target!r}), y.astype({target!r}))"))
    return Finding(
        what=f"lax.{name} got {listed(dtypes)}; its arguments must have one dtype.",
        why="jax.lax is the layer below jax.numpy: its functions neither cast nor broadcast.",
        fixes=fixes,
        facts={"function": name, "dtypes": tuple(dtypes)},
    )


_KIND_OF = {"floating": "float", "complexfloating": "complex", "integer": "integer", "bool": "bool", "inexact": "float"}


@rule("JPX0906", "operation-does-not-take-dtype", types=("ValueError",), clues=("valued inputs supported for rfft",))
def rfft_of_complex(failure: Failure) -> Finding | None:
    if not failure.search(r"^only real valued inputs supported for rfft"):
        return None
    call = failure.call("rfft", "rfft2", "rfftn", "ihfft")
    x = call.args[0] if call is not None and call.args else "x"
    fixes = []
    if call is not None and call.name.startswith("rfft"):
        new = call.source.replace(call.function, call.function.replace("rfft", "fft"), 1)
        fixes.append(Fix("Use the transform of complex values", rewritten(failure, call.source, new)))
    fixes.append(Fix("Or transform the real part only", f"jnp.fft.rfft(jnp.real({x}))"))
    return Finding(
        what=f"rfft takes real values, and `{x}` is complex.",
        why="rfft leaves out the half of the result that follows from the other half if the input is real.",
        fixes=fixes,
        facts={"argument": x},
    )


@rule("JPX0906", "operation-does-not-take-dtype", types=("TypeError",), clues=("does not accept dtype",))
def operation_does_not_take_dtype(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(\w+) does not accept dtype (\w+)(?: at position (\d+))?\. Accepted dtypes(?: at position \d+)? are "
        r"subtypes of ([\w, ]+)\."
    )
    if match is None:
        return None
    name, dtype, _, accepted = match.groups()
    kinds = accepted.split(", ")
    frame = failure.user
    segment = frame.segment if frame is not None else None
    fixes = []
    call = failure.call(name)
    pair = operands(failure)
    x, y = (enclosed(pair[0]), enclosed(pair[2])) if pair is not None else ("x", "y")
    if dtype == "bool" and name == "sub":
        fixes.append(Fix("For bools, use exclusive or", f"{x} ^ {y}"))
        fixes.append(Fix("Or calculate with integers", f"{x}.astype(int) - {y}.astype(int)"))
    elif dtype == "bool" and name == "neg":
        fixes.append(Fix("For bools, use not", "~x"))
        fixes.append(Fix("Or calculate with integers", "-x.astype(int)"))
    elif name in ("and", "or", "xor", "not") and dtype.startswith(("float", "bfloat", "complex")):
        fixes.append(
            Fix(
                "For conditions, combine comparisons in parentheses", f"({x} > 0) & ({y} > 0)  # & binds tighter than >"
            )
        )
        fixes.append(
            Fix("Or ask whether each is true", f"jax.numpy.logical_{name}({x}{'' if name == 'not' else f', {y}'})")
        )
    elif "floating" in kinds and not dtype.startswith(("float", "bfloat", "complex")):
        if call is not None and call.args and call.function.split(".")[0] in ("lax", "jax"):
            new = call.source.replace(call.args[0], f"jax.numpy.asarray({call.args[0]}, float)", 1)
            fixes.append(Fix("Pass floating-point numbers", rewritten(failure, call.source, new)))
        else:
            fixes.append(Fix("Pass floating-point numbers", "x.astype(float)"))
    elif "integer" in kinds and "floating" not in kinds:
        fixes.append(Fix("Pass integers", "x.astype(int)"))
    else:
        target = "bool" if kinds == ["bool"] else "float" if "floating" in kinds else "int"
        fixes.append(Fix(f"Cast to a type that it takes ({listed(kinds, 'or')})", f"x.astype({target})"))
    return Finding(
        what=f"{f'`{segment}` needs' if segment and len(segment) < 60 else 'This needs'} the operation {name} of "
        f"{dtype} values, but it takes only {listed([_KIND_OF.get(kind, kind) for kind in kinds], 'or')} values.",
        why="Each basic operation is defined for some kinds of numbers, and JAX does not cast where that would change "
        "what is computed.",
        fixes=fixes,
        facts={"operation": name, "dtype": dtype, "accepted": tuple(kinds)},
    )


@rule(
    "JPX0907",
    "imaginary-part-dropped",
    types=("ComplexWarning", "DeprecationWarning", "ValueError"),
    clues=("Casting complex values to real discards the imaginary part", "Casting from complex to real dtypes"),
)
def imaginary_part_dropped(failure: Failure) -> Finding | None:
    # numpy warns in the first words, too
    frame = failure.user
    by_jax = (
        failure.search(r"Casting from complex to real dtypes")
        or any(f.package == "jax" for f in failure.frames)
        or (frame is not None and re.search(r"\b(jax|jnp)\b|\.at\[", frame.source or "") is not None)
    )
    if not by_jax:
        return None
    calls = frame.calls if frame is not None else ()
    value = next((c.function.removesuffix(".astype") for c in calls if c.function.endswith(".astype")), "x")
    return Finding(
        what="Complex numbers are cast to real ones, and their imaginary parts are dropped.",
        why="A real dtype was asked for, or the values are written into a real array.",
        fixes=[
            Fix("Say what you mean: the real part", f"x = {value}.real"),
            Fix("Or keep complex numbers", f"x = {value}.astype('complex64')"),
        ],
    )


@rule(
    "JPX0908",
    "array-as-dtype",
    types=("ValueError", "DeprecationWarning"),
    clues=("Passing an array as a dtype argument",),
)
def array_as_dtype(failure: Failure) -> Finding | None:
    if not failure.search(r"^Passing an array as a dtype argument is (?:no longer supported|deprecated)"):
        return None
    call: Call | None = failure.outer_call
    given = None
    if call is not None:
        given = call.keywords.get("dtype") or next(
            (a for a in call.args if (v := failure.variable(a)) is not None and v.array), None
        )
    code = None
    if call is not None and given:
        head, _, tail = call.source.rpartition(given)
        code = failure.rewrite(call.source, f"{head}{given}.dtype{tail}")
    return Finding(
        what=f"An array{f' (`{given}`)' if given else ''} was given where a dtype is asked for.",
        why="A dtype is a type such as 'float32'; an array has one, as x.dtype.",
        fixes=[Fix("Give the array's dtype", code or "jax.numpy.zeros(3, dtype=x.dtype)")],
        facts={"given": given},
    )


@rule("JPX0906", "operation-does-not-take-dtype", types=("TypeError",), clues=("cannot be raised to negative powers",))
def integer_to_a_negative_power(failure: Failure) -> Finding | None:
    match = failure.search(r"^Integers cannot be raised to negative powers, got integer_pow\((\w+)\[[^\]]*\], (-\d+)\)")
    if match is None:
        return None
    pair = operands(failure, "**")
    x = enclosed(pair[0]) if pair is not None else "x"
    new = f"{x}.astype(float) ** {match.group(2)}"
    code = failure.rewrite(f"{pair[0]} ** {pair[2]}", new) if pair is not None else None
    return Finding(
        what=f"{x} holds integers ({match.group(1)}), and is to be raised to the power {match.group(2)}.",
        why="The result would be a fraction, and JAX does not change the type here: make floats of the integers.",
        fixes=[Fix("Calculate with floats", code or new)],
        facts={"dtype": match.group(1), "power": int(match.group(2))},
    )
