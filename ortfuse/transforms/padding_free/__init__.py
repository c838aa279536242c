"""Padding-free batches: row-wise nodes run on visible tokens alone."""
