"""The names of a decoder's inputs and outputs by their roles."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.decoder_interface import Cache, DecoderInterface
from ortfuse.ir.dims import evaluate, symbols
from ortfuse.serialization import Record


@dataclass(frozen=True)
class InterfaceNames(Record):
    """The names of a decoder's inputs and outputs by their roles, as `DecoderInterface`.

    Attributes:
        tokens: Token ids.
        mask: Visible tokens; "" if there is none.
        positions: Positions of new tokens; "" if there are none.
        caches: Input, output and axis of the length of each cache.
        states: Input and output of each state.
        logits: Scores of the next token.
        fixed: Inputs that stay the same in all steps.
        branch: A Boolean input that is false in the first step and true in those after it; "" if there is none.
        crossed: Inputs of the steps after the first, such as keys of cross-attention, each with the output of the first
            that it is.
        shapes: The sizes of each cache for one sequence, before the first step.
        mask_kept: How many tokens of the past the mask has at most; 0 for all.
        new_alone: Outputs of caches that have the new tokens alone, which are appended to the input.
        counter: The input that says how many tokens caches of a fixed length have, or where the new ones stand; "" if there is
            none.
    """

    tokens: str
    mask: str
    positions: str
    caches: tuple[tuple[str, str, int], ...]
    states: tuple[tuple[str, str], ...]
    logits: str
    fixed: tuple[str, ...]
    branch: str = ""
    crossed: tuple[tuple[str, str], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    mask_kept: int = 0
    new_alone: tuple[str, ...] = ()
    counter: str = ""


def names_of(
    interface: DecoderInterface,
    facts: Facts,
    branch: str = "",
    crossed: tuple[tuple[str, str], ...] = (),
    new_alone: tuple[str, ...] = (),
) -> InterfaceNames:
    """The names of the inputs and outputs; `branch` is the input that chose a branch, the others are as in the result."""
    return InterfaceNames(
        _name(interface.tokens),
        _name(interface.mask),
        _name(interface.positions),
        tuple((_name(cache.past), _name(cache.present), cache.axis) for cache in interface.caches),
        tuple((_name(state.before), _name(state.after)) for state in interface.states),
        _name(interface.logits),
        tuple(_name(value) for value in interface.fixed),
        branch,
        crossed,
        tuple(_empty_sizes(interface, cache, facts) for cache in interface.caches),
        interface.mask_kept(facts) or 0,
        new_alone,
    )


def _empty_sizes(interface: DecoderInterface, cache: Cache, facts: Facts) -> tuple[int, ...]:
    """The sizes of a cache of one sequence without tokens; 1 where an open one is not known."""
    known = {
        name: 1 for value in (interface.tokens, cache.past) for dim in facts.shape(value) or () for name in symbols(dim)
    }
    sizes = [evaluate(dim, known) for dim in facts.shape(cache.past) or ()]
    return (*sizes[: cache.axis], 0, *sizes[cache.axis + 1 :])


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""
