"""A bad XLA_FLAGS does not end the kernel: the guard that looks before each cell."""

from __future__ import annotations

import os
import types

import pytest
from conftest import run_python

from jaxpar_magic.backend import flags, guard
from jaxpar_magic.magics import jaxdevices
from jaxpar_magic.magics.jaxdevices import FlagsGuard

DASH = "-\N{EN DASH}xla_force_host_platform_device_count=2"
FIXED = "--xla_force_host_platform_device_count=2"


@pytest.fixture
def shown(monkeypatch):
    """What the guard displayed."""
    displayed: list = []
    monkeypatch.setattr(jaxdevices, "display", displayed.append)
    monkeypatch.setattr(guard, "phase", lambda: "absent")  # whatever other tests did in this process
    return displayed


def cell(text: str = "1"):
    return types.SimpleNamespace(raw_cell=text)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (DASH, FIXED, "Mended"),
        ("--xla_bogus=1", None, "Taken out"),
        (f"--xla_bogus=1 {FIXED}", FIXED, "Taken out"),
        ("--xla_force_host_platform_device_count 2", FIXED, "Mended"),
        ("  ", None, "blanks alone"),
    ],
)
def test_flags_are_repaired_before_the_next_cell(shown, monkeypatch, before, after, says):
    monkeypatch.setenv("XLA_FLAGS", before)
    FlagsGuard().pre_run_cell(cell())
    assert os.environ.get("XLA_FLAGS") == after
    (repair,) = shown
    text = str(repair)
    assert says in text and "would have died" in text
    assert (before.strip() or "blanks").split()[0] in text and (after or "(nothing)") in text


def test_good_flags_are_left_alone_and_nothing_is_shown(shown, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{FIXED} --xla_cpu_enable_fast_math=false")
    before = dict(os.environ)
    FlagsGuard().pre_run_cell(cell())
    assert dict(os.environ) == before
    assert shown == []


def test_nothing_is_done_where_nothing_changed(shown, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    watch = FlagsGuard()
    watch.pre_run_cell(cell())
    monkeypatch.setattr(flags, "check", lambda text: pytest.fail("checked again"))
    watch.pre_run_cell(cell())
    monkeypatch.setenv("XLA_FLAGS", "--xla_bogus=1")
    with pytest.raises(pytest.fail.Exception):  # it does look when something changed
        watch.pre_run_cell(cell())


def test_a_running_backend_has_read_its_flags(shown, monkeypatch):
    monkeypatch.setattr(guard, "phase", lambda: "running")
    monkeypatch.setattr(flags, "check", lambda text: pytest.fail("checked"))
    monkeypatch.setenv("XLA_FLAGS", DASH)
    FlagsGuard().pre_run_cell(cell())
    assert os.environ["XLA_FLAGS"] == DASH
    assert shown == []


def test_an_error_of_ours_does_not_reach_the_user(monkeypatch):
    def broken():
        raise RuntimeError("ours")

    monkeypatch.setattr(guard, "repair_flags", broken)
    monkeypatch.setenv("XLA_FLAGS", DASH)
    FlagsGuard().pre_run_cell(cell())


def test_unusual_events(shown):
    watch = FlagsGuard()
    for info in (None, types.SimpleNamespace(), cell(""), types.SimpleNamespace(raw_cell=None)):
        watch.pre_run_cell(info)
        watch.post_run_cell(None)


IN_ONE_CELL = f"""
import os, sys, types
from jaxpar_magic.magics import jaxdevices
shown = []
jaxdevices.display = lambda thing: shown.append(str(thing))
guard = jaxdevices.FlagsGuard()
BEFORE
guard.pre_run_cell(types.SimpleNamespace(raw_cell="os.environ['XLA_FLAGS'] = …"))
assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ or "jax" in sys.modules
os.environ["XLA_FLAGS"] = {DASH!r}
import jax
print(jax.device_count(), os.environ["XLA_FLAGS"], len(shown))
guard.post_run_cell(None)
from jaxlib import xla_client
print(xla_client.make_cpu_client.__name__, xla_client.make_cpu_client.__module__)
"""


@pytest.mark.parametrize("before", ["", "import jax"])
def test_flags_set_and_used_in_the_same_cell(before):
    done = run_python(IN_ONE_CELL.replace("BEFORE", before))
    assert done.stdout.splitlines() == [f"2 {FIXED} 1", "make_cpu_client jaxlib.xla_client"]


def test_what_was_hung_in_for_a_cell_is_taken_back_after_it():
    done = run_python(
        """
        import types
        from jaxpar_magic.magics.jaxdevices import FlagsGuard
        from jaxlib import xla_client
        original = xla_client.make_cpu_client
        guard = FlagsGuard()
        guard.pre_run_cell(types.SimpleNamespace(raw_cell="# XLA_FLAGS"))
        print(xla_client.make_cpu_client is original)
        guard.post_run_cell(None)
        print(xla_client.make_cpu_client is original)
        """
    )
    assert done.stdout.split() == ["False", "True"]
