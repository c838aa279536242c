"""Find the nodes on the paths between two values, the layers among them, and where paths branch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.ir.traits import MICROSOFT, has

FURTHEST = 400
"""The most nodes between the two ends of a block."""

ATTENTION = frozenset(
    {
        "Attention",
        "LinearAttention",
        f"{MICROSOFT}.LinearAttention",
        f"{MICROSOFT}.Attention",
        f"{MICROSOFT}.MultiHeadAttention",
        f"{MICROSOFT}.GroupQueryAttention",
        f"{MICROSOFT}.QAttention",
        f"{MICROSOFT}.DecoderMaskedMultiHeadAttention",
    }
)
CONVOLUTIONS = frozenset({"Conv", "QLinearConv", "ConvInteger", f"{MICROSOFT}.FusedConv"})
MATRICES = frozenset(
    {
        "MatMul",
        "Gemm",
        "MatMulInteger",
        "QLinearMatMul",
        f"{MICROSOFT}.MatMulNBits",
        f"{MICROSOFT}.FusedMatMul",
        f"{MICROSOFT}.FusedGemm",
        f"{MICROSOFT}.DynamicQuantizeMatMul",
        f"{MICROSOFT}.MatMulIntegerToFloat",
        f"{MICROSOFT}.QGemm",
    }
)


@dataclass(eq=False)
class Block:
    """A block that was found.

    Attributes:
        kind: `transformer`, `conformer`, `attention`, `feed-forward`, `bottleneck`, `inverted residual`, `residual`, `branches`,
            `dense`, `cross-stage`, `shuffle`, `convolutions`, `squeeze-and-excite` or `recurrent`.
        start: The value that it starts from, `None` if it has none of its own.
        end: The value that it computes.
        nodes: Its nodes, in no particular order.
        name: Its kind and number.
        sums: Of a residual block, the sums that it ends with, the last first.
    """

    kind: str
    start: ir.Value | None
    end: ir.Value
    nodes: list[ir.Node] = field(repr=False)
    name: str = ""
    sums: tuple[ir.Node, ...] = field(default=(), repr=False)


def path(start: ir.Value, end: ir.Value) -> list[ir.Node]:
    """The nodes between two values, the last first; none if the second is not computed from the first, or too far from it."""
    behind = above(end, start)
    reached: set[ir.Node] = set()
    pending = [start]
    while pending:
        for use in pending.pop().uses():
            if use.node in behind and use.node not in reached:
                reached.add(use.node)
                pending += use.node.outputs
    return _last_first([node for node in behind if node in reached])


def _last_first(nodes: list[ir.Node]) -> list[ir.Node]:
    """The nodes in an order in which none stands behind what it needs."""
    waiting = dict.fromkeys(nodes, 0)
    producers = {
        node: [one for value in node.inputs if value is not None and (one := value.producer()) in waiting]
        for node in nodes
    }
    for found in producers.values():
        for one in found:
            waiting[one] += 1
    ready = [node for node in nodes if not waiting[node]]
    for node in ready:
        for one in producers[node]:
            waiting[one] -= 1
            if not waiting[one]:
                ready.append(one)
    return ready


def above(end: ir.Value, start: ir.Value | None = None) -> dict[ir.Node, None]:
    """The nodes from which a value is computed, the nearest first, as far as a start and at most `FURTHEST`."""
    found: dict[ir.Node, None] = {}
    pending = deque([end])
    while pending and len(found) < FURTHEST:
        value = pending.popleft()
        node = None if value is start else value.producer()
        if node is not None and node not in found:
            found[node] = None
            pending += [operand for operand in node.inputs if operand is not None]
    return found


def common(values: Sequence[ir.Value]) -> ir.Value | None:
    """The value that all are computed from, and through which all else that they share goes; parts are taken for their whole."""
    shared = set(above(values[0])).intersection(*map(above, values[1:]))
    made = {value for node in shared for value in node.outputs}
    last = [value for value in made if not any(use.node in shared for use in value.uses())]
    makers = {value.producer() for value in last}
    maker = makers.pop() if len(makers) == 1 else None
    if maker is not None and maker.op_type == "Split" and not maker.domain:
        return maker.inputs[0]
    return last[0] if len(last) == 1 else None


def layers(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The nodes that are products: convolutions, matrices, attention, recurrent layers."""
    return [
        node
        for node in nodes
        if has(node, CONVOLUTIONS | MATRICES | ATTENTION) or node.op_type in ("LSTM", "GRU", "RNN", "Einsum")
    ]
