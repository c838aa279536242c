"""The command `bisect`: the rewrite that changes an output."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.arguments import Config, Debug, Json, Model, Models
from ortfuse.cli.given_options import Given, settings_of, with_options
from ortfuse.cli.given_options import options as options_of
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO
from ortfuse.cli.terminal import guarded, out, progress_line


@with_options
def bisect(
    given: Given,
    model: Model,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Bisect ONNX Runtime's own optimizers instead of ortfuse's passes.")
    ] = False,
    config: Config = None,
    models: Models = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Find the rewrite that changes an output: ortfuse bisect bert.onnx --patterns my_rules.py

    Narrow down the passes, rules and single rewrites that move an output beyond tolerance. Report the site, the error against
    float64 before and after, and a verdict: rounding or a wrong rewrite.

    The exit code is 1 if an output moves.
    """
    with guarded(debug):
        check_json(json_file)
        options = options_of(given, config, settings_of(models, model))
        with progress_line() as progress:
            found = (ortfuse.bisect_runtime if runtime else ortfuse.bisect)(model, options, progress=progress)
        for line in found.lines():
            out.print(line, markup=False, highlight=False)
        write_json(json_file, "bisect", {"model": str(model), **found.to_dict()})
    if found.moved:
        raise typer.Exit(NO)
