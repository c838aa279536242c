"""Known bugs of runtimes that rules work around.

A target has the bugs that its folder states, or those that its table lists by name. A target without a bug is assumed to follow
the definitions. A folder may have bugs of its own, in a subclass of `KnownBug`.
"""

from __future__ import annotations

from enum import Enum


class KnownBug(Enum):
    """A behaviour of a runtime build, in words that follow the runtime's name."""


class Quirk(KnownBug):
    """The behaviours that the rules of ortfuse know."""

    ZEROES_MASKED_ROWS = "gives zeros for a query whose keys are all hidden, where the definition of Attention does not"
    MAY_ZERO_MASKED_ROWS = "may give zeros there, as it is not known which kernel executes Attention"
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
    READS_ABSENT_BIASES = (
        "reads the bias of a LayerNormalization that has none when it looks for attention, which ends the process"
    )
    UNBLOCKS_RESIDUAL_CONVOLUTIONS = "leaves its blocked layout for a convolution that adds what is not blocked"

    INTERPOLATES_LAST_AXES = "interpolates the last two axes alone, and mixes channels of images that have them last"

    LACKS_ATTENTION = "has no kernel of ai.onnx Attention at the opsets that results may have"
    LACKS_ROTARY_EMBEDDING = "has no kernel of ai.onnx RotaryEmbedding at the opsets that results may have"
    LACKS_RMS_NORMALIZATION = "has no kernel of ai.onnx RMSNormalization at the opsets that results may have"


DEFECTS = frozenset(
    {
        Quirk.MERGES_ZEROS_INTO_MAX_POOL,
        Quirk.CRASHES_ON_MOVED_BATCH_AXIS,
        Quirk.ROUNDS_FACTORS_OF_PRODUCTS,
        Quirk.LOSES_ABSENT_ZERO_POINTS,
        Quirk.LOSES_TRANSPOSITION_BEFORE_VECTOR,
        Quirk.READS_ABSENT_BIASES,
    }
)
"""Those by which the runtime's own optimisations go wrong on right models; users are told where that is avoided."""

LACKING = {
    "Attention": Quirk.LACKS_ATTENTION,
    "RotaryEmbedding": Quirk.LACKS_ROTARY_EMBEDDING,
    "RMSNormalization": Quirk.LACKS_RMS_NORMALIZATION,
}
"""Operators that fusions make for any target: rules lower them for a target that has no kernel of theirs."""
