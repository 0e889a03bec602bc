"""XLA_FLAGS: what stands in it, whether XLA will take it, and what was meant.

XLA reads XLA_FLAGS once, when the first backend starts, and ends the process where it cannot make sense of
them. Nothing in Python can catch that, so a child process tries the flags (about 0.1 s) and dies instead.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import nearest

COUNT_FLAG = "xla_force_host_platform_device_count"

_DASHES = "-‐‑‒–—―−﹘﹣－"
_QUOTED_OR_BARE = re.compile(
    r"""[-\w]+=(?:"(?:\\.|[^"\\])*"?|'[^']*'?)  # --name="a b"
      | [^ \t\r\n]+""",
    re.VERBOSE | re.ASCII,
)
# Every jaxlib takes this flag: the usual XLA_FLAGS needs no child process.
_SURELY_FINE = re.compile(rf"(--{COUNT_FLAG}=\d{{1,9}}\s*)*", re.ASCII)
_UNKNOWN = "XLA does not know it"
_NO_FILE = "XLA takes it for a file's name, and there is no such file"
_accepted: set[str] = set()


@dataclass(frozen=True)
class BadFlag:
    """A part of XLA_FLAGS for which XLA would end the process.

    Attributes
    ----------
    text: the flag as it stands there.
    problem: what is wrong, as a clause: "it has a typographic dash …", "XLA does not know it".
    meant: the flag that was surely meant (only its punctuation is wrong), or None.
    nearest: the known flag most like it, a guess, or None.
    """

    text: str
    problem: str
    meant: str | None = None
    nearest: str | None = None

    @property
    def hint(self) -> str:
        """A sentence to append, or the empty string."""
        suggestion = self.meant or self.nearest
        return f" Did you mean {suggestion}?" if suggestion else ""

    def __str__(self) -> str:
        return f"{self.text.strip() or 'blanks alone'}: {self.problem}.{self.hint}"


def words(text: str) -> list[str]:
    """The parts of XLA_FLAGS, as XLA splits them.

    >>> words('--xla_a=1  --xla_b="c d"')
    ['--xla_a=1', '--xla_b="c d"']
    """
    return _QUOTED_OR_BARE.findall(text)


def values(text: str) -> dict[str, str]:
    """Names and values of the flags that XLA reads: up to the first word that is no flag."""
    found = {}
    for word in words(text):
        if not word.startswith("-"):
            break
        name, _, value = word.lstrip("-").partition("=")
        found[name] = value.strip("\"'")
    return found


def unread(text: str) -> str:
    """The rest of XLA_FLAGS that XLA skips without a word, because a part before it is no flag."""
    parts = words(text)
    for i, word in enumerate(parts):
        if not word.startswith("-"):
            return " ".join(parts[i:]) if i else ""
    return ""


def with_flag(text: str, flag: str) -> str:
    """`text` with `flag` in place of a flag of the same name, or after the others."""
    name = _name(flag)
    return " ".join([word for word in words(text) if _name(word) != name] + [flag])


def check(text: str) -> tuple[BadFlag, ...]:
    """The flags in `text` for which XLA would end the process; empty if it takes them all.

    Starts child processes unless the flags were accepted before. If no child can be started, it finds
    nothing: the user's flags are theirs, and we know nothing against them.
    """
    if not text or text in _accepted or (text.strip() and _SURELY_FINE.fullmatch(text)):
        return ()
    if not _refused(text):
        _accepted.add(text)
        return ()
    if not text.strip():
        return (BadFlag(text, "XLA takes them for a file's name", meant=""),)
    mended = list(_mended(text))
    refused = _refused(" ".join(after for _, after in mended))
    bad = []
    for before, after in mended:
        if after in refused:
            bad.append(_explained(before, after, refused[after]))
        elif before != after:
            bad.append(BadFlag(before, _what_was_wrong(before, after), meant=after))
    return tuple(bad)


def repaired(text: str, bad: tuple[BadFlag, ...]) -> str:
    """`text` with each bad flag replaced by what was surely meant, or else left out."""
    fates = {flag.text: flag.meant for flag in bad}
    kept = (fates.get(before, after) for before, after in _mended(text))
    return " ".join(word for word in kept if word)


def correction(text: str, bad: tuple[BadFlag, ...]) -> str:
    """The line of Python that makes XLA_FLAGS sound."""
    fixed = repaired(text, bad)
    return f"os.environ['XLA_FLAGS'] = {fixed!r}" if fixed else "del os.environ['XLA_FLAGS']"


def _name(word: str) -> str:
    return word.lstrip(_DASHES).partition("=")[0]


def _mended(text: str) -> Iterator[tuple[str, str]]:
    """Each flag as typed, and with its punctuation as XLA wants it: two hyphens, `=`, no blank in it."""
    parts = words(text.replace("\N{NO-BREAK SPACE}", " "))
    i = 0
    while i < len(parts):
        before = after = parts[i]
        i += 1
        while i < len(parts) and parts[i][0] not in _DASHES and not parts[i].startswith("xla_"):
            value = parts[i]  # a word that is no flag belongs to the flag before it: `--xla_a 4`
            before += " " + value
            joint = "" if after.endswith("=") or value.startswith("=") else "="
            after = after if "=" in after[:-1] else after + joint + value
            i += 1
        if before[0] in _DASHES or before.startswith("xla_"):
            after = "--" + after.lstrip(_DASHES)
        yield before, after


def _what_was_wrong(before: str, after: str) -> str:
    lead = before[: len(before) - len(before.lstrip(_DASHES))]
    for dash in lead:
        if dash != "-":
            return f"it has a typographic dash ({dash}) where XLA needs a hyphen (-)"
    return "it needs two hyphens in front" if lead != "--" else "it needs '=' and no blank before its value"


def _explained(before: str, after: str, problem: str) -> BadFlag:
    """A flag that XLA refuses, with the known one most like it."""
    if problem != _UNKNOWN:
        return BadFlag(before, problem)
    name, equals, value = after.lstrip("-").partition("=")
    known = _nearest_name(name)
    if known == name:
        return BadFlag(before, f"it needs a value: --{name}=…")
    return BadFlag(before, problem, nearest=f"--{known}{equals}{value}" if known else None)


def _refused(text: str) -> dict[str, str]:
    """The words of `text` that XLA refuses, each with the reason.

    XLA names the values that it cannot read before the flags that it does not know, so it is asked again
    without the ones found until it accepts.
    """
    refused: dict[str, str] = {}
    rest = text
    while rest or not refused:
        complaint = _complaint(rest)
        if complaint is None:
            break
        found = _named(complaint, rest)
        refused |= found
        rest = " ".join(word for word in words(rest) if word not in found and word.startswith("-"))
    return refused


def _named(complaint: str, text: str) -> dict[str, str]:
    """The words of `text` that XLA's complaint is about; all of them if it names none."""
    parts = words(text)
    if not text.strip().startswith("-"):
        missing = "Could not open file" in complaint
        return {text: _NO_FILE if missing else "XLA refuses the flags in that file"}
    unread_values = re.findall(r"Couldn't interpret value .*? for flag ([\w-]+)", complaint)
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", complaint)
    names = {_name(word) for word in words(unknown[1])} if unknown else set(unread_values)
    problem = _UNKNOWN if unknown else "XLA cannot read its value"
    return {w: problem for w in parts if _name(w) in names} or dict.fromkeys(parts, "XLA refuses it")


