"""Cells: a seed at an opset, varied in one way, with some of its operands known and the others not.

The variations come from the schema: other element types, other attributes, inputs and outputs absent or present, special numbers,
axes of size 0 and 1. Which of them are valid is not said here: those that the runtime does not run are no cells.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.trust.grid.seeds import TYPE_ATTRIBUTES, Seed, at, attribute_of, seeds, versions

IR_VERSION = 10
MICROSOFT = "com.microsoft"
_INDICES = np.iinfo(np.int64)

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
}
_ALLOCATE = frozenset(
    """
    AffineGrid BlackmanWindow CenterCropPad Col2Im ConstantOfShape DFT Expand EyeLike GridSample GroupQueryAttention HammingWindow
    HannWindow MaxUnpool MelWeightMatrix Multinomial NonMaxSuppression OneHot Pad RandomNormal RandomUniform Range Resize
    ReverseSequence STFT Tile TopK Upsample
    """.split()  # noqa: SIM905
)
"""Operators whose results are as large as the numbers in an operand or attribute say: those get no large numbers."""

_MOST_SYMBOLIC = 4
_SHIFTS = (0, 1, 2, -1, 3)


@dataclass(frozen=True)
class Cell:
    """A model of one operator, the inputs it is run on, and the sizes of the symbols in its inputs' shapes for each."""

    label: str
    seed: Seed
    model: onnx.ModelProto
    runs: tuple[tuple[dict[str, Any], dict[str, int]], ...]
    constant: bool

    def __str__(self) -> str:
        return self.label


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
        return zlib.crc32(f"{self.seed} {label}".encode()) % one_in == 0


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
    for name, found in seeds().items():
        if operators is not None and name not in operators:
            continue
        for number, seed in enumerate(found):
            for version in versions(seed.domain, seed.op_type):
                label = f"{name}-{version}/{number}"
                if sample.takes_seed(label) and (written := at(seed, version)) is not None:
                    yield from _of_seed(label, written, sample)


def _of_seed(label: str, seed: Seed, sample: Sample) -> Iterator[Cell]:
    for make, modes in _VARIATIONS.items():
        for what, varied in make(seed):
            for how in modes:
                build = _MODES[how]
                for part in range(len(varied.inputs) if how in _OF_ONE_OPERAND else 1):
                    named = f"{label}/{what}/{how} {part}" if how in _OF_ONE_OPERAND else f"{label}/{what}/{how}"
                    if sample.takes_cell(named) and (cell := build(named, varied, part)) is not None:
                        yield cell


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
        kinds = range(1, 14) if name in TYPE_ATTRIBUTES else ()
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
        for number in _small_and_large(value.dtype, seed.op_type not in _ALLOCATE):
            for place in range(min(value.size, 2)):
                changed = value.copy()
                changed.reshape(-1)[place] = number
                yield f"input {index}[{place}]={number}", seed.with_input(index, changed)


def _numeric(seed: Seed) -> list[int]:
    """The inputs that hold numbers."""
    arrays = [index for index, value in enumerate(seed.inputs) if isinstance(value, np.ndarray) and value.size]
    return [index for index in arrays if seed.inputs[index].dtype.kind in "iuf"]


def _special(seed: Seed) -> Iterator[tuple[str, Seed]]:
    """The special numbers of its type in each input, and in all of them."""
    arrays = _numeric(seed)
    for index in arrays:
        value = seed.inputs[index]
        if seed.op_type not in _ALLOCATE or value.ndim > 1:
            yield f"special {index}", seed.with_input(index, _specials(value, 1))
    if len(arrays) > 1 and seed.op_type not in _ALLOCATE:
        changed_all = seed
        for position, index in enumerate(arrays):
            changed_all = changed_all.with_input(index, _specials(seed.inputs[index], 1 + 7 * position))
        yield "special all", changed_all


def _small_and_large(dtype: Any, large: bool) -> tuple[int, ...]:
    limits = np.iinfo(dtype)
    return (0, 1, -1, -2, 3, *((int(limits.min), int(limits.max), 2**31 - 1) if large else ()))


def _specials(value: np.ndarray, repeat: int) -> np.ndarray:
    dtype = value.dtype
    if dtype.kind == "f":
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


# What is known of the operands.


def _unknown(label: str, seed: Seed, part: int) -> Cell | None:
    """Every operand is an input of the model, each axis with a name of its own."""
    return _cell(label, seed, lambda index: True)


def _constant(label: str, seed: Seed, part: int) -> Cell | None:
    """Every operand is a constant, but sequences."""
    return _cell(label, seed, lambda index: False)


def _one_unknown(label: str, seed: Seed, part: int) -> Cell | None:
    return _cell(label, seed, lambda index: index == part)


