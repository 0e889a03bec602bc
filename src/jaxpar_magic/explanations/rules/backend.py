"""Installation and back ends: a GPU or TPU that JAX cannot use, packages that do not fit together."""

from __future__ import annotations

import importlib.util
import re

from ..context import Failure
from ..explanation import Fix
from ..registry import Finding, rule

_GPU = ("gpu", "cuda", "rocm", "cuda12", "cuda13")
_RESTART = "then start Python (or the kernel) anew"


def shell(failure: Failure, command: str) -> str:
    """A shell command as a line that can be pasted here."""
    return f"%{command}" if failure.environment.interactive and command.startswith("pip ") else f"!{command}"


def install_fix(failure: Failure, what: str, title: str | None = None) -> Fix:
    """A fix that installs a package, or upgrades it with what it needs."""
    quoted = f'"{what}"' if re.search(r"[\[<>]", what) else what
    return Fix(title or f"Install {what}, {_RESTART}", shell(failure, f"pip install -U {quoted}"))


def cuda_fix(failure: Failure, title: str) -> Fix:
    """A fix that installs JAX with CUDA: for CUDA 13 where the failure speaks of it, else for CUDA 12, which more
    drivers and GPUs can run."""
    if failure.search(r"cuda-?_?13"):
        return install_fix(failure, "jax[cuda13]", f"{title} (driver 580 or newer), {_RESTART}")
    either = "driver 525 or newer; with driver 580 or newer and a GPU of 2018 or later better jax[cuda13]"
    return install_fix(failure, "jax[cuda12]", f"{title} ({either}), {_RESTART}")


def _accelerator_fix(failure: Failure, platform: str) -> Fix | None:
    if platform in ("gpu", "cuda", "cuda12", "cuda13"):
        return cuda_fix(failure, "On Linux with an NVIDIA GPU: install JAX with CUDA")
    if platform == "tpu":
        return install_fix(failure, "jax[tpu]", f"On a machine with a TPU: install JAX with TPU support, {_RESTART}")
    if platform == "rocm":
        return install_fix(
            failure, "jax[rocm7-local]", f"Install JAX with ROCm (Linux with an AMD GPU and ROCm 7), {_RESTART}"
        )
    return None


# -- a platform that is not there ------------------------------------------------------------------


@rule(
    "JPX1301",
    "platform-not-there",
    types=("RuntimeError",),
    clues=("Unknown backend", "is not in the list of known backends", "Requested backend", "failed to initialize"),
)
def platform_not_there(failure: Failure) -> Finding | None:
    match = (
        failure.search(
            r"Unknown backend:? '?(\w+)'? ?requested, but no platforms that are instances of \w+ are present\. "
            r"Platforms present are: ?([\w,]*)"
        )
        or failure.search(r"Unknown backend:? '?(\w+)'?\.? ?(?:Available backends are \[([^\]]*)\])?")
        or failure.search(r"Backend '(\w+)' is not in the list of known backends: \[([^\]]*)\]")
        or failure.search(r"Requested backend '?(\w+)'?, but it failed to initialize()")
        or failure.search(r"Backend '(\w+)' failed to initialize: .*Available backends are \[([^\]]*)\]", re.S)
    )
    if match is None or failure.search(r"Unable to initialize backend"):
        return None
    asked = match.group(1)
    present = [name for name in re.findall(r"\w+", match.group(2) or "") if name != "interpreter"]
    have = " and ".join(present) or "other platforms"
    call = failure.call("devices", "local_devices", "device_count", "local_device_count", "jit", "default_backend")
    code = None
    if call is not None:
        new = re.sub(rf"([\"']){re.escape(asked)}\1", '"cpu"', call.source)
        code = failure.rewrite(call.source, new) if new != call.source else None
    fixes = [
        Fix(
            f"Use the platform that JAX has here ({have})" if present else "Use the CPU",
            code or "device = jax.devices()[0]",
        ),
        _accelerator_fix(failure, asked),
    ]
    known = asked in (*_GPU, "tpu", "cpu", "metal", "METAL")
    reason = failure.search(r"failed to initialize: (.*?)\.? Available backends", re.S)
    what = f'JAX was asked for the platform "{asked}", and has {have} only.'
    if reason is not None:
        what += f' "{asked}" cannot start: {" ".join(reason.group(1).split())[:200]}.'
    if not known:
        what += f' "{asked}" is no name of a platform that comes with JAX ("cpu", "gpu", "cuda", "rocm", "tpu").'
    return Finding(
        what=what,
        why="The plain jax package computes on the CPU. GPUs and TPUs need a plugin package beside it, and a driver "
        "that finds the hardware; without them JAX does not know the platform.",
        fixes=[fix for fix in fixes if fix is not None],
        facts={"asked": asked, "present": tuple(present)},
    )


