"""Trees of containers: structures that differ, leaves that do not fit, classes registered twice."""

from __future__ import annotations

import ast
import re

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, listed
from ._lines import called_with

_WHY = (
    "tree.map goes through several trees in step, so they must be built the same way: the same containers, the same "
    "keys, "
    "the same lengths."
)


def _trees(failure: Failure) -> tuple[str, str]:
    """Source of the first tree and of the one that differs, at the user's line."""
    call = called_with(failure, "map", "tree_map", "tree_multimap", "map_with_path", "tree_map_with_path")
    if call is not None and len(call.args) >= 3:
        return call.args[1], call.args[2]
    return "a", "b"


@rule(
    "JPX1151",
    "tree-structures-differ",
    types=("ValueError",),
    clues=("pytree structure error", "mismatch", "Mismatch", "Expected "),
)
def tree_structures_differ(failure: Failure) -> Finding | None:
    new = failure.search(r"^pytree structure error: (.*?) at key path\s+(.*)")
    keys = failure.search(r"^Dict key mismatch; expected keys: \[(.*?)\]; (dict|present keys): (.*)", re.S)
    length = failure.search(r"^(List|Tuple|Named tuple) arity mismatch: (\d+) != (\d+)")
    kind = failure.search(
        r"^Expected (dict|list|tuple|named tuple|None|OrderedDict|defaultdict), got "
        r"([(\[{]|None\b|-?\d|Traced<|\w*Tracer\(|Array\(|\w+\(\w+=)",
        re.S,
    )
    node = failure.search(
        r"^(Custom node type mismatch|Named tuple type mismatch|Mismatch custom node data)[:;] ?(.*)", re.S
    )
    if not (new or keys or length or kind or node):
        return None
    if new is not None:
        # vmap and others print the same for in_axes: they name themselves
        if not re.match(r"(tree_map|tree\b|pytree|tree\.map|flatten)", new.group(2).strip()):
            return None
        return _new_words(failure, new)
    first, second = _trees(failure)
    # the words are short: without JAX's traceback they could be anybody's
    guess = not failure.frames and kind is not None and failure.from_jax is not True
    if (
        failure.frames
        and failure.from_jax is not True
        and called_with(failure, "map", "tree_map", "tree_multimap") is None
    ):
        return None
    if keys is not None:
        have = set(re.findall(r"'([^']*)'", keys.group(1)))
        got = set(re.findall(r"'([^']*)'" if keys.group(2) == "present keys" else r"'([^']*)':", keys.group(3)))
        missing, more = sorted(have - got), sorted(got - have)
        return _keys_differ(first, second, missing, more, "")
    if length is not None:
        return _lengths_differ(first, second, length.group(1).lower(), int(length.group(3)), int(length.group(2)), "")
    if kind is not None:
        printed = failure.text[kind.start(2) :].split("\n")[0]
        return _kinds_differ(first, second, kind.group(1), _kind_of(printed), "", guess)
    assert node is not None
    return Finding(
        what=f"The trees `{first}` and `{second}` differ: at one place they hold objects of different classes or "
        "with different "
        f"settings ({' '.join(node.group(2).split())[:100]}).",
        why=_WHY,
        fixes=[_look(first, second)],
        facts={"difference": node.group(1)},
    )


def _kind_of(printed: str) -> str:
    """Container of a printed value: "(1, 2)" is a tuple."""
    if re.match(r"\w+\(\w+=", printed):
        return printed.partition("(")[0]
    return {"(": "tuple", "[": "list", "{": "dict"}.get(printed[:1], "leaf" if printed != "None" else "None")


def _new_words(failure: Failure, match: re.Match[str]) -> Finding | None:
    first, second = _trees(failure)
    place = re.sub(r"^(tree_map tree|tree_map|pytree|tree)", "", match.group(2).strip())
    at = f" at {place}" if place else ""
    kinds = failure.findall(r"<class '([^']+)'>")
    lengths = failure.search(
        r"subtree of type (\w+) of length (\d+), but the full pytree has a subtree of the same type but of length (\d+)"
    )
    if lengths is not None:
        return _lengths_differ(first, second, lengths.group(1), int(lengths.group(2)), int(lengths.group(3)), at)
    children = failure.search(
        r"with (\d+) child keys\s*\n\s*(.*?)\n.*?same type but with (\d+) child keys\s*\n\s*(.*?)\n", re.S
    )
    if children is not None:
        have, got = (set(re.findall(r"[^\s\[\]']+", children.group(n))) for n in (2, 4))
        return _keys_differ(first, second, sorted(have - got), sorted(got - have), at)
    if "different types" in match.group(1) and len(kinds) >= 2:
        names = {"NoneType": "None", "PytreeLeaf": "leaf"}
        left, right = (names.get(k.group(1).rpartition(".")[2], k.group(1).rpartition(".")[2]) for k in kinds[:2])
        return _kinds_differ(first, second, left, right, at, False)
    detail = failure.search(r"the full pytree has (.*)")
    return Finding(
        what=f"The trees `{first}` and `{second}` differ{at}: {match.group(1)}.",
        why=_WHY,
        fixes=[_look(first, second)],
        facts={
            "difference": match.group(1),
            "place": place,
            "detail": detail.group(1)[:100] if detail is not None else None,
        },
    )


