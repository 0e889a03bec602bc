"""Which platforms JAX could start here, told from files alone: no plugin is imported, no backend started."""

from __future__ import annotations

import os
import pkgutil
from importlib.metadata import entry_points
from importlib.util import find_spec

KNOWN = ("cpu", "gpu", "cuda", "rocm", "oneapi", "tpu")

GPUS = ("cuda", "rocm", "oneapi")  # what JAX calls "gpu" is one of these
_INSTALL = {
    "cuda": 'pip install -U "jax[cuda13]" on a machine with an NVIDIA GPU',
    "rocm": 'pip install -U "jax[rocm7-local]" on a machine with an AMD GPU',
    "tpu": 'pip install -U "jax[tpu]" on a TPU machine',
}
_CHECK = {"cuda": "nvidia-smi", "rocm": "rocm-smi"}
# The device files whose absence tells that there is no such hardware (in a container: none passed in).
_DEVICE_FILES = {
    "cuda": ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"),
    "rocm": ("/dev/kfd",),
}


def installed() -> tuple[str, ...]:
    """Accelerator platforms that have a JAX plugin installed, such as `("cuda",)`."""
    spec = find_spec("jax_plugins")
    folders = list(spec.submodule_search_locations or []) if spec else []
    modules = [module.name for module in pkgutil.iter_modules(folders)]
    modules += [point.value.rpartition(".")[2] for point in entry_points(group="jax_plugins")]
    if find_spec("libtpu"):
        modules.append("tpu")
    return tuple(dict.fromkeys(_platform_of(module) for module in modules))


def usable() -> tuple[str, ...]:
    """Accelerator platforms that JAX would find, best first: plugin installed and hardware present."""
    return tuple(platform for platform in installed() if _hardware(platform))


def expected(chosen: tuple[str, ...]) -> str:
    """The platform that JAX will use by default, given the ones that the user chose (none: JAX chooses)."""
    return next(iter(chosen or usable()), "cpu")


def absence(platform: str) -> tuple[str, str] | None:
    """Why JAX cannot use `platform` here, and what to do; None if it can as far as files tell."""
    if platform == "cpu":
        return None
    wanted = GPUS if platform == "gpu" else (platform,)
    here = usable()
    if any(name in here for name in wanted):
        return None
    for name in wanted:
        if name in installed():
            check = _CHECK.get(name, "the vendor's tool")
            return (
                f"JAX's {name} plugin is installed, but there is no device for it",
                f"does {check} list one?",
            )
    return f"no {platform.upper()} plugin of JAX is installed", _INSTALL.get(wanted[0], "install its plugin")


def _platform_of(module: str) -> str:
    for name in (*GPUS, "tpu"):
        if name in module:
            return name
    return module.removeprefix("jax_").removeprefix("xla_")


def _hardware(platform: str) -> bool:
    files = _DEVICE_FILES.get(platform)
    return files is None or any(os.path.exists(file) for file in files)
