"""Blocks of which networks are built, found by patterns: residual, feed-forward, squeeze-and-excite, recurrent, ...

Each `Detector` is a pattern with guards, as in a rule, so that it can stand in a rule or in `ortfuse.find`:

    from ortfuse.inspection import DETECTORS, PASSES
    model = ortfuse.optimize("model.onnx", passes=PASSES).model
    for match in ortfuse.find(model, DETECTORS["feed-forward"].pattern): ...

They are written for the normal form with recurrent layers, activations, normalisations and attention recognised, which the passes
`PASSES` give.
Residual blocks are told apart by what is between the two ends; `assembly` puts those that follow one another together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph import walk
from ortfuse.graph.traits import DEQUANTISES, MICROSOFT, MOVES, has
from ortfuse.pattern import (
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
from ortfuse.refusal import Refusal

PASSES = "canonicalize, fixpoint(recurrent, loops, fuse.activation, fuse.normalization, fuse.attention, canonicalize)"
"""The passes that make the form in which the detectors find blocks: the normal form, with layers in the operators they are."""

FURTHEST = 400
"""The most nodes between the two ends of a block."""

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
_ATTENTION = frozenset(
    {
        "Attention",
        "LinearAttention",
        f"{MICROSOFT}.Attention",
        f"{MICROSOFT}.MultiHeadAttention",
        f"{MICROSOFT}.GroupQueryAttention",
        f"{MICROSOFT}.QAttention",
        f"{MICROSOFT}.DecoderMaskedMultiHeadAttention",
    }
)
_CONVOLUTIONS = frozenset({"Conv", "QLinearConv", "ConvInteger", f"{MICROSOFT}.FusedConv"})
_MATRICES = frozenset(
    {
        "MatMul",
        "Gemm",
        "MatMulInteger",
        "QLinearMatMul",
        f"{MICROSOFT}.MatMulNBits",
        f"{MICROSOFT}.FusedMatMul",
        f"{MICROSOFT}.FusedGemm",
        f"{MICROSOFT}.DynamicQuantizeMatMul",
        f"{MICROSOFT}.MatMulIntegerToFloat",
        f"{MICROSOFT}.QGemm",
    }
)
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
    """What finds one kind of block.

    Attributes:
        kind: The name of the kind.
        pattern: What its last operators look like.
        guards: The further conditions.
    """

    kind: str
    pattern: Pattern
    guards: tuple[Guard, ...] = ()


def is_residual(match: Match) -> Refusal | None:
    """What is added is a value, or one layer of it, and what several layers make of it."""
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


def is_recurrent(match: Match) -> Refusal | None:
    """A loop that carries a state through a product."""
    node = match.root.producer()
    assert node is not None
    if node.op_type not in ("Loop", "Scan") or layers(walk.nested_nodes(node)):
        return None
    return match.refuse("condition", "root", "a loop with a product in it")


def _detectors() -> Iterator[Detector]:
    x, y, others = var("x"), var("y"), rest("others")
    skip: Pattern = op.Add(x, y)
    for made in (ms.SkipLayerNormalization, ms.SkipSimplifiedLayerNormalization):
        skip = skip | made(x, y, others, attributes=all_attributes("attributes")).kept()
    yield Detector("residual", skip, (is_residual,))
    yield Detector("feed-forward", _feed_forward())
    yield Detector("squeeze-and-excite", op.Mul(x, var("gate")), (is_squeeze_and_excite,))
    # Other outputs of these nodes may be used too: nothing is going to be replaced.
    loops: Pattern = op.LSTM(others, attributes=all_attributes("attributes")).kept()
    for build in (op.GRU, op.RNN, op.Loop, op.Scan):
        loops = loops | build(others, attributes=all_attributes("attributes")).kept()
    yield Detector("recurrent", loops, (is_recurrent,))


DETECTORS = {detector.kind: detector for detector in _detectors()}
"""The detectors by the kind of block."""


@dataclass(eq=False)
class Block:
    """A block that was found.

    Attributes:
        kind: `transformer`, `conformer`, `attention`, `feed-forward`, `bottleneck`, `inverted residual`, `residual`,
            `squeeze-and-excite` or `recurrent`.
        start: The value that it starts from, `None` if it has none of its own.
        end: The value that it computes.
        nodes: Its nodes, in no particular order.
        name: Its kind and number.
        sums: Of a residual block, the sums that it ends with, the last first.
    """

    kind: str
    start: ir.Value | None
    end: ir.Value
    nodes: list[ir.Node] = field(repr=False)
    name: str = ""
    sums: tuple[ir.Node, ...] = field(default=(), repr=False)


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
            made = Block(_kind(main, facts), start, root, [*main, *sums], sums=tuple(sums))
            return made if layers(main) else None
    if len(terms) != 2:
        return None
    common = _common(*terms)
    if common is None:
        return None
    shortcut, main = sorted((path(common, term) for term in terms), key=lambda nodes: len(layers(nodes)))
    if len(layers(shortcut)) != 1 or len(layers(main)) < 2:
        return None
    return Block(_kind(main, facts), common, root, [*main, *shortcut, *sums])


def _terms(node: ir.Node, facts: Facts, sums: list[ir.Node]) -> Iterator[ir.Value]:
    """What a sum consists of: sums that nothing else uses are taken apart, constants left out."""
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


def path(start: ir.Value, end: ir.Value) -> list[ir.Node]:
    """The nodes between two values, the last first; none if the second is not computed from the first, or too far from it."""
    behind = _above(end, start)
    reached: set[ir.Node] = set()
    pending = [start]
    while pending:
        for use in pending.pop().uses():
            if use.node in behind and use.node not in reached:
                reached.add(use.node)
                pending += use.node.outputs
    return _last_first([node for node in behind if node in reached])


def _last_first(nodes: list[ir.Node]) -> list[ir.Node]:
    """The nodes in an order in which none stands behind what it needs."""
    waiting = dict.fromkeys(nodes, 0)
    producers = {
        node: [one for value in node.inputs if value is not None and (one := value.producer()) in waiting]
        for node in nodes
    }
    for found in producers.values():
        for one in found:
            waiting[one] += 1
    ready = [node for node in nodes if not waiting[node]]
    for node in ready:
        for one in producers[node]:
            waiting[one] -= 1
            if not waiting[one]:
                ready.append(one)
    return ready


def _above(end: ir.Value, start: ir.Value | None = None) -> dict[ir.Node, None]:
    """The nodes from which a value is computed, the nearest first, as far as a start and at most `FURTHEST`."""
    found: dict[ir.Node, None] = {}
    pending = deque([end])
    while pending and len(found) < FURTHEST:
        value = pending.popleft()
        node = None if value is start else value.producer()
        if node is not None and node not in found:
            found[node] = None
            pending += [operand for operand in node.inputs if operand is not None]
    return found


def _common(one: ir.Value, other: ir.Value) -> ir.Value | None:
    """The value that both are computed from, and through which all else that they share goes."""
    shared = _above(one).keys() & _above(other).keys()
    values = {value for node in shared for value in node.outputs}
    last = [value for value in values if not any(use.node in shared for use in value.uses())]
    return last[0] if len(last) == 1 else None


def layers(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The nodes that are products: convolutions, matrices, attention, recurrent layers."""
    return [
        node
        for node in nodes
        if has(node, _CONVOLUTIONS | _MATRICES | _ATTENTION) or node.op_type in ("LSTM", "GRU", "RNN", "Einsum")
    ]


def _kind(main: Sequence[ir.Node], facts: Facts) -> str:
    """The kind of a residual block by the nodes of its longer branch."""
    attends = any(has(node, _ATTENTION) for node in main) or _softmax_of_products(main)
    dense = [
        node for node in main if has(node, _MATRICES) and any(_is_weight(value, facts) for value in node.inputs[:4])
    ]
    if attends:
        after = [node for node in dense if not _feeds_attention(node, main)]
        return "transformer" if len(after) >= 3 else "attention"
    convolutions = [_Convolution.of(node, facts) for node in reversed(main) if has(node, _CONVOLUTIONS)]
    known = [one for one in convolutions if one is not None]
    if len(dense) >= 2 and all(one is not None and one.depthwise for one in convolutions):
        first = next(node for node in reversed(main) if node in dense or has(node, _CONVOLUTIONS))
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
            if has(use.node, _ATTENTION) or use.node.op_type == "Softmax":
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
