"""Magic lines: splitting at blanks, and parsing options as people type them."""

from __future__ import annotations

import argparse
import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

from jaxpar_magic.magics.options import OptionParser, choice, split_line, unquote

# --- splitting --------------------------------------------------------------------------------------------

texts = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=8)
leaves = st.one_of(
    st.sampled_from(["xs", "np.pi", "...", "a.b[0]"]),
    st.integers(0, 99).map(str),
    texts.map(repr),
    texts.map(lambda t: f"f{t.replace('{', '{{').replace('}', '}}')!r}"),
    texts.map(lambda t: "'''" + t.replace("\\", "").replace("'", "") + "\n'''"),
    st.sampled_from(["f'{x!r:>{width}} b'", "f'{d[\"a b\"]}'", "rf'\\d {x}'", "f'{x:%H %M}'", "f'{{ {x} }}'"]),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda xs: "(" + ", ".join(xs) + ")"),
        st.lists(inner, max_size=3).map(lambda xs: "[ " + " , ".join(xs) + " ]"),
        st.tuples(inner, inner).map(lambda kv: "{" + f"{kv[0]}: {kv[1]}" + "}"),
        st.lists(inner, max_size=2).map(lambda xs: "np.f(" + ", ".join([*xs, "k = 1"]) + ")"),
        inner.map(lambda x: f"(lambda a, b=1: {x})"),
    ),
    max_leaves=5,
)
blanks = st.text(" \t", min_size=1, max_size=3)


@given(st.lists(expressions, min_size=1, max_size=4), st.data())
def test_expressions_joined_with_blanks_come_apart_again(tokens, data):
    for token in tokens:
        ast.parse(token, mode="eval")  # the test's own inputs are Python
    line = "".join(data.draw(blanks) + token for token in tokens) + data.draw(st.text(" \t", max_size=2))
    assert split_line(line, "parmap") == tokens


@given(st.text(max_size=40))
def test_any_text_is_split_or_refused_and_nothing_is_lost(line):
    try:
        tokens = split_line(line, "parmap")
    except UsageError:
        return
    kept = "".join("".join(tokens).split())
    assert "".join(line.split()).startswith(kept)
    assert all(token and not token[0].isspace() and not token[-1].isspace() for token in tokens)


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("", []),
        ("   ", []),
        ("f xs", ["f", "xs"]),
        ("np.linspace(0, 1, 5) k='a b' -s vmap", ["np.linspace(0, 1, 5)", "k='a b'", "-s", "vmap"]),
        ("x=xs  k=3", ["x=xs", "k=3"]),
        ("{'a': [1, 2], 'b': (3, 4)} 5", ["{'a': [1, 2], 'b': (3, 4)}", "5"]),
        ("'(' \"]\"", ["'('", '"]"']),
        (r"'it\'s one' two", [r"'it\'s one'", "two"]),
        ('"""a "quoted" word""" b', ['"""a "quoted" word"""', "b"]),
        ("'' b", ["''", "b"]),
        ("--flag=--xla_cpu_x=true", ["--flag=--xla_cpu_x=true"]),
        # Since Python 3.12 an f-string may hold its own kind of quote.
        ('f"{d["a b"]} c" e', ['f"{d["a b"]} c"', "e"]),
        ('F"""{ {"a b": 1}["a b"] :>{n}}""" e', ['F"""{ {"a b": 1}["a b"] :>{n}}"""', "e"]),
        ("""f"{x:'>10} a" e""", ["""f"{x:'>10} a\"""", "e"]),  # a quote to fill with
        ("xs # all of them", ["xs"]),
        ("xs[1]#2 y", ["xs[1]#2", "y"]),
        ("'# no comment' # a (comment", ["'# no comment'"]),
        ("räume 'ü ß'", ["räume", "'ü ß'"]),
    ],
)
def test_lines_as_people_type_them(line, tokens):
    assert split_line(line, "parmap") == tokens


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("f 'xs", "unclosed quote ' in: f 'xs"),
        ('f "xs', 'unclosed quote " in: f "xs'),
        ('f """xs"', 'unclosed quote """ in'),
        ("f (xs, 2", "missing ) in: f (xs, 2"),
        ("f [(xs, 2]", "unmatched ']' in"),
        ("f xs)", "unmatched ')' in"),
        ("f f'{x'", "unclosed quote ' in"),
        ("f f'{x", "missing } in"),
    ],
)
def test_what_is_not_closed_is_exactly_a_usage_error(line, what):
    with pytest.raises(UsageError) as caught:
        split_line(line, "parmap")
    assert type(caught.value) is UsageError  # IPython prints a whole traceback for a subclass
    assert what in str(caught.value)
    assert str(caught.value).startswith("%parmap: ")


