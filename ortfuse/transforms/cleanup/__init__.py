"""Constant folding, common subexpression elimination, dead code elimination, and the last step of every pipeline."""
