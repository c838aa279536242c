"""The command line: `ortfuse optimize`, `verify`, `bisect`, `explain`, `bench`, `prove` and `passes`.

The exit codes are those of `ortfuse.cli.usage`.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ortfuse.cli.options import (
    Approximate,
    Debug,
    InputFiles,
    Json,
    MaxOpset,
    Measure,
    Model,
    Passes,
    Patterns,
    Pins,
    Rounds,
    Seed,
    Sizes,
    Threads,
    Tolerance,
    Verify,
    check_folder,
    check_sizes_used,
    check_targets,
    given_inputs,
    load_model,
    parse_pins,
    parse_sizes,
    write_json,
)
from ortfuse.cli.usage import INTERRUPTED, NO, UNUSABLE, OneLineErrors, WithVerify, show_version, whole_number
from ortfuse.errors import OrtfuseError

app = typer.Typer(
    name="ortfuse",
    cls=OneLineErrors,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)


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


@app.command(cls=WithVerify)
def optimize(
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write the result; without it, nothing is written.", show_default=False
        ),
    ] = None,
    passes: Passes = "auto",
    patterns: Patterns = None,
    max_opset: MaxOpset = None,
    approximate: Approximate = False,
    pin: Pins = None,
    measure: Measure = False,
    verify: Verify = None,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure the latency after each pass, interleaved with the original.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say for each site what fused it, or what came nearest.")
    ] = False,
    inputs: InputFiles = None,
    size: Sizes = None,
    seed: Seed = 0,
    tolerance: Tolerance = None,
    threads: Threads = 0,
    rounds: Rounds = 20,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Optimise a model: ortfuse optimize bert.onnx -o bert.opt.onnx --verify --bench

    Prints the nodes before and after, the fused sites of each family, the passes with their time and changes and, when
    asked for, the largest error against the original and the latency after each pass. The exit code is 1 if the result is
    wrong, and then it is not written.
    """
    with guarded(debug):
        check_targets(output, json_file)
        check_sizes_used(size, bench or measure, inputs)
        from ortfuse.explanation import explanation
        from ortfuse.pipeline import PassManager
        from ortfuse.report.console import show_explanation, show_outcome
        from ortfuse.workflow import optimise

        manager = PassManager(
            passes,
            patterns=patterns or (),
            max_opset=max_opset,
            approximate=approximate,
            explain=explain,
            pins=parse_pins(pin),
        )
        with progress_line() as progress:
            progress(f"loading {model}")
            original = load_model(model)
            outcome = optimise(
                original,
                manager,
                output=output,
                verify=verify,
                bench=bench,
                measure=measure,
                inputs=given_inputs(inputs, original),
                sizes=parse_sizes(size),
                seed=seed,
                tolerance=tolerance,
                rounds=rounds,
                threads=threads,
                progress=progress,
            )
        show_outcome(out, outcome)
        if explain:
            show_explanation(out, explanation(original, outcome.report, manager.catalogue))
        write_json(json_file, {"model": str(model), **outcome.to_dict()})
    if not outcome.ok:
        raise typer.Exit(NO)


@app.command()
def verify(
    original: Annotated[Path, typer.Argument(metavar="A", help="The original model.", show_default=False)],
    optimised: Annotated[Path, typer.Argument(metavar="B", help="The model to compare with it.", show_default=False)],
    inputs: InputFiles = None,
    seed: Seed = 0,
    tolerance: Tolerance = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Compare two models on generated inputs of several sizes: ortfuse verify a.onnx b.onnx

    The exit code is 0 if they are equal within tolerance, 1 if they are not and 2 if they could not be compared.
    """
    with guarded(debug):
        from ortfuse.report.console import show_verdict
        from ortfuse.verification import verify as compare

        check_targets(None, json_file)
        with progress_line() as progress:
            progress("comparing")
            first = load_model(original)
            verdict = compare(
                first, load_model(optimised), inputs=given_inputs(inputs, first), seed=seed, tolerance=tolerance
            )
        show_verdict(out, verdict)
        write_json(json_file, verdict.to_dict())
    if not verdict.ok:
        raise typer.Exit(NO)


@app.command()
def bisect(
    model: Model,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Search ONNX Runtime's own optimisers instead of ortfuse's passes.")
    ] = False,
    passes: Passes = "auto",
    patterns: Patterns = None,
    max_opset: MaxOpset = None,
    approximate: Approximate = False,
    inputs: InputFiles = None,
    seed: Seed = 0,
    tolerance: Tolerance = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Find what moves an output: ortfuse bisect bert.onnx --patterns my_rules.py

    Narrows down the passes, the rules and the single rewrites that move an output beyond tolerance, names the site, gives
    the error against float64 before and after, and says whether it is rounding or a wrong rewrite. The exit code is 1 if
    an output moves.
    """
    with guarded(debug):
        from ortfuse.bisection.bisect import bisect as search
        from ortfuse.bisection.runtime_optimizers import bisect_runtime
        from ortfuse.pipeline import PassManager

        check_targets(None, json_file)
        manager = PassManager(passes, patterns=patterns or (), max_opset=max_opset, approximate=approximate)
        with progress_line() as progress:
            original = load_model(model)
            given = given_inputs(inputs, original)
            options: Any = {"inputs": given, "seed": seed, "tolerance": tolerance, "progress": progress}
            found = bisect_runtime(original, **options) if runtime else search(original, manager, **options)
        for line in found.lines():
            out.print(line, markup=False, highlight=False)
        write_json(json_file, {"model": str(model), **found.to_dict()})
    if found.moved:
        raise typer.Exit(NO)


@app.command()
def explain(
    model: Model,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help="A family (attention) or a rule (attention.sdpa); may be given several times.",
            show_default=False,
        ),
    ] = None,
    passes: Passes = "auto",
    patterns: Patterns = None,
    max_opset: MaxOpset = None,
    approximate: Approximate = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Say for each site what fused it, or what came nearest: ortfuse explain bert.onnx --rule attention

    Of a near miss it says how far it matched, the node or fact that stopped it, and what would make it match.
    """
    with guarded(debug):
        from ortfuse.explanation import explain as find_reasons
        from ortfuse.pipeline import PassManager
        from ortfuse.report.console import show_explanation, show_notes

        check_targets(None, json_file)
        manager = PassManager(
            passes, patterns=patterns or (), max_opset=max_opset, approximate=approximate, explain=True
        )
        with progress_line() as progress:
            progress("optimising")
            found = find_reasons(load_model(model), manager, rule or ())
        show_explanation(out, found)
        show_notes(out, found.notes)
        write_json(json_file, {"model": str(model), **found.to_dict()})


@app.command()
def bench(
    model: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Models with the same inputs; the first is the yardstick.", show_default=False
        ),
    ],
    inputs: InputFiles = None,
    size: Sizes = None,
    seed: Seed = 0,
    threads: Threads = 0,
    rounds: Rounds = 20,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Measure models side by side: ortfuse bench bert.onnx bert.opt.onnx

    Runs are interleaved; the speedup is the median over rounds of the first model's latency divided by each one's, and
    beside it stand the bounds between which that median lies with 95 % confidence.
    """
    with guarded(debug):
        from ortfuse.bench import measure, numbered
        from ortfuse.report.console import show_latencies
        from ortfuse.workflow import bench_inputs

        check_targets(None, json_file)
        check_sizes_used(size, True, inputs)
        with progress_line() as progress:
            progress("measuring")
            models = numbered((str(path), load_model(path)) for path in model)
            first = next(iter(models.values()))
            label, typical = bench_inputs(first, given_inputs(inputs, first), parse_sizes(size), seed)
            rows = measure(models, typical, rounds=rounds, threads=threads)
        show_latencies(out, rows, f"Latency at {label}")
        write_json(json_file, {"inputs": label, "latency": [row.to_dict() for row in rows]})


