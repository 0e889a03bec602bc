"""Memory that is not there: arrays too large for the host or the GPU, arrays given away by donation."""

from __future__ import annotations

import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed, product, sizes
from ._lines import with_argument
from .backend import cuda_fix

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_ITEM_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int4": 1, "complex64": 8, "complex128": 16}


def readable(count: int) -> str:
    """ "3.6 TiB" of a number of bytes."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"


def amount(number: str, unit: str = "") -> int:
    """Bytes of "7406166528", or of "4.00" with "G", "GiB", "MB"."""
    return int(float(number) * _BYTES[unit[:1].upper().replace("B", "")])


def _free_memory(failure: Failure) -> int | None:
    if not failure.live:
        return None
    from ...machine import free_memory  # deferred: reads /proc, for this rule alone

    return free_memory()


# -- out of memory ---------------------------------------------------------------------------------


def _asked(failure: Failure) -> int | None:
    for pattern in (
        r"[Oo]ut of memory(?: while trying to)? allocat(?:ing|e) (\d+)()",
        r"[Ff]ailed to allocate (?:request for )?([\d.]+) ?([KMGTP]?i?B)",
        r"Attempting to (?:allocate|reserve) ([\d.]+)([KMGTP])",
        r"trying to allocate ([\d.]+) ?([KMGTP]?i?B|bytes)",
        r"failed to allocate (?:[\d.]+[KMGTP]i?B? )?\((\d+) (bytes)\)",
        r"Used ([\d.]+)([KMGTP]) of",
    ):
        match = failure.search(pattern)
        if match is not None:
            return amount(match.group(1), "" if match.group(2) == "bytes" else match.group(2))
    return None


def _device(failure: Failure) -> str | None:
    """ "gpu", "tpu" or "cpu"; None if neither the message nor the process tells."""
    if failure.search(r"memory space hbm|_HBM|\bhbm\b|\bTPU\b"):
        return "tpu"
    if failure.search(r"while trying to allocate|BFC|bfc_allocator|device ordinal|\bcu(?:da|MemAlloc)|CUDA|\bGPU"):
        return "gpu"
    if failure.environment.platform is not None:
        return "gpu" if failure.environment.platform in ("cuda", "rocm") else failure.environment.platform
    return "cpu" if failure.search(r"Out of memory allocating \d+ bytes") else None


_CHUNKS = "The arrays of a computation, and those it makes on its way, must fit at the same time."


def _in_chunks(failure: Failure, ask: int | None, have: int | None) -> list[Fix]:
    """Ways to need less memory: fewer items at a time, of a size that would fit where that is known."""
    size = "64"
    note = ""
    if ask and have:
        parts = max(2, -(-2 * ask // max(have, 1)))
        note = f"  # a part may be at most 1/{parts} of all items"
    inner = failure.call("vmap")
    outer = next((c for f in failure.user_frames for c in f.calls if inner and c.function == inner.source), None)
    if inner is not None and outer is not None and len(outer.args) == 1 and inner.args and not inner.keywords:
        new = f"jax.lax.map({inner.args[0]}, {outer.args[0]}, batch_size={size})"
        code = failure.rewrite(outer.source, new)
        if code is not None:
            return [Fix("Vectorise a few items at a time instead of all", code + note)]
    return [
        Fix(
            "Work through the items in batches, one after the other, so that only one batch is in memory",
            f"result = jax.lax.map(function, items, batch_size={size}){note}",
        )
    ]


def _array(failure: Failure, ask: int | None) -> str | None:
    """The shape at the user's line that makes up `ask` bytes: "(1000000, 1000000) of 4 bytes each"."""
    call = failure.outer_call
    if ask is None or call is None:
        return None
    for text in (*call.args, *call.keywords.values()):
        shape = sizes(text.replace("_", ""))
        if re.fullmatch(r"[\[(]?[\d_, ]+[\])]?", text) and shape:
            for item in (4, 8, 2, 1, 16):
                if product(shape) * item == ask:
                    return f"{tuple(shape)}, {item} bytes each"
    return None


