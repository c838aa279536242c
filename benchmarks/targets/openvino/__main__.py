"""Results for OpenVINO's provider: do they load and compute the same there, in how many partitions, and how fast?

    python -m benchmarks.targets.openvino --write                # twelve golden models, and exports in benchmarks/.varied
    python -m benchmarks.targets.openvino bert.sdpa.ts --rounds 20
    python -m benchmarks.targets.openvino --others FOLDER        # with the larger exports of another folder

Each model is optimised for the target, and compared with the original on the provider, in float32. Latencies of the two are
measured in one run, interleaved. It needs the package `onnxruntime-ep-openvino`.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from benchmarks.jobs import GOLDEN, ROOT
from benchmarks.models import FOR_TARGETS, sizes_of
from benchmarks.results import PACKAGES, Results
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.placement import placement
from ortfuse.targets.openvino import TARGET
from ortfuse.targets.processor import processor_kind

OTHERS = (
    *("xlm_roberta_xl.ts16", "qwen2.ts14", "unet_1d.ts14", "convnextv2.ts15", "poolformer.ts17", "autoencoder_kl.ts17.fixed"),
    *("bart.ts20", "siglip_vision_model.ts14.fixed", "swiftformer.ts16", "gemma3_text.ts20", "distilbert.ts17", "ssd.ts15"),
)  # fmt: skip
"""Larger exports of `benchmarks.exports.varied`."""


def row_of(path: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Return the figures of a model; `error` where the original or the result cannot be used."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, executing_for(TARGET):
        result = Path(folder) / path.name
        try:
            found["before"] = _placed(path)
            made = ortfuse.optimize(path, target=TARGET, verify=True, output=result)
            assert made.verdict is not None
            found |= {"after": _placed(result), "equal": made.verdict.ok}
            if not made.verdict.ok:
                found["words"] = made.verdict.summary()
            measured = ortfuse.benchmark(
                {"original": path, "result": result},
                target=TARGET, sizes=dict(sizes_of(path.name)), threads=threads, rounds=rounds,
            )  # fmt: skip
            found["ms"], found["speedup"] = measured.latency[0].median_ms, measured.latency[1].speedup
        except OrtfuseError as error:
            found["error"] = str(error)[:200]
    return found


def _placed(path: Path) -> dict[str, int]:
    found = placement(path)
    return {"partitions": found.own_partitions, "off": len(found.off_provider)}


def words_of(row: dict[str, Any]) -> str:
    """Return a row in one line."""
    if "error" in row:
        return f"error: {row['error']}"
    before, after = row["before"], row["after"]
    return (
        f"{'equal' if row['equal'] else 'DIFFERS: ' + row['words']}; partitions {before['partitions']} -> {after['partitions']}; "
        f"nodes off the provider {before['off']} -> {after['off']}; {row['ms']:.3f} ms, {row['speedup']:.3f} times as fast"
    )


def geometric_mean(rows: dict[str, dict[str, Any]]) -> float:
    """Return the mean speedup of the models that were measured; NaN without any."""
    speedups = [row["speedup"] for row in rows.values() if "speedup" in row]
    return math.exp(statistics.fmean(map(math.log, speedups))) if speedups else math.nan


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models; by default the twelve and the larger exports.")
    ] = None,
    others: Annotated[Path, typer.Option(help="Folder with the larger exports.")] = ROOT / "benchmarks" / ".varied",
    rounds: Annotated[int, typer.Option(help="The fewest rounds of a measurement.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads; one where the machine does other work too.")] = 2,
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Print the figures of each model; the exit code is 1 if a result does not load there or computes something else."""
    warnings.simplefilter("ignore")
    wanted = names or [*FOR_TARGETS, *OTHERS]
    paths = [folder / f"{name}.onnx" for name in wanted for folder in (ROOT / GOLDEN, others)]
    rows = {}
    for path in filter(Path.is_file, paths):
        rows[path.stem] = row_of(path, rounds, threads)
        print(f"{path.stem}: {words_of(rows[path.stem])}", flush=True)
    mean = geometric_mean(rows)
    print(f"geometric mean: {mean:.3f} times as fast, {len(rows)} models")
    if write:
        result = {"models": rows, "geometric_mean": mean}
        Results("targets.openvino", processor=processor_kind()).store(
            "python -m benchmarks.targets.openvino --write", result, packages=(*PACKAGES, "onnxruntime-ep-openvino")
        )
    raise typer.Exit(0 if all(row.get("equal") for row in rows.values()) else 1)


if __name__ == "__main__":
    typer.run(main)