def _platform_finding(failure: Failure, asked: str, reason: str | None) -> Finding:
    first = re.split(r"[, ]", asked)[0]
    because = f" ({reason})" if reason else ""
    fixes = [
        Fix(
            "Let JAX use the CPU where the platform cannot start (works now, in this process)",
            'jax.config.update("jax_platforms", "cpu")',
        ),
        Fix(
            "Leave the choice to JAX, which takes the best platform that works",
            'import os\nos.environ.pop("JAX_PLATFORMS", None)  # before the first import of jax',
        ),
        _accelerator_fix(failure, first),
    ]
    return Finding(
        what=f'JAX is told to use the platform "{asked}" (JAX_PLATFORMS or jax_platforms), and cannot start '
        f"it{because}.",
        why="A platform that is asked for by name must start: JAX then does not fall back to the CPU. The package "
        "for it may be missing here, or it finds no hardware or driver.",
        fixes=[fix for fix in fixes if fix is not None],
        facts={"asked": asked, "reason": reason},
    )


@rule("JPX1302", "demanded-platform-cannot-start", types=("AssertionError",))
def demanded_platform_is_unknown(failure: Failure) -> Finding | None:
    # JAX up to at least 0.12 says nothing at all: `assert _default_backend is not None`
    asked = failure.environment.platforms
    if failure.message.strip() not in ("", "assert _default_backend is not None"):
        return None
    here = failure.raised_in("jax/_src/xla_bridge.py")
    if failure.live:
        bare = failure.frames_removed and failure.environment.devices is None
        if not asked or not (here or bare) or (failure.user is not None and failure.user.raises):
            return None
        return _platform_finding(failure, asked, None)
    return _platform_finding(failure, "of its setting", None) if here else None


@rule(
    "JPX1302",
    "demanded-platform-cannot-start",
    types=("RuntimeError",),
    clues=("Unable to initialize backend",),
)
def demanded_platform_fails(failure: Failure) -> Finding | None:
    match = failure.search(
        r"Unable to initialize backend '(\w+)': (.*?)(?: \(set JAX_PLATFORMS=''|\(set JAX_PLATFORMS| \(you may need|$)",
        re.S,
    )
    if match is None or failure.search(r"PJRT API version|Unexpected PJRT_"):
        return None
    asked, reason = match.group(1), " ".join(match.group(2).split())
    if asked == "rocm" and re.search(r"Could not find registered platform|GpuAllocatorConfig", reason):
        reason += ' ("gpu" tries AMD\'s rocm first in old versions; NVIDIA\'s is "cuda")'
    whole = failure.environment.platforms if failure.live else None
    return _platform_finding(failure, whole or asked, f"{asked}: {reason[:300]}".rstrip("."))


