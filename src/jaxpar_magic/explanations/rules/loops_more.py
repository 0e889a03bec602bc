"""scan, map, while_loop, fori_loop, cond, switch: what they take (the carry itself is in loops.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..context import Call, Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import array_type, counted, listed, sizes
from ._lines import rewritten, shape_of, written_shape

_POSITIONS = {
    "scan": ("f", "init", "xs", "length"),
    "map": ("f", "xs"),
    "fori_loop": ("lower", "upper", "body_fun", "init_val"),
    "while_loop": ("cond_fun", "body_fun", "init_val"),
    "cond": ("pred", "true_fun", "false_fun"),
    "switch": ("index", "branches"),
    "associative_scan": ("fn", "elems"),
}
_EQUALLY_LONG = (
    "In step i scan hands item i (along axis 0) of every input to the function, so all inputs must be equally long."
)


def argument(call: Call | None, name: str) -> str | None:
    """Source of the parameter `name` in a call of a loop or a conditional."""
    if call is None:
        return None
    position = _POSITIONS[call.name].index(name)
    return call.args[position] if len(call.args) > position else call.keywords.get(name)


def replaced(failure: Failure, call: Call | None, old: str | None, new: str) -> str | None:
    """The user's statement with `new` instead of the argument `old` of the call."""
    if call is None or old is None or old not in call.source:
        return None
    head, _, tail = call.source.rpartition(old) if call.args and call.args[-1] == old else call.source.partition(old)
    return failure.rewrite(call.source, f"{head}{new}{tail}")


def _applied(function: str) -> str:
    return f"{function}(*args)" if re.fullmatch(r"[\w.]+", function) else f"({function})(*args)"


@rule("JPX0711", "scan-body-not-a-pair", types=("TypeError",), clues=("scan body output must be a pair",))
def scan_body_not_a_pair(failure: Failure) -> Finding | None:
    match = failure.search(r"scan body output must be a pair, got (.+)", re.S)
    if match is None:
        return None
    got = match.group(1).strip().rstrip(".")
    call = failure.call("scan")
    body = argument(call, "f")
    names = f"`{body}`" if body else "The function"
    fixes = []
    if body:
        new = f"lambda carry, x: ({_applied(body).replace('*args', 'carry, x')}, None)"
        code = replaced(failure, call, body, new)
        fixes.append(Fix("If it returns the new carry: return it with nothing beside it", code or new))
    else:
        fixes.append(Fix("Return the new carry, and None beside it", "def step(carry, x):\n    return carry + x, None"))
    fixes.append(
        Fix(
            "Or return a value to be collected from each step",
            "def step(carry, x):\n    new = carry + x\n    return new, new      # (carry for the next step, output)",
        )
    )
    return Finding(
        what=f"{names} returns {got[:120]}, and scan needs a pair: (new carry, output of this step).",
        why="scan passes the first value on to the next step and stacks the second ones into the result. None stands "
        "for no output.",
        fixes=fixes,
        facts={"got": got[:120], "body": body},
    )


@rule(
    "JPX0712",
    "scan-lengths-differ",
    types=("ValueError",),
    clues=("different leading axis sizes", "which disagrees with leading axis sizes"),
)
def scan_lengths_differ(failure: Failure) -> Finding | None:
    several = failure.search(r"\bscan got values with different leading axis sizes: ([\d, ]+)")
    given = failure.search(
        r"\bscan got `length` argument of (\d+) which disagrees with leading axis sizes \[([\d, ]*)\]"
    )
    call = failure.call("scan", "map")
    xs = argument(call, "xs")
    if several and xs is not None and _is_list(failure, xs):
        return _list_to_scan(failure, call, xs, sizes(several.group(1)))
    if several:
        lengths = sizes(several.group(1))
        shortest = min(lengths)
        what = f"scan steps through its inputs together, but they have {listed([str(n) for n in lengths])} items."
        fixes = [
            Fix(
                f"Cut all to the shortest ({shortest} items)",
                replaced(failure, call, xs, f"jax.tree.map(lambda a: a[:{shortest}], {xs})")
                or f"xs = jax.tree.map(lambda a: a[:{shortest}], xs)",
            ),
            Fix(
                "Or use what is the same for all steps from outside, not as input", "lambda c, x: (c + x * same, None)"
            ),
        ]
        facts: dict[str, object] = {"lengths": lengths}
    elif given:
        return _length_disagrees(failure, call, int(given.group(1)), sizes(given.group(2)))
    else:
        return None
    return Finding(
        what=what,
        why=_EQUALLY_LONG,
        fixes=fixes,
        facts=facts,
    )


def _is_list(failure: Failure, xs: str) -> bool:
    variable = failure.variable(xs)
    return xs.startswith("[") or (variable is not None and variable.type == "list")


