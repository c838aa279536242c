"""Replace operands that are one number everywhere by that number, and add a bias before the columns are split.

where(condition, zeros, x) = where(condition, 0, x)           likewise min and max
x * ones = x
reshape(x W) + b = reshape(x W + b)       where the Reshape splits the columns, as into heads
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.ir.dims import product as volume
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, fixed, op, var

from .._rule_test_inputs import NUMBERS
from .._shared_guards import is_filled_with, same_shape

SOURCE = "Multidirectional broadcasting in ONNX"

x, y, z = var("x"), var("y"), var("z")


def number_of(value: ir.Value, facts: Facts) -> np.ndarray[Any, Any] | None:
    """The number, bit for bit, that all elements of a value are, of which there may be several."""
    shape, producer = facts.shape(value), value.producer()
    if shape is None or all(dim == 1 for dim in shape) or facts.fill(value) is None:
        return None
    if producer is not None and producer.op_type == "ConstantOfShape":
        given = attribute_value(producer, "value", facts)
        found = np.zeros(1, np.float32) if given is None else given.numpy() if hasattr(given, "numpy") else None
    else:
        found = facts.const(value if producer is None or producer.op_type != "Expand" else producer.inputs[0])
    if found is None or not found.size:
        return None
    elements = found.reshape(-1)
    return np.asarray(elements[0]) if elements.tobytes() == elements[:1].tobytes() * found.size else None


def condition_or_branch_has_shape(match: Match) -> Refusal | None:
    """The condition or the other branch has the shape of the result already."""
    return match.unless_same_shape("x", "root") and match.unless_same_shape("condition", "root")


def _zeros(build: Any) -> ir.Value:
    """Zeros whose shape is computed."""
    shape = build.constant(np.array([size if isinstance(size, int) else 1 for size in build.dims("filled")]))
    made: ir.Value = build.node("ConstantOfShape", [shape]).outputs[0]
    return made


def _of_one_number(name: str, *, first: bool) -> Rule:
    filled = var("filled", lambda value, facts: number_of(value, facts) is not None, "the same number everywhere")
    number = computed("number", lambda match: number_of(match["filled"], match.facts))

    def where(branch: Pattern) -> Pattern:
        made: Pattern = op.Where(var("condition"), *((branch, x) if first else (x, branch)))
        return made

    return Rule(
        name=f"broadcast.{name}",
        formula="Where(condition, zeros, x)" if first else "Where(condition, x, zeros)",
        pattern=where(filled),
        replace=where(number),
        guards=(condition_or_branch_has_shape,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"condition": "b 3 4", "x": "1", "filled": "3 4"},
                {"condition": "3 1", "x": "b 3 4", "filled": "4"},
            ),
            inputs={"condition": "bool", "filled": _zeros},
        ),
    )


def _extreme_of_one_number(name: str) -> Rule:
    build: Any = getattr(op, name)
    filled = var("filled", lambda value, facts: number_of(value, facts) is not None, "the same number everywhere")
    return Rule(
        name=f"broadcast.{name.lower()}_splat_to_scalar",
        formula=f"{name}(x, zeros)",
        pattern=build(x, filled),
        replace=build(x, computed("number", lambda match: number_of(match["filled"], match.facts))),
        guards=(same_shape("x", "root"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "b 3 4", "filled": "3 4"}, {"x": "b 3 4", "filled": "4"}), inputs={"filled": _zeros}
        ),
    )


product = op.MatMul(x, fixed("weight", "_ _")).named("product")
split = op.Reshape(product, var("shape"), allowzero=attr("allowzero")).named("split")


def splits_columns(match: Match) -> Refusal | None:
    """The Reshape splits the last axis, and the bias differs along axes that were one alone."""
    shapes = match.shapes("product", "split", "bias")
    if isinstance(shapes, Refusal):
        return shapes
    whole, parts, bias = shapes
    first = len(whole) - 1
    sizes = parts[first:]
    known = all(isinstance(dim, int) and dim for dim in sizes) and volume(sizes) == whole[-1]
    if len(sizes) < 2 or parts[:first] != whole[:-1] or not known:
        return match.refuse("shape", "split", "that of the product, with its last axis split into known sizes")
    if len(bias) > len(sizes) or any(one not in (1, dim) for one, dim in zip(bias[::-1], sizes[::-1], strict=False)):
        return match.refuse("shape", "bias", sizes)
    return None


def _whole_bias(match: Match) -> Any:
    """The bias of the columns before they are split."""
    whole, parts = match.shape("product") or (), match.shape("split") or ()
    sizes = tuple(dim for dim in parts[len(whole) - 1 :] if isinstance(dim, int))
    return np.broadcast_to(match.const("bias"), sizes).reshape(-1)


RULES = [
    Rule(
        name="broadcast.hoist_bias_add_above_reshape",
        formula="Reshape(x W) + b",
        pattern=op.Add(split, const("bias")),
        replace=op.Reshape(
            op.Add(op.MatMul(x, var("weight")), computed("columns", _whole_bias)),
            var("shape"),
            allowzero=attr("allowzero"),
        ),
        guards=(splits_columns,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=tuple(
                {"x": "b 3 4", "weight": "4 6", "bias": bias, "shape": "4"} for bias in ("2 3", "3", "2 1", "1")
            ),
            constants={"shape": [0, 0, 2, 3]},
            attributes={"allowzero": [0]},
            counterexamples={
                "a bias of each row": Variation(shapes={"bias": "3 1 3"}),
                "with the rows split": Variation(
                    shapes={"bias": "3", "shape": "4"}, constants={"shape": [-1, 2, 3, 3]}
                ),
            },
        ),
    ),
    _of_one_number("where_splat_then_to_scalar", first=True),
    _of_one_number("where_splat_else_to_scalar", first=False),
    *map(_extreme_of_one_number, ("Min", "Max")),
    Rule(
        name="broadcast.mul_by_ones",
        formula="x * ones",
        pattern=op.Mul(x, const("ones", is_filled_with(1), "all 1")),
        replace=x,
        guards=(same_shape("x", "root"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 3 4", "ones": "3 1"},
            constants={"ones": np.ones((3, 1))},
            redundant={"demand that *": NUMBERS},
        ),
    ),
]
