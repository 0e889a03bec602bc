"""GPUs that start and then fail, their compilers and libraries; plugins and other packages of another age."""

from __future__ import annotations

import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule
from .backend import cuda_fix, install_fix, shell

_RESTART = "then start Python (or the kernel) anew"
_OTHERS = r"(?i)tensorflow\.python|\btorch\b|ProcessGroupNCCL|cupy|mxnet"


def _of_others(failure: Failure) -> bool:
    """Whether another package that uses CUDA says it."""
    return (failure.live and failure.from_jax is False) or failure.search(_OTHERS) is not None


@rule(
    "JPX1306",
    "plugin-of-another-version",
    priority=10,
    clues=("Mismatched PJRT plugin", "PJRT_", "PJRT API version"),
)
def plugin_of_another_api(failure: Failure) -> Finding | None:
    versions = failure.search(
        r"Mismatched PJRT plugin PJRT API version \(([\d.]+)\) and framework PJRT API version \(?([\d.]+)\)"
    )
    size = failure.search(r"Unexpected PJRT_\w+ size: expected (\d+), got (\d+)")
    if versions is None and size is None:
        return None
    backend = failure.search(r"Unable to initialize backend '(\w+)'")
    platform = backend.group(1) if backend is not None else None
    plugin, framework = versions.groups() if versions is not None else (None, None)
    built = failure.search(r"This plugin is built with PJRT API version ([\d.]*\d)")
    if plugin is None and built is not None:
        plugin = built.group(1)
    which = f"The plugin for the platform {platform}" if platform else "A plugin of JAX"
    speaks = f" (version {plugin} of the interface)" if plugin else ""
    against = f" (version {framework})" if framework else ""
    kind = (platform or "cuda").lower()
    if kind in ("cuda", "gpu"):
        first = cuda_fix(failure, "Install matching versions of all of them")
    elif kind == "tpu":
        first = install_fix(failure, "jax[tpu]", f"Install matching versions of all of them, {_RESTART}")
    else:
        first = Fix(
            f"Install the versions that the plugin's own page names together, {_RESTART}",
            shell(failure, "pip list | grep -i -E 'jax|pjrt'"),
        )
    return Finding(
        what=f"{which}{speaks} was made for another jaxlib than the installed one{against}: they do not fit.",
        why="jax, jaxlib and the plugin packages (jax-cuda12-plugin, jax-cuda12-pjrt, …) come out together and must "
        "have the same version. Installing only one of them anew, or an old one in another folder, mixes them.",
        fixes=[
            first,
            Fix("See which versions there are", shell(failure, "pip list | grep -i -E 'jax|pjrt'")),
            Fix(
                "Work on the CPU meanwhile",
                'import os\nos.environ["JAX_PLATFORMS"] = "cpu"  # before importing jax',
            ),
        ],
        facts={"platform": platform, "plugin": plugin, "framework": framework},
    )


@rule(
    "JPX1322",
    "numpy-or-scipy-too-new-for-jax",
    types=("AttributeError", "ImportError"),
    clues=("numpy", "scipy", "np."),
    anywhere=True,
)
def numpy_or_scipy_too_new(failure: Failure) -> Finding | None:
    match = failure.search(
        r"[Mm]odule '((?:numpy|scipy)[\w.]*)' has no attribute '(\w+)'"
        r"|cannot import name '(\w+)' from '((?:numpy|scipy)[\w.]*)'"
        r"|`np\.(\w+)` was removed in the NumPy 2\.0 release"
    )
    # the line that asks must be one of JAX's own: other packages ask for such names too
    asks = failure.frames[-1].package if failure.frames else None
    named = failure.search(r"[/\\]jax[/\\](?:_src|numpy|scipy|interpreters|experimental)[/\\][\w/\\]*\.py")
    if match is None or not (asks == "jax" or (asks is None and named)):
        return None
    module = match.group(1) or match.group(4) or "numpy"
    name = match.group(2) or match.group(3) or match.group(5)
    package = module.split(".")[0]
    return Finding(
        what=f"The installed jax asks {package} for {module}.{name}, which this {package} no longer has: {package} is "
        "newer than jax allows.",
        why=f"jax works with the releases of {package} of its time. Installing another package often brings a newer "
        f"{package} along.",
        fixes=[
            Fix(f"Update jax and jaxlib together, {_RESTART}", shell(failure, "pip install -U jax jaxlib")),
            Fix(
                f"Or, if jax must stay old, go back to an older {package}, {_RESTART}",
                shell(failure, 'pip install "numpy<2" "scipy<1.13"'),
            ),
        ],
        facts={"package": package, "name": f"{module}.{name}"},
    )


