"""The rules that bring a graph to its normal form."""

PASS = "canonicalize"
