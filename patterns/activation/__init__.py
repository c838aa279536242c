"""Fuse activations from their formulas, with and without bias."""

ORDER = (
    "clip",
    "gelu_and_swish",
    "hard_sigmoid",
    "relu_variants",
    "sigmoid_and_tanh",
    "softplus_and_softsign",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