@rule(
    "JPX1323",
    "cuda-compiler-trouble",
    priority=5,
    clues=("ptxas", "libdevice", "PTX", "Could not find the corresponding function"),
)
def cuda_compiler_trouble(failure: Failure) -> Finding | None:
    old = failure.search(
        r"ptxas does not support (CC [\d.]+)|Unsupported \.version ([\d.]+); current version is '([\d.]+)'"
        r"|ptxas [^\n]*?(?:too old|older than)|Unsupported \.target '?(sm_\w+)"
    )
    missing = failure.search(
        r"libdevice not found|[Cc]an'?t find libdevice|Couldn't (?:find a suitable version of|get|invoke) ptxas"
        r"|[Nn]o PTX compilation provider|ptxas returned an error during compilation|ptxas: No such file"
        r"|ptxas exited with non-zero|Internal: Could not find the corresponding function$"
    )
    if (old is None and missing is None) or _of_others(failure):
        return None
    if old is not None:
        detail = next((group for group in old.groups() if group), None)
        what = "JAX found a ptxas (NVIDIA's assembler for GPU programs) that is too old"
        if old.group(2):
            what += f": it reads PTX up to version {old.group(3)}, and the program is in version {old.group(2)}"
        elif detail:
            what += f" for this GPU ({detail})"
    else:
        assert missing is not None
        part = "libdevice" if "libdevice" in missing.group() else "ptxas"
        detail = part
        kind = "NVIDIA's library of mathematical functions" if part == "libdevice" else "NVIDIA's assembler"
        what = f"JAX cannot compile for the GPU: {part} ({kind}) is missing or does not work"
    return Finding(
        what=f"{what}.",
        why="ptxas and libdevice are parts of the CUDA toolkit. JAX takes them from its pip packages "
        "(nvidia-cuda-nvcc-cu12), else from a CUDA installation of the system, which may be older than JAX needs.",
        fixes=[
            cuda_fix(failure, "Install JAX together with its own CUDA tools"),
            Fix("See which ptxas is found first", "!which -a ptxas; ptxas --version"),
            Fix(
                "Or say where the right CUDA toolkit lies (before importing jax)",
                'import os\nos.environ["XLA_FLAGS"] = "--xla_gpu_cuda_data_dir=/usr/local/cuda"',
            ),
        ],
        facts={"detail": detail},
    )


@rule("JPX1311", "cuda-library-missing", priority=10, clues=("Unable to load NCCL library",))
def nccl_library_missing(failure: Failure) -> Finding | None:
    if not failure.search(r"Unable to load NCCL library") or _of_others(failure):
        return None
    return Finding(
        what="The CUDA library NCCL cannot be found, so JAX cannot compute on several GPUs together.",
        why="NCCL carries data between GPUs. JAX takes it from the pip package nvidia-nccl-cu12, or from the system.",
        fixes=[
            cuda_fix(failure, "Install JAX together with its own CUDA libraries"),
            install_fix(failure, "nvidia-nccl-cu12", f"Or NCCL alone, {_RESTART}"),
        ],
        facts={"library": "NCCL"},
    )


