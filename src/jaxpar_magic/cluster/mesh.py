"""The mesh over all engines, as the notebook sees it: made when a program needs it, never used again after trouble.

A collective that one engine has begun and another has not pairs with the next one, whose numbers are then silently
wrong. So a mesh that met an exception, an interrupt or a death is given up; the next program gets a new one.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ClusterError, JaxparError
from . import engine_spmd
from .engines import Cluster, Engine, alive, is_stopped, just_ended
from .launch import LOOPBACK
from .transport import Block, can_share

_DRAIN = 1.0  # seconds for interrupted engines to answer
_LEAVE = 5.0  # to leave a mesh
_JOIN = 60.0  # to join one: imports of JAX on a slow disk
_PROBE = 20.0  # for the first exchange between engines
_TICK = 0.05


class EngineLost(ClusterError):
    """An engine ended while it was needed."""


class Late(Exception):
    """Engines did not answer in time."""


class Mesh:
    """A mesh over the devices of all engines.

    Attributes
    ----------
    name: by which engines know it; no two have the same.
    engines: in the order of their items.
    devices: how many each engine has.
    platform: of their programs, as `jax.export` calls it.
    shares: for each engine, whether it can open the notebook's shared memory.
    clean: nothing has gone wrong, and nothing is under way.
    programs: digests of those that the engines have compiled.
    kept: arrays that stay on the engines and are still in use.
    forget: names of such arrays that are not, to be told with the next program.
    """

    def __init__(self, cluster: Cluster, engines: Sequence[Engine]):
        self.name = secrets.token_hex(8)
        self.cluster = cluster
        self.engines = list(engines)
        self.devices: list[int] = []
        self.platform = ""
        self.shares: list[bool] = []
        self.clean = False
        self.programs: set[str] = set()
        self.kept: weakref.WeakSet[Any] = weakref.WeakSet()
        self.forget: list[str] = []

    @property
    def usable(self) -> bool:
        """Whether it is clean and consists of all live engines."""
        return self.clean and [e.id for e in self.engines] == [e.id for e in self.cluster.engines]

    @property
    def each(self) -> str:
        """How many devices an engine has, in words."""
        least, most = min(self.devices), max(self.devices)
        return f"{least if least == most else f'{least} to {most}'} device{'s' if most > 1 else ''}"

    def __str__(self) -> str:
        return f"{len(self.engines)} engine{'s' if len(self.engines) > 1 else ''} × {self.each}"

    def rows(self, length: int) -> list[tuple[int, int]]:
        """Which of `length` items each engine holds."""
        per_device = engine_spmd.padded(length, sum(self.devices)) // sum(self.devices)
        ends = [per_device * sum(self.devices[: k + 1]) for k in range(len(self.devices))]
        return [(min(length, begin), min(length, end)) for begin, end in zip([0, *ends], ends)]

    def call(self, function: Callable, arguments: Sequence[tuple], check: Callable[[], None]) -> list[Any]:
        """What all engines answer, in their order. After any trouble the mesh is given up."""
        __tracebackhide__ = True
        self.clean = False
        try:
            answers = ask_all(self.cluster, self.engines, function, [(self.name, *rest) for rest in arguments], check)
        except BaseException:
            give_up(self.cluster)
            raise
        self.clean = True
        return answers


_meshes: weakref.WeakKeyDictionary[Cluster, Mesh] = weakref.WeakKeyDictionary()


def mesh_of(cluster: Cluster, say: Callable[[str], None], check: Callable[[], None]) -> Mesh:
    """The mesh over all engines of a cluster: the one that is there if it is clean, else a new one.

    Raises
    ------
    ClusterError
        Engines cannot be started anew or cannot reach each other, or another notebook uses them.
    """
    __tracebackhide__ = True
    for line in cluster.admit():
        say(f"parmap: {line}")
    mesh = _meshes.get(cluster)
    if mesh is not None and mesh.usable:
        return mesh
    give_up(cluster)
    if cluster.lost and cluster.launcher is not None:
        say(f"parmap: {cluster.lost} of the engines had ended: as many are started")
        cluster.restart_lost()
    _refuse_others(cluster, check)
    if cluster not in _meshes:
        running = weakref.ref(cluster)
        cluster.on_stop.append(lambda: give_up(running()))
    mesh = _meshes[cluster] = Mesh(cluster, cluster.engines)
    try:
        _join(mesh, check)
    except BaseException as error:
        give_up(cluster)
        if isinstance(error, JaxparError) or not isinstance(error, Exception):
            raise
        raise ClusterError(f"the engines could not become one mesh: {error}", next_step="%jaxcluster status") from None
    return mesh


def give_up(cluster: Cluster | None) -> None:
    """Have the engines leave their mesh, so that each is by itself again. Those that cannot are ended."""
    mesh = _meshes.pop(cluster, None) if cluster is not None else None
    if cluster is None or mesh is None:
        return
    answering = {engine.id for engine in cluster.engines}
    there = [engine for engine in mesh.engines if engine.id in answering]
    if len(there) == len(mesh.engines):
        with contextlib.suppress(Exception):
            # engines of somebody else cannot be started anew, and go on with what was interrupted
            own = cluster.launcher is not None
            ask_all(cluster, there, engine_spmd.leave, [(own,)] * len(there), lambda: None, _LEAVE)
            return
    # with one that is gone JAX would end the others, or let them wait for it
    cluster.kill(engine.id for engine in there)


def make_way(cluster: Cluster) -> None:
    """Before a map: engines in a mesh would end with the first that is lost. Arrays that stay on them keep it."""
    mesh = _meshes.get(cluster)
    if mesh is not None and not (mesh.usable and mesh.kept):
        give_up(cluster)


def _join(mesh: Mesh, check: Callable[[], None]) -> None:
    cluster, engines = mesh.cluster, mesh.engines
    coordinator = _coordinator(mesh, check)
    token = Block() if can_share() else None
    # on another machine the address may be that of somebody else's file
    address = [token.address if token is not None and cluster.here(engine) else None for engine in engines]
    arguments = [
        (mesh.name, coordinator, len(engines), rank, int(_JOIN), address[rank]) for rank in range(len(engines))
    ]
    facts = ask_all(cluster, engines, engine_spmd.join, arguments, check, _JOIN)
    if token is not None:
        token.close()
    mesh.devices = [each["devices"] for each in facts]
    mesh.platform = facts[0]["platform"]
    mesh.shares = [each["shares"] for each in facts]
    try:
        sums = ask_all(cluster, engines, engine_spmd.probe, [(mesh.name,)] * len(engines), check, _PROBE)
    except Late:
        raise ClusterError(
            f"the engines cannot reach each other: a first sum over all did not end within {_PROBE:g} s.",
            next_step="a firewall, or an address that other machines cannot reach? (%jaxcluster start --address)",
        ) from None
    if any(total != sum(mesh.devices) for total in sums):
        raise ClusterError(f"a first sum over {sum(mesh.devices)} devices gave {sums}.")
    mesh.clean = True


def _coordinator(mesh: Mesh, check: Callable[[], None]) -> str:
    """Where the first engine's coordinator is to listen: loopback unless engines are on several machines."""
    cluster, first = mesh.cluster, mesh.engines[0]
    towards: str | None = LOOPBACK
    if len({e.host for e in mesh.engines}) > 1:
        towards = cluster.launcher.launch.address if cluster.launcher is not None else None
        if towards == LOOPBACK:
            raise ClusterError(
                "the engines are on several machines, and this cluster listens on loopback only.",
                next_step="%jaxcluster start --address ADDRESS: one of this machine that they can reach.",
                argument="spmd",
            )
    (address,) = ask_all(cluster, [first], engine_spmd.free_address, [(towards,)], check, _JOIN)
    if towards != LOOPBACK and address.startswith("127."):
        raise ClusterError(
            f"the name of {first.host} stands for {address.rpartition(':')[0]} there, which others cannot reach.",
            next_step="mend /etc/hosts on that machine.",
        )
    return address


