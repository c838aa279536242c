"""The catalogue: one file per family, each opening with its formulas. The engine discovers the files and never imports them
by name.

A file defines `RULES`, and may name the pass that runs them with `PASS` (by default `fuse.<file name>`). Files whose name
begins with an underscore hold sub-patterns and guards.
"""

ORDER = (
    "activation",
    "affine",
    "apart",
    "attention",
    "bodies",
    "cliffs",
    "columns",
    "convolution",
    "curves",
    "dispatch",
    "einsum",
    "feed_forward",
    "gated",
    "joined",
    "lengths",
    "linear",
    "losses",
    "canonicalize",
    "normalization",
    "powers",
    "precision",
    "products",
    "reduced",
    "rotary",
    "runtime",
    "tables",
    "tidy",
    "unit_axes",
    "vectors",
    "vision",
    "weights",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
