"""The rules that bring a graph to its normal form."""

PASS = "canonicalize"

ORDER = (
    "assigned",
    "batch",
    "broadcast",
    "casts",
    "compared",
    "computed",
    "counted",
    "lookups",
    "noop",
    "parts",
    "places",
    "reduction",
    "repeated",
    "reversal",
    "shapes",
    "sliced",
    "stacked",
    "sums",
    "truths",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
