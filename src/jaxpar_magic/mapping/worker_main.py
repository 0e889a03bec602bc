"""What runs inside a worker process, and what both ends of its connection share.

A worker executes this file alone: it imports only the standard library and cloudpickle, so that it starts
quickly, works wherever `sys.path` of the parent leads, and leaves jax and numpy to the user's function.

Messages are lists of byte strings: a pickled header tuple, then the payload's pickle and the memory of its
large arrays, which is sent and received in place.

    parent → worker                        worker → parent
                                           "hello", once, when it is up
    "begin" + function (unless it has it)  "ready", or "stale", or "unloadable"
    "classes" that items are made of       nothing, or "unloadable"
    "chunk" + items                        "output" …, then "done" + results, or "unloadable"

The second field of what a worker sends is the number of the call that it was made ready for.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import io
import linecache
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import cloudpickle

# An idle worker ends by itself after this time, so that a forgotten notebook gives its memory back.
IDLE_SECONDS = 300.0

# Layout of the small file that a worker shares with its parent: the index of the item that it works on, and
# whether to stop after it. The rest of the file is Python's own report of a crash.
CURRENT_ITEM = struct.Struct("<q")
NO_ITEM = -1
STOP = CURRENT_ITEM.size  # the byte behind it
STATE_BYTES = 64

_LENGTH = struct.Struct("<Q")
_OUT_OF_BAND = 1 << 16  # arrays from this size on are sent from, and received into, their own memory


def send(connection: socket.socket, header: tuple, *parts: Any) -> None:
    """Send one message: a header, and any number of bytes-like parts."""
    blobs = [pickle.dumps(header, protocol=5), *parts]
    lengths = [_LENGTH.pack(len(blobs)), *(_LENGTH.pack(memoryview(blob).nbytes) for blob in blobs)]
    connection.sendall(b"".join(lengths))
    for blob in blobs:
        connection.sendall(blob)


def receive(connection: socket.socket) -> tuple[tuple, list[bytearray]]:
    """The next message. Raises EOFError when the other end is gone."""
    (count,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    lengths = _read(connection, count * _LENGTH.size)
    header, *parts = [_read(connection, n) for (n,) in _LENGTH.iter_unpack(lengths)]
    return pickle.loads(header), parts


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = connection.recv_into(rest)
        if count == 0:
            raise EOFError
        rest = rest[count:]
    return data


def pack(obj: Any, make_pickler: Callable[..., Any]) -> list[Any]:
    """Pickle `obj` into parts: the pickle, then the memory of large arrays, which is not copied."""
    buffers = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < _OUT_OF_BAND:
            return True
        buffers.append(memory)
        return False

    stream = io.BytesIO()
    make_pickler(stream, protocol=5, buffer_callback=keep_in_band).dump(obj)
    return [stream.getvalue(), *buffers]


class Unpickler(pickle.Unpickler):
    """Unpickles parts; a class that both ends know arrives as its number."""

    def __init__(self, parts: list[Any], classes: dict[int, type]):
        super().__init__(io.BytesIO(parts[0]), buffers=parts[1:])
        self._classes = classes

    def persistent_load(self, number: int) -> type:
        return self._classes[number]


# -- what cannot be pickled, and where it hides ------------------------------------------------------------


def find_unpicklable(obj: Any, name: str) -> tuple[str, Any]:
    """The innermost part of `obj` that cannot be pickled, and how it is reached: `("config.lock", <lock>)`.

    `name` is what the user calls `obj`. Variables that a function captures go by their own names.
    """
    seen: set[int] = set()
    while id(obj) not in seen and len(seen) < 20:
        seen.add(id(obj))
        for part_name, part in _parts(obj, name):
            if not _can_pickle(part):
                name, obj = part_name, part
                break
    return name, obj


def _can_pickle(obj: Any) -> bool:
    try:
        cloudpickle.dumps(obj, protocol=5)
    except Exception:
        return False
    return True


def _parts(obj: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, types.FunctionType):
        code = obj.__code__
        for variable, cell in zip(code.co_freevars, obj.__closure__ or ()):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                yield variable, cell.cell_contents
        for variable in _global_names(code):
            if variable in obj.__globals__:
                yield variable, obj.__globals__[variable]
        for default in obj.__defaults__ or ():
            yield f"a default of {name}", default
        for key, default in (obj.__kwdefaults__ or {}).items():
            yield f"the default of {key} in {name}", default
    elif isinstance(obj, types.MethodType):
        yield f"{name}.__self__", obj.__self__
        yield name, obj.__func__
    elif isinstance(obj, functools.partial):
        yield name, obj.func
        yield from _parts(obj.args, f"{name}.args")
        yield from _parts(obj.keywords, f"{name}.keywords")
    elif isinstance(obj, dict):
        for key, value in obj.items():
            yield f"{name}[{key!r}]", value
    elif isinstance(obj, list | tuple):
        for index, value in enumerate(obj):
            yield f"{name}[{index}]", value
    elif isinstance(obj, set | frozenset):
        for value in obj:
            yield f"an element of {name}", value
    else:
        if hasattr(obj, "__wrapped__"):  # a decorated or jitted function
            yield name, obj.__wrapped__
        for attribute, value in list(getattr(obj, "__dict__", {}).items()):
            yield f"{name}.{attribute}", value
        if type(obj).__module__ == "__main__":
            yield type(obj).__qualname__, type(obj)


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def type_name(kind: type) -> str:
    """`ValueError`, `scipy.linalg.LinAlgError`: a class as a user would write it."""
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """`str(error)`, also when the exception's own `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown: __str__ failed)"


