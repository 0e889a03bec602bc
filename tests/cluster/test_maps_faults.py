"""What a map does when engines die, stop, or are interrupted. Functions kill their own engine, so nothing is timed."""

from __future__ import annotations

import _thread
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpar_magic import cluster as clusters
from jaxpar_magic import last_report, parmap
from jaxpar_magic.cluster import crew, maps
from jaxpar_magic.errors import ClusterError, MapTimeout, WorkerError
from jaxpar_magic.mapping import api
from jaxpar_magic.mapping.options import MapOptions

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::jaxpar_magic.errors.JaxparWarning"),
]

XS = np.arange(24, dtype=np.float32)


def signals_itself(item, folder, number, times=1):
    """A traced function whose engine gets a signal at an item, so many times."""

    def look(x):
        if x == item:
            for k in range(times):
                try:
                    Path(folder, f"signal-{k}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), number)
                break
        return x

    return lambda x: jax.pure_callback(look, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="sequential") + 1


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Watched:
    """A display that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def update(self, progress):
        pass

    def say(self, line):
        self.lines.append(line)

    def close(self):
        pass


def run_watched(function, *inputs, **options):
    shown = Watched()
    done = api.run(function, inputs, {}, MapOptions(strategy="cluster", **options), display=lambda: shown, delay=0)
    return done, shown.lines


def test_an_engine_that_dies_costs_its_chunk_which_another_gets(tmp_path, capsys):
    done, lines = run_watched(signals_itself(9, tmp_path, signal.SIGKILL), XS, chunk_size=2)
    np.testing.assert_array_equal(done.value, XS + 1)
    (note,) = [n for n in done.report.notes if "was lost" in n]
    assert re.search(r"was lost with items? \d+.* under way, which another engine gets$", note)
    assert f"parmap: {note}" in lines + capsys.readouterr().out.splitlines()


def test_lost_engines_come_back_for_the_next_map(cluster, tmp_path):
    before = {e.pid for e in cluster.engines}
    cluster.kill([cluster.engines[0].id])
    np.testing.assert_array_equal(parmap(lambda x: x + 1, XS, strategy="cluster"), XS + 1)
    assert len(cluster.engines) == 2 and {e.pid for e in cluster.engines} != before
    assert any("1 lost engine started anew" in note for note in last_report().notes)


class DiesOnceThere:
    """Ends the first process that unpickles it."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return _die_or_give, (str(self.folder),)


def _die_or_give(folder):
    try:
        Path(folder, "died").touch(exist_ok=False)
    except FileExistsError:
        return 1.0
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_engine_that_dies_while_it_receives_the_function(tmp_path):
    dies = DiesOnceThere(tmp_path)

    def function(x):
        return x + (1.0 if dies else 0.0)

    np.testing.assert_array_equal(parmap(function, XS, strategy="cluster", chunk_size=2), XS + 1)
    assert any("was lost with" in note for note in last_report().notes)


def test_an_engine_that_dies_when_a_result_has_come(cluster, monkeypatch):
    take, killed = maps._ArraysRun.take, []

    def take_and_kill(self, piece, member, *rest):
        if not killed:
            killed.append(member.engine.id)
            cluster.kill(killed)
        return take(self, piece, member, *rest)

    monkeypatch.setattr(maps._ArraysRun, "take", take_and_kill)
    np.testing.assert_array_equal(parmap(lambda x: x * 3, XS, strategy="cluster", chunk_size=2), XS * 3)


def test_all_engines_lost_and_what_was_done_is_kept(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "MAX_REVIVALS", 0)
    fatal = signals_itself(20, tmp_path, signal.SIGKILL, times=2)
    options = {"strategy": "cluster", "chunk_size": 1, "checkpoint": tmp_path / "kept"}
    with pytest.raises(
        ClusterError, match=r"all engines of the cluster were lost, the last with item 20 under way"
    ) as e:
        parmap(fatal, XS, **options)
    assert any("are done and kept" in note for note in e.value.__notes__)
    np.testing.assert_array_equal(parmap(fatal, XS, **options, resume=True), XS + 1)
    assert last_report().resumed >= 15 and len(cluster.engines) == 2


def test_an_item_that_ends_every_engine_is_left_out_by_two_engines(cluster, tmp_path):
    fatal = signals_itself(13, tmp_path, signal.SIGKILL, times=99)
    got = parmap(fatal, XS, strategy="cluster", chunk_size=1, on_error="skip")
    np.testing.assert_array_equal(got, np.delete(XS, 13) + 1)
    assert last_report().skipped == [13]
    assert any("2 lost engines started anew" in note for note in last_report().notes)


def test_all_engines_end_just_before_they_get_something(cluster, monkeypatch):
    send_function, killed = crew.Crew._send_function, []

    def kill_and_send(self, *rest):
        if not killed:
            killed.extend(engine.id for engine in cluster.engines)
            cluster.kill(killed)
        send_function(self, *rest)

    monkeypatch.setattr(crew.Crew, "_send_function", kill_and_send)
    assert parmap(str.upper, ["a", "b"], strategy="cluster") == ["A", "B"]


def test_an_engine_that_goes_on_after_an_interrupt_is_left_alone_by_all_later_maps(tmp_path):
    def holds(name):
        if name == "held":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            Path(tmp_path, "started").touch()
            while not Path(tmp_path, "go").exists():
                time.sleep(0.01)
        return os.getpid()

    def interrupt():
        wait_for(lambda: Path(tmp_path, "started").exists(), "the item that is held")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            parmap(holds, ["held", "another"], strategy="cluster", chunk_size=1)
        for _ in range(2):
            assert len(set(parmap(holds, list("abcdef"), strategy="cluster", chunk_size=1, timeout=60))) == 1
    finally:
        Path(tmp_path, "go").touch()


def test_the_engines_that_come_back_are_counted(cluster):
    cluster.kill([engine.id for engine in cluster.engines])
    assert re.search(r"engines +2\b", str(parmap(lambda x: x, XS, strategy="cluster", show="plan")))
    assert parmap(str.upper, ["a", "b"], strategy="cluster") == ["A", "B"]
    assert last_report().parts == 2


def test_a_keyboard_interrupt_of_the_functions_own_is_its_error():
    def raises(x):
        raise KeyboardInterrupt("mine")

    with pytest.raises(WorkerError, match="Item 0 raised KeyboardInterrupt: mine"):
        parmap(raises, ["a", "b"], strategy="cluster")


def test_an_interrupt_keeps_what_is_done_and_leaves_engines_free(cluster, tmp_path):
    def waits(name):
        if name == "five" and not Path(tmp_path, "go").exists():
            Path(tmp_path, "started").touch()
            time.sleep(600)
        return len(name)

    names = ["one", "two", "three", "four", "five", "six"]

    def interrupt():
        wait_for(lambda: Path(tmp_path, "started").exists(), "the item that waits")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        parmap(waits, names, strategy="cluster", chunk_size=1)
    assert any("items are done and kept" in note for note in stopped.value.__notes__)
    np.testing.assert_array_equal(parmap(lambda x: x + 1, XS, strategy="cluster"), XS + 1)  # nobody sleeps any more
    Path(tmp_path, "go").touch()
    assert parmap(waits, names, strategy="cluster", resume=True).tolist() == [3, 3, 5, 4, 4, 3]
    assert last_report().resumed >= 1  # the other engine may have been slow


def test_an_interrupt_of_a_traced_map(tmp_path):
    def look(x):
        if x == 9 and not Path(tmp_path, "go").exists():
            Path(tmp_path, "started").touch()
            while not Path(tmp_path, "go").exists():  # no signal reaches it: it runs in a thread of XLA's
                time.sleep(0.01)
        return x

    def waits(x):
        return jax.pure_callback(look, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="sequential")

    def interrupt():
        wait_for(lambda: Path(tmp_path, "started").exists(), "the item that waits")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        parmap(waits, XS, strategy="cluster", chunk_size=2)
    Path(tmp_path, "go").touch()
    np.testing.assert_array_equal(parmap(waits, XS, strategy="cluster", resume=True), XS)
    assert last_report().resumed >= 2


def test_a_time_limit_ends_a_map_and_engines_are_free_again(tmp_path):
    def waits(name):
        if name == "c" and not Path(tmp_path, "go").exists():
            time.sleep(600)
        return name

    with pytest.raises(MapTimeout, match="stopped while running"):
        parmap(waits, list("abc"), strategy="cluster", chunk_size=1, timeout=3)
    Path(tmp_path, "go").touch()
    assert parmap(waits, list("abc"), strategy="cluster", resume=True) == list("abc")


def test_an_interrupt_of_somebody_elses_costs_nothing(tmp_path):
    def interrupts_itself(name):
        try:
            Path(tmp_path, "once").touch(exist_ok=False)
        except FileExistsError:
            return name
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)

    assert parmap(interrupts_itself, list("abcd"), strategy="cluster", chunk_size=1) == list("abcd")


