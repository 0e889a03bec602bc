"""`%parmap` and `%%parmap` in a real kernel: what a user types, what stands below the cell."""

from __future__ import annotations

import pytest
from conftest import cell_errors, cell_text, run_notebook

SETUP = """
%load_ext jaxpar_magic
import numpy as np, jax, jax.numpy as jnp
xs = np.arange(7, dtype=np.float32)
pairs = [(1.0, 2), (3.0, 4)]
def f(x):
    return jnp.sin(x)
expression = "mine"
""".strip()


def run(*cells, **options):
    return run_notebook([SETUP, *cells], **options).cells[1:]


@pytest.fixture(scope="module")
def cells():
    """One kernel for all that does not disturb the others: name → executed cell."""
    sources = {
        "line": "%parmap f xs",
        "assigned": "ys = %parmap f xs -s map -q\nprint(type(ys).__name__, ys.shape)",
        "semicolon": "%parmap f xs;",
        "noresult": "%parmap f xs --noresult",
        "quiet": "%parmap f xs -q --noresult",
        "out": "%parmap f xs -o zs\nprint(zs.shape)",
        "expression input": "%parmap f np.linspace(0, 1, 5, dtype=np.float32) -q -o e\nprint(e.shape)",
        "options": "%parmap f xs -s shard_map -d 1 -b 2 --chunk-size 4 -q -o o\nprint(o.shape)",
        "attached": "%parmap f xs -svmap -b2 --chunk-size=4 -q -o o\nprint(o.shape)",
        "variables": "way, width, to = 'map', 2, 'v'\n"
        "%parmap f xs -s {way} -b width -o {to}\n%parmap f xs --strategy=$way -q -o {to}\nprint(v.shape)",
        "no variable": "%parmap f xs -s {nowhere}",
        "dict and variable": "%parmap (lambda t: t['a']) {'a': xs} -q -s {way}",
        "axes": "%parmap (lambda v: v.sum()) np.ones((2, 3), np.float32) -a 1 -q -o s\nprint(s.tolist())",
        "pairs": "%parmap (lambda a, b: a * b) pairs -q -o p\nprint(p.tolist())",
        "key": "def draw(x, key):\n    return x + jax.random.normal(key)\n"
        "%parmap draw xs --key 0 -q -o k\nprint(k.shape)",
        "cell": "%%parmap xs -o c\nimport math\ndef g(x):\n    return x * math.pi",
        "cell value": "c[1], g",
        "decorated": "%%parmap xs -q -o d\n@jax.jit\ndef g(x):\n    return 2 * x",
        "lambda": "%%parmap xs -q -o l\nh = lambda x: 3 * x",
        "function value": "%%parmap xs -q -o l2\njnp.cos",
        "expression": "%%parmap x=xs k=3\nx ** k",
        "statements": "%%parmap x=xs k=3 -q -o st\ndef helper(v):\n    return v + 1\ny = helper(x)\ny * k",
        "after statements": "print(st.tolist(), helper(1), expression)",
        "key expression": "%%parmap x=xs --key 1 -q -o ke\njax.random.normal(key) + x",
        "cell without a function": "%%parmap xs\n1 + 1",
        "empty cell": "%%parmap xs\n\n",
        "await": "%%parmap xs\nimport asyncio\nawait asyncio.sleep(0)",
        "syntax": "%%parmap xs\ndef f(x:\n    return x",
        "unknown name": "%parmap f xss",
        "unknown option": "%parmap f xs --stratgy vmap",
        "unknown strategy": "%parmap f xs -s vmpa",
        "not a function": "%parmap xs f",
        "nothing": "%parmap",
        "no input": "%parmap f",
        "unclosed": "%parmap f np.zeros((3)",
        "bad number": "%parmap f xs -b many",
        "bad out": "%parmap f xs -o 3x",
        "input error": "%parmap (lambda a, b: a) xs xs[:3]",
        "failing": "%%parmap xs\ndef bad(x):\n    y = x + 1\n    return y.no_such_thing",
        "item": "def reciprocal(x):\n    return 1 / x\n%parmap reciprocal [1, 0] -s serial",
        "skip": "%parmap reciprocal [1, 0] -s serial --on-error skip",
        "check": "%parmap (lambda x: jnp.log(x - 1)) xs --check finite -o lg",
        "note": "def noisy(x):\n    return x + np.random.normal()\n%parmap noisy xs -o n",
        "braces": '%parmap (lambda d: d["a"]) {"a": xs} -q -o br\nprint(br.shape)',
        "help": "%parmap --help",
        "compare": "%parmap f xs --compare vmap,serial",
        "compare first": "%parmap -c vmap,serial f xs",
        "compare before the input": "%parmap f --compare xs -o cb",
        "compare out": "%parmap f xs --compare vmap,serial -o co\nprint(co.shape)",
        "code": "%parmap f xs --show code",
        "plan": "%parmap f xs --show plan",
        "time": "%time t = parmap = 1\n%time %parmap f xs -q --noresult",
        "after an error": "%parmap f xs -q -o again\nprint(again.shape)",
    }
    executed = run(*sources.values(), timeout=180)
    return dict(zip(sources, executed))


def text(cells, name):
    return cell_text(cells[name])


def test_a_line(cells):
    out = text(cells, "line")
    assert out.startswith("parmap f: vmap on 1 device, 7 items, compile ")
    assert "Array([ 0." in out
    assert len(cells["line"].outputs) == 2


def test_the_value_is_the_cell_s_value(cells):
    assert "ArrayImpl (7,)" in text(cells, "assigned")
    assert "Array(" not in text(cells, "noresult")
    assert cells["quiet"].outputs == []
    assert text(cells, "out").endswith("(7,)\n")
    assert "Array(" not in text(cells, "out")


