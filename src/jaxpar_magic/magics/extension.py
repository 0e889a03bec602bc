"""Loading and unloading: everything that the extension puts into a shell, and its removal.

`load` records what it did; `unload` undoes exactly that. A test compares the shell before and after.
"""

from __future__ import annotations

from typing import Any

_ATTRIBUTE = "_jaxpar_magic_loaded"


class Loaded:
    """What one shell got from us, so that it can be taken back."""

    def __init__(self, shell: Any):
        self.shell = shell
        self.magics: list[Any] = []
        self.shadowed: list[tuple[str, str, Any]] = []  # (kind, name, the magic of that name before)
        self.callbacks: list[tuple[str, Any]] = []
        self.matchers: list[Any] = []

    def add_magics(self, instance: Any) -> None:
        manager = self.shell.magics_manager
        for kind, names in instance.magics.items():
            for name in names:
                if name in manager.magics[kind]:
                    self.shadowed.append((kind, name, manager.magics[kind][name]))
        manager.register(instance)
        self.magics.append(instance)

    def add_callback(self, event: str, function: Any) -> None:
        self.shell.events.register(event, function)
        self.callbacks.append((event, function))

    def add_matcher(self, matcher: Any) -> None:
        matchers = getattr(getattr(self.shell, "Completer", None), "custom_matchers", None)
        if matchers is not None:
            matchers.append(matcher)
            self.matchers.append(matcher)

    def remove(self) -> None:
        shell = self.shell
        manager = shell.magics_manager
        for event, function in self.callbacks:
            try:
                shell.events.unregister(event, function)
            except ValueError:  # somebody reset the events meanwhile: then it is gone already
                pass
        for matcher in self.matchers:
            if matcher in shell.Completer.custom_matchers:
                shell.Completer.custom_matchers.remove(matcher)
        for instance in self.magics:
            for kind, names in instance.magics.items():
                for name in names:
                    current = manager.magics[kind].get(name)
                    if getattr(current, "__self__", None) is instance:
                        del manager.magics[kind][name]
            manager.registry.pop(type(instance).__name__, None)
            if instance in shell.configurables:
                shell.configurables.remove(instance)
        for kind, name, magic in self.shadowed:
            manager.magics[kind].setdefault(name, magic)


def load(shell: Any) -> None:
    """Put the magics and the error hook into `shell`. A second call changes nothing."""
    if getattr(shell, _ATTRIBUTE, None) is not None:
        return
    from .jaxdevices import JaxDevicesMagics
    from .jaxexplain import ErrorHook, JaxExplainMagics
    from .parmap import ParmapMagics

    loaded = Loaded(shell)
    explain_magics = JaxExplainMagics(shell=shell)
    for instance in (JaxDevicesMagics(shell=shell), ParmapMagics(shell=shell), explain_magics):
        loaded.add_magics(instance)
    hook = ErrorHook(shell, explain_magics)
    loaded.add_callback("post_run_cell", hook.post_run_cell)
    setattr(shell, _ATTRIBUTE, loaded)


def unload(shell: Any) -> None:
    """Take everything back that `load` put in. Without a `load` it does nothing."""
    loaded = getattr(shell, _ATTRIBUTE, None)
    if loaded is None:
        return
    loaded.remove()
    delattr(shell, _ATTRIBUTE)
