"""The command `explain`: list the match sites of rules, fused and missed."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.shared_arguments import Config, Model, Models
from ortfuse.cli.terminal import progress_line


@with_options
def explain(
    given: Given,
    model: Model,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule", metavar="NAME", help="Family (attention) or rule to explain; by default all. Repeatable."
        ),
    ] = None,
    config: Config = None,
    models: Models = None,
    *,
    answer: Answer,
) -> None:
    """Explain each match site, fused or missed: ortfuse explain bert.onnx --rule attention

    For a fused site, report the rule. For a near miss, report how far the pattern matched, the node or fact that stopped it, and
    the change that would make it match.
    """
    from ortfuse.report.documents.explanation import explanation_document

    options = options_of(given, config, settings_of(models, model))
    with progress_line() as progress:
        found = ortfuse.explain(model, rule or (), options, progress=progress)
    answer.give(explanation_document(model.name, found), {"model": str(model), **found.to_dict()})
