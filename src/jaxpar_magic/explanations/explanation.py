"""An explanation of one failure, as plain data: it holds no exception, frame, tracer or array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..document import Block, Code, Described, Document, Heading, Link, Paragraph, Table


@dataclass(frozen=True)
class Fix:
    """One way out, as code that can be pasted.

    Attributes
    ----------
    title:
        What the code does, as an imperative without a final stop: "Map with vmap on one device".
    code:
        Python or one of our magics, with the user's own names where they are known.
    kind:
        "here": runs in the session as the failure left it, or in the place of the user's line.
        "start": belongs at the start of a new process, before JAX starts.
        "shell": a command for a shell, or a package to install.
        "sketch": how it goes, where more than one place of the user's code has to change.
    fill_in:
        Names in the code that stand for something of the user's that the failure does not tell.
    """

    title: str
    code: str
    kind: str = "here"
    fill_in: Sequence[str] = ()


@dataclass(frozen=True)
class Where:
    """The innermost line of the user's own code.

    Attributes
    ----------
    place:
        "cell In[3]" or a file name.
    line:
        Line number in it, or None.
    function:
        Name of the function, None at top level.
    source:
        The line as it stands there, without indentation, or None if it cannot be found.
    """

    place: str
    line: int | None = None
    function: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line is not None else ""
        return f"{self.place}{line}" + (f", in {self.function}" if self.function else "")


@dataclass(frozen=True)
class Explanation(Described):
    """What went wrong, in the user's own numbers, and what to do.

    Shows itself as a card in IPython and Jupyter; `print(explanation)` gives the same as text.

    Attributes
    ----------
    code, slug:
        "JPX0104" and "pmap-needs-devices": the same for every failure of this kind.
    what:
        What went wrong, one or two sentences with the numbers and names of this failure.
    why:
        The rule behind it, in words for someone who knows numpy and not JAX.
    where:
        The user's own line, or None if the failure came without one (a pasted message).
    fixes:
        One to three ways out, the best first.
    link:
        A page to read on.
    facts:
        The numbers and names that were used: whole numbers, strings, and tuples of them.
    guess:
        True if the facts at hand fit this cause but do not prove it.
    also:
        Codes of other causes that fit too.
    item:
        Index of the mapped item that failed, where known.
    variables:
        Names at the user's line with their types and shapes: {"x": "float32[8,3]"}.

    Examples
    --------
    >>> explanation = Explanation("JPX0000", "an-example", "10 items, 1 device.", "Each needs one.")
    >>> print(explanation)
    JPX0000 an-example
      What: 10 items, 1 device.
      Why: Each needs one.
    """

    code: str
    slug: str
    what: str
    why: str
    where: Where | None = None
    fixes: Sequence[Fix] = ()
    link: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    guess: bool = False
    also: Sequence[str] = ()
    item: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    __str__ = Described.__str__

    @property
    def name(self) -> str:
        """Code and slug: "JPX0104 pmap-needs-devices"."""
        return f"{self.code} {self.slug}"

    def describe(self, brief: bool = True) -> Document:
        """The card. `brief=False` adds the shapes at the user's line and the facts used."""
        blocks: list[Block] = [Heading(self.name + (" (a guess)" if self.guess else ""))]
        item = f" (item {self.item})" if self.item is not None else ""
        blocks.append(Paragraph(self.what + item, label="What"))
        blocks.append(Paragraph(self.why, label="Why"))
        if self.where is not None:
            blocks.append(Paragraph(str(self.where), label="Where"))
            if self.where.source:
                blocks.append(Code(self.where.source))
        if not brief and self.variables:
            blocks.append(Table(("name", "is"), list(self.variables.items()), caption="At that line"))
        for number, fix in enumerate(self.fixes, 1):
            gaps = f" (fill in {', '.join(fix.fill_in)})" if fix.fill_in else ""
            blocks.append(Code(fix.code, label=f"Fix {number}: {fix.title}{gaps}"))
        if self.also:
            blocks.append(Paragraph("the same message also fits " + ", ".join(self.also) + ".", label="Also"))
        if not brief and self.facts:
            facts = [(name, str(value)) for name, value in self.facts.items()]
            blocks.append(Table(("fact", "value"), facts, caption="What this explanation rests on"))
        if self.link:
            blocks.append(Link("More", self.link))
        return Document(blocks, kind="card")
