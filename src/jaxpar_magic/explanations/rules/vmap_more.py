"""How in_axes and out_axes of vmap (and pmap) are written."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed
from ._lines import rewritten

_WHY = (
    "in_axes has one entry for each positional argument: the number of the axis to map, or None for an argument that "
    "is the "
    "same for all items. One number alone stands for all arguments."
)


def _entries(source: str | None) -> list[str] | None:
    """The entries of an in_axes tuple as written: "(0, None)" gives ["0", "None"]."""
    try:
        node = ast.parse(source or "", mode="eval").body
    except SyntaxError:
        return None
    return [ast.unparse(e) for e in node.elts] if isinstance(node, ast.Tuple | ast.List) else None


def _given(inner: Call, word: str) -> str | None:
    position = {"in_axes": 1, "out_axes": 2}[word]
    return inner.keywords.get(word) or (inner.args[position] if len(inner.args) > position else None)


def _with(inner: Call, word: str, value: str) -> str:
    """The source of `vmap(f, …)` with this in_axes or out_axes."""
    old = _given(inner, word)
    if old is not None and word in inner.keywords:
        return re.sub(rf"\b{word}\s*=\s*{re.escape(old)}", lambda _: f"{word}={value}", inner.source)
    arguments = list(inner.args)
    position = {"in_axes": 1, "out_axes": 2}[word]
    if len(arguments) > position:
        arguments[position] = value
    rest = [f"{k}={v}" for k, v in inner.keywords.items() if k != word]
    extra = [f"{word}={value}"] if len(inner.args) <= position else []
    return f"{inner.function}({', '.join([*arguments, *extra, *rest])})"


def _tuple(entries: list[str]) -> str:
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def _axes_for(failure: Failure, arguments: tuple[str, ...]) -> list[str]:
    """0 for arrays, None for numbers and whatever has no axis."""
    axes = []
    for position, source in enumerate(arguments):
        variable = failure.variable(source) or failure.variable(f"args[{position}]")
        number = re.fullmatch(r"-?[\d.]+(e-?\d+)?|True|False|None", source) is not None
        scalar = variable is not None and (
            variable.shape == () or variable.type in ("int", "float", "bool", "NoneType")
        )
        axes.append("None" if number or scalar else "0")
    return axes


@rule("JPX0410", "in-axes-per-argument", types=("ValueError",), clues=("len(in_axes)=",))
def in_axes_per_argument(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\b(vmap|pmap) in_axes must be an int, None, or a tuple of entries corresponding to the positional "
        r"arguments .*?"
        r"len\(in_axes\)=(\d+), len\(args\)=(\d+)",
        re.S,
    )
    if match is None:
        return None
    name, axes, arguments = match.group(1), int(match.group(2)), int(match.group(3))
    calls = failure.applied(name)
    fixes = []
    if calls is not None:
        outer, inner = calls
        entries = _entries(_given(inner, "in_axes"))
        if entries is not None and len(outer.args) == arguments:
            wanted = entries[:arguments] + _axes_for(failure, outer.args)[len(entries) :]
            new = _with(inner, "in_axes", _tuple(wanted))
            title = f"Give one entry for each of the {arguments} arguments"
            fixes.append(Fix(title, rewritten(failure, inner.source, new)))
    if not fixes:
        fixes.append(
            Fix(
                f"Give one entry for each of the {arguments} arguments",
                f"jax.{name}(f, in_axes={_tuple(['0'] * arguments)})",
            )
        )
    if axes > arguments:
        passed = [*(calls[0].args if calls is not None else ["x"] * arguments), *["value"] * (axes - arguments)]
        every = _tuple(["0"] * arguments + ["None"] * (axes - arguments))
        fixes.append(
            Fix(
                "Or pass the missing arguments by position: those given by name, or left at their default, have no "
                "entry",
                f"jax.{name}(f, in_axes={every})({', '.join(passed)})",
            )
        )
    return Finding(
        what=f"in_axes has {axes} {'entry' if axes == 1 else 'entries'}, and the function was called with "
        f"{counted(arguments, 'positional argument')}.",
        why=_WHY + " Arguments given by name are always mapped along axis 0.",
        fixes=fixes,
        facts={"entries": axes, "arguments": arguments},
    )


@rule(
    "JPX0411",
    "axes-built-unlike-the-argument",
    types=("ValueError",),
    clues=(
        "in_axes specification must be a tree prefix",
        "out_axes specification must be a tree prefix",
        "at key path\n    pmap",
    ),
)
def axes_built_unlike_the_argument(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\b(vmap|pmap) (in_axes|out_axes) specification must be a tree prefix of the corresponding value"
        r"|^pytree structure error: .*? at key path\n\s+(pmap) (in_axes|out_axes)\b"
    )
    if match is None:
        return None
    name, word = (g for g in match.groups() if g)
    inputs = word == "in_axes"
    of = "argument" if inputs else "result"
    old = failure.search(r"got specification (.*?) for value tree PyTreeDef\((.*)\)", re.S)
    details = _details(failure)
    keys = re.search(r"with \d+ child keys\s*\n\s*(.*?)\n.*?with \d+ child keys\s*\n\s*(.*?)\n", details, re.S)
    lengths = re.search(r"type (\w+) of length (\d+), but .* of length (\d+)", details, re.S)
    kinds = re.findall(r"<class '([^']+)'>", details)
    place = re.search(rf"{name} {word}(\[\d+\])", details)
    at = place.group(1) if place and inputs else ""
    calls = failure.applied(name)
    fixes: list[Fix] = []
    what = f"{word} is not built like the {of} it stands for."
    missing: list[str] = []
    if keys is not None:
        have, want = (re.findall(r"[^\s\[\]']+", keys.group(n)) for n in (1, 2))
        missing = [k for k in want if k not in have]
        more = [k for k in have if k not in want]
        what = (
            f"{word}{at} is a dict with the keys {listed([repr(k) for k in have])}, and the {of} has "
            f"{listed([repr(k) for k in want])}."
        )
        if missing and not more and calls is not None:
            fixes += _completed(failure, calls[1], word, have, missing)
    elif old is not None:
        what = f"{word}={_short(old.group(1))} is not built like the {of}s: {_short(old.group(2))}."
        have = re.findall(r"'(\w+)':", old.group(1))
        want = re.findall(r"'(\w+)':", old.group(2))
        missing = [k for k in want if k not in have]
        if have and missing and set(have) <= set(want) and calls is not None:
            what = (
                f"{word} is a dict with the keys {listed([repr(k) for k in have])}, and the {of} has "
                f"{listed([repr(k) for k in want])}."
            )
            fixes += _completed(failure, calls[1], word, have, missing)
    elif lengths is not None:
        what = (
            f"{word}{at} has {counted(int(lengths.group(2)), 'item')} ({lengths.group(1)}), and the {of} "
            f"{lengths.group(3)}."
        )
        if not inputs and calls is not None:
            new = _with(calls[1], word, _tuple(["0"] * int(lengths.group(3))))
            fixes.append(
                Fix(
                    f"Give one entry for each of the {lengths.group(3)} results",
                    rewritten(failure, calls[1].source, new),
                )
            )
    elif len(kinds) >= 2:
        a, b = (k.rpartition(".")[2].replace("PytreeLeaf", "single array") for k in kinds[:2])
        what = f"{word}{at} is a {a}, and the {of} is a {b}."
    simple = _with(calls[1], word, "0") if calls is not None else f"jax.{name}(f, {word}=0)"
    if not inputs:
        fixes.append(
            Fix(
                "Or one number for all results",
                rewritten(failure, calls[1].source, simple) if calls is not None else simple,
            )
        )
    elif calls is not None:
        outer, inner = calls
        new = _with(inner, word, _tuple(_outer_entries(_entries(_given(inner, word)), len(outer.args))))
        title = "Or one number for the whole argument: all its arrays are mapped along that axis"
        fixes.append(
            Fix(title if fixes else title.removeprefix("Or ").capitalize(), rewritten(failure, inner.source, new))
        )
    else:
        fixes.append(Fix("Give one number for the whole argument", simple))
    fixes[0] = Fix(re.sub(r"^Or (\w)", lambda m: m.group(1).upper(), fixes[0].title), fixes[0].code)
    return Finding(
        what=what,
        why=f"{word} may stop early (one number for a whole dict or tuple), but where it goes into the {of} it must "
        "have the "
        "same containers, keys and lengths.",
        fixes=fixes[:3],
        facts={"name": word, "missing": tuple(missing)},
    )


def _details(failure: Failure) -> str:
    """The mismatch that is meant: None against an array is none, but JAX lists it too."""
    parts = re.split(r"(?:^|\n)\s*pytree structure error: ", failure.text)[1:]
    real = [p for p in parts if "NoneType" not in p.split("but at the same")[0]]
    return (real or parts or [""])[0] + "\n"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def _completed(failure: Failure, inner: Call, word: str, have: list[str], missing: list[str]) -> list[Fix]:
    """in_axes with the missing keys of its dict: None, unless the written ones are all one number."""
    given = _given(inner, word)
    if given is None:
        return []
    match = re.search(r"\{[^{}]*['\"]" + re.escape(have[0]) + r"['\"]\s*:\s*([^,}]+)[^{}]*\}", given) if have else None
    if match is None:
        return []
    axis = match.group(1).strip()
    added = "".join(f", {key!r}: {axis}" for key in missing)
    new_dict = match.group().rstrip("}").rstrip().rstrip(",") + added + "}"
    new = _with(inner, word, given.replace(match.group(), new_dict))
    title = f"Give an axis (or None: the same for all) to {listed([repr(k) for k in missing])} as well"
    return [Fix(title, rewritten(failure, inner.source, new))]


def _outer_entries(entries: list[str] | None, count: int) -> list[str]:
    if entries is None or len(entries) != count:
        return ["0"] * count
    return [entry if re.fullmatch(r"-?\d+|None", entry) else "0" for entry in entries]


@rule(
    "JPX0412",
    "nothing-to-map",
    types=("ValueError",),
    clues=("at least one non-None value in in_axes", "must be passed at least one argument"),
)
def nothing_to_map(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\b(vmap) (must have at least one non-None value in in_axes|wrapped function must be passed at least "
        r"one argument)"
    )
    if match is None:
        return None
    name = match.group(1)
    calls = failure.applied(name)
    empty = "wrapped" in match.group(2)
    fixes = []
    if calls is not None and not empty:
        outer, inner = calls
        axes = _axes_for(failure, outer.args)
        first = next((i for i, axis in enumerate(axes) if axis == "0"), 0)
        entries = ["0" if i == first else "None" for i in range(max(len(outer.args), 1))]
        new = _with(inner, "in_axes", _tuple(entries))
        fixes.append(
            Fix(
                f"Map {outer.args[first] if outer.args else 'an argument'} along its axis 0",
                rewritten(failure, inner.source, new),
            )
        )
        if inner.args:
            fixes.append(
                Fix(
                    f"Or call the function without {name}, for one result",
                    f"{_callee(inner.args[0])}({', '.join(outer.args)})",
                )
            )
    elif empty:
        function = calls[1].args[0] if calls is not None and calls[1].args else "f"
        fixes.append(
            Fix(
                "Map it over numbers or keys that you make for it",
                f"jax.{name}(lambda i: {_callee(function)}())(jnp.arange(10))",
            )
        )
    if not fixes:
        fixes.append(Fix("Map at least one argument", f"jax.{name}(f, in_axes=(0, None))(xs, shared)"))
    what = (
        f"{name} got no array to map over."
        if empty
        else f"in_axes is None for every argument, so {name} has nothing to map over."
    )
    return Finding(
        what=what,
        why=f"{name} calls the function once for each item of the mapped axis. Without one it does not know how many "
        "items there are.",
        fixes=fixes,
        facts={"transformation": name},
    )


def _callee(source: str) -> str:
    return f"({source})" if source.startswith("lambda") else source


@rule(
    "JPX0413",
    "out-axes-none-of-a-mapped-result",
    types=("ValueError",),
    clues=("out_axes, got axis spec", "out_axes is None", "but out_axes is", "got axis spec None"),
)
def out_axes_none_of_a_mapped_result(failure: Failure) -> Finding | None:
    match = failure.search(
        r"at (vmap|pmap) out_axes(\S*), got axis spec (\w+) but output was batched on axis (\d+)"
        r"|(vmap|pmap) has mapped output \(?.*?\)? but out_axes is (None)"
    )
    if match is None:
        return None
    name, place = match.group(1) or match.group(5), match.group(2) or ""
    calls = failure.applied(name)
    fixes = []
    index = re.fullmatch(r"\[(\d+)\]", place)
    if calls is not None:
        inner = calls[1]
        entries = _entries(_given(inner, "out_axes"))
        value = "0"
        if entries is not None and index is not None and int(index.group(1)) < len(entries):
            entries[int(index.group(1))] = "0"
            value = _tuple(entries)
        new = _with(inner, "out_axes", value)
        fixes.append(Fix("Let the results of all items be stacked along axis 0", rewritten(failure, inner.source, new)))
    else:
        fixes.append(Fix("Let the results of all items be stacked along axis 0", f"jax.{name}(f, out_axes=0)"))
    fixes.append(
        Fix("If one of the results is enough, take it afterwards", f"result = jax.{name}(f, out_axes=0)(xs)[0]")
    )
    return Finding(
        what=f"out_axes{place}=None says that the result is the same for all items, but it depends on the mapped "
        "input.",
        why="out_axes says where the mapped axis goes in the result. None is for results that no mapped argument "
        "enters.",
        fixes=fixes,
        facts={"place": place, "transformation": name},
    )


@rule(
    "JPX0414",
    "out-axes-beyond-the-result",
    types=("ValueError",),
    clues=("is out of bounds for array of dimension",),
    priority=10,
)
def out_axes_beyond_the_result(failure: Failure) -> Finding | None:
    match = failure.search(r"^axis (-?\d+) is out of bounds for array of dimension (\d+)")
    if match is None or failure.is_a("AxisError"):
        return None
    axis, rank = match.group(1), int(match.group(2))
    for name in ("vmap", "pmap"):
        calls = failure.applied(name)
        given = _given(calls[1], "out_axes") if calls is not None else None
        if calls is None or given is None or axis not in re.findall(r"-?\d+", given):
            continue
        value = re.sub(rf"(?<![\d-]){re.escape(axis)}(?!\d)", "0", given)
        new = _with(calls[1], "out_axes", value)
        last = _with(calls[1], "out_axes", re.sub(rf"(?<![\d-]){re.escape(axis)}(?!\d)", str(rank - 1), given))
        fixes = [Fix("Put the mapped axis first", rewritten(failure, calls[1].source, new))]
        if rank > 1:
            fixes.append(Fix("Or last", rewritten(failure, calls[1].source, last)))
        return Finding(
            what=f"out_axes={given} puts the mapped axis at place {axis}, and the result, with it, has "
            f"{counted(rank, 'axis').replace('axiss', 'axes')} "
            f"(places 0 to {rank - 1}).",
            why="The result of one item gets one more axis for the items; out_axes is the place of that axis in the "
            "whole.",
            fixes=fixes,
            facts={"axis": int(axis), "dimensions": rank},
        )
    return None


@rule(
    "JPX0415",
    "axes-are-numbers-or-none",
    types=("TypeError",),
    clues=("vmap in_axes must be an int", "vmap out_axes must be an int"),
)
def axes_are_numbers_or_none(failure: Failure) -> Finding | None:
    match = failure.search(r"\b(vmap) (in_axes|out_axes) must be an int, None, or .*?but got (.*?)\.?$", re.S)
    if match is None:
        return None
    name, word, got = match.groups()
    calls = failure.applied(name)
    given = _given(calls[1], word) if calls is not None else None
    code = f"jax.{name}(f, {word}=0)"
    if calls is not None and given is not None:
        value = re.sub(r"(?<![\w])(-?\d+)\.\d*", r"\1", given)
        value = "0" if value == given else value
        new = _with(calls[1], word, value)
        code = rewritten(failure, calls[1].source, new)
    return Finding(
        what=f"{word} of {name} is {_short(got)}; it takes whole numbers and None.",
        why="An entry is the number of the axis to map, counted from 0, or None for no axis. The name of the mapped "
        "axis goes into "
        "axis_name.",
        fixes=[
            Fix("Give the number of the axis", code),
            Fix("A name for the axis goes into axis_name", f"jax.{name}(f, {word}=0, axis_name='items')"),
        ],
        facts={"name": word, "got": _short(got)},
    )


@rule("JPX0416", "axis-size-differs", types=("ValueError",), clues=("the `axis_size` argument was",))
def axis_size_differs(failure: Failure) -> Finding | None:
    match = failure.search(r"\b(vmap|pmap) got inconsistent sizes .*?the `axis_size` argument was (\d+)", re.S)
    sizes = failure.findall(r"(?:had|axes of) size (\d+)")
    if match is None or not sizes:
        return None
    name, asked, have = match.group(1), int(match.group(2)), int(sizes[0].group(1))
    calls = failure.applied(name)
    code = f"jax.{name}(f)"
    if calls is not None:
        new = re.sub(r",\s*axis_size\s*=\s*[^,)]+", "", calls[1].source)
        code = rewritten(failure, calls[1].source, new)
    return Finding(
        what=f"axis_size={asked} was given to {name}, and the mapped arguments have {have} items.",
        why="The number of items follows from the mapped arguments. axis_size is for functions without any.",
        fixes=[Fix("Leave axis_size away", code)],
        facts={"axis_size": asked, "items": have},
    )
