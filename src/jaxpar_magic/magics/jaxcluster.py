"""`%jaxcluster`: a thin parser over `jaxpar_magic.cluster`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class

from .cell import hand_over
from .options import OptionParser, check_name, choice, help_on_demand, unquote, usage_error

_NAME = "jaxcluster"

_DESCRIPTION = """\
Many machines, or many processes, for %parmap: engines of ipyparallel, each with JAX on its own devices.

%jaxcluster                            engines, machines, devices, load, memory, versions
%jaxcluster start                      two engines on this machine, to try it out
%jaxcluster stop                       end them; nothing is left behind
%jaxcluster start -n 2 --devices-per-engine 1
%jaxcluster status                     as %jaxcluster alone
report = %jaxcluster                   report.engines, report.lost, report.notes, …
%jaxcluster stop -q

On many machines:

    %jaxcluster start -n 16 --engines slurm --profile work --address 10.0.0.5
    %jaxcluster start -n 8 --engines mpi
    %jaxcluster connect --profile work     one that runs already
    %parmap f xs -s cluster                a map over all engines

A cluster listens on loopback only, unless an address is given, and ends with the kernel, whatever ends that. Each
engine of a machine gets its part of the cores, or GPUs of its own, and XLA flags and x64 as in the notebook."""

ACTIONS = ("start", "connect", "status", "stop")
# option -> the actions that take it
_BELONGS = {
    "engines": ("start",),
    "devices_per_engine": ("start",),
    "launcher": ("start",),
    "address": ("start",),
    "profile": ("start", "connect"),
    "timeout": ("start", "connect"),
    "file": ("connect",),
}


@functools.cache
def make_parser() -> OptionParser:
    """The options of `%jaxcluster`."""
    parser = OptionParser(_NAME, "%jaxcluster [start|connect|status|stop] [options]", _DESCRIPTION)
    add = parser.add_argument
    add("-n", dest="engines", metavar="ENGINES", type=int, help="start: how many engines; 2 by default")
    add("--devices-per-engine", metavar="N", type=int, help="start: CPU devices, or GPUs, of each engine")
    add(
        "--engines",
        dest="launcher",
        metavar="LAUNCHER",
        help="start: local (default), mpi, slurm, ssh, pbs, …",
    )
    add("--profile", metavar="NAME", help="start, connect: the IPython profile with hosts, queues, batch scripts")
    add("--address", metavar="HOST", help="start: listen there for engines on other machines, not only on loopback")
    add("--file", metavar="FILE", help="connect: its connection file")
    add("--timeout", metavar="S", type=float, help="start, connect: seconds until all engines must be there")
    add("-o", "--out", metavar="NAME", help="the report into a variable; one line is shown")
    add("-q", "--quiet", action="store_true", help="show nothing")
    return parser


@magics_class
class JaxClusterMagics(Magics):
    """The magic `%jaxcluster`."""

    @line_magic
    def jaxcluster(self, line: str) -> Any:
        """Start, connect to, look at or stop a cluster."""
        shell: Any = self.shell
        read = make_parser().read(line)
        if read is None:
            return None
        options, positional = read
        action = choice(_NAME, "action", unquote(positional[0]) if positional else "status", ACTIONS)
        if len(positional) > 1:
            raise usage_error(_NAME, f"one of {', '.join(ACTIONS)}, got {' '.join(positional)}.")
        check_name(_NAME, options.out)
        report = _do(action, _arguments(action, vars(options)))
        return hand_over(shell, report, out=options.out, quiet=options.quiet or line.rstrip().endswith(";"))


def _arguments(action: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of an action's function. Raises UsageError for an option that is another's."""
    given = {name: options[name] for name in _BELONGS if options[name] is not None}
    for name in given:
        if action not in _BELONGS[name]:
            flag = next(flag for flag, known in make_parser().actions().items() if known.dest == name)
            raise usage_error(_NAME, f"option {flag!r} is for {' and '.join(_BELONGS[name])}, not for {action}.")
    return given


def _do(action: str, arguments: dict[str, Any]) -> Any:
    from .. import cluster

    if action == "stop":
        return cluster.stop()
    if action == "start":
        cluster.start(**arguments)
    elif action == "connect":
        cluster.connect(**arguments)
    return cluster.status()


help_on_demand(JaxClusterMagics.jaxcluster, make_parser)
