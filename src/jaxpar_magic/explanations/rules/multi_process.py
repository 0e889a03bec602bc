"""JAX over several processes: starting the runtime, processes that are lost or late, arrays that span them."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed, sizes

_FIRST = (
    "jax.distributed.initialize tells JAX of the other processes. JAX's back end, once started, cannot learn of them "
    "any more."
)
_ONE_MACHINE = "To use the cores of one machine no jax.distributed is needed: see %jaxdevices and %parmap."


def _initialize(failure: Failure) -> Call | None:
    return failure.call("initialize")


def _argument(call: Call | None, position: int, name: str) -> str | None:
    if call is None:
        return None
    return call.keywords.get(name) or (call.args[position] if len(call.args) > position else None)


def _start(failure: Failure) -> str:
    """The user's call of `initialize`, or one with all that it needs."""
    call = _initialize(failure)
    if call is not None and (call.args or call.keywords):
        return call.source
    return 'jax.distributed.initialize("10.0.0.1:12345", num_processes=2, process_id=0)'


# -- starting --------------------------------------------------------------------------------------


@rule(
    "JPX1401",
    "distributed-initialized-too-late",
    types=("RuntimeError",),
    clues=("initialize() must be called before",),
)
def distributed_initialized_too_late(failure: Failure) -> Finding | None:
    if not failure.search(r"jax\.distributed\.initialize\(\) must be called before any JAX (?:calls|computations)"):
        return None
    devices = failure.devices
    started = f" with {counted(devices, 'device')}" if devices is not None else ""
    return Finding(
        what=f"jax.distributed.initialize() comes after JAX has started its back end{started}.",
        why=f"{_FIRST} The back end starts with the first array, jax.devices(), jax.device_count() or random key, "
        "also where an imported module makes one at its top level.",
        fixes=[
            Fix(
                "Call it first thing, in a new process (restart the kernel)",
                f"import jax\n\n{_start(failure)}\n\n# only now: arrays, jax.devices(), imports that make arrays",
                kind="start",
            ),
        ],
        facts={"devices": devices},
    )


@rule(
    "JPX1402",
    "distributed-needs-an-address",
    types=("ValueError", "RuntimeError"),
    clues=("should be defined", "must be defined", "Could not parse coordinator IP"),
)
def distributed_needs_an_address(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(coordinator_address|coordinator_bind_address|Number of processes|The process id of the current process) "
        r"(?:should|must) be defined\.?$",
        re.M,
    )
    if match is None and not failure.search(r"Could not parse coordinator IP address from Open MPI environment"):
        return None
    missing = (
        {
            "Number of processes": "num_processes",
            "The process id of the current process": "process_id",
        }.get(match.group(1), match.group(1))
        if match is not None
        else "coordinator_address"
    )
    call = _initialize(failure)
    address = _argument(call, 0, "coordinator_address") or '"10.0.0.1:12345"'
    count = _argument(call, 1, "num_processes") or "2"
    number = _argument(call, 2, "process_id") or "0"
    return Finding(
        what=f"jax.distributed.initialize() does not know {missing}: it was not given, and no cluster that JAX knows "
        "(SLURM, Open MPI, Cloud TPU, Kubernetes) was found to tell it.",
        why="Each process needs the same address, host:port, of process 0, the number of processes, and its own number "
        f"from 0. {_ONE_MACHINE}",
        fixes=[
            Fix(
                "Give all three, in each process with its own process_id",
                f"jax.distributed.initialize({address}, num_processes={count}, process_id={number})",
            ),
            Fix("On one machine: leave the call out, and look at the devices", "print(jax.devices())"),
        ],
        facts={"missing": missing},
    )


