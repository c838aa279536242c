"""Caches of a fixed length into which each step writes its keys and values, and the operators that write.

    output = buffer, but output[..., past + i, ...] = new[..., i, ...]    for the new tokens i

The operators are ScatterElements, ScatterND, TensorScatter, and Where for one new token. The places where they write follow from
the lengths of a step, and are evaluated for each of them (`writes_at_the_end`), whatever nodes compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.positional_values import Step

Array = np.ndarray[Any, Any]
Sizes = Sequence[int]


@dataclass(frozen=True)
class WrittenBuffer:
    """A cache of a fixed length.

    Attributes:
        past: The input.
        present: The output of the same sizes.
        node: The node that writes; all between it and the input and the output are Transpose and Identity.
        operand: The number of the node's operand that has the elements of the input.
        new: The operand that is written.
        places: The operand that says where; of ScatterElements without an Expand that repeats it for all other axes.
        axis: The axis of the tokens in the node's output.
        perm: The axis of the input for each axis of the node's output.
    """

    past: ir.Value
    present: ir.Value
    node: ir.Node
    operand: int
    new: ir.Value
    places: ir.Value
    axis: int
    perm: tuple[int, ...]

    @property
    def past_axis(self) -> int:
        """The axis of the tokens in the input."""
        return self.perm[self.axis]

    @property
    def length(self) -> int:
        """How many tokens the buffer holds."""
        size = self.past.shape[self.past_axis] if self.past.shape is not None else None
        assert isinstance(size, int)
        return size


def written_buffers(graph: ir.Graph, facts: Facts) -> Iterator[WrittenBuffer]:
    """Yield the inputs that an operator writes something into and an output hands on."""
    for past in graph.inputs:
        shape, kind = facts.shape(past), facts.dtype(past)
        if past.name in graph.initializers or shape is None or kind is None or not kind.is_floating_point():
            continue
        found = next(_writes(past, facts), None) if len(shape) > 2 else None
        if found is not None:
            yield found


def _writes(past: ir.Value, facts: Facts) -> Iterator[WrittenBuffer]:
    rank = len(facts.shape(past) or ())
    for buffer, perm in _moved(past, tuple(range(rank))):
        for use in buffer.uses():
            for operands in _operands(use.node, use.idx, facts):
                written = use.node.outputs[0]
                new, places, axis = operands
                length = (facts.shape(past) or ())[perm[axis]]
                if not isinstance(length, int) or facts.rank(new) != rank:
                    continue
                for present, back in _moved(written, perm):
                    if present.is_graph_output() and back == tuple(range(rank)):
                        yield WrittenBuffer(past, present, use.node, use.idx, new, places, axis, perm)


def _moved(value: ir.Value, perm: tuple[int, ...]) -> Iterator[tuple[ir.Value, tuple[int, ...]]]:
    """A value and those with its elements in another order of axes, each with the first value's axis for each of its own."""
    yield value, perm
    for use in value.uses():
        node = use.node
        if (node.domain, node.op_type) == ("", "Identity"):
            yield from _moved(node.outputs[0], perm)
        elif (node.domain, node.op_type) == ("", "Transpose"):
            order = node.attributes.get_ints("perm", None) or range(len(perm))[::-1]
            yield from _moved(node.outputs[0], tuple([perm[number] for number in order]))


def _operands(node: ir.Node, index: int, facts: Facts) -> Iterator[tuple[ir.Value, ir.Value, int]]:
    """The value that a node writes into its operand of a number, the operand that says where, and the axis; none for others."""
    rank = facts.rank(node.outputs[0]) or facts.rank(node.inputs[index])
    if node.domain or rank is None:
        return
    given = list(node.inputs)
    if node.op_type in ("ScatterElements", "ScatterND"):
        places, new = given[1:3]
        if index or places is None or new is None or node.attributes.get_string("reduction", "none") != "none":
            return
        shape, whole = facts.shape(new), facts.shape(node.outputs[0])
        differ = [number for number in range(rank) if shape and whole and shape[number] != whole[number]]
        if len(differ) != 1:
            return
        is_by_element = node.op_type == "ScatterElements"
        if is_by_element and node.attributes.get_int("axis", 0) % rank != differ[0]:
            return
        yield new, _unrepeated(places) if is_by_element else places, differ[0]
    elif node.op_type == "TensorScatter":
        new, places = given[1], given[2] if len(given) > 2 else None
        is_linear = node.attributes.get_string("mode", "linear") == "linear"
        if not index and new is not None and places is not None and is_linear:
            yield new, places, node.attributes.get_int("axis", -2) % rank
    elif node.op_type == "Where" and index in (1, 2):
        condition, new = given[0], given[3 - index]
        shape, where = facts.shape(new), facts.shape(condition)
        open_axes = [number for number, size in enumerate(where or ()) if size != 1]
        if condition is None or new is None or shape is None or where is None or len(open_axes) != 1:
            return
        axis = open_axes[0] + rank - len(where)
        if len(shape) == rank and shape[axis] == 1:
            yield new, condition, axis


def _unrepeated(value: ir.Value) -> ir.Value:
    """The value that an Expand repeats, or the value itself."""
    node = value.producer()
    source = node.inputs[0] if node is not None and (node.domain, node.op_type) == ("", "Expand") else None
    return value if source is None else source


def writes_at_the_end(one: WrittenBuffer, places: Array, whole: Sizes, step: Step) -> bool:
    """Whether a node writes the new tokens behind those of the past in a step.

    Args:
        one: The buffer.
        places: The operand that says where, in this step.
        whole: The sizes of the node's output.
        step: The step.
    """
    return _CHECKS[one.node.op_type](one, places, whole, step)


def _elements(one: WrittenBuffer, places: Array, whole: Sizes, step: Step) -> bool:
    sizes = (*whole[: one.axis], step.length, *whole[one.axis + 1 :])
    is_whole = all(size in (1, other) for size, other in zip(places.shape[::-1], sizes[::-1], strict=False))
    return is_whole and bool((places == _row(step, len(whole), one.axis)).all())


def _slices(one: WrittenBuffer, places: Array, whole: Sizes, step: Step) -> bool:
    depth = places.shape[-1]
    sizes = (*whole[: one.axis], step.length, *whole[one.axis + 1 :])[:depth]
    if one.axis >= depth or places.shape != (*sizes, depth):
        return False
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), axis=-1)
    grid[..., one.axis] += step.past
    return bool((places == grid).all())


def _starts(_: WrittenBuffer, places: Array, whole: Sizes, step: Step) -> bool:
    return places.shape == (whole[0],) and bool((places == step.past).all())


def _one_of_all(one: WrittenBuffer, places: Array, whole: Sizes, step: Step) -> bool:
    chosen = ~places.reshape(-1) if one.operand == 1 else places.reshape(-1)
    return step.length == 1 and bool((chosen == (np.arange(whole[one.axis]) == step.past)).all())


def _row(step: Step, rank: int, axis: int) -> Array:
    sizes = [1] * rank
    sizes[axis] = step.length
    return np.arange(step.past, step.total).reshape(sizes)


_CHECKS: dict[str, Callable[[WrittenBuffer, Array, Sizes, Step], bool]] = {
    "ScatterElements": _elements,
    "ScatterND": _slices,
    "TensorScatter": _starts,
    "Where": _one_of_all,
}
