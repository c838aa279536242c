"""How the command line reads what it is told, and what it says of what it cannot read: one line that says what to write.

Exit codes: 0 if all is well; 1 if the answer is no (outputs differ, so that nothing is written, or a rule is not proved);
2 if something cannot be used; 130 after an interrupt.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

import ortfuse
from ortfuse.options import Verification

NO = 1
"""The exit code where a question was answered, and the answer is no."""

UNUSABLE = 2
"""The exit code where a file, an option or a rule cannot be used."""

INTERRUPTED = 130
"""The exit code after an interrupt."""

_VERIFICATIONS: tuple[Verification, ...] = get_args(Verification)


class OneLineErrors(TyperGroup):
    """Commands whose complaints about options and arguments are one line, as everything else that goes wrong is."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that `args` name, all help if they name none."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            say = getattr(error, "format_message", None)  # of a click exception, whichever click typer brings
            if say is None or not standalone_mode:
                raise
            context = getattr(error, "ctx", None)
            path = "ortfuse" if context is None else context.command_path
            typer.echo(f"error: {' '.join(say().split()).rstrip('.')}; see `{path} --help`", err=True)
            sys.exit(UNUSABLE)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


class WithVerify(TyperCommand):
    """A command whose `--verify` may stand without a value, which then is `whole`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write the value out."""
        end = args.index("--") if "--" in args else len(args)
        written: list[str] = []
        for text in args[:end]:
            if written[-1:] == ["--verify=whole"] and text in _VERIFICATIONS:
                written[-1] = f"--verify={text}"
            else:
                written.append("--verify=whole" if text == "--verify" else text)
        return super().parse_args(ctx, written + args[end:])


def verification(text: str) -> Verification:
    """What `--verify` is to check."""
    for known in _VERIFICATIONS:
        if text == known:
            return known
    raise typer.BadParameter(f"write --verify alone or --verify=sites, not {text!r}")


def whole_number(least: int) -> Callable[[Any], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: Any) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise typer.BadParameter(f"write a whole number, {least} or more, not {text!r}")
        return number

    return read


def positive_number(text: Any) -> float:
    """Reads a number that is 0 or more, and finite."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise typer.BadParameter(f"write a number that is 0 or more, such as 1e-3, not {text!r}")
    return number


def show_version(wanted: bool) -> None:
    """Print the version of ortfuse and of what its results depend on, and exit."""
    if wanted:
        others = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime", "onnx_ir"))
        typer.echo(f"ortfuse {ortfuse.__version__} ({others}, Python {sys.version.partition(' ')[0]})")
        raise typer.Exit
