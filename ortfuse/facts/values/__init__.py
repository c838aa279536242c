"""The numbers that a value can hold, computed only on demand.

A question (see `ortfuse.facts.values.ask`) is answered by one small function per operator, which asks the same or another
question about the operands. The modules here contain these functions, one module per kind of operator.
"""

from ortfuse.facts.values import arithmetic, columns, logic, moves, repeats

__all__ = ["arithmetic", "columns", "logic", "moves", "repeats"]
