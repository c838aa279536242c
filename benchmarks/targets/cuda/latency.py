"""Latency on a GPU of models of real size: as exported, and as ortfuse and the transformers optimizer leave them.

    python -m benchmarks.targets.cuda.latency prepare FOLDER bert.sdpa.ts      # export, and make all variants of it
    python -m benchmarks.targets.cuda.latency measure FOLDER OUT.jsonl         # of all that are prepared

Inputs and outputs lie on the device, and runs are interleaved. A variant whose outputs are off is named, and not measured.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.latency.measure import KINDS

MODELS = (
    *(
        "bert.sdpa.ts",
        "gpt2.sdpa.dynamo",
        "llama_step.sdpa.dynamo",
        "vit.sdpa.ts",
        "resnet50.ts",
        "whisper_step.sdpa.dynamo",
    ),
    *(
        "t5_encoder.sdpa.ts",
        "minilm.sdpa.ts",
        "llama.sdpa.dynamo",
        "whisper_encoder.sdpa.dynamo",
        "t5_step.sdpa.dynamo",
        "unet.ts",
    ),
)
"""Exports of `benchmarks.exports.full`, those first that say most."""

SIZES: Mapping[str, Mapping[str, int]] = {
    "gpt2_step": {"sequence": 1, "past": 512},
    "llama_step": {"sequence": 1, "past": 512},
    "t5_step": {"sequence": 1, "past": 64, "source": 128},
    "whisper_step": {"past": 64},
}
"""Sizes of open dimensions but the batch; others are 128."""

BATCHES = (1, 8)
VARIANTS = ("default", "ortfuse cuda", "ortfuse cpu", "attention", "transformers", "groupnorm")
NARROW = ("default fp16", "ortfuse cuda fp16", "attention fp16", "transformers fp16", "groupnorm fp16")
WRONG = {"": 2e-2, "fp16": 5e-2}
"""Distances from the original, relative to an output's norm, from which on a variant is not measured."""

ROUNDS, LEAST, MOST = 7, 5, 40
"""Rounds in which variants take turns, and the fewest and most runs of each in a round."""

SPAN = 0.03
"""Seconds of a variant's runs in a round."""

LONGEST = 12.0
"""Seconds after which no further round begins."""

app = typer.Typer()


@contextlib.contextmanager
def told(name: str, what: str) -> Iterator[None]:
    """Print how long something takes, and why it fails."""
    started = time.monotonic()
    try:
        yield
        print(f"{name}: {what}: {time.monotonic() - started:.1f} s", flush=True)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{name}: {what} failed after {time.monotonic() - started:.1f} s: {text[:300]}", flush=True)


@app.command()
def prepare(
    folder: Annotated[Path, typer.Argument(help="Where models are written.")],
    name: Annotated[str, typer.Argument(help="Export.")],
    limit: Annotated[int, typer.Option(help="Seconds for the export.")] = 150,
) -> None:
    """Export a model, unless it is there, and make all variants of it."""
    warnings.simplefilter("ignore")
    source = folder / f"{name}.onnx"
    if not source.exists():
        with told(name, "export"):
            command = [sys.executable, "-m", "benchmarks.exports.full", "--folder", str(folder), "--limit", str(limit)]
            subprocess.run([*command, name], check=True, timeout=limit + 30)
    for variant, make in makers(name).items():
        path = folder / f"{name}.{variant.replace(' ', '_')}.made"
        if not path.exists():
            with told(name, variant):
                make(source, path)
    (folder / f"{name}.ready").touch()


def makers(name: str) -> dict[str, Callable[[Path, Path], None]]:
    """Makers of each variant but the original: functions from file to file."""
    kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), None)
    found: dict[str, Callable[[Path, Path], None]] = {
        "ortfuse cuda": lambda source, path: optimised(source, path, "cuda"),
        "ortfuse cpu": lambda source, path: optimised(source, path, None),
        "ortfuse cuda fp16": lambda source, path: optimised(source, path, "cuda", half=True),
        "default fp16": lambda source, path: halved(source, path),
        "attention": lambda source, path: optimised(source, path, with_attention()),
        "attention fp16": lambda source, path: optimised(source, path, with_attention(), half=True),
    }
    if name.startswith("unet"):
        found["groupnorm"] = lambda source, path: optimised(source, path, "cuda", force=GROUP_NORM)
        found["groupnorm fp16"] = lambda source, path: optimised(source, path, "cuda", half=True, force=GROUP_NORM)
    if kind is not None:
        found["transformers"] = lambda source, path: by_transformers(source, path, *kind, half=False)
        found["transformers fp16"] = lambda source, path: by_transformers(source, path, *kind, half=True)
    return found


def with_attention() -> Any:
    """The target on which ai.onnx Attention is not lowered."""
    from ortfuse.targets import Target, resolve_target

    cuda = resolve_target("cuda")
    return Target(replace(cuda.spec, lowered_before={}))


GROUP_NORM = {"groupnorm": "com.microsoft.GroupNorm"}


def optimised(
    source: Path, path: Path, target: Any, *, half: bool = False, force: Mapping[str, str] | None = None
) -> None:
    """The model that ortfuse makes, in the end with forced choices."""
    import onnx_ir as ir

    import ortfuse

    found = ortfuse.optimize(source, target=target, loaded=False).model
    if half:
        found = ortfuse.convert(found, "float16", keep_io=True, target=target).model
    if half or force:
        found = ortfuse.optimize(found, target=target, loaded=False, force=force or {}).model
    ir.save(found, path)


