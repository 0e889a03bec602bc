"""Random numbers: keys, seeds, and what people coming from numpy.random expect."""

from __future__ import annotations

import re

from ..context import Call, Failure, Variable
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, sizes
from ._lines import rewritten

_MAKE_KEY = "key = jax.random.key(0)"


def _random_call(failure: Failure) -> Call | None:
    """The user's call of a function of jax.random, as it can be told from its dotted name and its key."""
    for frame in failure.user_frames:
        for call in frame.calls:
            prefix, _, name = call.function.rpartition(".")
            if not name.isidentifier() or not re.fullmatch(r"jax\.random|(jax_?|j)?(random|rand|rng|r)", prefix):
                continue
            first = failure.variable(call.args[0]) if call.args else None
            if prefix.startswith("j") or is_key(first) or failure.from_jax:
                return call
    return None


def is_key(variable: Variable | None) -> bool:
    """Whether the variable holds one key or an array of keys, new or old style."""
    if variable is None or variable.dtype is None or variable.shape is None:
        return False
    return variable.dtype.startswith("key<") or (variable.dtype == "uint32" and variable.shape[-1:] in ((2,), (4,)))


def _is_key(failure: Failure, source: str) -> bool:
    """Whether a piece of source is a key: a call that makes one, or a variable that holds one."""
    if re.fullmatch(r"(?:[\w.]*\.)?(?:PRNGKey|key|fold_in)\(.*\)", source):
        return True
    variable = failure.variable(source)
    if variable is None or variable.dtype is None:
        return False
    return variable.dtype.startswith("key<") or (variable.dtype == "uint32" and variable.shape == (2,))


@rule("JPX1001", "random-needs-a-key", types=("TypeError",), clues=("PRNG key",))
def random_needs_a_key(failure: Failure) -> Finding | None:
    match = failure.search(r"^unexpected PRNG key type <class '([\w.]+)'>") or failure.search(
        r"^JAX encountered invalid PRNG key data: expected key_data to have ndim, shape, and dtype attributes\. "
        r"Got (.+)"
    )
    if match is None:
        return None
    got = match.group(1).rsplit(".", 1)[-1][:60]
    call = _random_call(failure)
    shown = "A function of jax.random"
    fixes = [Fix("Make a key and pass it first", f"{_MAKE_KEY}\nx = jax.random.normal(key, (3, 2))")]
    if call is not None:
        shown = f"`{call.function}({call.args[0]}, …)`" if len(call.args) > 1 else f"`{call.source}`"
        shape = bool(call.args) and re.match(r"[(\[]|\w+\.shape$", call.args[0])
        number = bool(call.args) and re.fullmatch(r"\d+", call.args[0])
        new = call.source.replace("(", "(key, ", 1).replace("(key, )", "(key)")
        make = _MAKE_KEY
        if shape and len(call.args) > 1 and re.match(r"[(\[]", call.args[1]):
            shape = None  # the shape comes after it: this stands in the key's place
        if not shape and call.args:
            new = call.source.replace(f"({call.args[0]}", "(key", 1)
        swapped = next((a for a in call.args[1:] if _is_key(failure, a)), None)
        if swapped is not None:  # the key is there, in another place
            rest = [a for a in call.args if a != swapped]
            new = f"{call.function}({', '.join([swapped, *rest, *(f'{k}={v}' for k, v in call.keywords.items())])})"
            make = ""
        elif number and len(call.args) > 1:
            make = f"key = jax.random.key({call.args[0]})"
        title = "Make a key and pass it first" if make else "Pass the key first"
        fixes = [Fix(title, f"{make}\n{rewritten(failure, call.source, new)}".lstrip("\n"))]
    fixes.append(
        Fix(
            "For new numbers each time, split the key before each use",
            "key, subkey = jax.random.split(key)\nx = jax.random.normal(subkey, (3, 2))",
        )
    )
    kind = "no key" if got == "NoneType" else f"a value of type {got}" if got.isidentifier() else got
    return Finding(
        what=f"{shown} got {kind} where its first argument, a random key, belongs.",
        why="jax.random has no hidden state as numpy.random has: every call gets a key, and the same key gives the "
        "same numbers. The shape comes after it.",
        fixes=fixes,
        facts={"got": got},
    )