@rule(
    "JPX1312",
    "tpu-already-in-use",
    clues=("TPU is already in use", "libtpu lockfile", "libtpu.so already in use"),
    priority=10,
)
def tpu_already_in_use(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:The TPU is already in use by (?:a )?(?:process with pid (\d+)|another process)|libtpu\.so already in use"
        r"|Internal error when accessing libtpu multi-process lockfile|another process .* using the TPU)"
    )
    if match is None:
        return None
    pid = match.group(1)
    by = f"the process {pid}" if pid else "another process"
    fixes = [
        Fix(
            f"See what {by} is, and end it if it is no longer needed",
            f"!ps -fp {pid}" if pid else "!sudo lsof -w /dev/accel0",
        ),
        Fix("Remove the lock of a process that has already ended", "!sudo rm -f /tmp/libtpu_lockfile"),
        Fix("Work on the CPU meanwhile", 'jax.config.update("jax_platforms", "cpu")'),
    ]
    return Finding(
        what=f"The TPU is held by {by}, so this process cannot use it.",
        why="One process at a time can use a TPU. A notebook's kernel holds it until it is shut down, even when idle.",
        fixes=fixes,
        facts={"pid": int(pid) if pid else None},
    )


@rule("JPX1303", "gpu-build-missing", clues=("An NVIDIA GPU may be present",))
def gpu_build_missing(failure: Failure) -> Finding | None:
    if not failure.search(r"An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed"):
        return None
    fix = _accelerator_fix(failure, "cuda")
    return Finding(
        what="This machine seems to have an NVIDIA GPU, but the JAX that is installed computes on the CPU only.",
        why="The plain jax package has no CUDA support. It works, on the CPU.",
        fixes=[f for f in (fix, _quiet()) if f is not None],
    )


@rule("JPX1304", "no-accelerator-found", clues=("No GPU/TPU found, falling back to CPU",))
def no_accelerator_found(failure: Failure) -> Finding | None:
    if not failure.search(r"No GPU/TPU found, falling back to CPU"):
        return None
    return Finding(
        what="JAX found no GPU and no TPU that it can use, and computes on the CPU.",
        why="This is a note, no error: on a machine without a GPU nothing is wrong. If there is one, JAX was "
        "installed without CUDA support, or does not find the driver.",
        fixes=[
            _quiet(),
            Fix("See whether the driver finds a GPU", "!nvidia-smi"),
            cuda_fix(failure, "With an NVIDIA GPU: install JAX with CUDA"),
        ],
    )


def _quiet() -> Fix:
    return Fix(
        "Say that the CPU is meant, before importing jax (no message then)",
        'import os\nos.environ["JAX_PLATFORMS"] = "cpu"',
    )


@rule("JPX1305", "tpu-support-missing", clues=("Google TPU may be present", "JAX TPU support not installed"))
def tpu_support_missing(failure: Failure) -> Finding | None:
    if not failure.search(r"A Google TPU may be present on this machine|JAX TPU support not installed"):
        return None
    return Finding(
        what="This machine seems to have a TPU, but JAX's TPU support (libtpu) is not installed or cannot use it. "
        "JAX computes on the CPU.",
        why="JAX reaches a TPU through the package libtpu, which plain jax does not bring along. The message also "
        "comes when another process holds the TPU.",
        fixes=[
            install_fix(failure, "jax[tpu]", f"Install JAX with TPU support, {_RESTART}"),
            Fix("See whether another process holds the TPU", "!sudo lsof -w /dev/accel0 /dev/vfio/*"),
        ],
    )


# -- versions that do not fit ----------------------------------------------------------------------


@rule("JPX1306", "plugin-of-another-version", clues=("JAX plugin", "not compatible with the installed jaxlib"))
def plugin_of_another_version(failure: Failure) -> Finding | None:
    match = failure.search(
        r"JAX plugin (\S+) version (\S+) is installed, but it is not compatible with the installed jaxlib version "
        r"(\S+?),? so it will not be used"
    )
    if match is None:
        return None
    plugin, version, jaxlib = match.groups()
    cuda = re.search(r"cuda\d+", plugin)
    extra = f"jax[{cuda.group()}]" if cuda else "jax"
    return Finding(
        what=f"The plugin {plugin} {version} does not fit jaxlib {jaxlib}, so JAX does not use it and goes on "
        "without the GPU.",
        why="jax, jaxlib and the plugin packages come out together and must have the same version (the last "
        "figure may differ).",
        fixes=[
            install_fix(failure, extra, f"Install matching versions of all of them, {_RESTART}"),
            Fix("See which versions there are", shell(failure, "pip list | grep -i jax")),
        ],
        facts={"plugin": plugin, "plugin_version": version, "jaxlib": jaxlib},
    )


