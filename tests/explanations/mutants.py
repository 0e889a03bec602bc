"""Changes cases of the corpus: other names, other numbers, other nesting. The failure stays the same."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from typing import Any

SMALLEST = 4  # smaller numbers are axes, ranks and counts of arguments as often as sizes
LARGEST = 5000
FACTOR = 7  # what divides evenly, and what does not, stays so

# -- text: a message with other numbers and names -----------------------------------------------------

_NUMBER = r"(?<![\w.\-'/])(\d+)(?![\w']|\.\d)"


def sizes_of(text: str) -> list[int]:
    """The numbers of a message that may be sizes: none of versions, types, or lines of code."""
    found = {int(n) for n in re.findall(_NUMBER, re.sub(r"\blines? \d+|:\d+", "", text))}
    return sorted(n for n in found if SMALLEST <= n <= LARGEST)


def new_sizes(text: str) -> dict[int, int]:
    """Old size -> new size, none of which the text has."""
    old = sizes_of(text)
    new = {n: n * FACTOR for n in old}
    return new if not set(new.values()) & set(old) else {n: n * FACTOR * 11 for n in old}


def with_sizes(text: str, sizes: dict[int, int]) -> str:
    """`text` with other numbers. Sizes between brackets and commas count, lines of code do not."""

    def change(match: re.Match[str]) -> str:
        return str(sizes.get(int(match.group()), match.group()))

    parts = re.split(r"(\blines? \d+|:\d+)", text)
    return "".join(part if i % 2 else re.sub(_NUMBER, change, part) for i, part in enumerate(parts))


def with_names(text: str, names: dict[str, str]) -> str:
    """`text` with other names, each as a whole word."""
    if not names:
        return text
    pattern = r"(?<!\w)(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + r")(?!\w)"
    return re.sub(pattern, lambda match: names[match.group()], text)


# -- snippets ---------------------------------------------------------------------------------------


def new_names(source: str) -> dict[str, str]:
    """Old name -> new name for what the snippet defines and no string, keyword or attribute mentions."""
    tree = ast.parse(source)
    defined, elsewhere = set(), set(dir(builtins)) | {"self", "cls"} | set(keyword.kwlist)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            elsewhere.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Attribute):
            elsewhere.add(node.attr)
        elif isinstance(node, ast.keyword):
            elsewhere.add(node.arg or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            elsewhere.update(re.findall(r"\w+", node.value))
    methods = {f.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body if hasattr(f, "name")}
    classes = [c for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
    fields = {ast.unparse(s.target) for c in classes for s in c.body if isinstance(s, ast.AnnAssign)}
    names = sorted(name for name in defined - elsewhere - methods - fields if not name.startswith("_"))
    return {name: f"renamed{number}" for number, name in enumerate(names)}


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]):
        self.names = names

    def visit(self, node: ast.AST) -> ast.AST:
        for name in ("id", "name", "arg"):
            old = getattr(node, name, None)
            if isinstance(old, str) and not isinstance(node, ast.keyword | ast.alias):
                setattr(node, name, self.names.get(old, old))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self.names.get(old, old) for old in node.names]
        return self.generic_visit(node)


def renamed(source: str) -> str:
    """The snippet with other names for its variables and functions."""
    return ast.unparse(_Rename(new_names(source)).visit(ast.parse(source))) + "\n"


def resized(source: str) -> str:
    """The snippet with each whole number from SMALLEST on seven times as large, everywhere."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and SMALLEST <= node.value <= LARGEST:
            node.value *= FACTOR
    return ast.unparse(tree) + "\n"


def nested(source: str) -> str:
    """The snippet in a method that a loop calls; imports stay at the top."""
    tree = ast.parse(source)
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    body = [node for node in tree.body if node not in top]
    frame = ast.parse(
        "class Study:\n    def carry_out(self):\n        pass\nfor attempt in range(2):\n    Study().carry_out()"
    )
    method: Any = frame.body[0].body[0]  # type: ignore[attr-defined]
    method.body = body
    return ast.unparse(ast.Module([*top, *frame.body], [])) + "\n"


def same_failure(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs failed in the same way: the type, and the first words of the message."""
    first = [r["message"].split("\n")[0].split()[:4] for r in (one, other)]
    words = [re.sub(r"renamed\d+|\W.*|\d+", "", word) for part in first for word in part]
    half = len(words) // 2
    alike = sum(a == b or not a or not b for a, b in zip(words[:half], words[half:]))
    return one["type"] is not None and one["type"] == other["type"] and alike >= half - 1