@rule(
    "JPX1002",
    "one-key-needed",
    types=("TypeError", "ValueError"),
    clues=("accepts a single key, but was given a key array",),
)
def one_key_needed(failure: Failure) -> Finding | None:
    match = failure.search(r"\b(\w+) accepts a single key, but was given a key array of shape \(([\d, ]*)\) != \(\)")
    if match is None:
        return None
    name, shape = match.group(1), sizes(match.group(2))
    call = next((c for f in failure.user_frames for c in f.calls if c.name == name), None)
    keys = call.args[0] if call is not None and call.args else call.keywords.get("key") if call is not None else None
    variable = failure.variable(keys)
    # the message shows old keys, which are two numbers each, with these two numbers
    old = variable is not None and variable.dtype == "uint32"
    batch = (variable.shape if variable is not None and variable.shape else shape)[: -1 if old else None]
    number = batch[0] if batch else shape[0]
    fixes = []
    if call is not None and keys is not None:
        each = f"jax.vmap(lambda key: {call.source.replace(keys, 'key', 1)})({keys})"
        fixes.append(Fix("Draw for every key", rewritten(failure, call.source, each)))
        one = call.source.replace(keys, f"{keys}[0]" if re.fullmatch(r"[\w.]+", keys) else f"({keys})[0]", 1)
        fixes.append(Fix("Or use one of them", rewritten(failure, call.source, one)))
    else:
        fixes.append(Fix("Draw for every key", f"jax.vmap(lambda key: jax.random.{name}(key, (3,)))(keys)"))
        fixes.append(Fix("Or use one of them", f"jax.random.{name}(keys[0], (3,))"))
    shown = f"`{keys}`, an array of {counted(number or 0, 'key')}" if keys else f"an array of keys of shape {shape}"
    return Finding(
        what=f"jax.random.{name} takes one key, and got {shown}.",
        why="One key makes one set of numbers. jax.random.split returns several keys: use each once, or map over "
        "them with vmap.",
        fixes=fixes,
        facts={"function": name, "keys": keys, "shape": shape, "number": number},
    )


@rule(
    "JPX1003",
    "seed-not-an-integer",
    types=("TypeError", "ValueError", "OverflowError"),
    clues=("PRNG key seed must be an integer", "too large to convert to C long", "is not a valid value for jnp.array"),
)
def seed_not_an_integer(failure: Failure) -> Finding | None:
    call = failure.call("key", "PRNGKey")
    seed = call.args[0] if call is not None and call.args else call.keywords.get("seed") if call is not None else None
    function = call.function if call is not None else "jax.random.key"
    match = failure.search(r"PRNG key seed must be an integer; got .*?~?((?:b?float|complex|bool)\d*)?\b", re.S)
    dtype = re.search(r"\b(bfloat16|float\d+|complex\d+|bool)\[", match.string[match.start() :]) if match else None
    if match is not None:
        got = dtype.group(1) if dtype else "no integer"
        new = f"int({seed or 'seed'})"
        title = "Make it a whole number"
        what = f"The seed {f'`{seed}` ' if seed else ''}is of type {got}, and a seed is a whole number."
    elif failure.is_a("OverflowError") and call is not None and seed and failure.from_jax is not False:
        new, got, title = f"({seed}) % 2**32", "too large", "Keep 32 bits of it"
        what = f"The seed `{seed}` is too large: it has more than 64 bits."
    elif call is not None and seed and failure.search(r"^None is not a valid value for jnp\.array"):
        new, got, title = "0", "None", "Choose a seed"
        what = f"The seed `{seed}` is None, and a seed is a whole number: JAX never takes one from the clock."
    else:
        return None
    code = call.source.replace(seed, new, 1) if call is not None and seed else f"{function}({new})"
    return Finding(
        what=what,
        why="The key is made from the bits of an integer, so that the same seed gives the same numbers everywhere.",
        fixes=[Fix(title, (failure.rewrite(call.source, code) if call is not None else None) or code)],
        facts={"seed": seed, "got": got},
    )


@rule(
    "JPX1004",
    "seed-not-one-number",
    types=("TypeError",),
    clues=(
        "accepts a scalar seed, but was given an array",
        "PRNG key seed must be a scalar",
        "fold_in accepts a scalar",
    ),
)
def seed_not_one_number(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\b(\w+) accepts a scalar(?: seed)?, but was given an array of\s?shape \(([\d, ]*)\)"
    ) or failure.search(r"(PRNG key) seed must be a scalar; got .*?\[([\d,]*)\]")
    if match is None:
        return None
    name, shape = match.group(1), sizes(match.group(2))
    call = failure.call("fold_in" if name == "fold_in" else name)
    number = shape[0] if shape else 0
    if name == "fold_in":
        key, data = (call.args[:2] if call is not None and len(call.args) > 1 else ("key", "numbers"))[:2]
        new = f"jax.vmap(lambda n: jax.random.fold_in({key}, n))({data})"
        what = f"fold_in takes one number, and got an array of shape {shape}."
        fixes = [
            Fix(
                "Make one key for each number", (failure.rewrite(call.source, new) if call is not None else None) or new
            )
        ]
    else:
        function = call.function if call is not None else "jax.random.key"
        seeds = call.args[0] if call is not None and call.args else "seeds"
        new = f"jax.vmap({function})({seeds})"
        what = f"{function} takes one number as seed, and got an array of shape {shape}."
        split = f"jax.random.split(jax.random.key(0), {number})"
        fixes = [
            Fix("Make one key for each seed", (failure.rewrite(call.source, new) if call is not None else None) or new),
            Fix(
                f"Or make {counted(number, 'key')} from one seed",
                (failure.rewrite(call.source, split) if call is not None else None) or split,
            ),
        ]
    return Finding(
        what=what,
        why="One seed makes one key. Independent keys come from split, or from mapping over seeds.",
        fixes=fixes,
        facts={"function": name, "shape": shape},
    )


