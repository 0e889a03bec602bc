"""Names and arguments that JAX had and has no longer, or does not have yet: the table is removed_names.toml."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import listed
from ._lines import rewritten

_MODULE = r"(jax(?:\.\w+)*)"


@cache
def _table() -> Mapping[str, Any]:
    import tomllib  # deferred: read at the first error of this kind
    from importlib.resources import files

    return tomllib.loads(files("jaxpar_magic.explanations").joinpath("removed_names.toml").read_text("utf-8"))


def removed(module: str, name: str) -> tuple[str, str, str | None] | None:
    """(version without it, what to use, code) of a name that JAX had."""
    entry = _table()["removed"].get(module, {}).get(name)
    return (entry[0], entry[1], entry[2] if len(entry) > 2 else None) if entry else None


def added(module: str, name: str) -> str | None:
    """First version of JAX that has the name, if the table knows it."""
    version = _table()["added"].get(module, {}).get(name)
    return version if isinstance(version, str) else None


def missing_name(failure: Failure) -> tuple[str, str] | None:
    """(module, name) that was looked for and is not there, from any wording that Python and JAX have."""
    match = failure.search(rf"^module '{_MODULE}' has no attribute '(\w+)'") or failure.search(
        r"^cannot import name '(?P<name>\w+)' from '(?P<module>jax(?:\.\w+)*)'"
    )
    if match is not None:
        groups = match.groupdict()
        return (groups["module"], groups["name"]) if groups else (match.group(1), match.group(2))
    match = failure.search(rf"^No module named '{_MODULE}\.(\w+)'") or failure.search(
        rf"^{_MODULE}\.(\w+) (?:was|is|has been|were) (?:removed|deprecated|moved)"
    )
    return (match.group(1), match.group(2)) if match is not None else None


def _old(failure: Failure, version: str) -> bool | None:
    """Whether the JAX that failed is older than `version`; None if unknown."""
    mine = failure.jax_version
    return mine < tuple(map(int, version.split("."))) if mine is not None else None


def _is_name(text: str) -> bool:
    return re.fullmatch(r"(jax|functools|math|numpy)(\.\w+)+", text) is not None


def _imports(failure: Failure) -> list[tuple[str, str]]:
    """(name, name as the user calls it) of `from … import …` on the user's line."""
    frame = failure.user
    source = frame.statement or frame.source or "" if frame is not None else ""
    match = re.match(r"from\s+[\w.]+\s+import\s+\(?([^()]+)\)?", source)
    pairs = re.findall(r"(\w+)(?:\s+as\s+(\w+))?", match.group(1)) if match else []
    return [(name, alias or name) for name, alias in pairs]


def _replacement(failure: Failure, module: str, name: str, use: str, code: str | None) -> str | None:
    """The user's line with the new name."""
    frame = failure.user
    source = frame.statement or frame.source or "" if frame is not None else ""
    if re.match(r"(from|import)\s", source):
        if not _is_name(use):
            return code
        home, _, attribute = use.rpartition(".")
        alias = next((a for n, a in _imports(failure) if n == name), None)
        if alias is None:
            return f"from {home} import {attribute}"
        line = f"from {home} import {attribute}" + (f" as {alias}" if alias != attribute else "")
        others = [n if n == a else f"{n} as {a}" for n, a in _imports(failure) if n != name]
        head = source.partition(" import ")[0]
        return "\n".join([line, *([f"{head} import {', '.join(others)}"] if others else [])])
    call = failure.call(name)
    update = re.fullmatch(r"x\.at\[i\]\.(\w+)\(y\)", use)
    if update is not None and call is not None and len(call.args) == 3:
        x, index, value = call.args
        index = re.sub(r"^(?:\w+\.)*index\[(.*)\]$", r"\1", index)
        return failure.rewrite(call.source, f"{x}.at[{index}].{update.group(1)}({value})")
    if code is not None:
        return code
    if not _is_name(use):
        return None
    written = re.search(rf"(?<![\w.])((?:\w+\.)+){name}\b", source)
    if written is None:
        return use
    home, _, attribute = use.rpartition(".")
    if home == module:
        return source.replace(written.group(0), written.group(1) + attribute, 1)
    root = use.partition(".")[0]
    first = "" if written.group(1).startswith(f"{root}.") else f"import {root}\n"
    if re.match(r"jax\.(extend|experimental|example_libraries)\.", use):
        first = f"import {home}\n"  # `import jax` does not load these
    return first + source.replace(written.group(0), use, 1)


