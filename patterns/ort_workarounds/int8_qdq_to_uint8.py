"""Convert pairs of QuantizeLinear and DequantizeLinear from int8 to uint8 before the runtime does.

DequantizeLinear(QuantizeLinear(x, s, z), s, z) = DequantizeLinear(QuantizeLinear(x, s, z + 128), s, z + 128)

ONNX Runtime (1.31 among others) converts int8 pairs to uint8 on processors whose fast kernels take unsigned activations. It does
not if several operators read the dequantised value, which it then computes in float32. It may also have moved such a pair
across a Reshape, Transpose, Squeeze, Unsqueeze or Slice. From opset 21 on, that pair has the attribute `output_dtype`, which
stays int8, and the model does not load. Pairs that are uint8 already compute the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import MOVES, has
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, computed, const, op, redundant, var
from ortfuse.runtime.int8_matmul_saturation import saturates
from ortfuse.targets import Quirk
from ortfuse.transforms.veto_edits_that_join_qdq_pairs import UNSEEN, has_scales

x = var("x")


def _is_signed(dtype: Any, facts: Facts) -> bool:
    return dtype in (None, 0, int(ir.DataType.INT8))


step, zero, whole = const("step"), const("zero"), const("whole")
along = {"axis": attr("axis")}
named = {"output_dtype": attr("named", _is_signed, "int8, or not given")}


def _unsigned(name: str) -> Any:
    """A constant of bytes, 128 higher."""
    return computed(f"{name}_unsigned", lambda match: (match.const(name).astype(np.int16) + 128).astype(np.uint8))


unsigned = _unsigned("zero")


def has_one_step(match: Match) -> Refusal | None:
    """There is one step for all, above 0: integer kernels take no others for activations, and some fail on them."""
    step = match.const("step")
    return match.unless_value(
        "step", step.size == 1 == match.const("zero").size and bool(np.all(step > 0)), "one above 0"
    )


_COARSE = ("Softmax",)
"""Operators whose kernels of integers are less exact than rounding: off by several steps of their result."""


@redundant("it would be right, but the runtime's kernel of integers is less exact")
def is_beside_no_coarse_kernel(match: Match) -> Refusal | None:
    """The runtime makes no kernel of integers of it that is less exact than those in float32."""
    maker = match["x"].producer()
    while maker is not None and has(maker, MOVES) and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    after, readers = [match.root], list[ir.Node]()
    while after:
        nodes = after.pop().consumers()
        after += [node.outputs[0] for node in nodes if has(node, MOVES)]
        readers += nodes
    if not any(node.op_type in _COARSE for node in (*readers, *([] if maker is None else [maker]))):
        return None
    return match.refuse("kernel_limit", "root", "numbers of operators whose kernels of integers are as exact")


_ALIKE = ("Add", "Mul", "Concat", "Where")
"""Operators whose kernels of integers take numbers of one type."""


@redundant("it would be right, but the runtime makes no kernel of integers of it")
def is_beside_unsigned_numbers(match: Match) -> Refusal | None:
    """All that reads the constant takes numbers of one type, and has unsigned ones beside it."""
    readers = match.root.consumers()
    if readers and all(node.op_type in _ALIKE and _reads_unsigned(node, match) for node in readers):
        return None
    return match.refuse(
        "needless", "root", found="no unsigned numbers are added to it, joined with it, or multiplied by it"
    )


def _reads_unsigned(node: ir.Node, match: Match) -> bool:
    makers = [value.producer() for value in node.inputs if value is not None and value is not match.root]
    return any(
        maker is not None
        and maker.op_type == "DequantizeLinear"
        and match.facts.dtype(maker.inputs[0]) == ir.DataType.UINT8
        for maker in makers
    )


def _beside_unsigned(build: Any, root: ir.Value) -> ir.Value:
    """The sum with dequantised numbers that are unsigned."""
    whole = build.input("whole", [], ir.DataType.UINT8)
    one, none = build.constant(np.float32(0.5), ir.DataType.FLOAT), build.constant(np.uint8(9), ir.DataType.UINT8)
    numbers = build.node("DequantizeLinear", [whole, one, none]).outputs[0]
    made: ir.Value = build.node("Add", [root, numbers]).outputs[0]
    return made


def is_signed(match: Match) -> Refusal | None:
    """The numbers between the two are signed, of 8 bits, and their products are as exact if they are unsigned.

    A pair with one reader the runtime makes unsigned by itself, on every processor.
    """
    node = match.root.producer()
    quantised = None if node is None else node.inputs[0]
    readers = [use.node.op_type for use in match.root.uses()]
    is_single = (
        quantised is not None and len(quantised.uses()) == 1 and len(readers) + match.root.is_graph_output() <= 1
    )
    is_single = is_single and not UNSEEN.intersection(readers)
    if not is_single and saturates():
        return match.refuse("condition", "root", "a processor on which products of unsigned numbers do not saturate")
    return match.unless_dtype("zero", ir.DataType.INT8)


def is_of_one_step_with_its_neighbours(match: Match) -> Refusal | None:
    """Pairs next to it are like it: of two of one type the runtime makes one with a third step, and of others it does not."""
    node = match.root.producer()
    if node is None or has_scales(node, match.facts, UNSEEN):
        return match.refuse("value", "step", "that of all pairs next to this one")
    return None


RULES = [
    Rule(
        name="ort.int8_qdq_pair_to_uint8",
        formula="DequantizeLinear(QuantizeLinear(x, step, zero), step, zero)",
        pattern=op.DequantizeLinear(op.QuantizeLinear(x, step, zero, **along, **named), step, zero, **along),
        replace=op.DequantizeLinear(op.QuantizeLinear(x, step, unsigned, **along), step, unsigned, **along),
        is_refinement=True,
        because=Quirk.TURNS_SIGNED_PAIRS,
        guards=(is_signed, has_one_step, is_of_one_step_with_its_neighbours, is_beside_no_coarse_kernel),
        exactness=Exactness.EXACT,
        source="ONNX Runtime graph transformer QDQS8ToU8Transformer",
        test=RuleTest(
            shapes={"x": "b 3 4", "step": "", "zero": ""},
            attributes=({"axis": [1], "named": [0]}, {"axis": [1], "named": [int(ir.DataType.INT8)]}),
            constants={"step": np.float32(0.03), "zero": np.int8(-7)},
            opset=21,
        ),
    ),
    Rule(
        name="ort.int8_dequantized_constant_to_uint8",
        formula="DequantizeLinear(constant, step, zero)",
        pattern=op.DequantizeLinear(whole, step, zero, **along),
        replace=op.DequantizeLinear(_unsigned("whole"), step, unsigned, **along),
        is_refinement=True,
        because=Quirk.TURNS_SIGNED_PAIRS,
        guards=(is_signed, has_one_step, is_beside_unsigned_numbers),
        exactness=Exactness.EXACT,
        source="ONNX Runtime graph transformer QDQS8ToU8Transformer",
        test=RuleTest(
            shapes={"whole": "3 4", "step": "", "zero": ""},
            attributes={"axis": [1]},
            constants={
                "whole": np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
                "step": np.float32(0.03),
                "zero": np.int8(-7),
            },
            followed_by=_beside_unsigned,
        ),
    ),
]