def test_a_semicolon_silences_the_value(cells):
    assert "Array(" not in text(cells, "semicolon")
    assert text(cells, "semicolon").startswith("parmap f:")


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("expression input", "(5,)"),
        ("options", "(7,)"),
        ("attached", "(7,)"),
        ("axes", "[2.0, 2.0, 2.0]"),
        ("pairs", "[2.0, 12.0]"),
        ("key", "(7,)"),
        ("braces", "(7,)"),
        ("after an error", "(7,)"),
    ],
)
def test_ways_to_write_a_line(cells, name, printed):
    assert text(cells, name).strip() == printed


def test_text_options_take_variables(cells):
    text = cell_text(cells["variables"])
    assert "parmap f: map on 1 device" in text and text.strip().endswith("(7,)")
    assert "--strategy={nowhere}: not one of auto, vmap" in cell_text(cells["no variable"])
    assert "Array([0., 1." in cell_text(cells["dict and variable"])  # a dict stays a dict


def test_a_cell_defines_the_function(cells):
    assert text(cells, "cell").startswith("parmap g:")
    assert "3.14159" in text(cells, "cell value")
    assert "function __main__.g(x)" in text(cells, "cell value")
    for name in ("decorated", "lambda", "function value"):
        assert cells[name].outputs == [], text(cells, name)


def test_a_cell_is_an_expression_of_the_named_inputs(cells):
    assert "216." in text(cells, "expression")
    # definitions stay in the namespace, the user's own `expression` too
    assert text(cells, "after statements").strip() == "[3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0] 2 mine"
    assert cells["key expression"].outputs == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cell without a function", "the cell is an expression; name the inputs that it uses"),
        ("empty cell", "the cell is empty"),
        ("await", "a %%parmap cell cannot await"),
        ("unknown name", "name 'xss' is not defined. Did you mean 'xs'?"),
        ("unknown option", "unknown option '--stratgy'. Did you mean '--strategy'?"),
        ("unknown strategy", "Did you mean 'vmap'?"),
        ("not a function", "xs: is a ndarray, not a function; the function comes first"),
        ("nothing", "needs a function and its inputs, as in: %parmap f xs"),
        ("no input", "nothing to map over"),
        ("unclosed", "missing ) in: f np.zeros((3)"),
        ("bad number", "many"),
        ("bad out", "--out 3x: not a variable name"),
        ("input error", "a has 7, b has 3"),
    ],
)
def test_what_is_said_about_a_line_that_cannot_run(cells, name, words):
    out = text(cells, name)
    assert words in out
    assert len(out.strip().splitlines()) <= 3, out  # a line or two, and no traceback


def test_a_syntax_error_shows_like_a_plain_cell_s(cells):
    assert cell_errors(cells["syntax"])[0] in ("SyntaxError", "CellSyntaxError")
    out = text(cells, "syntax")
    assert "def f(x:" in out
    assert "SyntaxError:" in out
    assert "in parse_cell" not in out


def test_an_error_in_the_function_points_at_the_user_s_line(cells):
    out = text(cells, "failing")
    assert cell_errors(cells["failing"]) == ["AttributeError"]
    assert "----> 4     return y.no_such_thing" in out
    assert "jaxpar_magic/" not in out.replace("jaxpar_magic/mapping", "")  # our frames are hidden
    assert "mapping/runner" not in out


def test_failing_items(cells):
    assert cell_errors(cells["item"]) == ["ZeroDivisionError"]
    assert text(cells, "item").count("item 1 of 2") == 1  # IPython before 8.14 shows no notes of errors
    assert "item 1 (x=0): ZeroDivisionError: division by zero" in text(cells, "skip")
    assert "2 items not finite: item 0 (x=0.0): NaN; item 1 (x=1.0): inf" in text(cells, "check")


def test_notes_stand_below_the_report_line(cells):
    lines = text(cells, "note").splitlines()
    assert lines[0].startswith("parmap noisy: ")
    assert lines[1].startswith("  note: np.random was drawn from once")


def test_help_and_show(cells):
    assert "--batch-size N" in text(cells, "help")
    assert "fastest" in text(cells, "compare")
    assert "fastest" in text(cells, "compare first")
    assert "thread" in text(cells, "compare before the input")
    assert text(cells, "compare out").strip().endswith("(7,)")
    assert "def one(item):" in text(cells, "code")
    assert "strategy" in text(cells, "plan")
    html = cells["compare"].outputs[-1].data["text/html"]
    assert "<table" in html


def test_a_run_stops_at_an_error():
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError):
        run("%parmap f xs --no-such-option", allow_errors=False)
    with pytest.raises(CellExecutionError):
        run("%%parmap xs\ndef bad(x):\n    raise ValueError('mine')", allow_errors=False)


def test_maps_go_on_across_resets_of_the_devices():
    cells = run(
        "%jaxdevices 2 -q",
        "%parmap f xs -s shard_map",
        "%jaxdevices 3 -q",
        "%parmap f xs -s shard_map",
        "%parmap f xs -s shard_map -d 2",
        "%jaxdevices 1 -q",
        "%parmap f xs -s shard_map",
        "%parmap f xs -s shard_map -d 2",
    )
    counts = [cell_text(cells[i]).splitlines()[0].split(",")[0] for i in (1, 3, 4, 6)]
    assert counts == [
        "parmap f: shard_map on 2 devices",
        "parmap f: shard_map on 3 devices",
        "parmap f: shard_map on 2 devices",
        "parmap f: shard_map on 1 device",
    ]
    values = {cell_text(cells[i]).partition("Array(")[2] for i in (1, 3, 4, 6)}
    assert len(values) == 1
    assert "devices=2: JAX has 1 cpu device.\nNext: %jaxdevices 2" in cell_text(cells[7])
