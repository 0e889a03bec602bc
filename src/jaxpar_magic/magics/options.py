"""Magic lines to values: splitting, parsing, and usage errors that fit on a line or two.

Built on argparse rather than on `IPython.core.magic_arguments`, whose parser raises a bare ValueError for an
unclosed quote, knows no `-h`, and splits `np.linspace(0, 1, 5)` at its blanks.
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from IPython.core.error import UsageError

from ..errors import did_you_mean

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CODE, _TEXT, _FSTRING, _FIELD = "code", "text", "f-string", "field of an f-string"


def usage_error(magic: str, message: str) -> UsageError:
    """A `UsageError` that names the magic. It must be exactly that class: IPython prints a whole
    traceback for a subclass."""
    return UsageError(f"%{magic}: {message}  (%{magic}? shows the options)")


@dataclass(frozen=True)
class Split:
    """A magic line taken apart, whether it is finished or not.

    Attributes
    ----------
    tokens: those that a blank follows.
    last: the one at the end of the line; "" after a blank, None in a comment.
    open: the quotes and brackets around the end of the line, as what would close them, innermost last.
    """

    tokens: list[str]
    last: str | None
    open: list[str]


def take_apart(line: str, magic: str) -> Split:
    """Split a magic line at blanks that stand outside quotes and brackets.

    Quotes are kept: each token is a Python expression or an option as typed. A token that begins with `#`
    starts a comment. Raises UsageError for a bracket that closes nothing.
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
                return Split(tokens, None, [])
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
    return Split(tokens, "" if start is None else line[start:], [closer for closer, _ in inside])