_TOGETHER = "jax is Python code on top of the compiled package jaxlib. Both come out together and must fit."


@rule("JPX1307", "jaxlib-too-old", types=("RuntimeError", "ImportError"), clues=("jaxlib",))
def jaxlib_too_old(failure: Failure) -> Finding | None:
    match = failure.search(
        r"jaxlib is version (\S+), but this version of jax requires version (?:>= ?)?([\d.]*\d)"
    ) or failure.search(r"()This version of jax requires jaxlib version >= ([\d.]*\d)")
    if match is None:
        return None
    have, need = match.group(1) or None, match.group(2)
    return Finding(
        what=f"The installed jaxlib{f' ({have})' if have else ''} is too old for the installed jax, which needs "
        f"{need} or newer.",
        why=_TOGETHER,
        fixes=[
            Fix(f"Upgrade both together, {_RESTART}", shell(failure, "pip install -U jax jaxlib")),
            *(
                [Fix("Or go back to the jax of that jaxlib", shell(failure, f"pip install jax=={have}"))]
                if have
                else []
            ),
        ],
        facts={"jaxlib": have, "needed": need},
    )


@rule("JPX1308", "jaxlib-newer-than-jax", types=("RuntimeError",), clues=("is newer than and incompatible with jax",))
def jaxlib_newer_than_jax(failure: Failure) -> Finding | None:
    match = failure.search(r"jaxlib version (\S+) is newer than and\s+incompatible with jax version (\S+?)\.? Please")
    if match is None:
        return None
    jaxlib, jax = match.groups()
    return Finding(
        what=f"jaxlib {jaxlib} is newer than jax {jax}, and the two do not work together.",
        why=_TOGETHER,
        fixes=[
            Fix(f"Upgrade both together, {_RESTART}", shell(failure, "pip install -U jax jaxlib")),
            Fix(f"Or install the jaxlib of jax {jax}", shell(failure, f"pip install jaxlib=={jax}")),
        ],
        facts={"jaxlib": jaxlib, "jax": jax},
    )


@rule(
    "JPX1309",
    "jaxlib-missing",
    types=("ImportError",),
    clues=("requires jaxlib to be installed", "No module named 'jaxlib'"),
    anywhere=True,
)
def jaxlib_missing(failure: Failure) -> Finding | None:
    if not failure.search(r"jax requires jaxlib to be installed|No module named 'jaxlib'$"):
        return None
    return Finding(
        what="jax is installed without jaxlib, the compiled package that does the work.",
        why=f"{_TOGETHER} Often the two lie in different environments: the notebook's Python is another one than "
        "that of the terminal where pip ran. There are no packages for very new or 32-bit Pythons.",
        fixes=[
            install_fix(failure, "jax", f"Install both into the Python that runs this, {_RESTART}"),
            Fix("See which Python runs this", "import sys\nprint(sys.executable, sys.version)"),
        ],
    )


@rule("JPX1320", "jax-not-installed", types=("ModuleNotFoundError",), clues=("No module named 'jax'",), anywhere=True)
def jax_not_installed(failure: Failure) -> Finding | None:
    if not failure.search(r"^No module named 'jax'$"):
        return None
    return Finding(
        what="The Python that runs this code has no jax.",
        why="A package is installed into one Python. The notebook's kernel is often another one than that of the "
        "terminal where pip ran.",
        fixes=[
            install_fix(failure, "jax", "Install it into the Python that runs this"),
            Fix("See which Python that is", "import sys\nprint(sys.executable)"),
        ],
    )


