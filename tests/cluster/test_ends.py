"""Nothing is left behind: on stop, when the notebook ends or is killed, when a start fails half way; and neighbours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import cell_errors, cell_text, run_notebook, run_python

import jaxpar_magic.cluster
from jaxpar_magic.cluster import launch
from jaxpar_magic.cluster.ending import processes
from jaxpar_magic.errors import ClusterError

LONG = 120

START = """
import json, os, time
from jaxpar_magic import cluster
running = cluster.start(2)
print(json.dumps(vars(running.launcher.remains)), flush=True)
"""
# A child that the notebook forked holds the guard's pipe open.
FORK = """
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
"""
WAIT = "time.sleep(600)\n"


@contextmanager
def notebook(code: str):
    """A Python process that runs `code`; killed at the end, if it still runs."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def nothing_is_left(remains: dict, seconds: float = LONG) -> None:
    """Waits: the guard needs a moment to see that the notebook is gone."""
    deadline = time.monotonic() + seconds
    while True:
        left = [process.pid for process in processes(remains["cluster_id"])]
        files = [name for name in ("folder", "shared") if os.path.exists(remains[name])]
        if not left and not files:
            return
        assert time.monotonic() < deadline, (left, files)
        time.sleep(0.05)


def clusters() -> set[Path]:
    return set(Path(os.environ["IPYTHONDIR"], "jaxpar_magic").glob("*"))


@pytest.fixture
def profile():
    """Makes an IPython profile with these lines in ipcluster_config.py; its name."""

    def make(lines: str) -> str:
        folder = Path(os.environ["IPYTHONDIR"], "profile_tried")
        (folder / "security").mkdir(parents=True, exist_ok=True)
        (folder / "ipcluster_config.py").write_text(f"import sys\nc = get_config()\n{lines}\n")
        return "tried"

    return make


@pytest.fixture
def nothing_new(monkeypatch):
    """The test starts a cluster in this process, beside that of other tests, and leaves no file of it."""
    monkeypatch.setattr(jaxpar_magic.cluster, "_active", None)
    make, made = launch.shared_folder, []
    monkeypatch.setattr(launch, "shared_folder", lambda: made.append(make()) or made[-1])
    before = clusters()
    yield
    jaxpar_magic.cluster.stop()
    assert clusters() <= before
    assert not any(os.path.exists(folder) for folder in made)
    profile = Path(os.environ["IPYTHONDIR"], "profile_tried")
    assert [path for folder in ("security", "log") for path in profile.glob(f"{folder}/*jaxpar*")] == []


# --- the notebook ends ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_when_a_script_ends_all_is_gone_at_once():
    remains = json.loads(run_python(START).stdout)
    nothing_is_left(remains, seconds=0)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="forks here for Linux alone")
def test_when_the_notebook_is_killed_all_ends_by_itself():
    with notebook(START + FORK + WAIT) as process:
        remains, child = json.loads(process.stdout.readline()), int(process.stdout.readline())
        try:
            assert len(list(processes(remains["cluster_id"]))) > 4
            process.kill()
            process.wait()
            nothing_is_left(remains)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_stop_in_a_notebook_and_unloading():
    book = run_notebook(
        [
            "%load_ext jaxpar_magic",
            "%jaxcluster start -n 2 --devices-per-engine 1",
            "print(' '.join(e.host for e in jaxpar_magic.cluster.active().engines))",
            "import jaxpar_magic\nold = jaxpar_magic.cluster.active().launcher.remains\n%jaxcluster stop",
            "%jaxcluster",
            "%jaxcluster start -q\nlater = jaxpar_magic.cluster.active().launcher.remains",
            "%unload_ext jaxpar_magic\nprint(jaxpar_magic.cluster.active(), get_ipython().find_line_magic('px'))",
            "import json; print(json.dumps(vars(old))); print(json.dumps(vars(later)))",
        ]
    )
    started, named, stopped, bare, again, unloaded, remains = book.cells[1:]
    assert "Cluster: 2 engines on this machine" in cell_text(started)
    (output,) = started.outputs
    assert output.data["text/html"].count("<tr") == 3
    assert cell_errors(named) == ["NameError"], "it puts no names into the notebook"
    assert "Stopped: 2 engines" in cell_text(stopped)
    assert "No cluster is running" in cell_text(bare)
    assert cell_text(again) == ""
    assert cell_text(unloaded).split() == ["None", "None"]
    for line in cell_text(remains).splitlines():
        nothing_is_left(json.loads(line))


# --- a start that fails ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_engines_that_die_at_start_are_quoted(profile, nothing_new):
    name = profile("c.LocalEngineSetLauncher.engine_cmd = [sys.executable, '-c', 'import sys; sys.exit(\"no luck\")']")
    with pytest.raises(ClusterError, match=r"of 2 engines ended while starting(.|\n)*no luck"):
        jaxpar_magic.cluster.start(2, profile=name)


@pytest.mark.slow
def test_engines_that_never_come_are_given_up(profile, nothing_new):
    name = profile("c.LocalEngineSetLauncher.engine_cmd = [sys.executable, '-c', 'import time; time.sleep(600)']")
    begun = time.monotonic()
    with pytest.raises(ClusterError, match=r"did not start within 5 s"):
        jaxpar_magic.cluster.start(2, profile=name, timeout=5)
    assert time.monotonic() - begun < LONG


