"""Long runs: interrupts, time limits, killed processes, full disks and damaged files lose nothing that was finished."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_python

from jaxpar_magic import last_report, parmap
from jaxpar_magic.errors import CheckpointError, MapTimeout
from jaxpar_magic.mapping import monitor
from jaxpar_magic.mapping.parts import Followed, Started

XS = np.arange(60, dtype=np.float32)


def heavy(x):
    return jax.lax.fori_loop(0, 60_000, lambda i, c: jnp.sin(c) + x, x)


@pytest.fixture(scope="module")
def expected():
    return np.asarray(parmap(heavy, XS, strategy="map"))


@contextlib.contextmanager
def interrupted_after(seconds):
    """SIGINT to this process after that time, unless the block has ended by then."""
    ended = threading.Event()

    def send():
        if not ended.wait(seconds):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ------------------------------------------------------------------ interrupt and resume in memory


@pytest.mark.parametrize("strategy", ["map", "shard_map", "thread", "pmap"])
def test_an_interrupt_keeps_what_is_done(strategy, expected):
    parmap(heavy, XS, strategy=strategy, chunk_size=6)  # compiled: the interrupt then falls into the run
    seconds = last_report().run_seconds
    note = ""
    for _ in range(30):  # until one falls between the first chunk's end and the last one's
        try:
            with interrupted_after(seconds * random.uniform(0.2, 0.8)):
                parmap(heavy, XS, strategy=strategy, chunk_size=6)
        except KeyboardInterrupt as error:
            note = next(iter(getattr(error, "__notes__", [])), "")
        if note:
            break
    assert "items are done and kept; --resume goes on from there" in note
    done = int(note.split()[1])
    assert 0 < done <= 60
    out = parmap(heavy, XS, strategy="map", resume=True)  # by another strategy: the results are the same
    assert last_report().resumed == done
    np.testing.assert_array_equal(np.asarray(out), expected)


def test_resume_refuses_another_map(expected, stop_after):
    with pytest.raises(CheckpointError, match="no interrupted map is in memory"):
        parmap(heavy, XS, resume=True)
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        parmap(heavy, XS, strategy="map", chunk_size=3)
    with pytest.raises(CheckpointError, match="different: the function"):
        parmap(lambda x: heavy(x) + 1, XS, resume=True)
    with pytest.raises(CheckpointError, match="different: input x"):
        parmap(heavy, XS + 1, resume=True)
    with pytest.raises(CheckpointError, match=r"different: the number of items \(60, now 30\), input x"):
        parmap(heavy, XS[:30], resume=True)
    np.testing.assert_array_equal(np.asarray(parmap(heavy, XS, strategy="map", resume=True)), expected)
    with pytest.raises(CheckpointError, match="no interrupted map"):
        parmap(heavy, XS, resume=True)


def test_a_time_limit_names_the_phase_and_the_next_step():
    with pytest.raises(MapTimeout, match=r"timeout=0.01: stopped while running") as caught:
        parmap(heavy, XS, strategy="map", chunk_size=3, timeout=0.01)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ValueError, match="timeout=0: needs seconds"):
        parmap(heavy, XS, timeout=0)


def test_a_map_that_ends_only_item_by_item_does_not_hang():
    """In a process of its own: the computation that was given up goes on until the process ends."""
    code = textwrap.dedent("""
        import os
        import numpy as np, jax, jax.numpy as jnp
        from jaxpar_magic import parmap
        def f(x):  # under vmap both branches run, and 2, 3, 4 … never comes to 0
            down = lambda v: jax.lax.while_loop(lambda s: s != 0, lambda s: s - 1, v)
            up = lambda v: jax.lax.while_loop(lambda s: s != 0, lambda s: s + 1, v)
            return jax.lax.cond(x > 0, down, up, x)
        xs = np.float32([2.0, -2.0])
        print(parmap(f, xs, strategy="map").tolist(), flush=True)
        try:
            parmap(f, xs, strategy="vmap", timeout=1.0)
        except TimeoutError as error:
            print(error, flush=True)
        os._exit(0)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith("[0.0, 0.0]"), done.stderr
    assert "timeout=1: stopped while running" in done.stdout
    assert "map (one item at a time)" in done.stdout


