"""Shape, range, cost and other functions of each operator, in one module per operator family.

Each function is registered by the decorator of its facet: `transfer` (shapes), `ranges`, `columns`, `norms`, `periods`, `bounds`
or `cost`. The analyses look at the registry alone (see `ortfuse.ir.operator_registry`). `ortfuse.analysis.facts` fills it by
importing this package.
"""

from ortfuse.analysis.operators import (
    arithmetic,
    attention_and_rotary,
    cast_and_identity,
    comparison_and_logic,
    concat_and_split,
    control_flow,
    conv_pool_resize,
    creation_and_random,
    expand_and_tile,
    gather_slice_scatter,
    generation_loops,
    matmul,
    normalization_and_softmax,
    pad_and_trilu,
    quantization,
    recurrent,
    reduction_and_cumsum,
    reshape_and_transpose,
    sequence,
    unary_elementwise,
)

__all__ = [
    "arithmetic",
    "attention_and_rotary",
    "cast_and_identity",
    "comparison_and_logic",
    "concat_and_split",
    "control_flow",
    "conv_pool_resize",
    "creation_and_random",
    "expand_and_tile",
    "gather_slice_scatter",
    "generation_loops",
    "matmul",
    "normalization_and_softmax",
    "pad_and_trilu",
    "quantization",
    "recurrent",
    "reduction_and_cumsum",
    "reshape_and_transpose",
    "sequence",
    "unary_elementwise",
]