def _list_to_scan(failure: Failure, call: Call | None, xs: str, lengths: tuple[int, ...]) -> Finding:
    """A list, which the user meant as the items; to JAX it is one item with several parts."""
    longest = max(lengths)
    loop = (
        "total = 0.0\nfor x in {}:  # with a function under jit for the work of one step\n    total = total + x.sum()"
    )
    padded = f"jax.numpy.stack([jax.numpy.pad(a, (0, {longest} - len(a))) for a in {xs}])"
    return Finding(
        what=f"scan got a list of arrays with {listed([str(n) for n in lengths])} items. It does not step from one "
        "array of the list to the next: it steps through all of them together, item by item.",
        why="scan goes along axis 0 of one array, or of every array in a list, tuple or dict, in step. Arrays of "
        "different lengths cannot be items of one array either: JAX has no ragged arrays.",
        fixes=[
            Fix(
                f"If each array is one step: fill them up to length {longest}, and stack them",
                replaced(failure, call, xs, padded) or padded,
            ),
            Fix("Or loop in Python: good for a few arrays", loop.format(xs)),
        ],
        facts={"lengths": lengths},
    )


@rule("JPX0712", "scan-lengths-differ", types=("AssertionError",))
def scan_length_asserted(failure: Failure) -> Finding | None:
    """JAX 0.8 checks a given length by an assertion without words: the user's line has to tell."""
    call = failure.call("scan")
    length, xs = argument(call, "length"), argument(call, "xs")
    if failure.message or not failure.from_jax or call is None or length is None or xs is None:
        return None
    variable = failure.variable(length)
    value = variable.value if variable is not None else length
    shape = shape_of(failure, xs) or written_shape(xs)
    if not shape or value is None or not value.isdigit() or int(value) == shape[0]:
        return None
    return _length_disagrees(failure, call, int(value), shape[:1])


def _length_disagrees(failure: Failure, call: Call | None, length: int, lengths: tuple[int, ...]) -> Finding:
    xs = argument(call, "xs")
    code = f"jax.tree.map(lambda a: a[:{length}], {xs or 'xs'})"
    without = re.sub(r",\s*length\s*=\s*[^,()]+", "", call.source) if call is not None else ""
    fixes = [
        Fix(
            "Leave length away: it follows from the inputs",
            (failure.rewrite(call.source, without) if call is not None and without != call.source else None)
            or "jax.lax.scan(lambda carry, x: (carry + x, carry), 0.0, jax.numpy.ones(3))  # step, start, inputs",
        )
    ]
    if all(n > length for n in lengths):
        fixes.append(Fix(f"Or scan the first {length} items", replaced(failure, call, xs, code) or code))
    return Finding(
        what=f"scan was told length={length}, but its inputs have {listed([str(n) for n in lengths])} items.",
        why=_EQUALLY_LONG,
        fixes=fixes,
        facts={"length": length, "lengths": lengths},
    )


@rule("JPX0713", "scan-without-length", types=("ValueError",), clues=("scan got no values to scan over",))
def scan_without_length(failure: Failure) -> Finding | None:
    if not failure.search(r"\bscan got no values to scan over and `length` not provided"):
        return None
    call = failure.call("scan")
    code = failure.rewrite(call.source, call.source[:-1] + ", length=10)") if call is not None else None
    xs = argument(call, "xs")
    given = f"xs={xs}" if xs else "no inputs"
    return Finding(
        what=f"scan was given {given} and no length: it does not know how many steps to make.",
        why="Without inputs to step through, the number of steps must be said.",
        fixes=[Fix("Say how many steps (10 here)", code or "jax.lax.scan(step, init, None, length=10)")],
        facts={"xs": xs},
    )


@rule(
    "JPX0714",
    "scan-over-a-number",
    types=("ValueError", "IndexError"),
    clues=("no leading axis to scan over", "tuple index out of range"),
)
def scan_over_a_number(failure: Failure) -> Finding | None:
    match = failure.search(r"\bscan got value with no leading axis to scan over: (.+?)\.?\s*$", re.S)
    call = failure.call("scan", "map")
    xs = argument(call, "xs")
    if match is None:
        # a zero-dimensional array: JAX asks for shape[0]
        variable = failure.variable(xs)
        scans = call is not None and failure.user is not None and call in failure.user.calls
        if not failure.is_a("IndexError") or not scans or variable is None or variable.shape != ():
            return None
        got = str(variable)
    else:
        got = match.group(1)[:80]
    name = call.name if call is not None else "scan"
    number = re.fullmatch(r"-?\d+", got)
    fixes = []
    if name == "scan" and number:
        code = None
        if call is not None and xs is not None:
            tail = f"None, length={xs})"
            code = failure.rewrite(call.source, re.sub(rf"(xs\s*=\s*)?{re.escape(xs)}\)$", tail, call.source))
        step = re.match(r"lambda \w+, (\w+): ?(.*)", call.args[0], re.S) if call is not None and call.args else None
        if step is None or re.search(rf"\b{step.group(1)}\b", step.group(2)) is None:  # else it needs inputs
            fixes.append(Fix(f"For {got} steps without inputs, give the length", code or f"None, length={got}"))
    if number:
        code = replaced(failure, call, xs, f"jax.numpy.arange({xs})")
        fixes.append(Fix("To get the step's number as input, scan over arange", code or f"jax.numpy.arange({got})"))
    else:
        array = f"jax.numpy.asarray({xs})"
        if xs is not None and re.match(r"\[\s*[{(]", xs):  # a list of dicts or tuples: one tree of arrays
            array = f"jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *{xs})"
        code = replaced(failure, call, xs, array)
        fixes.append(Fix("Make one array of the inputs, with an axis to step along", code or "jax.numpy.asarray(xs)"))
    return Finding(
        what=f"{name} steps along axis 0 of its inputs, and {'`' + xs + '`' if xs else 'the input'} is {got}: a single "
        "value without axes."
        if match is None or "," not in got
        else f"{name} steps along axis 0 of its inputs, but these have no axes: {got}. A list of numbers counts as "
        "separate inputs.",
        why="An int is no range: the inputs of scan and map are arrays, of which each step gets one item.",
        fixes=fixes,
        facts={"got": got, "xs": xs},
    )


