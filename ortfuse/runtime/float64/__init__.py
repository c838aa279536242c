"""Evaluation in float64: the reference that distinguishes rounding from errors."""
