"""What is shown to a user, as plain data: a `Document` is a list of blocks.

Features describe (object → document); `render` turns a document into text or HTML and knows nothing of
features. Strings in blocks are plain text: never markup, never ANSI codes; the renderers escape them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Heading:
    """A title. level 1 is the document's own title, 2 a section of it."""

    text: str
    level: int = 1


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `label` (e.g. "Why", "Note") is set off in front of it."""

    text: str
    label: str | None = None


@dataclass(frozen=True)
class Code:
    """Code to read and copy; `label` stands before it (e.g. "1. Map with shard_map instead")."""

    source: str
    language: str = "python"
    label: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows of short texts. `numeric` names the columns (by index) that align right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str | None = None
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Bars:
    """A bar chart: one (label, value, annotation) a row. Values are ≥ 0.

    Information is in the annotation as text too: nothing is told by length or colour alone. `hollow` names the
    rows (by index) that are no measurement, such as an ideal.
    """

    rows: Sequence[tuple[str, float, str]]
    caption: str
    hollow: frozenset[int] = frozenset()

    def fractions(self) -> list[float]:
        """Length of each bar from 0 to 1, as a share of the largest; 0 for NaN, inf and negative values."""
        values = [value if 0 <= value < float("inf") else 0.0 for _, value, _ in self.rows]
        largest = max(values, default=0.0)
        return [value / largest if largest else 0.0 for value in values]


@dataclass(frozen=True)
class Grid:
    """A picture in boxes, such as an array cut up over devices: `cells[i][j]` stands at `rows[i]` and `columns[j]`."""

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    caption: str


@dataclass(frozen=True)
class Meter:
    """How far something is: `value` of `total`, which `label` says in words. Without a value it has just begun."""

    label: str
    value: float | None
    total: float

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return min(1.0, max(0.0, (self.value or 0.0) / self.total)) if self.total > 0 else 0.0


@dataclass(frozen=True)
class Items:
    """A list of short points, numbered or not."""

    points: Sequence[str]
    numbered: bool = False


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away where the front end can fold; printed in full where it cannot."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Link:
    """A link with its text. Text renderings print the address."""

    text: str
    url: str


Block = Heading | Paragraph | Code | Table | Bars | Grid | Meter | Items | Details | Link


@dataclass(frozen=True)
class Document:
    """A thing to show: blocks in reading order.

    Displays itself in IPython and Jupyter through `_repr_mimebundle_`; `str()` is the text rendering.

    Attributes
    ----------
    blocks:
        What to show.
    kind:
        "report", "card" or "page": a card is set off from its surroundings by a border.
    """

    blocks: Sequence[Block] = field(default_factory=tuple)
    kind: str = "report"

    def __str__(self) -> str:
        from .render import text  # deferred: rich is imported only when something is shown

        return text.render(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, str]:
        from .render import html, text

        return {"text/plain": text.render(self), "text/html": html.render(self)}


class Described:
    """Mix-in: an object that shows itself as the document that `describe()` returns."""

    def describe(self) -> Document:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.describe())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, str]:
        return self.describe()._repr_mimebundle_(include, exclude)