@rule(
    "JPX1202",
    "out-of-host-memory",
    types=("JaxRuntimeError", "ValueError"),
    clues=("ut of memory", "RESOURCE_EXHAUSTED"),
)
def out_of_host_memory(failure: Failure) -> Finding | None:
    if not failure.search(r"Out of memory allocating \d+ bytes") or _device(failure) != "cpu":
        return None
    ask, have = _asked(failure), _free_memory(failure)
    array = _array(failure, ask)
    what = f"JAX asked for {readable(ask or 0)} ({ask} bytes) of memory at once"
    if array is not None:
        what += f", for an array of shape {array}"
    if have is not None and ask is not None and have < ask:
        what += f"; {readable(have)} are free"
    fixes = _in_chunks(failure, ask, have)
    fixes.append(
        Fix(
            "Keep large data in numpy or in a file, and send parts of it to JAX",
            "for start in range(0, len(data), 10_000):\n    part = function(data[start : start + 10_000])",
        )
    )
    return Finding(
        what=what + ".",
        why=_CHUNKS + " Broadcasting two vectors of n items against each other (x[:, None] - x[None, :]), or a "
        "vmap over many items, makes arrays far larger than the inputs.",
        fixes=fixes,
        facts={"asked": ask, "free": have},
    )


@rule(
    "JPX1203",
    "out-of-device-memory",
    types=("JaxRuntimeError", "ValueError", "RuntimeError"),
    clues=(
        "RESOURCE_EXHAUSTED",
        "ut of memory",
        "OUT_OF_MEMORY",
        "Attempting to",
        "failed to allocate",
        "Ran out of memory",
    ),
)
def out_of_device_memory(failure: Failure) -> Finding | None:
    proof = failure.search(
        r"RESOURCE_EXHAUSTED: |CUDA_ERROR_OUT_OF_MEMORY|Ran out of memory in memory space|"
        r"XLA:TPU (?:compile permanent error|Ran out)|Allocator \(\w+\) ran out of memory"
    )
    device = _device(failure)
    if (
        proof is None
        or device == "cpu"
        or not failure.search(
            r"[Oo]ut of memory|[Ff]ailed to allocate|OUT_OF_MEMORY|Attempting to (?:allocate|reserve)|to allocate"
        )
    ):
        return None
    ask = _asked(failure)
    free = failure.search(r"There are ([\d.]+)([KMGTP]) free|of ([\d.]+)([KMGTP]) hbm")
    have = None
    if free is not None:
        have = amount(free.group(1) or free.group(3), free.group(2) or free.group(4))
    name = {"gpu": "GPU", "tpu": "TPU"}.get(device or "", "accelerator")
    what = f"The {name} has no room for what the program needs"
    if ask is not None:
        what = f"The {name} has no room for {readable(ask)} more" if have is None else what + f": {readable(ask)}"
    if have is not None:
        what += f", of {readable(have)} that it has"
    fixes = _in_chunks(failure, ask, have)
    fixes.append(
        Fix(
            "In a gradient, compute intermediate values again instead of keeping them",
            "gradient = jax.grad(jax.checkpoint(loss))",
        )
    )
    if name == "GPU":
        fixes.append(
            Fix(
                "Let JAX take memory as it needs it, if other processes use the GPU too (before importing jax)",
                'import os\nos.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"',
            )
        )
    return Finding(
        what=what + ".",
        why=_CHUNKS
        + (
            " JAX takes 75 % of a GPU's memory at its start, and other processes and notebooks on the same GPU "
            "hold what they took until they end."
            if name == "GPU"
            else ""
        ),
        fixes=fixes,
        facts={"asked": ask, "available": have, "device": device},
    )


@rule(
    "JPX1204",
    "gpu-libraries-without-memory",
    types=("JaxRuntimeError", "RuntimeError"),
    clues=(
        "cuDNN",
        "CUDNN",
        "cublas",
        "CUBLAS",
        "cusolver",
        "CUSOLVER",
        "DNN library",
        "cuSolver",
        "cusparse",
        "cudnn",
    ),
)
def gpu_libraries_without_memory(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|ALLOC_FAILED)|CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|"
        r"CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|ALLOC_FAILED)|DNN library initialization failed|"
        r"[Ff]ailed to create (?:cublas|cuBLAS|cudnn|cuDNN|cusolver) handle|"
        r"gpusolverDnCreate\(&handle\) failed: cuSolver internal error|"
        r"custom call 'xla\.gpu\.gemm' failed: cublas error|"
        r"Failed to determine best cudnn convolution algorithm|All algorithms tried for %cudnn-conv\S* failed|"
        r"DNN library is not found)"
    )
    if match is None:
        return None
    return Finding(
        what=f"A library of the GPU could not start ({match.group(1)}). Most often the GPU's memory is full.",
        why="JAX takes 75 % of the GPU's memory at its start, and cuDNN, cuBLAS and cuSOLVER need some beside "
        "that. If another process (a second notebook, TensorFlow, PyTorch) holds the rest, they cannot start. A "
        "library of another version than JAX was built with gives the same message.",
        fixes=[
            Fix("See who uses the GPU, and end what is no longer needed", "!nvidia-smi"),
            Fix(
                "Leave more room beside JAX (before importing jax, in a new process)",
                'import os\nos.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.5"',
            ),
            cuda_fix(failure, "Install JAX together with the libraries it was built with"),
        ],
        facts={"status": match.group(1)},
        guess=True,
    )


