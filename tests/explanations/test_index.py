"""The error index: each code has a rule, a page and a case; what the pages claim is executed."""

from __future__ import annotations

import textwrap

import pytest
from explanations.harness import Ahead, expected_codes, run_snippet

from jaxpar_magic import _jax
from jaxpar_magic.explanations import explain, pages
from jaxpar_magic.explanations.registry import rules
from jaxpar_magic.render import html, text

SLUGS = {rule.code: rule.slug for rule in rules()}


def test_each_code_has_one_slug_and_each_slug_one_code():
    pairs = {(rule.code, rule.slug) for rule in rules()}
    assert len(pairs) == len({code for code, _ in pairs}) == len({slug for _, slug in pairs})


def test_each_code_has_a_page_and_each_page_a_rule():
    assert sorted(SLUGS) == pages.codes()


def test_each_code_has_a_case():
    tested = {code for codes in expected_codes().values() for code in codes}
    tested |= {code for code in pages.codes() if any(e.kind == "broken" for e in pages.page(code).examples)}
    assert set(SLUGS) <= tested


@pytest.mark.parametrize("code", pages.codes())
def test_page(code):
    page = pages.page(code)
    assert page.slug == SLUGS[code]
    kinds = [example.kind for example in page.examples]
    assert "broken" in kinds
    runnable = any(e.kind == "broken" and e.language == "python" for e in page.examples)
    assert "fixed" in kinds or not runnable
    assert page.link and page.link.startswith("https://")
    document = page.describe()
    assert code in text.render(document, 80) and code in html.render(document)
    for example in page.examples:
        if example.language == "python":
            compile(example.source, code, "exec")
        if example.language == "text" and example.kind == "broken":
            explanation = explain(example.source)
            assert explanation is not None and explanation.code == code


def _numbered(kind: str) -> list[str]:
    return [
        f"{code}-{number}"
        for code in pages.codes()
        for number, example in enumerate(pages.page(code).examples)
        if example.kind == kind and example.language == "python"
    ]


def _example(key: str) -> pages.Example:
    code, number = key.split("-")
    return pages.page(code).examples[int(number)]


def _run(key: str):
    example = _example(key)
    if not example.applies_to(_jax.jax_version()):
        return None
    return run_snippet(example.source, devices=example.devices, env=dict(example.env or {}))


def assert_fix_can_be_used(fix) -> None:
    """A fix is Python that compiles (also as the body of a function), or magics or shell commands."""
    lines = [line for line in fix.code.split("\n") if not line.lstrip().startswith(("%", "!"))]
    source = "\n".join(lines)
    try:
        compile(source, "fix", "exec")
    except SyntaxError:
        compile("async def _():\n" + textwrap.indent(source or "pass", "    "), "fix", "exec")


@pytest.fixture(scope="module")
def broken(request):
    runs = Ahead(request.session.items, "test_broken_example", _run)
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def fixed(request):
    runs = Ahead(request.session.items, "test_fixed_example", _run)
    yield runs
    runs.close()


@pytest.mark.slow
@pytest.mark.parametrize("key", _numbered("broken"))
def test_broken_example(key, broken):
    result = broken.result(key)
    example, code = _example(key), key.split("-")[0]
    if result is None:
        pytest.skip(f"other versions of JAX: {example.versions}")
    if example.aborts:
        explanation = explain(result["stderr"])
        assert result["outcome"] == "died" and explanation is not None and explanation.code == code
        return
    if example.warns:
        explanations = [w["explanation"] for w in result["warnings"] if w["explanation"]]
    else:
        assert result["outcome"] == "raised", result["stderr"]
        explanations = [result["explanation"]] if result["explanation"] else []
        assert explanations, f"not explained: {result['type']}: {result['message']}"
        assert explanations[0]["where"] is not None
    assert [e["code"] for e in explanations][:1] == [code], explanations[0]["card"] if explanations else result
    assert 1 <= len(explanations[0]["fixes"]) <= 3
    for fix in explanations[0]["fixes"]:
        assert_fix_can_be_used(pages_fix(fix))


def pages_fix(fix):
    from jaxpar_magic.explanations.explanation import Fix

    return Fix(**fix)


@pytest.mark.slow
@pytest.mark.parametrize("key", _numbered("fixed"))
def test_fixed_example(key, fixed):
    result = fixed.result(key)
    if result is None:
        pytest.skip(f"other versions of JAX: {_example(key).versions}")
    assert result["outcome"] == "ran", f"{result.get('type')}: {result.get('message')}\n{result['stderr'][-2000:]}"
