"""The project's description in the wheel and the sdist: README.md as an index of packages can show it.

An index shows the text alone, far from the files that it points to. With the address of the public repository, the
entry `Source` of `[project.urls]` in pyproject.toml, pictures and links lead there; as long as there is none, links
become plain text, and pictures the words that stand for them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)  # code is left alone
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def description(readme: str, source: str | None) -> str:
    """README.md's text for an index of packages; `source` is the address of the repository at a code host."""

    def elsewhere(match: re.Match[str]) -> str:
        picture, text, path, anchor = match.groups(default="")
        if source:
            return f"{picture}[{text}]({source.rstrip('/')}/{'raw' if picture else 'blob'}/HEAD/{path}{anchor})"
        return f"*Picture: {text}*" if picture else text

    return "".join(part if part.startswith("```") else _LINK.sub(elsewhere, part) for part in _FENCE.split(readme))


class Description(MetadataHookInterface):
    """What hatchling asks while it builds (`[tool.hatch.metadata.hooks.custom]`)."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = description(readme, metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
