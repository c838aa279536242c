"""Rewrite dequantized weights and biases so that the runtime computes Gemm and MatMul in integers.

transpose(dq(w8)) = dq(transpose(w8))                     w8 constant: the integers are transposed, once
reshape(dq(w8)) = dq(reshape(w8))                         the same with one step for all

x W + b, as Gemm or MatMul and Add with two axes  =  gemm(x, W) + b         x and W dequantised, b in float32

x W + b  =  x W + b[None]                          the same with more axes, all of known sizes, which the runtime flattens

ONNX Runtime (1.31 among others) computes a Gemm with a bias in integers only if the bias is made of integers too, as its own
quantiser writes it, or if the result is quantised at once. It fuses MatMul and Add to such a Gemm by itself if the bias has
one axis, and the MatMul two axes or known sizes. Without bias, Gemm becomes QGemm, whose result is in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import DEQUANTISES, QUANTISES, has
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, redundant, var
from ortfuse.runtime.int8_matmul_saturation import saturates

from .._shared_guards import ints

SOURCE = "ONNX Runtime graph transformer QDQSelectorActionTransformer"

NEEDLESS = "it would be right, but the runtime computes the product in float32"


def _of_bytes(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is made of 8-bit integers by a DequantizeLinear."""
    node = value.producer()
    if node is None or not has(node, DEQUANTISES):
        return False
    return facts.dtype(node.inputs[0]) in (ir.DataType.INT8, ir.DataType.UINT8)


def _made_of_bytes(name: str) -> Any:
    """Make an input of a rule test: dequantised numbers."""

    def make(build: Any) -> ir.Value:
        whole = build.input(f"{name}8", build.dims(name), ir.DataType.UINT8)
        step, zero = (
            build.constant(np.float32(0.05), ir.DataType.FLOAT),
            build.constant(np.uint8(120), ir.DataType.UINT8),
        )
        made: ir.Value = build.node("DequantizeLinear", [whole, step, zero]).outputs[0]
        return made

    return make


BYTES: dict[str, Any] = {"check": _of_bytes, "text": "dequantised numbers of 8 bits"}
weight, step, zero = const("weight"), const("step"), const("zero")
x, w, bias = var("x", "m k", **BYTES), var("w", **BYTES), var("bias")
turned, to = attr("transB"), const("to")


def _perm(match: Match) -> list[int]:
    rank = match.rank("weight") or 0
    return [*(match["perm"] or reversed(range(rank)))]


def _moved_axis(match: Match) -> int:
    rank = match.rank("weight") or 1
    axis = 1 if match["axis"] is None else match["axis"]
    return _perm(match).index(axis % rank) if -rank <= axis < rank else axis


def has_one_scale_or_an_axis(match: Match) -> Refusal | None:
    """There is one step for all, or one for each index of an axis, and not for blocks."""
    rank = match.rank("weight")
    if match.const("step").size == 1 or match.const("step").ndim == 1:
        return None if rank else match.refuse("rank", "weight", "at least one axis")
    return match.refuse("shape", "step", "one for each index of an axis")


def has_one_scale(match: Match) -> Refusal | None:
    """There is one step for all."""
    one = match.const("step").size == 1 == match.const("zero").size
    return None if one else match.refuse("shape", "step", "one for all")


def _reshaped(operand: Pattern) -> Pattern:
    return (op.Reshape(operand, to) | op.Unsqueeze(operand, to) | op.Squeeze(operand, to)).named("reshaped")


_ONE = {"step": "", "zero": ""}
"""The shapes of one step for all."""


def _target(build: Any) -> ir.Value:
    """Another shape of twelve numbers, or the first axis."""
    made: ir.Value = build.constant(ints([3, 4] if build.dims("to") == [2] else [0]))
    return made


@redundant(NEEDLESS)
def bias_is_in_float32(match: Match) -> Refusal | None:
    """The bias is not made of integers: then the runtime computes the product in integers as it is."""
    node = match["bias"].producer()
    made = node is not None and has(node, DEQUANTISES)
    return match.refuse("needless", "bias", found="it is made of integers") if made else None


@redundant(NEEDLESS)
def is_not_quantised_at_once(match: Match) -> Refusal | None:
    """The result is not quantised at once: then the runtime makes integers of the bias itself."""
    uses = match.root.uses()
    at_once = bool(uses) and all(has(use.node, QUANTISES) for use in uses)
    return match.refuse("needless", "root", found="the result is quantised at once") if at_once else None


@redundant(NEEDLESS)
def all_sizes_are_known(match: Match) -> Refusal | None:
    """The runtime knows all sizes of what is multiplied, so that it makes two axes of them."""
    shape = match.facts.inferred_shape(match["x"])
    if shape is not None and all(isinstance(dim, int) for dim in shape):
        return None
    return match.refuse("needless", "x", found="the runtime leaves products of open sizes as they are")


