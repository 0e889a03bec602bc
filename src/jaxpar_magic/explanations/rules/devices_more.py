"""Flags and settings that are wrong, pmap's arguments, and libraries that ask for more devices."""

from __future__ import annotations

import difflib
import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from ..wording import counted, device_count_fix, listed
from ._lines import rewritten

# Flags that people set by hand; the names of all are only in the compiled library.
_FLAGS = (
    "--xla_force_host_platform_device_count",
    "--xla_cpu_multi_thread_eigen",
    "--xla_cpu_enable_fast_math",
    "--xla_dump_to",
    "--xla_dump_hlo_as_text",
    "--xla_dump_hlo_pass_re",
    "--xla_gpu_autotune_level",
    "--xla_gpu_deterministic_ops",
    "--xla_gpu_enable_latency_hiding_scheduler",
    "--xla_gpu_enable_triton_gemm",
    "--xla_gpu_cuda_data_dir",
    "--xla_gpu_strict_conv_algorithm_picker",
    "--xla_backend_optimization_level",
    "--xla_disable_hlo_passes",
    "--xla_hlo_profile",
)
_COUNT = "--xla_force_host_platform_device_count"
_FLAGS_WHY = (
    "XLA reads XLA_FLAGS when the back end starts, and ends the whole process if it does not understand a part of it. "
    "Flags are words of the form --name=value with spaces between them."
)


def _set_flags(text: str) -> str:
    return f'import os\nos.environ["XLA_FLAGS"] = "{text}"  # before the first use of JAX, in a new process'


# -- XLA_FLAGS ---------------------------------------------------------------------------------------


@rule("JPX0110", "unknown-xla-flag", clues=("Unknown flag",))
def unknown_xla_flag(failure: Failure) -> Finding | None:
    match = failure.search(r"Unknown flags? in XLA_FLAGS: ([^\n]+)")
    if match is None:
        return None
    words = match.group(1).split()
    good = [_mended(word) for word in words]
    known = [word for word in good if word is not None]
    dashed = next((word for word in words if re.match(r"[-–—−]*[–—−]", word)), None)
    bare = next((word for word in words if word in _FLAGS), None)
    what = f"XLA_FLAGS holds {listed(words)}, which this XLA does not know, so it ended the process."
    if dashed is not None:
        what += (
            f" {dashed} begins with a typographic dash, as web pages and word processors write it, not with two "
            "hyphens."
        )
    elif bare is not None:
        what += f" {bare} needs a value: {bare}=…"
    elif known:
        what += f" {known[0].split('=')[0]} is meant, it seems."
    fixes = []
    if known:
        fixes.append(Fix("Write the flag as XLA knows it", _set_flags(" ".join(known))))
    fixes.append(
        Fix(
            "Take it out, and start anew (the names of flags differ between versions)",
            'import os\nos.environ.pop("XLA_FLAGS", None)  # before the first use of JAX, in a new process',
        )
    )
    return Finding(
        what=what,
        why=_FLAGS_WHY,
        fixes=fixes,
        facts={"flags": tuple(words), "meant": tuple(known)},
    )


def _mended(word: str) -> str | None:
    """The flag that `word` was meant to be, or None."""
    name, equals, value = re.sub(r"^[-–—−]+", "--", word).partition("=")
    near = difflib.get_close_matches(name, _FLAGS, 1, 0.85)
    if not near or (near[0] == word.partition("=")[0] and equals):
        return None
    return f"{near[0]}={value}" if equals else f"{near[0]}=VALUE"


@rule("JPX0111", "xla-flags-without-hyphens", clues=("because it did not start with a",))
def xla_flags_without_hyphens(failure: Failure) -> Finding | None:
    match = failure.search(r'Could not open file "([^"]*)" to read flags for environment variable "XLA_FLAGS"')
    if match is None:
        return None
    text = match.group(1)
    good = "--" + text.lstrip("-–—− ")
    fixes = [Fix("Put two hyphens before the flag", _set_flags(good))] if text.strip() else []
    fixes.append(
        Fix("Or take the variable out", 'import os\nos.environ.pop("XLA_FLAGS", None)  # before the first use of JAX')
    )
    shown = f'"{text}"' if text.strip() else "nothing but white space"
    return Finding(
        what=f"XLA_FLAGS is {shown}. It does not begin with two hyphens, so XLA takes it for the name of a file "
        "with flags, "
        "finds none, and ended the process.",
        why=_FLAGS_WHY,
        fixes=fixes,
        facts={"value": text},
    )


