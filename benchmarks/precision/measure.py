"""The fastest model under a bound: `ortfuse quantize` at 1e-3, 1e-2 and 5e-2 beside the runtime's quantisers.

    python -m benchmarks.exports.full
    python -m benchmarks.precision                       # every model that the summary does not have yet
    python -m benchmarks.precision bert some/model.onnx  # measure these again
    python -m benchmarks.precision --prepared DIR --only-prepare    # quantise; measured later from the same folder

All tools are given the same inputs. The error is the relative L2 error of the worst output on other inputs, which none of them
has seen; the speedup is over the runtime's default on the exported file, from interleaved runs. Numbers are stored model by
model for each kind of processor. The folder keeps the models that the tools make and the measurements of ortfuse, so a stopped
run goes on where it was. A row of the summary has the speedup and the error of each tool.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.isolated import call, preload
from benchmarks.models import FULL_SIZE, folder_for, sizes_of
from benchmarks.precision.tools import BOUNDS, OURS, PEERS, TOOLS
from benchmarks.results import Results
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.precision"
GIVEN, UNSEEN = 16, 8
"""Sets of inputs that the tools get, and others that errors are measured on."""

DEFAULTS = (
    "bert.sdpa.ts",
    "vit.sdpa.ts",
    "minilm.sdpa.ts",
    "llama_step.sdpa.ts",
    "gpt2_step.sdpa.ts",
    "resnet50.ts",
    "speech.ts",
)
PRELOADED = ("onnx", "onnxruntime", "ortfuse.pipeline", "ortfuse.quantization", "scipy.optimize")
LIMIT = 900.0
SLOWEST = 0.98
"""A speedup over float32 that counts as noise."""


def make_inputs(source: Path, sizes: Mapping[str, int], folder: Path) -> str:
    """Write the inputs into two folders, and tell their sizes."""
    from ortfuse.io.load_and_save import load
    from ortfuse.quantization.input_sets import generated
    from ortfuse.runtime.session import Session

    model = load(source)
    label, made = generated(Session(model), model, sizes, range(GIVEN + UNSEEN))
    for number, arrays in enumerate(made):
        place = folder / ("given" if number < GIVEN else "unseen")
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / f"{number:02}.npz", **arrays)
    return label


def made_inputs(folder: Path) -> list[dict[str, Any]]:
    """The inputs that `make_inputs` has written into one of its folders."""
    return [dict(np.load(file)) for file in sorted(folder.glob("*.npz"))]


def compared(source: Path, results: Mapping[str, Path], folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """The errors on inputs that no tool has seen, and the latencies side by side, by tool."""
    from ortfuse.errors import OrtfuseError
    from ortfuse.io.load_and_save import load
    from ortfuse.quantization.metrics import METRICS
    from ortfuse.runtime.bench import measure
    from ortfuse.runtime.session import Session

    inputs = made_inputs(folder / "unseen")
    session = Session(str(source), threads=threads)
    expected = [session.run(arrays) for arrays in inputs]
    del session
    found: dict[str, Any] = {}
    models = {"default": load(source)}
    for tool, path in results.items():
        try:
            model = load(path)
            other = Session(model, threads=threads)
            error = METRICS["l2"].of(expected, [other.run(arrays) for arrays in inputs], inputs).error
        except OrtfuseError as problem:
            found[tool] = {"status": "broken", "reason": str(problem)}
            continue
        found[tool] = {"status": "ok", "unseen_error": error}
        models[tool] = model
    for row in measure(models, inputs[0], rounds=rounds, threads=threads):
        entry = found.setdefault(row.name, {"status": "ok", "unseen_error": 0.0})
        entry |= {key: value for key, value in row.to_dict().items() if key != "name"}
    return found


def prepared(source: Path, folder: Path, tools: Sequence[str], limit: float) -> dict[str, dict[str, Any]]:
    """Let each tool work on a model; a result that `folder` has already is not made again."""
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        target, note = folder / f"{tool}.onnx", folder / f"{tool}.json"
        if note.is_file():
            found[tool] = json.loads(note.read_text())
            continue
        made = call(TOOLS[tool], source, folder / "given", target, limit=limit)
        failed = made.error or (None if target.is_file() else "wrote no file")
        found[tool] = {"seconds": round(made.seconds, 1), "status": "failed" if failed else "ok"}
        found[tool] |= {"reason": failed} if failed else {"made": made.value} if made.value else {}
        note.write_text(json.dumps(found[tool]))
    return found


def one_model(
    source: Path, folder: Path, tools: Sequence[str], rounds: int, threads: int, limit: float, *, only_prepare: bool
) -> dict[str, Any]:
    """Return the raw row of one model."""
    name = source.name.removesuffix(".onnx")
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    label = place / "sizes.txt"
    if not label.is_file():
        made = call(make_inputs, source, sizes_of(name), place, limit=limit)
        if made.error is not None:
            return {"error": f"no inputs: {made.error}"}
        label.write_text(made.value)
    entries = prepared(source, place, tools, limit)
    if only_prepare:
        return {"sizes": label.read_text(), "tools": entries}
    results = {tool: place / f"{tool}.onnx" for tool, entry in entries.items() if entry["status"] == "ok"}
    measured = call(compared, source, results, place, rounds, threads, limit=4 * limit)
    if measured.error is not None:
        return {"error": f"cannot be measured: {measured.error}", "tools": entries}
    default = measured.value.pop("default")
    for tool, entry in measured.value.items():
        entries[tool] |= entry
    load = round(os.getloadavg()[0], 2)
    return {
        "sizes": label.read_text(),
        "load": load,
        "threads": threads,
        "default_ms": default["median_ms"],
        "tools": entries,
    }


def brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's row of the summary: of each tool the speedup and the error, or the status if it made no right model."""
    kept = {key: row[key] for key in ("error", "sizes", "threads", "default_ms") if key in row}
    tools = {
        tool: entry.get("status", "failed")
        if entry.get("speedup") is None
        else [entry["speedup"], entry["unseen_error"]]
        for tool, entry in row.get("tools", {}).items()
    }
    return {**kept, "tools": tools}


