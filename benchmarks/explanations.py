"""What a card costs, and what a cell costs that does not fail. A part in a process of its own; run by run.py.

    python benchmarks/explanations.py later 7

Each figure is a line of JSON: what, value, unit, and the aim that it ought not to exceed. The failing cells are the
examples of the error index that need one device.
"""

from __future__ import annotations

import compileall
import contextlib
import io
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import tell

FIRST_CARDS = 3  # fresh processes, times rounds
CELLS = 40  # with the extension, and as many without, times rounds
CELLS_AT_A_TIME = 5
SUCCEEDING = {
    "one assignment": "a = 1",
    "a compiled call": "y = f(x).block_until_ready()",
    "ten calls of jax.numpy": "for _ in range(10):\n    z = jnp.sin(x) + 1\nz = z.block_until_ready()",
}


def figure(what: str, value: float, unit: str, aim: float) -> None:
    tell("figure", what=what, value=value, unit=unit, aim=aim)


def start_shell() -> Any:
    """A shell with the extension and JAX, as a user's before the first error."""
    import jax
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "jaxpar_magic")
    shell.run_cell("import jax, jax.numpy as jnp, numpy as np\njnp.ones(3).sum().block_until_ready()")
    assert jax.device_count()
    return shell


@contextlib.contextmanager
def timed_cards(shell: Any) -> Iterator[list[float]]:
    """Seconds that everything takes that happens after each cell: nothing but ours does something then."""
    times: list[float] = []
    trigger = shell.events.trigger

    def timed(event: str, *arguments: Any, **named: Any) -> None:
        start = time.perf_counter()
        trigger(event, *arguments, **named)
        if event == "post_run_cell":
            times.append(time.perf_counter() - start)

    shell.events.trigger = timed
    try:
        yield times
    finally:
        del shell.events.trigger


def card_seconds(shell: Any, source: str) -> float | None:
    """From the end of a failing cell to its card, text and HTML; None if the cell gets no card here."""
    import jax

    settings = dict(jax.config.values)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), timed_cards(shell) as times:
        warnings.simplefilter("ignore")
        shell.run_cell(source, store_history=True)
        shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    for name, value in settings.items():
        if jax.config.values.get(name) != value:
            jax.config.update(name, value)
    return times[-1] if "%jaxexplain JPX" in shown else None


def failing_cells() -> dict[str, str]:
    """The first failing example of each page, of those that leave this process as it was."""
    from jaxpar_magic import _jax
    from jaxpar_magic.explanations import pages

    cells: dict[str, str] = {}
    for code in pages.codes():
        for example in pages.page(code).examples:
            usual = example.devices == 1 and not example.env and not example.warns and not example.aborts
            starts = any(word in example.source for word in ("distributed", "Pool", "fork", "jax_num_cpu", "environ"))
            fits = example.kind == "broken" and example.language == "python" and usual and not starts
            if fits and example.applies_to(_jax.jax_version()):
                cells.setdefault(code, example.source)
    return cells


# -------------------------------------------------------------------- the first card of a session


def first(rounds: int) -> None:
    """In a fresh process each, of a package that is compiled to bytecode, as an installed one is."""
    from jaxpar_magic import explanations

    compileall.compile_dir(Path(explanations.__file__).parent.parent, quiet=1)
    cells = failing_cells()
    times: dict[str, float] = {}
    for code in random.Random(0).sample(sorted(cells), len(cells)):
        tell("begin", variant=code)
        done = subprocess.run([sys.executable, __file__, "one", code], capture_output=True, text=True, timeout=120)
        seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
        if seconds is not None:
            times[code] = seconds
        if len(times) == FIRST_CARDS * rounds:
            break
    worst = max(times, key=lambda code: times[code])
    figure(f"first card of a session, median of {len(times)} kinds", statistics.median(times.values()) * 1e3, " ms", 50)
    figure(f"… the worst ({worst})", times[worst] * 1e3, " ms", 50)


def one(code: str) -> None:
    source = failing_cells()[code]
    # what was read for the example must not be there already when the card is made
    for name in [name for name in sys.modules if name.startswith("jaxpar_magic")]:
        del sys.modules[name]
    tell("one", seconds=card_seconds(start_shell(), source))


# -------------------------------------------------------------------- later cards


def later(rounds: int) -> None:
    """Every kind in one session: the first of its kind, and again."""
    shell, cells = start_shell(), failing_cells()
    card_seconds(shell, "jnp.ones(3) + jnp.ones(4)")
    new: dict[str, float] = {}
    again: dict[str, list[float]] = {}
    for code in random.Random(0).sample(sorted(cells), len(cells)):
        tell("begin", variant=code)
        seconds = card_seconds(shell, cells[code])
        if seconds is not None:
            new[code] = seconds
    for _ in range(rounds):
        for code in random.sample(sorted(new), len(new)):
            tell("begin", variant=code)
            seconds = card_seconds(shell, cells[code])
            if seconds is not None:
                again.setdefault(code, []).append(seconds)
    for what, times in (
        ("later cards, the first of their kind", new),
        ("later cards, a kind seen before", {code: statistics.median(t) for code, t in again.items()}),
    ):
        worst = max(times, key=lambda code: times[code])
        figure(f"{what}: median of {len(times)} kinds", statistics.median(times.values()) * 1e3, " ms", 5)
        figure(f"… the worst ({worst})", times[worst] * 1e3, " ms", 5)
        figure("… kinds over 5 ms", float(sum(t > 5e-3 for t in times.values())), "", 0)


# -------------------------------------------------------------------- cells that do not fail


def cells(rounds: int) -> None:
    """The same cells with and without the extension, in turn; and without against without, which is the noise."""
    shell = start_shell()
    shell.run_cell("f = jax.jit(lambda x: x * 2 + 1)\nx = jnp.ones(1000)")
    for name, source in SUCCEEDING.items():
        times: dict[str, list[float]] = {"with": [], "without": [], "without again": []}
        for _ in range(CELLS * rounds // CELLS_AT_A_TIME):
            for how in random.sample(list(times), len(times)):
                shell.run_line_magic("load_ext" if how == "with" else "unload_ext", "jaxpar_magic")
                for number in range(CELLS_AT_A_TIME + 1):
                    start = time.perf_counter()
                    shell.run_cell(source)
                    if number:  # the first one after a change is slower
                        times[how].append(time.perf_counter() - start)
                if how == "with":
                    shell.run_line_magic("unload_ext", "jaxpar_magic")
        tell("begin", variant=name)
        took = {how: statistics.median(t) for how, t in times.items()}
        figure(f"a cell that succeeds ({name}): added", (took["with"] - took["without"]) * 1e3, " ms", 0.05)
        noise = abs(took["without"] - took["without again"])
        figure(f"… of {took['without'] * 1e3:.2f} ms; between cells without it", noise * 1e3, " ms", 0.05)


PARTS = {"first": first, "later": later, "cells": cells}

if __name__ == "__main__":
    begin = time.monotonic()
    if sys.argv[1] == "one":
        one(sys.argv[2])
    else:
        PARTS[sys.argv[1]](int(sys.argv[2]))
        tell("done", seconds=time.monotonic() - begin)
    sys.stdout.flush()
    os._exit(0)
