"""`%parmap` and `%%parmap`: a magic line → a call of `parmap`, and its result shown."""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import keyword
import math
import sys
from typing import Any

from IPython import version_info
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display
from IPython.utils.text import DollarFormatter

from ..errors import did_you_mean
from ..mapping.choices import CHECK, ON_ERROR, REMAINDER, SHOW, STRATEGIES
from ..mapping.strategies import PYTHON
from .cell import CellBody, parse_cell, run_body, use_of_value
from .options import OptionParser, help_on_demand, usage_error
from .settings import JaxparMagics

# What stands below an error's message: the item that failed, what is kept for --resume.
_SHOWS_NOTES = version_info[:2] >= (8, 14)

_DESCRIPTION = """\
Map a function over inputs on all cores, devices or worker processes.

%parmap f xs                         maps the function f over xs and stacks the results
ys = %parmap f xs -s thread          the same into a variable, by a strategy of your choice
%parmap f xs --compare vmap,thread   times these strategies (without names: all) and checks that they agree
%parmap f xs --show code             the plain JAX that does the same
%parmap g pairs                      a list of tuples is spread over g's parameters
%parmap h xs years=5.0 --key 0       a shared value, and a PRNG key per item as h's parameter key

%%parmap xs -o ys                    the cell defines the function …
def double(x):
    return 2 * x

%%parmap x=xs k=3                    … or is an expression of the named inputs
x ** k

An input is a Python expression: an array or a pytree of arrays (mapped along axis 0), or a list, range,
generator, Series or DataFrame (a sequence of items). A number or string is the same for all items;
name=expression names the parameter. The value is the results, stacked; with -o, the line has a value only where
you assign it. The report line says "batches of 64" where each device takes 64 items at once (-b). Numbers of
options may be expressions, too (-b width); in the others {name} is the value of a variable (-s {name})."""


def _strategy_names(text: str) -> str:
    """Names for --compare, separated by commas; what is none of them is an input that stands behind the option."""
    for name in text.split(","):
        if name.strip() not in STRATEGIES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not one of {', '.join(STRATEGIES)}.{did_you_mean(name, STRATEGIES)}"
            )
    return text


@functools.cache
def make_parser() -> OptionParser:
    """The options of `%parmap`, as in the table of the documentation."""
    p = OptionParser("parmap", "%parmap FUNCTION INPUT [INPUT …] [options]", _DESCRIPTION)
    p.add_argument("-s", "--strategy", choices=STRATEGIES, metavar="NAME", help=", ".join(STRATEGIES))
    p.add_argument("-d", "--devices", metavar="N", help="how many devices, threads or workers; default all")
    p.add_argument(
        "-b", "--batch-size", metavar="N", help="items vectorised together on a device, as by vmap; default chosen"
    )
    p.add_argument("--chunk-size", metavar="N", help="items per dispatch, which bounds memory; default chosen")
    p.add_argument("-a", "--in-axes", metavar="AXES", help="as in jax.vmap; None shares an input with all items")
    p.add_argument("--out-axes", metavar="AXES", help="as in jax.vmap")
    p.add_argument("--static", action="append", default=[], metavar="NAME", help="an input that is a constant")
    p.add_argument("--key", metavar="SEED", help="one PRNG key per item, for the function's parameter key")
    p.add_argument("--remainder", choices=REMAINDER, default="pad", metavar="HOW", help="pad (default), drop or error")
    p.add_argument(
        "--on-error", choices=ON_ERROR, default="raise", metavar="HOW", help="raise (default) or skip failing items"
    )
    p.add_argument("--check", choices=CHECK, metavar="WHAT", help="finite: name the items whose result has NaN or inf")
    p.add_argument("--checkpoint", metavar="DIR", help="keep finished chunks in a folder")
    p.add_argument("--resume", action="store_true", help="go on from the chunks that an earlier run left")
    p.add_argument("--timeout", metavar="SECONDS", help="stop after this time; what is done is kept for --resume")
    p.add_argument(
        "--memory", metavar="BYTES", help="bound on what the map holds: 2GB, 1.5GiB, 50%% of what is free; default 80%%"
    )
    p.add_argument("--input-file", metavar="PATH", help="the first input: x.npy, x.npz::NAME, x.h5::DATASET, x.zarr")
    p.add_argument("--out-file", metavar="PATH", help="write the result, chunk by chunk, to y.npy or y.zarr")
    p.add_argument(
        "--spmd",
        action="store_true",
        help="with -s cluster: one program over all engines, with collectives over the axis items (jax.lax.psum …)",
    )
    p.add_argument("--keep-sharded", action="store_true", help="with --spmd: leave the results on the engines")
    p.add_argument("--no-progress", action="store_true", help="no progress bar")
    p.add_argument(
        "-c",
        "--compare",
        nargs="?",
        const=True,
        type=_strategy_names,
        metavar="NAMES",
        help="run several strategies: all, or those named (vmap,thread); a table of times, and how far results differ",
    )
    p.add_argument("--show", choices=SHOW, metavar="WHAT", help=", ".join(SHOW) + ": instead of running")
    p.add_argument("-o", "--out", metavar="NAME", help="result into a variable; only the report line is shown")
    p.add_argument("-q", "--quiet", action="store_true", help="no report line")
    p.add_argument("--noresult", action="store_true", help="the line has no value")
    p.texts = frozenset(
        ("strategy", "remainder", "on_error", "check", "checkpoint", "memory", "input_file", "out_file", "show", "out")
    )
    return p


