"""The options of a map, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, did_you_mean
from .choices import CHECK, ON_ERROR, REMAINDER
from .memory import parse_memory
from .planner import check_strategy
from .sinks import check_out_file
from .strategies import PYTHON

_CHOICES = {"remainder": REMAINDER, "on_error": ON_ERROR, "check": (None, *CHECK)}


# What means nothing to one program over all items: option → (its usual value, why).
_NOT_WITH_SPMD: dict[str, tuple[Any, str]] = {
    "devices": (None, "the program uses all devices of all engines"),
    "batch_size": (None, "all items are in one program"),
    "chunk_size": (None, "all items are in one program, so that collectives see them all"),
    "out_axes": (0, "the items of a result lie along axis 0"),
    "remainder": ("pad", "any number of items is computed as it is, whatever the number of devices"),
    "on_error": ("raise", "items run together, and fail together"),
    "checkpoint": (None, "there are no chunks to keep"),
    "resume": (False, "there are no chunks to go on from"),
    "memory": (None, "all items are in memory at once, spread over the engines"),
    "out_file": (None, "the result is not written chunk by chunk; keep_sharded leaves it on the engines"),
}


@dataclass(frozen=True)
class MapOptions:
    """See `parmap` for what each means."""

    strategy: str = "auto"
    devices: int | None = None
    batch_size: int | None = None
    chunk_size: int | None = None
    in_axes: Any = 0
    out_axes: Any = 0
    static: Sequence[str] = ()
    key: Any = None
    remainder: str = "pad"
    on_error: str = "raise"
    check: str | None = None
    checkpoint: str | os.PathLike | None = None
    resume: bool = False
    timeout: float | None = None
    memory: int | float | str | None = None
    input_file: str | os.PathLike | None = None
    out_file: str | os.PathLike | None = None
    spmd: bool = False
    keep_sharded: bool = False

    def __post_init__(self) -> None:
        check_strategy(self.strategy)
        for name in ("devices", "batch_size", "chunk_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name}={value!r}: needs a whole number from 1 on.", argument=name)
        timeout = self.timeout
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
            raise OptionError(f"timeout={timeout!r}: needs seconds, a number above 0.", argument="timeout")
        if self.checkpoint is not None and self.on_error == "skip":
            raise OptionError(
                "checkpoint and on_error='skip' do not go together: chunks with left-out items cannot be kept.",
                argument="checkpoint",
            )
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                listed = ", ".join(str(k) for k in known if k is not None)
                raise OptionError(
                    f"{name}={value!r}: not one of {listed}.{did_you_mean(str(value), [k for k in known if k])}",
                    argument=name,
                )
        self._check_spmd()
        if self.memory is not None:
            if self.strategy in PYTHON:
                raise OptionError(
                    f"memory: bounds what JAX holds, and strategy={self.strategy!r} runs plain Python.",
                    argument="memory",
                    next_step="out_file writes results as they come, and inputs may be files",
                )
            if not isinstance(self.memory, float):  # a share that has been read already
                object.__setattr__(self, "memory", parse_memory(self.memory))
        if self.out_file is not None:
            self._check_out_file()
        if isinstance(self.static, str):
            object.__setattr__(self, "static", (self.static,))

    def _check_spmd(self) -> None:
        if self.keep_sharded and not self.spmd:
            raise OptionError(
                "keep_sharded: only the results of spmd=True can stay on the engines.", argument="keep_sharded"
            )
        if not self.spmd:
            return
        if self.strategy != "cluster":
            raise OptionError(
                f"spmd: one program over all engines of a cluster; strategy={self.strategy!r} has none.",
                argument="spmd",
                next_step="strategy='cluster'",
            )
        for name, (usual, why) in _NOT_WITH_SPMD.items():
            if getattr(self, name) != usual:
                raise OptionError(f"{name} and spmd do not go together: {why}.", argument=name)
        if self.keep_sharded and self.check is not None:
            raise OptionError(
                "check and keep_sharded do not go together: the results stay on the engines, unseen.", argument="check"
            )

    def _check_out_file(self) -> None:
        assert self.out_file is not None
        if self.on_error == "skip":
            raise OptionError(
                "out_file and on_error='skip' do not go together: left-out items would leave holes in the file.",
                argument="out_file",
            )
        if self.out_axes != 0:
            raise OptionError(
                f"out_file: writes items along axis 0, and out_axes={self.out_axes!r} wants them elsewhere.",
                argument="out_file",
                next_step="out_axes=0, and np.moveaxis on the result",
            )
        object.__setattr__(self, "out_file", check_out_file(self.out_file))