@rule("JPX0112", "xla-flag-without-number", clues=("Couldn't interpret value",))
def xla_flag_without_number(failure: Failure) -> Finding | None:
    match = failure.search(r"Couldn't interpret value (.*?) for flag (\w+)")
    if match is None:
        return None
    value, flag = match.groups()
    good = "4" if flag == _COUNT.lstrip("-") else "VALUE"
    return Finding(
        what=f"XLA_FLAGS gives the flag --{flag} the value {value}, which XLA cannot read, so it ended the process.",
        why=_FLAGS_WHY,
        fixes=[Fix("Give it a value of the right kind", _set_flags(f"--{flag}={good}"))],
        facts={"flag": flag, "value": value},
    )


# -- jax.config ------------------------------------------------------------------------------------


@rule("JPX0113", "pmap-switch-removed", types=("AttributeError",), priority=10, clues=("jax_pmap_shmap_merge",))
def pmap_switch_removed(failure: Failure) -> Finding | None:
    if not failure.search(r"Unrecognized config option: jax_pmap_shmap_merge"):
        return None
    call = failure.call("update")
    source = call.source if call is not None else "jax.config.update(...)"
    return Finding(
        what="The switch jax_pmap_shmap_merge, which brought back the old pmap, no longer exists.",
        why="It was there from JAX 0.8 to 0.9 only. pmap is now always made of jit and shard_map.",
        fixes=[
            Fix("Delete the line", f"# {source}"),
            Fix(
                "Write what depended on the old pmap with shard_map",
                "mesh = jax.sharding.Mesh(jax.devices(), ('i',))\n"
                "P = jax.sharding.PartitionSpec\n"
                "mapped = jax.jit(jax.shard_map(jax.vmap(function), mesh=mesh, in_specs=P('i'), out_specs=P('i')))",
            ),
        ],
        facts={"option": "jax_pmap_shmap_merge"},
    )


@rule(
    "JPX0114",
    "unknown-config-option",
    types=("AttributeError",),
    clues=("Unrecognized config option", "'Config' object has"),
)
def unknown_config_option(failure: Failure) -> Finding | None:
    match = failure.search(r"Unrecognized config option: (\w+)|'Config' object has no attribute '(jax_\w+)'")
    if match is None:
        return None
    name = match.group(1) or match.group(2)
    near = difflib.get_close_matches(name, _options(), 1, 0.75)
    call = failure.call("update", "read")
    fixes = []
    if near:
        code = failure.rewrite(name, near[0])
        fixes.append(Fix(f"Write {near[0]}", code or f'jax.config.update("{near[0]}", value)'))
    fixes.append(Fix("See all settings of this JAX", "print(jax.config.values.keys())"))
    if call is not None and not near:
        fixes.insert(0, Fix("Delete the line", f"# {call.source}"))
    return Finding(
        what=f"This version of JAX has no setting {name}." + (f" {near[0]} is meant, it seems." if near else ""),
        why="The settings differ between versions: new ones come, and switches for a time of change are taken out "
        "again.",
        fixes=fixes,
        facts={"option": name, "meant": near[0] if near else None},
    )


def _options() -> list[str]:
    from ... import _jax

    jax = _jax.imported_jax()
    try:
        return list(jax.config.values) if jax is not None else []
    except Exception:
        return []


