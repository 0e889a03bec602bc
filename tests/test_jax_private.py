"""The private names of JAX that `_jax.py` uses are there and mean what it takes them to mean.

Each test fails the day a JAX release takes its name away or gives it another meaning.
"""

from __future__ import annotations

from conftest import run_python

# --- devices ------------------------------------------------------------------------------------------------


def test_live_platforms_reads_the_backends_that_run():
    """`jax._src.xla_bridge._backends`"""
    done = run_python(
        """
        from jaxpar_magic import _jax
        print(_jax.live_platforms())
        import jax
        from jax._src import xla_bridge
        print(_jax.live_platforms(), xla_bridge._backends)
        jax.numpy.ones(1)
        print(_jax.live_platforms(), sorted(xla_bridge.backends()))
        """
    )
    assert done.stdout.splitlines() == ["()", "() {}", "('cpu',) ['cpu']"]


def test_xla_flag_in_force_tells_what_xla_read():
    """`jaxlib.xla_client.CompileOptions().executable_build_options.debug_options`"""
    done = run_python(
        """
        import os
        import jax
        jax.numpy.ones(1)
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=7"
        from jaxpar_magic import _jax
        names = "xla_force_host_platform_device_count", "xla_cpu_enable_fast_math", "xla_no_such_flag"
        print(*map(_jax.xla_flag_in_force, names))
        """,
        env={"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=true"},
    )
    assert done.stdout.split() == ["2", "True", "None"]


def test_active_mesh_global_default_device_and_base_array():
    """`jax._src.mesh.get_concrete_mesh`, `jax._src.config.default_device.get_global`; `key_data` copies nothing"""
    done = run_python(
        """
        import jax, numpy as np
        from jaxpar_magic import _jax
        jax.config.update("jax_num_cpu_devices", 3)
        first, second, third = jax.devices()
        print(_jax.active_mesh(), _jax.global_default_device())
        jax.config.update("jax_default_device", second)
        with jax.default_device(third):
            print(_jax.global_default_device() == second)
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
        (getattr(jax, "set_mesh", None) or jax.sharding.set_mesh)(mesh)
        print(_jax.active_mesh() == mesh)
        key, x = jax.random.key(0), jax.numpy.ones(1)
        print(any(_jax.base_array(key) is a for a in jax.live_arrays()), _jax.base_array(x) is x)
        """
    )
    assert done.stdout.splitlines() == ["None None", "True", "True", "True True"]


def test_hold_backends_puts_the_same_backend_back():
    """`jax._src.xla_bridge._backends`, `_default_backend`, `_backend_lock`"""
    done = run_python(
        """
        import jax
        from jax.extend.backend import clear_backends
        from jaxpar_magic import _jax
        old = jax.devices()
        put_back = _jax.hold_backends()
        clear_backends()
        new = jax.devices()
        clear_backends()
        put_back()
        print(new == old, jax.devices() == old, jax.numpy.ones(1).devices() == set(old))
        """
    )
    assert done.stdout.split() == ["False", "True", "True"]


def test_shard_views_sees_shards_that_were_looked_at():
    """`addressable_shards` is kept in the array's `__dict__`"""
    done = run_python(
        """
        import jax, numpy as np
        from jaxpar_magic import _jax
        jax.config.update("jax_num_cpu_devices", 2)
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
        x = jax.device_put(np.ones(4), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
        print(_jax.shard_views(x), len(jax.live_arrays()))
        looked = [shard.data for shard in x.addressable_shards]
        views = _jax.shard_views(x)
        print(len(views), all(a is b for a, b in zip(views, looked)), len(jax.live_arrays()))
        """
    )
    assert done.stdout.splitlines() == ["() 1", "2 True 3"]


def test_before_first_backend_is_called_once_and_before_the_flags_are_read():
    """`jaxlib.xla_client.make_cpu_client`, called through its module"""
    done = run_python(
        """
        import os, jax
        from jaxlib import xla_client
        from jaxpar_magic import _jax
        original = xla_client.make_cpu_client
        def late(): os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"; print("called")
        _jax.before_first_backend(late)
        print(jax.device_count(), xla_client.make_cpu_client is original)
        take_back = _jax.before_first_backend(late)
        take_back()
        print(xla_client.make_cpu_client is original)
        """
    )
    assert done.stdout.splitlines() == ["called", "3 True", "True"]