@rule(
    "JPX0715",
    "scan-length-is-traced",
    types=("ConcretizationTypeError",),
    clues=("The `length` argument to `scan` expects a concrete `int` value",),
    priority=10,
)
def scan_length_is_traced(failure: Failure) -> Finding | None:
    call = failure.call("scan")
    length = argument(call, "length")
    fixes = [
        Fix(
            "Use fori_loop, which takes a traced number of steps (its results cannot be stacked)",
            f"jax.lax.fori_loop(0, {length or 'n'}, lambda i, carry: step(carry), init)",
        )
    ]
    if length and re.fullmatch(r"\w+", length) and failure.user is not None:
        name = failure.user.function
        fixes.append(
            Fix(
                f"Or make {length} a compile-time constant (compiles anew for each value)",
                f"{name} = jax.jit({name}, static_argnames={length!r})",
            )
        )
    return Finding(
        what=f"scan's length is {f'`{length}`' if length else 'a value'} that has no value yet: it is traced.",
        why="scan stacks one output for each step, so the number of steps is part of a shape, and shapes must be known "
        "when a function is compiled.",
        fixes=fixes,
        facts={"length": length},
    )


_KINDS = ("bool", "uint", "int", "bfloat", "float", "complex")


def _wider(first: str, second: str) -> str:
    """The dtype that holds both, roughly: by kind, then by bits."""

    def rank(dtype: str) -> tuple[int, int]:
        letters = re.sub(r"\d.*", "", dtype)
        bits = re.search(r"\d+", dtype)
        return (_KINDS.index(letters) if letters in _KINDS else -1, int(bits.group()) if bits else 0)

    return max(first, second, key=rank)


@rule(
    "JPX0716",
    "branches-differ",
    types=("TypeError",),
    clues=(
        "branches must have equal output types but they differ",
        "branch outputs must have the same pytree structure",
        "must have identical types, got",
        "must have same type structure",
    ),
)
def branches_differ(failure: Failure) -> Finding | None:
    new = failure.search(r"\b(cond|switch) branches must have equal output types but they differ")
    structure = failure.search(r"\b(cond|switch) branch outputs must have the same pytree structure, but they differ")
    old = failure.search(
        r"^(true_fun|branch \d+) output and (false_fun|branch ?\d+) output must have identical types, got\s(.*)", re.S
    )
    old_structure = failure.search(
        r"^(true_fun|branch \d+)(?: output)? (?:and|must have same type structure as) "
        r"(false_fun|branch ?\d+)(?: output)?"
    )
    call = failure.call("cond", "switch")
    facts: dict[str, object] = {}
    fixes: list[Fix] = []
    if new is not None:
        pairs = failure.findall(
            r"[Tt]he output of (true_fun|branch ?\d+)(?: at path (\S+))? has type (\S+) but the corresponding output "
            r"of (false_fun|branch ?\d+) has type ([^\s,;]+(?:,[^\s]*\])?)"
        )
        if not pairs:
            return None
        first, path, left, second, right = pairs[0].groups()
        parts = [
            f"{m.group(1)}{m.group(2) or ''} returns {m.group(3)} and {m.group(4)} returns {m.group(5).rstrip('.;,')}"
            for m in pairs
        ]
        fixes = _branch_fixes(failure, call, first, second, left, right.rstrip(".;,"), path)
        name = new.group(1)
    elif old is not None:
        first, second, body = old.groups()
        pairs = list(re.finditer(r"DIFFERENT ShapedArray\((\S+?\])[^)]*\) vs\. ShapedArray\((\S+?\])", body))
        if not pairs:
            return None
        left, right = pairs[0].groups()
        parts = [f"{first} returns {m.group(1)} and {second} returns {m.group(2)}" for m in pairs]
        fixes = _branch_fixes(failure, call, first, second, left, right, None if len(pairs) == 1 else "…")
        name = "cond" if first == "true_fun" else "switch"
    elif structure is not None:
        pairs = failure.findall(
            r"(true_fun|branch ?\d+) output(?: at path (\S+))? is a (.+?) but (false_fun|branch ?\d+) output"
            r"(?: at path \S+)? is a (.+?), so "
        )
        parts = [
            f"{m.group(1)}{m.group(2) or ''} returns a {_plain(m.group(3))} and {m.group(4)} a {_plain(m.group(5))}"
            for m in pairs
        ] or ["their outputs are nested differently"]
        name = structure.group(1)
    elif old_structure is not None and "structure" in failure.text:
        name = "cond" if old_structure.group(1) == "true_fun" else "switch"
        parts = [f"the outputs of {old_structure.group(1)} and {old_structure.group(2)} are nested differently"]
    else:
        return None
    if not fixes:
        fixes = [
            Fix(
                "Return the same containers with the same number of values from both",
                (_same_containers(failure, call, pairs) if structure is not None else None)
                or "jax.lax.cond(pred, lambda x: (x, x), lambda x: (x, jax.numpy.zeros_like(x)), x)",
            )
        ]
    facts["parts"] = tuple(parts)
    return Finding(
        what=f"The branches of {name} do not return the same kind of value: {listed(parts)}.",
        why="Both branches become part of one compiled program with one result, so they must agree in structure, shape "
        "and dtype.",
        fixes=fixes,
        facts=facts,
    )