@rule(
    "JPX0115",
    "unknown-precision",
    types=("ValueError",),
    clues=("Precision argument must be one of", "new enum value must be"),
)
def unknown_precision(failure: Failure) -> Finding | None:
    match = failure.search(r"Precision argument must be one of:.*?but got ([^\n;]+?)\.?$", re.S)
    if match is None:
        match = failure.search(r"new enum value must be (?:None or )?in \[.*'(?:high|highest)'.*\], got (\S+)", re.S)
    if match is None:
        return None
    got = match.group(1)
    call = next((c for f in failure.user_frames for c in f.calls if "precision" in c.keywords), None)
    code = None
    if call is not None:
        code = failure.rewrite(f"precision={call.keywords['precision']}", "precision='highest'")
    elif failure.call("update") is not None:
        code = failure.rewrite(got, "highest")
    double = "double" in got or "64" in got
    return Finding(
        what=f"The precision of a product is given as {got}, and JAX has no such precision."
        + (" Precision says how float32 is multiplied; it does not make float64." if double else ""),
        why="precision chooses how many passes an accelerator takes to multiply float32 numbers: 'default', 'high' or "
        "'highest' (also 'bfloat16', 'tensorfloat32', 'float32'). On a CPU they make no difference.",
        fixes=[
            Fix("Ask for the full precision of float32", code or "jnp.dot(a, b, precision='highest')"),
            *([Fix("Or compute in float64", 'jax.config.update("jax_enable_x64", True)')] if double else []),
        ],
        facts={"given": got},
    )


@rule(
    "JPX0116",
    "bad-config-value",
    types=("ValueError", "TypeError"),
    clues=(
        "new int config value",
        "new enum value must be",
        "new string config value",
        "new float config value",
        "invalid truth value",
        "for JAX flag",
        "new bool config value",
        "JitState",
    ),
)
def bad_config_value(failure: Failure) -> Finding | None:
    kind = failure.search(
        r"new (\w+) (?:config )?value must be (?:None or )?(?:of type )?(.*?),?\s*got (.*?)"
        r"(?: of type <class '([\w.]+)'>)?\.?$",
        re.S,
    )
    env = failure.search(r"invalid truth value '(.*?)' for environment '(\w+)'")
    flag = failure.search(r"Invalid value \"(.*?)\" for JAX flag (\w+)")
    call = failure.call("update")
    name = call.args[0] if call is not None and call.args else None
    given = failure.search(r"incompatible function arguments\..*bool \| None.*JitState, (\w+)", re.S)
    if given is not None and kind is None and call is not None and len(call.args) > 1:
        value = call.args[1]
        truth = "False" if value.strip("'\"").lower() in ("0", "false", "no", "off", "none", "") else "True"
        what = f"The setting {name} got {value} ({given.group(1)}), and must be True or False."
        new = f"{call.function}({name}, {truth})"
        fixes = [Fix("Give it True or False", rewritten(failure, call.source, new))]
        facts = {"option": name, "value": value}
    elif kind is not None:
        want = kind.group(2) if kind.group(1) == "enum" else f"of type {kind.group(2) or kind.group(1)}"
        of = f" ({kind.group(4)})" if kind.group(4) else ""
        what = f"The setting {name or 'of jax.config'} got {kind.group(3)}{of}, and must be {want}."
        value = _example_value(kind)
        code = failure.rewrite(call.args[1], value) if call is not None and len(call.args) > 1 else None
        count = device_count_fix(failure, 4) if name is not None and "num_cpu_devices" in name else None
        fixes = [count or Fix("Give it a value of that kind", code or f"jax.config.update({name or 'name'}, {value})")]
        facts = {"option": name, "value": kind.group(3)}
    elif env is not None or flag is not None:
        value, option = env.groups() if env is not None else flag.groups() if flag is not None else ("", "")
        variable = option.upper()
        want = "true or false (1 or 0)" if env is not None else "a value of the right kind, for example a number"
        what = f"{variable} is {value!r}, and must be {want}."
        good = "true" if env is not None else "4" if "num" in option else "VALUE"
        fixes = [
            Fix(
                "Set it so before importing jax, in a new process",
                f'import os\nos.environ["{variable}"] = "{good}"',
            )
        ]
        facts = {"option": variable, "value": value}
    else:
        return None
    return Finding(
        what=what,
        why="JAX checks its settings when they are set: from the environment when it is imported, from jax.config "
        "at once.",
        fixes=fixes,
        facts=facts,
    )


