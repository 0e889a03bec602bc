"""What the report shows on machines that are not this one: GPUs, several processes, no JAX."""

from __future__ import annotations

import dataclasses

from jaxpar_magic.backend.report import DeviceReport
from jaxpar_magic.backend.stale import Stale
from jaxpar_magic.backend.state import DeviceInfo, Setting
from jaxpar_magic.machine import Cores
from jaxpar_magic.render import html, text

DEFAULT = Setting(None, "default", "JAX_PLATFORMS")
REPORT = DeviceReport(
    state="running",
    met="running",
    count=1,
    count_source="default",
    will_use="cpu",
    devices=(DeviceInfo("cpu:0", "cpu", "cpu", 0, None, None),),
    cores=4,
    core_limits=Cores(8, 8, 3.5),
    free_memory=12 * 10**9,
    settings=dict.fromkeys(("count", "platforms", "debug_nans", "cache"), DEFAULT)
    | {"x64": Setting(False, "default", "JAX_ENABLE_X64")},
    environment={},
    versions={"jax": "0.10.2", "jaxlib": "0.10.2", "Python": "3.11.7"},
)


def shown(**changes) -> str:
    report = dataclasses.replace(REPORT, **changes)
    assert "<table" in html.render(report.describe())
    return text.render(report.describe(), 80)


def gpu(i: int, process: int = 0) -> DeviceInfo:
    return DeviceInfo(f"gpu:{i}", "gpu", "NVIDIA A100", process, 2 * 10**9, 40 * 10**9)


def test_gpus_with_their_memory():
    report = shown(devices=(gpu(0), gpu(1), *REPORT.devices))
    assert "JAX runs on 2 GPU devices and 1 CPU device" in report
    assert "gpu:1 NVIDIA A100, 2 GB of 40 GB in use" in " ".join(report.split())


def test_many_devices_of_several_processes_are_brief():
    report = shown(devices=tuple(gpu(i, i // 4) for i in range(16)))
    assert "JAX runs on 16 GPU devices of 4 processes" in report
    assert "gpu:0, gpu:1, …, gpu:15" in report
    assert len(report.splitlines()) < 20


def test_where_the_limit_of_cores_comes_from():
    assert "4 usable of 8" in shown() and "control group: 3.5" in shown()


def test_cores_and_devices_are_drawn_side_by_side():
    words = " ".join(shown().replace("█", "").split())
    assert "CPU devices of JAX 1 cores that it may use 4 cores of the machine 8" in words
    assert "cores of the machine" not in shown(cores=8)
    assert "devices and cores" not in shown(devices=(gpu(0),), will_use="gpu")


def test_which_cores_is_said_where_not_all_are_usable():
    pinned = Cores(8, 4, None, (0, 1, 2, 6))
    assert "4 usable of 8: 0-2, 6 affinity" in " ".join(shown(core_limits=pinned).split())
    assert "8 usable of 8 " in " ".join(shown(cores=8, core_limits=Cores(8, 8, None, tuple(range(8)))).split())


def test_before_the_start_an_accelerator_is_expected():
    assert "it will start on cuda" in shown(state="absent", devices=(), will_use="cuda")


def test_jax_is_not_installed():
    report = shown(state="absent", devices=(), versions={"jax": None, "jaxlib": None, "Python": "3.11.7"})
    assert report.startswith("JAX is not installed")
    assert "None" not in report


def test_much_that_is_stale_is_cut_short():
    stale = tuple(Stale(f"mesh_{i}", "mesh") for i in range(30))
    report = shown(stale=stale)
    assert "mesh_11" in report and "mesh_12" not in report
    assert "… 18 more" in report


def test_remedies_are_code_that_can_be_pasted_or_say_what_to_do():
    assert Stale("x", "array").remedy == "x = jax.device_put(jax.device_get(x))"
    assert Stale("p['w']", "array").remedy == "p['w'] = jax.device_put(jax.device_get(p['w']))"
    assert Stale("p", "array", 2).remedy == "x = jax.device_put(jax.device_get(x)) for each"
    assert "builds it again" in Stale("f (captures x)", "array").remedy
    assert "builds it again" in Stale("m", "mesh").remedy


def test_repr_is_one_line():
    assert repr(REPORT) == "<DeviceReport: JAX runs on 1 CPU device>"
