"""Catalogue of rules: one file per family, each opening with its formulas. The engine discovers the files and never
imports them by name.

A file defines `RULES`, and may name the pass that runs them with `PASS` (by default `fuse.<file name>`). Files whose name
begins with an underscore hold sub-patterns and guards.
"""

ORDER = (
    "activation",
    "cpu/decompose_skip_layernorm",
    "attention",
    "control_flow/scan_to_reduce",
    "cpu/decompose_slow_kernels",
    "cpu/reduce_to_matmul",
    "convolution",
    "cpu/decompose_activations",
    "cpu/merge_small_operators",
    "matmul/decompose_einsum",
    "cpu/decompose_lpnorm",
    "matmul/canonicalize_linear_layers",
    "losses",
    "canonicalize",
    "algebra/canonical_identities",
    "normalization",
    "precision",
    "matmul/simplify_matmul",
    "algebra/merge_reductions",
    "rotary",
    "ort_workarounds",
    "data_movement/gather_of_range_to_slice",
    "algebra/simplifying_identities",
    "data_movement/merge_concats",
    "data_movement/unit_dims_of_transpose_and_expand",
    "matmul/vector_matmul_to_row_matmul",
    "vision",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
