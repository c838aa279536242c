"""A model on a target: whether the results of all tools are equal to it there, where their nodes are, and how fast they are.

    python -m benchmarks.targets.cells REQUEST.json FOUND.json

`benchmarks.targets.table` runs this program in a process of its own, in which an older release of the runtime may be the first on
the path. After each step the program writes what it has found, so that a crash leaves that. All tools are treated alike: each
result is compared with the same runs of the original on the target, and is measured in turns with all others that are equal.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import write
from ortfuse.errors import OrtfuseError
from ortfuse.io.load_and_save import load
from ortfuse.runtime.bench import measure, typical_inputs
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.placement import placement
from ortfuse.runtime.reference_runs import explored
from ortfuse.runtime.verification_time_budget import Budget
from ortfuse.targets import TargetSpec, default_spec, spec_of
from ortfuse.verification.equivalence import repeatable, verdict_on

ORIGINAL = "original"
_WORDS = 200
"""The most characters of an error."""


@dataclass(frozen=True)
class Request:
    """The work on one model.

    Attributes:
        target: The short name of the target; empty for the default one of the installed runtime.
        original: The path of the model.
        results: The paths of what the tools made of it.
        sizes: Sizes of open dimensions at which latencies are measured.
        rounds: The fewest rounds of a measurement.
        seconds: For how long there may be more rounds.
        threads: Threads per operator.
        budget: Seconds for running and evaluating the original, and again for comparing each result.
    """

    target: str
    original: str
    results: Mapping[str, str]
    sizes: Mapping[str, int]
    rounds: int
    seconds: float
    threads: int
    budget: float

    def write(self, path: Path) -> None:
        """Write it to a file."""
        write(path, json.dumps(asdict(self)))


def answer(request: Request, keep: Callable[[Mapping[str, Any]], None]) -> None:
    """Check and measure, and tell after each step what was found.

    Args:
        request: The work.
        keep: Gets all that was found so far: the `original`, by tool the `tools`, and the `seconds` of each part.
    """
    spec = spec_of(request.target) if request.target else default_spec()
    found: dict[str, Any] = {ORIGINAL: {}, "tools": {name: {} for name in request.results}, "seconds": {}}
    with executing_for(spec):
        _timed(found, "checking", lambda: _check(request, found, keep))
        if "error" not in found:
            _timed(found, "placing", lambda: _place(request, spec, found))
            keep(found)
            _timed(found, "measuring", lambda: _measure(request, found))
    keep(found)


def _timed(found: dict[str, Any], part: str, do: Callable[[], None]) -> None:
    started = time.monotonic()
    try:
        do()
    except OrtfuseError as error:
        found["error"] = f"{part}: {error}"[:_WORDS]
    found["seconds"][part] = round(time.monotonic() - started, 1)


def _check(request: Request, found: dict[str, Any], keep: Callable[[Mapping[str, Any]], None]) -> None:
    """Compare each result with the original's runs on the target; what the runtime refuses is an `error`."""
    original = repeatable(load(request.original))
    runs = explored(original, budget=Budget(request.budget))
    for name, path in request.results.items():
        row = found["tools"][name]
        try:
            verdict = verdict_on(runs, original, repeatable(load(path)), None, Budget(request.budget))
        except OrtfuseError as error:
            row["error"] = str(error)[:_WORDS]
        else:
            refused = next((trial.refusal for trial in verdict.trials if trial.refusal), "")
            row |= {"error": refused[:_WORDS]} if refused else {"equal": verdict.ok}
            if not refused and not verdict.ok:
                row["words"] = verdict.summary()[:_WORDS]
        keep(found)


def _place(request: Request, spec: TargetSpec, found: dict[str, Any]) -> None:
    """Count partitions on the provider and nodes off it; on the CPU, all nodes are on it."""
    if spec.runs_on == default_spec().runs_on and not spec.runner:
        return
    for row, path in ((found[ORIGINAL], request.original), *_equal(request, found)):
        placed = placement(Path(path))
        row |= {"partitions": placed.own_partitions, "off": len(placed.off_provider)}


def _measure(request: Request, found: dict[str, Any]) -> None:
    """Measure the original and the equal results in turns."""
    rows = {ORIGINAL: found[ORIGINAL], **{name: found["tools"][name] for name in found["tools"]}}
    paths = {name: path for name, path in request.results.items() if rows[name].get("equal")}
    models = {ORIGINAL: load(request.original)} | {name: load(path) for name, path in paths.items()}
    found["sizes"], inputs = typical_inputs(models[ORIGINAL], sizes=request.sizes)
    for one in measure(
        models, inputs, rounds=request.rounds, seconds=request.seconds, threads=request.threads, tried=True
    ):
        row = rows[one.name]
        row |= {"ms": one.median_ms, "executed": one.executed, "session_ms": one.session_ms}
        if one.name != ORIGINAL:
            row["speedup"] = [one.speedup, *(one.speedup_bounds or ())]


def _equal(request: Request, found: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    rows = ((found["tools"][name], path) for name, path in request.results.items())
    return [(row, path) for row, path in rows if row.get("equal")]


def main(request: Path, found: Path) -> None:
    """Do the work of a file, and write what was found to another."""
    warnings.simplefilter("ignore")
    answer(Request(**json.loads(request.read_text())), lambda so_far: write(found, json.dumps(so_far)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
