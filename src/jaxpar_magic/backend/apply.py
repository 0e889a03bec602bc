"""Carry out a plan: all of it, or nothing.

Each step hands back what undoes it. When a later step fails, the earlier ones are undone.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import _jax, machine
from ..errors import DeviceError
from .plan import Configure, Plan, SetCount, SetVariable, Step
from .state import option

_COUNT = option("count")
_ATTEMPTS = 20

Undo = Callable[[], None]


def apply(plan: Plan) -> None:
    """Carry out `plan`. Raises DeviceError, and then everything is as it was before."""
    undo: list[Undo] = []
    try:
        for step in plan.steps:
            undo.append(_do(step))
    except BaseException as error:  # an interrupt must not leave half of it behind either
        for restore in reversed(undo):
            restore()
        if not isinstance(error, Exception):
            raise
        raise DeviceError(f"JAX refused: {type(error).__name__}: {error}. Everything is as it was before.") from error


def _do(step: Step) -> Undo:
    if isinstance(step, SetVariable):
        return _set_variable(step.name, step.value)
    if isinstance(step, Configure):
        return _configure(step.name, step.value)
    return _set_count(step)


def _set_variable(name: str, value: str) -> Undo:
    before = os.environ.get(name)
    os.environ[name] = value

    def undo() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    return undo


def _configure(name: str, value: Any) -> Undo:
    import jax

    before = jax.config.values[name]  # some options are no attributes of jax.config
    jax.config.update(name, value)
    if name == option("cache"):
        _forget_cache_decision()
    return lambda: jax.config.update(name, before)


def _forget_cache_decision() -> None:
    # JAX decides at its first compilation whether there is a cache, and then keeps to it.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def _set_count(step: SetCount) -> Undo:
    import jax

    if not step.reset:
        try:
            return _configure(_COUNT, step.count)
        except RuntimeError:
            if not _jax.live_platforms():
                raise
            # another thread has started the backend since we looked: then it is started anew
    before = jax.config.values[_COUNT]
    restart(step.count)
    return lambda: restart(before)


def restart(count: int) -> None:
    """Start the running CPU backend anew with `count` devices (-1: as XLA_FLAGS say, or one).

    Arrays of the old backend keep their values. On failure the old backend itself comes back.
    """
    import jax

    before = jax.config.values[_COUNT]
    default = _jax.global_default_device()
    put_back = _jax.hold_backends()
    with _platforms_kept():
        jax.effects_barrier()
        try:
            _start_anew(count)
            _rebind_default_device(default)
        except BaseException:
            _clear_and_configure(before)
            put_back()
            jax.config.update("jax_default_device", default)
            raise
        finally:
            # Without it, functions pmapped before silently go on using the old devices (JAX 0.6).
            jax.clear_caches()
    del put_back
    # The old backend's programs and caches are garbage now.
    gc.collect()
    machine.trim_memory()


def _start_anew(count: int) -> None:
    import jax

    _clear_and_configure(count)
    got = len(jax.devices("cpu"))
    if count >= 0 and got != count:
        raise RuntimeError(f"asked for {count} CPU devices, JAX started {got}")


def _clear_and_configure(count: int) -> None:
    import jax
    from jax.extend.backend import clear_backends

    for attempt in range(_ATTEMPTS):
        clear_backends()
        try:
            jax.config.update(_COUNT, count)
            return
        except RuntimeError:
            # A thread that uses JAX started the backend between the two calls.
            if attempt == _ATTEMPTS - 1 or not _jax.live_platforms():
                raise


@contextmanager
def _platforms_kept() -> Iterator[None]:
    """Only the platforms that run are started: no new probing for accelerators, no surprise GPU."""
    import jax

    before = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", ",".join(_jax.live_platforms()))
    try:
        yield
    finally:
        jax.config.update("jax_platforms", before)


def _rebind_default_device(device: Any) -> None:
    """A default device set by the user is one of the old ones: take the new one of that number."""
    import jax

    if isinstance(device, jax.Device):
        new = jax.devices(device.platform)
        jax.config.update("jax_default_device", new[min(device.id, len(new) - 1)])
