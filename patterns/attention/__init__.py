"""Attention: the operator, its masks, its heads, its caches."""
