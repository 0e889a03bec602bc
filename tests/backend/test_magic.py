"""`%jaxdevices` in real kernels, as its users type it."""

from __future__ import annotations

import re

import pytest
from conftest import cell_errors, cell_text, run_notebook
from IPython.core.error import UsageError

from jaxpar_magic import backend
from jaxpar_magic.magics import jaxdevices
from jaxpar_magic.magics.jaxdevices import JaxDevicesMagics, make_parser

LOAD = "%load_ext jaxpar_magic"


def texts(*cells: str, **options) -> list[str]:
    book = run_notebook([LOAD, *cells], **options)
    return [cell_text(cell) for cell in book.cells[1:]]


def test_what_is_shown_and_what_is_returned():
    book = run_notebook(
        [
            LOAD,
            "%jaxdevices",
            "report = %jaxdevices\nprint(report.count, report.state)",
            "%jaxdevices 2\nprint('after')",
            "%jaxdevices 2 -q",
            "%jaxdevices 2;",
            "%jaxdevices -q -o kept\nprint(kept.count, type(kept).__name__)",
            "for i in (1, 2):\n    %jaxdevices {i}",
            "import sys\nprint('jax' in sys.modules)",
            "%jaxdevices --help",
        ]
    )
    outputs = [[output.output_type for output in cell.outputs] for cell in book.cells[1:]]
    assert outputs == [
        ["execute_result"],  # as the last line: the cell's value
        ["stream"],  # assigned: silent
        ["display_data", "stream"],  # in the middle: shown all the same
        [],
        [],
        ["stream"],
        ["display_data", "display_data"],
        ["stream"],
        ["stream"],
    ]
    shown = [cell_text(cell) for cell in book.cells[1:]]
    assert "it will start with 1 CPU device" in shown[0]
    assert shown[1].split() == ["1", "absent"]
    assert "it will start with 2 CPU devices" in shown[2]
    assert shown[5].split() == ["2", "DeviceReport"]
    assert shown[7].strip() == "False", "no look and no count imported jax"
    assert "%jaxdevices all" in shown[8] and "--dry-run" in shown[8]
    (result,) = book.cells[1].outputs
    assert "<table" in result.data["text/html"] and "JAX is not imported yet" in result.data["text/html"]


def test_flags_set_too_late():
    """The listing never claims what JAX does not have, and says what helps."""
    _, late, listed, reset, mapped = texts(
        "import jax, jax.numpy as jnp\ncelsius = jnp.array([10.0, 20.0])\nprint(celsius.mean())",
        "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\nprint(jax.device_count())",
        "%jaxdevices",
        "%jaxdevices 2",
        "print(jax.pmap(lambda c: c * 9 / 5 + 32)(celsius))",
    )
    assert late.strip() == "1"
    assert "JAX runs on 1 CPU device\n" in listed and "cpu:1" not in listed
    assert "not in force" in listed and "%jaxdevices 2" in listed
    assert "JAX runs on 2 CPU devices" in reset and "cpu:1" in reset
    assert mapped.strip() == "[50. 68.]"


@pytest.mark.parametrize("together", [False, True], ids=["in cells", "in one cell"])
def test_a_typographic_dash_does_not_end_the_kernel(together):
    cells = [
        'import os\nos.environ["XLA_FLAGS"] = "-\\u2013xla_force_host_platform_device_count=2"\nimport jax',
        "print(jax.devices())\nprint(jax.device_count(), 'devices')",
        "print('still alive')",
    ]
    shown = "\n".join(texts("\n".join(cells)) if together else texts(*cells))
    assert "-\N{EN DASH}xla_force_host_platform_device_count=2" in shown and "typographic dash" in shown
    assert shown.index("typographic dash") < shown.index("2 devices") < shown.index("still alive")


def test_a_bad_flag_from_outside_is_found_when_loading():
    book = run_notebook([LOAD + "\nimport jax\nprint(jax.device_count())"], env={"XLA_FLAGS": "--xla_bogus=1"})
    assert "--xla_bogus=1: XLA does not know it. Taken out." in cell_text(book.cells[0])
    assert cell_text(book.cells[0]).rstrip().endswith("1")


def test_the_command_refuses_bad_flags_of_the_same_cell():
    book = run_notebook(
        [
            LOAD,
            "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_cuont=2'\n"
            "%jaxdevices\n%jaxdevices 2",
            "import jax\nprint(jax.device_count())",
        ]
    )
    assert cell_errors(book.cells[1]) == ["DeviceError"]
    text = " ".join(cell_text(book.cells[1]).split())
    assert "Did you mean --xla_force_host_platform_device_count=2?" in text
    assert "JAX is not imported yet" in text, "looking is allowed"
    assert "Traceback" not in text
    assert cell_text(book.cells[2]).rstrip().endswith("1")


def test_only_the_cores_that_one_may_use():
    _, shown = texts(
        "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
        "%jaxdevices all\nimport jax\nprint(jax.device_count())",
    )
    assert "1 usable of" in shown and "affinity" in shown
    assert shown.rstrip().endswith("1")


