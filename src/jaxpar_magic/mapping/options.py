"""The options of a map, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, did_you_mean
from .choices import CHECK, ON_ERROR, REMAINDER
from .planner import check_strategy

_CHOICES = {"remainder": REMAINDER, "on_error": ON_ERROR, "check": (None, *CHECK)}


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
        if isinstance(self.static, str):
            object.__setattr__(self, "static", (self.static,))
