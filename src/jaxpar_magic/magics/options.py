"""Magic lines to values: splitting, parsing, and usage errors that fit on a line or two.

Built on argparse rather than on `IPython.core.magic_arguments`, whose parser raises a bare ValueError for an
unclosed quote, knows no `-h`, and splits `np.linspace(0, 1, 5)` at its blanks.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from IPython.core.error import UsageError

from ..errors import did_you_mean

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CODE, _TEXT, _FSTRING, _FIELD = "code", "text", "f-string", "field of an f-string"


def usage_error(magic: str, message: str) -> UsageError:
    """A `UsageError` that names the magic. It must be exactly that class: IPython prints a whole
    traceback for a subclass."""
    return UsageError(f"%{magic}: {message}  (%{magic}? shows the options)")


def split_line(line: str, magic: str) -> list[str]:
    """Split a magic line at blanks that stand outside quotes and brackets.

    Quotes are kept: each token is a Python expression or an option as typed. A token that begins with `#`
    starts a comment. Raises UsageError for a quote or bracket that is not closed.

    >>> split_line("np.linspace(0, 1, 5) k='a b' -s vmap  # a comment", "parmap")
    ['np.linspace(0, 1, 5)', "k='a b'", '-s', 'vmap']
    """
    tokens: list[str] = []
    start: int | None = None  # of the token being read
    inside: list[tuple[str, str]] = []  # (what closes it, how to read what is in it), innermost last
    i = 0
    while i < len(line):
        c = line[i]
        closer, how = inside[-1] if inside else ("", _CODE)
        step = 1
        if not inside and c.isspace():
            if start is not None:
                tokens.append(line[start:i])
            start = None
            i += 1
            continue
        if start is None:
            if c == "#":
                break
            start = i
        if how in (_TEXT, _FSTRING):
            if c == "\\":
                step = 2
            elif line.startswith(closer, i):
                inside.pop()
                step = len(closer)
            elif how == _FSTRING and c == "{":
                if line.startswith("{{", i):
                    step = 2
                else:
                    inside.append(("}", _FIELD))
        elif c in "'\"":
            quote = c * 3 if line.startswith(c * 3, i) else c
            prefix = re.search(r"\w*$", line[start:i])
            is_f = prefix is not None and prefix[0].lower() in ("f", "rf", "fr")
            inside.append((quote, _FSTRING if is_f else _TEXT))
            step = len(quote)
        elif c in _CLOSING:
            inside.append((_CLOSING[c], _CODE))
        elif c in ")]}":
            if c != closer:
                raise usage_error(magic, f"unmatched {c!r} in: {line.strip()}")
            inside.pop()
        elif c == ":" and how == _FIELD:  # what follows is a format: text with fields of its own
            inside[-1] = (closer, _FSTRING)
        i += step
    if inside:
        closer, _ = inside[-1]
        what = "unclosed quote" if closer[0] in "'\"" else "missing"
        raise usage_error(magic, f"{what} {closer} in: {line.strip()}")
    if start is not None:
        tokens.append(line[start:i])
    return tokens


def unquote(token: str) -> str:
    """The text of a token that stands in quotes as a whole: `'a b'` → `a b`."""
    for quote in ('"""', "'''", '"', "'"):
        if len(token) >= 2 * len(quote) and token.startswith(quote) and token.endswith(quote):
            text = token[len(quote) : -len(quote)]
            return token if quote in text else text
    return token


class OptionParser(argparse.ArgumentParser):
    """argparse for a magic: no exit, no abbreviations, errors as `UsageError` with the nearest option.

    Examples
    --------
    >>> parser = OptionParser("parmap", "Map a function.")
    >>> _ = parser.add_argument("-d", "--devices", type=int, default=None)
    >>> parser.parse_tokens(["xs", "-d", "2"])
    (Namespace(devices=2), ['xs'])
    """

    def __init__(self, magic: str, description: str, epilog: str | None = None):
        super().__init__(
            prog=f"%{magic}",
            description=description,
            epilog=epilog,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.magic = magic

    def error(self, message: str) -> NoReturn:
        raise usage_error(self.magic, message)

    def flags(self) -> list[str]:
        """Every option as typed: `['-s', '--strategy', …]`. Read by completion and by "did you mean"."""
        return [flag for action in self._actions for flag in action.option_strings]

    def parse_tokens(self, tokens: Iterable[str]) -> tuple[argparse.Namespace, list[str]]:
        """Options and positional tokens, in any order.

        A value may be attached (`--devices=2`, `-d=2`, `-d2`) or follow; it may begin with a dash. An option
        whose value may be left out (`nargs="?"`) takes the next token only if its `type` accepts it, so that
        in `-c xs` the input stays an input. An unknown option is refused with the nearest one; `-h` shows
        the options.
        """
        actions = {flag: action for action in self._actions for flag in action.option_strings}
        options, positional = [], []
        rest = list(tokens)
        while rest:
            token = rest.pop(0)
            if not token.startswith("-") or token == "-" or token[1].isdigit() or token[1] == ".":
                positional.append(token)
                continue
            flag, attached, value = token.partition("=")
            if flag in ("-h", "--help") and flag not in actions:
                raise UsageError(f"the options of %{self.magic}\n{self.format_help()}")
            short = actions.get(token[:2])
            if flag not in actions and f"-{flag}" not in actions and short is not None and short.nargs != 0:
                flag, attached, value = token[:2], "=", token[2:]  # -d2
            action = actions.get(flag)
            if action is None:
                advice = did_you_mean(flag, actions) or " (An expression that begins with - needs brackets.)"
                raise usage_error(self.magic, f"unknown option {flag!r}.{advice}")
            if attached and action.nargs == 0:
                raise usage_error(self.magic, f"option {flag!r} takes no value, got {value!r}.")
            if not attached and action.nargs != 0 and rest and _can_be_value(rest[0], action, actions):
                attached, value = "=", rest.pop(0)
            # `=` keeps argparse from reading a value such as -1 or --xla_flag as an option.
            options.append(f"{flag}={unquote(value)}" if attached else flag)
        return self.parse_args(options), positional


def _can_be_value(token: str, action: argparse.Action, actions: Mapping[str, argparse.Action]) -> bool:
    """Whether the token after an option is its value."""
    if token.partition("=")[0] in actions:
        return False
    if action.nargs != "?" or action.type is None:
        return action.nargs != "?" or not token.startswith("-")
    try:
        action.type(unquote(token))  # type: ignore[operator]
    except (UsageError, argparse.ArgumentTypeError, TypeError, ValueError):
        return False
    return True


def choice(magic: str, option: str, value: Any, known: Iterable[str]) -> str:
    """`value` if it is one of `known`; otherwise a usage error that names the nearest."""
    known = list(known)
    if value not in known:
        raise usage_error(magic, f"{option}={value}: not one of {', '.join(known)}.{did_you_mean(str(value), known)}")
    return value
