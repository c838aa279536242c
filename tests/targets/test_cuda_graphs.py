"""Tests that golden models become the expected graphs for CUDA, in float32 and float16: no GPU is needed for that.

`python tests/targets/test_cuda_graphs.py` writes what they become now.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ortfuse

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
EXPECTED = Path(__file__).with_suffix(".json")
MODELS = {
    "bert.sdpa.ts": ("float32", "float16", "padding-free", "padding-free, packed attention"),
    "roberta.sdpa.dynamo": ("padding-free", "padding-free, packed attention"),
    "gpt2.sdpa.dynamo": ("float32", "float16"),
    "llama.sdpa.dynamo": ("float32",),
    "t5_encoder.sdpa.ts": ("float32",),
    "whisper_decoder.sdpa.ts": ("float32",),
    "vit.sdpa.ts": ("float32",),
    "resnet.tsbn": ("float32", "float16"),
    "unet_groups.ts": ("float32", "GroupNorm"),
    "unet.sdpa.dynamo": ("float32", "GroupNorm", "SkipGroupNorm"),
}


def operators(name: str, kind: str) -> dict[str, int]:
    """How many nodes of each operator a golden model has for CUDA, in branches too: in a type, or with options."""
    options: dict[str, Any] = {"padding_free": kind.startswith("padding-free")}
    if kind.endswith("packed attention"):
        options["force"] = {"padding_free": "com.microsoft.PackedMultiHeadAttention"}
    if kind.endswith("GroupNorm"):
        options["force"] = {"groupnorm": f"com.microsoft.{kind}"}
    result = ortfuse.optimize(GOLDEN / f"{name}.onnx", target="cuda", loaded=False, **options).model
    if kind == "float16":
        done = ortfuse.convert(result, "float16", keep_io=True, target="cuda")
        assert not done.islands
        result = ortfuse.optimize(done.model, target="cuda", loaded=False).model
    return dict(
        sorted(Counter(f"{node.domain}.{node.op_type}".strip(".") for node in result.graph.all_nodes()).items())
    )


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in MODELS.items() for kind in kinds])
def test_a_golden_model_becomes_the_expected_graph(name: str, kind: str) -> None:
    assert operators(name, kind) == json.loads(EXPECTED.read_text())[f"{name} {kind}"]


if __name__ == "__main__":
    made = {f"{name} {kind}": operators(name, kind) for name, kinds in MODELS.items() for kind in kinds}
    EXPECTED.write_text(json.dumps(made, indent=1) + "\n")
