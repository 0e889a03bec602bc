"""Worker processes: everything here runs in real processes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import cell_errors, cell_text, run_notebook

from jaxpar_magic.errors import InputError, JaxparError, WorkerError
from jaxpar_magic.mapping import worker_main, worker_pool, workers
from jaxpar_magic.mapping.worker_pickle import Outbound

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for orphans in /proc")


def run(function, values, *, n=2, chunk_size=1, stop_at_failure=False, on_output=None, **options):
    """Map over values; the outputs are dropped unless a test wants them."""
    return workers.run_in_processes(
        function,
        ((index, (value,), {}) for index, value in enumerate(values)),
        workers=n,
        chunk_size=chunk_size,
        on_output=on_output or (lambda stream, text: None),
        stop_at_failure=stop_at_failure,
        **options,
    )


def results(function, values, **options):
    done, failures = run(function, values, **options)
    assert failures == []
    assert list(done) == list(range(len(done)))
    return list(done.values())


def only_failure(function, values, **options):
    _, failures = run(function, values, **options)
    assert len(failures) == 1
    return failures[0]


def processes(*words: str) -> list[int]:
    """Pids of live processes whose command line has these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and all(word in command for word in words):
            found.append(int(entry.name))
    return found


def worker_pids(parent: int | None = None) -> list[int]:
    pids = []
    for pid in processes("worker_main"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == (parent or os.getpid()):
            pids.append(pid)
    return pids


def wait_until(condition, seconds=10.0, kill=()):
    """Wait for it. If that was in vain, kill these processes, so that no test hangs on what they hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            for pid in kill:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError("waited in vain")
        time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def no_orphans():
    yield
    workers.stop_workers()
    assert worker_pids() == []


# -- what travels ------------------------------------------------------------------------------------------


def test_results_of_lambda_closure_and_keyword_arguments():
    offset = 10
    assert results(lambda x: x + offset, range(7), chunk_size=3) == [10, 11, 12, 13, 14, 15, 16]
    items = [(5, (1, 2), {"c": 3}), (9, (4,), {"b": 5, "c": 6})]
    done, failures = workers.run_in_processes(
        lambda a, b, c: (a, b, c), items, workers=2, chunk_size=1, on_output=print, stop_at_failure=True
    )
    assert (done, failures) == ({5: (1, 2, 3), 9: (4, 5, 6)}, [])


def test_no_items_start_no_worker():
    workers.stop_workers()
    assert run(lambda x: x, []) == ({}, [])
    assert worker_pids() == []


def test_items_are_read_a_chunk_at_a_time():
    handed_out = []

    def values():
        for n in range(40):
            handed_out.append(n)
            yield n

    behind = []
    run(lambda x: x, values(), chunk_size=2, on_done=lambda n: behind.append(len(handed_out) - n))
    # Two chunks in work, two waiting for the workers, and the one that was read to fill a gap.
    assert len(handed_out) == 40 and max(behind) <= 10


def test_workers_are_kept_and_the_function_may_change():
    pids = set(results(lambda x: os.getpid(), range(6)))
    factor = 2
    scale = lambda x: (x * factor, os.getpid())  # noqa: E731
    first = results(scale, range(6))
    factor = 3
    second = results(scale, range(6))
    assert [value for value, _ in first] == [0, 2, 4, 6, 8, 10]
    assert [value for value, _ in second] == [0, 3, 6, 9, 12, 15]
    assert {pid for _, pid in first + second} <= set(worker_pids())
    assert pids <= set(worker_pids())


class Colour(enum.Enum):
    RED = 1


def local_classes():
    """Classes as a notebook defines them: workers cannot import them. (Locals travel by value too.)"""

    class Base:
        pass

    class Node(Base):
        def __init__(self, value):
            self.value = value

        def pair(self):
            return Node(self.value), Leaf(self.value)

    class Leaf(Base):
        def up(self):
            return Node(self.value)

        def __init__(self, value):
            self.value = value

    @dataclasses.dataclass(frozen=True)
    class Point:
        x: float
        y: float = 0.0

    class Kind(enum.Enum):
        A = "a"
        B = "b"

    Pair = collections.namedtuple("Pair", "left right")
    return Node, Leaf, Point, Kind, Pair


def test_classes_travel_by_value_and_stay_the_users_own():
    Node, Leaf, Point, Kind, Pair = local_classes()
    methods = Node.pair, Leaf.up, Point.__init__, Kind.__dict__
    values = [Node(1), Leaf(2), Point(3), Kind.B, Pair(1, Kind.A)]

    def work(item):  # knows none of the classes: they arrive with the items
        if hasattr(item, "pair"):
            return item.pair()
        return item.up() if hasattr(item, "up") else item

    for chunk_size in (1, 5):
        (node, leaf), up, point, kind, pair = results(work, values, chunk_size=chunk_size)
        assert (type(node), type(leaf), type(up)) == (Node, Leaf, Node)
        assert (node.value, leaf.value, up.value) == (1, 1, 2)
        assert point == Point(3) and type(point) is Point
        assert kind is Kind.B and pair == Pair(1, Kind.A) and type(pair) is Pair
        # cloudpickle alone would have put copies of the methods into the classes by now
        assert methods == (Node.pair, Leaf.up, Point.__init__, Kind.__dict__)


def test_a_class_may_change_between_calls():
    class Scale:
        factor = 2

        def of(self, x):
            return self.factor * x

    scale = Scale()
    assert results(lambda x: scale.of(x), [1, 2]) == [2, 4]
    assert results(lambda item: item.of(1), [scale, scale]) == [2, 2]
    Scale.factor = 5
    assert results(lambda x: scale.of(x), [1, 2]) == [5, 10]
    assert results(lambda item: item.of(1), [scale, scale]) == [5, 5]
    Scale.of = lambda self, x: -x
    assert results(lambda item: item.of(1), [scale, scale]) == [-1, -1]


def test_a_class_made_in_the_worker_comes_back():
    def make(x):
        class Box:
            value = x

        return Box()

    assert [box.value for box in results(make, [1, 2])] == [1, 2]


def test_class_and_its_globals_travel_once_not_with_every_item():
    table = np.arange(100_000.0)

    class Row:
        def __init__(self, index):
            self.index = index

        def total(self):
            return table[: self.index].sum()

    outbound = Outbound.of(lambda row: row.total())
    parts, classes = outbound.pack_items([(0, (Row(3),), {})])
    assert sum(memoryview(part).nbytes for part in parts) < 1000
    assert sum(memoryview(part).nbytes for part in classes) > table.nbytes
    parts, classes = outbound.pack_items([(1, (Row(4),), {})])
    assert sum(memoryview(part).nbytes for part in parts) < 1000 and classes is None
    assert results(lambda row: row.total(), [Row(3), Row(4)]) == [3.0, 6.0]


def test_captured_arrays_travel_once_per_worker(monkeypatch):
    sent = []
    original = worker_pool.send

    def counting_send(connection, header, *parts):
        sent.append(sum(memoryview(part).nbytes for part in parts))
        original(connection, header, *parts)

    monkeypatch.setattr(worker_pool, "send", counting_send)
    big = np.arange(200_000.0)
    lookup = lambda i: big[i]  # noqa: E731
    assert results(lookup, range(20)) == list(range(20))
    assert big.nbytes <= sum(sent) < 3 * big.nbytes
    sent.clear()
    assert results(lookup, range(20)) == list(range(20))
    assert sum(sent) < 2 * big.nbytes  # a worker that came too late for the first call may need it now
    sent.clear()
    big[3] = -1  # another state of the same function
    assert results(lookup, [3, 4]) == [-1.0, 4.0]
    assert sum(sent) >= big.nbytes


def test_arrays_arrive_whole_and_writable():
    values = [
        np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.ones((300, 200))),
        np.array(["a", "bc"]),
        np.array([1 + 2j]),
        np.zeros((0, 3)),
        np.arange(1_000_000, dtype=np.float32),
    ]

    def add_one(array):
        if array.dtype.kind != "U":
            array += 1
        return array

    for value, result in zip(values, results(add_one, values, chunk_size=4), strict=True):
        assert result.dtype == value.dtype and result.flags.writeable
        np.testing.assert_array_equal(result, value if value.dtype.kind == "U" else value + 1)
    assert values[1][0, 0] == 1  # the worker had a copy


def test_a_shared_argument_is_pickled_once_per_chunk():
    shared = np.zeros(100_000)
    outbound = Outbound.of(lambda x, table: x)
    parts, _ = outbound.pack_items([(i, (i, shared), {}) for i in range(10)])
    assert sum(memoryview(part).nbytes for part in parts) < 2 * shared.nbytes


# -- output ------------------------------------------------------------------------------------------------


def test_output_comes_in_order_of_items():
    def talk(x):
        print("item", x)
        if x == 0:
            time.sleep(0.2)  # the others are done long before
        print("warn", x, end="", file=sys.stderr)
        sys.stdout.buffer.write(f"raw ä {x}\n".encode())
        return x

    for chunk_size in (1, 3):
        seen = []
        keep = seen.append
        results(talk, range(7), chunk_size=chunk_size, on_output=lambda *o, keep=keep: keep(o))
        for stream, line in (("stdout", "item {0}\nraw ä {0}\n"), ("stderr", "warn {0}")):
            text = "".join(text for name, text in seen if name == stream)
            assert text == "".join(line.format(x) for x in range(7))


def test_output_is_shown_while_the_item_runs(tmp_path):
    seen_by_parent = tmp_path / "seen"

    def talk(x):
        print("started", flush=True)
        deadline = time.monotonic() + 10
        while not seen_by_parent.exists():  # an item that would never end if its output came afterwards
            assert time.monotonic() < deadline
            time.sleep(0.01)

    results(talk, [0], on_output=lambda stream, text: seen_by_parent.touch())


def test_output_of_failing_items_is_not_lost():
    def fail(x):
        print("before", x)
        raise ValueError(x)

    seen = []
    _, failures = run(fail, range(3), on_output=lambda stream, text: seen.append(text))
    assert "".join(seen) == "before 0\nbefore 1\nbefore 2\n"
    assert [failure.index for failure in failures] == [0, 1, 2]


def test_function_may_close_or_replace_its_streams():
    def rude(x):
        if x == 0:
            sys.stdout.close()
        sys.stdout = None
        return x

    assert results(rude, range(4), n=1) == [0, 1, 2, 3]
    workers.stop_workers()  # that worker is of no use for other tests


def test_forked_child_of_the_function_leaves_the_connection_alone():
    def fork(x):
        import warnings

        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            print("child")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent")
        return x

    seen = []
    assert results(fork, range(3), on_output=lambda stream, text: seen.append(text)) == [0, 1, 2]
    assert "".join(seen) == "parent\n" * 3


# -- exceptions --------------------------------------------------------------------------------------------


def test_exception_keeps_type_item_and_traceback():
    class Unstable(ValueError):
        def __init__(self, message, rate):
            super().__init__(message, rate)
            self.rate = rate

    def inner(x):
        raise Unstable("too fast", x / 2)

    def outer(x):
        if x == 3:
            inner(x)
        return x

    done, failures = run(outer, range(5), chunk_size=2)
    assert done == {0: 0, 1: 1, 2: 2, 4: 4}
    (failure,) = failures
    assert failure.index == 3 and type(failure.error) is Unstable and failure.error.rate == 1.5
    lines = failure.traceback_text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    frames = re.findall(r'File "(.*)", line (\d+), in (\w+)', failure.traceback_text)
    start = inner.__code__.co_firstlineno
    assert frames == [
        (__file__, str(outer.__code__.co_firstlineno + 2), "outer"),
        (__file__, str(start + 1), "inner"),
    ]
    assert 'raise Unstable("too fast", x / 2)' in failure.traceback_text
    assert "Unstable: ('too fast', 1.5)" in lines[-1]


def test_cause_of_an_exception_is_in_its_traceback():
    def work(x):
        try:
            return 1 / x
        except ZeroDivisionError as error:
            raise KeyError("rate") from error

    failure = only_failure(work, [0])
    assert isinstance(failure.error, KeyError)
    assert "direct cause" in failure.traceback_text and "ZeroDivisionError" in failure.traceback_text


def odd_exceptions():
    class WantsMore(Exception):  # pickle calls WantsMore("…") with one argument: fails
        def __init__(self, code, detail):
            super().__init__(f"code {code}")

    class HoldsLock(Exception):
        def __init__(self):
            super().__init__("busy")
            self.lock = threading.Lock()

    class Speechless(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    class Liar(Exception):
        def __reduce__(self):
            return (int, ("7",))

    class KillsUnpickler(Exception):
        def __reduce__(self):
            return (eval, ("(_ for _ in ()).throw(SystemExit(1))",))

    return WantsMore(1, 2), HoldsLock(), Speechless(), Liar("lies"), KillsUnpickler("dies")


@pytest.mark.parametrize("case", range(5))
def test_exception_that_does_not_travel_is_still_told(case):
    error = odd_exceptions()[case]
    name = type(error).__name__
    pids = set(results(lambda x: os.getpid(), range(4)))

    def work(x):
        if x == 1:
            raise odd_exceptions()[case]
        return x

    done, failures = run(work, range(3))
    assert done == {0: 0, 2: 2} and [failure.index for failure in failures] == [1]
    assert name in failures[0].traceback_text
    if name == "Speechless":
        assert type(failures[0].error).__name__ == name
    else:
        assert type(failures[0].error) is WorkerError
        assert "Item 1 raised" in str(failures[0].error) and name in str(failures[0].error)
        assert name in ("Liar", "KillsUnpickler") or str(error) in str(failures[0].error)
    assert pids <= set(worker_pids())  # nobody died of it


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exception_that_would_end_a_process_is_a_failure_of_its_item(kind):
    def work(x):
        if x == 1:
            raise kind("because")
        return x

    done, (failure,) = run(work, range(3))
    assert done == {0: 0, 2: 2} and failure.index == 1
    # Raised here, SystemExit would end this process without a word.
    assert type(failure.error) is WorkerError and f"{kind.__name__}: because" in str(failure.error)


def test_wrong_arguments_are_told():
    done, failures = run(lambda a, b: a, [1])
    assert done == {} and isinstance(failures[0].error, TypeError)
    assert "missing 1 required positional argument: 'b'" in failures[0].traceback_text
    assert "worker_main" not in failures[0].traceback_text


def test_stop_at_failure_reports_what_a_loop_would_meet(tmp_path):
    def work(x):
        if x == 1:
            while not (tmp_path / "3").exists():  # fails last, but a loop would meet it first
                time.sleep(0.01)
            raise ValueError(x)
        if x == 3:
            (tmp_path / "3").touch()
            raise ValueError(x)
        (tmp_path / f"ran {x}").touch()
        return x

    _, failures = run(work, range(1000), stop_at_failure=True)
    assert failures[0].index == 1 and failures[0].error.args == (1,)
    assert len(list(tmp_path.glob("ran *"))) < 20  # nothing new was handed out


def test_stop_at_failure_does_not_wait_for_later_items(tmp_path):
    def work(x):
        if x == 0:
            while not (tmp_path / "1").exists():
                time.sleep(0.01)
            raise ValueError(x)
        (tmp_path / "1").touch()
        time.sleep(60)

    started = time.monotonic()
    assert only_failure(work, range(4), stop_at_failure=True).index == 0
    assert time.monotonic() - started < 20
    assert results(lambda x: x, range(2)) == [0, 1]


def test_stop_at_failure_within_a_chunk():
    def work(x):
        print(x)
        return 1 / (x - 2)

    seen = []
    done, failures = run(
        work, range(6), n=1, chunk_size=6, stop_at_failure=True, on_output=lambda *o: seen.append(o[1])
    )
    assert [failure.index for failure in failures] == [2] and list(done) == [0, 1]
    assert "".join(seen) == "0\n1\n2\n"


# -- what cannot travel ------------------------------------------------------------------------------------


LOCK = threading.Lock()


def uses_lock():
    with LOCK:
        return 1


@pytest.mark.parametrize("case", ["closure", "helper", "attribute", "default", "method", "partial", "list"])
def test_function_that_cannot_travel_is_refused_before_workers_start(case):
    workers.stop_workers()
    lock = threading.Lock()
    config = types.SimpleNamespace(name="a", handle=types.SimpleNamespace(lock=lock))
    tables = {"a": [1, (x for x in "b")]}

    class Model:
        def __init__(self):
            self.guard = lock

        def work(self, x):
            return x

    def helper(x):
        with lock:
            return x

    function, part, next_step = {
        "closure": (lambda x: (x, lock), "lock, of type _thread.lock", "inside the function"),
        "helper": (lambda x: helper(x), "lock, of type _thread.lock", "inside the function"),
        "attribute": (lambda x: config, "config.handle.lock, of type", "inside the function"),
        "default": (lambda x, y=lock: x, "a default of <lambda>, of type", "inside the function"),
        "method": (Model().work, "work.__self__.guard, of type", "inside the function"),
        "partial": (functools.partial(max, tables), "partial.args[0]['a'][1], of type generator", "list"),
        "list": (lambda x: tables, "tables['a'][1], of type generator", "list"),
    }[case]
    with pytest.raises(WorkerError) as caught:
        run(function, [1])
    assert "cannot be sent to worker processes" in str(caught.value)
    assert part in caught.value.problem
    assert next_step in caught.value.next_step
    assert worker_pids() == []


def test_notebook_class_that_cannot_travel_names_the_variable():
    # A class of __main__, whose method uses a global that cannot be pickled.
    namespace = {"__name__": "__main__", "guard": threading.Lock()}
    exec(
        "class Job:\n    def run(self):\n        return guard\njob = Job()\nwork = lambda x: job.run()\n",
        namespace,
    )
    with pytest.raises(WorkerError, match=r"guard, of type _thread.lock"):
        run(namespace["work"], [1])


def test_open_file_is_explained(tmp_path):
    with open(tmp_path / "log", "w") as log, pytest.raises(WorkerError) as caught:
        run(lambda x: log.write(x), ["a"])
    assert "log, of type _io.TextIOWrapper" in caught.value.problem
    assert "path" in caught.value.next_step


def test_item_that_cannot_travel_fails_alone():
    values = [1, (x for x in "ab"), 3, {"f": threading.Lock()}, 5]
    done, failures = run(lambda x: x, values, chunk_size=3)
    assert done == {0: 1, 2: 3, 4: 5}
    assert [failure.index for failure in failures] == [1, 3]
    assert all(type(failure.error) is InputError for failure in failures)
    assert "Item 1 cannot be sent to a worker process: cannot pickle 'generator' object" in str(failures[0].error)
    assert "list" in failures[0].error.next_step
    assert "the item['f'], of type _thread.lock" in str(failures[1].error)
    done, failures = run(lambda x: x, values, chunk_size=3, stop_at_failure=True)
    assert done == {0: 1} and [failure.index for failure in failures] == [1]


def test_argument_that_cannot_travel_is_named():
    items = [(7, (1, threading.Lock()), {"size": 2}), (8, (1, 2), {"size": (x for x in "a")})]
    _, failures = workers.run_in_processes(max, items, workers=1, chunk_size=2, on_output=print, stop_at_failure=False)
    assert "arguments[1], of type _thread.lock" in str(failures[0].error)
    assert "arguments['size'], of type generator" in str(failures[1].error)


def test_result_that_cannot_travel_fails_alone():
    def work(x):
        return {0: x, 1: (y for y in "ab"), 2: {"rows": [1, threading.Lock()]}}[x]

    done, failures = run(work, range(3))
    assert done == {0: 0} and [failure.index for failure in failures] == [1, 2]
    assert all(type(failure.error) is WorkerError for failure in failures)
    assert "result of item 1 cannot be sent back" in str(failures[0].error)
    assert "cannot pickle 'generator' object" in str(failures[0].error)
    assert "the result['rows'][1], of type _thread.lock" in str(failures[1].error)


def test_result_that_cannot_be_rebuilt_here_fails_alone():
    class Odd:
        def __reduce__(self):
            return (int, ("x",))

    done, failures = run(lambda x: Odd() if x == 1 else x, range(3))
    assert done == {0: 0, 2: 2}
    assert "result of item 1" in str(failures[0].error) and "ValueError" in str(failures[0].error)


@pytest.fixture
def module_only_here(monkeypatch):
    module = types.ModuleType("only_here")
    exec("def work(x):\n    return x\nclass Thing:\n    pass\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    return module


def test_function_of_a_module_that_workers_cannot_import(module_only_here):
    with pytest.raises(WorkerError) as caught:
        run(module_only_here.work, [1])
    assert "The function cannot be rebuilt in a worker process" in str(caught.value)
    assert "No module named 'only_here'" in str(caught.value) and "sys.path" in caught.value.next_step
    assert results(lambda x: x, [1]) == [1]


def test_item_of_a_module_that_workers_cannot_import(module_only_here):
    values = [1, module_only_here.Thing(), 3, 4]
    seen = []
    done, failures = run(lambda x: x, values, chunk_size=4, n=1)
    assert done == {0: 1, 2: 3, 3: 4} and [failure.index for failure in failures] == [1]
    assert "Item 1 cannot be rebuilt in a worker process" in str(failures[0].error)
    assert "only_here" in str(failures[0].error)
    # The chunk is taken apart; the order of what is printed, and of failures, stays.
    done, failures = run(
        lambda x: print(x), values, chunk_size=2, stop_at_failure=True, on_output=lambda *o: seen.append(o[1])
    )
    assert [failure.index for failure in failures] == [1]
    assert "".join(seen).startswith("1\n")


# -- workers that die --------------------------------------------------------------------------------------


def die(how):
    print("last words")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "crash":
        import faulthandler

        faulthandler._sigsegv()
    elif how == "abort":
        os.abort()
    elif how == "closed":
        os.closerange(3, 100)
        time.sleep(60)


@pytest.mark.parametrize(
    ("how", "ending", "next_step"),
    [
        ("killed", "was killed by signal 9 (SIGKILL)", "memory"),
        ("exit", "ended with exit code 3", "os._exit"),
        ("crash", "was killed by signal 11 (SIGSEGV)", "stack is printed above"),
        ("abort", "was killed by signal 6 (SIGABRT)", "stack is printed above"),
        ("closed", "lost its connection", "closes its files"),
    ],
)
def test_dead_worker_is_named(how, ending, next_step, tmp_path):
    def work(x):
        if x == 5:
            while not (tmp_path / "8").exists():
                time.sleep(0.01)
            die(how)
        if x == 8:
            (tmp_path / "8").touch()
            time.sleep(60)
        return x

    seen = []
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        run(work, range(20), chunk_size=4, on_output=lambda *o: seen.append(o))
    assert f"A worker process {ending} at item 5 (it had items 4 to 7)" in caught.value.problem
    assert "in flight: items 8 to 11" in caught.value.problem
    assert next_step in caught.value.next_step
    assert time.monotonic() - started < 20
    assert ("stdout", "last words\n") in seen
    if how == "crash":
        report = "".join(text for stream, text in seen if stream == "stderr")
        assert "Segmentation fault" in report and "in die" in report
    assert worker_pids() == []
    assert results(lambda x: x, range(4)) == [0, 1, 2, 3]


def test_what_a_dead_worker_started_ends_too():
    marker = f"97.{os.getpid()}"

    def work(x):
        subprocess.Popen(["sleep", marker])
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerError):
        run(work, [1])
    wait_until(lambda: processes("sleep", marker) == [])


def test_worker_killed_between_calls_is_replaced():
    results(lambda x: x, range(4))
    victims = worker_pids()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: processes("worker_main", str(os.getpid())) == [] or worker_pids() == [])
    assert results(lambda x: x, range(4)) == [0, 1, 2, 3]
    assert not set(victims) & set(worker_pids())


def test_worker_that_cannot_start_is_told(monkeypatch):
    workers.stop_workers()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match="ended with exit code 1 while it started"):
        run(lambda x: x, [1])


def test_timeout():
    def work(x):
        print("item", x)
        if x > 1:
            time.sleep(60)
        return x

    seen = []
    with pytest.raises(WorkerError) as caught:
        run(work, range(6), timeout=4, on_output=lambda *o: seen.append(o[1]))
    assert caught.value.argument == "timeout"
    assert "timeout=4: the map was stopped after 4 seconds with 2 items finished" in str(caught.value)
    assert "in flight: item 2, item 3" in str(caught.value)
    assert "item 2\n" in seen
    assert worker_pids() == []
    assert results(lambda x: x, [1, 2], timeout=60) == [1, 2]


def test_error_in_the_users_iterator_or_callback_ends_the_workers():
    def values():
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError):
        run(lambda x: time.sleep(60), values())
    assert worker_pids() == []

    def broken(stream, text):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(lambda x: print(x), [1], on_output=broken)
    assert worker_pids() == []


SCRIPT = """
import os, signal, subprocess, sys, time
from jaxpar_magic.mapping.workers import run_in_processes

class Point:  # no "if __name__ == '__main__'" anywhere: workers do not run this file
    def __init__(self, x):
        self.x = x

def work(p):
    if p.x == 0:
        subprocess.Popen(["sleep", MARKER])
        print("running", os.getpid(), flush=True)
        sum(range(10**15))  # C code that never lets go of the interpreter
    if p.x == 1:
        time.sleep(600)
    return Point(p.x + 1)

def start(first, on_output=lambda stream, text: print(text, end="", flush=True)):
    return run_in_processes(work, ((i, (Point(first + i),), {}) for i in range(4)), workers=2, chunk_size=1,
                            on_output=on_output, stop_at_failure=True)
"""


@pytest.fixture
def script(tmp_path):
    """Start a script in a process group of its own; at the end nothing of it may be left."""
    marker = f"98.{os.getpid()}{time.monotonic_ns()}"
    started = []

    def start(code):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.replace("MARKER", repr(marker)) + textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    left = []
    for process in started:
        process.kill()
        process.wait()
        left += processes("worker_main", f", {process.pid})")  # a worker's command line ends in its parent
    left += processes("sleep", marker)
    wait_until(lambda: not set(left) & set(processes("worker_main") + processes("sleep", marker)), kill=left)


def test_script_needs_no_main_guard(script):
    process = script(
        """
        done, failures = start(5)
        print([(type(p) is Point, p.x) for p in done.values()], failures)
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("[(True, 6), (True, 7), (True, 8), (True, 9)] []\n", "")
    wait_until(lambda: worker_pids(process.pid) == [])


def test_interrupt_ends_it_all_within_a_second(script):
    process = script(
        """
        try:
            start(0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.readline()
        print(len(start(5)[0]), flush=True)
        """
    )
    assert process.stdout.readline().startswith("running")
    pids = worker_pids(process.pid)
    assert len(pids) == 2
    interrupted = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - interrupted < 5  # a second, and patience with a busy machine
    assert worker_pids(process.pid) == []
    out, err = process.communicate("go on\n", timeout=60)
    assert (out, err, process.returncode) == ("4\n", "", 0)


def test_workers_ignore_an_interrupt_that_reaches_them():
    assert results(lambda x: os.kill(os.getpid(), signal.SIGINT) or x, range(3)) == [0, 1, 2]


def test_interrupt_while_workers_start_is_quiet(script):
    process = script(
        """
        import threading
        for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
            try:
                threading.Timer(delay, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
                start(1)
            except KeyboardInterrupt:
                pass
        print(len(start(5)[0]))
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out.splitlines()[-1], err, process.returncode) == ("4", "", 0)


@pytest.mark.parametrize("moment", ["running", "idle"])
def test_workers_end_when_their_parent_is_killed(script, moment):
    process = script(
        """
        start(5)
        print("idle", flush=True)
        if sys.argv[1:] != ["idle"] and MOMENT == "running":
            start(0)
        time.sleep(600)
        """.replace("MOMENT", repr(moment))
    )
    assert process.stdout.readline() == "idle\n"
    if moment == "running":
        assert process.stdout.readline().startswith("running")
    pids = worker_pids(process.pid)
    assert pids
    process.kill()
    process.wait()
    wait_until(lambda: not set(pids) & set(processes("worker_main")))


def test_workers_end_with_their_parent_though_a_forked_copy_of_it_lives(script):
    process = script(
        """
        import warnings
        warnings.simplefilter("ignore")
        def work(p):
            print("napping", flush=True)
            time.sleep(600)
        def fork(stream, text):
            if os.fork() == 0:
                time.sleep(30)  # holds copies of all connections
                os._exit(0)
            print(text, end="", flush=True)
        start(5, fork)
        """
    )
    assert process.stdout.readline() == "napping\n"
    pids = worker_pids(process.pid)
    try:
        process.kill()
        process.wait()
        wait_until(lambda: not set(pids) & set(processes("worker_main")))
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the copy


def test_forked_copy_of_the_parent_leaves_the_workers_alone(script):
    process = script(
        """
        import warnings
        warnings.simplefilter("ignore")
        start(5)
        if os.fork() == 0:
            print(len(start(5)[0]), flush=True)
            sys.exit()  # runs the exit functions, which must not end the parent's workers
        os.wait()
        print(len(start(5)[0]))
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("4\n4\n", "")


# -- surroundings ------------------------------------------------------------------------------------------


def test_threads_are_limited_unless_the_user_decided(monkeypatch):
    monkeypatch.setattr(worker_pool, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    read = lambda name: os.environ.get(name)  # noqa: E731
    assert results(read, ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]) == ["4", "4", "5"]
    assert worker_pool.worker_environment(16, False, {})["OMP_NUM_THREADS"] == "1"


def test_environment_is_set_before_anything_runs_and_a_change_renews_the_workers(monkeypatch):
    def read(name):
        return os.environ.get(name), os.getpid()

    names = ["JAX_ENABLE_X64", "JAX_PLATFORMS", "SOME_SETTING"]
    options = {"x64": True, "environment": {"JAX_PLATFORMS": "cpu"}, "n": 1}
    first = results(read, names, **options)
    assert [value for value, _ in first] == ["1", "cpu", None]
    assert results(read, names, **options) == first
    options["x64"] = False
    second = results(read, names, **options)
    assert [value for value, _ in second] == ["0", "cpu", None] and second[0][1] != first[0][1]
    monkeypatch.setenv("SOME_SETTING", "7")
    third = results(read, names, **options)
    assert [value for value, _ in third] == ["0", "cpu", "7"] and third[0][1] != second[0][1]
    assert worker_pids() == [third[0][1]]


def test_workers_follow_directory_and_search_path(tmp_path, monkeypatch):
    assert results(lambda x: os.getcwd(), [0]) == [os.getcwd()]
    (tmp_path / "beside_the_notebook.py").write_text("value = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])

    def work(x):
        import beside_the_notebook

        return beside_the_notebook.value + x, os.getcwd()

    assert results(work, [0, 1]) == [(4, str(tmp_path)), (5, str(tmp_path))]


def test_edited_module_is_imported_anew(tmp_path, monkeypatch):
    module = tmp_path / "helpers_in_a_file.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def work(x):
        import helpers_in_a_file

        return helpers_in_a_file.factor * x, os.getpid()

    module.write_text("factor = 2\n")
    first = results(work, [1, 2])
    assert results(work, [1, 2])[0][1] in worker_pids()
    module.write_text("factor = 3\n")
    os.utime(module, ns=(1, 1))
    second = results(work, [1, 2])
    assert [value for value, _ in first] == [2, 4]
    assert [value for value, _ in second] == [3, 6]


def test_random_states_differ_between_workers_and_calls():
    def draw(x):
        return float(np.random.random()), os.getpid()

    draws = results(draw, range(12)) + results(draw, range(12))
    assert len({value for value, _ in draws}) == 24


def test_worker_starts_without_numpy_and_jax():
    workers.stop_workers()
    loaded = results(lambda x: sorted({"numpy", "jax", "IPython", "jaxpar_magic"} & set(sys.modules)), [0])
    assert loaded == [[]]


def test_calls_in_two_threads_do_not_meet():
    outcomes = {}

    def call(n):
        outcomes[n] = results(lambda x: (time.sleep(0.02), x * n)[1], range(10))

    threads = [threading.Thread(target=call, args=(n,)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {n: [x * n for x in range(10)] for n in (2, 3)}
    assert len(worker_pids()) <= 2


def test_a_worker_may_have_workers():
    def work(x):
        from jaxpar_magic.mapping.workers import run_in_processes

        items = [(i, (i,), {}) for i in range(3)]
        done, _ = run_in_processes(
            lambda y: x * y, items, workers=1, chunk_size=1, on_output=print, stop_at_failure=True
        )
        return done

    assert results(work, [1, 2]) == [{0: 0, 1: 1, 2: 2}, {0: 0, 1: 2, 2: 4}]


def test_idle_worker_ends_by_itself(monkeypatch):
    import mmap
    import socket

    monkeypatch.setattr(worker_main, "IDLE_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    worker = worker_main._Worker(theirs, mmap.mmap(-1, worker_main.STATE_BYTES))
    worker.serve()  # returns, though `ours` is open
    assert worker_main.receive(ours)[0][0] == "hello"
    for end in (ours, theirs):
        end.close()


def test_worker_idle_for_too_long_is_not_used():
    (pid,) = results(lambda x: os.getpid(), [0], n=1)
    worker_pool._warm.idle[0].last_used -= worker_main.IDLE_SECONDS
    (other,) = results(lambda x: os.getpid(), [0], n=1)
    assert other != pid and worker_pids() == [other]


def test_progress_is_told_after_each_task():
    told = []
    run(lambda x: 1 / x, range(5), chunk_size=2, n=1, on_done=told.append)
    assert told == [2, 4, 5]


def test_errors_are_of_our_kinds():
    assert issubclass(WorkerError, JaxparError) and issubclass(InputError, JaxparError)


@pytest.mark.slow
def test_jax_works_in_workers():
    def work(x):
        import jax
        import jax.numpy as jnp

        value = jax.jit(lambda v: jnp.sum(v**2))(jnp.arange(x, dtype=float))
        return str(value.dtype), float(value), jax.devices()[0].platform

    environment = {"JAX_PLATFORMS": "cpu"}
    assert results(work, [3, 4], x64=True, environment=environment) == [
        ("float64", 5.0, "cpu"),
        ("float64", 14.0, "cpu"),
    ]
    assert results(work, [3], x64=False, environment=environment) == [("float32", 5.0, "cpu")]


# -- in a kernel -------------------------------------------------------------------------------------------

IMPORTS = """
import os, time
from dataclasses import dataclass
from jaxpar_magic.mapping.workers import run_in_processes
def run(function, values, **options):
    items = ((i, (v,), {}) for i, v in enumerate(values))
    return run_in_processes(function, items, workers=2, chunk_size=2,
                            on_output=lambda stream, text: print(text, end=""), stop_at_failure=True, **options)
"""


def test_in_a_notebook():
    notebook = run_notebook(
        [
            IMPORTS,
            """\
            gravity = 9.81
            @dataclass
            class Throw:
                speed: float
                def height(self):
                    return self.speed ** 2 / (2 * gravity)
            class TooFast(Exception):
                pass
            def make(limit):
                def height(throw):
                    print("throw", throw.speed)
                    if throw.speed > limit:
                        raise TooFast(throw)
                    return Throw(throw.height())
                return height
            method = Throw.height
            """,
            """
            done, failures = run(make(10), [Throw(n) for n in range(4)])
            print(failures, [type(r) is Throw for r in done.values()], Throw.height is method)
            print([round(r.speed, 3) for r in done.values()])
            """,
            """
            gravity = 1.62
            done, failures = run(make(10), [Throw(1.0)])
            print(round(done[0].speed, 3), round(Throw(1.0).height(), 3))
            """,
            """
            done, (failure,) = run(make(2), [Throw(n) for n in range(4)])
            print(failure.index, type(failure.error) is TooFast, failure.error.args[0] == Throw(3))
            print(failure.traceback_text)
            """,
            "failure.error.__class__",
            "raise failure.error",
        ],
    )
    cells = notebook.cells
    assert [cell_errors(cell) for cell in cells[:-1]] == [[]] * 6
    assert cell_text(cells[2]).splitlines() == [
        *(f"throw {n}" for n in range(4)),
        "[] [True, True, True, True] True",
        "[0.0, 0.051, 0.204, 0.459]",
    ]
    assert cell_text(cells[3]).splitlines()[-1] == "0.309 0.309"
    text = cell_text(cells[4])
    assert "3 True True" in text
    assert re.search(r'File ".*", line 13, in height', text)
    assert "raise TooFast(throw)" in text and "worker_main" not in text
    assert "TooFast: Throw(speed=3)" in text
    assert cell_errors(cells[-1]) == ["TooFast"]


def test_interrupt_and_death_of_a_kernel():
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        client.execute_interactive(IMPORTS, timeout=60)

        def execute(code, until):
            """Run code until its output has the text; the output so far."""
            client.execute(textwrap.dedent(code), stop_on_error=False)  # take the next request all the same
            text = ""
            while until not in text:
                content = client.get_iopub_msg(timeout=60)["content"]
                text += content.get("text", "") + content.get("ename", "")
            return text

        execute("print('pid', os.getpid(), 'end')", until="end")
        text = execute(
            """
            def slow(x):
                print("running", os.getpid(), flush=True)
                time.sleep(600)
            print("kernel", os.getpid())
            run(slow, range(8))
            """,
            until="running",
        )
        kernel = int(re.search(r"kernel (\d+)", text).group(1))
        assert len(worker_pids(kernel)) == 2
        manager.interrupt_kernel()
        interrupted = time.monotonic()
        while client.get_iopub_msg(timeout=60)["content"].get("ename") != "KeyboardInterrupt":
            pass
        assert time.monotonic() - interrupted < 5
        wait_until(lambda: worker_pids(kernel) == [])
        text = execute("print(run(lambda x: x + 1, range(3))[0], 'end')", until="end")
        assert "{0: 1, 1: 2, 2: 3} end" in text
        execute("run(slow, range(8))", until="running")
        pids = worker_pids(kernel)
        assert len(pids) == 2
        manager.shutdown_kernel(now=True)
        wait_until(lambda: not set(pids) & set(processes("worker_main")))
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
