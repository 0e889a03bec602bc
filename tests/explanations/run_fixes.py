"""Run snippets that fail, explain each, and run every fix in the state that the failure left.

    python run_fixes.py JOBS.json OUTPUT.json        JOBS: [{"key": …, "source": …, "warns": bool}, …]

All snippets share this process: each gets a namespace of its own, and JAX's settings, the device count and the
environment are put back afterwards. A fix runs as a cell of IPython would, magics included. It may also be a
rewritten statement of a function: then it is put in the place of that statement, and the snippet runs anew.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import json
import linecache
import os
import re
import signal
import sys
import tempfile
import textwrap
import traceback
import warnings

LONGEST = 20  # seconds for one fix


def main(jobs_path: str, output_path: str) -> None:
    with open(jobs_path, encoding="utf-8") as file:
        jobs = json.load(file)
    shell = start_shell()
    results = {}
    for job in jobs:
        with contextlib.redirect_stdout(io.StringIO()), kept_state(shell):
            results[job["key"]] = run_job(shell, job)
        with open(output_path, "w", encoding="utf-8") as file:  # a job may end the process
            json.dump(results, file)


def start_shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "jaxpar_magic")
    shell.run_line_magic("jaxexplain", "--off")
    # what a cell prints of its error is of no interest here
    shell._showtraceback = lambda *_: None
    return shell


@contextlib.contextmanager
def kept_state(shell):
    import jax

    from jaxpar_magic import devices

    environment, folder = dict(os.environ), os.getcwd()
    settings, count = dict(jax.config.values), number_of_devices()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for name, value in settings.items():
                if jax.config.values.get(name) != value and name != "jax_num_cpu_devices":
                    with contextlib.suppress(Exception):
                        jax.config.update(name, value)
            if count is not None and number_of_devices() != count:
                devices(count)
            jax.clear_caches()


def number_of_devices():
    """None where the back end cannot start: a snippet may be about just that."""
    import jax

    try:
        return jax.device_count()
    except (RuntimeError, AssertionError):
        return None


def run_job(shell, job):
    source, file = job["source"], f"page-{job['key']}.py"
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    space, error, warned = {"__name__": "__main__"}, None, []
    with listening(warned):
        try:
            exec(compile(source, file, "exec"), space)
        except Exception as raised:
            error = raised
    explanations = warned if job["warns"] else both_explanations(error) if error is not None else []
    if not explanations:
        return {"outcome": "not explained", "error": repr(error)[:500], "fixes": []}
    places = user_lines(error, file)
    error = None
    fixes = {}
    for explanation in explanations:
        for fix in explanation.fixes:
            fixes.setdefault(fix.code, fix)
    left = dict(space)
    done = []
    for fix in fixes.values():
        result = {"code": fix.code, "title": fix.title, "kind": fix.kind, "fill_in": list(fix.fill_in)}
        if fix.kind == "here" and not fix.fill_in:
            space.clear()
            space.update(left)
            result["here"] = problem(lambda: run_here(shell, fix.code, space))
            if result["here"] and places:
                result["in place"] = [problem(lambda: run_in_place(source, fix.code, line)) for line in places]
        done.append(result)
    return {"outcome": explanations[0].code, "fixes": done}


@contextlib.contextmanager
def listening(explanations):
    """Explains each warning while it is shown, as it is done in IPython."""
    from jaxpar_magic.explanations import explain
    from jaxpar_magic.explanations.context import Failure

    def show(message, category, filename, lineno, file=None, line=None):
        failure = Failure.from_warning(str(message), category, filename, lineno, line)
        explanations.extend(filter(None, [explain(failure), explain(in_script(failure))]))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def both_explanations(error):
    """As it is explained in IPython, and as in a script, where fixes hold no magics."""
    from jaxpar_magic.explanations import explain
    from jaxpar_magic.explanations.context import Failure

    failure = Failure.from_exception(error)
    return [found for found in (explain(failure), explain(in_script(failure))) if found is not None]


def in_script(failure):
    cause = in_script(failure.cause) if failure.cause is not None else None
    return dataclasses.replace(
        failure, environment=dataclasses.replace(failure.environment, interactive=False), cause=cause
    )


def user_lines(error, file):
    """Lines of the snippet in the traceback, the innermost first."""
    found = []
    walk = error.__traceback__ if error is not None else None
    while walk is not None:
        if walk.tb_frame.f_code.co_filename == file:
            found.insert(0, walk.tb_lineno)
        walk = walk.tb_next
    return list(dict.fromkeys(found))


def problem(run):
    """What `run` raises, as text; None if nothing."""
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        run()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error}"[:400] + f" [{os.path.basename(last.filename)}:{last.lineno}]"
    finally:
        signal.alarm(0)
    return None


def too_long(*_):
    raise TimeoutError(f"took more than {LONGEST} s")


def refuse_gaps(code):
    """A fix with `...` for what the user has to fill in does not run."""
    tree = ast.parse(textwrap.dedent(code))
    subscripts = {id(n) for s in ast.walk(tree) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in subscripts:
            raise SyntaxError("a gap: ...")


def refuse_commands(code):
    """Whatever would change the machine (a shell line, a package manager, a signal): no test may run it."""
    for line in map(str.strip, code.split("\n")):
        if line.startswith(("!", "%", "?")) and not re.match(r"%{1,2}(jax\w+|parmap|env|reload_ext|load_ext)\b", line):
            raise AssertionError(f"a command for a shell: {line}")
    words = r"\b(subprocess|os\.(system|popen|exec\w*|kill|_exit|remove|unlink)|shutil|signal|getoutput|pip)\b|=\s*!"
    if re.search(words, code):
        raise AssertionError("a command for a shell")


def run_here(shell, code, space):
    refuse_commands(code)
    plain = shell.transform_cell(code)
    refuse_gaps(plain)
    # magics read and write the namespace of the shell: for the while of the fix it is the snippet's
    before, shell.user_ns = shell.user_ns, space
    space["get_ipython"] = shell.get_ipython
    file = "fix.py"
    linecache.cache[file] = (len(plain), None, plain.splitlines(keepends=True), file)
    try:
        exec(compile(plain, file, "exec"), space)
    finally:
        shell.user_ns = before
        space.pop("get_ipython", None)


def run_in_place(source, code, line):
    """The snippet with `code` instead of the statement at `line`."""
    lines = source.splitlines()
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
    ]
    statement = min(reversed(around), key=lambda node: node.end_lineno - node.lineno)
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    start = lines[first - 1]
    indent = start[: len(start) - len(start.lstrip())]
    new = textwrap.indent(textwrap.dedent(code), indent).splitlines()
    refuse_commands(code)
    whole = "\n".join([*lines[: first - 1], *new, *lines[statement.end_lineno :]]) + "\n"
    refuse_gaps(whole)
    file = "in_place.py"
    linecache.cache[file] = (len(whole), None, whole.splitlines(keepends=True), file)
    exec(compile(whole, file, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
