"""The command line: `ortfuse optimize`, `verify`, `bisect`, `explain`, `bench`, `prove` and `passes`.

Each command reads its arguments, calls the public function of its name and prints what that returns. The exit codes are
those of `ortfuse.cli.usage`.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ortfuse.cli.models import bench, bisect, explain, optimize, verify
from ortfuse.cli.rules import passes, prove
from ortfuse.cli.usage import Command, OneLineErrors, WithVerify, show_version

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
            help="Show the versions of ortfuse, onnx and the runtime.",
        ),
    ] = False,
) -> None:
    """Rewrite ONNX models into the operators that ONNX Runtime has fast kernels for, and prove them equal.

    Exit codes: 0 if all is well; 1 if the answer is no (outputs differ, so that nothing is written; a rule is not proved);
    2 if something cannot be used, with one line that says what to do.
    """


app.command(cls=WithVerify)(optimize)
for command in (verify, bisect, explain, bench, passes, prove):
    app.command(cls=Command)(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script; with `arguments`, the same for a program that goes on after it."""
    if arguments is None:
        # Nearly all that a run makes stays until its end: to look for garbage more often, and once more at the end, is vain.
        gc.set_threshold(50_000, 20, 20)
        atexit.register(gc.freeze)
    app(args=list(arguments) if arguments is not None else sys.argv[1:], prog_name="ortfuse")


if __name__ == "__main__":
    main()
