"""Failures from text: a message, a traceback (Python's or IPython's), a log with timestamps."""

from __future__ import annotations

import re
import sys

from .context import Environment, Failure, Frame, _frame_of_text, _item, _message, names_of_type

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

# What log systems, mail and chat put before a line.
_PREFIX = re.compile(
    r"^\s*(?:"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?(?:[+-]\d\d:?\d\d)?[:,]?\s?"
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?\s"
    r"|\[(?!Compiling)(?=[^\]]*(?:\d|DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL))[\w .:/,+-]{1,60}\]:?\s"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?::\s?|\s)"
    r"|>\s?"
    r"|E {3}"
    r")"
)
_TYPE = (
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
    r"(?:Error|Exception|Warning|Interrupt|Exit|StackTrace|SimplifiedTraceback|DimensionOperation)"
)
_EXCEPTION_LINE = re.compile(rf"^({_TYPE})(?::(?:\s(.*))?)?$")
_EXCEPTION_INSIDE = re.compile(rf"(?:^|[\s:|>])({_TYPE}):\s(.*)$")
_CHAIN = re.compile(
    r"^.*(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:).*$",
    re.M,
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_CELL = re.compile(
    r"^(?:Cell|Input) In ?\[(?P<cell>\d+)\](?:, line (?P<line>\d+)|, in <cell line: (?P<line2>\d+)>\(\))?"
    r"(?:, in (?P<function>[\w.<>]+))?"
)
_CELL_OLD = re.compile(r"^<ipython-input-(?P<cell>\d+)-\w+> in (?P<function>[\w.<>]+)")
_IPYTHON_FILE = re.compile(
    r"^(?:File )?(?P<file>[~/.\w][^:\n]*\.py)(?::(?P<line>\d+))?,? in (?P<function><cell line: \d+>|[\w.<>]+)"
)
_ARROW = re.compile(r"^-+> ?(?P<line>\d+) ?(?P<source>.*)$")

# Punctuation as Chinese and Japanese write it: a message quoted there has it between name and text.
_WIDE = {ord(wide): narrow for wide, narrow in zip("：，；。（）［］“”", (": ", ", ", "; ", ". ", *'()[]""'))}

_REMOVED = re.compile(r"JAX has removed its internal frames|excludes JAX-internal frames")


def parse(text: str) -> Failure:
    """The `Failure` that `text` tells of."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").translate(_WIDE).strip("\n")
    lines = [_without_prefix(line) for line in text.split("\n")]
    text = "\n".join(lines)
    blocks = [block.strip("\n") for block in _CHAIN.split(text)]
    failures = [_block(block) for block in blocks if block.strip()]
    # JAX's own wrappers repeat the error; they are no failure of their own
    real = [f for f in failures if not f.is_a("UnfilteredStackTrace", "SimplifiedTraceback")] or failures
    if not real:
        return Failure(None, (), "")
    removed = bool(_REMOVED.search(text))
    direct = "direct cause of the following" in text
    result: Failure | None = None
    for failure in real:
        result = Failure(
            type_name=failure.type_name,
            types=failure.types,
            message=failure.message,
            frames=failure.frames,
            environment=_environment(),
            cause=result if direct else None,
            frames_removed=removed,
            item=_item((), failure.message),
        )
    assert result is not None
    return result


def _environment() -> Environment:
    # the text may come from another machine: only how fixes are written is known
    shell = sys.modules.get("IPython.core.interactiveshell")
    return Environment(interactive=shell is not None and shell.InteractiveShell.initialized())


def _without_prefix(line: str) -> str:
    for _ in range(4):
        shorter = _PREFIX.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return line.rstrip()


def _block(block: str) -> Failure:
    lines = block.split("\n")
    frames, after = _frames(lines)
    # JAX quotes a whole traceback in some messages: the error that tells of it is the one to explain
    quoting = next((i for i, line in enumerate(lines) if line.endswith("The error was:")), None)
    if quoting is not None and quoting < after and lines[quoting + 1].startswith("Traceback"):
        match = _EXCEPTION_LINE.search(lines[quoting])
        if match:
            message = _message("\n".join([match.group(2) or "", lines[-1]]))
            return Failure(match.group(1), names_of_type(match.group(1)), message, frames=_frames(lines[:quoting])[0])
    for pattern, start in ((_EXCEPTION_LINE, after), (_EXCEPTION_INSIDE, after), (_EXCEPTION_LINE, 0)):
        for index in range(start, len(lines)):
            match = pattern.search(lines[index])
            if match:
                rest = [match.group(2) or "", *lines[index + 1 :]]
                message = _message(_until_next_traceback("\n".join(rest)))
                return Failure(match.group(1), names_of_type(match.group(1)), message, frames=frames)
    return Failure(None, (), _message("\n".join(lines[after:]).strip() or block), frames=frames)


def _until_next_traceback(message: str) -> str:
    return re.split(r"\n(?=Traceback \(most recent call last\))", message, maxsplit=1)[0]


def _frames(lines: list[str]) -> tuple[tuple[Frame, ...], int]:
    """The frames of one traceback, and the index of the first line after them."""
    frames: list[Frame] = []
    after = 0
    index = 0
    while index < len(lines):
        line = lines[index]
        match = _FRAME.match(line)
        if match:
            source, segment, index = _source(lines, index + 1)
            number = int(match["line"])
            frames.append(_frame_of_text(match["file"], number, match["function"] or "<module>", source, segment))
            after = index
            continue
        match = _CELL.match(line) or _CELL_OLD.match(line) or _IPYTHON_FILE.match(line)
        if match:
            fields = match.groupdict()
            file = f"<ipython-input-{fields['cell']}-0>" if fields.get("cell") else fields["file"]
            number_text = fields.get("line") or fields.get("line2")
            source, shown, index = _arrow(lines, index + 1)
            function = fields.get("function") or "<module>"
            number_or_none = int(number_text) if number_text else shown
            frames.append(_frame_of_text(file, number_or_none, function, source))
            after = index
            continue
        index += 1
    return tuple(frames), after


def _source(lines: list[str], index: int) -> tuple[str | None, str | None, int]:
    """The source line after a `File` line, and the part that carets mark."""
    if index >= len(lines) or not lines[index].startswith(" ") or _FRAME.match(lines[index]):
        return None, None, index
    source, segment = lines[index], None
    index += 1
    if index < len(lines) and re.fullmatch(r"\s*[~^]+[~^ ]*", lines[index]):
        start = len(lines[index]) - len(lines[index].lstrip())
        segment = source[start : len(lines[index].rstrip())]
        index += 1
    return source, segment, index


def _arrow(lines: list[str], index: int) -> tuple[str | None, int | None, int]:
    """The line that IPython marks with an arrow, its number, and where the listing ends."""
    source = number = None
    while index < len(lines):
        arrow = _ARROW.match(lines[index])
        if arrow:
            source, number = arrow["source"], int(arrow["line"])
        elif lines[index].strip() and not re.match(r"^\s+(\d+\b|\(\.\.\.\))", lines[index]):
            break
        index += 1
    return source, number, index
