"""Latency of full-size models: as exported, and as ortfuse and its peers leave them, all with the runtime's defaults.

    python -m benchmarks.exports.full
    python -m benchmarks.latency                       # every model that the summary does not have yet
    python -m benchmarks.latency bert gpt2.sdpa.ts     # measure these again
    python -m benchmarks.latency --tool ortfuse bert   # only this against the original; the other tools' numbers stay
    python -m benchmarks.latency --prepared DIR --only-prepare    # the slow part alone; measured later from the same folder

Every result is checked against the original first; a broken one is not measured. Runs are interleaved and threads do not
spin between them. A speedup is the median over rounds of the original's latency divided by the result's; the two numbers
behind it in the summary bound it. Numbers are stored model by model, so a stopped run goes on where it was.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.checking import experiment, verdict
from benchmarks.isolated import call, preload
from benchmarks.models import FULL_SIZE, chosen, folder_for, sizes_of
from benchmarks.peers import PACKAGES, SINGLE, Peer, preloaded, transformers_for
from benchmarks.results import Results
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.latency"
TOOLS = ("ortfuse", "transformers", "onnxscript", "onnxslim", "onnxsim")
KINDS: Mapping[str, tuple[str, int, int]] = {
    "bert": ("bert", 12, 768),
    "distilbert": ("bert", 12, 768),
    "minilm": ("bert", 12, 384),
    "gpt2": ("gpt2", 12, 768),
    "llama": ("qwen3", 16, 1024),
    "whisper": ("bart", 6, 384),
    "t5": ("t5", 8, 512),
    "clip_text": ("clip", 8, 512),
    "vit": ("bert", 12, 768),
    "deberta": ("bert", 12, 768),
    "wav2vec2": ("bert", 12, 768),
}
"""Arguments of the transformers optimizer by the beginning of the model's name: kind, heads, hidden size."""
MEASURING_LIMIT = 3600.0


def peer(tool: str, model: str) -> Peer:
    """The tool as it is used on a model."""
    if tool != "transformers":
        return SINGLE[tool]
    return transformers_for(*next((kind for name, kind in KINDS.items() if model.startswith(name)), ("bert",)))


