"""What the tests of explanations share: the corpus, the table of expected codes, snippets in processes.

`python tests/explanations/harness.py CASE …` runs cases of the corpus and prints how they are explained;
`python tests/explanations/harness.py --families` writes the index of families anew, after a change of rules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AT_A_TIME = 2  # processes, each with a JAX of its own


@cache
def corpus() -> dict[str, dict[str, Any]]:
    """Cases by id."""
    lines = (HERE / "data" / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@cache
def expected_codes() -> dict[str, list[str]]:
    """Case id -> codes that explain it, the best first."""
    table: dict[str, list[str]] = {}
    for path in sorted((HERE / "expected_codes").glob("*.json")):
        for case, codes in json.loads(path.read_text(encoding="utf-8")).items():
            table.setdefault(case, []).extend([codes] if isinstance(codes, str) else codes)
    return table


def run_snippet(
    source: str, *, devices: int = 1, env: dict[str, str] | None = None, timeout: float = 120
) -> dict[str, Any]:
    """Run `source` in a process of its own with `devices` CPU devices.

    The result has "outcome" ("ran", "raised", "died", "timeout"), and for the first two what
    run_snippet.py writes; "stderr" and "returncode" besides.
    """
    full = snippet_environment(devices, env)
    with tempfile.TemporaryDirectory() as folder:
        snippet, output = Path(folder, "case.py"), Path(folder, "result.json")
        snippet.write_text(source, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / "run_snippet.py"), str(snippet), str(output)],
                env=full,
                capture_output=True,
                text=True,
                timeout=timeout,
                cwd=folder,
            )
        except subprocess.TimeoutExpired as late:
            stderr = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else late.stderr
            return {"outcome": "timeout", "stderr": stderr or "", "warnings": [], "explanation": None}
        result = {"outcome": "died", "warnings": [], "explanation": None}
        if output.exists():
            result = json.loads(output.read_text(encoding="utf-8"))
        return {**result, "stderr": done.stderr, "stdout": done.stdout, "returncode": done.returncode}


def snippet_environment(devices: int, env: dict[str, str] | None = None) -> dict[str, str]:
    """Variables of a process with `devices` CPU devices; what the person who tests has set does not count."""
    full = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "JAXPAR_"))}
    return {**full, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", **(env or {})}


def run_jobs(
    script: str,
    jobs: list[dict[str, Any]],
    *,
    devices: int = 1,
    env: dict[str, str] | None = None,
    timeout: float = 300,
) -> dict[str, Any]:
    """Run jobs one after another in one process of `script`: {key: what it writes of that job}.

    A job that ends the process, or takes longer than `timeout` seconds, gets {"outcome": "died", "stderr": …}; those
    after it go on in another process.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder, "jobs.json"), Path(folder, "results.json")
        path.write_text(json.dumps(jobs), encoding="utf-8")
        try:
            stderr = subprocess.run(
                [sys.executable, str(HERE / script), str(path), str(output)],
                env=snippet_environment(devices, env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                cwd=folder,
            ).stderr
        except subprocess.TimeoutExpired:
            stderr = f"took longer than {timeout} s"
        results = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    left = [job for job in jobs if job["key"] not in results]
    if left:
        results[left[0]["key"]] = {
            "outcome": "died",
            "type": None,
            "message": "",
            "explanation": None,
            "stderr": stderr[-2000:],
        }
        if left[1:]:
            results.update(run_jobs(script, left[1:], devices=devices, env=env, timeout=timeout))
    return results


class Ahead:
    """Runs the work of the tests that pytest selected, a few at a time, ahead of the tests themselves."""

    def __init__(self, items: Iterable[Any], function: str, run: Callable[[str], Any]):
        self.pool = ThreadPoolExecutor(AT_A_TIME)
        self.futures: dict[str, Future[Any]] = {key: self.pool.submit(run, key) for key in selected(items, function)}

    def result(self, key: str) -> Any:
        return self.futures[key].result()

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def selected(items: Iterable[Any], function: str) -> list[str]:
    """The parameters with which pytest is going to call a test function of one parameter."""
    return [
        next(iter(item.callspec.params.values())) for item in items if getattr(item, "originalname", None) == function
    ]


def run_case(name: str) -> dict[str, Any]:
    """Run the snippet of a case as its `env` says."""
    case = corpus()[name]
    env = case["env"] or {}
    return run_snippet(
        case["snippet"],
        devices=env.get("devices") or 1,
        env=env.get("env"),
        timeout=2 * (env.get("timeout") or 60),
    )


def families_text() -> str:
    """What families.json should hold."""
    from jaxpar_magic.explanations.registry import make_index

    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in make_index().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(names: list[str]) -> None:
    from jaxpar_magic.explanations import explain, registry

    if names == ["--families"]:
        path = Path(registry.__file__).with_name("families.json")
        path.write_text(families_text(), encoding="utf-8")
        return
    for name in names:
        case = corpus()[name]
        print(f"== {name} ({case['kind']}), expected {expected_codes().get(name)}\n{case['root_cause']}\n")
        if not case["snippet"]:
            print(explain(case["text"]))
            continue
        print(case["snippet"])
        result = run_case(name)
        print(f"-- {result['outcome']}: {result.get('type')}: {result.get('message')}\n")
        for explanation in [result["explanation"], *(w["explanation"] for w in result["warnings"])]:
            if explanation:
                print(explanation["card"], "\n")
        if result["outcome"] == "died":
            print(result["stderr"], explain(result["stderr"]))


if __name__ == "__main__":
    main(sys.argv[1:])