def _plain(kind: str) -> str:
    return re.sub(r"<class '(?:builtins\.)?([\w.]+)'>", r"\1", kind)


def _same_containers(failure: Failure, call: Call | None, pairs: Sequence[re.Match[str]]) -> str | None:
    """The call with zeros beside the result of the branch that returns one array where the other returns a pair."""
    if call is None or len(pairs) != 1 or pairs[0].group(2):
        return None
    for single, other in ((pairs[0].group(1, 3), pairs[0].group(5)), (pairs[0].group(4, 5), pairs[0].group(3))):
        source = _branch(call, single[0])
        if "leaf" in single[1] and "tuple" in other and source is not None:
            count = re.search(r"length (\d+)", other)
            more = ", jax.numpy.zeros_like(r)" * (int(count.group(1)) - 1 if count is not None else 1)
            return replaced(failure, call, source, f"lambda *args: (lambda r: (r{more}))({_applied(source)})")
    return None


def _branch(call: Call | None, name: str) -> str | None:
    """Source of the branch that JAX calls true_fun, false_fun or "branch 2"."""
    if call is None:
        return None
    if call.name == "cond":
        return argument(call, name) if name in ("true_fun", "false_fun") else None
    number = re.search(r"\d+", name)
    listing = call.args[1] if len(call.args) > 1 else ""
    tree, source = parse_fragment(listing) if listing.startswith(("[", "(")) else (None, "")
    expression = tree.body[0].value if isinstance(tree, ast.Module) and isinstance(tree.body[0], ast.Expr) else None
    if (
        number is None
        or not isinstance(expression, ast.List | ast.Tuple)
        or int(number.group()) >= len(expression.elts)
    ):
        return None
    return ast.get_source_segment(source, expression.elts[int(number.group())])


def _branch_fixes(
    failure: Failure, call: Call | None, first: str, second: str, left: str, right: str, path: str | None
) -> list[Fix]:
    one, two = array_type(left), array_type(right)
    if one is None or two is None:
        return []
    if one[1] == two[1]:
        dtype = _wider(one[0], two[0])
        narrow = first if dtype == two[0] else second
        source = None
        if call is not None and call.name == "cond":
            source = argument(call, "true_fun" if narrow == "true_fun" else "false_fun")
        code = None
        if source and not path:
            code = replaced(failure, call, source, f"lambda *args: jax.numpy.asarray({_applied(source)}, {dtype!r})")
        title = f"Make {narrow} return {dtype} too"
        return [Fix(title, code or f"value = jax.numpy.asarray(value, {dtype!r})  # at the end of {narrow}")]
    if len(one[1]) == len(two[1]):
        widths = [abs(a - b) for a, b in zip(one[1], two[1])]
        if all(a <= b for a, b in zip(one[1], two[1])) or all(a >= b for a, b in zip(one[1], two[1])):
            small, small_name = (one[1], first) if sum(one[1]) < sum(two[1]) else (two[1], second)
            pads = ", ".join(f"(0, {n})" for n in widths)
            source = _branch(call, small_name) if not path else None
            code = None
            if source is not None:
                code = replaced(failure, call, source, f"lambda *args: jax.numpy.pad({_applied(source)}, ({pads},))")
            return [
                Fix(
                    f"Fill the shorter result {small} of {small_name} with zeros",
                    code or f"value = jax.numpy.pad(value, ({pads},))  # at the end of {small_name}",
                )
            ]
    (dtype, big), (narrow, _), small_name = (one, two, second) if len(one[1]) >= len(two[1]) else (two, one, first)
    source = _branch(call, small_name) if not path else None
    if source is not None and _wider(dtype, narrow) == dtype:
        wide = f"jax.numpy.broadcast_to({_applied(source)}, {big})"
        cast = f".astype({dtype!r})" if narrow != dtype else ""
        code = replaced(failure, call, source, f"lambda *args: {wide}{cast}")
        if code is not None:
            return [Fix(f"Make both results have the shape {big}", code)]
    return [
        Fix(
            f"Make both results have the shape {big}",
            f"value = jax.numpy.broadcast_to(value, {big})  # at the end of {small_name}",
        )
    ]


