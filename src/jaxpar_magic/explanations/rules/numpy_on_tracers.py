"""numpy, scipy and other libraries called on a value that JAX traces."""

from __future__ import annotations

import re
import sys
from typing import Any

from ... import _jax
from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ._lines import tracing

_WHY = (
    "While JAX traces a function{transform}, its values are stand-ins (tracers) that have a shape and a dtype but no "
    "numbers yet. {who} computes with numbers at once, so it cannot take them."
)

_SPELLED_OTHERWISE = {"concat": "concatenate", "product": "prod", "in1d": "isin", "asscalar": "asarray"}

# ufuncs of scipy.special that jax.scipy.special has
_SPECIAL = frozenset(
    ["bernoulli", "beta", "betainc", "betaln", "digamma", "entr", "erf", "erfc", "erfinv", "exp1", "expi", "expit"]
    + ["expn", "factorial", "gamma", "gammainc", "gammaincc", "gammaln", "hyp1f1", "hyp2f1", "i0", "i0e", "i1", "i1e"]
    + ["kl_div", "log_ndtr", "log_softmax", "logit", "loggamma", "multigammaln", "ndtr", "ndtri", "poch", "polygamma"]
    + ["rel_entr", "softmax", "spence", "xlog1py", "xlogy", "zeta"]
)


def _traced(failure: Failure) -> str:
    match = failure.search(r"traced array with shape (\w+\[[^\]]*\])")
    return match.group(1) if match is not None else "traced value"


def _depends(failure: Failure) -> str:
    function, _, argument = tracing(failure)
    inside = f" in {function}" if function is not None and function.isidentifier() else ""
    return inside + (f" (it depends on the argument {argument})" if argument else "")


def _why(failure: Failure, who: str) -> str:
    _, transform, _ = tracing(failure)
    return _WHY.format(transform=f" for {transform}" if transform else "", who=who)


def _numpy_call(failure: Failure) -> Call | None:
    """The user's call of a numpy function, by whatever name: `np.sin`, `numpy.linalg.norm`, `sin`."""
    for frame in failure.user_frames[:1]:
        for call in frame.calls:
            if not re.fullmatch(r"[\w.]+", call.function):
                continue
            root = call.function.split(".", 1)[0]
            variable = failure.variable(root)
            if variable is None:
                numpys = root in ("np", "numpy", "onp")
            elif variable.type == "module":
                numpys = variable.value is not None and re.match(r"numpy\b", variable.value) is not None
            else:
                numpys = variable.module is not None and re.match(r"numpy\b", variable.module) is not None
            if numpys:
                return call
    return None


def _jax_name(failure: Failure, call: Call) -> str | None:
    """JAX's function of the same name, if there is one: "jnp.sin", "jax.scipy.special.erf"."""
    root, _, rest = call.function.partition(".")
    variable = failure.variable(root)
    dotted = rest or (variable.value if variable is not None and variable.value else root)
    prefix = ""
    if variable is not None and variable.type == "module" and variable.value and "." in variable.value:
        prefix = variable.value.split(".", 1)[1] + "."  # `from numpy import linalg`
    dotted = _SPELLED_OTHERWISE.get(dotted, dotted)
    jax = _jax.imported_jax()
    found: Any = sys.modules.get("jax.numpy")
    for part in (prefix + dotted).split("."):
        found = getattr(found, part, None)
    if found is not None or jax is None:
        return f"jnp.{prefix}{dotted}"
    return f"jax.scipy.special.{dotted}" if dotted in _SPECIAL else None


def _library(failure: Failure) -> str | None:
    """The library beneath the user's line that asked for numbers."""
    packages = [f.package for f in failure.inner_frames if f.package not in ("jax", "own", "stdlib", "numpy")]
    return packages[0] if packages else None


def _same_shape_callback(failure: Failure, call: Call | None) -> Fix | None:
    """The call through pure_callback, for a function whose result has the shape of its first argument."""
    x = call.args[0] if call is not None and call.args else "x"
    variable = failure.variable(x)
    if call is not None and (variable is None or not variable.tracer) and len(call.args) + len(call.keywords) > 1:
        return None  # which of the arguments is traced, and what comes out, is not known
    if call is None or not x.isidentifier() or (variable is not None and not variable.tracer):
        return _callback_fix(f"{call.function if call is not None else 'function'}(v)", x)
    inside = call.source.replace(f"({x}", "(v", 1)
    new = f"jax.pure_callback(lambda v: {inside}, jax.ShapeDtypeStruct({x}.shape, {x}.dtype), {x})"
    title = "Or call it from within, through a callback (if its result has the shape and dtype of its argument)"
    return Fix(title, failure.rewrite(call.source, new) or new)


def _special_call(failure: Failure) -> Call | None:
    """The user's call of a compiled function of scipy.special, which leaves no frame in the traceback."""
    for call in failure.user.calls if failure.user is not None else ():
        root, _, rest = call.function.partition(".")
        variable = failure.variable(root)
        path = f"{variable.value}.{rest}" if variable is not None and variable.type == "module" else call.function
        if re.match(r"scipy\.special\.\w+$", path):
            return call
    return None


