"""Which rule explains which failure.

Codes are given out by family, so that families can be written side by side:

    01xx devices, pmap                 11xx static arguments, hashing, pytrees
    02xx mesh, sharding, specs         12xx donation, deleted buffers, memory
    03xx shard_map                     13xx installation, back ends, GPUs
    04xx vmap, mapped axes             14xx multi-process runtime
    05xx tracers and control flow      15xx Python multiprocessing, pickle, fork
    06xx leaked tracers, side effects  16xx gradients, custom derivatives
    07xx loops, cond, carries          17xx callbacks, debugging, NaN, checkify
    08xx shapes, indexing              18xx removed and renamed API
    09xx dtypes, x64, kinds of inputs  19xx compilation, performance
    10xx random keys                   20xx immutability
"""

from __future__ import annotations

import importlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from .context import Failure
from .explanation import Explanation, Fix
from .wording import complete

_log = logging.getLogger(__name__)

# A failure of these is never explained: somebody asked for it.
_SILENT = frozenset(["KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopExecution"])


@dataclass(frozen=True)
class Finding:
    """What a rule found out. The registry adds code, slug, place and link.

    Attributes
    ----------
    what:
        One or two sentences, with the numbers and names of this failure.
    why:
        The rule behind it, for someone who knows numpy and not JAX.
    fixes:
        One to three, the best first.
    facts:
        The numbers and names used, as plain values.
    guess:
        True if the facts fit this cause but do not prove it.
    """

    what: str
    why: str
    fixes: Sequence[Fix] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    guess: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule function with what the registry needs to know before it calls it."""

    code: str
    slug: str
    function: Callable[[Failure], Finding | None]
    types: frozenset[str]
    clues: tuple[str, ...]
    priority: int
    anywhere: bool

    def may_fit(self, failure: Failure) -> bool:
        """A cheap test, so that most rules are never called."""
        return _fits(self.types, self.clues, self.anywhere, failure)


def _fits(types: frozenset[str], clues: Sequence[str], anywhere: bool, failure: Failure) -> bool:
    if types and failure.types and types.isdisjoint(failure.types):
        return False
    if failure.from_jax is False and not anywhere:
        return False
    if not clues:
        return bool(failure.types)  # a text that names no type has to say something
    return any(clue in failure.text for clue in clues)


_RULES: list[Rule] = []


def rule(
    code: str,
    slug: str,
    *,
    types: Sequence[str] = (),
    clues: Sequence[str] = (),
    priority: int = 0,
    anywhere: bool = False,
) -> Callable[[Callable[[Failure], Finding | None]], Callable[[Failure], Finding | None]]:
    """Declare a function `rule(failure) -> Finding | None`.

    Parameters
    ----------
    code, slug:
        "JPX0104", "pmap-needs-devices". Several functions may find the same code; the slug is then the same.
    types:
        Short names of exception or warning types; a parent's name takes its children too. None: any type.
    clues:
        Strings of which at least one must stand in the message or its notes. None: the function is called
        for every failure of the types.
    priority:
        Of several findings the highest counts. 0 is normal; give a special case of another rule 10 or more.
    anywhere:
        Also for failures that JAX did not raise (a pickle error, numpy's reshape). The function must then
        make sure by itself that the failure has to do with JAX.
    """
    if not re.fullmatch(r"JPX\d{4}", code) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise ValueError(f"rule {code!r} {slug!r}: needs a code such as JPX0104 and a slug such as a-b-c")

    def declare(function: Callable[[Failure], Finding | None]) -> Callable[[Failure], Finding | None]:
        _RULES.append(Rule(code, slug, function, frozenset(types), tuple(clues), priority, anywhere))
        return function

    return declare


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, of all families."""
    for name in _families():
        _load(name)
    return tuple(sorted(_RULES, key=_order))


def rules_for(failure: Failure) -> list[Rule]:
    """The rules that may explain `failure`. Imports only families that may have one.

    Importing all of them would be most of the time from an error to the first card. What a family asks for
    stands in `families.json`; a family that is not there, or has changed since, is imported in any case.
    """
    for name, size in _families().items():
        known = _index().get(name, {"size": None, "rules": []})
        maybe = any(_fits(types, clues, where, failure) for types, clues, where in known["rules"])
        if maybe or known["size"] != size:
            _load(name)
    return sorted((r for r in _RULES if r.may_fit(failure)), key=_order)


def _order(rule: Rule) -> tuple[int, str]:
    return -rule.priority, rule.code


@cache
def _families() -> dict[str, int]:
    """Names of the families and the sizes of their source files in bytes."""
    folder = files(__package__).joinpath("rules")
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".py") and entry.name[0] != "_"]
    return {name[:-3]: len(folder.joinpath(name).read_bytes()) for name in sorted(names)}


@cache
def _load(name: str) -> None:
    try:
        importlib.import_module(f"{__package__}.rules.{name}")
    except Exception:
        _log.debug("rules of family %s cannot be loaded", name, exc_info=True)


@cache
def _index() -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(files(__package__).joinpath("families.json").read_text(encoding="utf-8"))
        for entry in index.values():
            entry["rules"] = [(frozenset(types), clues, anywhere) for types, clues, anywhere in entry["rules"]]
        return index
    except (OSError, ValueError):
        _log.debug("no index of families", exc_info=True)
        return {}


def make_index() -> dict[str, Any]:
    """What `families.json` should hold: {family: {"size": bytes, "rules": [[types, clues, anywhere], …]}}."""
    filters: dict[str, list[Any]] = {name: [] for name in _families()}
    for r in rules():
        entry = [sorted(r.types), list(r.clues), r.anywhere]
        table = filters[r.function.__module__.rsplit(".", 1)[-1]]
        if entry not in table:
            table.append(entry)
    return {name: {"size": _families()[name], "rules": sorted(filters[name], key=str)} for name in filters}


def explain_failure(failure: Failure) -> Explanation | None:
    """The best explanation of `failure`, or of what it was explicitly raised from; None if there is none."""
    for link in _chain(failure):
        found = _explain_one(link)
        if found is not None:
            where = found.where or failure.where
            item = found.item if found.item is not None else failure.item
            return replace(found, where=where, item=item)
    return None


def _chain(failure: Failure) -> Iterator[Failure]:
    current: Failure | None = failure
    while current is not None and _SILENT.isdisjoint(current.types):
        yield current
        current = current.cause


def _explain_one(failure: Failure) -> Explanation | None:
    findings: list[tuple[Rule, Finding]] = []
    for candidate in rules_for(failure):
        try:
            finding = candidate.function(failure)
        except Exception:
            _log.debug("rule %s %s failed", candidate.code, candidate.slug, exc_info=True)
            continue
        if finding is not None:
            findings.append((candidate, finding))
    if not findings:
        return None
    findings.sort(key=lambda found: (found[1].guess, -found[0].priority))
    best, finding = findings[0]
    also = {r.code: f"{r.code} {r.slug}" for r, _ in findings[1:] if r.code != best.code}
    return Explanation(
        code=best.code,
        slug=best.slug,
        what=finding.what,
        why=finding.why,
        where=failure.where,
        fixes=tuple(complete(fix, failure) for fix in finding.fixes[:3]),
        link=_link(best.code),
        facts=dict(finding.facts),
        guess=finding.guess,
        also=tuple(also.values()) if finding.guess else (),
        item=failure.item,
        variables={name: str(variable) for name, variable in failure.variables.items()},
    )


def _link(code: str) -> str | None:
    from .pages import page

    try:
        return page(code).link
    except Exception:
        _log.debug("no page for %s", code, exc_info=True)
        return None
