"""The corpus with other names, numbers and nesting: the same code, with the new names and numbers."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pytest
from explanations.harness import AT_A_TIME, corpus, expected_codes, run_jobs
from explanations.mutants import (
    nested,
    new_names,
    new_sizes,
    renamed,
    resized,
    same_failure,
    with_names,
    with_sizes,
)
from explanations.test_corpus import fails_here, stored_failures

from jaxpar_magic.explanations import explain

# Names of users that are also words of JAX's messages.
WORDS = frozenset(["a", "body", "key", "leaves", "the", "step", "function", "axis", "shape", "f", "x"])
LIVE = 45  # cases, each in three variants


def _messages():
    seen = set()
    for name in sorted(expected_codes()):
        for version, failure in stored_failures(corpus()[name]):
            text = f"{failure.type_name}: {failure.text}"
            if text not in seen:
                seen.add(text)
                yield pytest.param(name, text, id=f"{name}-{version}")


@pytest.mark.parametrize(("name", "text"), _messages())
def test_message_with_other_numbers_and_names(name, text):
    original = explain(text)
    if original is None:
        pytest.skip("this message alone tells too little")
    snippet = corpus()[name]["snippet"]
    names = {old: new for old, new in new_names(snippet or "").items() if old not in WORDS}
    sizes = new_sizes(text)

    other = with_names(text, names)
    explanation = explain(other)
    assert explanation is not None and explanation.code == original.code, other
    assert with_names(explanation.what, {new: old for old, new in names.items()}) == original.what

    other = with_sizes(text, sizes)
    explanation = explain(other)
    assert explanation is not None and explanation.code == original.code, other
    back = with_sizes(explanation.what, {new: old for old, new in sizes.items()})
    assert re.sub(r"\d+", "", back) == re.sub(r"\d+", "", original.what)
    old_numbers = {str(n) for n in sizes} - set(re.findall(r"\d+", other))
    assert not old_numbers & set(re.findall(r"(?<![\w.])\d+(?![\w.])", explanation.what)), explanation.what


# -- snippets that run ---------------------------------------------------------------------------------

CHANGES = {"renamed": renamed, "resized": resized, "nested": nested}
# No part of the sample: they need a process of their own, or a file that holds them.
_ALONE = (
    r"multiprocessing|ProcessPool|distributed|os\.fork|sys\.exit|__file__|inspect\.|open\(|subprocess|environ"
    r"|import_module"
)


def sample() -> list[str]:
    """The same cases each time, of all families."""
    names = [
        name
        for name in expected_codes()
        if corpus()[name]["kind"] == "raise"
        and fails_here(corpus()[name])
        and not (corpus()[name]["env"] or {}).get("env")
        and not re.search(_ALONE, corpus()[name]["snippet"])
    ]
    return sorted(names, key=lambda name: crc32(name.encode()))[:LIVE]


@pytest.fixture(scope="module")
def live():
    """{case: {"original": result, "renamed": result, …}}, run in a few processes."""
    groups = defaultdict(list)
    for name in sample():
        source = corpus()[name]["snippet"]
        jobs = groups[(corpus()[name]["env"] or {}).get("devices") or 1]
        for change, make in {"original": lambda text: text, **CHANGES}.items():
            jobs.append({"key": json.dumps([name, change]), "source": make(source)})
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        parts = pool.map(lambda devices: run_jobs("run_many.py", groups[devices], devices=devices), groups)
        found: dict[str, dict] = defaultdict(dict)
        for part in parts:
            for key, result in part.items():
                name, change = json.loads(key)
                found[name][change] = result
    return found


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", sample())
def test_live(name, change, live):
    results = live[name]
    if not same_failure(results["original"], results[change]):
        pytest.skip(f"the change made it another failure: {results[change]['message'][:80]}")
    source = corpus()[name]["snippet"]
    explanation = results[change]["explanation"]
    assert explanation is not None and explanation["code"] in expected_codes()[name]
    assert explanation["where"] is not None
    shown = [explanation["what"], *map(str, explanation["facts"].values()), *(f["code"] for f in explanation["fixes"])]
    if change == "renamed":
        original = results["original"]["explanation"]
        names = new_names(source)
        back = with_names(explanation["what"], {new: old for old, new in names.items()})
        free = r"[\d.]+ [KMG]iB are free|\W"  # memory that is free changes by itself
        assert re.sub(free, "", back) == re.sub(free, "", original["what"])
        definitions = {old for old in names if len(old) > 2 and old not in WORDS and old not in original["why"]}
        for text in shown:
            code = re.sub(r"#.*", "", text)
            stale = {old for old in definitions if re.search(rf"(?<![\w.'\"]){re.escape(old)}(?![\w'\"=])", code)}
            stale -= set(re.findall(r"^(\w+) = ", code, re.M))  # a name that the fix makes
            general = {old for old in stale if re.search(rf"\b{old}\b", " ".join(explanation["why"].split()))}
            assert not stale - general, text
    if change == "resized":
        old = {n for n in map(int, re.findall(r"(?<![\w.])\d+(?![\w.])", source)) if n >= 4}
        new = set(map(int, re.findall(r"\d+", CHANGES[change](source) + results[change]["message"])))
        stale = {str(n) for n in old - new} & set(re.findall(r"(?<![\w.])\d+(?![\w.])", explanation["what"]))
        assert not stale, explanation["what"]


@pytest.mark.slow
def test_most_mutants_fail_in_the_same_way(live):
    """Else the generator, and not the rules, would be tested."""
    kept = {change: sum(same_failure(r["original"], r[change]) for r in live.values()) for change in CHANGES}
    assert kept["renamed"] >= 0.95 * len(live)
    assert kept["nested"] >= 0.8 * len(live) and kept["resized"] >= 0.5 * len(live), kept
