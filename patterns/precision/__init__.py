"""Rules that lower the precision of a site: `ortfuse quantize` chooses among them under a bound on the error.

Each is lossy, and says by its definition what it does to the values. No pipeline applies them.
"""

PASS = "precision"

ORDER = (
    "caches",
    "convolution",
    "dynamic",
    "embedding",
    "factors",
    "handed_on",
    "left",
    "pointwise",
    "qdq",
    "recurrent",
    "spelling",
    "split",
    "stacks",
    "static",
    "tidy",
    "weight_only",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
