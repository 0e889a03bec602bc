"""How a map is cut for a cluster, and how arrays are packed: no cluster is needed."""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar_magic.cluster import maps, transport
from jaxpar_magic.mapping.captured import captured
from jaxpar_magic.mapping.inputs import make_batch
from jaxpar_magic.mapping.options import MapOptions
from jaxpar_magic.mapping.tracing import trace_item


def scan(y):
    return jax.lax.scan(lambda y, _: (y * 0.99, None), y, None, length=100_000)[0]


def escape(x):
    return jax.lax.while_loop(lambda y: jnp.abs(y) < 2, lambda y: y * y + x, x)


PROGRAMS = {
    "arithmetic": (lambda v: v + 1, np.ones(16, np.float32)),
    "steps": (scan, np.float32(1)),
    "loop": (escape, np.float32(1)),
    "large": (lambda v: v * 2, np.ones(3_000_000, np.float32)),
}


@functools.cache
def facts_of(kind):
    function, item = PROGRAMS[kind]
    batch = make_batch(function, [np.broadcast_to(item, (2, *np.shape(item)))], {})
    return trace_item(function, batch.stacked(), captured(function)).facts


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(sorted(PROGRAMS)),
    length=st.integers(0, 3_000_000),
    engines=st.integers(1, 1000),
    devices=st.integers(1, 64),
    chunk=st.one_of(st.none(), st.integers(1, 10_000)),
)
def test_chunks_cover_all_items_and_are_of_one_size(kind, length, engines, devices, chunk):
    plan = maps.cut(facts_of(kind), length, engines, devices, MapOptions(chunk_size=chunk))
    bounds = plan.bounds()
    assert [i for b in bounds for i in b] == sorted(i for b in bounds for i in b)
    assert sum(end - begin for begin, end in bounds) == plan.length == length
    assert plan.chunk_size >= 1 and (plan.chunk_size % devices == 0 or plan.chunk_size == max(1, length))
    if chunk is None:
        facts = facts_of(kind)
        each = facts.input_bytes + facts.output_bytes
        assert plan.chunk_size <= max(devices, maps.MOST_BYTES // each + devices)


def test_long_maps_are_cut_for_balance_and_short_ones_are_not():
    options = MapOptions()
    assert maps.cut(facts_of("arithmetic"), 100, 2, 1, options).chunks == 2
    assert maps.cut(facts_of("loop"), 1_000_000, 4, 1, options).chunks >= 4 * maps.LEAST_CHUNKS
    assert maps.cut(facts_of("steps"), 100_000, 4, 1, options).chunks >= 4 * maps.LEAST_CHUNKS


def test_neighbours_are_cut_where_items_are_missing():
    assert list(maps._neighbours([0, 1, 2, 3, 7, 8, 20], 3)) == [(0, 3), (3, 4), (7, 9), (20, 21)]
    assert list(maps._neighbours([], 3)) == []


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.zeros((0, 4)),
    np.array(True),
    np.ones(3, jnp.bfloat16),  # numpy's, of a dtype of JAX's
    np.arange(10)[::2],
]


@pytest.mark.parametrize("count", [len(ARRAYS), 40])
@pytest.mark.parametrize(
    "in_block", [False, pytest.param(True, marks=pytest.mark.skipif(os.name != "posix", reason="memfd"))]
)
def test_arrays_come_out_as_they_went_in(count, in_block):
    arrays = (ARRAYS * 8)[:count]
    block = transport.Block() if in_block else None
    where, buffers = transport.pack(arrays, block)
    assert len(buffers) <= transport._MOST_BUFFERS
    back = transport.unpack(where, buffers, None if block is None else block.map(0))
    for a, b in zip(arrays, back, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if block is not None:
        with transport.opened(block.address) as file:
            assert os.fstat(file).st_size > 0
        block.close()
        with pytest.raises(transport.Unreachable), transport.opened(block.address):
            pass
