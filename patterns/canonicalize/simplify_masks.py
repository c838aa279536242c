"""Replace And with an all-true operand by Expand, and sink what is one number everywhere below Where.

and(range(0, n)[:, None] >= 0, x) = expand(x, (n, 1))
where(c, expand(0, shape), filler) = expand(where(c, 0, filler), shape)

Rationale: PyTorch's exporters write padding masks as a function of queries and keys that ignores the query. The mask is then
computed once for all queries, and the Expand goes where it may not be needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, redundant, scalar, var

from .._rule_test_inputs import COST, computed_shape
from .._shared_guards import ints, is_filled_with
from .remove_expand import number_of

MOST_NODES = 16
"""The most nodes before a condition among which one is looked for that counts."""

x = var("x")
truth = var("truth", is_filled_with(1), "all true")


Size = int | tuple[ir.Value, int | None]
"""A size as a number, or a value that holds it: alone, or at a place among others."""


def _counts(match: Match) -> list[Size] | None:
    """The sizes to which x is to be expanded, one for each axis of the condition; `None` if they are not at hand."""
    small, wide = match.shape("x"), match.shape("truth")
    if small is None or wide is None or len(small) > len(wide):
        return None
    found: list[Size] = []
    for dim, size in zip((1,) * (len(wide) - len(small)) + tuple(small), wide, strict=True):
        at = 1 if size in (1, dim) else size if isinstance(size, int) else _holds(match["truth"], size, match.facts)
        if at is None or (dim != 1 and size not in (1, dim)):
            return None
        found.append(at)
    return found


def _holds(value: ir.Value, size: DimLike, facts: Facts) -> Size | None:
    """The limit of a Range before a value, or its number of repetitions, if that is this size."""
    left, seen = [value], {value}
    while left and len(seen) < MOST_NODES:
        node = left.pop().producer()
        if node is None or node.domain:
            continue
        operands = [operand for operand in node.inputs if operand is not None]
        if node.op_type in _TOLD_BY:
            told = operands[_TOLD_BY[node.op_type]]
            known = facts.ints(told)
            if known is not None and size in known.elements and facts.dtype(told) is ir.DataType.INT64:
                return told, known.elements.index(size) if known.shape else None
        left += [operand for operand in operands if operand not in seen]
        seen.update(operands)
    return None


_TOLD_BY = {"Range": 1, "Expand": 1, "ConstantOfShape": 0}
"""The operand that tells a size of the result, by operator."""


def is_larger_by_counts(match: Match) -> Refusal | None:
    """The condition is larger than x only along axes whose sizes something counts to."""
    sizes = _counts(match)
    if sizes is None:
        return match.refuse("shape", "truth", "larger than x by known sizes alone")
    grows = any(not isinstance(size, int) or size != 1 for size in sizes)
    return None if grows else match.refuse("needless", "truth", found="it makes nothing larger")


def _expanded(match: Match) -> Pattern:
    parts = [_vector(match, axis, size) for axis, size in enumerate(_counts(match) or ())]
    made: Pattern = op.Expand(x, op.Concat(*parts, axis=0))
    return made


def _vector(match: Match, axis: int, size: Size) -> Pattern:
    """A size as a vector of one number."""
    if isinstance(size, int):
        return computed(f"size_{axis}", lambda match: ints([size]))
    value, place = size
    held = match.capture(f"held_{axis}", value)
    if place is None:
        made: Pattern = op.Reshape(held, computed("one", lambda match: ints([1])))
        return made
    taken: Pattern = op.Gather(held, computed(f"place_{axis}", lambda match: ints([place])), axis=0)
    return taken


def _counted(build: Any) -> ir.Value:
    """As many positions as the input has rows, none of which is below 0."""
    sizes = build.node("Shape", [build.input("like", ["s", 3])]).outputs[0]
    count = build.node("Gather", [sizes, build.constant(np.int64(0))]).outputs[0]
    positions = build.node("Range", [build.constant(np.int64(0)), count, build.constant(np.int64(1))]).outputs[0]
    column = build.node("Unsqueeze", [positions, build.constant([0, 1, 3])]).outputs[0]
    made: ir.Value = build.node("GreaterOrEqual", [column, build.constant(np.int64(0))]).outputs[0]
    return made


def _filled(build: Any) -> ir.Value:
    """Ones in the shape of an input, as truth values."""
    sizes = build.node("Shape", [build.input("like", ["b", "s"])]).outputs[0]
    ones = build.node("ConstantOfShape", [sizes], {"value": ir.tensor(np.ones(1, np.int64))}).outputs[0]
    truth = build.node("Cast", [ones], {"to": int(ir.DataType.BOOL)}).outputs[0]
    made: ir.Value = build.node("Unsqueeze", [truth, build.constant([1, 2])]).outputs[0]
    return made


def _told(build: Any) -> ir.Value:
    made: ir.Value = [_counted, _filled][build.chooser.pick("truth", ("counted", "filled"))](build)
    return made


def _from_one(build: Any) -> ir.Value:
    """The same of positions of which the first is not above 0."""
    compared = _counted(build).producer()
    assert compared is not None
    column = compared.inputs[0]
    made: ir.Value = build.node("Greater", [column, build.constant(np.int64(0))]).outputs[0]
    return made


condition, other = var("condition"), scalar("other")
_FILLED = computed_shape("condition", 1, [3, 4])


_filling = (
    op.Expand(var("number"), var("shape")).kept() | op.ConstantOfShape(var("shape"), value=attr("value")).kept()
).named("filling")


def is_filled(match: Match) -> Refusal | None:
    """The branch is a splat: one number everywhere."""
    if number_of(match["filling"], match.facts) is None:
        return match.refuse("value", "filling", "one number everywhere")
    axes, rank = match.shape("shape"), match.rank("filling")
    return None if axes is not None and axes == (rank,) else match.refuse("rank", "filling", "as the sizes say")


def _splat_number(match: Match) -> Any:
    return number_of(match["filling"], match.facts)


@redundant(COST)
def condition_is_smaller(match: Match) -> Refusal | None:
    """The condition is smaller than the result: else the number is a branch as it is."""
    same = match.unless_same_shape("condition", "root") is None
    return match.refuse("needless", "condition", found="it has the shape of the result") if same else None


def _mask_rule(name: str, formula: str, pattern: Pattern, replace: Pattern, *guards: Any, **test: Any) -> Rule:
    return Rule(
        name=f"mask.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.EXACT,
        source="Multidirectional broadcasting in ONNX",
        test=RuleTest(**test),
    )


RULES = [
    Rule(
        name="mask.and_with_all_true_to_expand",
        formula="and(range(0, n)[:, None] >= 0, x)",
        pattern=op.And(truth, x),
        replace=built(_expanded, makes=("Expand", "Concat", "Reshape", "Gather")),
        guards=(is_larger_by_counts,),
        exactness=Exactness.EXACT,
        source="ONNX operators And and Expand",
        test=RuleTest(
            shapes=({"x": "1 1 1 4", "truth": "1 1 s 1"}, {"x": "1 1 5 s", "truth": "b 1 1 s"}),
            inputs={"x": "bool", "truth": _told},
            opset=18,
            counterexamples={"not of the first": Variation(inputs={"x": "bool", "truth": _from_one})},
        ),
    ),
    _mask_rule(
        "sink_splat_below_where", "where(condition, expand(number, shape), other)",
        op.Where(condition, _filling, other),
        op.Expand(op.Where(condition, computed("number", _splat_number), other), var("shape")),
        is_filled, condition_is_smaller,
        shapes={"condition": "b 1 4", "shape": "3", "number": ""},
        inputs={"condition": "bool", "shape": _FILLED},
        constants={"number": 0.0},
        attributes={"value": [None]},
        scalars={"other": [-5.0]},
    ),
]  # fmt: skip
