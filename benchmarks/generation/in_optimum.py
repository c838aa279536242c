"""Exports and generators in Optimum: ``python -m benchmarks.generation.in_optimum --write``.

Both run in `ORTModelForCausalLM` with bound outputs, in interleaved rounds, and the generator in `ortfuse.Generator`, too.
Optimum asks for an older transformers than the exports: `--packages FOLDER` is where `pip install --target FOLDER optimum-onnx`
has put both. Needs PyTorch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import typer

from benchmarks.results import Results
from ortfuse.api.benchmark_generation import benchmark_generation
from ortfuse.api.fused_decoder import fused_decoder
from ortfuse.api.generator import MAX_LENGTH, generator
from ortfuse.generation.generator import MODEL_FILE
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.options import Options
from ortfuse.targets.processor import processor_in_full

FOLDER = Path(__file__).parents[1] / ".decoders_full"
COMMAND = "python -m benchmarks.generation.in_optimum --write"
STEPS = 16


def renamed(path: Path, names: InterfaceNames, output: Path) -> ir.Model:
    """Write a decoder whose inputs and outputs have the names that Optimum asks for; return it."""
    model = ir.load(path)
    new = {
        names.tokens: "input_ids",
        names.mask: "attention_mask",
        names.positions: "position_ids",
        names.logits: "logits",
    }
    for number, (past, present, _) in enumerate(names.caches):
        kind = ("key", "value")[number % 2]
        new |= {past: f"past_key_values.{number // 2}.{kind}", present: f"present.{number // 2}.{kind}"}
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.name = new[value.name or ""]
    ir.save(model, output, external_data=f"{output.name}.data")
    return model


def config_of(model: ir.Model, names: InterfaceNames) -> dict[str, Any]:
    """The configuration that Optimum asks for: it makes the empty caches of the first run from it."""
    past = {value.name: value for value in model.graph.inputs}["past_key_values.0.key"]
    assert past.shape is not None
    _, heads, _, size = past.shape
    layers, width = len(names.caches) // 2, int(heads) * int(size)  # type: ignore[arg-type]
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size}
    return {"model_type": "llama", "hidden_size": width, **sizes}


def measured(path: Path, marks: tuple[int, ...], rounds: int, threads: int, packages: Path | None) -> dict[str, Any]:
    """Milliseconds of the prompt and of a step by the number of tokens before them, in Optimum and in `ortfuse.Generator`."""
    longest = max(marks) + STEPS + 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = fused_decoder(path, Options(), MAX_LENGTH, {}).names
        config = config_of(renamed(path, names, folder / "export.onnx"), names)
        generator(path, folder / "made", max_length=longest, last_logits=True)
        models = {"export": str(folder / "export.onnx"), "generator": str(folder / "made" / MODEL_FILE)}
        request = {
            "models": models, "config": config, "marks": marks, "new": STEPS, "rounds": rounds, "threads": threads
        }  # fmt: skip
        answer = _in_optimum(request, packages)
        found = _medians(answer, marks)
        for mark in marks:
            own = benchmark_generation(
                [path, folder / "made"], new_tokens=STEPS, prompt=mark, rounds=rounds, threads=threads
            )
            for name, one in zip(("export in a plain loop", "generator in ortfuse.Generator"), own.models, strict=True):
                step = statistics.median(one.steps.values())
                times = {"prompt_ms": round(one.first * 1e3, 2), "step_ms": round(step * 1e3, 3)}
                found.setdefault(name, {})[str(mark)] = times
        found["same tokens"] = {
            str(mark): answer["tokens"][f"export {mark}"] == answer["tokens"][f"generator {mark}"] for mark in marks
        }
        return found


def _in_optimum(request: Mapping[str, Any], packages: Path | None) -> dict[str, Any]:
    paths = [str(packages.resolve())] if packages else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    script = Path(__file__).with_name("run_in_optimum.py")
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(request)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"Optimum does not run here: {done.stderr.strip().splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _medians(answer: Mapping[str, Any], marks: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mark in marks:
        rows = {name: [row for row in answer["times"] if row[:2] == [name, mark]] for name in ("export", "generator")}
        for name, own in rows.items():
            found.setdefault(f"{name} in Optimum", {})[str(mark)] = {
                "prompt_ms": round(statistics.median(row[2] for row in own) * 1e3, 2),
                "step_ms": round(statistics.median(row[3] for row in own) * 1e3, 3),
                "ratio": round(
                    statistics.median(old[3] / new[3] for old, new in zip(rows["export"], own, strict=True)), 3
                ),
                "ratio_prompt": round(
                    statistics.median(old[2] / new[2] for old, new in zip(rows["export"], own, strict=True)), 3
                ),
            }
    return found


def main(
    names: Annotated[str, typer.Option("--only", help="Beginnings of names, with commas.")] = "gpt2,llama",
    marks: Annotated[str, typer.Option(help="Numbers of cached tokens to measure at.")] = "32,1000",
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of each; by default as many as there are processors.")] = 0,
    packages: Annotated[Path | None, typer.Option(help="Folder of Optimum and its transformers.")] = None,
    write: Annotated[bool, typer.Option(help="Store the result.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result.")] = None,
) -> None:
    """Measure exports and generators in Optimum."""
    found: dict[str, Any] = {}
    at = tuple(int(one) for one in marks.split(","))
    for path in sorted(FOLDER.glob("*.onnx")):
        if path.stem.startswith(tuple(names.split(","))):
            found[path.stem] = measured(path, at, rounds, threads or os.cpu_count() or 1, packages)
            print(path.stem, json.dumps(found[path.stem], indent=1), flush=True)
    if write:
        Results("generation.in_optimum", output, processor_in_full()).store(COMMAND, found, raw=found)


if __name__ == "__main__":
    typer.run(main)
