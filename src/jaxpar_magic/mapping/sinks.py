"""Results written to a file chunk by chunk, as they come: `out_file`.

The file is written beside its place under another name, and renamed when it is complete: at its place there is the
old file or the new one, each whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import OptionError, OutputError
from ..machine import size_text
from .collect import not_finite_rows
from .tracing import Output

SUFFIXES = (".npy", ".zarr")
# A zarr array is cut into files of about this size.
ZARR_CHUNK_BYTES = 8 << 20


def check_out_file(path: str | os.PathLike) -> Path:
    """`path` as an absolute path if a result can be written there. OptionError otherwise."""
    text = os.fspath(path)
    place = Path(text).expanduser().absolute()
    if place.suffix not in SUFFIXES:
        raise OptionError(
            f"out_file={text!r}: needs a name that ends in .npy (one array) or .zarr (one array or several).",
            argument="out_file",
            next_step=f"out_file={str(Path(text).with_suffix('.npy'))!r}" if Path(text).name else None,
        )
    if not place.parent.is_dir():
        raise OptionError(f"out_file={text!r}: there is no folder {str(place.parent)!r}.", argument="out_file")
    if place.suffix == ".npy" and place.is_dir():
        raise OptionError(f"out_file={text!r}: is a folder.", argument="out_file")
    if place.suffix == ".zarr":
        _package(text)
        known = (".zarray", ".zgroup", "zarr.json")
        if place.exists() and not any((place / name).exists() for name in known):
            raise OptionError(
                f"out_file={text!r}: exists and is not a zarr folder; it is left as it is.",
                argument="out_file",
                next_step="another name",
            )
    return place


def _package(text: str) -> Any:
    try:
        import zarr
    except ImportError:
        raise OptionError(
            f"out_file={text!r}: needs the package zarr, which is not installed.",
            argument="out_file",
            next_step='pip install "jaxpar-magic[files]", or a name that ends in .npy',
        ) from None
    return zarr


class FileResult:
    """Takes the outputs of chunks as a `collect.Collector` does, and writes them.

    Parameters
    ----------
    path: where the result goes.
    tree: structure of the function's result.
    outputs: its arrays.
    length: number of items, or None if it is known at the end only.
    chunk_size: items per chunk, after which zarr's own chunks are chosen.
    check_finite: note the items with NaN or inf while they pass.

    Raises
    ------
    OptionError: a file of this kind cannot hold the result. OutputError: no room on the disk.
    """

    def __init__(
        self,
        path: Path,
        tree: Any,
        outputs: Sequence[Output],
        length: int | None,
        *,
        chunk_size: int,
        check_finite: bool = False,
    ):
        self.path = path
        self.tree = tree
        self.outputs = outputs
        self.length = length
        self._check_finite = check_finite
        self._not_finite: list[tuple[int, str]] = []
        self._begins: set[int] = set()
        self._end = 0
        self._refuse(path, outputs)
        kind = _Npy if path.suffix == ".npy" else _Zarr
        with _naming_file(path):
            self._writer = kind(path, tree, outputs, length, chunk_size)

    def _refuse(self, path: Path, outputs: Sequence[Output]) -> None:
        if path.suffix == ".npy" and len(outputs) != 1:
            raise OptionError(
                f"out_file={path.name!r}: the function returns {len(outputs)} arrays, and a .npy file holds one.",
                argument="out_file",
                next_step=f"out_file={path.with_suffix('.zarr').name!r}, which holds them all",
            )
        if not outputs:
            raise OptionError(f"out_file={path.name!r}: the function returns no array.", argument="out_file")
        odd = [o.dtype for o in outputs if np.dtype(o.dtype).kind not in "biufc"]
        if odd:
            raise OptionError(
                f"out_file={path.name!r}: cannot hold {np.dtype(odd[0]).name}.",
                argument="out_file",
                next_step="return x.astype(jnp.float32)",
            )

    def add(self, begin: int, end: int, arrays: Sequence[Any]) -> None:
        """Write the outputs of items `begin` to `end`; `arrays` may be longer, where the chunk was padded."""
        rows = [np.asarray(a)[: end - begin] for a in arrays]
        with _naming_file(self.path):
            for k, array in enumerate(rows):
                self._writer.write(k, begin, array)
        self._begins.add(begin)
        self._end = max(self._end, end)
        if self._check_finite:
            self._not_finite += [(begin + i, what) for i, what in not_finite_rows(rows, end - begin)]

    def has(self, begin: int) -> bool:
        """Whether the chunk that begins there has been added."""
        return begin in self._begins

    def rows(self, begin: int, end: int) -> list[np.ndarray]:
        """Arrays of items `begin` to `end`, which have been added, read back."""
        return [self._writer.read(k, begin, end) for k in range(len(self.outputs))]

    def not_finite(self) -> list[tuple[int, str]]:
        """(index, "NaN" or "inf") of the items with a value that is not finite, if that was to be checked."""
        return sorted(self._not_finite)

    def finish(self) -> Any:
        """Put the file in its place. The result, opened for reading: a memmap, or a zarr array in each place."""
        with _naming_file(self.path):
            leaves = self._writer.finish(self._end if self.length is None else self.length)
        return jax.tree_util.tree_unflatten(self.tree, leaves)

    def discard(self) -> None:
        """Remove what was written; what stood at the file's place stays."""
        with contextlib.suppress(OSError):
            self._writer.discard()


