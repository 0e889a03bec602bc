"""What Tab offers in the lines of our magics: options, their values, names of the user's namespace, paths.

Pure functions of the text before the cursor. Nothing here imports jax or looks at its devices.
"""

from __future__ import annotations

import argparse
import builtins
import inspect
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..mapping.choices import STRATEGIES
from . import jaxcluster, jaxdevices, jaxexplain, parmap
from .options import OptionParser, UsageError, is_option, take_apart

_PARSERS: dict[str, Callable[[], OptionParser]] = {
    "parmap": parmap.make_parser,
    "jaxdevices": jaxdevices.make_parser,
    "jaxexplain": jaxexplain.make_parser,
    "jaxcluster": jaxcluster.make_parser,
}
# `%parmap …`, also as `y = %parmap …` and behind another magic: `%time %parmap …`
_LINE = re.compile(
    rf"\s*(?:[\w\s,.\[\]'\"]+=\s*)?(?:%\w+\s(?:.*?\s)?)??(?P<magic>%%?(?P<name>{'|'.join(_PARSERS)}))\s(?P<rest>.*)"
)
_PLAIN = re.compile(r"[^\W\d]\w*|")  # a name, or nothing yet
_FOLDERS, _FILES = ("DIR",), ("PATH", "FILE")  # how options name such values in their help
_MOST_FLAGS = 200


@dataclass(frozen=True)
class Offer:
    """What could stand at the cursor.

    Attributes
    ----------
    fragment: the text before the cursor that would be replaced.
    texts: what to put there.
    kind: "option", "value", "name" or "path".
    """

    fragment: str
    texts: list[str]
    kind: str