@rule(
    "JPX1321",
    "own-file-named-jax",
    types=("AttributeError", "ImportError"),
    anywhere=True,
    clues=(
        "module 'jax",
        "'jax' is not a package",
        "from 'jax' (",
        "from partially initialized module 'jax'",
    ),
)
def own_file_named_jax(failure: Failure) -> Finding | None:
    match = failure.search(
        r"\(consider renaming '([^']*[/\\]jax(?:lib)?\.py)'|; '(jax)' is not a package"
        r"|from (?:partially initialized module )?'jax' .*?\(([^()]*[/\\]jax\.py)\)"
    )
    file = next((group for group in match.groups() if group), None) if match is not None else None
    if match is None:
        inside = next((f.file for f in failure.frames if re.search(r"(?<!site-packages)[/\\]jax\.py$", f.file)), None)
        circular = failure.search(r"partially initialized module 'jax' has no attribute '\w+'")
        if circular is None or inside is None:
            return None
        file = inside
    if file is not None and re.search(r"(?:site|dist)-packages", file):
        return None
    shown = file if file and file != "jax" else "jax.py"
    return Finding(
        what=f"A file of yours is called jax.py, so `import jax` loads that file ({shown}) instead of JAX.",
        why="Python looks for modules in the folder of the script first.",
        fixes=[Fix("Give the file another name, then start Python anew", f"!mv {shown} my_code.py")],
        facts={"file": shown},
    )


@rule("JPX1316", "jax-and-jaxlib-do-not-fit", types=("AttributeError", "ImportError"), clues=("jaxlib", "jax._src"))
def jax_and_jaxlib_do_not_fit(failure: Failure) -> Finding | None:
    missing = failure.search(
        r"(?:module '(jaxlib[\w.]*)' has no attribute '(\w+)'|cannot import name '(\w+)' from '(jaxlib[\w.]*)'"
        r"|No module named '(jaxlib\.[\w.]+)')"
    )
    inside = failure.user is None or failure.frames[-1].package == "jax" or failure.from_jax
    if missing is None or not inside or (not failure.live and failure.frames == ()):
        return None
    if failure.frames and not any(f.package == "jax" for f in failure.frames):
        return None
    name = missing.group(2) or missing.group(3) or missing.group(5)
    return Finding(
        what=f"jax asks jaxlib for {name}, which the installed jaxlib does not have: their versions do not fit.",
        why=f"{_TOGETHER} Installing another package, or an interrupted installation, may have changed only one of "
        "them.",
        fixes=[
            Fix(
                f"Install both again, in one go, {_RESTART}",
                shell(failure, "pip install -U --force-reinstall jax jaxlib"),
            ),
            Fix("See which versions there are", shell(failure, "pip list | grep -i jax")),
        ],
        facts={"missing": name},
    )


@rule(
    "JPX1313",
    "numpy-of-another-generation",
    anywhere=True,
    clues=(
        "compiled using NumPy 1.x",
        "_ARRAY_API not found",
        "numpy.dtype size changed",
        "compiled against ABI version",
        "numpy.core.multiarray failed to import",
    ),
)
def numpy_of_another_generation(failure: Failure) -> Finding | None:
    sure = failure.search(r"A module that was compiled using NumPy 1\.x cannot be run in\s+NumPy (2[\d.]*\d)")
    other = failure.search(
        r"_ARRAY_API not found|numpy\.dtype size changed, may indicate binary incompatibility"
        r"|compiled against ABI version|numpy\.core\.multiarray failed to import"
    )
    about_jax = "jax" in failure.text or any(f.package in ("jax", "ml_dtypes") for f in failure.frames)
    if sure is None and (other is None or not about_jax):
        return None
    version = f" {sure.group(1)}" if sure is not None else ""
    return Finding(
        what=f"A compiled package (jaxlib, ml_dtypes, scipy or another) was built for NumPy 1, and NumPy{version} is "
        "installed.",
        why="Packages compiled for NumPy 1 cannot run with NumPy 2. jaxlib works with NumPy 2 since version 0.4.26.",
        fixes=[
            Fix(
                f"Upgrade the compiled packages, {_RESTART}",
                shell(failure, "pip install -U jax jaxlib ml_dtypes scipy"),
            ),
            Fix(f"Or go back to NumPy 1, {_RESTART}", shell(failure, 'pip install "numpy<2"')),
        ],
        facts={"numpy": version.strip() or None},
    )


