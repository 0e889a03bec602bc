"""From a request and the state to a plan: what will be done, in which order, or why not. Pure.

A plan can be shown without being applied: each step tells the plain Python and the shell line that do the
same.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from .._jax import POOL_VARIABLE
from ..errors import DeviceError, OptionError, did_you_mean
from . import flags, platforms
from .state import Phase, State, option, variable

MOST_DEVICES = 256
_MANY_DEVICES = 64
_COUNT_NEEDS = f"needs a whole number from 1 to {MOST_DEVICES}, or 'all'"


@dataclass(frozen=True)
class Request:
    """What was asked for, checked and normalised; None or empty where nothing was asked."""

    count: int | str | None = None  # "all" until the cores are known
    platform: str | None = None
    visible: tuple[int, ...] | None = None
    mem_fraction: float | None = None
    preallocate: bool | None = None
    x64: bool | None = None
    debug_nans: bool | None = None
    cache: str | None = None
    flags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Request()


@dataclass(frozen=True)
class SetVariable:
    """Set an environment variable that JAX, XLA or a driver will read."""

    name: str
    value: str

    def python(self) -> str:
        return f"os.environ[{self.name!r}] = {self.value!r}"

    def done(self) -> str:
        return f"set environment variable {self.name}={self.value}"

    def shell(self) -> str:
        return f"export {self.name}={quote(self.value)}"


@dataclass(frozen=True)
class Configure:
    """`jax.config.update(name, value)`. `variable` does the same before the import, if there is one."""

    name: str
    value: Any
    variable: str | None

    def python(self) -> str:
        return f"jax.config.update({self.name!r}, {self.value!r})"

    def done(self) -> str:
        return f"set {self.name} to {self.value!r}"

    def shell(self) -> str:
        return f"export {self.variable}={quote(_as_text(self.value))}"


@dataclass(frozen=True)
class SetCount:
    """The number of CPU devices, of a backend that may run already: then it is started anew."""

    count: int
    reset: bool

    def done(self) -> str:
        return "" if self.reset else f"set jax_num_cpu_devices to {self.count}"

    def python(self) -> str:
        configure = f"jax.config.update('jax_num_cpu_devices', {self.count})"
        if not self.reset:
            return configure
        return "\n".join(["import jax.extend", "jax.extend.backend.clear_backends()", configure, "jax.clear_caches()"])

    def shell(self) -> str:
        return f"export JAX_NUM_CPU_DEVICES={self.count}"


Step = SetVariable | Configure | SetCount


@dataclass(frozen=True)
class Plan:
    """What will be done.

    Attributes
    ----------
    phase: the state that it was made for.
    steps: in order; empty if everything is as asked already.
    notes: what the user should know about the choice.
    """

    phase: Phase
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def resets(self) -> bool:
        """Whether a running backend is started anew."""
        return any(isinstance(step, SetCount) and step.reset for step in self.steps)

    def python(self) -> str:
        """Plain Python that does the same, to be run in the state that the plan was made for."""
        lines = [step.python() for step in self.steps]
        imports = [f"import {module}" for module in ("os", "jax") if any(f"{module}." in line for line in lines)]
        when = {"absent": ["# before JAX is imported"], "imported": ["# before the first JAX operation"]}
        return "\n".join(when.get(self.phase, []) + imports + lines)

    def done(self, state: State) -> str:
        """A sentence on what was done to `state`, once it is done."""
        parts = [step.done() for step in self.steps]
        if self.resets:
            parts.append(f"the CPU backend was started anew (it had {state.cpu_count[0]})")
        text = "; ".join(part for part in parts if part)
        return f"{text[0].upper()}{text[1:]}."

    def shell(self) -> str:
        """Shell lines that give a Python started afterwards the same."""
        return "\n".join(step.shell() for step in self.steps)


def request(
    count: Any = None,
    *,
    platform: Any = None,
    visible: Any = None,
    mem_fraction: Any = None,
    preallocate: Any = None,
    x64: Any = None,
    debug_nans: Any = None,
    cache: Any = None,
    flags: Any = (),
) -> Request:
    """Check every argument before anything is touched. Raises OptionError."""
    return Request(
        count=_count(count),
        platform=_platform(platform),
        visible=_visible(visible),
        mem_fraction=_fraction(mem_fraction),
        preallocate=_flag("preallocate", preallocate),
        x64=_flag("x64", x64),
        debug_nans=_flag("debug_nans", debug_nans),
        cache=_cache(cache),
        flags=_flags(flags),
    )


def make(request: Request, state: State) -> Plan:
    """The plan for `request` in `state`. Raises OptionError or DeviceError where it cannot be done."""
    if state.versions["jax"] is None:
        raise DeviceError("JAX is not installed.", next_step="pip install jax")
    if state.phase != "running":
        _refuse_bad_flags(state)
    steps: list[Step] = []
    notes: list[str] = []
    for part in (_flag_steps, _platform_steps, _accelerator_steps, _setting_steps, _count_steps):
        part(request, state, steps, notes)
    return Plan(state.phase, tuple(steps), tuple(notes))


# --- checking arguments ------------------------------------------------------------------------------------


def _count(value: Any) -> int | str | None:
    if value is None or value == "all":
        return value
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= MOST_DEVICES:
        raise OptionError(
            f"count={value!r}: {_COUNT_NEEDS}.",
            next_step="%jaxdevices all (one CPU device for each core you may use)",
            argument="count",
        )
    return number


def _platform(value: Any) -> str | None:
    if value is None:
        return None
    known = (*platforms.KNOWN, *platforms.installed())
    if value not in known:
        raise OptionError(
            f"platform={value!r}: JAX knows no such platform here.{did_you_mean(str(value), known)}",
            next_step=f"use one of {', '.join(dict.fromkeys(known))}",
            argument="platform",
        )
    return value


def _visible(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts: Iterable[Any]
    if isinstance(value, str):
        parts = [int(part) if part.strip().isdigit() else None for part in value.split(",")]
    else:
        parts = value if isinstance(value, Iterable) else [value]
    numbers = tuple(parts)
    sound = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if not numbers or not sound or len(set(numbers)) != len(numbers):
        raise OptionError(
            f"visible={value!r}: needs different device numbers from 0, such as '0,1'.", argument="visible"
        )
    return numbers


def _fraction(value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= 1:
        raise OptionError(
            f"mem_fraction={value!r}: needs a share of the accelerator's memory above 0, at most 1.",
            next_step="JAX's own default is 0.75",
            argument="mem_fraction",
        )
    return number


def _flag(name: str, value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: needs True or False.", argument=name)
    return value


def _cache(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        raise OptionError(f"cache={value!r}: needs a directory.", argument="cache")
    try:
        path = Path(value).expanduser().absolute()
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a null byte
        raise _no_cache(value, error) from None
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        problem = "is a file" if not nearest.is_dir() else "cannot be written to"
        raise OptionError(f"cache={str(value)!r}: {nearest} {problem}; needs a directory.", argument="cache")
    return str(path)


def make_cache(path: str) -> None:
    """Create the directory of the compilation cache, if it is not there. Raises OptionError."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _no_cache(path, error) from None


