"""The error index: each code has a rule, a page and a case; what the pages claim is executed."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from explanations.harness import AT_A_TIME, Ahead, expected_codes, run_jobs, run_snippet, selected

from jaxpar_magic import _jax
from jaxpar_magic.explanations import explain, pages
from jaxpar_magic.explanations.explanation import Fix
from jaxpar_magic.explanations.registry import rules
from jaxpar_magic.render import html, text

EXAMPLES_PER_PROCESS = 40  # where they share processes

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


class Together:
    """Examples that share processes, a few at a time, ahead of the tests."""

    def __init__(self, items, function: str):
        groups: dict[tuple, list[dict]] = defaultdict(list)
        for key in selected(items, function):
            example = _example(key)
            if example.applies_to(_jax.jax_version()) and not example.aborts:
                job = {"key": key, "source": example.source}
                groups[example.devices, tuple(sorted((example.env or {}).items()))].append(job)
        self.pool = ThreadPoolExecutor(AT_A_TIME)
        self.futures = {}
        for (devices, env), jobs in groups.items():
            for start in range(0, len(jobs), EXAMPLES_PER_PROCESS):
                part = jobs[start : start + EXAMPLES_PER_PROCESS]
                future = self.pool.submit(run_jobs, "run_many.py", part, devices=devices, env=dict(env))
                self.futures.update({job["key"]: future for job in part})

    def result(self, key: str):
        """As of a process of its own; None if this process does not tell, so that the example needs one."""
        if key not in self.futures:
            return None
        found = self.futures[key].result()[key]
        outcome = "ran" if found["type"] is None else "raised"
        return {
            "outcome": outcome,
            "stderr": "",
            **found,
            "warnings": [{"explanation": explanation} for explanation in found.get("warnings", ())],
        }

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def _check(check: Callable[[str, Any], None], key: str, runs: Ahead | Together) -> None:
    """With processes that examples share, what one of them left may disturb another: that one is tried alone."""
    if isinstance(runs, Together):
        try:
            check(key, runs.result(key))
        except AssertionError:
            check(key, _run(key))
        return
    check(key, runs.result(key))


def assert_fix_can_be_used(fix) -> None:
    """A fix is Python that compiles (also as the body of a function), or magics or shell commands."""
    lines = [line for line in fix.code.split("\n") if not line.lstrip().startswith(("%", "!"))]
    source = "\n".join(lines)
    try:
        compile(source, "fix", "exec")
    except SyntaxError:
        compile("async def _():\n" + textwrap.indent(source or "pass", "    "), "fix", "exec")


def _runs(request, function: str):
    if request.config.getoption("--shared-processes"):
        return Together(request.session.items, function)
    return Ahead(request.session.items, function, _run)


@pytest.fixture(scope="module")
def broken(request):
    runs = _runs(request, "test_broken_example")
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def fixed(request):
    runs = _runs(request, "test_fixed_example")
    yield runs
    runs.close()


def _skip_on_other_versions(key: str) -> None:
    if not _example(key).applies_to(_jax.jax_version()):
        pytest.skip(f"other versions of JAX: {_example(key).versions}")


@pytest.mark.slow
@pytest.mark.parametrize("key", _numbered("broken"))
def test_broken_example(key, broken):
    _skip_on_other_versions(key)
    _check(assert_explained_by_its_code, key, broken)


def assert_explained_by_its_code(key, result):
    example, code = _example(key), key.split("-")[0]
    assert result is not None
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
        assert_fix_can_be_used(Fix(**fix))


@pytest.mark.slow
@pytest.mark.parametrize("key", _numbered("fixed"))
def test_fixed_example(key, fixed):
    _skip_on_other_versions(key)
    _check(assert_ran, key, fixed)


def assert_ran(key, result):
    assert result is not None
    assert result["outcome"] == "ran", f"{result.get('type')}: {result.get('message')}\n{result['stderr'][-2000:]}"