@pytest.mark.slow
def test_more_engines_than_there_is_memory_for_are_refused(nothing_new, monkeypatch):
    monkeypatch.setattr(launch, "free_memory", lambda: 3 << 30)
    with pytest.raises(ClusterError, match=r"engines=1,000: this machine has memory for 20 at most"):
        jaxpar_magic.cluster.start(1000)


def test_a_home_that_cannot_be_written_to_is_named(nothing_new, monkeypatch, tmp_path):
    Path(tmp_path, "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path / "file"))
        with pytest.raises(ClusterError, match="cannot hold the cluster's files: Not a directory"):
            jaxpar_magic.cluster.start(2)


def test_a_missing_launcher_is_named(nothing_new, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="'sbatch' is not to be found"):
        jaxpar_magic.cluster.start(2, launcher="slurm")


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [("raise RuntimeError('no luck')", "no luck"), ("c.Cluster.engine_launcher_class = 'spoon'", "spoon")],
)
def test_settings_of_a_profile_that_fail_are_quoted(profile, nothing_new, lines, quoted):
    with pytest.raises(ClusterError, match=rf"the settings of the profile 'tried' cannot be used(.|\n)*{quoted}"):
        jaxpar_magic.cluster.start(2, profile=profile(lines))


@pytest.mark.slow
def test_engines_with_another_jax_are_refused(nothing_new, monkeypatch, tmp_path):
    (tmp_path / "jax-0.1.0.dist-info").mkdir()
    (tmp_path / "jax-0.1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"jax +notebook \S+, engines 0, 1 0\.1\.0"):
        jaxpar_magic.cluster.start(2)
    assert jaxpar_magic.cluster.active() is None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_notebook_that_ends_while_engines_start(profile, number):
    name = profile("c.LocalEngineSetLauncher.engine_cmd = [sys.executable, '-c', 'import time; time.sleep(600)']")
    folder = Path(os.environ["IPYTHONDIR"], "profile_tried")
    with notebook(f"from jaxpar_magic import cluster\ncluster.start(2, profile={name!r})") as process:
        deadline = time.monotonic() + LONG
        while not (found := list(folder.glob("security/ipcontroller-*-client.json"))):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        cluster_id = found[0].name.removeprefix("ipcontroller-").removesuffix("-client.json")
        assert list(processes(cluster_id))
        process.send_signal(number)
        _, said = process.communicate(timeout=LONG)
        assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    while list(processes(cluster_id)) or list(folder.glob(f"*/*{cluster_id}*")):
        assert time.monotonic() < deadline + LONG
        time.sleep(0.05)


# --- what engines get -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_engines_have_the_notebooks_settings_and_devices_of_their_own():
    done = run_python(
        """
        import jax
        jax.config.update("jax_enable_x64", True)
        from jaxpar_magic import cluster
        running = cluster.start(2, devices_per_engine=3, address="0.0.0.0")
        (before,) = {engine.devices for engine in running.engines}
        here = "(jax := __import__('jax')).device_count(), jax.numpy.ones(1).dtype.name, jax.config.jax_debug_nans"
        print(before, running.client[:].apply_sync(eval, here))
        print({(engine.devices, engine.platform, engine.x64) for engine in cluster.status().engines})
        print(running.notes)
        """,
        env={"JAX_DEBUG_NANS": "1"},
    )
    counts, seen, notes = done.stdout.splitlines()
    assert counts == "3 [(3, 'float64', True), (3, 'float64', True)]"
    assert seen == "{(3, 'cpu', True)}"
    assert "listens on 0.0.0.0" in notes and "encrypted" in notes


# --- neighbours -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_notebooks_beside_one_another(cluster):
    """Each with its own cluster; then one in the cluster of the other, which is said, and which it leaves alone."""
    own = cluster.launcher.remains
    file = os.path.join(own.folder, "security", f"cluster-{own.cluster_id}.json")
    done = run_python(
        f"""
        import os
        from jaxpar_magic import cluster
        from jaxpar_magic.errors import ClusterError
        running = cluster.start(2)
        print(sorted(engine.pid for engine in running.engines))
        try:
            cluster.connect()
        except ClusterError as error:
            print(error.problem)
        cluster.stop()
        guest = cluster.connect(file={file!r})
        print(sorted(engine.pid for engine in guest.engines))
        print(guest.notes)
        try:
            guest.start_engines(1)
        except ClusterError as error:
            print(error.problem)
        print(repr(cluster.stop()))
        """
    )
    beside, refused, guest, notes, cannot, left = done.stdout.splitlines()
    pids = sorted(engine.pid for engine in cluster.engines)
    assert not set(json.loads(beside)) & set(pids)
    assert "already" in refused
    assert json.loads(guest) == pids
    assert f"process {os.getpid()}" in notes
    assert "started elsewhere" in cannot
    assert "Disconnected: 2 engines" in left
    assert cluster.client[:].apply_sync(len, "ab") == [2, 2]


def test_a_file_of_a_cluster_that_has_ended(monkeypatch, cluster, tmp_path):
    remains = cluster.launcher.remains
    name = f"ipcontroller-{remains.cluster_id}-client.json"
    info = json.loads(Path(remains.folder, "security", name).read_text()) | {"registration": 1}
    (tmp_path / name).write_text(json.dumps(info))
    monkeypatch.setattr(jaxpar_magic.cluster, "_active", None)
    with pytest.raises(ClusterError, match="no cluster answers"):
        jaxpar_magic.cluster.connect(file=tmp_path / name, timeout=1)
