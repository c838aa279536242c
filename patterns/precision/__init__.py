"""Lower the precision of a site: `ortfuse quantize` chooses among these schemes under a bound on the error.

Each rule is lossy, and its definition says how it changes the values. No pipeline applies them.
"""

PASS = "precision"

ORDER = (
    "quantize_kv_cache_to_int8",
    "static_int8_conv",
    "dynamic_int8_matmul",
    "quantize_embedding_tables",
    "fold_smoothing_into_normalization",
    "fuse_qlinear_operators",
    "quantize_left_hand_weights",
    "dynamic_int8_pointwise_conv",
    "insert_qdq",
    "dynamic_int8_lstm",
    "gemm_to_matmul_and_add",
    "two_part_int8_matmul",
    "quantize_stacked_weights",
    "static_int8_matmul",
    "hoist_quantize",
    "weight_only_quantization",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
