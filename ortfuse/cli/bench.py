"""The command `bench`: measure the latency of models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.regression_check import demand_no_regression, demand_same_names, stored
from ortfuse.cli.shared_arguments import Check, Models
from ortfuse.cli.terminal import out, progress_line


@with_options
def bench(
    given: Given,
    model: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Models with the same inputs. The first one is the baseline."),
    ],
    models: Models = None,
    check: Check = None,
    *,
    answer: Answer,
) -> None:
    """Measure models side by side: ortfuse bench bert.onnx bert.opt.onnx

    Rounds are interleaved. The speedup is the median over rounds of the first model's latency divided by the other's, with its
    95 % confidence interval. Rounds are added until the intervals are narrow, within --budget.

    Generated inputs have the sizes that any of the models declares or fixes.
    """
    from ortfuse.report.documents.bench import bench_document
    from ortfuse.runtime.bench import numbered

    known = stored(check, "bench")
    options = options_of(given, None, settings_of(models, model[0]), bench=True)
    named = numbered((str(path), path) for path in model)
    demand_same_names(known, named)
    with progress_line() as progress:
        progress("measuring")
        found = ortfuse.benchmark(named, options)
    answer.give(bench_document(found), found.to_dict())
    demand_no_regression(out, "bench", known, found.to_dict())
