"""Replace Loops and Scans by one operator."""

ORDER = ("scan_to_reduce",)
"""The files in the order in which they are tried; those that are not named come last, by name."""
