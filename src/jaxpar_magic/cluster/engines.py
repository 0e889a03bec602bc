"""A running cluster: its engines, what is known of each, and signals to them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ClusterError
from . import on_engine, settings
from .ending import Guard, Remains, end
from .launch import Launcher

_HANDSHAKE = 30.0  # seconds; imports of an engine on a slow disk
_LOOK = 2.0  # seconds for engines that may be busy to say how they are
_NEWCOMERS = 5.0  # seconds for engines that joined, and may work for another notebook
_ANSWER = 1.0  # seconds for another machine to tell that a signal has come: an interrupt must not take long
_DEATH = 10.0  # seconds until the controller has noticed an engine's end
_TICK = 0.02
_MUST_AGREE = ("python", "jax", "jaxlib", "jaxpar_magic")


@dataclass(frozen=True)
class Engine:
    """One engine, as it was when it was asked last.

    Attributes
    ----------
    id: its number in the cluster.
    host: the name of its machine.
    pid: its process there.
    python, jax, jaxlib, numpy, cloudpickle, package: versions; `package` is jaxpar_magic's.
    devices: how many it has, or will have once JAX runs there.
    platform: "cpu", "gpu", …; None until JAX runs there.
    x64: whether its arrays may be 64 bits wide; None until it imports jax.
    cores: how many it may use.
    load: of its machine, in the last minute (processes that want to run); None where the system does not tell.
    memory_free: bytes that it can still allocate, or None.
    at_home: whether it shares the notebook's machine and its shared memory.
    busy: whether it did not answer in time when asked last.
    """

    id: int
    host: str
    pid: int
    python: str
    jax: str | None
    jaxlib: str | None
    numpy: str | None
    cloudpickle: str | None
    package: str | None
    devices: int
    platform: str | None
    x64: bool | None
    cores: int
    load: float | None
    memory_free: int | None
    at_home: bool
    busy: bool = False


@dataclass(frozen=True)
class _Seat:
    """An engine's share of its machine: the cores and GPUs that it saw when it came."""

    id: int
    cores: frozenset[int]
    gpus: frozenset[str]