def _one_known(label: str, seed: Seed, part: int) -> Cell | None:
    return None if len(seed.inputs) < 3 else _cell(label, seed, lambda index: index != part)


def _cell(label: str, seed: Seed, is_open: Callable[[int], bool]) -> Cell | None:
    inputs, feeds, sizes, constants = [], {}, {}, []
    names = []
    for index, value in enumerate(seed.inputs):
        name = "" if value is None else f"i{index}"
        names.append(name)
        if isinstance(value, list):
            inputs.append(_sequence(name, value))
            feeds[name] = value
        elif value is not None and is_open(index):
            dims = {f"d{index}_{axis}": size for axis, size in enumerate(value.shape)}
            sizes |= dims
            inputs.append(helper.make_tensor_value_info(name, _dtype(value), list(dims)))
            feeds[name] = value
        elif value is not None:
            constants.append(onnx.numpy_helper.from_array(value, name))
    model = _model(seed, names, inputs, constants, [])
    return Cell(label, seed, model, ((feeds, sizes),), constant=not inputs)


def _sizes(label: str, seed: Seed, part: int) -> Cell | None:
    """One integer operand is computed from the sizes of an input, as exporters do; tried with several of them."""
    value = seed.inputs[part]
    if (
        not isinstance(value, np.ndarray)
        or value.dtype not in (np.int64, np.int32)
        or not 0 < value.size <= _MOST_SYMBOLIC
    ):
        return None
    if seed.op_type in _ALLOCATE and np.abs(value).max() > 1 << 20:
        return None
    symbols = [f"n{number}" for number in range(value.size)]
    dims = helper.make_tensor_value_info("sized", TensorProto.FLOAT, symbols)
    # The first run has the operand that the seed has; the sizes of the others are a little off.
    first = np.clip(np.where(value < 0, 1, value), 0, 4).astype(np.int64).reshape(-1)
    offset = (value.astype(np.int64).reshape(-1) - first).astype(value.dtype)
    names = ["" if one is None else f"i{index}" for index, one in enumerate(seed.inputs)]
    names[part] = "operand"
    if any(isinstance(one, list) for one in seed.inputs):
        return None
    given = {"offset": offset, "shape": np.array(value.shape, np.int64)}
    given |= {f"i{index}": one for index, one in enumerate(seed.inputs) if one is not None and index != part}
    constants = [onnx.numpy_helper.from_array(one, name) for name, one in given.items()]
    nodes = [
        helper.make_node("Shape", ["sized"], ["counted"]),
        helper.make_node("Cast", ["counted"], ["cast"], to=_dtype(value)),
        helper.make_node("Add", ["cast", "offset"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["operand"]),
    ]
    runs = []
    for shift in _SHIFTS:
        found = np.maximum(first + shift, 0)
        runs.append(({"sized": np.zeros(found, np.float32)}, dict(zip(symbols, found.tolist(), strict=True))))
    return Cell(label, seed, _model(seed, names, [dims], constants, nodes), tuple(runs), constant=False)


_MODES: dict[str, Callable[[str, Seed, int], Cell | None]] = {
    "unknown": _unknown,
    "constant": _constant,
    "one unknown": _one_unknown,
    "one known": _one_known,
    "sizes": _sizes,
}
_OF_ONE_OPERAND = frozenset({"one unknown", "one known", "sizes"})
_VARIATIONS: dict[Callable[[Seed], Iterator[tuple[str, Seed]]], tuple[str, ...]] = {
    _as_it_is: ("unknown", "constant", "one unknown", "one known", "sizes"),
    _typed: ("unknown", "constant", "one unknown", "sizes"),
    _attributed: ("unknown", "constant", "one unknown", "sizes"),
    _without_parts: ("unknown", "constant", "one unknown"),
    _numbered: ("constant", "one unknown", "sizes"),
    _special: ("unknown", "constant", "sizes"),
    _resized: ("unknown", "constant", "one unknown"),
}
"""How each kind of variation is tried: more ways would say little more about it."""


def _model(seed: Seed, names: list[str], inputs: list[Any], constants: list[Any], before: list[Any]) -> onnx.ModelProto:
    outputs = [f"o{index}" if asked else "" for index, asked in enumerate(seed.outputs)]
    node = helper.make_node(seed.op_type, names, outputs, domain=seed.domain)
    node.attribute.extend(seed.attributes.values())
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([*before, node], "cell", inputs, results, constants)
    imports = {"": 17, seed.domain: seed.version}
    ids = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=ids)


def _dtype(value: np.ndarray) -> int:
    return TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)


def _sequence(name: str, value: list[np.ndarray]) -> onnx.ValueInfoProto:
    kind = _dtype(value[0]) if value else TensorProto.FLOAT
    return helper.make_tensor_sequence_value_info(name, kind, None)
