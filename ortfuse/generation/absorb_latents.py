"""Let attention over latents multiply its queries and results by the matrices of keys and values, not the tokens in the cache.

    q . (W z) = (W' q) . z          for keys W z of a token's latents z, W' the transpose of W
    sum of p V z = V (sum of p z)   for values V z, and p the weights of attention

Attention then has one head of keys, the latents and the elements that all heads share, and one of values, the latents. Both
become caches of their own, [batch, 1, length, size]. A step no longer computes keys and values of all earlier tokens.

Transforms: ai.onnx Attention whose keys and values are linear in what plain caches hold of their token (`latent_operands`).

Requires: constant matrices; as many heads of keys as of queries; nothing else to read the caches.

Does not handle: latents to which something is added before or after the product, and keys that are rotated after it. The caches
stay as they are, and the report says why.

Rationale: for each earlier token and head, a score has as many products as the latents have elements, not as a head has. But keys
and values of all earlier tokens took as many for each element of a head. The matrices are as large as before.
Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Read, leaves
from ortfuse.generation.cache_operands import appended, narrow, narrow_queries
from ortfuse.generation.cache_readers import read_outside
from ortfuse.generation.decoder_interface import PAST, Cache, DecoderInterface
from ortfuse.generation.drop_caches import caches_of_unknown_sizes, drop_caches, past_name
from ortfuse.generation.latent_operands import LatentOperand, LatentReader, Place
from ortfuse.generation.plan_nodes import PlanNodes


@dataclass(frozen=True)
class Absorbed:
    """The outcome for latent caches.

    Attributes:
        count: How many attentions were rewritten.
        kept: Why a cache stays as it is, by its name.
    """

    count: int
    kept: Mapping[str, str]


def absorb_latents(model: ir.Model, facts: Facts, interface: DecoderInterface) -> Absorbed:
    """Rewrite attention over latent caches, in place.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards if anything was rewritten.
        interface: The roles of its inputs and outputs. It does not hold either.
    """
    presents = {
        cache.present: cache
        for cache in interface.caches
        if cache.is_plain and (producer := cache.present.producer()) is not None and producer.op_type == "Concat"
    }
    return _Absorption(model, facts, interface, presents).run() if presents else Absorbed(0, {})


@dataclass(frozen=True, eq=False)
class _Site:
    """Attention over latents.

    Attributes:
        node: The node.
        keys: Its keys.
        values: Its values.
    """

    node: ir.Node
    keys: LatentOperand
    values: LatentOperand

    @property
    def caches(self) -> list[Cache]:
        """The caches that it reads."""
        return list(dict.fromkeys(cache for cache, _ in (*self.keys.places, *self.values.places)))


@dataclass
class _Absorption:
    model: ir.Model
    facts: Facts
    interface: DecoderInterface
    presents: Mapping[ir.Value, Cache]
    wholes: dict[tuple[str, tuple[Place, ...]], ir.Value] = field(default_factory=dict)
    lengths: dict[Cache, ir.Value] = field(default_factory=dict)
    news: dict[object, ir.Value] = field(default_factory=dict)

    def run(self) -> Absorbed:
        self.reader = LatentReader(self.facts, self.presents)
        sites, kept = self._sites()
        if sites:
            self.nodes = nodes = PlanNodes(self.model.graph, "absorb")
            self.past = past_name(self.model, self.facts, self.interface)
            attended = {site.node: site.caches for site in sites}
            for site in sites:
                self._replace(site)
            drop_caches(
                self.model,
                self.facts,
                nodes,
                attended,
                lambda cache: nodes.add("Shape", [self.lengths[cache]], {"start": 2, "end": 3}),
            )
        return Absorbed(len(sites), {cache.past.name or "": why for cache, why in kept.items()})

    # What is there

    def _sites(self) -> tuple[list[_Site], dict[Cache, str]]:
        """The attention that is rewritten, and why a cache stays as it is of which other attention computes keys or values."""
        sites, wrong = [], dict[Cache, str]()
        for node in self.model.graph:
            if (node.domain, node.op_type) != ("", "Attention"):
                continue
            computed = self._computed([one for one in node.inputs[1:3] if one is not None])
            caches = read_outside(computed, self.presents, self._above)
            if caches:
                site = self._site(node)
                if isinstance(site, _Site):
                    sites.append(site)
                else:
                    wrong |= dict.fromkeys(caches, site)
        while True:
            attended = {site.node: site.caches for site in sites}
            unknown = caches_of_unknown_sizes(self.model, self.facts, attended)
            bad = dict.fromkeys(unknown, "its size is asked for, in a form that is not known")
            bad |= dict.fromkeys(self._read_outside(sites), "it is read by something else, too")
            if not bad:
                taken = {cache for site in sites for cache in site.caches}
                return sites, {cache: why for cache, why in wrong.items() if cache not in taken}
            for site in sites:  # all that an attention reads stays
                why = next((bad[cache] for cache in site.caches if cache in bad), "")
                wrong |= dict.fromkeys(site.caches, why) if why else {}
            sites = [site for site in sites if bad.keys().isdisjoint(site.caches)]

    def _computed(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The values that a node computes, and of which elements of `values` are; of any type."""
        pending, found = list(values), dict[ir.Value, None]()
        while pending:
            value = pending.pop()
            known = None if self.facts.is_const(value) else self.facts.index_map(value, list(self.presents))
            for leaf in () if known is None else leaves(known.element):
                if isinstance(leaf, Read) and leaf.value not in self.presents and leaf.value not in found:
                    source = narrow(leaf.value, self.facts)
                    pending += [] if source is None else [source]
                    found |= {} if source is not None else {leaf.value: None}
        return list(found)

    @staticmethod
    def _above(value: ir.Value, producer: ir.Node) -> list[ir.Value] | None:
        """The values that a value is computed from: none if its node is other attention, or reads sizes alone."""
        return [] if producer.op_type in (*PAST, "Shape", "Size") else None

    def _site(self, node: ir.Node) -> _Site | str:
        """Attention, or why it stays as it is."""
        facts, given = self.facts, [*node.inputs, *[None] * 7]
        shapes = [facts.shape(one) for one in given[:3]]
        if any(one is not None for one in given[4:6]):
            return "something is appended to keys or values that are computed of its cache"
        if given[6] is not None:
            return "it counts the keys that are no padding"
        if node.attributes.get_int("is_causal", 0) == 1:
            return "it is causal from the first key on, whatever its past"
        if node.outputs[0].is_graph_output() or any(one.uses() or one.is_graph_output() for one in node.outputs[1:]):
            return "its scores are used, or its result is an output"
        if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
            return "the shape of its queries, keys or values is unknown"
        heads = [
            shape[1] if len(shape) == 4 else node.attributes.get_int(name, 0)
            for shape, name in zip(shapes, ("q_num_heads", "kv_num_heads", "kv_num_heads"), strict=True)
            if shape is not None
        ]
        if not isinstance(heads[0], int) or heads[0] < 1 or heads != heads[:1] * 3:
            return f"it has other heads of queries than of keys and values: {heads}"
        keys, values = (self.reader.read(one, heads[0]) for one in node.inputs[1:3] if one is not None)
        if isinstance(keys, str) or isinstance(values, str):
            return keys if isinstance(keys, str) else str(values)
        if values.shared:
            return "its values are not products of a latent alone"
        site = _Site(node, keys, values)
        declared, kinds = {facts.dtype(one) for one in given[:3]}, {facts.dtype(cache.past) for cache in site.caches}
        is_narrow = given[0] is not None and declared != kinds and narrow_queries(given[0], facts)[0] is None
        if len(declared) != 1 or len(kinds) != 1 or is_narrow:
            return f"its queries, keys and values have the types {_text(declared)}, and its caches {_text(kinds)}"
        return site

    def _read_outside(self, sites: list[_Site]) -> set[Cache]:
        """The caches that something reads besides attention that is rewritten."""
        owners = {cache.past: cache for site in sites for cache in site.caches}
        presents = {cache.present for cache in owners.values()}
        attended = {site.node: site for site in sites}

        def reads(value: ir.Value, producer: ir.Node) -> list[ir.Value] | None:
            if producer in attended:
                used = [number for number in (0, 3) if len(producer.inputs) > number]
                news = [appended(cache) for cache in attended[producer].caches]
                return [one for one in (*news, *(producer.inputs[number] for number in used)) if one is not None]
            return [] if producer.op_type in ("Shape", "Size") and not producer.domain else None

        return read_outside((value for value in self.model.graph.outputs if value not in presents), owners, reads)

    # What it becomes

    def _replace(self, site: _Site) -> None:
        node, keys, values, nodes = site.node, site.keys, site.values, self.nodes
        heads, size = keys.heads, len(keys.computed) + len(keys.moved)
        queries, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
        assert queries is not None
        declared, kind = self.facts.dtype(queries), self.facts.dtype(site.caches[0].past)
        scale = node.attributes.get_float("scale", None)
        scale = size**-0.5 if scale is None else scale
        is_split = self.facts.rank(queries) == 4
        if declared != kind:  # scores of float16 are computed in float32
            narrowed, factor = narrow_queries(queries, self.facts)
            assert narrowed is not None
            queries, scale = narrowed, scale * factor
        by_head = queries if is_split else self._by_head(queries, heads, size, node)
        into_latents = nodes.initializer(keys.weight.transpose(0, 2, 1))
        latent = nodes.add("MatMul", [self._elements(by_head, size, keys.computed, node), into_latents], before=node)
        if keys.moved:
            shared = self._elements(by_head, size, keys.moved, node)
            latent = nodes.add("Concat", [latent, shared], {"axis": 3}, before=node)
        wholes = [self._whole(one, kind_of, node) for one, kind_of in ((keys, "key"), (values, "value"))]
        given = [self._cast(one, kind, declared, node) for one in (latent, *wholes)]
        taken = {name: one for name, one in node.attributes.items() if name not in ("q_num_heads", "kv_num_heads")}
        made = nodes.node("Attention", [*given, mask], taken | {"scale": scale}, before=node)
        mixed = self._cast(made.outputs[0], declared, kind, node)
        result = nodes.add("MatMul", [mixed, nodes.initializer(values.weight)], before=node)
        result = self._cast(result if is_split else self._in_a_row(result, node), kind, declared, node)
        result.type = node.outputs[0].type
        for use in tuple(node.outputs[0].uses()):
            use.node.replace_input_with(use.idx, result)
        self.model.graph.remove(node, safe=True)

    def _whole(self, operand: LatentOperand, kind: str, before: ir.Node) -> ir.Value:
        """[batch, 1, length, elements], a cache of its own with what is appended; that of another attention of the same."""
        key = (kind, operand.places)
        if key not in self.wholes:
            graph, nodes, caches = self.model.graph, self.nodes, dict.fromkeys(cache for cache, _ in operand.places)
            cache = next(iter(caches))
            batch = (self.facts.shape(cache.past) or ())[self.reader.batch_axes[cache]]
            past = ir.Value(
                name=nodes.name(f"{cache.past.name}_{kind}"),
                type=cache.past.type,
                shape=ir.Shape([batch if isinstance(batch, int) else str(batch), 1, self.past, len(operand.places)]),
            )
            new = nodes.add("Unsqueeze", [self._new(operand.places, before), nodes.ints([1])], before=before)
            self.wholes[key] = whole = nodes.add("Concat", [past, new], {"axis": 2}, before=before)
            whole.type = past.type
            graph.inputs.append(past)
            graph.outputs.append(whole)
            self.lengths |= dict.fromkeys(caches, past)
        return self.wholes[key]

    def _cast(self, value: ir.Value, kind: ir.DataType | None, wanted: ir.DataType | None, before: ir.Node) -> ir.Value:
        """A value of one type in another."""
        if kind == wanted or wanted is None:
            return value
        return self.nodes.add("Cast", [value], {"to": int(wanted)}, before=before)

    def _new(self, places: tuple[Place, ...], before: ir.Node) -> ir.Value:
        """[batch, new tokens, places], what is appended of elements of tokens."""
        if places not in self.news:
            runs: list[tuple[Cache, list[int]]] = []
            for cache, number in places:
                if not runs or runs[-1][0] is not cache:
                    runs.append((cache, []))
                runs[-1][1].append(number)
            parts = [self._elements(*self._tokens(cache, before), numbers, before) for cache, numbers in runs]
            self.news[places] = (
                parts[0] if len(parts) == 1 else self.nodes.add("Concat", parts, {"axis": 2}, before=before)
            )
        return self.news[places]

    def _tokens(self, cache: Cache, before: ir.Node) -> tuple[ir.Value, int]:
        """[batch, new tokens, elements], what is appended to a cache, and the number of elements."""
        new = appended(cache)
        shape = self.facts.shape(cache.present) or ()
        order = [self.reader.batch_axes[cache], cache.axis]
        order += [number for number in range(len(shape)) if number not in order]
        sizes = [int(size) for number in order[2:] if isinstance(size := shape[number], int)]
        count = int(np.prod(sizes, dtype=np.int64))
        assert new is not None
        if cache not in self.news:
            found = new
            if order != sorted(order):
                found = self.nodes.add("Transpose", [found], {"perm": order}, before=before)
            if len(sizes) != 1:
                found = self.nodes.add("Reshape", [found, self.nodes.ints([0, 0, count])], before=before)
            self.news[cache] = found
        return self.news[cache], count

    def _elements(self, value: ir.Value, count: int, numbers: Sequence[int], before: ir.Node) -> ir.Value:
        """Some elements along the last axis of a value, which has `count`."""
        start, end = numbers[0], numbers[-1] + 1
        if list(numbers) != list(range(start, end)):
            return self.nodes.add("Gather", [value, self.nodes.ints(numbers)], {"axis": -1}, before=before)
        if (start, end) == (0, count):
            return value
        ends = [self.nodes.ints([number]) for number in (start, end, -1)]
        return self.nodes.add("Slice", [value, *ends], before=before)

    def _by_head(self, value: ir.Value, heads: int, size: int, before: ir.Node) -> ir.Value:
        """[batch, heads, sequence, size] of a value [batch, sequence, heads * size]."""
        found = self.nodes.add("Reshape", [value, self.nodes.ints([0, 0, heads, size])], before=before)
        return self.nodes.add("Transpose", [found], {"perm": [0, 2, 1, 3]}, before=before)

    def _in_a_row(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """[batch, sequence, heads * size] of a value [batch, heads, sequence, size]."""
        found = self.nodes.add("Transpose", [value], {"perm": [0, 2, 1, 3]}, before=before)
        return self.nodes.add("Reshape", [found, self.nodes.ints([0, 0, -1])], before=before)


def _text(kinds: Collection[ir.DataType | None]) -> str:
    """Element types in words."""
    return " and ".join(sorted("unknown" if kind is None else kind.name for kind in kinds))
