"""Values that a function does not have while JAX traces it: Python's if, while, and, or, not, in."""

from __future__ import annotations

import ast
import functools
import re

from ..context import Failure, parse_fragment
from ..explanation import Fix
from ..registry import Finding, rule
from ._lines import plain_python_fix, rewritten, static_fix, tracing

_WHY = (
    "While JAX traces a function{transform}, its arguments are stand-ins (tracers) that have a shape and a dtype "
    "but no value yet. Python's {statement} needs the value at once."
)


def _construct(failure: Failure) -> tuple[str | None, str | None]:
    """What asked for the truth, and of which expression: ("if", "x > 0"), ("while", …), ("and", …),
    ("or", …), ("not", …), ("in", …), ("chain", "0 < x < 1"), ("assert", …), ("call", "max(x, 0)");
    (None, …) if unknown.
    """
    frame = failure.user
    truth = failure.is_a("TracerBoolConversionError") or failure.search(r"problem arose with the `bool` function")
    if frame is None or not truth:
        return None, None
    if failure.inner_frames and any(f.package not in ("jax", "own") for f in failure.inner_frames):
        return None, None  # a library's own `if`
    told = _statement(frame.segment)
    if told is not None:
        return told
    for text in (frame.statement, frame.source):
        tree, source = parse_fragment(text) if text else (None, "")
        if tree is None:
            continue
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        segment = frame.segment
        candidates = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.expr) and (segment is None or _same(ast.get_source_segment(source, node), segment))
        ]
        choice = next((node for node in candidates if isinstance(node, ast.IfExp)), None)
        if choice is not None and segment is not None:  # the test is a bare name: Python marks the whole choice
            return "if", ast.get_source_segment(source, choice.test) or ast.unparse(choice.test)
        for node in candidates:
            kind = _kind(node, parents, told=segment is not None)
            if kind is not None:
                return kind, ast.get_source_segment(source, _condition(node, parents)) or segment
    source = frame.source or ""
    word = re.match(r"(?:el)?(if|while)\b", source)
    return (word.group(1) if word else None), frame.segment


def _statement(segment: str | None) -> tuple[str, str] | None:
    """("if", its condition) where Python names a whole `if`, `while` or `assert` as what failed (3.11 and 3.12 do,
    if the condition is a name or a call)."""
    if not re.match(r"(?:if|while|assert)\b", segment or ""):
        return None
    tree, source = parse_fragment(segment or "")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.If | ast.While | ast.Assert):
            kind = {ast.If: "if", ast.While: "while", ast.Assert: "assert"}[type(node)]
            return kind, ast.get_source_segment(source, node.test) or ast.unparse(node.test)
    return None


def _same(text: str | None, segment: str) -> bool:
    return text is not None and (text == segment or f"({text})" == segment)