@rule("JPX1315", "cpu-without-avx", types=("RuntimeError",), clues=("This version of jaxlib was built using",))
def cpu_without_avx(failure: Failure) -> Finding | None:
    match = failure.search(r"This version of jaxlib was built using ([\w.]+) instructions, which your CPU")
    if match is None:
        return None
    return Finding(
        what=f"jaxlib uses {match.group(1)} instructions, which this processor (or the emulation it runs under) "
        "does not have.",
        why="On a Mac with an Apple chip this means that Python is the Intel version, run by Rosetta. On a PC the "
        "processor is older than about 2013, or a virtual machine hides part of it.",
        fixes=[
            Fix(
                "See which Python runs this: arm64 is right on an Apple chip",
                "import platform\nprint(platform.machine())",
            ),
            Fix(
                "On an Apple chip: make an environment with an arm64 Python, and install jax there",
                "!CONDA_SUBDIR=osx-arm64 conda create -n jax python=3.12 jax -c conda-forge",
            ),
        ],
        facts={"instructions": match.group(1)},
    )


# -- CUDA ------------------------------------------------------------------------------------------


@rule(
    "JPX1310",
    "cuda-library-outdated",
    priority=10,
    clues=(
        "Outdated ",
        "but JAX was built against version",
        "Loaded runtime CuDNN library",
    ),
)
def cuda_library_outdated(failure: Failure) -> Finding | None:
    found = failure.findall(
        r"Outdated (?P<lib>\w+) installation found\.\s+Version JAX was built against: (?P<built>\d+)\s+"
        r"Minimum supported: (?P<need>\d+)\s+Installed version: (?P<have>\d+)"
    )
    if not found:
        found = failure.findall(
            r"Found (?P<lib>\w+) (?:library )?version (?P<have>[\d.]+), but JAX was built against version "
            r"(?P<built>(?P<need>[\d.]*\d)), which is newer"
        ) or failure.findall(
            r"Loaded runtime (?P<lib>CuDNN) library: (?P<have>[\d.]*\d) but source was compiled with: "
            r"(?P<built>(?P<need>[\d.]*\d))"
        )
    if not found:
        return None
    parts = [f"{m['lib']} {m['have']} where {m['need']} is needed" for m in found]
    return Finding(
        what=f"JAX finds CUDA libraries that are too old: {', '.join(parts)}. It cannot use the GPU with them.",
        why="JAX needs CUDA libraries at least as new as those it was built with. Old ones are often found first "
        "through LD_LIBRARY_PATH, a CUDA module of the cluster, or another package (PyTorch) in the environment.",
        fixes=[
            cuda_fix(failure, "Install JAX together with its own CUDA libraries"),
            Fix(
                "Start Python without the other CUDA libraries in its path", "!env -u LD_LIBRARY_PATH python script.py"
            ),
        ],
        facts={
            "libraries": tuple(m["lib"] for m in found),
            "found": tuple(m["have"] for m in found),
            "needed": tuple(m["need"] for m in found),
        },
    )


