"""Results for the targets in Node.js, tried there: do they compute the same, where are their nodes, and how fast are they?

    python -m benchmarks.exports.web                                # models of the sizes that browsers run
    python -m benchmarks.targets.web --write                        # these, and golden models, on wasm and webgpu
    python -m benchmarks.targets.web wasm --model llama --bench 10  # models whose names contain a word
    python -m benchmarks.targets.web wasm --folder DIR --threads 1  # models in a folder, on one thread

For each model: whether the result is equal to the original on the target, the nodes that the runtime executes of both, and those
that other providers execute. Latencies on one thread and on two are those of the original, the result and the results of other
tools, in turns. A speedup is the median over rounds of the original's latency divided by that of a result; the two numbers behind
it bound it. On WebGPU without a GPU no latency is measured, and the other tools know no WebGPU.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from benchmarks.isolated import call, preload
from benchmarks.jobs import GOLDEN, ROOT
from benchmarks.latency.measure import prepared
from benchmarks.models import WEB, sizes_of
from benchmarks.peers import PACKAGES, preloaded
from benchmarks.results import Results
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.placement import placement
from ortfuse.targets import spec_of
from ortfuse.targets.webgpu.runner import environment

TARGETS = ("wasm", "webgpu")
PEERS = ("transformers", "onnxscript", "onnxslim", "onnxsim")
MODELS = (
    *("bert.sdpa.ts", "roberta.sdpa.dynamo", "gpt2_cache.sdpa.ts", "llama_cache.sdpa.dynamo", "whisper_encoder.sdpa.ts"),
    *("whisper_decoder.sdpa.dynamo", "segformer.sdpa.ts", "vit.sdpa.dynamo", "mobilenet2.tsbn", "convnext.dynamo"),
    *("yolo.ts", "t5_encoder.sdpa.dynamo"),
)  # fmt: skip
"""Golden models: encoders, decoders and image models of a kind that browsers run."""

LIMIT = 1800.0
"""Seconds after which a process that optimises or measures one model is given up."""


def optimised(target: str, source: Path, path: Path) -> dict[str, Any]:
    """Optimise a model for a target, run it there, and write the result; returns whether it is equal, and both placements."""
    spec, row = spec_of(target), dict[str, Any]()
    try:
        verdict = ortfuse.optimize(source, target=spec, verify=True, output=path).verdict
    except OrtfuseError as error:
        return {"equal": False, "error": str(error)[:300]}
    row["equal"] = verdict is not None and verdict.ok
    if not row["equal"]:
        row["error"] = "not verified" if verdict is None else verdict.summary()[:300]
    with executing_for(spec):
        for name, model in (("original", source), ("result", path)):
            found = placement(model)
            row[name] = {"nodes": found.own_partitions}
            if found.off_provider:
                row[name]["off"] = dict(Counter(node.op_type for node in found.off_provider).most_common())
    return row


def latencies(
    target: str, models: Mapping[str, Path], sizes: Mapping[str, int], rounds: int, seconds: float, threads: int
) -> dict[str, Any]:
    """Measure models in turns on a target, the first of which is the original.

    Returns:
        Milliseconds of the original under its name; of each other model the speedup and its bounds, or the words of its failure.
    """
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import measure, typical_inputs
    from ortfuse.runtime.session import Session

    loaded = {name: load(path) for name, path in models.items()}
    first = next(iter(models))
    _, inputs = typical_inputs(loaded[first], sizes=sizes)
    found = dict[str, Any]()
    with executing_for(spec_of(target)):
        for name, model in loaded.items():
            try:
                Session(model, threads=threads).run(inputs)
            except OrtfuseError as error:
                found[name] = f"fails: {error}"[:200]
        sound = {name: model for name, model in loaded.items() if name not in found}
        original, *others = measure(sound, inputs, rounds=rounds, seconds=seconds, threads=threads, tried=True)
    found |= {first: original.median_ms}
    return found | {row.name: [row.speedup, *(row.speedup_bounds or ())] for row in others}


def tried(
    target: str, source: Path, tools: Sequence[str], rounds: int, seconds: float, threads: Sequence[int]
) -> dict[str, Any]:
    """Return the figures of a model on a target."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / source.name
        made = call(optimised, target, source, result, limit=LIMIT)
        row: dict[str, Any] = {"equal": False, "error": made.error} if made.error else made.value
        if not row["equal"] or not threads:
            return row
        entries = prepared(source, tools, Path(folder), LIMIT) if tools else {}
        right = {tool: entry["status"] == "ok" for tool, entry in entries.items()}
        models = {"original": source, "ortfuse": result}
        models |= {tool: Path(folder) / f"{source.stem}.{tool}.onnx" for tool in tools if right[tool]}
        for count in threads:
            measured = call(latencies, target, models, sizes_of(source.stem), rounds, seconds, count, limit=LIMIT)
            figures = {"error": measured.error} if measured.error else measured.value
            failed = {tool: entry["status"] for tool, entry in entries.items() if not right[tool]}
            row.setdefault("threads", {})[str(count)] = figures | failed
    return row


