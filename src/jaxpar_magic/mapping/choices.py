"""Values that options of a map can have, in a module that imports no JAX: Tab and the settings read it, too."""

from __future__ import annotations

from .strategies import NAMES

STRATEGIES = ("auto", *NAMES)
REMAINDER = ("pad", "drop", "error")
ON_ERROR = ("raise", "skip")
CHECK = ("finite",)
SHOW = ("plan", "code", "jaxpr", "hlo", "sharding")
