"""Inputs to try a model on: generated from what the graph does with them, or read from the user's files.

What an input is for is found by following it through the graph, never from its name: integers that select rows of a
table stay below the table's size; integers and booleans that end in a comparison, a cast to bool or floating point, are
masks and get rows with padded tails; floating-point inputs are standard normal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir.dims import DimLike, evaluate, parse, symbols
from ortfuse.ir.facts import Facts

Inputs = dict[str, np.ndarray[Any, Any]]

_PASSES_THROUGH = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Slice", "Transpose", "Flatten", "Concat",
     "Tile", "Split", "Add", "Sub", "Max", "Min", "Clip", "Where"}
)  # fmt: skip
_INDEXED = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1, "OneHot": 0}
_COMPARES = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not", "Mul"})

SIZES = ((1, 1, 1, 1), (3, 7, 5, 2), (2, 16, 9, 4))
"""What the free dimensions are bound to, in the order in which they appear: all 1, odd sizes, larger sizes."""

FALLBACK_SIZES = ((2, 8, 8, 8), (1, 32, 32, 32), (1, 64, 64, 64), (1, 224, 224, 224))
"""Tried when the original cannot run on one of `SIZES` (an image too small, a length beyond a table)."""


@dataclass(frozen=True)
class Role:
    """What an input is for: `bound` rows may be selected (`None` if it selects none), `mask` if it hides positions."""

    bound: int | None
    mask: bool


@dataclass(frozen=True)
class InputSpec:
    """One input that must be given: its element type, symbolic shape and role."""

    name: str
    dtype: ir.DataType
    shape: tuple[DimLike, ...]
    role: Role


def input_specs(model: ir.Model) -> list[InputSpec]:
    """The inputs that must be given (those with an initializer as default are left out)."""
    facts = Facts(model)
    specs = []
    for position, value in enumerate(model.graph.inputs):
        if value.name in model.graph.initializers:
            continue
        if value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise VerificationError(f"input '{value.name}' is no tensor; give your own inputs with --inputs FILE.npz")
        specs.append(InputSpec(value.name or "", value.dtype, _shape(value, position), role_of(value, facts)))
    return specs


def _shape(value: ir.Value, position: int) -> tuple[DimLike, ...]:
    if value.shape is None:
        raise VerificationError(
            f"the rank of input '{value.name}' is not known; give your own inputs with --inputs FILE.npz"
        )
    dims: list[DimLike] = []
    for axis, dim in enumerate(value.shape):
        text = str(dim.value) if not isinstance(dim, int) and dim.value is not None else f"input{position}_dim{axis}"
        dims.append(dim if isinstance(dim, int) else parse(text))
    return tuple(dims)


def role_of(value: ir.Value, facts: Facts) -> Role:
    """What `value` is for, by following it forward through nodes that keep its numbers."""
    bound: int | None = None
    mask = value.dtype == ir.DataType.BOOL
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses():
            node = use.node
            if _INDEXED.get(node.op_type) == use.idx and not node.domain:
                size = _table_size(node, facts)
                bound = size if bound is None else min(bound, size) if size is not None else bound
            elif (
                (
                    node.op_type == "Cast"
                    and facts.dtype(node.outputs[0])
                    in (
                        ir.DataType.BOOL,
                        ir.DataType.FLOAT,
                        ir.DataType.FLOAT16,
                    )
                )
                or node.op_type in _COMPARES
                or (node.op_type == "Where" and use.idx == 0)
            ):
                mask = True
            elif node.op_type in _PASSES_THROUGH:
                pending.extend(node.outputs)
    return Role(bound, mask)


def _table_size(node: ir.Node, facts: Facts) -> int | None:
    shape = facts.shape(node.inputs[0])
    if node.op_type == "OneHot":
        depth = facts.scalar(node.inputs[1])
        return None if depth is None else int(depth)
    if shape is None or not shape:
        return None
    if node.op_type in ("GatherND", "ScatterND"):
        sizes = [dim for dim in shape if isinstance(dim, int)]
        return min(sizes) if len(sizes) == len(shape) else 1
    attribute = node.attributes.get("axis")
    size = shape[attribute.value if attribute is not None and not attribute.is_ref() else 0]
    return size if isinstance(size, int) else 1


def make_inputs(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int) -> Inputs:
    """Random inputs of the given sizes."""
    rng = np.random.default_rng(seed)
    made: Inputs = {}
    for spec in specs:
        shape = [dim if isinstance(dim, int) else evaluate(dim, sizes) for dim in spec.shape]
        made[spec.name] = _array(spec, [max(int(size), 0) for size in shape], rng)
    return made


def _array(spec: InputSpec, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if spec.dtype == ir.DataType.STRING:
        return np.asarray([f"word{number}" for number in rng.integers(0, 9, math.prod(shape))], dtype=object).reshape(
            shape
        )
    if spec.dtype.is_floating_point() and not spec.role.mask:
        return np.asarray(rng.standard_normal(shape)).astype(spec.dtype.numpy())
    if spec.role.bound is not None:
        return np.asarray(rng.integers(0, max(spec.role.bound, 1), shape)).astype(spec.dtype.numpy())
    if spec.role.mask and not spec.dtype.is_floating_point():
        return _mask(shape, rng).astype(spec.dtype.numpy())
    if spec.dtype.is_floating_point():
        return np.asarray(rng.standard_normal(shape)).astype(spec.dtype.numpy())
    return np.asarray(rng.integers(0, 4, shape)).astype(spec.dtype.numpy())


def _mask(shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Ones with zeros in the tail of every row but the first, which is full."""
    mask = np.ones(shape, dtype=np.int64)
    if not shape or not mask.size:
        return mask
    length = shape[-1]
    rows = mask.reshape(-1, length)
    for row in rows[1:]:
        row[int(rng.integers(1, length + 1)) :] = 0
    return mask