# ------------------------------------------------------------------ checkpoint on disk


def test_a_checkpoint_holds_each_chunk_and_goes_on(tmp_path, expected, stop_after):
    folder = tmp_path / "run"
    stop_after(7)
    with pytest.raises(KeyboardInterrupt) as caught:
        parmap(heavy, XS, strategy="map", chunk_size=3, checkpoint=folder)
    files = sorted(folder.glob("items-*.chunk"))
    assert len(files) == 7
    assert "parmap: 21 of 60 items are done and kept" in caught.value.__notes__[-1]
    with pytest.raises(CheckpointError, match="holds finished chunks of this very map"):
        parmap(heavy, XS, checkpoint=folder)
    with pytest.raises(CheckpointError, match="belongs to another map; different: input x"):
        parmap(heavy, XS * 2, checkpoint=folder, resume=True)
    out = parmap(heavy, XS, strategy="shard_map", checkpoint=folder, resume=True)
    assert last_report().resumed == 3 * len(files)
    np.testing.assert_array_equal(np.asarray(out), expected)
    out = parmap(heavy, XS, checkpoint=folder, resume=True)  # all there: nothing runs
    assert last_report().resumed == 60
    np.testing.assert_array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "garbage"])
def test_a_damaged_file_is_refused_and_can_be_replaced(tmp_path, expected, damage):
    parmap(heavy, XS, strategy="map", chunk_size=20, checkpoint=tmp_path)
    file = sorted(tmp_path.glob("items-*.chunk"))[1]
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-3] ^= 4
    file.write_bytes({"flip": data, "cut": data[:-5], "empty": b"", "garbage": b"{}\nxx"}[damage])
    with pytest.raises(CheckpointError, match=f"{file.name} is damaged") as caught:
        parmap(heavy, XS, checkpoint=tmp_path, resume=True)
    assert f"delete {file}" in caught.value.next_step
    file.unlink()
    out = parmap(heavy, XS, strategy="map", checkpoint=tmp_path, resume=True)
    assert last_report().resumed == 40
    np.testing.assert_array_equal(np.asarray(out), expected)


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("not json")
    with pytest.raises(CheckpointError, match=r"manifest.json cannot be read"):
        parmap(heavy, XS, checkpoint=tmp_path, resume=True)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(CheckpointError, match="written by another version"):
        parmap(heavy, XS, checkpoint=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="cannot make this folder"):
        parmap(heavy, XS, checkpoint=tmp_path / "manifest.json")


KILLED = """
    import sys, numpy as np, jax, jax.numpy as jnp
    from jaxpar_magic import parmap, last_report
    def heavy(x):
        return jax.lax.fori_loop(0, 60_000, lambda i, c: jnp.sin(c) + x, x)
    def keyed(x, key):
        return {"h": heavy(x) + jax.random.normal(key), "b": jnp.bfloat16(x)}
    out = parmap(keyed, np.arange(60, dtype=np.float32), strategy="map", chunk_size=2, key=3,
                 checkpoint=sys.argv[1], resume=True)
    np.save(sys.argv[2], np.asarray(out["h"]))
    print(last_report().resumed, out["b"].dtype, float(out["b"][59]))
"""


def run_killed(tmp_path, kill_when):
    folder, result = tmp_path / "run", tmp_path / "out.npy"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), str(result)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while child.poll() is None and not kill_when(folder):
        time.sleep(0.001)
    child.kill()
    out, error = child.communicate()
    return out, error, result


