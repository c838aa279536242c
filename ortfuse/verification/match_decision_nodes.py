"""Match decision nodes (ArgMax, TopK, comparisons) of two models, by name or, if axes were reordered, by structure.

A Transpose that moves across a QuantizeLinear changes the name and order of the quantised numbers, and not the numbers.
Whether a counterpart is the right one need not be known: what it decides is compared like any other decision.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.runtime.near_ties import decided, is_integer_operator, is_quantised

Array = np.ndarray[Any, Any]

_SAMPLE = 4096
"""The most numbers of a tensor by which orders of its axes are told apart."""


@dataclass(frozen=True)
class Counterpart:
    """A node of the original that decides, and the node that decides the same in the other model.

    Attributes:
        node: The node of the original.
        other: Its counterpart.
        order: Which axes of the original's numbers the axes of the other's are; empty if they are the same.
    """

    node: ir.Node
    other: ir.Node
    order: tuple[int, ...] = ()

    @property
    def decisions(self) -> list[tuple[ir.Value, ir.Value]]:
        """The decision that both make."""
        return list(zip(decisions(self.node), decisions(self.other), strict=True))

    def there(self, array: Any) -> Any:
        """An array of the original as the other model has it."""
        return array.transpose(self.order) if self._is_reordered(array) else array

    def here(self, array: Any) -> Any:
        """An array of the other model as the original has it."""
        return array.transpose(np.argsort(self.order)) if self._is_reordered(array) else array

    def _is_reordered(self, array: Any) -> bool:
        return bool(self.order) and isinstance(array, np.ndarray) and array.ndim == len(self.order)


def decisions(node: ir.Node) -> list[ir.Value]:
    """The decision of a node."""
    return [
        node.outputs[number] for number in decided(node) if number < len(node.outputs) and node.outputs[number].name
    ]


def by_name(original: ir.Model, candidate: ir.Model) -> list[Counterpart]:
    """The original's nodes that decide from numbers, each with its counterpart: of that operator and name of the result."""
    theirs = {value.name: node for node in candidate.graph for value in decisions(node)}
    found = []
    for node in _deciding(original):
        others = [theirs.get(value.name) for value in decisions(node)]
        other = others[0] if others else None
        if other is not None and all(_alike(node, one) for one in others):
            found.append(Counterpart(node, other))
    return found


def by_order(
    original: ir.Model,
    candidate: ir.Model,
    known: Sequence[Counterpart],
    values: Callable[[ir.Model, Sequence[ir.Value]], Mapping[str, Any]],
) -> list[Counterpart]:
    """Nodes of the candidate that quantise, have no counterpart, and whose numbers the original has in another order.

    Args:
        original: The original.
        candidate: The other model.
        known: The counterparts that are known.
        values: What values of a model are in a run of it, by name.
    """
    taken = {pair.other for pair in known}
    ours = [node for node in _deciding(original) if is_quantised(node)]
    theirs = [node for node in _deciding(candidate) if is_quantised(node) and node not in taken]
    if not ours or not theirs:
        return []
    arrays, others = (
        values(model, [decisions(node)[0] for node in nodes])
        for model, nodes in ((original, ours), (candidate, theirs))
    )
    found: list[Counterpart] = []
    for other in theirs:
        array = others[decisions(other)[0].name or ""]
        choices = (
            (_distance(arrays[decisions(node)[0].name or ""], array, order), number, order)
            for number, node in enumerate(ours)
            if _alike(node, other)
            for order in _orders(arrays[decisions(node)[0].name or ""], array)
        )
        best = min(choices, default=None)
        if best is not None:
            found.append(Counterpart(ours[best[1]], other, best[2]))
    return found


def _deciding(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of the main graph that decide from numbers."""
    facts = Facts(model)
    return (node for node in model.graph if decisions(node) and _from_numbers(node, facts))


def _alike(node: ir.Node, other: ir.Node | None) -> bool:
    """Whether a node decides as another one does: by the same operator, or as what an operator on integers is lowered to."""
    if other is None:
        return False
    is_lowered = is_integer_operator(node) and not other.domain and other.op_type == "QuantizeLinear"
    return is_lowered or (node.op_identifier() == other.op_identifier() and len(node.inputs) == len(other.inputs))


def _from_numbers(node: ir.Node, facts: Facts) -> bool:
    """Whether a node decides from floating-point numbers; a Cast only if to integers. Integer operators always round."""
    kinds = [facts.dtype(node.inputs[0]), facts.dtype(decisions(node)[0])]
    if node.op_type == "Cast" and (kinds[1] is None or not kinds[1].is_integer()):
        return False
    return is_integer_operator(node) or (kinds[0] is not None and kinds[0].is_floating_point())


def _orders(array: Array, other: Array) -> Iterable[tuple[int, ...]]:
    """The orders of axes in which an array has the shape and type of another."""
    if array.dtype != other.dtype or sorted(array.shape) != sorted(other.shape):
        return []
    orders = itertools.permutations(range(array.ndim))
    return (order for order in orders if tuple(array.shape[axis] for axis in order) == other.shape)


def _distance(array: Array, other: Array, order: tuple[int, ...]) -> float:
    """The mean difference between some of the numbers of an array in another order and those of another array."""
    one, two = (values.ravel()[:: max(1, values.size // _SAMPLE)] for values in (array.transpose(order), other))
    return float(np.abs(one.astype(np.float64) - two.astype(np.float64)).mean()) if one.size else 0.0
