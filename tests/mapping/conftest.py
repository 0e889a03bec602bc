"""Tests of maps run on three CPU devices in this process: more than one, and not a divisor of most lengths."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 3)


@pytest.fixture
def x64():
    """64-bit types on for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
