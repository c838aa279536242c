"""Linear states: what a run of a body makes of a state is a multiple of it, plus a product of a key and a value.

    S' = exp(g) S + k (b (v - k exp(g) S))        o = q S'        (k, q: along one axis of S; v: along another)

So do linear attention, RetNet (g constant), Mamba (g for each key and channel, no value axis), the delta rule, and the gated
delta rule, in whatever spelling (see `einsum_normal_form`). The factors that have an axis of the state identify it: keys are what
a reading sums over; values, what neither the decay nor the key nor the query has; the others are the batch and heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.einsum_normal_form import Algebra, Factor, Labels, NotASumError, Term
from ortfuse.analysis.loop_summary.loop_structure import Iteration, State


@dataclass(frozen=True)
class Reading:
    """A value that is a sum over an axis of a state times a query: `key` is the axis, or `None` if nothing is summed."""

    value: ir.Value
    labels: Labels
    key: int | None
    query: Term


@dataclass(frozen=True)
class Rule:
    """How a state changes, in the terms of the operator LinearAttention.

    Attributes:
        decay: What the state is multiplied by, a sum of terms.
        key: The product of these factors is what a value is stored under.
        value: What is stored, before it is weighted, a sum of terms.
        weight: The weight of what is stored; `None` if what is stored there already does not count.
        axes: The axes of keys and values (`None`: there is none), and the others, the batch first.
    """

    decay: tuple[Term, ...]
    key: Term
    value: tuple[Term, ...]
    weight: Term | None
    key_axis: int | None
    value_axis: int | None
    others: tuple[int, ...]

    @property
    def batch(self) -> int | None:
        """The axis of the batch."""
        return self.others[0] if self.others else None

    @property
    def heads(self) -> tuple[int, ...]:
        """The axes of the heads."""
        return self.others[1:]


class LinearState:
    """A state that is handed on linearly.

    Raises:
        NotASumError: It is handed on in another way.
    """

    def __init__(self, state: State, iteration: Iteration, facts: Facts) -> None:
        self.state, self._facts, self._elements = state, facts, iteration.elements
        algebra = Algebra(state.before, iteration.elements, facts)
        shape = facts.shape(state.before)
        if shape is None or any(facts.shape(one) != shape for one in (state.initial, state.after)):
            raise NotASumError
        self.shape, self._labels = shape, algebra.labels(state.before)
        self._kept: list[Term] = []
        self._erased: list[Term] = []
        self._written: list[Term] = []
        for term in algebra.terms(state.after, self._labels):
            self._sort(term)
        if not self._kept or not self._written or len(self._erased) > 1:
            raise NotASumError

    def _sort(self, term: Term) -> None:
        """Whether a term keeps, erases or writes."""
        self._demand_sizes(term.factors)
        own = [one for one in term.factors if one.value is self.state.before]
        is_local = all(one in (None, *self._axes) for factor in term.factors for one in factor.labels)
        if not own and is_local:
            self._written.append(term)
        elif len(own) == 1 and own[0].labels == self._labels and is_local:
            self._kept.append(Term(term.number, tuple(one for one in term.factors if one not in own)))
        elif len(own) == 1:
            self._erased.append(term)
        else:
            raise NotASumError

    def _demand_sizes(self, factors: Iterable[Factor], sizes: Mapping[int, object] | None = None) -> None:
        """Refuse factors whose axes are not known to have the sizes of the state's."""
        known = dict(sizes or enumerate(self.shape))
        for factor in sorted(factors, key=lambda one: one.value is not self.state.before):
            for label, size in zip(factor.labels, self._facts.shape(factor.value) or (), strict=True):
                if label is not None and known.setdefault(label, size) != size:
                    raise NotASumError

    def reading(self, value: ir.Value) -> Reading | None:
        """How a value of the body reads the new state; `None` if it does not, or in another way."""
        algebra = Algebra(self.state.after, self._elements, self._facts)
        if not algebra.depends(value):
            return None
        outside = {axis: -1 - axis for axis, _ in enumerate(self._facts.shape(value) or ())}
        try:
            labels = tuple(None if one is None else outside[one] for one in algebra.labels(value))
            found = algebra.terms(value, labels)
            own = [one for term in found for one in term.factors if one.value is self.state.after]
            if len(found) != 1 or len(own) != 1:
                return None
            names = {label: axis for axis, label in enumerate(own[0].labels) if label is not None}
            if len(names) != sum(one is not None for one in self._labels):
                return None
            query = Term(found[0].number, tuple(one.renamed(names) for one in found[0].factors if one not in own))
            self._demand_sizes(query.factors)
        except NotASumError:
            return None
        summed = [names[label] for label in names if label not in labels]
        if len(summed) > 1 or any(label is not None and label not in names for label in labels):
            return None
        if any(one is not None and one not in self._axes for factor in query.factors for one in factor.labels):
            return None
        own_labels = tuple(None if one is None else names[one] for one in labels)
        return Reading(value, own_labels, summed[0] if summed else None, query)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(one for one in self._labels if one is not None)

    def rule(self, key: int | None, query: Term) -> Rule | None:
        """The rule by which the state changes if readings sum over the axis `key`; `None` if the operator has none for it."""
        split = [_split(term, key) for term in self._written]
        keys, values = split[0][0], tuple(rest for _, rest in split)
        if any(Counter(one.factors) != Counter(keys.factors) for one, _ in split):
            return None
        weight = None
        if self._erased:
            weight = None if key is None or len(self._kept) > 1 else self._weight(self._kept[0], keys, key)
            divided = [] if weight is None else [_without(one, weight.factors) for one in values]
            values = tuple(Term(one.number / weight.number, one.factors) for one in divided if one and weight)
            if weight is None or len(values) != len(divided):
                return None
        fixed = [factor for term in (*self._kept, keys, query, weight) if term for factor in term.factors]
        free = [axis for axis in self._axes if axis != key and not any(axis in one.labels for one in fixed)]
        others = [axis for axis in self._axes if axis not in (key, *free[-1:])]
        # The batch is an axis whose size is not fixed, if there is one.
        others.sort(key=lambda axis: isinstance(self.shape[axis], int))
        return Rule(tuple(self._kept), keys, values, weight, key, free[-1] if free else None, tuple(others))

    def unread(self) -> Rule | None:
        """The rule if nothing reads the state but what follows the loop."""
        fixed = [axis for axis in self._axes if isinstance(self.shape[axis], int)]
        found = [self.rule(key, Term(1.0, ())) for key in fixed]
        known = [rule for rule in found if rule is not None]
        with_values = [rule for rule in known if rule.key.factors and rule.value_axis is not None]
        return next(iter([*with_values, *known]), None) or self.rule(None, Term(1.0, ()))

    def _weight(self, decay: Term, key: Term, axis: int) -> Term | None:
        """The weight of what is erased: minus that, divided by the decay and the keys with which it is read and written."""
        erased = self._erased[0]
        (own,) = [one for one in erased.factors if one.value is self.state.before]
        label = own.labels[axis]
        expected = tuple(label if place == axis else one for place, one in enumerate(self._labels))
        if label is None or own.labels != expected or decay.number <= 0 or key.number == 0:
            return None
        read = [one.renamed({axis: label}) for one in (*decay.factors, *key.factors)]
        rest = _without(erased, [own, *key.factors, *read])
        if rest is None or erased.number == 0 or any({label, axis} & {*one.labels} for one in rest.factors):
            return None
        return Term(-erased.number / (decay.number * key.number**2), rest.factors)


def _split(term: Term, key: int | None) -> tuple[Term, Term]:
    """The factors with a label, and the others with the number."""
    inside = tuple(one for one in term.factors if key is not None and key in one.labels)
    return Term(1.0, inside), Term(term.number, tuple(one for one in term.factors if one not in inside))


def _without(term: Term, factors: Iterable[Factor]) -> Term | None:
    """A term divided by factors; `None` if it does not have them all."""
    left, gone = Counter(term.factors), Counter(factors)
    if gone - left:
        return None
    return Term(term.number, tuple((left - gone).elements()))


def linear_states(iteration: Iteration, facts: Facts) -> Iterator[LinearState]:
    """The states of floats that are handed on linearly."""
    for state in iteration.states:
        if facts.dtype(state.before) == ir.DataType.FLOAT and state.after.graph is iteration.body:
            try:
                yield LinearState(state, iteration, facts)
            except NotASumError:
                continue
