"""Row-wise nodes: each row of their outputs, that of one token, is computed from the same row of their operands.

    [batch, sequence, hidden] = MatMul([batch, sequence, hidden], [hidden, hidden])
    [batch, sequence, hidden] = Add([batch, sequence, hidden], [sequence, hidden])      a row of positions for each token
    [batch, sequence, heads, size] = Reshape([batch, sequence, hidden], [0, 0, heads, size])

The first axes are those of the tokens: [batch, sequence, ...], or [batch*sequence, ...]. Packed, they are [1, tokens, ...], or
[tokens, ...]: ranks stay, and so do attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Read, axis
from ortfuse.analysis.node_parameters import UNKNOWN, attribute_value, parameter
from ortfuse.ir.dims import DimLike, is_cut_of
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, MICROSOFT, REDUCES, RESHAPES, has

Role = Literal["rows", "positions", "sequences", "whole"]
"""How an operand is read: a row for each token, for each position, for each sequence, or all of it for every token."""


@dataclass(frozen=True)
class Batch:
    """The sizes of a padded batch."""

    sequences: DimLike
    length: DimLike

    def lead(self, shape: Sequence[DimLike] | None) -> int:
        """The number of leading axes that are those of tokens; 0 if there are none."""
        if shape is None:
            return 0
        if len(shape) >= 2 and (shape[0], shape[1]) == (self.sequences, self.length):
            return 2
        return 1 if len(shape) >= 2 and shape[0] == self.sequences * self.length else 0


def is_as_long(dim: DimLike, result: DimLike) -> bool:
    """Whether a size that is broadcast to another one is the same, in every run that succeeds."""
    return dim == result or is_cut_of(dim, result, least=2)


@dataclass(frozen=True)
class RowNode:
    """A row-wise node.

    Attributes:
        node: The node.
        roles: How it reads each operand, `None` for absent ones.
        is_costly: Whether it computes so much that it pays to compute it for packed tokens alone.
        target: The shape behind the axes of the tokens, for a Reshape.
    """

    node: ir.Node
    roles: tuple[Role | None, ...]
    is_costly: bool = False
    target: tuple[int, ...] | None = None


ATTENTION: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("", "Attention"): (0, 1, 2),
    (MICROSOFT, "MultiHeadAttention"): (0, 1, 2),
}
"""The operators of attention, with their operands of shape [batch, sequence, hidden]."""

_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_SKIP_NORMALIZATIONS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_ALONG_AXIS = frozenset({"Softmax", "LogSoftmax", "Concat", "Split"})
_SOFTMAX_IS_ALONG_AXIS = 13


class RowOperators:
    """Recognise row-wise nodes of a batch."""

    def __init__(self, facts: Facts, batch: Batch) -> None:
        self._facts, self._batch = facts, batch

    def find(self, node: ir.Node) -> RowNode | None:
        """The node as a row-wise one; `None` if it is not known to be."""
        leads = {self._batch.lead(self._facts.shape(output)) for output in node.outputs if output.name != ""}
        if len(leads) != 1 or 0 in leads:
            return None
        lead = leads.pop()
        if has(node, ELEMENTWISE | BROADCASTS):
            return self._broadcasting(node, lead)
        kind = _KINDS.get((node.domain, node.op_type))
        return None if kind is None else kind(self, node, lead)

    def _role(self, value: ir.Value, result: Sequence[DimLike], lead: int) -> Role | None:
        """How an operand that is broadcast to the result is read; `None` if that is not known."""
        shape = self._facts.shape(value)
        if shape is None or len(shape) > len(result):
            return None
        more = len(result) - len(shape)
        first = [shape[number - more] if number >= more else 1 for number in range(lead)]
        if first == list(result[:lead]):
            return "rows"
        if all(dim == 1 for dim in first):
            return "whole"
        if lead == 2 and first[0] == 1 and is_as_long(first[1], self._batch.length):
            return "positions"
        return "sequences" if lead == 2 and first[0] == self._batch.sequences and first[1] == 1 else None

    def _roles(self, node: ir.Node, result: ir.Value, lead: int) -> tuple[Role | None, ...] | None:
        """How all operands are read, which are broadcast; `None` if that of one is not known."""
        shape = self._facts.shape(result)
        if shape is None:
            return None
        found = [None if value is None else self._role(value, shape, lead) for value in node.inputs]
        known = all(role is not None or value is None for role, value in zip(found, node.inputs, strict=True))
        return tuple(found) if known and "rows" in found else None

    def _broadcasting(self, node: ir.Node, lead: int) -> RowNode | None:
        roles = self._roles(node, node.outputs[0], lead)
        return None if roles is None else RowNode(node, roles)

    def _is_rows(self, value: ir.Value | None, lead: int) -> bool:
        return value is not None and self._batch.lead(self._facts.shape(value)) == lead

    def _product(self, node: ir.Node, lead: int) -> RowNode | None:
        """A product of each row and a matrix."""
        if not self._is_rows(node.inputs[0], lead) or self._facts.rank(node.inputs[1]) != 2:
            return None
        if node.op_type == "FusedMatMul":
            flags = ("transA", "transBatchA", "transBatchB")
            if any(attribute_value(node, name, self._facts) not in (0, None) for name in flags):
                return None
        if node.op_type == "FusedMatMul" and len(self._facts.shape(node.inputs[0]) or ()) - lead != 1:
            return None
        return RowNode(node, ("rows", "whole"), is_costly=True)

    def _gemm(self, node: ir.Node, lead: int) -> RowNode | None:
        """A product of each row and a matrix, and a sum."""
        if lead != 1 or not self._is_rows(node.inputs[0], 1) or attribute_value(node, "transA", self._facts) != 0:
            return None
        roles: list[Role | None] = ["rows", "whole"]
        if len(node.inputs) > 2:
            added, shape = node.inputs[2], self._facts.shape(node.outputs[0])
            role = None if added is None or shape is None else self._role(added, shape, lead)
            if added is not None and role is None:
                return None
            roles.append(role)
        return RowNode(node, tuple(roles), is_costly=True)

    def _quantized_product(self, node: ir.Node, lead: int) -> RowNode | None:
        """A product of each row and a matrix of few bits, which are all constants."""
        if not self._is_rows(node.inputs[0], lead):
            return None
        if not all(value is None or self._facts.is_const(value) for value in node.inputs[1:]):
            return None
        rest: list[Role | None] = [None if value is None else "whole" for value in node.inputs[1:]]
        return RowNode(node, ("rows", *rest), is_costly=True)

    def _normalization(self, node: ir.Node, lead: int) -> RowNode | None:
        """Normalise each row by itself."""
        rank, first = self._facts.rank(node.inputs[0]), parameter(node, "axis", self._facts)
        if rank is None or not isinstance(first, int) or first < lead or not self._is_rows(node.inputs[0], lead):
            return None
        most = rank - first
        for value in node.inputs[1:]:
            if value is not None and (self._facts.rank(value) is None or (self._facts.rank(value) or 0) > most):
                return None
        rest: list[Role | None] = [None if value is None else "whole" for value in node.inputs[1:]]
        return RowNode(node, ("rows", *rest), is_costly=True)

    def _skip_normalization(self, node: ir.Node, lead: int) -> RowNode | None:
        """Add two operands and normalise each row by itself."""
        shape = self._facts.shape(node.outputs[0])
        if shape is None or not self._is_rows(node.inputs[0], lead) or not self._is_rows(node.inputs[1], lead):
            return None
        if len(shape) - lead != 1:
            return None
        rest = node.inputs[2:]
        if any(value is not None and self._facts.rank(value) != 1 for value in rest):
            return None
        return RowNode(node, ("rows", "rows", *(None if value is None else "whole" for value in rest)), is_costly=True)

    def _along_axis(self, node: ir.Node, lead: int) -> RowNode | None:
        """Work along one axis that is not one of the tokens."""
        along = parameter(node, "axis", self._facts)
        if not isinstance(along, int) or along < lead:
            return None
        if node.op_type.endswith("Softmax") and self._facts.version(node) < _SOFTMAX_IS_ALONG_AXIS:
            return None
        data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        if not all(self._is_rows(value, lead) for value in data):
            return None
        rest: list[Role | None] = ["whole"] * (len(node.inputs) - len(data))
        rows: list[Role | None] = ["rows"] * len(data)
        return RowNode(node, (*rows, *rest))

    def _reduction(self, node: ir.Node, lead: int) -> RowNode | None:
        """Reduce along axes that are not those of the tokens."""
        reduced = parameter(node, "axes", self._facts)
        if not isinstance(reduced, tuple) or not self._is_rows(node.inputs[0], lead):
            return None
        numbers = [number for number in reduced if isinstance(number, int)]
        if not numbers or len(numbers) != len(reduced) or min(numbers) < lead:
            return None
        rest: list[Role | None] = ["whole"] * (len(node.inputs) - 1)
        return RowNode(node, ("rows", *rest))

    def _gather(self, node: ir.Node, lead: int) -> RowNode | None:
        """Look up a row of a table for each token, or take elements within each row."""
        along, (data, index) = parameter(node, "axis", self._facts), node.inputs
        if not isinstance(along, int) or data is None or index is None:
            return None
        if along == 0 and self._is_rows(index, lead):
            floats = (self._facts.dtype(data) or ir.DataType.INT64).is_floating_point()
            return RowNode(node, ("whole", "rows"), is_costly=floats)
        if along >= lead and self._is_rows(data, lead):
            return RowNode(node, ("rows", "whole"))
        return None

    def _slice(self, node: ir.Node, lead: int) -> RowNode | None:
        """Take elements within each row."""
        taken = parameter(node, "axes", self._facts)
        if len(node.inputs) < 4 or not isinstance(taken, tuple) or not self._is_rows(node.inputs[0], lead):
            return None
        numbers = [number for number in taken if isinstance(number, int)]
        if len(numbers) != len(taken) or min(numbers, default=0) < lead:
            return None
        rest: list[Role | None] = ["whole"] * (len(node.inputs) - 1)
        return RowNode(node, ("rows", *rest))

    def _transpose(self, node: ir.Node, lead: int) -> RowNode | None:
        """Transpose each row."""
        perm = parameter(node, "perm", self._facts)
        if perm is UNKNOWN or perm is None or list(perm[:lead]) != list(range(lead)):
            return None
        if not self._is_rows(node.inputs[0], lead):
            return None
        return RowNode(node, ("rows",))

    def _reshape(self, node: ir.Node, lead: int) -> RowNode | None:
        """Reshape each row."""
        value, result = node.inputs[0], node.outputs[0]
        shape, before = self._facts.shape(result), self._batch.lead(self._facts.shape(value))
        behind = None if shape is None else [dim for dim in shape[lead:] if isinstance(dim, int)]
        if value is None or shape is None or behind is None or not before or len(behind) != len(shape) - lead:
            return None
        if 0 in behind:
            return None  # in a new shape, 0 stands for the size before
        found = self._facts.index_map(result, [value])
        if found is None or not isinstance(found.element, Read) or found.element.value is not value:
            return None
        index = found.element.index
        if self._row(index, before) != self._row([axis(number) for number in range(len(shape))], lead):
            return None
        rest: list[Role | None] = [None if other is None else "whole" for other in node.inputs[1:]]
        return RowNode(node, ("rows", *rest), target=tuple(behind))

    def _row(self, index: Sequence[DimLike], lead: int) -> DimLike:
        """The number of the row of a position among those of all tokens."""
        return index[0] * self._batch.length + index[1] if lead == 2 else index[0]


Kind = Callable[[RowOperators, ir.Node, int], "RowNode | None"]

_KINDS: Mapping[tuple[str, str], Kind] = {
    ("", "MatMul"): RowOperators._product,
    (MICROSOFT, "FusedMatMul"): RowOperators._product,
    ("", "Gemm"): RowOperators._gemm,
    (MICROSOFT, "MatMulNBits"): RowOperators._quantized_product,
    ("", "Gather"): RowOperators._gather,
    ("", "Slice"): RowOperators._slice,
    ("", "Transpose"): RowOperators._transpose,
    **{("", name): RowOperators._normalization for name in _NORMALIZATIONS},
    **{(MICROSOFT, name): RowOperators._skip_normalization for name in _SKIP_NORMALIZATIONS},
    **{("", name): RowOperators._along_axis for name in _ALONG_AXIS},
    **{("", name): RowOperators._reduction for name in REDUCES},
    **{("", name): RowOperators._reshape for name in RESHAPES},
}
