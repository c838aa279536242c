"""The command `optimize`: a model with its operators fused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import ortfuse
from ortfuse.cli.arguments import Check, Config, Debug, Json, Model, Models, Report
from ortfuse.cli.given_options import Given, settings_of, with_options
from ortfuse.cli.given_options import options as options_of
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO
from ortfuse.cli.regression_check import demand_no_regression, demand_same_model, stored
from ortfuse.cli.report_option import check_report, profiled, write_report
from ortfuse.cli.terminal import guarded, out, print_unexpected, progress_line

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortfuse.api.result import Result
    from ortfuse.options import Options


@with_options
def optimize(
    given: Given,
    model: Model,
    config: Config = None,
    models: Models = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Optimise a model: ortfuse optimize bert.onnx -o bert.opt.onnx --verify --bench

    Report the nodes before and after, the fused sites of each family, and the passes with their times and changes. Options add
    the largest error against the original, and the latency after each pass.

    The exit code is 1 if the result is wrong; then nothing is written. It is 3 on a regression against --check.
    """
    with guarded(debug):
        settings = settings_of(models, model)
        options = options_of(given, config, settings)
        if settings is not None:
            options = settings.without_idle(options)
        check_json(json_file)
        known = stored(check, "optimize")
        demand_same_model(known, model)
        check_report(report)
        asked = options.explain
        if report is not None:
            options = options.with_(explain=asked or True)
        original = None if report is None else _kept(model, options.output)
        try:
            with progress_line() as progress:
                result = ortfuse.optimize(model, options, progress=progress)
        except ortfuse.WrongResultError as error:
            result = error.result
        from ortfuse.report.documents.optimization import optimization_document
        from ortfuse.report.terminal.document import show_document

        # What the page needs beyond what was asked for is on the page, and would hide the rest here.
        show_document(out, optimization_document(str(model), result if asked else replace(result, explanation=None)))
        if result.verdict is not None:
            print_unexpected(settings, result.verdict.ok)
        content = {"model": str(model), **result.to_dict()}
        write_json(json_file, "optimize", content)
        if report is not None:
            _write_page(model, original, result, report, options)
        if not result.ok:
            raise typer.Exit(NO)
        demand_no_regression(out, "optimize", known, content)


def _kept(model: Path, output: object) -> ir.Model | None:
    """The model, if the result takes its place, so that a page can show it as it was; otherwise it is read when it is needed."""
    same = output is not None and os.path.realpath(str(output)) == os.path.realpath(model)
    return ortfuse.load(model) if same else None


def _write_page(model: Path, original: ir.Model | None, result: Result, path: Path, options: Options) -> None:
    from ortfuse.pipeline import load_catalogue
    from ortfuse.report.documents.optimization import Drawn, optimization_document

    if result.left_alone:
        out.print("no page was written, since the model was left as it is", highlight=False)
        return
    formulas = {rule.name: rule.formula for rule in load_catalogue(result.options.rules).rules()}
    profiles = None
    if original is None:
        original = ortfuse.load(model)
        if result.latencies is not None:
            profiles = profiled(model, result.written or result.model, options)
    drawn = Drawn(original, result.model, formulas, profiles)
    write_report(path, optimization_document(str(model), result, drawn))
