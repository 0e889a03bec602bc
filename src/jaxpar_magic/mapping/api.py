"""`parmap`: the public function."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .._jax import without_context_mesh
from ..errors import JaxparWarning, OptionError
from .checkpoint import drop
from .compare import Comparison, compare_strategies
from .monitor import Display, Monitor
from .options import MapOptions
from .result import MapReport, MapResult
from .runner import run_map
from .show import Shown, show_map
from .source import INPUT_FILE, Texts
from .sources import open_input

_last_report: MapReport | None = None


def run(
    function: Callable,
    inputs: Sequence[Any],
    named: dict[str, Any],
    options: MapOptions,
    *,
    compare: bool | str | Sequence[str] | None = None,
    show: str | None = None,
    texts: Texts | None = None,
    display: Callable[[], Display] | None = None,
    delay: float | None = None,
) -> MapResult | Comparison | Shown:
    """What `parmap` and the magics do; they differ in how they show it. See `parmap` for the parameters.

    `texts` is how the user wrote the function and the inputs, for `show="code"`; `display` makes what shows the
    progress of a run that takes longer than `delay` seconds.
    """
    __tracebackhide__ = True
    global _last_report
    if not callable(function):
        raise OptionError(
            f"function: needs a function of one item, got a {type(function).__name__}.",
            argument="function",
            next_step="parmap(function, inputs)",
        )
    if options.input_file is not None:
        inputs = (open_input(options.input_file)[0], *inputs)
        if texts is not None:
            texts = replace(texts, positional=[INPUT_FILE, *texts.positional])
    if options.spmd and (compare or show):
        raise OptionError(
            f"{'compare' if compare else 'show'} and spmd do not go together: the program is "
            "jax.jit(jax.vmap(f, axis_name='items')) over arrays that a mesh of all engines shards along axis 0.",
            argument="compare" if compare else "show",
        )
    if compare and options.out_file is not None:
        raise OptionError(
            "out_file and compare do not go together: each strategy would write the file.", argument="out_file"
        )
    with without_context_mesh():
        if show is not None:
            return show_map(show, function, inputs, named, options, texts)
        if compare:
            return compare_strategies(function, inputs, named, options, compare)
        with Monitor(display, options.timeout, delay) as monitor:
            try:
                result = run_map(function, inputs, named, options, monitor)
            except KeyboardInterrupt as stopped:
                if options.strategy != "serial":  # where our frames wait tells a user nothing
                    lines = ["KeyboardInterrupt", *getattr(stopped, "__notes__", [])]
                    stopped._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
                raise
    if options.resume:
        drop()
    name = str(getattr(function, "__name__", ""))
    result.report.function = name if name.isidentifier() else ""  # not <lambda>
    _last_report = result.report
    return result


def last_report() -> MapReport | None:
    """The report of the last map in this process, or None: strategy, times, notes, failed items.

    Examples
    --------
    >>> _ = parmap(lambda x: 2 * x, [1.0, 2.0])
    >>> last_report().length
    2
    """
    return _last_report


def parmap(
    function: Callable,
    *inputs: Any,
    strategy: str = "auto",
    devices: int | None = None,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static: str | Sequence[str] = (),
    key: Any = None,
    remainder: str = "pad",
    on_error: str = "raise",
    check: str | None = None,
    checkpoint: str | os.PathLike | None = None,
    resume: bool = False,
    timeout: float | None = None,
    memory: int | str | None = None,
    input_file: str | os.PathLike | None = None,
    out_file: str | os.PathLike | None = None,
    spmd: bool = False,
    keep_sharded: bool = False,
    compare: bool | str | Sequence[str] | None = None,
    show: str | None = None,
    quiet: bool = True,
    **named: Any,
) -> Any:
    """Map `function` over inputs and stack the results, as a Python loop would and `jax.vmap` does.

    Parameters
    ----------
    function:
        Takes one item (or one of each input). Any function for "process" and "serial"; one that JAX can trace for
        the other strategies; `auto` finds out.
    *inputs, **named:
        What to map over. An array or a pytree of arrays is mapped along axis 0 of shape (items, …); a list, range,
        generator, Series or DataFrame is a sequence of items. Scalars and strings are the same for all items.
        What lies in a file (`numpy.memmap`, `h5py.Dataset`, `zarr.Array`, a dask array, or whatever else has a shape,
        a dtype and slices) is read chunk by chunk, and a long iterator is consumed so, while the map runs.
        A list of tuples is spread over the parameters, as `Pool.starmap` does, if the function takes them so.
    strategy:
        "auto", "vmap", "map", "jit", "shard_map", "pmap", "thread", "process" or "serial".
    devices:
        How many devices (worker processes for "process"); default all.
    batch_size:
        Items vectorised together on a device; default chosen.
    chunk_size:
        Items per dispatch; default chosen, so that `memory` is kept.
    in_axes, out_axes:
        As in `jax.vmap`; in_axes also as a dict of parameter names. None shares an input with all items.
    static:
        Names of inputs that are constants while compiling.
    key:
        A seed: the function's parameter `key` gets a PRNG key of its own for each item, the same whatever the
        strategy, chunk or device count (`jax.random.fold_in(jax.random.key(seed), i)`).
    remainder:
        Items that do not fill all devices: "pad" computes and trims, "drop" leaves them out, "error" refuses.
    on_error:
        "raise" names the failing item; "skip" leaves failing items out and reports them (callbacks, plain Python).
    check:
        "finite" reports the items whose result has NaN or inf.
    checkpoint:
        A folder: finished chunks are kept there, each whole or not at all, so that a killed process loses at most
        the chunk under way.
    resume:
        Go on from the chunks that an earlier run of the same map left, in `checkpoint` or, after an interrupt, in
        memory. Refused, with what differs, if it was another map.
    timeout:
        Seconds after which the map is stopped with `MapTimeout`; looked at between chunks and while waiting for one.
    memory:
        What the map may hold at its peak, without your own arrays: bytes, or text such as "2GB", "1.5GiB" or "50%" of
        what is free to this process; default 80 %. Chunks, and where need be batches, are chosen by what the compiled
        program says that it needs. Not for "process" and "serial".
    input_file:
        The first input, from a file: "x.npy" (mapped into memory, read chunk by chunk), "x.npz::NAME",
        "x.h5::DATASET", "x.zarr" or "x.zarr::ARRAY".
    out_file:
        Write the result to this file, chunk by chunk, instead of keeping it: "y.npy" for one array, "y.zarr" for
        several too, each named by its place in the function's result. The file appears when it is complete; an older
        one of that name stays until then.
    spmd:
        With strategy "cluster": one program over the devices of all engines at once, in which the function may use
        collectives over all items of the map: `jax.lax.psum(x, "items")`, `pmean`, `all_gather`, `axis_index` …
    keep_sharded:
        With `spmd`: leave the results on the engines, as a `ClusterArray` each: an input of the next such map that
        does not travel; `gather()` brings it here.
    compare:
        True or names of strategies: run them, check that they agree, and return a `Comparison`.
    show:
        "plan", "code", "jaxpr", "hlo" or "sharding": return that instead of running.
    quiet:
        False prints the report line, as the magic does.

    Returns
    -------
    The results stacked along axis 0 (or `out_axes`), in the order of the items: JAX arrays, a pytree of them where
    the function returns one, numpy arrays from plain Python, a list where results do not stack. With `out_file`: the
    file, opened for reading (a `numpy.memmap`, or zarr arrays).

    Raises
    ------
    OptionError, InputError, DeviceError, CheckpointError: nothing has run. WorkerError: a worker process was lost.
    MapTimeout: the time was over; what is done is kept for `resume`. OutputError: `out_file` cannot be written.
    Any exception of the function itself, with a note that names the item where it is known.

    Warns
    -----
    JaxparWarning: what would otherwise be learnt too late (a side effect that ran once, float64 cut to float32 …).

    Examples
    --------
    >>> import numpy as np
    >>> parmap(lambda x, k: k * x, np.arange(3.0, dtype=np.float32), k=2).tolist()
    [0.0, 2.0, 4.0]
    """
    __tracebackhide__ = True
    options = MapOptions(
        strategy,
        devices,
        batch_size,
        chunk_size,
        in_axes,
        out_axes,
        static,
        key,
        remainder,
        on_error,
        check,
        checkpoint,
        resume,
        timeout,
        memory,
        input_file,
        out_file,
        spmd,
        keep_sharded,
    )
    done = run(function, inputs, named, options, compare=compare, show=show)
    if not isinstance(done, MapResult):
        return done
    if not quiet:
        print("\n".join(done.report.lines()))
    else:
        for note in done.report.notes:
            warnings.warn(note, JaxparWarning, stacklevel=2)
    return done.value