@rule("JPX0717", "cond-of-values", types=("TypeError",), clues=("true_fun and false_fun arguments should be callable",))
def cond_of_values(failure: Failure) -> Finding | None:
    if not failure.search(r"lax\.cond: true_fun and false_fun arguments should be callable"):
        return None
    call = failure.call("cond")
    pred, true, false = (argument(call, name) for name in _POSITIONS["cond"])
    fixes = []
    if call is not None and pred and true and false:
        fixes = [
            Fix(
                "Choose between two values",
                failure.rewrite(call.source, f"jax.numpy.where({pred}, {true}, {false})")
                or f"jax.numpy.where({pred}, {true}, {false})",
            ),
            Fix(
                "Or give functions without arguments; only one of them is computed",
                failure.rewrite(call.source, f"{call.function}({pred}, lambda: {true}, lambda: {false})")
                or f"{call.function}({pred}, lambda: {true}, lambda: {false})",
            ),
        ]
        what = f"lax.cond takes two functions, and got the values `{true}` and `{false}`."
    else:
        what = "lax.cond takes two functions, and got values."
        fixes = [
            Fix("Choose between two values", "jax.numpy.where(pred, a, b)"),
            Fix("Or give functions without arguments", "jax.lax.cond(pred, lambda: a, lambda: b)"),
        ]
    return Finding(
        what=what,
        why="cond(pred, true_fun, false_fun, *operands) calls one of two functions. To choose between two values that "
        "are there already, jnp.where is the tool.",
        fixes=fixes,
        facts={"predicate": pred, "true": true, "false": false},
    )


@rule(
    "JPX0718",
    "cond-predicate",
    types=("TypeError",),
    clues=("Pred must be a scalar", "Pred type must be either boolean or number", "cond predicate is None"),
)
def cond_predicate(failure: Failure) -> Finding | None:
    match = failure.search(r"^Pred must be a scalar, got (.+?) of (?:shape \(([\d, ]*)\)|type (.+?))\.?\s*$", re.S)
    kind = failure.search(r"^Pred type must be either boolean or number, got (.+?)\.?\s*$", re.S)
    call = failure.call("cond")
    pred, true, false = (argument(call, name) for name in _POSITIONS["cond"])
    shown = f"`{pred}`" if pred else "the condition"
    shape: tuple[int, ...] | None = None
    if match is not None and match.group(2) is not None:
        shape = sizes(match.group(2))
        what = f"{shown} is an array of shape {shape}, and cond takes one bool."
    elif match is not None:
        what = f"{shown} is a {_plain(match.group(3) or '')}, and cond takes one bool."
    elif kind is not None:
        what = f"{shown} is {kind.group(1)[:60]}, and cond takes a bool or a number."
    elif failure.search(r"^cond predicate is None"):
        what = f"{shown} is None, and cond takes a bool."
    else:
        return None
    fixes = []
    if match is not None and re.search(r"\bstr\b", match.group(3) or ""):
        asked = pred or "mode"
        new = f"{asked} == 'yes'"
        fixes.append(Fix("Compare the text, which gives a bool", replaced(failure, call, pred, new) or new))
    elif shape is not None or (match is not None and match.group(3)):
        values = (true, false) if true and false else ("a", "b")
        operands = ", ".join(call.args[3:]) if call is not None else "x"
        chosen = [f"({v})({operands})" if not re.fullmatch(r"[\w.]+", v) else f"{v}({operands})" for v in values]
        if not (true and false):
            chosen = list(values)
        where = f"jax.numpy.where({pred or 'pred'}, {chosen[0]}, {chosen[1]})"
        fixes.append(
            Fix(
                "Decide for each element: compute both and choose",
                (failure.rewrite(call.source, where) if call is not None else None) or where,
            )
        )
        new = f"jax.numpy.all({pred or 'pred'})"
        if match is not None and match.group(3):
            new = f"jax.numpy.all(jax.numpy.asarray({pred or 'pred'}))"
        fixes.append(Fix("Or decide once, for all elements together", replaced(failure, call, pred, new) or new))
    else:
        fixes.append(Fix("Give a comparison, which is a bool", "jax.lax.cond(x > 0, true_fun, false_fun, x)"))
    return Finding(
        what=what,
        why="cond runs one of two branches as a whole, so it needs one yes or no. jnp.where chooses by element.",
        fixes=fixes,
        facts={"predicate": pred, "shape": shape},
    )


@rule(
    "JPX0719",
    "switch-index",
    types=("TypeError",),
    clues=("Branch index must be scalar", "Index type must be an integer, got"),
)
def switch_index(failure: Failure) -> Finding | None:
    shape = failure.search(r"^Branch index must be scalar, got (.+?) of shape \(([\d, ]*)\)", re.S)
    kind = failure.search(r"^Index type must be an integer, got (.+?)(?: as (\w+))?\.?\s*$", re.S)
    call = failure.call("switch")
    index = argument(call, "index")
    shown = f"`{index}`" if index else "The index"
    if shape is not None:
        size = sizes(shape.group(2))
        what = f"{shown} is an array of shape {size}, and switch takes one whole number: which branch to run."
        code = f"jax.vmap(lambda i: jax.lax.switch(i, branches, x))({index or 'indices'})"
        if call is not None and index:
            new = replaced(failure, call, index, "i")
            code = f"jax.vmap(lambda i: {call.source.replace(index, 'i', 1)})({index})"
            code = (failure.rewrite(call.source, code) if new else None) or code
        fixes = [Fix("Run it for each index", code)]
        facts: dict[str, object] = {"index": index, "shape": size}
    elif kind is not None:
        dtype = kind.group(2) or kind.group(1)[:40]
        what = f"{shown} is of type {dtype}, and switch takes a whole number: which branch to run."
        new = f"jax.numpy.asarray({index or 'index'}, int)"
        fixes = [Fix("Make it an integer", replaced(failure, call, index, new) or new)]
        if dtype == "bool":
            fixes.append(Fix("Or use cond for yes and no", "jax.lax.cond(pred, true_fun, false_fun, x)"))
        facts = {"index": index, "dtype": dtype}
    else:
        return None
    return Finding(
        what=what,
        why="switch(index, branches, *operands) runs branches[index]; the index is one integer.",
        fixes=fixes,
        facts=facts,
    )


