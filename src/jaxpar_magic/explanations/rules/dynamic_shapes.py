"""Sizes that depend on values: JAX must know every shape when it traces a function."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, listed
from ._lines import enclosed, nodes, rewritten, shape_of, static_fix
from .tracers import tracing

_WHY = (
    "JAX compiles a function for fixed shapes, and while it traces the function values are not known yet. So no "
    "shape may depend on a value, only on other shapes and on compile-time constants."
)
_TRACER = r"(?:\w*Tracer\b|Traced<)"

# Functions of jax that make an array whose size is an argument, and the argument (position, keyword).
_SIZES = {
    "arange": (0, "stop"),
    "linspace": (2, "num"),
    "logspace": (2, "num"),
    "geomspace": (2, "num"),
    "zeros": (0, "shape"),
    "ones": (0, "shape"),
    "empty": (0, "shape"),
    "full": (0, "shape"),
    "eye": (0, "N"),
    "identity": (0, "n"),
    "tri": (0, "N"),
    "reshape": (1, "shape"),
    "broadcast_to": (1, "shape"),
    "tile": (1, "reps"),
    "repeat": (1, "repeats"),
    "resize": (1, "new_shape"),
    "pad": (1, "pad_width"),
    "split": (1, "indices_or_sections"),
    "array_split": (1, "indices_or_sections"),
    "one_hot": (1, "num_classes"),
    "permutation": (1, "x"),
    "choice": (1, "a"),
    "normal": (1, "shape"),
    "uniform": (1, "shape"),
    "randint": (1, "shape"),
    "bernoulli": (2, "shape"),
    "dynamic_slice": (2, "slice_sizes"),
    "dynamic_slice_in_dim": (2, "slice_size"),
    "iota": (1, "size"),
    "scan": (3, "length"),
    "segment_sum": (2, "num_segments"),
    "segment_max": (2, "num_segments"),
    "segment_min": (2, "num_segments"),
    "histogram": (1, "bins"),
    "top_k": (1, "k"),
    "fft": (1, "n"),
    "ifft": (1, "n"),
    "rfft": (1, "n"),
    "diag": (1, "k"),
}


def _sized_call(failure: Failure) -> tuple[Call, str] | None:
    """The call whose size is not known, and the source of that size."""
    for call in failure.user.calls if failure.user is not None else ():
        if call.name not in _SIZES:
            continue
        position, keyword = _SIZES[call.name]
        holder = call.function.rpartition(".")[0]
        if call.name == "reshape" and holder not in ("jnp", "jax.numpy", "np", "lax", "jax.lax"):
            return call, ", ".join(call.args) or call.keywords.get(keyword, "")
        if call.name == "split" and "random" in holder:
            position, keyword = 1, "num"
        if call.name == "arange" and len(call.args) > 1:
            position = 1
        size = call.keywords.get(keyword) or (call.args[position] if position < len(call.args) else None)
        if size is not None:
            return call, size
    return None


@rule(
    "JPX0871",
    "size-from-a-traced-value",
    types=("TypeError",),
    clues=(
        "concrete value",
        "was not hashable",
        "expected a sequence of integers",
        "concrete `int`",
        "__index__",
        "__array__",
    ),
    priority=5,
)
def size_from_a_traced_value(failure: Failure) -> Finding | None:
    shapes = failure.search(rf"Shapes must be 1D sequences of concrete values of integer type, got .*{_TRACER}")
    context = failure.search(
        r"(?:It arose in (?:the jnp|jax\.numpy)\.(\w+) argument|'\w+' argument of jnp\.(\w+)|argument \w+ of "
        r"jax\.random\.(\w+)\(\)"
        r"|occurred in jax\.random\.(\w+)\(\)|in jax\.numpy\.(\w+) argument \d|arose in jax\.nn\.(\w+) argument"
        r"|pad_width argument of jnp\.(\w+)|The `length` argument to `(\w+)` expects a concrete `int`"
        r"|When jit-compiling jnp\.(repeat)|bins argument of (histogram)_bin_edges|argument of '\w+' jnp\.(\w+)\(\))"
    )
    hashed = failure.search(
        r"In a call to primitive (\w+), the value of parameter "
        r"(?:reps|shape|sizes|new_sizes|slice_sizes|\w*size\w*) was "
        rf"not hashable: .*{_TRACER}"
    )
    numpys = failure.search(rf"expected a sequence of integers or a single integer, got '{_TRACER}")
    found = _sized_call(failure)
    integer = failure.is_a("TracerIntegerConversionError") and found is not None
    # jnp.tile up to JAX 0.6 asks numpy for the numbers of its second argument
    tiled = failure.is_a("TracerArrayConversionError") and found is not None and found[0].function == "jnp.tile"
    if not (shapes or context or hashed or numpys or integer or tiled):
        return None
    if context is not None and not failure.is_a("ConcretizationTypeError") and shapes is None:
        return None
    function, transform, argument = tracing(failure)
    name = found[0].name if found is not None else None
    if name is None and context is not None:
        name = next((g for g in context.groups() if g), None)
    size = f" (`{found[1]}`)" if found is not None and found[1] else ""
    called = f"`{found[0].source}`" if found is not None and len(found[0].source) < 80 else name or "this operation"
    inside = f" inside {function}" if function else ""
    depends = f": it depends on the value of the argument {argument}" if argument else ""
    fixes = []
    static = static_fix(failure)
    variable = failure.variable(found[1]) if found is not None else None
    if static is None and variable is not None and variable.tracer and failure.user is not None:
        jit = failure.call("jit")
        if jit is not None and jit.args and re.match(rf"lambda [\w, ]*\b{variable.name}\b[\w, ]*:", jit.args[0]):
            static = static_fix(failure, variable.name, failure.user.function)
    if static is not None:
        fixes.append(static)
    fixes += _other_ways(failure, name, found, argument)
    if static is None and not failure.frames:
        fixes.insert(0, Fix("Make the size a compile-time constant", "f = jax.jit(function, static_argnames='n')"))
    if not fixes:
        fixes.append(Fix("Take the size from a shape, which is known", "n = x.shape[0]"))
    fixes[0] = Fix(fixes[0].title.removeprefix("Or ").capitalize(), fixes[0].code) if static is None else fixes[0]
    return Finding(
        what=f"The size{size} that {called} needs{inside} is not known while JAX traces the function{depends}.",
        why=_WHY,
        fixes=fixes[:3],
        facts={"function": function, "operation": name, "argument": argument, "transformation": transform},
    )


def _other_ways(failure: Failure, name: str | None, found: tuple[Call, str] | None, argument: str | None) -> list[Fix]:
    n = found[1] if found is not None and re.fullmatch(r"\w+", found[1]) else argument or "n"
    n = n if re.fullmatch(r"\w+", n) else "n"
    if name in ("arange", "linspace", "zeros", "ones", "full", "empty", "uniform", "normal"):
        title = "Or always make the longest array that can occur, and mark which items count"
        return [Fix(title, f"index = jnp.arange(100)  # 100: more than {n} can ever be\nvalid = index < {n}")]
    if name in ("scan",):
        return [
            Fix(
                "Or loop with fori_loop, which takes a traced count",
                f"jax.lax.fori_loop(0, {n}, lambda i, carry: carry, init)",
            )
        ]
    if name in ("dynamic_slice", "dynamic_slice_in_dim"):
        return [Fix("Or take a slice of fixed length, and mark which items count", f"valid = jnp.arange(100) < {n}")]
    if name in ("choice", "permutation"):
        return [Fix("Or draw one number below a traced bound", f"jax.random.randint(key, (), 0, {n})")]
    if name == "repeat" and found is not None and found[0].args:
        call = found[0]
        arguments = ", ".join([*call.args, *(f"{k}={v}" for k, v in call.keywords.items())])
        return [
            Fix(
                "Or say how long the result is in all",
                f"{call.function}({arguments}, total_repeat_length=100)  # 100: the length of the result",
            )
        ]
    if name == "one_hot" and found is not None and found[0].args:
        return [Fix("Or give a fixed number of classes", f"{found[0].function}({found[0].args[0]}, 10)  # 10 classes")]
    return []


@rule(
    "JPX0872",
    "boolean-mask-under-jit",
    types=("NonConcreteBooleanIndexError",),
    clues=("boolean indices must be concrete",),
)
def boolean_mask_under_jit(failure: Failure) -> Finding | None:
    match = failure.search(
        r"boolean indices must be concrete; got (?:ShapedArray\()?(?:Traced<(?:ShapedArray\()?)?(bool\[[\d,]*\])"
    )
    kind = array_type(match.group(1)) if match is not None else None
    shape = kind[1] if kind is not None else None
    place = _masked(failure)
    x, mask, rest = place if place is not None else ("x", "mask", None)
    fixes = _mask_fixes(failure, x, mask, rest, len(shape) if shape is not None else 1)
    if x != "x" or mask != "mask":
        what = (
            f"`{x}[{mask}]` has as many items as the mask has True values, and that is not known while JAX traces "
            "the function."
        )
    else:
        what = (
            "x[mask] has as many items as the mask has True values, and that is not known while JAX traces the "
            "function."
        )
    if shape is not None:
        what += f" The mask has shape {shape}."
    return Finding(
        what=what,
        why=_WHY + " Keep all items instead, and let those outside the mask not count.",
        fixes=fixes,
        facts={"array": x, "mask": mask, "shape": shape},
    )


def _masked(failure: Failure) -> tuple[str, str, tuple[str, list[str]] | None] | None:
    """(array, mask, (method, arguments) applied to x[mask] or to x.at[mask]) at the user's line."""
    user = failure.user
    best: ast.Subscript | None = None
    for node in nodes(failure):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Constant):
            best = node
            break
    if best is None or user is None:
        return None
    index = best.slice
    if isinstance(index, ast.Tuple):
        index = next((e for e in index.elts if not isinstance(e, ast.Slice | ast.Constant)), index)
    x, mask = best.value, ast.unparse(index)
    at = isinstance(x, ast.Attribute) and x.attr == "at"
    array = ast.unparse(x.value) if at and isinstance(x, ast.Attribute) else ast.unparse(x)
    from ..context import parse_fragment

    tree, _ = parse_fragment(user.statement or user.source or "")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value) == ast.unparse(best):
                method = f"at.{node.func.attr}" if at else node.func.attr
                arguments = [ast.unparse(a) for a in node.args] + [ast.unparse(k) for k in node.keywords]
                return array, mask, (method, arguments)
            if any(ast.unparse(a) == ast.unparse(best) for a in node.args):
                return array, mask, (node.func.attr, [ast.unparse(a) for a in node.args[1:]])
    return array, mask, None


