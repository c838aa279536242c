"""The roles of a decoder's inputs and outputs: tokens, mask, positions, caches, states, logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import evaluate, symbol, symbols

PAST = {"Attention": (4, 5), "MultiHeadAttention": (6, 7), "GroupQueryAttention": (3, 4)}
"""The inputs of attention operators that take the keys and values of earlier steps; outputs 1 and 2 are those afterwards."""


@dataclass(frozen=True)
class Cache:
    """Keys or values of one layer: an input to which each step appends, and the output with what it appended.

    Attributes:
        past: The input, with the length on axis `axis`.
        present: The output.
        axis: The axis of the length.
        kept: How many of the last tokens the output has at most; `None` for all.
        is_plain: Whether an operator appends to the input itself, and its result is the output.
    """

    past: ir.Value
    present: ir.Value
    axis: int
    kept: int | None = None
    is_plain: bool = True

    def length(self, past: int) -> int:
        """How many tokens the input has after `past` ones."""
        return past if self.kept is None else min(past, self.kept)


@dataclass(frozen=True)
class State:
    """A value that a step hands to the next one without growing, such as the window of a convolution.

    Attributes:
        before: The input.
        after: The output, of the same type and sizes.
    """

    before: ir.Value
    after: ir.Value


@dataclass(frozen=True)
class DecoderInterface:
    """Which input and output of a decoder is what.

    Attributes:
        tokens: Token ids, [batch, sequence], or their embeddings, [batch, sequence, size].
        mask: Which of the past and new tokens are visible, [batch, past + sequence], or which keys each new token sees,
            [batch, 1, sequence, past + sequence], those up to itself; `None` if the decoder takes none.
        positions: Positions of the new tokens, [batch, sequence]; `None` if the decoder takes none.
        caches: Keys and values of the layers, in the order of the inputs.
        states: Other values that a step hands to the next one.
        logits: Scores of the next token, [batch, sequence, vocabulary].
        fixed: Other inputs, which stay the same in all steps, such as states of an encoder.
        others: Other outputs.
    """

    tokens: ir.Value
    mask: ir.Value | None
    positions: ir.Value | None
    caches: tuple[Cache, ...]
    states: tuple[State, ...]
    logits: ir.Value
    fixed: tuple[ir.Value, ...]
    others: tuple[ir.Value, ...]

    @property
    def embedding(self) -> int:
        """The size of the embedding of a token; 0 if tokens are ids."""
        shape = self.tokens.shape
        size = shape[2] if shape is not None and len(shape) == 3 else 0
        return size if isinstance(size, int) else 0

    def sizes(self, facts: Facts, batch: int, past: int, length: int) -> dict[str, int]:
        """The symbols of the inputs' sizes in a step of `length` tokens after `past` ones."""
        found: dict[str, int] = {}
        for value, sizes in self._sized(batch, past, length):
            for dim, size in zip(facts.shape(value) or (), sizes, strict=False):
                named = symbols(dim)
                if size is not None and len(named) == 1 and str(dim) in named:
                    found.setdefault(str(dim), size)
                elif size is not None and len(unknown := named - set(found)) == 1:
                    (name,) = unknown  # such as the past of a mask that no cache has as a whole
                    if isinstance(rest := dim - symbol(name), int) or symbols(rest) <= set(found):
                        found[name] = size - evaluate(rest, found)
        return found

    def mask_kept(self, facts: Facts) -> int | None:
        """How many tokens of the past the mask has at most: as many as caches that keep the last ones, or all (`None`).

        The declared length of the mask tells it.
        """
        named = symbols((facts.shape(self.mask) or (0,))[-1]) if self.mask is not None else set()
        pasts = {cache.kept: symbols((facts.shape(cache.past) or ())[cache.axis]) for cache in reversed(self.caches)}
        if pasts.get(None, set()) & named:
            return None
        return next((kept for kept, names in pasts.items() if names & named), None)

    def _sized(self, batch: int, past: int, length: int) -> Iterator[tuple[ir.Value, list[int | None]]]:
        yield self.tokens, [batch, length]
        for cache in self.caches:
            sizes: list[int | None] = [None] * len(cache.past.shape or ())
            sizes[cache.axis] = cache.length(past)
            yield cache.past, sizes
        if self.positions is not None:
            rank = len(self.positions.shape or ())
            yield self.positions, [None, batch, length][3 - rank :]
        if self.mask is not None:
            is_by_query = len(self.mask.shape or ()) == 4
            yield self.mask, [batch, None, length, past + length] if is_by_query else [batch, past + length]
