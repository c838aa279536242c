"""Block the fusion to SkipLayerNormalization, which is slower on the CPU than Add and LayerNormalization.

LayerNormalization(Add(x, skip)) = LayerNormalization(Sum(x, skip))
LayerNormalization(Add(Add(x, b), skip)) = LayerNormalization(Sum(x, b, skip))

ONNX Runtime (1.23 to 1.32) fuses an Add and the LayerNormalization behind it at session creation. Both values must have the same
three axes, and nothing else may use the sum. On the CPU, SkipLayerNormalization is several times slower than the two
(benchmarks/kernels/kernels.md). The fusion looks for Add. Sum computes the same bits, by one thread, so that it takes a little
longer. It adds its operands one after the other, so that it also takes the place of an Add that one of them comes from.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, built, op, opt, redundant, var
from ortfuse.targets import Quirk

SOURCE = "ONNX Runtime graph transformer SkipLayerNormFusion"

x, skip, scale, bias = var("x"), var("skip"), var("scale"), var("bias")
added = op.Add(x, skip).named("added")


def _operands_of_sum(value: ir.Value) -> list[ir.Value]:
    """The operands of an Add, those of an Add that is read for one of them alone in its place, in the order of the additions."""
    node = value.producer()
    assert node is not None
    operands = [operand for operand in node.inputs if operand is not None]
    for inner, other in (operands, reversed(operands)):
        made = inner.producer()
        if made is None or made.op_type != "Add" or made.domain or made.graph is not node.graph:
            continue
        if len(inner.uses()) == 1 and not inner.is_graph_output():
            return [*_operands_of_sum(inner), other]
    return operands


def _summed(match: Match) -> Pattern:
    parts = [match.capture(f"part{number}", part) for number, part in enumerate(_operands_of_sum(match["added"]))]
    return op.LayerNormalization(op.Sum(*parts), scale, opt(bias), attributes=all_attributes("normalisation"))


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


RULES = [
    Rule(
        name="ort.block_skip_layer_normalization_fusion",
        formula="LayerNormalization(x + skip)",
        pattern=op.LayerNormalization(added, scale, opt(bias), attributes=all_attributes("normalisation")),
        replace=built(_summed, makes=("LayerNormalization", "Sum")),
        is_refinement=True,
        because=Quirk.FUSES_SUMS_BEFORE_NORMALISATION,
        guards=(is_taken_by_the_normalisation_alone,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b s 8", "skip": "b s 8", "scale": "8", "bias": "8"},
            attributes={"normalisation": [{"axis": -1, "epsilon": 1e-5}]},
            typical=tuple(
                dict.fromkeys(("x", "skip"), size) | dict.fromkeys(("scale", "bias"), size.split()[-1])
                for size in ("1 16 384", "1 128 768", "1 512 768")
            ),
        ),
    ),
]
