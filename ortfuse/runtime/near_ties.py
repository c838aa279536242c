"""Decide whether a differing decision is a near tie: equal values, or values next to a threshold, within rounding.

Operators that decide turn numbers into choices: the largest of several, a step of quantisation, the boxes to keep. Numbers that
differ by rounding are the same to everything else, but not to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.operator_registry import Facet, Key
from ortfuse.ir.traits import MICROSOFT
from ortfuse.runtime.comparison import TOLERANCES, allowed
from ortfuse.runtime.integer_results_before_rounding import before_rounding

Array = np.ndarray[Any, Any]

FEW = 0.01
"""The share of the elements that an integer operator may have off by one step if ties are not known; at least one element."""


def decided(node: ir.Node) -> list[int]:
    """The numbers of the outputs that are decisions; none for operators that only compute."""
    if DECISIONS.of(node) is None:
        return []
    return [*_NOT_FIRST.get((node.domain, node.op_type), (0,))]


def explained(node: ir.Node, operands: Sequence[Array | None], expected: Array, found: Array) -> str | None:
    """Why a decision may be `found` instead of `expected`; empty if they are the same, `None` if nothing explains it.

    Args:
        node: The node that decides.
        operands: What it decides from, in the original.
        expected: The decision of the original.
        found: The other decision.
    """
    if expected.dtype != found.dtype:
        return None
    if expected.shape == found.shape and np.array_equal(expected, found):
        return ""
    return DECISIONS[node.domain, node.op_type](node, operands, expected, found)


def is_integer_operator(node: ir.Node) -> bool:
    """Whether a node computes quantised numbers from quantised numbers."""
    return node.op_type in (_INTEGER if node.domain == MICROSOFT else () if node.domain else _STANDARD_INTEGER)


def is_quantised(node: ir.Node) -> bool:
    """Whether a node's decisions are quantised numbers."""
    return DECISIONS.of(node) is _one_step