@redundant("it is right as it is defined: the runtime's integers are wrong then, on some processors")
def sums_do_not_saturate(match: Match) -> Refusal | None:
    """Sums of two products fit into 16 bits, or the processor does without: what is in float32 is more exact otherwise."""
    if not saturates():
        return None
    node = match["w"].producer()
    if node is None or match.facts.dtype(node.inputs[0]) is ir.DataType.UINT8:
        return None
    whole = match.facts.const(node.inputs[0])
    small = whole is not None and bool(np.all(np.abs(whole.astype(np.int16)) <= _SMALL))
    return match.unless_value("w", small, f"of integers from -{_SMALL} to {_SMALL}, on a processor without VNNI")


_SMALL = 64
"""Two products of signed numbers up to this with unsigned ones fit into 16 bits."""


def is_multiplied_by_one(match: Match) -> Refusal | None:
    """The bias is added as it is."""
    return match.unless_value("beta", match["beta"] in (None, 1), "1")


def _rule(name: str, formula: str, pattern: Any, replace: Any, shapes: Any, guards: Any = (), **test: Any) -> Rule:
    return Rule(
        name=f"quantized.{name}",
        formula=formula,
        is_refinement=True,
        pattern=pattern,
        replace=replace,
        guards=(bias_is_in_float32, is_not_quantised_at_once, sums_do_not_saturate, *guards),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=shapes,
            inputs={"x": _made_of_bytes("x"), "w": _made_of_bytes("w")},
            redundant={"check of x": NEEDLESS, "check of w": NEEDLESS},
            **test,
        ),
    )


factor = attr("alpha")
row = computed("row", lambda match: ints([1, -1]))

RULES = [
    Rule(
        name="quantized.transpose_of_dequantized_weight",
        formula="Transpose(DequantizeLinear(weight, step, zero))",
        pattern=op.Transpose(op.DequantizeLinear(weight, step, zero, axis=attr("axis")), perm=attr("perm")),
        replace=op.DequantizeLinear(op.Transpose(weight, perm=_perm), step, zero, axis=_moved_axis),
        guards=(has_one_scale_or_an_axis,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"weight": "4 3", "step": "3", "zero": "3"},
            constants={
                "weight": np.arange(-6, 6, dtype=np.int8).reshape(4, 3),
                "step": np.array([0.03, 0.1, 0.2], np.float32),
                "zero": np.array([2, 0, -3], np.int8),
            },
            attributes={"axis": [1, -1], "perm": [(1, 0), None]},
            counterexamples={
                "one step for all": Variation(
                    shapes={"step": "", "zero": ""}, constants={"step": np.float32(0.03), "zero": np.int8(2)}
                )
            },
        ),
    ),
    Rule(
        name="quantized.reshape_of_dequantized_weight",
        formula="Reshape, Unsqueeze or Squeeze of DequantizeLinear(weight, step, zero)",
        pattern=_reshaped(op.DequantizeLinear(weight, step, zero, axis=attr("axis"))),
        replace=op.DequantizeLinear(_reshaped(weight), step, zero),
        guards=(has_one_scale,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes=({"weight": "1 12", "to": "2", **_ONE}, *({"weight": "1 12", "to": "1", **_ONE},) * 2),
            alternatives=[{"reshaped": kind} for kind in range(3)],
            constants={"weight": np.arange(-6, 6, dtype=np.int8), "step": np.float32(0.03), "zero": np.int8(2)},
            inputs={"to": _target},
            attributes={"axis": [1]},
        ),
    ),
    _rule(
        "gemm_bias_to_add",
        "gemm(x, W, bias)",
        op.Gemm(x, w, bias, transB=turned, alpha=factor, beta=attr("beta")),
        op.Gemm(x, w, transB=turned, alpha=factor) + bias,
        ({"w": "k 5", "bias": "5"}, {"w": "5 k", "bias": "5"}),
        (is_multiplied_by_one,),
        attributes=(
            {"transB": [0], "alpha": [1.0, 0.5], "beta": [1.0]},
            {"transB": [1], "alpha": [1.0, 0.5], "beta": [1.0]},
        ),
    ),
    _rule(
        "matmul_add_to_gemm_add",
        "x W + bias",
        op.MatMul(x, var("w", "k n", **BYTES)) + bias,
        op.Gemm(x, var("w")) + bias,
        {"bias": "n"},
    ),
    _rule(
        "unsqueeze_bias_after_matmul",
        "x W + bias, of known sizes",
        op.MatMul(var("x", "... b m k", **BYTES), var("w", "k n", **BYTES)) + var("bias", "n"),
        op.MatMul(var("x"), var("w")) + op.Reshape(var("bias"), row),
        {"x": "2 3 4", "m": 3, "k": 4, "n": 5},
        (all_sizes_are_known,),
    ),
]
