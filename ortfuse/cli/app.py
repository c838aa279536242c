"""The command line: `ortfuse optimize`, `quantize`, `substitute`, `verify`, `bisect`, `explain`, `inspect`, `bench`, ...

Each command parses its arguments, calls the public function of the same name and prints the result. Exit codes are
documented in `ortfuse.cli.parsing`.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ortfuse.cli.convert import convert
from ortfuse.cli.diff import diff
from ortfuse.cli.inspect import inspect
from ortfuse.cli.model_commands import bench, bisect, explain, optimize, verify
from ortfuse.cli.parsing import Command, OneLineErrors, WithVerify, show_version
from ortfuse.cli.profile import calibrate, profile
from ortfuse.cli.quantize import quantize
from ortfuse.cli.rule_commands import passes, prove
from ortfuse.cli.substitute import substitute
from ortfuse.cli.sweep import sweep
from ortfuse.cli.tune import tune

app = typer.Typer(
    name="ortfuse",
    cls=OneLineErrors,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
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


app.command(cls=WithVerify)(optimize)
app.command(cls=WithVerify)(substitute)
for command in (
    quantize, convert, tune, sweep, verify, diff, bisect, explain, inspect, bench, profile, calibrate, passes, prove
):  # fmt: skip
    app.command(cls=Command)(command)


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
    app(args=list(arguments) if arguments is not None else sys.argv[1:], prog_name="ortfuse", obj=began)


if __name__ == "__main__":
    main()