def verdicts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Compare ortfuse, under each bound, with the bound, with float32 and with the best peer that keeps the bound."""
    tools = {tool: entry for tool, entry in row["tools"].items() if not isinstance(entry, str)}
    plain = tools.get("float32", [1.0])[0]
    found: dict[str, Any] = {}
    for bound in BOUNDS:
        ours = tools.get(f"ortfuse {bound:g}")
        if ours is None:
            continue
        under = {tool: tools[tool][0] for tool in PEERS if tool in tools and tools[tool][1] <= bound}
        best = max(under, key=lambda tool: under[tool], default="")
        found[f"{bound:g}"] = {
            "speedup": ours[0],
            "kept": ours[1] <= bound,
            "best_peer": best,
            "of_best_peer": ours[0] / under[best] if best else None,
            "of_float32": ours[0] / plain,
        }
    return found


def table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Every model: speedup over the default, and error, of each tool."""
    made = Table(
        title="Speedup over the runtime's default, and error on inputs that no tool has seen", title_justify="left"
    )
    for heading in ("model", *PEERS, *OURS):
        made.add_column(heading, justify="left" if heading == "model" else "right")
    for name, row in rows.items():
        if "error" in row:
            made.add_row(name, row["error"])
            continue
        made.add_row(f"{name} {row['sizes']}", *(_cell(row["tools"].get(tool)) for tool in (*PEERS, *OURS)))
    return made


def _cell(entry: Sequence[float] | str | None) -> str:
    if entry is None:
        return "-"
    return entry if isinstance(entry, str) else f"{entry[0]:.2f}x {entry[1]:.1e}"


def summary(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line about each bound: the mean speedup, and the models on which ortfuse is not good enough."""
    every = {name: verdicts(row) for name, row in rows.items() if "error" not in row}
    lines = []
    for bound in (f"{bound:g}" for bound in BOUNDS):
        of_bound = {name: found[bound] for name, found in every.items() if bound in found}
        if not of_bound:
            continue
        behind = [name for name, one in of_bound.items() if (one["of_best_peer"] or 1.0) < SLOWEST]
        slower = [name for name, one in of_bound.items() if one["of_float32"] < SLOWEST]
        broken = [name for name, one in of_bound.items() if not one["kept"]]
        mean = statistics.geometric_mean([one["speedup"] for one in of_bound.values()])
        said = {"behind the best peer": behind, "slower than float32": slower, "bound broken": broken}
        named = "; ".join(f"{what}: {', '.join(names) or 'none'}" for what, names in said.items())
        lines.append(f"under {bound}: {mean:.2f} times as fast on {len(of_bound)} models; {named}")
    return lines


def content(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a kind of processor: lines in words, and each row with the best peer under each bound."""
    best = {name: {bound: found["best_peer"] for bound, found in verdicts(row).items()} for name, row in rows.items()}
    return {
        "summary": summary(rows),
        "models": {name: {**row, "best_peer": best[name]} for name, row in sorted(rows.items())},
    }


def chosen(folder: Path, names: Sequence[str], known: Mapping[str, Any]) -> list[Path]:
    """The model files: those named, by path or by the beginning of a name, else those of `DEFAULTS` that are not known yet.

    Raises:
        typer.BadParameter: A name fits no file.
    """
    if not names:
        return [path for name in DEFAULTS if (path := folder / f"{name}.onnx").is_file() and name not in known]
    found: list[Path] = []
    for name in names:
        path = Path(name)
        files = [path] if path.suffix == ".onnx" and path.is_file() else sorted(folder.glob(f"{name}*.onnx"))
        if not files:
            raise typer.BadParameter(f"no model '{name}' in {folder}")
        found += files
    return found


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models by path, or leading parts of their names.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = FULL_SIZE,
    tool: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(TOOLS)}.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each model runs.")] = 15,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds that a tool may take for one model.")] = LIMIT,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    keep: Annotated[Path | None, typer.Option("--prepared", help="Folder that keeps the results of the tools.")] = None,
    only_prepare: Annotated[bool, typer.Option(help="Let the tools work, and measure nothing.")] = False,
) -> None:
    """Measure, print, and store after each model."""
    if unknown := set(tool or ()) - set(TOOLS):
        raise typer.BadParameter(f"no such tool: {', '.join(sorted(unknown))}")
    console = Console(width=None if sys.stdout.isatty() else 190)
    preload(["__main__", *PRELOADED, "ortfuse.runtime.bench"])
    results = Results("precision", output, processor_in_full())
    rows = results.rows()
    for path in chosen(models, names or [], rows):
        name = path.name.removesuffix(".onnx")
        with folder_for(keep, models) as folder:
            row = one_model(
                path.resolve(), folder, tool or list(TOOLS), rounds, threads, limit, only_prepare=only_prepare
            )
        if only_prepare:
            console.print(name, {which: entry["status"] for which, entry in row.get("tools", {}).items()} or row)
            continue
        rows[name] = brief(row)
        results.store(COMMAND, content(rows), raw={name: row})
        console.print(table({name: rows[name]}))
    for line in summary(rows):
        console.print(line, markup=False, highlight=False)
