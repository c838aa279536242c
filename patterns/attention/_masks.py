"""What values an attention mask can have: decides which attention operator computes the same for rows fully masked.

`softmax(scores + mask)` differs from the kernels only where a whole row is masked. Plain softmax gives the uniform
distribution for a finite filler and NaN for -inf; the runtime's ai.onnx Attention gives zeros as soon as every mask value
of a row is -inf or the lowest number of the type.

The analysis follows a mask back to its constants. Of every value it knows a few discrete numbers (`deep` ones, that hide a
key, and others) or an interval. What a network computes from its activations (a position bias of a product, say) is taken
for finite and far from the lowest number of its type, unless an operand is known to be a mask itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.dims import bounds
from ortfuse.facts.facts import Facts, IntTensor

MAX_LEVELS = 8
MAX_VALUES = 200
"""Values looked at for one mask before it counts as unknown."""

DEEP = -1e30
"""Below this a float32 score added to the mask is lost in rounding, so that all such fillers act alike."""

_LARGEST_CONSTANT = 1 << 22
_LARGEST_SIZE = 1 << 60
_MOVES_DATA = frozenset(
    {"Unsqueeze", "Squeeze", "Expand", "Reshape", "Slice", "Transpose", "Identity", "Gather", "Flatten", "Tile",
     "GatherND", "GatherElements", "Split", "Trilu"}
)  # fmt: skip
_ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}
_BOUNDED = frozenset({"Softmax", "Sigmoid", "Tanh"})
_ACTIVATIONS = frozenset({"MatMul", "Gemm", "Conv", "Einsum", "LayerNormalization", "RMSNormalization", "Relu", "Gelu"})


@dataclass(frozen=True)
class Range:
    """What a value can hold: some of the numbers in `levels` (when few) or anything in [low, high], and numbers in `deep`."""

    deep: frozenset[float]
    levels: frozenset[float] | None
    low: float
    high: float

    @property
    def all_levels(self) -> frozenset[float] | None:
        """Every number the value can hold, if they are few."""
        return None if self.levels is None else self.levels | self.deep

    @property
    def is_quiet(self) -> bool:
        """Whether a filler swallows all such numbers: none of them hides anything itself."""
        return not self.deep and -1e20 <= self.low <= self.high <= 1e20


ZERO = Range(frozenset(), frozenset((0.0,)), 0.0, 0.0)
ACTIVATION = Range(frozenset(), None, -1e15, 1e15)


def mask_range(value: ir.Value, facts: Facts) -> Range | None:
    """What `value` can hold, as far as constants tell; `None` if not known."""
    return Search(facts).range_of(value)


def _of_numbers(numbers: np.ndarray) -> Range | None:
    numbers = numbers.astype(np.float64, copy=False).ravel()
    if not numbers.size or np.isnan(numbers).any() or numbers.max() == math.inf:
        return None
    hidden = numbers <= DEEP
    deep = np.unique(numbers[hidden]) if hidden.any() else np.empty(0)
    if len(deep) > MAX_LEVELS:
        return None
    rest = numbers[~hidden] if len(deep) else numbers
    low, high = (float(rest.min()), float(rest.max())) if rest.size else (0.0, 0.0)
    # Many different numbers show at the start: no need to sort a large table then.
    few = len(np.unique(rest[:64])) <= MAX_LEVELS
    distinct = np.unique(rest) if few else rest
    levels = frozenset(map(float, distinct)) if few and len(distinct) <= MAX_LEVELS else None
    return Range(frozenset(map(float, deep)), levels, low, high)


class Search:
    """One walk from a mask back to its constants; every value is looked at once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.known: dict[ir.Value, Range | None] = {}

    def range_of(self, value: ir.Value) -> Range | None:
        if value not in self.known:
            if len(self.known) >= MAX_VALUES:
                return None
            self.known[value] = None
            self.known[value] = self._find(value)
        return self.known[value]

    def _find(self, value: ir.Value) -> Range | None:
        if self.facts.is_const(value):
            return of_constant(value, self.facts)
        dtype, node = self.facts.dtype(value), value.producer()
        if dtype is None:
            return None
        if dtype == ir.DataType.BOOL:
            return Range(frozenset(), frozenset((0.0, 1.0)), 0.0, 1.0)
        found = None if node is None or node.domain else self._computed(node, dtype)
        if found is None and dtype.is_integer():
            return _of_integers(self.facts.ints(value), dtype)
        return found

    def _computed(self, node: ir.Node, dtype: ir.DataType) -> Range | None:
        operands = [operand for operand in node.inputs if operand is not None]
        kind = node.op_type
        if kind in _BOUNDED:
            return Range(frozenset(), None, -1.0, 1.0)
        if kind in _ACTIVATIONS:
            return ACTIVATION if all(self._is_activation(operand) for operand in operands) else None
        if kind in _MOVES_DATA and operands:
            found = self.range_of(operands[0])
            # The upper or lower triangle that Trilu does not keep is zero.
            return union([found, ZERO]) if kind == "Trilu" else found
        if kind == "ConstantOfShape":
            content = node.attributes.get("value")
            return ZERO if content is None else None if content.is_ref() else _of_numbers(content.value.numpy())
        if kind == "Cast":
            return _stored(self.range_of(operands[0]), dtype)
        if kind in ("Where", "Concat"):
            return union([self.range_of(part) for part in (operands[1:] if kind == "Where" else operands)])
        if kind == "Neg":
            return _combined("Sub", ZERO, self.range_of(operands[0]), dtype)
        if kind == "Pad":
            given = node.inputs[2] if len(node.inputs) > 2 else None
            filler = ZERO if given is None else self.range_of(given)
            return union([self.range_of(operands[0]), filler])
        if kind == "Div" and dtype.is_floating_point():
            divisor = self.facts.scalar(operands[1])
            inverse = _of_numbers(np.array([1.0 / divisor])) if divisor else None
            return _combined("Mul", self.range_of(operands[0]), inverse, dtype)
        if kind == "Range" and dtype.is_integer():
            return self._counted(*operands)
        if kind in _ARITHMETIC and len(operands) == 2:
            return _combined(kind, self.range_of(operands[0]), self.range_of(operands[1]), dtype)
        return None

    def _counted(self, start: ir.Value, limit: ir.Value, step: ir.Value) -> Range | None:
        """What counting upwards from `start` gives: numbers that are at least that, and below `limit`."""
        first, end, by = self.range_of(start), self.range_of(limit), self.facts.scalar(step)
        if first is None or end is None or by is None or by <= 0:
            return None
        return Range(frozenset(), None, first.low, max(first.low, end.high))

    def _is_activation(self, value: ir.Value) -> bool:
        found = self.range_of(value)
        return not self.facts.is_const(value) if found is None else found.is_quiet


