"""The operator LinearAttention of the runtime, for a state of a loop that is handed on linearly.

It keeps a state [batch, heads, key, value], and takes queries, keys and values [batch, runs, heads * size], the logarithm of
the decay and the weight of what is stored. Keys and queries may be the same for all heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortfuse.analysis.loop_summary.einsum_normal_form import Factor, Labels, Term
from ortfuse.analysis.loop_summary.linear_state import LinearState, Reading, Rule
from ortfuse.analysis.loop_summary.value_signs import Signs
from ortfuse.ir.traits import MICROSOFT
from ortfuse.transforms.recurrence.elements_and_counters import OverIterations, UnresolvedError

_RUNS = -1000
"""The label of the axis of the runs."""


class LinearAttention:
    """Builds the operator for one reading of a state, or for none.

    `whole` gives a value of the body over all runs, along a new first axis.
    """

    def __init__(self, linear: LinearState, over: OverIterations, whole: Callable[[ir.Value], ir.Value]) -> None:
        self._linear, self._over, self._whole = linear, over, whole
        self._iteration, self._build, self._facts = over.iteration, over.build, over.facts

    def read(self, reading: Reading | None, always: bool) -> tuple[ir.Value | None, ir.Value]:
        """Return the readings of all iterations, along a new first axis, and the final state.

        `always`: also where the operator is slower than the loop. It is 3 to 90 times as fast (at 16 to 128 keys and 4 to 128
        values), but for states without an axis of values only 0.04 to 0.8 times.

        Raises:
            UnresolvedError: The operator does not take this.
        """
        query = Term(1.0, ()) if reading is None else reading.query
        rule = self._linear.unread() if reading is None else self._linear.rule(reading.key, query)
        if rule is None or query.number == 0:
            raise UnresolvedError(f"the state '{self._linear.state.before.name}' changes in another way")
        if rule.value_axis is None and not always:
            raise UnresolvedError(
                "the operator is slower for states without an axis of values (`vectorize_loops{always=true}`)"
            )
        sizes = [self._linear.shape[axis] for axis in (rule.key_axis, rule.value_axis, *rule.heads) if axis is not None]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise UnresolvedError(f"the sizes of the state '{self._linear.state.before.name}' are not known")
        made = self._operator(rule, query)
        return None if reading is None else self._output(made[0], rule, reading.labels), self._final(made[1], rule)

    def _operator(self, rule: Rule, query: Term) -> Sequence[ir.Value]:
        keys, values = (rule.key_axis, rule.value_axis)
        asked, asked_heads = self._packed([Term(1.0, query.factors)], keys, rule, can_share=True)
        key, _ = self._packed([rule.key], keys, rule, can_share=True)
        value, _ = self._packed(rule.value, values, rule)
        weight = None if rule.weight is None else self._packed([rule.weight], None, rule, can_share=True)[0]
        decay = self._decay(rule)
        heads = self._product(rule.heads)
        attributes = {
            "update_rule": ("gated_delta" if weight else "gated") if decay else "delta" if weight else "linear",
            "q_num_heads": heads if asked_heads else 1,
            "kv_num_heads": heads,
            "scale": query.number,
        }
        inputs = [asked, key, value, self._initial(rule), decay, weight]
        while inputs[-1] is None:
            inputs.pop()
        return self._build.node("LinearAttention", inputs, attributes, 2, domain=MICROSOFT)

    def _packed(
        self, terms: Sequence[Term], last: int | None, rule: Rule, can_share: bool = False
    ) -> tuple[ir.Value, bool]:
        """A sum of terms as [batch, runs, heads * last], and whether it has heads of its own.

        `can_share`: whether one head may stand for all.
        """
        order = (rule.batch, _RUNS, *rule.heads, last)
        labels = {label for term in terms for factor in term.factors for label in self._labels(factor)}
        has_heads = not can_share or not rule.heads or bool(labels & {*rule.heads})
        missing = [
            label not in labels and label is not None and (has_heads or label not in rule.heads) for label in order
        ]
        found = self._sum([self._multiplied(term, order) for term in terms])
        if any(missing):
            found = self._build.node("Expand", [found, self._sizes(order, missing)])[0]
        size = self._size(last) * (self._product(rule.heads) if has_heads else 1)
        return self._build.reshape(found, [0, 0, size]), has_heads

    def _decay(self, rule: Rule) -> ir.Value | None:
        """The logarithm of the decay as [batch, runs, heads] or [batch, runs, heads * key]; `None` if nothing decays."""
        if len(rule.decay) == 1 and rule.decay[0] == Term(1.0, ()):
            return None
        labels = {label for term in rule.decay for factor in term.factors for label in self._labels(factor)}
        last = rule.key_axis if rule.key_axis in labels else None
        order = (rule.batch, _RUNS, *rule.heads, last)
        if not Signs(self._facts, self._iteration.elements).of_sum(rule.decay):
            raise UnresolvedError("what its state is multiplied by is not known to be positive")
        if len(rule.decay) == 1:
            parts = [self._logarithm(factor, order) for factor in rule.decay[0].factors]
            if rule.decay[0].number != 1:
                parts.append(self._number(math.log(rule.decay[0].number)))
            found = self._sum(parts)
        else:
            found = self._logarithm_of(self._sum([self._multiplied(term, order) for term in rule.decay]))
        missing = [label is not None and label not in labels for label in order]
        if any(missing):
            found = self._build.node("Expand", [found, self._sizes(order, missing)])[0]
        size = self._size(last) * self._product(rule.heads)
        return self._build.reshape(found, [0, 0, size])

    def _logarithm(self, factor: Factor, order: Labels) -> ir.Value:
        found = self._logarithm_of(self._over_runs(factor))
        return self._placed(self._in_order(found, factor), self._labels(factor), order)

    def _logarithm_of(self, value: ir.Value) -> ir.Value:
        """The logarithm of a value that is no less than 0, but for rounding: what Exp was applied to, if it was."""
        node = value.producer()
        if node is not None and not node.domain and node.inputs and node.inputs[0] is not None:
            if node.op_type == "Exp":
                return node.inputs[0]
            if node.op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze") and _is_exp(node.inputs[0]):
                return self._build.like(node, [self._logarithm_of(node.inputs[0]), *node.inputs[1:]])
        return self._build.node("Log", [self._build.node("Relu", [value])[0]])[0]

    def _multiplied(self, term: Term, order: Labels) -> ir.Value:
        """The product of a term with its axes in an order, those that it lacks with size 1."""
        values = [self._in_order(self._over_runs(one), one) for one in term.factors]
        found = [self._placed(value, self._labels(one), order) for value, one in zip(values, term.factors, strict=True)]
        if term.number != 1 or not found:
            found.append(self._build.reshape(self._number(term.number), [1] * len(order)))
        result = found[0]
        for other in found[1:]:
            result = self._build.node("Mul", [result, other])[0]
        return result

    def _sum(self, parts: Sequence[ir.Value]) -> ir.Value:
        result = parts[0]
        for part in parts[1:]:
            result = self._build.node("Add", [result, part])[0]
        return result

    def _varies(self, factor: Factor) -> bool:
        return factor.value.graph is self._iteration.body and not self._facts.is_const(factor.value)

    def _over_runs(self, factor: Factor) -> ir.Value:
        """A factor over all runs, or as it is if it is the same in all."""
        if not self._varies(factor):
            if factor.value.graph is not self._iteration.body:
                return factor.value
            if factor.value.const_value is None:
                raise UnresolvedError(f"'{factor.value.name}' is computed in the body")
            return self._build.constant(factor.value.const_value)
        return self._whole(factor.value)

    def _in_order(self, value: ir.Value, factor: Factor | None = None) -> ir.Value:
        """The elements in the order of the runs, or back: a loop may take elements from the last to the first."""
        if not self._iteration.is_reverse or (factor is not None and not self._varies(factor)):
            return value
        return self._over.reversed(value)

    def _labels(self, factor: Factor) -> Labels:
        return (_RUNS, *factor.labels) if self._varies(factor) else factor.labels

    def _placed(self, value: ir.Value, labels: Labels, order: Labels) -> ir.Value:
        """A value with its axes in an order; those that it lacks have size 1."""
        held = [label for label in order if label in labels and label is not None]
        units = [axis for axis, label in enumerate(labels) if label is None]
        perm = [labels.index(label) for label in held] + units
        value = self._build.transpose(value, perm)
        value = self._build.squeeze(value, *range(len(held), len(labels)))
        return self._build.unsqueeze(value, *(place for place, label in enumerate(order) if label not in held))

    def _sizes(self, order: Labels, missing: Sequence[bool]) -> ir.Value:
        """A shape to expand to: the sizes of the axes that are missing, 1 for the others."""
        sizes = [self._known_size(label) if absent else 1 for label, absent in zip(order, missing, strict=True)]
        if all(isinstance(size, int) for size in sizes):
            return self._build.ints([size for size in sizes if isinstance(size, int)])
        return self._build.concat([self._build.ints([n]) if isinstance(n, int) else n for n in sizes], 0)

    def _known_size(self, label: int | None) -> int | ir.Value:
        """The size of an axis: a number, or a vector of it."""
        size = self._iteration.runs if label == _RUNS else self._linear.shape[label or 0]
        if isinstance(size, int):
            return size
        if label == _RUNS:
            return self._over.count()
        return self._build.gather(self._build.node("Shape", [self._linear.state.initial])[0], 0, [label or 0])

    def _size(self, label: int | None) -> int:
        size = 1 if label is None else self._linear.shape[label]
        assert isinstance(size, int)
        return size

    def _product(self, labels: Sequence[int]) -> int:
        return math.prod(map(self._size, labels))

    def _number(self, number: float) -> ir.Value:
        return self._build.constant(ir.tensor([number], ir.DataType.FLOAT))

    def _initial(self, rule: Rule) -> ir.Value | None:
        """The state before the loop as the operator takes it; `None` if it is 0."""
        initial = self._linear.state.initial
        if self._facts.fill(initial) == 0:
            return None
        held = [axis for axis in (rule.batch, *rule.heads, rule.key_axis, rule.value_axis) if axis is not None]
        units = [axis for axis in range(len(self._linear.shape)) if axis not in held]
        sizes = [self._product(rule.heads), self._size(rule.key_axis), self._size(rule.value_axis)]
        moved = self._build.transpose(initial, [*held[:1], *units, *held[1:]] if rule.others else [*units, *held])
        return self._build.reshape(moved, [0 if rule.others else 1, *sizes])

    def _output(self, made: ir.Value, rule: Rule, labels: Labels) -> ir.Value:
        """The results [batch, runs, heads * value] with the runs first and the axes of the reading behind."""
        order = [label for label in (rule.batch, _RUNS, *rule.heads, rule.value_axis) if label is not None]
        sizes = [self._size(axis) for axis in (*rule.heads, rule.value_axis) if axis is not None]
        if not rule.others:
            made = self._build.squeeze(made, 0)
        made = self._build.reshape(made, [*([0] if rule.others else []), 0, *sizes])
        return self._in_order(self._arranged(made, order, (_RUNS, *labels)))

    def _final(self, made: ir.Value, rule: Rule) -> ir.Value:
        """The state after the loop with the axes of the state."""
        order = [axis for axis in (rule.batch, *rule.heads, rule.key_axis, rule.value_axis) if axis is not None]
        sizes = [0 if axis == rule.batch else self._size(axis) for axis in order]
        if not rule.others:
            made = self._build.squeeze(made, 0)
            sizes = [self._size(axis) for axis in order]
        made = self._build.reshape(made, sizes)
        shape = self._linear.shape
        return self._arranged(made, order, [None if size == 1 else axis for axis, size in enumerate(shape)])

    def _arranged(self, value: ir.Value, order: Sequence[int], wanted: Sequence[int | None]) -> ir.Value:
        """A value whose axes are in one order in another, with axes of size 1 put in."""
        held = [label for label in wanted if label is not None]
        value = self._build.transpose(value, [order.index(label) for label in held])
        return self._build.unsqueeze(value, *(place for place, label in enumerate(wanted) if label is None))


def _is_exp(value: ir.Value) -> bool:
    """Whether a value is Exp of something, moved."""
    node = value.producer()
    while node is not None and not node.domain and node.op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze"):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node is not None and not node.domain and node.op_type == "Exp"
