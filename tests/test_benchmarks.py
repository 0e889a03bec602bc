"""The benchmarks run, and all that they compare gives right results. Never times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_python

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


def run(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "run.py"), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def modules():
    """The suite's own modules; they import each other by their plain names, as in worker processes."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import report
        import variants
        import workloads

        yield {"report": report, "variants": variants, "workloads": workloads}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in ("report", "variants", "workloads"):
            sys.modules.pop(name, None)


def right(output: str) -> set[str]:
    """The variants that were found right, by all workloads together."""
    lines = [line.removeprefix("  right: ") for line in output.splitlines() if line.startswith("  right: ")]
    return {name for line in lines for name in line.split(", ")}


def test_every_variant_gives_right_results(modules):
    done = run("tiny", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    missing = set(modules["variants"].ALL) - right(done.stdout)
    # these are no part of what tests install
    assert all(f"{name:28} left out: not installed" in done.stdout for name in missing)
    assert missing <= {"parajax", "joblib"}


@pytest.mark.slow
def test_every_workload_gives_right_results(modules):
    done = run("--quick", "--variants", "auto")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  right: auto") == len(modules["workloads"].WORKLOADS)


def test_wrong_results_are_noticed():
    run_python(f"""
        import sys
        sys.path.insert(0, {str(BENCHMARKS)!r})
        import numpy as np, measure, variants
        context = measure.prepare(measure.Job("tiny", [], size=20, numpy_size=4))
        checker = measure.Checker(context)
        good = variants.build("jit(vmap)", context).call()
        checker.check("jit(vmap)", good)
        for bad in (good + 1, good[:-1], np.where(np.arange(20) == 7, np.nan, good)):
            try:
                checker.check("jit(vmap)", bad)
            except AssertionError:
                continue
            sys.exit("not noticed")
    """)


@pytest.mark.slow
def test_a_variant_that_kills_its_process_is_named_and_the_others_go_on(tmp_path):
    for file in BENCHMARKS.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    variants = tmp_path / "variants.py"
    text = variants.read_text(encoding="utf-8")
    assert "pmapped = jax.pmap(mapped)" in text
    variants.write_text(text.replace("pmapped = jax.pmap(mapped)", "import os; os.abort()"), encoding="utf-8")
    done = run_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import json, run
        from measure import Job
        found = run.measure_workload(Job("tiny", ["jit(vmap)", "pmap(vmap)", "loop"], 1, 20, 4))
        print(json.dumps([sorted(found["variants"]), found["failed"]]))
        """,
        timeout=300,
    )
    finished, failed = json.loads(done.stdout.splitlines()[-1])
    assert finished == ["jit(vmap)", "loop"]
    assert list(failed) == ["pmap(vmap)"] and "died" in failed["pmap(vmap)"]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "figures"), [("first", 2), ("cells", 6)])
def test_figures_of_explanations(part, figures):
    command = [sys.executable, str(BENCHMARKS / "explanations.py"), part, "1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sum(message["event"] == "figure" for message in told) == figures, done.stderr
    assert told[-1]["event"] == "done"


def made_up(auto: float, others: dict[str, float], scale: float = 1.0) -> dict:
    times = {"auto": auto, **others}
    variants = {name: {"first": 1.0, "warm": [0.1], "times": [t, t, 2 * t]} for name, t in times.items()}
    return {"variants": variants, "failed": {"joblib": "not installed"}, "length": 100, "scale": scale, "chose": "vmap"}


def test_report(modules, tmp_path):
    report = modules["report"]
    found = {
        "ode_rk4": made_up(0.010, {"jit(vmap)": 0.04, "shard_map(vmap)": 0.02, "loop": 0.05}, scale=10.0),
        "tiny": made_up(0.0004, {"jit(vmap)": 0.0001}),
    }
    facts = {"cores": 2, "machine": "any", "python": "3", "jax": "1", "numpy": "2"}
    text = report.markdown({"facts": facts, "found": found})
    line = next(line for line in text.splitlines() if line.startswith("| ode_rk4"))
    assert "20 ms, `shard_map(vmap)`" in line and "| 0.50 × |" in line and "| 500 ms |" in line
    aims = {row[0]: row[1:] for row in report.targets(found, {}, {}, {})}
    assert aims["`auto` / best by hand, the worst"] == ["at most 1.05 ×", "0.50 × (ode_rk4)", "yes"]
    assert aims["`auto` − best by hand, where that takes under 5 ms"] == ["at most 1 ms", "0.30 ms (tiny)", "yes"]
    assert "joblib on tiny (not installed)" in text

    pytest.importorskip("matplotlib")
    report.draw(found, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_readme_has_the_place_for_the_results(modules):
    report = modules["report"]
    text = report.README.read_text(encoding="utf-8")
    new = report.between_markers(text, "new")
    assert "\n\nnew\n\n" in new and new.split(report.BEGIN)[0] == text.split(report.BEGIN)[0]
    assert new.split(report.END)[1] == text.split(report.END)[1]