@magics_class
class ParmapMagics(Magics):
    """Parallel maps."""

    shell: Any
    settings: JaxparMagics

    @no_var_expand
    @line_cell_magic
    def parmap(self, line: str, cell: str | None = None) -> Any:
        """Map a function over inputs on all cores, devices or worker processes."""
        __tracebackhide__ = True
        read = make_parser().read(line, self._expand)
        if read is None:
            return None
        args, tokens = read
        options = self._options(args)
        function, tokens, body = self._function(tokens, cell)
        inputs, named, texts = self._inputs(tokens, args.input_file is not None)
        if body is not None:
            function = self._cell_function(body, inputs, named, texts, args.key is not None)
        elif texts is not None:
            texts.function = self._function_text
        # IPython's own way would take the value of `y = %parmap f xs;` too, and see no `;` behind an indented line.
        silenced = line.rstrip().endswith(";") or (body is not None and body.ends_with_semicolon())
        assigned = cell is None and use_of_value() == "used"
        value = self._run(function, inputs, named, options, args, texts)
        return value if assigned or not (args.out or silenced) else None

    # ---------------------------------------------------------------- reading the line

    def _expand(self, text: str) -> str:
        """IPython's `{name}` and `$name`, in options that are text; in the rest of the line they would be Python's."""
        try:
            return DollarFormatter().vformat(text, (), self.shell.user_ns)
        except Exception:  # IPython leaves such a text as it is, too
            return text

    def _options(self, args: argparse.Namespace) -> dict[str, Any]:
        if args.out is not None and (not args.out.isidentifier() or keyword.iskeyword(args.out)):
            raise usage_error("parmap", f"--out {args.out}: not a variable name.")
        options: dict[str, Any] = {
            "strategy": args.strategy or ("auto" if args.compare else self.settings.strategy),
            "devices": None if args.spmd else self.settings.devices,
            "static": tuple(args.static),
            "remainder": args.remainder,
            "on_error": args.on_error,
            "check": args.check,
            "checkpoint": args.checkpoint,
            "resume": args.resume,
            "memory": args.memory,
            "input_file": args.input_file,
            "out_file": args.out_file,
            "spmd": args.spmd,
            "keep_sharded": args.keep_sharded,
        }
        if args.memory is None and options["strategy"] not in PYTHON and not args.spmd:
            options["memory"] = self.settings.memory
        if args.devices == "all":
            options["devices"] = args.devices = None
        for name in ("devices", "batch_size", "chunk_size"):
            value = getattr(args, name)
            if value is not None:
                options[name] = self._whole_number(name, value)
        for name in ("in_axes", "out_axes", "key", "timeout"):
            value = getattr(args, name)
            if value is not None:
                options[name] = self._evaluate(value, f"--{name.replace('_', '-')} {value}")
        return options

    def _whole_number(self, name: str, text: str) -> int:
        option = "--" + name.replace("_", "-")
        value = int(text) if text.isdigit() else self._evaluate(text, f"{option} {text}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise usage_error("parmap", f"{option} {text}: needs a whole number from 1 on.")
        return value

    def _evaluate(self, text: str, where: str) -> Any:
        """The value of an expression in the user's namespace; its own errors as one line."""
        __tracebackhide__ = True
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError as error:
            raise usage_error("parmap", f"{where}: not a Python expression ({error.msg}).") from None
        try:
            return eval(compile(tree, "<parmap>", "eval"), self.shell.user_global_ns, self.shell.user_ns)
        except NameError as error:
            known = [n for n in self.shell.user_ns if not n.startswith("_")]
            name = str(getattr(error, "name", "") or "")
            hint = did_you_mean(name, known) or did_you_mean(name, STRATEGIES)  # these stand behind --compare
            raise usage_error("parmap", f"{where}: {error}.{hint}") from None

    def _inputs(self, tokens: list[str], from_file: bool) -> tuple[list[Any], dict[str, Any], Any]:
        from ..mapping.source import Texts

        inputs: list[Any] = []
        named: dict[str, Any] = {}
        texts = Texts("", "", [], {})
        positional: list[str] = []
        for token in tokens:
            name, expression = _named(token)
            if name is None:
                if named:
                    raise usage_error("parmap", f"{token}: unnamed inputs come before named ones.")
                inputs.append(self._evaluate(token, token))
                positional.append(token)
            else:
                named[name] = self._evaluate(expression, token)
                texts.named[name] = expression
        texts.positional = positional
        if not inputs and not named and not from_file:
            raise usage_error("parmap", "nothing to map over; give an input, as in: %parmap f xs")
        return inputs, named, texts

    # ---------------------------------------------------------------- the function

    _function_text = ""

    def _function(self, tokens: list[str], cell: str | None) -> tuple[Any, list[str], CellBody | None]:
        if cell is not None:
            body = parse_cell(self.shell, cell)
            if body.has_top_level_await():
                raise usage_error("parmap", "a %%parmap cell cannot await; await in a cell of its own.")
            if not body.tree.body:
                raise usage_error("parmap", "the cell is empty; define the function of one item in it.")
            return None, tokens, body
        if tokens[:1] == ["lambda"]:
            raise usage_error("parmap", "put the lambda in brackets: %parmap (lambda x: …) xs")
        if not tokens:
            raise usage_error("parmap", "needs a function and its inputs, as in: %parmap f xs")
        function = self._evaluate(tokens[0], tokens[0])
        if not callable(function):
            raise usage_error(
                "parmap",
                f"{tokens[0]}: is a {type(function).__name__}, not a function; "
                "the function comes first, as in: %parmap f xs",
            )
        self._function_text = tokens[0] if tokens[0].isidentifier() else f"({tokens[0]})"
        return function, tokens[1:], None

    def _cell_function(self, body: CellBody, inputs: list, named: dict, texts: Any, keyed: bool) -> Any:
        """Run the cell's definitions and return the function that it means."""
        __tracebackhide__ = True
        expression = body.last_expression()
        name = body.last_function()
        if expression is not None and named and not inputs:
            return self._expression_function(body, named, texts, keyed)
        if name is None and isinstance(expression, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Constant):
            raise usage_error("parmap", "the cell is an expression; name the inputs that it uses, as in: %%parmap x=xs")
        value = run_body(self.shell, body)
        if name is not None:
            texts.function, texts.definition = name, body.source
            return self.shell.user_ns[name]
        if callable(value):
            lines = body.source.rstrip().splitlines()
            texts.function, texts.definition = lines[-1].strip(), "\n".join(lines[:-1])
            return value
        hint = "" if named else "; name the inputs to map an expression, as in: %%parmap x=xs"
        raise usage_error("parmap", f"the cell defines no function{hint}")

    def _expression_function(self, body: CellBody, named: dict[str, Any], texts: Any, keyed: bool) -> Any:
        """`x ** k` under `x=xs k=3`: a function with the inputs' names as parameters.

        Definitions and imports in front of the expression run once, in the namespace; other statements belong to
        the function, so that they may use the inputs.
        """
        __tracebackhide__ = True
        once = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        nodes = copy.deepcopy(body.tree.body)
        before = [n for n in nodes if isinstance(n, once)]
        inside: list[ast.stmt] = [n for n in nodes[:-1] if not isinstance(n, once)]
        last = nodes[-1]
        assert isinstance(last, ast.Expr)
        result = ast.copy_location(ast.Return(last.value), last)
        parameters = [*named, *(["key"] if keyed and "key" not in named else [])]
        definition = ast.parse(f"def expression({', '.join(parameters)}): pass").body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.body = [*inside, result]
        ast.copy_location(definition, inside[0] if inside else last)
        for argument in definition.args.args:
            ast.copy_location(argument, definition)
        module = ast.fix_missing_locations(ast.Module([*before, definition], []))
        code = self.shell.compile(module, body.filename, "exec")
        space = self.shell.user_ns
        missing = object()
        earlier = space.get("expression", missing)
        exec(code, self.shell.user_global_ns, space)
        function = space.pop("expression")
        function.__name__ = "<expression>"  # not the user's name: reports leave it out, like <lambda>
        if earlier is not missing:
            space["expression"] = earlier
        texts.function = "expression"
        texts.definition = ast.unparse(module)
        return function

    # ---------------------------------------------------------------- running and showing

    def _run(self, function, inputs, named, options, args, texts) -> Any:
        __tracebackhide__ = True
        from ..mapping import api
        from ..mapping.compare import Comparison
        from ..mapping.options import MapOptions
        from ..mapping.result import MapResult
        from .progress import progress_display

        delay = self.settings.progress_delay
        watched = not (args.no_progress or args.quiet or delay == math.inf)
        try:
            done = api.run(
                function,
                inputs,
                named,
                MapOptions(**options),
                compare=args.compare,
                show=args.show,
                texts=texts,
                display=progress_display(self.shell) if watched else None,
                delay=delay,
            )
        except BaseException as error:
            if not _SHOWS_NOTES and not hasattr(error, "_render_traceback_"):
                for note in getattr(error, "__notes__", ()):
                    print(note, file=sys.stderr)
            raise
        if isinstance(done, MapResult) and not args.quiet:
            print("\n".join(done.report.lines()))
        if args.out is not None and isinstance(done, MapResult | Comparison):
            if isinstance(done, Comparison) and not args.quiet:
                display(done)
            self.shell.user_ns[args.out] = done.value
        if args.noresult:
            return None
        return done.value if isinstance(done, MapResult) else done


help_on_demand(ParmapMagics.parmap, make_parser)


def _named(token: str) -> tuple[str | None, str]:
    """("x", "xs") from ``x=xs``; (None, token) where there is no name (``a==b``, ``f(x=1)``)."""
    name, equals, expression = token.partition("=")
    if equals and name.isidentifier() and not expression.startswith("="):
        if not expression:
            raise usage_error("parmap", f"{token}: no blank around =, as in: x=xs")
        return name, expression
    return None, token
