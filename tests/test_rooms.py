"""The rooms of the house: which module may import which. Read from the source, so that nothing need run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import jaxpar_magic

PACKAGE = "jaxpar_magic"
SOURCE = Path(jaxpar_magic.__file__).parent

BASE = {"errors", "_jax", "machine", "document"}
FEATURES = {"backend", "mapping", "explanations"}
DOORS = {"", "__main__"}  # the package itself, and `python -m jaxpar_magic`

# What each room may import of the others, also inside functions.
ALLOWED = {
    "errors": set(),
    "_jax": {"errors"},
    "machine": {"errors"},
    "document": {"render"},  # only to show itself, when it is shown
    **dict.fromkeys(FEATURES, BASE),
    "cluster": BASE | {"mapping"},
    "render": {"document"},
    "magics": BASE | FEATURES | {"cluster", "render"},
    **{door: BASE | FEATURES | {"cluster", "render", "magics"} for door in DOORS},
}
HEAVY = {"jax", "jaxlib", "numpy", "rich", "ipyparallel", "psutil"}
PUBLIC_ALL_THE_SAME = {"_getframe", "_asdict", "_fields", "_replace", "_repr_mimebundle_", "_render_traceback_", "_jax"}
IPYTHON = {"IPython", "ipykernel", "jupyter_client", "ipywidgets"}


@dataclass(frozen=True)
class Import:
    """One imported module. `deferred`: inside a function, or for type checkers alone."""

    module: str
    line: int
    deferred: bool


def imports_of(tree: ast.Module, name: str, *, is_package: bool) -> list[Import]:
    """All that a module imports; relative names resolved. `from a import b` gives `a` and `a.b`."""
    found = []

    def visit(node: ast.AST, deferred: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append(Import(module, node.lineno, deferred))
            found.extend(Import(f"{module}.{alias.name}", node.lineno, deferred) for alias in node.names)
        for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, deferred or inside or for_checkers)

    visit(tree, False)
    return found


def room_of(module: str) -> str:
    """`jaxpar_magic.mapping.inputs` → `mapping`; the package itself → ``."""
    return module.removeprefix(PACKAGE).lstrip(".").split(".")[0]


def wrong_imports(name: str, tree: ast.Module, known: set[str], *, is_package: bool) -> list[str]:
    """Each import of a module that its room must not have."""
    room, wrong = room_of(name), []
    for found in imports_of(tree, name, is_package=is_package):
        top = found.module.split(".")[0]
        where = f"{name}:{found.line} imports {found.module}"
        if top in IPYTHON and room != "magics":
            wrong.append(f"{where}: only magics may")
        if top == "ipyparallel" and room != "cluster":
            wrong.append(f"{where}: only cluster may")
        if top == PACKAGE and found.module in known:
            target = room_of(found.module)
            if target != room and target not in ALLOWED[room] and target:
                wrong.append(f"{where}: {room or 'the package'} may not import {target}")
            if room == "document" and target == "render" and not found.deferred:
                wrong.append(f"{where}: only inside a function")
    return wrong


def private_names(tree: ast.Module) -> list[str]:
    """Names that JAX keeps to itself, however they are reached."""
    private = re.compile(r"(jax|jaxlib)(\.\w+)*?\._[a-z]")
    found = []
    own = PUBLIC_ALL_THE_SAME | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "type(self)")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [found.module for found in imports_of(ast.Module([node], []), "x", is_package=False)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            # Private attributes of arrays and the like: no name of JAX's stands there, only some variable's.
            if re.match(r"_[a-z]", node.attr) and node.attr not in own:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        elif isinstance(node, ast.Subscript | ast.Call) and "modules" in ast.unparse(node)[:20]:
            names = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
        else:
            continue
        found += [f"line {node.lineno}: {name}" for name in names if private.match(name)]
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join([PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)]), path


MODULES = dict(modules())
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def is_package(name: str) -> bool:
    return MODULES[name].name == "__init__.py"


def imported_with(*names: str) -> set[str]:
    """The modules of ours that importing these imports, as far as the source tells."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in seen or name not in TREES:
            continue
        seen.add(name)
        todo.append(name.rpartition(".")[0])
        todo += [i.module for i in imports_of(TREES[name], name, is_package=is_package(name)) if not i.deferred]
    return seen


@pytest.mark.parametrize("name", MODULES)
def test_each_module_imports_only_what_its_room_may(name):
    assert room_of(name) in ALLOWED, f"{name} is in no room; give it a place in ALLOWED"
    assert wrong_imports(name, TREES[name], set(MODULES), is_package=is_package(name)) == []


