"""From numbers to text: summaries, tables in Markdown, a chart, and the part of README.md that holds them."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from variants import BATCHED, BY_HAND, NUMPY, ONE_DEVICE, TRACED
from workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
CHART = ROOT / "docs" / "images" / "bench.png"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks: written by `make bench` -->", "<!-- end of benchmarks -->"

# Below this, what a call costs decides, and a ratio says little.
SHORT = 5e-3


# -------------------------------------------------------------------- files


def path(part: str, partial: bool = False) -> Path:
    return BUILD / f"{part}{'-partial' if partial else ''}.json"


def save(part: str, facts: dict[str, Any], found: dict[str, Any], partial: bool) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    path(part, partial).write_text(json.dumps({"facts": facts, "found": found}, indent=1))


def load(part: str, partial: bool = False) -> dict[str, Any]:
    return json.loads(path(part, partial).read_text())


def beside(part: str, facts: dict[str, Any]) -> dict[str, Any]:
    """What another part found, if it is of the same machine and versions."""
    if not path(part).exists():
        return {}
    stored = load(part)
    return stored["found"] if stored["facts"] == facts else {}


# -------------------------------------------------------------------- numbers


def median(one: dict[str, Any], name: str) -> float | None:
    """Seconds for all items: what ran fewer items is scaled up."""
    variant = one["variants"].get(name)
    if variant is None or not variant["times"]:
        return None
    return statistics.median(variant["times"]) * scale(one, name)


def scale(one: dict[str, Any], name: str) -> float:
    return one["scale"] if name in NUMPY else 1.0


def fastest(one: dict[str, Any], names: Any) -> tuple[str, float] | None:
    """The fastest of some variants, and its median."""
    known = [(m, name) for name in names if (m := median(one, name)) is not None]
    return (min(known)[1], min(known)[0]) if known else None


def ratio(one: dict[str, Any], names: Any) -> float | None:
    """`auto` against the fastest of some variants."""
    auto, other = median(one, "auto"), fastest(one, names)
    return auto / other[1] if auto is not None and other is not None else None


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def grid_points(one: dict[str, Any]) -> list[str]:
    return [name for name in one["variants"] if name != "auto"]


# -------------------------------------------------------------------- words


def seconds_text(seconds: float | None) -> str:
    """Three digits in the unit that suits.

    >>> seconds_text(0.01234), seconds_text(75.2), seconds_text(None)
    ('12.3 ms', '75.2 s', '–')
    """
    if seconds is None:
        return "–"
    value, unit = (
        (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    )
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def spread_text(one: dict[str, Any], name: str) -> str:
    """Median and quartiles."""
    if median(one, name) is None:
        return "–"
    times = [t * scale(one, name) for t in one["variants"][name]["times"]]
    text = seconds_text(statistics.median(times))
    if len(times) > 1:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        text += f" ({seconds_text(low)} to {seconds_text(high)})"
    return text


def times_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×" if value < 10 else f"{value:,.0f} ×"


def summary(one: dict[str, Any]) -> str:
    """All variants of a workload, fastest first."""
    known = sorted((m, name) for name in one["variants"] if (m := median(one, name)) is not None)
    if not known:
        return "  nothing was measured"
    auto = median(one, "auto")
    lines = []
    for value, name in known:
        variant = one["variants"][name]
        times = f"{value / auto:6.2f} × auto" if auto else ""
        scaled = ", scaled up" if scale(one, name) > 1.001 else ""
        lines.append(f"  {name:28} {spread_text(one, name):36} {times}  {len(variant['times'])} rounds{scaled}")
    if "auto" in one["variants"]:
        variant = one["variants"]["auto"]
        warm = ", ".join(seconds_text(t) for t in variant["warm"])
        lines.append(f"  auto chose {one.get('chose', '?')}; its first calls: {seconds_text(variant['first'])}, {warm}")
    return "\n".join(lines)


def grid_summary(one: dict[str, Any]) -> str:
    best = fastest(one, grid_points(one))
    if best is None or median(one, "auto") is None:
        return "  nothing was measured"
    return (
        f"  auto {spread_text(one, 'auto')} ({one.get('chose', '?')}), best of the grid: {best[0]} "
        f"{spread_text(one, best[0])}: {times_text(ratio(one, grid_points(one)))}"
    )


# -------------------------------------------------------------------- tables


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def later_table(found: dict[str, Any]) -> str:
    head = ["workload", "items", "best JAX by hand", "`auto`", "`auto` / by hand", "best fixed strategy"]
    rows = []
    for name, one in found.items():
        if median(one, "auto") is None:
            rows.append([name, f"{one.get('length', 0):,}", *["–"] * 9])
            continue
        hand, fixed = fastest(one, BY_HAND), fastest(one, (*TRACED, "parmap process", "parmap serial"))
        row = [name, f"{one['length']:,}", f"{seconds_text(hand[1])}, `{hand[0]}`" if hand else "–"]
        row += [spread_text(one, "auto"), times_text(ratio(one, BY_HAND))]
        row.append(f"{seconds_text(fixed[1])}, `{fixed[0].removeprefix('parmap ')}`" if fixed else "–")
        row += [seconds_text(median(one, other)) for other in ("parajax", "joblib", "Pool", "loop")]
        rows.append([*row, one.get("chose", "")])
    return table([*head, "parajax", "joblib", "`Pool`", "Python loop", "`auto` chose"], rows)


def first_table(found: dict[str, Any]) -> str:
    head = ["workload", "first call: best by hand", "`auto`", "parajax", "`auto`: first five more calls"]
    rows = []
    for name, one in found.items():
        fresh = one.get("fresh")
        if not fresh or "auto" not in fresh:
            continue
        hand = min(((fresh[v]["first"], v) for v in BY_HAND if v in fresh), default=None)
        row = [name, f"{seconds_text(hand[0])}, `{hand[1]}`" if hand else "–"]
        row += [seconds_text(fresh.get(v, {}).get("first")) for v in ("auto", "parajax")]
        row.append(seconds_text(sum(one["variants"].get("auto", {}).get("warm", [0.0]))))
        peaks = [fresh.get(v, {}).get("peak") for v in ("auto", "jit(vmap)", "parajax")]
        rows.append([*row, *("–" if p is None else f"{p / 1e6:,.0f} MB" for p in peaks)])
    return table([*head, "peak memory: `auto`", "`jit(vmap)`", "parajax"], rows) if rows else ""


def targets(
    found: dict[str, Any], grid: dict[str, Any], first: dict[str, Any], long: dict[str, Any]
) -> list[list[str]]:
    """[what, aim, measured, met] for each aim that the numbers at hand can judge."""
    rows: list[list[str]] = []

    def judge(what: str, value: float, aim: float, at_most: bool = True, unit: str = " ×", where: str = "") -> None:
        met = value <= aim if at_most else value >= aim
        aim_text = f"{'at most' if at_most else 'at least'} {aim:g}{unit}"
        rows.append([what, aim_text, f"{value:.2f}{unit}{f' ({where})' if where else ''}", "yes" if met else "no"])

    def judge_worst(what: str, values: dict[str, float], aim: float, at_most: bool = True, unit: str = " ×") -> None:
        if values:
            worst = (max if at_most else min)(values, key=lambda name: values[name])
            judge(what, values[worst], aim, at_most, unit, worst)

    def judge_against(tool: str, names: Any, aim: float) -> None:
        ratios = {name: r for name, one in found.items() if (r := ratio(one, names)) is not None}
        short = [name for name in ratios if fastest(found[name], names)[1] < SHORT]
        judge_worst(f"`auto` / {tool}, the worst", {n: r for n, r in ratios.items() if n not in short}, aim)
        added = {n: (median(found[n], "auto") - fastest(found[n], names)[1]) * 1e3 for n in short}
        judge_worst(f"`auto` − {tool}, where that takes under 5 ms", added, 1.0, unit=" ms")

    by_hand = {name: r for name, one in found.items() if (r := ratio(one, BY_HAND)) is not None}
    longer = [r for name, r in by_hand.items() if fastest(found[name], BY_HAND)[1] >= SHORT]
    if longer:
        judge("`auto` / best by hand, geometric mean where that takes 5 ms and more", geometric_mean(longer), 0.75)
    judge_against("best by hand", BY_HAND, 1.05)
    for tool in ("parajax", "joblib"):
        judge_against(tool, (tool,), 1.0)
    grids = {
        name: r
        for name, one in grid.items()
        if (r := ratio(one, grid_points(one))) is not None and fastest(one, grid_points(one))[1] >= SHORT
    }
    if grids:
        judge("`auto` / best of all places and widths, geometric mean", geometric_mean(list(grids.values())), 1.05)
    judge_worst("… the worst", grids, 1.15)
    alone = {
        name: 1 / r
        for name, one in found.items()
        if WORKLOADS[name].compute_bound and (r := ratio(one, (ONE_DEVICE,))) is not None
    }
    judge_worst("compute-bound: all devices against one, the worst", alone, 1.85, at_most=False)
    skewed = ratio(found.get("escape_time", {"variants": {}}), ("shard_map(lax.map)",))
    if skewed is not None:
        judge("escape_time: `auto` against `shard_map(lax.map)`", 1 / skewed, 1.8, at_most=False)
    judge_worst(
        "first call, work of a second and more: `auto` / best by hand, the worst",
        {n: statistics.median(v["times"]["auto"]) / statistics.median(v["times"][v["best"]]) for n, v in first.items()},
        1.3,
    )
    for one in long.get("figures", []):
        judge(one["what"], one["value"], one["aim"], unit=one["unit"])
    return rows


def markdown(stored: dict[str, Any]) -> str:
    """The tables for what has been measured."""
    facts, found = stored["facts"], stored["found"]
    counts = {len(v["times"]) for one in found.values() for v in one["variants"].values() if v["times"]}
    few = sorted(
        f"{n} {v}" for n, one in found.items() for v, t in one["variants"].items() if 0 < len(t["times"]) < max(counts)
    )
    missing = [
        (n, v, "not installed" if why == "not installed" else "failed")
        for n, one in found.items()
        for v, why in one["failed"].items()
    ]
    scaled = [f"{n} {WORKLOADS[n].numpy_size:,}" for n, one in found.items() if one.get("scale", 1.0) > 1.001]
    notes = ["joblib, `Pool` and the loop run the numpy version of the function."]
    if scaled:
        notes.append(f"Where that is slow, it ran over fewer items, and times are scaled up: {', '.join(scaled)}.")
    larger = [n for n in found if WORKLOADS[n].waits_in_pool]
    if larger:
        notes.append(f"{', '.join(larger)}: with `NPROC` twice the cores and one more, as JAX may hang otherwise.")
    if few:
        notes.append(f"Fewer calls, as they take seconds: {', '.join(few)}.")
    if missing:
        notes.append(f"Missing: {', '.join(f'{v} on {n} ({why})' for n, v, why in missing)}.")
    text = [
        f"{facts['cores']} cores ({facts['machine']}), one JAX device each; Python {facts['python']}, "
        f"JAX {facts['jax']}, numpy {facts['numpy']}. Median of {max(counts, default=0)} calls in random order "
        "(quartiles in brackets), from numpy arrays to results that are ready, after five calls to warm up.",
        later_table(found),
        " ".join(notes),
        first_table(found),
    ]
    aims = targets(found, beside("grid", facts), beside("first_calls", facts), beside("long_runs", facts))
    if aims:
        text.append(table(["what", "aim", "measured", "met"], aims))
    return "\n\n".join(part.strip() for part in text if part.strip())


# -------------------------------------------------------------------- chart

# Colour-blind safe, and told apart by their shapes, too.
SERIES = (
    ("best JAX by hand", BY_HAND, "D", "#0072B2"),
    ("jit(vmap)", ("jit(vmap)",), "o", "#56B4E9"),
    ("lax.map, batches of 64", (BATCHED,), "v", "#009E73"),
    ("parajax", ("parajax",), "s", "#D55E00"),
    ("joblib", ("joblib",), "^", "#CC79A7"),
    ("multiprocessing.Pool", ("Pool",), "P", "#E69F00"),
    ("Python loop", ("loop",), "X", "#444444"),
)


def draw(found: dict[str, Any], target: Path) -> None:
    """Times relative to `auto`, on white, so that it can be read in light and dark pages."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = [name for name, one in found.items() if median(one, "auto") is not None]
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(names) + 1.6), layout="constrained", facecolor="white")
    for label, variants, marker, colour in SERIES:
        points = [(1 / r, row) for row, name in enumerate(names) if (r := ratio(found[name], variants)) is not None]
        if points:
            axes.scatter(*zip(*points, strict=True), s=42, marker=marker, color=colour, label=label, zorder=3)
    axes.axvline(1, color="black", linewidth=1.5, label="parmap, auto")
    axes.set(
        xscale="log", yticks=range(len(names)), yticklabels=names, xlabel="time relative to parmap's (less is faster)"
    )
    axes.invert_yaxis()
    axes.grid(axis="both", color="#dddddd")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.12), ncols=4, frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    pyplot.close(figure)


def alt_text(found: dict[str, Any]) -> str:
    parts = []
    for label, variants, _, _ in SERIES:
        ratios = [1 / r for one in found.values() if (r := ratio(one, variants)) is not None]
        if ratios:
            parts.append(f"{label} {geometric_mean(ratios):.3g}")
    return f"Times of each workload relative to parmap with auto; geometric means: {', '.join(parts)} times as long"


# -------------------------------------------------------------------- README.md


def section(stored: dict[str, Any], image: str) -> str:
    return f"![{alt_text(stored['found'])}]({image})\n\n{markdown(stored)}"


def between_markers(text: str, new: str) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"


def write_readme() -> None:
    """Chart and tables of the last full run into README.md."""
    stored = load("later_calls")
    draw(stored["found"], CHART)
    new = section(stored, CHART.relative_to(ROOT).as_posix())
    README.write_text(between_markers(README.read_text(encoding="utf-8"), new), encoding="utf-8")
    print(f"{README.relative_to(ROOT)} and {CHART.relative_to(ROOT)} are written")
