"""Attention with a growing cache, and whether GroupQueryAttention with caches in place computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.generation.cache_operands import CacheOperand, narrow_queries
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.length_functions import MaskForm, RowForm
from ortfuse.ir.dims import minimum, upper_bound
from ortfuse.ir.traits import MICROSOFT

KERNEL_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
"""The types of caches that the kernel takes."""

_HEAD_MULTIPLE = 8
_ROTARY_MULTIPLE = 16


@dataclass(frozen=True)
class Rotation:
    """A rotary embedding that the kernel of GroupQueryAttention computes for queries and keys.

    Attributes:
        queries: The node that rotates queries.
        keys: The node that rotates keys.
        cos: [length, half of the rotated size], by position.
        sin: The same.
        interleaved: Whether neighbours are rotated rather than halves.
    """

    queries: ir.Node
    keys: ir.Node
    cos: np.ndarray
    sin: np.ndarray
    interleaved: bool


@dataclass(frozen=True)
class AttentionSite:
    """ai.onnx Attention over caches, as GroupQueryAttention takes it.

    Attributes:
        node: The node.
        kind: The element type of what is attended to.
        queries: [batch, sequence, heads * size], or [batch, heads, sequence, size].
        keys: The cache of keys, and what is appended.
        values: The cache of values, and what is appended.
        heads: Heads of queries.
        groups: Heads of keys and values.
        size: The size of a head in the buffers: a multiple of 8, up to which keys and values are padded with zeros.
        key_size: The size of a head of queries and keys.
        value_size: The size of a head of values.
        scale: The factor of scores; `None` for one over the square root of the size.
        softcap: The bound of scores; 0 for none.
        mask: What is added to scores.
        rotation: What is rotated inside; `None` if nothing is.
    """

    node: ir.Node
    kind: ir.DataType
    queries: ir.Value
    keys: CacheOperand
    values: CacheOperand
    heads: int
    groups: int
    size: int
    key_size: int
    value_size: int
    scale: float | None
    softcap: float
    mask: MaskForm
    rotation: Rotation | None

    @property
    def attributes(self) -> dict[str, int | float]:
        """The attributes of GroupQueryAttention."""
        found: dict[str, int | float] = {"num_heads": self.heads, "kv_num_heads": self.groups}
        if self.rotation is not None:
            found |= {"do_rotary": 1, "rotary_interleaved": int(self.rotation.interleaved)}
        if self.scale is not None:
            found["scale"] = self.scale
        if self.softcap:
            found["softcap"] = self.softcap
        if self.mask.window >= 0:
            found["local_window_size"] = self.mask.window
        return found

    def of_size(self, size: int) -> AttentionSite:
        """The same site with heads of another size in the buffers, a multiple of 8 and at least as large."""
        if size == self.size:
            return self
        scale = self.key_size**-0.5 if self.scale is None else self.scale
        return replace(self, size=size, scale=scale, rotation=None)


class SiteReader:
    """Reads the sites of a decoder."""

    def __init__(
        self,
        facts: Facts,
        interface: DecoderInterface,
        operands: Mapping[ir.Node, tuple[CacheOperand, CacheOperand] | str],
        masks: Mapping[ir.Value, MaskForm | str],
        rows: Mapping[ir.Value, RowForm | str],
    ) -> None:
        """Take what is known: the caches of attention, the forms of masks, and those of cosines, sines and positions."""
        self._facts, self._interface = facts, interface
        self._operands, self._masks, self._rows = operands, masks, rows

    def operands(self, node: ir.Node) -> tuple[CacheOperand, CacheOperand] | str:
        """How keys and values of attention are read from caches, or why that is not known."""
        return self._operands[node]

    def read(self, node: ir.Node) -> AttentionSite | str:
        """The site, or why it stays as it is."""
        facts = self._facts
        operands = self._operands[node]
        if isinstance(operands, str):
            return operands
        keys, values = operands
        query, key, value = (facts.shape(one) for one in node.inputs[:3])
        added = facts.shape(keys.new)
        if query is None or key is None or value is None or added is None:
            return "the shape of its queries, keys or values is unknown"
        if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
            return "its scores are used"
        if len(node.inputs) > 6 and node.inputs[6] is not None:
            return "it counts the keys that are no padding"
        if (keys.repeats, keys.keys) != (values.repeats, values.keys):
            return "its keys and values are read differently"
        heads, shared = _heads(node, query, "q_num_heads"), _heads(node, key, "kv_num_heads")
        groups = shared // keys.repeats
        length = query[1] if len(query) == 3 else query[2]
        new = added[1] if len(added) == 3 else added[2 if keys.layout is None else keys.layout[2]]
        sizes = [_size(shape, count) for shape, count in ((query, heads), (key, shared), (value, shared))]
        if not heads or not groups or not all(sizes) or sizes[0] != sizes[1]:
            return f"heads of queries and keys have different or unknown sizes: {sizes}"
        size = -(-max(sizes) // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
        if length != new:
            return f"there are {length} queries and {new} new keys"
        kind = facts.dtype(keys.new)
        if kind not in KERNEL_TYPES:
            return f"its type is {kind}, and the kernel takes FLOAT and FLOAT16"
        if node.attributes.get_int("is_causal", 0) == 1 and keys.layout is not None:
            return "it is causal from the first key on, whatever its past: its cache is appended outside of it"
        form = self._mask_of(node, length, keys)
        if isinstance(form, str):
            return form
        scale = node.attributes.get_float("scale", None)
        if scale is None and size != sizes[1]:
            scale = sizes[1] ** -0.5
        softcap = node.attributes.get_float("softcap", 0.0) or 0.0
        if scale is not None and not scale > 0:
            return f"its scale is {scale}, and the kernel takes a positive one"
        queries = self._in_a_row(node.inputs[0], heads)
        if facts.dtype(queries) != kind:  # scores of float16 were computed in float32, as the kernel does by itself
            narrowed, factor = narrow_queries(queries, facts)
            if narrowed is None:
                return f"its queries are {facts.dtype(queries)}, and its cache {kind}"
            queries = narrowed
            if factor != 1.0:
                scale = factor * (sizes[1] ** -0.5 if scale is None else scale)
        keys, values = (replace(one, new=self._appended(one, groups)) for one in (keys, values))
        _, key_size, value_size = sizes
        rotation = self._rotation_of(queries, keys.new, size) if size == key_size else None
        return AttentionSite(
            node, kind, queries, keys, values, heads, groups, size, key_size, value_size, scale, softcap, form, rotation
        )

    def _appended(self, operand: CacheOperand, groups: int) -> ir.Value:
        if operand.layout not in (None, (0, 1, 2, 3)):
            return operand.new
        return self._in_a_row(operand.new, groups)

    def _in_a_row(self, value: ir.Value | None, heads: int) -> ir.Value:
        """[batch, sequence, heads * size], of which a value [batch, heads, sequence, size] is made; else the value itself."""
        assert value is not None
        swap = value.producer()
        if swap is None or self._facts.rank(value) != 4:
            return value
        if swap.op_type == "Reshape" and swap.inputs[0] is not None:  # of one token, no axes have to be swapped
            before, after = self._facts.shape(swap.inputs[0]), self._facts.shape(value)
            assert after is not None
            is_single = before is not None and len(before) == 3 and before[:2] == (after[0], 1)
            return swap.inputs[0] if is_single and after[1:3] == (heads, 1) else value
        if swap.op_type != "Transpose":
            return value
        split = swap.inputs[0].producer() if swap.inputs[0] is not None else None
        if list(swap.attributes.get_ints("perm", [])) != [0, 2, 1, 3] or split is None or split.op_type != "Reshape":
            return value
        source = split.inputs[0]
        before, after = self._facts.shape(source), self._facts.shape(swap.inputs[0])
        is_split = before is not None and after is not None and len(before) == 3 and before[:2] == after[:2]
        return source if is_split and source is not None and after is not None and after[2] == heads else value

    def _mask_of(self, node: ir.Node, length: object, keys: CacheOperand) -> MaskForm | str:
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if mask is None and keys.seen is not None:
            past, most = self._facts.shape(keys.cache.past), upper_bound(keys.seen) if length == 1 else None
            if most is None or past is None or minimum(past[keys.cache.axis] + 1, most) != keys.seen:
                return "it sees the last keys of its cache alone, and has no mask of a window"
            return MaskForm(most)
        if mask is None:
            causal = node.attributes.get_int("is_causal", 0) == 1 or length == 1
            return MaskForm() if causal else "queries see keys after them: it has no causal mask"
        form = self._masks.get(mask, "its mask depends on more than lengths")
        return form if isinstance(form, MaskForm) else f"its mask is no causal one: {form}"

    def _rotation_of(self, query: ir.Value, key: ir.Value, size: int) -> Rotation | None:
        queries, keys = query.producer(), key.producer()
        if queries is None or keys is None or size % _ROTARY_MULTIPLE:
            return None
        first, second = self.rotary(queries), self.rotary(keys)
        if first is None or second is None:
            return None
        if first[2] != second[2] or not all(
            a.shape == b.shape and (a == b).all() for a, b in zip(first[:2], second[:2], strict=True)
        ):
            return None
        cos, sin, interleaved = first
        if 2 * cos.shape[1] % _ROTARY_MULTIPLE or 2 * cos.shape[1] > size:
            return None
        return Rotation(queries, keys, cos, sin, interleaved)

    def rotary(self, node: ir.Node) -> tuple[np.ndarray, np.ndarray, bool] | None:
        """Cosines and sines by position of a RotaryEmbedding, and whether neighbours are rotated; `None` for another node."""
        if node.op_type != "RotaryEmbedding" or node.domain not in ("", MICROSOFT):
            return None
        if node.domain == MICROSOFT:
            _, positions, cos, sin = node.inputs[:4]
            if node.attributes.get_float("scale", 1.0) != 1.0:
                return None
            start = self._facts.const(positions)
            if start is not None and start.size == 1 and start.item() == 0:
                positions = None  # the rows of the tables are those of the tokens
        else:
            _, cos, sin, positions = (*node.inputs, None)[:4]
        tables = [self._table(one, positions) for one in (cos, sin)]
        if tables[0] is None or tables[1] is None or tables[0].shape != tables[1].shape:
            return None
        return tables[0], tables[1], node.attributes.get_int("interleaved", 0) == 1

    def _table(self, value: ir.Value | None, positions: ir.Value | None) -> np.ndarray | None:
        if value is None:
            return None
        if positions is not None:
            counted, constant = self._rows.get(positions), self._facts.const(value)
            if constant is None or not isinstance(counted, RowForm) or counted.table.ndim != 1:
                return None
            if counted.table.max(initial=0) >= len(constant):
                return None
            return np.ascontiguousarray(constant[counted.table])
        form = self._rows.get(value)
        return form.table if isinstance(form, RowForm) and form.table.ndim == 2 else None


def _heads(node: ir.Node, shape: Shape, attribute: str) -> int:
    if len(shape) == 4:
        return shape[1] if isinstance(shape[1], int) else 0
    return node.attributes.get_int(attribute, 0) or 0


def _size(shape: Shape, heads: int) -> int:
    if len(shape) == 4:
        return shape[3] if isinstance(shape[3], int) else 0
    return shape[2] // heads if heads and isinstance(shape[2], int) else 0