@given(texts)
def test_unquote_undoes_quotes_around_the_whole(text):
    for quote in ("'", '"', "'''", '"""'):
        if quote not in text and not text.startswith(quote[0]) and not text.endswith(quote[0]):
            assert unquote(f"{quote}{text}{quote}") == text


@pytest.mark.parametrize("token", ["a b", "'a' + 'b'", "'", "x='a'", "'a\"", ""])
def test_unquote_leaves_the_rest_alone(token):
    assert unquote(token) == token


# --- parsing ----------------------------------------------------------------------------------------------


def names(text: str) -> list[str]:
    return [choice("parmap", "compare", name, ["vmap", "map", "serial"]) for name in text.split(",")]


@pytest.fixture
def parser() -> OptionParser:
    parser = OptionParser("parmap", "%parmap FUNCTION INPUT", "Map a function over inputs.")
    parser.add_argument("-d", "--devices", type=int, help="how many devices")
    parser.add_argument("-s", "--strategy", default="auto")
    parser.add_argument("--show", choices=("plan", "code"))
    parser.add_argument("-a", "--in-axes")
    parser.add_argument("-o", "--out")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-c", "--compare", nargs="?", const=["all"], type=names)
    parser.add_argument("--seed", nargs="?", const="0")
    parser.add_argument("--flag", action="append")
    parser.add_argument("--x64", action=argparse.BooleanOptionalAction)
    return parser


def parse(parser: OptionParser, line: str):
    return parser.parse_tokens(split_line(line, "parmap"))


@pytest.mark.parametrize(
    ("line", "options", "positional"),
    [
        ("f xs", {}, ["f", "xs"]),
        ("-d 2 f -q xs -s vmap", {"devices": 2, "quiet": True, "strategy": "vmap"}, ["f", "xs"]),
        ("-d2 xs", {"devices": 2}, ["xs"]),
        ("-d=2 xs", {"devices": 2}, ["xs"]),
        ("--devices=2 xs", {"devices": 2}, ["xs"]),
        ("--devices 2 xs", {"devices": 2}, ["xs"]),
        ("-d '2'", {"devices": 2}, []),
        # negative numbers are inputs, or values
        ("f -1 -.5 -2.0", {}, ["f", "-1", "-.5", "-2.0"]),
        ("-a -1 xs", {"in_axes": "-1"}, ["xs"]),
        ("--in-axes=-1 xs", {"in_axes": "-1"}, ["xs"]),
        ("-a (0, None) xs", {"in_axes": "(0, None)"}, ["xs"]),
        ("-a '(0, None)' xs", {"in_axes": "(0, None)"}, ["xs"]),
        ("-s ''", {"strategy": ""}, []),
        ("-o 'a=b'", {"out": "a=b"}, []),
        ("-o = x", {"out": "="}, ["x"]),
        # a value may look like an option, as long as it is none of ours
        (
            "--flag --xla_a=1 --flag=--xla_b --flag '--xla_c=2 3'",
            {"flag": ["--xla_a=1", "--xla_b", "--xla_c=2 3"]},
            [],
        ),
        ("--x64", {"x64": True}, []),
        ("--no-x64", {"x64": False}, []),
        # an option whose value may be left out takes what its type accepts
        ("-c xs", {"compare": ["all"]}, ["xs"]),
        ("xs -c", {"compare": ["all"]}, ["xs"]),
        ("-c -q xs", {"compare": ["all"], "quiet": True}, ["xs"]),
        ("-c vmap,serial xs", {"compare": ["vmap", "serial"]}, ["xs"]),
        ("--compare=vmap xs", {"compare": ["vmap"]}, ["xs"]),
        ("-c -1", {"compare": ["all"]}, ["-1"]),
        ("--seed 7 xs", {"seed": "7"}, ["xs"]),
        ("--seed --quiet", {"seed": "0", "quiet": True}, []),
        ("xs -", {}, ["xs", "-"]),
        ("x=-1 k=--y", {}, ["x=-1", "k=--y"]),
    ],
)
def test_options_and_inputs_in_any_order(parser, line, options, positional):
    found, rest = parse(parser, line)
    defaults, _ = parse(parser, "")
    assert vars(found) == vars(defaults) | options
    assert rest == positional


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("xs --stratgy vmap", "unknown option '--stratgy'. Did you mean '--strategy'?"),
        ("xs -strategy vmap", "unknown option '-strategy'. Did you mean '--strategy'?"),
        (
            "xs --strat vmap",
            "Did you mean '--strategy'?",
        ),  # an abbreviation is no option: it may change its meaning
        ("xs --strategyy=vmap", "unknown option '--strategyy'. Did you mean '--strategy'?"),
        ("xs -y", "unknown option '-y'. (An expression that begins with - needs brackets.)"),
        ("xs --", "unknown option '--'"),
        ("xs -q=1", "option '-q' takes no value, got '1'"),
        ("xs --quiet=yes", "option '--quiet' takes no value, got 'yes'"),
        ("xs -d", "expected one argument"),
        ("xs -o -q", "-o/--out: expected one argument"),
        ("xs -d two", "invalid int value: 'two'"),
        ("xs --show paln", "--show=paln: not one of plan, code. Did you mean 'plan'?"),
        ("xs --compare=vmpa", "compare=vmpa: not one of vmap, map, serial. Did you mean 'vmap'?"),
    ],
)
def test_a_mistake_is_one_usage_error_with_the_next_step(parser, line, message):
    with pytest.raises(UsageError) as caught:
        parse(parser, line)
    assert type(caught.value) is UsageError
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "%parmap" in str(caught.value)


