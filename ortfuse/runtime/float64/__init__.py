"""Evaluation in float64: the reference that tells rounding from errors."""
