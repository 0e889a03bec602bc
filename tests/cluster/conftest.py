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


@pytest.fixture
def while_running(monkeypatch):
    """Do something while an SPMD program runs on the engines: after so many looks at whether they have answered."""
    from jaxpar_magic.cluster import engine_spmd, mesh

    def arm(act, function=None, looks=10):
        original = mesh.ask_all
        function = function or engine_spmd.run

        def ask_all(cluster, engines, called, arguments, check, seconds=None):
            count = iter(range(10**9))

            def checked():
                check()
                if called is function and next(count) == looks:
                    monkeypatch.setattr(mesh, "ask_all", original)
                    act()

            return original(cluster, engines, called, arguments, checked, seconds)

        monkeypatch.setattr(mesh, "ask_all", ask_all)

    return arm
