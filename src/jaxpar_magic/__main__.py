"""`python -m jaxpar_magic explain`: explain the error on standard input."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0 explained, 1 nothing is known about the error."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpar_magic", description="Parallel maps with JAX, and JAX's errors explained."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    explain_parser = commands.add_parser(
        "explain",
        help="explain an error",
        description="Explain a message or traceback from standard input, or from the words after the command. "
        "A code such as JPX0104 shows its page.",
    )
    explain_parser.add_argument("text", nargs="*", help="a message or a code; default: read standard input")
    explain_parser.add_argument("--full", action="store_true", help="also show the facts that were used")
    options = parser.parse_args(arguments)
    text = " ".join(options.text)
    if not text:
        data = sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode()
        text = data.decode("utf-8", errors="replace")

    from .explanations import explain, pages

    if hasattr(sys.stdout, "reconfigure"):  # a card must not fail on a terminal that lacks a character
        sys.stdout.reconfigure(errors="replace")
    if text.strip().upper() in pages.codes():
        print(pages.page(text.strip().upper()).describe())
        return 0
    explanation = explain(text)
    if explanation is None:
        print("Nothing known about this text. It may not be an error of JAX.", file=sys.stderr)
        return 1
    print(explanation.describe(brief=not options.full))
    return 0


if __name__ == "__main__":
    sys.exit(main())
