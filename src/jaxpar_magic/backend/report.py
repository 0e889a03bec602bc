"""What `devices()` answers: plain attributes, and the document that shows them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..document import Bars, Block, Code, Described, Document, Heading, Items, Paragraph, Table
from ..machine import Cores, resident_memory, size_text
from . import flags, platforms
from .arrays import ArrayInfo, bytes_by_device, picture
from .plan import Plan, too_many
from .stale import Stale
from .state import DeviceInfo, Phase, Setting, State

_SHOWN_DEVICES = 8
_SHOWN_ARRAYS = 20
_SHOWN_SHARDS = 4
_DRAWN_ARRAYS = 4
_SHOWN_STALE = 12

_KEPT = (
    "Every array keeps its value; ordinary arrays, random keys and functions keep working. "
    "Functions compile again at their next use."
)
_MET = {
    "absent": "JAX is not imported: the environment decides",
    "imported": "JAX is imported and has not started: its configuration decides",
    "running": "JAX runs",
}


@dataclass(frozen=True, repr=False)
class DeviceReport(Described):
    """JAX's devices and what decides about them.

    Attributes
    ----------
    state: "absent" (jax not imported), "imported" (backend not started) or "running".
    met: the same before anything was changed.
    count: how many devices JAX has, or CPU devices it will start with.
    count_source: where the number of CPU devices comes from.
    will_use: the platform that JAX uses by default, or will as far as files tell.
    devices: those that JAX has; empty unless running.
    cores: how many cores this process may use (affinity and control groups honoured).
    core_limits: the machine's cores and the limits.
    free_memory: bytes that this process can still allocate.
    settings: by name ("count", "platforms", "x64", "debug_nans", "cache"): value and source.
    environment: other variables that are set and matter, such as XLA_FLAGS.
    versions: of "jax", "jaxlib", "Python".
    changed: one sentence for what was done; empty if nothing was asked for.
    was_reset: whether a running backend was started anew.
    notes: what to know or do next, one sentence or two each.
    stale: what belongs to old devices, or (in a dry run) would.
    arrays: the live arrays if they were asked for.
    plan: what would be done, in a dry run.
    """

    state: Phase
    met: Phase
    count: int
    count_source: str
    will_use: str
    devices: tuple[DeviceInfo, ...]
    cores: int
    core_limits: Cores
    free_memory: int
    settings: Mapping[str, Setting]
    environment: Mapping[str, str]
    versions: Mapping[str, str | None]
    changed: str = ""
    was_reset: bool = False
    notes: tuple[str, ...] = ()
    stale: tuple[Stale, ...] = ()
    arrays: tuple[ArrayInfo, ...] | None = None
    plan: Plan | None = None

    def __repr__(self) -> str:
        return f"<DeviceReport: {self._title()}>"

    def line(self) -> str:
        """The report in one line."""
        left = f"; {_plural(len(self.stale), 'name')} of old devices" if self.stale else ""
        return f"jaxdevices: {self._title()}{left}"

    def describe(self) -> Document:
        """The report as blocks to show."""
        blocks: list[Block] = [Heading(self._title())]
        if self.changed:
            blocks.append(Paragraph(self.changed))
        if self.plan is None:
            blocks.append(Table(("what", "value", "from"), tuple(self._rows())))
            blocks += self._core_bars()
        elif self.plan.steps:
            blocks += self._dry_run(self.plan)
        blocks += self._reset_blocks()
        if self.notes:
            blocks.append(Items(self.notes))
        if self.arrays is not None:
            blocks += self._array_blocks(self.arrays)
        return Document(tuple(blocks))

    def _title(self) -> str:
        if self.plan is not None:
            return "Dry run: nothing was changed"
        if self.versions["jax"] is None:
            return "JAX is not installed"
        if self.state == "running":
            return f"JAX runs on {_devices_in_words(self.devices)}"
        start = f"with {_plural(self.count, 'CPU device')}" if self.will_use == "cpu" else f"on {self.will_use}"
        met = "is not imported yet" if self.state == "absent" else "has not started"
        return f"JAX {met}: it will start {start}"

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        names = [device.name for device in self.devices]
        if len(names) > _SHOWN_DEVICES:
            names = [*names[:2], "…", names[-1]]
        yield "devices", ", ".join(names) or str(self.count), _short(self.count_source)
        for device in self.devices[:_SHOWN_DEVICES]:
            if device.memory_used is not None:
                limit = f" of {size_text(device.memory_limit)}" if device.memory_limit else ""
                yield device.name, f"{device.kind}, {size_text(device.memory_used)}{limit} in use", ""
        limits = self.core_limits
        which = f": {_ranges(limits.numbers)}" if len(limits.numbers) < limits.machine and limits.numbers else ""
        yield "cores", f"{self.cores} usable of {limits.machine}{which}", _core_limit(limits)
        yield "memory", f"{size_text(self.free_memory)} free for this process", ""
        for name in ("x64", "debug_nans", "platforms", "cache"):
            setting = self.settings[name]
            if name == "x64" or setting.source != "default":
                yield name, _in_words(setting.value), _short(setting.source)
        for name, text in self.environment.items():
            yield name, text, "environment"
        versions = [f"{label} {version}" for label, version in self.versions.items() if version]
        yield "versions", ", ".join(versions).replace("jax ", "JAX ", 1), ""

    def _core_bars(self) -> Iterator[Block]:
        """Devices against cores: too few leave cores idle, too many get in each other's way."""
        if self.will_use != "cpu" or any(device.platform != "cpu" for device in self.devices):
            return
        counts = {
            "CPU devices of JAX": len(self.devices) or self.count,
            "cores that it may use": self.cores,
            "cores of the machine": self.core_limits.machine,
        }
        if self.cores == self.core_limits.machine:
            del counts["cores of the machine"]
        yield Bars([(name, number, str(number)) for name, number in counts.items()], "devices and cores")

    def _dry_run(self, plan: Plan) -> Iterator[Block]:
        anew = ", and its CPU backend would be started anew" if plan.resets else ""
        yield Paragraph(f"{_MET[self.met]}{anew}.")
        yield Code(plan.python(), label="The same in plain Python")
        yield Code(plan.shell(), language="bash", label="The same in the shell, before Python starts")

    def _reset_blocks(self) -> Iterator[Block]:
        """What a reset keeps and what it does not; also what an earlier one left behind."""
        if self.was_reset:
            yield Paragraph(_KEPT, label="Kept")
        elif self.plan is not None and self.plan.resets:
            yield Paragraph(_KEPT, label="It would keep")
        if not self.stale:
            return
        belong = "would still belong" if self.plan is not None else "still belong"
        text = f"These {belong} to the old devices, and fail when they meet new ones:"
        yield Paragraph(text, label="Not kept")
        rows = [
            (item.name, item.kind if item.count == 1 else f"{item.count} × {item.kind}", item.remedy)
            for item in self.stale[:_SHOWN_STALE]
        ]
        if len(self.stale) > _SHOWN_STALE:
            rows.append((f"… {len(self.stale) - _SHOWN_STALE} more", "", ""))
        yield Table(("name", "what", "to use it on the new devices"), tuple(rows))

    def _array_blocks(self, arrays: tuple[ArrayInfo, ...]) -> Iterator[Block]:
        yield Heading("Live arrays", level=2)
        if not arrays:
            yield Paragraph("None." if self.state == "running" else "None: JAX has not started.")
            return
        named = [array for array in arrays if array.name]
        rows = [_array_row(array) for array in named[:_SHOWN_ARRAYS]]
        rest = [*named[_SHOWN_ARRAYS:], *(array for array in arrays if not array.name)]
        if rest:
            label = "(no variable)" if len(named) <= _SHOWN_ARRAYS else "…"
            total = size_text(sum(array.nbytes for array in rest))
            rows.append((label, _plural(len(rest), "more array"), total, "", ""))
        columns = ("name", "shape", "size", "sharding", "which device holds what")
        yield Table(columns, tuple(rows), numeric=frozenset({2}))
        yield from [grid for grid in map(picture, named) if grid is not None][:_DRAWN_ARRAYS]
        sizes = [f"{name} {size_text(size)}" for name, size in bytes_by_device(arrays).items()]
        text = f"{', '.join(sizes)}; the whole process {size_text(resident_memory())}."
        yield Paragraph(text, label="In memory")


