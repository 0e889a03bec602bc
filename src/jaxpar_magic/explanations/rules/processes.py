"""Python's own processes beside JAX: pickling functions and results, fork."""

from __future__ import annotations

import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule

_POOL_METHODS = (
    *("map", "imap", "imap_unordered", "starmap", "apply", "apply_async", "map_async", "starmap_async", "submit"),
    *("Process", "dumps", "dump"),
)


def _pool_call(failure: Failure) -> Call | None:
    """The user's `pool.map(f, xs)`, `executor.submit(f, x)`, `Process(target=f)`, `pickle.dumps(f)`."""
    for frame in failure.user_frames[:1]:
        for call in frame.calls:
            if call.name in _POOL_METHODS and "." in call.function:
                return call
    return None


def _sent(call: Call | None) -> tuple[str | None, str | None]:
    """The function and the inputs in the user's call."""
    if call is None:
        return None, None
    function = call.keywords.get("target") or (call.args[0] if call.args else None)
    inputs = call.args[1] if len(call.args) > 1 else None
    return function, inputs


def _involves_jax(failure: Failure, function: str | None) -> bool:
    """Whether what is sent is JAX's or uses it: pickling fails in plain Python as well."""
    if failure.environment.jax is None and failure.live:
        return False
    if function is None:
        return False
    names = re.findall(r"(?<![\w.])[A-Za-z_]\w*", function)
    if re.search(r"\bjax\.|\bjnp\.", function):
        return True
    return any(v is not None and v.uses_jax and v.type != "module" for v in map(failure.variable, names))


@rule(
    "JPX1501",
    "function-cannot-be-pickled",
    types=("PicklingError", "AttributeError", "TypeError", "WorkerError"),
    clues=("pickle", "get local object", "cannot be sent to worker processes"),
    anywhere=True,
)
def function_cannot_be_pickled(failure: Failure) -> Finding | None:
    if failure.is_a("WorkerError"):
        return _own_worker_error(failure)
    match = (
        failure.search(
            r"Can't pickle <(?:function|class|\w+) ['\"]?(\S+?)['\"]?(?: at 0x\w+)?>: it's not the same object as (\S+)"
        )
        or failure.search(r"Can't (?:pickle|get) local object '?([^']+?)'?$", re.M)
        or failure.search(r"Can't pickle <function (\S+) at 0x\w+>: attribute lookup (\S+) on \S+ failed")
    )
    if match is None:
        return None
    call = _pool_call(failure)
    function, inputs = _sent(call)
    if call is None or not _involves_jax(failure, function):
        return None
    name = match.group(1)
    wrapped = "not the same object" in failure.text
    because = (
        f"the name {name} stands for the function that JAX made of it (by jit, grad or vmap), not for the one "
        "that is to be sent"
        if wrapped
        else f"{name} is not defined under a name of its own at the top level of a module"
    )
    shown = function or name
    return Finding(
        what=f"{shown} cannot be sent to a worker process: {because}.",
        why="multiprocessing sends a function by its name, and the worker imports it under that name. A lambda, a "
        "function inside another one, or one that JAX has wrapped cannot be found so. parmap sends functions by value.",
        fixes=_sending_fixes(shown, inputs, call),
        facts={"function": shown, "name": name, "wrapped_by_jax": wrapped},
    )


def _sending_fixes(function: str, inputs: str | None, call: Call) -> list[Fix]:
    xs = inputs or "inputs"
    fixes = [
        Fix(
            "Map it in this process, with all devices (JAX needs no processes for that)",
            f"from jaxpar_magic import parmap\nresult = parmap({function}, {xs})",
        )
    ]
    if call.name not in ("dumps", "dump"):
        fixes.append(
            Fix(
                "Or in worker processes that get the function by value",
                f"from jaxpar_magic import parmap\nresult = parmap({function}, {xs}, strategy='process')",
            )
        )
    else:
        fixes = [Fix("Pickle it by value", f"import cloudpickle\ndata = cloudpickle.dumps({function})")]
    return fixes


