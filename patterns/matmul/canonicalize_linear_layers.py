"""Canonicalize linear layers to MatMul and Add; fold a Transpose into Gemm.

    linear(x) = x W + b

Exporters write it as MatMul + Add, as Gemm, or, for more than two axes, as either between two Reshapes. The canonical form is
MatMul + Add, which the runtime executes for any rank. Gemm on a two-dimensional input is left alone.

    gemm(transpose(x), w) = gemm(x, w, transA=1)        the same for w

The runtime merges the Transpose too, but deletes it even if it is a graph output, so that the model does not load.

    fused_gemm(x, W, c, activation) = activation(gemm(x, W, c))

The runtime fuses the two again when it loads the model. Models that it has saved contain FusedGemm, which no other rule knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.ir.dims import DimLike, product
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, fixed, ms, op, opt, var

from .._rule_test_inputs import COST
from .._shared_guards import ints

PASS = "fuse.linear"

SOURCE = "ONNX operator Gemm"

x = var("x")
weight = fixed("weight", "_ _")
bias = const("bias", "_")
flat = op.Reshape(x, var("flat_shape"), allowzero=attr("flat_allowzero")).named("flat").kept()


def _leading(match: Match) -> int | None:
    """How many axes are merged and restored; the last ones are multiplied, as one if they are several."""
    shapes = match.shapes("x", "flat", "gemm", "root")
    if isinstance(shapes, Refusal):
        return None
    before, between, outcome, after = shapes
    same = next((axis for axis, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before))
    for count in range(min(same, len(before) - 1, len(after) - 1), -1, -1):
        sides = [*before[count:], *after[count:]]
        known = len(sides) == 2 or all(isinstance(dim, int) and dim for dim in sides)
        if known and [product(before[count:]), product(after[count:])] == [between[-1], outcome[-1]]:
            return count
    return None


def only_last_axis_is_multiplied(match: Match) -> Refusal | None:
    """The Reshapes merge and restore all axes but the last, or the last ones of known sizes."""
    shapes = match.shapes("x", "flat", "gemm", "root")
    if isinstance(shapes, Refusal):
        return shapes
    before, between, outcome, _ = shapes
    if len(between) != 2 or product(before) != product(between):
        return match.refuse("shape", "flat", ("*", before[-1]))
    return None if _leading(match) is not None else match.unless_shape((*before[:-1], outcome[-1]), "root")


def _restored(layer: Callable[[Pattern], Pattern]) -> Callable[[Match], Pattern]:
    """The layer of x, whose last axes are merged before and split afterwards if need be."""

    def made(match: Match) -> Pattern:
        shapes = match.shapes("x", "flat", "root")
        assert not isinstance(shapes, Refusal)
        (before, between, after), count = shapes, _leading(match) or 0
        operand: Pattern = x
        if len(before) > count + 1:
            operand = _reshaped(x, "merged", count, between[1:])
        outcome = layer(operand)
        return outcome if len(after) == count + 1 else _reshaped(outcome, "split", count, after[count:])

    return made


def _reshaped(data: Pattern, name: str, count: int, sizes: Sequence[DimLike]) -> Pattern:
    target = [0] * count + [int(dim) for dim in sizes if isinstance(dim, int)]
    made: Pattern = op.Reshape(data, computed(name, lambda match: ints(target)))
    return made


def adds_its_bias(match: Match) -> Refusal | None:
    """The factor of the bias is 1, or there is no bias."""
    return match.unless_value("beta", match["bias"] is None or match["beta"] in (None, 1), 1)


def _flat_shapes(weight: Callable[[int], str]) -> tuple[dict[str, str], ...]:
    """The shapes of two instances: the last axis of the product stays, or is split."""
    return tuple(
        {"x": given, "weight": weight(size), "bias": f"{size}", "flat_shape": "2", "shape": axes}
        for size, given, axes in ((5, "2 3 4", "3"), (6, "2 3 4", "4"), (5, "2 3 2 2", "3"))
    )


def _restoring(build: Any) -> ir.Value:
    """The target that brings back the leading axes and, if the product has six columns, splits them."""
    made: ir.Value = build.constant(ints([2, 3, 3, 2] if 6 in build.dims("weight") else [2, 3, 5]))
    return made


def _reshape_gemm(name: str, transposed: int, factor: Pattern) -> Rule:
    gemm = op.Gemm(flat, weight, opt(bias), transB=transposed, beta=attr("beta")).named("gemm")
    return Rule(
        name=name,
        pattern=op.Reshape(gemm, var("shape"), allowzero=attr("allowzero")),
        replace=built(_restored(lambda data: op.MatMul(data, factor) + opt(bias)), makes=("MatMul", "Add", "Reshape")),
        guards=(only_last_axis_is_multiplied, adds_its_bias),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=_flat_shapes(lambda size: f"{size} 4" if transposed else f"4 {size}"),
            constants={"flat_shape": [-1, 4]},
            inputs={"shape": _restoring},
            attributes={"allowzero": [0, 1], "flat_allowzero": [0, 1], "beta": [1.0]},
            opset=17,
            redundant={"demand that *": COST},
            counterexamples={"a bias for each row": Variation(shapes={"bias": "6 1"})},
        ),
    )


def _reshape_matmul() -> Rule:
    outcome = (op.MatMul(flat, weight) + opt(bias)).named("gemm")
    return Rule(
        name="linear.matmul_between_reshapes",
        pattern=op.Reshape(outcome, var("shape"), allowzero=attr("allowzero")),
        replace=built(_restored(lambda data: op.MatMul(data, weight) + opt(bias)), makes=("MatMul", "Add", "Reshape")),
        guards=(only_last_axis_is_multiplied,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator MatMul",
        test=RuleTest(
            shapes=_flat_shapes(lambda size: f"4 {size}"),
            constants={"flat_shape": [-1, 4]},
            inputs={"shape": _restoring},
            attributes={"allowzero": [0], "flat_allowzero": [0]},
            opset=17,
            redundant={"demand that *": COST},
            counterexamples={"a bias for each row": Variation(shapes={"bias": "6 1"})},
        ),
    )


def flipped(name: str) -> Callable[[Match], int]:
    """The opposite of a captured flag."""
    return lambda match: 1 - int(match[name])


def _transposed(name: str) -> Rule:
    """Gemm reads one of its operands transposed."""
    operands: dict[str, Pattern] = {"A": var("a"), "B": var("b")}
    swapped = {"A": op.Transpose(var("a"), perm=(1, 0)).kept(), "B": op.Transpose(var("b"), perm=(1, 0)).kept()}
    flags: dict[str, Any] = {f"trans{side}": attr(f"trans{side}") for side in "AB"}
    factors = {side: attr(side) for side in ("alpha", "beta")}
    before = {**operands, name: swapped[name]}
    other = f"trans{name}"
    return Rule(
        name=f"linear.gemm_of_transposed_{name.lower()}",
        pattern=op.Gemm(before["A"], before["B"], opt(var("c")), **flags, **factors),
        replace=op.Gemm(operands["A"], operands["B"], opt(var("c")), **{**flags, other: flipped(other)}, **factors),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=_SHAPES[name],
            attributes=tuple(
                {"transA": [a], "transB": [b], "alpha": [1.0, 0.5], "beta": [1.0, 2.0]} for a, b in _FLAGS
            ),
        ),
    )


ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu")


def activation_is_known(match: Match) -> Refusal | None:
    """It is one of `ACTIVATIONS`, with its slope if it has one."""
    slope = match["slope"] is not None
    fits = match["activation"] in ACTIVATIONS and slope == (match["activation"] == "LeakyRelu")
    return match.unless_value("activation", fits, f"one of {', '.join(ACTIVATIONS)}, with a slope for the last alone")


def _activated(match: Match) -> Pattern:
    flags = {name: attr(name) for name in ("transA", "transB", "alpha", "beta")}
    gemm = op.Gemm(var("a"), var("b"), var("c"), **flags)
    slope = {"alpha": attr("slope")} if match["activation"] == "LeakyRelu" else {}
    made: Pattern = getattr(op, match["activation"])(gemm, **slope)
    return made


def _fused() -> Rule:
    names = ("transA", "transB", "alpha", "beta", "activation")
    how: dict[str, Any] = {name: attr(name) for name in names}
    flags: dict[str, list[Any]] = {"transA": [0], "transB": [1], "alpha": [0.5], "beta": [2.0]}
    return Rule(
        name="linear.split_fused_gemm_activation",
        pattern=ms.FusedGemm(var("a"), var("b"), var("c"), activation_alpha=attr("slope"), **how),
        replace=built(_activated, makes=("Gemm", *ACTIVATIONS)),
        guards=(activation_is_known,),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime operator com.microsoft.FusedGemm",
        test=RuleTest(
            shapes=({"a": "m 4", "b": "5 4", "c": "5"}, {"a": "m 4", "b": "5 4", "c": "5"}),
            attributes=(
                {**flags, "activation": list(ACTIVATIONS[:3]), "slope": [None]},
                {**flags, "activation": ["LeakyRelu"], "slope": [0.3]},
            ),
        ),
    )


_FLAGS = ((0, 0), (0, 1), (1, 0), (1, 1))
_SHAPES = {
    side: tuple(
        {
            "a": "4 m" if bool(a) != (side == "A") else "m 4",
            "b": "5 4" if bool(b) != (side == "B") else "4 5",
            "c": "5",
        }
        for a, b in _FLAGS
    )
    for side in "AB"
}

RULES = [
    _fused(),
    _reshape_matmul(),
    _transposed("A"),
    _transposed("B"),
    _reshape_gemm("linear.gemm_between_reshapes", 0, weight),
    # The Transpose of the constant will be folded.
    _reshape_gemm("linear.gemm_trans_b_between_reshapes", 1, op.Transpose(weight, perm=(1, 0))),
]
