"""Merge equal weights: tied weights that exporters copied, and constants of functions called twice."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.transforms.cleanup.find_equal_initializers import TensorPool, can_be_shared

LARGE = 1024
"""Constants of fewer numbers stay apart: whether such a number hides scores, or is a bound, depends on all that uses it."""


def merge_equal_weights(model: ir.Model) -> None:
    """Let what uses one of several equal initializers use the first of its graph, and remove the others.

    Args:
        model: The model, which is changed. Tensors that are alone of their type and shape are not read.
    """
    for graph in walk.nested(model.graph):
        pool = TensorPool()
        for name, value in list(graph.initializers.items()):
            if value.const_value is None or value.const_value.size < LARGE or not can_be_shared(value):
                continue
            first = pool.first_equal(value)
            if first is not value:
                value.replace_all_uses_with(first)
                del graph.initializers[name]
