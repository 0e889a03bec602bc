"""How arrays travel between notebook and engines: in shared memory, as files that both can open, or in the message.

Shared memory has no name: it is a file of the notebook's that engines on its machine open through /proc. So nothing is
left of it when the last process that uses it ends, however that happens, and no limit of /dev/shm applies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..mapping.sources import LazyArray

# Arrays begin at multiples of this: JAX takes them on the CPU without a copy.
_ALIGNED = 64
# A message has at most so many buffers beside its header; more arrays are joined.
_MOST_BUFFERS = 16
# Below this, opening shared memory takes longer than sending.
LEAST_SHARED = 256 << 10

Address = tuple[int, int, int, int]


class Unreachable(Exception):
    """What the notebook named cannot be opened here, or is something else here."""


# -------------------------------------------------------------------- shared memory


class Block:
    """Memory that engines on this machine can open by its address. Grows as it is written."""

    def __init__(self, size: int = 0):
        self._file = os.memfd_create("jaxpar_magic")
        os.ftruncate(self._file, size)
        status = os.fstat(self._file)
        self.address: Address = (os.getpid(), self._file, status.st_dev, status.st_ino)

    def write(self, offset: int, data: Any) -> None:
        """Write the bytes of a contiguous array, or bytes."""
        write(self._file, offset, data)

    def map(self, size: int) -> mmap.mmap:
        """The memory, which lives on after `close` for as long as it is used."""
        return mmap.mmap(self._file, size)

    def close(self) -> None:
        """No engine can open it any more."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def can_share() -> bool:
    """Whether this system has such memory (Linux)."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


@contextlib.contextmanager
def opened(address: Address) -> Iterator[int]:
    """A file descriptor of another process's block. Unreachable if it is gone, or on another machine."""
    process, number, device, node = address
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise Unreachable(f"shared memory: {error.strerror or error}") from None
    try:
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) != (device, node):
            raise Unreachable("shared memory: another file has its place")
        yield file
    finally:
        os.close(file)


def write(file: int, offset: int, data: Any) -> None:
    """Write the bytes of a contiguous array, or bytes, without a copy of them."""
    rest = as_bytes(data) if isinstance(data, np.ndarray) else memoryview(data).cast("B")
    while len(rest):
        count = os.pwrite(file, rest, offset)
        rest, offset = rest[count:], offset + count


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of an array; copied only where it is not contiguous."""
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


# -------------------------------------------------------------------- arrays as bytes


@dataclass(frozen=True)
class Packed:
    """Where an array lies among the bytes that travel.

    Attributes
    ----------
    buffer: number of the buffer, or None: in the block.
    offset: of its first byte there.
    dtype, shape: of the array.
    """

    buffer: int | None
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * dtype_named(self.dtype).itemsize


def dtype_named(name: str) -> np.dtype:
    """A dtype by its name; knows bfloat16 and its like."""
    return np.dtype(jax.numpy.dtype(name))


def pack(arrays: Sequence[np.ndarray], block: Block | None = None) -> tuple[list[Packed], list[Any]]:
    """(where each array is, buffers to send): in the block if one is given, else in the buffers."""
    where, offset = [], 0
    joined = block is not None or len(arrays) > _MOST_BUFFERS
    for number, array in enumerate(arrays):
        place = (None if block is not None else 0, offset) if joined else (number, 0)
        where.append(Packed(*place, array.dtype.name, array.shape))
        offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
    if block is not None:
        for packed, array in zip(where, arrays):
            block.write(packed.offset, array)
        return where, []
    if not joined:
        return where, [as_bytes(array) for array in arrays]
    whole = bytearray(offset)
    for packed, array in zip(where, arrays):
        whole[packed.offset : packed.offset + array.nbytes] = as_bytes(array)
    return where, [memoryview(whole)]


def unpack(where: Sequence[Packed], buffers: Sequence[Any], block: Any = None) -> list[np.ndarray]:
    """The arrays, without copies. `block` is the mapped memory of those that are in it."""
    arrays = []
    for packed in where:
        memory = block if packed.buffer is None else buffers[packed.buffer]
        size = packed.nbytes
        part = np.frombuffer(memory, np.uint8, size, packed.offset) if size else np.empty(0, np.uint8)
        arrays.append(part.view(dtype_named(packed.dtype)).reshape(packed.shape))
    return arrays


# -------------------------------------------------------------------- files


@dataclass(frozen=True)
class FileArray:
    """An array in a file that an engine can open itself.

    Attributes
    ----------
    kind: "npy" (mapped memory of any file), "hdf5" or "zarr".
    path, member: the file, and the array's name in it.
    stamp: size and time of change of the file (of zarr's description), by which an engine knows that it sees the same.
    axis: the one that counts the items.
    dtype, offset, shape: of mapped memory.
    """

    kind: str
    path: str
    member: str
    stamp: tuple[int, int]
    axis: int
    dtype: str = ""
    offset: int = 0
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, array: Any) -> FileArray | None:
        """How an engine can open an input; None if only the notebook can read it."""
        whole = array.whole() if isinstance(array, LazyArray) else None
        if whole is None:
            return None
        source, axis = whole
        try:
            if isinstance(source, np.memmap):
                return _of_memmap(source, axis)
            room = type(source).__module__.partition(".")[0]
            if room == "h5py" and source.file.mode == "r":
                path = os.path.abspath(source.file.filename)
                return cls("hdf5", path, source.name, _stamp(path), axis)
            if room == "zarr":
                root = str(source.store.root)  # of a store on disk
                return cls("zarr", os.path.abspath(root), source.path, _stamp(_description(root, source.path)), axis)
        except (OSError, AttributeError, ValueError, TypeError):  # in memory, in the cloud, deleted, …
            return None
        return None

    def read(self, begin: int, end: int) -> np.ndarray:
        """Items `begin` to `end`. Unreachable if the file is not there, or not the same."""
        try:
            same = _stamp(_description(self.path, self.member) if self.kind == "zarr" else self.path) == self.stamp
        except OSError as error:
            raise Unreachable(f"{self.path}: {error.strerror or error}") from None
        if not same:
            raise Unreachable(f"{self.path}: has another size or time of change there")
        try:
            with self._open() as source:
                return LazyArray(self.path, source, self.axis)[begin:end]
        except (OSError, ImportError) as error:
            raise Unreachable(f"{self.path}: {error}") from None

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        if self.kind == "npy":
            yield np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        elif self.kind == "hdf5":
            import h5py

            with h5py.File(self.path, "r") as file:
                yield file[self.member]
        else:
            import zarr

            yield zarr.open_array(store=self.path, path=self.member, mode="r")


def _of_memmap(array: np.memmap, axis: int) -> FileArray | None:
    if array.filename is None or array.mode == "c" or not array.flags.c_contiguous or not array.size:
        return None
    if array.mode != "r":
        array.flush()  # the file is what engines read
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    # `offset` is that of the whole; a part of it lies further on
    begin = root.offset + array.ctypes.data - root.ctypes.data
    path = os.path.abspath(array.filename)
    return FileArray("npy", path, "", _stamp(path), axis, array.dtype.str, begin, array.shape)


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _description(root: str, member: str) -> str:
    """The file that describes a zarr array, of format 3 or 2."""
    place = Path(root, member)
    return str(next((p for p in (place / "zarr.json", place / ".zarray") if p.exists()), place / "zarr.json"))
