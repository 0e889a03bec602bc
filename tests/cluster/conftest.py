"""One cluster of two engines on this machine for all quick tests; each test finds both engines alive."""

from __future__ import annotations

import pytest

import jaxpar_magic.cluster


@pytest.fixture(scope="session")
def _two_engines():
    jaxpar_magic.cluster.start(2)
    yield
    jaxpar_magic.cluster.stop()


@pytest.fixture
def cluster(_two_engines):
    """The running `Cluster` of two engines with a device each. A test may kill engines, and stop and start it."""
    if jaxpar_magic.cluster.active() is None:
        jaxpar_magic.cluster.start(2)
    running = jaxpar_magic.cluster.current()
    running.restart_lost()
    assert len(running.engines) == 2
    return running