@dataclass(frozen=True)
class _Line:
    """A magic's line up to the cursor."""

    magic: str
    in_cell: bool  # `%%`
    positional: list[str]
    given: list[argparse.Action]
    names: Mapping[str, Any]  # those of the user

    def function(self) -> Any:
        """The function that the line names, if it exists."""
        return None if self.in_cell or not self.positional else self.names.get(self.positional[0])

    def parameters(self) -> list[str]:
        """Names of the function's parameters that have no input yet."""
        try:
            found = inspect.signature(self.function()).parameters
        except Exception:  # whatever the user's object does
            return []
        left_out = {token.partition("=")[0] for token in self.positional}
        left_out |= {name for name, p in found.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        return [name for name in found if name not in left_out]


def offer(text: str, names: Mapping[str, Any], last_fixes: int = 0) -> Offer | None:
    """What could stand at the end of `text`, a cell up to the cursor; None where that is not ours to say.

    `names` are the user's, `last_fixes` is how many fixes the explanation shown last has.
    """
    last = _logical_line(text)
    found = _LINE.fullmatch(last) if "%" in last else None
    if found is None or (found["magic"].startswith("%%") and text.strip("\n").count("\n")):
        return None
    magic = found["name"]
    parser = _PARSERS[magic]()
    try:
        split = take_apart(found["rest"], magic)
    except UsageError:
        return None
    if split.last is None:  # a comment
        return None
    fragment = split.last
    positional, given, due = parser.so_far(split.tokens)
    line = _Line(magic, found["magic"].startswith("%%"), positional, given, names)
    if due is not None and (due.dest == "flag" or not fragment.startswith("-")):
        return _value(due, fragment, line)
    if is_option(fragment) or fragment == "-":
        return _option(parser, fragment, line)
    if split.open:
        return None
    if magic == "jaxdevices":
        counts = [] if positional else _counts()
        return _chosen(fragment, [*counts, *_flags(parser, line)], "value")
    if magic == "jaxcluster":
        actions = [] if positional else [*jaxcluster.ACTIONS]
        return _chosen(fragment, [*actions, *_flags(parser, line)], "value")
    if magic == "jaxexplain":
        return _explained(fragment, line, last_fixes)
    return _expression(fragment, line, function=not line.in_cell and not positional)


def _logical_line(text: str) -> str:
    """The last line, with those before that a backslash joins to it."""
    lines = text.split("\n")
    line = lines.pop()
    while lines and lines[-1].endswith("\\"):
        line = lines.pop()[:-1] + " " + line
    return line


# --- options and their values -----------------------------------------------------------------------------


def _flags(parser: OptionParser, line: _Line) -> list[str]:
    """Options that the line does not have yet."""
    used = {action.dest for action in line.given if not isinstance(action, argparse._AppendAction)}
    return sorted(flag for flag, action in parser.actions().items() if action.dest not in used)


def _option(parser: OptionParser, fragment: str, line: _Line) -> Offer | None:
    flag, equals, value = fragment.partition("=")
    actions = parser.actions()
    action = actions.get(flag)
    if equals:
        return None if action is None or action.nargs == 0 else _value(action, value, line)
    short = actions.get(fragment[:2])
    if len(fragment) > 2 and fragment[1] != "-" and short is not None and short.nargs != 0:  # -svm
        return _value(short, fragment[2:], line)
    return _chosen(fragment, _flags(parser, line), "option")


def _value(action: argparse.Action, fragment: str, line: _Line) -> Offer | None:
    if action.metavar in _FOLDERS + _FILES:
        return _paths(fragment, folders_only=action.metavar in _FOLDERS)
    if action.choices is not None:
        return _chosen(fragment, action.choices, "value")
    if action.dest == "compare":
        before, comma, last = fragment.rpartition(",")
        named = before.split(",")
        found = _chosen(last, [name for name in STRATEGIES[1:] if name not in named], "value")
        if comma or (found.texts and last):
            return found
        inputs = _expression(fragment, line, function=not line.in_cell and not line.positional)
        return Offer(fragment, found.texts + (inputs.texts if inputs else []), "value")
    if action.dest == "devices":
        return _chosen(fragment, _counts(), "value")
    if action.dest == "platform":
        from ..backend.platforms import KNOWN

        return _chosen(fragment, KNOWN, "value")
    if action.dest == "flag":
        return _xla_flags(fragment)
    if action.dest == "launcher":
        from ..cluster.launch import LAUNCHERS

        return _chosen(fragment, LAUNCHERS, "value")
    if action.dest == "profile":
        from ..cluster.launch import profiles

        return _chosen(fragment, profiles(), "value")
    if action.dest == "static":
        named = [token.partition("=")[0] for token in line.positional if "=" in token]
        return _chosen(fragment, [*line.parameters(), *filter(str.isidentifier, named)], "name")
    if action.dest == "out" or line.magic == "parmap":  # the others are expressions
        return _expression(fragment, line)
    return Offer(fragment, [], "value")


def _counts() -> list[str]:
    """`all`, and numbers of devices worth trying."""
    from ..machine import usable_cores

    cores = usable_cores()
    powers = [2**i for i in range(9) if 2**i < cores]
    return ["all", *map(str, [*powers, cores])]


def _xla_flags(fragment: str) -> Offer:
    from ..backend.flags import names_in_library

    begin = fragment.lstrip("-")
    if not begin.startswith("xla_") or "=" in begin:
        return Offer(fragment, ["--xla_"] if "--xla_".startswith(fragment) else [], "value")
    names = sorted(name for name in names_in_library() if name.startswith(begin))
    return Offer(fragment, [f"--{name}=" for name in names[:_MOST_FLAGS]], "value")


def _chosen(fragment: str, texts: Iterable[str], kind: str) -> Offer:
    return Offer(fragment, [text for text in dict.fromkeys(texts) if text.startswith(fragment)], kind)


# --- names, codes, paths ----------------------------------------------------------------------------------


def _expression(fragment: str, line: _Line, *, function: bool = False) -> Offer | None:
    """Names for an input or, with `function`, for a function; None in an attribute, which IPython completes."""
    name, equals, value = fragment.partition("=")
    if equals and name.isidentifier():
        return _expression(value, line)
    if _PLAIN.fullmatch(fragment) is None:
        return None
    wanted = {n: v for n, v in line.names.items() if n.startswith(fragment) and (fragment[:1] == "_" or n[0] != "_")}
    if function:
        wanted = {n: v for n, v in wanted.items() if callable(v) or isinstance(v, types.ModuleType)}
    parameters = [] if function else [f"{p}=" for p in line.parameters() if p.startswith(fragment)]
    texts = [*parameters, *sorted(wanted)]
    if not texts and fragment:
        texts = [n for n in dir(builtins) if n.startswith(fragment) and n[0].islower()]
    return Offer(fragment, texts, "name")


def _explained(fragment: str, line: _Line, last_fixes: int) -> Offer | None:
    """Codes, their names, and the numbers of the fixes shown last."""
    from ..explanations.pages import codes, page

    if line.positional:
        return None  # the text of a message
    fixes = [str(n + 1) for n in range(last_fixes)]
    if not fragment:
        return Offer("", [*fixes, *_flags(jaxexplain.make_parser(), line), *codes()], "value")
    known = [*fixes, *codes(), *(page(code).slug for code in codes())]
    return Offer(fragment, [name for name in known if name.lower().startswith(fragment.lower())], "value")


def _paths(fragment: str, *, folders_only: bool) -> Offer:
    """Folders and files. One with a blank in its name stands in quotes, as the magics read it."""
    quote = fragment[:1] if fragment[:1] in ("'", '"') else ""
    head, tail = os.path.split(fragment[len(quote) :])
    texts = []
    try:
        with os.scandir(os.path.expanduser(head) or ".") as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError:
        found = []
    for name, is_folder in found:
        if not name.startswith(tail) or (name.startswith(".") and not tail) or (folders_only and not is_folder):
            continue
        text = os.path.join(head, name) + ("/" if is_folder else "")
        mark = quote or ("'" if re.search(r"[\s()\[\]{}#'\"]", text) else "")
        texts.append(mark + text + ("" if is_folder else mark))
    return Offer(fragment, texts, "path")
