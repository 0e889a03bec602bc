"""A running CPU backend started anew in place: each promise by itself, and the way back on failure."""

from __future__ import annotations

import json

import pytest
from conftest import run_python

SET_UP = """
import functools, gc, json, os, sys, types, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from jaxpar_magic import devices
from jaxpar_magic.errors import DeviceError

jax.config.update("jax_num_cpu_devices", 3)
old = jax.devices()
mesh = Mesh(np.array(old), ("d",))
sharding = NamedSharding(mesh, P("d"))
single = SingleDeviceSharding(old[1])
device = old[2]

ordinary = jnp.arange(6.0)
computed = ordinary * 2 + 1
integers = jnp.arange(6, dtype=jnp.int32)
sharded = jax.device_put(np.arange(12.0).reshape(6, 2), sharding)
"""

MORE = """
replicated = jax.device_put(np.arange(3.0), NamedSharding(mesh, P()))
placed = jax.device_put(np.arange(4.0), old[1])
key_new, key_old = jax.random.key(7), jax.random.PRNGKey(7)
key_placed = jax.device_put(jax.random.key(8), old[1])
numbers_new = np.asarray(jax.random.normal(key_new, (3,)))
numbers_old = np.asarray(jax.random.normal(key_old, (3,)))

jitted = jax.jit(lambda x: x * 3)
pmapped = jax.pmap(lambda x: x + 1)
vmapped = jax.vmap(lambda x: x - 1)
gradient = jax.grad(lambda x: (x ** 2).sum())
captures = jax.jit(lambda x: x + ordinary)
scanned = jax.jit(lambda x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x))
like = jax.ShapeDtypeStruct((6,), computed.dtype)
called_back = jax.jit(lambda x: jax.pure_callback(lambda y: np.sin(y), like, x))
for f in (jitted, vmapped, gradient, captures, scanned, called_back): f(ordinary)
pmapped(jnp.arange(3.0))
aot = jitted.lower(ordinary).compile()
sharded_sum = jax.jit(lambda x: x.sum(0))(sharded)

params = {"w": sharded, "inner": {"b": placed, "c": ordinary}}
class Model: pass
model = Model()
model.mesh = mesh
model.layers = [types.SimpleNamespace(w=placed)]
named = functools.partial(lambda m, x: x, mesh)
def closure(bound):
    return lambda x: x + bound
added = closure(placed)
text, number, array = "mesh", 3, np.ones(3)

outcomes = {}
def check(function):
    try:
        good = function()
        outcomes[function.__name__] = "ok" if good is None or good else f"gave {good!r}"
    except BaseException as error:
        outcomes[function.__name__] = f"{type(error).__name__}: {str(error)[:300]}"
    return function
"""

