"""Independence of the order in which matches are visited: every golden model in several random orders, each edit checked.

    python -m benchmarks.trust.order --seeds 5
    python -m benchmarks.trust.order --seeds 5 --no-checks --no-outputs --models benchmarks/.varied

In an order, the model is written in another way: its nodes, the users of each value, the operands of commuting operators and all
inner names are shuffled. The rewriter takes nodes from its worklist at random.

The result must be the graph of the usual order, up to names, node order and the order of commuting operands. It must compute the
same. After each rewrite and each pass the graph is checked, and the facts kept up are compared with facts computed afresh.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

import ortfuse
from benchmarks.results import Results
from benchmarks.trust.structural_hash import shuffle, structural_hash
from ortfuse.errors import OrtfuseError
from ortfuse.io.load_and_save import load
from ortfuse.ir.walk import nodes
from ortfuse.rewrite import Debugging

ROUNDED = "the same graph, with constants that are rounded in another way"


def tried(path: Path, seed: int | None, checks: bool) -> tuple[ortfuse.Result | None, str]:
    """Return a model's result in one order, and the error, empty if there is none."""
    model = load(path)
    if seed is not None:
        shuffle(model, seed)
    try:
        return ortfuse.optimize(model, debugging=Debugging(seed=seed, checks=checks)), ""
    except OrtfuseError as error:
        return None, str(error)


def difference(usual: ortfuse.Result, other: ortfuse.Result) -> str:
    """Return the operators of which another order leaves more or fewer, in words; "" if the graphs are the same."""
    if structural_hash(usual.model) == structural_hash(other.model):
        return ""
    if structural_hash(usual.model) == structural_hash(other.model, rounded_as=usual.model):
        return ROUNDED
    before, after = (Counter(node.op_type for node in nodes(result.model)) for result in (usual, other))
    changed = {name: after[name] - before[name] for name in sorted(before | after)}
    words = ", ".join(f"{count:+d} {name}" for name, count in changed.items() if count)
    return words or "the same operators, joined in another way"


def executed(result: ortfuse.Result) -> int:
    """Return how many operators a result has, those in bodies included."""
    return sum(1 for node in nodes(result.model) if node.op_type != "Constant")


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models; all in the folder by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Random orders for each model.")] = 5,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    models: Annotated[Path, typer.Option(help="Folder with models.")] = suite.MODELS,
    outputs: Annotated[bool, typer.Option(help="Whether to compare outputs, in the first order.")] = True,
    checks: Annotated[bool, typer.Option(help="Whether to check the graph and the facts after each edit.")] = True,
) -> None:
    """Print the models that depend on the order, and write the figures; the exit code is 1 if there is one."""
    started, rows, rewrites = time.perf_counter(), [], 0
    for path in [models / f"{name}.onnx" for name in names] if names else sorted(models.glob("*.onnx")):
        row: dict[str, Any] = {"model": path.stem, "problems": {}, "rounded": 0, "more operators": 0}
        usual, error = tried(path, None, checks)
        for seed in range(first, first + seeds):
            result, error = tried(path, seed, checks) if usual is not None else (None, error)
            if usual is None or result is None:
                row["problems"][str(seed)] = error
                continue
            rewrites += len(result.report.events)
            row["more operators"] = max(row["more operators"], executed(result) - executed(usual))
            found = difference(usual, result)
            row["rounded"] += found == ROUNDED
            problems = [found] if found != ROUNDED else []
            if outputs and seed == first:
                verdict = ortfuse.verify(load(path), result.model, reference=False)
                problems.append("" if verdict.ok else verdict.summary())
            if any(problems):
                row["problems"][str(seed)] = "; ".join(filter(None, problems))
        for seed_text, words in row["problems"].items():
            print(f"{path.stem}, seed {seed_text}: {words}", flush=True)
        rows.append(row)
    wrong = [row for row in rows if row["problems"]]
    if names is None and models == suite.MODELS and checks and outputs:
        figures = {
            "models": len(rows),
            "orders": seeds + 1,
            "rewrites checked": rewrites,
            "models whose constants are rounded in another way": sum(row["rounded"] > 0 for row in rows),
            "models with more operators in an order": sum(row["more operators"] > 0 for row in rows),
            "models that depend on the order": {row["model"]: row["problems"] for row in wrong},
            "seconds": round(time.perf_counter() - started),
        }
        Results("trust.order").store(f"python -m benchmarks.trust.order --seeds {seeds}", figures, raw={"rows": rows})
    print(f"{len(rows)} models, {rewrites} rewrites, {len(wrong)} models depend on the order")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
