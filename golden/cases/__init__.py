"""The golden suite's architectures, a module for each family."""

from cases import decoders

CASES = (*decoders.CASES,)
