"""Run the body of a cell magic as IPython would run the cell itself.

`shell.run_cell` inside a magic shows an error but swallows it: the outer cell counts as successful and
nbclient goes on. So the body is transformed, compiled and executed here, and its exception reaches the
kernel once, with the user's own line numbers.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any


@dataclass
class CellBody:
    """A compiled cell body.

    Attributes
    ----------
    source: the body as typed.
    tree: its syntax tree, line numbers as in the cell (the magic's own line is line 1).
    filename: the name under which IPython's traceback finds the source.
    """

    source: str
    tree: ast.Module
    filename: str

    def last_function(self) -> str | None:
        """Name of the last function that the body defines at top level (`def`, or `name = lambda`)."""
        for node in reversed(self.tree.body):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                return node.name
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name) and isinstance(node.value, ast.Lambda):
                    return target.id
        return None

    def last_expression(self) -> ast.expr | None:
        """The value of the body's last statement if that is a bare expression."""
        last = self.tree.body[-1] if self.tree.body else None
        return last.value if isinstance(last, ast.Expr) else None

    def has_top_level_await(self) -> bool:
        """Whether the body awaits outside any function: no cell magic can run that."""
        return any(_awaits(node) for node in self.tree.body)


def _awaits(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return True
    return any(_awaits(child) for child in ast.iter_child_nodes(node))


def parse_cell(shell: Any, cell: str) -> CellBody:
    """Transform (magics, `!cmd`, `?`) and parse the body. Raises SyntaxError as a plain cell would."""
    __tracebackhide__ = True
    # The leading newline stands for the magic's own line, so that line numbers match the cell.
    source = "\n" + shell.transform_cell(cell)
    number = len(shell.history_manager.input_hist_raw) - 1
    filename = shell.compile.cache(source, number, raw_code="\n" + cell)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=filename))
    return CellBody(cell, tree, filename)


def run_body(shell: Any, body: CellBody, *, keep_last: bool = False) -> Any:
    """Execute the body in the user's namespace; return the value of a last bare expression.

    With `keep_last` a last expression is not evaluated (the caller maps it instead).
    """
    __tracebackhide__ = True
    nodes = list(body.tree.body)
    last = None
    if nodes and isinstance(nodes[-1], ast.Expr):
        last = nodes.pop()
    if nodes:
        module = ast.Module(nodes, [])
        exec(shell.compile(module, body.filename, "exec"), shell.user_global_ns, shell.user_ns)
    if last is None or keep_last:
        return None
    expression = ast.Expression(last.value)
    return eval(shell.compile(expression, body.filename, "eval"), shell.user_global_ns, shell.user_ns)