def _mask_fixes(failure: Failure, x: str, mask: str, used: tuple[str, list[str]] | None, rank: int) -> list[Fix]:
    shape = shape_of(failure, x)
    extra = max(len(shape) - rank, 0) if shape is not None else 0
    wide = f"{enclosed(mask)}[{', '.join(['...'] + ['None'] * extra)}]" if extra else mask
    method, arguments = used if used is not None else (None, [])
    fixes = []
    if method in ("sum", "mean", "max", "min", "prod", "std", "var", "any", "all"):
        # an axis of x[mask] is one of x only while the mask covers a single axis
        given = [re.sub(r"^axis=", "", a) for a in arguments if re.fullmatch(r"(axis=)?-?\d+", a)]
        axis = f", axis={given[0]}" if given and rank == 1 else ""
        if extra and not axis:
            wide = f"jnp.broadcast_to({wide}, {enclosed(x)}.shape)"
        start = {"max": ", initial=-jnp.inf", "min": ", initial=jnp.inf"}.get(method, "")
        new = f"jnp.{method}({x}{axis}, where={wide}{start})"
        fixes.append(Fix(f"Let {method} count only the items of the mask", new))
    elif method == "at.set" and arguments:
        fixes.append(Fix("Choose between the new and the old value", f"{x} = jnp.where({wide}, {arguments[0]}, {x})"))
    elif method in ("at.add", "at.multiply", "at.divide", "at.subtract") and arguments:
        sign = {"at.add": "+", "at.multiply": "*", "at.divide": "/", "at.subtract": "-"}[method]
        new = f"{x} = jnp.where({wide}, {x} {sign} {enclosed(arguments[0])}, {x})"
        fixes.append(Fix("Choose between the new and the old value", new))
    if not (method or "").startswith("at."):
        fixes.append(
            Fix("Keep the shape: put 0 (or another value) where the mask is False", f"jnp.where({wide}, {x}, 0)")
        )
        fixes.append(
            Fix(
                "Or take a fixed number of items, filled up at the end",
                f"{x}[jnp.nonzero({mask}, size={enclosed(mask)}.size, fill_value=0)]"
                if rank == 1
                else f"{x}[jnp.nonzero({mask}, size=10, fill_value=0)]  # 10 items",
            )
        )
    return fixes


