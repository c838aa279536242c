"""Measure what each rule buys: both sides of its declaration at realistic sizes, in the runtime with its optimisations on.

    python -m benchmarks.kernels.costs --write

For every rule whose proof names typical shapes (`Proof.typical`), the pattern is built in its first spelling, the rule is
applied, and both models run interleaved. Neither session's threads may spin while the other one runs: each run ends with
`session.force_spinning_stop`. The table says on what kind of processor it was measured, and counts in full on that alone.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from ortfuse.execution.session import Session
from ortfuse.pipeline import load_catalogue
from ortfuse.proof.build import Builder
from ortfuse.proof.run import rewrite
from ortfuse.rewrite import Rule
from ortfuse.targets import CPU, Target
from ortfuse.targets.costs import sizes_text
from ortfuse.targets.processor import processor_kind

OPSET = 23
"""Where models with attention end up."""


def measure(rule: Rule, number: int, rounds: int, threads: int) -> float:
    """Median over rounds of the time of the original divided by that of the replacement."""
    builder = Builder(rule, number, ir.DataType.FLOAT, rule.proof.opset or OPSET, typical=True)
    instance = builder.instance()
    rewritten = rewrite(rule, instance.model, Target())
    if not rewritten.hits:
        raise typer.Exit(f"{rule.name} is silent on its own typical instance: {rewritten.reason}")  # type: ignore[arg-type]
    _drop_unused(rewritten.model)
    sessions = [Session(model, threads=threads, isolated=False) for model in (instance.model, rewritten.model)]
    inputs = instance.inputs({}, 0)
    ratios = []
    for index in range(rounds):
        times = [_time(session, inputs) for session in (sessions if index % 2 else reversed(sessions))]
        before, after = times if index % 2 else reversed(times)
        ratios.append(before / after)
    return statistics.median(ratios)


def telling(typical: Mapping[str, str | int]) -> dict[str, tuple[int, ...]]:
    """The shapes by which a site is compared with a typical one: the first, and others that are more than vectors."""
    shapes = {name: tuple(int(dim) for dim in text.split()) for name, text in typical.items() if isinstance(text, str)}
    first = next(iter(shapes))
    return {name: shape for name, shape in shapes.items() if name == first or sum(dim > 1 for dim in shape) > 1}


def _drop_unused(model: ir.Model) -> None:
    """Take out the constants that the rule left without a use: the runtime cannot be given them from memory."""
    for name, value in list(model.graph.initializers.items()):
        if not value.uses():
            del model.graph.initializers[name]


def _time(session: Session, inputs: dict[str, np.ndarray[Any, Any]]) -> float:
    session.run(inputs)
    started = time.perf_counter()
    for _ in range(5):
        session.run(inputs)
    return time.perf_counter() - started


def main(
    rules: Annotated[list[str] | None, typer.Argument(help="Rules to measure; all by default.")] = None,
    rounds: int = 40,
    threads: int = 2,
    write: Annotated[bool, typer.Option(help="Store the table that ortfuse ships.")] = False,
) -> None:
    """Measure and print; with --write, store."""
    path = Path(__file__).parents[2] / "ortfuse" / "targets" / f"costs_{CPU}.json"
    stored = json.loads(path.read_text()) if path.exists() else {"speedups": {}}
    if write and rules and stored.get("processor") not in (None, processor_kind()):
        raise typer.BadParameter(
            f"the table is of {stored['processor']}, this is {processor_kind()}: measure all rules"
        )
    table = Table("rule", "size", "speedup")
    for rule in load_catalogue([]).rules():
        if not rule.proof.typical or (rules and rule.name not in rules):
            continue
        row = {}
        for number, typical in enumerate(rule.proof.typical):
            size = sizes_text(telling(typical))
            row[size] = round(measure(rule, number, rounds, threads), 3)
            table.add_row(rule.name, size, f"{row[size]:.2f}")
        stored["speedups"][rule.name] = row
    Console().print(table)
    if write:
        stored["source"] = f"onnxruntime {onnxruntime.__version__}, {CPU}, {threads} threads, benchmarks.kernels.costs"
        stored["processor"] = processor_kind()
        path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(main)
