"""What an engine does as one process of a mesh over all engines: JAX's multi-controller runtime.

The notebook calls these functions on all engines at once, and is no process of the mesh itself: JAX ends those when
one is lost. A program comes as `jax.export` wrote it from one trace, so that all engines run the same, whatever their
Python would have traced.
"""

from __future__ import annotations

import inspect
import math
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from .. import _jax
from ..mapping.inputs import check_range
from . import engine_map
from .engine_map import interruptible, take_over
from .transport import Address, FileArray, Unreachable, opened, pack, unpack, write

_AXIS = "engines"
_DEATH = 10  # seconds until JAX takes a silent process for dead, and ends the others
_REST = 0.5  # seconds for a program that was interrupted to end
_LAPACK = "lapack_"
_NO_PROXY = "no_grpc_proxy"  # hosts that gRPC reaches directly


class StaleMesh(RuntimeError):
    """This engine is not in the mesh that it is asked to compute in."""


class Stuck(RuntimeError):
    """A program that was interrupted does not end."""


@dataclass
class _Mesh:
    """What this engine has of a mesh.

    Attributes
    ----------
    name: which the notebook gave it.
    mesh: JAX's.
    programs: compiled, by digest.
    kept: arrays that stay here, by name.
    running: outputs that may not be ready yet.
    """

    name: str
    mesh: Any
    programs: dict[str, Callable] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    running: list[Any] = field(default_factory=list)

    def sharding(self, *axes: str) -> Any:
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))


_mesh: _Mesh | None = None


# -------------------------------------------------------------------- joining and leaving


def notebooks() -> list[dict[str, Any]]:
    """Those that use this engine, as on_engine.py keeps them."""
    return list(sys.modules["_jaxpar_magic_clients"].by_name.values())


def free_address(towards: str | None) -> str:
    """host:port here that nobody listens on; the host is the one at which `towards` is reached, or the own name's."""
    host = address_towards(towards) if towards else socket.gethostbyname(socket.gethostname())
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def address_towards(host: str) -> str:
    """The address of this machine from which `host` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return probe.getsockname()[0]


def join(name: str, coordinator: str, engines: int, rank: int, seconds: int, token: Address | None) -> dict[str, Any]:
    """Become process `rank` of a new mesh; returns when all have.

    Parameters
    ----------
    token: address of a block of the notebook's.

    Returns
    -------
    "devices": how many devices are here; "platform": that of the programs they run; "shares": whether this engine can
    open the notebook's shared memory.
    """
    global _mesh
    leave()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)
    host = coordinator.rpartition(":")[0]
    os.environ[_NO_PROXY] = ",".join(filter(None, [os.environ.get(_NO_PROXY), host]))
    wanted = {"heartbeat_timeout_seconds": _DEATH, "shutdown_timeout_seconds": _DEATH}
    accepted = inspect.signature(jax.distributed.initialize).parameters  # JAX 0.6 has neither
    with _jax.collectives_listening_on(address_towards(host)):
        jax.distributed.initialize(
            coordinator,
            engines,
            rank,
            cluster_detection_method="deactivate",
            coordinator_bind_address=coordinator,  # else it listens on all addresses
            initialization_timeout=seconds,
            **{key: value for key, value in wanted.items() if key in accepted},
        )
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    _mesh = _Mesh(name, jax.sharding.Mesh(np.asarray(devices, dtype=object), (_AXIS,)))
    return {"devices": jax.local_device_count(), "platform": _platform(devices[0]), "shares": _can_open(token)}


def _can_open(token: Address | None) -> bool:
    try:
        if token is not None:
            with opened(token):
                return True
    except Unreachable:
        pass
    return False


def _platform(device: Any) -> str:
    """As `jax.export` calls it."""
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def leave(refuse_stuck: bool = False) -> None:
    """Leave the mesh, if there is one, and let go of the backend. All engines of the mesh have to do it at once.

    A program that was interrupted goes on until it ends by itself, with threads and exchanges of its own. With
    `refuse_stuck` that is an error, unless it ends soon.
    """
    global _mesh
    from jax.extend.backend import clear_backends

    running = _mesh.running if _mesh is not None else []
    _mesh = None
    jax.distributed.shutdown()
    deadline = time.monotonic() + _REST
    while refuse_stuck and not all(map(_jax.is_ready, running)):
        if time.monotonic() > deadline:
            raise Stuck("a program that was interrupted goes on")
        time.sleep(0.01)
    if _jax.live_platforms():
        engine_map.forget()  # programs of maps belong to the devices that go
        clear_backends()


def _current(name: str) -> _Mesh:
    if _mesh is None or _mesh.name != name:
        raise StaleMesh("the mesh was rebuilt, or belongs to another notebook")
    return _mesh


# -------------------------------------------------------------------- programs


def probe(name: str) -> float:
    """The number of devices, as their sum finds it: the first exchange between all engines."""
    mesh = _current(name)
    local = np.ones(jax.local_device_count(), np.float32)
    ones = jax.make_array_from_process_local_data(mesh.sharding(_AXIS), local, (mesh.mesh.size,))
    total = jax.jit(lambda x: x.sum(), out_shardings=mesh.sharding())(ones)
    return float(jax.block_until_ready(total))


def prepare(name: str, digest: str, text: bytes, length: int, settings: dict[str, Any]) -> float:
    """Compile a program for `length` items; the seconds it took.

    Its mapped arrays are (rows, …) with as many rows as fill all devices, of which the first `length` are items: what
    fills up is cut off before anything is computed, so that no collective sees it.
    """
    mesh = _current(name)
    begin = time.perf_counter()
    take_over(settings)
    exported = export.deserialize(bytearray(text))
    if _LAPACK in exported.mlir_module():
        # Before JAX 0.9 its kernels are empty pointers until something is lowered that uses them.
        jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))
    rows = padded(length, mesh.mesh.size)

    def program(mapped: list, shared: list) -> list:
        outputs = exported.call([array[:length] for array in mapped], shared)
        # not jnp.concatenate, for which XLA gathers the whole on every device
        fill = [(0, rows - length, 0)]
        return [jax.lax.pad(a, jnp.zeros((), a.dtype), fill + [(0, 0, 0)] * (a.ndim - 1)) for a in outputs]

    (mapped, shared), _ = jax.tree_util.tree_unflatten(exported.in_tree, exported.in_avals)
    stacked = [jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype) for a in mapped]
    split, whole = mesh.sharding(_AXIS), mesh.sharding()
    staged = jax.jit(program, in_shardings=(split, whole), out_shardings=split)
    mesh.programs[digest] = staged.lower(stacked, list(shared)).compile()
    return time.perf_counter() - begin


def padded(length: int, devices: int) -> int:
    """The least number of rows from `length` on that the devices divide."""
    return devices * math.ceil(length / devices)


def run(name: str, request: dict[str, Any], *buffers: Any) -> tuple:
    """Run a program that has been prepared.

    Parameters
    ----------
    request: "digest" and "length" of the program; "settings" of JAX; "inputs", each ("rows", where this engine's items
        are), ("file", (file, begin, end)), ("kept", its name here) or ("whole", where an array that all items share
        is); "block", the address of the shared memory in which they are, or None; "keep", names under which outputs
        stay here, or None; "targets", (address, offset) of where this engine's items of each output are to be
        written, or None to send them; "forget", names of arrays that nobody needs any more.

    Returns
    -------
    (where the items of each output are, buffers …).
    """
    mesh = _current(name)
    for label in request["forget"]:
        mesh.kept.pop(label, None)
    take_over(request["settings"])
    with interruptible():
        inputs = _inputs(mesh, request, buffers)
        mesh.running = outputs = mesh.programs[request["digest"]](*inputs)
        jax.block_until_ready(outputs)  # an interrupt ends this, and would not end the copying
        mesh.running = []
        if request["keep"] is not None:
            mesh.kept.update(zip(request["keep"], outputs))
            return ([],)
        own = [_rows(array, request["length"]) for array in outputs]
        if request["targets"] is None:
            return _answer(own)
        for (address, offset), array in zip(request["targets"], own):
            with opened(address) as file:
                write(file, offset, array)
        return ([],)


def rows(name: str, label: str, length: int) -> tuple:
    """This engine's items of an array that stayed here, as `run` returns them."""
    return _answer([_rows(_current(name).kept[label], length)])


