"""Constraints of the WebGPU kernels beyond their registered types, found by trying.

Tried with onnxruntime-node 1.30.0 on SwiftShader, and right in float32: MatMulNBits of 4 bits for 1 to 128 rows, which
computes accuracy level 4 as exactly as level 0; BiasSplitGelu; SkipLayerNormalization. No kernel could be tried in float16:
SwiftShader lacks it, and the runtime then refuses to execute the model ("requires f16 but the device does not support it").

GroupQueryAttention is right with rotary embeddings, windows, biases, sinks and scales, with prompts of several lengths in a
batch, and with heads of 8 to 128 elements. It ignores `softcap`, and fails on caches of 8-bit integers.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import upper_bound
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.attention_constraints import bias_has_all_rows
from ortfuse.targets.kernel_constraints import Limit, Limits, attribute_limit, input_limit, shape_words
from ortfuse.targets.known_bugs import KnownBug


class WebGPUBug(KnownBug):
    """The known bugs of the WebGPU provider."""

    SHARES_PROGRAMS_OF_AND = (
        "executes an And that broadcasts by the program compiled for another one, which broadcasts other axes, "
        "so that its results are wrong"
    )


FEWEST_TILED_QUERIES = 32
"""Queries from which on the kernels of attention compute tiles of them together."""


def _few_queries(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse what may be computed in tiles: the results are wrong on devices with few threads in a subgroup.

    Found with onnxruntime-node 1.30.0 on SwiftShader, whose subgroups have 4: of 32 queries and more, outputs are off by as much
    as they are; of 31 they are right.
    """
    shape = facts.shape(node.inputs[0])
    most = upper_bound(shape[1]) if shape is not None and len(shape) > 1 else None
    if most is not None and most < FEWEST_TILED_QUERIES:
        return None
    needed = (
        f"fewer than {FEWEST_TILED_QUERIES} queries, as more are computed wrongly on devices with 4 threads in a subgroup; "
        "the target webgpu-gpu, which is for GPUs alone, takes more"
    )
    return input_limit(node, 0, "query", shape_words(shape), needed)


_NOT_TAKEN = {
    "softcap": (0.0, "none, which it would ignore"),
    "k_quant_type": ("NONE", "keys that are floating-point numbers"),
    "v_quant_type": ("NONE", "values that are floating-point numbers"),
}
"""Attributes of GroupQueryAttention of which the kernel takes a single value."""


def _grouped_query(node: ir.Node, facts: Facts) -> Refusal | None:
    for name, (only, needed) in _NOT_TAKEN.items():
        attribute = node.attributes.get(name)
        if attribute is not None and (attribute.is_ref() or attribute.value != only):
            return attribute_limit(node, name, attribute.value, needed)
    return None


CONSTRAINTS_OF_GPUS: Limits = {
    (MICROSOFT, "MultiHeadAttention"): bias_has_all_rows,
    (MICROSOFT, "GroupQueryAttention"): _grouped_query,
}
"""Constraints on each device."""


def _on_all_devices(limit: Limit) -> Limit:
    return lambda node, facts: limit(node, facts) or _few_queries(node, facts)


CONSTRAINTS: Limits = {operator: _on_all_devices(limit) for operator, limit in CONSTRAINTS_OF_GPUS.items()}
"""Constraints so that results are right on all devices."""
