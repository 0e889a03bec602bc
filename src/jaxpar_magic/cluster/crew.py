"""Hands pieces of a map to engines as they come free, and sees it through whatever happens to them.

Each engine has two pieces at most: one that it runs, and the next, so that it never waits for the notebook. Near the
end it has one, so that no piece waits behind a slow one while another engine is free. What comes back goes to a job,
which knows what the pieces are made of.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ClusterError, WorkerError
from ..mapping.monitor import Monitor
from ..mapping.result import duration
from ..mapping.worker_pickle import Outbound
from . import on_call
from .engines import has_ended, is_stopped, just_ended
from .mesh import make_way
from .settings import jax_options
from .transport import LEAST_SHARED, Block, can_share

if TYPE_CHECKING:
    from .engines import Cluster, Engine

# Neighbouring chunks go to an engine together if each takes less than this.
PIECE_SECONDS = 0.25
# What a piece costs the notebook: with many engines, pieces are so long that it can feed all of them.
CALL_SECONDS = 4e-3
# A piece that has ended so many engines is not given to another.
MAX_DEATHS = 3
# How often a map starts engines anew because all were lost.
MAX_REVIVALS = 3
# Seconds: an engine whose process is stopped is told of after the first, and taken for lost after the second.
STOPPED_TOLD, STOPPED_LOST = 3.0, 30.0
# The same for an engine on a machine that gives no answer, and how often it is asked while a piece runs. The controller
# forgets it after half a minute, and nobody could end it then if it came back.
SILENT_TOLD, SILENT_LOST, ASK_AGAIN = 5.0, 20.0, 10.0
# Seconds that engines get, after an interrupt, to end what they run.
DRAIN = 1.5
# Seconds for pieces before a failed one to end, so that the first failure is the one that is told.
GRACE = 5.0
_AGAIN = 0.5  # seconds after which an engine that still runs is interrupted once more
_LATER = 2.0  # the same, in the next map, for one that could not be reached at the end of its own
_TICK = 0.1


@dataclass
class Piece:
    """Neighbouring chunks that one engine gets at a time. `deaths` counts engines that ended while they had it."""

    chunks: list[tuple[int, int]]
    deaths: int = 0

    @property
    def begin(self) -> int:
        return self.chunks[0][0]

    @property
    def end(self) -> int:
        return self.chunks[-1][1]

    def __str__(self) -> str:
        return f"items {self.begin:,} to {self.end - 1:,}" if self.end - self.begin > 1 else f"item {self.begin:,}"


@dataclass(eq=False)
class Member:
    """An engine that takes part in a map."""

    engine: Engine
    view: Any
    shares: bool  # it can open the notebook's shared memory
    memory: float | int | str | None  # what it may hold
    flights: list[Flight] = field(default_factory=list)
    unfinished: list[Any] = field(default_factory=list)  # of an earlier map that did not end when it was interrupted
    seconds: float | None = None  # for a chunk
    class_parts: int = 0  # of classes that it has got
    heard: float = 0.0
    told: bool = False
    asked: Future | None = None  # done once its machine has answered
    asked_at: float = 0.0

    @property
    def busy(self) -> bool:
        return not all(result.done() for result in self.unfinished)

    def __str__(self) -> str:
        return f"engine {self.engine.id} ({self.engine.host})"


@dataclass(eq=False)
class Flight:
    """A call of an engine that is under way."""

    member: Member
    piece: Piece | None  # None: it receives the function
    block: Block | None = None
    result: Any = None
    since: float = field(default_factory=time.monotonic)
    printed: dict[str, int] = field(default_factory=dict)
    settled: bool = False
    complete: bool = False  # and all that it printed has been shown


class Job(Protocol):
    """What the pieces are made of."""

    outbound: Outbound
    most_chunks: int  # in a piece

    def request(self, piece: Piece, member: Member, block: Block | None) -> tuple[dict[str, Any], Sequence[Any]]:
        """(what `engine_map.run` is asked, buffers); large arrays go into the block, if there is one."""

    def take(self, piece: Piece, member: Member, details: Sequence[Any], buffers: list) -> BaseException | None:
        """Keep what a piece gave. The exception of an item, if that is to stop the map."""

    def failed(self, piece: Piece, member: Member, details: Sequence[Any], buffers: list) -> BaseException:
        """The exception of a piece, as the user would have seen it here."""

    def unreachable(self, piece: Piece, member: Member, what: str) -> str:
        """Do without what an engine cannot open; a note. It is asked again."""

    def give_up(self, piece: Piece, error: WorkerError) -> None:
        """Keep that a piece has no result, or raise `error`."""


def _stopped_meanwhile() -> ClusterError:
    return ClusterError("the cluster was stopped while a map ran.", next_step="%jaxcluster start")


class _Memory:
    """What is known of the engines of a cluster between maps."""

    def __init__(self) -> None:
        self.loaded: dict[int, set[bytes]] = {}  # functions that each engine has
        self.unfinished: dict[int, list[Any]] = {}
        self.shares: dict[int, bool] = {}

    def unfinished_of(self, engine: int) -> list[Any]:
        """What an engine still runs of earlier maps: it may outlast several."""
        left = [result for result in self.unfinished.pop(engine, []) if not result.done()]
        if left:
            self.unfinished[engine] = left
        return list(left)


_memories: weakref.WeakKeyDictionary[Cluster, _Memory] = weakref.WeakKeyDictionary()


class Crew:
    """The engines that run one map.

    Parameters
    ----------
    cluster: whose engines; its lock is held by the caller.
    monitor: told of progress, and asked whether the time is over.
    memory: what the user allows each engine, or None.
    """

    def __init__(self, cluster: Cluster, monitor: Monitor, memory: Any = None):
        self.cluster = cluster
        self.monitor = monitor
        self.notes: list[str] = []
        self.settings = jax_options()
        self._memory = _memories.setdefault(cluster, _Memory())
        self._answers: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._ended: list[Flight] = []  # of which output may still come
        self._blocks: list[Block] = []
        self._free_blocks: list[Block] = []
        self._waiting: deque[Piece] = deque()
        self._error: tuple[int, BaseException] | None = None
        self._failed_at = 0.0
        self._stopped = False
        self._next_look = self._next_interrupt = 0.0
        self._free: list[Member] = []  # engines that may take a piece
        make_way(cluster)
        self._renew()
        self._allowed = memory
        self._revivals = 0
        self.members = self._all_engines()
        if not self.members:
            raise ClusterError("the cluster has no engines left.", next_step="%jaxcluster stop, then %jaxcluster start")

    def _all_engines(self) -> list[Member]:
        engines, members = self.cluster.engines, []
        for e in engines:
            with contextlib.suppress(*just_ended()):
                shares = can_share() and self.cluster.here(e) and self._memory.shares.get(e.id, True)
                part = 0.8 / sum(e.host == other.host for other in engines)
                allowed = self._allowed if self._allowed is not None else part
                unfinished = self._memory.unfinished_of(e.id)
                members.append(Member(e, self.cluster.client[e.id], shares, allowed, unfinished=unfinished))
        return members

    def _renew(self) -> None:
        """Engines that joined take part, and lost ones come back where the cluster is this notebook's own."""
        for line in self.cluster.admit():
            self.notes.append(line)
            self.monitor.say(f"parmap: {line}")
        if not self.cluster.lost or self.cluster.launcher is None:
            return
        count = self.cluster.lost
        self.monitor.say(f"parmap: starting {count} lost engine{'s' if count > 1 else ''} anew")
        with contextlib.suppress(ClusterError):  # the others do the work
            new = self.cluster.restart_lost()
            self.notes.append(f"{count} lost engine{'s' if count > 1 else ''} started anew ({len(new)} ready)")

    # ---------------------------------------------------------------- the map

    def run(self, todo: Iterable[tuple[int, int]], job: Job) -> None:
        """Run all chunks. Raises the first failure that `job` does not keep, and ClusterError if no engine is left."""
        __tracebackhide__ = True
        self._waiting = deque(Piece([bounds]) for bounds in todo)
        program = _Load(job.outbound)
        for member in self.members:
            for result in member.unfinished:
                result.add_done_callback(lambda _: self._answers.put(None))
        self.cluster.on_stop.append(self._stop)
        try:
            while self._goes_on():
                if time.monotonic() >= self._next_look:
                    self._look(job)
                self._hand_out(job, program)
                self._receive(job, _TICK)
                self.monitor.check()
                if self._stopped:
                    raise _stopped_meanwhile()
            if self._error is not None:
                raise self._error[1]
        except BaseException as error:
            if self._stopped and isinstance(error, Exception) and self._error is None:
                raise _stopped_meanwhile() from None  # whatever a send raises whose socket is closed by now
            self._wind_up(job)
            raise
        finally:
            with contextlib.suppress(ValueError):
                self.cluster.on_stop.remove(self._stop)
            self._show_rest()
            program.close()
            for block in self._blocks:
                block.close()

    def _stop(self) -> None:
        self._stopped = True

    @property
    def _flights(self) -> Iterator[Flight]:
        return (flight for member in self.members for flight in member.flights)

    def _look(self, job: Job) -> None:
        """What need not be done at every answer, since it goes through all engines."""
        self._next_look = time.monotonic() + _TICK
        there = self.cluster.client.ids
        for member in [m for m in self.members if not m.flights and m.engine.id not in there]:
            self._lost(member, job, False)
        self._interrupt_unfinished()
        self._show()
        self._watch(job)
        self._free = list(self.members)

    def _interrupt_unfinished(self) -> None:
        """Engines that still run what an earlier map was to end: the network to them may be back by now."""
        busy = [member.engine.id for member in self.members if member.busy]
        if busy and time.monotonic() >= self._next_interrupt:
            self._next_interrupt = time.monotonic() + _LATER
            self.cluster.interrupt(busy)

    def _goes_on(self) -> bool:
        if self._error is None:
            return bool(self._waiting or any(f.piece is not None for f in self._flights))
        # A loop would have met a failure of an earlier item first.
        earlier = any(f.piece is not None and f.piece.begin < self._error[0] for f in self._flights)
        return earlier and time.monotonic() < self._failed_at + GRACE

    def _hand_out(self, job: Job, program: _Load) -> None:
        if self._error is not None:
            return
        # A piece that an engine may have died of runs alone, so that it is clear what the next one dies of.
        free, self._free = [m for m in self._free if not m.busy], []
        for under_way in (0, 1):
            for member in free:
                if not self._waiting or (under_way and len(self._waiting) < len(self.members)):
                    return
                pieces = [flight.piece for flight in member.flights if flight.piece is not None]
                if len(pieces) == under_way and not (under_way and (pieces[0].deaths or self._waiting[0].deaths)):
                    self._send_function(member, program)
                    self._send(member, self._next_piece(member, job), job)

    def _next_piece(self, member: Member, job: Job) -> Piece:
        """The next chunks: together as many as take a quarter of a second, and never much of what is left."""
        waiting = self._waiting
        most = 1
        if member.seconds is not None:
            share = len(waiting) // (2 * len(self.members))
            wanted = max(PIECE_SECONDS, CALL_SECONDS * len(self.members))
            most = min(int(wanted / max(member.seconds, 1e-6)), share, job.most_chunks)
        piece = waiting.popleft()
        while len(piece.chunks) < most and waiting and not (piece.deaths or waiting[0].deaths):
            if waiting[0].begin != piece.end:
                break
            piece.chunks += waiting.popleft().chunks
        return piece

    def _send_function(self, member: Member, program: _Load) -> None:
        loaded = self._memory.loaded.setdefault(member.engine.id, set())
        if program.digest not in loaded:
            loaded.add(program.digest)
            self._call(Flight(member, None), "load", *program.message(member.shares))

    def _send(self, member: Member, piece: Piece, job: Job) -> None:
        block = None
        if member.shares:
            block = self._free_blocks.pop() if self._free_blocks else self._new_block()
        request, buffers = job.request(piece, member, block)
        request |= {"digest": job.outbound.digest, "settings": self.settings}
        self._call(Flight(member, piece, block), "run", pickle.dumps(request, protocol=5), *buffers)

    def _new_block(self) -> Block:
        self._blocks.append(Block())
        return self._blocks[-1]

    def _call(self, flight: Flight, name: str, *arguments: Any) -> None:
        member = flight.member
        member.flights.append(flight)
        try:
            flight.result = member.view.apply_async(on_call.call, name, *arguments)
        except just_ended():
            member.flights.remove(flight)
            if flight.piece is None:
                self._memory.loaded.pop(member.engine.id, None)
            self._return([flight.piece])
            return
        flight.result.add_done_callback(lambda _: self._answers.put(flight))

    # ---------------------------------------------------------------- answers

    def _receive(self, job: Job, timeout: float, *, ending: bool = False) -> None:
        __tracebackhide__ = True
        try:
            flight = self._answers.get(timeout=timeout)
        except queue.Empty:
            return
        if flight is not None and not flight.settled:
            self._settle(flight, job, ending)

    def _settle(self, flight: Flight, job: Job, ending: bool) -> None:
        __tracebackhide__ = True
        import ipyparallel

        member, piece = flight.member, flight.piece
        error = flight.result.exception()
        if getattr(error, "ename", "") == "EngineError":
            self._lost(member, job, ending)
            return
        flight.settled = True
        member.flights.remove(flight)
        member.heard, member.told = time.monotonic(), False
        self._ended.append(flight)
        self._free.append(member)
        try:
            if isinstance(error, ipyparallel.error.TaskAborted):
                self._return([piece])
            elif getattr(error, "ename", "") == "KeyboardInterrupt":  # before it reached our code there
                self._on_interrupted(flight, job, [], [], ending)
            elif error is not None:
                raise ClusterError(f"{member} cannot run this: {_described(error)}")
            else:
                answer, *buffers = flight.result.result()
                kind, *details = pickle.loads(answer)
                getattr(self, f"_on_{kind}")(flight, job, details, buffers, ending)
        finally:
            if flight.block is not None:
                self._free_blocks.append(flight.block)

    def _return(self, pieces: Sequence[Piece | None]) -> None:
        self._waiting.extendleft(reversed([piece for piece in pieces if piece is not None]))

    def _on_loaded(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        """Pieces that follow find it there."""

    def _on_unloadable(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        kind, message, _ = details
        self._memory.loaded[flight.member.engine.id].discard(job.outbound.digest)
        raise WorkerError(
            f"The function cannot be rebuilt on {flight.member}: {kind}: {message}.",
            next_step="make what it needs importable there too: a module in a folder on sys.path, installed.",
            argument="function",
        )

    def _on_missing(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        self._memory.loaded[flight.member.engine.id].discard(job.outbound.digest)
        flight.member.class_parts = 0
        self._return([flight.piece])

    def _on_interrupted(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        # Not by us, unless it is the end: by whoever else uses these engines.
        if flight.piece is None:
            self._memory.loaded[flight.member.engine.id].discard(job.outbound.digest)
        self._return([flight.piece])

    def _on_unreachable(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        member, (what,) = flight.member, details
        if what.startswith("shared memory"):
            member.shares = self._memory.shares[member.engine.id] = False
            note = f"{member} cannot open shared memory: its items are sent"
        else:
            assert flight.piece is not None
            note = job.unreachable(flight.piece, member, what)
        if note not in self.notes:
            self.notes.append(note)
        if flight.piece is None:
            self._memory.loaded[member.engine.id].discard(job.outbound.digest)
        self._return([flight.piece])

    def _on_error(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        if ending:
            return
        assert flight.piece is not None
        self._stop_at(flight.piece, job.failed(flight.piece, flight.member, details, buffers))

    def _stop_at(self, piece: Piece, error: BaseException) -> None:
        if self._error is None:
            self._failed_at = time.monotonic()
        if self._error is None or piece.begin < self._error[0]:
            self._error = (piece.begin, error)

    def _on_done(self, flight: Flight, job: Job, details: list, buffers: list, ending: bool) -> None:
        __tracebackhide__ = True
        piece, member = flight.piece, flight.member
        assert piece is not None
        member.seconds = details[0]["seconds"] / len(piece.chunks)
        error = job.take(piece, member, details, buffers)
        if error is not None and not ending:
            self._stop_at(piece, error)

    # ---------------------------------------------------------------- engines that are lost, or stopped

    def _lost(self, member: Member, job: Job, ending: bool) -> None:
        """An engine has ended, and what it had goes to others."""
        __tracebackhide__ = True
        if member not in self.members:
            return
        self.members.remove(member)
        self._memory.loaded.pop(member.engine.id, None)
        flights, member.flights = member.flights, []
        for one in flights:
            one.settled = True
        pieces = [one.piece for one in flights if one.piece is not None]
        if ending:
            return
        under_way = f" with {' and '.join(map(str, pieces))} under way" if pieces else ""
        line = f"{member} was lost{under_way}{', which another engine gets' if pieces and self.members else ''}"
        self.notes.append(line)
        self.monitor.say(f"parmap: {line}")
        # Any of them may be to blame: the answer of the first is lost, too, if it was still on its way.
        pieces = [Piece([chunk], piece.deaths + 1) for piece in pieces for chunk in piece.chunks]
        given_up = [piece for piece in pieces if piece.deaths >= MAX_DEATHS]
        self._return([piece for piece in pieces if piece.deaths < MAX_DEATHS])
        for piece in given_up:
            it = "it" if piece.end - piece.begin == 1 else "them"
            job.give_up(
                piece,
                WorkerError(
                    f"{piece}: {piece.deaths} engines ended with {it} under way, one after the other.",
                    next_step="map these items alone: something ends the process (memory runs out, os._exit, C code "
                    "crashes). on_error='skip' leaves them out.",
                ),
            )
        if not self.members and self._waiting and self._revivals < MAX_REVIVALS:
            self._revivals += 1
            self._renew()
            self.members = self._all_engines()
        if not self.members and self._waiting:
            raise ClusterError(
                f"all engines of the cluster were lost, the last{under_way or ' while it received the function'}.",
                next_step="run it again: lost engines are started anew."
                if self.cluster.launcher is not None
                else "start engines where the others were, then run it again.",
            )

    def _watch(self, job: Job) -> None:
        """Look after engines that do not answer."""
        __tracebackhide__ = True
        now = time.monotonic()
        for member in list(self.members):
            if not member.flights:
                continue
            engine = member.engine
            quiet = now - max(member.heard, member.flights[0].since)
            if quiet < STOPPED_TOLD:
                continue
            if has_ended(engine):  # and so has the controller, which would have told
                self.cluster.give_up(engine)
                self._lost(member, job, False)
                continue
            if engine.at_home:
                trouble, left = f"its process {engine.pid} is stopped", STOPPED_LOST - quiet
                troubled = is_stopped(engine)
            else:
                silent = self._silent(member, now)
                trouble, left = "its machine, or the network to it, is gone", SILENT_LOST - silent
                troubled = silent >= SILENT_TOLD
            if not troubled:
                continue
            if left <= 0:
                self.cluster.kill([engine.id])  # its pieces come back as those of any lost engine
                if not engine.at_home:
                    self._lost(member, job, False)
            elif not member.told:
                member.told = True
                self.monitor.say(f"parmap: {member} does not answer: {trouble}; without it in {duration(left)}")

    def _silent(self, member: Member, now: float) -> float:
        """The seconds that the machine of an engine has given no answer, and ask it again now and then."""
        if member.asked is not None and not member.asked.done():
            return now - member.asked_at
        if now >= member.asked_at + ASK_AGAIN:
            member.asked, member.asked_at = self.cluster.ask_sign(member.engine), now
        return 0.0

    # ---------------------------------------------------------------- an early end

    def _wind_up(self, job: Job) -> None:
        """Interrupt what runs, and wait for it, so that nothing of it runs into the next map. Keep what was done."""
        self._waiting.clear()
        for member in self.members:  # the interrupt may have come while one was sent
            member.flights = [flight for flight in member.flights if flight.result is not None]
        deadline, again = time.monotonic() + DRAIN, 0.0
        try:
            while any(self._flights) and not self._stopped and time.monotonic() < deadline:
                if time.monotonic() >= again:
                    again = time.monotonic() + _AGAIN
                    self._interrupt()
                with contextlib.suppress(Exception):  # the one that is on its way says what is wrong
                    self._receive(job, _TICK / 2, ending=True)
        finally:
            for flight in self._flights:
                self._memory.unfinished.setdefault(flight.member.engine.id, []).append(flight.result)

    def _interrupt(self) -> None:
        running = [m.engine.id for m in self.members if m.flights]
        for member in self.members:
            queued = [identity for flight in member.flights[1:] for identity in flight.result.msg_ids]
            if queued:
                with contextlib.suppress(*just_ended()):
                    self.cluster.client.abort(queued, targets=[member.engine.id], block=False)
        self.cluster.interrupt(running)

    # ---------------------------------------------------------------- what engines print

    def _show(self) -> None:
        for flight in [*self._ended, *self._flights]:
            if flight.result is not None:
                self._show_one(flight)
        self._ended = [flight for flight in self._ended if not flight.complete]

    def _show_one(self, flight: Flight, *, ended: bool = False) -> None:
        # asked before it is printed: more may come in between
        flight.complete = complete = ended or (flight.settled and flight.result.wait_for_output(0))
        printed = flight.result.metadata
        for name in ("stdout", "stderr"):
            text = printed[name] or ""
            begin = flight.printed.get(name, 0)
            end = len(text) if complete else text.rfind("\n") + 1
            if end > begin:
                flight.printed[name] = end
                stream = getattr(sys, name)
                for line in text[begin:end].splitlines():
                    print(f"[engine {flight.member.engine.id}] {line}", file=stream)

    def _show_rest(self) -> None:
        """Output may come after the result."""
        deadline = time.monotonic() + (0.0 if self._stopped else 1.0)
        for flight in self._ended:
            flight.result.wait_for_output(max(0.0, deadline - time.monotonic()))
            self._show_one(flight, ended=True)
        self._ended.clear()


class _Load:
    """A function on its way to the engines: once in shared memory for all on this machine, or as a message."""

    def __init__(self, outbound: Outbound):
        self._outbound = outbound
        self.digest = outbound.digest
        self._block: Block | None = None

    def message(self, shares: bool) -> tuple[Any, ...]:
        """The arguments of `engine_map.load`."""
        parts = self._outbound.function_parts
        sizes = [memoryview(part).nbytes for part in parts]
        address = None
        if shares and sum(sizes) >= LEAST_SHARED:
            if self._block is None:
                self._block = Block()
                offset = 0
                for part, size in zip(parts, sizes):
                    self._block.write(offset, part)
                    offset += size
            address, parts = self._block.address, []
        head = pickle.dumps((self.digest, self._outbound.sources, sizes, address), protocol=5)
        return (head, *(memoryview(part) for part in parts))

    def close(self) -> None:
        if self._block is not None:
            self._block.close()


def _described(error: BaseException) -> str:
    return f"{getattr(error, 'ename', type(error).__name__)}: {getattr(error, 'evalue', error)}"
