"""Text and HTML of documents, with strings as an error message or a stranger's notebook may bring them."""

from __future__ import annotations

import doctest
import re
from html.parser import HTMLParser

import pytest

from jaxpar_magic.document import (
    Bars,
    Code,
    Details,
    Document,
    Grid,
    Heading,
    Items,
    Link,
    Meter,
    Paragraph,
    Table,
)
from jaxpar_magic.render import clean, html, text

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></code><style>*{display:none}</style>",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\ \x1b(B\x1bM",
    "bell\x07 back\x08 null\x00 return\rover \x9b31m",
    "\u202eesrever\u202c \u2066isolated\u2069",
    "lone \ud800 surrogate",
    "x" * 500,
    "数据" * 100,
    "e\u0301" * 90,
    "👩‍👩‍👧‍👦 👍🏽",
    "",
    " \n\n ",
    "a & b &amp; c < d",
]


def everything(s: str) -> list[Document]:
    blocks = [
        Heading(s),
        Heading(s, level=2),
        Paragraph(s, label=s),
        Code(s, label=s),
        Table([s, s], [[s, s], [s, "1"]], caption=s, numeric=frozenset([1])),
        Bars([(s, 1.0, s), (s, 0.0, s)], caption=s, hollow=frozenset([1])),
        Grid([s, s], [s, s], [[s, s], [s, ""]], caption=s),
        Meter(s, 1.0, 3.0),
        Meter(s, None, 3.0),
        Items([s, s], numbered=True),
        Details(s, [Paragraph(s), Code(s)]),
        Link(s, s),
        Link(s, "https://example.com/?q=" + s),
    ]
    return [Document(blocks, kind=kind) for kind in ("report", "card", "page")]


class Checker(HTMLParser):
    """Collects what a browser would build; fails on anything a sanitizer would drop."""

    allowed = frozenset(
        ["section", "h3", "h4", "p", "strong", "br", "pre", "code", "div", "details", "summary", "a"]
        + ["table", "caption", "thead", "tbody", "tr", "th", "td", "ol", "ul", "li", "label", "progress"]
    )
    attributes = frozenset(["style", "scope", "colspan", "href", "target", "rel", "value", "max", "tabindex"])
    empty = frozenset(["br"])

    def __init__(self, source: str):
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.styles: list[str] = []
        self.tags: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in self.allowed
        assert {name for name, _ in attrs} <= self.attributes
        self.tags.append(tag)
        for name, value in attrs:
            if name == "style":
                self.styles.append(value)
            if name == "href":
                assert value.startswith(("http://", "https://"))
        if tag not in self.empty:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.mark.parametrize("s", HOSTILE)
def test_html_escapes_everything(s):
    for document in everything(s):
        checker = Checker(html.render(document))
        for style in checker.styles:
            assert not re.search(r"(^|;)\s*color\s*:", style)
            assert "var(" not in style and "currentColor" not in style
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", checker.words)
        html.render(document).encode()


@pytest.mark.parametrize("width", [10, 40, 80, None])
@pytest.mark.parametrize("s", HOSTILE)
def test_text_has_no_codes_and_can_be_written(s, width):
    for document in everything(s):
        out = text.render(document, width)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out)
        out.encode()
        assert all(line == line.rstrip() for line in out.split("\n"))


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("s", [h for h in HOSTILE if "\x1b" not in h] + ["some words " * 30])
def test_text_fits_the_width(s, width):
    from rich.cells import cell_len

    document = Document(
        [
            Heading(s),
            Paragraph(s, label="Why"),
            Items([s, s]),
            Table(["name", "value", "note"], [["a", s, "short"], [s, "1", s]], caption=s),
            Bars([(s, 2.0, "2 s"), ("map", 1.0, "1 s")], caption=s),
            Grid(["0:4", "4:8"], ["0:2", s], [["cpu:0", s], ["cpu:2", ""]], caption=s),
            Meter(s, 40, 100),
            Details(s, [Paragraph(s)]),
        ],
        kind="card",
    )
    for line in text.render(document, width).split("\n"):
        assert cell_len(line) <= width


def test_nothing_is_lost_when_narrow():
    words = [f"word{i}" for i in range(60)]
    document = Document([Table(["first", "second", "third"], [[" ".join(words[:20]), words[20] * 9, words[21]]])])
    for width in (20, 40, 80):
        joined = re.sub(r"\s", "", text.render(document, width))
        for word in [*words[:20], words[21], "first", "third"]:
            assert word in joined


def test_code_and_addresses_are_never_broken():
    line = "y = jax.jit(jax.shard_map(jax.vmap(f), mesh=mesh, in_specs=P('i'), out_specs=P('i')))(xs)"
    url = "https://docs.jax.dev/en/latest/" + "a" * 80 + ".html"
    out = text.render(Document([Code(line), Paragraph("see " + url), Link("docs", url)]), 40)
    assert line in out
    assert out.count(url) == 2


