"""Which meshes and platforms a failure knows of, and which texts of other libraries stay silent."""

from __future__ import annotations

import pytest
from conftest import run_python

from jaxpar_magic.explanations import explain


def test_meshes_and_platforms_of_the_failing_process():
    done = run_python(
        """
        import jax
        jax.config.update("jax_platforms", "cpu")
        from jax.sharding import Mesh
        from jaxpar_magic.explanations.context import Failure

        grid = Mesh(jax.devices(), ("rows",))
        def outer():
            local = Mesh([jax.devices()], ("a", "b"))
            inner()
        def inner():
            raise ValueError("x")
        try:
            outer()
        except ValueError as error:
            failure = Failure.from_exception(error)
        print(failure.meshes["grid"], failure.meshes["local"], failure.environment.platforms)
        """
    )
    assert done.stdout.strip() == "{'rows': 1} {'a': 1, 'b': 1} cpu"


def test_no_meshes_in_text():
    from jaxpar_magic.explanations.context import Failure

    assert Failure.from_text("ValueError: x").meshes == {}


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.64 TiB for an array with shape (10, 10)",
        "OSError: [Errno 98] Address already in use",
        "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
        "TensorFlow: Could not load dynamic library 'libcudnn.so.8'; dlerror: cannot open shared object file",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88",
        "grpc._channel._InactiveRpcError: failed to connect to all addresses",
        "KeyError: 'batch'",
        "AssertionError",
        "MemoryError",
    ],
)
def test_other_libraries_stay_silent(text):
    assert explain(text) is None
