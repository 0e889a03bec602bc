"""The error index as pages to browse: one per code, and an index with search.

    python tools/docs.py [FOLDER]          (make docs: into build/docs)

The pages are the very ones that `%jaxexplain CODE` shows, rendered by the same renderer; nothing is written twice.
Without JavaScript the index is a plain list of links.
"""

from __future__ import annotations

import html
import sys
from pathlib import Path

from jaxpar_magic.explanations import pages
from jaxpar_magic.render import html as renderer

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #8888; vertical-align: top; }}
input {{ font: inherit; width: 100%; box-sizing: border-box; padding: .4rem .6rem; margin: .5rem 0 1rem; }}
nav {{ margin-bottom: 1rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""

SEARCH = """<label for="search">Search: a code, a word of the message, a function</label>
<input id="search" type="search" autocomplete="off">
<p id="count" role="status"></p>
<script>
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


def build(folder: Path) -> int:
    """Write the pages into `folder`; the number of codes."""
    errors = folder / "errors"
    errors.mkdir(parents=True, exist_ok=True)
    rows = []
    codes = pages.codes()
    for code in codes:
        page = pages.page(code)
        body = f'<nav><a href="index.html">All explanations</a></nav>\n<main>{renderer.render(page.describe())}</main>'
        title = html.escape(f"{code} {page.slug}")
        (errors / f"{code}.html").write_text(TEMPLATE.format(title=title, body=body), encoding="utf-8")
        text = html.escape(f"{code} {page.slug} {page.title} {page.body}".lower(), quote=True)
        rows.append(
            f'<tr data-text="{text}"><td><a href="{code}.html">{code}</a></td>'
            f"<td>{html.escape(page.slug)}</td><td>{html.escape(page.title)}</td></tr>"
        )
    table = "<table><thead><tr><th scope=col>Code</th><th scope=col>Name</th><th scope=col>What it is</th></tr></thead>"
    body = f"<main><h1>JAX errors, explained</h1>\n{table}<tbody>\n{chr(10).join(rows)}\n</tbody></table></main>"
    body = body.replace("</h1>\n", "</h1>\n<!-- search -->\n", 1)
    # the script reads the table's rows, so it stands behind them; the box stands above
    box, _, script = SEARCH.partition("<script>")
    body = body.replace("<!-- search -->", box) + "\n<script>" + script
    (errors / "index.html").write_text(TEMPLATE.format(title="JAX errors, explained", body=body), encoding="utf-8")
    return len(codes)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")
    number = build(target)
    print(f"{number} pages and their index: {target / 'errors' / 'index.html'}")
