"""The site: pages from docs/*.md with their examples run now, and a page for each code of the error index.

    python tools/docs.py [FOLDER]          (make docs: into build/docs)

A page is Markdown. What its fences say:

    ```ipython          a cell; it is run, in one kernel for the whole page, and its outputs stand below it
    ```ipython fails    the same, and it has to fail
    ```ipython shown    not run
    ```python before    stands beside the block that follows it
    ```picture vmap     what a strategy does with twelve items

An example that fails where it should not, or does not where it should, ends the build; so does a link within the
site that leads nowhere. Outputs come from the package's own renderers, as in a notebook. The pages of the error
index are those that `%jaxexplain CODE` shows. Without JavaScript only the search box is missing.
"""

from __future__ import annotations

import html
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from jaxpar_magic.explanations import pages
from jaxpar_magic.render import html as renderer

ROOT = Path(__file__).resolve().parent.parent
# File name in docs/ (or a path from the root) and its name in the list of pages.
PAGES = {
    "index": "Start",
    "parmap": "%parmap",
    "strategies": "Strategies",
    "jaxdevices": "%jaxdevices",
    "jaxexplain": "%jaxexplain",
    "cluster": "Clusters",
    "moving": "Moving to parmap",
    "inside": "How it works",
    "../CONTRIBUTING": "Contributing",
}

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{root}style.css">
</head>
<body>
<nav aria-label="Pages"><ul>{links}</ul></nav>
<main>
{body}
</main>
</body>
</html>
"""

STYLE = """:root { color-scheme: light dark; --back: #fff; --ink: #1b1b1b; --link: #0b57d0; }
@media (prefers-color-scheme: dark) { :root { --back: #121212; --ink: #e8e8e8; --link: #8ab4f8; } }
body { background: var(--back); color: var(--ink); }
a { color: var(--link); }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 0 auto 4rem; padding: 0 1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: .8rem 0; margin: 0;
  border-bottom: 1px solid #8888; }
nav [aria-current] { font-weight: bold; text-decoration: none; }
h1 { font-size: 1.8rem; line-height: 1.25; }
h2 { font-size: 1.3rem; margin-top: 2.2rem; }
table { border-collapse: collapse; }
main > table th, main > table td, .index th, .index td { text-align: left; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid #8888; vertical-align: top; }
code { font-size: .92em; overflow-wrap: anywhere; }
pre code { overflow-wrap: normal; }
pre { overflow-x: auto; padding: .6rem .8rem; border: 1px solid #8888; border-radius: 4px; line-height: 1.4; }
.cell { border-left: 4px solid #4c8bf5; margin: 1rem 0; padding-left: .8rem; }
.cell > pre:first-child { margin-top: 0; }
.output > pre { border: 0; padding: 0 0 0 .8rem; margin: .4rem 0; white-space: pre-wrap;
  overflow: visible; overflow-wrap: anywhere; }
.index td:first-child { white-space: nowrap; }
.index td { overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 0 1rem; align-items: start; }
.pair > * { min-width: 0; }
figure { margin: 1rem 0; }
svg { max-width: 100%; height: auto; }
input { font: inherit; width: 100%; box-sizing: border-box; padding: .4rem .6rem; margin: .5rem 0 1rem; }
"""

SEARCH = """<label for="search">Search: a code, a word of the message, a function</label>
<input id="search" type="search" autocomplete="off">
<p id="count" role="status"></p>"""

SCRIPT = """<script>
const rows = [...document.querySelectorAll("tbody tr")];
const count = document.getElementById("count");
document.getElementById("search").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !words.every((word) => row.dataset.text.includes(word));
    shown += !row.hidden;
  }
  count.textContent = words.length ? `${shown} of ${rows.length} explanations` : "";
});
</script>"""

# A cell's outputs, as nbformat has them.
Outputs = list[dict]
Runner = Callable[[Sequence[str]], list[Outputs]]


class BuildError(Exception):
    """An example or a link that is not as the page says."""


def build(folder: Path, run: Runner | None = None) -> list[str]:
    """Write the site into `folder`; the names of its files.

    Parameters
    ----------
    folder: made if it is not there.
    run: runs the cells of a page; default: a real kernel.

    Raises
    ------
    BuildError: an example or a link is broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "style.css").write_text(STYLE + _colours(), encoding="utf-8")
    for name in PAGES:
        source = (ROOT / "docs" / f"{name}.md").resolve().read_text(encoding="utf-8")
        title, body = page_body(source, run or run_cells, f"{name}.md")
        _write(folder / f"{_target(name)}.html", title, body)
    build_errors(folder)
    images = folder / "images"
    images.mkdir(exist_ok=True)
    for image in (ROOT / "docs" / "images").glob("*.png"):
        (images / image.name).write_bytes(image.read_bytes())
    broken = broken_links(folder)
    if broken:
        raise BuildError("links that lead nowhere:\n" + "\n".join(broken))
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*.html"))


def _target(name: str) -> str:
    return Path(name).name.lower()


def _write(file: Path, title: str, body: str, root: str = "") -> None:
    here = f"errors/{file.name}" if root else file.name
    links = "".join(
        f'<li><a href="{root}{address}"{" aria-current=page" if address == here else ""}>{html.escape(label)}</a></li>'
        for address, label in [
            *((f"{_target(name)}.html", label) for name, label in PAGES.items()),
            ("errors/index.html", "Errors explained"),
        ]
    )
    page = TEMPLATE.format(title=html.escape(title), root=root, links=links, body=body)
    file.write_text(page, encoding="utf-8")


# ------------------------------------------------------------------------------------------------ pages


def page_body(source: str, run: Runner, name: str) -> tuple[str, str]:
    """(title, HTML) of a page of Markdown, its cells run."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(source)
    cells = [token for token in tokens if token.type == "fence" and _words(token.info)[0] == "ipython"]
    running = [token for token in cells if "shown" not in _words(token.info)]
    outputs = dict(zip(map(id, running), run([token.content for token in running]) if running else []))
    for token in running:
        _check(token.content, outputs[id(token)], "fails" in _words(token.info), name)
    parts, title, beside, level = [], name, "", 1
    for i, token in enumerate(tokens):
        if token.type == "inline" and tokens[i - 1].type == "heading_open":
            text = "".join(child.content for child in token.children or ())
            tokens[i - 1].attrSet("id", _anchor(text))
            if tokens[i - 1].tag == "h1":
                title = text
    start = 0
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            level = int(token.tag[1])
        if token.type != "fence":
            continue
        parts.append(markdown.renderer.render(tokens[start:i], markdown.options, {}))
        start = i + 1
        language, *words = _words(token.info)
        block = _headings_below(_fence(language, token.content, outputs.get(id(token)), words), level)
        if "before" in words:
            beside = block
        elif beside:
            parts.append(f'<div class="pair"><div>{beside}</div><div>{block}</div></div>')
            beside = ""
        else:
            parts.append(block)
    parts.append(markdown.renderer.render(tokens[start:], markdown.options, {}))
    # Markdown has no other way to leave the corner of a table empty; a screen reader would read out a blank header.
    body = "\n".join(parts).replace("<th></th>", "<td></td>")
    return title, re.sub(r'href="(?!\w+:)([^"#]+)\.md(#[^"]*)?"', _page_link, body)


def _headings_below(block: str, level: int) -> str:
    """The headings of an output, h3 and h4 for a notebook, as headings under one of `level`."""
    return re.sub(r"(?<=<)(/?)h([34])\b", lambda m: f"{m[1]}h{int(m[2]) - 2 + level}", block)


def _words(info: str) -> list[str]:
    return info.split() or [""]


def _anchor(text: str) -> str:
    return re.sub(r"[^\w]+", "-", text.lower()).strip("-")


def _page_link(match: re.Match[str]) -> str:
    return f'href="{_target(match[1])}.html{match[2] or ""}"'


def _check(cell: str, outputs: Outputs, fails: bool, name: str) -> None:
    wrong = [o for o in outputs if o["output_type"] == "error" or (o.get("name") == "stderr" and "Error" in o["text"])]
    if bool(wrong) != fails:
        what = "does not fail" if fails else f"fails: {wrong[0].get('evalue') or wrong[0].get('text')}"
        raise BuildError(f"{name}: this example {what}\n{cell}")


def _fence(language: str, source: str, outputs: Outputs | None, words: list[str]) -> str:
    if language == "picture":
        return _picture(source.strip() or words[0])
    code = _highlighted(source, language)
    if language != "ipython":
        return code
    shown = "".join(map(_output, outputs or []))
    return f'<div class="cell">{code}{f"<div class=output>{shown}</div>" if shown else ""}</div>'


def _highlighted(source: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    code = highlight(source.rstrip("\n"), lexer, HtmlFormatter(nowrap=True))
    return f'<pre class="highlight" tabindex="0"><code>{code}</code></pre>'


def _colours() -> str:
    # Both with enough contrast on the page's own white and black.
    light = HtmlFormatter(style="a11y-light" if _has_style("a11y-light") else "xcode").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    light, dark = (re.sub(r"background(-color)?: [^;}]*;?", "", style) for style in (light, dark))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _has_style(name: str) -> bool:
    from pygments.styles import get_all_styles

    return name in set(get_all_styles())


def _output(output: dict) -> str:
    kind = output["output_type"]
    if kind == "stream":
        text = output["text"]
    elif kind == "error":
        text = f"{output['ename']}: {output['evalue']}"
    elif "text/html" in output["data"]:
        return output["data"]["text/html"]
    else:
        text = output["data"].get("text/plain", "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n")
    return f"<pre>{html.escape(plain)}</pre>" if plain else ""


def run_cells(cells: Sequence[str]) -> list[Outputs]:
    """The outputs of these cells, run in a fresh kernel of this very Python."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.rstrip("\n")) for cell in cells])
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder of their own: kernels that start at once could contend for ports.
        manager = KernelManager(transport="ipc", connection_file=f"{folder}/kernel.json")
        manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        client = NotebookClient(notebook, km=manager, allow_errors=True, timeout=300, resources={})
        client.execute(cwd=folder, cleanup_kc=True)
    return [cell.outputs for cell in notebook.cells]


# --------------------------------------------------------------------------------------------- pictures

# strategy -> lanes: what each is called, and the items of each program that it runs, one after the other
_LANES: dict[str, list[tuple[str, list[range]]]] = {
    "vmap": [("device 0", [range(12)])],
    "map": [("device 0", [range(i, i + 1) for i in range(12)])],
    "batches": [("device 0", [range(i, i + 4) for i in range(0, 12, 4)])],
    "shard_map": [(f"device {d}", [range(6 * d + i, 6 * d + i + 3) for i in (0, 3)]) for d in (0, 1)],
    "pmap": [(f"device {d}", [range(6 * d + i, 6 * d + i + 3) for i in (0, 3)]) for d in (0, 1)],
    "jit": [(f"device {d}", [range(6 * d, 6 * d + 6)]) for d in (0, 1)],
    "thread": [(f"thread {d}", [range(6 * d + i, 6 * d + i + 3) for i in (0, 3)]) for d in (0, 1)],
    "process": [(f"process {d}", [range(i, i + 1) for i in range(d, 12, 2)]) for d in (0, 1)],
    "serial": [("Python", [range(i, i + 1) for i in range(12)])],
    "cluster": [("engine 0", [range(3), range(6, 9)]), ("engine 1", [range(3, 6), range(9, 12)])],
}


def _picture(strategy: str) -> str:
    """Which items run where and together, time going to the right."""
    if strategy not in _LANES:
        raise BuildError(f"no picture of {strategy!r}")
    lanes = _LANES[strategy]
    left, item, gap, high = 90, 34, 8, 34
    shapes, words = [], []
    for row, (name, programs) in enumerate(lanes):
        y, x = row * (high + 10) + 4, left
        shapes.append(f'<text x="0" y="{y + 22}">{name}</text>')
        for items in programs:
            width = item * len(items)
            shapes.append(f'<rect x="{x}" y="{y}" width="{width}" height="{high}" rx="4" class="program"/>')
            shapes += [
                f'<text x="{x + item * (k + 0.5)}" y="{y + 22}" class="item">{i}</text>' for k, i in enumerate(items)
            ]
            x += width + gap
        together = f"{len(programs[0])} at a time" if len(programs[0]) > 1 else "one after the other"
        words.append(f"{name}: items {', '.join(str(i) for items in programs for i in items)}, {together}")
    width, height = left + 12 * (item + gap), len(lanes) * (high + 10)
    style = "<style>text{font:13px system-ui,sans-serif;fill:currentColor}.item{text-anchor:middle}"
    style += ".program{fill:none;stroke:#4c8bf5;stroke-width:2}</style>"
    caption = html.escape("; ".join(words))
    return (
        f'<figure><svg role="img" aria-label="{strategy}: {caption}" viewBox="0 0 {width} {height}" width="{width}">'
        f"{style}{''.join(shapes)}</svg></figure>"
    )


# ------------------------------------------------------------------------------------------ error index


def build_errors(folder: Path) -> int:
    """Write a page for each code and their index into `folder`/errors; the number of codes."""
    errors = folder / "errors"
    errors.mkdir(parents=True, exist_ok=True)
    for old in errors.glob("JPX*.html"):
        old.unlink()
    rows = []
    codes = pages.codes()
    for code in codes:
        page = pages.page(code)
        body = renderer.render(page.describe())
        _write(errors / f"{code}.html", f"{code} {page.slug}", _headings_below(body, 0), "../")
        text = html.escape(f"{code} {page.slug} {page.title} {page.body}".lower(), quote=True)
        rows.append(
            f'<tr data-text="{text}"><td><a href="{code}.html">{code}</a></td>'
            f"<td>{html.escape(page.slug)}</td><td>{html.escape(page.title)}</td></tr>"
        )
    head = "<tr><th scope=col>Code</th><th scope=col>Name</th><th scope=col>What it is</th></tr>"
    table = f'<table class="index"><thead>{head}</thead><tbody>\n{chr(10).join(rows)}\n</tbody></table>'
    # the script reads the table's rows, so it stands behind them
    body = f"<h1>JAX errors, explained</h1>\n{SEARCH}\n{table}\n{SCRIPT}"
    _write(errors / "index.html", "JAX errors, explained", body, "../")
    return len(codes)


# ------------------------------------------------------------------------------------------------ links


class _Page(HTMLParser):
    """Where a page's links lead, and what can be linked in it."""

    def __init__(self, source: str):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" and value:
                self.anchors.add(value)


def broken_links(folder: Path) -> list[str]:
    """Links within the site that lead nowhere, one line each; addresses of other sites are left alone."""
    found = {file.resolve(): _Page(file.read_text(encoding="utf-8")) for file in folder.rglob("*.html")}
    broken = []
    for file, page in found.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (file.parent / unquote(address.path)).resolve() if address.path else file
            if not target.is_file():
                broken.append(f"{file.name} → {link}: no such file")
            elif address.fragment and target in found and address.fragment not in found[target].anchors:
                broken.append(f"{file.name} → {link}: no such heading")
    return sorted(broken)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")
    try:
        files = build(target)
    except BuildError as error:
        sys.exit(f"docs: {error}")
    print(f"{len(files)} pages: {target / 'index.html'}")