@rule("JPX1005", "seed-is-a-key", types=("TypeError",), clues=("accepts a scalar seed, but was given a PRNG key",))
def seed_is_a_key(failure: Failure) -> Finding | None:
    match = failure.search(r"\b(\w+) accepts a scalar seed, but was given a PRNG key\b")
    if match is None:
        return None
    call = failure.call(match.group(1))
    key = call.args[0] if call is not None and call.args else "key"
    code = failure.rewrite(call.source, key) if call is not None else None
    return Finding(
        what=f"{match.group(1)} makes a key from a number, and got `{key}`, which is a key already.",
        why="A key is made once from a seed; further keys are split off from it.",
        fixes=[
            Fix("Use the key as it is", code or "subkey = key"),
            Fix(
                "Or get a new one from it",
                f"{key}, subkey = jax.random.split({key})"
                if key.isidentifier()
                else f"subkey = jax.random.split({key})[1]",
            ),
        ],
        facts={"key": key},
    )


@rule(
    "JPX1006",
    "keys-unpacked",
    types=("ValueError", "TypeError"),
    clues=("values to unpack", "iteration over a 0-d key array"),
    anywhere=True,
)
def keys_unpacked(failure: Failure) -> Finding | None:
    frame = failure.user
    statement = (frame.statement or frame.source or "") if frame is not None else ""
    single = failure.search(r"^iteration over a 0-d key array$")
    if single is not None:
        target = re.match(r"([\w, ()*]+?)\s*=\s*(\w+)$", statement)
        names = target.group(1) if target else "key, subkey"
        key = target.group(2) if target else "key"
        count = names.count(",") + 1
        code = f"{names} = jax.random.split({key}{f', {count}' if count != 2 else ''})"
        return Finding(
            what=f"`{statement}` takes a single random key apart, as if it were several."
            if statement
            else "A single random key is taken apart, as if it were several.",
            why="A key is one value. jax.random.split makes several of it.",
            fixes=[Fix("Split the key", code)],
            facts={"statement": statement},
        )
    match = failure.search(r"^(not enough|too many) values to unpack \(expected (\d+)(?:, got (\d+))?\)$")
    call = failure.call("split")
    if match is None or call is None or frame is None or call not in frame.calls or "=" not in statement:
        return None
    prefix = call.function.rpartition(".")[0]
    first = failure.variable(call.args[0]) if call.args else None
    if not (re.fullmatch(r"jax\.random|(jax_?|j)?(random|rand|r)", prefix) or (not prefix and is_key(first))):
        return None
    if not prefix.startswith("j") and not is_key(first):
        return None
    expected = int(match.group(2))
    asked = call.args[1] if len(call.args) > 1 else call.keywords.get("num")
    key = call.args[0] if call.args else "key"
    new = f"{call.function}({key}, {expected})"
    return Finding(
        what=f"`{call.source}` makes {f'`{asked}`' if asked else '2'} keys, unpacked into {expected} names.",
        why="jax.random.split(key) makes 2 keys; split(key, n) makes n.",
        fixes=[Fix(f"Split into {expected}", rewritten(failure, call.source, new))],
        facts={"expected": expected, "asked": asked},
    )


_FROM_NUMPY = {
    "seed": "key = jax.random.key({args})",
    "default_rng": "key = jax.random.key({args})",
    "RandomState": "key = jax.random.key({args})",
    "Generator": "key = jax.random.key(0)",
    "rand": "jax.random.uniform(key, ({args},))",
    "randn": "jax.random.normal(key, ({args},))",
    "random": "jax.random.uniform(key, {args})",
    "random_sample": "jax.random.uniform(key, {args})",
    "standard_normal": "jax.random.normal(key, {args})",
    "random_integers": "jax.random.randint(key, (10,), 0, 100)",
    "integers": "jax.random.randint(key, (10,), 0, 100)",
    "shuffle": "x = jax.random.permutation(key, {last})",
    "standard_exponential": "jax.random.exponential(key, {args})",
    "negative_binomial": "jax.random.poisson(subkey, jax.random.gamma(key, n, (10,)) * (1 - p) / p)",
    "standard_gamma": "jax.random.gamma(key, {args})",
    "standard_cauchy": "jax.random.cauchy(key, {args})",
    "standard_t": "jax.random.t(key, {args})",
    "chi": "jax.numpy.sqrt(jax.random.chisquare(key, df))",
    "get_state": "state = jax.random.key_data(key)",
    "set_state": "key = jax.random.wrap_key_data(state)",
}


