"""Results for the target openvino in OpenVINO's own runtime, which also runs where ONNX Runtime's plugin offers no device.

    python -m benchmarks.targets.openvino.own_runtime --write          # the twelve golden models, and those of full size
    python -m benchmarks.targets.openvino.own_runtime yolo --rounds 50 # whose names contain a word

Both files are compiled with the settings of the target, on one thread. Outputs are compared with those of the original there.
Latencies are measured in one run, interleaved, in either order by turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from benchmarks import isolated
from benchmarks.jobs import MODELS
from benchmarks.models import FOR_TARGETS, GOLDEN, one_of_each, sizes_of
from benchmarks.results import PACKAGES, Results
from benchmarks.targets.openvino.__main__ import geometric_mean
from ortfuse.io.load_and_save import load
from ortfuse.runtime.bench import typical_inputs
from ortfuse.runtime.comparison import compare
from ortfuse.targets.openvino import CONFIGURATION
from ortfuse.targets.processor import processor_kind

COMMAND = "python -m benchmarks.targets.openvino.own_runtime --write"
LIMIT = 900.0
"""The seconds for a model."""

WARM_UP = 3
TOLERANCE = 1e-3
"""The error that is allowed, relative to the largest number of an output."""


def row_of(path: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the latency of a model in ms, how many times as fast the result is, and whether it computes the same."""
    import openvino

    _, inputs = typical_inputs(load(path), sizes=sizes_of(path.stem))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / path.name
        ortfuse.optimize(path, target="openvino", output=result)
        core = openvino.Core()
        settings = {**CONFIGURATION, "INFERENCE_NUM_THREADS": 1}
        requests = []
        for file in (path, result):
            compiled = core.compile_model(core.read_model(file), "CPU", settings)
            given = {name: inputs[name] for one in compiled.inputs for name in one.names if name in inputs}
            requests.append((compiled.create_infer_request(), given, len(compiled.outputs)))
        outputs = []
        for request, given, count in requests:
            for _ in range(WARM_UP):
                request.infer(given)
            outputs.append([request.get_output_tensor(index).data.copy() for index in range(count)])
        times: list[list[float]] = [[], []]
        started = time.perf_counter()
        while len(times[0]) < rounds or time.perf_counter() - started < seconds:
            order = (0, 1) if len(times[0]) % 2 else (1, 0)
            for index in order:
                request, given, _ = requests[index]
                before = time.perf_counter()
                request.infer(given)
                times[index].append(time.perf_counter() - before)
    original, ours = map(statistics.median, times)
    same = [compare("", one, other, TOLERANCE).ok for one, other in zip(*outputs, strict=True)]
    return {"ms": original * 1e3, "speedup": original / ours, "equal": all(same)}


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Words, one of which a model's name contains.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with models of full size.")] = MODELS,
    rounds: Annotated[int, typer.Option(help="The fewest rounds of a measurement.")] = 20,
    seconds: Annotated[float, typer.Option(help="How long each is measured at least.")] = 5.0,
    write: Annotated[bool, typer.Option("--write", help="Store the figures.")] = False,
) -> None:
    """Print the figures of each model; the exit code is 1 if a result does not load there or computes something else."""
    isolated.preload(["__main__", "ortfuse", "onnxruntime"])
    full = one_of_each(sorted(models.glob("*.onnx")))
    parts = {"golden": [GOLDEN / f"{name}.onnx" for name in FOR_TARGETS], "full": full}
    found: dict[str, Any] = {}
    for part, paths in parts.items():
        rows = found.setdefault(part, {})
        for path in paths:
            if words and not any(word in path.stem for word in words):
                continue
            outcome = isolated.call(row_of, path, rounds, seconds, limit=LIMIT)
            rows[path.stem] = outcome.value if outcome.error is None else {"error": outcome.error}
            print(part, path.stem, rows[path.stem], flush=True)
    means = {part: geometric_mean(rows) for part, rows in found.items()}
    print("geometric means:", means)
    if write:
        Results("targets.openvino.own_runtime", processor=processor_kind()).store(
            COMMAND, {"models": found, "geometric_means": means}, packages=(*PACKAGES, "openvino")
        )
    raise typer.Exit(0 if all(row.get("equal") for rows in found.values() for row in rows.values()) else 1)


if __name__ == "__main__":
    typer.run(main)