def _refuse_others(cluster: Cluster, check: Callable[[], None]) -> None:
    engines = cluster.engines
    if not engines:
        raise ClusterError("the cluster has no engines left.", next_step="%jaxcluster stop, then %jaxcluster start")
    own = socket.gethostname(), os.getpid()
    known = ask_all(cluster, engines, engine_spmd.notebooks, [()] * len(engines), check, _JOIN)
    for other in itertools.chain.from_iterable(known):
        if (other["host"], other["pid"]) != own and alive(other):
            raise ClusterError(
                f"another notebook (process {other['pid']} on {other['host']}) uses these engines, too, and an SPMD "
                "program needs them for itself: results of two would mix.",
                next_step="%jaxcluster stop there, or a cluster of your own: %jaxcluster stop, %jaxcluster start",
                argument="spmd",
            )


def is_spread(mesh: Mesh) -> bool:
    """Whether engines speak over the network."""
    return len({e.host for e in mesh.engines}) > 1


# -------------------------------------------------------------------- one call of many engines


def ask_all(
    cluster: Cluster,
    engines: Sequence[Engine],
    function: Callable,
    arguments: Sequence[tuple],
    check: Callable[[], None],
    seconds: float | None = None,
) -> list[Any]:
    """Call a function on several engines at once; their answers, in order.

    When one fails, or this is interrupted, or `check` raises, all that still work are interrupted; those that do not
    answer then are killed, and so are all when one of them has ended: they would wait for each other.
    """
    __tracebackhide__ = True
    import ipyparallel

    asked: list[Any] = []
    waiting: list[tuple[Engine, Any]] = []
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        for engine, rest in zip(engines, arguments):
            try:
                asked.append(cluster.client[engine.id].apply_async(function, *rest))
            except just_ended():
                raise _lost(cluster, engine, engines) from None
            waiting.append((engine, asked[-1]))
        while waiting:
            for engine, answer in [pair for pair in waiting if pair[1].ready()]:
                waiting.remove((engine, answer))
                try:
                    answer.get()
                except ipyparallel.error.RemoteError as error:
                    lost = error.ename == ipyparallel.error.EngineError.__name__
                    raise (_lost(cluster, engine, engines) if lost else _as_local(engine, error)) from None
            if waiting:
                check()
                if deadline is not None and time.monotonic() > deadline:
                    raise Late(f"{_named([e for e, _ in waiting])} did not answer within {seconds:g} s")
                waiting[0][1].wait(_TICK)
    except EngineLost:
        cluster.kill(engine.id for engine in engines)
        raise
    except BaseException:
        _end(cluster, waiting)
        raise
    return [answer.get() for answer in asked]


