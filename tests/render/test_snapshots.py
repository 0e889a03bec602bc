"""What each kind of output looks like as text, at 80 and at 40 columns: files to read, in snapshots/.

After a change that is meant, `pytest tests/render --update-snapshots` writes them anew; look at the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxpar_magic.backend.arrays import ArrayInfo, Shard
from jaxpar_magic.backend.report import DeviceReport
from jaxpar_magic.backend.stale import Stale
from jaxpar_magic.backend.state import DeviceInfo, Setting
from jaxpar_magic.document import Document, Meter
from jaxpar_magic.explanations.explanation import Explanation, Fix, Where
from jaxpar_magic.explanations.pages import Page
from jaxpar_magic.machine import Cores
from jaxpar_magic.mapping.compare import Comparison, Row
from jaxpar_magic.mapping.monitor import Progress
from jaxpar_magic.mapping.result import ItemReport, MapReport
from jaxpar_magic.render import html, text

FOLDER = Path(__file__).parent / "snapshots"

REPORT = MapReport(
    "shard_map", 100_000, 4, batch_size=64, chunk_size=25_600, chunks=4, compile_seconds=0.31, run_seconds=2.4
)
TROUBLE = MapReport(
    "thread",
    1000,
    2,
    "thread",
    16,
    1000,
    1,
    reused=True,
    run_seconds=0.012,
    notes=["float64 inputs are cut to float32, about 7 digits; %jaxdevices --x64 keeps them"],
    failed=[ItemReport(7, "x=0.0", "ZeroDivisionError: division by zero")],
    not_finite=[ItemReport(i, f"x=-{i}.0", "1 of 1 numbers is NaN") for i in range(1, 9)],
)
CHUNKS = MapReport(
    "vmap",
    1200,
    batch_size=100,
    chunk_size=100,
    chunks=12,
    compile_seconds=0.2,
    run_seconds=1.46,
    chunk_seconds=[0.1, 0.1, 0.11, 0.1, 0.09, 0.1, 0.1, 0.35, 0.1, 0.11, 0.1, 0.1],
)
PARTS = MapReport(
    "shard_map",
    1000,
    2,
    batch_size=50,
    chunk_size=100,
    chunks=12,
    compile_seconds=0.2,
    run_seconds=1.3,
    resumed=200,
    chunk_seconds=[0.1] * 10,
    part_seconds=[[], [], *([[0.1, 0.05]] * 7), [0.1, 0.08]],
)
COMPARISON = Comparison(
    [
        Row("vmap", 1, 0.181, 0.382, 400, 0.0),
        Row("map", 1, 0.152, 0.055, 400, 2.4e-7),
        Row("shard_map", 2, 0.203, 0.030, 400, 2.4e-7),
        Row("pmap", problem="needs a device for each item"),
        Row("thread", 2, None, 0.031, 400, 2.4e-7),
        Row("serial", 1, None, 41.0, 25, None),
    ],
    400,
    None,
    ["some items took much longer than others"],
)


def _setting(value: object, source: str = "default") -> Setting:
    return Setting(value, source, "JAX_…")


def _device(i: int) -> DeviceInfo:
    return DeviceInfo(f"cpu:{i}", "cpu", "cpu", 0, None, None)


DEVICES = DeviceReport(
    state="running",
    met="running",
    count=2,
    count_source="environment variable JAX_NUM_CPU_DEVICES",
    will_use="cpu",
    devices=tuple(map(_device, range(4))),
    cores=4,
    core_limits=Cores(8, 4, None, (0, 1, 2, 6)),
    free_memory=12 * 10**9,
    settings={name: _setting(None) for name in ("count", "platforms", "debug_nans", "cache")}
    | {"x64": _setting(False), "cache": _setting("/home/me/cache", "jax.config")},
    environment={"XLA_FLAGS": "--xla_dump_to=/tmp/dump"},
    versions={"jax": "0.10.2", "jaxlib": "0.10.2", "Python": "3.11.7"},
    changed="Started anew with 4 CPU devices (2 before).",
    was_reset=True,
    notes=("4 devices share 4 cores.",),
    stale=(Stale("mesh", "mesh"), Stale("weights", "array")),
)
_HALVES = {"cpu:0": ((0, 2), (0, 3)), "cpu:1": ((0, 2), (3, 6)), "cpu:2": ((2, 4), (0, 3)), "cpu:3": ((2, 4), (3, 6))}
_QUARTERS = {f"cpu:{i}": ((3 * i, 3 * i + 3),) for i in range(4)}
_COPIES = {"cpu:0": ((0, 2), (0, 5)), "cpu:1": ((0, 2), (0, 5)), "cpu:2": ((2, 4), (0, 5)), "cpu:3": ((2, 4), (0, 5))}


def _array(name: str, shape: tuple[int, ...], sharding: str, places: dict) -> ArrayInfo:
    return ArrayInfo(name, shape, "float32", 96, sharding, tuple(Shard(d, at, 24) for d, at in places.items()))


ARRAYS = (
    _array("weights", (4, 6), "P('a', 'b')", _HALVES),
    _array("angles", (12,), "P('d',)", _QUARTERS),
    _array("params['layer 1']", (4, 5), "P('a', None)", _COPIES),
    _array("", (7,), "one device", {"cpu:0": ((0, 7),)}),
)

EXPLANATION = Explanation(
    "JPX0104",
    "pmap-needs-devices",
    "pmap was given 10 items, and there is 1 CPU device.",
    "pmap runs each item on a device of its own, so it needs as many devices as items.",
    Where("cell In[3]", 7, None, "ys = jax.pmap(f)(xs)"),
    (
        Fix("Map with vmap on one device", "ys = jax.jit(jax.vmap(f))(xs)"),
        Fix("Let %parmap divide the items", "ys = %parmap f xs", fill_in=("f",)),
        Fix("Start with ten devices", "JAX_NUM_CPU_DEVICES=10 python script.py", kind="shell"),
    ),
    "https://docs.jax.dev/en/latest/_autosummary/jax.pmap.html",
    facts={"items": 10, "devices": 1},
    also=("JPX0110",),
    variables={"xs": "float32[10]", "f": "function"},
)
PAGE = Page(
    "JPX0104",
    "pmap-needs-devices",
    "jax.pmap was given more items than there are devices.",
    "https://docs.jax.dev/en/latest/sharded-computation.html",
    """pmap puts each item of the leading axis on a device of its own: 10 items need 10 devices. On a CPU
