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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.attention_sites import AttentionSite, SiteReader
from ortfuse.generation.decoder_interface import Cache, DecoderInterface, find_interface
from ortfuse.generation.generator_interface import (
    LOGITS,
    MASK,
    TOKENS,
    CacheBuffer,
    GeneratorInterface,
    StateBuffer,
    write_interface,
)
from ortfuse.generation.length_functions import Array, RowForm, find_mask_forms, find_row_forms
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.generation.positional_values import Evaluator, PositionalValues, Step
from ortfuse.ir.traits import MICROSOFT

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
        nodes = self._attention()
        masks = dict.fromkeys(node.inputs[3] for node in nodes)
        uses = [use for use in values.uses() if values.depends_on_past(use[2])]
        operands = {(node, 3) for node in nodes}
        rows = dict.fromkeys(value for node, number, value in uses if (node, number) not in operands)
        mask_forms, masks_complete = find_mask_forms(
            values, [mask for mask in masks if mask is not None and mask in values], self.max_length
        )
        self.row_forms, rows_complete = find_row_forms(values, list(rows), self.max_length)
        reader = SiteReader(self.facts, self.decoder, mask_forms, self.row_forms)
        sites = self._sites(nodes, reader)
        rotations = [site.rotation for site in sites if site.rotation is not None]
        gone = {site.node for site in sites} | {node for one in rotations for node in (one.queries, one.keys)}
        rotaries = {
            node: reader.rotary(node) for node in graph if node.op_type == "RotaryEmbedding" and node not in gone
        }
        queries = [node for node in graph if values.is_size_query(node)]
        layers = self._layers(nodes)
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
        if last_logits:
            self._keep_last_logits()
        self.lengths.finish()
        graph.opset_imports.setdefault(MICROSOFT, 1)
        interface = self._set_signature(layers, {site.node for site in sites}, last_logits=last_logits)
        write_interface(self.model, interface)
        return Made(interface, self.kept, masks_complete and rows_complete)

    # What is there

    def _attention(self) -> list[ir.Node]:
        pasts = {cache.past for cache in self.decoder.caches}
        return [
            node
            for node in self.model.graph
            if (node.domain, node.op_type) == ("", "Attention")
            and len(node.inputs) > 5
            and node.inputs[4] in pasts
            and node.inputs[5] in pasts
        ]

    def _sites(self, nodes: Sequence[ir.Node], reader: SiteReader) -> list[AttentionSite]:
        sites = []
        for node in nodes:
            site = reader.read(node)
            if isinstance(site, str):
                self.kept[node.name or node.outputs[0].name or ""] = site
            else:
                sites.append(site)
        attended = {value for node in nodes for value in node.inputs[4:6]}
        for cache in self.decoder.caches:
            if cache.past not in attended:
                self.kept[cache.past.name or ""] = "its attention is not fused into ai.onnx Attention"
        if not sites:
            found = "; ".join(f"{name}: {why}" for name, why in self.kept.items())
            raise GenerationError(f"no layer can keep its cache in place. {found}")
        return sites

    def _layers(self, nodes: Sequence[ir.Node]) -> dict[ir.Value, tuple[int, Literal["key", "value"], ir.Node | None]]:
        """The layer of each cache, from 0, whether it has keys or values, and its attention."""
        found: dict[ir.Value, tuple[int, Literal["key", "value"], ir.Node | None]] = {}
        for number, node in enumerate(nodes):
            key, value = node.inputs[4:6]
            assert key is not None and value is not None
            found[key], found[value] = (number, "key", node), (number, "value", node)
        left = [cache.past for cache in self.decoder.caches if cache.past not in found]
        for number, past in enumerate(left):
            found[past] = (len(nodes) + number // 2, "value" if number % 2 else "key", None)
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
        inputs: list[ir.Value | None] = list(node.inputs[:3])
        tables: list[ir.Value | None] = [None, None]
        if site.rotation is not None:
            rotation = site.rotation
            attributes |= {"do_rotary": 1, "rotary_interleaved": int(rotation.interleaved)}
            inputs[:2] = [rotation.queries.inputs[0], rotation.keys.inputs[0]]
            tables = [lengths.constant(rotation.cos), lengths.constant(rotation.sin)]
        if site.scale is not None:
            attributes["scale"] = site.scale
        if site.softcap:
            attributes["softcap"] = site.softcap
        if site.mask.window >= 0:
            attributes["local_window_size"] = site.mask.window
        inputs = [self._with_heads_last(value, node) for value in inputs]
        bias = None if site.mask.bias is None else lengths.bias(site.mask.bias, kind)
        given = [*inputs, *node.inputs[4:6], lengths.seqlens, lengths.total, *tables, None, bias]
        while given[-1] is None:
            given.pop()
        made = lengths.node("GroupQueryAttention", given, attributes, domain=MICROSOFT, outputs=3, before=node)
        result = made.outputs[0]
        if self.facts.rank(node.inputs[0]) == 4:
            split = lengths.node(
                "Reshape", [result, lengths.constant([0, 0, site.heads, site.size])], before=node
            ).outputs[0]
            result = lengths.node("Transpose", [split], {"perm": [0, 2, 1, 3]}, before=node).outputs[0]
        for old, new in zip(node.outputs[:3], (result, *made.outputs[1:]), strict=True):
            new.type = old.type
            self._take_over(old, new)
        self.model.graph.remove(node)

    def _with_heads_last(self, value: ir.Value | None, before: ir.Node) -> ir.Value | None:
        """[batch, sequence, heads * size] of a value with the heads in front of the sequence; another one as it is."""
        if self.facts.rank(value) != 4:
            return value
        swapped = self.lengths.node("Transpose", [value], {"perm": [0, 2, 1, 3]}, before=before).outputs[0]
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
            self.mixed_lengths = False
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
        """Let what is left be computed from the new inputs: sizes of caches, the mask and positions."""
        pasts = {cache.past: cache for cache in self.decoder.caches}
        lengths = self.lengths
        for node in queries:
            cache = pasts.get(node.inputs[0]) if node.inputs[0] is not None else None
            if cache is None or node.op_type != "Shape":
                continue
            sizes = [
                lengths.past
                if axis == cache.axis
                else lengths.constant([dim])
                if isinstance(dim, int)
                else lengths.batch
                for axis, dim in enumerate(self.facts.shape(cache.past) or ())
            ][node.attributes.get_int("start", 0) : node.attributes.get_int("end", None)]
            self._take_over(node.outputs[0], sizes[0] if len(sizes) == 1 else lengths.add("Concat", sizes, axis=0))
        for old, new in ((self.decoder.mask, lengths.mask), (self.decoder.positions, lengths.positions)):
            kind = self.facts.dtype(old) or ir.DataType.INT64
            if old is not None and old.uses():
                self._take_over(old, new if kind == ir.DataType.INT64 else lengths.add("Cast", [new], to=int(kind)))

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

    # The signature

    def _set_signature(
        self,
        layers: Mapping[ir.Value, tuple[int, Literal["key", "value"], ir.Node | None]],
        done: set[ir.Node],
        *,
        last_logits: bool,
    ) -> GeneratorInterface:
        graph, decoder = self.model.graph, self.decoder
        names: dict[ir.Value, str] = {decoder.tokens: TOKENS, self.lengths.mask: MASK}
        logits = self.renamed.get(decoder.logits, decoder.logits)
        names[logits] = LOGITS
        caches = []
        ordered = sorted(decoder.caches, key=lambda one: layers[one.past][:2])
        for cache in ordered:
            layer, kind, node = layers[cache.past]
            present = self.renamed.get(cache.present, cache.present)
            names[cache.past], names[present] = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
            caches.append(self._buffer(cache, present, layer, kind, in_place=node in done, names=names))
        shape = self.facts.shape(decoder.logits) or (None, None, None)
        _set_shape(logits, [_text(shape[0]), 1 if last_logits else _text(shape[1]), _text(shape[2])])
        fixed = list(decoder.fixed)
        states = tuple(
            StateBuffer(
                state.before.name or "",
                (self.renamed.get(state.after, state.after)).name or "",
                tuple(dim if isinstance(dim, int) else -1 for dim in self.facts.shape(state.before) or ()),
                str((self.facts.dtype(state.before) or ir.DataType.FLOAT).numpy()),
            )
            for state in decoder.states
        )
        kept = [value for value in graph.inputs if value.name in graph.initializers]
        befores = [state.before for state in decoder.states]
        pasts = [cache.past for cache in ordered]
        graph.inputs[:] = [decoder.tokens, self.lengths.mask, *pasts, *befores, *fixed, *kept]
        presents = [self.renamed.get(cache.present, cache.present) for cache in ordered]
        rest = [value for value in graph.outputs if value is not logits and value not in presents]
        graph.outputs[:] = [logits, *presents, *rest]
        _rename(self.model, names)
        tokens = self.facts.shape(decoder.tokens) or (None, None)
        return GeneratorInterface(
            tokens=TOKENS,
            mask=MASK,
            caches=tuple(caches),
            states=states,
            fixed=tuple(value.name or "" for value in fixed),
            logits=LOGITS,
            vocabulary=shape[2] if isinstance(shape[2], int) else 0,
            max_length=self.max_length,
            last_logits=last_logits,
            mixed_lengths=self.mixed_lengths and not self.kept and not states,
            one_at_a_time=tokens[1] == 1,
        )

    def _buffer(
        self,
        cache: Cache,
        present: ir.Value,
        layer: int,
        kind: Literal["key", "value"],
        *,
        in_place: bool,
        names: Mapping[ir.Value, str],
    ) -> CacheBuffer:
        dims = [dim if isinstance(dim, int) else -1 for dim in self.facts.shape(cache.past) or ()]
        batch = _text((self.facts.shape(self.decoder.tokens) or (None,))[0])
        for value, length in ((cache.past, "past_sequence_length"), (present, "total_sequence_length")):
            sizes: list[int | str | None] = [batch if dim < 0 else dim for dim in dims]
            sizes[cache.axis] = length
            _set_shape(value, sizes)
            value.type = cache.past.type
        dims[cache.axis] = self.max_length
        dtype = str((self.facts.dtype(cache.past) or ir.DataType.FLOAT).numpy())
        return CacheBuffer(names[cache.past], names[present], layer, kind, tuple(dims), cache.axis, dtype, in_place)


def _text(dim: object) -> int | str | None:
    return dim if isinstance(dim, int) or dim is None else None if str(dim).startswith("?") else str(dim)


def _set_shape(value: ir.Value, sizes: Sequence[int | str | None]) -> None:
    value.shape = ir.Shape(sizes)


def _rename(model: ir.Model, names: Mapping[ir.Value, str]) -> None:
    """Give values names; another value that has one of them gets another."""
    taken = set(names.values())
    for number, value in enumerate(_values(model)):
        if value.name in taken and value not in names:
            value.name = f"{value.name}_before_{number}"
    for value, name in names.items():
        value.name = f"generator_{name}"
    for value, name in names.items():
        value.name = name


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from list(model.graph.initializers.values())
    for node in model.graph.all_nodes():
        yield from node.outputs


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
