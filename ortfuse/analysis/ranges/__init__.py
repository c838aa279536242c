"""The numbers that a value can hold, computed only on demand.

A question (see `ortfuse.analysis.ranges.queries`) is answered by one small function per operator, which asks the same or another
question about the operands. The modules here contain these functions, one module per kind of operator.
"""

from ortfuse.analysis.ranges import arithmetic, booleans, data_movement, end_columns, periodicity

__all__ = ["arithmetic", "booleans", "data_movement", "end_columns", "periodicity"]
