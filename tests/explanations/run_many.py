"""Run many snippets in this process, each in a namespace of its own, and write how each is explained.

    python run_many.py JOBS.json OUTPUT.json        JOBS: [{"key": …, "source": …}, …]

JAX's settings, the environment and the folder are put back after each. Of a snippet that runs, "type" is None.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
import tempfile
import warnings

from run_snippet import explanation_as_dict


def main(jobs_path: str, output_path: str) -> None:
    with open(jobs_path, encoding="utf-8") as file:
        jobs = json.load(file)
    results = {}
    for number, job in enumerate(jobs):
        with contextlib.redirect_stdout(io.StringIO()), kept_settings():
            results[job["key"]] = run_job(f"case{number}.py", job["source"])
        with open(output_path, "w", encoding="utf-8") as file:  # a snippet may end the process
            json.dump(results, file, default=str)


def run_job(name: str, source: str):
    from jaxpar_magic.explanations import explain
    from jaxpar_magic.explanations.context import Failure

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    result = {"type": None, "message": "", "explanation": None}
    warned = []

    def show(message, category, filename, lineno, file=None, line=None):
        warned.append(
            explanation_as_dict(explain(Failure.from_warning(str(message), category, filename, lineno, line)))
        )

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})
        except Exception as error:
            explanation = explanation_as_dict(explain(error))
            result = {"type": type(error).__name__, "message": str(error)[:3000], "explanation": explanation}
    return {**result, "warnings": [explanation for explanation in warned if explanation]}


@contextlib.contextmanager
def kept_settings():
    """A folder of its own with what some pages read; settings and variables as they were, afterwards."""
    import jax

    environment, folder, settings = dict(os.environ), os.getcwd(), dict(jax.config.values)
    with tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        with open("data.txt", "w", encoding="utf-8") as file:
            file.write("1 2\n3 4\n")
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for name, value in settings.items():
                # the number of devices cannot be put back by a setting
                if jax.config.values.get(name) != value and name != "jax_num_cpu_devices":
                    with contextlib.suppress(Exception):
                        jax.config.update(name, value)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
