"""Compare facts with real tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.ranges.range import Range
from ortfuse.ir.dims import Dim, DimLike, evaluate, symbols


class Judge:
    """Compares facts with real tensors; inputs bind the symbols, and first sight binds fresh ones."""

    def __init__(self, facts: Facts, sizes: Mapping[str, int]) -> None:
        self.facts = facts
        self.sizes = dict(sizes)
        self.wrong: list[str] = []
        self.vague: list[str] = []

    def judge(self, value: ir.Value, real: np.ndarray) -> None:
        self._dtype(value, real)
        self._shape(value, real)
        self._elements(value, real)
        self._constant(value, real)
        if real.dtype.kind in "fiubV":
            self._numbers(value, real)

    def _numbers(self, value: ir.Value, real: np.ndarray) -> None:
        """Ranges and fills to the bit; repetitions but for the rounding of functions that are computed in blocks."""
        first, last = (real[..., place] if real.ndim and real.shape[-1] else real for place in (0, -1))
        for kind, found, numbers in (
            ("range", self.facts.range(value), real),
            ("first column", self.facts.first_column(value), first),
            ("last column", self.facts.last_column(value), last),
        ):
            strange = [] if found is None else [number for number in _distinct(numbers) if not _holds(found, number)]
            if strange:
                self.wrong.append(f"{value.name}: {kind} {found}, really {strange[:5]}")
        fill = self.facts.fill(value)
        if fill is not None and not (real == fill).all():
            self.wrong.append(f"{value.name}: filled with {fill}, really {_distinct(real)[:5]}")
        if not real.ndim or real.shape[-1] % 2:
            return
        half = real.shape[-1] // 2
        for in_pairs, pair in (
            (False, (real[..., :half], real[..., half:])),
            (True, (real[..., ::2], real[..., 1::2])),
        ):
            if self.facts.repeats(value, in_pairs) and not np.allclose(*pair, rtol=1e-4, atol=1e-5, equal_nan=True):
                self.wrong.append(
                    f"{value.name}: does not repeat its numbers {'in pairs' if in_pairs else 'by halves'}"
                )

    def _dtype(self, value: ir.Value, real: np.ndarray) -> None:
        dtype = self.facts.dtype(value)
        if dtype is None:
            self.vague.append(f"{value.name}: dtype unknown")
        elif dtype != ir.DataType.STRING and dtype.numpy() != real.dtype:
            self.wrong.append(f"{value.name}: dtype {dtype}, really {real.dtype}")

    def _shape(self, value: ir.Value, real: np.ndarray) -> None:
        shape = self.facts.shape(value)
        if shape is None:
            self.vague.append(f"{value.name}: rank unknown, really {real.shape}")
            return
        if len(shape) != real.ndim:
            self.wrong.append(f"{value.name}: shape {_text(shape)}, really {real.shape}")
            return
        for dim, size in zip(shape, real.shape, strict=True):
            if not self._agree(dim, size):
                self.wrong.append(f"{value.name}: shape {_text(shape)}, really {real.shape}")
        if any(isinstance(dim, Dim) and dim.fresh for dim in shape):
            self.vague.append(f"{value.name}: shape {_text(shape)}, really {real.shape}")

    def _agree(self, dim: DimLike, number: int) -> bool:
        unbound = symbols(dim) - self.sizes.keys()
        if unbound and str(dim) in unbound:
            self.sizes[str(dim)] = number
        elif unbound:
            return True  # a formula over unknown dimensions that were not seen on their own
        return evaluate(dim, self.sizes) == number

    def _elements(self, value: ir.Value, real: np.ndarray) -> None:
        ints = self.facts.ints(value)
        if ints is None:
            return
        flat = [int(element) for element in real.reshape(-1).tolist()]
        agree = ints.shape == real.shape and all(
            known is None or self._agree(known, number) for known, number in zip(ints.elements, flat, strict=True)
        )
        if not agree:
            self.wrong.append(f"{value.name}: elements {_text(ints.elements)}, really {flat}")

    def _constant(self, value: ir.Value, real: np.ndarray) -> None:
        constant = self.facts.const(value)
        if self.facts.is_const(value) != (constant is not None):
            self.wrong.append(f"{value.name}: is_const and const disagree")
        if constant is None:
            return
        if not identical(constant, real):
            self.wrong.append(f"{value.name}: constant {constant}, really {real}")
        if constant.size == 1 and real.dtype.kind in "fiub":
            scalar = self.facts.scalar(value)
            same = scalar == real.reshape(-1)[0] or (scalar != scalar and np.isnan(real).all())
            if not same or type(scalar) not in (int, float, bool):
                self.wrong.append(f"{value.name}: scalar {scalar!r}, really {real}")


def identical(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same bits; one NaN is like another, and text is text or the bytes of it."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "OSU" and other.dtype.kind in "OSU":
        return [*map(_as_text, one.flat)] == [*map(_as_text, other.flat)]
    if one.dtype != other.dtype:
        return False
    if one.dtype.kind not in "fV":
        return bool(np.array_equal(one, other))
    with np.errstate(all="ignore"):
        nan = np.isnan(one.astype(np.float64)), np.isnan(other.astype(np.float64))
    bits = f"u{one.dtype.itemsize}"
    return np.array_equal(*nan) and np.array_equal(one[~nan[0]].view(bits), other[~nan[1]].view(bits))


def _as_text(one: Any) -> str:
    return one.decode(errors="replace") if isinstance(one, bytes) else str(one)


def _distinct(real: np.ndarray) -> list[int | float]:
    found: list[int | float] = np.unique(real if real.dtype.kind in "iub" else real.astype(np.float64)).tolist()
    return found


def _holds(found: Range, number: float) -> bool:
    return found.nan if number != number else found.holds(number)


def _text(dims: tuple[object, ...]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"
