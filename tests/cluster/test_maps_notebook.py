"""Maps on a cluster as a person has them: cells of a notebook, a card under an error, code to take away."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import cell_errors, cell_text, run_notebook

from jaxpar_magic import parmap
from jaxpar_magic.mapping import api
from jaxpar_magic.mapping.options import MapOptions

CELLS = [
    "%load_ext jaxpar_magic\n%jaxcluster start -n 2 -q",
    # classes and functions of cells, which the engines cannot import
    """
import dataclasses, jax, jax.numpy as jnp, numpy as np

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Body:
    place: jax.Array
    speed: jax.Array

bodies = Body(np.arange(6.0, dtype=np.float32), np.ones(6, np.float32))
drag = 0.5

def slower(speed):
    return speed * drag
""",
    """%%parmap bodies -s cluster -o moved
def move(b):
    return Body(b.place + slower(b.speed), slower(b.speed))
""",
    "print(type(moved) is Body, moved.place.tolist())",
    "%%parmap x=np.arange(4.0) k=3 -s cluster\nx * k",
    # the engine's own error: the user's line, the item, the engine
    """%%parmap ["1", "zero", "3"] -s cluster --chunk-size 1
def whole(text):
    print("reading", text)
    return int(text)
""",
    """
lock = __import__("threading").Lock()
def locked(x):
    with lock:
        return x
%parmap locked [1.0] -s cluster
""",
    "%jaxcluster stop -q\n%parmap slower [1.0] -s cluster",
]


@pytest.fixture(scope="module")
def executed():
    return run_notebook(CELLS).cells


def test_cells_run_on_engines(executed):
    texts = [cell_text(cell) for cell in executed]
    assert [cell_errors(cell) for cell in executed[:5]] == [[]] * 5, texts[:5]
    assert "parmap move: cluster on 2 engines × 1 device, 6 items" in texts[2]
    assert "True [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]" in texts[3]
    assert "parmap: cluster on 2 engines" in texts[4] and "[0., 3., 6., 9.]" in texts[4]


def test_an_error_on_an_engine_is_shown_as_a_local_one(executed):
    text = cell_text(executed[5])
    assert cell_errors(executed[5]) == ["ValueError"]
    assert "return int(text)" in text and "invalid literal for int() with base 10: 'zero'" in text
    assert "item 1 of 3 (text='zero'), on engine" in text
    assert "] reading zero" in text


def test_a_function_that_cannot_travel_is_explained(executed):
    text = cell_text(executed[6])
    assert cell_errors(executed[6]) == ["WorkerError"]
    assert "cannot be sent to the engines of the cluster" in text and "JPX1501" in text


def test_without_a_cluster_the_next_step_is_named(executed):
    assert cell_errors(executed[7]) == ["ClusterError"]
    assert "no cluster is running" in cell_text(executed[7]) and "%jaxcluster start" in cell_text(executed[7])


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_code_gives_the_same_without_this_package(tmp_path):
    """`--show code` starts a cluster of its own, with ipyparallel alone."""
    xs = np.arange(40, dtype=np.float32)
    options = MapOptions(strategy="cluster", chunk_size=7, key=3)
    source = "def noisy(x, key):\n    return x + jax.random.normal(key)"
    space = {"jax": __import__("jax")}
    exec(source, space)
    texts = api.Texts("noisy", source, ["xs"], {})
    code = api.run(space["noisy"], [xs], {}, options, show="code", texts=texts).text
    script = tmp_path / "taken_away.py"
    script.write_text(
        "import numpy as np\nxs = np.arange(40, dtype=np.float32)\n"
        + code
        + "\nimport sys\nassert 'jaxpar_magic' not in sys.modules\nnp.save('out.npy', out)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, code + done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), parmap(space["noisy"], xs, key=3), rtol=1e-6)
