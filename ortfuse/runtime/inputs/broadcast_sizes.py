"""Infer sizes of open dimensions from fixed sizes with which they must broadcast or match.

    x + table, with a table of 12 rows       needs 12 rows of x, or one
    x @ w, with w of 12 rows                 needs 12 columns of x
    reshape(x, [1, 12, 4, 8])                needs as many elements
    conv(x, w), with w of [8, 12, 3]         needs 12 channels of x

A model that was traced, with its loops unrolled, runs with the one length that it was traced with, although its inputs declare
any. Only these operators tell that length, which is none of the usual sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, DimLike, evaluate, product, symbols
from ortfuse.ir.inlinable_functions import looked_into
from ortfuse.ir.operator_registry import CHANNEL_AXES, ChannelAxes
from ortfuse.ir.traits import BROADCASTS, RESHAPES, has

OPERANDS = 2
"""The operands of a product."""

_BASE = 2
"""Sizes at which growth is observed: at 1 an axis may be broadcast, at 0 everything is empty."""


@dataclass(frozen=True)
class Matched:
    """A size that is equal to a fixed one wherever the model runs, unless it is 1 and `stretches`."""

    dim: Dim
    fixed: int
    stretches: bool = False

    def fitted(self, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
        """The sizes, with one changed so that these match: that of the first symbol in `order` for which there is one."""
        made = dict(sizes)
        if self._gap(made) in (0, None):
            return made
        named = symbols(self.dim)
        for symbol in (symbol for symbol in order if symbol in named):
            size = self._root(symbol, made)
            if size is not None:
                return {**made, symbol: size}
        return made

    def _root(self, symbol: str, sizes: Mapping[str, int]) -> int | None:
        """The size of a symbol at which they are equal, if they are of the first degree in it."""
        first, second = (self._gap({**sizes, symbol: size}) for size in (_BASE, _BASE + 1))
        if first is None or second is None or first == second:
            return None
        steps, rest = divmod(-first, second - first)
        size = _BASE + steps
        return size if not rest and size > 0 and self._gap({**sizes, symbol: size}) == 0 else None

    def _gap(self, sizes: Mapping[str, int]) -> int | None:
        """By how much they differ; `None` if that cannot be told."""
        try:
            size = evaluate(self.dim, sizes)
        except (KeyError, ZeroDivisionError):
            return None
        return 0 if self.stretches and size == 1 else size - self.fixed


def matched_sizes(model: ir.Model) -> list[Matched]:
    """The sizes that must match in the main graph."""
    flat = looked_into(model)
    facts = Facts(flat, as_declared=True)
    return list(dict.fromkeys(one for node in flat.graph for one in _of(node, facts)))


def _of(node: ir.Node, facts: Facts) -> Iterator[Matched]:
    shapes = [shape for value in node.inputs if (shape := facts.shape(value)) is not None]
    if has(node, BROADCASTS):
        for one, other in itertools.combinations(shapes, 2):
            yield from _along(one[::-1], other[::-1])
    elif node.op_type == "MatMul" and not node.domain and len(shapes) == OPERANDS and all(shapes):
        one, other = shapes
        yield from _pair(one[-1], other[-2:][0])
        yield from _along(one[-3::-1], other[-3::-1])
    elif (channels := CHANNEL_AXES.of(node)) is not None:
        yield from _channels(node, channels, facts)
    elif has(node, RESHAPES) and shapes and (made := facts.shape(node.outputs[0])) is not None:
        yield from _pair(product(shapes[0]), product(made))


def _channels(node: ir.Node, channels: ChannelAxes, facts: Facts) -> Iterator[Matched]:
    """The size of an axis of the first operand that an axis of another one is for."""
    axis, other, other_axis = channels
    shapes = [facts.shape(node.inputs[number]) if len(node.inputs) > number else None for number in (0, other)]
    if any(
        shape is None or not -len(shape) <= at < len(shape)
        for shape, at in zip(shapes, (axis, other_axis), strict=True)
    ):
        return
    size, fixed = shapes[0][axis], shapes[1][other_axis]  # type: ignore[index]
    if node.op_type == "Conv":
        fixed = fixed * (node.attributes.get_int("group", 1) or 1)
    yield from _pair(size, fixed)


def _along(first: Sequence[DimLike], other: Sequence[DimLike]) -> Iterator[Matched]:
    """The sizes of two operands that are stretched, from the last axis on."""
    for one, two in zip(first, other, strict=False):
        if 1 not in (one, two):
            yield from _pair(one, two, stretches=True)


def _pair(one: DimLike, other: DimLike, *, stretches: bool = False) -> Iterator[Matched]:
    if isinstance(one, Dim) and isinstance(other, int):
        yield Matched(one, other, stretches)
    elif isinstance(other, Dim) and isinstance(one, int):
        yield Matched(other, one, stretches)
