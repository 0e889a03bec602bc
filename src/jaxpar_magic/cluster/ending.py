"""The end of a cluster: no process, no job, no file is left. By us, or by a guard when the notebook was killed.

The guard is a small process beside the notebook. It does nothing but wait for the notebook's end, which closes the
pipe between them, whatever ends it. It then ends the cluster exactly as `stop` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

_ASKED = 2.0  # seconds for a process to end when asked to
_KILLED = 5.0
_JOB = 30.0  # for a batch system to take a job back
_TICK = 0.02
LOG = logging.getLogger(__name__)  # what launchers have to say; errors quote what matters of it
LOG.addHandler(logging.NullHandler())
LOG.propagate = False
_LOOK = 2.0  # seconds between looks at the notebook's process


@dataclass(frozen=True)
class Remains:
    """What there is to end and to remove.

    Attributes
    ----------
    cluster_id: of a cluster that this notebook started; empty if it only connected to one.
    folder: where its files are, the cluster's own or an IPython profile.
    own_folder: whether the folder is the cluster's alone.
    by_launcher: whether only the launcher can end the engines: they run on other machines, or in a queue.
    shared: folder in shared memory for data between notebook and engines.
    """

    cluster_id: str
    folder: str
    own_folder: bool
    by_launcher: bool
    shared: str

    @property
    def cluster_file(self) -> str:
        return os.path.join(self.folder, "security", f"cluster-{self.cluster_id}.json")


def end(remains: Remains) -> None:
    """End all processes and remove all files. Never raises for what is gone already."""
    if remains.by_launcher:
        # A batch system that is down itself must not keep the rest from being ended.
        asked = threading.Thread(target=_stop_by_launcher, args=[remains.cluster_file], daemon=True)
        asked.start()
        asked.join(_JOB)
    if remains.cluster_id:
        _end_processes(remains.cluster_id)
    _remove_files(remains)
    shutil.rmtree(remains.shared, ignore_errors=True)


def processes(cluster_id: str) -> Iterator[Any]:
    """The processes on this machine that belong to a cluster, as psutil's: their environment names it.

    Controller, engines, their nannies, mpirun, and whatever an engine started.
    """
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("IPP_CLUSTER_ID") == cluster_id:
                yield process


def _end_processes(cluster_id: str) -> None:
    import psutil

    def each(what: str) -> bool:
        """Do it to all that are left; whether there were any."""
        left = list(processes(cluster_id))
        for process in left:
            with contextlib.suppress(psutil.Error):
                # A nanny that outlives the controller waits seconds to tell it of the engine's end.
                nanny = "ipyparallel.engine.nanny" in process.cmdline()
                getattr(process, "kill" if nanny else what)()
        return bool(left)

    each("terminate")
    begun = time.monotonic()
    # Looked for, not waited for: some are zombies that only their parent can end, and it may be among them.
    while any(True for _ in processes(cluster_id)) and time.monotonic() - begun < _ASKED:
        time.sleep(_TICK)
    while each("kill") and time.monotonic() - begun < _ASKED + _KILLED:
        time.sleep(_TICK)


def _stop_by_launcher(cluster_file: str) -> None:
    """Have the launcher cancel its job, or end its processes on other machines."""
    from ipyparallel import Cluster
    from traitlets.config import Config

    async def stop() -> None:
        # `config` keeps IPython's shell from becoming the parent: it would print what is logged.
        config = Config()
        config.BatchSystemLauncher.output_file = os.devnull  # the default makes a folder in the user's
        cluster = Cluster.from_file(cluster_file, config=config, log=LOG)
        cluster.cluster_file = ""  # else it is written again
        await cluster.stop_cluster()

    # Whatever goes wrong, the rest must be ended. The launcher may have nothing to stop.
    with contextlib.suppress(Exception):
        asyncio.run(stop())


def _remove_files(remains: Remains) -> None:
    if remains.own_folder:
        shutil.rmtree(remains.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folder of all clusters, if this was the last
            os.rmdir(os.path.dirname(remains.folder))
    elif remains.cluster_id:
        security, log = (os.path.join(glob.escape(remains.folder), name) for name in ("security", "log"))
        id_ = glob.escape(remains.cluster_id)
        for path in [*glob.glob(f"{security}/*{id_}*"), *glob.glob(f"{log}/*{id_}*")]:
            with contextlib.suppress(OSError):
                os.remove(path)


class Guard:
    """The notebook's end of the guard."""

    def __init__(self, remains: Remains):
        program = (
            f"import sys; sys.path[:] = {[str(entry) for entry in sys.path]!r}; from {__name__} import main; main()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the notebook's group must not end it
        )
        self._say(json.dumps(asdict(remains)))

    def dismiss(self) -> None:
        """The cluster has been ended: there is nothing to do any more."""
        self._say("done")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def main() -> None:
    """The guard."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    notebook = os.getppid()
    remains = Remains(**json.loads(sys.stdin.readline()))
    # Children that the notebook forked hold the pipe open after its death: hence a look at the parent, too.
    while os.getppid() == notebook:
        if select.select([sys.stdin], [], [], _LOOK)[0]:
            if sys.stdin.readline():
                return  # "done"
            break
    end(remains)
