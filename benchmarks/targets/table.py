"""Models by targets: do results load there, are they equal, where are their nodes, and how fast are they beside four other tools?

    python -m benchmarks.targets.table --write                          # golden and full-size models on all targets that run here
    python -m benchmarks.targets.table --targets cpu,openvino,cpu@1.20  # these targets; a release of the runtime after an @
    python -m benchmarks.targets.table --models FOLDER --model vit      # full-size models of another folder, some of them

Each result of ortfuse is made for the target. The other tools know no targets; their results are made once for each model. On an
older release, models of a newer opset or IR version are lowered for it, the original and the results of all tools alike.
Latencies are measured in one run, interleaved; a speedup is relative to the original on the same target.

A model on a target that crashes or takes too long is a cell with an error. A stopped run goes on where it was; `--again` measures
cells anew. At the end a table says how long each part took: making results, comparing, placing and measuring.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import isolated, peers
from benchmarks.jobs import MODELS, ROOT
from benchmarks.latency.measure import peer
from benchmarks.models import FOR_TARGETS, GOLDEN, one_of_each, sizes_of
from benchmarks.results import RAW, Results
from benchmarks.targets import releases
from benchmarks.targets.cells import ORIGINAL, Request
from ortfuse.inspection.describe_targets import describe_targets
from ortfuse.targets import spec_of
from ortfuse.targets.processor import processor_kind

COMMAND = "python -m benchmarks.targets.table --write"
TARGETS = ("cpu", "portable", "openvino", "wasm", "cpu@1.20", "cpu@1.17")
"""The targets that are tried by default, as far as they run here."""

OURS = "ortfuse"
PEERS = ("transformers", "onnxscript", "onnxslim", "onnxsim")
TOOLS = (OURS, *PEERS)
FULL, SMALL = "full", "golden"
LIMIT = 600.0
"""The seconds that a tool has for one model."""


@dataclass(frozen=True)
class Place:
    """A target, as far as a release of the runtime has it.

    Attributes:
        label: The text that names it, such as `cpu@1.20`.
        target: The short name of the target.
        release: The release; empty for the installed one.
    """

    label: str
    target: str
    release: str

    @classmethod
    def of(cls, label: str) -> Place:
        """The place that a text names.

        Raises:
            typer.BadParameter: There is no wheel of such a release.
        """
        target, _, release = label.partition("@")
        known = {one.rpartition(".")[0] for one in releases.RELEASES}
        if release and release not in known:
            raise typer.BadParameter(f"no release {release}; there are {', '.join(sorted(known))}")
        return cls(label, spec_of(target).name, release)

    def problem(self) -> str:
        """The reason why models do not run there on this machine; empty if they do."""
        described = describe_targets([spec_of(self.target)]).targets[0]
        return "" if described.runs_here else described.problem

    def packages(self, environments: Path) -> list[str]:
        """The folders that are first on the path of its process, which gets the wheel of the release."""
        version = next((one for one in releases.RELEASES if one.rpartition(".")[0] == self.release), "")
        return [str(releases.environment(version, environments))] if version else []


def ours(source: Path, result: Path, place: Place) -> None:
    """Optimise for a target; for `portable`, at the opset of the model."""
    import onnx

    import ortfuse
    from benchmarks.targets.portable import opset_of

    warned = {"loaded": False} if place.release else {}
    opset = opset_of(onnx.load(source, load_external_data=False)) if place.target == "portable" else None
    ortfuse.optimize(
        source, target=place.target, runtime=place.release or None, max_opset=opset, output=result, **warned
    )


def lowered(source: Path, result: Path, release: str) -> None:
    """Write a model in an opset and IR version that a release reads, and change nothing else."""
    import ortfuse

    ortfuse.optimize(source, runtime=release, passes="", loaded=False, output=result)


@dataclass(frozen=True)
class Cells:
    """Makes results, and has them checked and measured.

    Attributes:
        rounds: The fewest rounds of a measurement.
        seconds: For how long there may be more.
        threads: Threads per operator.
        budget: Seconds for the comparison of a result.
        limit: Seconds for checking and measuring one cell.
        environments: Where environments of releases are kept.
    """

    rounds: int
    seconds: float
    threads: int
    budget: float
    limit: float
    environments: Path

    def peers(self, path: Path, folder: Path, tools: Sequence[str], full: bool) -> dict[str, Any]:
        """Let the other tools work on a model; returns by tool the `seconds`, and the `error` of one that failed."""
        rows = {}
        for tool in tools:
            of_tool = peer(tool, path.name) if full or tool != "transformers" else peers.transformers_for("bert")
            rows[tool] = _made(isolated.call(of_tool, path, folder / f"{tool}.onnx", limit=LIMIT), folder, tool)
        return rows

    def row(self, path: Path, place: Place, folder: Path, others: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cell of a model on a target.

        Args:
            path: The model.
            place: The target.
            folder: Has the results of other tools, and is a place for more.
            others: What became of the other tools (`peers`).
        """
        made = _made(isolated.call(ours, path, folder / f"{OURS}.onnx", place, limit=LIMIT), folder, OURS)
        rows = {OURS: made, **others}
        models = {ORIGINAL: path, **{tool: folder / f"{tool}.onnx" for tool in rows if "error" not in rows[tool]}}
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if place.release:
                models = {name: self._lowered(one, name, Path(scratch), place) for name, one in models.items()}
            found = self._answer(path, place, models, Path(scratch))
        for tool, one in rows.items():
            found["tools"][tool] = {
                **found["tools"].get(tool, {}),
                **({"error": one["error"]} if "error" in one else {}),
            }
        found["seconds"]["making"] = made["seconds"]
        return found

    def _lowered(self, path: Path, name: str, scratch: Path, place: Place) -> Path:
        if name == OURS:
            return path
        result = scratch / f"{name}.lowered.onnx"
        isolated.call(lowered, path, result, place.release, limit=LIMIT)
        return result if result.is_file() else path

    def _answer(self, path: Path, place: Place, models: Mapping[str, Path], scratch: Path) -> dict[str, Any]:
        """Check and measure in a process of its own."""
        results = {name: str(one) for name, one in models.items() if name != ORIGINAL}
        request = Request(
            "" if place.release else place.target, str(models[ORIGINAL]), results, dict(sizes_of(path.name)),
            self.rounds, self.seconds, self.threads, self.budget,
        )  # fmt: skip
        asked, answered = scratch / "request.json", scratch / "found.json"
        request.write(asked)
        before = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        places = os.pathsep.join(map(str, [*place.packages(self.environments), *before]))
        failed = _run(["benchmarks.targets.cells", str(asked), str(answered)], places, self.limit)
        found: dict[str, Any] = json.loads(answered.read_text()) if answered.is_file() else {}
        return {"tools": {}, "seconds": {}, **found, **({"error": failed} if failed else {})}


