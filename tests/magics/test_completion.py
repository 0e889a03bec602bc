"""Tab in the lines of our magics: what is offered, and that nothing else stands beside it."""

from __future__ import annotations

import inspect
import os
import textwrap

import IPython
import pytest
from conftest import run_python

from jaxpar_magic.magics import completion, jaxcluster, jaxdevices, jaxexplain, offers, parmap
from jaxpar_magic.magics.offers import offer
from jaxpar_magic.mapping import choices, monitor, strategies

NEW = IPython.version_info >= (8, 6)
STRATEGIES = ["auto", "vmap", "map", "jit", "shard_map", "pmap", "thread", "process", "serial", "cluster"]


def double(x, factor=2):
    return factor * x


class Explosive:
    """Whatever Tab might do with a value of the user's raises."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __call__(self):
        raise AssertionError

    __eq__ = __bool__ = __len__ = __repr__ = __str__ = __call__  # type: ignore[assignment]


NAMES = {"xs": [1], "double": double, "drag": 0.1, "os": os, "_hidden": 1, "worse": Explosive(), "Ω": 1}


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        # options
        ("%parmap double xs --st", ["--static", "--strategy"]),
        ("%parmap double xs --strategy", ["--strategy"]),
        ("%%parmap xs --no", ["--no-progress", "--noresult"]),
        ("%parmap --key 0 --resume --re", ["--remainder"]),
        ("%parmap --static a --sta", ["--static"]),  # can be repeated
        ("%jaxdevices --x64 --no-", ["--no-debug-nans", "--no-preallocate"]),
        ("%jaxexplain --o", ["--off", "--on"]),
        ("%parmap double xs -s", ["-s"]),
        ("%parmap double xs --zz", []),
        ("%jaxcluster st", ["start", "status", "stop"]),
        ("%jaxcluster start --de", ["--devices-per-engine"]),
        ("%jaxcluster start st", []),  # one action
        # their values
        ("%jaxcluster start --engines s", ["slurm", "ssh", "sge"]),
        ("%jaxcluster start -n ", []),
        ("%parmap double xs -s ", STRATEGIES),
        ("%parmap double xs -s p", ["pmap", "process"]),
        ("%parmap double xs --strategy=vm", ["vmap"]),
        ("%parmap double xs -sshard", ["shard_map"]),
        ("%parmap double xs -s vq", []),
        ("%parmap double xs --remainder ", ["pad", "drop", "error"]),
        ("%parmap double xs --on-error s", ["skip"]),
        ("%parmap double xs --check ", ["finite"]),
        ("%parmap double xs --show ", ["plan", "code", "jaxpr", "hlo", "sharding"]),
        ("%parmap double xs --compare vmap,pm", ["pmap"]),
        ("%parmap double xs --compare vmap,v", []),  # named already
        ("%parmap double -c vm", ["vmap"]),
        ("%parmap double -c x", ["x=", "xs"]),  # an input behind the option
        ("%parmap double xs --static ", ["x", "factor"]),
        ("%parmap double xs --key dr", ["drag"]),
        ("%parmap double xs -b dr", ["drag"]),
        ("%parmap double xs --devices a", ["all"]),
        ("%jaxdevices a", ["all"]),
        ("%jaxdevices --platform c", ["cpu", "cuda"]),
        ("%jaxdevices --visible ", []),
        # names
        ("%parmap do", ["double"]),
        ("%parmap x", []),  # no function
        ("%parmap double d", ["double", "drag"]),
        ("%parmap double fac", ["factor="]),
        ("%parmap double xs factor=dr", ["drag"]),
        ("%%parmap x", ["xs"]),
        ("%%parmap x=dr", ["drag"]),
        ("%%parmap _", ["_hidden"]),
        ("%%parmap ran", ["range"]),  # of Python's own only where the user has none
        ("%parmap double Ω", ["Ω"]),
        ("%jaxdevices 2 xs", []),
        # codes
        ("%jaxexplain jpx010", None),
        ("%jaxexplain JPX0104", ["JPX0104"]),
        ("%jaxexplain pmap-needs-d", ["pmap-needs-devices"]),
        # where the line stands
        ("ys = %parmap double xs --che", ["--check", "--checkpoint"]),
        ("a, b[0] = %parmap double xs --show h", ["hlo"]),
        ("%time %parmap double xs --show h", ["hlo"]),
        ("%timeit -n1 %parmap double xs --show h", ["hlo"]),
        ("import os\nif xs:\n    %parmap double xs --show h", ["hlo"]),
        ("%%time\n%parmap double xs --show h", ["hlo"]),
        ("%parmap double \\\n xs --show h", ["hlo"]),
        ("\n%%parmap xs --show h", ["hlo"]),
    ],
)
def test_what_is_offered(text, texts):
    found = offer(text, NAMES)
    assert found is not None
    assert text.endswith(found.fragment)
    if texts is None:
        assert found.texts and all(t.startswith("JPX010") for t in found.texts)
    else:
        assert found.texts == texts
    assert len(set(found.texts)) == len(found.texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "xs",
        "%parmap",  # IPython completes names of magics
        "%parma",
        "%parmapper x",
        "%time xs",
        "100 %parmap",
        "%parmap double os.pa",  # an attribute
        "%parmap double [x",
        "%parmap double 'x",
        "%parmap double f(x).a",
        "%parmap double xs)",
        "%parmap double xs # --st",
        "%parmap double -q=",
        "%%parmap xs\ndef f(x):\n    return x --st",  # Python
        "%jaxexplain ValueError: all th",
        "print('x')\n%%parmap xs --st",  # no cell magic there
    ],
)
def test_the_rest_is_left_to_ipython(text):
    assert offer(text, NAMES) is None


def test_devices_offer_all_and_counts(monkeypatch):
    monkeypatch.setattr("jaxpar_magic.machine.usable_cores", lambda: 12)
    found = offer("%jaxdevices ", NAMES)
    assert found is not None and found.texts[:6] == ["all", "1", "2", "4", "8", "12"]
    assert "--platform" in found.texts
    found = offer("%parmap double xs -d ", NAMES)
    assert found is not None and found.texts == ["all", "1", "2", "4", "8", "12"]


def test_explain_offers_the_fixes_shown_last():
    found = offer("%jaxexplain ", NAMES, 2)
    assert found is not None and found.texts[:2] == ["1", "2"] and "JPX0104" in found.texts and "--list" in found.texts


def test_flags_of_xla():
    found = offer("%jaxdevices 2 --flag --xla_force_host_pl", NAMES)
    assert found is not None and found.texts == ["--xla_force_host_platform_device_count="]
    begin = offer("%jaxdevices --flag ", NAMES)
    assert begin is not None and begin.texts == ["--xla_"]


def test_paths(tmp_path, monkeypatch):
    for name in ("saved", "saved runs", ".cache", "s[1]"):
        (tmp_path / name).mkdir()
    (tmp_path / "saved" / "inner").mkdir()
    (tmp_path / "sizes.npy").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def texts(line):
        found = offer(line, NAMES)
        assert found is not None and line.endswith(found.fragment)
        return found.texts

    assert texts("%parmap f xs --checkpoint ") == ["'s[1]/", "saved/", "'saved runs/"]
    assert texts("%parmap f xs --checkpoint=sa") == ["saved/", "'saved runs/"]
    assert texts("%parmap f xs --checkpoint 'saved r") == ["'saved runs/"]
    assert texts("%jaxdevices --cache saved/") == ["saved/inner/"]
    assert texts("%jaxdevices --cache .c") == [".cache/"]
    assert texts("%jaxdevices --cache ~/sav") == ["~/saved/", "'~/saved runs/"]
    assert texts("%jaxdevices --cache nowhere/") == []


def test_every_option_that_takes_a_file_or_folder_offers_paths():
    for parser in (module.make_parser() for module in (parmap, jaxdevices, jaxexplain, jaxcluster)):
        for action in parser.actions().values():
            told = "folder" in (action.help or "") or "DIR" in (action.help or "") or " file" in (action.help or "")
            assert told <= (action.metavar in offers._FOLDERS + offers._FILES), action


def test_what_is_offered_is_what_the_function_takes():
    assert list(choices.STRATEGIES) == STRATEGIES == ["auto", *strategies.NAMES]
    parameters = set(inspect.signature(__import__("jaxpar_magic").parmap).parameters)
    only_magic = {"help", "out", "noresult", "no_progress"}
    assert {a.dest for a in parmap.make_parser().actions().values()} - only_magic <= parameters
    assert monitor.DELAY_SECONDS == 2.0


# --- through IPython --------------------------------------------------------------------------------------

LINES = {
    "%parmap double xs --st": ["--static", "--strategy"],
    "%parmap double xs -s p": ["pmap", "process"],
    "%parmap double xs --strategy=vm": ["vmap"],
    "%parmap double xs --compare vmap,pm": ["pmap"],
    "%parmap double x": ["x=", "xs"],
    "%parmap dou": ["double"],
    "%%parmap xs --on-error ": ["raise", "skip"],
    "%jaxdevices al": ["all"],
    "%jaxdevices --platform t": ["tpu"],
    "%jaxexplain JPX0104": ["JPX0104"],
    "%jaxexplain pmap-needs-d": ["pmap-needs-devices"],
    "ys = %parmap double xs --show h": ["hlo"],
    "%parmap double xs --checkpoint vm": ["vmfolder/"],
    "%parmap double xs -svm": ["vmap"],
}
NOTHING = [
    "%parmap double xs -s vmf",
    "%parmap double xs --vm",
    "%parmap vmf",
    "%jaxdevices 2 vm",
    "%jaxdevices --visible ",
]
REST = {
    "%parmap double os.pathse": "pathsep",
    "%parmap double np_like.al": "alpha",
    "%parma": "%parmap",
    "doub": "double",
}


def completed(text, start, end, new):
    return text[:start] + new + text[end:]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files and folders with names like those of options and values, which IPython would offer."""
    (tmp_path / "vmfolder").mkdir()
    for name in ("vmfile", "pmfile", "xfile", "allfile", "hlofile", "--stfile", "JPX0104file"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def in_terminal(shell, text):
    """What a menu in the terminal shows."""
    from IPython.terminal.ptutils import IPythonPTCompleter
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    completer = IPythonPTCompleter(ipy_completer=shell.Completer)
    found = completer.get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [completion.text for completion in found]


@pytest.mark.skipif(not NEW, reason="IPython < 8.6 mixes in what it finds itself")
def test_nothing_else_is_offered(shell, folder):
    from IPython.core.completer import provisionalcompleter

    shell.run_cell("import os, types\nxs = [1]\nnp_like = types.SimpleNamespace(alpha=1)\ndef double(x): return x")
    shell.run_line_magic("load_ext", "jaxpar_magic")

    def tab(text):
        with provisionalcompleter():
            return [completed(text, c.start, c.end, c.text) for c in shell.Completer.completions(text, len(text))]

    try:
        for text, texts in LINES.items():
            word = text[max(text.rfind(" "), text.rfind("="), text.rfind(",")) + 1 :]
            begin = text[: len(text) - len(word)] + ("-s" if word == "-svm" else "")
            assert tab(text) == [begin + t for t in texts], text
        for text in NOTHING:
            assert tab(text) == [], text
        assert in_terminal(shell, "%parmap double xs -s v") == ["vmap"]
        assert in_terminal(shell, "%parmap double xs -s vmf") == []
        for text, end in REST.items():
            assert any(t.endswith(end) for t in tab(text)), text
    finally:
        shell.run_line_magic("unload_ext", "jaxpar_magic")
    assert any(t.endswith("vmfile") for t in tab("%parmap double xs -s vm"))


@pytest.mark.skipif(NEW, reason="an older way")
def test_older_ipython_offers_ours_too(shell, folder):
    shell.run_cell("xs = [1]\ndef double(x): return x")
    shell.run_line_magic("load_ext", "jaxpar_magic")
    try:
        for text, texts in LINES.items():
            fragment, matches = shell.Completer.complete(line_buffer=text, cursor_pos=len(text))
            assert text.endswith(fragment)
            lines = [text[: len(text) - len(fragment)] + match for match in matches]
            assert all(any(line.endswith(t) for line in lines) for t in texts), (text, matches)
            assert len(set(matches)) == len(matches)
    finally:
        shell.run_line_magic("unload_ext", "jaxpar_magic")


def test_it_never_raises(shell, monkeypatch):
    class Magics:
        last = None

    found = completion.Completion(shell, Magics())
    monkeypatch.setattr(offers, "offer", lambda *args: 1 / 0)
    assert found._offer("%parmap ") is None
    monkeypatch.undo()
    shell.user_ns["worse"] = Explosive()
    assert found._offer("%parmap wor").texts == ["worse"]
    assert found._offer("%parmap worse xs --static ").texts == []


def test_tab_imports_no_jax_and_starts_no_backend():
    """In a process of its own; and with JAX imported, its backend stays asleep."""
    lines = [*LINES, "%jaxdevices --flag --xla_cpu", "%jaxdevices ", "%jaxexplain "]
    code = f"""
    import sys
    from jaxpar_magic.magics.offers import offer
    for text in {lines!r}:
        assert offer(text, {{"xs": 1, "double": offer}}) is not None, text
    assert not {{"jax", "jaxlib", "numpy", "rich"}} & set(sys.modules)
    import jax
    from jaxpar_magic import _jax
    for text in {lines!r}:
        offer(text, {{"jax": jax, "double": jax.jit(lambda x: x)}})
    assert not _jax.live_platforms()
    """
    run_python(textwrap.dedent(code))


@pytest.fixture
def kernel(tmp_path):
    """A client of a real kernel."""
    import sys

    from jupyter_client.manager import KernelManager

    manager = KernelManager(transport="ipc", connection_file=str(tmp_path / "kernel.json"))
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_in_a_kernel(kernel, tmp_path):
    """`complete_request`, as JupyterLab sends it."""
    (tmp_path / "vmfile").touch()
    (tmp_path / "vmfolder").mkdir()

    def run(code):
        reply = kernel.execute_interactive(code, timeout=120, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]

    def tab(text, rest=""):
        content = kernel.complete(text + rest, len(text), reply=True, timeout=120)["content"]
        assert content["status"] == "ok"
        return [completed(text, content["cursor_start"], content["cursor_end"], m) for m in content["matches"]]

    run("%load_ext jaxpar_magic\nxs = [1]\ndef double(x): return x")
    body = "\ndef f(x):\n    return x"
    for text, rest in (
        ("%parmap double xs -s vm", ""),
        ("%%parmap xs -s vm", body),
        ("y = 1\n%parmap double xs -s vm", ""),
    ):
        expected = [text.replace("-s vm", "-s vmap")]
        assert tab(text, rest) == expected if NEW else expected[0] in tab(text, rest)
    if NEW:
        assert tab("%parmap double xs --strategy=pm") == ["%parmap double xs --strategy=pmap"]
        assert tab("%jaxdevices --cache vm") == ["%jaxdevices --cache vmfolder/"]
        assert tab("%jaxdevices 2 vm") == []
    run("import sys\nassert not {'jax', 'numpy'} & set(sys.modules)\n%unload_ext jaxpar_magic")
    assert not any(t.endswith("vmap") for t in tab("%parmap double xs -s vm"))