# Functions whose result has a length that depends on values: the argument that fixes it, and a length that
# is always enough ({x}: the first argument).
_FIXED = {
    "nonzero": ("size", "size={x}.size, fill_value=-1"),
    "where": ("size", "size={x}.size, fill_value=-1"),
    "argwhere": ("size", "size={x}.size, fill_value=-1"),
    "flatnonzero": ("size", "size={x}.size, fill_value=-1"),
    "unique": ("size", "size={x}.size"),
    "unique_values": ("size", "size={x}.size"),
    "setdiff1d": ("size", "size={x}.size"),
    "union1d": ("size", "size={x}.size + {y}.size"),
    "intersect1d": ("size", "size={x}.size"),
    "setxor1d": ("size", "size={x}.size + {y}.size"),
    "extract": ("size", "size={y}.size"),
    "compress": ("size", "size={y}.size"),
    "bincount": ("length", "length=100"),
    "repeat": ("total_repeat_length", "total_repeat_length=100"),
    "segment_sum": ("num_segments", "num_segments=100"),
    "segment_max": ("num_segments", "num_segments=100"),
    "segment_min": ("num_segments", "num_segments=100"),
    "segment_prod": ("num_segments", "num_segments=100"),
}


@rule(
    "JPX0873",
    "result-length-depends-on-values",
    types=("ConcretizationTypeError",),
    clues=("jnp.", "setdiff1d", "union1d", "intersect1d", "trim_zeros", "segment_", "boolean conversion"),
    priority=10,
)
def result_length_depends_on_values(failure: Failure) -> Finding | None:
    match = failure.search(
        r"The size argument of jnp\.(\w+) must be|first argument of jnp\.(\w+)\(\)|arose in (\w+)\(\)"
        r"|argument '\w+' of jnp\.(bincount)|When jit-compiling jnp\.(repeat)|(segment_\w+)\(\) `num_segments` argument"
        r"|'obj' array argument of jnp\.(delete)|argument of (trim_zeros)\(\)|error occurred in the jnp\.(roots)\(\)"
    )
    call = next((c for c in (failure.user.calls if failure.user is not None else ()) if c.name in _FIXED), None)
    if failure.is_a("TracerBoolConversionError"):
        # extract and compress up to JAX 0.11 ask whether any item is left over
        if call is None or call.name not in ("extract", "compress"):
            return None
    elif match is None:
        return None
    name = next((g for g in match.groups() if g), "") if match is not None else ""
    if call is not None and name in ("nonzero", "compress", "unique", ""):
        name = call.name
    function, _, argument = tracing(failure)
    if name == "repeat" and call is not None and len(call.args) > 1 and argument == call.args[1]:
        variable = failure.variable(argument)
        if variable is not None and variable.shape == ():
            return None
    given = call.args if call is not None else ()
    x = enclosed(given[0]) if given else "x"
    y = enclosed(given[1]) if len(given) > 1 else "y"
    fixes = []
    line = failure.user.statement or failure.user.source or "" if failure.user is not None else ""
    counted_ = re.search(r"\blen\((jnp\.(?:nonzero|flatnonzero|where|argwhere)\((\w+)\)(?:\[0\])?)\)", line)
    if counted_ is not None:  # only the number of items is wanted
        new = f"jnp.count_nonzero({counted_.group(2)})"
        fixes.append(Fix("Count them, which needs no list of them", rewritten(failure, counted_.group(), new)))
    if name == "roots":
        roots = failure.call("roots")
        x = roots.args[0] if roots is not None and roots.args else "coefficients"
        new = f"{roots.function if roots is not None else 'jnp.roots'}({x}, strip_zeros=False)"
        fixes.append(
            Fix(
                "Keep zeros at the front (the first coefficient must not be 0)",
                (failure.rewrite(roots.source, new) if roots is not None else None) or new,
            )
        )
        argument_name = None
    elif name in ("delete", "trim_zeros"):
        if name == "delete" and failure.call("delete") is not None:
            call = failure.call("delete")
            arguments = list(call.args) if call is not None else []
            new = f"{call.function}({', '.join(arguments)}, assume_unique_indices=True)" if call is not None else ""
            if call is not None:
                fixes.append(
                    Fix("If it is an array of different indices, say so", rewritten(failure, call.source, new))
                )
            x = arguments[0] if arguments else "x"
            index = arguments[1] if len(arguments) > 1 else "index"
            fixes.insert(
                0,
                Fix(
                    "Move the items after it one place down",
                    f"j = jnp.arange({x}.shape[0] - 1)\n{x} = {x}[j + (j >= {index})]",
                ),
            )
        else:
            fixes.append(Fix("Trim outside of jit", "x = jnp.trim_zeros(f(x))"))
        argument_name = None
    else:
        argument_name, code = _FIXED.get(name, ("size", "size={x}.size"))
        code = code.format(x=x, y=y)
        bare = failure.call("jit", "vmap") if call is None else None
        if bare is not None and bare.args and re.fullmatch(rf"(?:jnp|jax\.numpy)\.{name}", bare.args[0]):
            inputs = failure.applied(bare.name)
            of = (*(inputs[0].args if inputs is not None else ()), "x", "y")
            _, code = _FIXED.get(name, ("size", "size={x}.size"))
            part = f"functools.partial({bare.args[0]}, {code.format(x=enclosed(of[0]), y=enclosed(of[1]))})"
            new = bare.source.replace(bare.args[0], part, 1)
            fixes.append(
                Fix(f"Fix the length of the result with {argument_name}=", rewritten(failure, bare.source, new))
            )
        elif call is not None:
            by_position = 3 if name.startswith("segment") else len(call.args)
            kept = (
                call.args[: by_position - 1]
                if len(call.args) >= by_position and name.startswith("segment")
                else call.args
            )
            static = static_fix(failure) if len(kept) < len(call.args) else None
            fixes += [static] if static is not None else []
            arguments = [*kept, *(f"{k}={v}" for k, v in call.keywords.items() if k != argument_name), code]
            new = f"{call.function}({', '.join(arguments)})"
            title = f"Fix the length of the result with {argument_name}="
            if "=100" in code:
                title += " (100: as long as it can get)"
            fixes.append(Fix(title, rewritten(failure, call.source, new)))
        else:
            function_name = name if name.startswith("segment") else f"jnp.{name}"
            fixes.append(Fix(f"Fix the length of the result with {argument_name}=", f"{function_name}(x, {code})"))
        if name in ("where", "nonzero", "extract", "compress", "argwhere", "flatnonzero"):
            title = "Or keep the shape: choose a value for every item with the three-argument where"
            fixes.append(Fix(title, f"jnp.where({given[0] if given else 'mask'}, x, 0)"))
    inside = f" inside {function}" if function else ""
    return Finding(
        what=f"How long the result of {name} is depends on the values{inside}, which JAX does not know while it "
        "traces.",
        why=_WHY + (f" With {argument_name}= the result always has that length." if argument_name else ""),
        fixes=fixes[:3],
        facts={"operation": name, "function": function, "argument": argument_name},
    )


