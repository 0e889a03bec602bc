"""Finished chunks, kept on disk (`checkpoint=DIR`) or in memory after an interrupt: `resume` goes on from there.

A chunk's file is written beside its place, flushed to the disk and renamed, so that it is there whole or not at all.
The manifest says which map the files belong to; what does not fit is refused, never mixed in.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._jax import setting
from ..errors import CheckpointError, JaxparError
from ..machine import usable_cores
from .inputs import Batch
from .options import MapOptions
from .sources import LazyArray
from .tracing import ItemProgram

_FORMAT = 2
_MANIFEST = "manifest.json"
# Arrays are digested in blocks of about this size: several at a time, or one after the other as they are read.
_BLOCK_BYTES = 8 << 20


# -------------------------------------------------------------------- which map is it


@dataclass(frozen=True)
class MapIdentity:
    """What makes two maps the same: digests, by names that a user knows.

    Attributes
    ----------
    parts: e.g. {"the function": "3f…", "input x": "9a…"}.
    length: number of items.
    """

    parts: Mapping[str, str]
    length: int

    def differences(self, other: Mapping[str, str]) -> list[str]:
        """Names of the parts in which another map differs."""
        return [name for name in {**self.parts, **other} if self.parts.get(name) != other.get(name)]


def identify(batch: Batch, options: MapOptions, item: ItemProgram | None, function: Callable) -> MapIdentity:
    """The identity of a map. `item` is None for plain Python, where the function's code stands for it.

    Strategy, devices and batch size are not part of it: results do not depend on them.
    """
    parts = {"the function": _digest(_program_text(item, function))}
    for argument in batch.arguments:
        if argument.kind == "tree":
            parts[f"input {argument.name}"] = _digest(
                [x.array if isinstance(x.array, LazyArray) else np.asarray(x.array) for x in argument.value]
            )
        else:
            parts[f"input {argument.name}"] = _digest(argument.value)
    parts["the x64 setting"] = str(bool(setting("jax_enable_x64")))
    parts["the remainder option"] = options.remainder
    return MapIdentity(parts, batch.length)


def _program_text(item: ItemProgram | None, function: Callable) -> list[Any]:
    if item is not None:
        # StableHLO, not the jaxpr: it has no addresses of Python objects in it, which differ between kernels
        text = jax.jit(item.call).lower(item.mapped, item.shared).as_text()
        return [text, [np.asarray(c) for c in item.constants]]
    import cloudpickle

    try:
        return [cloudpickle.dumps(function)]
    except Exception:  # captures something that cannot travel; the loop can run it all the same
        code = getattr(function, "__code__", None)
        return [code.co_code, repr(code.co_consts)] if code is not None else [repr(function)]


def _digest(value: Any) -> str:
    digest = hashlib.sha256()  # processors have instructions for it: 1.5 times as fast as blake2b
    _feed(digest, value)
    return digest.hexdigest()[:32]


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, LazyArray) or (isinstance(value, np.ndarray) and value.dtype != object):
        digest.update(f"{value.dtype}{value.shape}".encode())
        for block in _block_digests(value):
            digest.update(block)
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for element in value:
            _feed(digest, element)
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, str | int | float | complex | bool | None):
        digest.update(repr(value).encode())
    else:
        try:
            digest.update(pickle.dumps(value, protocol=5))
        except Exception:  # what cannot be pickled counts by what it shows of itself
            digest.update(repr(value).encode())


def _block_digests(array: np.ndarray | LazyArray) -> Iterable[bytes]:
    """Of blocks of rows: the same for an array in memory and one that is read from a file."""
    if array.shape == ():
        return [_block_digest(np.asarray(array))]
    rows = max(1, _BLOCK_BYTES * len(array) // max(1, array.nbytes))
    blocks = (array[begin : begin + rows] for begin in range(0, len(array), rows))
    if isinstance(array, LazyArray) or array.nbytes <= _BLOCK_BYTES:
        return map(_block_digest, blocks)
    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(_block_digest, blocks))


def _block_digest(block: np.ndarray) -> bytes:
    return hashlib.sha256(_bytes_of(block)).digest()


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


# -------------------------------------------------------------------- finished chunks


@dataclass
class Finished:
    """Chunks of one map that are done: in memory, and on disk if there is a folder.

    Attributes
    ----------
    identity: of the map.
    chunk_size: items per chunk, the same when it goes on.
    folder: where they are written, or None.
    chunks: begin → (end, what was computed): a list of arrays, or results of single calls; or the file that holds
        them, which `values` reads.
    """

    identity: MapIdentity
    chunk_size: int
    folder: Path | None = None
    chunks: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def add(self, begin: int, end: int, values: Any) -> None:
        """Keep a finished chunk. With a folder it is on the disk when this returns."""
        if self.folder is None:
            self.chunks[begin] = (end, values)
            return
        header, pieces = _encode(values)
        header |= {"begin": begin, "end": end, "crc32": _checksum(pieces)}
        _write_whole(self.folder / _name(begin, end), json.dumps(header).encode(), b"\n", *pieces)

    def values(self, begin: int) -> Any:
        """What was computed in the chunk that begins there. CheckpointError if its file is damaged."""
        end, kept = self.chunks[begin]
        return _read_chunk(kept, begin, end) if isinstance(kept, Path) else kept

    @property
    def items(self) -> int:
        """Number of items that are done."""
        return sum(end - begin for begin, (end, _) in self.chunks.items())


def _encode(values: Any) -> tuple[dict[str, Any], list[Any]]:
    """(what it is, its bytes in pieces, which are not copied)."""
    if isinstance(values, list) and all(isinstance(v, jax.Array | np.ndarray) for v in values):
        arrays = [np.asarray(v, order="C") for v in values]
        described = [{"dtype": a.dtype.name, "shape": a.shape} for a in arrays]
        return {"arrays": described}, [_bytes_of(a) for a in arrays]
    return {"pickle": True}, [pickle.dumps(values, protocol=5)]


def _checksum(pieces: Iterable[Any]) -> int:
    """Tells a damaged file; nobody forges one."""
    return functools.reduce(lambda checksum, piece: zlib.crc32(piece, checksum), pieces, 0)


def _decode(header: Mapping[str, Any], data: bytes) -> Any:
    if "pickle" in header:
        return pickle.loads(data)
    arrays, position = [], 0
    for described in header["arrays"]:
        dtype = jax.numpy.dtype(described["dtype"])  # knows bfloat16 and its like by name
        shape = tuple(described["shape"])
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(np.frombuffer(data[position : position + size], dtype).reshape(shape))
        position += size
    return arrays


def _name(begin: int, end: int) -> str:
    return f"items-{begin:010d}-{end:010d}.chunk"


def _write_whole(path: Path, *pieces: Any) -> None:
    """Write a file that is there whole or not at all, even through a power cut."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with contextlib.suppress(OSError):  # some file systems cannot flush a folder
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint={str(path.parent)!r}: cannot write ({error.strerror or error}).",
            argument="checkpoint",
            next_step="make room there, then run again with resume; chunks already written are kept",
        ) from error


