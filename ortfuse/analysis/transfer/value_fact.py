"""Class `Fact`: element type, shape and known contents of one value."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import Dim, DimLike, symbol

Shape: TypeAlias = tuple[DimLike, ...]

UNKNOWN: Dim = symbol("?")
"""Stands for an unknown dimension in the result of a transfer function; the analysis replaces it by a fresh symbol."""

MAX_CONSTANT = 1024
"""Constants with at most this many elements are read, cached and used in computations."""
MAX_ELEMENTS = 64
"""Tensors with at most this many elements are tracked element by element."""

INTEGERS = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
    }
)
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""The float types that symbolic integers may pass through (see `Quotient`)."""

_LARGEST_DENOMINATOR = 1024
_LARGEST_FLOAT_INTEGER = 2**24


@dataclass(frozen=True, slots=True)
class IntTensor:
    """The symbolic integers inside a small integer or bool tensor.

    Attributes:
        elements: the elements in row-major order; None where an element is unknown.
        shape: the tensor's shape.
    """

    elements: tuple[DimLike | None, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    """``numerator / denominator`` in a float tensor, where a size temporarily becomes a float.

    Exporters scale sizes by ``Cast -> Mul or Div by a constant -> Floor -> Cast``. Float32 represents the integers up
    to 2**24 and multiples of 2**-k of them exactly, and rounding ``a / b`` never reaches the next integer if a and b
    stay below that. Sizes above 16 million are assumed not to be computed this way.
    """

    numerator: DimLike
    denominator: int

    @property
    def dyadic(self) -> bool:
        """Whether the denominator is a power of two, so that further float arithmetic is exact."""
        return self.denominator & (self.denominator - 1) == 0


Element: TypeAlias = DimLike | Quotient | None
Elements: TypeAlias = tuple[Element, ...]


class Fact:
    """The facts about one value. Treated as immutable; several values may share one.

    Attributes:
        dtype: the element type, None if unknown (or if the value is not a tensor).
        shape: the dimensions, None if the rank is unknown.
        tensor: the value if it is constant, not necessarily read yet; else None.
        items: for a sequence of known length, the facts of its elements.
    """

    __slots__ = ("_array", "_elements", "dtype", "items", "shape", "tensor")

    def __init__(
        self,
        dtype: ir.DataType | None = None,
        shape: Shape | None = None,
        elements: Elements | None = None,
        tensor: ir.TensorProtocol | None = None,
        array: np.ndarray | None = None,
        items: tuple[Fact, ...] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.tensor = tensor
        self.items = items
        self._array = array
        self._elements = elements

    @property
    def rank(self) -> int | None:
        """The number of dimensions, None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, None if it is not a known constant."""
        return static_size(self.shape)

    @property
    def is_constant(self) -> bool:
        """Whether the value is known and the same in every run."""
        return self.tensor is not None or self._array is not None or self.array() is not None

    @property
    def known_elements(self) -> Elements | None:
        """The elements, as far as they are known without reading a constant."""
        return self._elements

    def with_changes(self, dtype: ir.DataType | None, shape: Shape | None, elements: Elements | None) -> Fact:
        """A fact with the same constant, if any, and another dtype, shape and elements."""
        return Fact(dtype, shape, elements, self.tensor, self._array, self.items)

    def array(self) -> np.ndarray | None:
        """The constant, if there is one of at most `MAX_CONSTANT` elements."""
        if self._array is None:
            if self.tensor is not None:
                if self.tensor.size <= MAX_CONSTANT:
                    self._array = self.tensor.numpy()
            elif self._elements is not None and self.dtype in INTEGERS:
                self._array = self._array_of_elements(self._elements)
        return self._array

    def elements(self) -> Elements | None:
        """The integers (in a float tensor also quotients) in row-major order, if the tensor is small enough."""
        if self._elements is None and (self.tensor is not None or self._array is not None):
            size = self.size
            if size is not None and size <= MAX_ELEMENTS:
                self._elements = self._elements_of_array()
        return self._elements

    def integers(self) -> tuple[DimLike | None, ...] | None:
        """Like `elements`, with None for every element that is not an integer."""
        elements = self.elements()
        if elements is None:
            return None
        return tuple([None if isinstance(element, Quotient) else element for element in elements])

    def constants(self) -> tuple[int, ...] | None:
        """The integers if every one of them is a known constant."""
        elements = self.elements()
        if elements is None:
            return None
        numbers = tuple([element for element in elements if isinstance(element, int)])
        return numbers if len(numbers) == len(elements) else None

    def _array_of_elements(self, elements: Elements) -> np.ndarray | None:
        shape = static_shape(self.shape)
        if shape is None or self.dtype is None or not all(isinstance(element, int) for element in elements):
            return None
        return np.array(elements, dtype=self.dtype.numpy()).reshape(shape)

    def _elements_of_array(self) -> Elements | None:
        array = self.array()
        if array is None:
            return None
        if self.dtype in INTEGERS:
            return tuple([int(element) for element in array.reshape(-1).tolist()])
        if self.dtype in FLOATS:
            return tuple([element_of_float(element) for element in array.reshape(-1).tolist()])
        return None

    def __repr__(self) -> str:
        dims = "?" if self.shape is None else ",".join(map(str, self.shape))
        return f"Fact({self.dtype}[{dims}]{'' if self._elements is None else f' {self._elements}'})"


NOTHING = Fact()


def element_of_float(number: float) -> Element:
    """A float as an integer or an exact quotient with a small denominator, None if it is neither."""
    if not abs(number) <= _LARGEST_FLOAT_INTEGER:
        return None
    numerator, denominator = number.as_integer_ratio()
    if denominator == 1:
        return numerator
    if denominator > _LARGEST_DENOMINATOR or abs(numerator) > _LARGEST_FLOAT_INTEGER:
        return None
    return Quotient(numerator, denominator)


def static_shape(shape: Shape | None) -> tuple[int, ...] | None:
    """The shape if every dimension is constant."""
    if shape is None:
        return None
    numbers = tuple([dim for dim in shape if isinstance(dim, int)])
    return numbers if len(numbers) == len(shape) else None


def static_size(shape: Shape | None) -> int | None:
    """The number of elements if every dimension is constant."""
    numbers = static_shape(shape)
    return None if numbers is None else prod(numbers)


def fact_of_tensor(tensor: ir.TensorProtocol) -> Fact:
    """The fact of a constant; its data are not read."""
    shape = tuple([int(dim) for dim in tensor.shape])  # type: ignore[arg-type]
    return Fact(tensor.dtype, shape, tensor=tensor)
