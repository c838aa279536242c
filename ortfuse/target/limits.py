"""What kernels of the CPU build refuse although the registry lists them; found by trying (`benchmarks/kernels.py`)."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortfuse.ir.facts import Facts

Limit = Callable[[ir.Node, Facts], "str | None"]
"""`None` if the kernel takes the node, else why not."""


def _has_axes(node: ir.Node, facts: Facts) -> str | None:
    rank = facts.rank(node.inputs[0])
    return f"{node.op_type} needs an input of known rank, at least 1" if not rank else None


def _rank_2_or_3(node: ir.Node, facts: Facts) -> str | None:
    rank = facts.rank(node.inputs[0])
    return None if rank in (2, 3) else f"{node.op_type} takes inputs of rank 2 or 3, not {rank}"


def _mask_covers_queries(node: ir.Node, facts: Facts) -> str | None:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    query, key = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if mask is None:
        return None
    shape = facts.shape(mask)
    if shape is None or query is None or key is None or len(shape) < 2 or len(key) != len(query):
        return "the shape of the attention mask, the query or the key is not known"
    if shape[-2] != query[-2 if len(query) == 4 else 1]:
        return f"the attention mask is broadcast over the queries ({shape[-2]} instead of {query[-2 if len(query) == 4 else 1]})"
    return None


LIMITS: dict[tuple[str, str], Limit] = {
    ("com.microsoft", "FastGelu"): _has_axes,
    ("com.microsoft", "BiasGelu"): _has_axes,
    ("com.microsoft", "SkipLayerNormalization"): _rank_2_or_3,
    ("", "Attention"): _mask_covers_queries,
}
