"""`%jaxexplain`, and the hook that puts a card under the traceback of a failing cell."""

from __future__ import annotations

import functools
import logging
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from .options import OptionParser, help_on_demand, usage_error
from .settings import JaxparMagics

_NAME = "jaxexplain"
_MOST_WARNINGS = 20  # kept for the end of the cell; a loop may warn thousands of times
_MARK = "_jaxpar_explained_in"

_log = logging.getLogger(__name__)

_DESCRIPTION = """\
Explain an error of JAX: what went wrong with your own numbers, why, and ways out as code.

%jaxexplain                explains the last error
%jaxexplain 2              puts fix 2 into a new cell, and prints it
%jaxexplain JPX0104        the page of that code
%jaxexplain TEXT           explains a message; a whole traceback goes into a cell under %%jaxexplain
%jaxexplain --list         all that can be explained
%jaxexplain --off          no cards under tracebacks (--on: again)

The card under a traceback is brief, and full when the same error comes again.
%config JaxparMagics.explanations = "full" (or "brief", "off") changes that."""


@functools.cache
def make_parser() -> OptionParser:
    """The options of `%jaxexplain`."""
    parser = OptionParser(_NAME, "%jaxexplain [CODE|NUMBER|TEXT|option]", _DESCRIPTION)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--full", action="store_true", help="with the shapes at your line and the facts used")
    add("--list", action="store_true", help="list the codes")
    add("--on", action="store_true", help="cards under tracebacks: on")
    add("--off", action="store_true", help="cards under tracebacks: off")
    return parser


@magics_class
class JaxExplainMagics(Magics):
    """The magic `%jaxexplain`."""

    settings: JaxparMagics
    _before_off: str = "auto"  # what `--on` goes back to
    last: Any = None  # the Explanation shown last: plain data, so that `%jaxexplain 2` knows its fixes

    @no_var_expand
    @line_cell_magic
    def jaxexplain(self, line: str, cell: str | None = None) -> Any:
        """Explain an error of JAX: what went wrong with your own numbers, why, and ways out as code."""
        request = line.strip()
        if cell is not None:
            return self._explain(f"{request}\n{cell}" if request else cell)
        if request.startswith("-"):
            return self._options(request)
        if not request:
            return self._explain(None)
        if re.fullmatch(r"\d+", request):
            return self._fix(int(request))
        if re.fullmatch(r"[A-Za-z]+\d{4}", request) or re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", request):
            return _page(request)
        return self._explain(request)

    def _options(self, request: str) -> Any:
        read = make_parser().read(request)
        if read is None:
            return None
        options, rest = read
        if rest:
            raise usage_error(_NAME, f"{request.split()[0]} takes nothing after it, got {' '.join(rest)}.")
        if options.on or options.off:
            settings = self.settings
            if options.off and settings.explanations != "off":
                self._before_off, settings.explanations = settings.explanations, "off"
            elif options.on and settings.explanations == "off":
                settings.explanations = self._before_off
            print(f"Cards under tracebacks: {'off' if options.off else 'on'}.")
            return None
        if options.list:
            return _index()
        return self._explain(None, full=options.full)

    def _explain(self, text: str | None, *, full: bool = False) -> Any:
        from ..explanations import explain

        error = getattr(sys, "last_value", None)
        if text is None and error is None and self.last is not None:  # a text was explained
            return self.last.describe(brief=False) if full else self.last
        if text is None and error is None:
            print("No error in this session yet. %jaxexplain TEXT explains a message, --list shows the codes.")
            return None
        explanation = explain(text, name_file=cell_namer(self.shell))
        if explanation is None:
            what = _first_line(error) if text is None and error is not None else "this text"
            print(f"Nothing known about {what}. It may not be an error of JAX. --list shows what is known.")
            return None
        self.last = explanation
        return explanation.describe(brief=False) if full else explanation

    def _fix(self, number: int) -> None:
        if self.last is None:
            from ..explanations import explain

            self.last = explain(name_file=cell_namer(self.shell))
        fixes = self.last.fixes if self.last is not None else ()
        if not 1 <= number <= len(fixes):
            have = f"{self.last.name} has fixes 1 to {len(fixes)}" if fixes else "no fix has been shown"
            raise usage_error(_NAME, f"fix {number}: {have}.")
        code = fixes[number - 1].code
        print(code)
        shell: Any = self.shell
        shell.set_next_input(code)


help_on_demand(JaxExplainMagics.jaxexplain, make_parser)


def _page(name: str) -> Any:
    from ..explanations.pages import codes, page

    known = {code: page(code).slug for code in codes()}
    for code, slug in known.items():
        if name.upper() == code or name == slug:
            return page(code).describe()
    from ..errors import did_you_mean

    raise usage_error(
        _NAME, f"no code {name}.{did_you_mean(name.upper(), known) or did_you_mean(name, known.values())}"
    )


def _index() -> Any:
    from ..document import Document, Heading, Table
    from ..explanations.pages import codes, page

    rows = [(code, page(code).slug, page(code).title) for code in codes()]
    return Document([Heading("What %jaxexplain explains"), Table(("code", "name", "meaning"), rows)])


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def cell_namer(shell: Any) -> Callable[[str], str | None]:
    """Turns the file name of a cell's code into "cell In[3]"."""

    def name(file: str) -> str | None:
        format_name = getattr(shell.compile, "format_code_name", None)  # IPython 8 on
        label = format_name(file) if format_name is not None else None
        return None if label is None else f"cell {label[1]}"

    return name


