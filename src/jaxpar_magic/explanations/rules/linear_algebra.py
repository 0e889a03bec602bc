"""Linear algebra: square matrices, right-hand sides."""

from __future__ import annotations

from ..context import Call, Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import sizes
from ._lines import Shape, called_with, enclosed, rewritten, shape_of, written_shape

_SQUARE = ("solve", "inv", "cholesky", "eigh", "eigvalsh", "det", "slogdet", "eig", "eigvals", "expm", "logm", "sqrtm")


@rule(
    "JPX0808",
    "matrix-is-not-square",
    types=("ValueError", "TypeError"),
    clues=("[..., n, n]", "square", "inconsistent size for core dimension", "got incompatible shapes", "..., m, m]"),
    priority=10,
)
def matrix_is_not_square(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:Argument|The input) to (\S+?)(?:\(\))? must have shape \[\.\.\., n, n\], got (?:shape )?(\([\d, ]*\))"
        r"|(?:input to (\w+)|first input to triangular_solve) must be a square matrix\. Got shape (\([\d, ]*\))"
        r"|Expected A to be a \(batched\) square matrix, got A\.shape=(\([\d, ]*\))"
        r"|Last 2 dimensions of (?:the )?array must be square"
    )
    if failure.is_a("LinAlgError") or (match is not None and match.group().startswith("Last 2") and not failure.types):
        return None  # numpy's own
    core = failure.search(
        r"inconsistent size for core dimension '(\w)': (\d+) vs (\d+) on vectorized function .*signature='\(\1,\1\)"
    )
    swapped = failure.search(r"^\w+ got incompatible shapes for broadcasting: (\([\d, ]*\)), (\([\d, ]*\))")
    call = called_with(failure, *_SQUARE)
    argument = call.args[0] if call is not None and call.args else None
    shape = shape_of(failure, argument) if argument else None
    guess = False
    if match is not None:
        shape = next((sizes(g) for g in match.groups() if g is not None and g.startswith("(")), shape)
    elif core is not None:
        if shape is None and argument is not None:
            shape = written_shape(argument)
        m, n = int(core.group(3)), int(core.group(2))
        if shape is not None and len(shape) > 1 and shape[-1] == shape[-2]:
            return None
        guess = shape is None
        shape = shape or (m, n)
    elif swapped is not None and call is not None and call.name in ("cholesky", "eigh", "eigvalsh"):
        a, b = sizes(swapped.group(1)), sizes(swapped.group(2))
        if len(a) < 2 or a[:-2] + (a[-1], a[-2]) != b:
            return None
        shape = a
    else:
        return None
    if shape is not None and len(shape) > 1 and shape[-1] == shape[-2]:
        return None
    function = call.name if call is not None else (match.group(1) or match.group(3) if match is not None else None)
    function = (function or "The function").removeprefix("linalg.").strip("_()")
    name = f"`{argument}`" if argument else "its matrix"
    has = f" has shape {shape}" if shape is not None else " is not square"
    fixes = []
    if function == "solve" and call is not None and len(call.args) > 1:
        fixes.append(
            Fix("Solve it in the least-squares sense", f"x = jnp.linalg.lstsq({call.args[0]}, {call.args[1]})[0]")
        )
    elif function == "inv" and shape is not None and len(shape) > 1:
        fixes.append(Fix("Take the pseudo-inverse, which any matrix has", f"jnp.linalg.pinv({argument or 'A'})"))
    elif function in ("cholesky", "eigh", "eigvalsh") and shape is not None and len(shape) > 1:
        matrix = enclosed(argument or "A")
        square = f"jnp.linalg.{function}({matrix} @ {matrix}.T)"
        fixes.append(Fix("Take it of the square matrix that belongs to it", square))
    elif shape is not None and len(shape) > 1:
        fixes.append(
            Fix("Singular values exist for any matrix", f"jnp.linalg.svd({argument or 'A'}, compute_uv=False)")
        )
    fixes.append(
        Fix("Look at the matrix: it should have as many rows as columns", f"print(jnp.shape({argument or 'A'}))")
    )
    if core is not None and guess:
        what = (
            f"{function} met the sizes {core.group(3)} and {core.group(2)} where one size is needed: its matrix is not "
        )
        what += "square, or the right-hand side has another length."
    else:
        what = f"{function} needs a square matrix, and {name}{has}."
    return Finding(
        what=what,
        why="Only a matrix with as many rows as columns has an inverse, a determinant, eigenvalues or a Cholesky "
        "factor.",
        fixes=fixes[:3],
        facts={"shape": shape, "function": function},
        guess=guess,
    )


