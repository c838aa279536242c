"""Find the roles of a decoder's inputs and outputs from what the graph does with them.

Names decide only between inputs that the graph treats alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.append_new_tokens import appending
from ortfuse.generation.cache_pairs import find_cache_pairs, find_moved, may_be_cache
from ortfuse.generation.decoder_interface import PAST, Cache, DecoderInterface, State
from ortfuse.generation.generator_interface import EMBEDDINGS
from ortfuse.ir.dims import DimLike
from ortfuse.ir.walk import used_values


@dataclass
class _Search:
    model: ir.Model
    facts: Facts
    given: Mapping[str, str]
    inputs: list[ir.Value] = field(init=False)
    outputs: list[ir.Value] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        self.outputs = list(graph.outputs)

    def run(self) -> DecoderInterface:
        plain = list(self._caches())
        by_input = {cache.past: cache for cache in (*plain, *self._moved_caches(plain))}
        caches = tuple(by_input[value] for value in self.inputs if value in by_input)
        if not caches:
            raise GenerationError(self._no_caches())
        for cache in caches:
            self.inputs.remove(cache.past)
            self.outputs.remove(cache.present)
        logits = self._logits()
        self.outputs.remove(logits)
        tokens = self._tokens(logits)
        self.inputs.remove(tokens)
        states = tuple(self._states(tokens))
        for state in states:
            self.inputs.remove(state.before)
            self.outputs.remove(state.after)
        positions = self._positions(tokens)
        if positions is not None:
            self.inputs.remove(positions)
        mask = self._mask(caches, tokens)
        if mask is not None:
            self.inputs.remove(mask)
        fixed, others = tuple(self.inputs), tuple(self.outputs)
        self._demand_fixed(tokens, caches, fixed)
        return DecoderInterface(tokens, mask, positions, caches, states, logits, fixed, others)

    def _caches(self) -> Iterator[Cache]:
        for value in self.inputs:
            for use in value.uses():
                found = self._appended(use.node, use.idx, value)
                if found is not None:
                    yield found
                    break

    def _moved_caches(self, known: Sequence[Cache]) -> Iterator[Cache]:
        """Caches that are cut, stacked or moved before something is appended, or afterwards."""
        pasts, presents = {cache.past for cache in known}, {cache.present for cache in known}
        inputs = [value for value in self.inputs if value not in pasts]
        outputs = [value for value in self.outputs if value not in presents]
        for pair in find_cache_pairs(inputs, outputs, self.facts):
            yield Cache(pair.past, pair.present, pair.axis, pair.kept, is_plain=False)

    def _appended(self, node: ir.Node, index: int, value: ir.Value) -> Cache | None:
        if node.graph is not self.model.graph:
            return None
        if index in PAST.get(node.op_type, ()):
            output = PAST[node.op_type].index(index) + 1
            grown = node.outputs[output] if len(node.outputs) > output else None
            return Cache(value, grown, 2) if grown is not None and grown.is_graph_output() else None
        if node.op_type != "Concat" or node.domain or index != 0 or len(node.inputs) != 2:
            return None
        rank = self.facts.rank(value)
        axis = node.attributes.get_int("axis", 0)
        if rank is None or axis is None or not node.outputs[0].is_graph_output():
            return None
        size = (self.facts.shape(value) or ())[axis % rank]
        return Cache(value, node.outputs[0], axis % rank) if not isinstance(size, int) else None

    def _no_caches(self) -> str:
        """Why there are no caches, in words."""
        for value in self.inputs:
            for use in value.uses():
                joined = use.node.outputs[0]
                if use.node.op_type != "Concat" or use.idx != 0 or len(use.node.inputs) != 2:
                    continue
                if joined.is_graph_output():
                    return f"{value.name} has a fixed length: export the decoder with an open axis for its past"
        moved = find_moved(self.inputs, self.outputs, self.facts)
        if moved is not None:
            text = "is not that input with new tokens behind it, all of them or the last ones"
            return f"the output {moved[1].name} has elements of the input {moved[0].name}, but {text}"
        grown = next((value for value in self.inputs if self._is_grown(value)), None)
        if grown is not None:
            return f"{_NOT_HANDED_ON.format(grown.name)}; export the decoder with such an output"
        text = "takes no keys and values of earlier steps: no input is appended to and handed out as an output"
        return f"the model {text}; export the decoder with its past, such as use_cache=True"

    def _demand_fixed(self, tokens: ir.Value, caches: Sequence[Cache], fixed: Sequence[ir.Value]) -> None:
        """Refuse inputs without a role that have elements for each new or past token: they are not the same in all steps.

        Raises:
            GenerationError: There is one.
        """
        length = (self.facts.shape(tokens) or (None, None))[1]
        for value in fixed:
            if not isinstance(length, int) and length in (self.facts.shape(value) or ()):
                raise GenerationError(
                    f"the input {value.name} has elements for each new token, and is neither tokens, mask nor positions of a "
                    "known form; export the decoder without it, or give its role, such as positions=NAME"
                )

        lengths = {(self.facts.shape(cache.past) or ())[cache.axis] for cache in caches}
        for value in fixed:
            if self._is_grown(value) and lengths & set(self.facts.shape(value) or ()):
                raise GenerationError(f"{_NOT_HANDED_ON.format(value.name)}, though it is as long as other caches")

    def _is_grown(self, value: ir.Value) -> bool:
        """Whether something is appended to an input along an axis that is not fixed."""
        return may_be_cache(value, self.facts) and any(map(self._is_growing, appending(value, self.facts)))

    def _is_growing(self, node: ir.Node) -> bool:
        shape = self.facts.shape(node.outputs[0]) or (1,)
        return node.op_type != "Concat" or not isinstance(shape[node.attributes.get_int("axis", 0) or 0], int)

    def _logits(self) -> ir.Value:
        floats = [value for value in self.outputs if self._is_float(value) and self.facts.rank(value) == 3]
        if not floats:
            raise GenerationError(
                "the model has no output with scores of the next token: [batch, sequence, vocabulary]"
            )
        asked = self.given.get("logits")
        tables = {self._rows(value) for value in self.inputs if self.facts.dtype(value) in _INTEGERS} - {None}
        fitting = [value for value in floats if (self.facts.shape(value) or (None,) * 3)[2] in tables]
        named = [value for value in floats if value.name == (asked or "logits")]
        for candidates in (named if asked else [], fitting, named, floats):
            if len(candidates) == 1:
                return candidates[0]
        names = ", ".join(value.name or "" for value in floats)
        raise GenerationError(
            f"which output has the scores of the next token cannot be told among {names}; name it with logits=NAME"
        )

    def _tokens(self, logits: ir.Value) -> ir.Value:
        rows = (self.facts.shape(logits) or (None,) * 3)[2]
        integers = [
            value for value in self.inputs if self.facts.dtype(value) in _INTEGERS and self.facts.rank(value) == 2
        ]
        looked_up = [value for value in integers if self._is_index(value)]
        embeddings = self._embeddings(logits)
        asked = [value for value in (*integers, *embeddings) if value.name == self.given.get("tokens")]
        named = [value for value in integers if value.name == "input_ids"]
        fitting = [value for value in looked_up if rows is not None and self._rows(value) == rows]
        for candidates in (asked, fitting, named, embeddings, looked_up, integers):
            if len(candidates) == 1:
                return candidates[0]
        raise GenerationError(
            "which input has the tokens cannot be told: it would be integers [batch, sequence] that a Gather reads a table by, "
            "or embeddings [batch, sequence, size]; name it with tokens=NAME"
        )

    def _embeddings(self, logits: ir.Value) -> list[ir.Value]:
        """Inputs [batch, sequence, size] of numbers that may be embeddings of the tokens, of which there are scores."""
        length = (self.facts.shape(logits) or (None, None))[1]
        found = []
        for value in self.inputs:
            shape = self.facts.shape(value)
            if not self._is_float(value) or shape is None or len(shape) != 3 or not isinstance(shape[2], int):
                continue
            if shape[1] == length or value.name in (EMBEDDINGS, self.given.get("tokens")):
                found.append(value)
        return found

    def _states(self, tokens: ir.Value) -> Iterator[State]:
        """Inputs and outputs of the same constant size, each output with the input that is fewest nodes away from it."""
        batch = (self.facts.shape(tokens) or (None,))[0]
        inputs = [value for value in self.inputs if self._is_float(value) and self._is_constant_size(value, batch)]
        pairs = []
        for place, output in enumerate(self.outputs):
            if not self._is_float(output) or _unmoved(output) in inputs:  # what is handed on as it is stays the same
                continue
            away = _distances(output)
            pairs += [
                (away[before], place, number, before, output)
                for number, before in enumerate(inputs)
                if before in away and self._is_alike(before, output)
            ]
        found: dict[ir.Value, ir.Value] = {}
        for _, _, _, before, output in sorted(pairs, key=lambda pair: pair[:3]):
            if before not in found and output not in found.values():
                found[before] = output
        return (State(before, found[before]) for before in inputs if before in found)

    def _is_constant_size(self, value: ir.Value, batch: DimLike | None) -> bool:
        shape = self.facts.shape(value)
        is_open = [not isinstance(dim, int) for dim in shape or ()]
        # An axis of the batch may have another name.
        return shape is not None and sum(is_open) <= (0 if isinstance(batch, int) else 1)

    def _is_alike(self, before: ir.Value, after: ir.Value) -> bool:
        one, other = self.facts.shape(before), self.facts.shape(after)
        if self.facts.dtype(before) != self.facts.dtype(after) or one is None or other is None:
            return False
        same = [a == b or not (isinstance(a, int) or isinstance(b, int)) for a, b in zip(one, other, strict=False)]
        return len(one) == len(other) and all(same)

    def _positions(self, tokens: ir.Value) -> ir.Value | None:
        shape = self.facts.shape(tokens)
        assert shape is not None
        named = self.given.get("positions") or "position_ids"
        found = []
        for value in self.inputs:
            other = self.facts.shape(value)
            if self.facts.dtype(value) not in _INTEGERS or other is None or len(other) not in (1, 2, 3):
                continue
            if value.name == named:
                return value
            is_row = len(other) > 1 and other[-1] == shape[1] and other[-2] in (shape[0], 1)
            # The types of tokens are looked up in a table as positions are: only the name tells them apart.
            if is_row and ("position" in (value.name or "").lower() or not self._is_index(value)):
                found.append(value)
        return found[0] if len(found) == 1 else None

    def _mask(self, caches: tuple[Cache, ...], tokens: ir.Value) -> ir.Value | None:
        asked = self.given.get("mask")
        candidates = [value for value in self.inputs if self.facts.rank(value) == 2]
        exact = [value for value in candidates if value.name == (asked or "attention_mask")]
        if exact and (asked or not self._is_of_another(exact[0])):
            return exact[0]
        lengths = [(self.facts.shape(cache.present) or ())[cache.axis] for cache in caches]
        # Caches that are cut have fewer tokens than attention sees keys.
        added = (self.facts.shape(tokens) or (0, 0))[1]
        lengths += [(self.facts.shape(cache.past) or ())[cache.axis] + added for cache in caches]
        fitting = [value for value in candidates if (self.facts.shape(value) or ())[1] in lengths]
        by_query = [value for value in self.inputs if self._is_by_query(value, tokens)]
        for found in (fitting, [value for value in by_query if value.name == asked], by_query):
            if len(found) == 1:
                return found[0]
        return None

    def _is_by_query(self, value: ir.Value, tokens: ir.Value) -> bool:
        """Whether an input [batch, heads, sequence, keys] has a row for each new token, of numbers to add or truths."""
        shape, length = self.facts.shape(value), (self.facts.shape(tokens) or (None, None))[1]
        is_mask = self._is_float(value) or self.facts.dtype(value) == ir.DataType.BOOL
        return (
            is_mask and shape is not None and len(shape) == 4 and shape[2] == length and not isinstance(shape[3], int)
        )

    def _is_of_another(self, mask: ir.Value) -> bool:
        """Whether a mask has the length of numbers that another input gives, such as an encoder's states."""
        length = (self.facts.shape(mask) or (None, None))[1]
        others = [self.facts.shape(value) or () for value in self.inputs if self._is_float(value) and value is not mask]
        return length is not None and not isinstance(length, int) and any(length in shape for shape in others)

    def _is_float(self, value: ir.Value) -> bool:
        kind = self.facts.dtype(value)
        return kind is not None and kind.is_floating_point()

    def _is_index(self, value: ir.Value) -> bool:
        return any(use.node.op_type == "Gather" and use.idx == 1 for use in _uses_after_movement(value))

    def _rows(self, value: ir.Value) -> DimLike | None:
        for use in _uses_after_movement(value):
            if use.node.op_type == "Gather" and use.idx == 1:
                shape = self.facts.shape(use.node.inputs[0])
                if shape is not None and len(shape) == 2 and self._is_float(use.node.outputs[0]):
                    return shape[0]
        return None