@rule(
    "JPX1405",
    "process-id-out-of-range",
    types=("ValueError", "TypeError"),
    clues=("process_id and num_processes", "process_id must be", "num_processes must be"),
)
def process_id_out_of_range(failure: Failure) -> Finding | None:
    match = failure.search(
        r"process_id and num_processes must be nonnegative, with process_id < num_processes\. "
        r"Got process_id=(-?\d+), num_processes=(-?\d+)"
    )
    why = "The processes are numbered from 0: with num_processes=N their process_id are 0, 1, …, N-1."
    if match is not None:
        number, count = int(match.group(1)), int(match.group(2))
        valid = f"only process_id 0 to {count - 1} exist" if count > 1 else "only process_id 0 exists"
        right = min(max(number - 1, 0), max(count - 1, 0))
        call = _initialize(failure)
        given = _argument(call, 2, "process_id")
        code = f"jax.distributed.initialize(address, num_processes={max(count, 1)}, process_id={right})"
        if call is not None and given is not None:
            source = call.source
            if "process_id" in call.keywords:
                new = re.sub(r"process_id\s*=\s*" + re.escape(given), lambda _: f"process_id={_less(given)}", source)
            else:
                new = source.replace(f", {given}", f", {_less(given)}", 1)
            code = failure.rewrite(source, new) or code
        return Finding(
            what=f"process_id={number} with num_processes={count}: {valid}.",
            why=why,
            fixes=[
                Fix("Count from 0", code),
                Fix(
                    "Or start as many processes as that number asks for",
                    f"jax.distributed.initialize(address, num_processes={number + 1}, process_id={max(number, 0)})",
                ),
            ],
            facts={"process_id": number, "num_processes": count},
        )
    kind = failure.search(
        r"(process_id|num_processes) must be a (?:nonnegative|positive) int\. Got \1=(.*?) of type "
        r"<class '(?:[\w.]*\.)?(\w+)'>"
    )
    if kind is None:
        return None
    name, value, type_name = kind.groups()
    return Finding(
        what=f"{name} is {value} of type {type_name}, and must be a whole number.",
        why=f"{why} An environment variable is text and must be turned into a number.",
        fixes=[Fix("Turn the text into a number", f'{name} = int(os.environ["{name.upper()}"])')],
        facts={"argument": name, "value": value, "type": type_name},
    )


def _less(source: str) -> str:
    """`source` minus 1: "0" of "1", "rank - 1" of "rank"."""
    try:
        value = ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return f"{source} - 1"
    return str(value - 1) if isinstance(value, int) and value > 0 else "0"


@rule("JPX1414", "distributed-initialized-twice", types=("RuntimeError",), clues=("should only be called once",))
def distributed_initialized_twice(failure: Failure) -> Finding | None:
    if not failure.search(r"distributed\.initialize should only be called once"):
        return None
    call = _start(failure)
    return Finding(
        what="jax.distributed.initialize() was called a second time in this process.",
        why="A process joins the others once. In a notebook, running the cell again is a second call.",
        fixes=[
            Fix(
                "Call it only if it has not been called",
                f"if not jax.distributed.is_initialized():\n    {call}",
            ),
        ],
    )


def _no_answer(failure: Failure, reason: str) -> Finding:
    call = _initialize(failure)
    address = _argument(call, 0, "coordinator_address")
    count = _argument(call, 1, "num_processes")
    number = _argument(call, 2, "process_id")
    at = f" at {address}" if address else ""
    of = f" (this is process {number} of {count})" if number and count else ""
    return Finding(
        what=f"The processes of the job did not find each other in time{of}: process 0 (the coordinator) did not "
        f"answer{at}, or did not hear from all the others. {reason}".rstrip(),
        why="initialize waits until num_processes processes have registered at the coordinator, 5 minutes unless "
        "initialization_timeout says otherwise, and then ends the process. Common reasons: process 0 does not run, the "
        "address or port differs or is closed by a firewall, fewer processes were started than num_processes says, "
        "localhost was given although the processes run on several machines.",
        fixes=[
            Fix(
                "Start every process, each with its own process_id, with the address of process 0's machine",
                'jax.distributed.initialize("HOST_OF_PROCESS_0:12345", num_processes=2, process_id=0)  # and 1 there',
            ),
            Fix("See whether the port can be reached from here", "!nc -vz HOST_OF_PROCESS_0 12345"),
            Fix(
                "Wait longer, if processes start slowly (seconds)",
                "jax.distributed.initialize(initialization_timeout=900)",
            ),
        ],
        facts={"address": address, "num_processes": count, "process_id": number},
    )