# -- the worker itself -------------------------------------------------------------------------------------


class _Output(io.RawIOBase):
    """What is written to sys.stdout or sys.stderr, on its way to the parent."""

    def __init__(self, worker: _Worker, stream: str, descriptor: int):
        self._worker = worker
        self._stream = stream
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:  # for subprocesses that are given sys.stdout
        return self._descriptor

    def write(self, data: Any) -> int:
        self._worker.send("output", self._stream, bytes(data).decode("utf-8", "replace"))
        return len(data)


class ItemRunner:
    """A function that arrived here, and what its items are made of. Calls it for item after item."""

    def __init__(self) -> None:
        self.function: Any = None
        self.classes: dict[int, type] = {}
        self.stop_at_failure = False

    def add_classes(self, sources: dict, parts: list) -> None:
        self._show_sources(sources)
        _, classes = Unpickler(parts, self.classes).load()
        self.classes.update(classes)

    def run_items(self, parts: list) -> tuple[list[tuple], list[Any]]:
        """(an entry for each item that ran, the parts of what they gave): results or exceptions."""
        items = Unpickler(parts, self.classes).load()
        items.reverse()
        numbers = {id(kind): number for number, kind in self.classes.items()}
        entries: list[tuple] = []
        payload: list[Any] = []
        while items:
            index, args, kwargs = items.pop()  # and let it go when it is done: chunks can be large
            if self._stop_before(index):
                break
            entry, result_parts = self.call_function(index, args, kwargs, numbers)
            del args, kwargs
            entries.append((*entry, len(result_parts)))
            payload += result_parts
            if self.stop_at_failure and entry[0] != "result":
                break
        return entries, payload

    def _stop_before(self, index: int) -> bool:
        return False

    def call_function(self, index: int, args: tuple, kwargs: dict, numbers: dict[int, int]) -> tuple[tuple, list]:
        make_pickler = functools.partial(ResultPickler, numbers)
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:  # SystemExit too: it is the item that fails, not the worker
            if self.ends_chunk(error):
                raise
            return ("error", index, *told(error)), packed_error(error, make_pickler)
        finally:
            self._flush_output()
        try:
            return ("result", index), pack(result, make_pickler)
        except Exception as error:
            name, part = find_unpicklable(result, "the result")
            return ("unsendable", index, name, type_name(type(part)), message_of(error)), []

    def ends_chunk(self, error: BaseException) -> bool:
        """Whether an exception ends the chunk, instead of being the item's."""
        return False

    def _flush_output(self) -> None:
        """What the function printed is sent before what it returned."""

    def _show_sources(self, sources: dict[str, list[str]]) -> None:
        # Cells have no file: with their lines here, tracebacks and warnings can quote them.
        for name, lines in sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


