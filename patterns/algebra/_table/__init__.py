"""Tables of algebraic identities on numbers and booleans: one file per theme, each sorted by exactness.

`CANONICAL` are those that every graph is brought to at once: they leave fewer nodes and hide nothing from a fusion. The
others, `SIMPLIFYING`, are applied when all fusions are found.
"""

from . import additive, boolean, casts, comparisons, min_max, multiplicative, powers

THEMES = (additive, multiplicative, powers, min_max, comparisons, boolean, casts)
"""The themes, in the order in which their identities are tried."""

ORDER = tuple(theme.__name__.rpartition(".")[2] for theme in THEMES)