JAX starts with one device, however many cores the machine has.

```python broken devices=1
import jax, jax.numpy as jnp

jax.pmap(jnp.sin)(jnp.arange(10.0))
```

## What else there is

- `vmap`: one device, all items at once
- `%parmap`: any number of items on any number of devices

```python fixed
jax.vmap(jnp.sin)(jnp.arange(10.0))
```
""",
)


def _meter(done: int) -> Document:
    progress = Progress("running", done, 1000, done // 100 + 1, 10, "2 devices", 4.2, 210.0 if done else None)
    return Document([Meter(f"parmap: {progress.line()}", done or None, 1000)])


def _plan() -> Document:
    import numpy as np

    from jaxpar_magic import parmap

    inputs = np.zeros((1000, 8), np.float32)
    return parmap(lambda x: (x * 2).sum(), inputs, strategy="vmap", chunk_size=250, show="plan").describe()


OUTPUTS = {
    "report": REPORT.describe,
    "report-with-notes": TROUBLE.describe,
    "report-with-chunks": CHUNKS.describe,
    "report-with-parts": PARTS.describe,
    "comparison": COMPARISON.describe,
    "plan": _plan,
    "devices": DEVICES.describe,
    "arrays": lambda: Document(tuple(DEVICES._array_blocks(ARRAYS))[:-1]),  # the last tells this process's memory
    "card-brief": EXPLANATION.describe,
    "card-full": lambda: EXPLANATION.describe(brief=False),
    "page": PAGE.describe,
    "progress-begins": lambda: _meter(0),
    "progress": lambda: _meter(400),
}


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("name", OUTPUTS)
def test_text(name, width, pytestconfig):
    file = FOLDER / f"{name}-{width}.txt"
    rendered = text.render(OUTPUTS[name](), width) + "\n"
    if pytestconfig.getoption("--update-snapshots"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")


def test_no_snapshot_is_left_over():
    assert {file.name for file in FOLDER.iterdir()} == {f"{name}-{width}.txt" for name in OUTPUTS for width in (80, 40)}


# What code hosts leave of the HTML in a notebook: such elements, without styles, and of the others their words.
KEPT = {"a", "br", "caption", "code", "details", "h3", "h4", "li", "ol", "p", "pre", "strong", "summary", "ul"}
KEPT |= {"table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("shown_by", ["Jupyter", "a code host"])
def test_html_says_all_that_the_text_says(name, shown_by):
    """Word by word, bars and boxes aside."""
    from html.parser import HTMLParser

    import bleach

    document = OUTPUTS[name]()
    source = html.render(document)
    if shown_by == "a code host":
        source = bleach.clean(source, tags=KEPT, attributes={"a": ["href"], "th": ["scope"]}, strip=True)
        assert "style=" not in source and "<section" not in source
    words: list[str] = []
    parser = HTMLParser()
    parser.handle_data = words.append  # type: ignore[method-assign]
    parser.feed(source.replace("<", " <"))
    seen = " ".join(words).replace("docs.jax.dev", "https://docs.jax.dev")
    plain = text.render(document, 400)
    for sign in "█░▏[]#":
        plain, seen = plain.replace(sign, " "), seen.replace(sign, " ")
    missing = [word for word in plain.split() if word.strip("-:.…") and word.strip(":") not in seen]
    # a list's marks and numbers are the browser's to draw
    assert [word for word in missing if not word.rstrip(".").isdigit()] == []