def _callback_fix(call: str, argument: str) -> Fix:
    return Fix(
        "Or run it outside JAX from within, with the result's shape declared",
        f"result = jax.pure_callback(lambda v: {call}, jax.ShapeDtypeStruct((), jnp.float32), {argument})",
    )


# Functions of numpy.random and of Python's random with the same kind of numbers in jax.random.
_DRAWN = {"rand": "uniform", "random": "uniform", "random_sample": "uniform", "uniform": "uniform", "randn": "normal",
          "normal": "normal", "standard_normal": "normal", "gauss": "normal", "randint": "randint", "choice": "choice",
          "permutation": "permutation", "shuffle": "permutation", "poisson": "poisson", "beta": "beta",
          "exponential": "exponential", "gamma": "gamma", "integers": "randint", "randrange": "randint",
          "binomial": "binomial", "multivariate_normal": "multivariate_normal"}  # fmt: skip


@rule(
    "JPX0534",
    "random-numbers-of-another-library",
    types=(
        "TypeError",
        "TracerArrayConversionError",
        "TracerIntegerConversionError",
        "ConcretizationTypeError",
        "ValueError",
    ),
    clues=("__array__", "__index__", "SeedSequence", "concrete value", "expected a sequence of integers"),
    priority=20,
)
def random_numbers_of_another_library(failure: Failure) -> Finding | None:
    seeds = failure.search(r"SeedSequence expects int or sequence of ints for entropy not (?:.*Tracer|Traced<)")
    traced = failure.is_a(
        "TracerArrayConversionError", "TracerIntegerConversionError", "ConcretizationTypeError"
    ) or failure.search(r"^expected a sequence of integers or a single integer, got '.*Tracer")
    if not seeds and not traced:
        return None
    call = None
    for candidate in failure.user.calls if failure.user is not None else ():
        root = candidate.function.partition(".")[0]
        variable = failure.variable(root)
        module = variable.value if variable is not None and variable.type == "module" else root
        if re.fullmatch(r"(np|numpy|onp)\.random\.\w+", candidate.function) or (
            module in ("random", "numpy.random") and re.fullmatch(r"\w+\.\w+", candidate.function)
        ):
            call = candidate
            break
    if call is None and not seeds:
        return None
    name = call.name if call is not None else "default_rng"
    argument = call.args[0] if call is not None and call.args else "seed"
    library = "Python's random" if call is not None and re.match(r"random\.", call.function) else "numpy"
    shown = f"`{call.source}`" if call is not None else f"A generator of {library}"
    if seeds or name in ("seed", "default_rng", "RandomState"):
        what = f"{shown} takes a seed, and got a traced value, which has no number yet{_depends(failure)}."
        code = f"key = jax.random.key({argument})\nnoise = jax.random.normal(key, (3,))"
    else:
        what = f"{shown} draws its numbers in {library}, and got a traced value{_depends(failure)}."
        drawn = _DRAWN.get(name, "uniform")
        code = f"key = jax.random.key(0)\nnumbers = jax.random.{drawn}(key)"
        arguments = ", ".join(call.args) if call is not None else ""
        if drawn == "randint":
            bounds = arguments if "," in arguments else f"0, {arguments}"
            code = f"key = jax.random.key(0)\nnumbers = jax.random.randint(key, (), {bounds})"
        elif drawn in ("permutation", "choice") and call is not None and call.args:
            code = f"key = jax.random.key(0)\nnumbers = jax.random.{drawn}(key, {call.args[0]})"
    return Finding(
        what=what,
        why="JAX runs the Python function once, with stand-ins for the values, and then only the compiled program. "
        f"{library} would draw once, while JAX traces, and the numbers would be the same at every call. jax.random "
        "draws each time; what comes out follows from the key.",
        fixes=[Fix("Draw with jax.random (give each call of the function another key)", code)],
        facts={"function": call.function if call is not None else None},
    )


@rule(
    "JPX0512", "library-on-a-traced-value", types=("TracerArrayConversionError", "ConcretizationTypeError"), priority=5
)
def library_on_a_traced_value(failure: Failure) -> Finding | None:
    if not failure.search(r"__array__\(\) was called|__float__|concrete value"):
        return None
    call = failure.outer_call
    library = _library(failure) or ("scipy" if _special_call(failure) is not None else None)
    call = _special_call(failure) or call
    if library is None:
        return None
    function = call.function if call is not None else f"a function of {library}"
    _, transform, _ = tracing(failure)
    name = tracing(failure)[0] or "function"
    name = name if name.isidentifier() else "function"
    outside = f"outside {transform}" if transform else "outside the transformation"
    decorated = failure.definitions.get(name, "") if transform == "jit" else ""
    outer = next((c for f in failure.user_frames for c in f.calls if c.function == name), None)
    plain = None
    if outer is not None and re.match(r"@(?:jax\.)?jit\b", decorated):
        new = f"{name}.__wrapped__({', '.join([*outer.args, *(f'{k}={v}' for k, v in outer.keywords.items())])})"
        plain = Fix(f"Run {name} without jit, as plain Python", new)
    fixes = [
        _jax_scipy_fix(failure, function) if library == "scipy" else None,
        plain,
        Fix(
            f"Call it {outside}, on numbers: the plain function in worker processes",
            f"from jaxpar_magic import parmap\nresult = parmap({name}, inputs, strategy='process')",
        ),
        _same_shape_callback(failure, call),
    ]
    return Finding(
        what=f"{function} of {library} got a traced value ({_traced(failure)}){_depends(failure)}; it needs numbers.",
        why=_why(failure, library),
        fixes=[fix for fix in fixes if fix is not None][:3],
        facts={"library": library, "function": function, "type": _traced(failure)},
    )


