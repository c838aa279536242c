"""The command `diff`: two models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.arguments import Debug, Report
from ortfuse.cli.pages import check_report, write_report
from ortfuse.cli.terminal import guarded, out


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A model.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to show beside it.", show_default=False)],
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Show where the graphs of two models differ: ortfuse diff a.onnx b.onnx --report difference.html

    Nodes are the same if their operator, attributes and the names around them are. Whether the models compute the same is a
    question for `ortfuse verify`.
    """
    with guarded(debug):
        from ortfuse.report.console import show_difference
        from ortfuse.report.pages import difference_page

        check_report(report)
        before, after = ortfuse.load(first), ortfuse.load(second)
        show_difference(out, before, after)
        if report is not None:
            write_report(report, difference_page(str(first), str(second), before, after))
