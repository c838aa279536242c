"""Quantise matrices to few bits with a scale for each block of rows of a column, as MatMulNBits stores them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.activation_hessian import Factor
from ortfuse.quantization.gptq import compensated
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.rewrite.pattern import Match

from ._linear_pattern import size
from ._weight_quantization import Array

BLOCKS = (16, 32, 64, 128, 256)

AT_ONCE = 1 << 20
"""How many numbers of a weight are rounded at a time, so that memory is needed for these only."""


@functools.cache
def blocks_of(bits: int, block: int, *, zeros: bool) -> Blocks:
    """The one object for a way to round: constants that it makes of one weight are known to be the same by it."""
    return Blocks(bits, block, zeros)


@dataclass(frozen=True)
class Blocks:
    """Rounding of a matrix [rows, columns]; each scale is, of a few, the one that loses least in its block.

    Attributes:
        bits: The bits of the integers.
        block: The rows of a block; the last one may have less.
        zeros: Whether each block has a number that stands for 0, too; else the middle of the integers does.
    """

    bits: int
    block: int
    zeros: bool

    @property
    def middle(self) -> int:
        """The integer that stands for 0 where blocks have none of their own."""
        return 1 << (self.bits - 1)

    def count(self, rows: int) -> int:
        """The blocks that so many rows take."""
        return -(-rows // self.block)

    def __call__(self, array: Array) -> tuple[Array, Array, Array]:
        """The integers [blocks, block, columns], the scales and what stands for 0 [blocks, columns]."""
        array = self._filled(array)
        # Some columns after the other, so that memory is needed for these only.
        step = max(1, AT_ONCE // array.shape[0])
        parts = (array[:, start : start + step] for start in range(0, array.shape[1], step))
        whole, scales, zeros = zip(*map(self._best, parts), strict=True)
        return np.concatenate(whole, axis=-1), np.concatenate(scales, axis=-1), np.concatenate(zeros, axis=-1)

    def compensated(self, array: Array, factor: Factor) -> tuple[Array, Array, Array]:
        """The same, with integers by which the errors of rows make up for each other."""
        whole, scales, zeros = self(array)
        better = whole.reshape(-1, array.shape[1])
        better[: len(array)] = compensated(array, scales, zeros, self.block, 2 * self.middle - 1, factor)
        return better.reshape(whole.shape), scales, zeros

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """Numbers of the same types and shapes."""
        each = (self.count(shape[0]), shape[1])
        whole = np.full((each[0], self.block, each[1]), self.middle, np.uint8)
        return whole, np.full(each, 1e-3, np.float32), np.full(each, self.middle, np.uint8)

    def packed(self, whole: Array, scales: Array, zeros: Array) -> Array:
        """The integers as they are stored: [columns, blocks, bytes], the first of two in the lower bits."""
        return self._packed(np.ascontiguousarray(whole.transpose(2, 0, 1)))

    def scales(self, whole: Array, scales: Array, zeros: Array) -> Array:
        """The scales [columns, blocks]."""
        return scales.T

    def packed_zeros(self, whole: Array, scales: Array, zeros: Array) -> Array:
        """The zero points as they are stored: [columns, bytes]."""
        found = zeros.T
        odd = found.shape[1] % 2 if self.bits == 4 else 0
        return self._packed(np.pad(found, ((0, 0), (0, odd))))

    def whole(self, whole: Array, scales: Array, zeros: Array) -> Array:
        """The integers [blocks, block, columns]."""
        return whole

    def each(self, whole: Array, scales: Array, zeros: Array) -> Array:
        """The scales [blocks, 1, columns]."""
        return scales[:, None]

    def each_zero(self, whole: Array, scales: Array, zeros: Array) -> Array:
        """The zero points, [blocks, 1, columns]."""
        return zeros[:, None]

    def _filled(self, array: Array) -> Array:
        """The last block filled up with zeros, which are rounded to themselves and change no scale."""
        lacking = self.count(array.shape[0]) * self.block - array.shape[0]
        return np.pad(array, ((0, lacking), (0, 0))) if lacking else array

    def _packed(self, whole: Array) -> Array:
        return whole if self.bits == 8 else whole[..., ::2] | whole[..., 1::2] << 4

    def _best(self, array: Array) -> tuple[Array, Array, Array]:
        parts = array.reshape(-1, self.block, array.shape[1])
        best: Array | None = None
        for candidate, zero in self._candidates(parts):
            scale = np.where(np.abs(candidate) < SMALLEST_SCALE, np.float32(SMALLEST_SCALE), candidate)
            whole = np.clip(np.rint(parts / scale[:, None]) + zero[:, None], 0, 2 * self.middle - 1)
            lost = np.square((whole - zero[:, None]) * scale[:, None] - parts).sum(axis=1)
            if best is None:
                best, kept, chosen, nothing = lost, scale, whole.astype(np.uint8), zero.astype(np.uint8)
                continue
            better = lost < best
            best, kept = np.where(better, lost, best), np.where(better, scale, kept)
            chosen = np.where(better[:, None], whole, chosen).astype(np.uint8)
            nothing = np.where(better, zero, nothing).astype(np.uint8)
        return chosen, kept, nothing

    def _candidates(self, parts: Array) -> Iterator[tuple[Array, Array]]:
        """The scales that are tried, with what stands for 0."""
        low, high = parts.min(axis=1), parts.max(axis=1)
        if self.zeros:
            yield from self._uneven(np.minimum(low, 0), np.maximum(high, 0))
            return
        middle = np.full(low.shape, self.middle, np.float32)
        largest = np.maximum(-low, high)
        even = (largest / (self.middle - 1)).astype(np.float32)
        yield even, middle
        if self.bits == 4:
            # The end that has a number more may be the one with the larger weights.
            uneven = (np.where(-low > high, largest, -largest) / self.middle).astype(np.float32)
            factors = ((uneven, 1.0), (even, 0.92), (even, 0.84), (even, 0.76), (uneven, 0.9))
            for scale, part in factors:
                yield scale * np.float32(part), middle

    def _uneven(self, low: Array, high: Array) -> Iterator[tuple[Array, Array]]:
        """From the smallest to the largest number, and less."""
        most = 2 * self.middle - 1
        for part in (1.0, 0.92, 0.84):
            scale = np.maximum((high - low) * np.float32(part) / most, np.float32(SMALLEST_SCALE)).astype(np.float32)
            yield scale, np.clip(np.rint(-low * np.float32(part) / scale), 0, most).astype(np.float32)


def fills_a_block(
    block: int, length: Callable[[Match], int] = lambda match: size(match)[0]
) -> Callable[[Match], Refusal | None]:
    """The rows of the weight are one block at least; `length` tells how many rows there are."""

    def guard(match: Match) -> Refusal | None:
        return match.unless_value("weight", length(match) >= block, f"of at least {block} rows")

    return guard
