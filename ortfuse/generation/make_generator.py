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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.errors import GenerationError
from ortfuse.generation.attention_sites import KERNEL_TYPES, AttentionSite, SiteReader
from ortfuse.generation.cache_operands import CacheOperand, Keys, read_last, read_operand
from ortfuse.generation.cache_readers import read_outside
from ortfuse.generation.check_target import AttentionCheck
from ortfuse.generation.decoder_interface import Cache, DecoderInterface, find_interface
from ortfuse.generation.generator_interface import GeneratorInterface, write_interface
from ortfuse.generation.last_logits import keep_last_logits
from ortfuse.generation.length_functions import Array, RowForm, find_mask_forms, find_row_forms
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.generation.positional_values import PositionalValues
from ortfuse.generation.set_signature import BufferPlan, set_signature
from ortfuse.generation.table_rows import rows_allow
from ortfuse.generation.token_independence import why_tokens_meet
from ortfuse.ir.dims import DimLike, symbols
from ortfuse.ir.traits import BROADCASTS, MICROSOFT, MOVES, has
from ortfuse.runtime.submodel import upstream
from ortfuse.targets import Target

Operands = tuple[CacheOperand, CacheOperand]
"""How attention reads its keys and its values."""

Layer = tuple[int, Literal["key", "value"]]
"""The number of a cache's layer, from 0, and what it holds."""


@dataclass(frozen=True)
class Made:
    """The result of rewriting a decoder.

    Attributes:
        interface: The inputs and outputs of the generator.
        kept: Why a layer keeps a growing cache, by the name of its attention or cache.
        unsampled: Whether masks and positions were compared for every past length, not for a choice of them.
        one_length: Why the prompts of a batch have one length; "" if they may have several.
    """

    interface: GeneratorInterface
    kept: Mapping[str, str]
    unsampled: bool
    one_length: str


def make_generator(
    model: ir.Model,
    facts: Facts,
    target: Target,
    *,
    max_length: int,
    last_logits: bool = False,
    given: Mapping[str, str] | None = None,
    left: Mapping[str, str] | None = None,
) -> Made:
    """Rewrite a decoder in place.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards.
        target: The target that is to execute the generator.
        max_length: The greatest number of tokens, of the prompt and generated.
        last_logits: Whether only the scores after the last token of each sequence are handed out.
        given: Names of inputs and outputs by role, where the graph does not tell.
        left: Why a cache in another layout is left as it is, by its name.

    Raises:
        GenerationError: The model is no decoder with caches, or no layer can be rewritten.
    """
    interface = find_interface(model, facts, given)
    rewriter = _Rewriter(model, facts, interface, max_length, left or {}, target)
    return rewriter.run(last_logits=last_logits)


