"""Proofs, order, and the standard's own tests, in full."""
