"""Loading and unloading: everything that the extension puts into a shell, and its removal.

`load` records what it did; `unload` undoes exactly that. A test compares the shell before and after.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_ATTRIBUTE = "_jaxpar_magic_loaded"


class Loaded:
    """What one shell got from us, so that it can be taken back."""

    def __init__(self, shell: Any):
        self.shell = shell
        self._undo: list[Callable[[], None]] = []

    def add_magics(self, kind: type) -> Any:
        """Make an instance of a `Magics` class for this shell, register it and return it."""
        shell, manager = self.shell, self.shell.magics_manager
        configurables = list(shell.configurables)

        # `Magics` puts itself among the shell's configurables, and nothing in IPython ever takes it out.
        def forget() -> None:
            shell.configurables[:] = [c for c in shell.configurables if not isinstance(c, kind) or c in configurables]

        self._undo.append(forget)
        instance = kind(shell=shell)
        replaced = {table: dict(magics) for table, magics in manager.magics.items()}
        replaced_class = manager.registry.get(kind.__name__)
        manager.register(instance)

        def undo() -> None:
            for table, ours in instance.magics.items():
                for name, magic in ours.items():
                    if manager.magics[table].get(name) == magic:  # else somebody put another there since
                        _put_back(manager.magics[table], name, replaced[table].get(name))
            if manager.registry.get(kind.__name__) is instance:
                _put_back(manager.registry, kind.__name__, replaced_class)

        self._undo.append(undo)
        return instance

    def add_configurable(self, configurable: Any) -> None:
        """Make it known to `%config`."""
        configurables = self.shell.configurables
        configurables.append(configurable)

        def undo() -> None:
            configurables[:] = [c for c in configurables if c is not configurable]

        self._undo.append(undo)

    def add_callback(self, event: str, function: Callable[..., Any]) -> None:
        self.shell.events.register(event, function)

        def undo() -> None:
            try:
                self.shell.events.unregister(event, function)
            except ValueError:  # somebody reset the events meanwhile: then it is gone already
                pass

        self._undo.append(undo)

    def add_matcher(self, matcher: Callable[..., Any]) -> None:
        """Add a completion matcher, if the shell completes at all."""
        matchers = getattr(getattr(self.shell, "Completer", None), "custom_matchers", None)
        if matchers is None:
            return
        matchers.append(matcher)

        def undo() -> None:
            if matcher in matchers:
                matchers.remove(matcher)

        self._undo.append(undo)

    def add_undo(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()


def _put_back(table: dict[str, Any], name: str, before: Any) -> None:
    if before is None:
        del table[name]
    else:
        table[name] = before


def load(shell: Any) -> None:
    """Put the magics and the error hook into `shell`. A second call changes nothing."""
    if getattr(shell, _ATTRIBUTE, None) is not None:
        return
    from .completion import Completion
    from .jaxcluster import JaxClusterMagics
    from .jaxdevices import FlagsGuard, JaxDevicesMagics
    from .jaxexplain import ErrorHook, JaxExplainMagics
    from .parmap import ParmapMagics
    from .settings import JaxparMagics

    loaded = Loaded(shell)
    try:
        settings = JaxparMagics(shell)
        loaded.add_configurable(settings)
        loaded.add_magics(JaxDevicesMagics)
        loaded.add_magics(JaxClusterMagics)
        loaded.add_magics(ParmapMagics).settings = settings
        explain_magics = loaded.add_magics(JaxExplainMagics)
        explain_magics.settings = settings
        loaded.add_matcher(Completion(shell, explain_magics).matcher)
        guard = FlagsGuard()
        loaded.add_undo(lambda: guard.post_run_cell(None))  # the cell that unloads had its start, and no end
        loaded.add_callback("pre_run_cell", guard.pre_run_cell)
        loaded.add_callback("post_run_cell", guard.post_run_cell)
        guard.pre_run_cell(None)  # the rest of this cell may use JAX already
        hook = ErrorHook(shell, explain_magics)
        loaded.add_undo(hook.close)
        loaded.add_callback("post_run_cell", hook.post_run_cell)
    except BaseException:
        loaded.remove()
        raise
    setattr(shell, _ATTRIBUTE, loaded)


def unload(shell: Any) -> None:
    """Take everything back that `load` put in. Without a `load` it does nothing."""
    loaded = getattr(shell, _ATTRIBUTE, None)
    if loaded is None:
        return
    loaded.remove()
    delattr(shell, _ATTRIBUTE)
    workers = sys.modules.get("jaxpar_magic.mapping.workers")
    if workers is not None:
        workers.stop_workers()
    cluster = sys.modules.get("jaxpar_magic.cluster")
    if cluster is not None:
        cluster.stop()