@rule(
    "JPX0720",
    "loop-needs-functions",
    types=("TypeError", "ValueError"),
    clues=(
        "argument should be callable",
        "arguments should be callable",
        "argument should be a",
        "Empty branch sequence",
        "'function' object is not iterable",
    ),
)
def loop_needs_functions(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^lax\.(scan|while_loop|fori_loop|associative_scan|switch): (.+?) arguments? should be (?:a )?"
        r"(?:callable|sequence of callables)"
    )
    single = failure.call("switch") if failure.search(r"^'function' object is not iterable$") else None
    if single is not None and len(single.args) > 1 and failure.from_jax is not False:
        branches = single.args[1]
        functions = [branches] + [a for a in single.args[2:] if a.startswith("lambda") or _is_defined(failure, a)]
        listing = f"[{', '.join(functions)}]"
        rest = [a for a in single.args[2:] if a not in functions]
        new = f"{single.function}({', '.join([single.args[0], listing, *rest])})"
        return Finding(
            what=f"lax.switch got one function, `{branches}`, where it takes a list of functions.",
            why="switch(index, branches, *operands) runs the branch of that number, so the functions come as one list.",
            fixes=[Fix("Put the functions into a list", rewritten(failure, single.source, new))],
            facts={"function": "switch", "argument": "branches"},
        )
    if match is None and not failure.search(r"^Empty branch sequence$"):
        return None
    name = match.group(1) if match is not None else "switch"
    which = match.group(2) if match is not None else "branches"
    order = {
        "scan": "jax.lax.scan(lambda carry, x: (carry + x, carry), 0.0, jax.numpy.ones(3))  # step, start, inputs",
        "while_loop": "jax.lax.while_loop(lambda n: n < 5, lambda n: n + 1, 0)  # condition, step, start",
        "fori_loop": "jax.lax.fori_loop(0, 5, lambda i, n: n + i, 0)  # from, to, step, start",
        "associative_scan": "jax.lax.associative_scan(combine, xs)",
        "switch": "jax.lax.switch(0, [lambda x: x, lambda x: -x], 1.0)  # index, functions, what they get",
    }[name]
    call = failure.call(name)
    given = f" It was called as `{call.source}`." if call is not None and len(call.source) < 80 else ""
    got = "no functions at all" if match is None else f"something that cannot be called for {which}"
    return Finding(
        what=f"lax.{name} got {got}.{given}",
        why="JAX traces the functions that it is given; a function is passed by its name, without calling it, and in "
        "the right order.",
        fixes=[Fix("Give functions, in this order", order)],
        facts={"function": name, "argument": which},
    )


def _is_defined(failure: Failure, name: str) -> bool:
    variable = failure.variable(name)
    return variable is not None and variable.type == "function"


@rule("JPX0721", "while-condition", types=("TypeError",), clues=("cond_fun must return a boolean scalar",))
def while_condition(failure: Failure) -> Finding | None:
    match = failure.search(
        r"cond_fun must return a boolean scalar, but got (pytree|output type\(s\)) (.+?)\.?\s*$", re.S
    )
    if match is None:
        return None
    call = failure.call("while_loop")
    condition = argument(call, "cond_fun")
    got = match.group(2).strip()
    types = re.search(r"(\w+)\[([\d,]*)\]", got)
    fixes = []
    shown = f"`{condition}`" if condition else "The condition of while_loop"
    if types:
        dtype, shape = types.group(1), sizes(types.group(2))
        what = f"{shown} returns {dtype}{list(shape) if shape else ''}, and while_loop needs one bool."
        if shape:
            new = f"lambda *args: jax.numpy.any({_applied(condition or 'condition')})"
            title = "Go on while it holds for any element"
        else:
            new = f"lambda *args: {_applied(condition or 'condition')} != 0"
            title = "Compare, so that the result is a bool"
        fixes.append(Fix(title, replaced(failure, call, condition, new) or new))
        facts: dict[str, object] = {"condition": condition, "dtype": dtype, "shape": shape}
    else:
        what = f"{shown} returns a container of values ({got[:60]}), and while_loop needs one bool."
        fixes.append(Fix("Return one comparison", "jax.lax.while_loop(lambda state: state[0] < 10, body, init)"))
        facts = {"condition": condition, "got": got[:60]}
    return Finding(
        what=what,
        why="Before each step while_loop asks its condition, given the whole carry, whether to go on: one yes or no.",
        fixes=fixes,
        facts=facts,
    )


