"""What a user sets once instead of in each line: `%config JaxparMagics`, ipython_config.py, environment variables."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from traitlets import TraitType
from traitlets.config import Configurable

from ..errors import OptionError, did_you_mean
from ..mapping.choices import STRATEGIES

EXPLANATIONS = ("auto", "brief", "full", "off")
_YEAR = 3e7  # in seconds: nobody waits that long, and a thread cannot


class Setting(TraitType[Any, Any]):
    """A setting that is checked when it is set. `check` returns the value to keep, or raises ValueError.

    A value that cannot be used raises OptionError, one line that says why; while the extension is being loaded, it is
    named and left out instead, since loading must not fail for it.
    """

    def __init__(self, check: Callable[[Any], Any], default: Any, help: str):
        super().__init__(default, help=help)
        self.check = check
        self.tag(config=True)

    def validate(self, obj: Any, value: Any) -> Any:
        try:
            return self.check(value)
        except ValueError as problem:
            if not obj.ready:
                _ignored(f"c.JaxparMagics.{self.name} = {value!r}", problem)
                return self.default_value
            raise OptionError(f"JaxparMagics.{self.name} = {value!r}: {problem}", argument=self.name) from None


def _one_of(known: Iterable[str]) -> Callable[[Any], str]:
    names = list(known)

    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"not one of {', '.join(names)}.{did_you_mean(str(value), names)}")
        return value

    return check


def _devices(value: Any) -> int | None:
    if value in (None, "all", "None"):
        return None
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError("needs a whole number from 1 on, or 'all'.")
    return number


def _seconds(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0:
        raise ValueError("needs seconds, a number from 0 on, or inf for never.")
    return number if number < _YEAR else math.inf


def _memory(value: Any) -> Any:
    if value in (None, "None"):
        return None
    from ..mapping.memory import parse_memory

    try:
        parse_memory(value)
    except OptionError as error:
        raise ValueError(error.problem.partition(": ")[2]) from None
    return value


class JaxparMagics(Configurable):
    """Defaults of %parmap and %jaxexplain.

    Each can be set by `%config JaxparMagics.NAME = VALUE`, by `c.JaxparMagics.NAME = VALUE` in ipython_config.py, and
    by an environment variable JAXPAR_NAME, which is read when the extension is loaded and goes before the file.
    """

    strategy = Setting(_one_of(STRATEGIES), "auto", f"The strategy without -s: {', '.join(STRATEGIES)}.")
    devices = Setting(_devices, None, "How many devices, threads or workers without -d; None is all.")
    memory = Setting(_memory, None, "Bound on what a map holds without --memory: '2GB', '50%'; None is 80 %.")
    explanations = Setting(
        _one_of(EXPLANATIONS),
        "auto",
        "Cards under tracebacks: brief, full, off, or auto: brief, and in full when the same error comes again.",
    )
    progress_delay = Setting(_seconds, 2.0, "Seconds before a long map shows its progress; inf is never.")

    ready = False  # whether loading is over

    def __init__(self, shell: Any):
        super().__init__(parent=shell)
        for name, trait in self.traits(config=True).items():
            variable = f"JAXPAR_{name.upper()}"
            text = os.environ.get(variable, "").strip()
            try:
                if text:
                    setattr(self, name, trait.check(text))  # type: ignore[attr-defined]
            except ValueError as problem:
                _ignored(f"{variable}={text}", problem)
        self.ready = True


def _ignored(what: str, problem: Exception) -> None:
    print(f"jaxpar_magic: {what} is ignored: {problem}", file=sys.stderr)