def test_text_golden():
    document = Document(
        [
            Heading("JPX0001 a-slug"),
            Paragraph("10 items, 1 device.", label="What"),
            Paragraph("Each item needs a device of its own.", label="Why"),
            Code("y = jax.vmap(f)(x)", label="1. Vectorise"),
            Table(["strategy", "seconds"], [["vmap", "1.3"], ["shard_map", "0.04"]], numeric=frozenset([1])),
            Bars([("vmap", 1.0, "1.0 s"), ("map", 0.5, "0.5 s")], caption="Time"),
        ],
        kind="card",
    )
    assert text.render(document, 40).split("\n") == [
        "JPX0001 a-slug",
        "  What: 10 items, 1 device.",
        "  Why: Each item needs a device of its",
        "  own.",
        "",
        "  1. Vectorise",
        "      y = jax.vmap(f)(x)",
        "",
        "  strategy   seconds",
        "  vmap           1.3",
        "  shard_map     0.04",
        "",
        "  Time",
        "  vmap  1.0 s  " + "█" * 25,
        "  map   0.5 s  " + "█" * 12,
    ]


def test_wide_characters_line_up():
    out = text.render(Document([Table(["名", "b"], [["数据", "1"], ["x", "2"]])]), 40).split("\n")
    assert out == ["名    b", "数据  1", "x     2"]


@pytest.mark.parametrize("columns", [[], ["a", "b"]])
def test_empty_table(columns):
    document = Document([Table(columns, [], caption="Devices")])
    assert "(none)" in text.render(document, 40) and "(none)" in Checker(html.render(document)).words


def test_bars_of_unusual_values():
    document = Document([Bars([("a", float("nan"), "nan"), ("b", float("inf"), "inf"), ("c", 0.0, "0 s")], "Time")])
    assert "nan" in text.render(document, 40) and "█" not in text.render(document, 40)
    Checker(html.render(document))
    assert Document([Bars([], "Time")]).__str__() == "Time"


def test_a_hollow_bar_is_told_apart_without_colour():
    document = Document(
        [Bars([("vmap", 1.0, "1 s"), ("ideal", 0.5, "0.5 s"), ("tiny", 1e-9, "1 ns")], "Time", frozenset([1]))]
    )
    assert text.render(document, 40).split("\n")[1:] == [
        "vmap     1 s  " + "█" * 26,
        "ideal  0.5 s  " + "░" * 13,
        "tiny    1 ns  ▏",
    ]
    assert html.render(document).count("dashed") == 1


def test_a_grid_keeps_rows_and_columns_at_every_width():
    grid = Grid(["0:4", "4:8"], ["0:2", "2:4"], [["cpu:0", "cpu:1"], ["cpu:2", "cpu:3, cpu:7"]], "x float32[8,4]")
    assert text.render(Document([grid]), 60).split("\n") == [
        "x float32[8,4]",
        "       0:2             2:4",
        "0:4  [ cpu:0        ][ cpu:1        ]",
        "4:8  [ cpu:2        ][ cpu:3, cpu:7 ]",
    ]
    narrow = text.render(Document([grid]), 30).split("\n")
    assert narrow[1:] == ["0:4, 0:2: cpu:0", "0:4, 2:4: cpu:1", "4:8, 0:2: cpu:2", "4:8, 2:4: cpu:3, cpu:7"]
    source = html.render(Document([grid]))
    assert source.count('scope="col"') == 2 and source.count('scope="row"') == 2 and source.count("<td") == 5


def test_a_grid_of_one_row_needs_no_row_labels():
    out = text.render(Document([Grid([""], ["0:3", "3:6"], [["cpu:0", "cpu:1"]], "x")]), 40).split("\n")
    assert out == ["x", "  0:3      3:6", "[ cpu:0 ][ cpu:1 ]"]


@pytest.mark.parametrize(
    ("value", "total", "words"),
    [
        (40, 100, "[########............] 40 of 100"),
        (None, 100, "40 of 100"),
        (200, 100, "[####################] 40 of 100"),
        (0, 0, "[....................] 40 of 100"),
    ],
)
def test_a_meter(value, total, words):
    document = Document([Meter("40 of 100", value, total)])
    assert text.render(document, 60) == words
    source = html.render(document)
    assert ("<progress" in source) == (value is not None)
    assert re.search(r"<label>.*40 of 100</label>", source)


def test_semantics_of_html():
    source = html.render(Document([Table(["n", "v"], [["x", "1"]], caption="Sizes"), Code("a  <b>\n  c")]))
    assert '<th scope="col"' in source and '<th scope="row"' in source and "<caption" in source
    assert "white-space:pre" in source and "overflow-x:auto" in source
    assert "a  &lt;b&gt;\n  c</code></pre>" in source


def test_a_column_without_a_title_has_no_header():
    source = html.render(Document([Table(["", "plan"], [["items", "8"]])]))
    assert source.count('scope="col"') == 1 and "<td></td>" in source


def test_a_link_that_is_no_web_address_is_shown_not_linked():
    checker = Checker(html.render(Document([Link("click", "javascript:alert(1)")])))
    assert "a" not in checker.tags and "javascript:alert(1)" in checker.words


def test_bundle_has_both():
    bundle = Document([Paragraph("hello")])._repr_mimebundle_()
    assert bundle["text/plain"] == "hello" and "<p" in bundle["text/html"]


@pytest.mark.parametrize("module", [clean, text, html])
def test_examples_in_docstrings(module):
    extra = {"Document": Document, "Heading": Heading, "Paragraph": Paragraph}
    result = doctest.testmod(module, extraglobs=extra)
    assert result.attempted and not result.failed
