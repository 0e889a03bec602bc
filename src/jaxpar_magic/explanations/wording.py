"""Words and fixes that many rules share."""

from __future__ import annotations

import ast
import builtins
import math
import re
import symtable
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace

from .context import Failure
from .explanation import Fix


def counted(number: int, noun: str) -> str:
    """ "1 device", "8 devices", "2 entries", "0 axes"."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """ "devices", "entries", "axes"."""
    if noun.endswith("axis"):
        return noun[:-2] + "es"
    return noun[:-1] + "ies" if noun.endswith("ry") else noun + "s"


def sizes(text: str) -> tuple[int, ...]:
    """The whole numbers of a printed shape: "(4, 2)" or "4,2" gives (4, 2)."""
    return tuple(int(n) for n in re.findall(r"-?\d+", text))


def array_type(text: str) -> tuple[str, tuple[int, ...]] | None:
    """dtype and shape of a type as JAX prints it: "float32[10,4]{V:i}" gives ("float32", (10, 4))."""
    match = re.match(r"~?([a-z]+\d*(?:_\w+)?)\[([\d,@\w()' ]*)\]", text)
    return None if match is None else (match.group(1), sizes(re.sub(r"@[^,\]]+", "", match.group(2))))


def product(numbers: Sequence[int]) -> int:
    """Product of whole numbers; 1 for none."""
    return math.prod(numbers)


def listed(words: Sequence[object], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    texts = [str(word) for word in words]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def device_count_fix(failure: Failure, count: int) -> Fix | None:
    """A fix that gives this process `count` CPU devices; None where that is impossible (another platform).

    In IPython it is `%jaxdevices`, which works while the backend runs.
    """
    if failure.environment.platform not in (None, "cpu") or not 1 <= count <= 64:
        return None
    title = f"Give JAX {counted(count, 'CPU device')} (works now, no restart), then run the cell again"
    if failure.environment.interactive:
        return Fix(title, f"%jaxdevices {count}")
    title = f"Give JAX {counted(count, 'CPU device')}, before the line that failed"
    return Fix(title, f"from jaxpar_magic import devices\ndevices({count})")


def parmap_fix(
    failure: Failure, function: str, inputs: str, title: str | None = None, in_axes: str | None = None
) -> Fix:
    """A fix that maps `function` over `inputs` (source text) with this package, for any number of items."""
    title = title or "Map any number of items over the devices there are"
    if failure.environment.interactive and re.fullmatch(r"[A-Za-z_][\w.]*", function):
        axes = f" --in-axes {in_axes.replace(' ', '')}" if in_axes is not None else ""
        return Fix(title, f"%parmap {function} {inputs}{axes}")
    axes = f", in_axes={in_axes}" if in_axes is not None else ""
    return Fix(title, f"from jaxpar_magic import parmap\nresult = parmap({function}, {inputs}{axes})")


# What fixes use without importing it, where the user's code has no such name.
_IMPORTS = {
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "lax": "from jax import lax",
    "np": "import numpy as np",
    "numpy": "import numpy",
    "partial": "from functools import partial",
    "functools": "import functools",
    "P": "from jax.sharding import PartitionSpec as P",
    "NamedSharding": "from jax.sharding import NamedSharding",
    "checkify": "from jax.experimental import checkify",
    "optax": "import optax",
}


def complete(fix: Fix, failure: Failure) -> Fix:
    """`fix` with the imports that the user's code lacks, and with the names that the user has to fill in.

    A gap `...` counts as one. Nothing is added where the user's names are not known, as with a pasted text.
    """
    lines = fix.code.split("\n")
    if any(re.match(r"\s*(!|%(pip|conda)\b)", line) for line in lines):
        return replace(fix, kind="shell")
    if not failure.scope or fix.kind != "here" or fix.fill_in:
        return fix
    code = "\n".join(line for line in lines if not line.startswith("%"))
    statements = _parse(code)
    if statements is None:
        return fix
    free = _free_names(statements, failure.scope)
    given = {}
    if free and not _has_gap(statements):
        given = {name: source for name, source in _inputs(failure).items() if name in free}
    if given:
        code = "\n".join([*(f"{name} = {source}" for name, source in given.items()), fix.code])
        return complete(replace(fix, code=code), failure)
    imports = [_IMPORTS[name] for name in free if name in _IMPORTS]
    gaps = [name for name in free if name not in _IMPORTS] + ["..."] * _has_gap(statements)
    return replace(fix, code="\n".join([*imports, fix.code]), fill_in=tuple(gaps))


def _inputs(failure: Failure) -> dict[str, str]:
    """Names that fixes use for what the user wrote as an expression, with that expression.

    `jax.random.normal(jax.random.key(0))` gives the key; `jax.vmap(lambda x: …)(jnp.ones(3))` the function
    and the x.
    """
    found: dict[str, str] = {}
    found["key"] = "jax.random.key(0)"
    for call in [call for frame in failure.user_frames for call in frame.calls]:
        if re.search(r"\brandom\.\w+$", call.function) and call.args and re.search(r"key\(|Key\(", call.args[0]):
            found["key"] = call.args[0]
    for name in ("shard_map", "pmap", "vmap", "jit", "grad", "value_and_grad", "vjp", "map", "scan", "while_loop"):
        inner = failure.call(name)
        if inner is None or not inner.args or "..." in inner.args[0]:
            continue
        function = inner.args[0]
        if ".compile()" in failure.definitions.get(function, ""):
            continue  # what is transformed is no function any more
        found.setdefault("function", function)
        found.setdefault("f", function)
        applied = failure.applied(name)
        arguments = applied[0].args if applied is not None else ()
        parameters = re.match(r"lambda ([\w, ]*):", function)
        names = parameters.group(1).split(", ") if parameters is not None else ()
        for parameter, argument in (*zip(names, arguments), *zip(("x", "y"), arguments), *zip(("xs",), arguments)):
            if not argument.startswith("*") and parameter:
                found.setdefault(parameter, argument)
    return {name: source for name, source in found.items() if _is_independent(name, source)}


def _is_independent(name: str, source: str) -> bool:
    statements = _parse(source) if "\n" not in source else None
    return bool(statements) and name not in _free_names(statements or [], ())


def _parse(code: str) -> list[ast.stmt] | None:
    """The statements of a fix, which may be those of a function's body."""
    code = textwrap.dedent(code)
    try:
        return ast.parse(code).body
    except SyntaxError:
        return None


