"""Engines on two machines: namespaces of this one, with a switch between them whose cable can be pulled.

Each has its own network, name, processes, shared memory and home folder, and ends with the test, whatever ends that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.launcher]

LONG = 180
SECRET = b"not for everybody "
SPREAD = "what the engines exchange is neither encrypted nor authenticated: for trusted networks only"
NEAR, FAR = "10.98.76.1", "10.98.76.2"
NEEDED = ("ip", "ss", "unshare", "nsenter", "mount")
# A shell that reaps, and that ends (and all else in its namespaces with it) when its input does.
INIT = """
hostname {name} && mount -t tmpfs none /dev/shm && mkdir -p {own} && mount -t tmpfs none {own} && ip link set lo up
echo ready
read
"""
# What passes the far machine's plug, until the end of its input.
LISTENER = """
import select, socket, sys
plug = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
plug.bind(("far", 0))
plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
print("ready", flush=True)
while sys.stdin not in select.select([plug, sys.stdin], [], [])[0]:
    sys.stdout.buffer.write(plug.recv(1 << 17))
sys.stdout.flush()
"""
# Runs what it is sent, as a notebook would: {"code"} → {"value"} or {"error"}, and what was printed.
NOTEBOOK = """
import contextlib, io, json, sys, traceback
answers, names = sys.stdout, {}
for line in sys.stdin:
    said, answer = io.StringIO(), {}
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            names["value"] = None
            exec(compile(json.loads(line), "<cell>", "exec"), names)
            answer["value"] = names["value"]
        except BaseException as error:
            answer["error"] = "".join(traceback.format_exception(error))
    answer["said"] = said.getvalue()
    print(json.dumps(answer), file=answers, flush=True)
"""
BEGIN = """
import os, pathlib, time
import jax, jax.numpy as jnp, numpy as np
import jaxpar_magic
from jaxpar_magic import cluster, parmap
from jaxpar_magic.errors import JaxparError
from jaxpar_magic.mapping import api
from jaxpar_magic.mapping.options import MapOptions

class Lines:
    # A display of lines only.
    def update(self, progress): pass
    def close(self): pass
    def say(self, line): print(line)

reports = []

def mapped(function, *inputs, **options):
    result = api.run(function, inputs, {}, MapOptions(strategy="cluster", **options), display=Lines)
    reports.append(result.report)
    return result.value

def map_hosts(along=b""):
    # The machines that a map runs on.
    def item(i):
        import socket
        return socket.gethostname(), len(along)
    return sorted({host for host, _ in mapped(item, list(range(20)), chunk_size=1)})

def held(item):
    # On the far machine it ends only when it is interrupted.
    import pathlib, socket, time
    while socket.gethostname() == "far":
        pathlib.Path(marker).touch()
        time.sleep(0.01)
    return item
