"""Controller and engines started by ipyparallel's launchers, in a private folder, and given up in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..errors import ClusterError, did_you_mean
from ..machine import free_memory
from .ending import LOG, Remains, end

LOOPBACK = "127.0.0.1"
# Those of ipyparallel; others may be installed beside them.
LAUNCHERS = ("local", "mpi", "slurm", "ssh", "pbs", "sge", "lsf", "htcondor")
_LOCAL = ("local", "mpi")  # their processes run here, or end with one that does
_LAUNCHERS_GROUP = "ipyparallel.engine_launchers"
_TIMEOUT, _QUEUE_TIMEOUT = 60.0, 600.0
_TICK = 0.05
_DEATHS = 10.0
_QUOTED_LINES = 12
_ENGINE_BYTES = 150 << 20  # an engine before its first array

# A heartbeat each half second finds a dead engine soon; 60 missed ones are half a minute for a busy machine. Without
# a database the controller does not keep what passes through it.
_CONTROLLER = (
    "--HeartMonitor.period=500",
    "--HeartMonitor.max_heartmonitor_misses=60",
    "--IPController.db_class=nodb",
)


def ipython_folder() -> Path:
    return Path(os.environ.get("IPYTHONDIR") or Path.home() / ".ipython")


def own_folders() -> Path:
    """Where each of our clusters has a folder."""
    return ipython_folder() / "jaxpar_magic"


def profiles() -> list[str]:
    """The names of the IPython profiles that there are."""
    return sorted(path.name.removeprefix("profile_") for path in ipython_folder().glob("profile_*"))


def profile_folder(profile: str) -> Path:
    """The folder of an IPython profile. Raises ClusterError if there is none of that name."""
    folder = ipython_folder() / f"profile_{profile}"
    if not folder.is_dir():
        raise ClusterError(
            f"profile={profile!r}: there is no such profile in {ipython_folder()}.{did_you_mean(profile, profiles())}",
            next_step=f"ipython profile create {profile} --parallel",
            argument="profile",
        )
    return folder


def _own_folder() -> str:
    """A new folder for a cluster, for this user's eyes only. Raises ClusterError where none can be made."""
    try:
        own_folders().mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="cluster-", dir=own_folders())
    except OSError as error:
        raise ClusterError(
            f"{own_folders()} cannot hold the cluster's files: {error.strerror}.",
            next_step="set the environment variable IPYTHONDIR to a folder that you can write to.",
        ) from None


