"""Maps of a function over inputs: `parmap` and what is behind it.

request → `inputs.Batch` → `tracing.ItemProgram` → `planner.MapPlan` → `programs` (compiled once per text) →
`runner` (chunks) → `collect` → `result.MapResult`. Importing this package imports nothing; its names do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import last_report, parmap
    from .compare import Comparison
    from .result import MapReport, MapResult
    from .runner import run_map

_HOMES = {
    "parmap": ".api",
    "last_report": ".api",
    "Comparison": ".compare",
    "MapReport": ".result",
    "MapResult": ".result",
    "run_map": ".runner",
}

__all__ = ["Comparison", "MapReport", "MapResult", "last_report", "parmap", "run_map"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)
