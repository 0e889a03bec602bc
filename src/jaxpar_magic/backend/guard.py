"""Keep XLA_FLAGS from ending the kernel: mend or take out what XLA would refuse, and say so."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..document import Block, Described, Document, Heading, Items, Paragraph
from . import flags
from .state import phase


@dataclass(frozen=True)
class FlagsRepair(Described):
    """What was done to XLA_FLAGS.

    Attributes
    ----------
    before, after: its text.
    bad: the flags that XLA would have refused.
    """

    before: str
    after: str
    bad: tuple[flags.BadFlag, ...]

    def describe(self) -> Document:
        """What was wrong, and what XLA_FLAGS says now."""
        blocks: list[Block] = [
            Heading("XLA_FLAGS was changed, or the kernel would have died at the first use of JAX"),
            Items(tuple(_fate(flag) for flag in self.bad)),
            Paragraph(self.after or "(nothing)", label="XLA_FLAGS is now"),
        ]
        return Document(tuple(blocks))


def repair_flags() -> FlagsRepair | None:
    """Change XLA_FLAGS where XLA would end this process because of it. None if there is nothing to do.

    Costs a child process of 0.1 s where the flags are not known to be fine. Does nothing once a backend runs:
    XLA has read them then.
    """
    text = os.environ.get("XLA_FLAGS", "")
    bad = () if phase() == "running" else flags.check(text)
    if not bad:
        return None
    after = flags.repaired(text, bad)
    if after:
        os.environ["XLA_FLAGS"] = after
    else:
        del os.environ["XLA_FLAGS"]
    return FlagsRepair(text, after, bad)


def _fate(flag: flags.BadFlag) -> str:
    if flag.meant:
        return f"{flag.text}: {flag.problem}. Mended."
    return f"{flag} Taken out."