class _Rewriter:
    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        decoder: DecoderInterface,
        max_length: int,
        left: Mapping[str, str],
        target: Target,
    ) -> None:
        self.model, self.facts, self.decoder, self.left = model, facts, decoder, left
        self.values = PositionalValues(model, facts, decoder)
        self.max_length = rows_allow(model, facts, self.values, max_length)
        self.check = AttentionCheck(target, self.max_length)
        self.kept: dict[str, str] = {}
        self.one_length = ""
        self.renamed: dict[ir.Value, ir.Value] = {}
        self.rowed: dict[tuple[ir.Value, bool], ir.Value] = {}

    def run(self, *, last_logits: bool) -> Made:
        values, graph = self.values, self.model.graph
        operands = self._attention()
        nodes = list(operands)
        columns = self._columns(operands)
        masked = {(node, 3) for node in nodes}
        uses = [use for use in values.uses() if use[:2] not in masked]
        rows = dict.fromkeys(value for _, _, value in uses if values.depends_on_past(value))
        mask_forms, masks_complete = find_mask_forms(values, columns, self.max_length)
        self.row_forms, rows_complete = find_row_forms(values, list(rows), self.max_length)
        reader = SiteReader(self.facts, self.decoder, operands, mask_forms, self.row_forms)
        sites = self._sites(nodes, reader)
        rotaries = {node: reader.rotary(node) for node in graph if node.op_type == "RotaryEmbedding"}
        queries = {node: self.facts.shape(node.inputs[0]) for node in graph if values.is_size_query(node)}
        layers = self._layers(operands)
        self.lengths = LengthNodes(graph, self.decoder.tokens)
        for site in sites:
            self._replace_attention(site)
        live = set(upstream(graph.outputs))
        for node, tables in rotaries.items():
            if tables is not None and node in live:
                self._replace_rotary(node, *tables[:2])
                live.remove(node)
        for node, number, value in uses:
            if node in live:
                self._replace_use(node, number, value)
        self._replace_sources(queries, sites)
        self._demand_sizes(sites)
        self.lengths.finish()
        graph.opset_imports.setdefault(MICROSOFT, 1)
        has_one = self._has_one_row()
        self._demand_apart("; ".join(f"{name}: {why}" for name, why in self.kept.items()))
        if (self.facts.shape(self.decoder.tokens) or (None,))[0] == 1:
            self._demand_apart("the decoder was exported for a batch of 1")
        if self.decoder.states:
            self._demand_apart("its states have no place of each token")
        if values.takes_one_token:
            self._demand_apart("a run takes one token")
        elif has_one:
            self._demand_apart("its scores are those after the last token of a run")
        if not self.one_length:
            graph.inputs.append(self.lengths.mask)
            found = why_tokens_meet(self.model, Facts(self.model), self.decoder.tokens, self.lengths.positions)
            self._demand_apart(found)
        if last_logits and not has_one:
            scores = self.renamed.get(self.decoder.logits, self.decoder.logits)
            self.renamed[self.decoder.logits] = keep_last_logits(self.model, self.facts, scores, self.lengths)
        heads = {one.cache.past: (site.groups, site.size) for site in sites for one in (site.keys, site.values)}
        interface = set_signature(
            self.model,
            self.facts,
            self.decoder,
            [BufferPlan(cache, *layers[cache.past], heads.get(cache.past)) for cache in self.decoder.caches],
            attention_mask=self.lengths.mask,
            renamed=self.renamed,
            max_length=self.max_length,
            last_logits=last_logits or has_one,
            most_tokens=self.check.most_tokens,
            mixed_lengths=not self.one_length,
        )
        write_interface(self.model, interface)
        return Made(interface, self.kept, masks_complete and rows_complete, self.one_length)

    def _demand_apart(self, why: str) -> None:
        """Note why the sequences of a batch need one length, if something is given and nothing was noted before."""
        self.one_length = self.one_length or why

    def _has_one_row(self) -> bool:
        """Whether the scores are those after the last new token alone, which padding may be."""
        rows, length = (
            (self.facts.shape(one) or (None, None))[1] for one in (self.decoder.logits, self.decoder.tokens)
        )
        return rows == 1 and length != 1

    # What is there

    def _attention(self) -> dict[ir.Node, Operands | str]:
        """The attention over caches, with how its keys and values are read from them, or why that is not known."""
        pasts = {cache.past: cache for cache in self.decoder.caches}
        presents = {cache.present: cache for cache in self.decoder.caches if _is_appended(cache.present)}
        depends, cut = self._reached(presents), self._reached(pasts)
        found: dict[ir.Node, Operands | str] = {}
        for node in self.model.graph:
            if (node.domain, node.op_type) != ("", "Attention"):
                continue
            _, key, value, _, past_key, past_value = (*node.inputs, *[None] * 6)[:6]
            assert key is not None and value is not None
            if past_key in pasts and past_value in pasts:
                keys, values = pasts[past_key], pasts[past_value]
                found[node] = CacheOperand(keys, key, None, 1, ""), CacheOperand(values, value, None, 1, "")
            elif past_key in cut and past_value in cut:
                last = read_last(past_key, key, pasts, self.facts), read_last(past_value, value, pasts, self.facts)
                is_known = last[0] is not None and last[1] is not None
                found[node] = last if is_known else "its cache is cut or moved before something is appended"  # type: ignore[assignment]
            elif past_key is None and key in depends:
                read = [read_operand(one, presents, self.facts) for one in (key, value)]
                found[node] = next((one for one in read if isinstance(one, str)), None) or (read[0], read[1])  # type: ignore[assignment]
        return found

    def _columns(self, operands: dict[ir.Node, Operands | str]) -> dict[ir.Value, Keys]:
        """The keys for which masks have columns; attention that has others than another with its mask is given up."""
        found: dict[ir.Value, Keys] = {}
        for node, read in operands.items():
            mask = node.inputs[3] if len(node.inputs) > 3 else None
            if mask is None or mask not in self.values or isinstance(read, str):
                continue
            if found.setdefault(mask, read[0].keys) != read[0].keys:
                operands[node] = "another attention has its mask, and other keys"
        return found

    def _reached(self, sources: Collection[ir.Value]) -> set[ir.Value]:
        """Values that are computed from some others without an operator that multiplies matrices in between."""
        found = set(sources)
        for node in self.model.graph:
            if node.op_type not in ("Attention", "MatMul", "Gemm") and any(value in found for value in node.inputs):
                found.update(node.outputs)
        return found

    def _sites(self, nodes: Sequence[ir.Node], reader: SiteReader) -> list[AttentionSite]:
        sites = []
        for node in nodes:
            site = reader.read(node)
            found = site if isinstance(site, str) else self.check.executed(site)
            if isinstance(found, str):
                self.kept[node.name or node.outputs[0].name or ""] = found
            else:
                sites.append(found)
        sites = self._without_other_readers(sites)
        attended = {one.cache.past for node in nodes for one in self._read(reader, node)}
        for cache in self.decoder.caches:
            if cache.past not in attended:
                name = cache.past.name or ""
                self.kept[name] = self.left.get(name) or self._why_not_attended(cache)
        if not sites:
            raise GenerationError(f"no layer can keep its cache in place. {_reasons(self.kept)}")
        return sites

    def _why_not_attended(self, cache: Cache) -> str:
        kind = self.facts.dtype(cache.past)
        if kind not in KERNEL_TYPES:
            return f"its type is {kind}, and the kernel takes FLOAT and FLOAT16"
        return "its attention is not fused into ai.onnx Attention"

    def _without_other_readers(self, sites: Sequence[AttentionSite]) -> list[AttentionSite]:
        """The sites whose caches nothing but such sites reads: what else reads a cache would see the whole buffer."""
        left = list(sites)
        while True:
            read = self._read_outside(left)
            shared = [site for site in left if site.keys.cache in read or site.values.cache in read]
            if not shared:
                return left
            for site in shared:
                self.kept[site.node.name or site.node.outputs[0].name or ""] = (
                    "its cache is read by something else, too"
                )
            left = [site for site in left if site not in shared]

    def _read_outside(self, sites: Sequence[AttentionSite]) -> set[Cache]:
        """The caches of sites whose elements are read by something that stays, once the sites are replaced."""
        caches = [one.cache for site in sites for one in (site.keys, site.values)]
        owners = {value: cache for cache in caches for value in (cache.past, cache.present)}
        replaced = {site.node: site for site in sites}

        def reads(value: ir.Value, producer: ir.Node) -> list[ir.Value] | None:
            site = replaced.get(producer)
            if site is not None:
                return [site.queries, site.keys.new, site.values.new]
            return [] if producer.op_type in ("Shape", "Size") and not producer.domain else None

        return read_outside((value for value in self.model.graph.outputs if value not in owners), owners, reads)

    @staticmethod
    def _read(reader: SiteReader, node: ir.Node) -> tuple[CacheOperand, ...]:
        found = reader.operands(node)
        return () if isinstance(found, str) else found

    def _layers(self, operands: Mapping[ir.Node, Operands | str]) -> dict[ir.Value, Layer]:
        """The layer of each cache, from 0, whether it has keys or values, and its attention.

        A cache that two layers share belongs to the first, and one that is keys and values at once is the keys.
        """
        found: dict[ir.Value, Layer] = {}
        number = 0
        for read in operands.values():
            if isinstance(read, str):
                continue
            kinds: tuple[Literal["key", "value"], ...] = ("key", "value")
            free = [
                (one.cache.past, kind) for one, kind in zip(read, kinds, strict=True) if one.cache.past not in found
            ]
            for past, kind in free:
                found.setdefault(past, (number, kind))
            number += bool(free)
        left = [cache.past for cache in self.decoder.caches if cache.past not in found]
        for place, past in enumerate(left):
            found[past] = (number + place // 2, "value" if place % 2 else "key")
        return found

    # Attention

    def _replace_attention(self, site: AttentionSite) -> None:
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

    def _padded(self, value: ir.Value, heads: int, size: int, wanted: int, before: ir.Node) -> ir.Value:
        """[batch, sequence, heads * wanted] of a value [batch, sequence, heads * size], with zeros behind each head."""
        if size == wanted:
            return value
        lengths = self.lengths
        split = lengths.node("Reshape", [value, lengths.constant([0, 0, heads, size])], before=before).outputs[0]
        wide = lengths.node("Pad", [split, lengths.constant([0] * 7 + [wanted - size])], before=before).outputs[0]
        return lengths.node("Reshape", [wide, lengths.constant([0, 0, heads * wanted])], before=before).outputs[0]

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
        if number < 0 or not isinstance(form, RowForm) or (form.axis and not self._is_by_sequence(node, value)):
            if not self._is_same_for_each(node, number, value):
                name = node.name or node.outputs[0].name
                self._demand_apart(f"{node.op_type} '{name}' reads a number that depends on the lengths of a run")
            return
        one_for_all = form.axis == 0 and not self._takes_batch(node, number, value)
        key = (value, one_for_all)
        if key not in self.rowed:
            kind = self.facts.dtype(value) or ir.DataType.INT64
            self.rowed[key] = self.lengths.rows(form, kind, one_for_all=one_for_all)
        if one_for_all:
            name = node.name or node.outputs[0].name
            self._demand_apart(f"{node.op_type} '{name}' takes positions that are those of all sequences")
        node.replace_input_with(number, self.rowed[key])

    def _is_same_for_each(self, node: ir.Node, number: int, value: ir.Value) -> bool:
        """Whether a value that stays is right for sequences of any lengths in a run.

        It is if elements go where the number of new tokens says, which `why_tokens_meet` follows, or if it is one number.
        """
        if number > 0 and has(node, MOVES):
            return not self.values.depends_on_past(value) or self.values.counts_new_tokens(value, self.max_length)
        return self.values.is_one_number(value, self.max_length)

    def _is_by_sequence(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether the first axis of a value is that of the sequences for its user, even if it has one row for all of them."""
        first = (self.facts.shape(value) or (1,))[0]
        if not isinstance(first, int) or node.op_type == "RotaryEmbedding":
            return True
        batch = (self.facts.shape(self.decoder.tokens) or (None,))[0]
        result = self.facts.shape(node.outputs[0])
        is_alike = result is not None and len(result) == self.facts.rank(value) and result[0] == batch
        return is_alike and node.op_type in BROADCASTS and not node.domain

    def _takes_batch(self, node: ir.Node, number: int, value: ir.Value) -> bool:
        """Whether a user of a value without an axis of the batch broadcasts it to one that has it in front."""
        rank = self.facts.rank(value)
        if rank is None or (node.op_type == "Gather" and number == 1):
            return False
        result, batch = self.facts.shape(node.outputs[0]), (self.facts.shape(self.decoder.tokens) or (None,))[0]
        has_batch = result is not None and len(result) == rank + 1 and result[0] == batch
        return has_batch and node.op_type in BROADCASTS and not node.domain

    def _replace_sources(self, queries: Mapping[ir.Node, Shape | None], sites: Sequence[AttentionSite]) -> None:
        """Let what is left be computed from the new inputs: sizes that count tokens of the past, the mask and positions."""
        buffers = self._buffers(sites)
        masks = [] if self.decoder.mask is None else [(self.facts.shape(self.decoder.mask) or (0,))[-1]]
        counted = {name for dim in [*self._pasts(), *masks] for name in symbols(dim)} - self._given()
        for node, dims in queries.items():
            if node.op_type == "Shape" and dims is not None:
                start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
                sizes = [self._size(dim) for dim in dims[start:end]]
                changed = node.inputs[0] in buffers or any(symbols(dim) & counted for dim in dims[start:end])
                if changed and None not in sizes:
                    known = [size for size in sizes if size is not None]
                    made = known[0] if len(known) == 1 else self.lengths.add("Concat", known, axis=0)
                    self._take_over(node.outputs[0], made)
        for old, new in ((self.decoder.mask, self.lengths.mask), (self.decoder.positions, self.lengths.positions)):
            if old is not None and (old.uses() or old.is_graph_output()):
                self._take_over(old, self._as_declared(new, old))

    def _as_declared(self, value: ir.Value, source: ir.Value) -> ir.Value:
        """An int64 value [batch, length] in the type and rank of an input of the decoder."""
        shape, kind = self.facts.shape(source) or (None, None), self.facts.dtype(source) or ir.DataType.INT64
        if len(shape) == 4:
            return self.lengths.causal_mask(kind)
        if len(shape) == 1 or shape[-2] == 1:  # one row for all sequences
            value = self.lengths.add("Gather", [value, self.lengths.constant(0 if len(shape) == 1 else [0])], axis=0)
        if len(shape) == 3:
            value = self.lengths.add("Unsqueeze", [value, self.lengths.constant([0])])
            count = self._size(shape[0])
            if count is None:
                raise GenerationError(f"how many rows of positions {source.name} has for each sequence is unknown")
            sizes = self.lengths.add("Concat", [count, self.lengths.constant([1, 1])], axis=0)
            value = self.lengths.add("Expand", [value, sizes])
        return value if kind == ir.DataType.INT64 else self.lengths.add("Cast", [value], to=int(kind))

    def _size(self, dim: DimLike) -> ir.Value | None:
        """[1], a size as the generator computes it; `None` if it is none of the batch, new tokens, past and all tokens."""
        lengths = self.lengths
        if isinstance(dim, int):
            return lengths.constant([dim])
        batch, length = (self.facts.shape(self.decoder.tokens) or (None, None))[:2]
        whole = [cache for cache in self.decoder.caches if cache.kept is None]
        pasts = self._pasts()
        totals = [(self.facts.shape(cache.present) or ())[cache.axis] for cache in whole]
        if self.decoder.mask is not None:
            totals += (self.facts.shape(self.decoder.mask) or ())[-1:]
        found = [(batch, lengths.batch), (length, lengths.length), *((one, lengths.past) for one in pasts)]
        known = next((value for one, value in [*found, *((one, lengths.whole) for one in totals)] if one == dim), None)
        return known or lengths.size(
            dim, {str(one): value for one, value in reversed(found) if not isinstance(one, int)}
        )

    def _pasts(self) -> list[DimLike]:
        """The lengths of caches that have all tokens of the past."""
        whole = [cache for cache in self.decoder.caches if cache.kept is None]
        return [(self.facts.shape(cache.past) or ())[cache.axis] for cache in whole]

    def _given(self) -> set[str]:
        """The names of the sizes of the tokens."""
        return {name for dim in self.facts.shape(self.decoder.tokens) or () for name in symbols(dim)}

    def _demand_sizes(self, sites: Sequence[AttentionSite]) -> None:
        """Refuse a model in which the length of a cache is still asked for: that of a buffer is another number.

        Raises:
            GenerationError: It is.
        """
        buffers = self._buffers(sites)
        for node in upstream(self.model.graph.outputs):
            if node.op_type != "GroupQueryAttention":
                for value in node.inputs:
                    if value is not None and value in buffers:
                        raise GenerationError(f"the length of {value.name} is used, in a form that is not known")

    def _buffers(self, sites: Sequence[AttentionSite]) -> set[ir.Value | None]:
        caches = [one.cache for site in sites for one in (site.keys, site.values)]
        return {
            value for cache in caches for value in (cache.past, self.renamed.get(cache.present)) if value is not None
        }


def _reasons(kept: Mapping[str, str]) -> str:
    """The reasons why layers keep growing caches, each once, with the layers that it holds for."""
    layers: dict[str, list[str]] = {}
    for name, why in kept.items():
        layers.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in layers.items())


def _is_appended(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type in ("Concat", "Attention") and not producer.domain


def _given(node: ir.Node) -> ir.Value:
    """The first input of a node that has one."""
    value = node.inputs[0]
    assert value is not None
    return value