def _condition(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> ast.expr:
    """The whole condition of which `node` is a part."""
    while isinstance(parents.get(node), ast.BoolOp | ast.UnaryOp):
        parent = parents[node]
        assert isinstance(parent, ast.expr)
        node = parent
    return node


def _kind(node: ast.expr, parents: dict[ast.AST, ast.AST], *, told: bool) -> str | None:
    if told and isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("max", "min", "sorted", "bool", "any", "all"):
            return "call"
    whole = _condition(node, parents)
    parent = parents.get(whole)
    if isinstance(parent, ast.While) and parent.test is whole:
        return "while"
    if isinstance(parent, ast.Assert) and parent.test is whole:
        return "assert"
    if isinstance(parent, ast.If | ast.IfExp) and parent.test is whole:
        return "if"
    if isinstance(parent, ast.comprehension) and whole in parent.ifs:
        return "if"
    if isinstance(node, ast.Compare):
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            return "in"
        if len(node.ops) > 1:
            return "chain"
    outer = node if isinstance(node, ast.BoolOp | ast.UnaryOp) else parents.get(node)
    if isinstance(outer, ast.BoolOp):
        return "and" if isinstance(outer.op, ast.And) else "or"
    if isinstance(outer, ast.UnaryOp) and isinstance(outer.op, ast.Not):
        return "not"
    return None


def _what(failure: Failure, asks: str) -> str:
    function, _, argument = tracing(failure)
    inside = f" in {function}" if function and function.isidentifier() else ""
    depends = f" It depends on the argument {argument}." if argument else ""
    return f"{asks}{inside}, and that has no value yet.{depends}"


def _why(failure: Failure, statement: str) -> str:
    _, transform, _ = tracing(failure)
    return _WHY.format(transform=f" for {transform}" if transform else "", statement=statement)


def _facts(failure: Failure, condition: str | None) -> dict[str, str | None]:
    function, transform, argument = tracing(failure)
    return {"function": function, "transformation": transform, "argument": argument, "condition": condition}


def array_condition(source: str) -> str:
    """A Python condition as one on arrays: `a and not b` gives `(a) & ~(b)`, `0 < x < 1` gives two."""

    def boolean(node: ast.expr) -> bool:
        return isinstance(node, ast.Compare | ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )

    def convert(node: ast.expr) -> str:
        if isinstance(node, ast.BoolOp):
            both = isinstance(node.op, ast.And)
            parts = [convert(value) for value in node.values]
            if all(map(boolean, node.values)):
                return (" & " if both else " | ").join(f"({part})" for part in parts)
            # a number counts as true unless it is 0: only the logical functions see it so
            return functools.reduce(lambda a, b: f"jnp.logical_{'and' if both else 'or'}({a}, {b})", parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = convert(node.operand)
            return f"~({inner})" if boolean(node.operand) else f"jnp.logical_not({inner})"
        if isinstance(node, ast.Compare):
            if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
                inside = f"jnp.isin({ast.unparse(node.left)}, jnp.array({ast.unparse(node.comparators[0])}))"
                return inside if isinstance(node.ops[0], ast.In) else f"~{inside}"
            if len(node.ops) > 1:
                terms = [node.left, *node.comparators]
                pairs = [
                    ast.unparse(ast.Compare(left, [op], [right])) for left, op, right in zip(terms, node.ops, terms[1:])
                ]
                return " & ".join(f"({pair})" for pair in pairs)
        return ast.unparse(node)

    try:
        return convert(ast.parse(source.strip(), mode="eval").body)
    except SyntaxError:
        return source


def _if_fixes(failure: Failure, condition: str) -> list[Fix]:
    test = array_condition(condition)
    yes, no = "value_if_true", "value_if_false"
    statement = failure.user.statement if failure.user is not None else None
    tree, source = parse_fragment(statement) if statement else (None, "")
    where = f"jnp.where({test}, {yes}, {no})"
    if tree is not None:
        for node in ast.walk(tree):
            if isinstance(node, ast.IfExp) and ast.get_source_segment(source, node.test) == condition:
                if any(isinstance(v, ast.Constant) and isinstance(v.value, str) for v in (node.body, node.orelse)):
                    return _outside_fixes(failure, condition)  # no array holds strings
                yes, no = ast.unparse(node.body), ast.unparse(node.orelse)
                old = ast.get_source_segment(source, node) or ""
                new = f"jnp.where({test}, {yes}, {no})"
                where = failure.rewrite(f"({old})", new) or rewritten(failure, old, new)
                break
            if isinstance(node, ast.If) and ast.get_source_segment(source, node.test) == condition:
                values = _assigned(node)
                if values is not None:
                    target, yes, no = values
                    where = f"{target} = jnp.where({test}, {yes}, {no})"
                elif (several := _assigned_in_branches(node, test)) is not None:
                    return [
                        Fix("Compute both values of each name and choose", several),
                        *_last_resorts(failure, condition),
                    ]
                break
    cond = f"jax.lax.cond({test}, lambda: {yes}, lambda: {no})"
    returned = _returned(failure, condition)
    if returned is not None:
        before, (yes, no), after = returned
        where = f"{before}return jnp.where({test}, {yes}, {no}){after}"
        cond = f"{before}return jax.lax.cond({test}, lambda: {yes}, lambda: {no}){after}"
    fixes = [
        Fix("Compute both values and choose, element by element", where),
        Fix("Or run one of two functions", cond),
    ]
    return [*_loop_fixes(failure, condition, test), *fixes, *_last_resorts(failure, condition)][:3]


def _loop_fixes(failure: Failure, condition: str, test: str) -> list[Fix]:
    """Where the `if` ends a Python loop: the loop as a lax.while_loop, if it is simple enough to be rewritten."""
    loop = _loop_with_break(failure, condition)
    if loop is None:
        return []
    before, names, count = loop
    state = ", ".join(names)
    lines = "\n".join(f"    {line}" for line in before.split("\n"))
    code = (
        f"def keep_going(state):\n    i, done, {state} = state\n    return (i < {count}) & ~done\n\n"
        f"def body(state):\n    i, done, {state} = state\n{lines}\n    return i + 1, {test}, {state}\n\n"
        f"_, _, {state} = jax.lax.while_loop(keep_going, body, (0, jnp.array(False), {state}))"
    )
    return [Fix("Stop the loop by a condition of lax.while_loop, in place of the for with its break", code)]


def _loop_with_break(failure: Failure, condition: str) -> tuple[str, list[str], str] | None:
    """Of `for _ in range(count): …; if condition: break`: (the steps before the if, the names they set, count)."""
    source = failure.sources.get(failure.user.function, "") if failure.user is not None else ""
    tree, source = parse_fragment(source) if source else (None, "")
    if tree is None:
        return None
    for node in ast.walk(tree):
        last = node.body[-1] if isinstance(node, ast.For) else None
        if (
            not isinstance(node, ast.For)
            or not isinstance(last, ast.If)
            or not isinstance(last.body[0], ast.Break)
            or len(last.body) > 1
            or last.orelse
            or ast.get_source_segment(source, last.test) != condition
        ):
            continue
        steps, counter = node.body[:-1], node.iter
        names = _state(steps)
        plain = isinstance(counter, ast.Call) and ast.unparse(counter.func) == "range" and len(counter.args) == 1
        uses = {n.id for step in steps for n in ast.walk(step) if isinstance(n, ast.Name)}
        if not names or not plain or not isinstance(counter, ast.Call) or ast.unparse(node.target) in uses:
            return None
        if uses & {"i", "done", "state"}:
            return None
        carried = [name for name in names if _read_before_set(steps, name) or _read_after(tree, node, name)]
        return "\n".join(map(ast.unparse, steps)), carried, ast.unparse(counter.args[0])
    return None


def _state(steps: list[ast.stmt]) -> list[str] | None:
    """Names that plain assignments set, in order; None if there is anything else."""
    names: dict[str, None] = {}
    for step in steps:
        if not isinstance(step, ast.Assign | ast.AugAssign):
            return None
        targets = step.targets if isinstance(step, ast.Assign) else [step.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(part, ast.Name) for part in parts):
                return None
            names.update(dict.fromkeys(part.id for part in parts if isinstance(part, ast.Name)))
    return list(names)


def _read_before_set(steps: list[ast.stmt], name: str) -> bool:
    for step in steps:
        value = step.value if isinstance(step, ast.Assign | ast.AugAssign) else step
        if isinstance(step, ast.AugAssign) and ast.unparse(step.target) == name:
            return True
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
            return True
        if isinstance(step, ast.Assign) and any(
            isinstance(n, ast.Name) and n.id == name for target in step.targets for n in ast.walk(target)
        ):
            return False
    return False


def _read_after(tree: ast.AST, loop: ast.stmt, name: str) -> bool:
    return any(
        isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Load)
        and n.lineno > (loop.end_lineno or loop.lineno)
        for n in ast.walk(tree)
    )


def _returned(failure: Failure, condition: str) -> tuple[str, tuple[str, str], str] | None:
    """Of the traced function `if condition: return a`, `return b`: its source before, (a, b), and after."""
    source = failure.definitions.get(failure.user.function, "") if failure.user is not None else ""
    tree, source = parse_fragment(source) if source else (None, "")
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
    for body in bodies:
        for node, following in zip(body, [*body[1:], None]):
            if not isinstance(node, ast.If) or ast.get_source_segment(source, node.test) != condition:
                continue
            other = node.orelse[0] if len(node.orelse) == 1 else following if not node.orelse else None
            first = node.body[0] if len(node.body) == 1 else None
            if isinstance(first, ast.Return) and isinstance(other, ast.Return) and first.value and other.value:
                lines = source.split("\n")
                before = [*lines[: node.lineno - 1], " " * node.col_offset]
                after = "".join("\n" + line for line in lines[other.end_lineno or other.lineno :])
                return "\n".join(before), (ast.unparse(first.value), ast.unparse(other.value)), after
    return None


def _outside_fixes(failure: Failure, condition: str) -> list[Fix]:
    """Where a choice is between things that are no arrays."""
    outside = Fix("Return the number, and choose outside the traced function", f"return {array_condition(condition)}")
    return [outside, *_last_resorts(failure, condition)]


def _last_resorts(failure: Failure, condition: str = "") -> list[Fix]:
    """Ways to keep Python's statement: the value as a constant, or the function as plain Python."""
    # inside a jitted function JAX's own functions return traced values, also of constants
    static = static_fix(failure) if not re.search(r"\b(?:jnp|jax|lax)\.", condition) else None
    return [fix for fix in (static, plain_python_fix(failure)) if fix is not None]


def _assert_fixes(failure: Failure, condition: str) -> list[Fix]:
    function = tracing(failure)[0] or "function"
    name = function if function.isidentifier() else "function"
    inputs = _inputs_of_call(failure, name)
    arguments = ", ".join(inputs) if inputs else "x"
    given = "".join(f"{parameter} = {source}\n" for parameter, source in inputs.items() if parameter != source)
    without = _without_assert(failure, name, condition)
    return [
        Fix(
            "Check the inputs before the call, outside JAX, and not in the function",
            f"{without}{given}assert {array_condition(condition)}\nresult = {name}({arguments})",
        ),
        Fix(
            "Or let JAX check while it runs, and raise afterwards",
            f"{given}from jax.experimental import checkify\n"
            f"# in {name}, instead of the assert: checkify.check({array_condition(condition)}, 'not so')\n"
            f"error, result = checkify.checkify({name})({arguments})\nerror.throw()",
            kind="sketch",
        ),
    ]


def _without_assert(failure: Failure, function: str, condition: str) -> str:
    """The function without its assert, where its source is known and the assert stands at its top level."""
    tree, source = parse_fragment(failure.sources.get(function, ""))
    definition = tree.body[0] if isinstance(tree, ast.Module) and tree.body else None
    if not isinstance(definition, ast.FunctionDef):
        return ""
    kept = [
        n
        for n in definition.body
        if not isinstance(n, ast.Assert) or ast.get_source_segment(source, n.test) != condition
    ]
    if len(kept) == len(definition.body) or not kept:
        return ""
    definition.body = kept
    return ast.unparse(definition) + "\n\n"


def _inputs_of_call(failure: Failure, function: str) -> dict[str, str]:
    """The parameters of the traced function with what the user passed for them."""
    call = next((c for f in failure.user_frames[1:] for c in f.calls if c.function == function), None)
    head = re.search(rf"def {function}\(([\w, ]*)\)", failure.sources.get(function, ""))
    if call is None or head is None or any(a.startswith("*") for a in call.args):
        return {}
    return dict(zip(head.group(1).split(", "), call.args)) | dict(call.keywords)


def _assigned_in_branches(node: ast.If, test: str) -> str | None:
    """All names that the branches of an `if` set, each by a where; None if a branch does anything else."""
    branches: list[dict[str, str]] = []
    for body in (node.body, node.orelse):
        values: dict[str, str] = {}
        for step in body:
            target = step.targets[0] if isinstance(step, ast.Assign) and len(step.targets) == 1 else None
            if not isinstance(step, ast.Assign) or not isinstance(target, ast.Name):
                return None
            if any(isinstance(n, ast.Name) and n.id in values for n in ast.walk(step.value)):
                return None  # it reads what this branch has set
            values[target.id] = ast.unparse(step.value)
        branches.append(values)
    names = list(dict.fromkeys([*branches[0], *branches[1]]))
    chosen = [f"jnp.where({test}, {branches[0].get(name, name)}, {branches[1].get(name, name)})" for name in names]
    return f"{', '.join(names)} = {', '.join(chosen)}" if names else None


def _assigned(node: ast.If) -> tuple[str, str, str] | None:
    """(target, value if true, value if false) of an `if` that sets one name."""
    if len(node.body) != 1 or len(node.orelse) > 1:
        return None
    first = node.body[0]
    if not isinstance(first, ast.Assign) or len(first.targets) != 1:
        return None
    target = ast.unparse(first.targets[0])
    if not node.orelse:
        return target, ast.unparse(first.value), target
    second = node.orelse[0]
    if isinstance(second, ast.Assign) and ast.unparse(second.targets[0]) == target:
        return target, ast.unparse(first.value), ast.unparse(second.value)
    return None


# Before JAX 0.4 there was no type of its own for truth.
_TYPES = ("TracerBoolConversionError", "ConcretizationTypeError")


@rule("JPX0501", "if-on-a-traced-value", types=_TYPES)
def if_on_a_traced_value(failure: Failure) -> Finding | None:
    kind, condition = _construct(failure)
    if kind not in ("if", "assert"):
        return None
    shown = condition or "the condition"
    test = condition or "condition"
    return Finding(
        what=_what(failure, f"Python's {kind} asks whether `{shown}` is true"),
        why=_why(failure, kind),
        fixes=_if_fixes(failure, test) if kind == "if" else _assert_fixes(failure, test),
        facts=_facts(failure, condition),
    )


@rule("JPX0502", "while-on-a-traced-value", types=_TYPES)
def while_on_a_traced_value(failure: Failure) -> Finding | None:
    kind, condition = _construct(failure)
    if kind != "while":
        return None
    names = sorted(
        set(re.findall(r"(?<![\w.])[A-Za-z_]\w*(?!\w*\()", condition or "")) - {"jnp", "jax", "and", "or", "not"}
    )
    carried = f"({', '.join(names)},)" if names else "state"
    test = array_condition(condition or "condition")
    step, unpacked, result = "    ...        # one step\n    return state", carried.strip("()"), "state"
    loop = _whole_loop(failure, names)
    if loop is not None:
        lines, state = loop
        unpacked = ", ".join(state) + "," * (len(state) == 1)
        carried, result = f"({unpacked})", unpacked
        lines = "\n".join(f"    {line}" for line in lines.split("\n"))
        step = f"    {unpacked} = state\n{lines}\n    return {carried}"
    fixes = [
        Fix(
            "Loop with lax.while_loop: the state goes in and comes out of the body",
            f"def keep_going(state):\n    {unpacked if names else 'state'} = state\n    return {test}\n\n"
            f"def body(state):\n{step}\n\n"
            f"{result} = jax.lax.while_loop(keep_going, body, {carried})",
        )
    ]
    return Finding(
        what=_what(failure, f"Python's while asks whether `{condition or 'the condition'}` is true"),
        why=_why(failure, "while"),
        fixes=[*fixes, *_last_resorts(failure, condition or "")],
        facts=_facts(failure, condition),
    )


def _whole_loop(failure: Failure, tested: list[str]) -> tuple[str, list[str]] | None:
    """Of a `while` whose body only sets names: (its body, those names and what its condition reads besides)."""
    user = failure.user
    source = (failure.sources.get(user.function) or user.statement or "") if user is not None else ""
    tree, _ = parse_fragment(source) if source else (None, "")
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)] if tree is not None else []
    names = _state(loops[0].body) if len(loops) == 1 and not loops[0].orelse else None
    if not names:
        return None
    state = [*names, *(name for name in tested if name not in names and failure.variable(name) is not None)]
    return "\n".join(map(ast.unparse, loops[0].body)), state


