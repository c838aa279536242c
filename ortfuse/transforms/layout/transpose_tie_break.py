"""Choose among positions of a Transpose that transpose equally many elements.

With quantised pairs, a position is

- best behind a convolution, which the runtime then computes with channels last;
- better between a QuantizeLinear and its DequantizeLinear, where it moves bytes;
- worse on the other side of either, where it separates it from the operator that the runtime computes in integers with it.

A position is also worse if it separates a convolution from nodes that fuse with it. These are arithmetic with constants, also
between other such arithmetic before it, and an activation behind it.

Otherwise a position beside a convolution is better, since the runtime combines the Transpose with the conversion from or to its
blocked layout. Else the best position has no more axes than the target transposes fast. Axes that a Reshape splits behind it, or
merged before it, need not be moved one by one. Rules look there for the Transposes of their operators.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import ACTIVATES, MICROSOFT, has

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", f"{MICROSOFT}.FusedConv"})
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_BEHIND = ACTIVATES | {"BatchNormalization"}

_TRANSPOSE = frozenset({"Transpose"})
_QUANTISES = frozenset({"QuantizeLinear", f"{MICROSOFT}.QuantizeLinear"})
_DEQUANTISES = frozenset({"DequantizeLinear", f"{MICROSOFT}.DequantizeLinear"})

_MOST_BEYOND = 7
"""How many axes count beyond those that the target transposes fast, several times as fast as more of them."""


def axes_beyond(source: ir.Value, facts: Facts, fast_axes: int | None) -> int:
    """How many axes more than is fast a Transpose there has; in units of a price for each of its elements.

    `fast_axes` is how many are fast on the target; `None` if that is not known.
    """
    return 0 if fast_axes is None else min(max(0, (facts.rank(source) or 0) - fast_axes), _MOST_BEYOND)


def disadvantage(source: ir.Value, transposed: Iterable[ir.Value], facts: Facts) -> int:
    """1 if a Transpose there keeps a convolution or a quantised pair apart from something, below 0 where it is better, else 0."""
    maker = source.producer()
    readers = [use for value in transposed for use in value.uses()]
    if maker is not None and has(maker, _QUANTISES):
        above = maker.inputs[0].producer() if maker.inputs[0] is not None else None
        return -2 if above is not None and has(above, _CONVOLUTIONS) else -1
    if (maker is not None and has(maker, _DEQUANTISES)) or any(has(use.node, _QUANTISES) for use in readers):
        return 1
    if maker is not None and has(maker, _CONVOLUTIONS):
        return 1 if any(has(use.node, _BEHIND) or _has_constant(use.node, facts) for use in readers) else -1
    arithmetic = maker is not None and _has_constant(maker, facts)
    if not any(use.idx == 0 and has(use.node, _CONVOLUTIONS) for use in readers):
        return 1 if arithmetic and any(_leads_to_convolution(use.node, facts) for use in readers) else 0
    return 1 if arithmetic else -1


def _leads_to_convolution(node: ir.Node, facts: Facts) -> bool:
    """Whether arithmetic with constants leads to a convolution, which may take in part of it, and so of what stands before."""
    if not _has_constant(node, facts):
        return False
    while (has(node, _TRANSPOSE) or _has_constant(node, facts)) and len(node.outputs[0].uses()) == 1:
        (use,) = node.outputs[0].uses()
        if use.idx == 0 and has(use.node, _CONVOLUTIONS):
            return True
        node = use.node
    return False


def _has_constant(node: ir.Node, facts: Facts) -> bool:
    return has(node, _ARITHMETIC) and any(facts.is_const(value) for value in node.inputs)
