"""A running cluster: who is there, who may reach it, signals, lost engines."""

from __future__ import annotations

import dataclasses
import os
import stat
import time

import ipyparallel
import psutil
import pytest
import traitlets.log
from conftest import run_python

import jaxpar_magic.cluster
from jaxpar_magic.cluster import launch
from jaxpar_magic.cluster.ending import processes
from jaxpar_magic.cluster.engines import notebook_versions, refuse_mixed
from jaxpar_magic.cluster.report import Status
from jaxpar_magic.errors import ClusterError, OptionError
from jaxpar_magic.render import html

LONG = 120


def wait_for(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sleep_after_touching(path):
    """Runs on an engine until it is interrupted."""
    import pathlib
    import time

    pathlib.Path(path).touch()
    time.sleep(600)


def test_two_engines_are_ready(cluster):
    first, second = cluster.engines
    assert first.pid != second.pid
    assert cluster.here(first) and cluster.here(second)
    assert (first.jax, first.python) == (notebook_versions()["jax"], notebook_versions()["python"])
    assert cluster.client[:].apply_sync(os.getcwd) == [os.getcwd()] * 2  # modules of the notebook's folder import


def test_connecting_does_not_warn_of_missing_signatures_which_encryption_replaces(cluster, caplog):
    traitlets.log.get_logger().addHandler(caplog.handler)
    try:
        client = launch.connected(str(cluster.engine_file).replace("-engine.json", "-client.json"), 30)
        client.close()
    finally:
        traitlets.log.get_logger().removeHandler(caplog.handler)
    assert "signing" not in caplog.text


def test_importing_it_is_light_and_the_missing_package_is_named():
    code = """
        import sys
        sys.modules["ipyparallel"] = None  # as if it were not installed
        import jaxpar_magic
        from jaxpar_magic.errors import ClusterError
        before = set(sys.modules)
        jaxpar_magic.cluster.status()
        print(sorted({"jax", "numpy", "zmq", "psutil", "rich"} & set(sys.modules)))
        for function in (jaxpar_magic.cluster.start, jaxpar_magic.cluster.connect):
            try:
                function()
            except ClusterError as error:
                print(error)
    """
    imported, *lines = run_python(code).stdout.splitlines()
    assert imported == "[]"
    assert lines == ["clusters need ipyparallel.", 'Next: pip install "jaxpar-magic[cluster]"'] * 2


# --- who may reach it ---------------------------------------------------------------------------------------


def test_its_sockets_listen_on_loopback_only(cluster):
    listening = [
        connection.laddr.ip
        for process in processes(cluster.launcher.remains.cluster_id)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 8, "controller and nannies listen"
    assert set(listening) == {"127.0.0.1"}


def test_its_files_are_private_and_its_traffic_encrypted(cluster):
    remains = cluster.launcher.remains
    assert stat.S_IMODE(os.stat(remains.folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(remains.shared).st_mode) == 0o700
    keys = list(os.scandir(os.path.join(remains.folder, "security")))
    connection_files = [entry for entry in keys if entry.name.startswith("ipcontroller")]
    assert len(connection_files) == 2
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in connection_files} == {0o600}
    assert cluster.client.curve_serverkey, "CurveZMQ"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"engines": 0}, "engines=0"),
        ({"engines": True}, "engines=True"),
        ({"engines": 2.0}, "engines=2.0"),
        ({"devices_per_engine": 0}, "devices_per_engine=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"address": "203.0.113.7"}, "address='203.0.113.7'"),
    ],
)
def test_a_bad_argument_starts_nothing(monkeypatch, arguments, said):
    monkeypatch.setattr(jaxpar_magic.cluster, "_active", None)
    with pytest.raises(OptionError, match=said.replace(".", r"\.")):
        jaxpar_magic.cluster.start(**arguments)


def test_unknown_launchers_and_profiles_are_refused_with_the_nearest(monkeypatch, tmp_path):
    monkeypatch.setattr(jaxpar_magic.cluster, "_active", None)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "profile_work").mkdir()
    with pytest.raises(ClusterError, match="Did you mean 'slurm'"):
        jaxpar_magic.cluster.start(launcher="slrum")
    with pytest.raises(ClusterError, match="Did you mean 'work'"):
        jaxpar_magic.cluster.start(profile="wrok")
    with pytest.raises(ClusterError, match="no cluster of"):
        jaxpar_magic.cluster.connect()
    with pytest.raises(ClusterError, match="no such file"):
        jaxpar_magic.cluster.connect(file=tmp_path / "none.json")
    assert [path.name for path in tmp_path.iterdir()] == ["profile_work"]


