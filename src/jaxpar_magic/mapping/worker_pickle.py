"""What the parent sends to worker processes: the function, classes of the notebook, items."""

from __future__ import annotations

import functools
import hashlib
import io
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

from ..errors import WorkerError
from .worker_main import find_unpicklable, message_of, pack, type_name


class Outbound:
    """What one call sends to its workers: the function, and the classes that items are made of.

    A class that travels by value is sent once and called by its number afterwards, in both directions:
    sent with each item it would take its methods' globals along every time, and a result would bring a copy.
    """

    def __init__(self) -> None:
        self.classes: dict[int, type] = {}  # by number
        self.numbers: dict[int, int] = {}  # id of a class → its number
        self.undefined: dict[int, type] = {}  # numbered, but not sent yet
        self.defining: dict[int, type] = {}  # being pickled by value now
        self.sources: dict[str, list[str]] = {}  # of files that exist only here: cells
        self.function_parts: list[Any] = []
        self.digest = b""

    @classmethod
    def of(cls, function: Callable[..., Any], along: Any = None, where: str = "worker processes") -> Outbound:
        """Pickle the function, once for all workers, as a pair with what goes `along` if there is something.

        Raises WorkerError naming what cannot be pickled.
        """
        outbound = cls()
        try:
            outbound.function_parts = outbound._pack_defining(function if along is None else (function, along), {})
        except Exception as error:
            name = getattr(function, "__name__", type(function).__name__)
            raise WorkerError(
                f"The function {name!r} cannot be sent to {where}: {explain_unpicklable(function, name, error)}.",
                next_step=advice(find_unpicklable(function, name)[1]),
                argument="function",
            ) from error
        # The same function in the same state makes the same bytes: workers that have it need no other copy.
        digest = hashlib.blake2b()
        for part in outbound.function_parts:
            digest.update(part)
        outbound.digest = digest.digest()
        return outbound

    def pack_items(self, items: list) -> tuple[list[Any], list[Any] | None]:
        """The items' parts, and the parts of classes that they need and that have not been packed before."""
        try:
            parts = pack(items, functools.partial(_OutboundPickler, self))
            if not self.undefined:
                return parts, None
            return parts, self._pack_defining(list(self.undefined.values()), self.undefined)
        except Exception:
            for number, kind in self.undefined.items():
                del self.classes[number], self.numbers[id(kind)]
            raise
        finally:
            self.undefined = {}

    def _pack_defining(self, obj: Any, classes: dict[int, type]) -> list[Any]:
        self.defining = classes
        try:
            # `classes` grows while `obj` is pickled. Pickled behind it, it refers to what is there already.
            return pack((obj, classes), functools.partial(_OutboundPickler, self, define=True))
        finally:
            self.defining = {}

    def reference(self, kind: type, define: bool) -> int | None:
        """The number by which a class travels; None if it is to be pickled here and now."""
        number = self.numbers.get(id(kind))
        if number is None:
            if not _by_value(kind):
                return None
            number = len(self.classes)
            self.classes[number] = kind
            self.numbers[id(kind)] = number
            (self.defining if define else self.undefined)[number] = kind
        return None if number in self.defining else number

    def note_source(self, file: str) -> None:
        if file not in self.sources and not os.path.exists(file):
            self.sources[file] = linecache.getlines(file)


class _OutboundPickler(cloudpickle.Pickler):
    def __init__(self, outbound: Outbound, *args: Any, define: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._outbound = outbound
        self._define = define

    def persistent_id(self, obj: Any) -> int | None:
        if issubclass(type(obj), type):
            return self._outbound.reference(obj, self._define)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is types.CodeType:
            self._outbound.note_source(obj.co_filename)
            # cloudpickle ≥ 3.1 leaves the file's name out, and with it the user's lines from tracebacks.
            construct, arguments = self.dispatch_table[types.CodeType](obj)
            return construct, tuple(obj.co_filename if a == "<dynamic-code>" else a for a in arguments)
        return super().reducer_override(obj)


def _by_value(kind: type) -> bool:
    """Whether cloudpickle sends the class itself: workers cannot import it under its name."""
    if kind.__module__ == "__main__":
        return True
    if kind.__module__ == "builtins":  # such as NoneType, for which pickle has its own ways
        return False
    found = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not kind


def explain_unpicklable(obj: Any, name: str, error: Exception) -> str:
    """Which part of `obj`, called `name`, cannot travel: a clause for a message."""
    part_name, part = find_unpicklable(obj, name)
    if part is obj:
        return message_of(error)
    return f"{part_name}, of type {type_name(type(part))}, cannot be pickled"


def advice(part: Any) -> str:
    """What to do about a part that cannot be pickled."""
    if isinstance(part, types.GeneratorType):
        return "turn the generator into a list first."
    if isinstance(part, io.IOBase):
        return "use the file's path, and open it inside the function."
    return "create it inside the function, from what can be pickled."
