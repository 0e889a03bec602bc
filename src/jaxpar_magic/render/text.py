"""Documents as plain text: no ANSI codes, any width, in an order that also reads well aloud.

No rules or frames are drawn: a screen reader would spell them out, and a narrow window would break them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from ..document import Bars, Block, Code, Details, Document, Grid, Heading, Items, Link, Meter, Paragraph, Table
from .clean import clean

_GAP = "  "
_NARROWEST = 20  # below this nothing can be laid out; lines then run over
_WIDEST = 100  # longer lines are hard to read; a width asked for is taken as it is
_LEAST_COLUMN = 8  # a table whose columns would get narrower, or would break words, is written row by row instead
_LEAST_BAR = 6
_METER = 20
_LONGEST_BAR = 40  # the eye compares short bars better


def render(document: Document, width: int | None = None) -> str:
    """The document as text.

    Parameters
    ----------
    document:
        What to show.
    width:
        Columns of text; default: the terminal's, at most 100, and 80 where there is no terminal. Code and
        addresses are never broken, so that they can be copied: their lines may be longer.

    Returns
    -------
    str
        Lines without trailing blanks, without a final newline.

    Examples
    --------
    >>> print(render(Document([Heading("Devices"), Paragraph("cpu", label="Platform")]), 40))
    Devices
    <BLANKLINE>
    Platform: cpu
    """
    if width is None:
        width = min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)
    width = max(width, _NARROWEST)
    blocks = list(document.blocks)
    if document.kind == "card" and blocks and isinstance(blocks[0], Heading):
        # what belongs to the card stands under its title, indented, in place of a border
        parts = [_block(blocks[0], width), _indent(_blocks(blocks[1:], width - 2), 2)]
        return _trim("\n".join(part for part in parts if part))
    return _trim(_blocks(blocks, width))


def _trim(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def _indent(text: str, by: int) -> str:
    return "\n".join(" " * by + line if line else line for line in text.split("\n"))


def _blocks(blocks: Sequence[Block], width: int) -> str:
    text = ""
    previous: Block | None = None
    for block in blocks:
        part = _block(block, width)
        if not part:
            continue
        if previous is not None:
            # facts with labels stand line by line, prose in paragraphs
            labelled = isinstance(block, Link) or (isinstance(block, Paragraph) and block.label is not None)
            text += "\n" if labelled and isinstance(previous, Paragraph | Link) else "\n\n"
        text += part
        previous = block
    return text


def _block(block: Block, width: int) -> str:
    return _RENDERERS[type(block)](block, width)


def _heading(block: Heading, width: int) -> str:
    return "\n".join(_wrap(block.text, width))


def _paragraph(block: Paragraph, width: int) -> str:
    return "\n".join(_wrap(f"{block.label}: {block.text}" if block.label else block.text, width))


def _code(block: Code, width: int) -> str:
    lines = [*_wrap(block.label, width)] if block.label else []
    return "\n".join(lines + [_indent(clean(block.source).rstrip("\n"), 4)])


def _items(block: Items, width: int) -> str:
    lines = []
    for number, point in enumerate(block.points, 1):
        mark = f"{number}. " if block.numbered else "- "
        wrapped = _wrap(point, width - len(mark)) or [""]
        lines += [mark + wrapped[0], *(" " * len(mark) + line for line in wrapped[1:])]
    return "\n".join(lines)


def _details(block: Details, width: int) -> str:
    body = _indent(_blocks(block.blocks, width - 2), 2)
    return "\n".join(_wrap(block.summary, width) + ([body] if body else []))


def _link(block: Link, width: int) -> str:
    text, url = clean(block.text), clean(block.url)
    return url if text in ("", url) else f"{text}: {url}"


def _table(block: Table, width: int) -> str:
    caption = _wrap(block.caption, width) if block.caption else []
    columns = [clean(c) for c in block.columns]
    rows = [[clean(cell) for cell in row] for row in block.rows]
    if not rows:
        return "\n".join([*caption, "(none)"])
    needed = [max(_cells(line) for cell in column for line in cell.split("\n")) for column in zip(columns, *rows)]
    words = [
        max((_cells(word) for cell in column for word in cell.split()), default=0) for column in zip(columns, *rows)
    ]
    widths = _share(needed, words, width - len(_GAP) * (len(columns) - 1))
    if widths is None:
        return "\n".join([*caption, _records(columns, rows, width)])
    lines = list(caption)
    for row in [columns, *rows] if any(columns) else rows:
        wrapped = [_wrap(cell, w) or [""] for cell, w in zip(row, widths)]
        for n in range(max(len(cell) for cell in wrapped)):
            cells = [cell[n] if n < len(cell) else "" for cell in wrapped]
            lines.append(
                _GAP.join(_pad(cell, w, right=i in block.numeric) for i, (cell, w) in enumerate(zip(cells, widths)))
            )
    return "\n".join(lines)


def _share(needed: list[int], words: list[int], available: int) -> list[int] | None:
    """Column widths that fit: the widest columns give way, down to their longest word. None if that is not enough."""
    widths = list(needed)
    while sum(widths) > available:
        giving = [i for i, w in enumerate(widths) if w > max(_LEAST_COLUMN, words[i])]
        if not giving:
            return None
        widths[max(giving, key=widths.__getitem__)] -= 1
    return widths


def _records(columns: list[str], rows: list[list[str]], width: int) -> str:
    """A table too wide for the window: one "column: value" line a cell, none for an empty one."""
    records = []
    for row in rows:
        lines: list[str] = []
        for column, cell in zip(columns, row):
            if cell.strip():
                lines += _wrap(f"{column}: {cell}" if column else cell, width)
        records.append("\n".join(lines))
    return "\n\n".join(records)


def _bars(block: Bars, width: int) -> str:
    lines = _wrap(block.caption, width)
    labels = [clean(label) for label, _, _ in block.rows]
    notes = [clean(note) for _, _, note in block.rows]
    label_width, note_width = (max(map(_cells, texts), default=0) for texts in (labels, notes))
    room = min(_LONGEST_BAR, width - label_width - note_width - 2 * len(_GAP))
    if room < _LEAST_BAR:  # the annotations say it all; the bars only picture it
        return "\n".join(lines + [w for l, n in zip(labels, notes) for w in _wrap(f"{l}: {n}", width)])
    for i, (label, note, fraction) in enumerate(zip(labels, notes, block.fractions())):
        bar = ("░" if i in block.hollow else "█") * round(room * fraction)
        bar = bar or ("▏" if fraction else "")
        lines.append(_GAP.join([_pad(label, label_width), _pad(note, note_width, right=True), bar]))
    return "\n".join(lines)


def _grid(block: Grid, width: int) -> str:
    """Boxes as brackets: ``[ cpu:0 ][ cpu:1 ]``."""
    caption = _wrap(block.caption, width)
    labels = [clean(label) for label in block.rows]
    columns = [clean(column) for column in block.columns]
    cells = [[clean(cell) for cell in row] for row in block.cells]
    label_width = max(map(_cells, labels), default=0)
    box = max(map(_cells, [*columns, *(cell for row in cells for cell in row)]), default=0)
    margin = label_width + len(_GAP) if label_width else 0
    if margin + len(columns) * (box + 4) > width:
        lines = [
            w
            for label, row in zip(labels, cells)
            for column, cell in zip(columns, row)
            for w in _wrap(f"{', '.join(part for part in (label, column) if part)}: {cell}", width)
        ]
        return "\n".join(caption + lines)
    lines = [" " * margin + "".join(f"  {_pad(column, box)}  " for column in columns)] if any(columns) else []
    for label, row in zip(labels, cells):
        boxes = "".join(f"[ {_pad(cell, box)} ]" for cell in row)
        lines.append((_pad(label, label_width) + _GAP if margin else "") + boxes)
    return "\n".join(caption + lines)


def _meter(block: Meter, width: int) -> str:
    if block.value is None:
        return "\n".join(_wrap(block.label, width))
    full = round(_METER * block.fraction)
    return "\n".join(_wrap(f"[{'#' * full}{'.' * (_METER - full)}] {block.label}", width))


_RENDERERS: dict[type, Callable[..., str]] = {
    Heading: _heading,
    Paragraph: _paragraph,
    Code: _code,
    Items: _items,
    Details: _details,
    Link: _link,
    Table: _table,
    Bars: _bars,
    Grid: _grid,
    Meter: _meter,
}


def _cells(text: str) -> int:
    """Columns that `text` takes in a terminal (wide characters take two)."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    blanks = " " * max(0, width - _cells(text))
    return blanks + text if right else text + blanks


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; words longer than that are broken, addresses are not."""
    lines: list[str] = []
    for paragraph in clean(text).split("\n"):
        line = ""
        for word in paragraph.split():
            if line and _cells(line) + 1 + _cells(word) <= width:
                line += " " + word
                continue
            if line:
                lines.append(line)
            line = word
            while _cells(line) > width and "://" not in line:
                head = _head(line, width)
                lines.append(head)
                line = line[len(head) :]
        lines.append(line)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _head(word: str, width: int) -> str:
    """The longest start of `word` that fits, at least one character."""
    if word.isascii():
        return word[:width]
    end = 1
    while end < len(word) and _cells(word[: end + 1]) <= width:
        end += 1
    return word[:end]
