"""Live arrays and their names: what `--arrays` lists, and how deep names are looked for."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from typing import NamedTuple

from conftest import run_python

from jaxpar_magic.backend.arrays import MOST_BOXES, ArrayInfo, Shard, picture
from jaxpar_magic.backend.report import _slices
from jaxpar_magic.backend.walk import walk

CODE = """
import dataclasses, gc, json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxpar_magic import devices
jax.config.update("jax_num_cpu_devices", 4)
two = Mesh(np.array(jax.devices()[:2]), ("d",))
grid = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
def put(x, mesh, *spec): return jax.device_put(x, NamedSharding(mesh, P(*spec)))
stack = put(np.ones((6, 4, 4), "float32"), two, "d")
middle = put(np.ones((2, 4, 6), "int8"), grid, None, "a", "b")
both = put(np.ones((8, 2), "float32"), grid, ("a", "b"))
copies = put(np.ones(3, "float32"), two)
part = put(np.ones((4, 4), "float32"), grid, "a")
scalar, empty, plain = jnp.float32(1), jnp.ones((0, 3)), jnp.ones(5, "bfloat16")
key, keys = jax.random.key(0), put(jax.random.split(jax.random.key(1), 4), two, "d")
gone = jnp.ones(7) + 1
gone.delete()
inside = {"w": [jnp.ones(9) + 1]}
again = stack
jnp.ones(1000) + 1
hidden = lambda kept=[jnp.ones(11) + 1]: kept
before = len(jax.live_arrays())
"""

SHOW = """
report = devices(arrays=True, namespace=globals())
facts = {a.name: dict(dataclasses.asdict(a)) for a in report.arrays if a.name}
unnamed = [a.nbytes for a in report.arrays if not a.name]
print(json.dumps([facts, unnamed, str(report), before == len(jax.live_arrays())]))
"""


def test_where_each_array_lies():
    facts, unnamed, text, untouched = json.loads(run_python(CODE + SHOW).stdout)
    assert untouched, "looking made arrays"
    assert set(facts) == {
        *("stack", "middle", "both", "copies", "part", "scalar", "empty", "plain", "key", "keys"),
        "inside['w'][0]",
    }
    stack = facts["stack"]
    assert (stack["shape"], stack["dtype"], stack["nbytes"]) == ([6, 4, 4], "float32", 384)
    assert stack["sharding"] == "P('d')"
    assert stack["shards"] == [
        {"device": "cpu:0", "index": [[0, 3], [0, 4], [0, 4]], "nbytes": 192},
        {"device": "cpu:1", "index": [[3, 6], [0, 4], [0, 4]], "nbytes": 192},
    ]
    middle = {s["device"]: s["index"] for s in facts["middle"]["shards"]}
    assert middle["cpu:0"] == [[0, 2], [0, 2], [0, 3]] and middle["cpu:3"] == [[0, 2], [2, 4], [3, 6]]
    assert [s["index"][0] for s in facts["both"]["shards"]] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert facts["copies"]["sharding"] == "a copy on each"
    assert [s["nbytes"] for s in facts["copies"]["shards"]] == [12, 12]
    assert [s["index"][0] for s in facts["part"]["shards"]] == [[0, 2], [0, 2], [2, 4], [2, 4]]
    assert facts["scalar"]["shards"] == [{"device": "cpu:0", "index": [], "nbytes": 4}]
    assert facts["empty"]["nbytes"] == 0
    assert facts["plain"]["nbytes"] == 10
    assert facts["key"]["nbytes"] == 8 and facts["key"]["dtype"] == "key<fry>"
    assert facts["keys"]["nbytes"] == 32 and [s["nbytes"] for s in facts["keys"]["shards"]] == [16, 16]
    assert 44 in unnamed and 28 not in unnamed, "deleted arrays are not alive"
    table = ("stack", "float32[6, 4, 4]", "384 B", "cpu:0 [0:3], cpu:1 [3:6], 192 B each", "the whole process")
    pictures = (
        "stack float32[6, 4, 4]: parts of axis 0",
        "0:3 [ cpu:0 ]",
        "0:2 [ cpu:0 ][ cpu:1 ]",
        "[ cpu:0, cpu:1 ]",
    )
    for words in (*table, *pictures):
        assert words in " ".join(text.split())


def array(shape: tuple[int, ...], **places: tuple[tuple[int, int], ...]) -> ArrayInfo:
    shards = tuple(Shard(device, index, 4) for device, index in places.items())
    return ArrayInfo("x", shape, "float32", 4, "P(…)", shards)


def test_a_picture_of_an_array_cut_along_one_axis():
    rows = picture(array((4, 2), a=((0, 2), (0, 2)), b=((2, 4), (0, 2))))
    assert (rows.rows, rows.columns, rows.cells) == (["0:2", "2:4"], [""], [["a"], ["b"]])
    strip = picture(array((4,), b=((2, 4),), a=((0, 2),)))
    assert (strip.rows, strip.columns, strip.cells) == ([""], ["0:2", "2:4"], [["a", "b"]])
    assert strip.caption == "x float32[4]: parts of axis 0"
    columns = picture(array((4, 2), a=((0, 4), (0, 1)), b=((0, 4), (1, 2))))
    assert columns.cells == [["a", "b"]] and "axis 1" in columns.caption


def test_a_picture_of_an_array_cut_along_two_axes():
    whole = (0, 9)
    places = {f"d{i}{j}": (whole, (2 * i, 2 * i + 2), (j, j + 1)) for i in (0, 1) for j in (0, 1)}
    grid = picture(array((9, 4, 2), **places))
    assert grid.cells == [["d00", "d01"], ["d10", "d11"]]
    assert "axis 1 downwards, axis 2 to the right" in grid.caption


def test_copies_share_a_box_and_what_cannot_be_drawn_is_not():
    grid = picture(array((4,), a=((0, 2),), b=((0, 2),), c=((2, 4),), d=((2, 4),)))
    assert grid.cells == [["a, b", "c, d"]]
    assert picture(array((4,), a=((0, 4),), b=((0, 4),))) is None
    assert picture(array(())) is None
    cube = {f"d{i}{j}{k}": ((i, i + 1), (j, j + 1), (k, k + 1)) for i in (0, 1) for j in (0, 1) for k in (0, 1)}
    assert picture(array((2, 2, 2), **cube)) is None
    many = {f"d{i}": ((i, i + 1),) for i in range(MOST_BOXES + 1)}
    assert picture(array((MOST_BOXES + 1,), **many)) is None


def test_shards_that_somebody_looked_at_are_not_counted_twice():
    code = CODE + "\n[s.data for s in stack.addressable_shards]\nbefore = len(jax.live_arrays())" + SHOW
    facts, unnamed, _, untouched = json.loads(run_python(code).stdout)
    assert untouched
    assert 192 not in unnamed
    assert sum(s["nbytes"] for s in facts["stack"]["shards"]) == 384


def test_no_arrays():
    done = run_python(
        """
        from jaxpar_magic import devices
        print(devices(arrays=True))
        import jax
        print(devices(arrays=True))
        jax.devices()
        print(devices(arrays=True))
        """
    )
    assert done.stdout.count("None: JAX has not started.") == 2
    assert done.stdout.rstrip().endswith("None.")


def test_many_arrays_are_cut_short():
    done = run_python(
        """
        import jax.numpy as jnp
        from jaxpar_magic import devices
        many = {i: jnp.ones(i + 1) + 1 for i in range(30)}
        print(devices(arrays=True, namespace={"many": many}))
        """
    )
    assert "many[29]" in done.stdout and "many[2]" not in done.stdout
    assert "10 more arrays" in done.stdout


def test_slices_as_numpy_writes_them():
    assert _slices(((0, 3), (0, 4), (0, 4)), (6, 4, 4)) == "[0:3]"
    assert _slices(((0, 6), (1, 2), (0, 4)), (6, 4, 4)) == "[:, 1:2]"
    assert _slices(((0, 6),), (6,)) == "[:]"


# --- names --------------------------------------------------------------------------------------------------


class Wanted:
    pass


class Pair(NamedTuple):
    left: object
    right: object


@dataclass
class Box:
    inner: object


def names(**namespace) -> list[str]:
    return [path for _, path, _ in walk(namespace, (Wanted,))]


def test_names_as_the_user_would_write_them():
    w = Wanted()
    assert names(a=w) == ["a"]
    assert names(a=[1, w], b={"k": w, 3: (w,)}) == ["a[1]", "b['k']", "b[3][0]"]
    assert names(a=Pair(1, w), b=Box(w), c=types.SimpleNamespace(x=Box([w]))) == ["a.right", "b.inner", "c.x.inner[0]"]
    assert names(s={w}) == ["s[0]"]


def test_functions_that_capture():
    w = Wanted()

    def f():
        return w

    assert names(f=f) == ["f (captures w)"]


def test_what_is_left_out():
    w = Wanted()
    assert names(_=w, _1=w, __x=w, In=[w], Out={1: w}, m=types, k=Wanted, s="text", f=names) == []


def test_circles_shared_containers_and_depth():
    w = Wanted()
    ring: list = [w]
    ring.append(ring)
    assert names(ring=ring) == ["ring[0]"]
    shared = [w]
    assert names(a=shared, b=shared) == ["a[0]"]
    deep = w
    for _ in range(5):
        deep = [deep]
    assert names(deep=deep) == []


def test_long_containers_are_looked_into_from_the_front():
    assert len(names(many=[Wanted() for _ in range(5_000)])) == 1_000


def test_no_code_of_the_user_runs():
    class Touchy:
        def __getattr__(self, name):
            raise AssertionError(f"read {name}")

        @property
        def __class__(self):
            raise AssertionError("asked for the class")

        @property
        def value(self):
            raise AssertionError("read a property")

        def __iter__(self):
            raise AssertionError("iterated")

        def __eq__(self, other):
            raise AssertionError("compared")

        __hash__ = None

    touchy = Touchy()
    touchy.__dict__["w"] = Wanted()
    assert names(touchy=touchy, also=[touchy]) == ["touchy.w"]
