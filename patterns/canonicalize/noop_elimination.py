"""Remove nodes without effect, and neutral elements of arithmetic.

reshape(x) = x  to its own shape         x + 0 = x      x * 1 = x      x / 1 = x      x ** 1 = x
averagepool(x) = x  with a 1x1 window    concat(x, y, z) = concat(x, z)  where y has no elements
resize(x) = x   to its own size
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, attr, computed, op, opt, rest, var

from .._shared_guards import ints, is_filled_with

SOURCE = "ONNX operator specification"

x, y = var("x"), var("y")


def keeps_shape(match: Match) -> Refusal | None:
    """The result provably has the shape of x."""
    return match.unless_same_shape("root", "x")


def keeps_dtype(match: Match) -> Refusal | None:
    """The result provably has the element type of x."""
    before = match.dtype("x")
    return match.refuse("dtype", "x") if before is None else match.unless_dtype("root", before)


def _is_not_kept_apart(value: ir.Value, facts: Any) -> bool:
    """A check for variables: nothing makes it that a Sum may keep apart from what comes next (see `patterns.ort_workarounds`)."""
    producer = value.producer()
    kinds = ("Pad", "MatMul", "Mul", "Div") if facts.dtype(value) == ir.DataType.DOUBLE else ("Pad",)
    return producer is None or producer.op_type not in kinds


def _identity(name: str, pattern: Pattern, test: RuleTest, *guards: Guard) -> Rule:
    return Rule(
        name=f"noop.{name}",
        pattern=pattern,
        replace=x,
        guards=guards,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=test,
    )


def _all_are(wanted: int) -> Callable[[Any, Any], bool]:
    return lambda values, facts: (
        values is None or (isinstance(values, tuple) and all(value == wanted for value in values))
    )


def _is_identity_permutation(perm: Any, facts: Any) -> bool:
    return isinstance(perm, tuple | list) and list(perm) == list(range(len(perm)))


_moved = (
    op.Reshape(x, var("target"), allowzero=attr("allowzero"))
    | op.Flatten(x, axis=attr("front"))
    | op.Squeeze(x, opt(var("axes")))
    | op.Expand(x, var("wide"))
    | op.Tile(x, var("repeats"))
    | op.Slice(x, var("starts"), var("ends"), opt(var("cut")), steps=attr("steps", _all_are(1), "all 1"))
    | op.Transpose(x, perm=attr("perm", _is_identity_permutation, "the identity"))
    | op.Pad(x, opt(var("filling")), opt(var("along")), pads=attr("pads", _all_are(0), "all 0"), mode=attr("mode"))
    | op.Concat(x, axis=attr("axis"))
    | op.Split(x, axis=attr("axis"), split=attr("split"), num_outputs=attr("num_outputs"), outputs=1)
)
"""Data movement of one operand that may have no effect."""

_BY_SHAPE = frozenset({"Reshape", "Flatten", "Squeeze", "Expand", "Tile", "Slice"})
"""Operators that keep the order of elements, and so have no effect if they keep the shape."""


def keeps_elements(match: Match) -> Refusal | None:
    """The result provably has the shape of x, if an operator has no effect only then."""
    node = match.root.producer()
    return keeps_shape(match) if node is not None and node.op_type in _BY_SHAPE else None


zero = var("zero", is_filled_with(0), "zero everywhere")


def _added_axes(match: Match) -> int:
    return (match.facts.rank(match.root) or 0) - (match.rank("x") or 0)


def adds_axes_in_front(match: Match) -> Refusal | None:
    """The sum has the shape of x but for axes of size 1 in front."""
    before, after, added = match.shape("x"), match.shape("root"), _added_axes(match)
    if before is None or after is None or added <= 0:
        return match.refuse("needless", "root", found="it has no axes that x has not")
    return None if after == (*(1,) * added, *before) else match.refuse("shape", "root", (*(1,) * added, *before))


def is_of_integers(match: Match) -> Refusal | None:
    """x is of integers: of other numbers, -0 + 0 is +0."""
    dtype = match.dtype("x")
    return None if dtype is not None and dtype.is_integer() else match.refuse("dtype", "x", "integers")


def _zeros(build: Any) -> ir.Value:
    """A constant of zeros, also of more elements."""
    sizes = [size if isinstance(size, int) else 1 for size in build.dims("zero")]
    made: ir.Value = build.constant(np.zeros(sizes, np.int64))
    return made


def _zeros_of_float32(build: Any) -> ir.Value:
    made: ir.Value = build.constant(np.zeros(1, np.float32))
    return made


EMPTY = np.zeros(0, np.int64)
PLAIN = RuleTest(shapes=({"x": "b 3 4"}, {"x": ""}))


def _not_empty(match: Match) -> list[ir.Value]:
    """The operands of a Concat without those that are provably empty along its axis, and elsewhere as large as the others."""
    whole, kept, given = match.shape("root"), [], match["axis"]
    for part in match["parts"]:
        shape = match.facts.shape(part)
        if whole is None or shape is None or len(shape) != len(whole) or not isinstance(given, int):
            return list(match["parts"])
        axis = given % len(whole)
        if (*shape[:axis], 0, *shape[axis + 1 :]) != (*whole[:axis], shape[axis], *whole[axis + 1 :]):
            kept.append(part)
    return kept or list(match["parts"][:1])


def something_is_empty(match: Match) -> Refusal | None:
    """One of several operands provably has no elements."""
    fewer = len(_not_empty(match)) < len(match["parts"])
    return (
        None if fewer else match.refuse("value", "root", "joined of something without elements", found="none is known")
    )


def _concat_of_nonempty(match: Match) -> Pattern:
    parts = [match.capture(f"part_{number}", part) for number, part in enumerate(_not_empty(match))]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=match["axis"])


def _with_nothing(build: Any) -> list[ir.Value]:
    """Something empty before, between or behind others."""
    whole = build.input("whole", build.dims("whole"))
    bounds = [build.constant([number]) for number in (3, 9, 1)]
    nothing = build.node("Slice", [whole, *bounds]).outputs[0]
    others = [whole, build.node("Neg", [whole]).outputs[0]]
    place = build.chooser.pick("what is empty", ("first", "between", "last", "first of two"))
    return [nothing, whole] if place == 3 else [*others[:place], nothing, *others[place:]]


def is_not_moved(match: Match) -> Refusal | None:
    """Each pixel stays where it is: of the sizes of x or factors of 1, and no part of the image is taken."""
    how, scales = match["how"], None if match["scales"] is None else match.const("scales")
    ones = scales is not None and scales.size > 0 and bool(np.all(scales == 1))
    sized = match["sizes"] is not None and (match["scales"] is None or (scales is not None and not scales.size))
    if ones or (sized and how.get("keep_aspect_ratio_policy", "stretch") == "stretch"):
        crops = how.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        return match.refuse("attribute", "how", "the whole image") if crops else None
    return match.refuse("condition", "root", "an image that is resized by 1 exactly")


_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _ones(build: Any) -> ir.Value:
    """Factors of 1, none where sizes are given."""
    made: ir.Value = build.constant(np.ones(0 if "sizes" in build.shapes else 4), ir.DataType.FLOAT)
    return made


RULES = [
    _identity(
        "resize",
        op.Resize(x, opt(var("roi")), opt(var("scales")), opt(var("sizes")), attributes=all_attributes("how")),
        RuleTest(
            shapes=(
                {"x": "n 3 4 5", "roi": "0", "scales": "4"},
                {"x": "2 3 4 5", "roi": "0", "scales": "4", "sizes": "4"},
            ),
            constants={"roi": np.zeros(0), "sizes": np.array([2, 3, 4, 5])},
            inputs={"scales": _ones},
            attributes={"how": [{}, *({"mode": "linear", "coordinate_transformation_mode": mode} for mode in _MODES)]},
            counterexamples={
                "by a factor above 1": Variation(
                    inputs={"scales": lambda build: build.constant(np.array([1, 1, 1.1, 1]), ir.DataType.FLOAT)},
                    attributes={"how": {"mode": "linear"}},
                ),
            },
        ),
        keeps_shape,
        is_not_moved,
    ),
    _identity("identity", op.Identity(x), PLAIN),
    _identity(
        "data_movement",
        _moved,
        RuleTest(
            shapes={
                "x": "4 3",
                "target": "2",
                "wide": "2",
                "repeats": "2",
                "starts": "1",
                "ends": "1",
                "cut": "1",
                "filling": "",
                "along": "2",
            },
            constants={
                "target": [-1, 3],
                "wide": [1, 3],
                "repeats": [1, 1],
                "starts": [0],
                "ends": [9],
                "cut": [1],
                "along": [1, 0],
            },
            attributes={
                "allowzero": [0],
                "front": [1],
                "steps": [None, (1,)],
                "perm": [(0, 1)],
                "pads": [(0, 0, 0, 0)],
                "mode": ["constant", "edge"],
                "axis": [0],
                "split": [None],
                "num_outputs": [1],
            },
            followed_by="Neg",
            uncovered={"axes: present": "axes take something away, and what an empty list means is not agreed on"},
            counterexamples={
                "backwards": Variation(
                    constants={"starts": [9], "ends": [-9]},
                    attributes={"steps": (-1,)},
                    options={"*Reshape(x*": "Slice(x"},
                ),
                "a square is turned": Variation(
                    shapes={"x": "3 3"}, attributes={"perm": (1, 0)}, options={"*Reshape(x*": "Transpose(x"}
                ),
                "shifted by a frame": Variation(
                    shapes={"filling": None, "along": None},
                    attributes={"pads": (0, 1, 0, -1), "mode": "constant"},
                    options={"*Reshape(x*": "Pad(x"},
                ),
                "an empty list of axes": Variation(shapes={"x": "b 3", "axes": "0"}, constants={"axes": EMPTY}),
            },
        ),
        keeps_elements,
    ),
    _identity(
        "cast",
        op.Cast(x, to=attr("to"), saturate=attr("saturate"), round_mode=attr("round_mode"))
        | op.CastLike(x, y, saturate=attr("saturate"), round_mode=attr("round_mode")),
        RuleTest(
            shapes=({"x": "b 3 4", "y": "2"}, {"x": "", "y": "2"}),
            attributes={"to": [1], "saturate": [1], "round_mode": ["up"]},
            opset=24,
            counterexamples={"from what is not known": Variation(unknown=("x",), inputs={"y": "int64"})},
        ),
        keeps_dtype,
    ),
    _identity(
        "dropout",
        op.Dropout(
            x,
            ratio=attr("ratio"),
            training_mode=attr("training", lambda v, facts: v is None or v is False or v == 0),
            seed=attr("seed"),
        ),
        RuleTest(shapes=PLAIN.shapes, attributes={"ratio": [0.5], "training": [False], "seed": [0]}),
    ),
    Rule(
        name="noop.concat_empty_operand",
        formula="concat(x, nothing)",
        pattern=op.Concat(rest("parts"), axis=attr("axis")),
        replace=_concat_of_nonempty,
        makes=("Concat",),
        guards=(something_is_empty,),
        exactness=Exactness.EXACT,
        source="ONNX operator Concat",
        test=RuleTest(
            shapes={"whole": "b 3"},
            inputs={"parts": _with_nothing},
            attributes={"axis": [1, -1]},
            followed_by="Identity",
        ),
    ),
    _identity(
        "sum_of_single_input",
        op.Sum(var("x", _is_not_kept_apart, "not made by Pad or, in float64, a product")),
        RuleTest(shapes=PLAIN.shapes, redundant={"demand that *": "the runtime alone minds what is merged"}),
    ),
    Rule(
        name="noop.average_pool_1x1",
        pattern=op.AveragePool(
            x,
            kernel_shape=attr("kernel", _all_are(1), "all 1"),
            strides=attr("strides", _all_are(1), "all 1"),
            pads=attr("pads", _all_are(0), "all 0"),
            auto_pad=attr("auto_pad"),
            ceil_mode=attr("ceil_mode"),
            count_include_pad=attr("count_include_pad"),
        ),
        replace=x,
        # 0 + -0 is +0
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 2 3 4"},
            attributes={
                "kernel": [(1, 1)],
                "strides": [None, (1, 1)],
                "pads": [None, (0, 0, 0, 0)],
                "auto_pad": [None, "SAME_UPPER"],
                "ceil_mode": [0, 1],
                "count_include_pad": [0, 1],
            },
            redundant={
                "check of attribute pads": "the runtime refuses frames that are not smaller than the kernel",
                "check of attribute strides": "fewer elements are no replacement",
            },
            counterexamples={"a wider kernel": Variation(attributes={"kernel": (1, 2)})},
        ),
    ),
    Rule(
        # As exporters write positions of one token, from the length of the past on
        name="noop.add_zero_to_unsqueeze",
        pattern=op.Add(x, zero),
        replace=op.Unsqueeze(x, computed("axes", lambda match: ints(range(_added_axes(match))))),
        guards=(adds_axes_in_front, is_of_integers),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "", "zero": "1"}, {"x": "b", "zero": "1 1"}, {"x": "b 3", "zero": "1 1 3"}),
            inputs={"x": "int64", "zero": _zeros},
            opset=17,
            counterexamples={
                "more of them": Variation(shapes={"x": "", "zero": "2"}),
                "of numbers": Variation(inputs={"x": "float32", "zero": _zeros_of_float32}),
            },
        ),
    ),
]