def test_a_killed_process_loses_at_most_the_chunk_under_way(tmp_path):
    out, error, result = run_killed(tmp_path / "whole", lambda folder: False)
    assert out.split() == ["0", "bfloat16", "59.0"], error
    whole = np.load(result)
    kill_at = random.Random(0).sample(range(1, 28), 2)
    resumed_from = 0
    for count in sorted(kill_at):
        run_killed(tmp_path / "killed", lambda folder, count=count: len(list(folder.glob("items-*.chunk"))) >= count)
        kept = list((tmp_path / "killed" / "run").glob("items-*.chunk"))
        assert len(kept) >= count
        resumed_from = 2 * len(kept)
    out, error, result = run_killed(tmp_path / "killed", lambda folder: False)
    assert int(out.split()[0]) == resumed_from, error
    np.testing.assert_array_equal(np.load(result), whole)


def test_a_full_disk_is_said_and_what_is_written_stays_good(tmp_path):
    code = textwrap.dedent("""
        import resource, signal, sys, os
        import numpy as np
        from jaxpar_magic import parmap
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        wide = lambda x: x * np.ones(1000, np.float32)
        xs = np.arange(60, dtype=np.float32)
        real = os.fdopen
        written = []
        def full(handle, mode):  # from the third chunk on, files may not grow beyond 10 kB: write() then fails for real
            written.append(1)
            if len(written) == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
            return real(handle, mode)
        os.fdopen = full
        try:
            parmap(wide, xs, strategy="vmap", chunk_size=6, checkpoint=sys.argv[1])
        except Exception as error:
            print(type(error).__name__, error, error.__notes__[-1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        out = parmap(wide, xs, strategy="vmap", checkpoint=sys.argv[1], resume=True)
        from jaxpar_magic import last_report
        print(last_report().resumed, bool((np.asarray(out) == xs[:, None]).all()))
        print([f for f in os.listdir(sys.argv[1]) if f.startswith(".")])
    """)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("CheckpointError checkpoint="), done.stderr
    assert "cannot write (File too large)" in lines[0]
    assert "12 of 60 items are done and kept" in lines[1]
    assert lines[2:] == ["12 True", "[]"]


# ------------------------------------------------------------------ plain Python


@pytest.mark.parametrize("strategy", ["serial", "process"])
def test_plain_python_keeps_and_resumes_too(tmp_path, strategy):
    marker = tmp_path / "fails"
    marker.touch()

    def item(i):
        if i == 7 and marker.exists():
            raise ValueError("not yet")
        return {"text": str(i)}

    items = list(range(12))
    with pytest.raises(ValueError, match="not yet") as caught:
        parmap(item, items, strategy=strategy, chunk_size=1, checkpoint=tmp_path / "run")
    assert "items are done and kept" in caught.value.__notes__[-1]
    marker.unlink()
    out = parmap(item, items, strategy=strategy, checkpoint=tmp_path / "run", resume=True)
    assert out == [{"text": str(i)} for i in items]
    assert last_report().resumed >= 7


def test_skipping_and_keeping_do_not_go_together(tmp_path):
    with pytest.raises(ValueError, match="do not go together"):
        parmap(heavy, XS, checkpoint=tmp_path, on_error="skip")


# ------------------------------------------------------------------ progress


class Recorder:
    def __init__(self):
        self.lines, self.said, self.closed = [], [], False

    def update(self, progress):
        self.lines.append(progress.line())

    def say(self, line):
        self.said.append(line)

    def close(self):
        self.closed = True


