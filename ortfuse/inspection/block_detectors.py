"""Detect the blocks of a network by patterns: residual, feed-forward, squeeze-and-excite, recurrent, and others.

Each `Detector` is a pattern with guards, as in a rule, so that it can stand in a rule or in `ortfuse.find`:

    from ortfuse.inspection import DETECTORS, PASSES
    model = ortfuse.optimize("model.onnx", passes=PASSES).model
    for match in ortfuse.find(model, DETECTORS["feed-forward"].pattern): ...

They are written for the canonical form with recurrent layers, activations, normalisations and attention recognised,
which the passes `PASSES` give. Residual blocks and those that end in a Concat are told apart by what is between the two
ends; `block_assembly` puts those that follow one another together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.inspection.concat_blocks import joined
from ortfuse.inspection.loop_states import hands_on_a_product
from ortfuse.inspection.paths_between_values import ATTENTION, CONVOLUTIONS, MATRICES, Block, common, layers, path
from ortfuse.ir import walk
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import DEQUANTISES, MICROSOFT, MOVES, has
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Pattern,
    all_attributes,
    const,
    ms,
    op,
    opt,
    rest,
    var,
)

PASSES = (
    "canonicalize, "
    "fixpoint(fuse_recurrent, vectorize_loops, fuse.activation, fuse.normalization, fuse.attention, canonicalize)"
)
"""The passes that make the form in which the detectors find blocks: the canonical form, with layers in the operators they are."""

NORMS = frozenset(
    {
        "LayerNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "BatchNormalization",
        f"{MICROSOFT}.SkipLayerNormalization",
        f"{MICROSOFT}.SkipSimplifiedLayerNormalization",
    }
)
SKIPS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
CONVOLUTIONAL = ("bottleneck", "inverted residual", "residual")
"""The kinds of residual blocks of convolutions."""
_POOLS = frozenset({"GlobalAveragePool", "ReduceMean"})


def _linear(operand: Pattern, name: str) -> Pattern:
    """A layer with constant weights: MatMul or Gemm, with or without a bias."""
    weight, bias = const(f"{name}_weight"), const(f"{name}_bias")
    gemm = op.Gemm(operand, weight, opt(bias), attributes=all_attributes(f"{name}_attributes"))
    return (operand @ weight + opt(bias)) | gemm


def _activated(operand: Pattern) -> Pattern:
    """An activation, in whatever operator it was recognised as."""
    found: Pattern = op.Relu(operand) | operand * op.Sigmoid(operand)
    for made in (op.Gelu, op.LeakyRelu, op.Elu, op.Selu, op.Celu, op.HardSwish, op.Mish, op.Swish, op.Tanh, op.Sigmoid):
        found = found | made(operand, attributes=all_attributes("activation"))
    found = found | ms.QuickGelu(operand, attributes=all_attributes("activation")) | ms.Gelu(operand)
    return found | ms.FastGelu(operand, opt(const("first_bias"))) | ms.BiasGelu(operand, const("first_bias"))


def _feed_forward() -> Pattern:
    x = var("x")
    first = _activated(_linear(x, "first"))
    return _linear(first | first * _linear(x, "gated"), "second")


@dataclass(frozen=True)
class Detector:
    """A detector of one kind of block.

    Attributes:
        kind: The name of the kind.
        pattern: What its last operators look like.
        guards: The further conditions.
    """

    kind: str
    pattern: Pattern
    guards: tuple[Guard, ...] = ()


def is_residual(match: Match) -> Refusal | None:
    """The operands of the Add are a value, or one layer of it, and the result of several layers."""
    found = residual(match.root, match.facts)
    return None if found is not None else match.refuse("condition", "root", "a sum of a value and layers of it")


def is_squeeze_and_excite(match: Match) -> Refusal | None:
    """The factor of the channels is computed by layers from their means."""
    for value, gate in ((match["x"], match["gate"]), (match["gate"], match["x"])):
        between = path(value, gate)
        pooled = any(node.op_type in _POOLS for node in between)
        if pooled and layers(between) and between[0].op_type in ("Sigmoid", "HardSigmoid"):
            return None
    return match.refuse("condition", "root", "channels times what layers make of their means")


def is_joined(match: Match) -> Refusal | None:
    """Layers of a value are joined with one another or with the value itself."""
    found = joined(match.root, match.facts)
    return (
        None
        if found is not None
        else match.refuse("condition", "root", "a Concat of what convolutions make of a value")
    )


def is_recurrent(match: Match) -> Refusal | None:
    """A loop with layers in it, or that hands on a state times something."""
    node = match.root.producer()
    assert node is not None
    if node.op_type not in ("Loop", "Scan") or layers(walk.nested_nodes(node)) or hands_on_a_product(node, match.facts):
        return None
    return match.refuse("condition", "root", "a loop with a product in it")


def _detectors() -> Iterator[Detector]:
    x, y, others = var("x"), var("y"), rest("others")
    skip: Pattern = op.Add(x, y)
    for made in (ms.SkipLayerNormalization, ms.SkipSimplifiedLayerNormalization):
        skip = skip | made(x, y, others, attributes=all_attributes("attributes")).kept()
    yield Detector("residual", skip, (is_residual,))
    yield Detector("joined", op.Concat(others, attributes=all_attributes("attributes")), (is_joined,))
    yield Detector("feed-forward", _feed_forward())
    yield Detector("squeeze-and-excite", op.Mul(x, var("gate")), (is_squeeze_and_excite,))
    # Other outputs of these nodes may be used too: nothing is going to be replaced.
    loops: Pattern = op.LSTM(others, attributes=all_attributes("attributes")).kept()
    for build in (op.GRU, op.RNN, op.Loop, op.Scan):
        loops = loops | build(others, attributes=all_attributes("attributes")).kept()
    loops = loops | ms.LinearAttention(others, attributes=all_attributes("attributes")).kept()
    yield Detector("recurrent", loops, (is_recurrent,))


DETECTORS = {detector.kind: detector for detector in _detectors()}
"""The detectors by the kind of block."""


def residual(root: ir.Value, facts: Facts) -> Block | None:
    """The residual block that a sum ends, with its kind; `None` if it ends none."""
    node = root.producer()
    if node is None or root is not node.outputs[0]:
        return None
    sums = [node]
    terms = list(_terms(node, facts, sums))
    for start in terms:
        branches = [path(start, other) for other in terms if other is not start]
        if branches and all(branches):
            main = list(dict.fromkeys(inner for branch in branches for inner in branch))
            kind = "branches" if _are_parallel(branches) else _kind(main, facts)
            made = Block(kind, start, root, [*main, *sums], sums=tuple(sums))
            return made if layers(main) else None
    shared = common(terms) if len(terms) > 1 else None
    if shared is None:
        return None
    branches = sorted((path(shared, term) for term in terms), key=lambda nodes: len(layers(nodes)))
    nodes = list(dict.fromkeys([*(inner for branch in reversed(branches) for inner in branch), *sums]))
    if _are_parallel(branches):
        return Block("branches", shared, root, nodes, sums=tuple(sums))
    if len(terms) != 2 or len(layers(branches[0])) != 1 or len(layers(branches[1])) < 2:
        return None
    return Block(_kind(branches[1], facts), shared, root, nodes)


def _are_parallel(branches: Sequence[Sequence[ir.Node]]) -> bool:
    """Whether they are convolutions of one value, of each at most one, as RepVGG is trained (arXiv:2101.03697)."""
    made = [layers(branch) for branch in branches]
    convolutions = [one[0] for one in made if one and has(one[0], CONVOLUTIONS)]
    return len(set(convolutions)) > 1 and all(len(one) <= 1 for one in made) and all(branches)


def _terms(node: ir.Node, facts: Facts, sums: list[ir.Node]) -> Iterator[ir.Value]:
    """The terms of a sum: sums that nothing else uses are taken apart, constants left out."""
    for value in node.inputs[:2]:
        if value is None or facts.is_const(value):
            continue
        inner = value.producer()
        alone = inner is not None and inner.op_type == "Add" and len(value.uses()) == 1 and not value.is_graph_output()
        if inner is not None and alone and not any(facts.is_const(operand) for operand in inner.inputs):
            sums.append(inner)
            yield from _terms(inner, facts, sums)
        else:
            yield value


def _kind(main: Sequence[ir.Node], facts: Facts) -> str:
    """The kind of a residual block by the nodes of its longer branch."""
    attends = any(has(node, ATTENTION) for node in main) or _softmax_of_products(main)
    dense = [
        node for node in main if has(node, MATRICES) and any(_is_weight(value, facts) for value in node.inputs[:4])
    ]
    if attends:
        after = [node for node in dense if not _feeds_attention(node, main)]
        return "transformer" if len(after) >= 3 else "attention"
    convolutions = [_Convolution.of(node, facts) for node in reversed(main) if has(node, CONVOLUTIONS)]
    known = [one for one in convolutions if one is not None]
    if len(dense) >= 2 and all(one is not None and one.depthwise for one in convolutions):
        first = next(node for node in reversed(main) if node in dense or has(node, CONVOLUTIONS))
        return "feed-forward" if first in dense else "inverted residual"
    return _kind_of_convolutions(known) if known and len(known) == len(convolutions) else "residual"


def _is_weight(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a value is a constant, or part of one: dequantised weights, those of the experts that were chosen."""
    while value is not None and not facts.is_const(value):
        node = value.producer()
        picks = node is not None and (has(node, MOVES | DEQUANTISES) or node.op_type == "Cast")
        value = node.inputs[0] if node is not None and picks else None
    return value is not None


