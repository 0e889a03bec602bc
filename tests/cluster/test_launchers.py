"""Engines started by mpirun, and by Slurm: one node of it, set up here in a folder. `make launchers`."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxpar_magic.cluster
from jaxpar_magic import parmap
from jaxpar_magic.errors import ClusterError

pytestmark = [pytest.mark.slow, pytest.mark.launcher]

LONG = 120
NEEDED = {"mpi": ["mpirun"], "slurm": ["sbatch", "srun", "slurmctld", "slurmd", "munged"]}


@pytest.fixture
def mpi(monkeypatch):
    missing("mpi")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):  # in containers
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")  # whatever the number of cores
    tried = subprocess.run(["mpirun", "-n", "2", "true"], capture_output=True, text=True, timeout=LONG)
    if tried.returncode:
        pytest.skip(f"mpirun starts nothing here: {tried.stderr[-2000:]}")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm of one node, as this user, in a folder of its own."""
    missing("slurm")
    folder = tmp_path_factory.mktemp("slurm")
    for path in (folder, *folder.parents):  # munge refuses a socket below a folder that others cannot enter
        if path.stat().st_uid == os.geteuid() and path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o711)
    user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().partition(".")[0]
    (folder / "munge.key").write_bytes(secrets.token_bytes(256))
    (folder / "munge.key").chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(f"""
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP
""")
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    daemons = []
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    try:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            log = (folder / f"{command[0]}.out").open("w")
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            if command is munge:
                skip_unless((folder / "munge.sock").exists, daemons, folder)
        skip_unless(lambda: "idle" in said(["sinfo", "-h", "-o", "%T"]), daemons, folder)
        yield
    finally:
        patch.undo()
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()


def missing(launcher: str) -> None:
    """Skip where the launcher is not installed; `make launchers` sets a variable that forbids it."""
    absent = [name for name in NEEDED[launcher] if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent and not os.environ.get("LAUNCHERS_MUST_RUN"):
        pytest.skip(f"no {', '.join(absent)}")
    assert not absent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG).stdout


def skip_unless(condition, daemons: list[subprocess.Popen], folder: Path) -> None:
    """Wait until Slurm has come so far; skip where it cannot: what a container allows is not our doing."""
    deadline = time.monotonic() + LONG
    while not condition():
        ended = [daemon.args[0] for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = {path.stem: path.read_text()[-2000:] for path in folder.glob("*.out")}
            pytest.skip(f"Slurm does not start here ({', '.join(ended) or 'no idle node'}): {logs}")
        time.sleep(0.1)


@pytest.fixture(params=["mpi", "slurm"])
def launched(request, tmp_path, monkeypatch):
    """A cluster of two engines, started by each launcher in a folder that stays empty."""
    request.getfixturevalue(request.param)
    monkeypatch.chdir(tmp_path)
    running = jaxpar_magic.cluster.start(2, launcher=request.param, timeout=LONG)
    try:
        yield running
    finally:
        jaxpar_magic.cluster.stop()
    assert not list(jaxpar_magic.cluster.ending.processes(running.launcher.remains.cluster_id))
    assert not os.path.exists(running.launcher.remains.folder)
    assert list(tmp_path.iterdir()) == []


def square(x):
    return x * x


def test_maps_run_and_a_dead_engine_is_replaced(launched):
    assert len(launched.engines) == 2
    xs = np.arange(10.0, dtype=np.float32)
    np.testing.assert_allclose(parmap(square, xs, strategy="cluster"), xs**2)
    launched.kill([launched.engines[0].id])
    launched.restart_lost()
    assert len(launched.engines) == 2
    assert sum(engine.devices for engine in launched.engines) >= 2
    np.testing.assert_allclose(parmap(square, xs, strategy="cluster"), xs**2)


def share_of_all(x):
    return x / jax.lax.psum(x, "items")


def test_spmd_programs_run(launched):
    xs = np.arange(1, 9, dtype=np.float32)
    np.testing.assert_allclose(parmap(share_of_all, xs, strategy="cluster", spmd=True), xs / xs.sum(), rtol=1e-6)


def test_spmd_programs_that_lose_an_engine(launched, while_running):
    def endless(x):
        return jax.lax.while_loop(lambda c: c >= 0, lambda c: jax.lax.pmax(c, "items"), x)

    test_spmd_programs_run(launched)
    engine = launched.engines[1]
    while_running(lambda: launched.kill([engine.id]))
    with pytest.raises(ClusterError, match="ended during an SPMD program"):
        parmap(endless, np.ones(5, np.float32), strategy="cluster", spmd=True)
    test_spmd_programs_run(launched)
