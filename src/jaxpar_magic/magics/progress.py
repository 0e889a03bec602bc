"""Progress of a long map, shown in place: a bar in a notebook, a line in a terminal, nothing anywhere else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any

from IPython.display import display

from ..document import Document, Meter
from ..mapping.monitor import Display, Progress


def progress_display(shell: Any) -> Callable[[], Display] | None:
    """What makes the display for this front end, or None where nobody watches (nbclient, scripts, pipes)."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        # A front end with a person behind it can be asked for input; nbclient and papermill cannot.
        return NotebookDisplay if getattr(kernel, "_allow_stdin", False) else None
    return TerminalDisplay if sys.stderr.isatty() else None


def _meter(progress: Progress) -> Document:
    return Document(
        [Meter(f"parmap: {progress.line()}", progress.done or None if progress.total else None, progress.total)]
    )


class NotebookDisplay:
    """An HTML bar, updated in place through a display id; needs no ipywidgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, progress: Progress) -> None:
        data = dict(_meter(progress)._repr_mimebundle_())
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def say(self, line: str) -> None:
        print(line)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)  # the report line says the rest


class TerminalDisplay:
    """One line on standard error that overwrites itself."""

    def __init__(self) -> None:
        self._width = 0

    def update(self, progress: Progress) -> None:
        from ..render.text import render  # deferred: nothing of it is needed while the extension loads

        # One line, cut off where the window ends: a line that wraps could not be overwritten.
        line = render(_meter(progress), 1000)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def say(self, line: str) -> None:
        self.close()
        sys.stderr.write(line + "\n")

    def close(self) -> None:
        sys.stderr.write("\r" + " " * self._width + "\r")
        sys.stderr.flush()
        self._width = 0
