"""Documents as HTML that looks the same live, reopened, exported and in an untrusted notebook.

Jupyter's sanitizer drops `<style>`, `<svg>`, `role`, `aria-*`, `tabindex`, CSS variables and `currentColor`. So the
meaning is in the tags and the looks are in inline styles; colour appears only on borders and bars, as no text
colour can be read on both a white and a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from urllib.parse import urlsplit

from ..document import Bars, Block, Code, Details, Document, Grid, Heading, Items, Link, Meter, Paragraph, Table
from .clean import clean

_BORDER = "#8a8a8a"
_CARD = "#c77700"
_BAR = "#4c8bf5"
_REACHABLE = 'tabindex="0"'  # what scrolls sideways has to scroll with the keyboard, too
_PRE = f"white-space:pre;overflow-x:auto;border:1px solid {_BORDER};padding:0.4em 0.6em;margin:0.2em 0 0.6em 0"
_TEXT = "margin:0.4em 0;overflow-wrap:anywhere;text-align:left"
_UNBROKEN = ";white-space:nowrap"  # a number stays with its unit
_CELL = "padding:0.15em 0.8em 0.15em 0;vertical-align:top;text-align:{align}"

_PLAIN = "background:none"  # no stripes behind a picture
_BOX = f"border:2px solid {_BAR};padding:0.3em 0.9em;text-align:center"
_BOX_LABEL = "padding:0.15em 0.6em;text-align:center;font-weight:normal"


def render(document: Document) -> str:
    """The document as one HTML element. Every string in it is escaped.

    Examples
    --------
    >>> "<b>2 &lt; 3</b>" in render(Document([Paragraph("<b>2 < 3</b>")]))
    False
    >>> "&lt;b&gt;2 &lt; 3&lt;/b&gt;" in render(Document([Paragraph("<b>2 < 3</b>")]))
    True
    """
    style = "margin:0.4em 0;max-width:60em"
    if document.kind == "card":
        style += f";border-left:4px solid {_CARD};padding:0.1em 0 0.1em 1em"
    return f'<section style="{style}">{_blocks(document.blocks)}</section>'


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(_RENDERERS[type(block)](block) for block in blocks)


def _safe(text: object) -> str:
    return escape(clean(text), quote=True)


def _lines(text: object) -> str:
    return _safe(text).replace("\n", "<br>")


def _heading(block: Heading) -> str:
    # h3 and h4: the page's own headings are the notebook's
    tag, size = ("h3", "1.1em") if block.level == 1 else ("h4", "1em")
    return f'<{tag} style="font-size:{size};margin:0.5em 0 0.3em 0">{_lines(block.text)}</{tag}>'


def _paragraph(block: Paragraph) -> str:
    label = f"<strong>{_safe(block.label)}:</strong> " if block.label else ""
    return f'<p style="{_TEXT}">{label}{_lines(block.text)}</p>'


def _code(block: Code) -> str:
    label = f'<p style="{_TEXT}">{_lines(block.label)}</p>' if block.label else ""
    source = _safe(clean(block.source).strip("\n"))
    return f'{label}<pre style="{_PRE}" {_REACHABLE}><code>{source}</code></pre>'


def _items(block: Items) -> str:
    tag = "ol" if block.numbered else "ul"
    points = "".join(f'<li style="overflow-wrap:anywhere">{_lines(point)}</li>' for point in block.points)
    return f'<{tag} style="margin:0.4em 0">{points}</{tag}>'


def _details(block: Details) -> str:
    return f"<details><summary>{_safe(block.summary)}</summary>{_blocks(block.blocks)}</details>"


def _link(block: Link) -> str:
    text, url = clean(block.text), clean(block.url)
    # An address from outside could be `javascript:`; such a one is shown, not linked.
    address = urlsplit(url)
    if address.scheme not in ("http", "https"):
        return f'<p style="{_TEXT}">{_safe(text)} {_safe(url)}</p>'
    label = f"{_safe(text)}: " if text not in ("", url) else ""
    # The link's own words say where it leads: "More" alone, in a list of all links of a page, would not.
    shown = _safe(url.removeprefix(f"{address.scheme}://"))
    return f'<p style="{_TEXT}">{label}<a href="{_safe(url)}" target="_blank" rel="noopener noreferrer">{shown}</a></p>'


def _table(block: Table) -> str:
    def align(column: int) -> str:
        return _CELL.format(align="right" if column in block.numeric else "left")

    head = ""
    if any(block.columns):
        # a title that says nothing is no header: a screen reader would read out a blank
        cells = "".join(
            f'<th scope="col" style="{align(i)}">{_lines(column)}</th>' if clean(column).strip() else "<td></td>"
            for i, column in enumerate(block.columns)
        )
        head = f'<thead><tr style="border-bottom:1px solid {_BORDER}">{cells}</tr></thead>'
    body = ""
    for row in block.rows:
        first, *rest = row
        cells = f'<th scope="row" style="{align(0)};font-weight:normal">{_lines(first)}</th>'
        cells += "".join(
            f'<td style="{align(i)}{_UNBROKEN if i in block.numeric else ""}">{_lines(cell)}</td>'
            for i, cell in enumerate(rest, 1)
        )
        body += f"<tr>{cells}</tr>"
    if not block.rows:
        body = f'<tr><td colspan="{max(1, len(block.columns))}" style="{align(0)}">(none)</td></tr>'
    return _scrolling(f"{_caption(block.caption)}{head}<tbody>{body}</tbody>")


def _bars(block: Bars) -> str:
    body = ""
    for i, ((label, _, annotation), fraction) in enumerate(zip(block.rows, block.fractions())):
        # The border stays where a high-contrast mode takes all fillings away.
        bar = f"border:2px {'dashed' if i in block.hollow else 'solid'} {_BAR}" if fraction else "border:0"
        bar += "" if i in block.hollow else f";background-color:{_BAR}"
        body += (
            f'<tr style="{_PLAIN}">'
            f'<th scope="row" style="{_CELL.format(align="left")}{_UNBROKEN};font-weight:normal">{_safe(label)}</th>'
            f'<td style="{_CELL.format(align="right")}{_UNBROKEN}">{_safe(annotation)}</td>'
            f'<td style="padding:0;vertical-align:middle;width:100%"><div style="width:{100 * fraction:.1f}%;'
            f'height:0.9em;box-sizing:border-box;{bar}"></div></td></tr>'
        )
    # The bars take what room there is, of a narrow window, too. With a width, Jupyter's own "fixed" would hold.
    width = "width:100%;max-width:34em;table-layout:auto;"
    return _scrolling(f"{_caption(block.caption)}<tbody>{body}</tbody>", width)


def _grid(block: Grid) -> str:
    head = ""
    if any(block.columns):
        corner = "<td></td>" if any(block.rows) else ""
        cells = "".join(f'<th scope="col" style="{_BOX_LABEL}">{_safe(column)}</th>' for column in block.columns)
        head = f'<thead style="border:0"><tr style="{_PLAIN}">{corner}{cells}</tr></thead>'
    body = ""
    for label, row in zip(block.rows, block.cells):
        header = f'<th scope="row" style="{_BOX_LABEL}">{_safe(label)}</th>' if any(block.rows) else ""
        cells = "".join(f'<td style="{_BOX}">{_safe(cell)}</td>' for cell in row)
        body += f'<tr style="{_PLAIN}">{header}{cells}</tr>'
    return _scrolling(f"{_caption(block.caption)}{head}<tbody>{body}</tbody>")


def _meter(block: Meter) -> str:
    bar = ""
    if block.value is not None:
        bar = f'<progress value="{block.value:g}" max="{block.total:g}" style="margin-right:0.6em"></progress>'
    # Around the bar, so that the words are its name to a screen reader.
    return f'<p style="{_TEXT}"><label>{bar}{_safe(block.label)}</label></p>'


def _caption(text: str | None) -> str:
    return f'<caption style="text-align:left;padding:0.2em 0;min-width:20em">{_safe(text)}</caption>' if text else ""


def _scrolling(rows: str, width: str = "") -> str:
    table = f'<table style="{width}border-collapse:collapse;margin:0.4em 0">{rows}</table>'
    return f'<div style="overflow-x:auto" {_REACHABLE}>{table}</div>'


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