@pytest.mark.parametrize("name", [name for name in MODULES if name != f"{PACKAGE}._jax"])
def test_private_names_of_jax_stand_in_one_module(name):
    assert private_names(TREES[name]) == []


def test_what_loading_and_the_features_import_is_light():
    """Only modules that are reached when a map runs, or text is rendered, import heavy packages at once."""
    early = imported_with(
        *(name for name in MODULES if room_of(name) in {"magics", *DOORS, *BASE}),
        *(f"{PACKAGE}.{feature}" for feature in [*FEATURES, "cluster"]),
    )
    assert f"{PACKAGE}.errors" in early
    heavy = [
        f"{name}:{i.line} imports {i.module}"
        for name in sorted(early)
        for i in imports_of(TREES[name], name, is_package=is_package(name))
        if not i.deferred and i.module.split(".")[0] in HEAVY
    ]
    assert heavy == []


def test_the_other_rooms_keep_heavy_imports_inside_functions():
    wrong = [
        f"{name}:{i.line} imports {i.module}"
        for name, tree in TREES.items()
        for i in imports_of(tree, name, is_package=is_package(name))
        if not i.deferred
        and i.module.split(".")[0] in HEAVY
        # a map that runs needs them, and its modules are imported only then (the test above)
        and not (room_of(name) in {"mapping", "cluster"} and i.module.split(".")[0] in {"jax", "jaxlib", "numpy"})
        and not (name == f"{PACKAGE}.render.text" and i.module.split(".")[0] == "rich")
    ]
    assert wrong == []


# --- the tests above can fail -------------------------------------------------------------------------------

BAD = """
from __future__ import annotations
import numpy as np
from typing import TYPE_CHECKING
from IPython import get_ipython
from ..render import text
from ..mapping.inputs import Batch
from .. import explanations
from ..errors import InputError
from . import state
import ipyparallel
if TYPE_CHECKING:
    import rich
def later():
    import jax
    from jax._src import xla_bridge
    from jaxpar_magic.magics import cell
    jax._src.core.f()
    array._committed, self._rows, other._rows, point._replace(x=1)
    importlib.import_module("jax._src.api")
    sys.modules.get("jaxlib._jax")
    sys.modules["jax._src.config"]
    jax.numpy.sum, jax.__version__, "text about jax._src is only text"
"""


def test_a_bad_module_is_found():
    tree = ast.parse(BAD)
    known = {
        f"{PACKAGE}.{name}"
        for name in ("", "render", "render.text", "mapping", "mapping.inputs", "explanations", "magics.cell")
        + ("errors", "backend", "backend.state", "magics")
    }
    found = wrong_imports(f"{PACKAGE}.backend.apply", tree, known, is_package=False)
    assert [re.sub(r"^\S+ ", "", line) for line in found] == [
        "imports IPython: only magics may",
        "imports IPython.get_ipython: only magics may",
        "imports jaxpar_magic.render: backend may not import render",
        "imports jaxpar_magic.render.text: backend may not import render",
        "imports jaxpar_magic.mapping.inputs: backend may not import mapping",
        "imports jaxpar_magic.explanations: backend may not import explanations",
        "imports ipyparallel: only cluster may",
        "imports jaxpar_magic.magics: backend may not import magics",
        "imports jaxpar_magic.magics.cell: backend may not import magics",
    ]
    deferred = {i.module: i.deferred for i in imports_of(tree, f"{PACKAGE}.backend.apply", is_package=False)}
    assert deferred["numpy"] is False
    assert deferred["jax"] is True
    assert deferred["rich"] is True
    assert sorted({line.partition(": ")[2] for line in private_names(tree)}) == [
        "array._committed",
        "jax._src",
        "jax._src.api",
        "jax._src.config",
        "jax._src.core",
        "jax._src.core.f",
        "jax._src.xla_bridge",
        "jaxlib._jax",
    ]


def test_relative_imports_of_a_package_resolve():
    tree = ast.parse("from . import rules\nfrom .rules import shapes\nfrom .. import errors")
    found = [i.module for i in imports_of(tree, f"{PACKAGE}.explanations", is_package=True)]
    assert found == [
        f"{PACKAGE}.explanations",
        f"{PACKAGE}.explanations.rules",
        f"{PACKAGE}.explanations.rules",
        f"{PACKAGE}.explanations.rules.shapes",
        PACKAGE,
        f"{PACKAGE}.errors",
    ]