def is_one_step(expected: Array, found: Array) -> bool:
    """Whether quantised numbers differ by no more than one step."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    return not expected.size or bool(np.abs(expected.astype(np.int64) - found.astype(np.int64)).max() <= 1)


def _one_of_several(node: ir.Node, operands: Sequence[Array | None], expected: Array, found: Array) -> str | None:
    """ArgMax, ArgMin and TopK: the number at the other index is tied, and no index stands twice."""
    scores = operands[0]
    assert scores is not None
    last = -1 if node.op_type == "TopK" else 0
    axis = node.attributes.get_int("axis", last) or 0
    if expected.shape != found.shape:
        return None
    one, other = expected, found
    if node.op_type != "TopK" and not node.attributes.get_int("keepdims", 1):
        one, other = np.expand_dims(one, axis), np.expand_dims(other, axis)
    if other.min() < 0 or other.max() >= scores.shape[axis]:
        return None
    ordered = np.sort(other, axis=axis)
    if (np.diff(ordered, axis=axis) == 0).any():
        return None
    numbers = [np.take_along_axis(scores, index, axis).astype(np.float64) for index in (one, other)]
    limits = np.take_along_axis(allowed(scores), one, axis)
    with np.errstate(invalid="ignore"):
        tied = (np.abs(numbers[0] - numbers[1]) <= limits) | (numbers[0] == numbers[1])
    return _counted(expected != found, "choices", "between tied numbers") if tied.all() else None


def _side_of_threshold(node: ir.Node, operands: Sequence[Array | None], expected: Array, found: Array) -> str | None:
    """Comparisons: both sides are tied."""
    one, other = operands[0], operands[1]
    if one is None or other is None or expected.shape != found.shape:
        return None
    margin = np.abs(one.astype(np.float64) - other.astype(np.float64)) - (allowed(one) + allowed(other))
    wrong = expected != found
    return (
        _counted(wrong, "comparisons", "of tied numbers")
        if (np.broadcast_to(margin, wrong.shape)[wrong] <= 0).all()
        else None
    )


def _nearest_whole(node: ir.Node, operands: Sequence[Array | None], expected: Array, found: Array) -> str | None:
    """Round, Floor, Ceil and casts to integers: the number lies next to where the result changes."""
    numbers = operands[0]
    if numbers is None or expected.shape != found.shape or numbers.dtype.kind not in "fV":
        return None
    wide, wrong = numbers.astype(np.float64), expected != found
    steps = np.abs(expected.astype(np.float64) - found.astype(np.float64))[wrong]
    shift = 0.5 if node.op_type == "Round" else 0.0
    near = np.abs(wide + shift - np.round(wide + shift)) <= allowed(numbers)
    return (
        _counted(wrong, "numbers", "next to where they are cut off")
        if near[wrong].all() and (steps <= 1).all()
        else None
    )


def _one_step(node: ir.Node, operands: Sequence[Array | None], expected: Array, found: Array) -> str | None:
    """Quantised numbers are off by one step, and lie next to where that begins; where that is not known, few are off."""
    if not is_one_step(expected, found):
        return None
    wrong = expected != found
    next_to_step = _next_to_step(node, operands, expected)
    if next_to_step is None:
        near = wrong.sum() <= max(1, int(FEW * expected.size))
    else:
        near = next_to_step[wrong].all()
    return _counted(wrong, "quantised numbers", "by one step") if near else None


def _next_to_step(node: ir.Node, operands: Sequence[Array | None], expected: Array) -> Array | None:
    """A mask of the numbers within rounding of the middle of two steps; `None` if it is not known."""
    if is_integer_operator(node):
        found = before_rounding(node, operands)
        return None if found is None or found[0].shape != expected.shape else _in_the_middle(*found)
    numbers = operands[0]
    if numbers is None or numbers.dtype.name not in TOLERANCES or numbers.shape != expected.shape:
        return None
    if node.op_type == "DynamicQuantizeLinear":
        wide = numbers.astype(np.float64)
        scale: Array = np.asarray((max(wide.max(), 0.0) - min(wide.min(), 0.0)) / 255)
    else:
        given = operands[1] if len(operands) > 1 else None
        if given is None:
            return None
        scale = _spread(given.astype(np.float64), node, numbers.shape)
    return _in_the_middle(numbers, scale)


def _in_the_middle(numbers: Array, scale: Array) -> Array:
    """A mask of the numbers within rounding of the middle of two steps, of one size or of a size each."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps, slack = numbers / scale, allowed(numbers) / np.abs(scale)
        return np.asarray(np.abs(steps - np.floor(steps) - 0.5) <= slack)


def _spread(scale: Array, node: ir.Node, shape: Sequence[int]) -> Array:
    """The scales of a quantised tensor, one for all, for each element of an axis or for each block, so that they broadcast."""
    if scale.size == 1:
        return scale.reshape(())
    axis = node.attributes.get_int("axis", 1) or 0
    axis += len(shape) if axis < 0 else 0
    if scale.ndim == 1:
        return scale.reshape([-1 if number == axis else 1 for number in range(len(shape))])
    block = node.attributes.get_int("block_size", 0) or 1
    return np.repeat(scale, block, axis).take(range(shape[axis]), axis)


