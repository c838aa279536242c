"""Fusions that no pattern of one site describes: repeated attention heads, per-class NMS, unrolled sums."""
