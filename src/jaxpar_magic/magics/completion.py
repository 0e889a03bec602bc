"""Tab in the lines of our magics: what IPython calls.

Where the cursor stands in an attribute, in brackets or in a text, IPython itself completes. Everywhere else in such a
line only what `offers` offers makes sense, so nothing of IPython's own (files, builtins, magics) is mixed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

try:
    from IPython.core.completer import SimpleCompletion, context_matcher

    _KEEPS_OTHERS_AWAY = True
except ImportError:  # IPython < 8.6 mixes ours with all that it finds itself
    _KEEPS_OTHERS_AWAY = False

_log = logging.getLogger(__name__)


class _OnlyThese(list):
    """Completions that keep all others away, even if there are none: IPython asks `len` whether it may do so."""

    def __len__(self) -> int:
        return max(1, super().__len__())


class Completion:
    """The matcher for one shell."""

    def __init__(self, shell: Any, explain_magics: Any):
        self._shell = shell
        self._explain = explain_magics
        if _KEEPS_OTHERS_AWAY:

            @context_matcher(identifier="jaxpar_magic", priority=100)
            def matcher(context: Any) -> Any:
                lines = context.full_text.split("\n")[: context.cursor_line]
                found = self._offer("\n".join([*lines, context.text_until_cursor]))
                if found is None:
                    return {"completions": [], "suppress": False}
                completions = _OnlyThese(SimpleCompletion(text, type=found.kind) for text in found.texts)
                return {
                    "completions": completions,
                    "suppress": True,
                    "matched_fragment": found.fragment,
                    "ordered": True,
                }

            self.matcher: Callable[..., Any] = matcher
        else:
            self.matcher = self._match_token

    def _match_token(self, token: str) -> list[str]:
        """For IPython < 8.6, which knows the line up to the cursor, and replaces `token`, the end of it."""
        found = self._offer(self._shell.Completer.text_until_cursor)
        if found is None:
            return []
        if token.endswith(found.fragment):
            before = token[: len(token) - len(found.fragment)]
            return [before + text for text in found.texts]
        before = found.fragment[: len(found.fragment) - len(token)]
        return [text[len(before) :] for text in found.texts if text.startswith(before)]

    def _offer(self, text: str) -> Any:
        """What `offers.offer` says. Never raises: IPython would print a traceback into the line being typed."""
        if not any(f"%{name}" in text for name in ("parmap", "jaxdevices", "jaxexplain", "jaxcluster")):
            return None
        try:
            from .offers import offer

            hidden = self._shell.user_ns_hidden
            names = {n: v for n, v in self._shell.user_ns.items() if n not in hidden or hidden[n] is not v}
            last = self._explain.last
            return offer(text, names, len(last.fixes) if last is not None else 0)
        except Exception:
            _log.debug("no completion", exc_info=True)
            return None