@rule(
    "JPX0722",
    "fori-bounds",
    types=("TypeError", "ValueError"),
    clues=("arguments to fori_loop must have equal types", "Can only use `unroll` in `fori_loop`"),
)
def fori_bounds(failure: Failure) -> Finding | None:
    types = failure.search(r"lower and upper arguments to fori_loop must have equal types, got (\w+) and (\w+)")
    call = failure.call("fori_loop")
    lower, upper = argument(call, "lower"), argument(call, "upper")
    if types is not None:
        first, second = types.groups()
        source, target = (upper, first) if first.startswith(("int", "uint")) else (lower, second)
        target = target if target.startswith(("int", "uint")) else "int32"
        new = f"jax.numpy.asarray({source or 'bound'}, {target!r})"
        fixes = [Fix(f"Make both bounds {target}", replaced(failure, call, source, new) or new)]
        return Finding(
            what=f"fori_loop counts from {f'`{lower}`' if lower else 'its lower bound'} ({first}) to "
            f"{f'`{upper}`' if upper else 'its upper bound'} ({second}): two different types.",
            why="The counter has one dtype, an integer, and JAX does not guess which of the two was meant.",
            fixes=fixes,
            facts={"lower": first, "upper": second},
        )
    if failure.search(r"Can only use `unroll` in `fori_loop` if the loop bounds are statically known"):
        without = re.sub(r",\s*unroll\s*=\s*\w+", "", call.source) if call is not None else ""
        code = failure.rewrite(call.source, without) if call is not None and without != call.source else None
        return Finding(
            what=f"fori_loop was told to unroll, but its bounds "
            f"{f'`{lower}` and `{upper}` ' if lower and upper else ''}are traced values.",
            why="Unrolling writes several steps out one after another at compile time, so the number of steps must be "
            "a Python number then.",
            fixes=[
                Fix("Leave unroll away", code or "jax.lax.fori_loop(0, n, body_fun, init)"),
                Fix(
                    "Or give the number of steps as a Python number",
                    "jax.lax.fori_loop(0, 10, body_fun, init, unroll=2)",
                ),
            ],
            facts={"lower": lower, "upper": upper},
        )
    return None


_WANTED = {
    "scan": ("f", "two: (carry, x)", "lambda carry, x: (carry, x)"),
    "map": ("f", "one: the item", "lambda x: x"),
    "fori_loop": ("body_fun", "two: (step number, carry)", "lambda i, carry: carry"),
    "while_loop": ("body_fun", "one: the carry", "lambda carry: carry"),
}


