"""Targets that run in Node.js: their kernels, found by trying, and what results for them gain."""