class ErrorHook:
    """Puts a card under the traceback of a failing cell, and a line under one that warned.

    Nothing is imported, and nothing computed, for a cell that succeeds. An error that has nothing to do with
    JAX is left alone before the explanations are imported.
    """

    def __init__(self, shell: Any, magics: JaxExplainMagics):
        self._shell = shell
        self._magics = magics
        self._warned: list[Any] = []  # a Failure, plain data, for each warning of the cell
        self._waiting: list[Any] = []  # documents of cells that a magic ran: they would go where its output goes
        self._told: set[str] = set()  # codes of warnings: each is told once in a session
        self._open = True
        self._show_before = warnings.showwarning
        warnings.showwarning = self._showwarning

    def close(self) -> None:
        """Stop listening to warnings."""
        self._open = False
        if warnings.showwarning == self._showwarning:  # else somebody wrapped ours: it goes on passing them on
            warnings.showwarning = self._show_before

    def _showwarning(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        # The warning itself appears as ever, whatever filters there are.
        self._show_before(message, category, filename, lineno, file, line)
        try:
            if self._open and len(self._warned) < _MOST_WARNINGS and _warned_by_jax(str(message), filename):
                from ..explanations.context import Failure

                # Now, while the user's line is on the stack. What there is to say waits for the end of the
                # cell: a warning may come from any thread, and from places where nothing may be displayed.
                self._warned.append(Failure.from_warning(str(message), category, filename, lineno))
        except Exception:
            _log.debug("a warning could not be read", exc_info=True)

    def post_run_cell(self, result: Any) -> None:
        """IPython's event after each cell. Never raises: that would publish an error of its own."""
        error = None
        if result is not None:
            error = result.error_before_exec or result.error_in_exec
        if error is None and not self._warned and not self._waiting:
            return
        try:
            seen, self._warned = self._warned, []
            if self._magics.settings.explanations == "off":
                return
            for warning in seen:
                self._explain_warning(warning)
            if error is not None and _is_relevant(error) and not self._is_known(error):
                self._explain_error(error)
            if not _inside_a_cell():
                ready, self._waiting = self._waiting, []
                for document in ready:
                    display(document)
        except Exception:
            _log.debug("an error could not be explained", exc_info=True)

    def _is_known(self, error: BaseException) -> bool:
        """Whether the error had its card in this cell: a magic that runs a cell brings the event twice."""
        number = getattr(self._shell, "execution_count", None)
        if getattr(error, _MARK, None) == number and number is not None:
            return True
        setattr(error, _MARK, number)  # a mark on the error keeps nothing alive
        return False

    def _explain_error(self, error: BaseException) -> None:
        from ..explanations import explain

        explanation = explain(error, name_file=cell_namer(self._shell))
        if explanation is not None:
            mode, last = self._magics.settings.explanations, self._magics.last
            again = last is not None and (last.code, last.what) == (explanation.code, explanation.what)
            self._magics.last = explanation
            document = explanation.describe(brief=mode == "brief" or (mode == "auto" and not again))
            self._waiting.append(_with_hint(document, explanation))

    def _explain_warning(self, failure: Any) -> None:
        from ..explanations import explain

        explanation = explain(failure)
        if explanation is not None and explanation.code not in self._told:
            from ..document import Document, Paragraph

            self._told.add(explanation.code)
            text = f"{explanation.what} Ways out: %jaxexplain {explanation.code}"
            self._waiting.append(Document([Paragraph(text, label=explanation.name)], kind="card"))


def _inside_a_cell() -> bool:
    """Whether a cell is still running around the one that ended: %%capture and others run a cell in a cell."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "run_code" and frame.f_code.co_filename.endswith("interactiveshell.py"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_relevant(error: BaseException) -> bool:
    """Whether the error may have to do with JAX or with this package: a cheap look, before any import."""
    if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit
        return False
    return "jax" in sys.modules or type(error).__module__.startswith("jax") or _mentions_jax(str(error))


def _warned_by_jax(message: str, filename: str) -> bool:
    """Whether a warning is JAX's: by its words, or by who is calling `warnings.warn` just now."""
    if "jax" not in sys.modules:
        return False
    if _mentions_jax(message) or _mentions_jax(filename):
        return True
    frame: Any = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return False
        if re.match(r"jax(lib)?\b", str(frame.f_globals.get("__name__"))):
            return True
        frame = frame.f_back
    return False


def _mentions_jax(text: str) -> bool:
    return re.search(r"jax|xla|numpyro|pjrt", text, re.I) is not None


def _with_hint(document: Any, explanation: Any) -> Any:
    from ..document import Document, Paragraph

    fixes = "%jaxexplain 1 puts fix 1 into a new cell; " if explanation.fixes else ""
    hint = f"{fixes}%jaxexplain {explanation.code} tells more."
    return Document([*document.blocks, Paragraph(hint)], kind=document.kind)