def _answer(arrays: Sequence[Any]) -> tuple:
    where, buffers = pack(arrays)
    return (where, *buffers)


def _inputs(mesh: _Mesh, request: dict[str, Any], buffers: Sequence[Any]) -> tuple[list, list]:
    """(mapped, shared) arrays on the devices."""
    memory = None
    if request["block"] is not None:
        with opened(request["block"]) as file:
            memory = mmap.mmap(file, 0)
    packed = [value for kind, value in request["inputs"] if kind in ("rows", "whole")]
    given = iter(unpack(packed, buffers, memory))
    mapped, shared = [], []
    for kind, value in request["inputs"]:
        if kind == "kept":
            mapped.append(mesh.kept[value])
            continue
        array = _read(*value) if kind == "file" else next(given)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        if kind == "whole":
            shared.append(jax.make_array_from_process_local_data(mesh.sharding(), array, array.shape))
        else:
            mapped.append(_from_rows(mesh, array, request["length"]))
    return mapped, shared


def _read(source: FileArray, begin: int, end: int) -> Any:
    array = source.read(begin, end)
    check_range(source.path, array)
    return array


def _from_rows(mesh: _Mesh, array: Any, length: int) -> Any:
    total = padded(length, mesh.mesh.size)
    local = total // mesh.mesh.size * jax.local_device_count()
    if len(array) < local:
        array = np.concatenate([array, np.zeros((local - len(array), *array.shape[1:]), array.dtype)])
    return jax.make_array_from_process_local_data(mesh.sharding(_AXIS), array, (total, *array.shape[1:]))


def _rows(array: Any, length: int) -> Any:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    begin = shards[0].index[0].start or 0
    parts = [np.asarray(shard.data) for shard in shards]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole[: max(0, length - begin)]