class _Worker(ItemRunner):
    def __init__(self, connection: socket.socket, state: mmap.mmap):
        super().__init__()
        self.connection = connection
        self.state = state
        # Not sys.stdout and sys.stderr later on, which the function may replace.
        self.streams = [
            io.TextIOWrapper(
                cast(Any, _Output(self, name, descriptor)),
                encoding="utf-8",
                errors="backslashreplace",
                line_buffering=True,
            )
            for name, descriptor in (("stdout", 1), ("stderr", 2))
        ]
        self.sending = threading.Lock()  # threads of the user's function may print
        self.call = 0
        self.digest: bytes | None = None
        self.function_classes: dict[int, type] = {}
        self.loaded_files: dict[str, int] = {}

    def send(self, kind: str, *arguments: Any, parts: list[Any] | None = None) -> None:
        with self.sending:
            send(self.connection, (kind, self.call, *arguments), *(parts or ()))

    def serve(self) -> None:
        """Answer messages until the parent closes the connection or leaves it idle."""
        handlers: dict[str, Callable] = {
            "begin": self.begin,
            "classes": self.add_classes,
            "chunk": self.run_chunk,
        }
        self.send("hello")
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        while poller.poll(IDLE_SECONDS * 1000):
            try:
                header, parts = receive(self.connection)
            except (EOFError, ConnectionError):
                return
            kind, *arguments = header
            try:
                handlers[kind](*arguments, parts)
            except BaseException as error:  # rebuilding what arrived can run and fail in any user code
                self.send("unloadable", kind, *told(error))

    def begin(
        self,
        call: int,
        digest: bytes,
        directory: str | None,
        path: list[str],
        sources: dict[str, list[str]],
        stop_at_failure: bool,
        parts: list,
    ) -> None:
        self.call = call
        if self._loaded_files_changed():
            self.send("stale")
            return
        self.stop_at_failure = stop_at_failure
        sys.path[:] = path
        if directory is not None:
            os.chdir(directory)
        self._show_sources(sources)
        if digest != self.digest:
            # Forget first: two functions' captured arrays may not fit into memory together.
            self.digest, self.function, self.function_classes, self.classes = None, None, {}, {}
            self.function, self.function_classes = Unpickler(parts, self.classes).load()
            self.digest = digest
        self.classes = dict(self.function_classes)
        self._note_loaded_files()
        self.send("ready")

    def run_chunk(self, parts: list) -> None:
        entries, payload = self.run_items(parts)
        CURRENT_ITEM.pack_into(self.state, 0, NO_ITEM)
        self._note_loaded_files()
        self.send("done", entries, parts=payload)

    def _stop_before(self, index: int) -> bool:
        if self.state[STOP]:
            return True
        CURRENT_ITEM.pack_into(self.state, 0, index)
        return False

    def _flush_output(self) -> None:
        for stream in self.streams:
            with contextlib.suppress(ValueError):  # the function closed it
                stream.flush()

    def _note_loaded_files(self) -> None:
        for file in _module_files():
            if file not in self.loaded_files:
                self.loaded_files[file] = _modified(file)

    def _loaded_files_changed(self) -> bool:
        """Whether a module was edited since this worker imported it: then a new worker must do the work."""
        return any(_modified(file) != time for file, time in self.loaded_files.items())


class ResultPickler(cloudpickle.Pickler):
    """Sends a class that came from the parent back as its number.

    By value it would arrive as a copy, and cloudpickle would put the copy's methods, with copies of their
    globals, into the user's own class.
    """

    def __init__(self, numbers: dict[int, int], *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj))


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def told(error: BaseException) -> tuple[str, str, str]:
    """(type, message, the user's part of the traceback) of an exception, as text."""
    frames = error.__traceback__
    while frames is not None and os.path.abspath(frames.tb_frame.f_code.co_filename).startswith(_OURS):
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames))
    return type_name(type(error)), message_of(error), trace


def packed_error(error: BaseException, make_pickler: Callable[..., Any]) -> list[Any]:
    """The parts of an exception; none if it cannot be pickled."""
    try:
        return pack(error, make_pickler)
    except Exception:
        return []


def _module_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        # From __dict__: getattr would make a lazy module load.
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            yield file


def _modified(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _end_with_parent(lifeline: socket.socket, parent: int) -> None:
    """See to it that this process, and all that it starts, ends when its parent does, however that dies."""
    if hasattr(fcntl, "F_SETSIG"):
        # Linux itself kills the whole process group when the other end closes, which happens only then:
        # nothing is ever sent. No thread of ours could do it while C code (numba, …) holds the GIL.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_watch_parent, args=(lifeline, parent), daemon=True).start()


def _watch_parent(lifeline: socket.socket, parent: int) -> None:
    poller = select.poll()
    poller.register(lifeline, 0)  # no event of its own: hang-up is always reported
    # A forked copy of the parent may hold the other end too: then only the parent's number tells.
    while os.getppid() == parent:
        events = poller.poll(1000)
        if any(event & select.POLLHUP for _, event in events):
            break
        if events:  # the user's function closed files that are not its own
            time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def main(connection_fd: int, lifeline_fd: int, state_fd: int, parent: int) -> None:
    """Serve the parent process at the other end of the socket `connection_fd`."""
    # Jupyter's interrupt may reach every process of the kernel: it is for the parent to end the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in (connection_fd, lifeline_fd, state_fd):
        os.set_inheritable(descriptor, False)
    lifeline = socket.socket(fileno=lifeline_fd)
    _end_with_parent(lifeline, parent)
    connection = socket.socket(fileno=connection_fd)
    faulthandler.enable(file=state_fd)
    worker = _Worker(connection, mmap.mmap(state_fd, STATE_BYTES))

    inherited = sys.stdout, sys.stderr

    def leave_connection() -> None:
        # A forked child of the user's function must not write into the middle of our messages.
        sys.stdout, sys.stderr = inherited
        connection.close()

    os.register_at_fork(after_in_child=leave_connection)
    sys.stdout, sys.stderr = worker.streams
    with contextlib.suppress(ConnectionError):  # the parent went while this worker answered
        worker.serve()
    sys.stdout, sys.stderr = inherited