def _free_names(statements: Sequence[ast.stmt], known: Collection[str]) -> list[str]:
    """Names that are used before the statements bind them, and are not known."""
    bound = {"_", *known, *dir(builtins)}
    free: dict[str, None] = {}
    for statement in statements:
        symbols = symtable.symtable(ast.unparse(statement), "fix", "exec").get_symbols()
        within = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
        own: set[str] = set()
        if isinstance(statement, ast.Assign | ast.AugAssign):  # what it binds is there only afterwards
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            own = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)} & within
        free.update(dict.fromkeys(name for name in _used(statement) if name not in bound | (within - own)))
        bound |= within
    return list(free)


def _used(statement: ast.stmt) -> list[str]:
    """Names that a statement looks up outside of its own functions, lambdas and comprehensions."""
    names: set[str] = set()
    tables = [symtable.symtable(ast.unparse(statement), "fix", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    order = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        names.add(statement.target.id)
    return [name for name in dict.fromkeys(order) if name in names]


def _has_gap(statements: Sequence[ast.stmt]) -> bool:
    """Whether `...` stands for code, and not for the axes of an index."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    indices = {id(n) for node in nodes if isinstance(node, ast.Subscript) for n in ast.walk(node.slice)}
    return any(isinstance(n, ast.Constant) and n.value is ... and id(n) not in indices for n in nodes)
