"""Give each attention caches of its own, [batch, heads, length, size] with all tokens, where a decoder has them in other layouts.

Transforms:

- one cache for several layers, or for keys and values, into one for each;
- axes in another order, or several in one, into batch, heads, length and size;
- caches that keep the last tokens alone into ones that keep all, of which attention reads the last ones.

Requires:

- attention to read a piece of the cache and what is new behind it, and the output to have both in the same places
  (`cache_pieces`);
- nothing else to read the cache.

Does not handle: a cache with one reader for which this does not hold. It stays as it is, and the report says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import IndexMap, Read, axis, leaves
from ortfuse.analysis.index_maps.element_expressions import at as moved
from ortfuse.generation.cache_operands import read_last, read_operand
from ortfuse.generation.cache_pieces import Piece, PieceReader
from ortfuse.generation.cache_readers import read_outside
from ortfuse.generation.decoder_interface import Cache, DecoderInterface
from ortfuse.generation.drop_caches import caches_of_unknown_sizes, drop_caches, past_name
from ortfuse.generation.plan_nodes import PlanNodes
from ortfuse.ir.dims import DimLike, floor_div
from ortfuse.transforms.index_maps.make import Plan, Supply
from ortfuse.transforms.index_maps.plans import plans

Pieces = tuple[Piece, Piece]
"""The keys and the values of one attention."""

_ALL = 2**63 - 1


def separate_caches(model: ir.Model, facts: Facts, interface: DecoderInterface) -> dict[str, str]:
    """Give attention caches of its own, in place.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards.
        interface: The roles of its inputs and outputs.

    Returns:
        Why a cache stays as it is, by its name.
    """
    caches = {cache.past: cache for cache in interface.caches if not cache.is_plain or facts.rank(cache.past) != 4}
    caches |= _read_otherwise(model, facts, interface)
    return _Separation(model, facts, interface, caches).run() if caches else {}


def _read_otherwise(model: ir.Model, facts: Facts, interface: DecoderInterface) -> dict[ir.Value, Cache]:
    """The caches that attention does not read as keys or values alone, by their input."""
    presents = {cache.present: cache for cache in interface.caches if cache.is_plain}
    pasts = {cache.past: cache for cache in interface.caches}
    reader = PieceReader(facts, pasts)
    found: dict[ir.Value, Cache] = {}
    for node in model.graph:
        if (node.domain, node.op_type) != ("", "Attention"):
            continue
        given = [*node.inputs, *[None] * 6]
        pairs = [
            (past, new)
            for past, new in zip(given[4:6], given[1:3], strict=True)
            if past is not None and new is not None
        ]
        if pairs:
            is_known = all(past in pasts or read_last(past, new, pasts, facts) is not None for past, new in pairs)
        else:
            read = [read_operand(value, presents, facts) for value in given[1:3] if value is not None]
            is_known = not any(isinstance(one, str) for one in read)
        if not is_known:
            found |= {cache.past: cache for cache in reader.reads(node)}
    return found


@dataclass(frozen=True)
class _Own:
    """A cache of its own.

    Attributes:
        past: The input, [batch, heads, length, size].
        read: What attention reads of it: itself, or its last tokens.
    """

    past: ir.Value
    read: ir.Value


@dataclass
class _Separation:
    model: ir.Model
    facts: Facts
    interface: DecoderInterface
    caches: Mapping[ir.Value, Cache]
    kept: dict[str, str] = field(default_factory=dict)
    owned: dict[tuple[ir.Value, object], _Own] = field(default_factory=dict)
    news: dict[tuple[object, int], ir.Value] = field(default_factory=dict)
    appended: dict[ir.Value, ir.Value] = field(default_factory=dict)
    done: set[ir.Value] = field(default_factory=set)
    past_name: str = ""

    def run(self) -> dict[str, str]:
        found = self._pieces()
        if found:
            self.nodes = PlanNodes(self.model.graph, "separate")
            for node, pieces in found.items():
                self._replace(node, pieces)
            self._widen_mask()
            self._drop(found)
        return self.kept

    # What is there

    def _pieces(self) -> dict[ir.Node, Pieces]:
        """Attention of which all caches can be replaced, with what it reads of them."""
        everything = {cache.past: cache for cache in self.interface.caches}
        reader = PieceReader(self.facts, everything)
        found: dict[ir.Node, Pieces] = {}
        wrong: dict[Cache, str] = {}
        for node in self.model.graph:
            if (node.domain, node.op_type) != ("", "Attention"):
                continue
            read = reader.reads(node)
            if not any(cache.past in self.caches for cache in read):
                continue
            keys, values = reader.pieces(node)
            problem = self._problem(node, keys, values)
            if isinstance(keys, Piece) and isinstance(values, Piece) and not problem:
                found[node] = keys, values
            else:
                wrong |= dict.fromkeys(read, problem)
        while True:
            found = {
                node: pieces for node, pieces in found.items() if not any(piece.cache in wrong for piece in pieces)
            }
            unknown = caches_of_unknown_sizes(self.model, self.facts, self._attended(found))
            bad = dict.fromkeys(unknown, "its size is asked for, in a form that is not known")
            bad |= dict.fromkeys(self._read_outside(found), "it is read by something else, too")
            if not bad:
                break
            wrong |= bad
        for past, cache in self.caches.items():
            if not any(cache is piece.cache for pieces in found.values() for piece in pieces):
                self.kept[past.name or ""] = wrong.get(cache, "its attention is not fused into ai.onnx Attention")
        return found

    def _problem(self, node: ir.Node, keys: Piece | str, values: Piece | str) -> str:
        """Why the caches of attention cannot be replaced; "" if they can."""
        for one in (keys, values):
            if isinstance(one, str):
                return one
        assert isinstance(keys, Piece)
        assert isinstance(values, Piece)
        kinds = [(one.repeats, one.extra, one.is_wide, one.added) for one in (keys, values)]
        if kinds[0] != kinds[1]:
            return "its keys and values are read differently"
        if (keys.cache.kept, keys.past) != (values.cache.kept, values.past):
            return "its keys and values keep different tokens"
        appends = len(node.inputs) > 4 and node.inputs[4] is not None
        if not appends and node.attributes.get_int("is_causal", 0) == 1:
            return "it is causal from the first key on, whatever its past"
        if len(node.inputs) > 6 and node.inputs[6] is not None:
            return "it counts the keys that are no padding"
        if keys.is_apart and self.facts.rank(node.inputs[1]) != 4:
            return "its keys have no axis of heads"
        if any(self._plan(one) is None for one in (keys, values)):
            return "what is appended to its cache is moved in a way that no operators are known for"
        return ""

    def _read_outside(self, found: Mapping[ir.Node, Pieces]) -> set[Cache]:
        """The caches that something reads besides attention that is replaced."""
        owners = {piece.cache.past: piece.cache for pieces in found.values() for piece in pieces}
        handed_on = {cache.present for cache in owners.values()}

        def reads(value: ir.Value, producer: ir.Node) -> list[ir.Value] | None:
            if producer in found and value is producer.outputs[0]:
                used = [producer.inputs[0], producer.inputs[3] if len(producer.inputs) > 3 else None]
                new = [leaf.value for one in found[producer] for leaf in leaves(one.new) if isinstance(leaf, Read)]
                return [*(one for one in used if one is not None), *new]
            return [] if producer.op_type == "Shape" and not producer.domain else None

        return read_outside((value for value in self.model.graph.outputs if value not in handed_on), owners, reads)

    # What it becomes

    def _replace(self, node: ir.Node, pieces: Pieces) -> None:
        keys = pieces[0]
        rank = 4 if keys.is_apart else self.facts.rank(node.inputs[1]) or 4
        owns = [self._own(piece) for piece in pieces]
        if keys.is_apart:
            for number, (piece, own) in enumerate(zip(pieces, owns, strict=True), 1):
                node.replace_input_with(number, self._all(piece, own, node))
        else:
            news = [self._new(piece, rank, node) for piece in pieces]
            node.resize_inputs(max(6, len(node.inputs)))
            for number, (own, new) in enumerate(zip(owns, news, strict=True), 1):
                node.replace_input_with(number, new)
                node.replace_input_with(number + 3, own.read)
            if rank == 3:
                node.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", keys.groups)
            if len(node.outputs) < 3:
                node.resize_outputs(3)
            for output, piece in zip(node.outputs[1:3], pieces, strict=True):
                if output.name is None:
                    output.name = self.nodes.name()
                output.type, output.shape = ir.TensorType(self._kind(piece)), None
        for number, (piece, own) in enumerate(zip(pieces, owns, strict=True), 1):
            if own.past in self.done:
                continue
            self.done.add(own.past)
            is_own = not keys.is_apart and own.read is own.past
            present = node.outputs[number] if is_own else self._appended(piece, own, node)
            if present not in self.model.graph.outputs:
                present.type = own.past.type
                self.model.graph.outputs.append(present)

    def _own(self, piece: Piece) -> _Own:
        """The cache of a piece: a new input for each piece of a cache."""
        key = (piece.cache.past, piece.read)
        if key not in self.owned:
            graph, number = self.model.graph, len(self.owned)
            past = ir.Value(
                name=self.nodes.name(f"{piece.cache.past.name}_{number}"),
                type=ir.TensorType(self._kind(piece)),
                shape=ir.Shape([_text(piece.batch), piece.groups, self._past_text(), piece.size]),
            )
            graph.inputs.append(past)
            read = past
            if piece.cache.kept is not None:
                read = self.nodes.add(
                    "Slice", [past, *(self.nodes.ints([one]) for one in (-piece.cache.kept, _ALL, 2))]
                )
                read.type = past.type
            self.owned[key] = _Own(past, read)
        return self.owned[key]

    def _appended(self, piece: Piece, own: _Own, before: ir.Node) -> ir.Value:
        """[batch, heads, length, size], all tokens."""
        if own.past not in self.appended:
            new = self._new(piece, 4, before)
            self.appended[own.past] = self.nodes.add("Concat", [own.past, new], {"axis": 2}, before=before)
        return self.appended[own.past]

    def _all(self, piece: Piece, own: _Own, before: ir.Node) -> ir.Value:
        """[batch, heads of queries, length, size], all that attention reads, with a key of zeros where there is one."""
        nodes = self.nodes
        found = self._appended(piece, own, before)
        if own.read is not own.past:
            past = nodes.add("Shape", [own.past], {"start": 2, "end": 3})
            kept = nodes.add("Min", [past, nodes.ints([piece.cache.kept or 0])])
            start = nodes.add("Sub", [past, kept])
            found = nodes.add("Slice", [found, start, nodes.ints([_ALL]), nodes.ints([2])], before=before)
        if piece.repeats > 1:
            heads = [head // piece.repeats for head in range(piece.groups * piece.repeats)]
            found = nodes.add("Gather", [found, nodes.ints(heads)], {"axis": 1}, before=before)
        if piece.extra:
            pads = [0] * 8
            pads[2 if piece.extra == "first" else 6] = 1
            found = nodes.add("Pad", [found, nodes.ints(pads)], before=before)
        if piece.is_wide:
            found = nodes.add("Cast", [found], {"to": int(ir.DataType.FLOAT)}, before=before)
        return found

    def _plan(self, piece: Piece) -> Plan | None:
        """The plan of new tokens as [batch, new tokens, heads * size]."""
        size = piece.size
        head = floor_div(axis(2), size)
        element = moved(piece.new, (axis(0), head, axis(1), axis(2) - size * head))
        found = IndexMap.of((piece.batch, piece.added, piece.groups * size), element)
        same = self._same(found)
        if same is not None:
            return same
        supply = Supply([self.interface.tokens, *found.sources], self.facts, self.model.graph.opset_imports.get("", 0))
        return next(plans(found, self.facts, supply), None)

    def _same(self, found: IndexMap) -> ir.Value | None:
        """The value of which a map is the identity."""
        sources = found.sources
        is_same = len(sources) == 1 and found.is_identity_of(sources[0], self.facts.shape(sources[0]))
        return sources[0] if is_same else None

    def _new(self, piece: Piece, rank: int, before: ir.Node) -> ir.Value:
        """The new tokens, [batch, heads, new tokens, size] or [batch, new tokens, heads * size]."""
        key = (piece.new, rank)
        if key not in self.news:
            box = piece.new_box
            found = self._same(IndexMap.of(box.ends, piece.new)) if rank == 4 else None
            if found is None:
                plan = self._plan(piece)
                assert plan is not None
                found = self.nodes.build(plan, before)
                if rank == 4:
                    sizes = self.nodes.ints([0, 0, piece.groups, piece.size])
                    found = self.nodes.add("Reshape", [found, sizes], before=before)
                    found = self.nodes.add("Transpose", [found], {"perm": [0, 2, 1, 3]}, before=before)
            self.news[key] = found
        return self.news[key]

    def _kind(self, piece: Piece) -> ir.DataType:
        return self.facts.dtype(piece.cache.past) or ir.DataType.FLOAT

    def _past_text(self) -> str:
        """The name of the number of tokens of the past."""
        self.past_name = self.past_name or past_name(self.model, self.facts, self.interface)
        return self.past_name

    # What is left

    def _attended(self, found: Mapping[ir.Node, Pieces]) -> dict[ir.Node, list[Cache]]:
        """The attention that is replaced, with its caches."""
        return {node: [piece.cache for piece in pieces] for node, pieces in found.items()}

    def _drop(self, found: Mapping[ir.Node, Pieces]) -> None:
        """Remove the caches that were replaced, and compute sizes without them."""
        nodes, pasts = self.nodes, dict[Cache, ir.Value]()
        for piece in (piece for pieces in found.values() for piece in pieces):
            pasts.setdefault(piece.cache, self.owned[piece.cache.past, piece.read].past)

        def length_of(cache: Cache) -> ir.Value:
            length = nodes.add("Shape", [pasts[cache]], {"start": 2, "end": 3})
            return length if cache.kept is None else nodes.add("Min", [length, nodes.ints([cache.kept])])

        drop_caches(self.model, self.facts, nodes, self._attended(found), length_of)

    def _widen_mask(self) -> None:
        """Let a mask that has columns for the last tokens alone have them for all."""
        mask, kept, nodes = self.interface.mask, self.interface.mask_kept(self.facts), self.nodes
        if mask is None or kept is None:
            return
        uses = tuple(mask.uses())
        length = nodes.add("Shape", [self.interface.tokens], {"start": 1, "end": 2})
        columns = nodes.add("Add", [length, nodes.ints([kept])])
        start = nodes.add("Mul", [columns, nodes.ints([-1])])
        last = nodes.add("Slice", [mask, start, nodes.ints([_ALL]), nodes.ints([-1])])
        last.type = mask.type
        for use in uses:
            use.node.replace_input_with(use.idx, last)
        added = (self.facts.shape(self.interface.tokens) or (1, 1))[1]
        first = (self.facts.shape(mask) or (1,))[:-1]
        mask.shape = ir.Shape([*map(_text, first), f"{self._past_text()} + {_text(added)}"])


def _text(dim: DimLike) -> int | str:
    return dim if isinstance(dim, int) else str(dim)
