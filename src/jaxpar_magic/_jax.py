"""The one module that knows JAX versions and JAX's private names.

Nothing here imports jax at module level: every function imports it when called, or reads `sys.modules`.
Each private name has its reason, the versions it is for, and a test in tests/test_jax_private.py that
fails the day it goes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


def imported_jax() -> Any | None:
    """The jax module if the user (or we) imported it whole, else None. Never imports it."""
    module = sys.modules.get("jax")
    # While `import jax` runs, or after it failed, the module is there without its names.
    return module if module is not None and hasattr(module, "jit") else None


def jax_version() -> tuple[int, ...]:
    """JAX's version as a tuple of ints, e.g. (0, 10, 2), read without importing jax."""
    module = imported_jax()
    if module is not None:
        text = module.__version__
    else:
        from importlib.metadata import version

        text = version("jax")
    numbers = []
    for part in text.split(".")[:4]:
        digits = "".join(c for c in part if c.isdigit())
        if not digits or not part.isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


# -------------------------------------------------------------------- programs (used by mapping)


def with_constants_as_arguments(closed: Any, minimum_bytes: int) -> tuple[Any, list[Any]]:
    """A function of (large constants, inputs) from a closed jaxpr, and those constants.

    Constants of at least `minimum_bytes` become arguments: the program's text then does not hold their values,
    compiling does not fold them, and one program serves other values of the same shape. Small ones stay inside.

    Uses `Jaxpr.replace`, which jax.extend exports with the class but does not document; 0.6.2 to 0.12.
    """
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    jaxpr = closed.jaxpr
    pairs = list(zip(jaxpr.constvars, closed.consts))
    large = [(v, c) for v, c in pairs if getattr(c, "nbytes", 0) >= minimum_bytes]
    small = [(v, c) for v, c in pairs if getattr(c, "nbytes", 0) < minimum_bytes]
    changed = jaxpr.replace(constvars=[v for v, _ in small], invars=[*(v for v, _ in large), *jaxpr.invars])
    return jaxpr_as_fun(ClosedJaxpr(changed, [c for _, c in small])), [c for _, c in large]


def equation_context(equation: Any) -> tuple[Any, ...]:
    """What a jaxpr's equation was traced under, besides its operands: to compare it with another's.

    `jax.extend.core` exports equations; their `ctx` is undocumented and has no equality. 0.6.2 to 0.12.
    """
    context = getattr(equation, "ctx", None)
    names = ("compute_type", "threefry_partitionable", "cur_abstract_mesh", "xla_metadata")
    return tuple(getattr(context, name, None) for name in names)


def ordered_effects(closed: Any) -> bool:
    """Whether a traced function has ordered effects (`ordered=True` callbacks): JAX runs those on one device only.

    The effect classes are private (`OrderedDebugEffect`, `OrderedIOEffect`); their names have been so since 0.4.
    """
    return any(type(effect).__name__.startswith("Ordered") for effect in closed.effects)


def registered_pytree(kind: type) -> tuple[Callable, Callable] | None:
    """(flatten, unflatten) with which a class is registered as a pytree, to register it in another process; or None.

    The registry itself flattens objects and tells nothing of classes. JAX 0.6 to 0.12 keep what was registered from
    Python in `_registry` beside it.
    """
    from jax._src import tree_util

    entry = tree_util._registry.get(kind)
    return None if entry is None else (entry.to_iter, entry.from_iter)


# --- devices ---------------------------------------------------------------------------------------------


def live_platforms() -> tuple[str, ...]:
    """Platforms whose backend runs, e.g. `("cpu",)`; empty before the first JAX operation.

    Never imports jax, never starts a backend, never waits.
    """
    # `jax.extend.backend.backends()` would start them. JAX 0.6 to 0.12 keep them in `_backends`;
    # `backends_are_initialized()` beside it gives no names and waits while another thread starts one.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return tuple(getattr(bridge, "_backends", ()))


def xla_flag_in_force(name: str) -> Any | None:
    """The value that XLA has for a flag, or None where it does not tell.

    XLA reads XLA_FLAGS once. Call it only while a backend runs: before, it would make XLA read them.
    """
    # No public name tells which flags XLA read. jaxlib 0.6 to 0.12: DebugOptions start from the flags.
    from jaxlib import xla_client

    options = xla_client.CompileOptions().executable_build_options.debug_options
    return getattr(options, name, None)


def active_mesh() -> Any | None:
    """The mesh that `jax.set_mesh` made current, or None."""
    from jax import sharding

    if hasattr(sharding, "get_mesh"):
        mesh = sharding.get_mesh()
    else:  # before JAX 0.7 `set_mesh` existed without its reader
        from jax._src.mesh import get_concrete_mesh

        mesh = get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


