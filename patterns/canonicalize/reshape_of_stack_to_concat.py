"""Replace a Reshape of stacked tensors by a Reshape of their Concat.

reshape(concat(unsqueeze(a, k), unsqueeze(b, k), axis=k)) = reshape(concat(a, b, axis=k))      where a has an axis k

The elements come in the same order either way.

Rationale: rotary embeddings of TensorFlow.
"""

from __future__ import annotations

from typing import Any

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, opt, var

from .._shared_guards import ints
from .merge_reshapes_and_transposes import Shape, unless_constant_target

PARTS = ("a", "b", "c", "d")


def _is_one_axis(axes: Any, facts: Facts) -> bool:
    return isinstance(axes, tuple | list) and len(axes) == 1 and isinstance(axes[0], int) and axes[0] >= 0


def _lifted(name: str) -> Pattern:
    made: Pattern = op.Unsqueeze(var(name), axes=attr("axes", _is_one_axis, "one known axis")).kept()
    return made


def _operand_names(match: Match) -> list[str]:
    return [name for name in PARTS if match.get(name) is not None]


def _concat_shape(match: Match) -> Shape | None:
    """The shape of the parts joined along the axis at which the stack has its new one; `None` if they have no such axis."""
    shapes = match.shapes(*_operand_names(match))
    if isinstance(shapes, Refusal):
        return None
    axis, first = match["axes"][0], shapes[0]
    if axis >= len(first) or any(shape != first for shape in shapes):
        return None
    return (*first[:axis], first[axis] * len(shapes), *first[axis + 1 :])


def is_a_stack(match: Match) -> Refusal | None:
    """The parts have one shape, with an axis behind the new one, along which they are joined; the target can be a constant."""
    whole, joined = match.rank("stack"), _concat_shape(match)
    if whole is None or joined is None:
        return match.refuse("shape", "a", "that of all parts, with an axis behind the new one")
    if match["axis"] % whole != match["axes"][0]:
        return match.refuse("attribute", "axis", match["axes"][0])
    return unless_constant_target(match, joined, match.shape("root"))


def _reshaped(match: Match) -> Pattern:
    joined = op.Concat(*map(var, _operand_names(match)), axis=match["axes"][0])
    target = reshape_target(_concat_shape(match), match.shape("root"))
    assert target is not None
    made: Pattern = op.Reshape(joined, computed("target", lambda match: ints(target)))
    return made


RULES = [
    Rule(
        name="reshape.reshape_of_stack_to_concat",
        formula="Reshape(stack(a, b, ...))",
        pattern=op.Reshape(
            op.Concat(_lifted("a"), _lifted("b"), opt(_lifted("c")), opt(_lifted("d")), axis=attr("axis")).named(
                "stack"
            ),
            var("shape"),
            allowzero=attr("allowzero"),
        ),
        replace=built(_reshaped, makes=("Concat", "Reshape")),
        guards=(is_a_stack,),
        exactness=Exactness.EXACT,
        source="ONNX operators Concat and Reshape",
        test=RuleTest(
            shapes=({**dict.fromkeys(PARTS, "n 3 4"), "shape": "2"},) * 2,
            constants={"shape": [-1, 4]},
            attributes=tuple({"axes": [(axis,)], "axis": [axis], "allowzero": [0]} for axis in (1, 2)),
            counterexamples={"behind all axes": Variation(attributes={"axes": (3,), "axis": 3})},
        ),
    )
]
