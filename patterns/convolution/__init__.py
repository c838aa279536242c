"""Convolutions and what stands around them."""

ORDER = (
    "adapter",
    "branches",
    "causal",
    "channels",
    "enlarged",
    "epilogue",
    "flat",
    "framed",
    "fused",
    "joined",
    "moved",
    "normalised",
    "padding",
    "patches",
    "pooled",
    "products",
    "projected",
    "prologue",
    "respelled",
    "sequence",
    "shuffle",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
