"""Lower precision where it is worth it: the places, the schemes that fit there, and what is known of their values."""

from ortfuse.quantization.schemes import Site, lowered, quantization_rules, sites

__all__ = ["Site", "lowered", "quantization_rules", "sites"]
