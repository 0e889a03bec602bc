"""`make docs`: a page for each code, an index that leads to all, links that lead somewhere."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest

from jaxpar_magic.explanations import pages

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import docs
    finally:
        sys.path.pop(0)
    folder = tmp_path_factory.mktemp("site")
    assert docs.build(folder) == len(pages.codes())
    return folder / "errors"


def test_every_code_has_a_page_with_its_examples(site):
    for code in pages.codes():
        text = (site / f"{code}.html").read_text(encoding="utf-8")
        page = pages.page(code)
        assert f"{code} {page.slug}" in text
        for example in page.examples:
            assert example.source.strip().splitlines()[0].strip() in html.unescape(text)


def test_the_index_leads_to_every_page_and_can_be_searched(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a href="(JPX\d{4})\.html">', text)
    assert linked == pages.codes()
    assert 'type="search"' in text
    assert text.index("<script>") > text.index("</tbody>")
    assert text.count("data-text=") == len(linked)


def test_links_within_the_site_lead_somewhere(site):
    for file in site.glob("*.html"):
        for target in re.findall(r'href="([^"#:]+)"', file.read_text(encoding="utf-8")):
            assert (site / target).is_file(), f"{file.name} → {target}"
