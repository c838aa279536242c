"""Whether values are no less than 0, or no more than 1 either, but for rounding, whatever they are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.einsum_normal_form import Term
from ortfuse.analysis.loop_summary.linear_form import Source
from ortfuse.ir.traits import FILLS, JOINS, MOVES

_DEEPEST = 8
_FRACTIONS = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
_NONNEGATIVE = _FRACTIONS | {"Exp", "Relu", "Abs", "Sqrt", "Softplus"}


class Signs:
    """Answers for values in a body, of which `elements` are elements of values outside."""

    def __init__(self, facts: Facts, elements: Mapping[ir.Value, Source]) -> None:
        self._facts, self._elements = facts, elements

    def of_sum(self, terms: Sequence[Term]) -> bool:
        """Whether a sum of products is no less than 0."""
        if all(self._is_positive(term) for term in terms):
            return True
        # 1 - p
        rest = [term for term in terms if term != Term(1.0, ())]
        return len(rest) == 1 == len(terms) - 1 and -1 <= rest[0].number <= 0 and self._are_fractions(rest[0])

    def _is_positive(self, term: Term) -> bool:
        return term.number > 0 and all(self.is_nonnegative(factor.value) for factor in term.factors)

    def _are_fractions(self, term: Term) -> bool:
        return all(self.is_fraction(factor.value) for factor in term.factors)

    def is_nonnegative(self, value: ir.Value, depth: int = 0) -> bool:
        """Whether the elements of a value are no less than 0."""
        if (is_constant := self._of_constant(value, 0, float("inf"))) is not None:
            return is_constant
        node = self._origin(value)
        if node is None or depth > _DEEPEST:
            return False
        if node.op_type in _NONNEGATIVE or self.is_fraction(value, depth):
            return True
        operands = [operand for operand in node.inputs if operand is not None]
        return node.op_type in ("Mul", "Add") and all(self.is_nonnegative(one, depth + 1) for one in operands)

    def is_fraction(self, value: ir.Value, depth: int = 0) -> bool:
        """Whether the elements of a value are from 0 to 1."""
        if (is_constant := self._of_constant(value, 0, 1)) is not None:
            return is_constant
        node = self._origin(value)
        if node is None or depth > _DEEPEST:
            return False
        operands = [operand for operand in node.inputs if operand is not None]
        if node.op_type == "Mul":
            return all(self.is_fraction(one, depth + 1) for one in operands)
        if node.op_type == "Sub":
            return self._facts.fill(operands[0]) == 1 and self.is_fraction(operands[1], depth + 1)
        return node.op_type in _FRACTIONS

    def _of_constant(self, value: ir.Value, low: float, high: float) -> bool | None:
        if not self._facts.is_const(value):
            return None
        known = self._facts.range(value)
        return known is not None and not known.nan and low <= known.low and known.high <= high

    def _origin(self, value: ir.Value) -> ir.Node | None:
        """The node whose results a value consists of."""
        while True:
            if value in self._elements:
                value = self._elements[value].value
            node = value.producer()
            if node is None or node.domain or node.op_type not in MOVES - JOINS - FILLS or node.inputs[0] is None:
                return None if node is None or node.domain else node
            value = node.inputs[0]
