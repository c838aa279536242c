"""Results for older releases, run on the wheels of these releases: do they load, and compute the same as the originals there?

    python -m benchmarks.targets.wheels                                     # the golden models on four releases
    python -m benchmarks.targets.wheels 1.20.1 --model llama --model bert   # models whose names contain these words
    python -m benchmarks.targets.wheels 1.20.1 --latency 4                  # for 4 seconds a model, the latency too

A model is optimised for a release with the installed runtime. A process with that release first on its path then compares the
result with the original; the original's opset and IR version are lowered for it, if they are too new for the release.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import typer

import ortfuse
from benchmarks.results import Results
from benchmarks.targets.releases import environment
from ortfuse.errors import OrtfuseError

ROOT = Path(__file__).parents[2]
RELEASES = ("1.17.3", "1.20.1", "1.22.1", "1.24.4")
FUSED = {
    "attention": ("Attention", "MultiHeadAttention"),
    "rotary": ("RotaryEmbedding",),
    "rms": ("RMSNormalization", "SimplifiedLayerNormalization"),
}
"""The operators of each family, by which sites are counted."""

_COMPARE = "import sys; from benchmarks.targets.wheels import compare; compare(*sys.argv[1:3], float(sys.argv[3]))"


def compare(folder: str, found: str, latency: float) -> None:
    """Compare the pairs of models in a folder on the runtime of this process, and write a verdict for each to a file.

    With seconds of `latency`, the two are measured side by side too, interleaved: the verdict has how much faster the result is.
    """
    warnings.simplefilter("ignore")
    verdicts: dict[str, Any] = {}
    for result in sorted(Path(folder).glob("*.result.onnx")):
        name = result.name.removesuffix(".result.onnx")
        try:
            verdict = ortfuse.verify(result.with_name(f"{name}.original.onnx"), result)
            verdicts[name] = {"ok": verdict.ok, "words": verdict.summary()}
            if latency and verdict.ok:
                original = result.with_name(f"{name}.original.onnx")
                rows = ortfuse.benchmark({"original": original, "result": result}, bench_budget=latency)
                verdicts[name]["speedup"] = round(rows.latency[-1].speedup, 3)
        except OrtfuseError as error:
            verdicts[name] = {"ok": False, "words": str(error)}
    Path(found).write_text(json.dumps(verdicts))


def sites(model: ir.Model) -> Counter[str]:
    """Count the sites of each family in a model."""
    kinds = Counter(node.op_type for node in model.graph)
    return Counter({family: sum(kinds[name] for name in names) for family, names in FUSED.items()})


def tried(release: str, models: list[Path], environments: Path, latency: float) -> dict[str, Any]:
    """Optimise models for a release and compare them on its wheel; returns the figures."""
    counted: dict[str, Counter[str]] = {"release": Counter(), "newest": Counter()}
    with tempfile.TemporaryDirectory() as scratch:
        for path in models:
            old, new = (ortfuse.optimize(path, runtime=runtime, loaded=False).model for runtime in (release, None))
            counted["release"] += sites(old)
            counted["newest"] += sites(new)
            ir.save(old, Path(scratch) / f"{path.stem}.result.onnx")
            original = ortfuse.optimize(path, runtime=release, passes="", loaded=False).model
            ir.save(original, Path(scratch) / f"{path.stem}.original.onnx")
        found = Path(scratch) / "verdicts.json"
        places = os.pathsep.join([str(environment(release, environments)), str(ROOT)])
        subprocess.run(
            [sys.executable, "-c", _COMPARE, scratch, str(found), str(latency)],
            check=True,
            env={**os.environ, "PYTHONPATH": places},
        )
        verdicts = json.loads(found.read_text())
    wrong = {name: verdict["words"] for name, verdict in verdicts.items() if not verdict["ok"]}
    row: dict[str, Any] = {
        "models": len(verdicts),
        "equal": len(verdicts) - len(wrong),
        "others": wrong,
        "sites": counted,
    }
    speedups = {name: verdict["speedup"] for name, verdict in verdicts.items() if "speedup" in verdict}
    if speedups:
        row["geometric mean"] = round(statistics.geometric_mean(speedups.values()), 3)
        row["speedups"] = dict(sorted(speedups.items(), key=lambda one: one[1]))
    return row


def main(
    releases: Annotated[list[str] | None, typer.Argument(help="Versions of ONNX Runtime.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Words, one of which a model's name contains.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder with models.")] = ROOT / "golden" / "models",
    environments: Annotated[Path, typer.Option(help="Where environments are made and kept.")] = ROOT / ".environments",
    latency: Annotated[
        float, typer.Option(help="Seconds to measure the latency of each model; 0 for not at all.")
    ] = 0.0,
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Print the figures of each release; the exit code is 1 if a result does not load there or computes something else."""
    paths = [path for path in sorted(folder.glob("*.onnx")) if not model or any(word in path.name for word in model)]
    found = {release: tried(release, paths, environments.resolve(), latency) for release in releases or RELEASES}
    for release, row in found.items():
        print(f"{release}: {row['equal']} of {row['models']} models equal; sites {json.dumps(row['sites'])}")
        if "speedups" in row:
            print(f"  faster than the original: {row['geometric mean']}; {json.dumps(row['speedups'])}")
        for name, words in row["others"].items():
            print(f"  {name}: {words}")
    if write:
        Results("targets.wheels").store("python -m benchmarks.targets.wheels --write", found)
    raise typer.Exit(1 if any(row["others"] for row in found.values()) else 0)


if __name__ == "__main__":
    typer.run(main)
