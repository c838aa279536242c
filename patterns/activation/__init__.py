"""Activations spelled out, with and without bias."""

ORDER = (
    "clip",
    "gelu",
    "hard_sigmoid",
    "rectifier",
    "sigmoid",
    "softplus",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
