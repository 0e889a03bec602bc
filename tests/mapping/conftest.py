"""Tests of maps run on three CPU devices in this process: more than one, and not a divisor of most lengths."""

import itertools

import jax
import pytest

from jaxpar_magic.mapping import checkpoint, monitor

jax.config.update("jax_num_cpu_devices", 3)


@pytest.fixture
def x64():
    """64-bit types on for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(autouse=True)
def nothing_left():
    checkpoint.drop()
    yield
    checkpoint.drop()


@pytest.fixture
def stop_after(monkeypatch):
    """Make a map stop as if interrupted when that many chunks are done."""
    advance = monitor.Monitor.advance

    def arm(chunks):
        count = itertools.count(1)

        def stopping(self, items, chunk):
            advance(self, items, chunk)
            if next(count) == chunks:
                monkeypatch.setattr(monitor.Monitor, "advance", advance)
                raise KeyboardInterrupt

        monkeypatch.setattr(monitor.Monitor, "advance", stopping)

    return arm
