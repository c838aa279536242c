"""Fold constants added to the parts of a Split into the constant added before it.

    a, b = split(x W + c):   a, b + 1   =   split(x W + [c_a, c_b + 1])

Diffusion transformers (arXiv:2212.09748) put scales and shifts of a condition on every normalisation, as
n (1 + scale) + shift, where scales, shifts and gates are the parts of one linear layer, or of its sum with a table of the block
(arXiv:2310.00426).

Done where one number is added to all of a part, which nothing else reads, also behind Unsqueezes, Squeezes and Reshapes of the
part, and the sum is an Add of a constant or a Gemm, also with Unsqueezes behind it.

Does not handle: sums and parts that something else reads too, numbers that add axes, constants that would not be
finite, integers, and halves of floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds

NAME = "added_before"

LARGEST = 1 << 20
"""The most elements of a constant that is written anew."""

_MOVED = ("Unsqueeze", "Squeeze", "Reshape")
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class _Sum:
    """The split value: a node that adds a constant, its input for it, the constant with all elements along the axis that is split
    (counted from the last), and Unsqueezes in between."""

    node: ir.Node
    between: tuple[ir.Node, ...]
    place: int
    axis: int
    constant: np.ndarray


@dataclass(frozen=True)
class _Added:
    """A number that is added to the part at this place by a node, behind others that only give the part another shape."""

    part: int
    node: ir.Node
    moved: tuple[ir.Node, ...]
    number: float


def added_before(split: ir.Node, scope: Scope, context: Context) -> int:
    """Add numbers to what is split instead of its parts; returns how many."""
    facts, axis, shape = (
        context.facts,
        parameter(split, "axis", context.facts) or 0,
        context.facts.shape(split.inputs[0]),
    )
    sizes = [_size(facts, part, axis) for part in split.outputs]
    if shape is None or not isinstance(axis, int) or not all(isinstance(size, int) for size in sizes):
        return 0
    if facts.dtype(split.inputs[0]) not in _TYPES or not (found := list(_numbers(split, facts))):
        return 0
    ends = list(accumulate(size for size in sizes if isinstance(size, int)))
    whole = _sum(split, axis % len(shape), ends[-1], facts)
    if whole is None:
        return 0
    constant = whole.constant.copy()
    with np.errstate(over="ignore"):
        for added in found:
            before = (slice(None),) * (whole.axis % constant.ndim)
            constant[(*before, slice(ends[added.part - 1] if added.part else 0, ends[added.part]))] += added.number
    if not np.isfinite(constant).all():
        return 0
    node, gone = whole.node, [*(added.node for added in found), *(moved for added in found for moved in added.moved)]
    old = [*node.inputs[whole.place :], *(value for added in found for value in added.node.inputs)]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=[node, *whole.between, split, *gone]) as change:
        build = Builder(scope, context.editor, split)
        inputs = [*node.inputs, None][: max(len(node.inputs), whole.place + 1)]
        inputs[whole.place] = build.constant(ir.Tensor(constant))
        made = build.like(node, inputs, {"beta": 1.0} if node.op_type == "Gemm" else None)
        for between in whole.between:
            made = build.like(between, [made, *between.inputs[1:]])
        parts = build.split(made, axis, [size for size in sizes if isinstance(size, int)])
        for added in found:
            build, value = Builder(scope, context.editor, added.node), parts[added.part]
            for moved in added.moved:
                value = build.like(moved, [value, *moved.inputs[1:]])
            context.editor.replace(added.node.outputs[0], value)
        for part, value in zip(split.outputs, parts, strict=True):
            if part.index() not in {added.part for added in found} and part.name != "":
                context.editor.replace(part, value)
        context.editor.remove(*gone, split, *whole.between, node)
        left = dict.fromkeys(value for value in old if value is not None and is_left_over(value))
        context.editor.drop_initializers(*left)  # nothing removes them later
    return len(found) if change else 0


def is_left_over(value: ir.Value) -> bool:
    """Whether a value is an initializer that nothing reads any more."""
    return value.is_initializer() and not (value.uses() or value.is_graph_input() or value.is_graph_output())


def _size(facts: Facts, value: ir.Value, axis: object) -> object:
    shape = facts.shape(value)
    return shape[axis] if shape is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape) else None


def _reader(value: ir.Value | None) -> ir.Node | None:
    """The node of the same graph that alone reads a value."""
    uses = [] if value is None else list(value.uses())
    alone = value is not None and len(uses) == 1 and not value.is_graph_output() and uses[0].node.graph is _graph(value)
    return uses[0].node if alone and not uses[0].node.domain else None


def _graph(value: ir.Value) -> object:
    node = value.producer()
    return node.graph if node is not None else None


def _numbers(split: ir.Node, facts: Facts) -> Iterator[_Added]:
    """Numbers that are added to all of a part."""
    for part, output in enumerate(split.outputs):
        value, node, moved = output, _reader(output), []
        while node is not None and node.op_type in _MOVED and node.inputs[0] is value:
            moved.append(node)
            value, node = node.outputs[0], _reader(node.outputs[0])
        if node is None or node.op_type != "Add":
            continue
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        number, rank, full = facts.scalar(other), facts.rank(other), facts.rank(value)
        if isinstance(number, int | float) and rank is not None and full is not None and rank <= full:
            yield _Added(part, node, tuple(moved), float(number))


def _sum(split: ir.Node, axis: int, size: int, facts: Facts) -> _Sum | None:
    """The sum with a constant that is split along an axis of so many elements."""
    value = split.inputs[0]
    assert value is not None
    node, between = value.producer(), list[ir.Node]()
    while node is not None and not node.domain and node.op_type == "Unsqueeze" and _reader(value) is not None:
        axes = parameter(node, "axes", facts)
        if (
            not isinstance(axes, tuple | list)
            or not all(isinstance(one, int) and one >= 0 for one in axes)
            or axis in axes
        ):
            return None
        axis, value, between = axis - sum(one < axis for one in axes), node.inputs[0], [node, *between]
        node = value.producer() if value is not None else None
    shape = facts.shape(value)
    if value is None or node is None or node.domain or shape is None or _reader(value) is None or shape[axis] != size:
        return None
    if "broadcast" in node.attributes:  # before opset 7
        return None
    if node.op_type == "Gemm" and (len(node.inputs) < 3 or node.inputs[2] is None):
        return _Sum(node, tuple(between), 2, axis - len(shape), _zeros(size, axis - len(shape), facts.dtype(value)))
    if node.op_type == "Gemm" and parameter(node, "beta", facts) not in (None, 1.0):
        return None
    for place in {"Gemm": (2,), "Add": (0, 1)}.get(node.op_type, ()):
        constant = _constant(node.inputs[place], axis - len(shape), size, facts)
        if constant is not None:
            return _Sum(node, tuple(between), place, axis - len(shape), constant)
    return None


def _zeros(size: int, axis: int, dtype: ir.DataType | None) -> np.ndarray:
    """Zeros along an axis, counted from the last."""
    assert dtype is not None
    return np.zeros([size, *[1] * (-axis - 1)], dtype.numpy())


def _constant(value: ir.Value | None, axis: int, size: int, facts: Facts) -> np.ndarray | None:
    """A constant with so many elements along an axis, which is counted from the last."""
    shape = facts.shape(value)
    sizes = [one for one in shape or () if isinstance(one, int)]
    if shape is None or len(sizes) < len(shape) or math.prod(sizes) * size > LARGEST or value is None:
        return None
    constant = facts.const(value)
    if constant is None:
        return None
    full = [*[1] * (-axis - constant.ndim), *constant.shape]
    if full[axis] not in (1, size):
        return None
    full[axis] = size
    return np.broadcast_to(constant.reshape([*[1] * (len(full) - constant.ndim), *constant.shape]), full)