"""


class Host:
    """Namespaces of a machine of its own."""

    def __init__(self, name: str, own: Path, home: Path):
        self.name, self.home = name, home
        home.mkdir()
        command = "unshare --net --uts --ipc --pid --mount --fork --kill-child --mount-proc bash -c"
        self._holder = subprocess.Popen(
            [*command.split(), INIT.format(name=name, own=own)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._holder.stdout.readline() != "ready\n":
            said = self._holder.communicate()[1]
            pytest.skip(f"namespaces cannot be made here: {said.strip()}")
        (init,) = psutil.Process(self._holder.pid).children()
        self.pid = init.pid

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--all", *words]

    def run(self, *words: str) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *words: str, **options) -> subprocess.Popen:
        environment = {**os.environ, "HOME": str(self.home), "JAX_PLATFORMS": "cpu"}
        environment.pop("IPYTHONDIR", None)
        return subprocess.Popen(self.command(*words), env=environment, **options)

    def processes(self) -> list[str]:
        """The Python processes there."""
        listed = []
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == own and "python" in process.exe():
                    listed.append(" ".join(process.cmdline()))
        return listed

    def end(self) -> None:
        self._holder.stdin.close()
        self._holder.wait(LONG)


class Hosts:
    """Two machines at a switch."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.own = folder / "own"  # of each: what the other does not see
        self.all = []
        try:
            self.near, self.far, self._switch = (self._host(name) for name in ("near", "far", "switch"))
            try:
                self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
                self._switch.run("ip", "link", "set", "bridge", "up")
                for host, address in ((self.near, NEAR), (self.far, FAR)):
                    self._plug(host, address)
            except (AssertionError, subprocess.CalledProcessError) as error:
                pytest.skip(f"namespaces cannot be connected here: {error}")
        except BaseException:
            self.end()
            raise

    def _host(self, name: str) -> Host:
        host = Host(name, self.own, self.folder / f"home-{name}")
        self.all.append(host)
        return host

    def _plug(self, host: Host, address: str) -> None:
        inside = ["nsenter", "--target", str(self._switch.pid), "--net"]
        words = f"ip link add {host.name} type veth peer name eth0 netns {host.pid}".split()
        subprocess.run([*inside, *words], check=True, timeout=LONG)
        self._switch.run(*f"ip link set {host.name} master bridge up".split())
        host.run(*f"ip address add {address}/24 dev eth0".split())
        host.run(*["ip", "link", "set", "eth0", "up"])

    def cut(self) -> None:
        """Pull the far machine's cable: nobody is told."""
        self._switch.run(*["ip", "link", "set", "far", "down"])

    def mend(self) -> None:
        self._switch.run(*["ip", "link", "set", "far", "up"])

    @contextlib.contextmanager
    def heard(self):
        """What passes the switch meanwhile."""
        listener = subprocess.Popen(
            self._switch.command(sys.executable, "-c", LISTENER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert listener.stdout.readline() == b"ready\n"
        heard = Heard()
        yield heard
        heard.bytes = listener.communicate(timeout=LONG)[0]

    def end(self) -> None:
        for host in self.all:
            host.end()


class Notebook:
    """A Python process on the near machine that runs cells."""

    def __init__(self, hosts: Hosts):
        self._process = hosts.near.start(
            sys.executable, "-c", NOTEBOOK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said = ""

    def send(self, code: str) -> None:
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def answer(self):
        line = self._process.stdout.readline()
        assert line, "the notebook has ended"
        answer = json.loads(line)
        self.said = answer["said"]
        assert "error" not in answer, f"{answer['error']}\n{self.said}"
        return answer["value"]

    def run(self, code: str):
        """What the cell leaves in `value`."""
        self.send(code)
        return self.answer()

    def interrupt(self) -> None:
        (python,) = psutil.Process(self._process.pid).children()
        python.send_signal(signal.SIGINT)

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._process.stdin.close()
        self._process.wait(LONG)


def wait_for(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Heard:
    """What has passed the switch."""

    bytes = b""


def far_engines(notebook: Notebook) -> int:
    return notebook.run("value = [engine.host for engine in cluster.status().engines]").count("far")


def start_far(hosts: Hosts, notebook: Notebook) -> None:
    """An engine on the far machine, as a user would start it; returns when the notebook uses it."""
    file = notebook.run("value = str(cluster.current().engine_file)")
    log = (hosts.folder / "far.log").open("a")
    ipengine = str(Path(sys.executable).with_name("ipengine"))
    hosts.far.start(ipengine, f"--file={file}", stdout=log, stderr=log, cwd=hosts.folder)
    wait_for(lambda: far_engines(notebook) == 1)


def ensure_far(hosts: Hosts, notebook: Notebook) -> None:
    if far_engines(notebook) == 0:
        start_far(hosts, notebook)


def spmd_works(notebook: Notebook) -> list[str]:
    """Whether a collective has the right result; the machines that took part."""
    return notebook.run("""
xs = np.arange(1, 9, dtype=np.float32)
np.testing.assert_allclose(mapped(lambda x: x / jax.lax.psum(x, "items"), xs, spmd=True), xs / xs.sum(), rtol=1e-6)
value = sorted(engine.host for engine in cluster.current().engines)
""")


def notes(notebook: Notebook, ago: int = 1) -> list[str]:
    """Of the report of the last map, or of the one before."""
    return notebook.run(f"value = reports[-{ago}].notes")


def hold(notebook: Notebook, hosts: Hosts, name: str) -> None:
    """Begin a map; returns once the far engine has an item, which it keeps."""
    marker = hosts.folder / name
    notebook.send(f"marker = {str(marker)!r}; value = mapped(held, list('abcdefghijklmnopqrst'), chunk_size=1)")
    wait_for(marker.exists)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("namespaces need Linux and root")
    if absent := [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]:
        pytest.skip(f"namespaces need {', '.join(absent)} (iproute2, util-linux)")
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def notebook(hosts):
    """With a cluster of one engine beside it, and one on the far machine."""
    started = Notebook(hosts)
    try:
        started.run(f"import os; os.chdir({str(hosts.folder)!r})" + BEGIN)
        started.run(f"cluster.start(1, address={NEAR!r}, devices_per_engine=1, timeout={LONG})")
        start_far(hosts, started)
        yield started
    finally:
        started.end()


# -------------------------------------------------------------------- what is where


def test_both_machines_are_told_apart_and_only_their_own_addresses_listen(hosts, notebook):
    engines = notebook.run("value = [(e.host, e.at_home) for e in cluster.status().engines]")
    assert sorted(map(tuple, engines)) == [("far", False), ("near", True)]
    assert spmd_works(notebook) == ["far", "near"]  # so that JAX and gloo listen, too
    for host, address in ((hosts.near, NEAR), (hosts.far, FAR)):
        found = [line.split()[3].rpartition(":")[0] for line in host.run("ss", "-Hltn").splitlines()]
        assert {each.strip("[]").removeprefix("::ffff:") for each in found} == {address, "127.0.0.1"}


def test_what_travels_is_encrypted(hosts, notebook):
    with hosts.heard() as heard:
        notebook.run(f"value = map_hosts(b'{SECRET.decode()}' * 1000)")
    assert len(heard.bytes) > 1000 * len(SECRET)
    assert SECRET not in heard.bytes


def test_items_are_sent_to_the_far_machine_and_shared_on_this_one(notebook):
    used = notebook.run("""
def watch():
    from jaxpar_magic.cluster import engine_map, engine_spmd
    used = engine_map.used = []
    def opened(address, original=engine_spmd.opened):
        used.append(address)
        return original(address)
    engine_map.opened = engine_spmd.opened = opened

def used():
    from jaxpar_magic.cluster import engine_map
    return len(engine_map.used)

client = cluster.current().client
client[:].apply_sync(watch)
xs = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
np.testing.assert_array_equal(mapped(lambda x: x + 1, xs, chunk_size=64), xs + 1)
np.testing.assert_allclose(mapped(lambda x: x - jax.lax.pmax(x, "items"), xs, spmd=True), xs - xs[-1])
value = [(engine.host, client[engine.id].apply_sync(used)) for engine in cluster.current().engines]
""")
    used = dict(used)
    assert used["near"] > 0
    assert used["far"] == 0
    assert notes(notebook) == [SPREAD]


@pytest.mark.parametrize("there", ["nothing", "another"])
def test_a_file_that_only_one_machine_sees_is_sent(hosts, notebook, there):
    file = hosts.own / f"{there}.npy"
    if there == "another":
        hosts.far.run(sys.executable, "-c", f"import numpy; numpy.save({str(file)!r}, numpy.zeros(7))")
    notebook.run(f"""
xs = np.arange(512, dtype=np.float32)
np.save({str(file)!r}, xs)
np.testing.assert_array_equal(mapped(lambda x: x + 1, input_file={str(file)!r}, chunk_size=32), xs + 1)
np.testing.assert_array_equal(mapped(lambda x: x + 1, input_file={str(file)!r}, spmd=True), xs + 1)
""")
    (note,) = notes(notebook, 2)
    why = "No such file or directory" if there == "nothing" else "has another size or time of change there"
    assert f"(far) does not see {file}: {why}: its items of" in note
    assert notes(notebook) == [SPREAD]


def test_a_file_that_both_see_is_opened_by_both(hosts, notebook):
    file = hosts.folder / "both.npy"
    with hosts.heard() as heard:
        notebook.run(f"""
xs = np.zeros((512, 4096), dtype=np.float32)
np.save({str(file)!r}, xs)
np.testing.assert_array_equal(mapped(lambda x: x.sum(), input_file={str(file)!r}, chunk_size=64), xs.sum(1))
""")
    assert notes(notebook) == []
    assert len(heard.bytes) < 1 << 20


# -------------------------------------------------------------------- the cable is pulled


def test_an_interrupt_while_the_far_machine_is_cut_off(hosts, notebook):
    """It does not wait for the far engine, which is at work again as soon as it can be reached."""
    hold(notebook, hosts, "interrupted")
    hosts.cut()
    try:
        notebook.interrupt()
        with pytest.raises(AssertionError, match="KeyboardInterrupt"):
            notebook.answer()
        assert notebook.run("value = map_hosts()") == ["near"]
    finally:
        hosts.mend()
    # on a machine so slow that it counts as lost by now, another is started
    wait_for(lambda: notebook.run("value = map_hosts()") == ["far", "near"] or far_engines(notebook) == 0)
    ensure_far(hosts, notebook)
    assert notebook.run("value = map_hosts()") == ["far", "near"]


def test_a_map_goes_on_without_the_far_machine(hosts, notebook):
    hold(notebook, hosts, "held")
    hosts.cut()
    try:
        assert notebook.answer() == list("abcdefghijklmnopqrst")
        said = notebook.said
        lost, *others = [note for note in notes(notebook) if "lost" in note]
        assert others == []
        assert re.fullmatch(r"engine \d+ \(far\) was lost with item.* under way, which another engine gets", lost)
        assert said.count(f"parmap: {lost}\n") == 1
        assert said.count("(far) does not answer: its machine, or the network to it, is gone") == 1
        assert notebook.run("value = map_hosts()") == ["near"]
        assert notebook.run("value = cluster.status().lost") == 0  # nobody here can start it anew
    finally:
        hosts.mend()
    wait_for(lambda: hosts.far.processes() == [])  # it was told to end, and is now
    ensure_far(hosts, notebook)
    assert notebook.run("value = map_hosts()") == ["far", "near"]


def test_an_spmd_program_ends_when_the_far_machine_is_cut_off(hosts, notebook):
    ensure_far(hosts, notebook)
    assert spmd_works(notebook) == ["far", "near"]
    running = hosts.folder / "running"
    notebook.send(f"""
from jaxpar_magic.cluster import engine_spmd, mesh

def endless(x):
    return jax.lax.while_loop(lambda c: c >= 0, lambda c: jax.lax.pmax(c, "items"), x)

def ask_all(cluster, engines, called, arguments, check, seconds=None, original=mesh.ask_all):
    looks = iter(range(10**9))
    def checked():
        check()
        if called is engine_spmd.run and next(looks) == 20:
            pathlib.Path({str(running)!r}).touch()
    return original(cluster, engines, called, arguments, checked, seconds)

mesh.ask_all, original = ask_all, mesh.ask_all
try:
    mapped(endless, np.ones(5, np.float32), spmd=True)
except JaxparError as error:
    value = str(error)
finally:
    mesh.ask_all = original
""")
    wait_for(running.exists)
    hosts.cut()
    try:
        error = notebook.answer()
        assert "ended during an SPMD program" in error
        assert "far" in error and "its machine or the network to it is gone" in error
        assert "Next: run it again: engines are started anew" in error
        assert spmd_works(notebook) == ["near"]
    finally:
        hosts.mend()
    wait_for(lambda: hosts.far.processes() == [])
    ensure_far(hosts, notebook)
    assert spmd_works(notebook) == ["far", "near"]


def test_stop_ends_the_engines_of_both_machines(hosts, notebook):
    ensure_far(hosts, notebook)
    notebook.run("cluster.stop()")
    wait_for(lambda: hosts.far.processes() == [])
    assert [line for line in hosts.near.processes() if NOTEBOOK not in line] == []
    assert not list((hosts.near.home / ".ipython").glob("jaxpar_magic/*"))
