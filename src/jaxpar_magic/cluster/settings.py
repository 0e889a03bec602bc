"""What each engine is told before it uses JAX: numbers as in the notebook, and its share of its machine. Pure plans."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _jax
from ..errors import ClusterError

# Options of jax that change what a function computes, or whether it fails.
_OPTIONS = (
    "jax_enable_x64",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)
_OF_ONE_MACHINE = ("jax_platforms", "jax_compilation_cache_dir")
_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=\S*")  # `jax_num_cpu_devices` decides
# Libraries start a thread for each core of their own; in every engine at once that is cores × engines threads.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Place:
    """What decides an engine's share.

    Attributes
    ----------
    host: the name of its machine.
    cores: how many it may use there.
    gpus: those that it may use, as CUDA_VISIBLE_DEVICES names them.
    at_home: whether it is the notebook's machine.
    seat, seats: its number among the engines of its machine, from 0, and how many there are.
    own_cores, own_gpus: whether the engines of its machine have different ones already: whoever started them (mpirun,
        Slurm) gave each its own.
    """

    host: str
    cores: int
    gpus: tuple[str, ...] = ()
    at_home: bool = True
    seat: int = 0
    seats: int = 1
    own_cores: bool = False
    own_gpus: bool = False


@dataclass(frozen=True)
class Share:
    """What one engine gets.

    Attributes
    ----------
    variables: environment variables.
    options: those of `jax.config`, by name.
    """

    variables: Mapping[str, str]
    options: Mapping[str, Any]


def jax_options() -> dict[str, Any]:
    """The notebook's options of jax that engines must share, as they are now. Never imports jax.

    Also to be sent along with a function: options may change after the cluster's start.

    Examples
    --------
    >>> "jax_enable_x64" in jax_options() or _jax.imported_jax() is None
    True
    """
    return _read(_OPTIONS)


def share(place: Place, devices_per_engine: int | None = None) -> Share:
    """What an engine gets: CPU devices, or GPUs of its own, threads, and settings as in the notebook.

    Parameters
    ----------
    place:
        Where it is.
    devices_per_engine:
        CPU devices of each engine, or GPUs where there are any; by default the engines of a machine share all.

    Raises
    ------
    ClusterError
        There are not as many GPUs as asked for.

    Examples
    --------
    >>> second = Place("a", cores=4, gpus=("0", "1", "2", "3"), seat=1, seats=2)
    >>> share(second).variables["CUDA_VISIBLE_DEVICES"]
    '2,3'
    """
    cores = place.cores if place.own_cores else max(1, place.cores // place.seats)
    devices = devices_per_engine or cores
    options = {**jax_options(), **(_read(_OF_ONE_MACHINE) if place.at_home else {}), "jax_num_cpu_devices": devices}
    variables = dict.fromkeys(THREADS, str(cores))
    # Two programs under way on each device, and one: `backend/plan.py` says why the pool must not be smaller.
    variables[_jax.POOL_VARIABLE] = str(2 * devices + 1)
    flags = _COUNT_FLAG.sub("", os.environ.get("XLA_FLAGS", "")).strip()
    if flags:
        variables["XLA_FLAGS"] = flags
    if place.gpus and not place.own_gpus and options.get("jax_platforms") != "cpu":
        variables.update(_gpus(place, devices_per_engine))
    return Share(variables, options)


def _gpus(place: Place, wanted: int | None) -> dict[str, str]:
    gpus, seat, seats = place.gpus, place.seat, place.seats
    if wanted is not None:
        if wanted * seats > len(gpus):
            raise ClusterError(
                f"devices_per_engine={wanted}: {seats} engines on {place.host} need {wanted * seats} GPUs, and there "
                f"are {len(gpus)}.",
                next_step="fewer engines or devices, or JAX_PLATFORMS=cpu for CPU devices.",
                argument="devices_per_engine",
            )
        part = gpus[seat * wanted : (seat + 1) * wanted]
    elif len(gpus) >= seats:
        part = gpus[seat * len(gpus) // seats : (seat + 1) * len(gpus) // seats]
    else:
        sharing = -(-seats // len(gpus))
        # JAX takes three quarters of a GPU's memory when it starts.
        return {"CUDA_VISIBLE_DEVICES": gpus[seat % len(gpus)], "XLA_CLIENT_MEM_FRACTION": f"{0.75 / sharing:.2f}"}
    return {"CUDA_VISIBLE_DEVICES": ",".join(part)}


def _read(names: Sequence[str]) -> dict[str, Any]:
    jax = _jax.imported_jax()
    if jax is None:
        return {name: os.environ[name.upper()] for name in names if name.upper() in os.environ}
    return {name: getattr(jax.config, name) for name in names if hasattr(jax.config, name)}
