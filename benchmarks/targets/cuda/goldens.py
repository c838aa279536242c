"""Golden models on a GPU: what ortfuse makes of them for it, in float32 and float16, against the originals and float64.

    python -m benchmarks.targets.cuda.goldens OUT.jsonl bert.sdpa.ts llama_cache.sdpa.raw --place cuda

Original and result run on the device, with products of float32 in full precision.
"""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.models import GOLDEN

MODELS = (
    *("bert.sdpa.ts", "bert.eager.dynamo", "gpt2.sdpa.dynamo", "gpt2_cache.sdpa.ts", "llama.sdpa.dynamo"),
    *("llama_cache.sdpa.raw", "t5_encoder.sdpa.ts", "t5_decoder.sdpa.dynamo", "whisper_encoder.sdpa.ts"),
    *("whisper_decoder.sdpa.dynamo", "vit.sdpa.ts", "resnet.tsbn", "unet.sdpa.dynamo", "unet_groups.ts", "yolo.dynamo"),
    *("swin.sdpa.ts", "segformer.sdpa.ts", "detr.sdpa.dynamo", "mixtral.sdpa.dynamo", "gemma_cache.sdpa.ts"),
    *("mobilenet3.dynamo", "wav2vec2.sdpa.dynamo", "deberta.ts", "efficientnet.tsbn", "roberta.sdpa.dynamo"),
)
"""The models that are tried: one of each kind that people run on GPUs."""

FORCED: Mapping[str, Mapping[str, Any]] = {
    "bert.sdpa.ts": {"padding_free": True, "force": {"padding_free": "com.microsoft.PackedMultiHeadAttention"}},
    "roberta.sdpa.dynamo": {"padding_free": True, "force": {"padding_free": "com.microsoft.PackedMultiHeadAttention"}},
    "unet_groups.ts": {"force": {"groupnorm": "com.microsoft.GroupNorm"}},
    "unet.sdpa.dynamo": {"force": {"groupnorm": "com.microsoft.SkipGroupNorm"}},
}
"""Options that make operators which were never run on a device (`TargetSpec.untried`)."""

NARROW = 3e-2
"""The largest distance of a result in float16 from the float32 original, relative to an output's norm."""


def tried(name: str, place: str) -> dict[str, Any]:
    """Optimise a golden model for the place, verify it there, convert it to float16, and run that there."""
    import onnx_ir as ir

    import ortfuse
    from benchmarks.targets.cuda.sessions import EXACT, apart, made, placement, run
    from ortfuse.runtime.bench import typical_inputs
    from ortfuse.runtime.float64.reference import Reference

    path, row, started = GOLDEN / f"{name}.onnx", dict[str, Any](model=name), time.monotonic()
    result = ortfuse.optimize(path, target="cuda", verify="whole")
    row["verified"] = result.ok
    row["verdict"] = result.verdict.summary()[:300] if result.verdict else ""
    original = ir.load(path)
    _, inputs = typical_inputs(original)
    data = {"original": path.read_bytes(), "result": ir.to_proto(result.model).SerializeToString()}
    found = {which: run(made(source, place, EXACT), inputs) for which, source in data.items()}
    row["apart"] = apart(found["original"], found["result"])
    wide = Reference(original).run(inputs, seconds=30)
    if wide is not None:
        row["from float64"] = {which: apart(wide, outputs) for which, outputs in found.items()}
    row["placement"] = {which: placement(source, inputs, place) for which, source in data.items()}
    row["seconds"] = time.monotonic() - started
    try:
        row["float16"] = halved(result.model, inputs, found["original"], place)
    except Exception as error:
        row["float16"] = {"error": f"{type(error).__name__}: {error}"[:400]}
    if name in FORCED:
        row["forced"] = forced(path, FORCED[name])
    row["seconds"] = time.monotonic() - started
    return row


def forced(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Make operators that were never run on a device, in both types, and verify the results there."""
    import onnx_ir as ir

    import ortfuse

    asked = {operator.rpartition(".")[2] for operator in options["force"].values()}
    found: dict[str, Any] = {}
    half = ortfuse.convert(ir.load(path), "float16", keep_io=True, target="cuda").model
    for kind, source in (("float32", path), ("float16", half)):
        try:
            result = ortfuse.optimize(source, target="cuda", verify="whole", **options)
            made = {node.op_type for node in result.model.graph.all_nodes()}
            found[kind] = {"verified": result.ok, "made": sorted(made & asked), "notes": list(result.report.notes)[:6]}
        except Exception as error:
            found[kind] = {"error": f"{type(error).__name__}: {error}"[:400]}
    return found


def halved(model: Any, inputs: Any, expected: Any, place: str) -> dict[str, Any]:
    """Convert a result to float16, and run it."""
    import onnx_ir as ir

    import ortfuse
    from benchmarks.targets.cuda.sessions import EXACT, apart, made, placement, run

    done = ortfuse.convert(model, "float16", keep_io=True, target="cuda")
    result = ortfuse.optimize(done.model, target="cuda", verify="whole")
    source = ir.to_proto(result.model).SerializeToString()
    distance = apart(expected, run(made(source, place, EXACT), inputs))
    return {
        "verified": result.ok,
        "apart": distance,
        "right": distance < NARROW,
        "operators": done.operators,
        "islands": len(done.islands),
        "why": sorted(set(done.islands.values()))[:4],
        "casts": done.casts,
        "placement": placement(source, inputs, place),
    }


def main(
    out: Annotated[Path, typer.Argument(help="File of findings, one a line.")],
    names: Annotated[list[str] | None, typer.Argument(help="Models; by default those that are tried.")] = None,
    place: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
) -> None:
    """Try models, and write what was found of each at once."""
    warnings.simplefilter("ignore")
    for name in names or MODELS:
        try:
            row = tried(name, place)
        except Exception as error:
            detail = traceback.format_exc().strip().splitlines()[-3:]
            row = {"model": name, "error": f"{type(error).__name__}: {error}"[:600], "where": detail}
        with out.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")


def summary(path: Path) -> str:
    """One line for each model."""
    lines, right, rows = list[str](), 0, 0
    for row in map(json.loads, path.read_text().splitlines()):
        rows += 1
        if "error" in row:
            lines.append(f"{row['model']}: {row['error'][:200]}")
            continue
        half = row["float16"]
        right += bool(row["verified"]) and half.get("verified", False)
        off = row["placement"]["result"]["off"]
        narrow = half.get("error", f"{half.get('apart', 0):.1e}, {half.get('islands')} islands")
        lines.append(f"{row['model']}: {row['verified']} {row['apart']:.1e}, off the device {off}; float16 {narrow}")
        for kind, found in row.get("forced", {}).items():
            said = found.get("error") or f"{found['verified']}, made {found['made']}"
            lines.append(f"{row['model']}, forced in {kind}: {said}")
    return "\n".join([*lines, f"goldens: {right} of {rows} right in both types"])


if __name__ == "__main__":
    typer.run(main)
