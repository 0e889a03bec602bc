"""Maps that run elsewhere: where a cluster registers what runs `strategy="cluster"`. This package never imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ClusterError

if TYPE_CHECKING:
    from .inputs import Batch
    from .monitor import Monitor
    from .options import MapOptions
    from .planner import MapPlan
    from .result import MapResult
    from .tracing import ItemProgram
    from .workers import ItemFailure


class Runner(Protocol):
    """Runs maps on a cluster."""

    def run_traced(self, function: Callable, batch: Batch, options: MapOptions, monitor: Monitor) -> MapResult:
        """Map a function that can be traced over a stacked batch; exceptions as `traced.run_traced`."""

    def run_spmd(
        self,
        function: Callable,
        inputs: Sequence[Any],
        named: dict[str, Any],
        options: MapOptions,
        monitor: Monitor,
    ) -> MapResult:
        """Map a function as one program over all engines."""

    def run_items(
        self,
        function: Callable,
        batch: Batch,
        todo: Sequence[int],
        results: dict[int, Any],
        options: MapOptions,
        monitor: Monitor,
        on_done: Callable[[int], None],
    ) -> tuple[list[ItemFailure], list[str]]:
        """Call a function of plain Python for the items `todo`, and fill `results` by index: (failures, notes).

        Under on_error="raise" the first failure is raised, as if it had happened here.
        """

    def plan(self, item: ItemProgram, length: int, options: MapOptions) -> MapPlan:
        """How a map would be cut."""

    def parts(self) -> int:
        """How many engines there are."""


_find: Callable[[], Runner] | None = None


def register(find: Callable[[], Runner]) -> None:
    """From now on `find` gives what runs maps elsewhere, or raises ClusterError if there is none now."""
    global _find
    _find = find


def runner() -> Runner:
    """What runs maps elsewhere. ClusterError if there is none."""
    if _find is None:
        raise ClusterError("no cluster is running.", next_step="%jaxcluster start", argument="strategy")
    return _find()