@rule("JPX1324", "nccl-failed", clues=("NCCL operation", "ncclCommInitRank", "NCCL error"))
def nccl_failed(failure: Failure) -> Finding | None:
    match = failure.search(r"NCCL operation (\w+)\(.*?\) failed: ([^.;\n]+)|NCCL error:? ([^.;\n]+)", re.S)
    about_jax = failure.search(r"xla|XlaRuntimeError|JaxRuntimeError|pjrt|NCCL operation")
    if match is None or about_jax is None or _of_others(failure) or "Unable to load NCCL" in failure.text:
        return None
    operation, status = match.group(1), " ".join((match.group(2) or match.group(3)).split())
    asked = f" in {operation}" if operation else ""
    return Finding(
        what=f'The exchange between the GPUs failed{asked}: "{status}".',
        why="NCCL, NVIDIA's library for several GPUs, could not connect them. Often a GPU's memory is full, shared "
        "memory of a container is small, the processes have different NCCL versions, or the network card that it "
        "chose does not reach the other machine. NCCL's own log names the cause.",
        fixes=[
            Fix(
                "Let NCCL say why (before importing jax), and read its first warning",
                'import os\nos.environ["NCCL_DEBUG"] = "INFO"',
            ),
            Fix(
                "Leave NCCL room in the GPU's memory (before importing jax)",
                'import os\nos.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.7"',
            ),
            Fix("See whether another process uses the GPUs, and how they are connected", "!nvidia-smi topo -m"),
        ],
        facts={"operation": operation, "status": status},
        guess=True,
    )


@rule(
    "JPX1325",
    "gpu-program-crashed",
    priority=6,
    clues=(
        "CUDA_ERROR_ILLEGAL",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_MISALIGNED",
        "CUDA_ERROR_ECC",
        "illegal memory access",
        "unspecified launch failure",
        "CUDA_ERROR_HARDWARE",
    ),
)
def gpu_program_crashed(failure: Failure) -> Finding | None:
    match = failure.search(
        r"CUDA_ERROR_(?:ILLEGAL_\w+|LAUNCH_FAILED|MISALIGNED_ADDRESS|ECC_UNCORRECTABLE|HARDWARE_STACK_ERROR)"
    )
    about_jax = failure.search(r"XlaRuntimeError|JaxRuntimeError|xla|pjrt|stream_executor|INTERNAL:")
    if match is None or about_jax is None or _of_others(failure):
        return None
    status = match.group()
    kernel = failure.search(r"Failed to launch CUDA kernel: (\w+)")
    which = f" (the kernel {kernel.group(1)})" if kernel is not None else ""
    hardware = "ECC" in status or "HARDWARE" in status
    return Finding(
        what=f"A program{which} on the GPU crashed: {status}. All further use of the GPU in this process fails too.",
        why="The GPU itself reports an error of its memory or circuits."
        if hardware
        else "Your Python code cannot cause this: it is a mistake in compiled code (XLA, the NVIDIA driver or its "
        "compiler, or a kernel of your own in CUDA, Triton or Pallas).",
        fixes=[
            cuda_fix(failure, "Update JAX with its CUDA packages"),
            Fix(
                "See which operation it is: the line that fails first when each runs by itself",
                'import os\nos.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # before importing jax',
            ),
            Fix(
                "See whether it goes away without XLA's newer options (before importing jax)",
                'import os\nos.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0"',
            ),
        ],
        facts={"status": status},
        guess=True,
    )


