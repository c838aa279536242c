"""Lower the precision of sites that gain by it: the sites, the legal schemes, and the ranges of their values."""

from ortfuse.quantization.quantization_sites import Site, lowered, quantization_rules, sites

__all__ = ["Site", "lowered", "quantization_rules", "sites"]