def latencies(
    source: Path, results: Mapping[str, Path], sizes: Mapping[str, int], rounds: int, threads: int
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Measure the original and the results in turns.

    Returns:
        The sizes in words, and by tool what was measured; the original's under `default`.
    """
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import measure, typical_inputs

    original = load(source)
    label, inputs = typical_inputs(original, sizes=sizes)
    models = {"default": original} | {tool: load(path) for tool, path in results.items()}
    measured = measure(models, inputs, rounds=rounds, threads=threads)
    rows = {entry.name: {k: v for k, v in entry.to_dict().items() if k != "name"} for entry in measured}
    if "ortfuse" in results:
        rows["ortfuse"] |= {"recommended": in_its_session(source, results["ortfuse"], inputs, rounds, threads)}
    return label, rows


def in_its_session(source: Path, result: Path, inputs: Inputs, rounds: int, threads: int) -> dict[str, Any] | None:
    """A result in the session that is recommended beside it, against the original in a default one; `None` if none is."""
    from ortfuse.runtime.bench import Candidate, measure_sessions
    from ortfuse.runtime.session_settings import stored_config

    values = stored_config(result).values()
    if not values:
        return None
    candidates = {"default": Candidate(source), "ortfuse": Candidate(result, values)}
    _, row = measure_sessions(candidates, inputs, rounds=rounds, threads=threads)
    return {"settings": dict(values), "speedup": row.speedup, "speedup_bounds": row.speedup_bounds}


def prepared(source: Path, tools: Sequence[str], folder: Path, limit: float) -> dict[str, dict[str, Any]]:
    """Let each tool work on a model, and return for each how long it took and whether the result is right.

    A result of the same model that `folder` has already is not made again.
    """
    name = source.name.removesuffix(".onnx")
    known = {tool: _known(folder / f"{name}.{tool}.json", source) for tool in tools}
    missing = [tool for tool, entry in known.items() if entry is None]
    expected = folder / f"{name}.experiments.pickle"
    if missing:
        tried = call(experiment, source, expected, limit=MEASURING_LIMIT)
        if tried.error is not None:
            raise RuntimeError(f"the original cannot be run: {tried.error}")
    for tool in missing:
        path = folder / f"{name}.{tool}.onnx"
        made = call(peer(tool, name), source, path, limit=limit)
        entry: dict[str, Any] = {"prepare_seconds": made.seconds}
        if made.error is not None or not path.is_file():
            entry |= {"status": "failed", "reason": made.error or "wrote no file"}
        else:
            checked = call(verdict, expected, path, limit=MEASURING_LIMIT)
            broken = checked.error or checked.value
            entry |= {"status": "broken", "reason": broken} if broken else {"status": "ok"}
        known[tool] = entry
        stamp = {"source": source.stat().st_mtime_ns, "entry": entry}
        (folder / f"{name}.{tool}.json").write_text(json.dumps(stamp))
    expected.unlink(missing_ok=True)
    return {tool: entry for tool, entry in known.items() if entry is not None}


def _known(path: Path, source: Path) -> dict[str, Any] | None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    return dict(content["entry"]) if content.get("source") == source.stat().st_mtime_ns else None


def compare(
    source: Path, tools: Sequence[str], folder: Path, rounds: int, threads: int, limit: float
) -> dict[str, Any]:
    """Return the raw row of one model: the result of each tool, checked, and measured against the original."""
    name = source.name.removesuffix(".onnx")
    try:
        entries = prepared(source, tools, folder, limit)
    except RuntimeError as error:
        return {"error": str(error), "tools": {}}
    results = {tool: folder / f"{name}.{tool}.onnx" for tool, entry in entries.items() if entry["status"] == "ok"}
    sizes = sizes_of(name)
    measured = call(latencies, source, results, sizes, rounds, threads, limit=MEASURING_LIMIT)
    if measured.error is not None:
        return {"error": f"cannot be measured: {measured.error}", "tools": entries}
    label, numbers = measured.value
    default = numbers.pop("default")
    for tool, entry in numbers.items():
        entries[tool] |= {**entry, "default_ms": default["median_ms"]}
    load = round(os.getloadavg()[0], 2)
    return {"sizes": label, "rounds": rounds, "threads": threads, "load": load, "default": default, "tools": entries}


def brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's row of the summary: of each tool the speedup and its bounds, or the status if it made no right model."""
    kept = {key: row[key] for key in ("error", "sizes") if key in row}
    default = {"default_ms": row["default"]["median_ms"]} if "default" in row else {}
    recommended = row["tools"].get("ortfuse", {}).get("recommended")
    session = {"recommended session": _speedup(recommended)} if recommended else {}
    return {**kept, **default, "tools": {tool: _speedup(entry) for tool, entry in row["tools"].items()}, **session}


def _speedup(entry: Mapping[str, Any]) -> list[float] | str:
    if "speedup" not in entry:
        return str(entry["status"])
    return [entry["speedup"], *(entry.get("speedup_bounds") or ())]


def merged(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's row after it was measured again, with the earlier numbers of tools that were not."""
    return {**after, "tools": {**(before or {}).get("tools", {}), **after["tools"]}}


def means(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each tool, and for the best peer, the geometric mean of the speedups and the number of models."""
    found: dict[str, list[float]] = {}
    for row in rows.values():
        speedups = {tool: entry[0] for tool, entry in row["tools"].items() if not isinstance(entry, str)}
        peers = [speedup for tool, speedup in speedups.items() if tool != "ortfuse"]
        for tool, speedup in (*speedups.items(), *([("best peer", max(peers))] if peers else [])):
            found.setdefault(tool, []).append(speedup)
    return {
        tool: {"geometric_mean": statistics.geometric_mean(all_of), "models": len(all_of)}
        for tool, all_of in found.items()
    }


def table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Every model's speedups."""
    made = Table(title="Speedup over the runtime's default on the exported file", title_justify="left")
    for heading in ("model", "sizes", "default ms", *TOOLS):
        made.add_column(heading, justify="left" if heading in ("model", "sizes") else "right")
    for name, row in rows.items():
        cells = [_cell(row["tools"].get(tool)) for tool in TOOLS]
        default = f"{row['default_ms']:.4g}" if "default_ms" in row else "-"
        made.add_row(name, row.get("sizes", row.get("error", "")), default, *cells)
    made.add_section()
    found = means(rows)
    made.add_row(
        "geometric mean", "", "", *(f"{found[tool]['geometric_mean']:.3f}" if tool in found else "-" for tool in TOOLS)
    )
    return made


def _cell(entry: Sequence[float] | str | None) -> str:
    if entry is None:
        return "-"
    return entry if isinstance(entry, str) else f"{entry[0]:.3f}"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models, or leading parts of their names.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = FULL_SIZE,
    tool: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(TOOLS)}.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each model runs.")] = 25,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 2,
    limit: Annotated[float, typer.Option(help="Seconds that a tool may take for one model.")] = 600.0,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    fresh: Annotated[bool, typer.Option(help="Measure all models again.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--prepared", help="Folder that keeps the results of the tools for the next run.")
    ] = None,
    only_prepare: Annotated[bool, typer.Option(help="Let the tools work, and measure nothing.")] = False,
) -> None:
    """Measure, print, and store after each model."""
    unknown = set(tool or ()) - set(TOOLS)
    if unknown:
        raise typer.BadParameter(f"no such tool: {', '.join(sorted(unknown))}")
    console = Console(width=None if sys.stdout.isatty() else 150)
    preload([*preloaded(tool or ()), "ortfuse.runtime.bench"])
    results = Results("latency", output, processor_in_full())
    rows = results.rows()
    for path in chosen(models, names or [], rows, fresh):
        name = path.name.removesuffix(".onnx")
        with folder_for(keep, models) as folder:
            if only_prepare:
                made = prepared(path.resolve(), tool or TOOLS, folder, limit)
                console.print(name, {which: entry["status"] for which, entry in made.items()})
                continue
            row = compare(path.resolve(), tool or TOOLS, folder, rounds, threads, limit)
        rows[name] = merged(rows.get(name), brief(row))
        found = {"means": means(rows), "models": dict(sorted(rows.items()))}
        results.store(COMMAND, found, raw={name: row}, packages=PACKAGES)
        cells = " ".join(f"{which} {_cell(entry)}" for which, entry in rows[name]["tools"].items())
        console.print(f"{name}: {cells or rows[name]['error']}", highlight=False, markup=False)
    console.print(table(rows))
    for which, mean in means(rows).items():
        console.print(f"{which}: geometric mean {mean['geometric_mean']:.3f} over {mean['models']} models")
