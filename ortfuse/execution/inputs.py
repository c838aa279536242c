"""Generates random inputs that suit what the graph does with them.

Integers that select rows are below the size of the smallest table, those compared with certain numbers are these, masks have
rows with padded tails, bytes are of any value, other integers small, and floating-point inputs are standard normal (see
`ortfuse.execution.input_roles`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import Dim, DimLike, evaluate
from ortfuse.errors import VerificationError
from ortfuse.execution.input_roles import Boxes, Limit, Role, Use, role_of
from ortfuse.facts.facts import Facts
from ortfuse.graph.functions import looked_into

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]

SMALL = 4
"""Upper bound of integers that neither select nor mask anything."""

UNKNOWN = 0.25
"""The share of words that an encoder does not know, where there are such."""

LONGEST_SENTENCE = 6
"""The most words of a sentence."""

_DRAWN = 8
"""Bytes of a random number, before it gets the type of its input."""

HIDING = -1e4
"""The value of a bias at hidden positions; it is representable in float16."""


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
    return [_spec(value, facts) for value in flat.graph.inputs if value.name not in flat.graph.initializers]


def _spec(value: ir.Value, facts: Facts) -> InputSpec:
    dtype, shape = facts.dtype(value), facts.shape(value)
    advice = "give your own inputs with --inputs FILE.npz"
    if dtype is None or not isinstance(value.type, ir.TensorType):
        raise VerificationError(f"input '{value.name}' is no tensor of a known element type; {advice}")
    if shape is None:
        raise VerificationError(f"the rank of input '{value.name}' is not known; {advice}")
    return InputSpec(value.name or "", dtype, shape, role_of(value, facts))


def make_inputs(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int) -> Inputs:
    """Random inputs with the given sizes of the symbols in the shapes of `specs`.

    Raises:
        VerificationError: One of them would take more memory than this machine has.
    """
    rng = np.random.default_rng(seed)
    return {spec.name: _array(spec, _shape(spec, sizes), sizes, rng) for spec in specs}


def _shape(spec: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    shape = [evaluate(dim, sizes) if isinstance(dim, Dim) else dim for dim in spec.shape]
    if (needed := _DRAWN * math.prod(shape)) > (there_is := _memory()):
        raise VerificationError(
            f"input '{spec.name}' of shape {shape} would be drawn from {needed:,} bytes of random numbers, and this machine has "
            f"{there_is:,}; take smaller sizes"
        )
    return shape


def _memory() -> int:
    """The bytes of memory that this machine has; where the system does not tell, as many as there are addresses."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 47


def _array(spec: InputSpec, shape: list[int], sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    if spec.elements is not None:
        numbers = [evaluate(element, sizes) for element in spec.elements]
        return np.asarray(numbers, np.int64).reshape(shape).astype(spec.dtype.numpy())
    if spec.dtype == ir.DataType.STRING:
        return np.array(_texts(spec.role, math.prod(shape), rng), dtype=object).reshape(shape)
    kind = spec.dtype.numpy()
    if spec.dtype.is_floating_point():
        return _numbers(spec.role, shape, rng).astype(kind)
    return _integers(spec, shape, sizes, rng).astype(kind)


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


def _numbers(role: Role, shape: list[int], rng: np.random.Generator) -> Array:
    if role.mask is not None:
        return _masks(role.mask, shape, rng)
    numbers = np.asarray(rng.standard_normal(shape))
    return numbers if role.boxes is None or shape[-1:] != [4] else _boxes(role.boxes, numbers)


def _boxes(written: Boxes, numbers: Array) -> Array:
    """Boxes that overlap now and then: centres of unit spread, sizes about half of that."""
    centres, extents = numbers[..., :2], 0.3 + np.abs(numbers[..., 2:]) / 2
    ends = (centres, extents) if written is Boxes.CENTRES else (centres - extents / 2, centres + extents / 2)
    return np.concatenate(ends, axis=-1)


def _integers(spec: InputSpec, shape: list[int], sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    role = spec.role
    if role.limits:
        return _with_values(role, _indices(role.limits, shape, sizes, rng), rng)
    if role.values:
        return np.asarray(rng.choice([*role.values, *role.values, int(rng.integers(0, SMALL))], shape))
    if role.mask is not None:
        return _masks(role.mask, shape, rng)
    if role.length is not None:
        return np.asarray(rng.integers(1, max(_size(role.length, sizes), 1) + 1, shape))
    highest = {ir.DataType.BOOL: 2, ir.DataType.UINT8: 256}.get(spec.dtype, SMALL)
    return np.asarray(rng.integers(0, highest, shape))


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


def _masks(use: Use, shape: list[int], rng: np.random.Generator) -> Array:
    """Rows whose first positions are kept and whose tails are hidden, with a different length for each element of a batch.

    If there are several rows, the first is kept entirely, unless it could be mistaken for an entirely hidden one.
    """
    kept = np.ones(shape, dtype=np.float64)
    if shape and kept.size:
        length = shape[-1]
        batches = kept.reshape(shape[0], -1, length) if len(shape) > 1 else kept.reshape(1, 1, length)
        lengths = rng.integers(1, max(length, 2), len(batches))
        if len(batches) > 1 and use is not Use.EITHER:
            lengths[0] = length
        for batch, end in zip(batches, lengths, strict=True):
            batch[:, end:] = 0
    if use is Use.BIAS:
        return np.where(kept > 0, 0.0, HIDING)
    return np.asarray(1 - kept) if use is Use.HIDE else kept  # of no axes NumPy makes a number
