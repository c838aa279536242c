"""Remove the Expand of cosines and sines that the whole batch shares, by com.microsoft RotaryEmbedding.

    rope(x, expand(cos, batch), expand(sin, batch)) = rope from the first position of a table, cos and sin
    squeeze(f(angles)) = f(squeeze(angles))         squeeze(unsqueeze(positions, (0, 2)), 0) = unsqueeze(positions, 1)

ONNX's RotaryEmbedding needs the angles of every element of a batch, so that cosines and sines are expanded. The operator of
com.microsoft reads the rows of a table from a given position on, for the whole batch. It computes the same bits in the same
time. The Squeeze of the batch axis then moves up to the positions.

The rules run in the last pass, because fusions look for ONNX's operator.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.hoist.axis_groups import Shape
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints
from ._shared_parts import NEVER_EMPTY

PASS = "target_decompositions"

SOURCE = "ONNX Runtime contrib operator RotaryEmbedding"

LONGEST = 8
"""How many nodes before the angles are looked at."""

x, cos, sin = var("x"), var("cos"), var("sin")
_KEPT = ("interleaved", "rotary_embedding_dim")


def is_one_table(match: Match) -> Refusal | None:
    """Cosines and sines have one row for each position of x, and are the same for the whole batch."""
    shape = match.shape("x")
    if shape is None or len(shape) not in (3, 4):
        return match.refuse("shape", "x", "[batch, length, size] or [batch, heads, length, size]")
    length = shape[2 if len(shape) == 4 else 1]
    for name in ("cos", "sin"):
        found = match.shape(name)
        if found is None or len(found) not in (2, 3) or found[-2] != length or found[:-2] not in ((), (1,)):
            return match.refuse("shape", name, f"one row for each of {length} positions, for the whole batch")
    return None


def angles_are_of_halves(match: Match) -> Refusal | None:
    """It is known how many heads there are, and the angles are of half of what is rotated of each."""
    shape, cosines, heads = match.shape("x") or (), match.shape("cos") or (), _heads(match)
    size = shape[-1] if len(shape) == 4 else _part(shape[-1], heads)
    rotated = match["rotary_embedding_dim"] or size
    if (
        heads
        and isinstance(rotated, int)
        and rotated == 2 * cosines[-1]
        and (match.shape("sin") or cosines)[-1] == cosines[-1]
    ):
        return None
    return match.refuse("shape", "cos", "half of what is rotated of each head")


def _part(size: DimLike, heads: int) -> int | None:
    return size // heads if isinstance(size, int) and heads and size % heads == 0 else None


def _heads(match: Match) -> int:
    shape = match.shape("x")
    counted = shape[1] if shape is not None and len(shape) == 4 else match["num_heads"]
    return counted if isinstance(counted, int) else 0


def _table(name: str, match: Match) -> Pattern:
    given: Pattern = var(name)
    is_flat = match.rank(name) == 2
    return given if is_flat else op.Squeeze(given, computed("batch", lambda match: ints([0])))


def _from_table(match: Match) -> Pattern:
    made: Pattern = ms.RotaryEmbedding(
        x, computed("first", lambda match: ints([0])), _table("cos", match), _table("sin", match),
        num_heads=_heads, **{name: attr(name) for name in _KEPT},
    )  # fmt: skip
    return made


def _widened(name: str) -> Pattern:
    made: Pattern = op.Expand(var(name), var(f"{name}_shape")).kept()
    return made


def _wide(of: str) -> Any:
    """The sizes of cosines and sines for every element of the batch."""

    def make(build: Any) -> ir.Value:
        source = next(value for value in build.graph.inputs if value.name == "x")
        shape = build.node("Shape", [source]).outputs[0]
        axis = 2 if len(build.dims("x")) == 4 else 1
        batch, length = (build.node("Gather", [shape, build.constant([at])]).outputs[0] for at in (0, axis))
        made: ir.Value = build.node("Concat", [batch, length, build.constant([1])], {"axis": 0}).outputs[0]
        return made

    return make


def _takes_out_the_first(axes: Any, facts: Facts) -> bool:
    return axes is not None and tuple(axes) == (0,)


def _may_add_the_first(added: Sequence[int], before: Shape | None) -> bool:
    """Whether an Unsqueeze adds the first axis, or one behind axes of size 1 only, which is the same as the first."""
    if not added or min(added) < 0:
        return False
    first = min(added)
    return first == 0 or (before is not None and all(dim == 1 for dim in before[:first]))


@redundant(COST)
def had_no_batch(match: Match) -> Refusal | None:
    """The first axis was put there before, by an Unsqueeze that then does less, or by a Reshape."""
    value: ir.Value | None = match["angles"]
    for _ in range(LONGEST):
        node = value.producer() if value is not None else None
        if node is None or node.domain:
            break
        if node.op_type == "Unsqueeze":
            axes = parameter(node, "axes", match.facts)
            if isinstance(axes, tuple | list) and _may_add_the_first(axes, match.facts.shape(node.inputs[0])):
                return None
            break
        if node.op_type == "Reshape":
            fewer, more = (match.facts.shape(one) for one in (node.inputs[0], value))
            if fewer is not None and more is not None and len(fewer) < len(more) and more[0] == 1:
                return None
            break
        if node.op_type not in ("Cos", "Sin", "Cast", "Mul"):
            break
        computed_ones = [one for one in node.inputs if one is not None and not match.facts.is_const(one)]
        value = computed_ones[0] if len(computed_ones) == 1 else None
    return match.refuse("needless", "angles", found="its first axis was there from the beginning")


def factors_have_fewer_axes(match: Match) -> Refusal | None:
    """The factors do not have the first axis of the angles, if there are any."""
    if match.get("factors") is None:
        return None
    rank, factors = match.rank("angles"), match.rank("factors")
    if rank is None or factors is None:
        return match.refuse("rank", "angles", "known")
    return None if factors < rank else match.refuse("rank", "factors", f"less than {rank}")


angles, positions = var("angles"), var("positions")
_first = computed("batch", lambda match: ints([0]))


def _squeezed(value: Pattern) -> Pattern:
    made: Pattern = op.Squeeze(value, axes=attr("axes", _takes_out_the_first, "the first"))
    return made


def _counted(build: Any) -> ir.Value:
    """Angles whose first axis an Unsqueeze has put there."""
    given = build.input("given", build.dims("angles")[1:])
    made: ir.Value = build.node("Unsqueeze", [given, build.constant([0])]).outputs[0]
    return made


def _function(operand: Pattern, *, kept: bool = False) -> Pattern:
    functions = op.Cos(operand), op.Sin(operand), op.Mul(operand, const("factors")), op.Cast(operand, to=attr("to"))
    first, *others = (one.kept() if kept else one for one in functions)
    return functools.reduce(operator.or_, others, first).named("function")


def adds_the_first(match: Match) -> Refusal | None:
    """The first axis of size 1 is one of several that the Unsqueeze adds, or may be taken for one."""
    added, shape = match["added"], match.shape("positions")
    known = added is not None and shape is not None and len(added) > 1 and _may_add_the_first(added, shape)
    return match.unless_value("added", known, "the first axis and others")


def _others(match: Match) -> np.ndarray[Any, Any]:
    added = match["added"]
    return ints([axis - 1 for axis in added if axis != min(added)])


RULES = [
    Rule(
        name="rotary.unbroadcast_cos_sin",
        formula="rotary(x, expand(cos), expand(sin))",
        is_refinement=True,
        pattern=op.RotaryEmbedding(
            x, _widened("cos"), _widened("sin"), num_heads=attr("num_heads"), **{name: attr(name) for name in _KEPT}
        ),
        replace=built(_from_table, makes=("com.microsoft.RotaryEmbedding", "Squeeze")),
        guards=(is_one_table, angles_are_of_halves),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"x": "b s 16", "cos": "1 s 4", "sin": "1 s 4"},
                {"x": "b 2 s 8", "cos": "1 s 2", "sin": "s 2"},
                {"x": "b 2 s 8", "cos": "s 4", "sin": "s 4"},
            ),
            attributes=(
                {"num_heads": [2], "interleaved": [0, 1], "rotary_embedding_dim": [0, 8]},
                {"num_heads": [0], "interleaved": [0, 1], "rotary_embedding_dim": [4]},
                {"num_heads": [0], "interleaved": [0, 1], "rotary_embedding_dim": [0]},
            ),
            inputs={f"{name}_shape": _wide(name) for name in ("cos", "sin")},
            opset=23,
            never_empty=NEVER_EMPTY,
            counterexamples={
                "angles of each element": Variation(shapes={"cos": "b s 4", "sin": "b s 4"}),
            },
        ),
    ),
    Rule(
        name="rotary.hoist_squeeze_above_function",
        formula="squeeze(f(angles), 0), f Cos, Sin, Mul by constant factors or Cast",
        pattern=_squeezed(_function(angles, kept=True)),
        replace=_function(op.Squeeze(angles, _first)),
        is_refinement=True,
        guards=(factors_have_fewer_axes, had_no_batch),
        exactness=Exactness.EXACT,
        source="ONNX operator Squeeze",
        test=RuleTest(
            shapes={"angles": "1 s 3", "factors": "3"},
            attributes={"axes": [(0,)], "to": [int(ir.DataType.DOUBLE)]},
            inputs={"angles": _counted},
            opset=18,
        ),
    ),
    Rule(
        name="rotary.drop_batch_axis_of_positions",
        formula="squeeze(unsqueeze(positions, axes), 0)",
        pattern=_squeezed(op.Unsqueeze(positions, axes=attr("added")).kept()),
        replace=op.Unsqueeze(positions, computed("others", _others)),
        is_refinement=True,
        guards=(adds_the_first,),
        exactness=Exactness.EXACT,
        source="ONNX operators Squeeze and Unsqueeze",
        test=RuleTest(
            shapes={"positions": "s"},
            attributes={"axes": [(0,)], "added": [(0, 2)]},
            opset=18,
            counterexamples={
                "behind the others": Variation(attributes={"added": (2, 3)}, shapes={"positions": "1 s"}),
            },
        ),
    ),
]
