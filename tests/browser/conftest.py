"""JupyterLab in a real browser: one server and one Chromium for all tests, a notebook of its own for each.

Needs the extra `browser` and a Chromium of the system (`make browser`); without them these tests are not there.
Nothing here waits for a time to pass: each step waits for what it needs to see, however slow the machine is.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
MISSING = [
    name for name in ("playwright", "jupyterlab", "notebook", "axe_playwright_python") if find_spec(name) is None
]
if CHROMIUM is None:
    MISSING.append("chromium")
collect_ignore_glob = ["test_*.py"] if MISSING else []

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
PATIENCE = 120_000  # milliseconds; only a test that fails waits so long
# The last ones keep Chromium from asking hosts on the network about itself.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # cells that are out of sight are there, too
    "completer-extension/manager": {"providerTimeout": PATIENCE},  # by default it drops what takes over a second
}
OPTIONS = [
    "--allow-root",
    "--no-browser",
    "--ip=127.0.0.1",
    "--IdentityProvider.token=",
    "--ServerApp.disable_check_xsrf=True",
    "--ServerApp.port_retries=0",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--LabApp.extension_manager=readonly",
]

# whatever proxy is set
THIS_MACHINE = urllib.request.build_opener(urllib.request.ProxyHandler({}))

PANEL = "window.jupyterapp.shell.currentWidget"
READY = f"""async () => {{
  await window.jupyterapp.restored;
  let panel;
  while (!((panel = {PANEL}) && panel.sessionContext)) await new Promise((done) => setTimeout(done, 50));
  await panel.context.ready;
  await panel.sessionContext.ready;
  await panel.sessionContext.session.kernel.info;
}}"""


def in_time(promise: str) -> str:
    """The same promise in JavaScript, with an end: `page.evaluate` itself waits for ever."""
    late = f"new Promise((_, fail) => setTimeout(() => fail(new Error('not in time')), {5 * PATIENCE}))"
    return f"Promise.race([{late}, {promise}])"


def pytest_report_header() -> str | None:
    return f"browser tests left out, as these are missing: {', '.join(MISSING)}" if MISSING else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(url: str, process: subprocess.Popen) -> bool:
    """Whether the server is up; False if it ended, as when another process took its port."""
    end = time.monotonic() + PATIENCE / 1000
    while process.poll() is None and time.monotonic() < end:
        try:
            with THIS_MACHINE.open(url + "/api/status", timeout=10):
                return True
        except OSError:
            time.sleep(0.2)
    return False


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """(address, folder of notebooks) of a JupyterLab with folders and settings of its own."""
    root = tmp_path_factory.mktemp("lab")
    notebooks = root / "notebooks"
    notebooks.mkdir()
    for name, value in SETTINGS.items():
        file = root / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))
    folders = {
        "HOME": "home",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
    }
    environment = dict(os.environ, **{name: str(root / folder) for name, folder in folders.items()})
    (root / "home").mkdir()
    for _ in range(3):
        port = _free_port()
        with open(root / "lab.log", "w") as log:
            command = [sys.executable, "-m", "jupyterlab", *OPTIONS, f"--port={port}"]
            process = subprocess.Popen(
                [*command, f"--ServerApp.root_dir={notebooks}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        url = f"http://127.0.0.1:{port}"
        if _answers(url, process):
            break
        process.kill()
        process.wait()
    else:
        raise AssertionError("JupyterLab did not start:\n" + (root / "lab.log").read_text())
    yield url, notebooks
    process.terminate()  # it ends its kernels first
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import expect, sync_playwright

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def screenshots():
    """The folder for pictures."""
    return SCREENSHOTS


@pytest.fixture
def sharpness():
    """Pixels of a screenshot per pixel of the page; a module may have its own."""
    return 1


@pytest.fixture
def page(browser, sharpness):
    """A page that must not ask another host for anything."""
    context = browser.new_context(viewport={"width": 1000, "height": 1600}, device_scale_factor=sharpness)
    page, foreign = context.new_page(), []
    page.set_default_timeout(PATIENCE)
    known = ("http://127.0.0.1", "file:", "data:", "blob:")
    page.on("request", lambda request: request.url.startswith(known) or foreign.append(request.url))
    yield page
    context.close()
    assert foreign == []


class Notebook:
    """An open notebook: its cells by number, its outputs as the front end keeps them."""

    def __init__(self, page: Any, server: tuple[str, Path]):
        self.page, self.server = page, server

    def open(self, name: str, cells: list[Any], front_end: str = "doc/tree") -> None:
        """Write a notebook of these cells (a string each, or a cell with tags), and open it.

        `front_end` is "doc/tree" (JupyterLab, one document) or "notebooks" (Jupyter Notebook 7).
        """
        import nbformat

        made = [nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        # without a kernel's name JupyterLab asks for one in a dialog
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        url, folder = self.server
        nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=kernel), folder / name)
        self.page.goto(f"{url}/{front_end}/{name}")
        self.page.wait_for_function("() => window.jupyterapp")
        self.page.evaluate(f"() => {in_time(f'({READY})()')}")
        self.theme("Light")  # the last test's choice would stay: it is a setting of the server

    def command(self, name: str, **arguments: Any) -> Any:
        """Run a command of JupyterLab; waits until it has ended."""
        return self.page.evaluate(
            f"([name, arguments]) => {in_time('window.jupyterapp.commands.execute(name, arguments)')}",
            [name, arguments],
        )

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Until no cell runs or waits for its turn, and the kernel says so, too."""
        self.page.wait_for_function(
            f"""() => {PANEL}.sessionContext.session?.kernel?.status === 'idle'
              && ![...document.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.innerText.includes('*'))"""
        )

    def cell(self, number: int) -> Any:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)

    def model(self) -> list[dict[str, Any]]:
        """The cells as they would be saved."""
        return self.page.evaluate(f"() => {PANEL}.content.model.toJSON().cells")

    def text(self, number: int) -> str:
        """All that a cell shows, as read from the page."""
        return self.cell(number).locator(".jp-OutputArea").inner_text()

    def theme(self, name: str) -> None:
        """ "Light" or "Dark"."""
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")
        light = "true" if name == "Light" else "false"
        self.page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")

    def screenshot(self, name: str, *cells: int) -> None:
        """A picture of one cell, or of what stands at the top of the window."""
        path = SCREENSHOTS / f"{name}.png"
        if cells:
            self.cell(cells[0]).scroll_into_view_if_needed()
            self.cell(cells[0]).screenshot(path=path)
        else:
            last = self.page.locator(".jp-Notebook .jp-CodeCell").last.bounding_box()
            bottom = max(420, last["y"] + last["height"] + 10)
            self.page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1000, "height": bottom})

    def shut_down(self) -> None:
        self.page.evaluate(f"() => {in_time(f'Promise.resolve({PANEL}?.sessionContext?.shutdown())')}")


@pytest.fixture
def notebook(page, server):
    opened = Notebook(page, server)
    yield opened
    opened.shut_down()


@pytest.fixture
def accessibility_problems():
    """The function below: tests cannot import it, as several folders have a file of this name."""
    return _accessibility_problems


def _accessibility_problems(page: Any, *selectors: str) -> list[str]:
    """What the axe checker finds wrong in the elements that match, one line each; fails if nothing matches."""
    from axe_playwright_python.sync_playwright import Axe

    for selector in selectors:
        assert page.locator(selector).count(), f"nothing matches {selector}"
    found = Axe().run(page, context={"include": [[selector] for selector in selectors]}).response
    assert found["passes"], "axe checked nothing"
    return [
        f"{violation['id']}: {node['html'][:200]} ({node['failureSummary']})"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]