@rule("JPX0503", "and-or-not-on-traced-values", types=_TYPES)
def and_or_not_on_traced_values(failure: Failure) -> Finding | None:
    kind, condition = _construct(failure)
    words = {"and": "and", "or": "or", "not": "not", "in": "in", "chain": "chained comparison"}
    if kind not in words or kind is None:
        return None
    word = words[kind]
    code = None
    new = array_condition(condition) if condition is not None else "(a) & (b)"
    if condition is not None:
        code = failure.rewrite(condition, new)
    return Finding(
        what=_what(failure, f"Python's {word} asks whether a part of `{condition or 'a condition'}` is true"),
        why=_why(failure, word) + " The operators & | ~ work on arrays, element by element.",
        fixes=[
            Fix("Use & for and, | for or, ~ for not, each side in brackets (jnp.isin for in)", code or new),
            *_last_resorts(failure, condition or ""),
        ],
        facts=_facts(failure, condition),
    )


def _asked_inside_jax(failure: Failure) -> Finding | None:
    """A function of JAX that decides in Python by an argument (top_k by k): this must be a plain number."""
    segment = failure.user.segment if failure.user is not None else None
    call = failure.outer_call
    if call is None or segment is None or call.source != segment or not re.match(r"(?:jnp|jax|lax)\.", call.function):
        return None
    given = [source for source in (*call.args, *call.keywords.values()) if (v := failure.variable(source)) and v.tracer]
    argument = tracing(failure)[2]
    asked = argument if argument in given else given[-1] if given else None
    static = static_fix(failure)
    if asked is None or static is None:
        return None
    return (
        Finding(
            what=_what(
                failure,
                f"{call.function} decides in Python by the value of one of its arguments, most likely `{asked}`",
            ),
            why=_why(failure, "question for true or false") + " Sizes, counts and options of a function of JAX must be "
            "plain Python values.",
            fixes=[
                static,
                Fix(
                    "Or write the value there, if it is always the same",
                    re.sub(rf"(?<![\w.]){re.escape(asked)}\b(?!=)", "3", call.source),
                ),
            ],
            facts=_facts(failure, asked),
        )
        if call.name in _BY_VALUE
        else None
    )


