"""Run many snippets in this process, each in a namespace of its own, and write how each is explained.

python run_many.py JOBS.json OUTPUT.json        JOBS: [{"key": …, "source": …}, …]
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import sys

from run_snippet import explanation_as_dict


def main(jobs_path: str, output_path: str) -> None:
    from jaxpar_magic.explanations import explain

    with open(jobs_path, encoding="utf-8") as file:
        jobs = json.load(file)
    results = {}
    for number, job in enumerate(jobs):
        name = f"case{number}.py"
        linecache.cache[name] = (len(job["source"]), None, job["source"].splitlines(keepends=True), name)
        result = {"type": None, "message": "", "explanation": None}
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(job["source"], name, "exec"), {"__name__": "__main__", "__file__": name})
            except Exception as error:
                explanation = explanation_as_dict(explain(error))
                result = {"type": type(error).__name__, "message": str(error)[:3000], "explanation": explanation}
        results[job["key"]] = result
        with open(output_path, "w", encoding="utf-8") as file:  # a snippet may end the process
            json.dump(results, file, default=str)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
