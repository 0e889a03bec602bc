"""Every fix of every page runs in the state that the page's failure left.

A fix is run as a cell of IPython, after its broken example has failed; or, being a rewritten line of a function,
in the place of that line. Commands for a shell and fixes that have to be filled in only have to compile: which
ones those are is a table here, so that none joins them unseen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from explanations.harness import AT_A_TIME, run_jobs

from jaxpar_magic import _jax
from jaxpar_magic.explanations import pages
from jaxpar_magic.explanations.context import Failure
from jaxpar_magic.explanations.explanation import Fix
from jaxpar_magic.explanations.wording import complete

PAGES_PER_PROCESS = 40
# At most this part of all fixes may hold names that the user has to fill in.
MOST_TO_FILL_IN = 0.15
# The fix of these is a pattern, and the page says why.
ONLY_TO_FILL_IN = {"JPX1202-0"}
# These pages run JAX's runtime or other processes, or need what an earlier page has used up.
NEEDS_A_PROCESS_OF_ITS_OWN = {
    "JPX0602-0",
    "JPX1402-0",
    "JPX1405-0",
    "JPX1414-0",
    "JPX1505-0",
    "JPX1506-0",
}


def broken_examples() -> dict[str, pages.Example]:
    return {
        f"{code}-{number}": example
        for code in pages.codes()
        for number, example in enumerate(pages.page(code).examples)
        if example.kind == "broken" and example.language == "python" and not example.aborts
    }


def _batches() -> list[tuple[int, dict[str, str], list[dict[str, Any]]]]:
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for key, example in broken_examples().items():
        if example.applies_to(_jax.jax_version()):
            group = (example.devices, json.dumps(dict(example.env or {}), sort_keys=True))
            groups[group].append({"key": key, "source": example.source, "warns": example.warns})
    return [
        (devices, json.loads(env), jobs[start : start + PAGES_PER_PROCESS])
        for (devices, env), jobs in groups.items()
        for start in range(0, len(jobs), PAGES_PER_PROCESS)
    ]


def _run(batch: tuple[int, dict[str, str], list[dict[str, Any]]]) -> dict[str, Any]:
    devices, env, jobs = batch
    results = run_jobs("run_fixes.py", jobs, devices=devices, env=env)
    return {key: {"fixes": [], **result} for key, result in results.items()}


@pytest.fixture(scope="module")
def results():
    """Page example -> its fixes and what became of them; fixes that failed are tried once more, alone."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = {key: result for part in pool.map(_run, _batches()) for key, result in part.items()}
        again = [
            (devices, env, [job])
            for devices, env, jobs in _batches()
            for job in jobs
            if found[job["key"]]["outcome"] == "died" or any(map(fails, found[job["key"]]["fixes"]))
        ]
        for part in pool.map(_run, again):
            found.update(part)
    return found


def fails(fix: dict[str, Any]) -> bool:
    return bool(fix.get("here")) and None not in fix.get("in place", [])


@pytest.mark.slow
def test_every_fix_runs(results):
    failed = {
        f"{key}: {fix['title']}": {"code": fix["code"], "alone": fix["here"], "in place": fix.get("in place")}
        for key, result in results.items()
        for fix in result["fixes"]
        if fails(fix)
    }
    assert not failed, json.dumps(failed, indent=1)


@pytest.mark.slow
def test_fixes_to_fill_in_are_few(results):
    """A fix that names what the user does not have is marked, and is not the only one of its card."""
    only = [
        key
        for key, result in results.items()
        if result["fixes"] and all(fix["fill_in"] for fix in result["fixes"]) and key not in ONLY_TO_FILL_IN
    ]
    assert not only
    fixes = [fix for result in results.values() for fix in result["fixes"]]
    assert sum(bool(fix["fill_in"]) for fix in fixes) <= MOST_TO_FILL_IN * len(fixes)


@pytest.mark.slow
def test_pages_are_explained_when_they_share_a_process(results):
    other = {key: r["outcome"] for key, r in results.items() if r["outcome"] != key.split("-")[0]}
    assert set(other) <= NEEDS_A_PROCESS_OF_ITS_OWN, other


@pytest.mark.parametrize(
    "command",
    [
        "!pip install -U jax",
        "%pip install jax",
        "  !rm -f lock",
        "files = !ls",
        "import os\nos.system('true')",
        "%%bash\ntrue",
        "import subprocess",
        "%conda install jax",
    ],
)
def test_the_runner_refuses_what_would_change_the_machine(command):
    from explanations.run_fixes import refuse_commands

    with pytest.raises(AssertionError, match="command for a shell"):
        refuse_commands(command)


def failure_with(*scope: str) -> Failure:
    return Failure("ValueError", ("ValueError",), "m", scope=frozenset(scope))


@pytest.mark.parametrize(
    ("code", "scope", "wanted", "gaps"),
    [
        ("y = jnp.sin(x)", ["x", "jnp"], "y = jnp.sin(x)", ()),
        ("y = jnp.sin(x)", ["x"], "import jax.numpy as jnp\ny = jnp.sin(x)", ()),
        ("y = jnp.sin(x)", ["jnp"], "y = jnp.sin(x)", ("x",)),
        ("x = x[:4]", ["y"], "x = x[:4]", ("x",)),
        ("x = 1\nx = x + 1", ["y"], "x = 1\nx = x + 1", ()),
        ("def f(x):\n    ...\n    return x", ["y"], "def f(x):\n    ...\n    return x", ("...",)),
        ("y[..., 0]", ["y"], "y[..., 0]", ()),
        ("[v for v in range(3)]", ["y"], "[v for v in range(3)]", ()),
        ("f = lambda x: x\nf(x)", ["y"], "f = lambda x: x\nf(x)", ("x",)),
        ("return y + z", ["y"], "return y + z", ("z",)),
        ("%jaxdevices 4", ["y"], "%jaxdevices 4", ()),
    ],
)
def test_a_fix_is_made_complete(code, scope, wanted, gaps):
    fix = complete(Fix("Do it", code), failure_with(*scope))
    assert fix.code == wanted and tuple(fix.fill_in) == gaps and fix.kind == "here"


def test_without_known_names_a_fix_stays_as_it_is():
    assert complete(Fix("Do it", "y = jnp.sin(x)"), failure_with()) == Fix("Do it", "y = jnp.sin(x)")


@pytest.mark.parametrize("code", ["!pip install jax", "%pip install jax", "export A=1\n!echo"])
def test_commands_for_a_shell_are_marked(code):
    assert complete(Fix("Do it", code), failure_with("x")).kind == "shell"