@rule("JPX1007", "numpy-random-names", types=("AttributeError",), clues=("module 'jax.random' has no attribute",))
def numpy_random_names(failure: Failure) -> Finding | None:
    match = failure.search(r"module 'jax\.random' has no attribute '(\w+)'")
    if match is None or match.group(1) not in _FROM_NUMPY:
        return None
    name = match.group(1)
    call = failure.call(name)
    arguments = ", ".join(call.args) if call is not None else ""
    last = call.args[-1] if call is not None and call.args else "x"
    template = _FROM_NUMPY[name]
    if not arguments:
        arguments = "0" if "jax.random.key(" in template else "10" if template.endswith(",))") else "(10,)"
    if name == "shuffle":
        template = template.replace("x =", f"{last} =") if last.isidentifier() else template
    new = template.format(args=arguments, last=last)
    makes_key = "jax.random.key(" in new
    code = new
    if not makes_key:
        whole = failure.rewrite(call.source, new) if call is not None and name != "shuffle" else None
        code = f"{_MAKE_KEY}\n{whole or new}"
    fixes = [Fix("Make a key from a seed" if makes_key else "Make a key, and draw with it", code)]
    if makes_key:
        fixes.append(Fix("And draw with it", "x = jax.random.normal(key, (10,))"))
    fixes.append(Fix("For the next numbers, split a new key off", "key, subkey = jax.random.split(key)"))
    return Finding(
        what=f"numpy.random has {name}, and jax.random has not.",
        why="numpy.random keeps a hidden state that every call changes. JAX functions have no hidden state, so the "
        "state is a key that you pass, and split for new numbers.",
        fixes=fixes,
        facts={"name": name},
    )


@rule("JPX1007", "numpy-random-names", types=("AttributeError",), clues=("module 'jax.numpy' has no attribute",))
def random_of_jax_numpy(failure: Failure) -> Finding | None:
    if not failure.search(r"^module 'jax\.numpy' has no attribute 'random'$"):
        return None
    frame = failure.user
    call = next(
        (c for c in (frame.calls if frame is not None else ()) if re.search(r"\.random\.\w+$", c.function)), None
    )
    name = call.name if call is not None else "normal"
    name = {"rand": "uniform", "randn": "normal", "random": "uniform", "standard_normal": "normal"}.get(name, name)
    size = "(3,)"
    if call is not None:
        given = call.keywords.get("size") or (", ".join(call.args) if call.name in ("rand", "randn") else None)
        size = given or (call.args[-1] if call.args else size)
        size = size if size.startswith("(") else f"({size},)"
    new = f"jax.random.{name}(key, {size})"
    line = failure.rewrite(call.source, new) if call is not None else None
    return Finding(
        what="numpy has random numbers in numpy.random; JAX has them in jax.random, not in jax.numpy, and they need a "
        "key.",
        why="numpy.random keeps a hidden state that every call changes. JAX functions have no hidden state, so the "
        "state is a key that you pass, and split for new numbers.",
        fixes=[
            Fix("Make a key, and draw with it", f"{_MAKE_KEY}\n{line or new}"),
            Fix("For the next numbers, split a new key off", "key, subkey = jax.random.split(key)"),
        ],
        facts={"name": name},
    )


@rule(
    "JPX1008",
    "key-is-no-number",
    types=("TypeError", "ValueError"),
    clues=("key<", "PRNGKey", "key array cannot be converted to boolean"),
)
def key_is_no_number(failure: Failure) -> Finding | None:
    operation = failure.search(r"^(\w+) does not accept dtypes? ([^.]*key<\w+>[^.]*?)(?: at position \d+)?\.")
    convert = failure.search(r"^Cannot convert_element_type from (key<\w+>) to (\w+)") or failure.search(
        r"^JAX array with PRNGKey dtype cannot be converted to a NumPy array"
    )
    other = failure.search(r"dtype=(key<\w+>)[^\n]*is not a valid dtype for JAX type promotion") or failure.search(
        r"argument must be a string or a real number, not '(PRNGKeyArray)'"
        r"|^key array cannot be converted to boolean"
        r"|only accepts? .*? got (?:dtype )?(key<\w+>)"
    )
    if operation is not None:
        what = f"The operation {operation.group(1)} got a random key ({operation.group(2).strip()}), not numbers."
    elif convert is not None:
        what = "A random key was to be turned into ordinary numbers."
    elif other is not None:
        what = "A random key was used as if it were a number."
    else:
        return None
    names = [name for name, variable in failure.variables.items() if is_key(variable) and name.isidentifier()]
    key = names[0] if len(names) == 1 else "key"
    return Finding(
        what=what + (f" The key is `{key}`." if len(names) == 1 else ""),
        why="A key made by jax.random.key is an opaque value with a dtype of its own: it can be split, indexed and "
        "passed to jax.random, but not be calculated with.",
        fixes=[
            Fix("Make numbers with the key", f"x = jax.random.normal({key}, (3,))"),
            Fix("Or look at its raw bits (to save them, say)", f"bits = jax.random.key_data({key})"),
            Fix("For another key that depends on a number", f"subkey = jax.random.fold_in({key}, 1)"),
        ],
        facts={"operation": operation.group(1) if operation else None},
    )


