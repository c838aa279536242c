"""Constant folding, common subexpression elimination, dead code elimination, and the final step of every pipeline."""
