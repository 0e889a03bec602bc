"""What is measured: functions of one item, as people bring them from numpy and `multiprocessing.Pool.map`.

Each is there twice: for JAX, and for numpy or scipy. All randomness comes from the items, so that results depend
neither on the number of devices nor on the order. The numpy versions, and importing this module, need no JAX: worker
processes stay light.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# -------------------------------------------------------------------- small ODE, fixed steps

LV_STEPS, LV_H = 1000, 0.02


def ode_rk4(p):
    """Lotka-Volterra by Runge-Kutta 4 with fixed steps; p = (a, b, c, d). Final (prey, predator)."""
    import jax.numpy as jnp
    from jax import lax

    a, b, c, d = p[0], p[1], p[2], p[3]
    h = LV_H

    def rhs(y):
        return jnp.stack([a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]])

    def step(y, _):
        k1 = rhs(y)
        k2 = rhs(y + h / 2 * k1)
        k3 = rhs(y + h / 2 * k2)
        k4 = rhs(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return lax.scan(step, jnp.array([1.0, 1.0], p.dtype), None, length=LV_STEPS)[0]


def ode_rk4_np(p):
    a, b, c, d = (float(v) for v in p)
    h = LV_H
    y = np.array([1.0, 1.0])

    def rhs(y):
        return np.array([a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]])

    for _ in range(LV_STEPS):
        k1 = rhs(y)
        k2 = rhs(y + h / 2 * k1)
        k3 = rhs(y + h / 2 * k2)
        k4 = rhs(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def make_ode_rk4(n):
    rng = np.random.default_rng(0)
    return rng.uniform([0.8, 0.5, 0.8, 0.4], [1.4, 1.1, 1.6, 0.9], size=(n, 4)).astype(np.float32)


# -------------------------------------------------------------------- loops of very different lengths

ESCAPE_MAX = 5000


def escape_time(c):
    """Mandelbrot escape count of one point c = (re, im): 1 to ESCAPE_MAX iterations."""
    import jax.numpy as jnp
    from jax import lax

    re, im = c[0], c[1]

    def inside(state):
        x, y, k = state
        return (x * x + y * y <= 4.0) & (k < ESCAPE_MAX)

    def step(state):
        x, y, k = state
        return x * x - y * y + re, 2 * x * y + im, k + 1

    return lax.while_loop(inside, step, (jnp.zeros_like(re), jnp.zeros_like(re), jnp.int32(0)))[2]


def escape_time_np(c):
    re, im = float(c[0]), float(c[1])
    x = y = 0.0
    k = 0
    while x * x + y * y <= 4.0 and k < ESCAPE_MAX:
        x, y = x * x - y * y + re, 2 * x * y + im
        k += 1
    return k


def make_escape_time(n):
    """2 % of the points need all iterations, the others fewer than 30; the slow ones stand together at the end."""
    rng = np.random.default_rng(1)
    slow = max(1, n // 50)
    points = np.empty((n, 2), np.float32)
    angle = rng.uniform(0, 2 * np.pi, n - slow)
    radius = rng.uniform(0.3, 1.0, n - slow)  # a ring well outside the set, where counts are not chaotic
    points[: n - slow] = np.stack([radius * np.cos(angle) + 1.5, radius * np.sin(angle)], 1)
    points[n - slow :] = np.stack([rng.uniform(-0.2, 0.1, slow), rng.uniform(-0.2, 0.2, slow)], 1)
    return points


# -------------------------------------------------------------------- adaptive ODE solver


def adaptive_vdp(mu):
    """Van der Pol by Bogacki-Shampine 3(2) with adaptive steps, t from 0 to 20; more steps for larger mu."""
    import jax.numpy as jnp
    from jax import lax

    tolerance = 1e-4

    def rhs(y):
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    def running(state):
        t, _, _, _, n = state
        return (t < 20.0) & (n < 20000)

    def step(state):
        t, y, h, k1, n = state
        h = jnp.minimum(h, 20.0 - t)
        k2 = rhs(y + h / 2 * k1)
        k3 = rhs(y + 3 * h / 4 * k2)
        new = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        k4 = rhs(new)
        error = h * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
        scale = tolerance + tolerance * jnp.maximum(jnp.abs(y), jnp.abs(new))
        norm = jnp.sqrt(jnp.mean((error / scale) ** 2))
        good = norm <= 1.0
        factor = jnp.clip(0.9 * jnp.maximum(norm, 1e-10) ** (-1 / 3), 0.2, 5.0)
        return jnp.where(good, t + h, t), jnp.where(good, new, y), h * factor, jnp.where(good, k4, k1), n + 1

    y0 = jnp.array([2.0, 0.0], mu.dtype)
    start = (jnp.zeros((), mu.dtype), y0, jnp.full((), 0.01, mu.dtype), rhs(y0), jnp.int32(0))
    _, y, _, _, n = lax.while_loop(running, step, start)
    return {"y": y, "steps": n}


def adaptive_vdp_np(mu):
    from scipy.integrate import solve_ivp

    mu = float(mu)

    def rhs(t, y):
        return [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]]

    solution = solve_ivp(rhs, (0, 20), [2.0, 0.0], method="RK23", rtol=1e-4, atol=1e-4)
    return {"y": solution.y[:, -1], "steps": solution.t.size - 1}


def make_adaptive_vdp(n):
    return np.linspace(0.1, 60.0, n, dtype=np.float32)


# -------------------------------------------------------------------- small linear algebra


def small_linalg(item):
    """log N(y | 0, K) for an 8×8 covariance: Cholesky and a triangular solve, the inner step of a Gaussian process."""
    import jax
    import jax.numpy as jnp

    lower = jnp.linalg.cholesky(item["K"])
    z = jax.scipy.linalg.solve_triangular(lower, item["y"], lower=True)
    n = item["y"].shape[0]
    return -0.5 * z @ z - jnp.sum(jnp.log(jnp.diag(lower))) - 0.5 * n * math.log(2 * math.pi)


def small_linalg_np(item):
    lower = np.linalg.cholesky(item["K"])
    z = np.linalg.solve(lower, item["y"])
    n = item["y"].shape[0]
    return -0.5 * z @ z - np.sum(np.log(np.diag(lower))) - 0.5 * n * math.log(2 * math.pi)


def make_small_linalg(n):
    rng = np.random.default_rng(2)
    a = rng.normal(size=(n, 8, 8)).astype(np.float32)
    covariance = a @ a.transpose(0, 2, 1) + 8 * np.eye(8, dtype=np.float32)
    return {"K": covariance, "y": rng.normal(size=(n, 8)).astype(np.float32)}


# -------------------------------------------------------------------- arithmetic on many numbers


def elementwise(x):
    """A scalar function of 30 transcendental operations."""
    import jax.numpy as jnp

    for _ in range(10):
        x = jnp.sin(x) * 1.01 + jnp.exp(-x * x) + jnp.tanh(x)
    return x


def elementwise_np(x):
    """Takes a whole array: people vectorise this one by hand in numpy."""
    for _ in range(10):
        x = np.sin(x) * 1.01 + np.exp(-x * x) + np.tanh(x)
    return x


def make_elementwise(n):
    return np.random.default_rng(3).normal(size=n).astype(np.float32)


# -------------------------------------------------------------------- Monte Carlo, a key for each item

MC_PATHS, MC_STEPS = 512, 50
_S0, _STRIKE, _BARRIER, _RATE = 100.0, 100.0, 80.0, 0.03
_DT = 1.0 / MC_STEPS


def mc_barrier(item):
    """A down-and-out call by simulation; item = {"key": uint32[2], "sigma": float32}."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    z = jax.random.normal(jax.random.wrap_key_data(item["key"]), (MC_STEPS, MC_PATHS))
    sigma = item["sigma"]

    def step(state, zi):
        s, alive = state
        s = s * jnp.exp((_RATE - 0.5 * sigma * sigma) * _DT + sigma * math.sqrt(_DT) * zi)
        return (s, alive & (s > _BARRIER)), None

    (s, alive), _ = lax.scan(step, (jnp.full((MC_PATHS,), _S0), jnp.ones((MC_PATHS,), bool)), z)
    return jnp.mean(jnp.where(alive, jnp.maximum(s - _STRIKE, 0.0), 0.0)) * math.exp(-_RATE)


