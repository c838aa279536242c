"""The nodes at the start of a generator: lengths and positions from the tokens and the mask, and tables by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.generation.length_functions import RowForm
from ortfuse.generation.size_nodes import size_of
from ortfuse.ir.dims import DimLike

Array = np.ndarray[Any, Any]

RIGHT_PADDING = "attention_mask_must_have_its_padding_on_the_right"
"""The name of the node that fails otherwise, which the runtime's error states."""


class LengthNodes:
    """Nodes that use nothing but a generator's inputs and constants, and come before all others.

    Attributes:
        mask: The input attention_mask, int64 [batch, total].
        batch: [1], the number of sequences.
        length: [1], the number of new tokens.
        whole: [1], the greatest number of tokens after the run.
        past: [1], the number of tokens before the new ones.
        seqlens: int32 [batch], the tokens of each sequence after the run, less one.
        total: int32 scalar, the greatest number of tokens after the run.
        positions: int64 [batch, sequence], the positions of the new tokens.
        last: int64 [batch, 1, 1], where among the new tokens the last one of each sequence is.
    """

    def __init__(self, graph: ir.Graph, tokens: ir.Value) -> None:
        """Add the nodes for lengths and positions; `finish` puts them into the graph."""
        self._graph, self._nodes, self._count = graph, list[ir.Node](), 0
        self._tables: dict[tuple[str, bytes], ir.Value] = {}
        self._biases: dict[bytes, ir.Value] = {}
        batch = tokens.shape[0] if tokens.shape is not None else None
        self.mask = ir.Value(
            name="generator_attention_mask",
            type=ir.TensorType(ir.DataType.INT64),
            shape=ir.Shape([batch, "total_sequence_length"]),
        )
        one, minus = self.constant([1]), self.constant([-1])
        sums = self._sums()
        self.whole = total = self.add("Shape", [self.mask], start=1, end=2)
        self.batch = self.add("Shape", [tokens], start=0, end=1)
        self.length = length = self.add("Shape", [tokens], start=1, end=2)
        self.past = self.add("Sub", [total, length])
        before_last = self.add("Add", [sums, minus])
        self.seqlens = self.add("Cast", [before_last], to=ir.DataType.INT32.value)
        whole = self.add("Squeeze", [total])
        self.total = self.add("Cast", [whole], to=ir.DataType.INT32.value)
        # A prompt starts at 0 in every sequence; later each one goes on where its own tokens end.
        is_prompt = self.add("Equal", [total, length])
        starts = self.add("Where", [is_prompt, self.constant([0]), self.add("Sub", [sums, length])])
        zero, step = self.constant(0), self.constant(1)
        count = self.add("Range", [zero, self.add("Squeeze", [length]), step])
        self.positions = self.add("Add", [self.add("Unsqueeze", [starts, one]), count])
        self._keys = self.add("Range", [zero, whole, step])
        self.last = self.add("Unsqueeze", [self.add("Sub", [before_last, starts]), self.constant([1, 2])])

    def _sums(self) -> ir.Value:
        """[batch], how many tokens each sequence has; a run fails if a row of the mask starts with padding.

        Lengths tell nothing of padding on the left, and the result would be wrong: the index is out of bounds then.
        """
        one = self.constant([1])
        sums = self.add("ReduceSum", [self.mask, one], keepdims=1)
        starts_with_padding = self.add("Sub", [one, self.add("Gather", [self.mask, self.constant([0])], axis=1)])
        checked = self.node("GatherElements", [sums, starts_with_padding], {"axis": 1})
        checked.name = RIGHT_PADDING
        return self.add("Squeeze", [checked.outputs[0], one])

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        before: ir.Node | None = None,
    ) -> ir.Node:
        """A new node with names of its own; at the start of the graph, or before another node."""
        self._count += 1
        made = ir.node(op_type, inputs, dict(attributes or {}), domain=domain, num_outputs=outputs)
        made.name = f"generator_{op_type}_{self._count}"
        for number, value in enumerate(made.outputs):
            value.name = f"{made.name}_{number}"
        if before is None:
            self._nodes.append(made)
        else:
            self._graph.insert_before(before, made)
        return made

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """The output of a new node at the start of the graph."""
        return self.node(op_type, inputs, attributes).outputs[0]

    def constant(self, data: Array | int | Sequence[int]) -> ir.Value:
        """A constant; integers are int64."""
        array = data if isinstance(data, np.ndarray) else np.array(data, np.int64)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._tables:
            self._count += 1
            name = f"generator_constant_{self._count}"
            tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
            )
            self._graph.register_initializer(value)
            self._tables[key] = value
        return self._tables[key]

    def ints(self, numbers: int | Sequence[int]) -> ir.Value:
        """A constant of int64."""
        return self.constant(numbers)

    def size(self, size: DimLike, known: Mapping[str, ir.Value]) -> ir.Value | None:
        """[1], a size by its formula; `None` if one of its symbols is not known."""
        return size_of(size, known, self)

    def rows(self, form: RowForm, kind: ir.DataType, *, one_for_all: bool) -> ir.Value:
        """The rows of the new tokens: [batch, 1, ..., sequence, ...], or without the batch, of the first sequence, for all."""
        positions = self.positions
        if one_for_all:
            positions = self.add("Gather", [positions, self.constant(0)], axis=0)
        if form.counts:
            found = positions if kind == ir.DataType.INT64 else self.add("Cast", [positions], to=int(kind))
        else:
            found = self.add("Gather", [self.constant(form.table), positions], axis=0)
        between = list(range(1, form.axis))
        return self.add("Unsqueeze", [found, self.constant(between)]) if between else found

    def bias(self, by_distance: Array, kind: ir.DataType) -> ir.Value:
        """[batch, heads or 1, sequence, total], what is added at the distance of each new token and key."""
        key = by_distance.tobytes()
        if key not in self._biases:
            queries = self.add("Unsqueeze", [self.positions, self.constant([2])])
            distance = self.add("Sub", [queries, self._keys])
            kept = self.add("Clip", [distance, self.constant(0), self.constant(by_distance.shape[1] - 1)])
            found = self.add("Gather", [self.constant(by_distance.astype(kind.numpy())), kept], axis=1)
            self._biases[key] = self.add("Transpose", [found], perm=[1, 0, 2, 3])
        return self._biases[key]

    def causal_mask(self, kind: ir.DataType) -> ir.Value:
        """[batch, 1, sequence, total], whether each new token sees a key, or 0 where it does and the lowest number elsewhere."""
        queries = self.add("Unsqueeze", [self.positions, self.constant([1, 3])])
        seen = self.add("LessOrEqual", [self._keys, queries])
        if kind == ir.DataType.BOOL:
            return seen
        numbers = (np.zeros((), kind.numpy()), np.array(np.finfo(kind.numpy()).min))
        return self.add("Where", [seen, *(self.constant(number) for number in numbers)])

    def finish(self) -> None:
        """Put the nodes before all others of the graph."""
        self._graph.insert_before(self._graph[0], self._nodes)
