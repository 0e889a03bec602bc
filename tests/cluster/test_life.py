"""The life of a cluster: start, handshake, signals, lost engines, stop."""

from __future__ import annotations


def test_two_engines_are_ready(cluster):
    first, second = cluster.engines
    assert first.pid != second.pid
    assert cluster.here(first) and cluster.here(second)
    assert first.jax == second.jax
    assert cluster.client[:].apply_sync(len, "ab") == [2, 2]


def test_a_killed_engine_is_replaced(cluster):
    doomed, other = (engine.id for engine in cluster.engines)
    cluster.kill([doomed])
    assert [engine.id for engine in cluster.engines] == [other]
    assert cluster.lost == 1
    (new,) = cluster.restart_lost()
    assert [engine.id for engine in cluster.engines] == [other, new.id]
    assert new.devices == cluster.engines[0].devices
