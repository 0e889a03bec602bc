"""Arrays that stay on the engines of a mesh, each engine holding its items."""

from __future__ import annotations

import secrets
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ClusterError
from . import engine_spmd
from .transport import unpack

if TYPE_CHECKING:
    from .mesh import Mesh


class ClusterArray:
    """An array whose items lie on the engines of a cluster: a result of `parmap(…, spmd=True, keep_sharded=True)`.

    As an input of another SPMD map it does not travel. `gather()` brings it to the notebook, and so does any other
    use of it as an array. It ends with the mesh of the engines: when an engine is lost, or a map was interrupted.

    Attributes
    ----------
    shape: of the whole array, (items, …).
    dtype: numpy's.

    Examples
    --------
    >>> ys = parmap(f, xs, strategy="cluster", spmd=True, keep_sharded=True)      # doctest: +SKIP
    >>> total = parmap(g, ys, strategy="cluster", spmd=True)                       # doctest: +SKIP
    >>> ys.gather()                                                                # doctest: +SKIP
    """

    def __init__(self, mesh: Mesh, shape: tuple[int, ...], dtype: Any):
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.name = secrets.token_hex(8)
        self._mesh = mesh
        self._host: np.ndarray | None = None

    def kept(self) -> ClusterArray:
        """From now on it is on the engines, until nobody uses it any more."""
        self._mesh.kept.add(self)
        weakref.finalize(self, self._mesh.forget.append, self.name)
        return self

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def on(self, mesh: Mesh) -> str:
        """Its name on the engines of a mesh. ClusterError if it is not there any more."""
        if mesh is not self._mesh or not mesh.usable:
            raise ClusterError(
                f"{self!r} is gone: the mesh that held it has ended (an engine was lost, a program was interrupted or "
                "failed, or the cluster was stopped).",
                next_step="compute it again. To outlive that, gather() it.",
            )
        return self.name

    def gather(self) -> Any:
        """The whole array in the notebook, as a JAX array.

        Raises
        ------
        ClusterError
            The mesh that held it has ended, or an engine ended while sending.
        """
        import jax

        return jax.device_put(np.asarray(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._host is None:
            self.on(self._mesh)
            with self._mesh.cluster.lock:
                parts = self._mesh.call(
                    engine_spmd.rows, [(self.name, self.shape[0])] * len(self._mesh.engines), lambda: None
                )
            self._host = np.concatenate([unpack(where, buffers)[0] for where, *buffers in parts])
        return self._host if dtype is None else self._host.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __repr__(self) -> str:
        return f"ClusterArray({self.dtype.name}[{', '.join(map(str, self.shape))}] on {self._mesh})"
