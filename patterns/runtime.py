"""Rewrites that keep the runtime's own optimisations from making a model slower, or from crashing on it.

LayerNormalization(Add(x, skip)) = LayerNormalization(Sum(x, skip))

At session creation ONNX Runtime (1.23 to 1.32) fuses a sum of two values that it knows to have the same three axes, which nothing
else uses, and the normalisation behind it into SkipLayerNormalization, which on the CPU is several times slower than the two
(benchmarks/kernels/kernels.md). It looks for Add; Sum computes the same bits, by one thread, so that it takes a little longer.

MatMul(transpose(x), y) = MatMul(squeeze(transpose(unsqueeze(x))), y)

ONNX Runtime (1.31 among others) crashes when it creates a session for this product of float16 if the Transpose moves the first
axis behind the batch axes and the operands differ in rank, as with a weight. The CPU has no such product, so a Cast to float32
is inserted; MatmulTransposeFusion swaps the two, then gives up because of the ranks without reporting that it has changed the
graph, and NchwcTransformer reads the missing schema of the new nodes. A Cast in the model itself triggers it as well. The
fusion only looks for a Transpose there, so with a Squeeze in its place it changes nothing.

MaxPool(Pad(x)) = MaxPool(Pad(x), auto_pad=VALID)

Pad_Fusion of ONNX Runtime (1.31 among others) moves a Pad with zeros into the MaxPool behind it, whose own padding is lower than
any number: where x is negative at the border, the maximum is no longer 0. It leaves a MaxPool alone that says how it pads.

MaxPool(Pad(x), pads) = MaxPool(Sum(Pad(x)), pads)

It does the same where the MaxPool has a padding of its own, or rounds the size of its result up. A Sum of one operand, which
copies it, keeps the two apart.

MatMul(x c, y) = MatMul(Sum(x c), y)          c MatMul(x, y) = c Sum(MatMul(x, y))

MatMulScaleFusion of ONNX Runtime (1.31 among others) makes one operator of a product and its factor, which is an attribute of
float32, in float64 too. Factors that are computed in the model it leaves alone, until they are folded.

DequantizeLinear(QuantizeLinear(x, s, z), s, z) = DequantizeLinear(QuantizeLinear(x, s, z + 128), s, z + 128)

On processors whose fast kernels take unsigned activations, ONNX Runtime (1.31 among others) makes pairs of signed 8 bits
unsigned, but not where several operators read what is dequantised, which it then computes in float32. Where it has put such
a pair on the other side of a Reshape, Transpose, Squeeze, Unsqueeze or Slice before, that has the attribute `output_dtype` from
opset 21 on, which stays int8: it does not load the model. Pairs that are unsigned already compute the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.execution.integer_products import saturates
from ortfuse.facts.facts import Facts
from ortfuse.graph.traits import MOVES, has
from ortfuse.passes.pairs_apart import UNSEEN, has_scales
from ortfuse.pattern import Guard, Match, Pattern, all_attributes, attr, computed, const, op, opt, redundant, var
from ortfuse.pattern.operators import attribute_value, parameter
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule
from ortfuse.targets import Quirk

from ._common import ints

SOURCE = "ONNX Runtime graph transformer SkipLayerNormFusion"

x, skip, scale, bias = var("x"), var("skip"), var("scale"), var("bias")
added = op.Add(x, skip).named("added")
summed = op.Sum(x, skip)


@redundant("Sum computes what Add does; the runtime fuses nothing here")
def is_taken_by_the_normalisation_alone(match: Match) -> Refusal | None:
    """The runtime fuses the sum: nothing else uses it, and both operands are known to have the same three axes."""
    added = match["added"]
    if len(added.uses()) > 1 or added.is_graph_output():
        return match.refuse("needless", "added", found="the runtime leaves sums alone that are used elsewhere, too")
    one, other = (match.facts.inferred_shape(match[name]) for name in ("x", "skip"))
    if one is None or len(one) != 3 or one != other or None in one:
        return match.refuse(
            "needless",
            "added",
            found="the runtime leaves other sums alone than those of two values that it knows to have the same three axes",
        )
    return None


def _moves_first_axis(perm: Any, facts: Any) -> bool:
    """The first axis is moved behind the batch axes, before or after the last one."""
    if not isinstance(perm, tuple | list) or len(perm) < 3:
        return False
    last = len(perm) - 1
    return list(perm) in ([*range(1, last), 0, last], [*range(1, last), last, 0])


HEALTHY = "it would be right, but the runtime does not crash"


@redundant(HEALTHY)
def crashes_in_product(match: Match) -> Refusal | None:
    """The result, in float16 or after a Cast, is multiplied by something that may have another rank."""
    operands = [match.root] if match.dtype("root") == ir.DataType.FLOAT16 else []
    operands += [user.outputs[0] for user in match.root.consumers() if user.op_type == "Cast"]
    for operand in operands:
        for product in operand.consumers():
            if product.op_type not in ("MatMul", "FusedMatMul"):
                continue
            ranks = {None if value is None else match.facts.rank(value) for value in product.inputs}
            if None in ranks or len(ranks) > 1:
                return None
    return match.refuse("needless", "root", found="no float16 product of it has operands that may differ in rank")


def _product(build: Any, root: ir.Value) -> ir.Value:
    """The product with a weight on which the runtime may crash."""
    made: ir.Value = build.node("MatMul", [root, build.constant(np.ones((4, 5), np.float16))]).outputs[0]
    return made


def _lifted_permutation(match: Match) -> list[int]:
    return [0, *(axis + 1 for axis in match["perm"])]


_front = computed("front", lambda match: ints([0]))  # axes are an input since opset 13


def _is_not_padded(pads: Any, facts: Any) -> bool:
    return pads is None or not any(pads)


def _is_not_automatic(kind: Any, facts: Any) -> bool:
    return kind in (None, "NOTSET")


def _is_not_rounded_up(mode: Any, facts: Any) -> bool:
    return not mode


pooled = {name: attr(name) for name in ("kernel_shape", "strides", "dilations", "storage_order")}
SOUND = "it would be right, but the runtime does not merge it"


@redundant(SOUND)
def is_padded_with_zeros(match: Match) -> Refusal | None:
    """The input is made by a Pad that the runtime merges, and may be negative."""
    needless = match.refuse("needless", "root", found="the runtime merges no padding into it that changes the result")
    facts, pad = match.facts, match["x"].producer()
    if pad is None or pad.op_type != "Pad" or attribute_value(pad, "mode", facts) not in (None, "constant"):
        return needless
    filling = pad.inputs[2] if len(pad.inputs) > 2 else None
    if (facts.scalar(filling) if filling is not None else attribute_value(pad, "value", facts)) not in (None, 0):
        return needless
    names_axes = len(pad.inputs) > 3
    return needless if names_axes or _zeros_change_nothing(match, pad) else None


def _zeros_change_nothing(match: Match, pad: ir.Node) -> bool:
    """Whether every maximum is one of numbers of the image that are not negative, whatever stands around it."""
    values = match.facts.range(pad.inputs[0]) if pad.inputs[0] is not None else None
    border, kernel = parameter(pad, "pads", match.facts), match["kernel_shape"]
    dilated = any(step != 1 for step in match["dilations"] or ())
    # Rounded up, a window may begin where there are zeros alone, and without the zeros there is none.
    beyond = match.get("ceil_mode") and any(step != 1 for step in match["strides"] or ())
    if values is None or values.low < 0 or not isinstance(border, tuple | list) or dilated or beyond:
        return False
    half = len(border) // 2
    around = [*border[2:half], *border[half + 2 :]]
    return all(
        isinstance(zeros, int) and zeros + more < size
        for zeros, more, size in zip(around, match["pads"] or [0] * len(around), [*kernel, *kernel], strict=True)
    )


@redundant("it would be right, but `valid_max_pool` is for it")
def has_windows_beyond(match: Match) -> Refusal | None:
    """The MaxPool has a padding of its own, or rounds the size of its result up."""
    if any(match["pads"] or ()) or match["ceil_mode"]:
        return None
    return match.refuse("needless", "root", found="it has no padding of its own")


@redundant(SOUND)
def gives_no_indices(match: Match) -> Refusal | None:
    """Only the maxima are asked for: the runtime merges no padding where the indices are."""
    node = match.root.producer()
    if node is not None and any(output.name for output in node.outputs[1:]):
        return match.refuse("needless", "root", found="the runtime merges no padding into a MaxPool with indices")
    return None


def _padded(build: Any) -> ir.Value:
    """An image with a border of zeros."""
    image = build.input("image", build.dims("x"))
    border = build.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    made: ir.Value = build.node("Pad", [image, border]).outputs[0]
    return made


_poolings: dict[str, list[Any]] = {
    "kernel_shape": [(3, 2)],
    "strides": [(1, 1), (2, 2)],
    "dilations": [(1, 1), (2, 1)],
    "storage_order": [0],
    "auto_pad": ["NOTSET"],
}

factor = const("factor")


def is_rounded(match: Match) -> Refusal | None:
    """A number of float64 that float32 does not hold, nor its inverse."""
    refused = match.unless_dtype("x", ir.DataType.DOUBLE)
    if refused is not None or match.const("factor").size != 1:
        return refused or match.refuse("shape", "factor", "a number")
    with np.errstate(all="ignore"):
        number = 1 / match.const("factor") if match.choice("scaled") else match.const("factor")
        held = bool(np.all(number.astype(np.float32) == number))
    return match.refuse("needless", "factor", found="float32 holds it") if held else None


@redundant("it would be right, but the runtime joins nothing there")
def scales_an_operand(match: Match) -> Refusal | None:
    """The scaled value is multiplied by a matrix."""
    found = any(user.op_type == "MatMul" for user in match.root.consumers())
    return None if found else match.refuse("needless", "root", found="it is no operand of a product")


def _scaled(operand: Pattern) -> Pattern:
    """A number times a value, or a value divided by it."""
    return (op.Mul(operand, factor) | op.Div(operand, factor)).named("scaled")


def _as_it_was(match: Match, operand: Pattern) -> Pattern:
    made: Pattern = op.Div(operand, factor) if match.choice("scaled") else op.Mul(operand, factor)
    return made


def _multiplied(build: Any, root: ir.Value) -> ir.Value:
    """A product with a matrix."""
    made: ir.Value = build.node("MatMul", [root, build.constant(np.ones((4, 5)))]).outputs[0]
    return made


def _factor_apart(name: str, formula: str, operand: Pattern, replace: Any, *guards: Guard, **proof: Any) -> Rule:
    return Rule(
        name=f"runtime.{name}",
        formula=formula,
        pattern=_scaled(operand),
        replace=replace,
        makes=("Sum", "Mul", "Div"),
        is_refinement=True,
        because=Quirk.ROUNDS_FACTORS_OF_PRODUCTS,
        guards=(is_rounded, *guards),
        exactness=Exactness.EXACT,
        source="ONNX Runtime graph transformer MatMulScaleFusion",
        proof=Proof(
            constants={"factor": 0.3},
            dtypes=("float64",),
            opset=17,
            redundant={"demand that factor is constant": "the runtime leaves others alone"},
            **proof,
        ),
    )


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
        name="runtime.unsigned_pair",
        formula="DequantizeLinear(QuantizeLinear(x, step, zero), step, zero)",
        pattern=op.DequantizeLinear(op.QuantizeLinear(x, step, zero, **along, **named), step, zero, **along),
        replace=op.DequantizeLinear(op.QuantizeLinear(x, step, unsigned, **along), step, unsigned, **along),
        is_refinement=True,
        because=Quirk.TURNS_SIGNED_PAIRS,
        guards=(is_signed, has_one_step, is_of_one_step_with_its_neighbours, is_beside_no_coarse_kernel),
        exactness=Exactness.EXACT,
        source="ONNX Runtime graph transformer QDQS8ToU8Transformer",
        proof=Proof(
            shapes={"x": "b 3 4", "step": "", "zero": ""},
            attributes=({"axis": [1], "named": [0]}, {"axis": [1], "named": [int(ir.DataType.INT8)]}),
            constants={"step": np.float32(0.03), "zero": np.int8(-7)},
            opset=21,
        ),
    ),
    Rule(
        name="runtime.unsigned_constant",
        formula="DequantizeLinear(constant, step, zero)",
        pattern=op.DequantizeLinear(whole, step, zero, **along),
        replace=op.DequantizeLinear(_unsigned("whole"), step, unsigned, **along),
        is_refinement=True,
        because=Quirk.TURNS_SIGNED_PAIRS,
        guards=(is_signed, has_one_step, is_beside_unsigned_numbers),
        exactness=Exactness.EXACT,
        source="ONNX Runtime graph transformer QDQS8ToU8Transformer",
        proof=Proof(
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
    _factor_apart(
        "scaled_operand_apart",
        "MatMul(x c, y)",
        x,
        lambda match: op.Sum(_as_it_was(match, x)),
        scales_an_operand,
        shapes={"x": "b 3 4", "factor": ""},
        followed_by=_multiplied,
    ),
    _factor_apart(
        "scaled_product_apart",
        "c MatMul(x, y)",
        op.MatMul(x, var("y")).named("product"),
        lambda match: _as_it_was(match, op.Sum(op.MatMul(x, var("y")))),
        shapes={"x": "b 3 4", "y": "4 5", "factor": ""},
    ),
    Rule(
        name="runtime.valid_max_pool",
        formula="MaxPool(Pad(x))",
        pattern=op.MaxPool(
            x,
            **pooled,
            pads=attr("pads", _is_not_padded, "0"),
            auto_pad=attr("auto_pad", _is_not_automatic, "NOTSET"),
            ceil_mode=attr("ceil_mode", _is_not_rounded_up, "0"),
        ),
        replace=op.MaxPool(x, **pooled, auto_pad="VALID"),
        is_refinement=True,
        because=Quirk.MERGES_ZEROS_INTO_MAX_POOL,
        guards=(is_padded_with_zeros, gives_no_indices),
        exactness=Exactness.EXACT,
        source="ONNX Runtime rewrite rule Pad_Fusion",
        proof=Proof(
            shapes={"x": "1 2 5 6"},
            inputs={"x": _padded},
            attributes={**_poolings, "pads": [(0, 0, 0, 0)], "ceil_mode": [0]},
        ),
    ),
    Rule(
        name="runtime.apart_max_pool",
        formula="MaxPool(Pad(x), pads)",
        pattern=op.MaxPool(
            x,
            **pooled,
            pads=attr("pads"),
            auto_pad=attr("auto_pad", _is_not_automatic, "NOTSET"),
            ceil_mode=attr("ceil_mode"),
        ),
        replace=op.MaxPool(op.Sum(x), **pooled, pads=attr("pads"), ceil_mode=attr("ceil_mode")),
        is_refinement=True,
        because=Quirk.MERGES_ZEROS_INTO_MAX_POOL,
        guards=(is_padded_with_zeros, has_windows_beyond, gives_no_indices),
        exactness=Exactness.EXACT,
        source="ONNX Runtime rewrite rule Pad_Fusion",
        proof=Proof(
            shapes=({"x": "1 2 5 6"}, {"x": "1 2 5 6"}),
            inputs={"x": _padded},
            attributes=(
                {**_poolings, "pads": [(1, 1, 0, 1)], "ceil_mode": [0]},
                {**_poolings, "pads": [(0, 0, 0, 0)], "ceil_mode": [1]},
            ),
        ),
    ),
    Rule(
        name="runtime.sum_before_layernormalization",
        formula="LayerNormalization(x + skip)",
        pattern=op.LayerNormalization(added, scale, opt(bias), attributes=all_attributes("normalisation")),
        replace=op.LayerNormalization(summed, scale, opt(bias), attributes=all_attributes("normalisation")),
        is_refinement=True,
        because=Quirk.FUSES_SUMS_BEFORE_NORMALISATION,
        guards=(is_taken_by_the_normalisation_alone,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=Proof(
            shapes={"x": "b s 8", "skip": "b s 8", "scale": "8", "bias": "8"},
            attributes={"normalisation": [{"axis": -1, "epsilon": 1e-5}]},
            typical=tuple(
                dict.fromkeys(("x", "skip"), size) | dict.fromkeys(("scale", "bias"), size.split()[-1])
                for size in ("1 16 384", "1 128 768", "1 512 768")
            ),
        ),
    ),
    Rule(
        name="runtime.squeezed_transposition",
        formula="transpose(x)",
        pattern=op.Transpose(x, perm=attr("perm", _moves_first_axis, "of the first axis behind the batch")),
        replace=(
            op.Squeeze(op.Transpose(op.Unsqueeze(x, _front), perm=_lifted_permutation), _front),
            op.Squeeze(op.Transpose(op.Unsqueeze(x, axes=(0,)), perm=_lifted_permutation), axes=(0,)),
        ),
        is_refinement=True,
        because=Quirk.CRASHES_ON_MOVED_BATCH_AXIS,
        guards=(crashes_in_product,),
        exactness=Exactness.EXACT,
        source="ONNX Runtime issue 28392",
        proof=Proof(
            shapes=({"x": "3 b 4"}, {"x": "4 3 b"}, {"x": "3 b 2 4"}),
            attributes=({"perm": [(1, 0, 2)]}, {"perm": [(1, 2, 0)]}, {"perm": [(1, 2, 0, 3)]}),
            dtypes=("float16",),
            followed_by=_product,
            redundant={"check of attribute perm": HEALTHY},
        ),
    ),
]
