"""Plans: what would be done in each state, what is refused, and that the lines shown do the same."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
from conftest import run_python

from jaxpar_magic.backend import plan as planning
from jaxpar_magic.backend import platforms
from jaxpar_magic.backend.plan import Configure, SetCount, SetVariable
from jaxpar_magic.backend.state import _SETTINGS, DeviceInfo, Setting, State
from jaxpar_magic.errors import DeviceError, JaxparError, OptionError
from jaxpar_magic.machine import Cores


def cpu(n, platform="cpu"):
    return tuple(DeviceInfo(f"{platform}:{i}", platform, platform, 0, None, None) for i in range(n))


def make_state(phase="absent", *, environment=None, cores=2, count=-1, devices=1, **settings):
    values = {"count": count, "platforms": None, "x64": False, "debug_nans": False, "cache": None} | settings
    state = State(
        phase=phase,
        versions={"jax": "0.10.2", "jaxlib": "0.10.2", "Python": "3.11"},
        cores=Cores(8, cores, None),
        free_memory=10**9,
        settings={
            name: Setting(value, "default" if value == _SETTINGS[name][2] else "jax.config.update", _SETTINGS[name][0])
            for name, value in values.items()
        },
        environment=environment or {},
    )
    if phase == "running":
        state = dataclasses.replace(state, devices=cpu(devices), platforms=("cpu",))
    return state


def without_pool(plan):
    """The steps, without the one that makes room in the thread pool."""
    return tuple(step for step in plan.steps if getattr(step, "name", "") != "NPROC")


def plan(state, count=None, **options):
    return planning.make(planning.request(count, **options), state)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with an NVIDIA GPU, as far as files tell."""
    monkeypatch.setattr(platforms, "installed", lambda: ("cuda",))
    monkeypatch.setattr(platforms, "_hardware", lambda platform: True)


# --- the count ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1, 257, 2.5, 2.0, True, False, "abc", "", "2", "ALL", [2], 10**30, np.True_])
def test_bad_counts(count):
    with pytest.raises(OptionError, match="whole number from 1 to 256") as caught:
        planning.request(count)
    assert caught.value.argument == "count"
    assert repr(count) in str(caught.value)


@pytest.mark.parametrize(("count", "number"), [(1, 1), (256, 256), (np.int64(3), 3), ("all", 5)])
def test_good_counts(count, number):
    assert without_pool(plan(make_state(cores=5), count)) == (SetVariable("JAX_NUM_CPU_DEVICES", str(number)),)


def test_the_count_in_each_phase():
    assert without_pool(plan(make_state("absent"), 3)) == (SetVariable("JAX_NUM_CPU_DEVICES", "3"),)
    assert without_pool(plan(make_state("imported"), 3)) == (SetCount(3, reset=False),)
    running = plan(make_state("running"), 3)
    assert without_pool(running) == (SetCount(3, reset=True),)
    assert running.resets


@pytest.mark.parametrize("phase", ["absent", "imported", "running"])
def test_nothing_to_do(phase):
    state = make_state(phase, count=3, devices=3, x64=True)
    assert plan(state, 3, x64=True).steps == ()
    flagged = make_state(phase, environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, devices=3)
    assert plan(flagged, 3).steps == ()


@pytest.mark.parametrize("phase", ["absent", "imported", "running"])
def test_a_count_leaves_all_flags_as_they_are(phase):
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=5"}
    steps = without_pool(plan(make_state(phase, environment=flags, devices=5), 3))
    assert len(steps) == 1 and "XLA_FLAGS" not in steps[0].python()


def test_many_devices_are_warned_about():
    assert plan(make_state(cores=4), 4).notes == ()
    assert "%jaxdevices all makes it 4" in plan(make_state(cores=4), 5).notes[0]
    assert "75 s" in plan(make_state(cores=4), 65).notes[1]


# --- refusals -----------------------------------------------------------------------------------------------


def refused(state, count=None, *, match, kind=DeviceError, **options):
    with pytest.raises(kind, match=match) as caught:
        plan(state, count, **options)
    return caught.value