def _library(failure: Failure) -> str | None:
    """The installed package whose code asked for the name."""
    last = failure.frames[-1].package if failure.frames else None
    if last == "jax" and len(failure.frames) > 1:  # JAX's own __getattr__
        last = next((f.package for f in reversed(failure.frames) if f.package != "jax"), None)
    return last if last not in (None, "user", "own", "stdlib", "jax") else None


@rule(
    "JPX1801",
    "removed-from-jax",
    types=("AttributeError", "ImportError"),
    clues=("jax",),
    anywhere=True,
    priority=10,
)
def removed_from_jax(failure: Failure) -> Finding | None:
    place = missing_name(failure)
    if place is None:
        return None
    module, name = place
    full = f"{module}.{name}"
    asked = next((n for n, _ in _imports(failure) if removed(full, n)), None)
    entry = removed(module, name)
    parent, _, own = module.rpartition(".")
    if asked is not None:
        # from jax.experimental.maps import xmap: the name tells more than the module
        module, name, entry = full, asked, removed(full, asked)
    elif entry is None and removed(full, name):
        # jax.config was a module that held an object of the same name
        entry = removed(full, name)
    elif entry is None and removed(parent, own):
        module, name, entry = parent, own, removed(parent, own)
    if entry is None:
        return _says_itself(failure, module, name)
    version, use, code = entry
    if _old(failure, version):
        return None
    full = f"{module}.{name}"
    library = _library(failure)
    mine = failure.jax_version
    here = f" (this is JAX {'.'.join(map(str, mine))})" if mine is not None else ""
    successor = f" Its successor is {use}." if _is_name(use) else f" Use {use} instead." if use else ""
    fixes = []
    if library is not None:
        fixes.append(Fix(f"Update {library}, which still uses it", f"!pip install --upgrade {library}"))
        fixes.append(Fix("Or stay with an older JAX until it is updated", f"!pip install 'jax<{version}'"))
    else:
        new = _replacement(failure, module, name, use, code)
        if new:
            fixes.append(Fix(f"Use {use}" if use else "Write it so", new))
        else:
            fixes.append(Fix("Until your code does without it, use an older JAX", f"!pip install 'jax<{version}'"))
    return Finding(
        what=f"{full} was removed in JAX {version}{here}.{successor}",
        why="JAX renames and removes functions after a time of warning; code and libraries written for an older "
        "version then stop working." + (f" Here {library} asks for it." if library else ""),
        fixes=fixes,
        facts={"name": full, "removed": version, "use": use, "library": library},
    )


def _says_itself(failure: Failure, module: str, name: str) -> Finding | None:
    """JAX's own message about a removed name that the table does not have."""
    match = failure.search(rf"^{_MODULE}\.(\w+) (was|is|has been) (removed|deprecated)")
    if match is None:
        return None
    version = failure.search(r"removed in (?:JAX )?v?([\d.]+\d)")
    use = failure.search(r"[Uu]se `?((?:jax)[\w.]*\w)")
    full = f"{module}.{name}"
    successor = f" Its successor is {use.group(1)}." if use else ""
    fixes = []
    if use:
        new = _replacement(failure, module, name, use.group(1), None)
        fixes.append(Fix(f"Use {use.group(1)}", new or use.group(1)))
    elif version:
        fixes.append(Fix("Until your code does without it, use an older JAX", f"!pip install 'jax<{version.group(1)}'"))
    else:
        fixes.append(Fix("See what there is now", f"help({module!r})"))
    return Finding(
        what=f"{full} is no longer there{f': removed in JAX {version.group(1)}' if version else ''}.{successor}",
        why="JAX renames and removes functions after a time of warning.",
        fixes=fixes,
        facts={"name": full, "use": use.group(1) if use else None},
    )


