"""Constraints of the WebGPU kernels beyond their registered types, found by trying.

Tried with onnxruntime-node 1.30.0 on SwiftShader, and right in float32: MatMulNBits of 4 bits for 1 to 128 rows, which
computes accuracy level 4 as exactly as level 0; BiasSplitGelu; SkipLayerNormalization. No kernel could be tried in float16:
SwiftShader lacks it, and the runtime then refuses to execute the model ("requires f16 but the device does not support it").
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.kernel_constraints import Limits, input_limit, shape_words

FEWEST_TILED_QUERIES = 32
"""Queries from which on the kernels of attention compute tiles of them together."""


def _few_queries(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse what may be computed in tiles: the results are wrong on devices with few threads in a subgroup.

    Found with onnxruntime-node 1.30.0 on SwiftShader, whose subgroups have 4: of 32 queries and more, outputs are off by as much
    as they are; of 31 they are right.
    """
    shape = facts.shape(node.inputs[0])
    length = shape[1] if shape is not None and len(shape) > 1 else None
    if isinstance(length, int) and length < FEWEST_TILED_QUERIES:
        return None
    needed = f"fewer than {FEWEST_TILED_QUERIES} queries, as more are computed wrongly on some devices"
    return input_limit(node, 0, "query", shape_words(shape), needed)


CONSTRAINTS: Limits = {
    (MICROSOFT, "MultiHeadAttention"): _few_queries,
    (MICROSOFT, "GroupQueryAttention"): _few_queries,
}
