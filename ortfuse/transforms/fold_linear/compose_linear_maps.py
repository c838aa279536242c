"""Compose linear maps of channels: scales and shifts with each other, and with the weights of the layers around them.

    bn(conv(x))  =  conv'(x)        gemm(x * s + t)  =  gemm'(x)        (x * a + b) * c  =  x * a' + b'

*Transforms:* diagonal maps (Mul, Div, Add, Sum, Sub and Neg with constants, BatchNormalization) and layers with constant weights
(Conv, ConvTranspose, FusedConv, MatMul, Gemm), next to each other or with data movement, means, maxima and Resize between them.
Also Pad before convolutions and pools, and Slice behind convolutions.

*Requires:* constants that are finite and of one channel each, and whatever `guards` tells: weights of no other user or small,
results that the type holds, no padded zeros that an offset would miss.

*Does not handle:* maps of several channels of which only some are read elsewhere too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.linear_maps import LAYERS, Diagonal, diagonal_of, layer_of
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear.fold_channel_movement import (
    SELECTIONS,
    fold_movement_of_inputs,
    fold_selection_of_outputs,
)
from ortfuse.transforms.fold_linear.fold_diagonals import NAME, fold_into_consumers, fold_into_producers
from ortfuse.transforms.fold_linear.fold_padding import fold_padding, fold_trimming
from ortfuse.transforms.fold_linear.merge_diagonals import merge_chain
from ortfuse.transforms.fold_linear.merge_layers import merge_concat, merge_consecutive
from ortfuse.transforms.fold_linear.merge_moved_layers import merge_moved
from ortfuse.transforms.fold_linear.merge_sums import merge_sum
from ortfuse.transforms.fold_linear.sink_diagonals_below_concat import sink_below_concat

MOST_SWEEPS = 8
"""The most times that a graph is swept; the next round of a fixpoint does what is left."""

OF_LAYERS = frozenset({"Add", "Sub", "Concat", *SELECTIONS})
"""The operators that add, join or select layers."""

Step = Callable[[Diagonal, Scope, Context], "Refusal | bool"]


@dataclass(frozen=True)
class ComposeLinearMaps:
    """Compose scales and shifts with each other and with the weights of the layers around them.

    Attributes:
        behind_movement: Fold only numbers of several channels, and only into products whose results are moved before. Attention
            whose heads are scaled is fused after that.
    """

    name: ClassVar[str] = NAME
    behind_movement: bool = False

    def run(self, context: Context) -> int:
        """Compose until there is nothing left to compose; returns how often."""
        if self.behind_movement:
            return sum(_fold_behind_movement(scope, context) for scope in context.scopes())
        return sum(_compose_all(scope, context) for scope in context.scopes())


def _compose_all(scope: Scope, context: Context) -> int:
    total = 0
    for _ in range(MOST_SWEEPS):
        count = sum(_fold(node, scope, context) for node in list(scope.graph) if node.graph is not None)
        count += sum(_fold_window(node, scope, context) for node in list(scope.graph) if node.graph is not None)
        count += sum(_merge_layers(node, scope, context) for node in list(scope.graph) if node.graph is not None)
        count += sum(_merge(node, scope, context) for node in reversed(list(scope.graph)) if node.graph is not None)
        total += count
        if not count:
            break
    return total


def _fold_window(node: ir.Node, scope: Scope, context: Context) -> bool:
    step = fold_trimming if node.op_type == "Slice" and not node.domain else fold_padding
    return _told(step(node, scope, context), node, context)


def _merge_layers(node: ir.Node, scope: Scope, context: Context) -> bool:
    facts = context.facts
    if node.domain or (LAYERS.of(node) is None and node.op_type not in OF_LAYERS):
        return False
    layer = layer_of(node, facts)
    if layer is not None and _told(fold_movement_of_inputs(layer, scope, context), node, context):
        return True
    if layer is not None and _told(merge_consecutive(layer, scope, context), node, context):
        return True
    if layer is not None and _told(merge_moved(layer, scope, context), node, context):
        return True
    if node.op_type in SELECTIONS:
        return _told(fold_selection_of_outputs(node, scope, context), node, context)
    if node.op_type == "Concat":
        return any(_told(step(node, scope, context), node, context) for step in (merge_concat, sink_below_concat))
    return _told(merge_sum(node, scope, context), node, context)


def _fold(node: ir.Node, scope: Scope, context: Context) -> bool:
    diagonal = diagonal_of(node, context.facts)
    if diagonal is None:
        return False
    return _tried(fold_into_producers, diagonal, scope, context) or _tried(
        fold_into_consumers, diagonal, scope, context
    )


def _fold_behind_movement(scope: Scope, context: Context) -> int:
    total = 0
    for node in list(scope.graph):
        diagonal = diagonal_of(node, context.facts) if node.graph is not None else None
        if diagonal is not None and max(diagonal.factor.size, diagonal.offset.size) > 1:
            total += _told(fold_into_producers(diagonal, scope, context, behind_movement=True), node, context)
    return total


def _merge(node: ir.Node, scope: Scope, context: Context) -> bool:
    diagonal = diagonal_of(node, context.facts, may_broadcast_data=True)
    return diagonal is not None and _tried(merge_chain, diagonal, scope, context)


def _tried(step: Step, diagonal: Diagonal, scope: Scope, context: Context) -> bool:
    """Whether a step was taken; why it was not is a near miss."""
    return _told(step(diagonal, scope, context), diagonal.nodes[-1], context)


def _told(found: Refusal | bool, node: ir.Node, context: Context) -> bool:
    if isinstance(found, Refusal) and context.log.explains(NAME):
        context.log.miss(NAME, node.outputs[0], "guards", 1, found, (node,))
    return found is True