@rule(
    "JPX1802",
    "not-in-jax",
    types=("AttributeError", "ImportError"),
    clues=("module 'jax", "from 'jax", "No module named 'jax."),
    anywhere=True,
)
def not_in_jax(failure: Failure) -> Finding | None:
    place = missing_name(failure)
    if place is None or removed(*place) or added(*place) or "partially initialized" in failure.text:
        return None
    module, name = place
    if place == ("jax.numpy", "random"):
        return None  # random numbers of JAX need keys: JPX1007
    if module == "jax.numpy" and name in ("float", "int", "bool", "complex", "object", "str", "long"):
        return None  # Python's own types: calls.py
    there = sys.modules.get(module)
    if there is None or (hasattr(there, "__file__") and there.__file__ is None) or hasattr(there, name):
        return None
    import difflib

    close = difflib.get_close_matches(name, [n for n in dir(there) if not n.startswith("_")], 3, 0.75)
    numpy = sys.modules.get("numpy")
    submodule = module in ("jax", "jax.experimental", "jax.scipy", "jax.extend") and _is_submodule(there, name)
    in_numpy = module == "jax.numpy" and numpy is not None and hasattr(numpy, name)
    fixes = []
    if submodule:
        what = f"{module}.{name} is a module that has not been imported."
        fixes.append(Fix("Import it", f"import {module}.{name}"))
        why = f"`import {module.split('.')[0]}` does not load all parts of JAX."
    elif in_numpy:
        what = f"numpy has {name}, and jax.numpy has not."
        why = "jax.numpy has most of numpy, but not what reads files, works on strings or objects, or changes arrays."
        call = failure.call(name)
        new = call.source.replace(call.function, f"numpy.{name}", 1) if call is not None else f"numpy.{name}(x)"
        line = failure.rewrite(call.source, f"jax.numpy.asarray({new})") if call is not None else None
        fixes.append(Fix("Use numpy's, outside jit, and make a JAX array of it", f"import jax, numpy\n{line or new}"))
    elif close:
        what = f"{module} has no {name}; it has {listed(close)}."
        why = "A name of JAX is spelt differently, or is in another module."
        for candidate in close[:2]:
            frame = failure.user
            source = frame.statement or frame.source or "" if frame is not None else ""
            changed = re.sub(rf"\b{name}\b", candidate, source, count=1)
            fixes.append(Fix(f"If you mean {candidate}", changed if changed != source else f"{module}.{candidate}"))
    else:
        return None
    library = _library(failure)
    return Finding(
        what=what,
        why=why,
        fixes=fixes,
        facts={"name": f"{module}.{name}", "close": tuple(close), "library": library},
        guess=not (submodule or in_numpy) or library is not None,
    )


def _is_submodule(package: Any, name: str) -> bool:
    import pkgutil

    return any(m.name == name for m in pkgutil.iter_modules(getattr(package, "__path__", None) or []))


@rule(
    "JPX1803",
    "newer-than-this-jax",
    types=("AttributeError", "ImportError"),
    clues=("jax",),
    anywhere=True,
    priority=5,
)
def newer_than_this_jax(failure: Failure) -> Finding | None:
    place = missing_name(failure)
    if place is None or failure.search(r"(removed|deprecated)"):
        return None
    module, name = place
    version = added(module, name)
    if version is None or _old(failure, version) is False:
        return None
    mine = failure.jax_version
    here = f"this is JAX {'.'.join(map(str, mine))}" if mine is not None else "the installed JAX is older"
    library = _library(failure)
    return Finding(
        what=f"{module}.{name} exists since JAX {version}, and {here}.",
        why="The code" + (f" of {library}" if library else "") + " was written for a newer JAX than the one installed.",
        fixes=[
            Fix("Update JAX, then restart Python", f"!pip install --upgrade 'jax>={version}'"),
        ],
        facts={"name": f"{module}.{name}", "since": version, "library": library},
    )


_PREFIXES = {"jnp": "jax.numpy", "lax": "jax.lax", "jsp": "jax.scipy"}


def _function(written: str) -> Any:
    """The function of JAX that `jnp.linalg.solve` names; None if it is not JAX's."""
    first, _, rest = written.partition(".")
    full = f"{_PREFIXES.get(first, first)}.{rest}" if rest else written
    if not full.startswith("jax."):
        return None
    module, _, name = full.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