def of_constant(value: ir.Value, facts: Facts, first_column: bool = False) -> Range | None:
    """What a constant holds, or index 0 of its last axis."""
    array = facts.const(value)
    if array is not None and first_column and array.ndim and array.size:
        array = array[..., 0]
    known = array is not None and array.size <= _LARGEST_CONSTANT and array.dtype.kind in "fiubV"
    return _of_numbers(array) if array is not None and known else None


def _of_integers(known: IntTensor | None, dtype: ir.DataType) -> Range:
    """What whole numbers can be: those computed from sizes keep to the bounds of their formulas and do not wrap."""
    low, high = _integer_limits(dtype)
    if known is None or not known.elements or None in known.elements:
        return Range(frozenset(), None, low, high)
    ends = [bounds(element) for element in known.elements if element is not None]
    lowest, highest = zip(*((low if a is None else a, _LARGEST_SIZE if b is None else b) for a, b in ends), strict=True)
    return Range(frozenset(), None, float(max(low, min(lowest))), float(min(high, max(highest))))


def _integer_limits(dtype: ir.DataType) -> tuple[float, float]:
    if dtype.bitwidth < 8:
        return -8.0, 15.0
    limits = np.iinfo(dtype.numpy())
    return float(limits.min), float(limits.max)


def union(parts: list[Range | None]) -> Range | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    deep = frozenset().union(*(part.deep for part in known))
    levels = None
    if all(part.levels is not None for part in known):
        levels = frozenset().union(*(part.levels for part in known if part.levels is not None))
    if len(deep) > MAX_LEVELS:
        return None
    return Range(
        deep,
        levels if levels is not None and len(levels) <= MAX_LEVELS else None,
        min(part.low for part in known),
        max(part.high for part in known),
    )


def _combined(op_type: str, first: Range | None, second: Range | None, dtype: ir.DataType) -> Range | None:
    if first is None or second is None:
        return None
    operation = _ARITHMETIC[op_type]
    if first.all_levels is not None and second.all_levels is not None:
        with np.errstate(all="ignore"):
            results = np.array([operation(a, b) for a in first.all_levels for b in second.all_levels])
        return _stored(_of_numbers(np.unique(results)), dtype)
    if first.deep and second.deep:
        return None
    if first.deep or second.deep:
        # The filler of one side swallows what the other adds to it; any other operation on it is not followed.
        quiet = second if first.deep else first
        if op_type != "Add" or not quiet.is_quiet:
            return None
    with np.errstate(all="ignore"):
        corners = [float(operation(a, b)) for a in (first.low, first.high) for b in (second.low, second.high)]
    if min(corners) <= DEEP or max(corners) >= -DEEP:
        return None
    return _stored(Range(first.deep | second.deep, None, min(corners), max(corners)), dtype)


def _stored(found: Range | None, dtype: ir.DataType) -> Range | None:
    """The numbers as an element type stores them: floats beyond its range are infinite, integers wrap and are given up."""
    if found is None:
        return None
    numbers = found.all_levels
    if dtype.is_integer():
        low, high = _integer_limits(dtype)
        if found.deep or found.low < low or found.high > high:
            return None
        truncated = None if numbers is None else frozenset(float(math.trunc(number)) for number in numbers)
        return Range(frozenset(), truncated, float(math.trunc(found.low)), float(math.trunc(found.high)))
    if not dtype.is_floating_point():
        return None
    if numbers is None:
        limit = {ir.DataType.FLOAT16: 65504.0, ir.DataType.DOUBLE: 1e300}.get(dtype, 3e38)
        return found if max(abs(found.low), abs(found.high)) < limit else None
    with np.errstate(all="ignore"):
        return _of_numbers(np.unique(np.array([float(np.asarray(n).astype(dtype.numpy())) for n in numbers])))


_FADES = 64.0
"""Beyond this a mask value is rounded so coarsely with a 16-bit score that what comes out depends on how."""


def acts_alike(found: Range, dtype: ir.DataType | None) -> str | None:
    """Why rows of the mask may come out otherwise in a kernel that adds scores and mask in float32."""
    if len(found.deep) > 1:
        return f"the mask hides keys in more than one way: {sorted(found.deep)}"
    finite = found.deep - {-math.inf}
    far = max(abs(found.low), abs(found.high))
    if dtype == ir.DataType.FLOAT or (dtype == ir.DataType.BFLOAT16 and far <= _FADES):
        return None
    if finite or far > _FADES:
        number = min(finite, default=found.low if -found.low == far else found.high)
        return f"scores and mask values such as {number:g} are rounded otherwise in {dtype} than in float32"
    return None


DEEPEST_ALLOWED = -1e38
"""A float32 or bfloat16 filler that hides every score and that the Attention kernel does not take for "row without keys"."""