def bindings(specs: Sequence[InputSpec]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Sizes for the free dimensions: those to try, and those to fall back to."""
    names = list(
        dict.fromkeys(
            name for spec in specs for dim in spec.shape if not isinstance(dim, int) for name in sorted(symbols(dim))
        )
    )
    if not names:
        return [{}], []
    wanted = [{name: row[min(index, 3)] for index, name in enumerate(names)} for row in SIZES]
    fallback = [{name: row[min(index, 3)] for index, name in enumerate(names)} for row in FALLBACK_SIZES]
    return wanted, fallback


def read_inputs(path: str | Path, names: Sequence[str]) -> list[Inputs]:
    """The user's own inputs: an .npz file, a folder of them, or a folder of `test_data_set_N` with `input_N.pb` files.

    Raises VerificationError naming the file that cannot be used.
    """
    path = Path(path)
    if path.is_file():
        return [_read_npz(path, names)]
    if not path.is_dir():
        raise VerificationError(f"{path}: no such file or folder; inputs are .npz files or a folder of them")
    found = [_read_npz(file, names) for file in sorted(path.glob("*.npz"))]
    found += [_read_protobufs(folder, names) for folder in _data_sets(path)]
    if not found:
        raise VerificationError(f"{path}: holds neither .npz files nor input_0.pb files")
    return found


def _data_sets(path: Path) -> Iterator[Path]:
    for folder in (path, *sorted(path.glob("test_data_set_*"))):
        if (folder / "input_0.pb").is_file():
            yield folder


def _read_npz(file: Path, names: Sequence[str]) -> Inputs:
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError) as error:
        raise VerificationError(f"{file}: cannot be read as .npz: {error}") from error
    missing = [name for name in names if name not in arrays]
    if missing:
        raise VerificationError(f"{file}: lacks the input '{missing[0]}'; it holds {sorted(arrays)}")
    return arrays


def _read_protobufs(folder: Path, names: Sequence[str]) -> Inputs:
    arrays: Inputs = {}
    for index, name in enumerate(names):
        file = folder / f"input_{index}.pb"
        try:
            arrays[name] = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
        except Exception as error:
            raise VerificationError(f"{file}: cannot be read as a TensorProto: {error}") from error
    return arrays