def _example_value(kind: re.Match[str]) -> str:
    if kind.group(1) == "enum":
        names = re.findall(r"'([^']*)'", kind.group(2))
        return repr(names[0]) if names else "None"
    return {"int": "4", "float": "0.5", "bool": "True", "string": "'text'"}.get(kind.group(1), "None")


# -- libraries that want a device for each chain -----------------------------------------------------


@rule("JPX0117", "too-few-devices-for-chains", anywhere=True, clues=("not enough devices to run parallel chains",))
def too_few_devices_for_chains(failure: Failure) -> Finding | None:
    match = failure.search(r"not enough devices to run parallel chains: expected (\d+) but got (\d+)")
    if match is None:
        return None
    want, have = int(match.group(1)), int(match.group(2))
    fixes = [
        device_count_fix(failure, want),
        Fix(
            "Or run all chains together on one device",
            f'mcmc = MCMC(kernel, num_warmup, num_samples, num_chains={want}, chain_method="vectorized")',
        ),
    ]
    return Finding(
        what=f"{counted(want, 'chain')} were to run in parallel, one on each device, but JAX has "
        f"{counted(have, 'device')}: they "
        "run one after the other. The results are right, it takes longer.",
        why="On a CPU JAX starts with one device, however many cores there are. The library's own setting "
        "(numpyro.set_host_device_count) works only before JAX has started.",
        fixes=[fix for fix in fixes if fix is not None],
        facts={"chains": want, "devices": have},
    )


# -- pmap ----------------------------------------------------------------------------------------------


@rule(
    "JPX0121",
    "pmap-maps-nothing",
    types=("ValueError",),
    priority=10,
    clues=(
        "at least one argument with a mapped axis",
        "at least one non-None value in in_axes",
        "at least one argument containing",
    ),
)
def pmap_maps_nothing(failure: Failure) -> Finding | None:
    if not failure.search(
        r"pmap (?:requires at least one argument with a mapped axis|must have at least one non-None value in in_axes"
        r"|wrapped function must be passed at least one argument containing an array)"
    ):
        return None
    applied = failure.applied("pmap")
    given = applied[1].keywords.get("in_axes") if applied is not None else None
    same = "function()"
    if applied is not None and applied[1].args:
        same = f"({applied[1].args[0]})({', '.join(applied[0].args)})"
    arguments = applied[0].args if applied is not None else None
    if given is not None and not re.search(r"\d", given):
        what = f"in_axes={given} maps no argument of pmap, so pmap cannot tell how many copies to run."
        new = given.replace("None", "0", 1)
        code = failure.rewrite(f"in_axes={given}", f"in_axes={new}")
        if code is not None:
            code = code.replace("pmap", "vmap", 1)
    elif arguments == ():
        what = "pmap's function is called without arguments, so pmap cannot tell how many copies to run."
        code = "mapped(jnp.arange(jax.device_count()))"
    else:
        # a list or a number may be what has no axis: the rules for those say it better
        if applied is not None or failure.search(r"requires at least one argument") is None:
            return None
        what = "No argument of pmap has an axis to map, so pmap cannot tell how many copies to run."
        code = None
    return Finding(
        what=what,
        why="pmap runs one copy of the function for each item along the mapped axes, so at least one argument must "
        "have such "
        "an axis: 0 in in_axes. None shares an argument among all copies.",
        fixes=[
            Fix(
                "Map at least one argument (vmap takes any number of items)",
                code or "jax.pmap(function, in_axes=(0, None))(items, shared)",
            ),
            Fix(
                "To run the same computation on every device, pass a number for each",
                f"jax.pmap(lambda i: {same})(jnp.arange(jax.local_device_count()))",
            ),
        ],
        facts={"in_axes": given},
    )