def mc_barrier_np(item):
    rng = np.random.default_rng([int(v) for v in item["key"]])
    sigma = float(item["sigma"])
    s, alive = np.full(MC_PATHS, _S0), np.ones(MC_PATHS, bool)
    for _ in range(MC_STEPS):
        normal = rng.standard_normal(MC_PATHS)
        s = s * np.exp((_RATE - 0.5 * sigma * sigma) * _DT + sigma * math.sqrt(_DT) * normal)
        alive &= s > _BARRIER
    return np.mean(np.where(alive, np.maximum(s - _STRIKE, 0.0), 0.0)) * math.exp(-_RATE)


def make_mc_barrier(n):
    keys = np.stack([np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32)], 1)
    return {"key": keys, "sigma": np.linspace(0.1, 0.5, n, dtype=np.float32)}


# -------------------------------------------------------------------- few long chains

MCMC_STEPS = 20_000
_rng = np.random.default_rng(4)
_X = np.concatenate([np.ones((100, 1)), _rng.normal(size=(100, 3))], 1).astype(np.float32)
_Y = (_rng.random(100) < 1 / (1 + np.exp(-_X @ np.array([0.5, -1, 2, 0.3])))).astype(np.float32)


def mcmc_chain(key_data):
    """Random-walk Metropolis for a logistic regression (100×4): the mean of the chain's second half."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    x, y = jnp.asarray(_X), jnp.asarray(_Y)

    def log_density(b):
        logit = x @ b
        return jnp.sum(y * logit - jnp.logaddexp(0.0, logit)) - 0.5 * jnp.sum(b * b) / 9.0

    def step(state, key):
        b, density = state
        for_move, for_choice = jax.random.split(key)
        new = b + 0.25 * jax.random.normal(for_move, b.shape)
        new_density = log_density(new)
        accepted = jnp.log(jax.random.uniform(for_choice)) < new_density - density
        b, density = jnp.where(accepted, new, b), jnp.where(accepted, new_density, density)
        return (b, density), b

    start = jnp.zeros(4, jnp.float32)
    keys = jax.random.split(jax.random.wrap_key_data(key_data), MCMC_STEPS)
    _, chain = lax.scan(step, (start, log_density(start)), keys)
    return chain[MCMC_STEPS // 2 :].mean(0)


def mcmc_chain_np(key_data):
    rng = np.random.default_rng([int(v) for v in key_data])

    def log_density(b):
        logit = _X @ b
        return np.sum(_Y * logit - np.logaddexp(0.0, logit)) - 0.5 * np.sum(b * b) / 9.0

    b, total = np.zeros(4), np.zeros(4)
    density = log_density(b)
    for i in range(MCMC_STEPS):
        new = b + 0.25 * rng.standard_normal(4)
        new_density = log_density(new)
        if np.log(rng.random()) < new_density - density:
            b, density = new, new_density
        if i >= MCMC_STEPS // 2:
            total += b
    return total / (MCMC_STEPS // 2)


def make_mcmc_chain(n):
    return np.stack([np.full(n, 7, np.uint32), np.arange(n, dtype=np.uint32)], 1)


# -------------------------------------------------------------------- a likelihood over a grid

_observed = np.random.default_rng(5).normal(1.3, 0.7, size=2000).astype(np.float32)


def loglik_grid(theta):
    """Student-t log likelihood of 2,000 captured observations at theta = (mu, log_s)."""
    import jax.numpy as jnp

    z = (jnp.asarray(_observed) - theta[0]) * jnp.exp(-theta[1])
    return jnp.sum(-2.5 * jnp.log1p(z * z / 4.0) - theta[1])


def loglik_grid_np(theta):
    z = (_observed - theta[0]) * np.exp(-theta[1])
    return np.sum(-2.5 * np.log1p(z * z / 4.0) - theta[1])


def make_loglik_grid(n):
    k = math.isqrt(n)
    grid = np.meshgrid(np.linspace(0, 3, k), np.linspace(-2, 1, n // k), indexing="ij")
    return np.stack(grid, -1).reshape(-1, 2).astype(np.float32)


# -------------------------------------------------------------------- images

_kernel = np.outer(np.hanning(11)[1:-1], np.hanning(11)[1:-1]).astype(np.float32)
_kernel /= _kernel.sum()


def image_conv(image):
    """9×9 blur, size of the gradient, mean; one image of 128×128."""
    import jax
    import jax.numpy as jnp

    blurred = jax.scipy.signal.convolve2d(image, jnp.asarray(_kernel), mode="same")
    gx, gy = blurred[1:-1, 2:] - blurred[1:-1, :-2], blurred[2:, 1:-1] - blurred[:-2, 1:-1]
    return jnp.sqrt(gx * gx + gy * gy).mean()


def image_conv_np(image):
    from scipy.signal import convolve2d

    blurred = convolve2d(image, _kernel, mode="same")
    gx, gy = blurred[1:-1, 2:] - blurred[1:-1, :-2], blurred[2:, 1:-1] - blurred[:-2, 1:-1]
    return np.sqrt(gx * gx + gy * gy).mean()


def make_image_conv(n):
    return np.random.default_rng(6).random((n, 128, 128), np.float32)


# -------------------------------------------------------------------- an optimizer from many starts

GD_STEPS = 1000


def gd_multistart(start):
    """Adam on the 10-dimensional Rosenbrock function from one start: the best value, and where."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def value(x):
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    def step(state, t):
        x, m, v = state
        d = jax.grad(value)(x)
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d * d
        x = x - 0.02 * (m / (1 - 0.9 ** (t + 1))) / (jnp.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8)
        return (x, m, v), None

    zeros = jnp.zeros_like(start)
    (x, _, _), _ = lax.scan(step, (start, zeros, zeros), jnp.arange(GD_STEPS, dtype=start.dtype))
    return {"f": value(x), "x": x}


