"""What is expected of each golden model after its pass list: shared by the test and by `refresh.py`."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir

import ortfuse

FOLDER = Path(__file__).parent
MODELS = FOLDER / "models"
EXPECTED = FOLDER / "expected"

ATTENTION = (
    "Attention",
    "com.microsoft.MultiHeadAttention",
    "com.microsoft.Attention",
    "com.microsoft.GroupQueryAttention",
)
LAYER_NORM = ("LayerNormalization", "com.microsoft.SkipLayerNormalization", "com.microsoft.EmbedLayerNormalization")
RMS_NORM = ("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
ROTARY = ("RotaryEmbedding", "com.microsoft.RotaryEmbedding")
GELU = ("Gelu", "com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")
SHAPE_ARITHMETIC = frozenset(
    {"Shape", "Size", "Range", "ConstantOfShape", "Expand", "Concat", "Unsqueeze", "Squeeze", "Cast", "Where", "Gather"}
)


def names() -> list[str]:
    """The golden models, by file name without ending."""
    return sorted(path.name.removesuffix(".onnx") for path in MODELS.glob("*.onnx"))


def expected_names() -> list[str]:
    """The golden models that there are expectations of."""
    return [name for name in names() if (EXPECTED / f"{name}.json").is_file()]


def gelus(found: dict[str, Any]) -> int:
    """Calls of GELU in any of its forms but the quick one, of the sites counted on the PyTorch model."""
    return sum(count for name, count in found["activations"].items() if name.startswith("gelu"))


def optimised(name: str) -> ortfuse.Result:
    """One golden model after the pass list that `auto` picks for it."""
    return ortfuse.optimize(MODELS / f"{name}.onnx")


def outcome(report: ortfuse.RunReport) -> dict[str, Any]:
    """What is compared: the operators of the result, and the sites of each family."""
    return {
        "nodes_before": report.before.nodes,
        "operators": dict(sorted(report.after.operators.items())),
        "families": dict(sorted(report.families().items())),
    }


def stored(name: str) -> dict[str, Any] | None:
    """The expectation on file, `None` if there is none."""
    path = EXPECTED / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def store(name: str, found: dict[str, Any]) -> None:
    """Make `found` the expectation."""
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def difference(before: dict[str, Any] | None, after: dict[str, Any]) -> list[str]:
    """What changed, a line for each operator and family."""
    if before is None:
        return ["no expectation on file"]
    lines = []
    for part in ("operators", "families"):
        keys = sorted({*before[part], *after[part]})
        changed = [key for key in keys if before[part].get(key, 0) != after[part].get(key, 0)]
        lines += [f"{part}: {key} {before[part].get(key, 0)} -> {after[part].get(key, 0)}" for key in changed]
    if before["nodes_before"] != after["nodes_before"]:
        lines.append(f"nodes of the original: {before['nodes_before']} -> {after['nodes_before']}")
    return lines


def sites(name: str) -> dict[str, Any]:
    """Calls counted on the PyTorch model when it was exported."""
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())["sites"]
    return found


def count(operators: dict[str, int], kinds: tuple[str, ...]) -> int:
    """Nodes of any of these kinds."""
    return sum(operators.get(kind, 0) for kind in kinds)


def nodes_of_layers(model: ir.Model) -> list[Counter[str]]:
    """The operators of each layer but the first: what stands between one attention and the next, in the order of the graph."""
    positions = [index for index, node in enumerate(model.graph) if node.op_type in ("Attention", "MultiHeadAttention")]
    operators = [node.op_type for node in model.graph]
    return [Counter(operators[start:end]) for start, end in itertools.pairwise(positions)]
