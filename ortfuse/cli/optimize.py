"""The command `optimize`: fuse the operators of a model, and verify and measure the result if asked."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import ortfuse
from ortfuse.cli.command_output import Answer, profiled
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.regression_check import demand_no_regression, demand_same_model, stored
from ortfuse.cli.shared_arguments import Check, Config, Model, Models
from ortfuse.cli.terminal import out, print_unexpected, progress_line
from ortfuse.errors import OptionError
from ortfuse.options.target_in_file_name import has_target

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortfuse.api.models_file import Settings
    from ortfuse.api.result import Result
    from ortfuse.options import Options
    from ortfuse.report.document import Document


@with_options
def optimize(
    given: Given,
    model: Model,
    config: Config = None,
    models: Models = None,
    check: Check = None,
    *,
    answer: Answer,
) -> None:
    """Optimise a model: ortfuse optimize bert.onnx -o bert.opt.onnx --verify --bench

    Report the nodes before and after, the fused sites of each family, and the passes with their times and changes. Options add
    the largest error against the original, and the latency after each pass.

    `{target}` in the name of the output makes a result for each target that --target and --runtime list.

    The exit code is 1 if the result is wrong; then nothing is written. It is 3 on a regression against --check.
    """
    settings = settings_of(models, model)
    options = options_of(given, config, settings)
    if settings is not None:
        options = settings.without_idle(options)
    from ortfuse.api.optimize import options_by_target

    if not has_target(options.output):
        done = [_for_target(model, options, answer, settings, check)]
    elif check is not None:
        raise OptionError("check", "is for one result; leave it out, or name one target and a file without {target}")
    else:
        every = options_by_target(options)
        places = {label: answer.for_target(label) for label in every}
        done = [_for_target(model, one, places[label], settings, name=label) for label, one in every.items()]
    if not all(done):
        raise typer.Exit(NO)


def _for_target(
    model: Path, options: Options, answer: Answer, settings: Settings | None, check: Path | None = None, name: str = ""
) -> bool:
    """Optimise a model for one target or for several at once, and give the answer; returns whether the result is right."""
    from ortfuse.report.documents.optimization import optimization_document

    known = stored(check, "optimize")
    demand_same_model(known, model)
    asked = options.explain
    if answer.has_page:
        options = options.with_(explain=asked or True)
    original = _kept(model, options.output) if answer.has_page else None
    try:
        with progress_line() as progress:
            result = ortfuse.optimize(model, options, progress=progress)
    except ortfuse.WrongResultError as error:
        result = error.result
    # The explanation is on the page if nobody asked for it, and would hide the rest on the terminal.
    shown = f"{model} for {name}" if name else str(model)
    if name:
        out.print(f"\ntarget {name}", style="bold", highlight=False)
    document = optimization_document(shown, result if asked else replace(result, explanation=None))
    content = {"model": str(model), **result.to_dict()}
    answer.give(document, content, lambda: _page(model, original, result, options))
    if result.verdict is not None:
        print_unexpected(settings, result.verdict.ok)
    if result.ok:
        demand_no_regression(out, "optimize", known, content)
    return result.ok


def _kept(model: Path, output: object) -> ir.Model | None:
    """The model, if the result takes its place, so that a page can show it as it was; otherwise it is read when it is needed."""
    same = output is not None and os.path.realpath(str(output)) == os.path.realpath(model)
    return ortfuse.load(model) if same else None


def _page(model: Path, original: ir.Model | None, result: Result, options: Options) -> Document | None:
    """The document with the fused sites drawn and, where latencies were measured, the time of both models by operators."""
    from ortfuse.report.documents.optimization import Drawn, optimization_document

    if result.unchanged:
        out.print("no page was written, since the model was left as it is", highlight=False)
        return None
    profiles = None
    if original is None:
        original = ortfuse.load(model)
        if result.latencies is not None:
            profiles = profiled(model, result.written or result.model, options)
    return optimization_document(str(model), result, Drawn(original, result.model, profiles))