def gd_multistart_np(start):
    def gradient(x):
        d = np.zeros_like(x)
        d[:-1] = -400 * x[:-1] * (x[1:] - x[:-1] ** 2) - 2 * (1 - x[:-1])
        d[1:] += 200 * (x[1:] - x[:-1] ** 2)
        return d

    x = start.astype(float)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t in range(1, GD_STEPS + 1):
        d = gradient(x)
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d * d
        x = x - 0.02 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return {"f": np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2), "x": x}


def make_gd_multistart(n):
    return np.random.default_rng(7).uniform(-2, 2, size=(n, 10)).astype(np.float32)


# -------------------------------------------------------------------- bootstrap of a big sample

BOOTSTRAP_SIZE = 50_000
_sample = np.random.default_rng(8).lognormal(size=BOOTSTRAP_SIZE).astype(np.float32)


def bootstrap_median(key_data):
    """The median of one resample of 50,000 points."""
    import jax
    import jax.numpy as jnp

    index = jax.random.randint(jax.random.wrap_key_data(key_data), (BOOTSTRAP_SIZE,), 0, BOOTSTRAP_SIZE)
    return jnp.median(jnp.asarray(_sample)[index])


def bootstrap_median_np(key_data):
    rng = np.random.default_rng([int(v) for v in key_data])
    return np.median(_sample[rng.integers(0, BOOTSTRAP_SIZE, BOOTSTRAP_SIZE)])