@rule("JPX1205", "killed-for-memory", clues=("Killed", "killed", "kernel appears to have died", "SIGKILL", "oom-kill"))
def killed_for_memory(failure: Failure) -> Finding | None:
    if failure.live or failure.types:
        return None
    oom = failure.search(r"(?i)oom-kill|out of memory: killed process|oom_reaper")
    killed = failure.search(r"(?m)^\s*Killed\s*$|signal 9\b|SIGKILL|\bexit code (?:-9|137)\b")
    if not oom and not killed:
        return None
    return Finding(
        what="The process was ended by the operating system, without a Python error. Most likely it used more "
        "memory than the machine (or its container) has.",
        why="When memory runs out, Linux ends the largest process. A vmap over many items holds the intermediate "
        "values of all items at once, which can be far more than inputs and results.",
        fixes=[
            *_in_chunks(failure, None, None),
            Fix(
                "Ask how much memory a compiled function needs, before it runs",
                "print(jax.jit(function).lower(inputs).compile().memory_analysis())",
            ),
        ],
        facts={"killed": True},
        guess=not oom,
    )


# -- donation --------------------------------------------------------------------------------------


def _given_away(failure: Failure, shape: tuple[int, ...] | None) -> str | None:
    """The name, at the user's line, of the array of that shape: an array or an attribute that is passed."""
    segment = failure.user.segment or failure.user.statement if failure.user is not None else None
    for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", segment or ""):
        variable = failure.variable(name)
        if variable is not None and variable.type == "ArrayImpl" and shape in (None, variable.shape):
            return name
    return None


def _donating(failure: Failure, name: str | None) -> tuple[str, Call] | None:
    """(result, call) of the statement that gave the array away, where one of the names at the line comes from it."""
    for result, text in failure.definitions.items():
        calls = failure.defining_calls(result)
        made = bool(calls) and text == f"{result} = {calls[0].source}" and not _is_jax(calls[0])
        if made and name and result != name and name in calls[0].args:
            return result, calls[0]
    return None


def _kept(failure: Failure, name: str | None) -> Fix:
    call = failure.outer_call
    donating = _donating(failure, name)
    if donating is not None:
        result, gave = donating
        return Fix(
            f"Make {name} anew, keep the result of {gave.function} under the same name, and use only that",
            _anew(failure, name) + f"{name} = {gave.source}\n{result} = {name}",
        )
    donated: str | None = name
    if call is not None and call.args and re.fullmatch(r"[A-Za-z_][\w.]*", call.args[0]) and not _is_jax(call):
        donated = donated or call.args[0]
        if donated in call.args:
            return Fix(
                f"Make {donated} anew, and at each call keep the result under the same name",
                _anew(failure, donated) + f"{donated} = {call.source}",
            )
    state = donated or "state"
    return Fix(
        f"Make {state} anew, and keep the result of the call that donates under the same name",
        _anew(failure, donated) + f"{state} = step({state})",
    )


def _with_copy(failure: Failure, name: str | None) -> str:
    call = failure.outer_call
    if call is not None and name and name in call.args:
        return with_argument(failure, call, name, f"{name}.copy()")
    donating = _donating(failure, name)
    if donating is not None:
        result, gave = donating
        arguments = ", ".join(f"{a}.copy()" if a == name else a for a in gave.args)
        again = failure.user.statement if failure.user is not None else None
        return f"{result} = {gave.function}({arguments})" + (f"\n{again}" if again else "")
    return f"step({name or 'state'}.copy())"


