"""`--show code`: the plain JAX that does what the plan does, to take away. It imports nothing of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import OptionError
from .inputs import Argument, Batch, Leaf, function_name
from .options import MapOptions
from .planner import MapPlan, python_chunk
from .sources import LazyArray, open_input

# What the printed code calls the array of `input_file`.
INPUT_FILE = "data"


@dataclass
class Texts:
    """How the user wrote the function and the inputs.

    Attributes
    ----------
    function: an expression, e.g. a name.
    definition: source that defines it, or "".
    positional, named: expressions of the inputs.
    """

    function: str
    definition: str = ""
    positional: Sequence[str] = ()
    named: dict[str, str] = field(default_factory=dict)


def texts_of_call(function: Callable, inputs: Sequence[Any], batch: Batch, named: dict[str, Any]) -> Texts:
    """Names to use when the call came from Python, where the expressions are not known."""
    positional = [_safe(a.name) for a in batch.arguments if not a.keyword][: len(inputs)]
    plain = int | float | complex | str | bool | None
    name = function_name(function)
    return Texts(
        name if name.isidentifier() else "function",
        "",
        positional,
        {name: repr(value) if isinstance(value, plain) else name for name, value in named.items()},
    )


def program_code(plan: MapPlan, batch: Batch, options: MapOptions, texts: Texts) -> str:
    """Code for a plan. After it has run, `out` holds the result."""
    traced = plan.strategy not in ("process", "serial")
    imports = ["import jax", "import jax.numpy as jnp", "import numpy as np"]
    lines: list[str] = []
    if options.input_file is not None:
        _, opened, needed = open_input(options.input_file)
        imports += [needed] if needed else []
        lines.append(f"{INPUT_FILE} = {opened}")
        texts = replace(texts, positional=[INPUT_FILE, *texts.positional[1:]])
    reads = any(isinstance(leaf.array, LazyArray) for leaf in batch.leaves()[0])
    mapped, call = _inputs(batch, options, texts, lines, traced)
    lines += [
        f"n = {plan.length}  # items",
        "mapped = (",
        *(f"    {text}," for text in mapped.values()),
        ")",
        "",
        "def one(item):",
        f"    ({', '.join(mapped)},) = item",
        f"    return {call}",
        "",
    ]
    by_chunks = traced and plan.strategy != "cluster" and (reads or options.out_file is not None)
    if plan.length < batch.length and not by_chunks:
        lines += ["mapped = jax.tree.map(lambda a: a[:n], mapped)  # the rest is left out", ""]
    lines += _STRATEGY_CODE[plan.strategy](plan, imports, _read_chunks(plan, options) if by_chunks else _chunks(plan))
    if options.out_file is not None and not by_chunks:
        lines.append(f"np.save({_npy_path(options)!r}, out)")
    lines += _out_axes(options.out_axes)
    definition = [texts.definition.strip("\n"), ""] if texts.definition else []
    return "\n".join([*imports, "", *definition, *lines]).rstrip() + "\n"


# -------------------------------------------------------------------- inputs


def _safe(name: str) -> str:
    return "".join(c if c.isidentifier() or c.isdigit() else "_" for c in name)


def _text(a: Argument, texts: Texts, position: int) -> str:
    """The user's expression of an input, converted where JAX does not know its type."""
    if a.keyword:
        text = texts.named.get(a.name, a.name)
    else:
        text = texts.positional[position] if position < len(texts.positional) else _safe(a.name)
    if a.kind == "constant":
        return text
    if a.origin == "DataFrame":
        if a.kind == "sequence":
            return f"({text}).to_dict('records')"
        return f"{{str(c): ({text})[c].to_numpy() for c in ({text}).columns}}"
    if a.origin in ("Series", "Index"):
        return f"({text}).to_numpy()"
    if a.origin == "ndarray" and a.kind == "tree" and len(a.value) > 1:
        return f"{{c: ({text})[c] for c in ({text}).dtype.names}}"
    return f"list({text})" if a.kind == "sequence" and a.origin not in ("list", "tuple") else text