class Cluster:
    """Engines that this notebook may use: those of a cluster that it started, or connected to.

    Made by `start` and `connect`.

    Attributes
    ----------
    client: the ipyparallel client.
    lock: held by the map or program that runs: one at a time. The thread that holds it may take it again.
    on_stop: called before the cluster ends, such as to release what an engine still uses.
    shared: a private folder in shared memory, seen by engines `here`; it goes with the cluster, whatever ends it.
    launcher: what starts engines; None for a cluster that was started elsewhere.
    notes: what a user should know of it, one sentence each.
    """

    def __init__(self, client: Any, remains: Remains, guard: Guard, launcher: Launcher | None, devices: int | None):
        self.client = client
        self.lock = threading.RLock()
        self.on_stop: list[Callable[[], None]] = []
        self.shared = Path(remains.shared)
        self.launcher = launcher
        self.notes: list[str] = []
        self._remains = remains
        self._guard = guard
        self._devices = devices
        self._known: dict[int, Engine] = {}
        self._wanted = 0
        self._joined: set[int] = set()  # engines that nobody here started: nothing starts them anew
        self._given_up: set[int] = set()  # engines that do not answer, and whose end is not known
        self._seats: dict[str, list[_Seat]] = {}  # by machine: which engine has which share of it
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._token = secrets.token_hex(16)
        self._token_file = self.shared / "token"
        self._token_file.write_text(self._token)
        self._requests = Path(__file__).with_name("on_engine.py").read_text()

    # --- who is there -------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """The live engines, by id."""
        return [self._known[i] for i in self.client.ids if i in self._known and i not in self._given_up]

    @property
    def lost(self) -> int:
        """How many engines have ended since the start, without those that joined by themselves."""
        return max(0, self._wanted - self._own)

    @property
    def expected(self) -> list[Engine]:
        """The engines of the next map: before it, lost ones of this notebook's own cluster are started anew."""
        live = self.engines
        if self.launcher is None or not self.lost:
            return live
        return [*live, *[e for e in self._known.values() if e not in live][-self.lost :]]

    @property
    def _own(self) -> int:
        return sum(engine.id not in self._joined for engine in self.engines)

    @property
    def engine_file(self) -> Path:
        """The connection file by which more engines join: `ipengine --file=…`."""
        remains = self._remains
        return Path(remains.folder, "security", f"ipcontroller-{remains.cluster_id}-engine.json")

    def here(self, engine: Engine) -> bool:
        """Whether an engine shares this machine and its shared memory."""
        return engine.at_home

    def welcome(self, timeout: float = _HANDSHAKE) -> list[dict[str, Any]]:
        """Make new engines ready: compare versions, give each its devices and the notebook's settings.

        Returns
        -------
        The other notebooks that use these engines, as each told when it connected: "host", "pid", "name".

        Raises
        ------
        ClusterError
            An engine has other versions than the notebook, or does not answer. None is used then.
        """
        new = [i for i in self.client.ids if i not in self._known]
        if not new:
            return []
        found = self._ask(
            new,
            timeout,
            do="greet",
            client={"name": self._name, "host": socket.gethostname(), "pid": os.getpid()},
            token_file=str(self._token_file),
            token=self._token,
            namespace=on_engine.process_namespace(),
            directory=_directory(),
            path=[str(entry) for entry in sys.path],
        )
        silent = [i for i in new if i not in found]
        if silent:
            raise ClusterError(
                f"{_engines(silent)} did not answer within {timeout:g} s: still busy with something else?",
                next_step="%jaxcluster connect again later, or stop what runs there.",
            )
        refuse_mixed({i: found[i]["versions"] for i in new})
        self._settle(new, found, timeout)
        self._wanted = max(self._wanted, self._own)
        away = sorted({found[i]["host"] for i in new if not found[i]["moved"]})
        if away:
            self.notes.append(
                f"The notebook's folder does not exist on {', '.join(away)}: its own modules cannot be imported there."
            )
        everyone = {other["name"]: other for i in new for other in found[i]["others"]}
        return [other for other in everyone.values() if alive(other)]

    def admit(self) -> list[str]:
        """Make engines ready that joined since the last look; a line for those that cannot be used."""
        new = {i for i in self.client.ids if i not in self._known}
        self._joined |= new
        try:
            self.welcome(_NEWCOMERS)
        except ClusterError as error:
            self._joined -= new
            return [f"engines that joined are not used: {error.problem}"]
        return []

    def _settle(self, new: Sequence[int], found: dict[int, dict[str, Any]], timeout: float) -> None:
        too_late: set[str] = set()
        for i, place in zip(new, self._places(new, found)):
            share = settings.share(place, self._devices)
            answer = self._ask([i], timeout, do="settle", variables=dict(share.variables), options=dict(share.options))
            too_late.update(answer[i]["too_late"] if i in answer else [])
            self._known[i] = _engine(i, found[i], share)
        if too_late:
            self.notes.append(
                f"Engines that use JAX already keep their own {', '.join(sorted(too_late))}; new engines do not."
            )

    def _places(self, new: Sequence[int], found: dict[int, dict[str, Any]]) -> list[settings.Place]:
        """Where new engines are. They take the seats of those that have ended, and with them their GPUs."""
        for i in new:
            seats = self._seats.setdefault(found[i]["host"], [])
            free = [n for n, holder in enumerate(seats) if holder.id not in self.client.ids or holder.id == i]
            seat = free[0] if free else len(seats)
            seats[seat : seat + 1] = [_Seat(i, frozenset(found[i]["numbers"]), frozenset(found[i]["gpus"]))]
        return [self._place(i, found[i]) for i in new]

    def _place(self, number: int, facts: dict[str, Any]) -> settings.Place:
        seats = self._seats[facts["host"]]
        return settings.Place(
            host=facts["host"],
            cores=facts["cores"],
            gpus=tuple(facts["gpus"]),
            at_home=facts["at_home"],
            seat=[seat.id for seat in seats].index(number),
            seats=len(seats),
            own_cores=len({seat.cores for seat in seats}) > 1,
            own_gpus=len({seat.gpus for seat in seats}) > 1,
        )

    def look(self, timeout: float = _LOOK) -> list[Engine]:
        """Ask the engines how they are. One that does not answer in time is `busy`, with what was known before."""
        found = self._ask([e.id for e in self.engines], timeout, do="facts")
        for engine in self.engines:
            facts = found.get(engine.id)
            if facts is None:
                self._known[engine.id] = replace(engine, busy=True)
                continue
            self._known[engine.id] = replace(
                engine,
                devices=facts["devices"] or engine.devices,
                platform=facts["platform"],
                x64=facts["x64"],
                load=facts["load"],
                memory_free=facts["memory_free"],
                busy=False,
            )
        return self.engines

    def _ask(self, ids: Sequence[int], timeout: float, **request: Any) -> dict[int, dict[str, Any]]:
        """The answers of those that answer in time, by id."""
        import ipyparallel

        text = json.dumps(request)
        call = f"(lambda names: (exec({self._requests!r}, names), names['main']({text!r}))[1])({{'__name__': 'x'}})"
        # `eval` travels by its name: a pickled function would crash an engine with another version of Python.
        asked = {}
        for i in ids:
            with contextlib.suppress(*just_ended()):
                asked[i] = self.client[i].apply_async(eval, call)
        deadline = time.monotonic() + timeout
        answers = {}
        for i, result in asked.items():
            try:
                answers[i] = json.loads(result.get(max(0.01, deadline - time.monotonic())))
            except (TimeoutError, ipyparallel.error.TimeoutError):
                with contextlib.suppress(Exception):  # it may have begun meanwhile, and does no harm
                    self.client.abort(result.msg_ids, block=False)
            except ipyparallel.error.RemoteError as error:
                if not isinstance(error, ipyparallel.error.EngineError):  # else it has just died
                    raise ClusterError(f"engine {i} cannot be used: {error.ename}: {error.evalue}") from None
        return answers

    # --- signals, ends, and new engines -------------------------------------------------------------------

    def interrupt(self, ids: Iterable[int]) -> None:
        """SIGINT to these engines: what runs there raises KeyboardInterrupt; one that does nothing ignores it."""
        self._signal(ids, signal.SIGINT)

    def kill(self, ids: Iterable[int]) -> None:
        """SIGKILL to these engines; returns when the controller knows. Those whose machine is silent are given up."""
        ids = list(ids)
        answers = self._signal(ids, signal.SIGKILL)
        begun = time.monotonic()
        while (left := set(ids) & set(self.client.ids) - self._given_up) and time.monotonic() < begun + _DEATH:
            if time.monotonic() > begun + _ANSWER:
                self._given_up.update(i for i in left if i in answers and not answers[i].done())
            time.sleep(_TICK)
        self._given_up |= left

    def give_up(self, engine: Engine) -> None:
        """Take an engine for lost of which the controller does not tell."""
        self._given_up.add(engine.id)

    def silent(self, engines: Iterable[Engine]) -> list[Engine]:
        """Those on other machines that give no answer: the machine, or the network to it, is gone."""
        away = {engine.id: engine for engine in engines if not engine.at_home}
        answers = self._signal(away, 0)
        wait(answers.values(), _LOOK)
        return [away[i] for i, answer in answers.items() if not answer.done()]

    def ask_sign(self, engine: Engine) -> Future | None:
        """What is done once an engine's machine has answered, whatever the engine does; None if it has ended."""
        return self._signal([engine.id], 0).get(engine.id)

    def _signal(self, ids: Iterable[int], number: int) -> dict[int, Future]:
        """Send a signal; for engines on other machines, what is done once it has arrived."""
        answers: dict[int, Future] = {}
        for i in ids:
            engine = self._known.get(i)
            if engine is None or i not in self.client.ids:
                continue
            if engine.at_home:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine.pid, number)
            else:  # by the process that ipyparallel puts beside each engine, which answers while that computes
                with contextlib.suppress(*just_ended()):
                    answers[i] = self.client.send_signal(number, targets=[i], block=False)
        return answers

    def start_engines(self, count: int) -> list[Engine]:
        """Start more engines and make them ready.

        Raises
        ------
        ClusterError
            They cannot be started, or the cluster was started elsewhere.
        """
        if self.launcher is None:
            raise ClusterError(
                "this cluster was started elsewhere, and engines can be added only there.",
                next_step="ipcluster engines, or start them as the others were.",
            )
        for ended in set(self._known) - set(self.client.ids):  # whose number a new one may get
            del self._known[ended]
        before = set(self._known)
        self.launcher.start_engines(self.client, count)
        self.welcome()
        return [engine for engine in self.engines if engine.id not in before]

    def restart_lost(self) -> list[Engine]:
        """Start as many engines as have ended; the new ones. Raises like `start_engines`."""
        if self.launcher is not None and self.lost:
            self.launcher.await_deaths(self.client)
        return self.start_engines(self.lost) if self.lost else []

    def stop(self) -> None:
        """End the cluster if this notebook started it, else only the connection."""
        for clean in reversed(self.on_stop):
            with contextlib.suppress(Exception):  # the rest must be ended all the same
                clean()
        self.on_stop.clear()
        if self.launcher is None:
            with contextlib.suppress(Exception):
                self._ask([e.id for e in self.engines], _LOOK, do="leave", name=self._name)
        else:
            with contextlib.suppress(Exception):
                self._end_joined()
        self.client.close(linger=0)
        if self.launcher is not None:
            self.launcher.close()
        end(self._remains)
        self._guard.dismiss()

    def _end_joined(self) -> None:
        """No launcher ends engines that joined; without a controller they would end after a minute."""
        wait(self._signal(self._joined, signal.SIGKILL).values(), _LOOK)


