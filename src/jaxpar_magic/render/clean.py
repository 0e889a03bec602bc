"""Strings from anywhere (error texts, names, reprs) made safe to show."""

from __future__ import annotations

import re

# Terminal sequences: CSI (colours, cursor), OSC (titles, links), and two-character escapes.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])?")
# Other control characters, surrogates that cannot be encoded, and the marks that reverse the reading
# direction (they can make shown code differ from the code that runs).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: object) -> str:
    """`text` as a string without terminal codes and control characters; tabs become blanks.

    >>> clean("\\x1b[31mred\\x1b[0m\\r\\nnext")
    'red\\nnext'
    """
    string = str(text).replace("\r\n", "\n")
    return _CONTROL.sub("", _ANSI.sub("", string)).expandtabs(4)