@rule(
    "JPX0122",
    "pmap-argument-is-no-array",
    types=("ValueError", "TypeError"),
    priority=20,
    clues=(
        "pmap was requested to map",
        "as an abstract array",
        "is not a valid JAX type",
    ),
)
def pmap_argument_is_no_array(failure: Failure) -> Finding | None:
    applied = failure.applied("pmap")
    if applied is None:
        return None
    outer, inner = applied
    position = name = kind = None
    for index, source in enumerate(outer.args):
        variable = failure.variable(source) or failure.variable(f"args[{index}]")
        if re.fullmatch(r"[rbuf]*([\"']).*\1", source) or (variable is not None and variable.type == "str"):
            position, name, kind = index, source, "a string"
        elif variable is not None and variable.type in ("function", "PjitFunction", "builtin_function_or_method"):
            position, name, kind = index, source, "a function"
    for keyword, source in outer.keywords.items():
        if re.fullmatch(r"([\"']).*\1", source):
            name, kind = f"{keyword}={source}", "a string"
    if kind is None or (position is not None and "static_broadcasted_argnums" in inner.keywords):
        return None
    fixes = []
    if position is not None and inner.source.endswith(")"):
        code = failure.rewrite(inner.source, f"{inner.source[:-1]}, static_broadcasted_argnums={position})")
        fixes.append(
            Fix(
                "Make it a constant of the compiled function",
                code or f"jax.pmap(function, static_broadcasted_argnums={position})",
            )
        )
    others = [source for source in outer.args if source != name]
    rest = others[0] if len(others) == 1 else "x"
    fixes.append(
        Fix(
            "Or build it into the function",
            "from functools import partial\n"
            + (
                f"jax.pmap(partial(function, {name}))({rest})"
                if position is None
                else f"jax.pmap(lambda x: function(x, {name}))({rest})"
            ),
        )
    )
    return Finding(
        what=f"pmap's function got {name}, {kind}, as an ordinary argument, and pmap can only map arrays.",
        why="pmap splits each argument along an axis, one item for each device. What is no array must be a constant "
        "of the "
        "function: named in static_broadcasted_argnums, or fixed beforehand.",
        fixes=fixes,
        facts={"argument": name, "position": position},
    )


@rule("JPX0123", "jit-of-pmap", types=("UserWarning",), clues=("includes a pmap",))
def jit_of_pmap(failure: Failure) -> Finding | None:
    match = failure.search(r"The jitted function (\S+) includes a pmap")
    if match is None:
        return None
    name = match.group(1)
    return Finding(
        what=f"The jitted function {name} calls pmap inside. Its inputs are gathered on one device, split again for "
        "pmap, and "
        "the results gathered: slow, but right.",
        why="pmap compiles by itself and keeps its results on the devices. An outer jit forgets where they lie (JAX "
        "before 0.8).",
        fixes=[
            Fix(
                f"Take jit off {name}; put it inside, around parts that are not mapped", f"{name} = {name}.__wrapped__"
            ),
            Fix(
                "Or use shard_map instead of pmap, which works under jit",
                "mesh = jax.sharding.Mesh(jax.devices(), ('i',))\n"
                "P = jax.sharding.PartitionSpec\n"
                "mapped = jax.shard_map(jax.vmap(function), mesh=mesh, in_specs=P('i'), out_specs=P('i'))",
            ),
        ],
        facts={"function": name},
    )


@rule("JPX0124", "pmap-axis-size-differs", types=("ValueError",), clues=("doesn't match received axis_size",))
def pmap_axis_size_differs(failure: Failure) -> Finding | None:
    match = failure.search(r"Specified axis_size (\d+) doesn't match received axis_size (\d+)")
    if match is None:
        return None
    said, got = int(match.group(1)), int(match.group(2))
    inner = failure.call("pmap")
    code = None
    if inner is not None:
        code = failure.rewrite(inner.source, re.sub(r",\s*axis_size\s*=\s*[^,)]+", "", inner.source))
    return Finding(
        what=f"pmap was told axis_size={said}, but its arguments have {got} items along the mapped axis.",
        why="axis_size is for several processes: the number of items over all of them. In one process pmap sees it "
        "by itself.",
        fixes=[Fix("Leave axis_size out", code or "jax.pmap(function)(inputs)")],
        facts={"axis_size": said, "items": got},
    )


