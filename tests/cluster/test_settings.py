"""What engines are told: devices, GPUs (planned, never run here), threads, options of jax."""

from __future__ import annotations

import pytest
from conftest import run_python

from jaxpar_magic.cluster.settings import Place, share
from jaxpar_magic.errors import ClusterError


def seats(count: int, **place) -> list[Place]:
    return [Place("a", seat=seat, seats=count, **place) for seat in range(count)]


def variables(places: list[Place], name: str, devices: int | None = None) -> list[str | None]:
    return [share(place, devices).variables.get(name) for place in places]


@pytest.mark.parametrize(
    ("cores", "engines", "asked", "devices", "threads"),
    [(8, 2, None, 4, "4"), (8, 3, None, 2, "2"), (2, 4, None, 1, "1"), (8, 2, 3, 3, "4")],
)
def test_engines_of_a_machine_share_its_cores(cores, engines, asked, devices, threads):
    for place in seats(engines, cores=cores):
        got = share(place, asked)
        assert got.options["jax_num_cpu_devices"] == devices
        assert got.variables["OMP_NUM_THREADS"] == got.variables["OPENBLAS_NUM_THREADS"] == threads
        assert got.variables["NPROC"] == str(2 * devices + 1)
        assert "CUDA_VISIBLE_DEVICES" not in got.variables


def test_engines_that_have_cores_of_their_own_keep_them():
    assert [share(place).options["jax_num_cpu_devices"] for place in seats(2, cores=4, own_cores=True)] == [4, 4]


def test_each_engine_gets_gpus_of_its_own():
    four = ("0", "1", "2", "3")
    assert variables(seats(2, cores=8, gpus=four), "CUDA_VISIBLE_DEVICES") == ["0,1", "2,3"]
    assert variables(seats(3, cores=8, gpus=four), "CUDA_VISIBLE_DEVICES") == ["0", "1", "2,3"]
    assert variables(seats(2, cores=8, gpus=four), "CUDA_VISIBLE_DEVICES", 1) == ["0", "1"]
    assert variables(seats(2, cores=8, gpus=("GPU-a", "GPU-b")), "CUDA_VISIBLE_DEVICES") == ["GPU-a", "GPU-b"]


def test_more_engines_than_gpus_share_their_memory():
    places = seats(3, cores=8, gpus=("0", "1"))
    assert variables(places, "CUDA_VISIBLE_DEVICES") == ["0", "1", "0"]
    assert variables(places, "XLA_CLIENT_MEM_FRACTION") == ["0.38"] * 3


def test_gpus_that_a_launcher_gave_to_each_engine_stay():
    assert variables(seats(2, cores=8, gpus=("0",), own_gpus=True), "CUDA_VISIBLE_DEVICES") == [None, None]


def test_more_gpus_than_there_are_are_refused():
    with pytest.raises(ClusterError, match="2 engines on a need 6 GPUs, and there are 4") as caught:
        share(seats(2, cores=8, gpus=("0", "1", "2", "3"))[0], 3)
    assert caught.value.argument == "devices_per_engine"


def test_a_notebook_that_uses_the_cpu_takes_no_gpus_there(monkeypatch):
    monkeypatch.setattr("jaxpar_magic.cluster.settings._read", lambda names: {"jax_platforms": "cpu"})
    assert variables(seats(1, cores=2, gpus=("0",)), "CUDA_VISIBLE_DEVICES") == [None]


PRINT = "import json; from jaxpar_magic.cluster import settings; s = settings.share(settings.Place('a', 2)); "


def test_the_notebooks_flags_and_options_go_along():
    flags = "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=7"
    before = run_python(
        PRINT + "print(s.variables['XLA_FLAGS'], s.options)", env={"XLA_FLAGS": flags, "JAX_ENABLE_X64": "1"}
    ).stdout
    assert before.strip() == "--xla_cpu_enable_fast_math=false {'jax_enable_x64': '1', 'jax_num_cpu_devices': 2}"
    after = run_python(
        "import jax; jax.config.update('jax_enable_x64', True); jax.config.update('jax_debug_nans', True)\n"
        + PRINT
        + "print([s.options[n] for n in ('jax_enable_x64', 'jax_debug_nans', 'jax_debug_infs')])"
    ).stdout
    assert after.strip() == "[True, True, False]"