def _look(first: str, second: str) -> Fix:
    return Fix("See both structures", f"print(jax.tree.structure({first}))\nprint(jax.tree.structure({second}))")


def _keys_differ(first: str, second: str, missing: list[str], more: list[str], at: str) -> Finding:
    parts = []
    if missing:
        parts.append(f"`{second}` lacks {listed([repr(k) for k in missing])}")
    if more:
        parts.append(f"`{second}` has {listed([repr(k) for k in more])} besides")
    fixes = []
    simple = re.fullmatch(r"[A-Za-z_]\w*", second)
    if not at and more and not missing:
        name = second if simple else "b"
        fixes.append(
            Fix("Keep only the keys of the first", f"{name} = {{key: {_in(second)}[key] for key in {_in(first)}}}")
        )
    elif not at and missing and not more:
        name = first if re.fullmatch(r"[A-Za-z_]\w*", first) else "a"
        fixes.append(
            Fix("Keep only the keys of the second", f"{name} = {{key: {_in(first)}[key] for key in {_in(second)}}}")
        )
        other = second if simple else "b"
        fixes.append(
            Fix(
                "Or give the second the missing ones, as zeros",
                f"{other} = {{**jax.tree.map(jnp.zeros_like, {first}), **{_in(second)}}}",
            )
        )
    fixes.append(_look(first, second))
    return Finding(
        what=f"The dicts of `{first}` and `{second}` have different keys{at}: {listed(parts) or 'they do not agree'}.",
        why=_WHY,
        fixes=fixes[:3],
        facts={"missing": tuple(missing), "more": tuple(more)},
    )


def _in(source: str) -> str:
    return source if re.fullmatch(r"[\w.\[\]'\"]+", source) else f"({source})"


def _lengths_differ(first: str, second: str, kind: str, wanted: int, got: int, at: str) -> Finding:
    fixes = []
    if not at and got > wanted:
        fixes.append(
            Fix(
                f"Use the first {wanted} of the second",
                f"{second if second.isidentifier() else 'b'} = {_in(second)}[:{wanted}]",
            )
        )
    elif not at:
        fixes.append(
            Fix(f"Use the first {got} of the first", f"{first if first.isidentifier() else 'a'} = {_in(first)}[:{got}]")
        )
    return Finding(
        what=f"The {kind} in `{first}`{at} has {counted(wanted, 'item')}, the one in `{second}` has {got}.",
        why=_WHY,
        fixes=[*fixes, _look(first, second)],
        facts={"lengths": (wanted, got)},
    )


def _kinds_differ(first: str, second: str, wanted: str, got: str, at: str, guess: bool) -> Finding:
    words = {"leaf": "an array or a number", "None": "None", "named tuple": "a NamedTuple"}
    left, right = words.get(wanted, f"a {wanted}"), words.get(got, f"a {got}")
    fixes = []
    name = second if second.isidentifier() else "b"
    if wanted == "None" or got == "None":
        fixes.append(
            Fix(
                "Let None count as a leaf, and say what to do with it",
                f"jax.tree.map(lambda a, b: None if a is None or b is None else f(a, b), {first}, {second}, "
                "is_leaf=lambda v: v is None)",
            )
        )
    elif got == "tuple" and wanted != "tuple" and not at and re.search(r"grad", second):
        fixes.append(
            Fix(
                "With several argnums grad gives one gradient for each: take the one that belongs to the first",
                f"{name} = {second}[0]",
            )
        )
    elif got in ("tuple", "list") and wanted in ("list", "tuple") and not at:
        fixes.append(Fix(f"Make a {wanted} of the second", f"{name} = {wanted}({second})"))
    elif got in ("tuple", "list") and wanted not in ("dict", "leaf") and not at:
        kind = wanted if wanted.isidentifier() else f"type({_in(first)})"
        fixes.append(Fix(f"Make {left} of the second", f"{name} = {kind}(*{second})"))
    elif got == "leaf" and not at:
        fixes.append(
            Fix(
                "If it is one value for all leaves, let the function see it from its surroundings",
                f"jax.tree.map(lambda a: f(a, {second}), {first})",
            )
        )
    fixes.append(_look(first, second))
    return Finding(
        what=f"The trees `{first}` and `{second}` differ{at}: the first has {left} where the second has {right}.",
        why=_WHY + " A list is not a tuple, and a NamedTuple is neither.",
        fixes=fixes,
        facts={"first": wanted, "second": got},
        guess=guess,
    )


