"""Let caches of a fixed length grow: a decoder that writes into buffers becomes one that appends.

    present = Concat(past, new)                past has the tokens so far, and the number of them is its size
    written = Pad(present, zeros up to the length of the buffer)

Nodes behind the step read `written`, which has the elements of a buffer of zeros that a loop has written into from the first
token on; those before it read the input with zeros behind. The input that says how many tokens there are, or where the new ones
stand, is computed from the size of the past. A mask for all places of the buffer becomes one for past and new tokens.

Requires: each buffer to be written behind the tokens of the past, and by no other input than one number or the positions of
the new tokens; masks that attention over the buffers takes; opset 11.

Does not handle: buffers that are written from the start again when they are full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.decoder_interface import PAST, DecoderInterface
from ortfuse.generation.find_interface import find_interface
from ortfuse.generation.length_functions import every_step
from ortfuse.generation.plan_nodes import PlanNodes
from ortfuse.generation.positional_values import PositionalValues
from ortfuse.generation.written_buffers import WrittenBuffer, writes_at_the_end, written_buffers
from ortfuse.ir.dims import evaluate, parse, symbols
from ortfuse.ir.value_names import unused_name
from ortfuse.ir.walk import used_values
from ortfuse.runtime.submodel import upstream

_PAD = 11
"""The opset whose Pad takes numbers of elements that are computed."""


@dataclass(frozen=True)
class GrownBuffers:
    """The caches of a decoder that had a fixed length.

    Attributes:
        length: How many tokens they held.
        counter: The name of the input that said how many tokens there are, or where the new ones stand.
        masks: The names of the inputs that had a column for each place of the buffers.
        written: The buffers, with what says where.
    """

    length: int
    counter: str
    masks: tuple[str, ...]
    written: tuple[WrittenBuffer, ...]

    def roles(self, roles: Mapping[str, str] | None) -> dict[str, str]:
        """Roles of inputs and outputs without that of positions, if these are the input that is computed now."""
        return {role: name for role, name in (roles or {}).items() if (role, name) != ("positions", self.counter)}

    def demand_appended(self, model: ir.Model, interface: DecoderInterface) -> None:
        """Check that each step writes behind the tokens of the past; `model` is the decoder with growing caches.

        Raises:
            GenerationError: It writes elsewhere.
        """
        facts = Facts(model)
        values = PositionalValues(model, facts, interface)
        for one in self.written:
            if one.places not in values:
                raise GenerationError(_ELSEWHERE.format(one.past.name))
        order = list(dict.fromkeys(one.places for one in self.written))
        evaluator = values.evaluator(order)
        steps = every_step(values, evaluator, self.length)
        for step, arrays in zip(steps, evaluator.at(steps), strict=True):
            step = values.possible(step)
            sizes = interface.sizes(facts, step.batch, step.past, step.length)
            for one in self.written:
                dims = [evaluate(dim, sizes) for dim in facts.shape(one.past) or ()]
                dims[one.past_axis] = self.length
                whole = [dims[number] for number in one.perm]
                if not writes_at_the_end(one, arrays[order.index(one.places)], whole, step):
                    raise GenerationError(_ELSEWHERE.format(one.past.name))

    def demand_masks(self, model: ir.Model, facts: Facts, interface: DecoderInterface) -> None:
        """Check that inputs with a column for each place are the mask of attention over the buffers.

        Args:
            model: The decoder with growing caches, whose attention is fused.
            facts: Its facts.
            interface: The roles of its inputs and outputs.

        Raises:
            GenerationError: One is something else, which has as many columns.
        """
        values, pasts = PositionalValues(model, facts, interface), {cache.past for cache in interface.caches}
        attention = [
            node
            for node in model.graph
            if node.op_type in PAST and not pasts.isdisjoint(_computed_from(node.inputs[1:3]))
        ]
        masking = _computed_from(value for node in attention for value in node.inputs if value in values)
        for value in model.graph.inputs if attention else ():  # no layer is rewritten if none is fused
            is_mask = value is interface.mask and value in masking
            if value.name in self.masks and value.uses() and not is_mask:
                raise GenerationError(_NO_MASK.format(value.name))


_ELSEWHERE = (
    "{} has a fixed length, and a step does not write behind the tokens of the past; export the decoder with an open axis for "
    "its past"
)


_NO_MASK = (
    "the input {} has as many columns as the buffers have places, but is not the mask of attention over them; export the decoder "
    "without it, or with another number of columns"
)


def _computed_from(values: Iterable[ir.Value | None]) -> set[ir.Value]:
    """Values, and all from whose elements they are computed."""
    given = [value for value in values if value is not None]
    nodes = upstream(given, lambda node: node.op_type not in ("Shape", "Size"))
    read = {value for node in nodes if node.op_type not in ("Shape", "Size") for value in used_values(node)}
    return read | set(given)


def grow_buffers(model: ir.Model, roles: Mapping[str, str] | None) -> GrownBuffers | None:
    """Let caches of a fixed length grow, in place; `None` if there are none.

    Args:
        model: A decoder, in topological order.
        roles: Names of inputs and outputs by role.

    Raises:
        GenerationError: There are, and it cannot be told from which input a step knows where to write.
    """
    facts = Facts(model)
    found = [*written_buffers(model.graph, facts)]
    if not found or model.graph.opset_imports.get("", 0) < _PAD:
        return None
    with contextlib.suppress(GenerationError):  # what is written into may be states beside caches that grow
        fixed = find_interface(model, facts, roles).fixed
        found = [
            one for one in found if any(_is_integer(value) for value in fixed if value in _computed_from([one.places]))
        ]
    lengths = sorted({one.length for one in found})
    if len(lengths) > 1:
        raise GenerationError(f"steps write into buffers of several lengths: {lengths}")
    return _Growth(model.graph, facts, found, lengths[0]).run() if found else None


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


@dataclass
class _Growth:
    graph: ir.Graph
    facts: Facts
    found: Sequence[WrittenBuffer]
    length: int

    def run(self) -> GrownBuffers:
        counter = self._counter()
        tokens = self._tokens(counter)
        self.nodes = PlanNodes(self.graph, "grow")
        masks = [value for value in self.graph.inputs if self._is_mask(value, counter, tokens)]
        self._open(masks)
        for one in self.found:
            self._fill(one.past, one.past_axis)
        self._count(counter, self._size(self.found[0].past, self.found[0].past_axis), tokens)
        for one in self.found:
            self._append(one)
        for mask in masks:
            self._fill(mask, len(mask.shape or ()) - 1, self._hidden(mask))
        return GrownBuffers(
            self.length, counter.name or "", tuple(mask.name or "" for mask in masks), tuple(self.found)
        )

    # Inputs

    def _counter(self) -> ir.Value:
        """The input by which a step knows where to write.

        Raises:
            GenerationError: There is none, or several.
        """
        used = _computed_from(one.places for one in self.found)
        inputs = [value for value in self.graph.inputs if value in used and value.name not in self.graph.initializers]
        shapes = [self.facts.shape(value) for value in inputs if _is_integer(value)]
        if len(inputs) != 1 or not shapes or shapes[0] is None or len(shapes[0]) > 2:
            names = ", ".join(value.name or "" for value in inputs) or "no input"
            raise GenerationError(
                f"{self.found[0].past.name} has a fixed length, and {names} would have to be one number, or positions, by "
                "which a step knows where to write; export the decoder with an open axis for its past"
            )
        return inputs[0]

    def _tokens(self, counter: ir.Value) -> ir.Value | None:
        """The input of tokens, or of their embeddings, that positions have the length of; `None` if these are one number."""
        length = (self.facts.shape(counter) or (1,))[-1]
        if length == 1:
            return None
        for value in self.graph.inputs:
            shape = self.facts.shape(value)
            if value is not counter and shape is not None and len(shape) in (2, 3) and shape[1] == length:
                return value
        text = "[batch, sequence] or [batch, sequence, size] is as long as"
        raise GenerationError(f"no input {text} {counter.name}, the positions of the new tokens")

    def _is_mask(self, value: ir.Value, counter: ir.Value, tokens: ir.Value | None) -> bool:
        """Whether an input has a column for each place of the buffers."""
        shape, kind = self.facts.shape(value), self.facts.dtype(value)
        if value in (counter, tokens) or value.name in self.graph.initializers or shape is None or kind is None:
            return False
        is_by_query = len(shape) == 4 and (kind == ir.DataType.BOOL or kind.is_floating_point())
        is_buffer = any(value is one.past for one in self.found)
        return shape[-1] == self.length and not is_buffer and (len(shape) == 2 or is_by_query)

    def _open(self, masks: Sequence[ir.Value]) -> None:
        """Let buffers have the tokens of the past, and masks those and the new ones."""
        known = {name for value in self.graph.inputs for name in _names(value)}
        length = unused_name("past_tokens", set(known))
        for one in self.found:
            _resize(one.past, one.past_axis, length)
        new = (self.facts.shape(self.found[0].new) or ())[self.found[0].axis]
        for mask in masks:
            _resize(mask, len(mask.shape or ()) - 1, f"{length} + {new}" if symbols(new) <= known else None)

    # Nodes

    def _size(self, value: ir.Value, axis: int, before: ir.Node | None = None) -> ir.Value:
        """int64 [1], a size of a value."""
        shape = self.nodes.add("Shape", [value], before=before)
        return self.nodes.add("Gather", [shape, self.nodes.ints([axis])], before=before)

    def _count(self, counter: ir.Value, past: ir.Value, tokens: ir.Value | None) -> None:
        """Compute the input by which a step knows where to write, in its place."""
        shape = self.facts.shape(counter) or ()
        found = past
        if tokens is not None:
            scalar = self.nodes.ints([])
            start = self.nodes.add("Reshape", [past, scalar])
            more = self.nodes.add("Reshape", [self._size(tokens, 1), scalar])
            end = self.nodes.add("Add", [start, more])
            found = self.nodes.add("Range", [start, end, self.nodes.ints(1)])
        if len(shape) == 0:
            found = self.nodes.add("Reshape", [found, self.nodes.ints([])])
        elif len(shape) == 2:
            found = self.nodes.add("Reshape", [found, self.nodes.ints([1, -1])])
            if shape[0] != 1 and tokens is not None:
                found = self.nodes.add(
                    "Expand",
                    [found, self.nodes.add("Concat", [self._size(tokens, 0), self.nodes.ints([1])], {"axis": 0})],
                )
        if self.facts.dtype(counter) != ir.DataType.INT64:
            assert counter.dtype is not None
            found = self.nodes.add("Cast", [found], {"to": counter.dtype.value})
        self._instead(counter, found)
        self.graph.inputs.remove(counter)

    def _append(self, one: WrittenBuffer) -> None:
        """Append what a node writes, and let what reads its result have that with zeros behind."""
        node, rank = one.node, len(one.perm)
        back = [one.perm.index(number) for number in range(rank)]
        new = one.new if back == [*range(rank)] else self._before(node, "Transpose", [one.new], {"perm": back})
        whole = self._before(node, "Concat", [one.past, new], {"axis": one.past_axis})
        written = self._filled(whole, one.past_axis, node)
        if back != [*range(rank)]:
            written = self._before(node, "Transpose", [written], {"perm": one.perm})
        output = node.outputs[0]
        present = one.present
        for number, value in enumerate(list(self.graph.outputs)):
            if value is present:
                self.graph.outputs[number] = whole
        self._instead(output, written)
        name = present.name or ""
        present.name, whole.name = self.nodes.name(f"{name}_fixed"), name
        whole.type, whole.shape = one.past.type, one.past.shape

    def _filled(self, value: ir.Value, axis: int, before: ir.Node, fill: ir.Value | None = None) -> ir.Value:
        """A value with zeros, or something else, behind it, up to the length of the buffers."""
        rank = len(value.shape) if value.shape is not None else len(self.found[0].perm)
        missing = self._before(before, "Sub", [self.nodes.ints([self.length]), self._size(value, axis, before)])
        zeros = [self.nodes.ints([0] * number) for number in (rank + axis, rank - axis - 1) if number]
        ends = [zeros[0], missing, *zeros[1:]]
        pads = self._before(before, "Concat", ends, {"axis": 0})
        return self._before(before, "Pad", [value, pads, *([] if fill is None else [fill])])

    def _before(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, object] | None = None,
    ) -> ir.Value:
        return self.nodes.add(op_type, inputs, attributes, before=node)

    def _fill(self, value: ir.Value, axis: int, fill: ir.Value | None = None) -> None:
        """Let what reads an input read it with zeros, or something else, behind it."""
        readers = tuple(value.uses())
        filled = self._filled(value, axis, self.nodes.first, fill)
        for use in readers:
            use.node.replace_input_with(use.idx, filled)

    def _hidden(self, mask: ir.Value) -> ir.Value:
        """The element of a mask that hides a place."""
        kind = mask.dtype
        assert kind is not None
        hidden = np.finfo(kind.numpy()).min if kind.is_floating_point() and len(mask.shape or ()) == 4 else 0
        return self.nodes.constant(np.array(hidden, kind.numpy()))

    def _instead(self, old: ir.Value, new: ir.Value) -> None:
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)


def _resize(value: ir.Value, axis: int, size: str | None) -> None:
    """Give an axis of an input an open size, by its name or formula."""
    dims = list(value.shape or ())
    dims[axis] = ir.SymbolicDim(size)
    value.shape = ir.Shape(dims)


def _names(value: ir.Value) -> set[str]:
    """The symbols of an input's sizes."""
    texts = [dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)]
    return {name for text in texts if text for name in symbols(parse(text))}
