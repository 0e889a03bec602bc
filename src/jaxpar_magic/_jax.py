"""The one module that knows JAX versions and JAX's private names.

Nothing here imports jax at module level: every function imports it when called, or reads `sys.modules`.
Each private name has its reason, the versions it is for, and a test in tests/test_jax_private.py that
fails the day it goes.
"""

from __future__ import annotations

import sys
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
