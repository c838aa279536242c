"""The command `substitute`: replace one subgraph by another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.shared_arguments import Config, Model
from ortfuse.cli.terminal import progress_line


@with_options
def substitute(
    given: Given,
    model: Model,
    find: Annotated[Path, typer.Option("--find", help="ONNX file with the subgraph to look for.")],
    replace: Annotated[Path, typer.Option("--replace", help="ONNX file with the subgraph to put in its place.")],
    free: Annotated[
        list[str] | None,
        typer.Option(
            "--free",
            metavar="NAME",
            help=(
                "Initializer of the two files that may have any value, or an attribute: NODE.ATTRIBUTE or "
                "NODE.ATTRIBUTE=NAME. Repeatable."
            ),
        ),
    ] = None,
    untested: Annotated[
        bool,
        typer.Option("--untested", help="Replace without a rule test of the pair. Needs --verify or --verify=sites."),
    ] = False,
    config: Config = None,
    *,
    answer: Answer,
) -> None:
    """Replace one subgraph by another: ortfuse substitute MODEL -o RESULT --find a.onnx --replace b.onnx

    Inputs of the two files stand for any values of their types and shapes. Initializers stand for their exact values, unless they
    are free. A rule test checks the pair first. No other rewrite is applied unless --passes names it.

    The exit code is 1 if the rule test fails, the model has no such subgraph, or the result is wrong; then nothing is written.
    """
    from ortfuse.interop import RuleTestError
    from ortfuse.report.documents.optimization import optimization_document
    from ortfuse.report.documents.rule_tests import refuted_document, substitution_document

    options = options_of(given, config)
    try:
        with progress_line() as progress:
            done = ortfuse.substitute(
                model, find, replace, options, free=free or (), untested=untested, progress=progress
            )
    except RuleTestError as error:
        content = {"model": str(model), "ok": False, "rule_test": error.report.to_dict()}
        answer.give(refuted_document(error.report), content)
        raise typer.Exit(NO) from None
    except ortfuse.WrongResultError as error:
        answer.give(optimization_document(str(model), error.result), {"model": str(model), **error.result.to_dict()})
        raise typer.Exit(NO) from None
    answer.give(substitution_document(str(model), done), {"model": str(model), **done.to_dict()})
    if not done.ok:
        raise typer.Exit(NO)