def _no_cache(value: Any, error: Exception) -> OptionError:
    reason = error.strerror if isinstance(error, OSError) else error
    return OptionError(f"cache={str(value)!r}: cannot be made: {reason}; needs a directory.", argument="cache")


def _flags(value: Any) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else tuple(value)
    checked = []
    for text in given:
        if not isinstance(text, str) or not text.strip():
            raise OptionError(f"flags={text!r}: needs an XLA flag such as '--xla_…=…'.", argument="flags")
        flag = f"--{text}" if text.startswith("xla_") else text
        for bad in flags.check(flag):
            raise OptionError(f"flags={text!r}: {bad.problem}.{bad.hint}", argument="flags")
        if flags.unread(flag):
            raise OptionError(
                f"flags={text!r}: XLA would not read {flags.unread(flag)!r}; a value stands after '='.",
                argument="flags",
            )
        for name, number in flags.values(flag).items():
            if name == flags.COUNT_FLAG:
                raise OptionError(
                    f"flags={text!r}: this flag is the device count.",
                    next_step=f"%jaxdevices {number} (works at any time)",
                    argument="flags",
                )
        checked += flags.words(flag)
    return tuple(checked)


# --- steps -------------------------------------------------------------------------------------------------


def _refuse_bad_flags(state: State) -> None:
    bad = flags.check(state.xla_flags)
    if bad:
        raise DeviceError(
            "XLA would end this process at the first use of JAX, because of XLA_FLAGS: "
            + " ".join(str(flag) for flag in bad),
            next_step=flags.correction(state.xla_flags, bad),
        )