def test_progress_is_shown_late_and_often_and_goes_away(monkeypatch):
    monkeypatch.setattr(monitor, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(monitor, "_TICK_SECONDS", 0.005)
    monkeypatch.setattr(monitor, "STALLED_SECONDS", 0.02)
    shown = Recorder()
    with monitor.Monitor(lambda: shown) as m:
        m.phase("compiling")
        while not shown.lines:
            time.sleep(0.001)
        m.plan(100, 4, "2 devices")
        m.phase("running")
        while not shown.said:
            time.sleep(0.001)
        m.advance(25, 1)
        while "25% of 100 items" not in shown.lines[-1]:
            time.sleep(0.001)
    assert shown.closed
    assert shown.lines[0].startswith("compiling, ")
    assert "chunk 2 of 4, 2 devices" in shown.lines[-1]
    assert "/s" in shown.lines[-1]
    assert shown.said[0].startswith("parmap: still ")


def test_a_quick_map_shows_no_progress():
    with monitor.Monitor(lambda: pytest.fail("shown")) as m:
        m.plan(1, 1, "1 device")


def test_a_display_that_fails_does_not_end_the_map(monkeypatch):
    monkeypatch.setattr(monitor, "DELAY_SECONDS", 0.0)

    def broken():
        raise RuntimeError("no screen")

    with monitor.Monitor(broken) as m:
        while m._thread.is_alive():
            time.sleep(0.001)
        m.phase("running")


def test_a_rate_counts_this_run_only():
    m = monitor.Monitor()
    m.plan(100, 10, "1 device", done=90)
    assert m.progress().rate is None
    m.phase("running")
    m.advance(5, 10)
    assert m.progress().done == 95
    assert m.progress().rate > 0


# ------------------------------------------------------------------ what the report draws

SKEWED = """
    import jax, jax.numpy as jnp, numpy as np
    from jaxpar_magic import devices, last_report, parmap

    devices(2)

    def steps(n):
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1]) + 1), (0, 1.0))[1]

    long_first = np.tile(np.array([8_000_000, 1], np.int32), 8)
    long_last = long_first[::-1].copy()
    for strategy, unit in (("shard_map", "device"), ("thread", "thread")):
        for inputs, busy in ((long_first, 0), (long_last, 1), (iter(long_first), 0)):
            parmap(steps, inputs, strategy=strategy, devices=2, chunk_size=2, batch_size=1)
            report = last_report()
            known = [seconds for seconds in report.part_seconds if seconds]
            assert known and len(report.part_seconds) == len(report.chunk_seconds) == 8, report.part_seconds
            sums = [sum(part) for part in zip(*known)]
            assert sums[busy] > sums[1 - busy], (strategy, sums)
            assert all(max(seconds) <= each + 1e-6 for seconds, each in
                       zip(report.part_seconds, report.chunk_seconds) if seconds), (strategy, report)
            assert f"{unit} {busy} the longest" in " ".join(str(report).split()), str(report)

    from jaxpar_magic.mapping import traced

    traced.FOLLOWED_SECONDS = 0.0
    parmap(jnp.sin, np.arange(16.0), strategy="jit", chunk_size=2)  # its devices wait for each other
    assert not any(last_report().part_seconds)
"""


@pytest.mark.slow
def test_a_device_with_more_work_is_seen():
    run_python(SKEWED, timeout=600)


def test_few_or_quick_chunks_are_not_followed(monkeypatch):
    def fail(array):
        raise AssertionError("a thread was started")

    monkeypatch.setattr("jaxpar_magic.mapping.traced.Followed", fail)
    monkeypatch.setattr("jaxpar_magic.mapping.traced.FOLLOWED_SECONDS", float("inf"))
    parmap(jnp.sin, XS, strategy="shard_map", chunk_size=6)
    monkeypatch.setattr("jaxpar_magic.mapping.traced.FOLLOWED_SECONDS", 0.0)
    parmap(jnp.sin, XS, strategy="shard_map", chunk_size=20)
    assert not any(last_report().part_seconds)


def test_parts_that_fail_have_no_times():
    class Shard:
        index = (slice(0, 1),)

        def block_until_ready(self):
            raise ValueError("broken")

    Shard.data = Shard()

    class Array:
        addressable_shards = [Shard]  # noqa: RUF012

    assert Started([], 0.0, Followed(Array())).part_seconds(0.0)[0] == []
