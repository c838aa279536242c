"""Compare a model that runs without padding with its original: at visible tokens, whatever hidden ones hold.

Outputs of both are set to 0 at hidden tokens (`ortfuse.ir.hidden_tokens`), and inputs of floats of the original, too. So the
numbers that the candidate finds at hidden tokens of its inputs may be NaN and huge ones, and must not reach any output.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir.hidden_tokens import HIDDEN_SCORE, KEY, Axes, HiddenTokens, hidden_tokens
from ortfuse.ir.inlinable_functions import looked_into
from ortfuse.runtime.inputs.mask_of_fill import lengths
from ortfuse.runtime.inputs.random_inputs import Array, Inputs
from ortfuse.runtime.reference_runs import Explored, explored
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.runtime.verification_time_budget import Budget

FILLS = (0.3, 0.55, 1.0)
"""Shares of visible tokens that are tried."""

HUGE, HUGE_HALF = 3e38, 6e4
"""Numbers at hidden tokens, and those of 16 bits."""

_BYTES_OF_HALF = 2
_RANK = 2
_AXES_ARE_INPUTS = 13
_PREFIX = "ortfuse_hidden_tokens"
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def comparable(original: Runnable, candidate: Runnable) -> tuple[Runnable, Runnable, Sequence[HiddenTokens]]:
    """Return both models, with hidden tokens set to 0, and what is known of these; as they are if nothing is.

    Tokens that are hidden in the original, too, are compared: it was packed itself, and what it gives there is to stay.
    """
    if not isinstance(original, ir.Model) or not isinstance(candidate, ir.Model):
        return original, candidate, ()
    before = hidden_tokens(original)
    found = [note for note in hidden_tokens(candidate) if note not in before]
    if not found:
        return original, candidate, ()
    blank = blanked(original, found, candidate, inputs=True)
    return blank, blanked(candidate, found, candidate), found


def blanked(model: ir.Model, hidden: Sequence[HiddenTokens], result: ir.Model, *, inputs: bool = False) -> ir.Model:
    """Return a copy of a model whose outputs are 0 at hidden tokens.

    Args:
        model: The model.
        hidden: What is known of hidden tokens, for each mask.
        result: The model that this is known of; it computes the mask, if that is no input.
        inputs: Whether to set the inputs of floats to 0 there, too.

    Raises:
        VerificationError: The result has no value with the name of the mask.
    """
    flat = looked_into(model)
    copy = flat.clone() if flat is model else flat
    names = map(f"{_PREFIX}_{{}}".format, itertools.count(1))
    for note in hidden:
        _Blanking(copy, note, result, names).run(inputs=inputs)
    return copy


class _Blanking:
    """Add nodes to a model that set hidden tokens to 0."""

    def __init__(self, model: ir.Model, hidden: HiddenTokens, result: ir.Model, names: Iterator[str]) -> None:
        self._graph, self._hidden, self._names = model.graph, hidden, names
        self._visible = self._visible_tokens(result)

    def run(self, *, inputs: bool) -> None:
        if inputs:
            for value in self._graph.inputs:
                if value.name in self._hidden.inputs:
                    self._blank_input(value)
        for number, output in enumerate(self._graph.outputs):
            pairs = self._hidden.outputs.get(output.name or "")
            if pairs:
                self._blank_output(number, output, pairs)
        self._graph.sort()

    def _add(self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any] | None = None) -> ir.Value:
        made = ir.node(op_type, inputs, attributes)
        made.outputs[0].name = next(self._names)
        self._graph.append(made)
        return made.outputs[0]

    def _constant(self, array: Array) -> ir.Value:
        return self._add("Constant", [], {"value": ir.Tensor(array)})

    def _visible_tokens(self, result: ir.Model) -> ir.Value:
        """Whether each token is visible: bool of shape [batch, sequence]."""
        inputs = {value.name: value for value in self._graph.inputs}
        mask = inputs.get(self._hidden.mask) or self._copied_mask(result, inputs)
        mask = self._add("Flatten", [mask], {"axis": 1})
        if self._hidden.is_added:
            numbers = self._add("Cast", [mask], {"to": ir.DataType.FLOAT})
            return self._add("Greater", [numbers, self._constant(np.array(HIDDEN_SCORE, np.float32))])
        shown = self._add("Cast", [mask], {"to": ir.DataType.BOOL})
        return self._add("Not", [shown]) if self._hidden.shows_zeros else shown

    def _copied_mask(self, result: ir.Model, inputs: Mapping[str | None, ir.Value]) -> ir.Value:
        """The mask, computed from the inputs as the result does."""
        values = {value.name: value for node in result.graph for value in node.outputs}
        mask = values.get(self._hidden.mask)
        if mask is None:
            raise VerificationError(
                f"the result lacks '{self._hidden.mask}', the mask of its hidden tokens by its metadata ({KEY}); verify it as "
                "ortfuse wrote it, before other tools"
            )
        needed = set(_above(mask))
        known: dict[ir.Value, ir.Value] = {}
        for node in [node for node in result.graph if node in needed]:
            operands = [None if one is None else self._counterpart(one, inputs, known) for one in node.inputs]
            made = ir.Node(
                node.domain, node.op_type, operands, list(node.attributes.values()), num_outputs=len(node.outputs)
            )
            for old, new in zip(node.outputs, made.outputs, strict=True):
                new.name = "" if old.name == "" else next(self._names)
                known[old] = new
            self._graph.append(made)
        return known[mask]

    def _counterpart(
        self, value: ir.Value, inputs: Mapping[str | None, ir.Value], known: dict[ir.Value, ir.Value]
    ) -> ir.Value:
        if value not in known:
            known[value] = (
                inputs[value.name] if value.const_value is None else self._constant(value.const_value.numpy())
            )
        return known[value]

    def _visible_at(self, pairs: Sequence[Axes], rank: int) -> ir.Value:
        """Whether each element of a tensor is one of visible tokens alone, for the tensor to broadcast with."""
        found = [self._spread(pair, rank) for pair in pairs]
        whole = found[0]
        for other in found[1:]:
            whole = self._add("And", [whole, other])
        return whole

    def _spread(self, pair: Axes, rank: int) -> ir.Value:
        sequence, position = pair
        visible = self._visible
        kept = [position]
        if sequence is None:
            visible = self._squeezed(visible)
        else:
            kept = sorted((sequence, position))
            if sequence > position:
                visible = self._add("Transpose", [visible], {"perm": [1, 0]})
        return self._unsqueezed(visible, [number for number in range(rank) if number not in kept])

    def _squeezed(self, value: ir.Value) -> ir.Value:
        return self._add("Reshape", [value, self._constant(np.array([-1], np.int64))])

    def _unsqueezed(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        if not axes:
            return value
        if self._graph.opset_imports.get("", 1) < _AXES_ARE_INPUTS:
            return self._add("Unsqueeze", [value], {"axes": list(axes)})
        return self._add("Unsqueeze", [value, self._constant(np.array(axes, np.int64))])

    def _zeroed(self, value: ir.Value, visible: ir.Value) -> ir.Value:
        """A value with 0 where something is not visible."""
        dtype = value.dtype
        assert dtype is not None
        if dtype == ir.DataType.BOOL:
            return self._add("And", [value, visible])
        wide = self._add("Cast", [value], {"to": ir.DataType.FLOAT}) if dtype in _NARROW else value
        numbers = np.float32 if dtype in _NARROW else dtype.numpy()
        found = self._add("Where", [visible, wide, self._constant(np.zeros((), numbers))])
        return self._add("Cast", [found], {"to": dtype}) if dtype in _NARROW else found

    def _blank_output(self, number: int, output: ir.Value, pairs: Sequence[Axes]) -> None:
        rank = None if output.shape is None else len(output.shape)
        if rank is None or output.dtype is None:
            return
        blank = self._zeroed(output, self._visible_at(pairs, rank))
        blank.type, blank.shape = output.type, output.shape
        name, output.name = output.name, next(self._names)
        blank.name = name
        self._graph.outputs[number] = blank

    def _blank_input(self, value: ir.Value) -> None:
        if value.shape is None:
            return
        uses = list(value.uses())
        blank = self._zeroed(value, self._visible_at([(0, 1)], len(value.shape)))
        for use in uses:
            use.node.replace_input_with(use.idx, blank)


def _above(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that a value is computed by."""
    waiting, seen = [value], set[ir.Node]()
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [one for one in node.inputs if one is not None]