@rule(
    "JPX0874",
    "slice-with-traced-bounds",
    types=("IndexError", "TypeError"),
    clues=("static start/stop/step", "Slice entries must be static"),
)
def slice_with_traced_bounds(failure: Failure) -> Finding | None:
    if not failure.search(
        r"must have static start/stop/step to be used with Num[pP]y indexing syntax\.\s+(?:Found|Got) "
        rf"slice\(.*{_TRACER}"
        rf"|Slice entries must be static integers\. Got slice\(.*{_TRACER}",
        re.S,
    ):
        return None
    found = _slices(failure)
    function, _, argument = tracing(failure)
    fixes: list[Fix] = []
    what = "A slice x[start:stop] has traced bounds, so its length is not known while JAX traces the function."
    names: list[str] = []
    if found is not None:
        subscript, part, axis = found
        names = _traced_names(failure, part)
        which = f": {listed(names)} {'has' if len(names) == 1 else 'have'} no value yet" if names else ""
        what = f"The bounds of `{ast.unparse(subscript)}` are not known while JAX traces the function{which}."
        fixes = _slice_fixes(failure, subscript, part, axis)
    else:
        fixes = [
            Fix(
                "Take a slice of fixed length at a traced start", "jax.lax.dynamic_slice_in_dim(x, start, 3)  # 3 items"
            )
        ]
    static = static_fix(failure)
    if static is not None:
        fixes.append(static)
    return Finding(
        what=what,
        why=_WHY + " A slice may start anywhere, but its length must be fixed.",
        fixes=fixes[:3],
        facts={"function": function, "argument": argument, "names": tuple(names)},
    )