@app.command()
def passes(patterns: Patterns = None, debug: Debug = False) -> None:
    """List every pass, rule (with formula, exactness and what it makes) and pass list."""
    with guarded(debug):
        from ortfuse.pipeline import built_in_lists, load_catalogue
        from ortfuse.pipeline import passes as registered
        from ortfuse.report.console import show_passes

        texts = {name: (inspect.getdoc(kind) or "").partition("\n")[0] for name, kind in registered().items()}
        texts["canonicalize"] = (
            "The normal form: its rules with constants, fold, dims_from_reshape, drop_length_clamps, cse and dce, "
            "to a fixed point."
        )
        texts["fixpoint(...)"] = "Repeats the passes within until none changes anything."
        show_passes(out, load_catalogue(patterns or []), built_in_lists().values(), texts)


@app.command()
def prove(
    rules: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files or folders with rules.", show_default=False)
    ],
    spellings: Annotated[
        int,
        typer.Option(
            "--spellings",
            parser=whole_number(0),
            metavar="NUMBER",
            help="Spellings tried for pairs of options, beyond one for each option.",
        ),
    ] = 24,
    counterexamples: Annotated[
        Path, typer.Option("--counterexamples", help="Folder for models on which a rule is wrong.")
    ] = Path("counterexamples"),
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Prove rules of your own from their declarations: ortfuse prove my_rules.py

    Builds instances of each pattern, runs both sides in ONNX Runtime and compares each with float64; then near misses, on
    which the rule must stay silent or right. The exit code is 1 if a rule fails; a small model that shows it is written.
    """
    with guarded(debug):
        from ortfuse.model.io import save
        from ortfuse.pipeline import load_catalogue
        from ortfuse.proof import prove as try_rule
        from ortfuse.report.console import show_proof

        check_targets(None, json_file)
        check_folder(counterexamples)
        own = [rule for file in load_catalogue(rules).files if file.source == "user" for rule in file.rules]
        reports = []
        for rule in own:
            with progress_line() as progress:
                progress(f"proving {rule.name}")
                report = try_rule(rule, pairs=spellings)
            reports.append(report)
            show_proof(out, report)
            if report.smallest is not None:
                counterexamples.mkdir(parents=True, exist_ok=True)
                path = counterexamples / f"{rule.name}.onnx"
                save(report.smallest[1], path)
                out.print(f"  written: {path}", markup=False, highlight=False)
        write_json(json_file, {"rules": [report.to_dict() for report in reports]})
    if not all(report.proved for report in reports):
        raise typer.Exit(NO)


@contextlib.contextmanager
def progress_line() -> Iterator[Any]:
    """A line on the terminal that says what is going on; nothing when the output is no terminal."""
    with err.status("starting") as status:
        yield lambda text: status.update(text)


@contextlib.contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Print errors that ortfuse raises on purpose without a traceback and exit with code 2."""
    try:
        yield
    except OrtfuseError as error:
        if debug:
            raise
        err.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(UNUSABLE) from None
    except KeyboardInterrupt:
        err.print("interrupted; nothing was written")
        raise typer.Exit(INTERRUPTED) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    app(args=list(arguments) if arguments is not None else sys.argv[1:], prog_name="ortfuse")


if __name__ == "__main__":
    main()
