"""The conditions under which linear maps are composed, each with the model that taught it.

A predicate returns `None` or a `Refusal`, which the near misses of `compose_linear_maps` hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, Layer
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import BROADCASTS, COMPARES, ELEMENTWISE, MOVES
from ortfuse.rewrite.magic_number_rounding import rounding_number
from ortfuse.rewrite.pattern.compare_constants_up_to_rounding import EPSILON

Array: TypeAlias = "np.ndarray[Any, Any]"

LARGEST_SHIFT = 256.0
"""The largest offset that is moved behind products: the largest of an image of bytes, and then some."""

MOST_DEVIATIONS = 64.0
"""How many deviations an offset before BatchNormalization may be, which computes x s - mean s and then loses digits."""

MOST_COPIED = 1 << 16
"""The most bytes of weights that are copied because something else needs them as they are."""

LARGEST_SCALED = 1 << 22
"""The most elements of the weight of a product that a factor is multiplied into."""

FEW = 1 << 12
"""The most elements of a constant that is copied although it is used elsewhere."""

NEAR = 16
"""How many values behind a chain are looked at."""

_LARGEST = {
    ir.DataType.FLOAT16: 2.0**10,
    ir.DataType.FLOAT: 2.0**40,
    ir.DataType.BFLOAT16: 2.0**40,
    ir.DataType.DOUBLE: 2.0**300,
}
"""The largest constants of chains that are combined; the smallest factors are the inverse."""


def first(refusals: Iterable[Refusal | None]) -> Refusal | None:
    """Return the first refusal, if there is any."""
    return next((one for one in refusals if one is not None), None)


def is_finite(diagonal: Diagonal) -> Refusal | None:
    """All factors and offsets are finite: a divisor of 0, or a mask of infinities, has no place in weights."""
    if diagonal.is_finite:
        return None
    return refuse("value", _constant(diagonal), needed="finite, and not 0 as a divisor", found="another number")


def rounds_nothing(diagonal: Diagonal, facts: Facts) -> Refusal | None:
    """No number is added that rounds on purpose: fake quantisation that is spelled x + 1.5 * 2^23 - 1.5 * 2^23."""
    for node in diagonal.nodes:
        if (number := rounding_number(node, facts)) is not None:
            found = "so large that it rounds what it is added to"
            return refuse("value", number, found=found, needed="small beside it")
    return None


def offset_is_moderate(diagonal: Diagonal, facts: Facts) -> Refusal | None:
    """x + t is not a small difference of large numbers: coordinates of maps, in metres, lose digits in x W + t W.

    BatchNormalization itself computes x s - mean s, so that nothing is lost that was there.
    """
    if diagonal.statistics is not None or diagonal.is_scale:
        return None
    half = facts.dtype(diagonal.output) not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    limit, largest = 1.0 if half else LARGEST_SHIFT, float(np.abs(diagonal.offset).max())
    if largest <= limit:
        return None
    return refuse("value", _constant(diagonal), found=f"up to {largest:g}", needed=f"offsets of at most {limit:g}")


def reads_no_border(layer: Layer, offset: Array) -> Refusal | None:
    """There is no offset, or no zeros around the input that it does not shift: VGG with padding, normalised images.

    A ConvTranspose has such borders even without padding.
    """
    if not np.any(offset) or not layer.is_padded:
        return None
    found = "an offset before a layer with zeros around its input"
    return refuse("value", layer.data, found=found, needed="without an offset, or convolved without padding")


def quotient_is_held(shift: Diagonal, scale: Diagonal, divided: Array) -> Refusal | None:
    """No factor is 0, and the type holds the offsets divided by the factors."""
    held = (divided == 0) | (np.isfinite(divided) & (np.abs(divided) >= np.finfo(divided.dtype).tiny))
    lost = (divided == 0) & (shift.offset != 0)
    if np.all(held & ~lost) and np.all(scale.factor != 0):
        return None
    return refuse("value", _constant(scale), found="others", needed="factors by which the offset can be divided")


def weights_are_held(layer: Layer, kernel: Array, axis: int, facts: Facts) -> Refusal | None:
    """The type of the weights holds the new ones: not too large and, for no channel, all below its smallest normal number.

    Taught by a network pruned to factors of 1e-38 in its BatchNormalization.

    Args:
        layer: The layer.
        kernel: The new weights [group, output, input, *taps].
        axis: 1 if outputs were scaled, 2 if inputs were.
        facts: The facts.
    """
    dtype = facts.dtype(layer.weight)
    limits = np.finfo(dtype.numpy() if dtype is not None else np.float32)
    others = tuple(number for number in range(1, kernel.ndim) if number != axis)
    largest = np.abs(kernel).max(axis=others, initial=0.0)
    if np.all(largest <= float(limits.max)) and not np.any((largest > 0) & (largest < float(limits.tiny))):
        return None
    return refuse(
        "value", layer.weight, found="others", needed=f"such that {limits.dtype} holds its numbers times the factor"
    )


def bias_is_held(layer: Layer, bias: Array, facts: Facts) -> Refusal | None:
    """The type of the weights holds the new bias."""
    dtype = facts.dtype(layer.weight)
    limits = np.finfo(dtype.numpy() if dtype is not None else np.float32)
    if bool(np.all(np.abs(bias) <= float(limits.max))):
        return None
    return refuse("value", layer.weight, found="another", needed="such that the new bias is finite")


def growth_is_bounded(layer: Layer, diagonal: Diagonal, facts: Facts) -> Refusal | None:
    """The weights have no other user, are small, or are folded alike for each user, as in Siamese networks."""
    others = [use.node for use in layer.weight.uses() if use.node is not layer.node]
    if not others and not layer.weight.is_graph_output():
        return None
    if _bytes(layer.weight, facts) <= MOST_COPIED or all(_is_mapped_alike(diagonal, other, facts) for other in others):
        return None
    return refuse("use", layer.weight, found=f"{len(others)} other nodes", needed="one layer")


def weight_is_small(layer: Layer, facts: Facts) -> Refusal | None:
    """The weight of a product is small: those of language models are streamed from their file as they are."""
    size = math.prod(dim for dim in facts.shape(layer.weight) or () if isinstance(dim, int))
    if not layer.is_product or size <= LARGEST_SCALED:
        return None
    return refuse("needless", layer.weight, found="it is large: it stays as it is in its file")


def are_not_copied(values: Iterable[ir.Value | None], facts: Facts) -> Refusal | None:
    """No large weights are stored twice because they are also used elsewhere."""
    for value in values:
        shared = value is not None and (len(value.uses()) > 1 or value.is_graph_output())
        if value is not None and shared and _bytes(value, facts) > MOST_COPIED:
            return refuse("use", value, found="several", needed="one layer")
    return None


def _bytes(value: ir.Value, facts: Facts) -> int:
    array = value.const_value if value.const_value is not None else facts.const(value)
    return 0 if array is None else array.nbytes


def _is_mapped_alike(diagonal: Diagonal, layer: ir.Node, facts: Facts) -> bool:
    """Whether the same operator with the same constants stands before or behind another use of the weights.

    A bias may stand between. Branches of an If have constants of their own, so that these count by value.
    """
    mapping = diagonal.nodes[-1]
    above = layer.inputs[0].producer() if layer.inputs and layer.inputs[0] is not None else None
    below = [use.node for output in layer.outputs for use in output.uses()]
    biased = [node for node in below if node.op_type == "Add" and any(facts.is_const(value) for value in node.inputs)]
    around = [above, *below, *(use.node for node in biased for use in node.outputs[0].uses())]
    return any(
        node is not None
        and node.op_type == mapping.op_type
        and all(_has(node, one, facts) for one in diagonal.constants)
        for node in around
    )


def _has(node: ir.Node, constant: ir.Value, facts: Facts) -> bool:
    """Whether a node has a constant, or one that is equal, as an operand."""
    wanted = facts.const(constant)
    if constant in node.inputs or wanted is None:
        return constant in node.inputs
    found = [facts.const(value) for value in node.inputs if facts.is_const(value)]
    return any(one is not None and one.dtype == wanted.dtype and np.array_equal(one, wanted) for one in found)


# Chains of diagonal maps


def keeps_infinities(chain: Sequence[Diagonal]) -> Refusal | None:
    """No infinity is taken away from itself: x + x * a is NaN for an infinite x if a < 0, and x * (1 + a) is not."""
    for one in chain:
        if len(one.nodes) > 1 and not np.all(one.factor >= 1):
            return refuse("value", _constant(one), found="below 0", needed="at least 0")
    return None


def are_moderate(chain: Sequence[Diagonal], factor: Array, offset: Array, facts: Facts) -> Refusal | None:
    """Each constant and the results are moderate, so that no product with x overflows or underflows: 1e30 and its inverse."""
    output = chain[-1].output
    largest = _LARGEST.get(facts.dtype(output))  # type: ignore[arg-type]
    if largest is None:
        return refuse("dtype", output, found=facts.dtype(output), needed=set(_LARGEST))
    for one in chain:
        if one.statistics is None and not _is_moderate(one.factor, one.offset, largest):
            needed = f"between {1 / largest:.3g} and {largest:.3g} in size"
            return refuse("value", _constant(one), found="another number", needed=needed)
    if _is_moderate(factor, offset, largest):
        return None
    return refuse("value", output, found="others", needed=f"of constants up to {largest:.3g} when combined")


def _is_moderate(factor: Array, offset: Array, largest: float) -> bool:
    sizes = np.abs(factor)
    return bool(np.all((sizes <= largest) & (sizes >= 1 / largest)) and np.all(np.abs(offset) <= largest))


def constants_stay_small(chain: Sequence[Diagonal], made: Sequence[Array], facts: Facts) -> Refusal | None:
    """The new constants are no larger than the old ones, none of them large and used elsewhere: no outer product."""
    olds = [value for one in chain for value in one.constants]
    for value in olds:
        array = facts.const(value)
        size = 0 if array is None else array.size
        if value.is_graph_output() or (size > FEW and len(value.uses()) > 1):
            return refuse("needless", value, found="it is large, and used elsewhere too")
    sizes = [array.size for value in olds if (array := facts.const(value)) is not None]
    if any(array.size > max(sizes, default=1) for array in made):
        return refuse("needless", chain[-1].output, found="the constants would grow")
    return None


def constants_keep_shape(chain: Sequence[Diagonal], left: Sequence[Array]) -> Refusal | None:
    """The constants that are left broadcast the data as far as the old ones did."""
    if not any(one.broadcasts_data for one in chain):
        return None
    olds = [array.shape for one in chain for array in (one.factor, one.offset)]
    if np.broadcast_shapes(*olds) == np.broadcast_shapes(*(array.shape for array in left)):
        return None
    return refuse("shape", chain[-1].output, found="larger", needed="what the constants that are left broadcast to")


def decides_nothing(value: ir.Value, facts: Facts) -> Refusal | None:
    """No node close behind rounds the result to an integer or compares it: buckets of relative positions (T5)."""
    pending, seen = [value], 0
    while pending and seen < NEAR:
        seen += 1
        for node in pending.pop(0).consumers():
            if _decides(node, facts):
                return refuse("use", value, needed="numbers", found=f"{node.op_type}, which decides by it")
            if node.op_type in BROADCASTS | ELEMENTWISE | MOVES:
                pending += node.outputs
    return None


def _decides(node: ir.Node, facts: Facts) -> bool:
    """Whether a node makes integers or truth values of numbers."""
    if node.op_type in ("Floor", "Ceil", "Round", "Sign", "Mod") or node.op_type in COMPARES:
        return True
    dtype = facts.dtype(node.outputs[0]) if node.op_type in ("Cast", "CastLike") else None
    return dtype is not None and not dtype.is_floating_point()


def takes_nothing_away(chain: Sequence[Diagonal], facts: Facts) -> Refusal | None:
    """No large number is added and subtracted again, which rounds x on purpose."""
    dtype = facts.dtype(chain[-1].output)
    least = 1 / math.sqrt(EPSILON[dtype])  # type: ignore[index]
    total, largest = np.zeros(()), np.zeros(())
    for one in chain:
        total = total * one.factor + one.offset
        largest = np.maximum(largest * np.abs(one.factor), np.abs(one.offset))
    if np.any((largest >= least) & (4 * np.abs(total) < largest)):
        return refuse("value", _constant(chain[0]), found="a large number", needed="not taken away again")
    return None


def shift_is_small(chain: Sequence[Diagonal], facts: Facts) -> Refusal | None:
    """x + a, which is exact for x near -a, is not much smaller than a, nor is its product: digits lost in a b would be missed."""
    begun = chain[0]
    if begun.is_scale or not begun.is_shift or begun.statistics is not None or all(one.is_shift for one in chain[1:]):
        return None
    single = facts.dtype(begun.output) in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    limit, scaled = LARGEST_SHIFT if single else 1.0, np.abs(begun.offset)
    for one in (begun, *chain[1:]):
        scaled = scaled * np.abs(one.factor)
        if not np.all(scaled <= limit):
            return refuse("value", _constant(begun), found="larger", needed=f"at most {limit:g}, also times the factor")
    return None


def product_fits(output: ir.Value, offset: Array, facts: Facts) -> Refusal | None:
    """In float16 the product with x does not overflow where the sum with the offset would not."""
    if facts.dtype(output) != ir.DataType.FLOAT16 or bool(np.all(np.abs(offset) <= 16)):
        return None
    return refuse("value", output, found="larger", needed="of offsets up to 16 in float16")


def _constant(diagonal: Diagonal) -> ir.Value:
    """The constant that a refusal speaks of."""
    return diagonal.constants[-1] if diagonal.constants else diagonal.output