@pytest.mark.parametrize("phase", ["absent", "imported", "running"])
def test_platforms_without_cpu(phase):
    error = refused(make_state(phase, platforms="cuda"), 2, match="leave out cpu")
    assert error.next_step == "%jaxdevices 2 --platform cpu"


def test_another_platform_runs_too(gpu):
    state = dataclasses.replace(make_state("running"), devices=cpu(1, "gpu") + cpu(1), platforms=("cpu", "cuda"))
    refused(state, 2, match="a backend for cuda runs as well")
    assert plan(state, 1).steps == (), "as asked already: nothing to refuse"


@pytest.mark.parametrize("facts", [{"processes": 2}, {"distributed": True}])
def test_a_job_of_several_processes(facts):
    refused(dataclasses.replace(make_state("running"), **facts), 2, match="several JAX processes")


@pytest.mark.parametrize("phase", ["absent", "imported", "running"])
@pytest.mark.parametrize("options", [{"platform": "gpu"}, {"platform": "cuda"}, {"platform": "tpu"}])
def test_an_absent_accelerator(phase, options, monkeypatch):
    monkeypatch.setattr(platforms, "installed", lambda: ())
    error = refused(make_state(phase), match="plugin of JAX is installed", **options)
    assert "pip install" in error.next_step
    assert len(str(error).splitlines()) == 2


def test_a_plugin_without_its_hardware(monkeypatch):
    monkeypatch.setattr(platforms, "installed", lambda: ("cuda",))
    monkeypatch.setattr(platforms, "_hardware", lambda platform: False)
    assert "nvidia-smi" in refused(make_state(), match="there is no device for it", platform="gpu").next_step


@pytest.mark.parametrize("phase", ["absent", "imported", "running"])
@pytest.mark.parametrize("options", [{"visible": "0"}, {"mem_fraction": 0.5}, {"preallocate": False}])
def test_accelerator_options_without_one(phase, options, monkeypatch):
    monkeypatch.setattr(platforms, "installed", lambda: ())
    refused(make_state(phase), match="is for a GPU or TPU, and JAX finds none here", **options)


@pytest.mark.parametrize("options", [{"visible": "0"}, {"mem_fraction": 0.5}, {"preallocate": False}])
def test_accelerator_options_when_it_runs(options, gpu):
    refused(make_state("running"), match="only before JAX starts its backend, and it runs", **options)


def test_platform_and_flags_when_it_runs(gpu):
    refused(make_state("running"), match="can be chosen only before", platform="gpu")
    refused(make_state("running"), match="reads its flags only before", flags="--xla_cpu_enable_fast_math=true")
    assert plan(make_state("running"), platform="cpu").steps == ()


@pytest.mark.parametrize("platform", ["gpuu", "", 3, "CPU"])
def test_unknown_platforms(platform):
    with pytest.raises(OptionError, match="JAX knows no such platform"):
        planning.request(platform=platform)


def test_the_nearest_platform_is_offered():
    with pytest.raises(OptionError, match="Did you mean 'gpu'"):
        planning.request(platform="gpuu")


@pytest.mark.parametrize(
    "options",
    [
        {"visible": ""}, {"visible": "0,a"}, {"visible": "0,0"}, {"visible": [-1]}, {"visible": [True]},
        {"visible": ()}, {"visible": 1.5},
        {"mem_fraction": 0}, {"mem_fraction": 1.5}, {"mem_fraction": "x"}, {"mem_fraction": True},
        {"mem_fraction": float("nan")},
        {"x64": 1}, {"debug_nans": "on"}, {"preallocate": 0},
        {"cache": ""}, {"cache": 3}, {"cache": __file__},
        {"flags": ""}, {"flags": [3]},
    ],
)  # fmt: skip
def test_values_that_cannot_be_used_are_named(options):
    with pytest.raises(OptionError) as caught:
        planning.request(**options)
    (name,) = options
    assert caught.value.argument == name and name in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "match"),
    [
        ("--xla_bogus=1", "XLA does not know it"),
        ("--xla_cpu_enable_fast_maths=true", "Did you mean --xla_cpu_enable_fast_math=true"),
        ("\N{EN DASH}-xla_cpu_enable_fast_math=true", "typographic dash"),
        ("--xla_force_host_platform_device_count=4", "%jaxdevices 4"),
        ("--xla_cpu_enable_fast_math true", "a value stands after '='"),
    ],
)
def test_flags_that_are_refused(flag, match):
    with pytest.raises(OptionError, match=match):
        planning.request(flags=flag)