@rule("JPX1009", "not-a-key", types=("TypeError",), clues=("JAX encountered invalid PRNG key data",))
def not_a_key(failure: Failure) -> Finding | None:
    shape = failure.search(r"expected key_data\.shape to end with \((\d+),\); got shape=\(([\d, ]*)\)")
    ndim = failure.search(r"expected key_data\.ndim >= 1; got ndim=0")
    dtype = failure.search(r"expected key_data\.dtype = uint32; got dtype=(\w+)")
    if shape is None and ndim is None and dtype is None:
        return None
    call = _random_call(failure)
    key = call.args[0] if call is not None and call.args else None
    variable = failure.variable(key)
    got = str(variable) if variable is not None and variable.array else None
    if got is None:
        got = (
            f"an array of shape {sizes(shape.group(2))}"
            if shape
            else f"an array of dtype {dtype.group(1)}"
            if dtype
            else "a single number"
        )
    shown = f"`{key}` ({got})" if key else got
    fixes = [
        Fix("Make a key from a seed", "key = jax.random.key(0)\nx = jax.random.normal(key, (3,))"),
    ]
    if ndim is not None:
        mapped = next(
            (c for f in failure.user_frames[1:] for c in f.calls if re.fullmatch(r".*[kK]ey\(.*\)", (*c.args, "")[0])),
            None,
        )
        if mapped is not None:  # vmap took the two numbers of one key for two keys
            new = f"{mapped.function}({', '.join([f'jax.random.split({mapped.args[0]}, 10)', *mapped.args[1:]])})"
            fixes = [Fix("Map over as many keys as there are items (10 here): split the key", new)]
        made = re.fullmatch(r"(.+?) = (.+[kK]ey\(.*\))", failure.definitions.get(key or "", ""))
        code = f"{made.group(1)} = jax.random.split({made.group(2)})" if made else "key, subkey = jax.random.split(key)"
        fixes.insert(1 if mapped is not None else 0, Fix("Split a key: taking it apart gives its raw bits", code))
    need = f"of {shape.group(1)} uint32 numbers" if shape else "of uint32 numbers"
    return Finding(
        what=f"{call.function if call is not None else 'A function of jax.random'} got {shown} where a random key "
        "belongs.",
        why=f"A key is made by jax.random.key or split. (An old-style key is an array {need}; others are no keys.)",
        fixes=fixes,
        facts={"key": key, "got": got},
    )


@rule(
    "JPX1010",
    "sample-larger-than-population",
    types=("ValueError",),
    clues=("than population (size",),
)
def sample_larger_than_population(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^Cannot take a larger sample \(size (\d+)\) than population \(size (\d+)\) when 'replace=False'"
    )
    if match is None:
        return None
    size, population = int(match.group(1)), int(match.group(2))
    call = failure.call("choice")
    new = re.sub(r"replace\s*=\s*\w+", "replace=True", call.source) if call is not None else None
    code = failure.rewrite(call.source, new) if call is not None and new and new != call.source else None
    return Finding(
        what=f"choice was to draw {size} of {counted(population, 'item')} without putting them back.",
        why="Without replacement each item is drawn at most once.",
        fixes=[
            Fix("Draw with replacement", code or f"jax.random.choice(key, {population}, ({size},), replace=True)"),
            Fix(f"Or draw at most {population}", f"jax.random.permutation(key, {population})"),
        ],
        facts={"size": size, "population": population},
    )