def _inputs(
    batch: Batch, options: MapOptions, texts: Texts, lines: list[str], traced: bool
) -> tuple[dict[str, str], str]:
    """({name of a part of an item: expression of all of that part}, the call of the function for one item)."""
    asarray, moveaxis = ("jnp.asarray", "jnp.moveaxis") if traced else ("np.asarray", "np.moveaxis")

    def moved(text: str, leaf: Leaf) -> str:
        axis = leaf.axis
        if isinstance(leaf.array, LazyArray):  # read by the loop below
            if axis == 0:
                return text
            if isinstance(leaf.array.source, np.memmap):
                return f"np.moveaxis({text}, {axis}, 0)"
            raise OptionError(
                f"show='code': no code is printed for {leaf.name}, which is read from a file along axis {axis}.",
                argument="show",
                next_step="show='plan'",
            )
        return f"{asarray}({text})" if axis == 0 else f"{moveaxis}({asarray}({text}), {axis}, 0)"

    mapped: dict[str, str] = {}
    arguments: list[str] = []
    position = 0
    for a in batch.arguments:
        text = value = _text(a, texts, position)
        name = _safe(a.name)
        star = {"": "", "tuple": "*", "dict": "**"}[batch.spread] if not arguments and not a.keyword else ""
        if options.key is not None and a is batch.arguments[-1]:
            seed = f"jax.random.key({options.key})" if isinstance(options.key, int) else "key"
            mapped[name] = f"jax.vmap(jax.random.fold_in, (None, 0))({seed}, jnp.arange(n, dtype=jnp.uint32))"
            value = name
        elif a.kind == "sequence":
            if not traced:
                mapped[name] = text
            elif all(isinstance(x, int | float | complex) for x in a.value):
                mapped[name] = f"jnp.asarray({text})"
            else:
                lines.append(f"{name}_items = {text}")
                mapped[name] = f"jax.tree.map(lambda *v: jnp.stack([jnp.asarray(x) for x in v]), *{name}_items)"
            value = name
        elif a.kind == "tree" and any(leaf.mapped for leaf in a.value):
            if len(a.value) == 1 and a.treedef.num_nodes == 1:
                # typed keys are JAX arrays already, and numpy cannot hold them
                mapped[name] = text if a.value[0].key_impl else moved(text, a.value[0])
                value = name
            else:
                lines.append(f"{name}_leaves, {name}_tree = jax.tree.flatten({text})")
                parts = [f"{name}_leaves[{i}]" for i in range(len(a.value))]
                for i, leaf in enumerate(a.value):
                    if leaf.mapped:
                        mapped[f"{name}_{i}"] = parts[i] if leaf.key_impl else moved(parts[i], leaf)
                        parts[i] = f"{name}_{i}"
                value = f"jax.tree.unflatten({name}_tree, [{', '.join(parts)}])"
        arguments.append(f"{a.name}={value}" if a.keyword else f"{star}{value}")
        position += not a.keyword
    return mapped, f"{texts.function}({', '.join(arguments)})"


# -------------------------------------------------------------------- strategies


def _local(plan: MapPlan) -> list[str]:
    """`local`: the map that one device does."""
    if plan.width >= plan.chunk_size // plan.parts:
        return ["local = jax.vmap(one)"]
    batch = f", batch_size={plan.width}" if plan.width > 1 else ""
    return [f"local = lambda items: jax.lax.map(one, items{batch})"]