def split_line(line: str, magic: str) -> list[str]:
    """The tokens of a finished magic line. Raises UsageError for a quote or bracket that is not closed.

    >>> split_line("np.linspace(0, 1, 5) k='a b' -s vmap  # a comment", "parmap")
    ['np.linspace(0, 1, 5)', "k='a b'", '-s', 'vmap']
    """
    split = take_apart(line, magic)
    if split.open:
        closer = split.open[-1]
        what = "unclosed quote" if closer[0] in "'\"" else "missing"
        raise usage_error(magic, f"{what} {closer} in: {line.strip()}")
    return [*split.tokens, *([split.last] if split.last else [])]


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
    >>> parser = OptionParser("parmap", "%parmap FUNCTION INPUT", "Map a function.")
    >>> _ = parser.add_argument("-d", "--devices", type=int, default=None)
    >>> parser.parse_tokens(["xs", "-d", "2"])
    (Namespace(devices=2), ['xs'])

    Attributes
    ----------
    texts: names of options whose values are text and no expressions: `{name}` in them is a variable's value.
    """

    def __init__(self, magic: str, usage: str, description: str):
        super().__init__(
            prog=f"%{magic}",
            usage=usage.replace("%", "%%"),  # argparse formats it
            description=description,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.magic = magic
        self.texts: frozenset[str] = frozenset()
        self.add_argument("-h", "--help", action="store_true", default=argparse.SUPPRESS, help="this help")

    def error(self, message: str) -> NoReturn:
        raise usage_error(self.magic, message)

    def actions(self) -> dict[str, argparse.Action]:
        """Each option as typed (`-s`, `--strategy`) → what argparse knows of it."""
        return {flag: action for action in self._actions for flag in action.option_strings}

    def read(
        self, line: str, expand: Callable[[str], str] | None = None
    ) -> tuple[argparse.Namespace, list[str]] | None:
        """Options and positional tokens of a magic line, or None if it asked for help: that is printed then.

        `expand` puts values of variables into the value of an option that is text.
        """
        tokens = split_line(line.rstrip().removesuffix(";"), self.magic)
        if "-h" in tokens or "--help" in tokens:
            print(self.format_help())
            return None
        return self.parse_tokens(tokens, expand)

    def parse_tokens(
        self, tokens: Iterable[str], expand: Callable[[str], str] | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Options and positional tokens, in any order.

        A value may be attached (`--devices=2`, `-d=2`, `-d2`) or follow; it may begin with a dash. An option
        whose value may be left out (`nargs="?"`) takes the next token only if its `type` accepts it, so that
        in `-c xs` the input stays an input. An unknown option, or value of an option with `choices`, is
        refused with the nearest one.
        """
        options: list[str] = []
        positional: list[str] = []
        rest = list(tokens)
        for flag, action, value in self._options_in(rest, positional):
            if action is None:
                advice = did_you_mean(flag, self.actions()) or " (An expression that begins with - needs brackets.)"
                raise usage_error(self.magic, f"unknown option {flag!r}.{advice}")
            if value is not None and action.nargs == 0:
                raise usage_error(self.magic, f"option {flag!r} takes no value, got {value!r}.")
            expanded = expand if expand is not None and action.dest in self.texts else str
            if value is not None:
                value = expanded(value)
            elif rest and self._takes(after := expanded(rest[0]), action):
                value = after
                rest.pop(0)
            if value is not None and action.choices is not None:
                choice(self.magic, action.option_strings[-1], unquote(value), action.choices)
            # `=` keeps argparse from reading a value such as -1 or --xla_flag as an option.
            options.append(flag if value is None else f"{flag}={unquote(value)}")
        return self.parse_args(options), positional

    def so_far(self, tokens: Iterable[str]) -> tuple[list[str], list[argparse.Action], argparse.Action | None]:
        """What stands in a line that is being typed: positional tokens, options, and the option whose value is due."""
        positional: list[str] = []
        given: list[argparse.Action] = []
        rest = list(tokens)
        for _, action, value in self._options_in(rest, positional):
            if action is None:
                continue
            given.append(action)
            if value is None and action.nargs != 0 and not rest:
                return positional, given, action
            if value is None and rest and self._takes(rest[0], action):
                rest.pop(0)
        return positional, given, None

    def _options_in(
        self, rest: list[str], positional: list[str]
    ) -> Iterator[tuple[str, argparse.Action | None, str | None]]:
        """What `_option` tells of each option in `rest`, from which the caller may take its value; other tokens go to
        `positional`."""
        while rest:
            token = rest.pop(0)
            if is_option(token):
                yield self._option(token)
            else:
                positional.append(token)

    def _option(self, token: str) -> tuple[str, argparse.Action | None, str | None]:
        """A token's option, what is known of it (None: nothing), and the value attached to it."""
        actions = self.actions()
        flag, equals, value = token.partition("=")
        short = actions.get(token[:2])
        if flag not in actions and f"-{flag}" not in actions and short is not None and short.nargs != 0:
            return token[:2], short, token[2:]  # -d2
        return flag, actions.get(flag), value if equals else None

    def _takes(self, token: str, action: argparse.Action) -> bool:
        """Whether the token after an option is its value."""
        if action.nargs == 0 or token.partition("=")[0] in self.actions():
            return False
        if action.nargs != "?" or action.type is None:
            return action.nargs != "?" or not token.startswith("-")
        try:
            action.type(unquote(token))  # type: ignore[operator]
        except (UsageError, argparse.ArgumentTypeError, TypeError, ValueError):
            return False
        return True


def help_on_demand(magic: Any, make_parser: Callable[[], OptionParser]) -> None:
    """Make `%magic?` show the parser's help. IPython asks `getdoc`; as a docstring it would cost time when loading."""
    magic.getdoc = lambda: make_parser().format_help()


def check_name(magic: str, out: str | None) -> None:
    """Raise UsageError if the value of `-o` is not the name of a variable."""
    if out is not None and (not out.isidentifier() or keyword.iskeyword(out)):
        raise usage_error(magic, f"-o {out}: needs the name of a variable.")


def is_option(token: str) -> bool:
    """Whether a token is an option: not `-`, `-1` or `-.5`, which are inputs."""
    return token.startswith("-") and token != "-" and not token[1].isdigit() and token[1] != "."


def choice(magic: str, option: str, value: Any, known: Iterable[str]) -> str:
    """`value` if it is one of `known`; otherwise a usage error that names the nearest."""
    known = list(known)
    if value not in known:
        raise usage_error(magic, f"{option}={value}: not one of {', '.join(known)}.{did_you_mean(str(value), known)}")
    return value