@rule(
    "JPX0825",
    "core-sizes-differ",
    types=("ValueError", "TypeError"),
    clues=(
        "inconsistent size for core dimension",
        "The arguments to solve must have shapes",
        "Incompatible shapes for arguments to triangular_solve",
    ),
)
def core_sizes_differ(failure: Failure) -> Finding | None:
    match = failure.search(
        r"inconsistent size for core dimension '(\w+)': (\d+) vs (\d+) on vectorized function .*signature='([^']+)'"
    )
    solve = failure.search(
        r"(?:The arguments to solve must have shapes .* got a=|Incompatible shapes for arguments to triangular_solve: )"
        r"(\([\d, ]*\)) and (?:b=)?(\([\d, ]*\))"
    )
    call = called_with(failure, "solve", "cho_solve", "lu_solve", "solve_triangular", "lstsq")
    if match is None and solve is None:
        return None
    if solve is not None:
        a, b = sizes(solve.group(1)), sizes(solve.group(2))
        if len(a) > 1 and a[-1] != a[-2]:
            return None
        return Finding(
            what=f"The matrix has shape {a} and the right-hand side {b}: their numbers of rows differ.",
            why="A system of n equations needs a matrix of n rows and columns and n right-hand values.",
            fixes=_fewer_rows(failure, call, a, b),
            facts={"shapes": (a, b)},
        )
    assert match is not None
    letter, n, m, signature = match.groups()
    guess = False
    if signature.startswith(f"({letter},{letter})"):
        shape = None
        if call is not None and call.args:
            shape = shape_of(failure, call.args[0]) or written_shape(call.args[0])
        if shape is None or len(shape) < 2 or shape[-1] != shape[-2]:
            return None
    arguments = call.args if call is not None else ()
    code = "print(" + ", ".join(f"jnp.shape({a})" for a in (arguments or ("a", "b"))) + ")"
    if call is None and failure.outer_call is not None and failure.outer_call.args:
        code = f"print({', '.join(f'jnp.shape({a})' for a in failure.outer_call.args)})"
    fixes = [Fix("Look at the shapes of the arguments", code)]
    if call is not None and len(arguments) > 1 and int(n) > int(m):
        cut = f"{call.function}({arguments[0]}, {enclosed(arguments[1])}[:{m}])"
        fixes.insert(
            0,
            Fix(f"Use {m} right-hand values, as many as the matrix has rows", rewritten(failure, call.source, cut)),
        )
    which = f" ({', '.join(arguments)})" if arguments else ""
    return Finding(
        what=f"The arguments{which} have {m} and {n} where the function needs one size, called {letter} in its "
        f"signature {signature}.",
        why=f"Each letter of the signature is one size: everywhere {letter} stands, the axis must have the same "
        "length.",
        fixes=fixes,
        facts={"dimension": letter, "sizes": (int(m), int(n)), "signature": signature},
        guess=guess,
    )


def _fewer_rows(failure: Failure, call: Call | None, a: Shape, b: Shape) -> list[Fix]:
    matrix, right = call.args[:2] if call is not None and len(call.args) > 1 else ("A", "b")
    fixes = [Fix("Look at both shapes", f"print(jnp.shape({matrix}), jnp.shape({right}))")]
    rows = b[-2] if len(b) > 1 else b[0] if b else 0
    if call is not None and len(call.args) > 1 and a and rows > a[-1]:
        cut = call.source.replace(right, f"{enclosed(right)}[:{a[-1]}]", 1)
        title = f"Use {a[-1]} right-hand values, as many as the matrix has rows"
        fixes.insert(0, Fix(title, rewritten(failure, call.source, cut)))
    return fixes


@rule(
    "JPX0832",
    "solver-needs-the-factor",
    types=("ValueError", "TypeError"),
    clues=("values to unpack", "iteration over a 0-d array", "object is not iterable", "Non-hashable static"),
    priority=10,
)
def solver_needs_the_factor(failure: Failure) -> Finding | None:
    call = called_with(failure, "cho_solve", "lu_solve")
    if call is None or len(call.args) < 2 or failure.from_jax is False:
        return None
    if not failure.search(
        r"^(?:too many|not enough) values to unpack \(expected 2|0-d array|not iterable|^Non-hashable static arg"
    ):
        return None
    matrix, right = call.args[:2]
    factor = {"cho_solve": "cho_factor", "lu_solve": "lu_factor"}[call.name]
    prefix = call.function.removesuffix(call.name)
    new = f"{call.function}({prefix}{factor}({matrix}), {right})"
    fixes = [Fix(f"Factor the matrix with {factor} first", rewritten(failure, call.source, new))]
    if call.name == "cho_solve":
        lower = f"{call.function}(({matrix}, True), {right})"
        title = f"If {matrix} is already a lower factor (from cholesky): say so"
        fixes.append(Fix(title, rewritten(failure, call.source, lower)))
    return Finding(
        what=f"{call.name} takes a factored matrix, a pair, and got `{matrix}`.",
        why=f"{call.name} solves with what {factor} gives: a pair of the factor and how it is stored.",
        fixes=fixes,
        facts={"function": call.name, "argument": matrix},
    )