@rule(
    "JPX1403",
    "coordinator-not-reached",
    clues=(
        "CoordinationService/RegisterTask",
        "CoordinationService/Connect",
        "PjRT_Client_Connect",
        "Wait_for_all_tasks_to_register",
        "cluster registration failed",
        "failed to connect to all addresses",
    ),
)
def coordinator_not_reached(failure: Failure) -> Finding | None:
    if failure.search(r"(?:DEADLINE_EXCEEDED|UNAVAILABLE)[\s\S]*CoordinationService/(?:RegisterTask|Connect)"):
        return _no_answer(failure, "")
    if failure.search(r"failed to connect to all addresses") and failure.search(r"(?i)coordination|distributed|jax"):
        return _no_answer(failure, "The connection was refused or lost.")
    return None


@rule(
    "JPX1410", "processes-late-at-barrier", clues=("Barrier timed out", "Barrier failed", "cluster registration failed")
)
def processes_late_at_barrier(failure: Failure) -> Finding | None:
    match = failure.search(r"Barrier (?:timed out|failed)[.:]? (?:Barrier_id|Id): ?([\w\[\]:./-]+)")
    if match is None:
        return None
    barrier = match.group(1).rstrip(".").removesuffix("::0")
    tasks = sorted({int(m.group(1)) for m in failure.findall(r"/task:(\d+)")})
    missing = f"process {tasks[0]}" if len(tasks) == 1 else f"the processes {listed([str(t) for t in tasks])}"
    start = "Connect" in barrier or "Init" in barrier
    who = missing if tasks else "other processes"
    fixes = [
        Fix(
            "Start every process, each with its own process_id and the same address",
            'jax.distributed.initialize("HOST_OF_PROCESS_0:12345", num_processes=2, process_id=0)  # and 1 there',
        )
        if start
        else Fix(
            "Reach the same barriers, in the same order, in every process",
            "from jax.experimental import multihost_utils\n"
            'multihost_utils.sync_global_devices("before saving")  # not under `if jax.process_index() == 0`',
        ),
        Fix(
            "Wait longer, if processes start slowly (seconds)", "jax.distributed.initialize(initialization_timeout=900)"
        ),
    ]
    return Finding(
        what=f"{who[0].upper()}{who[1:]} did not come to the meeting point {barrier!r} in time.",
        why=(
            "At the start all processes wait for each other. " if start else "All processes wait for each other there. "
        )
        + "Those that are named were not started, have crashed, were given another address, or are still busy: "
        "their own "
        "logs tell.",
        fixes=fixes,
        facts={"barrier": barrier, "missing": tuple(tasks)},
    )


@rule(
    "JPX1404",
    "coordinator-port-in-use",
    clues=(
        "Failed to add port to server",
        "No address added out of total",
        "Failed to start RPC server",
        "Address already in use",
    ),
)
def coordinator_port_in_use(failure: Failure) -> Finding | None:
    match = failure.search(r"(?:No address added out of total|Failed to add port to server|Failed to start RPC server)")
    if match is None or (failure.live and failure.from_jax is False):
        return None
    port = failure.search(r"(?:for '|address ')\[?[\w:.]*\]?:(\d+)'")
    call = _initialize(failure)
    address = _argument(call, 0, "coordinator_address")
    number = f"port {port.group(1)}" if port else f"the port of {address}" if address else "its port"
    return Finding(
        what=f"The coordinator (process 0) cannot listen on {number}: another process has it.",
        why="An earlier run may still be alive, another user of the machine may have the port, or two processes of "
        "this "
        "job both have process_id=0.",
        fixes=[
            Fix(
                "Take a port that is free, the same in all processes",
                'import socket\n\nwith socket.socket() as s:\n    s.bind(("", 0))\n    print(s.getsockname()[1])',
            ),
            Fix("See who has it", f"!ss -ltnp | grep {port.group(1) if port else 12345}"),
        ],
        facts={"port": int(port.group(1)) if port else None, "address": address},
    )