def notes(state: State, bad: tuple[flags.BadFlag, ...]) -> Iterator[str]:
    """What a user should know about `state`, and the command that helps."""
    for flag in bad:
        yield f"XLA_FLAGS would end this process at the first use of JAX: {flag}"
    if bad:
        yield f"To repair it: {flags.correction(state.xla_flags, bad)}"
    elif unread := flags.unread(state.xla_flags):
        yield f"XLA does not read the end of XLA_FLAGS: {unread} (a value stands after '=')."
    late = list(_late_notes(state))
    yield from late
    running = state.phase == "running"
    for name in () if running else state.chosen_platforms:
        if absent := platforms.absence(name):
            source = state.settings["platforms"].source
            yield f"{name} is chosen ({source}), but {absent[0]}: JAX will not start."
            yield "%jaxdevices --platform cpu chooses the CPU."
    count, _ = state.cpu_count
    usable = state.cores.usable
    only_cpu = all(device.platform == "cpu" for device in state.devices) and not platforms.usable()
    if count < 1 and not running:
        yield f"JAX cannot start with {count} CPU devices. %jaxdevices all gives one for each core."
    elif count > usable:
        yield too_many(usable)
    elif count < usable and only_cpu and not bad and not late:
        yield f"%jaxdevices all gives one CPU device for each of the {usable} cores."