def _jitted(failure: Failure, more: str = "") -> str:
    """The definition of the jitted function without donation, where it is known."""
    call = failure.call("jit")
    name = next((n for n, text in failure.definitions.items() if call is not None and call.source in text), "step")
    if call is None or not call.args:
        return f"{name} = jax.jit(function{', ' + more if more else ''})"
    return f"{name} = " + call.changed(donate_argnums=more.partition("=")[2] or None, donate_argnames=None)


def _anew(failure: Failure, name: str | None) -> str:
    """The line that made the array, where it is known."""
    made = failure.definitions.get(name or "", "")
    return f"{made}\n" if re.match(rf"{re.escape(name or '')} = ", made) and "\n" not in made else ""


def _is_jax(call: Call) -> bool:
    return call.function.split(".")[0] in ("jnp", "jax", "np", "print", "lax", "float", "int", "str")


@rule(
    "JPX1201",
    "array-was-given-away",
    types=("RuntimeError", "ValueError"),
    clues=("Array has been deleted", "deleted or donated"),
)
def array_was_given_away(failure: Failure) -> Finding | None:
    gone = failure.search(r"Array has been deleted with shape=(\w+)\[([\d,]*)\]")
    passed = failure.search(
        r"[Ii]nvalid buffer passed(?: to Execute\(\) as argument (\d+))?.*[Bb]uffer has been deleted or donated"
        r"|[Bb]uffer has been deleted or donated|called on deleted or donated buffer"
    )
    if gone is None and passed is None:
        return None
    shape = sizes(gone.group(2)) if gone is not None else None
    name = _given_away(failure, shape)
    which = f"{name}, an array" if name else "An array"
    of = f" of type {gone.group(1)}[{gone.group(2)}]" if gone is not None else ""
    place = f" (argument {passed.group(1)} of the call)" if passed is not None and passed.group(1) else ""
    fixes = [
        _kept(failure, name),
        Fix(
            "Give the function a copy, if the old values are still needed",
            _anew(failure, name) + _with_copy(failure, name),
        ),
        Fix("Let the function donate nothing", _jitted(failure) + "  # without donate_argnums"),
    ]
    return Finding(
        what=f"{which}{of}{place} is used, but its memory is gone: it was donated to a jitted function earlier "
        "(donate_argnums or donate_argnames), or deleted.",
        why="donate_argnums lets a function write its result into the memory of its argument. After the call only "
        "the result exists; every name that still stands for the old array, also in a list or a dict, is unusable.",
        fixes=fixes,
        facts={"array": name, "shape": shape},
    )


@rule("JPX1206", "donated-buffer-not-used", types=("UserWarning",), clues=("donated buffers were not usable",))
def donated_buffer_not_used(failure: Failure) -> Finding | None:
    match = failure.search(r"Some donated buffers were not usable: (.*)")
    if match is None:
        return None
    arrays = [f"{kind}[{dims}]" for kind, dims in re.findall(r"ShapedArray\((\w+)\[([\d,]*)\]", match.group(1))]
    arrays = arrays or re.findall(r"\w+\[[\d,]*\]", match.group(1))
    noun = "argument" if len(arrays) == 1 else "arguments"
    return Finding(
        what=f"The donated {noun} {listed(arrays) or 'of the call'} could not be reused for a result: no result "
        "has the same shape and dtype. The memory is given up all the same.",
        why="Donation lets a result take over an argument's memory. That needs a result of exactly the same "
        "shape and dtype (and sharding); otherwise donating saves nothing.",
        fixes=[
            Fix(
                "Donate only what comes back in the same shape and dtype, such as the state of a step",
                _jitted(failure, "donate_argnums=0") + "  # function returns the new state first",
            ),
            Fix("Donate nothing", _jitted(failure)),
        ],
        facts={"arrays": tuple(arrays)},
    )


