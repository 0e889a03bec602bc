"""`%jaxdevices`: a thin parser over `devices()`, and the guard of XLA_FLAGS."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from .cell import hand_over
from .options import OptionParser, check_name, help_on_demand, unquote, usage_error

_NAME = "jaxdevices"

_DESCRIPTION = """\
Show JAX's devices, or set how many CPU devices there are.

%jaxdevices                shows what JAX has or would have; changes nothing, starts nothing
%jaxdevices all            one CPU device for each core that this process may use
%jaxdevices 4              four
%jaxdevices 4 --dry-run    the plain Python and shell lines that do the same
%jaxdevices --arrays       which arrays are alive, and which device holds which rows
%jaxdevices --x64          64-bit floats and integers
report = %jaxdevices       report.count, report.devices, report.cores, report.notes, …

It works at any time in a CPU notebook, without restarting the kernel. Every array keeps its value;
ordinary arrays, random keys and functions keep working. Arrays that you placed or sharded yourself,
and meshes, shardings and device variables, still belong to the old devices: run the cell that builds
the mesh again, and move arrays with x = jax.device_put(jax.device_get(x)). Functions compile again
at their next use."""


@functools.cache
def make_parser() -> OptionParser:
    """The options of `%jaxdevices`."""
    parser = OptionParser(_NAME, "%jaxdevices [COUNT|all] [options]", _DESCRIPTION)
    add = parser.add_argument
    add("--platform", metavar="NAME", help="what JAX uses by default: cpu, gpu, cuda, rocm, tpu")
    add("--visible", metavar="0,1", help="the accelerators to use, by number")
    add("--mem-fraction", metavar="F", help="share of an accelerator's memory that JAX takes at its start")
    add("--no-preallocate", action="store_true", help="take an accelerator's memory as needed instead")
    for name, text in (("x64", "64-bit floats and integers"), ("debug-nans", "an error where a NaN appears")):
        dest = name.replace("-", "_")
        one = parser.add_mutually_exclusive_group()
        one.add_argument(f"--{name}", dest=dest, action="store_const", const=True, help=f"{text}: on")
        one.add_argument(f"--no-{name}", dest=dest, action="store_const", const=False, help="… off")
    add("--cache", metavar="DIR", help="keep compiled programs in DIR for the next session")
    add("--flag", metavar="XLA_FLAG", action="append", default=[], help="an XLA flag; may be repeated")
    add("--arrays", action="store_true", help="list the live arrays")
    add("--dry-run", action="store_true", help="change nothing, show how to do it without this package")
    add("-o", "--out", metavar="NAME", help="the report into a variable; one line is shown")
    add("-q", "--quiet", action="store_true", help="show nothing")
    return parser


@magics_class
class JaxDevicesMagics(Magics):
    """The magic `%jaxdevices`."""

    @line_magic
    def jaxdevices(self, line: str) -> Any:
        """Show JAX's devices, or set how many CPU devices there are."""
        shell: Any = self.shell
        read = make_parser().read(line)
        if read is None:
            return None
        options, positional = read
        if len(positional) > 1:
            raise usage_error(_NAME, f"one count at most, got {' '.join(positional)}.")
        check_name(_NAME, options.out)
        from ..backend import devices

        report = devices(
            _count(positional[0]) if positional else None,
            platform=options.platform,
            visible=options.visible,
            mem_fraction=options.mem_fraction,
            preallocate=False if options.no_preallocate else None,
            x64=options.x64,
            debug_nans=options.debug_nans,
            cache=options.cache,
            flags=options.flag,
            arrays=options.arrays,
            dry_run=options.dry_run,
            namespace=shell.user_ns,
        )
        return hand_over(shell, report, out=options.out, quiet=options.quiet or line.rstrip().endswith(";"))


help_on_demand(JaxDevicesMagics.jaxdevices, make_parser)


class FlagsGuard:
    """Looks at XLA_FLAGS before each cell: a flag that XLA does not know would end the kernel.

    Costs a look into the environment where nothing changed.
    """

    def __init__(self) -> None:
        self._seen = ""
        self._take_back: Callable[[], None] | None = None

    def pre_run_cell(self, info: Any) -> None:
        """IPython's event before a cell."""
        if os.environ.get("XLA_FLAGS", "") != self._seen:
            self._repair()
        if "XLA_FLAGS" in (getattr(info, "raw_cell", None) or ""):
            # The cell may set the flags and use JAX at once: look again just before JAX starts.
            from .. import _jax

            if not _jax.live_platforms():
                with contextlib.suppress(ImportError):
                    self._take_back = _jax.before_first_backend(self._repair)

    def post_run_cell(self, result: Any) -> None:
        """IPython's event after a cell."""
        if self._take_back is not None:
            self._take_back()
            self._take_back = None

    def _repair(self) -> None:
        from ..backend.guard import repair_flags

        # Whatever goes wrong here must not stand in the way of the user's cell.
        with contextlib.suppress(Exception):
            repair = repair_flags()
            if repair is not None:
                display(repair)
        self._seen = os.environ.get("XLA_FLAGS", "")


def _count(text: str) -> int | str:
    text = unquote(text)
    try:
        return int(text)
    except ValueError:
        return text