def _chunks(plan: MapPlan) -> list[str]:
    """Call `run` on all items, or chunk by chunk; padded at the end and trimmed."""
    lines = []
    if plan.padding:
        lines += [
            f"pad = {plan.padding}  # repeats of the last item fill up the devices, and are cut off below",
            "mapped = jax.tree.map(lambda a: jnp.concatenate([a] + [a[-1:]] * pad), mapped)",
        ]
    if plan.tail:
        lines += [
            f"chunk = {plan.chunk_size}",
            "full = [jax.tree.map(lambda a: a[i:i + chunk], mapped) for i in range(0, n - chunk + 1, chunk)]",
            "rest = jax.tree.map(lambda a: a[n - n % chunk:], mapped)  # not padded: callbacks would see it",
            "pieces = [run(items) for items in full] + [jax.jit(lambda items: jax.lax.map(one, items))(rest)]",
            "out = jax.tree.map(lambda *v: jnp.concatenate([jax.device_get(a) for a in v]), *pieces)",
        ]
    elif plan.chunks > 1:
        lines += [
            f"chunk = {plan.chunk_size}",
            "chunks = [jax.tree.map(lambda a: a[i:i + chunk], mapped) for i in range(0, n, chunk)]",
            "pieces = [jax.block_until_ready(run(items)) for items in chunks]",
            "out = jax.tree.map(lambda *v: jnp.concatenate(v), *pieces)",
        ]
    else:
        lines += ["out = run(mapped)"]
    if plan.padding:
        lines += ["out = jax.tree.map(lambda a: a[:n], out)"]
    return lines


def _read_chunks(plan: MapPlan, options: MapOptions) -> list[str]:
    """Read chunk after chunk, call `run` on it, and keep what it gives, in memory or in a file."""
    lines = [
        "def part(a, i):  # of what lies in a file, only this is read",
        "    return a[i:min(i + chunk, n)] if isinstance(a, jax.Array) else np.asarray(a[i:min(i + chunk, n)])",
        "",
        f"chunk = {plan.chunk_size}",
        "pieces = []" if options.out_file is None else "out = None",
        "for i in range(0, n, chunk):",
        "    items = jax.tree.map(lambda a: part(a, i), mapped)",
    ]
    call = "run(items)"
    if plan.padding:
        lines += [
            "    pad = max(0, i + chunk - n)  # repeats of the last item fill the last chunk, and are cut off below",
            "    items = jax.tree.map(lambda a: jnp.concatenate([a] + [a[-1:]] * pad), items)",
        ]
    elif plan.tail:
        call += " if i + chunk <= n else jax.jit(lambda items: jax.lax.map(one, items))(items)"
    if options.out_file is None:
        return [
            *lines,
            f"    pieces.append(jax.device_get({call}))",
            "out = jax.tree.map(lambda *v: np.concatenate(v)[:n], *pieces)",
        ]
    return [
        *lines,
        f"    done = np.asarray({call})",
        "    if out is None:",
        "        shape = (n, *done.shape[1:])",
        f"        out = np.lib.format.open_memmap({_npy_path(options)!r}, 'w+', done.dtype, shape)",
        "    out[i:i + chunk] = done[:n - i]",
        "out.flush()",
    ]


def _npy_path(options: MapOptions) -> str:
    path = str(options.out_file)
    if not path.endswith(".npy"):
        raise OptionError(
            f"show='code': no code is printed for out_file={path!r}, only for .npy files.",
            argument="show",
            next_step="show='plan', or out_file='….npy'",
        )
    return path


