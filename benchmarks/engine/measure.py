"""Engine time: ortfuse's graph time against that of other optimisers, and time per node over graphs of growing size.

    python -m benchmarks.exports.full bert gpt2 swin
    python -m benchmarks.engine --models benchmarks/.models --write

All tools get the model loaded and give it back unsaved; the clock runs only in between. They take turns, model by model.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import onnx
import onnx_ir as ir
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.stack import transformer_stack
from benchmarks.peers import PACKAGES
from benchmarks.results import Results
from ortfuse.io.load_and_save import load
from ortfuse.pipeline import PassManager

FULL = ("bert.sdpa.ts", "bert.sdpa.dynamo", "gpt2.sdpa.ts", "gpt2.sdpa.dynamo", "swin.sdpa.ts", "swin.sdpa.dynamo")
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)


def ortfuse_seconds(path: Path) -> float:
    model = load(path)
    manager = PassManager("auto")
    return _timed(lambda: manager.run(model))


def onnxscript_seconds(path: Path) -> float:
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model = ir.load(path)
    return _timed(lambda: optimize_for_ort(model))


def onnxslim_seconds(path: Path) -> float:
    import onnxslim

    model = onnx.load(path)
    return _timed(lambda: onnxslim.slim(model))


TOOLS: dict[str, Callable[[Path], float]] = {
    "ortfuse": ortfuse_seconds,
    "onnxscript": onnxscript_seconds,
    "onnxslim": onnxslim_seconds,
}


def _timed(work: Callable[[], Any]) -> float:
    gc.collect()
    started = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - started
    del result
    return seconds


def compare(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Median graph time of every tool on every model that is there, and how many times as long as ortfuse each takes."""
    rows = []
    for path in [path for name in FULL if (path := folder / f"{name}.onnx").is_file()]:
        name = path.stem
        times: dict[str, list[float]] = {tool: [] for tool in TOOLS}
        for _ in range(rounds):
            for tool, run in TOOLS.items():
                try:
                    times[tool].append(run(path))
                except Exception as error:
                    print(f"{tool} fails on {name}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
        row: dict[str, Any] = {"model": name, "nodes": len(load(path).graph)}
        for tool, seconds in times.items():
            row[tool] = statistics.median(seconds) if seconds else None
        for tool in list(TOOLS)[1:]:
            pairs = zip(times[tool], times["ortfuse"], strict=False)
            row[f"{tool} / ortfuse"] = statistics.median(other / own for other, own in pairs) if times[tool] else None
        rows.append(row)
    return rows


def scaling(rounds: int, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Microseconds per node over stacks of transformer blocks, all sizes in turn."""
    manager = PassManager("auto")
    times: dict[int, list[float]] = {size: [] for size in sizes}
    nodes = {}
    for _ in range(rounds):
        for size in sizes:
            model = transformer_stack(size)
            nodes[size] = len(model.graph)
            times[size].append(_timed(lambda model=model: manager.run(model)) / nodes[size] * 1e6)  # type: ignore[misc]
    first = statistics.median(times[sizes[0]])
    return [
        {
            "nodes": nodes[size],
            "microseconds_per_node": statistics.median(times[size]),
            "ratio_to_smallest": statistics.median(times[size]) / first,
        }
        for size in sizes
    ]


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    made = Table(title=title, title_justify="left")
    for heading in rows[0]:
        made.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        made.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return made


def main(
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = Path("benchmarks/.models"),
    rounds: Annotated[int, typer.Option(help="Runs of each tool on each model.")] = 3,
    size: Annotated[
        list[int] | None, typer.Option(help="Nodes of the graphs that time per node is measured on.")
    ] = None,
    write: Annotated[bool, typer.Option(help="Write the summary.")] = False,
) -> None:
    """Measure, print and, with --write, store."""
    console = Console(width=140)
    manager = PassManager("auto")
    manager.run(transformer_stack(200))  # what is read once in a process is not part of a graph's time
    grown = scaling(rounds, size or SIZES)
    console.print(_table(grown, "Time per node"))
    compared = compare(models, rounds)
    if compared:
        console.print(_table(compared, "Graph time in seconds"))
    for tool in list(TOOLS)[1:] if compared else ():
        ratios = [row[f"{tool} / ortfuse"] for row in compared if row[f"{tool} / ortfuse"]]
        console.print(
            f"{tool} / ortfuse: geometric mean {statistics.geometric_mean(ratios):.1f}, least {min(ratios):.1f}"
        )
    if write:
        command = f"python -m benchmarks.engine --models FOLDER --rounds {rounds} --write"
        Results("engine").store(command, {"graph_time_seconds": compared, "scaling": grown}, packages=PACKAGES)