@rule(
    "JPX1326",
    "operation-not-on-this-platform",
    clues=("translation rule for primitive", "Only interpret mode is supported", "Translation rule for"),
)
def operation_not_on_this_platform(failure: Failure) -> Finding | None:
    match = failure.search(r"(?:MLIR )?[Tt]ranslation rule for primitive '([\w-]+)' not found(?: for platform (\w+))?")
    pallas = failure.search(r"Only interpret mode is supported on (\w+) backend")
    if match is None and pallas is None:
        return None
    operation = match.group(1) if match is not None else "pallas_call"
    named = match.group(2) if match is not None else pallas.group(1) if pallas is not None else None
    platform = named.lower() if named else failure.environment.platform
    where = {"cpu": "the CPU", "cuda": "an NVIDIA GPU", "gpu": "a GPU", "tpu": "a TPU", "rocm": "an AMD GPU"}.get(
        platform or "", f"the platform {platform}" if platform else "this platform"
    )
    fixes = []
    if operation == "pallas_call":
        call = failure.call("pallas_call")
        new = (
            call.changed(interpret="True")
            if call is not None
            else "pl.pallas_call(kernel, out_shape=out, interpret=True)"
        )
        fixes.append(
            Fix(
                "Let JAX interpret the kernel (slow, for trying it out on any platform)",
                (failure.rewrite(call.source, new) if call is not None else None) or new,
            )
        )
        if platform in ("cuda", "gpu"):
            fixes.append(cuda_fix(failure, "Or update JAX with its CUDA packages"))
        why = "A Pallas kernel is compiled for GPUs and TPUs only; the CPU can interpret it."
    else:
        fixes.append(
            Fix(
                "Compute this part on the CPU",
                "with jax.default_device(jax.devices('cpu')[0]):\n    y = function(jax.device_get(x))",
            )
        )
        fixes.append(Fix("Or update JAX: newer ones know more", shell(failure, "pip install -U jax jaxlib")))
        why = "Some operations (eigenvalues of general matrices, Schur, some kernels) exist for some platforms only."
    return Finding(
        what=f"JAX has no program for the operation {operation} on {where}.",
        why=why,
        fixes=fixes,
        facts={"operation": operation, "platform": platform},
    )


@rule(
    "JPX1312",
    "tpu-already-in-use",
    clues=("/dev/accel", "/dev/vfio"),
)
def tpu_cannot_be_opened(failure: Failure) -> Finding | None:
    match = failure.search(
        r"TPU initialization failed: .*?open\((/dev/\w+)\): (Operation not permitted|Device or resource busy)"
        r"|Couldn't open (?:iommu group|device): (/dev/[\w/]+)",
        re.S,
    )
    if match is None:
        return None
    device = match.group(1) or match.group(3)
    return Finding(
        what=f"The TPU ({device}) cannot be opened: most likely another process holds it.",
        why="One process at a time can use a TPU. A notebook's kernel holds it until it is shut down, even when idle. "
        "A user who is not in the right group, or a container without the device, gets the same message.",
        fixes=[
            Fix("See which process holds it, and end it if it is no longer needed", f"!sudo lsof -w {device}"),
            Fix("Remove the lock of a process that has already ended", "!sudo rm -f /tmp/libtpu_lockfile"),
            Fix("Work on the CPU meanwhile", 'jax.config.update("jax_platforms", "cpu")'),
        ],
        facts={"device": device},
        guess=True,
    )


@rule(
    "JPX1316",
    "jax-and-jaxlib-do-not-fit",
    types=("AttributeError",),
    clues=("module 'jax' has no attribute",),
)
def jax_is_half_loaded(failure: Failure) -> Finding | None:
    match = failure.search(
        r"^module 'jax' has no attribute '(version|_src|config|numpy|lax|core|random|tree_util|jit)'$"
    )
    if match is None or (failure.frames and failure.frames[-1].package not in ("jax", "user")):
        return None
    name = match.group(1)
    return Finding(
        what=f"jax has no {name}, which every jax has: its installation is broken, or `import jax` failed half way "
        "before.",
        why="A first import that failed (a jaxlib that does not fit, an older Python) leaves an unfinished module "
        "behind; an interrupted or doubled installation (pip and conda) leaves unfinished files.",
        fixes=[
            Fix(
                f"Install both again, in one go, {_RESTART}",
                shell(failure, "pip install -U --force-reinstall jax jaxlib"),
            ),
            Fix(
                "See where jax is loaded from, and its versions",
                "!python -c 'import jax; print(jax.__file__)'; pip list | grep -i jax",
            ),
        ],
        facts={"missing": name},
        guess=True,
    )


_OLD_LIBRARIES = {
    r"'EvalTrace' object has no attribute 'level'": ("flax", "0.4.36"),
    r"'Config' object has no attribute 'define_bool_state'": ("flax", "0.4.25"),
    r"module 'jax\.config' has no attribute 'define_bool_state'": ("flax", "0.4.25"),
}