# The child leaves no core file. A Python error is none of ours: JAX will raise it too, and say more.
_TRY_FLAGS = """
import os, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    from jaxlib import xla_client
    xla_client.make_cpu_client()
finally:
    os._exit(0)
"""


def _complaint(text: str) -> str | None:
    """What XLA says before it ends a process with these flags, or None if it takes them."""
    environment = {
        **os.environ,
        "XLA_FLAGS": text,
        # the child looks for jaxlib where this process does
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _TRY_FLAGS],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    # The name of XLA's source file is in all its complaints about flags, and in no other death's.
    return child.stderr if child.returncode != 0 and "parse_flags_from_env" in child.stderr else None


def _nearest_name(name: str) -> str | None:
    """The name of a flag of this jaxlib most like `name`, or None if nothing is like it."""
    names = {known.removeprefix("xla_"): known for known in names_in_library()}
    # All begin with "xla_": compared with it, any two short names would look alike.
    while candidate := nearest(name.removeprefix("xla_"), names):
        # Not every name in the library is a flag: XLA itself has the last word.
        if "Unknown flag" not in (_complaint(f"--{names[candidate]}=") or ""):
            return names[candidate]
        del names[candidate]
    return None


@functools.cache
def names_in_library() -> frozenset[str]:
    """Names of flags from the compiled library.

    XLA prints its list only when it aborts, cut after 15,000 characters (about 80 of 300 flags). Each flag
    is a field of a protocol buffer, whose description in the library holds its name after its length.
    """
    spec = find_spec("jaxlib")
    found: set[str] = set()
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in [*Path(folder).glob("libjax_common.*"), *Path(folder).glob("xla_extension.*")]:
            with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for match in re.finditer(rb"\n([\x08-\x7f])(xla_[a-z0-9_]+)", content):
                    length = match[1][0]
                    if length <= len(match[2]):
                        found.add(match[2][:length].decode())
    return frozenset(found)