@rule("JPX1152", "number-of-leaves-differs", types=("ValueError",), clues=("leaves for PyTreeDef",))
def number_of_leaves_differs(failure: Failure) -> Finding | None:
    match = failure.search(r"Too (many|few) leaves for PyTreeDef; expected (\d+)(?:, got (\d+))?")
    if match is None:
        return None
    call = called_with(failure, "unflatten", "tree_unflatten")
    treedef, leaves = "treedef", "leaves"
    if call is not None and len(call.args) == 2:
        treedef, leaves = call.args
    elif call is not None and len(call.args) == 1:
        treedef, leaves = call.function.rpartition(".")[0], call.args[0]
    flat = next(
        (c for n in failure.definitions for c in failure.defining_calls(n) if c.name in ("flatten", "tree_flatten")),
        None,
    )
    tree = flat.args[0] if flat is not None and flat.args else "tree"
    structure = treedef if treedef.isidentifier() else "treedef"
    variable = failure.variable(leaves)
    want = int(match.group(2))
    got = int(match.group(3)) if match.group(3) else variable.length if variable is not None else None
    have = f"{got}" if got is not None else "more" if match.group(1) == "many" else "fewer"
    return Finding(
        what=f"The structure has {counted(want, 'leaf').replace('leafs', 'leaves')}, and `{leaves}` has {have}.",
        why="unflatten fills a structure with exactly as many leaves as it was flattened to. None is no leaf: it "
        "belongs to the "
        "structure.",
        fixes=[
            Fix(
                "Change each leaf of the tree, without taking it apart yourself",
                f"new_tree = jax.tree.map(lambda leaf: leaf * 2, {tree})",
            ),
            Fix(
                "Or take leaves and structure from the same tree",
                f"leaves, {structure} = jax.tree.flatten({tree})\n"
                f"tree = jax.tree.unflatten({structure}, [leaf * 2 for leaf in leaves])",
            ),
        ],
        facts={"expected": want, "got": got},
    )


@rule(
    "JPX1153",
    "class-registered-twice",
    types=("ValueError",),
    clues=("Duplicate custom PyTreeDef", "Duplicate custom dataclass"),
)
def class_registered_twice(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Duplicate custom (?:PyTreeDef|dataclass PyTreeDef) type registration for <class '([^']+)'>"
    )
    if match is None:
        return None
    name = match.group(1).rpartition(".")[2]
    builtin = match.group(1) in (
        "dict",
        "list",
        "tuple",
        "collections.OrderedDict",
        "collections.defaultdict",
        "NoneType",
    )
    call = next(
        (c for c in (failure.user.calls if failure.user is not None else ()) if c.name.startswith("register")), None
    )
    if builtin:
        what = f"{name} is known to JAX already, and cannot be registered again."
        fixes = [
            Fix(
                "Register a class of your own instead",
                f"class My{name.capitalize()}({match.group(1)}):\n    "
                f"pass\n\njax.tree_util.register_pytree_node(My{name.capitalize()}, flatten, unflatten)",
            )
        ]
    else:
        what = (
            f"The class {name} is registered as a pytree already: the same line ran before, or two libraries "
            "register it."
        )
        source = (
            call.source if call is not None and "\n" not in call.source else f"jax.tree_util.register_dataclass({name})"
        )
        fixes = [
            Fix(
                "Define the class and register it in one cell: running it again makes a new class, registered once",
                f"class {name}:\n    ...  # as before\n\n{source}",
            ),
            Fix(
                "Or let a second registration pass",
                f"try:\n    {source}\nexcept ValueError:\n    pass  # registered already",
            ),
        ]
    return Finding(
        what=what,
        why="JAX keeps one entry for each class for the life of the process.",
        fixes=fixes,
        facts={"class": match.group(1)},
    )


