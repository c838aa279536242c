"""The command line: `ortfuse optimize`, `quantize`, `substitute`, `verify`, `bisect`, `explain`, `inspect`, `bench`, ...

Each command parses its arguments, calls the public function of the same name and prints the result. Exit codes are
documented in `ortfuse.cli.parsing`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from ortfuse.cli.parsing import COMMANDS, FORMER_COMMANDS, Command, OneLineErrors, WithVerify, show_version


def everything(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions of ortfuse, onnx, onnxruntime and onnx_ir.",
        ),
    ] = False,
) -> None:
    """Fuse the operators of ONNX models into those for which ONNX Runtime has fast kernels, and verify the result.

    Exit codes: 0 on success. 1 if the answer is no: outputs differ, so that nothing is written, or a rule fails its test. 2 if a
    file, option or rule cannot be used; one line says the remedy. 3 on a regression against --check.
    """


def app_of(commands: Iterable[str]) -> typer.Typer:
    """Make the application with some of the commands."""
    made = typer.Typer(name="ortfuse", cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False)
    made.callback()(everything)
    for name in commands:
        module = name.replace("-", "_")
        function = getattr(importlib.import_module(f"ortfuse.cli.{module}"), module)
        made.command(name, cls=WithVerify if name in ("optimize", "substitute") else Command)(function)
    return made


def __getattr__(name: str) -> Any:
    """The application with all commands, `app`, is made on first use."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made = app_of(COMMANDS)
    return made


def main(arguments: Sequence[str] | None = None, began: float | None = None) -> None:
    """The console script; with `arguments`, for use from a program that continues afterwards.

    Args:
        arguments: Instead of those of the process.
        began: When the command began to be loaded, on the clock of `time.monotonic`: what has a budget counts that, too.
    """
    if arguments is None:
        # Nearly every object lives until the end of the run, so frequent and final garbage collections only cost time.
        gc.set_threshold(50_000, 20, 20)
        atexit.register(gc.freeze)
    given = list(sys.argv[1:] if arguments is None else arguments)
    named = FORMER_COMMANDS.get(given[0], given[0]) if given else ""
    app_of([named] if named in COMMANDS else COMMANDS)(args=given, prog_name="ortfuse", obj=began)


if __name__ == "__main__":
    main()
