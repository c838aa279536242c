"""Fuse attention; absorb its masks, heads and caches."""

ORDER = (
    "key_value_bias",
    "sdpa",
    "query_scale",
    "multi_head_attention",
    "gqa_decode",
    "grouped_query",
    "heads_and_cache",
    "fully_masked_rows",
    "multiplicative_mask",
    "select_kernel",
    "finite_mask_fill",
    "additive_mask",
    "unbroadcast_mask",
    "attention_sinks",
    "transposed_layout",
    "concat_values",
    "window_attention",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