CHECKS = """
@check
def count():
    return jax.device_count() == jax.local_device_count() == len(jax.devices("cpu")) == NEW == report.count
@check
def ordinary_arrays_keep_their_value():
    return (np.asarray(ordinary) == np.arange(6)).all() and (np.asarray(integers) == np.arange(6)).all()
@check
def ordinary_arrays_keep_working():
    return (np.asarray(ordinary + jnp.ones(6)) == np.arange(6) + 1).all() and computed.sum() == 36
@check
def sharded_arrays_keep_their_value(): return (np.asarray(sharded) == np.arange(12).reshape(6, 2)).all()
@check
def replicated_arrays_keep_their_value(): return (np.asarray(replicated) == np.arange(3)).all()
@check
def placed_arrays_keep_their_value(): return (jax.device_get(placed) == np.arange(4)).all()
@check
def new_style_keys_keep_working():
    assert (np.asarray(jax.random.normal(key_new, (3,))) == numbers_new).all()
    a, b = jax.random.split(key_new)
    jax.random.fold_in(a, 3)
    return (np.asarray(jax.random.key_data(key_placed)) == np.asarray(jax.random.key_data(jax.random.key(8)))).all()
@check
def old_style_keys_keep_working():
    jax.random.split(key_old)
    return (np.asarray(jax.random.normal(key_old, (3,))) == numbers_old).all()
@check
def jitted_functions_keep_working():
    y = jitted(ordinary)
    return (np.asarray(y) == np.arange(6) * 3).all() and (np.asarray(jitted(jnp.ones(6))) == 3).all()
@check
def jitted_functions_use_the_new_devices(): return jitted(jnp.ones(6)).devices() <= set(jax.devices())
@check
def other_transformed_functions_keep_working():
    assert (np.asarray(vmapped(jnp.ones(6))) == 0).all()
    assert (np.asarray(gradient(jnp.ones(6))) == 2).all()
    assert (np.asarray(captures(jnp.ones(6))) == np.arange(6) + 1).all()
    assert float(scanned(jnp.ones(6))[0]) == 6
    return np.allclose(np.asarray(called_back(jnp.zeros(6))), 0)
@check
def pmapped_functions_use_the_new_devices():
    y = pmapped(jnp.arange(float(NEW)))
    return (np.asarray(y) == np.arange(NEW) + 1).all() and y.devices() == set(jax.devices())
@check
def moving_by_the_advice_works():
    moved = jax.device_put(jax.device_get(sharded))
    new = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
    assert moved.devices() <= set(jax.devices())
    return float((jax.device_put(moved[:2 * NEW // NEW], NamedSharding(new.mesh, P())) + jnp.ones(2)).sum()) == 10
@check
def a_new_mesh_works():
    new = Mesh(np.array(jax.devices()), ("d",))
    x = jax.device_put(jnp.arange(2.0 * NEW), NamedSharding(new, P("d")))
    return len(x.addressable_shards) == NEW and float(jax.jit(lambda v: v.sum())(x)) == sum(range(2 * NEW))
@check
def stale_things_are_stale():
    # the ground for naming them: it fails, or stays on old devices
    assert not sharded.devices() <= set(jax.devices()) and device not in jax.devices()
    assert not set(mesh.devices.flat) <= set(jax.devices())
    new = jax.device_put(jnp.ones(4), jax.devices()[-1])
    try:
        placed + new
    except ValueError as error:
        return "incompatible devices" in str(error)
@check
def what_is_stale_is_named():
    got = {(s.name, s.kind, s.count) for s in report.stale}
    expected = {
        ("mesh", "mesh", 1), ("sharding", "sharding", 1), ("single", "sharding", 1), ("device", "device", 1),
        ("old", "device", 3), ("sharded", "array", 1), ("replicated", "array", 1), ("placed", "array", 1),
        ("key_placed", "array", 1), ("aot", "compiled function", 1), ("sharded_sum", "array", 1),
        ("params", "array", 2), ("model.mesh", "mesh", 1), ("model.layers[0].w", "array", 1),
        ("named (partial)[1]", "mesh", 1), ("added (captures bound)", "array", 1),
    }
    assert got == expected, (got - expected, expected - got)
@check
def the_report_says_what_stays_and_what_does_not():
    text = str(report)
    assert report.was_reset
    for words in ("Every array keeps its value", "Functions compile again at their next use", "Not kept",
                  "sharded = jax.device_put(jax.device_get(sharded))", "run the cell that builds it again"):
        assert " ".join(words.split()) in " ".join(text.split()), words
@check
def settings_are_kept():
    assert jax.config.jax_enable_x64 is True and jax.config.jax_platforms == PLATFORMS
    return jnp.ones(1).dtype == np.float64
@check
def a_later_look_still_names_them():
    later = devices(namespace=globals())
    assert {s.name for s in later.stale} == {s.name for s in report.stale}
    assert not later.was_reset
print(json.dumps(outcomes))
"""

NAMES = [line[4:].partition("(")[0] for line in CHECKS.splitlines() if line.startswith("def ")]


def outcomes(new: int, platforms: str | None) -> dict[str, str]:
    code = (
        SET_UP
        + MORE
        + f"""
NEW, PLATFORMS = {new}, {platforms!r}
report = devices(NEW, namespace=globals())
"""
        + CHECKS
    )
    env = {"JAX_ENABLE_X64": "1", **({"JAX_PLATFORMS": platforms} if platforms else {})}
    return json.loads(run_python(code, env=env).stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[(2, None), (4, "cpu")], ids=["fewer", "more"])
def after_reset(request):
    return outcomes(*request.param)


@pytest.mark.parametrize("promise", NAMES)
def test_promise(after_reset, promise):
    assert after_reset[promise] == "ok"


def test_user_settings_survive_and_a_default_device_moves_along():
    done = run_python(
        SET_UP
        + """
jax.config.update("jax_default_device", old[1])
with jax.default_device(old[2]):
    devices(2)
assert jax.config.jax_default_device == jax.devices()[1], jax.config.jax_default_device
assert jnp.ones(2).devices() == {jax.devices()[1]}
devices(1)
assert jax.config.jax_default_device == jax.devices()[0]
jax.config.update("jax_default_device", None)
devices(2)
assert jax.config.jax_default_device is None
print("fine")
"""
    )
    assert done.stdout.strip() == "fine"


def test_an_active_mesh_is_named():
    done = run_python(
        SET_UP
        + """
set_mesh = getattr(jax, "set_mesh", None) or jax.sharding.set_mesh
set_mesh(mesh)
assert ("jax.set_mesh", "current mesh") not in [(s.name, s.kind) for s in devices(namespace={}).stale]
report = devices(2, namespace={})
print([(s.name, s.kind) for s in report.stale], "jax.set_mesh" in str(report))
"""
    )
    assert done.stdout.strip() == "[('jax.set_mesh', 'current mesh')] True"


