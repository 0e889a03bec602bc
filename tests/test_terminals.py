"""A person at a terminal: IPython, and `jupyter console`, with their real prompts in a pseudo-terminal."""

from __future__ import annotations

import os
import re
import sys
import time

import pexpect
import pytest
from pexpect.exceptions import ExceptionPexpect

pytestmark = pytest.mark.slow

PATIENCE = 180  # seconds; only a test that fails waits so long
COMMANDS = {
    "ipython": ["-m", "IPython", "--no-banner", "--no-confirm-exit"],
    "console": ["-m", "jupyter_console", "--kernel=python3"],
}


class Terminal:
    """A program in a pseudo-terminal, and what it has written since the last `send`, without terminal codes."""

    def __init__(self, arguments: list[str], folder: str):
        environment = {
            **os.environ,
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",  # it would ask this terminal where the cursor is, and wait
            "JUPYTER_RUNTIME_DIR": folder,
            "JUPYTER_CONFIG_DIR": folder,
        }
        self.process = pexpect.spawn(
            sys.executable, arguments, env=environment, encoding="utf-8", dimensions=(60, 110), timeout=5
        )
        self.process.setecho(False)
        self.raw = ""

    @property
    def shown(self) -> str:
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>78]|[\x00-\x08\x0b-\x1f]", "", self.raw)

    def wait_for(self, pattern: str) -> None:
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, self.shown):
            assert time.monotonic() < end, f"{pattern!r} is not in\n{self.shown}"
            try:
                self.raw += self.process.read_nonblocking(65536, timeout=1)
            except pexpect.TIMEOUT:
                continue

    def send(self, keys: str) -> None:
        self.raw = ""
        self.process.send(keys)

    def run(self, line: str, shows: str, prompt: int) -> str:
        """Type a line; wait for what it shows and for the prompt after it."""
        self.send(line + "\r")
        self.wait_for(f"(?s){shows}.*In ?\\[{prompt}\\]")
        return self.shown


@pytest.fixture(params=COMMANDS)
def terminal(request, tmp_path):
    terminal = Terminal(COMMANDS[request.param], os.fspath(tmp_path))
    terminal.wait_for(r"In ?\[1\]")
    yield terminal
    try:
        terminal.process.close(force=True)
    except ExceptionPexpect:  # it has had SIGKILL; on a busy machine that takes its time
        os.waitpid(terminal.process.pid, 0)


def test_a_session(terminal, tmp_path):
    gate = tmp_path / "gate"
    terminal.run("%load_ext jaxpar_magic", "", 2)
    devices = terminal.run("%jaxdevices", "JAX is not imported yet", 3)
    assert re.search("cores that it may use +[0-9]+ +[█▏]", devices)
    terminal.run("import jax, numpy as np; xs = np.ones(10, 'float32'); f = lambda x: 2 * x", "", 4)
    terminal.run("%parmap f xs", r"10 items.*Array\(\[2\.", 5)
    failed = terminal.run("jax.pmap(f)(xs)", "ValueError.*JPX0104 pmap-needs-devices.*Fix 1: ", 6)
    assert failed.count("JPX0104 pmap-needs-devices") == 1
    terminal.run("%jaxexplain 1", "%parmap f xs", 7)
    terminal.wait_for(r"(?s)In ?\[7\].*%parmap f xs")  # the fix waits at the prompt
    terminal.send("\r")
    terminal.wait_for(r"(?s)Array\(\[2\..*In ?\[8\]")

    terminal.send("%parmap f xs --ch\t")
    terminal.wait_for("--chunk-size")
    terminal.send("\x15\x15")  # takes the line back
    terminal.run("import os, time", "", 9)
    wait = (
        f"wait = lambda x: [time.sleep(0.02) for _ in iter(lambda: x > 2 and not os.path.exists({str(gate)!r}), False)]"
    )
    terminal.run(f"{wait} and x or x", "", 10)
    terminal.send("%parmap wait range(6) -s serial\r")
    terminal.wait_for(r"\[#+\.+\] parmap: 50% of 6 items")
    terminal.send("\x03")
    # in which order: IPython before 8.14 shows no notes of errors, and we print them above
    terminal.wait_for(r"(?s)(?=.*KeyboardInterrupt)(?=.*3 of 6 items are done and kept).*In ?\[11\]")
    gate.touch()
    terminal.run("%parmap wait range(6) -s serial --resume", r"3 from an earlier run.*array\(\[0, 1, 2", 12)
