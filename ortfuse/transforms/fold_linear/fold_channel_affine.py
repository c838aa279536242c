"""Fold scales and offsets of channels into the weights of MatMul and Gemm, through the data movement between them.

    split(heads(x W + b)) * s + t    =    split(heads(x W' + b'))          W', b': the columns of W and b, scaled and shifted

Transforms: Mul, Div, Add and Sub with a constant, and BatchNormalization, behind the data movement of a product with a constant
matrix. The product is MatMul, with or without an Add of a constant, or Gemm. The data movement is Split, Reshape, Transpose,
Slice and Gather. Queries, keys and values that are normalised after the heads are split are such products.

Requires:

- every number of the constant belongs to one column of the product, as `ortfuse.transforms.canonicalize.strided_views` shows;
- nothing else reads the values between them, except for other parts of a Split or Slice.

Does not handle:

- single numbers, which attention takes as its scale;
- weights of more than `LARGEST` elements, which stay in their file, and weights that are used elsewhere too;
- convolutions, for which there are rules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import exact_div
from ortfuse.ir.editor import Editor
from ortfuse.ir.traits import RESHAPES
from ortfuse.ir.walk import Scope
from ortfuse.rewrite.magic_number_rounding import rounding_number
from ortfuse.transforms.canonicalize.strided_views import View, cut, moved
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds

LARGEST = 1 << 22
"""The most elements of a weight that is computed anew."""

_MOST_MOVES = 8
_TAKES_PART = frozenset({"Slice", "Gather", "Split"})
_MOVES = RESHAPES | _TAKES_PART | {"Transpose"}

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class _Affine:
    """A node that computes `data * factor + offset`; constants that broadcast to the data."""

    node: ir.Node
    data: ir.Value
    factor: Array
    offset: Array


@dataclass(frozen=True)
class _Product:
    """`x W + b`: the node of the product, that of the sum if there is one, the weight, and the constant that is added."""

    node: ir.Node
    sum: ir.Node | None
    weight: ir.Value
    bias: ir.Value | None

    @property
    def output(self) -> ir.Value:
        """The result."""
        return (self.sum or self.node).outputs[0]

    @property
    def columns(self) -> int:
        """The axis of the weight that has a number for each column."""
        return 0 if self.node.op_type == "Gemm" and self.node.attributes.get_int("transB") else 1


@dataclass(frozen=True)
class FoldChannelAffine:
    """Fold scales and offsets of channels into the weights of MatMul and Gemm."""

    name: ClassVar[str] = "fold_channel_affine"

    def run(self, context: Context) -> int:
        """Fold until there is nothing left to fold; returns how many nodes were folded."""
        return sum(_fold_all(scope, context) for scope in context.scopes())


def _fold_all(scope: Scope, context: Context) -> int:
    count = 0
    for node in list(scope.graph):
        affine = _affine(node, context.facts) if node.graph is not None else None
        count += affine is not None and _fold(affine, scope, context)
    return count


def _affine(node: ir.Node, facts: Facts) -> _Affine | None:
    """The node as factors and offsets, if these are not the same everywhere."""
    if node.domain or facts.dtype(node.outputs[0]) != ir.DataType.FLOAT:
        return None
    if node.op_type == "BatchNormalization":
        return _of_batch_normalization(node, facts)
    if node.op_type not in ("Mul", "Div", "Add", "Sub") or None in node.inputs or rounding_number(node, facts):
        return None
    first, second = node.inputs
    assert first is not None
    assert second is not None
    constant, data = (second, first) if facts.is_const(second) else (first, second)
    if facts.shape(data) is None or facts.shape(data) != facts.shape(node.outputs[0]):
        return None
    array = facts.const(constant) if facts.is_const(constant) and not facts.is_const(data) else None
    if array is None or array.size == 1 or (node.op_type == "Div" and constant is first):
        return None
    wide, sign = array.astype(np.float64), 1.0
    with np.errstate(all="ignore"):
        if node.op_type in ("Mul", "Div"):
            return _Affine(node, data, 1 / wide if node.op_type == "Div" else wide, np.zeros(()))
        if node.op_type == "Sub":
            sign, wide = (-1.0, wide) if constant is first else (1.0, -wide)
    return _Affine(node, data, np.full((), sign), wide)


def _of_batch_normalization(node: ir.Node, facts: Facts) -> _Affine | None:
    data, constants = node.inputs[0], [facts.const(value) for value in node.inputs[1:5]]
    rank = facts.rank(data)
    if len(node.outputs) > 1 or data is None or rank is None or rank < 2 or any(array is None for array in constants):
        return None
    if node.attributes.get_int("training_mode"):
        return None
    scale, shift, mean, variance = (array.astype(np.float64) for array in constants if array is not None)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    shape = (-1,) + (1,) * (rank - 2)
    return _Affine(node, data, factor.reshape(shape), (shift - mean * factor).reshape(shape))


def _fold(affine: _Affine, scope: Scope, context: Context) -> bool:
    facts = context.facts
    path = _path(affine)
    product = None if path is None else _product(path[0], facts)
    width = None if product is None else (facts.shape(product.output) or ())[-1]
    if path is None or product is None or not isinstance(width, int):
        return False
    views = _views(path, facts)
    if views is None:
        return False
    factor, offset = _by_column(affine.factor, views[-1], width, 1.0), _by_column(affine.offset, views[-1], width, 0.0)
    if factor is None or offset is None:
        return False
    changed = {int(column) for column in np.flatnonzero((factor != 1) | (offset != 0))}
    if not all(_leaves_alone(path, place, views[place], changed, width, facts) for place in range(len(path) - 1)):
        return False
    return _rewrite(affine, path, product, factor, offset, scope, context)


def _path(affine: _Affine) -> list[ir.Value] | None:
    """The values from the product to the affine node, each moved to the next; `None` if there is no movement between."""
    value, path = affine.data, [affine.data]
    for _ in range(_MOST_MOVES):
        node = value.producer()
        if value.is_graph_output() or node is None or node.domain or node.graph is not affine.node.graph:
            return None
        source = node.inputs[0] if node.op_type in _MOVES else None
        if source is None:
            is_alone = len(affine.data.uses()) == 1
            return path[::-1] if len(path) > 1 and is_alone else None
        value = source
        path.append(value)
    return None


def _views(path: list[ir.Value], facts: Facts) -> list[View] | None:
    """The view of the product in each value on the way."""
    shape = facts.shape(path[0])
    views = [] if shape is None or 0 in shape else [View.whole(shape)]
    for value in path[1:]:
        node = value.producer()
        found = _after(views[-1], node, value, facts) if views and node is not None else None
        if found is None:
            return None
        views.append(found)
    return views or None


def _after(view: View, node: ir.Node, value: ir.Value, facts: Facts) -> View | None:
    """The view of a value that a node moves."""
    if node.op_type == "Identity":
        return view
    if node.op_type != "Split":
        return moved(view, node, facts)
    axis = (parameter(node, "axis", facts) or 0) % len(view.shape)
    shapes = [facts.shape(output) for output in node.outputs]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != len(sizes):
        return None
    place = list(node.outputs).index(value)
    return cut(view, axis, sum(known[:place]), known[place], 1)


def _leaves_alone(path: list[ir.Value], place: int, view: View, changed: set[int], width: int, facts: Facts) -> bool:
    """Whether all that reads a value on the way, besides the path itself, takes none of the columns that change."""
    following = path[place + 1].producer()
    for node in {use.node for use in path[place].uses()}:
        if node is following and node.op_type != "Split":
            continue
        for value in node.outputs:
            part = _after(view, node, value, facts) if node.op_type in _TAKES_PART else None
            columns = None if part is None else _columns(part, width)
            if value is not path[place + 1] and (columns is None or columns & changed):
                return False
    return True


def _columns(view: View, width: int) -> set[int] | None:
    """The columns of the product that are in a view."""
    factors = [factor for factor in view.factors if exact_div(factor[1], width) is None]
    if not isinstance(view.offset, int) or not all(isinstance(number, int) for factor in factors for number in factor):
        return None
    return {(view.offset + place) % width for place in _places(factors)}  # type: ignore[arg-type]


def _product(value: ir.Value, facts: Facts) -> _Product | None:
    """The product with a constant matrix, and perhaps a constant sum, that makes a value."""
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Gemm":
        return _gemm(node, facts)
    if node.op_type == "MatMul":
        return _of_matmul(node, None, None, facts)
    if node.op_type != "Add":
        return None
    for summed, bias in (node.inputs, node.inputs[::-1]):
        inner = None if summed is None else summed.producer()
        if inner is not None and inner.op_type == "MatMul" and not inner.domain and len(inner.outputs[0].uses()) == 1:
            return _of_matmul(inner, node, bias, facts)
    return None


def _of_matmul(node: ir.Node, added: ir.Node | None, bias: ir.Value | None, facts: Facts) -> _Product | None:
    weight = node.inputs[1]
    if weight is None or not _is_own(weight, facts) or facts.rank(weight) != 2 or (facts.rank(node.inputs[0]) or 0) < 2:
        return None
    width = (facts.shape(weight) or ())[-1]
    if bias is not None and (not facts.is_const(bias) or facts.shape(bias) not in ((width,), (1, width))):
        return None
    return _Product(node, added, weight, bias)


def _gemm(node: ir.Node, facts: Facts) -> _Product | None:
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    if weight is None or not _is_own(weight, facts) or factors != [1.0, 1.0] or node.attributes.get_int("transA"):
        return None
    product = _Product(node, None, weight, bias)
    width = (facts.shape(weight) or ())[product.columns]
    if bias is not None and (not facts.is_const(bias) or facts.shape(bias) not in ((width,), (1, width))):
        return None
    return product


def _is_own(weight: ir.Value, facts: Facts) -> bool:
    """Whether a weight is a constant that is small enough to be computed anew, and that nothing else uses."""
    if not weight.is_initializer() or not facts.is_const(weight) or len(weight.uses()) != 1:
        return False
    return math.prod(dim for dim in facts.shape(weight) or () if isinstance(dim, int)) <= LARGEST


def _by_column(constant: Array, view: View, width: int, neutral: float) -> Array | None:
    """The constant as one number for each column of the product, `neutral` for columns that are not in the view.

    `None` if a number belongs to no single column, or a column to several numbers.
    """
    groups = view.groups()
    if groups is None or constant.ndim > len(view.shape) or not isinstance(view.offset, int):
        return None
    wide = constant.reshape((1,) * (len(view.shape) - constant.ndim) + constant.shape)
    indices: list[list[tuple[int, int]]] = []
    for size, whole, group in zip(wide.shape, view.shape, groups, strict=True):
        inner = [(count, stride) for count, stride in group if exact_div(stride, width) is None]
        if not all(isinstance(number, int) for factor in inner for number in factor):
            return None
        if size != 1 and (len(inner) != len(group) or size != whole):
            return None
        indices.append([(index if size != 1 else 0, place) for index, place in enumerate(_places(inner))])  # type: ignore[arg-type]
    found: dict[int, float] = {}
    for chosen in itertools.product(*indices):
        column = (view.offset + sum(place for _, place in chosen)) % width
        number = float(wide[tuple(index for index, _ in chosen)])
        if found.setdefault(column, number) != number:
            return None
    numbers = np.full(width, neutral)
    numbers[list(found)] = list(found.values())
    return numbers


def _places(factors: list[tuple[int, int]]) -> Iterator[int]:
    """The distance of each index of an axis from the first."""
    return (
        sum(index * stride for index, (_, stride) in zip(chosen, factors, strict=True))
        for chosen in itertools.product(*(range(count) for count, _ in factors))
    )


def _rewrite(
    affine: _Affine,
    path: list[ir.Value],
    product: _Product,
    factor: Array,
    offset: Array,
    scope: Scope,
    context: Context,
) -> bool:
    facts, editor = context.facts, context.editor
    weight = facts.const(product.weight)
    assert weight is not None
    bias = None if product.bias is None else facts.const(product.bias)
    scaled = weight.astype(np.float64) * (factor if product.columns == 1 else factor[:, None])
    shifted = offset if bias is None else bias.astype(np.float64).reshape(-1) * factor + offset
    if not (_is_held(scaled) and _is_held(shifted)):
        return False
    moves = list(dict.fromkeys(use.node for value in path[:-1] for use in value.uses()))
    nodes = [affine.node, *reversed(moves), *([product.sum] if product.sum is not None else []), product.node]
    with editor.change(FoldChannelAffine.name, rule=Rounds(FoldChannelAffine.name), nodes=nodes) as change:
        build = Builder(scope, editor, product.node)
        held = build.constant(context.spill.keep(scaled.astype(np.float32)))
        needs_sum = product.bias is not None or bool(np.any(shifted))
        vector = build.constant(ir.Tensor(shifted.astype(np.float32))) if needs_sum else None
        if product.node.op_type == "Gemm":
            made = build.like(product.node, [product.node.inputs[0], held, *([vector] if vector is not None else [])])
        else:
            made = build.node("MatMul", [product.node.inputs[0], held])[0]
            made = build.node("Add", [made, vector])[0] if vector is not None else made
        instead = {product.output: made}
        for node in moves:
            _move_instead(node, instead, editor)
        editor.replace(affine.node.outputs[0], instead[affine.data])
        for before, after in instead.items():
            if before not in path and (before.uses() or before.is_graph_output()):
                editor.replace(before, after)
        editor.remove(*nodes)
    return bool(change)


def _move_instead(node: ir.Node, instead: dict[ir.Value, ir.Value], editor: Editor) -> None:
    """Move the new values as a node moves the old ones; `instead` has the new ones, and gets those that the node makes."""
    operands = [value if value is None else instead.get(value, value) for value in node.inputs]
    attributes = node.attributes.values()
    copy = ir.Node(node.domain, node.op_type, operands, attributes, num_outputs=len(node.outputs), version=node.version)
    editor.insert_before(node, copy)
    for before, after in zip(node.outputs, copy.outputs, strict=True):
        if before.name == "":
            editor.rename(after, "")
        else:
            instead[before] = after


def _is_held(numbers: Array) -> bool:
    """Whether float32 holds the numbers: finite, and not below its smallest normal number beside the others."""
    limits = np.finfo(np.float32)
    size = np.abs(numbers)
    largest = size.max(axis=0, initial=0.0)
    return bool(np.all(size <= float(limits.max)) and not np.any((largest > 0) & (largest < float(limits.tiny))))