@pytest.mark.parametrize("how", ["Exception", "KeyboardInterrupt", "wrong count"])
def test_failure_brings_the_old_backend_itself_back(how):
    """Not one of the same size: everything placed on its devices must be as usable as before."""
    done = run_python(
        SET_UP
        + MORE
        + f"""
how = {how!r}
from jaxlib import xla_client
make = xla_client.make_cpu_client
def failing(*args, **kwargs):
    xla_client.make_cpu_client = make
    if how == "wrong count":
        return make(*args, **{{**kwargs, "num_devices": 5}})
    raise RuntimeError("no room") if how == "Exception" else KeyboardInterrupt()
xla_client.make_cpu_client = failing
jax.config.update("jax_default_device", old[1])
config, environment = dict(jax.config.values), dict(os.environ)
try:
    devices(2, x64=True, debug_nans=True, namespace=globals())
    print("no error")
except DeviceError as error:
    print("DeviceError", "Everything is as it was before" in str(error))
except KeyboardInterrupt:
    print("KeyboardInterrupt")
changed = {{n for n in config if jax.config.values[n] != config[n]}}
assert not changed and dict(os.environ) == environment, changed
assert jax.devices() == old
assert sharded.devices() == set(old) == set(mesh.devices.flat)
assert float((sharded + jax.device_put(jnp.ones((6, 2)), sharding)).sum()) == 78
assert (np.asarray(pmapped(jnp.arange(3.0))) == np.arange(3) + 1).all()
assert aot(jnp.ones(6, device=old[0])).sum() == 18
assert jitted(jnp.ones(3)).devices() == {{old[1]}}
report = devices(2)
assert report.count == jax.device_count() == 2
"""
    )
    expected = {
        "Exception": "DeviceError True",
        "wrong count": "DeviceError True",
        "KeyboardInterrupt": "KeyboardInterrupt",
    }
    assert done.stdout.strip() == expected[how]


def test_refusals_change_nothing():
    done = run_python(
        SET_UP
        + """
config, environment = dict(jax.config.values), dict(os.environ)
from jaxpar_magic.errors import JaxparError
for kwargs in (dict(count=0), dict(count=257), dict(count=True), dict(count="abc"), dict(count=2.5),
               dict(count=2, platform="gpuu"), dict(count=2, platform="gpu"), dict(count=2, visible="0"),
               dict(count=2, flags="--xla_cpu_enable_fast_math=true"), dict(count=2, flags="--xla_bogus=1"),
               dict(count=2, x64=3), dict(count=2, cache="")):
    try:
        devices(**kwargs)
        print("not refused", kwargs)
    except JaxparError as error:
        pass
assert jax.config.values == config and dict(os.environ) == environment and jax.devices() == old
assert sharded.devices() == set(old)
print("fine")
"""
    )
    assert done.stdout.strip() == "fine"


def test_another_thread_that_uses_jax_all_the_time():
    """It may start the backend between clearing and configuring."""
    done = run_python(
        SET_UP
        + """
import threading
stop, seen, errors = threading.Event(), set(), []
def work():
    while not stop.is_set():
        try:
            seen.add(float(jnp.ones(8).sum()))
        except Exception as error:
            errors.append(error)
thread = threading.Thread(target=work)
thread.start()
for n in (2, 4, 1, 3, 2):
    report = devices(n)
    assert report.count == n, report
    assert jax.device_count() == n
stop.set(); thread.join()
print(seen, errors[:1])
"""
    )
    assert done.stdout.strip() == "{8.0} []"


@pytest.mark.slow
def test_any_sequence_of_counts():
    done = run_python(
        SET_UP
        + """
from hypothesis import given, settings, strategies as st
counts = st.integers(1, 6)
@settings(max_examples=10, deadline=None, database=None)
@given(st.lists(st.tuples(counts, st.booleans()), min_size=1, max_size=5))
def sequence(steps):
    x = jnp.arange(24.0)
    total = jax.jit(lambda v: v.sum())
    for n, x64 in steps:
        before = jax.device_count()
        report = devices(n, x64=x64)
        assert report.count == jax.device_count() == n
        assert report.was_reset == (before != n)
        assert jax.config.jax_enable_x64 == x64
        assert float(total(x)) == 276
        y = jax.pmap(lambda v: v * 2)(jnp.arange(float(n)))
        assert (np.asarray(y) == 2 * np.arange(n)).all() and y.devices() == set(jax.devices())
        x = x + jnp.zeros(24)
sequence()
print("fine")
""",
        timeout=300,
    )
    assert done.stdout.strip() == "fine"


def test_the_cache_directory_takes_effect_while_jax_runs(tmp_path):
    done = run_python(
        SET_UP
        + f"""
folder = {str(tmp_path / "c")!r}
devices(cache=folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: jnp.sin(x) * 5)(ordinary)
print(len(os.listdir(folder)) > 0)
"""
    )
    assert done.stdout.strip() == "True"


def test_a_job_of_several_processes_is_refused():
    done = run_python(
        """
        import jax, socket
        with socket.socket() as s:
            s.bind(("localhost", 0)); port = s.getsockname()[1]
        jax.distributed.initialize(f"localhost:{port}", num_processes=1, process_id=0)
        jax.numpy.ones(2)
        from jaxpar_magic import devices
        before = jax.devices()
        try:
            devices(2)
        except Exception as error:
            print(type(error).__name__, "several JAX processes" in str(error), jax.devices() == before)
        """
    )
    assert done.stdout.strip() == "DeviceError True True"
