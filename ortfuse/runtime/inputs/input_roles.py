"""Infer the roles of a model's inputs (index, mask, ...) by following them through the graph, whatever their names.

An input is followed through nodes that keep its numbers (casts, reshaping, slicing, ...) or change them by constants
(`x + 2` selects from a table of position embeddings, `1 - mask`), including into the bodies of control flow.

- **Index**: it selects rows of a table (Gather, OneHot, RotaryEmbedding, ...).
- **Mask**: it is cast to bool, compared with a constant, used as the condition of a Where, subtracted from 1, or multiplied
  with something that is not a constant. The values that hide a position are inferred from their use: in a product with
  a large negative number, or on the side of a Where that holds one.
- **Bias**: a floating-point input that is added to the scores of a Softmax.
- **Values**: an integer is compared with certain numbers (a sample rate with 16000, tokens with that of the end).
- **Length**: it is compared with positions; these say what lengths there are.
- **Sizes**: sizes of tensors or numbers of iterations are computed from it (`ortfuse.runtime.inputs.find_size_inputs`).
- **Boxes**: corners, or centres and sizes, of NonMaxSuppression.
- **Holes**: numbers may be missing, as an Imputer or IsNaN asks.
- **Words**: texts, or integers, that an encoder knows; those that are taken apart first are sentences of such words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import COMPARES, JOINS, LOGICAL, MICROSOFT, MOVES, PICKS
from ortfuse.runtime.inputs import find_index_and_mask_inputs

_LENGTHS = (MICROSOFT, "GroupQueryAttention", 5)
"""The input with the length of each sequence, less one."""

MOST_STEPS = 100_000
"""Limit on the steps an input is followed: constants on many branching paths can produce too many different numbers."""


class Use(Enum):
    """The interpretation of the values of a mask."""

    KEEP = "1 keeps a position"
    HIDE = "1 hides a position"
    EITHER = "one of the two"
    BIAS = "added to the scores of a softmax"


@dataclass(frozen=True)
class Limit:
    """`scale * x + offset` selects from a table of `extent` rows; `extent` is `None` if unknown."""

    extent: DimLike | None
    scale: int = 1
    offset: int = 0


class Boxes(Enum):
    """The format of boxes."""

    CORNERS = "two opposite corners"
    CENTRES = "the centre, width and height"


@dataclass(frozen=True)
class Role:
    """The role of an input.

    Attributes:
        limits: The tables it selects from.
        mask: How it masks; `None` if it does not.
        values: The numbers it is compared with, other than 0 and 1.
        length: The number of positions it is compared with; `None` if it is no length.
        boxes: How its boxes are written; `None` if it has none.
        image: Whether its last two axes are height and width: it reaches a two-dimensional convolution in that form.
        words: The texts that are known where it is looked up.
        sentences: Whether its texts are taken apart into words.
        holes: Numbers that are put in the place of some: NaN or infinity, which the model asks for.
        tells_sizes: Whether sizes of tensors, or numbers of iterations, are computed from its elements.
    """

    limits: tuple[Limit, ...] = ()
    mask: Use | None = None
    values: tuple[int, ...] = ()
    length: DimLike | None = None
    boxes: Boxes | None = None
    image: bool = False
    words: tuple[str, ...] = ()
    sentences: bool = False
    holes: tuple[float, ...] = ()
    tells_sizes: bool = False

    @property
    def is_free(self) -> bool:
        """Whether nothing restricts the integers of the input."""
        bound = self.limits or self.values or self.words
        return not (bound or self.mask is not None or self.length is not None or self.tells_sizes)


@dataclass(frozen=True)
class _Step:
    """A value on the path from an input, and what has happened to the input's numbers so far.

    Attributes:
        value: Its elements are `scale * x + offset`, or something that is true where the input is not 0.
        scale: Scale of the numbers; 0 once they have become truth values or are lost.
        offset: Offset of the numbers.
        most: The largest possible number here, `None` if unknown.
        flipped: Whether what is true or large here was 0 in the input.
        scored: Whether it has been added to something that is not constant.
        summed: Whether it is a sum of the input's numbers.
        hides: Whether it has been multiplied by a large negative number, as zeros and ones that hide are.
    """

    value: ir.Value
    scale: int = 1
    offset: int = 0
    most: int | None = None
    flipped: bool = False
    scored: bool = False
    summed: bool = False
    hides: bool = False


def role_of(value: ir.Value, facts: Facts, *, tells_sizes: bool = False) -> Role:
    """The role of `value`, an input of the model of `facts`. Model functions must have been inlined.

    Args:
        value: The input.
        facts: The facts of its model.
        tells_sizes: Whether it is one of `ortfuse.runtime.inputs.find_size_inputs.size_inputs`.
    """
    return replace(_Walk(value, facts).run(), tells_sizes=tells_sizes)


class _Walk:
    def __init__(self, value: ir.Value, facts: Facts) -> None:
        self._facts = facts
        self._input = value
        self._floating = value.dtype is not None and value.dtype.is_floating_point()
        self._limits: dict[Limit, None] = {}
        self._uses: set[Use] = set()
        self._values: dict[int, None] = {}
        self._length: DimLike | None = None
        self._boxes: Boxes | None = None
        self._image = False
        self._words: dict[str, None] = {}
        self._sentences = False
        self._holes: dict[float, None] = {}

    def run(self) -> Role:
        pending = [_Step(self._input)]
        seen = set(pending)
        while pending and len(seen) < MOST_STEPS:
            step = pending.pop()
            for use in step.value.uses():
                for follower in self._follow(step, use.node, use.idx):
                    if follower not in seen:
                        seen.add(follower)
                        pending.append(follower)
        return Role(
            tuple(self._limits), self._mask(), tuple(self._values), self._length, self._boxes, self._image,
            tuple(self._words), self._sentences, tuple(self._holes),
        )  # fmt: skip

    def _mask(self) -> Use | None:
        if Use.BIAS in self._uses:
            return Use.BIAS
        known = self._uses - {Use.EITHER}
        if len(known) == 1:
            return known.pop()
        return Use.EITHER if self._uses else None

    def _follow(self, step: _Step, node: ir.Node, index: int) -> Iterator[_Step]:
        """Record what `node` does with its input number `index`, and continue with its outputs where that makes sense."""
        self._look_up(step, node)
        if self._floating:
            self._holes |= dict.fromkeys(_OF_HOLES.get(node.op_type, ()))
        if node.op_type in _OF_TEXTS:
            self._sentences |= _OF_TEXTS[node.op_type]
            yield replace(step, value=node.outputs[0])
            return
        if step.scale and not self._floating:
            for extent in find_index_and_mask_inputs.extents(node, index, self._facts):
                self._limit(step, extent)
        fused = find_index_and_mask_inputs.MASK_INPUTS.get((node.domain, node.op_type), {}).get(index)
        if (node.domain, node.op_type, index) == _LENGTHS:
            if step.summed:  # the length of a sequence is the sum of its mask
                self._uses.add(Use.KEEP)
        elif fused is not None and not step.hides:
            self._uses.add(Use.BIAS if self._floating else _fused_use(fused, step.flipped))
        elif node.domain:
            return
        elif node.op_type in ("Loop", "Scan"):
            yield from self._into_body(step, node, index)
        elif node.op_type in _ARITHMETIC:
            yield from self._arithmetic(step, node, index)
        elif node.op_type in _LOGIC:
            yield from self._logic(step, node, index)
        elif node.op_type == "Softmax" and step.scored and self._floating and not step.hides:
            self._uses.add(Use.BIAS)
        elif node.op_type == "Conv" and index == 0:
            self._image = self._is_image(step, node)
        elif node.op_type == "NonMaxSuppression" and index == 0 and step.scale == 1 and not step.offset:
            self._boxes = Boxes.CENTRES if node.attributes.get_int("center_point_box", 0) else Boxes.CORNERS
        elif node.op_type == "ReduceSum" and index == 0 and not self._floating:
            yield replace(step, value=node.outputs[0], scale=0, summed=True)
        elif node.op_type in MOVES and (index == 0 or node.op_type in JOINS):
            yield from (replace(step, value=output) for output in node.outputs)

    def _limit(self, step: _Step, extent: DimLike | None) -> None:
        if step.most is None or not isinstance(extent, int) or step.most >= extent:
            self._limits[Limit(extent, step.scale, step.offset)] = None

    def _look_up(self, step: _Step, node: ir.Node) -> None:
        """Record the texts or integers that an encoder knows."""
        if node.domain not in ("", "ai.onnx.ml"):
            return
        for attribute in (node.attributes.get(name) for name in _VOCABULARIES):
            if attribute is None or attribute.is_ref():
                continue
            known = attribute.as_tensor().numpy() if attribute.type == ir.AttributeType.TENSOR else attribute.value
            for one in np.ravel(known).tolist():
                if isinstance(one, str | bytes):
                    self._words[one.decode() if isinstance(one, bytes) else one] = None
                elif isinstance(one, int) and step.scale == 1 and not step.offset and not self._floating:
                    self._values[one] = None

    def _into_body(self, step: _Step, node: ir.Node, index: int) -> Iterator[_Step]:
        body = node.attributes["body"].as_graph()
        if index < len(body.inputs):
            yield replace(step, value=body.inputs[index])

    def _arithmetic(self, step: _Step, node: ir.Node, index: int) -> Iterator[_Step]:
        """Add, Sub, Mul, Min, Max, Mod, Clip: with a constant they change the numbers, otherwise they apply a mask."""
        output = node.outputs[0]
        rest = [value for position, value in enumerate(node.inputs) if position != index]
        other = self._number(rest[0]) if len(rest) == 1 else None
        kind = node.op_type
        if kind in ("Clip", "Mod", "Min"):
            if index == 0 or kind == "Min":
                yield replace(step, value=output, most=_smaller(step.most, self._ceiling(node, other)))
        elif kind == "Max":
            yield replace(step, value=output)
        elif kind == "Mul":
            yield from self._product(step, output, other)
        elif other is None:
            if kind == "Add":
                yield replace(step, value=output, scale=0, scored=True)
        elif kind == "Sub" and index == 1:
            if other == 1:
                self._note(Use.EITHER)
                yield replace(step, value=output, scale=0, flipped=not step.flipped)
        else:
            yield self._shifted(step, output, other if kind == "Add" else -other)

    def _ceiling(self, node: ir.Node, other: float | None) -> float | None:
        """The largest possible output of Clip, Mod or Min, as far as constants determine it."""
        if node.op_type == "Clip":
            return self._number(node.inputs[2]) if len(node.inputs) > 2 else None
        return other - 1 if node.op_type == "Mod" and other is not None else other

    def _shifted(self, step: _Step, output: ir.Value, by: float) -> _Step:
        if not float(by).is_integer():
            return replace(step, value=output, scale=0)
        most = None if step.most is None else step.most + int(by)
        return replace(step, value=output, offset=step.offset + int(by), most=most)

    def _product(self, step: _Step, output: ir.Value, other: float | None) -> Iterator[_Step]:
        if other is None:
            if not self._floating:
                self._note(Use.HIDE if step.flipped else Use.KEEP)
            return
        if _hides(other):
            self._uses.add(Use.KEEP if step.flipped else Use.HIDE)
        whole = step.scale and float(other).is_integer() and other > 0
        scale, offset = (step.scale * int(other), step.offset * int(other)) if whole else (0, 0)
        yield replace(step, value=output, scale=scale, offset=offset, most=None, hides=step.hides or _hides(other))

    def _logic(self, step: _Step, node: ir.Node, index: int) -> Iterator[_Step]:
        """Comparisons, boolean operators, casts and Where."""
        output, kind = node.outputs[0], node.op_type
        if kind == "Cast":
            if self._facts.dtype(output) == ir.DataType.BOOL and step.value.dtype != ir.DataType.BOOL:
                self._note(Use.EITHER)
                step = replace(step, scale=0)
            yield replace(step, value=output)
        elif kind == "Where":
            if index == 0:
                self._chosen(step, node)
            yield replace(step, value=output, scale=step.scale if index else 0)
        elif kind in LOGICAL:
            self._note(Use.EITHER)
            yield replace(step, value=output, scale=0, flipped=step.flipped != (kind == "Not"))
        else:
            other = self._number(node.inputs[1 - index])
            if other is None:
                self._against_positions(step, node.inputs[1 - index], kind)
            elif self._is_value(step, kind, other):
                self._values[(int(other) - step.offset) // step.scale] = None
            else:
                self._note(Use.EITHER)
                yield replace(step, value=output, scale=0, flipped=step.flipped != _inverts(kind, index, other))

    def _is_image(self, step: _Step, node: ir.Node) -> bool:
        """Whether a convolution takes the input with its last two axes where they were."""
        shapes = [self._facts.shape(value) for value in (self._input, node.inputs[0])]
        return all(shape is not None and len(shape) == 4 for shape in shapes) and shapes[0][-2:] == shapes[1][-2:]  # type: ignore[index]

    def _is_value(self, step: _Step, kind: str, other: float) -> bool:
        """Whether the input is compared with a number that it may be, rather than asked whether it is 0."""
        whole = not self._floating and step.scale and float(other).is_integer() and step.value.dtype != ir.DataType.BOOL
        return bool(whole) and kind == "Equal" and (int(other) - step.offset) // (step.scale or 1) not in (0, 1)

    def _against_positions(self, step: _Step, other: ir.Value | None, kind: str) -> None:
        """Record that the input is compared with integers along an axis, as lengths are with positions."""
        shape, kinds = self._facts.shape(other), (self._input.dtype, self._facts.dtype(other))
        if kind != "Equal" and shape and step.scale and all(one is not None and one.is_integer() for one in kinds):
            self._length = self._length if self._length is not None else shape[-1]

    def _chosen(self, step: _Step, node: ir.Node) -> None:
        """Infer from a Where with condition `step` which values hide: those that select a large negative number."""
        for side, when in ((node.inputs[1], True), (node.inputs[2], False)):
            number = self._number(side)
            if number is not None and _hides(number):
                self._uses.add(Use.HIDE if when != step.flipped else Use.KEEP)
                return
        self._note(Use.EITHER)

    def _note(self, use: Use) -> None:
        """Record evidence, for integers and truth values only: floating-point numbers are compared for many reasons."""
        if not self._floating:
            self._uses.add(use)

    def _number(self, value: ir.Value | None) -> float | None:
        number = self._facts.scalar(value)
        return None if number is None else float(number)


def _fused_use(keeps: bool, flipped: bool) -> Use:
    """The use of a mask that a fused operator takes directly."""
    return Use.KEEP if keeps != flipped else Use.HIDE


def _smaller(most: int | None, other: float | None) -> int | None:
    if other is None or not math.isfinite(other):
        return most
    return int(other) if most is None else min(most, int(other))


def _hides(number: float) -> bool:
    return number <= -1e3


def _inverts(comparison: str, index: int, other: float) -> bool:
    """Whether comparing the input (operand number `index`) with `other` gives true for 0 and false for 1."""
    zero, one = ((0.0, other), (1.0, other)) if index == 0 else ((other, 0.0), (other, 1.0))
    compare = _COMPARISONS[comparison]
    return compare(*zero) and not compare(*one)


_COMPARISONS = {
    "Equal": float.__eq__,
    "Less": float.__lt__,
    "Greater": float.__gt__,
    "LessOrEqual": float.__le__,
    "GreaterOrEqual": float.__ge__,
}
_VOCABULARIES = ("keys_strings", "keys_int64s", "keys_tensor", "cats_strings", "cats_int64s", "classes_strings", "pool_strings",
                 "string_vocabulary")  # fmt: skip
"""The attributes of encoders with what they know."""

_OF_TEXTS = {"StringSplit": True, "Tokenizer": True, "StringNormalizer": False}
"""Operators that make texts of texts, and whether they take them apart into words."""

_OF_HOLES = {"IsNaN": (math.nan,), "Imputer": (math.nan,), "IsInf": (math.inf, -math.inf)}
"""Operators that ask for numbers that are none, or infinite."""

_LOGIC = LOGICAL | COMPARES | {"Cast", "Where"}
_ARITHMETIC = PICKS | {"Add", "Sub", "Mul", "Mod", "Clip"}