# Those of jax.scipy.stats.
_DISTRIBUTIONS = (
    *("bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "gennorm", "geom"),
    *("gumbel_l", "gumbel_r", "laplace", "logistic", "multinomial", "multivariate_normal", "nbinom", "norm", "pareto"),
    *("poisson", "t", "truncnorm", "uniform", "vonmises", "wrapcauchy"),
)


def _jax_scipy_fix(failure: Failure, function: str) -> Fix | None:
    """jax.scipy's counterpart, for the parts of scipy where it has the same names."""
    last = function.rsplit(".", 1)[-1]
    if last == "minimize":
        return Fix(
            "Use JAX's own minimizer (smooth functions)",
            "import jax.scipy.optimize\n"
            "result = jax.scipy.optimize.minimize(function, x0, method='BFGS')        # x0: an array with one axis",
        )
    if _special_call(failure) is not None and last in _SPECIAL:
        new = f"jax.scipy.special.{last}"
        code = failure.rewrite(f"{function}(", f"{new}(") or f"{new}(x)"
        return Fix("Use JAX's own counterpart", f"import jax.scipy.special\n{code}")
    paths = [f.file.replace("\\", "/") for f in failure.inner_frames if f.package == "scipy"]
    part = re.search(r"scipy/(special|linalg|stats|signal)/", paths[0]) if paths else None
    if part is None:
        return None
    if part.group(1) == "stats":
        distribution = re.search(r"(\w+)\.\w+$", function)
        if distribution is None or distribution.group(1) not in _DISTRIBUTIONS:
            return None
        last = f"{distribution.group(1)}.{last}"
    new = f"jax.scipy.{part.group(1)}.{last}"
    code = failure.rewrite(f"{function}(", f"{new}(") or f"{new}(x)"
    return Fix("Use JAX's own counterpart, if it has this one", f"import jax.scipy.{part.group(1)}\n{code}")


@rule("JPX0513", "numpy-array-indexed-by-a-traced-value", types=("TracerArrayConversionError",), priority=5)
def numpy_array_indexed(failure: Failure) -> Finding | None:
    segment = failure.user.segment if failure.user is not None else None
    source = failure.user.source if failure.user is not None else None
    match = re.fullmatch(r"([A-Za-z_][\w.]*)\[(.+)\]", segment or "", re.S)
    if match is None or not source:
        return None
    table = match.group(1)
    variable = failure.variable(table)
    if variable is not None and variable.type != "ndarray":
        return None
    what_is = f" ({variable})" if variable is not None else ""
    return Finding(
        what=f"The numpy array {table}{what_is} is indexed with a traced value, `{match.group(2)}`{_depends(failure)}.",
        why=_why(failure, "numpy")[:-1] + "; an array of JAX can be indexed with them.",
        fixes=[
            Fix(
                "Make it an array of JAX",
                failure.rewrite(segment or "", f"jnp.asarray({table})[{match.group(2)}]")
                or f"{table} = jnp.asarray({table})",
            )
        ],
        facts={"array": table, "index": match.group(2)},
    )


@rule("JPX0511", "numpy-on-a-traced-value", types=("TracerArrayConversionError",))
def numpy_on_a_traced_value(failure: Failure) -> Finding | None:
    if not failure.search(r"__array__\(\) was called on|numpy\.ndarray conversion method"):
        return None
    call = _numpy_call(failure)
    if call is None:
        return Finding(
            what=f"numpy, or a library that uses it, was given a traced value ({_traced(failure)}){_depends(failure)}.",
            why=_why(failure, "numpy"),
            fixes=[
                Fix("Use the function of jax.numpy", "import jax.numpy as jnp        # jnp.sin(x), not np.sin(x)"),
                _callback_fix("function(v)", "x"),
            ],
            facts={"type": _traced(failure)},
        )
    new = _jax_name(failure, call)
    fixes = []
    if new is not None:
        first = f"import {new.rsplit('.', 1)[0]}\n" if new.startswith("jax.scipy") else ""
        code = failure.rewrite(call.function + "(", new + "(") or f"{new}(x)"
        fixes.append(Fix(f"Use {new}, which works on traced values", first + code))
    if call.args:
        name = call.args[0] if call.args[0].isidentifier() else "x"
        fixes.append(_callback_fix(f"{call.function}(v)", name))
    return Finding(
        what=f"{call.function} of numpy was given a traced value ({_traced(failure)}){_depends(failure)}.",
        why=_why(failure, "numpy"),
        fixes=fixes,
        facts={"function": call.function, "type": _traced(failure)},
    )