@rule(
    "JPX1011",
    "choice-probabilities",
    types=("ValueError",),
    clues=("p must be None or a 1D vector with the same size as a.shape[axis]",),
)
def choice_probabilities(failure: Failure) -> Finding | None:
    match = failure.search(r"p has shape \(([\d, ]*)\) and a\.shape\[axis\] is (\d+)")
    if match is None:
        return None
    shape, number = sizes(match.group(1)), int(match.group(2))
    return Finding(
        what=f"choice draws from {counted(number, 'item')}, and the probabilities p have the shape {shape}.",
        why="p holds one probability for each item that can be drawn.",
        fixes=[Fix(f"Give {number} probabilities", f"p = jax.numpy.ones({number}) / {number}  # one for each item")],
        facts={"shape": shape, "items": number},
    )


@rule(
    "JPX1012",
    "random-shape",
    types=("ValueError", "TypeError"),
    clues=("parameter shapes must be broadcast-compatible with shape argument", "shape argument of jax.random.choice"),
)
def random_shape(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^(\w+) parameter shapes must be broadcast-compatible with shape argument, .*?but got result \(([\d, ]*)\) "
        r"for shape argument \(([\d, ]*)\)",
        re.S,
    )
    choice = failure.search(r"^shape argument of jax\.random\.choice must be a sequence, got (.+)")
    if match is not None:
        name, result, shape = match.group(1), sizes(match.group(2)), sizes(match.group(3))
        call = failure.call(name)
        shaped, unshaped = f"jax.random.{name}(key, parameters, shape={result})", f"jax.random.{name}(key, parameters)"
        if call is not None and "shape" in call.keywords:
            shaped, unshaped = call.changed(shape=str(result)), call.changed(shape=None)
        return Finding(
            what=f"{name} was to draw numbers of shape {shape}, but its parameters need the shape {result}.",
            why="shape is the shape of the whole result, parameters included: in numpy's terms size, with the "
            "parameters broadcast to it.",
            fixes=[
                Fix(
                    f"Ask for the shape {result}",
                    shaped,
                ),
                Fix("Or leave shape away: it follows from the parameters", unshaped),
            ],
            facts={"function": name, "result": result, "shape": shape, "call": call.source if call else None},
        )
    if choice is not None:
        call = failure.call("choice")
        given = choice.group(1).strip()
        source = call.args[2] if call is not None and len(call.args) > 2 else call and call.keywords.get("shape")
        old = f", {source})" if source else ""
        new = call.source.replace(source, f"({source},)", 1) if call is not None and source and old else None
        return Finding(
            what=f"choice takes the shape of its result as a tuple, and got {given}.",
            why="The shape is a tuple with one number for each axis, also for a single axis.",
            fixes=[
                Fix(
                    "Write the shape as a tuple",
                    (failure.rewrite(call.source, new) if call is not None and new else None)
                    or f"jax.random.choice(key, a, ({given},))",
                )
            ],
            facts={"shape": given},
        )
    return None


@rule(
    "JPX1013",
    "random-dtype",
    types=("ValueError", "TypeError"),
    clues=("dtype argument to `", "randint only accepts", "uniform only accepts", "must have a floating dtype"),
)
def random_dtype(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^dtype argument to `(\w+)` must be (?:a |an )?((?:[\w ]+)) dtype, got (.+?)\.?$", re.M
    ) or failure.search(r"^(randint|uniform|truncated_normal) only accepts ([\w ,-]+?) dtypes, ?got (.+?)\.?$", re.M)
    probability = failure.search(r"^(bernoulli) probability `p` must have a floating dtype, got (\w+)")
    if match is not None:
        name, need, got = match.groups()
        got = re.sub(r"<class '([\w.]+)'>", r"\1", got)
        kind = "integers" if "int" in got else "floats"
        fixes = [Fix(f"Ask for the dtype that {name} makes", f"jax.random.{name}(key, (3,))  # float32 unless said")]
        if kind == "integers" and name != "randint":
            fixes.append(Fix("Or draw whole numbers", "jax.random.randint(key, (3,), 0, 10)"))
        elif name == "randint":
            fixes = [
                Fix("Leave dtype away, or convert the result", "jax.random.randint(key, (3,), 0, 10).astype(float)")
            ]
        what = f"jax.random.{name} makes numbers of {need} types, and {got} was asked for."
    elif probability is not None:
        name, got = probability.groups()
        call = failure.call("bernoulli")
        p = call.args[1] if call is not None and len(call.args) > 1 else None
        new = f"{p}.0" if p and re.fullmatch(r"\d+", p) else f"jax.numpy.asarray({p or 'p'}, float)"
        code = failure.rewrite(call.source, call.source.replace(p, new, 1)) if call is not None and p else None
        need = "floating"
        what = f"The probability {f'`{p}` ' if p else ''}given to bernoulli is of type {got}."
        fixes = [Fix("Give a floating-point probability between 0 and 1", code or f"jax.random.bernoulli(key, {new})")]
    else:
        return None
    return Finding(
        what=what,
        why="Each distribution of jax.random makes numbers of one kind (floats, or integers), and JAX does not round "
        "or convert them by itself.",
        fixes=fixes,
        facts={"function": name, "needed": need, "got": got},
    )


