"""Passes that bring shape arithmetic, data movement and calls to canonical form."""