def _traced_names(failure: Failure, part: ast.Slice) -> list[str]:
    names = []
    for node in ast.walk(part):
        variable = failure.variable(node.id) if isinstance(node, ast.Name) else None
        if variable is not None and variable.tracer and variable.name not in names:
            names.append(variable.name)
    return names


def _slices(failure: Failure) -> tuple[ast.Subscript, ast.Slice, int] | None:
    """The subscript with the traced slice, that slice, and its axis."""
    found = []
    for node in nodes(failure):
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for axis, part in enumerate(parts):
                if isinstance(part, ast.Slice) and not all(
                    bound is None or isinstance(bound, ast.Constant) for bound in (part.lower, part.upper, part.step)
                ):
                    found.append((node, part, axis))
    traced = [f for f in found if _traced_names(failure, f[1])]
    return next(iter(traced or found), None)


def _slice_fixes(failure: Failure, subscript: ast.Subscript, part: ast.Slice, axis: int) -> list[Fix]:
    at = isinstance(subscript.value, ast.Attribute) and subscript.value.attr == "at"
    holder = subscript.value.value if at and isinstance(subscript.value, ast.Attribute) else subscript.value
    x = ast.unparse(holder)
    whole = ast.unparse(subscript)
    alone = not isinstance(subscript.slice, ast.Tuple)
    length = _length(part)
    low = ast.unparse(part.lower) if part.lower is not None else "0"
    high = ast.unparse(part.upper) if part.upper is not None else None
    fixes = []
    if at:
        index = f"jnp.arange({enclosed(x)}.shape[{axis}])"
        tests = [f"({index} >= {low})"] if part.lower is not None else []
        tests += [f"({index} < {enclosed(high)})"] if high is not None else []
        return [
            Fix(
                "Choose, for every place, between the new and the old value",
                f"mask = {' & '.join(tests) or index + ' >= 0'}\n{x} = jnp.where(mask, value, {x})",
            )
        ]
    block = _block(failure, subscript) if length is not None else None
    if block is not None:
        starts, lengths = block
        new = f"jax.lax.dynamic_slice({x}, ({', '.join(starts)}), ({', '.join(lengths)}))"
        title = (
            f"Take {' by '.join(lengths)} items from traced starts (near the end they start earlier, so that all fit)"
        )
        return [Fix(title, rewritten(failure, whole, new))]
    if length is not None and part.step is None:
        along = f", axis={axis}" if axis else ""
        new = f"jax.lax.dynamic_slice_in_dim({x}, {low}, {length}{along})"
        others = [ast.unparse(e) for e in subscript.slice.elts] if isinstance(subscript.slice, ast.Tuple) else []
        if others:
            others[axis] = ":"
            if set(others) != {":"}:
                new += f"[{', '.join(others)}]"
        title = f"Take {length} items from a traced start (near the end it starts earlier, so that all fit)"
        fixes.append(Fix(title, rewritten(failure, whole, new)))
        return fixes
    index = f"jnp.arange({enclosed(x)}.shape[{axis}])"
    tests = [f"({index} >= {enclosed(low)})"] if part.lower is not None else []
    tests += [f"({index} < {enclosed(high)})"] if high is not None else []
    if alone and tests and part.step is None:
        mask = " & ".join(tests)
        reduction = _reduction(failure, whole)
        if reduction is not None:
            source, method = reduction
            start = {"max": ", initial=-jnp.inf", "min": ", initial=jnp.inf"}.get(method, "")
            new = f"jnp.{method}({x}, where={mask}{start})"
            fixes.append(Fix(f"Let {method} count only those items", rewritten(failure, source, new)))
        else:
            fixes.append(Fix("Keep the shape: put 0 outside of the slice", f"jnp.where({mask}, {x}, 0)"))
    fixes.append(
        Fix(
            "Or take a slice of fixed length at a traced start",
            f"jax.lax.dynamic_slice_in_dim({x}, {low}, 3)  # 3 items",
        )
    )
    return fixes