@rule(
    "JPX1311",
    "cuda-library-missing",
    priority=10,
    clues=(
        "Could not load library",
        "Unable to load ",
        "cannot open shared object file",
        "Could not load dynamic library",
    ),
)
def cuda_library_missing(failure: Failure) -> Finding | None:
    match = failure.search(
        r"(?:Could not load (?:dynamic )?library '?|error while loading shared libraries: |^|[\s:(])"
        r"(lib(?:cu|nv|nccl)\w*\.so[\d.]*\d?)[':.;]? .*?cannot open shared object file"
    ) or failure.search(
        r"Unable to load (CUDA|cu(?:DNN|BLAS|SPARSE|SOLVER|FFT)|CUPTI|NCCL|nvJitLink)\. Is it installed"
    )
    if match is None:
        match = failure.search(r"Could not load (?:dynamic )?library '?(lib(?:cu|nv|nccl)\w*\.so[\d.]*\d?)")
    if match is None or (failure.live and failure.from_jax is False):
        return None
    if failure.search(r"(?i)tensorflow|torch|cupy") or (
        # any package with CUDA code fails to load like this
        failure.is_a("ImportError", "OSError") and not failure.from_jax and not failure.search(r"(?i)jax|xla")
    ):
        return None
    name = match.group(1).rstrip(".")
    return Finding(
        what=f"The CUDA library {name} cannot be found, so JAX cannot use the GPU.",
        why="JAX with CUDA needs the CUDA libraries, either as pip packages beside it or from the system through "
        "LD_LIBRARY_PATH. One of them is missing, or another version of it is found first.",
        fixes=[
            cuda_fix(failure, "Install JAX together with its own CUDA libraries"),
            Fix(
                "Start Python without the other CUDA libraries in its path", "!env -u LD_LIBRARY_PATH python script.py"
            ),
            Fix("Work on the CPU meanwhile", 'import os\nos.environ["JAX_PLATFORMS"] = "cpu"  # before importing jax'),
        ],
        facts={"library": name},
    )


_DRIVER = {
    r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected|No visible GPU devices|no supported devices found": (
        "no GPU is visible to this process",
        "CUDA_VISIBLE_DEVICES may be empty or -1, the job may have been given no GPU, a container may lack "
        "`--gpus all`, or there is no driver.",
    ),
    r"CUDA driver version is insufficient|CUDA_ERROR_INSUFFICIENT_DRIVER": (
        "the NVIDIA driver is too old for the CUDA version of this JAX",
        "CUDA 12 needs driver 525 or newer, CUDA 13 needs 580 or newer.",
    ),
    r"CUDA_ERROR_SYSTEM_(?:DRIVER_MISMATCH|NOT_READY)|CUDA_ERROR_COMPAT_NOT_SUPPORTED|Driver/library version mis": (
        "the NVIDIA driver and its libraries do not fit or are not ready",
        "After an upgrade of the driver the machine must be restarted; on machines with NVSwitch the "
        "fabric manager must run.",
    ),
    r"CUDA_ERROR_NO_BINARY_FOR_GPU|no kernel image is available|compute capability .*? (?:lower|older) than": (
        "this GPU is older than those JAX's CUDA code is compiled for",
        "JAX for CUDA 12 needs compute capability 5.2 (Maxwell) or more, JAX for CUDA 13 needs 7.5 (Turing) or more.",
    ),
    r"CUDA_ERROR_UNKNOWN|CUDA_ERROR_NOT_INITIALIZED|[Ff]ailed call to cuInit": (
        "the NVIDIA driver does not answer",
        "The driver may be missing or broken, or the machine was asleep; a forked process cannot use CUDA either.",
    ),
}


@rule(
    "JPX1317",
    "cuda-driver-trouble",
    priority=5,
    clues=(
        "CUDA_ERROR",
        "cuInit",
        "CUDA driver version",
        "No visible GPU devices",
        "no supported devices found for platform",
        "no CUDA-capable device",
        "no kernel image",
        "compute capability",
        "Driver/library version",
    ),
)
def cuda_driver_trouble(failure: Failure) -> Finding | None:
    if failure.live and failure.from_jax is False:
        return None
    about_jax = failure.search(r"jax|xla|XLA|backend|stream_?[eE]xecutor|CUDA_ERROR|platform CUDA|visible GPU")
    if about_jax is None or "CUDA_ERROR_OUT_OF_MEMORY" in failure.text:
        return None
    for pattern, (what, why) in _DRIVER.items():
        match = failure.search(pattern)
        if match is None:
            continue
        if "no supported devices" in match.group() and "CUDA" not in failure.text:
            return None
        return Finding(
            what=f"JAX cannot use the GPU: {what} ({match.group()}).",
            why=why,
            fixes=[
                Fix("See whether the driver finds the GPU, and its version", "!nvidia-smi"),
                Fix("See what hides it", 'import os\nprint(os.environ.get("CUDA_VISIBLE_DEVICES"))'),
                Fix(
                    "Work on the CPU meanwhile",
                    'import os\nos.environ["JAX_PLATFORMS"] = "cpu"  # before importing jax',
                ),
            ],
            facts={"reported": match.group()},
        )
    return None


