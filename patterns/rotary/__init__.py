"""Fuse rotary position embeddings."""

ORDER = (
    "rotate_half",
    "rotate_two_parts",
    "unbroadcast_cos_sin",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