def test_an_engine_that_is_stopped_is_noticed_and_given_up(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "STOPPED_TOLD", 0.2)
    monkeypatch.setattr(crew, "STOPPED_LOST", 5.0)
    done, lines = run_watched(signals_itself(9, tmp_path, signal.SIGSTOP), XS, chunk_size=2)
    np.testing.assert_array_equal(done.value, XS + 1)
    assert any("does not answer: its process" in line for line in lines)
    assert any("was lost with item" in note for note in done.report.notes)


@pytest.mark.slow
def test_a_cluster_that_another_notebook_stopped_ends_the_map(cluster, monkeypatch):
    """Engines and controller are gone, and nobody tells."""
    remains = cluster.launcher.remains
    file = Path(remains.folder, "security", f"ipcontroller-{remains.cluster_id}-client.json")
    monkeypatch.setattr(clusters, "_active", None)
    guest = clusters.connect(file=file)
    monkeypatch.undo()
    clusters.stop()
    monkeypatch.setattr(crew, "STOPPED_TOLD", 0.2)
    monkeypatch.setattr(clusters, "_active", guest)
    with pytest.raises(ClusterError, match="all engines of the cluster were lost"):
        parmap(str.upper, ["a", "b"], strategy="cluster", timeout=60)
    clusters.stop()