@rule("JPX1318", "metal-plugin-too-old", clues=("default_memory_space is not supported", "METAL", "metal", "mps"))
def metal_plugin_too_old(failure: Failure) -> Finding | None:
    match = failure.search(
        r"UNIMPLEMENTED: default_memory_space is not supported|failed to legalize operation '([\w.]+)'"
        r"|unknown attribute code: \d+|Unable to initialize backend 'METAL'"
    )
    metal = failure.search(r"(?i)\bmetal\b|default_memory_space") or failure.environment.platform == "METAL"
    if match is None or not metal:
        return None
    return Finding(
        what="Apple's plugin jax-metal cannot do this: it is older than the installed jax, and it does only part of "
        "what JAX can.",
        why="jax-metal is experimental, is made by Apple, and has had no new version since 2024. Its last one, 0.1.1, "
        "was reported to work with jax 0.5.0 and not with later ones.",
        fixes=[
            Fix(
                "Use the CPU, which does everything (before importing jax)",
                'import os\nos.environ["JAX_PLATFORMS"] = "cpu"',
            ),
            Fix("Remove the plugin", shell(failure, "pip uninstall -y jax-metal")),
            Fix(
                "Or go back to the jax that the plugin was made for",
                shell(failure, "pip install jax-metal==0.1.1 jax==0.5.0 jaxlib==0.5.0"),
            ),
        ],
        facts={"reported": match.group()},
    )


@rule("JPX1319", "windows-runtime-missing", types=("ImportError",), clues=("DLL load failed",), anywhere=True)
def windows_runtime_missing(failure: Failure) -> Finding | None:
    match = failure.search(r"DLL load failed while importing (xla_extension|_jax|_xla|cpu_feature_guard|_pywrap\w*)\b")
    if match is None or (match.group(1) == "_xla" and not any(f.package == "jax" for f in failure.frames)):
        return None
    return Finding(
        what=f"Windows cannot load jaxlib's compiled part ({match.group(1)}).",
        why="It needs Microsoft's Visual C++ runtime, which is not part of Windows.",
        fixes=[
            Fix(
                "Install the Visual C++ runtime, then start Python anew", "!winget install Microsoft.VCRedist.2015+.x64"
            ),
            Fix("Install JAX again", shell(failure, "pip install -U --force-reinstall jax jaxlib")),
        ],
        facts={"module": match.group(1)},
    )


# -- parts of JAX that are not loaded --------------------------------------------------------------


@rule("JPX1314", "jax-submodule-not-imported", types=("AttributeError",), clues=("module 'jax",))
def jax_submodule_not_imported(failure: Failure) -> Finding | None:
    match = failure.search(r"module '(jax(?:\.[A-Za-z_]\w*)*)' has no attribute '?([A-Za-z_]\w*)")
    if match is None:
        return None
    name = f"{match.group(1)}.{match.group(2)}"
    if match.group(2).startswith("_") or name in _ALWAYS or not _is_submodule(name):
        return None
    return Finding(
        what=f"{name} is a module of its own that has not been imported yet.",
        why=f"`import jax` loads only part of JAX. {name} must be imported by name once; then the line that failed "
        "works as it is.",
        fixes=[
            Fix(f"Import {name}, before the line that failed", f"import {name}"),
            Fix("Or import it under a short name", f"from {match.group(1)} import {match.group(2)}"),
        ],
        facts={"module": name},
    )


# `import jax` itself loads these
_ALWAYS = frozenset(
    f"jax.{name}"
    for name in ("version", "numpy", "lax", "random", "nn", "tree", "tree_util", "core", "errors", "dtypes")
)


def _is_submodule(name: str) -> bool:
    # looks for the file only; the parent package is loaded already, since it raised
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