# -- running ---------------------------------------------------------------------------------------


@rule("JPX1406", "cpu-collectives-missing", clues=("Multiprocess computations aren't implemented on the CPU backend",))
def cpu_collectives_missing(failure: Failure) -> Finding | None:
    return Finding(
        what="A computation spans several CPU processes, and this JAX was given no library by which they can talk.",
        why="CPU processes exchange data through gloo or MPI. Up to JAX 0.4 neither is on by default.",
        fixes=[
            Fix(
                "Turn gloo on, before jax.distributed.initialize, in every process",
                f'jax.config.update("jax_cpu_collectives_implementation", "gloo")\n{_start(failure)}',
            ),
            Fix("Or install a newer JAX, where that is the default", "!pip install -U jax jaxlib"),
        ],
    )


@rule(
    "JPX1407",
    "local-data-does-not-fit",
    types=("ValueError",),
    priority=20,
    clues=(
        "make_array_from_process_local_data",
        "Invalid host data",
        "non-uniform sharding",
        "divisible",
        "divide",
    ),
)
def local_data_does_not_fit(failure: Failure) -> Finding | None:
    why = (
        "make_array_from_process_local_data takes the part of the global array that belongs to this process: with one "
        "process that is all of it. Along a dimension that is split over processes the part is the global size divided "
        "by the number of processes."
    )
    call = failure.call("make_array_from_process_local_data")
    one = failure.search(
        r"on a single process, global_shape should be None or equal to\s*local_data\.shape\.\s*"
        r"Got global_shape=\(([\d, ]*)\) and\s+local_data\.shape=\(([\d, ]*)\)"
    )
    several = failure.search(
        r"In dimension (\d+), the process data has (\d+) elements\. Process addresses (\d+) elements "
        r"and global_shape=\(([\d, ]*)\)"
    )
    uneven = failure.search(
        r"dimension (\d+) should be divisible by (\d+), but it is equal to (\d+) \(full shape: \(([\d, ]*)\)\)"
    )
    data = call.args[1] if call is not None and len(call.args) > 1 else "local_data"
    if one is not None:
        want, have = sizes(one.group(1)), sizes(one.group(2))
        what = (
            f"The local data has shape {have}, but the global shape is {want}, and there is one process, which "
            "owns all of it."
        )
        facts: dict[str, object] = {"local": have, "global": want}
    elif several is not None:
        dim, have_n, want_n = (int(several.group(i)) for i in (1, 2, 3))
        what = (
            f"In dimension {dim} this process gives {have_n} elements, and owns {want_n} of the global shape "
            f"{sizes(several.group(4))}."
        )
        facts = {"dimension": dim, "local": have_n, "owned": want_n}
    elif uneven is not None and call is not None:
        dim, parts, have_n = (int(uneven.group(i)) for i in (1, 2, 3))
        what = (
            f"The local data has {have_n} elements in dimension {dim}, which cannot be split evenly over {parts} "
            "devices"
            + (
                f"; global_shape={call.keywords['global_shape']} was asked for."
                if "global_shape" in call.keywords
                else "."
            )
        )
        facts = {"dimension": dim, "local": have_n, "devices": parts}
    else:
        return None
    fixes = [
        Fix(
            "Pass the whole block that this process owns, and let JAX work out the global shape",
            f"{_rewritten(call)}  # {data} complete"
            if call is not None
            else "x = jax.make_array_from_process_local_data(sharding, local_data)",
            kind="sketch",
        ),
        Fix(
            "Or let each device ask for its own part of the data",
            "x = jax.make_array_from_callback(global_shape, sharding, lambda index: full_data[index])",
        ),
    ]
    return Finding(what=what, why=why, fixes=fixes, facts=facts)