@contextlib.contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        before = "what was there before is unchanged" if path.exists() else "nothing was left there"
        raise OutputError(
            f"out_file={str(path)!r}: cannot write ({error.strerror or error}); {before}.",
            argument="out_file",
            next_step="make room there, or name a file on another disk",
        ) from error


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished-{secrets.token_hex(4)}")


class _Npy:
    """One array in a .npy file, by plain writes: a mapped file on a full disk would kill the process."""

    def __init__(self, path: Path, tree: Any, outputs: Sequence[Output], length: int | None, chunk_size: int):
        self.path = path
        self._rest, self._dtype = outputs[0].shape, np.dtype(outputs[0].dtype)
        self._row_bytes = int(np.prod(self._rest, dtype=np.int64)) * self._dtype.itemsize
        needed, free = (length or 0) * self._row_bytes, shutil.disk_usage(path.parent).free
        if needed > free:
            raise OutputError(
                f"out_file={str(path)!r}: the result takes {size_text(needed)}, and the disk has {size_text(free)} "
                "free.",
                argument="out_file",
                next_step="make room there, or name a file on another disk",
            )
        self._temporary = _beside(path)
        self._file = open(self._temporary, "x+b")  # noqa: SIM115 closed by finish or discard
        self._header(length or 0)
        self._begin = self._file.tell()

    def _header(self, length: int) -> None:
        # numpy pads the header so that it is equally long whatever the number of rows
        described = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (length, *self._rest),
        }
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, described)

    def write(self, k: int, begin: int, array: np.ndarray) -> None:
        self._file.seek(self._begin + begin * self._row_bytes)
        if array.size:
            self._file.write(np.ascontiguousarray(array, self._dtype).reshape(-1).view(np.uint8).data)
        self._file.flush()  # a full disk is noticed at this chunk

    def read(self, k: int, begin: int, end: int) -> np.ndarray:
        self._file.seek(self._begin + begin * self._row_bytes)
        data = self._file.read((end - begin) * self._row_bytes)
        return np.frombuffer(data, self._dtype).reshape(end - begin, *self._rest)

    def finish(self, length: int) -> list[Any]:
        self._header(length)
        if self._file.tell() != self._begin:
            raise OSError("the header of the .npy file has another length")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        _flush_folder(self.path.parent)
        # an empty array cannot be mapped
        return [np.load(self.path, mmap_mode="r" if length * self._row_bytes else None)]

    def discard(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class _Zarr:
    """An array in a zarr folder, or a group with an array for each part of the result, named by its path."""

    def __init__(self, path: Path, tree: Any, outputs: Sequence[Output], length: int | None, chunk_size: int):
        self.path = path
        self._zarr = _package(str(path))
        self._temporary = _beside(path)
        self._names = leaf_names(tree)
        self._grows = length is None
        self._arrays = []
        if self._names != [""]:
            group = self._zarr.open_group(str(self._temporary), mode="w")
            for name in self._names:
                if "/" in name:
                    group.require_group(name.rpartition("/")[0])
        for name, output in zip(self._names, outputs):
            shape = (length or 0, *output.shape)
            array = self._zarr.open_array(
                store=str(self._temporary),
                path=name or None,
                mode="w",
                shape=shape,
                chunks=(_zarr_rows(chunk_size, output), *(max(1, n) for n in output.shape)),
                dtype=np.dtype(output.dtype),
            )
            self._arrays.append(array)

    def write(self, k: int, begin: int, array: np.ndarray) -> None:
        target = self._arrays[k]
        end = begin + len(array)
        if self._grows and end > target.shape[0]:
            target.resize((end, *target.shape[1:]))
        target[begin:end] = array

    def read(self, k: int, begin: int, end: int) -> np.ndarray:
        return np.asarray(self._arrays[k][begin:end])

    def finish(self, length: int) -> list[Any]:
        old = None
        if self.path.exists():  # a folder cannot be replaced in one step
            old = _beside(self.path)
            os.rename(self.path, old)
        try:
            os.rename(self._temporary, self.path)
        except OSError:
            if old is not None:
                os.rename(old, self.path)
            raise
        _flush_folder(self.path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        opened = self._zarr.open(str(self.path), mode="r")
        return [opened] if self._names == [""] else [opened[name] for name in self._names]

    def discard(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)


def _zarr_rows(chunk_size: int, output: Output) -> int:
    """Rows of a zarr chunk: a divisor of ours near the wanted size, so that each of its files is written once."""
    row = max(1, int(np.prod(output.shape, dtype=np.int64)) * np.dtype(output.dtype).itemsize)
    pieces = max(1, math.ceil(chunk_size * row / ZARR_CHUNK_BYTES))
    whole = next((n for n in range(pieces, 4 * pieces) if chunk_size % n == 0), pieces)
    return max(1, math.ceil(chunk_size / whole))


def leaf_names(tree: Any) -> list[str]:
    """A name for each array of a result: ``total``, ``pair/0``; "" for a single array.

    >>> leaf_names(jax.tree_util.tree_structure({"total": 0, "pair": (0, 0)}))
    ['pair/0', 'pair/1', 'total']
    """
    paths = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves))[0]
    names = ["/".join(_key_name(key) for key in path) for path, _ in paths]
    one_below_another = any(b.startswith(f"{a}/") for a in names for b in names)
    if len(set(names)) < len(names) or one_below_another:
        return [str(i) for i in range(len(names))]  # e.g. keys 1 and "1"
    return names


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            text = str(getattr(key, attribute))
            break
    else:
        text = str(key)
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text).strip(".") or "_"


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot flush a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class ItemWriter:
    """Writes results of single calls of plain Python: the first ones tell shapes and types."""

    # Results are written when there are this many, or at the end.
    EVERY = 512

    def __init__(self, path: Path, length: int, check_finite: bool):
        self._path = path
        self._length = length
        self._check_finite = check_finite
        self._file: FileResult | None = None

    def add(self, begin: int, results: Sequence[Any]) -> None:
        """Write the results of neighbouring items. OutputError for a result that is unlike the first ones."""
        flat = [jax.tree_util.tree_flatten(r) for r in results]
        arrays = [[np.asarray(leaf) for leaf in leaves] for leaves, _ in flat]
        if self._file is None:
            outputs = [Output(a.shape, np.result_type(*(row[k] for row in arrays if len(row) > k)))
                       for k, a in enumerate(arrays[0])]  # fmt: skip
            for output in outputs:
                if output.dtype.kind not in "biufc":
                    raise OutputError(
                        f"out_file={self._path.name!r}: holds numbers, but item {begin} gave {_told(arrays[0])}.",
                        argument="out_file",
                        next_step="leave out_file away, which gives a list",
                    )
            self._file = FileResult(
                self._path,
                flat[0][1],
                outputs,
                self._length,
                chunk_size=min(self.EVERY, self._length),
                check_finite=self._check_finite,
            )
        for i, (row, (_, tree)) in enumerate(zip(arrays, flat), begin):
            self._check(i, row, tree)
        columns = [np.stack(column).astype(o.dtype) for column, o in zip(zip(*arrays), self._file.outputs)]
        self._file.add(begin, begin + len(results), columns)

    def _check(self, i: int, row: list[np.ndarray], tree: Any) -> None:
        assert self._file is not None
        outputs = self._file.outputs
        if tree == self._file.tree and all(
            a.shape == o.shape and np.can_cast(a.dtype, o.dtype, "safe") for a, o in zip(row, outputs)
        ):
            return
        first = ", ".join(f"{o.dtype}{list(o.shape)}" for o in outputs)
        raise OutputError(
            f"out_file={self._path.name!r}: item {i} gave {_told(row)}, the items before {first}; a file holds arrays "
            "of one shape and type.",
            argument="out_file",
            next_step="leave out_file away, which gives a list, or return np.float64 values of one shape",
        )

    def finish(self) -> Any:
        """The result, opened for reading."""
        assert self._file is not None
        return self._file.finish()

    def not_finite(self) -> list[tuple[int, str]]:
        return self._file.not_finite() if self._file is not None else []

    def discard(self) -> None:
        if self._file is not None:
            self._file.discard()


def _told(row: Sequence[np.ndarray]) -> str:
    return ", ".join(f"{a.dtype}{list(a.shape)}" for a in row) or "nothing"
