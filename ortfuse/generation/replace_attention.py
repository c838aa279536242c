"""GroupQueryAttention in the place of attention over caches that grow."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.attention_sites import AttentionSite
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.ir.traits import MICROSOFT


class AttentionReplacer:
    """Makes the nodes of sites."""

    def __init__(self, facts: Facts, lengths: LengthNodes) -> None:
        """Take the facts of the decoder, and the nodes of lengths."""
        self.facts, self.lengths = facts, lengths

    def replace(self, site: AttentionSite) -> list[tuple[ir.Value, ir.Value]]:
        """Put GroupQueryAttention before the node of a site; the old outputs, each with the new one in its place."""
        node, lengths, kind = site.node, self.lengths, site.kind
        inputs = [site.queries, site.keys.new, site.values.new]
        tables: list[ir.Value | None] = [None, None]
        if site.rotation is not None:
            rotation = site.rotation
            inputs[:2] = [_given(rotation.queries), _given(rotation.keys)]
            tables = [lengths.constant(rotation.cos), lengths.constant(rotation.sin)]
        layouts = (None, site.keys.layout, site.values.layout)
        inputs = [self._in_a_row(value, layout, node) for value, layout in zip(inputs, layouts, strict=True)]
        sizes = ((site.heads, site.key_size), (site.groups, site.key_size), (site.groups, site.value_size))
        inputs = [self._padded(value, *one, site.size, node) for value, one in zip(inputs, sizes, strict=True)]
        bias = None if site.mask.bias is None else lengths.bias(site.mask.bias, kind)
        sink = None if site.mask.sink is None else self._sinks(site, kind)
        pasts = [site.keys.cache.past, site.values.cache.past]
        given: list[ir.Value | None] = [*inputs, *pasts, lengths.seqlens, lengths.total, *tables, None, bias, sink]
        while given[-1] is None:
            given.pop()
        made = lengths.node("GroupQueryAttention", given, site.attributes, domain=MICROSOFT, outputs=3, before=node)
        result, declared = made.outputs[0], self.facts.dtype(node.outputs[0])
        if declared not in (None, kind):
            result = lengths.node("Cast", [result], {"to": int(declared)}, before=node).outputs[0]
        is_split = self.facts.rank(node.inputs[0]) == 4
        if is_split or site.value_size != site.size:
            split = lengths.constant([0, 0, site.heads, site.size])
            result = lengths.node("Reshape", [result, split], before=node).outputs[0]
        if site.value_size != site.size:
            ends = [lengths.constant([number]) for number in (0, site.value_size, 3)]
            result = lengths.node("Slice", [result, *ends], before=node).outputs[0]
        if is_split:
            result = lengths.node("Transpose", [result], {"perm": [0, 2, 1, 3]}, before=node).outputs[0]
        elif site.value_size != site.size:
            result = lengths.node("Reshape", [result, lengths.constant([0, 0, -1])], before=node).outputs[0]
        olds = (node.outputs[0], site.keys.cache.present, site.values.cache.present)
        made_values = (result, *made.outputs[1:])
        for old, new in zip(olds, made_values, strict=True):
            new.type = old.type
        return list(zip(olds, made_values, strict=True))

    def _sinks(self, site: AttentionSite, kind: ir.DataType) -> ir.Value:
        """[heads], the score of the sink of each head."""
        return self.lengths.constant(np.broadcast_to(site.mask.sink, site.heads).astype(kind.numpy()))  # type: ignore[arg-type]

    def _in_a_row(self, value: ir.Value, layout: tuple[int, int, int, int] | None, before: ir.Node) -> ir.Value:
        """[batch, sequence, heads * size] of a value in a layout, by default with the heads in front of the sequence."""
        if self.facts.rank(value) != 4:
            return value
        batch, heads, length, size = layout or (0, 1, 2, 3)
        order = [batch, length, heads, size]
        swapped = self.lengths.node("Transpose", [value], {"perm": order}, before=before).outputs[0]
        return self.lengths.node("Reshape", [swapped, self.lengths.constant([0, 0, -1])], before=before).outputs[0]

    def _padded(self, value: ir.Value, heads: int, size: int, wanted: int, before: ir.Node) -> ir.Value:
        """[batch, sequence, heads * wanted] of a value [batch, sequence, heads * size], with zeros behind each head."""
        if size == wanted:
            return value
        lengths = self.lengths
        split = lengths.node("Reshape", [value, lengths.constant([0, 0, heads, size])], before=before).outputs[0]
        wide = lengths.node("Pad", [split, lengths.constant([0] * 7 + [wanted - size])], before=before).outputs[0]
        return lengths.node("Reshape", [wide, lengths.constant([0, 0, heads * wanted])], before=before).outputs[0]


def _given(node: ir.Node) -> ir.Value:
    """The first input of a node that has one."""
    value = node.inputs[0]
    assert value is not None
    return value
