"""Words and fixes that many rules share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .context import Failure
from .explanation import Fix


def counted(number: int, noun: str) -> str:
    """ "1 device", "8 devices", "2 entries", "0 axes"."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """ "devices", "entries", "axes"."""
    if noun.endswith("axis"):
        return noun[:-2] + "es"
    return noun[:-1] + "ies" if noun.endswith("ry") else noun + "s"


def sizes(text: str) -> tuple[int, ...]:
    """The whole numbers of a printed shape: "(4, 2)" or "4,2" gives (4, 2)."""
    return tuple(int(n) for n in re.findall(r"-?\d+", text))


def array_type(text: str) -> tuple[str, tuple[int, ...]] | None:
    """dtype and shape of a type as JAX prints it: "float32[10,4]{V:i}" gives ("float32", (10, 4))."""
    match = re.match(r"~?([a-z]+\d*(?:_\w+)?)\[([\d,@\w()' ]*)\]", text)
    return None if match is None else (match.group(1), sizes(re.sub(r"@[^,\]]+", "", match.group(2))))


def product(numbers: Sequence[int]) -> int:
    """Product of whole numbers; 1 for none."""
    return math.prod(numbers)


def listed(words: Sequence[object], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    texts = [str(word) for word in words]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def device_count_fix(failure: Failure, count: int) -> Fix | None:
    """A fix that gives this process `count` CPU devices; None where that is impossible (another platform).

    In IPython it is `%jaxdevices`, which works while the backend runs.
    """
    if failure.environment.platform not in (None, "cpu") or not 1 <= count <= 64:
        return None
    title = f"Give JAX {counted(count, 'CPU device')} (works now, no restart), then run the cell again"
    if failure.environment.interactive:
        return Fix(title, f"%jaxdevices {count}")
    title = f"Give JAX {counted(count, 'CPU device')}, before the line that failed"
    return Fix(title, f"from jaxpar_magic import devices\ndevices({count})")


def parmap_fix(
    failure: Failure, function: str, inputs: str, title: str | None = None, in_axes: str | None = None
) -> Fix:
    """A fix that maps `function` over `inputs` (source text) with this package, for any number of items."""
    title = title or "Map any number of items over the devices there are"
    if failure.environment.interactive and re.fullmatch(r"[A-Za-z_][\w.]*", function):
        axes = f" --in-axes {in_axes.replace(' ', '')}" if in_axes is not None else ""
        return Fix(title, f"%parmap {function} {inputs}{axes}")
    axes = f", in_axes={in_axes}" if in_axes is not None else ""
    return Fix(title, f"from jaxpar_magic import parmap\nresult = parmap({function}, {inputs}{axes})")
