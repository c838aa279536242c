"""Decompose operators whose CPU kernels are slow, and merge nodes to save dispatch time."""

TARGETS = ("cpu",)

ORDER = (
    "decompose_activations",
    "decompose_lpnorm",
    "decompose_skip_layernorm",
    "decompose_slow_kernels",
    "merge_small_operators",
    "reduce_to_matmul",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
