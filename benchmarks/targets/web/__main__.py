"""Results for the targets in Node.js, tried there: do they compute the same, where are their nodes, and how fast are they?

    python -m benchmarks.targets.web                                # golden models on wasm and webgpu
    python -m benchmarks.targets.web wasm --model llama --bench 10  # models whose names contain a word
    python -m benchmarks.targets.web wasm --folder DIR              # models in a folder

For each model: whether the result is equal to the original on the target, the nodes that the runtime executes of both, those
that other providers execute, and the median over rounds of the original's latency divided by the result's, runs interleaved.
"""

from __future__ import annotations

import statistics
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import typer

import ortfuse
from benchmarks.results import Results
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.placement import placement
from ortfuse.targets import TargetSpec, spec_of

ROOT = Path(__file__).parents[3]
TARGETS = ("wasm", "webgpu")
MODELS = (
    *(
        "bert.sdpa.ts",
        "roberta.sdpa.dynamo",
        "gpt2_cache.sdpa.ts",
        "llama_cache.sdpa.dynamo",
        "whisper_encoder.sdpa.ts",
    ),
    *("whisper_decoder.sdpa.dynamo", "segformer.sdpa.ts", "vit.sdpa.dynamo", "mobilenet2.tsbn", "convnext.dynamo"),
    *("yolo.ts", "t5_encoder.sdpa.dynamo"),
)
"""Golden models: encoders, decoders and image models of a kind that browsers run."""


def tried(spec: TargetSpec, path: Path, bench: float, threads: int) -> dict[str, Any]:
    """Optimise a model for a target and run it there; returns the figures."""
    row: dict[str, Any] = {}
    try:
        result = ortfuse.optimize(path, target=spec, verify=True, threads=threads)
    except OrtfuseError as error:
        return {"equal": False, "error": str(error)[:300]}
    verdict = result.verdict
    row["equal"] = verdict is not None and verdict.ok
    if not row["equal"]:
        row["error"] = "not verified" if verdict is None else verdict.summary()[:300]
    with executing_for(spec):
        for name, model in (("original", path), ("result", result.model)):
            found = placement(model)
            row[name] = {"nodes": found.own_partitions}
            if found.off_provider:
                row[name]["off"] = dict(Counter(node.op_type for node in found.off_provider).most_common())
    if bench and row["equal"]:
        models: dict[str, ir.Model | Path] = {"original": path, "result": result.model}
        rows = ortfuse.benchmark(models, target=spec, bench_budget=bench, threads=threads)
        row["speedup"] = round(rows.latency[-1].speedup, 3)
    return row


def main(
    targets: Annotated[list[str] | None, typer.Argument(help="Targets.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Words, one of which a model's name contains.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder with models.")] = ROOT / "golden" / "models",
    bench: Annotated[float, typer.Option(help="Seconds to measure each model's latency; 0 for not at all.")] = 5.0,
    threads: Annotated[int, typer.Option(help="Threads per operator.")] = 1,
    write: Annotated[bool, typer.Option("--write", help="Store the figures.")] = False,
) -> None:
    """Print the figures of each model; the exit code is 1 if a result is not equal to its original."""
    warnings.simplefilter("ignore")
    golden = folder == ROOT / "golden" / "models" and not model
    paths = [
        path
        for path in sorted(folder.glob("*.onnx"))
        if (path.stem in MODELS if golden else not model or any(word in path.stem for word in model))
    ]
    found: dict[str, Any] = {}
    for target in targets or TARGETS:
        spec = spec_of(target)
        rows = found[target] = {}
        for path in paths:
            rows[path.stem] = row = tried(spec, path, bench, threads)
            print(f"{target} {path.stem}: {row}", flush=True)
        speedups = [row["speedup"] for row in rows.values() if "speedup" in row]
        mean = f", {statistics.geometric_mean(speedups):.3f} times as fast" if speedups else ""
        print(f"{target}: {sum(row['equal'] for row in rows.values())} of {len(rows)} models equal{mean}", flush=True)
    if write:
        Results("targets.web").store("python -m benchmarks.targets.web --write", found)
    raise typer.Exit(1 if any(not row["equal"] for rows in found.values() for row in rows.values()) else 0)


if __name__ == "__main__":
    typer.run(main)
