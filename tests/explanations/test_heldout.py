"""Failures that were written before anybody looked at the rules: the code each should have, and silence.

`data/heldout.jsonl` has one case a line: "kind" ("raise", "text", "negative"), "root_cause" (written down before
the explanation was seen), "code" (None: nothing may be said), "also" (codes that are right too), "source" or "text",
"devices", "messages" (what versions of JAX print), "alone" (what the message alone tells at most, where the user's line
tells more), and "not_on" (versions that fail in another way).
"""

from __future__ import annotations

import importlib.metadata
import json

import pytest
from explanations.harness import HERE, run_jobs

from jaxpar_magic.explanations import explain

CASES = {
    case["id"]: case
    for case in map(json.loads, (HERE / "data" / "heldout.jsonl").read_text(encoding="utf-8").splitlines())
}
# What a bare message tells at most, where the user's line decides between several codes.
GENERAL = {"JPX0509", "JPX0511", "JPX0527", "JPX0533", "JPX0601"}
TEXTS = sorted(name for name, case in CASES.items() if case["text"])
LIVE = sorted(name for name, case in CASES.items() if case["source"])


@pytest.mark.parametrize("name", TEXTS)
def test_text(name):
    """A pasted message or piece of a log: the right code, or silence where it is not JAX's."""
    case = CASES[name]
    explanation = explain(case["text"])
    assert (explanation and explanation.code) == case["code"], case["root_cause"]


def right(case, code) -> bool:
    return code == case["code"] or code in case.get("also", ())


@pytest.mark.parametrize("name", LIVE)
def test_message_alone(name):
    """From the bare message of any version: the right code, or nothing if the message tells too little."""
    case = CASES[name]
    found = {version: explain(message) for version, message in case["messages"].items()}
    wrong = {
        v: str(e)
        for v, e in found.items()
        if e is not None
        and not right(case, e.code)
        and e.code not in {*GENERAL, *case.get("alone", ())}
        and not e.guess
    }
    assert not wrong, case["root_cause"]


@pytest.fixture(scope="module")
def outcomes():
    """All snippets of one device count run in one process, each in a namespace of its own."""
    results = {}
    for devices in sorted({CASES[name]["devices"] for name in LIVE}):
        jobs = [{"key": name, "source": CASES[name]["source"]} for name in LIVE if CASES[name]["devices"] == devices]
        results.update(run_jobs("run_many.py", jobs, devices=devices, timeout=900))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_live(name, outcomes):
    """Really run it on this JAX: the right code. A version that does not fail says nothing."""
    case, result = CASES[name], outcomes[name]
    assert result.get("outcome") != "died", result
    if result["type"] is None or importlib.metadata.version("jax") in case.get("not_on", ()):
        pytest.skip("this version of JAX does not fail here")
    explanation = result["explanation"]
    assert right(case, explanation and explanation["code"]), f"{case['root_cause']}\n{result['message']}"
