"""`--show`: what a map would do, without doing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ..document import Code, Described, Document, Items, Table
from ..errors import InputError, JaxparError, OptionError, did_you_mean
from . import strategies
from .captured import captured, fingerprint
from .choices import SHOW
from .elsewhere import runner
from .inputs import Batch, Ragged, check_widths, make_batch
from .monitor import Monitor
from .options import MapOptions
from .planner import MapPlan, python_chunk, python_parts
from .prepare import Timer, prepare, traced
from .source import Texts, program_code, texts_of_call
from .strategies.base import AXIS, local_map
from .tracing import ItemProgram


@dataclass
class Shown(Described):
    """What `--show` shows: `text` is the plan, the code or the program; `str()` and a notebook show it in full."""

    kind: str
    text: str
    document: Document

    def describe(self) -> Document:
        return self.document

    def __repr__(self) -> str:
        return self.text


def show_map(
    kind: str,
    function: Callable,
    inputs: Sequence[Any],
    named: dict[str, Any],
    options: MapOptions,
    texts: Texts | None = None,
) -> Shown:
    """What a map would do. Traces the function (its Python code runs once); runs no item.

    Raises
    ------
    OptionError: unknown `kind`, or one that plain Python has nothing to show for.
    """
    __tracebackhide__ = True
    if kind not in SHOW:
        raise OptionError(
            f"show={kind!r}: not one of {', '.join(SHOW)}.{did_you_mean(str(kind), SHOW)}", argument="show"
        )
    batch = make_batch(function, inputs, named, in_axes=options.in_axes, static=options.static, key=options.key)
    texts = texts or texts_of_call(function, inputs, batch, named)
    plan, item, executable = _planned(function, batch, options)
    if plan.strategy in strategies.ELSEWHERE and (kind not in ("plan", "code") or (kind == "code" and item is None)):
        raise OptionError(
            f"show={kind!r}: engines of a cluster choose and compile for themselves; there is nothing to show here."
            if item is not None
            else f"show={kind!r}: the function is plain Python for JAX, for which no code with engines is printed.",
            argument="show",
            next_step="show='plan', or strategy='auto' to see it for this machine",
        )
    if kind == "code":
        code = program_code(plan, batch, options, texts)
        return Shown(kind, code, Document([Code(code)]))
    if kind == "plan":
        return _show_plan(plan, item, batch)
    if item is None:
        raise OptionError(
            f"show={kind!r}: strategy {plan.strategy!r} runs plain Python; there is no JAX program to show.",
            argument="show",
            next_step="show='plan' or show='code'",
        )
    if kind == "jaxpr":
        return _show_jaxpr(plan, item)
    if kind == "hlo":
        text = executable.compiled.text
        return Shown(kind, text, Document([Code(text, "mlir", f"StableHLO of one chunk ({plan.strategy})")]))
    return _show_sharding(plan, item)


def _planned_elsewhere(function: Callable, batch: Batch, options: MapOptions) -> tuple[MapPlan, ItemProgram | None]:
    try:
        stacked = batch.stacked()
        found = captured(function)
        plain = replace(options, checkpoint=None, resume=False)
        item = traced(function, stacked, plain, found, fingerprint(found), Monitor())[0]
    except JaxparError:
        raise
    except Exception as error:
        reason = f"cannot be traced by JAX ({type(error).__name__}): the engines run it as plain Python"
        parts = runner().parts()
        return MapPlan(
            options.strategy, batch.length, parts, python_chunk(batch.length, parts, None), 1, (reason,)
        ), None
    item = replace(item, notes=[*check_widths(*stacked.leaves()), *item.notes])
    return runner().plan(item, batch.length, options), item


def _planned(function: Callable, batch: Batch, options: MapOptions) -> tuple[MapPlan, ItemProgram | None, Any]:
    strategy = options.strategy
    if strategy in strategies.ELSEWHERE:
        return *_planned_elsewhere(function, batch, options), None
    if strategy not in strategies.PYTHON:
        try:
            try:
                stacked = batch.stacked()
            except Ragged as ragged:
                raise InputError(
                    f"show: the items have {len(ragged.groups)} shapes, each a program of its own.",
                    argument="show",
                    next_step="show it for items of one shape",
                ) from None
            prepared = prepare(function, stacked, options, Timer(), Monitor(), to_run=False)
            mapped, shared = stacked.leaves()
            item = replace(prepared.item, notes=[*check_widths(mapped, shared), *prepared.item.notes])
            plan, tuning = prepared.plan, prepared.tuning
            if tuning is not None:
                plan = replace(plan, reasons=(*plan.reasons, *tuning.story()))
            return plan, item, prepared.executable
        except Exception as error:
            if strategy != "auto" or isinstance(error, JaxparError):
                raise
            strategy = "process"
            reason = f"cannot be traced by JAX ({type(error).__name__}); quick ones run as a plain loop"
    else:
        reason = strategies.ONE_LINERS[strategy]
    from ..machine import usable_cores

    workers = python_parts(strategy, batch.length, usable_cores(), options.devices)
    chunk = python_chunk(batch.length, workers, options.chunk_size)
    return MapPlan(strategy, batch.length, workers, chunk, 1, (reason,)), None, None


def _show_plan(plan: MapPlan, item: ItemProgram | None, batch: Batch) -> Shown:
    unit = {"thread": "threads", "process": "workers", "serial": "loop", "cluster": "engines"}.get(
        plan.strategy, "devices"
    )
    rows = [
        ("strategy", plan.strategy),
        (unit, str(plan.parts)),
        ("items", f"{plan.length:,}" + (f" + {plan.padding} of padding" if item and plan.padding else "")),
    ]
    if item is not None:
        width = f"{plan.width:,} items together on a {'thread' if plan.strategy == 'thread' else 'device'}"
        rows += [
            ("batch size", "each engine chooses" if plan.strategy in strategies.ELSEWHERE else width),
            ("chunks", f"{plan.chunks} of {plan.chunk_size:,} items"),
            (
                "one item",
                f"{_size(item.facts.input_bytes)} in, {_size(item.facts.output_bytes)} out, "
                f"largest intermediate {_size(item.facts.work_bytes)}",
            ),
        ]
    points = [*plan.reasons, *(f"note: {n}" for n in (item.notes if item else batch.notes))]
    blocks = (Table(("", "plan"), rows), Items(points))
    text = "\n".join([*(f"{k}: {v}" for k, v in rows), *points])
    return Shown("plan", text, Document(blocks))


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"


def _show_jaxpr(plan: MapPlan, item: ItemProgram) -> Shown:
    before = str(item.closed)
    part = plan.chunk_size // plan.parts
    mapped = [jax.ShapeDtypeStruct((part, *a.shape), a.dtype) for a in item.mapped]
    after = str(jax.make_jaxpr(local_map(item, part, plan.width))(mapped, item.shared))
    what = "vmap" if plan.width >= part else f"lax.map, batches of {plan.width}"
    where = (
        f", on each of {plan.parts} {'threads' if plan.strategy == 'thread' else 'devices'}" if plan.parts > 1 else ""
    )
    blocks = [Code(before, "text", "one item"), Code(after, "text", f"{part:,} items by {what}{where}")]
    return Shown("jaxpr", f"{before}\n\n{after}", Document(blocks))


def _show_sharding(plan: MapPlan, item: ItemProgram) -> Shown:
    part = plan.chunk_size // plan.parts
    size = part * (item.facts.input_bytes + item.facts.output_bytes)
    label = "thread" if plan.strategy == "thread" else "device"
    rows = []
    for k in range(plan.parts):
        begin, end = k * part, min((k + 1) * part, plan.length)
        items = f"{begin:,} to {end - 1:,}" if end > begin else "padding only"
        if plan.interleaved:
            items = f"{k}, {k + plan.parts}, {k + 2 * plan.parts}, …"
        rows.append((f"{label} {k}", items, _size(size)))
    spec = f"PartitionSpec({AXIS!r})" if plan.parts > 1 and label == "device" else "one device"
    caption = f"{plan.strategy}: {spec}" + (f", first of {plan.chunks} chunks" if plan.chunks > 1 else "")
    table = Table((label, "items", "in and out"), rows, caption, frozenset({2}))
    text = "\n".join([caption, *(", ".join(row) for row in rows)])
    return Shown("sharding", text, Document([table]))