@rule(
    "JPX1207",
    "same-buffer-donated-twice",
    types=("JaxRuntimeError", "ValueError", "RuntimeError"),
    clues=(
        "donate the same buffer twice",
        "donate a buffer",
        "previously donated in the same call",
    ),
)
def same_buffer_donated_twice(failure: Failure) -> Finding | None:
    if not failure.search(
        r"[Aa]ttempt to (?:donate the same buffer twice in Execute|donate a buffer which is also used by the same call"
        r"|use a buffer that was previously donated in the same call)"
    ):
        return None
    call = failure.outer_call
    simple = [a for a in call.args if re.fullmatch(r"[A-Za-z_][\w.]*", a)] if call is not None else []
    twice = next((a for a in simple if simple.count(a) > 1), None)
    call = failure.outer_call
    names = [source for source in (call.args if call is not None else ()) if source.isidentifier()]
    name = twice or (names[0] if names else "state")
    code = f"{name}_copy = jax.tree.map(jnp.copy, {name})"
    return Finding(
        what=f"The same array{f' ({twice})' if twice else ''} reaches the call twice, and at least one of the "
        "arguments is donated.",
        why="A donated argument's memory is overwritten by a result, so no other argument, and no other leaf of "
        "the same argument, may be that very array. Two names for one array (ema = params) are one array.",
        fixes=[
            Fix("Give the call a copy for one of the two", code),
            Fix("Let the function donate nothing", _jitted(failure) + "  # without donate_argnums"),
        ],
        facts={"argument": twice},
    )


@rule("JPX1209", "array-size-overflows", clues=("overflow in static extent product", "dimension size overflow"))
def array_size_overflows(failure: Failure) -> Finding | None:
    match = failure.search(r"overflow in static extent product: dimensions=\[([\d, ]+)\]")
    if match is None:
        return None
    shape = sizes(match.group(1))
    return Finding(
        what=f"An array of shape {shape} was asked for. That is {product(shape):.2g} elements, more than any "
        "computer can hold, and JAX ends the process over it.",
        why="Sizes are counted in 64 bits. A shape this large nearly always comes from a number that was meant for "
        "something else, or from two long axes that were broadcast against each other.",
        fixes=[Fix("Look at the shape first, without making the array", "print(jax.eval_shape(function, inputs))")],
        facts={"shape": shape, "elements": product(shape)},
    )


@rule("JPX1210", "donated-argument-moved", types=("UserWarning",), clues=("Donated pmap argument required resharding",))
def donated_argument_moved(failure: Failure) -> Finding | None:
    return Finding(
        what="A donated argument of pmap did not lie on the devices as pmap needs it, so JAX made a copy first. "
        "For a moment both exist: twice the memory.",
        why="Donation saves memory if the argument already lies split over the devices, one item on each, as the "
        "results of an earlier pmap do.",
        fixes=[
            Fix(
                "Spread the argument over the devices once, before the loop",
                "mesh = jax.sharding.Mesh(jax.devices(), ('i',))\n"
                "state = jax.device_put(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('i')))",
            )
        ],
    )


@rule("JPX1208", "donate-argnums-out-of-range", types=("ValueError",), priority=20, clues=("donate_argn",))
def donate_argnums_out_of_range(failure: Failure) -> Finding | None:
    match = failure.search(
        r"[Jj]itted function has (donate_argn\w+)=(.+?), but only accepts (\d+) positional arguments?"
    )
    both = failure.search(
        r"static_argn\w+ and donate_argn\w+ cannot intersect(?:, static_argnums=|. Argument names )"
        r"(\{.*?\}|\(.*?\)|\d+)"
    )
    name = failure.search(r"[Jj]itted function has invalid argnames (\{.*?\}) in (donate_argnames)")
    call = failure.call("jit", "partial")
    if match is not None:
        count = int(match.group(3))
        what = f"{match.group(1)}={match.group(2)} names an argument that the function does not have: it takes "
        what += f"{counted(count, 'positional argument')}, numbered from 0."
        good = f"jax.jit(function, {match.group(1)}=0)"
        facts = {"given": match.group(2), "arguments": count}
    elif both is not None:
        what = f"An argument ({both.group(1)}) is named as static and as donated."
        good = "jax.jit(function, donate_argnums=0, static_argnums=1)"
        facts = {"given": both.group(1)}
    elif name is not None:
        what = f"donate_argnames has {name.group(1)}, which the function has no argument of that name for."
        good = "jax.jit(function, donate_argnames='state')"
        facts = {"given": name.group(1)}
    else:
        return None
    return Finding(
        what=what,
        why="donate_argnums counts the positional arguments from 0, donate_argnames names them. Only an array that "
        "the function takes as an ordinary (not static) argument can be donated.",
        fixes=[Fix("Name an argument that the function has", f"step = {good}")],
        facts={**facts, "call": call.source if call is not None else None},
    )
