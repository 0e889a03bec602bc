"""Compile time, captured constants, and warnings about speed and about what will change."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import product, sizes

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}


@rule("JPX1901", "constant-folding", clues=("Constant folding an instruction is taking",))
def constant_folding(failure: Failure) -> Finding | None:
    head = failure.search(r"Constant folding an instruction is taking > (\d+)(?:ms|s)")
    if head is None:
        return None
    instruction = failure.search(r"%(?P<name>[\w.-]+) = (?P<type>\w+)\[(?P<shape>[\d,]*)\]\S* (?P<op>[\w-]+)\(")
    took = failure.search(r"The operation took ([\d.]+)(m?s)")
    size = ""
    facts: dict[str, object] = {}
    if instruction is not None:
        shape = sizes(instruction["shape"])
        count = product(shape)
        megabytes = count * _BYTES.get(instruction["type"], 4) / 1e6
        size = f" {instruction['op']} with a result of {count:,} numbers ({megabytes:.3g} MB)"
        facts = {"operation": instruction["op"], "shape": shape}
    duration = f" It took {took.group(1)} {took.group(2)}." if took else ""
    return Finding(
        what=f"While compiling, XLA computes a constant{size or ' part'}, and that takes long.{duration}",
        why="What depends on no argument of the jitted function is computed once, by the compiler, which is slow for "
        "large arrays. It is a matter of compile time only; the results are right.",
        fixes=[
            Fix(
                "Compute the constant part outside, and pass it as an argument",
                "table = make_table()\n\n@jax.jit\ndef f(x, table):\n    return table.sum() + x\n\nf(x, table)",
            ),
            Fix(
                "Or forbid the folding (set before JAX is imported)",
                "import os\n"
                "os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' "
                "--xla_disable_hlo_passes=constant_folding'",
            ),
        ],
        facts=facts,
    )


@rule("JPX1902", "slow-compile", clues=("Very slow compile",))
def slow_compile(failure: Failure) -> Finding | None:
    # the name in brackets may have been taken for what a log system puts before a line
    match = failure.search(r"(?:\[Compiling module (\S+?)\](?: for \w+)? ?)?Very slow compile\?")
    if match is None:
        return None
    name = re.sub(r"^jit_+|_+$", "", match.group(1) or "") or "a function"
    return Finding(
        what=f"XLA needs minutes to compile {name}.",
        why="A Python loop in a jitted function is written out step by step, so the program grows with the number of "
        "steps; large constants and deep nesting slow the compiler, too.",
        fixes=[
            Fix(
                "Write a long Python loop as a loop of JAX: its body is compiled once",
                "x = jax.lax.fori_loop(0, 1000, lambda i, x: step(x), x)",
            ),
            Fix(
                "Keep compiled programs on disk for the next time",
                "%jaxdevices --cache /tmp/jax_cache"
                if failure.environment.interactive
                else "jax.config.update('jax_compilation_cache_dir', '/tmp/jax_cache')",
            ),
        ],
        facts={"module": match.group(1)},
    )


@rule("JPX1903", "endless-recursion-in-traced-code", types=("RecursionError",), anywhere=True)
def endless_recursion_in_traced_code(failure: Failure) -> Finding | None:
    names = [frame.function for frame in failure.user_frames]
    repeated = max(set(names), key=names.count, default=None)
    traced = failure.frames_removed or any(v.tracer for v in failure.variables.values())
    if repeated is None or repeated == "<module>" or names.count(repeated) < 3 or not traced:
        return None
    tracer = next((name for name, v in failure.variables.items() if v.tracer), None)
    count = next((name for name, v in failure.variables.items() if v.type == "int" and name.isidentifier()), None)
    if count is not None:  # a Python number counts down: it is deep, perhaps not endless
        return Finding(
            what=f"{repeated} calls itself more often than Python allows (about 1000 times) while JAX traces it; here "
            f"`{count}` is {failure.variables[count].value}.",
            why="Python runs the whole recursion while it traces, and every step becomes a part of the compiled "
            "program. A loop of JAX is compiled once, however many steps it makes.",
            fixes=[
                Fix(
                    f"Write {repeated} as a loop",
                    f"result = jax.lax.fori_loop(0, {count}, lambda i, x: step(x), x)",
                ),
                Fix(
                    "Or allow deeper recursion, if it ends (compiling takes long)",
                    "import sys\nsys.setrecursionlimit(100_000)",
                ),
            ],
            facts={"function": repeated, "depth": names.count(repeated)},
        )
    return Finding(
        what=f"{repeated} calls itself without end while JAX traces it"
        + (f": `{tracer}` has no value yet, so no test on it can stop the recursion." if tracer else "."),
        why="While a function is traced, its arguments have no values. jnp.where and lax.cond trace both their sides: "
        "the side that calls the function again is always traced, too.",
        fixes=[
            Fix(
                f"Write {repeated} as a loop",
                "jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] - 1, s[1] * s[0]), (n, 1))",
            ),
            Fix(
                "Or make the depth a compile-time constant, and test it with Python's if",
                f"{repeated} = jax.jit({repeated}, static_argnums=0)",
            ),
        ],
        facts={"function": repeated, "depth": names.count(repeated)},
    )


@rule(
    "JPX1904",
    "large-constants-captured",
    types=("UserWarning",),
    clues=("A large amount of constants were captured during lowering",),
)
def large_constants_captured(failure: Failure) -> Finding | None:
    match = failure.search(r"A large amount of constants were captured during lowering \((.+?) total\)")
    if match is None:
        return None
    arrays = [n for n, v in failure.variables.items() if v.array and not v.tracer and product(_known(v.shape)) > 1e6]
    named = f" (such as {', '.join(arrays[:3])})" if arrays else ""
    return Finding(
        what=f"A jitted function holds {match.group(1)} of arrays from outside{named}, built into the program.",
        why="An array that a jitted function takes from its surroundings becomes a constant of the compiled program: "
        "compiling gets slow, and the memory is needed twice.",
        fixes=[
            Fix(
                "Pass the arrays as arguments",
                f"f = jax.jit(lambda x, {arrays[0] if arrays else 'data'}: ...)".replace("...", "g(x)"),
            ),
        ],
        facts={"size": match.group(1), "arrays": tuple(arrays)},
    )


def _known(shape: tuple[int | None, ...] | None) -> tuple[int, ...]:
    return tuple(n or 1 for n in shape or ())


@rule(
    "JPX1905",
    "compilation-cache",
    types=("UserWarning",),
    clues=("persistent compilation cache entry",),
)
def compilation_cache(failure: Failure) -> Finding | None:
    match = failure.search(r"Error (reading|writing) persistent compilation cache entry for '([^']*)': (\w+): (.*)")
    if match is None:
        return None
    action, module, error, text = match.groups()
    return Finding(
        what=f"The compiled program {module} could not be {'read from' if action == 'reading' else 'written to'} the "
        f"cache on disk: {error}: {text.strip()[:120]}.",
        why="The results are right; the program is only compiled again each time. Often the folder is not writable, "
        "the disk is full, or another version of JAX wrote the file.",
        fixes=[
            Fix(
                "Use a folder of your own",
                "%jaxdevices --cache ~/.cache/jax"
                if failure.environment.interactive
                else "import os\njax.config.update('jax_compilation_cache_dir', os.path.expanduser('~/.cache/jax'))",
            )
        ],
        facts={"module": module, "error": error},
    )