def _engine(number: int, facts: dict[str, Any], share: settings.Share) -> Engine:
    versions = facts["versions"]
    gpus = share.variables.get("CUDA_VISIBLE_DEVICES")
    planned = len(gpus.split(",")) if gpus else share.options["jax_num_cpu_devices"]
    return Engine(
        id=number,
        host=facts["host"],
        pid=facts["pid"],
        python=versions["python"],
        jax=versions["jax"],
        jaxlib=versions["jaxlib"],
        numpy=versions["numpy"],
        cloudpickle=versions["cloudpickle"],
        package=versions["jaxpar_magic"],
        devices=facts["devices"] or planned,
        platform=facts["platform"],
        x64=facts["x64"],
        cores=facts["cores"],
        load=facts["load"],
        memory_free=facts["memory_free"],
        at_home=facts["at_home"],
    )


def refuse_mixed(versions: dict[int, dict[str, str | None]]) -> None:
    """Raise ClusterError, naming who has what, if an engine differs from the notebook in a way that matters."""
    own = notebook_versions()
    wrong = [
        (name, _compared(name, own[name]), _compared(name, theirs.get(name)), number)
        for number, theirs in versions.items()
        for name in _MUST_AGREE
        if _compared(name, theirs.get(name)) != _compared(name, own[name])
    ]
    if not wrong:
        return
    lines = []
    for name, ours, theirs in dict.fromkeys(row[:3] for row in wrong):
        who = [number for *row, number in wrong if tuple(row) == (name, ours, theirs)]
        lines.append(f"    {name:<14} notebook {ours or 'none'}, {_engines(who)} {theirs or 'none'}")
    raise ClusterError(
        "notebook and engines must have the same versions:\n" + "\n".join(lines),
        next_step="start the engines with the notebook's Python (or an environment like it), or install what differs.",
    )


