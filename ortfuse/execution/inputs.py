"""Generates random inputs that suit what the graph does with them.

Integers that select rows are below the size of the smallest table, masks have rows with padded tails, other integers are
small, and floating-point inputs are standard normal (see `ortfuse.execution.input_roles`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ortfuse.dims import Dim, DimLike, evaluate
from ortfuse.errors import VerificationError
from ortfuse.execution.input_roles import Limit, Role, Use, role_of
from ortfuse.facts.facts import Facts

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]

SMALL = 4
"""Upper bound of integers that neither select nor mask anything."""

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
    flat = _without_functions(model)
    facts = Facts(flat)
    return [_spec(value, facts) for value in flat.graph.inputs if value.name not in flat.graph.initializers]


def _without_functions(model: ir.Model) -> ir.Model:
    """The model itself, or a copy with its functions inlined, so that values can be followed."""
    return InlinePass()(model.clone()).model if model.functions else model


def _spec(value: ir.Value, facts: Facts) -> InputSpec:
    dtype, shape = facts.dtype(value), facts.shape(value)
    advice = "give your own inputs with --inputs FILE.npz"
    if dtype is None or not isinstance(value.type, ir.TensorType):
        raise VerificationError(f"input '{value.name}' is no tensor of a known element type; {advice}")
    if shape is None:
        raise VerificationError(f"the rank of input '{value.name}' is not known; {advice}")
    return InputSpec(value.name or "", dtype, shape, role_of(value, facts))


def make_inputs(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int) -> Inputs:
    """Random inputs with the given sizes of the symbols in the shapes of `specs`."""
    rng = np.random.default_rng(seed)
    return {spec.name: _array(spec, _shape(spec, sizes), sizes, rng) for spec in specs}


def _shape(spec: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    return [evaluate(dim, sizes) if isinstance(dim, Dim) else dim for dim in spec.shape]


def _array(spec: InputSpec, shape: list[int], sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    if spec.elements is not None:
        numbers = [evaluate(element, sizes) for element in spec.elements]
        return np.asarray(numbers, np.int64).reshape(shape).astype(spec.dtype.numpy())
    if spec.dtype == ir.DataType.STRING:
        words = [f"word{number}" for number in rng.integers(0, 9, math.prod(shape))]
        return np.array(words, dtype=object).reshape(shape)
    kind = spec.dtype.numpy()
    if spec.role.limits and not spec.dtype.is_floating_point():
        return _indices(spec.role.limits, shape, sizes, rng).astype(kind)
    if spec.role.mask is not None:
        return _masks(spec.role.mask, shape, rng).astype(kind)
    if spec.dtype.is_floating_point():
        return np.asarray(rng.standard_normal(shape)).astype(kind)
    return np.asarray(rng.integers(0, 2 if spec.dtype == ir.DataType.BOOL else SMALL, shape)).astype(kind)


def _indices(limits: Sequence[Limit], shape: list[int], sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Row numbers that exist in every table."""
    lowest = max(math.ceil(-limit.offset / limit.scale) for limit in limits)
    highest = min((_extent(limit, sizes) - 1 - limit.offset) // limit.scale for limit in limits)
    lowest = max(0, min(lowest, highest))
    return np.asarray(rng.integers(lowest, max(highest, lowest) + 1, shape))


def _extent(limit: Limit, sizes: Mapping[str, int]) -> int:
    """The number of rows of a table; if unknown, 1, since one row certainly exists."""
    if not isinstance(limit.extent, Dim):
        return 1 if limit.extent is None else limit.extent
    try:
        return evaluate(limit.extent, sizes)
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