def _block(failure: Failure, subscript: ast.Subscript) -> tuple[list[str], list[str]] | None:
    """(starts, lengths) for x[i:i+8, j:j+8] with several traced starts and plainly fixed lengths; else None."""
    parts = subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else []
    slices = [part for part in parts if isinstance(part, ast.Slice) and part.step is None]
    lengths = [_length(part) for part in slices]
    variable = failure.variable(ast.unparse(subscript.value))
    traced = sum(bool(_traced_names(failure, part)) for part in slices)
    whole = len(slices) == len(parts) == len(variable.shape if variable is not None and variable.shape else ())
    if traced < 2 or not whole or None in lengths:
        return None
    starts = [ast.unparse(part.lower) if part.lower is not None else "0" for part in slices]
    return starts, [length for length in lengths if length is not None]


def _reduction(failure: Failure, whole: str) -> tuple[str, str] | None:
    """`x[:i].sum()` or `jnp.sum(x[:i])` around the slice: (its source, "sum")."""
    for call in failure.user.calls if failure.user is not None else ():
        if call.name in ("sum", "mean", "max", "min", "prod", "any", "all", "std", "var"):
            holder = call.function.rpartition(".")[0]
            if (holder.replace(" ", "") == whole.replace(" ", "") and not call.args) or call.args == (whole,):
                return call.source, call.name
    user = failure.user
    text = user.statement or "" if user is not None else ""
    match = re.search(re.escape(whole) + r"\.(sum|mean|max|min|prod|any|all|std|var)\(\)", text)
    return (match.group(), match.group(1)) if match else None


