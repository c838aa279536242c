"""Compose linear maps of channels: scales and shifts with each other, and with the weights of the layers around them.

    bn(conv(x))  =  conv'(x)        gemm(x * s + t)  =  gemm'(x)        (x * a + b) * c  =  x * a' + b'

*Transforms:* diagonal maps (Mul, Div, Add, Sub and Neg with constants, BatchNormalization) and layers with constant weights
(Conv, ConvTranspose, FusedConv, MatMul, Gemm), next to each other or with data movement, means, maxima and Resize between them.

*Requires:* constants that are finite and of one channel each, and whatever `guards` tells: weights of no other user or small,
results that the type holds, no padded zeros that an offset would miss.

*Does not handle:* maps of several channels of which only some are read elsewhere too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.linear_maps import Diagonal, diagonal_of
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear.fold_diagonals import NAME, fold_into_consumers, fold_into_producers
from ortfuse.transforms.fold_linear.merge_diagonals import merge_chain

MOST_SWEEPS = 8
"""The most times that a graph is swept; the next round of a fixpoint does what is left."""

Step = Callable[[Diagonal, Scope, Context], "Refusal | bool"]


@dataclass(frozen=True)
class ComposeLinearMaps:
    """Compose scales and shifts with each other and with the weights of the layers around them."""

    name: ClassVar[str] = NAME

    def run(self, context: Context) -> int:
        """Compose until there is nothing left to compose; returns how often."""
        return sum(_compose_all(scope, context) for scope in context.scopes())


def _compose_all(scope: Scope, context: Context) -> int:
    total = 0
    for _ in range(MOST_SWEEPS):
        count = sum(_fold(node, scope, context) for node in list(scope.graph) if node.graph is not None)
        count += sum(_merge(node, scope, context) for node in reversed(list(scope.graph)) if node.graph is not None)
        total += count
        if not count:
            break
    return total


def _fold(node: ir.Node, scope: Scope, context: Context) -> bool:
    diagonal = diagonal_of(node, context.facts)
    if diagonal is None:
        return False
    return _tried(fold_into_producers, diagonal, scope, context) or _tried(
        fold_into_consumers, diagonal, scope, context
    )


def _merge(node: ir.Node, scope: Scope, context: Context) -> bool:
    diagonal = diagonal_of(node, context.facts)
    return diagonal is not None and _tried(merge_chain, diagonal, scope, context)


def _tried(step: Step, diagonal: Diagonal, scope: Scope, context: Context) -> bool:
    """Whether a step was taken; why it was not is a near miss."""
    found = step(diagonal, scope, context)
    if isinstance(found, Refusal) and context.log.explains(NAME):
        context.log.miss(NAME, diagonal.output, "guards", len(diagonal.nodes), found, diagonal.nodes)
    return found is True
