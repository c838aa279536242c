"""Correctness: rule tests, the conformance grid, the standard's own tests, random models, and other tools."""
