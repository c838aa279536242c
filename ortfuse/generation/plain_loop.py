"""Generate with a decoder as it was exported: each step feeds the caches that the last one handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ortfuse.errors import GenerationError
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.generation.step_inputs import step_mask, step_positions
from ortfuse.generation.token_embeddings import Embed, RandomEmbeddings

Array = np.ndarray[Any, Any]


class Runs(Protocol):
    """Something that runs a model, such as `ortfuse.runtime.session.Session`."""

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """All outputs by name."""


@dataclass(frozen=True)
class InputType:
    """The type of an input of the decoder.

    Attributes:
        dtype: The element type.
        shape: Sizes, -1 for those that are not fixed.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def input_types(model: ir.Model) -> dict[str, InputType]:
    """The types of a decoder's inputs by name.

    Raises:
        GenerationError: An input declares no type or shape.
    """
    found = {}
    for value in model.graph.inputs:
        if value.dtype is None or value.shape is None:
            raise GenerationError(f"the input {value.name} declares no type or shape")
        sizes = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
        found[value.name or ""] = InputType(value.dtype.numpy(), sizes)
    return found


class PlainLoop:
    """A decoder with the caches that it hands out, growing, cut or of a fixed length, for sequences of equal lengths."""

    def __init__(
        self,
        session: Runs,
        names: InterfaceNames,
        types: Mapping[str, InputType],
        batch: int = 1,
        *,
        first: Runs | None = None,
        embed: Embed | None = None,
    ) -> None:
        """Start with empty caches, or buffers of zeros, and states of zeros.

        Args:
            session: Runs the decoder.
            names: The roles of its inputs and outputs.
            types: Those of its inputs.
            batch: How many sequences there are.
            first: Runs the model of the first step, if that is another one.
            embed: Gives embeddings of token ids, if the decoder takes such; by default random ones.
        """
        size = types[names.tokens].shape[-1] if types[names.tokens].dtype.kind == "f" else 0
        self._embed = (embed or RandomEmbeddings(size)) if size else None
        self._session, self._names, self._types, self._batch = session, names, types, batch
        self._first = first or session
        self._is_first = first is not None or bool(names.branch)
        self.past = 0
        self._kept: dict[str, Any] = {}
        for (past, _, axis), shape in zip(names.caches, names.shapes, strict=True):
            is_buffer = types[past].shape[axis] >= 0
            self._kept[past] = self._zeros(past, None if is_buffer else axis, shape)
        for before, _ in names.states:
            self._kept[before] = self._zeros(before, None)
        for before, _ in names.crossed:
            self._kept[before] = self._zeros(before, None)

    @property
    def crossed(self) -> dict[str, Any]:
        """The values that the first step computed for later ones, by the names of their inputs."""
        return {before: self._kept[before] for before, _ in self._names.crossed}

    def take_crossed(self, other: PlainLoop) -> None:
        """Take what the first step of another loop computed for later ones, so that all steps of this one are such."""
        self._is_first = False
        self._kept.update(other.crossed)

    def _zeros(self, name: str, empty: int | None, single: Sequence[int] = ()) -> Array:
        """Zeros for an input, without elements on an axis; `single` has the sizes of one sequence."""
        kind = self._types[name]
        rows = single or [1] * len(kind.shape)
        sizes = [self._batch * one if size < 0 else size for size, one in zip(kind.shape, rows, strict=True)]
        if empty is not None:
            sizes[empty] = 0
        return np.zeros(sizes, kind.dtype)

    def step(self, tokens: Array, fixed: Mapping[str, Array] | None = None) -> Array:
        """The scores after each of the new tokens, [batch, new tokens, vocabulary].

        Args:
            tokens: Token ids [batch, new tokens].
            fixed: The inputs that stay the same in all steps.
        """
        names, length = self._names, tokens.shape[1]
        feeds: dict[str, Any] = {**self._kept, **(fixed or {})}
        given = tokens if self._embed is None else self._embed(tokens)
        feeds[names.tokens] = given.astype(self._types[names.tokens].dtype)
        if names.mask:
            columns = length + (min(self.past, names.mask_kept) if names.mask_kept else self.past)
            kind = self._types[names.mask]
            feeds[names.mask] = step_mask(kind.shape, kind.dtype, self._batch, columns, length)
        for name in filter(None, (names.positions, names.counter)):
            kind = self._types[name]
            feeds[name] = step_positions(kind.shape, kind.dtype, self._batch, self.past, length)
        if names.branch:
            sizes = [1 if size < 0 else size for size in self._types[names.branch].shape]
            feeds[names.branch] = np.full(sizes, not self._is_first)
        results = (self._first if self._is_first else self._session).run(feeds)
        for before, after in names.crossed if self._is_first else ():
            self._kept[before] = results[after]
        self._is_first = False
        for past, present, axis in names.caches:
            found = results[present]
            if present in names.new_alone:
                found = np.concatenate([self._kept[past], found], axis)
            self._kept[past] = found
        for before, after in names.states:
            self._kept[before] = results[after]
        self.past += length
        return np.asarray(results[names.logits])
