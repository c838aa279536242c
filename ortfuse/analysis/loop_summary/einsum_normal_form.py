"""Express values in the body of a loop as sums of products of other values whose axes have labels.

    S * g + k[:, None] * (v - sum(S * g * k[:, None], 0))   =   g S[k, v]  +  k[k] v[v]  -  k[k] k[j] g S[j, v]

An update or a reading of a state is one sum of such products, whether by MatMul, Einsum or ReduceSum of a product, with
axes of size 1 as needed. Labels are shared: two axes with one label run together, a label that the
value itself lacks is summed over. An axis of size 1 has no label. Only what depends on the state is multiplied out; everything
else is a factor as it is, products apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import dependents
from ortfuse.analysis.node_parameters import parameter
from ortfuse.analysis.transfer.value_fact import Shape

_MOST_TERMS, _MOST_FACTORS = 8, 16

Labels: TypeAlias = tuple[int | None, ...]
"""The label of each axis; `None` for an axis of size 1."""


class NotASumError(Exception):
    """A value is no sum of products of first degree in the state."""


@dataclass(frozen=True)
class Factor:
    """A value, with a label for each of its axes."""

    value: ir.Value
    labels: Labels

    def renamed(self, names: Mapping[int, int]) -> Factor:
        """The factor with other labels."""
        return Factor(self.value, tuple(None if one is None else names.get(one, one) for one in self.labels))


@dataclass(frozen=True)
class Term:
    """A number times factors."""

    number: float
    factors: tuple[Factor, ...]

    def __mul__(self, other: Term) -> Term:
        return Term(self.number * other.number, self.factors + other.factors)


class Algebra:
    """Multiplies out values of a body in terms of one of them, the state.

    `elements` are the values of the body that are elements of values outside.
    """

    def __init__(self, state: ir.Value, elements: Iterable[ir.Value], facts: Facts) -> None:
        self._state, self._elements, self._facts = state, set(elements), facts
        self._fresh = count(1000)
        self._dependent = dependents(state)

    def depends(self, value: ir.Value) -> bool:
        """Whether a value is computed from the state."""
        return value in self._dependent

    def labels(self, value: ir.Value) -> Labels:
        """The places of the axes of a value as their labels."""
        return tuple(None if size == 1 else axis for axis, size in enumerate(self._shape(value)))

    def terms(self, value: ir.Value, labels: Labels) -> list[Term]:
        """The products of which a value is the sum.

        Raises:
            NotASumError: The value is no sum of products, or one of a degree above 1.
        """
        found = self._terms(value, labels)
        if len(found) > _MOST_TERMS or any(len(term.factors) > _MOST_FACTORS for term in found):
            raise NotASumError
        return found

    def _terms(self, value: ir.Value, labels: Labels) -> list[Term]:
        number = self._facts.scalar(value) if self._facts.is_const(value) else None
        if number is not None and math.isfinite(number):
            return [Term(float(number), ())]
        node = value.producer()
        if value is self._state or node is None or node.domain or value.graph is not self._state.graph:
            return self._whole(value, labels)
        if value in self._elements:
            return self._whole(value, labels)
        if node.op_type == "Identity":
            return self.terms(self._operand(node, 0), labels)
        if node.op_type == "Neg":
            return _times([Term(-1.0, ())], self.terms(self._operand(node, 0), labels))
        if node.op_type == "Mul":
            left, right = (self._broadcast(operand, labels) for operand in self._two(node))
            return _times(left, right)
        if node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Transpose", "Expand"):
            return self._moved(node, value, labels)
        if node.op_type == "MatMul":
            return self._product(node, value, labels)
        if node.op_type == "Einsum":
            return self._einsum(node, value, labels)
        return self._dependent_terms(node, labels) if self.depends(value) else self._whole(value, labels)

    def _dependent_terms(self, node: ir.Node, labels: Labels) -> list[Term]:
        """The terms of what is computed from the state, by operators that are no products."""
        if node.op_type in ("Add", "Sum"):
            return [term for operand in node.inputs for term in self._broadcast(_present(operand), labels)]
        if node.op_type == "Sub":
            left, right = (self._broadcast(operand, labels) for operand in self._two(node))
            return left + _times([Term(-1.0, ())], right)
        if node.op_type == "Div":
            number = self._facts.scalar(node.inputs[1])
            if not number:
                raise NotASumError
            return _times([Term(1 / float(number), ())], self._broadcast(self._operand(node, 0), labels))
        if node.op_type == "ReduceSum":
            return self._summed(node, labels)
        raise NotASumError

    def _whole(self, value: ir.Value, labels: Labels) -> list[Term]:
        if value is not self._state and self.depends(value):
            raise NotASumError
        sizes = self._shape(value)
        return [
            Term(1.0, (Factor(value, tuple(None if n == 1 else one for one, n in zip(labels, sizes, strict=True))),))
        ]

    def _broadcast(self, operand: ir.Value, labels: Labels) -> list[Term]:
        """The terms of an operand that is broadcast to a result with these labels."""
        shape = self._shape(operand)
        if len(shape) > len(labels):
            raise NotASumError
        own = labels[len(labels) - len(shape) :]
        return self.terms(operand, tuple(None if size == 1 else one for one, size in zip(own, shape, strict=True)))

    def _moved(self, node: ir.Node, value: ir.Value, labels: Labels) -> list[Term]:
        """The terms of what only moves axes, or makes and drops axes of size 1."""
        operand = self._operand(node, 0)
        before, after = self._shape(operand), self._shape(value)
        if node.op_type == "Transpose":
            perm = parameter(node, "perm", self._facts)
            own = dict(zip(perm, labels, strict=True))
            return self.terms(operand, tuple(own[axis] for axis in range(len(before))))
        if node.op_type == "Expand":
            return self._broadcast(operand, labels)
        if [size for size in before if size != 1] != [size for size in after if size != 1]:
            return self._atomic(value, labels)
        kept = iter([one for one, size in zip(labels, after, strict=True) if size != 1])
        return self.terms(operand, tuple(None if size == 1 else next(kept) for size in before))

    def _atomic(self, value: ir.Value, labels: Labels) -> list[Term]:
        if self.depends(value):
            raise NotASumError
        return self._whole(value, labels)

    def _summed(self, node: ir.Node, labels: Labels) -> list[Term]:
        operand, axes = self._operand(node, 0), parameter(node, "axes", self._facts)
        shape, kept = self._shape(operand), parameter(node, "keepdims", self._facts)
        if not isinstance(axes, tuple | list) or not axes or not all(isinstance(axis, int) for axis in axes):
            raise NotASumError
        rest = iter(labels if kept != 1 else [one for axis, one in enumerate(labels) if axis not in axes])
        summed = {axis: None if shape[axis] == 1 else next(self._fresh) for axis in axes}
        own = tuple(summed[axis] if axis in summed else next(rest) for axis in range(len(shape)))
        return _demanding(self.terms(operand, own), summed.values())

    def _product(self, node: ir.Node, value: ir.Value, labels: Labels) -> list[Term]:
        left, right = self._two(node)
        shapes = self._shape(left), self._shape(right)
        if len(shapes[0]) < 2 or len(shapes[1]) < 2:
            return self._atomic(value, labels)
        inner = None if shapes[0][-1] == 1 else next(self._fresh)
        if inner is not None and not self.depends(value):
            return self._whole(value, labels)
        first = self._broadcast(left, (*labels[:-1], inner))
        second = self._broadcast(right, (*labels[:-2], inner, labels[-1]))
        return _demanding(_times(first, second), [inner])

    def _einsum(self, node: ir.Node, value: ir.Value, labels: Labels) -> list[Term]:
        equation = str(parameter(node, "equation", self._facts)).replace(" ", "")
        taken, arrow, result = equation.partition("->")
        operands = taken.split(",")
        if not arrow or "." in equation or len(set(result)) != len(result):
            return self._atomic(value, labels)
        names: dict[str, int | None] = dict(zip(result, labels, strict=True))
        found, summed = [Term(1.0, ())], []
        for letters, operand in zip(operands, node.inputs, strict=True):
            shape = self._shape(_present(operand))
            if len(set(letters)) != len(letters):
                return self._atomic(value, labels)
            for letter, size in zip(letters, shape, strict=True):
                if letter not in names:
                    names[letter] = None if size == 1 else next(self._fresh)
                    summed.append(names[letter])
                    if size != 1 and not self.depends(value):
                        return self._whole(value, labels)
            own = tuple(None if size == 1 else names[one] for one, size in zip(letters, shape, strict=True))
            found = _times(found, self.terms(_present(operand), own))
        return _demanding(found, summed)

    def _shape(self, value: ir.Value) -> Shape:
        shape = self._facts.shape(value)
        if shape is None:
            raise NotASumError
        return shape

    def _operand(self, node: ir.Node, index: int) -> ir.Value:
        return _present(node.inputs[index])

    def _two(self, node: ir.Node) -> tuple[ir.Value, ir.Value]:
        return self._operand(node, 0), self._operand(node, 1)


def _present(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise NotASumError
    return value


def _times(left: Sequence[Term], right: Sequence[Term]) -> list[Term]:
    return [one * other for one in left for other in right]


def _demanding(terms: list[Term], summed: Iterable[int | None]) -> list[Term]:
    """The terms of a sum over labels, each of which has a factor with each of them: else it would be counted many times."""
    for label in summed:
        if label is not None and not all(any(label in one.labels for one in term.factors) for term in terms):
            raise NotASumError
    return terms