@pytest.mark.parametrize("line", ["-h", "--help", "xs -s vmap -h", "--nonsense --help"])
def test_h_prints_the_options(parser, line, capsys):
    assert parser.read(line) is None
    printed = capsys.readouterr().out
    assert printed.startswith("usage: %parmap FUNCTION INPUT\n\nMap a function over inputs.\n")
    assert "how many devices" in printed


def test_a_line_is_read_without_its_semicolon(parser):
    assert parser.read("xs -d 2 ;") == parse(parser, "xs -d 2")


def test_parsing_never_exits_nor_prints(parser, capfd):
    for line in ("-d", "--nonsense", "-d x"):
        with pytest.raises(UsageError):
            parse(parser, line)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "positional", "given", "due"),
    [
        ("f -d 2 xs -q", ["f", "xs"], ["devices", "quiet"], None),
        ("f -d", ["f"], ["devices"], "devices"),
        ("-d -q -s", [], ["devices", "quiet", "strategy"], "strategy"),
        ("--nonsense f -d2", ["f"], ["devices"], None),
        ("-c xs --compare=vmap", ["xs"], ["compare", "compare"], None),
        ("-c", [], ["compare"], "compare"),
    ],
)
def test_lines_that_are_being_typed(parser, line, positional, given, due):
    found, actions, waiting = parser.so_far(line.split())
    assert (found, [a.dest for a in actions], waiting and waiting.dest) == (positional, given, due)


def test_choice():
    assert choice("parmap", "strategy", "map", ["vmap", "map"]) == "map"
    with pytest.raises(UsageError, match=r"%parmap: strategy=3: not one of vmap, map\."):
        choice("parmap", "strategy", 3, ["vmap", "map"])


def test_in_ipython_a_usage_error_is_one_line(shell, capsys):
    def magic(line):
        split_line(line, "parmap")

    shell.register_magic_function(magic, "line", "parmap")
    result = shell.run_cell("%parmap f 'xs")
    assert isinstance(result.error_in_exec, UsageError)
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("\n") == 1
    assert "UsageError: %parmap: unclosed quote" in printed.err
