"""Another runtime on the same exports: OpenVINO in float32, in bfloat16 and with int8 by NNCF, beside ortfuse.

    python -m benchmarks.exports.full
    python -m benchmarks.other_runtime                      # every model that the summary does not have yet, on this processor
    python -m benchmarks.other_runtime bert --prepared DIR  # these again, with the results that benchmarks.latency made there

No optimiser of ONNX files competes here; users of ortfuse compare it with a runtime. The exported file is given to
`openvino.convert_model` and compiled for the CPU with as many threads; NNCF calibrates on the inputs of `benchmarks.precision`.
Runs are interleaved with the runtime's default on the export and on the result of ortfuse, in float32 and, where
`benchmarks.precision` has left them in its folder, under error bounds. Errors are relative L2 errors on inputs that no tool
has seen. The raw result has the profile of each in float32: if another runtime is ahead, it says by which operators.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.isolated import call, preload
from benchmarks.models import FULL_SIZE, chosen, folder_for, sizes_of
from benchmarks.precision.measure import brief, made_inputs, make_inputs
from benchmarks.precision.tools import BOUNDS
from benchmarks.results import PACKAGES, Results
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.other_runtime"
HINTS: Mapping[str, str] = {"OpenVINO f32": "f32", "OpenVINO bf16": "bf16", "OpenVINO int8": "f32"}
"""The precision that OpenVINO is told to compute in; the last after `nncf.quantize`."""

PROFILED = "OpenVINO f32"

LIMIT = 1800.0
AHEAD = 1.02
"""The ratio of speedups from which another runtime counts as ahead."""

MOST_OPERATORS = 8
"""Operators of a profile that are stored."""


class Compiled:
    """A model compiled by OpenVINO for the CPU."""

    def __init__(
        self, source: Path, names: Sequence[str], hint: str, threads: int, given: Sequence[Inputs] = (), *,
        counted: bool = False,
    ) -> None:  # fmt: skip
        """Compile, quantised to int8 by NNCF on `given` inputs if there are any.

        Args:
            source: The model.
            names: Those of its outputs.
            hint: The precision to compute in.
            threads: How many compute.
            given: The inputs for NNCF.
            counted: Whether the times of operators are taken, which takes time itself.
        """
        import openvino

        model = openvino.convert_model(source)
        if given:
            import nncf

            model = nncf.quantize(model, nncf.Dataset([dict(arrays) for arrays in given]), subset_size=len(given))
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": hint,
            "PERFORMANCE_HINT": "LATENCY",
            "PERF_COUNT": counted,
        }
        self._request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        self._names = names

    def run(self, inputs: Inputs) -> dict[str, Any]:
        """The outputs by name."""
        self._request.infer(dict(inputs), share_inputs=True)
        return {name: self._request.get_output_tensor(number).data.copy() for number, name in enumerate(self._names)}

    def profile(self, inputs: Inputs, runs: int = 5) -> dict[str, float]:
        """Milliseconds of a run by operator, the longest first."""
        total: Counter[str] = Counter()
        for _ in range(runs):
            self.run(inputs)
            for entry in self._request.get_profiling_info():
                total[entry.node_type] += entry.real_time.total_seconds() * 1e3 / runs
        return {kind: round(spent, 3) for kind, spent in total.most_common(MOST_OPERATORS) if spent}


def compared(
    source: Path, results: Mapping[str, Path], tools: Sequence[str], folder: Path, rounds: int, threads: int
) -> dict[str, Any]:
    """The errors on inputs that no tool has seen, and latencies side by side, by tool; the original's under `default`."""
    from ortfuse.quantization.metrics import METRICS
    from ortfuse.runtime.bench.models_side_by_side import interleaved
    from ortfuse.runtime.session import Session

    given, unseen = made_inputs(folder / "given"), made_inputs(folder / "unseen")
    files = {"default": source, **results}
    sessions: dict[str, Any] = {
        name: Session(str(path), threads=threads, isolated=False) for name, path in files.items()
    }
    found: dict[str, Any] = {name: {} for name in files}
    expected = [sessions["default"].run(arrays) for arrays in unseen]
    for tool in tools:
        try:
            of_tool = given if tool.endswith("int8") else ()
            sessions[tool] = Compiled(source, list(expected[0]), HINTS[tool], threads, of_tool)
            found[tool] = {}
        except Exception as error:
            found[tool] = {"reason": str(error).strip().splitlines()[-1][:200] if str(error).strip() else "failed"}
    for name in [name for name in sessions if name != "default"]:
        try:
            made = [sessions[name].run(arrays) for arrays in unseen]
            found[name]["unseen_error"] = float(METRICS["l2"].of(expected, made, unseen).error)
        except Exception as error:
            del sessions[name]
            found[name] = {"reason": str(error).strip().splitlines()[-1][:200]}
    times = interleaved(sessions, unseen[0], rounds, warmup=3)
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(times["default"], seconds, strict=True)]
        found[name] |= {"median_ms": statistics.median(seconds) * 1e3, "speedup": statistics.median(ratios)}
    if "speedup" in found.get(PROFILED, {}):
        counted = Compiled(source, list(expected[0]), HINTS[PROFILED], threads, counted=True)
        found[PROFILED]["profile_ms"] = counted.profile(unseen[0])
    return found


