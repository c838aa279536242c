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
from ortfuse.options.parse_text import whole_number


@with_options
def bench(
    given: Given,
    model: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Models with the same inputs. The first one is the baseline."),
    ],
    models: Models = None,
    check: Check = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            parser=whole_number(1),
            metavar="NUMBER",
            help="Measure whole generations of so many tokens, of decoders with caches and of generators.",
        ),
    ] = None,
    prompt: Annotated[
        int,
        typer.Option("--prompt", parser=whole_number(1), metavar="NUMBER", help="Tokens of the prompt for --generate."),
    ] = 32,
    *,
    answer: Answer,
) -> None:
    """Measure models side by side: ortfuse bench bert.onnx bert.opt.onnx

    Rounds are interleaved. The speedup is the median over rounds of the first model's latency divided by the other's, with its
    95 % confidence interval. Rounds are added until the intervals are narrow, within --budget.

    Generated inputs have the sizes that any of the models declares or fixes.

    With --generate, decoders run in a plain loop with their caches bound, beside generators (files or folders) and folders that
    onnxruntime-genai runs: tokens per second, the time of the prompt and steps by the number of tokens before them, and memory.
    """
    if generate is not None:
        _bench_generations(given, model, generate, prompt, answer)
        return
    from ortfuse.api.benchmark_generation import demand_single_runs
    from ortfuse.report.documents.bench import bench_document
    from ortfuse.runtime.bench import numbered

    demand_single_runs(model)

    known = stored(check, "bench")
    options = options_of(given, None, settings_of(models, model[0]), bench=True)
    named = numbered((str(path), path) for path in model)
    demand_same_names(known, named)
    with progress_line() as progress:
        progress("measuring")
        found = ortfuse.benchmark(named, options)
    answer.give(bench_document(found), found.to_dict())
    demand_no_regression(out, "bench", known, found.to_dict())


def _bench_generations(given: Given, models: list[Path], new_tokens: int, prompt: int, answer: Answer) -> None:
    from ortfuse.api.benchmark_generation import benchmark_generation
    from ortfuse.report.documents.generations import generations_document

    options = options_of(given)
    with progress_line() as progress:
        progress("measuring")
        found = benchmark_generation(
            models,
            new_tokens=new_tokens,
            prompt=prompt,
            rounds=given.get("rounds", 5),
            threads=options.threads,
            seed=options.seed,
        )
    answer.give(generations_document(found), found.to_dict())
