"""Positions, angles and sizes of a generator, in the place of those that a decoder computes of its own inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.errors import GenerationError
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.length_functions import RowForm
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.generation.positional_values import PositionalValues
from ortfuse.ir.dims import DimLike, symbols
from ortfuse.ir.traits import BROADCASTS, MOVES, has

Array = np.ndarray[Any, Any]


class PositionReplacer:
    """Lets users of positional values take those of the tokens' own positions."""

    def __init__(
        self,
        facts: Facts,
        decoder: DecoderInterface,
        values: PositionalValues,
        row_forms: Mapping[ir.Value, RowForm | str],
        lengths: LengthNodes,
        max_length: int,
        *,
        take_over: Callable[[ir.Value, ir.Value], None],
        demand_apart: Callable[[str], None],
    ) -> None:
        """Take what is known of a decoder.

        Args:
            facts: Its facts.
            decoder: Its interface.
            values: Its positional values.
            row_forms: The forms of those with a row for each new token.
            lengths: The nodes of lengths and positions.
            max_length: The greatest number of tokens.
            take_over: Puts a new value in the place of an old one.
            demand_apart: Notes why the sequences of a batch need one length.
        """
        self.facts, self.decoder, self.values, self.row_forms = facts, decoder, values, row_forms
        self.lengths, self.max_length = lengths, max_length
        self.take_over, self.demand_apart = take_over, demand_apart
        self.rowed: dict[tuple[ir.Value, bool], ir.Value] = {}

    def rotary(self, node: ir.Node, cos: Array, sin: Array) -> None:
        """Let a rotary embedding outside of attention read tables by the tokens' own positions."""
        tables = [self.lengths.constant(cos), self.lengths.constant(sin)]
        given = [self.lengths.positions, *tables] if node.domain else [*tables, self.lengths.positions]
        node.resize_inputs(4)
        for number, value in enumerate(given, 1):
            node.replace_input_with(number, value)

    def use(self, node: ir.Node, number: int, value: ir.Value) -> None:
        """Let a user take the rows of the new tokens' own positions; where it cannot, sequences must be of one length."""
        form = self.row_forms.get(value)
        if number < 0 or not isinstance(form, RowForm) or (form.axis and not self._is_by_sequence(node, value)):
            if not self._is_same_for_each(node, number, value):
                name = node.name or node.outputs[0].name
                self.demand_apart(f"{node.op_type} '{name}' reads a number that depends on the lengths of a run")
            return
        one_for_all = form.axis == 0 and not self._takes_batch(node, number, value)
        key = (value, one_for_all)
        if key not in self.rowed:
            kind = self.facts.dtype(value) or ir.DataType.INT64
            self.rowed[key] = self.lengths.rows(form, kind, one_for_all=one_for_all)
        if one_for_all:
            name = node.name or node.outputs[0].name
            self.demand_apart(f"{node.op_type} '{name}' takes positions that are those of all sequences")
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

    def sources(self, queries: Mapping[ir.Node, Shape | None], buffers: Collection[ir.Value | None]) -> None:
        """Let what is left be computed from the new inputs: sizes that count tokens of the past, the mask and positions."""
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
                    self.take_over(node.outputs[0], made)
        for old, new in ((self.decoder.mask, self.lengths.mask), (self.decoder.positions, self.lengths.positions)):
            if old is not None and (old.uses() or old.is_graph_output()):
                self.take_over(old, self._as_declared(new, old))

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