@rule(
    "JPX1014",
    "multivariate-normal-shapes",
    types=("ValueError",),
    clues=("multivariate_normal requires",),
)
def multivariate_normal_shapes(failure: Failure) -> Finding | None:
    match = failure.search(r"^multivariate_normal requires (\w+)\.(ndim|shape) (.+?), (?:but )?got (.+?)\.?$", re.M)
    if match is None:
        return None
    name, which, need, got = match.groups()
    return Finding(
        what=f"multivariate_normal got {got}; it needs {name}.{which} {need}.",
        why="For n dimensions the mean has the shape (n,) and the covariance the shape (n, n).",
        fixes=[
            Fix(
                "Give both their axes",
                "jax.random.multivariate_normal(key, jax.numpy.zeros(2), jax.numpy.eye(2))",
            ),
            Fix("For one dimension, scale a normal", "mean + deviation * jax.random.normal(key)"),
        ],
        facts={"argument": name, "got": got},
    )


@rule("JPX1015", "unknown-generator", types=("ValueError",), clues=("unrecognized PRNG implementation",))
def unknown_generator(failure: Failure) -> Finding | None:
    match = failure.search(r'unrecognized PRNG implementation "([^"]*)"\. Did you mean one of: (.+?)\?')
    if match is None:
        return None
    known = re.findall(r'"([^"]+)"', match.group(2))
    call = failure.call("key", "PRNGKey", "wrap_key_data")
    new = re.sub(r"impl\s*=\s*[^,)]+", "impl='threefry2x32'", call.source) if call is not None else None
    code = failure.rewrite(call.source, new) if call is not None and new != call.source and new else None
    return Finding(
        what=f"There is no random generator named {match.group(1)!r}; JAX has {', '.join(known)}.",
        why="impl chooses the algorithm. threefry2x32 is the default; rbg is faster on TPUs.",
        fixes=[Fix("Use the default generator", code or "key = jax.random.key(0)")],
        facts={"name": match.group(1), "known": tuple(known)},
    )


@rule("JPX1016", "key-used-twice", types=("KeyReuseError",))
def key_used_twice(failure: Failure) -> Finding | None:
    call = _random_call(failure)
    key = call.args[0] if call is not None and call.args and call.args[0].isidentifier() else "key"
    loop = failure.search(r"^(scan|while_loop) ")
    new = call.source.replace(f"({key}", "(subkey", 1) if call is not None else None
    code = f"{key}, subkey = jax.random.split({key})"
    if call is not None and new is not None:
        code += "\n" + (rewritten(failure, call.source, new))
    fixes = [Fix("Split a new key off before each use", code)]
    if loop is not None:
        fixes = [
            Fix(
                "Split inside the loop, and carry the key on",
                "def step(key, x):\n    key, subkey = jax.random.split(key)\n"
                "    return key, x + jax.random.normal(subkey)",
            )
        ]
    return Finding(
        what=f"The random key {f'`{key}` ' if call is not None else ''}is used a second time"
        + (f": {loop.group(1)} uses it again in every step." if loop else "."),
        why="The same key gives the same numbers. The check jax_debug_key_reuse, which is on, finds keys that are used "
        "twice.",
        fixes=fixes,
        facts={"key": key if call is not None else None},
    )


@rule(
    "JPX1017",
    "raw-key-array",
    types=("ValueError", "UserWarning", "FutureWarning"),
    clues=("Legacy uint32 key array passed as key", "Raw arrays as random keys to jax.random functions are deprecated"),
)
def raw_key_array(failure: Failure) -> Finding | None:
    if not failure.search(
        r"^Legacy uint32 key array passed as key to jax\.random function|^Raw arrays as random keys to jax\.random"
    ):
        return None
    return Finding(
        what="A random key is an old-style one: a plain array of uint32 numbers, as jax.random.PRNGKey makes them.",
        why="jax.random.key makes keys with a type of their own, so that they cannot be taken for numbers. Your "
        "settings (jax_legacy_prng_key or jax_enable_custom_prng) ask for these.",
        fixes=[
            Fix("Make new-style keys", "key = jax.random.key(0)"),
            Fix("Or turn an old key into a new one", "key = jax.random.wrap_key_data(key)"),
        ],
    )


_KEYWORDS = {"size": "shape", "low": "minval", "high": "maxval", "seed": "key", "rng": "key"}


