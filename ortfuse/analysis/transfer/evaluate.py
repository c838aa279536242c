"""Evaluates small tensors: constants with numpy, and data movement of symbolic elements.

Only operators whose result does not depend on the implementation are evaluated: data movement, comparisons, integer
arithmetic, and float operations that IEEE 754 defines exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.transfer.fact import FLOATS, INTEGERS, MAX_CONSTANT, MAX_ELEMENTS, Fact, static_shape
from ortfuse.analysis.transfer.op import Op, UnknownError
from ortfuse.analysis.transfer.slices import positions

Arrays = list[np.ndarray]
Computed = Sequence[np.ndarray | None]


def evaluate(op: Op, results: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The results, with values filled in if all operands (or their elements) are known and small."""
    first = results[0]
    size = first.size
    if size is None or size > MAX_CONSTANT or first.is_constant:
        return results
    kind = op.node.op_type
    arrays = _arrays(op)
    if arrays is not None:
        found = _numeric(op, kind, arrays, results)
    elif kind in _MOVES and size <= MAX_ELEMENTS and first.elements() is None:
        found = _symbolic(op, kind, results)
    else:
        return results
    return results if found is None else found


def _arrays(op: Op) -> Arrays | None:
    arrays: Arrays = []
    for fact in op.inputs:
        array = None if fact is None else fact.array()
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _numeric(op: Op, kind: str, arrays: Arrays, results: tuple[Fact, ...]) -> tuple[Fact, ...] | None:
    computed: Computed
    with np.errstate(all="ignore"):
        if kind in _MOVES:
            computed = _MOVES[kind](op, arrays, results)
        elif kind in ("Cast", "CastLike"):
            computed = [_cast(arrays[0], op.dtype(), results[0].dtype)]
        elif all(fact is not None and (fact.dtype in INTEGERS or fact.dtype in FLOATS) for fact in op.inputs):
            computed = [_ARITHMETIC[kind](*arrays)]
        else:
            return None
    facts: list[Fact] = []
    for fact, array in zip(results, computed, strict=False):
        if array is None or fact.dtype is None:
            return None
        array = np.asarray(array)
        if array.shape != static_shape(fact.shape) or array.dtype != fact.dtype.numpy():
            return None
        facts.append(Fact(fact.dtype, fact.shape, array=array))
    return tuple(facts)


def _symbolic(op: Op, kind: str, results: tuple[Fact, ...]) -> tuple[Fact, ...] | None:
    """Move symbolic elements as numpy objects."""
    data = range(len(op.inputs)) if kind == "Concat" else range(1)
    arrays: Arrays = []
    for index, fact in enumerate(op.inputs):
        array = None if fact is None else _objects(fact) if index in data else fact.array()
        if array is None:
            return None
        arrays.append(array)
    facts: list[Fact] = []
    for fact, array in zip(results, _MOVES[kind](op, arrays, results), strict=False):
        if array.shape != static_shape(fact.shape):
            return None
        facts.append(Fact(fact.dtype, fact.shape, tuple(array.reshape(-1).tolist())))
    return tuple(facts)


def _objects(fact: Fact) -> np.ndarray | None:
    elements, shape = fact.elements(), static_shape(fact.shape)
    if elements is None or shape is None:
        return None
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _cast(array: np.ndarray, source: ir.DataType | None, dtype: ir.DataType | None) -> np.ndarray | None:
    if not {source, dtype} <= _CONVERTED or dtype is None:
        return None
    target = dtype.numpy()
    if source == ir.DataType.DOUBLE and dtype == ir.DataType.FLOAT16:
        return None  # runtimes convert float64 to float16 through float32, which rounds twice
    if array.dtype.kind == "f" and dtype in INTEGERS and dtype != ir.DataType.BOOL:
        limits = np.iinfo(target)
        inside = np.isfinite(array) & (array > float(limits.min)) & (array < float(limits.max))
        if not inside.all():
            return None  # the result of an out-of-range conversion depends on the machine
    return array.astype(target)


_CONVERTED = {*INTEGERS, *FLOATS, ir.DataType.FLOAT16}
"""The types whose conversion is the same everywhere; that of narrower ones is not, as for zeros below zero."""


def _where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    chosen = np.where(condition, a, b)
    if chosen.dtype.kind == "f" and (np.signbit(chosen) & (chosen == 0)).any():
        return None  # the runtime adds 0 to what it chooses, which makes 0 of -0
    return chosen


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    if (b == 0).any():
        return None
    if a.dtype.kind == "i" and ((a == np.iinfo(a.dtype).min) & (b == -1)).any():
        return None  # the processor stops there
    down = a // b
    return np.asarray(down + ((down < 0) & (down * b != a)), dtype=a.dtype)  # towards zero


def _variadic(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *arrays: reduce(function, arrays)


_ARITHMETIC: dict[str, Callable[..., np.ndarray | None]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Abs": np.abs,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Sum": _variadic(np.add),
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Where": _where,
    "IsNaN": np.isnan,
}


def _reshape(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    return [arrays[0].reshape(static_shape(results[0].shape) or ())]


def _expand(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    return [np.broadcast_to(arrays[0], static_shape(results[0].shape) or ())]


def _transpose(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    return [np.transpose(arrays[0], op.attr_ints("perm"))]


def _concat(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    return [np.concatenate(arrays, axis=op.attr_int("axis", 1))]


def _gather(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    return [np.take(arrays[0], arrays[1], axis=op.attr_int("axis", 0))]


def _tile(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    return [np.tile(arrays[0], arrays[1])]


def _slice(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    if op.version < 10:
        starts, ends, axes = op.attr_ints("starts") or (), op.attr_ints("ends") or (), op.attr_ints("axes")
        steps: tuple[int, ...] = (1,) * len(starts)
    else:
        starts, ends = op.constants(1), op.constants(2)
        axes = op.constants(3) if op.has(3) else None
        steps = op.constants(4) if op.has(4) else (1,) * len(starts)
    array = arrays[0]
    index = [slice(None)] * array.ndim
    for axis, start, end, step in zip(range(len(starts)) if axes is None else axes, starts, ends, steps, strict=True):
        found = positions(array.shape[axis], start, end, step)
        if found is None:
            raise UnknownError
        index[axis] = slice(found.start, None if found.stop < 0 else found.stop, step)
    return [array[tuple(index)]]


def _split(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    axis = op.attr_int("axis", 0)
    sizes = [fact.shape[axis] if fact.shape is not None else None for fact in results]
    if not all(isinstance(size, int) for size in sizes):
        raise UnknownError
    return np.split(arrays[0], np.cumsum(np.array(sizes, dtype=np.int64))[:-1], axis=axis)


def _constant_of_shape(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    fill = op.attribute("value")
    value = np.zeros(1, dtype=np.float32) if fill is None else fill.numpy().reshape(-1)
    return [np.full(static_shape(results[0].shape) or (), value[0], dtype=value.dtype)]


_MOVES: dict[str, Callable[[Op, Arrays, tuple[Fact, ...]], Arrays]] = {
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Expand": _expand,
    "Transpose": _transpose,
    "Concat": _concat,
    "Gather": _gather,
    "Tile": _tile,
    "Slice": _slice,
    "Split": _split,
    "ConstantOfShape": _constant_of_shape,
}

EVALUATED = frozenset({*_ARITHMETIC, *_MOVES, "Cast", "CastLike"})
"""The operators of ai.onnx that `evaluate` supports."""
