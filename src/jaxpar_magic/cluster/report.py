"""What `status` and `stop` answer: plain attributes, and the document that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..document import Block, Code, Described, Document, Heading, Items, Paragraph, Table
from ..machine import size_text

if TYPE_CHECKING:
    from .engines import Cluster, Engine

_SHOWN = 32


@dataclass(frozen=True, repr=False)
class Status(Described):
    """A cluster, or that there is none.

    Attributes
    ----------
    running: whether there is one.
    engines: its engines.
    lost: how many engines have ended since the start.
    owned: whether this notebook started it.
    ended: whether it was ended just now.
    notes: what to know of it, one sentence or two each.
    """

    running: bool
    engines: tuple[Engine, ...] = ()
    lost: int = 0
    owned: bool = False
    ended: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster | None, *, look: bool = True, ended: bool = False) -> Status:
        """The status of a cluster; with `look` its engines are asked how they are now."""
        if cluster is None:
            return cls(running=False)
        troubles = cluster.admit() if look else []
        engines = cluster.look() if look else cluster.engines
        return cls(
            running=not ended,
            engines=tuple(engines),
            lost=cluster.lost,
            owned=cluster.launcher is not None,
            ended=ended,
            notes=(*cluster.notes, *troubles),
        )

    def __repr__(self) -> str:
        return f"<Status: {self._title()}>"

    def line(self) -> str:
        """The status in one line."""
        return f"jaxcluster: {self._title()}"

    def describe(self) -> Document:
        """The status as blocks to show."""
        blocks: list[Block] = [Heading(self._title())]
        if self.ended:
            return Document(tuple(blocks))
        if not self.running:
            blocks.append(Code("%jaxcluster start", label="Two engines on this machine"))
            blocks.append(Code("%jaxcluster connect", label="One that runs already"))
            return Document(tuple(blocks))
        blocks.append(self._table())
        if len(self.engines) > _SHOWN:
            blocks.append(Paragraph(f"… and {len(self.engines) - _SHOWN} more engines."))
        notes = [*self.notes]
        if self.lost:
            anew = "the next map starts others" if self.owned else "others are started where it was started"
            notes.append(f"{_plural(self.lost, 'engine')} ended since the start; {anew}.")
        if notes:
            blocks.append(Items(tuple(notes)))
        return Document(tuple(blocks))

    def _table(self) -> Table:
        same = _versions(self.engines)
        rows = [
            (str(e.id), e.host, _devices(e), str(e.cores), _load(e), _memory(e), *([] if same else [_version(e)]))
            for e in self.engines[:_SHOWN]
        ]
        columns = ("engine", "host", "devices", "cores", "load", "free memory", *([] if same else ["versions"]))
        return Table(columns, tuple(rows), caption=same, numeric=frozenset({0, 3, 4, 5}))

    def _title(self) -> str:
        if not self.running and not self.ended:
            return "No cluster is running"
        hosts = {engine.host for engine in self.engines}
        where = "this machine" if all(e.at_home for e in self.engines) else _plural(len(hosts), "machine")
        what = f"{_plural(len(self.engines), 'engine')} on {where}"
        if self.ended:
            return f"Stopped: {what}" if self.owned else f"Disconnected: {what} that go on"
        return f"Cluster: {what}" if self.owned else f"Connected to a cluster: {what}"


def _devices(engine: Engine) -> str:
    if engine.platform is None:
        return f"{engine.devices} (not started)"
    return f"{engine.devices} {engine.platform}"


def _load(engine: Engine) -> str:
    if engine.busy:
        return "busy"
    return "" if engine.load is None else f"{engine.load:.1f}"


def _memory(engine: Engine) -> str:
    return "" if engine.memory_free is None else size_text(engine.memory_free)


def _version(engine: Engine) -> str:
    return f"JAX {engine.jax}, Python {engine.python}"


def _versions(engines: Sequence[Engine]) -> str | None:
    """The versions that all have, or None."""
    found = {_version(engine) for engine in engines}
    return found.pop() if len(found) == 1 else None


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
