"""What an engine tells of itself, and what it takes over from the notebook.

Engines get this file as text: one with another minor version of Python crashes on a pickled function, and it must
be able to say which version it has. So: the standard library only, and nothing newer than Python 3.8.
"""

import glob
import json
import os
import socket
import sys

_CLIENTS = "_jaxpar_magic_clients"  # in sys.modules, so that all notebooks that use this engine find it
_PACKAGES = ("jax", "jaxlib", "numpy", "cloudpickle", "ipyparallel")


def main(request):
    """Answer a request. Both are JSON: values travel without pickle."""
    asked = json.loads(request)
    return json.dumps(globals()[asked.pop("do")](**asked))


def greet(client, token_file, token, namespace, directory, path):
    """Join the notebook's folder and search path as far as they exist here; tell who and what this engine is."""
    at_home = _read(token_file) == token and process_namespace() == namespace
    moved = True
    try:
        os.chdir(directory)
    except OSError:
        moved = False
    sys.path.extend(entry for entry in path if entry not in sys.path and os.path.exists(entry))
    others = _clients()
    others[client["name"]] = client
    try:
        import jaxpar_magic

        package = jaxpar_magic.__version__
    except Exception:  # not installed, or not for this Python
        package = None
    versions = {name: _version(name) for name in _PACKAGES}
    versions.update(python="{}.{}.{}".format(*sys.version_info), jaxpar_magic=package)
    return dict(
        facts(),
        host=socket.gethostname(),
        pid=os.getpid(),
        versions=versions,
        at_home=at_home,
        moved=moved,
        gpus=_gpus(),
        numbers=sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        others=[other for name, other in others.items() if name != client["name"]],
    )


def settle(variables, options):
    """Set environment variables, and options of jax; tell which cannot be set any more."""
    os.environ.update(variables)
    jax = _jax()
    if jax is None:
        os.environ.update({name.upper(): _text(value) for name, value in options.items() if value is not None})
        return {"too_late": []}
    too_late = [name for name in ("NPROC", "XLA_FLAGS") if name in variables and _runs()]
    for name, value in options.items():
        now = getattr(jax.config, name, value)
        if isinstance(value, str) and isinstance(now, bool):  # the notebook has it from its environment
            value = value.lower() in ("1", "true", "yes", "on", "y", "t")
        elif isinstance(value, str) and isinstance(now, int):
            value = int(value)
        if now == value:
            continue
        try:
            jax.config.update(name, value)
        except Exception:  # such as the number of devices, once they are there
            too_late.append(name)
    return {"too_late": too_late}


def facts():
    """What changes from minute to minute."""
    jax = _jax()
    devices = platform = None
    if _runs():
        platform, devices = jax.default_backend(), jax.local_device_count()
    return {
        "jax_imported": jax is not None,
        "devices": devices,
        "platform": platform,
        "x64": None if jax is None else bool(jax.config.jax_enable_x64),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cores": _cores(),
        "memory_free": _memory_free(),
    }


def leave(name):
    """Forget a notebook."""
    _clients().pop(name, None)
    return {}


def process_namespace():
    """In which the numbers of processes are counted: containers of one machine may have their own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _clients():
    return vars(sys.modules.setdefault(_CLIENTS, type(sys)(_CLIENTS))).setdefault("by_name", {})


def _jax():
    module = sys.modules.get("jax")
    return module if hasattr(module, "jit") else None


def _runs():
    """Whether jax has started a backend."""
    try:
        from jaxpar_magic._jax import live_platforms

        return bool(live_platforms())
    except Exception:  # an engine that cannot import it is refused, with its versions
        return False


def _version(package):
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cores():
    try:
        from jaxpar_magic.machine import usable_cores

        return usable_cores()
    except Exception:
        return os.cpu_count() or 1


def _memory_free():
    try:
        from jaxpar_magic.machine import free_memory

        return free_memory()
    except Exception:
        return None


def _gpus():
    """The GPUs that this engine may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [part for part in chosen.split(",") if part.strip() not in ("", "-1")]
    return sorted(path[len("/dev/nvidia") :] for path in glob.glob("/dev/nvidia[0-9]*"))


def _text(value):
    return str(int(value)) if isinstance(value, bool) else str(value)


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None
