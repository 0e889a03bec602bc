"""XLA_FLAGS: read as XLA reads it, checked by XLA itself, mended where only punctuation is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar_magic.backend import flags

COUNT = "--xla_force_host_platform_device_count"
FAST = "--xla_cpu_enable_fast_math"


def survives(text: str) -> bool:
    """Whether a process that starts a CPU backend with these flags lives: the fact itself."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    code += "from jaxlib import xla_client; xla_client.make_cpu_client(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "XLA_FLAGS": text}, capture_output=True, text=True
    )
    return "alive" in done.stdout


# --- reading ------------------------------------------------------------------------------------------------


def test_words_and_values():
    text = f"{COUNT}=4 --xla_dump_to=\"/tmp/a b\" --xla_x='c d'  {FAST}"
    assert flags.words(text) == [f"{COUNT}=4", '--xla_dump_to="/tmp/a b"', "--xla_x='c d'", FAST]
    assert flags.values(text) == {
        "xla_force_host_platform_device_count": "4",
        "xla_dump_to": "/tmp/a b",
        "xla_x": "c d",
        "xla_cpu_enable_fast_math": "",
    }


def test_xla_reads_up_to_the_first_word_that_is_no_flag():
    text = f"{FAST} true {COUNT}=4"
    assert flags.values(text) == {"xla_cpu_enable_fast_math": ""}
    assert flags.unread(text) == f"true {COUNT}=4"
    assert flags.unread(f"{COUNT}=4") == ""


def test_a_flag_takes_the_place_of_one_with_its_name_and_keeps_the_others():
    assert flags.with_flag("", f"{FAST}=true") == f"{FAST}=true"
    text = flags.with_flag(f"{FAST}=true {COUNT}=4", f"{FAST}=false")
    assert sorted(text.split()) == sorted([f"{COUNT}=4", f"{FAST}=false"])


# --- checking -----------------------------------------------------------------------------------------------

BAD = [
    # text, what the message must say, what surely was meant, a guess
    (f"-\N{EN DASH}{COUNT[2:]}=2", "typographic dash", f"{COUNT}=2", None),
    (f"\N{EM DASH}{COUNT[2:]}=2", "typographic dash", f"{COUNT}=2", None),
    (f"{COUNT} 4", "'='", f"{COUNT}=4", None),
    (f"{COUNT} = 4", "'='", f"{COUNT}=4", None),
    (f"-{COUNT[2:]}=3", "two hyphens", f"{COUNT}=3", None),
    (COUNT[2:] + "=3", "two hyphens", f"{COUNT}=3", None),
    ("--xla_force_host_platform_device_cuont=4", "does not know", None, f"{COUNT}=4"),
    ("--xla_bogus=1", "does not know", None, None),
    (COUNT, "needs a value", None, None),
    (f"{COUNT}=abc", "cannot read its value", None, None),
    ("/no/such/file", "no such file", None, None),
]


@pytest.mark.parametrize(("text", "says", "meant", "guess"), BAD, ids=[case[0] for case in BAD])
def test_what_ends_the_process_is_named_with_what_was_meant(text, says, meant, guess):
    assert not survives(text)  # the ground for refusing it, on this very jaxlib
    (bad,) = flags.check(text)
    assert bad.text == text
    assert says in bad.problem
    assert (bad.meant, bad.nearest) == (meant, guess)
    assert (meant or guess or "") in str(bad)
    assert flags.repaired(text, (bad,)) == (meant or "")


def test_blanks_alone():
    (bad,) = flags.check("  ")
    assert "blanks alone" in str(bad)
    assert flags.correction("  ", (bad,)) == "del os.environ['XLA_FLAGS']"


def test_good_flags_stay_when_bad_ones_go():
    text = f"--xla_bogus=1 {FAST}=false {COUNT} 3 --xla_cpu_enable_fast_math_=1"
    bad = flags.check(text)
    assert [flag.text for flag in bad] == ["--xla_bogus=1", f"{COUNT} 3", "--xla_cpu_enable_fast_math_=1"]
    assert bad[2].nearest == f"{FAST}=1"
    fixed = flags.repaired(text, bad)
    assert fixed == f"{FAST}=false {COUNT}=3"
    assert survives(fixed)
    assert flags.correction(text, bad) == f"os.environ['XLA_FLAGS'] = {fixed!r}"


@pytest.mark.parametrize("text", ["", f"{COUNT}=4", f"{FAST} {COUNT}=2", '--xla_dump_to="/tmp/a b"', f"{FAST} true"])
def test_what_xla_takes_is_left_alone(text):
    assert flags.check(text) == ()


def test_flags_from_a_file(tmp_path):
    file = tmp_path / "flags"
    file.write_text(f"{COUNT}=2")
    assert flags.check(str(file)) == ()
    other = tmp_path / "others"
    other.write_text("--xla_bogus=1")
    (bad,) = flags.check(str(other))
    assert "in that file" in bad.problem


def test_the_usual_flag_and_accepted_ones_need_no_child(monkeypatch):
    text = f"{FAST}=false"
    assert flags.check(text) == ()
    monkeypatch.setattr(flags, "_complaint", lambda text: pytest.fail("started a child"))
    assert flags.check(text) == flags.check("") == flags.check(f"{COUNT}=8") == ()


def test_without_a_child_nothing_is_held_against_the_user(monkeypatch):
    def no_child(*args, **kwargs):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "run", no_child)
    assert flags.check("--xla_surely_bogus=1") == ()


def test_checking_leaves_the_environment_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_bogus=1")
    before = dict(os.environ)
    flags.check("--xla_bogus=1")
    assert dict(os.environ) == before


names = st.text("abcdefghij_", min_size=1, max_size=12).map("--xla_".__add__)
sound = st.builds("{}={}".format, names, st.text("abc019./-", min_size=1, max_size=8))


@settings(max_examples=200)
@given(st.lists(sound, max_size=5))
def test_sound_punctuation_is_not_touched(parts):
    text = " ".join(parts)
    assert flags.repaired(text, ()) == text
    assert flags.words(text) == parts
    assert flags.unread(text) == ""


@settings(max_examples=200)
@given(st.text("-–=x_l a4\t\"'", max_size=30))
def test_any_text_can_be_read(text):
    flags.values(text), flags.unread(text), flags.repaired(text, ())
    assert "".join("".join(flags.words(text)).split()) == "".join(text.split())  # no character is lost
