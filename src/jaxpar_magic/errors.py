"""The errors that this package raises on purpose.

Each says in a line or two what was wrong, what was got, what is needed and what to do next. In IPython
they render as those lines alone (`_render_traceback_`): our own frames tell a user nothing.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class JaxparError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    problem:
        One sentence: what is wrong, naming the argument, what was got and what is needed.
    next_step:
        What to do now, as a sentence or a line of code.
    argument:
        Name of the option or argument concerned, for programs that read the error.

    Examples
    --------
    >>> str(JaxparError("devices=0: needs a whole number from 1 to 256.", next_step="devices=2"))
    'devices=0: needs a whole number from 1 to 256.\\nNext: devices=2'
    """

    def __init__(self, problem: str, *, next_step: str | None = None, argument: str | None = None):
        self.problem = problem
        self.next_step = next_step
        self.argument = argument
        super().__init__(problem if next_step is None else f"{problem}\nNext: {next_step}")

    def __reduce__(self):  # the default calls the class with `args` alone, which lacks the fields
        return (_rebuild, (type(self), self.args, self.__dict__))

    def _render_traceback_(self) -> list[str]:
        # IPython's hook: these lines stand in place of a traceback, in a real error output.
        parts = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]
        if self.__cause__ is not None:
            parts.append("Caused by " + "".join(traceback.format_exception_only(self.__cause__)))
        return "\n".join(parts).splitlines()


def _rebuild(kind, args, fields):
    error = kind.__new__(kind, *args)
    error.args = args  # OSError, a base of MapTimeout, leaves them to its __init__
    error.__dict__.update(fields)
    return error


class OptionError(JaxparError, ValueError):
    """An option or argument has a value that cannot be used. Nothing has been changed or run."""


class InputError(JaxparError, ValueError):
    """The inputs of a map cannot be mapped as they are (lengths, shapes, types)."""


class DeviceError(JaxparError, RuntimeError):
    """Devices cannot be configured as asked. The configuration is as it was before."""


class WorkerError(JaxparError, RuntimeError):
    """A worker process ended or could not do its part (killed, out of memory, not picklable)."""


class ClusterError(JaxparError, RuntimeError):
    """A cluster cannot be started, reached or used as asked (missing launcher, engines that differ or are gone)."""


class RemoteTraceback(Exception):
    """The traceback of a worker process, as the `__cause__` of the exception that it sent."""

    def __init__(self, text: str):
        self.tb = text
        super().__init__(text)

    def __str__(self) -> str:
        return "\n" + self.tb


class CheckpointError(JaxparError, RuntimeError):
    """A checkpoint folder cannot be used: it belongs to another map, is damaged, or cannot be written."""


class OutputError(JaxparError, RuntimeError):
    """The file of a result (`out_file`) cannot be written. What stood in its place is unchanged."""


class MapTimeout(JaxparError, TimeoutError):
    """A map took longer than its timeout. What was finished is kept for `resume`."""


class UnsupportedError(JaxparError, RuntimeError):
    """This JAX, Python or IPython version, or this function, cannot do what was asked."""


class JaxparWarning(UserWarning):
    """What a user would otherwise learn too late about a map that ran (Python API only)."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like `word`, or None. Used for every "did you mean"."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence to append to a message: `` Did you mean 'vmap'?`` or the empty string."""
    name = nearest(word, known)
    return f" Did you mean {name!r}?" if name else ""
