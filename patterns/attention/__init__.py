"""Fuse attention; absorb its masks, heads and caches."""

ORDER = (
    "simplify_key_value_bias",
    "sdpa",
    "fold_query_scale",
    "multi_head_attention",
    "grouped_query_rows_to_heads",
    "five_axis_grouped_query_attention",
    "absorb_heads_and_cache",
    "sdpa_with_fully_masked_rows",
    "sdpa_with_multiplicative_mask",
    "unmasked_to_multi_head_attention",
    "finite_fill_to_additive_mask",
    "additive_mask",
    "attention_sinks",
    "transposed_products",
    "merge_values_under_one_softmax",
    "merge_window_axis_into_batch",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