def _own_worker_error(failure: Failure) -> Finding | None:
    match = failure.search(
        r"The function '?(.+?)'? cannot be sent to (worker processes|the engines[^:\n]*): ([^\n]*?)\.?(?:\n|$)"
    )
    if match is None:
        return None
    where = match.group(2)
    thing = re.match(r"(\w+), of type (\S+), cannot be pickled", match.group(3))
    subject = f"{thing.group(1)} ({thing.group(2)})" if thing is not None else match.group(3)
    inside = thing.group(1) if thing is not None else "resource"
    return Finding(
        what=f"The function {match.group(1)} cannot be sent to {where}, because it uses {subject}, which cannot be "
        "pickled.",
        why="Another process has its own memory: the function and all that it uses are copied to it. Open files, "
        "locks, connections, generators and the like belong to one process.",
        fixes=[
            Fix(
                f"Make {inside} inside the function",
                f"def function(x):\n    {inside} = ...        # open or create it here, where it is used\n    return x",
            ),
            Fix(
                "Or use threads, which share memory",
                "from jaxpar_magic import parmap\nresult = parmap(function, inputs, strategy='thread')",
            ),
        ],
        facts={"function": match.group(1), "uses": subject},
    )


@rule(
    "JPX1502",
    "fork-after-jax",
    types=("RuntimeWarning",),
    clues=("os.fork() is incompatible with multithreaded code",),
)
def fork_after_jax(failure: Failure) -> Finding | None:
    if not failure.search(r"os\.fork\(\) was called\..*JAX is multithreaded", re.S):
        return None
    return Finding(
        what="A process was forked while JAX was running in this one.",
        why="A fork copies the memory but not the threads of JAX. The copy answers as long as it is lucky, and hangs "
        "when it computes something new with JAX.",
        fixes=_no_fork_fixes(failure),
        facts={},
    )


def _no_fork_fixes(failure: Failure) -> list[Fix]:
    call = failure.call("get_context", "set_start_method")
    code = None
    if call is not None and call.args:
        code = failure.rewrite(call.source, f"{call.function}('spawn')")
    return [
        Fix(
            "Map in worker processes that are started afresh",
            "from jaxpar_magic import parmap\nresult = parmap(function, inputs, strategy='process')",
        ),
        Fix(
            "Or start processes with spawn (the function must then be in a module)",
            code or "import multiprocessing\npool = multiprocessing.get_context('spawn').Pool()",
        ),
        Fix(
            "Or use no processes: map a function of JAX over the devices",
            "from jaxpar_magic import parmap\nresult = parmap(function, inputs)",
        ),
    ]


@rule("JPX1503", "devices-cannot-be-pickled", types=("TypeError",), clues=("pickle",), anywhere=True)
def devices_cannot_be_pickled(failure: Failure) -> Finding | None:
    match = failure.search(r"cannot pickle '((?:jaxlib\.[\w.]+\.)?(?:\w*Device|Client|Mesh|NamedSharding))' object")
    if match is None:
        return None
    bare = "." not in match.group(1)
    call = _pool_call(failure)
    _, inputs = _sent(call)
    used = [v for v in failure.variables.values() if v.uses_jax and v.type != "module"]
    if bare and failure.live and failure.environment.jax is None:
        return None
    if bare and not failure.live and not re.search(r"\bjax", " ".join(f.source or f.file for f in failure.frames)):
        return None
    mesh = next((v for v in used if v.axes), None)
    held = f"{mesh.name} ({mesh.value})" if mesh is not None else "what is to be pickled"
    axes = mesh.axes if mesh is not None else next(iter(failure.meshes.values()), {})
    shape = f"({', '.join(str(n) for n in axes.values())},)" if axes else f"({failure.devices or 4},)"
    names = f"({', '.join(repr(a) for a in axes)},)" if axes else "('i',)"
    return Finding(
        what=f"{held} holds devices of JAX (type {match.group(1).rsplit('.', 1)[-1]}), and those cannot be pickled.",
        why="A device belongs to the process that started it. A mesh, a sharding or a jitted object that holds devices "
        "cannot be saved or sent; it can be made again from its shape and names.",
        fixes=[
            Fix(
                "Save the shape and the axis names, and make the mesh again where it is needed",
                f"saved = {{'shape': {shape}, 'axis_names': {names}}}\n"
                "mesh = jax.make_mesh(saved['shape'], saved['axis_names'])",
            )
        ],
        facts={"type": match.group(1), "mesh": mesh.name if mesh is not None else None, "inputs": inputs},
    )


