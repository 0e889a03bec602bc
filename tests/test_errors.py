"""Our errors say what, what next, and nothing of our own frames; they travel between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest
from conftest import cell_errors, cell_text, run_notebook, run_python

from jaxpar_magic import errors
from jaxpar_magic.errors import InputError, JaxparError, WorkerError, did_you_mean, nearest

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, (JaxparError, Warning))]
ERRORS = [kind for kind in KINDS if issubclass(kind, JaxparError)]


def test_fields_and_text():
    error = InputError("xs has 3 items, ys has 4: needs one length.", next_step="ys[:3]", argument="ys")
    assert (error.problem, error.next_step, error.argument) == (
        "xs has 3 items, ys has 4: needs one length.",
        "ys[:3]",
        "ys",
    )
    assert str(error) == "xs has 3 items, ys has 4: needs one length.\nNext: ys[:3]"
    assert str(InputError("wrong.")) == "wrong."


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_docstring_of_its_own(kind):
    assert kind.__doc__
    assert kind.__doc__ != Exception.__doc__


@pytest.mark.parametrize("kind", ERRORS)
def test_one_except_clause_takes_all_and_the_builtin_kin_works_too(kind):
    assert issubclass(kind, JaxparError)
    if kind is not JaxparError:
        assert issubclass(kind, (ValueError, RuntimeError, OSError))


@pytest.mark.parametrize("kind", ERRORS)
def test_pickled_and_back(kind):
    error = kind("problem", next_step="step", argument="devices")
    error.add_note("item 3")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert back.__notes__ == ["item 3"]


class WithMore(WorkerError):
    def __init__(self, item: int):
        super().__init__(f"item {item} failed", argument="inputs")
        self.item = item


def test_a_subclass_with_other_arguments_pickles():
    back = pickle.loads(pickle.dumps(WithMore(7)))
    assert (back.item, back.problem, str(back)) == (7, "item 7 failed", "item 7 failed")


def test_an_error_crosses_a_process():
    code = """
        import pickle, sys
        from jaxpar_magic.errors import DeviceError
        sys.stdout.buffer.write(pickle.dumps(DeviceError("no", next_step="yes")).hex().encode())
    """
    error = pickle.loads(bytes.fromhex(run_python(code).stdout))
    assert (type(error), error.next_step) == (errors.DeviceError, "yes")


def test_rendered_lines_have_notes_and_the_cause():
    error = WorkerError("worker 2 was killed", next_step="fewer workers")
    assert error._render_traceback_() == ["WorkerError: worker 2 was killed", "Next: fewer workers"]
    error.add_note("at item 3")
    error.__cause__ = ValueError("user's own")
    assert error._render_traceback_() == [
        "WorkerError: worker 2 was killed",
        "Next: fewer workers",
        "at item 3",
        "Caused by ValueError: user's own",
    ]


def test_in_a_kernel_it_is_an_error_output_of_those_lines_alone():
    from nbclient.exceptions import CellExecutionError

    raising = "from jaxpar_magic.errors import InputError\nraise InputError('xs is empty.', next_step='give items')"
    (cell,) = run_notebook([raising]).cells
    assert cell_errors(cell) == ["InputError"]
    assert cell_text(cell).splitlines() == ["InputError: xs is empty.", "Next: give items"]
    with pytest.raises(CellExecutionError):
        run_notebook([raising], allow_errors=False)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("vamp", "vmap"),
        ("shardmap", "shard_map"),
        ("VMAP", None),
        ("", None),
        ("xyz", None),
        ("vmap", "vmap"),
    ],
)
def test_nearest(word, expected):
    known = ("vmap", "map", "shard_map")
    assert nearest(word, known) == expected
    assert did_you_mean(word, known) == (f" Did you mean {expected!r}?" if expected else "")


def test_nearest_takes_any_iterable():
    assert nearest("ba", iter(["bar", "foo"])) == "bar"
    assert nearest("x", []) is None