@pytest.mark.parametrize("phase", ["absent", "imported"])
def test_bad_flags_set_before_stop_everything_but_looking(phase):
    state = make_state(phase, environment={"XLA_FLAGS": "--xla_bogus=1 --xla_cpu_enable_fast_math=false"})
    for options in ({"count": 2}, {"x64": True}, {"platform": "cpu"}):
        error = refused(state, match="--xla_bogus=1: XLA does not know it", **options)
        assert error.next_step == "os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=false'"


def test_jax_not_installed():
    versions = {"jax": None, "jaxlib": None, "Python": "3.11"}
    refused(dataclasses.replace(make_state(), versions=versions), 2, match="JAX is not installed")


# --- the other options --------------------------------------------------------------------------------------


def test_settings_in_each_phase(tmp_path):
    options = {"x64": True, "debug_nans": True, "cache": tmp_path / "new"}
    assert plan(make_state("absent"), **options).steps == (
        SetVariable("JAX_ENABLE_X64", "1"),
        SetVariable("JAX_DEBUG_NANS", "1"),
        SetVariable("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "new")),
    )
    for phase in ("imported", "running"):
        assert plan(make_state(phase), **options).steps == (
            Configure("jax_enable_x64", True, "JAX_ENABLE_X64"),
            Configure("jax_debug_nans", True, "JAX_DEBUG_NANS"),
            Configure("jax_compilation_cache_dir", str(tmp_path / "new"), "JAX_COMPILATION_CACHE_DIR"),
        )
    off = plan(make_state("running", x64=True, debug_nans=True), x64=False, debug_nans=False).steps
    assert [step.value for step in off] == [False, False]


def test_flags_are_added_to_those_that_are_there():
    state = make_state(environment={"XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_dump_to=/x"})
    steps = plan(state, flags=["--xla_cpu_enable_fast_math=true", "xla_dump_hlo_as_text"]).steps
    (step,) = steps
    assert step.name == "XLA_FLAGS"
    assert sorted(step.value.split()) == [
        "--xla_cpu_enable_fast_math=true",
        "--xla_dump_hlo_as_text",
        "--xla_dump_to=/x",
    ]
    assert plan(state, flags="--xla_dump_to=/x").steps == ()


def test_gpu_options_before_the_import(gpu):
    steps = plan(make_state("absent"), platform="gpu", visible="0,1", mem_fraction="0.5", preallocate=False).steps
    assert steps == (
        SetVariable("JAX_PLATFORMS", "cuda,cpu"),
        SetVariable("CUDA_VISIBLE_DEVICES", "0,1"),
        SetVariable("XLA_CLIENT_MEM_FRACTION", "0.5"),
        SetVariable("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    )


def test_gpu_options_after_the_import(gpu):
    old_name = make_state("imported", environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"})
    assert plan(old_name, visible=[1], mem_fraction=0.5, preallocate=True).steps == (
        Configure("jax_cuda_visible_devices", "1", "CUDA_VISIBLE_DEVICES"),
        SetVariable("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5"),  # JAX refuses to start with both names set
        SetVariable("XLA_PYTHON_CLIENT_PREALLOCATE", "true"),
    )


def test_a_count_beside_a_gpu(gpu):
    assert any("cuda by default" in note for note in plan(make_state(), 2).notes)
    both = without_pool(plan(make_state(platforms="cuda"), 2, platform="cpu"))
    assert both == (SetVariable("JAX_PLATFORMS", "cpu"), SetVariable("JAX_NUM_CPU_DEVICES", "2"))


# --- the lines that do the same -----------------------------------------------------------------------------

FACTS = """
import jax
print(jax.device_count(), jax.config.jax_enable_x64, jax.config.jax_debug_nans, jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.parametrize(
    "before", ["", "import jax", "import jax; jax.numpy.ones(2)"], ids=["absent", "imported", "running"]
)
def test_the_lines_shown_do_what_is_done(before, tmp_path):
    flag = ", flags='--xla_cpu_enable_fast_math=true'" * ("ones" not in before)
    call = f"devices(3, x64=True, debug_nans=True, cache={str(tmp_path)!r}{flag}"
    head = f"{before}\nfrom jaxpar_magic import devices\n"
    ours = run_python(f"{head}{call})\n{FACTS}")
    assert ours.stdout.split() == ["3", "True", "True", str(tmp_path)]
    lines = run_python(
        f"{head}plan = {call}, dry_run=True).plan\nprint(plan.python())\nprint('---')\nprint(plan.shell())"
    )
    python, _, shell = lines.stdout.partition("---\n")
    assert run_python(f"{before}\n{python}\n{FACTS}").stdout == ours.stdout
    # the shell lines are for a Python that starts afterwards
    script = tmp_path / "lines.sh"
    facts = tmp_path / "facts.py"
    facts.write_text(FACTS)
    script.write_text(f"{shell}\nexec {sys.executable} {facts}\n")
    started = run_python(f"import subprocess; print(subprocess.check_output(['sh', {str(script)!r}], text=True))")
    assert started.stdout.split() == ours.stdout.split()


def test_a_dry_run_changes_nothing_in_any_phase(tmp_path):
    done = run_python(
        f"""
        import os
        from jaxpar_magic import devices
        def dry(**more): return devices(3, x64=True, cache={str(tmp_path / "c")!r}, dry_run=True, **more)
        before = dict(os.environ)
        assert dry().plan.steps
        assert dict(os.environ) == before
        import jax
        config, environment = dict(jax.config.values), dict(os.environ)
        assert dry().plan.steps
        assert jax.config.values == config and dict(os.environ) == environment
        x = jax.numpy.ones(2)
        old = jax.devices()
        assert dry().plan.resets
        assert jax.config.values == config and dict(os.environ) == environment
        assert jax.devices() == old and x.devices() == set(old)
        print(os.path.exists({str(tmp_path / "c")!r}))
        """
    )
    assert done.stdout.strip() == "False"


def test_refusals_are_one_clear_line_with_a_next_step(monkeypatch):
    monkeypatch.setattr(platforms, "installed", lambda: ())
    for options in ({"count": 0}, {"platform": "gpu"}, {"visible": "0"}, {"platform": "gpuu"}):
        with pytest.raises(JaxparError) as caught:
            plan(make_state(), **options)
        lines = str(caught.value).splitlines()
        assert len(lines) == 2 and lines[1].startswith("Next: ")


@pytest.mark.parametrize(
    ("cores", "set_before", "count", "room"),
    [
        (2, None, 2, "5"),
        (4, None, 2, "5"),
        (8, None, 2, None),
        (2, None, 1, None),
        (2, "16", 4, None),
        (2, "5", 4, "9"),
    ],
)
@pytest.mark.parametrize("phase", ["absent", "imported", "running"])
def test_devices_have_room_in_the_thread_pool(phase, cores, set_before, count, room):
    environment = {} if set_before is None else {"NPROC": set_before}
    steps = plan(make_state(phase, environment=environment, cores=cores, devices=7), count).steps
    assert [s.value for s in steps if getattr(s, "name", "") == "NPROC"] == ([] if room is None else [room])
    assert len(steps) == 1 + (room is not None), "and the count comes last"
    assert not isinstance(steps[-1], SetVariable) or steps[-1].name == "JAX_NUM_CPU_DEVICES"