def shared_folder() -> str:
    """A new private folder in shared memory, or among temporary files where the system has none."""
    return tempfile.mkdtemp(prefix="jaxpar-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def find(profile: str | None, file: str | os.PathLike[str] | None) -> Path:
    """The connection file of a cluster that runs, as far as files tell.

    Raises
    ------
    ClusterError
        There is none, or more than one to choose from.
    """
    if file is not None:
        return _connection_file(Path(file).expanduser())
    if profile is not None:
        folders = [profile_folder(profile)]
    else:
        folders = [*sorted(own_folders().glob("cluster-*")), ipython_folder() / "profile_default"]
    found = [path for folder in folders for path in sorted(folder.glob("security/ipcontroller*-client.json"))]
    if not found:
        where = f"profile {profile}" if profile is not None else "your other notebooks or the profile default"
        raise ClusterError(f"no cluster of {where} is running.", next_step="%jaxcluster start")
    if len(found) > 1:
        listed = "\n".join(f"    {path}" for path in found)
        raise ClusterError(
            f"{len(found)} clusters are running:\n{listed}",
            next_step="%jaxcluster connect --file with one of these.",
            argument="file",
        )
    return found[0]


def _connection_file(path: Path) -> Path:
    """The client's connection file that belongs to a cluster file; others as they are."""
    if not path.is_file():
        raise ClusterError(f"file={str(path)!r}: there is no such file.", argument="file")
    if path.name.startswith("cluster-"):
        return path.with_name(f"ipcontroller-{path.stem.removeprefix('cluster-')}-client.json".replace("--", "-"))
    return path


def encrypts() -> bool:
    """Whether ZeroMQ was built with CurveZMQ."""
    import zmq

    return bool(zmq.has("curve"))


@dataclass(frozen=True)
class Launch:
    """What is to be started.

    Attributes
    ----------
    engines: how many.
    launcher: the name of one of ipyparallel's launchers; None: the profile's choice.
    profile: the IPython profile whose settings launchers follow, or None.
    address: where the controller listens.
    timeout: seconds until all engines must be there; None: by launcher.
    """

    engines: int
    launcher: str | None = None
    profile: str | None = None
    address: str = LOOPBACK
    timeout: float | None = None


class Launcher:
    """ipyparallel's cluster object, and the thread in which its coroutines run.

    The thread's loop stays: launchers watch their processes in it.

    Attributes
    ----------
    launch: what was asked for.
    name: how engines are started, one of LAUNCHERS or what else is installed.
    timeout: seconds until engines must be there.
    remains: what is to be ended, from the first moment on.
    """

    def __init__(self, launch: Launch):
        launcher = _check(launch.launcher)
        if launch.profile is None:
            folder = _own_folder()
        else:
            folder = str(profile_folder(launch.profile))
        self.launch = launch
        shared = shared_folder()
        try:
            with _raising_what_is_logged():
                self._cluster = _make_cluster(folder, launcher, launch)
            self.name = _name(self._cluster)
        except Exception as error:  # whatever the profile's settings raise
            end(Remains("", folder, launch.profile is None, False, shared))
            raise ClusterError(
                f"the settings of the profile {launch.profile!r} cannot be used: {_said(error)}", argument="profile"
            ) from error
        default = _TIMEOUT if self.name in _LOCAL else _QUEUE_TIMEOUT
        self.timeout = default if launch.timeout is None else launch.timeout
        self.remains = Remains(
            cluster_id=self._cluster.cluster_id,
            folder=folder,
            own_folder=launch.profile is None,
            by_launcher=self.name not in _LOCAL,
            shared=shared,
        )
        self._together: list[set[int]] = []  # the engines that were started at once
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jaxpar cluster launcher", daemon=True)
        self._thread.start()

    def start(self) -> Any:
        """Start the controller and the engines; the client, connected, once all engines are there.

        Raises
        ------
        ClusterError
            The launcher is missing, memory would not suffice, a process ended, or it takes too long.
        """
        self._refuse_too_many()
        deadline = time.monotonic() + self.timeout
        self._run(self._cluster.start_controller(), deadline, "the controller")
        engines = self._begin(self.launch.engines, deadline)
        client = self._connect(deadline)
        try:
            self._wait(client, [], self.launch.engines, engines, deadline)
        except BaseException:
            client.close()
            raise
        return client

    def _refuse_too_many(self) -> None:
        """Engines on this machine are started one after the other, which nothing could end half way."""
        most = max(1, free_memory() // _ENGINE_BYTES)
        if self.name == "local" and self.launch.engines > most:
            raise ClusterError(
                f"engines={self.launch.engines:,}: this machine has memory for {most:,} at most.",
                next_step="fewer: one for each core is usual.",
                argument="engines",
            )

    def start_engines(self, client: Any, count: int) -> list[int]:
        """Start more engines; their ids, once they are there. Raises like `start`."""
        deadline = time.monotonic() + self.timeout
        before = client.ids
        return self._wait(client, before, count, self._begin(count, deadline), deadline)

    def await_deaths(self, client: Any) -> None:
        """Where the end of one engine brings down others (mpirun ends all that it started), wait for them, too."""
        if self.name != "mpi":
            return
        deadline = time.monotonic() + _DEATHS
        for ids in self._together:
            while 0 < len(ids & set(client.ids)) < len(ids) and time.monotonic() < deadline:
                time.sleep(_TICK)
        self._together = [ids for ids in self._together if ids <= set(client.ids)]

    def _connect(self, deadline: float) -> Any:
        info = self._run(self._cluster.controller.get_connection_info(), deadline, "the controller")
        try:
            return connected(info["client"], deadline - time.monotonic())
        except TimeoutError:
            raise self._late("the controller") from None

    def close(self) -> None:
        """Let go of all. (Processes are ended by `ending.end`.)"""
        self._cluster.cluster_file = ""  # else it is written again when the processes have ended
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, count: int, deadline: float) -> Any:
        name = self._run(self._cluster.start_engines(count), deadline, f"engines ({self.name})")
        return self._cluster.engines[name]

    def _run(self, coroutine: Any, deadline: float, what: str) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FileNotFoundError as error:
            raise ClusterError(
                f"{what}: the program {error.filename!r} is not to be found on this machine.",
                next_step=f"install it, or use another launcher: {', '.join(LAUNCHERS)}.",
                argument="launcher",
            ) from None
        except TimeoutError:
            future.cancel()
            raise self._late(what) from None
        except Exception as error:  # whatever a launcher raises
            log = self._output(self._cluster.controller)
            raise ClusterError(f"{what} could not be started: {_said(error)}{log}") from error

    def _wait(self, client: Any, before: list[int], count: int, engines: Any, deadline: float) -> list[int]:
        while True:
            new = [i for i in client.ids if i not in before]
            if len(new) >= count:
                self._together.append(set(new))
                return new
            running = len(engines.launchers) if hasattr(engines, "launchers") else count
            if engines.state == "after" or running < count:
                raise ClusterError(
                    f"{max(1, count - running)} of {count} engines ended while starting.{self._output(engines)}"
                )
            if time.monotonic() > deadline:
                raise self._late(f"{count - len(new)} of {count} engines", engines)
            time.sleep(_TICK)

    def _late(self, what: str, launcher: Any = None) -> ClusterError:
        far = self.name not in _LOCAL and self.launch.address == LOOPBACK
        return ClusterError(
            f"{what} did not start within {self.timeout:g} s.{self._output(launcher)}",
            next_step=(
                f"engines on other machines cannot reach {LOOPBACK}: give an address of this machine (--address)."
                if far
                else "a larger timeout (--timeout), if the machine or the queue is busy."
            ),
            argument="timeout",
        )

    def _output(self, launcher: Any) -> str:
        """The end of what a process wrote, to be quoted in an error."""
        text = ""
        with contextlib.suppress(Exception):  # some launchers keep none
            text = (launcher or self._cluster.controller).get_output()
        lines = [line for line in text.splitlines() if line.strip()][-_QUOTED_LINES:]
        return "\n".join(["", "Its log ends with:", *(f"    {line}" for line in lines)]) if lines else ""


@contextlib.contextmanager
def _raising_what_is_logged() -> Iterator[None]:
    """Raise an exception that a settings file raised: it is only logged, and the file left out."""
    logged: list[BaseException] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                logged.append(record.exc_info[1])

    handler = Keep(logging.ERROR)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
    if logged:
        raise logged[0]


def _check(launcher: str | None) -> str | None:
    """The name as ipyparallel knows it. Raises ClusterError for an unknown one."""
    if launcher is None:
        return None
    known = sorted({*LAUNCHERS, *(found.name.lower() for found in entry_points(group=_LAUNCHERS_GROUP))})
    if launcher.lower() not in known:
        raise ClusterError(
            f"launcher={launcher!r}: not one of {', '.join(known)}.{did_you_mean(launcher, known)}",
            argument="launcher",
        )
    return launcher.lower()


def _make_cluster(folder: str, launcher: str | None, launch: Launch) -> Any:
    from ipyparallel import Cluster
    from traitlets.config import Config

    # `config` keeps IPython's shell from becoming the parent: it would print what is logged.
    config = Config()
    config.LocalEngineSetLauncher.delay = 0.0
    name = f"jaxpar-{secrets.token_hex(4)}"
    # By default script and log lie in the user's folder.
    config.BatchSystemLauncher.batch_file_name = os.path.join(folder, "security", f"{name}.batch")
    config.BatchSystemLauncher.output_file = os.path.join(folder, "log", f"{name}.log")
    os.makedirs(os.path.join(folder, "log"), exist_ok=True)
    return Cluster(
        profile_dir=folder,
        cluster_id=name,
        **({} if launcher is None else {"engines": launcher}),
        controller_ip=launch.address,
        controller_args=[*_CONTROLLER, f"--IPController.enable_curve={encrypts()}"],
        delay=0,
        log=LOG,
        config=config,
        shutdown_atexit=False,
    )


def _name(cluster: Any) -> str:
    """The name of its engines' launcher."""
    from ipyparallel.cluster.launcher import abbreviate_launcher_class

    return abbreviate_launcher_class(cluster.engine_launcher_class)


def connected(source: Any, timeout: float) -> Any:
    """An ipyparallel client of what `source` tells, a file's path or its content. Raises OSError or TimeoutError."""
    from ipyparallel import Client

    class QuietClient(Client):
        def activate(self, *args: Any, **kwargs: Any) -> Any:
            """Not by itself: it would put magics (`%px`) into the user's shell."""

    with _without_warning_of_signing():
        return QuietClient(source, timeout=max(1.0, timeout))


@contextlib.contextmanager
def _without_warning_of_signing() -> Iterator[None]:
    """CurveZMQ authenticates and takes the place of signatures; jupyter_client warns that there are none."""
    from traitlets.log import get_logger

    def other(record: logging.LogRecord) -> bool:
        return "signing is disabled" not in record.getMessage()

    logger: Any = get_logger()
    if encrypts():
        logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