def open_folder(folder: str | os.PathLike, identity: MapIdentity, chunk_size: int, resume: bool) -> Finished:
    """The checkpoint in `folder`: the finished chunks of the same map, or a new one."""
    found = find_in_folder(folder, identity, resume)
    return found if found is not None else new_folder(folder, identity, chunk_size)


def new_folder(folder: str | os.PathLike, identity: MapIdentity, chunk_size: int) -> Finished:
    """A new checkpoint in `folder`, which holds none."""
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint={str(folder)!r}: cannot make this folder ({error.strerror or error}).",
            argument="checkpoint",
        ) from None
    described = {"format": _FORMAT, "parts": dict(identity.parts), "length": identity.length}
    _write_whole(path / _MANIFEST, json.dumps({**described, "chunk_size": chunk_size}, indent=1).encode())
    return Finished(identity, chunk_size, path)


def find_in_folder(folder: str | os.PathLike, identity: MapIdentity, resume: bool) -> Finished | None:
    """The finished chunks of the same map in `folder`; None if it holds no checkpoint.

    Raises
    ------
    CheckpointError: the folder holds another map or a damaged manifest, or holds this map and `resume` is not set.
    """
    path = Path(folder).expanduser()
    manifest = _read_manifest(path)
    if manifest is None:
        return None
    refuse_other(identity, manifest["parts"], manifest["length"], f"checkpoint={str(folder)!r}")
    if not resume:
        raise CheckpointError(
            f"checkpoint={str(folder)!r}: holds finished chunks of this very map.",
            argument="checkpoint",
            next_step="add resume to go on from them, or name another folder",
        )
    finished = Finished(identity, manifest["chunk_size"], path)
    for file in sorted(path.glob("items-*.chunk")):
        begin, end = (int(part) for part in file.stem.split("-")[1:])
        finished.chunks[begin] = (end, file)
    return finished


