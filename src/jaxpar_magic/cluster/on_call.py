"""The door to what runs on an engine: light, so that an interrupt never meets an engine in the middle of an import."""

from __future__ import annotations

import pickle
import signal
from typing import Any


def call(name: str, *arguments: Any) -> tuple:
    """What `engine_map` answers. Its imports, once done half, could not be repeated: an interrupt waits for them."""
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            from . import engine_map
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except KeyboardInterrupt:
        return (pickle.dumps(("interrupted",)),)
    return getattr(engine_map, name)(*arguments)
