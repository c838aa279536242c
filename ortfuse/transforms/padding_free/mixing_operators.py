"""Operators that mix tokens: Softmax, matrix products, attention and others. Hidden tokens have to be masked out in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.index_maps import Box, axes, axis
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import MICROSOFT
from ortfuse.transforms.padding_free.dependence import NONE, Dependence, DependsError, Marks, mixed
from ortfuse.transforms.padding_free.element_ranges import broadcast_index, is_kept, is_low, is_one_number
from ortfuse.transforms.padding_free.token_marks import Mark, formulas_at

_IS_ALONG_AXIS = 13

_HAS_SIZES = 11
"""The opset from which on a Resize has sizes and modes of coordinates."""

_KEEPING_PLACES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
"""The modes of coordinates in which a scale of 1 gives each place exactly, however places are rounded."""

_WEIGHTS = 3
"""The mode in which the further result of Attention is what Softmax returns."""

_BATCH, _HEAD, _QUERY, _KEY, _SIZE = range(5)
"""The axes of the scores of attention, and one for the elements of queries, keys and values."""


@dataclass(frozen=True)
class _Score:
    """A part of the scores, which may hide keys.

    Attributes:
        value: The tensor.
        index: The element of it that a score is computed from.
        is_truth: Whether 0 hides a key, and other numbers show it; otherwise low numbers hide it.
    """

    value: ir.Value
    index: tuple[DimLike, ...]
    is_truth: bool = False

    def hides(self, dependence: Dependence, key: Mark, box: Box) -> bool:
        """Whether a key is hidden wherever the mask hides it."""
        found = dependence.range_at(self.value, key, self.index, box, is_hidden=True)
        if found is None:
            return False
        return not found.truths - {0} and not found.nan if self.is_truth else is_low(found)

    def shows(self, dependence: Dependence, key: Mark, index: Sequence[DimLike], box: Box) -> bool:
        """Whether a key is shown where the mask shows it; `index` is the position among the scores."""
        place = formulas_at(self.index, index, box)
        found = dependence.range_at(self.value, key, place, box, is_hidden=False)
        if found is None:
            return False
        return not found.nan and not found.holds(0) if self.is_truth else is_kept(found)

    def is_alike(self, dependence: Dependence, key: Mark, box: Box) -> bool:
        """Whether all keys that the mask shows have one number here, so that it changes no weight."""
        found = dependence.range_at(self.value, key, self.index, box, is_hidden=False)
        if found is None or found.nan:
            return False
        return not found.holds(0) if self.is_truth else is_one_number(found) and is_kept(found)


def _weighted(
    dependence: Dependence, node: ir.Node, keys: Iterable[Mark], parts: Sequence[_Score], scores: _Scores
) -> Marks:
    """Check that hidden keys have no weight; returns the marks of rows that may have no key but hidden ones.

    Raises:
        DependsError: One may have.
    """
    found: set[Mark] = set()
    for key in keys:
        if not any(part.hides(dependence, key, scores.box) for part in parts):
            raise mixed(node, "no mask is known to hide the keys of hidden tokens from it")
        whole = axes(len(scores.shape))
        if not scores.is_causal and all(part.shows(dependence, key, whole, scores.box) for part in parts):
            continue
        row = _row_with_own_key(dependence, key, parts, scores)
        if row is not None:
            found.add(row)
        elif not _selected_row_has_own_key(dependence, key, parts, scores):
            raise mixed(node, "it is not known that each visible token sees a visible one")
        dependence.needs_own_key = True
    dependence.attentions.append(node)
    return frozenset(found)


@dataclass(frozen=True)
class _Scores:
    """The scores of attention.

    Attributes:
        shape: Their shape.
        key: The axis of the keys.
        is_causal: Whether later keys are hidden from queries.
    """

    shape: tuple[DimLike, ...]
    key: int
    is_causal: bool = False

    @property
    def box(self) -> Box:
        """The positions of the scores."""
        return Box.of_shape(self.shape)


def _row_with_own_key(dependence: Dependence, key: Mark, parts: Sequence[_Score], scores: _Scores) -> Mark | None:
    """The token of a row that sees its own key if it is visible; `None` if that is not known."""
    for query in range(len(scores.shape)):
        if query == scores.key or scores.shape[query] != scores.shape[scores.key]:
            continue
        index: list[DimLike] = [*axes(len(scores.shape))]
        index[scores.key] = axis(query)
        own = key.at(index, scores.box)
        if own != key and all(part.shows(dependence, own, index, scores.box) for part in parts):
            return own
    return None


def _selected_row_has_own_key(dependence: Dependence, key: Mark, parts: Sequence[_Score], scores: _Scores) -> bool:
    """Whether the rows are those of tokens that are taken one by one, and each sees its own key if it is visible.

    Such a token is visible, or all tokens of its sequence are packed.
    """
    if scores.shape[: scores.key][-1:] != (1,) or key.sequence != axis(0):
        return False
    computed = [axis(one) for lookup, one in dependence.setting.lookups.items() if lookup in dependence.selected]
    known = [one.at for one in dependence.selections if isinstance(one.at, int)]
    for place in (*computed, *(one if one >= 0 else scores.shape[scores.key] + one for one in known)):
        index: list[DimLike] = [*axes(len(scores.shape))]
        index[scores.key] = place
        own = key.at(index, scores.box)
        if own != key and all(part.shows(dependence, own, index, scores.box) for part in parts):
            return True
    return False


def _softmax(dependence: Dependence, node: ir.Node) -> None:
    """Weights: those of hidden keys are 0."""
    value, output = node.inputs[0], node.outputs[0]
    along = parameter(node, "axis", dependence.facts)
    shape = dependence.shape(value, node)
    if value is None or not isinstance(along, int) or dependence.facts.version(node) < _IS_ALONG_AXIS:
        raise mixed(node, "its axis is not known")
    marks, scores, part = dependence.of(value), _Scores(shape, along), _Score(value, axes(len(shape)))
    keys = {mark for mark in marks if mark.mentions(along)}
    rows = _weighted(dependence, node, keys, [part], scores) if keys else NONE
    for ended in dependence.ended.get(value, NONE) - keys:
        if ended.mentions(along):
            with suppress(DependsError):
                rows |= _weighted(dependence, node, [ended], [part], scores)
                keys.add(ended)
    dependence.setting.weights[output] = keys
    dependence.set(output, (marks - keys) | rows)


def _matmul(dependence: Dependence, node: ir.Node) -> None:
    """Sums of products: tokens that are summed over have to be 0 where they are hidden."""
    left, right = node.inputs[:2]
    if left is None or right is None:
        raise mixed(node, "an operand is missing")
    first, second, result = (dependence.shape(value, node) for value in (left, right, node.outputs[0]))
    if len(first) < 2 or len(second) < 2:
        raise mixed(node, "a vector is multiplied")
    rank = len(result)
    summed = axis(rank)
    box = Box.of_shape((*result, first[-1]))
    places = []
    for shape, last in ((first, (axis(rank - 2), summed)), (second, (summed, axis(rank - 1)))):
        batch = broadcast_index(axes(rank - 2), result[:-2], shape[:-2])
        if batch is None:
            raise mixed(node, "it is not known along which axes an operand is broadcast")
        places.append((*batch, *last))
    found: set[Mark] = set()
    for value, place in zip((left, right), places, strict=True):
        for mark in dependence.of(value):
            moved = mark.at(place, box)
            if not moved.mentions(rank):
                found.add(moved)
                continue
            factors = zip((left, right), places, strict=True)
            ranges = (dependence.range_at(one, moved, index, box, is_hidden=True) for one, index in factors)
            if not any(one is not None and is_one_number(one) and one.holds(0) for one in ranges):
                raise mixed(node, "it sums over tokens, of which none is masked out")
    dependence.set(node.outputs[0], found)


def _gemm(dependence: Dependence, node: ir.Node) -> None:
    """Products of rows."""
    dependence.only_data(node)
    if attribute_value(node, "transA", dependence.facts) != 0:
        raise mixed(node, "its first operand is transposed")
    dependence.keep(node, [1])
    dependence.set(node.outputs[0], dependence.of(node.inputs[0]))


def _convolution(dependence: Dependence, node: ir.Node) -> None:
    """Sums over the channels, and over axes along which the kernel has more than one element or takes others."""
    dependence.only_data(node)
    kernel = dependence.shape(node.inputs[1], node)
    count = len(kernel) - 2
    plain = {"strides": [1] * count, "pads": [0] * (2 * count)}
    given = {name: attribute_value(node, name, dependence.facts) for name in plain}
    moves = any(value is not None and list(value) != plain[name] for name, value in given.items())
    summed = [number for number in range(2, 2 + count) if moves or kernel[number] != 1]
    dependence.keep(node, [1, *summed])
    dependence.set(node.outputs[0], dependence.of(node.inputs[0]))


def _resize(dependence: Dependence, node: ir.Node) -> None:
    """Copies of elements, which keep their places along axes whose scale is exactly 1."""
    dependence.only_data(node)
    facts, value = dependence.facts, node.inputs[0]
    mode, places = (attribute_value(node, name, facts) for name in ("mode", "coordinate_transformation_mode"))
    if facts.version(node) < _HAS_SIZES or mode != "nearest" or places not in _KEEPING_PLACES:
        raise mixed(node, "it is not known to copy elements of one place alone")
    kept = _axes_of_scale_one(node, dependence)
    dependence.keep(node, [number for number in range(len(dependence.shape(value, node))) if number not in kept])
    dependence.set(node.outputs[0], dependence.of(value))


def _axes_of_scale_one(node: ir.Node, dependence: Dependence) -> Collection[int]:
    """The axes along which a Resize is known to have a scale of exactly 1."""
    facts, rank = dependence.facts, len(dependence.shape(node.inputs[0], node))
    named = attribute_value(node, "axes", facts)
    resized = range(rank) if named is None else [int(one) % rank for one in named]
    factors = facts.const(node.inputs[2]) if len(node.inputs) > 2 else None
    if factors is None or factors.shape != (len(resized),):
        return set(range(rank)) - set(resized)
    scales = dict(zip(resized, factors, strict=True))
    return {number for number in range(rank) if scales.get(number, 1) == 1}


def _attention(dependence: Dependence, node: ir.Node) -> None:
    """Attention of ai.onnx."""
    facts = dependence.facts
    if any(value is not None for value in node.inputs[4:]) or attribute_value(node, "softcap", facts) not in (0, None):
        raise mixed(node, "it has a cache or a cap of scores")
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    shape = _scores_shape(dependence, node, "q_num_heads")
    parts = [] if mask is None else [_part(dependence, node, mask, shape)]
    causal = attribute_value(node, "is_causal", facts) not in (0, None)
    _attend(dependence, node, node.inputs[:3], parts, _Scores(shape, _KEY, causal))


def _multi_head_attention(dependence: Dependence, node: ir.Node) -> None:
    """MultiHeadAttention of ONNX Runtime, with separate queries, keys and values of rank 3."""
    operands = [*node.inputs, *[None] * 8]
    query, key, value, bias, padding, added = operands[:6]
    if key is None or value is None or any(one is not None for one in operands[6:]):
        raise mixed(node, "queries, keys and values are packed in one tensor, or there is a cache")
    if dependence.of(bias) or dependence.facts.rank(query) != 3:
        raise mixed(node, "its bias is computed from tokens, or its queries do not have rank 3")
    shape = _scores_shape(dependence, node, "num_heads")
    parts = [] if added is None else [_part(dependence, node, added, shape)]
    if padding is not None:
        if dependence.facts.rank(padding) != 2 or dependence.of(padding):
            raise mixed(node, "its padding mask does not have rank 2")
        parts.append(_Score(padding, (axis(_BATCH), axis(_KEY)), is_truth=True))
    causal = attribute_value(node, "unidirectional", dependence.facts) not in (0, None)
    _attend(dependence, node, (query, key, value), parts, _Scores(shape, _KEY, causal))


def _scores_shape(dependence: Dependence, node: ir.Node, heads: str) -> tuple[DimLike, ...]:
    """The shape [batch, heads, queries, keys] of the scores."""
    query, key = (dependence.shape(value, node) for value in node.inputs[:2])
    if len(query) == 4 and len(key) == 4:
        return (query[0], query[1], query[2], key[2])
    if len(query) != 3 or len(key) != 3:
        raise mixed(node, "the ranks of its queries and keys are not 3 or 4")
    return (query[0], int(attribute_value(node, heads, dependence.facts) or 1), query[1], key[1])


def _part(dependence: Dependence, node: ir.Node, mask: ir.Value, scores: tuple[DimLike, ...]) -> _Score:
    index = broadcast_index(axes(4), scores, dependence.shape(mask, node))
    if index is None:
        raise mixed(node, "it is not known along which axes its mask is broadcast")
    return _Score(mask, index, dependence.facts.dtype(mask) == ir.DataType.BOOL)


def _attend(
    dependence: Dependence,
    node: ir.Node,
    operands: Sequence[ir.Value | None],
    parts: Sequence[_Score],
    scores: _Scores,
) -> None:
    """Follow queries, keys, values and masks to the result."""
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:3]):
        raise mixed(node, "its keys and values are used as a cache")
    box = scores.box
    found: set[Mark] = set()
    for value, along in zip(operands, (_QUERY, _KEY, _KEY), strict=True):
        rank = len(dependence.shape(value, node)) if dependence.of(value) else 0
        index = (
            (axis(_BATCH), axis(along), axis(_SIZE))
            if rank == 3
            else (axis(_BATCH), axis(_HEAD), axis(along), axis(_SIZE))
        )
        for mark in dependence.of(value):
            moved = mark.at(index, box)
            if moved.mentions(_SIZE):
                raise mixed(node, "a token is spread over the elements of a head")
            found.add(moved)
    for part in parts:
        found |= {mark.at(part.index, box) for mark in dependence.of(part.value)}
    keys = [mark for mark in found if mark.mentions(_KEY)]
    rows = _weighted(dependence, node, keys, parts, scores)
    is_of_tokens = not scores.is_causal and keys == [Mark(axis(_BATCH), axis(_KEY))]
    if is_of_tokens and all(part.is_alike(dependence, keys[0], box) for part in parts):
        dependence.unmasked.add(node)
    result = node.outputs[0]
    shape = dependence.shape(result, node)
    back = {_BATCH: axis(0), _QUERY: axis(1)} if len(shape) == 3 else {_BATCH: axis(0), _HEAD: axis(1), _QUERY: axis(2)}
    left = ({mark for mark in found if mark not in keys}) | rows
    for mark in left:
        if mark.mentions_others_than(list(back)):
            raise mixed(node, "its result mixes tokens of several heads")
    places = [back.get(number, 0) for number in range(4)]
    if len(node.outputs) > 3 and node.outputs[3].name != "":
        are_weights = attribute_value(node, "qk_matmul_output_mode", dependence.facts) == _WEIGHTS
        dependence.set(node.outputs[3], left if are_weights else found | rows)
    dependence.set(result, {mark.at(places, Box.of_shape(shape)) for mark in left})


def _rotary(dependence: Dependence, node: ir.Node) -> None:
    """Rotations of the last axis."""
    dependence.only_data(node)
    rank = len(dependence.shape(node.inputs[0], node))
    dependence.keep(node, [rank - 1])
    dependence.set(node.outputs[0], dependence.of(node.inputs[0]))


def _skip_normalization(dependence: Dependence, node: ir.Node) -> None:
    """Normalise sums of two tensors of one shape along the last axis."""
    dependence.only_data(node, 2)
    first, second = node.inputs[:2]
    if dependence.shape(first, node) != dependence.shape(second, node):
        raise mixed(node, "it is not known along which axes an operand is broadcast")
    marks = dependence.of(first) | dependence.of(second)
    if any(mark.mentions(len(dependence.shape(first, node)) - 1) for mark in marks):
        raise mixed(node, "it mixes tokens, of which none is masked out")
    for output in node.outputs:
        if output.name != "":
            dependence.set(output, marks)


MIXING: Mapping[tuple[str, str], Callable[[Dependence, ir.Node], None]] = {
    ("", "Softmax"): _softmax,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Conv"): _convolution,
    ("", "Resize"): _resize,
    ("", "Attention"): _attention,
    ("", "RotaryEmbedding"): _rotary,
    (MICROSOFT, "RotaryEmbedding"): _rotary,
    (MICROSOFT, "MultiHeadAttention"): _multi_head_attention,
    (MICROSOFT, "SkipLayerNormalization"): _skip_normalization,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_normalization,
}
"""The function that follows the marks of each operator."""
