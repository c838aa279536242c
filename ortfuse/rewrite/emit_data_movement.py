"""Build the nodes of rearrangements, and of slices of the last axis, from the named dimensions of a match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.ir.dims import DimLike, is_nonzero
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.rewrite.pattern.axis_names import Axes, Factor
from ortfuse.rewrite.pattern.language import Part
from ortfuse.rewrite.pattern.match_operators import Match
from ortfuse.rewrite.pattern.rearrangement import Rearrange

_AXES_ARE_INPUTS, _SHAPE_HAS_ENDS, _ZERO_CAN_BE_MEANT = 13, 15, 14


class NodeEmitter(Protocol):
    """The builder of a replacement (`ortfuse.rewrite.emit.Emitter`), as far as data movement needs it.

    Attributes:
        match: The match that is replaced.
        opset: The ai.onnx version of the scope.
        rule: The name of the rule.
        problem: The first thing that makes the replacement impossible.
    """

    match: Match
    opset: int
    rule: str
    problem: Refusal | None

    def node(
        self,
        op_type: str,
        inputs: list[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """Build a node."""
        ...

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """Build a constant."""
        ...


Group = tuple[Factor, ...]
"""The factors whose product is the size of an axis; several 1s of one side are told apart as `1`, `1'`, ..."""


def rearranged(emitter: NodeEmitter, pattern: Rearrange, operand: ir.Value) -> ir.Value:
    """`operand` with its axes split, moved and merged, by as few nodes as possible."""
    if pattern.repeated:
        raise RuleError(f"rule {emitter.rule}: {pattern} repeats elements, which a replacement says by an Expand")
    before, after = _groups(pattern.before), _groups(pattern.after)
    moves = _Moves(emitter, operand, before)
    common = {factor for group in before for factor in group} & {factor for group in after for factor in group}
    wanted = [factor for group in after for factor in group if factor in common]
    if [factor for group in before for factor in group if factor in common] != wanted:
        moves.reshape([(factor,) for group in before for factor in group if factor in common])
        moves.transpose([(factor,) for factor in wanted])
    moves.reshape(after)
    return moves.value


def _groups(axes: Axes) -> list[Group]:
    ones = 0
    found: list[Group] = []
    for axis in axes.axes:
        if axis.factors == (1,):
            found.append(("1" + "'" * ones,))
            ones += 1
        else:
            found.append(axis.factors)
    return found


class _Moves:
    """The current value while a rearrangement is built, and the meaning of its axes."""

    def __init__(self, emitter: NodeEmitter, value: ir.Value, axes: list[Group]) -> None:
        self.emitter, self.source, self.first = emitter, value, axes
        self.value, self.axes = value, axes

    def size(self, group: Group) -> DimLike:
        total: DimLike = 1
        for factor in group:
            if not str(factor).startswith("1'") and factor != "1":
                total = total * (factor if isinstance(factor, int) else self.emitter.match.dim(factor))
        return total

    def transpose(self, wanted: list[Group]) -> None:
        if wanted != self.axes:
            perm = [self.axes.index(group) for group in wanted]
            self.value, self.axes = self.emitter.node("Transpose", [self.value], {"perm": perm}).outputs[0], wanted

    def reshape(self, wanted: list[Group]) -> None:
        """Split and merge axes without changing their order, and insert or remove axes of size 1."""
        if wanted == self.axes:
            return
        added = [place for place, group in enumerate(wanted) if group not in self.axes]
        lost = [place for place, group in enumerate(self.axes) if group not in wanted]
        units = all(self.size(wanted[place]) == 1 for place in added) and all(
            self.size(self.axes[p]) == 1 for p in lost
        )
        if units and not (added and lost):
            self._squeeze("Unsqueeze" if added else "Squeeze", added or lost)
        else:
            shape = self._target(list(map(self.size, self.axes)), wanted)
            inputs, attributes = shape
            self.value = self.emitter.node("Reshape", [self.value, inputs], attributes).outputs[0]
        self.axes = wanted

    def _squeeze(self, op_type: str, places: list[int]) -> None:
        if self.emitter.opset < _AXES_ARE_INPUTS:
            self.value = self.emitter.node(op_type, [self.value], {"axes": places}).outputs[0]
        else:
            self.value = self.emitter.node(op_type, [self.value, self._numbers(places)]).outputs[0]

    def _target(self, before: Sequence[DimLike], wanted: list[Group]) -> tuple[ir.Value, dict[str, Any]]:
        """A constant Reshape target if possible, otherwise one that is computed at run time."""
        after = list(map(self.size, wanted))
        target = [_word(dim, before, place) for place, dim in enumerate(after)]
        open_ = [place for place, number in enumerate(target) if number is None]
        rest_is_some = all(is_nonzero(dim) for place, dim in enumerate(after) if place not in open_)
        if not open_ or (len(open_) == 1 and rest_is_some):
            return self._numbers([-1 if number is None else number for number in target]), {}
        words: list[ir.Value | None] = [
            self._numbers([dim]) if isinstance(dim, int) else self._computed(group)
            for dim, group in zip(after, wanted, strict=True)
        ]
        return self.emitter.node("Concat", words, {"axis": 0}).outputs[0], {"allowzero": 1}

    def _computed(self, group: Group) -> ir.Value | None:
        """The size of an axis, computed at run time from the shape of the rearranged value."""
        total: ir.Value | None = None
        for factor in group:
            if (factor,) not in self.first:
                self.emitter.problem = refuse(
                    "dimension", self.emitter.match.root, found=self.size((factor,)), needed="a number"
                )
                return self._numbers([1])
            size = self._length(self.first.index((factor,)))
            total = size if total is None else self.emitter.node("Mul", [total, size]).outputs[0]
        return total

    def _length(self, axis: int) -> ir.Value:
        if self.emitter.opset >= _SHAPE_HAS_ENDS:
            return self.emitter.node("Shape", [self.source], {"start": axis, "end": axis + 1}).outputs[0]
        shape = self.emitter.node("Shape", [self.source]).outputs[0]
        return self.emitter.node("Slice", [shape, self._numbers([axis]), self._numbers([axis + 1])]).outputs[0]

    def _numbers(self, numbers: Sequence[int]) -> ir.Value:
        return self.emitter.constant(np.asarray(list(numbers), np.int64))


def _word(dim: DimLike, before: Sequence[DimLike], place: int) -> int | None:
    """An element of a Reshape target; 0 copies the size of the input."""
    as_it_was = place < len(before) and before[place] == dim
    if isinstance(dim, int) and dim != 0:
        return dim
    return 0 if as_it_was else None


def part(emitter: NodeEmitter, pattern: Part, operand: ir.Value) -> ir.Value:
    """A Slice of the last axis."""

    def number(bound: int | str | None) -> list[int]:
        size = emitter.match.dim(bound) if isinstance(bound, str) else bound
        if size is not None and not isinstance(size, int):
            emitter.problem = refuse("dimension", emitter.match.root, found=size, needed="a number")
            return [0]
        return [np.iinfo(np.int64).max if size is None else size]

    bounds = [number(pattern.start), number(pattern.stop), [-1]] + ([] if pattern.step == 1 else [[pattern.step]])
    inputs = [emitter.constant(np.asarray(numbers, np.int64)) for numbers in bounds]
    return emitter.node("Slice", [operand, *inputs]).outputs[0]
