"""Multidirectional broadcasting of shapes and of known elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ortfuse.analysis.transfer.value_fact import MAX_ELEMENTS, Element, Elements, Fact, Shape, static_shape, static_size
from ortfuse.ir.dims import broadcast


def broadcast_shapes(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape that `a` and `b` broadcast to; None if a rank is unknown."""
    if a is None or b is None:
        return None
    if a == b or not b:
        return a
    if not a:
        return b
    if len(a) < len(b):
        a, b = b, a
    offset = len(a) - len(b)
    return a[:offset] + tuple([broadcast(x, y) for x, y in zip(a[offset:], b, strict=True)])


def broadcast_all(shapes: Iterable[Shape | None]) -> Shape | None:
    """The shape that all of them broadcast to; None if a rank is unknown."""
    result: Shape | None = ()
    for shape in shapes:
        result = broadcast_shapes(result, shape)
    return result


def map_elements(function: Callable[..., Element], facts: list[Fact], shape: Shape | None) -> Elements | None:
    """`function` applied to the elements of the broadcast operands; None if one of them is not tracked."""
    size = static_size(shape)
    if size is None or size > MAX_ELEMENTS or shape is None:
        return None
    columns: list[Elements] = []
    for fact in facts:
        elements = fact.elements()
        if elements is None:
            return None
        columns.append(elements if len(elements) == size else _spread(elements, fact.shape, shape, size))
    return tuple([function(*row) for row in zip(*columns, strict=True)])


def _spread(elements: Elements, shape: Shape | None, target: Shape, size: int) -> Elements:
    if len(elements) == 1:
        return elements * size
    positions = np.arange(len(elements)).reshape(static_shape(shape) or ())
    return tuple([elements[i] for i in np.broadcast_to(positions, static_shape(target) or ()).reshape(-1)])