def test_a_second_cluster_of_the_same_notebook_is_refused(cluster):
    with pytest.raises(ClusterError, match=r"already\.\nNext: %jaxcluster stop"):
        jaxpar_magic.cluster.start(2)
    assert jaxpar_magic.cluster.current() is cluster


# --- versions -----------------------------------------------------------------------------------------------


def test_versions_that_differ_are_named_with_who_has_them():
    own = notebook_versions()
    other = own | {"jax": "0.1.0", "python": "3.9.1"}
    refuse_mixed({0: own, 1: own | {"numpy": "0.1", "python": own["python"].rpartition(".")[0] + ".99"}})
    with pytest.raises(ClusterError) as caught:
        refuse_mixed({0: own, 1: other, 2: other, 3: own | {"jaxpar_magic": None}})
    lines = [line.split() for line in str(caught.value).splitlines()[1:-1]]
    assert lines == [
        ["python", "notebook", f"{own['python'].rpartition('.')[0]},", "engines", "1,", "2", "3.9"],
        ["jax", "notebook", f"{own['jax']},", "engines", "1,", "2", "0.1.0"],
        ["jaxpar_magic", "notebook", f"{own['jaxpar_magic']},", "engine", "3", "none"],
    ]


# --- signals and deaths -------------------------------------------------------------------------------------


def test_an_interrupt_reaches_what_runs_and_nothing_else(cluster, tmp_path):
    busy, idle = (engine.id for engine in cluster.engines)
    result = cluster.client[busy].apply_async(sleep_after_touching, str(tmp_path / "runs"))
    wait_for((tmp_path / "runs").exists)
    assert cluster.look(timeout=0.5)[0].busy
    assert "busy" in str(Status.of(cluster, look=False))
    cluster.interrupt([busy, idle])
    with pytest.raises(ipyparallel.RemoteError, match="KeyboardInterrupt"):
        result.get(LONG)
    assert cluster.client[:].apply_sync(len, "ab") == [2, 2]
    assert [engine.busy for engine in cluster.look(LONG)] == [False, False]


def test_signals_reach_engines_of_other_machines(cluster, monkeypatch, tmp_path):
    """By ipyparallel's nanny: their pids mean nothing here."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a pid of another machine"))
    engine = cluster.engines[0]
    away = dataclasses.replace(engine, at_home=False)
    monkeypatch.setitem(cluster._known, engine.id, away)
    result = cluster.client[engine.id].apply_async(sleep_after_touching, str(tmp_path / "runs"))
    wait_for((tmp_path / "runs").exists)
    cluster.interrupt([engine.id])
    with pytest.raises(ipyparallel.RemoteError, match="KeyboardInterrupt"):
        result.get(LONG)


def test_a_killed_engine_is_replaced_and_its_share_with_it(cluster):
    doomed, other = (engine.id for engine in cluster.engines)
    cluster.kill([doomed])
    assert [engine.id for engine in cluster.engines] == [other]
    assert cluster.lost == 1
    status = jaxpar_magic.cluster.status()
    assert "1 engine ended since the start; the next map starts others" in str(status)
    assert "others are started where it was started" in str(dataclasses.replace(status, owned=False))
    (new,) = cluster.restart_lost()
    assert [engine.id for engine in cluster.engines] == sorted([other, new.id])
    assert new.devices == cluster.engines[0].devices
    assert cluster.lost == 0
    assert cluster.restart_lost() == []


# --- status -------------------------------------------------------------------------------------------------


def test_status_shows_each_engine_and_starts_no_backend(cluster):
    status = jaxpar_magic.cluster.status()
    assert status.running and status.owned
    text = str(status)
    for engine in cluster.engines:
        assert engine.host in text
    assert f"JAX {notebook_versions()['jax']}" in text
    assert html.render(status.describe()).count("<tr") == 3
    fresh = [engine.platform for engine in status.engines]
    jaxpar_magic.cluster.status()
    assert [engine.platform for engine in jaxpar_magic.cluster.status().engines] == fresh


def test_without_a_cluster_it_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(jaxpar_magic.cluster, "_active", None)
    status = jaxpar_magic.cluster.status()
    assert not status.running
    assert "%jaxcluster start" in str(status)
    assert "No cluster" in repr(jaxpar_magic.cluster.stop())
    with pytest.raises(ClusterError, match="no cluster is running"):
        jaxpar_magic.cluster.current()