def _length(part: ast.Slice) -> str | None:
    """`3` for i:i+3 and for i-1:i+2; `size` for k*size:(k+1)*size; None if it is not plainly fixed."""
    if part.upper is None or part.lower is None:
        return None
    low, high = part.lower, part.upper
    start = ast.unparse(low)
    if isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add):
        for one, other in ((high.left, high.right), (high.right, high.left)):
            if ast.unparse(one) == start and not _same_names(other, low):
                return ast.unparse(other)
    m, n = _offset(low), _offset(high)
    if m is not None and n is not None and m[0] == n[0] and n[1] > m[1]:
        return str(n[1] - m[1])
    if isinstance(low, ast.BinOp) and isinstance(low.op, ast.Mult) and isinstance(high, ast.BinOp):
        for k, size in ((low.left, low.right), (low.right, low.left)):
            following = {f"{ast.unparse(k)} + 1", f"1 + {ast.unparse(k)}"}
            if isinstance(high.op, ast.Mult):
                for a, b in ((high.left, high.right), (high.right, high.left)):
                    if ast.unparse(a) in following and ast.unparse(b) == ast.unparse(size):
                        return ast.unparse(size)
    return None


def _same_names(node: ast.expr, other: ast.expr) -> bool:
    names = {n.id for n in ast.walk(other) if isinstance(n, ast.Name)}
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def _offset(node: ast.expr) -> tuple[str, int] | None:
    """("i", -1) for i - 1, ("i", 0) for i."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        added = node.right.value if isinstance(node.right, ast.Constant) else None
        if isinstance(added, int):
            return ast.unparse(node.left), added if isinstance(node.op, ast.Add) else -added
    return (ast.unparse(node), 0) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else None


@rule(
    "JPX0875",
    "carry-grows-in-a-loop",
    types=("TypeError",),
    clues=("carry",),
    priority=10,
)
def carry_grows_in_a_loop(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(\w+) (?:body function|body_fun|loop body).*?input carry (?:component )?(\S+) has type "
        r"(\S+?\[[\d,]*\])\S* but the "
        r"corresponding output carry component has type (\S+?\[[\d,]*\])\S*, so the shapes do not match",
        re.S,
    )
    if match is None:
        return None
    before, after = array_type(match.group(3)), array_type(match.group(4))
    if before is None or after is None or len(before[1]) != len(after[1]) or not before[1]:
        return None
    grown = [axis for axis, (m, n) in enumerate(zip(before[1], after[1])) if m != n]
    if len(grown) != 1 or after[1][grown[0]] <= before[1][grown[0]]:
        return None
    (axis,) = grown
    m, n = before[1][axis], after[1][axis]
    call = failure.call("fori_loop", "scan", "while_loop")
    body = _body(failure, call)
    if m == 1 and not re.search(r"append|concatenate|stack", body):
        return None  # broadcast rather than grown
    count = init = None
    if call is not None and call.name == "fori_loop" and len(call.args) > 3:
        count, init = call.args[1], call.args[3]
    elif call is not None and len(call.args) > 1:
        init = call.args[1] if call.name == "scan" else call.args[2] if len(call.args) > 2 else None
    rest = "".join(f", {k}" for k in before[1][1:])
    size = f"({count or 'steps'}{rest},)" if not rest else f"({count or 'steps'}{rest})"
    start = f"jnp.zeros({size}, {before[0]!r})"
    fixes = [
        Fix(
            "Make the array full-sized before the loop, and write item i in the body",
            f"carry = {start}  # instead of {init or 'an empty array'}\nbody = lambda i, carry: carry.at[i].set(value)",
        ),
        Fix(
            "Or let scan collect one result per step",
            f"_, results = jax.lax.scan(lambda carry, i: (carry, value), None, jnp.arange({count or 'steps'}))",
        ),
    ]
    whole = _joined_at_once(call, body, init)
    if whole is not None:
        title = "Each new item depends on the step alone: make them all at once, then join"
        fixes.insert(0, Fix(title, failure.rewrite(call.source, whole) or whole if call is not None else whole))
    return Finding(
        what=f"The carry of the loop grows: {match.group(2)} comes in as {match.group(3)} and goes out as "
        f"{match.group(4)} "
        f"(axis {axis}: {m}, then {n}).",
        why="A loop of JAX is compiled once for all its steps, so what it carries has one shape from the first step to "
        "the last. append and concatenate make a larger array at each step.",
        fixes=fixes,
        facts={"before": match.group(3), "after": match.group(4), "axis": axis},
    )


def _body(failure: Failure, call: Call | None) -> str:
    """Source of the loop's body, where the call or the cell shows it."""
    position = {"scan": 0, "fori_loop": 2, "while_loop": 1}
    source = call.args[position[call.name]] if call is not None and len(call.args) > position[call.name] else ""
    return failure.sources.get(source, source)