@rule(
    "JPX1808",
    "library-too-old-for-jax",
    types=("AttributeError", "TypeError", "ImportError"),
    clues=("EvalTrace", "define_bool_state"),
    anywhere=True,
)
def library_too_old_for_jax(failure: Failure) -> Finding | None:
    for pattern, (usual, since) in _OLD_LIBRARIES.items():
        if not failure.search(pattern):
            continue
        last = failure.frames[-1].package if failure.frames else None
        if last == "user":
            return None
        library = last if last not in (None, "jax", "own", "stdlib") else usual
        sure = library == last or failure.search(rf"\b{usual}\b") is not None
        return Finding(
            what=f"The installed {library} was written for an older JAX: it uses inner parts of JAX that changed in "
            f"JAX {since}.",
            why="Libraries such as flax, haiku or equinox use parts of JAX that are not promised to stay. They must be "
            "about as new as JAX.",
            fixes=[
                install_fix(failure, library, f"Update {library}, {_RESTART}"),
                Fix(
                    f"Or go back to the JAX that this {library} knows, {_RESTART}",
                    shell(failure, f'pip install "jax<{since}" "jaxlib<{since}"'),
                ),
            ],
            facts={"library": library, "since": since},
            guess=not sure,
        )
    return None


@rule(
    "JPX1327",
    "no-package-for-this-python",
    clues=("satisfies the requirement jax", "matching distribution found for jax"),
)
def no_package_for_this_python(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:satisfies the requirement|matching distribution found for) (jax[\w-]*)([=<>!~][^\s(]*)?"
    )
    if match is None:
        return None
    package, version = match.group(1), match.group(2) or ""
    there = failure.search(r"\(from versions: ([^)]*)\)")
    versions = there.group(1) if there is not None else ""
    listed = [v.strip() for v in versions.split(",") if v.strip() and v.strip() != "none"]
    has = f" pip finds {listed[0]} to {listed[-1]}." if listed else ""
    return Finding(
        what=f"There is no package {package}{version} for this Python and this system.{has}",
        why="Compiled packages are made for some Pythons and systems only: an old jaxlib for old Pythons, none for "
        "32-bit Pythons; CUDA versions up to 0.4.30 lie on a page of their own.",
        fixes=[
            Fix("Install a version that there is", shell(failure, "pip install -U jax")),
            Fix(
                "Or make an environment with a Python of that time",
                "!conda create -n old-jax python=3.10",
            ),
            Fix("See which Python this is", "import sys, platform\nprint(sys.version, platform.machine())"),
        ],
        facts={"package": package, "version": version, "available": tuple(listed)},
    )


@rule("JPX1328", "gpu-library-cannot-do-this", clues=("_STATUS_NOT_SUPPORTED", "_STATUS_ARCH_MISMATCH"))
def gpu_library_cannot_do_this(failure: Failure) -> Finding | None:
    match = failure.search(r"\b(CU\w+_STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH))")
    of_jax = failure.is_a("JaxRuntimeError", "XlaRuntimeError") or failure.search(r"(?i)\bxla|jaxlib|stream_executor")
    if match is None or not of_jax or _of_others(failure) or failure.search(r"CUDA error: CU\w+ when calling"):
        return None
    library = {"CUBLAS": "cuBLAS", "CUDNN": "cuDNN", "CUSOLVER": "cuSOLVER"}.get(match.group(1).split("_")[0], "CUDA")
    dtype = failure.search(r"\b(bf16|f16|f8\w*|s8)\b")
    of = f" for {dtype.group(1)} values" if dtype is not None else ""
    return Finding(
        what=f"{library} cannot do this operation{of} on this GPU ({match.group(1)}).",
        why="Older GPUs lack some types (bfloat16 before Ampere, 8-bit floats before Ada and Hopper) and some layouts. "
        f"A {library} of another version than JAX was built with gives the same message.",
        fixes=[
            Fix("Compute with float32", "x = x.astype(jnp.float32)"),
            cuda_fix(failure, "Install JAX together with the libraries it was built with"),
            Fix("See the GPU and its driver", "!nvidia-smi"),
        ],
        facts={"status": match.group(1)},
        guess=True,
    )
