"""`make docs`: pages whose examples run, a page for each code, links that lead somewhere.

The whole site is built by `make docs` itself, which fails where an example or a link does; here is what it rests on.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest

from jaxpar_magic.explanations import pages

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def docs():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import docs
    finally:
        sys.path.pop(0)
    return docs


@pytest.fixture(scope="module")
def errors(docs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    assert docs.build_errors(folder) == len(pages.codes())
    return folder / "errors"


def test_every_code_has_a_page_with_its_examples(errors):
    for code in pages.codes():
        text = (errors / f"{code}.html").read_text(encoding="utf-8")
        page = pages.page(code)
        assert f"{code} {page.slug}" in text
        for example in page.examples:
            assert example.source.strip().splitlines()[0].strip() in html.unescape(text)


def test_the_index_leads_to_every_page_and_can_be_searched(errors):
    text = (errors / "index.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a href="(JPX\d{4})\.html">', text)
    assert linked == pages.codes()
    assert 'type="search"' in text
    assert text.index("<script>") > text.index("</tbody>")
    assert text.count("data-text=") == len(linked)


SOURCE = """# A title

```ipython
1 + 1
```

## Left & right

```python before
old()
```

```ipython fails
new()
```

```ipython shown
never()
```

See [the next](other.md#left-right) and [a file](images/x.png).

| | two |
| --- | --- |
| one | 2 |
"""
TWO = [{"output_type": "execute_result", "data": {"text/plain": "2", "text/html": "<h3>two</h3>"}}]
FAILED = [{"output_type": "error", "ename": "NameError", "evalue": "<new>", "traceback": []}]


def test_cells_are_run_and_their_outputs_shown(docs):
    ran = []

    def run(cells):
        ran.extend(cells)
        return [TWO, FAILED]

    title, body = docs.page_body(SOURCE, run, "page.md")
    assert title == "A title"
    assert ran == ["1 + 1\n", "new()\n"]
    assert "<h2>two</h2>" in body, "an output's headings stand below the page's"
    assert '<h2 id="left-right">' in body
    assert "NameError: &lt;new&gt;" in body
    left, _, right = body.partition('<div class="pair">')[2].partition("</div><div>")
    assert "old" in left and "new" in right
    assert "<th>two</th>" in body and "<th></th>" not in body
    assert 'href="other.html#left-right"' in body and 'href="images/x.png"' in body


@pytest.mark.parametrize(("outputs", "words"), [([FAILED, FAILED], "fails: <new>"), ([TWO, TWO], "does not fail")])
def test_an_example_that_is_not_as_it_says_ends_the_build(docs, outputs, words):
    with pytest.raises(docs.BuildError, match=words):
        docs.page_body(SOURCE, lambda cells: outputs, "page.md")


def test_every_strategy_has_its_picture(docs):
    from jaxpar_magic.mapping.strategies import NAMES

    assert set(NAMES) <= set(docs._LANES)
    text = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert set(NAMES) <= set(re.findall(r"```picture (\w+)", text))
    for lanes in docs._LANES.values():
        assert sorted(i for _, programs in lanes for items in programs for i in items) == list(range(12))
    with pytest.raises(docs.BuildError):
        docs._picture("vamp")


def test_links_that_lead_nowhere_are_found(docs, tmp_path):
    (tmp_path / "a.html").write_text('<h2 id="here">x</h2><a href="b.html#there"></a><a href="#here"></a>')
    (tmp_path / "b.html").write_text('<a href="c.html"></a><a href="https://example.org/x"></a><img src="no.png">')
    assert docs.broken_links(tmp_path) == [
        "a.html → b.html#there: no such heading",
        "b.html → c.html: no such file",
        "b.html → no.png: no such file",
    ]


def test_every_page_is_in_the_list_and_every_listed_one_is_there(docs):
    listed = {f"{name}.md" for name in docs.PAGES if not name.startswith("..")}
    assert {file.name for file in (ROOT / "docs").glob("*.md")} == listed