def _late_notes(state: State) -> Iterator[str]:
    """Settings that came too late, each with the command that makes it so now."""
    late = "was set after JAX had started: not in force."
    for name in state.flags_not_in_force:
        if name != flags.COUNT_FLAG:
            yield f"--{name} in XLA_FLAGS {late} Restart the kernel and set it before the first JAX operation."
        elif state.settings["count"].value < 0:
            number = flags.values(state.xla_flags)[name]
            yield f"XLA_FLAGS asks for {number} devices, but {late} %jaxdevices {number} makes it so now."
    commands = {"count": "{}", "platforms": "--platform {}", "cache": "--cache {}"}
    for name, setting in state.settings.items():
        if setting.too_late is not None:
            switch = f"--{'' if setting.too_late else 'no-'}{name.replace('_', '-')}"
            command = commands.get(name, switch).format(setting.too_late)
            yield (
                f"{setting.variable}={setting.too_late} is not in force: JAX reads it only when it is imported. "
                f"%jaxdevices {command} makes it so."
            )


def _devices_in_words(devices: tuple[DeviceInfo, ...]) -> str:
    counts: dict[str, int] = {}
    for device in devices:
        counts[device.platform] = counts.get(device.platform, 0) + 1
    text = " and ".join(_plural(number, f"{name.upper()} device") for name, number in counts.items())
    processes = len({device.process for device in devices})
    return f"{text} of {processes} processes" if processes > 1 else text


def _array_row(array: ArrayInfo) -> tuple[str, str, str, str, str]:
    sharding = array.sharding if array.current else f"{array.sharding} (old devices)"
    shape = f"{array.dtype}{list(array.shape)}"
    return array.name, shape, size_text(array.nbytes), sharding, _where(array)


def _where(array: ArrayInfo) -> str:
    whole = all(part == (0, size) for s in array.shards for part, size in zip(s.index, array.shape))
    parts = [
        shard.device if whole else f"{shard.device} {_slices(shard.index, array.shape)}"
        for shard in array.shards[:_SHOWN_SHARDS]
    ]
    if len(array.shards) > _SHOWN_SHARDS:
        parts.append(f"… {len(array.shards) - _SHOWN_SHARDS} more")
    if not whole and len({shard.nbytes for shard in array.shards}) == 1:
        parts.append(f"{size_text(array.shards[0].nbytes)} each")
    return ", ".join(parts)


def _slices(index: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> str:
    """As numpy would write it, without whole axes at the end: "[0:3]"."""
    texts = [":" if (first, last) == (0, size) else f"{first}:{last}" for (first, last), size in zip(index, shape)]
    while len(texts) > 1 and texts[-1] == ":":
        texts.pop()
    return f"[{', '.join(texts)}]"


def _core_limit(cores: Cores) -> str:
    if cores.quota is not None and cores.usable < cores.affinity:
        return f"control group: {cores.quota:g}"
    return "affinity" if cores.affinity < cores.machine else ""


def _ranges(numbers: tuple[int, ...]) -> str:
    """Rising numbers in a few words: "0-3, 6"."""
    texts = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        texts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ", ".join(texts)


def _short(source: str) -> str:
    return source.replace("environment variable ", "")


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "automatic" if value is None else str(value)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
