"""Run one snippet as a script and write what became of it, and how it is explained, as JSON.

    python run_snippet.py SNIPPET.py [OUTPUT.json]

The explanation is made in the process where the error happened, as in a user's session.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
import time
import warnings


def explanation_as_dict(explanation):
    if explanation is None:
        return None
    fields = {f.name: getattr(explanation, f.name) for f in dataclasses.fields(explanation) if f.name != "variables"}
    fields["where"] = dataclasses.asdict(explanation.where) if explanation.where else None
    fields["fixes"] = [dataclasses.asdict(fix) for fix in explanation.fixes]
    fields["facts"] = dict(explanation.facts)
    fields["variables"] = dict(explanation.variables)
    fields["card"] = str(explanation)
    return fields


def main(path: str, output: str | None) -> None:
    from jaxpar_magic.explanations import explain
    from jaxpar_magic.explanations.context import Failure

    seen = []

    def showwarning(message, category, filename, lineno, file=None, line=None):
        failure = Failure.from_warning(str(message), category, filename, lineno, line)
        seen.append((category.__name__, str(message), explanation_as_dict(explain(failure))))

    warnings.simplefilter("default")
    warnings.showwarning = showwarning
    result = {"outcome": "ran", "type": None, "message": None, "explanation": None}
    parent = os.getpid()
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        if os.getpid() != parent:
            raise
        start = time.perf_counter()
        explanation = explain(error)
        result = {
            "outcome": "raised",
            "type": type(error).__name__,
            "message": str(error)[:3000],
            "milliseconds": 1000 * (time.perf_counter() - start),
            "explanation": explanation_as_dict(explanation),
        }
    result["warnings"] = [{"category": c, "message": m, "explanation": e} for c, m, e in seen]
    text = json.dumps(result, indent=1, default=str)
    if output is None:
        print(text)
    else:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    snippet, result_file = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    sys.argv = [snippet]
    main(snippet, result_file)