def _rewritten(call: Call) -> str:
    return f"{call.function}({', '.join(call.args[:2])})"


@rule("JPX1408", "collective-is-stuck", clues=("rendezvous", "Rendezvous", "RendezvousKey"))
def collective_is_stuck(failure: Failure) -> Finding | None:
    match = failure.search(
        r"This thread has been waiting for `(.*?)` for (\d+) seconds and may be stuck\.?"
        r"(?:.*?Expected (\d+) threads to join the rendezvous, but (not all|only (\d+)) of them arrived)?",
        re.S,
    )
    ended = failure.search(r"Termination timeout for `(.*?)` of (\d+) seconds exceeded.*?Expected (\d+) threads", re.S)
    match = match or ended
    if match is None:
        return None
    name, seconds = match.group(1), int(match.group(2))
    operation = re.match(r"[a-z][a-z -]*?(?= RendezvousKey| for rank|;|$)", name)
    what_op = operation.group() if operation else "collective operation"
    expected = int(match.group(3)) if match.group(3) else None
    count = f"{expected} devices" if expected else "all devices"
    arrived = match.group(5) if ended is None and match.re.groups >= 5 else None
    came = f"{arrived} of them came" if arrived else "not all of them came"
    ids = failure.search(r"global_devices=\[([\d, ]+)\]")
    devices = f" (ids {ids.group(1)})" if ids else ""
    return Finding(
        what=f"A {what_op} waits for {count}{devices} to take part; after {seconds} seconds {came}.",
        why="In a collective operation every device must arrive. One is missing if a process has crashed or runs other "
        "code (an `if` on jax.process_index()), or if it is only late: with more CPU devices than cores, devices wait "
        "for each other's core. On newer versions the process is ended in the end.",
        fixes=[
            Fix(
                "On a CPU: no more devices than cores",
                "%jaxdevices all"
                if failure.environment.interactive
                else 'from jaxpar_magic import devices\ndevices("all")',
            ),
            Fix(
                "Run the same computations in the same order in every process; look into their logs for the first "
                "error",
                "from jax.experimental import multihost_utils\nmultihost_utils.sync_global_devices('step')",
            ),
        ],
        facts={"operation": what_op, "seconds": seconds, "expected": expected},
    )


@rule(
    "JPX1409",
    "process-was-lost",
    clues=(
        "heartbeat timeout",
        "Failed to send RPC to coordination service",
        "another task died",
        "PollForError",
        "Polled an error from coordination service",
        "was preempted",
        "stopped sending heartbeats",
        "Gloo context initialization failed",
    ),
)
def process_was_lost(failure: Failure) -> Finding | None:
    lost = failure.search(r"Task /job:jax_worker/replica:\d+/task:(\d+) heartbeat timeout") or failure.search(
        r"unhealthy \(stopped sending heartbeats\):\s*/job:\w+/replica:\d+/task:(\d+)"
    )
    leader = failure.search(r"Failed to send RPC to coordination service|leader task was preempted/died/restarted")
    task = failure.search(r"(?:[Tt]ask|from) /job:jax_worker/replica:\d+/task:(\d+)")
    general = failure.search(
        r"JAX distributed service detected fatal errors|heartbeat timeout|Polled an error from "
        r"coordination service|Gloo context initialization failed: .*Connection (?:closed|reset) by peer"
    )
    if failure.search(r"CoordinationService/RegisterTask") or (failure.live and failure.from_jax is False):
        return None
    if not (lost or leader or general):
        return None
    number = lost.group(1) if lost else task.group(1) if task else None
    who = "process 0, the coordinator," if leader and not lost else f"process {number}" if number else "another process"
    return Finding(
        what=f"{who[0].upper()}{who[1:]} of the job no longer answers: it has crashed, was ended (preempted, out of "
        "memory), or was too busy to say that it lives.",
        why="All processes of a job need each other, so when one is lost the others are ended too. The cause stands in "
        "the lost process's own log; this message is only the echo.",
        fixes=[
            Fix(
                "Read the log of that process for its first error, and keep logs whole",
                "!python -u script.py 2>&1 | tee log.txt",
            ),
            Fix(
                "If it is only slow (long compilation, loading), wait longer (seconds; JAX 0.7.0 or newer)",
                "jax.distributed.initialize(heartbeat_timeout_seconds=600)",
            ),
        ],
        facts={"process": int(number) if number else 0 if leader else None},
        guess=not (lost or leader),
    )


