"""Fusions that are no patterns of one site: repeated attention heads, per-class suppression, unrolled sums."""