@rule(
    "JPX1804",
    "removed-argument",
    types=("TypeError", "NotImplementedError"),
    clues=("unexpected keyword argument", "`concrete` option", "'concrete' option", "'kind' argument to"),
    priority=5,
)
def removed_argument(failure: Failure) -> Finding | None:
    match = failure.search(r"^(?:\w+\.)*?(\w+?)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")
    concrete = failure.search(r"^The [`'](concrete)[`'] option to `?jax\.(checkpoint)")
    sort = failure.search(r"^'(kind)' argument to (sort|argsort) is not supported")
    if match is not None:
        function, keyword = match.groups()
    elif concrete is not None:
        keyword, function = concrete.groups()
    elif sort is not None:
        keyword, function = sort.groups()
    else:
        return None
    call = next(
        (c for f in failure.user_frames[:1] for c in f.calls if keyword in c.keywords and c.name),
        None,
    )
    own = function.lstrip("_")
    names = {own, call.name if call is not None else own}
    entry = next((_table()["arguments"][n].get(keyword) for n in names if n in _table()["arguments"]), None)
    known = _function(call.function) if call is not None else None
    # a function that was imported by its own name: only what the table knows
    unknown = failure.live and call is not None and known is None and not failure.from_jax
    if unknown and (entry is None or (call is not None and "." in call.function)):
        return None
    if not failure.live and failure.from_jax is not True and entry is None and concrete is None and sort is None:
        return None
    if call is not None and call.name and match is not None and own not in (call.name, "jit", "sum", "mean"):
        return None
    new = entry[1] if entry else ""
    shown = call.function if call is not None else f"jax's {own}"
    if sort is not None:
        new, entry = "stable", ["0.4.28", "stable", "stable=True"]
    guesses: list[str] = []
    if entry is None and concrete is None:
        said = failure.search(r"Did you mean '(\w+)'")
        guesses = [said.group(1)] if said else _close_parameters(known, keyword)
        if not guesses:
            return None
        new = guesses[0]
    fixes = []
    if concrete is not None:
        code = f"jax.{function}(f, static_argnums=(1,))  # positions of what f's Python code looks at"
        fixes.append(Fix("Leave it away; name the arguments that must be Python values in static_argnums", code))
    elif call is not None and new:
        value = call.keywords[keyword]
        written = entry[2] if entry and len(entry) > 2 and "=" in entry[2] and "(" not in entry[2] else f"{new}={value}"
        code = re.sub(rf"\b{keyword}\s*=\s*{re.escape(value)}", written, call.source)
        for other, others in _table()["arguments"].get(own, {}).items() if entry else ():
            if others[1] and len(others) == 2:
                code = re.sub(rf"\b{other}\s*=(?!=)", f"{others[1]}=", code)
        fixes.append(Fix(f"Write {written.split('=')[0]}", rewritten(failure, call.source, code)))
    elif new:
        fixes.append(Fix(f"Write {new}", f"{own}(x, {new}=value)"))
    elif call is not None:
        code = re.sub(rf",\s*{keyword}\s*=\s*{re.escape(call.keywords[keyword])}", "", call.source)
        fixes.append(Fix("Leave it away", rewritten(failure, call.source, code)))
    else:
        fixes.append(Fix("Leave it away", f"{own}(x)"))
    gone = f" It was removed in JAX {entry[0]}." if entry else ""
    return Finding(
        what=f"{shown} has no argument {keyword}.{gone}{f' It is called {new}.' if new else ''}",
        why="JAX renames and removes arguments after a time of warning, often to follow numpy."
        if entry
        else "The name of the argument is spelt differently.",
        fixes=fixes,
        facts={"function": shown, "argument": keyword, "use": new},
        guess=not failure.live and not failure.from_jax and match is not None,
    )


def _close_parameters(function: Any, keyword: str) -> list[str]:
    import difflib
    import inspect

    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    return difflib.get_close_matches(keyword, names, 1, 0.7)


