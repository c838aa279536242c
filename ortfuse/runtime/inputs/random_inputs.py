"""Generate random inputs that suit the operators by which the graph uses them.

Integers that select rows are below the size of the smallest table, those compared with certain numbers are these, masks have
rows with padded tails (see `ortfuse.runtime.inputs.input_roles`). All others are drawn as `ortfuse.runtime.inputs.sampling` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import VerificationError
from ortfuse.io.memory_limits import demand_room
from ortfuse.ir.dims import Dim, DimLike, evaluate
from ortfuse.ir.inlinable_functions import looked_into
from ortfuse.runtime.inputs import sampling
from ortfuse.runtime.inputs.find_size_inputs import size_inputs
from ortfuse.runtime.inputs.input_roles import Boxes, Limit, Role, Use, role_of
from ortfuse.runtime.inputs.sampling import SMALL, USUAL, Drawing, Masks

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]

UNKNOWN = 0.25
"""The share of words that an encoder does not know, where there are such."""

LONGEST_SENTENCE = 6
"""The most words of a sentence."""

HOLES = 0.15
"""The share of numbers that are missing, where some may be."""

_DRAWN = 8
"""Bytes of a random number, before it gets the type of its input."""

MASK_FILLER = -1e4
"""The number at hidden positions of a mask that is added to scores; it is representable in float16."""


@dataclass(frozen=True)
class InputSpec:
    """An input that must be given: its element type, symbolic shape and role, and its elements if they are given by sizes."""

    name: str
    dtype: ir.DataType
    shape: tuple[DimLike, ...]
    role: Role
    elements: tuple[DimLike, ...] | None = None


def input_specs(model: ir.Model) -> list[InputSpec]:
    """The inputs that must be given (those with an initializer as default are left out).

    Raises:
        VerificationError: Inputs cannot be generated for one of them, so the user has to provide them.
    """
    flat = looked_into(model)
    facts = Facts(flat, as_declared=True)
    sized = size_inputs(flat, facts)
    given = (value for value in flat.graph.inputs if value.name not in flat.graph.initializers)
    return [_spec(value, facts, tells_sizes=value.name in sized) for value in given]


def _spec(value: ir.Value, facts: Facts, *, tells_sizes: bool) -> InputSpec:
    dtype, shape = facts.dtype(value), facts.shape(value)
    advice = "give your own inputs with --inputs FILE.npz"
    if dtype is None or not isinstance(value.type, ir.TensorType):
        raise VerificationError(f"input '{value.name}' is no tensor of a known element type; {advice}")
    if shape is None:
        raise VerificationError(f"the rank of input '{value.name}' is not known; {advice}")
    return InputSpec(value.name or "", dtype, shape, role_of(value, facts, tells_sizes=tells_sizes))


def make_inputs(
    specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int, drawings: Mapping[str, Drawing] | None = None
) -> Inputs:
    """Random inputs with the given sizes of the symbols in the shapes of `specs`.

    Args:
        specs: The inputs.
        sizes: Sizes by symbol.
        seed: Seed of the random numbers.
        drawings: How inputs are drawn, by name; those that are left out in the usual way.

    Raises:
        VerificationError: They would take more memory than there is room for.
    """
    rng, drawn = np.random.default_rng(seed), drawings or {}
    shapes = {spec.name: _shape(spec, sizes) for spec in specs}
    needed = {name: _DRAWN * math.prod(shape) for name, shape in shapes.items()}
    if needed:
        largest = max(needed, key=lambda name: needed[name])
        what = f"to draw the inputs, '{largest}' of shape {shapes[largest]} among them,"
        demand_room(sum(needed.values()), what, "take smaller sizes")
    return {
        spec.name: _Maker(spec, sizes, seed, rng, drawn.get(spec.name, USUAL)).array(shapes[spec.name])
        for spec in specs
    }


def _shape(spec: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    return [evaluate(dim, sizes) if isinstance(dim, Dim) else dim for dim in spec.shape]


@dataclass(frozen=True)
class _Maker:
    """Make one input."""

    spec: InputSpec
    sizes: Mapping[str, int]
    seed: int
    rng: np.random.Generator
    drawing: Drawing

    def array(self, shape: list[int]) -> Array:
        spec = self.spec
        if spec.elements is not None:
            numbers = [evaluate(element, self.sizes) for element in spec.elements]
            return np.asarray(numbers, np.int64).reshape(shape).astype(spec.dtype.numpy())
        if spec.dtype == ir.DataType.STRING:
            return np.array(_texts(spec.role, math.prod(shape), self.rng), dtype=object).reshape(shape)
        made = self._numbers(shape) if spec.dtype.is_floating_point() else self._integers(shape)
        return made.astype(spec.dtype.numpy())

    def _numbers(self, shape: list[int]) -> Array:
        role = self.spec.role
        if role.mask is not None:
            return _masks(role.mask, self.drawing.masks, shape, self.rng)
        if role.tells_sizes:
            return sampling.counts(self.drawing, self.spec.name, shape, self.seed, self.rng).astype(np.float64)
        numbers = sampling.numbers(self.drawing, shape, self.rng)
        if role.holes and self.seed % 3:
            numbers = np.where(self.rng.random(shape) < HOLES, self.rng.choice(role.holes, shape), numbers)
        return numbers if role.boxes is None or shape[-1:] != [4] else _boxes(role.boxes, numbers)

    def _integers(self, shape: list[int]) -> Array:
        role, rng = self.spec.role, self.rng
        if role.limits:
            return _with_values(role, _indices(role.limits, shape, self.sizes, rng), rng)
        if role.values:
            return np.asarray(rng.choice([*role.values, *role.values, int(rng.integers(0, SMALL))], shape))
        if role.mask is not None and self.drawing.truth is None:
            return _masks(role.mask, self.drawing.masks, shape, rng)
        if role.length is not None:
            return np.asarray(rng.integers(1, max(_size(role.length, self.sizes), 1) + 1, shape))
        if self.spec.dtype == ir.DataType.BOOL:
            return sampling.truths(self.drawing, shape, rng)
        if role.tells_sizes:
            return sampling.counts(self.drawing, self.spec.name, shape, self.seed, rng)
        return sampling.integers(self.drawing, self.spec.dtype, shape, self.seed, rng)


def _texts(role: Role, count: int, rng: np.random.Generator) -> list[str]:
    """Words that are known where they are looked up, or sentences of these; in every other set of inputs some are not known."""
    unknown = [f"word{number}" for number in range(9)]
    share = UNKNOWN if not role.words or rng.random() < 0.5 else 0.0

    def word() -> str:
        return str(rng.choice(unknown if not role.words or rng.random() < share else role.words))

    if not role.sentences:
        return [word() for _ in range(count)]
    between = "" if role.words and max(map(len, role.words)) == 1 else " "
    return [between.join(word() for _ in range(rng.integers(1, LONGEST_SENTENCE + 1))) for _ in range(count)]


def _boxes(written: Boxes, numbers: Array) -> Array:
    """Boxes that overlap now and then: centres of unit spread, sizes about half of that."""
    centres, extents = numbers[..., :2], 0.3 + np.abs(numbers[..., 2:]) / 2
    ends = (centres, extents) if written is Boxes.CENTRES else (centres - extents / 2, centres + extents / 2)
    return np.concatenate(ends, axis=-1)


def _with_values(role: Role, indices: Array, rng: np.random.Generator) -> Array:
    """Row numbers of which some are those that the model looks for, if they are rows."""
    known = [value for value in role.values if indices.min(initial=0) <= value <= indices.max(initial=0)]
    return np.where(rng.random(indices.shape) < 0.1, rng.choice(known, indices.shape), indices) if known else indices


def _indices(limits: Sequence[Limit], shape: list[int], sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Row numbers that exist in every table."""
    lowest = max(math.ceil(-limit.offset / limit.scale) for limit in limits)
    highest = min((_extent(limit, sizes) - 1 - limit.offset) // limit.scale for limit in limits)
    lowest = max(0, min(lowest, highest))
    return np.asarray(rng.integers(lowest, max(highest, lowest) + 1, shape))


def _extent(limit: Limit, sizes: Mapping[str, int]) -> int:
    """The number of rows of a table; if unknown, 1, since one row certainly exists."""
    return 1 if limit.extent is None else _size(limit.extent, sizes)


def _size(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """A size in this run; 1 if it is not known."""
    try:
        return evaluate(dim, sizes) if isinstance(dim, Dim) else dim
    except KeyError:
        return 1


def _masks(use: Use, masks: Masks, shape: list[int], rng: np.random.Generator) -> Array:
    """Rows whose first positions are kept and whose tails are hidden, with a different length for each element of a batch.

    If there are several rows, the first is kept entirely, unless it could be mistaken for an entirely hidden one. A single truth
    value is random.
    """
    kept = np.ones(shape, dtype=np.float64)
    if not shape and masks is not Masks.WHOLE and use is not Use.BIAS:
        return np.asarray(rng.integers(0, 2))
    if shape and kept.size and masks is not Masks.WHOLE:
        length = shape[-1]
        batches = kept.reshape(shape[0], -1, length) if len(shape) > 1 else kept.reshape(1, 1, length)
        lengths = rng.integers(1, max(length, 2), len(batches))
        if len(batches) > 1 and use is not Use.EITHER:
            lengths[0] = length
        if masks is Masks.HIDDEN:
            lengths[-1] = 0
        for batch, end in zip(batches, lengths, strict=True):
            batch[:, end:] = 0
    if use is Use.BIAS:
        return np.where(kept > 0, 0.0, MASK_FILLER)
    return np.asarray(1 - kept) if use is Use.HIDE else kept  # of no axes NumPy makes a number
