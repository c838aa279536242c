"""Ranges and other properties of the numbers in a value, computed on demand.

A question (see `ortfuse.analysis.ranges.queries`) is answered by one small function per operator, which asks the same or another
question about the operands. The functions are in `ortfuse.analysis.operators`.
"""
