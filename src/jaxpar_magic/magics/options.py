"""Magic lines to values: splitting, parsing, and usage errors that fit on a line or two.

Built on argparse rather than on `IPython.core.magic_arguments`, whose parser raises a bare ValueError for an
unclosed quote, knows no `-h`, and splits `np.linspace(0, 1, 5)` at its blanks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NoReturn

from IPython.core.error import UsageError

from ..errors import did_you_mean

_CLOSING = {"(": ")", "[": "]", "{": "}"}


def usage_error(magic: str, message: str) -> UsageError:
    """A `UsageError` that names the magic. It must be exactly that class: IPython prints a whole
    traceback for a subclass."""
    return UsageError(f"%{magic}: {message}  (%{magic}? shows the options)")


def split_line(line: str, magic: str) -> list[str]:
    """Split a magic line at blanks that stand outside quotes and brackets.

    Quotes are kept: each token is a Python expression or an option as typed.

    >>> split_line("np.linspace(0, 1, 5) k='a b' -s vmap", "parmap")
    ['np.linspace(0, 1, 5)', "k='a b'", '-s', 'vmap']
    """
    tokens: list[str] = []
    current = ""
    closing: list[str] = []
    quote = ""
    i = 0
    while i < len(line):
        c = line[i]
        if quote:
            if c == "\\" and i + 1 < len(line):
                current += line[i : i + 2]
                i += 2
                continue
            if line.startswith(quote, i):
                current += quote
                i += len(quote)
                quote = ""
                continue
        elif c in "'\"":
            quote = c * 3 if line.startswith(c * 3, i) else c
            current += quote
            i += len(quote)
            continue
        elif c in _CLOSING:
            closing.append(_CLOSING[c])
        elif c in ")]}":
            if not closing or closing.pop() != c:
                raise usage_error(magic, f"unmatched {c!r} in: {line.strip()}")
        elif c.isspace() and not closing:
            if current:
                tokens.append(current)
            current = ""
            i += 1
            continue
        current += c
        i += 1
    if quote:
        raise usage_error(magic, f"unclosed quote {quote} in: {line.strip()}")
    if closing:
        raise usage_error(magic, f"missing {closing[-1]!r} in: {line.strip()}")
    if current:
        tokens.append(current)
    return tokens


def unquote(token: str) -> str:
    """The text of a token that may stand in quotes: `'a b'` → `a b`."""
    for quote in ('"""', "'''", '"', "'"):
        if len(token) >= 2 * len(quote) and token.startswith(quote) and token.endswith(quote):
            return token[len(quote) : -len(quote)]
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
        """Options and positional tokens, in any order. Unknown options are refused with the nearest."""
        options, positional = [], []
        takes_value = {f for a in self._actions if a.nargs != 0 for f in a.option_strings}
        optional_value = {f for a in self._actions if a.nargs == "?" for f in a.option_strings}
        tokens = list(tokens)
        known = self.flags()
        i = 0
        while i < len(tokens):
            token = tokens[i]
            name, has_equals, value = token.partition("=")
            if len(token) > 1 and token[0] == "-" and not (token[1].isdigit() or token[1] == "."):
                if name not in known and name[:2] in takes_value and not name.startswith("--"):
                    name, has_equals, value = token[:2], "=", token[2:]  # -d2
                if name not in known:
                    raise usage_error(self.magic, f"unknown option {name!r}.{did_you_mean(name, known)}")
                if has_equals:
                    if name not in takes_value:
                        raise usage_error(self.magic, f"option {name!r} takes no value, got {value!r}.")
                    options.append(f"{name}={unquote(value)}" if name.startswith("--") else name + unquote(value))
                elif name in takes_value and i + 1 < len(tokens) and (
                    name not in optional_value or not tokens[i + 1].startswith("-")
                ):
                    value = unquote(tokens[i + 1])
                    # `=` keeps a value such as -1 or --xla_flag from being read as an option
                    options.append(f"{name}={value}" if name.startswith("--") else name + value)
                    i += 1
                else:
                    options.append(token)
            else:
                positional.append(token)
            i += 1
        return self.parse_args(options), positional


def choice(magic: str, option: str, value: Any, known: Iterable[str]) -> str:
    """`value` if it is one of `known`; otherwise a usage error that names the nearest."""
    known = list(known)
    if value not in known:
        raise usage_error(
            magic, f"{option}={value}: not one of {', '.join(known)}.{did_you_mean(str(value), known)}"
        )
    return value
