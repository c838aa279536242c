"""Rewrite a decoder into a generator: one model for prompts and steps, whose caches are buffers that stay in place.

Transforms:

- attention with a growing cache into GroupQueryAttention, which appends to the buffer that the cache is;
- rotary embeddings, by tables of all positions, within GroupQueryAttention where its kernel has them;
- masks and positions of the inputs into lengths, which the sum of attention_mask gives;
- on request, the scores of all tokens into those of the last one.

Requires:

- the mask, positions and angles to be functions of positions alone, when no token is hidden (`length_functions`);
- heads of sizes that the kernel takes.

Does not handle: layers for which this does not hold. They keep a growing cache, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.attention_sites import AttentionSite, SiteReader
from ortfuse.generation.cache_operands import CacheOperand, Extra, read_operand
from ortfuse.generation.decoder_interface import DecoderInterface, find_interface
from ortfuse.generation.generator_interface import GeneratorInterface, write_interface
from ortfuse.generation.length_functions import Array, RowForm, find_mask_forms, find_row_forms
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.generation.positional_values import Evaluator, PositionalValues, Step
from ortfuse.generation.set_signature import BufferPlan, set_signature
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import MICROSOFT
from ortfuse.runtime.submodel import upstream

Operands = tuple[CacheOperand, CacheOperand]
"""How attention reads its keys and its values."""

Layer = tuple[int, Literal["key", "value"]]
"""The number of a cache's layer, from 0, and what it holds."""

