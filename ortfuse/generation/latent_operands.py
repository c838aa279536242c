"""Keys or values that are linear in what a cache holds of their token: matrix products, and elements that all heads share.

    operand[b, h, t, d] = sum over r of token[b, t, f(r)] W[h, r, d]      for some d, with constant W
                        = token[b, t, g(d)]                               for the others

Multi-head latent attention caches a short vector of each token, and computes keys and values of all heads from it. The index map
of the operand tells which column of which product each element is, whatever nodes split, move and repeat them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, Read, Select, axis
from ortfuse.analysis.index_maps.element_expressions import at as moved
from ortfuse.analysis.index_maps.element_expressions import simplest
from ortfuse.analysis.index_maps.evaluation import formula_values
from ortfuse.generation.cache_operands import COMPUTED, followed
from ortfuse.generation.decoder_interface import Cache
from ortfuse.ir.dims import DimLike, symbols

Array = np.ndarray[Any, Any]

Place = tuple[Cache, int]
"""An element of a token: the cache, and its number among those that the cache holds of the token."""

_HEAD, _ELEMENT, _LATENT = axis(1), axis(3), axis(4)
"""The variables of formulas: positions are [batch, heads, length, size], and latents the elements that are multiplied."""


@dataclass(frozen=True, eq=False)
class LatentOperand:
    """Keys or values [batch, heads, length, size].

    Attributes:
        latents: The elements of a token that are multiplied.
        weight: [heads, latents, products], the constant matrix of each head.
        computed: Which elements of a head are the products.
        shared: The elements of a token that are elements of all heads.
        moved: Which elements of a head these are.
    """

    latents: tuple[Place, ...]
    weight: Array
    computed: tuple[int, ...]
    shared: tuple[Place, ...]
    moved: tuple[int, ...]

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int(self.weight.shape[0])

    @property
    def places(self) -> tuple[Place, ...]:
        """All elements of a token that the operand is linear in."""
        return (*self.latents, *self.shared)


class _NotLinearError(Exception):
    """An operand is not of this form; the message says why."""


@dataclass(frozen=True)
class _Product:
    """A product of latents with a constant matrix.

    Attributes:
        latents: The elements of a token that are multiplied.
        columns: [elements, latents], the column of the matrix for each element that is looked at.
    """

    latents: tuple[Place, ...]
    columns: Array


class LatentReader:
    """Reads operands of attention.

    Attributes:
        batch_axes: The axis of the sequences in each cache that was read.
    """

    def __init__(self, facts: Facts, caches: Mapping[ir.Value, Cache]) -> None:
        """Take the facts of the model, and the caches by their output, to which a Concat appends."""
        self._facts, self._caches = facts, caches
        self.batch_axes: dict[Cache, int] = {}

    def read(self, value: ir.Value, heads: int) -> LatentOperand | str:
        """How keys or values are linear in tokens of caches, or why they are not.

        Args:
            value: Keys or values, [batch, heads, length, size] or [batch, length, heads * size].
            heads: The number of heads.
        """
        found = followed(value, self._caches, self._facts)
        if found is None or len(found.shape) not in (3, 4):
            return "the shape of its keys or values is unknown"
        element, shape = found.element, found.shape
        if len(shape) == 3:
            each = shape[2] // heads if isinstance(shape[2], int) and heads else 0
            element = moved(element, (axis(0), axis(2), each * axis(1) + axis(3)))
            shape = (shape[0], heads, shape[1], each)
        count, size = shape[1], shape[3]
        if not isinstance(count, int) or not isinstance(size, int) or not count or not size:
            return "the number or size of its heads is unknown"
        try:
            return self._read(element, (shape[0], count, shape[2], size))
        except _NotLinearError as why:
            return str(why)

    def _read(self, element: Element, shape: tuple[DimLike, int, DimLike, int]) -> LatentOperand:
        batch, heads, length, size = shape
        grid = np.zeros((4, heads * size), np.int64)
        grid[1], grid[3] = np.indices((heads, size)).reshape(2, -1)
        looked = _Positions(grid, frozenset(("@1", "@3")), batch, length)
        box = Box.of_shape(shape)
        shared: dict[int, Place] = {}
        products: list[tuple[Array, _Product]] = []
        for chosen, read in looked.reads(simplest(element, box), np.arange(heads * size)):
            if read.value in self._caches:
                shared |= dict(zip(chosen.tolist(), self._places(read, looked.of(chosen)), strict=True))
            else:
                products.append((chosen, self._product(read, looked.of(chosen), box)))
        latents = {product.latents for _, product in products}
        if len(latents) != 1:
            raise _NotLinearError("its keys or values are not products of one latent")
        weight = np.zeros((heads * size, len(products[0][1].latents)), products[0][1].columns.dtype)
        is_computed = np.zeros(heads * size, bool)
        for chosen, product in products:
            weight[chosen], is_computed[chosen] = product.columns, True
        by_head = is_computed.reshape(heads, size)
        if (by_head != by_head[0]).any():
            raise _NotLinearError("heads have products in different places")
        computed, apart = (tuple(np.flatnonzero(one).tolist()) for one in (by_head[0], ~by_head[0]))
        if any(shared[head * size + one] != shared[one] for head in range(heads) for one in apart):
            raise _NotLinearError("heads have different elements of the cache beside their products")
        matrices = np.ascontiguousarray(weight.reshape(heads, size, -1)[:, list(computed)].transpose(0, 2, 1))
        return LatentOperand(latents.pop(), matrices, computed, tuple(shared[one] for one in apart), apart)

    def _places(self, read: Read, looked: _Positions) -> list[Place]:
        """The element of a token that an element of a cache is, at each position.

        Raises:
            _NotLinearError: It is one of another token or sequence.
        """
        cache, shape = self._caches[read.value], self._facts.shape(read.value) or ()
        if shape[cache.axis] != looked.length or read.index[cache.axis] != axis(2):
            raise _NotLinearError("keys or values are not those of all tokens, in the order of the cache")
        others = [number for number in range(len(shape)) if number != cache.axis]
        rows = [number for number in others if read.index[number] == axis(0)]
        if not rows and looked.batch == 1:
            rows = [number for number in others if shape[number] == 1][:1]
        if len(rows) != 1 or self.batch_axes.setdefault(cache, rows[0]) != rows[0]:
            raise _NotLinearError("keys or values are not those of each sequence")
        numbers: Array = np.zeros(looked.grid.shape[1], np.int64)
        for number in others:
            if number != rows[0]:
                if not isinstance(count := shape[number], int):
                    raise _NotLinearError("how many elements a token has in its cache is unknown")
                numbers = numbers * count + looked.values(read.index[number])
        return [(cache, number) for number in numbers.tolist()]

    def _product(self, read: Read, looked: _Positions, box: Box) -> _Product:
        """The latents and columns of the constant matrix of which elements are products.

        Raises:
            _NotLinearError: They are no such products.
        """
        node = read.value.producer()
        if node is None:
            raise _NotLinearError("keys or values are not those of a cache alone")
        operation = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if operation != "MatMul" or node.inputs[0] is None:
            raise _NotLinearError(COMPUTED.format(operation))
        operand, weight = node.inputs[0], self._facts.const(node.inputs[1])
        if weight is None:
            raise _NotLinearError(f"{COMPUTED.format(operation)}, by a matrix that is no constant")
        shape = self._facts.shape(operand)
        if shape is None or len(shape) < 2 or weight.ndim < 2:
            raise _NotLinearError(COMPUTED.format(operation))
        rank = len(read.index)
        rows = [0 if shape[at] == 1 else read.index[rank - len(shape) + at] for at in range(len(shape) - 1)]
        stacks = [0 if weight.shape[at] == 1 else read.index[rank - weight.ndim + at] for at in range(weight.ndim - 2)]
        chosen = [looked.values(index) for index in (*stacks, read.index[-1])]
        columns = np.moveaxis(weight, -2, -1)[tuple(chosen)]
        return _Product(self._latents(operand, rows, weight.shape[-2], looked, box), columns)

    def _latents(
        self, operand: ir.Value, rows: list[DimLike], count: int, looked: _Positions, box: Box
    ) -> tuple[Place, ...]:
        """The elements of a token in a row of an operand.

        Raises:
            _NotLinearError: They are others.
        """
        found = self._facts.index_map(operand, list(self._caches))
        if found is None:
            raise _NotLinearError("keys or values are not those of a cache alone")
        grid = np.zeros((5, count), np.int64)
        grid[4] = np.arange(count)
        if any(symbols(index) & looked.names for index in rows):
            raise _NotLinearError(f"{COMPUTED.format('MatMul')}, of other elements for each head")
        along = _Positions(grid, frozenset(("@4",)), looked.batch, looked.length)
        element = simplest(moved(found.element, (*rows, _LATENT)), Box.of_shape((*box.ends, count)))
        places: dict[int, Place] = {}
        for chosen, read in along.reads(element, np.arange(count)):
            if read.value not in self._caches:
                producer = read.value.producer()
                name = "an input" if producer is None else producer.op_type
                raise _NotLinearError(COMPUTED.format(name))
            places |= dict(zip(chosen.tolist(), self._places(read, along.of(chosen)), strict=True))
        return tuple(places[number] for number in range(count))


@dataclass(frozen=True, eq=False)
class _Positions:
    """Positions at which formulas are evaluated, whatever the sequence and the token.

    Attributes:
        grid: [axes, positions], the position along each axis; those of sequence and token are not looked at.
        names: The variables that formulas may have.
        batch: The number of sequences.
        length: The number of tokens.
    """

    grid: Array
    names: frozenset[str]
    batch: DimLike
    length: DimLike

    def of(self, chosen: Array) -> _Positions:
        """Some of the positions."""
        return _Positions(self.grid[:, chosen], self.names, self.batch, self.length)

    def values(self, formula: DimLike) -> Array:
        """The values of a formula.

        Raises:
            _NotLinearError: It depends on more than the variables that it may have.
        """
        if not symbols(formula) <= self.names:
            raise _NotLinearError("heads or elements of keys or values depend on the token")
        try:
            return formula_values(formula, self.grid, {})
        except KeyError as error:
            raise _NotLinearError("heads or elements of keys or values are in an unknown order") from error

    def reads(self, element: Element, chosen: Array) -> list[tuple[Array, Read]]:
        """The elements of values that an element is, each with the positions where it is.

        Raises:
            _NotLinearError: It is no element of a value somewhere, or the choice depends on the token.
        """
        if not chosen.size:
            return []
        if isinstance(element, Select):
            holds = self.of(chosen).values(element.condition) >= 0
            return [*self.reads(element.then, chosen[holds]), *self.reads(element.otherwise, chosen[~holds])]
        if not isinstance(element, Read):
            raise _NotLinearError("other elements stand among the keys or values")
        return [(chosen, element)]
