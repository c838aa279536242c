"""Operations and latency of models that read one token of the last layer, with and without `hoist_selection`.

    python -m benchmarks.one_token.exports          # needs PyTorch and transformers
    python -m benchmarks.one_token --write          # all models that are there
    python -m benchmarks.one_token bert --rounds 0  # operations alone, as on a machine that is busy

Both results of a model are verified against the original and run in turns with one another. Operations are those that the
formulas of `ortfuse.analysis.costs` give for batches of 1 and texts of 128 tokens.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import typer

from benchmarks.models import sizes_of
from benchmarks.one_token.exports import FOLDER
from benchmarks.results import Results
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.one_token --write"
WITHOUT = 'auto{without="hoist_selection"}'
LENGTH = 128
"""Tokens of a text."""


def operations(model: ir.Model) -> float:
    """Return the operations of a model for one text or picture; nodes whose cost is not known count for nothing."""
    from ortfuse.analysis.costs import cost_of
    from ortfuse.analysis.facts import Facts
    from ortfuse.ir.dims import evaluate, symbols

    facts, found = Facts(model), 0
    batches = {str(dim) for one in model.graph.inputs for dim in (facts.shape(one) or ())[:1]}
    for node in model.graph:
        cost = cost_of(node, facts)
        if cost is not None:
            sizes = {name: 1 if name in batches else LENGTH for name in symbols(cost.flops)}
            found += evaluate(cost.flops, sizes)
    return float(found)


def row(source: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Optimise a model in both ways, and return verdicts, operations, nodes and latency."""
    import ortfuse
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import measure, typical_inputs

    with tempfile.TemporaryDirectory() as folder:
        paths = {"without": Path(folder, "without.onnx"), "with": Path(folder, "with.onnx")}
        options: dict[str, dict[str, Any]] = {"without": {"passes": WITHOUT}, "with": {}}
        made, figures = {}, {}
        for name, path in paths.items():
            result = ortfuse.optimize(source, output=path, verify=True, **options[name])
            assert result.verdict is not None
            figures[name] = {"equal": bool(result.verdict.ok), "error": result.verdict.summary()}
            made[name] = load(path)
            figures[name] |= {"nodes": result.report.after.nodes, "operations": operations(made[name])}
        latency = {}
        if rounds:
            _, inputs = typical_inputs(load(source), sizes=sizes_of(source.name))
            latency = {one.name: one for one in measure(made, inputs, rounds=rounds, threads=threads)}
    counts = {name: one["operations"] for name, one in figures.items()}
    return {
        "equal": all(one["equal"] for one in figures.values()),
        "verdict": figures["with"]["error"],
        "nodes": {name: one["nodes"] for name, one in figures.items()},
        "operations saved": 1 - counts["with"] / max(counts["without"], 1),
        **({"speedup": latency["with"].speedup, "bounds": latency["with"].speedup_bounds} if latency else {}),
    }


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Words that the name of a model begins with.")] = None,
    models: Annotated[Path, typer.Option(help="The folder of the models.")] = FOLDER,
    rounds: Annotated[int, typer.Option(help="How often each result runs; 0 measures no latency.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 1,
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Measure; exit code 1 means that a result is not equal."""
    rows = {}
    for path in sorted(models.glob("*.onnx")):
        if not names or any(path.name.startswith(name) for name in names):
            rows[path.stem] = row(path, rounds, threads)
            print(path.stem, json.dumps(rows[path.stem]), flush=True)
    if not rows:
        raise typer.BadParameter(f"no such model in {models}; export them with python -m benchmarks.one_token.exports")
    found = {
        "models": rows,
        "operations saved, mean": statistics.mean(one["operations saved"] for one in rows.values()),
    }
    speedups = [one["speedup"] for one in rows.values() if one.get("speedup")]
    if speedups:
        found["speedup, geometric mean"] = statistics.geometric_mean(speedups)
    if write:
        Results("one_token", processor=processor_in_full()).store(COMMAND, found, raw=rows)
    raise typer.Exit(0 if all(one["equal"] for one in rows.values()) else 1)


if __name__ == "__main__":
    typer.run(main)