def notebook_versions() -> dict[str, str | None]:
    from importlib.metadata import version

    from .. import __version__

    own: dict[str, str | None] = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return own | {"python": "{}.{}.{}".format(*sys.version_info), "jaxpar_magic": __version__}


def _compared(name: str, version: str | None) -> str | None:
    """As much of a version as must be the same: of Python's, what decides how code is pickled."""
    return version if version is None or name != "python" else version.rpartition(".")[0]


def _engines(ids: Sequence[int]) -> str:
    shown = [str(i) for i in ids]
    if len(shown) > 6:
        shown = [*shown[:4], "…", shown[-1]]
    return f"engine{'s' if len(ids) > 1 else ''} {', '.join(shown)}"


def is_stopped(engine: Engine) -> bool:
    """Whether the process of an engine on the notebook's machine is stopped (SIGSTOP, a debugger)."""
    import psutil

    try:
        return engine.at_home and psutil.Process(engine.pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def just_ended() -> tuple[type[Exception], ...]:
    """What ipyparallel raises when it is to send something to an engine that has just ended."""
    from ipyparallel.error import NoEnginesRegistered

    return LookupError, NoEnginesRegistered  # the latter after the last one


def has_ended(engine: Engine) -> bool:
    """Whether the process of an engine on the notebook's machine is no longer there."""
    import psutil

    try:
        return engine.at_home and psutil.Process(engine.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return str(Path.home())


def alive(client: dict[str, Any]) -> bool:
    """Whether another notebook may still be there. Of one on another machine we cannot know."""
    if client["host"] != socket.gethostname():
        return True
    try:
        os.kill(client["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
