"""Near misses that change constants: other numbers, ranks or element types, or values known only at run time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.verification.rule_tests.instance import Instance
from ortfuse.verification.rule_tests.near_miss_inputs import HIDING

Array = np.ndarray[Any, Any]
Change = Callable[[Instance], bool]

_SCALARS: dict[str, Callable[[Array], Any]] = {
    "another": lambda c: c * 1.25 + (0.25 if not c.any() else 0.0),
    "0": lambda c: np.zeros_like(c),
    "1": lambda c: np.ones_like(c),
    "negative": lambda c: -c,
    "-inf": lambda c: np.full_like(c, -np.inf),
    "inf": lambda c: np.full_like(c, np.inf),
    "NaN": lambda c: np.full_like(c, np.nan),
    "the lowest number": lambda c: np.full_like(c, np.finfo(np.float64).min),
    "the lowest number of float32": lambda c: np.full_like(c, np.finfo(np.float32).min),
    "-1e9": lambda c: np.full_like(c, -1e9),
    "-1e4": lambda c: np.full_like(c, -1e4),
    "-10": lambda c: np.full_like(c, -10.0),
    "1e4": lambda c: np.full_like(c, 1e4),
    "1e-6 more": lambda c: c + 1e-6,
}
"""The replacements for a floating-point constant of one element."""

_FEW = 16
"""The longest integer tensor whose elements are each replaced; longer ones are not parameters."""

_RELATIVE = {"1e-6 of itself more": 1.0 + 1e-6, "1e-3 of itself more": 1.0 + 1e-3}

_VECTORS: dict[str, Callable[[Array], Any]] = {
    "all 0": lambda c: np.zeros_like(c),
    "negative": lambda c: -c,
    "other numbers": lambda c: c[::-1] * 1.25 + 0.25,
    "1e5 times as large": lambda c: c * 1e5,
}


def number_changes(
    instance: Instance, names: Sequence[str], facts: Facts, scalars_only: bool = False, at_run_time: bool = True
) -> Iterator[tuple[str, Change]]:
    """Changes of the instance's initializers, each with a short description."""
    graph = instance.model.graph
    positions = dict(zip(graph, names, strict=True))
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in graph.initializers.items():
        if value.const_value is None or not value.uses() or name.startswith(HIDING):
            continue
        use = next(iter(value.uses()))
        where = f"input {use.idx} of {positions[use.node]}{_before(use.node)}"
        array = value.const_value.numpy()
        with np.errstate(all="ignore"):
            others = list(_others(array, scalars_only, _axis_of(value, facts)))
            if not scalars_only:
                others += _spread(value, array, facts, next(instance.bindings()))
        for text, other in others:
            yield f"{where} is {text}", _set(name, other)
            if at_run_time and other.dtype.kind == "i" and other.shape == array.shape:
                yield f"{where} is {text}, known at run time only", _given_at_run_time(name, other)
        if not scalars_only:
            yield f"{where} is known at run time only", _given_at_run_time(name)
            if array.dtype.kind == "i" and 0 < array.size <= _FEW:
                alike[str(array.tolist())].append(name)
    for same in alike.values():
        array = graph.initializers[same[0]].const_value.numpy()  # type: ignore[union-attr]
        for text, other in _other_integers(array) if len(same) > 1 else ():
            yield f"all {len(same)} {array.tolist()} are {text}", _set_all(same, other)


def _before(node: ir.Node) -> str:
    """The consumer of a node's result, in words: a number may be right before one operator and wrong before another."""
    users = sorted({use.node.op_type for output in node.outputs for use in output.uses()})
    return f" before {' and '.join(users)}" if users else ""


def _others(array: Array, scalars_only: bool, axis: int | None) -> Iterator[tuple[str, Array]]:
    if array.dtype.kind == "f" and array.size == 1:
        yield from _other_scalars(array, scalars_only, axis)
    elif scalars_only:
        return
    elif array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        yield from _other_arrays(array)
    elif array.dtype == np.bool_:
        yield "all flipped", ~array
        if array.size > 1:
            first = np.concatenate([~array.reshape(-1)[:1], array.reshape(-1)[1:]])
            yield "flipped in its first element", first.reshape(array.shape)
        yield from _other_layouts(array)
    elif array.size <= _FEW:
        yield from _other_integers(array)