def global_default_device() -> Any | None:
    """What `jax.config.update("jax_default_device", …)` set: a device, a platform's name, or None."""
    # `jax.config.jax_default_device` gives the value of a surrounding `with jax.default_device(…)`
    # instead; writing that back would make it outlive its `with`. JAX 0.6 to 0.12.
    from jax._src import config

    return config.default_device.get_global()


def hold_backends() -> Callable[[], None]:
    """Keep the running backends; the function returned puts exactly them back.

    Starting a backend of the old size again would not do: arrays and meshes would belong to a third one.
    Call the function while no backend runs (after `clear_backends`).
    """
    # No public name sets the backends. JAX 0.6 to 0.12 keep the dict and the default one in these.
    from jax._src import xla_bridge

    backends, default = xla_bridge._backends, xla_bridge._default_backend

    def put_back() -> None:
        with xla_bridge._backend_lock:
            xla_bridge._backends, xla_bridge._default_backend = backends, default

    return put_back


def base_array(array: Any) -> Any:
    """The array of numbers under a PRNG key array (which `jax.live_arrays` lists); others as they are."""
    import jax

    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return array


def shard_views(array: Any) -> tuple[Any, ...]:
    """The arrays of one device each that were made when somebody looked at an array's shards.

    `jax.live_arrays` lists them beside the array whose memory they share.
    """
    # Asking for `addressable_shards` would make them. JAX 0.6 to 0.12 cache that property on the array.
    return tuple(shard.data for shard in getattr(array, "__dict__", {}).get("addressable_shards", ()))


def setting(name: str, default: Any = None) -> Any:
    """A JAX setting such as "jax_enable_x64" as it is in force here, context managers included."""
    import jax

    return getattr(jax.config, name, default)


def before_first_backend(function: Callable[[], None]) -> Callable[[], None]:
    """Call `function` once, just before JAX starts its CPU backend; the function returned takes that back.

    It is the last moment at which XLA_FLAGS can be mended, and there is no public hook for it. Imports
    jaxlib. JAX 0.6 to 0.12 call `jaxlib.xla_client.make_cpu_client` by its module, which then reads them.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # `import jax` does it before jaxlib: fewer log lines
    try:
        from jaxlib import xla_client
    finally:
        if level is None:
            del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    original = xla_client.make_cpu_client

    def take_back() -> None:
        if xla_client.make_cpu_client is guarded:
            xla_client.make_cpu_client = original

    def guarded(*args: Any, **kwargs: Any) -> Any:
        take_back()
        function()
        return original(*args, **kwargs)

    xla_client.make_cpu_client = guarded
    return take_back


def without_context_mesh() -> Any:
    """A context in which no mesh is set, for programs that bring their own (`jax.set_mesh` came with 0.7).

    A mesh that the user has set would be taken for theirs: "The context mesh should match the mesh passed to
    shard_map". An empty `Mesh` for `jax.set_mesh` is not documented to unset it, but does so up to 0.12.
    """
    import jax
    import numpy

    if not hasattr(jax, "set_mesh") or jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.set_mesh(jax.sharding.Mesh(numpy.empty((), dtype=object), ()))


def is_ready(array: Any) -> bool:
    """Whether the computation of an array has ended. `Array.is_ready` is there in all versions, undocumented."""
    return bool(array.is_ready())


# XLA's name, of all versions: tsl/platform/default/port.cc (DefaultThreadPoolSize) of the CPU client. A test counts
# the threads.
POOL_VARIABLE = "NPROC"


def cpu_pool_threads(cores: int, devices: int) -> int:
    """Threads of the pool that all CPU devices of a client share; `cores` are those that the process may use."""
    wanted = os.environ.get(POOL_VARIABLE, "")
    return max(int(wanted) if wanted.isdigit() and int(wanted) > 0 else cores, devices)


@contextlib.contextmanager
def collectives_listening_on(address: str) -> Iterator[None]:
    """While a backend of several processes starts: its CPU collectives (gloo) listen on this address of this machine.

    By themselves they listen where the machine's own name points: to the network although all processes are here, or
    to loopback although others wait for them elsewhere. There is no setting. JAX 0.6 to 0.12 call
    `jaxlib._jax.make_gloo_tcp_collectives` by its module; its parameter `hostname` JAX leaves out.
    """
    from jaxlib import _jax as module

    original = module.make_gloo_tcp_collectives
    module.make_gloo_tcp_collectives = functools.partial(original, hostname=address)
    try:
        yield
    finally:
        module.make_gloo_tcp_collectives = original