def test_a_cluster_that_is_stopped_ends_the_map(tmp_path):
    def waits(name):
        Path(tmp_path, "started").touch()
        time.sleep(600)

    def stop():
        wait_for(lambda: Path(tmp_path, "started").exists(), "the item that waits")
        clusters.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(ClusterError, match="stopped while a map ran"):
        parmap(waits, list("ab"), strategy="cluster", chunk_size=1)
    stopper.join()


# -------------------------------------------------------------------- four engines; a second notebook


@pytest.fixture
def four_engines():
    """In place of the two."""
    clusters.stop()
    clusters.start(4)
    yield clusters.current()
    clusters.stop()


@pytest.mark.slow
def test_a_chunk_that_ends_three_engines_is_given_up_and_named(four_engines, tmp_path):
    fatal = signals_itself(13, tmp_path, signal.SIGKILL, times=99)
    with pytest.raises(WorkerError, match=r"item 13: 3 engines ended with it under way"):
        parmap(fatal, XS, strategy="cluster", chunk_size=1)
    assert len(four_engines.engines) == 1
    got = parmap(fatal, XS, strategy="cluster", chunk_size=1, on_error="skip")
    np.testing.assert_array_equal(got, np.delete(XS, 13) + 1)
    assert last_report().skipped == [13]


@pytest.mark.slow
def test_uneven_engines_share_by_what_they_can(four_engines, tmp_path):
    slow = four_engines.engines[0].pid

    def work(text):
        if os.getpid() == slow:
            while not Path(tmp_path, "others are done").exists():
                time.sleep(0.01)
        elif text == "39":
            Path(tmp_path, "others are done").touch()
        return os.getpid()

    pids = parmap(work, [str(i) for i in range(40)], strategy="cluster", chunk_size=1)
    assert 1 <= list(pids).count(slow) <= 2


@pytest.mark.slow
def test_two_notebooks_use_the_same_engines(cluster, tmp_path):
    code = f"""
        import numpy as np
        from pathlib import Path
        from jaxpar_magic import cluster, parmap
        cluster.connect(file={str(next(Path(cluster._remains.folder).rglob("ipcontroller*client.json")))!r})
        Path({str(tmp_path)!r}, "connected").touch()
        for k in range(20):
            xs = np.arange(500, dtype=np.float32) + k
            assert np.array_equal(parmap(lambda x: x * k, xs, strategy="cluster", chunk_size=50), xs * k)
        print("all right")
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: Path(tmp_path, "connected").exists() or other.poll() is not None, "the other notebook")
    while other.poll() is None:
        np.testing.assert_array_equal(parmap(lambda x: x - 1, XS, strategy="cluster", chunk_size=2), XS - 1)
    assert other.communicate()[0].strip() == "all right"
