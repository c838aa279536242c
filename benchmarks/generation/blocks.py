"""Products of one token with weights of 4 and 8 bits, by the rows of a block: ``python -m benchmarks.generation.blocks --write``.

Ratios are the time of the product in float32 over that of the form, from interleaved rounds. Level 4 computes in 8-bit integers,
level 1 in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
import typer

from benchmarks.results import Results
from ortfuse.runtime.bench import measure
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.generation.blocks --write"
SIZES = {
    "head of GPT-2": (768, 50257),
    "queries, keys and values": (768, 2304),
    "down": (3072, 768),
    "up of Llama": (1024, 2816),
}
"""Rows and columns of weights."""

HEADER = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'


def product(rows: int, columns: int) -> ir.Model:
    """Return a product in float32."""
    weight = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    return _model("y = MatMul(x, w)", rows, columns, {"w": weight})


def rounded(rows: int, columns: int, bits: int, block: int, level: int) -> ir.Model:
    """Return a product whose weight has so many bits, and a scale for each block of rows."""
    random, blocks = np.random.default_rng(0), -(-rows // block)
    weights = {
        "b": random.integers(0, 255, (columns, blocks, block * bits // 8), np.uint8),
        "s": random.random((columns, blocks), np.float32) / 100,
    }
    attributes = f"K={rows}, N={columns}, bits={bits}, block_size={block}, accuracy_level={level}"
    return _model(f"y = com.microsoft.MatMulNBits<{attributes}>(x, b, s)", rows, columns, weights)


def _model(body: str, rows: int, columns: int, weights: Mapping[str, np.ndarray[Any, Any]]) -> ir.Model:
    kinds = {name: "uint8" if array.dtype == np.uint8 else "float" for name, array in weights.items()}
    taken = "".join(f", {kinds[name]}[{','.join(map(str, array.shape))}] {name}" for name, array in weights.items())
    model = ir.from_onnx_text(f"{HEADER} g (float[1, 1, {rows}] x{taken}) => (float[1, 1, {columns}] y) {{ {body} }}")
    for value in model.graph.inputs[1:]:
        value.const_value = ir.tensor(weights[value.name or ""], name=value.name)
        model.graph.register_initializer(value)
    del model.graph.inputs[1:]
    return model


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 40,
    threads: Annotated[int, typer.Option(help="Threads of a session.")] = 1,
    write: Annotated[bool, typer.Option(help="Store the result.")] = False,
    quick: Annotated[bool, typer.Option(help="One weight, few rounds; stores nothing.")] = False,
) -> None:
    """Measure products with weights of 4 and 8 bits."""
    found: dict[str, Any] = {}
    for name, (rows, columns) in list(SIZES.items())[-1 if quick else 0 :]:
        forms = {"float32": product(rows, columns)}
        for bits, level, block in itertools.product((4, 8), (1, 4), (16, 32, 64, 128)):
            if (bits, level) != (8, 1):  # these unpack the whole weight in each run
                forms[f"int{bits}.block{block}_level{level}"] = rounded(rows, columns, bits, block, level)
        inputs = {"x": np.random.default_rng(1).standard_normal((1, 1, rows), np.float32)}
        latencies = measure(forms, inputs, rounds=4 if quick else rounds, threads=threads)
        found[name] = {one.name: round(one.speedup, 2) for one in latencies}
        print(name, found[name], flush=True)
    if write and not quick:
        Results("generation.blocks", processor=processor_in_full()).store(
            COMMAND, {"threads": threads, "ratios": found}
        )


if __name__ == "__main__":
    typer.run(main)
