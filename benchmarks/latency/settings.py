"""Speedups by session settings for results of ortfuse: each setting alone, and all that help together.

    python -m benchmarks.exports.full
    python -m benchmarks.latency.settings                     # every model that the summary does not have yet
    python -m benchmarks.latency.settings swin segformer      # these again
    python -m benchmarks.latency.settings --prepared DIR      # results that benchmarks.latency has made there are not made again

On a quiet machine. Runs are interleaved, each session in a process of its own; speedups of settings are over the result in the
session that is recommended without measuring; those at the end over the exported model in a default session. Nothing is kept
in the cache of `ortfuse calibrate`. Numbers are stored model by model, so a stopped run goes on where it was.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.models import FULL_SIZE, chosen, folder_for, sizes_of
from benchmarks.results import Results
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.latency.settings"


def compare(source: Path, result: Path, sizes: Mapping[str, int], rounds: int, threads: int) -> dict[str, Any]:
    """Measure each setting on a result; then the original, the result, and the result in its best session, in turns."""
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import Candidate, measure_sessions, typical_inputs
    from ortfuse.runtime.session_settings.recommendations import derived
    from ortfuse.tuning.rule_costs.measure_session_settings import calibrate_session

    with tempfile.TemporaryDirectory() as folder:
        found = calibrate_session(
            result, sizes=sizes, rounds=rounds, threads=threads, file=Path(folder) / "sessions.json"
        )
    model = load(result)
    candidates = {"original": Candidate(source), "result": Candidate(result)}
    sessions = {"derived": derived(model).values(), "recommended": found.session.values()}
    known: list[Mapping[str, Any]] = [{}]
    for name, settings in sessions.items():
        if settings not in known:
            candidates[name] = Candidate(result, settings)
            known.append(settings)
    _, inputs = typical_inputs(load(source), sizes=sizes)
    rows = measure_sessions(candidates, inputs, rounds=rounds, threads=threads)
    return {
        "sizes": found.inputs,
        "rounds": rounds,
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "settings": [effect.to_dict() for effect in found.effects],
        "together": None if found.combined is None else found.combined.to_dict(),
        "session": {name: str(value) for name, value in sessions["recommended"].items()},
        "sessions": {row.name: row.to_dict() for row in rows},
    }


SESSIONS = ("default session", "recommended session")


def brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's row of the summary: speedups over the original in both sessions, and the recommended settings."""
    speedups = (row["sessions"]["result"]["speedup"], _last(row)["speedup"])
    kept = {key: row[key] for key in ("sizes", "rounds", "threads")}
    return {**kept, **dict(zip(SESSIONS, speedups, strict=True)), "settings": row["session"]}


def means(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the geometric means of the speedups over the originals in default sessions."""
    return {
        "models": len(rows),
        **{name: statistics.geometric_mean(row[name] for row in rows.values()) for name in SESSIONS},
    }


def _last(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result in the session that is recommended for it."""
    sessions: Mapping[str, Any] = row["sessions"]
    found: Mapping[str, Any] = sessions[list(sessions)[-1]]
    return found


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models, or leading parts of their names.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = FULL_SIZE,
    rounds: Annotated[int, typer.Option(help="How often each session runs.")] = 15,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 2,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    fresh: Annotated[bool, typer.Option(help="Measure all models again.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--prepared", help="Folder that keeps results, for the next run.")
    ] = None,
) -> None:
    """Measure, print, and store after each model."""
    import ortfuse

    console = Console()
    results = Results("latency.settings", output, processor_in_full())
    rows = results.rows()
    for path in chosen(models, names or [], rows, fresh):
        name = path.name.removesuffix(".onnx")
        with folder_for(keep, models) as folder:
            result = folder / f"{name}.ortfuse.onnx"
            if not result.is_file() or result.stat().st_mtime_ns < path.stat().st_mtime_ns:
                ortfuse.optimize(path, output=result)
            row = compare(path, result, sizes_of(name), rounds, threads)
        rows[name] = brief(row)
        results.store(COMMAND, {"means": means(rows), "models": dict(sorted(rows.items()))}, raw={name: row})
        console.print(f"{name}: {_said(rows[name])}", highlight=False, markup=False)
    if rows:
        console.print(means(rows))


def _said(row: Mapping[str, Any]) -> str:
    default, best = (row[name] for name in SESSIONS)
    settings = [f"{name} = {value}" for name, value in row["settings"].items()]
    return f"{default:.3f} in a default session, {best:.3f} with {', '.join(settings) or 'nothing set'}"


if __name__ == "__main__":
    typer.run(main)