def by_transformers(source: Path, path: Path, kind: str, heads: int, hidden: int, *, half: bool) -> None:
    """The model that the runtime's own optimizer of transformers makes for a GPU."""
    from onnxruntime.transformers.optimizer import optimize_model

    logging.disable(logging.WARNING)
    found = optimize_model(str(source), model_type=kind, num_heads=heads, hidden_size=hidden, use_gpu=True)
    if half:
        found.convert_float_to_float16(keep_io_types=True)
    found.save_model_to_file(str(path))


def halved(source: Path, path: Path) -> None:
    """The original, converted to float16 by the runtime's own tool."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    convert: Callable[..., Any] = convert_float_to_float16
    onnx.save(convert(onnx.load(source), keep_io_types=True), path)


@app.command()
def measure(
    folder: Annotated[Path, typer.Argument(help="Where models are.")],
    out: Annotated[Path, typer.Argument(help="File of rows, one for each model and batch.")],
    place: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="The time for all; models that are left then are not measured.")] = 200,
    wait: Annotated[float, typer.Option(help="How long to wait for a model that is not prepared yet.")] = 60,
) -> None:
    """Measure all models that are prepared, those first that say most."""
    warnings.simplefilter("ignore")
    end, left = time.monotonic() + seconds, list(MODELS)
    patience = time.monotonic() + wait
    while left and time.monotonic() < end:
        name = next((name for name in left if (folder / f"{name}.ready").exists()), None)
        if name is None:
            if time.monotonic() > patience:
                break
            time.sleep(1)
            continue
        left.remove(name)
        with told(name, "measured"):
            rows(folder, name, place, out)
    for name in left:
        print(f"{name}: not measured, no time left or not prepared")


def rows(folder: Path, name: str, place: str, out: Path) -> None:
    """Measure one model at each batch, and write each row at once."""
    from benchmarks.targets.cuda.sessions import apart, bound, made, run

    sources = {"default": folder / f"{name}.onnx"}
    for variant in (*VARIANTS[1:], *NARROW):
        path = folder / f"{name}.{variant.replace(' ', '_')}.made"
        if path.exists():
            sources[variant] = path
    sessions, failed = {}, dict[str, str]()
    for variant, path in sources.items():
        try:
            sessions[variant] = made(str(path), place)
        except Exception as error:
            failed[variant] = " ".join(str(error).split())[-200:]
    if place == "cuda" and name.startswith(("resnet", "vit", "unet")):
        for variant in ("default", "ortfuse cuda", "groupnorm", "default fp16", "ortfuse cuda fp16", "groupnorm fp16"):
            if variant in sessions:
                with contextlib.suppress(Exception):
                    sessions[f"{variant} nhwc"] = made(str(sources[variant]), place, {"prefer_nhwc": "1"})
    for batch in BATCHES:
        inputs = typical(folder, name, batch)
        expected = run(sessions["default"], inputs)
        bindings, distances, wrong = {}, dict[str, float](), dict[str, str](failed)
        for variant, session in sessions.items():
            try:
                distances[variant] = apart(expected, run(session, inputs))
                if not distances[variant] < WRONG["fp16" if "fp16" in variant else ""]:
                    wrong[variant] = f"off by {distances[variant]:.2g}"
                    continue
                bindings[variant] = bound(session, inputs, place)
            except Exception as error:
                wrong[variant] = " ".join(str(error).split())[-200:]
        found = in_turns({variant: sessions[variant] for variant in bindings}, bindings)
        row = {"model": name, "batch": batch, "ms": found, "apart": distances, "not measured": wrong}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), flush=True)


def in_turns(sessions: Mapping[str, Any], bindings: Mapping[str, Any]) -> dict[str, float]:
    """The median milliseconds of each variant; they take turns."""
    from benchmarks.targets.cuda.sessions import median, once

    counts, taken = dict[str, int](), dict[str, list[float]]()
    end = time.monotonic() + LONGEST
    for variant, session in sessions.items():
        warm = [once(session, bindings[variant]) for _ in range(3)]
        counts[variant] = min(MOST, max(1 if min(warm) > 100 else LEAST, round(SPAN * 1e3 / max(min(warm), 1e-3))))
        taken[variant] = []
    for number in range(ROUNDS):
        if number and time.monotonic() > end:
            break
        for variant, session in sessions.items():
            taken[variant] += [once(session, bindings[variant]) for _ in range(counts[variant])]
    return {variant: median(times) for variant, times in taken.items()}


def typical(folder: Path, name: str, batch: int) -> Any:
    """Inputs of a model, the same for all variants; they are kept beside it."""
    file = folder / f"{name}.{batch}.inputs"
    if file.exists():
        return pickle.loads(file.read_bytes())
    import onnx_ir as ir

    from ortfuse.runtime.bench import typical_inputs

    model = ir.load(folder / f"{name}.onnx")
    wanted = {"batch": batch, **SIZES.get(name.partition(".")[0], {})}
    _, found = typical_inputs(model, sizes=wanted)
    file.write_bytes(pickle.dumps(found))
    return found


def line(row: Mapping[str, Any]) -> str:
    """A row in words: the milliseconds of each variant."""
    times = ", ".join(f"{variant} {value:.3g}" for variant, value in row["ms"].items())
    others = "; ".join(f"{variant}: {why[:80]}" for variant, why in row["not measured"].items())
    return f"{row['model']} batch {row['batch']}: {times}" + (f" | {others}" if others else "")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Speedups over the exported file, in float32 and float16 over the exported file in float32."""
    return "\n".join(map(line, rows))


if __name__ == "__main__":
    app()