_NOT_HANDED_ON = (
    "new tokens are appended to the input {}, but no output is the whole of it, or the new ones alone in its layout"
)

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


def _uses_after_movement(value: ir.Value) -> Iterator[Any]:
    for use in value.uses():
        if use.node.op_type in ("Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze") and use.idx == 0:
            yield from _uses_after_movement(use.node.outputs[0])
        else:
            yield use


def _unmoved(value: ir.Value) -> ir.Value:
    """The value that an Identity hands on."""
    producer = value.producer()
    if producer is None or producer.op_type != "Identity" or producer.domain or producer.inputs[0] is None:
        return value
    return _unmoved(producer.inputs[0])


def _distances(value: ir.Value) -> dict[ir.Value, int]:
    """The values that a value is computed from, each with the number of nodes between them."""
    found = {value: 0}
    pending = deque([value])
    while pending:
        one = pending.popleft()
        producer = one.producer()
        for used in used_values(producer) if producer is not None else ():
            if used not in found:
                found[used] = found[one] + 1
                pending.append(used)
    return found


def find_interface(model: ir.Model, facts: Facts, given: Mapping[str, str] | None = None) -> DecoderInterface:
    """Find the roles of a decoder's inputs and outputs.

    Args:
        model: A decoder whose attention is fused as far as it can be.
        facts: Its facts.
        given: Names of inputs and outputs by role (`tokens`, `mask`, `positions`, `logits`), where the graph does not tell.

    Raises:
        GenerationError: The model has no caches, or the tokens or scores cannot be told.
    """
    names = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for role, name in (given or {}).items():
        if name not in names:
            raise GenerationError(f"{role}={name}: the model has no input or output of this name")
    found = _Search(model, facts, given or {}).run()
    for role, name in (given or {}).items():
        value: ir.Value | None = getattr(found, role)
        if value is None or value.name != name:
            raise GenerationError(f"{role}={name}: it is not {_FORMS[role]}")
    return found


_FORMS: Mapping[str, str] = {
    "tokens": "an input of token ids, integers [batch, new tokens], or of embeddings [batch, new tokens, size]",
    "mask": "an input [batch, past and new tokens] without another role",
    "positions": "an input of integers, with the new tokens on the last of one to three axes",
    "logits": "an output of scores, numbers [batch, new tokens, vocabulary]",
}
"""The forms of inputs and outputs by their roles."""