def make_bootstrap_median(n):
    return np.stack([np.full(n, 11, np.uint32), np.arange(n, dtype=np.uint32)], 1)


# -------------------------------------------------------------------- next to nothing


def tiny(x):
    """One multiplication and one addition."""
    return x * x + 1.0


tiny_np = tiny


def make_tiny(n):
    return np.arange(n, dtype=np.float32)


# -------------------------------------------------------------------- what JAX cannot trace


def scipy_quad(p):
    """The root of an integral equation by scipy: brentq over quad."""
    from scipy.integrate import quad
    from scipy.optimize import brentq

    p = float(p)

    def equation(a):
        return quad(lambda t: math.exp(-a * t) * (1.0 + math.cos(p * t)), 0, 5)[0] - 1.0

    return brentq(equation, 0.01, 50.0)


def make_scipy_quad(n):
    return np.linspace(0.1, 2.0, n)


# -------------------------------------------------------------------- all of them


@dataclass(frozen=True)
class Workload:
    """A function with inputs, and how its results are judged.

    Attributes
    ----------
    why: what it stands for.
    function: of one item, for JAX; None where JAX cannot trace it.
    numpy_function: the same with numpy, scipy or plain Python.
    make: number of items → inputs, stacked along axis 0.
    size: items for JAX: tens of milliseconds of work on two cores.
    numpy_size: items for the numpy version, spread over the whole range; times are scaled to `size` items.
    compute_bound: all cores ought to speed it up in full.
    takes_arrays: the numpy version takes many items at once.
    tolerance: by how much an item's result may differ between two ways to run it, relative to its size.
    chaotic_share: the share of the items that may differ by more, as rounding decides about their loops.
    numpy_tolerance: the same for the numpy version, which computes in float64.
    numpy_mean_only: the numpy version draws other random numbers: only the means over all items can agree.
    waits_in_pool: its batched LAPACK calls wait inside XLA's thread pool for other threads of that pool. With as many
        of them under way as the pool has threads, all wait for ever (seen on JAX 0.10.2, whoever calls), so that it is
        measured with a pool twice as large as the number of cores.
    leaf: the part of the result that the numpy version shares, or None for all.
    """

    why: str
    function: Callable[[Any], Any] | None
    numpy_function: Callable[[Any], Any]
    make: Callable[[int], Any]
    size: int
    numpy_size: int
    compute_bound: bool = False
    takes_arrays: bool = False
    tolerance: float = 1e-4
    chaotic_share: float = 0.0
    numpy_tolerance: float = 1e-3
    numpy_mean_only: bool = False
    waits_in_pool: bool = False
    leaf: str | None = None