def explored_with_hidden_tokens(
    original: Runnable,
    hidden: Sequence[HiddenTokens],
    inputs: Sequence[Inputs] | None,
    seed: int,
    reference: bool = True,
    *,
    sizes: Mapping[str, int] | None = None,
    budget: Budget | None = None,
) -> Explored:
    """Run the original as `explored` does and, with masks, on batches of several fills with anything at hidden tokens, too.

    Args:
        original: The model, with hidden tokens set to 0.
        hidden: What is known of hidden tokens, for each mask.
        inputs: Sets of inputs by name, instead of generated ones.
        seed: Seed of the generated inputs.
        reference: Whether to evaluate in float64 too, where that is feasible.
        sizes: Sizes of open dimensions by name, for one more set of inputs.
        budget: The time that this may take.

    Raises:
        VerificationError: As `explored`.
    """
    found = explored(original, inputs, seed, reference, sizes=sizes, budget=budget)
    if not hidden or not found.experiments:
        return found
    largest = max((one.inputs for one in found.experiments), key=lambda one: sum(array.size for array in one.values()))
    derived = list(poisoned(largest, hidden, seed))
    if not derived:
        return found
    more = explored(original, [one for _, one in derived], seed, reference=False, budget=budget)
    labelled = [replace(one, label=label) for one, (label, _) in zip(more.experiments, derived, strict=True)]
    return Explored([*found.experiments, *labelled], found.notes, found.exercise)


