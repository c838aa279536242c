"""Elements of values at an index, followed down to the caches: through data movement, and attention that appends to a cache.

Index maps (`ortfuse.analysis.index_maps`) describe a whole tensor. Here one index is followed from node to node, so that of
all layers that an output stacks only the one is looked at that the index is in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, Read, Select, leaves, moves_elements
from ortfuse.analysis.index_maps.element_expressions import MOST_PIECES, simplest
from ortfuse.analysis.index_maps.element_expressions import at as moved
from ortfuse.analysis.index_maps.prove_inequalities import is_never_negative
from ortfuse.analysis.index_maps.simplify_formulas import simplified
from ortfuse.ir.dims import DimLike

Index = Sequence[DimLike]


class Elements:
    """Follows elements of values down to caches, or to what is computed.

    Args:
        facts: The facts of the model.
        ends: Values to stop at, such as the caches.
    """

    def __init__(self, facts: Facts, ends: Collection[ir.Value]) -> None:
        self._facts, self._ends = facts, ends
        self._maps: dict[ir.Value, Element | None] = {}

    def at(self, value: ir.Value, index: Index, box: Box) -> Element:
        """The element of a value at an index, in simplest form for the positions of a box.

        Args:
            value: The value.
            index: A formula for each of its axes, of the positions in the box.
            box: The positions.
        """
        return simplest(self._at(value, tuple(index), box), box)

    def _at(self, value: ir.Value, index: tuple[DimLike, ...], box: Box) -> Element:
        while True:
            index = tuple([simplified(one, box) for one in index])
            found = None if value in self._ends else self._step(value, index, box)
            if not isinstance(found, Read):
                return Read(value, index) if found is None else found
            value, index = found.value, found.index

    def _step(self, value: ir.Value, index: tuple[DimLike, ...], box: Box) -> Element | None:
        """The element one node further up, or all the way if that is a choice; `None` for what is computed."""
        node = value.producer()
        if self._facts.is_const(value):
            element = self._whole(value, ())
            return None if element is None else moved(element, index)
        if node is None:
            return None
        if (node.domain, node.op_type) == ("", "Concat"):
            rank = len(index)
            axis = (node.attributes.get_int("axis", 0) or 0) % rank if rank else 0
            return self._one_of([(one, index) for one in node.inputs if one is not None], axis, box)
        if (node.domain, node.op_type) == ("", "Attention"):
            return self._appended(node, value, index, box)
        element = self._map_of(node, value)
        return None if element is None else self._resolved(moved(element, index), box)

    def _resolved(self, element: Element, box: Box) -> Element:
        """An element of the operands of a node, with its conditions decided as far as they can be."""
        if not isinstance(element, Select):
            return element
        condition = simplified(element.condition, box)
        if is_never_negative(condition, box):
            return self._resolved(element.then, box)
        if is_never_negative(-condition - 1, box):
            return self._resolved(element.otherwise, box)
        parts = []
        for part, inside in (
            (element.then, box.where(condition)),
            (element.otherwise, box.where(-condition - 1)),
        ):
            part = self._resolved(part, inside)
            parts.append(self._at(part.value, part.index, inside) if isinstance(part, Read) else part)
        return Select(condition, *parts)

    def _one_of(self, parts: Sequence[tuple[ir.Value, tuple[DimLike, ...]]], axis: int, box: Box) -> Element | None:
        """The element of one of several values that are joined along an axis."""
        (value, index), *rest = parts
        if not rest:
            return Read(value, index)
        shape = self._facts.shape(value)
        if shape is None:
            return None
        condition = simplified(shape[axis] - 1 - index[axis], box)
        if is_never_negative(condition, box):
            return Read(value, index)
        behind = [(other, (*place[:axis], place[axis] - shape[axis], *place[axis + 1 :])) for other, place in rest]
        if is_never_negative(-condition - 1, box):
            return self._one_of(behind, axis, box)
        inside, outside = box.where(condition), box.where(-condition - 1)
        otherwise = self._one_of(behind, axis, outside)
        if otherwise is None:
            return None
        if isinstance(otherwise, Read):
            otherwise = self._at(otherwise.value, otherwise.index, outside)
        found = Select(condition, self._at(value, index, inside), otherwise)
        return found if sum(1 for _ in leaves(found)) <= MOST_PIECES else None

    def _appended(self, node: ir.Node, value: ir.Value, index: tuple[DimLike, ...], box: Box) -> Element | None:
        """The element of all keys or values that attention hands out, [batch, heads, length, size]."""
        number = node.outputs.index(value)
        if number not in (1, 2) or len(node.inputs) < 4 + number:
            return None
        past, new = node.inputs[3 + number], node.inputs[number]
        shape, rank = self._facts.shape(past), self._facts.rank(new)
        if past is None or new is None or shape is None:
            return None
        place = (*index[:2], index[2] - shape[2], index[3])
        if rank == 3:
            place = (place[0], place[2], place[1] * shape[3] + place[3])
        condition = simplified(shape[2] - 1 - index[2], box)
        if is_never_negative(condition, box):
            return Read(past, index)
        if is_never_negative(-condition - 1, box):
            return Read(new, place)
        inside, outside = box.where(condition), box.where(-condition - 1)
        return Select(condition, self._at(past, index, inside), self._at(new, place, outside))

    def _map_of(self, node: ir.Node, value: ir.Value) -> Element | None:
        """The element of a value as one of its node's operands; `None` if the node computes it."""
        if not moves_elements(node, self._facts.dtype):
            return None
        kind = self._facts.dtype(value)
        given = [one for one in node.inputs if one is not None and not self._facts.is_const(one)]
        return self._whole(value, [one for one in given if self._facts.dtype(one) == kind])

    def _whole(self, value: ir.Value, sources: Collection[ir.Value]) -> Element | None:
        """The element of a value at each position, as one of sources or a constant; `None` if it is not known."""
        if value not in self._maps:
            found = self._facts.index_map(value, sources)
            is_own = found is None or any(
                isinstance(leaf, Read) and leaf.value is value for leaf in leaves(found.element)
            )
            self._maps[value] = None if found is None or is_own else found.element
        return self._maps[value]
