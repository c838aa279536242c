"""The numbers that one element of a tensor can be if the mask hides a token, or shows it.

    mask[b, k] = 0:   where(mask[:, None, None, :] != 0, 0, -1e38)[b, h, q, k] is -1e38
                      softmax(scores + that)[b, h, q, k] is 0
    mask[b, q] = 1:   where(causal & mask, 0, -1e38)[b, h, q, q] is 0

The element is given by formulas of its position, as in index maps. Data movement is followed by index maps, elementwise operators
by the interval arithmetic of ranges, on the elements that they compute from.

Assumes that activations are ordinary numbers: results of matrix products and normalisations, and what is computed of these by
element, lie within -1000 and 1000. Without such a bound no finite mask value hides anything: a score of 1e38 outweighs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.index_maps import Box, Element, Fill, IndexMap, IndexMapOf, Number, Read, Select, axes, axis
from ortfuse.analysis.index_maps.element_expressions import simplest
from ortfuse.analysis.index_maps.prove_inequalities import highest, is_never_negative, lowest
from ortfuse.analysis.ranges.queries import BY_ELEMENT, NOT_KNOWN, RANGES, Asking, Question, Values
from ortfuse.analysis.ranges.range import Range, anything, between, of_array, of_pieces, one_of, union
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.analysis.transfer.value_fact import INTEGERS
from ortfuse.ir.dims import DimLike, bounds
from ortfuse.ir.hidden_tokens import HIDDEN_SCORE, HIDING_BIAS
from ortfuse.ir.traits import BROADCASTS, CONTRACTS, ELEMENTWISE, LAYER, has
from ortfuse.transforms.padding_free.token_marks import Mark

ORDINARY = between(-1000.0, 1000.0)
"""The numbers that activations are taken to be."""

ANY_AXIS = 40
"""The number of a variable for positions about which nothing is known."""


Lookup = tuple[ir.Value, tuple[DimLike, ...]]
"""An element of a tensor of positions."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What one analysis takes as given.

    Attributes:
        mask: The value of shape [batch, sequence] that hides tokens; axes of size 1 may be between these.
        hidden: The numbers of the mask at hidden tokens.
        visible: Those at visible ones.
        packed: The values that are computed for packed tokens alone.
        weights: Results of Softmax, with the tokens for which they are proved to be 0 if hidden.
        lookups: The variables of positions that are computed, by the element of the tensor that holds them.
    """

    mask: ir.Value
    hidden: Range
    visible: Range
    packed: frozenset[ir.Value]
    weights: dict[ir.Value, set[Mark]] = field(default_factory=dict)
    lookups: dict[Lookup, int] = field(default_factory=dict)
    maps: IndexMapOf = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "maps", IndexMapOf(frozenset({self.mask})))

    def variable(self, lookup: Lookup) -> DimLike:
        """The variable for a computed position, the same for the same element."""
        return axis(self.lookups.setdefault(lookup, ANY_AXIS + 1 + len(self.lookups)))


@dataclass(frozen=True)
class Case:
    """A token and what the mask holds for it.

    Attributes:
        setting: What the analysis takes as given.
        token: The token.
        is_hidden: Whether the mask hides it.
        box: The positions that its formulas are about.
    """

    setting: Setting
    token: Mark
    is_hidden: bool
    box: Box

    def within(self, box: Box) -> Case:
        """The same case for some of the positions, at which the formulas of the token may be simpler."""
        return Case(self.setting, self.token.at(axes(len(box.lows)), box), self.is_hidden, box)

    @property
    def mask_range(self) -> Range:
        """The numbers of the mask for the token."""
        return self.setting.hidden if self.is_hidden else self.setting.visible


@dataclass(frozen=True)
class ElementRange(Question):
    """Return the range of the element of a value at a position.

    Attributes:
        case: A token, and whether it is hidden.
        index: The position, as formulas of the positions in the box of the case.
    """

    case: Case
    index: tuple[DimLike, ...]

    def answer(self, value: ir.Value, values: Values) -> Range | None:
        """The range; `None` if the type of the value is unknown."""
        case, fact = self.case, values.analysis.fact(value)
        dtype = fact.dtype
        if dtype is None:
            return None
        if value is case.setting.mask:
            is_the_token = (self.index[0], self.index[-1]) == (case.token.sequence, case.token.position)
            return case.mask_range if is_the_token else anything(dtype)
        if value in case.setting.packed:
            return ORDINARY if dtype.is_floating_point() else anything(dtype)
        found: IndexMap | None = values.answers(case.setting.maps, [value])[0]
        if found is not None and len(found.shape) == len(self.index):
            element = simplest(found.read_at(self.index), case.box)
            if not (isinstance(element, Read) and element.value is value):
                return self._of_element(element, case.box, dtype, values)
        if fact.is_constant:
            array = values.constant(fact)
            return anything(dtype) if array is None else of_array(np.asarray(array)) or anything(dtype)
        return _computed(value, self, values) or anything(dtype)

    def _of_element(self, element: Element, box: Box, dtype: ir.DataType, values: Values) -> Range | None:
        if isinstance(element, Number):
            return _of_formula(element.formula, box, dtype)
        if isinstance(element, Fill):
            return of_array(np.frombuffer(element.content, element.dtype.numpy())[:1])
        if isinstance(element, Read):
            case = self.case if box is self.case.box else self.case.within(box)
            found: Range | None = values.answers(ElementRange(case, element.index), [element.value])[0]
            return found
        parts = [self._of_element(part, inside, dtype, values) for part, inside in _possible(element, box)]
        return None if any(part is None for part in parts) else union([part for part in parts if part is not None])


def _possible(element: Select, box: Box) -> Iterator[tuple[Element, Box]]:
    """The branches that a choice may take, with the positions at which it does."""
    if not is_never_negative(-element.condition - 1, box):
        yield element.then, box.where(element.condition)
    if not is_never_negative(element.condition, box):
        yield element.otherwise, box.where(-element.condition - 1)


def _of_formula(formula: DimLike, box: Box, dtype: ir.DataType) -> Range | None:
    """The numbers that a formula can be at the positions of a box."""
    least, most = lowest(formula, box), highest(formula, box)
    low = None if least is None else bounds(least)[0]
    high = None if most is None else bounds(most)[1]
    whole = anything(dtype)
    return of_pieces([(whole.low if low is None else low, whole.high if high is None else high)])


class _Elements(Asking):
    """A node with the range of the elements of its operands that one element of its output is computed from."""

    __slots__ = ()

    def ask(self, value: ir.Value, question: Question | None = None) -> Any:
        """The answer about an operand, at the position that is broadcast to that of the output."""
        return super().ask(value, self._about(value) if question in (None, self.question) else question)

    def ranges(self) -> list[Range]:
        """The ranges of all operands.

        Raises:
            UnknownError: One of them is unknown.
        """
        found = [self.ask(value) for value in self.node.inputs if value is not None]
        if None in found:
            raise UnknownError
        return found

    def _about(self, value: ir.Value) -> ElementRange:
        question = self.question
        assert isinstance(question, ElementRange)
        shape, result = self.analysis.fact(value).shape, self.result.shape
        if shape is None or result is None:
            raise UnknownError
        index = broadcast_index(question.index, result, shape)
        if index is None:
            raise UnknownError
        return ElementRange(question.case, index)


def broadcast_index(
    index: Sequence[DimLike], result: Sequence[DimLike], shape: Sequence[DimLike]
) -> tuple[DimLike, ...] | None:
    """Return the position in an operand that is broadcast to a position of the result; `None` if it is not known."""
    more = len(result) - len(shape)
    if more < 0:
        return None
    found: list[DimLike] = []
    for number, dim in enumerate(shape):
        if dim == 1:
            found.append(0)
        elif dim == result[more + number]:
            found.append(index[more + number])
        else:
            return None
    return tuple(found)


def _computed(value: ir.Value, question: ElementRange, values: Values) -> Range | None:
    """The range by the operator that computes a value; `None` if it says nothing."""
    node = value.producer()
    if node is None:
        return None
    asking = _Elements(node, value, question, values)
    if has(node, ELEMENTWISE | BROADCASTS):
        return _by_element(node, asking)
    with suppress(*NOT_KNOWN):
        if node.op_type == "Softmax" and not node.domain:
            case = question.case
            proved = {mark.at(question.index, case.box) for mark in case.setting.weights.get(value, ())}
            return one_of(0.0) if case.is_hidden and case.token in proved else between(0.0, 1.0)
        if node.op_type in ("Gather", "GatherElements", "GatherND") and not node.domain:
            return _looked_up(asking, question)
    dtype = values.analysis.fact(value).dtype
    is_activation = dtype is not None and dtype.is_floating_point() and has(node, CONTRACTS | LAYER)
    return ORDINARY if is_activation else None


def _by_element(node: ir.Node, asking: _Elements) -> Range | None:
    """The range of a function of corresponding elements; an ordinary number if it is one of ordinary numbers."""
    function = BY_ELEMENT.of(node) or (RANGES.of(node) if has(node, ELEMENTWISE) else None)
    found: Range | None = None
    if function is not None:
        with suppress(*NOT_KNOWN):
            found = function(asking)
    if found is not None and found.levels is not None and len(found.levels) == 1:
        return found
    with suppress(*NOT_KNOWN):
        operands = asking.ranges()
        if asking.result_dtype.is_floating_point() and ORDINARY in operands and all(map(_is_moderate, operands)):
            within = found is not None and _is_moderate(found)
            return found if within else ORDINARY
    return found


def _is_moderate(found: Range) -> bool:
    return not found.nan and ORDINARY.low <= found.low and found.high <= ORDINARY.high


def _looked_up(asking: _Elements, question: ElementRange) -> Range | None:
    """The range of an element at a computed position, which is a variable."""
    node, index, case = asking.node, question.index, question.case
    indices = asking.known_shape(1)
    if node.op_type == "GatherND":
        batch, count = asking.attr_int("batch_dims", 0), len(indices) - 1
        if indices[-1] != 1:
            return None
        before, place, behind = index[:batch], (*index[:count], 0), index[count:]
    else:
        chosen = asking.axis("axis", 0, len(asking.known_shape(0)))
        is_gather = node.op_type == "Gather"
        count = len(indices) if is_gather else 1
        place = index[chosen : chosen + count] if is_gather else index
        before, behind = index[:chosen], index[chosen + count :]
    moved: IndexMap | None = asking.values.answers(case.setting.maps, [asking.operand(1)])[0]
    variable = case.setting.variable(lookup_of(asking.operand(1), moved, place, case.box))
    data = ElementRange(case, (*before, variable, *behind))
    found: Range | None = asking.values.answers(data, [asking.operand(0)])[0]
    return found


def lookup_of(value: ir.Value, found: IndexMap | None, place: Sequence[DimLike], box: Box) -> Lookup:
    """Return the element that a tensor of positions holds at a place, by its index map: one of what it is moved from."""
    element = None if found is None else simplest(found.read_at(place), box)
    return (element.value, element.index) if isinstance(element, Read) else (value, tuple(place))


def is_low(score: Range) -> bool:
    """Whether a score hides its key."""
    return not score.nan and score.high <= HIDDEN_SCORE


def is_kept(score: Range) -> bool:
    """Whether a score is one that does not hide its key: an ordinary number."""
    return not score.nan and score.low > HIDDEN_SCORE and score.high < math.inf


def is_one_number(found: Range) -> bool:
    """Whether an element is the same number whatever the model computes."""
    return found.levels is not None and len(found.levels) == 1


def mask_ranges(dtype: ir.DataType, *, shows_zeros: bool, is_added: bool = False) -> tuple[Range, Range]:
    """The numbers of a mask at hidden and at visible tokens. A mask of other types than BOOL holds zeros and ones.

    Args:
        dtype: The element type.
        shows_zeros: Whether zeros are visible, and ones hidden.
        is_added: Whether it holds ordinary numbers, and `HIDING_BIAS` or less at hidden tokens, instead.
    """
    if is_added:
        return between(-math.inf, HIDING_BIAS), ORDINARY
    zero, one = (one_of(0), one_of(1)) if dtype in INTEGERS else (one_of(0.0), one_of(1.0))
    return (one, zero) if shows_zeros else (zero, one)
