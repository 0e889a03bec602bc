"""What JAX has, or would have, in this process: read without importing jax and without starting a backend."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from .. import _jax, machine
from . import flags

Phase = Literal["absent", "imported", "running"]


@dataclass(frozen=True)
class Setting:
    """A setting of JAX and where its value came from.

    Attributes
    ----------
    value: the value in force, or that will be.
    source: "default", "environment variable NAME" or "jax.config.update".
    variable: the environment variable that JAX reads when it is imported.
    too_late: what that variable says, if it is not in force: set after the import, or overruled; else None.
    """

    value: Any
    source: str
    variable: str
    too_late: Any = None


@dataclass(frozen=True)
class DeviceInfo:
    """A device that JAX has.

    Attributes
    ----------
    name: platform and id, e.g. "cpu:0".
    platform, kind, process: as JAX tells.
    memory_used, memory_limit: bytes, or None where the backend keeps no count (CPU).
    """

    name: str
    platform: str
    kind: str
    process: int
    memory_used: int | None
    memory_limit: int | None


@dataclass(frozen=True)
class State:
    """The whole of it.

    Attributes
    ----------
    phase: "absent" (jax not imported), "imported" (no backend yet) or "running".
    versions: of "jax", "jaxlib" and "Python"; None for what is not installed.
    cores: the cores that this process may use, with the limits.
    free_memory: bytes that this process can still allocate.
    settings: by name: count, platforms, x64, debug_nans, cache.
    environment: variables that matter to accelerators or XLA and are set, by name.
    devices: those that JAX has; empty unless running.
    platforms: whose backends run.
    processes: of the multi-process job; 1 without one.
    distributed: whether `jax.distributed.initialize` was called.
    flags_not_in_force: names of flags in XLA_FLAGS that XLA, having read it before, does not follow.
    """

    phase: Phase
    versions: Mapping[str, str | None]
    cores: machine.Cores
    free_memory: int
    settings: Mapping[str, Setting]
    environment: Mapping[str, str]
    devices: tuple[DeviceInfo, ...] = ()
    platforms: tuple[str, ...] = ()
    processes: int = 1
    distributed: bool = False
    flags_not_in_force: tuple[str, ...] = field(default=())

    @property
    def xla_flags(self) -> str:
        return self.environment.get("XLA_FLAGS", "")

    @property
    def cpu_count(self) -> tuple[int, str]:
        """How many CPU devices JAX has or will have, and the source of that number."""
        setting = self.settings["count"]
        flag = flags.values(self.xla_flags).get(flags.COUNT_FLAG, "")
        if setting.value >= 0:
            wanted, source = setting.value, setting.source
        elif flag.isdigit() and flags.COUNT_FLAG not in self.flags_not_in_force:
            wanted, source = int(flag), "environment variable XLA_FLAGS"
        else:
            wanted, source = 1, "default"
        if self.phase == "running":
            return sum(d.platform == "cpu" for d in self.devices), source
        return wanted, source

    @property
    def chosen_platforms(self) -> tuple[str, ...]:
        """The platforms that the user chose; empty where JAX chooses itself."""
        return tuple(name for name in (self.settings["platforms"].value or "").split(",") if name)


_Reader = Callable[[str], Any]


def _boolean(text: str) -> bool | None:
    lowered = text.lower()
    if lowered in ("y", "yes", "t", "true", "on", "1"):
        return True
    return False if lowered in ("n", "no", "f", "false", "off", "0") else None


def _whole(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None


# name -> environment variable, option of jax.config, default, reader of the variable's text
_SETTINGS: dict[str, tuple[str, str, Any, _Reader]] = {
    "count": ("JAX_NUM_CPU_DEVICES", "jax_num_cpu_devices", -1, _whole),
    "platforms": ("JAX_PLATFORMS", "jax_platforms", None, lambda text: text or None),
    "x64": ("JAX_ENABLE_X64", "jax_enable_x64", False, _boolean),
    "debug_nans": ("JAX_DEBUG_NANS", "jax_debug_nans", False, _boolean),
    "cache": ("JAX_COMPILATION_CACHE_DIR", "jax_compilation_cache_dir", None, str),
}

# Read by JAX, XLA or the driver when the backend starts; JAX has no option that tells them.
_OTHER_VARIABLES = (
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "NPROC",
)


def phase() -> Phase:
    """Which of its three states JAX is in. Costs nothing, changes nothing."""
    if _jax.imported_jax() is None:
        return "absent"
    return "running" if _jax.live_platforms() else "imported"


def read() -> State:
    """The state now."""
    now = phase()
    environment = {name: os.environ[name] for name in _OTHER_VARIABLES if name in os.environ}
    facts: dict[str, Any] = {}
    if now == "running":
        facts = _running_facts(environment.get("XLA_FLAGS", ""))
    return State(
        phase=now,
        versions={"jax": _version("jax"), "jaxlib": _version("jaxlib"), "Python": platform.python_version()},
        cores=machine.cores(),
        free_memory=machine.free_memory(),
        settings={name: _setting(name) for name in _SETTINGS},
        environment=environment,
        **facts,
    )


def option(name: str) -> str:
    """The name in `jax.config` of a setting: `option("x64") == "jax_enable_x64"`."""
    return _SETTINGS[name][1]


def variable(name: str) -> str:
    """The environment variable of a setting: `variable("x64") == "JAX_ENABLE_X64"`."""
    return _SETTINGS[name][0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _setting(name: str) -> Setting:
    variable, option, default, read = _SETTINGS[name]
    text = os.environ.get(variable)
    asked = default if text is None else read(text)
    from_environment = f"environment variable {variable}"
    jax = _jax.imported_jax()
    if jax is None:
        # A text that JAX cannot read keeps it from being imported, with a clear message of its own.
        value = default if asked is None else asked
        return Setting(value, "default" if text is None else from_environment, variable)
    value = getattr(jax.config, option)
    value = default if value in (None, "") else value
    if text is not None and asked == value:
        return Setting(value, from_environment, variable)
    source = "default" if value == default else "jax.config.update"
    late = text is not None and source == "default"
    return Setting(value, source, variable, too_late=asked if late else None)


def _running_facts(xla_flags: str) -> dict[str, Any]:
    import jax

    return {
        "devices": tuple(_device(device) for device in current_devices()),
        "platforms": _jax.live_platforms(),
        "processes": jax.process_count(),
        "distributed": jax.distributed.is_initialized(),
        "flags_not_in_force": tuple(
            name for name, text in flags.values(xla_flags).items() if _differs(_jax.xla_flag_in_force(name), text)
        ),
    }


def _differs(in_force: Any, text: str) -> bool:
    if isinstance(in_force, bool):
        return (_boolean(text) if text else True) not in (in_force, None)
    if isinstance(in_force, int):
        return _whole(text) not in (in_force, None)
    return isinstance(in_force, str) and in_force != text


def current_devices() -> list[Any]:
    """Every jax.Device of the running backends, those of the default platform first."""
    import jax

    default = jax.devices()
    return default + [d for name in _jax.live_platforms() for d in jax.devices(name) if d not in default]


def device_name(device: Any) -> str:
    """ "cpu:0" for a jax.Device, the same in all versions (its own `str` is not)."""
    return f"{device.platform}:{device.id}"


def _device(device: Any) -> DeviceInfo:
    try:
        counters = device.memory_stats() or {}
    except Exception:  # backends without counters answer None, raise, or are not addressable from here
        counters = {}
    return DeviceInfo(
        name=device_name(device),
        platform=device.platform,
        kind=device.device_kind,
        process=device.process_index,
        memory_used=counters.get("bytes_in_use"),
        memory_limit=counters.get("bytes_limit"),
    )
