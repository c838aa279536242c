"""Remove Expand before operators that broadcast by themselves, and factors that are all ones.

x / expand(y, shape(x)) = x / y           x * ones = x           likewise Add, Min, Max, comparisons and logic
where(expand(condition, shape(x)), x, y) = where(condition, x, y)
where(condition, zeros, x) = where(condition, 0, x)
x + (expand(y, shape) + z) = x + (y + z)  where x is as large as the sum
not(expand(y, shape)) = expand(not(y), shape)      likewise Cast of booleans, and its product with a number
reshape(x W) + b = reshape(x W + b)       where the Reshape splits the columns, as into heads
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import product as volume
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, fixed, op, var
from ortfuse.rewrite.pattern.node_parameters import attribute_value

from .._rule_test_inputs import NUMBERS, computed_shape
from .._shared_guards import is_filled_with, same_shape, snake_case

SOURCE = "Multidirectional broadcasting in ONNX"

x, y, z = var("x"), var("y"), var("z")
expanded = op.Expand(y, var("shape")).kept()


_EXPANDED = {"x": "b 3 4", "y": "b 3 1", "shape": "3"}
_expanded_shape = computed_shape("y", 1, [3, 4])


_COMPARED = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_OF_TRUTHS = ("And", "Or", "Xor")
_ALIKE = ("Add", "Sub", "Mul", "Div", "Min", "Max", *_COMPARED, *_OF_TRUTHS)


def _without_expand(name: str) -> Rule:
    build: Any = getattr(op, name)
    of_truths = {"x": "bool", "y": "bool"} if name in _OF_TRUTHS else {}
    return Rule(
        name=f"broadcast.{snake_case(name)}_of_expand",
        formula=f"{name}(x, expand(y, shape(x)))",
        pattern=build(x, expanded),
        replace=build(x, y),
        guards=(same_shape("x", "root"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(shapes=_EXPANDED, inputs={"shape": _expanded_shape, **of_truths}),
    )


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


def branch_has_shape(match: Match) -> Refusal | None:
    """One of the branches has the shape of the result already."""
    return match.unless_same_shape("x", "root") and match.unless_same_shape("other", "root")


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


def is_one_truth(match: Match) -> Refusal | None:
    """A single truth value is expanded, to as many axes as the shape names at least."""
    truth, axes = match.shape("true"), match.shape("shape")
    if truth is None or axes is None or not isinstance(axes[0], int):
        return match.refuse("shape", "true" if truth is None else "shape")
    single = all(dim == 1 for dim in truth) and len(truth) <= axes[0]
    return None if single else match.refuse("shape", "true", "a single number")


def chooses(match: Match) -> Refusal | None:
    """The expanded value is boolean."""
    return match.unless_dtype("y", ir.DataType.BOOL)


def _of_truths(name: str, formula: str, of: Any) -> Rule:
    """A function of expanded truth values."""
    return Rule(
        name=f"broadcast.{name}",
        formula=formula,
        pattern=of(lambda inner: op.Expand(inner, var("shape")).kept()),
        replace=op.Expand(of(lambda inner: inner), var("shape")),
        guards=(chooses,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"y": "b 3 1", "shape": "3", "factor": ""},
            inputs={"y": "bool", "shape": _expanded_shape},
            attributes={"to": [int(ir.DataType.FLOAT)]},
            constants={"factor": -3.0},
        ),
    )


RULES = [
    _of_truths("sink_expand_below_not", "Not(Expand(y, shape))", lambda expanded: op.Not(expanded(y))),
    _of_truths(
        "sink_expand_below_cast",
        "Cast(Expand(y, shape)), y boolean",
        lambda expanded: op.Cast(expanded(y), to=attr("to")),
    ),
    _of_truths(
        "sink_expand_below_cast_and_mul",
        "Cast(Expand(y, shape)) * factor, y boolean",
        lambda expanded: op.Mul(expanded(op.Cast(y, to=attr("to"))), const("factor", "")),
    ),
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
    Rule(
        name="broadcast.where_of_expanded_condition",
        formula="Where(expand(y, shape(x)), x, other)",
        pattern=op.Where(expanded, x, var("other")),
        replace=op.Where(y, x, var("other")),
        guards=(branch_has_shape,),
        # The runtime's Where takes the sign of a zero from one of its branches only.
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=({**_EXPANDED, "other": "1"}, {**_EXPANDED, "x": "1", "other": "b 3 4"}),
            inputs={"y": "bool", "shape": _expanded_shape},
        ),
    ),
    _of_one_number("where_splat_then_to_scalar", first=True),
    _of_one_number("where_splat_else_to_scalar", first=False),
    *map(_extreme_of_one_number, ("Min", "Max")),
    *(_without_expand(name) for name in _ALIKE),
    Rule(
        name="broadcast.and_with_expanded_true_to_expand",
        formula="And(Expand(true, shape), x) = Expand(x, shape)",
        pattern=op.And(op.Expand(var("true", is_filled_with(1), "all true"), var("shape")).kept(), x),
        replace=op.Expand(x, var("shape")),
        guards=(is_one_truth,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"true": "", "x": "b 1 4", "shape": "3"},
            inputs={"x": "bool"},
            constants={"true": np.array(True), "shape": [1, 3, 4]},
        ),
    ),
    Rule(
        name="broadcast.drop_expand_in_nested_add",
        formula="x + (expand(y, shape) + z)",
        pattern=op.Add(x, op.Add(expanded, z)),
        replace=op.Add(x, op.Add(y, z)),
        guards=(same_shape("x", "root"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(shapes={**_EXPANDED, "z": "4"}, inputs={"shape": _expanded_shape}),
    ),
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