def _too_late(argument: str, value: Any, what: str) -> DeviceError:
    return DeviceError(
        f"{argument}={value!r}: {what} only before JAX starts its backend, and it runs.",
        next_step="restart the kernel, and use this before the first JAX operation.",
        argument=argument,
    )


def _flag_steps(request: Request, state: State, steps: list[Step], notes: list[str]) -> None:
    merged = state.xla_flags
    for flag in request.flags:
        merged = flags.with_flag(merged, flag)
    if merged == state.xla_flags:
        return
    if state.phase == "running":
        raise _too_late("flags", " ".join(request.flags), "XLA reads its flags")
    steps.append(SetVariable("XLA_FLAGS", merged))


def _platform_steps(request: Request, state: State, steps: list[Step], notes: list[str]) -> None:
    if request.platform is None:
        return
    absent = platforms.absence(request.platform)
    if absent:
        raise DeviceError(f"platform={request.platform!r}: {absent[0]}.", next_step=absent[1], argument="platform")
    wanted = _resolved(request.platform)
    if state.phase == "running":
        now = state.devices[0].platform
        if request.platform not in (now, *state.platforms[:1]) and wanted != now:
            raise _too_late("platform", request.platform, f"JAX runs on {now}; the platform can be chosen")
        return
    # With an accelerator the CPU stays reachable, as in JAX's own default: callbacks need it.
    value = wanted if wanted == "cpu" else f"{wanted},cpu"
    if state.settings["platforms"].value != value:
        steps.append(_setting_step("platforms", value, state))


