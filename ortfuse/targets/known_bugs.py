"""Behaviours of runtimes that deviate from the operator definitions and that rules make allowance for.

A target has the quirks that were found on its provider, or those that its table lists by name. A target without a quirk is
assumed to follow the definitions.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from enum import Enum


class Quirk(Enum):
    """A behaviour of a runtime build."""

    ZEROES_MASKED_ROWS = "gives zeros for a query whose keys are all hidden, where the definition of Attention does not"
    FUSES_SUMS_BEFORE_NORMALISATION = (
        "fuses Add and the normalisation behind it into a kernel that is slower than the two"
    )
    CRASHES_ON_MOVED_BATCH_AXIS = (
        "crashes on a float16 product of a Transpose that moves the first axis behind the batch"
    )
    MERGES_ZEROS_INTO_MAX_POOL = (
        "merges a Pad with zeros into MaxPool, whose own padding is lower than any number, "
        "so that maxima of 0 become negative"
    )
    ROUNDS_FACTORS_OF_PRODUCTS = "rounds the factor of a float64 product to float32, so that its result is as far off"
    MERGES_QUANTISED_PAIRS = "makes one of two quantised pairs next to each other, with a scale of its own"
    TURNS_SIGNED_PAIRS = (
        "makes signed quantised pairs unsigned, but not all of them, and not the attribute that names their type"
    )
    COMPUTES_HALF_IN_FLOAT32 = (
        "computes float16 in float32, between Casts of its own, except in its Attention, which rounds the scores"
    )
    LOSES_ABSENT_ZERO_POINTS = (
        "moves signed quantised pairs and makes them unsigned, but a DequantizeLinear without a zero point stays without one, "
        "so that its results are off"
    )
    LOSES_TRANSPOSITION_BEFORE_VECTOR = (
        "leaves out the Transpose of a matrix that is multiplied by a vector, so that the results are others"
    )
    UNBLOCKS_RESIDUAL_CONVOLUTIONS = "leaves its blocked layout for a convolution that adds what is not blocked"


DEFECTS = frozenset(
    {
        Quirk.MERGES_ZEROS_INTO_MAX_POOL,
        Quirk.CRASHES_ON_MOVED_BATCH_AXIS,
        Quirk.ROUNDS_FACTORS_OF_PRODUCTS,
        Quirk.LOSES_ABSENT_ZERO_POINTS,
        Quirk.LOSES_TRANSPOSITION_BEFORE_VECTOR,
    }
)
"""Those by which the runtime's own optimisations go wrong on right models; users are told where that is avoided."""

_FOUND: Mapping[str, frozenset[Quirk]] = {"CPUExecutionProvider": frozenset(Quirk)}

_ON_X86 = frozenset({Quirk.TURNS_SIGNED_PAIRS})
"""Those of processors whose fast integer kernels take unsigned activations."""


def quirks_of(provider: str, machine: str = "") -> frozenset[Quirk]:
    """The quirks that were found on a provider, on a kind of machine as `platform.machine` names it; by default this one."""
    found = _FOUND.get(provider, frozenset())
    return found if (machine or platform.machine()).lower() in ("x86_64", "amd64", "x86", "i686") else found - _ON_X86
