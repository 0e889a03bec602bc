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
import itertools
import json
import linecache
import os
import re
import signal
import sys
import textwrap
import traceback
import warnings
from functools import partial

LONGEST = 20  # seconds for one fix


def main(jobs_path: str, output_path: str) -> None:
    with open(jobs_path, encoding="utf-8") as file:
        jobs = json.load(file)
    shell = start_shell()
    results = {}
    for job in jobs:
        with contextlib.redirect_stdout(io.StringIO()), kept_state():
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
def kept_state():
    import jax
    from run_many import kept_settings

    from jaxpar_magic import devices

    count = number_of_devices()
    with warnings.catch_warnings(), kept_settings():
        try:
            yield
        finally:
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
            result["here"] = problem(partial(run_here, shell, fix.code, space))
            if result["here"] and places:
                result["in place"] = [tried(partial(run_in_place, source, fix.code, *place)) for place in places]
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
    """Lines of the snippet in the traceback and where the failing expressions stand, the innermost first."""
    found = []
    walk = error.__traceback__ if error is not None else None
    while walk is not None:
        if walk.tb_frame.f_code.co_filename == file:
            positions = next(itertools.islice(walk.tb_frame.f_code.co_positions(), walk.tb_lasti // 2, None))
            found.insert(0, (walk.tb_lineno, positions))
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


def tried(run):
    """What `run` returns, or raises, as text."""
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


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


def run_in_place(source, code, line, positions):
    """The snippet with `code` instead of the statement at `line`, or before it; in a lambda, as its body."""
    refuse_commands(code)
    refuse_gaps(code)
    problems = []
    for change in (instead, before, in_lambda, as_lambda, within):
        whole = change(source, textwrap.dedent(code), line, positions)
        if whole is None:
            continue
        file = "in_place.py"
        linecache.cache[file] = (len(whole), None, whole.splitlines(keepends=True), file)
        problems.append(problem(lambda: exec(compile(whole, file, "exec"), {"__name__": "__main__"})))  # noqa: B023
        if problems[-1] is None or (only_looks(code) and change in (before, in_lambda)):
            return None
    return problems[0]


def only_looks(code):
    """Whether the fix prints something: the failure that comes afterwards is the old one."""
    return all(re.match(r"(import|from|print\(|jax\.debug\.print\()", line) for line in code.strip().split("\n"))


def statement_at(source, line):
    """The smallest statement around a line, and the number of its first line."""
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
    ]
    statement = min(reversed(around), key=lambda node: node.end_lineno - node.lineno)
    return statement, min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def with_lines(source, code, first, last):
    """`source` with the lines from `first` to before `last` replaced by `code`, indented like the first."""
    lines = source.splitlines()
    start = lines[first - 1]
    new = textwrap.indent(code, start[: len(start) - len(start.lstrip())]).splitlines()
    return "\n".join([*lines[: first - 1], *new, *lines[last - 1 :]]) + "\n"


def instead(source, code, line, _):
    statement, first = statement_at(source, line)
    return with_lines(source, code, first, statement.end_lineno + 1)


def before(source, code, line, _):
    _, first = statement_at(source, line)
    return with_lines(source, code, first, first)


def within(source, code, line, positions):
    """The failing expression replaced by one that the fix gives."""
    if None in positions or positions[0] != positions[1]:
        return None
    lines = code.strip().split("\n")
    try:
        ast.parse(lines[-1], mode="eval")
    except SyntaxError:
        return None
    text = source.splitlines()
    old = text[line - 1].encode()
    text[line - 1] = (old[: positions[2]] + f"({lines[-1]})".encode() + old[positions[3] :]).decode()
    return "\n".join([*lines[:-1], *text]) + "\n"


def as_lambda(source, code, line, positions):
    """The one lambda of the statement as a function that returns what the fix assigns, if all of it failed."""
    return in_lambda(source, code, line, positions, whole=True)


def in_lambda(source, code, line, positions, *, whole=False):
    """The one lambda of the statement as a function that holds the fix."""
    statement, first = statement_at(source, line)
    lambdas = [node for node in ast.walk(statement) if isinstance(node, ast.Lambda)]
    if len(lambdas) != 1:
        return None
    if whole and positions[2:] != (lambdas[0].body.col_offset, lambdas[0].body.end_col_offset):
        return None
    tree = ast.parse(code)
    last = tree.body[-1]
    if isinstance(last, ast.Expr) and not re.search(r"print\(", code):
        tree.body[-1] = ast.Return(last.value)
    elif whole and isinstance(last, ast.Assign):
        tree.body.append(ast.Return(ast.Name(ast.unparse(last.targets[0]), ast.Load())))
    elif not isinstance(last, ast.Return):
        tree.body.append(ast.Return(lambdas[0].body))
    function = ast.FunctionDef("was_lambda", lambdas[0].args, tree.body, [], lineno=1, type_params=[])

    class Change(ast.NodeTransformer):
        def visit_Lambda(self, node):
            return ast.Name("was_lambda", ast.Load())

    changed = Change().visit(statement)
    new = ast.unparse(ast.fix_missing_locations(ast.Module([function, changed], [])))
    return with_lines(source, new, first, statement.end_lineno + 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
