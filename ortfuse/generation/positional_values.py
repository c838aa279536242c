"""Values of a decoder that depend on nothing but lengths: masks, positions, rotary angles, biases of distance.

A step of `length` tokens after `past` ones, of which none is hidden and whose positions count from 0, determines them. They
are therefore evaluated by the runtime itself for given lengths, whatever nodes compute them. What holds for each
length up to a bound is found by evaluating each of them, and needs no knowledge of an exporter's forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError, VerificationError
from ortfuse.generation.cache_operands import Keys
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.step_inputs import step_mask, step_positions
from ortfuse.ir.dims import evaluate, symbols
from ortfuse.ir.walk import used_values
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import declare_inputs, model_of, taken, upstream

Array = np.ndarray[Any, Any]

_TOGETHER = 256
"""How many steps are evaluated at once."""


_SEVERAL = 5
"""The number of new tokens of runs that are compared with each other."""


@dataclass(frozen=True)
class Step:
    """One run of a decoder.

    Attributes:
        past: How many tokens the caches hold.
        length: How many tokens are new.
        batch: How many sequences there are.
    """

    past: int
    length: int
    batch: int = 1

    @property
    def total(self) -> int:
        """The number of tokens after the step."""
        return self.past + self.length


class PositionalValues:
    """The values of a model that lengths alone determine, when no token is hidden and positions count from 0."""

    def __init__(self, model: ir.Model, facts: Facts, interface: DecoderInterface) -> None:
        """Find the values; `model` must be in topological order, and `facts` be its own."""
        self._model, self._facts, self._interface = model, facts, interface
        self._known = {value for value in (interface.mask, interface.positions) if value is not None}
        self._tainted = set[ir.Value]()
        self._positional = set[ir.Value](self._known)
        given = {value for value in model.graph.inputs if value.name not in model.graph.initializers}
        self._tainted |= given - self._known
        for node in model.graph:
            used = list(used_values(node))
            if node.op_type in ("Shape", "Size") and not node.domain:
                found = self._of_sizes(node)
            elif any(value in self._tainted for value in used):
                found = self._tainted
            else:
                found = self._positional if any(value in self._positional for value in used) else None
            if found is not None:
                found.update(node.outputs)

    def _of_sizes(self, node: ir.Node) -> set[ir.Value] | None:
        """The set that the sizes of a query belong to: those of other inputs, as of an encoder, follow from no length."""
        shape = self._facts.shape(node.inputs[0])
        if shape is None:
            return self._positional
        asked = shape
        if node.op_type == "Shape":
            asked = shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", None)]
        named = {name for dim in asked for name in symbols(dim)}
        if node.inputs[0] in self._tainted and not named <= set(self._interface.sizes(self._facts, 1, 3, 2)):
            return self._tainted
        return self._positional if any(not isinstance(dim, int) for dim in shape) else None

    @property
    def takes_one_token(self) -> bool:
        """Whether a run takes one token only, by the declared size of its input."""
        return (self._facts.shape(self._interface.tokens) or (None, None))[1] == 1

    def possible(self, step: Step) -> Step:
        """A step, of as many sequences as a run takes, if that number is fixed."""
        batch = (self._facts.shape(self._interface.tokens) or (None,))[0]
        return replace(step, batch=batch) if isinstance(batch, int) else step

    def __contains__(self, value: ir.Value | None) -> bool:
        """Whether lengths determine a value (constants are no such value)."""
        return value is not None and value in self._positional

    def uses(self) -> Iterator[tuple[ir.Node, int, ir.Value]]:
        """Each use of a positional value by a node that computes others, with the number of the input (-1 in its bodies)."""
        for node in self._model.graph:
            if node.op_type in ("Shape", "Size") or not any(value in self._tainted for value in node.outputs):
                continue
            direct = set[ir.Value]()
            for number, value in enumerate(node.inputs):
                if value is not None and value in self._positional:
                    direct.add(value)
                    yield node, number, value
            for value in used_values(node):
                if value in self._positional and value not in direct:
                    yield node, -1, value

    def depends_on_past(self, value: ir.Value) -> bool:
        """Whether a positional value is computed from the mask, the positions, or the length of a cache."""
        pasts = {cache.past for cache in self._interface.caches}
        return any(source in self._known or (source in pasts) for source in self._sources(value))

    def counts_new_tokens(self, value: ir.Value, max_length: int) -> bool:
        """Whether a value is computed from sizes alone, and is the same after any past."""
        if any(source in self._known for source in self._contents(value)):
            return False
        evaluator, pasts = self.evaluator([value]), range(max_length)
        few = [past for past in (0, 1, 6, 13) if past + _SEVERAL <= max_length]
        groups = [[Step(past, 1) for past in pasts], [Step(past, 1, 3) for past in few]]
        if not self.takes_one_token:
            groups += [[Step(past, _SEVERAL, batch) for past in few] for batch in (1, 2)]
        return all(len({array.tobytes() for (array,) in evaluator.at(steps)}) <= 1 for steps in groups)

    def is_one_number(self, value: ir.Value, max_length: int) -> bool:
        """Whether all elements of a value are the same number in each step."""
        steps = [Step(past, 1) for past in range(max_length)] if self.depends_on_past(value) else [Step(0, 1)]
        if not self.takes_one_token:
            steps += [Step(0, length) for length in _powers(max_length)]
        steps += [Step(0, 1, 3)]
        found = set[bytes]()
        for (array,) in self.evaluator([value]).at(steps):
            found.update(element.tobytes() for element in np.unique(array))
            if len(found) > 1:
                return False
        return len(found) == 1

    def _contents(self, value: ir.Value) -> set[ir.Value]:
        """The values whose elements, not only sizes, go into a positional value."""

        def is_read(node: ir.Node) -> bool:
            return node.op_type not in ("Shape", "Size") and any(output in self._positional for output in node.outputs)

        return {value, *(used for node in upstream([value], is_read) for used in used_values(node))}

    def _sources(self, value: ir.Value) -> set[ir.Value]:
        nodes = upstream([value], lambda node: any(output in self._positional for output in node.outputs))
        return {value, *(used for node in nodes for used in used_values(node))}

    def evaluator(self, values: Sequence[ir.Value]) -> Evaluator:
        """Something that evaluates some of the values."""
        return Evaluator(self, list(dict.fromkeys(values)))

    def is_size_query(self, node: ir.Node) -> bool:
        """Whether a node asks for the sizes of a value that is not positional itself."""
        return node.op_type in ("Shape", "Size") and not node.domain and node.inputs[0] in self._tainted

    def given_sizes(self, node: ir.Node, step: Step) -> Array:
        """The answer of a size query in a step.

        Raises:
            GenerationError: A size is not known from the lengths.
        """
        sizes = self._interface.sizes(self._facts, step.batch, step.past, step.length)
        shape = self._facts.shape(node.inputs[0])
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        asked = None if shape is None else shape if node.op_type == "Size" else shape[start:end]
        if asked is None or any(name not in sizes for dim in asked for name in symbols(dim)):
            text = "is asked for its sizes, which do not follow from the lengths of past and new tokens"
            raise GenerationError(f"{node.inputs[0].name if node.inputs[0] else ''} {text}")
        found = [evaluate(dim, sizes) for dim in asked]
        return np.array(int(np.prod(found)) if node.op_type == "Size" else found, np.int64)

    def seen(self, keys: Keys, step: Step) -> int:
        """How many of the last tokens attention sees in a step, new ones included.

        Raises:
            GenerationError: The number is not known from the lengths.
        """
        if keys.seen is None:
            return step.total
        sizes = self._interface.sizes(self._facts, step.batch, step.past, step.length)
        if any(name not in sizes for name in symbols(keys.seen)):
            raise GenerationError(f"attention sees {keys.seen} keys, which does not follow from the lengths")
        return evaluate(keys.seen, sizes)

    def given_arrays(self, step: Step) -> dict[ir.Value, Array]:
        """Mask and positions of a step, in the types and ranks that the model declares."""
        found: dict[ir.Value, Array] = {}
        mask, positions = self._interface.mask, self._interface.positions
        if mask is not None:
            kept = self._interface.mask_kept(self._facts)
            total = step.total if kept is None else min(step.past, kept) + step.length
            declared = [dim if isinstance(dim, int) else -1 for dim in self._facts.shape(mask) or ()]
            found[mask] = step_mask(declared, _dtype(self._facts, mask), step.batch, total, step.length)
        if positions is not None:
            declared = [dim if isinstance(dim, int) else -1 for dim in self._facts.shape(positions) or ()]
            kind = _dtype(self._facts, positions)
            found[positions] = step_positions(declared, kind, step.batch, step.past, step.length)
        return found


class Evaluator:
    """Evaluates positional values for steps, by the runtime."""

    def __init__(self, owner: PositionalValues, values: Sequence[ir.Value]) -> None:
        """Make a session of the nodes that compute the values."""
        self._owner, self._values = owner, values
        model, computed = owner._model, []
        for node in upstream(values, lambda node: any(output in owner for output in node.outputs)):
            if not owner.is_size_query(node):
                computed.append(node)
        used = [*taken(computed), *(value for value in values if value.producer() is None)]
        queries = {
            value: producer
            for value in (*used, *values)
            if (producer := value.producer()) is not None and owner.is_size_query(producer)
        }
        self._queries = queries
        given = [value for value in dict.fromkeys(used) if value in owner and value not in queries]
        names = {value: f"given_{number}" for number, value in enumerate([*given, *queries])}
        self._names = names
        fixed = [value for value in dict.fromkeys(used) if value not in names]
        constants = {value: value.const_value for value in fixed if value.const_value is not None}
        for value in fixed:
            known = None if value in constants else owner._facts.const(value)
            if known is not None:  # such as a number of axes, which is the same for all lengths
                constants[value] = ir.tensor(known)
        extra = upstream([value for value in fixed if value not in constants])
        computed = [*extra, *(node for node in computed if node not in set(extra))]
        for value in taken(extra):
            if value.const_value is not None:
                constants[value] = value.const_value
        outputs = [(f"value_{number}", value) for number, value in enumerate(values)]
        part = model_of(
            computed, names, outputs, constants, model.graph.opset_imports, functions=model.functions.values()
        )
        first = self._feeds(Step(3, 1 if owner.takes_one_token else 2))
        declare_inputs(part, first)
        self._session = Session(part, threads=1)

    def _feeds(self, step: Step) -> dict[str, Array]:
        step = self._owner.possible(step)
        arrays = self._owner.given_arrays(step)
        feeds = {self._names[value]: arrays[value] for value in arrays if value in self._names}
        for value, node in self._queries.items():
            feeds[self._names[value]] = self._owner.given_sizes(node, step)
        return feeds

    def at(self, steps: Sequence[Step]) -> Iterator[list[Array]]:
        """The values in each of the steps, in their order.

        Raises:
            GenerationError: The runtime cannot evaluate one.
        """
        for start in range(0, len(steps), _TOGETHER):
            for ran in self._session.run_each([self._feeds(step) for step in steps[start : start + _TOGETHER]]):
                if isinstance(ran, str):
                    raise GenerationError(f"positions and masks cannot be evaluated: {ran}")
                yield [ran[f"value_{number}"] for number in range(len(self._values))]


def _powers(most: int) -> list[int]:
    """Powers of two up to a number, each with the next number."""
    powers = [1 << bits for bits in range(most.bit_length())]
    return sorted({number + more for number in powers for more in (0, 1) if number + more <= most})


def _dtype(facts: Facts, value: ir.Value) -> np.dtype[Any]:
    kind = facts.dtype(value)
    if kind is None:
        raise VerificationError(f"the input {value.name} has no element type")
    return kind.numpy()
