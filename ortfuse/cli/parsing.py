"""Parse command lines, and report errors in one line with the text to write instead.

Exit codes: 0 if all is well; 1 if the answer is no (outputs differ, so that nothing is written, or a rule fails its test);
2 if something cannot be used; 3 if something is worse than what is stored (`--check`); 130 after an interrupt.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

import ortfuse
from ortfuse.cli.check_output_paths import demand_own_files
from ortfuse.cli.options_as_flags import with_flags_of_today
from ortfuse.errors.escape_control_characters import visible
from ortfuse.io.installed_runtime import installed_version
from ortfuse.options import Verification

NO = 1
"""The exit code where a question was answered, and the answer is no."""

UNUSABLE = 2
"""The exit code where a file, an option or a rule cannot be used."""

REGRESSED = 3
"""The exit code where something is worse than what `--check` names."""

INTERRUPTED = 130
"""The exit code after an interrupt."""

COMMANDS = (
    "optimize", "substitute", "quantize", "convert", "tune", "sweep", "verify", "diff", "bisect", "explain", "inspect", "bench",
    "profile", "calibrate", "passes", "targets", "test-rules", "generator",
)  # fmt: skip
"""The commands; each has a module of its name, which is imported only when it runs, and a schema in `ortfuse/schemas/`."""

FORMER_COMMANDS: Mapping[str, str] = {"prove": "test-rules"}
"""The commands of today for former names."""

_VERIFICATIONS: tuple[Verification, ...] = get_args(Verification)


class OneLineErrors(TyperGroup):
    """A command group that reports errors in options and arguments in one line, like all other errors."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; see `Command`."""
        self.help = _in_paragraphs(self.help)
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with its own parser; see `Command`."""
        return _read_by_declaration(super().get_params(ctx), self.callback)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that `args` name; without one, print the help."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        if (today := FORMER_COMMANDS.get(given[0])) is not None:
            typer.echo(f"warning: the command {given[0]} is now called {today}", err=True)
            given[0] = today
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            say = getattr(error, "format_message", None)  # of a click exception, whichever click typer brings
            if say is None or not standalone_mode:
                raise
            context = getattr(error, "ctx", None)
            path = "ortfuse" if context is None else context.command_path
            typer.echo(f"error: {visible(' '.join(say().split()).rstrip('.'))}; see `{path} --help`", err=True)
            sys.exit(UNUSABLE)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _in_paragraphs(text: str | None) -> str | None:
    """A docstring for a terminal of any width: lines end where a paragraph does, and not where those of the code do."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text)) if text else []
    return "\n\n".join(" ".join(one.split()) for one in paragraphs) or None


class Command(TyperCommand):
    """A command that parses its arguments by their declared types and parsers, and leaves the rest to typer.

    Typer would parse them with pydantic, which takes as long to load as a small model takes to optimise.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, its paragraphs as wide as the terminal."""
        self.help = _in_paragraphs(self.help)
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with its own parser."""
        return _read_by_declaration(super().get_params(ctx), self.callback)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and refuse those that would have a file replace another."""
        rest: list[str] = super().parse_args(ctx, with_flags_of_today(self.name or "", args))
        demand_own_files(self.name or "", ctx.params, {one.name: one for one in self.params}, ctx)
        return rest


Reader = Callable[[Any], Any]


def _read_by_declaration(parameters: list[Any], function: Callable[..., Any] | None) -> list[Any]:
    """The parameters of a function, parsed as it declares them; flags are left unchanged."""
    readers = {} if function is None else _readers(inspect.unwrap(function))
    for parameter in parameters:
        parameter.show_default = False  # the text of the help has the default
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda ctx: None  # of a flag the help needs no type
        read = readers.get(parameter.name, _as_it_is if getattr(parameter, "is_flag", False) else None)
        if read is not None and "process_value" not in vars(parameter):
            parameter.process_value = functools.partial(_processed, parameter, read, parameter.process_value)
    return parameters


def _as_it_is(value: Any) -> Any:
    return value


def _processed(parameter: Any, read: Reader, by_typer: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """The parsed value of one parameter; missing or invalid values are reported by typer."""
    several = isinstance(value, list | tuple)
    if value is None or (several and not value):
        if parameter.required:
            return by_typer(ctx, value)
        value = None
    else:
        try:
            value = [read(one) for one in value] if several else read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=parameter) from None
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def _readers(function: Callable[..., Any]) -> dict[str, Reader]:
    """The parser of each argument of a command: the one of its declaration, or that of its type."""
    found: dict[str, Reader] = {}
    for name, annotation in typing.get_type_hints(function, include_extras=True).items():
        if typing.get_origin(annotation) is not Annotated:
            continue
        kind, declared = typing.get_args(annotation)[:2]
        kinds = _members(kind)
        parser = getattr(declared, "parser", None)
        if parser is not None:
            found[name] = parser
        elif Path in kinds:
            found[name] = Path
        elif kinds <= {str, bool, type(None)}:
            found[name] = _as_it_is
    return found


def _members(kind: Any) -> set[Any]:
    """The member types of a type: `Path` and `None` for `list[Path] | None`."""
    parts = typing.get_args(kind)
    return {kind} if not parts else {member for part in parts for member in _members(part)}


class WithVerify(Command):
    """A command whose `--verify` may be given without a value, which then is `whole`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill in the value of `--verify` if it has none."""
        end = args.index("--") if "--" in args else len(args)
        written: list[str] = []
        for text in args[:end]:
            if written[-1:] == ["--verify=whole"] and text in _VERIFICATIONS:
                written[-1] = f"--verify={text}"
            else:
                written.append("--verify=whole" if text == "--verify" else text)
        return super().parse_args(ctx, written + args[end:])


def show_version(wanted: bool) -> None:
    """Print the version of ortfuse and of what its results depend on, and exit."""
    if wanted:
        others = ", ".join(f"{name} {installed_version(name)}" for name in ("onnx", "onnxruntime", "onnx_ir"))
        typer.echo(f"ortfuse {ortfuse.__version__} ({others}, Python {sys.version.partition(' ')[0]})")
        raise typer.Exit