def poisoned(inputs: Inputs, hidden: Sequence[HiddenTokens], seed: int) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with other masks, and NaN and huge numbers at hidden tokens of inputs of floats, each with a label."""
    notes = [note for note in hidden if _is_mask(inputs.get(note.mask))]
    rng = np.random.default_rng(seed)
    masks = {note.mask: inputs[note.mask] for note in notes}
    drawn = {name: _patterns((mask.shape[0], mask.shape[-1]), rng) for name, mask in masks.items()}
    for patterns in zip(*drawn.values(), strict=True):
        made, label = dict(inputs), patterns[0][0]
        visible = {name: shown for name, (_, shown) in zip(drawn, patterns, strict=True)}
        for note in notes:
            made[note.mask] = _as_mask(visible[note.mask], masks[note.mask], note)
            for name in note.inputs:
                if name in made:
                    made[name] = _with_poison(made[name], visible[note.mask])
        yield f"{label}, anything at hidden tokens", made


def _is_mask(array: Array | None) -> bool:
    return array is not None and array.ndim >= _RANK and array.size > 0


def _patterns(shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Masks, with true for visible tokens."""
    batch, length = shape
    positions = np.arange(length)
    for fill in FILLS:
        yield f"fill {fill}", positions < lengths(batch, length, fill, rng)[:, None]
    yield "left-padded", positions >= length - lengths(batch, length, 0.5, rng)[:, None]
    yield "with holes", rng.random(shape) < 0.5
    yield (
        "a sequence without a visible token",
        (positions < lengths(batch, length, 0.5, rng)[:, None]) & (np.arange(batch) > 0)[:, None],
    )


def _as_mask(visible: Array, like: Array, hidden: HiddenTokens) -> Array:
    """A mask of the shape and dtype of another one that shows some tokens."""
    if hidden.is_added:
        wide = like.dtype.itemsize > _BYTES_OF_HALF
        made = np.where(visible, 0.0, -(HUGE if wide else HUGE_HALF))
    else:
        made = visible != hidden.shows_zeros
    return made.astype(like.dtype).reshape(like.shape)


def _with_poison(array: Array, visible: Array) -> Array:
    """Numbers with NaN and huge ones, in turns, at hidden tokens."""
    made = array.copy()
    wide = made.dtype.itemsize > _BYTES_OF_HALF
    poison = np.array([np.nan, HUGE if wide else HUGE_HALF, -(HUGE if wide else HUGE_HALF)]).astype(made.dtype)
    made[~visible] = np.resize(poison, made[~visible].shape)
    return made
