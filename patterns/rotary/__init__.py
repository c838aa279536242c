"""Rotary position embeddings."""

ORDER = (
    "embedding",
    "halves",
    "shared",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
