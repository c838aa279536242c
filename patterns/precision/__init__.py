"""Rules that lower the precision of a site: `ortfuse quantize` chooses among them under a bound on the error.

Each is lossy, and says by its definition what it does to the values. No pipeline applies them.
"""

PASS = "precision"