def _joined_at_once(call: Call | None, body: str, init: str | None) -> str | None:
    """The result of a loop whose body only appends to what it carries, by one lax.map; None if it does more."""
    tree, _ = parse_fragment(body) if body else (None, "")
    function = (
        next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda) and n.args.args), None)
        if (tree is not None)
        else None
    )
    if call is None or function is None or init is None or call.name == "while_loop" or len(function.args.args) != 2:
        return None
    first, second = (a.arg for a in function.args.args)
    carry, item = (second, first) if call.name == "fori_loop" else (first, second)
    result = function.body
    if isinstance(result, list):
        only = result[0] if len(result) == 1 else None
        result = only.value if isinstance(only, ast.Return) and only.value is not None else ast.Constant(None)
    if call.name == "scan":
        result = result.elts[0] if isinstance(result, ast.Tuple) and len(result.elts) == 2 else ast.Constant(None)
    if (
        not isinstance(result, ast.Call)
        or not re.search(r"\bappend$", ast.unparse(result.func))
        or len(result.args) != 2
    ):
        return None
    new = result.args[1]
    if ast.unparse(result.args[0]) != carry or any(isinstance(n, ast.Name) and n.id == carry for n in ast.walk(new)):
        return None
    bounds = call.args[:2]
    items = (
        f"jnp.arange({', '.join(bounds)})" if call.name == "fori_loop" else call.args[2] if len(call.args) > 2 else None
    )
    return items and f"jnp.append({init}, jax.lax.map(lambda {item}: {ast.unparse(new)}, {items}))"


@rule(
    "JPX0876",
    "shape-of-other-than-whole-numbers",
    types=("TypeError",),
    clues=(
        "Shapes must be 1D sequences of concrete values",
        "must have every element be nonnegative",
        "expected a sequence of integers or a single integer, got 'Array(",
    ),
)
def shape_of_other_than_whole_numbers(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Shapes must be 1D sequences of concrete values of integer type, got (\([^\n]*\)|[-\w.]+?)\.?$", re.M
    )
    match = match or failure.search(r"expected a sequence of integers or a single integer, got '(Array\([^\n]*\))'")
    negative = failure.search(r"shape must have every element be nonnegative, got (\([\d, -]*\))")
    if match is not None and re.search(_TRACER, match.group(1)):
        return None
    if match is None and negative is None:
        return None
    shape = (match or negative).group(1)  # type: ignore[union-attr]
    found = _sized_call(failure)
    size = found[1] if found is not None else None
    fixes = []
    if found is not None and size and found[0].name == "reshape" and "None" in size:
        new = found[0].source.replace("None", "-1", 1)
        fixes.append(
            Fix("Write -1 for the size that follows from the others", rewritten(failure, found[0].source, new))
        )
    divided = bool(size and re.search(r"[A-Za-z_/]", size))  # a plain 1.5 is a mistake that int() would hide
    if found is not None and size and divided and match is not None and "." in match.group(1):
        call = found[0]
        bare = size[1:-1] if re.fullmatch(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", size) else size
        parts = bare.split(",") if "," in bare else [bare]
        whole = [
            f"int({p.strip()})" if p.strip() and not p.strip().lstrip("-").isdigit() else p.strip()
            for p in parts
            if p.strip()
        ]
        joined = ", ".join(whole)
        wanted = f"({joined}{',' if len(whole) == 1 else ''})"
        new = call.source.replace(size, joined if call.name == "reshape" and len(call.args) != 1 else wanted, 1)
        fixes.append(
            Fix(
                "Make whole numbers of the sizes (a // b divides to a whole number)",
                rewritten(failure, call.source, new),
            )
        )
    fixes.append(Fix("Give whole numbers", "jnp.zeros((2, 3))"))
    return Finding(
        what=f"A shape was given as {shape}; its sizes must be whole numbers, 0 or more.",
        why="The sizes of an array are Python ints. a / b gives a float even where it comes out even; a // b gives "
        "an int.",
        fixes=fixes,
        facts={"shape": shape},
    )
