"""Cores and memory of this process, from `/proc` and control groups as the kernel writes them."""

from __future__ import annotations

import os

import pytest
from conftest import run_python

from jaxpar_magic import machine

GB = 10**9


class FakeSystem:
    """A /proc and control groups of a made-up machine."""

    def __init__(self, root):
        self.root = root
        self.proc = root / "proc"
        self.write("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
        self.write("proc/self/status", "VmSize: 1000000 kB\nVmData: 500000 kB\nVmRSS: 250000 kB\n")
        self.write("proc/self/cgroup", "")
        self.write("proc/self/mountinfo", "")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mount(self, *, kind, at, root="/", options="rw", group):
        number = {"cgroup2": "0::", "cgroup": f"4:{options.split(',')[-1]}:"}[kind]
        self.append("proc/self/cgroup", f"{number}{group}\n")
        self.append("proc/self/mountinfo", f"31 23 0:28 {root} {self.root / at} rw - {kind} {kind} {options}\n")

    def append(self, path, text):
        self.write(path, (self.root / path).read_text() + text)

    def cores(self):
        return machine.cores(str(self.proc))

    def free(self):
        return machine.free_memory(str(self.proc))


@pytest.fixture
def system(tmp_path):
    return FakeSystem(tmp_path)


def test_without_control_groups_the_affinity_decides(system):
    assert system.cores().quota is None
    assert system.cores().usable == len(os.sched_getaffinity(0))
    assert system.free() == 8_000_000 * 1024


@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 4), ("100000 100000", 1), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_quota_of_version_2(system, monkeypatch, quota, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    system.mount(kind="cgroup2", at="cg", group="/user/me")
    system.write("cg/user/me/cpu.max", quota)
    assert system.cores().usable == usable


@pytest.mark.parametrize(("quota", "usable"), [("-1", 4), ("200000", 2)])
def test_quota_of_version_1(system, monkeypatch, quota, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    system.mount(kind="cgroup", at="cg/cpu", options="rw,cpu", group="/jobs/7")
    system.write("cg/cpu/jobs/7/cpu.cfs_quota_us", quota)
    system.write("cg/cpu/jobs/7/cpu.cfs_period_us", "100000")
    assert system.cores().usable == usable


def test_a_limit_of_a_group_above_binds(system, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    system.mount(kind="cgroup2", at="cg", group="/jobs/7")
    system.write("cg/jobs/7/cpu.max", "max 100000")
    system.write("cg/jobs/cpu.max", "100000 100000")
    assert system.cores() == machine.Cores(os.cpu_count(), 4, 1.0)


def test_a_container_sees_its_own_subtree_mounted(system, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    system.mount(kind="cgroup2", at="cg", root="/docker/abc", group="/docker/abc")
    system.write("cg/cpu.max", "200000 100000")
    assert system.cores().usable == 2


def test_memory_of_version_2_counts_cache_as_free(system):
    system.mount(kind="cgroup2", at="cg", group="/me")
    system.write("cg/me/memory.max", str(2 * GB))
    system.write("cg/me/memory.current", str(GB))
    system.write("cg/me/memory.stat", f"anon 5\ninactive_file {GB // 2}\n")
    assert system.free() == 2 * GB - GB + GB // 2


def test_memory_of_version_1_and_its_way_to_say_no_limit(system):
    system.mount(kind="cgroup", at="cg", options="rw,memory", group="/me")
    system.write("cg/me/memory.limit_in_bytes", "9223372036854771712")
    system.write("cg/me/memory.usage_in_bytes", str(GB))
    assert system.free() == 8_000_000 * 1024
    system.write("cg/memory.limit_in_bytes", str(3 * GB))
    system.write("cg/memory.usage_in_bytes", str(GB))
    assert system.free() == 2 * GB


def test_a_limit_that_is_exceeded_leaves_nothing(system):
    system.mount(kind="cgroup2", at="cg", group="/me")
    system.write("cg/me/memory.max", str(GB))
    system.write("cg/me/memory.current", str(2 * GB))
    assert system.free() == 0


def test_affinity_and_ulimit_of_a_real_process():
    done = run_python(
        """
        import os, resource
        from jaxpar_magic import machine
        before = machine.free_memory()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        limit = 1_500_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print(machine.usable_cores(), before > 0, 0 < machine.free_memory() < limit)
        print(0 < machine.resident_memory() < limit)
        machine.trim_memory()
        """
    )
    assert done.stdout.split() == ["1", "True", "True", "True"]


def test_a_machine_that_tells_nothing(tmp_path):
    nothing = str(tmp_path)
    assert machine.cores(nothing).usable >= 1
    assert machine.free_memory(nothing) > 0
    assert machine.resident_memory(nothing) > 0


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (24_812_345_678, "24.8 GB"), (10**16, "1e+04 TB")]
)
def test_sizes_for_people(size, text):
    assert machine.size_text(size) == text
