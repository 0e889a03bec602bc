"""jax.export: what can be exported, for which arguments, and symbolic sizes."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import listed, sizes
from ._lines import enclosed, rewritten
from .backend import install_fix


@rule("JPX1906", "export-needs-a-compiled-function", types=("ValueError",), clues=("Function to be exported must be",))
def export_needs_a_compiled_function(failure: Failure) -> Finding | None:
    if not failure.search(r"^Function to be exported must be the result of `jit` but is: "):
        return None
    call = failure.call("export")
    function = call.args[0] if call is not None and call.args else "function"
    new = f"jax.export.export(jax.jit({function}))"
    if call is not None and call.args:
        changed = call.source.replace(function, f"jax.jit({function})", 1)
        new = rewritten(failure, call.source, changed)
    return Finding(
        what=f"export got `{function}`, which is a plain Python function: it exports what jax.jit gives.",
        why="What is exported is a compiled program; jax.jit says how it is compiled (static arguments, shardings).",
        fixes=[Fix("Compile it first", f"import jax.export\n{new}" if new.startswith("jax.export") else new)],
        facts={"function": function},
    )


@rule(
    "JPX1907",
    "exported-for-other-arguments",
    types=("ValueError",),
    clues=("and called with", "as when the function", "was exported for"),
)
def exported_for_other_arguments(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(Shape|Rank|Dtype) mismatch for (\S+?)(?: \(expected same constant\))?: expected (.+?) "
        r"and called with (.+?)$",
        re.M,
    )
    devices = failure.search(r"Function (\S+) was exported for (\d+) devices? and is called in a context with (\d+)")
    platforms = failure.search(r"Function '?(\S+?)'? was exported for platforms? '?\(?([^)]*?)\)?'? but it is used on "
                               r"'?\(?([^)']*'?[^)']*)\)?'?")  # fmt: skip
    structure = failure.search(r"must have the same pytree structure as when the function '?(.+?)'? was exported")
    call = failure.outer_call
    holder = call.function.rpartition(".")[0] if call is not None else ""
    holder = holder if holder.isidentifier() else "exported"
    argument = call.args[0] if call is not None and len(call.args) == 1 else None
    fixes = []
    if match is not None:
        kind, where, want, got = match.groups()
        what = f"The exported function was made for {want} at {where.split('.shape')[0]}, and got {got}."
        if kind == "Dtype" and argument and call is not None:
            cast = f"{enclosed(argument)}.astype('{want}')"
            fixes.append(
                Fix("Give it the dtype that it was made for", call.source.replace(f"({argument})", f"({cast})"))
            )
        elif kind == "Shape" and argument and call is not None and sizes(got) > sizes(want):
            cut = ", ".join(f":{n}" for n in sizes(want))
            code = call.source.replace(f"({argument})", f"({enclosed(argument)}[{cut}])")
            fixes.append(Fix("Give it as many items as it was made for", code))
        facts = {"kind": kind, "argument": where, "expected": want, "got": got}
    elif devices is not None:
        name, want, got = devices.groups()
        what = f"{name} was exported for {want} devices, and is called where there are {got}."
        facts = {"expected": int(want), "got": int(got)}
    elif platforms is not None:
        name, want, got = (g.strip("', ") for g in platforms.groups())
        what = f"{name} was exported for the platform {want}, and is called on {got}."
        fixes.append(
            Fix(
                "Export it for both",
                f"jax.export.export(jax.jit(function), platforms=[{want!r}, {got!r}])",
                fill_in=("function",),
            )
        )
        facts = {"expected": want, "got": got}
    elif structure is not None:
        what = "The exported function is called with arguments that are built in another way than those that it was "
        what += "exported for: another number of them, or other containers."
        facts = {"function": structure.group(1)}
    else:
        return None
    definition = failure.definitions.get(holder, "")
    made = failure.defining_calls(holder)
    if definition and made and call is not None and made[0].function.endswith(")"):
        again = definition.replace(made[0].source, f"{made[0].function}({', '.join(call.args)})", 1)
        fixes.append(Fix("Export it for these arguments", f"{again}\n{call.source}"))
    if match is not None and match.group(1) == "Shape":
        fixes.append(
            Fix(
                "Or export it for any number of items: a symbolic size",
                "from jax import export\n(n,) = export.symbolic_shape('n')\nexported = export.export(jax.jit(function))"
                "(jax.ShapeDtypeStruct((n,), 'float32'))",
                fill_in=("function",),
            )
        )
    return Finding(
        what=what,
        why="An exported function is one compiled program for the shapes, dtypes, devices and platforms that it was "
        "exported for. It does not compile anew, as jit does.",
        fixes=fixes or [Fix("See what it was exported for", f"print({holder}.in_avals, {holder}.platforms)")],
        facts=facts,
    )


@rule("JPX1908", "export-needs-flatbuffers", types=("ImportError",), clues=("flatbuffers",), anywhere=True)
def export_needs_flatbuffers(failure: Failure) -> Finding | None:
    if not failure.search(r"Please install 'flatbuffers' in order to use Exported serialization"):
        return None
    return Finding(
        what="Writing an exported function as bytes needs the package flatbuffers, which is not installed.",
        why="jax does not bring flatbuffers along: only export.serialize and export.deserialize need it.",
        fixes=[install_fix(failure, "flatbuffers", "Install it, then run the line again (no restart is needed)")],
        facts={"package": "flatbuffers"},
    )


@rule("JPX1909", "class-not-registered-for-export", types=("ValueError",), clues=("PyTreeDef containing an",))
def class_not_registered_for_export(failure: Failure) -> Finding | None:
    match = failure.search(r"Cannot (de)?serialize (?:a )?PyTreeDef containing an unregistered type `(?:<class ')?(.+?)"
                           r"(?:'>)?`")  # fmt: skip
    if match is None:
        return None
    reading, kind = bool(match.group(1)), match.group(2).rpartition(".")[2]
    doing = "read" if reading else "written"
    return Finding(
        what=f"The exported function takes or returns an object of the class {kind}, and export was not told how that "
        f"class is {doing} as bytes.",
        why="An exported function is read by other programs, so each class needs a name that they know too. tuple, "
        "list, dict and None need none.",
        fixes=[
            Fix(
                "Give it a name, after the class was registered as a pytree",
                "from jax import export\nexport.register_pytree_node_serialization(\n"
                f"    {kind}, serialized_name='{kind}',\n"
                "    serialize_auxdata=lambda aux: b'', deserialize_auxdata=lambda data: None)",
            ),
            Fix(
                "If it is a named tuple",
                f"from jax import export\nexport.register_namedtuple_serialization({kind}, serialized_name='{kind}')",
            ),
        ],
        facts={"class": kind, "reading": reading},
    )


# -- symbolic sizes --------------------------------------------------------------------------------


@rule("JPX0877", "comparison-of-symbolic-sizes", types=("InconclusiveDimensionOperation",))
def comparison_of_symbolic_sizes(failure: Failure) -> Finding | None:
    match = failure.search(r"Symbolic dimension comparison '(.*?)' (.{1,2}) '(.*?)' is inconclusive")
    if match is None:
        return None
    left, sign, right = match.groups()
    bound = f"{left} >= {int(right) + 1}" if sign == ">" and right.isdigit() else f"{left} >= {right}"
    return Finding(
        what=f"The exported function asks whether {left} {sign} {right}, and that is true for some sizes {left} and "
        "false for others.",
        why="jax.export with symbolic shapes makes one program for all sizes. Python's question needs one answer for "
        "all of them; a constraint can give it.",
        fixes=[
            Fix(
                "Promise what holds for all sizes that will be used",
                f"sizes = export.symbolic_shape({left!r}, constraints=[{bound!r}])",
            ),
            Fix(
                "Or export one program for each size",
                "exported = export.export(jax.jit(f))(jax.ShapeDtypeStruct((8,), 'float32'))",
            ),
        ],
        facts={"left": left, "sign": sign, "right": right},
    )


@rule(
    "JPX0878",
    "symbolic-sizes-do-not-fit",
    types=("TypeError", "ValueError"),
    clues=("ncompatible shapes for broadcasting", "mixing of symbolic scopes", "have the same shape, got"),
    priority=5,
)
def symbolic_sizes_do_not_fit(failure: Failure) -> Finding | None:
    scopes = failure.search(r"Invalid mixing of symbolic scopes")
    match = failure.search(
        r"(\w+) (?:got )?(?:incompatible shapes for broadcasting: |requires contracting dimensions to have the same "
        r"shape, got )[(\[]([^()\[\]\n]*)[)\]](?:,| and) [(\[]([^()\[\]\n]*)[)\]]"
    )
    if scopes is not None:
        return Finding(
            what="Symbolic sizes of two calls of symbolic_shape are used together.",
            why="Each call of symbolic_shape makes names of its own: n of one call is another n than that of the next, "
            "and JAX can know nothing about both together.",
            fixes=[
                Fix("Make all sizes by one call", "from jax import export\nm, n = export.symbolic_shape('m, n')"),
                Fix(
                    "Or let the calls share their names",
                    "from jax import export\nscope = export.SymbolicScope()\n"
                    "(m,) = export.symbolic_shape('m', scope=scope)\n(n,) = export.symbolic_shape('n', scope=scope)",
                ),
            ],
            facts={},
        )
    if match is None:
        return None
    shapes = [[size.strip() for size in text.split(",") if size.strip()] for text in match.groups()[1:]]
    names = [size for shape in shapes for size in shape if not re.fullmatch(r"-?\d+", size)]
    if not names or any("Tracer" in name or "Traced" in name for name in names):
        return None
    pair = next(
        ((a, b) for a, b in zip(reversed(shapes[0]), reversed(shapes[1])) if a != b and "1" not in (a, b)), None
    )
    if pair is None:
        return None
    symbol = next(size for size in pair if not re.fullmatch(r"-?\d+", size))
    printed = [f"({', '.join(shape)}{',' if len(shape) == 1 else ''})" for shape in shapes]
    other = pair[0] if pair[1] == symbol else pair[1]
    return Finding(
        what=f"Arrays of shapes {listed(printed)} meet in {match.group(1)}, and the sizes {pair[0]} and {pair[1]} need "
        "not be equal.",
        why="jax.export with symbolic shapes makes one program for all sizes, so arrays that are combined must have "
        "the same size by name.",
        fixes=[
            Fix(
                "Give both arguments the same symbolic size",
                f"from jax import export\n({symbol},) = export.symbolic_shape('{symbol}')\n"
                f"x = jax.ShapeDtypeStruct(({symbol},), 'float32')\ny = jax.ShapeDtypeStruct(({symbol},), 'float32')",
            )
            if symbol.isidentifier()
            else Fix(
                f"Promise that {pair[0]} and {pair[1]} are equal",
                f"from jax import export\nexport.symbolic_shape('n', constraints=['{symbol} == {other}'])",
            ),
        ],
        facts={"shapes": tuple(printed), "sizes": pair},
    )