@rule(
    "JPX1504",
    "result-cannot-be-sent-back",
    types=("WorkerError",),
    clues=("cannot be sent back from its worker process",),
)
def result_cannot_be_sent_back(failure: Failure) -> Finding | None:
    match = failure.search(
        r"The result of item (\d+) cannot be sent back from its worker process: ([^\n]*?)\.?(?:\n|$)"
    )
    if match is None:
        return None
    call = failure.call("parmap")
    plain = "def function(x):\n    return list(values)        # a list in place of a generator"
    here = "from jaxpar_magic import parmap\nresult = parmap(function, inputs, strategy='serial')"
    if call is not None and call.args:
        here = failure.rewrite(call.source, call.changed(strategy="'serial'")) or here
        if "generator" in match.group(2):
            f = call.args[0] if call.args[0].isidentifier() else f"({call.args[0]})"
            listed = call.source.replace(call.args[0], f"lambda *args: list({f}(*args))", 1)
            plain = failure.rewrite(call.source, listed) or plain
    return Finding(
        what=f"The result of item {match.group(1)} cannot be sent back from its worker process: {match.group(2)}.",
        why="A worker process sends its results back as a copy. A generator, an open file, a lambda or a lock cannot "
        "be copied to another process.",
        fixes=[
            Fix(
                "Return plain data: numbers, arrays, strings, lists, dicts",
                plain,
            ),
            Fix(
                "Or stay in this process, one item after the other: there the result may be anything",
                here,
            ),
        ],
        facts={"item": int(match.group(1)), "reason": match.group(2)},
    )


@rule("JPX1505", "forked-worker-hangs", types=("TimeoutError",), anywhere=True)
def forked_worker_hangs(failure: Failure) -> Finding | None:
    # no message: a pool of forked processes, a function that uses JAX, and JAX running in this process
    if failure.type_name != "multiprocessing.context.TimeoutError" or failure.devices is None:
        return None
    functions = [v for v in failure.variables.values() if v.type == "function" and v.uses_jax]
    if not functions:
        return None
    name = functions[0].value or functions[0].name
    return Finding(
        what=f"A worker process that computes {name} with JAX did not answer in time.",
        why="A forked process has JAX's memory but not its threads: it waits for ever for threads that are not there. "
        "(On Linux multiprocessing forks by default up to Python 3.13.)",
        fixes=_no_fork_fixes(failure),
        facts={"function": name},
        guess=True,
    )


@rule(
    "JPX1506",
    "process-inside-a-traced-function",
    types=("ConcretizationTypeError",),
    clues=("serialize/pickle a traced value",),
    priority=10,
)
def process_inside_a_traced_function(failure: Failure) -> Finding | None:
    function = failure.search(r"while tracing the function (\S+) at .*? for (\w+)\.")
    name, transform = (function.group(1), function.group(2)) if function is not None else ("the function", "jit")
    call = _pool_call(failure)
    sent = f" by {call.function}" if call is not None else ""
    work, _ = _sent(call)
    return Finding(
        what=f"Inside {name}, which JAX traces for {transform}, a traced value is to be pickled{sent}.",
        why="While JAX traces a function its values are stand-ins without numbers; another process can do nothing "
        "with them.",
        fixes=[
            Fix(
                "Do the parallel part with JAX, inside the function",
                f"results = jax.vmap({work or 'work'})(inputs)",
            ),
            Fix(
                f"Or take {transform} away and use processes outside",
                f"from jaxpar_magic import parmap\nresult = parmap({work or 'work'}, inputs, strategy='process')",
            ),
        ],
        facts={"function": name, "transformation": transform},
    )