def _made(outcome: isolated.Outcome, folder: Path, tool: str) -> dict[str, Any]:
    error = outcome.error or ("" if (folder / f"{tool}.onnx").is_file() else "wrote no file")
    return {"seconds": round(outcome.seconds, 1), **({"error": f"failed: {error}"[:200]} if error else {})}


def _run(module: Sequence[str], places: str, limit: float) -> str:
    """Run a module with folders on its path; returns why that failed, or an empty text."""
    environment = {**os.environ, "PYTHONPATH": places}
    with subprocess.Popen(
        [sys.executable, "-m", *module], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            _, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"not done after {limit:.0f} s"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    return f"ended with exit code {process.returncode}: {last[:160]}" if process.returncode else ""


def figures(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return by target the counts, the mean speedups of each tool, and the cells of each model.

    Args:
        cells: The cells by target and model, `cpu/golden/bert.sdpa.ts`.
    """
    of_target: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for key, cell in cells.items():
        target, _, model = key.partition("/")
        of_target[target][model] = cell
    return {target: _of_target(rows) for target, rows in of_target.items()}


def _of_target(rows: Mapping[str, Any]) -> dict[str, Any]:
    every = {tool: [row["tools"].get(tool, {}) for row in rows.values()] for tool in TOOLS}
    return {
        "models": len(rows),
        "equal": {tool: sum(bool(one.get("equal")) for one in ones) for tool, ones in every.items()},
        "geometric_mean": {tool: mean for tool, ones in every.items() if (mean := _mean(ones)) is not None},
        "of the best peer": _mean([best for row in rows.values() if (best := _best(row)) is not None]),
        "slower than the original": sorted(
            model for model, row in rows.items() if (bounds := _bounds(row)) is not None and bounds[1] < 1
        ),
        "seconds": {part: round(sum(row["seconds"].get(part, 0.0) for row in rows.values()), 1) for part in _PARTS},
        "cells": {model: _brief(row) for model, row in sorted(rows.items())},
    }


_PARTS = ("making", "checking", "placing", "measuring")


def _mean(rows: Sequence[Mapping[str, Any]]) -> float | None:
    speedups = [row["speedup"][0] for row in rows if "speedup" in row]
    return statistics.geometric_mean(speedups) if speedups else None


def _best(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    measured = [one for tool in PEERS if "speedup" in (one := row["tools"].get(tool, {}))]
    return max(measured, key=lambda one: one["speedup"][0], default=None)


def _bounds(row: Mapping[str, Any]) -> tuple[float, float] | None:
    speedup = row["tools"].get(OURS, {}).get("speedup", ())
    return (speedup[1], speedup[2]) if len(speedup) == 3 else None


def _brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """A cell as the summary has it: of each tool the speedup with its bounds, or a word."""
    original, own = row.get(ORIGINAL, {}), row["tools"].get(OURS, {})
    placed = [[one[key] for key in ("partitions", "off")] for one in (original, own) if "off" in one]
    return {
        **({"error": row["error"]} if "error" in row else {}),
        **({"sizes": row["sizes"]} if "sizes" in row else {}),
        **({"ms": original["ms"]} if "ms" in original else {}),
        **(
            {"executed": [one["executed"] for one in (original, own) if "executed" in one]}
            if "executed" in original
            else {}
        ),
        **({"partitions, nodes off": placed} if placed else {}),
        "tools": {tool: _outcome(row["tools"].get(tool, {})) for tool in TOOLS},
    }


def _outcome(one: Mapping[str, Any]) -> list[float] | str:
    """The speedup and its bounds, or what became of a result: `-` if the tool was not asked."""
    if "error" in one:
        return str(one["error"])
    if not one.get("equal", True):
        return f"differs: {one.get('words', '')}"
    return one.get("speedup", "equal" if "equal" in one else "-")


def shown(target: str, found: Mapping[str, Any]) -> Table:
    """The table of a target."""
    made = Table(title=f"{target}: speedup over the original there", title_justify="left")
    for heading in ("model", "ms", "nodes executed", "partitions, nodes off", *TOOLS):
        made.add_column(heading, justify="left" if heading == "model" else "right", overflow="fold")
    for model, row in found["cells"].items():
        executed = " -> ".join(map(str, row.get("executed", ())))
        placed = " -> ".join(", ".join(map(str, one)) for one in row.get("partitions, nodes off", ()))
        ms = f"{row['ms']:.4g}" if "ms" in row else row.get("error", "-")[:40]
        made.add_row(model, ms, executed, placed, *(_short(row["tools"][tool]) for tool in TOOLS))
    made.add_section()
    means = found["geometric_mean"]
    made.add_row("geometric mean", "", "", "", *(f"{means[tool]:.3f}" if tool in means else "-" for tool in TOOLS))
    return made


def _short(outcome: Sequence[float] | str) -> str:
    return outcome.partition(":")[0][:24] if isinstance(outcome, str) else f"{outcome[0]:.3f}"


def times(found: Mapping[str, Any], peer_seconds: Mapping[str, float]) -> Table:
    """The time of each part."""
    made = Table(title="Seconds", title_justify="left")
    for heading in ("", *_PARTS):
        made.add_column(heading, justify="right" if heading else "left")
    for target, one in found.items():
        made.add_row(target, *(f"{one['seconds'][part]:.0f}" for part in _PARTS))
    made.add_row("results of other tools", f"{sum(peer_seconds.values()):.0f}", "", "", "")
    return made


def models_of(folder: Path, words: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The golden models and one export of each full-size model, or those whose names contain one of the words; by label."""
    for label, paths in (
        (SMALL, [GOLDEN / f"{name}.onnx" for name in FOR_TARGETS]),
        (FULL, one_of_each(sorted(folder.glob("*.onnx")))),
    ):
        for path in paths:
            if path.is_file() and (not words or any(word in path.name for word in words)):
                yield f"{label}/{path.name.removesuffix('.onnx')}", path


def main(
    targets: Annotated[str, typer.Option(help="Targets with commas between them; a release after an @.")] = ",".join(
        TARGETS
    ),
    models: Annotated[Path, typer.Option(help="Folder with full-size models.")] = MODELS,
    model: Annotated[list[str] | None, typer.Option(help="Words, one of which a model's name contains.")] = None,
    tool: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(PEERS)} beside ortfuse.")] = None,
    rounds: Annotated[int, typer.Option(help="The fewest rounds of a measurement.")] = 20,
    seconds: Annotated[float, typer.Option(help="Seconds for which there may be more rounds.")] = 10.0,
    threads: Annotated[int, typer.Option(help="Threads per operator.")] = 2,
    budget: Annotated[float, typer.Option(help="Seconds for comparing one result.")] = 30.0,
    limit: Annotated[float, typer.Option(help="Seconds for checking and measuring one cell.")] = 1800.0,
    environments: Annotated[Path, typer.Option(help="Where environments of releases are kept.")] = ROOT
    / ".environments",
    output: Annotated[Path | None, typer.Option(help="File of the cells; by default the raw result.")] = None,
    again: Annotated[bool, typer.Option(help="Measure cells that are known anew.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Store the figures.")] = False,
) -> None:
    """Print the tables; the exit code is 1 if a result of ortfuse does not load on a target or is not equal there."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    isolated.preload(["__main__", *peers.preloaded([])])
    places = [place for name in targets.split(",") if (place := Place.of(name.strip())) and _runs(place, console)]
    results = Results("targets.table", output, processor_kind())
    work = Cells(rounds, seconds, threads, budget, limit, environments.resolve())
    asked, known = dict(models_of(models, model or ())), {} if again else results.raw_rows()
    for number, (label, path) in enumerate(asked.items(), 1):
        missing = [place for place in places if f"{place.label}/{label}" not in known]
        if not missing:
            continue
        with tempfile.TemporaryDirectory(dir=_scratch()) as folder:
            others = work.peers(path.resolve(), Path(folder), tool or PEERS, label.startswith(FULL))
            results.add({f"peers/{label}": others})
            spent = " ".join(f"{one} {row['seconds']} s" for one, row in others.items())
            console.print(f"{number}/{len(asked)} {label}: {spent}", markup=False, highlight=False)
            for place in missing:
                started = time.monotonic()
                cell = work.row(path.resolve(), place, Path(folder), others)
                results.add({f"{place.label}/{label}": cell})
                said = " ".join(f"{one} {_short(_outcome(cell['tools'].get(one, {})))}" for one in TOOLS)
                took = " ".join(f"{part} {cell['seconds'].get(part, 0)} s" for part in _PARTS)
                text = f"  {place.label}: {cell.get('error', '')} {said}; {time.monotonic() - started:.0f} s: {took}"
                console.print(text, markup=False, highlight=False)
    rows = results.raw_rows()
    cells = {key: rows[key] for place in places for label in asked if (key := f"{place.label}/{label}") in rows}
    found = figures(cells)
    for target, one in found.items():
        console.print(shown(target, one))
    made = [rows[key] for label in asked if (key := f"peers/{label}") in rows]
    peer_seconds = {one: sum(row.get(one, {}).get("seconds", 0.0) for row in made) for one in PEERS}
    console.print(times(found, peer_seconds))
    if write:
        stored = {"targets": found, "seconds of other tools": peer_seconds}
        results.store(COMMAND, stored, packages=(*peers.PACKAGES, "onnxruntime-ep-openvino"))
    raise typer.Exit(0 if all(cell["tools"].get(OURS, {}).get("equal") for cell in cells.values()) else 1)


def _runs(place: Place, console: Console) -> bool:
    problem = place.problem()
    if problem:
        console.print(f"{place.label} is left out: {problem}", markup=False, highlight=False)
    return not problem


def _scratch() -> Path:
    """The folder on the disk of the results: temporary folders may be in memory."""
    RAW.mkdir(parents=True, exist_ok=True)
    return RAW


if __name__ == "__main__":
    typer.run(main)