def _one_device(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    return [*_local(plan), "run = jax.jit(local)", *chunks]


def _mesh(plan: MapPlan) -> list[str]:
    return [f'mesh = Mesh(np.array(jax.devices()[:{plan.parts}]), ("devices",))']


def _shard_map(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    imports.append("from jax.sharding import Mesh, PartitionSpec as P")
    return [
        *_local(plan),
        *_mesh(plan),
        "run = jax.jit(jax.shard_map(",
        '    local, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"), check_vma=False))',
        *_dealt_out(plan),
        *chunks,
    ]


def _sharded_jit(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    imports.append("from jax.sharding import Mesh, NamedSharding, PartitionSpec as P")
    return [
        *_mesh(plan),
        'run = jax.jit(jax.vmap(one), in_shardings=NamedSharding(mesh, P("devices")))',
        *chunks,
    ]


def _pmap(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    return [
        *_local(plan),
        f"over_devices = jax.pmap(local, devices=jax.devices()[:{plan.parts}])",
        "",
        "def run(items):  # pmap wants a leading axis of devices",
        f"    cut = jax.tree.map(lambda a: a.reshape({plan.parts}, -1, *a.shape[1:]), items)",
        "    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), over_devices(cut))",
        "",
        *chunks,
    ]


def _thread(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    imports.append("from concurrent.futures import ThreadPoolExecutor")
    part = plan.chunk_size // plan.parts
    return [
        *_local(plan),
        "on_part = jax.jit(local)",
        "",
        "def run(items):",
        f"    parts = [jax.tree.map(lambda a: a[k:k + {part}], items) for k in range(0, {plan.chunk_size}, {part})]",
        f"    with ThreadPoolExecutor({plan.parts}) as pool:",
        "        done = list(pool.map(lambda part: jax.block_until_ready(on_part(part)), parts))",
        "    return jax.tree.map(lambda *v: jnp.concatenate(v), *done)",
        "",
        *_dealt_out(plan),
        *chunks,
    ]


def _dealt_out(plan: MapPlan) -> list[str]:
    """`run` on items that are dealt out to the parts in turn, with results in the order of the items."""
    if not plan.interleaved:
        return []
    return [
        "",
        "def swap(a, rows):",
        "    return a.reshape(rows, -1, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape)",
        "",
        "run_in_order = run",
        "",
        "def run(items):  # neighbours go to different parts, so that slow ones that stand together are shared",
        f"    dealt = jax.tree.map(lambda a: swap(a, {plan.chunk_size // plan.parts}), items)",
        f"    return jax.tree.map(lambda a: swap(jax.device_get(a), {plan.parts}), run_in_order(dealt))",
        "",
    ]


_STACK = [
    "try:",
    "    out = jax.tree.map(lambda *v: np.stack([np.asarray(x) for x in v]), *results)",
    "except (TypeError, ValueError):",
    "    out = results  # they do not stack",
]


def _serial(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    return ["results = [one(item) for item in zip(*mapped)]", *_STACK]


def _process(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    imports.append("from loky import get_reusable_executor  # takes functions that a notebook defines")
    return [
        f"workers = get_reusable_executor(max_workers={plan.parts})",
        f"results = list(workers.map(one, zip(*mapped), chunksize={python_chunk(plan.length, plan.parts, None)}))",
        *_STACK,
    ]


def _cluster(plan: MapPlan, imports: list[str], chunks: list[str]) -> list[str]:
    imports.append("import ipyparallel as ipp")
    return [
        f"chunk = {plan.chunk_size}",
        "chunks = [jax.tree.map(lambda a: a[i:i + chunk], mapped) for i in range(0, n, chunk)]",
        "",
        "def run(items):  # on an engine",
        "    return jax.device_get(jax.jit(jax.vmap(one))(items))",
        "",
        f"with ipp.Cluster(n={plan.parts}) as engines:",
        "    engines[:].use_cloudpickle()",
        "    pieces = list(engines.load_balanced_view().map_sync(run, chunks))",
        "out = jax.tree.map(lambda *v: np.concatenate(v), *pieces)",
    ]


_STRATEGY_CODE: dict[str, Callable[[MapPlan, list[str], list[str]], list[str]]] = {
    "vmap": _one_device,
    "map": _one_device,
    "jit": _sharded_jit,
    "shard_map": _shard_map,
    "pmap": _pmap,
    "thread": _thread,
    "process": _process,
    "serial": _serial,
    "cluster": _cluster,
}


def _out_axes(out_axes: Any) -> list[str]:
    if out_axes == 0:
        return []
    if out_axes is None:
        return ["out = jax.tree.map(lambda a: a[0], out)"]
    if isinstance(out_axes, int):
        return [f"out = jax.tree.map(lambda a: jnp.moveaxis(a, 0, {out_axes}), out)"]
    return [
        f"axes = {out_axes!r}",
        "def place(axis, a):",
        "    return a[0] if axis is None else jnp.moveaxis(a, 0, axis)",
        "out = jax.tree.map(",
        "    lambda axis, part: jax.tree.map(lambda a: place(axis, a), part), axes, out, is_leaf=lambda a: a is None)",
    ]