def own_profile(result: Path, folder: Path, threads: int) -> dict[str, float]:
    """Milliseconds of a run of our result by operator, the longest first."""
    from ortfuse.api.profile import profile

    found = profile(result, inputs=folder / "unseen", threads=threads, remedies=False)
    return {group.name: round(group.seconds * 1e3, 3) for group in found.by("operator")[:MOST_OPERATORS]}


def one_model(
    source: Path, folder: Path, lowered: Path | None, tools: Sequence[str], rounds: int, threads: int
) -> dict[str, Any]:
    """Return the raw row of one model; `folder` has or gets our result, `lowered` has the results of `benchmarks.precision`."""
    name = source.name.removesuffix(".onnx")
    result = folder / f"{name}.ortfuse.onnx"
    if not result.is_file() or result.stat().st_mtime_ns < source.stat().st_mtime_ns:
        made = call(_optimized, source, result, limit=LIMIT)
        if made.error is not None:
            return {"error": made.error}
    results = {"ortfuse": result}
    results |= {
        f"ortfuse {bound:g}": path
        for bound in BOUNDS
        if lowered is not None and (path := lowered / name / f"ortfuse {bound:g}.onnx").is_file()
    }
    with tempfile.TemporaryDirectory() as inputs:
        label = call(make_inputs, source, sizes_of(name), Path(inputs), limit=LIMIT)
        if label.error is not None:
            return {"error": f"no inputs: {label.error}"}
        found = call(compared, source, results, tools, Path(inputs), rounds, threads, limit=LIMIT)
        if found.error is not None:
            return {"error": f"cannot be measured: {found.error}"}
        ours = call(own_profile, result, Path(inputs), threads, limit=LIMIT)
    default = found.value.pop("default")
    if ours.error is None:
        found.value["ortfuse"]["profile_ms"] = ours.value
    load = round(os.getloadavg()[0], 2)
    return {
        "sizes": label.value,
        "load": load,
        "threads": threads,
        "default_ms": default["median_ms"],
        "tools": found.value,
    }


def _optimized(source: Path, target: Path) -> None:
    from ortfuse import optimize

    optimize(source, output=target)


def summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """For each tool the mean of its speedups, and its errors; in float32 the models on which OpenVINO is ahead."""
    found: dict[str, Any] = {}
    for tool in ("ortfuse", *(f"ortfuse {bound:g}" for bound in BOUNDS), *HINTS):
        every = [entry for row in rows.values() if not isinstance(entry := row["tools"].get(tool, ""), str)]
        if every:
            errors = [error for _, error in every]
            mean = statistics.geometric_mean(speedup for speedup, _ in every)
            found[tool] = {"geometric_mean": mean, "models": len(every), "errors": [min(errors), max(errors)]}
    found["ahead of ortfuse in float32"] = sorted(name for name, row in rows.items() if _is_behind(row["tools"]))
    return found


def _is_behind(tools: Mapping[str, Any]) -> bool:
    ours, other = tools.get("ortfuse", ""), tools.get("OpenVINO f32", "")
    return not isinstance(ours, str) and not isinstance(other, str) and other[0] > AHEAD * ours[0]


def table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Every model: speedup over the runtime's default on the export, and error, of each tool."""
    made = Table(title="Speedup over the runtime's default, and error", title_justify="left")
    tools = ["ortfuse", *(f"ortfuse {bound:g}" for bound in BOUNDS), *HINTS]
    for heading in ("model", "default ms", *tools):
        made.add_column(heading, justify="left" if heading == "model" else "right")
    for name, row in rows.items():
        if "error" in row:
            made.add_row(name, row["error"])
            continue
        cells = (_cell(row["tools"].get(tool)) for tool in tools)
        made.add_row(name, f"{row['default_ms']:.4g}", *cells)
    return made


def _cell(entry: Sequence[float] | str | None) -> str:
    if entry is None:
        return "-"
    return entry if isinstance(entry, str) else f"{entry[0]:.2f}x {entry[1]:.0e}"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models, or leading parts of their names.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = FULL_SIZE,
    tool: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(HINTS)}.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each model runs.")] = 25,
    threads: Annotated[int, typer.Option(help="Threads of both runtimes.")] = 2,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    fresh: Annotated[bool, typer.Option(help="Measure all models again.")] = False,
    keep: Annotated[Path | None, typer.Option("--prepared", help="Folder that keeps our float32 results.")] = None,
    lowered: Annotated[Path | None, typer.Option(help="The --prepared folder of benchmarks.precision.")] = None,
) -> None:
    """Measure, print, and store after each model."""
    if unknown := set(tool or ()) - set(HINTS):
        raise typer.BadParameter(f"no such tool: {', '.join(sorted(unknown))}")
    console = Console(width=None if sys.stdout.isatty() else 150)
    preload(["onnx", "onnxruntime", "ortfuse.pipeline"])
    results = Results("other_runtime", output, processor_in_full())
    rows = results.rows()
    for path in chosen(models, names or [], rows, fresh):
        name = path.name.removesuffix(".onnx")
        with folder_for(keep, models) as folder:
            row = one_model(path.resolve(), folder, lowered, tool or list(HINTS), rounds, threads)
        rows[name] = brief(row)
        found = {"summary": summary(rows), "models": dict(sorted(rows.items()))}
        results.store(COMMAND, found, raw={name: row}, packages=(*PACKAGES, "openvino", "nncf"))
        console.print(table({name: rows[name]}))
    console.print(table(rows))
    console.print(summary(rows))