@rule(
    "JPX1805",
    "removed-array-method",
    types=("AttributeError", "TypeError"),
    clues=("ArrayImpl' object has no attribute", "arr.device_buffer", "Device' object is not callable", "DeviceArray"),
)
def removed_array_method(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^'(?:[\w.]+\.)?(?:ArrayImpl|DynamicJaxprTracer|JitTracer)' object has no attribute '(\w+)'"
    ) or failure.search(r"^arr\.(device_buffers?) has been deprecated")
    frame = failure.user
    source = frame.segment or frame.source or "" if frame is not None else ""
    called = failure.search(r"^'(?:[\w.]+\.)?Device' object is not callable")
    if called is not None and re.search(r"\.device\(\)", source):
        name = "device"
    elif match is not None:
        name = match.group(1)
    else:
        return None
    torch = {
        "numpy": "numpy.asarray({x})",
        "cpu": "jax.device_put({x}, jax.devices('cpu')[0])",
        "cuda": "jax.device_put({x}, jax.devices('gpu')[0])",
        "to": "jax.device_put({x}, jax.devices()[0])",
        "detach": "jax.lax.stop_gradient({x})",
        "backward": "jax.grad(loss)(params)",
        "requires_grad": "jax.grad(loss)(params)",
        "unsqueeze": "jax.numpy.expand_dims({x}, 0)",
        "view": "{x}.reshape(-1)",
        "permute": "{x}.transpose(1, 0)",
        "device": "{x}.device",
        "type": "{x}.astype('float32')",
        "float": "{x}.astype('float32')",
        "long": "{x}.astype('int32')",
        "dim": "{x}.ndim",
        "contiguous": "{x}",
        "clone": "{x}.copy()",
    }
    entry = removed("jax.Array", name)
    if entry is None and name not in torch:
        return None
    written = re.search(rf"([A-Za-z_][\w.]*(?:\[[^\]]*\])?)\.{name}\b", source)
    x = written.group(1) if written else "x"
    new = re.sub(r"\bx\b", x.replace("\\", ""), entry[1]) if entry is not None else torch[name].format(x=x)
    old = written.group(0) if written else None
    code = None
    if old and frame is not None:
        call = next((c for c in frame.calls if c.function == old), None)
        simple = call is not None and (not call.args or name not in ("split", "tile", "broadcast"))
        code = failure.rewrite(call.source if call is not None and simple else old, new)
    what = f"Arrays of JAX have no {name}"
    what += f": it was removed in JAX {entry[0]}." if entry is not None else "."
    if name == "device" and called is not None:
        what = f"`{x}.device` is no method any more: it is the device itself."
    return Finding(
        what=what,
        why="JAX's arrays have numpy's methods, except those that change the array; for others there are functions."
        if entry is None
        else "JAX removes methods after a time of warning.",
        fixes=[Fix("Write it so", code or new)],
        facts={"name": name, "array": x},
    )


@rule(
    "JPX1806",
    "deprecated-name",
    types=("DeprecationWarning", "FutureWarning"),
    clues=("deprecated", "renamed", "will be removed"),
)
def deprecated_name(failure: Failure) -> Finding | None:
    match = failure.search(
        rf"^[`']?{_MODULE}\.(\w+)[`']? (?:is|was|has been|will be) (?:deprecated|removed|renamed)"
    ) or failure.search(rf"^The argument to {_MODULE}\.(\w+) has been renamed")
    if match is None:
        return None
    module, name = match.groups()
    full = f"{module}.{name}"
    known = removed(module, name)
    use = failure.search(r"[Uu]sed? `?((?:jax)(?:\.\w+)+)")
    until = failure.search(r"removed in (?:JAX )?v?([\d.]+\d)")
    new = use.group(1) if use else known[1] if known and _is_name(known[1]) else None
    code = _replacement(failure, module, name, new, None) if new else known[2] if known else None
    text = failure.message.strip().split("\n")[0]
    return Finding(
        what=f"{full} still works, but goes away{f' in JAX {until.group(1)}' if until else ''}."
        + (f" Its successor is {new}." if new else ""),
        why="JAX warns for some months before it removes a name.",
        fixes=[Fix(f"Use {new}" if new else "See what JAX says", code or f"# {text[:200]}")],
        facts={"name": full, "use": new},
    )


@rule(
    "JPX1807",
    "file-named-jax",
    types=("AttributeError", "ImportError"),
    clues=("partially initialized module 'jax'", "module 'jax' has no attribute", "from 'jax' ("),
    priority=20,
    anywhere=True,
)
def file_named_jax(failure: Failure) -> Finding | None:
    own = failure.search(r"\(((?!.*(?:site|dist)-packages)[^()]*jax\.py)\)$", re.M)
    circular = failure.search(r"partially initialized module 'jax(?:\.\w+)*'")
    mine = next((f.file for f in failure.frames if re.search(r"(^|[/\\])jax\.py$", f.file)), None)
    if mine is None and own is not None:
        mine = own.group(1)
    if mine is None and circular is None:
        return None
    named = f"Your file {mine}" if mine else "A file of yours named jax.py"
    return Finding(
        what=f"{named} is imported in place of the package JAX.",
        why="Python looks beside your script first, so `import jax` finds your own file of that name.",
        fixes=[
            Fix(
                "Rename the file (and remove __pycache__ beside it), then start again",
                f"!mv {mine or 'jax.py'} my_jax.py",
            )
        ],
        facts={"file": mine},
        guess=mine is None,
    )
