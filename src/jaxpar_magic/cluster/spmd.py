"""Maps as one program over the devices of all engines, whose items may see each other: `parmap(…, spmd=True)`.

function → traced here once → the program of all items, as `jax.export` writes it → compiled by each engine for the
mesh, where XLA divides it → each engine's items, here or there.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import export

from ..errors import InputError, MapTimeout, UnsupportedError
from ..mapping.captured import captured, fingerprint
from ..mapping.collect import Collector, assemble
from ..mapping.inputs import Batch, Leaf, NotStackable, Ragged, check_range, check_widths, make_batch
from ..mapping.monitor import Monitor
from ..mapping.options import MapOptions
from ..mapping.prepare import traced
from ..mapping.result import ItemReport, MapReport, MapResult
from ..mapping.sources import LazyArray
from ..mapping.tracing import SPMD_AXIS, ItemProgram, NotTraceable, canonical
from . import engine_spmd
from .arrays import ClusterArray
from .engines import Cluster
from .mesh import Mesh, is_spread, mesh_of
from .settings import jax_options
from .transport import LEAST_SHARED, Block, FileArray, pack, unpack

# How MLIR writes from which lines of source something comes.
_PLACES = re.compile(r'^#loc.*$| loc\((#loc\d*|"[^"]*")\)', re.MULTILINE)


def run_spmd(
    cluster: Cluster,
    function: Callable,
    inputs: Sequence[Any],
    named: dict[str, Any],
    options: MapOptions,
    monitor: Monitor,
) -> MapResult:
    """Map `function` over the inputs as one program; see `parmap` for the meaning of everything."""
    __tracebackhide__ = True
    try:
        return _run_spmd(cluster, function, inputs, named, options, monitor)
    except MapTimeout as error:
        raise MapTimeout(
            error.problem, next_step="a larger timeout; nothing of the result is kept", argument="timeout"
        ) from None


def _run_spmd(
    cluster: Cluster,
    function: Callable,
    inputs: Sequence[Any],
    named: dict[str, Any],
    options: MapOptions,
    monitor: Monitor,
) -> MapResult:
    __tracebackhide__ = True
    begin = time.perf_counter()
    batch = make_batch(function, inputs, named, in_axes=options.in_axes, static=options.static, key=options.key)
    stacked = _stacked(batch)
    mapped, shared = stacked.leaves()
    notes = check_widths(mapped, shared)
    item = _traced(function, stacked, options, monitor)
    length = stacked.length
    with cluster.lock:
        mesh = mesh_of(cluster, monitor.say, monitor.check)
        if is_spread(mesh):
            notes.append("what the engines exchange is neither encrypted nor authenticated: for trusted networks only")
        monitor.plan(length, 1, str(mesh))
        digest, reused = _compiled(mesh, item, length, monitor)
        monitor.phase("running")
        ready = time.perf_counter()
        arrays = [x.array for x in shared] + list(item.constants)
        outputs = _run(mesh, digest, length, mapped, arrays, item, options.keep_sharded, monitor)
    report = MapReport(
        "cluster spmd",
        length,
        len(mesh.engines),
        "engine",
        each=mesh.each,
        compile_seconds=ready - begin,
        run_seconds=time.perf_counter() - ready,
        reused=reused,
        reasons=(f"one program over {mesh}",),
        notes=[*notes, *item.notes],
    )
    monitor.advance(length, 1)
    if options.keep_sharded:
        return MapResult(jax.tree_util.tree_unflatten(item.out_tree, outputs), report)
    collector = Collector(item.outputs, length)
    collector.add(0, length, outputs)
    if options.check == "finite":
        report.not_finite = [ItemReport(i, stacked.describe_item(i), what) for i, what in collector.not_finite()]
    return MapResult(assemble(collector.leaves(), item.out_tree, item.outputs, options.out_axes), report)


def _stacked(batch: Batch) -> Batch:
    if batch.length == 0:
        raise InputError("spmd: there are no items.", argument="spmd", next_step="strategy='cluster' without spmd")
    try:
        return batch.stacked()
    except Ragged as ragged:
        problem = f"the items have {len(ragged.groups)} shapes"
    except NotStackable as why:
        problem = str(why)
    raise InputError(
        f"spmd: one program needs numbers or arrays of one shape, but {problem}.",
        argument="spmd",
        next_step="strategy='cluster' without spmd",
    )


def _traced(function: Callable, batch: Batch, options: MapOptions, monitor: Monitor) -> ItemProgram:
    __tracebackhide__ = True
    found = captured(function)
    try:
        item, *_ = traced(function, batch, options, found, fingerprint(found), monitor)
    except NotTraceable as error:
        raise InputError(
            f"spmd: {error}.", argument="spmd", next_step="strategy='cluster' without spmd runs plain Python"
        ) from None
    if item.facts.callbacks:
        raise UnsupportedError(
            "spmd: the function calls back to Python (jax.debug.print, jax.pure_callback, io_callback …), and a "
            "program for several engines cannot.",
            next_step="leave the callback out, or strategy='cluster' without spmd",
            argument="spmd",
        )
    if options.keep_sharded and any(output.key_impl for output in item.outputs):
        raise UnsupportedError(
            "keep_sharded: the function returns PRNG keys, which cannot stay on the engines.",
            next_step="return jax.random.key_data(key)",
            argument="keep_sharded",
        )
    return item


# -------------------------------------------------------------------- the program


def _compiled(mesh: Mesh, item: ItemProgram, length: int, monitor: Monitor) -> tuple[str, bool]:
    """(the program's digest, whether the engines had it)."""
    __tracebackhide__ = True
    monitor.phase("compiling")
    exported = _exported(item, length, mesh.platform)
    # without places in the source, so that a cell that runs again finds its program
    found = f"{_PLACES.sub('', exported.mlir_module())}{exported.in_avals}"
    digest = hashlib.blake2b(found.encode(), digest_size=16).hexdigest()
    if digest in mesh.programs:
        return digest, True
    try:
        text = bytes(exported.serialize())
    except ImportError:  # JAX does not require it
        raise UnsupportedError(
            "spmd: JAX needs flatbuffers to write programs for engines.",
            next_step='pip install "jaxpar-magic[cluster]"',
            argument="spmd",
        ) from None
    message = (digest, text, length, jax_options())
    mesh.call(engine_spmd.prepare, [message] * len(mesh.engines), monitor.check)
    mesh.programs.add(digest)
    return digest, False


def _exported(item: ItemProgram, length: int, platform: str) -> Any:
    __tracebackhide__ = True
    program = jax.vmap(item.call, in_axes=(0, None), axis_name=SPMD_AXIS, axis_size=length)
    stacked = [jax.ShapeDtypeStruct((length, *a.shape), a.dtype) for a in item.mapped]
    try:
        return export.export(jax.jit(program), platforms=[platform])(stacked, item.shared)
    except (ValueError, NotImplementedError) as error:
        if "custom call" not in str(error) and "serializ" not in str(error):
            raise
        raise UnsupportedError(
            f"spmd: JAX cannot send this program to engines ({str(error).splitlines()[0]}).",
            next_step="strategy='cluster' without spmd",
            argument="spmd",
        ) from None


# -------------------------------------------------------------------- inputs there, results here


def _run(
    mesh: Mesh,
    digest: str,
    length: int,
    mapped: Sequence[Leaf],
    shared: Sequence[Any],
    item: ItemProgram,
    keep: bool,
    monitor: Monitor,
) -> list[Any]:
    """The outputs: arrays (items, …) here, or `ClusterArray`s."""
    __tracebackhide__ = True
    kept = [ClusterArray(mesh, (length, *o.shape), o.dtype) for o in item.outputs] if keep else None
    shapes = [] if keep else [((length, *o.shape), np.dtype(o.dtype)) for o in item.outputs]
    forget, mesh.forget[:] = list(mesh.forget), []
    with _Blocks(mesh) as blocks:
        sent = _sent(mesh, length, mapped, shared, blocks)
        results = [blocks.result(shape, dtype) for shape, dtype in shapes]
        calls = []
        for rank, (begin, _) in enumerate(mesh.rows(length)):
            inputs, address, buffers = sent[rank]
            request = {
                "digest": digest,
                "length": length,
                "inputs": inputs,
                "block": address,
                "targets": [(result.address, begin * result.row_bytes) for result in results]
                if mesh.shares[rank] and all(result.address for result in results)
                else None,
                "keep": None if kept is None else [array.name for array in kept],
                "forget": forget,
                "settings": jax_options(),
            }
            calls.append((request, *buffers))
        answers = mesh.call(engine_spmd.run, calls, monitor.check)
        if kept is not None:
            return [array.kept() for array in kept]
        for (begin, end), (where, *buffers) in zip(mesh.rows(length), answers):
            for result, part in zip(results, unpack(where, buffers)):
                result.array[begin:end] = part
        return [result.array for result in results]


class _Result:
    """An array here that engines on this machine fill themselves, if it is large."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, block: Block | None):
        self.row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        self.address = None if block is None else block.address
        size = shape[0] * self.row_bytes
        memory = np.empty(size, np.uint8) if block is None else np.frombuffer(block.map(size), np.uint8, size)
        self.array = memory.view(dtype).reshape(shape)


class _Blocks:
    """Shared memory of one run: engines can open it until the run has ended."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._blocks: list[Block] = []

    def __enter__(self) -> _Blocks:
        return self

    def __exit__(self, *exception: Any) -> None:
        for block in self._blocks:
            block.close()

    def new(self, size: int) -> Block | None:
        """A block, where it is worth one and an engine can open it."""
        if size < LEAST_SHARED or not any(self._mesh.shares):
            return None
        self._blocks.append(Block(size))
        return self._blocks[-1]

    def result(self, shape: tuple[int, ...], dtype: np.dtype) -> _Result:
        return _Result(shape, dtype, self.new(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize))


def _sent(
    mesh: Mesh, length: int, mapped: Sequence[Leaf], shared: Sequence[Any], blocks: _Blocks
) -> list[tuple[list[tuple[str, Any]], Any, list[Any]]]:
    """For each engine: (what its inputs are, address of the block that they are in, buffers to send)."""
    sources = [_source(mesh, leaf) for leaf in mapped]
    here = [value for kind, value in sources if kind == "rows"]
    whole = [_narrowed(array) for array in shared]
    block = blocks.new(sum(array.nbytes for array in (*here, *whole)))
    placed = pack([*here, *whole], block)[0] if block is not None else []
    sent: list[tuple[list[tuple[str, Any]], Any, list[Any]]] = []
    for rank, (begin, end) in enumerate(mesh.rows(length)):
        if block is not None and mesh.shares[rank]:
            buffers: list[Any] = []
            own = [
                replace(p, offset=p.offset + begin * (p.nbytes // length), shape=(end - begin, *p.shape[1:]))
                for p in placed[: len(here)]
            ] + placed[len(here) :]
            address = block.address
        else:
            own, buffers = pack([*(array[begin:end] for array in here), *whole])
            address = None
        packed = iter(own)
        inputs = []
        for kind, value in sources:
            if kind == "rows":
                value = next(packed)
            elif kind == "file":
                value = (value, begin, end)
            inputs.append((kind, value))
        inputs += [("whole", each) for each in packed]
        sent.append((inputs, address, buffers))
    return sent


def _source(mesh: Mesh, leaf: Leaf) -> tuple[str, Any]:
    """What engines get of a mapped input: ("kept", name), ("file", where it is) or ("rows", the whole array here)."""
    array = leaf.array
    if not isinstance(array, LazyArray):
        return "rows", _narrowed(array)
    source = array.whole()
    if source is not None and isinstance(source[0], ClusterArray) and source[1] == 0:
        return "kept", source[0].on(mesh)
    file = FileArray.of(array) if all(map(mesh.cluster.here, mesh.engines)) else None
    if file is not None:
        return "file", file
    rows = array[0 : len(array)]
    check_range(leaf.name, rows)
    return "rows", _narrowed(rows)


def _narrowed(array: Any) -> np.ndarray:
    """As JAX would have it: numpy's float64 is float32 unless x64 is on."""
    array = np.asarray(array)
    return array.astype(canonical(array.dtype), copy=False)