WORKLOADS = {
    "ode_rk4": Workload(
        "a parameter sweep of a small ODE: a long loop of tiny operations",
        ode_rk4,
        ode_rk4_np,
        make_ode_rk4,
        65_536,
        8,
        compute_bound=True,
    ),
    "escape_time": Workload(
        "loops of very different lengths, slow items together at the end: vmap waits for the slowest item, "
        "equal parts for the slowest device",
        escape_time,
        escape_time_np,
        make_escape_time,
        100_000,
        20_000,
        compute_bound=True,
        chaotic_share=0.001,
    ),
    "adaptive_vdp": Workload(
        "an adaptive solver: nine times as many steps for some items; several results",
        adaptive_vdp,
        adaptive_vdp_np,
        make_adaptive_vdp,
        4096,
        16,
        compute_bound=True,
        tolerance=0.05,
        chaotic_share=0.02,
        numpy_tolerance=0.1,
        leaf="y",
    ),
    "small_linalg": Workload(
        "small matrices: one LAPACK call after another inside the map; dict inputs",
        small_linalg,
        small_linalg_np,
        make_small_linalg,
        100_000,
        4000,
        waits_in_pool=True,
        tolerance=1e-3,
    ),
    "elementwise": Workload(
        "arithmetic on a large array, which XLA spreads over the cores by itself",
        elementwise,
        elementwise_np,
        make_elementwise,
        2_000_000,
        2_000_000,
        takes_arrays=True,
        tolerance=1e-3,
        chaotic_share=0.001,
    ),
    "mc_barrier": Workload(
        "a Monte Carlo simulation with a random key for each item",
        mc_barrier,
        mc_barrier_np,
        make_mc_barrier,
        400,
        100,
        compute_bound=True,
        tolerance=1e-3,
        chaotic_share=0.02,
        numpy_tolerance=0.1,
        numpy_mean_only=True,
    ),
    "mcmc_chain": Workload(
        "a few long chains: nothing to vectorise, parallel only across items",
        mcmc_chain,
        mcmc_chain_np,
        make_mcmc_chain,
        8,
        2,
        tolerance=0.1,
        chaotic_share=0.5,
        numpy_tolerance=0.3,
        numpy_mean_only=True,
    ),
    "loglik_grid": Workload(
        "a likelihood over a parameter grid, with captured data",
        loglik_grid,
        loglik_grid_np,
        make_loglik_grid,
        65_536,
        8192,
        tolerance=1e-3,
    ),
    "image_conv": Workload(
        "a convolution for each image",
        image_conv,
        image_conv_np,
        make_image_conv,
        256,
        64,
    ),
    "gd_multistart": Workload(
        "an optimizer from many starts; several results",
        gd_multistart,
        gd_multistart_np,
        make_gd_multistart,
        4096,
        16,
        compute_bound=True,
        tolerance=0.01,
        chaotic_share=0.02,
        numpy_tolerance=0.05,
    ),
    "bootstrap_median": Workload(
        "resampling: vmap holds every resample at once",
        bootstrap_median,
        bootstrap_median_np,
        make_bootstrap_median,
        40,
        40,
        numpy_tolerance=0.05,
        numpy_mean_only=True,
    ),
    "tiny": Workload(
        "next to nothing: what a call costs",
        tiny,
        tiny_np,
        make_tiny,
        1000,
        1000,
    ),
    "scipy_quad": Workload(
        "scipy, which JAX cannot trace: only processes help",
        None,
        scipy_quad,
        make_scipy_quad,
        3000,
        3000,
    ),
}
