"""What is expected of each golden model after its pass list: shared by the test and by `refresh.py`."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

import ortfuse
from ortfuse.runtime.bench import executed_ops, typical_inputs
from ortfuse.targets import Target, default_spec, shipped_tables

FOLDER = Path(__file__).parent
MODELS = FOLDER / "models"
EXPECTED = FOLDER / "expected"

ATTENTION = (
    "Attention",
    "com.microsoft.MultiHeadAttention",
    "com.microsoft.Attention",
    "com.microsoft.GroupQueryAttention",
)
KINDS: Mapping[str, tuple[str, ...]] = {
    "attention": ATTENTION,
    "rotary": ("RotaryEmbedding", "com.microsoft.RotaryEmbedding"),
    "layer_norm": (
        "LayerNormalization",
        "com.microsoft.SkipLayerNormalization",
        "com.microsoft.EmbedLayerNormalization",
    ),
    "rms_norm": ("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"),
    "instance_norm": ("InstanceNormalization", "GroupNormalization"),
    "gelu": ("Gelu", "com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu"),
    "swish": ("Swish", "com.microsoft.QuickGelu"),
    "hard_sigmoid": ("HardSigmoid", "HardSwish"),
    "recurrent": ("LSTM", "GRU", "RNN"),
}
"""The operators that stand for one call of each family."""

EXPLAINED: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "deberta": {"layer_norm": (1, "it normalises its table of relative positions, a constant, which is folded")},
    "keras_resnet2": {"batch_norm": (4, "they stand before a ReLU, and what they read is read as it is by others")},
    "densenet": {"batch_norm": (5, "they stand before a ReLU, and what they read is read as it is by others")},
    "unet": {"swish": (7, "they are calls on the same value, the embedded time, which the exporters merge")},
}
"""Calls that no operator stands for, by architecture and family, and why."""

SHAPE_ARITHMETIC = frozenset(
    {"Shape", "Size", "Range", "ConstantOfShape", "Expand", "Concat", "Unsqueeze", "Squeeze", "Cast", "Where", "Gather"}
)


def names() -> list[str]:
    """The golden models, by file name without ending."""
    return sorted(path.name.removesuffix(".onnx") for path in MODELS.glob("*.onnx"))


def expected_names() -> list[str]:
    """The golden models that there are expectations of."""
    return [name for name in names() if (EXPECTED / f"{name}.json").is_file()]


@functools.cache
def optimised(name: str) -> ortfuse.Result:
    """One golden model after the pass list that `auto` picks for it, on any machine by the first table of costs that is shipped.

    Who asks again gets the same result, so nobody may change it.
    """
    return ortfuse.optimize(MODELS / f"{name}.onnx", target=Target(costs=shipped_tables(default_spec())[0]))


@functools.cache
def executed(name: str) -> Counter[str]:
    """The operators that the runtime executes of that, on inputs of usual sizes."""
    model = optimised(name).model
    return executed_ops(model, typical_inputs(model)[1])


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


def sites(name: str, folder: Path = MODELS) -> dict[str, Any]:
    """Calls counted on the PyTorch model when it was exported."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())["sites"]
    return found


def called(found: Mapping[str, Any]) -> dict[str, int]:
    """The calls of each family, of the sites counted on a PyTorch model; of recurrent networks the layers."""
    activations = Counter(found["activations"])
    return {
        **{family: int(found.get(family, 0)) for family in (*KINDS, "batch_norm")},
        "rotary": int(found.get("rotary_tensors", found["rotary"])),
        "instance_norm": found["group_norm"] + found.get("instance_norm", 0),
        "gelu": activations["gelu"] + activations["gelu_tanh"],
        "swish": activations["silu"] + activations["quick_gelu"],
        "hard_sigmoid": activations["hardsigmoid"] + activations["hardswish"],
    }


def made(operators: Mapping[str, int], calls: Mapping[str, int]) -> dict[str, int]:
    """How many calls of each family a result has an operator for; normalisations of batches are to be gone."""
    found = {family: count(operators, kinds) for family, kinds in KINDS.items()}
    left = operators.get("BatchNormalization", 0) if calls["batch_norm"] else 0
    return {**found, "batch_norm": calls["batch_norm"] - left}


def missing(operators: Mapping[str, int], found: Mapping[str, Any]) -> dict[str, int]:
    """The calls of each family that a result has no operator for, given the sites; only families where some are missing."""
    calls = called(found)
    there = made(operators, calls)
    return {family: calls[family] - there[family] for family in calls if calls[family] != there[family]}


def explained(name: str) -> dict[str, int]:
    """What may be missing in a golden model's result."""
    return {family: number for family, (number, _) in EXPLAINED.get(name.partition(".")[0], {}).items()}


def count(operators: Mapping[str, int], kinds: tuple[str, ...]) -> int:
    """Nodes of any of these kinds."""
    return sum(operators.get(kind, 0) for kind in kinds)


def nodes_of_layers(model: ir.Model) -> list[Counter[str]]:
    """The operators of each layer but the first: what stands between one attention and the next, in the order of the graph."""
    positions = [index for index, node in enumerate(model.graph) if node.op_type in ("Attention", "MultiHeadAttention")]
    operators = [node.op_type for node in model.graph]
    return [Counter(operators[start:end]) for start, end in itertools.pairwise(positions)]
