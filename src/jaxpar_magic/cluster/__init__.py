"""Maps on a cluster: ipyparallel's engines, each with JAX on its own devices. `start`, `connect`, `status`, `stop`.

Inside: launch (controller and engines by ipyparallel's launchers) → engines (a `Cluster`: handshake, signals) →
ending (nothing is left, whatever ends the notebook).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ClusterError, OptionError
from ..mapping import elsewhere

if TYPE_CHECKING:
    from .ending import Remains
    from .engines import Cluster
    from .launch import Launcher
    from .report import Status

__all__ = ["active", "connect", "current", "start", "status", "stop"]

_active: Cluster | None = None
_lock = threading.Lock()
_MOST_ENGINES = 4096


def active() -> Cluster | None:
    """The cluster of this process, or None."""
    return _active


def current() -> Cluster:
    """The cluster of this process. Raises ClusterError if there is none."""
    if _active is None:
        raise ClusterError("no cluster is running.", next_step="%jaxcluster start")
    return _active


def start(
    engines: int | None = None,
    *,
    devices_per_engine: int | None = None,
    profile: str | None = None,
    launcher: str | None = None,
    address: str | None = None,
    timeout: float | None = None,
) -> Cluster:
    """Start a cluster of engines and connect to it.

    It ends with `stop`, and with this process, whatever ends that.

    Parameters
    ----------
    engines:
        How many; 2 by default.
    devices_per_engine:
        CPU devices of each, or GPUs where there are any. By default the engines of a machine share all of its cores
        or GPUs.
    profile:
        The IPython profile whose settings (`ipcluster_config.py`: hosts, queues, batch scripts) are followed.
    launcher:
        How engines are started: "local" (default), "mpi", "slurm", "ssh", "pbs", "sge", "lsf", "htcondor".
    address:
        Address or name of this machine at which engines on other machines reach it. By default the cluster listens
        on loopback only: no other machine can reach it.
    timeout:
        Seconds until all engines must be there: by default 60, and 600 where a queue starts them.

    Raises
    ------
    ClusterError
        A cluster is running; ipyparallel is not installed; engines do not start (with their log) or differ from the
        notebook in versions. Nothing is left behind then.
    OptionError
        An argument has a value that cannot be used.

    Examples
    --------
    >>> cluster = start(2)                                                # doctest: +SKIP
    >>> parmap(f, xs, strategy="cluster")                                 # doctest: +SKIP
    >>> stop()                                                            # doctest: +SKIP
    """
    from .launch import LOOPBACK, Launch, Launcher

    count = 2 if engines is None else _whole("engines", engines, _MOST_ENGINES)
    if devices_per_engine is not None:
        _whole("devices_per_engine", devices_per_engine, 256)
    if timeout is not None and not timeout > 0:
        raise OptionError(f"timeout={timeout}: needs a number of seconds above 0.", argument="timeout")
    with _lock:
        _refuse_second()
        _need_ipyparallel()
        notes = _address_notes(address)
        begun = Launcher(Launch(count, launcher, profile, address or LOOPBACK, timeout))
        cluster = _begin(begun.remains, begun, begun.start, devices_per_engine, notes)
        if notes:
            cluster.notes.append(f"More engines join from other machines by: ipengine --file={cluster.engine_file}")
        return cluster


def connect(
    profile: str | None = None, *, file: str | os.PathLike[str] | None = None, timeout: float = 10.0
) -> Cluster:
    """Use a cluster that runs already: of another notebook, or started by `ipcluster start`.

    Parameters
    ----------
    profile:
        The IPython profile in which it was started. By default a cluster of another notebook of yours, or of the
        profile "default".
    file:
        Its connection file (`ipcontroller-client.json`) or cluster file (`cluster-….json`).
    timeout:
        Seconds until controller and engines must answer.

    Raises
    ------
    ClusterError
        There is none, it does not answer, or its engines differ from the notebook in versions.

    Examples
    --------
    >>> cluster = connect("slurm")                                        # doctest: +SKIP
    """
    from .ending import Remains
    from .launch import connected, find, shared_folder

    with _lock:
        _refuse_second()
        _need_ipyparallel()
        path = find(profile, file)
        remains = Remains(cluster_id="", folder="", own_folder=False, by_launcher=False, shared=shared_folder())

        def open_client() -> Any:
            try:
                return connected(str(path), timeout)
            except (OSError, ValueError, KeyError) as error:  # TimeoutError is an OSError
                raise ClusterError(
                    f"no cluster answers to {path} ({type(error).__name__}: {error}). It may have ended.",
                    next_step="%jaxcluster start",
                ) from None

        return _begin(remains, None, open_client, None, [], timeout)


def status() -> Status:
    """The cluster of this process: its engines, where they are, and what they have. Shows itself as a table.

    Examples
    --------
    >>> status().running
    False
    """
    from .report import Status

    return Status.of(_active)


def stop() -> Status:
    """End the cluster that this process started, with all its files; from one that it connected to, disconnect.

    Returns the cluster as it was. Without a cluster it does nothing.
    """
    global _active
    from .report import Status

    with _lock:
        cluster, _active = _active, None
        before = Status.of(cluster, look=False, ended=True)
        if cluster is not None:
            cluster.stop()
        return before


def _maps() -> Any:
    """What runs `parmap(strategy="cluster")`. ClusterError if no cluster runs."""
    from .maps import ClusterMaps

    return ClusterMaps(current())


elsewhere.register(_maps)


def _begin(
    remains: Remains,
    launcher: Launcher | None,
    open_client: Callable[[], Any],
    devices: int | None,
    notes: list[str],
    timeout: float | None = None,
) -> Cluster:
    """A cluster whose engines are ready; if that fails, or is interrupted, all is ended again."""
    global _active
    from .ending import Guard, end
    from .engines import Cluster

    guard = Guard(remains)
    cluster = None
    try:
        client = open_client()
        cluster = Cluster(client, remains, guard, launcher, devices)
        others = cluster.welcome() if timeout is None else cluster.welcome(timeout)
        if not cluster.engines:
            raise ClusterError("the cluster has no engines.", next_step="ipcluster engines, or %jaxcluster start")
    except BaseException:
        if cluster is not None:
            cluster.stop()
        else:
            if launcher is not None:
                launcher.close()
            end(remains)
            guard.dismiss()
        raise
    cluster.notes[:0] = notes + [_other(client) for client in others]
    _active = cluster
    return cluster


def _other(client: dict[str, Any]) -> str:
    return (
        f"Another notebook (process {client['pid']} on {client['host']}) uses these engines, too: "
        "maps of both take turns, and SPMD programs (--spmd) must not run from two."
    )


def _need_ipyparallel() -> None:
    from importlib.util import find_spec

    if find_spec("ipyparallel") is None:
        raise ClusterError("clusters need ipyparallel.", next_step='pip install "jaxpar-magic[cluster]"')


def _refuse_second() -> None:
    if _active is not None:
        raise ClusterError(
            f"this notebook uses a cluster of {len(_active.engines)} engines already.", next_step="%jaxcluster stop"
        )


def _whole(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise OptionError(f"{name}={value!r}: needs a whole number from 1 to {most}.", argument=name)
    return value


def _address_notes(address: str | None) -> list[str]:
    """What to say of an address that is not loopback. Raises OptionError for one that this machine does not have."""
    import socket

    from .launch import encrypts

    if address is None:
        return []
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
            numeric = probe.getsockname()[0]
    except OSError as error:
        raise OptionError(
            f"address={address!r}: this machine does not have it ({error.strerror or error}).",
            next_step="hostname -I shows its addresses.",
            argument="address",
        ) from None
    if numeric.startswith("127."):
        return []
    kept = "what travels is encrypted" if encrypts() else "what travels is NOT encrypted (ZeroMQ without CurveZMQ)"
    return [
        f"It listens on {address}, which other machines can reach: {kept}, and only who can read the connection "
        "files in your home folder can use it."
    ]


def _at_exit(process: int = os.getpid()) -> None:
    if os.getpid() == process and _active is not None:  # a forked child does not own it
        stop()


atexit.register(_at_exit)
