"""Loops and Scans that an operator computes at once."""

ORDER = ("scan_to_reduce",)
"""The files in the order in which they are tried; those that are not named come last, by name."""
