"""The error index: one page per code, `index/JPX0104.md`.

A page is a header, a title and a little Markdown: paragraphs, `## headings`, lists, fenced code. Its code
blocks say in their fence what a test does with them:

    ```python broken devices=1          must fail, explained by the page's own code
    ```python fixed devices=4           must run
    ```text broken                      a message that is explained by the page's own code
    ```python                           is only shown

Further words of a fence: `devices=N` (CPU devices of the process; 1 if not said), `versions=>=0.8` (JAX
versions that have the failure), `env=NAME:VALUE`, `warns` (a warning is what is explained, not an error),
`aborts` (the process dies, and what it prints on standard error is explained).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ..document import Block, Code, Document, Heading, Items, Link, Paragraph


@dataclass(frozen=True)
class Example:
    """A fenced block of a page: `kind` is "broken", "fixed" or "shown"."""

    kind: str
    language: str
    source: str
    devices: int = 1
    versions: str = ""
    env: Mapping[str, str] | None = None
    warns: bool = False
    aborts: bool = False

    def applies_to(self, jax_version: tuple[int, ...]) -> bool:
        """Whether this JAX version is among `versions` ("", ">=0.8", ">=0.6,<0.9")."""
        return all(_compare(jax_version, bound) for bound in self.versions.split(",") if bound)


@dataclass(frozen=True)
class Page:
    """One page of the index."""

    code: str
    slug: str
    title: str
    link: str | None
    body: str

    @property
    def examples(self) -> list[Example]:
        return [_example(match) for match in _FENCE.finditer(self.body)]

    def describe(self) -> Document:
        """The page as a document."""
        blocks: list[Block] = [Heading(f"{self.code} {self.slug}"), Paragraph(self.title)]
        position = 0
        shown: set[str | None] = set()
        for match in _FENCE.finditer(self.body):
            blocks += _prose(self.body[position : match.start()])
            example = _example(match)
            words = {"broken": "This fails", "fixed": "This works"}.get(example.kind)
            label = None if words is None else f"{words} too:" if words in shown else f"{words}:"
            shown.add(words)
            blocks.append(Code(example.source, example.language, label))
            position = match.end()
        blocks += _prose(self.body[position:])
        if self.link:
            blocks.append(Link("More", self.link))
        return Document(blocks, kind="page")


_FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<source>.*?)^```[ \t]*$", re.M | re.S)


def codes() -> list[str]:
    """Every code that has a page, in order."""
    names = (entry.name for entry in files(__package__).joinpath("index").iterdir())
    return sorted(name[:-3] for name in names if re.fullmatch(r"JPX\d{4}\.md", name))


@cache
def page(code: str) -> Page:
    """The page of `code` ("JPX0104"). Raises KeyError if there is none."""
    if not re.fullmatch(r"JPX\d{4}", code):
        raise KeyError(code)
    entry = files(__package__).joinpath("index", f"{code}.md")
    if not entry.is_file():
        raise KeyError(code)
    return _parse(entry.read_text(encoding="utf-8"), code)


def _parse(text: str, code: str) -> Page:
    match = re.match(r"# (?P<code>JPX\d{4}) (?P<slug>[\w-]+)\n+(?P<title>[^\n]+)\n(?P<rest>.*)", text, re.S)
    if match is None or match["code"] != code:
        raise ValueError(f"{code}.md must begin with '# {code} slug', a blank line and one line of title")
    rest = match["rest"]
    more = re.search(r"^More: (\S+)[ \t]*$", rest, re.M)
    if more:
        rest = rest[: more.start()] + rest[more.end() :]
    return Page(code, match["slug"], _plain(match["title"]), more.group(1) if more else None, rest.strip("\n"))


def _example(match: re.Match[str]) -> Example:
    language, *words = match["info"].split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    kind = next((word for word in words if word in ("broken", "fixed")), "shown")
    env = dict(pair.split(":", 1) for pair in options["env"].split(",")) if "env" in options else {}
    return Example(
        kind,
        language,
        match["source"],
        devices=int(options.get("devices", 1)),
        versions=options.get("versions", ""),
        env=env,
        warns="warns" in words,
        aborts="aborts" in words,
    )


def _compare(version: tuple[int, ...], bound: str) -> bool:
    match = re.fullmatch(r"(>=|<)([\d.]+)", bound)
    if match is None:
        raise ValueError(f"versions={bound}: needs >=N.N or <N.N")
    limit = tuple(map(int, match.group(2).split(".")))
    return version >= limit if match.group(1) == ">=" else version < limit


def _prose(text: str) -> list[Block]:
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.strip().split("\n")
        if not lines[0]:
            continue
        if lines[0].startswith("## "):
            blocks.append(Heading(lines[0][3:], level=2))
            lines = lines[1:]
        if lines and re.match(r"(- |\d+\. )", lines[0]):
            points = re.split(r"\n(?=- |\d+\. )", "\n".join(lines))
            numbered = lines[0][0].isdigit()
            blocks.append(Items([_plain(re.sub(r"^(- |\d+\. )", "", p)) for p in points], numbered))
        elif lines:
            blocks.append(Paragraph(_plain(" ".join(lines))))
    return blocks


def _plain(text: str) -> str:
    """Inline Markdown as plain text: `code` loses its marks, a link shows its address."""
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"\1 (\2)", text.replace("\n", " "))
    return re.sub(r"`([^`]+)`", r"\1", re.sub(r"\s+", " ", text)).strip()


__all__ = ["Example", "Page", "codes", "page"]
