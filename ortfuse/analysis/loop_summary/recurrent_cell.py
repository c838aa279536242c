"""Recurrent cells: one step of an LSTM, GRU or RNN, found by its formulas in whatever way they are spelled.

    LSTM:  c' = f * c + i * g,  h' = o * tanh(c')        i, f, o = sigmoid(form),  g = tanh(form);  f may be 1 - i
    GRU:   h' = (1 - z) * n + z * h                      z, r = sigmoid(form),     n = tanh(form of x + form of r * h)
    RNN:   h' = tanh(form) or relu(form)                                        or tanh(form of x + r * form of h)

The forms of i and f may have a peephole, a vector times c, and that of o one times c'.

The sums of products are multiplied out, so that n + z * (h - n) is the same. An update gate that keeps what another spelling
replaces, as 1 - i does, is the sigmoid of the negated form. The caller decides which term of a form is the previous h:
within one step, x and h look alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.linear_form import Form, Forms, Offset, Part, Source
from ortfuse.analysis.node_parameters import parameter
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.ir.operator_registry import RECURRENT_ACTIVATIONS
from ortfuse.ir.traits import PRODUCT, SUM

_MOST_MONOMIALS, _DEEPEST = 8, 3

Activation: TypeAlias = tuple[str, float | None, float | None]
"""The operator of an activation, with the attributes that the recurrent operators call alpha and beta."""

_GATES = ("Sigmoid", "HardSigmoid")
_CANDIDATES = tuple(name for _, name in RECURRENT_ACTIVATIONS if name != "HardSigmoid")


@dataclass(frozen=True)
class Gate:
    """An activation of a form: columns of a form behind the node `node`; `peephole` times a state is added to the form."""

    activation: Activation
    form: Form
    node: ir.Node
    peephole: tuple[Offset, ...] = ()
    inner: frozenset[ir.Node] = frozenset()

    @property
    def opposite(self) -> Gate | None:
        """The gate that is 1 minus this one; `None` if that is no gate."""
        if self.activation[0] == "HardSigmoid" and self.activation[2] != 0.5:
            return None  # it is the gate of the negated form only around one half
        return replace(self, form=self.form.times(-1.0), peephole=Form((), self.peephole).times(-1.0).offsets)


@dataclass(frozen=True, eq=False)
class Cell:
    """One step.

    Attributes:
        kind: LSTM, GRU or RNN.
        output: The new hidden state h'.
        gates: The forms, in the order of the operator: i, o, f, c; z, r, h; or the one.
        activations: Those of the operator, in its order.
        memory: The new and the old cell state c of an LSTM.
        hidden: The old hidden state of a GRU.
        reset: The form of h that the reset gate of a GRU multiplies, if it multiplies a form; else it multiplies h itself,
            and `is_reset` is the product.
        peepholes: What i, o and f multiply the cell state by, as sums of vectors.
        inner: The nodes whose results only the step itself may use, without those that compute h' and c'.
    """

    kind: str
    output: ir.Value
    gates: tuple[Form, ...]
    activations: tuple[Activation, ...]
    memory: tuple[ir.Value, ir.Value] | None = None
    hidden: ir.Value | None = None
    reset: Form | None = None
    is_reset: ir.Value | None = None
    peepholes: tuple[tuple[Offset, ...], ...] = ((), (), ())
    inner: frozenset[ir.Node] = field(default_factory=frozenset)


Monomial: TypeAlias = tuple[ir.Value, ...]
_Expansion: TypeAlias = tuple[Counter[Monomial], frozenset[ir.Node]]
"""A value as a sum of products with whole coefficients, and the nodes that were taken apart for it."""


class Cells:
    """Finds the cell whose output a value is."""

    def __init__(self, facts: Facts, elements: Mapping[ir.Value, Source] | None = None) -> None:
        self.facts, self.forms = facts, Forms(facts, elements)
        self._expansions: dict[tuple[ir.Value, int], _Expansion] = {}

    def cell(self, value: ir.Value) -> Cell | None:
        """The cell that has the value as its new hidden state; `None` if there is none."""
        node = value.producer()
        if node is None or node.domain or not self.forms.columns(value):
            return None
        if node.op_type == "Mul":
            return self._lstm(value, node)
        if node.op_type in ("Add", "Sub"):
            return self._gru(value)
        return self._rnn(value) if node.op_type in _CANDIDATES else None

    def _lstm(self, value: ir.Value, node: ir.Node) -> Cell | None:
        for gate, squashed in permutations(node.inputs, 2):
            above = None if squashed is None else squashed.producer()
            if gate is None or above is None or above.domain or above.op_type not in _CANDIDATES:
                continue
            cell = above.inputs[0]
            output = self._gate(gate, _GATES)
            if cell is not None and output is not None:
                found = self._lstm_of(value, output, cell, above)
                if found is not None:
                    return found
        return None

    def _lstm_of(self, value: ir.Value, output: Gate, cell: ir.Value, squash: ir.Node) -> Cell | None:
        terms, inner = self._multiplied_out(cell)
        if not self._are_shaped(terms, value):
            return None
        output = self._with_peephole(output, cell, value)
        for forget, memory, enter, candidate in self._updates(terms):
            new = self._gate(candidate, _CANDIDATES)
            if new is None or any(gate.activation != output.activation for gate in (forget, enter)):
                continue
            i, f = (self._with_peephole(gate, memory, value) for gate in (enter, forget))
            nodes = frozenset({squash, new.node, *inner}).union(*({one.node, *one.inner} for one in (i, output, f)))
            activations = (output.activation, new.activation, _activation(squash, self.facts))
            forms, peepholes = (i.form, output.form, f.form, new.form), (i.peephole, output.peephole, f.peephole)
            return Cell("LSTM", value, forms, activations, memory=(cell, memory), peepholes=peepholes, inner=nodes)
        return None

    def _updates(self, terms: Counter[Monomial]) -> Iterator[tuple[Gate, ir.Value, Gate, ir.Value]]:
        """Return the possible f, c, i and g in terms of the form f * c + i * g."""
        if sorted(map(len, terms)) == [2, 2] and {*terms.values()} == {1}:
            for kept, added in permutations(terms):
                for (forget, memory), (enter, candidate) in _pairs(kept, added):
                    f, i = self._gate(forget, _GATES), self._gate(enter, _GATES)
                    if f is not None and i is not None:
                        yield f, memory, i, candidate
        elif (mixed := _mixed(terms)) is not None:
            gate = self._gate(mixed[0], _GATES)
            if gate is not None and gate.opposite is not None:
                yield gate.opposite, mixed[1], gate, mixed[2]
                yield gate, mixed[2], gate.opposite, mixed[1]

    def _with_peephole(self, gate: Gate, state: ir.Value, value: ir.Value) -> Gate:
        """The gate without a term that is a vector times a state, which is its peephole."""
        for term in gate.form.terms:
            (source, block), node = term, term[0].value.producer()
            if source.axis is not None or block.matrix is not None or block.rows != (0, self.forms.columns(value)):
                continue
            if node is None or node.op_type != "Mul" or node.domain or state not in node.inputs:
                continue
            vector = node.inputs[1 if node.inputs[0] is state else 0]
            if vector is None or not self._are_shaped({(node.outputs[0],): 1}, value):
                continue
            found = self.forms.form((vector, *block.rows)) if self.facts.is_const(vector) else None
            if found is not None and not found.terms:
                rest = Form(tuple(one for one in gate.form.terms if one is not term), gate.form.offsets)
                return replace(gate, form=rest, peephole=found.times(block.factor).offsets, inner=frozenset({node}))
        return gate

    def _gru(self, value: ir.Value) -> Cell | None:
        terms, inner = self._multiplied_out(value)
        mixed = _mixed(terms) if self._are_shaped(terms, value) else None
        gate = None if mixed is None else self._gate(mixed[0], _GATES)
        if mixed is None or gate is None:
            return None
        _, alone, other = mixed
        for new, hidden, update in ((alone, other, gate), (other, alone, gate.opposite)):
            candidate = None if update is None else self._gate(new, _CANDIDATES)
            if update is not None and candidate is not None:
                found = self._gru_of(value, update, candidate, hidden, inner)
                if found is not None:
                    return found
        return None

    def _gru_of(
        self, value: ir.Value, update: Gate, candidate: Gate, hidden: ir.Value, inner: set[ir.Node]
    ) -> Cell | None:
        """The GRU with this candidate, in whose form one term is the reset gate times h, or times a form of h."""
        for term in candidate.form.terms:
            (source, block), node = term, term[0].value.producer()
            if source.axis is not None or node is None or node.op_type != "Mul" or node.domain:
                continue
            for gate, other in permutations(node.inputs, 2):
                reset = None if gate is None else self._gate(gate, _GATES)
                if gate is None or reset is None or other is None or reset.activation != update.activation:
                    continue
                if not self._are_shaped({(gate, other): 1}, value):
                    continue
                rest = Form(tuple(one for one in candidate.form.terms if one is not term), candidate.form.offsets)
                nodes = frozenset({update.node, candidate.node, reset.node, node, *inner})
                activations = (update.activation, candidate.activation)
                gates = (update.form, reset.form)
                size = self.forms.columns(other) or 0
                if block.matrix is None:
                    is_whole = block.factor == 1 and block.rows == (0, size)
                    inside = self.forms.form((other, 0, size)) if is_whole else None
                    if inside is not None and (other is not hidden or self.facts.fill(other) == 0):
                        return Cell("GRU", value, (*gates, rest), activations, hidden=hidden, reset=inside, inner=nodes)
                elif other is hidden:
                    whole = Form((*rest.terms, term), rest.offsets)
                    return Cell(
                        "GRU", value, (*gates, whole), activations, hidden=hidden, is_reset=source.value, inner=nodes
                    )
        return None

    def _rnn(self, value: ir.Value) -> Cell | None:
        gate = self._gate(value, _CANDIDATES)
        if gate is None or not gate.form.terms or gate.node.outputs[0] is not value:
            return None
        return Cell("RNN", value, (gate.form,), (gate.activation,))

    def _gate(self, value: ir.Value, kinds: tuple[str, ...]) -> Gate | None:
        """The form behind an activation of one of these kinds, from which columns may be taken afterwards."""
        part: Part | None = (value, 0, self.forms.columns(value) or 0)
        while part is not None:
            node = part[0].producer()
            if node is not None and not node.domain and node.op_type in kinds and node.inputs[0] is not None:
                form = self.forms.form((node.inputs[0], part[1], part[2]))
                return None if form is None else Gate(_activation(node, self.facts), form, node)
            part = self.forms.part(part)
        return None

    def _are_shaped(self, terms: Mapping[Monomial, int], value: ir.Value) -> bool:
        """Whether all factors provably have the shape of the result; only constants (of a first state) may be repeated."""
        shape, factors = self.facts.shape(value), {factor for term in terms for factor in term}
        return shape is not None and all(
            is_state(factor, shape, self.facts) or (self.facts.is_const(factor) and self.facts.fill(factor) == 0)
            for factor in factors
        )

    def _multiplied_out(self, value: ir.Value) -> tuple[Counter[Monomial], set[ir.Node]]:
        """A value as a sum of products with whole coefficients, and the nodes below it that were taken apart.

        Values that other operators than sums and products read are not expanded.
        """
        found, inner = self._expanded(value)
        return found, {node for node in inner if node is not value.producer()}

    def _expanded(self, value: ir.Value, depth: int = 0) -> _Expansion:
        if (value, depth) not in self._expansions:
            self._expansions[value, depth] = self._newly_expanded(value, depth)
        return self._expansions[value, depth]

    def _newly_expanded(self, value: ir.Value, depth: int) -> _Expansion:
        number = self.facts.scalar(value) if self.facts.is_const(value) else None
        if number and float(number).is_integer():
            return Counter({(): int(number)}), frozenset()
        whole: _Expansion = Counter({(value,): 1}), frozenset()
        node = value.producer()
        if node is None or node.domain or depth > _DEEPEST or (depth and not self._is_private(value)):
            return whole
        if node.op_type not in ("Add", "Sub", "Mul", "Neg"):
            return whole
        operands = [self._expanded(operand, depth + 1) for operand in node.inputs if operand is not None]
        found = _combined(node.op_type, [terms for terms, _ in operands])
        if node.op_type == "Mul" and any(len(term) > 2 for term in found):
            return Counter({tuple(sorted((one for one in node.inputs if one is not None), key=id)): 1}), frozenset(
                [node]
            )
        if len(found) > _MOST_MONOMIALS or any(len(term) > 2 for term in found):
            return whole
        return found, frozenset([node]).union(*(inner for _, inner in operands))

    def _is_private(self, value: ir.Value) -> bool:
        users = [use.node for use in value.uses()]
        return not value.is_graph_output() and all(not user.domain and user.op_type in SUM | PRODUCT for user in users)


def _combined(op_type: str, operands: list[Counter[Monomial]]) -> Counter[Monomial]:
    found: Counter[Monomial] = Counter()
    if op_type == "Mul":
        for left, first in operands[0].items():
            for right, second in operands[1].items():
                found[tuple(sorted((*left, *right), key=id))] += first * second
    else:
        signs = {"Add": (1, 1), "Sub": (1, -1), "Neg": (-1,)}[op_type]
        for sign, operand in zip(signs, operands, strict=True):
            for term, count in operand.items():
                found[term] += sign * count
    return Counter({term: count for term, count in found.items() if count})


def _pairs(kept: Monomial, added: Monomial) -> Iterator[tuple[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]]:
    """Both orders of the factors of two products."""
    for forget, memory in permutations(kept):
        for enter, candidate in permutations(added):
            yield (forget, memory), (enter, candidate)


def _mixed(terms: Counter[Monomial]) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The values z, a and b if terms are a + z * (b - a)."""
    if sorted(map(len, terms)) != [1, 2, 2]:
        return None
    (alone,) = next(term for term in terms if len(term) == 1)
    products = [term for term in terms if len(term) == 2]
    minus, plus = ([term for term in products if (alone in term) is wanted] for wanted in (True, False))
    if len(minus) != 1 or (terms[(alone,)], terms[minus[0]], terms[plus[0]]) != (1, -1, 1):
        return None
    (update,) = set(minus[0]) - {alone} or {alone}
    (other,) = set(plus[0]) - {update} or {update}
    return (update, alone, other) if update in plus[0] else None


def is_state(value: ir.Value, shape: Shape, facts: Facts) -> bool:
    """Whether a value has the shape of a state, [batch, size], or is a constant that has it when it is repeated for each row."""
    found = facts.shape(value)
    if found == shape or found is None or not facts.is_const(value):
        return found == shape
    return len(found) <= 2 and all(
        one in (1, size) for one, size in zip(reversed(found), reversed(shape), strict=False)
    )


def _activation(node: ir.Node, facts: Facts) -> Activation:
    names = RECURRENT_ACTIVATIONS.of(node) or ()
    numbers = [parameter(node, name, facts) for name in names]
    alpha, beta = (*numbers, None, None)[:2]
    return node.op_type, alpha, beta
