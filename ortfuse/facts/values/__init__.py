"""What numbers a value can hold, found only when somebody asks.

A question (see `ortfuse.facts.values.ask`) is answered by one small function for each operator, which asks the same or
another question about the operands. The modules here hold those functions, one module for each kind of operator.
"""

from ortfuse.facts.values import arithmetic, columns, logic, moves, repeats

__all__ = ["arithmetic", "columns", "logic", "moves", "repeats"]
