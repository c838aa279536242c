"""Counts of the calls that PyTorch made of each family, and of the operators of a model that stand for one.

The calls were counted by hooks on the running PyTorch model when it was exported (``golden/sites.py``). An operator
counts once for each time its graph mentions it, in subgraphs and (at each call) in model functions too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

MICROSOFT = "com.microsoft."
FAMILIES: Mapping[str, frozenset[str]] = {
    "attention": frozenset(
        {"Attention"}
        | {
            MICROSOFT + name
            for name in (
                *("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention"),
                *("PackedMultiHeadAttention", "DecoderAttention", "DecoderMaskedSelfAttention"),
                *("DecoderMaskedMultiHeadAttention", "LongformerAttention", "SparseAttention", "PagedAttention"),
                *("QAttention", "QOrderedAttention"),
            )
        }
    ),
    "rotary": frozenset({"RotaryEmbedding", "com.microsoft.RotaryEmbedding", "com.microsoft.GemmaRotaryEmbedding"}),
    "layer_norm": frozenset(
        {"LayerNormalization"}
        | {MICROSOFT + name for name in ("SkipLayerNormalization", "EmbedLayerNormalization", "LayerNormalization")}
    ),
    "rms_norm": frozenset(
        {"RMSNormalization", "SimplifiedLayerNormalization"}
        | {MICROSOFT + name for name in ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")}
    ),
    "group_norm": frozenset({"GroupNormalization", "com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm"}),
    "gelu": frozenset({"Gelu"} | {MICROSOFT + name for name in ("Gelu", "BiasGelu", "FastGelu", "BiasSplitGelu")}),
    "swish": frozenset({"Swish", "com.microsoft.QuickGelu"}),
}
"""The operators that stand for one call of each family, with their domain if that is not ai.onnx."""

_TURNS_TWO = frozenset({"com.microsoft.GemmaRotaryEmbedding"})
_ACTIVATIONS = {"gelu": ("gelu", "gelu_tanh"), "swish": ("silu", "quick_gelu")}


def expected(sites: Mapping[str, Any]) -> dict[str, int]:
    """The calls of each family that PyTorch made, of the record beside a model. Rotary counts tensors turned."""
    found = {family: int(sites.get(family, 0)) for family in FAMILIES} | {"rotary": int(sites.get("rotary_tensors", 0))}
    for family, names in _ACTIVATIONS.items():
        found[family] = sum(sites["activations"].get(name, 0) for name in names)
    return found


def fused(path: Path) -> tuple[dict[str, int], int]:
    """The operators of each family in a model file, and the number of all its nodes."""
    model = onnx.load(path, load_external_data=False)
    functions = {(function.domain, function.name): function.node for function in model.functions}
    counted: Counter[str] = Counter()
    for node in _nodes(model.graph.node, functions):
        counted["nodes"] += 1
        kind = _kind(node)
        for family, kinds in FAMILIES.items():
            if kind in kinds:
                counted[family] += 2 if kind in _TURNS_TWO else 1
        if kind in FAMILIES["attention"] and any(a.name == "do_rotary" and a.i for a in node.attribute):
            counted["rotary"] += 2  # it turns queries and keys itself
    return {family: counted[family] for family in FAMILIES}, counted["nodes"]


def _kind(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _nodes(nodes: Any, functions: Mapping[tuple[str, str], Any]) -> Iterator[onnx.NodeProto]:
    """The nodes, those of subgraphs, and in place of a call of a function those of its body."""
    for node in nodes:
        body = functions.get((node.domain, node.op_type))
        if body is not None:
            yield from _nodes(body, functions)
            continue
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(graph.node, functions)
