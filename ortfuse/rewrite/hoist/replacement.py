"""The replacement that a plan describes, for rules that hoist data movement."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.dims import reshape_target
from ortfuse.rewrite.hoist.axis_groups import Shape
from ortfuse.rewrite.hoist.plan_reshape_hoist import Constant, Kept, Plan, Size, Viewed, added_axes
from ortfuse.rewrite.pattern import Match, Pattern, computed, op
from ortfuse.rewrite.pattern.language import Op


def as_pattern(plan: Plan, match: Match) -> Pattern:
    """Return a plan as a replacement; the values that it reads are captured by the match."""
    return _Writer(match).written(plan)


class _Writer:
    def __init__(self, match: Match) -> None:
        self._match = match
        self._known: dict[Plan, Pattern] = {}

    def written(self, plan: Plan) -> Pattern:
        if plan not in self._known:
            self._known[plan] = self._written(plan)
        return self._known[plan]

    def _written(self, plan: Plan) -> Pattern:
        if isinstance(plan, Kept):
            return self._captured(plan)
        if isinstance(plan, Viewed):
            before = self._match.facts.shape(plan.value)
            assert before is not None
            if plan.sizes is not None:
                target = op.Concat(*(written_size(size, self._match) for size in plan.sizes), axis=0)
                return op.Reshape(self._captured(plan), target, allowzero=self._match.get("allowzero"))
            return view(self._captured(plan), before, plan.shape)
        if isinstance(plan, Constant):
            return computed(f"constant_{len(self._known)}", lambda match: _reshaped_constant(plan, match))
        kept = {name: attribute.value for name, attribute in plan.node.attributes.items()}
        operands = [None if operand is None else self.written(operand) for operand in plan.operands]
        return Op(plan.node.op_type, operands, {**kept, **plan.attributes}, plan.node.domain)

    def _captured(self, plan: Kept | Viewed) -> Pattern:
        return self._match.capture(f"operand_{len(self._known)}", plan.value)


def written_size(size: Size, match: Match) -> Pattern:
    """Return an element of a Reshape target, as a vector."""
    if isinstance(size, int):
        return _ints(size)
    value, place = size
    known = match.capture(f"sizes_{value.name}", value)
    source = known if value is match.get("shape") else op.Shape(known)
    made: Pattern = op.Slice(source, _ints(place), _ints(place + 1))
    return made


def _ints(number: int) -> Pattern:
    return computed(f"number_{number}", lambda match: np.asarray([number], np.int64))


def _reshaped_constant(plan: Constant, match: Match) -> Any:
    array = match.facts.const(plan.value)
    assert array is not None
    return np.reshape(array if plan.broadcast is None else np.broadcast_to(array, plan.broadcast), plan.shape)  # type: ignore[arg-type]


def view(value: Pattern, before: Shape, after: Shape) -> Pattern:
    """Return a value in another shape: by Unsqueeze or Squeeze where only axes of size 1 change, or else by Reshape."""
    if before == after:
        return value
    if (added := added_axes(before, after)) is not None:
        return op.Unsqueeze(value, axes=added)
    if (dropped := added_axes(after, before)) is not None:
        return op.Squeeze(value, axes=dropped)
    target = reshape_target(before, after)
    assert target is not None
    return op.Reshape(value, computed("target", lambda match: np.asarray(target, np.int64)))