def _other_scalars(array: Array, scalars_only: bool, axis: int | None) -> Iterator[tuple[str, Array]]:
    wide = array.astype(np.float64)
    for text, change in _SCALARS.items():
        if text == "the lowest number":
            yield text, np.full_like(array, np.finfo(array.dtype).min)
        elif text != "1e-6 more" or array.dtype == np.float32:
            yield text, np.asarray(change(wide)).astype(array.dtype)
    if array.dtype == np.float32:
        # In float64 the matcher accepts a number written with few decimals as the same number.
        for text, factor in _RELATIVE.items():
            yield text, (wide * factor).astype(array.dtype)
    if scalars_only:
        return
    number = array.reshape(-1)
    for rank in (1, 3, 5):
        if rank != array.ndim:
            yield f"of rank {rank}", number.reshape([1] * rank)
    yield "two numbers along a new axis", np.stack([number, number * 2]).astype(array.dtype)
    if axis is not None and axis > 1:
        yield "a vector of itself", np.repeat(number, axis)
        yield "a vector of other numbers", (number * np.arange(1, axis + 1)).astype(array.dtype)
    for dtype in (np.float64, np.float16, np.int64):
        if array.dtype != dtype and np.isfinite(wide).all():
            yield f"of {np.dtype(dtype).name}", array.astype(dtype)


def _other_arrays(array: Array) -> Iterator[tuple[str, Array]]:
    for text, change in _VECTORS.items():
        yield text, np.asarray(change(array)).astype(array.dtype)
    for number in (0.0, -1.0, np.inf):
        changed = array.copy()
        changed.reshape(-1)[-1:] = number
        yield f"{number:g} in its last element", changed
    yield from _other_layouts(array)


def _other_layouts(array: Array) -> Iterator[tuple[str, Array]]:
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            yield f"of size 1 along axis {axis}", np.take(array, [0], axis)
            yield f"shorter along axis {axis}", np.take(array, range(array.shape[axis] - 1), axis)
    yield "of rank 1 more", array[None]
    yield "repeated along a new axis", np.stack([array, array])
    if array.size:
        yield "of rank 5", array.reshape([1] * (5 - array.ndim) + list(array.shape)) if array.ndim < 5 else array[0]
    if array.ndim == 1:
        yield "a column", array[:, None]
        yield "a column of rank 3", array[:, None, None]
    if array.size:
        yield "one number", np.asarray(array.reshape(-1)[0])


def _other_integers(array: Array) -> Iterator[tuple[str, Array]]:
    flat, limits = array.reshape(-1), np.iinfo(array.dtype)
    for index in range(array.size):
        found = int(flat[index])
        for number in {found + 1, 0, -1, found * 2 if abs(found) < 1 << 40 else 2}:
            if number != found and limits.min <= number <= limits.max:
                changed = flat.copy()
                changed[index] = number
                yield f"{changed.tolist()}", changed.reshape(array.shape)
    if array.ndim == 1 and array.size > 1:
        exchanged = np.concatenate([flat[:-2], flat[:-3:-1]])
        for text, changed in (("with its last two exchanged", exchanged),
                              ("reversed", flat[::-1].copy()), ("without its last", flat[:-1]),
                              ("without its first", flat[1:])):  # fmt: skip
            yield text, changed
    if array.ndim == 1:
        for number in (0, 1, -1, 2) if limits.min < 0 else (0, 1, 2):
            yield f"with {number} before it", np.concatenate([np.asarray([number], array.dtype), flat])
            yield f"with {number} after it", np.concatenate([flat, np.asarray([number], array.dtype)])


def _spread(value: ir.Value, array: Array, facts: Facts, sizes: Mapping[str, int]) -> Iterator[tuple[str, Array]]:
    """Constants with different numbers along an axis of size 1, as many as the other operand has there."""
    if array.dtype.kind != "f":
        return
    operands = (operand for use in value.uses() for operand in use.node.inputs if operand is not value)
    for shape in filter(None, map(facts.shape, operands)):
        for axis in range(-min(array.ndim, len(shape)), 0):
            dim = shape[axis]
            size = dim if isinstance(dim, int) else sizes.get(str(dim), 1)
            if array.shape[axis] == 1 < size:
                factors = np.arange(1, size + 1).reshape([size, *[1] * (-axis - 1)])
                yield f"another along axis {axis}", (array * factors).astype(array.dtype)


def _axis_of(value: ir.Value, facts: Facts) -> int | None:
    """The size of the other operand's last axis, if it is known."""
    for use in value.uses():
        for operand in use.node.inputs:
            shape = None if operand is value else facts.shape(operand)
            if shape and isinstance(shape[-1], int):
                return shape[-1]
    return None


def _set(name: str, array: Array) -> Change:
    def change(instance: Instance) -> bool:
        value = instance.model.graph.initializers[name]
        tensor = ir.Tensor(array, name=name)
        value.const_value = tensor
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape(array.shape)
        return True

    return change


def _set_all(names: Sequence[str], array: Array) -> Change:
    def change(instance: Instance) -> bool:
        done = [_set(name, array)(instance) for name in names]
        return all(done)

    return change


def _given_at_run_time(name: str, array: Array | None = None) -> Change:
    def change(instance: Instance) -> bool:
        graph = instance.model.graph
        value = graph.initializers.pop(name)
        assert value.const_value is not None
        instance.fixed[name] = value.const_value.numpy() if array is None else array
        value.shape = ir.Shape(instance.fixed[name].shape)
        value.const_value = None
        graph.inputs.append(value)
        return True

    return change
