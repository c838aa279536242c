"""Rotary position embedding (RoPE) in its half-rotation and interleaved forms.

    rope(x) = x cos + rotate(x) sin,   rotate(x) = concat(-x[h/2:], x[:h/2])          Su et al., arXiv:2104.09864

The operator reads cosines and sines of half the size: the rule applies only where both halves of the graph's are provably
the same, because they are computed from the concatenation of one tensor with itself.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.facts import Facts
from ortfuse.pattern import Match, Pattern, attr, computed, op, var
from ortfuse.rewrite import Exactness, Proof, Rule

from ._common import ints, is_rank, text
from ._proofs import angles

PAPER = "arXiv:2104.09864"

x = var("x", is_rank(4), "of rank 4")
cos, sin = var("cos", is_rank(4), "of rank 4"), var("sin", is_rank(4), "of rank 4")
low = op.Slice(x, starts=(0,), ends=attr("low_end"), axes=(-1,), steps=attr("low_steps"))
high = op.Slice(x, starts=attr("high_start"), ends=attr("high_end"), axes=(-1,), steps=attr("high_steps"))
rotated = op.Concat(op.Neg(high), low, axis=-1)

_KEEPS_HALVES = frozenset(
    {"Cos", "Sin", "Unsqueeze", "Cast", "Identity", "Reshape", "Gather", "Slice", "Expand", "Squeeze"}
)


def _halves_are_equal(value: ir.Value, facts: Facts) -> bool:
    """Whether the last axis provably holds the same numbers twice."""
    for _ in range(16):
        node = value.producer()
        if node is None or node.domain:
            return False
        shape = facts.shape(value)
        if node.op_type == "Concat" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]:
            axis = node.attributes["axis"].value
            return shape is not None and axis in (-1, len(shape) - 1)
        source = node.inputs[0]
        if node.op_type in ("Mul", "Add", "Div"):
            # A factor that is one number changes both halves alike.
            numbers = [operand for operand in node.inputs if operand is not None and facts.scalar(operand) is None]
            if len(numbers) != 1:
                return False
            source = numbers[0]
        elif node.op_type not in _KEEPS_HALVES:
            return False
        before = facts.shape(source)
        if before is None or shape is None or not shape or not before or before[-1] != shape[-1]:
            return False
        if node.op_type in ("Gather", "Slice") and not _leaves_last_axis(node, len(before), facts):
            return False
        if source is None:
            return False
        value = source
    return False


def _leaves_last_axis(node: ir.Node, rank: int, facts: Facts) -> bool:
    if node.op_type == "Gather":
        axis = node.attributes["axis"].value if "axis" in node.attributes else 0
        return axis not in (-1, rank - 1)
    axes = facts.ints(node.inputs[3]) if len(node.inputs) > 3 else None
    return axes is not None and all(axis not in (-1, rank - 1) for axis in axes.elements)


def rotates_halves(match: Match) -> str | None:
    """The slices are the two halves, and the angles repeat."""
    shape = match.shape("x")
    if shape is None or not isinstance(shape[-1], int) or shape[-1] % 2:
        return "the size of the heads is not known, or odd"
    half = shape[-1] // 2
    if match["low_end"] != (half,) or match["high_start"] != (half,):
        return f"the slices {match['low_end']} and {match['high_start']} are not halves of {shape[-1]}"
    if (
        match["high_end"][0] < shape[-1]
        or match["low_steps"] not in (None, (1,))
        or match["high_steps"] not in (None, (1,))
    ):
        return "the slices leave elements out"
    for name in ("cos", "sin"):
        angles_shape = match.shape(name)
        if angles_shape is None or angles_shape[1:] != (1, shape[2], shape[3]) or angles_shape[0] not in (1, shape[0]):
            return f"{name} {text(angles_shape or ())} is not one angle for each position of x {text(shape)}"
        if not _halves_are_equal(match[name], match.facts):
            return f"the two halves of {name} are not provably equal"
    return None


def half_size(match: Match) -> object:
    """Half the size of a head, as a Slice end."""
    shape = match.shape("x")
    assert shape is not None
    assert isinstance(shape[-1], int)
    return ints([shape[-1] // 2])


_zero = computed("zero", lambda match: ints([0]))
_last = computed("last", lambda match: ints([3]))
_heads = computed("heads", lambda match: ints([1]))


def _cache(name: str) -> Pattern:
    """[1 or b, 1, s, size] to [b, s, size / 2]."""
    half = op.Squeeze(op.Slice(var(name), _zero, computed("half", half_size), _last), _heads)
    batch = op.Shape(x, start=0, end=1)
    return op.Expand(half, op.Concat(batch, computed("ones", lambda match: ints([1, 1])), axis=0))


# [b, s, heads * size] split into heads before it is rotated
split = (
    op.Reshape(var("whole", is_rank(3), "of rank 3"), var("split_shape"), allowzero=attr("allowzero"))
    .named("split")
    .kept()
)
by_heads = op.RotaryEmbedding(
    op.Transpose(split, perm=(0, 2, 1, 3)).kept(), var("cos"), var("sin"), interleaved=attr("interleaved"),
    rotary_embedding_dim=attr("rotary_embedding_dim"),
)  # fmt: skip


def splits_last_axis(match: Match) -> str | None:
    """The Reshape splits the last axis into (heads, size)."""
    whole, found = match.shape("whole"), match.shape("split")
    if whole is None or found is None or len(found) != 4 or whole[:2] != found[:2] or not isinstance(found[2], int):
        return "the Reshape does not split heads off the last axis"
    return None


def heads(match: Match) -> int:
    """The number of heads."""
    shape = match.shape("split")
    assert shape is not None
    assert isinstance(shape[2], int)
    return shape[2]


RULES = [
    Rule(
        name="rotary.half_rotation",
        formula="x cos + concat(-x[h/2:], x[:h/2]) sin",
        pattern=x * cos + rotated * sin,
        replace=op.RotaryEmbedding(x, _cache("cos"), _cache("sin"), interleaved=0),
        guards=(rotates_halves,),
        raises=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes={"x": "b 2 s 8"},
            attributes={
                "low_end": [(4,)], "high_start": [(4,)], "high_end": [(1 << 62,)], "low_steps": [(1,)], "high_steps": [(1,)],
            },
            inputs={"cos": angles("x", "Cos"), "sin": angles("x", "Sin")},
            opset=17,
        ),
    ),
    Rule(
        name="rotary.before_split",
        formula="rotary(transpose(split(whole)))",
        refines=True,
        pattern=by_heads,
        replace=op.Transpose(
            op.Reshape(
                op.RotaryEmbedding(
                    var("whole"), var("cos"), var("sin"), num_heads=heads, interleaved=attr("interleaved"),
                    rotary_embedding_dim=attr("rotary_embedding_dim"),
                ),
                var("split_shape"),
                allowzero=attr("allowzero"),
            ),
            perm=(0, 2, 1, 3),
        ),
        guards=(splits_last_axis,),
        raises=True,
        exactness=Exactness.EXACT,
        source=PAPER,
        proof=Proof(
            shapes={"whole": "b s 16", "split_shape": "4", "cos": "b s 4", "sin": "b s 4"},
            constants={"split_shape": [0, 0, 2, 8]},
            attributes={"allowzero": [0], "interleaved": [0, 1], "rotary_embedding_dim": [0]},
            opset=23,
        ),
    ),
]  # fmt: skip
