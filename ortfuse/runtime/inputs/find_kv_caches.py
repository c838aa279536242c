"""Find the caches among a model's inputs: keys and values (or states) of earlier steps, to which a step appends."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import symbols

_PASTS = {"Attention": (4, 5), "MultiHeadAttention": (6, 7), "DecoderMaskedMultiHeadAttention": (5, 6)}
"""The inputs of attention operators that take a cache, with the length on the axis before the last."""


def caches_of(graph: ir.Model) -> frozenset[str]:
    """The names of the lengths of caches, which may be 0: open sizes on whose axis a model only appends to an input."""
    facts = Facts(graph)
    lengths, others = set[str](), set[str]()
    for value in graph.graph.inputs:
        for axis, dim in enumerate(facts.shape(value) or ()):
            named = symbols(dim)
            if len(named) == 1 and {str(dim)} == named:
                (lengths if _is_appended_to(value, axis) else others).update(named)
    return frozenset(lengths - others)


def _is_appended_to(value: ir.Value, axis: int) -> bool:
    """Whether all that is done with an input is to append to it on an axis, and to ask for its sizes."""
    uses = [use for use in value.uses() if use.node.op_type != "Shape"]
    return bool(uses) and all(_appends(use.node, use.idx, axis, value) for use in uses)


def _appends(node: ir.Node, index: int, axis: int, value: ir.Value) -> bool:
    rank = len(value.shape or ())
    if node.op_type == "Concat" and not node.domain:
        given = node.attributes.get_int("axis", 0)
        return given % rank == axis if given is not None else False
    return index in _PASTS.get(node.op_type, ()) and axis == rank - 2
