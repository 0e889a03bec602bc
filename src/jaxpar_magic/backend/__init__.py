"""JAX's devices: what they are, and how to get others at any time. The function is `devices()`.

Inside: state (read without importing jax) → plan (pure) → apply → report.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import DeviceReport
    from .stale import Stale

__all__ = ["devices"]


def devices(
    count: int | str | None = None,
    *,
    platform: str | None = None,
    visible: str | Iterable[int] | None = None,
    mem_fraction: float | None = None,
    preallocate: bool | None = None,
    x64: bool | None = None,
    debug_nans: bool | None = None,
    cache: str | os.PathLike[str] | None = None,
    flags: str | Iterable[str] = (),
    arrays: bool = False,
    dry_run: bool = False,
    namespace: Mapping[str, Any] | None = None,
) -> DeviceReport:
    """Show JAX's devices, or set how many CPU devices there are and what JAX does with them.

    Without arguments nothing changes: jax is not imported and no backend is started. With them it works
    whether JAX is not imported yet, imported, or running. A running CPU backend is started anew in place:
    every array keeps its value; ordinary arrays, random keys and functions keep working. Arrays that you
    placed or sharded yourself, meshes, shardings and device variables still belong to the old devices, and
    the report names them.

    Parameters
    ----------
    count:
        Number of CPU devices, 1 to 256; "all" is one for each core that this process may use.
    platform:
        What JAX uses by default: "cpu", "gpu", "cuda", "rocm", "tpu". Before JAX starts only.
    visible:
        Numbers of the accelerators to use, such as "0,1". Before JAX starts only.
    mem_fraction:
        Share of an accelerator's memory that JAX takes at its start, above 0 and at most 1.
    preallocate:
        False: take memory as needed instead.
    x64:
        Whether arrays may be 64 bits wide (otherwise float64 becomes float32).
    debug_nans:
        Whether an operation that gives NaN raises.
    cache:
        Directory in which compiled programs are kept from one session to the next.
    flags:
        XLA flags such as "--xla_cpu_enable_fast_math=true". Before JAX starts only. All other flags stay.
    arrays:
        List the live arrays, with the rows that each device holds.
    dry_run:
        Change nothing; the report holds the plain Python and shell lines that would do the same.
    namespace:
        Where to look for names of arrays, meshes and so on: usually `globals()`.

    Returns
    -------
    DeviceReport
        Shows itself; `.state`, `.count`, `.devices`, `.cores`, `.notes`, `.stale` and others are plain data.

    Raises
    ------
    OptionError
        An argument has a value that cannot be used. Nothing was changed.
    DeviceError
        It cannot be done in this state (a GPU that is not there, a flag that XLA does not know, a job of
        several processes). Everything is as it was before.

    Examples
    --------
    >>> report = devices()
    >>> report.cores >= 1
    True
    >>> devices(2, dry_run=True).plan is not None
    True
    """
    from . import plan as planning
    from . import platforms
    from . import state as states
    from .flags import check
    from .report import DeviceReport
    from .report import notes as state_notes
    from .stale import find

    request = planning.request(
        count,
        platform=platform,
        visible=visible,
        mem_fraction=mem_fraction,
        preallocate=preallocate,
        x64=x64,
        debug_nans=debug_nans,
        cache=cache,
        flags=flags,
    )
    names = namespace or {}
    before = states.read()
    plan = planning.make(request, before) if request else planning.Plan(before.phase)

    stale: tuple[Stale, ...] = ()
    if plan.resets:
        stale = find(names, frozenset())  # all that is bound to devices will be
    changed = ""
    if plan.steps and not dry_run:
        from .apply import apply

        if request.cache is not None:
            planning.make_cache(request.cache)  # before anything is changed
        apply(plan)
        changed = plan.done(before)
    after = states.read()
    if after.phase == "running" and not plan.resets:
        stale = find(names, frozenset(states.current_devices()))
    bad = check(after.xla_flags) if after.phase != "running" else ()
    extra = plan.notes if plan.steps else ()
    notes = [*extra, *(() if dry_run else state_notes(after, bad))]
    if request and not plan.steps:
        changed = "Nothing to do: everything is as asked already."
    listed = None
    if arrays:
        from .arrays import live

        listed = live(names) if after.phase == "running" else ()
    cpu_count, source = after.cpu_count
    return DeviceReport(
        state=after.phase,
        met=before.phase,
        count=len(after.devices) if after.phase == "running" else cpu_count,
        devices=after.devices,
        cores=after.cores.usable,
        core_limits=after.cores,
        free_memory=after.free_memory,
        settings=after.settings,
        environment=after.environment,
        versions=after.versions,
        count_source=source,
        will_use=platforms.expected(after.chosen_platforms),
        changed=changed,
        notes=tuple(dict.fromkeys(notes)),
        stale=stale,
        was_reset=plan.resets and not dry_run,
        arrays=listed,
        plan=plan if dry_run and request else None,
    )
