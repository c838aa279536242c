"""Hoist data movement above the operators before it: what an operator becomes whose result is needed in another shape."""