# functions of JAX that look at the value of an argument, without a message of their own
_BY_VALUE = frozenset(["top_k", "approx_max_k", "approx_min_k"])


@rule(
    "JPX0509",
    "truth-of-a-traced-value",
    types=("TracerBoolConversionError", "ConcretizationTypeError"),
    priority=-10,
)
def truth_of_a_traced_value(failure: Failure) -> Finding | None:
    """What holds for every such error, where the line is unknown or asks in another way."""
    if not failure.is_a("TracerBoolConversionError") and not failure.search(r"problem arose with the `bool` function"):
        return None
    inside = _asked_inside_jax(failure)
    if inside is not None:
        return inside
    match = failure.search(r"traced array with shape (\w+\[[^\]]*\])")
    shape = f" ({match.group(1)})" if match is not None else ""
    library = next((f.package for f in failure.inner_frames if f.package not in ("jax", "own", "stdlib")), None)
    who = f"The library {library}" if library is not None else "Python (an if, while, and, or, not, assert, max, min)"
    return Finding(
        what=_what(failure, f"{who} asks whether a traced value{shape} is true"),
        why=_why(failure, "question for true or false"),
        fixes=[
            Fix("Choose between two values, element by element", "jnp.where(condition, value_if_true, value_if_false)"),
            Fix("Or run one of two functions", "jax.lax.cond(condition, if_true, if_false, x)"),
            *_last_resorts(failure),
        ],
        facts=_facts(failure, None),
    )