def _accelerator_steps(request: Request, state: State, steps: list[Step], notes: list[str]) -> None:
    asked = {
        "visible": request.visible,
        "mem_fraction": request.mem_fraction,
        "preallocate": request.preallocate,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return
    first = next(iter(asked))
    platform = _resolved(request.platform) if request.platform else next(iter(platforms.usable()), "cpu")
    if platform == "cpu":
        raise DeviceError(
            f"{first}={asked[first]!r}: is for a GPU or TPU, and JAX finds none here.",
            next_step="%jaxdevices all uses the CPU's cores",
            argument=first,
        )
    if state.phase == "running":
        raise _too_late(first, asked[first], "works")
    if request.visible is not None:
        steps.append(_visible_step(platform, request.visible, state))
    if request.mem_fraction is not None:
        # JAX refuses to start when both the new and the deprecated variable are set.
        old, new = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
        steps.append(SetVariable(old if old in state.environment else new, f"{request.mem_fraction:g}"))
    if request.preallocate is not None:
        steps.append(SetVariable("XLA_PYTHON_CLIENT_PREALLOCATE", str(request.preallocate).lower()))


def _visible_step(platform: str, numbers: tuple[int, ...], state: State) -> Step:
    text = ",".join(map(str, numbers))
    by_driver = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
    if platform not in by_driver:
        raise DeviceError(f"visible={text!r}: JAX has no such setting for {platform}.", argument="visible")
    if platform in ("cuda", "rocm") and state.phase == "imported":
        # another library may have started the driver already, which reads its variable only once
        return Configure(f"jax_{platform}_visible_devices", text, by_driver[platform])
    return SetVariable(by_driver[platform], text)


def _setting_steps(request: Request, state: State, steps: list[Step], notes: list[str]) -> None:
    for name in ("x64", "debug_nans", "cache"):
        value = getattr(request, name)
        if value is not None and value != state.settings[name].value:
            steps.append(_setting_step(name, value, state))
            if name == "x64" and state.phase == "running":
                notes.append("x64 holds for new arrays; those made before keep their dtype.")
    if request.cache is not None:
        notes.append(f"Programs that take a second or more to compile will be kept in {request.cache}.")


def _count_steps(request: Request, state: State, steps: list[Step], notes: list[str]) -> None:
    if request.count is None:
        return
    count = state.cores.usable if request.count == "all" else int(request.count)
    chosen = (_resolved(request.platform),) if request.platform else state.chosen_platforms
    if chosen and "cpu" not in chosen and not request.platform:
        raise DeviceError(
            f"count={count}: is the number of CPU devices, and the platforms in force "
            f"({','.join(chosen)}, from {state.settings['platforms'].source}) leave out cpu.",
            next_step=f"%jaxdevices {count} --platform cpu",
            argument="count",
        )
    now, source = state.cpu_count
    if count == now and (state.phase == "running" or source != "default"):
        return
    if state.phase == "running":
        _refuse_reset(count, state)
    steps += _roomy_pool(count, state)
    if state.phase == "running":
        steps.append(SetCount(count, reset=True))
    elif state.phase == "imported":
        steps.append(SetCount(count, reset=False))
    else:
        steps.append(SetVariable(variable("count"), str(count)))
    notes += _count_notes(count, state)
    accelerators = () if chosen else platforms.usable()
    if accelerators and state.phase != "running":
        notes.append(
            f"JAX will use {accelerators[0]} by default; the {count} CPU devices are jax.devices('cpu'). "
            f"%jaxdevices {count} --platform cpu makes them the default."
        )


def _roomy_pool(count: int, state: State) -> list[Step]:
    """Room for `count` devices in the CPU client's thread pool, which XLA sizes by NPROC when the client starts.

    JAX's linear algebra (Cholesky, svd, …) cuts large batches into tasks for the pool that it runs on itself, and
    waits for them: when as many devices do so at once as the pool has threads, none is left to do the tasks, and all
    wait for ever. (Seen on JAX 0.10.2: both threads stand in ParallelBatchMap of jaxlib/cpu/lapack_kernels.cc; the
    same is known of FFTs.) Each device may have two programs under way.
    """
    needed = 2 * count + 1
    threads = _whole(state.environment.get(POOL_VARIABLE)) or state.cores.usable
    if count == 1 or threads >= needed:
        return []
    return [SetVariable(POOL_VARIABLE, str(needed))]


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _refuse_reset(count: int, state: State) -> None:
    if state.processes > 1 or state.distributed:
        raise DeviceError(
            f"count={count}: this process belongs to a job of several JAX processes "
            "(jax.distributed.initialize), and its backend runs: a new one would leave the others waiting.",
            next_step="set the count in each process before jax.distributed.initialize.",
            argument="count",
        )
    others = [name for name in state.platforms if name != "cpu"]
    if others:
        raise DeviceError(
            f"count={count}: a backend for {', '.join(others)} runs as well, and starting it anew would lose "
            "what is in its memory.",
            next_step=f"restart the kernel, then %jaxdevices {count} before the first JAX operation.",
            argument="count",
        )


def _count_notes(count: int, state: State) -> list[str]:
    usable = state.cores.usable
    if count <= usable:
        return []
    notes = [too_many(usable)]
    if count > _MANY_DEVICES:
        notes.append(
            f"{count} devices may wait long for one another, and XLA ends the process when one is 75 s late "
            "for a collective operation."
        )
    return notes


def too_many(usable: int) -> str:
    """The note on more CPU devices than usable cores."""
    return f"More CPU devices than usable cores take turns. %jaxdevices all makes it {usable}."


def _setting_step(name: str, value: Any, state: State) -> Step:
    if state.phase == "absent":
        return SetVariable(variable(name), _as_text(value))
    return Configure(option(name), value, variable(name))


def _resolved(platform: str) -> str:
    """ "gpu" as the platform that it is here; others as they are."""
    if platform != "gpu":
        return platform
    return next((name for name in platforms.usable() if name in platforms.GPUS), "gpu")


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