def refuse_other(identity: MapIdentity, parts: Mapping[str, str], length: int, what: str) -> None:
    """Raise CheckpointError if finished chunks belong to another map, saying in what it differs."""
    different = identity.differences(parts)
    if length != identity.length:
        different.insert(0, f"the number of items ({length}, now {identity.length})")
    if different:
        raise CheckpointError(
            f"{what}: belongs to another map; different: {', '.join(different)}.",
            argument="checkpoint",
            next_step="restore what differs, or start anew without resume (for a folder: in another one)",
        )


def _read_manifest(path: Path) -> dict[str, Any] | None:
    file = path / _MANIFEST
    if not file.exists():
        if any(path.glob("items-*.chunk")):
            raise _damaged(file, "is missing")
        return None
    try:
        manifest = json.loads(file.read_text())
        if manifest["format"] != _FORMAT:
            raise CheckpointError(
                f"checkpoint={str(path)!r}: written by another version (format {manifest['format']}).",
                argument="checkpoint",
                next_step="name another folder",
            )
        return {k: manifest[k] for k in ("parts", "length", "chunk_size")}
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(file, "cannot be read") from None


def _read_chunk(file: Path, begin: int, end: int) -> Any:
    try:
        line, _, data = file.read_bytes().partition(b"\n")
        header = json.loads(line)
        if _checksum([data]) != header["crc32"] or (header["begin"], header["end"]) != (begin, end):
            raise ValueError("crc32")
        return _decode(header, data)
    except (OSError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError):
        raise _damaged(file, "is damaged") from None


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint={str(file.parent)!r}: {file.name} {how}.",
        argument="checkpoint",
        next_step=f"delete {file} to compute its items again" if file.name != _MANIFEST else "name another folder",
    )


# -------------------------------------------------------------------- in memory, after an interrupt

_interrupted: Finished | None = None


def keep(finished: Finished) -> None:
    """Remember the finished chunks of a map that was interrupted; the last one only."""
    global _interrupted
    _interrupted = finished


def take(identity: MapIdentity) -> Finished:
    """The chunks that an interrupted map left in memory. CheckpointError if there are none, or another map's."""
    if _interrupted is None:
        raise CheckpointError(
            "resume: no interrupted map is in memory.",
            argument="resume",
            next_step="run it without resume; with checkpoint=DIR it can go on after a restart too",
        )
    refuse_other(identity, _interrupted.identity.parts, _interrupted.identity.length, "resume")
    return _interrupted


def drop() -> None:
    """Forget what an interrupted map left."""
    global _interrupted
    _interrupted = None


def worth_keeping(error: BaseException) -> bool:
    """Whether the same map can go on after this error: not if its function raised, which has to change first."""
    return isinstance(error, JaxparError) or not isinstance(error, Exception)


def kept_note(done: int, length: int) -> str:
    """The line under the traceback of a map that was stopped."""
    return f"parmap: {done:,} of {length:,} items are done and kept; --resume goes on from there (Python: resume=True)"