@rule(
    "JPX1018",
    "random-arguments",
    types=("TypeError", "TracerArrayConversionError"),
    clues=(
        "unexpected keyword argument",
        "missing",
        "while tracing the function _randint at",
        "object is not iterable",
        "as a data type",
        "requires ndarray or scalar arguments, got <class 'tuple'>",
    ),
    priority=20,
)
def random_arguments(failure: Failure) -> Finding | None:
    call = _random_call(failure)
    if call is None or failure.user is None or call not in failure.user.calls:
        return None
    keyword = failure.search(r"^(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'")
    missing = failure.search(r"^(?:\w+\.)*(\w+)\(\) missing (\d+) required positional arguments?: (.+)$")
    order = failure.is_a("TracerArrayConversionError") and call.name == "randint" and len(call.args) == 4
    dtype = failure.search(r"^Cannot interpret '(.*)' as a data type$") if len(call.args) == 3 else None
    # two whole numbers may be sizes without their brackets: JPX0827
    bounds = dtype is not None and not (dtype.group(1).isdigit() and re.fullmatch(r"[1-9]\d*", call.args[1]))
    if keyword is not None and keyword.group(1) == call.name:
        name = keyword.group(2)
        what = f"{call.function} has no parameter {name}: its parameters differ from numpy's."
        if name in _KEYWORDS:
            new = re.sub(rf"\b{name}\s*=", f"{_KEYWORDS[name]}=", call.source)
            fixes = [Fix(f"The parameter is called {_KEYWORDS[name]}", rewritten(failure, call.source, new))]
        elif name in ("loc", "scale"):
            key = call.args[0] if call.args else "key"
            rest = "".join(f", {a}" for a in call.args[1:])
            shape = call.keywords.get("size") or call.keywords.get("shape")
            rest += f", shape={shape}" if shape and not rest else ""
            new = f"{call.keywords.get('loc', '0.0')} + {call.keywords.get('scale', '1.0')} * "
            new += f"{call.function}({key}{rest})"
            fixes = [Fix("Shift and scale standard numbers", rewritten(failure, call.source, new))]
        else:
            fixes = [Fix("See its parameters", f"help({call.function})")]
    elif missing is not None and missing.group(1) == call.name:
        names = missing.group(3)
        what = f"{call.function} also needs {names}."
        if call.name == "randint":
            first = call.args[0] if call.args else "key"
            shape = next((a for a in call.args[1:] if a.startswith("(")), "(10,)")
            fixes = [Fix("Give key, shape, minval and maxval", f"jax.random.randint({first}, {shape}, 0, 10)")]
        elif "'key'" in names or (call.args and not _is_key(failure, call.args[0])):
            new = call.source.replace("()", "(key)") if not call.args else call.source.replace("(", "(key, ", 1)
            fixes = [Fix("Make a key and pass it first", f"{_MAKE_KEY}\n{rewritten(failure, call.source, new)}")]
        else:
            fixes = [Fix("See its parameters", f"help({call.function})")]
    elif failure.search(r"^'(?:float|int)' object is not iterable$|got <class 'tuple'> at position") and (
        len(call.args) == 3 and re.match(r"\(", call.args[1]) and call.name in ("bernoulli", "poisson", "exponential",
                                                                               "gamma", "dirichlet", "t", "pareto")
    ):  # fmt: skip
        key, shape, parameter = call.args
        new = f"{call.function}({key}, {parameter}, {shape})"
        what = f"{call.function} takes the key, the parameter, and then the shape; `{shape}` stands for the parameter."
        fixes = [Fix("Give the shape last", rewritten(failure, call.source, new))]
    elif bounds and call.name == "uniform":
        key, low, high = call.args
        shape = call.keywords.get("shape", "()")
        what = f"{call.function} takes the shape after the key, then the dtype: `{high}` stands for the dtype."
        new = f"{call.function}({key}, {shape}, minval={low}, maxval={high})"
        fixes = [Fix("Give the bounds by name", rewritten(failure, call.source, new))]
    elif bounds and call.name == "normal":
        key, mean, spread = call.args
        shape = call.keywords.get("shape", "()")
        what = f"{call.function} takes the shape after the key, then the dtype: `{spread}` stands for the dtype."
        new = f"{mean} + {spread} * {call.function}({key}, {shape})"
        fixes = [Fix("Shift and scale standard numbers", rewritten(failure, call.source, new))]
    elif order:
        key, low, high, shape = call.args
        new = f"{call.function}({key}, {shape}, {low}, {high})"
        what = f"randint's arguments are in numpy's order: after the key comes the shape, and `{low}` stands there."
        fixes = [Fix("Give key, shape, minval, maxval", rewritten(failure, call.source, new))]
    else:
        return None
    return Finding(
        what=what,
        why="Functions of jax.random take the key first and the shape of the result as a tuple; there is no loc, "
        "scale or size.",
        fixes=fixes,
        facts={"function": call.function},
    )