def test_which_device_holds_which_rows_and_what_a_reset_leaves_behind():
    _, listed, planned, reset, cell_of_mesh = texts(
        "import jax, jax.numpy as jnp, numpy as np\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P\n"
        "mesh = Mesh(np.array(jax.devices()), ('d',))\n"
        "stack = jax.device_put(jnp.ones((6, 4, 4)), NamedSharding(mesh, P('d')))",
        "%jaxdevices --arrays",
        "%jaxdevices 3 --dry-run",
        "%jaxdevices 3",
        "stack = jax.device_put(jax.device_get(stack))\n"
        "mesh = Mesh(np.array(jax.devices()), ('d',))\n"
        "print(jax.device_put(stack, NamedSharding(mesh, P('d'))).sum())\n"
        "print(len(get_ipython().run_line_magic('jaxdevices', '').stale))",
    )
    assert re.search(
        r"stack\s+float32\[6, 4, 4\]\s+384 B\s+P\('d'\)\s+cpu:0 \[0:3\], cpu:1 \[3:6\], 192 B each", listed
    )
    assert "the whole process" in listed
    assert "nothing was changed" in planned and "would still belong to the old devices" in " ".join(planned.split())
    for name in ("mesh", "stack"):
        assert re.search(rf"^{name} ", planned, re.M), "named before it happens"
        assert re.search(rf"^{name} ", reset, re.M), "named when it happens"
    assert cell_of_mesh.split() == ["96.0", "0"]


def test_what_cannot_be_done_stops_the_notebook_with_one_clear_error():
    wrong = ["0", "-1", "257", "2.5", "True", "abc", "''", "2 --platform gpuu", "--platform gpu", "--visible 0",
             "--mem-fraction 2", "--flag --xla_bogus=1", "--flag=--xla_force_host_platform_device_count=2"]  # fmt: skip
    book = run_notebook([LOAD, "import os; before = dict(os.environ)", *(f"%jaxdevices {line}" for line in wrong),
                         "print(dict(os.environ) == before)"])  # fmt: skip
    for cell in book.cells[2:-1]:
        assert cell_errors(cell) in (["OptionError"], ["DeviceError"]), cell.source
        assert "Traceback" not in cell_text(cell)
        assert len(cell_text(cell).splitlines()) <= 2, cell_text(cell)
    assert "count=2.5:" in cell_text(book.cells[5]) or "count='2.5':" in cell_text(book.cells[5])
    assert cell_text(book.cells[-1]).strip() == "True"


# --- the line to arguments, without a kernel ------------------------------------------------------------------


@pytest.fixture
def called(monkeypatch, shell):
    """Call the magic on a line; what `devices` got."""
    got: dict = {}

    def devices(count=None, **options):
        got.update(options, count=count)
        return got

    monkeypatch.setattr(backend, "devices", devices)
    monkeypatch.setattr(jaxdevices, "display", lambda report: None)
    magics = JaxDevicesMagics(shell=shell)

    def call(line):
        got.clear()
        magics.jaxdevices(line)
        unset = {"count": None, "flags": [], "arrays": False, "dry_run": False, "namespace": shell.user_ns}
        return {name: value for name, value in got.items() if value != unset.get(name)}

    return call


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("", {}),
        ("4", {"count": 4}),
        ("all", {"count": "all"}),
        ("'all'", {"count": "all"}),
        ("--platform cpu 2", {"count": 2, "platform": "cpu"}),
        ("--visible 0,1", {"visible": "0,1"}),
        ("--mem-fraction .5", {"mem_fraction": ".5"}),
        ("--x64 --debug-nans", {"x64": True, "debug_nans": True}),
        ("--no-x64 --no-debug-nans", {"x64": False, "debug_nans": False}),
        ("--no-preallocate", {"preallocate": False}),
        ("--cache '/tmp/a b'", {"cache": "/tmp/a b"}),
        ("--flag --xla_a=1 --flag=--xla_b=2", {"flags": ["--xla_a=1", "--xla_b=2"]}),
        ('--flag "--xla_a=x y"', {"flags": ["--xla_a=x y"]}),
        ("--arrays --dry-run", {"arrays": True, "dry_run": True}),
        ("2 ;", {"count": 2}),
    ],
)
def test_lines(called, line, arguments):
    assert called(line) == arguments


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("1 2", "one count at most"),
        ("--platfrm cpu", "--platform"),
        ("-o 3x", "name of a variable"),
        ("--visible", "expected one argument"),
        ("--x64 --no-x64", "--no-x64: not allowed with argument --x64"),
        ("2 --no-debug-nans --debug-nans", "--debug-nans: not allowed with argument --no-debug-nans"),
    ],
)
def test_lines_that_make_no_sense(called, line, match):
    with pytest.raises(UsageError, match=match):
        called(line)


def test_help_shows_every_option():
    text = JaxDevicesMagics.jaxdevices.getdoc()
    for flag in make_parser().actions():
        assert flag in text
    assert "run the cell that builds" in text and "without restarting the kernel" in text