@rule("JPX0125", "pmap-static-argument-by-name", types=("ValueError",), clues=("has static_broadcasted_argnums=",))
def pmap_static_argument_by_name(failure: Failure) -> Finding | None:
    match = failure.search(r"static_broadcasted_argnums=(\(.*?\)|\d+)\s+but was\s+called with only (\d+)\s+positional")
    if match is None:
        return None
    applied = failure.applied("pmap")
    code = None
    if applied is not None and applied[0].keywords:
        outer = applied[0]
        code = failure.rewrite(outer.source, f"{outer.function}({', '.join([*outer.args, *outer.keywords.values()])})")
    return Finding(
        what=f"pmap has static_broadcasted_argnums={match.group(1)}, and the function was called with "
        f"{counted(int(match.group(2)), 'positional argument')}.",
        why="static_broadcasted_argnums counts positional arguments from 0; a static argument cannot be passed by "
        "name.",
        fixes=[Fix("Pass the static arguments by position", code or "mapped(x, constant)")],
        facts={"static": match.group(1), "given": int(match.group(2))},
    )


@rule("JPX0126", "pmap-without-devices", types=("ValueError",), clues=("'devices' argument to pmap must be non-empty",))
def pmap_without_devices(failure: Failure) -> Finding | None:
    inner = failure.call("pmap")
    given = inner.keywords.get("devices") if inner is not None else None
    code = failure.rewrite(f"devices={given}", "devices=jax.devices()") if given is not None else None
    return Finding(
        what="pmap was given an empty list of devices.",
        why="pmap needs a device for each item. A slice or a filter of jax.devices() may have left none.",
        fixes=[Fix("Leave devices out, or give some", code or "jax.pmap(function)(inputs)")],
        facts={"devices": given},
    )


@rule(
    "JPX0127", "pmap-axes-are-no-numbers", types=("TypeError",), clues=("pmap in_axes must be", "pmap out_axes must be")
)
def pmap_axes_are_no_numbers(failure: Failure) -> Finding | None:
    match = failure.search(
        r"pmap (in_axes|out_axes) must be an int, None, or \(nested\) container.*?but got (.*?)\.?$", re.S
    )
    if match is None:
        return None
    which, given = match.groups()
    inner = failure.call("pmap")
    source = inner.keywords.get(which) if inner is not None else None
    good = re.sub(r"([\"']).*?\1|True|False|[\d.]*\.\d*", "0", source or given)
    code = failure.rewrite(f"{which}={source}", f"{which}={good}") if source is not None else None
    return Finding(
        what=f"{which} of pmap is {given}, and must be made of axis numbers and None.",
        why="in_axes says for each argument which axis is mapped (0: the first), or None for all copies to share "
        "it. The name "
        "of the axis is another argument, axis_name.",
        fixes=[Fix("Give numbers", code or f"jax.pmap(function, {which}={good})")],
        facts={"argument": which, "given": given},
    )


@rule("JPX0128", "shards-and-devices-differ", types=("ValueError",), clues=("must equal len(devices)",))
def shards_and_devices_differ(failure: Failure) -> Finding | None:
    match = failure.search(r"len\(shards\) = (\d+) must equal len\(devices\) = (\d+)")
    if match is None:
        return None
    shards, devices = int(match.group(1)), int(match.group(2))
    call = failure.call("device_put_sharded")
    code = None
    if call is not None and len(call.args) > 1 and shards < devices:
        code = failure.rewrite(call.args[1], f"{call.args[1]}[:{shards}]")
    count = device_count_fix(failure, shards) if shards > devices else None
    return Finding(
        what=f"device_put_sharded got {counted(shards, 'array')} for {counted(devices, 'device')}; it needs one for "
        "each.",
        why="The arrays become one array with a new leading axis, whose items lie on the devices in order.",
        fixes=[
            *([Fix("Use as many devices as arrays", code)] if code else []),
            *([count] if count is not None else []),
            Fix("Or leave the spreading to pmap", "jax.pmap(function)(jnp.stack(arrays))"),
        ],
        facts={"shards": shards, "devices": devices},
    )