def means(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by the number of threads the geometric mean of each tool's speedups, over the models that it made a result of."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows.values():
        for count, figures in row.get("threads", {}).items():
            for tool, figure in figures.items():
                if isinstance(figure, list):
                    found.setdefault(count, {}).setdefault(tool, []).append(figure[0])
    return {
        count: {tool: statistics.geometric_mean(of) for tool, of in tools.items()} for count, tools in found.items()
    }


def slower(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the models whose results are slower than the originals beyond noise, with the number of threads."""
    return [
        f"{name} ({count} threads: {figures['ortfuse'][0]:.3f})"
        for name, row in rows.items()
        for count, figures in row.get("threads", {}).items()
        if isinstance(figures.get("ortfuse"), list) and figures["ortfuse"][-1] < 1
    ]


def _groups(folder: Path | None, words: Sequence[str]) -> Iterator[tuple[str, list[Path]]]:
    """The models of each folder, by its name."""
    golden = ROOT / GOLDEN
    for one in [golden, WEB] if folder is None else [folder]:
        paths = [path for path in sorted(one.glob("*.onnx")) if not words or any(word in path.stem for word in words)]
        yield (one.name.strip("."), [path for path in paths if words or one != golden or path.stem in MODELS])


def main(
    targets: Annotated[list[str] | None, typer.Argument(help="Targets.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Words, one of which a model's name contains.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder with models; by default the golden models and those of benchmarks.exports.web."),
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help=f"Other tools; by default {', '.join(PEERS)}.")] = None,
    alone: Annotated[bool, typer.Option(help="Measure no other tools.")] = False,
    rounds: Annotated[int, typer.Option(help="The fewest rounds of a measurement.")] = 15,
    bench: Annotated[
        float, typer.Option(help="Seconds of further rounds where bounds are wide; below 0 nothing is measured.")
    ] = 5.0,
    threads: Annotated[list[int] | None, typer.Option(help="Threads per operator; by default one, then two.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Store the figures.")] = False,
) -> None:
    """Print the figures of each model; the exit code is 1 if a result is not equal to its original."""  # fmt: skip
    warnings.simplefilter("ignore")
    preload([*preloaded(()), "ortfuse.runtime.bench"])
    result: dict[str, Any] = {}
    for target in targets or TARGETS:
        measured = () if bench < 0 or (target == "webgpu" and environment()) else threads or (1, 2)
        tools = () if alone or target == "webgpu" else tool or PEERS
        for group, paths in _groups(folder, model or ()):
            rows = {}
            for path in paths:
                rows[path.stem] = tried(target, path.resolve(), tools, rounds, bench, measured)
                print(f"{target} {path.stem}: {rows[path.stem]}", flush=True)
            found = {"means": means(rows), "slower": slower(rows), "models": rows}
            result.setdefault(target, {})[group] = found
            print(f"{target}, {group}: {sum(row['equal'] for row in rows.values())} of {len(rows)} models equal")
            print(f"  geometric means: {found['means']}\n  slower than the original: {found['slower']}", flush=True)
    if write:
        Results("targets.web").store("python -m benchmarks.targets.web --write", result, packages=PACKAGES)
    every = [row for groups in result.values() for found in groups.values() for row in found["models"].values()]
    raise typer.Exit(0 if all(row["equal"] for row in every) else 1)
