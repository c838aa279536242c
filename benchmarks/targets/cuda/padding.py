"""Encoders without padding on a GPU: padded, packed around padded attention, and with attention of packed tokens.

    python -m benchmarks.targets.cuda.padding FOLDER OUT.jsonl bert.sdpa.ts --place cuda

FOLDER has the exports of `benchmarks.exports.full`. Models are measured in float32 and float16, at several fills.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

FILLS = (0.3, 0.55, 1.0)
SIZES: Mapping[str, int] = {"batch": 16, "sequence": 128}
PACKED = {"padding_free": "com.microsoft.PackedMultiHeadAttention"}


def variants(source: Any, place: str) -> dict[str, Any]:
    """The results by name; the CPU has no kernel of the last."""
    import ortfuse

    options: dict[str, dict[str, Any]] = {"padded": {}, "packed": {"padding_free": True}}
    if place == "cuda":
        options["packed attention"] = {"padding_free": True, "force": PACKED}
    return {name: ortfuse.optimize(source, target="cuda", **more).model for name, more in options.items()}


def rows(path: Path, place: str, seconds: float) -> list[dict[str, Any]]:
    """Milliseconds of the variants, and their speedups over the padded one, by type and fill."""
    import onnx_ir as ir

    import ortfuse

    found = list[dict[str, Any]]()
    half = ortfuse.convert(ir.load(path), "float16", keep_io=True, target="cuda").model
    for kind, source in (("float32", ir.load(path)), ("float16", half)):
        try:
            models = variants(source, place)
        except Exception as error:
            found.append({"model": path.stem, "type": kind, "error": f"{type(error).__name__}: {error}"[:400]})
            continue
        for fill in FILLS:
            measured = ortfuse.benchmark(
                models,
                sizes=SIZES,
                fill=fill,
                rounds=5,
                bench_budget=seconds,
                target="cuda" if place == "cuda" else None,
            ).latency
            times = {row.name: row.median_ms for row in measured}
            found.append({"model": path.stem, "type": kind, "fill": fill, "ms": times})
    return found


def main(
    folder: Annotated[Path, typer.Argument(help="Where exports are.")],
    out: Annotated[Path, typer.Argument(help="File of rows, one for each model, type and fill.")],
    names: Annotated[list[str], typer.Argument(help="Exports.")],
    place: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="The time for one measurement.")] = 4.0,
) -> None:
    """Measure, and write what was found of each export at once."""
    warnings.simplefilter("ignore")
    for name in names:
        made = rows(folder / f"{name}.onnx", place, seconds)
        with out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in made)
        print(*made, sep="\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
