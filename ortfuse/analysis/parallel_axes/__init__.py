"""Parallel axes: the axes along which a node computes each slice of its results from the same slice of operands.

    y = LayerNormalization(x)          y[:, i] needs x[:, i]                 axis 1 of y is axis 1 of x
    y = MatMul(x, w)                   y[:, i] needs x[:, i] and all of w    axis 1 of y is axis 1 of x, and none of w
    y = Attention(q, k, v, mask)       y[:, i] needs q[:, i], mask[..., i, :], all of k and of v

XLA and Shardy call them parallel dimensions and factors. Selections and splits along such an axis can be hoisted above the node.
Operators whose traits do not tell have an entry in the facet `PARALLEL_AXES`.
"""

from ortfuse.analysis.parallel_axes import attention, movement, products
from ortfuse.analysis.parallel_axes.parallel_axis import PARALLEL_AXES, ParallelAxis, parallel_axis

__all__ = ["PARALLEL_AXES", "ParallelAxis", "attention", "movement", "parallel_axis", "products"]
