"""An instance of a rule: a small model, and the inputs it is run on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

Kind = Literal["normal", "positive", "zero", "extreme"]
"""The kind of random numbers."""

Dims = Sequence["int | str"]

SIZES = (3, 5, 2, 4, 7, 6, 9, 8)
"""The sizes that the symbols of an instance are bound to, all different."""


@dataclass
class Instance:
    """A model and how its inputs are made.

    `shapes` are the shapes of inputs that the model declares differently (or not at all), `fixed` the inputs that are not
    random. `pinned` binds symbols to one size; those also in `loose` are tried at 1 and 0 nevertheless. `text` describes
    the instance.
    """

    model: ir.Model
    text: str
    shapes: dict[str, Dims] = field(default_factory=dict)
    fixed: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)
    loose: tuple[str, ...] = ()

    def dims(self, value: ir.Value) -> Dims:
        """The shape of the array fed to an input, in numbers and symbols."""
        name = value.name or ""
        if name in self.shapes:
            return self.shapes[name]
        return [dim if isinstance(dim, int) else str(dim.value) for dim in value.shape or ()]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of all shapes that are not pinned, in order of appearance."""
        found = [dim for value in self.model.graph.inputs for dim in self.dims(value) if isinstance(dim, str)]
        return tuple(symbol for symbol in dict.fromkeys(found) if symbol not in self.pinned)

    def bindings(self) -> Iterator[dict[str, int]]:
        """Sizes for the symbols: all different; each in turn 1 and 0 while the others differ; all of them 1."""
        symbols = self.symbols
        distinct = {symbol: SIZES[index % len(SIZES)] for index, symbol in enumerate(symbols)} | self.pinned
        yield distinct
        for size in (1, 0):
            for symbol in (*symbols, *self.loose):
                yield {**distinct, symbol: size}
        # The same number of elements along other axes, which a Reshape to constant dimensions accepts too.
        for first, second in itertools.pairwise((*symbols, *self.loose)):
            yield {**distinct, first: distinct[second], second: distinct[first]}
        if len(symbols) > 1:
            yield {**dict.fromkeys(symbols, 1), **self.pinned}

    def inputs(self, sizes: Mapping[str, int], seed: int, kind: Kind = "normal") -> dict[str, np.ndarray[Any, Any]]:
        """Inputs with the symbols bound to `sizes`; nobody may change the arrays."""
        random: list[tuple[str, tuple[int, ...], ir.DataType]] = []
        for value in self.model.graph.inputs:
            assert value.dtype is not None
            if value.name not in self.fixed:
                shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.dims(value))
                random.append((value.name or "", shape, value.dtype))
        names = {value.name for value in self.model.graph.inputs}
        fixed = {name: array for name, array in self.fixed.items() if name in names}
        return {**_random_inputs(tuple(random), seed, kind), **fixed}


@functools.lru_cache(maxsize=256)
def _random_inputs(
    wanted: tuple[tuple[str, tuple[int, ...], ir.DataType], ...], seed: int, kind: Kind
) -> dict[str, np.ndarray[Any, Any]]:
    """Random arrays by name; near misses of an instance mostly have the same inputs."""
    rng = np.random.default_rng(seed)
    return {name: random_array(rng, shape, dtype, kind) for name, shape, dtype in wanted}


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: ir.DataType, kind: Kind) -> Any:
    """Random numbers; of booleans now and then a whole row is false, of integers each is below 4, or at the ends of the type."""
    if dtype == ir.DataType.BOOL:
        flags = np.asarray(rng.random(shape) < 0.7)
        if flags.ndim > 1:
            flags &= rng.random((*flags.shape[:-1], 1)) < 0.75
        return np.asarray(flags & (kind != "zero"))  # of rank 0 too
    if dtype.is_integer() and kind == "extreme":
        ends = np.iinfo(dtype.numpy())
        return rng.choice(np.array([ends.min, ends.min + 1, 1, 2, 3, ends.max - 1, ends.max], dtype.numpy()), shape)
    if dtype.is_integer():
        return np.asarray(rng.integers(0, 4, shape)).astype(dtype.numpy())
    array: Any = np.zeros(shape) if kind == "zero" else np.asarray(rng.standard_normal(shape) * 1.5)
    if kind == "positive":
        array = np.abs(array) + 0.5
    return array.astype(dtype.numpy())
