"""How rules are chosen, and that one which fails disturbs nobody."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from conftest import run_python
from explanations.harness import families_text

from jaxpar_magic.document import Document
from jaxpar_magic.explanations import explain, registry
from jaxpar_magic.explanations.context import Failure
from jaxpar_magic.explanations.explanation import Explanation, Fix, Where
from jaxpar_magic.explanations.registry import Finding, rule

FAILURE = Failure("ValueError", ("ValueError", "Exception"), "the frobnicator has 3 legs")


@pytest.fixture
def own_rules(monkeypatch):
    """Only the rules that the test declares."""
    declared: list[registry.Rule] = []
    monkeypatch.setattr(registry, "_RULES", declared)
    monkeypatch.setattr(registry, "_families", dict)
    return declared


def finding(what: str = "w", **more) -> Finding:
    return Finding(what, "because", **more)


def test_the_index_of_families_is_current():
    """Else the first card takes longer. After a change of rules: harness.py --families writes it anew."""
    path = Path(registry.__file__).with_name("families.json")
    assert path.read_text(encoding="utf-8") == families_text()


def test_only_families_that_may_fit_are_imported():
    done = run_python(
        """
        import sys
        from jaxpar_magic import explain
        assert explain("ValueError: Number of devices 4 must be >= the product of mesh_shape (4, 2)").code == "JPX0203"
        print(*[m.rsplit(".", 1)[1] for m in sys.modules if m.startswith("jaxpar_magic.explanations.rules.")])
        """
    )
    loaded = done.stdout.split()
    assert "mesh_sharding" in loaded and "prng" not in loaded and len(loaded) < 8, loaded


def test_without_an_index_all_families_are_asked(monkeypatch):
    monkeypatch.setattr(registry, "_index", dict)
    assert len(registry.rules_for(FAILURE)) <= len(registry.rules())
    assert {r.code for r in registry.rules()} == {r.code for r in registry._RULES}


def test_the_highest_priority_counts(own_rules):
    rule("JPX9901", "general", clues=("frobnicator",))(lambda f: finding("general"))
    rule("JPX9902", "special", clues=("frobnicator",), priority=10)(lambda f: finding("special"))
    assert explain(FAILURE).code == "JPX9902"


def test_what_is_proven_comes_before_a_guess(own_rules):
    rule("JPX9901", "a-guess", priority=50)(lambda f: finding(guess=True))
    rule("JPX9902", "proven")(lambda f: finding())
    explanation = explain(FAILURE)
    assert explanation.code == "JPX9902" and not explanation.also


def test_two_guesses_name_each_other(own_rules):
    rule("JPX9901", "one-cause")(lambda f: finding(guess=True))
    rule("JPX9902", "another-cause")(lambda f: finding(guess=True))
    explanation = explain(FAILURE)
    assert explanation.guess and explanation.also == ("JPX9902 another-cause",)
    assert "a guess" in str(explanation) and "JPX9902 another-cause" in str(explanation)


def test_a_rule_that_fails_is_skipped_and_logged(own_rules, caplog):
    @rule("JPX9901", "broken")
    def broken(failure):
        raise RuntimeError("oops")

    rule("JPX9902", "good")(lambda f: finding())
    with caplog.at_level(logging.DEBUG, logger=registry.__name__):
        assert explain(FAILURE).code == "JPX9902"
    assert "JPX9901" in caplog.text and "oops" in caplog.text


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, True),
        ({"types": ("ValueError",)}, True),
        ({"types": ("Exception",)}, True),
        ({"types": ("TypeError",)}, False),
        ({"clues": ("frobnicator",)}, True),
        ({"clues": ("nothing", "legs")}, True),
        ({"clues": ("arms",)}, False),
        ({"types": ("TypeError",), "clues": ("frobnicator",)}, False),
    ],
)
def test_the_filter_before_a_rule(own_rules, more, asked):
    calls = []
    rule("JPX9901", "a-rule", **more)(calls.append)
    explain(FAILURE)
    assert bool(calls) is asked


def test_failures_of_others_reach_only_rules_that_ask_for_them(own_rules):
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise ValueError(3)\nValueError: 3'
    rule("JPX9901", "a-rule")(lambda f: finding())
    assert explain(text) is None
    rule("JPX9902", "b-rule", anywhere=True)(lambda f: finding())
    assert explain(text).code == "JPX9902"


def test_at_most_three_fixes(own_rules):
    rule("JPX9901", "a-rule")(lambda f: finding(fixes=[Fix(str(n), str(n)) for n in range(5)]))
    assert len(explain(FAILURE).fixes) == 3


@pytest.mark.parametrize(("code", "slug"), [("JPX1", "a"), ("jpx0001", "a"), ("JPX0001", "A b"), ("JPX0001", "")])
def test_bad_names_are_refused(code, slug):
    with pytest.raises(ValueError, match="needs a code"):
        rule(code, slug)


def test_explanation_is_data_and_shows_itself():
    explanation = Explanation(
        "JPX9901",
        "a-slug",
        "10 items, 1 device.",
        "Each needs one.",
        Where("cell In[3]", 2, "run", "y = f(x)"),
        [Fix("Vectorise", "y = jax.vmap(f)(x)")],
        "https://example.com",
        {"items": 10},
        variables={"x": "float32[10]"},
    )
    assert str(explanation).split("\n") == [
        "JPX9901 a-slug",
        "  What: 10 items, 1 device.",
        "  Why: Each needs one.",
        "  Where: cell In[3], line 2, in run",
        "",
        "      y = f(x)",
        "",
        "  Fix 1: Vectorise",
        "      y = jax.vmap(f)(x)",
        "",
        "  More: https://example.com",
    ]
    assert isinstance(explanation.describe(), Document)
    full = str(explanation.describe(brief=False))
    assert "float32[10]" in full and "items" in full
    assert "text/html" in explanation._repr_mimebundle_()
    with pytest.raises(AttributeError):
        explanation.code = "JPX0000"  # type: ignore[misc]


def test_explain_refuses_what_is_no_error():
    with pytest.raises(TypeError, match="error=int"):
        explain(3)  # type: ignore[arg-type]


def test_last_error_by_default():
    done = run_python(
        """
        import sys
        from jaxpar_magic import explain
        assert explain() is None
        sys.last_value = ValueError(
            "compiling computation that requires 10 logical devices, but only 1 XLA devices are available "
            "(num_replicas=10)"
        )
        print(explain().code)
        """
    )
    assert done.stdout.split() == ["JPX0104"]


def test_command_line():
    import subprocess
    import sys

    def run(*arguments, text=""):
        command = [sys.executable, "-m", "jaxpar_magic", *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)

    message = "ValueError: compiling computation that requires 10 logical devices, but only 1 XLA devices are available"
    done = run("explain", text=f"2026-01-01 10:00:00 ERROR {message}\n")
    assert done.returncode == 0 and done.stdout.startswith("JPX0104 pmap-needs-devices")
    assert run("explain", "--full", message).stdout.count("What this explanation rests on") == 1
    assert run("explain", "jpx0104").stdout.startswith("JPX0104 pmap-needs-devices")
    nothing = run("explain", text="all went well\n")
    assert nothing.returncode == 1 and nothing.stdout == "" and "Nothing known" in nothing.stderr
    assert run().returncode == 2
