"""Lower precision where it is worth it: the places, the rungs that fit there, and what is known of their values."""

from ortfuse.quantization.schemes import Site, lowered, rung_rules, sites

__all__ = ["Site", "lowered", "rung_rules", "sites"]
