"""Feed-forward blocks: two linear layers, and gated linear units."""

ORDER = (
    "feed_forward",
    "glu",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