@rule(
    "JPX0723",
    "loop-function-arguments",
    types=("TypeError",),
    clues=("positional argument",),
    priority=10,
)
def loop_function_arguments(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^([\w.<>]+)\(\) (?:takes (?:from \d+ to )?(\d+) positional arguments? but (\d+) (?:was|were) given"
        r"|missing (\d+) required positional arguments?: (.+))$"
    )
    call = failure.outer_call
    if match is None or call is None or call.name not in _POSITIONS or failure.frames_removed is False:
        return None
    if not re.match(r"(jax\.)?lax\.|\w+$", call.function) or call.name == "associative_scan":
        return None
    name = match.group(1).rsplit(".", 1)[-1]
    parameters = {"scan": ("f",), "map": ("f",), "fori_loop": ("body_fun",), "while_loop": ("cond_fun", "body_fun")}
    parameters |= {"cond": ("true_fun", "false_fun"), "switch": ("branches",)}
    given = [argument(call, parameter) for parameter in parameters[call.name]]
    functions = [source for source in given if source is not None and _is_function(source, name)]
    if not functions or name == call.name:
        return None
    taken = match.group(2)
    missing = match.group(5)
    says = f"takes {counted(int(taken), 'argument')}" if taken else f"also wants {missing}"
    if call.name in ("cond", "switch"):
        operands = list(call.args[3:] if call.name == "cond" else call.args[2:])
        wanted = f"{len(operands)}: {', '.join(operands)}" if operands else "none, as no operands are given"
        names = [chr(ord("x") + i) for i in range(len(operands))] if len(operands) <= 3 else ["*operands"]
        code = f"lambda {', '.join(names)}: ...".replace("lambda :", "lambda:").replace("...", "result")
        without = f"{call.function}({', '.join(call.args[: 3 if call.name == 'cond' else 2])})"
        title = "Take as many arguments as there are operands"
        if taken == "0" and operands:
            code, title = rewritten(failure, call.source, without), "Leave the operands out: the functions take none"
        parameters_of = re.match(r"lambda ([\w, ]+):", functions[0])
        wanted_names = parameters_of.group(1).split(", ") if parameters_of is not None else []
        if not operands and wanted_names and failure.scope.issuperset(wanted_names):
            new = f"{call.source[:-1]}, {', '.join(wanted_names)})"
            code, title = rewritten(failure, call.source, new), "Give the operands, after the functions"
    else:
        _, wanted, code = _WANTED[call.name]
        title = f"Write the function for {call.name} with these arguments"
        if call.name == "map" and missing and functions[0].startswith("lambda"):
            new = call.source.replace(functions[0], f"lambda item: ({functions[0]})(*item)", 1)
            code, title = (
                rewritten(failure, call.source, new),
                "Take the item apart: several inputs come as one tuple",
            )
        elif call.name == "map" and missing:
            new = call.source.replace(functions[0], f"lambda item: {functions[0]}(*item)", 1)
            code, title = (
                rewritten(failure, call.source, new),
                "Take the item apart: several inputs come as one tuple",
            )
    return Finding(
        what=f"{call.name} calls `{functions[0]}` with {wanted}; but that function {says}.",
        why={
            "scan": "scan hands each step the carry and one item of the inputs (None, if there are no inputs).",
            "map": "lax.map hands the function one item: several inputs go in as a tuple, as one argument.",
            "fori_loop": "fori_loop hands each step its number and the carry.",
            "while_loop": "while_loop hands the whole carry, as one argument, to both functions.",
            "cond": "cond(pred, true_fun, false_fun, *operands) hands the operands to the branch that runs.",
            "switch": "switch(index, branches, *operands) hands the operands to the branch that runs.",
        }[call.name],
        fixes=[Fix(title, code)],
        facts={"function": functions[0], "called_by": call.name},
    )


def _is_function(source: str, name: str) -> bool:
    if name == "<lambda>":
        return "lambda" in source or source.isidentifier()
    return re.search(rf"(?<![\w]){re.escape(name)}\b", source) is not None


@rule(
    "JPX0724",
    "associative-scan-lengths",
    types=("ValueError",),
    clues=("Array inputs to associative_scan must have the same",),
)
def associative_scan_lengths(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Array inputs to associative_scan must have the same first dimension\. \(saw: \[(.*?)\]\)", re.S
    )
    if match is None:
        return None
    shapes = [sizes(m.group(1)) for m in re.finditer(r"\(([\d, ]*)\)", match.group(1))]
    call = failure.call("associative_scan")
    elems = argument(call, "elems")
    shortest = min((shape[0] for shape in shapes if shape), default=0)
    new = f"jax.tree.map(lambda a: a[:{shortest}], {elems or 'xs'})"
    return Finding(
        what=f"associative_scan runs along its inputs together, but they have the shapes "
        f"{listed([str(shape) for shape in shapes])}.",
        why="All inputs must have the same length along the axis that is scanned (axis 0 unless said otherwise).",
        fixes=[Fix(f"Cut all to the shortest ({shortest})", replaced(failure, call, elems, new) or new)],
        facts={"shapes": tuple(shapes)},
    )


@rule(
    "JPX0726",
    "map-over-a-list-of-arrays",
    types=("TypeError",),
    clues=(
        "list indices must be",
        "and 'list'",
        "'list' and",
        "got <class 'list'>",
        "'list' object has no",
        "tuple indices",
    ),
    priority=20,
    anywhere=True,
)
def map_over_a_list_of_arrays(failure: Failure) -> Finding | None:
    # the function gets a list, since a list is no array: its arrays are gone through all at once
    if failure.user is None or failure.user.raises or len(failure.user_frames) < 2:
        return None
    if not failure.frames_removed and not any(frame.package == "jax" for frame in failure.frames):
        return None  # Python's own map
    lists = [v for v in failure.variables.values() if v.type == "list" and (v.element or "").endswith("Tracer")]
    keyed = [v for v in failure.variables.values() if v.type == "list" and v.element == "dict"]
    held = [v for v in lists + keyed if re.search(rf"(?<![\w.]){re.escape(v.name)}\b", failure.user.segment or "")]
    if len(held) != 1 or held[0].name not in _parameters(failure):
        return None
    (variable,) = held
    for frame in failure.user_frames[1:]:
        for call in frame.calls:
            place = {"scan": 2, "map": 1}.get(call.name)
            outer = _mapped_argument(frame.calls, call) if call.name in ("vmap", "pmap") else None
            xs = call.args[place] if place is not None and len(call.args) > place else outer
            if xs is None or not re.match(r"(?:jax\.)?(?:lax\.)?(?:scan|map|vmap|pmap)$", call.function):
                continue
            stacked = f"jnp.stack({xs})"
            if variable.element == "dict":
                stacked = f"jax.tree.map(lambda *leaves: jnp.stack(leaves), *{xs})"
            source = frame.statement or frame.source or ""
            code = source.replace(xs, stacked, 1) if xs in source else stacked
            if call.name == "scan" or place is not None:
                head, _, tail = call.source.rpartition(xs)
                code = source.replace(call.source, f"{head}{stacked}{tail}", 1) if call.source in source else code
            kind = "dicts" if variable.element == "dict" else "arrays"
            return Finding(
                what=f"{call.name} was given a list ({xs}) of {variable.length} {kind}, so `{variable.name}` is a list "
                "in the function, with a part of each.",
                why=f"For JAX a list is a container of separate arrays (a pytree): {call.name} goes along axis 0 of "
                "each of them, all at once. To go from one to the next they have to be stacked into one array.",
                fixes=[Fix("Stack them", code)],
                facts={"argument": xs, "length": variable.length, "called_by": call.name},
            )
    return None


def _mapped_argument(calls: Sequence[Call], inner: Call) -> str | None:
    """What a mapped function is called with, where there is one argument: `xs` of vmap(f)(xs)."""
    outer = next((c for c in calls if c.function == inner.source), None)
    return outer.args[0] if outer is not None and len(outer.args) == 1 else None


def _parameters(failure: Failure) -> list[str]:
    """Parameters of the user's innermost function, as its source tells."""
    user = failure.user
    text = (user.statement or user.source or "") if user is not None else ""
    named = failure.definitions.get(user.function, "") if user is not None else ""
    found = re.findall(r"lambda ([\w, ]+):", text) + re.findall(r"def \w+\(([\w, ]+)\)", named)
    names = [name for part in found for name in part.split(", ")]
    return names or [v.name for v in failure.variables.values() if v.type == "list"]
