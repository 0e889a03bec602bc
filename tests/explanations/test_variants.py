"""One cause in many guises: other names, numbers, nestings and forms. Code, numbers and fixes must follow.

All run in one process with four devices; each entry is (source, code, facts, a piece of one of the fixes).
"""

from __future__ import annotations

import json

import pytest
from explanations.harness import HERE, run_snippet

PRELUDE = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
"""

VARIANTS: dict[str, tuple[str, str, dict[str, object], str]] = {
    "pmap along axis 1": (
        "z = jnp.ones((3, 8))\njax.pmap(lambda c: c.sum(), in_axes=1)(z)",
        "JPX0104",
        {"items": 8, "devices": 4},
        "parmap(lambda c: c.sum(), z, in_axes=1)",
    ),
    "pmap of a dict": (
        "batch = {'a': jnp.ones((12, 2)), 'b': jnp.ones(12)}\njax.pmap(lambda b: b['a'].sum())(batch)",
        "JPX0104",
        {"items": 12, "devices": 4},
        "devices(12)",
    ),
    "pmap of a number that four does not divide": (
        "jax.pmap(jnp.sin)(jnp.ones((6, 3)))",
        "JPX0104",
        {"items": 6, "devices": 4},
        "jax.vmap(jnp.sin)(jnp.ones((6, 3)))",
    ),
    "pmap as a decorator": (
        "@jax.pmap\ndef sim(k):\n    return k * 2\nsim(jnp.arange(8))",
        "JPX0104",
        {"items": 8, "devices": 4},
        "@jax.vmap\ndef sim(k):",
    ),
    "pmap through partial, with an axis name": (
        "@partial(jax.pmap, axis_name='d')\ndef sim(k, s):\n    return jax.lax.psum(k, 'd') * s\n"
        "n = 9\nsim(jnp.arange(n), jnp.ones(n))",
        "JPX0104",
        {"items": 9, "devices": 4},
        "@partial(jax.vmap, axis_name='d')",
    ),
    "pmap of keys": (
        "keys = jax.random.split(jax.random.key(0), 16)\njax.pmap(lambda k: jax.random.normal(k))(keys)",
        "JPX0104",
        {"items": 16, "devices": 4},
        "%jaxdevices 16|devices(16)",
    ),
    "pmap of a vmap": (
        "jax.pmap(jax.vmap(lambda v: v + 1))(jnp.ones((8, 3)))",
        "JPX0104",
        {"items": 8, "devices": 4},
        "jax.vmap(jax.vmap(lambda v: v + 1))",
    ),
    "mesh with computed sizes": (
        "n, m = 3, 2\nmesh = jax.make_mesh((n, m), ('a', 'b'))",
        "JPX0203",
        {"shape": [3, 2], "needed": 6, "available": 4},
        "jax.make_mesh((4, 1), ('a', 'b'))",
    ),
    "mesh from reshaped devices": (
        "mesh = Mesh(np.array(jax.devices()).reshape(3, 2), ('a', 'b'))",
        "JPX0203",
        {"shape": [3, 2], "needed": 6, "available": 4},
        "('a', 'b')",
    ),
    "device mesh": (
        "from jax.experimental import mesh_utils\nmesh_utils.create_device_mesh((2, 3))",
        "JPX0203",
        {"shape": [2, 3], "needed": 6, "available": 4},
        "devices(6)",
    ),
    "device_put of rows": (
        "m = Mesh(jax.devices(), ('i',))\ntable = jnp.ones((7, 3))\n"
        "table = jax.device_put(table, NamedSharding(m, P('i', None)))",
        "JPX0204",
        {"array": "table", "axis": 0, "size": 7, "parts": 4},
        "table = jnp.pad(table, [(0, 1), (0, 0)])",
    ),
    "device_put over two mesh axes": (
        "m = Mesh(np.array(jax.devices()).reshape(2, 2), ('r', 'c'))\nq = jnp.ones((4, 6))\n"
        "jax.device_put(q, NamedSharding(m, P(None, ('r', 'c'))))",
        "JPX0204",
        {"array": "q", "axis": 1, "size": 6, "parts": 4},
        "q = q[:, :4]",
    ),
    "result of jit": (
        "m = Mesh(jax.devices(), ('i',))\n"
        "jax.jit(lambda t: t * 2, out_shardings=NamedSharding(m, P(None, 'i')))(jnp.ones((4, 6)))",
        "JPX0204",
        {"axis": 1, "size": 6, "parts": 4},
        "[(0, 0), (0, 2)]",
    ),
    "spec for a second axis": (
        "m = Mesh(jax.devices(), ('i',))\nv = jnp.ones(4)\njax.device_put(v, NamedSharding(m, P(None, 'i')))",
        "JPX0205",
        {"length": 2, "rank": 1, "array": "v"},
        "NamedSharding(m, P('i'))",
    ),
    "shard_map defined before": (
        "m = Mesh(jax.devices(), ('i',))\ndata = jnp.ones((10, 2))\n"
        "g = jax.shard_map(lambda d: d, mesh=m, in_specs=(P('i'),), out_specs=P('i'))\ng(data)",
        "JPX0301",
        {"array": "data", "axis": 0, "size": 10, "parts": 4},
        "jnp.pad(data, [(0, 2), (0, 0)])",
    ),
    "shard_map of a scalar": (
        "m = Mesh(jax.devices(), ('i',))\nrate = 0.5\n"
        "jax.shard_map(lambda d, r: d * r, mesh=m, in_specs=(P('i'), P('i')), out_specs=P('i'))(jnp.ones(8), rate)",
        "JPX0302",
        {"argument": "rate", "length": 1, "rank": 0},
        "in_specs=(P('i'), P())",
    ),
    "shard_map as a decorator": (
        "m = Mesh(jax.devices(), ('i',))\n"
        "@partial(jax.shard_map, mesh=m, in_specs=P('i'), out_specs=P('i', 'i'))\ndef g(d):\n    return d\n"
        "g(jnp.ones(4))",
        "JPX0303",
        {"length": 2, "rank": 1},
        "out_specs=P('i'))",
    ),
    "part of a result differs": (
        "m = Mesh(jax.devices(), ('z',))\n"
        "specs = {'s': P(), 'x': P('z')}\n"
        "g = jax.shard_map(lambda d: {'s': d.sum(), 'x': d}, mesh=m, in_specs=P('z'), out_specs=specs)\n"
        "g(jnp.ones(4))",
        "JPX0304",
        {"axes": ["z"]},
        "check_vma=False",
    ),
    "too many specs": (
        "m = Mesh(jax.devices(), ('i',))\n"
        "x = jnp.ones(4)\n"
        "jax.shard_map(lambda d, e: d, mesh=m, in_specs=(P('i'), P('i'), P()), out_specs=P('i'))(x, x)",
        "JPX0305",
        {"side": "in", "specs": 3, "values": 2},
        "",
    ),
    "spec with a name that is not there": (
        "m = Mesh(jax.devices(), ('i',))\n"
        "jax.shard_map(lambda d: d, mesh=m, in_specs=P('rows'), out_specs=P('i'))(jnp.ones(4))",
        "JPX0206",
        {"axis": "rows", "axes": ["i"]},
        "in_specs=P('i')",
    ),
    "vmap with a keyword": (
        "def f(p, t, k=None):\n    return p * t + k\njax.vmap(f)(jnp.ones(3), jnp.ones(3), k=jnp.ones(5))",
        "JPX0401",
        {"sizes": [3, 5]},
        "jax.vmap(functools.partial(f, k=jnp.ones(5)))(jnp.ones(3), jnp.ones(3))",
    ),
    "vmap under jit, defined before": (
        "g = jax.jit(jax.vmap(lambda a, b: a + b, in_axes=(0, 1)))\ng(jnp.ones((3, 4)), jnp.ones((4, 5)))",
        "JPX0401",
        {"sizes": [3, 5], "arguments": ["a", "b"]},
        "in_axes=(0, None)",
    ),
    "vmap of a method": (
        "class M:\n    def fit(self, x, y):\n        return x + y\njax.vmap(M().fit)(jnp.ones(3), jnp.ones(4))",
        "JPX0401",
        {"sizes": [3, 4]},
        "jax.vmap(M().fit, in_axes=(0, None))",
    ),
    "a list as the second argument": (
        "jax.vmap(lambda p, q: p * q)(jnp.ones(3), [1.0, 2.0, 3.0])",
        "JPX0402",
        {"position": 1, "length": 3},
        "jnp.array([1.0, 2.0, 3.0])",
    ),
    "an axis too far": (
        "rows = jnp.ones(3)\njax.vmap(lambda p, q: p * q, in_axes=(0, 1))(jnp.ones(3), rows)",
        "JPX0403",
        {"axis": 1, "rank": 1},
        "",
    ),
    "carry of scan": (
        "jax.lax.scan(lambda c, x: (c.astype(jnp.float16), x), jnp.zeros(3), jnp.ones(4))",
        "JPX0702",
        {"before": ["float32[3]"], "after": ["float16[3]"]},
        "jnp.asarray(jnp.zeros(3), jnp.float16)",
    ),
    "carry that loses a key": (
        "jax.lax.scan(lambda c, x: ({'a': c['a']}, x), {'a': 1.0, 'b': 2.0}, jnp.ones(4))",
        "JPX0703",
        {"loop": "scan"},
        "{**carry",
    ),
    "carry in shard_map": (
        "m = Mesh(jax.devices(), ('z',))\n"
        "def f(x):\n    return jax.lax.fori_loop(0, 3, lambda i, a: a + x.sum(), 0.0)[None]\n"
        "jax.shard_map(f, mesh=m, in_specs=P('z'), out_specs=P('z'))(jnp.ones(8))",
        "JPX0701",
        {"axes": ["z"], "loop": "fori_loop"},
        "check_vma=False",
    ),
    "elif": (
        "@jax.jit\ndef f(a, n):\n    if n is None:\n        return a\n"
        "    elif a[0] > 1:\n        return 2 * a\n    return a\nf(jnp.ones(3), 1)",
        "JPX0501",
        {"function": "f", "argument": "a", "condition": "a[0] > 1"},
        "jnp.where(a[0] > 1",
    ),
    "if that sets a name": (
        "@jax.jit\ndef f(a):\n    if a.sum() > 0:\n        r = a * 2\n"
        "    else:\n        r = -a\n    return r\nf(jnp.ones(3))",
        "JPX0501",
        {"condition": "a.sum() > 0"},
        "r = jnp.where(a.sum() > 0, a * 2, -a)",
    ),
    "conditional expression in vmap of grad": (
        "def loss(w):\n    return w ** 2 if w > 0 else -w\njax.vmap(jax.grad(loss))(jnp.ones(3))",
        "JPX0501",
        {"condition": "w > 0"},
        "return jnp.where(w > 0, w ** 2, -w)",
    ),
    "if with and": (
        "@jax.jit\ndef f(a, b):\n    if a > 0 and b > 0:\n        return a\n    return b\nf(1.0, 2.0)",
        "JPX0501",
        {"condition": "a > 0 and b > 0"},
        "jnp.where((a > 0) & (b > 0)",
    ),
    "assert": (
        "@jax.jit\ndef f(a):\n    assert a.min() > 0, 'positive'\n    return a\nf(jnp.ones(3))",
        "JPX0501",
        {"condition": "a.min() > 0"},
        "checkify",
    ),
    "while not": (
        "@jax.jit\ndef f(a):\n    while not (a < 1):\n        a = a / 2\n    return a\nf(1.0)",
        "JPX0502",
        {"condition": "not (a < 1)"},
        "return ~(a < 1)",
    ),
    "or of values": (
        "@jax.jit\ndef f(a, b):\n    y = a or b\n    return y\nf(1.0, 2.0)",
        "JPX0503",
        {"condition": "a or b"},
        "y = jnp.logical_or(a, b)",
    ),
    "chained comparison": (
        "inside = jax.jit(lambda a: -1 < a <= 1)\ninside(1.0)",
        "JPX0503",
        {"condition": "-1 < a <= 1"},
        "(-1 < a) & (a <= 1)",
    ),
    "numpy by another name": (
        "import numpy as onp\n@jax.jit\ndef f(a):\n    return onp.linalg.norm(a)\nf(jnp.ones(3))",
        "JPX0511",
        {"function": "onp.linalg.norm", "type": "float32[3]"},
        "return jnp.linalg.norm(a)",
    ),
    "numpy's function by itself": (
        "from numpy import exp\njax.grad(lambda a: exp(a))(1.0)",
        "JPX0511",
        {"function": "exp"},
        "jnp.exp(a)",
    ),
    "scipy's function of elements": (
        "from scipy.special import erf\njax.vmap(lambda a: erf(a))(jnp.ones(3))",
        "JPX0511",
        {"function": "erf"},
        "jax.scipy.special.erf(a)",
    ),
    "pandas": (
        "import pandas as pd\n@jax.jit\ndef f(a):\n    return pd.Series(a).mean()\nf(jnp.ones(3))",
        "JPX0512",
        {"library": "pandas", "function": "pd.Series"},
        "strategy='process'",
    ),
    "arrays in a list": (
        "a = jax.device_put(jnp.ones(3), jax.devices()[1])\nb = jax.device_put(jnp.ones(3), jax.devices()[2])\n"
        "jnp.stack([a, b])",
        "JPX0106",
        {"names": ["a", "b"], "device_ids": [[1], [2]]},
        "b = jax.device_put(b, a.sharding)",
    ),
    "arrays given to a function": (
        "u = jax.device_put(jnp.ones(3), jax.devices()[3])\nv = jax.device_put(jnp.ones(3), jax.devices()[0])\n"
        "@jax.jit\ndef add(p, q):\n    return p + q\nadd(u, v)",
        "JPX0106",
        {"names": ["u", "v"], "device_ids": [[3], [0]]},
        "v = jax.device_put(v, u.sharding)",
    ),
    "count in a variable, set late": (
        "jnp.ones(3)\nn_dev = 6\njax.config.update('jax_num_cpu_devices', n_dev)",
        "JPX0105",
        {"value": "6", "devices": 4},
        "devices(6)",
    ),
}

# Explains each variant in turn; a file for each, so that its source can be found.
DRIVER = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {here!r})
from run_snippet import explanation_as_dict
from jaxpar_magic.explanations import explain
results = {{}}
for name, source in json.loads({variants!r}).items():
    file = pathlib.Path(name.replace(" ", "_").replace("'", "") + ".py")
    file.write_text({prelude!r} + source)
    try:
        exec(compile(file.read_text(), str(file), "exec"), {{}})
        results[name] = None
    except Exception as error:
        results[name] = [f"{{type(error).__name__}}: {{error}}", explanation_as_dict(explain(error))]
print("RESULTS" + json.dumps(results, default=str))
"""


@pytest.fixture(scope="module")
def results():
    sources = json.dumps({name: variant[0] for name, variant in VARIANTS.items()})
    done = run_snippet(DRIVER.format(here=str(HERE), variants=sources, prelude=PRELUDE), devices=4)
    assert done["outcome"] == "ran", done
    return json.loads(done["stdout"].split("RESULTS", 1)[1])


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name, results):
    _, code, facts, piece = VARIANTS[name]
    assert results[name] is not None, "did not fail"
    message, explanation = results[name]
    assert explanation is not None, message
    assert explanation["code"] == code, explanation["card"]
    found = {fact: explanation["facts"].get(fact) for fact in facts}
    assert found == facts, explanation["card"]
    codes = [fix["code"] for fix in explanation["fixes"]]
    assert any(part in fix for fix in codes for part in piece.split("|")), codes
    assert explanation["where"]["source"]