def _end(cluster: Cluster, waiting: Sequence[tuple[Engine, Any]]) -> None:
    """Interrupt what runs and wait for its end; kill what does not end."""
    cluster.interrupt(engine.id for engine, _ in waiting)
    deadline = time.monotonic() + _DRAIN
    for _, answer in waiting:
        answer.wait(max(0.0, deadline - time.monotonic()))
    cluster.kill([engine.id for engine, answer in waiting if not answer.ready()])


def _lost(cluster: Cluster, engine: Engine, engines: Sequence[Engine]) -> EngineLost:
    cause = "killed, out of memory, or a crash in native code"
    if not engine.at_home:
        cause += ", or its machine or the network to it is gone"
    if silent := cluster.silent(other for other in engines if other is not engine):
        gone = (
            "its machine or the network to it is" if len(silent) == 1 else "their machines or the network to them are"
        )
        cause = f"{_named(silent)} gives no answer ({gone} gone), and JAX ends all when one gives no sign of life"
    if stopped := [other for other in engines if is_stopped(other)]:
        cause = f"{_named(stopped)} is stopped (SIGSTOP, a debugger), and JAX ends all when one gives no sign of life"
    others = "The others, which cannot go on without it, were ended, too. " if len(engines) > 1 else ""
    again = "run it again: engines are started anew" if cluster.launcher else "start engines again, then connect"
    return EngineLost(
        f"engine {engine.id} (process {engine.pid} on {engine.host}) ended during an SPMD program: {cause}. "
        f"{others}Nothing of the result is kept.",
        next_step=f"{again}. If memory was short: fewer items at a time, or strategy='cluster' without spmd.",
    )


def _as_local(engine: Engine, remote: Any) -> BaseException:
    """An engine's exception as one of this process, with a note that names the engine."""
    import jax

    kind: Any = getattr(builtins, remote.ename, None)
    message = remote.evalue
    if remote.ename in ("XlaRuntimeError", "JaxRuntimeError"):
        kind = jax.errors.JaxRuntimeError
    elif remote.ename == "InternalFloatingPointError":  # of jax_debug_nans, for programs compiled ahead of time
        kind, message = (
            FloatingPointError,
            "NaN or inf in a result; jax_debug_nans is on, check='finite' names the items",
        )
    elif remote.ename == engine_spmd.StaleMesh.__name__:
        return ClusterError(f"{_named([engine])}: {remote.evalue}.", next_step="run it again: the mesh is made anew.")
    known = isinstance(kind, type) and issubclass(kind, Exception)
    error = kind(message) if known else ClusterError(f"{remote.ename}: {message}")
    error.add_note(f"parmap: on {_named([engine])}, in an SPMD program over all engines")
    return error


def _named(engines: Sequence[Engine]) -> str:
    shown = [f"{engine.id} ({engine.host})" for engine in engines]
    return f"engine{'s' if len(shown) > 1 else ''} {', '.join(shown)}"
