"""Run the body of a cell magic as IPython would run the cell itself.

`shell.run_cell` inside a magic shows an error but swallows it: the outer cell counts as successful and
nbclient goes on. So the body is transformed, compiled and executed here, and its exception reaches the
kernel once, with the user's own line numbers.
"""

from __future__ import annotations

import ast
import dis
import io
import re
import sys
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from IPython.display import display


@dataclass
class CellBody:
    """A parsed cell body.

    Attributes
    ----------
    source: the body as typed.
    tree: its syntax tree, line numbers as in the cell (the magic's own line is line 1).
    filename: the name under which IPython's traceback finds the source.
    """

    source: str
    tree: ast.Module
    filename: str

    def last_function(self, namespace: Mapping[str, Any] | None = None) -> str | None:
        """Name of the last function that the body defines at top level, or None.

        That is a `def` or `async def` (decorated or not) or a name set to a lambda. With `namespace`, the
        user's names after the body has run, a name set to anything callable but a class counts too:
        `f = jax.jit(g)`, `f = partial(g, 2)`.
        """
        for node in reversed(self.tree.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return node.name
            name, value = _assigned(node)
            if name is None:
                continue
            if isinstance(value, ast.Lambda):
                return name
            bound = namespace.get(name) if namespace is not None else None
            if callable(bound) and not isinstance(bound, type):
                return name
        return None

    def last_expression(self) -> ast.expr | None:
        """The value of the body's last statement if that is a bare expression."""
        last = self.tree.body[-1] if self.tree.body else None
        return last.value if isinstance(last, ast.Expr) else None

    def ends_with_semicolon(self) -> bool:
        """Whether `;` stands behind the last line: then the value is not to be shown."""
        try:
            tokens = [t for t in tokenize.generate_tokens(io.StringIO(self.source).readline) if t.string.strip()]
        except (tokenize.TokenError, SyntaxError):  # magics in the body
            return self.source.rstrip().endswith(";")
        return next((t.string == ";" for t in reversed(tokens) if t.type != tokenize.COMMENT), False)

    def has_top_level_await(self) -> bool:
        """Whether the body awaits outside any function: no cell magic can run that."""
        return any(_awaits(node) for node in self.tree.body)


def _assigned(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """(name, value) of `name = value` and `name: annotation = value`, else (None, None)."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target = node.target
    else:
        return None, None
    return (target.id, node.value) if isinstance(target, ast.Name) else (None, None)


def _awaits(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    if isinstance(node, ast.GeneratorExp):  # runs later, in a frame of its own, but for its first source
        return _awaits(node.generators[0].iter)
    if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return True
    if isinstance(node, ast.comprehension) and node.is_async:
        return True
    return any(_awaits(child) for child in ast.iter_child_nodes(node))


class CellSyntaxError(Exception):
    """A SyntaxError in a cell's body, shown as IPython shows one in a plain cell.

    IPython prints every frame above a SyntaxError that is raised while a cell runs; the frames of its own
    magic machinery would bury the one line that matters.
    """

    def __init__(self, shell: Any, error: SyntaxError):
        super().__init__(str(error))
        self.lines = shell.SyntaxTB.structured_traceback(type(error), error, [])

    def _render_traceback_(self) -> list[str]:
        return self.lines


def parse_cell(shell: Any, cell: str) -> CellBody:
    """Transform (magics, `!cmd`, `?`) and parse the body. Raises CellSyntaxError."""
    __tracebackhide__ = True
    code = re.sub(r"\A([ \t]*\n)+", "", cell)
    try:
        transformed = shell.transform_cell(code)
    except SyntaxError:  # the tokenizer's, without our file name: the parser will say it of the cell as typed
        transformed = code
    # Empty lines stand for all that comes before in the cell, so that line numbers match it.
    source = "\n" * _lines_before(shell, cell) + transformed
    # Not `execution_count`: IPython 9 has raised it already while the cell runs, 7 and 8 have not.
    number = len(shell.history_manager.input_hist_raw) - 1
    filename = shell.compile.cache(source, number)
    try:
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=filename))
    except SyntaxError as error:
        raise CellSyntaxError(shell, error) from None
    return CellBody(cell, tree, filename)


def _lines_before(shell: Any, cell: str) -> int:
    """How many lines of the cell that was typed come before the body's first line that is not empty."""
    code = cell.strip()
    if not code:
        return 1
    typed = shell.history_manager.input_hist_raw[-1]
    before, found, after = typed.rpartition(code)
    if not found or after.strip():  # called from code, not typed: as if the magic's line stood above the body
        before = "\n" + cell[: cell.index(code)]
    return before.count("\n")


def run_body(shell: Any, body: CellBody, *, keep_last: bool = False) -> Any:
    """Execute the body in the user's namespace; return the value of a last bare expression.

    With `keep_last` a last expression is not evaluated (the caller maps it instead). Nothing runs if any
    part does not compile: CellSyntaxError.
    """
    __tracebackhide__ = True
    statements = list(body.tree.body)
    last = statements.pop() if body.last_expression() is not None else None
    try:
        code = shell.compile(ast.Module(statements, []), body.filename, "exec")
        value = None
        if isinstance(last, ast.Expr) and not keep_last:
            value = shell.compile(ast.Expression(last.value), body.filename, "eval")
    except SyntaxError as error:
        raise CellSyntaxError(shell, error) from None
    exec(code, shell.user_global_ns, shell.user_ns)
    return None if value is None else eval(value, shell.user_global_ns, shell.user_ns)


def use_of_value() -> Literal["dropped", "shown", "returned", "used"]:
    """What the code that called the magic does with its value.

    For `%jaxdevices`, returning the report is not enough: in a cell that goes on after it, nobody would see what a
    reset left behind. Displaying it always is too much: as a cell's last line it would show twice, and
    `report = %jaxdevices` should be silent like any assignment. A line with `-o` has a value only if it is "used".
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "run_line_magic":
        frame = frame.f_back
    caller = frame.f_back if frame is not None else None
    if caller is None:
        return "used"
    following = (i for i in dis.get_instructions(caller.f_code) if i.offset > caller.f_lasti)
    instruction = next(following, None)
    if instruction is None:
        return "used"
    if instruction.opname == "POP_TOP":
        return "dropped"
    if instruction.opname == "RETURN_VALUE":  # by code that knows no better: `%time %jaxdevices`
        return "returned"
    # the display hook: PRINT_EXPR on Python 3.11, an intrinsic function since
    shown = instruction.opname == "PRINT_EXPR" or "INTRINSIC_PRINT" in instruction.argrepr
    return "shown" if shown else "used"


def hand_over(shell: Any, report: Any, *, out: str | None, quiet: bool) -> Any:
    """Give a report to who asked for it: into the variable `out` with one line shown, else as value or display."""
    use = use_of_value()
    if out is not None:
        shell.user_ns[out] = report
        if not quiet:
            print(report.line())
        return report if use == "used" else None
    if use in ("used", "returned") or (use == "shown" and not quiet):
        return report
    if not quiet:
        display(report)
    return None