@rule(
    "JPX1411",
    "array-spans-processes",
    types=("RuntimeError", "ValueError"),
    clues=(
        "CopyArrays only supports",
        "non-addressable",
        "not fully addressable",
        "spans non-addressable",
        "non-trivial shardings for numpy",
        "non-fully-addressable",
    ),
)
def array_spans_processes(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(CopyArrays only supports destination device list of the same size"
        r"|Running operations on `?Array`?s that are (?:not|non-)\s?fully addressable"
        r"|(?:Fetching value for|Closing over) `?jax\.Array`? that spans non-addressable"
        r"|Cannot reshard an input that is not fully addressable"
        r"|Passing non-trivial shardings for numpy\s+inputs is not allowed"
        r"|must be a fully addressable array or a non-addressable"
        r"|Gathering global non-fully-addressable arrays only supports)"
    )
    if match is None:
        return None
    name = None
    for candidate in re.findall(r"(?<![\w.])[A-Za-z_]\w*", (failure.user.segment or "") if failure.user else ""):
        variable = failure.variable(candidate)
        if variable is not None and variable.array:
            name = candidate
            break
    x = name or "x"
    message = match.group(1)
    if message.startswith("Passing non-trivial"):
        what = (
            "A numpy array is passed to a function whose in_shardings split it over several processes. JAX cannot know "
        )
        what += "whether it is the whole array or this process's part."
        fixes = [
            Fix("Say that it is this process's part", f"{x} = jax.make_array_from_process_local_data(sharding, {x})"),
            Fix(
                "Or that every process has the whole",
                f"{x} = jax.make_array_from_callback({x}.shape, sharding, lambda index: {x}[index])",
            ),
        ]
    elif message.startswith("Closing over"):
        what = "A function uses an array from outside that lies on several processes' devices."
        fixes = [Fix("Pass the array as an argument", f"result = function({x})")]
    else:
        what = (
            f"{name or 'An array'} lies on devices of several processes, and is read or indexed by this one "
            "process alone."
        )
        fixes = [
            Fix("Read the part that this process has", f"{x}.addressable_shards[0].data"),
            Fix(
                "Gather all of it on every process (all must call this)",
                f"from jax.experimental import multihost_utils\n"
                f"whole = multihost_utils.process_allgather({x}, tiled=True)",
            ),
            Fix("Compute with it inside jit, the same in all processes", f"result = jax.jit(function)({x})"),
        ]
    return Finding(
        what=what,
        why="In a job of several processes each can read only what lies on its own devices. Whatever needs data of the "
        "others must be a compiled computation that all processes run together.",
        fixes=fixes,
        facts={"array": name, "reported": message},
    )


@rule(
    "JPX1413",
    "processes-out-of-step",
    clues=(
        "Core halted unexpectedly",
        "Accelerator device halted",
        "sync_global_devices name mismatch",
        "unexpected peer",
        "launch id mismatch",
        "different programs",
    ),
)
def processes_out_of_step(failure: Failure) -> Finding | None:
    name = failure.search(r"sync_global_devices name mismatch \('(.*?)'\)")
    halted = failure.search(
        r"Core halted unexpectedly|Accelerator device halted prematurely|unexpected peer"
        r"|launch id mismatch|[Mm]ultiple hosts .*different programs"
    )
    if name is None and halted is None:
        return None
    what = "The processes of the job got out of step: they run different programs or pass different barriers."
    if name is not None:
        what = (
            f"The processes of the job got out of step: this one is at the barrier {name.group(1)!r}, another "
            "elsewhere."
        )
    elif halted is not None:
        what = (
            f"The accelerator stopped ({halted.group()}). In a job of several processes this mostly means that "
            "they got "
        )
        what += "out of step: they run different programs or pass different barriers."
    return Finding(
        what=what,
        why="Every process must run the same computations in the same order. Code under `if jax.process_index() == 0`, "
        "loops of different length, or data of different shapes bring them apart.",
        fixes=[
            Fix(
                "Bring them together with barriers of the same name, outside any `if` on the process",
                'from jax.experimental import multihost_utils\nmultihost_utils.sync_global_devices("after loading")',
            ),
            Fix(
                "Let every process compute, and only the printing or writing be done by one",
                "loss = train_step(batch)\nif jax.process_index() == 0:\n    print(loss.addressable_data(0))",
            ),
        ],
        facts={"barrier": name.group(1) if name else None},
        guess=name is None,
    )


@rule("JPX1415", "unknown-process-index", types=("ValueError",), clues=("Unknown process_index",))
def unknown_process_index(failure: Failure) -> Finding | None:
    match = failure.search(r"Unknown process_index (-?\d+)")
    if match is None:
        return None
    call = failure.call("local_devices")
    code = failure.rewrite(call.source, "jax.local_devices()") if call is not None else None
    return Finding(
        what=f"There is no process {match.group(1)} in this job.",
        why="Processes are numbered from 0 to jax.process_count() - 1; without jax.distributed there is one, number 0.",
        fixes=[Fix("Take this process's own devices", code or "devices = jax.local_devices()")],
        facts={"process_index": int(match.group(1))},
    )


@rule(
    "JPX1416",
    "tpu-pod-started-on-one-host",
    clues=("Did you run your code on all TPU hosts", "Failed to connect to remote server at address"),
)
def tpu_pod_started_on_one_host(failure: Failure) -> Finding | None:
    slow = failure.search(r"TPU backend initialization is taking more than ([\d.]+) seconds")
    host = failure.search(r"Failed to connect to remote server at address: (?:dns:///|grpc://)?([\w.-]+(?::\d+)?)")
    of_jax = failure.is_a("JaxRuntimeError", "XlaRuntimeError") or failure.search(r"(?i)t1v-n-|tpu")
    if slow is None and (host is None or not of_jax):
        return None
    waits = f"JAX has waited {float(slow.group(1)):g} s for the other hosts of the TPU" if slow is not None else ""
    return Finding(
        what=(waits or f"JAX cannot reach {host.group(1) if host else 'another host'}, a host of the TPU")
        + ". Most likely the program was started on one host of a TPU pod only.",
        why="A pod (more than 8 chips, such as v4-32) has several hosts. The same program must run on all of them at "
        "the same time: the TPU starts when all have come.",
        fixes=[
            Fix(
                "Start the program on all hosts with one command",
                '!gcloud compute tpus tpu-vm ssh TPU_NAME --zone=ZONE --worker=all --command="python3 script.py"',
            ),
            Fix("On one host alone: end other programs that hold the TPU", "!sudo lsof -w /dev/accel0 /dev/vfio/*"),
        ],
        facts={"seconds": float(slow.group(1)) if slow else None, "host": host.group(1) if host else None},
        guess=slow is None,
    )
