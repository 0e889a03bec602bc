"""The corpus of real errors: each case is explained by the code it should have, and no negative one is."""

from __future__ import annotations

import importlib.metadata

import pytest
from explanations.harness import Ahead, corpus, expected_codes, run_case

from jaxpar_magic.explanations import explain
from jaxpar_magic.explanations.context import Failure, names_of_type

CASES = corpus()
COVERED = {name: codes for name, codes in expected_codes().items() if name in CASES}
NEGATIVE = [name for name, case in CASES.items() if case["kind"] == "negative"]


def jax_release() -> str:
    return importlib.metadata.version("jax")


def test_expected_codes_name_cases():
    assert set(expected_codes()) <= set(CASES)
    assert not set(COVERED) & set(NEGATIVE)


def stored_failures(case):
    """(version, failure as text) for each version whose message the corpus holds."""
    if case["kind"] == "text":
        yield "text", Failure.from_text(case["text"])
        return
    for version, message in case["messages"].items():
        if message["ok"] and message["type"] and message["message"]:
            name = message["type"].removeprefix("builtins.")
            text = message["message"]
            if not name.startswith("process died"):
                text = f"{name}: {text}"
            yield version, Failure.from_text(text)


@pytest.mark.parametrize("name", sorted(COVERED))
def test_message_alone(name):
    """From the bare message of any version: the right code, or nothing if the message tells too little."""
    found = {}
    for version, failure in stored_failures(CASES[name]):
        explanation = explain(failure)
        found[version] = explanation and explanation.code
    wrong = {v: code for v, code in found.items() if code is not None and code not in COVERED[name]}
    assert not wrong, f"expected {COVERED[name]}"
    if CASES[name]["kind"] == "text":
        assert found["text"] in COVERED[name]


@pytest.mark.parametrize("name", sorted(NEGATIVE))
def test_negative_message_alone(name):
    case = CASES[name]
    for message in case["messages"].values():
        if message["type"]:
            text = f"{message['type'].removeprefix('builtins.')}: {message['message']}"
            assert explain(text) is None
            where = f'Traceback (most recent call last):\n  File "case.py", line 1, in <module>\n    x()\n{text}'
            assert explain(where) is None


def test_types_of_the_corpus_are_known():
    """The parents of a type that a text names are those of the real type."""
    import jax

    for name in dir(jax.errors):
        kind = getattr(jax.errors, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            real = {k.__name__ for k in kind.__mro__ if k is not object}
            assert set(names_of_type(kind.__name__)) <= real | {"JaxRuntimeError"}


@pytest.fixture(scope="module")
def ahead(request):
    runs = Ahead(request.session.items, "test_live", run_case)
    yield runs
    runs.close()


def fails_here(case) -> bool:
    """Whether this JAX is among the versions that fail in the case's way; unknown versions are tried."""
    message = case["messages"].get(jax_release())
    return message is None or message["ok"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(n for n in (*COVERED, *NEGATIVE) if CASES[n]["snippet"] and fails_here(CASES[n]))
)
def test_live(name, ahead):
    """Really run the snippet on this JAX and explain what happens, in its own process."""
    case = CASES[name]
    result = ahead.result(name)
    if case["kind"] == "negative":
        assert result["explanation"] is None
        assert not any(w["explanation"] for w in result["warnings"])
        return
    if case["kind"] == "warning":
        explanations = [w["explanation"] for w in result["warnings"] if w["explanation"]]
        logged = explain(result["stderr"]) if not explanations and result["stderr"] else None
        explanations += [{"code": logged.code, "card": str(logged)}] if logged else []
    elif result["outcome"] == "died" or (case["kind"] == "abort" and result["outcome"] != "raised"):
        text = explain(result["stderr"])
        explanations = [{"code": text.code, "card": str(text)}] if text else []
    else:
        explanations = [result["explanation"]] if result["explanation"] else []
    assert explanations, f"not explained: {result.get('type')}: {result.get('message')} {result['stderr'][-500:]}"
    assert explanations[0]["code"] in COVERED[name], explanations[0]["card"]
    if case["kind"] == "raise":
        assert explanations[0]["where"] is not None


def test_coverage_report(record_property, capsys):
    """Not a check: says which cases have no explanation yet."""
    missing = sorted(n for n, c in CASES.items() if c["kind"] != "negative" and n not in COVERED)
    record_property("not_covered", missing)
    with capsys.disabled():
        print(f"\n{len(CASES) - len(NEGATIVE) - len(missing)} of {len(CASES) - len(NEGATIVE)} cases covered")
