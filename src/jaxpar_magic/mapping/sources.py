"""Inputs that lie in files or elsewhere and are read chunk by chunk, never whole.

`numpy.memmap`, `h5py.Dataset`, `zarr.Array`, dask arrays, and whatever else has a shape, a dtype and slices.
"""

from __future__ import annotations

import mmap
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import InputError, did_you_mean

# Single items of plain Python are read in blocks of this size: a file's own chunks are decompressed whole.
ITEM_BLOCK_BYTES = 1 << 20


def is_lazy(value: Any) -> bool:
    """Whether `value` is an array that is to be read by slices."""
    if isinstance(value, jax.Array | np.generic) or (
        isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
    ):
        return False
    if type(value).__module__.partition(".")[0] == "pandas":  # indexes by label
        return False
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or not shape or not isinstance(dtype, np.dtype):
        return False
    if not all(isinstance(n, int | np.integer) for n in shape) or not hasattr(type(value), "__getitem__"):
        return False
    return is_numeric_dtype(dtype)


def is_numeric_dtype(dtype: Any) -> bool:
    """Whether JAX can hold this numpy dtype (bool, integer, float, complex, bfloat16 and its like)."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biufc":
        return dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


class LazyArray:
    """An array of shape (items, …) that reads its rows when they are asked for.

    Parameters
    ----------
    name: how to call it in a message.
    source: has `shape`, `dtype` and slices.
    axis: the source's axis that counts the items, from 0 on.
    rows: indices of the items that it consists of; None for all.
    """

    def __init__(self, name: str, source: Any, axis: int = 0, rows: np.ndarray | None = None):
        self.name = name
        self.source = source
        self._axis = axis
        self._rows = rows
        rest = tuple(int(n) for i, n in enumerate(source.shape) if i != axis)
        self.shape = (int(source.shape[axis]) if rows is None else len(rows), *rest)
        self.dtype = source.dtype.newbyteorder("=")
        self.ndim = len(self.shape)
        self._block = np.empty((0, *rest), self.dtype)
        self._block_begin = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Items `begin:end` as an array of their own, or one item."""
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            return self._read(begin, max(begin, end))
        i = operator.index(index)
        i += len(self) if i < 0 else 0
        if not self._block_begin <= i < self._block_begin + len(self._block):
            each = max(1, self.nbytes // max(1, len(self)))
            end = min(len(self), i + max(1, ITEM_BLOCK_BYTES // each))
            self._block, self._block_begin = self._read(i, end), i
        return self._block[i - self._block_begin]

    def whole(self) -> tuple[Any, int] | None:
        """(source, its axis that counts the items), if its items are these."""
        return (self.source, self._axis) if self._rows is None else None

    def taken(self, rows: np.ndarray) -> LazyArray:
        """The array of some of the items."""
        return LazyArray(self.name, self.source, self._axis, rows if self._rows is None else self._rows[rows])

    def _read(self, begin: int, end: int) -> np.ndarray:
        if self._rows is not None:
            chosen = [self._read_source(i, i + 1) for i in self._rows[begin:end].tolist()]
            return np.concatenate(chosen) if chosen else np.empty((0, *self.shape[1:]), self.dtype)
        return self._read_source(begin, end)

    def _read_source(self, begin: int, end: int) -> np.ndarray:
        try:
            part = self.source[(slice(None),) * self._axis + (slice(begin, end),)]
            part = np.array(part) if isinstance(part, np.memmap) else np.asarray(part)
        except Exception as error:
            error.add_note(f"parmap: while items {begin} to {end - 1} of {self.name} were read")
            raise
        if isinstance(self.source, np.memmap):
            _let_go(self.source)
        part = np.moveaxis(part, self._axis, 0) if part.ndim > self._axis else part
        if part.shape != (end - begin, *self.shape[1:]) or part.dtype.newbyteorder("=") != self.dtype:
            raise InputError(
                f"{self.name}: its items {begin} to {end - 1} came as {part.dtype}{list(part.shape)}, but it says that "
                f"they are {self.dtype}{[end - begin, *self.shape[1:]]}.",
                argument=self.name,
                next_step="give a numpy array",
            )
        return part if part.dtype.isnative else part.astype(self.dtype)


def _let_go(array: np.memmap) -> None:
    """Drop the pages of a mapped file that have been read from this process; they stay in the system's cache.

    Otherwise all that was ever read counts as memory of this process, and a file larger than the memory seems to fill
    it. Not with mode "c", where pages hold what was assigned.
    """
    if array.mode == "c" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


# -------------------------------------------------------------------- files by name


def open_input(path: str | os.PathLike) -> tuple[Any, str, str]:
    """(array, expression that opens it, import that this needs) of a file: what `input_file` gives.

    `.npy` (mapped, not read), `.npz::NAME`, `.h5::DATASET` or `.hdf5::DATASET`, `.zarr` or `.zarr::ARRAY`. Where a
    file holds one array only, its name may be left out.

    Raises
    ------
    InputError: no such file or array, or of another kind, or the package that reads it is not installed.
    """
    text = os.fspath(path)
    file, _, member = text.partition("::")
    place = Path(file).expanduser()
    suffix = place.suffix.lower()
    if suffix not in _OPENERS:
        raise _refused(text, "is not a file of a known kind", f"one of {', '.join(_OPENERS)}, or open it yourself")
    if not place.exists():
        near = [p.name for p in place.parent.glob(f"*{suffix}")] if place.parent.is_dir() else []
        raise _refused(text, f"there is no such file.{did_you_mean(place.name, near)}", None)
    try:
        return _OPENERS[suffix](text, place, member.strip("/"))
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise _refused(text, f"cannot be opened ({error})", None) from None


def _refused(text: str, problem: str, next_step: str | None) -> InputError:
    return InputError(f"input_file={text!r}: {problem.rstrip('.')}.", argument="input_file", next_step=next_step)


def _open_npy(text: str, place: Path, member: str) -> tuple[Any, str, str]:
    if member:
        raise _refused(text, "a .npy file holds one array without a name", text.partition("::")[0])
    return np.load(place, mmap_mode="r"), f"np.load({str(place)!r}, mmap_mode='r')", ""


def _open_npz(text: str, place: Path, member: str) -> tuple[Any, str, str]:
    with np.load(place) as file:
        name = _chosen(text, member, file.files)
        return file[name], f"np.load({str(place)!r})[{name!r}]", ""


def _open_hdf5(text: str, place: Path, member: str) -> tuple[Any, str, str]:
    h5py = _package("h5py", text)
    file = h5py.File(place, "r")
    names: list[str] = []
    file.visititems(lambda name, x: names.append(name) if isinstance(x, h5py.Dataset) else None)
    name = _chosen(text, member, names)
    return file[name], f"h5py.File({str(place)!r}, 'r')[{name!r}]", "import h5py"


def _open_zarr(text: str, place: Path, member: str) -> tuple[Any, str, str]:
    zarr = _package("zarr", text)
    opened = zarr.open(str(place), mode="r")
    code = f"zarr.open({str(place)!r}, mode='r')"
    if hasattr(opened, "shape"):
        if member:
            raise _refused(text, "is one array without a name", text.partition("::")[0])
        return opened, code, "import zarr"
    name = _chosen(text, member, _zarr_arrays(opened))
    return opened[name], f"{code}[{name!r}]", "import zarr"


def _zarr_arrays(group: Any, prefix: str = "") -> list[str]:
    names = [f"{prefix}{name}" for name, _ in group.arrays()]
    for name, inner in group.groups():
        names += _zarr_arrays(inner, f"{prefix}{name}/")
    return names


_OPENERS: dict[str, Callable[[str, Path, str], tuple[Any, str, str]]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".h5": _open_hdf5,
    ".hdf5": _open_hdf5,
    ".zarr": _open_zarr,
}


def _chosen(text: str, member: str, names: list[str]) -> str:
    if member in names:
        return member
    if not member and len(names) == 1:
        return names[0]
    listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    problem = f"holds no array {member!r}" if member else f"holds {len(names)} arrays"
    file = text.partition("::")[0]
    raise _refused(
        text, f"{problem}; it has {listed or 'none'}", f"{file}::{names[0]}" if names else "a file with an array"
    )


def _package(name: str, text: str) -> Any:
    """The package that reads a kind of file; optional, and imported only here."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise _refused(
            text, f"needs the package {name}, which is not installed", 'pip install "jaxpar-magic[files]"'
        ) from None
