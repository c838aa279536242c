"""Induction variables of a Loop, and how often it provably runs.

    j = a, a + b, a + 2 b, ...             states that grow by a constant, the number of the run, sums and multiples of these
    a + b k < n  and  c + d k < m          conditions on them: the first run after which one is false is the last one

The number of runs is the limit of the Loop, or what its condition says, whichever is provably the smallest. Loops of TensorFlow
count besides with integers of 32 bits, convert them to floating point and compare both counters; others have no limit but the
condition.

Sizes are taken to be counted exactly, as everywhere in the facts; of numbers, that is proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, DimLike, ceil_div, is_nonnegative, is_positive
from ortfuse.ir.traits import RESHAPES

_MOST_RUNS = 1 << 22
"""The most runs that are counted besides, and the largest number that counting begins with."""

_LARGEST_STEP = 256
"""The largest step, so that integers of 32 bits hold what is counted; floating-point numbers are counted by 1."""

_COUNTING = {ir.DataType.INT32: 2**31, ir.DataType.INT64: 2**63, ir.DataType.FLOAT: 2**24, ir.DataType.DOUBLE: 2**53}
"""The types that count, each with a size below which it holds every integer."""

_SAME = RESHAPES | {"Identity", "Cast"}
_COMPARED = {"Less": (1, 0), "LessOrEqual": (1, 1), "Greater": (-1, 0), "GreaterOrEqual": (-1, 1)}
"""By how much right exceeds left (or the other way round) for the comparison to be true: sign, and what is added to make it 1."""

_OPPOSITE = {"Less": "GreaterOrEqual", "LessOrEqual": "Greater", "Greater": "LessOrEqual", "GreaterOrEqual": "Less"}


@dataclass(frozen=True)
class Affine:
    """An integer that is `start + step * k` in run k, from 0 on."""

    start: DimLike
    step: int

    def times(self, factor: int) -> Affine:
        """The multiple."""
        return Affine(self.start * factor, self.step * factor)

    def plus(self, other: Affine) -> Affine:
        """The sum."""
        return Affine(self.start + other.start, self.step + other.step)


class Inductions:
    """The induction variables of the body of a Loop.

    Args:
        number: The input of the body that is the number of the run; `None` for a Scan.
        states: The loop-carried values as pairs of their value before the loop, before a run and after it.
        body: The body.
        facts: What is known of values.
    """

    def __init__(
        self,
        number: ir.Value | None,
        states: Sequence[tuple[ir.Value, ir.Value, ir.Value]],
        body: ir.Graph,
        facts: Facts,
    ) -> None:
        self._number, self._body, self._facts = number, body, facts
        self._states = {before: (initial, after) for initial, before, after in states}
        self._known: dict[ir.Value, Affine | None] = {}

    def affine(self, value: ir.Value | None) -> Affine | None:
        """The value as an induction variable; one that is the same in all runs has the step 0."""
        if value is None:
            return None
        if value not in self._known:
            self._known[value] = None  # what depends on itself in another way than by a constant step is none
            self._known[value] = self._found(value)
        return self._known[value]

    def is_number(self, value: ir.Value | None, runs: DimLike) -> bool:
        """Whether a value is the number of the run, from 0 on, in each of so many runs."""
        return (self.is_counted(runs) or value is self._number) and self.affine(value) == Affine(0, 1)

    def is_counted(self, runs: DimLike) -> bool:
        """Whether all types that count hold the numbers of so many runs."""
        return not isinstance(runs, int) or runs <= _MOST_RUNS

    def runs(self, limit: ir.Value | None, condition: ir.Value | None, stays: ir.Value) -> DimLike | None:
        """How often the loop runs; `None` if it may end at another time.

        Args:
            limit: The number of runs that the Loop is given, if any.
            condition: Whether it begins; `None`: it does.
            stays: The condition after each run.
        """
        bounds = self._bounds(stays, negated=False)
        counts = [_count(bound) for bound in bounds or ()]
        given = None if limit is None else self._integer(limit)
        if bounds is None or None in counts or (limit is not None and given is None):
            return None
        candidates = [] if given is None else [given]
        candidates += [count + 1 for count in counts if count is not None and count is not _ALWAYS]
        least = next((one for one in candidates if all(is_nonnegative(other - one) for other in candidates)), None)
        if least is None or not _is_exact(least, bounds):
            return None
        return least if self._begins(condition, least, is_limit=least is given) else None

    def obstacle(self, limit: ir.Value | None, stays: ir.Value) -> str:
        """Why it is not known how often the loop runs; see `runs`."""
        if limit is not None and self._integer(limit) is None:
            return f"the number of its iterations, '{limit.name}', is not known before it starts"
        if self._bounds(stays, negated=False) is None:
            return f"its condition '{stays.name}' compares something else than counters with fixed numbers"
        return f"its condition '{stays.name}' is not proved to end it at a known iteration"

    def _begins(self, condition: ir.Value | None, runs: DimLike, *, is_limit: bool) -> bool:
        """Whether the loop runs that often, given the condition with which it begins."""
        known = True if condition is None else self._facts.scalar(condition)
        if known is not None:
            return bool(known) and (is_limit or is_positive(runs))
        bounds = None if condition is None else self._bounds(condition, negated=False)
        if not bounds or any(bound.step for bound in bounds):
            return False
        # It begins if there is a run to be made, and only then.
        holds = all(is_nonnegative(bound.start - runs) for bound in bounds)
        return holds and (is_limit or any(is_nonnegative(runs - bound.start) for bound in bounds))

    def _found(self, value: ir.Value) -> Affine | None:
        if value is self._number:
            return Affine(0, 1)
        if value in self._states:
            return self._carried(value, *self._states[value])
        if value.graph is not self._body or self._facts.is_const(value):
            number = self._integer(value)
            return None if number is None else Affine(number, 0)
        node = value.producer()
        if node is None or node.domain or self._facts.dtype(value) not in _COUNTING:
            return None
        operands = [self.affine(operand) for operand in node.inputs[: 1 if node.op_type in _SAME else 2]]
        if None in operands or not operands:
            return None
        found = _combined(node.op_type, [one for one in operands if one is not None])
        return found if found is not None and self._is_held(value, found) else None

    def _carried(self, before: ir.Value, initial: ir.Value, after: ir.Value) -> Affine | None:
        """A loop-carried value that grows by a constant in each run."""
        start = self._integer(initial)
        if start is None or self._facts.dtype(before) not in _COUNTING:
            return None
        if after is before:
            return Affine(start, 0)
        same = [(first, one, last) for one, (first, last) in self._states.items() if last is one]
        update = Inductions(None, same, self._body, self._facts)
        update._known = {before: Affine(0, 1)}
        grown = update.affine(after)  # as a multiple of what it was before, and a number
        if grown is None or grown.step != 1 or not isinstance(grown.start, int):
            return None
        found = Affine(start, grown.start)
        update._known = {before: found}
        return found if self._is_held(before, found) and update.affine(after) is not None else None

    def _is_held(self, value: ir.Value, found: Affine) -> bool:
        """Whether the type of a value counts exactly in such steps."""
        dtype = self._facts.dtype(value)
        step = _LARGEST_STEP if dtype in (ir.DataType.INT32, ir.DataType.INT64) else 1
        largest = _MOST_RUNS if found.step else _COUNTING.get(dtype, 0) - 1 if dtype is not None else 0
        return abs(found.step) <= step and abs(_offset(found.start)) <= largest

    def _integer(self, value: ir.Value) -> DimLike | None:
        """A value of one element, the same in all runs, as an integer."""
        least, sign = 2**63, 1
        while True:
            known, number = self._facts.ints(value), self._facts.scalar(value)
            if (known is not None and known.elements != (None,)) or number is not None:
                one = _whole(number) if known is None else known.elements[0] if len(known.elements) == 1 else None
                return None if one is None or (isinstance(one, int) and abs(one) >= least) else sign * one
            node, dtype = value.producer(), self._facts.dtype(value)
            below = None if dtype is None else _COUNTING.get(dtype)
            if value in self._states and self._states[value][1] is value:
                value = self._states[value][0]
            elif node is None or below is None or (turned := self._sign(node)) is None or node.inputs[0] is None:
                return None
            else:
                least, sign, value = min(least, below), sign * turned, node.inputs[0]

    def _sign(self, node: ir.Node) -> int | None:
        """By what a node multiplies integers in a tensor of any type: 1 or -1; `None` if it makes something else of them."""
        if node.domain or node.op_type in ("Div", "Mul"):
            number = None if node.domain else self._facts.scalar(node.inputs[1])
            return int(number) if number in (1, -1) else None
        return {**dict.fromkeys(_SAME, 1), "Ceil": 1, "Floor": 1, "Neg": -1}.get(node.op_type)

    def _bounds(self, condition: ir.Value, *, negated: bool) -> list[Affine] | None:
        """Induction variables that are all at least 1 as long as a condition is true; `None` if it is something else."""
        known = self._facts.scalar(condition)
        if known is not None:
            return [] if bool(known) is not negated else None
        if condition in self._states or condition in self._body.inputs:
            return [] if not negated and condition is self._body.inputs[1] else None
        node = condition.producer()
        if node is None or node.domain:
            return None
        if (
            node.op_type in _SAME
            and self._facts.dtype(node.inputs[0]) == ir.DataType.BOOL
            and node.inputs[0] is not None
        ):
            return self._bounds(node.inputs[0], negated=negated)
        if node.op_type == "Not" and node.inputs[0] is not None:
            return self._bounds(node.inputs[0], negated=not negated)
        if node.op_type == ("Or" if negated else "And"):
            parts = [self._bounds(one, negated=negated) for one in node.inputs if one is not None]
            return None if None in parts else [bound for part in parts for bound in part or ()]
        compared = _OPPOSITE.get(node.op_type) if negated else node.op_type
        if compared not in _COMPARED or self._facts.dtype(node.inputs[0]) not in _COUNTING:
            return None
        left, right = (self.affine(operand) for operand in node.inputs)
        if left is None or right is None:
            return None
        sign, more = _COMPARED[compared]
        return [right.times(sign).plus(left.times(-sign)).plus(Affine(more, 0))]


_ALWAYS = 1 << 60


def _offset(number: DimLike) -> int:
    """The number that is added to what consists of sizes."""
    return next((count for factors, count in number.terms if not factors), 0) if isinstance(number, Dim) else number


def _whole(number: float | None) -> int | None:
    """A number as an integer, if it is one."""
    return int(number) if number is not None and abs(number) < 2**62 and number == int(number) else None


def _is_exact(runs: DimLike, bounds: Sequence[Affine]) -> bool:
    """Whether so many runs are counted exactly by what the bounds compare."""
    if isinstance(runs, int):
        return runs <= _MOST_RUNS or not any(bound.step for bound in bounds)
    return all(abs(bound.step) <= 1 for bound in bounds)


def _count(bound: Affine) -> DimLike | None:
    """For how many runs, from the first on, a bound is at least 1; `None` if that is not known."""
    if bound.step >= 0:
        return _ALWAYS if is_positive(bound.start) else None
    if isinstance(bound.start, int) and bound.start <= 0:
        return 0
    return bound.start if bound.step == -1 else ceil_div(bound.start, -bound.step)


def _combined(op_type: str, operands: Sequence[Affine]) -> Affine | None:
    if op_type in _SAME:
        return operands[0]
    if op_type == "Neg":
        return operands[0].times(-1)
    if op_type == "Add":
        return operands[0].plus(operands[1])
    if op_type == "Sub":
        return operands[0].plus(operands[1].times(-1))
    if op_type == "Mul":
        for one, other in (operands, operands[::-1]):
            if isinstance(one.start, int) and not one.step and abs(one.start) <= _LARGEST_STEP:
                return other.times(one.start)
    return None
