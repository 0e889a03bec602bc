"""The state is read right in each phase, from each source, and reading changes nothing."""

from __future__ import annotations

import ast

import pytest
from conftest import run_python

HEAD = """
import json, os, sys
from jaxpar_magic import devices

def look():
    r = devices(namespace=globals())
    s = r.settings
    return dict(
        state=r.state, count=r.count, source=r.count_source, devices=[d.name for d in r.devices],
        settings={n: [s[n].value, s[n].source, s[n].too_late] for n in s},
        notes=" ".join(r.notes), text=str(r), title=repr(r), environment=dict(r.environment),
    )
def show(): print(repr(look()))
"""


def look(code: str, **env: str) -> list[dict]:
    """Run `code`, which calls `show()` here and there; what each call saw."""
    import textwrap

    done = run_python(HEAD + textwrap.dedent(code), env=env)
    return [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("{'state'")]


def test_three_phases_and_nothing_changed_by_looking():
    absent, imported, running = look(
        """
        show()
        assert "jax" not in sys.modules and "numpy" not in sys.modules, "looking imported something"
        assert "rich" not in sys.modules
        environment = dict(os.environ)
        import jax
        show()
        from jax._src import xla_bridge
        assert not xla_bridge._backends, "looking started a backend"
        jax.numpy.ones(3)
        configuration = dict(jax.config.values)
        show()
        assert jax.config.values == configuration
        """
    )
    assert (absent["state"], imported["state"], running["state"]) == ("absent", "imported", "running")
    assert [s["count"] for s in (absent, imported, running)] == [1, 1, 1]
    assert [s["devices"] for s in (absent, imported, running)] == [[], [], ["cpu:0"]]
    assert "not imported yet: it will start with 1 CPU device" in absent["title"]
    assert "has not started: it will start with 1 CPU device" in imported["title"]
    assert "runs on 1 CPU device" in running["title"]
    assert absent["settings"]["x64"] == [False, "default", None]


def test_every_option_of_a_report_leaves_jax_alone():
    done = run_python(
        """
        import sys
        from jaxpar_magic import devices
        report = devices(arrays=True, dry_run=True, namespace=globals())
        for kwargs in ({}, dict(count=2), dict(x64=True, cache="/tmp/c", flags="--xla_cpu_enable_fast_math=true")):
            str(devices(dry_run=True, **kwargs)), devices(dry_run=True, **kwargs)._repr_mimebundle_()
        assert report.arrays == (), report.arrays
        print("jax" in sys.modules, "jaxlib" in sys.modules)
        """
    )
    assert done.stdout.split() == ["False", "False"]


COUNT = "--xla_force_host_platform_device_count=2"


def test_variables_set_before_the_start():
    absent, imported, running = look(
        "show(); import jax; show(); jax.numpy.ones(1); show()",
        JAX_NUM_CPU_DEVICES="3",
        XLA_FLAGS=f"{COUNT} --xla_cpu_enable_fast_math=true",
        JAX_PLATFORMS="cpu",
        JAX_ENABLE_X64="1",
        JAX_DEBUG_NANS="true",
    )
    for state in (absent, imported, running):
        assert state["count"] == 3, "JAX's own option beats the flag"
        assert state["source"] == "environment variable JAX_NUM_CPU_DEVICES"
        assert state["settings"]["platforms"] == ["cpu", "environment variable JAX_PLATFORMS", None]
        assert state["settings"]["x64"] == [True, "environment variable JAX_ENABLE_X64", None]
        assert state["settings"]["debug_nans"] == [True, "environment variable JAX_DEBUG_NANS", None]
        assert "not in force" not in state["notes"]
        assert "--xla_cpu_enable_fast_math=true" in state["text"]
    assert running["devices"] == ["cpu:0", "cpu:1", "cpu:2"]


def test_the_flag_alone():
    absent, imported, running = look("show(); import jax; show(); jax.numpy.ones(1); show()", XLA_FLAGS=COUNT)
    for state in (absent, imported, running):
        assert (state["count"], state["source"]) == (2, "environment variable XLA_FLAGS")
        assert "not in force" not in state["notes"]


def test_variables_set_between_import_and_start():
    (state, running) = look(
        f"""
        import jax
        os.environ["JAX_NUM_CPU_DEVICES"] = "3"
        os.environ["JAX_ENABLE_X64"] = "1"
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = "{COUNT}"
        show()
        jax.numpy.ones(1)
        show()
        """
    )
    # of all these only the flag is still read
    assert (state["count"], state["source"]) == (2, "environment variable XLA_FLAGS")
    assert running["count"] == 2
    assert state["settings"]["count"] == [-1, "default", 3]
    for text in ("JAX_NUM_CPU_DEVICES=3", "%jaxdevices 3", "--x64", "--platform cpu"):
        assert text in state["notes"]


def test_variables_set_after_the_start():
    (state,) = look(
        """
        import jax
        jax.numpy.ones(1)
        os.environ["JAX_NUM_CPU_DEVICES"] = "3"
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=true"
        show()
        """
    )
    assert state["count"] == 1
    assert state["devices"] == ["cpu:0"], "the listing claims no device that JAX does not have"
    assert "XLA_FLAGS asks for 2 devices, but was set after JAX had started: not in force." in state["notes"]
    assert "--xla_cpu_enable_fast_math in XLA_FLAGS was set after" in state["notes"]
    assert "%jaxdevices 2" in state["notes"]


def test_a_call_beats_a_variable_and_is_told_from_it():
    (state,) = look(
        """
        import jax
        jax.config.update("jax_num_cpu_devices", 2)
        jax.config.update("jax_enable_x64", False)
        show()
        """,
        JAX_NUM_CPU_DEVICES="3",
        JAX_ENABLE_X64="1",
    )
    assert (state["count"], state["source"]) == (2, "jax.config.update")
    assert state["settings"]["x64"][:2] == [False, "default"]


@pytest.mark.parametrize(
    ("env", "note"),
    [
        ({"JAX_PLATFORMS": "cuda"}, "cuda is chosen (environment variable JAX_PLATFORMS), but no CUDA plugin"),
        ({"JAX_NUM_CPU_DEVICES": "0"}, "JAX cannot start with 0 CPU devices"),
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math true --xla_x=1"}, "XLA does not read the end of XLA_FLAGS"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_cuont=2"}, "device_count=2?"),
        ({"JAX_NUM_CPU_DEVICES": "64"}, "More CPU devices than usable cores"),
    ],
)
def test_what_would_go_wrong_is_said_before_it_does(env, note):
    (state,) = look("show()", **env)
    assert note in state["notes"]


def test_bad_flags_are_named_with_the_line_that_mends_them():
    (state,) = look("show()", XLA_FLAGS="-\N{EN DASH}xla_force_host_platform_device_count=2")
    assert "To repair it: os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'" in state["notes"]
    assert state["environment"]["XLA_FLAGS"].startswith("-\N{EN DASH}"), "looking repaired it"


def test_affinity_decides_what_is_suggested():
    (state,) = look("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); show()", JAX_NUM_CPU_DEVICES="2")
    assert "1 usable of" in state["text"] and "affinity" in state["text"]
    assert "%jaxdevices all makes it 1" in state["notes"]


def test_a_healthy_report_is_brief():
    (state,) = look("show()")
    assert len(state["text"].splitlines()) <= 14
    assert max(map(len, state["text"].splitlines())) <= 80