def _kept_boxes(node: ir.Node, operands: Sequence[Array | None], expected: Array, found: Array) -> str | None:
    """NonMaxSuppression: what is kept is right if scores and overlaps that are next to a threshold may be on either side."""
    boxes, scores = operands[0], operands[1]
    if boxes is None or scores is None or found.ndim != 2 or found.shape[1] != 3:
        return None
    limits = [None if array is None else float(np.ravel(array)[0]) for array in [*operands[2:], None, None, None][:3]]
    most, overlap, least = int(limits[0] or 0), limits[1] or 0.0, limits[2]
    corners = _corners(boxes.astype(np.float64), bool(node.attributes.get_int("center_point_box", 0)))
    slack = allowed(scores)
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            kept = found[(found[:, 0] == batch) & (found[:, 1] == kind)][:, 2]
            known = (corners[batch], scores[batch, kind].astype(np.float64), slack[batch, kind])
            if not _is_suppression(kept, *known, most, overlap, least):
                return None
    same = {tuple(row) for row in expected.tolist()} & {tuple(row) for row in found.tolist()}
    other = len(expected) + len(found) - 2 * len(same)
    return f"{other} of {len(expected)} boxes next to a threshold" if other else "boxes of tied scores in another order"


OVERLAP = 1e-4
"""How far an overlap may be from its threshold to count as being on either side of it."""


def _is_suppression(
    kept: Array, corners: Array, scores: Array, slack: Array, most: int, overlap: float, least: float | None
) -> bool:
    """Whether exactly the boxes are kept that none of a larger score covers, up to rounding."""
    if len(set(kept.tolist())) != len(kept) or (len(kept) and (kept.min() < 0 or kept.max() >= len(scores))):
        return False
    if least is not None and (scores[kept] + slack[kept] < least).any():
        return False
    covers = _overlaps(corners[kept], corners)
    among = covers[:, kept] - np.eye(len(kept))
    if (among > overlap + OVERLAP).any():
        return False
    if len(kept) >= most:
        lowest = min((scores[kept] + slack[kept]).tolist(), default=np.inf)
    else:
        lowest = -np.inf
    for box in set(range(len(scores))) - set(kept.tolist()):
        below = least is not None and scores[box] - slack[box] <= least
        larger = scores[kept] + slack[kept] >= scores[box] - slack[box]
        covered = bool((larger & (covers[:, box] > overlap - OVERLAP)).any())
        if not (below or covered or scores[box] - slack[box] <= lowest):
            return False
    return True


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as their lower and upper corners."""
    if centred:
        centres, extents = boxes[..., :2], np.abs(boxes[..., 2:])
        return np.concatenate([centres - extents / 2, centres + extents / 2], axis=-1)
    return np.concatenate(
        [np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], axis=-1
    )


def _overlaps(some: Array, others: Array) -> Array:
    """The area that each of some boxes shares with each other one, by the area that both cover."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=-1)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1) for boxes in (some, others)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def _counted(wrong: Array, what: str, how: str) -> str:
    return f"{int(wrong.sum())} of {wrong.size} {what} {how}"


_STANDARD_INTEGER = frozenset({"QLinearConv", "QLinearMatMul"})

_INTEGER = _STANDARD_INTEGER | {
    "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
    "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
}  # fmt: skip
"""Operators whose operands and result are quantised; those that are not of ai.onnx are of the runtime's own domain."""

Explain = Callable[[ir.Node, Sequence[Array | None], Array, Array], str | None]

DECISIONS: Facet[Explain] = Facet("decision", "why a decision may come out in another way: a tie, a threshold, a step")

_NOT_FIRST: Mapping[Key, Sequence[int]] = {("", "TopK"): (1,), ("", "DynamicQuantizeLinear"): (0, 2)}
"""The numbers of the outputs that are decisions, if that is not the first one."""

DECISIONS.register("ArgMax", "ArgMin", "TopK")(_one_of_several)
DECISIONS.register("Less", "LessOrEqual", "Greater", "GreaterOrEqual")(_side_of_threshold)
DECISIONS.register("Round", "Floor", "Ceil", "Cast")(_nearest_whole)
DECISIONS.register("QuantizeLinear", "DynamicQuantizeLinear", f"{MICROSOFT}.QuantizeLinear")(_one_step)
DECISIONS.register(*_STANDARD_INTEGER, *(f"{MICROSOFT}.{name}" for name in _INTEGER))(_one_step)
DECISIONS.register("NonMaxSuppression")(_kept_boxes)
