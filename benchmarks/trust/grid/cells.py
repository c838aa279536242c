"""Cells: a seed at an opset, varied in one way, with some of its operands known and the others not.

The variations come from the schema: other element types, other attributes, inputs and outputs absent or present, special numbers,
axes of size 0 and 1. Which of them are valid is not said here: those that the runtime does not run are no cells.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.trust.grid.building import ALLOCATE, MODES, OF_ONE_OPERAND, Cell, is_narrow
from benchmarks.trust.grid.seeds import (
    ELEMENT_TYPES,
    NARROW,
    TYPE_ATTRIBUTES,
    Seed,
    at,
    attribute_of,
    kernel_types,
    seeds,
    versions,
)

_TYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
    **{f"tensor({name})": dtype for name, dtype in NARROW.items()},
}


@dataclass(frozen=True)
class Sample:
    """A fixed choice of one cell in so many: of one seed in the root of that number, one cell in the rest."""

    one_in: int = 1
    seed: int = 0

    def takes_seed(self, label: str) -> bool:
        """Whether some cells of a seed are in the sample."""
        return self._takes(label, math.isqrt(self.one_in))

    def takes_cell(self, label: str) -> bool:
        """Whether a cell is in the sample, if its seed is."""
        return self._takes(label, self.one_in // math.isqrt(self.one_in))

    def _takes(self, label: str, one_in: int) -> bool:
        digest = hashlib.blake2b(f"{self.seed} {label}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) % one_in == 0


@dataclass(frozen=True)
class OfEverySeed(Sample):
    """A fixed choice of one cell in so many, of every seed."""

    def takes_seed(self, label: str) -> bool:
        return True

    def takes_cell(self, label: str) -> bool:
        return self._takes(label, self.one_in)


@dataclass(frozen=True)
class Single(Sample):
    """The one cell of a label."""

    label: str = ""

    def takes_seed(self, label: str) -> bool:
        return self.label.startswith(f"{label}/")

    def takes_cell(self, label: str) -> bool:
        return self.label == label


def cells(sample: Sample, operators: frozenset[str] | None = None) -> Iterator[Cell]:
    """The cells of a sample, in a fixed order; of some operators, or of all."""
    for label, seed, how, part in _planned(sample, operators):
        if sample.takes_cell(label) and (cell := MODES[how](label, seed, part)) is not None:
            yield cell


def about(most: int, seed: int, operator: str) -> Iterator[Cell]:
    """About so many cells of an operator, of all of its seeds."""
    return cells(OfEverySeed(-(-count(operator) // most) or 1, seed), frozenset((operator,)))


def count(operator: str) -> int:
    """Count the cells of an operator, those included that cannot be built."""
    return sum(1 for _ in _planned(Sample(), frozenset((operator,))))


def _planned(sample: Sample, operators: frozenset[str] | None) -> Iterator[tuple[str, Seed, str, int]]:
    """The label, the seed, the mode and the operand of each cell of the seeds of a sample."""
    for name, found in seeds().items():
        if operators is not None and name not in operators:
            continue
        for number, seed in enumerate(found):
            for version in versions(seed.domain, seed.op_type):
                label = f"{name}-{version}/{number}"
                if sample.takes_seed(label) and (written := at(seed, version)) is not None:
                    yield from _of_seed(label, written)


def _of_seed(label: str, seed: Seed) -> Iterator[tuple[str, Seed, str, int]]:
    for make, modes in _VARIATIONS.items():
        for what, varied in make(seed):
            for how in modes:
                for part in range(len(varied.inputs) if how in OF_ONE_OPERAND else 1):
                    named = f"{label}/{what}/{how} {part}" if how in OF_ONE_OPERAND else f"{label}/{what}/{how}"
                    yield named, varied, how, part


# Variations of a seed.


def _as_it_is(seed: Seed) -> Iterator[tuple[str, Seed]]:
    yield "as it is", seed


def _typed(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """The inputs of one type variable in every other type that the schema allows."""
    schema = seed.schema
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    for variable, types in allowed.items():
        places = [
            index
            for index, value in enumerate(seed.inputs)
            if isinstance(value, np.ndarray) and _variable(schema, index) == variable
        ]
        for kind in sorted(types):
            dtype = _TYPES.get(kind)
            if dtype is None or not places or seed.inputs[places[0]].dtype == dtype:
                continue
            if kind[7:-1] in NARROW and kind not in kernel_types(seed.domain, seed.op_type):
                continue
            changed = seed
            for index in places:
                changed = changed.with_input(index, _as(changed.inputs[index], dtype))
            yield f"{variable}={kind[7:-1]}", changed


def _variable(schema: Any, index: int) -> str:
    """The type variable of an input; the runtime's schemas have another name for it than ONNX's."""
    parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
    return str(parameter.type_str if hasattr(parameter, "type_str") else parameter.typeStr)


def _as(value: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        if dtype is np.object_:
            return np.array([str(one) for one in value.reshape(-1).tolist()], object).reshape(value.shape)
        if value.dtype == object:
            value = np.arange(value.size).reshape(value.shape)
        if is_narrow(value):
            value = value.astype(np.float32)
        return np.asarray(value.astype(dtype))


def _attributed(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """Each attribute with other values, and without any."""
    for name, attribute in sorted(seed.schema.attributes.items()):
        given = seed.attributes.get(name)
        if given is not None and not attribute.required:
            yield f"{name} absent", seed.with_attribute(name, None)
        for value in _candidates(seed, name, attribute):
            if given is None or given.SerializeToString() != value.SerializeToString():
                text = str(helper.get_attribute_value(value))[:20]
                yield f"{name}={text}", seed.with_attribute(name, value)


def _candidates(seed: Seed, name: str, attribute: Any) -> Iterator[onnx.AttributeProto]:
    kind = str(attribute.type).rpartition(".")[2]
    if kind == "INT":
        kinds = sorted(ELEMENT_TYPES) if name in TYPE_ATTRIBUTES else ()
        numbers = kinds or ((0, 1) if name == "saturate" else (-1, 0, 1, 2, 3))
        yield from (helper.make_attribute(name, number) for number in numbers)
    elif kind == "FLOAT":
        yield from (helper.make_attribute(name, number) for number in (0.0, 0.5, 1.0, -1.5, 2.0))
    elif kind == "INTS":
        given = seed.attributes.get(name)
        rank = max((value.ndim for value in seed.inputs if isinstance(value, np.ndarray)), default=1)
        length = len(given.ints) if given is not None else rank
        for numbers in (
            [0] * length,
            [1] * length,
            [2] * length,
            [-1],
            [0],
            [0, -1],
            [1, 0],
            list(range(rank))[::-1],
            [],
        ):
            yield attribute_of(name, "INTS", np.array(numbers))
    elif kind in ("STRING", "TENSOR", "FLOATS", "STRINGS"):
        seen = {
            one.SerializeToString(): one
            for other in seeds()[seed.name]
            for called, one in other.attributes.items()
            if called == name
        }
        yield from [seen[key] for key in sorted(seen)][:4]


def _without_parts(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """Optional inputs and outputs left out, and all outputs asked for."""
    for index, value in enumerate(seed.inputs):
        if value is not None and index:
            yield f"input {index} absent", seed.with_input(index, None)
    for other in seeds()[seed.name]:
        for index, value in enumerate(other.inputs):
            if value is not None and index and (index >= len(seed.inputs) or seed.inputs[index] is None):
                yield f"input {index} present", seed.with_input(index, value)
                break
    schema = seed.schema
    most = len(schema.outputs)
    asked = {seed.outputs, (True,)}
    if seed.op_type not in ("Loop", "Scan", "If", "Split", "SequenceMap"):
        asked |= {(True,) * count for count in range(1, most + 1)} | {(False,) * (most - 1) + (True,)}
    for outputs in sorted(asked - {seed.outputs}):
        yield f"outputs {''.join('x' if one else '-' for one in outputs)}", _with_outputs(seed, outputs)


def _with_outputs(seed: Seed, outputs: tuple[bool, ...]) -> Seed:
    return Seed(seed.domain, seed.op_type, seed.version, seed.attributes, seed.inputs, outputs)


def _numbered(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """Other numbers in inputs that are indices, sizes or axes, one at a time."""
    for index in _numeric(seed):
        value = seed.inputs[index]
        if value.ndim > 1 or not index or value.dtype not in (np.int64, np.int32):
            continue
        for number in _small_and_large(value.dtype, seed.op_type not in ALLOCATE):
            for place in range(min(value.size, 2)):
                changed = value.copy()
                changed.reshape(-1)[place] = number
                yield f"input {index}[{place}]={number}", seed.with_input(index, changed)


def _numeric(seed: Seed) -> list[int]:
    """The inputs that hold numbers."""
    arrays = [index for index, value in enumerate(seed.inputs) if isinstance(value, np.ndarray) and value.size]
    return [index for index in arrays if seed.inputs[index].dtype.kind in "iufV"]


def _special(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """The special numbers of its type in each input, and in all of them."""
    arrays = _numeric(seed)
    for index in arrays:
        value = seed.inputs[index]
        if seed.op_type not in ALLOCATE or value.ndim > 1:
            yield f"special {index}", seed.with_input(index, _specials(value, 1))
    if len(arrays) > 1 and seed.op_type not in ALLOCATE:
        changed_all = seed
        for position, index in enumerate(arrays):
            changed_all = changed_all.with_input(index, _specials(seed.inputs[index], 1 + 7 * position))
        yield "special all", changed_all


def _small_and_large(dtype: Any, large: bool) -> tuple[int, ...]:
    limits = np.iinfo(dtype)
    return (0, 1, -1, -2, 3, *((int(limits.min), int(limits.max), 2**31 - 1) if large else ()))


def _specials(value: np.ndarray, repeat: int) -> np.ndarray:
    dtype = value.dtype
    if is_narrow(value):
        numbers = _narrow_specials(dtype)
    elif dtype.kind == "f":
        limits = np.finfo(dtype)
        numbers = [
            np.nan,
            np.inf,
            -np.inf,
            -0.0,
            0.0,
            limits.smallest_subnormal,
            limits.max,
            limits.min,
            1.5,
            2.5,
            -2.5,
            1e-3,
        ]
    else:
        whole = np.iinfo(dtype)
        numbers = [whole.min, whole.max, 0, 1, whole.max // 2 + 1, *([-1, -7] if dtype.kind == "i" else [7])]
    return np.resize(np.repeat(np.array(numbers, dtype), repeat), value.shape)


def _narrow_specials(dtype: np.dtype[Any]) -> list[Any]:
    """All numbers of a type of 8 bits or less; of bfloat16, the special ones."""
    if "int" in dtype.name:
        return [number for number in range(-8, 16) if int(np.array(number).astype(dtype)) == number]
    if dtype.itemsize == 1:
        with np.errstate(all="ignore"):
            return list(np.arange(256, dtype=np.uint8).view(dtype))
    return [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, 3e38, 1.5, 2.5, -2.5, 1e-3]


def _resized(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """All axes of one size made 0 or 1, in all inputs at once; and each axis of each input on its own."""
    arrays = {index: value for index, value in enumerate(seed.inputs) if isinstance(value, np.ndarray)}
    for old in sorted({size for value in arrays.values() for size in value.shape}):
        for new in {0, 1, 3} - {old}:
            changed = seed
            for index, value in arrays.items():
                changed = changed.with_input(
                    index, np.resize(value, [new if size == old else size for size in value.shape])
                )
            yield f"{old}->{new}", changed
    for index, value in arrays.items():
        for axis in range(value.ndim):
            for new in {0, 1} - {value.shape[axis]}:
                shape = [new if place == axis else size for place, size in enumerate(value.shape)]
                yield f"input {index} axis {axis}={new}", seed.with_input(index, np.resize(value, shape))


def _filled_otherwise(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """Sequences of another length, of tensors of other shapes and types."""
    for index, value in enumerate(seed.inputs):
        if not isinstance(value, list) or not value:
            continue
        first = value[0]
        for what, other in (
            ("empty", []),
            ("one", [first]),
            ("more", [*value, first]),
            ("shapes", [first, first[:1], first[:0]] if first.ndim else [first, first.reshape(1)]),
            ("ranks", [first, first.reshape(-1)]),
            *(
                (str(np.dtype(dtype)), [_as(one, dtype) for one in value])
                for dtype in (np.int64, np.float64, np.object_)
            ),
        ):
            yield f"input {index} {what}", seed.with_input(index, other)


_VARIATIONS: dict[Callable[[Seed], Iterator[tuple[str, Seed]]], tuple[str, ...]] = {
    _as_it_is: ("unknown", "constant", "one unknown", "one known", "constructed", "sizes"),
    _typed: ("unknown", "constant", "one unknown", "constructed", "sizes"),
    _attributed: ("unknown", "constant", "one unknown", "constructed", "sizes"),
    _without_parts: ("unknown", "constant", "one unknown", "constructed"),
    _numbered: ("constant", "one unknown", "constructed", "sizes"),
    _filled_otherwise: ("unknown", "constant", "constructed"),
    _special: ("unknown", "constant", "sizes"),
    _resized: ("unknown", "constant", "one unknown"),
}
"""The modes in which each kind of variation is tried: more would say little more about it."""


def varied(rng: random.Random, seed: Seed) -> Seed:
    """The seed varied in one of these ways, drawn at random; as it is if there is none."""
    found = [*rng.choice(list(_VARIATIONS))(seed)]
    return rng.choice(found)[1] if found else seed