@rule(
    "JPX1154",
    "dict-keys-cannot-be-sorted",
    types=("ValueError", "TypeError"),
    clues=("sorting pytree dictionary keys",),
)
def dict_keys_cannot_be_sorted(failure: Failure) -> Finding | None:
    if not failure.search("Comparator raised exception while sorting pytree dictionary keys"):
        return None
    dicts = [v.name for v in failure.variables.values() if v.type == "dict" and v.name.isidentifier()]
    name = dicts[0] if len(dicts) == 1 else "tree"
    return Finding(
        what=f"The keys of a dict{f' ({name})' if dicts else ''} cannot be sorted: they are of different kinds, such "
        "as numbers and strings.",
        why="JAX puts the items of a dict into the order of its keys, so the keys must be comparable with each other.",
        fixes=[Fix("Use keys of one kind", f"{name} = {{str(key): value for key, value in {name}.items()}}")],
        facts={},
    )


@rule(
    "JPX1155", "fields-of-a-registered-class", types=("ValueError", "TypeError"), clues=("data_fields and meta_fields",)
)
def fields_of_a_registered_class(failure: Failure) -> Finding | None:
    names = failure.search(
        r"data_fields and meta_fields must include all dataclass fields with ``init=True`` and only them\. "
        r"(Unexpected|Missing) fields: \{([^}]*)\}"
    )
    plain = failure.search(
        r"data_fields and meta_fields are required when nodetype is not a dataclass\. Got nodetype=<class '([^']+)'>"
    )
    both = failure.search(r"data_fields and meta_fields must both be specified when either is specified")
    call = called_with(failure, "register_dataclass")
    cls = (
        call.args[0]
        if call is not None and call.args
        else plain.group(1).rpartition(".")[2]
        if plain is not None
        else "State"
    )
    if names is not None:
        fields = re.findall(r"'([^']+)'", names.group(2))
        word = "does not have" if names.group(1) == "Unexpected" else "has, and that are not named"
        what = (
            f"register_dataclass: the class {cls} "
            f"{'does not have the fields' if word == 'does not have' else 'has fields that are not named:'} "
            f"{listed(fields)}."
        )
    elif both is not None:
        what = "register_dataclass got only one of data_fields and meta_fields."
    elif plain is not None:
        what = f"register_dataclass: {cls} is no dataclass, so its fields must be named."
    else:
        return None
    data, meta = _fields(call, "data_fields"), _fields(call, "meta_fields")
    if names is not None and names.group(1) == "Unexpected":
        data, meta = [n for n in data if n not in fields], [n for n in meta if n not in fields]
    elif names is not None:
        data += fields
    elif not data and not meta:
        data, meta = ["x"], ["name"]
    return Finding(
        what=what,
        why="data_fields are traced (arrays), meta_fields are compile-time constants; every field of the class is "
        "one or the other.",
        fixes=[
            Fix(
                "If all fields are arrays, let JAX find them",
                "from dataclasses import dataclass\n\n@jax.tree_util.register_dataclass\n@dataclass\nclass "
                f"{cls if cls.isidentifier() else 'State'}:\n    ...  # as before",
            ),
            Fix(
                "Or name every field once",
                f"jax.tree_util.register_dataclass({cls}, data_fields={data}, meta_fields={meta})",
            ),
        ],
        facts={"class": cls},
    )


def _fields(call: Call | None, keyword: str) -> list[str]:
    try:
        given = ast.literal_eval(call.keywords.get(keyword, "[]")) if call is not None else []
    except (ValueError, SyntaxError):
        return []
    return [str(name) for name in given]


@rule("JPX1156", "tree-transpose-structure", types=("TypeError",), clues=("Mismatch",))
def tree_transpose_structure(failure: Failure) -> Finding | None:
    match = failure.search(r"^Mismatch\s+PyTreeDef\((.*)\)\s+!=\s+PyTreeDef\((.*)\)$")
    if match is None:
        return None
    have, want = match.groups()
    call = failure.call("tree_transpose", "transpose")
    tree = call.args[2] if call is not None and len(call.args) > 2 else "trees"
    return Finding(
        what=f"tree_transpose was told of the structure {want[:160]}, and the tree has {have[:160]}.",
        why="To turn a list of dicts into a dict of lists, all dicts must have the same keys: the structures given "
        "must be those of the outside and of each item.",
        fixes=[
            Fix("See the structure of each item", f"for item in {tree}:\n    print(jax.tree.structure(item))"),
            Fix(
                "Items of one structure can be stacked instead, which needs no structures",
                f"stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *{tree})",
                kind="sketch",
            ),
        ],
        facts={"structure": have, "expected": want},
    )