def test_constants_become_arguments():
    """`Jaxpr.replace`, and the order of a jaxpr's constants and inputs."""
    done = run_python(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jaxpar_magic import _jax
        large, small = np.arange(2000.0, dtype=np.float32), np.float32([1, 2])
        def f(x, y):
            return x * large.sum() + y * jnp.asarray(large)[3] + jnp.asarray(small)[1]
        closed = jax.make_jaxpr(f)(1.0, 2.0)
        call, constants = _jax.with_constants_as_arguments(closed, 4096)
        print(all(c.nbytes >= 4096 for c in constants))
        out = jax.jit(call)(*constants, jnp.float32(1), jnp.float32(2))
        print(float(out[0]) == float(large.sum() + 2 * large[3] + 2))
        """
    )
    assert done.stdout.split() == ["True", "True"]


def test_ordered_effects_are_told_by_name():
    """`OrderedDebugEffect`, `OrderedIOEffect`"""
    done = run_python(
        """
        import jax
        from jax.experimental import io_callback
        from jaxpar_magic import _jax
        def debug(ordered):
            return jax.make_jaxpr(lambda x: (jax.debug.callback(print, x, ordered=ordered), x)[1])(1.0)
        def io(ordered):
            return jax.make_jaxpr(lambda x: io_callback(print, None, x, ordered=ordered))(1.0)
        print([_jax.ordered_effects(make(ordered)) for make in (debug, io) for ordered in (True, False)])
        """
    )
    assert done.stdout.strip() == "[True, False, True, False]"


def test_settings_and_readiness():
    """Attributes of `jax.config` inside context managers; `Array.is_ready`"""
    done = run_python(
        """
        import jax, jax.numpy as jnp
        from jaxpar_magic import _jax
        print(_jax.setting("jax_enable_x64"), _jax.setting("no_such_setting", "nothing"))
        with jax.default_matmul_precision("highest"):
            print(_jax.setting("jax_default_matmul_precision"))
        x = jnp.ones(3)
        x.block_until_ready()
        print(_jax.is_ready(x))
        """
    )
    assert done.stdout.split() == ["False", "nothing", "highest", "True"]


def test_the_variable_that_sizes_the_thread_pool():
    code = """
        import os
        import jax
        jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
        print(len(os.listdir("/proc/self/task")))
    """
    few, many = (int(run_python(code, env={"NPROC": n}).stdout) for n in ("3", "7"))
    assert many - few >= 4


def test_the_context_of_an_equation():
    """`ctx` of a jaxpr's equations, with what it is compared by"""
    done = run_python(
        """
        import jax
        from jaxpar_magic import _jax
        def contexts(partitionable):
            with jax.threefry_partitionable(partitionable):
                jaxpr = jax.make_jaxpr(lambda x: x + 1)(1.0)
            return [_jax.equation_context(e) for e in jaxpr.jaxpr.eqns]
        print(contexts(True) == contexts(True), contexts(True) == contexts(False))
        """
    )
    assert done.stdout.split() == ["True", "False"]


def test_collectives_listen_where_they_are_told():
    """`jaxlib._jax.make_gloo_tcp_collectives`, by its module and with `hostname`"""
    done = run_python(
        """
        import socket, jax
        from jaxlib import _jax as module
        from jaxpar_magic import _jax
        heard = []
        original = module.make_gloo_tcp_collectives
        def listen(*args, **kwargs):
            heard.append(kwargs["hostname"])
            return original(*args, **kwargs)
        module.make_gloo_tcp_collectives = listen
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % probe.getsockname()[1]
        own = dict(coordinator_bind_address=address, cluster_detection_method="deactivate")
        jax.distributed.initialize(address, 1, 0, **own)
        with _jax.collectives_listening_on("127.0.0.1"):
            jax.devices()
        print(heard, module.make_gloo_tcp_collectives is listen)
        """
    )
    assert done.stdout.splitlines()[-1] == "['127.0.0.1'] True"


def test_functions_of_a_registered_class_can_be_had():
    """`jax._src.tree_util._registry`"""
    import dataclasses

    import jax

    from jaxpar_magic import _jax

    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, *parts):
            self.parts = parts

        def tree_flatten(self):
            return self.parts, "kept"

        @classmethod
        def tree_unflatten(cls, kept, parts):
            return cls(*parts)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Body:
        mass: int
        name: str = dataclasses.field(metadata={"static": True})

    flatten, unflatten = _jax.registered_pytree(Pair)
    children, kept = flatten(Pair(1, 2))
    assert (tuple(children), kept) == ((1, 2), "kept") and unflatten(kept, (3, 4)).parts == (3, 4)
    flatten, unflatten = _jax.registered_pytree(Body)
    children, kept = flatten(Body(5, "moon"))
    assert unflatten(kept, children) == Body(5, "moon")
    assert _jax.registered_pytree(str) is None
