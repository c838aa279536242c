"""Operators through which a map of channels can be moved: each element of the result is a mean or maximum of elements of theirs.

    f mean(x) + t = mean(f x + t)          f max(x) + t = max(f x + t) if f > 0

The elements that are combined agree in their positions along some axes, the channels among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.operator_registry import Facet


@dataclass(frozen=True)
class Carried:
    """The result of a node whose elements are means or maxima of elements of its first operand.

    Attributes:
        axes: For each axis of the operand along which nothing is combined, the same axis of the result.
        is_maximum: Whether they are maxima, which only positive factors keep.
    """

    axes: Mapping[int, int]
    is_maximum: bool = False


Carrier: TypeAlias = Callable[[ir.Node, Facts], "Carried | None"]

CARRIERS: Facet[Carrier] = Facet(
    "carrier", "along which axes the result has means or maxima of elements of the operand"
)


def carried(node: ir.Node, facts: Facts) -> Carried | None:
    """Return how a node combines elements of its first operand; `None` if that is not known."""
    carrier = CARRIERS.of(node)
    if carrier is None or any(one.is_ref() for one in node.attributes.values()):
        return None
    return carrier(node, facts)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: one.value for name, one in node.attributes.items()}


def _is_padded(attributes: Mapping[str, Any]) -> bool:
    return any(attributes.get("pads") or ()) or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")


def _channels() -> dict[int, int]:
    return {0: 0, 1: 1}


@CARRIERS.register("AveragePool")
def average_pool(node: ir.Node, facts: Facts) -> Carried | None:
    """Means of windows, unless zeros that are padded count or one may be of padding alone."""
    found = _attributes(node)
    gaps = any(step != 1 for step in found.get("dilations") or ())
    counts = found.get("count_include_pad") and (_is_padded(found) or found.get("ceil_mode"))
    return None if counts or (gaps and _is_padded(found)) else Carried(_channels())


@CARRIERS.register("MaxPool")
def max_pool(node: ir.Node, facts: Facts) -> Carried | None:
    """Maxima of windows, unless one may be of padding alone, or their indices are asked for."""
    found = _attributes(node)
    gaps = any(step != 1 for step in found.get("dilations") or ())
    if any(output.name for output in node.outputs[1:]) or (_is_padded(found) and (gaps or found.get("ceil_mode"))):
        return None
    return Carried(_channels(), is_maximum=True)


@CARRIERS.register("GlobalAveragePool")
def global_average_pool(node: ir.Node, facts: Facts) -> Carried | None:
    """Means of images."""
    return Carried(_channels())


@CARRIERS.register("GlobalMaxPool")
def global_max_pool(node: ir.Node, facts: Facts) -> Carried | None:
    """Maxima of images."""
    return Carried(_channels(), is_maximum=True)


@CARRIERS.register("ReduceMean", "ReduceMax")
def reduce(node: ir.Node, facts: Facts) -> Carried | None:
    """Means or maxima over known axes."""
    rank, found = facts.rank(node.inputs[0]), _attributes(node)
    axes = found.get("axes")
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        known = facts.ints(node.inputs[1])
        axes = None if known is None else known.elements
    if rank is None or not axes or not all(isinstance(axis, int) for axis in axes):
        return None
    reduced = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in reduced]
    keeps = found.get("keepdims", 1)
    return Carried(
        {axis: axis if keeps else number for number, axis in enumerate(kept)}, is_maximum=node.op_type == "ReduceMax"
    )


@CARRIERS.register("Resize")
def resize(node: ir.Node, facts: Facts) -> Carried | None:
    """Means or copies of pixels, whose weights have the sum 1."""
    before, after = (facts.shape(value) for value in (node.inputs[0], node.outputs[0]))
    return Carried(_channels()) if before is not None and after is not None and leaves_channels(node, facts) else None


def leaves_channels(node: ir.Node, facts: Facts) -> bool:
    """Whether a node makes images of other sizes by means of pixels, or copies of them, of each channel for itself."""
    if node.domain or node.op_type != "Resize" or any(one.is_ref() for one in node.attributes.values()):
        return False
    before, after = (facts.shape(value) for value in (node.inputs[0], node.outputs[0]))
    cropped = _attributes(node).get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if before is None or after is None or cropped or before[:2] != after[:2]:
        return False
    named = _attributes(node).get("axes")
    scales, sizes = ((*node.inputs, None, None)[number] for number in (2, 3))
    if named is not None:
        return all(axis > 1 for axis in named)
    # Of a factor slightly above 1, sizes would not tell.
    factors = None if scales is None else facts.const(scales)
    if scales is not None and factors is None:
        return False
    if factors is not None and factors.size:
        return bool(np.all(factors[:2] == 1))
    return sizes is not None