def _softmax_of_products(nodes: Sequence[ir.Node]) -> bool:
    """Attention that is spelled out: a softmax whose result is multiplied by a matrix."""
    return any(
        use.node.op_type in ("MatMul", "Einsum")
        for node in nodes
        if node.op_type == "Softmax"
        for use in node.outputs[0].uses()
    )


def _feeds_attention(node: ir.Node, main: Sequence[ir.Node]) -> bool:
    """Whether attention is computed from a node."""
    within, seen, pending = set(main), {node}, [node]
    while pending:
        for use in (use for value in pending.pop().outputs for use in value.uses()):
            if has(use.node, ATTENTION) or use.node.op_type == "Softmax":
                return True
            if use.node in within and use.node not in seen:
                seen.add(use.node)
                pending.append(use.node)
    return False


@dataclass(frozen=True)
class _Convolution:
    """A convolution by its channels, its kernel and its groups."""

    before: int
    after: int
    pointwise: bool
    depthwise: bool
    grouped: bool

    @classmethod
    def of(cls, node: ir.Node, facts: Facts) -> _Convolution | None:
        weight = node.inputs[3 if node.op_type == "QLinearConv" else 1]
        shape = facts.shape(weight)
        group = node.attributes.get("group")
        groups = 1 if group is None else int(group.value)
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            return None
        sizes = [int(str(dim)) for dim in shape]
        pointwise = all(size == 1 for size in sizes[2:])
        return cls(sizes[1] * groups, sizes[0], pointwise, groups > 1 and sizes[1] == 1, groups > 1)


def _kind_of_convolutions(found: Sequence[_Convolution]) -> str:
    """Squeeze-and-excite within a block has pointwise convolutions of its own, so that only the order of the others counts."""
    spatial = [one for one in found if not one.pointwise]
    if len(spatial) == 1 and found[-1].pointwise and len(found) >= 2:
        depthwise, first = spatial[0].depthwise, found[0]
        if depthwise and (not first.pointwise or first.after > first.before):
            return "inverted residual"
        narrow = spatial[0].grouped or spatial[0].before < max(first.before, found[-1].after)
        if first.pointwise and not depthwise and narrow:
            return "bottleneck"
    return "residual"