_BROADCASTS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Where", "Min", "Max", "Sum"})
_OF_ELEMENTS = frozenset({"Add", "Sub", "Mul", "Div", "Tanh", "Cast", "Identity"})
_OF_ROWS = frozenset(
    {"MatMul", "MatMulNBits", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
)


@dataclass(frozen=True)
class Made:
    """What became of a decoder.

    Attributes:
        interface: The inputs and outputs of the generator.
        kept: Why a layer keeps a growing cache, by the name of its attention or cache.
        unsampled: Whether masks and positions were compared for every past length, not for a choice of them.
    """

    interface: GeneratorInterface
    kept: Mapping[str, str]
    unsampled: bool


def make_generator(
    model: ir.Model, facts: Facts, *, max_length: int, last_logits: bool = False, given: Mapping[str, str] | None = None
) -> Made:
    """Rewrite a decoder in place.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards.
        max_length: The greatest number of tokens, of the prompt and generated.
        last_logits: Whether only the scores after the last token of each sequence are handed out.
        given: Names of inputs and outputs by role, where the graph does not tell.

    Raises:
        GenerationError: The model is no decoder with caches, or no layer can be rewritten.
    """
    return _Rewriter(model, facts, find_interface(model, facts, given), max_length).run(last_logits=last_logits)


class _Rewriter:
    def __init__(self, model: ir.Model, facts: Facts, decoder: DecoderInterface, max_length: int) -> None:
        self.model, self.facts, self.decoder = model, facts, decoder
        self.values = PositionalValues(model, facts, decoder)
        self.max_length = self._longest(max_length)
        self.kept: dict[str, str] = {}
        self.mixed_lengths = True
        self.renamed: dict[ir.Value, ir.Value] = {}
        self.rowed: dict[tuple[ir.Value, bool], ir.Value] = {}

    def run(self, *, last_logits: bool) -> Made:
        values, graph = self.values, self.model.graph
        operands = self._attention()
        nodes = list(operands)
        extras: dict[ir.Value, Extra] = {}
        for node, found in operands.items():
            mask = node.inputs[3] if len(node.inputs) > 3 else None
            if mask is not None and mask in values and not isinstance(found, str):
                extras.setdefault(mask, found[0].extra)
        uses = [use for use in values.uses() if values.depends_on_past(use[2])]
        masked = {(node, 3) for node in nodes}
        rows = dict.fromkeys(value for node, number, value in uses if (node, number) not in masked)
        mask_forms, masks_complete = find_mask_forms(values, extras, self.max_length)
        self.row_forms, rows_complete = find_row_forms(values, list(rows), self.max_length)
        reader = SiteReader(self.facts, self.decoder, operands, mask_forms, self.row_forms)
        sites = self._sites(nodes, reader)
        rotations = [site.rotation for site in sites if site.rotation is not None]
        gone = {site.node for site in sites} | {node for one in rotations for node in (one.queries, one.keys)}
        rotaries = {
            node: reader.rotary(node) for node in graph if node.op_type == "RotaryEmbedding" and node not in gone
        }
        queries = [node for node in graph if values.is_size_query(node)]
        layers = self._layers(operands)
        self.lengths = LengthNodes(graph, self.decoder.tokens)
        for site in sites:
            self._replace_attention(site)
        for node, tables in rotaries.items():
            if tables is not None:
                self._replace_rotary(node, *tables[:2])
                gone.add(node)
        for node, number, value in uses:
            if node not in gone:
                self._replace_use(node, number, value)
        self._replace_sources(queries)
        self._demand_sizes(sites)
        if last_logits:
            self._keep_last_logits()
        self.lengths.finish()
        graph.opset_imports.setdefault(MICROSOFT, 1)
        heads = {one.cache.past: (site.groups, site.size) for site in sites for one in (site.keys, site.values)}
        interface = set_signature(
            self.model,
            self.facts,
            self.decoder,
            [BufferPlan(cache, *layers[cache.past], heads.get(cache.past)) for cache in self.decoder.caches],
            attention_mask=self.lengths.mask,
            renamed=self.renamed,
            max_length=self.max_length,
            last_logits=last_logits,
            mixed_lengths=self.mixed_lengths and not self.kept,
        )
        write_interface(self.model, interface)
        return Made(interface, self.kept, masks_complete and rows_complete)

    # What is there

    def _attention(self) -> dict[ir.Node, Operands | str]:
        """The attention over caches, with how its keys and values are read from them, or why that is not known."""
        pasts = {cache.past: cache for cache in self.decoder.caches}
        presents = {cache.present: cache for cache in self.decoder.caches if _is_concat(cache.present)}
        depends = self._reached(presents)
        found: dict[ir.Node, Operands | str] = {}
        for node in self.model.graph:
            if (node.domain, node.op_type) != ("", "Attention"):
                continue
            _, key, value, _, past_key, past_value = (*node.inputs, *[None] * 6)[:6]
            assert key is not None and value is not None
            if past_key in pasts and past_value in pasts:
                keys, values = pasts[past_key], pasts[past_value]
                found[node] = CacheOperand(keys, key, None, 1, ""), CacheOperand(values, value, None, 1, "")
            elif past_key is None and key in depends:
                read = [read_operand(one, presents, self.facts) for one in (key, value)]
                found[node] = next((one for one in read if isinstance(one, str)), None) or (read[0], read[1])  # type: ignore[assignment]
        return found

    def _reached(self, sources: Collection[ir.Value]) -> set[ir.Value]:
        """What is computed from some values without an operator that multiplies matrices in between."""
        found = set(sources)
        for node in self.model.graph:
            if node.op_type not in ("Attention", "MatMul", "Gemm") and any(value in found for value in node.inputs):
                found.update(node.outputs)
        return found

    def _sites(self, nodes: Sequence[ir.Node], reader: SiteReader) -> list[AttentionSite]:
        sites = []
        for node in nodes:
            site = reader.read(node)
            if isinstance(site, str):
                self.kept[node.name or node.outputs[0].name or ""] = site
            else:
                sites.append(site)
        attended = {one.cache.past for node in nodes for one in self._read(reader, node)}
        for cache in self.decoder.caches:
            if cache.past not in attended:
                self.kept[cache.past.name or ""] = "its attention is not fused into ai.onnx Attention"
        if not sites:
            found = "; ".join(f"{name}: {why}" for name, why in self.kept.items())
            raise GenerationError(f"no layer can keep its cache in place. {found}")
        return sites

    @staticmethod
    def _read(reader: SiteReader, node: ir.Node) -> tuple[CacheOperand, ...]:
        found = reader.operands(node)
        return () if isinstance(found, str) else found

    def _layers(self, operands: Mapping[ir.Node, Operands | str]) -> dict[ir.Value, Layer]:
        """The layer of each cache, from 0, whether it has keys or values, and its attention."""
        found: dict[ir.Value, Layer] = {}
        for read in operands.values():
            if not isinstance(read, str) and read[0].cache.past not in found:
                number = len(found) // 2
                found[read[0].cache.past] = (number, "key")
                found[read[1].cache.past] = (number, "value")
        left = [cache.past for cache in self.decoder.caches if cache.past not in found]
        for number, past in enumerate(left):
            found[past] = ((len(found) - number) // 2 + number // 2, "value" if number % 2 else "key")
        return found

    def _longest(self, most: int) -> int:
        """The greatest length for which the tables that positions index have rows."""
        for node in self.model.graph:
            if (node.domain, node.op_type) == ("", "Gather") and node.inputs[1] in self.values:
                shape = self.facts.shape(node.inputs[0])
                rows = shape[node.attributes.get_int("axis", 0) or 0] if shape else None
                if isinstance(rows, int) and node.inputs[0] not in self.values and node.inputs[1] is not None:
                    most = _greatest(most, _reads_rows(self.values.evaluator([node.inputs[1]]), rows))
            elif node.op_type == "RotaryEmbedding":
                for value in node.inputs[2:4] if node.domain else node.inputs[1:3]:
                    shape = self.facts.shape(value)
                    if shape and len(shape) == 2 and isinstance(shape[0], int):
                        most = min(most, shape[0])
        if most < 2:
            raise GenerationError("the tables that positions index have rows for one token only")
        return most

    # Attention

    def _replace_attention(self, site: AttentionSite) -> None:
        node, lengths = site.node, self.lengths
        kind = self.facts.dtype(node.inputs[0]) or ir.DataType.FLOAT
        attributes: dict[str, object] = {"num_heads": site.heads, "kv_num_heads": site.groups}
        inputs = [site.queries, site.keys.new, site.values.new]
        tables: list[ir.Value | None] = [None, None]
        if site.rotation is not None:
            rotation = site.rotation
            attributes |= {"do_rotary": 1, "rotary_interleaved": int(rotation.interleaved)}
            inputs[:2] = [_given(rotation.queries), _given(rotation.keys)]
            tables = [lengths.constant(rotation.cos), lengths.constant(rotation.sin)]
        if site.scale is not None:
            attributes["scale"] = site.scale
        if site.softcap:
            attributes["softcap"] = site.softcap
        if site.mask.window >= 0:
            attributes["local_window_size"] = site.mask.window
        layouts = (None, site.keys.layout, site.values.layout)
        inputs = [self._in_a_row(value, layout, node) for value, layout in zip(inputs, layouts, strict=True)]
        bias = None if site.mask.bias is None else lengths.bias(site.mask.bias, kind)
        sink = None if site.mask.sink is None else self._sinks(site, kind)
        pasts = [site.keys.cache.past, site.values.cache.past]
        given: list[ir.Value | None] = [*inputs, *pasts, lengths.seqlens, lengths.total, *tables, None, bias, sink]
        while given[-1] is None:
            given.pop()
        made = lengths.node("GroupQueryAttention", given, attributes, domain=MICROSOFT, outputs=3, before=node)
        result = made.outputs[0]
        if self.facts.rank(node.inputs[0]) == 4:
            split = lengths.node(
                "Reshape", [result, lengths.constant([0, 0, site.heads, site.size])], before=node
            ).outputs[0]
            result = lengths.node("Transpose", [split], {"perm": [0, 2, 1, 3]}, before=node).outputs[0]
        olds = (node.outputs[0], site.keys.cache.present, site.values.cache.present)
        for old, new in zip(olds, (result, *made.outputs[1:]), strict=True):
            new.type = old.type
            self._take_over(old, new)
        self.model.graph.remove(node)

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

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)
        outputs = self.model.graph.outputs
        for number, output in enumerate(list(outputs)):
            if output is old:
                outputs[number] = self.renamed[old] = new

    # Positions

    def _replace_rotary(self, node: ir.Node, cos: Array, sin: Array) -> None:
        """Let a rotary embedding outside of attention read tables by the tokens' own positions."""
        tables = [self.lengths.constant(cos), self.lengths.constant(sin)]
        given = [self.lengths.positions, *tables] if node.domain else [*tables, self.lengths.positions]
        node.resize_inputs(4)
        for number, value in enumerate(given, 1):
            node.replace_input_with(number, value)

    def _replace_use(self, node: ir.Node, number: int, value: ir.Value) -> None:
        """Let a user take the rows of the new tokens' own positions; where it cannot, sequences must be of one length."""
        form = self.row_forms.get(value)
        if number < 0 or not isinstance(form, RowForm):
            self.mixed_lengths &= self.values.counts_new_tokens(value)
            return
        one_for_all = form.axis == 0 and not self._takes_batch(node, number, value)
        key = (value, one_for_all)
        if key not in self.rowed:
            kind = self.facts.dtype(value) or ir.DataType.INT64
            self.rowed[key] = self.lengths.rows(form, kind, one_for_all=one_for_all)
        self.mixed_lengths &= not one_for_all
        node.replace_input_with(number, self.rowed[key])

    def _takes_batch(self, node: ir.Node, number: int, value: ir.Value) -> bool:
        """Whether a user of a value without an axis of the batch broadcasts it to one that has it in front."""
        rank = self.facts.rank(value)
        if rank is None or (node.op_type == "Gather" and number == 1):
            return False
        return node.op_type in _BROADCASTS and not node.domain and self.facts.rank(node.outputs[0]) == rank + 1

    def _replace_sources(self, queries: Sequence[ir.Node]) -> None:
        """Let what is left be computed from the new inputs: sizes that count tokens of the past, the mask and positions."""
        for node in queries:
            dims = self.facts.shape(node.inputs[0])
            if node.op_type == "Shape" and dims is not None:
                start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
                sizes = [self._size(dim) for dim in dims[start:end]]
                if any(size in (self.lengths.past, self.lengths.whole) for size in sizes) and None not in sizes:
                    known = [size for size in sizes if size is not None]
                    made = known[0] if len(known) == 1 else self.lengths.add("Concat", known, axis=0)
                    self._take_over(node.outputs[0], made)
        for old, new in ((self.decoder.mask, self.lengths.mask), (self.decoder.positions, self.lengths.positions)):
            kind = self.facts.dtype(old) or ir.DataType.INT64
            if old is not None and old.uses():
                self._take_over(
                    old, new if kind == ir.DataType.INT64 else self.lengths.add("Cast", [new], to=int(kind))
                )

    def _size(self, dim: DimLike) -> ir.Value | None:
        """[1], a size as the generator computes it; `None` if it is none of the batch, new tokens, past and all tokens."""
        lengths = self.lengths
        if isinstance(dim, int):
            return lengths.constant([dim])
        batch, length = (self.facts.shape(self.decoder.tokens) or (None, None))[:2]
        pasts = [(self.facts.shape(cache.past) or ())[cache.axis] for cache in self.decoder.caches]
        totals = [(self.facts.shape(cache.present) or ())[cache.axis] for cache in self.decoder.caches]
        if self.decoder.mask is not None:
            totals.append((self.facts.shape(self.decoder.mask) or ())[1])
        found = [(batch, lengths.batch), (length, lengths.length), *((one, lengths.past) for one in pasts)]
        return next((value for one, value in [*found, *((one, lengths.whole) for one in totals)] if one == dim), None)

    def _demand_sizes(self, sites: Sequence[AttentionSite]) -> None:
        """Refuse a model in which the length of a cache is still asked for: that of a buffer is another number.

        Raises:
            GenerationError: It is.
        """
        buffers = [one.cache for site in sites for one in (site.keys, site.values)]
        axes = {value: cache.axis for cache in buffers for value in (cache.past, self.renamed.get(cache.present))}
        for node in upstream(self.model.graph.outputs):
            if node.op_type in ("Shape", "Size") and not node.domain and node.inputs[0] in axes:
                asked = range(4)[node.attributes.get_int("start", 0) : node.attributes.get_int("end", None)]
                if node.op_type == "Size" or axes[node.inputs[0]] in asked:
                    name = node.inputs[0].name if node.inputs[0] is not None else ""
                    raise GenerationError(f"the length of {name} is used, in a form that is not known")

    # Scores

    def _keep_last_logits(self) -> None:
        """Take the last token's row as far up as all that follows is computed row by row."""
        value = self.renamed.get(self.decoder.logits, self.decoder.logits)
        users: list[tuple[ir.Node, int]] = []
        for user, number in self._rows_above(value):
            users = [(user, number)]
        if users:
            user, number = users[0]
            source = user.inputs[number]
            row = self.lengths.node("GatherND", [source, self.lengths.last], {"batch_dims": 1}, before=user).outputs[0]
            user.replace_input_with(number, row)
            return
        producer = value.producer()
        assert producer is not None
        made = ir.node("GatherND", [value, self.lengths.last], {"batch_dims": 1})
        made.name = "generator_last_logits"
        made.outputs[0].name = "generator_last_logits_0"
        made.outputs[0].type = value.type
        self.model.graph.insert_after(producer, made)
        outputs = self.model.graph.outputs
        outputs[list(outputs).index(value)] = self.renamed[self.decoder.logits] = made.outputs[0]

    def _rows_above(self, value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
        """The nodes above that compute each row from that row of one input alone, with the number of the input."""
        while True:
            node = value.producer()
            if node is None or len(value.uses()) + value.is_graph_output() != 1 or len(node.outputs) != 1:
                return
            number = self._row_input(node)
            if number is None or node.inputs[number] is None:
                return
            yield node, number
            value = node.inputs[number]  # type: ignore[assignment]

    def _row_input(self, node: ir.Node) -> int | None:
        given = [number for number, one in enumerate(node.inputs) if one is not None and not self.facts.is_const(one)]
        if len(given) != 1 or self.facts.rank(node.inputs[given[0]]) != 3:
            return None
        if node.op_type in _OF_ROWS:
            axis = node.attributes.get_int("axis", -1)
            return 0 if given == [0] and axis in (-1, 2) and self._plain_weight(node) else None
        others = [one for number, one in enumerate(node.inputs) if number != given[0]]
        is_flat = all((self.facts.rank(one) or 0) <= 1 for one in others)
        return given[0] if node.op_type in _OF_ELEMENTS and not node.domain and is_flat else None

    def _plain_weight(self, node: ir.Node) -> bool:
        return node.op_type != "MatMul" or self.facts.rank(node.inputs[1]) == 2


def _greatest(most: int, holds: Callable[[int], bool]) -> int:
    """The greatest number up to `most` for which something holds that holds for all smaller ones."""
    if holds(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _reads_rows(evaluator: Evaluator, rows: int) -> Callable[[int], bool]:
    """Whether all indices are below a number of rows when the last of so many tokens comes."""

    def holds(length: int) -> bool:
        (indices,) = next(evaluator.at([Step(length - 1, 1)]))
        return bool(indices.max(initial=0) < rows)

    return holds


def _is_concat(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Concat"


def _given(node: ir.Node) -> ir.Value:
    """The first input of a node that has one."""
    value = node.inputs[0]
    assert value is not None
    return value
