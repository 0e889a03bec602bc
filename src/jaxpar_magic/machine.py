"""What this process may use of the machine: cores and memory. Knows nothing of JAX.

`os.cpu_count()` and the machine's free memory are not the answer in a container, under a batch scheduler,
or after `taskset` and `ulimit`: a process that takes them at their word is throttled or killed.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Cores:
    """Where the number of usable cores comes from.

    Attributes
    ----------
    machine: cores of the machine.
    affinity: cores that this process may be scheduled on (`taskset`, SLURM, `docker --cpuset-cpus`).
    quota: processor time in cores that its control groups allow (`docker --cpus`), None without a limit.
    numbers: which cores `affinity` counts, as the system numbers them; empty where it does not tell.
    """

    machine: int
    affinity: int
    quota: float | None
    numbers: tuple[int, ...] = field(default=(), compare=False)

    @property
    def usable(self) -> int:
        """At least 1. A quota of 1.5 cores counts as 2: with one busy core the half would go unused."""
        quota = self.affinity if self.quota is None else math.ceil(self.quota)
        return max(1, min(self.affinity, quota))


def cores(proc: str = "/proc") -> Cores:
    """The cores of this process with the limits they come from. `proc` is for tests."""
    machine = os.cpu_count() or 1
    numbers = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    quotas = [q for q in map(_cpu_quota, _control_groups("cpu", proc)) if q is not None]
    return Cores(machine, len(numbers) or machine, min(quotas, default=None), numbers)


def usable_cores() -> int:
    """How many cores this process may use: affinity and control-group quotas honoured.

    Examples
    --------
    >>> usable_cores() >= 1
    True
    """
    return cores().usable


def free_memory(proc: str = "/proc") -> int:
    """Bytes that this process can still allocate before it is refused, killed or swapped.

    The least of: memory available on the machine, what its control groups leave, and what `ulimit -v` and
    `ulimit -d` leave. Where the system tells no figure for available memory (macOS), all of its memory.

    Examples
    --------
    >>> free_memory() > 0
    True
    """
    left = [_available(proc)]
    left += [room for room in map(_memory_left, _control_groups("memory", proc)) if room is not None]
    left += _left_by_ulimit(proc)
    return max(0, min(left))


def _available(proc: str) -> int:
    fields = _fields(Path(proc, "meminfo"))
    if "MemAvailable:" in fields:
        return fields["MemAvailable:"] * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_by_ulimit(proc: str) -> list[int]:
    try:
        import resource  # not on every system
    except ImportError:
        return []
    used = _fields(Path(proc, "self/status"))
    left = []
    for limit, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            left.append(soft - used.get(name, 0) * 1024)
    return left


def _control_groups(controller: str, proc: str) -> Iterator[Path]:
    """Directories of the control groups whose limits bind this process: its own and all above it.

    Version 1 has a hierarchy per controller, version 2 one for all; a machine may have both at once.
    """
    groups = {}  # controllers as the kernel lists them ("" is version 2) -> this process's group
    for line in _text(Path(proc, "self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        for name in controllers.split(","):
            groups[name] = group
    for line in _text(Path(proc, "self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mounted_at = before.split(" ")[3:5]
        if kind == "cgroup2":
            version = ""
        elif kind == "cgroup" and controller in options.split(" ")[-1].split(","):
            version = controller
        else:
            continue
        if version not in groups:
            continue
        # In a container the mount may show only the container's own subtree, as `root` tells.
        inside = os.path.relpath(groups[version], root)
        top = directory = Path(mounted_at)
        if not inside.startswith(".."):
            directory = top / inside
        yield directory
        while directory != top:
            directory = directory.parent
            yield directory


def _cpu_quota(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    if not quota.strip().isdigit():  # "max", "-1" or no such file: no limit
        return None
    return int(quota) / int(period)


def _memory_left(group: Path) -> int | None:
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _text(group / limit_name).strip()
        # "No limit" is "max" in version 2 and a number near 2**63 in version 1, larger than any machine.
        if limit.isdigit():
            used = int(_text(group / used_name) or 0)
            # Page cache counts as used, but the kernel gives it back before it kills anyone.
            return int(limit) - used + _fields(group / "memory.stat").get(cache, 0)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such file on this system, or not for us to read
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Lines such as `MemAvailable:   123 kB` or `inactive_file 123` as a dict of their numbers."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


def resident_memory(proc: str = "/proc") -> int:
    """Bytes of memory that this process occupies now (its peak where the system tells no more)."""
    used = _fields(Path(proc, "self/status")).get("VmRSS:")
    if used is not None:
        return used * 1024
    import resource  # macOS: bytes there, kilobytes elsewhere

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass


def size_text(size: int) -> str:
    """Bytes for people.

    >>> size_text(384), size_text(24_800_000_000)
    ('384 B', '24.8 GB')
    """
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.3g} {unit}"
