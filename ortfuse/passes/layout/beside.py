"""Of places for a Transpose that cost the same, some are better.

A Transpose is worse where it keeps a convolution apart from what that would take in: arithmetic with constants, or an activation
behind it. Otherwise it is better beside a convolution, since the runtime does it together with the conversion from or to its
blocked layout.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.traits import MICROSOFT, has

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", f"{MICROSOFT}.FusedConv"})
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_BEHIND = frozenset({"BatchNormalization", "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid"})


def disadvantage(source: ir.Value, transposed: Iterable[ir.Value], facts: Facts) -> int:
    """How bad it is to transpose a value there: 1 if that keeps something apart, -1 beside a convolution, else 0."""
    maker = source.producer()
    readers = [use for value in transposed for use in value.uses()]
    if maker is not None and has(maker, _CONVOLUTIONS):
        return 1 if any(has(use.node, _BEHIND) or _has_constant(use.node, facts) for use in readers) else -1
    if not any(use.idx == 0 and has(use.node, _CONVOLUTIONS) for use in readers):
        return 0
    return 1 if maker is not None and _has_constant(maker, facts) else -1


def _has_constant(node: ir.Node, facts: Facts) -> bool:
    return has(node, _ARITHMETIC) and any(facts.is_const(value) for value in node.inputs)
