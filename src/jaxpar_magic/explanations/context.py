"""`Failure`: the facts of one failure, read once, so that rules never touch an exception or a frame.

A failure comes from a live exception, from a warning, or from text (a pasted message, a traceback, a log).
What the source does not tell is None or empty: rules work on all three. Nothing here runs the user's code:
values are read only from types that are known to answer without side effects.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import linecache
import os
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace
from typing import Any

from .. import _jax
from .explanation import Where

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STDLIB = tuple(
    os.path.normcase(path) + os.sep for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if path
)
_CELL_FILE = r"^<ipython-input-|[/\\]ipykernel_\d+[/\\]"
_LONGEST_MESSAGE = 20_000  # some XLA messages hold a whole program
_MOST_VARIABLES = 60
_MOST_FRAMES = 400

# Parents of exception types that a text names but cannot show.
_PARENTS = {
    "TracerBoolConversionError": ("ConcretizationTypeError", "JAXTypeError", "TypeError"),
    "ConcretizationTypeError": ("JAXTypeError", "TypeError"),
    "TracerArrayConversionError": ("JAXTypeError", "TypeError"),
    "TracerIntegerConversionError": ("JAXTypeError", "TypeError"),
    "UnexpectedTracerError": ("JAXTypeError", "TypeError"),
    "NonConcreteBooleanIndexError": ("JAXIndexError", "IndexError"),
    "IndivisibleError": ("ValueError",),
    "JaxRuntimeError": ("RuntimeError",),
    "XlaRuntimeError": ("JaxRuntimeError", "RuntimeError"),
    "PicklingError": ("PickleError",),
    "InconclusiveDimensionOperation": ("Exception",),
}


@dataclass(frozen=True)
class Variable:
    """A name at the user's line and what it holds, as plain data.

    Attributes
    ----------
    name: as the user wrote it.
    type: the class's short name ("ndarray", "ArrayImpl", "list", "function", …); "tracer" for any tracer.
    shape, dtype: of an array or tracer, else None. `shape` is a tuple of ints (or None for symbolic sizes).
    length: of a list, tuple, dict, set, str or range, else None.
    element: type of the first element of a list, tuple or object array ("int", "Device", …), else None.
    value: repr of a number, bool, None or short string; text of a mesh or a spec; name of a function or module.
    axes: axis names and sizes of a mesh, else empty.
    devices: on how many devices a concrete jax array lies, else None.
    stale: whether it belongs to devices that are no longer there (the device count was changed since).
    uses_jax: whether it is made by JAX (an array, a jitted function), or is a function or object that holds
        or names something that is; of a numpy array: whether it is a read-only view of a JAX array.
    """

    name: str
    type: str
    shape: tuple[int | None, ...] | None = None
    dtype: str | None = None
    length: int | None = None
    element: str | None = None
    value: str | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    devices: int | None = None
    stale: bool = False
    uses_jax: bool = False
    module: str | None = None

    @property
    def tracer(self) -> bool:
        return self.type == "tracer"

    @property
    def array(self) -> bool:
        return self.shape is not None

    def __str__(self) -> str:
        if self.shape is not None:
            sizes = ",".join("?" if n is None else str(n) for n in self.shape)
            kind = {"ndarray": " (numpy)", "tracer": " (traced)"}.get(self.type, "")
            spread = f" on {self.devices} devices" if (self.devices or 0) > 1 else ""
            return f"{self.dtype}[{sizes}]{kind}{spread}"
        if self.length is not None and self.value is None:
            of = f" of {self.element}" if self.element else ""
            return f"{self.type}{of}, length {self.length}"
        return self.type if self.value is None else f"{self.value} ({self.type})"


@dataclass(frozen=True)
class Frame:
    """One line of the traceback.

    Attributes
    ----------
    package: "user" (a script, a cell, a module of the user's), "own" (this package), "stdlib", or the name of
        an installed package ("jax" also for jaxlib).
    file: path as the traceback gives it.  line: number or None.  function: name ("<module>" at top level).
    source: the line(s) as written, dedented; only for the user's frames, else None.
    segment: the very expression that failed, e.g. "jax.pmap(f)(x)", or None where Python does not tell.
    statement: the whole simple statement around it, dedented, or the source line.
    """

    package: str
    file: str
    line: int | None
    function: str
    source: str | None = None
    segment: str | None = None
    statement: str | None = None

    @property
    def raises(self) -> bool:
        """Whether this line raises or asserts by itself, so that the failure is its author's."""
        words = (self.segment or self.source or "").split(maxsplit=1)
        return bool(words) and words[0].rstrip(":(") in ("raise", "assert")

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Calls in the failing expression, the outermost first; then those of the rest of the statement."""
        found: list[Call] = []
        for text in (self.segment, self.statement, self.source):
            for call in _calls(text):
                if call not in found:
                    found.append(call)
        return tuple(found)


@dataclass(frozen=True)
class Call:
    """A call as the user wrote it.

    `jax.pmap(f, in_axes=(0, None))(x, y)` holds two calls: the outer one has `function`
    "jax.pmap(f, in_axes=(0, None))" and `args` ("x", "y"); the inner one has `function` "jax.pmap" and
    `keywords` {"in_axes": "(0, None)"}. `partial(jax.pmap, axis_name="i")` counts as a call of `jax.pmap`;
    `through` is then "partial".
    """

    source: str
    function: str
    args: tuple[str, ...]
    keywords: Mapping[str, str]
    through: str | None = None

    @cached_property
    def name(self) -> str:
        """Last part of the function's dotted name: "pmap"; "sum" of a method of anything, `(x + y).sum`; "" if a
        call or a lambda is called."""
        match = re.search(r"(?:^|\.)([A-Za-z_]\w*)$", self.function)
        return match.group(1) if match is not None else ""

    def changed(self, function: str | None = None, **keywords: str | None) -> str:
        """The call's source with another function, or with keywords set (None: left out)."""
        merged = {k: v for k, v in {**self.keywords, **keywords}.items() if v is not None}
        arguments = [*self.args, *(f"{k}={v}" for k, v in merged.items())]
        name = function or self.function
        if self.through is not None:
            return f"{self.through}({', '.join([name, *arguments])})"
        return f"{name}({', '.join(arguments)})"


@dataclass(frozen=True)
class Environment:
    """The process in which the failure happened; all None or empty for a failure from text.

    Attributes
    ----------
    jax: JAX's version as a tuple of ints.
    devices: number of devices of the default backend, if one runs.
    platform: "cpu", "gpu", "tpu", … of the default backend, if one runs.
    x64: whether 64-bit types are on.
    xla_flags: the variable as it stands.
    platforms: what JAX_PLATFORMS or `jax.config` asks for ("cuda,cpu"), or None.
    interactive: whether IPython runs, so that a fix may be a magic.
    """

    jax: tuple[int, ...] | None = None
    devices: int | None = None
    platform: str | None = None
    x64: bool | None = None
    xla_flags: str | None = None
    platforms: str | None = None
    interactive: bool = False


@dataclass(frozen=True)
class Failure:
    """The facts of one failure.

    Attributes
    ----------
    type_name:
        Qualified name of the exception or warning type ("jax.errors.TracerBoolConversionError",
        "ValueError"), or None if a text does not name it.
    types:
        Short names of the type and its parents, the type first.
    message:
        The message without what JAX appends to every error.
    notes:
        What `add_note` added, without JAX's own note about removed frames.
    frames:
        The traceback, outermost first (for an error of a worker process: the worker's).
    variables:
        Names at the user's innermost line, and the arguments of the library function it called.
    definitions:
        For the names in the user's failing expression, the statement that defined each ("f = jax.pmap(g)",
        or a function with its decorators), looked up in the same file and in the other cells.
    sources:
        For the same names, and for the user's innermost function, its `def` or `class`, decorated or not; and
        under "name.defvjp" and "name.defjvp" the statements that give it its derivative rules.
    environment:
        Devices, versions and flags.
    cause:
        The failure that this one was explicitly raised from, or None.
    live:
        Whether it came from an exception or warning of this process.
    kind:
        "error", "warning" or "text".
    frames_removed:
        Whether JAX removed its own frames, so that it was active when the failure happened.
    item:
        Index of the mapped item, where a note tells.
    meshes:
        Axis names and sizes of the meshes that the user's lines can see, by the mesh's name.
    scope:
        All names that the user's lines can see, without builtins; empty if that is not known.
    """

    type_name: str | None
    types: tuple[str, ...]
    message: str
    notes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    variables: Mapping[str, Variable] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    cause: Failure | None = None
    live: bool = False
    kind: str = "text"
    frames_removed: bool = False
    item: int | None = None
    meshes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    scope: frozenset[str] = frozenset()

    # -- how failures are made -------------------------------------------------------------------

    @classmethod
    def from_exception(cls, exception: BaseException, name_file: Callable[[str], str | None] | None = None) -> Failure:
        """The facts of `exception`. `name_file` turns a cell's file name into "cell In[3]" or None."""
        return _from_exception(exception, name_file, depth=0)

    @classmethod
    def from_warning(
        cls, message: str, category: type[Warning], file: str, line: int, source: str | None = None
    ) -> Failure:
        """The facts of a warning, from what `warnings.showwarning` gets.

        Called while the warning is being shown, it finds the user's line also where JAX names one of its own.
        """
        frame = _frame_of_text(file, line, "<module>", source or linecache.getline(file, line))
        unknown: Any = ((frame,), {}, frozenset(), ({}, {}))
        frames, variables, scope, (definitions, sources) = _guarded(lambda: _warned(frame), unknown)
        return cls(
            type_name=_qualified(category),
            types=_short_names(category),
            message=_message(message),
            frames=frames,
            variables=variables,
            definitions=definitions,
            sources=sources,
            environment=_environment(),
            live=True,
            kind="warning",
            scope=scope,
        )

    @classmethod
    def from_text(cls, text: str) -> Failure:
        """The facts that a message, a traceback or a piece of a log tells."""
        from .text import parse  # deferred: most failures are live

        return parse(text)

    # -- what rules ask --------------------------------------------------------------------------

    @cached_property
    def text(self) -> str:
        """Message and notes together: where rules look for words."""
        return "\n".join((self.message, *self.notes))

    def search(self, pattern: str, flags: int = 0) -> re.Match[str] | None:
        """`re.search` in message and notes."""
        return re.search(pattern, self.text, flags)

    def findall(self, pattern: str, flags: int = 0) -> list[re.Match[str]]:
        """Every match in message and notes."""
        return list(re.finditer(pattern, self.text, flags))

    def is_a(self, *names: str) -> bool:
        """Whether the type or a parent has one of these short names. False if a text names no type."""
        return any(name in self.types for name in names)

    @cached_property
    def user(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return next((f for f in reversed(self.frames) if f.package == "user"), None)

    @cached_property
    def user_frames(self) -> tuple[Frame, ...]:
        """All lines of the user's own code, the innermost first."""
        return tuple(f for f in reversed(self.frames) if f.package == "user")

    @cached_property
    def _user_calls(self) -> tuple[Call, ...]:
        frames = {id(frame): frame for frame in self.user_frames}  # a recursion has each line many times
        return tuple(call for frame in frames.values() for call in frame.calls)

    @cached_property
    def inner_frames(self) -> tuple[Frame, ...]:
        """Library frames beneath the user's innermost line, outermost first."""
        last = max((i for i, f in enumerate(self.frames) if f.package == "user"), default=-1)
        return self.frames[last + 1 :]

    @cached_property
    def from_jax(self) -> bool | None:
        """Whether JAX raised it: True, False, or None if that cannot be told (a bare message)."""
        if self.type_name is not None and re.match(r"jax(lib)?\b", self.type_name):
            return True
        if self.frames and self.frames[-1].package == "jax":
            return True
        if self.frames:
            innermost = self.frames[-1]
            if innermost.package == "user":
                # JAX takes its frames out of tracebacks; a line that does not raise called something.
                if innermost.raises and self.kind != "warning":
                    return False
                return True if self.frames_removed else None
            return any(f.package == "jax" for f in self.inner_frames) or None if self._neutral else False
        return True if self.frames_removed else None

    @property
    def _neutral(self) -> bool:
        # numpy and the standard library raise on behalf of whoever called them
        return self.frames[-1].package in ("numpy", "stdlib", "own")

    def raised_in(self, *places: str) -> bool:
        """Whether a library frame beneath the user's line is at one of `places`.

        A place is a file ("jax/_src/pmap.py"), a function ("make_mesh") or both ("pmap.py:wrapped").
        """
        for frame in self.inner_frames:
            path = frame.file.replace("\\", "/")
            for place in places:
                file, _, function = place.rpartition(":") if ":" in place else ("", "", place)
                if place.endswith(".py"):
                    file, function = place, ""
                if (not file or path.endswith("/" + file) or path == file) and (
                    not function or frame.function == function
                ):
                    return True
        return False

    def call(self, *names: str) -> Call | None:
        """The first call of a function with one of these last names: by the user's lines, the innermost
        first, then in the definitions of what they call."""
        calls = list(self._user_calls)
        called = {call.function for call in (self.user.calls if self.user is not None else ())}
        calls += [call for name in self.definitions if name in called for call in self.defining_calls(name)]
        return next((call for call in calls if call.name in names), None)

    def defining_calls(self, name: str) -> tuple[Call, ...]:
        """The calls in the statement that defined `name`: of `mesh = jax.make_mesh((4,), ("i",))`."""
        return _calls(self.definitions.get(name))

    def applied(self, name: str) -> tuple[Call, Call] | None:
        """A transformed function and its call, `pmap(f, …)(x)`, `jit(pmap(f))(x)`, or `g = pmap(f, …)` … `g(x)`:
        the outer call (with the inputs) and the inner one (with the function)."""
        for frame in self.user_frames:
            for outer in frame.calls:
                defining = self.defining_calls(outer.function)
                for inner in defining or frame.calls:
                    within = outer.function == inner.source or outer.function.endswith(f"({inner.source})")
                    if inner.name == name and (defining or within):
                        return outer, inner
        return None

    @cached_property
    def outer_call(self) -> Call | None:
        """The call that failed at the user's innermost line: `jax.pmap(f)(x)`, `g(x)`, or None."""
        calls = self.user.calls if self.user is not None else ()
        return calls[0] if calls else None

    def variable(self, name: str | None) -> Variable | None:
        """The variable of that name at the user's line."""
        return self.variables.get(name) if name else None

    def rewrite(self, old: str, new: str) -> str | None:
        """The user's failing statement with `old` replaced by `new`; or the definition that holds `old`, so
        replaced, and the statement after it. None if neither holds it."""
        for frame in self.user_frames[:2]:
            for source in (frame.statement, frame.source):
                if source and old in source:
                    return source.replace(old, new, 1)
        for source in self.definitions.values():
            if old in source:
                again = self.user.statement if self.user is not None else None
                return "\n".join([source.replace(old, new, 1), *([again] if again else [])])
        return None

    @cached_property
    def where(self) -> Where | None:
        """The user's innermost line, to be shown."""
        frame = self.user
        if frame is None:
            return None
        function = None if re.match(r"<module>|<cell line|$", frame.function) else frame.function
        return Where(frame.file, frame.line, function, as_typed(frame.source))

    @property
    def devices(self) -> int | None:
        """Number of devices of the running default backend, if known."""
        return self.environment.devices

    @property
    def jax_version(self) -> tuple[int, ...] | None:
        """JAX's version, if known."""
        return self.environment.jax


# -- live exceptions -------------------------------------------------------------------------------


def _from_exception(exception: BaseException, name_file: Any, depth: int) -> Failure:
    kind = type(exception)
    notes = _guarded(lambda: tuple(map(str, getattr(exception, "__notes__", ()))), ())
    own_notes = tuple(note for note in notes if not _is_jax_note(note))
    message = _guarded(lambda: str(exception), "")
    frames, variables = _guarded(lambda: _traceback(exception, name_file), ((), {}))
    definitions, sources = _guarded(lambda: _definitions(exception, frames), ({}, {}))
    remote = _remote_traceback(exception)
    worker = _guarded(lambda: Failure.from_text(remote).frames, ()) if remote is not None else ()
    if any(frame.package == "user" for frame in worker):  # else it failed on the way to the worker
        frames, variables, definitions, sources = worker, {}, {}, {}
    cause = exception.__cause__
    inner = None
    if cause is not None and cause is not exception and remote is None and depth < 5:
        inner = _from_exception(cause, name_file, depth + 1)
    return Failure(
        type_name=_qualified(kind),
        types=_short_names(kind),
        message=_message(message),
        notes=own_notes,
        frames=frames,
        variables=variables,
        definitions=definitions,
        sources=sources,
        environment=_guarded(_environment, Environment()),
        cause=inner,
        live=True,
        kind="error",
        frames_removed=len(own_notes) < len(notes) or _has_removed_frames(cause),
        item=_item(own_notes, message),
        meshes={} if remote is not None else _guarded(lambda: _meshes(exception), {}),
        scope=frozenset() if remote is not None else _guarded(lambda: _scope(exception), frozenset()),
    )


def _guarded(read: Callable[[], Any], default: Any) -> Any:
    """What `read` returns, or `default`: a strange object must not cost the other facts."""
    try:
        return read()
    except Exception:
        return default


def _qualified(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _short_names(kind: type) -> tuple[str, ...]:
    names = [parent.__name__ for parent in kind.__mro__ if parent is not object]
    # jax.errors.JaxRuntimeError was called XlaRuntimeError up to JAX 0.7: rules ask for the new name only
    return tuple(names[:1] + ["JaxRuntimeError"] * (names[0] == "XlaRuntimeError") + names[1:])


def names_of_type(qualified: str) -> tuple[str, ...]:
    """Short names of a type known by name only, and of its parents."""
    short = qualified.rsplit(".", 1)[-1]
    known = getattr(builtins, short, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return _short_names(known)
    return (short, *_PARENTS.get(short, ()), "Exception")


def _is_jax_note(note: str) -> bool:
    return "JAX has removed its internal frames" in note or "JAX_TRACEBACK_FILTERING" in note


def _has_removed_frames(cause: BaseException | None) -> bool:
    # with JAX_TRACEBACK_FILTERING=remove_frames the unfiltered traceback hangs on as the cause
    return cause is not None and type(cause).__name__ in ("UnfilteredStackTrace", "SimplifiedTraceback")


def _message(message: str) -> str:
    message = message[:_LONGEST_MESSAGE]
    footer = re.search(r"\n-{10,}\nFor simplicity, JAX has removed", message)
    return (message[: footer.start()] if footer else message).rstrip()


def _item(notes: Iterable[str], message: str) -> int | None:
    for text in (*notes, message):
        match = re.search(r"\bitem (\d+)\b", text)
        if match and "jaxpar" not in text[: match.start()].lower():
            return int(match.group(1))
    return None


def _remote_traceback(exception: BaseException) -> str | None:
    """The traceback of a worker process, which multiprocessing and loky send along as text."""
    cause = exception.__cause__
    if cause is not None and type(cause).__name__.strip("_") == "RemoteTraceback":
        return str(getattr(cause, "tb", None) or cause)
    return None


def _traceback(exception: BaseException, name_file: Any) -> tuple[tuple[Frame, ...], dict[str, Variable]]:
    frames: list[Frame] = []
    read: dict[Any, Frame] = {}  # a recursion passes the same line hundreds of times
    innermost = None
    called = None
    for tb in itertools.islice(_walk(exception.__traceback__), _MOST_FRAMES):
        code = tb.tb_frame.f_code
        package = package_of(code.co_filename)
        if package == "user":
            innermost, called = tb, None
            line = (code, tb.tb_lineno, tb.tb_lasti)
            if line not in read:
                read[line] = _user_frame(tb, name_file)
            frames.append(read[line])
        else:
            if called is None and innermost is not None and package not in ("own", "stdlib"):
                called = tb
            frames.append(Frame(package, code.co_filename, tb.tb_lineno, code.co_name))
    variables: dict[str, Variable] = {}
    if innermost is not None:
        variables = _variables(innermost, frames)
    if called is not None:
        # what the library got, where the user's expression has no names for it
        for name in ("args", "kwargs"):
            for index, value in _indexed(called.tb_frame.f_locals.get(name)):
                variables.setdefault(f"{name}[{index}]", describe(f"{name}[{index}]", value))
    return tuple(frames), variables


def _meshes(exception: BaseException) -> dict[str, Mapping[str, int]]:
    found: dict[str, Mapping[str, int]] = {}
    for names in _namespaces(exception):
        for name, value in names.items():
            if type(value).__name__ == "Mesh" and _top(type(value)) == "jax":
                found[name] = dict(value.shape)
    return found


def _scope(exception: BaseException) -> frozenset[str]:
    return frozenset(name for names in _namespaces(exception) for name in names)


def _namespaces(exception: BaseException) -> list[dict[str, Any]]:
    """Globals and locals of the user's lines, the outermost first."""
    found: dict[int, dict[str, Any]] = {}
    for tb in itertools.islice(_walk(exception.__traceback__), _MOST_FRAMES):
        if package_of(tb.tb_frame.f_code.co_filename) == "user":
            for names in (tb.tb_frame.f_globals, tb.tb_frame.f_locals):
                found[id(names)] = names
    return list(found.values())


def _walk(tb: Any) -> Iterator[Any]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _indexed(value: Any) -> Iterable[tuple[Any, Any]]:
    if type(value) is tuple:
        return list(enumerate(value))[:20]
    if type(value) is dict:
        return list(value.items())[:20]
    return ()


def _user_frame(tb: Any, name_file: Any) -> Frame:
    code = tb.tb_frame.f_code
    file, line = code.co_filename, tb.tb_lineno
    lines = linecache.getlines(file, tb.tb_frame.f_globals)
    source = lines[line - 1].strip() if lines and line and line <= len(lines) else None
    segment = _guarded(lambda: _segment(tb, lines), None)
    statement = _guarded(lambda: _statement(lines, line), None) if lines else None
    place = (name_file(file) if name_file is not None else None) or _place(file)
    return Frame("user", place, line, code.co_name, source, segment, statement or source)


def _warned(named: Frame) -> tuple[Any, ...]:
    """The user's line beneath the call of `warnings.warn` that is running, and the line that the warning names; the
    variables there, all names, definitions and sources."""
    running: Any = sys._getframe()
    while running is not None and running.f_globals.get("__name__") != "warnings":
        running = running.f_back
    while running is not None and package_of(running.f_code.co_filename) != "user":
        running = running.f_back
    if running is None:
        return (named,), {}, frozenset(), ({}, {})
    tb = SimpleNamespace(tb_frame=running, tb_lineno=running.f_lineno, tb_lasti=running.f_lasti)
    frames = (_user_frame(tb, None), *((named,) if named.package != "user" else ()))
    names = frozenset((*running.f_globals, *running.f_locals))
    return frames, _variables(tb, frames), names, _definitions_at(running, frames[0])


def _place(file: str) -> str:
    cell = re.search(r"<ipython-input-(\d+)-", file)
    if cell:
        return f"cell In[{cell.group(1)}]"
    if re.search(_CELL_FILE, file):
        return "a notebook cell"
    return file


def _segment(tb: Any, lines: list[str]) -> str | None:
    positions = next(itertools.islice(tb.tb_frame.f_code.co_positions(), tb.tb_lasti // 2, None), None)
    if positions is None or None in positions:
        return None
    first, last, start, end = positions
    picked = [text.encode() for text in lines[first - 1 : last]]
    if not picked:
        return None
    picked[-1] = picked[-1][:end]
    picked[0] = picked[0][start:]
    return textwrap.dedent(b"".join(picked).decode(errors="replace")).strip() or None


def _statement(lines: list[str], line: int) -> str | None:
    """The smallest statement around `line`; None if the source does not parse or is very long."""
    source = "".join(lines)
    best: ast.stmt | None = None
    todo: list[ast.AST] = [_parsed(source)]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
                best = node if best is None or _lines_of(node) <= _lines_of(best) else best
                todo.append(node)
            elif isinstance(node, ast.ExceptHandler | ast.match_case):
                todo.append(node)
    return _source_of(source, best) if best is not None else None


@lru_cache(maxsize=32)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source if len(source) < 500_000 else "")


def _source_of(source: str, node: ast.stmt) -> str | None:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    lines = source.splitlines()[first - 1 : node.end_lineno]
    if first == node.lineno:  # a statement may stand behind another on its line
        return textwrap.dedent(" " * node.col_offset + (ast.get_source_segment(source, node) or "")) or None
    return textwrap.dedent("\n".join(lines)) or None


def _definitions(exception: BaseException, frames: Sequence[Frame]) -> tuple[dict[str, str], dict[str, str]]:
    """Definitions and sources of the names in the user's innermost failing expression, and of the function around."""
    innermost = next((f for f in reversed(frames) if f.package == "user"), None)
    if innermost is None:
        return {}, {}
    code = [
        tb.tb_frame for tb in _walk(exception.__traceback__) if package_of(tb.tb_frame.f_code.co_filename) == "user"
    ][-1]
    return _definitions_at(code, innermost)


def _definitions_at(code: Any, innermost: Frame) -> tuple[dict[str, str], dict[str, str]]:
    sources = ["".join(linecache.getlines(code.f_code.co_filename, code.f_globals))]
    if re.search(_CELL_FILE, code.f_code.co_filename):
        # a notebook: the definition is often in another cell; IPython keeps their sources here
        cells = [file for file in list(linecache.cache) if re.search(_CELL_FILE, file)]
        sources += ["".join(linecache.getlines(file)) for file in reversed(cells[-50:])]
    read = [_guarded(partial(_definitions_in, source), ({}, {})) for source in sources]
    found: dict[str, str] = {}
    written: dict[str, str] = {}
    names = [call.function for call in innermost.calls if call.function.isidentifier()]
    names += [innermost.function, *re.findall(r"(?<![\w.])[A-Za-z_]\w*", innermost.segment or "")]
    for name in list(dict.fromkeys(names))[:12]:
        for defined, whole in read:
            if name in defined:
                found.setdefault(name, defined[name])
            for key in (name, f"{name}.defvjp", f"{name}.defjvp"):
                if key in whole:
                    written.setdefault(key, whole[key])
    return found, written


@lru_cache(maxsize=256)  # the cells of a session are read once, not at each card
def _definitions_in(source: str) -> tuple[dict[str, str], dict[str, str]]:
    """For each name that `source` binds by an assignment or a decorated `def` or `class`: the last such statement.
    And for each name that it defines by any `def` or `class`, for "name.defvjp" and "name.defjvp": that statement."""
    last: dict[str, ast.stmt] = {}
    whole: dict[str, ast.stmt] = {}
    for node in ast.walk(_parsed(source)):
        if not isinstance(node, ast.Assign | ast.Expr | ast.FunctionDef | ast.ClassDef) or _lines_of(node) >= 40:
            continue
        if isinstance(node, ast.Expr):
            call = node.value
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "defvjp":
                whole[ast.unparse(call.func)] = node
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            whole[node.name] = node
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Attribute) and decorator.attr == "defjvp":
                    whole[ast.unparse(decorator)] = node
        if isinstance(node, ast.Assign):
            bound = [t for target in node.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
            last.update({target.id: node for target in bound if isinstance(target, ast.Name)})
        elif node.decorator_list:
            last[node.name] = node
    return _texts(source, last), _texts(source, whole)


def _texts(source: str, nodes: Mapping[str, ast.stmt]) -> dict[str, str]:
    texts = {name: _source_of(source, node) for name, node in nodes.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno


@lru_cache(maxsize=1024)
def package_of(path: str) -> str:
    """To whom a file belongs: "user", "own", "stdlib", or the name of an installed package.

    >>> package_of("/opt/lib/python3.12/site-packages/jaxlib/xla_client.py")
    'jax'
    >>> package_of("<ipython-input-3-abcdef>")
    'user'
    """
    unified = path.replace("\\", "/")
    installed = re.search(r"/(?:site|dist)-packages/([^/]+?)(?:/|\.py$|\.so$|\.abi3)", unified)
    if re.search(r"/jax/(?:_src|experimental|interpreters|numpy|scipy|lax|nn)/|/jaxlib/", unified):
        return "jax"
    if os.path.isabs(path) and path.startswith(_OWN + os.sep):
        return "own"
    if installed:
        return {"jaxlib": "jax", "jaxpar_magic": "own"}.get(installed.group(1), installed.group(1))
    if unified.endswith((".pyx", ".pxd")) and "/" in unified:
        return unified.lstrip("./").split("/", 1)[0]  # Cython names its sources by where they stood when it compiled
    if unified.startswith("<frozen "):
        return "stdlib"
    if os.path.normcase(path).startswith(_STDLIB) or re.search(r"/lib/python3(\.\d+)?/|/Lib/\w+\.py$", unified):
        return "stdlib"
    return "user"


# -- values as plain data --------------------------------------------------------------------------


def _variables(tb: Any, frames: Sequence[Frame]) -> dict[str, Variable]:
    frame = tb.tb_frame
    user = next(f for f in reversed(frames) if f.package == "user")
    names: dict[str, None] = {}
    for text in (user.segment, user.statement, user.source):
        for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", text or ""):
            names.setdefault(name)
    local_names = frame.f_locals if frame.f_locals is not frame.f_globals else {}
    for name in local_names:
        if not name.startswith(("_", ".")):
            names.setdefault(name)
    found = {}
    for name in itertools.islice(names, _MOST_VARIABLES):
        for scope in (frame.f_locals, frame.f_globals):
            if name in scope:
                found[name] = describe(name, scope[name])
                break
    return found


def describe(name: str, value: Any) -> Variable:
    """`value` as a `Variable`. Reads attributes only of types known not to run anybody's code."""
    variable = _guarded(lambda: _describe(name, value), Variable(name, type(value).__name__))
    stale = _guarded(lambda: _is_stale(value), False)
    uses_jax = _guarded(lambda: _uses_jax(value), False)
    return replace(variable, stale=stale, uses_jax=uses_jax) if stale or uses_jax else variable


def _describe(name: str, value: Any) -> Variable:
    kind = type(value)
    if value is None or kind in (bool, int, float, complex):
        return Variable(name, kind.__name__, value=repr(value)[:40])
    if kind is str:
        return Variable(name, "str", length=len(value), value=repr(value) if len(value) <= 40 else None)
    if kind in (list, tuple):
        element = type(value[0]).__name__ if value else None
        return Variable(name, kind.__name__, length=len(value), element=element)
    if kind in (dict, set, frozenset, range):
        return Variable(name, kind.__name__, length=len(value))
    if _top(kind) in ("jax", "jaxlib", "numpy"):
        if hasattr(kind, "axis_names") and hasattr(kind, "axis_types"):
            axes = dict(zip(value.axis_names, value.axis_sizes))
            text = ", ".join(f"{axis!r}: {size}" for axis, size in axes.items())
            return Variable(name, kind.__name__, value=f"Mesh({text})", axes=axes)
        if kind.__name__ == "PartitionSpec":
            return Variable(name, kind.__name__, value=f"P({', '.join(map(repr, value))})")
        if kind.__name__ == "NamedSharding":
            spec = f"P({', '.join(map(repr, value.spec))})"
            return Variable(name, kind.__name__, value=spec, axes=dict(value.mesh.shape))
        tracer = any(parent.__name__ == "Tracer" for parent in kind.__mro__)
        source = value.aval if tracer else value
        if hasattr(type(source), "shape") and hasattr(type(source), "dtype"):
            shape = tuple(n if isinstance(n, int) else None for n in source.shape)
            element = None
            if kind.__name__ == "ndarray" and source.dtype == object and source.size:
                element = type(source.flat[0]).__name__
            devices = len(value.sharding.device_set) if kind.__name__ == "ArrayImpl" else None
            type_name = "tracer" if tracer else kind.__name__
            return Variable(name, type_name, shape, str(source.dtype), element=element, devices=devices)
    if kind.__name__ == "module":
        return Variable(name, "module", value=value.__name__)
    if kind.__name__ == "ufunc":
        return Variable(name, "ufunc", value=value.__name__, module="numpy")
    if callable(value):
        functions = ("function", "builtin_function_or_method", "_ArrayFunctionDispatcher")
        module = getattr(value, "__module__", None) if kind.__name__ in functions else None
        return Variable(name, kind.__name__, value=_function_name(value), module=module)
    return Variable(name, kind.__name__)


def _top(kind: type) -> str:
    return kind.__module__.split(".", 1)[0]


def _is_stale(value: Any) -> bool:
    jax = _jax.imported_jax()
    if jax is None or not _jax.live_platforms() or _top(type(value)) not in ("jax", "jaxlib"):
        return False
    if type(value).__name__ == "ArrayImpl":
        devices = value.sharding.device_set
    elif type(value).__name__ == "Mesh":
        devices = set(value.devices.flat)
    elif type(value).__name__ == "NamedSharding":
        devices = value.device_set
    else:
        return False
    return any(device not in jax.devices(device.platform) for device in devices)


def _uses_jax(value: Any, depth: int = 0) -> bool:
    kind = type(value)
    if _top(kind) in ("jax", "jaxlib"):
        return True
    if kind.__name__ == "module":
        return value.__name__.split(".", 1)[0] == "jax"
    if _top(kind) == "numpy":
        return kind.__name__ == "ndarray" and _shows_jax_memory(value)
    if depth > 2:
        return False
    if kind.__name__ == "method":
        return _uses_jax(value.__func__, depth + 1) or _uses_jax(value.__self__, depth + 1)
    if kind.__name__ == "function":
        code = value.__code__
        if package_of(code.co_filename) == "jax":
            return True
        inside = [cell.cell_contents for cell in value.__closure__ or ()]
        named = [value.__globals__.get(name) for name in code.co_names]
        return any(_uses_jax(v, depth + 1) for v in (*inside, *named) if v is not value)
    if kind.__name__ == "partial":
        return _uses_jax(value.func, depth + 1)
    held = _own_dict(value)
    return not issubclass(kind, type) and any(_uses_jax(v, depth + 2) for v in list(held.values())[:50])


def _shows_jax_memory(array: Any) -> bool:
    """Whether a numpy array is a read-only view of a JAX array, as np.asarray and device_get give it."""
    if array.flags.writeable:
        return False
    base = array.base
    for _ in range(10):
        if type(base) is memoryview:
            return _top(type(base.obj)) in ("jax", "jaxlib")
        if type(base).__name__ == "PyCapsule":
            return _jax.imported_jax() is not None  # device_get: jaxlib keeps the memory alive by a capsule
        if type(base).__name__ != "ndarray":
            return False
        base = base.base
    return False


def _own_dict(value: Any) -> dict[str, Any]:
    """The object's attributes, past any `__getattr__` of the user's."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _function_name(value: Any) -> str | None:
    # only real functions and jax's wrappers: `__name__` of anything else may be computed by the user
    name = _own_dict(value).get("__name__")
    if name is None and type(value).__name__ in (
        "function",
        "_ArrayFunctionDispatcher",
        "builtin_function_or_method",
        "method",
        "type",
    ):
        name = value.__name__
    if name is None and type(value).__module__.split(".", 1)[0] in ("jax", "jaxlib"):
        name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else None


# -- source text -----------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _calls(text: str | None) -> tuple[Call, ...]:
    """Every call in a piece of Python, the outermost first; empty if it does not parse."""
    if not text:
        return ()
    tree, source = parse_fragment(text)
    if tree is None:
        return ()
    found = []
    write = _writer(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function, args = write(node.func), tuple(write(arg) for arg in node.args)
            keywords = {k.arg: write(k.value) for k in node.keywords if k.arg is not None}
            through = None
            if re.fullmatch(r"(functools\.)?partial", function) and args and re.fullmatch(r"[\w.]+", args[0]):
                through, function, args = function, args[0], args[1:]
            found.append(Call(write(node), function, args, keywords, through))
    return tuple(found)


def _writer(source: str) -> Callable[[ast.expr], str]:
    return lambda node: ast.get_source_segment(source, node) or ast.unparse(node)


def parse_fragment(text: str) -> tuple[ast.AST | None, str]:
    """Parse a line out of its context: a `return`, the head of an `if`, a decorator."""
    text = textwrap.dedent(text).strip()
    attempts = [text]
    if text.startswith("elif "):
        attempts = [text[2:]]
    attempts += [attempt + "\n    pass" for attempt in attempts if attempt.endswith(":")]
    if text.startswith("@"):
        attempts.append(text + "\ndef _(): pass")
    for attempt in attempts:
        for source in (attempt, "def _():\n" + textwrap.indent(attempt, "    ")):
            try:
                return ast.parse(source), source
            except (SyntaxError, ValueError):
                continue
    return None, text


def as_typed(source: str | None) -> str | None:
    """A line of a cell with its magic as the user typed it, not as IPython translated it.

    >>> as_typed("get_ipython().run_line_magic('parmap', 'f xs')")
    '%parmap f xs'
    """
    call = re.search(r"get_ipython\(\)\.run_(line|cell)_magic\((.*)\)\s*$", source or "", re.S)
    if source is None or call is None:
        return source
    try:
        name, line, *_ = ast.literal_eval(f"[{call.group(2)}]")
    except (ValueError, SyntaxError):
        return source
    sign = "%" if call.group(1) == "line" else "%%"
    return f"{source[: call.start()]}{sign}{name} {line}".rstrip()


def _frame_of_text(file: str, line: int | None, function: str, source: str | None, segment: str | None = None) -> Frame:
    source = source.strip() if source else None
    package = package_of(file)
    if package != "user":
        return Frame(package, file, line, function)
    return Frame("user", _place(file), line, function, source, segment or None, source)


# -- the process -----------------------------------------------------------------------------------


def _environment() -> Environment:
    shell = sys.modules.get("IPython.core.interactiveshell")
    interactive = shell is not None and shell.InteractiveShell.initialized()
    flags = os.environ.get("XLA_FLAGS")
    jax = _jax.imported_jax()
    if jax is None:
        return Environment(xla_flags=flags, interactive=interactive)
    running = bool(_jax.live_platforms())  # asking JAX for devices would start a backend
    return Environment(
        jax=_guarded(_jax.jax_version, None),
        devices=_guarded(jax.device_count, None) if running else None,
        platform=_guarded(jax.default_backend, None) if running else None,
        x64=_guarded(lambda: bool(jax.config.jax_enable_x64), None),
        xla_flags=flags,
        platforms=_guarded(lambda: jax.config.jax_platforms or None, None),
        interactive=interactive,
    )
